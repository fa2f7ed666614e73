/*
 * Models in several files. Each is a GGUF file of its own with the keys split.no, split.count and
 * split.tensors.count; only the first one has the model's metadata. Facts: llama.cpp's gguf-split.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "gguf/gguf_impl.h"

#define SUFFIX_CHARS 20 /* "-00001-of-00003.gguf" */

bool gs_gguf_shard_of(const char *path, gs_gguf_shard *out) {
    const size_t n = strlen(path);
    if (n <= SUFFIX_CHARS)
        return false;
    const char *s = path + n - SUFFIX_CHARS;
    static const char pattern[] = "-#####-of-#####.gguf";
    for (size_t i = 0; i < SUFFIX_CHARS; i++)
        if (pattern[i] == '#' ? s[i] < '0' || s[i] > '9' : s[i] != pattern[i])
            return false;
    *out = (gs_gguf_shard){.no = atoi(s + 1), .n = atoi(s + 10), .stem = n - SUFFIX_CHARS};
    return out->no >= 1 && out->no <= out->n && out->n <= GS_GGUF_MAX_SHARDS;
}

int gs_gguf_shard_path(const char *path, const gs_gguf_shard *s, int no, char *out, size_t n) {
    const int len =
        snprintf(out, n, "%.*s-%05d-of-%05d.gguf", (int)s->stem, path, no % 100000, s->n % 100000);
    return len > 0 && (size_t)len < n ? GS_OK : GS_ERR_TOO_LARGE;
}

/* What the file says of itself; without the keys it is the only one. */
static int read_split(const gs_gguf *g, uint32_t *no, uint32_t *count, char *err, size_t errlen) {
    *no = 0;
    *count = 1;
    int rc = gs_gguf_get_u32(g, "split.no", no, err, errlen);
    if (rc == GS_OK || rc == GS_ERR_NOT_FOUND)
        rc = gs_gguf_get_u32(g, "split.count", count, err, errlen);
    return rc == GS_ERR_NOT_FOUND ? GS_OK : rc;
}

static int open_others(gs_gguf *g, const char *path, const gs_gguf_shard *s, char *err,
                       size_t errlen) {
    char other[4096];
    for (int i = 2; i <= s->n; i++) {
        uint32_t no, count;
        int rc = gs_gguf_shard_path(path, s, i, other, sizeof other);
        if (rc == GS_OK)
            rc = gs_gguf_open_one(other, &g->more[g->n_more], err, errlen);
        if (rc != GS_OK)
            return rc;
        rc = read_split(g->more[g->n_more++], &no, &count, err, errlen);
        if (rc != GS_OK)
            return rc;
        if (no != (uint32_t)i - 1 || count != (uint32_t)s->n)
            return gs_fail(err, errlen, GS_ERR_FORMAT,
                           "%s: it says of itself that it is file %u of %u", other, no + 1, count);
    }
    return GS_OK;
}

static int take_tensors(gs_gguf *g, char *err, size_t errlen) {
    size_t n = g->n_tensors;
    for (int i = 0; i < g->n_more; i++)
        n += g->more[i]->n_tensors;
    if (n > GS_GGUF_MAX_TENSORS)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "%zu tensors are too many", n);
    gs_gguf_tensor *all = gs_realloc(g->tensors, n * sizeof *all);
    if (!all)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory for %zu tensors", n);
    g->tensors = all;
    for (int i = 0; i < g->n_more; i++) {
        const gs_gguf *from = g->more[i];
        if (from->n_tensors > 0)
            memcpy(all + g->n_tensors, from->tensors, from->n_tensors * sizeof *all);
        g->n_tensors += from->n_tensors;
    }
    uint32_t want = (uint32_t)n;
    int rc = gs_gguf_get_u32(g, "split.tensors.count", &want, err, errlen);
    if (rc != GS_OK && rc != GS_ERR_NOT_FOUND)
        return rc;
    if (want != n)
        return gs_fail(err, errlen, GS_ERR_FORMAT,
                       "split.tensors.count is %u, and the files hold %zu tensors", want, n);
    return gs_gguf_index_tensors(g, err, errlen);
}

int gs_gguf_join(gs_gguf *g, const char *path, char *err, size_t errlen) {
    uint32_t no, count;
    gs_gguf_shard s;
    char why[512] = "";
    int rc = read_split(g, &no, &count, why, sizeof why);
    if (rc != GS_OK)
        return gs_fail(err, errlen, rc, "%s: %s", path, why);
    if (count <= 1)
        return GS_OK;
    if (no != 0)
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "%s: this is file %u of the %u of a model; the first one is to be named",
                       path, no + 1, count);
    if (!gs_gguf_shard_of(path, &s) || s.no != 1 || (uint32_t)s.n != count)
        return gs_fail(err, errlen, GS_ERR_FORMAT,
                       "%s: the first of %u files must be called NAME-00001-of-%05u.gguf", path,
                       count, count);
    g->more = gs_calloc((size_t)s.n, sizeof(gs_gguf *));
    if (!g->more)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory for %d files", s.n);
    rc = open_others(g, path, &s, err, errlen);
    if (rc != GS_OK)
        return rc;
    rc = take_tensors(g, why, sizeof why);
    return rc == GS_OK ? rc : gs_fail(err, errlen, rc, "%s: %s", path, why);
}
