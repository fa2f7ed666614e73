/* The sampler against hand-computed numbers and a naive reference in double precision. */
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
#include "engine/sampler.h"
#include "kernels/kernels.h"

#define MAX_VOCAB 160000

static float row[MAX_VOCAB];
static void *scratch;

static int group_setup(void **state) {
    (void)state;
    char err[256] = "";
    if (gs_kernels_init(NULL, err, sizeof(err)) != 0)
        return -1;
    scratch = malloc(gs_sampler_scratch_bytes(MAX_VOCAB));
    return scratch ? 0 : -1;
}

static int group_teardown(void **state) {
    (void)state;
    free(scratch);
    return 0;
}

static gs_sample run_on(const gs_sampler *s, const float *logits, int32_t n, const int32_t *history,
                        int32_t n_history, int32_t n_prompt) {
    gs_sample out;
    memset(&out, 0xA5, sizeof(out)); /* nothing may be left as it was */
    memcpy(row, logits, (size_t)n * sizeof(float));
    gs_sampler_run(s, row, n, history, n_history, n_prompt, scratch, &out);
    return out;
}

static gs_sample run(const gs_sampler *s, const float *logits, int32_t n) {
    return run_on(s, logits, n, NULL, 0, 0);
}

static gs_sampler greedy(void) {
    gs_sampler s;
    gs_sampler_default(&s);
    s.temperature = 0;
    return s;
}

static void fill_normal(gs_rng *r, float *x, int32_t n, double scale) {
    for (int32_t i = 0; i < n; i++) {
        double u = gs_rng_unit(r) + 1e-12, v = gs_rng_unit(r);
        x[i] = (float)(scale * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
}

/* ---- Greedy, forbidding -------------------------------------------------------------------- */

static void greedy_takes_the_best_and_the_lowest_id_on_ties(void **state) {
    (void)state;
    gs_sampler s = greedy();
    float x[] = {1, 5, -2, 5, 4.999999f};
    assert_int_equal(run(&s, x, 5).token, 1);
    float all_same[100] = {0};
    assert_int_equal(run(&s, all_same, 100).token, 0);
    gs_rng r;
    gs_rng_seed(&r, 7);
    static float big[50000];
    for (int t = 0; t < 50; t++) {
        fill_normal(&r, big, 50000, 3);
        int32_t at = (int32_t)gs_rng_below(&r, 50000);
        big[at] = 100;
        assert_int_equal(run(&s, big, 50000).token, at);
    }
    /* Truncation and seeds change nothing where temperature is 0. */
    s.top_k = 3;
    s.top_p = 0.5f;
    s.seed = 99;
    assert_int_equal(run(&s, x, 5).token, 1);
}

static void bias_of_minus_100_forbids_and_others_add(void **state) {
    (void)state;
    float x[] = {9, 8, 7, 6};
    gs_logit_bias bias[] = {{0, -100}, {1, -100}, {3, 0.5f}, {77, 5}, {-1, 5}};
    gs_sampler s = greedy();
    s.bias = bias;
    s.n_bias = 5;
    assert_int_equal(run(&s, x, 4).token, 2);
    bias[2].bias = 1.5f; /* 6 + 1.5 > 7 */
    assert_int_equal(run(&s, x, 4).token, 3);
    /* Never drawn at any temperature, by any path. */
    for (int path = 0; path < 4; path++) {
        gs_sampler t;
        gs_sampler_default(&t);
        t.temperature = 50;
        t.bias = bias;
        t.n_bias = 2;
        t.top_k = path == 1 ? 4 : 0;
        t.top_p = path == 2 ? 0.9999f : 1;
        t.typical_p = path == 3 ? 0.9999f : 1;
        for (uint64_t seed = 0; seed < 2000; seed++) {
            t.seed = seed;
            int32_t token = run(&t, x, 4).token;
            assert_true(token == 2 || token == 3);
        }
    }
}

static void ignore_eos_never_draws_an_end(void **state) {
    (void)state;
    float x[] = {9, 1, 8, 1};
    int32_t eog[] = {0, 2, 50};
    gs_sampler s = greedy();
    s.eog = eog;
    s.n_eog = 3;
    assert_int_equal(run(&s, x, 4).token, 0);
    s.ignore_eos = true;
    assert_int_equal(run(&s, x, 4).token, 1);
    s.temperature = 100;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        s.seed = seed;
        assert_int_equal(run(&s, x, 4).token % 2, 1);
    }
}

static void only_tokens_of_the_mask_are_drawn(void **state) {
    (void)state;
    float x[70];
    for (int i = 0; i < 70; i++)
        x[i] = (float)i;
    uint32_t mask[3] = {1u << 5 | 1u << 7, 1u << (40 - 32), UINT32_MAX};
    gs_sampler s = greedy();
    s.mask = mask;
    s.n_mask = 66; /* 66..69 have no bits */
    assert_int_equal(run(&s, x, 70).token, 65);
    mask[2] = 0;
    assert_int_equal(run(&s, x, 70).token, 40);
    s.temperature = 1000;
    bool seen[70] = {false};
    for (uint64_t seed = 0; seed < 200; seed++) {
        s.seed = seed;
        seen[run(&s, x, 70).token] = true;
    }
    for (int i = 0; i < 70; i++)
        assert_int_equal(seen[i], i == 5 || i == 7 || i == 40);
    mask[0] = mask[1] = 0;
    assert_int_equal(run(&s, x, 70).err, GS_ERR_INVALID);
}

static void a_row_without_an_allowed_token_is_an_error(void **state) {
    (void)state;
    float x[] = {1, 2};
    gs_logit_bias bias[] = {{0, -100}, {1, -100}};
    gs_sampler s = greedy();
    s.bias = bias;
    s.n_bias = 2;
    assert_int_equal(run(&s, x, 2).err, GS_ERR_INVALID);
    s.temperature = 1;
    assert_int_equal(run(&s, x, 2).err, GS_ERR_INVALID);
}

static void logits_that_are_not_finite_are_an_error(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, -NAN};
    gs_sampler s;
    for (size_t b = 0; b < 4; b++) {
        for (int32_t at = 0; at < 37; at++) {
            float x[37] = {0};
            x[at] = bad[b];
            gs_sampler_default(&s);
            s.n_logprobs = 5;
            gs_sample out = run(&s, x, 37);
            assert_int_equal(out.err, GS_ERR_BACKEND);
            assert_int_equal(out.n_top, 0);
        }
    }
    float most[2] = {3.4e38f, -3.4e38f};
    gs_sampler_default(&s);
    assert_int_equal(run(&s, most, 2).err, 0);
    assert_int_equal(run(&s, most, 2).token, 0);
}

/* ---- Penalties ------------------------------------------------------------------------------ */

/* The logits after penalties, read back through the log-probabilities of forced tokens would be of
 * the raw row; so each is found by what greedy prefers: bias lifts token `id` until it wins. */
static bool beats(const gs_sampler *base, const float *x, int32_t n, const int32_t *h, int32_t nh,
                  int32_t np, int32_t id, int32_t other, float lift) {
    gs_logit_bias bias[16];
    int32_t nb = 0;
    for (int32_t i = 0; i < n; i++) {
        if (i != id && i != other)
            bias[nb++] = (gs_logit_bias){i, -100};
    }
    gs_sampler s = *base;
    s.temperature = 0;
    s.bias = bias;
    s.n_bias = nb;
    float y[16];
    memcpy(y, x, (size_t)n * sizeof(float));
    y[other] = lift; /* `other` is in no history: its logit stays */
    return run_on(&s, y, n, h, nh, np).token == id;
}

static void check_logit(const gs_sampler *s, const float *x, int32_t n, const int32_t *h,
                        int32_t nh, int32_t np, int32_t id, float want) {
    int32_t other = n - 1;
    assert_true(beats(s, x, n, h, nh, np, id, other, want - 1e-4f));
    assert_false(beats(s, x, n, h, nh, np, id, other, want + 1e-4f));
}

static void repetition_penalty_is_as_computed_by_hand(void **state) {
    (void)state;
    float x[] = {2, -2, 3, 0.5f, 0};
    int32_t h[] = {0, 1, 1, 2};
    gs_sampler s = greedy();
    s.repeat_penalty = 2;
    s.repeat_last_n = -1;
    check_logit(&s, x, 5, h, 4, 4, 0, 1);    /* 2 / 2; the prompt counts */
    check_logit(&s, x, 5, h, 4, 4, 1, -4);   /* -2 * 2, once although it occurs twice */
    check_logit(&s, x, 5, h, 4, 4, 2, 1.5f); /* 3 / 2 */
    check_logit(&s, x, 5, h, 4, 4, 3, 0.5f); /* not in the history */
    s.repeat_last_n = 1;                     /* only the last token: 2 */
    check_logit(&s, x, 5, h, 4, 4, 0, 2);
    check_logit(&s, x, 5, h, 4, 4, 2, 1.5f);
    s.repeat_last_n = 0;
    check_logit(&s, x, 5, h, 4, 4, 2, 3);
    s.repeat_last_n = 1000;
    check_logit(&s, x, 5, h, 4, 4, 0, 1);
}

static void presence_and_frequency_count_the_output_only(void **state) {
    (void)state;
    float x[] = {4, 4, 4, 4, 0};
    int32_t h[] = {0, 0, 0, /* output: */ 1, 2, 2, 2};
    gs_sampler s = greedy();
    s.presence_penalty = 0.5f;
    s.frequency_penalty = 0.25f;
    check_logit(&s, x, 5, h, 7, 3, 0, 4); /* in the prompt alone */
    check_logit(&s, x, 5, h, 7, 3, 1, 4 - 0.5f - 0.25f);
    check_logit(&s, x, 5, h, 7, 3, 2, 4 - 0.5f - 3 * 0.25f);
    check_logit(&s, x, 5, h, 7, 3, 3, 4);
    s.presence_penalty = -2;
    s.frequency_penalty = 0;
    check_logit(&s, x, 5, h, 7, 3, 2, 6);
}

static void dry_punishes_what_would_continue_a_repetition(void **state) {
    (void)state;
    float x[] = {5, 5, 5, 5, 0};
    /* ... 0 1 2 3 ... 0 1 2: the suffix "0 1 2" occurred before and was followed by 3. */
    int32_t h[] = {0, 1, 2, 3, 0, 1, 2};
    gs_sampler s = greedy();
    s.dry_multiplier = 0.5f;
    s.dry_base = 2;
    s.dry_allowed_length = 2;
    check_logit(&s, x, 5, h, 7, 7, 3, 5 - 0.5f * 2); /* length 3: 0.5 * 2^(3 - 2) */
    check_logit(&s, x, 5, h, 7, 7, 0, 5);
    s.dry_allowed_length = 3;
    check_logit(&s, x, 5, h, 7, 7, 3, 5 - 0.5f);
    s.dry_allowed_length = 4;
    check_logit(&s, x, 5, h, 7, 7, 3, 5);
    /* "1" was followed by 2 (after "0 1") and by 3 (after "1"): the longest match counts. */
    int32_t g[] = {2, 1, 3, 0, 1, 2, 0, 1};
    s.dry_allowed_length = 1;
    check_logit(&s, x, 5, g, 8, 8, 2, 5 - 0.5f * 2);
    check_logit(&s, x, 5, g, 8, 8, 3, 5 - 0.5f);
    /* A history of one and the same token, longer than the window, ends and stays finite. */
    static int32_t same[5000];
    s.dry_base = 10;
    s.temperature = 1;
    assert_int_equal(run_on(&s, x, 5, same, 5000, 5000).err, 0);
    assert_int_not_equal(run_on(&s, x, 5, same, 5000, 5000).token, 0);
}

static void ids_outside_the_vocabulary_in_the_history_are_ignored(void **state) {
    (void)state;
    float x[] = {1, 2, 3};
    int32_t h[] = {-1, 3, INT32_MAX, INT32_MIN, -1, 3};
    gs_sampler s = greedy();
    s.repeat_penalty = 2;
    s.presence_penalty = s.frequency_penalty = 1;
    s.dry_multiplier = 1;
    s.dry_allowed_length = 1;
    assert_int_equal(run_on(&s, x, 3, h, 6, 2).token, 2);
}

/* ---- Distributions --------------------------------------------------------------------------- */

typedef struct ref_token {
    int32_t id;
    double p, key;
} ref_token;

static int by_p(const void *pa, const void *pb) {
    const ref_token *a = pa, *b = pb;
    return a->p > b->p ? -1 : a->p < b->p ? 1 : a->id - b->id;
}

static int by_key(const void *pa, const void *pb) {
    const ref_token *a = pa, *b = pb;
    return a->key < b->key ? -1 : a->key > b->key ? 1 : a->id - b->id;
}

static void normalise(ref_token *t, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += t[i].p;
    for (int32_t i = 0; i < n; i++)
        t[i].p /= sum;
}

/* Smallest prefix with mass >= want. *close: a cut so near that rounding decides it. */
static int32_t prefix(const ref_token *t, int32_t n, double want, bool *close) {
    double mass = 0;
    for (int32_t i = 0; i < n; i++) {
        mass += t[i].p;
        if (fabs(mass - want) < 1e-5)
            *close = true;
        if (mass >= want)
            return i + 1;
    }
    return n;
}

/* Probabilities after everything, by id in p[n]. False when a cut is too near to call. */
static bool reference(const gs_sampler *s, const float *x, int32_t n, double *p) {
    ref_token *t = calloc((size_t)n, sizeof(*t));
    assert_non_null(t);
    bool close = false;
    double best = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        best = fmax(best, (double)x[i]);
    for (int32_t i = 0; i < n; i++)
        t[i] = (ref_token){i, exp((double)x[i] - best), 0};
    int32_t m = n;
    normalise(t, m);
    qsort(t, (size_t)m, sizeof(*t), by_p);
    if (s->top_k > 0 && s->top_k < m)
        m = s->top_k;
    normalise(t, m);
    if (s->typical_p < 1) {
        double h = 0;
        for (int32_t i = 0; i < m; i++)
            h -= t[i].p > 0 ? t[i].p * log(t[i].p) : 0;
        for (int32_t i = 0; i < m; i++)
            t[i].key = fabs(-log(t[i].p) - h);
        qsort(t, (size_t)m, sizeof(*t), by_key);
        m = prefix(t, m, (double)s->typical_p, &close);
        for (int32_t i = 1; i < m; i++)
            close |= i + 1 == m && fabs(t[i].key - t[i - 1].key) < 1e-5;
        normalise(t, m);
        qsort(t, (size_t)m, sizeof(*t), by_p);
    }
    if (s->top_p < 1)
        m = prefix(t, m, (double)s->top_p, &close);
    normalise(t, m);
    int32_t kept = 0;
    for (int32_t i = 0; i < m; i++) {
        close |= fabs(t[i].p / t[0].p / (double)s->min_p - 1) < 1e-5;
        if (t[i].p >= (double)s->min_p * t[0].p)
            kept++;
    }
    m = kept;
    for (int32_t i = 0; i < m; i++)
        t[i].p = exp(log(t[i].p) / (double)s->temperature);
    normalise(t, m);
    memset(p, 0, (size_t)n * sizeof(*p));
    for (int32_t i = 0; i < m; i++)
        p[t[i].id] = t[i].p;
    free(t);
    return !close;
}

/* Pearson's test: how many standard deviations the statistic lies above its mean. Fails at once on
 * a token that must not be drawn. */
static double too_far(const double *p, const int32_t *count, int32_t n, int n_draws) {
    double chi = 0, rest_p = 0;
    int df = -1, rest = 0;
    for (int32_t i = 0; i < n; i++) {
        if (p[i] == 0 && count[i] > 0)
            fail_msg("token %d was drawn %d times and has no probability", i, count[i]);
        double want = p[i] * n_draws;
        if (want < 8) {
            rest_p += p[i];
            rest += count[i];
            continue;
        }
        chi += (count[i] - want) * (count[i] - want) / want;
        df++;
    }
    if (rest_p * n_draws >= 8) {
        chi += (rest - rest_p * n_draws) * (rest - rest_p * n_draws) / (rest_p * n_draws);
        df++;
    }
    return df > 0 ? (chi - df) / sqrt(2.0 * df) : 0;
}

static gs_sampler random_sampler(gs_rng *r) {
    gs_sampler s;
    gs_sampler_default(&s);
    s.temperature = (float)(0.3 + 2 * gs_rng_unit(r));
    if (gs_rng_below(r, 2))
        s.top_k = (int32_t)gs_rng_below(r, 60);
    if (gs_rng_below(r, 2))
        s.top_p = (float)gs_rng_unit(r);
    if (gs_rng_below(r, 3) == 0)
        s.typical_p = (float)gs_rng_unit(r);
    if (gs_rng_below(r, 3) == 0)
        s.min_p = (float)(0.3 * gs_rng_unit(r));
    return s;
}

static void draws_follow_the_reference_distribution(void **state) {
    (void)state;
    enum { N = 300, DRAWS = 3000 };
    static float x[N];
    static double p[N];
    static int32_t count[N];
    gs_rng r;
    gs_rng_seed(&r, 20240607);
    int n_tested = 0, n_high = 0;
    for (int t = 0; t < 150; t++) {
        int32_t n = (int32_t)(2 + gs_rng_below(&r, N - 2));
        fill_normal(&r, x, n, 0.2 + 4 * gs_rng_unit(&r));
        gs_sampler s = random_sampler(&r);
        if (!reference(&s, x, n, p))
            continue;
        n_tested++;
        memset(count, 0, sizeof(count));
        for (int d = 0; d < DRAWS; d++) {
            s.seed = gs_rng_u64(&r);
            count[run(&s, x, n).token]++;
        }
        double far = too_far(p, count, n, DRAWS);
        if (far > 6)
            fail_msg("case %d: %.1f deviations from the reference", t, far);
        n_high += far > 2;
    }
    assert_true(n_tested > 120);
    assert_true(n_high < n_tested / 6); /* about 4 % are expected */
}

/* Shapes that are hard for the shortcuts: flat, one peak, heavy tail below, more than a block. */
static void large_rows_follow_the_reference_too(void **state) {
    (void)state;
    enum { N = 20000, DRAWS = 1200 };
    static float x[N];
    static double p[N];
    static int32_t count[N];
    gs_rng r;
    gs_rng_seed(&r, 5);
    for (int t = 0; t < 24; t++) {
        fill_normal(&r, x, N, t % 4 == 0 ? 0.001 : t % 4 == 1 ? 1.0 : 3.0);
        if (t % 4 >= 2)
            x[gs_rng_below(&r, N)] = t % 4 == 2 ? 18 : 40;
        gs_sampler s;
        gs_sampler_default(&s);
        s.temperature = t < 12 ? 1.0f : 0.7f;
        if (t % 3 == 1)
            s.top_p = 0.9f;
        if (t % 3 == 2)
            s.typical_p = 0.8f;
        if (!reference(&s, x, N, p))
            continue;
        memset(count, 0, sizeof(count));
        for (int d = 0; d < DRAWS; d++) {
            s.seed = gs_rng_u64(&r);
            count[run(&s, x, N).token]++;
        }
        /* Halves of the row stand for the many tokens that occur once at most. */
        double half_p = 0;
        int half = 0;
        for (int32_t i = 0; i < N / 2; i++) {
            half_p += p[i];
            half += count[i];
        }
        double sd = sqrt(DRAWS * half_p * (1 - half_p)) + 1;
        if (fabs(half - DRAWS * half_p) > 5 * sd)
            fail_msg("case %d: half of the row got %d of %.1f draws", t, half, DRAWS * half_p);
        if (too_far(p, count, N, DRAWS) > 6)
            fail_msg("case %d: far from the reference", t);
    }
}

static void extreme_parameters_leave_the_best_token(void **state) {
    (void)state;
    gs_rng r;
    gs_rng_seed(&r, 11);
    static float x[3000];
    fill_normal(&r, x, 3000, 2);
    x[1234] = 12;
    for (int i = 0; i < 6; i++) {
        gs_sampler s;
        gs_sampler_default(&s);
        s.temperature = i == 0 ? 1e-40f : i == 1 ? 1e-4f : 1.5f;
        s.top_k = i == 2 ? 1 : 0;
        s.top_p = i == 3 ? 0.0f : 1.0f;
        s.min_p = i == 4 ? 1.0f : 0.0f;
        if (i == 5) {
            s.top_k = INT32_MAX; /* as good as off */
            s.top_p = 1e-6f;
        }
        for (uint64_t seed = 0; seed < 200; seed++) {
            s.seed = seed;
            assert_int_equal(run(&s, x, 3000).token, 1234);
        }
    }
}

static void equal_logits_are_kept_by_lowest_id(void **state) {
    (void)state;
    float x[64] = {0};
    gs_sampler s;
    gs_sampler_default(&s);
    s.top_k = 5;
    bool seen[64] = {false};
    for (uint64_t seed = 0; seed < 500; seed++) {
        s.seed = seed;
        seen[run(&s, x, 64).token] = true;
    }
    for (int i = 0; i < 64; i++)
        assert_int_equal(seen[i], i < 5);
    s.top_k = 0;
    s.top_p = 0.1f; /* 6.4 of 64: the first seven */
    memset(seen, 0, sizeof(seen));
    for (uint64_t seed = 0; seed < 500; seed++) {
        s.seed = seed;
        seen[run(&s, x, 64).token] = true;
    }
    for (int i = 0; i < 64; i++)
        assert_int_equal(seen[i], i < 7);
}

static void the_same_seed_and_position_draw_the_same(void **state) {
    (void)state;
    static float x[5000];
    static int32_t h[100];
    gs_rng r;
    gs_rng_seed(&r, 3);
    fill_normal(&r, x, 5000, 1);
    gs_sampler s;
    gs_sampler_default(&s);
    s.seed = 42;
    int n_same_position = 0, n_same_seed = 0;
    for (int32_t pos = 0; pos < 100; pos++) {
        int32_t a = run_on(&s, x, 5000, h, pos, 0).token;
        assert_int_equal(a, run_on(&s, x, 5000, h, pos, pos).token);
        n_same_position += a == run_on(&s, x, 5000, h, pos ? pos - 1 : 99, 0).token;
        gs_sampler t = s;
        t.seed = 43;
        n_same_seed += a == run_on(&t, x, 5000, h, pos, 0).token;
    }
    assert_true(n_same_position < 5);
    assert_true(n_same_seed < 5);
}

/* ---- Log-probabilities ------------------------------------------------------------------------
 */

static void logprobs_are_of_the_raw_distribution_and_sorted(void **state) {
    (void)state;
    enum { N = 4000 };
    static float x[N];
    gs_rng r;
    gs_rng_seed(&r, 17);
    for (int t = 0; t < 30; t++) {
        fill_normal(&r, x, N, 3);
        double sum = 0;
        for (int32_t i = 0; i < N; i++)
            sum += exp((double)x[i]);
        gs_logit_bias bias = {(int32_t)gs_rng_below(&r, N), 3};
        gs_sampler s;
        gs_sampler_default(&s);
        s.n_logprobs = t % 22; /* 21: more than there is room for */
        s.bias = &bias;
        s.n_bias = 1;
        s.top_p = 0.9f;
        s.temperature = t % 2 ? 0.0f : 1.3f;
        s.seed = (uint64_t)t;
        gs_sample out = run(&s, x, N);
        assert_int_equal(out.err, 0);
        assert_true(fabs((double)out.logprob - ((double)x[out.token] - log(sum))) < 2e-4);
        assert_int_equal(out.n_top, t % 22 < 20 ? t % 22 : 20);
        for (int32_t i = 0; i < out.n_top; i++) {
            int32_t id = out.top[i].id, n_better = 0;
            assert_true(fabs((double)out.top[i].logprob - ((double)x[id] - log(sum))) < 2e-4);
            for (int32_t k = 0; k < N; k++)
                n_better += x[k] > x[id] || (x[k] == x[id] && k < id);
            assert_int_equal(n_better, i);
        }
    }
    gs_sampler none;
    gs_sampler_default(&none);
    gs_sample out = run(&none, x, N);
    assert_int_equal(out.n_top, 0);
    assert_true(out.logprob == 0.0f);
}

/* ---- Cost
 * ---------------------------------------------------------------------------------------- */

static double cost_s(const gs_sampler *s, const float *x, int32_t n, int times) {
    struct timespec a, b;
    gs_sampler t = *s;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    for (int i = 0; i < times; i++) {
        t.seed = (uint64_t)i;
        assert_int_equal(run(&t, x, n).err, 0);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    return ((double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec)) / times;
}

static int by_value(const void *pa, const void *pb) {
    float a = *(const float *)pa, b = *(const float *)pb;
    return a > b ? -1 : a < b;
}

/* Not a time but a relation: a nucleus of a usual row must cost far less than sorting the row. */
static void truncation_does_not_sort_the_vocabulary(void **state) {
    (void)state;
    static float x[MAX_VOCAB], y[MAX_VOCAB];
    static const int32_t sizes[] = {49152, 151936};
    gs_rng r;
    gs_rng_seed(&r, 23);
    for (int i = 0; i < 2; i++) {
        int32_t n = sizes[i];
        fill_normal(&r, x, n, 2.5);
        for (int k = 0; k < 40; k++)
            x[gs_rng_below(&r, (uint64_t)n)] = (float)(10 + 4 * gs_rng_unit(&r));
        memcpy(y, x, (size_t)n * sizeof(float));
        struct timespec a, b;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        qsort(y, (size_t)n, sizeof(float), by_value);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        double sort_s = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        gs_sampler s;
        gs_sampler_default(&s);
        double plain = cost_s(&s, x, n, 20);
        s.top_p = 0.95f;
        double top_p = cost_s(&s, x, n, 20);
        s.top_p = 1;
        s.min_p = 0.05f;
        double min_p = cost_s(&s, x, n, 20);
        s.min_p = 0;
        s.typical_p = 0.9f;
        double typical = cost_s(&s, x, n, 5);
        s.typical_p = 1;
        s.top_k = 40;
        double top_k = cost_s(&s, x, n, 20);
        printf("n=%d us: plain %.0f top_p %.0f min_p %.0f top_k %.0f typical %.0f sort %.0f\n", n,
               plain * 1e6, top_p * 1e6, min_p * 1e6, top_k * 1e6, typical * 1e6, sort_s * 1e6);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        /* A sanitizer slows the sampler down and not libc's sort. */
        assert_true(top_p < sort_s / 3);
        assert_true(min_p < sort_s / 3);
        assert_true(top_k < sort_s / 3);
#endif
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_best_and_the_lowest_id_on_ties),
        cmocka_unit_test(bias_of_minus_100_forbids_and_others_add),
        cmocka_unit_test(ignore_eos_never_draws_an_end),
        cmocka_unit_test(only_tokens_of_the_mask_are_drawn),
        cmocka_unit_test(a_row_without_an_allowed_token_is_an_error),
        cmocka_unit_test(logits_that_are_not_finite_are_an_error),
        cmocka_unit_test(repetition_penalty_is_as_computed_by_hand),
        cmocka_unit_test(presence_and_frequency_count_the_output_only),
        cmocka_unit_test(dry_punishes_what_would_continue_a_repetition),
        cmocka_unit_test(ids_outside_the_vocabulary_in_the_history_are_ignored),
        cmocka_unit_test(draws_follow_the_reference_distribution),
        cmocka_unit_test(large_rows_follow_the_reference_too),
        cmocka_unit_test(extreme_parameters_leave_the_best_token),
        cmocka_unit_test(equal_logits_are_kept_by_lowest_id),
        cmocka_unit_test(the_same_seed_and_position_draw_the_same),
        cmocka_unit_test(logprobs_are_of_the_raw_distribution_and_sorted),
        cmocka_unit_test(truncation_does_not_sort_the_vocabulary),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
