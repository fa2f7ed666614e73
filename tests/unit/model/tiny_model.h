/*
 * Tiny models as GGUF files in memory, float32 with seeded random weights: every architecture in a
 * few kilobytes, and files that are wrong in one place. Test code: aborts when out of memory.
 */
#ifndef TESTS_TINY_MODEL_H
#define TESTS_TINY_MODEL_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "../gguf/gguf_writer.h"
#include "base/rng.h"

typedef struct tiny_spec {
    const char *arch;
    const char *other_arch; /* general.architecture, if not arch */
    uint32_t n_embd, n_layers, n_ff, n_heads, n_kv_heads, head_dim, n_vocab;
    bool untied, bias, qk_norm, post_norm, rope_freqs, fused, rope_factors;
    float rope_base, rope_factor; /* 0: the key is left out */
    uint32_t n_rot, window;       /* 0: left out; likewise: */
    float attn_softcap, logit_softcap, attn_scale, embd_scale, residual_scale, logit_scale;
    float rope_magnitude;
    uint32_t n_ctx_short;
    uint32_t n_experts, n_used; /* n_experts 0: one feed-forward network; else n_ff of each */
    float expert_scale;
    /* One deviation. Keys without the architecture's prefix. */
    const char *drop_key, *drop_tensor;
    const char *set_key; /* u32 key with another value, or a new one */
    uint32_t set_u32;
    const char *set_str_key, *set_str; /* likewise, string */
    const char *set_f32_key;           /* likewise, float */
    float set_f32;
    const char *reshape; /* tensor that gets one row more */
    const char *retype;  /* tensor that becomes I32 */
    const char *extra;   /* tensor that no model has */
    bool zero_rope_freqs;
} tiny_spec;

static inline tiny_spec tiny_default(const char *arch) {
    return (tiny_spec){.arch = arch,
                       .n_embd = 64,
                       .n_layers = 2,
                       .n_ff = 96,
                       .n_heads = 4,
                       .n_kv_heads = 2,
                       .head_dim = 32,
                       .n_vocab = 40};
}

static inline bool tiny_is(const char *a, const char *b) {
    return a && b && strcmp(a, b) == 0;
}

static inline void tiny_key(const tiny_spec *s, const char *key, char out[128]) {
    snprintf(out, 128, "%s.%s", s->arch, key);
}

static inline void tiny_u32(gw *w, const tiny_spec *s, const char *key, uint32_t v) {
    char full[128];
    tiny_key(s, key, full);
    if (!tiny_is(s->drop_key, key) && !tiny_is(s->set_str_key, key))
        gw_kv_u32(w, full, tiny_is(s->set_key, key) ? s->set_u32 : v);
}

static inline void tiny_f32(gw *w, const tiny_spec *s, const char *key, float v) {
    char full[128];
    tiny_key(s, key, full);
    if (!tiny_is(s->drop_key, key))
        gw_kv_f32(w, full, tiny_is(s->set_f32_key, key) ? s->set_f32 : v);
}

/* Random matrices [count][rows][cols]; count 0: one, and two dimensions; rows 0: a vector near one.
 */
static inline void tiny_stack(gw *w, const tiny_spec *s, gs_rng *rng, const char *name,
                              uint32_t count, uint32_t rows, uint32_t cols) {
    if (tiny_is(s->drop_tensor, name))
        return;
    uint64_t ne[3] = {cols, (rows ? rows : 1) + (tiny_is(s->reshape, name) ? 1u : 0u), count};
    size_t n = ne[0] * ne[1] * (count ? count : 1);
    float *data = malloc(n * sizeof *data);
    if (!data)
        abort();
    for (size_t i = 0; i < n; i++) {
        float u = (float)(gs_rng_unit(rng) * 2 - 1);
        data[i] = rows ? u * 0.25f : 1.0f + 0.3f * u;
    }
    if (s->zero_rope_freqs && tiny_is(name, "rope_freqs.weight"))
        data[n - 1] = 0.0f;
    uint32_t n_dims = count ? 3 : rows || tiny_is(s->reshape, name) ? 2 : 1;
    gw_tensor(w, name, n_dims, ne, tiny_is(s->retype, name) ? GS_QTYPE_I32 : GS_QTYPE_F32, data,
              n * sizeof *data);
    free(data);
}

static inline void tiny_tensor(gw *w, const tiny_spec *s, gs_rng *rng, const char *name,
                               uint32_t rows, uint32_t cols) {
    tiny_stack(w, s, rng, name, 0, rows, cols);
}

static inline void tiny_layer(gw *w, const tiny_spec *s, gs_rng *rng, uint32_t layer) {
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    const bool one = s->n_experts == 0;
    const struct {
        const char *name;
        uint32_t rows, cols;
        bool present;
        uint32_t count;
    } list[] = {
        {"attn_norm.weight", 0, s->n_embd, .present = true},
        {"attn_q.weight", q, s->n_embd, .present = !s->fused},
        {"attn_k.weight", kv, s->n_embd, .present = !s->fused},
        {"attn_v.weight", kv, s->n_embd, .present = !s->fused},
        {"attn_qkv.weight", q + 2 * kv, s->n_embd, .present = s->fused},
        {"attn_output.weight", s->n_embd, q, .present = true},
        {"attn_q.bias", 0, q, .present = s->bias},
        {"attn_k.bias", 0, kv, .present = s->bias},
        {"attn_v.bias", 0, kv, .present = s->bias},
        {"attn_q_norm.weight", 0, s->head_dim, .present = s->qk_norm},
        {"attn_k_norm.weight", 0, s->head_dim, .present = s->qk_norm},
        {"post_attention_norm.weight", 0, s->n_embd, .present = s->post_norm},
        {"ffn_norm.weight", 0, s->n_embd, .present = true},
        {"ffn_gate.weight", s->n_ff, s->n_embd, .present = one && !s->fused},
        {"ffn_up.weight", s->fused ? 2 * s->n_ff : s->n_ff, s->n_embd, .present = one},
        {"ffn_down.weight", s->n_embd, s->n_ff, .present = one},
        {"ffn_gate_inp.weight", s->n_experts, s->n_embd, .present = !one},
        {"ffn_gate_exps.weight", s->n_ff, s->n_embd, !one, s->n_experts},
        {"ffn_up_exps.weight", s->n_ff, s->n_embd, !one, s->n_experts},
        {"ffn_down_exps.weight", s->n_embd, s->n_ff, !one, s->n_experts},
        {"post_ffw_norm.weight", 0, s->n_embd, .present = s->post_norm},
    };
    char name[64];
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        snprintf(name, sizeof name, "blk.%u.%s", layer, list[i].name);
        if (list[i].present)
            tiny_stack(w, s, rng, name, list[i].count, list[i].rows, list[i].cols);
    }
}

/* Keys that are left out when the value is 0. */
static inline void tiny_more_keys(gw *w, const tiny_spec *s) {
    const struct {
        const char *key;
        float value;
    } list[] = {
        {"attn_logit_softcapping", s->attn_softcap},
        {"final_logit_softcapping", s->logit_softcap},
        {"attention.scale", s->attn_scale},
        {"embedding_scale", s->embd_scale},
        {"residual_scale", s->residual_scale},
        {"logit_scale", s->logit_scale},
        {"rope.scaling.attn_factor", s->rope_magnitude},
        {"expert_weights_scale", s->expert_scale},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].value != 0 || tiny_is(s->set_f32_key, list[i].key))
            tiny_f32(w, s, list[i].key, list[i].value);
    if (s->n_ctx_short)
        tiny_u32(w, s, "rope.scaling.original_context_length", s->n_ctx_short);
}

static inline void tiny_keys(gw *w, const tiny_spec *s) {
    char full[128];
    gw_kv_str(w, "general.architecture", s->other_arch ? s->other_arch : s->arch);
    gw_kv_str(w, "general.name", "Tiny\nmodel");
    tiny_u32(w, s, "context_length", 512);
    tiny_u32(w, s, "embedding_length", s->n_embd);
    tiny_u32(w, s, "block_count", s->n_layers);
    tiny_u32(w, s, "feed_forward_length", s->n_ff);
    if (s->n_experts) {
        tiny_u32(w, s, "expert_count", s->n_experts);
        tiny_u32(w, s, "expert_used_count", s->n_used);
        tiny_u32(w, s, "expert_feed_forward_length", s->n_ff);
    }
    tiny_u32(w, s, "attention.head_count", s->n_heads);
    tiny_u32(w, s, "attention.head_count_kv", s->n_kv_heads);
    tiny_u32(w, s, "attention.key_length", s->head_dim);
    tiny_u32(w, s, "attention.value_length", s->head_dim);
    tiny_f32(w, s, "attention.layer_norm_rms_epsilon", 1e-5f);
    if (s->rope_base > 0 || tiny_is(s->set_f32_key, "rope.freq_base"))
        tiny_f32(w, s, "rope.freq_base", s->rope_base);
    if (s->n_rot || tiny_is(s->set_key, "rope.dimension_count"))
        tiny_u32(w, s, "rope.dimension_count", s->n_rot);
    if (s->rope_factor > 0) {
        tiny_key(s, "rope.scaling.type", full);
        gw_kv_str(w, full, "linear");
        tiny_f32(w, s, "rope.scaling.factor", s->rope_factor);
    }
    if (s->window || tiny_is(s->set_key, "attention.sliding_window"))
        tiny_u32(w, s, "attention.sliding_window", s->window);
    tiny_more_keys(w, s);
    if (tiny_is(s->set_key, "vocab_size") ||
        (tiny_is(s->set_key, "expert_count") && !s->n_experts) ||
        tiny_is(s->set_key, "pooling_type"))
        tiny_u32(w, s, s->set_key, 0);
    if (s->set_str_key) {
        tiny_key(s, s->set_str_key, full);
        gw_kv_str(w, full, s->set_str);
    }
}

static inline void tiny_build(gw *w, const tiny_spec *s) {
    gs_rng rng;
    gs_rng_seed(&rng, 11);
    memset(w, 0, sizeof *w);
    gw_begin(w, 3);
    tiny_keys(w, s);
    tiny_tensor(w, s, &rng, "token_embd.weight", s->n_vocab, s->n_embd);
    tiny_tensor(w, s, &rng, "output_norm.weight", 0, s->n_embd);
    if (s->untied)
        tiny_tensor(w, s, &rng, "output.weight", s->n_vocab, s->n_embd);
    if (s->rope_freqs)
        tiny_tensor(w, s, &rng, "rope_freqs.weight", 0, (s->n_rot ? s->n_rot : s->head_dim) / 2);
    if (s->rope_factors) {
        const uint32_t n = (s->n_rot ? s->n_rot : s->head_dim) / 2;
        tiny_tensor(w, s, &rng, "rope_factors_long.weight", 0, n);
        tiny_tensor(w, s, &rng, "rope_factors_short.weight", 0, n);
    }
    for (uint32_t l = 0; l < s->n_layers; l++)
        tiny_layer(w, s, &rng, l);
    if (s->extra)
        tiny_tensor(w, s, &rng, s->extra, 1, 32);
    gw_end(w);
}

/* Encoders: with arch "bert" learned positions, "nomic-bert" a gate; fused: Q, K and V in one
 * tensor; rank: a head that scores. n_kv_heads is left out, head_dim is n_embd / n_heads. */
static inline void tiny_encoder(gw *w, const tiny_spec *s, bool fused, bool rank) {
    const uint32_t ne = s->n_embd, nff = s->n_ff;
    const bool bert = strcmp(s->arch, "bert") == 0;
    const struct {
        const char *name;
        uint32_t rows, cols;
        bool present;
    } list[] = {
        {"attn_qkv.weight", 3 * ne, ne, fused},  {"attn_q.weight", ne, ne, !fused},
        {"attn_k.weight", ne, ne, !fused},       {"attn_v.weight", ne, ne, !fused},
        {"attn_q.bias", 0, ne, s->bias},         {"attn_output.weight", ne, ne, true},
        {"attn_output.bias", 0, ne, s->bias},    {"attn_output_norm.weight", 0, ne, true},
        {"attn_output_norm.bias", 0, ne, true},  {"ffn_gate.weight", nff, ne, !bert},
        {"ffn_up.weight", nff, ne, true},        {"ffn_up.bias", 0, nff, s->bias},
        {"ffn_down.weight", ne, nff, true},      {"layer_output_norm.weight", 0, ne, true},
        {"layer_output_norm.bias", 0, ne, true},
    };
    gs_rng rng;
    char name[64];
    gs_rng_seed(&rng, 12);
    memset(w, 0, sizeof *w);
    gw_begin(w, 3);
    gw_kv_str(w, "general.architecture", s->other_arch ? s->other_arch : s->arch);
    tiny_u32(w, s, "context_length", 64);
    tiny_u32(w, s, "embedding_length", ne);
    tiny_u32(w, s, "block_count", s->n_layers);
    tiny_u32(w, s, "feed_forward_length", nff);
    tiny_u32(w, s, "attention.head_count", s->n_heads);
    tiny_f32(w, s, "attention.layer_norm_epsilon", 1e-12f);
    tiny_u32(w, s, "pooling_type", rank ? 4 : 1);
    if (tiny_is(s->set_key, "expert_count") || tiny_is(s->set_key, "attention.head_count_kv"))
        tiny_u32(w, s, s->set_key, 0);
    tiny_tensor(w, s, &rng, "token_embd.weight", s->n_vocab, ne);
    tiny_tensor(w, s, &rng, "token_types.weight", 2, ne);
    if (bert)
        tiny_tensor(w, s, &rng, "position_embd.weight", 64, ne);
    tiny_tensor(w, s, &rng, "token_embd_norm.weight", 0, ne);
    tiny_tensor(w, s, &rng, "token_embd_norm.bias", 0, ne);
    for (uint32_t l = 0; l < s->n_layers; l++)
        for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
            snprintf(name, sizeof name, "blk.%u.%s", l, list[i].name);
            if (list[i].present)
                tiny_tensor(w, s, &rng, name, list[i].rows, list[i].cols);
        }
    if (rank) {
        tiny_tensor(w, s, &rng, "cls.weight", ne, ne);
        tiny_tensor(w, s, &rng, "cls.output.weight", 1, ne);
    }
    if (s->extra)
        tiny_tensor(w, s, &rng, s->extra, ne, ne);
    gw_end(w);
}

#endif
