/* The element-wise kernels that take several hundredths of a step, AVX-512. */
#include <float.h>
#include <immintrin.h>
#include <math.h>

#include "kernels/x86/tables.h"

static inline __m512 gelu16(__m512 x) {
    static const float poly[GS_GELU_DEGREE + 1] = GS_GELU_POLY;
    const __m512 top = _mm512_set1_ps(GS_GELU_MAX), low = _mm512_set1_ps(-GS_GELU_MAX);
    x = _mm512_max_ps(x, low); /* in this order NaN becomes the bound */
    __m512 c = _mm512_min_ps(x, top);
    __m512 u =
        _mm512_fmsub_ps(_mm512_mul_ps(c, c), _mm512_set1_ps(2.0f / (GS_GELU_MAX * GS_GELU_MAX)),
                        _mm512_set1_ps(1.0f));
    __m512 p = _mm512_set1_ps(poly[GS_GELU_DEGREE]);
#pragma GCC unroll 16
    for (int i = GS_GELU_DEGREE - 1; i >= 0; i--)
        p = _mm512_fmadd_ps(p, u, _mm512_set1_ps(poly[i]));
    return _mm512_mul_ps(x, _mm512_fmadd_ps(c, p, _mm512_set1_ps(0.5f)));
}

void gs_gelu_avx512(float *x, int32_t n) {
    int32_t i = 0;
    for (; i + 32 <= n; i += 32) { /* two at a time: each is one chain */
        __m512 a = gelu16(_mm512_loadu_ps(x + i)), b = gelu16(_mm512_loadu_ps(x + i + 16));
        _mm512_storeu_ps(x + i, a);
        _mm512_storeu_ps(x + i + 16, b);
    }
    for (; i < n; i += 16) {
        __mmask16 k = (__mmask16)(n - i >= 16 ? 0xffffu : (1u << (n - i)) - 1u);
        _mm512_mask_storeu_ps(x + i, k, gelu16(_mm512_maskz_loadu_ps(k, x + i)));
    }
}

void gs_layernorm_avx512(float *y, const float *x, const float *weight, const float *bias,
                         int32_t k, float eps) {
    __m512 sum = _mm512_setzero_ps(), square = sum;
    int32_t i = 0;
    for (; i + 16 <= k; i += 16)
        sum = _mm512_add_ps(sum, _mm512_loadu_ps(x + i));
    const __mmask16 rest = (__mmask16)((1u << (k - i)) - 1u);
    sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(rest, x + i));
    const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / (float)k);
    for (i = 0; i + 16 <= k; i += 16) {
        __m512 d = _mm512_sub_ps(_mm512_loadu_ps(x + i), mean);
        square = _mm512_fmadd_ps(d, d, square);
    }
    __m512 last = _mm512_maskz_sub_ps(rest, _mm512_maskz_loadu_ps(rest, x + i), mean);
    square = _mm512_fmadd_ps(last, last, square);
    float scale = 1.0f / sqrtf(_mm512_reduce_add_ps(square) / (float)k + eps);
    const __m512 sv = _mm512_set1_ps(scale);
    for (i = 0; i + 16 <= k; i += 16) {
        __m512 d = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(x + i), mean), sv);
        _mm512_storeu_ps(
            y + i, _mm512_fmadd_ps(d, _mm512_loadu_ps(weight + i), _mm512_loadu_ps(bias + i)));
    }
    last = _mm512_fmadd_ps(_mm512_mul_ps(last, sv), _mm512_maskz_loadu_ps(rest, weight + i),
                           _mm512_maskz_loadu_ps(rest, bias + i));
    _mm512_mask_storeu_ps(y + i, rest, last);
}

/*
 * g up / (1 + exp(u)). exp(u) = 2^n exp(r), |r| <= ln 2 / 2, Taylor to degree 6. The reciprocal
 * has 14 bits and is doubled by a step of Newton's method: relative error of all below 1e-6.
 */
static inline __m512 gate16(__m512 g, __m512 u, __m512 up) {
    const __m512 one = _mm512_set1_ps(1.0f);
    u = _mm512_min_ps(_mm512_max_ps(u, _mm512_set1_ps(-87.3f)), _mm512_set1_ps(88.3f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(u, _mm512_set1_ps(1.44269504f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), u); /* ln 2 in two parts */
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720.0f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    __m512 d = _mm512_add_ps(one, _mm512_scalef_ps(p, n)), y = _mm512_rcp14_ps(d);
    y = _mm512_mul_ps(y, _mm512_fnmadd_ps(d, y, _mm512_set1_ps(2.0f)));
    return _mm512_mul_ps(_mm512_mul_ps(g, y), up);
}

/* NaN becomes the lower bound: the order of the operands matters. */
static inline __m512 silu16(__m512 g, __m512 up) {
    g = _mm512_min_ps(_mm512_max_ps(g, _mm512_set1_ps(-88.0f)), _mm512_set1_ps(FLT_MAX));
    return gate16(g, _mm512_sub_ps(_mm512_setzero_ps(), g), up);
}

/* 0.5 g (1 + tanh(v)) = g / (1 + exp(-2 v)), v = sqrt(2 / pi) (g + 0.044715 g^3) */
static inline __m512 tanh_gelu16(__m512 g, __m512 up) {
    g = _mm512_min_ps(_mm512_max_ps(g, _mm512_set1_ps(-1e4f)), _mm512_set1_ps(FLT_MAX));
    __m512 s =
        _mm512_fmadd_ps(_mm512_mul_ps(g, g), _mm512_set1_ps(0.044715f), _mm512_set1_ps(1.0f));
    return gate16(g, _mm512_mul_ps(_mm512_mul_ps(g, s), _mm512_set1_ps(-2.0f * 0.79788456f)), up);
}

#define GATED(name, op)                                                                            \
    void name(float *out, const float *gate, const float *up, int32_t n) {                         \
        int32_t i = 0;                                                                             \
        for (; i + 16 <= n; i += 16)                                                               \
            _mm512_storeu_ps(out + i, op(_mm512_loadu_ps(gate + i), _mm512_loadu_ps(up + i)));     \
        if (i < n) {                                                                               \
            __mmask16 k = (__mmask16)((1u << (n - i)) - 1u);                                       \
            _mm512_mask_storeu_ps(                                                                 \
                out + i, k,                                                                        \
                op(_mm512_maskz_loadu_ps(k, gate + i), _mm512_maskz_loadu_ps(k, up + i)));         \
        }                                                                                          \
    }
GATED(gs_silu_mul_avx512, silu16)
GATED(gs_gelu_mul_avx512, tanh_gelu16)
