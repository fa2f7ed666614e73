#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/sys.h"
#include "cli/embed_log.h"

/* What stands before the numbers is all that a restart reads. */
static const char numbers[] = ",\"embedding\":[";

static bool unhex(const char *text, uint8_t *out, size_t n) {
    if (!text || strlen(text) != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        char byte[3] = {text[2 * i], text[2 * i + 1], '\0'}, *end;
        out[i] = (uint8_t)strtoul(byte, &end, 16);
        if (*end)
            return false;
    }
    return true;
}

static int by_hash(const void *a, const void *b) {
    const gs_embed_line *x = a, *y = b;
    const int order = memcmp(x->hash, y->hash, sizeof(x->hash));
    if (order != 0)
        return order;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int add_line(gs_embed_log *l, const char *text, size_t n, int64_t offset) {
    const char *end = memmem(text, n, numbers, sizeof(numbers) - 1);
    gs_buf head = {0};
    if (!end)
        return GS_ERR_FORMAT;
    gs_buf_add(&head, text, (size_t)(end - text));
    gs_buf_char(&head, '}');
    json_t *v = head.failed ? NULL : json_loadb(head.data, head.len, 0, NULL);
    const char *model = json_string_value(json_object_get(v, "model"));
    gs_embed_line line = {.offset = offset};
    int rc = head.failed ? GS_ERR_NOMEM : GS_ERR_FORMAT;
    gs_buf_deinit(&head);
    if (model &&
        unhex(json_string_value(json_object_get(v, "sha256")), line.hash, sizeof(line.hash)))
        rc = 0;
    if (rc == 0 && !l->model[0])
        snprintf(l->model, sizeof(l->model), "%s", model);
    if (rc == 0 && strcmp(l->model, model) != 0)
        rc = GS_ERR_EXISTS;
    json_decref(v);
    if (rc != 0)
        return rc;
    if (l->n == l->cap) {
        const size_t cap = l->cap ? 2 * l->cap : 256;
        gs_embed_line *more = gs_realloc(l->lines, cap * sizeof(*more));
        if (!more)
            return GS_ERR_NOMEM;
        l->lines = more;
        l->cap = cap;
    }
    l->lines[l->n++] = line;
    return 0;
}

static int read_lines(gs_embed_log *l, const char *path, char *err, size_t errlen) {
    const void *data;
    size_t size;
    if (access(path, F_OK) != 0)
        return 0;
    int rc = gs_map_file(path, &data, &size, err, errlen);
    if (rc != 0)
        return rc;
    const char *text = data;
    size_t at = 0, number = 1;
    while (rc == 0 && at < size) {
        const char *end = memchr(text + at, '\n', size - at);
        if (!end)
            break; /* torn */
        const size_t n = (size_t)(end - text) - at;
        rc = add_line(l, text + at, n, (int64_t)at);
        if (rc == GS_ERR_EXISTS)
            gs_fail(err, errlen, rc, "%s:%zu was made by another model; use another --out", path,
                    number);
        else if (rc != 0)
            gs_fail(err, errlen, rc, "%s:%zu is no line of gamasot embed; use another --out", path,
                    number);
        at += n + 1;
        number++;
    }
    gs_unmap(data, size);
    if (rc == 0 && at < size && truncate(path, (off_t)at) != 0)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
    return rc;
}

int gs_embed_log_open(const char *path, gs_embed_log *out, char *err, size_t errlen) {
    *out = (gs_embed_log){0};
    int rc = read_lines(out, path, err, errlen);
    if (rc == 0 && !(out->f = fopen(path, "ae")))
        rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
    if (rc != 0) {
        gs_free(out->lines);
        out->lines = NULL;
        return rc;
    }
    if (out->n > 0)
        qsort(out->lines, out->n, sizeof(*out->lines), by_hash);
    return 0;
}

int64_t gs_embed_log_take(gs_embed_log *l, const uint8_t hash[GS_SHA256_BYTES]) {
    size_t low = 0, high = l->n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (memcmp(l->lines[mid].hash, hash, GS_SHA256_BYTES) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == l->n || memcmp(l->lines[low].hash, hash, GS_SHA256_BYTES) != 0)
        return -1;
    gs_embed_line *first = &l->lines[low];
    const size_t at = low + (size_t)first->n_taken;
    if (at >= l->n || memcmp(l->lines[at].hash, hash, GS_SHA256_BYTES) != 0)
        return -1;
    first->n_taken++;
    return l->lines[at].offset;
}

int gs_embed_log_close(gs_embed_log *l, char *err, size_t errlen) {
    int rc = 0;
    if (l->f && (fflush(l->f) != 0 || fsync(fileno(l->f)) != 0))
        rc = GS_ERR_IO;
    if (l->f && fclose(l->f) != 0)
        rc = GS_ERR_IO;
    l->f = NULL;
    gs_free(l->lines);
    l->lines = NULL;
    l->n = 0;
    return rc == 0 ? 0 : gs_fail(err, errlen, rc, "writing: %s", gs_errno_text(errno));
}

/* ---- NumPy
 * -------------------------------------------------------------------------------------*/

/* The numbers of the line at text into v[n]; how many there are in all. */
static size_t read_numbers(const char *text, const char *end, float *v, size_t n) {
    const char *at = memmem(text, (size_t)(end - text), numbers, sizeof(numbers) - 1);
    size_t count = 0;
    at = at ? at + sizeof(numbers) - 1 : end;
    while (at < end && *at != ']') {
        char *after;
        const float x = strtof(at, &after);
        if (after == at)
            break;
        if (count < n)
            v[count] = x;
        count++;
        at = after + (*after == ',');
    }
    return count;
}

/* The header's length with all before it is a multiple of 64. */
static void put_header(gs_buf *out, size_t n, size_t n_embd) {
    char dict[128];
    int len =
        snprintf(dict, sizeof(dict),
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", n, n_embd);
    const size_t whole = (10 + (size_t)len + 1 + 63) / 64 * 64;
    gs_buf_add(out, "\x93NUMPY\x01\x00", 8);
    gs_buf_char(out, (char)((whole - 10) & 0xff));
    gs_buf_char(out, (char)((whole - 10) >> 8));
    gs_buf_add(out, dict, (size_t)len);
    while (out->len < whole - 1)
        gs_buf_char(out, ' ');
    gs_buf_char(out, '\n');
}

static int write_rows(FILE *f, const char *text, size_t size, const int64_t *offsets, size_t n) {
    const char *end = text + size;
    const size_t n_embd = n > 0 ? read_numbers(text + offsets[0], end, NULL, 0) : 0;
    float *row = gs_array(n_embd > 0 ? n_embd : 1, sizeof(*row));
    gs_buf head = {0};
    put_header(&head, n, n_embd);
    int rc = row && !head.failed ? 0 : GS_ERR_NOMEM;
    if (rc == 0 && fwrite(head.data, 1, head.len, f) != head.len)
        rc = GS_ERR_IO;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (read_numbers(text + offsets[i], end, row, n_embd) != n_embd)
            rc = GS_ERR_FORMAT;
        else if (fwrite(row, sizeof(*row), n_embd, f) != n_embd)
            rc = GS_ERR_IO;
    }
    gs_buf_deinit(&head);
    gs_free(row);
    return rc;
}

int gs_embed_write_npy(const char *path, const char *log_path, const int64_t *offsets, size_t n,
                       char *err, size_t errlen) {
    const void *text;
    size_t size;
    gs_buf tmp = {0};
    gs_buf_printf(&tmp, "%s.tmp", path);
    if (tmp.failed || !gs_buf_cstr(&tmp)) {
        gs_buf_deinit(&tmp);
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    }
    int rc = gs_map_file(log_path, &text, &size, err, errlen);
    if (rc == 0) {
        FILE *f = fopen(tmp.data, "we");
        rc = f ? write_rows(f, text, size, offsets, n) : GS_ERR_IO;
        if (f && (fflush(f) != 0 || fsync(fileno(f)) != 0) && rc == 0)
            rc = GS_ERR_IO;
        if (f && fclose(f) != 0 && rc == 0)
            rc = GS_ERR_IO;
        if (rc == 0 && rename(tmp.data, path) != 0)
            rc = GS_ERR_IO;
        if (rc == GS_ERR_FORMAT)
            gs_fail(err, errlen, rc, "%s: its vectors differ in length", log_path);
        else if (rc != 0)
            gs_fail(err, errlen, rc, "%s: %s", path,
                    rc == GS_ERR_IO ? gs_errno_text(errno) : gs_err_text(rc));
        gs_unmap(text, size);
    }
    gs_buf_deinit(&tmp);
    return rc;
}
