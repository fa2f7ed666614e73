#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sys.h"
#include "cgroup.h"

#define MB ((size_t)1 << 20)

static void a_mapping_counts_as_it_is_written(void **state) {
    (void)state;
    gs_memory before, m;
    gs_memory_read(&before);
    char *p = gs_pages_alloc(64 * MB);
    assert_non_null(p);
    gs_memory_add(GS_PAGES_KV, p, 64 * MB);
    gs_memory_read(&m);
    assert_int_equal(m.reserved[GS_PAGES_KV] - before.reserved[GS_PAGES_KV], 64 * MB);
    assert_true(m.resident[GS_PAGES_KV] - before.resident[GS_PAGES_KV] < 4 * MB);
    memset(p, 1, 32 * MB); /* huge pages may round it up */
    gs_memory_read(&m);
    const uint64_t written = m.resident[GS_PAGES_KV] - before.resident[GS_PAGES_KV];
    assert_true(written >= 32 * MB && written <= 34 * MB);
    assert_int_equal(m.resident[GS_PAGES_WEIGHTS], before.resident[GS_PAGES_WEIGHTS]);
    assert_true(m.anonymous + m.swapped >= before.anonymous + before.swapped + 31 * MB);
    gs_pages_free(p, 64 * MB); /* takes it out */
    gs_memory_read(&m);
    assert_int_equal(m.reserved[GS_PAGES_KV], before.reserved[GS_PAGES_KV]);
    assert_int_equal(m.resident[GS_PAGES_KV], before.resident[GS_PAGES_KV]);
}

static void the_table_is_bounded(void **state) {
    (void)state;
    static char bytes[200];
    gs_memory m;
    for (size_t i = 0; i < sizeof bytes; i++)
        gs_memory_add(GS_PAGES_STEP, &bytes[i], 1);
    gs_memory_add(GS_PAGES_STEP, NULL, 1); /* an allocation that failed */
    gs_memory_read(&m);
    assert_int_equal(m.reserved[GS_PAGES_STEP], 128);
    for (size_t i = 0; i < sizeof bytes; i++)
        gs_memory_remove(&bytes[i]);
    gs_memory_remove(NULL);
    gs_memory_read(&m);
    assert_int_equal(m.reserved[GS_PAGES_STEP], 0);
}

static void a_group_leaves_what_it_does_not_need(void **state) {
    (void)state;
    char dir[] = "/tmp/gamasot-memory-XXXXXX", command[100];
    assert_non_null(mkdtemp(dir));
    put_file(dir, "", "memory.max", "max\n");
    put_file(dir, "/a", "memory.max", "1000000\n");
    put_file(dir, "/a", "memory.current", "700000\n");
    put_file(dir, "/a", "memory.stat", "anon 600000\nfile 100000\ninactive_file 50000\n");
    put_file(dir, "/a/b", "memory.max", "900000\n");
    put_file(dir, "/a/b", "memory.current", "100000\n");
    put_file(dir, "/a/c", "memory.max", "1000\n");
    put_file(dir, "/a/c", "memory.current", "5000\n"); /* over its limit already */
    put_file(dir, "/d", "memory.max", "nonsense\n");
    put_file(dir, "/e", "memory.max", "4000\n"); /* and nothing more is known */
    assert_int_equal(gs_memory_of_cgroup(dir, "/a"), 350000);
    assert_int_equal(gs_memory_of_cgroup(dir, "/a/b"), 350000); /* the parent is tighter */
    assert_int_equal(gs_memory_of_cgroup(dir, "/a/c"), 0);
    assert_int_equal(gs_memory_of_cgroup(dir, "/d"), UINT64_MAX);
    assert_int_equal(gs_memory_of_cgroup(dir, "/e"), 4000);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    assert_true(gs_memory_available() > MB);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mapping_counts_as_it_is_written),
        cmocka_unit_test(the_table_is_bounded),
        cmocka_unit_test(a_group_leaves_what_it_does_not_need),
    };
    return cmocka_run_group_tests_name("base/memory", tests, NULL, NULL);
}
