#include "load/autotune.h"

#include <math.h>
#include <string.h>

#define SMOOTH     0.4  /* of the baseline: weight of a new interval */
#define SHIFT      0.25 /* the baseline's score moved by so much at once: another load */
#define MISS_PRICE 4.0  /* each share of misses too many costs so many shares of throughput */
#define MAX_PASS   8
#define FLAT       0.03 /* gains and losses up to this may be noise: the step made no difference */
#define FLOOR      0.01 /* least miss rate that the test reckons with */
/* Wald's bounds for errors of 5 % (a regression is believed) and 10 %. */
#define LLR_WORSE (log((1 - 0.10) / 0.05))

double gs_autotune_score(const gs_autotune_config *cfg, const gs_autotune_window *w) {
    const double misses = w->n_judged > 0 ? (double)w->n_missed / w->n_judged : 0.0;
    const double over = misses > cfg->allowed_misses ? misses - cfg->allowed_misses : 0.0;
    const double discount = 1 - MISS_PRICE * over;
    return w->seconds > 0 ? w->work / w->seconds * (discount > 0 ? discount : 0.0) : 0.0;
}

int gs_autotune_nearest(const gs_autotune_knob *k, double v) {
    int best = 0;
    for (int i = 1; i < k->n; i++)
        if (fabs(k->values[i] - v) < fabs(k->values[best] - v))
            best = i;
    return best;
}

void gs_autotune_init(gs_autotune *t, const gs_autotune_config *cfg, const int *at) {
    *t = (gs_autotune){.cfg = *cfg};
    for (int i = 0; i < cfg->n_knobs; i++)
        t->at[i] = at[i];
}

static double value_of(const gs_autotune *t, int knob, int at) {
    return t->cfg.knobs[knob].values[at];
}

static double misses_of(const gs_autotune_window *w) {
    return w->n_judged > 0 ? (double)w->n_missed / w->n_judged : 0.0;
}

static void forget_moves(gs_autotune *t) {
    memset(t->expected, 0, sizeof t->expected);
    memset(t->pass, 0, sizeof t->pass);
    memset(t->misses_in_row, 0, sizeof t->misses_in_row);
    memset(t->extra, 0, sizeof t->extra);
}

/* ---- baseline --------------------------------------------------------------------------------*/

static void take_baseline(gs_autotune *t, const gs_autotune_window *w) {
    const double score = gs_autotune_score(&t->cfg, w), misses = misses_of(w);
    if (t->n_base > 0 && fabs(score - t->base_score) > SHIFT * t->base_score) {
        t->n_shifts++;
        t->n_base = 0;
        forget_moves(t);
    }
    const double a = t->n_base == 0 ? 1.0 : SMOOTH;
    t->base_score += a * (score - t->base_score);
    t->base_misses += a * (misses - t->base_misses);
    t->n_base++;
}

/* ---- moves: knob and direction, in turn ------------------------------------------------------*/

/* A step of the knob upwards or downwards, as long as is due and the rails allow; 0: none. */
static int step_of(const gs_autotune *t, int knob, int up) {
    const int room = up ? t->cfg.knobs[knob].n - 1 - t->at[knob] : t->at[knob];
    const int length = 1 + t->extra[knob][up];
    return (length < room ? length : room) * (up ? 1 : -1);
}

/* The next move that is due; false: none can be made. What failed before is passed over for a
 * while, longer each time. */
static bool choose(gs_autotune *t, int *knob, int *step) {
    const int n = 2 * t->cfg.n_knobs;
    for (int tries = 0; tries < n * (MAX_PASS + 1); tries++) {
        const int move = t->next++ % n, k = move / 2, up = move % 2;
        if (step_of(t, k, up) == 0)
            continue;
        if (t->pass[k][up] > 0) {
            t->pass[k][up]--;
            continue;
        }
        *knob = k;
        *step = step_of(t, k, up);
        return true;
    }
    return false;
}

static gs_autotune_action begin_trial(gs_autotune *t, int knob, int step) {
    const int before = t->at[knob];
    t->knob = knob;
    t->step = step;
    t->at[knob] += step;
    t->trying = true;
    t->n_trial = 0;
    t->trial_score = t->llr = 0.0;
    t->n_tried++;
    return (gs_autotune_action){.kind = GS_AUTOTUNE_TRY,
                                .knob = knob,
                                .value = value_of(t, knob, t->at[knob]),
                                .before = value_of(t, knob, before),
                                .predicted = t->expected[knob][step > 0],
                                .why = "one step, to see"};
}

bool gs_autotune_plant(gs_autotune *t, int knob, int value) {
    if (knob < 0 || knob >= t->cfg.n_knobs || value < 0 || value >= t->cfg.knobs[knob].n)
        return false;
    if (t->trying)
        t->at[t->knob] -= t->step;
    begin_trial(t, knob, value - t->at[knob]);
    return true;
}

/* ---- trial -----------------------------------------------------------------------------------*/

static gs_autotune_action end_trial(gs_autotune *t, bool keep, const char *why) {
    const int up = t->step > 0, k = t->knob;
    const double gain = t->base_score > 0 ? t->trial_score / t->base_score - 1 : 0.0;
    const double before = value_of(t, k, t->at[k] - t->step);
    const bool flat = t->n_trial >= t->cfg.trial_intervals && fabs(gain) <= FLAT;
    gs_autotune_action a = {.kind = keep ? GS_AUTOTUNE_KEEP : GS_AUTOTUNE_REVERT,
                            .knob = k,
                            .predicted = t->expected[k][up],
                            .measured = gain,
                            .why = why};
    t->expected[k][up] += 0.5 * (gain - t->expected[k][up]);
    t->trying = false;
    t->rest = t->cfg.rest_intervals;
    if (keep) {
        a.value = value_of(t, k, t->at[k]);
        a.before = before;
        t->base_score = t->trial_score;
        t->misses_in_row[k][up] = 0;
        t->extra[k][0] = t->extra[k][1] = 0;
        t->pass[k][!up] = 2;  /* not straight back */
        t->next = 2 * k + up; /* what helped may help again */
        t->n_kept++;
        return a;
    }
    a.before = value_of(t, k, t->at[k]);
    a.value = before;
    t->at[k] -= t->step;
    t->n_reverted++;
    if (flat && t->extra[k][up] + 1 < t->cfg.knobs[k].n) {
        t->extra[k][up]++;
        return a;
    }
    t->extra[k][up] = 0;
    t->misses_in_row[k][up] += t->misses_in_row[k][up] < 3;
    t->pass[k][up] = (1 << t->misses_in_row[k][up]) - 1;
    return a;
}

static gs_autotune_action judge_trial(gs_autotune *t, const gs_autotune_window *w) {
    const double misses = misses_of(w), score = gs_autotune_score(&t->cfg, w);
    const double p0 = t->base_misses > FLOOR ? t->base_misses : FLOOR;
    const double p1 = 2 * p0 > p0 + 0.05 ? fmin(2 * p0, 0.95) : p0 + 0.05;
    t->n_trial++;
    t->trial_score += (score - t->trial_score) / t->n_trial;
    t->llr +=
        w->n_missed * log(p1 / p0) + (double)(w->n_judged - w->n_missed) * log((1 - p1) / (1 - p0));
    if (t->llr >= LLR_WORSE)
        return end_trial(t, false, "more requests miss their targets");
    if (misses > t->cfg.allowed_misses && misses > t->base_misses)
        return end_trial(t, false, "more requests than allowed miss their targets");
    if (t->n_trial < t->cfg.trial_intervals)
        return (gs_autotune_action){.kind = GS_AUTOTUNE_NOTHING};
    if (t->trial_score > t->base_score * (1 + t->cfg.gain))
        return end_trial(t, true, "more is done with all targets held");
    return end_trial(t, false, "no gain");
}

gs_autotune_action gs_autotune_decide(gs_autotune *t, const gs_autotune_window *w) {
    const gs_autotune_action nothing = {.kind = GS_AUTOTUNE_NOTHING};
    int knob, step;
    if (w->n_judged < t->cfg.min_judged) {
        /* Nobody can say what a change does: back to what is known. */
        if (t->trying)
            return end_trial(t, false, "too few requests to tell");
        t->n_base = 0;
        return nothing;
    }
    if (t->trying)
        return judge_trial(t, w);
    take_baseline(t, w);
    if (t->rest > 0) {
        t->rest--;
        return nothing;
    }
    if (t->n_base < 2 || !choose(t, &knob, &step))
        return nothing;
    return begin_trial(t, knob, step);
}
