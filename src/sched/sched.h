/*
 * The scheduler: decides, before every engine iteration, which sequences advance by how many
 * tokens (iteration-level scheduling: Orca, OSDI'22; chunked prefill: Sarathi-Serve, OSDI'24).
 *
 * Pure: time is an argument, no I/O, no threads, no allocation after create. The server, the
 * simulator, the tuner and the tests link this same object. It owns the KV ledger's slots: all
 * gs_kv_* calls that change state happen in here.
 *
 *     loop:  drain inbox -> gs_sched_submit / gs_sched_cancel
 *            gs_sched_plan(s, now, &plan)
 *            if plan.n_items == 0: sleep until plan.wake_ns or the inbox wakes us
 *            run the plan                              (engine, or a cost model in the simulator)
 *            gs_sched_commit(s, &plan, &result, now)
 *            while gs_sched_next_end(s, &end): report it
 *
 * A sequence's life:
 *
 *     submit ─► WAITING ──slot + KV──► RUNNING (prefill, then decode) ─► ended, exactly once
 *                  ▲                      │
 *                  └──── preempt (KV) ────┘        cancel: from any state, frees at once
 *                                                     pause: in either state, not planned
 *
 * In mode split (mode.h) a step of prompts runs beside this loop, on cores of its own: between two
 * steps gs_sched_plan_beside; when the step it planned is done, again between two steps,
 * gs_sched_commit_beside. Its sequences take part in no other step meanwhile.
 *
 * Owner: one thread (the engine's, or the simulator's).
 */
#ifndef GS_SCHED_SCHED_H
#define GS_SCHED_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kv/kv.h"
#include "sched/class.h"
#include "sched/cost.h"
#include "sched/explain.h"
#include "sched/mode.h"
#include "sched/step.h"

typedef uint64_t gs_seq_id; /* never 0 */
typedef struct gs_sched gs_sched;
typedef struct gs_accounts gs_accounts;
typedef struct gs_policy_ops gs_policy_ops; /* sched/policy.h: one of the four vtables */

#define GS_NEVER_NS INT64_MAX

/* Rules of the "slo" policy that can be switched off, to see what each is worth. */
typedef enum gs_rule {
    GS_RULE_CLASSES = 1,     /* order by class and slack; off: by arrival */
    GS_RULE_HORIZON = 2,     /* steps end before the next token is due */
    GS_RULE_WINDOWS = 4,     /* newcomers may be held for company */
    GS_RULE_FAIRNESS = 8,    /* order by the persons' counters; off: by arrival */
    GS_RULE_RESERVE = 16,    /* KV blocks and seats kept for voice; class shares */
    GS_RULE_SAFEPOINTS = 32, /* background steps give way between layers */
} gs_rule;

/* What one person may use. 0: no limit. */
typedef struct gs_person_config {
    double weight;          /* share relative to others; 0 counts as 1 */
    int32_t max_running;    /* sequences at once */
    int32_t max_waiting;    /* queued */
    int64_t day_ns;         /* device time in 24 h; beyond, new requests wait for the next day */
    bool background_paused; /* this person's schedule says no */
} gs_person_config;

/* Of the "slo" policy beside the classes. */
typedef struct gs_slo_config {
    gs_mode mode;                 /* how prompts and streams share the device */
    double background_floor;      /* device time background gets on a busy machine, of 10 s */
    double background_stretch;    /* background may make a stream's gap this much longer */
    int64_t background_gap_ns;    /* or this long at least */
    bool background_paused;       /* its schedule says no: quiet hours */
    double background_share;      /* device time it gets at most, idle machine or not: after a step
                                     it rests until its part was no more (heat, noise) */
    int32_t background_threads;   /* compute threads of its own steps, at most; 0: all */
    bool safepoints;              /* the engine asks gs_sched_should_yield between layers */
    int64_t safepoint_max_age_ns; /* a suspended step goes on after this time at the latest */
    int32_t tile_tokens;          /* of the kernels: chunks are multiples of it */
    double tpot_stretch;          /* attainable TPOT = this times the step of all streams alone */
    int32_t document_min_tokens;  /* uncached prompt that makes a chat a document; 0: what takes
                                     2 s, at least 1,024; < 0: never */
    double person_queue_share;    /* of the queue, at most, for one of several persons */
    gs_person_config person;      /* until gs_sched_set_person */
    uint32_t rules_off;           /* GS_RULE_ bits */
} gs_slo_config;

typedef struct gs_sched_config {
    int32_t max_seqs;         /* running sequences = KV slots */
    int32_t max_waiting;      /* beyond: GS_ERR_OVERLOADED */
    int32_t max_batch_tokens; /* planned tokens of one step; more than max_seqs, or decodes alone
                                 fill it and a new prompt waits */
    int32_t prefill_chunk;    /* most prompt tokens of one sequence in one step; multiple of 32 */
    int32_t max_context;      /* tokens of one sequence, prompt + output */
    int32_t n_layers;         /* a step can give way between them; 0 counts as 1 */
    int32_t n_threads;        /* compute threads; fewer than 2: never split */
    uint32_t max_persons;     /* with accounts: theirs counts */
    /* Of a device that several schedulers share (turns.h); borrowed. NULL: its own. */
    gs_accounts *accounts;
    /* A prompt is computed in one step or not at all, and nothing is generated (encoders):
     * prefill_only alone is admitted, up to max_batch_tokens; prefill_chunk does not count. */
    bool whole_prompts;
    const gs_policy_ops *policy; /* NULL: "slo" */
    uint64_t seed;
    /* Copied by create. NULL: gs_class_defaults, gs_slo_defaults, gs_cost_prior. */
    const gs_class_config *classes; /* [GS_CLASS_COUNT] */
    const gs_slo_config *slo;
    const gs_cost *cost;
} gs_sched_config;

typedef struct gs_seq_desc {
    gs_seq_id id; /* chosen by the caller, unique among living sequences */
    gs_class cls;
    bool class_fixed;     /* asked for or bound to a key: a long prompt does not change it */
    uint32_t person;      /* 0 .. max_persons-1; 0 = nobody in particular */
    uint64_t cache_scope; /* prefix-cache name space */
    /* Caller's storage for n_prompt + max_output tokens, the prompt filled in. Borrowed until the
     * end is reported; commit appends each generated token at tokens[n_prompt + n_output]. */
    int32_t *tokens;
    int32_t n_prompt;
    int32_t max_output; /* 0 with prefill_only */
    bool prefill_only;  /* embeddings, scoring: ends when the prompt is computed */
    int64_t arrival_ns;
    int64_t deadline_ns;  /* whole answer, as a point in time; 0: none */
    bool deadline_strict; /* refuse at once what can't meet it */
    int32_t n_public; /* leading prompt tokens of a registered shared prefix: charged to nobody */
    void *user;       /* handed back in plan items and ends */
} gs_seq_desc;

typedef struct gs_admission {
    int code;                  /* what gs_sched_submit returned */
    const char *field;         /* static: which request field is to blame, or NULL */
    const char *reason;        /* static sentence, or NULL */
    int64_t retry_after_ns;    /* with GS_ERR_OVERLOADED */
    int64_t predicted_ttft_ns; /* -1: no estimate yet */
    int32_t n_cached;          /* prompt tokens the prefix cache holds now */
    int32_t n_ahead;           /* sequences that wait already */
    gs_class cls;              /* that it is served as */
    bool late;                 /* its deadline will probably be missed */
} gs_admission;

typedef struct gs_plan_item {
    gs_seq_id id;
    void *user;
    int32_t slot;           /* 0 .. max_seqs-1, the sequence's while it runs */
    int32_t pos;            /* position of the first token */
    int32_t n_tokens;       /* >= 1 */
    const int32_t *tokens;  /* the n_tokens input tokens */
    const uint32_t *blocks; /* block table, covers pos + n_tokens; valid until commit */
    int32_t n_blocks;
    bool prefill;     /* prompt (or recomputed) tokens; else one decode token */
    bool sample;      /* the last position's logits are needed: a token comes back */
    int32_t n_cached; /* prompt tokens that the prefix cache gave (first admission) */
    gs_class cls;
} gs_plan_item;

typedef struct gs_plan {
    int32_t n_items;
    int32_t n_tokens; /* sum over items, <= max_batch_tokens */
    int32_t n_prefill_tokens;
    int32_t n_copies;
    int32_t n_preempted;   /* sequences preempted while planning this step */
    bool may_yield;        /* only background: ask gs_sched_should_yield between layers */
    bool resume;           /* goes on with the step that gs_sched_suspend put aside */
    gs_plan_item *items;   /* capacity max_seqs, owned by the scheduler */
    gs_kv_copy_op *copies; /* to be done before the step, capacity max_seqs */
    int64_t predicted_ns;  /* of the step; -1: no estimate yet */
    int64_t limit_ns;      /* how long it may take; -1: nothing limits it */
    int64_t held_ns;       /* whoever starts with it was held for company this long, at most */
    int64_t saved_ns;      /* by predictions, against a step for each of those */
    int64_t yield_ns;      /* with may_yield: gives way by then; GS_NEVER_NS: only to newcomers */
    int32_t max_threads;   /* compute threads, at most; 0: all */
    bool beside;           /* another step runs on the other threads, by plan */
    int64_t wake_ns;       /* when n_items == 0: plan again at this time at the latest */
    uint64_t step;         /* ordinal */
} gs_plan;

typedef struct gs_item_result {
    int err;       /* 0, or why this sequence failed: it ends, the others go on */
    int32_t token; /* with item.sample */
    bool stop;     /* the token ends the sequence (end-of-generation token) */
    bool retry;    /* with item.sample: no token this time; the last position is computed again */
} gs_item_result;

typedef struct gs_step_result {
    int err; /* 0; else the whole step failed: every item of it ends with it */
    int64_t elapsed_ns;
    bool few_threads;            /* it ran on max_threads, and those are not all there are */
    const gs_item_result *items; /* [plan.n_items] */
} gs_step_result;

typedef enum gs_end_reason {
    GS_END_STOP,   /* end-of-generation token */
    GS_END_LENGTH, /* max_output or the context's end */
    GS_END_DONE,   /* prefill_only finished */
    GS_END_CANCELLED,
    GS_END_ERROR
} gs_end_reason;

typedef struct gs_seq_end {
    gs_seq_id id;
    void *user;
    gs_end_reason reason;
    int err;             /* with GS_END_ERROR */
    int32_t n_output;    /* tokens generated, a stop token included */
    int32_t n_cached;    /* prompt tokens reused at first admission */
    int32_t n_preempted; /* times */
    gs_explain explain;
} gs_seq_end;

typedef struct gs_sched_stats {
    int32_t n_running, n_waiting;
    int32_t n_waiting_by_class[GS_CLASS_COUNT], n_running_by_class[GS_CLASS_COUNT];
    uint64_t steps, preemptions;
    uint64_t prefill_tokens, decode_tokens; /* computed */
    uint64_t recomputed_tokens;             /* of prefill_tokens, after preemption */
    uint64_t ended;
    uint64_t suspensions;
    uint64_t beside_steps;               /* of steps */
    int64_t discarded_ns;                /* device time of suspended work that was dropped */
    int64_t busy_ns, busy_background_ns; /* measured step time; of it, for background */
    int64_t recomputed_ns;               /* of it, charged to nobody */
    uint64_t n_target[GS_CLASS_COUNT];   /* first tokens (or ends) judged by a target */
    uint64_t n_missed[GS_CLASS_COUNT];   /* of them, too late */
    uint64_t n_relegated[GS_CLASS_COUNT];
    int64_t window_ns[GS_CLASS_COUNT];         /* current length */
    int64_t effective_tpot_ns[GS_CLASS_COUNT]; /* target, or what this load allows */
    uint64_t n_held[GS_CLASS_COUNT];           /* sequences that were held for company */
    int64_t held_ns[GS_CLASS_COUNT];           /* and how long, in all */
    int64_t saved_ns;                          /* what that has saved, by predictions */
} gs_sched_stats;

typedef struct gs_person_stats {
    int32_t n_running, n_waiting;
    double counter_ns;    /* virtual: weighted device time, lifted */
    int64_t charged_ns;   /* device time ever */
    double output_tokens; /* moving average of answers' length */
} gs_person_stats;

typedef struct gs_person_view {
    gs_person_stats stats;
    gs_person_config config; /* own or common; weight as it counts */
} gs_person_view;

/*
 * What other schedulers of the same device (turns.h) ask of this one's next step. A scheduler alone
 * has GS_SCHED_ALONE.
 */
typedef struct gs_sched_outside {
    int64_t due_ns;     /* the step must end by then: somebody there would be late */
    int64_t streams_ns; /* what a step of all their streams takes: a round is so much longer */
    /* A step of background alone ends, or gives way, by then. */
    int64_t background_until_ns;
    bool presses; /* a prompt waits there that is more urgent than any here */
    bool busy;    /* something runs there */
} gs_sched_outside;

#define GS_SCHED_ALONE                                                                             \
    (gs_sched_outside) {                                                                           \
        .due_ns = GS_NEVER_NS, .background_until_ns = GS_NEVER_NS                                  \
    }

/* What a scheduler would run next and how much that presses. Times are points in time. */
typedef struct gs_sched_need {
    bool streams;            /* somebody reads or listens */
    bool prompts;            /* interactive prompts wait, or are under way */
    bool background;         /* may run */
    int64_t start_ns;        /* a step must begin by then, or a stream is late; GS_NEVER_NS */
    int64_t prompt_start_ns; /* the same for the first tokens that can still be in time */
    int64_t streams_ns;      /* time of a step of all streams */
    int64_t least_ns;        /* the same with a tile of prompt */
    int64_t shown_ns;        /* the newest token of a stream; 0: none */
    int64_t owed_ns;         /* to background, on the common account */
    double counter_ns;       /* of the person whose background comes first */
} gs_sched_need;

/* Counters of persons, and what background had: one object for all schedulers of a device. Owner:
 * their thread. GS_ERR_INVALID, GS_ERR_NOMEM. */
int gs_accounts_create(uint32_t max_persons, gs_accounts **out);
void gs_accounts_free(gs_accounts *a); /* after the schedulers that share it */

void gs_slo_defaults(gs_slo_config *out);
/* Bounds of each field. 0, or GS_ERR_INVALID with the field's name in *field (may be NULL). */
int gs_slo_check(const gs_slo_config *c, const char **field);

/* kv is borrowed and must outlive the scheduler. GS_ERR_INVALID, GS_ERR_NOMEM. */
int gs_sched_create(const gs_sched_config *cfg, gs_kv *kv, gs_sched **out);
void gs_sched_free(gs_sched *s);

/*
 * Admission. GS_OK: the sequence is the scheduler's and will end exactly once. Otherwise nothing
 * was kept and out says why: GS_ERR_CONTEXT / GS_ERR_INVALID (can never run), GS_ERR_OVERLOADED
 * (with retry_after_ns), GS_ERR_EXISTS (id in use). max_output is cut to what the context leaves.
 */
int gs_sched_submit(gs_sched *s, const gs_seq_desc *d, int64_t now_ns, gs_admission *out);
/* Idempotent: GS_OK, or GS_ERR_NOT_FOUND for an id that has ended or never was. Between plan and
 * commit the end is reported at commit; else at once, and everything it held is free. */
int gs_sched_cancel(gs_sched *s, gs_seq_id id, int64_t now_ns);
/*
 * A paused sequence keeps its KV blocks and its place but is not planned, from the next step on
 * (a suspended step that it is in goes on once more). Whoever needs its blocks or its seat takes
 * them first; then it starts again when it goes on. Its pauses count for none of its targets.
 * Idempotent: GS_OK, or GS_ERR_NOT_FOUND.
 */
int gs_sched_pause(gs_sched *s, gs_seq_id id, bool paused, int64_t now_ns);
/* The plan's arrays stay valid until the matching commit. Plan and commit alternate; a plan with
 * n_items == 0 is not committed. Planning may end a sequence (it alone outgrew the KV pool): look
 * at gs_sched_next_end after an empty plan too, whose wake_ns is then now_ns. */
void gs_sched_plan(gs_sched *s, int64_t now_ns, gs_plan *out);
void gs_sched_commit(gs_sched *s, const gs_plan *plan, const gs_step_result *r, int64_t now_ns);
/*
 * Mode split: a step of prompts that may run at the same time as all that gs_sched_plan plans from
 * now on, on plan.max_threads threads of its own; its copies are to be done before it returns to
 * the loop. n_items == 0: none now (always, in other modes, and while one is running). At most one
 * at a time; it never gives way, as a class's quantum bounds it. While it runs gs_sched_plan plans
 * steps of tokens for the other threads, and an empty plan may mean that only its commit will give
 * them something to do.
 */
void gs_sched_plan_beside(gs_sched *s, int64_t now_ns, gs_plan *out);
/* Not between plan and commit. result.few_threads is set. */
void gs_sched_commit_beside(gs_sched *s, const gs_plan *plan, const gs_step_result *r,
                            int64_t now_ns);
/* Whether gs_sched_plan_beside will be called: with it false (as from create on) split is mixed.
 * Not while a step runs beside. */
void gs_sched_set_splits(gs_sched *s, bool splits, gs_mode_why if_not);
void gs_sched_get_mode(const gs_sched *s, gs_mode_view *out);
/* Until the next call; GS_SCHED_ALONE from create on. */
void gs_sched_set_outside(gs_sched *s, const gs_sched_outside *o);
/* Between two steps. Nothing is decided by it. */
void gs_sched_get_need(gs_sched *s, int64_t now_ns, gs_sched_need *out);
/* Instead of plan, when another scheduler has the device: accounts for why its sequences wait. */
void gs_sched_pass(gs_sched *s, int64_t now_ns);
/* Whether a voice or chat came since since_ns that waits. */
bool gs_sched_has_newcomer(const gs_sched *s, int64_t since_ns);
/* Safepoint between layers, while a plan with may_yield runs: whether to give way. Submissions
 * that arrived meanwhile should have been handed in before asking. */
bool gs_sched_should_yield(const gs_sched *s, int64_t now_ns);
/*
 * Instead of commit, after should_yield said so: the step is put aside where it stopped; its
 * activations stay with the engine, its KV blocks with it. elapsed_ns is the time it took so far.
 * A later plan with resume set hands the same items out again, to go on at the next layer; its
 * commit (or another suspend) then names only the time since. Work that is not resumed is counted
 * in discarded_ns; the engine simply never hears of it again.
 */
void gs_sched_suspend(gs_sched *s, const gs_plan *plan, int64_t elapsed_ns, int64_t now_ns);
/* Pops the next ended sequence; false between plan and commit. */
bool gs_sched_next_end(gs_sched *s, gs_seq_end *out);

/* Changes between steps. GS_ERR_INVALID leaves everything as it was; field as gs_class_check. */
int gs_sched_set_classes(gs_sched *s, const gs_class_config classes[GS_CLASS_COUNT],
                         const char **field);
int gs_sched_set_slo(gs_sched *s, const gs_slo_config *cfg);
int gs_sched_set_chunk(gs_sched *s, int32_t prefill_chunk);
int gs_sched_set_person(gs_sched *s, uint32_t person, const gs_person_config *cfg);
void gs_sched_set_cost(gs_sched *s, const gs_cost *c); /* a calibration */
/* Work that was done for a person elsewhere (place.h), as device time on their account.
 * GS_ERR_NOT_FOUND as get_person, GS_ERR_INVALID: ns < 0. */
int gs_sched_charge(gs_sched *s, uint32_t person, int64_t ns, int64_t now_ns);
void gs_sched_get_classes(const gs_sched *s, gs_class_config out[GS_CLASS_COUNT]);
void gs_sched_get_slo(const gs_sched *s, gs_slo_config *out);
const gs_cost *gs_sched_cost(const gs_sched *s);

/* The record of a living sequence: GS_OK or GS_ERR_NOT_FOUND. Ended ones carry it in gs_seq_end. */
int gs_sched_explain(const gs_sched *s, gs_seq_id id, gs_explain *out);
/* The first max records, running before waiting, both in submission order. Returns how many. */
int32_t gs_sched_snapshot(const gs_sched *s, gs_explain *out, int32_t max);
/* GS_ERR_NOT_FOUND beyond max_persons or when the policy keeps no accounts. */
int gs_sched_get_person(const gs_sched *s, uint32_t person, gs_person_stats *out);
/* Device time ever on a person's account; 0 where none is kept. O(1). */
int64_t gs_sched_charged_ns(const gs_sched *s, uint32_t person);
/* Both, with what the person may use; of persons 0 .. n-1. Those there are none of are zero. */
void gs_sched_get_persons(const gs_sched *s, gs_person_view *out, uint32_t n);
void gs_sched_get_stats(const gs_sched *s, gs_sched_stats *out);
/* The step that was committed or suspended last; its n is 0 before the first one. */
const gs_step_record *gs_sched_last_step(const gs_sched *s);
/* Hash over every decision so far: same seed and events -> same value. */
uint64_t gs_sched_decision_hash(const gs_sched *s);
/* All invariants, the KV ledger's included. GS_OK, or GS_ERR_INTERNAL with a sentence. */
int gs_sched_check(const gs_sched *s, char *err, size_t errlen);

#endif
