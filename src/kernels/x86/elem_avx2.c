/* Element-wise kernels for AVX2 and everything wider: none of them is a bottleneck at 512 bits. */
#include <float.h>
#include <immintrin.h>
#include <math.h>

#include "kernels/x86/tables.h"

static inline __m256 load(const float *p) {
    return _mm256_loadu_ps(p);
}

static inline float sum8(__m256 v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static inline float max8(__m256 v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/* Mask of the first n lanes, n <= 8. */
static inline __m256i lanes(int32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/*
 * exp(x) = 2^n * exp(r), |r| <= ln 2 / 2, Taylor to degree 6: relative error < 3e-7 for x in
 * [-87.3, 88.3]; the argument is clamped to that range, NaN becomes its lower end.
 */
static inline __m256 exp8(__m256 x) {
    x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-87.3f)), _mm256_set1_ps(88.3f));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x); /* ln 2 in two parts */
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.0f / 720.0f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
}

static inline __m256 silu8(__m256 g, __m256 up) {
    g = _mm256_min_ps(_mm256_max_ps(g, _mm256_set1_ps(-88.0f)), _mm256_set1_ps(FLT_MAX));
    __m256 e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), g));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), up);
}

/* 0.5 g (1 + tanh(u)) = g / (1 + exp(-2 u)), u = sqrt(2 / pi) (g + 0.044715 g^3) */
static inline __m256 gelu8(__m256 g, __m256 up) {
    g = _mm256_min_ps(_mm256_max_ps(g, _mm256_set1_ps(-1e4f)), _mm256_set1_ps(FLT_MAX));
    __m256 s =
        _mm256_fmadd_ps(_mm256_mul_ps(g, g), _mm256_set1_ps(0.044715f), _mm256_set1_ps(1.0f));
    __m256 u2 = _mm256_mul_ps(_mm256_mul_ps(g, s), _mm256_set1_ps(-2.0f * 0.79788456f));
    __m256 e = exp8(u2);
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), up);
}

#define GATED(name, op)                                                                            \
    void name(float *out, const float *gate, const float *up, int32_t n) {                         \
        int32_t i = 0;                                                                             \
        for (; i + 8 <= n; i += 8)                                                                 \
            _mm256_storeu_ps(out + i, op(load(gate + i), load(up + i)));                           \
        if (i < n) {                                                                               \
            __m256i k = lanes(n - i);                                                              \
            _mm256_maskstore_ps(                                                                   \
                out + i, k, op(_mm256_maskload_ps(gate + i, k), _mm256_maskload_ps(up + i, k)));   \
        }                                                                                          \
    }
GATED(gs_silu_mul_avx2, silu8)
GATED(gs_gelu_mul_avx2, gelu8)

static inline __m256 exact_gelu8(__m256 x) {
    static const float poly[GS_GELU_DEGREE + 1] = GS_GELU_POLY;
    x = _mm256_max_ps(x, _mm256_set1_ps(-GS_GELU_MAX)); /* NaN becomes the bound */
    __m256 c = _mm256_min_ps(x, _mm256_set1_ps(GS_GELU_MAX));
    __m256 u =
        _mm256_fmsub_ps(_mm256_mul_ps(c, c), _mm256_set1_ps(2.0f / (GS_GELU_MAX * GS_GELU_MAX)),
                        _mm256_set1_ps(1.0f));
    __m256 p = _mm256_set1_ps(poly[GS_GELU_DEGREE]);
    for (int i = GS_GELU_DEGREE - 1; i >= 0; i--)
        p = _mm256_fmadd_ps(p, u, _mm256_set1_ps(poly[i]));
    return _mm256_mul_ps(x, _mm256_fmadd_ps(c, p, _mm256_set1_ps(0.5f)));
}

void gs_gelu_avx2(float *x, int32_t n) {
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, exact_gelu8(load(x + i)));
    if (i < n) {
        __m256i k = lanes(n - i);
        _mm256_maskstore_ps(x + i, k, exact_gelu8(_mm256_maskload_ps(x + i, k)));
    }
}

/* tanh(u) = 1 - 2 / (1 + exp(2 u)) */
static inline __m256 softcap8(__m256 x, float cap) {
    const __m256 one = _mm256_set1_ps(1.0f), c = _mm256_set1_ps(cap);
    __m256 e = exp8(_mm256_mul_ps(x, _mm256_set1_ps(2.0f / cap)));
    __m256 y = _mm256_sub_ps(c, _mm256_div_ps(_mm256_add_ps(c, c), _mm256_add_ps(one, e)));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

void gs_softcap_avx2(float *x, int32_t n, float cap) {
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, softcap8(load(x + i), cap));
    if (i < n) {
        __m256i k = lanes(n - i);
        _mm256_maskstore_ps(x + i, k, softcap8(_mm256_maskload_ps(x + i, k), cap));
    }
}

void gs_layernorm_avx2(float *y, const float *x, const float *weight, const float *bias, int32_t k,
                       float eps) {
    const int32_t whole = k / 8 * 8;
    const __m256i rest = lanes(k - whole);
    __m256 sum = _mm256_maskload_ps(x + whole, rest), square = _mm256_setzero_ps();
    for (int32_t i = 0; i < whole; i += 8)
        sum = _mm256_add_ps(sum, load(x + i));
    const __m256 mean = _mm256_set1_ps(sum8(sum) / (float)k);
    for (int32_t i = 0; i < whole; i += 8) {
        __m256 d = _mm256_sub_ps(load(x + i), mean);
        square = _mm256_fmadd_ps(d, d, square);
    }
    __m256 last = _mm256_and_ps(_mm256_sub_ps(_mm256_maskload_ps(x + whole, rest), mean),
                                _mm256_castsi256_ps(rest));
    square = _mm256_fmadd_ps(last, last, square);
    const __m256 scale = _mm256_set1_ps(1.0f / sqrtf(sum8(square) / (float)k + eps));
    for (int32_t i = 0; i < whole; i += 8) {
        __m256 d = _mm256_mul_ps(_mm256_sub_ps(load(x + i), mean), scale);
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(d, load(weight + i), load(bias + i)));
    }
    last = _mm256_fmadd_ps(_mm256_mul_ps(last, scale), _mm256_maskload_ps(weight + whole, rest),
                           _mm256_maskload_ps(bias + whole, rest));
    _mm256_maskstore_ps(y + whole, rest, last);
}

float gs_sum_squares_avx2(const float *x, int32_t k) {
    __m256 s0 = _mm256_setzero_ps(), s1 = s0;
    int32_t i = 0;
    for (; i + 16 <= k; i += 16) {
        __m256 a = load(x + i), b = load(x + i + 8);
        s0 = _mm256_fmadd_ps(a, a, s0);
        s1 = _mm256_fmadd_ps(b, b, s1);
    }
    float s = sum8(_mm256_add_ps(s0, s1));
    for (; i < k; i++)
        s += x[i] * x[i];
    return s;
}

void gs_scale_mul_avx2(float *y, const float *x, float scale, const float *weight, int32_t k) {
    __m256 sv = _mm256_set1_ps(scale);
    int32_t i = 0;
    for (; i + 8 <= k; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(load(x + i), sv), load(weight + i)));
    for (; i < k; i++)
        y[i] = x[i] * scale * weight[i];
}

void gs_add_scaled_avx2(float *y, const float *x, float scale, int32_t n) {
    __m256 sv = _mm256_set1_ps(scale);
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(sv, load(x + i), load(y + i)));
    for (; i < n; i++)
        y[i] += scale * x[i];
}

/* Pairs (i, i + half). */
static void rope_neox(float *x, const float *c, const float *s, int32_t half) {
    int32_t i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 a = load(x + i), b = load(x + half + i), cv = load(c + i), sv = load(s + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, cv, _mm256_mul_ps(b, sv)));
        _mm256_storeu_ps(x + half + i, _mm256_fmadd_ps(b, cv, _mm256_mul_ps(a, sv)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * c[i] - b * s[i];
        x[half + i] = a * s[i] + b * c[i];
    }
}

/* Pairs (2 i, 2 i + 1). */
static void rope_pairs(float *x, const float *c, const float *s, int32_t half) {
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    int32_t i = 0;
    for (; i + 4 <= half; i += 4) {
        __m256 v = load(x + 2 * i), swapped = _mm256_permute_ps(v, 0xb1);
        __m256 cv = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(c + i)), twice);
        __m256 sv = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(s + i)), twice);
        _mm256_storeu_ps(x + 2 * i, _mm256_fmaddsub_ps(v, cv, _mm256_mul_ps(swapped, sv)));
    }
    for (; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * c[i] - b * s[i];
        x[2 * i + 1] = a * s[i] + b * c[i];
    }
}

void gs_rope_avx2(float *x, const float *cos_tab, const float *sin_tab, int32_t n_rot, bool neox) {
    if (neox)
        rope_neox(x, cos_tab, sin_tab, n_rot / 2);
    else
        rope_pairs(x, cos_tab, sin_tab, n_rot / 2);
}

void gs_logsumexp_avx2(const float *x, int32_t n, float *max, float *lse) {
    __m256 mv = _mm256_set1_ps(-INFINITY);
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        mv = _mm256_max_ps(load(x + i), mv); /* a NaN leaves mv */
    float m = max8(mv);
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;

    /* Short float sums, gathered in double: 100,000 terms would lose digits in float. */
    double total = 0.0;
    __m256 mb = _mm256_set1_ps(m);
    for (i = 0; i + 8 <= n;) {
        int32_t end = n - i > 2048 ? i + 2048 : n;
        __m256 s = _mm256_setzero_ps();
        for (; i + 8 <= end; i += 8)
            s = _mm256_add_ps(s, exp8(_mm256_sub_ps(load(x + i), mb)));
        total += (double)sum8(s);
    }
    for (; i < n; i++)
        total += (double)expf(x[i] - m);
    *max = m;
    *lse = (float)log(total);
}

/* The greatest value first, then the first place that holds it: both passes run at the speed of
 * the cache, and no index travels along. */
int32_t gs_argmax_avx2(const float *x, int32_t n, bool *finite) {
    const __m256 inf = _mm256_set1_ps(INFINITY), no_sign = _mm256_set1_ps(-0.0f);
    __m256 m0 = _mm256_set1_ps(-INFINITY), m1 = m0, bad = _mm256_setzero_ps();
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = load(x + i), b = load(x + i + 8);
        m0 = _mm256_max_ps(a, m0); /* a NaN leaves m0 */
        m1 = _mm256_max_ps(b, m1);
        a = _mm256_cmp_ps(_mm256_andnot_ps(no_sign, a), inf, _CMP_NLT_UQ);
        b = _mm256_cmp_ps(_mm256_andnot_ps(no_sign, b), inf, _CMP_NLT_UQ);
        bad = _mm256_or_ps(bad, _mm256_or_ps(a, b));
    }
    float m = max8(_mm256_max_ps(m0, m1));
    bool ok = _mm256_movemask_ps(bad) == 0;
    for (; i < n; i++) {
        m = x[i] > m ? x[i] : m;
        ok = ok && isfinite(x[i]);
    }
    *finite = ok;
    __m256 mb = _mm256_set1_ps(m);
    for (i = 0; i + 8 <= n; i += 8) {
        int hit = _mm256_movemask_ps(_mm256_cmp_ps(load(x + i), mb, _CMP_EQ_OQ));
        if (hit)
            return i + __builtin_ctz((unsigned)hit);
    }
    for (; i < n; i++)
        if (x[i] == m)
            return i;
    return 0;
}

/* ---- Quantisation of activations ---------------------------------------------------------------
 */

static inline int32_t sum8i(__m256i v) {
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

/* x * scale * weight, with NaN and inf as 0. */
static inline __m256 scaled8(const float *x, __m256 scale, const float *weight) {
    __m256 v = _mm256_mul_ps(load(x), scale);
    if (weight)
        v = _mm256_mul_ps(v, load(weight));
    __m256 mag = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
    return _mm256_and_ps(v, _mm256_cmp_ps(mag, _mm256_set1_ps(INFINITY), _CMP_LT_OQ));
}

/* 32 values: codes, and the sums of the two halves. */
static inline void quant_block(const gs_act_row *row, int32_t b, const __m256 v[4], float d,
                               float id) {
    int64_t at = (int64_t)b * row->mr;
    __m256 iv = _mm256_set1_ps(id);
    __m256i i0 = _mm256_cvtps_epi32(_mm256_mul_ps(v[0], iv));
    __m256i i1 = _mm256_cvtps_epi32(_mm256_mul_ps(v[1], iv));
    __m256i i2 = _mm256_cvtps_epi32(_mm256_mul_ps(v[2], iv));
    __m256i i3 = _mm256_cvtps_epi32(_mm256_mul_ps(v[3], iv));
    __m256i lo = _mm256_packs_epi32(i0, i1), hi = _mm256_packs_epi32(i2, i3);
    __m256i q = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi),
                                            _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)(row->v.q + 32 * at), q);
    row->v.ad[at] = d;
    __m256i h0 = _mm256_add_epi32(i0, i1), h1 = _mm256_add_epi32(i2, i3);
    if (row->flags & GS_ACT_N16) {
        row->v.n16[2 * at] = -32 * sum8i(h0);
        row->v.n16[2 * at + 1] = -32 * sum8i(h1);
    }
    int32_t sum = sum8i(_mm256_add_epi32(h0, h1));
    if (row->flags & GS_ACT_ASUM)
        row->v.asum[at] = gs_act_asum(d, sum);
    if (row->flags & GS_ACT_N8)
        row->v.n8[at] = -8 * sum;
}

void gs_quant_row_avx2(const gs_act_row *row, const float *x, float scale, const float *weight,
                       int32_t k) {
    __m256 sv = _mm256_set1_ps(scale);
    for (int32_t g = 0; g < k; g += GS_ACT_GROUP) {
        int32_t n = k - g < GS_ACT_GROUP ? k - g : GS_ACT_GROUP;
        __m256 v[GS_ACT_GROUP / 8], mx = _mm256_setzero_ps();
        for (int32_t i = 0; i < n / 8; i++) {
            v[i] = scaled8(x + g + 8 * i, sv, weight ? weight + g + 8 * i : NULL);
            mx = _mm256_max_ps(mx, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v[i]));
        }
        float amax = max8(mx);
        bool tiny = amax < 128.0f * FLT_MIN; /* 127 / amax must not overflow */
        float d = tiny ? 0.0f : amax / 127.0f, id = tiny ? 0.0f : 127.0f / amax;
        for (int32_t b = 0; b < n / 32; b++)
            quant_block(row, g / 32 + b, v + 4 * b, d, id);
    }
}
