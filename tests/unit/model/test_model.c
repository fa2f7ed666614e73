/* Loading tiny models: what is read, and that every wrong key or tensor is refused by name. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/pool.h"
#include "base/sys.h"
#include "model/arch.h"
#include "model/model.h"
#include "faults/fault.h"
#include "tiny_model.h"

/* Consumes w. */
static int load_file(gw *w, gs_model **m, char *err, size_t errlen) {
    gs_gguf *g = NULL;
    gs_pool *pool = gs_pool_create(2, false);
    assert_non_null(pool);
    err[0] = '\0';
    if (gs_gguf_open_mem(w->p, w->n, &g, err, errlen) != GS_OK)
        fail_msg("the test's own file: %s", err);
    int rc = gs_model_load(g, pool, NULL, NULL, m, err, errlen);
    gs_gguf_close(g);
    gw_free(w); /* the model must not need the file any more */
    gs_pool_free(pool);
    return rc;
}

static int load(const tiny_spec *s, gs_model **m, char *err, size_t errlen) {
    gw w;
    tiny_build(&w, s);
    return load_file(&w, m, err, errlen);
}

/* The model is refused with this code, and the message holds the word. */
static void refuse(const tiny_spec *s, int code, const char *word) {
    char err[512];
    gs_model *m = NULL;
    int rc = load(s, &m, err, sizeof err);
    if (rc != code || !strstr(err, word))
        fail_msg("expected %s naming '%s', got %s: %s", gs_err_name(code), word, gs_err_name(rc),
                 err);
    assert_null(m);
}

static gs_model *accept(const tiny_spec *s) {
    char err[512];
    gs_model *m = NULL;
    if (load(s, &m, err, sizeof err) != GS_OK)
        fail_msg("%s: %s", s->arch, err);
    return m;
}

static void test_llama(void **state) {
    (void)state;
    tiny_spec s = tiny_default("llama");
    s.rope_base = 5000;
    gs_model *m = accept(&s);
    assert_string_equal(m->hp.arch, "llama");
    assert_string_equal(m->name, "Tiny?model");
    assert_int_equal(m->hp.n_vocab, 40);
    assert_int_equal(m->hp.n_ctx_train, 512);
    assert_int_equal(m->hp.n_heads, 4);
    assert_int_equal(m->hp.n_kv_heads, 2);
    assert_int_equal(m->hp.n_rot, 32);
    assert_false(m->hp.rope_neox);
    assert_true(m->hp.layer_rope_base[1] == 5000.0f && m->hp.layer_rope_scale[1] == 1.0f);
    assert_true(m->hp.window[0] == 0);
    assert_true(fabsf(m->hp.attn_scale - 1.0f / sqrtf(32.0f)) < 1e-7f);
    assert_ptr_equal(m->output.data, m->tok_embd.data); /* tied */
    assert_null(m->layers[0].bq);
    assert_null(m->rope_freqs);
    gs_model_free(m);
}

/* Weights come back as they were written, and memory held is what the parts need. */
static void test_weights(void **state) {
    (void)state;
    tiny_spec s = tiny_default("llama");
    s.untied = s.rope_freqs = s.bias = true;
    gw w;
    gs_gguf *g = NULL;
    char err[512];
    float row[96];
    tiny_build(&w, &s);
    assert_int_equal(gs_gguf_open_mem(w.p, w.n, &g, err, sizeof err), GS_OK);
    gs_model *m = accept(&s);
    const float *down = gs_gguf_tensor_find(g, "blk.1.ffn_down.weight")->data;
    const float *out = gs_gguf_tensor_find(g, "output.weight")->data;
    for (int r = 0; r < 64; r++) {
        gs_mat_row(&m->layers[1].w_down, r, row);
        assert_memory_equal(row, down + r * 96, 96 * sizeof *row);
    }
    gs_mat_row(&m->output, 39, row);
    assert_memory_equal(row, out + 39 * 64, 64 * sizeof *row);
    assert_memory_equal(m->layers[1].bk, gs_gguf_tensor_find(g, "blk.1.attn_k.bias")->data,
                        64 * sizeof *row);
    assert_memory_equal(m->rope_freqs, gs_gguf_tensor_find(g, "rope_freqs.weight")->data,
                        16 * sizeof *row);
    size_t least = 2 * gs_mat_bytes(&m->output) + 2 * gs_mat_bytes(&m->layers[0].wq);
    assert_true(m->weight_bytes > least && m->weight_bytes < 2 * w.n);
    gs_model_free(m);
    gs_gguf_close(g);
    gw_free(&w);
}

static void test_archs(void **state) {
    (void)state;
    tiny_spec s = tiny_default("qwen2");
    refuse(&s, GS_ERR_FORMAT, "blk.0.attn_q.bias: the tensor is missing");
    s.bias = true;
    gs_model *m = accept(&s);
    assert_true(m->hp.rope_neox && m->layers[1].bv);
    gs_model_free(m);

    s = tiny_default("qwen3");
    refuse(&s, GS_ERR_FORMAT, "blk.0.attn_q_norm.weight: the tensor is missing");
    s.qk_norm = true;
    m = accept(&s);
    assert_true(m->hp.rope_neox && m->layers[1].k_norm);
    gs_model_free(m);

    s = tiny_default("gemma3");
    s.qk_norm = s.post_norm = true;
    s.n_layers = 7;
    s.window = 24;
    s.rope_base = 1e6f;
    s.rope_factor = 8;
    m = accept(&s);
    assert_true(m->hp.ffn_gelu && m->layers[6].post_ffn_norm);
    assert_true(m->hp.embd_scale == 8.0f);
    for (int l = 0; l < 7; l++) {
        bool full = l == 5;
        assert_int_equal(m->hp.window[l], full ? 0 : 24);
        assert_true(m->hp.layer_rope_base[l] == (full ? 1e6f : 1e4f));
        assert_true(m->hp.layer_rope_scale[l] == (full ? 0.125f : 1.0f));
    }
    gs_model_free(m);

    s = tiny_default("gemma2");
    refuse(&s, GS_ERR_FORMAT, "blk.0.post_attention_norm.weight: the tensor is missing");
    s.post_norm = true;
    s.n_layers = 5;
    m = accept(&s);
    assert_true(m->hp.attn_softcap == 50.0f && m->hp.logit_softcap == 30.0f); /* not in the file */
    for (int l = 0; l < 5; l++)
        assert_int_equal(m->hp.window[l], l % 2 ? 0 : 4096);
    gs_model_free(m);
    s.set_f32_key = "attn_logit_softcapping";
    s.set_f32 = NAN;
    refuse(&s, GS_ERR_FORMAT, "attn_logit_softcapping");

    s = tiny_default("granite");
    s.attn_scale = 0.5f;
    s.embd_scale = 12;
    s.logit_scale = 8;
    m = accept(&s);
    assert_true(m->hp.attn_scale == 0.5f && m->hp.embd_scale == 12.0f);
    assert_true(m->hp.logit_scale == 0.125f && m->hp.residual_scale == 1.0f && !m->hp.rope_neox);
    gs_model_free(m);
    s.set_f32_key = "residual_scale";
    s.set_f32 = -1;
    refuse(&s, GS_ERR_FORMAT, "residual_scale");

    s = tiny_default("smollm3");
    s.n_layers = 9;
    m = accept(&s);
    for (int l = 0; l < 9; l++)
        assert_true((m->hp.layer_rope_base[l] == 0) == (l == 3 || l == 7));
    gs_model_free(m);

    s = tiny_default("llama");
    s.qk_norm = true; /* a llama model with q/k norms is some other model */
    refuse(&s, GS_ERR_UNSUPPORTED, "attn_q_norm.weight");
}

/* One tensor for Q, K and V, one for gate and up: its rows go to their own matrices. */
static void test_fused(void **state) {
    (void)state;
    tiny_spec s = tiny_default("phi3");
    refuse(&s, GS_ERR_FORMAT, "blk.0.attn_qkv.weight: the tensor is missing");
    s.fused = true;
    gw w;
    gs_gguf *g = NULL;
    char err[512];
    float row[64];
    tiny_build(&w, &s);
    assert_int_equal(gs_gguf_open_mem(w.p, w.n, &g, err, sizeof err), GS_OK);
    gs_model *m = accept(&s);
    const gs_layer *ly = &m->layers[1];
    const float *qkv = gs_gguf_tensor_find(g, "blk.1.attn_qkv.weight")->data;
    const float *up = gs_gguf_tensor_find(g, "blk.1.ffn_up.weight")->data;
    const struct {
        const gs_mat *mat;
        const float *want;
        int32_t n;
    } parts[] = {{&ly->wq, qkv, 128},
                 {&ly->wk, qkv + 128 * 64, 64},
                 {&ly->wv, qkv + 192 * 64, 64},
                 {&ly->w_gate, up, 96},
                 {&ly->w_up, up + 96 * 64, 96}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        assert_int_equal(parts[i].mat->n, parts[i].n);
        for (int32_t r = 0; r < parts[i].n; r++) {
            gs_mat_row(parts[i].mat, r, row);
            assert_memory_equal(row, parts[i].want + (ptrdiff_t)r * 64, sizeof row);
        }
    }
    gs_model_free(m);
    gs_gguf_close(g);
    gw_free(&w);
    s.reshape = "blk.0.attn_qkv.weight";
    refuse(&s, GS_ERR_FORMAT, "blk.0.attn_qkv.weight: shape");
    s.reshape = NULL;
    s.extra = "blk.0.attn_q.weight"; /* beside the whole */
    refuse(&s, GS_ERR_UNSUPPORTED, "blk.0.attn_q.weight");
    s.extra = NULL;
    s.rope_factors = true;
    s.n_ctx_short = 256;
    m = accept(&s);
    assert_true(m->rope_long && m->rope_short && m->hp.n_ctx_short == 256);
    gs_model_free(m);
    s.drop_tensor = "rope_factors_short.weight";
    refuse(&s, GS_ERR_FORMAT, "rope_factors_short.weight: the tensor is missing");
    s.drop_tensor = "rope_factors_long.weight";
    s.set_str_key = "rope.scaling.type";
    s.set_str = "longrope";
    refuse(&s, GS_ERR_FORMAT, "rope_factors_long.weight: the tensor is missing");
}

static tiny_spec experts_default(void) {
    tiny_spec s = tiny_default("qwen3moe");
    s.qk_norm = true;
    s.n_experts = 5;
    s.n_used = 2;
    return s;
}

/* Each expert's matrices come out of the third dimension. */
static void test_experts(void **state) {
    (void)state;
    tiny_spec s = experts_default();
    gw w;
    gs_gguf *g = NULL;
    char err[512];
    float row[96];
    tiny_build(&w, &s);
    assert_int_equal(gs_gguf_open_mem(w.p, w.n, &g, err, sizeof err), GS_OK);
    gs_model *m = accept(&s);
    assert_true(m->hp.n_experts == 5 && m->hp.n_experts_used == 2 && m->hp.n_ff == 96);
    assert_true(m->hp.expert_scale == 1.0f && m->layers[1].router.n == 5);
    const float *up = gs_gguf_tensor_find(g, "blk.1.ffn_up_exps.weight")->data;
    const float *down = gs_gguf_tensor_find(g, "blk.1.ffn_down_exps.weight")->data;
    for (int e = 0; e < 5; e++) {
        const gs_mat u = gs_mat_nth(&m->layers[1].w_up, e), d = gs_mat_nth(&m->layers[1].w_down, e);
        assert_true(u.n == 96 && u.k == 64 && d.n == 64 && d.k == 96);
        for (int r = 0; r < 64; r++) {
            gs_mat_row(&u, r, row);
            assert_memory_equal(row, up + (e * 96 + r) * 64, 64 * sizeof *row);
            gs_mat_row(&d, r, row);
            assert_memory_equal(row, down + (e * 64 + r) * 96, 96 * sizeof *row);
        }
    }
    gs_model_free(m);
    gs_gguf_close(g);
    gw_free(&w);
}

static void test_hostile_experts(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        int code;
    } bad[] = {
        {"expert_count", 0, GS_ERR_FORMAT},
        {"expert_count", UINT32_MAX, GS_ERR_FORMAT},
        {"expert_count", 1025, GS_ERR_FORMAT},
        {"expert_used_count", 0, GS_ERR_FORMAT},
        {"expert_used_count", 6, GS_ERR_FORMAT},
        {"expert_used_count", 65, GS_ERR_FORMAT},
        {"expert_feed_forward_length", 48, GS_ERR_UNSUPPORTED},
        {"expert_feed_forward_length", 0x40000000u, GS_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tiny_spec s = experts_default();
        s.set_key = bad[i].key;
        s.set_u32 = bad[i].value;
        refuse(&s, bad[i].code, bad[i].key);
    }
    static const char *const names[] = {"blk.1.ffn_gate_inp.weight", "blk.0.ffn_gate_exps.weight",
                                        "blk.1.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        tiny_spec s = experts_default();
        s.drop_tensor = names[i];
        refuse(&s, GS_ERR_FORMAT, names[i]);
        s.drop_tensor = NULL;
        s.retype = names[i];
        refuse(&s, GS_ERR_UNSUPPORTED, names[i]);
        s.retype = NULL;
        s.reshape = names[i];
        refuse(&s, GS_ERR_FORMAT, names[i]);
    }
    tiny_spec s = experts_default();
    s.set_key = "expert_count"; /* fewer than the tensors have */
    s.set_u32 = 4;
    refuse(&s, GS_ERR_FORMAT, "ffn_gate_inp.weight: shape");
    s = experts_default();
    s.extra = "blk.0.ffn_up.weight"; /* a dense layer among them is another model */
    refuse(&s, GS_ERR_UNSUPPORTED, "blk.0.ffn_up.weight");
    s = experts_default();
    s.n_experts = 0;
    refuse(&s, GS_ERR_FORMAT, "expert_feed_forward_length: the key is missing");
}

static void test_unknown_arch(void **state) {
    (void)state;
    tiny_spec s = tiny_default("llama");
    s.other_arch = "mamba\033[2J"; /* shown without the escape character */
    refuse(&s, GS_ERR_UNSUPPORTED, "'mamba?[2J' is not supported (supported: llama, qwen2");
}

static void test_hostile_keys(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        int code;
    } bad[] = {
        {"context_length", 0, GS_ERR_FORMAT},
        {"context_length", UINT32_MAX, GS_ERR_FORMAT},
        {"embedding_length", 0, GS_ERR_FORMAT},
        {"embedding_length", 72, GS_ERR_UNSUPPORTED},
        {"embedding_length", 0x80000040u, GS_ERR_FORMAT},
        {"block_count", 0, GS_ERR_FORMAT},
        {"block_count", 257, GS_ERR_FORMAT},
        {"block_count", UINT32_MAX, GS_ERR_FORMAT},
        {"feed_forward_length", 0, GS_ERR_FORMAT},
        {"feed_forward_length", 100, GS_ERR_UNSUPPORTED},
        {"feed_forward_length", UINT32_MAX, GS_ERR_FORMAT},
        {"attention.head_count", 0, GS_ERR_FORMAT},
        {"attention.head_count", 3, GS_ERR_FORMAT},
        {"attention.head_count", 0x40000000u, GS_ERR_FORMAT},
        {"attention.head_count_kv", 0, GS_ERR_FORMAT},
        {"attention.head_count_kv", 8, GS_ERR_FORMAT},
        {"attention.key_length", 0, GS_ERR_FORMAT},
        {"attention.key_length", 24, GS_ERR_UNSUPPORTED},
        {"attention.key_length", 272, GS_ERR_FORMAT},
        {"attention.value_length", 64, GS_ERR_UNSUPPORTED},
        {"rope.dimension_count", 0, GS_ERR_FORMAT},
        {"rope.dimension_count", 7, GS_ERR_FORMAT},
        {"rope.dimension_count", 64, GS_ERR_FORMAT},
        {"vocab_size", 41, GS_ERR_FORMAT},
        {"expert_count", 8, GS_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tiny_spec s = tiny_default("llama");
        s.set_key = bad[i].key;
        s.set_u32 = bad[i].value;
        if (strcmp(bad[i].key, "attention.value_length") == 0)
            refuse(&s, bad[i].code, "attention.value_length");
        else if (strcmp(bad[i].key, "attention.key_length") == 0)
            refuse(&s, bad[i].code, "attention."); /* it may be value_length that differs */
        else if (strcmp(bad[i].key, "attention.head_count_kv") == 0)
            refuse(&s, bad[i].code, "head_count_kv");
        else
            refuse(&s, bad[i].code, bad[i].key);
    }
    static const char *const required[] = {
        "context_length",      "embedding_length",     "block_count",
        "feed_forward_length", "attention.head_count", "attention.layer_norm_rms_epsilon"};
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        tiny_spec s = tiny_default("llama");
        s.drop_key = required[i];
        refuse(&s, GS_ERR_FORMAT, required[i]);
    }
    static const float eps[] = {0.0f, -1e-5f, 2.0f, NAN, INFINITY};
    for (size_t i = 0; i < sizeof eps / sizeof eps[0]; i++) {
        tiny_spec s = tiny_default("llama");
        s.set_f32_key = "attention.layer_norm_rms_epsilon";
        s.set_f32 = eps[i];
        refuse(&s, GS_ERR_FORMAT, "attention.layer_norm_rms_epsilon");
    }
    static const float bases[] = {0.0f, -1.0f, 0.5f, 1e30f, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        tiny_spec s = tiny_default("llama");
        s.set_f32_key = "rope.freq_base";
        s.set_f32 = bases[i];
        refuse(&s, GS_ERR_FORMAT, "rope.freq_base");
    }
    tiny_spec s = tiny_default("llama");
    s.set_str_key = "block_count"; /* a string where a number belongs */
    s.set_str = "2";
    refuse(&s, GS_ERR_FORMAT, "block_count");
}

static void test_rope_scaling(void **state) {
    (void)state;
    tiny_spec s = tiny_default("llama");
    s.rope_factor = 4;
    gs_model *m = accept(&s);
    assert_true(m->hp.layer_rope_scale[0] == 0.25f);
    gs_model_free(m);
    s = tiny_default("llama");
    s.set_str_key = "rope.scaling.type";
    s.set_str = "yarn";
    refuse(&s, GS_ERR_UNSUPPORTED, "'yarn'");
    s.set_str = "none";
    gs_model_free(accept(&s));
    s = tiny_default("llama");
    s.rope_freqs = s.zero_rope_freqs = true;
    refuse(&s, GS_ERR_FORMAT, "rope_freqs.weight: factor 15");
}

static void test_hostile_tensors(void **state) {
    (void)state;
    static const char *const names[] = {
        "token_embd.weight",     "output_norm.weight",       "blk.0.attn_norm.weight",
        "blk.1.attn_q.weight",   "blk.0.attn_k.weight",      "blk.1.attn_v.weight",
        "blk.0.ffn_norm.weight", "blk.1.attn_output.weight", "blk.0.ffn_gate.weight",
        "blk.1.ffn_up.weight",   "blk.0.ffn_down.weight",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        tiny_spec s = tiny_default("llama");
        s.drop_tensor = names[i];
        refuse(&s, GS_ERR_FORMAT, names[i]);
        s.drop_tensor = NULL;
        s.retype = names[i];
        refuse(&s, GS_ERR_UNSUPPORTED, names[i]);
        s.retype = NULL;
        s.reshape = names[i];
        if (i > 0) /* one row more in the embedding is only a larger vocabulary */
            refuse(&s, GS_ERR_FORMAT, names[i]);
    }
    static const char *const extras[] = {"blk.2.attn_q.weight", "blk.0.ffn_gate_inp.weight",
                                         "blk..attn_q.weight",  "blk.00000000000.x",
                                         "blk.4294967296.x",    "something"};
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        tiny_spec s = tiny_default("llama");
        s.extra = extras[i];
        refuse(&s, GS_ERR_UNSUPPORTED, extras[i]);
    }
    tiny_spec s = tiny_default("llama");
    s.bias = true;
    s.reshape = "blk.1.attn_v.bias";
    refuse(&s, GS_ERR_FORMAT, "blk.1.attn_v.bias");
}

/* ---- Encoders ----------------------------------------------------------------------------------
 */

static tiny_spec encoder_default(const char *arch) {
    tiny_spec s = tiny_default(arch);
    s.n_heads = 2; /* 32 wide */
    return s;
}

static gs_model *accept_encoder(const tiny_spec *s, bool fused, bool rank) {
    char err[512];
    gs_model *m = NULL;
    gw w;
    tiny_encoder(&w, s, fused, rank);
    if (load_file(&w, &m, err, sizeof err) != GS_OK)
        fail_msg("%s: %s", s->arch, err);
    return m;
}

static void refuse_encoder(const tiny_spec *s, bool fused, bool rank, int code, const char *word) {
    char err[512];
    gs_model *m = NULL;
    gw w;
    tiny_encoder(&w, s, fused, rank);
    int rc = load_file(&w, &m, err, sizeof err);
    if (rc != code || !strstr(err, word))
        fail_msg("expected %s naming '%s', got %s: %s", gs_err_name(code), word, gs_err_name(rc),
                 err);
    assert_null(m);
}

static void test_encoders(void **state) {
    (void)state;
    tiny_spec s = encoder_default("bert");
    s.bias = true;
    gs_model *m = accept_encoder(&s, false, false);
    assert_true(m->hp.encoder && m->hp.pooling == 1 && m->hp.n_types == 2);
    assert_true(m->hp.head_dim == 32 && m->hp.ffn_gelu && m->hp.sep_token == -1);
    const gs_encoder_layer *ly = &m->encoder_layers[1];
    assert_true(ly->wq.data && !ly->wqkv.data && !ly->w_gate.data && m->positions.data);
    assert_true(ly->bq && !ly->bk && ly->b_up && !ly->b_down && !m->rank_out.data);
    assert_int_equal(ly->w_up.type, GS_QTYPE_BF16); /* F32 in the file */
    assert_int_equal(m->tok_embd.type, GS_QTYPE_F32);
    gs_model_free(m);

    s = encoder_default("nomic-bert");
    m = accept_encoder(&s, true, false);
    ly = &m->encoder_layers[0];
    assert_true(ly->wqkv.data && !ly->wq.data && ly->w_gate.data && !m->positions.data);
    assert_true(m->hp.rope_neox && !m->hp.ffn_gelu && m->hp.n_rot == 32);
    gs_model_free(m);

    s = encoder_default("bert");
    m = accept_encoder(&s, true, true);
    assert_true(m->hp.pooling == 4 && m->rank_in.data && m->rank_out.n == 1 && !m->rank_in_bias);
    gs_model_free(m);
}

static void test_hostile_encoders(void **state) {
    (void)state;
    static const char *const names[] = {
        "token_embd.weight",
        "position_embd.weight",
        "token_embd_norm.weight",
        "token_embd_norm.bias",
        "blk.1.attn_q.weight",
        "blk.0.attn_k.weight",
        "blk.1.attn_v.weight",
        "blk.0.attn_output.weight",
        "blk.1.attn_output_norm.weight",
        "blk.0.ffn_up.weight",
        "blk.1.attn_output_norm.bias",
        "blk.1.ffn_down.weight",
        "blk.0.layer_output_norm.weight",
        "blk.1.layer_output_norm.bias",
        "cls.output.weight",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        tiny_spec s = encoder_default("bert");
        s.drop_tensor = names[i];
        refuse_encoder(&s, false, true, GS_ERR_FORMAT, names[i]);
        s.drop_tensor = NULL;
        s.retype = names[i];
        refuse_encoder(&s, false, true, GS_ERR_UNSUPPORTED, names[i]);
        s.retype = NULL;
        s.reshape = names[i];
        if (i > 0) /* one row more in the embedding is only a larger vocabulary */
            refuse_encoder(&s, false, true, GS_ERR_FORMAT, names[i]);
    }
    /* Both ways at once, half of one, and tensors of other models. */
    static const struct {
        bool fused;
        int code;
        const char *extra, *word;
    } extras[] = {
        {true, GS_ERR_FORMAT, "blk.1.attn_q.weight", "blk.1.attn_q.weight"},
        {false, GS_ERR_FORMAT, "blk.1.attn_qkv.weight", "blk.1.attn_q.weight"},
        {false, GS_ERR_FORMAT, "blk.0.attn_qkv.bias", "blk.0.attn_qkv.bias"},
        {false, GS_ERR_UNSUPPORTED, "blk.0.ffn_gate.weight", "blk.0.ffn_gate.weight"},
        {false, GS_ERR_UNSUPPORTED, "blk.0.attn_norm.weight", "blk.0.attn_norm.weight"},
        {false, GS_ERR_UNSUPPORTED, "output_norm.weight", "output_norm.weight"},
        {false, GS_ERR_UNSUPPORTED, "blk.2.attn_q.weight", "blk.2.attn_q.weight"},
    };
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        tiny_spec s = encoder_default("bert");
        s.extra = extras[i].extra;
        refuse_encoder(&s, extras[i].fused, false, extras[i].code, extras[i].word);
    }
    tiny_spec s = encoder_default("nomic-bert");
    s.drop_tensor = "blk.0.ffn_gate.weight";
    refuse_encoder(&s, false, false, GS_ERR_FORMAT, "blk.0.ffn_gate.weight");
    s.drop_tensor = NULL;
    s.other_arch = "nomic-bert-moe";
    refuse_encoder(&s, false, false, GS_ERR_UNSUPPORTED, "mixtures of experts");
    s.other_arch = NULL;
    s.set_key = "expert_count";
    s.set_u32 = 8;
    refuse_encoder(&s, false, false, GS_ERR_UNSUPPORTED, "expert_count");
    s.set_key = "attention.head_count_kv";
    s.set_u32 = 1;
    refuse_encoder(&s, false, false, GS_ERR_UNSUPPORTED, "attention.head_count");
    s.set_key = "pooling_type";
    s.set_u32 = 5;
    refuse_encoder(&s, false, false, GS_ERR_FORMAT, "pooling_type");
    s.set_u32 = 4;
    refuse_encoder(&s, false, false, GS_ERR_FORMAT, "cls.output.weight");
    s.set_key = "embedding_length";
    s.set_u32 = UINT32_MAX;
    refuse_encoder(&s, false, false, GS_ERR_FORMAT, "embedding_length");
    s.set_key = NULL;
    s.drop_key = "attention.layer_norm_epsilon";
    refuse_encoder(&s, false, false, GS_ERR_FORMAT, "attention.layer_norm_epsilon");
    s = tiny_default("llama");
    s.set_key = "pooling_type";
    s.set_u32 = 4;
    refuse(&s, GS_ERR_UNSUPPORTED, "pooling_type");
}

/* Every allocation failing once: an error and no leak, never a crash. */
static void test_no_memory(void **state) {
    (void)state;
    static const gs_fault_kind kinds[] = {GS_FAULT_ALLOC, GS_FAULT_MMAP};
    tiny_spec s = tiny_default("llama");
    gw w;
    gs_gguf *g = NULL;
    char err[512];
    int failed = 0;
    tiny_build(&w, &s);
    assert_int_equal(gs_gguf_open_mem(w.p, w.n, &g, err, sizeof err), GS_OK);
    for (size_t k = 0; k < 2; k++)
        for (uint64_t nth = 1; nth < 20; nth++) {
            gs_model *m = NULL;
            gs_fault_set(kinds[k], nth, ENOMEM);
            int rc = gs_model_load(g, NULL, NULL, NULL, &m, err, sizeof err);
            gs_fault_clear();
            assert_true(rc == GS_OK ? m != NULL : rc == GS_ERR_NOMEM && m == NULL);
            failed += rc != GS_OK;
            gs_model_free(m);
        }
    assert_true(failed >= 2);
    gs_gguf_close(g);
    gw_free(&w);
}

static bool count_progress(void *arg, double done) {
    double *last = arg;
    assert_true(done > *last && done <= 1.0);
    *last = done;
    return true;
}

static bool stop_half_way(void *arg, double done) {
    (void)arg;
    return done < 0.5;
}

static void test_progress(void **state) {
    (void)state;
    tiny_spec s = tiny_default("llama");
    gw w;
    gs_gguf *g = NULL;
    gs_model *m = NULL;
    char err[512];
    double last = 0;
    tiny_build(&w, &s);
    assert_int_equal(gs_gguf_open_mem(w.p, w.n, &g, err, sizeof err), GS_OK);
    assert_int_equal(gs_model_load(g, NULL, count_progress, &last, &m, err, sizeof err), GS_OK);
    assert_true(last > 0.95);
    gs_model_free(m);
    assert_int_equal(gs_model_load(g, NULL, stop_half_way, NULL, &m, err, sizeof err),
                     GS_ERR_CANCELLED);
    gs_gguf_close(g);
    gw_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),           cmocka_unit_test(test_weights),
        cmocka_unit_test(test_archs),           cmocka_unit_test(test_unknown_arch),
        cmocka_unit_test(test_hostile_keys),    cmocka_unit_test(test_rope_scaling),
        cmocka_unit_test(test_hostile_tensors), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_encoders),        cmocka_unit_test(test_hostile_encoders),
        cmocka_unit_test(test_progress),        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_experts),         cmocka_unit_test(test_hostile_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
