/* The exposition's text, byte for byte. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/sys.h"
#include "metrics/prom.h"
#include "faults/fault.h"

static void check(gs_buf *b, const char *want) {
    assert_false(b->failed);
    assert_string_equal(gs_buf_cstr(b), want);
    gs_buf_deinit(b);
}

static void a_family_has_help_and_type(void **state) {
    (void)state;
    gs_buf b = {0};
    gs_prom_family(&b, "gamasot_steps_total", "counter", "Engine iterations.");
    check(&b,
          "# HELP gamasot_steps_total Engine iterations.\n# TYPE gamasot_steps_total counter\n");
}

static void samples_with_and_without_labels(void **state) {
    (void)state;
    const char *two[] = {"class", "chat", "model", "m", NULL}, *none[] = {NULL};
    gs_buf b = {0};
    gs_prom_sample(&b, "a", 3, two);
    gs_prom_sample(&b, "b", 0, none);
    gs_prom_sample(&b, "c", 0.5, NULL);
    check(&b, "a{class=\"chat\",model=\"m\"} 3\nb 0\nc 0.5\n");
}

static void label_values_are_escaped(void **state) {
    (void)state;
    const char *l[] = {"m", "a\"b\\c\nd", NULL};
    gs_buf b = {0};
    gs_prom_sample(&b, "x", 1, l);
    check(&b, "x{m=\"a\\\"b\\\\c\\nd\"} 1\n");
}

static void large_and_odd_numbers(void **state) {
    (void)state;
    gs_buf b = {0};
    gs_prom_sample(&b, "x", 9007199254740992.0, NULL); /* 2^53: no digit may be lost */
    gs_prom_sample(&b, "x", -1e300, NULL);
    gs_prom_sample(&b, "x", (double)NAN, NULL);
    gs_prom_sample(&b, "x", (double)INFINITY, NULL);
    gs_prom_sample(&b, "x", (double)-INFINITY, NULL);
    const char *s = gs_buf_cstr(&b);
    assert_non_null(strstr(s, "x 9007199254740992\n"));
    assert_non_null(strstr(s, "x NaN\nx +Inf\nx -Inf\n"));
    gs_buf_deinit(&b);
}

static void running_out_of_memory_shows_in_the_buffer(void **state) {
    (void)state;
    const char *l[] = {"m", "x", NULL};
    gs_buf b = {0};
    gs_fault_set(GS_FAULT_ALLOC, 1, 12);
    gs_prom_sample(&b, "x", 1, l);
    gs_fault_clear();
    assert_true(b.failed);
    gs_buf_deinit(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_family_has_help_and_type),
        cmocka_unit_test(samples_with_and_without_labels),
        cmocka_unit_test(label_values_are_escaped),
        cmocka_unit_test(large_and_odd_numbers),
        cmocka_unit_test(running_out_of_memory_shows_in_the_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
