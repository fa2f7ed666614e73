/* Paged attention over bf16 pages, AVX512-BF16: queries and weights are rounded to bf16 too. */
#include "kernels/x86/attn_v512.h"
#include "kernels/x86/attn_x86.h"

#define AT_DP_BF16
#include "kernels/x86/attn_tmpl.h"

ATTN_FUNCTION(gs_attn_bf16_avx512bf16, AT_BF16_DP)
