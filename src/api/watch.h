/*
 * The watchdog: does the engine make progress?
 *
 *     ok ──a question is not answered, no progress, for engine.stall_ms──► stalled: /health 503
 *      ▲                                                                      │ engine.restart_ms
 *      └── an answer ── gs_engine_revive: the step is given up, threads are ──┤
 *                       replaced, all who were not in it go on                │ it can't be, or too
 *                                                                             ▼ often: give_up
 *
 * Twice a second the engine is asked a question that it answers between two steps, on the same
 * queues as all else, so a lost wake-up is found, too. A long step is no stall: what counts is time
 * without any progress of its computation. Time in which this process was stopped or slept counts
 * for a moment only. The service manager hears WATCHDOG=1 while there is progress. A step beside
 * the engine's own (mode split) is watched by its progress alone, and given up likewise.
 *
 * Owner: the event-loop thread.
 */
#ifndef GS_API_WATCH_H
#define GS_API_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

#define GS_WATCH_RESTARTS  3 /* at most, in: */
#define GS_WATCH_WINDOW_NS (600 * INT64_C(1000000000))

struct gs_api;

typedef struct gs_watch {
    gs_query ping;
    bool asked;        /* and not answered */
    bool stalled;      /* what /health says */
    bool over;         /* given up */
    int64_t looked_ns; /* when */
    int64_t silent_ns; /* without progress since the question */
    uint64_t progress; /* as of then */
    int64_t beside_ns; /* a step beside the engine's own is without progress for so long */
    uint64_t beside;   /* its progress */
    uint64_t n_restarts;
    int64_t restarts_ns[GS_WATCH_RESTARTS]; /* when, ring by number */
} gs_watch;

void gs_watch_tick(struct gs_api *a, int64_t now_ns);
bool gs_watch_answered(struct gs_api *a, const gs_query *q); /* false: not its question */

#endif
