/*
 * The simulator's edges: what is refused, what a small home with everything in it comes to, with
 * and without other machines, and that it is the same again after each allocation has failed once.
 */
#include <stdio.h>
#include <string.h>

#include "faults/fault.h"
#include "home.h"
#include "sched/policy.h"
#include "sched/sim_rules.h"

enum { N_REMOTES = 2 };

typedef struct scene {
    home h; /* first: setup and teardown are its */
    gs_sim_device second;
    gs_sim_remote remotes[N_REMOTES];
} scene;

static int setup_scene(void **state) {
    *state = calloc(1, sizeof(scene));
    return *state ? 0 : -1;
}

static const double weights[] = {1.0, 2.0, 0.5};

/* Two persons; models, classes, texts, follow-ups, deadlines and a client that leaves. */
static home *make(scene *c) {
    static const uint64_t blocks[] = {7, 8, 9};
    home *h = &c->h;
    h->cfg = (gs_sim_config){.device = *gs_sim_device_find("xeon2-135m"),
                             .n_persons = 3,
                             .weights = weights,
                             .max_waiting = 64,
                             .max_tries = 2,
                             .seed = 3,
                             .check = true};
    add_to(h, 0, 0, GS_CLASS_CHAT, 1, 200, 20);
    gs_sim_request *q = add_to(h, 0, 0, GS_CLASS_CHAT, 1, 260, 10);
    q->after = q->prefix_of = 0;
    q->n_prefix = 220;
    q->think_ns = S;
    add_to(h, 0, 100 * MS, GS_CLASS_VOICE, 2, 120, 12);
    q = add_to(h, 0, 100 * MS, GS_CLASS_DOCUMENT, 2, 900, 30);
    q->deadline_ns = 60 * S;
    q = add_to(h, 0, 150 * MS, GS_CLASS_BACKGROUND, 1, 64, 0);
    q->n_texts = 5;
    q = add_to(h, 0, 200 * MS, GS_CLASS_COMPLETION, 1, 300, 400);
    q->cancel_after_ns = 400 * MS;
    q = add_to(h, 0, 300 * MS, GS_CLASS_UTILITY, 2, 96, 8);
    q->blocks = blocks;
    q->n_blocks = 3;
    q->block_tokens = 32;
    q = add_to(h, 0, 500 * MS, GS_CLASS_BACKGROUND, 2, 400, 40);
    q->n_prefix = 64;
    q->prefix_key = 5;
    return h;
}

static void local(scene *c) {
    home *h = make(c);
    c->second = *gs_sim_device_find("xeon2-135m");
    h->cfg.second = &c->second;
    add_to(h, 1, 50 * MS, GS_CLASS_CHAT, 2, 150, 15);
}

static void add_remotes(scene *c) {
    static const gs_sim_fault faults[N_REMOTES][2] = {
        {{.kind = GS_SIM_KILL, .at_ns = 250 * MS, .until_ns = 900 * MS},
         {.kind = GS_SIM_SLOW, .at_ns = S, .until_ns = 2 * S, .factor = 3.0}},
        {{.kind = GS_SIM_HANG, .at_ns = 200 * MS, .until_ns = 3 * S},
         {.kind = GS_SIM_KILL, .at_ns = 4 * S, .until_ns = 5 * S}}};
    home *h = make(c);
    for (int i = 0; i < N_REMOTES; i++) {
        gs_sim_remote *x = &c->remotes[i];
        x->device = *gs_sim_device_find("xeon2-135m");
        x->latency_ns = 2 * MS;
        x->faults = faults[i];
        x->n_faults = 2;
        gs_place_worker_defaults(GS_WORKER_REMOTE, &x->worker);
        snprintf(x->worker.name, sizeof x->worker.name, "remote%d", i);
        x->worker.max_seqs = x->device.max_seqs;
    }
    h->cfg.remotes = c->remotes;
    h->cfg.n_remotes = N_REMOTES;
    for (int i = 0; i < 24; i++) {
        gs_sim_request *q = add_to(h, 0, i * 60 * MS, i % 3 ? GS_CLASS_CHAT : GS_CLASS_BACKGROUND,
                                   1 + (uint32_t)i % 2, 100 + 20 * i, 30);
        if (i % 3 == 0) {
            q->n_texts = 3;
            q->n_output = 0;
        }
        if (i % 5 == 0)
            q->cancel_after_ns = 90 * MS;
    }
}

static void placed(scene *c) {
    add_remotes(c);
    c->h.cfg.local_only = 1u << GS_CLASS_VOICE;
}

static void in_turn(scene *c) {
    add_remotes(c);
    c->h.cfg.round_robin = true;
}

/* Everything ended, once. */
static void all_ended(const home *h) {
    const gs_sim_outcome *o = gs_sim_outcomes(h->m);
    int n_cancelled = 0, n_done = 0;
    for (int32_t i = 0; i < h->n; i++) {
        if (o[i].state == GS_SIM_PENDING || o[i].state == GS_SIM_LIVE ||
            (h->cfg.n_remotes > 0 && o[i].n_ends != 1))
            fail_msg("request %d: state %d, %d ends", i, (int)o[i].state, o[i].n_ends);
        n_cancelled += o[i].state == GS_SIM_CANCELLED;
        n_done += o[i].state == GS_SIM_DONE;
        if (o[i].state == GS_SIM_DONE && h->q[i].n_texts == 0)
            assert_int_equal(o[i].n_output, h->q[i].n_output);
    }
    if (n_cancelled == 0 || n_done <= h->n / 3)
        fail_msg("%d requests, %d done, %d cancelled", h->n, n_done, n_cancelled);
}

static int create_and_run(home *h, char *err, size_t errlen) {
    h->m = NULL;
    int rc = gs_sim_create(&h->cfg, h->q, h->n, &h->m);
    if (rc == GS_OK)
        rc = gs_sim_run(h->m, err, errlen);
    return rc == GS_OK ? gs_sim_report_create(h->m, &h->rep) : rc;
}

static void each_allocation_fails(void **state) {
    scene *c = *state;
    home *h = &c->h;
    static void (*const scenes[])(scene * c) = {local, placed, in_turn};
    for (size_t k = 0; k < sizeof scenes / sizeof scenes[0]; k++) {
        char err[200] = "";
        memset(c, 0, sizeof *c);
        scenes[k](c);
        gs_fault_set(GS_FAULT_ALLOC, UINT64_MAX, 0);
        if (create_and_run(h, err, sizeof err) != GS_OK)
            fail_msg("%s", err);
        const uint64_t n = gs_fault_calls(GS_FAULT_ALLOC), hash = h->rep.hash;
        gs_fault_clear();
        all_ended(h);
        gs_sim_free(h->m);
        assert_true(n > 20);
        h->cfg.check = false; /* once is enough */
        for (uint64_t i = 1; i <= n; i++) {
            gs_fault_set(GS_FAULT_ALLOC, i, 0);
            const int rc = create_and_run(h, err, sizeof err);
            gs_fault_clear();
            gs_sim_free(h->m);
            if (rc != GS_ERR_NOMEM)
                fail_msg("scene %zu, allocation %d: %d", k, (int)i, rc);
        }
        assert_int_equal(create_and_run(h, err, sizeof err), GS_OK);
        assert_true(h->rep.hash == hash);
        gs_sim_free(h->m);
        h->m = NULL;
    }
}

static void rules_need_memory(void **state) {
    (void)state;
    gs_sim_rule rule;
    char err[200];
    for (uint64_t i = 1; i <= 40; i++) {
        gs_fault_set(GS_FAULT_ALLOC, i, 0);
        assert_int_equal(gs_sim_rule_run(0, 1, &rule, err, sizeof err), GS_ERR_NOMEM);
        gs_fault_clear();
    }
    static const int none[] = {-1, 1000};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gs_sim_rule_run(none[i], 1, &rule, err, sizeof err), GS_ERR_NOT_FOUND);
        assert_string_equal(err, "there is no such rule");
    }
}

/* One field at a time is not what it may be. */
static void what_is_refused(void **state) {
    (void)state;
    static const uint64_t blocks[] = {1};
#define GOOD .after = -1, .prefix_of = -1, .n_prompt = 10, .n_output = 5
    static const gs_sim_request good = {GOOD};
    static const gs_sim_request bad[] = {
        {.after = -1, .prefix_of = -1, .n_output = 5},
        {.after = -1, .prefix_of = -1, .n_prompt = 10},
        {GOOD, .n_texts = -1},
        {GOOD, .n_texts = 1 << 20},
        {.after = 0, .prefix_of = -1, .n_prompt = 10, .n_output = 5},
        {.after = -1, .prefix_of = 0, .n_prompt = 10, .n_output = 5},
        {GOOD, .n_prefix = 11},
        {GOOD, .model = -1},
        {GOOD, .model = 1},
        {GOOD, .cls = (gs_class)-1},
        {GOOD, .cls = GS_CLASS_COUNT},
        {GOOD, .person = 2},
        {GOOD, .t_ns = -1},
        {GOOD, .think_ns = -1},
        {GOOD, .blocks = blocks, .n_blocks = 1},
        {GOOD, .blocks = blocks, .n_blocks = 1, .block_tokens = 4, .n_texts = 2},
    };
#undef GOOD
    gs_sim_config cfg = {.device = *gs_sim_device_find("xeon2-135m"), .n_persons = 2};
    gs_sim *m = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (gs_sim_create(&cfg, &bad[i], 1, &m) != GS_ERR_INVALID)
            fail_msg("request %zu was taken", i);
    static const int32_t n_remotes[] = {-1, GS_PLACE_WORKERS};
    for (int i = 0; i < 2; i++) {
        cfg.n_remotes = n_remotes[i];
        assert_int_equal(gs_sim_create(&cfg, &good, 1, &m), GS_ERR_INVALID);
    }
    cfg.n_remotes = 0;
    assert_int_equal(gs_sim_create(&cfg, &good, 1, &m), GS_OK);
    gs_sim_free(m);
    assert_null(gs_sim_device_find("abacus"));
}

/* Nothing to do is done at once. */
static void a_load_of_nothing(void **state) {
    scene *c = *state;
    home *h = &c->h;
    char err[200] = "";
    memset(c, 0, sizeof *c);
    placed(c);
    h->n = 0;
    h->cfg.check = false;
    for (int i = 0; i < N_REMOTES; i++)
        c->remotes[i].n_faults = 0;
    assert_int_equal(create_and_run(h, err, sizeof err), GS_OK);
    for (int k = 0; k < GS_CLASS_COUNT; k++) {
        assert_int_equal(h->rep.cls[k].n, 0);
        assert_int_equal(h->rep.cls[k].ttft_p95_ns, 0);
        assert_int_equal(h->rep.cls[k].gap_p99_ns, 0);
    }
    assert_true(h->rep.fairness == 1.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_allocation_fails, setup_scene, teardown),
        cmocka_unit_test(rules_need_memory),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test_setup_teardown(a_load_of_nothing, setup_scene, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
