#include "base/sys.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* ---- Fault injection ---------------------------------------------------------------------- */

typedef struct fault {
    _Atomic uint64_t calls;     /* since the last set or clear */
    _Atomic uint64_t remaining; /* the call that makes this 0 fails; 0 = disarmed */
    _Atomic int errnum;
} fault;

static fault faults[GS_FAULT_COUNT];
/* Nothing is counted until a test or GAMASOT_FAULT asks for it: one relaxed load in production. */
static atomic_bool fault_tracking;

static int default_errnum(gs_fault_kind kind) {
    switch (kind) {
    case GS_FAULT_ALLOC:
    case GS_FAULT_MMAP:
        return ENOMEM;
    case GS_FAULT_ACCEPT:
        return EMFILE;
    default:
        return EIO;
    }
}

int gs_fault_hit(gs_fault_kind kind) {
    if (!atomic_load_explicit(&fault_tracking, memory_order_relaxed))
        return 0;
    fault *f = &faults[kind];
    atomic_fetch_add_explicit(&f->calls, 1, memory_order_relaxed);
    uint64_t left = atomic_load_explicit(&f->remaining, memory_order_acquire);
    while (left > 0) {
        if (!atomic_compare_exchange_weak_explicit(&f->remaining, &left, left - 1,
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        if (left > 1)
            return 0;
        errno = atomic_load_explicit(&f->errnum, memory_order_relaxed);
        return 1;
    }
    return 0;
}

void gs_fault_set(gs_fault_kind kind, uint64_t nth, int errnum) {
    fault *f = &faults[kind];
    atomic_store_explicit(&f->errnum, errnum ? errnum : default_errnum(kind), memory_order_relaxed);
    atomic_store_explicit(&f->calls, 0, memory_order_relaxed);
    atomic_store_explicit(&f->remaining, nth, memory_order_release);
    atomic_store_explicit(&fault_tracking, true, memory_order_relaxed);
}

void gs_fault_clear(void) {
    for (int k = 0; k < GS_FAULT_COUNT; k++)
        gs_fault_set((gs_fault_kind)k, 0, 0);
}

uint64_t gs_fault_calls(gs_fault_kind kind) {
    return atomic_load_explicit(&faults[kind].calls, memory_order_relaxed);
}

static int parse_fault_kind(const char *s) {
    static const char *const names[GS_FAULT_COUNT] = {
        [GS_FAULT_ALLOC] = "alloc",   [GS_FAULT_READ] = "read", [GS_FAULT_WRITE] = "write",
        [GS_FAULT_ACCEPT] = "accept", [GS_FAULT_MMAP] = "mmap",
    };
    for (int k = 0; k < GS_FAULT_COUNT; k++)
        if (strcmp(s, names[k]) == 0)
            return k;
    return -1;
}

/* An errno by name, for those that a test of this program has a use for. -1 when unknown. */
static int parse_errno(const char *s) {
    static const struct {
        const char *name;
        int value;
    } table[] = {
        {"ENOMEM", ENOMEM}, {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT},
        {"EIO", EIO},       {"EMFILE", EMFILE}, {"ENFILE", ENFILE},
        {"EAGAIN", EAGAIN}, {"EPIPE", EPIPE},   {"ECONNRESET", ECONNRESET},
        {"EACCES", EACCES}, {"EPERM", EPERM},   {"ECONNABORTED", ECONNABORTED},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(s, table[i].name) == 0)
            return table[i].value;
    return -1;
}

/* One `kind:nth[:ERRNO]`; cuts word at its colons. */
static int arm_from_word(char *word, char *err, size_t errlen) {
    char *save = NULL;
    const char *kind_s = strtok_r(word, ":", &save);
    const char *nth_s = strtok_r(NULL, ":", &save);
    const char *errno_s = strtok_r(NULL, ":", &save);
    if (!kind_s || !nth_s || strtok_r(NULL, ":", &save))
        return gs_fail(err, errlen, GS_ERR_INVALID, "GAMASOT_FAULT: want kind:nth[:ERRNO]");
    int kind = parse_fault_kind(kind_s);
    if (kind < 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "GAMASOT_FAULT: unknown kind '%s'", kind_s);
    char *end;
    errno = 0;
    unsigned long long nth = strtoull(nth_s, &end, 10);
    if (*end || end == nth_s || *nth_s == '-' || errno || nth == 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "GAMASOT_FAULT: '%s' is no call number", nth_s);
    int errnum = errno_s ? parse_errno(errno_s) : 0;
    if (errnum < 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "GAMASOT_FAULT: unknown errno '%s'", errno_s);
    gs_fault_set((gs_fault_kind)kind, nth, errnum);
    return GS_OK;
}

int gs_fault_from_env(char *err, size_t errlen) {
    const char *env = getenv("GAMASOT_FAULT");
    if (!env || !*env)
        return GS_OK;
    char words[256];
    size_t n = strlen(env);
    if (n >= sizeof words)
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "GAMASOT_FAULT: longer than %zu bytes",
                       sizeof words - 1);
    memcpy(words, env, n + 1);
    char *save = NULL;
    for (char *w = strtok_r(words, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
        int rc = arm_from_word(w, err, errlen);
        if (rc) {
            gs_fault_clear();
            return rc;
        }
    }
    return GS_OK;
}

/* ---- Heap --------------------------------------------------------------------------------- */

/* A request for 0 bytes gives a real pointer, so that NULL always means failure. */
static size_t at_least_1(size_t size) {
    return size ? size : 1;
}

void *gs_malloc(size_t size) {
    if (gs_fault_hit(GS_FAULT_ALLOC))
        return NULL;
    return malloc(at_least_1(size));
}

void *gs_calloc(size_t n, size_t size) {
    if (gs_fault_hit(GS_FAULT_ALLOC))
        return NULL;
    size_t bytes;
    if (!gs_mul_size(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return calloc(1, at_least_1(bytes));
}

void *gs_realloc(void *p, size_t size) {
    if (gs_fault_hit(GS_FAULT_ALLOC))
        return NULL;
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
    if (gs_fault_hit(GS_FAULT_ALLOC))
        return NULL;
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
    if (gs_fault_hit(GS_FAULT_READ))
        return -1;
    ssize_t r;
    do
        r = read(fd, buf, n);
    while (r < 0 && errno == EINTR);
    return r;
}

ssize_t gs_write(int fd, const void *buf, size_t n) {
    if (gs_fault_hit(GS_FAULT_WRITE))
        return -1;
    ssize_t r;
    do
        r = write(fd, buf, n);
    while (r < 0 && errno == EINTR);
    return r;
}

int gs_accept(int fd) {
    if (gs_fault_hit(GS_FAULT_ACCEPT))
        return -1;
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

/* ---- Mappings ----------------------------------------------------------------------------- */

int gs_map_file(const char *path, const void **data, size_t *size, char *err, size_t errlen) {
    int rc = GS_OK;
    /* O_NONBLOCK: opening a FIFO by mistake must not hang; it means nothing for regular files. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return gs_fail(err, errlen, errno == ENOENT ? GS_ERR_NOT_FOUND : GS_ERR_IO, "%s: %s", path,
                       strerror(errno));
    struct stat st;
    if (fstat(fd, &st) < 0) {
        rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, strerror(errno));
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = gs_fail(err, errlen, GS_ERR_INVALID, "%s: not a regular file", path);
        goto out;
    }
    if ((uintmax_t)st.st_size > SIZE_MAX) {
        rc = gs_fail(err, errlen, GS_ERR_TOO_LARGE, "%s: too large for this machine", path);
        goto out;
    }
    if (st.st_size == 0) { /* mmap refuses length 0 */
        *data = NULL;
        *size = 0;
        goto out;
    }
    void *p = gs_fault_hit(GS_FAULT_MMAP)
                  ? MAP_FAILED
                  : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        rc = gs_fail(err, errlen, errno == ENOMEM ? GS_ERR_NOMEM : GS_ERR_IO, "%s: mmap: %s", path,
                     strerror(errno));
        goto out;
    }
    *data = p;
    *size = (size_t)st.st_size;
out:
    close(fd);
    return rc;
}

void gs_unmap(const void *data, size_t size) {
    if (data)
        munmap((void *)(uintptr_t)data, size);
}

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
    if (gs_fault_hit(GS_FAULT_MMAP))
        return NULL;
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
