/*
 * The engine: one thread that owns scheduler, KV ledger and backend, and the two queues to it.
 *
 *     event loop                               engine thread (= kernel worker 0)
 *     gs_engine_submit(seq) ── inbox (MPSC) ─► submit / cancel
 *     gs_engine_cancel(seq) ──┘                plan → forward → commit
 *     gs_engine_poll(&event) ◄─ outbox (SPSC) ─ events; then wake(wake_arg)
 *
 * The backend is opened ON the engine thread (kernel worker 0), so that the server answers /health
 * while a model loads; gs_engine_state() says how far that is.
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
#include "sched/sched.h"

typedef struct gs_engine gs_engine;

typedef struct gs_engine_msg {
    gs_mpsc_node node; /* first */
    struct gs_seq *seq;
    bool cancel;
} gs_engine_msg;

typedef struct gs_seq {
    gs_seq_desc desc; /* desc.id and desc.user are set by gs_seq_create */
    gs_sampler sampler;
    void *owner;   /* the API's request; the engine never looks at it */
    int32_t index; /* choice number within the request (n > 1) */
    /* engine's; see engine.c for the hand-over protocol of cancel and end */
    gs_engine_msg submit_msg, cancel_msg;
    atomic_int life;
    bool cancel_seen, end_held, admitted;
    gs_seq_end held_end;
    gs_logit_bias *own_bias;
} gs_seq;

/* Copies the prompt and makes room for max_output tokens; NULL when out of memory. */
gs_seq *gs_seq_create(const int32_t *prompt, int32_t n_prompt, int32_t max_output);
/* bias entries are copied into the sequence. 0 or GS_ERR_NOMEM. */
int gs_seq_set_bias(gs_seq *q, const gs_logit_bias *bias, int32_t n);
void gs_seq_free(gs_seq *q);

typedef enum gs_event_kind {
    GS_EVENT_ADMITTED, /* in the queue; the answer's headers may go out */
    GS_EVENT_REJECTED, /* admission says why; the sequence is the caller's again */
    GS_EVENT_TOKEN,
    GS_EVENT_END /* the sequence is the caller's again */
} gs_event_kind;

typedef struct gs_event {
    gs_event_kind kind;
    gs_seq *seq;
    int64_t time_ns; /* when the engine produced it */
    union {
        gs_admission admission; /* ADMITTED, REJECTED */
        struct {                /* TOKEN */
            gs_sample sample;
            bool stop; /* an end-of-generation token: counted, not shown */
            int32_t n_cached;
        } token;
        gs_seq_end end; /* END */
    } u;
} gs_event;

/* Makes the backend; called once, on the engine thread. */
typedef int (*gs_backend_open_fn)(void *arg, gs_backend **out, char *err, size_t errlen);

typedef struct gs_engine_config {
    gs_backend_open_fn open;
    void *open_arg;
    int32_t max_waiting;   /* queued sequences; beyond: 429 */
    int32_t prefill_chunk; /* tokens */
    uint32_t max_persons;
    uint64_t seed;
    const gs_policy_ops *policy; /* NULL: the default */
    const gs_cost *cost; /* read after open has filled it; NULL: learned from the first steps */
    bool no_prefix_cache;
    void (*wake)(void *arg); /* engine thread calls it after it has produced events */
    void *wake_arg;
    bool check; /* gs_sched_check after every step (debug, tests) */
} gs_engine_config;

typedef enum gs_engine_state {
    GS_ENGINE_LOADING,
    GS_ENGINE_READY,
    GS_ENGINE_FAILED /* gs_engine_error says why; everything submitted is rejected */
} gs_engine_state;

/* Read by any thread; a consistent copy is not promised, each number is right on its own. */
typedef struct gs_engine_stats {
    int32_t n_running, n_waiting;
    uint32_t kv_blocks_total, kv_blocks_held, kv_blocks_cached;
    uint64_t steps, preemptions, prefill_tokens, decode_tokens, recomputed_tokens;
    uint64_t prefix_lookup_tokens, prefix_hit_tokens;
    int64_t step_began_ns; /* of the step now running; 0: none. Old means the backend hangs */
    int64_t longest_step_ns;
    int64_t busy_ns;      /* time spent in forward so far */
    uint64_t suspensions; /* steps that gave way between two layers */
    int32_t n_running_by_class[GS_CLASS_COUNT], n_waiting_by_class[GS_CLASS_COUNT];
} gs_engine_stats;

/* Starts the engine thread, which opens the backend; it is destroyed with the engine. */
int gs_engine_create(const gs_engine_config *cfg, gs_engine **out, char *err, size_t errlen);
gs_engine_state gs_engine_get_state(const gs_engine *e); /* any thread; wake is called on change */
const char *gs_engine_error(const gs_engine *e);         /* after FAILED */
/* Cancels what is left, stops the thread, frees. Call from the event-loop thread; events not yet
 * polled are dropped, their sequences freed by nobody: poll to the end first. */
void gs_engine_free(gs_engine *e);

void gs_engine_submit(gs_engine *e, gs_seq *q);   /* any thread */
void gs_engine_cancel(gs_engine *e, gs_seq *q);   /* any thread that owns the request; idempotent */
bool gs_engine_poll(gs_engine *e, gs_event *out); /* event-loop thread */
void gs_engine_get_stats(const gs_engine *e, gs_engine_stats *out);
/* Of the open backend; after READY. */
void gs_engine_info(const gs_engine *e, gs_backend_info *out);
/* For shutdown and tests: the backend, after READY. Only gs_fake_release may be called on it from
 * another thread. */
gs_backend *gs_engine_backend(const gs_engine *e);

#endif
