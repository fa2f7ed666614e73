/*
 * Which texts are JSON here (RFC 8259, I-JSON's rules for names and numbers), and that reading any
 * of them takes little of the stack. Every value stands in three places.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "api/params.h"
#include "base/buf.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_BYTES (1 << 20) /* every variable has a wall around it there */
#else
#define STACK_BYTES (64 << 10)
#endif

/* Texts may hold zero bytes. */
typedef struct text {
    const char *s;
    size_t n;
} text;
#define T(s)                                                                                       \
    { s, sizeof(s) - 1 }

static const text good[] = {
    T("0"),
    T("-0"),
    T("1"),
    T("-1"),
    T("10"),
    T("1.0"),
    T("0.1"),
    T("-0.1"),
    T("1e1"),
    T("1E1"),
    T("1e+1"),
    T("1e-1"),
    T("0e1"),
    T("0e+1"),
    T("1.5e10"),
    T("123456789012345678"),
    T("9223372036854775807"),
    T("-9223372036854775808"),
    T("1e308"),
    T("1e-308"),
    T("0.000000000000000000000000000000000000000000000000000000000001"),
    T("true"),
    T("false"),
    T("null"),
    T("\"\""),
    T("\"a\""),
    T("\" \""),
    T("\"\\\"\""),
    T("\"\\\\\""),
    T("\"\\/\""),
    T("\"\\b\\f\\n\\r\\t\""),
    T("\"\\u0020\""),
    T("\"\\u00e9\""),
    T("\"\\uD83C\\uDF72\""),
    T("\"\\uFFFF\""),
    T("\"\\u200b\""),
    T("\"\x7f\""),
    T("\"\xc3\xa9\""),
    T("\"\xe2\x80\xa8\xe2\x80\xa9\""),
    T("\"\xf0\x9f\x8d\xb2\""),
    T("\"\xf4\x8f\xbf\xbf\""),
    T("\"\xed\x9f\xbf\""),
    T("\"//\""),
    T("\"[{\""),
    T("[]"),
    T("[ ]"),
    T("[[]]"),
    T("[1]"),
    T("[1,2]"),
    T("[null,true]"),
    T("{}"),
    T("{ }"),
    T("{\"\":0}"),
    T("{\"b\":1}"),
    T("{\"b\":1,\"c\":2}"),
    T("\t1"),
    T("1\n"),
    T(" \r\n\t[ 1 , 2 ] "),
};

static const text bad[] = {
    T(""),
    T("+1"),
    T("01"),
    T("-01"),
    T("00"),
    T("1."),
    T(".1"),
    T("-.1"),
    T("1.e1"),
    T("1e"),
    T("1e+"),
    T("1e1.5"),
    T("1ee1"),
    T("0x1"),
    T("1_000"),
    T("1,000"),
    T("--1"),
    T("-"),
    T("- 1"),
    T("1 2"),
    T("NaN"),
    T("-NaN"),
    T("Infinity"),
    T("-Infinity"),
    T("Inf"),
    T("nan"),
    T("1f"),
    T("1e999"),
    T("-1e999"),
    T("9223372036854775808"),
    T("-9223372036854775809"),
    T("123456789012345678901234567890"),
    T("True"),
    T("TRUE"),
    T("tru"),
    T("truee"),
    T("nul"),
    T("Null"),
    T("undefined"),
    T("None"),
    T("a"),
    T("'a'"),
    T("\"a"),
    T("a\""),
    T("\"a\"b"),
    T("\"\\\""),
    T("\"\\a\""),
    T("\"\\x41\""),
    T("\"\\'\""),
    T("\"\\0\""),
    T("\"\\U0041\""),
    T("\"\\u\""),
    T("\"\\u1\""),
    T("\"\\u123\""),
    T("\"\\u123g\""),
    T("\"\\u 123\""),
    T("\"\\uD83C\""),
    T("\"\\uD83C\\u0041\""),
    T("\"\\uDF72\""),
    T("\"\\uDF72\\uD83C\""),
    T("\"\\uD83C\\uD83C\""),
    T("\"\\u0000\""),
    T("\"a\\u0000b\""),
    T("\"\n\""),
    T("\"\t\""),
    T("\"\x1f\""),
    T("\"\x01\""),
    T("\"\0\""),
    T("\0"),
    T("1\0"),
    T("\"\xff\""),
    T("\"\xc3\""),
    T("\"\xc0\xaf\""),
    T("\"\xe0\x80\xaf\""),
    T("\"\xed\xa0\x80\""),
    T("\"\xed\xbf\xbf\""),
    T("\"\xf4\x90\x80\x80\""),
    T("\"\xf8\x88\x80\x80\x80\""),
    T("\"\x80\""),
    T("\"\xe2\x80\""),
    T("\xef\xbb\xbf"
      "1"),
    T("\xc2\xa0"
      "1"),
    T("[1,]"),
    T("[,1]"),
    T("[,]"),
    T("[1 2]"),
    T("[1;2]"),
    T("[1"),
    T("1]"),
    T("[1}"),
    T("[[1]"),
    T("[\"a\":1]"),
    T("{"),
    T("{\"b\"}"),
    T("{\"b\":}"),
    T("{\"b\" 1}"),
    T("{\"b\"::1}"),
    T("{\"b\":1,}"),
    T("{,\"b\":1}"),
    T("{\"b\":1,,\"c\":2}"),
    T("{b:1}"),
    T("{'b':1}"),
    T("{1:1}"),
    T("{null:1}"),
    T("{[]:1}"),
    T("{\"b\":1]"),
    T("{\"b\":1,\"b\":1}"),
    T("{\"b\":1,\"\\u0062\":2}"),
    T("{\"b\":1 \"c\":2}"),
    T("{\"b\":1}}"),
    T("// x\n1"),
    T("1 // x"),
    T("/* x */1"),
    T("# x\n1"),
    T("\x0b"
      "1"),
    T("\x0c"
      "1"),
    T("<a>"),
    T("*"),
    T("&"),
    T("{\"\\uD83C\":1}"),
    T("{\"\xff\":1}"),
    T("{\"\0\":1}"),
};

static const char *const places[][2] = {
    {"{\"a\":", "}"}, {"{\"a\":[", "]}"}, {"{\"a\":{\"x\":", "}}"}};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static bool is_json(const char *s, size_t n) {
    gs_api_error e = {0};
    json_t *root = gs_api_parse_json(s, n, &e);
    if (!root)
        assert_true(e.code < 0 && e.message[0]);
    json_decref(root);
    return root != NULL;
}

static int check(const text *texts, size_t n, bool want) {
    int n_checked = 0;
    gs_buf b = {0};
    for (size_t i = 0; i < n; i++) {
        for (size_t p = 0; p < COUNT(places); p++) {
            /* Nothing is a value everywhere but in an array. */
            if (texts[i].n == 0 && p == 1)
                continue;
            gs_buf_clear(&b);
            gs_buf_str(&b, places[p][0]);
            gs_buf_add(&b, texts[i].s, texts[i].n);
            gs_buf_str(&b, places[p][1]);
            if (is_json(b.data, b.len) != want)
                fail_msg("%s: %.*s", want ? "refused" : "accepted", (int)b.len, b.data);
            n_checked++;
        }
    }
    gs_buf_deinit(&b);
    return n_checked;
}

static void every_verdict(void **state) {
    (void)state;
    const int n = check(good, COUNT(good), true) + check(bad, COUNT(bad), false);
    assert_true(n >= 300);
    /* The outermost is an object, once. */
    static const text not_one[] = {T("[]"),  T("1"), T("\"a\""), T("null"),          T("{}{}"),
                                   T("{}1"), T(" "), T("{} x"),  T("\xef\xbb\xbf{}")};
    for (size_t i = 0; i < COUNT(not_one); i++) {
        gs_api_error e = {0};
        json_t *root = gs_api_parse_json(not_one[i].s, not_one[i].n, &e);
        assert_true(!root || !json_is_object(root) || i < 4);
        json_decref(root);
    }
}

static void *read_bombs(void *arg) {
    gs_buf b = {0};
    const char *const opening[] = {"[", "{\"a\":", "[{\"a\":[", "[[],", "{\"a\":0,\"b\":"};
    int *n_good = arg;
    for (size_t k = 0; k < COUNT(opening); k++) {
        for (int depth = 1; depth <= 10000; depth = depth < 70 ? depth + 1 : depth * 3) {
            gs_buf_clear(&b);
            gs_buf_str(&b, "{\"a\":");
            for (int i = 0; i < depth; i++)
                gs_buf_str(&b, opening[k]);
            (void)is_json(b.data, b.len); /* never closed */
        }
    }
    /* as deep as it may be, and closed */
    gs_buf_clear(&b);
    gs_buf_str(&b, "{\"a\":");
    for (int i = 1; i < GS_JSON_DEPTH; i++)
        gs_buf_char(&b, '[');
    for (int i = 1; i < GS_JSON_DEPTH; i++)
        gs_buf_char(&b, ']');
    gs_buf_char(&b, '}');
    *n_good += is_json(b.data, b.len);
    gs_buf_deinit(&b);
    return NULL;
}

/* More of the stack than this thread has would end the process. */
static void the_stack_stays_small(void **state) {
    (void)state;
    pthread_attr_t attr;
    pthread_t t;
    int n_good = 0;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&t, &attr, read_bombs, &n_good), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    pthread_attr_destroy(&attr);
    assert_int_equal(n_good, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_verdict),
        cmocka_unit_test(the_stack_stays_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
