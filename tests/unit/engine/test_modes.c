/* Modes on the engine thread: in each of them every sequence gets the text that it gets alone, and
 * ends once. In split two steps of the fake backend run at the same time over the same pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "rig.h"

enum { N = 24, N_OUT = 60 };

static rig *rig_in(gs_mode mode) {
    rig *r = rig_new();
    static gs_slo_config slo;
    gs_slo_defaults(&slo);
    slo.mode = mode;
    r->ec.slo = &slo;
    return r;
}

static rig *start_in(gs_mode mode) {
    rig *r = rig_in(mode);
    r->ec.prefill_chunk = 64;
    r->fc.n_threads = 4;
    r->fc.n_layers = 4;
    r->fc.step_ns = 50 * GS_NS_PER_US;
    r->fc.prefill_token_ns = GS_NS_PER_US;
    rig_start(r);
    return r;
}

static gs_engine_stats stats_of(const rig *r) {
    gs_engine_stats s;
    gs_engine_get_stats(r->e, &s);
    return s;
}

static int32_t length_of(int i) {
    return 40 + i * 37 % 400;
}

static void submit_all(rig *r, int n) {
    for (int i = 0; i < n; i++) {
        gs_seq *q = make(&r->t[i], i, length_of(i), i % 3 == 0 ? 33 : 0, N_OUT);
        q->desc.cls = i % 5 == 4 ? GS_CLASS_BACKGROUND : GS_CLASS_CHAT;
        q->desc.class_fixed = true;
        gs_engine_submit(r->e, q);
    }
}

static void ask(rig *r, gs_query *q) {
    gs_engine_ask(r->e, q);
    while (next(r).kind != GS_EVENT_ANSWER)
        ;
    assert_int_equal(q->code, 0);
}

/* How many steps held what: 1 prompts, 2 tokens, 3 both. */
static void count_steps(const rig *r, int n[4]) {
    static gs_step_record x[1024];
    uint64_t at = 0, lost = 0;
    memset(n, 0, 4 * sizeof(*n));
    const uint32_t n_steps = gs_steps_read(gs_engine_steps(r->e), &at, x, 1024, &lost);
    for (uint32_t i = 0; i < n_steps; i++) {
        int what = 0;
        for (int32_t k = 0; k < x[i].n_parts; k++)
            what |= x[i].parts[k].phase == GS_PHASE_DECODE ? 2 : 1;
        n[what]++;
    }
}

static void every_mode_gives_the_same_tokens(void **state) {
    (void)state;
    track *alone = calloc(N, sizeof(*alone));
    for (int mode = GS_MODE_AUTO; mode < GS_MODE_COUNT; mode++) {
        rig *r = start_in((gs_mode)mode);
        int n[4];
        if (mode == GS_MODE_AUTO)
            for (int i = 0; i < N; i++) { /* one by one: in no mode's hands */
                gs_seq *q = make(&r->t[i], i, length_of(i), i % 3 == 0 ? 33 : 0, N_OUT);
                gs_engine_submit(r->e, q);
                finish(r, i + 1);
                alone[i] = r->t[i];
            }
        submit_all(r, N);
        finish(r, N);
        for (int i = 0; i < N; i++)
            same_text(&r->t[i], &alone[i]);
        no_blocks_are_held(r);
        const gs_engine_stats s = stats_of(r);
        count_steps(r, n);
        assert_int_equal(s.mode.set, mode);
        assert_true(mode == GS_MODE_AUTO || s.mode.now == (gs_mode)mode);
        assert_true(mode != GS_MODE_SPLIT || s.beside_steps > 0);
        if (mode == GS_MODE_MIXED)
            assert_true(n[3] > 0);
        if (mode == GS_MODE_EXCLUSIVE || mode == GS_MODE_SPLIT)
            assert_true(n[1] > 0 && n[2] > 0 && n[3] == 0);
        rig_stop(r);
    }
    free(alone);
}

/* Changes of mode in the middle of everything, with cancels at any moment. */
static void modes_change_while_sequences_come_and_go(void **state) {
    (void)state;
    rig *r = start_in(GS_MODE_SPLIT);
    gs_rng rng;
    gs_rng_seed(&rng, 5);
    for (int round = 0; round < 12; round++) {
        static gs_engine_settings set;
        gs_class_defaults(set.classes);
        gs_slo_defaults(&set.slo);
        set.slo.mode = (gs_mode)(round % GS_MODE_COUNT);
        set.prefill_chunk = 64;
        gs_query q = {.kind = GS_QUERY_CONFIGURE, .apply = &set};
        submit_all(r, N);
        ask(r, &q);
        for (int i = 0; i < 10; i++) {
            next(r);
            gs_engine_cancel(r->e, r->t[gs_rng_below(&rng, N)].q);
        }
        finish(r, N);
        for (int i = 0; i < N; i++)
            assert_true(r->t[i].end.reason == GS_END_LENGTH ||
                        r->t[i].end.reason == GS_END_CANCELLED);
        no_blocks_are_held(r);
    }
    rig_stop(r);
}

/* A step that fails, on whichever side, ends its own sequences and no others. */
static void a_step_that_fails_beside_another_ends_its_own(void **state) {
    (void)state;
    int n_failed = 0;
    for (uint64_t step = 3; step < 19; step += 3) {
        rig *r = rig_in(GS_MODE_SPLIT);
        r->ec.prefill_chunk = 64;
        r->fc.n_threads = 2;
        r->fc.step_ns = 50 * GS_NS_PER_US;
        r->fc.prefill_token_ns = GS_NS_PER_US;
        r->fc.fail_step = step;
        rig_start(r);
        submit_all(r, N);
        finish(r, N);
        int n_ended = 0;
        for (int i = 0; i < N; i++) {
            n_failed += r->t[i].end.reason == GS_END_ERROR;
            n_ended += r->t[i].end.reason == GS_END_LENGTH && r->t[i].n_out == N_OUT;
        }
        assert_true(n_ended > 0);
        no_blocks_are_held(r);
        rig_stop(r);
    }
    assert_true(n_failed >= 6);
}

/* A step beside others that hangs is given up: its own sequences end with that, the others never
 * notice, and further steps run beside. */
static void a_step_that_hangs_beside_another_is_given_up(void **state) {
    (void)state;
    for (uint64_t step = 1; step <= 5; step += 2) {
        rig *r = rig_in(GS_MODE_SPLIT);
        int n_revived = 0, n_stalled = 0, n_done = 0;
        bool runs;
        gs_event ev;
        r->ec.prefill_chunk = 64;
        r->fc.n_threads = 2;
        r->fc.step_ns = 50 * GS_NS_PER_US;
        r->fc.prefill_token_ns = GS_NS_PER_US;
        r->fc.hang_beside = step;
        rig_start(r);
        assert_int_equal(gs_engine_revive_beside(r->e), GS_ERR_EXISTS);
        submit_all(r, N);
        for (int i = 0; i < N; i++)
            while (!done(&r->t[i])) {
                const uint64_t progress = gs_engine_beside_progress(r->e, &runs);
                if (take(r, &ev) || !runs)
                    continue;
                nap(50 * GS_NS_PER_MS);
                if (gs_engine_beside_progress(r->e, &runs) == progress && runs)
                    n_revived += gs_engine_revive_beside(r->e) == GS_OK;
            }
        assert_true(n_revived >= 1);
        for (int i = 0; i < N; i++) {
            n_stalled += r->t[i].end.reason == GS_END_ERROR && r->t[i].end.err == GS_ERR_STALLED;
            n_done += r->t[i].end.reason == GS_END_LENGTH && r->t[i].n_out == N_OUT;
        }
        assert_true(n_stalled >= 1 && n_done >= 1);
        assert_int_equal(n_stalled + n_done, N);
        const uint64_t before = stats_of(r).beside_steps;
        submit_all(r, N);
        finish(r, N);
        assert_true(stats_of(r).beside_steps > before);
        no_blocks_are_held(r);
        rig_stop(r);
    }
}

/* Where blocks are short, both sides still come to their ends. */
static void split_survives_a_pool_that_is_too_small(void **state) {
    (void)state;
    rig *r = rig_in(GS_MODE_SPLIT);
    r->ec.prefill_chunk = 64;
    r->fc.n_threads = 2;
    r->fc.n_kv_blocks = 64;
    r->fc.max_context = 800;
    rig_start(r);
    submit_all(r, N);
    finish(r, N);
    for (int i = 0; i < N; i++)
        assert_int_equal(r->t[i].end.reason, GS_END_LENGTH);
    no_blocks_are_held(r);
    rig_stop(r);
}

/* A backend with one thread, or one more model: split is mixed, and says so. */
static void split_that_is_not_possible_is_mixed(void **state) {
    (void)state;
    rig *r = rig_in(GS_MODE_SPLIT);
    rig_start(r);
    submit_all(r, N);
    finish(r, N);
    no_blocks_are_held(r);
    assert_int_equal(stats_of(r).mode.set, GS_MODE_SPLIT);
    assert_int_equal(stats_of(r).mode.now, GS_MODE_MIXED);
    assert_int_equal(stats_of(r).mode.why, GS_MODE_WHY_DEVICE);
    rig_stop(r);

    r = start_in(GS_MODE_SPLIT);
    gs_query q = {.kind = GS_QUERY_ATTACH};
    assert_int_equal(gs_fake_create(&r->fc, &q.backend), 0);
    submit_all(r, N);
    ask(r, &q);
    finish(r, N);
    submit_all(r, N);
    finish(r, N);
    no_blocks_are_held(r);
    assert_int_equal(stats_of(r).mode.now, GS_MODE_MIXED);
    assert_int_equal(stats_of(r).mode.why, GS_MODE_WHY_MODELS);
    rig_stop(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_gives_the_same_tokens),
        cmocka_unit_test(modes_change_while_sequences_come_and_go),
        cmocka_unit_test(a_step_that_fails_beside_another_ends_its_own),
        cmocka_unit_test(a_step_that_hangs_beside_another_is_given_up),
        cmocka_unit_test(split_survives_a_pool_that_is_too_small),
        cmocka_unit_test(split_that_is_not_possible_is_mixed),
    };
    return cmocka_run_group_tests_name("modes", tests, NULL, NULL);
}
