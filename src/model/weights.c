/* The tensors of a decoder: one table drives checking and loading. */
#include "model/weights.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

typedef enum dim {
    DIM_EMBD,
    DIM_Q,     /* all query heads */
    DIM_KV,    /* all key (or value) heads */
    DIM_HEAD,  /* one head */
    DIM_FF,    /* feed-forward */
    DIM_VOCAB, /* tokens */
    DIM_ROT,   /* rotated pairs of a head */
    DIM_ONE    /* no dimension: the tensor is a vector */
} dim;

/* flag: the tensor exists in architectures that have this flag (0: in all). */
typedef struct rule {
    const char *name; /* after "blk.N." for layer tensors */
    size_t offset;    /* of the gs_mat, or the const float *, in gs_layer or gs_model */
    dim rows, cols;   /* rows DIM_ONE: a vector of cols floats */
    unsigned flag;
    bool optional; /* may be absent where flag does not demand it */
} rule;

#define L(field) offsetof(gs_layer, field)
#define M(field) offsetof(gs_model, field)
// clang-format off
static const rule layer_rules[] = {
    {"attn_norm.weight",           L(attn_norm),      DIM_ONE,  DIM_EMBD, 0, false},
    {"attn_q.weight",              L(wq),             DIM_Q,    DIM_EMBD, 0, false},
    {"attn_k.weight",              L(wk),             DIM_KV,   DIM_EMBD, 0, false},
    {"attn_v.weight",              L(wv),             DIM_KV,   DIM_EMBD, 0, false},
    {"attn_output.weight",         L(wo),             DIM_EMBD, DIM_Q,    0, false},
    {"attn_q.bias",                L(bq),             DIM_ONE,  DIM_Q,    GS_ARCH_QKV_BIAS, true},
    {"attn_k.bias",                L(bk),             DIM_ONE,  DIM_KV,   GS_ARCH_QKV_BIAS, true},
    {"attn_v.bias",                L(bv),             DIM_ONE,  DIM_KV,   GS_ARCH_QKV_BIAS, true},
    {"attn_q_norm.weight",         L(q_norm),         DIM_ONE,  DIM_HEAD, GS_ARCH_QK_NORM, false},
    {"attn_k_norm.weight",         L(k_norm),         DIM_ONE,  DIM_HEAD, GS_ARCH_QK_NORM, false},
    {"post_attention_norm.weight", L(post_attn_norm), DIM_ONE,  DIM_EMBD, GS_ARCH_POST_NORM, false},
    {"ffn_norm.weight",            L(ffn_norm),       DIM_ONE,  DIM_EMBD, 0, false},
    {"ffn_gate.weight",            L(w_gate),         DIM_FF,   DIM_EMBD, 0, false},
    {"ffn_up.weight",              L(w_up),           DIM_FF,   DIM_EMBD, 0, false},
    {"ffn_down.weight",            L(w_down),         DIM_EMBD, DIM_FF,   0, false},
    {"post_ffw_norm.weight",       L(post_ffn_norm),  DIM_ONE,  DIM_EMBD, GS_ARCH_POST_NORM, false},
};
static const rule model_rules[] = {
    {"token_embd.weight",  M(tok_embd),    DIM_VOCAB, DIM_EMBD, 0, false},
    {"output_norm.weight", M(output_norm), DIM_ONE,   DIM_EMBD, 0, false},
    {"output.weight",      M(output),      DIM_VOCAB, DIM_EMBD, 0, true}, /* absent: tied */
    {"rope_freqs.weight",  M(rope_freqs),  DIM_ONE,   DIM_ROT,  0, true},
};
// clang-format on
#define N_LAYER_RULES (sizeof layer_rules / sizeof layer_rules[0])
#define N_MODEL_RULES (sizeof model_rules / sizeof model_rules[0])

static int32_t dim_size(const gs_hparams *hp, dim d) {
    switch (d) {
    case DIM_EMBD:
        return hp->n_embd;
    case DIM_Q:
        return hp->n_heads * hp->head_dim;
    case DIM_KV:
        return hp->n_kv_heads * hp->head_dim;
    case DIM_HEAD:
        return hp->head_dim;
    case DIM_FF:
        return hp->n_ff;
    case DIM_VOCAB:
        return hp->n_vocab;
    case DIM_ROT:
        return hp->n_rot / 2;
    case DIM_ONE:
        break;
    }
    return 1;
}

static bool rule_applies(const rule *r, unsigned flags) {
    return r->flag == 0 || (flags & r->flag) != 0 || r->optional;
}

static bool rule_required(const rule *r, unsigned flags) {
    return !r->optional || (r->flag != 0 && (flags & r->flag) != 0);
}

static int check_tensor(const rule *r, const char *name, const gs_gguf_tensor *t,
                        const gs_hparams *hp, char *err, size_t errlen) {
    uint64_t cols = (uint64_t)dim_size(hp, r->cols), rows = (uint64_t)dim_size(hp, r->rows);
    if (t->ne[0] != cols || t->ne[1] != rows || t->n_rows != rows)
        return gs_fail(err, errlen, GS_ERR_FORMAT,
                       "%s: shape [%llu, %llu, %llu, %llu] instead of [%llu, %llu]", name,
                       (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
                       (unsigned long long)t->ne[2], (unsigned long long)t->ne[3],
                       (unsigned long long)cols, (unsigned long long)rows);
    const gs_qtype_info *info = gs_qtype_get((uint32_t)t->type);
    const char *type = info ? info->name : "?";
    if (r->rows == DIM_ONE) {
        if (t->type != GS_QTYPE_F32 && t->type != GS_QTYPE_F16 && t->type != GS_QTYPE_BF16)
            return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                           "%s: type %s is not supported for a vector", name, type);
        return GS_OK;
    }
    gs_mat m;
    if (!gs_mat_type_ok(t->type))
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "%s: type %s is not supported", name, type);
    if (gs_mat_init(&m, t->type, (int32_t)rows, (int32_t)cols) != GS_OK)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                       "%s: rows of %llu values are not supported for type %s", name,
                       (unsigned long long)cols, type);
    return GS_OK;
}

int gs_weights_visit(const gs_gguf *g, const gs_arch_ops *arch, const gs_hparams *hp,
                     gs_weight_fn fn, void *arg, char *err, size_t errlen) {
    char name[64];
    for (int32_t layer = -1; layer < hp->n_layers; layer++) {
        const rule *rules = layer < 0 ? model_rules : layer_rules;
        size_t n = layer < 0 ? N_MODEL_RULES : N_LAYER_RULES;
        for (size_t i = 0; i < n; i++) {
            if (!rule_applies(&rules[i], arch->flags))
                continue;
            if (layer < 0)
                snprintf(name, sizeof name, "%s", rules[i].name);
            else
                snprintf(name, sizeof name, "blk.%d.%s", layer, rules[i].name);
            const gs_gguf_tensor *t = gs_gguf_tensor_find(g, name);
            if (!t && rule_required(&rules[i], arch->flags))
                return gs_fail(err, errlen, GS_ERR_FORMAT, "%s: the tensor is missing", name);
            if (!t)
                continue;
            int rc = check_tensor(&rules[i], name, t, hp, err, errlen);
            if (rc == GS_OK && fn)
                rc = fn(arg, layer, rules[i].offset, rules[i].rows != DIM_ONE, t);
            if (rc != GS_OK)
                return rc;
        }
    }
    return GS_OK;
}

static bool name_known(gs_str name, unsigned flags, int32_t n_layers) {
    const rule *rules = model_rules;
    size_t n_rules = N_MODEL_RULES, at = 0;
    if (name.len > 4 && memcmp(name.data, "blk.", 4) == 0) {
        int32_t layer = 0;
        for (at = 4; at < name.len && name.data[at] >= '0' && name.data[at] <= '9'; at++)
            if ((layer = layer * 10 + (name.data[at] - '0')) >= n_layers)
                return false;
        if (at == 4 || at == name.len || name.data[at] != '.')
            return false;
        at++;
        rules = layer_rules;
        n_rules = N_LAYER_RULES;
    }
    for (size_t i = 0; i < n_rules; i++)
        if (rule_applies(&rules[i], flags) && strlen(rules[i].name) == name.len - at &&
            memcmp(rules[i].name, name.data + at, name.len - at) == 0)
            return true;
    return false;
}

int gs_tensors_check(const gs_gguf *g, const gs_arch_ops *arch, const gs_hparams *hp, char *err,
                     size_t errlen) {
    int rc = gs_weights_visit(g, arch, hp, NULL, NULL, err, errlen);
    if (rc != GS_OK)
        return rc;
    /* A tensor that nobody reads means that the model is not the one we would compute. */
    for (size_t i = 0; i < gs_gguf_n_tensors(g); i++) {
        gs_str name = gs_gguf_tensor_at(g, i)->name;
        if (!name_known(name, arch->flags, hp->n_layers))
            return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                           "%.*s: the tensor is unknown in a model of architecture %s",
                           (int)name.len, name.data, arch->name);
    }
    return GS_OK;
}
