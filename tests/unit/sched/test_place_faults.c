/* Placement: workers that fail, are away or switched off, and what becomes of requests then. */
#include "placed.h"

/* ---- faults -----------------------------------------------------------------------------------*/

static void test_retry_once_on_each_worker(void **state) {
    (void)state;
    fixture *f = make();
    f->w[LOCAL].models[0].model = 2;
    start(f, 3);
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 100, 20), GS_OK);
    assert_true(next_but_probes(f));
    const int32_t first = f->act.worker;
    end(f, 1, 1, GS_PLACE_FAULT);
    assert_true(f->over.again);
    assert_int_equal(f->over.charged_ns, 0);
    /* What the first attempt still says is dropped. */
    assert_false(gs_place_tokens(f->p, 1, 1, 1, f->now_ns));
    assert_false(gs_place_end(f->p, 1, 1, GS_PLACE_DONE, f->now_ns, &f->over));
    assert_int_equal(expect_placed(f, 1, first == PC ? NUC : PC), 2);
    assert_int_equal(f->act.why, GS_PLACE_WHY_RETRY);
    end(f, 1, 2, GS_PLACE_FAULT);
    assert_false(f->over.again); /* nobody is left */
    assert_false(gs_place_cancel(f->p, 1, f->now_ns, &f->over));
    stop(f);
}

static void test_no_retry_after_the_first_token(void **state) {
    (void)state;
    fixture *f = make();
    start(f, 3);
    f->desc.barred = 1u << LOCAL;
    f->desc.can_continue = true;
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 100, 20), GS_OK);
    assert_true(next_but_probes(f));
    gs_place_tokens(f->p, 1, 1, 3, f->now_ns);
    end(f, 1, 1, GS_PLACE_FAULT);
    assert_false(f->over.again);
    stop(f);
}

/* The same model file elsewhere goes on with the text so far; another one can't. */
static void test_an_answer_is_continued_by_the_same_file(void **state) {
    (void)state;
    fixture *f = make();
    for (int i = 0; i < 3; i++)
        f->w[i].models[0].file = i == PC ? 5 : 6;
    start(f, 3);
    f->desc.can_continue = true;
    f->desc.barred = 1u << LOCAL | 1u << PC;
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 100, 20), GS_OK);
    expect_placed(f, 1, NUC);
    f->desc.barred = 0;
    gs_place_tokens(f->p, 1, 1, 3, f->now_ns);
    end(f, 1, 1, GS_PLACE_FAULT);
    assert_false(f->over.again); /* it was barred from the others */
    f->desc.barred = 1u << LOCAL;
    later(f, S);
    assert_int_equal(submit(f, 2, GS_CLASS_CHAT, 100, 20), GS_OK);
    gs_place_drain(f->p, NUC, true, f->now_ns);
    expect_placed(f, 2, PC);
    gs_place_drain(f->p, NUC, false, f->now_ns);
    gs_place_tokens(f->p, 2, 1, 3, f->now_ns);
    end(f, 2, 1, GS_PLACE_FAULT);
    assert_false(f->over.again); /* no other has file 5 */
    f->desc.barred = 1u << PC;
    gs_place_drain(f->p, LOCAL, true, f->now_ns);
    assert_int_equal(submit(f, 3, GS_CLASS_CHAT, 100, 20), GS_OK);
    expect_placed(f, 3, NUC);
    gs_place_drain(f->p, LOCAL, false, f->now_ns);
    gs_place_tokens(f->p, 3, 1, 7, f->now_ns);
    end(f, 3, 1, GS_PLACE_FAULT);
    assert_true(f->over.again);
    expect_placed(f, 3, LOCAL);
    assert_int_equal(f->act.why, GS_PLACE_WHY_CONTINUE);
    assert_int_equal(f->act.n_output, 7);
    assert_int_equal(f->act.attempt, 2);
    stop(f);
}

static void test_a_request_that_is_wrong_is_not_retried(void **state) {
    (void)state;
    fixture *f = make();
    start(f, 3);
    f->desc.barred = 1u << LOCAL;
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 100, 20), GS_OK);
    assert_true(next_but_probes(f));
    const int32_t worker = f->act.worker;
    end(f, 1, 1, GS_PLACE_BAD_REQUEST);
    assert_false(f->over.again);
    assert_int_equal(state_of(f, worker), GS_WORKER_UP);
    stop(f);
}

/* It accepts and says nothing, not even to probes: after its time-out, once, all go elsewhere. */
static void test_a_hung_worker_costs_its_time_out_once(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.local_only = 0;
    f->w[PC].takes = f->w[PC].prefers = BIT(VOICE);
    f->w[PC].fallback = GS_FALLBACK_MOVE;
    start(f, 2);
    teach(f, PC, GS_CLASS_VOICE, 50 * MS, 10 * MS);
    later(f, 3600 * S);
    const int64_t came_ns = f->now_ns;
    assert_int_equal(submit(f, 1, GS_CLASS_VOICE, 100, 20), GS_OK);
    assert_true(next(f));
    assert_int_equal(f->act.kind, GS_PLACE_DISPATCH);
    assert_int_equal(f->act.worker, PC);
    assert_true(next(f)); /* it has not been heard of for long: a probe goes along */
    assert_int_equal(f->act.kind, GS_PLACE_PROBE);
    bool aborted = false;
    while (!aborted) {
        assert_false(next(f));
        assert_true(gs_place_wake_ns(f->p) > f->now_ns);
        later(f, gs_place_wake_ns(f->p) - f->now_ns);
        aborted = next(f) && f->act.kind == GS_PLACE_ABORT;
    }
    assert_false(f->act.over);
    assert_int_equal(f->now_ns - came_ns, f->w[PC].probe_timeout_ns);
    expect_placed(f, 1, LOCAL);
    assert_int_equal(f->act.why, GS_PLACE_WHY_RETRY);
    assert_int_equal(state_of(f, PC), GS_WORKER_OPEN);
    /* The next one does not go there at all. */
    assert_int_equal(submit(f, 2, GS_CLASS_VOICE, 100, 20), GS_OK);
    expect_placed(f, 2, LOCAL);
    assert_int_equal(f->act.why, GS_PLACE_WHY_FALLBACK);
    /* The answer that comes after all is not its own any more. */
    assert_false(gs_place_tokens(f->p, 1, 1, 5, f->now_ns));
    stop(f);
}

/* A probe that fails while answers stream is a busy worker's; one that fails in silence ends what
 * is there, and later probes let it back in. */
static void test_probes_that_fail(void **state) {
    (void)state;
    fixture *f = make();
    f->w[PC].prefers = BIT(BACKGROUND);
    f->w[PC].fallback = GS_FALLBACK_WAIT;
    start(f, 2);
    assert_int_equal(submit(f, 1, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
    expect_placed(f, 1, PC);
    later(f, S);
    assert_true(next(f));
    assert_int_equal(f->act.kind, GS_PLACE_PROBE);
    later(f, 100 * MS);
    gs_place_tokens(f->p, 1, 1, 1, f->now_ns);
    gs_place_probed(f->p, PC, false, f->now_ns);
    assert_int_equal(state_of(f, PC), GS_WORKER_UP);
    later(f, S);
    assert_true(next(f));
    assert_int_equal(f->act.kind, GS_PLACE_PROBE);
    gs_place_probed(f->p, PC, false, f->now_ns);
    assert_int_equal(state_of(f, PC), GS_WORKER_OPEN);
    assert_true(next(f));
    assert_int_equal(f->act.kind, GS_PLACE_ABORT);
    assert_true(f->act.over); /* it had begun to answer */
    assert_true(f->act.charged_ns > 0);
    /* With work waiting it is asked again when its time has come. */
    assert_int_equal(submit(f, 2, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
    assert_false(next(f));
    later(f, gs_place_wake_ns(f->p) - f->now_ns);
    assert_true(next(f));
    assert_int_equal(f->act.kind, GS_PLACE_PROBE);
    assert_int_equal(state_of(f, PC), GS_WORKER_PROBING);
    gs_place_probed(f->p, PC, true, f->now_ns);
    expect_placed(f, 2, PC);
    stop(f);
}

/* What went out before a request failed says nothing about the time after it. */
static void test_a_probe_from_before_a_failure(void **state) {
    (void)state;
    fixture *f = make();
    f->w[PC].prefers = BIT(BACKGROUND);
    f->w[PC].probe_every_ns = 10 * S;
    start(f, 2);
    later(f, 10 * S);
    assert_int_equal(submit(f, 1, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
    assert_true(next(f));
    assert_int_equal(f->act.kind, GS_PLACE_PROBE);
    expect_placed(f, 1, PC);
    later(f, MS);
    assert_true(gs_place_end(f->p, 1, 1, GS_PLACE_FAULT, f->now_ns, &f->over));
    assert_int_equal(state_of(f, PC), GS_WORKER_PROBING);
    later(f, MS);
    assert_false(gs_place_probed(f->p, PC, true, f->now_ns));
    assert_int_equal(state_of(f, PC), GS_WORKER_PROBING);
    later(f, S);
    assert_true(next(f));
    while (f->act.kind != GS_PLACE_PROBE)
        assert_true(next(f));
    assert_true(gs_place_probed(f->p, PC, true, f->now_ns));
    assert_int_equal(state_of(f, PC), GS_WORKER_UP);
    stop(f);
}

/* It answers probes but not this request: an interactive one goes elsewhere when it is late. */
static void test_a_late_attempt_goes_elsewhere(void **state) {
    (void)state;
    fixture *f = make();
    f->w[PC].prefers = BIT(CHAT);
    start(f, 2);
    teach(f, PC, GS_CLASS_CHAT, 500 * MS, 10 * MS);
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 100, 20), GS_OK);
    expect_placed(f, 1, PC);
    const int64_t came_ns = f->now_ns;
    while (!next_but_probes(f))
        later(f, 100 * MS);
    assert_int_equal(f->act.kind, GS_PLACE_ABORT);
    assert_false(f->act.over);
    assert_true(f->now_ns - came_ns > 3 * S && f->now_ns - came_ns < 6 * S);
    expect_placed(f, 1, LOCAL);
    stop(f);
}

/* Three requests fail, though probes are answered: the breaker opens. */
static void test_failing_requests_open_the_breaker(void **state) {
    (void)state;
    fixture *f = make();
    f->w[PC].prefers = BIT(BACKGROUND);
    start(f, 2);
    for (uint64_t id = 1; id <= 3; id++) {
        assert_int_equal(submit(f, id, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
        end(f, id, expect_placed(f, id, PC), GS_PLACE_FAULT);
        assert_true(f->over.again);
        later(f, S);
        expect_placed(f, id, LOCAL);
    }
    assert_int_equal(state_of(f, PC), GS_WORKER_OPEN);
    gs_place_view v;
    gs_place_get_view(f->p, PC, f->now_ns, &v);
    assert_int_equal(v.n_faults, 3);
    assert_int_equal(v.n_moved, 3);
    stop(f);
}

static void expect_refused(fixture *f, uint64_t id, int64_t retry_ns) {
    assert_true(next_but_probes(f));
    assert_int_equal(f->act.kind, GS_PLACE_REFUSE);
    assert_int_equal(f->act.id, id);
    assert_int_equal(f->act.retry_ns, retry_ns);
}

/* An interactive request does not wait for hours for who is not there: it is told at once.
 * Background waits. */
static void test_who_can_never_be_served_is_told(void **state) {
    (void)state;
    fixture *f = make();
    f->w[LOCAL].models[0].model = 2;
    start(f, 2);
    gs_place_drain(f->p, PC, true, f->now_ns);
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 100, 20), GS_OK);
    assert_int_equal(submit(f, 2, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
    expect_refused(f, 1, -1);
    later(f, 3600 * S);
    expect_waits(f);
    gs_place_remove(f->p, PC, f->now_ns);
    assert_true(next_but_probes(f));
    assert_int_equal(f->act.kind, GS_PLACE_REFUSE);
    assert_int_equal(f->act.id, 2);
    assert_true(next_but_probes(f));
    assert_int_equal(f->act.kind, GS_PLACE_GONE);
    stop(f);
}

static int64_t open_until(const fixture *f, int32_t worker) {
    gs_place_view v;
    gs_place_get_view(f->p, worker, f->now_ns, &v);
    return v.open_until_ns;
}

/* The next act is a probe, which fails: the breaker opens, each time for longer. */
static void fail_probe(fixture *f) {
    assert_true(next(f));
    assert_int_equal(f->act.kind, GS_PLACE_PROBE);
    gs_place_probed(f->p, f->act.worker, false, f->now_ns);
}

/* A breaker that opens for a second is waited for; once it is open for longer than somebody who
 * waits for words has patience, whoever waits is told, and who comes then does not wait at all. */
static void test_an_open_breaker_is_waited_for_within_patience(void **state) {
    (void)state;
    fixture *f = make();
    f->w[LOCAL].models[0].model = 2;
    f->w[PC].probe_every_ns = S;
    start(f, 2);
    gs_class_config k[GS_CLASS_COUNT];
    gs_class_defaults(k);
    later(f, S);
    fail_probe(f);
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 100, 20), GS_OK);
    const int64_t came_ns = f->now_ns;
    expect_waits(f);
    while (open_until(f, PC) <= came_ns + 3 * k[GS_CLASS_CHAT].ttft_ns) {
        later(f, open_until(f, PC) - f->now_ns);
        fail_probe(f);
        assert_true(f->now_ns <= came_ns + 3 * k[GS_CLASS_CHAT].ttft_ns);
    }
    expect_refused(f, 1, open_until(f, PC) - f->now_ns);
    /* Further on it is open for half a minute at a time. */
    for (int i = 0; i < 3; i++) {
        expect_waits(f);
        later(f, open_until(f, PC) - f->now_ns);
        fail_probe(f);
    }
    assert_int_equal(submit(f, 2, GS_CLASS_CHAT, 100, 20), GS_OK);
    expect_refused(f, 2, open_until(f, PC) - f->now_ns);
    /* A document has more time: with it in the queue the worker is probed, and answers. */
    later(f, open_until(f, PC) - 20 * S - f->now_ns);
    assert_int_equal(submit(f, 3, GS_CLASS_DOCUMENT, 100, 20), GS_OK);
    expect_waits(f);
    later(f, open_until(f, PC) - f->now_ns);
    expect_placed(f, 3, PC);
    stop(f);
}

/* Outside its hours, told to be left alone, not for this class now, or preferred and waited for by
 * rule: all of them known, with when that ends. */
static void test_when_to_come_back(void **state) {
    (void)state;
    char err[100];
    fixture *f = make();
    f->w[LOCAL].models[0].model = 2;
    gs_schedule_parse("22:00-23:00", &f->w[PC].hours, err, sizeof err);
    start(f, 2);
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 100, 20), GS_OK);
    expect_refused(f, 1, 7200 * S);
    stop(f);

    f = make();
    f->w[LOCAL].models[0].model = 2;
    gs_schedule_parse("21:00-22:00", &f->w[PC].class_hours[GS_CLASS_CHAT], err, sizeof err);
    start(f, 2);
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 100, 20), GS_OK);
    expect_refused(f, 1, 3600 * S);
    gs_place_hold_off(f->p, PC, f->now_ns + 100 * S);
    assert_int_equal(submit(f, 2, GS_CLASS_UTILITY, 100, 20), GS_OK);
    expect_refused(f, 2, 100 * S);
    stop(f);

    f = make();
    f->w[PC].prefers = BIT(CHAT);
    f->w[PC].fallback = GS_FALLBACK_WAIT;
    start(f, 2);
    gs_place_drain(f->p, PC, true, f->now_ns);
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 100, 20), GS_OK);
    expect_refused(f, 1, -1);
    stop(f);
}

/* ---- pauses -----------------------------------------------------------------------------------*/

/* What is paused goes nowhere, switches nothing on and is not refused; others pass it. */
static void test_what_is_paused_goes_nowhere(void **state) {
    (void)state;
    fixture *f = make();
    f->w[LOCAL].models[0].model = 2;
    start(f, 2);
    assert_int_equal(submit(f, 1, GS_CLASS_CHAT, 100, 20), GS_OK);
    assert_true(gs_place_pause(f->p, 1, true, f->now_ns));
    assert_int_equal(submit(f, 2, GS_CLASS_CHAT, 100, 20), GS_OK);
    end(f, 2, expect_placed(f, 2, PC), GS_PLACE_DONE);
    expect_waits(f);
    gs_place_drain(f->p, PC, true, f->now_ns);
    later(f, 600 * S);
    expect_waits(f);
    gs_place_drain(f->p, PC, false, f->now_ns);
    expect_waits(f);
    assert_true(gs_place_pause(f->p, 1, false, f->now_ns));
    expect_placed(f, 1, PC);
    assert_false(gs_place_pause(f->p, 9, true, f->now_ns));
    stop(f);
}

/* At a worker it may be silent for as long as it is paused, and then for as long as any. */
static void test_a_pause_is_no_stall(void **state) {
    (void)state;
    fixture *f = make();
    start(f, 2);
    f->desc.barred = 1u << LOCAL;
    assert_int_equal(submit(f, 1, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
    const int32_t attempt = expect_placed(f, 1, PC);
    assert_true(gs_place_tokens(f->p, 1, attempt, 1, f->now_ns));
    gs_place_hold_classes(f->p, BIT(BACKGROUND), f->now_ns);
    for (int i = 0; i < 1000; i++) {
        later(f, S);
        expect_waits(f);
    }
    gs_place_hold_classes(f->p, 0, f->now_ns);
    expect_waits(f);
    const int64_t stall_s = f->w[PC].stall_ns / S;
    for (int i = 1; i < stall_s; i++) {
        later(f, S);
        expect_waits(f);
    }
    later(f, S);
    assert_true(next_but_probes(f));
    assert_int_equal(f->act.kind, GS_PLACE_ABORT);
    stop(f);
}

/* A class that is held is held for those that come, too. */
static void test_a_class_is_held(void **state) {
    (void)state;
    fixture *f = make();
    start(f, 2);
    gs_place_hold_classes(f->p, BIT(BACKGROUND), f->now_ns);
    assert_int_equal(submit(f, 1, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
    assert_int_equal(submit(f, 2, GS_CLASS_CHAT, 100, 20), GS_OK);
    expect_placed(f, 2, LOCAL);
    expect_waits(f);
    gs_place_hold_classes(f->p, 0, f->now_ns);
    assert_true(next_but_probes(f));
    assert_int_equal(f->act.kind, GS_PLACE_DISPATCH);
    assert_int_equal(f->act.id, 1);
    stop(f);
}

/* ---- hours ------------------------------------------------------------------------------------*/

static void set_hours(fixture *f, const char *text) {
    char err[100];
    assert_int_equal(gs_schedule_parse(text, &f->w[PC].hours, err, sizeof err), GS_OK);
}

/* Work waits for the window; two minutes ahead the worker is switched on, once. */
static void test_power_on_ahead_of_the_hours(void **state) {
    (void)state;
    fixture *f = make();
    set_hours(f, "22:00-07:00");
    f->w[PC].prefers = BIT(BACKGROUND);
    f->w[PC].fallback = GS_FALLBACK_WAIT;
    f->w[PC].can_power_on = true;
    start(f, 2);
    assert_int_equal(state_of(f, PC), GS_WORKER_AWAY);
    later(f, 1800 * S);
    expect_waits(f);
    assert_int_equal(submit(f, 1, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
    expect_waits(f);
    later(f, gs_place_wake_ns(f->p) - f->now_ns);
    assert_int_equal(f->wall_s, WALL + 2 * 3600 - 120);
    assert_true(next_but_probes(f));
    assert_int_equal(f->act.kind, GS_PLACE_POWER_ON);
    assert_int_equal(f->act.worker, PC);
    expect_waits(f);
    later(f, 120 * S);
    expect_placed(f, 1, PC); /* it was probed first: it had been off */
    gs_place_view v;
    gs_place_get_view(f->p, PC, f->now_ns, &v);
    assert_true(v.n_probes >= 1);
    stop(f);
}

static void test_nothing_waits_nothing_is_switched_on(void **state) {
    (void)state;
    fixture *f = make();
    set_hours(f, "22:00-07:00");
    f->w[PC].can_power_on = true;
    start(f, 2);
    for (int i = 0; i < 48; i++) {
        later(f, 1800 * S);
        assert_true(!next_but_probes(f));
    }
    stop(f);
}

/* Before its hours end it gets no more, and nothing that would not be done by then. */
static void test_drained_before_the_hours_end(void **state) {
    (void)state;
    fixture *f = make();
    set_hours(f, "19:00-21:00");
    f->w[PC].prefers = BIT(BACKGROUND);
    f->w[PC].fallback = GS_FALLBACK_WAIT;
    start(f, 2);
    teach(f, PC, GS_CLASS_BACKGROUND, 100 * MS, 10 * MS);
    later(f, 3600 * S - 100 * S - (f->now_ns - S));
    assert_int_equal(submit(f, 1, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
    int32_t attempt = expect_placed(f, 1, PC);
    end(f, 1, attempt, GS_PLACE_DONE);
    /* A prompt of two minutes. */
    assert_int_equal(submit(f, 2, GS_CLASS_BACKGROUND, 7000, 20), GS_OK);
    assert_int_equal(submit(f, 3, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
    gs_place_view v;
    gs_place_get_view(f->p, PC, f->now_ns, &v);
    if (gs_worker_cost_ttft(&v.cost[0], 7000) < 100e9)
        gs_place_cancel(f->p, 2, f->now_ns, &f->over);
    attempt = expect_placed(f, 3, PC);
    later(f, 50 * S);
    assert_int_equal(submit(f, 4, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
    expect_waits(f); /* the last minute */
    gs_place_tokens(f->p, 3, attempt, 20, f->now_ns);
    end(f, 3, attempt, GS_PLACE_DONE);
    later(f, 60 * S);
    expect_waits(f);
    assert_int_equal(state_of(f, PC), GS_WORKER_AWAY);
    stop(f);
}

/* A class has hours of its own at a worker. */
static void test_class_hours(void **state) {
    (void)state;
    fixture *f = make();
    char err[100];
    assert_int_equal(
        gs_schedule_parse("21:00-22:00", &f->w[PC].class_hours[GS_CLASS_BACKGROUND], err, 100),
        GS_OK);
    f->w[LOCAL].models[0].model = 2;
    start(f, 2);
    assert_int_equal(submit(f, 1, GS_CLASS_BACKGROUND, 100, 20), GS_OK);
    assert_int_equal(submit(f, 2, GS_CLASS_CHAT, 100, 20), GS_OK);
    expect_placed(f, 2, PC);
    gs_place_tokens(f->p, 2, 1, 1, f->now_ns);
    end(f, 2, 1, GS_PLACE_DONE);
    expect_waits(f);
    later(f, 3600 * S);
    expect_placed(f, 1, PC);
    stop(f);
}

/* The night in which clocks go forward: 03:30 on the wall is half an hour after 02:00. */
static void test_hours_follow_the_wall(void **state) {
    (void)state;
    fixture *f = make();
    f->cfg.local = spring;
    set_hours(f, "03:30-05:00");
    start(f, 2);
    gs_place_view v;
    gs_place_get_view(f->p, PC, f->now_ns, &v);
    assert_int_equal(v.change_ns - f->now_ns, (6 * 3600 + 1800) * S);
    later(f, v.change_ns - f->now_ns);
    assert_false(next_but_probes(f));
    gs_place_get_view(f->p, PC, f->now_ns, &v);
    assert_int_equal(v.state, GS_WORKER_UP);
    assert_int_equal(v.change_ns - f->now_ns, 5400 * S);
    /* Somebody sets the clock back by two hours: it is closed at once. */
    gs_place_set_wall(f->p, f->wall_s - 7200, f->now_ns);
    assert_int_equal(state_of(f, PC), GS_WORKER_AWAY);
    stop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_retry_once_on_each_worker),
        cmocka_unit_test(test_no_retry_after_the_first_token),
        cmocka_unit_test(test_an_answer_is_continued_by_the_same_file),
        cmocka_unit_test(test_a_request_that_is_wrong_is_not_retried),
        cmocka_unit_test(test_a_hung_worker_costs_its_time_out_once),
        cmocka_unit_test(test_probes_that_fail),
        cmocka_unit_test(test_a_probe_from_before_a_failure),
        cmocka_unit_test(test_a_late_attempt_goes_elsewhere),
        cmocka_unit_test(test_failing_requests_open_the_breaker),
        cmocka_unit_test(test_who_can_never_be_served_is_told),
        cmocka_unit_test(test_an_open_breaker_is_waited_for_within_patience),
        cmocka_unit_test(test_when_to_come_back),
        cmocka_unit_test(test_what_is_paused_goes_nowhere),
        cmocka_unit_test(test_a_pause_is_no_stall),
        cmocka_unit_test(test_a_class_is_held),
        cmocka_unit_test(test_power_on_ahead_of_the_hours),
        cmocka_unit_test(test_nothing_waits_nothing_is_switched_on),
        cmocka_unit_test(test_drained_before_the_hours_end),
        cmocka_unit_test(test_class_hours),
        cmocka_unit_test(test_hours_follow_the_wall),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
