#include "base/pool.h"
#include "base/pool_impl.h"

#include "base/sys.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A small text file into out, terminated; false when it can't be read. */
static bool read_text(const char *path, char *out, size_t cap) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = gs_read(fd, out, cap - 1);
    close(fd);
    if (n < 0)
        return false;
    out[n] = '\0';
    return true;
}

/* cpu.max is "QUOTA PERIOD" in microseconds, or "max PERIOD" (Linux, admin-guide/cgroup-v2). */
static int quota_cpus(const char *text) {
    char *end;
    long long quota = strtoll(text, &end, 10);
    if (end == text || quota <= 0)
        return 0;
    long long period = strtoll(end, NULL, 10);
    if (period <= 0)
        return 0;
    long long cpus = quota / period + (quota % period != 0);
    return cpus > INT_MAX ? INT_MAX : (int)cpus;
}

int gs_cgroup_cpus(const char *root, const char *group) {
    char dir[1024];
    int len = snprintf(dir, sizeof dir, "%s%s", root, group);
    if (len < 0 || (size_t)len >= sizeof dir)
        return 0;
    size_t root_len = strlen(root);
    int best = 0;
    for (;;) {
        char path[sizeof dir + 16], text[64];
        snprintf(path, sizeof path, "%s/cpu.max", dir);
        int cpus = read_text(path, text, sizeof text) ? quota_cpus(text) : 0;
        if (cpus > 0 && (best == 0 || cpus < best))
            best = cpus;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < root_len)
            return best;
        *slash = '\0';
    }
}

static int own_cgroup_cpus(void) {
    char text[4096];
    if (!read_text("/proc/self/cgroup", text, sizeof text))
        return 0;
    /* The v2 line is "0::/group"; v1 controllers have other numbers. */
    for (char *line = text; line && *line;) {
        char *next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (strncmp(line, "0::", 3) == 0)
            return gs_cgroup_cpus("/sys/fs/cgroup", line + 3);
        line = next;
    }
    return 0;
}

/* Taken once: a thread that the pool pins would later see only its own core. */
static int cpu_count = 1;

static void count_cpus(void) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int n = online > 0 ? (int)online : 1;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        n = CPU_COUNT(&set);
    int quota = own_cgroup_cpus();
    cpu_count = quota > 0 && quota < n ? quota : n;
}

int gs_cpu_count(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, count_cpus);
    return cpu_count;
}
