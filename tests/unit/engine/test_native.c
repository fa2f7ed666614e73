/*
 * The native backend on real models against reference outputs, and against itself: how a prompt
 * is cut, who shares the batch and where the KV blocks lie must not matter.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/err.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/sys.h"
#include "engine/native.h"
#include "engine/perplexity.h"
#include "gguf/gguf.h"
#include "faults/fault.h"
#include "unit/scale.h"

#define MAX_TOKENS 256 /* of a test sequence */
#define BATCH      128
#define BLOCK      32
#define N_BLOCKS   256u

typedef struct fixture {
    gs_pool *pool;
    gs_model *model;
    gs_backend *backend;
    json_t *refs;
    gs_rng rng;
    gs_kv_type kv_type;
    uint32_t blocks[N_BLOCKS]; /* shuffled; sequence i takes its slots from i * per_seq on */
} fixture;

static fixture *open_model(const char *file, const char *refs, int n_threads, gs_kv_type kv_type) {
    char path[1024], err[512] = "";
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && *xdg)
        snprintf(path, sizeof path, "%s/gamasot/models/%s", xdg, file);
    else
        snprintf(path, sizeof path, "%s/.cache/gamasot/models/%s", home ? home : "", file);
    FILE *f = fopen(path, "rb");
    if (!f) {
        print_message("skipped: %s is not there\n", path);
        return NULL;
    }
    fclose(f);
    fixture *fx = gs_calloc(1, sizeof *fx);
    gs_gguf *g = NULL;
    assert_non_null(fx);
    fx->kv_type = kv_type;
    assert_int_equal(gs_kernels_init(NULL, err, sizeof err), GS_OK);
    if (gs_gguf_open(path, &g, err, sizeof err) != GS_OK)
        fail_msg("%s: %s", path, err);
    fx->pool = gs_pool_create(n_threads, false);
    assert_non_null(fx->pool);
    if (gs_model_load(g, fx->pool, NULL, NULL, &fx->model, err, sizeof err) != GS_OK)
        fail_msg("%s: %s", path, err);
    gs_gguf_close(g);
    gs_native_config cfg = {.model = fx->model,
                            .pool = fx->pool,
                            .max_seqs = 32,
                            .max_batch_tokens = BATCH,
                            .max_context = 1024,
                            .kv_type = kv_type,
                            .block_tokens = BLOCK,
                            .n_kv_blocks = N_BLOCKS};
    if (gs_native_create(&cfg, &fx->backend, err, sizeof err) != GS_OK)
        fail_msg("%s: %s", path, err);
    json_error_t je;
    fx->refs = json_load_file(refs, 0, &je);
    if (!fx->refs)
        fail_msg("%s: %s", refs, je.text);
    gs_rng_seed(&fx->rng, 7);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        fx->blocks[i] = i;
    for (uint32_t i = N_BLOCKS - 1; i > 0; i--) {
        uint32_t j = (uint32_t)gs_rng_below(&fx->rng, i + 1), t = fx->blocks[i];
        fx->blocks[i] = fx->blocks[j];
        fx->blocks[j] = t;
    }
    return fx;
}

static void close_model(fixture *fx) {
    if (!fx)
        return;
    fx->backend->ops->destroy(fx->backend);
    gs_model_free(fx->model);
    gs_pool_free(fx->pool);
    json_decref(fx->refs);
    gs_free(fx);
}

static fixture *open_smollm(int n_threads, gs_kv_type kv_type) {
    return open_model("SmolLM2-135M-Instruct.Q4_1.gguf", "tests/refs/smollm2_greedy.json",
                      n_threads, kv_type);
}

static int setup(void **state) {
    *state = open_smollm(2, GS_KV_BF16); /* the default */
    return 0;
}

static int teardown(void **state) {
    close_model(*state);
    return 0;
}

/* Prompt and greedy continuation of case i; returns their number. */
static int case_tokens(const fixture *fx, size_t i, int32_t out[MAX_TOKENS], int *n_prompt) {
    json_t *c = json_array_get(json_object_get(fx->refs, "cases"), i), *v;
    size_t j;
    int n = 0;
    json_array_foreach(json_object_get(c, "prompt_tokens"), j, v) if (n < MAX_TOKENS) out[n++] =
        (int32_t)json_integer_value(v);
    *n_prompt = n;
    json_array_foreach(json_object_get(c, "tokens"), j, v) if (n < MAX_TOKENS) out[n++] =
        (int32_t)json_integer_value(v);
    assert_in_range(*n_prompt, 1, MAX_TOKENS - 1);
    return n;
}

/* Item for tokens [pos, pos + n) of a sequence that owns the slot-th stretch of blocks. */
static gs_batch_item item_at(const fixture *fx, int slot, const int32_t *tokens, int pos, int n,
                             float *logits, int n_logits) {
    int per_seq = MAX_TOKENS / BLOCK;
    return (gs_batch_item){.slot = slot,
                           .pos = pos,
                           .n_tokens = n,
                           .tokens = tokens + pos,
                           .blocks = fx->blocks + slot * per_seq,
                           .n_blocks = per_seq,
                           .logits = logits,
                           .n_logits = n_logits};
}

static void forward(const fixture *fx, gs_batch_item *items, int n_items) {
    gs_batch b = {.n_items = n_items, .items = items};
    for (int i = 0; i < n_items; i++)
        b.n_tokens += items[i].n_tokens;
    assert_int_equal(fx->backend->ops->forward(fx->backend, &b), GS_OK);
}

/* Logits [n][n_vocab] of tokens 0..n-1, in chunks of at most chunk tokens. Caller frees. */
static float *run_alone(const fixture *fx, int slot, const int32_t *tokens, int n, int chunk) {
    size_t nv = (size_t)fx->model->hp.n_vocab;
    float *logits = gs_array((size_t)n * nv, sizeof *logits);
    assert_non_null(logits);
    for (int pos = 0; pos < n; pos += chunk) {
        int m = n - pos < chunk ? n - pos : chunk;
        gs_batch_item it = item_at(fx, slot, tokens, pos, m, logits + (size_t)pos * nv, m);
        forward(fx, &it, 1);
    }
    return logits;
}

static double max_diff(const float *a, const float *b, size_t n) {
    double d = 0;
    for (size_t i = 0; i < n; i++)
        d = fmax(d, fabs((double)a[i] - (double)b[i]));
    return d;
}

/* ---- Against reference outputs -----------------------------------------------------------------
 */

typedef struct agreement {
    int steps, same;
    int far; /* our best token beats the reference's by more than 0.15 */
    double diff;
    int n_diff;
} agreement;

static void compare_step(const fixture *fx, const float *logits, json_t *step, agreement *a) {
    float max, lse;
    int32_t nv = fx->model->hp.n_vocab, best = 0;
    gs_logsumexp(logits, nv, &max, &lse);
    for (int32_t i = 1; i < nv; i++)
        if (logits[i] > logits[best])
            best = i;
    int32_t id = (int32_t)json_integer_value(json_object_get(step, "id"));
    a->steps++;
    a->same += id == best;
    a->far += logits[id] < logits[best] - 0.15f;
    json_t *pair;
    size_t i;
    json_array_foreach(json_object_get(step, "top"), i, pair) {
        int32_t t = (int32_t)json_integer_value(json_array_get(pair, 0));
        double want = json_number_value(json_array_get(pair, 1));
        a->diff += fabs((double)(logits[t] - max - lse) - want);
        a->n_diff++;
    }
}

/*
 * Bounds. The reference quantises activations to 8 bits, and so do we; a code that rounds the
 * other way after a difference in the seventh digit moves logits as much as the quantisation
 * itself, so two such engines differ like two independent draws. A float32 evaluation of the same
 * weights is 0.092 (mean |logprob difference|) away from the SmolLM2 reference, agrees at 422 of
 * 433 steps, and prefers another token by more than 0.15 at two; two evaluations that differ only
 * in rounding the activations' scales to f16 are 0.10 apart. A wrong rotation, norm or mask
 * gives 1 and more.
 */
static const struct {
    double mean_diff, same, far;
} bounds[GS_KV_TYPE_COUNT] = {
    [GS_KV_F16] = {0.12, 0.96, 0.02},
    [GS_KV_BF16] = {0.12, 0.96, 0.02},
    /* 8 bits for keys, values, queries and weights are one more source of the same size. */
    [GS_KV_Q8] = {0.17, 0.94, 0.03},
};

static agreement compare_cases(const fixture *fx, const int *which, int n_which) {
    json_t *cases = json_object_get(fx->refs, "cases");
    agreement a = {0};
    size_t nv = (size_t)fx->model->hp.n_vocab;
    for (int c = 0; c < n_which; c++) {
        int32_t tokens[MAX_TOKENS];
        int n_prompt, n = case_tokens(fx, (size_t)which[c], tokens, &n_prompt);
        float *logits = run_alone(fx, c % 8, tokens, n, BATCH);
        json_t *steps = json_object_get(json_array_get(cases, (size_t)which[c]), "steps"), *step;
        size_t s;
        json_array_foreach(steps, s, step)
            compare_step(fx, logits + ((size_t)n_prompt - 1 + s) * nv, step, &a);
        gs_free(logits);
    }
    print_message("%s, %s, KV %s: %d of %d arg-max equal, %d elsewhere by more than 0.15, mean "
                  "|logprob difference| %.4f\n",
                  fx->model->name, gs_isa_name(gs_kernels_isa()), gs_kv_type_name(fx->kv_type),
                  a.same, a.steps, a.far, a.diff / a.n_diff);
    return a;
}

#define N_CASES 12

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static void check_reference(const fixture *fx) {
    static const int all[N_CASES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    assert_int_equal(json_array_size(json_object_get(fx->refs, "cases")), N_CASES);
    agreement a = compare_cases(fx, all, N_CASES);
    assert_true(a.steps > 100);
    assert_true(a.same >= bounds[fx->kv_type].same * a.steps);
    assert_true(a.far <= bounds[fx->kv_type].far * a.steps);
    assert_true(a.diff / a.n_diff <= bounds[fx->kv_type].mean_diff);
}

/* n of two cases, where a single near-tie weighs much: one step more may differ, and the mean may
 * be higher. GS_LONG_TESTS=1: all cases within the whole bounds. */
static void check_reference_short(const fixture *fx, int short_case, int n) {
    if (scale_is_long()) {
        check_reference(fx);
        return;
    }
    const int which[] = {short_case, 6};
    agreement a = compare_cases(fx, which, n);
    assert_true(a.steps > 10);
    assert_true(a.same >= bounds[fx->kv_type].same * a.steps - 1);
    assert_true(a.far <= bounds[fx->kv_type].far * a.steps + 1);
    assert_true(a.diff / a.n_diff <= 2 * bounds[fx->kv_type].mean_diff);
}

/* The same on every other instruction set of this machine. */
static void check_every_isa(const fixture *fx, int short_case) {
    gs_isa best = gs_kernels_isa();
    char err[200];
    for (int isa = 0; isa < GS_ISA_COUNT; isa++) {
        if (!gs_isa_supported((gs_isa)isa) || isa == (int)best)
            continue;
        if (isa == GS_ISA_SCALAR && SANITIZED) {
            print_message("%s, scalar: left out under a sanitizer, it would take minutes\n",
                          fx->model->name);
            continue;
        }
        assert_int_equal(gs_kernels_init(gs_isa_name((gs_isa)isa), err, sizeof err), GS_OK);
        /* Scalar code takes 0.2 s per token. */
        check_reference_short(fx, short_case, isa == GS_ISA_SCALAR ? 1 : 2);
    }
    assert_int_equal(gs_kernels_init(gs_isa_name(best), err, sizeof err), GS_OK);
}

/* All cases with the default type of the KV pages, some with the others; the other instruction sets
 * with the type that the reference is nearest to. */
static void check_type(const fixture *fx, int short_case) {
    if (fx->kv_type == GS_KV_BF16)
        check_reference(fx);
    else
        check_reference_short(fx, short_case, 2);
    if (fx->kv_type == GS_KV_F16)
        check_every_isa(fx, short_case);
}

static void test_smollm_reference(void **state) {
    if (!*state)
        skip();
    for (int type = 0; type < GS_KV_TYPE_COUNT; type++) {
        fixture *fx = open_smollm(2, (gs_kv_type)type);
        check_type(fx, 4);
        close_model(fx);
    }
}

static void test_gemma_reference(void **state) {
    (void)state;
    for (int type = 0; type < GS_KV_TYPE_COUNT; type++) {
        fixture *fx = open_model("gemma-3-270m-q4_k_m.gguf", "tests/refs/gemma3_greedy.json", 2,
                                 (gs_kv_type)type);
        if (!fx)
            skip();
        check_type(fx, 0);
        close_model(fx);
    }
}

/* ---- Against itself ----------------------------------------------------------------------------
 */

static void test_chunks(void **state) {
    const fixture *fx = *state;
    if (!fx)
        skip();
    int32_t tokens[MAX_TOKENS];
    static const int chunks[] = {1, 7, 32, 33};
    int n_prompt, n = case_tokens(fx, 9, tokens, &n_prompt);
    size_t nv = (size_t)fx->model->hp.n_vocab;
    float *whole = run_alone(fx, 0, tokens, n, BATCH);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        float *cut = run_alone(fx, 1, tokens, n, chunks[i]);
        double d = max_diff(whole, cut, (size_t)n * nv);
        if (d > 1e-3)
            fail_msg("chunks of %d tokens: logits differ by %g", chunks[i], d);
        gs_free(cut);
    }
    gs_free(whole);
}

/* Eight sequences at once: each step takes a chunk of some and one token of the others. */
static void test_mixed_batch(void **state) {
    fixture *fx = *state;
    if (!fx)
        skip();
    enum { N = 8 };
    static int32_t tokens[N][MAX_TOKENS];
    int n[N], pos[N] = {0}, left = N, n_prompt;
    float *alone[N], *mixed[N];
    size_t nv = (size_t)fx->model->hp.n_vocab;
    for (int i = 0; i < N; i++) {
        n[i] = case_tokens(fx, (size_t)i, tokens[i], &n_prompt);
        alone[i] = run_alone(fx, i, tokens[i], n[i], BATCH);
        mixed[i] = gs_array((size_t)n[i] * nv, sizeof *mixed[i]);
        assert_non_null(mixed[i]);
    }
    while (left > 0) {
        gs_batch_item items[N];
        int n_items = 0;
        for (int i = 0; i < N; i++) {
            int m = gs_rng_below(&fx->rng, 3) == 0 ? 1 + (int)gs_rng_below(&fx->rng, 14) : 1;
            if (m > n[i] - pos[i])
                m = n[i] - pos[i];
            if (m == 0)
                continue;
            items[n_items++] =
                item_at(fx, i, tokens[i], pos[i], m, mixed[i] + (size_t)pos[i] * nv, m);
            pos[i] += m;
            left -= pos[i] == n[i];
        }
        forward(fx, items, n_items);
    }
    for (int i = 0; i < N; i++) {
        double d = max_diff(alone[i], mixed[i], (size_t)n[i] * nv);
        if (d > 1e-3)
            fail_msg("sequence %d: logits differ by %g from those of a solo run", i, d);
        gs_free(alone[i]);
        gs_free(mixed[i]);
    }
}

/*
 * One thread, three, and more threads than work: a prompt, then steps of one token, which divide
 * the work differently. Nothing is summed in an order that depends on the number of threads, so the
 * bound is far below what a code of 8 bits that rounds the other way would do (0.1).
 */
#define MAX_THREADS_DIFF 1e-3

static void test_threads(void **state) {
    if (!*state)
        skip();
    const fixture *fx = *state;
    static const int counts[] = {1, 3, 5};
    enum { N = 150, PROMPT = 127 };
    int32_t tokens[2 * MAX_TOKENS];
    int n_prompt, n = case_tokens(fx, 3, tokens, &n_prompt);
    n += case_tokens(fx, 5, tokens + n, &n_prompt);
    n += case_tokens(fx, 4, tokens + n, &n_prompt);
    assert_true(n >= N);
    size_t nv = (size_t)fx->model->hp.n_vocab;
    float *want = run_alone(fx, 0, tokens, PROMPT, PROMPT);
    float *steps = gs_array((size_t)N * nv, sizeof *steps);
    assert_non_null(steps);
    for (int pos = PROMPT; pos < N; pos++) {
        gs_batch_item it = item_at(fx, 0, tokens, pos, 1, steps + (size_t)pos * nv, 1);
        forward(fx, &it, 1);
    }
    for (int i = 0; i < 3; i++) {
        fixture *other = open_smollm(counts[i], GS_KV_BF16);
        float *got = run_alone(other, 0, tokens, PROMPT, PROMPT);
        double d = max_diff(want, got, PROMPT * nv);
        for (int pos = PROMPT; pos < N; pos++) {
            gs_batch_item it = item_at(other, 0, tokens, pos, 1, got, 1);
            forward(other, &it, 1);
            d = fmax(d, max_diff(steps + (size_t)pos * nv, got, nv));
        }
        if (!(d <= MAX_THREADS_DIFF))
            fail_msg("%d threads: logits differ by %g from those of 2", counts[i], d);
        gs_free(got);
        close_model(other);
    }
    gs_free(steps);
    gs_free(want);
}

/* ---- Giving way --------------------------------------------------------------------------------
 */

typedef struct asker {
    int n_asked, yield_at; /* gives way when asked for this time, from 1 */
} asker;

static bool ask(void *arg) {
    asker *a = arg;
    return ++a->n_asked == a->yield_at;
}

static int forward_until(const fixture *fx, bool resume, gs_batch_item *items, int n_items,
                         asker *a) {
    gs_batch b = {.n_items = n_items, .items = items, .should_yield = ask, .yield_arg = a};
    for (int i = 0; i < n_items; i++)
        b.n_tokens += items[i].n_tokens;
    return resume ? fx->backend->ops->resume(fx->backend, &b)
                  : fx->backend->ops->forward(fx->backend, &b);
}

/*
 * A step of two sequences gives way at every layer in turn, and a second time before its end;
 * others run a long and a short step meanwhile. The logits and the sampled token are those of an
 * undisturbed step to the bit, and so are those of the others.
 */
static void test_suspended_step(void **state) {
    const fixture *fx = *state;
    if (!fx)
        skip();
    enum { N = 70, M = 33 };
    int32_t tokens[3][MAX_TOKENS];
    int n_prompt;
    const int n_layers = fx->model->hp.n_layers;
    size_t nv = (size_t)fx->model->hp.n_vocab;
    for (size_t i = 0; i < 3; i++)
        assert_true(case_tokens(fx, i + 7, tokens[i], &n_prompt) >= N);
    gs_sampler greedy;
    gs_sampler_default(&greedy);
    greedy.temperature = 0;
    gs_sample want_sample = {0};
    float *want = gs_calloc(M * nv, sizeof *want), *got = gs_calloc(M * nv, sizeof *got);
    assert_non_null(want);
    assert_non_null(got);
    float *want_other = run_alone(fx, 2, tokens[2], N, N - 1);
    for (int yield_at = 0; yield_at < n_layers; yield_at++) {
        float *logits = yield_at == 0 ? want : got;
        gs_sample sample = {0};
        gs_batch_item items[2] = {item_at(fx, 0, tokens[0], 0, M, logits, M),
                                  item_at(fx, 1, tokens[1], 0, N, NULL, 0)};
        items[1].sampler = &greedy;
        items[1].sample = &sample;
        items[1].history = tokens[1];
        items[1].n_history = items[1].n_prompt = N;
        if (yield_at == 0) {
            forward(fx, items, 2);
            want_sample = sample;
            continue;
        }
        asker a = {.yield_at = yield_at};
        assert_int_equal(forward_until(fx, false, items, 2, &a), GS_BACKEND_SUSPENDED);
        assert_int_equal(a.n_asked, yield_at);
        float *other = run_alone(fx, 2, tokens[2], N, N - 1);
        assert_memory_equal(other, want_other, N * nv * sizeof *other);
        gs_free(other);
        a = (asker){.yield_at = 1};
        if (yield_at + 1 < n_layers)
            assert_int_equal(forward_until(fx, true, items, 2, &a), GS_BACKEND_SUSPENDED);
        other = run_alone(fx, 2, tokens[2], 9, 9);
        gs_free(other);
        a = (asker){0};
        assert_int_equal(forward_until(fx, true, items, 2, &a), GS_OK);
        assert_memory_equal(got, want, M * nv * sizeof *got);
        assert_int_equal(sample.token, want_sample.token);
        memset(got, 0, M * nv * sizeof *got);
    }
    gs_free(want_other);
    gs_free(want);
    gs_free(got);
}

/* Copying a partly filled block forks a sequence; the fork goes on by itself. */
static void test_copy(void **state) {
    fixture *fx = *state;
    if (!fx)
        skip();
    int32_t tokens[MAX_TOKENS];
    int n_prompt, n = case_tokens(fx, 1, tokens, &n_prompt), cut = BLOCK + 5;
    size_t nv = (size_t)fx->model->hp.n_vocab;
    float *whole = run_alone(fx, 0, tokens, n, BATCH);
    float *tail = gs_array((size_t)(n - cut) * nv, sizeof *tail);
    assert_non_null(tail);
    gs_batch_item it = item_at(fx, 1, tokens, cut, n - cut, tail, n - cut);
    gs_kv_copy_op copies[2] = {{it.blocks[0], fx->blocks[0], BLOCK},
                               {it.blocks[1], fx->blocks[1], cut - BLOCK}};
    gs_batch b = {.n_items = 1, .n_tokens = n - cut, .items = &it, .copies = copies, .n_copies = 2};
    assert_int_equal(fx->backend->ops->forward(fx->backend, &b), GS_OK);
    assert_true(max_diff(whole + (size_t)cut * nv, tail, (size_t)(n - cut) * nv) < 1e-3);
    gs_free(whole);
    gs_free(tail);
}

/* More rows want logits and samples than go through the output matrix at once. */
static void test_sampling_rows(void **state) {
    fixture *fx = *state;
    if (!fx)
        skip();
    enum { N = 20 };
    int32_t tokens[MAX_TOKENS], nv = fx->model->hp.n_vocab;
    int n_prompt;
    case_tokens(fx, 0, tokens, &n_prompt);
    gs_sampler s;
    gs_sample out[N];
    gs_batch_item items[N];
    float *logits = gs_array((size_t)N * 3 * (size_t)nv, sizeof *logits);
    assert_non_null(logits);
    gs_sampler_default(&s);
    s.temperature = 0;
    s.n_logprobs = 2;
    memset(out, 0xff, sizeof out);
    for (int i = 0; i < N; i++) { /* prompts of different lengths: different answers */
        items[i] = item_at(fx, i, tokens, 0, 4 + i % 3, logits + (size_t)(i * 3 * nv), i % 4);
        if (i % 4 == 0)
            items[i].logits = NULL;
        items[i].sampler = &s;
        items[i].history = tokens;
        items[i].n_history = items[i].n_prompt = items[i].n_tokens;
        items[i].sample = &out[i];
    }
    forward(fx, items, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(out[i].err, 0);
        assert_int_equal(out[i].token, out[i % 3].token);
        assert_int_equal(out[i].top[0].id, out[i].token);
        if (!items[i].logits)
            continue;
        const float *row = items[i].logits + (size_t)((items[i].n_logits - 1) * nv);
        for (int32_t v = 0; v < nv; v++)
            assert_true(row[v] <= row[out[i].token]);
    }
    gs_free(logits);
}

/* ---- Perplexity --------------------------------------------------------------------------------
 */

static void test_perplexity(void **state) {
    const fixture *fx = *state;
    if (!fx)
        skip();
    int32_t ids[2 * MAX_TOKENS];
    int n_prompt, n = case_tokens(fx, 0, ids, &n_prompt), chunk = 40;
    n += case_tokens(fx, 1, ids + n, &n_prompt);
    size_t nv = (size_t)fx->model->hp.n_vocab;
    char err[256] = "";
    gs_perplexity_result got;
    assert_int_equal(
        gs_perplexity(fx->backend, ids, n, chunk, -1, NULL, NULL, &got, err, sizeof err), GS_OK);
    double nll = 0;
    int64_t count = 0;
    for (int c = 0; c + chunk <= n; c += chunk) {
        float *logits = run_alone(fx, 0, ids + c, chunk, 1);
        for (int i = chunk / 2; i < chunk - 1; i++, count++) {
            const float *row = logits + (size_t)i * nv;
            double sum = 0;
            for (size_t v = 0; v < nv; v++)
                sum += exp((double)row[v]);
            nll += log(sum) - (double)row[ids[c + i + 1]];
        }
        gs_free(logits);
    }
    assert_int_equal(got.n_chunks, n / chunk);
    assert_int_equal(got.n_predictions, count);
    assert_true(fabs(got.perplexity / exp(nll / (double)count) - 1) < 1e-3);
    /* BOS in place of each chunk's first token must count. */
    double without = got.perplexity;
    assert_int_equal(
        gs_perplexity(fx->backend, ids, n, chunk, 0, NULL, NULL, &got, err, sizeof err), GS_OK);
    assert_true(fabs(got.perplexity - without) > 1e-6);
    assert_int_equal(
        gs_perplexity(fx->backend, ids, 39, chunk, -1, NULL, NULL, &got, err, sizeof err),
        GS_ERR_INVALID);
    assert_int_equal(gs_perplexity(fx->backend, ids, n, 7, -1, NULL, NULL, &got, err, sizeof err),
                     GS_ERR_INVALID);
}

static void test_create_limits(void **state) {
    const fixture *fx = *state;
    if (!fx)
        skip();
    char err[256] = "";
    gs_backend *b = NULL;
    gs_native_config cfg = {.model = fx->model,
                            .pool = fx->pool,
                            .max_seqs = 1,
                            .max_batch_tokens = 8,
                            .max_context = 64,
                            .block_tokens = 24,
                            .n_kv_blocks = 4};
    assert_int_equal(gs_native_create(&cfg, &b, err, sizeof err), GS_ERR_INVALID);
    assert_non_null(strstr(err, "24"));
    cfg.block_tokens = 32;
    gs_fault_set(GS_FAULT_ALLOC, 1, ENOMEM);
    assert_int_equal(gs_native_create(&cfg, &b, err, sizeof err), GS_ERR_NOMEM);
    gs_fault_clear();
    cfg.max_batch_tokens = 0;
    assert_int_equal(gs_native_create(&cfg, &b, err, sizeof err), GS_ERR_INVALID);
    cfg.max_batch_tokens = 8;
    assert_int_equal(gs_native_create(&cfg, &b, err, sizeof err), GS_OK);
    gs_backend_info info;
    b->ops->info(b, &info);
    assert_int_equal(info.kv_bytes, 4 * gs_native_block_bytes(fx->model, GS_KV_F16, 32));
    assert_int_equal(info.n_vocab, fx->model->hp.n_vocab);
    assert_int_equal(info.max_batch_tokens, 8);
    b->ops->destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm_reference),
        cmocka_unit_test(test_gemma_reference),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_mixed_batch),
        cmocka_unit_test(test_suspended_step),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_sampling_rows),
        cmocka_unit_test(test_perplexity),
        cmocka_unit_test(test_create_limits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
