#include "pull/pull.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "pull/pull_impl.h"

#define MAX_MANIFEST  ((size_t)4 << 20)
#define MANIFEST_TYPE "application/vnd.docker.distribution.manifest.v2+json"
#define MODEL_LAYER   "application/vnd.ollama.image.model"

/* ---- What there is --------------------------------------------------------------------------- */

static bool is_hex64(const char *s) {
    return strlen(s) == 64 && strspn(s, "0123456789abcdefABCDEF") == 64;
}

/* Part i's place: NAME.gguf, or NAME-0000I-of-0000N.gguf. */
static int place_part(gs_pull *p, int i) {
    char file[512], first[600];
    int rc = gs_model_file_of_name(p->name, file, sizeof file, p->err, sizeof p->err);
    if (rc == GS_OK && p->n_parts > 1) {
        const gs_gguf_shard s = {.n = p->n_parts, .stem = strlen(file) - strlen(".gguf")};
        memcpy(first, file, strlen(file) + 1);
        rc = gs_gguf_shard_path(first, &s, i + 1, file, sizeof file);
    }
    if (rc == GS_OK && strlen(file) + sizeof "..part.from" > 255)
        rc = GS_ERR_TOO_LARGE;
    if (rc == GS_OK)
        rc = gs_part_paths(p->cfg.folder, file, &p->parts[i]);
    return rc == GS_OK || p->err[0]
               ? rc
               : gs_fail(p->err, sizeof p->err, rc, "the model's name is too long");
}

int gs_pull_make_parts(gs_pull *p, int n) {
    p->parts = gs_calloc((size_t)n, sizeof *p->parts);
    if (!p->parts)
        return gs_fail(p->err, sizeof p->err, GS_ERR_NOMEM, "out of memory");
    p->n_parts = n;
    int rc = GS_OK;
    for (int i = 0; i < n && rc == GS_OK; i++) {
        p->parts[i].fd = -1;
        atomic_store(&p->parts[i].bytes, -1);
        rc = place_part(p, i);
    }
    return rc;
}

/* A URL or path, with its companions where it is the first of several files. */
static int list_files(gs_pull *p) {
    char path[sizeof p->source.url], other[sizeof p->source.url];
    const char *url = p->source.url;
    const size_t end = p->source.kind == GS_SOURCE_URL ? strcspn(url, "?#") : strlen(url);
    gs_gguf_shard s = {.n = 1};
    memcpy(path, url, end);
    path[end] = '\0';
    const bool several = gs_gguf_shard_of(path, &s);
    int rc = gs_pull_make_parts(p, several ? s.n : 1);
    for (int i = 0; i < p->n_parts && rc == GS_OK; i++) {
        gs_buf b = {0};
        memcpy(other, path, end + 1);
        if (several)
            gs_gguf_shard_path(path, &s, i + 1, other, sizeof other);
        gs_buf_str(&b, other);
        gs_buf_str(&b, url + end);
        p->parts[i].url = gs_buf_take(&b, NULL);
        if (!p->parts[i].url)
            rc = gs_fail(p->err, sizeof p->err, GS_ERR_NOMEM, "out of memory");
    }
    return rc;
}

static int keep_manifest(void *arg, const void *data, size_t n) {
    gs_buf *b = arg;
    if (b->len + n > MAX_MANIFEST)
        return GS_ERR_TOO_LARGE;
    return gs_buf_add(b, data, n);
}

/* A layer of the manifest that holds (a part of) the model. */
static int take_layer(gs_pull *p, const json_t *layer, int i) {
    gs_pull_part *part = &p->parts[i];
    gs_buf url = {0};
    const char *digest = json_string_value(json_object_get(layer, "digest"));
    const json_t *size = json_object_get(layer, "size");
    if (!digest || strncmp(digest, "sha256:", 7) != 0 || !is_hex64(digest + 7) ||
        !json_is_integer(size) || json_integer_value(size) <= 0)
        return gs_fail(p->err, sizeof p->err, GS_ERR_FORMAT,
                       "the registry's manifest has a layer without digest or size");
    for (int k = 0; k <= 64; k++)
        part->sha256[k] = (char)tolower((unsigned char)digest[7 + k]);
    atomic_store(&part->bytes, json_integer_value(size));
    gs_buf_printf(&url, "%ssha256:%s", p->source.blobs, part->sha256);
    part->url = gs_buf_take(&url, NULL);
    return part->url ? GS_OK : gs_fail(p->err, sizeof p->err, GS_ERR_NOMEM, "out of memory");
}

static bool is_model(const json_t *layer) {
    const char *type = json_string_value(json_object_get(layer, "mediaType"));
    return type && strcmp(type, MODEL_LAYER) == 0;
}

static int read_manifest(gs_pull *p, const gs_buf *text) {
    json_t *root = json_loadb(text->data ? text->data : "", text->len, 0, NULL);
    const json_t *layers = json_object_get(root, "layers"), *layer;
    size_t i;
    int n = 0, at = 0, rc;
    json_array_foreach(layers, i, layer) {
        n += is_model(layer);
    }
    if (n < 1 || n > GS_GGUF_MAX_SHARDS)
        rc = gs_fail(p->err, sizeof p->err, GS_ERR_FORMAT,
                     "the registry's manifest names no GGUF model");
    else
        rc = gs_pull_make_parts(p, n);
    json_array_foreach(layers, i, layer) {
        if (rc == GS_OK && is_model(layer))
            rc = take_layer(p, layer, at++);
    }
    json_decref(root);
    return rc;
}

static int ask_registry(gs_pull *p) {
    gs_buf text = {0};
    gs_fetch_head head;
    const gs_fetch f = {.url = p->source.url,
                        .hosts = &p->cfg.sources.hosts,
                        .accept = MANIFEST_TYPE,
                        .data = keep_manifest,
                        .arg = &text,
                        .cancel = &p->cancel};
    int rc = gs_fetch_run(&f, &head, p->err, sizeof p->err);
    if (rc == GS_ERR_NOT_FOUND)
        rc = gs_fail(p->err, sizeof p->err, rc, "the registry has no model of that name");
    if (rc == GS_OK)
        rc = read_manifest(p, &text);
    else if (!p->err[0])
        gs_fail_text(p->err, sizeof p->err, "the registry's manifest: %s", gs_err_text(rc));
    gs_buf_deinit(&text);
    return rc;
}

/* What a URL has now. Who does not answer HEAD is asked when the file comes. */
static int ask_head(gs_pull *p, gs_pull_part *part) {
    gs_fetch_head h;
    const gs_fetch f = {
        .url = part->url, .hosts = &p->cfg.sources.hosts, .head = true, .cancel = &p->cancel};
    const int rc = gs_fetch_run(&f, &h, p->err, sizeof p->err);
    if (rc != GS_OK) {
        if (rc == GS_ERR_INVALID || p->n_parts == 1)
            p->err[0] = '\0';
        return p->err[0] ? rc : GS_OK;
    }
    if (h.total > 0 || h.linked > 0)
        atomic_store(&part->bytes, h.total > 0 ? h.total : h.linked);
    if (!part->sha256[0])
        memcpy(part->sha256, h.sha256, sizeof part->sha256);
    memcpy(part->etag, h.etag, sizeof part->etag);
    return GS_OK;
}

/* Sizes, before anything is written: several files must fit together. What is here already is not
 * among them. */
static int ask_sizes(gs_pull *p) {
    int64_t sum = 0;
    for (int i = 0; i < p->n_parts; i++) {
        gs_pull_part *part = &p->parts[i];
        const bool url = p->source.kind == GS_SOURCE_URL;
        int rc = GS_OK;
        if (url && (p->n_parts > 1 || access(part->path, F_OK) == 0))
            rc = ask_head(p, part);
        if (rc != GS_OK)
            return rc;
        part->current = p->source.kind != GS_SOURCE_FILE && gs_part_is_current(p, part);
        if (part->current)
            continue;
        const int64_t bytes = atomic_load(&part->bytes);
        sum += bytes > 0 ? bytes : 0;
    }
    return gs_part_check_room(p->cfg.folder, sum, p->cfg.min_free_bytes, p->err, sizeof p->err);
}

static int find_out(gs_pull *p) {
    int rc = p->source.kind == GS_SOURCE_REGISTRY ? ask_registry(p) : list_files(p);
    if (rc != GS_OK)
        return rc;
    if (p->cfg.sha256 && p->cfg.sha256[0]) {
        if (p->n_parts > 1)
            return gs_fail(p->err, sizeof p->err, GS_ERR_INVALID,
                           "sha256 is of one file, and the model has %d", p->n_parts);
        for (int k = 0; k <= 64; k++)
            p->parts[0].sha256[k] = (char)tolower((unsigned char)p->cfg.sha256[k]);
    }
    return ask_sizes(p);
}

/* ---- All parts ------------------------------------------------------------------------------- */

/* That it is a model at all, before it can be seen. */
static int check_model(gs_pull *p) {
    char why[400] = "";
    for (int i = 0; i < p->n_parts; i++) {
        const void *data;
        size_t size;
        gs_gguf *g = NULL;
        if (p->parts[i].current)
            continue;
        int rc = gs_map_file(p->parts[i].tmp, &data, &size, why, sizeof why);
        if (rc == GS_OK) {
            rc = gs_gguf_open_mem(data, size, &g, why, sizeof why);
            gs_gguf_close(g);
            gs_unmap(data, size);
        }
        if (rc != GS_OK) {
            gs_part_discard(&p->parts[i]);
            return gs_fail(p->err, sizeof p->err, rc, "what came is no model: %s", why);
        }
    }
    return GS_OK;
}

/* The first one at the end: it is what makes the others a model. */
static int publish(gs_pull *p) {
    int rc = GS_OK;
    atomic_store(&p->phase, GS_PULL_WRITING);
    for (int i = p->n_parts - 1; i >= 0 && rc == GS_OK; i--)
        if (!p->parts[i].current)
            rc = gs_part_publish(&p->parts[i], p->err, sizeof p->err);
    return rc;
}

static int bring(gs_pull *p, gs_pull_part *part) {
    if (part->current) {
        atomic_store(&part->n_done, atomic_load(&part->bytes));
        return GS_OK;
    }
    return p->source.kind == GS_SOURCE_FILE ? gs_part_copy(p, part, p->err, sizeof p->err)
                                            : gs_part_download(p, part, p->err, sizeof p->err);
}

static int run(gs_pull *p) {
    int rc = find_out(p);
    if (rc != GS_OK)
        return rc;
    p->up_to_date = true;
    for (int i = 0; i < p->n_parts; i++)
        p->up_to_date &= p->parts[i].current;
    atomic_store(&p->phase, GS_PULL_LOADING);
    for (int i = 0; i < p->n_parts && rc == GS_OK; i++)
        if (!p->parts[i].current)
            rc = gs_part_open(&p->parts[i], p->err, sizeof p->err);
    for (int i = 0; i < p->n_parts && rc == GS_OK; i++)
        rc = bring(p, &p->parts[i]);
    if (rc == GS_OK)
        rc = check_model(p);
    return rc == GS_OK ? publish(p) : rc;
}

void gs_pull_run(gs_pull *p) {
    p->code = run(p);
    for (int i = 0; i < p->n_parts; i++)
        gs_part_close(&p->parts[i]);
    if (p->code != GS_OK && !p->err[0])
        gs_fail_text(p->err, sizeof p->err, "%s", gs_err_text(p->code));
    atomic_store(&p->phase, GS_PULL_ENDED);
}

int gs_pull_create(const gs_pull_config *cfg, gs_pull **out, char *err, size_t errlen) {
    char file[512];
    if (cfg->sha256 && cfg->sha256[0] && !is_hex64(cfg->sha256))
        return gs_fail(err, errlen, GS_ERR_INVALID, "sha256: want 64 hexadecimal digits");
    gs_pull *p = gs_calloc(1, sizeof *p);
    if (!p)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    p->cfg = *cfg;
    int rc = gs_source_read(&cfg->sources, cfg->source, &p->source, err, errlen);
    const char *name = cfg->name && cfg->name[0] ? cfg->name : p->source.name;
    if (rc == GS_OK && p->source.kind == GS_SOURCE_FILE && !cfg->local)
        rc = gs_fail(err, errlen, GS_ERR_FORBIDDEN,
                     "a file of the server's machine is added there: gamasot models pull FILE");
    if (rc == GS_OK)
        rc = gs_model_file_of_name(name, file, sizeof file, err, errlen);
    if (rc != GS_OK) {
        gs_free(p);
        return rc;
    }
    memcpy(p->name, name, strlen(name) + 1); /* gs_model_file_of_name has looked at its length */
    *out = p;
    return GS_OK;
}

void gs_pull_free(gs_pull *p) {
    if (!p)
        return;
    for (int i = 0; i < p->n_parts; i++) {
        gs_part_close(&p->parts[i]);
        gs_free(p->parts[i].url);
    }
    gs_free(p->parts);
    gs_free(p);
}
