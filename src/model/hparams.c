/* Hyper-parameters of a model from GGUF metadata: read, bounded, and consistent with each other
 * before anything is allocated for them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "kernels/moe.h"
#include "model/arch.h"
#include "model/hparams.h"
#include "model/keys.h"

/* Far above any real model; low enough that products of two fit 32 bits with room. */
#define MAX_EMBD     (1 << 17)
#define MAX_FF       (1 << 20)
#define MAX_VOCAB    (1 << 22)
#define MAX_HEADS    1024
#define MAX_CTX      (1 << 28)
#define MAX_HEAD_DIM 256
#define MAX_TYPES    64
#define POOLING_RANK 4 /* the last of the numbers of pooling_type */

/* String values are any bytes; messages are not. */
static void printable(gs_str s, char *buf, size_t size) {
    size_t n = s.len < size - 1 ? s.len : size - 1;
    for (size_t i = 0; i < n; i++)
        buf[i] = s.data[i] > ' ' && s.data[i] < 127 ? s.data[i] : '?';
    buf[n] = '\0';
}

/* Linear scaling divides positions by a factor, longrope (Ding et al. 2024) brings factors of its
 * own as tensors; the other methods change results in ways that this engine does not compute, so
 * they are refused rather than ignored. */
static float read_rope_scale(gs_keys *r) {
    char key[128];
    gs_str type = {"", 0};
    float factor = gs_keys_float(r, "rope.scale_linear", 0.0f, 1e6f, 0.0f);
    factor = gs_keys_float(r, "rope.scaling.factor", 0.0f, 1e6f, factor);
    gs_keys_name(r, "rope.scaling.type", key);
    if (r->rc != GS_OK)
        return 1.0f;
    int rc = gs_gguf_get_str(r->g, key, &type, r->err, r->errlen);
    if (rc != GS_OK && rc != GS_ERR_NOT_FOUND) {
        r->rc = rc;
        return 1.0f;
    }
    if (type.len == 4 && memcmp(type.data, "none", 4) == 0)
        return 1.0f;
    bool longrope = type.len == 8 && memcmp(type.data, "longrope", 8) == 0;
    if (type.len != 0 && !longrope && !(type.len == 6 && memcmp(type.data, "linear", 6) == 0)) {
        char shown[33];
        printable(type, shown, sizeof shown);
        r->rc = gs_fail(r->err, r->errlen, GS_ERR_UNSUPPORTED,
                        "%s: scaling of type '%s' is not supported (linear, longrope and none are)",
                        key, shown);
        return 1.0f;
    }
    if (longrope && !gs_gguf_tensor_find(r->g, "rope_factors_long.weight"))
        r->rc = gs_fail(r->err, r->errlen, GS_ERR_FORMAT,
                        "rope_factors_long.weight: the tensor is missing (%s says longrope)", key);
    return factor > 0.0f ? 1.0f / factor : 1.0f;
}

/* The embedding's rows are the vocabulary; other places that state it must agree. */
static int read_vocab(gs_keys *r, gs_hparams *hp) {
    const gs_gguf_tensor *t = gs_gguf_tensor_find(r->g, "token_embd.weight");
    if (!t)
        return r->rc = gs_fail(r->err, r->errlen, GS_ERR_FORMAT,
                               "token_embd.weight: the tensor is missing");
    if (t->n_dims != 2 || t->ne[1] < 1 || t->ne[1] > MAX_VOCAB)
        return r->rc = gs_fail(r->err, r->errlen, GS_ERR_FORMAT,
                               "token_embd.weight: %llu rows are not in 1..%d",
                               (unsigned long long)t->ne[1], MAX_VOCAB);
    hp->n_vocab = (int32_t)t->ne[1];
    int32_t stated = gs_keys_int(r, "vocab_size", 1, MAX_VOCAB, hp->n_vocab);
    if (r->rc == GS_OK && stated != hp->n_vocab)
        return gs_keys_fail(r, GS_ERR_FORMAT, "vocab_size",
                            "differs from the rows of token_embd.weight");
    const gs_gguf_kv *tokens = gs_gguf_find(r->g, "tokenizer.ggml.tokens");
    if (r->rc == GS_OK && tokens && tokens->n != (uint64_t)hp->n_vocab)
        return r->rc = gs_fail(r->err, r->errlen, GS_ERR_FORMAT,
                               "tokenizer.ggml.tokens: %llu tokens, but token_embd.weight has %d "
                               "rows",
                               (unsigned long long)tokens->n, hp->n_vocab);
    return r->rc;
}

static int read_heads(gs_keys *r, gs_hparams *hp) {
    hp->n_heads = gs_keys_int(r, "attention.head_count", 1, MAX_HEADS, -1);
    hp->n_kv_heads = gs_keys_int(r, "attention.head_count_kv", 1, MAX_HEADS, hp->n_heads);
    if (r->rc != GS_OK)
        return r->rc;
    if (hp->n_heads % hp->n_kv_heads != 0)
        return gs_keys_fail(r, GS_ERR_FORMAT, "attention.head_count",
                            "no multiple of head_count_kv");
    int32_t def = hp->n_embd / hp->n_heads;
    hp->head_dim = gs_keys_int(r, "attention.key_length", 1, MAX_HEAD_DIM, def);
    int32_t value = gs_keys_int(r, "attention.value_length", 1, MAX_HEAD_DIM, hp->head_dim);
    if (r->rc != GS_OK)
        return r->rc;
    if (value != hp->head_dim)
        return gs_keys_fail(r, GS_ERR_UNSUPPORTED, "attention.value_length",
                            "differs from attention.key_length");
    if (hp->head_dim < 16 || hp->head_dim % 16 != 0 || hp->head_dim > MAX_HEAD_DIM)
        return gs_keys_fail(r, GS_ERR_UNSUPPORTED, "attention.key_length",
                            "heads must be a multiple of 16 wide, at most 256");
    hp->n_rot = gs_keys_int(r, "rope.dimension_count", 2, hp->head_dim, hp->head_dim);
    if (r->rc == GS_OK && hp->n_rot % 2 != 0)
        return gs_keys_fail(r, GS_ERR_FORMAT, "rope.dimension_count", "is odd");
    return r->rc;
}

/* How states become one vector; a score needs the tensor that makes it. */
static int read_pooling(gs_keys *r, gs_hparams *hp, bool encoder) {
    int32_t stated = gs_keys_int(r, "pooling_type", 0, POOLING_RANK, POOLING_RANK + 1);
    hp->pooling = stated <= POOLING_RANK ? stated : -1;
    if (r->rc == GS_OK && stated == POOLING_RANK && !encoder)
        return gs_keys_fail(r, GS_ERR_UNSUPPORTED, "pooling_type",
                            "scores are only had of encoders");
    if (r->rc == GS_OK && stated == POOLING_RANK && !gs_gguf_tensor_find(r->g, "cls.output.weight"))
        return r->rc = gs_fail(r->err, r->errlen, GS_ERR_FORMAT,
                               "cls.output.weight: the tensor is missing (%s.pooling_type says "
                               "rank)",
                               r->arch);
    return r->rc;
}

/* What only encoders have, and what they must not have. */
static int read_encoder(gs_keys *r, gs_hparams *hp) {
    hp->encoder = true;
    if (hp->n_kv_heads != hp->n_heads || hp->n_heads * hp->head_dim != hp->n_embd)
        return gs_keys_fail(
            r, GS_ERR_UNSUPPORTED, "attention.head_count",
            "an encoder's heads together must be as wide as its embeddings, each with keys "
            "of its own");
    if (gs_keys_bool(r, "attention.causal", false) && r->rc == GS_OK)
        return gs_keys_fail(r, GS_ERR_UNSUPPORTED, "attention.causal",
                            "encoders that look only backwards are not supported");
    const gs_gguf_tensor *types = gs_gguf_tensor_find(r->g, "token_types.weight");
    if (types && (types->ne[1] < 1 || types->ne[1] > MAX_TYPES))
        return r->rc = gs_fail(r->err, r->errlen, GS_ERR_FORMAT,
                               "token_types.weight: %llu rows are not in 1..%d",
                               (unsigned long long)types->ne[1], MAX_TYPES);
    hp->n_types = types ? (int32_t)types->ne[1] : 0;
    /* The format's own spelling. */
    uint32_t sep = 0;
    int rc = gs_gguf_get_u32(r->g, "tokenizer.ggml.seperator_token_id", &sep, r->err, r->errlen);
    if (rc != GS_OK && rc != GS_ERR_NOT_FOUND)
        r->rc = rc;
    hp->sep_token = rc == GS_OK && sep < (uint32_t)hp->n_vocab ? (int32_t)sep : -1;
    return r->rc;
}

/* How many experts there are, and how many each token is given to. */
static int read_experts(gs_keys *r, gs_hparams *hp, bool experts) {
    if (!experts) {
        if (gs_keys_int(r, "expert_count", 0, INT32_MAX, 0) > 0 && r->rc == GS_OK)
            return gs_keys_fail(r, GS_ERR_UNSUPPORTED, "expert_count",
                                "mixtures of experts are not supported in this architecture");
        return r->rc;
    }
    hp->n_experts = gs_keys_int(r, "expert_count", 1, GS_MOE_MAX_EXPERTS, -1);
    hp->n_experts_used = gs_keys_int(r, "expert_used_count", 1, GS_MOE_MAX_USED, -1);
    hp->expert_scale = gs_keys_float(r, "expert_weights_scale", 0.0f, 1e6f, 0.0f);
    if (hp->expert_scale == 0.0f) /* what says: none */
        hp->expert_scale = 1.0f;
    if (r->rc == GS_OK && hp->n_experts_used > hp->n_experts)
        return gs_keys_fail(r, GS_ERR_FORMAT, "expert_used_count", "exceeds expert_count");
    return r->rc;
}

static int read_common(gs_keys *r, gs_hparams *hp, unsigned flags) {
    hp->n_ctx_train = gs_keys_int(r, "context_length", 1, MAX_CTX, -1);
    hp->n_embd = gs_keys_int(r, "embedding_length", 32, MAX_EMBD, -1);
    hp->n_layers = gs_keys_int(r, "block_count", 1, GS_MAX_LAYERS, -1);
    const bool experts = (flags & GS_ARCH_EXPERTS) != 0;
    const char *width = experts ? "expert_feed_forward_length" : "feed_forward_length";
    hp->n_ff = gs_keys_int(r, width, 32, MAX_FF, -1);
    if (r->rc != GS_OK)
        return r->rc;
    if (hp->n_embd % 32 != 0)
        return gs_keys_fail(r, GS_ERR_UNSUPPORTED, "embedding_length", "is no multiple of 32");
    if (hp->n_ff % 32 != 0)
        return gs_keys_fail(r, GS_ERR_UNSUPPORTED, width, "is no multiple of 32");
    if (read_experts(r, hp, experts) != GS_OK || read_heads(r, hp) != GS_OK ||
        read_vocab(r, hp) != GS_OK)
        return r->rc;
    if (hp->n_heads * hp->head_dim % 32 != 0)
        return gs_keys_fail(r, GS_ERR_UNSUPPORTED, "attention.head_count",
                            "all heads together are no multiple of 32 wide");
    bool encoder = (flags & GS_ARCH_ENCODER) != 0;
    hp->norm_eps = gs_keys_float(
        r, encoder ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 1e-12f,
        1.0f, NAN);
    if (read_pooling(r, hp, encoder) != GS_OK)
        return r->rc;
    float base = gs_keys_float(r, "rope.freq_base", 1.0f, 1e15f, 10000.0f);
    float scale = read_rope_scale(r);
    for (int32_t i = 0; i < hp->n_layers; i++) {
        hp->layer_rope_base[i] = base;
        hp->layer_rope_scale[i] = scale;
    }
    hp->rope_magnitude = gs_keys_float(r, "rope.scaling.attn_factor", 1e-3f, 1e3f, 1.0f);
    hp->n_ctx_short =
        gs_keys_int(r, "rope.scaling.original_context_length", 1, MAX_CTX, hp->n_ctx_train);
    hp->attn_scale = 1.0f / sqrtf((float)hp->head_dim);
    hp->rope_neox = (flags & GS_ARCH_ROPE_NEOX) != 0;
    hp->ffn_gelu = (flags & GS_ARCH_FFN_GELU) != 0;
    hp->embd_scale = flags & GS_ARCH_EMBD_SCALE ? sqrtf((float)hp->n_embd) : 1.0f;
    hp->residual_scale = hp->logit_scale = 1.0f;
    return r->rc == GS_OK && encoder ? read_encoder(r, hp) : r->rc;
}

int gs_hparams_read_arch(const gs_gguf *g, gs_hparams *hp, const gs_arch_ops **out, char *err,
                         size_t errlen) {
    gs_str name = {"", 0};
    int rc = gs_gguf_get_str(g, "general.architecture", &name, err, errlen);
    if (rc == GS_ERR_NOT_FOUND)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "general.architecture: the key is missing");
    if (rc != GS_OK)
        return rc;
    const gs_arch_ops *arch = gs_arch_find(name);
    if (!arch) {
        char list[256], shown[65];
        printable(name, shown, sizeof shown);
        gs_arch_list(list, sizeof list);
        if (strcmp(shown, "nomic-bert-moe") == 0)
            return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                           "general.architecture: %s: mixtures of experts are not supported",
                           shown);
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                       "general.architecture: '%s' is not supported (supported: %s)", shown, list);
    }
    memset(hp, 0, sizeof *hp);
    hp->arch = arch->name;
    gs_keys r = {g, arch->name, err, errlen, GS_OK};
    rc = read_common(&r, hp, arch->flags);
    if (rc == GS_OK && arch->hparams)
        rc = arch->hparams(&r, hp);
    if (rc == GS_OK)
        rc = gs_tensors_check(g, arch, hp, err, errlen);
    *out = arch;
    return rc;
}

int gs_hparams_read(const gs_gguf *g, gs_hparams *hp, char *err, size_t errlen) {
    const gs_arch_ops *arch;
    return gs_hparams_read_arch(g, hp, &arch, err, errlen);
}
