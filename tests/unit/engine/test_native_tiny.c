/*
 * The native backend on tiny float32 models of every architecture against a forward pass in
 * double precision that is written the slow, obvious way. Needs no files.
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

#define N_TOKENS    41
#define MAX_CONTEXT 64
#define MAX_DIM     128 /* of any vector of the tiny models */

/* ---- The obvious way ---------------------------------------------------------------------------
 */

typedef struct plain {
    const gs_gguf *g;
    const tiny_spec *s;
    bool neox, gelu, local, rotates; /* local: a layer with a window */
    double base, factor, magnitude;
    double attn_scale, residual_scale;
} plain;

static const float *tensor(const plain *p, int layer, const char *name) {
    char full[64];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    const gs_gguf_tensor *t = gs_gguf_tensor_find(p->g, full);
    return t ? t->data : NULL;
}

static void matvec(double *y, const float *w, const float *bias, const double *x, uint32_t rows,
                   uint32_t cols) {
    for (uint32_t r = 0; r < rows; r++) {
        y[r] = bias ? (double)bias[r] : 0;
        for (uint32_t c = 0; c < cols; c++)
            y[r] += (double)w[r * cols + c] * x[c];
    }
}

static void norm(double *y, const double *x, const float *w, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    double scale = 1 / sqrt(sum / n + 1e-5);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * (double)w[i];
}

static void rotate(const plain *p, double *x, int pos) {
    uint32_t n = p->s->n_rot ? p->s->n_rot : p->s->head_dim;
    const float *factors = tensor(p, -1, "rope_freqs.weight");
    if (!factors) /* MAX_CONTEXT positions are served */
        factors = tensor(p, -1,
                         p->s->n_ctx_short && p->s->n_ctx_short < MAX_CONTEXT
                             ? "rope_factors_long.weight"
                             : "rope_factors_short.weight");
    for (uint32_t i = 0; i < n / 2; i++) {
        double f = pow(p->base, -2.0 * i / n) / p->factor;
        if (factors)
            f /= (double)factors[i];
        double *a = p->neox ? &x[i] : &x[2 * i], *b = p->neox ? &x[i + n / 2] : &x[2 * i + 1];
        double c = p->magnitude * cos(pos * f), s = p->magnitude * sin(pos * f), u = *a, v = *b;
        *a = u * c - v * s;
        *b = u * s + v * c;
    }
}

static double k_cache[N_TOKENS][MAX_DIM], v_cache[N_TOKENS][MAX_DIM];

/* Attention of all query heads q at position pos over the caches. */
static void attend(const plain *p, const double *q, int pos, double *out) {
    uint32_t hd = p->s->head_dim, group = p->s->n_heads / p->s->n_kv_heads;
    int first = p->local && pos >= (int)p->s->window ? pos - (int)p->s->window + 1 : 0;
    double cap = (double)p->s->attn_softcap;
    for (uint32_t h = 0; h < p->s->n_heads; h++) {
        double w[N_TOKENS], sum = 0;
        for (int t = first; t <= pos; t++) {
            double dot = 0;
            for (uint32_t d = 0; d < hd; d++)
                dot += q[h * hd + d] * k_cache[t][h / group * hd + d];
            dot *= p->attn_scale;
            sum += w[t] = exp(cap > 0 ? cap * tanh(dot / cap) : dot);
        }
        for (uint32_t d = 0; d < hd; d++) {
            out[h * hd + d] = 0;
            for (int t = first; t <= pos; t++)
                out[h * hd + d] += w[t] / sum * v_cache[t][h / group * hd + d];
        }
    }
}

static void add_branch(const plain *p, int layer, const char *post, double *x, double *y) {
    const float *w = tensor(p, layer, post);
    if (w)
        norm(y, y, w, p->s->n_embd);
    for (uint32_t i = 0; i < p->s->n_embd; i++)
        x[i] += p->residual_scale * y[i];
}

/* The rows of tensor `name` from row on, or those of the tensor `whole` that it is a slice of. */
static const float *part(const plain *p, int layer, const char *name, const char *whole,
                         uint32_t row) {
    const float *w = p->s->fused ? tensor(p, layer, whole) : tensor(p, layer, name);
    return p->s->fused ? w + row * p->s->n_embd : w;
}

static void attention_block(const plain *p, int layer, double x[][MAX_DIM]) {
    const tiny_spec *s = p->s;
    uint32_t nq = s->n_heads * s->head_dim, nkv = s->n_kv_heads * s->head_dim, hd = s->head_dim;
    static double q[N_TOKENS][MAX_DIM];
    double h[MAX_DIM], o[MAX_DIM];
    const float *qn = tensor(p, layer, "attn_q_norm.weight");
    const float *kn = tensor(p, layer, "attn_k_norm.weight");
    for (int t = 0; t < N_TOKENS; t++) {
        norm(h, x[t], tensor(p, layer, "attn_norm.weight"), s->n_embd);
        matvec(q[t], part(p, layer, "attn_q.weight", "attn_qkv.weight", 0),
               tensor(p, layer, "attn_q.bias"), h, nq, s->n_embd);
        matvec(k_cache[t], part(p, layer, "attn_k.weight", "attn_qkv.weight", nq),
               tensor(p, layer, "attn_k.bias"), h, nkv, s->n_embd);
        matvec(v_cache[t], part(p, layer, "attn_v.weight", "attn_qkv.weight", nq + nkv),
               tensor(p, layer, "attn_v.bias"), h, nkv, s->n_embd);
        for (uint32_t i = 0; i < s->n_heads; i++) {
            if (qn)
                norm(q[t] + i * hd, q[t] + i * hd, qn, hd);
            if (p->rotates)
                rotate(p, q[t] + i * hd, t);
        }
        for (uint32_t i = 0; i < s->n_kv_heads; i++) {
            if (kn)
                norm(k_cache[t] + i * hd, k_cache[t] + i * hd, kn, hd);
            if (p->rotates)
                rotate(p, k_cache[t] + i * hd, t);
        }
    }
    for (int t = 0; t < N_TOKENS; t++) {
        attend(p, q[t], t, o);
        matvec(h, tensor(p, layer, "attn_output.weight"), NULL, o, s->n_embd, nq);
        add_branch(p, layer, "post_attention_norm.weight", x[t], h);
    }
}

/* y = down (act(gate h) * up h) */
static void gated(const plain *p, const float *w_gate, const float *w_up, const float *w_down,
                  const double *h, double *y) {
    double gate[MAX_DIM], up[MAX_DIM];
    uint32_t ne = p->s->n_embd, nff = p->s->n_ff;
    matvec(gate, w_gate, NULL, h, nff, ne);
    matvec(up, w_up, NULL, h, nff, ne);
    for (uint32_t i = 0; i < nff; i++) {
        double v = gate[i];
        double cube = 0.7978845608028654 * (v + 0.044715 * v * v * v);
        gate[i] = up[i] * (p->gelu ? 0.5 * v * (1 + tanh(cube)) : v / (1 + exp(-v)));
    }
    matvec(y, w_down, NULL, gate, ne, nff);
}

/* y = the weighted outputs of the n_used experts with the greatest scores */
static void experts(const plain *p, int layer, const double *h, double *y) {
    const tiny_spec *s = p->s;
    const float *gate = tensor(p, layer, "ffn_gate_exps.weight");
    const float *up = tensor(p, layer, "ffn_up_exps.weight");
    const float *down = tensor(p, layer, "ffn_down_exps.weight");
    double score[MAX_DIM], out[MAX_DIM], sum = 0;
    bool used[MAX_DIM] = {false};
    matvec(score, tensor(p, layer, "ffn_gate_inp.weight"), NULL, h, s->n_experts, s->n_embd);
    for (uint32_t n = 0; n < s->n_used; n++) {
        int best = -1;
        for (int e = 0; e < (int)s->n_experts; e++)
            if (!used[e] && (best < 0 || score[e] > score[best]))
                best = e;
        assert_true(best >= 0);
        used[best] = true;
        sum += exp(score[best]);
    }
    for (uint32_t i = 0; i < s->n_embd; i++)
        y[i] = 0;
    for (uint32_t e = 0; e < s->n_experts; e++) {
        const size_t at = (size_t)e * s->n_ff * s->n_embd;
        if (!used[e])
            continue;
        gated(p, gate + at, up + at, down + at, h, out);
        for (uint32_t i = 0; i < s->n_embd; i++)
            y[i] +=
                out[i] * exp(score[e]) / sum * (s->expert_scale > 0 ? (double)s->expert_scale : 1);
    }
}

static void ffn_block(const plain *p, int layer, double *x) {
    double h[MAX_DIM], y[MAX_DIM];
    norm(h, x, tensor(p, layer, "ffn_norm.weight"), p->s->n_embd);
    if (p->s->n_experts)
        experts(p, layer, h, y);
    else
        gated(p, part(p, layer, "ffn_gate.weight", "ffn_up.weight", 0),
              part(p, layer, "ffn_up.weight", "ffn_up.weight", p->s->n_ff),
              tensor(p, layer, "ffn_down.weight"), h, y);
    add_branch(p, layer, "post_ffw_norm.weight", x, y);
}

static double x[N_TOKENS][MAX_DIM]; /* the last states of plain_forward, normalised */

static void plain_forward(plain *p, const int32_t *tokens, double logits[][MAX_DIM]) {
    const tiny_spec *s = p->s;
    bool gemma = strncmp(s->arch, "gemma", 5) == 0, gemma3 = strcmp(s->arch, "gemma3") == 0;
    int pattern = gemma3 ? 6 : gemma ? 2 : 1000; /* each n-th layer has no window */
    static const char *const pairs[] = {"llama", "granite", "smollm3"};
    p->neox = true;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        p->neox &= strcmp(s->arch, pairs[i]) != 0;
    p->gelu = gemma;
    p->attn_scale = s->attn_scale > 0 ? (double)s->attn_scale : 1 / sqrt(s->head_dim);
    p->residual_scale = s->residual_scale > 0 ? (double)s->residual_scale : 1;
    p->magnitude = s->rope_magnitude > 0 ? (double)s->rope_magnitude : 1;
    double embd_scale = gemma ? sqrt(s->n_embd) : s->embd_scale > 0 ? (double)s->embd_scale : 1;
    const float *embd = tensor(p, -1, "token_embd.weight"), *out = tensor(p, -1, "output.weight");
    for (int t = 0; t < N_TOKENS; t++)
        for (uint32_t i = 0; i < s->n_embd; i++)
            x[t][i] = (double)embd[(uint32_t)tokens[t] * s->n_embd + i] * embd_scale;
    for (int l = 0; l < (int)s->n_layers; l++) {
        p->local = s->window > 0 && (l + 1) % pattern != 0;
        p->rotates = strcmp(s->arch, "smollm3") != 0 || (l + 1) % 4 != 0;
        bool own_rope = gemma3 && p->local;
        p->base = own_rope || s->rope_base == 0 ? 10000.0 : (double)s->rope_base;
        p->factor = own_rope || s->rope_factor == 0 ? 1.0 : (double)s->rope_factor;
        attention_block(p, l, x);
        for (int t = 0; t < N_TOKENS; t++)
            ffn_block(p, l, x[t]);
    }
    for (int t = 0; t < N_TOKENS; t++) {
        norm(x[t], x[t], tensor(p, -1, "output_norm.weight"), s->n_embd);
        matvec(logits[t], out ? out : embd, NULL, x[t], s->n_vocab, s->n_embd);
        double cap = (double)s->logit_softcap;
        for (uint32_t i = 0; i < s->n_vocab; i++) {
            logits[t][i] /= s->logit_scale > 0 ? (double)s->logit_scale : 1;
            if (cap > 0)
                logits[t][i] = cap * tanh(logits[t][i] / cap);
        }
    }
}

/* ---- The backend -------------------------------------------------------------------------------
 */

static bool always(void *arg) {
    (void)arg;
    return true;
}

/* A step that gives way after each layer; a step of another sequence runs in between. */
static void run_in_pieces(gs_backend *b, gs_batch *batch) {
    static const int32_t other_token = 3;
    static const uint32_t other_blocks[1] = {1};
    gs_batch_item it = {
        .slot = 1, .n_tokens = 1, .tokens = &other_token, .blocks = other_blocks, .n_blocks = 1};
    gs_batch other = {.n_items = 1, .n_tokens = 1, .items = &it};
    batch->should_yield = always;
    int rc = b->ops->forward(b, batch);
    while (rc == GS_BACKEND_SUSPENDED) {
        assert_int_equal(b->ops->forward(b, &other), GS_OK);
        rc = b->ops->resume(b, batch);
    }
    assert_int_equal(rc, GS_OK);
}

static void run_native(const gs_gguf *g, int n_threads, int chunk, bool in_pieces,
                       const int32_t *tokens, float *logits) {
    char err[512] = "";
    gs_model *m = NULL;
    gs_backend *b = NULL;
    gs_pool *pool = gs_pool_create(n_threads, false);
    assert_non_null(pool);
    if (gs_model_load(g, pool, NULL, NULL, &m, err, sizeof err) != GS_OK)
        fail_msg("%s", err);
    gs_native_config cfg = {.model = m,
                            .pool = pool,
                            .max_seqs = 2,
                            .max_batch_tokens = chunk,
                            .max_context = MAX_CONTEXT,
                            .block_tokens = 16,
                            .n_kv_blocks = 8};
    if (gs_native_create(&cfg, &b, err, sizeof err) != GS_OK)
        fail_msg("%s", err);
    const uint32_t blocks[4] = {5, 0, 7, 2};
    for (int pos = 0; pos < N_TOKENS; pos += chunk) {
        int n = N_TOKENS - pos < chunk ? N_TOKENS - pos : chunk;
        gs_batch_item it = {.pos = pos,
                            .n_tokens = n,
                            .tokens = tokens + pos,
                            .blocks = blocks,
                            .n_blocks = 4,
                            .logits = logits + (ptrdiff_t)pos * m->hp.n_vocab,
                            .n_logits = n};
        gs_batch batch = {.n_items = 1, .n_tokens = n, .items = &it};
        if (in_pieces)
            run_in_pieces(b, &batch);
        else
            assert_int_equal(b->ops->forward(b, &batch), GS_OK);
    }
    b->ops->destroy(b);
    gs_model_free(m);
    gs_pool_free(pool);
}

static void check(const tiny_spec *s) {
    static double want[N_TOKENS][MAX_DIM];
    gw w;
    gs_gguf *g = NULL;
    char err[512] = "";
    int32_t tokens[N_TOKENS];
    float *got = gs_array((size_t)N_TOKENS * s->n_vocab, sizeof *got);
    assert_non_null(got);
    for (uint32_t t = 0; t < N_TOKENS; t++)
        tokens[t] = (int32_t)(t * t * 7 % s->n_vocab);
    tiny_build(&w, s);
    if (gs_gguf_open_mem(w.p, w.n, &g, err, sizeof err) != GS_OK)
        fail_msg("%s", err);
    plain p = {.g = g, .s = s};
    plain_forward(&p, tokens, want);
    double scale = 0;
    for (int t = 0; t < N_TOKENS; t++)
        for (uint32_t v = 0; v < s->n_vocab; v++)
            scale = fmax(scale, fabs(want[t][v]));
    static const int chunks[] = {N_TOKENS, 1, 6};
    for (int c = 0; c < 6; c++) {
        run_native(g, c % 3 + 1, chunks[c % 3], c >= 3, tokens, got);
        for (int t = 0; t < N_TOKENS; t++)
            for (uint32_t v = 0; v < s->n_vocab; v++)
                /* what storing keys and values as f16 costs */
                if (!(fabs((double)got[(uint32_t)t * s->n_vocab + v] - want[t][v]) < 3e-3 * scale))
                    fail_msg("%s, chunks of %d%s: logit %u of position %d is %g, not %g", s->arch,
                             chunks[c % 3], c >= 3 ? " in pieces" : "", v, t,
                             (double)got[(uint32_t)t * s->n_vocab + v], want[t][v]);
    }
    gs_gguf_close(g);
    gw_free(&w);
    gs_free(got);
}

/* A sequence that ends in a vector, in steps of several sizes and in pieces. */
static void check_pooling(const char *arch, gs_pooling pooling, int chunk) {
    static double logits[N_TOKENS][MAX_DIM];
    const uint32_t blocks[4] = {5, 0, 7, 2};
    tiny_spec s = tiny_default(arch);
    s.set_key = "pooling_type";
    s.set_u32 = (uint32_t)pooling;
    gw w;
    gs_gguf *g = NULL;
    gs_model *m = NULL;
    gs_backend *b = NULL;
    int32_t tokens[N_TOKENS];
    float v[MAX_DIM] = {0};
    for (uint32_t t = 0; t < N_TOKENS; t++)
        tokens[t] = (int32_t)(t * t * 7 % s.n_vocab);
    tiny_build(&w, &s);
    gs_pool *pool = gs_pool_create(2, false);
    assert_true(pool && gs_gguf_open_mem(w.p, w.n, &g, NULL, 0) == GS_OK);
    plain p = {.g = g, .s = &s};
    plain_forward(&p, tokens, logits);
    assert_int_equal(gs_model_load(g, pool, NULL, NULL, &m, NULL, 0), GS_OK);
    gs_native_config cfg = {.model = m,
                            .pool = pool,
                            .max_seqs = 2,
                            .max_batch_tokens = chunk,
                            .max_context = MAX_CONTEXT,
                            .block_tokens = 16,
                            .n_kv_blocks = 8};
    assert_int_equal(gs_native_create(&cfg, &b, NULL, 0), GS_OK);
    gs_backend_info info;
    b->ops->info(b, &info);
    assert_true(info.pooling == pooling && info.n_embd == (int32_t)s.n_embd);
    for (int pos = 0; pos < N_TOKENS; pos += chunk) {
        int n = N_TOKENS - pos < chunk ? N_TOKENS - pos : chunk;
        gs_batch_item it = {.pos = pos,
                            .n_tokens = n,
                            .tokens = tokens + pos,
                            .blocks = blocks,
                            .n_blocks = 4,
                            .n_prompt = N_TOKENS,
                            .embedding = v};
        gs_batch batch = {.n_items = 1, .n_tokens = n, .items = &it};
        run_in_pieces(b, &batch);
    }
    gs_embed_finish(pooling, v, info.n_embd, N_TOKENS);
    double want[MAX_DIM] = {0}, length = 0;
    for (int t = pooling == GS_POOLING_LAST ? N_TOKENS - 1 : 0; t < N_TOKENS; t++)
        for (uint32_t i = 0; i < s.n_embd; i++)
            want[i] += x[t][i];
    for (uint32_t i = 0; i < s.n_embd; i++)
        length += want[i] * want[i];
    for (uint32_t i = 0; i < s.n_embd; i++)
        assert_true(fabs((double)v[i] - want[i] / sqrt(length)) < 3e-3);
    b->ops->destroy(b);
    gs_model_free(m);
    gs_gguf_close(g);
    gs_pool_free(pool);
    gw_free(&w);
}

static void test_pooling(void **state) {
    (void)state;
    check_pooling("llama", GS_POOLING_MEAN, N_TOKENS);
    check_pooling("llama", GS_POOLING_MEAN, 6);
    check_pooling("llama", GS_POOLING_LAST, N_TOKENS);
    check_pooling("llama", GS_POOLING_LAST, 40); /* the last token alone in its step */
}

static void test_llama(void **state) {
    (void)state;
    tiny_spec s = tiny_default("llama");
    check(&s);
    s.untied = s.bias = true;
    s.n_rot = 16; /* part of each head */
    s.rope_base = 500;
    check(&s);
    s.n_rot = 0;
    s.rope_freqs = true;
    s.rope_factor = 4;
    s.n_kv_heads = 1;
    check(&s);
    s.n_kv_heads = 4;
    s.n_ff = 32;
    check(&s);
}

static void test_qwen(void **state) {
    (void)state;
    tiny_spec s = tiny_default("qwen2");
    s.bias = true;
    s.rope_base = 1000;
    check(&s);
    s = tiny_default("qwen3");
    s.qk_norm = s.untied = true;
    check(&s);
}

static void test_gemma(void **state) {
    (void)state;
    tiny_spec s = tiny_default("gemma3");
    s.qk_norm = s.post_norm = true;
    s.n_layers = 7;
    s.window = 9;
    s.rope_base = 1e6f;
    s.rope_factor = 8;
    check(&s);
}

static void test_gemma2(void **state) {
    (void)state;
    tiny_spec s = tiny_default("gemma2");
    s.post_norm = true;
    s.n_layers = 5;
    s.window = 9;
    s.attn_softcap = 1.5f; /* low enough to change the result */
    s.logit_softcap = 2.0f;
    check(&s);
}

static void test_granite(void **state) {
    (void)state;
    tiny_spec s = tiny_default("granite");
    s.attn_scale = 0.02f;
    s.embd_scale = 6;
    s.residual_scale = 0.3f;
    s.logit_scale = 8;
    check(&s);
    s.residual_scale = s.embd_scale = 0;
    check(&s);
}

static void test_phi3(void **state) {
    (void)state;
    tiny_spec s = tiny_default("phi3");
    s.fused = s.untied = true;
    s.n_rot = 16;
    check(&s);
    s.rope_factors = true;
    s.rope_magnitude = 1.19f;
    check(&s); /* the short factors */
    s.n_ctx_short = 40;
    check(&s);
    s.n_heads = s.n_kv_heads = 2;
    s.n_rot = 0;
    s.window = 11;
    check(&s);
}

static void test_smollm3(void **state) {
    (void)state;
    tiny_spec s = tiny_default("smollm3");
    s.n_layers = 9;
    s.rope_base = 2000;
    check(&s);
}

static void test_qwen3moe(void **state) {
    (void)state;
    tiny_spec s = tiny_default("qwen3moe");
    s.qk_norm = s.untied = true;
    s.n_experts = 7;
    s.n_used = 3;
    check(&s);
    s.n_experts = s.n_used = 2; /* everybody to both */
    s.expert_scale = 1.5f;
    check(&s);
    s.n_experts = 50;
    s.n_used = 1;
    s.n_ff = 32;
    check(&s);
}

int main(void) {
    char err[256];
    if (gs_kernels_init(NULL, err, sizeof err) != GS_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pooling),  cmocka_unit_test(test_llama),
        cmocka_unit_test(test_qwen),     cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_gemma2),   cmocka_unit_test(test_granite),
        cmocka_unit_test(test_phi3),     cmocka_unit_test(test_smollm3),
        cmocka_unit_test(test_qwen3moe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
