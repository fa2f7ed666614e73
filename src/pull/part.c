/* One file: from a server, or of this machine, to a whole file with the right hash. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/sha256.h"
#include "base/sys.h"
#include "pull/pull_impl.h"
#include "store/store.h"

#define COPY_BYTES   ((size_t)1 << 20)
#define ORIGIN_BYTES 4096

typedef struct download {
    gs_pull *p;
    gs_pull_part *part;
    gs_sha256_state hash; /* of the bytes that are there */
    char *err;
    size_t errlen;
} download;

/* ---- Files of a part ------------------------------------------------------------------------ */

int gs_part_paths(const char *folder, const char *file, gs_pull_part *part) {
    const int a = snprintf(part->path, sizeof part->path, "%s/%s", folder, file);
    const int b = snprintf(part->tmp, sizeof part->tmp, "%s/.%s.part", folder, file);
    part->fd = -1;
    return a > 0 && b > 0 && (size_t)b + sizeof ".from" < sizeof part->tmp ? GS_OK
                                                                           : GS_ERR_TOO_LARGE;
}

static void origin_path(const gs_pull_part *part, char out[GS_PULL_MAX_PATH]) {
    snprintf(out, GS_PULL_MAX_PATH, "%.4080s.from", part->tmp);
}

int gs_part_open(gs_pull_part *part, char *err, size_t errlen) {
    part->fd = open(part->tmp, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (part->fd < 0)
        return gs_fail(err, errlen, errno == ENOSPC ? GS_ERR_NO_SPACE : GS_ERR_IO, "%s: %s",
                       part->tmp, gs_errno_text(errno));
    if (flock(part->fd, LOCK_EX | LOCK_NB) == 0) {
        char folder[GS_PULL_MAX_PATH];
        snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(part->tmp, '/') - part->tmp),
                 part->tmp);
        gs_give_to_owner(part->fd, folder);
        return GS_OK;
    }
    gs_part_close(part);
    return gs_fail(err, errlen, GS_ERR_EXISTS, "this model is being pulled already");
}

void gs_part_close(gs_pull_part *part) {
    if (part->fd >= 0)
        close(part->fd);
    part->fd = -1;
}

void gs_part_discard(gs_pull_part *part) {
    char origin[GS_PULL_MAX_PATH];
    origin_path(part, origin);
    unlink(part->tmp);
    unlink(origin);
    gs_part_close(part);
}

int gs_part_publish(gs_pull_part *part, char *err, size_t errlen) {
    char origin[GS_PULL_MAX_PATH];
    origin_path(part, origin);
    const int rc = gs_store_publish(part->fd, part->tmp, part->path);
    part->fd = -1;
    unlink(origin);
    if (rc == GS_OK)
        gs_part_keep_record(part);
    return rc == GS_OK ? rc : gs_fail(err, errlen, rc, "%s: %s", part->path, gs_err_text(rc));
}

int64_t gs_pull_free_bytes(const char *folder) {
    struct statvfs v;
    if (statvfs(folder, &v) != 0)
        return -1;
    return (int64_t)v.f_bavail * (int64_t)v.f_frsize;
}

int gs_part_check_room(const char *folder, int64_t extra, int64_t min_free, char *err,
                       size_t errlen) {
    const int64_t there = gs_pull_free_bytes(folder);
    if (there < 0 || extra <= there - min_free)
        return GS_OK;
    return gs_fail(err, errlen, GS_ERR_NO_SPACE,
                   "no room: %lld MB are still to come, %lld MB are free in %.200s, and %lld MB of "
                   "them are left to others (models.min_free_mb)",
                   (long long)(extra >> 20), (long long)(there >> 20), folder,
                   (long long)(min_free >> 20));
}

/* ---- What an earlier try has left ----------------------------------------------------------- */

/* Where the bytes are from and of which state of the file; of which start of this machine, because
 * after a power cut the last of them may be zeros. */
static int write_origin(const download *d) {
    char origin[GS_PULL_MAX_PATH], text[ORIGIN_BYTES], boot[64] = "";
    const gs_pull_part *part = d->part;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (!fgets(boot, sizeof boot, f))
            boot[0] = '\0';
        fclose(f);
    }
    boot[strcspn(boot, "\n")] = '\0';
    const int n = snprintf(text, sizeof text, "%.2047s\n%s\n%s\n", part->url, d->part->etag, boot);
    origin_path(part, origin);
    const int fd = open(origin, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return GS_ERR_IO;
    const int rc = gs_store_write(fd, text, (size_t)n);
    close(fd);
    return rc;
}

/* Fills d->part->etag; false: nothing is known of the bytes. */
static bool read_origin(download *d) {
    char origin[GS_PULL_MAX_PATH], text[ORIGIN_BYTES] = "", boot[64] = "", now[64] = "-";
    char *line[3] = {text, NULL, NULL};
    origin_path(d->part, origin);
    FILE *f = fopen(origin, "re");
    if (!f)
        return false;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    for (int i = 0; i < 3; i++) {
        char *end = line[i] ? strchr(line[i], '\n') : NULL;
        if (!end)
            return false;
        *end = '\0';
        if (i < 2)
            line[i + 1] = end + 1;
    }
    snprintf(boot, sizeof boot, "%.60s", line[2]);
    f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (fgets(now, sizeof now, f))
            now[strcspn(now, "\n")] = '\0';
        fclose(f);
    }
    if (strcmp(line[0], d->part->url) != 0 || strlen(line[1]) >= sizeof d->part->etag)
        return false;
    memcpy(d->part->etag, line[1], strlen(line[1]) + 1);
    /* A hash will find what is wrong; an ETag would not. */
    return d->part->sha256[0] || (d->part->etag[0] && strcmp(boot, now) == 0);
}

static int start_anew(download *d) {
    if (ftruncate(d->part->fd, 0) != 0 || lseek(d->part->fd, 0, SEEK_SET) != 0)
        return gs_fail(d->err, d->errlen, GS_ERR_IO, "%s: %s", d->part->tmp, gs_errno_text(errno));
    gs_sha256_begin(&d->hash);
    atomic_store(&d->part->n_done, 0);
    d->part->etag[0] = '\0';
    return GS_OK;
}

/* Hashes what fd gives to its end, and writes it to the part unless that is it. */
static int take_from(download *d, int fd) {
    char *buf = gs_malloc(COPY_BYTES);
    ssize_t n = 0;
    int rc = buf ? GS_OK : GS_ERR_NOMEM;
    while (rc == GS_OK && (n = gs_read(fd, buf, COPY_BYTES)) > 0) {
        if (atomic_load(&d->p->cancel))
            rc = gs_fail(d->err, d->errlen, GS_ERR_CANCELLED, "cancelled");
        if (rc == GS_OK && fd != d->part->fd)
            rc = gs_store_write(d->part->fd, buf, (size_t)n);
        gs_sha256_add(&d->hash, buf, (size_t)n);
        atomic_fetch_add(&d->part->n_done, n);
    }
    gs_free(buf);
    if (n < 0)
        return gs_fail(d->err, d->errlen, GS_ERR_IO, "%s: %s",
                       fd == d->part->fd ? d->part->tmp : d->part->url, gs_errno_text(errno));
    if (rc == GS_ERR_NO_SPACE || rc == GS_ERR_IO)
        return gs_fail(d->err, d->errlen, rc, "%s: %s", d->part->tmp, gs_err_text(rc));
    return rc;
}

/* The bytes that are there count if it is known what they are of. */
static int take_up(download *d) {
    struct stat st;
    const int64_t bytes = atomic_load(&d->part->bytes);
    gs_sha256_begin(&d->hash);
    atomic_store(&d->part->n_done, 0);
    if (fstat(d->part->fd, &st) != 0)
        return gs_fail(d->err, d->errlen, GS_ERR_IO, "%s: %s", d->part->tmp, gs_errno_text(errno));
    if (st.st_size == 0 || !read_origin(d) || (bytes >= 0 && st.st_size > bytes) ||
        lseek(d->part->fd, 0, SEEK_SET) != 0)
        return start_anew(d);
    return take_from(d, d->part->fd);
}

/* ---- From a server -------------------------------------------------------------------------- */

static int begin(void *arg, const gs_fetch_head *h) {
    download *d = arg;
    gs_pull_part *part = d->part;
    const int64_t here = atomic_load(&part->n_done);
    const int64_t total = h->total >= 0 ? h->total : h->linked;
    if (h->status == 206 && h->from != here)
        return gs_fail(d->err, d->errlen, GS_ERR_UNAVAILABLE,
                       "the server gives another part of the file than the one asked for");
    if (h->status == 200) {
        int rc = start_anew(d);
        if (rc != GS_OK)
            return rc;
        memcpy(d->part->etag, h->etag, sizeof d->part->etag);
        if (write_origin(d) != GS_OK)
            return gs_fail(d->err, d->errlen, GS_ERR_NO_SPACE, "%.3000s.from: %s", part->tmp,
                           gs_err_text(GS_ERR_NO_SPACE));
    }
    const int64_t known = atomic_load(&part->bytes);
    if (known >= 0 && total >= 0 && known != total)
        return gs_fail(d->err, d->errlen, GS_ERR_FORMAT,
                       "the file has %lld bytes, and should have %lld", (long long)total,
                       (long long)known);
    if (known < 0)
        atomic_store(&part->bytes, total);
    if (!part->sha256[0])
        memcpy(part->sha256, h->sha256, sizeof part->sha256);
    return total < 0 ? GS_OK
                     : gs_part_check_room(d->p->cfg.folder, total - atomic_load(&part->n_done),
                                          d->p->cfg.min_free_bytes, d->err, d->errlen);
}

static int take(void *arg, const void *data, size_t n) {
    download *d = arg;
    const int64_t bytes = atomic_load(&d->part->bytes);
    if (bytes >= 0 && atomic_load(&d->part->n_done) + (int64_t)n > bytes)
        return gs_fail(d->err, d->errlen, GS_ERR_FORMAT,
                       "more than the %lld bytes of the file came", (long long)bytes);
    const int rc = gs_store_write(d->part->fd, data, n);
    if (rc != GS_OK)
        return gs_fail(d->err, d->errlen, rc, "%s: %s", d->part->tmp, gs_err_text(rc));
    gs_sha256_add(&d->hash, data, n);
    atomic_fetch_add(&d->part->n_done, (int64_t)n);
    return GS_OK;
}

static int attempt(download *d) {
    gs_pull_part *part = d->part;
    gs_fetch_head head;
    const int64_t here = atomic_load(&part->n_done);
    if (here > 0 && here == atomic_load(&part->bytes))
        return GS_OK;
    const gs_fetch f = {.url = part->url,
                        .hosts = &d->p->cfg.sources.hosts,
                        .from = here,
                        .if_range = d->part->etag[0] ? d->part->etag : NULL,
                        .begin = begin,
                        .data = take,
                        .arg = d,
                        .cancel = &d->p->cancel};
    int rc = gs_fetch_run(&f, &head, d->err, d->errlen);
    if (rc == GS_OK && head.status == 416 && head.total != here) {
        rc = start_anew(d); /* it is not what it was */
        return rc != GS_OK ? rc
                           : gs_fail(d->err, d->errlen, GS_ERR_UNAVAILABLE,
                                     "the file has changed on the server");
    }
    const int64_t bytes = atomic_load(&part->bytes), now = atomic_load(&part->n_done);
    if (rc == GS_OK && bytes >= 0 && now < bytes)
        return gs_fail(d->err, d->errlen, GS_ERR_UNAVAILABLE,
                       "only %lld of the file's %lld bytes came", (long long)now, (long long)bytes);
    if (rc == GS_OK && bytes < 0)
        atomic_store(&part->bytes, now);
    return rc;
}

static bool wait_ms(const gs_pull *p, int64_t ms) {
    for (; ms > 0 && !atomic_load(&p->cancel); ms -= 50)
        nanosleep(&(struct timespec){.tv_nsec = (ms < 50 ? ms : 50) * 1000000}, NULL);
    return !atomic_load(&p->cancel);
}

static int check_hash(download *d) {
    uint8_t hash[GS_SHA256_BYTES];
    char hex[2 * GS_SHA256_BYTES + 1];
    gs_pull_part *part = d->part;
    gs_sha256_end(&d->hash, hash);
    gs_hex(hash, sizeof hash, hex);
    if (part->sha256[0] && strcasecmp(part->sha256, hex) != 0) {
        gs_fail_text(d->err, d->errlen, "the file's SHA-256 is %s, and should be %s", hex,
                     part->sha256);
        gs_part_discard(part);
        return GS_ERR_FORMAT;
    }
    memcpy(part->sha256, hex, sizeof hex); /* which record.c keeps */
    return GS_OK;
}

int gs_part_download(gs_pull *p, gs_pull_part *part, char *err, size_t errlen) {
    download d = {.p = p, .part = part, .err = err, .errlen = errlen};
    int rc = take_up(&d);
    int64_t pause_ms = p->cfg.pause_ms;
    for (int n_tries = 0; rc == GS_OK;) {
        const int64_t before = atomic_load(&part->n_done);
        rc = attempt(&d);
        if (rc != GS_ERR_UNAVAILABLE)
            break;
        if (atomic_load(&part->n_done) > before) {
            n_tries = 0;
            pause_ms = p->cfg.pause_ms;
        }
        if (++n_tries >= p->cfg.n_tries || !wait_ms(p, pause_ms))
            break;
        pause_ms *= 2;
        rc = GS_OK;
    }
    return rc == GS_OK ? check_hash(&d) : rc;
}

/* ---- A file of this machine ----------------------------------------------------------------- */

int gs_part_copy(gs_pull *p, gs_pull_part *part, char *err, size_t errlen) {
    download d = {.p = p, .part = part, .err = err, .errlen = errlen};
    struct stat st;
    const int fd = open(part->url, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int rc = GS_OK;
    if (fd < 0 || fstat(fd, &st) != 0)
        rc = gs_fail(err, errlen, errno == ENOENT ? GS_ERR_NOT_FOUND : GS_ERR_IO, "%s: %s",
                     part->url, gs_errno_text(errno));
    else if (!S_ISREG(st.st_mode))
        rc = gs_fail(err, errlen, GS_ERR_INVALID, "%s: not a regular file", part->url);
    if (rc == GS_OK) {
        atomic_store(&part->bytes, st.st_size);
        rc = gs_part_check_room(p->cfg.folder, st.st_size, p->cfg.min_free_bytes, err, errlen);
    }
    if (rc == GS_OK)
        rc = start_anew(&d);
    if (rc == GS_OK)
        rc = take_from(&d, fd);
    if (fd >= 0)
        close(fd);
    if (rc == GS_OK)
        return check_hash(&d);
    gs_part_discard(part); /* half a copy helps nobody */
    return rc;
}
