/* The table of pages: complete, ordered, and its compressed content is what it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/sys.h"
#include "web/web.h"
#include "faults/fault.h"

static void test_find(void **state) {
    (void)state;
    static const char *const known[] = {"/dashboard",    "/chat",          "/web/icon.svg",
                                        "/web/uplot.js", "/web/marked.js", "/web/purify.js"};
    static const char *const unknown[] = {"",
                                          "/",
                                          "/web",
                                          "/web/",
                                          "/web/../dashboard",
                                          "/dashboard.html",
                                          "/DASHBOARD",
                                          "/web/nothing.js"};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const gs_web_file *f = gs_web_find(known[i]);
        assert_non_null(f);
        assert_string_equal(f->path, known[i]);
    }
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        assert_null(gs_web_find(unknown[i]));
    for (size_t i = 0; i < gs_web_n_files; i++)
        assert_ptr_equal(gs_web_find(gs_web_files[i].path), &gs_web_files[i]);
}

static void test_content(void **state) {
    (void)state;
    for (size_t i = 0; i < gs_web_n_files; i++) {
        const gs_web_file *f = &gs_web_files[i];
        gs_buf out = {0};
        assert_int_equal(gs_buf_str(&out, "before"), GS_OK);
        assert_int_equal(gs_web_content(f, &out), GS_OK);
        assert_int_equal(out.len, 6 + f->n);
        assert_memory_equal(out.data, "before", 6);
        gs_buf_deinit(&out);
    }
    gs_buf page = {0};
    assert_int_equal(gs_web_content(gs_web_find("/dashboard"), &page), GS_OK);
    assert_memory_equal(page.data, "<!doctype html>", 15);
    gs_buf_deinit(&page);
}

/* A broken table is an error, and memory that is missing, too; neither adds anything. */
static void test_broken(void **state) {
    (void)state;
    gs_buf out = {0};
    gs_web_file f = *gs_web_find("/dashboard");
    f.n_gz /= 2;
    assert_int_equal(gs_web_content(&f, &out), GS_ERR_INTERNAL);
    f = *gs_web_find("/dashboard");
    f.n += 1;
    assert_int_equal(gs_web_content(&f, &out), GS_ERR_INTERNAL);
    assert_int_equal(out.len, 0);
    gs_buf_deinit(&out);
    f.n -= 1;
    uint64_t n = 0;
    for (uint64_t nth = 1; nth < 100; nth++) {
        gs_buf b = {0};
        gs_fault_set(GS_FAULT_ALLOC, nth, 12);
        int rc = gs_web_content(&f, &b);
        gs_fault_clear();
        gs_buf_deinit(&b);
        if (rc == GS_OK)
            break;
        assert_int_equal(rc, GS_ERR_NOMEM);
        n = nth;
    }
    assert_true(n > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
