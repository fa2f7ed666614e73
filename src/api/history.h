/*
 * What each of the last 30 days' minutes was: one row a minute in the store, and GET /v1/history.
 * Private to api/.
 *
 *     history.c      what a minute was, and the request. Event-loop thread.
 *     history_db.c   rows: kept, removed, put together. Store thread.
 *
 * Times to the first token and between tokens are kept as histograms (with the bounds of
 * metrics.c), so that percentiles of several minutes together are those of all their tokens, not
 * something made of the minutes' percentiles.
 */
#ifndef GS_API_HISTORY_H
#define GS_API_HISTORY_H

#include <stdint.h>

#include "api/api_impl.h"
#include "metrics/metrics.h"
#include "store/store.h"

#define GS_HISTORY_KEEP_S   (30 * 86400LL)
#define GS_HISTORY_ROWS     50000 /* in the store, at most: a clock that jumps can't add up */
#define GS_HISTORY_ANSWER   1500  /* rows of one answer */
#define GS_HISTORY_MAX_STEP (30 * 86400LL)

typedef struct gs_history_class {
    uint64_t n_requests, n_prompt, n_output; /* that ended, and their tokens */
    uint64_t n_judged, n_missed;             /* against targets */
    gs_hist ttft, itl;                       /* sums are not kept */
} gs_history_class;

typedef struct gs_history_row {
    int64_t t_s; /* its start, wall clock */
    int64_t ms, busy_ms, background_ms;
    double kv;       /* share of the blocks that living sequences held, on average */
    double energy_j; /* NaN: not told by this machine */
    gs_history_class classes[GS_CLASS_COUNT];
} gs_history_row;

/* ---- Event loop; nothing happens and nothing is kept without a store ---- */
int64_t gs_history_period_ns(const gs_api *a); /* of a minute: 60 s but in tests */
int gs_history_create(gs_api *a);              /* GS_ERR_NOMEM; freed with gs_free */
/* Now and then within the minute. h may be NULL. */
void gs_history_sample(gs_history *h, const gs_engine_stats *s);
/* gs_metrics_tick has said that a minute is over. energy_j: so far, or NaN. */
void gs_history_minute(gs_api *a, const gs_engine_stats *s, int64_t now_ns, double energy_j);
/*
 * Under which time a minute that began at wall_s is kept: the one after the last one (0: none) as
 * long as the clocks agree that far, so that a clock that drifts skips and repeats none. After a
 * clock was set it is as the clock says, and what was kept under the same time before is replaced.
 */
int64_t gs_history_place(int64_t last_s, int64_t period_s, int64_t wall_s);

/* ---- Store thread; codes as in store.h ---- */
/* Keeps the row, in the place of one with the same time; removes what is older than
 * GS_HISTORY_KEEP_S before now_s, and of more than max_rows those furthest from now_s. */
int gs_history_put(gs_db *db, const gs_history_row *row, int64_t now_s, int64_t max_rows);
/* The answer: rows in [from_s, to_s), those of each step_s put together. Nothing for steps in
 * which there are none. db: NULL where nothing is kept. */
int gs_history_write(gs_db *db, int64_t from_s, int64_t to_s, int64_t step_s, gs_buf *out);

#endif
