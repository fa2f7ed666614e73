/*
 * A model in memory, decoder or encoder: hyper-parameters and packed weights. No step logic
 * (engine/native.h).
 *
 * Hyper-parameters are read and validated before anything is allocated; every tensor's shape is
 * checked against them. Immutable after load: any thread may read.
 */
#ifndef GS_MODEL_MODEL_H
#define GS_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "gguf/gguf.h"
#include "kernels/kernels.h"

#define GS_MAX_LAYERS 256

typedef struct gs_hparams {
    const char *arch; /* "llama"; static */
    int32_t n_vocab, n_ctx_train;
    int32_t n_embd, n_layers;
    int32_t n_ff;                      /* of one expert, where there are some: */
    int32_t n_experts, n_experts_used; /* n_experts 0: one feed-forward network for all */
    float expert_scale;                /* of the experts' weights */
    int32_t n_heads, n_kv_heads, head_dim;
    float norm_eps;
    float attn_scale;   /* 1/sqrt(head_dim) unless the file says otherwise */
    float attn_softcap; /* > 0: scores become softcap * tanh(score / softcap) */
    int32_t n_rot;
    bool rope_neox;
    bool ffn_gelu; /* else SiLU */
    /* llama3-style per-frequency factors come as the tensor rope_freqs.weight; longrope's two sets
     * as rope_factors_*: short ones for contexts up to n_ctx_short */
    int32_t n_ctx_short;
    float rope_magnitude;                  /* sine and cosine times this; 1 but with longrope */
    float embd_scale;                      /* embeddings times this */
    float residual_scale;                  /* what attention and feed-forward add, times this */
    float logit_scale;                     /* logits times this; then: */
    float logit_softcap;                   /* as attn_softcap */
    int32_t window[GS_MAX_LAYERS];         /* sliding window; 0: full attention */
    float layer_rope_base[GS_MAX_LAYERS];  /* 0: no rotation (NoPE) */
    float layer_rope_scale[GS_MAX_LAYERS]; /* linear scaling: position * scale */
    int32_t pooling;                       /* as the file numbers it, 0..4; -1: not stated */
    /* Encoders only: */
    bool encoder;
    int32_t n_types;   /* token types (segments) that have an embedding; 0: none */
    int32_t sep_token; /* ends a segment; -1: none */
} gs_hparams;

typedef struct gs_layer {
    const float *attn_norm;       /* [n_embd] */
    gs_mat wq, wk, wv, wo;        /* [n_heads*head_dim][n_embd], ..., [n_embd][n_heads*head_dim] */
    const float *bq, *bk, *bv;    /* or NULL */
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    const float *ffn_norm;        /* [n_embd] */
    gs_mat w_gate, w_up, w_down;  /* [n_ff][n_embd] x2, [n_embd][n_ff]; the first expert's */
    gs_mat router;                /* [n_experts][n_embd] F32; data NULL: no experts */
    const float *post_attn_norm, *post_ffn_norm; /* with GS_ARCH_POST_NORM; else NULL */
} gs_layer;

/* Of an encoder. Biases may be NULL. */
typedef struct gs_encoder_layer {
    gs_mat wqkv;       /* [3 * n_embd][n_embd], or with data NULL: */
    gs_mat wq, wk, wv; /* [n_embd][n_embd] each */
    const float *bqkv, *bq, *bk, *bv;
    gs_mat wo; /* [n_embd][n_embd] */
    const float *bo;
    const float *attn_norm, *attn_norm_bias; /* [n_embd] LayerNorm after attention */
    gs_mat w_gate, w_up, w_down;             /* w_gate only with GS_ARCH_FFN_GATE */
    const float *b_up, *b_down;
    const float *out_norm, *out_norm_bias; /* [n_embd] LayerNorm after the feed-forward */
} gs_encoder_layer;

typedef struct gs_arch_ops gs_arch_ops; /* model/arch.h: one of the four vtables */

typedef struct gs_model {
    gs_hparams hp;
    const gs_arch_ops *arch;
    gs_mat tok_embd; /* [n_vocab][n_embd] */
    gs_mat output;   /* the same as tok_embd when tied */
    const float *output_norm;
    const float *rope_freqs; /* [n_rot/2] or NULL; likewise: */
    const float *rope_long, *rope_short;
    gs_layer *layers;                 /* [n_layers]; NULL in an encoder */
    gs_encoder_layer *encoder_layers; /* [n_layers]; NULL in a decoder */
    /* Encoders only: */
    gs_mat token_types;                      /* [n_types][n_embd], data NULL: none */
    gs_mat positions;                        /* [n_ctx_train][n_embd], with GS_ARCH_LEARNED_POS */
    const float *embd_norm, *embd_norm_bias; /* [n_embd] */
    /* Scores a sequence by its first token's state s: rank_out tanh(rank_in s), each with a bias
     * that may be NULL. rank_in's data NULL: rank_out s; rank_out's: the model has no scores. */
    gs_mat rank_in, rank_out; /* [n_embd][n_embd], [1][n_embd] */
    const float *rank_in_bias, *rank_out_bias;
    char name[128];      /* general.name, or the file's */
    size_t weight_bytes; /* memory held */
    void *impl;
} gs_model;

/* False: give up, with GS_ERR_CANCELLED. */
typedef bool (*gs_progress_fn)(void *arg, double done /* 0..1 */);

/* Reads only hyper-parameters and checks tensors: what `models inspect` and the loader share. */
int gs_hparams_read(const gs_gguf *g, gs_hparams *hp, char *err, size_t errlen);
/* Packs all weights, in parallel on pool (NULL: on this thread). g may be closed afterwards.
 * progress may be NULL; it is called on this thread. */
int gs_model_load(const gs_gguf *g, gs_pool *pool, gs_progress_fn progress, void *arg,
                  gs_model **out, char *err, size_t errlen);
/* XXH3 (128 bits) of the weights as they are in memory, so reading no file: of the same bytes and
 * shapes the same. What is said of them in words (hp) is not in it. */
void gs_model_hash(const gs_model *m, uint64_t out[2]);
void gs_model_free(gs_model *m);

#endif
