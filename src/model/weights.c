/* The tensors of decoders and encoders: tables drive checking and loading. */
#include "model/weights.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

typedef enum dim {
    DIM_NONE,
    DIM_EMBD,
    DIM_Q,       /* all query heads */
    DIM_KV,      /* all key (or value) heads */
    DIM_HEAD,    /* one head */
    DIM_FF,      /* feed-forward */
    DIM_VOCAB,   /* tokens */
    DIM_ROT,     /* rotated pairs of a head */
    DIM_QK,      /* all heads of queries and keys */
    DIM_QKV,     /* all heads of queries, keys and values */
    DIM_GATE_UP, /* both halves of a gated feed-forward */
    DIM_TYPES,   /* token types */
    DIM_CTX,     /* positions */
    DIM_SCORE,   /* one row */
    DIM_EXPERTS,
    DIM_ONE /* no dimension: the tensor is a vector */
} dim;

/* flag: the tensor exists in architectures that have this flag (0: in all). */
typedef struct rule {
    const char *name; /* after "blk.N." for layer tensors */
    size_t offset;    /* of the gs_mat, or the const float *, in gs_layer or gs_model */
    dim rows, cols;   /* rows DIM_ONE: a vector of cols floats */
    unsigned flag;
    bool optional;    /* may be absent where flag does not demand it */
    unsigned without; /* not in architectures that have this flag */
    dim first, whole; /* the tensor has `whole` rows, of which these begin at `first`; whole
                       * DIM_NONE: it has these alone */
    dim stack;        /* so many matrices in a third dimension; DIM_NONE: one, and two dimensions */
    bool exact;       /* a float type, which becomes F32 */
} rule;

#define L(field) offsetof(gs_layer, field)
#define E(field) offsetof(gs_encoder_layer, field)
#define M(field) offsetof(gs_model, field)
// clang-format off
static const rule layer_rules[] = {
    {"attn_norm.weight",            L(attn_norm),       DIM_ONE,   .cols = DIM_EMBD},
    {"attn_q.weight",               L(wq),              DIM_Q,     .cols = DIM_EMBD, .without = GS_ARCH_FUSED},
    {"attn_k.weight",               L(wk),              DIM_KV,    .cols = DIM_EMBD, .without = GS_ARCH_FUSED},
    {"attn_v.weight",               L(wv),              DIM_KV,    .cols = DIM_EMBD, .without = GS_ARCH_FUSED},
    {"attn_qkv.weight",             L(wq),              DIM_Q,     .cols = DIM_EMBD, .flag = GS_ARCH_FUSED, .whole = DIM_QKV},
    {"attn_qkv.weight",             L(wk),              DIM_KV,    .cols = DIM_EMBD, .flag = GS_ARCH_FUSED, .first = DIM_Q, .whole = DIM_QKV},
    {"attn_qkv.weight",             L(wv),              DIM_KV,    .cols = DIM_EMBD, .flag = GS_ARCH_FUSED, .first = DIM_QK, .whole = DIM_QKV},
    {"attn_output.weight",          L(wo),              DIM_EMBD,  .cols = DIM_Q},
    {"attn_q.bias",                 L(bq),              DIM_ONE,   .cols = DIM_Q, .flag = GS_ARCH_QKV_BIAS, .optional = true},
    {"attn_k.bias",                 L(bk),              DIM_ONE,   .cols = DIM_KV, .flag = GS_ARCH_QKV_BIAS, .optional = true},
    {"attn_v.bias",                 L(bv),              DIM_ONE,   .cols = DIM_KV, .flag = GS_ARCH_QKV_BIAS, .optional = true},
    {"attn_q_norm.weight",          L(q_norm),          DIM_ONE,   .cols = DIM_HEAD, .flag = GS_ARCH_QK_NORM},
    {"attn_k_norm.weight",          L(k_norm),          DIM_ONE,   .cols = DIM_HEAD, .flag = GS_ARCH_QK_NORM},
    {"post_attention_norm.weight",  L(post_attn_norm),  DIM_ONE,   .cols = DIM_EMBD, .flag = GS_ARCH_POST_NORM},
    {"ffn_norm.weight",             L(ffn_norm),        DIM_ONE,   .cols = DIM_EMBD},
    {"ffn_gate.weight",             L(w_gate),          DIM_FF,    .cols = DIM_EMBD, .without = GS_ARCH_FUSED | GS_ARCH_EXPERTS},
    {"ffn_up.weight",               L(w_up),            DIM_FF,    .cols = DIM_EMBD, .without = GS_ARCH_FUSED | GS_ARCH_EXPERTS},
    {"ffn_up.weight",               L(w_gate),          DIM_FF,    .cols = DIM_EMBD, .flag = GS_ARCH_FUSED, .whole = DIM_GATE_UP},
    {"ffn_up.weight",               L(w_up),            DIM_FF,    .cols = DIM_EMBD, .flag = GS_ARCH_FUSED, .first = DIM_FF, .whole = DIM_GATE_UP},
    {"ffn_down.weight",             L(w_down),          DIM_EMBD,  .cols = DIM_FF, .without = GS_ARCH_EXPERTS},
    {"ffn_gate_inp.weight",         L(router),          DIM_EXPERTS, .cols = DIM_EMBD, .flag = GS_ARCH_EXPERTS, .exact = true},
    {"ffn_gate_exps.weight",        L(w_gate),          DIM_FF,    .cols = DIM_EMBD, .flag = GS_ARCH_EXPERTS, .stack = DIM_EXPERTS},
    {"ffn_up_exps.weight",          L(w_up),            DIM_FF,    .cols = DIM_EMBD, .flag = GS_ARCH_EXPERTS, .stack = DIM_EXPERTS},
    {"ffn_down_exps.weight",        L(w_down),          DIM_EMBD,  .cols = DIM_FF, .flag = GS_ARCH_EXPERTS, .stack = DIM_EXPERTS},
    {"post_ffw_norm.weight",        L(post_ffn_norm),   DIM_ONE,   .cols = DIM_EMBD, .flag = GS_ARCH_POST_NORM},
};
static const rule model_rules[] = {
    {"token_embd.weight",           M(tok_embd),        DIM_VOCAB, .cols = DIM_EMBD},
    {"output_norm.weight",          M(output_norm),     DIM_ONE,   .cols = DIM_EMBD},
    {"output.weight",               M(output),          DIM_VOCAB, .cols = DIM_EMBD, .optional = true}, /* absent: tied */
    {"rope_freqs.weight",           M(rope_freqs),      DIM_ONE,   .cols = DIM_ROT, .optional = true},
    {"rope_factors_long.weight",    M(rope_long),       DIM_ONE,   .cols = DIM_ROT, .optional = true},
    {"rope_factors_short.weight",   M(rope_short),      DIM_ONE,   .cols = DIM_ROT, .optional = true},
};
/* Q, K and V lie apart or in one tensor: check_qkv. */
static const rule encoder_layer_rules[] = {
    {"attn_qkv.weight",             E(wqkv),            DIM_QKV,   .cols = DIM_EMBD, .optional = true},
    {"attn_qkv.bias",               E(bqkv),            DIM_ONE,   .cols = DIM_QKV, .optional = true},
    {"attn_q.weight",               E(wq),              DIM_Q,     .cols = DIM_EMBD, .optional = true},
    {"attn_q.bias",                 E(bq),              DIM_ONE,   .cols = DIM_Q, .optional = true},
    {"attn_k.weight",               E(wk),              DIM_KV,    .cols = DIM_EMBD, .optional = true},
    {"attn_k.bias",                 E(bk),              DIM_ONE,   .cols = DIM_KV, .optional = true},
    {"attn_v.weight",               E(wv),              DIM_KV,    .cols = DIM_EMBD, .optional = true},
    {"attn_v.bias",                 E(bv),              DIM_ONE,   .cols = DIM_KV, .optional = true},
    {"attn_output.weight",          E(wo),              DIM_EMBD,  .cols = DIM_Q},
    {"attn_output.bias",            E(bo),              DIM_ONE,   .cols = DIM_EMBD, .optional = true},
    {"attn_output_norm.weight",     E(attn_norm),       DIM_ONE,   .cols = DIM_EMBD},
    {"attn_output_norm.bias",       E(attn_norm_bias),  DIM_ONE,   .cols = DIM_EMBD},
    {"ffn_gate.weight",             E(w_gate),          DIM_FF,    .cols = DIM_EMBD, .flag = GS_ARCH_FFN_GATE},
    {"ffn_up.weight",               E(w_up),            DIM_FF,    .cols = DIM_EMBD},
    {"ffn_up.bias",                 E(b_up),            DIM_ONE,   .cols = DIM_FF, .optional = true},
    {"ffn_down.weight",             E(w_down),          DIM_EMBD,  .cols = DIM_FF},
    {"ffn_down.bias",               E(b_down),          DIM_ONE,   .cols = DIM_EMBD, .optional = true},
    {"layer_output_norm.weight",    E(out_norm),        DIM_ONE,   .cols = DIM_EMBD},
    {"layer_output_norm.bias",      E(out_norm_bias),   DIM_ONE,   .cols = DIM_EMBD},
};
static const rule encoder_model_rules[] = {
    {"token_embd.weight",           M(tok_embd),        DIM_VOCAB, .cols = DIM_EMBD},
    {"token_types.weight",          M(token_types),     DIM_TYPES, .cols = DIM_EMBD, .optional = true},
    {"position_embd.weight",        M(positions),       DIM_CTX,   .cols = DIM_EMBD, .flag = GS_ARCH_LEARNED_POS},
    {"token_embd_norm.weight",      M(embd_norm),       DIM_ONE,   .cols = DIM_EMBD},
    {"token_embd_norm.bias",        M(embd_norm_bias),  DIM_ONE,   .cols = DIM_EMBD},
    {"cls.weight",                  M(rank_in),         DIM_EMBD,  .cols = DIM_EMBD, .optional = true},
    {"cls.bias",                    M(rank_in_bias),    DIM_ONE,   .cols = DIM_EMBD, .optional = true},
    {"cls.output.weight",           M(rank_out),        DIM_SCORE, .cols = DIM_EMBD, .optional = true},
    {"cls.output.bias",             M(rank_out_bias),   DIM_ONE,   .cols = DIM_SCORE, .optional = true},
};
// clang-format on

typedef struct rule_set {
    const rule *rules;
    size_t n;
    gs_weight_kind kind; /* of what is no vector */
} rule_set;

static rule_set rules_of(unsigned flags, bool of_layer) {
#define SET(list, kind) ((rule_set){list, sizeof list / sizeof list[0], kind})
    if (flags & GS_ARCH_ENCODER)
        return of_layer ? SET(encoder_layer_rules, GS_WEIGHT_DENSE)
                        : SET(encoder_model_rules, GS_WEIGHT_MAT);
    return of_layer ? SET(layer_rules, GS_WEIGHT_MAT) : SET(model_rules, GS_WEIGHT_MAT);
#undef SET
}

static int32_t dim_size(const gs_hparams *hp, dim d) {
    switch (d) {
    case DIM_NONE:
        return 0;
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
    case DIM_QK:
        return (hp->n_heads + hp->n_kv_heads) * hp->head_dim;
    case DIM_QKV:
        return (hp->n_heads + 2 * hp->n_kv_heads) * hp->head_dim;
    case DIM_EXPERTS:
        return hp->n_experts;
    case DIM_GATE_UP:
        return 2 * hp->n_ff;
    case DIM_TYPES:
        return hp->n_types;
    case DIM_CTX:
        return hp->n_ctx_train;
    case DIM_SCORE:
    case DIM_ONE:
        break;
    }
    return 1;
}

static bool rule_applies(const rule *r, unsigned flags) {
    return (r->flag == 0 || (flags & r->flag) != 0 || r->optional) && !(flags & r->without);
}

static bool rule_required(const rule *r, unsigned flags) {
    return !r->optional || (r->flag != 0 && (flags & r->flag) != 0);
}

static int check_tensor(const rule *r, const char *name, const gs_gguf_tensor *t,
                        const gs_hparams *hp, char *err, size_t errlen) {
    dim all = r->whole != DIM_NONE ? r->whole : r->rows;
    uint64_t cols = (uint64_t)dim_size(hp, r->cols), rows = (uint64_t)dim_size(hp, all);
    uint64_t copies = r->stack != DIM_NONE ? (uint64_t)dim_size(hp, r->stack) : 1;
    if (t->ne[0] != cols || t->ne[1] != rows || t->ne[2] != copies || t->n_rows != rows * copies)
        return gs_fail(err, errlen, GS_ERR_FORMAT,
                       "%s: shape [%llu, %llu, %llu, %llu] instead of [%llu, %llu, %llu]", name,
                       (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
                       (unsigned long long)t->ne[2], (unsigned long long)t->ne[3],
                       (unsigned long long)cols, (unsigned long long)rows,
                       (unsigned long long)copies);
    const gs_qtype_info *info = gs_qtype_get((uint32_t)t->type);
    const char *type = info ? info->name : "?";
    if ((r->rows == DIM_ONE || r->exact) && t->type != GS_QTYPE_F32 && t->type != GS_QTYPE_F16 &&
        t->type != GS_QTYPE_BF16)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "%s: type %s is not supported for a %s",
                       name, type, r->exact ? "router" : "vector");
    if (r->rows == DIM_ONE)
        return GS_OK;
    gs_mat m;
    if (!gs_mat_type_ok(t->type))
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "%s: type %s is not supported", name, type);
    if (gs_mat_init(&m, t->type, (int32_t)rows, (int32_t)cols) != GS_OK)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                       "%s: rows of %llu values are not supported for type %s", name,
                       (unsigned long long)cols, type);
    return GS_OK;
}

/* One tensor for Q, K and V, or three: exactly one way, with biases of the same kind. */
static int check_qkv(const gs_gguf *g, int32_t layer, char *err, size_t errlen) {
    static const char *const names[] = {"attn_qkv", "attn_q", "attn_k", "attn_v"};
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", layer);
    bool fused = gs_gguf_tensor_find(g, name) != NULL;
    for (int i = 0; i < 4; i++) {
        bool wanted = fused == (i == 0);
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, names[i]);
        bool there = gs_gguf_tensor_find(g, name) != NULL;
        if (wanted && !there)
            return gs_fail(err, errlen, GS_ERR_FORMAT, "%s: the tensor is missing", name);
        if (!wanted && !there)
            snprintf(name, sizeof name, "blk.%d.%s.bias", layer, names[i]);
        if (!wanted && gs_gguf_tensor_find(g, name))
            return gs_fail(err, errlen, GS_ERR_FORMAT, "%s: the tensor is there beside blk.%d.%s",
                           name, layer, fused ? "attn_qkv.weight" : "attn_q.weight");
    }
    return GS_OK;
}

static gs_weight weight_of(const rule *r, gs_weight_kind kind, int32_t layer,
                           const gs_gguf_tensor *t, const gs_hparams *hp) {
    return (gs_weight){.tensor = t,
                       .kind = r->rows == DIM_ONE ? GS_WEIGHT_VEC
                               : r->exact         ? GS_WEIGHT_F32
                                                  : kind,
                       .layer = layer,
                       .offset = r->offset,
                       .first = dim_size(hp, r->first),
                       .rows = dim_size(hp, r->rows),
                       .cols = dim_size(hp, r->cols),
                       .copies = r->stack != DIM_NONE ? dim_size(hp, r->stack) : 1};
}

int gs_weights_visit(const gs_gguf *g, const gs_arch_ops *arch, const gs_hparams *hp,
                     gs_weight_fn fn, void *arg, char *err, size_t errlen) {
    char name[64];
    for (int32_t layer = -1; layer < hp->n_layers; layer++) {
        const rule_set set = rules_of(arch->flags, layer >= 0);
        const rule *rules = set.rules;
        if (layer >= 0 && arch->flags & GS_ARCH_ENCODER) {
            int rc = check_qkv(g, layer, err, errlen);
            if (rc != GS_OK)
                return rc;
        }
        for (size_t i = 0; i < set.n; i++) {
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
            const gs_weight w = weight_of(&rules[i], set.kind, layer, t, hp);
            if (rc == GS_OK && fn)
                rc = fn(arg, &w);
            if (rc != GS_OK)
                return rc;
        }
    }
    return GS_OK;
}

static bool name_known(gs_str name, unsigned flags, int32_t n_layers) {
    rule_set set = rules_of(flags, false);
    size_t at = 0;
    if (name.len > 4 && memcmp(name.data, "blk.", 4) == 0) {
        int32_t layer = 0;
        for (at = 4; at < name.len && name.data[at] >= '0' && name.data[at] <= '9'; at++)
            if ((layer = layer * 10 + (name.data[at] - '0')) >= n_layers)
                return false;
        if (at == 4 || at == name.len || name.data[at] != '.')
            return false;
        at++;
        set = rules_of(flags, true);
    }
    for (size_t i = 0; i < set.n; i++)
        if (rule_applies(&set.rules[i], flags) && strlen(set.rules[i].name) == name.len - at &&
            memcmp(set.rules[i].name, name.data + at, name.len - at) == 0)
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
