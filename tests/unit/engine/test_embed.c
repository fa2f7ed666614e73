/* Pooling of hidden states into one vector, against values worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/embed.h"

static const float rows[4][2] = {{1, 0}, {0, 8}, {5, 0}, {0, 4}};

/* In the cuts 1 + 2 + 1. */
static void pool(gs_pooling p, float v[2]) {
    memset(v, 0, 2 * sizeof(float));
    gs_embed_add(p, v, 2, rows[0], 0, 1, 4);
    gs_embed_add(p, v, 2, rows[1], 1, 2, 4);
    gs_embed_add(p, v, 2, rows[3], 3, 1, 4);
    gs_embed_finish(p, v, 2, 4);
}

static void is(const float v[2], double x, double y) {
    assert_float_equal(v[0], x, 1e-6);
    assert_float_equal(v[1], y, 1e-6);
}

static void each_kind_takes_its_rows(void **state) {
    (void)state;
    float v[2];
    pool(GS_POOLING_MEAN, v); /* the mean is (1.5, 3) */
    is(v, 0.4472136, 0.8944272);
    pool(GS_POOLING_CLS, v);
    is(v, 1, 0);
    pool(GS_POOLING_LAST, v);
    is(v, 0, 1);
}

static void a_score_and_a_zero_vector_stay_as_they_are(void **state) {
    (void)state;
    float score[1] = {-3.5f}, zero[2] = {0, 0};
    gs_embed_finish(GS_POOLING_RANK, score, 1, 7);
    assert_float_equal(score[0], -3.5, 0);
    gs_embed_finish(GS_POOLING_MEAN, zero, 2, 7);
    is(zero, 0, 0);
}

static void kinds_have_names(void **state) {
    (void)state;
    assert_string_equal(gs_pooling_name(GS_POOLING_MEAN), "mean");
    assert_string_equal(gs_pooling_name(GS_POOLING_RANK), "rank");
    assert_string_equal(gs_pooling_name((gs_pooling)99), "none");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_takes_its_rows),
        cmocka_unit_test(a_score_and_a_zero_vector_stay_as_they_are),
        cmocka_unit_test(kinds_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
