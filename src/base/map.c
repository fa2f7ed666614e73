/*
 * Mapped files. A file that is made shorter takes its pages from under the mapping, and a read of
 * them is a SIGBUS. The handler here puts zeroed pages in their place, notes that, and the reader
 * goes on; gs_map_damaged tells it afterwards. Every other SIGBUS ends the process as ever.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/sys.h"

/* Files that are mapped at a time and watched; what is beyond has to trust its file. */
#define MAX_WATCHED 256

typedef struct watched {
    _Atomic uintptr_t begin; /* 0: free; 1: being written */
    _Atomic uintptr_t end;
    atomic_bool damaged;
} watched;

static watched table[MAX_WATCHED];
static _Atomic uintptr_t page_bytes;

/* Only what a signal handler may: loads, stores and a system call. */
static void on_sigbus(int signum, siginfo_t *info, void *context) {
    (void)context;
    const uintptr_t at = (uintptr_t)info->si_addr;
    for (size_t i = 0; i < MAX_WATCHED; i++) {
        watched *w = &table[i];
        if (atomic_load(&w->begin) > at || atomic_load(&w->begin) <= 1 ||
            at >= atomic_load(&w->end))
            continue;
        const int saved = errno;
        const uintptr_t page = atomic_load(&page_bytes);
        const void *p = mmap((void *)(at & ~(page - 1)), page, PROT_READ,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        errno = saved;
        if (p == MAP_FAILED)
            break;
        atomic_store(&w->damaged, true);
        return;
    }
    signal(signum, SIG_DFL); /* the same access again is the end */
}

/* With each file: somebody may have put another handler in its place meanwhile. */
static void install(void) {
    struct sigaction sa = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER};
    atomic_store(&page_bytes, (uintptr_t)sysconf(_SC_PAGESIZE));
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, NULL);
}

static void watch(const void *data, size_t size) {
    install();
    for (size_t i = 0; i < MAX_WATCHED; i++) {
        uintptr_t none = 0;
        if (!atomic_compare_exchange_strong(&table[i].begin, &none, 1))
            continue;
        atomic_store(&table[i].damaged, false);
        atomic_store(&table[i].end, (uintptr_t)data + size);
        atomic_store(&table[i].begin, (uintptr_t)data);
        return;
    }
}

static watched *find(const void *data) {
    for (size_t i = 0; data && i < MAX_WATCHED; i++)
        if (atomic_load(&table[i].begin) == (uintptr_t)data)
            return &table[i];
    return NULL;
}

static void forget(const void *data) {
    watched *w = find(data);
    if (w)
        atomic_store(&w->begin, 0);
}

bool gs_map_damaged(const void *data) {
    const watched *w = find(data);
    return w && atomic_load(&w->damaged);
}

int gs_map_file(const char *path, const void **data, size_t *size, char *err, size_t errlen) {
    int rc = GS_OK;
    /* O_NONBLOCK: opening a FIFO by mistake must not hang; it means nothing for regular files. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return gs_fail(err, errlen, errno == ENOENT ? GS_ERR_NOT_FOUND : GS_ERR_IO, "%s: %s", path,
                       gs_errno_text(errno));
    struct stat st;
    if (fstat(fd, &st) < 0) {
        rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
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
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        rc = gs_fail(err, errlen, errno == ENOMEM ? GS_ERR_NOMEM : GS_ERR_IO, "%s: mmap: %s", path,
                     gs_errno_text(errno));
        goto out;
    }
    *data = p;
    *size = (size_t)st.st_size;
    watch(p, *size);
out:
    close(fd);
    return rc;
}

void gs_unmap(const void *data, size_t size) {
    if (!data)
        return;
    forget(data);
    munmap((void *)(uintptr_t)data, size);
}
