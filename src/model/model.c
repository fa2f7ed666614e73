/* Loading: one arena for all weights, filled by packing matrix after matrix on the pool. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/err.h"
#include "base/memory.h"
#include "base/sys.h"
#include "model/hparams.h"
#include "model/weights.h"

typedef struct arena {
    uint8_t *base;
    size_t size, used;
} arena;

/* State of one walk over the tensors; the first walk only sums sizes. */
typedef struct loader {
    gs_model *m;
    arena *a;
    gs_pool *pool;
    gs_progress_fn progress;
    void *arg;
    bool fill;
} loader;

typedef struct pack_job {
    gs_mat *mat;
    gs_qtype type;
    const void *src;
} pack_job;

static void pack_run(void *arg, int tid, int n_threads) {
    const pack_job *job = arg;
    int p0, p1;
    gs_share(job->mat->n_panels, tid, n_threads, &p0, &p1);
    if (p0 < p1)
        gs_mat_pack_from(job->mat, job->type, job->src, p0, p1);
}

/* Space for size bytes at a 64-byte border; in the first walk the pointer means nothing. */
static int arena_take(arena *a, size_t size, uint8_t **out) {
    size_t end;
    if (!gs_add_size(size, 63, &end))
        return GS_ERR_TOO_LARGE;
    size = end & ~(size_t)63;
    if (!gs_add_size(a->used, size, &end))
        return GS_ERR_TOO_LARGE;
    *out = a->base ? a->base + a->used : NULL;
    a->used = end;
    return GS_OK;
}

static size_t row_bytes(const gs_gguf_tensor *t) {
    return (size_t)(t->n_bytes / t->n_rows);
}

static int load_mat(loader *ld, gs_mat *mat, const gs_weight *w, gs_qtype type) {
    uint8_t *data = NULL;
    gs_mat all; /* several have whole panels each, so they are packed as one */
    GS_ASSERT(w->copies == 1 || w->rows % GS_PANEL_ROWS == 0);
    int rc = gs_mat_init(mat, type, w->rows, w->cols);
    if (rc == GS_OK)
        rc = gs_mat_init(&all, type, w->rows * w->copies, w->cols);
    if (rc == GS_OK)
        rc = arena_take(ld->a, gs_mat_bytes(&all), &data);
    if (rc != GS_OK || !ld->fill)
        return rc;
    mat->data = all.data = data;
    const gs_gguf_tensor *t = w->tensor;
    pack_job job = {&all, t->type, (const uint8_t *)t->data + (size_t)w->first * row_bytes(t)};
    if (ld->pool)
        gs_pool_run(ld->pool, pack_run, &job);
    else
        pack_run(&job, 0, 1);
    if (ld->progress && !ld->progress(ld->arg, (double)ld->a->used / (double)ld->a->size))
        return GS_ERR_CANCELLED;
    return GS_OK;
}

static int load_vec(loader *ld, const float **vec, const gs_gguf_tensor *t) {
    uint8_t *data = NULL;
    int rc = arena_take(ld->a, (size_t)t->ne[0] * sizeof(float), &data);
    if (rc != GS_OK || !ld->fill)
        return rc;
    float *f = (float *)(void *)data;
    gs_dequant_row(t->type, t->data, f, (int32_t)t->ne[0]);
    *vec = f;
    return GS_OK;
}

static bool is_float(gs_qtype type) {
    return type == GS_QTYPE_F32 || type == GS_QTYPE_F16 || type == GS_QTYPE_BF16;
}

static int load_weight(void *arg, const gs_weight *w) {
    loader *ld = arg;
    gs_model *m = ld->m;
    char *base = w->layer < 0    ? (char *)m
                 : m->hp.encoder ? (char *)&m->encoder_layers[w->layer]
                                 : (char *)&m->layers[w->layer];
    void *at = base + w->offset;
    gs_qtype type = w->tensor->type;
    if (w->kind == GS_WEIGHT_VEC)
        return load_vec(ld, at, w->tensor);
    if (w->kind == GS_WEIGHT_DENSE && is_float(type))
        type = GS_QTYPE_BF16;
    return load_mat(ld, at, w, w->kind == GS_WEIGHT_F32 ? GS_QTYPE_F32 : type);
}

static int check_factors(const gs_model *m, const char *name, const float *factors, char *err,
                         size_t errlen) {
    for (int32_t i = 0; factors && i < m->hp.n_rot / 2; i++)
        if (!(factors[i] > 0.0f && isfinite(factors[i])))
            return gs_fail(err, errlen, GS_ERR_FORMAT, "%s: factor %d is %g, not a positive number",
                           name, i, (double)factors[i]);
    return GS_OK;
}

static int check_rope_factors(const gs_model *m, char *err, size_t errlen) {
    int rc = check_factors(m, "rope_freqs.weight", m->rope_freqs, err, errlen);
    if (rc == GS_OK)
        rc = check_factors(m, "rope_factors_long.weight", m->rope_long, err, errlen);
    if (rc == GS_OK)
        rc = check_factors(m, "rope_factors_short.weight", m->rope_short, err, errlen);
    if (rc == GS_OK && !m->rope_long != !m->rope_short)
        rc = gs_fail(err, errlen, GS_ERR_FORMAT, "rope_factors_%s.weight: the tensor is missing",
                     m->rope_long ? "short" : "long");
    return rc;
}

static void read_name(const gs_gguf *g, gs_model *m) {
    gs_str s = {"", 0};
    if (gs_gguf_get_str(g, "general.name", &s, NULL, 0) != GS_OK || s.len == 0)
        s = (gs_str){m->hp.arch, strlen(m->hp.arch)};
    size_t n = s.len < sizeof m->name - 1 ? s.len : sizeof m->name - 1;
    while (n < s.len && n > 0 && ((unsigned char)s.data[n] & 0xc0) == 0x80)
        n--; /* not in the middle of a UTF-8 character */
    for (size_t i = 0; i < n; i++)
        m->name[i] = (unsigned char)s.data[i] < ' ' || s.data[i] == 127 ? '?' : s.data[i];
    m->name[n] = '\0';
}

int gs_model_load(const gs_gguf *g, gs_pool *pool, gs_progress_fn progress, void *arg,
                  gs_model **out, char *err, size_t errlen) {
    gs_model *m = gs_calloc(1, sizeof *m);
    arena a = {NULL, 0, 0};
    int rc;
    if (!m)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory loading the model");
    rc = gs_hparams_read_arch(g, &m->hp, &m->arch, err, errlen);
    if (rc != GS_OK)
        goto out;
    if (m->hp.encoder)
        m->encoder_layers = gs_calloc((size_t)m->hp.n_layers, sizeof *m->encoder_layers);
    else
        m->layers = gs_calloc((size_t)m->hp.n_layers, sizeof *m->layers);
    if (!m->layers && !m->encoder_layers) {
        rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory loading the model");
        goto out;
    }
    loader ld = {m, &a, pool, progress, arg, false};
    rc = gs_weights_visit(g, m->arch, &m->hp, load_weight, &ld, err, errlen);
    if (rc != GS_OK)
        goto out;
    a.size = a.used;
    a.used = 0;
    a.base = gs_pages_alloc(a.size);
    if (!a.base) {
        rc = gs_fail(err, errlen, GS_ERR_NOMEM, "the weights need %zu MB of memory", a.size >> 20);
        goto out;
    }
    gs_memory_add(GS_PAGES_WEIGHTS, a.base, a.size);
    m->impl = a.base;
    m->weight_bytes = a.size;
    ld.fill = true;
    rc = gs_weights_visit(g, m->arch, &m->hp, load_weight, &ld, err, errlen);
    if (rc == GS_OK)
        rc = check_rope_factors(m, err, errlen);
    if (rc != GS_OK)
        goto out;
    if (!m->output.data)
        m->output = m->tok_embd;
    read_name(g, m);
    *out = m;
    return GS_OK;
out:
    gs_model_free(m);
    return rc;
}

void gs_model_hash(const gs_model *m, uint64_t out[2]) {
    const XXH128_hash_t h = XXH3_128bits(m->impl, m->weight_bytes);
    out[0] = h.low64;
    out[1] = h.high64;
}

void gs_model_free(gs_model *m) {
    if (!m)
        return;
    if (m->impl)
        gs_pages_free(m->impl, m->weight_bytes);
    gs_free(m->layers);
    gs_free(m->encoder_layers);
    gs_free(m);
}
