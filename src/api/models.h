/*
 * The models that this server knows: which are in memory, who uses them, which go first.
 *
 *     COLD ──a request names it──► QUEUED ──there is room──► LOADING ──attached──► READY
 *      ▲                             │ no room: 503            │ fails: 503          │ idle: its
 *      └─────────────────────────────┴─────────────────────────┴───── LEAVING ◄──────┘ time is up,
 *                                                                                      or others
 *                                                                                      need room
 *
 * The first model is the engine's own: it is loaded with the server and stays, until its file is
 * another one or has gone. Then, as all others, it is loaded by a thread of low priority, one at a
 * time, and become lanes of the engine. All share one budget of memory; what is idle and not pinned
 * makes room, least recently used first. A model that somebody uses never goes. A request for a
 * model that is not in memory is parked, with its client told that it is alive, and goes its way
 * once the model is there.
 *
 * Which models there are is looked at again now and then (model_files.c): what is new is listed,
 * what has gone is not, and a model whose file is another one now is loaded anew once nobody uses
 * it. What is in memory needs its file no more.
 *
 * Owner: the event-loop thread.
 */
#ifndef GS_API_MODELS_H
#define GS_API_MODELS_H

#include <pthread.h>
#include <stdatomic.h>
#include <uv.h>

#include "api/api.h"
#include "api/request.h"
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
    char name[GS_MODEL_NAME_BYTES]; /* of further ones: for good, as the entry itself */
    gs_model_spec *spec;            /* NULL: the first, which has no file */
    gs_model_spec *next; /* what the spec will be once it is not in memory; NULL: as it is */
    bool gone;           /* there is no such model any more: it has no name */
    gs_model_state state;
    const gs_served_model *served; /* READY */
    int32_t n_users;               /* requests that have it, or wait for it */
    int64_t keep_ns;               /* after its last use; GS_KEEP_FOREVER */
    int64_t used_ns;               /* when it was used last */
    uint64_t ticket;               /* QUEUED: its place */
    uint64_t bytes;                /* that it holds, or will */
    int64_t load_ns;               /* that it took to load; 0: never loaded */
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
    const gs_route *route; /* that takes it then; NULL: gs_req_resume */
    gs_req_again again;
    const char *stream; /* media type of an answer that is streamed; NULL: it is not */
    gs_model_entry *model;
    int64_t began_ns, written_ns; /* last sign of life; 0: no headers yet */
} gs_parked;

/* Something to be done to the files of models, and then a look at them, on a worker thread. */
typedef struct gs_files_job {
    struct gs_files_job *next;
    gs_api *api;
    uv_work_t work;
    /* Worker thread; NULL: only the look. */
    int (*run)(struct gs_files_job *j);
    void (*done)(struct gs_files_job *j); /* event loop; NULL: nobody waits */
    gs_http_request *rq;                  /* done's; NULL: its client has gone */
    void *arg;
    char path[GS_PULL_MAX_PATH], name[GS_MODEL_NAME_BYTES]; /* run's */
    int code;
    char err[512];
    /* The look's. */
    gs_model_spec **known, **found;
    int n_known, n_found, scanned;
} gs_files_job;

#define GS_MODELS_MAX 512 /* entries, those that have gone included */

typedef struct gs_models {
    gs_model_entry
        *v; /* [n] of GS_MODELS_MAX, which stay where they are; the first is the engine's */
    int n;
    int *order; /* [n_order] of v: as they are listed */
    int n_order;
    gs_files_job *files; /* the first one is under way */
    int64_t scanned_ns;  /* the last look */
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

/* The alias of that name, whoever has its model. NULL: there is none. */
const gs_model_alias *gs_models_alias(const gs_api *a, const char *want);
/* The model of that name or alias; "" is the first. alias: NULL without one. NULL: unknown here. */
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

/* The name under which it is served. */
const char *gs_models_name(const gs_api *a, const gs_model_entry *m);
/* About how long it would take to be READY, were it asked for now. */
int64_t gs_models_load_ns(const gs_model_entry *m);
/* Keeps the request until m is READY, and has m loaded; then route->handle takes it. Takes rq and
 * body. */
void gs_models_park(gs_api *a, gs_model_entry *m, gs_http_request *rq, json_t *body,
                    const gs_route *route);
/* The same for a request that had begun already: gs_req_resume takes it then. Takes again's note,
 * too. */
void gs_models_park_again(gs_api *a, gs_model_entry *m, gs_http_request *rq, json_t *body,
                          const gs_req_again *again);
/* The client of a parked request is gone. False: rq is not parked. */
bool gs_models_gone(gs_api *a, gs_http_request *rq);
void gs_models_answered(gs_api *a, gs_query *q); /* ATTACH and DETACH */
void gs_models_pump(gs_api *a);                  /* the loading thread may be done */
void gs_models_tick(gs_api *a, int64_t now_ns);
/* Of a model that is not in memory: its spec may be another one from now on. */
void gs_models_renew(gs_api *a, gs_model_entry *m);

/* model_files.c */
int gs_models_scan_first(gs_api *a);               /* 0 or a code */
void gs_models_submit(gs_api *a, gs_files_job *j); /* takes j; freed after done */
void gs_models_scan_tick(gs_api *a, int64_t now_ns);
bool gs_models_files_gone(gs_api *a, gs_http_request *rq);
void gs_models_post_delete(gs_api *a, gs_http_request *rq, json_t *body);
void gs_models_post_copy(gs_api *a, gs_http_request *rq, json_t *body);

/* Shutting down: what is parked is answered. */
void gs_models_drain(gs_api *a);

#endif
