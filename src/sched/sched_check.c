/* The scheduler's invariants, for the simulator, debug builds and tests. */
#include "sched/sched_impl.h"

#include "base/err.h"

static int fail_seq(const gs_sched_seq *q, const char *what, char *err, size_t errlen) {
    return gs_fail(err, errlen, GS_ERR_INTERNAL, "sequence %llu: %s", (unsigned long long)q->d.id,
                   what);
}

static int check_list(const gs_sched_list *l, gs_sched_state state, bool ordered,
                      int32_t by_class[GS_CLASS_COUNT], char *err, size_t errlen) {
    int32_t n = 0;
    const gs_sched_seq *prev = NULL;
    for (const gs_sched_seq *q = l->head; q; prev = q, q = q->next) {
        if (++n > l->n || q->prev != prev)
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "list %d is broken", (int)state);
        if (q->state != state)
            return fail_seq(q, "is on the wrong list", err, errlen);
        if (ordered && prev && prev->ordinal >= q->ordinal)
            return fail_seq(q, "is out of order", err, errlen);
        if (by_class && state != GS_SCHED_FREE)
            by_class[q->d.cls]++;
    }
    if (n != l->n || l->tail != prev)
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "list %d has %d entries, %d counted",
                       (int)state, n, l->n);
    return GS_OK;
}

static int check_running(const gs_sched *s, const gs_sched_seq *q, char *err, size_t errlen) {
    int32_t n_blocks;
    if (q->slot < 0 || q->slot >= s->cfg.max_seqs)
        return fail_seq(q, "runs without a slot", err, errlen);
    for (const gs_sched_seq *o = q->next; o; o = o->next)
        if (o->slot == q->slot)
            return fail_seq(q, "shares its slot", err, errlen);
    gs_kv_seq_blocks(s->kv, q->slot, &n_blocks);
    if (q->n_computed < 0 || q->n_computed >= gs_sched_n_known(q) ||
        q->n_computed > (int64_t)n_blocks * s->block_tokens)
        return fail_seq(q, "has computed more than it knows or holds", err, errlen);
    if (q->n_output > q->d.max_output || gs_sched_n_known(q) > s->cfg.max_context)
        return fail_seq(q, "is longer than allowed", err, errlen);
    if (q->item >= 0 && (!s->in_flight || s->planned[q->item] != q))
        return fail_seq(q, "points at another sequence's item", err, errlen);
    return GS_OK;
}

static int check_plan(const gs_sched *s, char *err, size_t errlen) {
    int32_t n_tokens = 0;
    for (int32_t i = 0; s->in_flight && i < s->plan.n_items; i++) {
        const gs_plan_item *it = &s->plan.items[i];
        const gs_sched_seq *q = s->planned[i];
        n_tokens += it->n_tokens;
        if (q->item != i || q->d.id != it->id || q->slot != it->slot || it->n_tokens < 1 ||
            it->pos != q->n_computed || it->pos + it->n_tokens > gs_sched_n_known(q) ||
            it->pos + it->n_tokens > (int64_t)it->n_blocks * s->block_tokens)
            return fail_seq(q, "does not match its plan item", err, errlen);
    }
    if (s->in_flight && (n_tokens != s->plan.n_tokens || n_tokens > s->cfg.max_batch_tokens))
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "%d tokens planned, %d counted, %d allowed",
                       n_tokens, s->plan.n_tokens, s->cfg.max_batch_tokens);
    return GS_OK;
}

/* What runs beside still has its place in each sequence. */
static int check_beside(const gs_sched *s, char *err, size_t errlen) {
    if (s->beside && s->parked.n_items == 0)
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "the step beside is empty");
    for (int32_t i = 0; s->beside && i < s->parked.n_items; i++) {
        const gs_plan_item *it = &s->parked.items[i];
        const gs_sched_seq *q = s->parked_planned[i];
        if (!q->parked || q->item >= 0 || q->d.id != it->id || q->slot != it->slot ||
            it->pos != q->n_computed)
            return fail_seq(q, "does not match its item beside", err, errlen);
    }
    return GS_OK;
}

/* The parts of the newest step are the whole of it. */
static int check_step(const gs_step_record *r, char *err, size_t errlen) {
    int64_t ns = 0;
    for (int32_t i = 0; i < r->n_parts; i++) {
        const gs_step_part *p = &r->parts[i];
        ns += p->ns;
        if (p->ns < 0 || p->n_seqs < 1 || p->n_tokens < p->n_seqs)
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "part %d of a step is wrong", i);
    }
    if (ns != r->ns)
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "a step's parts do not sum to its time");
    return GS_OK;
}

int gs_sched_check(const gs_sched *s, char *err, size_t errlen) {
    int32_t n_waiting[GS_CLASS_COUNT] = {0}, n_running[GS_CLASS_COUNT] = {0};
    int rc = check_list(&s->free, GS_SCHED_FREE, false, NULL, err, errlen);
    if (rc == GS_OK)
        rc = check_list(&s->ended, GS_SCHED_ENDED, false, NULL, err, errlen);
    if (rc == GS_OK)
        rc = check_list(&s->waiting, GS_SCHED_WAITING, true, n_waiting, err, errlen);
    if (rc == GS_OK)
        rc = check_list(&s->running, GS_SCHED_RUNNING, true, n_running, err, errlen);
    if (rc != GS_OK)
        return rc;
    if (s->free.n + s->ended.n + s->waiting.n + s->running.n != s->n_records ||
        s->running.n + s->n_free_slots != s->cfg.max_seqs)
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "records or slots are missing");
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        if (n_waiting[c] != s->stats.n_waiting_by_class[c] ||
            n_running[c] != s->stats.n_running_by_class[c])
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "class %s is miscounted",
                           gs_class_name((gs_class)c));

    int64_t waiting_tokens = 0;
    int32_t n_cancelled = 0, n_parked = 0, n_paused = 0;
    for (const gs_sched_seq *q = s->waiting.head; q; q = q->next) {
        waiting_tokens += gs_sched_n_known(q);
        n_cancelled += q->cancelled;
        n_paused += q->paused;
        if (q->slot >= 0 || q->item >= 0 || q->n_computed != 0 || gs_sched_find(s, q->d.id) != q)
            return fail_seq(q, "waits and holds something", err, errlen);
    }
    for (const gs_sched_seq *q = s->running.head; q; q = q->next) {
        n_cancelled += q->cancelled;
        n_parked += q->parked;
        n_paused += q->paused;
        if (gs_sched_find(s, q->d.id) != q)
            return fail_seq(q, "is not found by its id", err, errlen);
        if (q->parked && q->item >= 0)
            return fail_seq(q, "is in two steps", err, errlen);
        if ((rc = check_running(s, q, err, errlen)) != GS_OK)
            return rc;
    }
    if (waiting_tokens != s->waiting_tokens || n_cancelled != s->n_cancelled ||
        (n_cancelled > 0 && !s->in_flight && s->parked.n_items == 0))
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "waiting tokens or cancels are miscounted");
    if (n_paused != s->n_paused)
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "paused sequences are miscounted");
    if (n_parked != s->parked.n_items)
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "the suspended step has lost a sequence");
    if ((rc = check_plan(s, err, errlen)) != GS_OK ||
        (rc = check_beside(s, err, errlen)) != GS_OK ||
        (rc = check_step(&s->last_step, err, errlen)) != GS_OK)
        return rc;
    if (s->policy->check && (rc = s->policy->check(s, err, errlen)) != GS_OK)
        return rc;
    return gs_kv_check(s->kv, err, errlen);
}
