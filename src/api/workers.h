/* What is told of the workers: /v1/workers, /v1/live, /metrics. */
#ifndef GS_API_WORKERS_H
#define GS_API_WORKERS_H

#include "api/params.h"
#include "base/jsonw.h"
#include "config/config.h"
#include "http/http.h"
#include "metrics/expose.h"

struct gs_api;

#define GS_API_WORKERS (GS_CONFIG_MAX_WORKERS + 1) /* this machine among them */

/* An array with an object for each, this machine first; admins are told addresses and failures. */
void gs_workers_write(const struct gs_api *a, bool admin, gs_jsonw *w);
/* The list as an answer. */
void gs_workers_reply(struct gs_api *a, gs_http_request *rq);
/* Whether the server may reach other machines; false: e says why not. */
bool gs_workers_may_connect(const struct gs_api *a, gs_api_error *e);
/* Their numbers. Returns how many. */
int gs_workers_metrics(const struct gs_api *a, gs_metrics_worker out[GS_API_WORKERS]);

#endif
