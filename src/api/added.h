/*
 * Workers that were added by command (POST /v1/workers): kept in the file workers.json of the state
 * folder, as they were described, keys only as paths, and there again after a restart.
 *
 * Owner: the event-loop thread; the file is written by a worker thread.
 */
#ifndef GS_API_ADDED_H
#define GS_API_ADDED_H

#include <jansson.h>

#include "api/params.h"
#include "config/config.h"

struct gs_api;
typedef struct gs_added gs_added;

/* One worker as the API takes it: its name and settings of a section [worker NAME]. Takes nothing;
 * out is to be deinit'ed in every case. 0 or e->code. */
int gs_added_parse(const json_t *body, gs_config_worker *out, gs_api_error *e);

gs_added *gs_added_create(struct gs_api *a); /* NULL: out of memory */
void gs_added_free(gs_added *x);
/* The worker of that name was removed: it is not there after a restart, either. */
void gs_added_forget(struct gs_api *a, const char *name);
/* What has changed is written, soon. */
void gs_added_save(struct gs_api *a);

#endif
