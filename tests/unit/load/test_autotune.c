/*
 * The live tuner in simulated time, on the real scheduler: a load that becomes another one at half
 * time, and a planted bad change. And its rules one by one, on made-up intervals.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sys.h"
#include "load/autotune.h"
#include "sched/sim.h"

#define S  1000000000LL
#define MS 1000000LL

enum { INTERVAL_S = 15, HALF_S = 450, END_S = 1200 };

static const gs_autotune_knob knobs[] = {
    {"sched.background_gap_ms", {5, 8, 12, 18, 27, 40, 60}, 7},
    {"class_completion.seats", {1, 2, 4, 64}, 4},
};

static gs_autotune_config config(void) {
    return (gs_autotune_config){.knobs = knobs,
                                .n_knobs = 2,
                                .allowed_misses = 0.05,
                                .gain = 0.01,
                                .min_judged = 4,
                                .trial_intervals = 2,
                                .rest_intervals = 1};
}

/* ---- on the scheduler ------------------------------------------------------------------------*/

typedef struct home {
    gs_sim_request *q;
    int32_t n;
    gs_sim *m;
    gs_class_config classes[GS_CLASS_COUNT];
    int32_t seen; /* requests are judged in the order in which they were made */
    bool *judged;
    uint64_t work;
    int64_t now_ns;
} home;

/* Two of an index's workers without end; in the first half completions, whose tokens must not be
 * far apart, in the second one chats, whose readers have patience. */
static void home_create(home *h) {
    enum { MAX = 50000 };
    *h = (home){.q = gs_calloc(MAX, sizeof(gs_sim_request)), .judged = gs_calloc(MAX, 1)};
    for (int64_t t = 0; t < END_S * 1000; t += 350)
        h->q[h->n++] =
            (gs_sim_request){.t_ns = t * MS,
                             .after = -1,
                             .prefix_of = -1,
                             .cls = t < HALF_S * 1000 ? GS_CLASS_COMPLETION : GS_CLASS_CHAT,
                             .class_fixed = true,
                             .person = 1 + (uint32_t)(t / 350 % 3),
                             .scope = 1,
                             .n_prompt = 40,
                             .n_output = 60};
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < 14000; i++, h->n++)
            h->q[h->n] = (gs_sim_request){.after = i > 0 ? h->n - 1 : -1,
                                          .prefix_of = -1,
                                          .cls = GS_CLASS_BACKGROUND,
                                          .class_fixed = true,
                                          .person = 4,
                                          .scope = 2,
                                          .n_prompt = 300,
                                          .n_texts = 4};
    assert_true(h->n < MAX);
    gs_class_defaults(h->classes);
    h->classes[GS_CLASS_COMPLETION].tpot_ns = 14 * MS;
    h->classes[GS_CLASS_CHAT].tpot_ns = 42 * MS;
    const gs_sim_config c = {.device = *gs_sim_device_find("xeon2-135m"),
                             .classes = h->classes,
                             .n_persons = 5,
                             .max_waiting = 1000,
                             .end_ns = 1,
                             .seed = 3};
    assert_int_equal(gs_sim_create(&c, h->q, h->n, &h->m), 0);
}

static void home_free(home *h) {
    gs_sim_free(h->m);
    gs_free(h->q);
    gs_free(h->judged);
}

static void apply(home *h, int knob, double value) {
    gs_slo_config slo;
    gs_sched_get_slo(gs_sim_sched(h->m), &slo);
    if (knob == 0)
        slo.background_gap_ns = (int64_t)(value * MS);
    else
        h->classes[GS_CLASS_COMPLETION].seats = (int32_t)value;
    assert_int_equal(gs_sched_set_slo(gs_sim_sched(h->m), &slo), 0);
    assert_int_equal(gs_sched_set_classes(gs_sim_sched(h->m), h->classes, NULL), 0);
}

static bool met(const home *h, const gs_sim_request *q, const gs_sim_outcome *o) {
    const gs_class_config *k = &h->classes[q->cls];
    return o->state == GS_SIM_DONE && o->first_ns - o->start_ns <= k->ttft_ns &&
           o->last_ns - o->first_ns <= k->tpot_ns * (o->n_output - 1);
}

static gs_autotune_window interval(home *h) {
    gs_autotune_window w = {.seconds = INTERVAL_S};
    gs_sched_stats st;
    char err[200];
    h->now_ns += INTERVAL_S * S;
    gs_sim_set_end(h->m, h->now_ns);
    assert_int_equal(gs_sim_run(h->m, err, sizeof err), 0);
    for (int32_t i = 0; i < h->n; i++) {
        const gs_sim_outcome *o = &gs_sim_outcomes(h->m)[i];
        if (h->q[i].cls == GS_CLASS_BACKGROUND || h->judged[i] || o->state == GS_SIM_PENDING ||
            o->state == GS_SIM_LIVE)
            continue;
        h->judged[i] = true;
        w.n_judged++;
        w.n_missed += !met(h, &h->q[i], o);
    }
    gs_sched_get_stats(gs_sim_sched(h->m), &st);
    const uint64_t work = st.prefill_tokens + st.decode_tokens - st.recomputed_tokens;
    w.work = (double)(work - h->work);
    h->work = work;
    return w;
}

/* The best mean score from from_s to to_s of a gap that stays. */
static double best_fixed(int from_s, int to_s, const int *gaps, int n_gaps) {
    const gs_autotune_config c = config();
    double best = 0;
    for (int g = 0; g < n_gaps; g++) {
        home h;
        double sum = 0;
        int n = 0;
        home_create(&h);
        apply(&h, 0, knobs[0].values[gaps[g]]);
        for (int t = INTERVAL_S; t <= to_s; t += INTERVAL_S) {
            const gs_autotune_window w = interval(&h);
            sum += t > from_s ? gs_autotune_score(&c, &w) : 0;
            n += t > from_s;
        }
        best = sum / n > best ? sum / n : best;
        home_free(&h);
    }
    return best;
}

static void a_load_that_shifts(void **state) {
    (void)state;
    const gs_autotune_config c = config();
    const int at[] = {0, 3}, all[] = {2, 4, 6}, found_first[] = {2};
    gs_autotune t;
    home h;
    double late = 0;
    int n_late = 0, bad = 0;
    gs_autotune_init(&t, &c, at);
    home_create(&h);
    apply(&h, 0, knobs[0].values[at[0]]);
    for (int s = INTERVAL_S; s <= END_S; s += INTERVAL_S) {
        const gs_autotune_window w = interval(&h);
        const bool over = w.n_judged >= c.min_judged && w.n_missed > 0.05 * w.n_judged;
        bad = over && t.trying ? bad + 1 : 0;
        assert_true(bad <= 1); /* no regression of a change outlives an interval */
        if (s > HALF_S + 600) {
            late += gs_autotune_score(&c, &w);
            n_late++;
        }
        const gs_autotune_action a = gs_autotune_decide(&t, &w);
        if (a.kind == GS_AUTOTUNE_TRY || a.kind == GS_AUTOTUNE_REVERT)
            apply(&h, a.knob, a.value);
    }
    home_free(&h);
    const double best = best_fixed(HALF_S + 300, HALF_S + 450, all, 3);
    /* What was best before is so no more: the optimum did move. */
    assert_true(best_fixed(HALF_S + 300, HALF_S + 450, found_first, 1) < 0.9 * best);
    late /= n_late;
    if (late < 0.95 * best)
        fail_msg("%.0f of %.0f after ten minutes", late, best);
    assert_true(t.n_kept >= 2 && t.n_reverted > 0);
}

static void a_planted_bad_change_is_reverted(void **state) {
    (void)state;
    const gs_autotune_config c = config();
    const int at[] = {2, 3};
    gs_autotune t;
    home h;
    gs_autotune_window w = {0};
    gs_autotune_action a = {GS_AUTOTUNE_NOTHING};
    gs_autotune_init(&t, &c, at);
    home_create(&h);
    apply(&h, 0, knobs[0].values[at[0]]);
    for (int i = 0; i < 2; i++) {
        w = interval(&h);
        assert_true(w.n_missed <= 0.05 * w.n_judged);
        a = gs_autotune_decide(&t, &w);
    }
    assert_true(gs_autotune_plant(&t, 1, 0)); /* one at a time: they queue */
    apply(&h, 1, knobs[1].values[0]);
    w = interval(&h);
    assert_true(w.n_missed > 0.5 * w.n_judged); /* it is bad */
    a = gs_autotune_decide(&t, &w);
    assert_int_equal(a.kind, GS_AUTOTUNE_REVERT);
    assert_int_equal(a.knob, 1);
    assert_true(a.value == 64 && t.at[1] == 3);
    apply(&h, a.knob, a.value);
    interval(&h); /* who queued meanwhile is late */
    w = interval(&h);
    assert_true(w.n_missed <= 0.05 * w.n_judged);
    home_free(&h);
}

/* ---- rules -----------------------------------------------------------------------------------*/

static gs_autotune_window quiet(double work) {
    return (gs_autotune_window){15, 20, 0, work * 15};
}

/* Up to the first trial. */
static gs_autotune_action first_trial(gs_autotune *t, const gs_autotune_config *c) {
    const int at[] = {3, 1};
    gs_autotune_action a = {GS_AUTOTUNE_NOTHING};
    gs_autotune_init(t, c, at);
    const gs_autotune_window w = quiet(100);
    for (int i = 0; i < 5 && a.kind == GS_AUTOTUNE_NOTHING; i++)
        a = gs_autotune_decide(t, &w);
    assert_int_equal(a.kind, GS_AUTOTUNE_TRY);
    assert_int_equal(abs(gs_autotune_nearest(&knobs[a.knob], a.value) -
                         gs_autotune_nearest(&knobs[a.knob], a.before)),
                     1);
    return a;
}

static void what_helps_is_kept_and_gone_on_with(void **state) {
    (void)state;
    const gs_autotune_config c = config();
    gs_autotune t;
    const gs_autotune_action tried = first_trial(&t, &c);
    gs_autotune_window w = quiet(110);
    assert_int_equal(gs_autotune_decide(&t, &w).kind, GS_AUTOTUNE_NOTHING);
    gs_autotune_action a = gs_autotune_decide(&t, &w);
    assert_int_equal(a.kind, GS_AUTOTUNE_KEEP);
    assert_true(fabs(a.measured - 0.1) < 1e-9 && a.predicted == 0.0);
    for (int i = 0; i < 4 && a.kind != GS_AUTOTUNE_TRY; i++)
        a = gs_autotune_decide(&t, &w);
    assert_int_equal(a.knob, tried.knob);
    assert_true((a.value > a.before) == (tried.value > tried.before));
    assert_true(a.predicted > 0.04);
}

static void what_does_not_help_is_taken_back(void **state) {
    (void)state;
    const gs_autotune_config c = config();
    gs_autotune t;
    const gs_autotune_action tried = first_trial(&t, &c);
    const gs_autotune_window w = quiet(100);
    gs_autotune_decide(&t, &w);
    const gs_autotune_action a = gs_autotune_decide(&t, &w);
    assert_int_equal(a.kind, GS_AUTOTUNE_REVERT);
    assert_true(a.value == tried.before);
    assert_int_equal(t.at[0], 3);
    assert_int_equal(t.at[1], 1);
}

/* The first two moves of a knob change nothing, the third does. */
static void a_plateau_is_crossed(void **state) {
    (void)state;
    static const gs_autotune_knob one = {"sched.background_gap_ms", {5, 8, 12, 18, 27}, 5};
    gs_autotune_config c = config();
    c.knobs = &one;
    c.n_knobs = 1;
    const int at[] = {0};
    gs_autotune t;
    gs_autotune_init(&t, &c, at);
    double longest = 0;
    for (int i = 0; i < 30; i++) {
        const gs_autotune_window w = quiet(t.at[0] < 3 ? 100 : 120);
        const gs_autotune_action a = gs_autotune_decide(&t, &w);
        if (a.kind == GS_AUTOTUNE_TRY && a.value > longest)
            longest = a.value;
        if (a.kind == GS_AUTOTUNE_KEEP) {
            assert_true(a.value == 18 && a.before == 5);
            assert_true(longest == 18); /* no longer step than it takes */
            return;
        }
    }
    fail_msg("%s", "it stays where it was");
}

static void misses_end_a_trial_at_once(void **state) {
    (void)state;
    const gs_autotune_config c = config();
    gs_autotune t;
    first_trial(&t, &c);
    gs_autotune_window w = quiet(200); /* twice the throughput would not excuse it */
    w.n_missed = 3;
    assert_int_equal(gs_autotune_decide(&t, &w).kind, GS_AUTOTUNE_REVERT);
}

static void nothing_is_tried_in_the_dark(void **state) {
    (void)state;
    const gs_autotune_config c = config();
    const int at[] = {3, 1};
    gs_autotune t;
    gs_autotune_init(&t, &c, at);
    gs_autotune_window w = {15, 3, 0, 100};
    for (int i = 0; i < 20; i++)
        assert_int_equal(gs_autotune_decide(&t, &w).kind, GS_AUTOTUNE_NOTHING);
    first_trial(&t, &c);
    assert_int_equal(gs_autotune_decide(&t, &w).kind, GS_AUTOTUNE_REVERT);
}

/* Another load is noticed by the baseline, and what failed before is tried again. */
static void a_shift_is_noticed(void **state) {
    (void)state;
    const gs_autotune_config c = config();
    const int at[] = {3, 1};
    gs_autotune t;
    gs_autotune_init(&t, &c, at);
    gs_autotune_window w = quiet(100);
    for (int i = 0; i < 60; i++)
        gs_autotune_decide(&t, &w);
    assert_int_equal(t.n_shifts, 0);
    assert_true(t.pass[0][0] + t.pass[0][1] + t.pass[1][0] + t.pass[1][1] > 0);
    w = quiet(200);
    for (int i = 0; i < 6 && t.n_shifts == 0; i++)
        gs_autotune_decide(&t, &w);
    assert_int_equal(t.n_shifts, 1);
}

/* Nothing but the guard rails' values is ever set, whatever happens. */
static void guard_rails_hold(void **state) {
    (void)state;
    const gs_autotune_config c = config();
    const int at[] = {0, 2};
    gs_autotune t;
    double now[2] = {knobs[0].values[0], knobs[1].values[2]};
    uint32_t x = 1;
    gs_autotune_init(&t, &c, at);
    for (int i = 0; i < 5000; i++) {
        x = x * 1664525 + 1013904223;
        const gs_autotune_window w = {15, x >> 28, (x >> 28) * (x >> 20 & 1) / 2, (x >> 8) % 1000};
        const gs_autotune_action a = gs_autotune_decide(&t, &w);
        if (a.kind == GS_AUTOTUNE_TRY || a.kind == GS_AUTOTUNE_REVERT) {
            const int k = gs_autotune_nearest(&knobs[a.knob], a.value);
            assert_true(knobs[a.knob].values[k] == a.value);
            assert_true(now[a.knob] == a.before);
            now[a.knob] = a.value;
        }
        for (int k = 0; k < 2; k++)
            assert_true(knobs[k].values[t.at[k]] == now[k]);
    }
    assert_true(t.n_tried > 100 && t.n_kept > 0 && t.n_reverted > 0);
    assert_false(gs_autotune_plant(&t, 0, 7));
    assert_false(gs_autotune_plant(&t, 2, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_load_that_shifts),
        cmocka_unit_test(a_planted_bad_change_is_reverted),
        cmocka_unit_test(what_helps_is_kept_and_gone_on_with),
        cmocka_unit_test(what_does_not_help_is_taken_back),
        cmocka_unit_test(a_plateau_is_crossed),
        cmocka_unit_test(misses_end_a_trial_at_once),
        cmocka_unit_test(nothing_is_tried_in_the_dark),
        cmocka_unit_test(a_shift_is_noticed),
        cmocka_unit_test(guard_rails_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
