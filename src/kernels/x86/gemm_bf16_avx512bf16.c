/*
 * BF16 weights, AVX512-BF16: pairs of columns are multiplied and added in one instruction, twice
 * the rate of floats. Activations are rounded to bf16 too.
 */
#include "kernels/x86/tables.h"
#include "kernels/x86/v512.h"

#include "kernels/tile/gemm_tile.h"
#include <math.h>

/* NP panels, MR tokens; one sum per output whatever MR is. */
INLINE void tile_bf16(const gs_tile *t, const int NP, const int MR) {
    __m512 sum[2 * GS_TILE_MAX];
    const uint8_t *w[2] = {t->panel, t->panel + t->panel_bytes};
    const uint32_t *x = t->act.pair;
    const int n_pairs = t->n_blocks * (GS_BLOCK_COLS / 2);
    /* Of the panels to come, each tile fetches its lines in turn. */
    const uint8_t *next = t->next ? t->next + (size_t)t->tile * 64 : NULL;
    const uint8_t *end = t->next ? t->next + t->panel_bytes * (size_t)NP : NULL;
    UNROLL for (int i = 0; i < NP * MR; i++) sum[i] = _mm512_setzero_ps();
    for (int c = 0; c < n_pairs; c++) {
        if (next < end) {
            v_prefetch(next);
            next += 64 * (size_t)t->n_tiles;
        }
        __m512i wv[2];
        UNROLL for (int p = 0; p < NP; p++) wv[p] = vi_load(w[p] + 64 * (size_t)c);
        UNROLL for (int m = 0; m < MR; m++) {
            __m512bh a = (__m512bh)_mm512_set1_epi32((int)x[m]);
            UNROLL for (int p = 0; p < NP; p++) sum[m * NP + p] =
                _mm512_dpbf16_ps(sum[m * NP + p], (__m512bh)wv[p], a);
        }
        x += MR;
    }
    float v[2 * GS_TILE_MAX * V_ROWS];
    UNROLL for (int i = 0; i < NP * MR; i++) vf_store(v + V_ROWS * i, sum[i]);
    store_tile(t, 0, V_ROWS * NP, v);
}

#define TILE(NP, MR)                                                                               \
    static void bf16_##NP##_##MR(const gs_tile *t) {                                               \
        tile_bf16(t, NP, MR);                                                                      \
    }
#define TILES_OF(NP)                                                                               \
    TILE(NP, 1)                                                                                    \
    TILE(NP, 2)                                                                                    \
    TILE(NP, 3)                                                                                    \
    TILE(NP, 4)                                                                                    \
    TILE(NP, 5)                                                                                    \
    TILE(NP, 6)
TILES_OF(1)
TILES_OF(2)

const gs_tile_set gs_tiles_bf16_avx512bf16 = {
    {{NULL, bf16_1_1, bf16_1_2, bf16_1_3, bf16_1_4, bf16_1_5, bf16_1_6},
     {NULL, bf16_2_1, bf16_2_2, bf16_2_3, bf16_2_4, bf16_2_5, bf16_2_6}},
    2,
    2048};

void gs_bf16_row_avx512bf16(const gs_act_row *row, const float *x, float scale, const float *weight,
                            int32_t k) {
    const __m512 sv = _mm512_set1_ps(scale), inf = _mm512_set1_ps(INFINITY);
    const size_t mr = (size_t)row->mr;
    uint32_t *to = row->v.pair;
    for (int32_t c = 0; c < k; c += 16, to += 8 * mr) {
        __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + c), sv);
        if (weight)
            v = _mm512_mul_ps(v, _mm512_loadu_ps(weight + c));
        v = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(v), inf, _CMP_LT_OQ), v);
        union {
            __m256bh v;
            uint32_t u[8];
        } pairs = {_mm512_cvtneps_pbh(v)};
        UNROLL for (size_t i = 0; i < 8; i++) to[i * mr] = pairs.u[i];
    }
}
