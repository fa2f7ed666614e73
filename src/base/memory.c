#include "base/memory.h"

#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cgroup.h"

#define MAX_MAPPINGS 128
#define CHUNK_PAGES  4096

typedef struct mapping {
    const char *p; /* NULL: free */
    size_t size;
    gs_pages_kind kind;
} mapping;

static mapping mappings[MAX_MAPPINGS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static mapping *find(const void *p) {
    for (int i = 0; i < MAX_MAPPINGS; i++)
        if (mappings[i].p == p)
            return &mappings[i];
    return NULL;
}

void gs_memory_add(gs_pages_kind kind, const void *p, size_t size) {
    if (!p)
        return;
    pthread_mutex_lock(&lock);
    mapping *m = find(NULL);
    if (m)
        *m = (mapping){p, size, kind};
    pthread_mutex_unlock(&lock);
}

void gs_memory_remove(const void *p) {
    pthread_mutex_lock(&lock);
    mapping *m = p ? find(p) : NULL;
    if (m)
        m->p = NULL;
    pthread_mutex_unlock(&lock);
}

/* The lock keeps the mapping where it is meanwhile. */
static uint64_t resident_bytes(const mapping *m) {
    static unsigned char in_core[CHUNK_PAGES]; /* under the lock */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n_pages = (m->size + page - 1) / page;
    uint64_t n = 0;
    for (size_t at = 0; at < n_pages; at += CHUNK_PAGES) {
        const size_t count = n_pages - at < CHUNK_PAGES ? n_pages - at : CHUNK_PAGES;
        if (mincore((void *)(uintptr_t)(m->p + at * page), count * page, in_core) != 0)
            return n * page;
        for (size_t i = 0; i < count; i++)
            n += in_core[i] & 1;
    }
    return n * page < m->size ? n * page : m->size;
}

/* "Name:   123 kB" of a file of /proc in bytes; 0: not there. */
static uint64_t field_bytes(const char *text, const char *name) {
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

static void read_heap(gs_memory *out) {
#ifdef __GLIBC__
    const struct mallinfo2 m = mallinfo2();
    out->heap_used = m.uordblks + m.hblkhd;
    out->heap_free = m.fordblks;
#else
    (void)out;
#endif
}

void gs_memory_read(gs_memory *out) {
    char text[8192];
    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_MAPPINGS; i++) {
        const mapping *m = &mappings[i];
        if (!m->p)
            continue;
        out->reserved[m->kind] += m->size;
        out->resident[m->kind] += resident_bytes(m);
    }
    pthread_mutex_unlock(&lock);
    read_heap(out);
    if (!gs_read_text("/proc/self/status", text, sizeof(text)))
        return;
    out->anonymous = field_bytes(text, "RssAnon:");
    out->swapped = field_bytes(text, "VmSwap:");
}

/* ---- What is left -------------------------------------------------------------------------- */

/* A number, UINT64_MAX for "max" and what can't be read. */
static uint64_t read_number(const char *dir, const char *name) {
    char path[1100], text[64], *end;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (!gs_read_text(path, text, sizeof(text)))
        return UINT64_MAX;
    const unsigned long long v = strtoull(text, &end, 10);
    return end == text ? UINT64_MAX : v;
}

/* Pages of files that nobody has used for a while are dropped before anybody is killed. */
static uint64_t droppable(const char *dir) {
    char path[1100], text[8192];
    snprintf(path, sizeof(path), "%s/memory.stat", dir);
    if (!gs_read_text(path, text, sizeof(text)))
        return 0;
    const char *at = strstr(text, "inactive_file ");
    return at ? strtoull(at + strlen("inactive_file "), NULL, 10) : 0;
}

static uint64_t left_in(const char *dir) {
    const uint64_t most = read_number(dir, "memory.max");
    if (most == UINT64_MAX)
        return most;
    const uint64_t held = read_number(dir, "memory.current");
    if (held == UINT64_MAX)
        return most;
    const uint64_t drop = droppable(dir), needed = held > drop ? held - drop : 0;
    return most > needed ? most - needed : 0;
}

uint64_t gs_memory_of_cgroup(const char *root, const char *group) {
    return gs_cgroup_least(root, group, left_in);
}

uint64_t gs_memory_available(void) {
    char text[4096], group[1024];
    const uint64_t system =
        gs_read_text("/proc/meminfo", text, sizeof(text)) ? field_bytes(text, "MemAvailable:") : 0;
    if (!gs_cgroup_own(group, sizeof(group)))
        return system;
    const uint64_t own = gs_memory_of_cgroup(GS_CGROUP_ROOT, group);
    return own < system ? own : system;
}
