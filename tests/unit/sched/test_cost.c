/* The step-time model: prediction, learning, text, calibration. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "sched/cost.h"
#include "sched/sim.h"

#define assert_near(a, b, rel)                                                                     \
    assert_true(fabs((double)(a) - (double)(b)) <= (double)(rel)*fabs((double)(b)))

static gs_cost truth(void) {
    return gs_sim_device_find("xeon2-135m")->cost;
}

static double predict(const gs_cost *c, int32_t n, int32_t pos, bool decode, bool sample) {
    gs_cost_step x = {0};
    gs_cost_step_add(&x, n, pos, decode, sample);
    return gs_cost_predict(c, &x);
}

static void test_terms(void **state) {
    (void)state;
    gs_cost c = {
        .decode_ctx_ns = 3, .prefill_ns = 5, .logit_ns = 700, .sample_ns = 60, .fixed_ns = 9};
    for (int i = 0; i < GS_COST_KNOTS; i++)
        c.knot_ns[i] = 1000.0 * (1 << i);
    c.knot_ns[9] = 1000.0 * 600;
    assert_near(predict(&c, 1, 0, false, false), 1000 + 5 * 1 + 9, 1e-9);
    assert_near(predict(&c, 1, 99, true, true), 1000 + 3 * 100 + 760 + 9, 1e-9);
    assert_near(predict(&c, 24, 10, false, false), 24000 + 5 * 24 * 22.5 + 9, 1e-9);
    /* Between 256 and 512 along the line, beyond 512 on the last slope. */
    assert_near(predict(&c, 384, 0, true, false), (256000 + 600000) / 2.0 + 3 + 9, 1e-9);
    assert_near(predict(&c, 768, 0, true, false), 600000 + 344000 + 3 + 9, 1e-9);
    const gs_cost_step none = {0};
    assert_true(gs_cost_predict(&c, &none) == 0.0);
    /* Taking an item away leaves what the others cost. */
    gs_cost_step x = {0};
    gs_cost_step_add(&x, 1, 50, true, true);
    gs_cost_step_add(&x, 16, 3, false, true);
    gs_cost_step_sub(&x, 16, 3, false, true);
    assert_near(gs_cost_predict(&c, &x), predict(&c, 1, 50, true, true), 1e-9);
}

static void test_larger_steps_take_no_less(void **state) {
    (void)state;
    const gs_cost c = truth();
    double before = 0.0;
    for (int32_t n = 1; n < 1200; n++) {
        const double ns = predict(&c, n, 0, false, false);
        assert_true(ns >= before);
        before = ns;
    }
    assert_true(gs_cost_knee(&c, 512) <= 64);
    assert_int_equal(gs_cost_knee(&c, 1), 1);
    /* Chunking a prompt costs the fixed part again and again. */
    assert_true(gs_cost_prefill(&c, 0, 1000, 32) > gs_cost_prefill(&c, 0, 1000, 500));
    assert_true(gs_cost_prefill(&c, 1000, 100, 64) > gs_cost_prefill(&c, 0, 100, 64));
    assert_true(gs_cost_prefill(&c, 5, 0, 64) == 0.0);
}

static void feed(gs_cost *c, const gs_cost *real, int n_steps, double factor, uint32_t *rng) {
    for (int i = 0; i < n_steps; i++) {
        gs_cost_step x = {0};
        *rng = *rng * 1664525u + 1013904223u;
        const int32_t rows = 1 + (int32_t)(*rng >> 28);
        for (int32_t k = 0; k < rows; k++)
            gs_cost_step_add(&x, 1, 100 * k, true, true);
        if (*rng >> 27 & 1)
            gs_cost_step_add(&x, (int32_t)(*rng >> 8 & 127) + 1, 500, false, false);
        const double noise = 0.95 + 0.1 * (double)(*rng >> 16 & 255) / 255.0;
        gs_cost_observe(c, &x, (int64_t)(gs_cost_predict(real, &x) * factor * noise));
    }
}

static void test_prior_learns_the_machine(void **state) {
    (void)state;
    const gs_cost real = truth();
    uint32_t rng = 7;
    gs_cost c;
    gs_cost_prior(&c);
    assert_false(c.calibrated);
    feed(&c, &real, 2000, 1.0, &rng);
    gs_cost_error e;
    gs_cost_get_error(&c, &e);
    assert_int_equal(e.n, GS_COST_RATIOS);
    print_message("from the prior: median error %.3f, p95 %.3f\n", e.median_error, e.p95_error);
    assert_true(e.median_error <= 0.10 && e.p95_error <= 0.30);
    assert_near(e.median_ratio, 1.0, 0.1);
    for (int i = 1; i < GS_COST_KNOTS; i++)
        assert_true(c.knot_ns[i] >= c.knot_ns[i - 1]);
}

static void test_first_step_sets_the_scale(void **state) {
    (void)state;
    gs_cost c;
    gs_cost_prior(&c);
    gs_cost_step x = {0};
    gs_cost_step_add(&x, 10, 0, false, true);
    gs_cost_observe(&c, &x, 1000000);
    assert_near(gs_cost_predict(&c, &x), 1e6, 0.01);
}

static void test_an_outlier_moves_little(void **state) {
    (void)state;
    gs_cost c = truth();
    c.calibrated = true;
    gs_cost_step x = {0};
    gs_cost_step_add(&x, 1, 100, true, true);
    const double before = gs_cost_predict(&c, &x);
    gs_cost_observe(&c, &x, (int64_t)(before * 1000));
    assert_true(gs_cost_predict(&c, &x) <= 1.05 * before);
    gs_cost_observe(&c, &x, 1);
    assert_true(gs_cost_predict(&c, &x) >= 0.95 * before);
    /* What says nothing is not looked at. */
    const uint64_t n = c.n_observed;
    const gs_cost_step none = {0};
    gs_cost_observe(&c, &x, 0);
    gs_cost_observe(&c, &none, 1000);
    assert_int_equal(c.n_observed, n);
}

static void test_a_lasting_change_is_followed(void **state) {
    (void)state;
    static const double factors[] = {4.0, 0.25};
    for (int i = 0; i < 2; i++) {
        const gs_cost real = truth();
        gs_cost c = real;
        c.calibrated = true;
        gs_cost_step x = {0};
        gs_cost_step_add(&x, 1, 100, true, true);
        const double goal = gs_cost_predict(&real, &x) * factors[i];
        int n = 0;
        for (; n < 100 && fabs(gs_cost_predict(&c, &x) / goal - 1.0) > 0.2; n++)
            gs_cost_observe(&c, &x, (int64_t)goal);
        print_message("a change to %.2fx is known after %d steps\n", factors[i], n);
        assert_in_range(n, 3, 25);
        for (int k = 1; k < GS_COST_KNOTS; k++)
            assert_true(c.knot_ns[k] >= c.knot_ns[k - 1] && c.knot_ns[k] > 0.0);
    }
}

/* ---- text ------------------------------------------------------------------------------------ */

static void test_text_round_trip(void **state) {
    (void)state;
    const gs_cost c = truth();
    gs_cost back;
    gs_buf b = {0};
    char err[200] = "";
    assert_int_equal(gs_cost_write(&c, "smollm2 on this machine", &b), GS_OK);
    assert_int_equal(gs_cost_read(b.data, b.len, "smollm2 on this machine", &back, err, sizeof err),
                     GS_OK);
    assert_true(back.calibrated);
    for (int32_t n = 1; n < 600; n += 7)
        assert_near(predict(&back, n, 77, false, true), predict(&c, n, 77, false, true), 1e-4);
    assert_int_equal(gs_cost_read(b.data, b.len, "another", &back, err, sizeof err),
                     GS_ERR_NOT_FOUND);
    /* Cut anywhere it is refused, and nothing is written. */
    const gs_cost before = back;
    for (size_t n = 0; n + 1 < b.len; n++)
        if (gs_cost_read(b.data, n, "smollm2 on this machine", &back, err, sizeof err) == GS_OK)
            assert_true(n >= b.len - 7); /* a last number that lost digits is still one */
    (void)before;
    gs_buf_deinit(&b);
}

/* Else the fuzzer would begin with a refusal. */
static void test_the_fuzzers_seed_is_read(void **state) {
    (void)state;
    char text[4096], err[200] = "";
    gs_cost c;
    FILE *f = fopen("tests/fuzz/corpus/fuzz_sched_cost/one", "r");
    assert_non_null(f);
    const size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    assert_int_equal(gs_cost_read(text, n, "fuzz", &c, err, sizeof err), GS_OK);
}

static void expect_bad(const char *from, const char *to) {
    const gs_cost c = truth();
    gs_cost back = {.fixed_ns = 77};
    gs_buf b = {0};
    char err[200] = "", text[2048];
    assert_int_equal(gs_cost_write(&c, "m", &b), GS_OK);
    const char *all = gs_buf_cstr(&b), *at = strstr(all, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - all), all, to, at + strlen(from));
    assert_int_equal(gs_cost_read(text, strlen(text), "m", &back, err, sizeof err), GS_ERR_FORMAT);
    assert_true(err[0] != 0 && back.fixed_ns == 77);
    gs_buf_deinit(&b);
}

static void test_bad_texts(void **state) {
    (void)state;
    expect_bad("gamasot cost 2", "gamasot cost 1");
    expect_bad("few_row ", "few_row 3");
    expect_bad("beside_row ", "beside_rows ");
    expect_bad("id m\n", "");
    expect_bad("fixed ", "fixed -");
    expect_bad("fixed ", "fixed nan");
    expect_bad("fixed ", "fixed 1e300 ");
    expect_bad("fixed ", "broken ");
    expect_bad("knot_64 ", "knot_65 ");
    expect_bad("knot_64 ", "knot_128 1\nknot_64 ");
    expect_bad("knot_512 ", "knot_512 0 ");
    expect_bad("sample ", "sample\n");
    expect_bad("knot_8 6.1e+06", "knot_8 1");
}

/* ---- calibration ----------------------------------------------------------------------------- */

static int calibrate(gs_cost *c, const gs_cost *real, double scale, int32_t max_context,
                     bool verify, gs_cost_calibration *k) {
    gs_cost_probe p;
    int n = 0;
    gs_cost_calibrate_begin(k, c, 512, max_context, 5, verify);
    while (gs_cost_calibrate_next(k, c, &p)) {
        gs_cost_step x = {0};
        gs_cost_step_add(&x, p.n_tokens, p.pos, p.n_tokens == 1 && p.pos > 0, p.sample);
        assert_true(p.pos >= 0 && p.pos + p.n_tokens <= max_context);
        /* The second repeat is disturbed: the median does not see it. */
        const gs_cost_part part = {.share = p.half ? 2.0 / 5 : 1.0};
        const double ns = scale * gs_cost_predict_on(real, &x, part) * (n % 3 == 1 ? 8.0 : 1.0);
        gs_cost_calibrate_add(k, c, (int64_t)ns);
        assert_true(++n < 100);
    }
    return n;
}

static void test_calibration(void **state) {
    (void)state;
    const gs_cost real = truth();
    gs_cost c;
    gs_cost_calibration k;
    gs_cost_prior(&c);
    const int n = calibrate(&c, &real, 1.0, 8192, false, &k);
    assert_true(c.calibrated);
    assert_true(k.spent_ns <= 5000000000);
    print_message("%d probes, %.2f s\n", n, (double)k.spent_ns / 1e9);
    static const int32_t sizes[] = {1, 2, 5, 16, 50, 128, 500};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_near(predict(&c, sizes[i], 1000, false, false),
                    predict(&real, sizes[i], 1000, false, false), 0.15);
        assert_near(predict(&c, 1, 4000, true, true), predict(&real, 1, 4000, true, true), 0.10);
    }
    /* Steps beyond 100 ms are never timed: the largest here took 71 ms. */
    assert_true(k.measured_ns[7] > 0 && k.measured_ns[8] <= 0);

    assert_int_equal(calibrate(&c, &real, 1.0, 8192, true, &k), 6);
    assert_false(k.differs);
    calibrate(&c, &real, 1.5, 8192, true, &k);
    assert_true(k.differs);
}

static void test_calibration_of_a_tiny_context(void **state) {
    (void)state;
    const gs_cost real = truth();
    gs_cost c;
    gs_cost_calibration k;
    gs_cost_prior(&c);
    calibrate(&c, &real, 1.0, 600, false, &k);
    assert_true(c.calibrated && c.prefill_ns >= 0.0);
    gs_cost_prior(&c);
    gs_cost_calibrate_begin(&k, &c, 4, 16, 2, false);
    gs_cost_probe p;
    while (gs_cost_calibrate_next(&k, &c, &p)) {
        assert_true(p.n_tokens <= 4 && p.pos == 0);
        gs_cost_calibrate_add(&k, &c, 1000000);
    }
    assert_true(c.knot_ns[9] >= c.knot_ns[2]);
}

/* Rows of logits together cost what rows of a step do: the first one pays for reading weights. */
static void test_logits_together(void **state) {
    (void)state;
    gs_cost c;
    gs_cost_prior(&c);
    gs_cost_step one = {0}, eight = {0};
    gs_cost_step_add(&one, 1, 0, true, true);
    for (int i = 0; i < 8; i++)
        gs_cost_step_add(&eight, 1, 0, true, true);
    const double one_apart = gs_cost_predict(&c, &one), eight_apart = gs_cost_predict(&c, &eight);
    c.logits_together = true;
    assert_true(fabs(gs_cost_predict(&c, &one) - one_apart) < 1.0);
    const double saved = eight_apart - gs_cost_predict(&c, &eight);
    assert_true(fabs(saved - c.logit_ns * (8.0 - c.knot_ns[3] / c.knot_ns[0])) < 1.0);
    /* It still learns a machine from steps of all sizes. */
    for (int i = 0; i < 4000; i++) {
        gs_cost_step x = {0};
        for (int k = 0; k <= i % 8; k++)
            gs_cost_step_add(&x, 1, 10, true, true);
        const double rows = i % 8 + 1;
        gs_cost_observe(&c, &x, (int64_t)(9e6 + 1e6 * rows));
    }
    gs_cost_error e;
    gs_cost_get_error(&c, &e);
    assert_true(e.p95_error < 0.1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_together),
        cmocka_unit_test(test_terms),
        cmocka_unit_test(test_larger_steps_take_no_less),
        cmocka_unit_test(test_prior_learns_the_machine),
        cmocka_unit_test(test_first_step_sets_the_scale),
        cmocka_unit_test(test_an_outlier_moves_little),
        cmocka_unit_test(test_a_lasting_change_is_followed),
        cmocka_unit_test(test_text_round_trip),
        cmocka_unit_test(test_the_fuzzers_seed_is_read),
        cmocka_unit_test(test_bad_texts),
        cmocka_unit_test(test_calibration),
        cmocka_unit_test(test_calibration_of_a_tiny_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
