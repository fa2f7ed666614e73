/*
 * What policies build a step from: extend, admit, preempt, end. Each call leaves lists, slots, KV
 * and plan consistent, so that no policy can break an invariant by choosing badly.
 */
#include "sched/sched_impl.h"

#include "base/err.h"

/* ---- lists, ids, decision hash --------------------------------------------------------------- */

static void link_after(gs_sched_list *l, gs_sched_seq *at, gs_sched_seq *q) {
    q->prev = at;
    q->next = at ? at->next : l->head;
    if (q->prev)
        q->prev->next = q;
    else
        l->head = q;
    if (q->next)
        q->next->prev = q;
    else
        l->tail = q;
    l->n++;
}

void gs_sched_list_append(gs_sched_list *l, gs_sched_seq *q) {
    link_after(l, l->tail, q);
}

/* A new sequence goes to the end at once, a preempted one passes only younger ones: the search
 * starts at the end that is nearer in either case. */
void gs_sched_list_insert(gs_sched_list *l, gs_sched_seq *q) {
    gs_sched_seq *at = l->tail;
    if (!at || at->ordinal < q->ordinal) {
        link_after(l, at, q);
        return;
    }
    gs_sched_seq *before = l->head;
    while (before->ordinal < q->ordinal)
        before = before->next;
    link_after(l, before->prev, q);
}

void gs_sched_list_remove(gs_sched_list *l, gs_sched_seq *q) {
    if (q->prev)
        q->prev->next = q->next;
    else
        l->head = q->next;
    if (q->next)
        q->next->prev = q->prev;
    else
        l->tail = q->prev;
    q->prev = q->next = NULL;
    l->n--;
}

/* SplitMix64's finaliser (Steele et al., 2014). */
static uint64_t scramble(uint64_t v) {
    v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9u;
    v = (v ^ (v >> 27)) * 0x94d049bb133111ebu;
    return v ^ (v >> 31);
}

gs_sched_seq **gs_sched_id_bucket(const gs_sched *s, gs_seq_id id) {
    return &s->ids[scramble(id) & s->id_mask];
}

gs_sched_seq *gs_sched_find(const gs_sched *s, gs_seq_id id) {
    gs_sched_seq *q = *gs_sched_id_bucket(s, id);
    while (q && q->d.id != id)
        q = q->id_next;
    return q;
}

void gs_sched_mix(gs_sched *s, uint64_t v) {
    s->hash = scramble(s->hash * 0x9e3779b97f4a7c15u + v);
}

/* ---- plan ------------------------------------------------------------------------------------ */

void *gs_sched_policy_state(const gs_sched *s) {
    return s->policy_state;
}

int32_t gs_sched_core_budget(const gs_sched *s) {
    return s->cfg.max_batch_tokens - s->plan.n_tokens;
}

int32_t gs_sched_core_goal(const gs_sched *s, const gs_sched_seq *q) {
    (void)s;
    const int32_t full = gs_sched_n_full(q);
    const int32_t known = gs_sched_n_known(q);
    if (q->n_preempted >= GS_SCHED_MAX_PREEMPTIONS || full - known <= known / 10 + 1)
        return full;
    return known + known / 10 + 1;
}

static void add_item(gs_sched *s, gs_sched_seq *q, int32_t n) {
    gs_plan *p = &s->plan;
    const bool decode = gs_sched_is_decode(q);
    /* Only the newest token's logits are worth a projection to the vocabulary. */
    const bool last = q->n_computed + n == gs_sched_n_known(q);
    gs_plan_item *it = &p->items[p->n_items];
    *it = (gs_plan_item){.id = q->d.id,
                         .user = q->d.user,
                         .slot = q->slot,
                         .pos = q->n_computed,
                         .n_tokens = n,
                         .tokens = q->d.tokens + q->n_computed,
                         .prefill = !decode,
                         .sample = last && !q->d.prefill_only,
                         .n_cached = q->n_cached,
                         .cls = q->d.cls};
    it->blocks = gs_kv_seq_blocks(s->kv, q->slot, &it->n_blocks);
    q->item = p->n_items;
    s->planned[p->n_items++] = q;
    p->n_tokens += n;
    p->n_prefill_tokens += decode ? 0 : n;
}

/* The last item or copy takes the place of the one that goes: their order means nothing. */
static void remove_item(gs_sched *s, gs_sched_seq *q) {
    gs_plan *p = &s->plan;
    if (q->item >= 0) {
        const int32_t last = --p->n_items;
        p->n_tokens -= p->items[q->item].n_tokens;
        p->n_prefill_tokens -= p->items[q->item].prefill ? p->items[q->item].n_tokens : 0;
        p->items[q->item] = p->items[last];
        s->planned[q->item] = s->planned[last];
        s->planned[q->item]->item = q->item;
        q->item = -1;
    }
    if (q->copy >= 0) {
        const int32_t last = --p->n_copies;
        p->copies[q->copy] = p->copies[last];
        for (gs_sched_seq *o = s->running.head; o && q->copy != last; o = o->next)
            if (o->copy == last)
                o->copy = q->copy;
        q->copy = -1;
    }
}

int gs_sched_core_extend(gs_sched *s, gs_sched_seq *q, int32_t n_max) {
    GS_ASSERT(q->state == GS_SCHED_RUNNING && q->item < 0 && !q->parked && n_max >= 1);
    int32_t n = gs_sched_n_known(q) - q->n_computed;
    if (n > n_max)
        n = n_max;
    if (n > gs_sched_core_budget(s))
        n = gs_sched_core_budget(s);
    const int32_t least = gs_sched_core_least(s, q);
    if (n < least)
        n = least;
    GS_ASSERT(n >= 1 && n <= gs_sched_core_budget(s));

    /* A chunk shrinks to the room there is, so that a prompt moves on as far as it can. */
    int32_t n_blocks;
    gs_kv_seq_blocks(s->kv, q->slot, &n_blocks);
    const int64_t room =
        ((int64_t)n_blocks + gs_kv_available(s->kv)) * s->block_tokens - q->n_computed;
    if (room < least)
        return GS_ERR_KV_FULL;
    if (n > room)
        n = (int32_t)room;
    const int grown = gs_kv_seq_grow(s->kv, q->slot, q->n_computed + n);
    GS_ASSERT(grown == GS_OK);
    add_item(s, q, n);
    return n;
}

/* Back to its place in the queue. Its output stays: the next admission computes it again along
 * with the prompt, or finds it in the prefix cache, where closing the slot has left it. */
static void to_waiting(gs_sched *s, gs_sched_seq *q) {
    gs_kv_seq_close(s->kv, q->slot);
    s->free_slots[s->n_free_slots++] = q->slot;
    gs_sched_list_remove(&s->running, q);
    gs_sched_list_insert(&s->waiting, q);
    s->stats.n_running_by_class[q->d.cls]--;
    s->stats.n_waiting_by_class[q->d.cls]++;
    s->waiting_tokens += gs_sched_n_known(q);
    q->state = GS_SCHED_WAITING;
    q->slot = -1;
    q->n_computed = 0;
}

int gs_sched_core_admit(gs_sched *s, gs_sched_seq *q, int32_t n_max) {
    GS_ASSERT(q->state == GS_SCHED_WAITING && s->n_free_slots > 0);
    gs_kv_reuse reuse;
    const int32_t slot = s->free_slots[s->n_free_slots - 1];
    const int opened =
        gs_kv_seq_open(s->kv, slot, q->d.cache_scope, q->d.tokens, gs_sched_n_known(q), &reuse);
    GS_ASSERT(opened == GS_OK);
    if (q->d.cls == GS_CLASS_BACKGROUND) /* a night's index is not to flush the day's prompts */
        gs_kv_seq_set_cold(s->kv, slot);
    s->n_free_slots--;
    gs_sched_list_remove(&s->waiting, q);
    gs_sched_list_insert(&s->running, q);
    s->stats.n_waiting_by_class[q->d.cls]--;
    s->stats.n_running_by_class[q->d.cls]++;
    s->waiting_tokens -= gs_sched_n_known(q);
    q->state = GS_SCHED_RUNNING;
    q->slot = slot;
    q->n_computed = reuse.n_cached;
    if (!q->admitted)
        q->n_cached = reuse.n_cached;
    /* A slot without a token in this step would hold shared blocks and a pending copy for
     * nothing: then it is as if it had never been opened. */
    const int n = gs_sched_core_extend(s, q, n_max);
    if (n < 0) {
        to_waiting(s, q);
        return n;
    }
    if (!q->admitted)
        q->x.first_step_ns = s->now_ns;
    q->admitted = true;
    if (reuse.copy.n_tokens > 0) {
        q->copy = s->plan.n_copies;
        s->plan.copies[s->plan.n_copies++] = reuse.copy;
    }
    return n;
}

void gs_sched_core_preempt(gs_sched *s, gs_sched_seq *q) {
    GS_ASSERT(q->state == GS_SCHED_RUNNING && !s->in_flight && !q->parked);
    remove_item(s, q);
    to_waiting(s, q);
    q->look_ns = s->now_ns;
    q->x.wait_now = GS_WAIT_KV;
    if (q->n_high == 0) { /* nothing is lost: it is as if it had never started */
        q->admitted = false;
        q->n_cached = 0;
        q->x.first_step_ns = 0;
        return;
    }
    q->n_preempted++;
    s->plan.n_preempted++;
    s->stats.preemptions++;
    gs_sched_mix(s, q->d.id ^ 0x7072656d70740000u); /* "preempt" */
}

gs_sched_seq *gs_sched_core_first(const gs_sched_list *l) {
    gs_sched_seq *q = l->head;
    while (q && q->paused)
        q = q->next;
    return q;
}

gs_sched_seq *gs_sched_core_paused(const gs_sched *s, int cls) {
    for (gs_sched_seq *q = s->n_paused > 0 ? s->running.tail : NULL; q; q = q->prev)
        if (q->paused && !q->parked && q->item < 0 && (cls < 0 || (int)q->d.cls == cls))
            return q;
    return NULL;
}

/* ---- suspended steps ------------------------------------------------------------------------- */

static void swap_parked(gs_sched *s) {
    const gs_plan plan = s->plan;
    gs_sched_seq **planned = s->planned;
    s->plan = s->parked;
    s->planned = s->parked_planned;
    s->parked = plan;
    s->parked_planned = planned;
}

void gs_sched_core_resume(gs_sched *s) {
    GS_ASSERT(gs_sched_suspended(s) && s->plan.n_items == 0 && !s->in_flight);
    const uint64_t step = s->plan.step;
    const int32_t n_preempted = s->plan.n_preempted;
    swap_parked(s);
    s->parked.n_items = 0;
    s->plan.step = step;
    s->plan.n_preempted = n_preempted;
    s->plan.resume = true;
    s->plan.held_ns = s->plan.saved_ns = 0; /* told with its first stretch */
    s->plan.n_copies = 0;                   /* done before its first layer */
    for (int32_t i = 0; i < s->plan.n_items; i++) {
        s->planned[i]->parked = false;
        s->planned[i]->item = i;
    }
    if (s->policy->on_resume)
        s->policy->on_resume(s);
}

void gs_sched_core_set_beside(gs_sched *s) {
    GS_ASSERT(s->parked.n_items == 0 && s->in_flight);
    for (int32_t i = 0; i < s->plan.n_items; i++) {
        s->planned[i]->item = s->planned[i]->copy = -1;
        s->planned[i]->parked = true;
    }
    s->stats.beside_steps++;
    s->beside_cost = s->step_cost;
    s->in_flight = false;
    s->beside = true;
    swap_parked(s);
    s->plan.n_items = 0;
    if (s->policy->on_suspend)
        s->policy->on_suspend(s);
}

void gs_sched_core_end_beside(gs_sched *s) {
    GS_ASSERT(s->beside && !s->in_flight);
    swap_parked(s);
    s->parked.n_items = 0;
    s->beside = false;
    s->in_flight = true;
    s->step_cost = s->beside_cost;
    for (int32_t i = 0; i < s->plan.n_items; i++) {
        s->planned[i]->parked = false;
        s->planned[i]->item = i;
    }
    if (s->policy->on_resume)
        s->policy->on_resume(s);
}

void gs_sched_core_drop_parked(gs_sched *s) {
    GS_ASSERT(!s->in_flight && !s->beside);
    const int32_t n = s->parked.n_items;
    s->parked.n_items = 0;
    s->stats.discarded_ns += n > 0 ? s->parked_ns : 0;
    s->parked_ns = 0;
    gs_sched_mix(s, 0x64726f70); /* "drop" */
    for (int32_t i = 0; i < n; i++)
        s->parked_planned[i]->parked = false;
    for (int32_t i = 0; i < n; i++)
        if (s->parked_planned[i]->cancelled)
            gs_sched_core_end(s, s->parked_planned[i], GS_END_CANCELLED, GS_OK);
}

void gs_sched_suspend(gs_sched *s, const gs_plan *plan, int64_t elapsed_ns, int64_t now_ns) {
    GS_ASSERT(s->in_flight && plan->step == s->plan.step && plan->may_yield);
    GS_ASSERT(s->parked.n_items == 0);
    int32_t n_left = 0;
    gs_sched_record_step(s, elapsed_ns, now_ns, true);
    for (int32_t i = 0; i < s->plan.n_items; i++) {
        gs_sched_seq *q = s->planned[i];
        q->item = q->copy = -1;
        q->parked = true;
        q->x.n_suspended++;
        n_left += !q->cancelled;
    }
    s->in_flight = false;
    s->stats.suspensions++;
    s->parked_ns += elapsed_ns;
    s->suspended_ns = now_ns;
    s->stats.busy_ns += elapsed_ns > 0 ? elapsed_ns : 0;
    swap_parked(s);
    s->plan.n_items = 0;
    if (s->policy->on_suspend)
        s->policy->on_suspend(s);
    /* Those that wait and were cancelled meanwhile end now, as at a commit. */
    gs_sched_end_cancelled(s);
    if (n_left == 0)
        gs_sched_core_drop_parked(s);
}

void gs_sched_core_end(gs_sched *s, gs_sched_seq *q, gs_end_reason reason, int err) {
    GS_ASSERT(q->state == GS_SCHED_RUNNING || q->state == GS_SCHED_WAITING);
    if (q->state == GS_SCHED_RUNNING) {
        /* A step in flight keeps its items: the caller's copy of the plan points at them. */
        if (!s->in_flight)
            remove_item(s, q);
        gs_kv_seq_close(s->kv, q->slot);
        s->free_slots[s->n_free_slots++] = q->slot;
        gs_sched_list_remove(&s->running, q);
        s->stats.n_running_by_class[q->d.cls]--;
    } else {
        gs_sched_list_remove(&s->waiting, q);
        s->stats.n_waiting_by_class[q->d.cls]--;
        s->waiting_tokens -= gs_sched_n_known(q);
    }
    s->n_cancelled -= q->cancelled;
    s->n_paused -= q->paused;
    GS_ASSERT(!q->parked);
    gs_sched_seq **at = gs_sched_id_bucket(s, q->d.id);
    while (*at != q)
        at = &(*at)->id_next;
    *at = q->id_next;

    q->state = GS_SCHED_ENDED;
    q->cancelled = q->parked = false;
    q->slot = q->item = q->copy = -1;
    q->end = (gs_seq_end){.id = q->d.id,
                          .user = q->d.user,
                          .reason = reason,
                          .err = err,
                          .n_output = q->n_output,
                          .n_cached = q->n_cached,
                          .n_preempted = q->n_preempted};
    gs_sched_fill_explain(q, &q->end.explain);
    q->end.explain.end_ns = s->now_ns;
    gs_sched_list_append(&s->ended, q);
    s->stats.ended++;
    gs_sched_mix(s, q->d.id * 8 + (uint64_t)reason);
    if (s->policy->on_end)
        s->policy->on_end(s, q);
}
