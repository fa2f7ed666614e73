#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/thread.h"

#include <linux/types.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As in base/thread.c. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static uint64_t slice_ns(void) {
    struct attributes a = {0};
    assert_int_equal(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0), 0);
    return a.runtime;
}

static void *slice_of_a_thread(void *out) {
    *(uint64_t *)out = slice_ns();
    return NULL;
}

/* Only the thread that asked wakes soon: kernel workers that it starts keep the usual slice. */
static void a_short_slice_is_not_inherited(void **state) {
    (void)state;
    const uint64_t usual = slice_ns();
    if (!gs_thread_wake_soon()) {
        puts("this kernel knows no slices (before Linux 6.12): nothing changes");
        assert_int_equal(slice_ns(), usual);
        return;
    }
    assert_true(slice_ns() < usual);
    pthread_t t;
    uint64_t of_thread = 0;
    assert_int_equal(pthread_create(&t, NULL, slice_of_a_thread, &of_thread), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(of_thread, usual);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_slice_is_not_inherited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
