/*
 * Which mode runs (mode.h). `auto` weighs the modes when prompts wait beside streams: how much of
 * this load each would do in a second, by the fitted step times, with the next tokens in time. The
 * load is so many prompt tokens to each token of an answer as lately. A mode has to be better by a
 * margin for a while before it takes over, so that two modes that are about as good do not
 * alternate.
 */
#include "sched/slo_impl.h"

#include <math.h>

#define WEIGH_EVERY_NS 50000000LL
#define MARGIN         1.05
/* What the others have to be better by, because no load stays as it was weighed and mixed is never
 * far from the best. */
#define HANDICAP    1.10
#define PATIENCE_NS 500000000LL

/* What is to be shared out, priced. */
typedef struct load {
    const gs_sched *s;
    const gs_cost_step *rows; /* streams, and background's rows */
    double rows_ns;           /* a step of them on all threads */
    double ratio;             /* prompt tokens to each token of an answer */
    double pace_ns;           /* the rows' steps may be this far apart */
    double quantum_ns;        /* a step of prompts alone takes at most so long */
} load;

static bool in_prompt(const slo_step *t, const gs_sched_seq *q) {
    return !q->parked && !slo_is_held(t, q) && !gs_sched_is_decode(q);
}

static bool prompts_wait(const slo_step *t) {
    for (const gs_sched_seq *q = t->s->running.head; q; q = q->next)
        if (in_prompt(t, q))
            return true;
    for (const gs_sched_seq *q = t->s->waiting.head; q; q = q->next)
        if (in_prompt(t, q) && (q->admitted || (t->held >> q->d.cls & 1) == 0) &&
            !slo_person_full(t->s, q))
            return true;
    return false;
}

/* Everybody who decodes. */
static gs_cost_step rows_of(const slo_step *t) {
    gs_cost_step x = {0};
    for (const gs_sched_seq *q = t->s->running.head; q; q = q->next)
        if (!q->parked && !slo_is_held(t, q) && gs_sched_is_decode(q))
            gs_cost_step_add(&x, 1, q->n_computed, true, true);
    return x;
}

/* ---- weighing ---------------------------------------------------------------------------------*/

/* Most prompt tokens, at least a tile, that join base in a step of bound_ns; and that step. */
static int32_t most_tokens(const load *l, const gs_cost_step *base, gs_cost_part part,
                           double bound_ns, double *step_ns) {
    const int32_t tile = l->s->slo.tile_tokens;
    const int32_t room = (l->s->cfg.max_batch_tokens - base->n_tokens) / tile;
    int32_t low = 1, high = room > 1 ? room : 1;
    while (low < high) {
        const int32_t mid = low + (high - low + 1) / 2;
        gs_cost_step x = *base;
        gs_cost_step_add(&x, mid * tile, 0, false, false);
        if (gs_cost_predict_on(&l->s->cost, &x, part) <= bound_ns)
            low = mid;
        else
            high = mid - 1;
    }
    gs_cost_step x = *base;
    gs_cost_step_add(&x, low * tile, 0, false, false);
    *step_ns = gs_cost_predict_on(&l->s->cost, &x, part);
    return low * tile;
}

/*
 * Tokens of answers a second, with their part of prompts, where n prompt tokens come every
 * prompt_ns, and beside them a token of each row every row_ns. If that gives fewer tokens of
 * answers than belong to the prompts, the rest follows in steps of rows alone.
 */
static double rate_of(const load *l, int32_t n, double prompt_ns, double row_ns) {
    const double prompts = l->ratio * prompt_ns / n;
    const double made = prompts / row_ns * l->rows->n_tokens;
    const double rest = made < 1.0 ? (1.0 - made) * l->rows_ns / l->rows->n_tokens : 0.0;
    return 1e9 / (prompts + rest);
}

static double mixed_rate(const load *l) {
    double ns;
    const double bound = slo_min(l->pace_ns, l->rows_ns + l->quantum_ns);
    const int32_t n = most_tokens(l, l->rows, GS_COST_ALL, bound, &ns);
    return rate_of(l, n, ns, ns);
}

static double exclusive_rate(const load *l) {
    static const gs_cost_step none;
    double ns;
    const double bound = slo_min(l->pace_ns - l->rows_ns, l->quantum_ns);
    const int32_t n = most_tokens(l, &none, GS_COST_ALL, bound, &ns);
    return rate_of(l, n, ns + l->rows_ns, ns + l->rows_ns);
}

/* With the boundary that does most of those with which tokens come in time; where there is none,
 * most of the threads are the streams'. */
static double split_rate(const load *l, int32_t *token_threads) {
    static const gs_cost_step none;
    const int32_t n_threads = l->s->cfg.n_threads;
    double best = 0.0;
    *token_threads = n_threads - 1;
    for (int32_t n = 1; n < n_threads; n++) {
        const gs_cost_part tokens = {(double)n / n_threads, true};
        const gs_cost_part prompts = {(double)(n_threads - n) / n_threads, true};
        const double row_ns = gs_cost_predict_on(&l->s->cost, l->rows, tokens);
        if (row_ns > l->pace_ns && n + 1 < n_threads)
            continue;
        double ns;
        const int32_t chunk = most_tokens(l, &none, prompts, l->quantum_ns, &ns);
        const double late = row_ns > l->pace_ns ? l->pace_ns / row_ns : 1.0;
        /* A step of prompts is seen to be over between two steps of tokens, and those that come
         * meanwhile find their side busy: about half of such a step each. */
        const double rate = rate_of(l, chunk, ns + row_ns, row_ns) * late;
        if (rate <= best)
            continue;
        best = rate;
        *token_threads = n;
    }
    return best;
}

/* Longest step of prompts alone: of the class that has most of them. */
static double quantum_of(const slo_step *t) {
    const gs_sched *s = t->s;
    int64_t n[GS_CLASS_COUNT] = {0};
    int best = GS_CLASS_CHAT;
    const gs_sched_list *const lists[] = {&s->running, &s->waiting};
    for (int i = 0; i < 2; i++)
        for (const gs_sched_seq *q = lists[i]->head; q; q = q->next)
            if (in_prompt(t, q))
                n[q->d.cls] += gs_sched_n_known(q) - q->n_computed;
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        best = n[c] > n[best] ? c : best;
    return (double)s->classes[best].quantum_ns;
}

/* Since the start, but for a beginning in which every machine is alike. */
static double ratio_of(const gs_sched *s) {
    return ((double)s->stats.prefill_tokens + 4.0 * GS_COST_CHUNK) /
           ((double)s->stats.decode_tokens + GS_COST_CHUNK);
}

static load load_of(const slo_step *t, const gs_cost_step *rows) {
    const gs_sched *s = t->s;
    load l = {.s = s,
              .rows = rows,
              .rows_ns = gs_cost_predict(&s->cost, rows),
              .ratio = ratio_of(s),
              .pace_ns = INFINITY,
              .quantum_ns = quantum_of(t)};
    for (const gs_sched_seq *q = s->running.head; q; q = q->next)
        if (!q->parked && !slo_is_held(t, q) && slo_interactive(s, q) && gs_sched_is_decode(q))
            l.pace_ns = slo_min(l.pace_ns, slo_reach(t, q->d.cls, slo_tpot(t, q->d.cls)));
    return l;
}

static gs_mode best_of(const gs_mode_view *m) {
    int best = GS_MODE_MIXED;
    for (int i = GS_MODE_MIXED; i < GS_MODE_COUNT; i++)
        if (m->rate[i] > m->rate[best])
            best = i;
    return (gs_mode)best;
}

static void weigh(slo_step *t, const gs_cost_step *rows) {
    gs_sched *s = t->s;
    const load l = load_of(t, rows);
    gs_mode_view *m = &s->mode;
    int32_t token_threads = 0;
    m->rate[GS_MODE_MIXED] = mixed_rate(&l);
    m->rate[GS_MODE_EXCLUSIVE] = exclusive_rate(&l) / HANDICAP;
    m->rate[GS_MODE_SPLIT] = s->splits ? split_rate(&l, &token_threads) / HANDICAP : 0.0;
    m->token_threads = token_threads;
    m->prompt_threads = s->splits ? s->cfg.n_threads - token_threads : 0;
    t->p->weigh_ns = t->now_ns + WEIGH_EVERY_NS;
}

/* ---- choosing ---------------------------------------------------------------------------------*/

static void become(slo_step *t, gs_mode now, gs_mode_why why) {
    gs_mode_view *m = &t->s->mode;
    m->why = why;
    if (m->now == now)
        return;
    m->now = now;
    m->since_ns = t->now_ns;
    m->n_changes++;
}

static void choose(slo_step *t) {
    const gs_sched *s = t->s;
    slo_state *p = t->p;
    const gs_mode_view *m = &s->mode;
    const gs_mode best = best_of(m);
    if (m->now == GS_MODE_SPLIT && !s->splits)
        become(t, best, GS_MODE_WHY_BEST);
    if (m->why != GS_MODE_WHY_BEST && m->why != GS_MODE_WHY_CLOSE) { /* the first time */
        const bool clear = m->rate[best] > MARGIN * m->rate[m->now];
        become(t, clear ? best : m->now, clear ? GS_MODE_WHY_BEST : GS_MODE_WHY_CLOSE);
    }
    if (best == m->now || m->rate[best] <= MARGIN * m->rate[m->now]) {
        p->better_since_ns = 0;
        return;
    }
    if (p->better_since_ns == 0 || p->better != best) {
        p->better = best;
        p->better_since_ns = t->now_ns;
    }
    if (t->now_ns - p->better_since_ns >= PATIENCE_NS)
        become(t, best, GS_MODE_WHY_BEST);
}

static void find_mode(slo_step *t, const gs_cost_step *rows, bool both) {
    gs_sched *s = t->s;
    const gs_mode set = s->slo.mode;
    /* The boundary stays where it is while a step runs on one side of it. */
    if (both && !s->beside && t->now_ns >= t->p->weigh_ns)
        weigh(t, rows);
    if (set == GS_MODE_SPLIT && !s->splits)
        become(t, GS_MODE_MIXED, s->no_split);
    else if (set != GS_MODE_AUTO)
        become(t, set, GS_MODE_WHY_SET);
    else if (both && !s->beside)
        choose(t);
}

/* ---- what the step may hold -------------------------------------------------------------------*/

/*
 * exclusive: prompts get the time that is left until the streams' next step has to begin, tokens
 * the step after that. Prompts that fit twice get it twice; where they do not fit at all they get
 * a tile every other step, as they would in a mixed one. Background alone does not get that.
 */
static gs_work turn_of(slo_step *t) {
    const gs_sched *s = t->s;
    gs_cost_step tile = {0};
    gs_cost_step_add(&tile, s->slo.tile_tokens, 0, false, false);
    const double least = gs_sched_predict(s, &tile);
    double room = slo_room_ns(t);
    if (t->streams && !t->first_waits)
        room = slo_min(room, slo_background_bound(s, t->streams_ns) - t->streams_ns);
    t->room_ns = slo_max(room, least);
    if (!t->streams)
        return t->p->prompts_last ? GS_WORK_TOKENS : GS_WORK_PROMPTS;
    if (room >= least)
        return GS_WORK_PROMPTS;
    const bool must = t->first_waits || t->owed_ns > 0;
    return must && !t->p->prompts_last ? GS_WORK_PROMPTS : GS_WORK_TOKENS;
}

gs_work slo_find_work(slo_step *t) {
    gs_sched *s = t->s;
    const gs_cost_step rows = rows_of(t);
    const bool both = rows.n_tokens > 0 && prompts_wait(t);
    find_mode(t, &rows, both);
    const bool split = s->mode.now == GS_MODE_SPLIT && s->splits;
    if (s->work == GS_WORK_PROMPTS) {
        if (!split || !both)
            return GS_WORK_NONE;
        s->part = (gs_cost_part){(double)s->mode.prompt_threads / s->cfg.n_threads, true};
        t->streams = false; /* they have cores of their own: nothing but the quantum bounds it */
        return GS_WORK_PROMPTS;
    }
    if (s->beside) {
        t->first_waits = false; /* and gets what it waits for: no stream stands back for it */
        return GS_WORK_TOKENS;
    }
    if (!both || gs_sched_suspended(s))
        return GS_WORK_ALL;
    if (split)
        return GS_WORK_TOKENS;
    return s->mode.now == GS_MODE_EXCLUSIVE ? turn_of(t) : GS_WORK_ALL;
}
