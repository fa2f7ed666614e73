/* Computed prefixes in files: the thread that writes them, and what is read at a start. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "cli/cli.h"
#include "config/dirs.h"
#include "engine/saved.h"
#include "store/store.h"

#define SUFFIX ".kv"
#define PATH   (GS_DIRS_MAX_PATH + 300)

typedef struct gs_saver {
    char folder[GS_DIRS_MAX_PATH + 16];
    uint64_t max_bytes;
    int32_t n;
    gs_saved *what;           /* [n]; n_blocks 0: too short or too large */
    uint64_t *names;          /* [n] of files */
    _Atomic(uint8_t *) *todo; /* [n] pages that are to be written */
    sem_t work;
    atomic_bool stop;
    bool runs;
    pthread_t thread;
} gs_saver;

static void file_path(const gs_saver *s, int32_t i, const char *end, char out[PATH]) {
    snprintf(out, PATH, "%s/%016llx" SUFFIX "%s", s->folder, (unsigned long long)s->names[i], end);
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* What there is but for one file; the one that was used least recently into oldest. */
static uint64_t count_bytes(const gs_saver *s, const char *but, char oldest[PATH]) {
    DIR *d = opendir(s->folder);
    uint64_t sum = 0;
    int64_t oldest_ns = INT64_MAX;
    oldest[0] = '\0';
    for (const struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        char path[PATH];
        struct stat st;
        snprintf(path, sizeof(path), "%s/%.255s", s->folder, e->d_name);
        if (!strstr(e->d_name, SUFFIX) || strcmp(path, but) == 0 || lstat(path, &st) != 0 ||
            !S_ISREG(st.st_mode))
            continue;
        const int64_t ns = (int64_t)st.st_mtim.tv_sec * GS_NS_PER_S + st.st_mtim.tv_nsec;
        sum += (uint64_t)st.st_size;
        if (ns < oldest_ns) {
            oldest_ns = ns;
            memcpy(oldest, path, sizeof(path));
        }
    }
    if (d)
        closedir(d);
    return sum;
}

static void make_room(const gs_saver *s, const char *path, uint64_t bytes) {
    char oldest[PATH];
    while (count_bytes(s, path, oldest) + bytes > s->max_bytes && oldest[0]) {
        gs_info("prefix", "saved prefix removed file=%s", oldest);
        if (unlink(oldest) != 0)
            return;
    }
}

static int write_file(const gs_saver *s, int32_t i, const uint8_t *pages, const char *path) {
    const gs_saved *what = &s->what[i];
    const size_t n_front = gs_saved_front_bytes(what);
    uint8_t *front = gs_malloc(n_front);
    char tmp[PATH];
    if (!front)
        return GS_ERR_NOMEM;
    file_path(s, i, ".tmp", tmp);
    gs_saved_write_front(what, pages, front);
    const int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    int rc = fd >= 0 ? gs_store_write(fd, front, n_front) : GS_ERR_IO;
    if (rc == 0)
        rc = gs_store_write(fd, pages, gs_saved_pages_bytes(what));
    if (rc == 0) {
        gs_give_to_owner(fd, s->folder);
        rc = gs_store_publish(fd, tmp, path);
    } else if (fd >= 0) {
        close(fd);
        unlink(tmp);
    }
    gs_free(front);
    return rc;
}

/* One at a time, of all models and processes: together they keep to the limit. */
static void save(const gs_saver *s, int32_t i, const uint8_t *pages) {
    char path[PATH];
    const int lock = open(s->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    file_path(s, i, "", path);
    if (lock >= 0)
        flock(lock, LOCK_EX);
    make_room(s, path, gs_saved_bytes(&s->what[i]));
    const int rc = write_file(s, i, pages, path);
    if (lock >= 0)
        close(lock);
    if (rc != 0)
        gs_warn("prefix", "not saved file=%s why=%s", path, gs_err_text(rc));
    else
        gs_info("prefix", "saved file=%s mb=%zu", path, gs_saved_bytes(&s->what[i]) >> 20);
}

static void *saver_main(void *arg) {
    gs_saver *s = arg;
    bool last;
    pthread_setname_np(pthread_self(), "gs-saver");
    do {
        sem_wait(&s->work);
        last = atomic_load(&s->stop);
        for (int32_t i = 0; i < s->n; i++) {
            uint8_t *pages = atomic_exchange(&s->todo[i], NULL);
            if (pages)
                save(s, i, pages);
            gs_free(pages);
        }
    } while (!last);
    return NULL;
}

/* The engine thread: it waits for nothing. */
static void on_computed(void *arg, int32_t i, uint8_t *pages) {
    gs_saver *s = arg;
    gs_free(atomic_exchange(&s->todo[i], pages));
    sem_post(&s->work);
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* To the last byte, or false. */
static bool read_all(int fd, uint8_t *out, size_t n) {
    size_t at = 0;
    for (ssize_t got = 1; at < n && got > 0; at += got > 0 ? (size_t)got : 0)
        got = gs_read(fd, out + at, n - at);
    return at == n;
}

static int read_pages(const gs_saved *what, int fd, uint8_t *front, uint8_t *pages, char *err,
                      size_t errlen) {
    const size_t n_front = gs_saved_front_bytes(what), n_pages = gs_saved_pages_bytes(what);
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "it is no file");
    if ((uint64_t)st.st_size != gs_saved_bytes(what))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "it has %lld bytes instead of %zu",
                       (long long)st.st_size, gs_saved_bytes(what));
    if (!read_all(fd, front, n_front) || !read_all(fd, pages, n_pages))
        return gs_fail(err, errlen, GS_ERR_IO, "it can't be read");
    return gs_saved_check(what, front, n_front, pages, n_pages, err, errlen);
}

/* The pages of the i-th prefix, or NULL. */
static uint8_t *read_file(const gs_saver *s, int32_t i) {
    const gs_saved *what = &s->what[i];
    char path[PATH], err[200] = "";
    file_path(s, i, "", path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return NULL;
    uint8_t *front = gs_malloc(gs_saved_front_bytes(what));
    uint8_t *pages = gs_malloc(gs_saved_pages_bytes(what));
    int rc = front && pages ? read_pages(what, fd, front, pages, err, sizeof(err))
                            : gs_fail(err, sizeof(err), GS_ERR_NOMEM, "out of memory");
    if (rc != 0) {
        gs_warn("prefix", "computed anew, the saved one is not used file=%s why=%s", path, err);
        gs_free(pages);
        pages = NULL;
    } else {
        futimens(fd, NULL); /* it was used now */
    }
    gs_free(front);
    close(fd);
    return pages;
}

/* ---- Opening and closing --------------------------------------------------------------------- */

static void describe(gs_saver *s, const gs_loader *l, const gs_backend_info *info) {
    char of[GS_SAVED_OF_BYTES] = "";
    const uint64_t seed = XXH64(l->served.name, strlen(l->served.name), 0);
    gs_loader_cache_id(l, of, sizeof(of));
    for (int32_t i = 0; i < s->n; i++) {
        const gs_public_prefix *p = &l->prefixes.items[i];
        gs_saved *what = &s->what[i];
        *what = (gs_saved){.tokens = p->tokens,
                           .n_blocks = p->n / info->block_tokens,
                           .block_tokens = info->block_tokens,
                           .block_bytes = info->block_bytes};
        memcpy(what->of, of, sizeof(of));
        s->names[i] = XXH64(p->tokens, (size_t)p->n * sizeof(*p->tokens), seed);
        const size_t bytes = what->n_blocks > 0 ? gs_saved_bytes(what) : 0;
        if (bytes == 0 || bytes > s->max_bytes)
            what->n_blocks = 0;
    }
}

static gs_saver *create(const gs_loader *l) {
    const size_t n = (size_t)l->prefixes.n;
    gs_saver *s = gs_calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->n = l->prefixes.n;
    s->max_bytes = (uint64_t)l->cfg->prefix_saved_mb << 20;
    s->what = gs_calloc(n, sizeof(*s->what));
    s->names = gs_calloc(n, sizeof(*s->names));
    s->todo = gs_calloc(n, sizeof(*s->todo));
    sem_init(&s->work, 0, 0);
    return s;
}

void gs_saver_open(gs_loader *l, const gs_backend_info *info) {
    char err[512] = "";
    bool wants = false;
    if (l->prefixes.n == 0 || !l->state || l->cfg->prefix_saved_mb == 0 || info->block_bytes == 0 ||
        !l->cfg->kv_prefix_cache)
        return;
    gs_saver *s = l->saver = create(l);
    if (!s || !s->what || !s->names || !s->todo) {
        gs_saver_close(l);
        return;
    }
    snprintf(s->folder, sizeof(s->folder), "%.4080s/prefixes", l->state);
    if (gs_dirs_make(s->folder, err, sizeof(err)) != 0) {
        gs_warn("prefix", "nothing is saved: %s", err);
        gs_saver_close(l);
        return;
    }
    describe(s, l, info);
    for (int32_t i = 0; i < s->n; i++) {
        gs_public_prefix *p = &l->prefixes.items[i];
        p->pages = s->what[i].n_blocks > 0 ? read_file(s, i) : NULL;
        p->wanted = !p->pages && s->what[i].n_blocks > 0;
        wants |= p->wanted;
    }
    s->runs = wants && pthread_create(&s->thread, NULL, saver_main, s) == 0;
    l->prefixes.computed = on_computed;
    l->prefixes.computed_arg = s;
}

void gs_saver_close(gs_loader *l) {
    gs_saver *s = l->saver;
    if (!s)
        return;
    if (s->runs) {
        atomic_store(&s->stop, true);
        sem_post(&s->work);
        pthread_join(s->thread, NULL);
    }
    for (int32_t i = 0; s->todo && i < s->n; i++)
        gs_free(atomic_load(&s->todo[i])); /* without a thread */
    sem_destroy(&s->work);
    gs_free(s->todo);
    gs_free(s->names);
    gs_free(s->what);
    gs_free(s);
    l->saver = NULL;
}
