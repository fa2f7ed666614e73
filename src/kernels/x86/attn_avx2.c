/* Paged attention, AVX2 + FMA + F16C. */
#include "kernels/x86/attn_v256.h"
#include "kernels/x86/attn_x86.h"

#define ATTN_TABLE_PARTS
#include "kernels/x86/attn_tmpl.h"

ATTN_FUNCTION(gs_attn_f16_avx2, AT_F16)
ATTN_FUNCTION(gs_attn_bf16_avx2, AT_BF16)
ATTN_FUNCTION(gs_attn_q8_avx2, AT_Q8)

const gs_attn_ops gs_attn_ops_avx2 = {
    .attn = {gs_attn_f16_avx2, gs_attn_bf16_avx2, gs_attn_q8_avx2},
    .merge = merge,
    .to_f16 = to_f16,
    .to_bf16 = to_bf16,
    .max_abs = max_abs,
    .to_s8 = to_s8,
    .exp2 = exp2_all,
};
