/* The vector primitives of attn_tmpl.h in AVX2 + FMA + F16C. */
#ifndef GS_KERNELS_X86_ATTN_V256_H
#define GS_KERNELS_X86_ATTN_V256_H

#include <immintrin.h>

#include "kernels/attn_impl.h"

#define AINLINE static inline __attribute__((always_inline))

typedef __m256 vf;
typedef __m256i vi;
#define VF_LANES       8
#define MASKED         (-1e30f)
#define vf_set1        _mm256_set1_ps
#define vf_load        _mm256_loadu_ps
#define vf_store       _mm256_storeu_ps
#define vf_mul         _mm256_mul_ps
#define vf_div         _mm256_div_ps
#define vf_add         _mm256_add_ps
#define vf_sub         _mm256_sub_ps
#define vf_max         _mm256_max_ps
#define vf_min         _mm256_min_ps
#define vf_fma         _mm256_fmadd_ps
#define vf_from_vi     _mm256_cvtepi32_ps
#define vf_cast_vi     _mm256_castsi256_ps
#define vi_set1        _mm256_set1_epi32
#define vi_load(p)     _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define vi_store(p, x) _mm256_storeu_si256((__m256i *)(void *)(p), (x))
#define vi_and         _mm256_and_si256
#define vi_add         _mm256_add_epi32
#define vi_madd        _mm256_madd_epi16
#define vi_sll         _mm256_slli_epi32
#define vi_srl16       _mm256_srli_epi16
#define vi_sra16       _mm256_srai_epi16
#define vi_sll16       _mm256_slli_epi16
#define vi_load_s16(p) _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vi_load_u16(p) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vf_load_f16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vf_store_f16(p, x)                                                                         \
    _mm_storeu_si128((__m128i *)(void *)(p), _mm256_cvtps_ph((x), _MM_FROUND_TO_NEAREST_INT))

AINLINE vf vf_abs(vf x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

AINLINE __m128i narrow32(vi x) {
    return _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

/* Rounded to -128..127, to 0..255. */
AINLINE void vf_store_s8(int8_t *p, vf x) {
    __m128i h = narrow32(_mm256_cvtps_epi32(x));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(h, h));
}

AINLINE void vf_store_u8(uint8_t *p, vf x) {
    __m128i h = narrow32(_mm256_cvtps_epi32(x));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(h, h));
}

AINLINE void vf_store_bf16(uint16_t *p, vf x) {
    vi u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), vi_set1(1));
    vi r = _mm256_srli_epi32(vi_add(vi_add(u, odd), vi_set1(0x7fff)), 16);
    vi nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, vi_set1(0x7fc0), nan);
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1)));
}

/* 2^x = 2^n 2^r, |r| <= 1/2, Taylor series of 2^r to r^6: relative error below 3e-7. Below 2^-126
 * the result is 0, which masked scores rely on. x <= 127. */
AINLINE vf vf_exp2(vf x) {
    const vf least = _mm256_set1_ps(-126.0f);
    vf under = _mm256_cmp_ps(x, least, _CMP_LT_OQ);
    x = _mm256_max_ps(least, x); /* this order keeps NaN */
    vf n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vf r = _mm256_sub_ps(x, n);
    vf p = _mm256_set1_ps(1.5403530e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3333558e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(9.6181291e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.5504109e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(2.4022651e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(6.9314718e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    vi e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), vi_set1(127)), 23);
    return _mm256_andnot_ps(under, _mm256_mul_ps(p, _mm256_castsi256_ps(e)));
}

AINLINE vf vf_keep(vf x, int lo, int hi) {
    const vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    vi below_lo = _mm256_cmpgt_epi32(vi_set1(lo), lane);
    vi below_hi = _mm256_cmpgt_epi32(vi_set1(hi), lane);
    vf keep = _mm256_castsi256_ps(_mm256_andnot_si256(below_lo, below_hi));
    return _mm256_blendv_ps(_mm256_set1_ps(MASKED), x, keep);
}

AINLINE float vf_hmax(vf x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

AINLINE float vf_hsum(vf x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#endif
