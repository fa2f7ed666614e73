/*
 * Activations: layout, and the entry points that quantise rows. The arithmetic of a row is in
 * ref/ and x86/; every version rounds alike, so that all instruction sets see the same codes.
 */
#include <math.h>

#include "base/err.h"
#include "base/pool.h"
#include "kernels/kernels_impl.h"

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

gs_act_view gs_act_layout(const gs_act *a) {
    size_t n = (size_t)a->m * (size_t)a->k, n_scales = n / GS_BLOCK_COLS;
    uint8_t *p = a->data;
    gs_act_view v;
    v.q = (int8_t *)p;
    p += align64(n);
    v.ad = (float *)(void *)p;
    p += align64(4 * n_scales);
    v.asum = (float *)(void *)p;
    p += align64(4 * n_scales);
    v.n8 = (int32_t *)(void *)p;
    p += align64(4 * n_scales);
    v.n16 = (int32_t *)(void *)p;
    p += align64(8 * n_scales);
    v.x = (float *)(void *)p;
    v.pair = (uint32_t *)(void *)p;
    return v;
}

size_t gs_act_bytes(int32_t m_max, int32_t k) {
    return gs_act_bytes_of(m_max, k, GS_ACT_INT | GS_ACT_FLOAT);
}

size_t gs_act_bytes_of(int32_t m_max, int32_t k, int flags) {
    size_t n = (size_t)m_max * (size_t)k, n_scales = n / GS_BLOCK_COLS;
    size_t codes = align64(n) + 3 * align64(4 * n_scales) + align64(8 * n_scales);
    return codes + (flags & (GS_ACT_FLOAT | GS_ACT_BF16) ? align64(4 * n) : 0); /* they lie last */
}

void gs_act_share(int32_t m, int tid, int n_threads, int32_t *r0, int32_t *r1) {
    int32_t n_tiles = gs_n_tiles(m);
    int t0, t1;
    gs_share(n_tiles, tid, n_threads, &t0, &t1);
    *r0 = gs_tile_begin(m, n_tiles, t0);
    *r1 = gs_tile_begin(m, n_tiles, t1);
}

static void prefetch_bytes(const void *at, int64_t n) {
    const char *p = (const char *)((uintptr_t)at & ~(uintptr_t)63);
    for (; p < (const char *)at + n; p += 64)
        __builtin_prefetch(p, 1);
}

void gs_act_prefetch(const gs_act *a, int32_t c0, int32_t c1, int flags) {
    int32_t n_tiles = gs_n_tiles(a->m), n_blocks = a->k / GS_BLOCK_COLS;
    gs_act_view v = gs_act_layout(a);
    for (int32_t t = 0; t < n_tiles; t++) {
        int64_t m0 = gs_tile_begin(a->m, n_tiles, t);
        int64_t mr = gs_tile_begin(a->m, n_tiles, t + 1) - m0;
        int64_t at = m0 * n_blocks + mr * (c0 / GS_BLOCK_COLS);
        int64_t n = mr * ((c1 - c0) / GS_BLOCK_COLS);
        if (flags & GS_ACT_INT) {
            prefetch_bytes(v.q + GS_BLOCK_COLS * at, GS_BLOCK_COLS * n);
            prefetch_bytes(v.ad + at, 4 * n);
        }
        if (flags & GS_ACT_ASUM)
            prefetch_bytes(v.asum + at, 4 * n);
        if (flags & GS_ACT_N8)
            prefetch_bytes(v.n8 + at, 4 * n);
        if (flags & GS_ACT_N16)
            prefetch_bytes(v.n16 + 2 * at, 8 * n);
    }
}

int gs_act_need(gs_qtype weight_type) {
    const gs_fmt *f = gs_fmt_get(weight_type);
    switch (f ? f->scale : GS_SCALE_FLOAT) {
    case GS_SCALE_FLOAT:
        return weight_type == GS_QTYPE_BF16 && gs_kernels->bf16_row ? GS_ACT_BF16 : GS_ACT_FLOAT;
    case GS_SCALE_F16_MIN:
    case GS_SCALE_K_MIN:
        return GS_ACT_CODES | GS_ACT_ASUM;
    case GS_SCALE_K16:
    case GS_SCALE_K16_MIN:
        return GS_ACT_CODES | GS_ACT_N16;
    default:
        return GS_ACT_CODES | GS_ACT_N8;
    }
}

gs_act_row gs_act_row_at(const gs_act *a, int32_t row) {
    int32_t n_tiles = gs_n_tiles(a->m), t = gs_tile_of(a->m, n_tiles, row);
    int32_t m0 = gs_tile_begin(a->m, n_tiles, t), in_tile = row - m0;
    int32_t n_blocks = a->k / GS_BLOCK_COLS;
    gs_act_row r = {gs_act_layout(a), gs_tile_begin(a->m, n_tiles, t + 1) - m0, 0};
    int64_t at = (int64_t)m0 * n_blocks + in_tile;
    r.v.q += (int64_t)m0 * a->k + 32 * in_tile;
    r.v.ad += at;
    r.v.asum += at;
    r.v.n8 += at;
    r.v.n16 += 2 * at;
    r.v.x += (int64_t)m0 * a->k + in_tile;
    r.v.pair += (int64_t)m0 * (a->k / 2) + in_tile;
    return r;
}

void gs_act_copy_row(gs_act *to, int32_t to_row, const gs_act *from, int32_t from_row, int flags) {
    GS_ASSERT(to->k == from->k && to_row < to->m && from_row < from->m);
    const gs_act_row d = gs_act_row_at(to, to_row), s = gs_act_row_at(from, from_row);
    for (int32_t b = 0; flags & GS_ACT_INT && b < to->k / GS_BLOCK_COLS; b++) {
        const int64_t i = (int64_t)b * d.mr, j = (int64_t)b * s.mr;
        memcpy(d.v.q + GS_BLOCK_COLS * i, s.v.q + GS_BLOCK_COLS * j, GS_BLOCK_COLS);
        d.v.ad[i] = s.v.ad[j];
        if (flags & GS_ACT_ASUM)
            d.v.asum[i] = s.v.asum[j];
        if (flags & GS_ACT_N8)
            d.v.n8[i] = s.v.n8[j];
        if (flags & GS_ACT_N16)
            memcpy(d.v.n16 + 2 * i, s.v.n16 + 2 * j, 2 * sizeof *d.v.n16);
    }
    for (int64_t c = 0; flags & GS_ACT_FLOAT && c < to->k; c++)
        d.v.x[c * d.mr] = s.v.x[c * s.mr];
    for (int64_t c = 0; flags & GS_ACT_BF16 && c < to->k / 2; c++)
        d.v.pair[c * d.mr] = s.v.pair[c * s.mr];
}

/* k values of a row, from where `row` points. */
static void put_values(gs_act_row row, const float *x, float scale, const float *weight, int32_t k,
                       int flags) {
    GS_ASSERT(!(flags & GS_ACT_FLOAT && flags & GS_ACT_BF16)); /* they share their place */
    row.flags = flags;
    if (flags & GS_ACT_INT)
        gs_kernels->quant_row(&row, x, scale, weight, k);
    if (flags & GS_ACT_BF16)
        gs_kernels->bf16_row(&row, x, scale, weight, k);
    if (flags & GS_ACT_FLOAT) {
        for (int32_t c = 0; c < k; c++) {
            float v = weight ? x[c] * scale * weight[c] : x[c] * scale;
            row.v.x[(int64_t)c * row.mr] = isfinite(v) ? v : 0.0f;
        }
    }
}

void gs_act_quant(gs_act *a, const float *x, int64_t ldx, int32_t r0, int32_t r1, int flags) {
    GS_ASSERT(r0 >= 0 && r1 <= a->m && a->k % GS_BLOCK_COLS == 0);
    for (int32_t i = r0; i < r1; i++)
        put_values(gs_act_row_at(a, i), x + i * ldx, 1.0f, NULL, a->k, flags);
}

static void put_part(const gs_act *a, int32_t row, const float *x, float scale, const float *weight,
                     int32_t c0, int32_t c1, int flags) {
    GS_ASSERT(row >= 0 && row < a->m && c0 % GS_ACT_GROUP == 0 && c0 <= c1 && c1 <= a->k &&
              (c1 % GS_ACT_GROUP == 0 || c1 == a->k));
    gs_act_row r = gs_act_row_at(a, row);
    int64_t at = (int64_t)r.mr * (c0 / GS_BLOCK_COLS);
    r.v.q += GS_BLOCK_COLS * at;
    r.v.ad += at;
    r.v.asum += at;
    r.v.n8 += at;
    r.v.n16 += 2 * at;
    r.v.x += (int64_t)r.mr * c0;
    r.v.pair += (int64_t)r.mr * (c0 / 2);
    put_values(r, x + c0, scale, weight ? weight + c0 : NULL, c1 - c0, flags);
}

void gs_act_quant_part(gs_act *a, const float *x, int32_t row, int32_t c0, int32_t c1, int flags) {
    put_part(a, row, x, 1.0f, NULL, c0, c1, flags);
}

static float rms_scale(const float *x, int32_t k, float eps) {
    return 1.0f / sqrtf(gs_kernels->sum_squares(x, k) / (float)k + eps);
}

void gs_rmsnorm_quant(gs_act *a, const float *x, int64_t ldx, const float *weight, float eps,
                      int32_t r0, int32_t r1, int flags) {
    GS_ASSERT(r0 >= 0 && r1 <= a->m && a->k % GS_BLOCK_COLS == 0);
    for (int32_t i = r0; i < r1; i++) {
        const float *xi = x + i * ldx;
        put_values(gs_act_row_at(a, i), xi, rms_scale(xi, a->k, eps), weight, a->k, flags);
    }
}

void gs_rmsnorm_quant_part(gs_act *a, const float *x, const float *weight, float eps, int32_t row,
                           int32_t c0, int32_t c1, int flags) {
    put_part(a, row, x, rms_scale(x, a->k, eps), weight, c0, c1, flags);
}

void gs_rmsnorm(float *y, const float *x, const float *weight, int32_t k, float eps) {
    gs_kernels->scale_mul(y, x, rms_scale(x, k, eps), weight, k);
}
