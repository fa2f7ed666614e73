/* The element-wise kernels of encoders, AVX-512: there they take a tenth of the time. */
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
