/*
 * Tuning, as the server shows and does it: GET /v1/tune with the curve that `gamasot tune` left in
 * the state folder, and live tuning (tune.live), which changes one live option at a time and takes
 * it back when it does not help (load/autotune.h). Owner: the event-loop thread.
 */
#ifndef GS_API_TUNING_H
#define GS_API_TUNING_H

#include "api/api.h"
#include "engine/engine.h"
#include "metrics/expose.h"

typedef struct gs_tuning gs_tuning;

gs_tuning *gs_tuning_create(void); /* NULL: out of memory */
void gs_tuning_free(gs_tuning *t);
/* A sequence that had been admitted has ended: did it meet its class's targets? */
void gs_tuning_ended(gs_api *a, const gs_explain *x);
/* Now and then: decides when an interval is over. */
void gs_tuning_tick(gs_api *a, const gs_engine_stats *s, int64_t now_ns);
/* Its part of /metrics. */
void gs_tuning_metrics(const gs_api *a, gs_metrics_server *out);

#endif
