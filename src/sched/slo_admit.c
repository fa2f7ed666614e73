/*
 * Newcomers: which class they are served as, whether to take them at all, when their first token
 * is due, and whether it pays to hold them for company.
 */
#include "sched/slo_impl.h"

#include <math.h>

#include "base/err.h"

#define TRUSTED_STEPS 64 /* an uncalibrated model refuses nobody before it has seen this many */
#define GAP_SHARE     0.125
#define MS            1000000LL
#define S             1000000000LL
#define DAY           (86400 * S)

static bool trusted(const gs_sched *s) {
    return s->cost.calibrated || s->cost.n_observed >= TRUSTED_STEPS;
}

gs_class slo_classify(const gs_sched *s, const gs_seq_desc *d, int32_t n_cached) {
    if (d->cls != GS_CLASS_CHAT || d->class_fixed || s->slo.document_min_tokens < 0)
        return d->cls;
    const int32_t n_uncached = d->n_prompt - n_cached;
    if (s->slo.document_min_tokens > 0)
        return n_uncached > s->slo.document_min_tokens ? GS_CLASS_DOCUMENT : GS_CLASS_CHAT;
    const bool long_time =
        trusted(s) && gs_cost_prefill(&s->cost, n_cached, n_uncached, s->cfg.prefill_chunk) > 2e9;
    return n_uncached > 1024 && long_time ? GS_CLASS_DOCUMENT : GS_CLASS_CHAT;
}

int64_t slo_first_due(const gs_sched *s, const gs_sched_seq *q) {
    const gs_class_config *k = &s->classes[q->d.cls];
    const int64_t from_ns = q->d.arrival_ns + q->x.wait_ns[GS_WAIT_PAUSED];
    if (k->ttft_ns > 0)
        return from_ns + k->ttft_ns;
    int64_t end_ns = from_ns + (k->complete_ns > 0 ? k->complete_ns : 60 * S);
    if (q->d.deadline_ns > 0)
        end_ns = q->d.deadline_ns;
    const double rest = q->d.prefill_only
                            ? 0.0
                            : slo_expected_output(s, q) * (s->cost.knot_ns[0] + s->cost.fixed_ns);
    return end_ns - (int64_t)slo_min(rest, 1e15);
}

/* Device time of prompts that are served before a newcomer of class c, and streams beside it. */
typedef struct load {
    double ahead_ns, streams_ns;
    int32_t n_ahead;
} load;

/* Whether a waiting one of the same class comes after a newcomer of person d->person: its own
 * person has used more, or has so many requests that they give way (is_heavy in policy_slo.c). */
static bool comes_after(const gs_sched *s, const gs_sched_seq *q, const gs_seq_desc *d,
                        double counter_ns) {
    const slo_state *p = slo_of(s);
    const slo_person *u = &p->persons[d->person < p->n_persons ? d->person : 0];
    const slo_person *o = slo_person_of(s, q);
    if (o == u || !slo_rule(s, GS_RULE_FAIRNESS))
        return false;
    return o->counter_ns > counter_ns ||
           (q->d.cls != GS_CLASS_VOICE && o->n_live > SLO_HEAVY * (u->n_live + 1));
}

static load look_ahead(const gs_sched *s, gs_class c, const gs_seq_desc *d) {
    load l = {0};
    const double counter_ns = slo_counter_on_return(s, d->person);
    gs_cost_step streams = {0};
    const gs_sched_list *const lists[] = {&s->running, &s->waiting};
    for (int i = 0; i < 2; i++)
        for (const gs_sched_seq *q = lists[i]->head; q; q = q->next) {
            if (q->paused)
                continue;
            if (slo_interactive(s, q) && i == 0 && gs_sched_is_decode(q)) {
                gs_cost_step_add(&streams, 1, q->n_computed, true, true);
                continue;
            }
            if (q->d.cls > c || (i == 1 && q->d.cls == c && comes_after(s, q, d, counter_ns)))
                continue;
            const int32_t done = i == 0 ? q->n_computed : q->n_peek;
            l.ahead_ns += gs_cost_prefill(&s->cost, done, gs_sched_n_known(q) - done, 128);
            l.n_ahead++;
        }
    l.streams_ns = gs_cost_predict(&s->cost, &streams);
    return l;
}

static int overloaded(gs_admission *out, const char *reason, double retry_ns) {
    out->code = GS_ERR_OVERLOADED;
    out->reason = reason;
    out->retry_after_ns = (int64_t)slo_min(slo_max(retry_ns, 1e9), 3600e9);
    return GS_ERR_OVERLOADED;
}

static int check_person(const gs_sched *s, const gs_seq_desc *d, int64_t now_ns, double work_ns,
                        gs_admission *out) {
    const slo_state *p = slo_of(s);
    const slo_person *u = &p->persons[d->person < p->n_persons ? d->person : 0];
    const gs_person_config *own = slo_config_of(s, u);
    gs_person_stats st;
    slo_get_person(s, d->person, &st);
    if (own->max_waiting > 0 && st.n_waiting >= own->max_waiting)
        return overloaded(out, "this person has too many requests waiting", work_ns);
    const double places = s->slo.person_queue_share * s->cfg.max_waiting;
    if (p->n_persons > 1 && s->slo.person_queue_share < 1.0 && s->cfg.max_waiting >= 8 &&
        st.n_waiting >= (int32_t)places)
        return overloaded(out, "this person's requests fill the queue", work_ns);
    if (own->day_ns > 0 && u->day_ns >= own->day_ns && now_ns - u->day_began_ns < DAY)
        return overloaded(out, "this person's device time for today is used up",
                          (double)(u->day_began_ns + DAY - now_ns));
    return GS_OK;
}

int slo_admit(gs_sched *s, const gs_seq_desc *d, int64_t now_ns, gs_admission *out) {
    const gs_class_config *k = &s->classes[out->cls];
    const load l = look_ahead(s, out->cls, d);
    const double own = gs_cost_prefill(&s->cost, out->n_cached, d->n_prompt - out->n_cached, 128);
    /* Prefill gets what streams leave of each step. */
    const double tpot = slo_max((double)s->classes[GS_CLASS_CHAT].tpot_ns, 1.5 * l.streams_ns);
    const double stretch = slo_min(tpot / (tpot - l.streams_ns), 4.0);
    const double first = (l.ahead_ns + own) * stretch + l.streams_ns;
    if (out->predicted_ttft_ns >= 0)
        out->predicted_ttft_ns = (int64_t)slo_min(first, 1e17);

    if (k->max_waiting > 0 && s->stats.n_waiting_by_class[out->cls] >= k->max_waiting)
        return overloaded(out, "the queue of this class is full", l.ahead_ns);
    const int rc = check_person(s, d, now_ns, l.ahead_ns, out);
    if (rc != GS_OK)
        return rc;
    if (!trusted(s))
        return GS_OK;
    if (k->hard_ttft_ns > 0 && l.n_ahead > 0 &&
        (double)(now_ns - d->arrival_ns) + first > (double)k->hard_ttft_ns)
        return overloaded(out, "the answer would begin too late to be of use",
                          first - (double)k->hard_ttft_ns);
    if (d->deadline_ns > 0) {
        const double row = s->cost.knot_ns[0] + s->cost.fixed_ns;
        const double output =
            slo_min(slo_max(slo_of(s)->persons[0].output_tokens, 32.0), (double)d->max_output);
        out->late = (double)now_ns + first + output * row > (double)d->deadline_ns;
        if (out->late && d->deadline_strict)
            return overloaded(out, "its deadline can't be met", first);
    }
    return GS_OK;
}

/* ---- windows ----------------------------------------------------------------------------------*/

void slo_window_arrival(gs_sched *s, gs_class c, int64_t now_ns) {
    slo_class *w = &slo_of(s)->classes[c];
    if (w->last_arrival_ns > 0) {
        const double gap = (double)(now_ns - w->last_arrival_ns);
        /* Soon enough that half a step's fixed cost pays for the wait. */
        const bool soon =
            gap <= slo_min((double)s->classes[c].window_max_ns, 0.5 * gs_cost_fixed(&s->cost));
        w->soon += GAP_SHARE * ((soon ? 1.0 : 0.0) - w->soon);
        if (soon)
            w->gap_ns = w->gap_ns <= 0.0 ? gap : w->gap_ns + GAP_SHARE * (gap - w->gap_ns);
    }
    w->last_arrival_ns = now_ns > 0 ? now_ns : 1;
}

/* Additive increase, multiplicative decrease (Clipper, NSDI'17): a miss halves the window, a hit
 * widens it by a sixty-fourth of its range. */
void slo_judge(gs_sched *s, gs_class c, bool missed) {
    const gs_class_config *k = &s->classes[c];
    slo_class *w = &slo_of(s)->classes[c];
    s->stats.n_target[c]++;
    s->stats.n_missed[c] += missed;
    w->window_ns =
        missed ? w->window_ns / 2 : w->window_ns + (k->window_max_ns - k->window_min_ns) / 64;
    if (w->window_ns > k->window_max_ns)
        w->window_ns = k->window_max_ns;
    if (w->window_ns < k->window_min_ns)
        w->window_ns = k->window_min_ns;
}

/* Newcomers of one class: how many tokens, since when, and how long the most urgent can wait. */
typedef struct company {
    int64_t oldest_ns, slack_ns;
    int64_t n_tokens;
    int32_t n;
} company;

/*
 * Holding pays if the steps that are saved by sharing cost more than the wait. Arrivals come in
 * bursts: of those with company soon, p / (1 - p) more are to be expected, a gap apart, and each
 * saves what a step costs whatever is in it. After three gaps of silence the burst is over.
 */
static int64_t hold_until(const slo_step *t, gs_class c, const company *m) {
    const slo_class *w = &t->p->classes[c];
    const int32_t knee = gs_cost_knee(&t->s->cost, t->s->cfg.max_batch_tokens);
    const double gap = slo_max(w->gap_ns, 1000.0);
    const double rest = (double)(m->oldest_ns + w->window_ns - t->now_ns);
    if (w->gap_ns <= 0.0 || rest <= 0.0 || m->n_tokens >= knee || (double)m->slack_ns < rest)
        return t->now_ns;
    const double expected = slo_min(rest / gap, w->soon / (1.01 - w->soon));
    if (expected * gs_cost_fixed(&t->s->cost) <= (expected + 3.0) * gap)
        return t->now_ns;
    return slo_min(3.0 * gap, rest) < rest ? w->last_arrival_ns + (int64_t)(3.0 * gap)
                                           : t->now_ns + (int64_t)rest;
}

uint32_t slo_windows(slo_step *t, int64_t *until_ns) {
    gs_sched *s = t->s;
    company m[GS_CLASS_COUNT] = {0};
    *until_ns = GS_NEVER_NS;
    if (!slo_rule(s, GS_RULE_WINDOWS) || s->running.n > 0 || s->outside.busy)
        return 0; /* the device is busy: who comes collects anyway */
    for (const gs_sched_seq *q = s->waiting.head; q; q = q->next) {
        if (q->paused)
            continue;
        company *k = &m[q->d.cls];
        const double work = t->token_ns * (gs_sched_n_known(q) - q->n_peek);
        const int64_t slack = slo_first_due(s, q) - t->now_ns - (int64_t)work;
        if (q->admitted || t->p->classes[q->d.cls].window_ns <= 0)
            return 0;
        if (k->n == 0 || q->submit_ns < k->oldest_ns)
            k->oldest_ns = q->submit_ns;
        if (k->n == 0 || slack < k->slack_ns)
            k->slack_ns = slack;
        k->n_tokens += gs_sched_n_known(q) - q->n_peek;
        k->n++;
    }
    uint32_t held = 0;
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        if (m[c].n == 0)
            continue;
        const int64_t end_ns = hold_until(t, (gs_class)c, &m[c]);
        if (end_ns <= t->now_ns)
            return 0; /* one goes now: the others share its step */
        held |= 1u << c;
        if (end_ns < *until_ns)
            *until_ns = end_ns;
    }
    return held;
}
