#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/sys.h"
#include "faults/fault.h"

#include <string.h>

static int teardown_faults(void **state) {
    (void)state;
    gs_fault_clear();
    return 0;
}

static void buf_appends(void **state) {
    (void)state;
    gs_buf b = {0};
    assert_int_equal(gs_buf_str(&b, "ab"), GS_OK);
    assert_int_equal(gs_buf_char(&b, 'c'), GS_OK);
    assert_int_equal(gs_buf_add(&b, "d\0e", 3), GS_OK);
    assert_int_equal(gs_buf_add(&b, NULL, 0), GS_OK);
    assert_int_equal(gs_buf_printf(&b, "%d-%s", 42, "x"), GS_OK);
    assert_int_equal(b.len, 10);
    assert_memory_equal(gs_buf_cstr(&b), "abcd\0e42-x", 11);
    assert_int_equal(b.len, 10);
    gs_buf_drop_front(&b, 6);
    assert_string_equal(gs_buf_cstr(&b), "42-x");
    gs_buf_drop_front(&b, 4);
    assert_string_equal(gs_buf_cstr(&b), "");
    gs_buf_deinit(&b);
    assert_null(b.data);
}

static void buf_grows_to_any_length(void **state) {
    (void)state;
    gs_buf b = {0};
    for (int i = 0; i < 100000; i++)
        assert_int_equal(gs_buf_char(&b, (char)('a' + i % 26)), GS_OK);
    assert_int_equal(b.len, 100000);
    for (int i = 0; i < 100000; i += 997)
        assert_int_equal(b.data[i], 'a' + i % 26);
    const char *big = b.data;
    gs_buf copy = {0};
    assert_int_equal(gs_buf_printf(&copy, "%.*s", 100000, big), GS_OK);
    assert_int_equal(copy.len, 100000);
    assert_memory_equal(copy.data, b.data, 100000);
    gs_buf_deinit(&copy);
    gs_buf_deinit(&b);
}

static void buf_overflow_leaves_it_unchanged(void **state) {
    (void)state;
    gs_buf b = {0};
    assert_int_equal(gs_buf_str(&b, "abc"), GS_OK);
    assert_int_equal(gs_buf_reserve(&b, SIZE_MAX - 1), GS_ERR_NOMEM);
    assert_true(b.failed);
    assert_int_equal(b.len, 3);
    assert_memory_equal(b.data, "abc", 3);
    /* Sticky: a text with a hole in it must not pass for a whole one. */
    assert_int_equal(gs_buf_char(&b, 'd'), GS_ERR_NOMEM);
    assert_null(gs_buf_cstr(&b));
    gs_buf_clear(&b);
    assert_false(b.failed);
    assert_int_equal(gs_buf_char(&b, 'd'), GS_OK);
    assert_string_equal(gs_buf_cstr(&b), "d");
    gs_buf_deinit(&b);
}

static void buf_survives_every_failing_allocation(void **state) {
    (void)state;
    gs_fault_set(GS_FAULT_ALLOC, 0, 0);
    uint64_t n_points = 0;
    for (uint64_t nth = 0; nth <= n_points; nth++) { /* round 0 counts the points */
        gs_fault_set(GS_FAULT_ALLOC, nth, 0);
        gs_buf b = {0};
        for (int i = 0; i < 50; i++)
            gs_buf_printf(&b, "line %d\n", i);
        size_t len = 99;
        char *text = gs_buf_take(&b, &len);
        if (nth == 0) {
            n_points = gs_fault_calls(GS_FAULT_ALLOC);
            assert_true(n_points >= 3);
            assert_non_null(text);
            assert_int_equal(len, 390);
            assert_int_equal(strlen(text), 390);
        } else {
            assert_null(text);
            assert_int_equal(len, 0);
        }
        assert_null(b.data);
        gs_free(text);
    }
}

static void buf_take_hands_over(void **state) {
    (void)state;
    gs_buf b = {0};
    char *empty = gs_buf_take(&b, NULL);
    assert_string_equal(empty, "");
    gs_free(empty);
    gs_buf_str(&b, "xyz");
    size_t len;
    char *s = gs_buf_take(&b, &len);
    assert_string_equal(s, "xyz");
    assert_int_equal(len, 3);
    assert_int_equal(b.len, 0);
    assert_null(b.data);
    gs_free(s);
}

static void ids_grow_and_fail(void **state) {
    (void)state;
    gs_ids v = {0};
    for (int32_t i = 0; i < 1000; i++)
        assert_int_equal(gs_ids_push(&v, i * 3), GS_OK);
    assert_int_equal(v.len, 1000);
    assert_int_equal(v.data[999], 2997);
    assert_int_equal(gs_ids_reserve(&v, SIZE_MAX / 4), GS_ERR_NOMEM);
    assert_int_equal(gs_ids_reserve(&v, SIZE_MAX), GS_ERR_NOMEM);
    gs_fault_set(GS_FAULT_ALLOC, 1, 0);
    assert_int_equal(gs_ids_reserve(&v, 100000), GS_ERR_NOMEM);
    assert_int_equal(v.len, 1000);
    assert_int_equal(v.data[999], 2997);
    gs_ids_deinit(&v);
    assert_null(v.data);
}

static void arena_gives_separate_aligned_memory(void **state) {
    (void)state;
    gs_arena a = {0};
    unsigned char *p[300];
    for (size_t i = 0; i < 300; i++) {
        size_t size = (i * 37) % 5000;
        p[i] = gs_arena_alloc(&a, size);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        memset(p[i], (int)(i & 0xff), size);
    }
    for (size_t i = 0; i < 300; i++) /* nobody wrote into anybody's bytes */
        for (size_t k = 0; k < (i * 37) % 5000; k++)
            assert_int_equal(p[i][k], i & 0xff);
    unsigned char *zero = gs_arena_calloc(&a, 100, 70);
    for (int i = 0; i < 7000; i++)
        assert_int_equal(zero[i], 0);
    assert_string_equal(gs_arena_strndup(&a, "token", 3), "tok");
    assert_string_equal(gs_arena_strndup(&a, "token", 30), "token");
    assert_true(a.used_bytes > 300 * 1000);
    gs_arena_deinit(&a);
    assert_null(a.head);
    gs_arena_deinit(&a);
}

static void arena_small_allocations_share_chunks(void **state) {
    (void)state;
    gs_fault_set(GS_FAULT_ALLOC, 0, 0);
    gs_arena a = {0};
    for (int i = 0; i < 10000; i++)
        assert_non_null(gs_arena_alloc(&a, 16));
    assert_true(gs_fault_calls(GS_FAULT_ALLOC) < 10);
    gs_arena_deinit(&a);
}

static void arena_refuses_what_it_cannot_have(void **state) {
    (void)state;
    gs_arena a = {0};
    assert_null(gs_arena_alloc(&a, SIZE_MAX));
    assert_null(gs_arena_alloc(&a, SIZE_MAX - 20));
    assert_null(gs_arena_calloc(&a, SIZE_MAX / 2, 3));
    gs_fault_set(GS_FAULT_ALLOC, 1, 0);
    assert_null(gs_arena_alloc(&a, 10));
    assert_non_null(gs_arena_alloc(&a, 10));
    gs_fault_set(GS_FAULT_ALLOC, 1, 0);
    assert_string_equal(gs_arena_strndup(&a, "fits the chunk", 4), "fits");
    assert_null(gs_arena_alloc(&a, 9000));
    gs_arena_deinit(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buf_appends),
        cmocka_unit_test(buf_grows_to_any_length),
        cmocka_unit_test(buf_overflow_leaves_it_unchanged),
        cmocka_unit_test_teardown(buf_survives_every_failing_allocation, teardown_faults),
        cmocka_unit_test(buf_take_hands_over),
        cmocka_unit_test_teardown(ids_grow_and_fail, teardown_faults),
        cmocka_unit_test(arena_gives_separate_aligned_memory),
        cmocka_unit_test_teardown(arena_small_allocations_share_chunks, teardown_faults),
        cmocka_unit_test_teardown(arena_refuses_what_it_cannot_have, teardown_faults),
    };
    return cmocka_run_group_tests_name("base/buf", tests, NULL, NULL);
}
