/* Paged attention, AVX-512 (F, BW, DQ, VL); and the tables of what goes beyond. */
#include "kernels/x86/attn_v512.h"
#include "kernels/x86/attn_x86.h"

#define ATTN_TABLE_PARTS
#include "kernels/x86/attn_tmpl.h"

ATTN_FUNCTION(gs_attn_f16_avx512, AT_F16)
ATTN_FUNCTION(gs_attn_bf16_avx512, AT_BF16)
ATTN_FUNCTION(gs_attn_q8_avx512, AT_Q8)

#define REST                                                                                       \
    .merge = merge, .to_f16 = to_f16, .to_bf16 = to_bf16, .max_abs = max_abs, .to_s8 = to_s8,      \
    .exp2 = exp2_all

const gs_attn_ops gs_attn_ops_avx512 = {
    .attn = {gs_attn_f16_avx512, gs_attn_bf16_avx512, gs_attn_q8_avx512}, REST};
const gs_attn_ops gs_attn_ops_avx512vnni = {
    .attn = {gs_attn_f16_avx512, gs_attn_bf16_avx512, gs_attn_q8_avx512vnni}, REST};
const gs_attn_ops gs_attn_ops_avx512bf16 = {
    .attn = {gs_attn_f16_avx512, gs_attn_bf16_avx512bf16, gs_attn_q8_avx512vnni}, REST};
