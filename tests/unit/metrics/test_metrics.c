/* Histograms, what is counted where, and the page that is made of it. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/sys.h"
#include "metrics/energy.h"
#include "metrics/expose.h"

#define MS     1000000LL
#define MINUTE (60000 * MS)

static void near(double got, double want) {
    if (!(fabs(got - want) <= 1e-9 * (1 + fabs(want))))
        fail_msg("%.17g is not %.17g", got, want);
}

static void buckets_hold_what_is_at_most_their_bound(void **state) {
    (void)state;
    static const double bounds[] = {1, 2, 4};
    const gs_hist_shape shape = {bounds, 3};
    gs_hist h = {0};
    const double v[] = {0, 1, 1.0000001, 2, 4, 4.1, 1e9};
    for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++)
        gs_hist_add(&h, &shape, v[i]);
    assert_int_equal(h.counts[0], 2);
    assert_int_equal(h.counts[1], 2);
    assert_int_equal(h.counts[2], 1);
    assert_int_equal(h.counts[3], 2);
    assert_int_equal(h.n, 7);
}

/* The values that PromQL's histogram_quantile gives for the same buckets. */
static void quantiles_are_those_of_promql(void **state) {
    (void)state;
    static const double bounds[] = {1, 2, 4};
    const gs_hist_shape shape = {bounds, 3};
    gs_hist h = {0}, other = {0};
    assert_true(isnan(gs_hist_quantile(&h, &shape, 0.5)));
    for (int i = 0; i < 4; i++)
        gs_hist_add(&h, &shape, 0.5);
    for (int i = 0; i < 4; i++)
        gs_hist_add(&h, &shape, 3);
    near(gs_hist_quantile(&h, &shape, 0.25), 0.5);
    near(gs_hist_quantile(&h, &shape, 0.5), 1);
    near(gs_hist_quantile(&h, &shape, 0.75), 3);
    near(gs_hist_quantile(&h, &shape, 1), 4);
    gs_hist_add(&other, &shape, 100);
    gs_hist_merge(&h, &other);
    near(gs_hist_quantile(&h, &shape, 0.99), 4); /* beyond all: the highest bound */
    near(h.sum, 114);
}

static void jain(void **state) {
    (void)state;
    const double equal[] = {3, 3, 3, 3}, one[] = {5, 0, 0, 0}, two[] = {1, 3};
    near(gs_jain(equal, 4), 1);
    near(gs_jain(one, 4), 0.25);
    near(gs_jain(two, 2), 0.8);
    near(gs_jain(NULL, 0), 1);
}

static gs_metrics *new_metrics(int persons) {
    gs_metrics *m = malloc(sizeof(*m));
    assert_non_null(m);
    gs_metrics_init(m, persons, MINUTE, 0);
    return m;
}

static void minutes_pass(void **state) {
    (void)state;
    gs_metrics *m = new_metrics(4);
    gs_engine_stats s = {0};
    gs_minute_class r;
    for (int i = 0; i < 13; i++) {
        assert_int_equal(gs_metrics_tick(m, &s, i * MINUTE), i > 0);
        if (i > 0)
            assert_int_equal(m->last[GS_CLASS_CHAT].ttft.n, i);
        for (int k = 0; k <= i; k++)
            gs_metrics_first_token(m, 1, GS_CLASS_CHAT, 20 * MS);
        s.person_ns[1] += 100;
        s.person_ns[2] += 300;
    }
    gs_metrics_recent(m, GS_CLASS_CHAT, &r);
    assert_int_equal(r.ttft.n, 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11 + 12 + 13);
    int64_t persons[GS_ENGINE_PERSONS];
    gs_metrics_persons(m, &s, persons);
    assert_int_equal(persons[1], 1000);
    near(gs_metrics_jain(m, &s), 0.8);
    m->weight[2] = 3;
    near(gs_metrics_jain(m, &s), 1);
    gs_metrics_tick(m, &s, 40 * MINUTE); /* asleep for long: nothing of before is recent */
    gs_metrics_recent(m, GS_CLASS_CHAT, &r);
    assert_int_equal(r.ttft.n, 0);
    free(m);
}

static void ends_are_counted_by_how(void **state) {
    (void)state;
    gs_metrics *m = new_metrics(0);
    gs_explain x = {.cls = GS_CLASS_VOICE,
                    .person = 3,
                    .arrival_ns = 0,
                    .first_step_ns = 10 * MS,
                    .first_token_ns = 40 * MS,
                    .end_ns = 200 * MS,
                    .n_prompt = 7,
                    .n_output = 9};
    gs_metrics_ended(m, GS_FINISH_STOP, &x);
    gs_metrics_ended(m, GS_FINISH_ABORT, &x);
    assert_int_equal(m->finished[GS_FINISH_STOP][GS_CLASS_VOICE], 1);
    assert_int_equal(m->finished[GS_FINISH_ABORT][GS_CLASS_VOICE], 1);
    near(m->hist[GS_HIST_QUEUE][0][GS_CLASS_VOICE].sum, 0.01);
    near(m->hist[GS_HIST_PREFILL][0][GS_CLASS_VOICE].sum, 0.03);
    near(m->hist[GS_HIST_DECODE][0][GS_CLASS_VOICE].sum, 0.16);
    near(m->hist[GS_HIST_E2E][0][GS_CLASS_VOICE].sum, 0.2);
    gs_metrics_answered(m, GS_CLASS_CHAT, 429);
    gs_metrics_answered(m, GS_CLASS_CHAT, 418);
    int n = 0;
    for (int i = 0; i < GS_CODE_COUNT; i++)
        n += m->codes[i][GS_CLASS_CHAT] == (gs_code_at(i) == 429 || gs_code_at(i) == 0);
    assert_int_equal(n, GS_CODE_COUNT);
    free(m);
}

static void persons_beyond_the_places_are_others(void **state) {
    (void)state;
    gs_metrics *m = new_metrics(2);
    for (uint32_t p = 0; p < 6; p++)
        gs_metrics_first_token(m, p, GS_CLASS_CHAT, MS);
    assert_int_equal(m->hist[GS_HIST_TTFT][0][GS_CLASS_CHAT].n, 1);
    assert_int_equal(m->hist[GS_HIST_TTFT][1][GS_CLASS_CHAT].n, 1);
    assert_int_equal(m->hist[GS_HIST_TTFT][2][GS_CLASS_CHAT].n, 1);
    assert_int_equal(m->hist[GS_HIST_TTFT][3][GS_CLASS_CHAT].n, 0);
    assert_int_equal(m->hist[GS_HIST_TTFT][GS_METRICS_OTHERS][GS_CLASS_CHAT].n, 3);
    assert_int_equal(m->person_at[2], 2);
    free(m);
}

/* ---- The page ------------------------------------------------------------------------------ */

static const char *a_name(void *arg, int place) {
    return place == 1 ? arg : "p2";
}

static char *page(const gs_metrics *m, const gs_engine_stats *s, bool named, bool open) {
    char hostile[] = "a\"b\\c\nd";
    const gs_metrics_source source = {"m", s, m};
    const gs_metrics_server server = {.person_s = {[1] = 1.5},
                                      .jain = 1,
                                      .energy_j = (double)NAN,
                                      .started_s = 1000,
                                      .one = 1,
                                      .version = "1"};
    const gs_metrics_page p = {.sources = &source,
                               .n_sources = 1,
                               .server = &server,
                               .person_name = named ? a_name : NULL,
                               .person_arg = hostile,
                               .open_metrics = open};
    gs_buf out = {0};
    size_t n;
    gs_metrics_write(&p, &out);
    assert_false(out.failed);
    return gs_buf_take(&out, &n);
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

static void the_page_has_persons_for_admins_only(void **state) {
    (void)state;
    gs_metrics *m = new_metrics(2);
    gs_engine_stats s = {0};
    gs_metrics_first_token(m, 1, GS_CLASS_CHAT, 30 * MS);
    gs_metrics_first_token(m, 2, GS_CLASS_CHAT, 30 * MS);
    char *named = page(m, &s, true, false), *summed = page(m, &s, false, false);
    assert_non_null(strstr(named, "time_to_first_token_seconds_count{class=\"chat\",model=\"m\","
                                  "person=\"a\\\"b\\\\c\\nd\"} 1\n"));
    assert_non_null(strstr(named, "person_device_seconds_total{person=\"a\\\"b\\\\c\\nd\"} 1.5\n"));
    assert_null(strstr(summed, "person="));
    assert_null(strstr(summed, "person_device"));
    assert_non_null(
        strstr(summed, "time_to_first_token_seconds_count{class=\"chat\",model=\"m\"} 2\n"));
    assert_non_null(strstr(
        summed,
        "gamasot_time_to_first_token_seconds_bucket{le=\"0.02\",class=\"chat\",model=\"m\"} 0\n"
        "gamasot_time_to_first_token_seconds_bucket{le=\"0.04\",class=\"chat\",model=\"m\"} 2\n"));
    /* What is not told is left out, heads included; what was not judged has no attainment. */
    assert_null(strstr(named, "energy"));
    assert_null(strstr(named, "slo_attainment"));
    gs_free(named);
    gs_free(summed);
    free(m);
}

static void every_family_once(void **state) {
    (void)state;
    gs_metrics *m = new_metrics(2);
    gs_engine_stats s = {.n_target = {[GS_CLASS_CHAT] = 4}, .n_missed = {[GS_CLASS_CHAT] = 1}};
    gs_metrics_first_token(m, 1, GS_CLASS_CHAT, 30 * MS);
    for (int open = 0; open < 2; open++) {
        char *text = page(m, &s, true, open);
        char *copy = strdup(text), *save = NULL;
        for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            char what[160], name[128];
            if (sscanf(line, "# TYPE %127s", name) != 1)
                continue;
            snprintf(what, sizeof(what), "# TYPE %s ", name);
            assert_int_equal(count(text, what), 1);
        }
        assert_non_null(strstr(text, "slo_attainment_ratio{class=\"chat\",model=\"m\"} 0.75\n"));
        assert_int_equal(count(text, "# EOF\n"), open);
        if (open) {
            assert_non_null(strstr(text, "# TYPE gamasot_steps counter\n"));
            assert_non_null(strstr(text, "gamasot_steps_total{model=\"m\"} 0\n"
                                         "gamasot_steps_created{model=\"m\"} 1000\n"));
            assert_non_null(strstr(text, "# TYPE gamasot_build info\n"));
            assert_non_null(strstr(text, "le=\"1.0\""));
        }
        free(copy);
        gs_free(text);
    }
    free(m);
}

static void the_reference_is_current(void **state) {
    (void)state;
    gs_buf want = {0};
    gs_metrics_reference(&want);
    FILE *f = fopen("docs/metrics.md", "r");
    assert_non_null(f);
    char *have = calloc(1, want.len + 2);
    const size_t n = fread(have, 1, want.len + 1, f);
    fclose(f);
    if (n != want.len || memcmp(have, want.data, n) != 0)
        fail_msg("docs/metrics.md is not what the table says: make docs");
    free(have);
    gs_buf_deinit(&want);
}

/* ---- Energy -------------------------------------------------------------------------------- */

static void put(const char *folder, int package, const char *file, const char *text) {
    char path[256];
    snprintf(path, sizeof(path), "%s/intel-rapl:%d", folder, package);
    mkdir(path, 0755);
    snprintf(path, sizeof(path), "%s/intel-rapl:%d/%s", folder, package, file);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void energy_adds_up_and_goes_round(void **state) {
    (void)state;
    char folder[] = "/tmp/gamasot-rapl-XXXXXX", command[64];
    gs_energy e;
    assert_non_null(mkdtemp(folder));
    gs_energy_open(&e, folder);
    assert_true(isnan(gs_energy_read(&e)));
    put(folder, 0, "max_energy_range_uj", "10000000\n");
    put(folder, 0, "energy_uj", "9000000\n");
    put(folder, 1, "energy_uj", "5\n");
    gs_energy_open(&e, folder);
    near(gs_energy_read(&e), 0);
    put(folder, 0, "energy_uj", "9500000\n");
    near(gs_energy_read(&e), 0.5);
    put(folder, 0, "energy_uj", "500000\n");
    put(folder, 1, "energy_uj", "2000005\n");
    near(gs_energy_read(&e), 3.5);
    gs_energy_close(&e);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_hold_what_is_at_most_their_bound),
        cmocka_unit_test(quantiles_are_those_of_promql),
        cmocka_unit_test(jain),
        cmocka_unit_test(minutes_pass),
        cmocka_unit_test(ends_are_counted_by_how),
        cmocka_unit_test(persons_beyond_the_places_are_others),
        cmocka_unit_test(the_page_has_persons_for_admins_only),
        cmocka_unit_test(every_family_once),
        cmocka_unit_test(the_reference_is_current),
        cmocka_unit_test(energy_adds_up_and_goes_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
