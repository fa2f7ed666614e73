/* Paged attention against a naive double-precision attention over unpaged keys and values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"
#include "kernels/attn.h"
#include "kernels/attn_impl.h"
#include "kernels/kernels.h"

#define N_LAYERS 2

static gs_rng rng;
static uint64_t fuzz_seed; /* of a random shape, for the message when it fails; 0: none */

static float uniform(float range) {
    return (float)(gs_rng_unit(&rng) * 2 - 1) * range;
}

/* Keys and values of one sequence as plain arrays beside the pages that hold the same. */
typedef struct fixture {
    gs_kv_type type;
    gs_kv_layout l;
    int n_tokens;
    uint32_t *blocks;
    float *k, *v; /* [n_tokens][n_kv_heads][head_dim] of layer 1, as the pages have them */
    void *scratch;
} fixture;

/* The type that fixtures get; each_isa() goes through all of them. */
static gs_kv_type kv_type;
/* What scores are capped at by check_item; 0: not. */
static float softcap;

/* Element (t, d) of the page of a kv head, read as kernels/attn.h describes it. */
static float page_value(const gs_kv_layout *l, const uint8_t *page, int is_v, int t, int d) {
    int bt = l->block_tokens, hd = l->head_dim, u = l->type == GS_KV_F16 ? 1 : 2;
    if (l->type == GS_KV_Q8)
        u = 4;
    int at = is_v ? (t / u * hd + d) * u + t % u : (d / u * bt + t) * u + d % u;
    if (is_v)
        page += l->page_bytes;
    if (l->type != GS_KV_Q8) {
        uint16_t h;
        memcpy(&h, page + 2 * at, 2);
        return l->type == GS_KV_F16 ? gs_f16_to_f32(h) : gs_bf16_to_f32(h);
    }
    int16_t scale;
    memcpy(&scale, page + bt * hd + 2 * t, 2);
    return is_v ? (float)(int8_t)page[at] * exp2f((float)scale / 1024)
                : (float)(page[at] - 128) * gs_bf16_to_f32((uint16_t)scale);
}

/* x[head_dim] becomes what was kept of it, which may be no further off than the type says. */
static void read_back(const fixture *f, int t, int h, int is_v, float *x) {
    const gs_kv_layout *l = &f->l;
    const uint8_t *page = gs_kv_page(l, 1, f->blocks[t / l->block_tokens], h);
    float max = 0;
    for (int d = 0; d < l->head_dim; d++)
        max = fmaxf(max, fabsf(x[d]));
    for (int d = 0; d < l->head_dim; d++) {
        float got = page_value(l, page, is_v, t % l->block_tokens, d);
        float bound = f->type == GS_KV_F16    ? fabsf(x[d]) * 0x1p-11f + 0x1p-25f
                      : f->type == GS_KV_BF16 ? fabsf(x[d]) * 0x1p-8f
                                              : max * (1.01f / 254);
        if (!(fabsf(got - x[d]) <= bound))
            fail_msg("%s: %c of position %d, %d: %g became %g", gs_kv_type_name(f->type),
                     is_v ? 'V' : 'K', t, d, (double)x[d], (double)got);
        x[d] = got;
    }
}

static void fixture_init(fixture *f, int n_kv, int head_dim, int block_tokens, int n_tokens) {
    f->type = kv_type;
    uint32_t n_seq = (uint32_t)((n_tokens + block_tokens - 1) / block_tokens), n = n_seq * 2 + 1;
    assert_int_equal(gs_kv_layout_init(&f->l, f->type, N_LAYERS, n_kv, head_dim, block_tokens, n),
                     GS_OK);
    f->l.base = gs_pages_alloc(f->l.total_bytes);
    assert_non_null(f->l.base);
    /* Whatever was in the pages before must not matter: NaN everywhere. */
    memset(f->l.base, 0xff, f->l.total_bytes);
    f->n_tokens = n_tokens;
    f->blocks = gs_array(n, sizeof *f->blocks);
    for (uint32_t i = 0; i < n; i++)
        f->blocks[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = (uint32_t)gs_rng_below(&rng, i + 1), t = f->blocks[i];
        f->blocks[i] = f->blocks[j];
        f->blocks[j] = t;
    }
    size_t row = (size_t)n_kv * (size_t)head_dim, all = (size_t)n_tokens * row;
    f->k = gs_array(all, sizeof *f->k);
    f->v = gs_array(all, sizeof *f->v);
    f->scratch = gs_aligned(64, gs_attn_scratch_bytes(&f->l));
    assert_true(f->blocks && f->k && f->v && f->scratch);
    for (size_t i = 0; i < all; i++) {
        f->k[i] = uniform(2);
        f->v[i] = uniform(1);
    }
    for (int t = 0; t < n_tokens; t++)
        for (int h = 0; h < n_kv; h++) {
            float *k = f->k + (size_t)t * row + (size_t)(h * head_dim);
            float *v = f->v + (size_t)t * row + (size_t)(h * head_dim);
            gs_kv_prefetch(&f->l, 1, f->blocks, t, h);
            gs_kv_store(&f->l, 1, f->blocks, t, h, k, NULL);
            gs_kv_store(&f->l, 1, f->blocks, t, h, NULL, v);
            read_back(f, t, h, 0, k);
            read_back(f, t, h, 1, v);
        }
}

/*
 * How far an output may be off, values being within [-1, 1]: rounding of sums for f16, and for bf16
 * where it is widened; else of queries (to 8 bits, with scores of about 1) and of weights too.
 */
static double bound_of(gs_kv_type type) {
    const gs_attn_ops *ops = gs_attn_ops_get();
    if (type == GS_KV_F16 || ops == &gs_attn_ops_ref)
        return 3e-6;
#if defined(__x86_64__)
    if (type == GS_KV_BF16)
        return ops == &gs_attn_ops_avx512bf16 ? 0.01 : 3e-6;
#endif
    return 0.02;
}

static void fixture_free(fixture *f) {
    gs_pages_free(f->l.base, f->l.total_bytes);
    gs_free(f->blocks);
    gs_free(f->k);
    gs_free(f->v);
    gs_free(f->scratch);
}

static void naive(const fixture *f, const float *q, int kv_head, int p, int window, float scale,
                  double *out) {
    int hd = f->l.head_dim, first = window > 0 && p >= window ? p - window + 1 : 0;
    size_t row = (size_t)f->l.n_kv_heads * (size_t)hd, head = (size_t)(kv_head * hd);
    double *w = gs_array((size_t)p + 1, sizeof *w), max = -1e300, sum = 0;
    assert_non_null(w);
    for (int t = first; t <= p; t++) {
        double s = 0;
        for (int d = 0; d < hd; d++)
            s += (double)q[d] * (double)f->k[(size_t)t * row + head + (size_t)d];
        w[t] = s * (double)scale;
        if (softcap > 0)
            w[t] = (double)softcap * tanh(w[t] / (double)softcap);
        max = fmax(max, w[t]);
    }
    for (int t = first; t <= p; t++)
        sum += w[t] = exp(w[t] - max);
    for (int d = 0; d < hd; d++) {
        out[d] = 0;
        for (int t = first; t <= p; t++)
            out[d] += w[t] / sum * (double)f->v[(size_t)t * row + head + (size_t)d];
    }
    gs_free(w);
}

#define ALL_KEYS (-1) /* as a window: every query sees everything */

/* The last n_q positions of every kv head; the largest difference must be rounding. */
static void check_item(const fixture *f, int n_group, int n_q, int window) {
    int hd = f->l.head_dim, n_kv = f->l.n_kv_heads, ld = n_kv * n_group * hd + 16;
    size_t n = (size_t)n_q * (size_t)ld;
    float *q = gs_array(n, sizeof *q), *out = gs_calloc(n, sizeof *out);
    double want[GS_ATTN_MAX_HEAD];
    assert_true(q && out);
    for (size_t i = 0; i < n; i++)
        q[i] = uniform(2);
    for (int h = 0; h < n_kv; h++) {
        gs_attn_item it = {.q = q + h * n_group * hd,
                           .out = out + h * n_group * hd,
                           .ldq = ld,
                           .ldo = ld,
                           .blocks = f->blocks,
                           .layer = 1,
                           .kv_head = h,
                           .n_group = n_group,
                           .pos = f->n_tokens - n_q,
                           .n_q = n_q,
                           .window = window > 0 ? window : 0,
                           .n_keys = window == ALL_KEYS ? f->n_tokens : 0,
                           .scale = 1.0f / sqrtf((float)hd),
                           .softcap = softcap};
        gs_attn(&f->l, &it, f->scratch);
        for (int t = 0; t < n_q; t++)
            for (int g = 0; g < n_group; g++) {
                size_t at = (size_t)(t * ld + (h * n_group + g) * hd);
                naive(f, q + at, h, it.n_keys ? it.n_keys - 1 : it.pos + t, it.window, it.scale,
                      want);
                for (int d = 0; d < hd; d++)
                    if (!(fabs((double)out[at + (size_t)d] - want[d]) < bound_of(f->type)))
                        fail_msg("%s %s hd %d bt %d n_q %d group %d window %d seed %llu: "
                                 "[%d][%d][%d] is "
                                 "%g, not %g",
                                 gs_isa_name(gs_kernels_isa()), gs_kv_type_name(f->type), hd,
                                 f->l.block_tokens, n_q, n_group, window,
                                 (unsigned long long)fuzz_seed, t, h * n_group + g, d,
                                 (double)out[at + (size_t)d], want[d]);
            }
    }
    for (int t = 0; t < n_q; t++) /* the gap after each row stays untouched */
        for (int i = ld - 16; i < ld; i++)
            assert_true(out[t * ld + i] == 0.0f);
    gs_free(q);
    gs_free(out);
}

/* Runs fn once per instruction set that this CPU has and type of the pages. */
static void each_isa(void (*fn)(void)) {
    char err[256];
    int n = 0;
    for (int isa = 0; isa < GS_ISA_COUNT; isa++)
        if (gs_isa_supported((gs_isa)isa)) {
            assert_int_equal(gs_kernels_init(gs_isa_name((gs_isa)isa), err, sizeof err), GS_OK);
            for (int type = 0; type < GS_KV_TYPE_COUNT; type++, n++) {
                kv_type = (gs_kv_type)type;
                gs_rng_seed(&rng, 42);
                fn();
            }
        }
    assert_true(n > 0);
}

static void shapes(void) {
    static const int dims[] = {16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256};
    static const int sizes[] = {16, 32, 48, 64, 256}, groups[] = {1, 3, 8},
                     queries[] = {1, 2, 7, 25, 40};
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
        for (size_t s = d % 2; s < 5; s += 2)
            for (size_t i = 0; i < 5; i++) {
                fixture f;
                int n_q = queries[i], before = (int)gs_rng_below(&rng, 150);
                fixture_init(&f, 2, dims[d], sizes[s], n_q + before);
                int n_group = groups[gs_rng_below(&rng, 3)];
                check_item(&f, n_group, n_q, 0);
                check_item(&f, 1, n_q, ALL_KEYS);
                check_item(&f, n_group, n_q, 1 + (int)gs_rng_below(&rng, 100));
                fixture_free(&f);
            }
}

static void test_shapes(void **state) {
    (void)state;
    each_isa(shapes);
}

/* Every count of queries and every window around the page borders. */
static void borders(void) {
    for (int n_q = 1; n_q <= 40; n_q++) {
        fixture f;
        fixture_init(&f, 1, 64, 32, 64 + n_q % 3);
        check_item(&f, 3, n_q, 0);
        check_item(&f, 3, n_q, n_q);
        check_item(&f, 3, n_q, ALL_KEYS);
        fixture_free(&f);
    }
    fixture f;
    fixture_init(&f, 1, 32, 16, 70);
    for (int window = 1; window <= 75; window++)
        check_item(&f, 2, 9, window);
    fixture_free(&f);
}

static void test_borders(void **state) {
    (void)state;
    each_isa(borders);
}

/* Scores of some units, capped at 1 and at 20: across several chunks, with a window, of all keys.
 */
static void capped(void) {
    static const float caps[] = {1.0f, 20.0f};
    for (int i = 0; i < 2; i++) {
        fixture f;
        fixture_init(&f, 2, i ? 256 : 64, 32, 300);
        softcap = caps[i];
        check_item(&f, 2, 5, 0);
        check_item(&f, 3, 9, 77);
        check_item(&f, 1, 2, ALL_KEYS);
        softcap = 0;
        fixture_free(&f);
    }
}

static void test_softcap(void **state) {
    (void)state;
    each_isa(capped);
}

/* One query at a time, heads apart, or all at once: the same bits. */
static void invariance(void) {
    enum { HD = 64, GROUP = 3, NQ = 37, LD = HD * GROUP };
    static float q[NQ * LD], all[NQ * LD], one[NQ * LD];
    fixture f;
    fixture_init(&f, 1, HD, 32, 200);
    for (int i = 0; i < NQ * LD; i++)
        q[i] = uniform(3);
    for (int window = 0; window <= 50; window += 50) {
        gs_attn_item it = {.q = q,
                           .out = all,
                           .ldq = LD,
                           .ldo = LD,
                           .blocks = f.blocks,
                           .layer = 1,
                           .n_group = GROUP,
                           .pos = 200 - NQ,
                           .n_q = NQ,
                           .window = window,
                           .scale = 0.125f};
        gs_attn(&f.l, &it, f.scratch);
        for (int t = 0; t < NQ; t++)
            for (int g = 0; g < GROUP; g++) {
                gs_attn_item single = it;
                single.q = q + t * LD + g * HD;
                single.out = one + t * LD + g * HD;
                single.n_group = single.n_q = 1;
                single.pos = it.pos + t;
                gs_attn(&f.l, &single, f.scratch);
            }
        assert_memory_equal(all, one, sizeof all);
    }
    fixture_free(&f);
}

static void test_invariance(void **state) {
    (void)state;
    each_isa(invariance);
}

static void exp2_bound(void) {
    const gs_attn_ops *ops = gs_attn_ops_get();
    float x[16], y[16];
    for (double v = -125.9; v <= 0.5; v += 0.0123) {
        for (int i = 0; i < 16; i++)
            x[i] = y[i] = (float)(v + i * 1e-4);
        ops->exp2(y, 16);
        for (int i = 0; i < 16; i++)
            assert_true(fabs((double)y[i] / exp2((double)x[i]) - 1) < 4e-7);
    }
    for (int i = 0; i < 16; i++)
        y[i] = i % 2 ? -1e30f : 0.0f;
    ops->exp2(y, 16);
    for (int i = 0; i < 16; i++)
        assert_true(y[i] == (i % 2 ? 0.0f : 1.0f));
    y[3] = NAN;
    ops->exp2(y, 16);
    assert_true(isnan(y[3]));
}

static void test_exp2(void **state) {
    (void)state;
    each_isa(exp2_bound);
}

/* All instruction sets round alike; f16 saturates instead of storing infinities. */
static void store_rounding(void) {
    enum { N = 48 };
    const gs_attn_ops *ops = gs_attn_ops_get();
    uint16_t out[N], want[N];
    int8_t code[N], code_want[N];
    float x[N];
    for (int round = 0; round < 2000; round++) {
        for (int i = 0; i < N; i++) {
            uint32_t u = (uint32_t)gs_rng_u64(&rng);
            if (round % 2) /* mostly near f16's range */
                u = (u & 0x807fffffu) | (uint32_t)(100 + gs_rng_below(&rng, 45)) << 23;
            memcpy(&x[i], &u, sizeof u);
            if (!isfinite(x[i]) || fabsf(x[i]) < 0x1p-126f) /* bf16: subnormal ones may become 0 */
                x[i] = INFINITY;
        }
        ops->to_f16(out, x, N);
        for (int i = 0; i < N; i++)
            want[i] = gs_attn_half_from_float(x[i]);
        assert_memory_equal(out, want, sizeof out);
        ops->to_bf16(out, x, N);
        for (int i = 0; i < N; i++)
            want[i] = gs_bf16_from_f32(x[i]);
        assert_memory_equal(out, want, sizeof out);
        for (int i = 0; i < N; i++)
            x[i] = uniform(127);
        float max = 0;
        for (int i = 0; i < N; i++)
            max = fmaxf(max, fabsf(x[i]));
        assert_true(ops->max_abs(x, N) == max);
        ops->to_s8(code, x, 0.75f, N);
        gs_attn_ops_ref.to_s8(code_want, x, 0.75f, N);
        assert_memory_equal(code, code_want, sizeof code);
    }
    x[0] = 65504.0f, x[1] = -1e30f, x[2] = 0x1p-24f, x[3] = 1.0f, x[4] = NAN;
    ops->to_f16(out, x, N);
    assert_int_equal(out[0], 0x7bff);
    assert_int_equal(out[1], 0xfbff);
    assert_int_equal(out[2], 1);
    assert_int_equal(out[3], 0x3c00);
    assert_true((out[4] & 0x7fff) > 0x7c00);
    ops->to_bf16(out, x, N);
    assert_int_equal(out[3], 0x3f80);
    assert_true((out[4] & 0x7fff) > 0x7f80);
}

static void test_store(void **state) {
    (void)state;
    each_isa(store_rounding);
}

/* Many rows at once are the bytes of one head of one row after the other. */
static void store_rows(void) {
    enum { HD = 48, BT = 32, HEADS = 3, BLOCKS = 4, N = 96, LD = 2 * HEADS * HD + 5 };
    static const uint32_t blocks[BLOCKS] = {2, 0, 3, 1};
    static const struct {
        int pos, n;
    } runs[] = {{0, 1}, {0, 2}, {1, 1}, {1, 2}, {31, 2}, {30, 5}, {0, N}, {7, N - 7}, {63, 33}};
    static float kv[N * LD];
    gs_kv_layout one, all;
    assert_int_equal(gs_kv_layout_init(&one, kv_type, 2, HEADS, HD, BT, BLOCKS), GS_OK);
    all = one;
    one.base = gs_pages_alloc(one.total_bytes);
    all.base = gs_pages_alloc(all.total_bytes);
    assert_true(one.base && all.base);
    for (int i = 0; i < N * LD; i++)
        kv[i] = uniform(3);
    for (size_t r = 0; r < sizeof runs / sizeof runs[0]; r++) {
        const float *k = kv, *v = kv + HEADS * HD;
        gs_kv_store_rows(&all, 1, blocks, runs[r].pos, runs[r].n, k, v, LD);
        for (int i = 0; i < runs[r].n; i++)
            for (int h = 0; h < HEADS; h++)
                gs_kv_store(&one, 1, blocks, runs[r].pos + i, h, k + i * LD + h * HD,
                            v + i * LD + h * HD);
        assert_memory_equal(all.base, one.base, one.total_bytes);
    }
    gs_pages_free(one.base, one.total_bytes);
    gs_pages_free(all.base, all.total_bytes);
}

static void test_store_rows(void **state) {
    (void)state;
    each_isa(store_rows);
}

/* A NaN in one query row stays in that row. */
static void nan_stays(void) {
    fixture f;
    float q[4 * 64], out[4 * 64];
    fixture_init(&f, 1, 64, 16, 40);
    for (int i = 0; i < 4 * 64; i++)
        q[i] = i / 64 == 1 ? NAN : uniform(1);
    gs_attn_item it = {.q = q,
                       .out = out,
                       .ldq = 64,
                       .ldo = 64,
                       .blocks = f.blocks,
                       .layer = 1,
                       .n_group = 1,
                       .pos = 36,
                       .n_q = 4,
                       .scale = 1};
    gs_attn(&f.l, &it, f.scratch);
    for (int i = 0; i < 4 * 64; i++)
        assert_int_equal(isnan(out[i]) != 0, i / 64 == 1);
    fixture_free(&f);
}

static void test_nan(void **state) {
    (void)state;
    each_isa(nan_stays);
}

/* The first positions of a block, all layers and heads, and nothing of any other block. */
static void test_copy(void **state) {
    (void)state;
    enum { HD = 32, BT = 16, HEADS = 2, LAYERS = 3, BLOCKS = 4 };
    char err[256];
    assert_int_equal(gs_kernels_init(NULL, err, sizeof err), GS_OK);
    for (int type = 0; type < GS_KV_TYPE_COUNT; type++)
        for (int n = 0; n <= BT; n++) {
            gs_kv_layout l;
            assert_int_equal(gs_kv_layout_init(&l, (gs_kv_type)type, LAYERS, HEADS, HD, BT, BLOCKS),
                             GS_OK);
            size_t page = type == GS_KV_Q8 ? HD * BT + 64 : HD * BT * 2;
            assert_int_equal(gs_kv_block_bytes(&l), LAYERS * HEADS * 2 * page);
            l.base = gs_pages_alloc(l.total_bytes);
            uint8_t *was = gs_array(l.total_bytes, 1);
            assert_true(l.base && was);
            for (size_t i = 0; i < l.total_bytes; i++)
                was[i] = l.base[i] = (uint8_t)(gs_rng_below(&rng, 120)); /* finite in all types */
            gs_kv_copy(&l, 3, 1, n);
            for (size_t i = 0; i < l.total_bytes; i++)
                if (i / (page * 2 * HEADS) % BLOCKS != 3)
                    assert_int_equal(l.base[i], was[i]);
            for (int i = 0; i < LAYERS * HEADS * n * HD; i++) {
                int d = i % HD, t = i / HD % n, h = i / HD / n % HEADS, y = i / HD / n / HEADS;
                for (int is_v = 0; is_v < 2; is_v++)
                    assert_true(page_value(&l, gs_kv_page(&l, y, 3, h), is_v, t, d) ==
                                page_value(&l, gs_kv_page(&l, y, 1, h), is_v, t, d));
            }
            gs_pages_free(l.base, l.total_bytes);
            gs_free(was);
        }
}

/* Extreme rows of keys and values keep their scale. */
static void test_q8_range(void **state) {
    (void)state;
    enum { HD = 16 };
    static const float sizes[] = {0, 1e-30f, 2e-8f, 1e-3f, 1, 300, 1e6f, 1e9f};
    char err[256];
    gs_kv_layout l;
    uint32_t block = 0;
    assert_int_equal(gs_kernels_init(NULL, err, sizeof err), GS_OK);
    assert_int_equal(gs_kv_layout_init(&l, GS_KV_Q8, 1, 1, HD, 16, 1), GS_OK);
    l.base = gs_pages_alloc(l.total_bytes);
    assert_non_null(l.base);
    for (int i = 0; i < (int)(sizeof sizes / sizeof sizes[0]); i++) {
        float x[HD];
        for (int d = 0; d < HD; d++)
            x[d] = d == 3 ? -sizes[i] : uniform(sizes[i]);
        gs_kv_store(&l, 0, &block, i, 0, x, x);
        for (int d = 0; d < HD; d++)
            for (int is_v = 0; is_v < 2; is_v++) {
                float got = page_value(&l, l.base, is_v, i, d);
                /* V's scale has a least value, 2^-32. */
                float bound = sizes[i] * 1.01f / 254 + (is_v ? 0x1p-33f : 0);
                assert_true(fabsf(got - x[d]) <= bound);
            }
    }
    gs_pages_free(l.base, l.total_bytes);
}

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *s = getenv(name);
    return s && *s ? strtoull(s, NULL, 10) : otherwise;
}

static void random_shape(void) {
    static const int sizes[] = {16, 32, 64, 128};
    gs_rng_seed(&rng, fuzz_seed);
    fixture f;
    int n_q = 1 + (int)gs_rng_below(&rng, gs_rng_below(&rng, 2) ? 4 : 70);
    int before = (int)gs_rng_below(&rng, 1 + gs_rng_below(&rng, 600));
    fixture_init(&f, 1 + (int)gs_rng_below(&rng, 3), 16 * (1 + (int)gs_rng_below(&rng, 16)),
                 sizes[gs_rng_below(&rng, 4)], n_q + before);
    int n_group = 1 + (int)gs_rng_below(&rng, 8);
    int window = gs_rng_below(&rng, 2) ? 0 : 1 + (int)gs_rng_below(&rng, 300);
    check_item(&f, n_group, n_q, window);
    fixture_free(&f);
}

/* Random shapes: a few, or for KERNEL_FUZZ_SECONDS; a failure comes again from its seed. */
static void test_random_shapes(void **state) {
    (void)state;
    time_t until = time(NULL) + (time_t)setting("KERNEL_FUZZ_SECONDS", 0);
    uint64_t first = setting("KERNEL_FUZZ_SEED", 1);
    char err[256];
    for (fuzz_seed = first; fuzz_seed < first + 20 || time(NULL) < until; fuzz_seed++) {
        for (int isa = 0; isa < GS_ISA_COUNT; isa++)
            if (gs_isa_supported((gs_isa)isa)) {
                assert_int_equal(gs_kernels_init(gs_isa_name((gs_isa)isa), err, sizeof err), GS_OK);
                for (int type = 0; type < GS_KV_TYPE_COUNT; type++) {
                    kv_type = (gs_kv_type)type;
                    random_shape();
                }
            }
    }
    print_message("%llu random shapes\n", (unsigned long long)(fuzz_seed - first));
    fuzz_seed = 0;
}

/* An item cut at segments and merged again has the bits of the whole, wherever it is cut. */
static void cuts(void) {
    enum { HD = 32, GROUP = 3, N = 2100, MAX_SEG = 5 };
    fixture f;
    fixture_init(&f, 1, HD, 32, N);
    int seg = gs_attn_segment(&f.l), n_seg = (N - 1) / seg + 1;
    size_t ld = gs_attn_part_floats(&f.l);
    assert_int_equal(seg, 512);
    assert_int_equal(n_seg, MAX_SEG);
    float q[GROUP * HD], whole[GROUP * HD], cut[GROUP * HD];
    float *part = gs_array(MAX_SEG * GROUP * ld, sizeof *part);
    assert_non_null(part);
    for (int i = 0; i < GROUP * HD; i++)
        q[i] = uniform(3);
    for (int window = 0; window <= 1300; window += 650) {
        gs_attn_item it = {.q = q,
                           .out = whole,
                           .blocks = f.blocks,
                           .layer = 1,
                           .n_group = GROUP,
                           .pos = N - 1,
                           .n_q = 1,
                           .window = window,
                           .scale = 0.2f};
        gs_attn(&f.l, &it, f.scratch);
        for (int at = 1; at < n_seg; at++) {
            gs_attn_item head = it, tail = it;
            head.part = part;
            head.seg1 = at;
            tail.part = part + (size_t)(at * GROUP) * ld;
            tail.seg0 = at;
            tail.seg1 = n_seg;
            head.next = &tail;
            gs_attn(&f.l, &head, f.scratch);
            gs_attn(&f.l, &tail, f.scratch);
            for (int g = 0; g < GROUP; g++)
                gs_attn_merge(&f.l, cut + (ptrdiff_t)g * HD, part + (size_t)g * ld, GROUP * ld,
                              n_seg);
            assert_memory_equal(whole, cut, sizeof whole);
        }
    }
    check_item(&f, 2, 3, 0); /* several segments against the truth */
    check_item(&f, 1, 40, 700);
    gs_free(part);
    fixture_free(&f);
}

static void test_cuts(void **state) {
    (void)state;
    each_isa(cuts);
}

static void test_layout_limits(void **state) {
    (void)state;
    gs_kv_layout l;
    assert_int_equal(gs_kv_layout_init(&l, GS_KV_F16, 1, 1, 24, 16, 1), GS_ERR_INVALID);
    assert_int_equal(gs_kv_layout_init(&l, GS_KV_F16, 1, 1, 272, 16, 1), GS_ERR_INVALID);
    assert_int_equal(gs_kv_layout_init(&l, GS_KV_F16, 1, 1, 64, 8, 1), GS_ERR_INVALID);
    assert_int_equal(gs_kv_layout_init(&l, GS_KV_F16, 0, 1, 64, 16, 1), GS_ERR_INVALID);
    assert_int_equal(gs_kv_layout_init(&l, GS_KV_F16, 1, 1, 64, 16, 0), GS_ERR_INVALID);
    assert_int_equal(gs_kv_layout_init(&l, GS_KV_F16, INT32_MAX, INT32_MAX, 256, 1024, UINT32_MAX),
                     GS_ERR_TOO_LARGE);
    assert_int_equal(gs_kv_layout_init(&l, GS_KV_TYPE_COUNT, 1, 1, 64, 16, 1), GS_ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_invariance),    cmocka_unit_test(test_exp2),
        cmocka_unit_test(test_store),         cmocka_unit_test(test_store_rows),
        cmocka_unit_test(test_nan),           cmocka_unit_test(test_copy),
        cmocka_unit_test(test_layout_limits), cmocka_unit_test(test_q8_range),
        cmocka_unit_test(test_softcap),       cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_random_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
