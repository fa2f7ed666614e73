/*
 * The scheduler under random load, faults and cancels, on pools from generous to tiny. All
 * invariants are checked after every event. GS_SIM_SEEDS and GS_SIM_EVENTS make it longer, as does
 * GS_LONG_TESTS (10,000 seeds).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sim.h"
#include "unit/scale.h"

static uint64_t current_seed;

_Noreturn static void sim_fail(const char *what, unsigned long long id) {
    print_error("seed %llu, sequence or step %llu: %s\n", (unsigned long long)current_seed, id,
                what);
    fail();
    abort(); /* not reached: fail() leaves by longjmp */
}

static int env_or(const char *name, int otherwise) {
    const char *v = getenv(name);
    return v && atoi(v) > 0 ? atoi(v) : otherwise;
}

typedef struct totals {
    uint64_t ended, preempted, kv_full, cached, steps, copies, recomputed, at_limit;
    uint64_t suspended, resumed, held, refused, pauses, beside;
    uint64_t n_end[GS_END_ERROR + 1];
} totals;

static uint64_t run_one(uint64_t seed, bool slo, bool calm, bool whole, int n_events, totals *t) {
    sim *m = calloc(1, sizeof *m);
    assert_non_null(m);
    current_seed = seed;
    m->rng = seed * 0x9e3779b97f4a7c15u | 1;
    m->calm = calm;
    m->slo = slo;
    m->whole = whole;
    sim_init(m);
    for (int i = 0; i < n_events; i++)
        sim_event(m);
    sim_drain(m);
    const uint64_t hash = gs_sched_decision_hash(m->s);
    gs_sched_stats st;
    gs_sched_get_stats(m->s, &st);
    assert_int_equal(st.n_running, 0);
    assert_int_equal(st.n_waiting, 0);
    assert_int_equal(st.ended, m->n_ended);
    assert_int_equal(st.preemptions, m->n_preempted);
    assert_true(st.recomputed_tokens <= st.prefill_tokens);
    t->ended += m->n_ended;
    t->preempted += m->n_preempted;
    t->kv_full += m->n_kv_full;
    t->cached += m->n_cached_tokens;
    t->steps += m->n_steps;
    t->copies += m->n_copies;
    t->at_limit += m->n_at_limit;
    t->suspended += m->n_suspended;
    t->resumed += m->n_resumed;
    t->held += m->n_held;
    t->refused += m->n_refused;
    t->beside += m->n_beside;
    t->pauses += m->n_pauses;
    t->recomputed += st.recomputed_tokens;
    for (int i = 0; i <= GS_END_ERROR; i++)
        t->n_end[i] += m->n_end[i];
    sim_deinit(m);
    free(m);
    return hash;
}

static uint64_t run_seed(uint64_t seed, bool slo, bool calm, int n_events, totals *t) {
    return run_one(seed, slo, calm, false, n_events, t);
}

static void run_many(bool slo, bool calm) {
    const int n_seeds = env_or("GS_SIM_SEEDS", scale(300, 10000));
    const int n_events = env_or("GS_SIM_EVENTS", 1000);
    totals t = {0};
    for (int seed = 1; seed <= n_seeds; seed++)
        run_seed(scale_seed((uint64_t)seed), slo, calm, n_events, &t);
    print_message("%d seeds: %llu sequences in %llu steps, %llu preempted, %llu tokens recomputed, "
                  "%llu cached, %llu copies, %llu outgrew the pool, %llu preempted to the limit\n",
                  n_seeds, (unsigned long long)t.ended, (unsigned long long)t.steps,
                  (unsigned long long)t.preempted, (unsigned long long)t.recomputed,
                  (unsigned long long)t.cached, (unsigned long long)t.copies,
                  (unsigned long long)t.kv_full, (unsigned long long)t.at_limit);
    if (slo)
        print_message("  %llu steps suspended, %llu resumed, %llu times held, %llu refused, "
                      "%llu beside others\n",
                      (unsigned long long)t.suspended, (unsigned long long)t.resumed,
                      (unsigned long long)t.held, (unsigned long long)t.refused,
                      (unsigned long long)t.beside);
    assert_true(slo ? t.beside > 1000 : t.beside == 0);
    /* The load reaches what it is meant to test. */
    assert_true(!slo || (t.suspended > 0 && t.resumed > 0 && t.resumed < t.suspended));
    assert_true(t.preempted > 0 && t.at_limit > 0 && t.recomputed > 0 && t.cached > 0 &&
                t.copies > 0);
    assert_true(t.pauses > 1000);
    assert_true(t.n_end[GS_END_STOP] > 0 && t.n_end[GS_END_LENGTH] > 0);
    assert_true(t.n_end[GS_END_DONE] > 0 && t.kv_full > 0);
    assert_true(calm ? t.n_end[GS_END_CANCELLED] == 0 : t.n_end[GS_END_CANCELLED] > 0);
    assert_true(calm ? t.n_end[GS_END_ERROR] == t.kv_full : t.n_end[GS_END_ERROR] > t.kv_full);
}

static void test_random_with_faults(void **state) {
    (void)state;
    run_many(false, false);
    run_many(true, false);
}

static void test_random_load_only(void **state) {
    (void)state;
    run_many(false, true);
    run_many(true, true);
}

/* An encoder's scheduler: every prompt in one step, or refused for its length. */
static void test_whole_prompts(void **state) {
    (void)state;
    const int n_seeds = env_or("GS_SIM_SEEDS", scale(300, 10000)) / 3;
    for (int slo = 0; slo < 2; slo++) {
        totals t = {0};
        for (int seed = 1; seed <= n_seeds; seed++)
            run_one(scale_seed((uint64_t)seed), slo, seed % 2 == 0, true, 600, &t);
        assert_true(t.n_end[GS_END_DONE] > 1000 && t.n_end[GS_END_CANCELLED] > 0);
        assert_true(t.cached == 0 && t.n_end[GS_END_STOP] + t.n_end[GS_END_LENGTH] == 0);
        assert_true(!slo || (t.suspended > 0 && t.resumed > 0));
    }
}

static void test_same_seed_same_decisions(void **state) {
    (void)state;
    totals t = {0};
    uint64_t before = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        const bool slo = seed % 2 == 0;
        const uint64_t hash = run_seed(seed, slo, false, 500, &t);
        assert_true(run_seed(seed, slo, false, 500, &t) == hash);
        assert_true(hash != before);
        before = hash;
    }
}

/* The pool is free, and the only one that waits has outgrown it: with fcfs it waited for ever. */
static void test_seeds_that_found_something(void **state) {
    (void)state;
    totals t = {0};
    run_seed(381, false, true, 1000, &t);
    run_seed(2555, false, false, 1000, &t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_with_faults),
        cmocka_unit_test(test_random_load_only),
        cmocka_unit_test(test_whole_prompts),
        cmocka_unit_test(test_same_seed_same_decisions),
        cmocka_unit_test(test_seeds_that_found_something),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
