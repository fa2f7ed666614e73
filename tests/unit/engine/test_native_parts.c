/*
 * Attention in parts (few sequences with long contexts; shared prefixes): the bits of a sequence
 * are those of whole attention, whatever the threads and the company. Tiny models, no files.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../model/tiny_model.h"
#include "base/err.h"
#include "base/pool.h"
#include "base/sys.h"
#include "engine/native.h"
#include "engine/native_impl.h"

enum { BLOCK = 32, CONTEXT = 2048, N_SHARED = 1024, N_STEPS = 4, N_SEQS = 3 };
static const int prompt_len[N_SEQS] = {1630, 1200, 21}; /* 0 and 1 begin alike */

typedef struct rig {
    gw file;
    gs_pool *pool;
    gs_model *model;
    gs_backend *backend;
    int32_t tokens[N_SEQS][CONTEXT];
    uint32_t blocks[N_SEQS][CONTEXT / BLOCK];
} rig;

static void fill_sequences(rig *r, bool shared) {
    for (int s = 0; s < N_SEQS; s++)
        for (int i = 0; i < CONTEXT; i++)
            r->tokens[s][i] = (s == 1 && i < N_SHARED ? 0 : s) + i * i % 37;
    for (int s = 0; s < N_SEQS; s++)
        for (uint32_t i = 0; i < CONTEXT / BLOCK; i++)
            r->blocks[s][i] = shared && s == 1 && i < N_SHARED / BLOCK
                                  ? r->blocks[0][i]
                                  : (uint32_t)s + (i * 5 + 3) % (CONTEXT / BLOCK) * N_SEQS;
}

static gs_batch_item item_at(rig *r, int s, int pos, int n, float *logits) {
    return (gs_batch_item){.slot = s,
                           .pos = pos,
                           .n_tokens = n,
                           .tokens = r->tokens[s] + pos,
                           .blocks = r->blocks[s],
                           .n_blocks = CONTEXT / BLOCK,
                           .logits = logits,
                           .n_logits = logits ? 1 : 0};
}

static void prefill(rig *r, int s, int from) {
    for (int pos = from; pos < prompt_len[s]; pos += 256) {
        int n = prompt_len[s] - pos < 256 ? prompt_len[s] - pos : 256;
        gs_batch_item it = item_at(r, s, pos, n, NULL);
        gs_batch b = {.n_items = 1, .n_tokens = n, .items = &it};
        assert_int_equal(r->backend->ops->forward(r->backend, &b), GS_OK);
    }
}

/* All prompts are computed. */
static void open_rig(rig *r, const tiny_spec *s, int n_threads, bool shared) {
    char err[512] = "";
    gs_gguf *g = NULL;
    memset(r, 0, sizeof *r);
    tiny_build(&r->file, s);
    r->pool = gs_pool_create(n_threads, false);
    assert_non_null(r->pool);
    if (gs_gguf_open_mem(r->file.p, r->file.n, &g, err, sizeof err) != GS_OK ||
        gs_model_load(g, r->pool, NULL, NULL, &r->model, err, sizeof err) != GS_OK)
        fail_msg("%s", err);
    gs_gguf_close(g);
    gs_native_config cfg = {.model = r->model,
                            .pool = r->pool,
                            .max_seqs = N_SEQS,
                            .max_batch_tokens = 512,
                            .max_context = CONTEXT,
                            .kv_type = GS_KV_BF16,
                            .block_tokens = BLOCK,
                            .n_kv_blocks = N_SEQS * CONTEXT / BLOCK};
    if (gs_native_create(&cfg, &r->backend, err, sizeof err) != GS_OK)
        fail_msg("%s", err);
    fill_sequences(r, shared);
    for (int i = 0; i < N_SEQS; i++)
        prefill(r, i, shared && i == 1 ? N_SHARED : 0);
}

static void close_rig(rig *r) {
    r->backend->ops->destroy(r->backend);
    gs_model_free(r->model);
    gs_pool_free(r->pool);
    gw_free(&r->file);
}

static bool always(void *arg) {
    (void)arg;
    return true;
}

static int n_yields; /* of in_pieces */

/* Between any two layers another step, which is not parted, runs. */
static int in_pieces(rig *r, gs_batch *batch) {
    static const int32_t token = 3;
    const uint32_t block[1] = {N_SEQS * CONTEXT / BLOCK - 1};
    gs_batch_item it = {.n_tokens = 1, .tokens = &token, .blocks = block, .n_blocks = 1};
    gs_batch other = {.n_items = 1, .n_tokens = 1, .items = &it};
    batch->should_yield = always;
    int rc = r->backend->ops->forward(r->backend, batch);
    for (; rc == GS_BACKEND_SUSPENDED; n_yields++) {
        assert_int_equal(r->backend->ops->forward(r->backend, &other), GS_OK);
        rc = r->backend->ops->resume(r->backend, batch);
    }
    return rc;
}

/* N_STEPS decode steps of the sequences in who (bits); logits[s][step][vocab]. */
static void decode(rig *r, unsigned who, bool pieces, bool want_parted, float *logits) {
    const int32_t nv = r->model->hp.n_vocab;
    for (int step = 0; step < N_STEPS; step++) {
        gs_batch_item items[N_SEQS];
        gs_batch b = {.items = items};
        for (int s = 0; s < N_SEQS; s++)
            if (who >> s & 1)
                items[b.n_items++] = item_at(r, s, prompt_len[s] + step, 1,
                                             logits + (ptrdiff_t)(s * N_STEPS + step) * nv);
        b.n_tokens = b.n_items;
        if (pieces)
            assert_int_equal(in_pieces(r, &b), GS_OK);
        else
            assert_int_equal(r->backend->ops->forward(r->backend, &b), GS_OK);
        if (!pieces)
            assert_int_equal(((gs_native *)r->backend)->parted, want_parted);
    }
}

/*
 * Against whole attention of the same steps, with nothing shared. Alone on one thread, in company
 * on as many as the parted run: products with float weights of three rows add in another order
 * where a thread's panels are odd in number.
 */
static void check(const tiny_spec *s) {
    static float want[N_SEQS * N_STEPS * 64], got[N_SEQS * N_STEPS * 64];
    static const struct {
        int n_threads;
        unsigned who;
        bool pieces, parted;
    } runs[] = {
        {3, 1, false, true}, /* fewer items than twice the threads */
        {3, 2, false, true}, {3, 1, true, true}, {1, 3, false, true}, /* a shared prefix */
        {2, 7, false, true}, {2, 7, true, true}, {1, 5, false, false},
    };
    rig r;
    size_t same = 0;
    assert_true(s->n_vocab <= 64);
    for (size_t k = 0; k < sizeof runs / sizeof runs[0]; k++) {
        memset(want, 0, sizeof want);
        memset(got, 0, sizeof got);
        open_rig(&r, s, runs[k].who == 7 ? runs[k].n_threads : 1, false);
        decode(&r, runs[k].who, false, false, want);
        close_rig(&r);
        open_rig(&r, s, runs[k].n_threads, true);
        decode(&r, runs[k].who, runs[k].pieces, runs[k].parted, got);
        close_rig(&r);
        assert_memory_equal(got, want, sizeof got);
        for (size_t i = 0; i < sizeof got / sizeof got[0]; i++)
            same += got[i] != 0.0f;
    }
    assert_true(same > 0);
}

static void full_attention(void **state) {
    (void)state;
    tiny_spec s = tiny_default("llama");
    check(&s);
    s.n_kv_heads = 4;
    check(&s);
}

/* Segments before the window are nobody's. */
static void sliding_windows(void **state) {
    (void)state;
    tiny_spec s = tiny_default("gemma3");
    s.qk_norm = s.post_norm = true;
    s.n_layers = 6;
    s.window = 600;
    check(&s);
    s.window = 40;
    check(&s);
}

/* ---- Steps of several passes -------------------------------------------------------------------
 */

enum { N_LONG = 300, N_LAST = 180 };

/* One step of a decoding sequence, a prompt whose logits are all wanted, and another prompt; its
 * rows are more than a pass takes, and passes begin within both prompts. */
static int long_step(rig *r, bool pieces, float *logits) {
    const ptrdiff_t nv = r->model->hp.n_vocab;
    gs_batch_item items[3] = {item_at(r, 2, prompt_len[2], 1, logits),
                              item_at(r, 0, 0, N_LONG, logits + nv),
                              item_at(r, 1, 0, N_LAST, logits + nv * (N_LONG + 1))};
    items[1].n_logits = N_LONG;
    gs_batch b = {.n_items = 3, .n_tokens = 1 + N_LONG + N_LAST, .items = items};
    if (!pieces) {
        assert_int_equal(r->backend->ops->forward(r->backend, &b), GS_OK);
        return 0;
    }
    n_yields = 0;
    assert_int_equal(in_pieces(r, &b), GS_OK);
    return n_yields;
}

/* The same in steps of few rows. */
static void short_steps(rig *r, float *logits) {
    const ptrdiff_t nv = r->model->hp.n_vocab;
    gs_batch_item it = item_at(r, 2, prompt_len[2], 1, logits);
    gs_batch b = {.n_items = 1, .n_tokens = 1, .items = &it};
    assert_int_equal(r->backend->ops->forward(r->backend, &b), GS_OK);
    for (int pos = 0; pos < N_LONG; pos += b.n_tokens) {
        b.n_tokens = N_LONG - pos < 60 ? N_LONG - pos : 60;
        it = item_at(r, 0, pos, b.n_tokens, logits + nv * (1 + pos));
        it.n_logits = b.n_tokens;
        assert_int_equal(r->backend->ops->forward(r->backend, &b), GS_OK);
    }
    for (int pos = 0; pos < N_LAST; pos += b.n_tokens) {
        b.n_tokens = N_LAST - pos < 60 ? N_LAST - pos : 60;
        it = item_at(r, 1, pos, b.n_tokens,
                     pos + b.n_tokens == N_LAST ? logits + nv * (N_LONG + 1) : NULL);
        assert_int_equal(r->backend->ops->forward(r->backend, &b), GS_OK);
    }
}

static void check_passes(const tiny_spec *s) {
    static float want[(N_LONG + 2) * 64], got[(N_LONG + 2) * 64];
    const int n_passes = (1 + N_LONG + N_LAST + GS_NATIVE_PASS_ROWS - 1) / GS_NATIVE_PASS_ROWS;
    rig r;
    assert_true(s->n_vocab <= 64 && n_passes > 2);
    open_rig(&r, s, 1, false);
    short_steps(&r, want);
    close_rig(&r);
    for (int k = 0; k < 4; k++) {
        memset(got, 0, sizeof got);
        open_rig(&r, s, 1 + k % 2, false);
        /* a step that gives way is asked after each layer of each pass, but the last */
        assert_int_equal(long_step(&r, k >= 2, got), k < 2 ? 0 : n_passes * (int)s->n_layers - 1);
        close_rig(&r);
        for (size_t i = 0; i < (size_t)(N_LONG + 2) * s->n_vocab; i++)
            if (!(fabsf(got[i] - want[i]) <= 1e-4f))
                fail_msg("run %d: logit %zu of row %zu is %g, not %g", k, i % s->n_vocab,
                         i / s->n_vocab, (double)got[i], (double)want[i]);
    }
}

static void passes(void **state) {
    (void)state;
    tiny_spec s = tiny_default("llama");
    check_passes(&s);
    s = tiny_default("gemma3");
    s.qk_norm = s.post_norm = true;
    s.n_layers = 6;
    s.window = 40;
    check_passes(&s);
}

int main(void) {
    char err[256];
    if (gs_kernels_init(NULL, err, sizeof err) != GS_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_attention),
        cmocka_unit_test(sliding_windows),
        cmocka_unit_test(passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
