/* Element-wise kernels on every instruction set against double-precision arithmetic. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/kernels.h"

static gs_rng g_rng;

static float rnd_float(float scale) {
    return (float)(gs_rng_unit(&g_rng) * 2.0 - 1.0) * scale;
}

static void use_isa(int isa) {
    char err[200];
    assert_int_equal(gs_kernels_init(gs_isa_name((gs_isa)isa), err, sizeof err), GS_OK);
}

static void assert_near(double got, double want, double rel, double abs_tol) {
    if (!(fabs(got - want) <= rel * fabs(want) + abs_tol))
        fail_msg("%s: %.9g, expected %.9g", gs_isa_name(gs_kernels_isa()), got, want);
}

#define FOR_EACH_ISA(isa)                                                                          \
    for (int isa = 0; isa < GS_ISA_COUNT; isa++)                                                   \
        if (gs_isa_supported((gs_isa)isa))

static void test_gated(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        use_isa(isa);
        for (int32_t n = 1; n <= 40; n++) {
            float g[40], u[40], s[41], e[41];
            for (int32_t i = 0; i < n; i++) {
                g[i] = rnd_float(n % 3 == 0 ? 120.0f : 6.0f);
                u[i] = rnd_float(2.0f);
            }
            s[n] = e[n] = 7.0f;
            gs_silu_mul(s, g, u, n);
            gs_gelu_mul(e, g, u, n);
            for (int32_t i = 0; i < n; i++) {
                double x = (double)g[i], up = (double)u[i];
                assert_near((double)s[i], x / (1.0 + exp(-x)) * up, 2e-6, 1e-30);
                double t = tanh(0.7978845608 * (x + 0.044715 * x * x * x));
                assert_near((double)e[i], 0.5 * x * (1.0 + t) * up, 4e-6, 2e-6);
            }
            assert_true(s[n] == 7.0f && e[n] == 7.0f); /* nothing past the end */
            gs_silu_mul(g, g, u, n);                   /* in place */
            for (int32_t i = 0; i < n; i++)
                assert_true(g[i] == s[i]);
        }
    }
}

static void test_gelu(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        use_isa(isa);
        for (int32_t n = 1; n <= 70; n++) {
            float x[71], y[71];
            for (int32_t i = 0; i < n; i++)
                x[i] = y[i] = rnd_float(n % 7 == 0 ? 30.0f : 6.0f);
            y[n] = 7.0f;
            gs_gelu(y, n);
            for (int32_t i = 0; i < n; i++)
                assert_near((double)y[i], 0.5 * (double)x[i] * (1 + erf((double)x[i] / sqrt(2.0))),
                            1e-6, 3e-6);
            assert_true(y[n] == 7.0f);
        }
        float odd[5] = {INFINITY, -INFINITY, NAN, 1e30f, -1e30f};
        gs_gelu(odd, 5);
        assert_true(odd[0] == INFINITY || odd[0] > 1e38f);
        assert_near((double)odd[1], 0, 0, 3e-6);
        assert_near((double)odd[2], 0, 0, 3e-6);
        assert_near((double)odd[3], 1e30, 1e-6, 0);
        assert_near((double)odd[4], 0, 0, 3e-6);
    }
}

static void test_add_scaled(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        use_isa(isa);
        for (int32_t n = 1; n <= 40; n++) {
            float x[40], y[41], was[40];
            for (int32_t i = 0; i < n; i++) {
                x[i] = rnd_float(3.0f);
                y[i] = was[i] = rnd_float(3.0f);
            }
            y[n] = 7.0f;
            gs_add_scaled(y, x, 0.37f, n);
            for (int32_t i = 0; i < n; i++)
                assert_near((double)y[i], (double)was[i] + (double)0.37f * (double)x[i], 2e-7,
                            5e-7);
            assert_true(y[n] == 7.0f);
        }
    }
}

static void test_softcap(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        use_isa(isa);
        for (int32_t n = 1; n <= 40; n++) {
            float x[41], y[41], cap = n % 2 ? 30.0f : 2.0f;
            for (int32_t i = 0; i < n; i++)
                x[i] = y[i] = rnd_float(n % 5 == 0 ? 1e6f : 50.0f);
            y[n] = 7.0f;
            gs_softcap(y, n, cap);
            for (int32_t i = 0; i < n; i++)
                assert_near((double)y[i], (double)cap * tanh((double)x[i] / (double)cap), 1e-6,
                            3e-7 * (double)cap);
            assert_true(y[n] == 7.0f);
        }
        float odd[3] = {INFINITY, -INFINITY, NAN};
        gs_softcap(odd, 3, 30.0f);
        assert_true(odd[0] == 30.0f && odd[1] == -30.0f && isnan(odd[2]));
    }
}

static void test_layernorm(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        use_isa(isa);
        for (int32_t k = 1; k <= 70; k++) {
            float x[71], w[71], b[71], y[71];
            double mean = 0, square = 0;
            for (int32_t i = 0; i < k; i++) {
                x[i] = 3.0f + rnd_float(2.0f);
                w[i] = rnd_float(2.0f);
                b[i] = rnd_float(1.0f);
                mean += (double)x[i] / k;
            }
            for (int32_t i = 0; i < k; i++)
                square += ((double)x[i] - mean) * ((double)x[i] - mean);
            y[k] = 7.0f;
            gs_layernorm(y, x, w, b, k, 1e-5f);
            for (int32_t i = 0; i < k; i++)
                assert_near((double)y[i],
                            ((double)x[i] - mean) / sqrt(square / k + 1e-5) * (double)w[i] +
                                (double)b[i],
                            2e-6, k == 1 ? 2e-3 : 1e-5); /* one value: noise over sqrt(eps) */
            assert_true(y[k] == 7.0f);
            gs_layernorm(x, x, w, b, k, 1e-5f); /* in place */
            for (int32_t i = 0; i < k; i++)
                assert_true(x[i] == y[i]);
        }
    }
}

static void test_gated_extremes(void **state) {
    (void)state;
    const float g[10] = {1e30f, -1e30f, INFINITY, -INFINITY, NAN,
                         88.0f, -88.0f, 0.0f,     -0.0f,     1e-40f};
    float u[10], out[10];
    for (int i = 0; i < 10; i++)
        u[i] = 1.0f;
    FOR_EACH_ISA(isa) {
        use_isa(isa);
        gs_silu_mul(out, g, u, 10);
        for (int i = 0; i < 10; i++)
            assert_true(out[i] == out[i]); /* no NaN */
        assert_near((double)out[0], 1e30, 1e-6, 0.0);
        assert_near((double)out[1], 0.0, 0.0, 1e-30);
        assert_near((double)out[3], 0.0, 0.0, 1e-30);
        gs_gelu_mul(out, g, u, 10);
        for (int i = 0; i < 10; i++)
            assert_true(out[i] == out[i]); /* no NaN */
        assert_near((double)out[0], 1e30, 1e-6, 0.0);
        assert_near((double)out[1], 0.0, 0.0, 1e-6);
    }
}

static void test_rope(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        use_isa(isa);
        for (int32_t n_rot = 2; n_rot <= 128; n_rot += 2) {
            float x[130], y[130], c[64], s[64];
            for (int32_t i = 0; i < 130; i++)
                x[i] = rnd_float(3.0f);
            for (int32_t i = 0; i < n_rot / 2; i++) {
                double a = 7.0 * pow(10000.0, -2.0 * i / n_rot);
                c[i] = (float)cos(a);
                s[i] = (float)sin(a);
            }
            for (int neox = 0; neox < 2; neox++) {
                for (int32_t i = 0; i < 130; i++)
                    y[i] = x[i];
                gs_rope(y, c, s, n_rot, neox);
                for (int32_t i = 0; i < n_rot / 2; i++) {
                    int32_t ia = neox ? i : 2 * i, ib = neox ? i + n_rot / 2 : 2 * i + 1;
                    double a = (double)x[ia], b = (double)x[ib], cc = (double)c[i],
                           ss = (double)s[i];
                    assert_near((double)y[ia], a * cc - b * ss, 1e-6, 1e-6);
                    assert_near((double)y[ib], a * ss + b * cc, 1e-6, 1e-6);
                }
                for (int32_t i = n_rot; i < 130; i++)
                    assert_true(y[i] == x[i]);
            }
        }
    }
}

static void test_logsumexp(void **state) {
    (void)state;
    static const int32_t ns[] = {1, 2, 7, 8, 9, 1000, 2048, 2049, 49152, 151937};
    float *x = malloc(sizeof *x * 151937);
    assert_non_null(x);
    for (int32_t i = 0; i < 151937; i++)
        x[i] = rnd_float(12.0f);
    FOR_EACH_ISA(isa) {
        use_isa(isa);
        for (size_t k = 0; k < sizeof ns / sizeof ns[0]; k++) {
            double m = -INFINITY, sum = 0.0;
            for (int32_t i = 0; i < ns[k]; i++)
                m = fmax(m, (double)x[i]);
            for (int32_t i = 0; i < ns[k]; i++)
                sum += exp((double)x[i] - m);
            float max, lse;
            gs_logsumexp(x, ns[k], &max, &lse);
            assert_true((double)max == m);
            assert_near((double)lse, log(sum), 2e-6, 2e-6);
        }
        float one[3] = {-1e30f, 3.0f, -INFINITY}, max, lse;
        gs_logsumexp(one, 3, &max, &lse);
        assert_true(max == 3.0f && fabsf(lse) < 1e-6f);
    }
    free(x);
}

static void test_argmax(void **state) {
    (void)state;
    static const int32_t ns[] = {1, 2, 7, 8, 9, 15, 16, 17, 40, 1001};
    float x[1001];
    FOR_EACH_ISA(isa) {
        use_isa(isa);
        bool finite;
        for (size_t k = 0; k < sizeof ns / sizeof ns[0]; k++) {
            for (int32_t at = 0; at < ns[k]; at++) {
                for (int32_t i = 0; i < ns[k]; i++)
                    x[i] = -2.0f - (float)(i % 3);
                x[at] = -1.0f;
                x[ns[k] - 1] = -1.0f; /* a tie: the lower one */
                assert_int_equal(gs_argmax(x, ns[k], &finite), at);
                assert_true(finite);
                x[at] = NAN;
                int32_t got = gs_argmax(x, ns[k], &finite);
                assert_false(finite);
                if (at != ns[k] - 1)
                    assert_int_equal(got, ns[k] - 1);
                x[at] = INFINITY;
                assert_int_equal(gs_argmax(x, ns[k], &finite), at);
                assert_false(finite);
            }
        }
        for (int32_t i = 0; i < 40; i++)
            x[i] = -INFINITY;
        assert_int_equal(gs_argmax(x, 40, &finite), 0);
        assert_false(finite);
        x[0] = NAN;
        assert_int_equal(gs_argmax(x, 40, &finite), 1);
        assert_int_equal(gs_argmax(x, 1, &finite), 0);
    }
}

static void test_rmsnorm(void **state) {
    (void)state;
    FOR_EACH_ISA(isa) {
        use_isa(isa);
        for (int32_t k = 1; k <= 70; k++) {
            float x[70], w[70], y[71];
            double ss = 0.0;
            for (int32_t i = 0; i < k; i++) {
                x[i] = rnd_float(5.0f);
                w[i] = rnd_float(2.0f);
                ss += (double)x[i] * (double)x[i];
            }
            y[k] = 7.0f;
            gs_rmsnorm(y, x, w, k, 1e-6f);
            for (int32_t i = 0; i < k; i++)
                assert_near((double)y[i], (double)x[i] * (double)w[i] / sqrt(ss / k + 1e-6), 2e-6,
                            1e-30);
            assert_true(y[k] == 7.0f);
        }
    }
}

int main(void) {
    gs_rng_seed(&g_rng, 7);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gated),     cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_layernorm), cmocka_unit_test(test_gated_extremes),
        cmocka_unit_test(test_rope),      cmocka_unit_test(test_logsumexp),
        cmocka_unit_test(test_argmax),    cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_softcap),   cmocka_unit_test(test_add_scaled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
