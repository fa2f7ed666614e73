/* Statistics of a run: percentiles, intervals, targets, fairness, and the reports. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/sys.h"
#include "load/measure.h"

#define assert_near(a, b, most) assert_true(fabs((a) - (b)) <= (most))

/* A run of n requests of two persons; the caller sets the records. */
static void run_create(gs_trace *t, gs_load_run *run, int32_t n, gs_class cls) {
    gs_trace_init(t);
    for (int32_t i = 0; i < n; i++) {
        gs_trace_request *q = gs_trace_add(t, "r", i + 1);
        q->name = gs_trace_person(t, i % 2 ? "ana" : "ben");
        q->cls = cls;
        q->n_prompt = 10;
        q->n_output = 5;
    }
    *run = (gs_load_run){.trace = t, .n = n, .speed = 1};
    snprintf(run->label, sizeof run->label, "a <test>");
    gs_load_default_targets(run->targets);
    run->records = gs_calloc((size_t)n, sizeof *run->records);
    for (int32_t i = 0; i < n; i++)
        run->records[i] = (gs_load_record){.request = i,
                                           .due_s = i,
                                           .sent_s = i,
                                           .first_s = i + 0.5,
                                           .end_s = i + 0.9,
                                           .n_prompt = 10,
                                           .n_output = 5,
                                           .status = GS_LOAD_OK,
                                           .http_status = 200,
                                           .n_attempts = 1};
}

static void run_free(gs_trace *t, gs_load_run *run) {
    gs_load_run_free(run);
    gs_trace_free(t);
}

static void set_gaps(gs_load_record *r, int32_t n, double gap_s) {
    r->gaps_s = gs_array((size_t)n, sizeof(float));
    r->n_gaps = r->cap_gaps = n;
    for (int32_t i = 0; i < n; i++)
        r->gaps_s[i] = (float)gap_s;
}

static void percentiles(void **state) {
    (void)state;
    gs_trace t;
    gs_load_run run;
    gs_load_summary s;
    run_create(&t, &run, 101, GS_CLASS_CHAT);
    for (int32_t i = 0; i < run.n; i++)
        run.records[i].first_s = run.records[i].due_s + i * 0.01; /* 0, 0.01 ... 1.00 */
    assert_int_equal(gs_load_summarise(&run, &s), 0);
    const gs_load_group *g = &s.classes[GS_CLASS_CHAT];
    assert_near(g->ttft[GS_Q50].value, 0.5, 1e-9);
    assert_near(g->ttft[GS_Q95].value, 0.95, 1e-9);
    assert_true(g->ttft[GS_Q50].enough && g->ttft[GS_Q95].enough);
    assert_false(g->ttft[GS_Q99].enough); /* 299 are needed */
    assert_true(g->ttft[GS_Q50].low < 0.5 && g->ttft[GS_Q50].high > 0.5);
    assert_true(isnan(g->itl[GS_Q50].value));
    gs_load_summary_free(&s);
    run_free(&t, &run);
    assert_int_equal(gs_quantile_needs(GS_Q99), 299);
    assert_int_equal(gs_quantile_needs(GS_Q95), 59);
}

/* The interval of a median holds the true one in about 95 of 100 experiments. */
static void intervals_cover(void **state) {
    (void)state;
    gs_rng rng;
    gs_rng_seed(&rng, 7);
    int covered = 0;
    enum { EXPERIMENTS = 200 };
    for (int k = 0; k < EXPERIMENTS; k++) {
        gs_trace t;
        gs_load_run run;
        gs_load_summary s;
        run_create(&t, &run, 60, GS_CLASS_CHAT);
        run.seed = (uint64_t)k;
        for (int32_t i = 0; i < run.n; i++)
            run.records[i].first_s = run.records[i].due_s - log(1 - gs_rng_unit(&rng));
        assert_int_equal(gs_load_summarise(&run, &s), 0);
        const gs_quantile *q = &s.classes[GS_CLASS_CHAT].ttft[GS_Q50];
        covered += q->low <= log(2) && log(2) <= q->high;
        gs_load_summary_free(&s);
        run_free(&t, &run);
    }
    assert_true(covered >= 0.88 * EXPERIMENTS && covered <= 0.99 * EXPERIMENTS);
}

/* One answer with many gaps is one sample: its gaps do not make the interval narrow. */
static void gaps_of_one_answer_are_one_sample(void **state) {
    (void)state;
    gs_trace t;
    gs_load_run run;
    gs_load_summary s;
    run_create(&t, &run, 3, GS_CLASS_CHAT);
    set_gaps(&run.records[0], 1000, 0.01);
    set_gaps(&run.records[1], 1000, 0.03);
    set_gaps(&run.records[2], 1000, 0.05);
    assert_int_equal(gs_load_summarise(&run, &s), 0);
    const gs_quantile *q = &s.classes[GS_CLASS_CHAT].itl[GS_Q50];
    assert_near(q->value, 0.03, 1e-6);
    assert_true(q->low < 0.011 && q->high > 0.049);
    assert_false(s.classes[GS_CLASS_CHAT].itl[GS_Q95].enough);
    gs_load_summary_free(&s);
    run_free(&t, &run);
}

static void targets_are_judged(void **state) {
    (void)state;
    gs_trace t;
    gs_load_run run;
    run_create(&t, &run, 8, GS_CLASS_VOICE);
    gs_load_record *r = run.records;
    assert_int_equal(gs_load_met(&run, &r[0]), 1);
    r[1].first_s = r[1].due_s + 0.71; /* too late */
    assert_int_equal(gs_load_met(&run, &r[1]), 0);
    set_gaps(&r[2], 4, 0.044); /* five tokens, four gaps */
    assert_int_equal(gs_load_met(&run, &r[2]), 1);
    set_gaps(&r[3], 4, 0.046);
    assert_int_equal(gs_load_met(&run, &r[3]), 0);
    r[4].status = GS_LOAD_BROKEN;
    assert_int_equal(gs_load_met(&run, &r[4]), 0);
    r[5].status = r[6].status = GS_LOAD_CANCELLED; /* shown nothing: early enough? */
    r[5].first_s = r[6].first_s = -1;
    r[5].end_s = r[5].due_s + 0.3;
    r[6].end_s = r[6].due_s + 1.5;
    assert_int_equal(gs_load_met(&run, &r[5]), -1);
    assert_int_equal(gs_load_met(&run, &r[6]), 0);
    t.requests[7].cls = GS_CLASS_BACKGROUND;
    assert_int_equal(gs_load_met(&run, &r[7]), -1);
    t.requests[7].deadline_s = 0.5;
    assert_int_equal(gs_load_met(&run, &r[7]), 0);
    run_free(&t, &run);
}

static void fairness_is_of_who_waits_together(void **state) {
    (void)state;
    gs_trace t;
    gs_load_run run;
    gs_load_summary s;
    run_create(&t, &run, 4, GS_CLASS_CHAT);
    for (int32_t i = 0; i < 4; i++) {
        run.records[i].due_s = 0;
        run.records[i].first_s = 1;
        run.records[i].end_s = 10;
        run.records[i].n_prompt = i % 2 ? 30 : 10;
        run.records[i].n_output = 0;
    }
    assert_int_equal(gs_load_summarise(&run, &s), 0);
    assert_near(s.jain, 80.0 * 80.0 / (2 * (60.0 * 60.0 + 20.0 * 20.0)), 1e-9);
    assert_near(s.contended_s, 10, 1e-9);
    gs_load_summary_free(&s);
    for (int32_t i = 0; i < 4; i++) { /* one after the other: nothing to share */
        run.records[i].due_s = 20 * i;
        run.records[i].first_s = run.records[i].end_s = 20 * i + 10;
    }
    assert_int_equal(gs_load_summarise(&run, &s), 0);
    assert_true(isnan(s.jain));
    gs_load_summary_free(&s);
    run_free(&t, &run);
}

static void wilson(void **state) {
    (void)state;
    double low, high;
    gs_wilson(59, 59, 1.644854, &low, &high);
    assert_true(low > 0.95 && high == 1.0);
    gs_wilson(50, 100, 1.959964, &low, &high);
    assert_near(low, 0.4038, 1e-3);
    assert_near(high, 0.5962, 1e-3);
    gs_wilson(0, 0, 2, &low, &high);
    assert_true(low == 0.0 && high == 1.0);
}

static void reports_say_what_they_do_not_know(void **state) {
    (void)state;
    gs_trace t;
    gs_load_run run;
    gs_load_summary s;
    gs_buf text = {0}, json = {0}, html = {0};
    run_create(&t, &run, 80, GS_CLASS_CHAT);
    for (int32_t i = 0; i < run.n; i++)
        set_gaps(&run.records[i], 4, 0.02);
    assert_int_equal(gs_load_summarise(&run, &s), 0);
    gs_load_print(&run, &s, &text);
    gs_load_json(&run, &s, "{}", &json);
    gs_load_html(&run, &s, &html);
    assert_non_null(strstr(gs_buf_cstr(&text), "not enough samples for p99 of chat (80)"));
    assert_null(strstr(gs_buf_cstr(&text), "not enough samples for p95"));
    assert_non_null(strstr(gs_buf_cstr(&json), "\"too_few_for\":[\"ttft_p99\",\"itl_p99\"]"));
    assert_non_null(strstr(gs_buf_cstr(&html), "a &lt;test&gt;"));
    assert_null(strstr(gs_buf_cstr(&html), "<script"));
    assert_null(strstr(gs_buf_cstr(&html), "nan"));
    assert_null(strstr(gs_buf_cstr(&html), "inf"));
    gs_buf_deinit(&text);
    gs_buf_deinit(&json);
    gs_buf_deinit(&html);
    gs_load_summary_free(&s);
    run_free(&t, &run);
}

/* A run in which nothing was answered has a report, too. */
static void nothing_at_all(void **state) {
    (void)state;
    gs_trace t;
    gs_load_run run;
    gs_load_summary s;
    gs_buf out = {0};
    run_create(&t, &run, 2, GS_CLASS_CHAT);
    for (int32_t i = 0; i < 2; i++) {
        run.records[i].first_s = -1;
        run.records[i].status = GS_LOAD_BROKEN;
    }
    assert_int_equal(gs_load_summarise(&run, &s), 0);
    assert_int_equal(s.n_errors, 2);
    gs_load_print(&run, &s, &out);
    gs_load_json(&run, &s, "{}", &out);
    gs_load_html(&run, &s, &out);
    assert_false(out.failed);
    gs_buf_deinit(&out);
    gs_load_summary_free(&s);
    run_free(&t, &run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles),
        cmocka_unit_test(intervals_cover),
        cmocka_unit_test(gaps_of_one_answer_are_one_sample),
        cmocka_unit_test(targets_are_judged),
        cmocka_unit_test(fairness_is_of_who_waits_together),
        cmocka_unit_test(wilson),
        cmocka_unit_test(reports_say_what_they_do_not_know),
        cmocka_unit_test(nothing_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
