/* Paged attention, AVX-512 (F, BW, DQ, VL). */
#include <immintrin.h>

#include "kernels/attn_impl.h"

typedef __m512 vf;
#define VF_LANES       16
#define MASKED         (-1e30f)
#define vf_set1        _mm512_set1_ps
#define vf_load        _mm512_loadu_ps
#define vf_store       _mm512_storeu_ps
#define vf_mul         _mm512_mul_ps
#define vf_add         _mm512_add_ps
#define vf_sub         _mm512_sub_ps
#define vf_max         _mm512_max_ps
#define vf_min         _mm512_min_ps
#define vf_fma         _mm512_fmadd_ps
#define vf_hmax        _mm512_reduce_max_ps
#define vf_hsum        _mm512_reduce_add_ps
#define vf_load_f16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define vf_store_f16(p, x)                                                                         \
    _mm256_storeu_si256((__m256i *)(void *)(p), _mm512_cvtps_ph((x), _MM_FROUND_TO_NEAREST_INT))

/* 2^x = 2^n 2^r, |r| <= 1/2, Taylor series of 2^r to r^6: relative error below 3e-7. */
static inline __attribute__((always_inline)) vf vf_exp2(vf x) {
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

static inline __attribute__((always_inline)) unsigned lanes_below(int n) {
    return n <= 0 ? 0u : n >= 16 ? 0xffffu : (1u << n) - 1u;
}

static inline __attribute__((always_inline)) vf vf_keep(vf x, int lo, int hi) {
    __mmask16 k = (__mmask16)(lanes_below(hi) & ~lanes_below(lo));
    return _mm512_mask_mov_ps(_mm512_set1_ps(MASKED), k, x);
}

#include "kernels/x86/attn_tmpl.h"

const gs_attn_ops gs_attn_ops_avx512 = {attn, store_f16, exp2_all};
