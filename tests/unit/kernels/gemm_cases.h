/*
 * Legal blocks of every weight type, and one GEMM compared with the scalar reference and with exact
 * arithmetic on every instruction set of this machine. Shared by the kernel tests; the including
 * file seeds g_rng.
 */
#ifndef TESTS_GEMM_CASES_H
#define TESTS_GEMM_CASES_H

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
static uint64_t g_case_seed; /* of a random case, for the message when it fails; 0: none */

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

/* What the bounds are made of, in double: for each output the sum of w x and of |w x|, for each row
 * of the matrix the sum of |w|, for each row of activations the largest. */
typedef struct gemm_exact {
    double *dot, *mag; /* [m][n] */
    double *wsum;      /* [n] */
    double *amax;      /* [m] */
} gemm_exact;

static gemm_exact exact(const gs_mat *w, const float *x, int32_t m) {
    size_t n = (size_t)w->n, k = (size_t)w->k;
    gemm_exact e = {malloc(sizeof(double) * (size_t)m * n), malloc(sizeof(double) * (size_t)m * n),
                    calloc(n, sizeof(double)), calloc((size_t)m, sizeof(double))};
    float *row = malloc(sizeof *row * k);
    assert_true(row && e.dot && e.mag && e.wsum && e.amax);
    for (size_t i = 0; i < (size_t)m; i++)
        for (size_t c = 0; c < k; c++)
            e.amax[i] = fmax(e.amax[i], fabs((double)x[i * k + c]));
    for (size_t r = 0; r < n; r++) {
        gs_mat_row(w, (int32_t)r, row);
        for (size_t c = 0; c < k; c++)
            e.wsum[r] += fabs((double)row[c]);
        for (size_t i = 0; i < (size_t)m; i++) {
            double d = 0.0, g = 0.0;
            for (size_t c = 0; c < k; c++) {
                double p = (double)row[c] * (double)x[i * k + c];
                d += p;
                g += fabs(p);
            }
            e.dot[i * n + r] = d;
            e.mag[i * n + r] = g;
        }
    }
    free(row);
    return e;
}

static void exact_free(gemm_exact *e) {
    free(e->dot);
    free(e->mag);
    free(e->wsum);
    free(e->amax);
}

static void fail_at(const gemm_case *c, int32_t i, int32_t r, float got, double want) {
    fail_msg("%s %s n=%d k=%d m=%d data=%d acts=%d mode=%d seed=%llu: y[%d][%d] = %g, expected %g",
             gs_isa_name(gs_kernels_isa()), info_of(c->type)->name, (int)c->n, (int)c->k, (int)c->m,
             c->data, c->acts, c->mode, (unsigned long long)g_case_seed, (int)i, (int)r,
             (double)got, want);
}

/*
 * Two bounds. Against the scalar reference, which sees the same codes, only float summation
 * differs: 2e-6 * sqrt(blocks) relative to the size of the terms. Against exact arithmetic the
 * int8 codes add half a step each: amax / 254 per activation.
 */
static void check_output(const gemm_case *c, const gemm_exact *e, const float *bias,
                         const float *ref, const float *y, int32_t ldy) {
    for (int32_t r = 0; r < c->n; r++)
        for (int32_t i = 0; i < c->m; i++) {
            size_t at = (size_t)i * (size_t)ldy + (size_t)r;
            size_t k = (size_t)i * (size_t)c->n + (size_t)r;
            double start = c->mode == GS_GEMM_ADD ? 0.25 * (double)(at % 7) : 0.0;
            double want = e->dot[k] + start + (bias ? (double)bias[r] : 0.0);
            /* minima make terms larger than their sum: bound by |w| max|x| as well */
            double terms = e->wsum[r] * e->amax[i];
            double tol_ref = 4e-6 * (e->mag[k] + 0.1 * terms) + 2e-6 * fabs(start) + 2e-6;
            bool exact_acts = (gs_act_need(c->type) & (GS_ACT_FLOAT | GS_ACT_BF16)) != 0;
            double tol = exact_acts ? tol_ref : terms / 250.0 + tol_ref;
            if (!(fabs((double)y[at] - want) <= tol))
                fail_at(c, i, r, y[at], want);
            if (!(fabs((double)y[at] - (double)ref[at]) <= 8.0 * tol_ref))
                fail_at(c, i, r, y[at], (double)ref[at]);
        }
    for (int32_t i = 0; i < c->m; i++)
        for (int32_t r = c->n; r < ldy; r++) {
            size_t at = (size_t)i * (size_t)ldy + (size_t)r;
            assert_true(y[at] == 0.25f * (float)(at % 7)); /* past n: untouched */
        }
}

static float bf16_rounded(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
    memcpy(&x, &u, sizeof x);
    return x;
}

static void check_case(const gemm_case *c) {
    uint8_t *src = make_rows(c->type, c->n, c->k, c->data);
    gs_mat w = pack_rows(c->type, c->n, c->k, src);
    float *x = make_x(c->m, c->k, c->acts);
    if (c->type == GS_QTYPE_BF16) /* which some instruction sets round to */
        for (size_t i = 0; i < (size_t)c->m * (size_t)c->k; i++)
            x[i] = bf16_rounded(x[i]);
    float *bias = malloc(sizeof *bias * (size_t)c->n);
    assert_non_null(bias);
    for (int32_t r = 0; r < c->n; r++)
        bias[r] = rnd_float();
    const float *b = c->bias ? bias : NULL;
    int32_t ldy = c->n + 5;
    gemm_exact e = exact(&w, x, c->m);

    use_isa(GS_ISA_SCALAR);
    float *ref = run_gemm(c, &w, x, b, ldy);
    for (int isa = 0; isa < GS_ISA_COUNT; isa++) {
        if (!gs_isa_supported((gs_isa)isa))
            continue;
        use_isa((gs_isa)isa);
        float *y = isa == GS_ISA_SCALAR ? ref : run_gemm(c, &w, x, b, ldy);
        check_output(c, &e, b, ref, y, ldy);
        if (y != ref)
            free(y);
    }
    free(ref);
    exact_free(&e);
    free(bias);
    free(x);
    free(w.data);
    free(src);
}

static int32_t k_of(gs_qtype type, int32_t blocks32, int32_t blocks256) {
    return info_of(type)->block_elems == 256 ? 256 * blocks256 : 32 * blocks32;
}

#endif
