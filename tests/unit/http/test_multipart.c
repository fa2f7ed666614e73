/* multipart/form-data, cut at every byte; forms that are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "faults/fault.h"
#include "http/multipart.h"

#define TYPE "multipart/form-data; boundary=XyZ"

static int on_begin(void *arg, const gs_multipart_part *p) {
    return gs_buf_printf(arg, "[%s|%s|%d:", p->name, p->filename, p->is_file);
}
static int on_data(void *arg, const char *data, size_t n) {
    return gs_buf_add(arg, data, n);
}
static int on_end(void *arg) {
    return gs_buf_str(arg, "]");
}

/* What the handlers heard, or the error; the same for every cut. */
static const char *parse(const char *type, const char *text, size_t n, size_t step, gs_buf *heard) {
    gs_multipart m;
    gs_multipart_handler on = {on_begin, on_data, on_end, heard};
    gs_buf_clear(heard);
    int rc = gs_multipart_init(&m, type, &on);
    if (rc != 0)
        return gs_err_text(rc);
    for (size_t at = 0; at < n && rc == 0; at += step)
        rc = gs_multipart_feed(&m, text + at, n - at < step ? n - at : step);
    rc = gs_multipart_finish(&m);
    gs_multipart_deinit(&m);
    return rc == 0 ? NULL : m.error;
}

static void check(const char *text, size_t n, const char *want, const char *error) {
    gs_buf heard = {0};
    for (size_t step = 1; step <= n; step++) {
        const char *e = parse(TYPE, text, n, step, &heard);
        if (error) {
            assert_non_null(e);
            assert_string_equal(e, error);
            continue;
        }
        if (e)
            fail_msg("%s", e);
        assert_string_equal(gs_buf_cstr(&heard), want);
    }
    gs_buf_deinit(&heard);
}

#define CHECK(text, want) check(text, sizeof(text) - 1, want, NULL)
#define FAILS(text, why)  check(text, sizeof(text) - 1, NULL, why)
#define PART(disposition, data)                                                                    \
    "--XyZ\r\nContent-Disposition: form-data; " disposition "\r\n\r\n" data "\r\n"
#define END "--XyZ--\r\n"

static void forms(void **state) {
    (void)state;
    CHECK(PART("name=\"purpose\"", "batch")
              PART("name=\"file\"; filename=\"a.jsonl\"\r\nContent-Type: text/plain", "{}\n{}\n")
                  END,
          "[purpose||0:batch][file|a.jsonl|1:{}\n{}\n]");
    CHECK(PART("name=a", "") END, "[a||0:]");
    CHECK(END, "");
    CHECK("a preamble\r\n--Xy\r\n" PART("name=a", "1") "--XyZ--an epilogue", "[a||0:1]");
    CHECK("--XyZ \t\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n1\r\n--XyZ--", "[a||0:1]");
    /* What only looks like the delimiter belongs to the data. */
    CHECK(PART("name=a", "\r\n--XyY\r\n-\r\n--Xy\r\r\n\n--XyZ") END,
          "[a||0:\r\n--XyY\r\n-\r\n--Xy\r\r\n\n--XyZ]");
    CHECK(PART("name=a; filename=\"\"", "x") END, "[a||1:x]");
}

static void names_of_files(void **state) {
    (void)state;
    CHECK(PART("name=f; filename=\"../../etc/passwd\"", "") END, "[f|passwd|1:]");
    CHECK(PART("name=f; filename=\"C:\\dir\\x.jsonl\"", "") END, "[f|x.jsonl|1:]");
    CHECK(PART("name=f; filename=\"..\"", "") END, "[f||1:]");
    CHECK(PART("name=f; filename=\"a\\\"b;c\"", "") END, "[f|a\"b;c|1:]");
    CHECK(PART("name=f; filename=\"\xea\xb0\x80.jsonl\"", "") END, "[f|\xea\xb0\x80.jsonl|1:]");
    CHECK(PART("name=f; filename=\"a\tb\"", "") END, "[f|a_b|1:]");
    CHECK(PART("name=f; filename=\"ab\xff\"", "") END, "[f|ab|1:]");
    CHECK(PART("filename=x; name=f", "") END, "[f|x|1:]");
    CHECK(PART("name=f; filename=\"a/.\"", "") END, "[f||1:]");
    CHECK(PART("name=f; filename=\"a\x7f\\\\\"", "") END, "[f||1:]"); /* a folder, in the end */
    CHECK(PART("name=\"a\\\"b\"; filename*=x; named=y", "") END, "[a\\\"b||0:]");
    CHECK(PART("attachment; name=f", "") END, "[f||0:]");
    CHECK(PART("name=f; filename=\"\\x\"", "") END, "[f|x|1:]");
    CHECK(PART("name=f; filename=\\", "") END, "[f||1:]");
    CHECK(PART("name=f; filename=\"\\\\\\\"\"", "") END, "[f|\"|1:]");
}

/* A handler's failure is the form's, then and ever after. */
static int fail_begin(void *arg, const gs_multipart_part *p) {
    (void)arg, (void)p;
    return GS_ERR_NO_SPACE;
}
static int fail_data(void *arg, const char *data, size_t n) {
    (void)arg, (void)data, (void)n;
    return GS_ERR_NO_SPACE;
}
static int fail_end(void *arg) {
    (void)arg;
    return GS_ERR_NO_SPACE;
}

static void handlers_that_fail(void **state) {
    (void)state;
    static const char text[] = PART("name=a", "1") END;
    gs_buf heard = {0};
    const gs_multipart_handler on[] = {{fail_begin, on_data, on_end, &heard},
                                       {on_begin, fail_data, on_end, &heard},
                                       {on_begin, on_data, fail_end, &heard}};
    for (int i = 0; i < 3; i++) {
        gs_multipart m;
        assert_int_equal(gs_multipart_init(&m, TYPE, &on[i]), 0);
        assert_int_equal(gs_multipart_feed(&m, text, sizeof(text) - 1), GS_ERR_NO_SPACE);
        assert_int_not_equal(gs_multipart_feed(&m, text, sizeof(text) - 1), 0);
        assert_int_not_equal(gs_multipart_finish(&m), 0);
        gs_multipart_deinit(&m);
    }
    gs_buf_deinit(&heard);
}

static void what_is_no_form(void **state) {
    (void)state;
    FAILS("", "the form has no end");
    FAILS("nothing", "the form has no end");
    FAILS(PART("name=a", "1"), "the form has no end");
    FAILS("--XyZ", "the form has no end");
    FAILS("--XyZ\r\n\r\n1\r\n" END, "a part has no Content-Disposition header");
    FAILS("--XyZ\r\nX: y\r\n\r\n1\r\n" END, "a part has no Content-Disposition header");
    FAILS("--XyZjunk\r\n", "a delimiter's line goes on");
    FAILS(PART("x=a", "1") END, "a part has no name, or a very long one");
    FAILS(PART("name=\"a", "1") END, "a part has no name, or a very long one");
    FAILS(PART("name=a\r\nContent-Disposition: form-data; name=b", "1") END,
          "a part has two Content-Disposition headers");
    FAILS("--XyZ\r\nContent-Disposition: form-data; name=a\0b\r\n\r\n1\r\n" END,
          "a part's header holds a zero byte");
}

static void what_is_too_much(void **state) {
    (void)state;
    gs_buf text = {0}, heard = {0};
    for (int n = GS_MULTIPART_NAME - 2; n < GS_MULTIPART_NAME + 2;
         n++) { /* a name that does not fit */
        gs_buf_clear(&text);
        gs_buf_printf(&text, PART("name=%0*d", "1") END, n, 1);
        const char *error = parse(TYPE, text.data, text.len, 7, &heard);
        if (n < GS_MULTIPART_NAME)
            assert_null(error);
        else
            assert_string_equal(error, "a part has no name, or a very long one");
    }
    /* A file's is cut, between two characters. */
    gs_buf_clear(&text);
    gs_buf_str(&text, "--XyZ\r\nContent-Disposition: form-data; name=f; filename=x");
    for (int i = 0; i < 400; i++)
        gs_buf_str(&text, "\xea\xb0\x80");
    gs_buf_str(&text, "\r\n\r\n\r\n" END);
    assert_null(parse(TYPE, text.data, text.len, 7, &heard));
    assert_true(heard.len % 3 == 2 && heard.len > 100 && heard.len < 400);
    gs_buf_clear(&text);
    for (int i = 0; i < 33; i++)
        gs_buf_str(&text, PART("name=a", "1"));
    gs_buf_str(&text, END);
    assert_string_equal(parse(TYPE, text.data, text.len, 7, &heard), "there are too many parts");
    gs_buf_clear(&text);
    gs_buf_str(&text, "--XyZ\r\nX: ");
    for (int i = 0; i < 9000; i++)
        gs_buf_char(&text, 'x');
    assert_string_equal(parse(TYPE, text.data, text.len, 7, &heard),
                        "a part's headers are too long");
    gs_buf_clear(&text);
    gs_buf_str(&text, "--XyZ");
    for (int i = 0; i < 90; i++)
        gs_buf_char(&text, ' ');
    assert_string_equal(parse(TYPE, text.data, text.len, 7, &heard),
                        "a delimiter is followed by too much white space");
    gs_buf_deinit(&text);
    gs_buf_deinit(&heard);
}

static void boundaries(void **state) {
    (void)state;
    static const char *const bad[] = {
        NULL,
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"\"",
        "multipart/form-data; boundary=\"unclosed",
        "multipart/form-data; boundary=a b",
        "multipart/form-data; boundary=a\"b",
        "multipart/form-data; xboundary=a",
        "multipart/form-data; boundary="
        "0123456789012345678901234567890123456789012345678901234567890123456789x",
    };
    gs_buf heard = {0};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_string_equal(parse(bad[i], "", 0, 1, &heard), "unsupported content type");
    static const char text[] = PART("name=a", "1") END;
    assert_null(parse("Multipart/Form-Data; charset=utf-8; Boundary=\"XyZ\"", text,
                      sizeof(text) - 1, 3, &heard));
    assert_null(parse("multipart/form-data;boundary=XyZ ; x=y", text, sizeof(text) - 1, 3, &heard));
    assert_null(parse("multipart/form-data;boundary=XyZ\t", text, sizeof(text) - 1, 3, &heard));
    static const char marks[] =
        "--'()+_,-./:=?aZ09\r\nContent-Disposition: form-data; name=a\r\n\r\n"
        "1\r\n--'()+_,-./:=?aZ09--";
    assert_null(parse("multipart/form-data; boundary=\"'()+_,-./:=?aZ09\"", marks,
                      sizeof(marks) - 1, 3, &heard));
    assert_string_equal(gs_buf_cstr(&heard), "[a||0:1]");
    gs_buf_deinit(&heard);
}

/* Whatever could not be kept has failed the form. */
static void no_memory(void **state) {
    (void)state;
    static const char text[] = PART("name=a", "1") END;
    uint64_t n = 1;
    for (uint64_t i = 0; i <= n; i++) {
        gs_multipart m;
        gs_buf heard = {0};
        const gs_multipart_handler on = {on_begin, on_data, on_end, &heard};
        gs_fault_set(GS_FAULT_ALLOC, i ? i : UINT64_MAX, 0);
        int rc = gs_multipart_init(&m, TYPE, &on);
        for (size_t at = 0; at < sizeof(text) - 1 && rc == 0; at += 7)
            rc = gs_multipart_feed(&m, text + at,
                                   sizeof(text) - 1 - at < 7 ? sizeof(text) - 1 - at : 7);
        n = i ? n : gs_fault_calls(GS_FAULT_ALLOC);
        gs_fault_clear();
        assert_int_equal(rc, i ? GS_ERR_NOMEM : 0);
        assert_int_equal(gs_multipart_finish(&m) == 0, i == 0);
        gs_multipart_deinit(&m);
        gs_buf_deinit(&heard);
    }
    assert_true(n >= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms),
        cmocka_unit_test(names_of_files),
        cmocka_unit_test(handlers_that_fail),
        cmocka_unit_test(what_is_no_form),
        cmocka_unit_test(what_is_too_much),
        cmocka_unit_test(boundaries),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
