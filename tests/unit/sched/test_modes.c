/*
 * Modes in simulated homes: what each is worth, and that auto finds the best. The score of a run is
 * its good tokens by the second: those of prompts and answers of requests that met their targets
 * (of background: that were done), until the last one has ended.
 */
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

enum { N_MIXES = 5 };
static const char *const mix_names[N_MIXES] = {"chats", "voices", "documents", "index", "batch"};

/* Device time of a request by the model, with some company. */
static double work_of(const gs_sim_device *d, const gs_sim_request *q) {
    gs_cost_step rows = {0};
    for (int i = 0; i < 4; i++)
        gs_cost_step_add(&rows, 1, q->n_prompt, true, true);
    const int32_t n_texts = q->n_texts > 0 ? q->n_texts : 1;
    const double prompt = gs_cost_prefill(&d->cost, 0, q->n_prompt, 128) * n_texts;
    return prompt + (q->n_texts > 0 ? 0.0 : q->n_output * gs_cost_predict(&d->cost, &rows) / 4);
}

static void fill(home *h, int mix, gs_rng *rng) {
    for (int i = 0; i < 120; i++) {
        const uint32_t person = (uint32_t)(1 + i % 5);
        const int32_t n = 1 + (int32_t)gs_rng_below(rng, 100);
        if (mix == 0 || i % 2 == 0)
            add_to(h, 0, 0, GS_CLASS_CHAT, person, 150 + 6 * n, 60 + n);
        else if (mix == 1)
            add_to(h, 0, 0, GS_CLASS_VOICE, person, 40 + n, 40);
        else if (mix == 2)
            add_to(h, 0, 0, GS_CLASS_DOCUMENT, person, 1500 + 15 * n, 100);
        else if (mix == 3)
            add_to(h, 0, 0, GS_CLASS_BACKGROUND, 0, 100 + n, 0)->n_texts = 20;
        else
            add_to(h, 0, 0, GS_CLASS_BACKGROUND, 0, 300 + 4 * n, 80);
    }
}

/* Arrivals at random, so that the machine has load times what it can do. */
static void spread(home *h, double load, gs_rng *rng) {
    double work = 0.0;
    for (int32_t i = 0; i < h->n; i++)
        work += work_of(&h->cfg.device, &h->q[i]);
    for (int32_t i = 0; i < h->n; i++)
        h->q[i].t_ns = (int64_t)(gs_rng_unit(rng) * work / load);
}

static double score_of(const home *h) {
    gs_class_config k[GS_CLASS_COUNT];
    const gs_sim_outcome *o = gs_sim_outcomes(h->m);
    double tokens = 0.0;
    gs_class_defaults(k);
    for (int32_t i = 0; i < h->n; i++) {
        const gs_sim_request *q = &h->q[i];
        const gs_class_config *c = &k[q->cls];
        bool good = o[i].state == GS_SIM_DONE;
        if (c->ttft_ns > 0)
            good = good && o[i].first_ns - o[i].start_ns <= c->ttft_ns &&
                   o[i].last_ns - o[i].first_ns <= c->tpot_ns * (o[i].n_output - 1);
        if (good)
            tokens += (double)q->n_prompt * (q->n_texts > 0 ? q->n_texts : 1) + o[i].n_output;
    }
    return tokens / ((double)h->rep.end_ns / 1e9);
}

static double play(home *h, const char *device, int mix, gs_mode mode, uint64_t seed,
                   gs_mode_view *view) {
    static gs_slo_config slo;
    gs_rng rng;
    gs_sim_free(h->m);
    h->m = NULL;
    h->n = 0;
    gs_rng_seed(&rng, seed);
    gs_slo_defaults(&slo);
    slo.mode = mode;
    h->cfg = (gs_sim_config){.device = *gs_sim_device_find(device),
                             .slo = &slo,
                             .n_persons = 6,
                             .max_waiting = MAX,
                             .max_tries = 1,
                             .seed = seed};
    fill(h, mix, &rng);
    spread(h, 0.9, &rng);
    run(h);
    gs_sched_get_mode(gs_sim_sched(h->m), view);
    return score_of(h);
}

static void auto_finds_the_best(void **state) {
    static const char *const devices[] = {"xeon2-135m", "desktop16-1.5b", "gpu-8b"};
    home *h = *state;
    double worst_gain = 0.0, worst_loss = 0.0;
    for (int d = 0; d < 3; d++)
        for (int mix = 0; mix < N_MIXES; mix++) {
            double score[GS_MODE_COUNT] = {0};
            gs_mode_view view = {0};
            for (int mode = GS_MODE_COUNT - 1; mode >= 0; mode--)
                for (uint64_t seed = 1; seed <= 3; seed++)
                    score[mode] += play(h, devices[d], mix, (gs_mode)mode, seed, &view) / 3;
            double best = 0.0, worst = 1e30;
            for (int mode = GS_MODE_MIXED; mode < GS_MODE_COUNT; mode++) {
                best = score[mode] > best ? score[mode] : best;
                worst = score[mode] < worst ? score[mode] : worst;
            }
            print_message(
                "%-15s %-10s mixed %6.0f exclusive %6.0f split %6.0f auto %6.0f: %5.1f %% "
                "of the best, %s (%.2f %.2f %.2f) %d:%d, %d changes\n",
                devices[d], mix_names[mix], score[1], score[2], score[3], score[0],
                100 * score[0] / best, gs_mode_name(view.now), view.rate[1], view.rate[2],
                view.rate[3], (int)view.prompt_threads, (int)view.token_threads,
                (int)view.n_changes);
            const double loss = 1.0 - score[0] / best, gain = score[0] / worst - 1.0;
            worst_loss = loss > worst_loss ? loss : worst_loss;
            worst_gain = gain > worst_gain ? gain : worst_gain;
        }
    print_message("at most %.1f %% below the best, up to %.0f %% above the worst\n",
                  100 * worst_loss, 100 * worst_gain);
    assert_true(worst_loss <= 0.03);
    assert_true(worst_gain >= 0.10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(auto_finds_the_best, setup, teardown),
    };
    return cmocka_run_group_tests_name("modes", tests, NULL, NULL);
}
