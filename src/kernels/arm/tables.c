/* Dispatch tables for ARM, with dot products and with matrix products. Element-wise work is the
 * scalar code, which the compiler vectorises: NEON is part of the base instruction set. */
#include "kernels/kernels_impl.h"

const gs_tile_set *gs_tiles_q4_neon(gs_qtype type);
const gs_tile_set *gs_tiles_q56_neon(gs_qtype type);
const gs_tile_set *gs_tiles_q238_neon(gs_qtype type);
const gs_tile_set *gs_tiles_q4_i8mm(gs_qtype type);
const gs_tile_set *gs_tiles_q56_i8mm(gs_qtype type);
const gs_tile_set *gs_tiles_q238_i8mm(gs_qtype type);
const gs_tile_set *gs_tiles_float_neon(gs_qtype type);

#define ARM_TABLE(isa)                                                                             \
    static const gs_tile_set *tiles_##isa(gs_qtype type) {                                         \
        if (gs_fmt_get(type)->scale == GS_SCALE_FLOAT)                                             \
            return gs_tiles_float_neon(type);                                                      \
        const gs_tile_set *set = gs_tiles_q4_##isa(type);                                          \
        if (!set)                                                                                  \
            set = gs_tiles_q56_##isa(type);                                                        \
        return set ? set : gs_tiles_q238_##isa(type);                                              \
    }                                                                                              \
    const gs_kernel_table gs_kernels_##isa = {                                                     \
        .tiles = tiles_##isa,                                                                      \
        .quant_row = gs_quant_row_scalar,                                                          \
        .sum_squares = gs_sum_squares_scalar,                                                      \
        .scale_mul = gs_scale_mul_scalar,                                                          \
        .add_scaled = gs_add_scaled_scalar,                                                        \
        .silu_mul = gs_silu_mul_scalar,                                                            \
        .gelu_mul = gs_gelu_mul_scalar,                                                            \
        .gelu = gs_gelu_scalar,                                                                    \
        .softcap = gs_softcap_scalar,                                                              \
        .layernorm = gs_layernorm_scalar,                                                          \
        .rope = gs_rope_scalar,                                                                    \
        .logsumexp = gs_logsumexp_scalar,                                                          \
        .argmax = gs_argmax_scalar,                                                                \
    };

ARM_TABLE(neon)
ARM_TABLE(i8mm)
