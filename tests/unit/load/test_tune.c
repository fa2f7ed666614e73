/* The tuner's search on made-up surfaces whose best point is known. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "load/tune.h"

#define assert_near(a, b, most) assert_true(fabs((a) - (b)) <= (most))

enum { PARAMS = 8, CHOICES = 5 };

typedef struct surface {
    double (*capacity)(const gs_tune_point *p);
    double noise;
    int n_looks, fail_at;
} surface;

/* Holds below the capacity; throughput is what is offered. */
static int look(void *arg, const gs_tune_point *p, double load, uint64_t seed, gs_tune_look *out) {
    surface *s = arg;
    if (++s->n_looks == s->fail_at)
        return GS_ERR_INTERNAL;
    const double wobble = 1 + s->noise * ((double)(seed * 7919 % 11) / 5 - 1);
    const double capacity = s->capacity(p) * wobble;
    *out = (gs_tune_look){1 - load / capacity, 100 * load};
    return 0;
}

/* One hill; parameters 6 and 7 do not matter. */
static double hill(const gs_tune_point *p) {
    static const int top[PARAMS] = {4, 0, 3, 1, 2, 4, 0, 0};
    double c = 10;
    for (int i = 0; i < 6; i++)
        c *= 1 - 0.06 * fabs((double)(p->choice[i] - top[i]));
    return c;
}

/* Two parameters that only help together: coordinate search alone stays where it is. */
static double ridge(const gs_tune_point *p) {
    const int a = p->choice[0], b = p->choice[1];
    return 2 + 0.2 * p->choice[2] + (a >= 3 && b >= 3 ? 4 : 0) - (a >= 3) * (b < 3) * 0.5 -
           (b >= 3) * (a < 3) * 0.5;
}

static double nothing_holds(const gs_tune_point *p) {
    return 0.01 + 0.001 * p->choice[0];
}

static gs_tune_config config(surface *s) {
    gs_tune_config c = {.n_params = PARAMS,
                        .low = 0.1,
                        .high = 64,
                        .precision = 0.01,
                        .n_random = 64,
                        .n_seeds = 3,
                        .n_rounds = 4,
                        .seed = 1,
                        .look = look,
                        .arg = s};
    memset(c.n_choices, CHOICES, sizeof c.n_choices);
    memset(c.start.choice, 2, sizeof c.start.choice);
    return c;
}

static void bisection_finds_the_edge(void **state) {
    (void)state;
    surface s = {.capacity = hill};
    const gs_tune_config c = config(&s);
    gs_tune_result r;
    assert_int_equal(gs_tune_sustain(&c, &c.start, &r), 0);
    const double edge = hill(&c.start);
    assert_true(r.load <= edge && r.load >= edge * 0.98);
    assert_near(r.throughput, 100 * r.load, 1e-9);
}

static void the_top_of_a_hill(void **state) {
    (void)state;
    surface s = {.capacity = hill};
    const gs_tune_config c = config(&s);
    gs_tune_outcome o;
    assert_int_equal(gs_tune_search(&c, &o), 0);
    assert_true(o.best[0].load >= 0.98 * 10);
    assert_true(o.start.load <= hill(&c.start));
    for (int i = 1; i < o.n_best; i++)
        assert_true(o.best[i].throughput <= o.best[i - 1].throughput * 1.004);
    for (int i = 6; i < PARAMS; i++)
        assert_int_equal(o.best[0].point.choice[i], c.start.choice[i]);
    /* What does not matter is known not to; what matters most comes first. */
    assert_true(o.sensitivity[0].worst < 0.85);
    assert_true(o.sensitivity[PARAMS - 1].param >= 6 && o.sensitivity[PARAMS - 1].worst > 0.98);
    /* 5^8 points, of which a few hundred were looked at. */
    assert_true(o.n_candidates < 400 && s.n_looks < 4000);
    assert_int_equal(o.n_looks, s.n_looks);
}

static void two_that_only_help_together(void **state) {
    (void)state;
    surface s = {.capacity = ridge};
    const gs_tune_config c = config(&s);
    gs_tune_outcome o;
    assert_int_equal(gs_tune_search(&c, &o), 0);
    assert_true(o.best[0].load > 6.5);
}

/* Capacity that moves with the seed: what is found holds with all of them. */
static void seeds_make_it_careful(void **state) {
    (void)state;
    surface s = {.capacity = hill, .noise = 0.2};
    gs_tune_config c = config(&s);
    gs_tune_outcome few, many;
    c.n_seeds = 1;
    assert_int_equal(gs_tune_search(&c, &few), 0);
    c.n_seeds = 10;
    assert_int_equal(gs_tune_search(&c, &many), 0);
    gs_tune_look l;
    for (uint64_t seed = 0; seed < 10; seed++) {
        assert_int_equal(look(&s, &many.best[0].point, many.best[0].load, seed, &l), 0);
        assert_true(l.margin > 0);
    }
    assert_true(many.best[0].load >= 0.97 * 8); /* 10 less a fifth */
}

/* A start that is within 3 % of the top stays. */
static double nearly(const gs_tune_point *p) {
    return 10 + 0.1 * p->choice[3];
}

static void small_gains_change_nothing(void **state) {
    (void)state;
    surface s = {.capacity = nearly};
    const gs_tune_config c = config(&s);
    gs_tune_outcome o;
    assert_int_equal(gs_tune_search(&c, &o), 0);
    assert_memory_equal(o.best[0].point.choice, c.start.choice, PARAMS);
}

static void what_can_not_hold_is_said(void **state) {
    (void)state;
    surface s = {.capacity = nothing_holds};
    const gs_tune_config c = config(&s);
    gs_tune_outcome o;
    assert_int_equal(gs_tune_search(&c, &o), 0);
    assert_true(o.best[0].load == 0 && o.best[0].throughput == 0);
    assert_int_equal(o.best[0].point.choice[0], CHOICES - 1); /* the least bad one */
}

static void the_same_seed_finds_the_same(void **state) {
    (void)state;
    surface s = {.capacity = ridge, .noise = 0.1};
    const gs_tune_config c = config(&s);
    gs_tune_outcome a, b;
    assert_int_equal(gs_tune_search(&c, &a), 0);
    assert_int_equal(gs_tune_search(&c, &b), 0);
    assert_memory_equal(a.best[0].point.choice, b.best[0].point.choice, PARAMS);
    assert_int_equal(a.n_looks, b.n_looks);
}

static void an_error_ends_it(void **state) {
    (void)state;
    for (int at = 1; at < 300; at += 37) {
        surface s = {.capacity = hill, .fail_at = at};
        const gs_tune_config c = config(&s);
        gs_tune_outcome o;
        assert_int_equal(gs_tune_search(&c, &o), GS_ERR_INTERNAL);
        assert_int_equal(s.n_looks, at);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bisection_finds_the_edge),     cmocka_unit_test(the_top_of_a_hill),
        cmocka_unit_test(two_that_only_help_together),  cmocka_unit_test(seeds_make_it_careful),
        cmocka_unit_test(small_gains_change_nothing),   cmocka_unit_test(what_can_not_hold_is_said),
        cmocka_unit_test(the_same_seed_finds_the_same), cmocka_unit_test(an_error_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
