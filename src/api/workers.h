/* What is told of the workers: /v1/workers, /v1/live, /metrics. */
#ifndef GS_API_WORKERS_H
#define GS_API_WORKERS_H

#include "base/jsonw.h"
#include "config/config.h"
#include "metrics/expose.h"

struct gs_api;

#define GS_API_WORKERS (GS_CONFIG_MAX_WORKERS + 1) /* this machine among them */

/* An array with an object for each, this machine first; admins are told addresses and failures. */
void gs_workers_write(const struct gs_api *a, bool admin, gs_jsonw *w);
/* Their numbers. Returns how many. */
int gs_workers_metrics(const struct gs_api *a, gs_metrics_worker out[GS_API_WORKERS]);

#endif
