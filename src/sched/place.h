/*
 * Placement: which worker gets which request, and when. A worker is a device with a queue of its
 * own: this machine's engine (LOCAL), or another server that answers over the network (REMOTE).
 *
 * Waiting requests are kept here. A worker gets one when it can begin with it now, by its budgets
 * and its fitted cost, so what waits can still go elsewhere (rules: docs/workers.md).
 *
 * Pure, as the scheduler: time is an argument, no I/O, no allocation after create, the same seed
 * and events give the same decisions. The server and the simulator run this same object:
 *
 *     something happens -> gs_place_submit / tokens / end / cancel / alive / probed / ...
 *     while gs_place_next(p, now, &act): do it
 *     come back at gs_place_wake_ns(p) at the latest
 *
 * A request's life. An attempt is one go at one worker; what is said about an older attempt than
 * the newest is refused, so no answer can come twice.
 *
 *     submit ─► WAITING ──DISPATCH──► PLACED ──first token──► ANSWERING ──► over, exactly once
 *                  ▲                    │ a fault, ABORT          │
 *                  └── each worker once ┴── only to continue ─────┘
 *
 * Owner: one thread (the event loop's, or the simulator's).
 */
#ifndef GS_SCHED_PLACE_H
#define GS_SCHED_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sched/breaker.h"
#include "sched/class.h"
#include "sched/sched.h"
#include "sched/schedule.h"
#include "sched/worker_cost.h"

#define GS_PLACE_WORKERS 17 /* the local one, and 16 remotes: the bits of a mask */
#define GS_PLACE_MODELS  64 /* of one worker */
#define GS_PLACE_NAME    48

typedef struct gs_place gs_place;

typedef enum gs_worker_kind { GS_WORKER_LOCAL, GS_WORKER_REMOTE } gs_worker_kind;

/*  name, text: where a request of a class goes that some worker prefers, when that has no room */
#define GS_FALLBACK_MAP(X)                                                                         \
    X(MOVE, "move")   /* to whoever has room and takes its class */                                \
    X(LOCAL, "local") /* waits while one that prefers it is there; else to the local worker */     \
    X(WAIT, "wait")   /* waits for one that prefers it, for hours if need be */

typedef enum gs_fallback {
#define X(name, text) GS_FALLBACK_##name,
    GS_FALLBACK_MAP(X)
#undef X
        GS_FALLBACK_COUNT
} gs_fallback;

/*  name, text, sentence: the first that holds is shown */
#define GS_WORKER_STATE_MAP(X)                                                                     \
    X(GONE, "gone", "there is no such worker")                                                     \
    X(DRAINING, "draining", "gets no new work and finishes what it has")                           \
    X(AWAY, "away", "outside its hours")                                                           \
    X(OPEN, "open", "has failed, and is left alone for a while")                                   \
    X(PROBING, "probing", "is asked whether it is there")                                          \
    X(SLOW, "slow", "takes much longer than it used to")                                           \
    X(UP, "up", "answers")

typedef enum gs_worker_state {
#define X(name, text, sentence) GS_WORKER_##name,
    GS_WORKER_STATE_MAP(X)
#undef X
        GS_WORKER_STATE_COUNT
} gs_worker_state;

/*  name, text, sentence */
#define GS_PLACE_WHY_MAP(X)                                                                        \
    X(ONLY, "only", "no other worker may take it")                                                 \
    X(PREFERRED, "preferred", "this worker is preferred for its class")                            \
    X(TARGET, "target", "no other worker keeps the targets of its class")                          \
    X(CACHED, "cached", "this worker knows the beginning of its prompt")                           \
    X(FASTEST, "fastest", "it is done there first, by predictions")                                \
    X(FALLBACK, "fallback", "the worker that is preferred for its class is not there")             \
    X(RETRY, "retry", "another worker failed before the first token")                              \
    X(CONTINUE, "continue", "another worker failed, and this one has the same model file")

typedef enum gs_place_why {
#define X(name, text, sentence) GS_PLACE_WHY_##name,
    GS_PLACE_WHY_MAP(X)
#undef X
        GS_PLACE_WHY_COUNT
} gs_place_why;

typedef struct gs_place_model {
    uint32_t model;  /* the caller's number for what clients ask for */
    uint64_t file;   /* equal and not 0: the same model file, so an answer can be continued */
    int32_t context; /* tokens of prompt and answer; 0: not known */
    int64_t load_ns; /* it is not in memory, and takes so long to be; 0: it is */
} gs_place_model;

/* A worker's description. Times in ns; gs_place_worker_defaults fills all but name and models. */
typedef struct gs_place_worker {
    char name[GS_PLACE_NAME];
    gs_worker_kind kind;
    gs_place_model models[GS_PLACE_MODELS];
    int32_t n_models;
    uint32_t takes, prefers; /* 1 << gs_class each; what it prefers it takes */
    gs_fallback fallback;    /* of what it prefers; of several workers the first one's counts */
    int32_t max_seqs;        /* there at once, >= 1; of each kind (below) where it prioritises */
    int64_t max_tokens;      /* prompts and answers of those together; 0: no limit */
    double price;            /* device time that a second of it costs a person's account */
    /* It serves the more urgent first: what is less urgent does not count for predictions and
     * room of interactive requests. The local worker, or one whose dialect has a priority. */
    bool prioritises;
    gs_schedule hours;                       /* when it may be used */
    gs_schedule class_hours[GS_CLASS_COUNT]; /* and for that class; both must be open */
    int64_t drain_ns;         /* before its hours end it gets no more; nor what would not be done */
    bool can_power_on;        /* there is a hook */
    int64_t power_ahead_ns;   /* before its hours begin it is switched on if work waits for it */
    int64_t probe_every_ns;   /* while it has nothing to do; 0: only when it is to get work */
    int64_t probe_timeout_ns; /* without a sign of life for so long it is held for dead */
    int64_t stall_ns;         /* an attempt without any token for so long is given up, though the
                                 worker answers probes */
} gs_place_worker;

typedef struct gs_place_config {
    int32_t max_requests;           /* waiting and placed; beyond: GS_ERR_OVERLOADED */
    uint32_t max_persons;           /* 0 counts as 1 */
    uint32_t local_only;            /* 1 << gs_class each: never leave this machine (voice) */
    const gs_class_config *classes; /* [GS_CLASS_COUNT], copied; NULL: the defaults */
    gs_breaker_config breaker;      /* all 0: the defaults */
    gs_local_fn local;              /* what a clock on the wall shows; NULL: always open */
    uint64_t seed;
} gs_place_config;

typedef struct gs_place_desc {
    uint64_t id; /* chosen by the caller, unique among living requests, never 0 */
    gs_class cls;
    uint32_t person;
    uint32_t model;
    uint32_t barred;  /* workers that can't serve it: 1 << index each */
    int32_t n_prompt; /* tokens, of all its texts; an estimate will do */
    int32_t max_output;
    int32_t n_seqs;        /* sequences that it is there; 0 counts as 1 */
    bool prefill_only;     /* its end is its first token (embeddings) */
    bool can_continue;     /* the caller can hand the text so far in as a prompt */
    int64_t arrival_ns;    /* targets count from here */
    int64_t deadline_ns;   /* a point in time; 0: none */
    uint64_t conversation; /* follow-ups have the same; 0: none */
    /* gs_place_blocks of its prompt; copied. block_tokens: what one stands for. */
    const uint64_t *blocks;
    int32_t n_blocks, block_tokens;
} gs_place_desc;

typedef enum gs_place_act_kind {
    GS_PLACE_DISPATCH, /* hand request id to worker as this attempt */
    GS_PLACE_ABORT,    /* close this attempt at worker: it is held for dead, or stalls. The request
                          goes on (another DISPATCH follows), or with over is to be answered with an
                          error: it is no more */
    GS_PLACE_REFUSE,   /* no worker is left that may take waiting request id, or none will be there
                          within its class's patience: it is no more */
    GS_PLACE_PROBE,    /* ask worker for a sign of life, then gs_place_probed */
    GS_PLACE_POWER_ON, /* run worker's hook */
    GS_PLACE_GONE      /* the removed worker has nothing left; its index may be given again */
} gs_place_act_kind;

typedef struct gs_place_act {
    gs_place_act_kind kind;
    uint64_t id;
    int32_t attempt; /* of the request, from 1 */
    int32_t worker;
    /* DISPATCH */
    gs_place_why why;
    int32_t n_cached; /* prompt tokens that the worker should know */
    int32_t n_output; /* of a CONTINUE: tokens so far, to be handed in behind the prompt */
    int64_t predicted_ttft_ns, predicted_ns; /* from now to first token and end; -1: no estimate */
    /* ABORT */
    bool over;
    int err;            /* GS_ERR_TIMEOUT or GS_ERR_UNAVAILABLE, also of REFUSE */
    int64_t charged_ns; /* by this attempt, as gs_place_over */
    /* REFUSE */
    int64_t retry_ns; /* from now, before which no worker will be there; -1: not known */
} gs_place_act;

typedef enum gs_place_how {
    GS_PLACE_DONE,       /* the answer is whole */
    GS_PLACE_FAULT,      /* the worker is to blame: no connection, reset, time-out, nonsense, 5xx */
    GS_PLACE_BUSY,       /* it has too much to do (429, 503): waits again, not as a fault */
    GS_PLACE_BAD_REQUEST /* the request is to blame, and would be anywhere */
} gs_place_how;

/* What the end of an attempt means. */
typedef struct gs_place_over {
    bool again; /* the request lives and waits; else it is no more, and how is its end */
    uint32_t person;
    int64_t charged_ns; /* device time for the person's account (gs_sched_charge); 0: local */
} gs_place_over;

typedef struct gs_place_view {
    gs_worker_state state;
    int32_t n_placed, n_answering; /* requests there; of them, with a first token */
    int64_t n_tokens;              /* of their prompts and most of their answers */
    int32_t limit;                 /* sequences it can run at once, as far as is known */
    bool open;                     /* within its hours */
    int64_t change_ns;             /* when that changes; GS_NEVER_NS */
    int64_t open_until_ns;         /* of its breaker; 0: closed */
    int64_t seen_ns;               /* latest sign of life; 0: never */
    gs_worker_cost cost[2];        /* interactive; background where it prioritises */
    uint64_t n_dispatched, n_done, n_faults, n_moved, n_busy, n_probes;
    uint64_t n_by_class[GS_CLASS_COUNT];
    int64_t busy_ns, charged_ns;
} gs_place_view;

/* Where a living request is. */
typedef struct gs_place_record {
    int32_t worker; /* -1: waits */
    int32_t attempt;
    gs_place_why why;
    int32_t n_ahead; /* requests that are before it in the queue */
    int32_t n_output;
    int64_t placed_ns, first_ns; /* of this attempt; 0: not yet */
    int64_t predicted_ttft_ns, predicted_ns;
} gs_place_record;

const char *gs_worker_state_name(gs_worker_state s);     /* "up"; static */
const char *gs_worker_state_sentence(gs_worker_state s); /* static */
const char *gs_place_why_name(gs_place_why w);           /* "fastest"; static */
const char *gs_place_why_sentence(gs_place_why w);       /* static */
const char *gs_fallback_name(gs_fallback f);             /* "move"; static */
int gs_fallback_parse(const char *s);                    /* a gs_fallback, or -1 */

/* Chained hashes of data's whole blocks of block_bytes each (kv/prefix.h): tokens, or text. Returns
 * how many, at most max. */
int32_t gs_place_blocks(uint64_t scope, const void *data, size_t n, size_t block_bytes,
                        uint64_t *out, int32_t max);

/* GS_ERR_INVALID, GS_ERR_NOMEM. */
int gs_place_create(const gs_place_config *cfg, gs_place **out);
void gs_place_free(gs_place *p);

/* ---- workers ----------------------------------------------------------------------------------*/

void gs_place_worker_defaults(gs_worker_kind kind, gs_place_worker *out);
/* Its index, which stays; remotes are probed before they get anything. GS_ERR_INVALID (field, may
 * be NULL, says what), GS_ERR_EXISTS (the name, or a second local one), GS_ERR_OVERLOADED (full).
 */
int gs_place_add(gs_place *p, const gs_place_worker *w, int64_t now_ns, const char **field);
/* Another description of it under the same name; what is there goes on. As add. */
int gs_place_change(gs_place *p, int32_t worker, const gs_place_worker *w, int64_t now_ns,
                    const char **field);
/* The same of one model's load_ns alone, which changes often. Nothing if it has no such model. */
void gs_place_set_load(gs_place *p, int32_t worker, uint32_t model, int64_t load_ns);
/* It gets no more, or again. */
void gs_place_drain(gs_place *p, int32_t worker, bool drain, int64_t now_ns);
/* Drains it for good; an act GONE follows once nothing is left. */
void gs_place_remove(gs_place *p, int32_t worker, int64_t now_ns);
/* An answer to a probe, or that none came within probe_timeout_ns. Once per PROBE. False: it says
 * nothing, because the worker is gone, or has failed since the probe went out. */
bool gs_place_probed(gs_place *p, int32_t worker, bool ok, int64_t now_ns);
/* Any other sign of life: a connection accepted and answered, bytes. */
void gs_place_alive(gs_place *p, int32_t worker, int64_t now_ns);
/* The wall's clock: before anything else where there are hours, then every half minute. */
void gs_place_set_wall(gs_place *p, int64_t wall_s, int64_t now_ns);

/* ---- requests ---------------------------------------------------------------------------------*/

/* GS_OK: it waits, and ends exactly once. GS_ERR_NOT_FOUND: no worker has the model, may take the
 * class and is not barred. GS_ERR_CONTEXT: no such worker has the context. GS_ERR_OVERLOADED,
 * GS_ERR_EXISTS, GS_ERR_INVALID. */
int gs_place_submit(gs_place *p, const gs_place_desc *d, int64_t now_ns);
/* n more tokens have come. False: this attempt is not (any more) the request's; drop them. */
bool gs_place_tokens(gs_place *p, uint64_t id, int32_t attempt, int32_t n, int64_t now_ns);
/* The attempt is over. False: as for tokens; out is zero. A request that goes on waits again,
 * without those workers at which it failed. */
bool gs_place_end(gs_place *p, uint64_t id, int32_t attempt, gs_place_how how, int64_t now_ns,
                  gs_place_over *out);
/* The client went away, in any state: the request is no more; who has an attempt of it closes that
 * without gs_place_end. False: there is none. */
bool gs_place_cancel(gs_place *p, uint64_t id, int64_t now_ns, gs_place_over *out);
/* Somebody has paused it, or lets it go on: while it waits it goes nowhere, and at a worker it is
 * not given up for what it does not say; the caller sees to it that nothing more of its answer is
 * taken. Pauses count for none of its targets. Idempotent. False: there is none. */
bool gs_place_pause(gs_place *p, uint64_t id, bool paused, int64_t now_ns);
/* The same for all of some classes, 1 << gs_class each, those to come included. */
void gs_place_hold_classes(gs_place *p, uint32_t classes, int64_t now_ns);
/* After BUSY with Retry-After: nothing more to this worker before until_ns. */
void gs_place_hold_off(gs_place *p, int32_t worker, int64_t until_ns);
/* The person's account as the scheduler has it (gs_sched_get_persons), by which the queue is sorted
 * inside a class. What this object has charged counts at once, and not twice when the scheduler's
 * counter has it, too. */
void gs_place_set_counter(gs_place *p, uint32_t person, double counter_ns, double weight);

/* ---- decisions --------------------------------------------------------------------------------*/

/* The next thing to do; false: nothing now. */
bool gs_place_next(gs_place *p, int64_t now_ns, gs_place_act *out);
/* After next said false: when to ask again if nothing happens; GS_NEVER_NS with nothing to do. */
int64_t gs_place_wake_ns(const gs_place *p);

/* ---- to look at -------------------------------------------------------------------------------*/

/* Its index, or -1; the name of one that was removed is free at once. */
int32_t gs_place_find(const gs_place *p, const char *name);
/* NULL: no such worker. Valid until the next call that changes workers. */
const gs_place_worker *gs_place_get_worker(const gs_place *p, int32_t worker);
void gs_place_get_view(const gs_place *p, int32_t worker, int64_t now_ns, gs_place_view *out);
int gs_place_get_record(const gs_place *p, uint64_t id, gs_place_record *out); /* or NOT_FOUND */
void gs_place_count_waiting(const gs_place *p, int32_t out[GS_CLASS_COUNT]);
/* Hash over every act so far. */
uint64_t gs_place_decision_hash(const gs_place *p);
/* All invariants. GS_OK, or GS_ERR_INTERNAL with a sentence. */
int gs_place_check(const gs_place *p, char *err, size_t errlen);

#endif
