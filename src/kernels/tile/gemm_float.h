/*
 * Tiles for F32, F16 and BF16 weights: one broadcast activation times one vector of rows per
 * column. Included by gemm_float_<isa>.c after the vector primitives. Float weights are small
 * matrices or whole small models; the arithmetic limit is the FMA peak.
 */
#ifndef GS_KERNELS_GEMM_FLOAT_H
#define GS_KERNELS_GEMM_FLOAT_H

#include "kernels/tile/gemm_tile.h"

const gs_tile_set *TILES_FN(gs_qtype type);

/* Column c + o of V_ROWS rows; p is at column c. BF16 columns lie in pairs. */
INLINE vflt float_load(const gs_qtype f, const uint8_t *p, const int o) {
    if (f == GS_QTYPE_F16)
        return vf_f16(p + o * 2 * GS_PANEL_ROWS);
    if (f == GS_QTYPE_BF16)
        return vf_cast(vi_sll32(o ? vi_sra32(vi_load(p), 16) : vi_load(p), 16));
    return vf_load((const float *)(const void *)(p + o * 4 * GS_PANEL_ROWS));
}

/*
 * NV row vectors from vector v0 on. Columns c and c + 1 go to separate sums (latency) where there
 * are registers for it: not so in AVX2, whatever MR is, because a row's result must not depend on
 * how many rows are with it.
 */
INLINE void tile_float(const gs_tile *t, const gs_qtype f, const int NV, const int MR,
                       const int v0) {
    const size_t elem = f == GS_QTYPE_F32 ? 4 : 2, column = elem * GS_PANEL_ROWS;
    const size_t row_bytes = f == GS_QTYPE_F16 ? 2 : 4; /* side by side: a pair of BF16 */
    const uint8_t *w[2];
    vflt F[2][2 * GS_TILE_MAX];
    const int n_sums = V_BYTES == 32 ? 1 : 2;
    UNROLL for (int p = 0; p < NV; p++) {
        w[p] = t->panel + (size_t)((v0 + p) / VPP) * t->panel_bytes +
               row_bytes * V_ROWS * (size_t)((v0 + p) % VPP);
    }
    UNROLL for (int i = 0; i < NV * MR; i++) F[0][i] = F[1][i] = vf_zero();
    const float *x = t->act.x;
    const size_t n_columns = (size_t)t->n_blocks * GS_BLOCK_COLS;
    const uint8_t *next = t->next ? t->next + (size_t)(t->tile + v0) * 64 : NULL;
    const uint8_t *next_end = t->next ? t->next + t->panel_bytes * (size_t)t->n_panels : NULL;
    const size_t next_step = 64 * (size_t)t->n_tiles;
    for (size_t c = 0; c < n_columns; c += 2) {
        if (next < next_end) {
            v_prefetch(next);
            next += next_step;
        }
        UNROLL for (int o = 0; o < 2; o++) {
            vflt wv[2];
            UNROLL for (int p = 0; p < NV; p++) wv[p] = float_load(f, w[p] + c * column, o);
            UNROLL for (int m = 0; m < MR; m++) {
                vflt a = vf_bcast(x + o * MR + m);
                UNROLL for (int p = 0; p < NV; p++) {
                    vflt *sum = &F[n_sums == 2 ? o : 0][m * NV + p];
                    *sum = vf_fma(wv[p], a, *sum);
                }
            }
        }
        x += 2 * MR;
    }
    float v[2 * GS_TILE_MAX * V_ROWS];
    UNROLL for (int i = 0; i < NV * MR; i++) vf_store(v + V_ROWS * i, vf_add(F[0][i], F[1][i]));
    store_tile(t, V_ROWS * v0, V_ROWS * NV, v);
}

#if VPP == 1
#define FLOAT_1(F, MR)                                                                             \
    static void float_##F##_1_##MR(const gs_tile *t) {                                             \
        tile_float(t, GS_QTYPE_##F, 1, MR, 0);                                                     \
    }
#define FLOAT_2(F, MR)                                                                             \
    static void float_##F##_2_##MR(const gs_tile *t) {                                             \
        tile_float(t, GS_QTYPE_##F, 2, MR, 0);                                                     \
    }
#else
#define FLOAT_1(F, MR)                                                                             \
    static void float_##F##_1_##MR(const gs_tile *t) {                                             \
        tile_float(t, GS_QTYPE_##F, 2, MR, 0);                                                     \
        if (VPP == 4)                                                                              \
            tile_float(t, GS_QTYPE_##F, 2, MR, VPP - 2);                                           \
    }
#define FLOAT_2(F, MR)
#endif

#define FLOAT_TILES(F)                                                                             \
    FLOAT_1(F, 1)                                                                                  \
    FLOAT_1(F, 2)                                                                                  \
    FLOAT_1(F, 3)                                                                                  \
    FLOAT_1(F, 4)                                                                                  \
    FLOAT_1(F, 5)                                                                                  \
    FLOAT_1(F, 6)                                                                                  \
    FLOAT_2(F, 1)                                                                                  \
    FLOAT_2(F, 2)                                                                                  \
    FLOAT_2(F, 3)                                                                                  \
    FLOAT_2(F, 4)                                                                                  \
    FLOAT_2(F, 5)                                                                                  \
    FLOAT_2(F, 6)                                                                                  \
    static const gs_tile_set floats_##F = {                                                        \
        {{NULL, float_##F##_1_1, float_##F##_1_2, float_##F##_1_3, float_##F##_1_4,                \
          float_##F##_1_5, float_##F##_1_6},                                                       \
         FLOAT_PAIRS(F)},                                                                          \
        V_BYTES == 64 ? 2 : 0,                                                                     \
        2048};

#if VPP == 1
#define FLOAT_PAIRS(F)                                                                             \
    {                                                                                              \
        NULL, float_##F##_2_1, float_##F##_2_2, float_##F##_2_3, float_##F##_2_4, float_##F##_2_5, \
            float_##F##_2_6                                                                        \
    }
#else
#define FLOAT_PAIRS(F)                                                                             \
    { NULL }
#endif

FLOAT_TILES(F32)
FLOAT_TILES(F16)
FLOAT_TILES(BF16)

const gs_tile_set *TILES_FN(gs_qtype type) {
    return type == GS_QTYPE_F32 ? &floats_F32 : type == GS_QTYPE_F16 ? &floats_F16 : &floats_BF16;
}

#endif
