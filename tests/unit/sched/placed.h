/* Placement with up to three workers, their time and clock, and what is done next. Shared by its
 * tests. */
#ifndef TESTS_PLACED_H
#define TESTS_PLACED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "sched/place.h"

#define MS     1000000LL
#define S      1000000000LL
#define BIT(c) (1u << GS_CLASS_##c)
/* Monday, 20:00 where clocks show UTC. */
#define WALL (1767643200LL)

enum { LOCAL, PC, NUC }; /* indexes, in the order in which they are added */

typedef struct fixture {
    gs_place_config cfg;
    gs_place_worker w[3];
    gs_place *p;
    int64_t now_ns, wall_s;
    gs_place_act act;
    gs_place_over over;
    gs_place_desc desc; /* fields that submit takes over */
} fixture;

static inline void utc(int64_t wall_s, int *weekday, int *minute) {
    *weekday = (int)((wall_s / 86400 + 4) % 7);
    *minute = (int)(wall_s / 60 % 1440);
}

/* A day on which clocks go from 02:00 to 03:00: what a wall shows is an hour more afterwards. */
static inline void spring(int64_t wall_s, int *weekday, int *minute) {
    utc(wall_s >= WALL + 6 * 3600 ? wall_s + 3600 : wall_s, weekday, minute);
}

static inline fixture *make(void) {
    static fixture f;
    f = (fixture){.cfg = {.max_requests = 64,
                          .max_persons = 4,
                          .local_only = BIT(VOICE),
                          .local = utc,
                          .seed = 1},
                  .now_ns = S,
                  .wall_s = WALL};
    static const char *const names[] = {"here", "pc", "nuc"};
    for (int i = 0; i < 3; i++) {
        gs_place_worker_defaults(i == LOCAL ? GS_WORKER_LOCAL : GS_WORKER_REMOTE, &f.w[i]);
        snprintf(f.w[i].name, sizeof f.w[i].name, "%s", names[i]);
        f.w[i].models[0] = (gs_place_model){.model = 1, .context = 8192};
        f.w[i].n_models = 1;
        f.w[i].prefers = 0;
        f.w[i].probe_every_ns = 0;
    }
    return &f;
}

static inline void check(const fixture *f) {
    char err[200] = "";
    if (gs_place_check(f->p, err, sizeof err) != GS_OK)
        fail_msg("%s", err);
}

static inline bool next(fixture *f) {
    const bool any = gs_place_next(f->p, f->now_ns, &f->act);
    check(f);
    return any;
}

/* Answers probes until something else is to be done. */
static inline bool next_but_probes(fixture *f) {
    while (next(f)) {
        if (f->act.kind != GS_PLACE_PROBE)
            return true;
        gs_place_probed(f->p, f->act.worker, true, f->now_ns);
    }
    return false;
}

static inline void start(fixture *f, int n_workers) {
    assert_int_equal(gs_place_create(&f->cfg, &f->p), GS_OK);
    gs_place_set_wall(f->p, f->wall_s, f->now_ns);
    for (int i = 0; i < n_workers; i++)
        assert_int_equal(gs_place_add(f->p, &f->w[i], f->now_ns, NULL), i);
    assert_false(next_but_probes(f));
}

static inline void stop(fixture *f) {
    check(f);
    gs_place_free(f->p);
}

static inline void later(fixture *f, int64_t ns) {
    f->now_ns += ns;
    f->wall_s = WALL + (f->now_ns - S) / S;
    gs_place_set_wall(f->p, f->wall_s, f->now_ns);
}

static inline int submit(fixture *f, uint64_t id, gs_class cls, int32_t n_prompt,
                         int32_t max_output) {
    gs_place_desc d = f->desc;
    d.id = id;
    d.cls = cls;
    d.model = d.model ? d.model : 1;
    d.n_prompt = n_prompt;
    d.max_output = max_output;
    d.arrival_ns = f->now_ns;
    const int rc = gs_place_submit(f->p, &d, f->now_ns);
    check(f);
    return rc;
}

/* The next act has to place that request there. */
static inline int32_t expect_placed(fixture *f, uint64_t id, int32_t worker) {
    assert_true(next_but_probes(f));
    assert_int_equal(f->act.kind, GS_PLACE_DISPATCH);
    assert_int_equal(f->act.id, id);
    assert_int_equal(f->act.worker, worker);
    return f->act.attempt;
}

static inline void expect_waits(fixture *f) {
    assert_false(next_but_probes(f));
}

static inline void end(fixture *f, uint64_t id, int32_t attempt, gs_place_how how) {
    assert_true(gs_place_end(f->p, id, attempt, how, f->now_ns, &f->over));
    check(f);
}

static inline gs_worker_state state_of(const fixture *f, int32_t worker) {
    gs_place_view v;
    gs_place_get_view(f->p, worker, f->now_ns, &v);
    return v.state;
}

/* Teaches what a worker takes, with n_seqs requests at a time, each with a prompt of its own. */
static inline void teach(fixture *f, int32_t worker, gs_class cls, int64_t ttft_ns,
                         int64_t itl_ns) {
    static uint64_t id = 1000000;
    for (int i = 0; i < 12; i++) {
        f->desc.barred = ~(1u << worker);
        assert_int_equal(submit(f, ++id, cls, 100, 20), GS_OK);
        f->desc.barred = 0;
        const int32_t attempt = expect_placed(f, id, worker);
        later(f, ttft_ns);
        assert_true(gs_place_tokens(f->p, id, attempt, 1, f->now_ns));
        for (int k = 0; k < 19; k++) {
            later(f, itl_ns);
            assert_true(gs_place_tokens(f->p, id, attempt, 1, f->now_ns));
        }
        end(f, id, attempt, GS_PLACE_DONE);
    }
}

#endif
