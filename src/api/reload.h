/*
 * The workers of the configuration file, read again while the server runs: on SIGHUP, and for POST
 * /v1/workers/reload. Owner: the event-loop thread; the file is read by a worker thread.
 */
#ifndef GS_API_RELOAD_H
#define GS_API_RELOAD_H

#include "http/http.h"

struct gs_api;
typedef struct gs_reload gs_reload;

/* rq: is answered when it is done; NULL: the log is told. */
void gs_reload_begin(struct gs_api *a, gs_http_request *rq);
/* The client of one went away. False: rq is none. */
bool gs_reload_gone(struct gs_api *a, gs_http_request *rq);

#endif
