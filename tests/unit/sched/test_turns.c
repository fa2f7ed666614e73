/* Several models on one device: whose turn it is, in simulated homes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "home.h"
#include "base/err.h"
#include "base/rng.h"
#include "sched/policy.h"
#include "sched/sim.h"
#include "sched/turns.h"

static home *begin(void **state, const char *first, const char *second) {
    home *h = *state;
    gs_sim_free(h->m);
    h->m = NULL;
    h->n = 0;
    h->cfg = (gs_sim_config){.device = *gs_sim_device_find(first),
                             .second = second ? gs_sim_device_find(second) : NULL,
                             .n_persons = 6,
                             .max_waiting = MAX,
                             .max_tries = 1,
                             .seed = 1};
    return h;
}

static void backlog(home *h, int32_t model, int n, uint32_t person) {
    for (int i = 0; i < n; i++)
        add_to(h, model, MS, GS_CLASS_BACKGROUND, person, 64 + i * 37 % 192, 0)->n_texts = 1;
}

/* ---- a stream and a backlog ------------------------------------------------------------------ */

static void test_stream_beside_another_models_backlog(void **state) {
    static const char *const chat[] = {"xeon2-135m", "xeon2-1.5b"};
    for (int i = 0; i < 2; i++) {
        home *h = begin(state, chat[i], "xeon2-minilm");
        add_to(h, 0, 0, GS_CLASS_CHAT, 1, 60, 4000);
        h->cfg.end_ns = 10 * S;
        run(h);
        const double solo = ms(h->rep.cls[GS_CLASS_CHAT].gap_p99_ns);
        h = begin(state, chat[i], "xeon2-minilm");
        add_to(h, 0, 0, GS_CLASS_CHAT, 1, 60, 4000);
        backlog(h, 1, 6000, 5);
        h->cfg.end_ns = 10 * S;
        run(h);
        const double gap = ms(h->rep.cls[GS_CLASS_CHAT].gap_p99_ns);
        /* What the bound leaves: each round of the stream may become that much longer. */
        const double own = ms(h->rep.stats.busy_ns) / (double)h->rep.stats.steps;
        const double grown = fmax(1.2 * own, 15.0);
        const double allowed = (grown - own) / grown;
        const double had = ms(h->rep.second.busy_background_ns) / ms(h->rep.end_ns);
        print_message("%s: gap p99 %.1f ms (alone %.1f), background has %.3f of the time, %.3f "
                      "allowed\n",
                      chat[i], gap, solo, had, allowed);
        assert_true(gap <= fmax(1.2 * solo, 25.0) * 1.02);
        assert_true(had >= 0.9 * allowed);
    }
}

/* Nobody else there: the other model costs the backlog nothing. */
static void test_backlog_alone_loses_nothing(void **state) {
    double rate[2];
    for (int two = 0; two < 2; two++) {
        home *h =
            two ? begin(state, "xeon2-135m", "xeon2-minilm") : begin(state, "xeon2-minilm", NULL);
        backlog(h, two, 1500, 5);
        run(h);
        assert_int_equal(h->rep.cls[GS_CLASS_BACKGROUND].n_done, 1500);
        rate[two] = h->rep.tokens_per_s;
    }
    print_message("backlog: %.0f tokens/s beside an idle model, %.0f alone\n", rate[1], rate[0]);
    assert_true(rate[1] >= 0.97 * rate[0]);
}

/* A step of one model's background gives way between layers to another model's newcomer. */
static void test_newcomer_of_another_model(void **state) {
    home *h = begin(state, "xeon2-135m", "xeon2-1.5b");
    for (int i = 0; i < 20; i++)
        add_to(h, 1, 0, GS_CLASS_BACKGROUND, 5, 4000, 1)->n_texts = 1;
    for (int i = 0; i < 20; i++)
        add_to(h, 0, (3 * i + 1) * S + i * 71 * MS, GS_CLASS_VOICE, 1, 60, 10);
    h->cfg.end_ns = 60 * S;
    run(h);
    const gs_sim_class *v = &h->rep.cls[GS_CLASS_VOICE];
    gs_cost_step x = {0};
    gs_cost_step_add(&x, 512, 3000, false, false);
    const double layer = gs_cost_predict(&h->cfg.second->cost, &x) / 1e6 / 28;
    gs_cost_step y = {0};
    gs_cost_step_add(&y, 60, 0, false, true);
    const double step = gs_cost_predict(&h->cfg.device.cost, &y) / 1e6;
    print_message("voice TTFT p95 %.0f ms; its step %.0f ms, a layer of background %.0f ms\n",
                  ms(v->ttft_p95_ns), step, layer);
    assert_int_equal(v->n_done, 20);
    assert_true(ms(v->ttft_p95_ns) <= 1.15 * (step + layer));
    assert_true(h->rep.second.suspensions > 0);
    assert_int_equal(h->rep.second.discarded_ns, 0);
    assert_true(h->rep.second.busy_ns > 50 * S); /* and the machine stays full */
}

/* ---- two models with people at both ---------------------------------------------------------- */

/* The document fills what the stream's target leaves, as a chunk in the same step would. */
static void test_stream_beside_another_models_document(void **state) {
    home *h = begin(state, "xeon2-1.5b", "xeon2-135m");
    add_to(h, 0, 0, GS_CLASS_CHAT, 1, 60, 400);
    add_to(h, 1, 2 * S, GS_CLASS_DOCUMENT, 2, 3000, 10);
    run(h);
    const gs_sim_outcome *o = gs_sim_outcomes(h->m);
    const double alone = gs_cost_prefill(&h->cfg.second->cost, 0, 3000, 512) / 1e6;
    print_message("gap p99 %.0f ms, document %.0f ms (alone %.0f)\n",
                  ms(h->rep.cls[GS_CLASS_CHAT].gap_p99_ns), ms(o[1].first_ns - o[1].start_ns),
                  alone);
    assert_true(ms(h->rep.cls[GS_CLASS_CHAT].gap_p99_ns) <= 100.0 * 1.05);
    /* 70 % of the 50 ms that a token of the stream leaves of its 100. */
    assert_true(ms(o[1].first_ns - o[1].start_ns) <= 1.2 * alone * (50.0 + 35.0) / 35.0);
}

static void test_streams_of_two_models_take_turns(void **state) {
    home *h = begin(state, "xeon2-135m", "xeon2-135m");
    for (int32_t model = 0; model < 2; model++)
        for (uint32_t i = 0; i < 2; i++)
            add_to(h, model, 0, GS_CLASS_CHAT, 1 + i, 60, 500);
    run(h);
    const gs_sim_outcome *o = gs_sim_outcomes(h->m);
    const double first = ms(o[0].last_ns - o[0].first_ns),
                 second = ms(o[2].last_ns - o[2].first_ns);
    print_message("two streams each: %.0f and %.0f ms for 500 tokens\n", first, second);
    assert_int_equal(h->rep.cls[GS_CLASS_CHAT].n_done, 4);
    assert_true(fabs(first - second) <= 0.05 * (first + second));
}

/* A spoken request at one model does not wait for another model's document. */
static void test_slack_decides_between_prompts(void **state) {
    home *h = begin(state, "xeon2-135m", "xeon2-1.5b");
    add_to(h, 1, 0, GS_CLASS_DOCUMENT, 2, 6000, 10);
    for (int i = 0; i < 4; i++)
        add_to(h, 0, (1 + i) * S, GS_CLASS_VOICE, 1, 400, 10);
    run(h);
    const gs_sim_outcome *o = gs_sim_outcomes(h->m);
    for (int i = 1; i <= 4; i++)
        assert_true(o[i].first_ns - o[i].start_ns <= 700 * MS);
    assert_int_equal(o[0].state, GS_SIM_DONE);
}

/* ---- one account over all models --------------------------------------------------------------*/

/* Two persons' backlogs at two models share the device by their counters, not by models. */
static void test_accounts_are_common(void **state) {
    home *h = begin(state, "xeon2-minilm", "xeon2-minilm");
    backlog(h, 0, 3000, 1);
    backlog(h, 1, 3000, 1);
    for (int i = 0; i < 3000; i++)
        add_to(h, 1, MS, GS_CLASS_BACKGROUND, 2, 128, 0)->n_texts = 1;
    h->cfg.end_ns = 15 * S;
    run(h);
    const double a = ms(gs_sim_charged(h->m, 1)), b = ms(gs_sim_charged(h->m, 2));
    print_message("two persons, one of them at two models: %.2f and %.2f s\n", a / 1e3, b / 1e3);
    assert_true(fabs(a - b) <= 0.05 * (a + b));
}

static void test_background_floor_over_models(void **state) {
    home *h = begin(state, "xeon2-135m", "xeon2-minilm");
    for (int i = 0; i < 120; i++)
        add_to(h, 0, (int64_t)i * 500 * MS, GS_CLASS_DOCUMENT, 1 + (uint32_t)i % 4, 2000, 50);
    backlog(h, 1, 6000, 5);
    h->cfg.end_ns = 60 * S;
    run(h);
    const double share = (double)h->rep.second.busy_background_ns / 60e9;
    print_message("background has %.3f of a machine that documents keep busy\n", share);
    assert_true(share >= 0.028);
    assert_true(share <= 0.25);
}

static void test_a_person_runs_so_many_at_all_models(void **state) {
    gs_slo_config slo;
    gs_slo_defaults(&slo);
    slo.person.max_running = 2;
    home *h = begin(state, "xeon2-135m", "xeon2-135m");
    h->cfg.slo = &slo;
    for (int i = 0; i < 8; i++)
        add_to(h, i % 2, 0, GS_CLASS_CHAT, 1, 60, 100);
    run(h);
    const gs_sim_outcome *o = gs_sim_outcomes(h->m);
    for (int i = 0; i < 8; i++) {
        int n = 0;
        for (int k = 0; k < 8; k++)
            n += o[k].first_ns <= o[i].first_ns && o[k].end_ns > o[i].first_ns;
        assert_true(n <= 2);
    }
    assert_int_equal(h->rep.cls[GS_CLASS_CHAT].n_done, 8);
}

/* ---- anything at all ------------------------------------------------------------------------- */

static void random_home(home *h, uint64_t seed) {
    gs_rng r;
    gs_rng_seed(&r, seed);
    for (int i = 0; i < 300; i++) {
        const gs_class cls = (gs_class)(gs_rng_unit(&r) * GS_CLASS_COUNT);
        const int64_t t_ns = (int64_t)(gs_rng_unit(&r) * 20e9);
        gs_sim_request *q =
            add_to(h, gs_rng_unit(&r) < 0.5, t_ns, cls, (uint32_t)(gs_rng_unit(&r) * 6),
                   1 + (int32_t)(gs_rng_unit(&r) * 800), 1 + (int32_t)(gs_rng_unit(&r) * 120));
        if (cls == GS_CLASS_BACKGROUND && gs_rng_unit(&r) < 0.6)
            q->n_texts = 1 + (int32_t)(gs_rng_unit(&r) * 8);
        if (gs_rng_unit(&r) < 0.15)
            q->cancel_after_ns = 1 + (int64_t)(gs_rng_unit(&r) * 3e9);
    }
    h->cfg.check = true;
    h->cfg.max_waiting = 600; /* all records are checked after each step */
    h->cfg.seed = seed;
    h->cfg.device.n_blocks = 220;
    h->cfg.device.slow_rate = 0.02;
}

static void test_everything_ends_once(void **state) {
    for (uint64_t seed = 1; seed <= 12; seed++) {
        uint64_t hash = 0;
        for (int again = 0; again < 2; again++) {
            home *h = begin(state, "xeon2-135m", seed % 2 ? "n100-135m" : "xeon2-minilm");
            if (seed % 3 == 0)
                h->cfg.policy = &gs_policy_fcfs;
            random_home(h, seed);
            if (h->cfg.second == gs_sim_device_find("xeon2-minilm"))
                for (int32_t i = 0; i < h->n; i++)
                    if (h->q[i].model == 1) {
                        h->q[i].n_prompt = 1 + h->q[i].n_prompt / 2;
                        h->q[i].n_texts = 1;
                    }
            run(h);
            const gs_sim_outcome *o = gs_sim_outcomes(h->m);
            for (int32_t i = 0; i < h->n; i++)
                assert_true(o[i].state >= GS_SIM_DONE);
            assert_true(!again || hash == h->rep.hash);
            hash = h->rep.hash;
        }
    }
}

/* A model that goes takes its sequences off the accounts. */
static void test_a_scheduler_leaves(void **state) {
    (void)state;
    gs_accounts *a;
    gs_sched *s[2];
    gs_kv *kv[2];
    int32_t tokens[64] = {0};
    assert_int_equal(gs_accounts_create(UINT32_MAX, &a), GS_ERR_INVALID);
    assert_int_equal(gs_accounts_create(4, &a), GS_OK);
    for (int i = 0; i < 2; i++) {
        const gs_kv_config kc = {
            .n_blocks = 16, .block_tokens = 8, .max_seqs = 4, .max_blocks_per_seq = 8};
        const gs_sched_config sc = {.max_seqs = 4,
                                    .max_waiting = 8,
                                    .max_batch_tokens = 64,
                                    .prefill_chunk = 32,
                                    .max_context = 64,
                                    .accounts = a};
        assert_int_equal(gs_kv_create(&kc, &kv[i]), GS_OK);
        assert_int_equal(gs_sched_create(&sc, kv[i], &s[i]), GS_OK);
        const gs_seq_desc d = {.id = 7,
                               .person = 1,
                               .cls = GS_CLASS_CHAT,
                               .tokens = tokens,
                               .n_prompt = 20,
                               .max_output = 8};
        gs_admission adm;
        assert_int_equal(gs_sched_submit(s[i], &d, 1, &adm), GS_OK);
    }
    gs_person_stats st;
    char err[200];
    assert_int_equal(gs_sched_get_person(s[0], 1, &st), GS_OK);
    assert_int_equal(st.n_waiting, 2);
    assert_int_equal(gs_sched_get_person(s[0], 4, &st), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_sched_check(s[0], err, sizeof err), GS_OK);
    gs_sched_free(s[1]);
    assert_int_equal(gs_sched_get_person(s[0], 1, &st), GS_OK);
    assert_int_equal(st.n_waiting, 1);
    assert_int_equal(gs_sched_check(s[0], err, sizeof err), GS_OK);
    gs_sched_free(s[0]);
    gs_kv_free(kv[0]);
    gs_kv_free(kv[1]);
    gs_accounts_free(a);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_stream_beside_another_models_backlog),
        T(test_backlog_alone_loses_nothing),
        T(test_newcomer_of_another_model),
        T(test_stream_beside_another_models_document),
        T(test_streams_of_two_models_take_turns),
        T(test_slack_decides_between_prompts),
        T(test_accounts_are_common),
        T(test_background_floor_over_models),
        T(test_a_person_runs_so_many_at_all_models),
        T(test_everything_ends_once),
        T(test_a_scheduler_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
