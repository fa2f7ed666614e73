#include "base/park.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define WAIT_NS (2 * GS_NS_PER_S)

/* Each call of gs_park is a round. go: the round that may go on; the futex word. */
static _Atomic uint32_t parking, go;
static atomic_int n_parked; /* of the newest round */

/* Async-signal-safe: atomics and one system call. */
static void on_signal(int signum) {
    (void)signum;
    const int saved = errno;
    const uint32_t round = atomic_load(&parking);
    uint32_t seen;
    atomic_fetch_add(&n_parked, 1);
    while ((seen = atomic_load(&go)) != round)
        syscall(SYS_futex, &go, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&n_parked, 1);
    errno = saved;
}

static bool wait_for_count(int n) {
    const int64_t end_ns = gs_now_ns() + WAIT_NS;
    while (atomic_load(&n_parked) != n) {
        if (gs_now_ns() > end_ns)
            return false;
        const struct timespec t = {0, 100 * GS_NS_PER_US};
        nanosleep(&t, NULL);
    }
    return true;
}

void gs_unpark(void) {
    atomic_store(&go, atomic_load(&parking));
    syscall(SYS_futex, &go, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    /* A later round must not take the word before all have seen it. */
    wait_for_count(0);
}

bool gs_park(const pthread_t *threads, int n) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    sigfillset(&action.sa_mask);
    if (sigaction(GS_PARK_SIGNAL, &action, NULL) != 0)
        return false;
    atomic_store(&n_parked, 0);
    atomic_fetch_add(&parking, 1);
    for (int i = 0; i < n; i++)
        if (pthread_kill(threads[i], GS_PARK_SIGNAL) != 0)
            break; /* the count says it */
    if (wait_for_count(n))
        return true;
    gs_unpark();
    return false;
}
