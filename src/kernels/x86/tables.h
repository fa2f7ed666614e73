/*
 * What the x86 files share across instruction sets: the tile look-ups of each family, and the
 * AVX2 element-wise kernels, which every wider set uses too.
 */
#ifndef GS_KERNELS_X86_TABLES_H
#define GS_KERNELS_X86_TABLES_H

#include "kernels/kernels_impl.h"

const gs_tile_set *gs_tiles_q4_avx2(gs_qtype type);
const gs_tile_set *gs_tiles_q56_avx2(gs_qtype type);
const gs_tile_set *gs_tiles_q238_avx2(gs_qtype type);
const gs_tile_set *gs_tiles_q4_avxvnni(gs_qtype type);
const gs_tile_set *gs_tiles_q56_avxvnni(gs_qtype type);
const gs_tile_set *gs_tiles_q238_avxvnni(gs_qtype type);
const gs_tile_set *gs_tiles_q4_avx512(gs_qtype type);
const gs_tile_set *gs_tiles_q56_avx512(gs_qtype type);
const gs_tile_set *gs_tiles_q238_avx512(gs_qtype type);
const gs_tile_set *gs_tiles_q4_avx512vnni(gs_qtype type);
const gs_tile_set *gs_tiles_q56_avx512vnni(gs_qtype type);
const gs_tile_set *gs_tiles_q238_avx512vnni(gs_qtype type);
const gs_tile_set *gs_tiles_float_avx2(gs_qtype type);
const gs_tile_set *gs_tiles_float_avx512(gs_qtype type);

void gs_quant_row_avx2(const gs_act_row *row, const float *x, float scale, const float *weight,
                       int32_t k);
float gs_sum_squares_avx2(const float *x, int32_t k);
void gs_scale_mul_avx2(float *y, const float *x, float scale, const float *weight, int32_t k);
void gs_add_scaled_avx2(float *y, const float *x, float scale, int32_t n);
void gs_silu_mul_avx2(float *out, const float *gate, const float *up, int32_t n);
void gs_gelu_mul_avx2(float *out, const float *gate, const float *up, int32_t n);
void gs_gelu_avx2(float *x, int32_t n);
void gs_softcap_avx2(float *x, int32_t n, float cap);
void gs_layernorm_avx2(float *y, const float *x, const float *weight, const float *bias, int32_t k,
                       float eps);
void gs_gelu_avx512(float *x, int32_t n);
void gs_layernorm_avx512(float *y, const float *x, const float *weight, const float *bias,
                         int32_t k, float eps);
extern const gs_tile_set gs_tiles_bf16_avx512bf16;
void gs_bf16_row_avx512bf16(const gs_act_row *row, const float *x, float scale, const float *weight,
                            int32_t k);
void gs_rope_avx2(float *x, const float *cos_tab, const float *sin_tab, int32_t n_rot, bool neox);
void gs_logsumexp_avx2(const float *x, int32_t n, float *max, float *lse);
int32_t gs_argmax_avx2(const float *x, int32_t n, bool *finite);

/* The tile look-up from the three integer families and a float one. */
#define GS_X86_TILES(isa, float_isa)                                                               \
    static const gs_tile_set *tiles_##isa(gs_qtype type) {                                         \
        if (gs_fmt_get(type)->scale == GS_SCALE_FLOAT)                                             \
            return gs_tiles_float_##float_isa(type);                                               \
        const gs_tile_set *set = gs_tiles_q4_##isa(type);                                          \
        if (!set)                                                                                  \
            set = gs_tiles_q56_##isa(type);                                                        \
        return set ? set : gs_tiles_q238_##isa(type);                                              \
    }

/* A dispatch table; to_bf16: gs_kernel_table's bf16_row. */
#define GS_X86_TABLE(isa, wide_isa, to_bf16)                                                       \
    const gs_kernel_table gs_kernels_##isa = {                                                     \
        .tiles = tiles_##isa,                                                                      \
        .quant_row = gs_quant_row_avx2,                                                            \
        .bf16_row = to_bf16,                                                                       \
        .sum_squares = gs_sum_squares_avx2,                                                        \
        .scale_mul = gs_scale_mul_avx2,                                                            \
        .add_scaled = gs_add_scaled_avx2,                                                          \
        .silu_mul = gs_silu_mul_avx2,                                                              \
        .gelu_mul = gs_gelu_mul_avx2,                                                              \
        .gelu = gs_gelu_##wide_isa,                                                                \
        .softcap = gs_softcap_avx2,                                                                \
        .layernorm = gs_layernorm_##wide_isa,                                                      \
        .rope = gs_rope_avx2,                                                                      \
        .logsumexp = gs_logsumexp_avx2,                                                            \
        .argmax = gs_argmax_avx2,                                                                  \
    };

#endif
