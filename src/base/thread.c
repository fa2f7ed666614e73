#include "base/thread.h"

#include <linux/sched.h>
#include <linux/types.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's bounds are 0.1 and 100 ms; its usual slice is 2 to 6 ms. */
#define SHORT_SLICE_NS 100000

/* sched_setattr(2): glibc 2.36 has neither the call nor the structure, and <linux/sched/types.h>
 * can't be included beside <sched.h>. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

bool gs_thread_wake_soon(void) {
    struct attributes a = {0};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0 || a.policy != SCHED_NORMAL)
        return false;
    a.size = sizeof a;
    a.flags = SCHED_FLAG_RESET_ON_FORK;
    a.runtime = SHORT_SLICE_NS;
    if (syscall(SYS_sched_setattr, 0, &a, 0) != 0)
        return false;
    /* Older kernels take the call and forget the slice. */
    return syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) == 0 && a.runtime == SHORT_SLICE_NS;
}
