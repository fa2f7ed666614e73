/*
 * The GEMM driver: walks panels and token tiles; the arithmetic is in the tile functions.
 *
 * Order: token chunks outermost, so that a chunk's activations stay in the L2 cache while all
 * panels pass by once per chunk; then panels, one or two at a time; then the tiles of the chunk,
 * which share the panels in L1. While it works on a panel, tile t also prefetches its part of one
 * further on, into L2: the hardware prefetcher does not cover DRAM latency when a kernel consumes
 * its weights slowly, and prefetching to L1 allows fewer misses at a time (half the rate on Zen 4).
 * At one or two tokens a panel is consumed nearly as fast as memory brings it, and the hardware
 * prefetcher is at work as well: then lines nearer ahead are better, in the one stream that panels
 * are (set->near_bytes).
 */
#include "base/err.h"
int exp_ahead;
#include "kernels/kernels_impl.h"

#define CHUNK_BYTES (384 * 1024)
/* Prefetch at least this far ahead: panels of narrow matrices are gone before DRAM answers. */
#define AHEAD_BYTES (10 * 1024)

static const gs_tile_set *tiles_of(gs_qtype type) {
    const gs_tile_set *set = gs_kernels->tiles(type);
    return set ? set : gs_tiles_scalar(type);
}

static gs_act_view act_at(gs_act_view v, int32_t m0, int32_t k) {
    int64_t at = (int64_t)m0 * (k / GS_BLOCK_COLS);
    v.q += (int64_t)m0 * k;
    v.ad += at;
    v.asum += at;
    v.n8 += at;
    v.n16 += 2 * at;
    v.x += (int64_t)m0 * k;
    v.pair += (int64_t)m0 * (k / 2);
    return v;
}

static void multiply(const gs_mat *w, const gs_act *a, float *y, int64_t ldy, const float *bias,
                     int32_t p0, int32_t p1, int mode, const uint8_t *then) {
    GS_ASSERT(w->k == a->k && a->m >= 1 && p0 >= 0 && p1 <= w->n_panels);
    const gs_tile_set *set = tiles_of(w->type);
    const gs_act_view act = gs_act_layout(a);
    int32_t n_tiles = gs_n_tiles(a->m), least = a->m / n_tiles, more = a->m % n_tiles;
    int32_t chunk = CHUNK_BYTES / (GS_TILE_MAX * a->k);
    if (chunk < 1)
        chunk = 1;

    gs_tile t = {.w = w, .panel_bytes = w->panel_bytes, .n_blocks = w->k / GS_BLOCK_COLS};
    t.ldy = ldy;
    t.mode = mode;

    for (int32_t c0 = 0; c0 < n_tiles; c0 += chunk) {
        int32_t c1 = c0 + chunk < n_tiles ? c0 + chunk : n_tiles;
        t.n_tiles = c1 - c0;
        /* Tile sizes differ by one at most: the largest decides whether pairs are faster. */
        int32_t mr_max = gs_tile_begin(a->m, n_tiles, c0 + 1) - gs_tile_begin(a->m, n_tiles, c0);
        bool pairs = set->fn[1][mr_max] != NULL;
        int32_t step = pairs ? 2 : 1;
        int32_t ahead = step;
        if (t.n_tiles == 1)
            while ((size_t)ahead * w->panel_bytes < AHEAD_BYTES)
                ahead += step;
        for (int32_t p = p0; p < p1; p += t.n_panels) {
            t.n_panels = pairs && p + 1 < p1 ? 2 : 1;
            t.panel = w->data + (size_t)p * w->panel_bytes;
            int32_t past = p + ahead + t.n_panels - p1; /* panels that are no longer this call's */
            t.next = t.panel + (size_t)ahead * w->panel_bytes;
            if (a->m <= set->near_tokens)
                t.next = t.panel + set->near_bytes;
            else if (past > 0 && (!then || c1 < n_tiles))
                t.next = NULL;
            else if (past > 0)
                t.next =
                    then + (size_t)(past > t.n_panels ? past - t.n_panels : 0) * w->panel_bytes;
            if (exp_ahead)
                t.next = exp_ahead < 0 ? NULL : t.panel + exp_ahead;
            t.n_valid = w->n - p * GS_PANEL_ROWS;
            t.bias = bias ? bias + p * GS_PANEL_ROWS : NULL;
            int32_t m0 = gs_tile_begin(a->m, n_tiles, c0);
            for (int32_t i = c0; i < c1; i++, m0 += t.mr) {
                t.mr = least + (i < more);
                t.tile = i - c0;
                t.act = act_at(act, m0, w->k);
                t.y = y + m0 * ldy + p * GS_PANEL_ROWS;
                set->fn[t.n_panels - 1][t.mr](&t);
            }
        }
    }
}

void gs_gemm(const gs_mat *w, const gs_act *a, float *y, int64_t ldy, const float *bias, int32_t p0,
             int32_t p1, int mode) {
    multiply(w, a, y, ldy, bias, p0, p1, mode, NULL);
}

void gs_gemm_then(const gs_mat *w, const gs_act *a, float *y, int64_t ldy, int32_t p0, int32_t p1,
                  const uint8_t *then) {
    multiply(w, a, y, ldy, NULL, p0, p1, GS_GEMM_STORE, then);
}
