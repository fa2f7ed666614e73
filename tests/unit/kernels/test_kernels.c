/*
 * Packed matrices, activations and GEMM: every type on every instruction set that this machine
 * has, against the scalar reference and against plain float arithmetic on the dequantised rows.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/kernels.h"

static const gs_qtype g_types[] = {
    GS_QTYPE_F32,  GS_QTYPE_F16,  GS_QTYPE_BF16, GS_QTYPE_Q4_0,   GS_QTYPE_Q4_1,
    GS_QTYPE_Q5_0, GS_QTYPE_Q5_1, GS_QTYPE_Q8_0, GS_QTYPE_Q2_K,   GS_QTYPE_Q3_K,
    GS_QTYPE_Q4_K, GS_QTYPE_Q5_K, GS_QTYPE_Q6_K, GS_QTYPE_IQ4_NL, GS_QTYPE_MXFP4,
};
#define N_TYPES (sizeof g_types / sizeof g_types[0])

static gs_rng g_rng;

static uint32_t rnd(uint32_t n) {
    return (uint32_t)gs_rng_below(&g_rng, n);
}

static float rnd_float(void) {
    return (float)(gs_rng_unit(&g_rng) * 2.0 - 1.0);
}

static void *alloc64(size_t n) {
    void *p = aligned_alloc(64, (n + 63) & ~(size_t)63);
    assert_non_null(p);
    return p;
}

static const gs_qtype_info *info_of(gs_qtype type) {
    return gs_qtype_get((uint32_t)type);
}

static size_t row_bytes(gs_qtype type, int32_t k) {
    return (size_t)k / info_of(type)->block_elems * info_of(type)->block_bytes;
}

/* Offsets of the f16 scales in a block; the rest of a block may hold any bits. */
static size_t f16_fields(gs_qtype type, size_t at[2]) {
    at[0] = 0;
    at[1] = 2;
    switch (type) {
    case GS_QTYPE_Q4_1:
    case GS_QTYPE_Q5_1:
    case GS_QTYPE_Q4_K:
    case GS_QTYPE_Q5_K:
        return 2;
    case GS_QTYPE_Q2_K:
        at[0] = 80;
        at[1] = 82;
        return 2;
    case GS_QTYPE_Q3_K:
        at[0] = 108;
        return 1;
    case GS_QTYPE_Q6_K:
        at[0] = 208;
        return 1;
    default:
        return 1;
    }
}

enum { DATA_RANDOM, DATA_MAX, DATA_ZERO_SCALE, DATA_TINY, N_DATA };

/* A finite f16 of moderate size, either sign. */
static uint16_t rnd_f16(void) {
    return (uint16_t)((rnd(2) << 15) | (8 + rnd(8)) << 10 | rnd(1024));
}

/* Raw bytes of n rows: all of them legal blocks of the type, scales finite. */
static uint8_t *make_rows(gs_qtype type, int32_t n, int32_t k, int kind) {
    size_t bytes = row_bytes(type, k) * (size_t)n, block = info_of(type)->block_bytes;
    uint8_t *src = malloc(bytes);
    assert_non_null(src);
    for (size_t i = 0; i < bytes; i++)
        src[i] = kind == DATA_MAX ? 0xff : (uint8_t)rnd(256);
    for (size_t b = 0; b < bytes / block; b++) {
        uint8_t *p = src + b * block;
        if (type == GS_QTYPE_F32) {
            float f = rnd_float();
            memcpy(p, &f, 4);
        } else if (type == GS_QTYPE_MXFP4) {
            p[0] = kind == DATA_TINY ? (uint8_t)rnd(3) : (uint8_t)(120 + rnd(8));
        } else if (type == GS_QTYPE_BF16) {
            uint16_t h = (uint16_t)(0x3f00u | rnd(256) | rnd(2) << 15);
            memcpy(p, &h, 2);
        } else {
            size_t at[2], n_f16 = f16_fields(type, at);
            for (size_t i = 0; i < n_f16; i++) {
                uint16_t h = kind == DATA_ZERO_SCALE ? 0
                             : kind == DATA_TINY     ? (uint16_t)(rnd(64) | rnd(2) << 15)
                             : kind == DATA_MAX      ? (uint16_t)(0x3c00 | rnd(2) << 15)
                                                     : rnd_f16();
                memcpy(p + at[i], &h, 2);
            }
        }
    }
    return src;
}

static gs_mat pack_rows(gs_qtype type, int32_t n, int32_t k, const void *src) {
    gs_mat m;
    assert_int_equal(gs_mat_init(&m, type, n, k), GS_OK);
    m.data = alloc64(gs_mat_bytes(&m));
    memset(m.data, 0x5a, gs_mat_bytes(&m)); /* packing must write all of it */
    int32_t mid = m.n_panels / 2;
    gs_mat_pack(&m, src, mid, m.n_panels);
    gs_mat_pack(&m, src, 0, mid);
    return m;
}

static gs_act make_act(int32_t m, int32_t k) {
    gs_act a = {m, k, alloc64(gs_act_bytes(m, k))};
    memset(a.data, 0x5a, gs_act_bytes(m, k));
    return a;
}

static void use_isa(gs_isa isa) {
    char err[200];
    assert_int_equal(gs_kernels_init(gs_isa_name(isa), err, sizeof err), GS_OK);
    assert_int_equal(gs_kernels_isa(), isa);
}

/* ---- Packing -----------------------------------------------------------------------------------
 */

static void test_mat_row_equals_dequant(void **state) {
    (void)state;
    for (size_t t = 0; t < N_TYPES; t++) {
        for (int kind = 0; kind < N_DATA; kind++) {
            int32_t n = 19, k = 512;
            uint8_t *src = make_rows(g_types[t], n, k, kind);
            gs_mat m = pack_rows(g_types[t], n, k, src);
            float want[512], got[512];
            for (int32_t r = 0; r < n; r++) {
                gs_dequant_row(g_types[t], src + (size_t)r * row_bytes(g_types[t], k), want, k);
                gs_mat_row(&m, r, got);
                for (int32_t i = 0; i < k; i++) {
                    if (fabsf(got[i] - want[i]) > 1e-6f * (1.0f + fabsf(want[i])))
                        fail_msg("%s row %d column %d: %g, expected %g", info_of(g_types[t])->name,
                                 (int)r, (int)i, (double)got[i], (double)want[i]);
                }
            }
            free(m.data);
            free(src);
        }
    }
}

static void test_memory_bound(void **state) {
    (void)state;
    for (size_t t = 0; t < N_TYPES; t++) {
        gs_mat m;
        assert_int_equal(gs_mat_init(&m, g_types[t], 1600, 1536), GS_OK);
        double ratio =
            (double)gs_mat_bytes(&m) / (double)(row_bytes(g_types[t], 1536) * (size_t)1600);
        if (ratio > 1.05)
            fail_msg("%s grows by %.3f", info_of(g_types[t])->name, ratio);
    }
}

static void test_mat_init_refuses(void **state) {
    (void)state;
    gs_mat m;
    assert_int_equal(gs_mat_init(&m, GS_QTYPE_I8, 16, 32), GS_ERR_UNSUPPORTED);
    assert_int_equal(gs_mat_init(&m, GS_QTYPE_Q4_0, 16, 48), GS_ERR_INVALID);
    assert_int_equal(gs_mat_init(&m, GS_QTYPE_Q4_K, 16, 128), GS_ERR_INVALID);
    assert_int_equal(gs_mat_init(&m, GS_QTYPE_Q4_0, 0, 32), GS_ERR_INVALID);
    assert_int_equal(gs_mat_init(&m, GS_QTYPE_Q4_0, 16, -32), GS_ERR_INVALID);
    assert_false(gs_mat_type_ok(GS_QTYPE_F64));
    assert_true(gs_mat_type_ok(GS_QTYPE_Q6_K));
}

/* Known values, written down from the block definitions rather than computed by the code here. */
static void test_dequant_known(void **state) {
    (void)state;
    float out[256];
    uint8_t q4_0[18] = {0x00, 0x3c, 0x1f, 0x80}; /* d = 1; nibbles f,1 then 0,8 */
    gs_dequant_row(GS_QTYPE_Q4_0, q4_0, out, 32);
    assert_true(out[0] == 7.0f && out[16] == -7.0f && out[1] == -8.0f && out[17] == 0.0f);
    uint8_t q4_1[20] = {0x00, 0x40, 0x00, 0xbc, 0x21}; /* d = 2, m = -1 */
    gs_dequant_row(GS_QTYPE_Q4_1, q4_1, out, 32);
    assert_true(out[0] == 1.0f && out[16] == 3.0f && out[1] == -1.0f);
    uint8_t q5_0[22] = {0x00, 0x3c, 0x01, 0x00, 0x02, 0x00, 0x03};
    gs_dequant_row(GS_QTYPE_Q5_0, q5_0, out, 32);
    assert_true(out[0] == 3.0f && out[1] == -16.0f && out[17] == 0.0f);
    uint8_t q8_0[34] = {0x00, 0x3c, 0x80, 0x7f};
    gs_dequant_row(GS_QTYPE_Q8_0, q8_0, out, 32);
    assert_true(out[0] == -128.0f && out[1] == 127.0f);
    uint8_t mx[17] = {127, 0x97}; /* scale 1: +6 and -0.5 */
    gs_dequant_row(GS_QTYPE_MXFP4, mx, out, 32);
    assert_true(out[0] == 6.0f && out[16] == -0.5f);
    uint8_t q6k[210] = {0};
    q6k[0] = 0x2f;       /* column 0: low bits 15, column 64: 2 */
    q6k[128] = 0x03;     /* column 0: high bits 3 */
    q6k[192] = 2;        /* scale of columns 0..15 */
    q6k[192 + 4] = 0xff; /* -1 for columns 64..79 */
    q6k[209] = 0x3c;
    gs_dequant_row(GS_QTYPE_Q6_K, q6k, out, 256);
    assert_true(out[0] == 62.0f && out[64] == 30.0f && out[1] == -64.0f && out[16] == 0.0f);
    uint8_t q4k[144] = {0x00, 0x3c, 0x00, 0x3c, 3, 0, 0, 0, 5, 0, 0, 0, 0x21};
    q4k[16] = 0x47; /* column 0: 7, column 32: 4 */
    gs_dequant_row(GS_QTYPE_Q4_K, q4k, out, 256);
    assert_true(out[0] == 16.0f && out[1] == -5.0f && out[32] == 0.0f && out[128] == -2.0f);
    uint16_t bf = 0xc040;
    gs_dequant_row(GS_QTYPE_BF16, &bf, out, 1);
    assert_true(out[0] == -3.0f);
    uint16_t h[4] = {0x0001, 0x7bff, 0x8000, 0x3555};
    gs_dequant_row(GS_QTYPE_F16, h, out, 4);
    assert_true(out[0] == 0x1p-24f && out[1] == 65504.0f && out[2] == 0.0f);
    assert_float_equal(out[3], 1.0f / 3.0f, 1e-4);
}

/* ---- GEMM --------------------------------------------------------------------------------------
 */

/* Input rows of the shapes that break careless code. */
static float *make_x(int32_t m, int32_t k, int kind) {
    float *x = malloc(sizeof *x * (size_t)m * (size_t)k);
    assert_non_null(x);
    for (int32_t i = 0; i < m; i++) {
        for (int32_t c = 0; c < k; c++) {
            float v = rnd_float();
            if (kind == 1) /* all at the largest code, alternating signs by row */
                v = (i & 1) ? -1.0f : 1.0f;
            if (kind == 2) /* outliers */
                v = rnd(64) == 0 ? v * 1e6f : v;
            if (kind == 3) /* silence and denormals */
                v = rnd(2) ? v * 1e-41f : 0.0f;
            x[(size_t)i * (size_t)k + (size_t)c] = v;
        }
    }
    return x;
}

typedef struct gemm_case {
    gs_qtype type;
    int32_t n, k, m;
    int data, acts, mode;
    bool bias;
    int32_t split; /* panels [0, split) and [split, end) in two calls */
} gemm_case;

/* y[m][ldy] on the current instruction set; guard columns past n must survive. */
static float *run_gemm(const gemm_case *c, const gs_mat *w, const float *x, const float *bias,
                       int32_t ldy) {
    gs_act a = make_act(c->m, c->k);
    int32_t half = c->m / 2;
    gs_act_quant(&a, x, c->k, half, c->m, gs_act_need(c->type));
    gs_act_quant(&a, x, c->k, 0, half, gs_act_need(c->type));
    size_t size = (size_t)c->m * (size_t)ldy;
    float *y = malloc(sizeof *y * size);
    assert_non_null(y);
    for (size_t i = 0; i < size; i++)
        y[i] = 0.25f * (float)(i % 7);
    gs_gemm(w, &a, y, ldy, bias, 0, c->split, c->mode);
    gs_gemm(w, &a, y, ldy, bias, c->split, w->n_panels, c->mode);
    free(a.data);
    return y;
}

/* Sum of |w||x| and of w x for each output, in double. */
static void exact(const gs_mat *w, const float *x, int32_t m, double *dot, double *mag) {
    float *row = malloc(sizeof *row * (size_t)w->k);
    assert_non_null(row);
    for (int32_t r = 0; r < w->n; r++) {
        gs_mat_row(w, r, row);
        for (int32_t i = 0; i < m; i++) {
            double d = 0.0, g = 0.0;
            for (int32_t c = 0; c < w->k; c++) {
                double p = (double)row[c] * (double)x[(size_t)i * (size_t)w->k + (size_t)c];
                d += p;
                g += fabs(p);
            }
            dot[(size_t)i * (size_t)w->n + (size_t)r] = d;
            mag[(size_t)i * (size_t)w->n + (size_t)r] = g;
        }
    }
    free(row);
}

static void fail_at(const gemm_case *c, int32_t i, int32_t r, float got, double want) {
    fail_msg("%s %s n=%d k=%d m=%d data=%d acts=%d mode=%d: y[%d][%d] = %g, expected %g",
             gs_isa_name(gs_kernels_isa()), info_of(c->type)->name, (int)c->n, (int)c->k, (int)c->m,
             c->data, c->acts, c->mode, (int)i, (int)r, (double)got, want);
}

/*
 * Two bounds. Against the scalar reference, which sees the same codes, only float summation
 * differs: 2e-6 * sqrt(blocks) relative to the size of the terms. Against exact arithmetic the
 * int8 codes add half a step each: amax / 254 per activation.
 */
static void check_case(const gemm_case *c) {
    uint8_t *src = make_rows(c->type, c->n, c->k, c->data);
    gs_mat w = pack_rows(c->type, c->n, c->k, src);
    float *x = make_x(c->m, c->k, c->acts);
    float *bias = malloc(sizeof *bias * (size_t)c->n);
    double *dot = malloc(sizeof *dot * (size_t)c->m * (size_t)c->n);
    double *mag = malloc(sizeof *mag * (size_t)c->m * (size_t)c->n);
    float *row = malloc(sizeof *row * (size_t)c->k);
    assert_true(bias && dot && mag && row);
    for (int32_t r = 0; r < c->n; r++)
        bias[r] = rnd_float();
    const float *b = c->bias ? bias : NULL;
    int32_t ldy = c->n + 5;
    exact(&w, x, c->m, dot, mag);

    use_isa(GS_ISA_SCALAR);
    float *ref = run_gemm(c, &w, x, b, ldy);
    for (int isa = 0; isa < GS_ISA_COUNT; isa++) {
        if (!gs_isa_supported((gs_isa)isa))
            continue;
        use_isa((gs_isa)isa);
        float *y = run_gemm(c, &w, x, b, ldy);
        for (int32_t r = 0; r < c->n; r++) {
            double wsum = 0.0;
            gs_mat_row(&w, r, row);
            for (int32_t i = 0; i < c->k; i++)
                wsum += fabs((double)row[i]);
            for (int32_t i = 0; i < c->m; i++) {
                size_t at = (size_t)i * (size_t)ldy + (size_t)r;
                size_t e = (size_t)i * (size_t)c->n + (size_t)r;
                float amax = 0.0f;
                for (int32_t j = 0; j < c->k; j++)
                    amax = fmaxf(amax, fabsf(x[(size_t)i * (size_t)c->k + (size_t)j]));
                double start = c->mode == GS_GEMM_ADD ? 0.25 * (double)(at % 7) : 0.0;
                double want = dot[e] + start + (b ? (double)b[r] : 0.0);
                /* minima make terms larger than their sum: bound by |w| max|x| as well */
                double tol_ref =
                    4e-6 * (mag[e] + 0.1 * wsum * (double)amax) + 2e-6 * fabs(start) + 2e-6;
                double tol = gs_act_need(c->type) == GS_ACT_FLOAT
                                 ? tol_ref
                                 : wsum * (double)amax / 250.0 + tol_ref;
                if (!(fabs((double)y[at] - want) <= tol))
                    fail_at(c, i, r, y[at], want);
                if (!(fabs((double)y[at] - (double)ref[at]) <= 8.0 * tol_ref))
                    fail_at(c, i, r, y[at], (double)ref[at]);
            }
        }
        for (int32_t i = 0; i < c->m; i++)
            for (int32_t r = c->n; r < ldy; r++) {
                size_t at = (size_t)i * (size_t)ldy + (size_t)r;
                assert_true(y[at] == 0.25f * (float)(at % 7)); /* past n: untouched */
            }
        free(y);
    }
    free(ref);
    free(row);
    free(mag);
    free(dot);
    free(bias);
    free(x);
    free(w.data);
    free(src);
}

static int32_t k_of(gs_qtype type, int32_t blocks32, int32_t blocks256) {
    return info_of(type)->block_elems == 256 ? 256 * blocks256 : 32 * blocks32;
}

static void test_gemm_tokens(void **state) {
    (void)state;
    for (size_t t = 0; t < N_TYPES; t++)
        for (int32_t m = 1; m <= 20; m++) {
            gemm_case c = {g_types[t], 33, k_of(g_types[t], 5, 2), m, DATA_RANDOM, 0, GS_GEMM_STORE,
                           false,      1};
            check_case(&c);
        }
}

static void test_gemm_shapes(void **state) {
    (void)state;
    static const int32_t ms[] = {1, 3, 7, 9, 13, 70};
    for (size_t t = 0; t < N_TYPES; t++)
        for (int32_t n = 1; n <= 40; n += 1 + (int32_t)rnd(6)) {
            gemm_case c = {.type = g_types[t],
                           .n = n,
                           .k = k_of(g_types[t], 1 + (int32_t)rnd(9), 1),
                           .m = ms[rnd(6)],
                           .data = DATA_RANDOM,
                           .acts = 0};
            c.mode = rnd(2) ? GS_GEMM_ADD : GS_GEMM_STORE;
            c.bias = rnd(2);
            c.split = (int32_t)rnd((uint32_t)((n + 15) / 16 + 1));
            check_case(&c);
        }
}

static void test_gemm_adversarial(void **state) {
    (void)state;
    static const int32_t ms[] = {1, 4, 8, 11};
    for (size_t t = 0; t < N_TYPES; t++)
        for (int data = 0; data < N_DATA; data++)
            for (int acts = 0; acts < 4; acts++) {
                if (info_of(g_types[t])->block_elems == 1 && data == DATA_MAX)
                    continue; /* NaN weights */
                gemm_case c = {g_types[t],    32,    k_of(g_types[t], 8, 1),
                               ms[rnd(4)],    data,  acts,
                               GS_GEMM_STORE, false, 0};
                check_case(&c);
            }
}

/* Real layer widths, two tiles and more. */
static void test_gemm_widths(void **state) {
    (void)state;
    static const int32_t ks[] = {576, 640, 896, 1536, 2560};
    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t i = 0; i < sizeof ks / sizeof ks[0]; i++) {
            if (ks[i] % (int32_t)info_of(g_types[t])->block_elems)
                continue;
            gemm_case c = {g_types[t], 50, ks[i], 17, DATA_RANDOM, 2, GS_GEMM_ADD, true, 2};
            check_case(&c);
        }
}

/* More tokens than fit one chunk of the driver. */
static void test_gemm_chunks(void **state) {
    (void)state;
    gemm_case c = {GS_QTYPE_Q4_0, 20, 8960, 70, DATA_RANDOM, 0, GS_GEMM_STORE, true, 1};
    check_case(&c);
    c.type = GS_QTYPE_F16;
    check_case(&c);
}

static void test_act_nonfinite(void **state) {
    (void)state;
    float x[64], w[64];
    for (int i = 0; i < 64; i++) {
        x[i] = rnd_float();
        w[i] = 1.0f;
    }
    x[3] = NAN;
    x[40] = INFINITY;
    uint8_t *src = make_rows(GS_QTYPE_Q8_0, 16, 64, DATA_RANDOM);
    gs_mat m = pack_rows(GS_QTYPE_Q8_0, 16, 64, src);
    for (int isa = 0; isa < GS_ISA_COUNT; isa++) {
        if (!gs_isa_supported((gs_isa)isa))
            continue;
        use_isa((gs_isa)isa);
        gs_act a = make_act(1, 64);
        float y[16];
        gs_act_quant(&a, x, 64, 0, 1, GS_ACT_INT | GS_ACT_FLOAT);
        gs_gemm(&m, &a, y, 16, NULL, 0, 1, GS_GEMM_STORE);
        for (int r = 0; r < 16; r++)
            assert_true(fabsf(y[r]) <= FLT_MAX); /* false for NaN */
        gs_rmsnorm_quant(&a, x, 64, w, 1e-5f, 0, 1, GS_ACT_INT);
        gs_gemm(&m, &a, y, 16, NULL, 0, 1, GS_GEMM_STORE);
        for (int r = 0; r < 16; r++)
            assert_true(fabsf(y[r]) <= FLT_MAX); /* false for NaN */
        free(a.data);
    }
    free(m.data);
    free(src);
}

/* The fused norm gives what the norm followed by quantisation gives. */
static void test_rmsnorm_quant(void **state) {
    (void)state;
    enum { M = 11, K = 576, N = 48 };
    float *x = make_x(M, K, 2), *normed = malloc(sizeof *normed * M * K), w[K];
    assert_non_null(normed);
    for (int i = 0; i < K; i++)
        w[i] = 1.0f + rnd_float();
    uint8_t *src = make_rows(GS_QTYPE_Q4_1, N, K, DATA_RANDOM);
    gs_mat m = pack_rows(GS_QTYPE_Q4_1, N, K, src);
    for (int isa = 0; isa < GS_ISA_COUNT; isa++) {
        if (!gs_isa_supported((gs_isa)isa))
            continue;
        use_isa((gs_isa)isa);
        float y1[M * N], y2[M * N];
        gs_act a = make_act(M, K);
        for (int i = 0; i < M; i++)
            gs_rmsnorm(normed + i * K, x + i * K, w, K, 1e-5f);
        double ss = 0.0;
        for (int i = 0; i < K; i++)
            ss += (double)x[i] * (double)x[i];
        double rms = sqrt(ss / K + 1e-5);
        for (int i = 0; i < K; i++)
            assert_true(fabs((double)normed[i] - (double)x[i] / rms * (double)w[i]) <=
                        1e-5 * (1e-3 + fabs((double)normed[i])));
        gs_act_quant(&a, normed, K, 0, M, GS_ACT_INT);
        gs_gemm(&m, &a, y1, N, NULL, 0, m.n_panels, GS_GEMM_STORE);
        gs_rmsnorm_quant(&a, x, K, w, 1e-5f, 0, M, GS_ACT_INT);
        gs_gemm(&m, &a, y2, N, NULL, 0, m.n_panels, GS_GEMM_STORE);
        for (int i = 0; i < M * N; i++)
            assert_true(fabsf(y1[i] - y2[i]) <= 1e-4f * (1.0f + fabsf(y1[i])));
        free(a.data);
    }
    free(m.data);
    free(src);
    free(normed);
    free(x);
}

static void test_isa_names(void **state) {
    (void)state;
    char err[200] = "";
    assert_int_equal(gs_kernels_init("sse9", err, sizeof err), GS_ERR_UNSUPPORTED);
    assert_non_null(strstr(err, "sse9"));
    assert_non_null(strstr(err, "scalar"));
    assert_int_equal(gs_kernels_init(NULL, err, sizeof err), GS_OK);
    assert_true(gs_isa_supported(gs_kernels_isa()));
}

int main(void) {
    gs_rng_seed(&g_rng, 20260131);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_isa_names),
        cmocka_unit_test(test_dequant_known),
        cmocka_unit_test(test_mat_init_refuses),
        cmocka_unit_test(test_memory_bound),
        cmocka_unit_test(test_mat_row_equals_dequant),
        cmocka_unit_test(test_act_nonfinite),
        cmocka_unit_test(test_rmsnorm_quant),
        cmocka_unit_test(test_gemm_tokens),
        cmocka_unit_test(test_gemm_shapes),
        cmocka_unit_test(test_gemm_adversarial),
        cmocka_unit_test(test_gemm_widths),
        cmocka_unit_test(test_gemm_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
