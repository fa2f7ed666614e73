/*
 * The clocks of one process, moved. A library of its own for LD_PRELOAD (tests/integration/
 * moved_clock.py builds it): it stands before libc for the program and for the libraries that it
 * uses, libuv among them. MOVED_BY names a file of two 64-bit numbers: seconds that the wall's
 * clock is ahead, which a test changes while the process runs, and nanoseconds that the monotonic
 * clock is ahead, which must stay what they are. The file is mapped before any wall is up.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef struct moved {
    _Atomic int64_t wall_s;
    int64_t monotonic_ns;
} moved;

static const moved *by;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("MOVED_BY");
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*by), PROT_READ, MAP_SHARED, fd, 0);
    *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    if (p == MAP_FAILED || !real)
        abort(); /* a test that moves nothing would pass */
    close(fd);
    by = p;
}

int clock_gettime(clockid_t id, struct timespec *t) {
    if (!real)
        open_clock(); /* of a constructor that came before ours */
    const int rc = real(id, t);
    if (rc != 0)
        return rc;
    switch (id) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        t->tv_sec += by->wall_s;
        break;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME: {
        const int64_t ns = t->tv_nsec + by->monotonic_ns;
        t->tv_sec += ns / 1000000000;
        t->tv_nsec = ns % 1000000000;
        break;
    }
    default: /* time of a processor */
        break;
    }
    return rc;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    *out = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return 0;
}
