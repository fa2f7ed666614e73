#include "faults/fault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <uv.h>

#include "base/err.h"

typedef struct fault {
    _Atomic uint64_t calls;     /* since the last set or clear */
    _Atomic uint64_t remaining; /* the call that makes this 0 fails; 0 = disarmed */
    _Atomic int errnum;
} fault;

static fault faults[GS_FAULT_COUNT];
/* Nothing is counted until a test or GAMASOT_FAULT asks for it. */
static atomic_bool fault_tracking;

static const struct {
    const char *name;
    int errnum;
} kinds[GS_FAULT_COUNT] = {
#define X(id, name, errnum) {name, errnum},
    GS_FAULT_MAP(X)
#undef X
};

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
    atomic_store_explicit(&f->errnum, errnum ? errnum : kinds[kind].errnum, memory_order_relaxed);
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
    for (int k = 0; k < GS_FAULT_COUNT; k++)
        if (strcmp(s, kinds[k].name) == 0)
            return k;
    return -1;
}

/* An errno by name, for those that a test of this program has a use for. -1 when unknown. */
static int parse_errno(const char *s) {
    static const struct {
        const char *name;
        int value;
    } table[] = {
        {"ENOMEM", ENOMEM},         {"ENOSPC", ENOSPC},
        {"EDQUOT", EDQUOT},         {"EIO", EIO},
        {"EMFILE", EMFILE},         {"ENFILE", ENFILE},
        {"EAGAIN", EAGAIN},         {"EPIPE", EPIPE},
        {"ECONNRESET", ECONNRESET}, {"EACCES", EACCES},
        {"EPERM", EPERM},           {"ECONNABORTED", ECONNABORTED},
        {"EXDEV", EXDEV},           {"EROFS", EROFS},
        {"HANG", GS_FAULT_HANG},    {"CRASH", GS_FAULT_CRASH},
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

uint64_t gs_fault_seed(void) {
    return atomic_load_explicit(&faults[GS_FAULT_RANDOM].remaining, memory_order_relaxed);
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

/* A program that was told to fail must not run as if it had not. */
__attribute__((constructor)) static void arm_at_start(void) {
    char err[256];
    if (gs_fault_from_env(err, sizeof(err)) == GS_OK)
        return;
    fprintf(stderr, "gamasot: %s\n", err);
    _exit(2);
}

/* ---- The calls ----------------------------------------------------------------------------------
 * With ld --wrap=f, f is __wrap_f and the original __real_f.
 */

// clang-format off
#define WRAP(result, name, args, call, kind, failed)                                               \
    result __real_##name args;                                                                     \
    result __wrap_##name args;                                                                     \
    result __wrap_##name args {                                                                    \
        return gs_fault_hit(GS_FAULT_##kind) ? (failed) : __real_##name call;                      \
    }

WRAP(void *, gs_malloc, (size_t size), (size), ALLOC, NULL)
WRAP(void *, gs_calloc, (size_t n, size_t size), (n, size), ALLOC, NULL)
WRAP(void *, gs_realloc, (void *p, size_t size), (p, size), ALLOC, NULL)
WRAP(void *, gs_array, (size_t n, size_t size), (n, size), ALLOC, NULL)
WRAP(char *, gs_strdup, (const char *s), (s), ALLOC, NULL)
WRAP(char *, gs_strndup, (const char *s, size_t n), (s, n), ALLOC, NULL)
WRAP(void *, gs_aligned, (size_t align, size_t size), (align, size), ALLOC, NULL)
WRAP(ssize_t, gs_read, (int fd, void *buf, size_t n), (fd, buf, n), READ, -1)
WRAP(ssize_t, gs_pread, (int fd, void *buf, size_t n, off_t at), (fd, buf, n, at), READ, -1)
WRAP(ssize_t, gs_write, (int fd, const void *buf, size_t n), (fd, buf, n), WRITE, -1)
WRAP(int, gs_accept, (int fd), (fd), ACCEPT, -1)
WRAP(void *, mmap, (void *p, size_t n, int prot, int flags, int fd, off_t at),
     (p, n, prot, flags, fd, at), MMAP, MAP_FAILED)
WRAP(int, pthread_create,
     (pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg), (t, a, f, arg), THREAD, errno)
WRAP(int, uv_try_write, (uv_stream_t *s, const uv_buf_t *b, unsigned n), (s, b, n), WRITE, -errno)

WRAP(DIR *, opendir, (const char *path), (path), FILE, NULL)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), FILE, -1)
WRAP(char *, mkdtemp, (char *path), (path), FILE, NULL)
WRAP(int, rename, (const char *from, const char *to), (from, to), FILE, -1)
WRAP(int, fsync, (int fd), (fd), FILE, -1)
WRAP(int, fstat, (int fd, struct stat *st), (fd, st), FILE, -1)

WRAP(int, socket, (int family, int type, int protocol), (family, type, protocol), NET, -1)
WRAP(int, bind, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n), NET, -1)
WRAP(int, listen, (int fd, int n), (fd, n), NET, -1)
WRAP(int, getpeername, (int fd, struct sockaddr *restrict a, socklen_t *restrict n), (fd, a, n), NET, -1)
WRAP(int, uv_tcp_init, (uv_loop_t *l, uv_tcp_t *t), (l, t), NET, -errno)
WRAP(int, uv_tcp_open, (uv_tcp_t *t, uv_os_sock_t fd), (t, fd), NET, -errno)
WRAP(int, uv_tcp_connect, (uv_connect_t *c, uv_tcp_t *t, const struct sockaddr *a, uv_connect_cb cb),
     (c, t, a, cb), NET, -errno)
WRAP(int, uv_poll_init, (uv_loop_t *l, uv_poll_t *p, int fd), (l, p, fd), NET, -errno)
WRAP(int, uv_write, (uv_write_t *w, uv_stream_t *s, const uv_buf_t *b, unsigned n, uv_write_cb cb),
     (w, s, b, n, cb), NET, -errno)

/* As SQLite says it itself. */
static int sqlite_code(void) {
    static const struct {
        int errnum, code;
    } table[] = {{ENOSPC, SQLITE_FULL},
                 {ENOMEM, SQLITE_NOMEM},
                 {EAGAIN, SQLITE_BUSY},
                 {EACCES, SQLITE_READONLY}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (errno == table[i].errnum)
            return table[i].code;
    return SQLITE_IOERR;
}

WRAP(int, sqlite3_step, (sqlite3_stmt *s), (s), SQLITE, sqlite_code())
WRAP(int, sqlite3_prepare_v2, (sqlite3 *db, const char *sql, int n, sqlite3_stmt **out, const char **rest),
     (db, sql, n, out, rest), SQLITE, (*out = NULL, sqlite_code()))
WRAP(int, sqlite3_prepare_v3,
     (sqlite3 *db, const char *sql, int n, unsigned flags, sqlite3_stmt **out, const char **rest),
     (db, sql, n, flags, out, rest), SQLITE, (*out = NULL, sqlite_code()))
WRAP(int, sqlite3_exec,
     (sqlite3 *db, const char *sql, int (*f)(void *, int, char **, char **), void *arg, char **err),
     (db, sql, f, arg, err), SQLITE, sqlite_code())
WRAP(int, sqlite3_backup_step, (sqlite3_backup *b, int pages), (b, pages), SQLITE, sqlite_code())
WRAP(int, sqlite3_open_v2, (const char *path, sqlite3 **db, int flags, const char *vfs),
     (path, db, flags, vfs), SQLITE, (*db = NULL, sqlite_code()))
// clang-format on

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list ap;
        va_start(ap, flags);
        mode = va_arg(ap, mode_t);
        va_end(ap);
    }
    return gs_fault_hit(GS_FAULT_FILE) ? -1 : __real_open(path, flags, mode);
}

/* What libuv reads comes to a callback: it is given away, and called with an error. Each that there
 * is gets a place. */
#define MAX_READERS 4
static uv_read_cb readers[MAX_READERS];

static void read_as(int i, uv_stream_t *s, ssize_t n, const uv_buf_t *b) {
    readers[i](s, n != 0 && gs_fault_hit(GS_FAULT_READ) ? -errno : n, b);
}

#define READER(i)                                                                                  \
    static void read_as_##i(uv_stream_t *s, ssize_t n, const uv_buf_t *b) {                        \
        read_as(i, s, n, b);                                                                       \
    }
READER(0)
READER(1)
READER(2)
READER(3)
static const uv_read_cb stand_ins[MAX_READERS] = {read_as_0, read_as_1, read_as_2, read_as_3};

int __real_uv_read_start(uv_stream_t *s, uv_alloc_cb alloc, uv_read_cb cb);
int __wrap_uv_read_start(uv_stream_t *s, uv_alloc_cb alloc, uv_read_cb cb);
int __wrap_uv_read_start(uv_stream_t *s, uv_alloc_cb alloc, uv_read_cb cb) {
    if (gs_fault_hit(GS_FAULT_NET))
        return -errno;
    for (int i = 0; i < MAX_READERS; i++) {
        if (!readers[i])
            readers[i] = cb;
        if (readers[i] == cb)
            return __real_uv_read_start(s, alloc, stand_ins[i]);
    }
    abort(); /* one place more is needed */
}
