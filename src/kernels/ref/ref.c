/*
 * Scalar kernels: the truth that the tests hold every other version to, and the path for machines
 * without AVX2. Plain loops, one decoder for all formats.
 */
#include <float.h>
#include <math.h>

#include "base/err.h"
#include "kernels/kernels_impl.h"

/* ---- GEMM --------------------------------------------------------------------------------------
 */

static void store(const gs_tile *t, int32_t panel_row, int32_t r, const float *acc /*[mr]*/) {
    int32_t row = panel_row + r;
    if (row >= t->n_valid)
        return;
    for (int32_t i = 0; i < t->mr; i++) {
        float v = acc[i] + (t->bias ? t->bias[row] : 0.0f);
        float *y = t->y + i * t->ldy + row;
        *y = t->mode == GS_GEMM_ADD ? *y + v : v;
    }
}

static void tile_int(const gs_tile *t) {
    const gs_fmt *f = gs_fmt_get(t->w->type);
    for (int32_t p = 0; p < t->n_panels; p++) {
        const uint8_t *panel = t->panel + (size_t)p * t->panel_bytes;
        for (int32_t r = 0; r < GS_PANEL_ROWS; r++) {
            float acc[GS_TILE_MAX] = {0};
            for (int32_t b = 0; b < t->n_blocks; b++) {
                int16_t v[32];
                float d[2], mn[2];
                gs_panel_block(t->w, f, panel, b, r, v, d, mn);
                for (int32_t i = 0; i < t->mr; i++) {
                    const int8_t *q = t->act.q + ((int64_t)b * t->mr + i) * 32;
                    int32_t dot[2] = {0}, sum[2] = {0};
                    for (int c = 0; c < 32; c++) {
                        dot[c / 16] += v[c] * q[c];
                        sum[c / 16] += q[c];
                    }
                    float s = d[0] * (float)dot[0] + d[1] * (float)dot[1] + mn[0] * (float)sum[0] +
                              mn[1] * (float)sum[1];
                    acc[i] += t->act.ad[(int64_t)b * t->mr + i] * s;
                }
            }
            store(t, p * GS_PANEL_ROWS, r, acc);
        }
    }
}

static float float_at(gs_qtype type, const uint8_t *panel, size_t at) {
    if (type == GS_QTYPE_F32) {
        float x;
        memcpy(&x, panel + 4 * at, 4);
        return x;
    }
    uint16_t h;
    memcpy(&h, panel + 2 * at, 2);
    return type == GS_QTYPE_F16 ? gs_f16_to_f32(h) : gs_bf16_to_f32(h);
}

static void tile_float(const gs_tile *t) {
    for (int32_t p = 0; p < t->n_panels; p++) {
        const uint8_t *panel = t->panel + (size_t)p * t->panel_bytes;
        for (int32_t r = 0; r < GS_PANEL_ROWS; r++) {
            float acc[GS_TILE_MAX] = {0};
            for (int32_t c = 0; c < t->w->k; c++) {
                float wv = float_at(t->w->type, panel, gs_float_index(t->w->type, c, r));
                for (int32_t i = 0; i < t->mr; i++)
                    acc[i] += wv * t->act.x[(int64_t)c * t->mr + i];
            }
            store(t, p * GS_PANEL_ROWS, r, acc);
        }
    }
}

#define ALL(f)                                                                                     \
    {                                                                                              \
        .fn = { {NULL, f, f, f, f, f, f} }                                                         \
    }
static const gs_tile_set g_tiles_int = ALL(tile_int);
static const gs_tile_set g_tiles_float = ALL(tile_float);

const gs_tile_set *gs_tiles_scalar(gs_qtype type) {
    return gs_fmt_get(type)->scale == GS_SCALE_FLOAT ? &g_tiles_float : &g_tiles_int;
}

/* ---- Activations -------------------------------------------------------------------------------
 */

static float scaled(const float *x, float scale, const float *weight, int32_t i) {
    float v = weight ? x[i] * scale * weight[i] : x[i] * scale;
    return isfinite(v) ? v : 0.0f;
}

static void quant_block(const gs_act_row *row, int32_t b, const float y[32], float d, float id) {
    int64_t at = (int64_t)b * row->mr;
    int8_t *q = row->v.q + 32 * at;
    int32_t sum[2] = {0};
    for (int i = 0; i < 32; i++) {
        q[i] = (int8_t)lrintf(y[i] * id);
        sum[i / 16] += q[i];
    }
    row->v.ad[at] = d;
    if (row->flags & GS_ACT_ASUM)
        row->v.asum[at] = gs_act_asum(d, sum[0] + sum[1]);
    if (row->flags & GS_ACT_N8)
        row->v.n8[at] = -8 * (sum[0] + sum[1]);
    if (row->flags & GS_ACT_N16) {
        row->v.n16[2 * at] = -32 * sum[0];
        row->v.n16[2 * at + 1] = -32 * sum[1];
    }
}

void gs_quant_row_scalar(const gs_act_row *row, const float *x, float scale, const float *weight,
                         int32_t k) {
    for (int32_t g = 0; g < k; g += GS_ACT_GROUP) {
        int32_t end = g + GS_ACT_GROUP < k ? g + GS_ACT_GROUP : k;
        float amax = 0.0f;
        for (int32_t i = g; i < end; i++)
            amax = fmaxf(amax, fabsf(scaled(x, scale, weight, i)));
        bool tiny = amax < 128.0f * FLT_MIN; /* 127 / amax must not overflow */
        float d = tiny ? 0.0f : amax / 127.0f, id = tiny ? 0.0f : 127.0f / amax;
        for (int32_t c = g; c < end; c += 32) {
            float y[32];
            for (int i = 0; i < 32; i++)
                y[i] = scaled(x, scale, weight, c + i);
            quant_block(row, c / 32, y, d, id);
        }
    }
}

float gs_sum_squares_scalar(const float *x, int32_t k) {
    double s = 0.0;
    for (int32_t i = 0; i < k; i++)
        s += (double)x[i] * (double)x[i];
    return (float)s;
}

void gs_scale_mul_scalar(float *y, const float *x, float scale, const float *weight, int32_t k) {
    for (int32_t i = 0; i < k; i++)
        y[i] = x[i] * scale * weight[i];
}

/* ---- Element-wise ------------------------------------------------------------------------------
 */

static float clamp(float x, float lo, float hi) {
    return x > lo ? (x < hi ? x : hi) : lo; /* NaN becomes lo */
}

void gs_add_scaled_scalar(float *y, const float *x, float scale, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        y[i] += scale * x[i];
}

void gs_silu_mul_scalar(float *out, const float *gate, const float *up, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        float g = clamp(gate[i], -88.0f, FLT_MAX);
        out[i] = g / (1.0f + expf(-g)) * up[i];
    }
}

void gs_gelu_mul_scalar(float *out, const float *gate, const float *up, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        float g = clamp(gate[i], -1e4f, FLT_MAX);
        float u = clamp(0.79788456f * g * (1.0f + 0.044715f * g * g), -44.0f, 44.0f);
        out[i] = 0.5f * g * (1.0f + tanhf(u)) * up[i];
    }
}

void gs_gelu_scalar(float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        float v = clamp(x[i], -10.0f, FLT_MAX);
        x[i] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
    }
}

void gs_softcap_scalar(float *x, int32_t n, float cap) {
    for (int32_t i = 0; i < n; i++)
        x[i] = cap * tanhf(x[i] / cap);
}

void gs_layernorm_scalar(float *y, const float *x, const float *weight, const float *bias,
                         int32_t k, float eps) {
    double mean = 0.0, square = 0.0;
    for (int32_t i = 0; i < k; i++)
        mean += (double)x[i];
    mean /= k;
    for (int32_t i = 0; i < k; i++)
        square += ((double)x[i] - mean) * ((double)x[i] - mean);
    double scale = 1.0 / sqrt(square / k + (double)eps);
    for (int32_t i = 0; i < k; i++)
        y[i] = (float)(((double)x[i] - mean) * scale) * weight[i] + bias[i];
}

void gs_rope_scalar(float *x, const float *cos_tab, const float *sin_tab, int32_t n_rot,
                    bool neox) {
    int32_t half = n_rot / 2;
    for (int32_t i = 0; i < half; i++) {
        float *a = neox ? x + i : x + 2 * i, *b = neox ? x + half + i : x + 2 * i + 1;
        float u = *a, v = *b;
        *a = u * cos_tab[i] - v * sin_tab[i];
        *b = u * sin_tab[i] + v * cos_tab[i];
    }
}

int32_t gs_argmax_scalar(const float *x, int32_t n, bool *finite) {
    int32_t best = 0;
    bool ok = true;
    for (int32_t i = 0; i < n; i++) {
        ok = ok && isfinite(x[i]);
        if (x[i] > x[best] || isnan(x[best]))
            best = isnan(x[i]) ? best : i;
    }
    *finite = ok;
    return isnan(x[best]) ? 0 : best;
}

void gs_logsumexp_scalar(const float *x, int32_t n, float *max, float *lse) {
    float m = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    double s = 0.0;
    for (int32_t i = 0; i < n; i++)
        s += (double)expf(x[i] - m);
    *max = m;
    *lse = s > 0 ? (float)log(s) : -INFINITY; /* n == 0 */
}

const gs_kernel_table gs_kernels_scalar = {
    .tiles = gs_tiles_scalar,
    .quant_row = gs_quant_row_scalar,
    .sum_squares = gs_sum_squares_scalar,
    .scale_mul = gs_scale_mul_scalar,
    .add_scaled = gs_add_scaled_scalar,
    .silu_mul = gs_silu_mul_scalar,
    .gelu_mul = gs_gelu_mul_scalar,
    .gelu = gs_gelu_scalar,
    .softcap = gs_softcap_scalar,
    .layernorm = gs_layernorm_scalar,
    .rope = gs_rope_scalar,
    .logsumexp = gs_logsumexp_scalar,
    .argmax = gs_argmax_scalar,
};
