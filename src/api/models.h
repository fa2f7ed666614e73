/*
 * The models that this server knows: which are in memory, who uses them, which go first.
 *
 *     COLD ──a request names it──► QUEUED ──there is room──► LOADING ──attached──► READY
 *      ▲                             │ no room: 503            │ fails: 503          │ idle: its
 *      └─────────────────────────────┴─────────────────────────┴───── LEAVING ◄──────┘ time is up,
 *                                                                                      or others
 *                                                                                      need room
 *
 * The first model is the engine's own: it is loaded with the server and stays. Others are loaded
 * by a thread of low priority, one at a time, and become lanes of the engine. All share one budget
 * of memory; what is idle and not pinned makes room, least recently used first. A model that
 * somebody uses never goes. A request for a model that is not in memory is parked, with its client
 * told that it is alive, and goes its way once the model is there.
 *
 * Owner: the event-loop thread.
 */
#ifndef GS_API_MODELS_H
#define GS_API_MODELS_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/api.h"
#include "api/route.h"
#include "metrics/metrics.h"

#define GS_MODEL_STATE_MAP(X)                                                                      \
    X(COLD, "unloaded")                                                                            \
    X(QUEUED, "queued")                                                                            \
    X(LOADING, "loading")                                                                          \
    X(READY, "ready")                                                                              \
    X(LEAVING, "unloading")

typedef enum gs_model_state {
#define X(name, text) GS_MODEL_##name,
    GS_MODEL_STATE_MAP(X)
#undef X
} gs_model_state;

typedef struct gs_model_entry gs_model_entry;
struct gs_model_entry {
    const gs_model_spec *spec;
    gs_model_state state;
    const gs_served_model *served; /* READY */
    int32_t n_users;               /* requests that have it, or wait for it */
    int64_t keep_ns;               /* after its last use; GS_KEEP_FOREVER */
    int64_t used_ns;               /* when it was used last */
    uint64_t ticket;               /* QUEUED: its place */
    uint64_t bytes;                /* that it holds, or will */
    atomic_int percent;            /* LOADING: the loading thread's */
    gs_metrics *metrics;           /* of its requests; the server's for the first, NULL: none yet */
    gs_loaded_model loaded;
    gs_query query; /* to the engine */
};

/* A request that waits for its model; it is in the hands of nobody else. */
typedef struct gs_parked {
    struct gs_parked *next;
    gs_http_request *rq;
    json_t *body;
    const gs_route *route;
    gs_model_entry *model;
    int64_t began_ns, written_ns; /* last sign of life; 0: no headers yet */
} gs_parked;

typedef struct gs_models {
    gs_model_entry *v; /* [n]; the first is the engine's own */
    int n;
    bool begun; /* the first one is there, and what is to be loaded with it was asked for */
    uint64_t last_ticket;
    gs_parked *parked; /* oldest first */
    /* The thread that loads or releases one model. */
    gs_model_entry *job; /* NULL: none runs */
    bool job_loads;
    uint64_t job_room;
    int job_code;
    char job_err[256];
    pthread_t thread;
    atomic_bool job_done;
} gs_models;

int gs_models_create(gs_api *a);                   /* 0 or GS_ERR_NOMEM */
void gs_models_free(gs_api *a);                    /* after the engine */
const char *gs_model_state_name(gs_model_state s); /* "ready"; static */
/* Of the lane of that number, as it is served; "" where there is none. */
const char *gs_models_lane_name(const gs_api *a, int32_t lane);
/* The model behind the i-th served name (gs_api_served_name). */
const gs_model_entry *gs_models_served(const gs_api *a, int i);
const gs_model_facts *gs_models_facts(const gs_api *a, const gs_model_entry *m);
/* Where its requests are counted. */
gs_metrics *gs_models_metrics(const gs_api *a, const gs_model_entry *m);
int32_t gs_models_context(const gs_api *a, const gs_model_entry *m); /* tokens; 0: not known yet */

/* The model of that name or alias; "" is the first. alias: NULL without one. NULL: unknown. */
gs_model_entry *gs_models_find(const gs_api *a, const char *want, const gs_model_alias **alias);
/* The one that a body's `model` names, the first one without it; NULL: unknown. */
gs_model_entry *gs_models_of_body(const gs_api *a, const json_t *body);

/* A request begins and ends to use a READY model. */
void gs_models_use(gs_model_entry *m);
void gs_models_done(gs_api *a, gs_model_entry *m);
/* How long it stays after its uses from now on, as a request says; ns or GS_KEEP_FOREVER. */
void gs_models_keep(gs_model_entry *m, int64_t keep_ns);
/* When it will go, as a point in time; GS_NEVER_NS: it stays. */
int64_t gs_models_expires_ns(const gs_api *a, const gs_model_entry *m);

/* Keeps the request until m is READY, and has m loaded; then route->handle takes it. Takes rq and
 * body. */
void gs_models_park(gs_api *a, gs_model_entry *m, gs_http_request *rq, json_t *body,
                    const gs_route *route);
/* The client of a parked request is gone. False: rq is not parked. */
bool gs_models_gone(gs_api *a, gs_http_request *rq);
void gs_models_answered(gs_api *a, gs_query *q); /* ATTACH and DETACH */
void gs_models_pump(gs_api *a);                  /* the loading thread may be done */
void gs_models_tick(gs_api *a, int64_t now_ns);
/* Shutting down: what is parked is answered. */
void gs_models_drain(gs_api *a);

#endif
