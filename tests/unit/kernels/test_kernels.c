/*
 * Packed matrices, activations and GEMM: every type on every instruction set that this machine
 * has, against the scalar reference and against plain float arithmetic on the dequantised rows.
 */
#include <float.h>

#include "gemm_cases.h"

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

/* Rows quantised in parts are byte for byte the rows quantised whole. */
static void test_quant_parts(void **state) {
    (void)state;
    enum { M = 8, K = 2 * GS_ACT_GROUP + 64, BOTH = GS_ACT_INT | GS_ACT_FLOAT };
    float *x = make_x(M, K, 3), w[K];
    for (int i = 0; i < K; i++)
        w[i] = 1.0f + rnd_float();
    for (int isa = 0; isa < GS_ISA_COUNT; isa++) {
        if (!gs_isa_supported((gs_isa)isa))
            continue;
        use_isa((gs_isa)isa);
        gs_act whole = make_act(M, K), parts = make_act(M, K);
        memset(whole.data, 0, gs_act_bytes(M, K));
        memset(parts.data, 0, gs_act_bytes(M, K));
        for (int norm = 0; norm < 2; norm++) {
            if (norm)
                gs_rmsnorm_quant(&whole, x, K, w, 1e-5f, 0, M, BOTH);
            else
                gs_act_quant(&whole, x, K, 0, M, BOTH);
            for (int i = M - 1; i >= 0; i--) {
                for (int part = 1; part >= 0; part--) {
                    int c0 = part ? GS_ACT_GROUP : 0, c1 = part ? K : GS_ACT_GROUP;
                    if (norm)
                        gs_rmsnorm_quant_part(&parts, x + i * K, w, 1e-5f, i, c0, c1, BOTH);
                    else
                        gs_act_quant_part(&parts, x + i * K, i, c0, c1, BOTH);
                }
            }
            assert_memory_equal(whole.data, parts.data, gs_act_bytes(M, K));
        }
        free(whole.data);
        free(parts.data);
    }
    free(x);
}

/* F32 rows packed as BF16; a product with the identity gives the activations back, rounded or as
 * they were. */
static void test_bf16(void **state) {
    (void)state;
    enum { N = 64, M = 7 };
    float *x = make_x(M, N, 0), one[N * N] = {0}, row[N], y[M * N];
    for (int i = 0; i < N; i++)
        one[i * N + i] = i % 2 ? 1.0f : 1.00390625f; /* halfway between two bf16: to even, 1 */
    gs_mat w;
    assert_int_equal(gs_mat_init(&w, GS_QTYPE_BF16, N, N), GS_OK);
    w.data = aligned_alloc(64, gs_mat_bytes(&w));
    assert_non_null(w.data);
    gs_mat_pack_from(&w, GS_QTYPE_F32, one, 0, w.n_panels);
    for (int r = 0; r < N; r++) {
        gs_mat_row(&w, r, row);
        for (int c = 0; c < N; c++)
            assert_true(row[c] == (r == c ? 1.0f : 0.0f));
    }
    for (int isa = 0; isa < GS_ISA_COUNT; isa++) {
        if (!gs_isa_supported((gs_isa)isa))
            continue;
        use_isa((gs_isa)isa);
        gs_act a = make_act(M, N);
        gs_act_quant(&a, x, N, 0, M, gs_act_need(GS_QTYPE_BF16));
        gs_gemm(&w, &a, y, N, NULL, 0, w.n_panels, GS_GEMM_STORE);
        bool rounds = gs_act_need(GS_QTYPE_BF16) == GS_ACT_BF16;
        for (int i = 0; i < M * N; i++)
            assert_true(y[i] == (rounds ? bf16_rounded(x[i]) : x[i]));
        free(a.data);
    }
    free(w.data);
    free(x);
}

/* A row's result is the same bits whatever rows are with it. */
static void test_gemm_neighbours(void **state) {
    (void)state;
    static const gs_qtype types[] = {GS_QTYPE_F32,  GS_QTYPE_F16,  GS_QTYPE_BF16,
                                     GS_QTYPE_Q8_0, GS_QTYPE_Q4_1, GS_QTYPE_Q6_K};
    enum { N = 3 * 16 + 5, K = 512, M = 40 };
    float *x = make_x(M, K, 0), all[M * N], some[M * N];
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        uint8_t *src = make_rows(types[t], N, K, 0);
        gs_mat w = pack_rows(types[t], N, K, src);
        for (int isa = 0; isa < GS_ISA_COUNT; isa++) {
            if (!gs_isa_supported((gs_isa)isa))
                continue;
            use_isa((gs_isa)isa);
            for (int m = M; m >= 1; m--) {
                gs_act a = make_act(m, K);
                gs_act_quant(&a, x, K, 0, m, gs_act_need(types[t]));
                gs_gemm(&w, &a, m == M ? all : some, N, NULL, 0, w.n_panels, GS_GEMM_STORE);
                free(a.data);
                if (m < M)
                    assert_memory_equal(some, all, (size_t)m * N * sizeof *all);
            }
        }
        free(w.data);
        free(src);
    }
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
        cmocka_unit_test(test_quant_parts),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_gemm_neighbours),
        cmocka_unit_test(test_gemm_tokens),
        cmocka_unit_test(test_gemm_shapes),
        cmocka_unit_test(test_gemm_adversarial),
        cmocka_unit_test(test_gemm_widths),
        cmocka_unit_test(test_gemm_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
