/* The attention kernels of x86, by type of the pages and instruction set. */
#ifndef GS_KERNELS_X86_ATTN_X86_H
#define GS_KERNELS_X86_ATTN_X86_H

#include "kernels/attn_impl.h"

gs_attn_fn gs_attn_f16_avx2, gs_attn_bf16_avx2, gs_attn_q8_avx2;
gs_attn_fn gs_attn_f16_avx512, gs_attn_bf16_avx512, gs_attn_q8_avx512;
gs_attn_fn gs_attn_q8_avx512vnni;
gs_attn_fn gs_attn_bf16_avx512bf16;

#endif
