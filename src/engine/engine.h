/*
 * The engine: one thread that owns scheduler, KV ledger and backend, and the two queues to it.
 *
 *     event loop                               engine thread (= kernel worker 0)
 *     gs_engine_submit(seq) ── inbox (MPSC) ─► submit / cancel / answer
 *     gs_engine_cancel(seq) ──┤                plan → forward → commit
 *     gs_engine_ask(query) ───┘
 *     gs_engine_poll(&event) ◄─ outbox (SPSC) ─ events; then wake(wake_arg)
 *
 * The engine holds one lane per model: backend, KV ledger, scheduler. A step runs one of them, as
 * sched/turns.h decides. The first is opened by the engine, others are attached and detached.
 *
 * The first backend is opened ON the engine thread (kernel worker 0), so that the server answers
 * /health while a model loads; gs_engine_state() says how far that is.
 *
 * Ownership of a gs_seq: the caller's until gs_engine_submit; the engine's until the event
 * GS_EVENT_REJECTED or GS_EVENT_END for it has been polled; then the caller's again, to free.
 * Every submitted sequence gets exactly one of:  REJECTED,  or  ADMITTED ... TOKEN* ... END;  or
 * END alone, when it was cancelled before the engine could reject it.
 */
#ifndef GS_ENGINE_ENGINE_H
#define GS_ENGINE_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/queue.h"
#include "engine/backend.h"
#include "engine/sampler.h"
#include "engine/steps.h"
#include "sched/sched.h"

typedef struct gs_engine gs_engine;

#define GS_ENGINE_LANES 16 /* models that can be loaded at once; each is known by its number */

typedef enum gs_engine_msg_kind {
    GS_ENGINE_SUBMIT,
    GS_ENGINE_CANCEL,
    GS_ENGINE_QUERY
} gs_engine_msg_kind;

typedef struct gs_engine_msg {
    gs_mpsc_node node; /* first */
    gs_engine_msg_kind kind;
    struct gs_seq *seq;     /* SUBMIT, CANCEL */
    struct gs_query *query; /* QUERY */
} gs_engine_msg;

typedef struct gs_seq {
    gs_seq_desc desc; /* desc.id and desc.user are set by gs_seq_create */
    gs_sampler sampler;
    void *owner;             /* the API's request; the engine never looks at it */
    int32_t index;           /* choice number within the request (n > 1) */
    int32_t lane;            /* which of the engine's models; 0: the first */
    bool has_limits;         /* limits counts for desc.person from now on */
    gs_person_config limits; /* 0: the scheduler's common value */
    /* engine's; see engine.c for the hand-over protocol of cancel and end */
    gs_engine_msg submit_msg, cancel_msg;
    atomic_int life;
    bool cancel_seen, end_held, admitted;
    gs_seq_end held_end;
    gs_logit_bias *own_bias;
    gs_guide *guide;  /* constrains the output; the sequence's own reference, NULL: none */
    float *embedding; /* [n_embd] of gs_backend_info, ready with the END (GS_END_DONE); or NULL */
} gs_seq;

/* Copies the prompt and makes room for max_output tokens; NULL when out of memory. */
gs_seq *gs_seq_create(const int32_t *prompt, int32_t n_prompt, int32_t max_output);
/* A sequence whose answer is one vector of n_embd floats instead of tokens. */
gs_seq *gs_seq_create_embedding(const int32_t *prompt, int32_t n_prompt, int32_t n_embd);
/* bias entries are copied into the sequence. 0 or GS_ERR_NOMEM. */
int gs_seq_set_bias(gs_seq *q, const gs_logit_bias *bias, int32_t n);
void gs_seq_free(gs_seq *q);

/* What can be changed while the engine runs. */
typedef struct gs_engine_settings {
    gs_class_config classes[GS_CLASS_COUNT];
    gs_slo_config slo; /* safepoints only count where the backend can resume */
    int32_t prefill_chunk;
} gs_engine_settings;

/*
 * Runs on the engine thread between two steps before a backend gets its lane (a first step,
 * calibration): no single step of it longer than others' may be, and it comes to its end as soon
 * as busy(busy_arg) says that somebody waits. 0, or a code: no lane.
 */
typedef int (*gs_prepare_fn)(void *arg, gs_backend *b, bool (*busy)(void *), void *busy_arg);

/* Prompts that are computed and kept for everybody: whoever's prompt begins like one of them finds
 * it in the prefix cache. Charged to nobody. The first model's before the engine is READY, another
 * one's once its lane is there, beside what runs.
 * pages: their whole blocks, info.block_bytes each, as an earlier process computed them; then they
 * are taken as they are, a few between two steps. The engine frees them (gs_free). */
typedef struct gs_public_prefix {
    int32_t *tokens; /* whole blocks of them count */
    int32_t n;
    uint8_t *pages; /* NULL: to be computed */
    bool wanted;    /* once it is computed, prefixes->computed is told */
} gs_public_prefix;

typedef struct gs_public_prefixes {
    gs_public_prefix *items;
    int32_t n;
    double pinned_share; /* of the KV pool, at most; further ones are left out, with a warning */
    /* Engine thread: the i-th was computed; takes pages (gs_free). */
    void (*computed)(void *arg, int32_t i, uint8_t *pages);
    void *computed_arg;
} gs_public_prefixes;

typedef enum gs_query_kind {
    GS_QUERY_QUEUE,     /* records: who runs and who waits, as gs_sched_snapshot */
    GS_QUERY_EXPLAIN,   /* records: of the living sequences among ids */
    GS_QUERY_STATE,     /* records as QUEUE, and state */
    GS_QUERY_PAUSE,     /* the living sequences among ids, or lets them go on; then as EXPLAIN */
    GS_QUERY_CONFIGURE, /* apply settings */
    GS_QUERY_PERSONS,   /* limits count from now on */
    GS_QUERY_CHARGE,    /* work done elsewhere: charge_ns on the account of person */
    GS_QUERY_ATTACH,    /* a further model: backend, cost, prepare */
    GS_QUERY_DETACH /* lane goes, be it the first; with GS_ERR_EXISTS it does not, sequences live
                       there */
} gs_query_kind;

/* A lane's KV pool at one moment. */
typedef struct gs_pool_view {
    int32_t *map;      /* the asker's [n_blocks], as gs_kv_map; slots are those of the records */
    uint32_t n_blocks; /* 0: not wanted */
    bool known;        /* answer: there is a pool of that size; map and kv are its */
    gs_kv_stats kv;
} gs_pool_view;

/* What is there at one moment. The arrays are the asker's. */
typedef struct gs_engine_view {
    gs_pool_view pools[GS_ENGINE_LANES]; /* by the lanes' numbers */
    gs_person_view *persons;             /* [n_persons]: as many as the engine's max_persons */
    uint32_t n_persons;
    bool background_paused;
} gs_engine_view;

typedef struct gs_person_limits {
    uint32_t person;
    gs_person_config limits; /* 0: the scheduler's common value */
} gs_person_limits;

/*
 * A question to the engine thread. The caller's until gs_engine_ask; the engine's until the event
 * GS_EVENT_ANSWER with it has been polled; then the caller's again. Every question is answered
 * once, at the latest after the step that is running.
 */
typedef struct gs_query {
    gs_query_kind kind;
    void *owner;               /* the caller's; the engine never looks at it */
    gs_explain *records;       /* caller's storage for max_records; NULL with CONFIGURE */
    int32_t max_records;       /* EXPLAIN: as many as ids */
    int32_t n_records;         /* answer */
    const gs_seq_id *ids;      /* EXPLAIN: [n_ids] */
    int32_t n_ids;             /* EXPLAIN */
    bool pause;                /* PAUSE: or go on */
    gs_engine_settings *apply; /* CONFIGURE */
    const struct gs_person_limits *limits; /* PERSONS: [n_limits] */
    int32_t n_limits;
    gs_cost
        *cost_out; /* QUEUE: a copy of lane 0's step-time model, if it is there; NULL: not wanted */
    uint32_t person; /* CHARGE */
    int64_t charge_ns;
    gs_engine_view *view; /* STATE */
    /* ATTACH: the new lane's, the engine's in every case; answer to DETACH: the caller's again. */
    gs_backend *backend;
    const gs_cost *cost; /* ATTACH: read after prepare, copied; NULL: learned */
    gs_prepare_fn prepare;
    void *prepare_arg;
    bool first; /* ATTACH: it becomes lane 0, which has been detached; others never do */
    const gs_public_prefixes *prefixes; /* ATTACH: the lane's, valid as long as it is. NULL: none */
    int32_t lane;                       /* answer to ATTACH; DETACH */
    char err[256];                      /* answer to ATTACH: a sentence with the code */
    int64_t now_ns;                     /* answer: when it was given */
    int code; /* answer: 0, GS_ERR_INVALID, or GS_ERR_UNAVAILABLE: no model */
    /* engine's */
    gs_engine_msg msg;
    struct gs_query *next;
} gs_query;

typedef enum gs_event_kind {
    GS_EVENT_ADMITTED, /* in the queue; the answer's headers may go out */
    GS_EVENT_REJECTED, /* admission says why; the sequence is the caller's again */
    GS_EVENT_TOKEN,
    GS_EVENT_END,   /* the sequence is the caller's again */
    GS_EVENT_ANSWER /* the query is the caller's again */
} gs_event_kind;

typedef struct gs_event {
    gs_event_kind kind;
    gs_seq *seq;     /* NULL with ANSWER */
    int64_t time_ns; /* when the engine produced it */
    union {
        gs_admission admission; /* ADMITTED, REJECTED */
        struct {                /* TOKEN */
            gs_sample sample;
            bool stop; /* an end-of-generation token: counted, not shown */
            int32_t n_cached;
        } token;
        gs_seq_end end;   /* END */
        gs_query *answer; /* ANSWER */
    } u;
} gs_event;

/* Makes the backend; called once, on the engine thread. */
typedef int (*gs_backend_open_fn)(void *arg, gs_backend **out, char *err, size_t errlen);

typedef struct gs_engine_config {
    gs_backend_open_fn open;
    void *open_arg;
    int32_t max_waiting;            /* queued sequences; beyond: 429 */
    int32_t prefill_chunk;          /* tokens */
    const gs_class_config *classes; /* [GS_CLASS_COUNT], copied; NULL: the defaults */
    const gs_slo_config *slo;       /* copied; NULL: the defaults */
    uint32_t max_persons;
    uint64_t seed;
    const gs_policy_ops *policy; /* NULL: the default */
    const gs_cost *cost; /* read after open has filled it; NULL: learned from the first steps */
    bool no_prefix_cache;
    const gs_public_prefixes *prefixes; /* read after open has filled it; NULL: none */
    void (*wake)(void *arg);            /* engine thread calls it after it has produced events */
    void *wake_arg;
    bool check; /* gs_sched_check after every step (debug, tests) */
} gs_engine_config;

/* Histogram of predicted / measured step time: how many are at most the bound, the last one all. */
#define GS_RATIO_BOUNDS(X)                                                                         \
    X(0.5) X(0.7) X(0.8) X(0.9) X(0.95) X(1.0) X(1.05) X(1.1) X(1.2) X(1.4) X(2.0)
#define GS_ONE(bound) +1
enum { GS_RATIO_N = GS_RATIO_BOUNDS(GS_ONE) + 1 };
#undef GS_ONE
extern const double gs_ratio_bounds[GS_RATIO_N]; /* the last one is infinite */

/* Histogram of the tokens of a step: how many are in each bucket, the last one beyond all bounds
 * (vLLM's iteration_tokens). */
#define GS_STEP_TOKENS_BOUNDS(X)                                                                   \
    X(1) X(8) X(16) X(32) X(64) X(128) X(256) X(512) X(1024) X(2048) X(4096) X(8192) X(16384)
#define GS_ONE(bound) +1
enum { GS_STEP_TOKENS_N = GS_STEP_TOKENS_BOUNDS(GS_ONE) + 1 };
#undef GS_ONE
extern const double gs_step_tokens_bounds[GS_STEP_TOKENS_N - 1];

#define GS_ENGINE_PERSONS 64 /* whose device time is in the statistics */

typedef enum gs_engine_state {
    GS_ENGINE_LOADING,
    GS_ENGINE_READY,
    GS_ENGINE_FAILED /* gs_engine_error says why; everything submitted is rejected */
} gs_engine_state;

/* Read by any thread; a consistent copy is not promised, each number is right on its own. */
typedef struct gs_engine_stats {
    int32_t n_running, n_waiting;
    uint32_t kv_blocks_total, kv_blocks_held, kv_blocks_cached; /* held: without the pinned ones */
    uint32_t kv_blocks_pinned;
    uint64_t steps, preemptions, prefill_tokens, decode_tokens, recomputed_tokens;
    uint64_t prefix_lookup_tokens, prefix_hit_tokens;
    int64_t step_began_ns; /* of the step now running; 0: none. Old means the backend hangs */
    int64_t longest_step_ns;
    int64_t busy_ns;       /* time spent in forward so far */
    uint64_t suspensions;  /* steps that gave way between two layers */
    uint64_t beside_steps; /* steps that ran at the same time as others */
    int32_t n_running_by_class[GS_CLASS_COUNT], n_waiting_by_class[GS_CLASS_COUNT];
    /* As in gs_sched_stats. */
    int64_t discarded_ns, busy_background_ns, recomputed_ns;
    uint64_t n_target[GS_CLASS_COUNT], n_missed[GS_CLASS_COUNT], n_relegated[GS_CLASS_COUNT];
    int64_t window_ns[GS_CLASS_COUNT], effective_tpot_ns[GS_CLASS_COUNT];
    /* The step-time model: steps that were predicted and measured whole, the sum of their ratios,
     * and of the newest ones the error (gs_cost_get_error, looked at now and then). */
    uint64_t ratio_count[GS_RATIO_N];
    double ratio_sum, cost_median_ratio, cost_median_error, cost_p95_error;
    gs_mode_view mode;               /* as of gs_sched_get_mode */
    uint64_t n_held[GS_CLASS_COUNT]; /* as in gs_sched_stats */
    int64_t held_ns[GS_CLASS_COUNT], saved_ns;
    /* What steps were made of; the times sum to busy_ns. */
    uint64_t tokens[GS_CLASS_COUNT][GS_PHASE_COUNT];
    int64_t device_ns[GS_CLASS_COUNT][GS_PHASE_COUNT];
    uint64_t step_tokens[GS_STEP_TOKENS_N]; /* steps by their tokens; bounds below */
    uint64_t step_tokens_sum;
    int64_t person_ns[GS_ENGINE_PERSONS]; /* device time on the accounts of the first persons */
} gs_engine_stats;

/* Starts the engine thread, which opens the backend; it is destroyed with the engine. */
int gs_engine_create(const gs_engine_config *cfg, gs_engine **out, char *err, size_t errlen);
gs_engine_state gs_engine_get_state(const gs_engine *e); /* any thread; wake is called on change */
const char *gs_engine_error(const gs_engine *e);         /* after FAILED */
/* Cancels what is left, stops the thread, frees. Call from the event-loop thread; events not yet
 * polled are dropped, their sequences freed by nobody: poll to the end first. */
void gs_engine_free(gs_engine *e);

/*
 * A number that changes while a step goes on, and from step to step; the event-loop thread. A
 * question that is not answered while it stands still means that the engine hangs.
 */
uint64_t gs_engine_progress(const gs_engine *e);
/*
 * For a step that hangs; the event-loop thread. Its threads are made to stand still for good
 * (base/park.h) and new ones take their places, on the same memory: what was computed before is
 * all there. The step itself counts as failed, so its sequences end with GS_ERR_STALLED; those that
 * wait, and those that run but were not in it, go on.
 * GS_ERR_EXISTS: it does not hang in a step, nothing was changed. Others: it can't be helped, and
 * this engine never answers again.
 */
int gs_engine_revive(gs_engine *e);

/* The same two for a step that runs beside the engine's own (mode split): while that one hangs the
 * engine answers, and its own steps go on. *runs: there is one. After READY. */
uint64_t gs_engine_beside_progress(const gs_engine *e, bool *runs);
int gs_engine_revive_beside(gs_engine *e);

void gs_engine_submit(gs_engine *e, gs_seq *q); /* any thread */
void gs_engine_cancel(gs_engine *e, gs_seq *q); /* any thread that owns the request; idempotent */
/* Any thread; not while the engine is LOADING, which would leave it waiting for the model. */
void gs_engine_ask(gs_engine *e, gs_query *q);
bool gs_engine_poll(gs_engine *e, gs_event *out); /* event-loop thread */
/* In sum, lanes that are gone included; times to aim at and errors are the first one's. */
void gs_engine_get_stats(const gs_engine *e, gs_engine_stats *out);
/* Of one lane since it was attached; nothing but zeros where there is none. */
void gs_engine_get_lane_stats(const gs_engine *e, int32_t lane, gs_engine_stats *out);
/* The newest steps; any thread, as long as the engine lives. */
const gs_steps *gs_engine_steps(const gs_engine *e);
/* Of the first lane's backend, after READY; of another one's, after its query's answer. */
void gs_engine_info(const gs_engine *e, gs_backend_info *out);
void gs_engine_lane_info(const gs_engine *e, int32_t lane, gs_backend_info *out);
/* For shutdown and tests: a lane's backend, on conditions as its info. Only gs_fake_release may be
 * called on it from another thread. */
gs_backend *gs_engine_backend(const gs_engine *e, int32_t lane);

#endif
