/* The ring of steps: in order, whole records only, and a reader that is too slow is told so. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdatomic.h>
#include <cmocka.h>

#include "base/err.h"
#include "engine/steps.h"

/* A record whose every field says which one it is. */
static gs_step_record record(uint64_t n) {
    gs_step_record r = {.n = n, .end_ns = (int64_t)n, .ns = (int64_t)n, .n_parts = (int)(n % 7)};
    for (int32_t i = 0; i < r.n_parts; i++)
        r.parts[i] = (gs_step_part){.n_tokens = i, .ns = (int64_t)n};
    return r;
}

static void assert_whole(const gs_step_record *r) {
    assert_int_equal(r->end_ns, r->n);
    assert_int_equal(r->ns, r->n);
    assert_int_equal(r->n_parts, r->n % 7);
    for (int32_t i = 0; i < r->n_parts; i++) {
        assert_int_equal(r->parts[i].n_tokens, i);
        assert_int_equal(r->parts[i].ns, r->n);
    }
}

static void push(gs_steps *r, uint64_t n) {
    gs_step_record rec = record(n);
    gs_steps_push(r, &rec);
}

static void test_in_order(void **state) {
    (void)state;
    gs_steps *r = NULL;
    gs_step_record out[8];
    uint64_t at = 0, lost = 0;
    assert_int_equal(gs_steps_create(8, &r), 0);
    assert_int_equal(gs_steps_read(r, &at, out, 8, &lost), 0);
    for (uint64_t n = 0; n < 6; n++)
        push(r, n);
    assert_int_equal(gs_steps_read(r, &at, out, 4, &lost), 4);
    assert_int_equal(gs_steps_read(r, &at, out + 4, 4, &lost), 2);
    for (uint64_t n = 0; n < 6; n++) {
        assert_int_equal(out[n].n, n);
        assert_whole(&out[n]);
    }
    assert_int_equal(lost, 0);
    assert_int_equal(gs_steps_head(r), 6);
    gs_steps_free(r);
}

static void test_tells_what_is_lost(void **state) {
    (void)state;
    gs_steps *r = NULL;
    gs_step_record out[8];
    uint64_t at = 0, lost = 0;
    assert_int_equal(gs_steps_create(8, &r), 0);
    for (uint64_t n = 0; n < 21; n++)
        push(r, n);
    assert_int_equal(gs_steps_read(r, &at, out, 8, &lost), 8);
    assert_int_equal(lost, 13);
    assert_int_equal(out[0].n, 13);
    assert_int_equal(out[7].n, 20);
    assert_int_equal(at, 21);
    gs_steps_free(r);
}

static void test_refuses_odd_sizes(void **state) {
    (void)state;
    gs_steps *r = NULL;
    assert_int_equal(gs_steps_create(0, &r), GS_ERR_INVALID);
    assert_int_equal(gs_steps_create(12, &r), GS_ERR_INVALID);
}

#define RECORDS 200000

static atomic_bool written;

static void *write_all(void *arg) {
    for (uint64_t n = 0; n < RECORDS; n++)
        push(arg, n);
    atomic_store(&written, true);
    return NULL;
}

/* A writer that never waits: what is read is whole, in order, and with what is lost all there is.
 */
static void test_overrun(void **state) {
    (void)state;
    gs_steps *r = NULL;
    pthread_t t;
    gs_step_record out[16];
    uint64_t at = 0, lost = 0, n_read = 0, last = 0;
    assert_int_equal(gs_steps_create(16, &r), 0);
    atomic_store(&written, false);
    assert_int_equal(pthread_create(&t, NULL, write_all, r), 0);
    bool end;
    do {
        end = atomic_load(&written);
        uint32_t n = gs_steps_read(r, &at, out, 16, &lost);
        for (uint32_t i = 0; i < n; i++) {
            assert_whole(&out[i]);
            assert_true(n_read + i == 0 || out[i].n > last);
            last = out[i].n;
        }
        n_read += n;
    } while (!end);
    pthread_join(t, NULL);
    assert_int_equal(n_read + lost, RECORDS);
    assert_int_equal(last, RECORDS - 1);
    gs_steps_free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_tells_what_is_lost),
        cmocka_unit_test(test_refuses_odd_sizes),
        cmocka_unit_test(test_overrun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
