/* Minutes in a real database: kept, replaced, removed, put together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/history.h"
#include "base/err.h"

#define T0 1700000040 /* a whole minute */

static char folder[64];
static gs_store *store;

static int begin(void **state) {
    (void)state;
    strcpy(folder, "/tmp/gamasot_history_XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    gs_store_config cfg = {.folder = folder};
    return gs_store_create(&cfg, &store);
}

static int end(void **state) {
    char cmd[96];
    (void)state;
    gs_store_free(store);
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", folder);
    return system(cmd);
}

/* A piece of work for the store thread, waited for. */
typedef struct work {
    gs_store_job job; /* first */
    const gs_history_row *row;
    const char *sql;
    int64_t now_s, max_rows, from_s, to_s, step_s;
    gs_buf out;
    bool done;
} work;

static int run(gs_db *db, gs_store_job *job) {
    work *w = (work *)job;
    if (w->sql)
        return gs_db_run(db, w->sql, "");
    if (w->row)
        return gs_history_put(db, w->row, w->now_s, w->max_rows);
    return gs_history_write(db, w->from_s, w->to_s, w->step_s, &w->out);
}

static void done(gs_store_job *job) {
    ((work *)job)->done = true;
}

static void do_work(work *w) {
    w->job = (gs_store_job){.run = run, .done = done};
    assert_int_equal(gs_store_submit(store, &w->job), 0);
    for (int i = 0; i < 30000 && !w->done; i++) {
        gs_store_poll(store);
        poll(NULL, 0, 1);
    }
    assert_true(w->done);
    assert_int_equal(w->job.rc, 0);
}

static void put(const gs_history_row *r, int64_t now_s, int64_t max_rows) {
    work w = {.row = r, .now_s = now_s, .max_rows = max_rows};
    do_work(&w);
}

static json_t *read_rows(int64_t from_s, int64_t to_s, int64_t step_s) {
    work w = {.from_s = from_s, .to_s = to_s, .step_s = step_s};
    do_work(&w);
    json_t *all = json_loadb(w.out.data, w.out.len, 0, NULL);
    gs_buf_deinit(&w.out);
    assert_non_null(all);
    json_t *rows = json_incref(json_object_get(all, "rows"));
    json_decref(all);
    return rows;
}

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static gs_history_row minute(int64_t t_s, double first_s, int n) {
    gs_history_row r = {.t_s = t_s, .ms = 60000, .energy_j = (double)NAN};
    gs_history_class *k = &r.classes[GS_CLASS_CHAT];
    k->n_requests = (uint64_t)n;
    for (int i = 0; i < n; i++)
        gs_hist_add(&k->ttft, &gs_hist_shapes[GS_HIST_TTFT], first_s);
    return r;
}

static void put_minute(int64_t t_s, double first_s, int n) {
    const gs_history_row r = minute(t_s, first_s, n);
    put(&r, t_s, 1000);
}

static void a_minute_comes_back_as_it_was(void **state) {
    (void)state;
    gs_history_row r = minute(T0, 0.003, 100);
    gs_history_class *k = &r.classes[GS_CLASS_CHAT];
    r.busy_ms = 30000;
    r.background_ms = 7500;
    r.kv = 0.25;
    r.energy_j = 1200.5;
    k->n_prompt = 5000;
    k->n_output = 1ULL << 40;
    k->n_judged = 100;
    k->n_missed = 2;
    gs_hist_add(&k->itl, &gs_hist_shapes[GS_HIST_ITL], 1000); /* beyond all bounds */
    put(&r, T0, 1000);
    json_t *rows = read_rows(T0, T0 + 60, 60);
    assert_int_equal(json_array_size(rows), 1);
    const json_t *o = json_array_get(rows, 0);
    assert_int_equal(json_integer_value(json_object_get(o, "t")), T0);
    assert_true(number(o, "seconds") == 60 && number(o, "busy") == 0.5);
    assert_true(number(o, "background") == 0.25 && number(o, "kv") == 0.25);
    assert_true(number(o, "energy_j") == 1200.5);
    assert_int_equal(json_array_size(json_object_get(o, "classes")), 1);
    const json_t *c = json_array_get(json_object_get(o, "classes"), 0);
    const json_t *ttft = json_object_get(c, "ttft_ms"), *itl = json_object_get(c, "itl_ms");
    assert_string_equal(json_string_value(json_object_get(c, "name")), "chat");
    assert_true(number(c, "requests") == 100 && number(c, "attained") == 0.98);
    assert_true(number(c, "prompt_tokens") == 5000);
    assert_true(number(c, "output_tokens") == (double)(1ULL << 40));
    assert_true(number(ttft, "p50") == 3 && number(ttft, "n") == 100); /* of 1 to 5 ms */
    assert_true(number(itl, "p95") == 80000 && number(itl, "n") == 1); /* the highest bound */
    json_decref(rows);
}

/* 95 quick ones in one minute and 5 slow ones in another: the 95th of 100 is quick, although the
 * second minute's was slow. */
static void percentiles_are_of_all_tokens_together(void **state) {
    (void)state;
    put_minute(T0, 0.003, 95);
    put_minute(T0 + 60, 30, 5);
    put_minute(T0 + 180, 30, 1);
    json_t *rows = read_rows(T0, T0 + 600, 120);
    assert_int_equal(json_array_size(rows), 2); /* what is empty is left out */
    const json_t *o = json_array_get(rows, 0);
    const json_t *c = json_array_get(json_object_get(o, "classes"), 0);
    assert_true(number(o, "t") == T0 && number(o, "seconds") == 120);
    assert_true(json_is_null(json_object_get(o, "energy_j")));
    assert_true(json_is_null(json_object_get(c, "attained"))); /* nothing was judged */
    assert_true(number(c, "requests") == 100);
    assert_true(number(json_object_get(c, "ttft_ms"), "p95") == 5);
    assert_true(number(json_array_get(rows, 1), "t") == T0 + 120);
    json_decref(rows);
    rows = read_rows(T0 + 30, T0 + 180, 120); /* steps begin at from; to is not with it */
    assert_int_equal(json_array_size(rows), 1);
    assert_true(number(json_array_get(rows, 0), "t") == T0 + 30);
    json_decref(rows);
}

static void it_stays_bounded(void **state) {
    (void)state;
    const gs_history_row old = minute(T0, 1, 1);
    put(&old, T0, 1000);
    const gs_history_row later = minute(T0 + GS_HISTORY_KEEP_S, 1, 1);
    put(&later, later.t_s, 1000);
    json_t *rows = read_rows(0, T0 * 2LL, 60);
    assert_int_equal(json_array_size(rows), 2); /* 30 days old, not more */
    json_decref(rows);
    for (int i = 1; i <= 20; i++) {
        const gs_history_row r = minute(later.t_s + 60 * i, 1, 1);
        put(&r, r.t_s, 12);
    }
    rows = read_rows(0, T0 * 2LL, 60);
    assert_int_equal(json_array_size(rows), 12);
    assert_true(number(json_array_get(rows, 0), "t") == (double)later.t_s + 60 * 9);
    json_decref(rows);
    /* A clock that has begun again in 1970 takes nothing away. */
    const gs_history_row first = minute(60, 1, 1);
    put(&first, 60, 1000);
    rows = read_rows(0, T0 * 2LL, 60);
    assert_int_equal(json_array_size(rows), 13);
    json_decref(rows);
}

static void a_minute_that_comes_again_is_replaced(void **state) {
    (void)state;
    put_minute(T0, 1, 1);
    put_minute(T0 + 60, 1, 1);
    gs_history_row again = minute(T0, 1, 0);
    again.classes[GS_CLASS_VOICE].n_requests = 3;
    put(&again, T0, 1000); /* the clock was set back */
    json_t *rows = read_rows(T0, T0 + 600, 60);
    assert_int_equal(json_array_size(rows), 2);
    const json_t *classes = json_object_get(json_array_get(rows, 0), "classes");
    assert_int_equal(json_array_size(classes), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(classes, 0), "name")),
                        "voice");
    json_decref(rows);
}

static void damaged_and_foreign_histograms_are_empty(void **state) {
    (void)state;
    static const char *const values[] = {
        "UPDATE history_classes SET ttft = x'00'",
        "UPDATE history_classes SET ttft = x'0000000005'",
        "UPDATE history_classes SET ttft = substr(ttft, 1, 4)",
        "UPDATE history_classes SET ttft = 'text'",
        "UPDATE history_classes SET class = 'nobody'",
        /* Not an end in sight, and more of them than there are buckets: what fits is read. */
        "UPDATE history_classes SET ttft = substr(ttft, 1, 4) || zeroblob(100)",
    };
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        put_minute(T0, 1, 1);
        work w = {.sql = values[i]};
        do_work(&w);
        json_t *rows = read_rows(T0, T0 + 60, 60);
        const json_t *c = json_array_get(json_object_get(json_array_get(rows, 0), "classes"), 0);
        assert_int_equal(json_array_size(rows), 1);
        if (c)
            assert_true(number(json_object_get(c, "ttft_ms"), "n") == 0);
        json_decref(rows);
    }
}

static void minutes_follow_each_other_while_the_clocks_agree(void **state) {
    (void)state;
    assert_int_equal(gs_history_place(0, 60, T0 + 59), T0);
    assert_int_equal(gs_history_place(T0, 60, T0 + 60), T0 + 60);
    /* After the first one, which was short. */
    assert_int_equal(gs_history_place(T0, 60, T0), T0 + 60);
    /* Of minutes that begin at the 50th second, a clock that drifts over the full one. */
    assert_int_equal(gs_history_place(T0, 60, T0 + 119), T0 + 60);
    assert_int_equal(gs_history_place(T0, 60, T0 + 1), T0 + 60);
    /* Set on and back. */
    assert_int_equal(gs_history_place(T0, 60, T0 + 7205), T0 + 7200);
    assert_int_equal(gs_history_place(T0, 60, T0 - 3590), T0 - 3600);
    assert_int_equal(gs_history_place(T0, 60, T0 - 1), T0 - 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_minute_comes_back_as_it_was, begin, end),
        cmocka_unit_test_setup_teardown(percentiles_are_of_all_tokens_together, begin, end),
        cmocka_unit_test_setup_teardown(it_stays_bounded, begin, end),
        cmocka_unit_test_setup_teardown(a_minute_that_comes_again_is_replaced, begin, end),
        cmocka_unit_test_setup_teardown(damaged_and_foreign_histograms_are_empty, begin, end),
        cmocka_unit_test(minutes_follow_each_other_while_the_clocks_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
