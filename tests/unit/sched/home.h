/* A simulated home: requests by hand, one run, its report. Shared by the tests of policies. */
#ifndef TESTS_HOME_H
#define TESTS_HOME_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/err.h"
#include "sched/sim.h"

#define MS 1000000LL
#define S  1000000000LL

enum { MAX = 16384 };

typedef struct home {
    gs_sim_request q[MAX];
    int32_t n;
    gs_sim_config cfg;
    gs_sim *m;
    gs_sim_report rep;
} home;

static inline int setup(void **state) {
    *state = calloc(1, sizeof(home));
    return *state ? 0 : -1;
}

static inline int teardown(void **state) {
    gs_sim_free(((home *)*state)->m);
    free(*state);
    return 0;
}

static inline gs_sim_request *add_to(home *h, int32_t model, int64_t t_ns, gs_class cls,
                                     uint32_t person, int32_t n_prompt, int32_t n_output) {
    assert_true(h->n < MAX);
    gs_sim_request *q = &h->q[h->n++];
    *q = (gs_sim_request){.t_ns = t_ns,
                          .after = -1,
                          .prefix_of = -1,
                          .model = model,
                          .cls = cls,
                          .class_fixed = true,
                          .person = person,
                          .scope = person,
                          .n_prompt = n_prompt,
                          .n_output = n_output};
    return q;
}

static inline void run(home *h) {
    char err[200] = "";
    assert_int_equal(gs_sim_create(&h->cfg, h->q, h->n, &h->m), GS_OK);
    const int rc = gs_sim_run(h->m, err, sizeof err);
    if (rc != GS_OK)
        fail_msg("%s", err);
    assert_int_equal(gs_sim_report_create(h->m, &h->rep), GS_OK);
}

static inline double ms(int64_t ns) {
    return (double)ns / 1e6;
}

#endif
