/*
 * The route table: what the server answers, who may ask, and what a request and its answer look
 * like. Dispatch (routes.c) and the OpenAPI document (openapi.c) are made from it.
 *
 * Each part of the API (a dialect, the server's own endpoints) is a gs_api_part with its routes
 * and the JSON Schemas they name; routes.c lists the parts. To add an endpoint, add a row; to add
 * a dialect, add a part. All tables are static and end with a row without a name.
 */
#ifndef GS_API_ROUTE_H
#define GS_API_ROUTE_H

#include <jansson.h>

#include "api/params.h"
#include "base/buf.h"
#include "http/http.h"

struct gs_api;

enum {
    GS_ROUTE_OPEN = 1,      /* no key needed: liveness for whoever restarts the server */
    GS_ROUTE_MODEL = 2,     /* 503 until the model is loaded */
    GS_ROUTE_BODY = 4,      /* JSON object as body, handed to the handler */
    GS_ROUTE_CLASS = 8,     /* takes X-Gamasot-Class */
    GS_ROUTE_ANY_TYPE = 16, /* from what is no browser, the body may come as any type */
    GS_ROUTE_ADMIN = 32,    /* an admin's key, or this machine while there are no keys */
    GS_ROUTE_PART = 64,     /* of a page; no API, so not in the OpenAPI document */
    GS_ROUTE_USES = 128,    /* waits until the model that the body names is in memory */
    /* What every endpoint is that has a model answer. */
    GS_ROUTE_GENERATES = GS_ROUTE_MODEL | GS_ROUTE_BODY | GS_ROUTE_CLASS | GS_ROUTE_USES
};

typedef struct gs_route {
    const char *method; /* GET also answers HEAD, unless HEAD has a row of its own before it */
    /* "{name}" stands for one segment that is not empty; gs_route_param reads it. */
    const char *path;
    unsigned flags;
    /* Answers, or keeps rq and answers later. Takes body (NULL without GS_ROUTE_BODY). */
    void (*handle)(struct gs_api *a, gs_http_request *rq, json_t *body);
    const char *summary;
    const gs_field *fields; /* of the body; NULL: none are described */
    unsigned where;         /* which of them; see gs_field */
    const gs_field *query;  /* parameters of the query, described only; NULL: none */
    const char *answer;     /* of a 200: the name of a schema, or a media type such as text/plain */
    const char *stream;     /* media type of a 200 that is streamed, or NULL */
} gs_route;

/* #/components/schemas/NAME. json is JSON Schema with ' instead of double quotes. */
typedef struct gs_schema {
    const char *name, *json;
} gs_schema;

typedef struct gs_api_part {
    const char *name, *about; /* the document's tag */
    const gs_route *routes;
    const gs_schema *schemas; /* NULL: none */
} gs_api_part;

extern const gs_schema gs_schemas_own[], gs_schemas_openai[]; /* schemas.c */
extern const gs_api_part gs_api_part_ollama, gs_api_part_anthropic, gs_api_part_responses;

extern const gs_api_part gs_scheduling_part; /* scheduling.c */
extern const gs_api_part gs_tuning_part;     /* tuning.c */
extern const gs_api_part gs_live_part;       /* live.c */
extern const gs_api_part gs_history_part;    /* history.c */
extern const gs_api_part gs_workers_part;    /* workers.c */
extern const gs_api_part gs_pages_part;      /* pages.c */

/* The value of the last "{name}" of a path that matched pattern, into out. */
void gs_route_param(const char *pattern, const char *path, char *out, size_t n);
/* Whether the path is the pattern's. */
bool gs_route_matches(const char *pattern, const char *path);

/* routes.c: all parts. */
const gs_api_part *const *gs_api_parts(size_t *n);

/* openapi.c: the whole document, JSON. */
void gs_openapi_write(const gs_api_part *const *parts, size_t n_parts, gs_buf *out);

#endif
