/* Several models in one engine, over fake backends: they share the thread, the accounts and the
 * device, and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/err.h"
#include "engine/engine.h"

enum { MAX_OUT = 512, MAX_TRACKS = 8 };
#define PATIENCE_NS (120 * GS_NS_PER_S)

typedef struct track {
    gs_seq *q;
    int32_t out[MAX_OUT];
    int32_t n_out;
    bool ended, rejected;
    gs_seq_end end;
    gs_admission adm;
} track;

typedef struct rig {
    gs_engine *e;
    gs_fake_config fc;
    track t[MAX_TRACKS];
    gs_query *answered;
    int n_prepared, n_busy;
    int prepare_code;
} rig;

static void nap(void) {
    struct timespec t = {0, 50000};
    nanosleep(&t, NULL);
}

static int open_fake(void *arg, gs_backend **out, char *err, size_t errlen) {
    (void)err;
    (void)errlen;
    return gs_fake_create(&((rig *)arg)->fc, out);
}

static int setup(void **state) {
    rig *r = calloc(1, sizeof(*r));
    r->fc = (gs_fake_config){.n_vocab = 1000,
                             .max_context = 2048,
                             .max_batch_tokens = 512,
                             .max_seqs = 16,
                             .block_tokens = 16,
                             .n_kv_blocks = 1024,
                             .first_token = 10,
                             .n_tokens = 900,
                             .eos_token = 2};
    const gs_engine_config ec = {.open = open_fake,
                                 .open_arg = r,
                                 .max_waiting = 64,
                                 .prefill_chunk = 512,
                                 .max_persons = 4,
                                 .check = true};
    char err[256];
    assert_int_equal(gs_engine_create(&ec, &r->e, err, sizeof(err)), 0);
    while (gs_engine_get_state(r->e) == GS_ENGINE_LOADING)
        nap();
    *state = r;
    return 0;
}

static void pump(rig *r) {
    gs_event ev;
    while (gs_engine_poll(r->e, &ev)) {
        if (ev.kind == GS_EVENT_ANSWER) {
            r->answered = ev.u.answer;
            continue;
        }
        track *t = ev.seq->owner;
        if (ev.kind == GS_EVENT_TOKEN) {
            t->out[t->n_out++] = ev.u.token.sample.token;
        } else if (ev.kind == GS_EVENT_REJECTED) {
            t->rejected = true;
            t->adm = ev.u.admission;
        } else if (ev.kind == GS_EVENT_END) {
            t->ended = true;
            t->end = ev.u.end;
        }
    }
}

#define WAIT(condition)                                                                            \
    do {                                                                                           \
        const int64_t began_ns = gs_now_ns();                                                      \
        for (pump(r); !(condition); pump(r)) {                                                     \
            assert_true(gs_now_ns() - began_ns < PATIENCE_NS);                                     \
            nap();                                                                                 \
        }                                                                                          \
    } while (0)

static int teardown(void **state) {
    rig *r = *state;
    gs_engine_free(r->e);
    for (int i = 0; i < MAX_TRACKS; i++)
        gs_seq_free(r->t[i].q);
    free(r);
    return 0;
}

static void ask(rig *r, gs_query *q) {
    r->answered = NULL;
    gs_engine_ask(r->e, q);
    WAIT(r->answered == q);
}

static int prepare(void *arg, gs_backend *b, bool (*busy)(void *), void *busy_arg) {
    rig *r = arg;
    assert_non_null(b);
    r->n_prepared++;
    r->n_busy += busy(busy_arg);
    return r->prepare_code;
}

/* The new lane's number, or a code. */
static int attach_as(rig *r, const gs_fake_config *fc, bool first) {
    gs_query q = {.kind = GS_QUERY_ATTACH, .prepare = prepare, .prepare_arg = r, .first = first};
    assert_int_equal(gs_fake_create(fc, &q.backend), 0);
    ask(r, &q);
    assert_null(q.backend);
    if (q.code != 0)
        assert_true(q.err[0] != '\0');
    return q.code == 0 ? q.lane : q.code;
}

static int attach(rig *r, const gs_fake_config *fc) {
    return attach_as(r, fc, false);
}

static int detach(rig *r, int32_t lane) {
    gs_query q = {.kind = GS_QUERY_DETACH, .lane = lane};
    ask(r, &q);
    if (q.code == 0)
        q.backend->ops->destroy(q.backend);
    return q.code;
}

static void submit(rig *r, int i, int32_t lane, int32_t n_prompt, int32_t n_output, gs_class cls) {
    int32_t prompt[2048];
    track *t = &r->t[i];
    for (int32_t k = 0; k < n_prompt; k++)
        prompt[k] = 10 + (k * 7 + i * 131) % 900;
    gs_seq_free(t->q);
    *t = (track){.q = gs_seq_create(prompt, n_prompt, n_output)};
    t->q->owner = t;
    t->q->lane = lane;
    t->q->desc.cls = cls;
    t->q->desc.class_fixed = true;
    gs_engine_submit(r->e, t->q);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void each_model_answers_as_it_would_alone(void **state) {
    rig *r = *state;
    gs_fake_config other = r->fc;
    other.first_token = 300;
    other.n_tokens = 50;
    assert_int_equal(attach(r, &other), 1);
    assert_int_equal(r->n_prepared, 1);
    assert_int_equal(r->n_busy, 0);
    int32_t alone[2][32];
    for (int i = 0; i < 2; i++) { /* the same prompt for both */
        submit(r, 0, i, 40, 32, GS_CLASS_CHAT);
        WAIT(r->t[0].ended);
        memcpy(alone[i], r->t[0].out, sizeof(alone[i]));
    }
    assert_memory_not_equal(alone[0], alone[1], sizeof(alone[0]));
    for (int k = 0; k < 32; k++)
        assert_in_range(alone[1][k], 300, 349);
    for (int i = 1; i < 7; i++)
        submit(r, i, i % 2, 100 + i, 100, GS_CLASS_CHAT);
    submit(r, 0, 1, 40, 32, GS_CLASS_CHAT);
    for (int i = 0; i < 7; i++)
        WAIT(r->t[i].ended);
    assert_memory_equal(alone[1], r->t[0].out, sizeof(alone[1]));

    gs_engine_stats sum, first, second;
    WAIT((gs_engine_get_stats(r->e, &sum), sum.n_running + sum.n_waiting == 0));
    gs_engine_get_lane_stats(r->e, 0, &first);
    gs_engine_get_lane_stats(r->e, 1, &second);
    assert_true(first.steps > 0 && second.steps > 0);
    assert_int_equal(sum.steps, first.steps + second.steps);
    assert_int_equal(sum.decode_tokens, first.decode_tokens + second.decode_tokens);
    assert_int_equal(sum.kv_blocks_total, 2048);
}

static void a_busy_model_is_not_detached(void **state) {
    rig *r = *state;
    gs_fake_config slow = r->fc;
    slow.step_ns = GS_NS_PER_MS;
    assert_int_equal(attach(r, &slow), 1);
    submit(r, 0, 1, 10, 500, GS_CLASS_CHAT);
    WAIT(r->t[0].n_out > 3);
    assert_int_equal(detach(r, 1), GS_ERR_EXISTS);
    gs_engine_cancel(r->e, r->t[0].q);
    WAIT(r->t[0].ended);
    assert_int_equal(r->t[0].end.reason, GS_END_CANCELLED);
    gs_engine_stats before, after, lane;
    WAIT((gs_engine_get_stats(r->e, &before), before.n_running == 0));
    assert_int_equal(detach(r, 1), 0);
    assert_int_equal(detach(r, 1), GS_ERR_NOT_FOUND);
    assert_int_equal(detach(r, -1), GS_ERR_NOT_FOUND);
    assert_int_equal(detach(r, 99), GS_ERR_NOT_FOUND);
    submit(r, 1, 1, 10, 5, GS_CLASS_CHAT);
    WAIT(r->t[1].rejected);
    assert_int_equal(r->t[1].adm.code, GS_ERR_UNAVAILABLE);
    /* What it has counted is still there, its memory is not. */
    gs_engine_get_stats(r->e, &after);
    gs_engine_get_lane_stats(r->e, 1, &lane);
    assert_int_equal(after.steps, before.steps);
    assert_int_equal(lane.steps, 0);
    assert_int_equal(after.kv_blocks_total, 1024);
    /* And its number is free again. */
    assert_int_equal(attach(r, &r->fc), 1);
    submit(r, 1, 1, 10, 5, GS_CLASS_CHAT);
    WAIT(r->t[1].ended);
}

/* Loaded anew, in the same place, with others there or with none; nobody else gets its number. */
static void the_first_one_goes_and_comes_back(void **state) {
    rig *r = *state;
    int32_t before[20];
    gs_person_view persons[4];
    gs_engine_view view = {.persons = persons, .n_persons = 4};
    gs_explain records[4];
    gs_query look = {.kind = GS_QUERY_STATE, .records = records, .max_records = 4, .view = &view};
    gs_query charge = {.kind = GS_QUERY_CHARGE, .person = 1, .charge_ns = 5};
    gs_fake_config anew = r->fc;
    anew.n_threads = 2; /* so that it has steps beside its own */
    submit(r, 0, 0, 40, 20, GS_CLASS_CHAT);
    WAIT(r->t[0].ended);
    memcpy(before, r->t[0].out, sizeof(before));
    for (int round = 0; round < 2; round++) {
        submit(r, 1, 0, 10, 400, GS_CLASS_CHAT);
        WAIT(r->t[1].n_out > 3);
        assert_int_equal(detach(r, 0), GS_ERR_EXISTS);
        WAIT(r->t[1].ended);
        gs_engine_stats s;
        WAIT((gs_engine_get_stats(r->e, &s), s.n_running == 0));
        assert_int_equal(detach(r, 0), 0);
        assert_int_equal(detach(r, 0), GS_ERR_NOT_FOUND);
        submit(r, 2, 0, 10, 5, GS_CLASS_CHAT);
        WAIT(r->t[2].rejected);
        ask(r, &look);
        assert_int_equal(look.n_records, 0);
        ask(r, &charge);
        assert_int_equal(charge.code, round == 0 ? GS_ERR_UNAVAILABLE : 0);
        if (round == 0)
            assert_int_equal(attach(r, &r->fc), 1);
        submit(r, 2, 1, 10, 5, GS_CLASS_CHAT);
        WAIT(r->t[2].ended);
        assert_int_equal(attach_as(r, &anew, true), 0);
        submit(r, 0, 0, 40, 20, GS_CLASS_CHAT);
        submit(r, 3, 0, 400, 20, GS_CLASS_BACKGROUND);
        WAIT(r->t[0].ended && r->t[3].ended);
        assert_memory_equal(before, r->t[0].out, sizeof(before));
    }
}

static void attaching_fails_cleanly(void **state) {
    rig *r = *state;
    r->prepare_code = GS_ERR_BACKEND;
    assert_int_equal(attach(r, &r->fc), GS_ERR_BACKEND);
    r->prepare_code = 0;
    for (int i = 1; i < GS_ENGINE_LANES; i++)
        assert_int_equal(attach(r, &r->fc), i);
    assert_int_equal(attach(r, &r->fc), GS_ERR_OVERLOADED);
    submit(r, 0, GS_ENGINE_LANES - 1, 10, 5, GS_CLASS_CHAT);
    submit(r, 1, GS_ENGINE_LANES, 10, 5, GS_CLASS_CHAT);
    WAIT(r->t[0].ended && r->t[1].rejected);
}

/* Who prepares a model is told that somebody waits. */
static void preparing_hears_of_work(void **state) {
    rig *r = *state;
    gs_fake_config slow = r->fc;
    slow.step_ns = GS_NS_PER_MS;
    assert_int_equal(attach(r, &slow), 1);
    submit(r, 0, 1, 10, 500, GS_CLASS_CHAT);
    WAIT(r->t[0].n_out > 0);
    r->n_busy = 0;
    assert_int_equal(attach(r, &r->fc), 2);
    assert_int_equal(r->n_busy, 1);
    gs_engine_cancel(r->e, r->t[0].q);
    WAIT(r->t[0].ended);
}

/* A step of one model's background gives way between layers to another model's chat, and goes on
 * where it was: its text is that of a run without a break. */
static void background_gives_way_to_another_model(void **state) {
    rig *r = *state;
    gs_fake_config slow = r->fc;
    slow.n_layers = 100;
    slow.prefill_token_ns = 500 * GS_NS_PER_US;
    assert_int_equal(attach(r, &slow), 1);
    submit(r, 0, 1, 500, 4, GS_CLASS_BACKGROUND);
    WAIT(r->t[0].ended);
    int32_t whole[4];
    memcpy(whole, r->t[0].out, sizeof(whole));
    gs_engine_stats s;
    gs_engine_get_lane_stats(r->e, 1, &s);
    assert_int_equal(s.suspensions, 0);
    assert_int_equal(detach(r, 1), 0); /* with its prefix cache */
    assert_int_equal(attach(r, &slow), 1);
    submit(r, 0, 1, 500, 4, GS_CLASS_BACKGROUND);
    WAIT((gs_engine_get_stats(r->e, &s), s.step_began_ns > 0));
    submit(r, 1, 0, 10, 4, GS_CLASS_CHAT); /* its gaps leave room for less than half of the step */
    WAIT(r->t[1].ended);
    assert_false(r->t[0].ended);
    WAIT(r->t[0].ended);
    assert_int_equal(r->t[0].n_out, 4);
    assert_memory_equal(whole, r->t[0].out, sizeof(whole));
    WAIT((gs_engine_get_lane_stats(r->e, 1, &s), s.n_running == 0));
    assert_true(s.suspensions > 0);
    assert_int_equal(s.discarded_ns, 0);
}

static void questions_name_the_model(void **state) {
    rig *r = *state;
    gs_fake_config slow = r->fc;
    slow.step_ns = GS_NS_PER_MS;
    assert_int_equal(attach(r, &slow), 1);
    submit(r, 0, 0, 10, 500, GS_CLASS_CHAT);
    submit(r, 1, 1, 10, 500, GS_CLASS_CHAT);
    WAIT(r->t[0].n_out > 0 && r->t[1].n_out > 0);
    gs_explain records[8];
    gs_query q = {.kind = GS_QUERY_QUEUE, .records = records, .max_records = 8};
    ask(r, &q);
    assert_int_equal(q.n_records, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(records[i].model, records[i].id == r->t[1].q->desc.id);
    const gs_seq_id ids[] = {r->t[1].q->desc.id, 12345};
    gs_query x = {
        .kind = GS_QUERY_EXPLAIN, .records = records, .max_records = 2, .ids = ids, .n_ids = 2};
    ask(r, &x);
    assert_int_equal(x.n_records, 1);
    assert_int_equal(records[0].model, 1);
    for (int i = 0; i < 2; i++) {
        gs_engine_cancel(r->e, r->t[i].q);
        WAIT(r->t[i].ended);
    }
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(each_model_answers_as_it_would_alone),
        T(a_busy_model_is_not_detached),
        T(the_first_one_goes_and_comes_back),
        T(attaching_fails_cleanly),
        T(preparing_hears_of_work),
        T(background_gives_way_to_another_model),
        T(questions_name_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
