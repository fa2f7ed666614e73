/*
 * The thread that runs steps beside the engine's own (mode split, sched/mode.h): it owns a sibling
 * of a lane's backend and runs one batch at a time. The engine thread plans, starts, takes and
 * commits; the batch and what it points to are this thread's from start until take has said true.
 */
#ifndef GS_ENGINE_BESIDE_H
#define GS_ENGINE_BESIDE_H

#include "engine/backend.h"

typedef struct gs_beside gs_beside;

/* of has a sibling op and outlives this. done(arg) is called on that thread after each batch.
 * GS_ERR_NOMEM, or what the sibling says. */
int gs_beside_create(gs_backend *of, void (*done)(void *arg), void *arg, gs_beside **out);
void gs_beside_free(gs_beside *b); /* waits for a batch that runs */

/* The rest is the engine thread's. Nothing runs; copies are done already. */
void gs_beside_start(gs_beside *b, gs_batch *batch);
bool gs_beside_is_done(const gs_beside *b); /* something was started and take will say true */
/* True once for each start: it is over, with forward's code and the time it took. With wait it
 * waits for that. False: nothing was started, or it runs. */
bool gs_beside_take(gs_beside *b, bool wait, int *rc, int64_t *elapsed_ns);

/*
 * For a batch that does not come back; the event-loop thread. progress: a number that changes while
 * one goes on, and from one to the next; *runs: one is being computed. revive: the thread and those
 * of the sibling are made to stand still for good (base/park.h), new ones take their places, and
 * the batch is over with GS_ERR_STALLED. GS_ERR_EXISTS: none is being computed, nothing was
 * changed. Others: it can't be helped.
 */
uint64_t gs_beside_progress(const gs_beside *b, bool *runs);
int gs_beside_revive(gs_beside *b);

#endif
