/*
 * Inside of the scheduler, shared by the core and the policies. Private to sched/.
 *
 * Every living sequence is on exactly one list: waiting or running, both in submission order (a
 * preempted sequence returns to its place, which is at the waiting list's front). An ended one is
 * on the ended list until gs_sched_next_end pops it. Records are preallocated.
 */
#ifndef GS_SCHED_SCHED_IMPL_H
#define GS_SCHED_SCHED_IMPL_H

#include "sched/policy.h"
#include "sched/sched.h"

/* After this many preemptions a sequence is no victim any more. */
#define GS_SCHED_MAX_PREEMPTIONS 2

typedef enum gs_sched_state {
    GS_SCHED_FREE,
    GS_SCHED_WAITING,
    GS_SCHED_RUNNING,
    GS_SCHED_ENDED
} gs_sched_state;

/* What the step being planned may hold. */
typedef enum gs_work { GS_WORK_ALL, GS_WORK_PROMPTS, GS_WORK_TOKENS, GS_WORK_NONE } gs_work;

struct gs_sched_seq {
    gs_seq_desc d; /* max_output already cut to the context */
    gs_sched_state state;
    uint64_t ordinal; /* submission order, unique */
    int32_t slot;     /* while running, else -1 */
    int32_t item;     /* index in the plan being built or in flight, else -1 */
    int32_t copy;     /* index in that plan's copies, else -1 */
    int32_t n_output;
    int32_t n_computed; /* positions in the KV pool; 0 while waiting */
    int32_t n_high;     /* most positions ever computed: below it, work is recomputed */
    int32_t n_cached;   /* at first admission */
    int32_t n_preempted;
    bool admitted;     /* has run before */
    bool cancelled;    /* between plan and commit: ends at commit */
    bool parked;       /* in the suspended step or the one beside: takes no other part */
    bool paused;       /* not planned, and the first to give its blocks or seat away */
    bool relegated;    /* policy's: will miss its first-token target anyway */
    int32_t n_peek;    /* prompt tokens in the prefix cache when it came */
    int32_t place;     /* policy's: of a waiting text among its person's; 0: by arrival alone */
    int64_t passed_ns; /* policy's: when a shorter, later text was first taken before it; 0 */
    uint64_t tried;    /* policy's: last step in which it was considered */
    int64_t submit_ns;
    int64_t last_token_ns; /* 0: none yet */
    int64_t look_ns;       /* waiting time is accounted until here */
    gs_explain x;
    gs_sched_seq *prev, *next; /* of its list */
    gs_sched_seq *id_next;     /* of its id bucket */
    gs_seq_end end;            /* once ended */
};

typedef struct gs_sched_list {
    gs_sched_seq *head, *tail;
    int32_t n;
} gs_sched_list;

struct gs_sched {
    gs_sched_config cfg;
    const gs_policy_ops *policy;
    void *policy_state;
    gs_sched *next_member; /* of its accounts */
    gs_sched_outside outside;
    int64_t plan_ns;       /* when the last step was planned; 0: never */
    int64_t background_ns; /* turns.c: the same for one of background alone */
    gs_kv *kv;
    int32_t block_tokens;
    uint32_t n_blocks;

    gs_sched_seq *records; /* [n_records] */
    int32_t n_records;
    gs_sched_list free, waiting, running, ended;
    gs_sched_seq **ids; /* [id_mask + 1] buckets */
    uint64_t id_mask;
    int32_t *free_slots; /* [max_seqs] stack */
    int32_t n_free_slots;

    gs_plan plan;           /* being built, or in flight */
    gs_sched_seq **planned; /* [max_seqs] the sequence of each item */
    gs_plan parked;         /* the suspended step, or the one that runs beside: n_items > 0 */
    gs_sched_seq **parked_planned;
    int64_t parked_ns;        /* device time already spent on it, or on the resumed plan */
    int64_t suspended_ns;     /* when */
    bool beside;              /* parked is a step that runs beside the others (mode split) */
    gs_cost_step beside_cost; /* of it */
    bool in_flight;           /* planned with items and not yet committed */
    int32_t n_cancelled;      /* sequences that end at commit */
    int32_t n_paused;         /* living ones */

    uint64_t last_ordinal;
    uint64_t last_plan; /* empty ones count too: what was tried in one may be tried in the next */
    int64_t waiting_tokens; /* known tokens of all waiting sequences */
    double step_ns;         /* moving average; < 0 before the first step */
    gs_class_config classes[GS_CLASS_COUNT];
    gs_slo_config slo;
    gs_cost cost;
    gs_cost_step step_cost; /* of the plan in flight */
    gs_mode_view mode;      /* the policy's */
    bool splits;            /* somebody calls plan_beside */
    gs_mode_why no_split;   /* why not */
    gs_work work;           /* of the plan being built */
    gs_cost_part part;      /* what it has of the device */
    int64_t now_ns;         /* of the latest plan */
    uint64_t hash;
    gs_sched_stats stats;
    gs_step_record last_step;
};

/* Tokens known so far: prompt and output. */
static inline int32_t gs_sched_n_known(const gs_sched_seq *q) {
    return q->d.n_prompt + q->n_output;
}
/* Most positions it can ever need: the last token of an answer is never fed back. */
static inline int32_t gs_sched_n_full(const gs_sched_seq *q) {
    return q->d.n_prompt + (q->d.max_output > 0 ? q->d.max_output - 1 : 0);
}
/* Everything known but the last output token is in the pool: the next step is one token. */
static inline bool gs_sched_is_decode(const gs_sched_seq *q) {
    return q->n_output > 0 && q->n_computed == gs_sched_n_known(q) - 1;
}

/* What a plan's items cost by the model. */
void gs_sched_plan_cost(const gs_plan *p, gs_cost_step *out);
/* Their time on the part of the device that the plan being built has. */
static inline double gs_sched_predict(const gs_sched *s, const gs_cost_step *x) {
    return gs_cost_predict_on(&s->cost, x, s->part);
}
/* A step was put aside and waits to be gone on with. */
static inline bool gs_sched_suspended(const gs_sched *s) {
    return s->parked.n_items > 0 && !s->beside;
}

/* ---- for policies; the plan is s->plan ------------------------------------------------------ */

void *gs_sched_policy_state(const gs_sched *s);
/* Tokens that the step may still take. */
int32_t gs_sched_core_budget(const gs_sched *s);
/* Tokens that q takes at least if it takes part in a step: all that are left of a prompt that can't
 * be cut. */
static inline int32_t gs_sched_core_least(const gs_sched *s, const gs_sched_seq *q) {
    return s->cfg.whole_prompts ? gs_sched_n_known(q) - q->n_computed : 1;
}
/* Positions q should find room for before it starts or returns: what it knows and 10 % more, or
 * its full length once it may not be preempted any more. */
int32_t gs_sched_core_goal(const gs_sched *s, const gs_sched_seq *q);
/* Plans the next tokens of a running sequence that is not in the plan: at most n_max >= 1, fewer
 * when the KV pool gives no more; with whole_prompts core_least, which the budget has to hold.
 * Returns how many, or GS_ERR_KV_FULL: nothing changed. */
int gs_sched_core_extend(gs_sched *s, gs_sched_seq *q, int32_t n_max);
/* Gives a waiting sequence a slot and plans its first tokens; as core_extend. A slot is free. */
int gs_sched_core_admit(gs_sched *s, gs_sched_seq *q, int32_t n_max);
/* Takes a running sequence out of the plan, frees its KV and puts it back to waiting. */
void gs_sched_core_preempt(gs_sched *s, gs_sched_seq *q);
/* With a suspended step and an empty plan: makes that step the plan again. */
void gs_sched_core_resume(gs_sched *s);
/* Makes the plan in flight the step beside, and back. */
void gs_sched_core_set_beside(gs_sched *s);
void gs_sched_core_end_beside(gs_sched *s);
/* Gives the suspended step up: its sequences are as they were before it. */
void gs_sched_core_drop_parked(gs_sched *s);
/* The first of a list that may move; NULL: all are paused. */
gs_sched_seq *gs_sched_core_first(const gs_sched_list *l);
/* A paused sequence that holds blocks and a seat, of class cls (< 0: of any). */
gs_sched_seq *gs_sched_core_paused(const gs_sched *s, int cls);
/* Ends a living sequence, in whatever state. */
void gs_sched_core_end(gs_sched *s, gs_sched_seq *q, gs_end_reason reason, int err);

/* ---- core internals ------------------------------------------------------------------------- */

void gs_sched_list_append(gs_sched_list *l, gs_sched_seq *q);
void gs_sched_list_insert(gs_sched_list *l, gs_sched_seq *q); /* by ordinal */
void gs_sched_list_remove(gs_sched_list *l, gs_sched_seq *q);
gs_sched_seq **gs_sched_id_bucket(const gs_sched *s, gs_seq_id id);
gs_sched_seq *gs_sched_find(const gs_sched *s, gs_seq_id id);
/* Ends what was cancelled while a step ran, except in a suspended step. */
void gs_sched_end_cancelled(gs_sched *s);
void gs_sched_fill_explain(const gs_sched_seq *q, gs_explain *out);
/* What holding newcomers for company did to the plan that is ready. */
void gs_sched_count_held(gs_sched *s);
/* What q waits for, which finds no room in the plan: prompts of a more urgent class in it, other
 * prompts, or streams alone. */
gs_wait gs_sched_full_step(const gs_sched *s, const gs_sched_seq *q);
/* The stretch that begins for each sequence with the plan that is ready. */
void gs_sched_mark_spans(gs_sched *s, int64_t now_ns);
/* What each sequence's record learns from the plan's time, and who was beside it. */
void gs_sched_explain_step(gs_sched *s, int64_t elapsed_ns);
/* The same for those in the plan alone. */
void gs_sched_mark_items(gs_sched *s, int64_t now_ns);
/* Device time of a step that took elapsed_ns: with another one beside it, by its threads. */
int64_t gs_sched_device_ns(const gs_sched *s, int64_t elapsed_ns);
/* Fills last_step from the plan in flight, which took elapsed_ns since it began or went on. */
void gs_sched_record_step(gs_sched *s, int64_t elapsed_ns, int64_t now_ns, bool gave_way);
/* Adds a value to the decision hash. */
void gs_sched_mix(gs_sched *s, uint64_t v);

#endif
