/*
 * POST /api/pull: models from elsewhere. Each pull has a thread of its own, which waits for the
 * process that does it (pull/helper.h); whoever asks for the same model meanwhile looks on. When
 * nobody does any more it is given up; what has come by then is taken up by the next one. Owner:
 * the event-loop thread.
 */
#ifndef GS_API_PULLS_H
#define GS_API_PULLS_H

#include <jansson.h>

#include "api/api.h"
#include "api/params.h"

typedef struct gs_pulls gs_pulls;

extern const gs_field gs_pull_fields[];

gs_pulls *gs_pulls_create(void); /* NULL: out of memory */
void gs_pulls_post(gs_api *a, gs_http_request *rq, json_t *body);
void gs_pulls_pump(gs_api *a); /* one may have ended */
void gs_pulls_tick(gs_api *a); /* tells how far they are */
bool gs_pulls_gone(gs_api *a, gs_http_request *rq);
void gs_pulls_drain(gs_api *a); /* gives all of them up */
void gs_pulls_free(gs_api *a);

#endif
