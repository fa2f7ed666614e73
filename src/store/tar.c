#include "store/tar.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "store/store.h"

#define COPY_BYTES 65536

/* POSIX.1-1988 (ustar). Numbers are octal digits. */
typedef struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], unused[12];
} header;
_Static_assert(sizeof(header) == GS_TAR_BLOCK, "a header is a block");

/* Of the whole header, the field itself counted as blanks. */
static unsigned sum_of(const header *h) {
    const unsigned char *p = (const unsigned char *)h;
    const size_t at = offsetof(header, sum);
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof(*h); i++)
        sum += i >= at && i < at + sizeof(h->sum) ? ' ' : p[i];
    return sum;
}

static int64_t padding_of(int64_t bytes) {
    return (GS_TAR_BLOCK - bytes % GS_TAR_BLOCK) % GS_TAR_BLOCK;
}

/* n - 1 octal digits and a zero byte. */
static void put_octal(char *out, size_t n, int64_t v) {
    out[n - 1] = '\0';
    for (size_t i = n - 1; i-- > 0; v /= 8)
        out[i] = (char)('0' + v % 8);
}

/* False: other characters than digits, or none. */
static bool get_octal(const char *p, size_t n, int64_t *out) {
    size_t i = 0;
    *out = 0;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++)
        *out = *out * 8 + (p[i] - '0');
    return i > 0 && (i == n || p[i] == '\0' || p[i] == ' ');
}

/* ---- Writing ------------------------------------------------------------------------------- */

int gs_tar_begin(int fd, const gs_tar_entry *e, int64_t mtime_s) {
    header h = {.type = '0', .magic = "ustar", .version = {'0', '0'}};
    if (e->bytes > GS_TAR_MAX)
        return GS_ERR_TOO_LARGE;
    memcpy(h.name, e->name, strlen(e->name));
    put_octal(h.mode, sizeof(h.mode), 0600);
    put_octal(h.uid, sizeof(h.uid), 0);
    put_octal(h.gid, sizeof(h.gid), 0);
    put_octal(h.size, sizeof(h.size), e->bytes);
    put_octal(h.mtime, sizeof(h.mtime), mtime_s);
    put_octal(h.sum, sizeof(h.sum) - 1, sum_of(&h));
    h.sum[sizeof(h.sum) - 1] = ' ';
    return gs_store_write(fd, &h, sizeof(h));
}

int gs_tar_pad(int fd, int64_t bytes) {
    static const char zeros[GS_TAR_BLOCK];
    return gs_store_write(fd, zeros, (size_t)padding_of(bytes));
}

int gs_tar_end(int fd) {
    static const char zeros[2 * GS_TAR_BLOCK];
    return gs_store_write(fd, zeros, sizeof(zeros));
}

/* ---- Reading ------------------------------------------------------------------------------- */

/* 0: all n bytes; GS_ERR_FORMAT: it ends before. */
static int read_whole(int fd, void *out, size_t n) {
    char *at = out;
    while (n > 0) {
        ssize_t r = gs_read(fd, at, n);
        if (r < 0)
            return GS_ERR_IO;
        if (r == 0)
            return GS_ERR_FORMAT;
        at += r;
        n -= (size_t)r;
    }
    return 0;
}

static bool is_zero(const header *h) {
    const char *p = (const char *)h;
    for (size_t i = 0; i < sizeof(*h); i++)
        if (p[i] != 0)
            return false;
    return true;
}

int gs_tar_next(int fd, gs_tar_entry *out) {
    header h;
    int64_t sum;
    int rc = read_whole(fd, &h, sizeof(h));
    if (rc != 0)
        return rc;
    if (is_zero(&h))
        return 0;
    if (!get_octal(h.sum, sizeof(h.sum), &sum) || sum != (int64_t)sum_of(&h) ||
        memcmp(h.magic, "ustar", 5) != 0 || (h.type != '0' && h.type != '\0') ||
        h.prefix[0] != '\0' || !get_octal(h.size, sizeof(h.size), &out->bytes))
        return GS_ERR_FORMAT;
    snprintf(out->name, sizeof(out->name), "%.*s", GS_TAR_NAME, h.name);
    return 1;
}

int gs_tar_skip_pad(int fd, int64_t bytes) {
    char rest[GS_TAR_BLOCK];
    return read_whole(fd, rest, (size_t)padding_of(bytes));
}

int gs_tar_copy(int in, int out, int64_t bytes) {
    char buf[COPY_BYTES];
    int rc = 0;
    while (rc == 0 && bytes > 0) {
        const size_t n = bytes < COPY_BYTES ? (size_t)bytes : COPY_BYTES;
        rc = read_whole(in, buf, n);
        if (rc == 0)
            rc = gs_store_write(out, buf, n);
        bytes -= (int64_t)n;
    }
    return rc;
}
