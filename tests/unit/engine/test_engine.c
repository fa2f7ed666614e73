/* The engine thread over the fake backend: every submitted sequence ends exactly once, whatever
 * happens, and its text depends on nothing but its prompt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include <math.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "rig.h"
#include "sched/policy.h"

/* ---- Life ------------------------------------------------------------------------------------ */

static void a_sequence_is_admitted_gives_tokens_and_ends_once(void **state) {
    (void)state;
    rig *r = rig_new();
    rig_start(r);
    submit(r, 0, 5, 0, 10);
    finish(r, 1);
    const track *t = &r->t[0];
    assert_int_equal(t->n_admitted, 1);
    assert_int_equal(t->n_out, 10);
    assert_int_equal(t->end.reason, GS_END_LENGTH);
    assert_int_equal(t->end.n_output, 10);
    assert_memory_equal(t->q->desc.tokens + 5, t->out, 10 * sizeof(int32_t));
    assert_true(atomic_load(&r->wakes) >= 2);
    no_blocks_are_held(r);
    gs_event ev;
    assert_false(gs_engine_poll(r->e, &ev));
    rig_stop(r);
}

static void an_end_token_stops_and_ignore_eos_does_not(void **state) {
    (void)state;
    static const int32_t eog[] = {2};
    rig *r = rig_new();
    r->fc.eos_after = 4;
    rig_start(r);
    for (int i = 0; i < 2; i++) {
        gs_seq *q = make(&r->t[i], i, 5, 0, 10);
        q->sampler.eog = eog;
        q->sampler.n_eog = 1;
        q->sampler.ignore_eos = i == 1;
        gs_engine_submit(r->e, q);
    }
    finish(r, 2);
    assert_int_equal(r->t[0].end.reason, GS_END_STOP);
    assert_int_equal(r->t[0].n_out, 4);
    assert_int_equal(r->t[0].out[3], 2);
    assert_int_equal(r->t[1].end.reason, GS_END_LENGTH);
    assert_int_equal(r->t[1].n_out, 10);
    rig_stop(r);
}

static void what_can_not_run_is_rejected_with_a_reason(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fc.max_context = 64;
    r->fc.max_seqs = 1;
    r->fc.step_ns = GS_NS_PER_MS;
    r->ec.max_waiting = 2;
    rig_start(r);
    submit(r, 0, 64, 0, 1); /* no room for one token */
    submit(r, 1, 100, 0, 1);
    finish(r, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r->t[i].n_rejected, 1);
        assert_int_equal(r->t[i].adm.code, GS_ERR_CONTEXT);
        assert_string_equal(r->t[i].adm.field, "prompt");
    }
    for (int i = 0; i < 8; i++)
        submit(r, i, 5, 0, 40);
    finish(r, 8);
    int n_overloaded = 0;
    for (int i = 0; i < 8; i++) {
        if (r->t[i].n_rejected) {
            assert_int_equal(r->t[i].adm.code, GS_ERR_OVERLOADED);
            assert_true(r->t[i].adm.retry_after_ns > 0);
            n_overloaded++;
        }
    }
    assert_true(n_overloaded >= 4 && n_overloaded < 8);
    /* Output beyond the context is cut, not refused. */
    submit(r, 0, 60, 0, 1000);
    finish(r, 1);
    assert_int_equal(r->t[0].n_out, 4);
    assert_int_equal(r->t[0].end.reason, GS_END_LENGTH);
    rig_stop(r);
}

static void an_engine_that_failed_to_open_rejects_everything(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fail_open = GS_ERR_FORMAT;
    rig_start(r);
    assert_int_equal(gs_engine_get_state(r->e), GS_ENGINE_FAILED);
    assert_string_equal(gs_engine_error(r->e), "no such model");
    assert_true(atomic_load(&r->wakes) >= 1);
    for (int round = 0; round < 200; round++) {
        submit(r, 0, 5, 0, 5);
        submit(r, 1, 5, 0, 5);
        gs_engine_cancel(r->e, r->t[1].q); /* may come before or after the refusal */
        finish(r, 2);
        assert_int_equal(r->t[0].n_rejected, 1);
        assert_int_equal(r->t[0].adm.code, GS_ERR_UNAVAILABLE);
    }
    rig_stop(r);
}

static void a_configuration_that_fits_nothing_fails_to_open(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fc.n_tokens = 0;
    rig_start(r);
    assert_int_equal(gs_engine_get_state(r->e), GS_ENGINE_FAILED);
    rig_stop(r);
    r = rig_new();
    r->ec.prefill_chunk = 0; /* the scheduler refuses; the open backend must go again */
    rig_start(r);
    assert_int_equal(gs_engine_get_state(r->e), GS_ENGINE_FAILED);
    assert_non_null(strstr(gs_engine_error(r->e), "scheduler"));
    rig_stop(r);
}

/* ---- Cancel ---------------------------------------------------------------------------------- */

static void cancel_at_any_moment_ends_exactly_once(void **state) {
    (void)state;
    rig *r = rig_new();
    gs_rng rng;
    gs_rng_seed(&rng, 1);
    rig_start(r);
    int n_cancelled = 0, n_complete = 0;
    for (int round = 0; round < 1500; round++) {
        int n = (int)(1 + gs_rng_below(&rng, 4));
        for (int i = 0; i < n; i++)
            submit(r, i, (int32_t)(1 + gs_rng_below(&rng, 40)), 16,
                   (int32_t)(1 + gs_rng_below(&rng, 6)));
        for (int i = 0; i < n; i++) {
            uint64_t how = gs_rng_below(&rng, 4);
            gs_event ev;
            for (uint64_t k = gs_rng_below(&rng, 12); how > 0 && k > 0; k--)
                (void)take(r, &ev);
            if (how == 2) {
                for (volatile uint64_t spin = gs_rng_below(&rng, 20000); spin > 0; spin--)
                    ;
            }
            if (how == 3)
                continue;
            if (!done(&r->t[i])) { /* the owner knows that it is over once it has polled the end */
                gs_engine_cancel(r->e, r->t[i].q);
                gs_engine_cancel(r->e, r->t[i].q);
            }
        }
        finish(r, n);
        for (int i = 0; i < n; i++) {
            assert_int_equal(r->t[i].n_end, 1);
            n_cancelled += r->t[i].end.reason == GS_END_CANCELLED;
            n_complete += r->t[i].end.reason == GS_END_LENGTH;
            /* Freed at once: a message still in the queue would be a use after free. */
            gs_seq_free(r->t[i].q);
            r->t[i].q = NULL;
        }
    }
    assert_true(n_cancelled > 100);
    assert_true(n_complete > 100);
    no_blocks_are_held(r);
    rig_stop(r);
}

static void a_cancelled_sequence_waiting_or_running_frees_its_blocks(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fc.max_seqs = 1;
    r->fc.step_ns = GS_NS_PER_MS;
    rig_start(r);
    submit(r, 0, 100, 0, 2000);
    submit(r, 1, 100, 0, 2000);
    while (r->t[0].n_out < 3)
        next(r);
    gs_engine_cancel(r->e, r->t[1].q); /* waits */
    gs_engine_cancel(r->e, r->t[0].q); /* runs */
    finish(r, 2);
    assert_int_equal(r->t[0].end.reason, GS_END_CANCELLED);
    assert_int_equal(r->t[1].end.reason, GS_END_CANCELLED);
    assert_int_equal(r->t[1].n_out, 0);
    no_blocks_are_held(r);
    rig_stop(r);
}

/* ---- Faults ---------------------------------------------------------------------------------- */

static void a_failing_step_ends_its_sequences_and_no_others(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fc.max_seqs = 2;
    r->fc.fail_step = 5;
    rig_start(r);
    for (int i = 0; i < 3; i++)
        submit(r, i, 5, 0, 20);
    finish(r, 3);
    int n_failed = 0;
    for (int i = 0; i < 3; i++) {
        if (r->t[i].end.reason == GS_END_ERROR) {
            assert_int_equal(r->t[i].end.err, GS_ERR_BACKEND);
            n_failed++;
        } else {
            assert_int_equal(r->t[i].n_out, 20);
        }
    }
    assert_in_range(n_failed, 1, 2);
    assert_int_equal(r->t[2].n_out, 20); /* it was waiting for a slot */
    no_blocks_are_held(r);
    /* Nothing of the failed step may be found in the prefix cache: the text is that of a cold run.
     */
    rig *cold = rig_new();
    rig_start(cold);
    submit(r, 0, 5, 0, 20);
    submit(cold, 0, 5, 0, 20);
    finish(r, 1);
    finish(cold, 1);
    same_text(&r->t[0], &cold->t[0]);
    rig_stop(cold);
    rig_stop(r);
}

static void a_failing_item_ends_alone(void **state) {
    (void)state;
    rig *good = rig_new(), *r = rig_new();
    r->fc.fail_item_step = 6;
    r->fc.step_ns = good->fc.step_ns = GS_NS_PER_MS; /* all four join before step 6 */
    rig_start(good);
    rig_start(r);
    for (int i = 0; i < 4; i++) {
        submit(good, i, 5, 0, 20);
        submit(r, i, 5, 0, 20);
    }
    finish(good, 4);
    finish(r, 4);
    int n_failed = 0;
    for (int i = 0; i < 4; i++) {
        if (r->t[i].end.reason == GS_END_ERROR) {
            n_failed++;
            assert_true(r->t[i].n_out < 20);
            assert_memory_equal(r->t[i].out, good->t[i].out, (size_t)r->t[i].n_out * 4);
        } else {
            same_text(&r->t[i], &good->t[i]);
        }
    }
    assert_int_equal(n_failed, 1);
    no_blocks_are_held(r);
    rig_stop(good);
    rig_stop(r);
}

static void a_hanging_backend_is_seen_and_let_go(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fc.hang_step = 3;
    rig_start(r);
    submit(r, 0, 5, 0, 20);
    while (r->t[0].n_out < 2)
        next(r);
    gs_engine_stats s;
    int64_t age_ns = 0;
    while (age_ns < 20 * GS_NS_PER_MS) { /* the step stays open, its age grows */
        gs_engine_get_stats(r->e, &s);
        age_ns = s.step_began_ns ? gs_now_ns() - s.step_began_ns : 0;
        nap(GS_NS_PER_MS);
    }
    submit(r, 1, 5, 0, 5);
    submit(r, 2, 5, 0, 5);
    gs_engine_cancel(r->e, r->t[2].q);
    nap(5 * GS_NS_PER_MS);
    gs_event ev;
    assert_false(take(r, &ev));
    gs_fake_release(gs_engine_backend(r->e, 0));
    finish(r, 3);
    assert_int_equal(r->t[0].end.reason, GS_END_ERROR);
    assert_int_equal(r->t[0].n_out, 2);
    assert_int_equal(r->t[1].end.reason, GS_END_LENGTH);
    assert_int_equal(r->t[2].n_out, 0);
    rig_stop(r);
}

/* Steps 3 and 6 hang and are given up: whoever was in them fails, whoever waits or runs beside them
 * goes on with the right tokens. */
static void a_hanging_step_is_given_up(void **state) {
    (void)state;
    rig *good = rig_new(), *r = rig_new();
    r->fc.hang_step = 3;
    r->fc.hang_every = 3;
    r->fc.max_seqs = good->fc.max_seqs = 1; /* the others wait */
    rig_start(good);
    rig_start(r);
    gs_engine_stats s;
    assert_int_equal(gs_engine_revive(r->e), GS_ERR_EXISTS); /* nothing hangs: nothing happens */
    for (int i = 0; i < 4; i++) {
        submit(good, i, 5, 0, 2);
        submit(r, i, 5, 0, i % 2 ? 2 : 20);
    }
    finish(good, 4);
    int n_failed = 0;
    for (int i = 0; i < 4; i += 2) {
        while (r->t[i].n_out < (i == 0 ? 2 : 0))
            next(r);
        int rc;
        uint64_t progress;
        do { /* a step may still be on its way there */
            progress = gs_engine_progress(r->e);
            nap(5 * GS_NS_PER_MS);
            gs_engine_get_stats(r->e, &s);
            rc = s.step_began_ns && progress == gs_engine_progress(r->e) ? gs_engine_revive(r->e)
                                                                         : GS_ERR_EXISTS;
        } while (rc == GS_ERR_EXISTS);
        assert_int_equal(rc, GS_OK);
        while (r->t[i].n_end == 0)
            next(r);
        assert_int_equal(r->t[i].end.reason, GS_END_ERROR);
        assert_int_equal(r->t[i].end.err, GS_ERR_STALLED);
        n_failed++;
    }
    finish(r, 4);
    assert_int_equal(n_failed, 2);
    for (int i = 1; i < 4; i += 2) {
        assert_int_equal(r->t[i].end.reason, GS_END_LENGTH);
        assert_int_equal(r->t[i].n_out, good->t[i].n_out);
        assert_memory_equal(r->t[i].out, good->t[i].out, 2 * sizeof(r->t[i].out[0]));
    }
    no_blocks_are_held(r);
    rig_stop(good);
    rig_stop(r);
}

static uint64_t steps_at_rest(rig *r) {
    gs_engine_stats s;
    uint64_t last = UINT64_MAX;
    for (;;) {
        gs_engine_get_stats(r->e, &s);
        if (s.steps == last)
            return last;
        last = s.steps;
        nap(60 * GS_NS_PER_MS);
    }
}

static void a_slow_reader_stops_the_engine_and_loses_nothing(void **state) {
    (void)state;
    rig *r = rig_new();
    rig_start(r);
    for (int i = 0; i < 64; i++)
        submit(r, i, 4, 0, 300); /* 19,200 tokens; the outbox holds 8,192 events */
    assert_true(steps_at_rest(r) < 300);
    finish(r, 64);
    for (int i = 0; i < 64; i++)
        assert_int_equal(r->t[i].n_out, 300);
    no_blocks_are_held(r);
    rig_stop(r);
}

static void freeing_with_a_full_outbox_does_not_wait_for_a_reader(void **state) {
    (void)state;
    rig *r = rig_new();
    rig_start(r);
    for (int i = 0; i < 64; i++)
        submit(r, i, 4, 0, 300);
    assert_true(steps_at_rest(r) < 300);
    rig_stop(r);
}

/* ---- Text ------------------------------------------------------------------------------------ */

static void preempted_sequences_give_the_same_text(void **state) {
    (void)state;
    rig *roomy = rig_new(), *r = rig_new();
    r->fc.n_kv_blocks = 24;         /* 384 tokens; six sequences want 6 * 140 */
    r->ec.policy = &gs_policy_fcfs; /* starts more than fit; the default one does not */
    rig_start(roomy);
    rig_start(r);
    for (int i = 0; i < 6; i++) {
        submit(roomy, i, 20, 0, 120);
        submit(r, i, 20, 0, 120);
    }
    finish(roomy, 6);
    finish(r, 6);
    gs_engine_stats s;
    gs_engine_get_stats(r->e, &s);
    assert_true(s.preemptions > 0);
    assert_true(s.recomputed_tokens > 0);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(r->t[i].n_out, 120);
        same_text(&r->t[i], &roomy->t[i]);
    }
    no_blocks_are_held(r);
    rig_stop(roomy);
    rig_stop(r);
}

static void a_prefix_hit_gives_the_text_of_a_cold_run(void **state) {
    (void)state;
    rig *cold = rig_new(), *r = rig_new();
    cold->ec.no_prefix_cache = true;
    rig_start(cold);
    rig_start(r);
    for (int round = 0; round < 12; round++) {
        /* Common beginnings of all lengths, also ones that end inside a block. */
        int32_t n_shared = 5 + 9 * round, n = n_shared + 7;
        for (int i = 0; i < 3; i++) {
            submit(cold, i, n, n_shared, 30);
            submit(r, i, n, n_shared, 30);
            finish(cold, i + 1);
            finish(r, i + 1);
            same_text(&r->t[i], &cold->t[i]);
            assert_int_equal(cold->t[i].n_cached, 0);
        }
        if (n_shared >= 32)
            assert_true(r->t[2].n_cached >= 16);
    }
    rig_stop(cold);
    rig_stop(r);
}

static void scopes_do_not_share_a_prefix(void **state) {
    (void)state;
    rig *r = rig_new();
    rig_start(r);
    for (int i = 0; i < 3; i++) {
        gs_seq *q = make(&r->t[i], 0, 100, 100, 2);
        q->desc.cache_scope = i == 1 ? 7 : 8;
        gs_engine_submit(r->e, q);
        finish(r, i + 1);
    }
    assert_int_equal(r->t[1].n_cached, 0);
    assert_true(r->t[2].n_cached >= 96);
    rig_stop(r);
}

static void a_new_sequence_joins_the_next_step_and_leaves_at_once(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fc.step_ns = GS_NS_PER_MS;
    rig_start(r);
    submit(r, 0, 4, 0, 2000);
    while (r->t[0].n_out < 5)
        next(r);
    for (int round = 0; round < 20; round++) {
        submit(r, 1, 4, 0, 3);
        int others_before_first = 0, others_after_last = 0;
        while (!done(&r->t[1])) {
            gs_event ev = next(r);
            if (ev.kind != GS_EVENT_TOKEN || ev.seq != r->t[0].q)
                continue;
            others_before_first += r->t[1].n_admitted && r->t[1].n_out == 0;
            others_after_last += r->t[1].n_out == 3;
        }
        /* At most the token of the very step in which it ran itself. */
        assert_true(others_before_first <= 1);
        assert_true(others_after_last <= 1);
    }
    gs_engine_cancel(r->e, r->t[0].q);
    finish(r, 1);
    rig_stop(r);
}

/* ---- Safepoints ------------------------------------------------------------------------------ */

static void submit_as(rig *r, int i, gs_class cls, int32_t n, int32_t max_output) {
    gs_seq *q = make(&r->t[i], i, n, 0, max_output);
    q->desc.cls = cls;
    q->desc.class_fixed = true;
    gs_engine_submit(r->e, q);
}

/* Whatever comes between its layers, background's text is that of an undisturbed run, and who
 * speaks gets an answer before the step that was running is through. */
static void a_background_step_gives_way_between_layers(void **state) {
    (void)state;
    rig *calm = rig_new(), *r = rig_new();
    r->fc.step_ns = 20 * GS_NS_PER_MS;
    r->fc.n_layers = 10;
    rig_start(calm);
    rig_start(r);
    enum { BACKGROUND = 6, ALL = 18 };
    for (int i = 0; i < BACKGROUND; i++) {
        submit_as(r, i, GS_CLASS_BACKGROUND, 70 + 30 * i, 60);
        submit_as(calm, i, GS_CLASS_BACKGROUND, 70 + 30 * i, 60);
    }
    gs_engine_stats s = {0};
    int n_at_once = 0, n_suspended = 0;
    for (int i = BACKGROUND; i < ALL; i++) {
        do /* in the middle of a step */
            gs_engine_get_stats(r->e, &s);
        while (s.step_began_ns == 0 || gs_now_ns() - s.step_began_ns < 3 * GS_NS_PER_MS);
        submit_as(r, i, i % 2 ? GS_CLASS_VOICE : GS_CLASS_CHAT, 20, 2);
        int n_between = 0;
        while (!done(&r->t[i])) {
            gs_event ev = next(r);
            n_between += ev.kind == GS_EVENT_TOKEN && ev.seq != r->t[i].q &&
                         r->t[i].n_admitted == 1 && r->t[i].n_out == 0;
        }
        assert_true(n_between <= BACKGROUND); /* it came too late for the last safepoint */
        n_at_once += n_between == 0;
        submit_as(calm, i, GS_CLASS_CHAT, 20, 2);
    }
    finish(r, ALL);
    finish(calm, ALL);
    gs_engine_get_stats(r->e, &s);
    for (int i = 0; i < ALL; i++) {
        same_text(&r->t[i], &calm->t[i]);
        n_suspended += r->t[i].end.explain.n_suspended;
    }
    assert_true(n_at_once > 0);
    assert_true(s.suspensions > 0 && n_suspended > 0);
    no_blocks_are_held(r);
    rig_stop(calm);
    rig_stop(r);
}

/* Steps' parts, added up, are the device's time, the tokens and the persons' accounts; a step that
 * gave way has a record for each stretch. */
static void records_of_steps_add_up(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fc.step_ns = 4 * GS_NS_PER_MS;
    r->fc.n_layers = 10;
    r->ec.max_persons = 4;
    rig_start(r);
    enum { BACKGROUND = 3, ALL = 9 };
    for (int i = 0; i < ALL; i++) {
        gs_engine_stats now = {0};
        while (i >= BACKGROUND && now.step_began_ns == 0)
            gs_engine_get_stats(r->e, &now);
        gs_seq *q = make(&r->t[i], i, 40 + 10 * i, 0, 5);
        q->desc.cls = i < BACKGROUND ? GS_CLASS_BACKGROUND : GS_CLASS_CHAT;
        q->desc.class_fixed = true;
        q->desc.person = 1 + (uint32_t)i % 3;
        gs_engine_submit(r->e, q);
    }
    finish(r, ALL);
    no_blocks_are_held(r);
    static gs_step_record steps[1024];
    gs_engine_stats s;
    uint64_t at = 0, lost = 0, n_whole = 0, tokens[GS_CLASS_COUNT][GS_PHASE_COUNT] = {0};
    int64_t ns[GS_CLASS_COUNT][GS_PHASE_COUNT] = {0}, all_ns = 0, persons_ns = 0;
    const uint32_t n = gs_steps_read(gs_engine_steps(r->e), &at, steps, 1024, &lost);
    gs_engine_get_stats(r->e, &s);
    for (uint32_t i = 0; i < n; i++) {
        all_ns += steps[i].ns;
        n_whole += !steps[i].gave_way;
        for (int32_t k = 0; k < steps[i].n_parts; k++) {
            const gs_step_part *p = &steps[i].parts[k];
            ns[p->cls][p->phase] += p->ns;
            tokens[p->cls][p->phase] += steps[i].gave_way ? 0 : (uint64_t)p->n_tokens;
        }
    }
    assert_int_equal(lost, 0);
    assert_int_equal(all_ns, s.busy_ns);
    assert_int_equal(n - n_whole, s.suspensions);
    assert_memory_equal(ns, s.device_ns, sizeof(ns));
    assert_memory_equal(tokens, s.tokens, sizeof(tokens));
    assert_int_equal(tokens[GS_CLASS_CHAT][GS_PHASE_DECODE], (ALL - BACKGROUND) * 4);
    uint64_t n_steps = 0;
    for (int i = 0; i < GS_STEP_TOKENS_N; i++)
        n_steps += s.step_tokens[i];
    assert_int_equal(n_steps, n_whole);
    assert_int_equal(s.step_tokens_sum, s.prefill_tokens + s.decode_tokens);
    for (int i = 0; i < ALL; i++)
        persons_ns += r->t[i].end.explain.charged_ns;
    assert_in_range(s.person_ns[1] + s.person_ns[2] + s.person_ns[3], persons_ns - 1000,
                    persons_ns + 1000); /* each item's part is cut to whole nanoseconds */
    assert_true(s.person_ns[1] > 0 && s.person_ns[0] == 0);
    rig_stop(r);
}

static gs_query *ask(rig *r, gs_query *q) {
    gs_event ev;
    gs_engine_ask(r->e, q);
    do
        ev = next(r);
    while (ev.kind != GS_EVENT_ANSWER);
    return ev.u.answer;
}

/* Whoever asks for a sequence hears of it one way: it is known, or its end has come before. */
static void an_end_is_told_before_a_question_about_it_is_answered(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fc.hang_step = 1;
    rig_start(r);
    gs_engine_stats s;
    submit(r, 0, 5, 0, 20);
    do
        gs_engine_get_stats(r->e, &s);
    while (s.step_began_ns == 0); /* the inbox waits until the step is let go */
    submit(r, 1, 5, 0, 5);
    gs_engine_cancel(r->e, r->t[1].q);
    gs_explain record;
    gs_seq_id id = 2; /* the second one */
    gs_query q = {
        .kind = GS_QUERY_EXPLAIN, .records = &record, .max_records = 1, .ids = &id, .n_ids = 1};
    gs_engine_ask(r->e, &q);
    gs_fake_release(gs_engine_backend(r->e, 0));
    gs_event ev;
    do
        ev = next(r);
    while (ev.kind != GS_EVENT_ANSWER);
    assert_int_equal(r->t[1].n_admitted, 1);
    assert_int_equal(q.n_records + r->t[1].n_end, 1);
    finish(r, 2);
    assert_int_equal(r->t[1].end.id, id);
    rig_stop(r);
}

/* The picture of the pool: every block has one owner, and the owners' counts are the ledger's. */
static void a_view_of_the_pool_matches_its_counts(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fc.step_ns = 2 * GS_NS_PER_MS;
    r->ec.max_persons = 4;
    rig_start(r);
    submit_as(r, 0, GS_CLASS_CHAT, 100, 1);
    finish(r, 1);
    for (int i = 1; i < 4; i++)
        submit_as(r, i, GS_CLASS_CHAT, 50 * i, 400);
    while (r->t[1].n_out == 0 || r->t[2].n_out == 0 || r->t[3].n_out == 0)
        next(r);
    static int32_t map[8192];
    gs_explain records[8];
    gs_person_view persons[4];
    gs_engine_view v = {.pools = {{.map = map, .n_blocks = r->fc.n_kv_blocks},
                                  {.map = map, .n_blocks = r->fc.n_kv_blocks}},
                        .persons = persons,
                        .n_persons = 4};
    gs_query q = {.kind = GS_QUERY_STATE, .records = records, .max_records = 8, .view = &v};
    assert_ptr_equal(ask(r, &q), &q);
    assert_int_equal(q.code, GS_OK);
    assert_int_equal(q.n_records, 3);
    assert_true(v.pools[0].known);
    assert_false(v.pools[1].known); /* there is no such lane */
    uint32_t n_free = 0, n_cached = 0, n_held = 0;
    for (uint32_t b = 0; b < v.pools[0].n_blocks; b++) {
        bool known = false;
        for (int32_t i = 0; i < q.n_records; i++)
            known |= map[b] >= 0 && records[i].slot == map[b];
        assert_true(known || map[b] == GS_KV_MAP_FREE || map[b] == GS_KV_MAP_CACHED);
        n_free += map[b] == GS_KV_MAP_FREE;
        n_cached += map[b] == GS_KV_MAP_CACHED;
        n_held += map[b] >= 0;
    }
    assert_int_equal(n_free, v.pools[0].kv.n_free);
    assert_int_equal(n_cached, v.pools[0].kv.n_cached);
    assert_int_equal(n_held, v.pools[0].kv.n_held);
    assert_true(n_cached > 0 && n_held > 0);
    assert_int_equal(persons[0].stats.n_running, 3);
    assert_true(persons[0].config.weight > 0.0);
    for (int i = 1; i < 4; i++)
        gs_engine_cancel(r->e, r->t[i].q);
    finish(r, 4);
    rig_stop(r);
}

/* Clients that leave while their step is suspended get their end, and their blocks are free. */
static void a_suspended_step_survives_its_clients(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fc.step_ns = 20 * GS_NS_PER_MS;
    r->fc.n_layers = 10;
    rig_start(r);
    for (int round = 0; round < 8; round++) {
        gs_engine_stats s;
        submit_as(r, 0, GS_CLASS_BACKGROUND, 300, 40);
        submit_as(r, 1, GS_CLASS_BACKGROUND, 200, 40);
        while (r->t[0].n_out == 0 || r->t[1].n_out == 0)
            next(r);
        do
            gs_engine_get_stats(r->e, &s);
        while (s.step_began_ns == 0 || gs_now_ns() - s.step_began_ns < 3 * GS_NS_PER_MS);
        submit_as(r, 2, GS_CLASS_VOICE, 20, 4);
        while (r->t[2].n_out < 1 + round % 3)
            next(r);
        gs_engine_cancel(r->e, r->t[0].q);
        if (round % 2)
            gs_engine_cancel(r->e, r->t[1].q);
        finish(r, 3);
        assert_int_equal(r->t[0].end.reason, GS_END_CANCELLED);
        assert_int_equal(r->t[1].end.reason, round % 2 ? GS_END_CANCELLED : GS_END_LENGTH);
        assert_int_equal(r->t[2].n_out, 4);
        no_blocks_are_held(r);
    }
    rig_stop(r);
}

static void sixty_four_mixed_lengths_give_the_text_of_each_alone(void **state) {
    (void)state;
    rig *alone = rig_new(), *r = rig_new();
    alone->fc.max_seqs = 1;
    alone->ec.check = r->ec.check = true;
    rig_start(alone);
    rig_start(r);
    gs_rng rng;
    gs_rng_seed(&rng, 9);
    for (int i = 0; i < 64; i++) {
        int32_t n = (int32_t)(1 + gs_rng_below(&rng, i % 8 == 0 ? 1500 : 100));
        int32_t max_output = i == 63 ? 2000 : (int32_t)(1 + gs_rng_below(&rng, 120));
        submit(r, i, n, i % 2 ? n / 2 : 0, max_output);
        submit(alone, i, n, i % 2 ? n / 2 : 0, max_output);
    }
    finish(r, 64);
    finish(alone, 64);
    for (int i = 0; i < 64; i++) {
        assert_int_equal(r->t[i].n_out, r->t[i].q->desc.max_output);
        same_text(&r->t[i], &alone->t[i]);
    }
    no_blocks_are_held(r);
    rig_stop(alone);
    rig_stop(r);
}

static void the_fake_lists_as_many_probabilities_as_asked(void **state) {
    (void)state;
    static const int32_t eog[] = {2};
    rig *r = rig_new();
    r->fc.eos_after = 2; /* the end token is below first_token */
    rig_start(r);
    gs_seq *q = make(&r->t[0], 0, 4, 0, 5);
    q->sampler.n_logprobs = GS_MAX_TOP_LOGPROBS;
    q->sampler.eog = eog;
    q->sampler.n_eog = 1;
    gs_engine_submit(r->e, q);
    int n_tokens = 0;
    while (!done(&r->t[0])) {
        gs_event ev = next(r);
        if (ev.kind != GS_EVENT_TOKEN)
            continue;
        n_tokens++;
        const gs_sample *s = &ev.u.token.sample;
        assert_int_equal(s->n_top, GS_MAX_TOP_LOGPROBS);
        assert_int_equal(s->top[0].id, s->token);
        for (int i = 1; i < s->n_top; i++) {
            assert_in_range(s->top[i].id, 10, 909);
            assert_true(s->top[i].logprob < s->top[i - 1].logprob);
        }
    }
    assert_int_equal(n_tokens, 2);
    rig_stop(r);
}

/* ---- Embeddings ------------------------------------------------------------------------------ */

#define N_EMBD 24

static void submit_embedding(rig *r, int i, int32_t n) {
    int32_t prompt[2048];
    track *t = &r->t[i];
    for (int32_t k = 0; k < n; k++)
        prompt[k] = 10 + (k * 7 + n * 131) % 900;
    gs_seq_free(t->q);
    memset(t, 0, sizeof(*t));
    t->q = gs_seq_create_embedding(prompt, n, N_EMBD);
    assert_non_null(t->q);
    t->q->owner = t;
    gs_engine_submit(r->e, t->q);
}

static double length_of(const float *v) {
    double sum = 0;
    for (int i = 0; i < N_EMBD; i++)
        sum += (double)v[i] * (double)v[i];
    return sqrt(sum);
}

static void a_vector_is_the_same_alone_in_company_cut_and_after_preemption(void **state) {
    (void)state;
    enum { N = 12, PASSES = 3 };
    float alone[N][N_EMBD];
    for (int pass = 0; pass < PASSES; pass++) {
        rig *r = rig_new();
        r->fc.n_embd = N_EMBD;
        if (pass == 1) {
            r->fc.max_batch_tokens = 64; /* cut into many chunks, beside decoding chats */
            r->ec.prefill_chunk = 32;
        }
        if (pass == 2)
            r->fc.n_kv_blocks = 48; /* of 16 tokens: the chats push them out */
        rig_start(r);
        for (int i = 0; i < N; i++) {
            submit_embedding(r, i, 1 + i * 53);
            if (pass > 0)
                submit(r, N + i, 20, 0, 40);
            else
                finish(r, i + 1);
        }
        finish(r, pass > 0 ? 2 * N : N);
        for (int i = 0; i < N; i++) {
            const track *t = &r->t[i];
            assert_int_equal(t->end.reason, GS_END_DONE);
            assert_int_equal(t->n_out, 0);
            assert_true(fabs(length_of(t->q->embedding) - 1.0) < 1e-6);
            if (pass == 0)
                memcpy(alone[i], t->q->embedding, sizeof(alone[i]));
            else
                assert_memory_equal(alone[i], t->q->embedding, sizeof(alone[i]));
        }
        no_blocks_are_held(r);
        rig_stop(r);
    }
    for (int i = 1; i < N; i++)
        assert_memory_not_equal(alone[0], alone[i], sizeof(alone[0]));
}

static void texts_that_begin_alike_compute_every_token(void **state) {
    (void)state;
    rig *r = rig_new();
    r->fc.n_embd = N_EMBD;
    rig_start(r);
    gs_engine_stats s = {0};
    for (int i = 0; i < 3; i++) {
        submit_embedding(r, 0, 200);
        finish(r, 1);
    }
    /* The numbers are published after the last end was. */
    for (int64_t began = gs_now_ns(); s.prefill_tokens < 600; gs_engine_get_stats(r->e, &s))
        assert_true(gs_now_ns() - began < PATIENCE_NS);
    assert_int_equal(s.prefill_tokens, 600);
    assert_int_equal(s.prefix_lookup_tokens, 0);
    assert_int_equal(s.kv_blocks_cached, 0);
    rig_stop(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_is_admitted_gives_tokens_and_ends_once),
        cmocka_unit_test(an_end_token_stops_and_ignore_eos_does_not),
        cmocka_unit_test(what_can_not_run_is_rejected_with_a_reason),
        cmocka_unit_test(an_engine_that_failed_to_open_rejects_everything),
        cmocka_unit_test(a_configuration_that_fits_nothing_fails_to_open),
        cmocka_unit_test(cancel_at_any_moment_ends_exactly_once),
        cmocka_unit_test(a_cancelled_sequence_waiting_or_running_frees_its_blocks),
        cmocka_unit_test(a_failing_step_ends_its_sequences_and_no_others),
        cmocka_unit_test(a_failing_item_ends_alone),
        cmocka_unit_test(a_hanging_backend_is_seen_and_let_go),
        cmocka_unit_test(a_hanging_step_is_given_up),
        cmocka_unit_test(a_slow_reader_stops_the_engine_and_loses_nothing),
        cmocka_unit_test(freeing_with_a_full_outbox_does_not_wait_for_a_reader),
        cmocka_unit_test(preempted_sequences_give_the_same_text),
        cmocka_unit_test(a_prefix_hit_gives_the_text_of_a_cold_run),
        cmocka_unit_test(scopes_do_not_share_a_prefix),
        cmocka_unit_test(a_new_sequence_joins_the_next_step_and_leaves_at_once),
        cmocka_unit_test(a_background_step_gives_way_between_layers),
        cmocka_unit_test(records_of_steps_add_up),
        cmocka_unit_test(an_end_is_told_before_a_question_about_it_is_answered),
        cmocka_unit_test(a_view_of_the_pool_matches_its_counts),
        cmocka_unit_test(a_suspended_step_survives_its_clients),
        cmocka_unit_test(sixty_four_mixed_lengths_give_the_text_of_each_alone),
        cmocka_unit_test(the_fake_lists_as_many_probabilities_as_asked),
        cmocka_unit_test(a_vector_is_the_same_alone_in_company_cut_and_after_preemption),
        cmocka_unit_test(texts_that_begin_alike_compute_every_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
