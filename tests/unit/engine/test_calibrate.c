/* Calibration against the fake backend, whose times are programmed. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/err.h"
#include "engine/calibrate.h"

static gs_backend *fake(int64_t token_ns, uint64_t fail_step) {
    gs_fake_config cfg = {.n_vocab = 64,
                          .max_context = 2048,
                          .max_batch_tokens = 256,
                          .max_seqs = 4,
                          .block_tokens = 32,
                          .n_kv_blocks = 64,
                          .step_ns = 2 * GS_NS_PER_MS,
                          .decode_token_ns = token_ns,
                          .prefill_token_ns = token_ns,
                          .n_tokens = 26,
                          .eos_token = -1,
                          .fail_step = fail_step};
    gs_backend *b = NULL;
    assert_int_equal(gs_fake_create(&cfg, &b), 0);
    return b;
}

static double predict(const gs_cost *c, int32_t n) {
    gs_cost_step x = {0};
    gs_cost_step_add(&x, n, 0, false, true);
    return gs_cost_predict(c, &x);
}

/* A step of 128 tokens is programmed to take (2 + 12.8) / (2 + 0.1), 7 times, that of one. */
static void test_learns_the_shape(void **state) {
    (void)state;
    gs_backend *b = fake(100 * GS_NS_PER_US, 0);
    gs_cost c;
    bool differs = true;
    gs_cost_prior(&c);
    assert_int_equal(gs_calibrate(b, &c, false, NULL, NULL, NULL), 0);
    assert_true(c.calibrated);
    double ratio = predict(&c, 128) / predict(&c, 1);
    assert_true(ratio > 3.5 && ratio < 14);
    /* What was just measured still holds. */
    assert_int_equal(gs_calibrate(b, &c, true, &differs, NULL, NULL), 0);
    assert_false(differs);
    b->ops->destroy(b);
}

/* Figures of a machine ten times as fast do not pass. */
static void test_notices_another_machine(void **state) {
    (void)state;
    gs_backend *b = fake(100 * GS_NS_PER_US, 0);
    gs_cost c;
    bool differs = false;
    gs_cost_prior(&c);
    assert_int_equal(gs_calibrate(b, &c, false, NULL, NULL, NULL), 0);
    for (int i = 0; i < GS_COST_KNOTS; i++)
        c.knot_ns[i] /= 10;
    c.fixed_ns /= 10;
    c.logit_ns /= 10;
    c.sample_ns /= 10;
    assert_int_equal(gs_calibrate(b, &c, true, &differs, NULL, NULL), 0);
    assert_true(differs);
    b->ops->destroy(b);
}

static void test_reports_a_failing_backend(void **state) {
    (void)state;
    gs_backend *b = fake(0, 2);
    gs_cost c;
    gs_cost_prior(&c);
    assert_int_equal(gs_calibrate(b, &c, false, NULL, NULL, NULL), GS_ERR_BACKEND);
    b->ops->destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns_the_shape),
        cmocka_unit_test(test_notices_another_machine),
        cmocka_unit_test(test_reports_a_failing_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
