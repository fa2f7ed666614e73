/*
 * One GEMM compared with the scalar reference and with exact arithmetic on every instruction set of
 * this machine. Shared by the kernel tests; the including file seeds g_rng.
 */
#ifndef TESTS_GEMM_CASES_H
#define TESTS_GEMM_CASES_H

#include "weight_rows.h"

static uint64_t g_case_seed; /* of a random case, for the message when it fails; 0: none */

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
