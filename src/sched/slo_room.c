/*
 * Seats and KV blocks: who may start, and who gives way. A sequence is admitted for what it is
 * expected to need, the reserve of other classes stays free, and only then are blocks taken from
 * others: paused ones and background first, then documents that have not answered yet. Nobody is
 * preempted after the first token here; a pool that would deadlock is left to the fallback
 * (policy_slo.c).
 */
#include "sched/slo_impl.h"

#include "base/err.h"

#define RANK_BACKGROUND 2
#define RANK_ALL        4

/* Lower is taken first; 0: not to be taken for q. */
static int victim_rank(const gs_sched *s, const gs_sched_seq *v, const gs_sched_seq *q) {
    if (v == q || v->parked)
        return 0;
    if (v->paused)
        return 1;
    if (v->n_preempted >= GS_SCHED_MAX_PREEMPTIONS || !slo_interactive(s, q))
        return 0;
    if (!slo_interactive(s, v))
        return RANK_BACKGROUND;
    if (v->n_output > 0 || v->d.cls <= q->d.cls)
        return 0;
    return v->d.cls == GS_CLASS_DOCUMENT ? 3 : RANK_ALL;
}

/* Least recomputation per block that comes free; among documents first the person who has used
 * most. Lower is better. */
static double victim_price(const gs_sched *s, const gs_sched_seq *v) {
    const uint32_t n_freed = gs_kv_seq_exclusive(s->kv, v->slot);
    if (n_freed == 0)
        return 1e30;
    const double again =
        gs_cost_prefill(&s->cost, 0, v->n_computed > 0 ? v->n_computed : 1, 128) / n_freed;
    return v->d.cls == GS_CLASS_DOCUMENT ? again - slo_person_of(s, v)->counter_ns * 1e3 : again;
}

static gs_sched_seq *find_victim(const gs_sched *s, const gs_sched_seq *q, int max_rank) {
    gs_sched_seq *best = NULL;
    int best_rank = 0;
    double best_price = 0.0;
    for (gs_sched_seq *v = s->running.head; v; v = v->next) {
        const int rank = victim_rank(s, v, q);
        if (rank == 0 || rank > max_rank || (best && rank > best_rank))
            continue;
        const double price = victim_price(s, v);
        if (!best || rank < best_rank || price < best_price) {
            best = v;
            best_rank = rank;
            best_price = price;
        }
    }
    return best;
}

static void preempt(slo_step *t, gs_sched_seq *v) {
    slo_person_of(t->s, v)->n_running -= !v->paused;
    gs_sched_core_preempt(t->s, v);
    gs_sched_plan_cost(&t->s->plan, &t->x); /* it may have been planned already */
}

int slo_extend(slo_step *t, gs_sched_seq *q, int32_t n) {
    gs_sched *s = t->s;
    int32_t n_got;
    while ((n_got = gs_sched_core_extend(s, q, n)) < 0) {
        gs_sched_seq *v = find_victim(s, q, RANK_ALL);
        if (!v) {
            q->x.wait_now = GS_WAIT_KV;
            return n_got;
        }
        preempt(t, v);
    }
    const gs_plan_item *it = &s->plan.items[q->item];
    gs_cost_step_add(&t->x, it->n_tokens, it->pos, !it->prefill, it->sample);
    return n_got;
}

/* ---- starting ---------------------------------------------------------------------------------*/

static int32_t kept_seats(const gs_sched *s, gs_class c) {
    const int32_t most = s->cfg.max_seqs / 8; /* a small machine keeps none free */
    return s->classes[c].seats_kept < most ? s->classes[c].seats_kept : most;
}

/* Slots that q may take without touching those kept for other classes. */
static int32_t free_seats(const gs_sched *s, const gs_sched_seq *q) {
    int32_t n = s->n_free_slots;
    for (int c = 0; c < GS_CLASS_COUNT && slo_rule(s, GS_RULE_RESERVE); c++) {
        const int32_t kept = kept_seats(s, (gs_class)c) - s->stats.n_running_by_class[c];
        if (c != (int)q->d.cls && kept > 0)
            n -= kept;
    }
    return n;
}

bool slo_person_full(const gs_sched *s, const gs_sched_seq *q) {
    const slo_person *u = slo_person_of(s, q);
    const int32_t most = slo_config_of(s, u)->max_running;
    return most > 0 && u->n_running >= most;
}

static gs_wait find_seat(slo_step *t, gs_sched_seq *q) {
    gs_sched *s = t->s;
    const gs_class_config *k = &s->classes[q->d.cls];
    const slo_person *u = slo_person_of(s, q);
    gs_sched_seq *v;
    while (k->seats > 0 && s->stats.n_running_by_class[q->d.cls] >= k->seats) {
        if (!(v = gs_sched_core_paused(s, (int)q->d.cls)))
            return GS_WAIT_SEATS;
        preempt(t, v);
    }
    if (slo_person_full(s, q))
        return GS_WAIT_PERSON;
    /* Where others come and go, one person never holds all seats. */
    if (t->now_ns - t->p->accounts->switched_ns < SLO_COMPANY_NS &&
        t->p->accounts->switched_ns > 0 && slo_rule(s, GS_RULE_FAIRNESS) && s->cfg.max_seqs >= 4 &&
        u->n_running >= s->cfg.max_seqs - s->cfg.max_seqs / 4)
        return GS_WAIT_PERSON;
    if (free_seats(s, q) > 0)
        return GS_WAIT_NONE;
    v = find_victim(s, q, RANK_BACKGROUND);
    const gs_class b = GS_CLASS_BACKGROUND;
    if (!v || (!v->paused && s->stats.n_running_by_class[b] <= kept_seats(s, b)))
        return GS_WAIT_SEATS;
    preempt(t, v);
    return free_seats(s, q) > 0 ? GS_WAIT_NONE : GS_WAIT_SEATS;
}

/* Positions it should find room for: an interactive answer is to come to its end. */
static int32_t goal_of(const gs_sched *s, const gs_sched_seq *q) {
    const int32_t least = gs_sched_core_goal(s, q);
    if (!slo_interactive(s, q) || q->d.prefill_only)
        return least;
    const int32_t full = gs_sched_n_full(q);
    const int32_t expect = gs_sched_n_known(q) + (int32_t)slo_expected_output(s, q);
    const int32_t goal = expect > least ? expect : least;
    return goal < full ? goal : full;
}

/* Blocks that running sequences are still expected to take, in all and of one class with what
 * they hold; and what other classes' reserves still lack. */
typedef struct room {
    uint64_t expected, of_class, reserve;
} room;

static room look_around(const gs_sched *s, const gs_sched_seq *q) {
    room r = {0};
    uint64_t held[GS_CLASS_COUNT] = {0};
    for (const gs_sched_seq *o = s->running.head; o; o = o->next) {
        int32_t n_blocks;
        gs_kv_seq_blocks(s->kv, o->slot, &n_blocks);
        const uint64_t lacks = gs_kv_seq_lacks(s->kv, o->slot, goal_of(s, o));
        r.expected += lacks;
        held[o->d.cls] += (uint64_t)n_blocks;
        r.of_class += o->d.cls == q->d.cls ? lacks : 0;
    }
    r.of_class += held[q->d.cls];
    for (int c = 0; c < GS_CLASS_COUNT && slo_rule(s, GS_RULE_RESERVE); c++) {
        const uint64_t kept = (uint64_t)(s->classes[c].kv_reserve * s->n_blocks);
        if (c != (int)q->d.cls && kept > held[c])
            r.reserve += kept - held[c];
    }
    return r;
}

/* Blocks that victims for q hold alone: preempting is only worth it if that is enough. */
static uint64_t obtainable(const gs_sched *s, const gs_sched_seq *q) {
    uint64_t n = 0;
    for (const gs_sched_seq *v = s->running.head; v; v = v->next)
        if (victim_rank(s, v, q) > 0)
            n += gs_kv_seq_exclusive(s->kv, v->slot) +
                 gs_kv_seq_lacks(s->kv, v->slot, goal_of(s, v));
    return n;
}

static uint32_t blocks_needed(const gs_sched *s, const gs_sched_seq *q) {
    return gs_kv_open_needs(s->kv, q->d.cache_scope, q->d.tokens, gs_sched_n_known(q),
                            goal_of(s, q));
}

static bool find_blocks(slo_step *t, gs_sched_seq *q) {
    gs_sched *s = t->s;
    if (s->running.n == 0)
        return true; /* alone, it gets all there is */
    uint32_t needs = blocks_needed(s, q);
    room r = look_around(s, q);
    const double share = s->classes[q->d.cls].kv_share * s->n_blocks;
    while (slo_rule(s, GS_RULE_RESERVE) && s->stats.n_running_by_class[q->d.cls] > 0 &&
           (double)(r.of_class + needs) > share) {
        gs_sched_seq *v = gs_sched_core_paused(s, (int)q->d.cls);
        if (!v)
            return false;
        preempt(t, v);
        r = look_around(s, q);
        needs = blocks_needed(s, q);
    }
    if (needs + r.expected + r.reserve > gs_kv_available(s->kv) + obtainable(s, q))
        return false;
    while (needs + r.expected + r.reserve > gs_kv_available(s->kv)) {
        gs_sched_seq *v = find_victim(s, q, RANK_ALL);
        if (!v)
            return s->running.n == 0;
        preempt(t, v);
        r = look_around(s, q);
        needs = blocks_needed(s, q); /* what the victim shared with q counts as obtainable now */
    }
    return true;
}

int slo_start(slo_step *t, gs_sched_seq *q, int32_t n) {
    gs_sched *s = t->s;
    /* No skipping: what is too large to start now would wait for ever behind small ones. */
    if (t->kv_blocked && q->d.cls >= t->kv_blocked_by)
        return -(int)GS_WAIT_KV;
    const gs_wait seat = find_seat(t, q);
    if (seat != GS_WAIT_NONE)
        return -(int)seat;
    if (!find_blocks(t, q) || gs_sched_core_admit(s, q, n) < 0) {
        t->kv_blocked = true;
        t->kv_blocked_by = q->d.cls;
        return -(int)GS_WAIT_KV;
    }
    slo_person_of(s, q)->n_running++;
    const gs_plan_item *it = &s->plan.items[q->item];
    gs_cost_step_add(&t->x, it->n_tokens, it->pos, !it->prefill, it->sample);
    return it->n_tokens;
}
