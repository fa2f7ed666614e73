#include "base/pool.h"
#include "base/pool_impl.h"

#include "base/cgroup.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* cpu.max is "QUOTA PERIOD" in microseconds, or "max PERIOD"; CPUs, rounded up. */
static uint64_t quota_cpus(const char *dir) {
    char path[1100], text[64], *end;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (!gs_read_text(path, text, sizeof text))
        return UINT64_MAX;
    long long quota = strtoll(text, &end, 10);
    if (end == text || quota <= 0)
        return UINT64_MAX;
    long long period = strtoll(end, NULL, 10);
    if (period <= 0)
        return UINT64_MAX;
    return (uint64_t)(quota / period + (quota % period != 0));
}

int gs_cgroup_cpus(const char *root, const char *group) {
    const uint64_t n = gs_cgroup_least(root, group, quota_cpus);
    return n == UINT64_MAX ? 0 : n > INT_MAX ? INT_MAX : (int)n;
}

static int own_cgroup_cpus(void) {
    char group[1024];
    return gs_cgroup_own(group, sizeof group) ? gs_cgroup_cpus(GS_CGROUP_ROOT, group) : 0;
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
