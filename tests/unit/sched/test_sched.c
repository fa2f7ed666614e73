/* Scheduler: named cases of admission, order, budgets, preemption, cancel and failure. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/sys.h"
#include "sched/sched.h"
#include "sched/sched_impl.h"
#include "faults/fault.h"

#define BT      4
#define CONTEXT 256
#define SEQS    16

typedef struct fixture {
    gs_kv_config kv_cfg;
    gs_sched_config cfg;
    gs_kv *kv;
    gs_sched *s;
    int64_t now_ns;
    int32_t tokens[SEQS][CONTEXT];
    gs_plan plan;
    gs_admission admission;
} fixture;

/* A generous default; tests change fields before start(). */
static fixture *make(void) {
    static fixture f;
    f = (fixture){.kv_cfg = {.n_blocks = 256,
                             .block_tokens = BT,
                             .max_seqs = 4,
                             .max_blocks_per_seq = CONTEXT / BT},
                  .cfg = {.max_seqs = 4,
                          .max_waiting = 4,
                          .max_batch_tokens = 64,
                          .prefill_chunk = 32,
                          .max_context = CONTEXT,
                          .max_persons = 2,
                          .policy = &gs_policy_fcfs}};
    return &f;
}

static void start(fixture *f) {
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
    char err[200] = "";
    gs_kv_stats st;
    assert_int_equal(gs_kv_check(f->kv, err, sizeof err), GS_OK);
    gs_kv_get_stats(f->kv, &st);
    assert_int_equal(st.n_held, 0);
    gs_kv_free(f->kv);
}

/* Sequence id (1..SEQS-1) with a prompt of its own, unless same names another's prompt. */
static gs_seq_desc desc_of(fixture *f, gs_seq_id id, int32_t n_prompt, int32_t max_output) {
    for (int32_t i = 0; i < n_prompt && i < CONTEXT; i++)
        f->tokens[id][i] = (int32_t)id * 1000 + i;
    return (gs_seq_desc){.id = id,
                         .cls = GS_CLASS_CHAT,
                         .tokens = f->tokens[id],
                         .n_prompt = n_prompt,
                         .max_output = max_output,
                         .prefill_only = max_output == 0,
                         .arrival_ns = f->now_ns};
}

static int submit(fixture *f, gs_seq_id id, int32_t n_prompt, int32_t max_output) {
    const gs_seq_desc d = desc_of(f, id, n_prompt, max_output);
    const int rc = gs_sched_submit(f->s, &d, f->now_ns, &f->admission);
    assert_int_equal(rc, f->admission.code);
    check(f);
    return rc;
}

static int32_t plan(fixture *f) {
    gs_sched_plan(f->s, f->now_ns, &f->plan);
    check(f);
    return f->plan.n_items;
}

/* Commits with token 7 everywhere; stop_id stops, fail_id fails (0: nobody). */
static void commit(fixture *f, gs_seq_id stop_id, gs_seq_id fail_id) {
    gs_item_result r[SEQS] = {0};
    for (int32_t i = 0; i < f->plan.n_items; i++)
        r[i] = (gs_item_result){.token = 7,
                                .stop = f->plan.items[i].id == stop_id,
                                .err = f->plan.items[i].id == fail_id ? GS_ERR_BACKEND : 0};
    const gs_step_result res = {.elapsed_ns = 1000000, .items = r};
    f->now_ns += res.elapsed_ns;
    gs_sched_commit(f->s, &f->plan, &res, f->now_ns);
    check(f);
}

static int32_t step(fixture *f) {
    const int32_t n = plan(f);
    if (n > 0)
        commit(f, 0, 0);
    return n;
}

static const gs_plan_item *item_of(const fixture *f, gs_seq_id id) {
    for (int32_t i = 0; i < f->plan.n_items; i++)
        if (f->plan.items[i].id == id)
            return &f->plan.items[i];
    return NULL;
}

static gs_seq_end expect_end(fixture *f, gs_seq_id id, gs_end_reason reason) {
    gs_seq_end e = {0};
    assert_true(gs_sched_next_end(f->s, &e));
    assert_int_equal(e.id, id);
    assert_int_equal(e.reason, reason);
    check(f);
    return e;
}

static void expect_no_end(fixture *f) {
    gs_seq_end e;
    assert_false(gs_sched_next_end(f->s, &e));
}

/* ---- configuration and admission ------------------------------------------------------------- */

static void test_class_names(void **state) {
    (void)state;
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        assert_int_equal(gs_class_parse(gs_class_name((gs_class)c)), c);
    assert_string_equal(gs_class_name(GS_CLASS_VOICE), "voice");
    assert_int_equal(gs_class_parse("Voice"), -1);
    assert_int_equal(gs_class_parse(""), -1);
    assert_int_equal(gs_class_parse(NULL), -1);
    assert_string_equal(gs_class_name((gs_class)99), "?");
}

static void test_create_refuses(void **state) {
    (void)state;
    fixture *f = make();
    assert_int_equal(gs_kv_create(&f->kv_cfg, &f->kv), GS_OK);
    const gs_sched_config good = f->cfg;
    gs_sched_config bad[6] = {good, good, good, good, good, good};
    bad[0].max_seqs = 5; /* more than the ledger has slots */
    bad[1].max_waiting = -1;
    bad[2].max_batch_tokens = 0;
    bad[3].prefill_chunk = 0;
    bad[4].max_context = CONTEXT + 1; /* longer than a block table */
    bad[5].max_seqs = 0;
    for (size_t i = 0; i < 6; i++) {
        f->s = NULL;
        assert_int_equal(gs_sched_create(&bad[i], f->kv, &f->s), GS_ERR_INVALID);
        assert_null(f->s);
    }
    gs_sched_free(NULL);
    gs_kv_free(f->kv);
}

static void test_out_of_memory_at_create(void **state) {
    (void)state;
    fixture *f = make();
    int n_failed = 0;
    for (uint64_t nth = 1;; nth++) {
        gs_fault_set(GS_FAULT_ALLOC, nth, ENOMEM);
        f->kv = NULL;
        f->s = NULL;
        int rc = gs_kv_create(&f->kv_cfg, &f->kv);
        if (rc == GS_OK)
            rc = gs_sched_create(&f->cfg, f->kv, &f->s);
        gs_fault_clear();
        gs_sched_free(f->s);
        gs_kv_free(f->kv);
        if (rc == GS_OK)
            break;
        assert_int_equal(rc, GS_ERR_NOMEM);
        n_failed++;
    }
    assert_true(n_failed >= 15); /* each array of both, at least */
}

static void test_limits(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.max_context = 64;
    f->kv_cfg.n_blocks = 10; /* 40 tokens */
    start(f);
    assert_int_equal(submit(f, 1, 0, 5), GS_ERR_INVALID);
    assert_string_equal(f->admission.field, "prompt");
    assert_int_equal(submit(f, 1, 5, -1), GS_ERR_INVALID);
    assert_string_equal(f->admission.field, "max_tokens");
    assert_int_equal(submit(f, 1, 64, 1), GS_ERR_CONTEXT);
    assert_string_equal(f->admission.field, "prompt");
    assert_non_null(f->admission.reason);
    /* 40 tokens fill the pool: nowhere to put an answer, but enough for an embedding. */
    assert_int_equal(submit(f, 1, 40, 1), GS_ERR_CONTEXT);
    assert_int_equal(submit(f, 1, 41, 0), GS_ERR_CONTEXT);
    assert_int_equal(submit(f, 1, 40, 0), GS_OK);
    assert_int_equal(submit(f, 2, 39, 1), GS_OK);
    assert_int_equal(submit(f, 2, 4, 1), GS_ERR_EXISTS);

    gs_seq_desc d = desc_of(f, 3, 4, 4);
    d.person = 2;
    assert_int_equal(gs_sched_submit(f->s, &d, 0, &f->admission), GS_ERR_INVALID);
    assert_string_equal(f->admission.field, "user");
    d = desc_of(f, 3, 4, 4);
    d.cls = GS_CLASS_COUNT;
    assert_int_equal(gs_sched_submit(f->s, &d, 0, &f->admission), GS_ERR_INVALID);
    d = desc_of(f, 3, 4, 4);
    d.id = 0;
    assert_int_equal(gs_sched_submit(f->s, &d, 0, &f->admission), GS_ERR_INVALID);
    d = desc_of(f, 3, 4, 4);
    d.prefill_only = true;
    assert_int_equal(gs_sched_submit(f->s, &d, 0, &f->admission), GS_ERR_INVALID);
    stop(f);
}

static void test_output_is_cut_to_the_context(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.max_context = 16;
    start(f);
    assert_int_equal(submit(f, 1, 10, 200), GS_OK);
    int n = 0;
    while (step(f) > 0)
        n++;
    assert_int_equal(n, 6); /* one step per token of output: 16 tokens in all */
    assert_int_equal(expect_end(f, 1, GS_END_LENGTH).n_output, 6);
    assert_int_equal(f->tokens[1][15], 7);
    assert_int_equal(f->tokens[1][16], 0);
    stop(f);
}

static void test_overload(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.max_seqs = 1;
    f->cfg.max_waiting = 2;
    start(f);
    for (gs_seq_id id = 1; id <= 3; id++)
        assert_int_equal(submit(f, id, 8, 20), GS_OK);
    assert_int_equal(submit(f, 4, 8, 20), GS_ERR_OVERLOADED);
    assert_true(f->admission.retry_after_ns > 0);
    assert_null(f->admission.field);
    assert_non_null(f->admission.reason);
    gs_sched_stats st;
    gs_sched_get_stats(f->s, &st);
    assert_int_equal(st.n_waiting, 3);
    /* From measured steps: longer with slower steps. */
    step(f);
    assert_int_equal(submit(f, 4, 8, 20), GS_ERR_OVERLOADED);
    const int64_t before = f->admission.retry_after_ns;
    assert_int_equal(before, 4 * 1000000);
    plan(f);
    gs_item_result r = {.token = 7};
    const gs_step_result slow = {.elapsed_ns = 1000000000, .items = &r};
    gs_sched_commit(f->s, &f->plan, &slow, f->now_ns);
    assert_int_equal(submit(f, 4, 8, 20), GS_ERR_OVERLOADED);
    assert_true(f->admission.retry_after_ns > 50 * before);
    /* A place is free again as soon as one is gone. */
    assert_int_equal(gs_sched_cancel(f->s, 2, f->now_ns), GS_OK);
    assert_int_equal(submit(f, 4, 8, 20), GS_OK);
    stop(f);
}

static void test_predictions(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, 10, 5);
    assert_int_equal(f->admission.predicted_ttft_ns, -1);
    plan(f);
    assert_int_equal(f->plan.predicted_ns, -1);
    commit(f, 0, 0); /* 1 ms for 10 tokens */
    plan(f);         /* less than the prompt took, and not nothing */
    assert_in_range(f->plan.predicted_ns, 100000, 1000000);
    commit(f, 0, 0);
    submit(f, 2, 20, 5);
    const int64_t one = f->admission.predicted_ttft_ns;
    assert_true(one > 0);
    submit(f, 3, 20, 5);
    assert_true(f->admission.predicted_ttft_ns > one);
    stop(f);
}

/* ---- order and budgets ----------------------------------------------------------------------- */

static void test_chunked_prefill(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, 100, 2);
    const int32_t want[] = {32, 32, 32, 4};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(plan(f), 1);
        const gs_plan_item *it = &f->plan.items[0];
        assert_int_equal(it->pos, 32 * i);
        assert_int_equal(it->n_tokens, want[i]);
        assert_true(it->prefill);
        assert_int_equal(it->sample, i == 3);
        assert_ptr_equal(it->tokens, f->tokens[1] + 32 * i);
        commit(f, 0, 0);
    }
    assert_int_equal(plan(f), 1);
    assert_false(f->plan.items[0].prefill);
    assert_int_equal(f->plan.items[0].pos, 100);
    assert_int_equal(f->plan.items[0].tokens[0], 7);
    assert_int_equal(f->plan.n_prefill_tokens, 0);
    commit(f, 0, 0);
    assert_int_equal(expect_end(f, 1, GS_END_LENGTH).n_output, 2);
    gs_sched_stats st;
    gs_sched_get_stats(f->s, &st);
    assert_int_equal(st.prefill_tokens, 100);
    assert_int_equal(st.decode_tokens, 1);
    assert_int_equal(st.steps, 5);
    stop(f);
}

/* A sequence that could not draw its token computes its last position again, as often as it takes;
 * nothing else about it changes. */
static void test_retry(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, 40, 2);
    assert_int_equal(plan(f), 1);
    commit(f, 0, 0); /* 32 of the prompt */
    for (int i = 0; i < 3; i++) {
        const gs_item_result r = {.retry = true};
        const gs_step_result res = {.elapsed_ns = 1000000, .items = &r};
        assert_int_equal(plan(f), 1);
        assert_true(f->plan.items[0].sample);
        assert_int_equal(f->plan.items[0].pos, i == 0 ? 32 : 39);
        assert_int_equal(f->plan.items[0].n_tokens, i == 0 ? 8 : 1);
        f->now_ns += res.elapsed_ns;
        gs_sched_commit(f->s, &f->plan, &res, f->now_ns);
        check(f);
        expect_no_end(f);
    }
    assert_int_equal(plan(f), 1);
    assert_int_equal(f->plan.items[0].pos, 39);
    commit(f, 0, 0);
    assert_int_equal(plan(f), 1);
    assert_int_equal(f->plan.items[0].pos, 40);
    assert_int_equal(f->plan.items[0].tokens[0], 7);
    commit(f, 0, 0);
    assert_int_equal(expect_end(f, 1, GS_END_LENGTH).n_output, 2);
    stop(f);
}

/* Running streams never pause for prompts; prompts share what is left in arrival order. */
static void test_decodes_first_then_arrival_order(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.max_batch_tokens = 40;
    start(f);
    submit(f, 1, 8, 50);
    submit(f, 2, 8, 50);
    step(f);
    submit(f, 3, 60, 50);
    submit(f, 4, 60, 50);
    assert_int_equal(plan(f), 4);
    assert_int_equal(item_of(f, 1)->n_tokens, 1);
    assert_int_equal(item_of(f, 2)->n_tokens, 1);
    assert_int_equal(item_of(f, 3)->n_tokens, 32);
    assert_int_equal(item_of(f, 4)->n_tokens, 6);
    assert_int_equal(f->plan.n_tokens, 40);
    commit(f, 0, 0);
    plan(f);
    assert_int_equal(item_of(f, 3)->n_tokens, 28);
    assert_true(item_of(f, 3)->sample);
    assert_int_equal(item_of(f, 4)->n_tokens, 10);
    commit(f, 0, 0);
    assert_int_equal(plan(f), 4);
    assert_false(item_of(f, 3)->prefill);
    assert_int_equal(item_of(f, 4)->n_tokens, 32);
    commit(f, 0, 0);
    stop(f);
}

/* Iteration-level scheduling: joining and leaving take no more than one step. */
static void test_new_request_joins_the_next_step(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, 20, 100);
    submit(f, 2, 20, 100);
    for (int i = 0; i < 10; i++)
        step(f);
    plan(f);
    submit(f, 3, 20, 100); /* arrives while a step runs */
    commit(f, 0, 0);
    assert_int_equal(plan(f), 3);
    assert_int_equal(item_of(f, 3)->n_tokens, 20);
    assert_true(item_of(f, 3)->sample);
    assert_false(item_of(f, 1)->prefill);
    commit(f, 2, 0); /* the first token of 3; 2 stops */
    assert_int_equal(f->tokens[3][20], 7);
    assert_int_equal(expect_end(f, 2, GS_END_STOP).n_output, 12);
    assert_int_equal(plan(f), 2);
    assert_null(item_of(f, 2));
    commit(f, 0, 0);
    stop(f);
}

static void test_finished_one_gives_its_slot_at_once(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.max_seqs = 1;
    start(f);
    submit(f, 1, 8, 3);
    submit(f, 2, 8, 3);
    step(f);
    assert_int_equal(plan(f), 1);
    assert_non_null(item_of(f, 1));
    commit(f, 1, 0);
    expect_end(f, 1, GS_END_STOP);
    assert_int_equal(plan(f), 1);
    assert_true(item_of(f, 2)->sample);
    commit(f, 0, 0);
    stop(f);
}

static void test_prefill_only(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, 40, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(plan(f), 1);
        assert_false(f->plan.items[0].sample);
        assert_true(f->plan.items[0].prefill);
        commit(f, 0, 0);
    }
    assert_int_equal(expect_end(f, 1, GS_END_DONE).n_output, 0);
    assert_int_equal(f->tokens[1][40], 0);
    assert_int_equal(plan(f), 0);
    assert_true(f->plan.wake_ns == GS_NEVER_NS);
    stop(f);
}

/* An encoder: a prompt in one step, whatever prefill_chunk says, or refused; no text. */
static void test_whole_prompts(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.whole_prompts = true;
    start(f);
    assert_int_equal(submit(f, 1, 8, 1), GS_ERR_UNSUPPORTED);
    assert_int_equal(submit(f, 1, 65, 0), GS_ERR_CONTEXT);
    assert_string_equal(f->admission.field, "prompt");
    assert_int_equal(submit(f, 1, 64, 0), GS_OK);
    assert_int_equal(submit(f, 2, 40, 0), GS_OK);
    assert_int_equal(submit(f, 3, 24, 0), GS_OK);
    assert_int_equal(submit(f, 4, 1, 0), GS_OK);
    assert_int_equal(step(f), 1);
    assert_int_equal(item_of(f, 1)->n_tokens, 64);
    expect_end(f, 1, GS_END_DONE);
    assert_int_equal(step(f), 2);
    assert_int_equal(f->plan.n_tokens, 64);
    expect_end(f, 2, GS_END_DONE);
    expect_end(f, 3, GS_END_DONE);
    assert_int_equal(step(f), 1);
    expect_end(f, 4, GS_END_DONE);
    stop(f);
}

static void test_prefix_reuse_and_copy(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    submit(f, 1, 22, 1);
    step(f);
    expect_end(f, 1, GS_END_LENGTH);
    gs_seq_desc d = desc_of(f, 2, 22, 4);
    memcpy(f->tokens[2], f->tokens[1], 18 * sizeof(int32_t));
    assert_int_equal(gs_sched_submit(f->s, &d, f->now_ns, &f->admission), GS_OK);
    assert_int_equal(f->admission.n_cached, 18);
    plan(f);
    assert_int_equal(f->plan.items[0].pos, 18);
    assert_int_equal(f->plan.items[0].n_tokens, 4);
    assert_int_equal(f->plan.items[0].n_cached, 18);
    assert_int_equal(f->plan.n_copies, 1);
    assert_int_equal(f->plan.copies[0].n_tokens, 2);
    assert_int_equal(f->plan.copies[0].dst, f->plan.items[0].blocks[4]);
    commit(f, 0, 0);
    plan(f);
    assert_int_equal(f->plan.n_copies, 0);
    commit(f, 2, 0);
    assert_int_equal(expect_end(f, 2, GS_END_STOP).n_cached, 18);
    stop(f);
}

/* ---- KV pressure ----------------------------------------------------------------------------- */

static void start_tight(fixture *f, uint32_t n_blocks) {
    f->kv_cfg.n_blocks = n_blocks;
    f->kv_cfg.no_prefix_cache = true; /* so that counts are exact */
    start(f);
}

static void test_preemption_and_return(void **state) {
    (void)state;
    fixture *f = make();
    start_tight(f, 6); /* 24 tokens */
    submit(f, 1, 8, 12);
    submit(f, 2, 8, 12);
    int n_steps = 0;
    while (plan(f) == 2) {
        assert_int_equal(f->plan.n_preempted, 0);
        commit(f, 0, 0);
        assert_true(++n_steps < 20);
    }
    assert_int_equal(f->plan.n_preempted, 1);
    assert_int_equal(n_steps, 5); /* three blocks each hold 12 positions */
    /* The later one went; the earlier one goes on in the same step. */
    assert_int_equal(f->plan.n_items, 1);
    assert_non_null(item_of(f, 1));
    gs_sched_stats st;
    gs_sched_get_stats(f->s, &st);
    assert_int_equal(st.n_running, 1);
    assert_int_equal(st.n_waiting, 1);
    assert_int_equal(st.preemptions, 1);
    const int32_t n_known = 8 + n_steps;
    commit(f, 0, 0);
    submit(f, 3, 4, 1); /* would fit at once, but came later */
    while (plan(f) == 1 && item_of(f, 1))
        commit(f, 0, 0);
    expect_no_end(f); /* in flight */
    /* It starts again at 0 with all it knew, and the last chunk samples the next token. */
    const gs_plan_item *it = item_of(f, 2);
    assert_non_null(it);
    assert_int_equal(it->pos, 0);
    assert_int_equal(it->n_tokens, n_known);
    assert_true(it->prefill);
    assert_true(it->sample);
    commit(f, 0, 0);
    assert_int_equal(expect_end(f, 1, GS_END_LENGTH).n_preempted, 0);
    while (step(f) > 0)
        ;
    gs_seq_end e;
    int n_ends = 0;
    while (gs_sched_next_end(f->s, &e)) {
        n_ends++;
        assert_int_equal(e.reason, GS_END_LENGTH);
        assert_int_equal(e.n_preempted, e.id == 2 ? 1 : 0);
        assert_int_equal(e.n_output, e.id == 2 ? 12 : 1);
    }
    assert_int_equal(n_ends, 2);
    gs_sched_get_stats(f->s, &st);
    assert_int_equal(st.recomputed_tokens, n_known - 1);
    stop(f);
}

static void test_cached_prefixes_go_before_anyone(void **state) {
    (void)state;
    fixture *f = make();
    f->kv_cfg.n_blocks = 12;
    start(f);
    submit(f, 1, 25, 1); /* leaves six blocks cached */
    step(f);
    expect_end(f, 1, GS_END_LENGTH);
    submit(f, 2, 20, 4);
    submit(f, 3, 20, 4);
    while (step(f) > 0)
        assert_int_equal(f->plan.n_preempted, 0);
    assert_int_equal(expect_end(f, 2, GS_END_LENGTH).n_preempted, 0);
    gs_kv_stats st;
    gs_kv_get_stats(f->kv, &st);
    assert_true(st.evictions > 0);
    stop(f);
}

/* At the limit a sequence is no victim: then the earlier one gives way or waits. */
static void test_preemption_limit(void **state) {
    (void)state;
    fixture *f = make();
    start_tight(f, 7);
    submit(f, 1, 8, 16);
    submit(f, 2, 8, 12);
    step(f);
    gs_sched_seq *q = gs_sched_find(f->s, 2);
    q->n_preempted = GS_SCHED_MAX_PREEMPTIONS;
    bool waited = false, gave_way = false;
    while (step(f) > 0) {
        assert_int_equal(q->n_preempted, GS_SCHED_MAX_PREEMPTIONS);
        if (q->state == GS_SCHED_RUNNING) {
            assert_non_null(item_of(f, 2)); /* it never waits */
            waited |= !item_of(f, 1);
        }
        gave_way |= f->plan.n_preempted > 0;
    }
    assert_true(waited && gave_way);
    assert_int_equal(expect_end(f, 2, GS_END_LENGTH).n_output, 12);
    gs_seq_end e = expect_end(f, 1, GS_END_LENGTH);
    assert_int_equal(e.n_output, 16);
    assert_int_equal(e.n_preempted, 1);
    stop(f);
}

/* A victim that is already planned leaves the plan, and the others' items stay theirs. */
static void test_planned_victim_leaves_the_plan(void **state) {
    (void)state;
    fixture *f = make();
    start_tight(f, 7);
    submit(f, 1, 7, 9);
    submit(f, 2, 6, 9);
    submit(f, 3, 7, 9);
    assert_int_equal(step(f), 3);
    gs_sched_find(f->s, 2)->n_preempted = GS_SCHED_MAX_PREEMPTIONS;
    gs_sched_find(f->s, 3)->n_preempted = GS_SCHED_MAX_PREEMPTIONS;
    assert_int_equal(step(f), 3);
    /* 1 takes the last block, 2 needs none, 3 needs one and can only get it from 1. */
    assert_int_equal(plan(f), 2);
    assert_int_equal(f->plan.n_preempted, 1);
    assert_int_equal(f->plan.n_tokens, 2);
    assert_int_equal(f->plan.n_prefill_tokens, 0);
    assert_int_equal(item_of(f, 2)->pos, 7);
    assert_int_equal(item_of(f, 3)->pos, 8);
    commit(f, 2, 0);
    assert_int_equal(expect_end(f, 2, GS_END_STOP).n_output, 3);
    stop(f);
}

/* Back from its last preemption only with room for its full length. */
static void test_at_the_limit_returns_when_it_fits_wholly(void **state) {
    (void)state;
    fixture *f = make();
    start_tight(f, 8);
    submit(f, 1, 8, 6);
    submit(f, 2, 8, 17); /* 24 positions, six blocks */
    gs_sched_find(f->s, 2)->n_preempted = GS_SCHED_MAX_PREEMPTIONS;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(plan(f), 1);
        assert_non_null(item_of(f, 1));
        commit(f, 0, 0);
    }
    expect_end(f, 1, GS_END_LENGTH);
    assert_int_equal(plan(f), 1);
    assert_non_null(item_of(f, 2));
    commit(f, 0, 0);
    stop(f);
}

static void test_alone_and_too_long_fails_alone(void **state) {
    (void)state;
    fixture *f = make();
    start_tight(f, 4);
    submit(f, 1, 8, 100);
    submit(f, 2, 8, 2);
    /* Positions 8 to 15 are answered; the planning that finds no place for the next one ends
     * sequence 1 and starts sequence 2 in the same step. */
    for (int i = 0; i < 9; i++) {
        assert_int_equal(plan(f), 1);
        assert_non_null(item_of(f, 1));
        commit(f, 0, 0);
    }
    assert_int_equal(plan(f), 1);
    assert_non_null(item_of(f, 2));
    expect_no_end(f); /* not while a step is in flight */
    assert_int_equal(gs_sched_cancel(f->s, 1, f->now_ns), GS_ERR_NOT_FOUND);
    commit(f, 0, 0);
    gs_seq_end e = expect_end(f, 1, GS_END_ERROR);
    assert_int_equal(e.err, GS_ERR_KV_FULL);
    assert_int_equal(e.n_output, 9);
    assert_int_equal(e.n_preempted, 0);
    step(f);
    expect_end(f, 2, GS_END_LENGTH);

    /* With nobody else there is no step to commit: the plan asks to be looked at at once. */
    submit(f, 3, 15, 100);
    step(f);
    step(f);
    assert_int_equal(plan(f), 0);
    assert_true(f->plan.wake_ns == f->now_ns);
    assert_int_equal(expect_end(f, 3, GS_END_ERROR).err, GS_ERR_KV_FULL);
    assert_int_equal(plan(f), 0);
    assert_true(f->plan.wake_ns == GS_NEVER_NS);
    stop(f);
}

/* A copy's source is held for one step; a pool that is just large enough still gets through. */
static void test_copy_source_does_not_block_its_own_sequence(void **state) {
    (void)state;
    fixture *f = make();
    f->kv_cfg.n_blocks = 4;
    start(f);
    submit(f, 1, 11, 2);
    step(f);
    step(f);
    expect_end(f, 1, GS_END_LENGTH);
    gs_seq_desc d = desc_of(f, 2, 15, 1);
    memcpy(f->tokens[2], f->tokens[1], 11 * sizeof(int32_t));
    assert_int_equal(gs_sched_submit(f->s, &d, f->now_ns, &f->admission), GS_OK);
    assert_int_equal(f->admission.n_cached, 11);
    /* Two shared blocks, source, copy: the last block comes when the source is released. */
    assert_int_equal(plan(f), 1);
    assert_int_equal(f->plan.items[0].n_tokens, 1);
    commit(f, 0, 0);
    assert_int_equal(plan(f), 1);
    assert_int_equal(f->plan.items[0].n_tokens, 3);
    commit(f, 0, 0);
    expect_end(f, 2, GS_END_LENGTH);
    stop(f);
}

/* ---- cancel and failure ---------------------------------------------------------------------- */

static void test_cancel_is_idempotent(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.max_seqs = 2;
    start(f);
    for (gs_seq_id id = 1; id <= 4; id++)
        submit(f, id, 8, 20);
    step(f); /* 1 and 2 run, 3 and 4 wait */
    assert_int_equal(gs_sched_cancel(f->s, 3, f->now_ns), GS_OK);
    check(f);
    expect_end(f, 3, GS_END_CANCELLED);
    assert_int_equal(gs_sched_cancel(f->s, 3, f->now_ns), GS_ERR_NOT_FOUND);
    gs_kv_stats st;
    gs_kv_get_stats(f->kv, &st);
    const uint32_t held = st.n_held;
    assert_int_equal(gs_sched_cancel(f->s, 1, f->now_ns), GS_OK);
    gs_kv_get_stats(f->kv, &st);
    assert_int_equal(st.n_held, held / 2); /* freed at once */
    assert_int_equal(expect_end(f, 1, GS_END_CANCELLED).n_output, 1);

    /* Between plan and commit: twice GS_OK, one end, at commit, and the result is not used. */
    assert_int_equal(plan(f), 2);
    assert_int_equal(gs_sched_cancel(f->s, 2, f->now_ns), GS_OK);
    assert_int_equal(gs_sched_cancel(f->s, 2, f->now_ns), GS_OK);
    check(f);
    expect_no_end(f);
    const int32_t before = f->tokens[2][9];
    commit(f, 0, 2); /* even an error is not looked at */
    const gs_seq_end e = expect_end(f, 2, GS_END_CANCELLED);
    assert_int_equal(e.n_output, 1);
    assert_int_equal(f->tokens[2][9], before);
    expect_no_end(f);
    assert_int_equal(gs_sched_cancel(f->s, 2, f->now_ns), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_sched_cancel(f->s, 77, f->now_ns), GS_ERR_NOT_FOUND);

    /* One that waits while a step runs. */
    submit(f, 5, 8, 20);
    submit(f, 6, 8, 20);
    plan(f);
    assert_int_equal(gs_sched_cancel(f->s, 6, f->now_ns), GS_OK);
    assert_int_equal(submit(f, 6, 8, 20), GS_ERR_EXISTS);
    commit(f, 0, 0);
    expect_end(f, 6, GS_END_CANCELLED);
    stop(f);
}

static void test_item_failure_ends_one(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    for (gs_seq_id id = 1; id <= 3; id++)
        submit(f, id, 8, 20);
    step(f);
    plan(f);
    commit(f, 0, 2);
    const gs_seq_end e = expect_end(f, 2, GS_END_ERROR);
    assert_int_equal(e.err, GS_ERR_BACKEND);
    assert_int_equal(e.n_output, 1);
    expect_no_end(f);
    assert_int_equal(step(f), 2);
    stop(f);
}

static void test_step_failure_ends_its_items_only(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.max_seqs = 2;
    start(f);
    for (gs_seq_id id = 1; id <= 3; id++)
        submit(f, id, 8, 20);
    plan(f);
    const gs_step_result r = {.err = GS_ERR_BACKEND};
    gs_sched_commit(f->s, &f->plan, &r, f->now_ns);
    check(f);
    assert_int_equal(expect_end(f, 1, GS_END_ERROR).err, GS_ERR_BACKEND);
    assert_int_equal(expect_end(f, 2, GS_END_ERROR).err, GS_ERR_BACKEND);
    expect_no_end(f);
    /* Nothing of the failed step is in the prefix cache. */
    assert_int_equal(gs_kv_peek(f->kv, 0, f->tokens[1], 8), 0);
    assert_int_equal(step(f), 1);
    assert_non_null(item_of(f, 3));
    stop(f);
}

static void test_counts_by_class(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.max_seqs = 1;
    start(f);
    gs_seq_desc d = desc_of(f, 1, 8, 20);
    d.cls = GS_CLASS_VOICE;
    gs_sched_submit(f->s, &d, 0, &f->admission);
    d = desc_of(f, 2, 8, 20);
    d.cls = GS_CLASS_BACKGROUND;
    gs_sched_submit(f->s, &d, 0, &f->admission);
    step(f);
    gs_sched_stats st;
    gs_sched_get_stats(f->s, &st);
    assert_int_equal(st.n_running_by_class[GS_CLASS_VOICE], 1);
    assert_int_equal(st.n_waiting_by_class[GS_CLASS_BACKGROUND], 1);
    assert_int_equal(st.n_waiting_by_class[GS_CLASS_VOICE], 0);
    stop(f);
}

static void test_no_allocation_after_create(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    gs_fault_clear();
    for (gs_seq_id id = 1; id <= 6; id++)
        submit(f, id, 30, 5);
    gs_sched_cancel(f->s, 6, 0);
    while (step(f) > 0)
        ;
    assert_int_equal(gs_fault_calls(GS_FAULT_ALLOC), 0);
    stop(f);
}

/* ---- another policy -------------------------------------------------------------------------- */

static int refuse_all(gs_sched *s, const gs_seq_desc *d, int64_t now_ns, gs_admission *out) {
    (void)s, (void)d, (void)now_ns;
    out->reason = "closed";
    return GS_ERR_UNAVAILABLE;
}

static bool yield_always(const gs_sched *s, int64_t now_ns) {
    (void)s;
    return now_ns > 5;
}

static void fcfs_that_may_yield(gs_sched *s, int64_t now_ns) {
    gs_policy_fcfs.plan(s, now_ns);
    s->plan.may_yield = true;
}

static size_t eight_bytes(const gs_sched_config *cfg) {
    (void)cfg;
    return 8;
}

static void test_policy_is_replaceable(void **state) {
    (void)state;
    fixture *f = make();
    start(f);
    assert_false(gs_sched_should_yield(f->s, 1000));
    assert_null(gs_sched_policy_state(f->s));
    stop(f);

    const gs_policy_ops closed = {.name = "closed",
                                  .plan = gs_policy_fcfs.plan,
                                  .admit = refuse_all,
                                  .should_yield = yield_always,
                                  .state_bytes = eight_bytes};
    f = make();
    f->cfg.policy = &closed;
    start(f);
    assert_int_equal(submit(f, 1, 8, 20), GS_ERR_UNAVAILABLE);
    assert_string_equal(f->admission.reason, "closed");
    assert_int_equal(plan(f), 0);
    assert_false(gs_sched_should_yield(f->s, 6)); /* no step in flight */
    assert_non_null(gs_sched_policy_state(f->s));
    stop(f);

    const gs_policy_ops open = {
        .name = "open", .plan = fcfs_that_may_yield, .should_yield = yield_always};
    f = make();
    f->cfg.policy = &open;
    start(f);
    submit(f, 1, 8, 20);
    assert_int_equal(plan(f), 1);
    assert_true(gs_sched_should_yield(f->s, 6));
    assert_false(gs_sched_should_yield(f->s, 5));
    commit(f, 1, 0);
    expect_end(f, 1, GS_END_STOP);
    stop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_class_names),
        cmocka_unit_test(test_create_refuses),
        cmocka_unit_test(test_out_of_memory_at_create),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_output_is_cut_to_the_context),
        cmocka_unit_test(test_overload),
        cmocka_unit_test(test_predictions),
        cmocka_unit_test(test_chunked_prefill),
        cmocka_unit_test(test_retry),
        cmocka_unit_test(test_decodes_first_then_arrival_order),
        cmocka_unit_test(test_new_request_joins_the_next_step),
        cmocka_unit_test(test_finished_one_gives_its_slot_at_once),
        cmocka_unit_test(test_prefill_only),
        cmocka_unit_test(test_whole_prompts),
        cmocka_unit_test(test_prefix_reuse_and_copy),
        cmocka_unit_test(test_preemption_and_return),
        cmocka_unit_test(test_cached_prefixes_go_before_anyone),
        cmocka_unit_test(test_preemption_limit),
        cmocka_unit_test(test_planned_victim_leaves_the_plan),
        cmocka_unit_test(test_at_the_limit_returns_when_it_fits_wholly),
        cmocka_unit_test(test_alone_and_too_long_fails_alone),
        cmocka_unit_test(test_copy_source_does_not_block_its_own_sequence),
        cmocka_unit_test(test_cancel_is_idempotent),
        cmocka_unit_test(test_item_failure_ends_one),
        cmocka_unit_test(test_step_failure_ends_its_items_only),
        cmocka_unit_test(test_counts_by_class),
        cmocka_unit_test(test_no_allocation_after_create),
        cmocka_unit_test(test_policy_is_replaceable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
