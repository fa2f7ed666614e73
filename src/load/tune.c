#include "load/tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"

#define WORTH   0.03  /* less than this is not worth a change */
#define SETTLED 0.003 /* a score must be so much better, relatively, to count as better */

typedef struct search {
    const gs_tune_config *c;
    gs_tune_outcome *out;
    gs_rng rng;
} search;

static int look_once(search *s, const gs_tune_point *p, double load, uint64_t seed,
                     gs_tune_look *out) {
    s->out->n_looks++;
    return s->c->look(s->c->arg, p, load, seed, out);
}

/* With seeds 0 .. n-1: the worst margin, the mean throughput. Stops at the first that fails. */
static int look(search *s, const gs_tune_point *p, double load, int n, gs_tune_look *out) {
    *out = (gs_tune_look){(double)INFINITY, 0.0};
    int k = 0;
    for (; k < n; k++) {
        gs_tune_look one;
        const int rc = look_once(s, p, load, (uint64_t)k, &one);
        if (rc != 0)
            return rc;
        out->margin = one.margin < out->margin ? one.margin : out->margin;
        out->throughput += one.throughput;
        if (one.margin <= 0) {
            k++;
            break;
        }
    }
    out->throughput /= k > 0 ? k : 1;
    return 0;
}

/* From a load at which p is known to hold (or the lowest) to the largest. */
static int sustain(search *s, const gs_tune_point *p, double from, gs_tune_result *out) {
    const gs_tune_config *c = s->c;
    double low = from, high = c->high;
    gs_tune_look l;
    *out = (gs_tune_result){.point = *p};
    int rc = look(s, p, low, c->n_seeds, &l);
    if (rc != 0)
        return rc;
    out->margin = l.margin;
    if (l.margin <= 0) {
        if (from <= c->low)
            return 0;
        high = from;
        low = c->low;
        rc = look(s, p, low, c->n_seeds, &l);
        if (rc != 0 || l.margin <= 0)
            return rc;
    }
    out->load = low;
    out->throughput = l.throughput;
    out->margin = l.margin;
    /* Double first: most loads are near the lower end of a wide range. */
    for (double step = low * 2; high / low > 1 + c->precision;) {
        const double mid = step > 0 && step < high ? step : sqrt(low * high);
        rc = look(s, p, mid, c->n_seeds, &l);
        if (rc != 0)
            return rc;
        if (l.margin > 0) {
            low = mid;
            step = step > 0 ? 2 * mid : 0;
            out->load = mid;
            out->throughput = l.throughput;
            out->margin = l.margin;
        } else {
            high = mid;
            step = 0;
        }
    }
    return 0;
}

int gs_tune_sustain(const gs_tune_config *c, const gs_tune_point *p, gs_tune_result *out) {
    gs_tune_outcome scratch = {0};
    search s = {.c = c, .out = &scratch};
    return sustain(&s, p, c->low, out);
}

static bool same(const gs_tune_config *c, const gs_tune_point *a, const gs_tune_point *b) {
    return memcmp(a->choice, b->choice, (size_t)c->n_params) == 0;
}

/* Into the list of the best, which stays sorted and without doubles. True: it is the new best. */
static bool enter(search *s, const gs_tune_result *r) {
    gs_tune_outcome *o = s->out;
    int at = o->n_best;
    for (int i = 0; i < o->n_best; i++)
        if (same(s->c, &o->best[i].point, &r->point))
            return false;
    const bool better = o->n_best == 0 || r->throughput > o->best[0].throughput * (1 + SETTLED) ||
                        (o->best[0].load <= 0 && r->margin > o->best[0].margin);
    while (at > 0 && (at - 1 > 0 || better) && o->best[at - 1].throughput < r->throughput)
        at--;
    if (better)
        at = 0;
    if (at >= GS_TUNE_BEST)
        return false;
    const int last = o->n_best < GS_TUNE_BEST ? o->n_best : GS_TUNE_BEST - 1;
    for (int i = last; i > at; i--)
        o->best[i] = o->best[i - 1];
    o->best[at] = *r;
    o->n_best = last + 1;
    return better;
}

/* Under the best one's load first: what does not hold there, or moves no more, is worse. */
static int challenge(search *s, const gs_tune_point *p) {
    const gs_tune_result *best = &s->out->best[0];
    const double load = best->load > 0 ? best->load : s->c->low;
    gs_tune_look l;
    gs_tune_result r;
    s->out->n_candidates++;
    int rc = look(s, p, load, s->c->n_seeds, &l);
    if (rc != 0)
        return rc;
    if (best->load <= 0 && l.margin <= 0) { /* nothing holds yet: go where it fails least */
        enter(s, &(gs_tune_result){.point = *p, .margin = l.margin});
        return 0;
    }
    if (l.margin <= 0)
        return 0;
    rc = sustain(s, p, load, &r);
    if (rc == 0 && enter(s, &r) && s->c->progress)
        s->c->progress(s->c->arg, s->out->n_candidates, r.load, r.throughput);
    return rc;
}

/* ---- successive halving ----------------------------------------------------------------------*/

typedef struct entrant {
    gs_tune_point point;
    gs_tune_look l;
} entrant;

static int by_look(const void *a, const void *b) {
    const gs_tune_look *x = &((const entrant *)a)->l, *y = &((const entrant *)b)->l;
    /* All that hold before all that do not; then by throughput, or by how near they are. */
    if ((x->margin > 0) != (y->margin > 0))
        return x->margin > 0 ? -1 : 1;
    const double p = x->margin > 0 ? x->throughput + x->margin : x->margin;
    const double q = y->margin > 0 ? y->throughput + y->margin : y->margin;
    return (p < q) - (p > q);
}

static void draw(search *s, gs_tune_point *p) {
    for (int i = 0; i < s->c->n_params; i++)
        /* Half of the parameters stay as they are: few surfaces reward moving all at once. */
        p->choice[i] = gs_rng_below(&s->rng, 2) == 0
                           ? s->c->start.choice[i]
                           : (uint8_t)gs_rng_below(&s->rng, s->c->n_choices[i]);
}

static int halve(search *s, entrant *e, int n) {
    const double load = 1.25 * (s->out->best[0].load > 0 ? s->out->best[0].load : s->c->low);
    int seeds = 1;
    for (int i = 0; i < n; i++)
        draw(s, &e[i].point);
    s->out->n_candidates += n;
    for (; n > 4; n = (n + 1) / 2, seeds = seeds < s->c->n_seeds ? 2 * seeds : seeds) {
        for (int i = 0; i < n; i++) {
            const int rc = look(s, &e[i].point, load, seeds, &e[i].l);
            if (rc != 0)
                return rc;
        }
        qsort(e, (size_t)n, sizeof *e, by_look);
    }
    for (int i = 0; i < n; i++) {
        const int rc = challenge(s, &e[i].point);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- coordinate search -----------------------------------------------------------------------*/

/* One round over all parameters; *moved: the best changed. */
static int round_trip(search *s, bool *moved) {
    *moved = false;
    for (int i = 0; i < s->c->n_params; i++) {
        for (int v = 0; v < s->c->n_choices[i]; v++) {
            const gs_tune_point was = s->out->best[0].point;
            gs_tune_point p = was;
            if (p.choice[i] == v)
                continue;
            p.choice[i] = (uint8_t)v;
            const int rc = challenge(s, &p);
            if (rc != 0)
                return rc;
            *moved |= !same(s->c, &s->out->best[0].point, &was);
        }
    }
    return 0;
}

/* What each other choice would cost, around the point that was chosen. Where targets break under
 * its load, the share by which they do is taken for the share of load that must go. */
static int measure_sensitivity(search *s) {
    const gs_tune_result *best = &s->out->best[0];
    for (int i = 0; i < s->c->n_params; i++) {
        gs_tune_sensitivity *k = &s->out->sensitivity[i];
        *k = (gs_tune_sensitivity){.param = i, .worst = 1.0};
        for (int v = 0; v < s->c->n_choices[i] && best->load > 0; v++) {
            gs_tune_look l;
            gs_tune_point p = best->point;
            if (p.choice[i] == v)
                continue;
            p.choice[i] = (uint8_t)v;
            const int rc = look(s, &p, best->load, s->c->n_seeds, &l);
            if (rc != 0)
                return rc;
            const double part = l.margin <= 0 ? 1 + (l.margin > -0.5 ? l.margin : -0.5)
                                              : l.throughput / best->throughput;
            if (part < k->worst) {
                k->worst = part;
                k->worst_choice = (uint8_t)v;
            }
        }
    }
    return 0;
}

static int by_worst(const void *a, const void *b) {
    const gs_tune_sensitivity *x = a, *y = b;
    return x->worst != y->worst ? (x->worst > y->worst) - (x->worst < y->worst)
                                : x->param - y->param;
}

/* ---- the end ---------------------------------------------------------------------------------*/

/* What makes no difference goes back to what it was: few changes are easier to believe. */
static int simplify(search *s) {
    gs_tune_result *best = &s->out->best[0];
    for (int i = 0; i < s->c->n_params && best->load > 0; i++) {
        gs_tune_look l;
        gs_tune_point p = best->point;
        if (p.choice[i] == s->c->start.choice[i])
            continue;
        p.choice[i] = s->c->start.choice[i];
        const int rc = look(s, &p, best->load, s->c->n_seeds, &l);
        if (rc != 0)
            return rc;
        if (l.margin > 0 && l.throughput >= best->throughput * (1 - SETTLED)) {
            best->point = p;
            best->margin = l.margin;
        }
    }
    return 0;
}

/* Nor is a gain worth the trouble that is within what such a simulation can tell. */
static void prefer_start(gs_tune_outcome *o) {
    if (o->start.load > 0 && o->best[0].throughput < o->start.throughput * (1 + WORTH))
        o->best[0] = o->start;
}

int gs_tune_search(const gs_tune_config *c, gs_tune_outcome *out) {
    search s = {.c = c, .out = out};
    bool moved = true;
    *out = (gs_tune_outcome){0};
    gs_rng_seed(&s.rng, c->seed);
    entrant *e = gs_calloc(c->n_random > 0 ? (size_t)c->n_random : 1, sizeof *e);
    if (!e)
        return GS_ERR_NOMEM;
    int rc = sustain(&s, &c->start, c->low, &out->start);
    if (rc == 0)
        enter(&s, &out->start);
    if (rc == 0 && c->n_random > 0)
        rc = halve(&s, e, c->n_random);
    for (int i = 0; i < c->n_rounds && moved && rc == 0; i++)
        rc = round_trip(&s, &moved);
    if (rc == 0)
        rc = simplify(&s);
    prefer_start(out);
    if (rc == 0)
        rc = measure_sensitivity(&s);
    qsort(out->sensitivity, (size_t)c->n_params, sizeof *out->sensitivity, by_worst);
    gs_free(e);
    return rc;
}
