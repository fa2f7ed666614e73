/*
 * First come, first served: decodes first, then prefill chunks, both in arrival order, then new
 * sequences (the order of Sarathi-Serve, OSDI'24, Algorithm 3). KV runs out by design: sequences
 * are admitted for what they know and 10 %, not for the longest answer they could give, and the
 * latest arrival gives its blocks back when the bet is lost (recompute as in vLLM, SOSP'23 §4.5).
 *
 * Why something always moves. A sequence that needs a block takes it from the latest arrival that
 * may be preempted; if that is itself, it keeps what it has and waits for the others. So nothing
 * moves only if no running sequence has a victim but itself. Sequences at the preemption limit are
 * no victims, but they were admitted only when the full length of all such sequences fitted
 * together, so they never lack a block once the others are gone. What is left is one sequence
 * alone that is longer than the pool: it ends with GS_ERR_KV_FULL, also where it had to give its
 * blocks back after it had outgrown them, and waits for a pool that is free and still too small.
 * Paused sequences are left out, and whatever they hold goes to the others first.
 */
#include "sched/sched_impl.h"

#include "base/err.h"

/* A paused one, else the latest arrival that may be preempted for q; NULL if there is none but q.
 */
static gs_sched_seq *find_victim(const gs_sched *s, const gs_sched_seq *q) {
    gs_sched_seq *v = gs_sched_core_paused(s, -1);
    if (v)
        return v;
    v = s->running.tail;
    while (v && (v->parked || v->n_preempted >= GS_SCHED_MAX_PREEMPTIONS))
        v = v->prev;
    return v == q ? NULL : v;
}

static void plan_running(gs_sched *s, bool decode) {
    gs_sched_seq *next;
    for (gs_sched_seq *q = s->running.head; q && gs_sched_core_budget(s) > 0; q = next) {
        if (q->item < 0 && !q->parked && !q->paused && gs_sched_is_decode(q) == decode &&
            gs_sched_core_budget(s) >= gs_sched_core_least(s, q)) {
            gs_sched_seq *victim = q;
            while (victim && gs_sched_core_extend(s, q, s->cfg.prefill_chunk) < 0) {
                victim = find_victim(s, q);
                if (victim)
                    gs_sched_core_preempt(s, victim);
            }
        }
        next = q->next;
    }
}

/* Blocks that running sequences are expected to take: not for newcomers. */
static uint64_t reserved_blocks(const gs_sched *s) {
    uint64_t n = 0;
    for (const gs_sched_seq *q = s->running.head; q; q = q->next)
        n += gs_kv_seq_lacks(s->kv, q->slot, gs_sched_core_goal(s, q));
    return n;
}

static bool has_room(const gs_sched *s, const gs_sched_seq *q) {
    if (s->n_free_slots == 0)
        return false;
    if (s->running.n == 0)
        return true;
    const uint32_t needs = gs_kv_open_needs(s->kv, q->d.cache_scope, q->d.tokens,
                                            gs_sched_n_known(q), gs_sched_core_goal(s, q));
    return needs + reserved_blocks(s) <= gs_kv_available(s->kv);
}

/* Strictly in order: a later one that is small never passes one that waits for room. */
static void admit_waiting(gs_sched *s) {
    gs_sched_seq *q, *v;
    while ((q = gs_sched_core_first(&s->waiting)) &&
           gs_sched_core_budget(s) >= gs_sched_core_least(s, q)) {
        while (!has_room(s, q) && (v = gs_sched_core_paused(s, -1)))
            gs_sched_core_preempt(s, v);
        if (!has_room(s, q) || gs_sched_core_admit(s, q, s->cfg.prefill_chunk) < 0)
            break;
    }
}

/* The latest arrival that is not paused; NULL: all are. */
static gs_sched_seq *last_moving(const gs_sched *s) {
    gs_sched_seq *q = s->running.tail;
    while (q && q->paused)
        q = q->prev;
    return q;
}

static void fcfs_plan(gs_sched *s, int64_t now_ns) {
    (void)now_ns;
    for (;;) {
        plan_running(s, true);
        plan_running(s, false);
        /* Who was preempted in this step does not come back in it, unless nobody is left. */
        if (s->plan.n_preempted == 0 || s->plan.n_items == 0)
            admit_waiting(s);
        if (s->plan.n_items > 0)
            break;
        gs_sched_seq *alone = s->running.n > 0 ? last_moving(s) : gs_sched_core_first(&s->waiting);
        if (!alone)
            break;
        gs_sched_core_end(s, alone, GS_END_ERROR, GS_ERR_KV_FULL);
    }
}

const gs_policy_ops gs_policy_fcfs = {.name = "fcfs", .plan = fcfs_plan};
