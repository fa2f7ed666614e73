/*
 * The API: HTTP requests in OpenAI's dialect -> sequences for the engine -> answers and streams.
 *
 * Owner: the event-loop thread. Long texts are rendered and tokenised on libuv's worker threads,
 * everything else happens in loop callbacks. A request's life is in api/request.h.
 */
#ifndef GS_API_API_H
#define GS_API_API_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "api/facts.h"
#include "api/outparse.h"
#include "config/config.h"
#include "engine/engine.h"
#include "http/http.h"
#include "load/record.h"
#include "pull/helper.h"
#include "pull/pull.h"
#include "tokenizer/chat.h"
#include "tokenizer/grammar.h"
#include "tokenizer/tokenizer.h"

typedef struct gs_api gs_api;

/* What the loader makes beside the backend; immutable once the engine is READY. */
typedef struct gs_served_model {
    char name[128];              /* as /v1/models lists it */
    char path[GS_PULL_MAX_PATH]; /* of its file; "": it has none */
    gs_tokenizer *tokenizer;
    gs_chat_template *chat;
    gs_grammars *grammars;       /* NULL: output can't be constrained */
    const gs_out_format *format; /* how it writes calls and reasoning; static */
    gs_model_facts facts;
    int64_t created_s;
    double load_ms;
    int32_t lane;   /* of the engine */
    uint64_t bytes; /* weights, KV and buffers */
} gs_served_model;

#define GS_KEEP_FOREVER INT64_MAX

/* A model that requests can ask for. */
typedef struct gs_model_spec {
    const char *name;     /* shorter than GS_MODEL_NAME_BYTES */
    const char *path;     /* of its file, the first one of several; "": it has none */
    int64_t modified_s;   /* the file; wall clock */
    bool first;           /* the one that the engine is created with */
    bool pinned;          /* once loaded it stays; at start it is loaded */
    int64_t keep_ns;      /* it stays so long after its last use; GS_KEEP_FOREVER */
    uint64_t bytes;       /* that it will need, about */
    int32_t context;      /* about, until it is loaded; 0: not known */
    gs_model_facts facts; /* what its file says */
    void *impl;           /* the loader's */
} gs_model_spec;

/* A model in memory, as the loader hands it over. */
typedef struct gs_loaded_model {
    gs_served_model *served; /* the loader's until it is released */
    gs_backend *backend;     /* the engine's from then on */
    const gs_cost *cost;     /* NULL: learned */
    gs_prepare_fn prepare;   /* for GS_QUERY_ATTACH */
    void *prepare_arg;
    const gs_public_prefixes *prefixes; /* NULL: none */
    uint64_t bytes;                     /* as in served */
    void *impl;                         /* the loader's; NULL: nothing there */
} gs_loaded_model;

/* How models are brought into memory. Called on a thread of its own, one call at a time; release
 * at the end also on the event-loop thread. */
typedef struct gs_model_loading {
    void *arg;
    void *first; /* impl of the engine's own, for release once its lane is gone */
    /* room: bytes that it may take. percent: how far it is; once negative, it gives up. */
    int (*load)(void *arg, const gs_model_spec *spec, uint64_t room, atomic_int *percent,
                gs_loaded_model *out, char *err, size_t errlen);
    /* All of it, and the backend unless that is NULL; zeroes *m. */
    void (*release)(void *arg, gs_loaded_model *m);
    /*
     * The models that there are now, the first one among them if it has a file: *out, [*n], for
     * gs_free. What has not changed since it was read is the same object as in known, the rest is
     * new. Any thread, one call at a time. A spec is the API's until it is dropped, and not while
     * its model is in memory.
     */
    int (*scan)(void *arg, gs_model_spec *const *known, int n_known, gs_model_spec ***out, int *n);
    void (*drop)(void *arg, gs_model_spec *s);
} gs_model_loading;

/* Another name under which the model is listed and asked for. */
typedef struct gs_model_alias {
    const char *name;
    const char *model; /* its target; "": the model there is */
    int32_t cls;       /* gs_class of requests that use it; -1: as without */
} gs_model_alias;

#define GS_API_MAX_PERSONS 64 /* gs_engine_config.max_persons */

typedef struct gs_api_config {
    const gs_served_model *model;    /* borrowed; read only after the engine is READY */
    const gs_model_loading *loading; /* of further ones; NULL: there are none */
    const gs_pull_config *pull;      /* for models from elsewhere, but for what a request says;
                                      * borrowed. NULL: pull_reason says why there are none */
    const char *pull_reason;
    /* Who fetches them; NULL: models only come by other ways; second names and ends are as ever. */
    const gs_pull_helper *pull_helper;
    int rescan_ms;               /* how often files of models are looked at; 0: once */
    uint64_t memory_bytes;       /* for all models together; 0: no bound */
    const char *const *api_keys; /* may do all but change the server; needed at creation only */
    int n_api_keys;
    const char *keys_file; /* of `gamasot keys`, read again when it changes; NULL: none */
    const gs_model_alias *aliases;
    int n_aliases;
    const char *const *allowed_hosts; /* beyond loopback names and literal addresses */
    int n_allowed_hosts;
    const char *const *allowed_origins;
    int n_allowed_origins;
    int metrics_persons;   /* with labels of their own; 0: no label `person` */
    int max_live_requests; /* beyond: 503 before anything is parsed */
    gs_config *config;     /* for /v1/config: read and changed by this thread; NULL: no such path */
    const char *state_folder; /* of the store; NULL: none, and state_reason says why */
    const char *state_reason;
    gs_recorder *recorder; /* is told of each sequence that ends; NULL: none */
    /* watch.h; 0 in stall_ns: nobody watches. */
    int64_t stall_ns, restart_ns;
    void (*give_up)(void *arg); /* the engine will never answer again */
    void *give_up_arg;
} gs_api_config;

/* http_config's handlers and user are filled in by the call; the server is listening afterwards. */
int gs_api_create(uv_loop_t *loop, const gs_api_config *cfg, gs_http_config *http_config,
                  gs_api **out, char *err, size_t errlen);
/* Before the loop runs. Borrowed; the engine's wake must call gs_api_wake. Separate from create,
 * so that a taken port is found out before a model is loaded. */
void gs_api_set_engine(gs_api *a, gs_engine *e);
/* What the hours of background make of the engine's first settings. */
void gs_api_apply_hours(const gs_api *a, gs_engine_settings *s);
/* For gs_engine_config.wake: any thread. arg is the gs_api **, which may still be NULL. */
void gs_api_wake(void *arg);
/* Whether requests need a key (or an address bound to one). */
bool gs_api_has_keys(const gs_api *a);
/* Finds the model or alias that a request asks for, with or without ":latest"; "" is the model.
 * alias: NULL for the model itself. The name as it is served, or NULL: unknown. After READY. */
const char *gs_api_find_name(const gs_api *a, const char *want, const gs_model_alias **alias);
/* The first model's step-time model as last heard of, at most half a minute old; NULL: not yet. */
const gs_cost *gs_api_learned_cost(const gs_api *a);
int gs_api_port(const gs_api *a);
/* SIGHUP: reads the workers of cfg.config's file again. A bad file changes nothing; the log says
 * why. */
void gs_api_reload(gs_api *a);
/* Adds to cfg the workers that were added by command and are kept in the folder state; those that
 * can't be used are named in the log. Before gs_api_create. */
void gs_added_read(const char *state, gs_config *cfg);
int gs_api_n_live(const gs_api *a); /* requests not yet answered */
/*
 * SIGTERM: refuses new requests, lets those under way end until deadline_ms, then ends them with
 * an error event; when all sequences are back and all sockets closed, done(arg) is called.
 */
void gs_api_drain(gs_api *a, int deadline_ms, void (*done)(void *arg), void *arg);
/* After done, and after the engine was freed (its thread wakes this object); before the loop is
 * closed, which it runs for a moment. */
void gs_api_free(gs_api *a);

#endif
