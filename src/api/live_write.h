/* The JSON of /v1/live's events. Pure but for the API's tables. Owner: the event-loop thread. */
#ifndef GS_API_LIVE_WRITE_H
#define GS_API_LIVE_WRITE_H

#include "api/api_impl.h"
#include "base/buf.h"
#include "engine/engine.h"

/* Who is to read it: admins see persons, others only themselves. */
typedef struct gs_audience {
    bool admin;
    uint32_t person;
    uint64_t scope;
    gs_owner owner; /* of batches */
} gs_audience;

/* The engine's statistics of the last seconds, for rates. */
#define GS_RATES 6
typedef struct gs_rates {
    uint32_t n; /* ever added */
    gs_engine_stats stats[GS_RATES];
    int64_t at_ns[GS_RATES];
} gs_rates;

void gs_rates_add(gs_rates *r, const gs_engine *e, int64_t now_ns);

void gs_live_write_hello(const struct gs_api *a, const gs_audience *to, gs_buf *out);
void gs_live_write_models(const struct gs_api *a, gs_buf *out); /* those in memory */
void gs_live_write_steps(const struct gs_api *a, const gs_step_record *steps, uint32_t n,
                         uint64_t lost, gs_buf *out);
/* q: answered, of kind STATE. */
void gs_live_write_state(const struct gs_api *a, const gs_audience *to, const gs_query *q,
                         const gs_rates *rates, gs_buf *out);

#endif
