/* What is known of a file that was pulled: where from, its ETag, its SHA-256; kept in a hidden file
 * beside it, which counts as long as the file's size and time are those of then. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/sha256.h"
#include "base/sys.h"
#include "pull/pull_impl.h"
#include "store/store.h"

#define RECORD_BYTES 4096
#define HASH_BYTES   ((size_t)1 << 20)

typedef struct record {
    char text[RECORD_BYTES];
    const char *url, *etag, *sha256; /* in text */
} record;

static void record_path(const gs_pull_part *part, char out[GS_PULL_MAX_PATH]) {
    const char *slash = strrchr(part->path, '/');
    snprintf(out, GS_PULL_MAX_PATH, "%.*s/.%.300s.from", (int)(slash - part->path), part->path,
             slash + 1);
}

/* The line that ties a record to a state of the file. */
static void stamp(const struct stat *st, char out[64]) {
    snprintf(out, 64, "%lld %lld.%09ld", (long long)st->st_size, (long long)st->st_mtim.tv_sec,
             st->st_mtim.tv_nsec);
}

void gs_part_keep_record(const gs_pull_part *part) {
    char path[GS_PULL_MAX_PATH], text[RECORD_BYTES], when[64];
    struct stat st;
    record_path(part, path);
    if (stat(part->path, &st) != 0)
        return;
    stamp(&st, when);
    const int n = snprintf(text, sizeof text, "%.2047s\n%s\n%s\n%s\n", part->url, part->etag,
                           part->sha256, when);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return; /* the next pull reads the file instead */
    const int rc = gs_store_write(fd, text, (size_t)n);
    close(fd);
    if (rc != GS_OK)
        unlink(path);
}

void gs_part_drop_record(const gs_pull_part *part) {
    char path[GS_PULL_MAX_PATH];
    record_path(part, path);
    unlink(path);
}

/* False: nothing is known of the file as it is now. */
static bool read_record(const gs_pull_part *part, const struct stat *st, record *r) {
    char path[GS_PULL_MAX_PATH], when[64];
    char *line[4] = {r->text}; /* URL, ETag, hash, stamp */
    record_path(part, path);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    r->text[fread(r->text, 1, sizeof r->text - 1, f)] = '\0';
    fclose(f);
    for (int i = 0; i < 4; i++) {
        char *end = line[i] ? strchr(line[i], '\n') : NULL;
        if (!end)
            return false;
        *end = '\0';
        if (i < 3)
            line[i + 1] = end + 1;
    }
    r->url = line[0];
    r->etag = line[1];
    r->sha256 = line[2];
    stamp(st, when);
    return strcmp(line[3], when) == 0;
}

/* False: it differs, it can't be read, or nobody waits any more. */
static bool has_hash(const gs_pull *p, const gs_pull_part *part) {
    uint8_t hash[GS_SHA256_BYTES];
    char hex[2 * GS_SHA256_BYTES + 1];
    gs_sha256_state state;
    ssize_t n = -1;
    const int fd = open(part->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *buf = fd >= 0 ? gs_malloc(HASH_BYTES) : NULL;
    gs_sha256_begin(&state);
    while (buf && !atomic_load(&p->cancel) && (n = gs_read(fd, buf, HASH_BYTES)) > 0)
        gs_sha256_add(&state, buf, (size_t)n);
    gs_sha256_end(&state, hash);
    gs_hex(hash, sizeof hash, hex);
    gs_free(buf);
    if (fd >= 0)
        close(fd);
    return n == 0 && strcasecmp(hex, part->sha256) == 0;
}

bool gs_part_is_current(const gs_pull *p, const gs_pull_part *part) {
    struct stat st;
    record r = {.text = ""};
    const int64_t bytes = atomic_load(&part->bytes);
    if (stat(part->path, &st) != 0 || !S_ISREG(st.st_mode) || (bytes >= 0 && st.st_size != bytes))
        return false;
    const bool known = read_record(part, &st, &r);
    if (!part->sha256[0])
        return known && part->etag[0] && strcmp(r.etag, part->etag) == 0 &&
               strcmp(r.url, part->url) == 0;
    if (known)
        return strcasecmp(r.sha256, part->sha256) == 0;
    if (!has_hash(p, part))
        return false;
    gs_part_keep_record(part);
    return true;
}
