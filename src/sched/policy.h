/*
 * Scheduling policy: which sequences advance in the next step. One of the four vtables.
 *
 * The core (sched.c, sched_core.c) keeps states, KV, ids, ends and statistics right whatever a
 * policy decides; the policy only chooses, through the gs_sched_core_* calls of sched_impl.h.
 * A policy is pure like the scheduler: no clock, no I/O, no allocation.
 */
#ifndef GS_SCHED_POLICY_H
#define GS_SCHED_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sched/sched.h"

typedef struct gs_sched_seq gs_sched_seq; /* sched_impl.h */

struct gs_policy_ops {
    const char *name;
    /* Fills the step. Must plan at least one item, or end a sequence, while any is running or
     * waiting and may run now; else it sets the plan's wake_ns (GS_NEVER_NS before the call). */
    void (*plan)(gs_sched *s, int64_t now_ns);

    /* ---- optional: NULL means the default in brackets ---- */
    bool modes; /* plan looks at gs_sched.work and keeps gs_sched.mode [mixed alone] */
    /* Fills a need that is zero but for the points in time, which are never. [all that is there
     * counts as prompts] */
    void (*need)(gs_sched *s, int64_t now_ns, gs_sched_need *out);
    /* Bytes of zeroed state that gs_sched_policy_state returns; max_persons etc. size it. [0] */
    size_t (*state_bytes)(const gs_sched_config *cfg);
    void (*init)(gs_sched *s);  /* once, after state_bytes were given [nothing] */
    void (*leave)(gs_sched *s); /* the scheduler is being freed, with all its sequences [nothing] */
    /* The class that a sequence is served as. [d->cls] */
    gs_class (*classify)(const gs_sched *s, const gs_seq_desc *d, int32_t n_cached);
    /* After a sequence passed the core's checks: GS_OK or a refusal, with out filled. [GS_OK] */
    int (*admit)(gs_sched *s, const gs_seq_desc *d, int64_t now_ns, gs_admission *out);
    void (*on_submit)(gs_sched *s, gs_sched_seq *q, int64_t now_ns); /* [nothing] */
    /* Before the core applies a step's results: plan and sequences are as they were planned;
     * elapsed_ns includes the time before a suspension. Not called for a failed step. [nothing] */
    void (*on_measured)(gs_sched *s, int64_t elapsed_ns, int64_t now_ns);
    void (*on_suspend)(gs_sched *s); /* the step in flight was put aside [nothing] */
    void (*on_resume)(gs_sched *s);  /* and is the plan again [nothing] */
    /* An item's part of the time of the plan in flight, in any unit. [tokens] */
    double (*weight)(const gs_sched *s, int32_t item);
    int (*set_person)(gs_sched *s, uint32_t person, const gs_person_config *cfg); /* [refused] */
    int (*get_person)(const gs_sched *s, uint32_t person, gs_person_stats *out);  /* [refused] */
    int64_t (*charged_ns)(const gs_sched *s, uint32_t person);                    /* [0] */
    int (*charge)(gs_sched *s, uint32_t person, int64_t ns, int64_t now_ns);      /* [refused] */
    /* What a person may use. [gs_slo_config.person] */
    void (*person_config)(const gs_sched *s, uint32_t person, gs_person_config *out);
    /* After the core has applied the results; ended sequences are gone from the lists. [nothing] */
    void (*on_commit)(gs_sched *s, const gs_step_result *r, int64_t now_ns);
    void (*on_pause)(gs_sched *s, gs_sched_seq *q);          /* q->paused has changed [nothing] */
    void (*on_end)(gs_sched *s, const gs_sched_seq *q);      /* [nothing] */
    bool (*should_yield)(const gs_sched *s, int64_t now_ns); /* [false] */
    /* The policy's own invariants, after the core's. [GS_OK] */
    int (*check)(const gs_sched *s, char *err, size_t errlen);
};

/* "fcfs": decodes first, then chunked prefill in arrival order; the fallback of "slo". */
extern const gs_policy_ops gs_policy_fcfs;
/* "slo": classes with targets, millisecond budgets, fairness between persons (docs/scheduling.md).
 */
extern const gs_policy_ops gs_policy_slo;

const gs_policy_ops *gs_policy_find(const char *name); /* NULL: none of that name */

#endif
