/*
 * "slo": the step is built from milliseconds, not from request counts.
 *
 *   1. streams whose next token is due          (everybody who reads or listens)
 *   2. targets that this load allows            (a target out of reach must not paralyse)
 *   3. the horizon: when the step has to end    (Sarathi-Serve's budget, OSDI'24, from a fitted
 *                                                model and the tightest slack as in Niyama)
 *   4. prompts, by slack of their class, then by the persons' counters (VTC, OSDI'24)
 *   5. background in what is left               (HyGen, NeurIPS'25), never less than its floor;
 *      beside a stream in its steps, or in slices between them
 *   6. safepoints: a background step gives way between layers (ConServe, ICML'26)
 *
 * If nothing can be planned although something may run, first come, first served takes over for
 * that step: its argument that something always moves (policy_fcfs.c) holds here because the
 * same bound on preemptions and the same check of room apply.
 */
#include "sched/slo_impl.h"

#include <math.h>

#include "base/err.h"

#define AHEAD_TOKENS 10    /* a listener's buffer is kept this full */
#define AHEAD_FROM   20    /* tokens (60 characters) before speech begins */
#define HEAVY_PART   0.85  /* of a person's part, so that with first tokens it is no more */
#define GRACE_NS     1e9   /* until a person with few requests has used so much more */
#define HEAVY_TURN   16    /* every so many steps a heavy person's prompt gets a tile anyway */
#define STAY_NS      0.5e9 /* a prompt in progress stays before one of a counter this much lower */
#define FINE_TILES   4     /* in steps of fewer tiles chunks are cut to the token */
#define PACE_CHUNK   128   /* prompts are priced in chunks of this size */

static size_t slo_state_bytes(const gs_sched_config *cfg) {
    const size_t own = cfg->accounts ? 0 : slo_accounts_bytes(cfg->max_persons);
    return sizeof(slo_state) + 2 * (size_t)cfg->max_seqs * sizeof(slo_charge) + own;
}

static void slo_init(gs_sched *s) {
    slo_state *p = slo_of(s);
    p->charges = (slo_charge *)(void *)(p + 1);
    p->parked = p->charges + s->cfg.max_seqs;
    if (!s->cfg.accounts)
        slo_accounts_place(p->parked + s->cfg.max_seqs, s->cfg.max_persons);
    slo_join(s, s->cfg.accounts ? s->cfg.accounts : (void *)(p->parked + s->cfg.max_seqs));
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        p->classes[c].window_ns = (s->classes[c].window_min_ns + s->classes[c].window_max_ns) / 2;
}

#define SLICE_PART  12  /* a layer takes at most this part of a slice */
#define LOOK_AHEAD  64  /* texts of a person that are sorted by length */
#define LOOK_CAP_NS 1e9 /* after which nobody is passed any more for his length */

/* ---- 1 to 3: streams, targets, horizon --------------------------------------------------------*/

static bool is_stream(const gs_sched *s, const gs_sched_seq *q) {
    return !q->parked && !q->paused && slo_interactive(s, q) && gs_sched_is_decode(q);
}

static bool is_heavy(const slo_step *t, const gs_sched_seq *q) {
    const slo_person *u = slo_person_of(t->s, q);
    return u->n_wanted > t->allowed && u->counter_ns + GRACE_NS > t->light_counter_ns;
}

int64_t slo_tpot(const slo_step *t, gs_class c) {
    const double round = t->streams_ns + (double)t->s->outside.streams_ns;
    const double least = t->s->slo.tpot_stretch * round;
    const int64_t target = t->s->classes[c].tpot_ns;
    return (double)target > least ? target : (int64_t)least;
}

double slo_reach(const slo_step *t, gs_class c, int64_t slack_ns) {
    const bool attainable = slo_tpot(t, c) == t->s->classes[c].tpot_ns; /* else it is stretched */
    return (attainable ? SLO_HORIZON_PART : 1.0) * (double)slack_ns;
}

/* When its next token is due. Who listens or reads from a full buffer can do without for longer
 * (Andes' delivery timeline, arXiv 2404.16283), as long as the answer's mean pace stays on target.
 */
static int64_t next_due(const slo_step *t, const gs_sched_seq *q, bool *ahead) {
    /* Beside somebody with few requests, a person with many has half the pace. */
    const int64_t tpot_ns = slo_tpot(t, q->d.cls) * (is_heavy(t, q) ? 2 : 1);
    const int64_t due_ns = q->last_token_ns + tpot_ns;
    const int64_t consume_ns = t->s->classes[q->d.cls].consume_ns;
    *ahead = false;
    if (consume_ns <= 0 || q->n_output < AHEAD_FROM)
        return due_ns;
    const int64_t heard_ns = (q->n_output - AHEAD_TOKENS) * consume_ns;
    const int64_t pace_ns = (q->n_output - AHEAD_TOKENS) * tpot_ns;
    const int64_t needed_ns = q->x.first_token_ns + (heard_ns < pace_ns ? heard_ns : pace_ns);
    *ahead = needed_ns > due_ns;
    return *ahead ? needed_ns : due_ns;
}

/*
 * Beside somebody with one request, a person with many keeps a few streams per step and does not
 * stretch it: each active person is to get a part of the time, not each request. That ends when
 * the first one has had clearly more; persons with about as many requests are left to their
 * counters.
 */
static void find_heavy(slo_step *t) {
    int32_t fewest = INT32_MAX;
    for (uint32_t i = 0; i < t->p->n_persons; i++) {
        const int32_t n = t->p->persons[i].n_wanted;
        t->n_active += n > 0;
        if (n == 0 || n >= fewest)
            continue;
        fewest = n;
        t->light_counter_ns = t->p->persons[i].counter_ns;
    }
    t->allowed = INT32_MAX;
    if (t->n_active < 2 || fewest > INT32_MAX / SLO_HEAVY || !slo_rule(t->s, GS_RULE_FAIRNESS))
        return;
    t->allowed = SLO_HEAVY * fewest;
    gs_cost_step light = {0};
    for (const gs_sched_seq *q = t->s->running.head; q; q = q->next)
        if (is_stream(t->s, q) && !is_heavy(t, q))
            gs_cost_step_add(&light, 1, q->n_computed, true, true);
    t->light_ns = gs_sched_predict(t->s, &light);
}

/* One pass over who is there: streams, persons, and whether anybody waits for a first token. */
static void look(slo_step *t) {
    gs_sched *s = t->s;
    gs_cost_step *const streams = &t->streams_x;
    slo_begin(s);
    for (gs_sched_seq *q = s->running.head; q; q = q->next) {
        if (q->paused)
            continue;
        if (is_stream(s, q)) {
            gs_cost_step_add(streams, 1, q->n_computed, true, true);
            t->streams = true;
            t->shown_ns = q->last_token_ns > t->shown_ns ? q->last_token_ns : t->shown_ns;
        } else if (slo_interactive(s, q)) {
            t->first_waits = true;
        }
        slo_person_of(s, q)->n_wanted += slo_interactive(s, q);
    }
    for (gs_sched_seq *q = s->waiting.head; q; q = q->next)
        if (slo_interactive(s, q) && !q->paused) {
            t->first_waits = true;
            slo_person_of(s, q)->n_wanted++;
        }
    find_heavy(t);
    t->streams_ns = gs_sched_predict(s, streams);
    t->token_ns = gs_cost_prefill(&s->cost, 0, PACE_CHUNK, PACE_CHUNK) / PACE_CHUNK;
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        s->stats.effective_tpot_ns[c] = slo_tpot(t, (gs_class)c);
        s->stats.window_ns[c] = t->p->classes[c].window_ns;
    }
}

/* Whether a stream can do without this step: it is ahead of its listener while somebody waits for
 * a first word, or it is one of a heavy person's beside somebody else. */
static bool is_spare(const slo_step *t, const gs_sched_seq *q, bool ahead, bool heavy) {
    if (ahead && t->first_waits)
        return true;
    if (!heavy || t->light_ns <= 0.0)
        return heavy;
    gs_cost_step x = t->x;
    gs_cost_step_add(&x, 1, q->n_computed, true, true);
    return gs_sched_predict(t->s, &x) > HEAVY_PART * t->n_active * t->light_ns;
}

static void plan_rows(slo_step *t, bool heavy) {
    gs_sched *s = t->s;
    gs_sched_seq *next;
    for (gs_sched_seq *q = s->running.head; q; q = next) {
        if (is_stream(s, q) && q->item < 0 && is_heavy(t, q) == heavy) {
            bool ahead;
            const double slack = (double)(next_due(t, q, &ahead) - t->now_ns);
            t->horizon_ns = slo_min(t->horizon_ns, slo_reach(t, q->d.cls, (int64_t)slack));
            if (gs_sched_core_budget(s) > 0 &&
                (slack < 1.2 * t->streams_ns || !is_spare(t, q, ahead, heavy)))
                slo_extend(t, q, 1);
        }
        next = q->next;
    }
}

double slo_room_ns(const slo_step *t) {
    double room = INFINITY;
    for (const gs_sched_seq *q = t->s->running.head; q; q = q->next) {
        bool ahead;
        if (is_stream(t->s, q))
            room = slo_min(room, slo_reach(t, q->d.cls, next_due(t, q, &ahead) - t->now_ns));
    }
    return room - t->streams_ns;
}

/* The streams' tokens, and the horizon that the next ones set. */
static void plan_streams(slo_step *t) {
    gs_sched *s = t->s;
    t->horizon_ns = INFINITY;
    plan_rows(t, false);
    plan_rows(t, true);
    gs_cost_step floor = t->x;
    gs_cost_step_add(&floor, s->slo.tile_tokens, 0, false, true);
    if (s->outside.due_ns != GS_NEVER_NS)
        t->horizon_ns =
            slo_min(t->horizon_ns, SLO_HORIZON_PART * (double)(s->outside.due_ns - t->now_ns));
    if (slo_rule(s, GS_RULE_HORIZON))
        t->horizon_ns = slo_max(t->horizon_ns, gs_sched_predict(s, &floor));
    else
        t->horizon_ns = INFINITY;
}

/* ---- 4: prompts -------------------------------------------------------------------------------*/

static int32_t n_done(const gs_sched_seq *q) {
    return q->state == GS_SCHED_RUNNING ? q->n_computed : q->n_peek;
}

/* Why a waiting one need not be asked in this step: what kept another one out keeps it out. */
static gs_wait barred(const slo_step *t, const gs_sched_seq *q) {
    if (!q->admitted && (t->held >> q->d.cls & 1))
        return GS_WAIT_WINDOW;
    if (t->seats_full >> q->d.cls & 1)
        return GS_WAIT_SEATS;
    return t->kv_blocked && q->d.cls >= t->kv_blocked_by ? GS_WAIT_KV : GS_WAIT_NONE;
}

/* Whether q may get prompt tokens in this step. */
static bool is_candidate(const slo_step *t, const gs_sched_seq *q) {
    if (q->item >= 0 || q->parked || q->tried == t->s->last_plan || slo_is_held(t, q))
        return false;
    const bool voice = q->d.cls == GS_CLASS_VOICE;
    if (!voice && slo_person_of(t->s, q)->passed_over == t->s->last_plan)
        return false;
    if (q->state == GS_SCHED_RUNNING)
        return !gs_sched_is_decode(q);
    return barred(t, q) == GS_WAIT_NONE;
}

/* What is left to compute alone, and how much time that leaves. */
static double work_of(const slo_step *t, const gs_sched_seq *q) {
    const int32_t done = n_done(q), n = gs_sched_n_known(q) - done;
    return t->token_ns * n + t->s->cost.prefill_ns * n * (done + 0.5 * n);
}

static double slack_of(const slo_step *t, const gs_sched_seq *q) {
    bool ahead;
    const int64_t due_ns = q->n_output > 0 ? next_due(t, q, &ahead) : slo_first_due(t->s, q);
    return (double)(due_ns - t->now_ns) - work_of(t, q);
}

typedef struct class_need {
    int cls; /* -1: all together, by arrival (class rule off) */
    int32_t n;
    double order_ns; /* least slack, or its usual place when all are relegated */
    double slack_ns; /* least slack of those that can still make it; INFINITY: none */
    double work_ns;
    bool relegated; /* somebody there is */
} class_need;

/* A first token that would be late even alone no longer presses the others: it keeps its place
 * as if half of its target were left, and a least share of each step. */
static void weigh_need(slo_step *t, gs_sched_seq *q, class_need *d) {
    const double slack = slack_of(t, q);
    const gs_class_config *k = &t->s->classes[q->d.cls];
    if (slack < 0 && q->n_output == 0 && !q->relegated && k->ttft_ns > 0) {
        q->relegated = true;
        t->s->stats.n_relegated[q->d.cls]++;
    }
    const double place = q->relegated ? 0.5 * (double)k->ttft_ns : slack;
    if (d->n++ == 0 || place < d->order_ns)
        d->order_ns = place;
    if (!q->relegated && slack > 0)
        d->slack_ns = slo_min(d->slack_ns, slack);
    d->work_ns += work_of(t, q);
    d->relegated |= q->relegated;
}

/* The classes that want prompt tokens, most urgent first. Returns how many. */
static int order_classes(slo_step *t, class_need need[GS_CLASS_COUNT]) {
    const gs_sched *s = t->s;
    const bool classes = slo_rule(s, GS_RULE_CLASSES);
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        need[c] = (class_need){.cls = classes ? c : -1, .slack_ns = INFINITY};
    const gs_sched_list *const lists[] = {&s->running, &s->waiting};
    for (int i = 0; i < 2; i++)
        for (gs_sched_seq *q = lists[i]->head; q; q = q->next)
            if (slo_interactive(s, q) && is_candidate(t, q))
                weigh_need(t, q, &need[classes ? (int)q->d.cls : 0]);
    int n = 0;
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        const class_need next = need[c];
        if (next.n == 0)
            continue;
        int at = n++;
        for (; at > 0 && need[at - 1].order_ns > next.order_ns; at--)
            need[at] = need[at - 1];
        need[at] = next;
    }
    return n;
}

/* Among one person's: texts to embed by length as far as mark_lengths says, else by arrival. */
static bool comes_before(const gs_sched_seq *q, const gs_sched_seq *than) {
    return q->place != than->place ? q->place < than->place : q->ordinal < than->ordinal;
}

/* Inside a class: lowest counter first, then arrival. A prompt in progress has a head start, so
 * that two persons' prompts do not take turns and both end late. */
static gs_sched_seq *best_candidate(const slo_step *t, int cls, bool background) {
    const gs_sched *s = t->s;
    const bool fair = slo_rule(s, GS_RULE_FAIRNESS) && (cls >= 0 || background);
    gs_sched_seq *best = NULL;
    double best_key = 0.0;
    const gs_sched_list *const lists[] = {&s->running, &s->waiting};
    for (int i = 0; i < 2; i++)
        for (gs_sched_seq *q = lists[i]->head; q; q = q->next) {
            if (slo_interactive(s, q) == background || !is_candidate(t, q) ||
                (cls >= 0 && (int)q->d.cls != cls))
                continue;
            double key = 0.0;
            if (fair)
                key = slo_person_of(s, q)->counter_ns - (i == 0 && !is_heavy(t, q) ? STAY_NS : 0.0);
            /* Background with a deadline that presses goes before all counters. */
            if (background && q->d.deadline_ns > 0 && slack_of(t, q) < 2.0 * work_of(t, q) + 2e9)
                key -= 1e18;
            if (!best || key < best_key || (key <= best_key && comes_before(q, best))) {
                best = q;
                best_key = key;
            }
        }
    return best;
}

/* The largest chunk from pos on, at most n_max tokens, with which the step ends by bound_ns: all,
 * or where prompts may be cut a multiple of the kernel's tile, in steps that hold some of them. */
static int32_t fit(const slo_step *t, int32_t pos, int32_t left, int32_t n_max, bool samples,
                   double bound_ns) {
    const gs_sched *s = t->s;
    const int32_t tile = s->slo.tile_tokens;
    const int32_t n_all = left < n_max ? left : n_max;
    gs_cost_step x = t->x;
    if (n_all < 1)
        return 0;
    gs_cost_step_add(&x, n_all, pos, false, samples && n_all == left);
    if (gs_sched_predict(s, &x) <= bound_ns)
        return n_all;
    if (s->cfg.whole_prompts)
        return 0;
    int32_t low = 0, high = n_all / tile; /* in tiles */
    while (low < high) {
        const int32_t mid = low + (high - low + 1) / 2;
        x = t->x;
        gs_cost_step_add(&x, mid * tile, pos, false, false);
        if (gs_sched_predict(s, &x) <= bound_ns)
            low = mid;
        else
            high = mid - 1;
    }
    int32_t n = low * tile;
    /* Where all are a few, a part of one is much. */
    for (int32_t end = n + tile < n_all ? n + tile : n_all;
         t->x.n_tokens + n < FINE_TILES * tile && n < end; n++) {
        x = t->x;
        gs_cost_step_add(&x, n + 1, pos, false, false);
        if (gs_sched_predict(s, &x) > bound_ns)
            break;
    }
    return n;
}

/* One candidate's chunk. False: the step is full for this bound. */
static bool plan_chunk(slo_step *t, gs_sched_seq *q, double bound_ns, bool at_least_a_tile) {
    gs_sched *s = t->s;
    q->tried = s->last_plan;
    if (q->state == GS_SCHED_WAITING)
        q->n_peek = gs_kv_peek(s->kv, q->d.cache_scope, q->d.tokens, gs_sched_n_known(q));
    int32_t budget = gs_sched_core_budget(s);
    /* What background is owed is not eaten up before its turn. */
    if (slo_interactive(s, q) && t->owed_ns > 0 && budget > s->slo.tile_tokens)
        budget -= s->slo.tile_tokens;
    if (is_heavy(t, q) && slo_interactive(s, q) && q->d.cls != GS_CLASS_VOICE) {
        at_least_a_tile &= s->plan.step % HEAVY_TURN == 0;
        bound_ns = 0.0;
        slo_person_of(s, q)->passed_over = s->last_plan;
    }
    const int32_t least = gs_sched_core_least(s, q);
    const int32_t left = gs_sched_n_known(q) - n_done(q);
    if (budget < least) {
        q->x.wait_now = gs_sched_full_step(s, q);
        return false;
    }
    const int32_t most = s->cfg.prefill_chunk > least ? s->cfg.prefill_chunk : least;
    const int32_t n_max = budget < most ? budget : most;
    int32_t n = fit(t, n_done(q), left, n_max, !q->d.prefill_only, bound_ns);
    if (n == 0 && at_least_a_tile && s->plan.n_prefill_tokens == 0) {
        n = left < n_max ? left : n_max;
        n = n < s->slo.tile_tokens ? n : s->slo.tile_tokens;
        n = n > least ? n : least;
    }
    if (n < 1) {
        q->x.wait_now = gs_sched_full_step(s, q);
        return false;
    }
    if (q->state == GS_SCHED_RUNNING) {
        slo_extend(t, q, n);
        return true;
    }
    const int rc = slo_start(t, q, n);
    if (rc >= 0)
        return true;
    q->x.wait_now = (gs_wait)-rc;
    if (q->x.wait_now == GS_WAIT_SEATS)
        t->seats_full |= 1u << q->d.cls;
    else if (q->x.wait_now == GS_WAIT_PERSON)
        slo_person_of(s, q)->passed_over = s->last_plan;
    return true;
}

/*
 * How far the step may go for class i of n: the horizon; less what other classes that wait are to
 * find left (the class's share, a relegated class's least share); and not so far that a first
 * token behind it would be late. With nobody streaming the class's quantum bounds the step, so
 * that whoever comes next waits no longer than that.
 */
static double bound_of(const slo_step *t, const class_need *need, int i, int n) {
    const gs_sched *s = t->s;
    const gs_class c = need[i].cls >= 0 ? (gs_class)need[i].cls : GS_CLASS_CHAT;
    const gs_class_config *k = &s->classes[c];
    /* Before its first step an uncalibrated model knows nothing about this machine. */
    if (!slo_rule(s, GS_RULE_HORIZON) || (!s->cost.calibrated && s->cost.n_observed == 0))
        return INFINITY;
    if (s->outside.presses) /* it goes first: a tile, so that nothing stands still */
        return 0.0;
    double end = t->streams ? t->horizon_ns : slo_min(t->horizon_ns, (double)k->quantum_ns);
    double others = 0.0, least = 0.0;
    for (int o = i + 1; o < n; o++) {
        others += need[o].work_ns;
        if (need[o].relegated)
            least += s->classes[need[o].cls].min_share * end;
        if (!t->streams)
            end = slo_min(end, slo_max(need[o].slack_ns, 0.25 * (double)k->quantum_ns));
    }
    const double now = gs_sched_predict(s, &t->x);
    const double keep = slo_max((1.0 - k->share) * slo_max(end - now, 0.0), least);
    return end - slo_min(others, keep);
}

/* Everybody of the class who did not get into the step, and why. */
static void give_reasons(slo_step *t, const class_need *need, int n) {
    const gs_sched *s = t->s;
    const gs_sched_list *const lists[] = {&s->running, &s->waiting};
    uint32_t planned = 0;
    for (int32_t i = 0; i < s->plan.n_items; i++)
        if (s->plan.items[i].prefill)
            planned |= 1u << s->plan.items[i].cls;
    for (int i = 0; i < 2; i++)
        for (gs_sched_seq *q = lists[i]->head; q; q = q->next) {
            if (q->item >= 0 || q->tried == s->last_plan || q->parked)
                continue;
            const gs_wait bar = i == 1 ? barred(t, q) : GS_WAIT_NONE;
            if (bar != GS_WAIT_NONE)
                q->x.wait_now = bar;
            else if (!slo_interactive(s, q))
                q->x.wait_now = slo_is_held(t, q) ? GS_WAIT_SCHEDULE : GS_WAIT_CLASS;
            else if (planned >> q->d.cls & 1)
                q->x.wait_now = GS_WAIT_PERSON;
            else
                q->x.wait_now = n > 0 && need[0].cls != (int)q->d.cls ? GS_WAIT_CLASS
                                                                      : gs_sched_full_step(s, q);
        }
}

static int plan_prompts(slo_step *t, class_need need[GS_CLASS_COUNT]) {
    gs_sched *s = t->s;
    const int n = order_classes(t, need);
    for (int i = 0; i < n; i++) {
        const double bound = bound_of(t, need, i, n);
        t->limit_ns = slo_max(t->limit_ns, bound);
        gs_sched_seq *q;
        while (gs_sched_core_budget(s) > 0 && (q = best_candidate(t, need[i].cls, false)))
            if (!plan_chunk(t, q, bound, true) && !is_heavy(t, q))
                break;
    }
    return n;
}

/* ---- 5: background ----------------------------------------------------------------------------*/

/* The stream that has waited longest for its turn. */
static gs_sched_seq *oldest_row(const slo_step *t) {
    gs_sched_seq *best = NULL;
    for (gs_sched_seq *q = t->s->running.head; q; q = q->next)
        if (!slo_interactive(t->s, q) && !slo_is_held(t, q) && q->item < 0 && !q->parked &&
            gs_sched_is_decode(q) && q->tried != t->s->last_plan &&
            (!best || q->last_token_ns < best->last_token_ns))
            best = q;
    return best;
}

/*
 * Short texts first: a step then holds as many as it can, and who has few words waits for few. Only
 * the oldest LOOK_AHEAD of a person are looked at, and who was passed LOOK_CAP_NS ago is passed no
 * more: that is the most that anybody waits because of his length.
 */
static void mark_lengths(slo_step *t) {
    gs_sched *s = t->s;
    for (uint32_t i = 0; i < t->p->n_persons; i++)
        t->p->persons[i].n_looked = 0;
    for (gs_sched_seq *q = s->waiting.head; q; q = q->next) {
        const bool passed = q->passed_ns > 0 && t->now_ns - q->passed_ns >= LOOK_CAP_NS;
        q->place = 0;
        if (slo_interactive(s, q) || !q->d.prefill_only || passed)
            continue;
        q->place = slo_person_of(s, q)->n_looked++ < LOOK_AHEAD ? gs_sched_n_known(q) : INT32_MAX;
    }
}

/* Who of a person's waits although a later one of the same person does not. */
static void mark_passed(slo_step *t) {
    gs_sched *s = t->s;
    for (uint32_t i = 0; i < t->p->n_persons; i++)
        t->p->persons[i].last_ordinal = 0;
    for (int32_t i = 0; i < s->plan.n_items; i++) {
        const gs_sched_seq *q = s->planned[i];
        slo_person *u = slo_person_of(s, q);
        if (q->place > 0 && q->ordinal > u->last_ordinal)
            u->last_ordinal = q->ordinal;
    }
    for (gs_sched_seq *q = s->waiting.head; q; q = q->next)
        if (q->place > 0 && q->passed_ns == 0 && q->ordinal < slo_person_of(s, q)->last_ordinal)
            q->passed_ns = t->now_ns > 0 ? t->now_ns : 1;
}

static void fill_rows(slo_step *t, double bound_ns, bool at_least_one) {
    gs_sched *s = t->s;
    gs_sched_seq *q;
    while (gs_sched_core_budget(s) > 0 && (q = oldest_row(t))) {
        gs_cost_step x = t->x;
        gs_cost_step_add(&x, 1, q->n_computed, true, true);
        if (gs_sched_predict(s, &x) > bound_ns && (s->plan.n_items > 0 || !at_least_one))
            break;
        q->tried = s->last_plan;
        slo_extend(t, q, 1);
    }
}

static void fill_prompts(slo_step *t, double bound_ns, bool at_least_a_tile) {
    gs_sched *s = t->s;
    gs_sched_seq *q;
    mark_lengths(t);
    while (gs_sched_core_budget(s) > 0 && (q = best_candidate(t, -1, true)))
        if (!plan_chunk(t, q, bound_ns, at_least_a_tile))
            break;
    mark_passed(t);
}

/* Time of a step from which on more tokens hardly make each one cheaper. */
static double efficient_ns(const gs_sched *s) {
    gs_cost_step x = {0};
    gs_cost_step_add(&x, gs_cost_knee(&s->cost, s->cfg.max_batch_tokens), 0, false, false);
    return gs_sched_predict(s, &x);
}

/* A step of its own, at the efficient size: with safepoints it gives way anyway, without them no
 * longer than the quantum. */
static double own_step_bound(const slo_step *t) {
    const gs_sched *s = t->s;
    double bound = (double)s->classes[GS_CLASS_BACKGROUND].quantum_ns;
    if (!s->plan.beside && s->slo.safepoints && slo_rule(s, GS_RULE_SAFEPOINTS))
        bound = slo_max(bound, efficient_ns(s));
    return slo_min(bound, t->horizon_ns);
}

/* What other schedulers' streams leave to a step of background alone. */
static double room_outside(const slo_step *t) {
    const int64_t until_ns = t->s->outside.background_until_ns;
    return until_ns == GS_NEVER_NS ? (double)INFINITY : (double)(until_ns - t->now_ns);
}

/* A step of background alone. Between the steps of other schedulers it goes on as far as there is
 * room and then gives way between two layers, so the step itself may be longer than the room. */
static void plan_background_alone(slo_step *t) {
    gs_sched *s = t->s;
    const double room = room_outside(t);
    if (gs_sched_suspended(s)) {
        gs_cost_step x;
        gs_sched_plan_cost(&s->parked, &x);
        if (room >= gs_sched_predict(s, &x) / s->cfg.n_layers || t->owed_ns > 0)
            gs_sched_core_resume(s);
        return;
    }
    double bound = room;
    if (s->slo.safepoints && slo_rule(s, GS_RULE_SAFEPOINTS))
        bound = slo_max(room, slo_min(efficient_ns(s), room * s->cfg.n_layers));
    t->limit_ns = slo_min(own_step_bound(t), bound);
    if (t->work != GS_WORK_PROMPTS)
        fill_rows(t, t->limit_ns, isinf(room) || t->owed_ns > 0);
    if (t->work != GS_WORK_TOKENS)
        fill_prompts(t, t->limit_ns, isinf(room) || t->owed_ns > 0);
}

/* ---- background between two tokens ------------------------------------------------------------*/

/*
 * Beside streams, background prompts ride in the streams' steps, or get slices: steps of their own
 * that begin after the streams' tokens and give way between two layers in time for the next ones.
 * Riding reads the weights once for both. But it needs a prediction to be right, so it is planned
 * for a part of the gap only; a slice takes all of it, and its step may have any size, as it goes
 * on after the next tokens. Which one computes more depends on the machine and the model.
 */

/* Riding: the step's end, when the streams alone take own_ns. */
static double riding_bound(double own_ns, double grown_ns) {
    return own_ns + SLO_HORIZON_PART * (grown_ns - own_ns);
}

/* A step that is cut into slices of room_ns. */
static double sliced_bound(const slo_step *t, double room_ns) {
    return slo_max(room_ns, slo_min(efficient_ns(t->s), t->s->cfg.n_layers * room_ns / SLICE_PART));
}

/* Tokens a second of one text without end. */
static double rate_of(const slo_step *t, const gs_cost_step *streams, double bound_ns) {
    slo_step alone = {.s = t->s, .p = t->p, .x = *streams};
    const int32_t most = t->s->cfg.max_batch_tokens - streams->n_tokens;
    const int32_t n = fit(&alone, 0, INT32_MAX / 2, most, false, bound_ns);
    if (n < 1)
        return 0.0;
    gs_cost_step_add(&alone.x, n, 0, false, false);
    return n / gs_sched_predict(t->s, &alone.x);
}

static bool slices_pay(const slo_step *t, double grown_ns) {
    if (t->s->mode.now == GS_MODE_EXCLUSIVE) /* nothing rides */
        return true;
    const gs_cost_step none = {0};
    const double room = grown_ns - t->streams_ns;
    const double riding = rate_of(t, &t->streams_x, riding_bound(t->streams_ns, grown_ns));
    return rate_of(t, &none, sliced_bound(t, room)) * room / grown_ns > riding;
}

/* By when a slice has to give way. */
static int64_t slice_until(const slo_step *t, double grown_ns) {
    int64_t until_ns = t->shown_ns + (int64_t)(grown_ns - t->streams_ns);
    for (const gs_sched_seq *q = t->s->running.head; q; q = q->next) {
        bool ahead;
        if (!is_stream(t->s, q))
            continue;
        const int64_t start_ns = next_due(t, q, &ahead) - (int64_t)t->streams_ns;
        until_ns = start_ns < until_ns ? start_ns : until_ns;
    }
    return until_ns;
}

/* Plans a slice, or with t->sliced says that background prompts wait for the next one. */
static void plan_slice(slo_step *t) {
    gs_sched *s = t->s;
    const double grown = slo_background_bound(s, t->streams_ns);
    if (!t->streams || t->first_waits || t->background_held || s->outside.busy ||
        s->cfg.n_layers < 2 || !s->slo.safepoints || !slo_rule(s, GS_RULE_SAFEPOINTS) ||
        !slo_rule(s, GS_RULE_CLASSES) || !slo_rule(s, GS_RULE_HORIZON))
        return;
    const bool goes_on = gs_sched_suspended(s);
    if (!goes_on && (!best_candidate(t, -1, true) || !slices_pay(t, grown)))
        return;
    t->sliced = true;
    t->until_ns = slice_until(t, grown);
    const double whole = sliced_bound(t, grown - t->streams_ns);
    /* Giving way at the nearest layer, not at the last one before, loses nothing on average. */
    const double layer = whole / s->cfg.n_layers;
    if ((double)(t->until_ns - t->now_ns) < layer)
        return;
    t->until_ns += (int64_t)(0.5 * layer);
    if (goes_on) {
        gs_sched_core_resume(s);
        return;
    }
    t->horizon_ns = INFINITY;
    fill_prompts(t, whole, true);
}

static void plan_background(slo_step *t) {
    gs_sched *s = t->s;
    if (t->background_held || !slo_rule(s, GS_RULE_CLASSES))
        return;
    if (s->plan.n_items == 0) {
        plan_background_alone(t);
        return;
    }
    const double own = gs_sched_predict(s, &t->x);
    const double others = (double)s->outside.streams_ns;
    const double grown = slo_background_bound(s, own + others) - others;
    double bound = slo_min(t->horizon_ns, riding_bound(own, grown));
    if (t->owed_ns > 0) /* below its floor it is not asked whether it fits */
        bound = slo_max(bound, own + slo_min((double)t->owed_ns, (double)s->slo.background_gap_ns));
    if (!slo_rule(s, GS_RULE_HORIZON))
        bound = INFINITY;
    if (t->work != GS_WORK_PROMPTS)
        fill_rows(t, bound, t->owed_ns > 0);
    if (!t->sliced && t->work != GS_WORK_TOKENS)
        fill_prompts(t, bound, t->owed_ns > 0);
}

/* ---- the step ---------------------------------------------------------------------------------*/

/* Something is there that may run and was not held on purpose. */
static bool must_move(const slo_step *t) {
    const gs_sched *s = t->s;
    const gs_sched_list *const lists[] = {&s->running, &s->waiting};
    for (int i = 0; i < 2; i++)
        for (const gs_sched_seq *q = lists[i]->head; q; q = q->next)
            if (!slo_is_held(t, q) &&
                (slo_interactive(s, q) || s->outside.background_until_ns == GS_NEVER_NS) &&
                (i == 0 || !slo_person_full(s, q)) &&
                (i == 0 || q->admitted || (t->held >> q->d.cls & 1) == 0))
                return true;
    return false;
}

static bool only_background(const gs_plan *p) {
    for (int32_t i = 0; i < p->n_items; i++)
        if (p->items[i].cls != GS_CLASS_BACKGROUND)
            return false;
    return p->n_items > 0;
}

/* Fills the step with what it may hold. Returns how many classes want prompt tokens. */
static int fill_step(slo_step *t, class_need need[GS_CLASS_COUNT]) {
    int n_need = 0;
    if (t->work == GS_WORK_PROMPTS)
        t->horizon_ns = t->streams ? t->room_ns : (double)INFINITY;
    else
        plan_streams(t);
    if (t->work != GS_WORK_TOKENS)
        n_need = plan_prompts(t, need);
    plan_background(t);
    return n_need;
}

/* Nothing was found for this turn in mode exclusive: it is the others'. */
static gs_work other_turn(gs_work w) {
    return w == GS_WORK_PROMPTS ? GS_WORK_TOKENS : GS_WORK_PROMPTS;
}

static void slo_build(slo_step *t) {
    gs_sched *s = t->s;
    class_need need[GS_CLASS_COUNT];
    int64_t wake_ns = GS_NEVER_NS;
    look(t);
    t->held = slo_windows(t, &wake_ns);
    t->work = slo_find_work(t);
    if (t->work == GS_WORK_NONE)
        return;
    if (t->work == GS_WORK_ALL || s->mode.now == GS_MODE_EXCLUSIVE)
        plan_slice(t);
    if (s->plan.n_items > 0) {
        s->plan.limit_ns = t->until_ns - t->now_ns;
        if (!s->plan.resume)
            give_reasons(t, NULL, 0);
        return;
    }
    int n_need = fill_step(t, need);
    if (s->plan.n_items == 0 && t->work != GS_WORK_ALL && !s->beside && !s->plan.beside) {
        t->work = other_turn(t->work);
        n_need = fill_step(t, need);
    }
    if (s->plan.resume)
        return;
    if (s->plan.beside && s->plan.n_items == 0) { /* the step on the other threads goes on */
        give_reasons(t, need, n_need);
        s->plan.wake_ns = wake_ns;
        return;
    }
    const double limit = t->streams ? t->horizon_ns : t->limit_ns;
    if (limit > 0.0 && limit < 1e15)
        s->plan.limit_ns = (int64_t)limit;
    give_reasons(t, need, n_need);
    if (s->plan.n_items > 0)
        return;
    if (!must_move(t)) {
        const int64_t rested_ns = t->p->accounts->rest_until_ns;
        s->plan.wake_ns = rested_ns > t->now_ns && rested_ns < wake_ns ? rested_ns : wake_ns;
        return;
    }
    if (gs_sched_suspended(s))
        gs_sched_core_drop_parked(s);
    gs_policy_fcfs.plan(s, t->now_ns);
}

static bool is_aged(const gs_sched *s, int64_t now_ns) {
    return gs_sched_suspended(s) && now_ns - s->suspended_ns >= s->slo.safepoint_max_age_ns;
}

static slo_step step_at(gs_sched *s, int64_t now_ns) {
    slo_state *p = slo_of(s);
    return (slo_step){.s = s,
                      .p = p,
                      .now_ns = now_ns,
                      .owed_ns = slo_background_owed(s, now_ns),
                      .until_ns = s->outside.background_until_ns,
                      .background_held =
                          s->slo.background_paused || now_ns < p->accounts->rest_until_ns};
}

static void slo_plan(gs_sched *s, int64_t now_ns) {
    slo_step t = step_at(s, now_ns);
    const bool alone = s->outside.background_until_ns == GS_NEVER_NS;
    const bool aged = is_aged(s, now_ns);
    if (aged)
        gs_sched_core_resume(s);
    else
        slo_build(&t);
    /* A step that had to be gone on with, and what is owed, is not put aside again at once. */
    s->plan.may_yield = s->slo.safepoints && !s->plan.beside && slo_rule(s, GS_RULE_SAFEPOINTS) &&
                        s->parked.n_items == 0 && !(aged && t.owed_ns > 0 && alone) &&
                        only_background(&s->plan);
    if (s->plan.may_yield)
        s->plan.yield_ns = t.until_ns;
    s->plan.max_threads = only_background(&s->plan) ? s->slo.background_threads : 0;
    if (s->plan.n_items > 0)
        slo_of(s)->prompts_last = s->plan.n_prefill_tokens > 0;
    if (s->plan.n_items > 0 && !s->plan.resume)
        slo_weigh_items(s);
}

/* What other schedulers of the device have to know. */
static void slo_need(gs_sched *s, int64_t now_ns, gs_sched_need *out) {
    slo_step t = step_at(s, now_ns);
    look(&t);
    out->owed_ns = t.owed_ns;
    if (is_aged(s, now_ns) && out->owed_ns < s->slo.background_gap_ns)
        out->owed_ns = s->slo.background_gap_ns;
    out->counter_ns = INFINITY;
    gs_cost_step tile = {0};
    const gs_sched_list *const lists[] = {&s->running, &s->waiting};
    for (int i = 0; i < 2; i++)
        for (const gs_sched_seq *q = lists[i]->head; q; q = q->next) {
            if (slo_is_held(&t, q))
                continue;
            if (!slo_interactive(s, q)) {
                out->background = true;
                out->counter_ns = slo_min(out->counter_ns, slo_person_of(s, q)->counter_ns);
            } else if (i == 0 && is_stream(s, q)) {
                bool ahead;
                const int64_t start_ns = next_due(&t, q, &ahead) - (int64_t)t.streams_ns;
                out->start_ns = start_ns < out->start_ns ? start_ns : out->start_ns;
                out->shown_ns = q->last_token_ns > out->shown_ns ? q->last_token_ns : out->shown_ns;
                gs_cost_step_add(&tile, 1, q->n_computed, true, true);
            } else {
                const double slack = slack_of(&t, q);
                out->prompts = true;
                if (slack > 0 && now_ns + (int64_t)slack < out->prompt_start_ns)
                    out->prompt_start_ns = now_ns + (int64_t)slack;
            }
        }
    out->streams = t.streams;
    out->streams_ns = (int64_t)t.streams_ns;
    gs_cost_step_add(&tile, s->slo.tile_tokens, 0, false, true);
    out->least_ns = (int64_t)gs_sched_predict(s, &tile);
}

/* A voice or chat that came since the step began: one that was there before had its chance. Or the
 * next layer would end too late for other schedulers' streams. */
static bool slo_should_yield(const gs_sched *s, int64_t now_ns) {
    if (s->plan.yield_ns != GS_NEVER_NS &&
        now_ns + s->plan.predicted_ns / s->cfg.n_layers > s->plan.yield_ns)
        return true;
    for (const gs_sched_seq *q = s->waiting.tail; q && q->x.wait_now == GS_WAIT_STEP; q = q->prev)
        if (q->d.cls <= GS_CLASS_CHAT && !q->cancelled)
            return true;
    return false;
}

static void swap_charges(gs_sched *s) {
    slo_state *p = slo_of(s);
    slo_charge *const charges = p->charges;
    p->charges = p->parked;
    p->parked = charges;
}

static double slo_weight(const gs_sched *s, int32_t item) {
    return slo_of(s)->charges[item].weight;
}

/* ---- events -----------------------------------------------------------------------------------*/

static void slo_on_submit(gs_sched *s, gs_sched_seq *q, int64_t now_ns) {
    slo_person_joins(s, q);
    slo_window_arrival(s, q->d.cls, now_ns);
}

static void slo_on_measured(gs_sched *s, int64_t elapsed_ns, int64_t now_ns) {
    slo_charge_step(s, elapsed_ns, now_ns);
    for (int32_t i = 0; i < s->plan.n_items; i++) {
        const gs_sched_seq *q = s->planned[i];
        if (s->plan.items[i].sample && q->n_output == 0 && s->classes[q->d.cls].ttft_ns > 0)
            slo_judge(s, q->d.cls, now_ns > slo_first_due(s, q));
    }
}

static void slo_on_end(gs_sched *s, const gs_sched_seq *q) {
    const gs_class_config *k = &s->classes[q->d.cls];
    const bool whole = q->end.reason <= GS_END_DONE;
    int64_t due_ns = q->d.deadline_ns;
    if (due_ns == 0 && k->complete_ns > 0)
        due_ns = q->d.arrival_ns + k->complete_ns + q->x.wait_ns[GS_WAIT_PAUSED];
    if (whole && k->ttft_ns == 0 && due_ns > 0)
        slo_judge(s, q->d.cls, s->now_ns > due_ns);
    slo_person_leaves(s, q);
}

const gs_policy_ops gs_policy_slo = {.name = "slo",
                                     .plan = slo_plan,
                                     .modes = true,
                                     .need = slo_need,
                                     .state_bytes = slo_state_bytes,
                                     .init = slo_init,
                                     .leave = slo_leave,
                                     .classify = slo_classify,
                                     .admit = slo_admit,
                                     .on_submit = slo_on_submit,
                                     .on_measured = slo_on_measured,
                                     .on_suspend = swap_charges,
                                     .on_resume = swap_charges,
                                     .weight = slo_weight,
                                     .set_person = slo_set_person,
                                     .get_person = slo_get_person,
                                     .charged_ns = slo_charged_ns,
                                     .charge = slo_charge_person,
                                     .person_config = slo_person_config,
                                     .on_pause = slo_person_pauses,
                                     .on_end = slo_on_end,
                                     .should_yield = slo_should_yield,
                                     .check = slo_check};
