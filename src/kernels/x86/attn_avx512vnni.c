/* Paged attention over 8-bit pages, AVX-512 VNNI. */
#include "kernels/x86/attn_v512.h"
#include "kernels/x86/attn_x86.h"

#define AT_DP_S8
#include "kernels/x86/attn_tmpl.h"

ATTN_FUNCTION(gs_attn_q8_avx512vnni, AT_Q8_DP)
