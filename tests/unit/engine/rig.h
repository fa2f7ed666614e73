/* An engine over the fake backend and what comes out of it, checked as it comes. Shared by the
 * tests of the engine. */
#ifndef TESTS_ENGINE_RIG_H
#define TESTS_ENGINE_RIG_H

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

#define MAX_TRACKS 64
#define MAX_OUT    2048
/* Only there so that a hanging test ends. */
#define PATIENCE_NS (120 * GS_NS_PER_S)

typedef struct track {
    gs_seq *q;
    int n_admitted, n_rejected, n_end;
    int32_t out[MAX_OUT];
    int32_t n_out, n_cached;
    gs_admission adm;
    gs_seq_end end;
} track;

typedef struct rig {
    gs_engine *e;
    gs_fake_config fc;
    gs_engine_config ec;
    int fail_open;
    atomic_int wakes;
    track t[MAX_TRACKS];
} rig;

static inline int open_fake(void *arg, gs_backend **out, char *err, size_t errlen) {
    rig *r = arg;
    if (r->fail_open)
        return gs_fail(err, errlen, r->fail_open, "no such model");
    return gs_fake_create(&r->fc, out);
}

static inline void count_wake(void *arg) {
    atomic_fetch_add(&((rig *)arg)->wakes, 1);
}

static inline rig *rig_new(void) {
    rig *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    r->fc = (gs_fake_config){.n_vocab = 1000,
                             .max_context = 4096,
                             .max_batch_tokens = 512,
                             .max_seqs = 64,
                             .block_tokens = 16,
                             .n_kv_blocks = 8192,
                             .first_token = 10,
                             .n_tokens = 900,
                             .eos_token = 2};
    r->ec = (gs_engine_config){.open = open_fake,
                               .open_arg = r,
                               .max_waiting = 128,
                               .prefill_chunk = 256,
                               .max_persons = 4,
                               .wake = count_wake,
                               .wake_arg = r,
                               .check = true};
    return r;
}

static inline void nap(int64_t ns) {
    struct timespec t = {ns / GS_NS_PER_S, ns % GS_NS_PER_S};
    nanosleep(&t, NULL);
}

static inline void rig_start(rig *r) {
    char err[256] = "";
    assert_int_equal(gs_engine_create(&r->ec, &r->e, err, sizeof(err)), 0);
    while (gs_engine_get_state(r->e) == GS_ENGINE_LOADING)
        nap(100000);
}

static inline void rig_stop(rig *r) {
    gs_engine_free(r->e);
    for (int i = 0; i < MAX_TRACKS; i++)
        gs_seq_free(r->t[i].q);
    free(r);
}

/* A prompt of n tokens that begins with n_shared common ones. */
static inline gs_seq *make(track *t, int32_t which, int32_t n, int32_t n_shared,
                           int32_t max_output) {
    int32_t prompt[4200];
    assert_true(n <= 4200);
    for (int32_t i = 0; i < n; i++)
        prompt[i] = i < n_shared ? 100 + i % 300 : 10 + (i * 7 + which * 131) % 900;
    if (t->q)
        gs_seq_free(t->q);
    memset(t, 0, sizeof(*t));
    t->q = gs_seq_create(prompt, n, max_output);
    assert_non_null(t->q);
    t->q->sampler.temperature = 0;
    t->q->owner = t;
    return t->q;
}

static inline void submit(rig *r, int i, int32_t n, int32_t n_shared, int32_t max_output) {
    gs_engine_submit(r->e, make(&r->t[i], i, n, n_shared, max_output));
}

static inline bool done(const track *t) {
    return t->n_end + t->n_rejected > 0;
}

/* Takes one event if there is one and checks that it may come now. */
static inline bool take(rig *r, gs_event *ev) {
    if (!gs_engine_poll(r->e, ev))
        return false;
    if (ev->kind == GS_EVENT_ANSWER)
        return true;
    track *t = ev->seq->owner;
    assert_ptr_equal(t->q, ev->seq);
    assert_false(done(t));
    switch (ev->kind) {
    case GS_EVENT_ADMITTED:
        assert_int_equal(t->n_admitted++, 0);
        t->adm = ev->u.admission;
        break;
    case GS_EVENT_REJECTED:
        assert_int_equal(t->n_admitted, 0);
        t->n_rejected++;
        t->adm = ev->u.admission;
        break;
    case GS_EVENT_TOKEN:
        assert_int_equal(t->n_admitted, 1);
        if (t->n_out == 0)
            t->n_cached = ev->u.token.n_cached;
        assert_true(t->n_out < MAX_OUT);
        t->out[t->n_out++] = ev->u.token.sample.token;
        break;
    case GS_EVENT_END:
        t->n_end++;
        t->end = ev->u.end;
        assert_ptr_equal(t->end.user, t->q);
        break;
    case GS_EVENT_ANSWER:
        break;
    }
    return true;
}

static inline gs_event next(rig *r) {
    gs_event ev;
    int64_t began = gs_now_ns();
    while (!take(r, &ev)) {
        if (gs_now_ns() - began > PATIENCE_NS)
            fail_msg("no event came");
        nap(20000);
    }
    return ev;
}

static inline void finish(rig *r, int n) {
    for (int i = 0; i < n; i++) {
        while (!done(&r->t[i]))
            next(r);
    }
}

/* Waits for the published numbers to say so. */
static inline void no_blocks_are_held(rig *r) {
    gs_engine_stats s;
    int64_t began = gs_now_ns();
    do {
        gs_engine_get_stats(r->e, &s);
        if (gs_now_ns() - began > PATIENCE_NS)
            fail_msg("%u blocks held, %d running, %d waiting", s.kv_blocks_held, s.n_running,
                     s.n_waiting);
    } while (s.kv_blocks_held > 0 || s.n_running > 0 || s.n_waiting > 0);
}

static inline void same_text(const track *a, const track *b) {
    assert_int_equal(a->n_out, b->n_out);
    assert_memory_equal(a->out, b->out, (size_t)a->n_out * sizeof(a->out[0]));
}

#endif
