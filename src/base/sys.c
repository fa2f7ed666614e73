#include "base/sys.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/memory.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* ---- Heap --------------------------------------------------------------------------------- */

/* A request for 0 bytes gives a real pointer, so that NULL always means failure. */
static size_t at_least_1(size_t size) {
    return size ? size : 1;
}

void *gs_malloc(size_t size) {
    return malloc(at_least_1(size));
}

void *gs_calloc(size_t n, size_t size) {
    size_t bytes;
    if (!gs_mul_size(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return calloc(1, at_least_1(bytes));
}

void *gs_realloc(void *p, size_t size) {
    return realloc(p, at_least_1(size));
}

void *gs_array(size_t n, size_t size) {
    size_t bytes;
    if (!gs_mul_size(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return gs_malloc(bytes);
}

char *gs_strdup(const char *s) {
    return gs_strndup(s, strlen(s));
}

char *gs_strndup(const char *s, size_t n) {
    size_t len = strnlen(s, n);
    char *copy = gs_malloc(len + 1);
    if (!copy)
        return NULL;
    memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}

void *gs_aligned(size_t align, size_t size) {
    void *p;
    int rc = posix_memalign(&p, align, at_least_1(size));
    if (rc) {
        errno = rc;
        return NULL;
    }
    return p;
}

void gs_free(void *p) {
    free(p);
}

/* ---- Files and sockets -------------------------------------------------------------------- */

ssize_t gs_read(int fd, void *buf, size_t n) {
    ssize_t r;
    do
        r = read(fd, buf, n);
    while (r < 0 && errno == EINTR);
    return r;
}

ssize_t gs_pread(int fd, void *buf, size_t n, off_t at) {
    ssize_t r;
    do
        r = pread(fd, buf, n, at);
    while (r < 0 && errno == EINTR);
    return r;
}

ssize_t gs_write(int fd, const void *buf, size_t n) {
    ssize_t r;
    do
        r = write(fd, buf, n);
    while (r < 0 && errno == EINTR);
    return r;
}

int gs_accept(int fd) {
    int r;
    do
        r = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    while (r < 0 && errno == EINTR);
    return r;
}

void gs_give_to_owner(int fd, const char *folder) {
    struct stat st;
    if (geteuid() == 0 && stat(folder, &st) == 0 && fchown(fd, st.st_uid, st.st_gid) != 0)
        return; /* a file system without owners */
}

/* ---- Pages ------------------------------------------------------------------------------------
 */

/* Whole pages, or whole huge pages when at least one fits. False when that overflows. */
static bool pages_round(size_t size, size_t *out) {
    size_t unit = size >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : (size_t)sysconf(_SC_PAGESIZE);
    size_t sum;
    if (!gs_add_size(at_least_1(size), unit - 1, &sum))
        return false;
    *out = sum & ~(unit - 1);
    return true;
}

void *gs_pages_alloc(size_t size) {
    size_t len, mapped;
    if (!pages_round(size, &len)) {
        errno = ENOMEM;
        return NULL;
    }
    /* The kernel only backs aligned 2 MiB ranges with a huge page: map more, cut both ends. */
    size_t slack = len >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
    if (!gs_add_size(len, slack, &mapped)) {
        errno = ENOMEM;
        return NULL;
    }
    char *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (slack) {
        size_t head = (size_t)(-(uintptr_t)p & (HUGE_PAGE_BYTES - 1));
        if (head)
            munmap(p, head);
        if (slack - head)
            munmap(p + head + len, slack - head);
        p += head;
        /* Advice only: without huge pages everything works, with more TLB misses. */
        (void)madvise(p, len, MADV_HUGEPAGE);
    }
    return p;
}

void gs_pages_free(void *p, size_t size) {
    size_t len;
    gs_memory_remove(p);
    if (p && pages_round(size, &len))
        munmap(p, len);
}
