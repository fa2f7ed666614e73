/* The "slo" policy: named cases of admission, order, accounts, room, windows and suspended steps.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "sched/sched_impl.h"
#include "sched/sim.h"

#define BT      32
#define CONTEXT 2048
#define SEQS    48
#define MS      1000000LL
#define S       1000000000LL

typedef struct fixture {
    gs_kv_config kv_cfg;
    gs_sched_config cfg;
    gs_slo_config slo;
    gs_class_config classes[GS_CLASS_COUNT];
    gs_cost cost;
    gs_kv *kv;
    gs_sched *s;
    int64_t now_ns;
    int32_t tokens[SEQS][CONTEXT];
    gs_plan plan;
    gs_admission admission;
    gs_seq_desc desc; /* fields that submit takes over: person, deadline ... */
} fixture;

static fixture *make(void) {
    static fixture f;
    f = (fixture){.now_ns = S,
                  .kv_cfg = {.n_blocks = 512,
                             .block_tokens = BT,
                             .max_seqs = 16,
                             .max_blocks_per_seq = CONTEXT / BT},
                  .cfg = {.max_seqs = 16,
                          .max_waiting = 24,
                          .max_batch_tokens = 512,
                          .prefill_chunk = 512,
                          .max_context = CONTEXT,
                          .max_persons = 4,
                          .policy = &gs_policy_slo}};
    f.cost = gs_sim_device_find("xeon2-135m")->cost;
    f.cost.calibrated = true;
    gs_slo_defaults(&f.slo);
    gs_class_defaults(f.classes);
    return &f;
}

static void start(fixture *f) {
    f->cfg.slo = &f->slo;
    f->cfg.classes = f->classes;
    f->cfg.cost = &f->cost;
    assert_int_equal(gs_kv_create(&f->kv_cfg, &f->kv), GS_OK);
    assert_int_equal(gs_sched_create(&f->cfg, f->kv, &f->s), GS_OK);
}

static void check(const fixture *f) {
    char err[200] = "";
    if (gs_sched_check(f->s, err, sizeof err) != GS_OK)
        fail_msg("%s", err);
}

static void stop(fixture *f) {
    check(f);
    gs_sched_free(f->s);
    gs_kv_free(f->kv);
}

static int submit(fixture *f, gs_seq_id id, gs_class cls, int32_t n_prompt, int32_t max_output) {
    for (int32_t i = 0; i < n_prompt; i++)
        f->tokens[id][i] = (int32_t)id * 10000 + i;
    gs_seq_desc d = f->desc;
    d.id = id;
    d.cls = cls;
    d.tokens = f->tokens[id];
    d.n_prompt = n_prompt;
    d.max_output = max_output;
    d.prefill_only = max_output == 0;
    d.arrival_ns = f->now_ns;
    const int rc = gs_sched_submit(f->s, &d, f->now_ns, &f->admission);
    check(f);
    return rc;
}

static int32_t plan(fixture *f) {
    gs_sched_plan(f->s, f->now_ns, &f->plan);
    check(f);
    return f->plan.n_items;
}

static int64_t predicted(const fixture *f) {
    gs_cost_step x;
    gs_sched_plan_cost(&f->plan, &x);
    return (int64_t)gs_cost_predict(&f->cost, &x);
}

static void commit(fixture *f, int64_t elapsed_ns) {
    gs_item_result r[SEQS] = {0};
    const gs_step_result res = {.elapsed_ns = elapsed_ns, .items = r};
    f->now_ns += elapsed_ns;
    gs_sched_commit(f->s, &f->plan, &res, f->now_ns);
    check(f);
}

/* A step that takes what the model says. */
static int32_t step(fixture *f) {
    const int32_t n = plan(f);
    if (n > 0)
        commit(f, predicted(f));
    return n;
}

static const gs_plan_item *item_of(const fixture *f, gs_seq_id id) {
    for (int32_t i = 0; i < f->plan.n_items; i++)
        if (f->plan.items[i].id == id)
            return &f->plan.items[i];
    return NULL;
}

static gs_explain explain(const fixture *f, gs_seq_id id) {
    gs_explain x = {0};
    assert_int_equal(gs_sched_explain(f->s, id, &x), GS_OK);
    return x;
}

static double charged(const fixture *f, uint32_t person) {
    gs_person_stats st;
    assert_int_equal(gs_sched_get_person(f->s, person, &st), GS_OK);
    return (double)st.charged_ns;
}

/* ---- admission ------------------------------------------------------------------------------- */

/* What the script of another person has open says little about when this one's turn comes. */
static void test_a_prediction_knows_whose_turn_comes_first(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    f->desc.person = 1;
    for (gs_seq_id id = 1; id <= 12; id++)
        assert_int_equal(submit(f, id, GS_CLASS_CHAT, 400, 5), GS_OK);
    const int64_t own_ns = f->admission.predicted_ttft_ns;
    f->desc.person = 2;
    assert_int_equal(submit(f, 13, GS_CLASS_CHAT, 400, 5), GS_OK);
    assert_true(f->admission.predicted_ttft_ns < own_ns / 4);
    stop(f);
}

static void test_a_long_chat_is_a_document(void **state) {
    (void)state;
    fixture *f = make();
    f->cost = gs_sim_device_find("xeon2-1.5b")->cost; /* 2 s for some 430 tokens */
    f->cost.calibrated = true;
    start(f);
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 1000, 5), GS_OK);
    assert_int_equal(f->admission.cls, GS_CLASS_CHAT);
    assert_int_equal(submit(f, 2, GS_CLASS_CHAT, 1100, 5), GS_OK);
    assert_int_equal(f->admission.cls, GS_CLASS_DOCUMENT);
    assert_int_equal(explain(f, 2).asked_cls, GS_CLASS_CHAT);
    assert_int_equal(explain(f, 2).cls, GS_CLASS_DOCUMENT);
    f->desc.class_fixed = true;
    assert_int_equal(submit(f, 3, GS_CLASS_CHAT, 1100, 5), GS_OK);
    assert_int_equal(f->admission.cls, GS_CLASS_CHAT);
    f->desc.class_fixed = false;
    f->slo.document_min_tokens = -1;
    assert_int_equal(gs_sched_set_slo(f->s, &f->slo), GS_OK);
    assert_int_equal(submit(f, 4, GS_CLASS_CHAT, 1100, 5), GS_OK);
    assert_int_equal(f->admission.cls, GS_CLASS_CHAT);
    stop(f);
}

static void test_too_late_to_be_of_use(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    /* Alone it is taken, however long: coming back would not help. */
    f->classes[GS_CLASS_VOICE].hard_ttft_ns = 400 * MS;
    assert_int_equal(gs_sched_set_classes(f->s, f->classes, NULL), GS_OK);
    assert_int_equal(submit(f, 1, GS_CLASS_VOICE, 1500, 5), GS_OK);
    assert_true(f->admission.predicted_ttft_ns > 400 * MS);
    assert_int_equal(submit(f, 2, GS_CLASS_VOICE, 100, 5), GS_ERR_OVERLOADED);
    assert_true(f->admission.retry_after_ns >= 400 * MS);
    assert_non_null(f->admission.reason);
    stop(f);
}

static void test_queue_bounds(void **state) {
    (void)state;
    fixture *f = make();
    f->classes[GS_CLASS_UTILITY].max_waiting = 2;
    start(f);
    assert_int_equal(submit(f, 1, GS_CLASS_UTILITY, 10, 5), GS_OK);
    assert_int_equal(submit(f, 2, GS_CLASS_UTILITY, 10, 5), GS_OK);
    assert_int_equal(submit(f, 3, GS_CLASS_UTILITY, 10, 5), GS_ERR_OVERLOADED);
    const gs_person_config pc = {.max_waiting = 1, .day_ns = 50 * MS};
    assert_int_equal(gs_sched_set_person(f->s, 2, &pc), GS_OK);
    f->desc.person = 2;
    assert_int_equal(submit(f, 4, GS_CLASS_CHAT, 100, 1), GS_OK);
    assert_int_equal(submit(f, 5, GS_CLASS_CHAT, 100, 1), GS_ERR_OVERLOADED);
    while (step(f) > 0)
        ;
    /* The day's device time is used up: between turns, not inside one. */
    assert_true(charged(f, 2) > 50e6);
    assert_int_equal(submit(f, 5, GS_CLASS_CHAT, 100, 1), GS_ERR_OVERLOADED);
    assert_true(f->admission.retry_after_ns > 60 * S);
    f->now_ns += 86400 * S;
    assert_int_equal(submit(f, 5, GS_CLASS_CHAT, 100, 1), GS_OK);
    stop(f);
}

/* One of several persons never fills the common queue. */
static void test_share_of_the_queue(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    f->desc.person = 1;
    gs_seq_id id = 1;
    while (id < 40 && submit(f, id, GS_CLASS_CHAT, 10, 5) == GS_OK)
        id++;
    assert_int_equal(id - 1, 18); /* three quarters of 24 */
    f->desc.person = 2;
    assert_int_equal(submit(f, 41, GS_CLASS_CHAT, 10, 5), GS_OK);
    stop(f);
}

static void test_deadlines(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, GS_CLASS_CHAT, 2000, 5);
    f->desc.deadline_ns = f->now_ns + 200 * MS;
    assert_int_equal(submit(f, 2, GS_CLASS_BACKGROUND, 400, 50), GS_OK);
    assert_true(f->admission.late);
    assert_true(explain(f, 2).late);
    f->desc.deadline_strict = true;
    assert_int_equal(submit(f, 3, GS_CLASS_BACKGROUND, 400, 50), GS_ERR_OVERLOADED);
    f->desc.deadline_ns = f->now_ns + 60 * S;
    assert_int_equal(submit(f, 3, GS_CLASS_BACKGROUND, 400, 50), GS_OK);
    assert_false(f->admission.late);
    stop(f);
}

static void test_bad_settings(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    const char *field = NULL;
    gs_class_config bad[GS_CLASS_COUNT];
    gs_class_defaults(bad);
    bad[2].share = 0;
    assert_int_equal(gs_sched_set_classes(f->s, bad, &field), GS_ERR_INVALID);
    assert_string_equal(field, "share");
    gs_sched_get_classes(f->s, bad);
    assert_true(bad[2].share > 0);
    gs_slo_config slo = f->slo;
    slo.background_floor = 2.0;
    assert_int_equal(gs_sched_set_slo(f->s, &slo), GS_ERR_INVALID);
    slo = f->slo;
    slo.tile_tokens = 0;
    assert_int_equal(gs_sched_set_slo(f->s, &slo), GS_ERR_INVALID);
    const gs_person_config pc = {.weight = -1};
    assert_int_equal(gs_sched_set_person(f->s, 1, &pc), GS_ERR_INVALID);
    assert_int_equal(gs_sched_set_person(f->s, 4, &(gs_person_config){0}), GS_ERR_NOT_FOUND);
    stop(f);
    f = make();
    f->slo.tpot_stretch = 0.5;
    f->cfg.slo = &f->slo;
    assert_int_equal(gs_kv_create(&f->kv_cfg, &f->kv), GS_OK);
    assert_int_equal(gs_sched_create(&f->cfg, f->kv, &f->s), GS_ERR_INVALID);
    gs_kv_free(f->kv);
    assert_ptr_equal(gs_policy_find("slo"), &gs_policy_slo);
    assert_ptr_equal(gs_policy_find("fcfs"), &gs_policy_fcfs);
    assert_null(gs_policy_find("best"));
}

/* ---- the step -------------------------------------------------------------------------------- */

/* A chunk is cut so that the stream's next token is on time; it is a multiple of the tile. */
static void test_chunks_end_before_the_next_token(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, GS_CLASS_CHAT, 40, 500);
    step(f);
    submit(f, 2, GS_CLASS_DOCUMENT, 2000, 5);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(plan(f), 2);
        assert_non_null(item_of(f, 1));
        const gs_plan_item *it = item_of(f, 2);
        assert_int_equal(it->n_tokens % f->slo.tile_tokens, 0);
        assert_true(it->n_tokens >= 90); /* 70 ms of it */
        assert_true(predicted(f) <= 100 * MS);
        commit(f, predicted(f));
    }
    stop(f);
}

/* Whole texts: as many short ones as a step holds, the long one in a step of its own; one that was
 * passed for a second is passed no more. */
static void test_texts_by_length(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.whole_prompts = true;
    f->cfg.max_batch_tokens = 100;
    f->cfg.prefill_chunk = 32;
    f->classes[GS_CLASS_BACKGROUND].window_max_ns = 0;
    start(f);
    submit(f, 1, GS_CLASS_BACKGROUND, 100, 0);
    submit(f, 2, GS_CLASS_BACKGROUND, 50, 0);
    submit(f, 3, GS_CLASS_BACKGROUND, 20, 0);
    submit(f, 4, GS_CLASS_BACKGROUND, 40, 0);
    assert_int_equal(plan(f), 2);
    assert_true(item_of(f, 3) && item_of(f, 4));
    commit(f, 300 * MS);
    submit(f, 5, GS_CLASS_BACKGROUND, 10, 0);
    assert_int_equal(plan(f), 2);
    assert_true(item_of(f, 5) && item_of(f, 2));
    commit(f, 800 * MS);
    submit(f, 6, GS_CLASS_BACKGROUND, 10, 0);
    assert_int_equal(plan(f), 1);
    assert_int_equal(item_of(f, 1)->n_tokens, 100);
    commit(f, 100 * MS);
    assert_int_equal(plan(f), 1);
    assert_non_null(item_of(f, 6));
    commit(f, MS);
    stop(f);
}

/* Slices of background between a stream's tokens: the stream's step begins in time whatever the
 * slice has come to, and the slice goes on after it. */
static void test_slices_between_tokens(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.n_layers = 30;
    f->cost.knot_ns[0] = 2.5e6; /* small batches are dear: riding in the stream's step pays less */
    f->cost.knot_ns[1] = 3.4e6;
    f->cost.knot_ns[2] = 4e6;
    f->cost.knot_ns[3] = 9e6;
    f->cost.knot_ns[4] = 16e6;
    f->cost.knot_ns[5] = 25e6;
    f->cost.knot_ns[6] = 42e6;
    f->cost.knot_ns[7] = 81e6;
    start(f);
    submit(f, 1, GS_CLASS_CHAT, 40, 100);
    while (!item_of(f, 1) || item_of(f, 1)->prefill)
        step(f);
    for (gs_seq_id id = 2; id < 8; id++)
        submit(f, id, GS_CLASS_BACKGROUND, 60, 0);
    bool resumed = false, streamed = false;
    for (int i = 0; i < 40 && !(resumed && streamed); i++) {
        assert_true(plan(f) > 0);
        if (item_of(f, 1)) {
            streamed = true;
            for (int32_t k = 0; k < f->plan.n_items; k++)
                assert_true(!f->plan.items[k].prefill); /* they have slices: nobody rides */
            commit(f, predicted(f));
            continue;
        }
        assert_true(f->plan.may_yield);
        resumed |= f->plan.resume;
        const int64_t began_ns = f->now_ns, layer_ns = predicted(f) / 30;
        int n = 0;
        do
            f->now_ns += 2 * layer_ns; /* twice as slow as predicted */
        while (++n < 30 && !gs_sched_should_yield(f->s, f->now_ns));
        if (n == 30) {
            commit(f, 0);
            continue;
        }
        assert_true(f->now_ns - began_ns <= f->slo.background_gap_ns + 2 * layer_ns);
        gs_sched_suspend(f->s, &f->plan, f->now_ns - began_ns, f->now_ns);
        check(f);
    }
    assert_true(resumed && streamed);
    stop(f);
}

static void test_voice_goes_before_documents(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, GS_CLASS_DOCUMENT, 2000, 5);
    step(f);
    submit(f, 2, GS_CLASS_DOCUMENT, 2000, 5);
    submit(f, 3, GS_CLASS_VOICE, 60, 5);
    assert_true(plan(f) >= 1);
    assert_int_equal(item_of(f, 3)->n_tokens, 60);
    assert_true(item_of(f, 3)->sample);
    assert_null(item_of(f, 2));
    commit(f, predicted(f));
    assert_int_equal(explain(f, 2).wait_now, GS_WAIT_CLASS);
    stop(f);
}

/* A first token that is late even alone keeps its place but does not stop the others. */
static void test_relegation(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, GS_CLASS_VOICE, 2000, 5); /* takes longer than 0.7 s */
    step(f);
    assert_true(explain(f, 1).relegated);
    submit(f, 2, GS_CLASS_CHAT, 100, 5);
    assert_false(explain(f, 2).relegated);
    int n = 0;
    while (explain(f, 2).first_token_ns == 0 && n++ < 20)
        step(f);
    assert_true(explain(f, 2).first_token_ns > 0);
    assert_true(explain(f, 2).first_token_ns - explain(f, 2).arrival_ns < 2 * S);
    gs_sched_stats st;
    gs_sched_get_stats(f->s, &st);
    assert_int_equal(st.n_relegated[GS_CLASS_VOICE], 1);
    assert_int_equal(st.n_relegated[GS_CLASS_CHAT], 0);
    stop(f);
}

static void test_background_stretches_little(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, GS_CLASS_CHAT, 40, 500);
    step(f);
    for (gs_seq_id id = 2; id < 10; id++)
        submit(f, id, GS_CLASS_BACKGROUND, 400, 0);
    for (int i = 0; i < 20; i++) {
        plan(f);
        assert_non_null(item_of(f, 1));
        assert_true(predicted(f) <= 20 * MS + 100000);
        assert_true(f->plan.n_items >= 2);
        assert_false(f->plan.may_yield);
        commit(f, predicted(f));
    }
    assert_true(explain(f, 1).steps_with[GS_CLASS_BACKGROUND] >= 20);
    assert_int_equal(explain(f, 1).steps_with[GS_CLASS_CHAT], 0);
    stop(f);
}

/* Alone on the machine it works a quarter of the time and the engine is told when to come back;
 * somebody who talks is served while it rests. */
static void test_background_rests(void **state) {
    (void)state;
    fixture *f = make();
    f->slo.background_share = 0.25;
    start(f);
    const int64_t began_ns = f->now_ns;
    int64_t worked_ns = 0;
    for (gs_seq_id id = 2; id < 10; id++)
        submit(f, id, GS_CLASS_BACKGROUND, 400, 40);
    for (int i = 0; i < 40; i++) {
        assert_true(plan(f) > 0);
        commit(f, 10 * MS);
        worked_ns += 10 * MS;
        assert_int_equal(plan(f), 0);
        assert_in_range(f->plan.wake_ns, f->now_ns + 30 * MS - 2, f->now_ns + 30 * MS + 2);
        assert_int_equal(explain(f, 9).wait_now, GS_WAIT_SCHEDULE);
        f->now_ns = f->plan.wake_ns;
    }
    assert_in_range(4 * worked_ns, f->now_ns - began_ns - 100, f->now_ns - began_ns + 100);
    assert_true(plan(f) > 0);
    commit(f, 10 * MS);
    submit(f, 1, GS_CLASS_CHAT, 40, 4);
    assert_int_equal(plan(f), 1);
    assert_non_null(item_of(f, 1));
    commit(f, 10 * MS);
    stop(f);
}

/* One person's hours are over, another one's are not; what they say themselves goes on. */
static void test_one_persons_background_is_held(void **state) {
    (void)state;
    fixture *f = make();
    gs_person_config held = {.background_paused = true};
    start(f);
    assert_int_equal(gs_sched_set_person(f->s, 1, &held), GS_OK);
    f->desc.person = 1;
    submit(f, 1, GS_CLASS_BACKGROUND, 40, 4);
    assert_int_equal(plan(f), 0);
    assert_int_equal(f->plan.wake_ns, GS_NEVER_NS);
    submit(f, 2, GS_CLASS_CHAT, 40, 4);
    f->desc.person = 2;
    submit(f, 3, GS_CLASS_BACKGROUND, 40, 4);
    for (int i = 0; i < 20; i++) {
        if (plan(f) == 0)
            break;
        assert_null(item_of(f, 1));
        commit(f, predicted(f));
    }
    gs_sched_stats st;
    gs_sched_get_stats(f->s, &st);
    assert_int_equal(st.ended, 2);
    assert_int_equal(explain(f, 1).wait_now, GS_WAIT_SCHEDULE);
    held.background_paused = false;
    assert_int_equal(gs_sched_set_person(f->s, 1, &held), GS_OK);
    assert_int_equal(plan(f), 1);
    commit(f, predicted(f));
    stop(f);
}

static void test_explain_record(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.max_seqs = 1;
    start(f);
    submit(f, 1, GS_CLASS_CHAT, 40, 3);
    plan(f);
    submit(f, 2, GS_CLASS_CHAT, 40, 3);
    assert_int_equal(explain(f, 2).wait_now, GS_WAIT_STEP);
    assert_int_equal(explain(f, 2).position, 1);
    commit(f, 30 * MS);
    step(f);
    step(f);
    gs_explain all[4];
    assert_int_equal(gs_sched_snapshot(f->s, all, 4), 1); /* 1 has ended */
    assert_int_equal(all[0].id, 2);
    assert_int_equal(all[0].wait_now, GS_WAIT_SEATS);
    while (step(f) > 0)
        ;
    gs_seq_end e;
    assert_true(gs_sched_next_end(f->s, &e) && e.id == 1);
    assert_true(gs_sched_next_end(f->s, &e) && e.id == 2);
    const gs_explain *x = &e.explain;
    assert_int_equal(x->n_chunks, 1);
    assert_int_equal(x->n_steps, 3);
    assert_int_equal(x->n_output, 3);
    assert_int_equal(x->wait_ns[GS_WAIT_STEP], 30 * MS);
    assert_true(x->wait_ns[GS_WAIT_SEATS] > 0);
    assert_true(x->first_step_ns - x->arrival_ns >= 30 * MS);
    assert_true(x->end_ns >= x->first_token_ns);
    assert_true(x->predicted_ns > 0 && x->measured_ns > 0);
    assert_string_equal(gs_wait_name(GS_WAIT_KV), "kv");
    assert_true(strlen(gs_wait_sentence(GS_WAIT_WINDOW)) > 10);
    assert_string_equal(gs_wait_name((gs_wait)99), "?");
    assert_int_equal(gs_sched_explain(f->s, 2, all), GS_ERR_NOT_FOUND);
    stop(f);
}

/* ---- accounts -------------------------------------------------------------------------------- */

/* What another machine did for a person counts as if it had been done here. */
static void test_work_done_elsewhere_is_charged(void **state) {
    (void)state;
    fixture *f = make();
    gs_person_stats st;
    start(f);
    assert_int_equal(gs_sched_charge(f->s, 1, 3 * S, f->now_ns), GS_OK);
    assert_int_equal(gs_sched_get_person(f->s, 1, &st), GS_OK);
    assert_int_equal(st.charged_ns, 3 * S);
    assert_true(fabs(st.counter_ns - 3e9) < 1.0);
    assert_int_equal(gs_sched_charge(f->s, 2, -1, f->now_ns), GS_ERR_INVALID);
    assert_int_equal(gs_sched_charge(f->s, 4, 1, f->now_ns), GS_ERR_NOT_FOUND);
    stop(f);
}

/* The charges of a step sum to its time, in shares of what each adds. */
static void test_charges_sum_to_the_time(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    for (uint32_t p = 0; p < 4; p++) {
        f->desc.person = p;
        submit(f, p + 1, GS_CLASS_CHAT, 40 + 60 * (int32_t)p, 4);
    }
    double sum = 0.0, before = 0.0;
    int64_t busy_ns = 0;
    for (int i = 0; plan(f) > 0; i++) {
        const int64_t ns = 7 * MS + i * 1234567;
        commit(f, ns);
        busy_ns += ns;
        sum = 0.0;
        for (uint32_t p = 0; p < 4; p++)
            sum += charged(f, p);
        assert_true(sum > before);
        assert_true(fabs(sum - (double)busy_ns) <= 100.0);
        before = sum;
    }
    assert_true(charged(f, 3) > charged(f, 2) && charged(f, 2) > charged(f, 0));
    stop(f);
}

static void test_what_is_not_charged(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    f->desc.person = 1;
    f->desc.n_public = 90; /* of 100 tokens, instructions that everybody shares */
    submit(f, 1, GS_CLASS_CHAT, 100, 1);
    plan(f);
    commit(f, 100 * MS);
    assert_true(fabs(charged(f, 1) - 10e6) < 1000.0);
    /* The same prompt again comes from the cache, all but the last block's rest. */
    f->desc.n_public = 0;
    memcpy(f->tokens[2], f->tokens[1], sizeof f->tokens[1]);
    submit(f, 1, GS_CLASS_CHAT, 100, 1);
    assert_true(f->admission.n_cached >= 96);
    stop(f);
}

static void test_lift_on_return(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    f->desc.person = 1;
    submit(f, 1, GS_CLASS_CHAT, 40, 100);
    for (int i = 0; i < 50; i++) {
        plan(f);
        commit(f, 50 * MS);
    }
    gs_person_stats a, b;
    f->desc.person = 2;
    submit(f, 2, GS_CLASS_CHAT, 40, 1); /* comes while the other one runs */
    gs_sched_get_person(f->s, 1, &a);
    gs_sched_get_person(f->s, 2, &b);
    assert_true(a.counter_ns > 2e9);
    assert_true(fabs(a.counter_ns - b.counter_ns) < 1.0);
    while (step(f) > 0)
        ;
    /* With nobody there, to the counter of who left last. */
    f->desc.person = 3;
    submit(f, 3, GS_CLASS_CHAT, 40, 1);
    gs_sched_get_person(f->s, 1, &a);
    gs_sched_get_person(f->s, 3, &b);
    assert_true(fabs(a.counter_ns - b.counter_ns) < 1.0);
    stop(f);
}

/* ---- seats and blocks ------------------------------------------------------------------------ */

static void test_seats_kept_for_voice(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    for (gs_seq_id id = 1; id <= 18; id++)
        submit(f, id, GS_CLASS_CHAT, 20, 200);
    for (int i = 0; i < 4; i++)
        step(f);
    gs_sched_stats st;
    gs_sched_get_stats(f->s, &st);
    assert_int_equal(st.n_running, 13); /* of 16: two kept for voice, one for background */
    submit(f, 20, GS_CLASS_VOICE, 20, 5);
    step(f);
    assert_true(explain(f, 20).running);
    stop(f);
}

static void test_blocks_kept_for_voice(void **state) {
    (void)state;
    fixture *f = make();
    f->kv_cfg.n_blocks = 100;
    f->classes[GS_CLASS_VOICE].kv_reserve = 0.2;
    start(f);
    for (gs_seq_id id = 1; id <= 10; id++)
        submit(f, id, GS_CLASS_CHAT, 400, 100);
    for (int i = 0; i < 12; i++)
        step(f);
    gs_kv_stats kv;
    gs_kv_get_stats(f->kv, &kv);
    assert_true(kv.n_held <= 80);
    submit(f, 20, GS_CLASS_VOICE, 500, 60);
    step(f);
    assert_true(explain(f, 20).running);
    stop(f);
}

/* For somebody who speaks, background goes first; a document that answers stays. */
static void test_victims(void **state) {
    (void)state;
    fixture *f = make();
    f->kv_cfg.n_blocks = 64;
    f->kv_cfg.no_prefix_cache = true;
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        f->classes[c].kv_share = 1.0;
    start(f);
    submit(f, 1, GS_CLASS_DOCUMENT, 300, 100);
    while (explain(f, 1).n_output < 3)
        step(f);
    submit(f, 2, GS_CLASS_BACKGROUND, 500, 30);
    submit(f, 3, GS_CLASS_BACKGROUND, 250, 30);
    while (!explain(f, 3).running || explain(f, 3).n_chunks < 1)
        step(f);
    submit(f, 4, GS_CLASS_VOICE, 1000, 40); /* 33 blocks */
    step(f);
    assert_true(explain(f, 4).running);
    assert_true(explain(f, 1).running);
    assert_int_equal(explain(f, 1).n_preempted, 0);
    assert_int_equal(explain(f, 2).n_preempted + explain(f, 3).n_preempted, 1);
    while (step(f) > 0)
        ;
    gs_seq_end e;
    int n = 0;
    for (; gs_sched_next_end(f->s, &e); n++)
        assert_int_equal(e.reason, GS_END_LENGTH);
    assert_int_equal(n, 4);
    stop(f);
}

/* ---- windows --------------------------------------------------------------------------------- */

static void test_holds_a_burst_and_not_a_loner(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    /* Eight bursts of eight, a millisecond apart: they teach that company comes. */
    gs_seq_id id = 1;
    for (int b = 0; b < 8; b++) {
        for (int k = 0; k < 5; k++) {
            submit(f, id++ % 40 + 1, GS_CLASS_BACKGROUND, 8, 0);
            f->now_ns += 200000;
        }
        f->now_ns += 40 * MS;
        gs_seq_end e;
        while (step(f) > 0)
            while (gs_sched_next_end(f->s, &e))
                ;
        f->now_ns += S;
    }
    submit(f, 45, GS_CLASS_BACKGROUND, 8, 0);
    assert_int_equal(plan(f), 0);
    assert_true(f->plan.wake_ns > f->now_ns && f->plan.wake_ns < f->now_ns + 20 * MS);
    assert_int_equal(explain(f, 45).wait_now, GS_WAIT_WINDOW);
    /* Nobody came: it goes. */
    f->now_ns = f->plan.wake_ns;
    assert_int_equal(plan(f), 1);
    commit(f, predicted(f));
    /* A chat is never held on a quiet machine. */
    submit(f, 46, GS_CLASS_CHAT, 8, 1);
    assert_int_equal(plan(f), 1);
    commit(f, predicted(f));
    stop(f);
}

/* ---- suspended steps ------------------------------------------------------------------------- */

static void test_suspend_and_resume(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, GS_CLASS_BACKGROUND, 300, 0);
    submit(f, 2, GS_CLASS_BACKGROUND, 300, 0);
    assert_int_equal(plan(f), 2);
    assert_true(f->plan.may_yield);
    assert_false(gs_sched_should_yield(f->s, f->now_ns));
    const int32_t n_tokens = f->plan.n_tokens, first = item_of(f, 1)->n_tokens;
    f->now_ns += 10 * MS;
    submit(f, 3, GS_CLASS_UTILITY, 20, 2);
    assert_false(gs_sched_should_yield(f->s, f->now_ns)); /* not urgent enough */
    submit(f, 4, GS_CLASS_VOICE, 20, 2);
    assert_true(gs_sched_should_yield(f->s, f->now_ns));
    gs_sched_suspend(f->s, &f->plan, 10 * MS, f->now_ns);
    check(f);
    assert_int_equal(explain(f, 1).n_suspended, 1);
    assert_true(plan(f) >= 1);
    assert_non_null(item_of(f, 4));
    assert_null(item_of(f, 1));
    assert_false(f->plan.resume);
    assert_false(f->plan.may_yield);
    commit(f, predicted(f));
    while (plan(f) > 0 && !f->plan.resume)
        commit(f, predicted(f));
    assert_true(f->plan.resume && f->plan.may_yield);
    assert_int_equal(f->plan.n_items, 2);
    assert_int_equal(f->plan.n_tokens, n_tokens);
    assert_int_equal(item_of(f, 1)->n_tokens, first);
    assert_int_equal(f->plan.n_copies, 0);
    const double before = charged(f, 0);
    commit(f, 30 * MS);
    assert_true(fabs(charged(f, 0) - before - 40e6) < 100.0); /* both parts of the step */
    while (step(f) > 0)
        ;
    gs_sched_stats st;
    gs_sched_get_stats(f->s, &st);
    assert_int_equal(st.suspensions, 1);
    assert_int_equal(st.discarded_ns, 0);
    assert_int_equal(st.ended, 4);
    stop(f);
}

static void suspended(fixture *f) {
    start(f);
    submit(f, 1, GS_CLASS_BACKGROUND, 300, 0);
    submit(f, 2, GS_CLASS_BACKGROUND, 300, 0);
    plan(f);
    submit(f, 3, GS_CLASS_VOICE, 20, 100);
    gs_sched_suspend(f->s, &f->plan, 10 * MS, f->now_ns);
    check(f);
}

static void test_cancel_in_a_suspended_step(void **state) {
    (void)state;
    fixture *f = make();
    suspended(f);
    gs_seq_end e;
    assert_int_equal(gs_sched_cancel(f->s, 1, f->now_ns), GS_OK);
    check(f);
    assert_false(gs_sched_next_end(f->s, &e)); /* its blocks are still to be written */
    /* With the last of them gone there is nothing to go on with. */
    assert_int_equal(gs_sched_cancel(f->s, 2, f->now_ns), GS_OK);
    check(f);
    assert_true(gs_sched_next_end(f->s, &e) && e.reason == GS_END_CANCELLED);
    assert_true(gs_sched_next_end(f->s, &e) && e.reason == GS_END_CANCELLED);
    gs_sched_stats st;
    gs_sched_get_stats(f->s, &st);
    assert_int_equal(st.discarded_ns, 10 * MS);
    step(f);
    assert_non_null(item_of(f, 3));
    stop(f);
}

/* However many speak, a suspended step goes on after its longest wait. */
static void test_a_suspended_step_ages(void **state) {
    (void)state;
    fixture *f = make();
    f->slo.safepoint_max_age_ns = 500 * MS;
    suspended(f);
    const int64_t began_ns = f->now_ns;
    int n = 0;
    while (plan(f) > 0 && !f->plan.resume && n++ < 1000)
        commit(f, 10 * MS);
    assert_true(f->plan.resume);
    assert_in_range(f->now_ns - began_ns, 490 * MS, 520 * MS);
    commit(f, 30 * MS);
    stop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_prediction_knows_whose_turn_comes_first),
        cmocka_unit_test(test_a_long_chat_is_a_document),
        cmocka_unit_test(test_too_late_to_be_of_use),
        cmocka_unit_test(test_queue_bounds),
        cmocka_unit_test(test_share_of_the_queue),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_bad_settings),
        cmocka_unit_test(test_chunks_end_before_the_next_token),
        cmocka_unit_test(test_texts_by_length),
        cmocka_unit_test(test_slices_between_tokens),
        cmocka_unit_test(test_voice_goes_before_documents),
        cmocka_unit_test(test_relegation),
        cmocka_unit_test(test_background_stretches_little),
        cmocka_unit_test(test_background_rests),
        cmocka_unit_test(test_one_persons_background_is_held),
        cmocka_unit_test(test_explain_record),
        cmocka_unit_test(test_charges_sum_to_the_time),
        cmocka_unit_test(test_what_is_not_charged),
        cmocka_unit_test(test_work_done_elsewhere_is_charged),
        cmocka_unit_test(test_lift_on_return),
        cmocka_unit_test(test_seats_kept_for_voice),
        cmocka_unit_test(test_blocks_kept_for_voice),
        cmocka_unit_test(test_victims),
        cmocka_unit_test(test_holds_a_burst_and_not_a_loner),
        cmocka_unit_test(test_suspend_and_resume),
        cmocka_unit_test(test_cancel_in_a_suspended_step),
        cmocka_unit_test(test_a_suspended_step_ages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
