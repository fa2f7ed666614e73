/*
 * Circuit breaker of one worker: after failures it gets no work for a while, each time for longer;
 * then one probe decides.
 *
 *     CLOSED ──failures──► OPEN ──until_ns──► HALF_OPEN ──a probe is answered──► CLOSED
 *                            ▲                    │
 *                            └──── it is not ─────┘ twice as long as before, up to max_ns
 *
 * Pure, a plain value. Owner: whoever holds it.
 */
#ifndef GS_SCHED_BREAKER_H
#define GS_SCHED_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"

typedef enum gs_breaker_state {
    GS_BREAKER_CLOSED,
    GS_BREAKER_OPEN,
    GS_BREAKER_HALF_OPEN
} gs_breaker_state;

typedef struct gs_breaker_config {
    int32_t max_failures;     /* in a row, of requests; a probe that fails opens it at once */
    int64_t first_ns, max_ns; /* how long it stays open: the first time, and at most */
} gs_breaker_config;

typedef struct gs_breaker {
    gs_breaker_state state; /* as of the latest call */
    int32_t n_failures;     /* of requests, since the last success */
    int32_t n_opened;       /* times in a row, without a success between */
    int64_t until_ns;       /* while OPEN */
} gs_breaker;

void gs_breaker_defaults(gs_breaker_config *out); /* 3; 1 s, 60 s */
/* The state at now_ns: OPEN becomes HALF_OPEN when its time has come. */
gs_breaker_state gs_breaker_look(gs_breaker *b, int64_t now_ns);
/* A request failed there. True: the breaker has opened. jitter spreads the time by a tenth. */
bool gs_breaker_failed(gs_breaker *b, const gs_breaker_config *cfg, int64_t now_ns, gs_rng *jitter);
/* A probe failed there: opens, or stays open for longer. */
void gs_breaker_trip(gs_breaker *b, const gs_breaker_config *cfg, int64_t now_ns, gs_rng *jitter);
/* A probe was answered: the next one opens it for as long as this one did, until a request has
 * succeeded. */
void gs_breaker_answered(gs_breaker *b);
/* A request has succeeded. */
void gs_breaker_succeeded(gs_breaker *b);

#endif
