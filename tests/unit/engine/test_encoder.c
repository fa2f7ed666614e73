/*
 * Encoders against reference vectors, on every instruction set, and against themselves: who is in
 * the batch, how many threads there are and where a step gave way must not change a bit.
 */
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
#include "base/sys.h"
#include "engine/native.h"
#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

#define MAX_CASES  32
#define MAX_TOKENS 512
#define MAX_EMBD   384
#define BATCH      600

typedef struct text_case {
    int32_t ids[MAX_TOKENS], n;
    const char *text;
    float want[MAX_EMBD];
} text_case;

typedef struct fixture {
    gs_pool *pool;
    gs_model *model;
    gs_tokenizer *tok;
    gs_backend *backend;
    gs_backend_info info;
    json_t *refs;
    text_case cases[MAX_CASES];
    int n_cases;
} fixture;

static void read_cases(fixture *fx, json_t *list) {
    json_t *c, *v;
    size_t i, j;
    json_array_foreach(list, i, c) {
        text_case *t = &fx->cases[fx->n_cases++];
        assert_true(fx->n_cases <= MAX_CASES);
        t->text = json_string_value(json_object_get(c, "text"));
        json_array_foreach(json_object_get(c, "ids"), j, v) {
            assert_true(t->n < MAX_TOKENS);
            t->ids[t->n++] = (int32_t)json_integer_value(v);
        }
        json_array_foreach(json_object_get(c, "vector"), j, v) {
            assert_true(j < MAX_EMBD);
            t->want[j] = (float)json_number_value(v);
        }
    }
    assert_true(fx->n_cases > 0);
}

/* key: of the list of cases in the references, NULL: they are the list. */
static fixture *open_encoder(const char *path, const char *refs, const char *key, int n_threads) {
    char err[512] = "";
    FILE *f = fopen(path, "rb");
    if (!f) {
        print_message("skipped: %s is not there\n", path);
        return NULL;
    }
    fclose(f);
    fixture *fx = gs_calloc(1, sizeof *fx);
    gs_gguf *g = NULL;
    assert_non_null(fx);
    if (gs_gguf_open(path, &g, err, sizeof err) != GS_OK)
        fail_msg("%s: %s", path, err);
    fx->pool = gs_pool_create(n_threads, false);
    assert_non_null(fx->pool);
    if (gs_model_load(g, fx->pool, NULL, NULL, &fx->model, err, sizeof err) != GS_OK ||
        gs_tokenizer_create(g, &fx->tok, err, sizeof err) != GS_OK)
        fail_msg("%s: %s", path, err);
    gs_gguf_close(g);
    gs_native_config cfg = {.model = fx->model,
                            .pool = fx->pool,
                            .max_seqs = 32,
                            .max_batch_tokens = BATCH,
                            .max_context = fx->model->hp.n_ctx_train,
                            .block_tokens = 32,
                            .n_kv_blocks = 1};
    if (gs_native_create(&cfg, &fx->backend, err, sizeof err) != GS_OK)
        fail_msg("%s: %s", path, err);
    fx->backend->ops->info(fx->backend, &fx->info);
    assert_true(fx->info.whole_prompts && fx->info.n_embd <= MAX_EMBD);
    json_error_t je;
    fx->refs = json_load_file(refs, 0, &je);
    if (!fx->refs)
        fail_msg("%s: %s", refs, je.text);
    read_cases(fx, key ? json_object_get(fx->refs, key) : fx->refs);
    return fx;
}

static void close_encoder(fixture *fx) {
    if (!fx)
        return;
    fx->backend->ops->destroy(fx->backend);
    gs_tokenizer_free(fx->tok);
    gs_model_free(fx->model);
    gs_pool_free(fx->pool);
    json_decref(fx->refs);
    gs_free(fx);
}

static fixture *open_minilm(const char *type, int n_threads) {
    char path[1024];
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    snprintf(path, sizeof path, "%s%s/gamasot/models/all-MiniLM-L6-v2.%s.gguf",
             xdg && *xdg ? xdg
             : home      ? home
                         : "",
             xdg && *xdg ? "" : "/.cache", type);
    return open_encoder(path, "tests/refs/minilm.json", NULL, n_threads);
}

static fixture *open_tiny(const char *file, int n_threads) {
    char path[128];
    snprintf(path, sizeof path, "tests/refs/%s", file);
    fixture *fx = open_encoder(path, "tests/refs/encoders.json", file, n_threads);
    assert_non_null(fx);
    return fx;
}

static bool always(void *arg) {
    ++*(int *)arg;
    return true;
}

/* Vectors of cases [first, first + n) from one step; suspend: it gives way wherever it can, and
 * another step runs in between. */
static void embed(fixture *fx, int first, int n, bool suspend, float *out) {
    gs_batch_item items[MAX_CASES] = {0};
    gs_batch batch = {.n_items = n, .items = items};
    const int32_t n_embd = fx->info.n_embd;
    memset(out, 0, (size_t)(n * n_embd) * sizeof *out);
    for (int i = 0; i < n; i++) {
        const text_case *c = &fx->cases[first + i];
        items[i] = (gs_batch_item){.n_tokens = c->n,
                                   .tokens = c->ids,
                                   .n_prompt = c->n,
                                   .embedding = out + (ptrdiff_t)i * n_embd};
        batch.n_tokens += c->n;
    }
    int asked = 0;
    if (suspend) {
        batch.should_yield = always;
        batch.yield_arg = &asked;
    }
    int rc = fx->backend->ops->forward(fx->backend, &batch);
    int steps = 1;
    for (; rc == GS_BACKEND_SUSPENDED; steps++) {
        float other[MAX_EMBD];
        embed(fx, fx->n_cases - 1, 1, false, other);
        rc = fx->backend->ops->resume(fx->backend, &batch);
    }
    assert_int_equal(rc, GS_OK);
    assert_int_equal(steps, suspend ? fx->model->hp.n_layers : 1);
    assert_int_equal(asked, suspend ? fx->model->hp.n_layers : 0);
    for (int i = 0; i < n; i++)
        gs_embed_finish(fx->info.pooling, out + (ptrdiff_t)i * n_embd, n_embd,
                        fx->cases[first + i].n);
}

static void embed_all(fixture *fx, bool suspend, float *out) {
    for (int i = 0, n = 0; i < fx->n_cases; i += n) {
        int tokens = 0;
        for (n = 0; i + n < fx->n_cases && tokens + fx->cases[i + n].n <= BATCH; n++)
            tokens += fx->cases[i + n].n;
        embed(fx, i, n, suspend, out + (ptrdiff_t)i * fx->info.n_embd);
    }
}

static void check_vectors(const fixture *fx, const float *got, double least) {
    const int32_t n = fx->info.n_embd;
    for (int i = 0; i < fx->n_cases; i++) {
        const float *a = got + (ptrdiff_t)i * n, *b = fx->cases[i].want;
        double dot = 0, aa = 0, bb = 0;
        for (int32_t d = 0; d < n; d++) {
            dot += (double)a[d] * (double)b[d];
            aa += (double)a[d] * (double)a[d];
            bb += (double)b[d] * (double)b[d];
        }
        if (n == 1) {
            if (!(fabs((double)a[0] - (double)b[0]) <= least))
                fail_msg("%s: score %d is %g, not %g", gs_isa_name(gs_kernels_isa()), i,
                         (double)a[0], (double)b[0]);
        } else if (!(fabs(aa - 1) < 1e-5 && dot / sqrt(aa * bb) >= least)) {
            fail_msg("%s: case %d has cosine %.6f, length %.6f", gs_isa_name(gs_kernels_isa()), i,
                     dot / sqrt(aa * bb), sqrt(aa));
        }
    }
}

/* On every instruction set: near the references; alone, together and interrupted the same bits.
 * Models are loaded on each, because weights may be packed for it. */
static void check_encoder(fixture *(*open)(const char *, int), const char *which, double least) {
    for (int isa = 0; isa < GS_ISA_COUNT; isa++) {
        char err[256];
        if (!gs_isa_supported((gs_isa)isa))
            continue;
        assert_int_equal(gs_kernels_init(gs_isa_name((gs_isa)isa), err, sizeof err), GS_OK);
        fixture *fx = open(which, 2);
        if (!fx)
            skip();
        if (isa == GS_ISA_SCALAR && fx->model->hp.n_embd > 64)
            fx->n_cases = 5; /* the others take too long */
        const int32_t n = fx->info.n_embd;
        static float together[MAX_CASES * MAX_EMBD], again[MAX_CASES * MAX_EMBD];
        size_t bytes = (size_t)(fx->n_cases * n) * sizeof *together;
        embed_all(fx, false, together);
        check_vectors(fx, together, least);
        embed_all(fx, true, again);
        assert_memory_equal(together, again, bytes);
        for (int i = 0; i < fx->n_cases; i++)
            embed(fx, i, 1, i % 2, again + (ptrdiff_t)i * n);
        assert_memory_equal(together, again, bytes);
        int n_cases = fx->n_cases;
        close_encoder(fx);
        fx = open(which, 1);
        fx->n_cases = n_cases;
        embed_all(fx, false, again);
        assert_memory_equal(together, again, bytes);
        close_encoder(fx);
    }
    assert_int_equal(gs_kernels_init(NULL, NULL, 0), GS_OK);
}

static void test_minilm_f16(void **state) {
    (void)state;
    check_encoder(open_minilm, "F16", 0.9995);
}

static void test_minilm_q8_0(void **state) {
    (void)state;
    check_encoder(open_minilm, "Q8_0", 0.998);
}

static void test_nomic_bert(void **state) {
    (void)state;
    check_encoder(open_tiny, "tiny-nomic-bert.gguf", 0.9995);
}

/* Scores of random weights lie between 0.6 and 1.8; bf16 leaves them this near. */
static void test_cross_encoder(void **state) {
    (void)state;
    check_encoder(open_tiny, "tiny-cross-encoder.gguf", 0.03);
}

static void test_minilm_ids(void **state) {
    (void)state;
    fixture *fx = open_minilm("Q8_0", 1);
    if (!fx)
        skip();
    for (int i = 0; i < fx->n_cases; i++) {
        const text_case *c = &fx->cases[i];
        gs_ids ids = {0};
        assert_int_equal(
            gs_tok_encode(fx->tok, c->text, strlen(c->text), GS_TOK_ADD_SPECIAL, &ids, NULL, 0),
            GS_OK);
        assert_int_equal(ids.len, c->n);
        assert_memory_equal(ids.data, c->ids, (size_t)c->n * sizeof *c->ids);
        gs_ids_deinit(&ids);
    }
    assert_int_equal(fx->info.n_embd, 384);
    assert_int_equal(fx->info.pooling, GS_POOLING_MEAN);
    assert_int_equal(fx->info.max_context, 512);
    close_encoder(fx);
}

/* A step has room for the longest prompt, whatever the batch is said to hold; and for as many
 * short ones as there may be sequences. */
static void test_room(void **state) {
    (void)state;
    fixture *fx = open_tiny("tiny-nomic-bert.gguf", 2);
    gs_native_config cfg = {.model = fx->model,
                            .pool = fx->pool,
                            .max_seqs = 16,
                            .max_batch_tokens = 8,
                            .max_context = 128,
                            .block_tokens = 16,
                            .n_kv_blocks = 1};
    gs_backend *b = NULL;
    assert_int_equal(gs_native_create(&cfg, &b, NULL, 0), GS_OK);
    gs_backend_info info;
    b->ops->info(b, &info);
    assert_int_equal(info.max_batch_tokens, 128);
    assert_int_equal(info.n_kv_blocks, 128 / 16 + 16);
    gs_batch_item items[16];
    float out[16][64], alone[64] = {0};
    memset(out, 0, sizeof out);
    for (int i = 0; i < 16; i++)
        items[i] = (gs_batch_item){
            .n_tokens = 8, .tokens = fx->cases[9].ids, .n_prompt = 8, .embedding = out[i]};
    gs_batch batch = {.n_items = 16, .n_tokens = 128, .items = items};
    assert_int_equal(b->ops->forward(b, &batch), GS_OK);
    items[0].embedding = alone;
    batch.n_items = 1;
    batch.n_tokens = 8;
    assert_int_equal(b->ops->forward(b, &batch), GS_OK);
    for (int i = 0; i < 16; i++)
        assert_memory_equal(out[i], alone, (size_t)info.n_embd * sizeof(float));
    b->ops->destroy(b);
    close_encoder(fx);
}

/* Nothing is generated: whoever asks is told. */
static void test_no_sampling(void **state) {
    (void)state;
    fixture *fx = open_tiny("tiny-nomic-bert.gguf", 1);
    gs_sampler sampler;
    gs_sample sample = {0};
    gs_sampler_default(&sampler);
    gs_batch_item it = {.n_tokens = 4,
                        .tokens = fx->cases[9].ids,
                        .n_prompt = 4,
                        .sampler = &sampler,
                        .sample = &sample};
    gs_batch batch = {.n_items = 1, .n_tokens = 4, .items = &it};
    assert_int_equal(fx->backend->ops->forward(fx->backend, &batch), GS_OK);
    assert_int_equal(sample.err, GS_ERR_UNSUPPORTED);
    close_encoder(fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_minilm_ids),    cmocka_unit_test(test_minilm_f16),
        cmocka_unit_test(test_minilm_q8_0),   cmocka_unit_test(test_nomic_bert),
        cmocka_unit_test(test_cross_encoder), cmocka_unit_test(test_room),
        cmocka_unit_test(test_no_sampling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
