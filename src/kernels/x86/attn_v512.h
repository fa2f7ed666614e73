/* The vector primitives of attn_tmpl.h in AVX-512 (F, BW, DQ, VL). */
#ifndef GS_KERNELS_X86_ATTN_V512_H
#define GS_KERNELS_X86_ATTN_V512_H

#include <immintrin.h>

#include "kernels/attn_impl.h"

#define AINLINE static inline __attribute__((always_inline))

typedef __m512 vf;
typedef __m512i vi;
#define VF_LANES       16
#define MASKED         (-1e30f)
#define vf_set1        _mm512_set1_ps
#define vf_load        _mm512_loadu_ps
#define vf_store       _mm512_storeu_ps
#define vf_mul         _mm512_mul_ps
#define vf_div         _mm512_div_ps
#define vf_add         _mm512_add_ps
#define vf_sub         _mm512_sub_ps
#define vf_max         _mm512_max_ps
#define vf_min         _mm512_min_ps
#define vf_fma         _mm512_fmadd_ps
#define vf_abs         _mm512_abs_ps
#define vf_hmax        _mm512_reduce_max_ps
#define vf_hsum        _mm512_reduce_add_ps
#define vf_from_vi     _mm512_cvtepi32_ps
#define vf_cast_vi     _mm512_castsi512_ps
#define vi_set1        _mm512_set1_epi32
#define vi_load(p)     _mm512_loadu_si512((const void *)(p))
#define vi_store(p, x) _mm512_storeu_si512((void *)(p), (x))
#define vi_and         _mm512_and_si512
#define vi_add         _mm512_add_epi32
#define vi_madd        _mm512_madd_epi16
#define vi_sll         _mm512_slli_epi32
#define vi_srl16       _mm512_srli_epi16
#define vi_sra16       _mm512_srai_epi16
#define vi_sll16       _mm512_slli_epi16
#define vi_load_s16(p) _mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)(p)))
#define vi_load_u16(p) _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(p)))
#define vf_load_f16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p)))
#define vf_store_f16(p, x)                                                                         \
    _mm256_storeu_si256((void *)(p), _mm512_cvtps_ph((x), _MM_FROUND_TO_NEAREST_INT))

/* Rounded to -128..127, to 0..255. */
AINLINE void vf_store_s8(int8_t *p, vf x) {
    _mm_storeu_si128((void *)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
}

AINLINE void vf_store_u8(uint8_t *p, vf x) {
    _mm_storeu_si128((void *)p, _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(x)));
}

AINLINE void vf_store_bf16(uint16_t *p, vf x) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256((void *)p, (__m256i)_mm512_cvtneps_pbh(x));
#else
    vi u = _mm512_castps_si512(x), odd = vi_and(_mm512_srli_epi32(u, 16), vi_set1(1));
    vi r = _mm512_srli_epi32(vi_add(vi_add(u, odd), vi_set1(0x7fff)), 16);
    r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), vi_set1(0x7fc0));
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(r));
#endif
}

/* 2^x = 2^n 2^r, |r| <= 1/2, Taylor series of 2^r to r^6: relative error below 3e-7. */
AINLINE vf vf_exp2(vf x) {
    vf n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vf r = _mm512_sub_ps(x, n);
    vf p = _mm512_set1_ps(1.5403530e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3333558e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

AINLINE unsigned lanes_below(int n) {
    return n <= 0 ? 0u : n >= 16 ? 0xffffu : (1u << n) - 1u;
}

AINLINE vf vf_keep(vf x, int lo, int hi) {
    __mmask16 k = (__mmask16)(lanes_below(hi) & ~lanes_below(lo));
    return _mm512_mask_mov_ps(_mm512_set1_ps(MASKED), k, x);
}

#endif
