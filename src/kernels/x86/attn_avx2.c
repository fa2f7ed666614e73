/* Paged attention, AVX2 + FMA + F16C. */
#include <immintrin.h>

#include "kernels/attn_impl.h"

typedef __m256 vf;
#define VF_LANES       8
#define MASKED         (-1e30f)
#define vf_set1        _mm256_set1_ps
#define vf_load        _mm256_loadu_ps
#define vf_store       _mm256_storeu_ps
#define vf_mul         _mm256_mul_ps
#define vf_add         _mm256_add_ps
#define vf_sub         _mm256_sub_ps
#define vf_max         _mm256_max_ps
#define vf_min         _mm256_min_ps
#define vf_fma         _mm256_fmadd_ps
#define vf_load_f16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vf_store_f16(p, x)                                                                         \
    _mm_storeu_si128((__m128i *)(void *)(p), _mm256_cvtps_ph((x), _MM_FROUND_TO_NEAREST_INT))

/* 2^x = 2^n 2^r, |r| <= 1/2, Taylor series of 2^r to r^6: relative error below 3e-7. Below 2^-126
 * the result is 0, which masked scores rely on. x <= 127. */
static inline __attribute__((always_inline)) vf vf_exp2(vf x) {
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
    __m256i e =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(under, _mm256_mul_ps(p, _mm256_castsi256_ps(e)));
}

static inline __attribute__((always_inline)) vf vf_keep(vf x, int lo, int hi) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i below_lo = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane);
    __m256i below_hi = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane);
    vf keep = _mm256_castsi256_ps(_mm256_andnot_si256(below_lo, below_hi));
    return _mm256_blendv_ps(_mm256_set1_ps(MASKED), x, keep);
}

static inline __attribute__((always_inline)) float vf_hmax(vf x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline __attribute__((always_inline)) float vf_hsum(vf x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#include "kernels/x86/attn_tmpl.h"

const gs_attn_ops gs_attn_ops_avx2 = {attn, store_f16, exp2_all};
