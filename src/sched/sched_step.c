/* What the scheduler tells of a step: its record (sched/step.h) and what holding newcomers did. */
#include "sched/sched_impl.h"

static gs_phase phase_of(const gs_sched_seq *q, const gs_plan_item *it) {
    if (q->d.prefill_only)
        return GS_PHASE_EMBED;
    return it->prefill ? GS_PHASE_PREFILL : GS_PHASE_DECODE;
}

static gs_step_part *part_of(gs_step_record *r, int32_t cls, gs_phase phase) {
    for (int32_t i = 0; i < r->n_parts; i++)
        if (r->parts[i].cls == cls && r->parts[i].phase == (int32_t)phase)
            return &r->parts[i];
    gs_step_part *p = &r->parts[r->n_parts++];
    *p = (gs_step_part){.cls = cls, .phase = (int32_t)phase};
    return p;
}

static double weight_of(const gs_sched *s, int32_t item) {
    if (s->policy->weight)
        return s->policy->weight(s, item);
    return (double)s->plan.items[item].n_tokens;
}

int64_t gs_sched_device_ns(const gs_sched *s, int64_t elapsed_ns) {
    if (!s->plan.beside || elapsed_ns < 0)
        return elapsed_ns;
    return elapsed_ns * s->plan.max_threads / s->cfg.n_threads;
}

void gs_sched_record_step(gs_sched *s, int64_t elapsed_ns, int64_t now_ns, bool gave_way) {
    const gs_plan *p = &s->plan;
    gs_step_record *r = &s->last_step;
    const int64_t ns = elapsed_ns > 0 ? gs_sched_device_ns(s, elapsed_ns) : 0;
    *r = (gs_step_record){.n = p->step,
                          .end_ns = now_ns,
                          .ns = ns,
                          .predicted_ns = gs_sched_device_ns(s, p->predicted_ns),
                          .limit_ns = gs_sched_device_ns(s, p->limit_ns),
                          .held_ns = p->held_ns,
                          .saved_ns = p->saved_ns,
                          .gave_way = gave_way,
                          .resumed = p->resume};
    double sum = 0.0;
    for (int32_t i = 0; i < p->n_items; i++)
        sum += weight_of(s, i);
    int64_t left = ns;
    for (int32_t i = 0; i < p->n_items; i++) {
        const gs_plan_item *it = &p->items[i];
        gs_step_part *part = part_of(r, (int32_t)it->cls, phase_of(s->planned[i], it));
        const int64_t share = (int64_t)((double)ns * weight_of(s, i) / sum);
        part->n_seqs++;
        part->n_tokens += it->n_tokens;
        part->ns += share;
        left -= share;
    }
    if (r->n_parts > 0)
        r->parts[0].ns += left; /* what rounding left, or took too much */
}

/* It starts with this step, and was held. */
static bool was_held(const gs_sched *s, const gs_sched_seq *q) {
    return q->x.n_steps == 0 && q->x.first_step_ns == s->now_ns && q->x.wait_ns[GS_WAIT_WINDOW] > 0;
}

void gs_sched_count_held(gs_sched *s) {
    gs_plan *p = &s->plan;
    gs_cost_step together = {0};
    double apart = 0.0;
    if (p->resume)
        return;
    for (int32_t i = 0; i < p->n_items; i++) {
        const gs_plan_item *it = &p->items[i];
        const gs_sched_seq *q = s->planned[i];
        if (!was_held(s, q))
            continue;
        const int64_t held_ns = q->x.wait_ns[GS_WAIT_WINDOW];
        gs_cost_step alone = {0};
        gs_cost_step_add(&alone, it->n_tokens, it->pos, !it->prefill, it->sample);
        gs_cost_step_add(&together, it->n_tokens, it->pos, !it->prefill, it->sample);
        apart += gs_cost_predict(&s->cost, &alone);
        s->stats.n_held[q->d.cls]++;
        s->stats.held_ns[q->d.cls] += held_ns;
        p->held_ns = held_ns > p->held_ns ? held_ns : p->held_ns;
    }
    if (p->held_ns == 0)
        return;
    const double saved = apart - gs_cost_predict(&s->cost, &together);
    p->saved_ns = saved > 0.0 ? (int64_t)saved : 0;
    s->stats.saved_ns += p->saved_ns;
}

gs_wait gs_sched_full_step(const gs_sched *s, const gs_sched_seq *q) {
    for (int32_t i = 0; i < s->plan.n_items; i++)
        if (s->plan.items[i].prefill && s->plan.items[i].cls < q->d.cls)
            return GS_WAIT_CLASS;
    return s->plan.n_prefill_tokens > 0 ? GS_WAIT_PROMPT : GS_WAIT_BUDGET;
}

void gs_sched_mark_items(gs_sched *s, int64_t now_ns) {
    for (int32_t i = 0; i < s->plan.n_items; i++)
        gs_span_begin(&s->planned[i]->x,
                      GS_WAIT_COUNT + (int)phase_of(s->planned[i], &s->plan.items[i]), now_ns);
}

void gs_sched_mark_spans(gs_sched *s, int64_t now_ns) {
    const gs_sched_list *const lists[] = {&s->running, &s->waiting};
    gs_sched_mark_items(s, now_ns);
    for (int i = 0; i < 2; i++)
        for (gs_sched_seq *q = lists[i]->head; q; q = q->next)
            if (q->item < 0 && q->x.wait_now != GS_WAIT_NONE)
                gs_span_begin(&q->x, (int)q->x.wait_now, now_ns);
}

void gs_sched_explain_step(gs_sched *s, int64_t elapsed_ns) {
    const gs_plan *p = &s->plan;
    int32_t n_class[GS_CLASS_COUNT] = {0};
    double sum = 0.0;
    for (int32_t i = 0; i < p->n_items; i++) {
        n_class[p->items[i].cls]++;
        sum += weight_of(s, i);
    }
    const int64_t predicted_ns = p->predicted_ns > 0 ? p->predicted_ns : elapsed_ns;
    for (int32_t i = 0; i < p->n_items; i++) {
        gs_explain *x = &s->planned[i]->x;
        x->n_steps++;
        x->n_chunks += p->items[i].prefill;
        x->predicted_ns += predicted_ns;
        x->measured_ns += elapsed_ns;
        if (x->first_token_ns == 0) {
            x->first_predicted_ns += predicted_ns;
            x->first_measured_ns += elapsed_ns;
            x->first_own_ns += (int64_t)((double)elapsed_ns * weight_of(s, i) / sum);
        }
        for (int c = 0; c < GS_CLASS_COUNT; c++)
            x->steps_with[c] += n_class[c] > (c == (int)x->cls);
    }
}
