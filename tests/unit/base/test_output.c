#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/sys.h"
#include "faults/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void json_structure_and_commas(void **state) {
    (void)state;
    gs_buf b = {0};
    gs_jsonw w;
    gs_jsonw_init(&w, &b);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "id");
    gs_jsonw_str(&w, "x");
    gs_jsonw_key(&w, "list");
    gs_jsonw_arr(&w);
    gs_jsonw_int(&w, -5);
    gs_jsonw_bool(&w, true);
    gs_jsonw_bool(&w, false);
    gs_jsonw_null(&w);
    gs_jsonw_obj(&w);
    gs_jsonw_end_obj(&w);
    gs_jsonw_arr(&w);
    gs_jsonw_end_arr(&w);
    gs_jsonw_raw(&w, "{\"r\":1}", 7);
    gs_jsonw_end_arr(&w);
    gs_jsonw_key(&w, "o");
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "a");
    gs_jsonw_num(&w, 0.5);
    gs_jsonw_key(&w, "b");
    gs_jsonw_str(&w, NULL);
    gs_jsonw_end_obj(&w);
    gs_jsonw_end_obj(&w);
    assert_string_equal(gs_buf_cstr(&b),
                        "{\"id\":\"x\",\"list\":[-5,true,false,null,{},[],{\"r\":1}],"
                        "\"o\":{\"a\":0.5,\"b\":null}}");
    assert_int_equal(w.depth, 0);
    gs_buf_deinit(&b);
}

static void json_strings_are_escaped(void **state) {
    (void)state;
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } cases[] = {
        {"", 0, "\"\""},
        {"a\"b\\c/", 6, "\"a\\\"b\\\\c/\""},
        {"\n\r\t", 3, "\"\\n\\r\\t\""},
        {"\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\""},
        {"h\xc3\xa9\xf0\x9f\x98\x80", 7, "\"h\xc3\xa9\xf0\x9f\x98\x80\""},
        {"a\xff"
         "b",
         3,
         "\"a\xef\xbf\xbd"
         "b\""},
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"x\xe2\x82", 3, "\"x\xef\xbf\xbd\xef\xbf\xbd\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_buf b = {0};
        gs_jsonw w;
        gs_jsonw_init(&w, &b);
        gs_jsonw_strn(&w, cases[i].in, cases[i].n);
        assert_string_equal(gs_buf_cstr(&b), cases[i].out);
        gs_buf_deinit(&b);
    }
}

/* All 65,536 byte pairs between letters: a strict parser takes every result. */
static void json_is_valid_whatever_the_bytes(void **state) {
    (void)state;
    for (unsigned pair = 0; pair < 65536; pair++) {
        char s[4] = {'a', (char)(pair >> 8), (char)pair, 'z'};
        gs_buf b = {0};
        gs_jsonw w;
        gs_jsonw_init(&w, &b);
        gs_jsonw_arr(&w);
        gs_jsonw_strn(&w, s, sizeof s);
        gs_jsonw_end_arr(&w);
        json_error_t error;
        json_t *v = json_loadb(b.data, b.len, JSON_ALLOW_NUL, &error);
        if (!v)
            fail_msg("%04x: %s", pair, error.text);
        json_decref(v);
        gs_buf_deinit(&b);
    }
}

static void json_numbers(void **state) {
    (void)state;
    static const struct {
        double v;
        const char *out;
    } cases[] = {
        {0, "0"},
        {0.1, "0.1"},
        {-1.5, "-1.5"},
        {1e300, "1e+300"},
        {1.0 / 3, NULL},
        {5e-324, NULL},
        {NAN, "null"},
        {INFINITY, "null"},
        {-INFINITY, "null"},
        {1234567, "1234567"},
        {0.30000000000000004, "0.30000000000000004"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_buf b = {0};
        gs_jsonw w;
        gs_jsonw_init(&w, &b);
        gs_jsonw_num(&w, cases[i].v);
        const char *text = gs_buf_cstr(&b);
        if (cases[i].out)
            assert_string_equal(text, cases[i].out);
        else
            assert_true(strtod(text, NULL) == cases[i].v);
        gs_buf_deinit(&b);
    }
    gs_buf b = {0};
    gs_jsonw w;
    gs_jsonw_init(&w, &b);
    gs_jsonw_arr(&w);
    gs_jsonw_int(&w, INT64_MIN);
    gs_jsonw_int(&w, INT64_MAX);
    gs_jsonw_end_arr(&w);
    assert_string_equal(gs_buf_cstr(&b), "[-9223372036854775808,9223372036854775807]");
    gs_buf_deinit(&b);
}

static void json_nests_to_its_limit_and_reports_no_memory(void **state) {
    (void)state;
    gs_buf b = {0};
    gs_jsonw w;
    gs_jsonw_init(&w, &b);
    for (int i = 0; i < GS_JSONW_MAX_DEPTH - 1; i++) {
        gs_jsonw_arr(&w);
        gs_jsonw_int(&w, i);
    }
    for (int i = 0; i < GS_JSONW_MAX_DEPTH - 1; i++)
        gs_jsonw_end_arr(&w);
    json_t *v = json_loadb(b.data, b.len, 0, NULL);
    assert_non_null(v);
    json_decref(v);
    gs_buf_deinit(&b);

    gs_fault_set(GS_FAULT_ALLOC, 1, 0);
    gs_jsonw_init(&w, &b);
    gs_jsonw_obj(&w);
    gs_jsonw_end_obj(&w);
    assert_true(b.failed);
    gs_fault_clear();
    gs_buf_deinit(&b);
}

/* What fn's log lines look like on stderr, into out. */
static void capture(void (*fn)(void), char *out, size_t cap) {
    int saved = dup(STDERR_FILENO);
    FILE *tmp = tmpfile();
    assert_non_null(tmp);
    dup2(fileno(tmp), STDERR_FILENO);
    fn();
    dup2(saved, STDERR_FILENO);
    close(saved);
    ssize_t n = pread(fileno(tmp), out, cap - 1, 0);
    assert_true(n >= 0);
    out[n] = '\0';
    fclose(tmp);
}

static void log_plain(void) {
    errno = 77;
    gs_info("engine", "model loaded file=%s ms=%d", "m.gguf", 412);
    assert_int_equal(errno, 77);
}

static void log_hostile(void) {
    gs_warn("http", "path=%s", "a\nb\x1b[31m\xc2\x9b\xff\\\xe2\x80\xa8\xc3\xa9\r\t\x7f");
}

static void log_long(void) {
    static char big[10000];
    memset(big, '\x01', sizeof big - 1);
    gs_error("http", "%s", big);
}

static void log_quiet(void) {
    gs_debug("http", "not shown at info");
    gs_log_set_level(GS_LOG_ERROR);
    gs_warn("http", "not shown at error");
    gs_error("http", "shown");
    gs_log_set_level(GS_LOG_INFO);
}

static void log_failing(void) {
    gs_fault_set(GS_FAULT_WRITE, 1, ENOSPC);
    gs_info("x", "lost");
    gs_fault_clear();
    gs_info("x", "kept");
}

static void log_lines(void **state) {
    (void)state;
    char out[20000];
    capture(log_plain, out, sizeof out);
    assert_string_equal(out + 20, " info engine: model loaded file=m.gguf ms=412\n");
    int year, month, day, hour, minute, second;
    assert_int_equal(
        sscanf(out, "%4d-%2d-%2dT%2d:%2d:%2dZ", &year, &month, &day, &hour, &minute, &second), 6);
    assert_true(year >= 2024);

    capture(log_hostile, out, sizeof out);
    assert_string_equal(out + 20, " warn http: path=a\\nb\\x1b[31m\\x9b\\xff\\\\\\u2028\xc3\xa9"
                                  "\\x0d\\x09\\x7f\n");
    capture(log_long, out, sizeof out);
    assert_true(strlen(out) <= 4096);
    assert_string_equal(out + strlen(out) - 4, "...\n");
    assert_ptr_equal(strchr(out, '\n'), out + strlen(out) - 1);

    capture(log_quiet, out, sizeof out);
    assert_string_equal(out + 20, " error http: shown\n");
    capture(log_failing, out, sizeof out);
    assert_string_equal(out + 20, " info x: kept\n");

    assert_int_equal(gs_log_level_parse("debug"), GS_LOG_DEBUG);
    assert_int_equal(gs_log_level_parse("error"), GS_LOG_ERROR);
    assert_int_equal(gs_log_level_parse("loud"), -1);
}

static void *log_many(void *arg) {
    for (int i = 0; i < 200; i++)
        gs_info((const char *)arg, "0123456789012345678901234567890123456789");
    return NULL;
}

static void log_from_threads(void) {
    pthread_t t[3];
    static char names[3][2] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&t[i], NULL, log_many, names[i]), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
}

static void log_lines_of_threads_do_not_mix(void **state) {
    (void)state;
    static char out[100000];
    capture(log_from_threads, out, sizeof out);
    int lines = 0;
    for (char *line = out; *line; lines++) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        assert_int_equal(end - line, 20 + 6 + 2 + 1 + 40);
        line = end + 1;
    }
    assert_int_equal(lines, 600);
}

static void clocks_move_forward(void **state) {
    (void)state;
    int64_t before = gs_now_ns(), wall = gs_wall_s();
    usleep(2000);
    int64_t after = gs_now_ns();
    assert_true(after - before >= 2 * GS_NS_PER_MS);
    assert_true(wall > 1700000000);
    assert_true(gs_wall_s() >= wall);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_structure_and_commas),
        cmocka_unit_test(json_strings_are_escaped),
        cmocka_unit_test(json_is_valid_whatever_the_bytes),
        cmocka_unit_test(json_numbers),
        cmocka_unit_test(json_nests_to_its_limit_and_reports_no_memory),
        cmocka_unit_test(log_lines),
        cmocka_unit_test(log_lines_of_threads_do_not_mix),
        cmocka_unit_test(clocks_move_forward),
    };
    return cmocka_run_group_tests_name("base/output", tests, NULL, NULL);
}
