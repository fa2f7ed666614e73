/*
 * Model architectures: one of the four vtables. An entry says what differs from the common
 * decoder (RMSNorm, grouped-query attention with rotary embedding, gated feed-forward) or, with
 * GS_ARCH_ENCODER, from the common encoder (Devlin et al. 2018: each token sees all of them,
 * LayerNorm after each residual, biases where the file has them): flags for the tensors and
 * operators it has, and a hook for hyper-parameters of its own. The engine's forward passes read
 * the flags and gs_hparams, and have no code per architecture.
 */
#ifndef GS_MODEL_ARCH_H
#define GS_MODEL_ARCH_H

#include "model/keys.h"
#include "model/model.h"

enum {
    GS_ARCH_QK_NORM = 1,       /* RMSNorm over each query and key head before the rotation */
    GS_ARCH_QKV_BIAS = 2,      /* biases on Q, K and V are required (elsewhere: taken if present) */
    GS_ARCH_POST_NORM = 4,     /* RMSNorm after attention and feed-forward, before the residual */
    GS_ARCH_FFN_GELU = 8,      /* gelu(gate) * up instead of silu(gate) * up */
    GS_ARCH_ROPE_NEOX = 16,    /* pairs (i, i + n_rot/2) instead of (2i, 2i + 1) */
    GS_ARCH_EMBD_SCALE = 32,   /* embeddings are multiplied by sqrt(n_embd) */
    GS_ARCH_ENCODER = 64,      /* an encoder: the flags below, FFN_GELU and ROPE_NEOX go with it */
    GS_ARCH_LEARNED_POS = 128, /* position embeddings instead of rotation */
    GS_ARCH_FFN_GATE = 256,    /* act(gate) * up instead of act(up) */
    GS_ARCH_FUSED = 512,       /* one tensor for Q, K and V, and one for gate and up */
    GS_ARCH_EXPERTS = 1024     /* a mixture of experts in place of the feed-forward network */
};

struct gs_arch_ops {
    const char *name; /* general.architecture */
    unsigned flags;   /* GS_ARCH_ */
    /* Optional: reads or derives what only this architecture has, after the common part of *hp
     * is filled and checked; returns k->rc. NULL: nothing. */
    int (*hparams)(gs_keys *k, gs_hparams *hp);
};

/* NULL: not one of ours. */
const gs_arch_ops *gs_arch_find(gs_str name);
/* "llama, qwen2, ..." into buf, always terminated. */
void gs_arch_list(char *buf, size_t size);

/*
 * The tensors of an architecture, one table (weights.c). Checks every shape and type against hp,
 * and that the file has no tensor that would be ignored.
 */
int gs_tensors_check(const gs_gguf *g, const gs_arch_ops *arch, const gs_hparams *hp, char *err,
                     size_t errlen);

#endif
