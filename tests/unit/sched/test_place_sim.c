/*
 * A home with other machines, simulated: the real placement and the real scheduler, remotes that
 * take what they are sent as it comes, a network, faults.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "home.h"
#include "sched/policy.h"

#define LOAD_NS (240 * S)

enum { N_REMOTES = 3, N_FAULTS = 40 };

typedef struct cluster {
    home h; /* first: setup and teardown are its */
    gs_sim_remote remotes[N_REMOTES];
    gs_sim_fault faults[N_REMOTES][N_FAULTS];
    gs_rng rng;
} cluster;

static int setup_cluster(void **state) {
    *state = calloc(1, sizeof(cluster));
    return *state ? 0 : -1;
}

/* The local machine and n remotes like that device. */
static cluster *make(void **state, int32_t n_remotes, const char *device) {
    cluster *c = *state;
    gs_sim_free(c->h.m);
    memset(c, 0, sizeof *c);
    c->h.cfg = (gs_sim_config){.device = *gs_sim_device_find("xeon2-135m"),
                               .remotes = c->remotes,
                               .n_remotes = n_remotes,
                               .local_only = 1u << GS_CLASS_VOICE,
                               .n_persons = 5,
                               .max_waiting = 2048,
                               .max_tries = 5,
                               .seed = 1};
    for (int i = 0; i < N_REMOTES; i++) {
        gs_sim_remote *x = &c->remotes[i];
        x->device = *gs_sim_device_find(device);
        x->latency_ns = 2 * MS;
        x->faults = c->faults[i];
        gs_place_worker_defaults(GS_WORKER_REMOTE, &x->worker);
        snprintf(x->worker.name, sizeof x->worker.name, "remote%d", i);
        x->worker.max_seqs = x->device.max_seqs;
        x->worker.max_tokens = 0;
    }
    gs_rng_seed(&c->rng, 1);
    return c;
}

static int64_t below(cluster *c, int64_t n) {
    return (int64_t)gs_rng_below(&c->rng, (uint64_t)n);
}

/* Voice, chats with follow-ups, titles: until end_ns. */
static void add_family(cluster *c, int64_t end_ns, int64_t every_ns) {
    for (int64_t t = S; t < end_ns; t += every_ns / 2 + below(c, every_ns)) {
        const uint32_t person = 1 + (uint32_t)below(c, 3);
        const int kind = (int)below(c, 10);
        if (kind < 2) {
            add_to(&c->h, 0, t, GS_CLASS_VOICE, person, 200 + (int32_t)below(c, 300), 40);
        } else if (kind < 4) {
            add_to(&c->h, 0, t, GS_CLASS_UTILITY, person, 300 + (int32_t)below(c, 400), 16);
        } else {
            const int32_t first = c->h.n, n_prompt = 300 + (int32_t)below(c, 900);
            add_to(&c->h, 0, t, GS_CLASS_CHAT, person, n_prompt, 60 + (int32_t)below(c, 150));
            gs_sim_request *q = add_to(&c->h, 0, 0, GS_CLASS_CHAT, person, 0, 100);
            q->after = q->prefix_of = first;
            q->think_ns = 3 * S;
            q->n_prefix = n_prompt + c->h.q[first].n_output;
            q->n_prompt = q->n_prefix + 40;
        }
    }
}

/* Jobs, so many of them asked for at a time: each is sent when one before it is done. */
static void add_backlog(cluster *c, int32_t n, int32_t at_once) {
    const int32_t first = c->h.n;
    for (int32_t i = 0; i < n; i++) {
        gs_sim_request *q = add_to(&c->h, 0, S + i, GS_CLASS_BACKGROUND, 4,
                                   300 + (int32_t)below(c, 500), 80 + (int32_t)below(c, 120));
        if (i >= at_once)
            q->after = first + i - at_once;
    }
}

static double background_tokens(const cluster *c) {
    const gs_sim_outcome *o = gs_sim_outcomes(c->h.m);
    double sum = 0.0;
    for (int32_t i = 0; i < c->h.n; i++)
        if (c->h.q[i].cls == GS_CLASS_BACKGROUND && o[i].state == GS_SIM_DONE)
            sum += c->h.q[i].n_prompt + o[i].n_output;
    return sum;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of all interactive requests together, in ms; who waits at the end has waited until then. */
static double interactive_ttft_p95(const cluster *c) {
    static double v[MAX];
    int n = 0;
    const gs_sim_outcome *o = gs_sim_outcomes(c->h.m);
    for (int32_t i = 0; i < c->h.n; i++)
        if (c->h.q[i].cls != GS_CLASS_BACKGROUND && o[i].start_ns > 0)
            v[n++] = ms((o[i].first_ns > 0 ? o[i].first_ns : LOAD_NS) - o[i].start_ns);
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n > 0 ? v[(n * 95 - 1) / 100] : 0.0;
}

static double met_share(const gs_sim_class *k) {
    return k->n_judged > 0 ? (double)k->n_met / k->n_judged : 1.0;
}

/* ---- what workers are for ---------------------------------------------------------------------*/

static void test_a_family_with_a_remote(void **state) {
    gs_sim_report alone;
    /* Each alone: this machine with the family and the backlog, the other with the backlog. */
    cluster *c = make(state, 0, "xeon2-135m");
    add_family(c, LOAD_NS, 4 * S);
    add_backlog(c, 4000, 128);
    c->h.cfg.end_ns = LOAD_NS;
    run(&c->h);
    alone = c->h.rep;
    const double local_tokens = background_tokens(c), alone_p95 = interactive_ttft_p95(c);

    c = make(state, 0, "xeon2-135m");
    c->h.cfg.policy = &gs_policy_fcfs;
    add_backlog(c, 4000, 128);
    c->h.cfg.end_ns = LOAD_NS;
    run(&c->h);
    const double remote_tokens = background_tokens(c);

    c = make(state, 1, "xeon2-135m");
    add_family(c, LOAD_NS, 4 * S);
    add_backlog(c, 4000, 128);
    c->h.cfg.end_ns = LOAD_NS;
    run(&c->h);
    const double both_p95 = interactive_ttft_p95(c);
    const double ratio = background_tokens(c) / (local_tokens + remote_tokens);
    print_message("background %.3f of the sum; interactive TTFT p95 %.0f ms, alone %.0f ms\n",
                  ratio, both_p95, alone_p95);
    assert_true(ratio >= 0.9);
    assert_true(both_p95 <= 1.1 * alone_p95);
    for (int k = 0; k < GS_CLASS_BACKGROUND; k++)
        assert_true(met_share(&c->h.rep.cls[k]) >= met_share(&alone.cls[k]) - 0.01);
    assert_int_equal(c->h.rep.cls[GS_CLASS_BACKGROUND].n_failed, 0);

    c = make(state, 1, "xeon2-135m");
    add_family(c, LOAD_NS, 4 * S);
    add_backlog(c, 4000, 128);
    c->h.cfg.end_ns = LOAD_NS;
    c->h.cfg.round_robin = true;
    run(&c->h);
    const double turns_p95 = interactive_ttft_p95(c);
    print_message("each in turn %.0f ms\n", turns_p95);
    assert_true(both_p95 <= 0.5 * turns_p95);
}

/* A remote of four seats, and no more jobs at a time than this machine could hold alone: both are
 * busy all the same. */
static void test_a_short_backlog_is_shared(void **state) {
    double sum = 0.0, both = 0.0;
    for (int k = 0; k < 3; k++) { /* this machine, the other, both */
        cluster *c = make(state, k == 2, "xeon2-135m");
        c->remotes[0].device.max_seqs = c->remotes[0].worker.max_seqs = 4;
        if (k == 1)
            c->h.cfg.device.max_seqs = 4;
        if (k != 1)
            add_family(c, LOAD_NS, 4 * S);
        add_backlog(c, 4000, 32);
        c->h.cfg.end_ns = LOAD_NS;
        run(&c->h);
        *(k < 2 ? &sum : &both) += background_tokens(c);
    }
    print_message("background %.3f of the sum\n", both / sum);
    assert_true(both >= 0.98 * sum);
}

/* Work that is lent is on the same account: who lent much gets less of what is here. */
static void test_one_account(void **state) {
    cluster *c = make(state, 1, "xeon2-135m");
    c->remotes[0].worker.price = 0.25;
    for (int32_t i = 0; i < 200; i++)
        add_to(&c->h, 0, S, GS_CLASS_BACKGROUND, 1 + (uint32_t)i % 2, 400, 100);
    run(&c->h);
    gs_place_view v;
    gs_place_get_view(gs_sim_place(c->h.m), 1, c->h.rep.end_ns, &v);
    assert_true(v.n_done > 20);
    assert_true(fabs((double)v.charged_ns / (double)v.busy_ns - 0.25) < 0.01);
    const int64_t here_ns = c->h.rep.stats.busy_ns - c->h.rep.stats.recomputed_ns;
    const int64_t sum_ns = gs_sim_charged(c->h.m, 1) + gs_sim_charged(c->h.m, 2);
    assert_true(fabs((double)sum_ns / (double)(here_ns + v.charged_ns) - 1.0) < 0.01);
    assert_true(c->h.rep.fairness > 0.99);
}

/* The remote serves what it is sent, whole and once. */
static void test_nothing_to_lend(void **state) {
    cluster *c = make(state, 1, "xeon2-135m");
    c->remotes[0].worker.probe_every_ns = 0;
    add_family(c, 120 * S, 4 * S);
    run(&c->h);
    gs_place_view v;
    gs_place_get_view(gs_sim_place(c->h.m), 1, c->h.rep.end_ns, &v);
    assert_int_equal(v.n_dispatched, 0);
    assert_int_equal(v.n_probes, 1); /* when it was added */
    const gs_sim_report with = c->h.rep;
    c = make(state, 0, "xeon2-135m");
    add_family(c, 120 * S, 4 * S);
    run(&c->h);
    for (int k = 0; k < GS_CLASS_BACKGROUND; k++) {
        assert_int_equal(with.cls[k].n_met, c->h.rep.cls[k].n_met);
        assert_true((double)with.cls[k].ttft_p95_ns <= 1.02 * (double)c->h.rep.cls[k].ttft_p95_ns);
    }
}

/* The one that was sent the conversation gets its follow-ups. */
static void test_follow_ups_stay(void **state) {
    cluster *c = make(state, 3, "xeon2-135m");
    c->h.cfg.local_only = 0;
    for (int i = 0; i < 3; i++)
        c->remotes[i].worker.prefers = 1u << GS_CLASS_CHAT;
    for (int32_t i = 0; i < 30; i++) {
        const int32_t first = c->h.n;
        add_to(&c->h, 0, S + i * 12 * S, GS_CLASS_CHAT, 1, 1500, 60);
        for (int k = 0; k < 3; k++) {
            gs_sim_request *q = add_to(&c->h, 0, 0, GS_CLASS_CHAT, 1, 0, 60);
            const gs_sim_request *before = &c->h.q[c->h.n - 2];
            q->after = q->prefix_of = c->h.n - 2;
            q->think_ns = S;
            q->n_prefix = before->n_prompt + before->n_output;
            q->n_prompt = q->n_prefix + 30;
        }
        assert_int_equal(c->h.n, first + 4);
    }
    run(&c->h);
    int n_stayed = 0, n = 0;
    const gs_sim_outcome *o = gs_sim_outcomes(c->h.m);
    for (int32_t i = 0; i < c->h.n; i++) {
        if (c->h.q[i].after < 0)
            continue;
        n++;
        n_stayed += o[i].worker == o[c->h.q[i].after].worker;
    }
    print_message("%d of %d follow-ups stayed\n", n_stayed, n);
    gs_place_view v;
    for (int i = 1; i <= 3; i++) {
        gs_place_get_view(gs_sim_place(c->h.m), i, c->h.rep.end_ns, &v);
        assert_true(v.n_done >= 1); /* each is tried */
    }
    assert_true(n_stayed >= n * 9 / 10);
}

/* ---- faults -----------------------------------------------------------------------------------*/

/* It accepts and never answers: whoever is there loses its time-out, once; nobody goes after. */
static void test_a_remote_that_hangs(void **state) {
    cluster *c = make(state, 1, "xeon2-135m");
    c->h.cfg.local_only = 0;
    gs_place_worker *w = &c->remotes[0].worker;
    w->takes = w->prefers = 1u << GS_CLASS_VOICE | 1u << GS_CLASS_BACKGROUND;
    w->probe_every_ns = 0;
    c->faults[0][0] = (gs_sim_fault){.kind = GS_SIM_HANG, .at_ns = 60 * S, .until_ns = 1000 * S};
    c->remotes[0].n_faults = 1;
    for (int i = 0; i < 60; i++)
        add_to(&c->h, 0, S + i * 2500 * MS, GS_CLASS_VOICE, 1, 200, 40);
    run(&c->h);
    const gs_sim_outcome *o = gs_sim_outcomes(c->h.m);
    int n_late = 0, n_there = 0;
    int64_t usual_ns = 0;
    for (int32_t i = 0; i < c->h.n; i++)
        if (o[i].n_attempts == 1 && o[i].first_ns - o[i].start_ns > usual_ns)
            usual_ns = o[i].first_ns - o[i].start_ns;
    for (int32_t i = 0; i < c->h.n; i++) {
        assert_true(o[i].n_attempts <= 2);
        assert_int_equal(o[i].state, GS_SIM_DONE);
        n_there += o[i].worker == 1;
        n_late += o[i].n_attempts == 2;
        assert_true(o[i].first_ns - o[i].start_ns <= usual_ns + w->probe_timeout_ns);
    }
    assert_true(n_there > 5); /* before it hung */
    assert_int_equal(n_late, 1);
    assert_true(usual_ns < w->probe_timeout_ns / 2);
}

static void add_faults(cluster *c, int32_t n_kills, int64_t end_ns) {
    for (int32_t k = 0; k < n_kills; k++) {
        const int at = (int)below(c, N_REMOTES);
        gs_sim_remote *x = &c->remotes[at];
        if (x->n_faults == N_FAULTS)
            continue;
        const int64_t t = S + below(c, end_ns);
        c->faults[at][x->n_faults++] =
            (gs_sim_fault){.kind = GS_SIM_KILL, .at_ns = t, .until_ns = t + below(c, 3 * S) + 1};
    }
    for (int at = 0; at < N_REMOTES; at++) {
        const int64_t t = S + below(c, end_ns);
        gs_sim_remote *x = &c->remotes[at];
        if (x->n_faults == N_FAULTS)
            continue;
        c->faults[at][x->n_faults++] = (gs_sim_fault){.kind = at == 0 ? GS_SIM_HANG : GS_SIM_SLOW,
                                                      .at_ns = t,
                                                      .until_ns = t + 8 * S,
                                                      .factor = 5.0};
    }
}

static void expect_empty(const cluster *c) {
    gs_place_view v;
    gs_sched_stats st;
    gs_kv_stats kst;
    for (int32_t i = 0; i <= N_REMOTES; i++) {
        const gs_kv *kv = NULL;
        gs_place_get_view(gs_sim_place(c->h.m), i, c->h.rep.end_ns, &v);
        assert_int_equal(v.n_placed, 0);
        assert_int_equal(v.n_tokens, 0);
        if (i == 0)
            continue;
        gs_sched_get_stats(gs_sim_remote_sched(c->h.m, i - 1, &kv), &st);
        assert_int_equal(st.n_running + st.n_waiting, 0);
        gs_kv_get_stats(kv, &kst);
        assert_int_equal(kst.n_held, 0);
    }
    assert_int_equal(c->h.rep.stats.n_running + c->h.rep.stats.n_waiting, 0);
    assert_int_equal(c->h.rep.kv.n_held, 0);
}

/* 100 kills at random moments: what has not begun to answer is not lost, nothing is answered twice,
 * nothing stays behind. */
static void test_kills(void **state) {
    int n_failed = 0, n_moved = 0, n_kills = 0;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        cluster *c = make(state, N_REMOTES, "xeon2-135m");
        gs_rng_seed(&c->rng, seed);
        c->h.cfg.seed = seed;
        c->h.cfg.check = true;
        c->h.cfg.device.n_blocks = 512; /* each is checked after each step */
        for (int i = 0; i < N_REMOTES; i++)
            c->remotes[i].device.n_blocks = 512;
        add_faults(c, 100, 80 * S);
        add_family(c, 80 * S, 2 * S);
        add_backlog(c, 700, 700);
        for (int i = 0; i < 40; i++) {
            gs_sim_request *q =
                add_to(&c->h, 0, S + below(c, 80 * S), GS_CLASS_BACKGROUND, 4, 120, 0);
            q->n_texts = 1 + (int32_t)below(c, 8);
        }
        for (int32_t i = 0; i < c->h.n; i += 17) /* somebody loses patience */
            c->h.q[i].cancel_after_ns = 100 * MS + below(c, 3 * S);
        run(&c->h);
        const gs_sim_outcome *o = gs_sim_outcomes(c->h.m);
        for (int32_t i = 0; i < c->h.n; i++) {
            const gs_sim_request *q = &c->h.q[i];
            assert_int_equal(o[i].n_ends, 1);
            assert_true(o[i].n_attempts <= 1 + N_REMOTES + o[i].n_tries);
            if (o[i].state == GS_SIM_FAILED)
                assert_true(o[i].first_ns > 0);
            else if (o[i].state == GS_SIM_DONE)
                assert_int_equal(o[i].n_output, q->n_texts > 0 ? 0 : q->n_output);
            else
                assert_int_equal(o[i].state, GS_SIM_CANCELLED);
            n_failed += o[i].state == GS_SIM_FAILED;
            n_moved += o[i].n_attempts > 1 && o[i].state == GS_SIM_DONE;
        }
        expect_empty(c);
        for (int i = 0; i < N_REMOTES; i++)
            for (int32_t k = 0; k < c->remotes[i].n_faults; k++)
                n_kills += c->faults[i][k].kind == GS_SIM_KILL;
    }
    print_message("%d kills: %d moved, %d failed after their first token\n", n_kills, n_moved,
                  n_failed);
    assert_true(n_kills >= 290);
    assert_true(n_moved > 20 && n_failed > 20);
}

static void test_same_seed_same_decisions(void **state) {
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        cluster *c = make(state, N_REMOTES, "n100-135m");
        add_faults(c, 30, 40 * S);
        add_family(c, 40 * S, 2 * S);
        add_backlog(c, 200, 200);
        run(&c->h);
        hash[i] = c->h.rep.hash;
    }
    assert_true(hash[0] == hash[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_family_with_a_remote, setup_cluster, teardown),
        cmocka_unit_test_setup_teardown(test_a_short_backlog_is_shared, setup_cluster, teardown),
        cmocka_unit_test_setup_teardown(test_one_account, setup_cluster, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_to_lend, setup_cluster, teardown),
        cmocka_unit_test_setup_teardown(test_follow_ups_stay, setup_cluster, teardown),
        cmocka_unit_test_setup_teardown(test_a_remote_that_hangs, setup_cluster, teardown),
        cmocka_unit_test_setup_teardown(test_kills, setup_cluster, teardown),
        cmocka_unit_test_setup_teardown(test_same_seed_same_decisions, setup_cluster, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
