/* Private to api/: the API object. Owner: the event-loop thread. */
#ifndef GS_API_API_IMPL_H
#define GS_API_API_IMPL_H

#include "api/added.h"
#include "api/api.h"
#include "api/bills.h"
#include "api/keys.h"
#include "api/models.h"
#include "api/pulls.h"
#include "api/reload.h"
#include "api/request.h"
#include "api/tuning.h"
#include "api/watch.h"
#include "metrics/energy.h"
#include "metrics/expose.h"
#include "metrics/metrics.h"
#include "store/store.h"

/* Bodies above this are rendered and tokenised on a worker thread: some milliseconds of work. */
#define GS_API_INLINE_BYTES 16384
/* Bodies above this are read, and their trees freed, on a worker thread. */
#define GS_API_PARSE_BYTES 65536

/* Who has asked since the start. Index 0: nobody in particular. */
typedef struct gs_persons {
    uint64_t key[GS_API_MAX_PERSONS];                       /* hash of who it is; 0 = free */
    char name[GS_API_MAX_PERSONS][GS_MAX_KEY_NAME + 1];     /* for people to read */
    char key_name[GS_API_MAX_PERSONS][GS_MAX_KEY_NAME + 1]; /* that they came with; "": none */
    uint32_t n;
    uint32_t n_users; /* of them, named by `user` without keys */
} gs_persons;

typedef struct gs_key_ring {
    gs_keys all;     /* of the options, then of the file */
    int32_t n_fixed; /* of the options */
    bool needed;     /* there is or was a key: without one nobody gets in any more */
    bool read;       /* the file, as mtime, inode and size say */
    int64_t mtime_ns, ino, size;
} gs_key_ring;

/* Whose a file or a batch is. The same person is the same owner after a restart, too. */
typedef struct gs_owner {
    char name[256];                     /* "key PERSON", "key PERSON\nbelow", an address, or "" */
    char key_name[GS_MAX_KEY_NAME + 1]; /* the key it came with; "": without */
} gs_owner;

/* Whom a request is for, and what that gives. */
typedef struct gs_identity {
    uint32_t person;
    uint64_t cache_scope;
    int32_t cls;      /* the key's class; -1: none */
    uint32_t classes; /* 1 << gs_class: may be asked for */
    bool has_limits;  /* from a key */
    gs_person_config limits;
} gs_identity;

/* A tokeniser's work for one HTTP request: fills out, or e. Any thread. */
typedef void (*gs_api_job_fn)(const gs_served_model *m, const json_t *body, gs_buf *out,
                              gs_api_error *e);
typedef struct gs_api_job gs_api_job; /* routes.c */
/* A request whose body has been read to its route, at once or when the model that it asks for is in
 * memory. Takes rq and body. */
void gs_api_hand_over(gs_api *a, const gs_route *route, gs_http_request *rq, json_t *body);
typedef struct gs_api_query gs_api_query; /* scheduling.c */
/* The route for a request that the server makes itself; NULL: there is none. */
const struct gs_route *gs_api_find_route(const char *method, const char *path);

/* hours.c: when background and each class may run. All do nothing, and say "always", without
 * a->hours. */
int gs_hours_create(gs_api *a, char *err, size_t errlen);
void gs_hours_free(gs_api *a);
/* What the hours make of the options' settings. */
void gs_hours_apply(const gs_api *a, gs_engine_settings *s);
/* Looks at the wall's clock and tells the engine what has changed. */
void gs_hours_tick(gs_api *a);
bool gs_hours_answered(gs_api *a, gs_query *q);   /* false: not one of its questions */
void gs_hours_set_paused(gs_api *a, bool paused); /* by somebody */
/* The same from before a restart, unless somebody has said otherwise since. */
void gs_hours_was_paused(gs_api *a, bool paused);
/* Why background of the owner does not run at all now, or NULL. Static. */
const char *gs_hours_why_not(const gs_api *a, const gs_owner *o);
/* The hours of the owner's background: the person's own, else the household's; "": always. Valid
 * until the loop turns. */
const char *gs_hours_schedule(const gs_api *a, const gs_owner *o);
/* Seconds of device time that it can have in the next window_s seconds of the wall. */
double gs_hours_device_s(const gs_api *a, const gs_owner *o, int64_t window_s);
bool gs_hours_key_open(const gs_key *k);              /* whether its schedule is */
gs_class gs_hours_class(const gs_api *a, gs_class c); /* c, or outside its hours background */
void gs_hours_write(const gs_api *a, gs_buf *out);    /* JSON, of GET /v1/background */

/* scheduling.c */
/* Settings for the engine that nobody waits for an answer to. */
void gs_api_configure(gs_api *a, const gs_engine_settings *set);
/* The value of a parameter of the query, as far as it is plain text; "" without. */
void gs_api_query_param(const gs_http_request *rq, const char *name, char *out, size_t n);
typedef struct gs_live gs_live;       /* live.c */
typedef struct gs_history gs_history; /* history.c */
typedef struct gs_kept gs_kept;       /* kept.h */
typedef struct gs_hours gs_hours;     /* hours.c */

/* Stories of sequences that have ended, newest last, for /v1/requests/{id}. */
#define GS_API_PAST 512
typedef struct gs_past {
    char id[48]; /* the request's; "": free */
    int32_t index;
    const char *model; /* static, as all names of models are */
    uint32_t person;
    uint64_t scope;
    gs_explain x;
} gs_past;

struct gs_api {
    gs_api_config cfg;
    gs_engine *engine;
    uv_loop_t *loop;
    gs_http_server *http;
    uv_async_t wake;
    uv_timer_t tick;
    gs_store *store; /* NULL: nothing can be kept */
    gs_kept *kept;   /* files and batches; NULL without a store */
    gs_hours *hours; /* of background; NULL without options */
    gs_persons persons;
    gs_key_ring keys;
    gs_models models;
    gs_workers *workers;
    bool workers_told; /* this machine is one of them */
    gs_bills *bills;
    gs_added *added;
    gs_reload *reloads; /* list of those under way */
    gs_pulls *pulls;
    gs_req *live;          /* list */
    gs_api_job *jobs;      /* list of those on worker threads */
    gs_api_query *queries; /* list of those that wait for the engine's answer */
    int n_live;            /* of all three */
    int n_embedding;       /* of live: requests for vectors whose texts the engine gets */
    int n_texts;           /* of those requests, with the engine */
    gs_metrics *metrics;   /* of the model */
    gs_energy energy;
    gs_tuning *tuning; /* tuning.c */
    gs_watch watch;
    bool memory_low;     /* as of the last tick: nothing new is begun */
    gs_live *viewers;    /* live.c: who looks on */
    gs_history *history; /* history.c */
    int64_t started_ms;  /* wall clock */
    gs_past *past;       /* [GS_API_PAST] ring */
    uint64_t n_past;     /* ever */
    uint64_t scope_salt; /* per start: cache scopes can't be guessed from names */
    bool draining, http_closed;
    int64_t drain_until_ns, flush_until_ns;
    void (*done)(void *arg);
    void *done_arg;
};

/* access.c: hosts, pages and keys */
/* 0, or *e: 401 unknown key, 403 foreign Host or Origin. */
int gs_api_check_access(gs_api *a, const gs_http_request *rq, gs_api_error *e);
/* 0, or 403: only an admin's key, or this machine while there are no keys, may. */
int gs_api_check_admin(gs_api *a, const gs_http_request *rq, gs_api_error *e);
/* The key that is sent, or that the address is bound to; NULL: none. Valid until the loop turns. */
const gs_key *gs_api_key(const gs_api *a, const gs_http_request *rq);
int gs_api_keys_open(gs_api *a, char *err, size_t errlen);
/* Looks whether the file has changed. What can't be read leaves the keys as they were. */
void gs_api_keys_refresh(gs_api *a);
bool gs_api_origin_ok(const gs_api *a, const gs_http_request *rq);

/* identity.c: persons and classes */
bool gs_peer_is_loopback(const char *peer);
/* user: as the body says, "" for none. */
void gs_api_identify(gs_api *a, const gs_http_request *rq, const char *user, gs_identity *out);
/* The limits of a key's person, its hours included. */
void gs_api_limits_of(const gs_api *a, const gs_key *k, gs_person_config *out);
const gs_key *gs_api_key_named(const gs_api *a, const char *name); /* NULL: none */
void gs_api_owner(gs_api *a, const gs_http_request *rq, gs_owner *out);
/* What a request of the owner's gives today. False: it would be refused (the key is gone). */
bool gs_api_identify_owner(gs_api *a, const gs_owner *o, gs_identity *out);
/* "webui/mina"; "" for nobody in particular and unknown indices. */
const char *gs_api_person_name(const gs_api *a, uint32_t person);
/* Sets person, cache_scope, cls and class_fixed of a request whose fields have been read. */
void gs_req_classify(gs_req *r);

/* models.c: the names under which models are asked for */
/* The i-th one, models first, then their aliases, each in order; NULL: no more. After READY. */
const char *gs_api_served_name(const gs_api *a, int i);

/* routes.c */
/* A generating request: refuses it when too many are being answered. Takes rq, body and note, as
 * gs_req_start does. */
void gs_api_start(gs_api *a, gs_http_request *rq, json_t *body, json_t *note, const gs_dialect *d,
                  bool chat);
/* Replies with what was written and frees it; half an answer is none. */
void gs_api_reply(gs_http_request *rq, int status, const char *type, gs_buf *out);
void gs_api_reply_json(gs_http_request *rq, int status, gs_buf *out);
/* What the model's chat template shows that it can take. */
bool gs_template_takes_tools(const char *source);
bool gs_template_thinks(const char *source);
/* Frees v, of a body of that size; a large one on a worker thread. */
void gs_api_discard(gs_api *a, json_t *v, size_t body_bytes);
void gs_api_on_request(void *user, gs_http_request *rq);
/* fn on a worker thread, whatever the body's size: it may wait for a disk. Takes body, which is
 * made by the caller; rq is answered with what fn wrote, or its error. */
void gs_api_run_slow(gs_api *a, gs_http_request *rq, json_t *body, gs_api_job_fn fn);
/* The client of a job is gone. False: rq is not a job's. */
bool gs_api_job_gone(gs_api *a, gs_http_request *rq);

/* metrics_page.c */
void gs_api_get_metrics(gs_api *a, gs_http_request *rq, json_t *body);
/* Every model's numbers as of now, into stats and out. Returns how many models. The one place
 * where statistics are taken for /metrics. */
int gs_api_take_metrics(const gs_api *a, gs_engine_stats stats[GS_ENGINE_LANES],
                        gs_metrics_source out[GS_ENGINE_LANES]);

/* live.c: GET /v1/live */
int gs_live_create(gs_api *a);  /* GS_ERR_NOMEM */
void gs_live_begin(gs_live *v); /* its timer; to be closed before it is freed */
void gs_live_drain(gs_live *v); /* lets the viewers go, takes no more */
void gs_live_close(gs_live *v);
void gs_live_free(gs_live *v);
/* The engine has answered with the state. */
void gs_live_answered(gs_live *v, gs_query *q);
/* A viewer is gone. False: rq is none. */
bool gs_live_gone(gs_live *v, gs_http_request *rq);

/* scheduling.c */
/* The request that a living sequence belongs to, and the choice; NULL: none any more. */
const gs_req *gs_api_find_seq(const gs_api *a, gs_seq_id id, int32_t *index);
/* The engine has answered a question. */
void gs_api_answered(gs_api *a, gs_query *q);
/* The client of a question is gone. False: rq is not a question's. */
bool gs_api_query_gone(gs_api *a, gs_http_request *rq);
/* Keeps the story of a sequence that has ended. */
void gs_api_remember(gs_api *a, const gs_req *r, int32_t index, const gs_explain *x);

/* api.c */
/* The client of rq is gone: whoever has it lets go of it. */
void gs_api_gone(gs_api *a, gs_http_request *rq);
/* The store if it can take jobs (perhaps only once it is open); else NULL and *e: 503 with why. */
gs_store *gs_api_store(gs_api *a, gs_api_error *e);
void gs_api_link(gs_api *a, gs_req *r);
void gs_api_unlink(gs_api *a, gs_req *r);
bool gs_api_ready(const gs_api *a, gs_api_error *e);
/* Whether there is memory to begin something new; else 503 in *e. */
bool gs_api_has_memory(const gs_api *a, gs_api_error *e);

#endif
