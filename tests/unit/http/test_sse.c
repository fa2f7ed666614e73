/* Event streams: the standard's own examples, every cut, every bound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "faults/fault.h"
#include "http/sse.h"

static int hear(void *arg, const char *type, const char *data, size_t n) {
    assert_true(strlen(data) <= n);
    return gs_buf_printf(arg, "[%s|%s]", type, data);
}

static int parse(const char *bytes, size_t n, size_t step, size_t max, gs_buf *heard) {
    gs_sse s;
    int rc = 0;
    gs_sse_init(&s, max, hear, heard);
    for (size_t at = 0; at < n && rc == 0; at += step)
        rc = gs_sse_feed(&s, bytes + at, n - at < step ? n - at : step);
    gs_sse_deinit(&s);
    return rc;
}

typedef struct expectation {
    const char *stream, *events;
} expectation;

static const expectation expectations[] = {
    {"data: one\n\n", "[message|one]"},
    {"data: one\r\rdata: two\r\n\r\n", "[message|one][message|two]"},
    {"data:one\n\ndata:  two\n\n", "[message|one][message| two]"},
    {"data: YHOO\ndata: +2\ndata: 10\n\n", "[message|YHOO\n+2\n10]"},
    {": a comment\n\ndata\n\ndata\ndata\n\ndata:", "[message|][message|\n]"},
    {"event: add\ndata: 73857293\n\nevent: lost\n\ndata: 1\n\n", "[add|73857293][message|1]"},
    {"\xEF\xBB\xBF"
     "data: x\n\n",
     "[message|x]"},
    {"id: 3\nretry: 10\nother: y\ndata: x\n\n", "[message|x]"},
    {"date: 1\nevens: y\n: data\ndata: x\n\n", "[message|x]"},
    /* No type is longer than this. */
    {"event: 0123456789012345678901234567890123456789012345678901234567890123456789\ndata: x\n\n",
     "[01234567890123456789012345678901234567890123456|x]"},
    {"data: half", ""},
    {"data: half\n", ""},
    {"\n\n\r\n\r", ""},
    {"data: {\"a\":\"b: c\"}\n\ndata: [DONE]\n\n", "[message|{\"a\":\"b: c\"}][message|[DONE]]"},
};

static void test_streams(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(expectations) / sizeof(expectations[0]); i++) {
        const expectation *x = &expectations[i];
        const size_t n = strlen(x->stream);
        for (size_t step = 1; step <= n; step++) {
            gs_buf heard = {0};
            assert_int_equal(parse(x->stream, n, step, 4096, &heard), 0);
            assert_string_equal(gs_buf_cstr(&heard), x->events);
            gs_buf_deinit(&heard);
        }
    }
}

/* In two pieces, at every byte. */
static void test_cuts(void **state) {
    (void)state;
    static const char stream[] =
        "event: a\r\ndata: caf\xC3\xA9\r\ndata: x\r\n\r\n: c\r\n\r\ndata:y\r\n\r\n";
    const size_t n = sizeof(stream) - 1;
    for (size_t cut = 0; cut <= n; cut++) {
        gs_buf heard = {0};
        gs_sse s;
        gs_sse_init(&s, 64, hear, &heard);
        assert_int_equal(gs_sse_feed(&s, stream, cut), 0);
        assert_int_equal(gs_sse_feed(&s, stream + cut, n - cut), 0);
        gs_sse_deinit(&s);
        assert_string_equal(gs_buf_cstr(&heard), "[a|caf\xC3\xA9\nx][message|y]");
        gs_buf_deinit(&heard);
    }
}

/* A line, or an event of many lines, that never ends: refused, whatever the pieces. */
static void test_bounds(void **state) {
    (void)state;
    char line[200], lines[400];
    memset(line, 'x', sizeof(line));
    memcpy(line, "data: ", 6);
    for (size_t i = 0; i < sizeof(lines); i += 8)
        memcpy(lines + i, "data: x\n", 8);
    for (size_t step = 1; step <= sizeof(line); step += 7) {
        gs_buf heard = {0};
        assert_int_equal(parse(line, sizeof(line), step, 100, &heard), GS_ERR_TOO_LARGE);
        assert_int_equal(parse(lines, sizeof(lines), step, 60, &heard), GS_ERR_TOO_LARGE);
        assert_int_equal(heard.len, 0);
        gs_buf_deinit(&heard);
    }
}

static int refuse(void *arg, const char *type, const char *data, size_t n) {
    (void)type;
    (void)data;
    (void)n;
    (*(int *)arg)++;
    return GS_ERR_FORMAT;
}

/* Once refused, it stays so and nothing more is told. */
static void test_refused(void **state) {
    (void)state;
    int n = 0;
    gs_sse s;
    gs_sse_init(&s, 64, refuse, &n);
    assert_int_equal(gs_sse_feed(&s, "data: a\n\ndata: b\n\n", 18), GS_ERR_FORMAT);
    assert_int_equal(gs_sse_feed(&s, "data: c\n\n", 9), GS_ERR_FORMAT);
    assert_int_equal(n, 1);
    gs_sse_deinit(&s);
}

static int count(void *arg, const char *type, const char *data, size_t n) {
    (void)type;
    assert_string_equal(data, "a\nb");
    assert_int_equal(n, 3);
    (*(int *)arg)++;
    return 0;
}

/* An event is told whole, or the stream has failed for good. */
static void test_out_of_memory(void **state) {
    (void)state;
    static const char stream[] = "data: a\ndata: b\n\n";
    for (size_t step = 1; step <= sizeof(stream) - 1; step++) {
        uint64_t n = 1;
        for (uint64_t i = 0; i <= n; i++) {
            int rc = 0, heard = 0;
            gs_sse s;
            gs_sse_init(&s, 64, count, &heard);
            gs_fault_set(GS_FAULT_ALLOC, i ? i : UINT64_MAX, 0);
            for (size_t at = 0; at < sizeof(stream) - 1 && rc == 0; at += step) {
                const size_t left = sizeof(stream) - 1 - at;
                rc = gs_sse_feed(&s, stream + at, left < step ? left : step);
            }
            n = i ? n : gs_fault_calls(GS_FAULT_ALLOC);
            gs_fault_clear();
            assert_int_equal(rc, i ? GS_ERR_NOMEM : 0);
            assert_int_equal(heard, i == 0);
            assert_int_equal(gs_sse_feed(&s, "\n", 1), rc);
            gs_sse_deinit(&s);
        }
        assert_true(n > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),       cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_bounds),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
