#include "api/facts.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/jsonw.h"
#include "base/sys.h"

/* ---- Metadata as JSON
 * ------------------------------------------------------------------------------------ */

static void put_value(gs_jsonw *w, const gs_gguf *g, const char *key, gs_gguf_vtype type) {
    int64_t i = 0;
    float f = 0;
    bool b = false;
    gs_str s = {"", 0};
    switch (type) {
    case GS_GGUF_F32:
    case GS_GGUF_F64:
        gs_gguf_get_f32(g, key, &f, NULL, 0);
        gs_jsonw_num(w, (double)f);
        break;
    case GS_GGUF_BOOL:
        gs_gguf_get_bool(g, key, &b, NULL, 0);
        gs_jsonw_bool(w, b);
        break;
    case GS_GGUF_STR:
        gs_gguf_get_str(g, key, &s, NULL, 0);
        gs_jsonw_strn(w, s.data, s.len);
        break;
    case GS_GGUF_ARR:
        gs_jsonw_null(w);
        break;
    default:
        gs_gguf_get_i64(g, key, &i, NULL, 0);
        gs_jsonw_int(w, i);
        break;
    }
}

static int put_info(const gs_gguf *g, gs_model_facts *f) {
    gs_buf out = {0};
    gs_jsonw w;
    char key[GS_GGUF_MAX_NAME + 1];
    gs_jsonw_init(&w, &out);
    gs_jsonw_obj(&w);
    for (size_t i = 0; i < gs_gguf_n_kv(g); i++) {
        const gs_gguf_kv *kv = gs_gguf_kv_at(g, i);
        snprintf(key, sizeof(key), "%.*s", (int)kv->key.len, kv->key.data);
        if (strcmp(key, "tokenizer.chat_template") == 0 ||
            strcmp(key, "general.parameter_count") == 0)
            continue; /* the one is told elsewhere, the other is counted */
        gs_jsonw_key(&w, key);
        put_value(&w, g, key, kv->type);
    }
    gs_jsonw_key(&w, "general.parameter_count");
    gs_jsonw_int(&w, (int64_t)f->n_params);
    gs_jsonw_end_obj(&w);
    if (out.failed) {
        gs_buf_deinit(&out);
        return GS_ERR_NOMEM;
    }
    f->info_json = gs_buf_take(&out, NULL);
    return f->info_json ? 0 : GS_ERR_NOMEM;
}

/* ---- Sizes and types
 * ------------------------------------------------------------------------------------- */

/* Numbers of general.file_type: llama.cpp's llama_ftype. */
static const struct {
    uint32_t number;
    const char *name;
} file_types[] = {
    {0, "F32"},     {1, "F16"},     {2, "Q4_0"},    {3, "Q4_1"},    {7, "Q8_0"},
    {8, "Q5_0"},    {9, "Q5_1"},    {10, "Q2_K"},   {11, "Q3_K_S"}, {12, "Q3_K_M"},
    {13, "Q3_K_L"}, {14, "Q4_K_S"}, {15, "Q4_K_M"}, {16, "Q5_K_S"}, {17, "Q5_K_M"},
    {18, "Q6_K"},   {25, "IQ4_NL"}, {32, "BF16"},   {38, "MXFP4"},
};

/* Files without a known file type are named by the type that most of their bytes have. */
static const char *main_type(const gs_gguf *g) {
    uint64_t bytes[64] = {0};
    uint32_t best = 0;
    for (size_t i = 0; i < gs_gguf_n_tensors(g); i++) {
        const gs_gguf_tensor *t = gs_gguf_tensor_at(g, i);
        if ((uint32_t)t->type < 64)
            bytes[t->type] += t->n_bytes;
    }
    for (uint32_t k = 1; k < 64; k++)
        best = bytes[k] > bytes[best] ? k : best;
    const gs_qtype_info *q = gs_qtype_get(best);
    return q && bytes[best] > 0 ? q->name : "unknown";
}

static void read_sizes(const gs_gguf *g, gs_model_facts *f) {
    uint32_t type = UINT32_MAX;
    const char *name = NULL;
    for (size_t i = 0; i < gs_gguf_n_tensors(g); i++) {
        const gs_gguf_tensor *t = gs_gguf_tensor_at(g, i);
        f->n_params += t->ne[0] * t->n_rows;
    }
    f->file_bytes = gs_gguf_file_bytes(g);
    gs_gguf_get_u32(g, "general.file_type", &type, NULL, 0);
    for (size_t i = 0; i < sizeof(file_types) / sizeof(file_types[0]); i++)
        name = file_types[i].number == type ? file_types[i].name : name;
    snprintf(f->quantization, sizeof(f->quantization), "%s", name ? name : main_type(g));
    double n = (double)f->n_params;
    if (n >= 1e9)
        snprintf(f->parameter_size, sizeof(f->parameter_size), "%.1fB", n / 1e9);
    else
        snprintf(f->parameter_size, sizeof(f->parameter_size), "%.2fM", n / 1e6);
}

/* Clients compare digests and never compute them, so reading gigabytes for one is not worth it. */
static void make_digest(const gs_gguf *g, gs_model_facts *f) {
    XXH64_hash_t h[4];
    for (size_t k = 0; k < 4; k++) {
        h[k] = XXH64(f->info_json, strlen(f->info_json), k);
        for (size_t i = 0; i < gs_gguf_n_tensors(g); i++) {
            const gs_gguf_tensor *t = gs_gguf_tensor_at(g, i);
            uint64_t place[2] = {t->offset, t->n_bytes};
            h[k] = XXH64(t->name.data, t->name.len, h[k]);
            h[k] = XXH64(place, sizeof(place), h[k]);
        }
        snprintf(f->digest + 16 * k, 17, "%016llx", (unsigned long long)h[k]);
    }
}

/* ---- Fill in the middle
 * ---------------------------------------------------------------------------------- */

/* By the file's own key, or by a spelling: Qwen, StarCoder and relatives, DeepSeek, CodeLlama. */
static const struct {
    const char *keys[2], *spellings[5];
} fim_names[3] = {
    {{"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"},
     {"<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "▁<PRE>"}},
    {{"tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"},
     {"<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "▁<SUF>"}},
    {{"tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"},
     {"<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "▁<MID>"}},
};

static int32_t find_fim(const gs_gguf *g, const gs_tokenizer *t, int which) {
    if (!t)
        return -1;
    for (size_t i = 0; i < 2; i++) {
        uint32_t id = 0;
        if (gs_gguf_get_u32(g, fim_names[which].keys[i], &id, NULL, 0) == 0 &&
            id < (uint32_t)gs_tok_n_vocab(t))
            return (int32_t)id;
    }
    for (size_t i = 0; i < 5; i++) {
        const char *s = fim_names[which].spellings[i];
        int32_t id = gs_tok_find(t, s, strlen(s));
        if (id >= 0)
            return id;
    }
    return -1;
}

int gs_model_facts_read(const gs_gguf *g, const gs_tokenizer *t, gs_model_facts *out) {
    gs_str arch = {"", 0};
    memset(out, 0, sizeof(*out));
    gs_gguf_get_str(g, "general.architecture", &arch, NULL, 0);
    snprintf(out->architecture, sizeof(out->architecture), "%.*s", (int)arch.len, arch.data);
    read_sizes(g, out);
    out->fim_prefix = find_fim(g, t, 0);
    out->fim_suffix = find_fim(g, t, 1);
    out->fim_middle = find_fim(g, t, 2);
    out->has_fim = out->fim_prefix >= 0 && out->fim_suffix >= 0 && out->fim_middle >= 0;
    gs_str template;
    uint32_t pooling = 0;
    char key[96];
    snprintf(key, sizeof(key), "%s.pooling_type", out->architecture);
    out->embeds = gs_gguf_get_u32(g, key, &pooling, NULL, 0) == 0 && pooling > 0 && pooling < 4;
    out->encoder = strstr(out->architecture, "bert") != NULL;
    int rc = put_info(g, out);
    if (rc == 0 && gs_gguf_get_str(g, "tokenizer.chat_template", &template, NULL, 0) == 0) {
        out->chat_template = gs_strndup(template.data, template.len);
        rc = out->chat_template ? 0 : GS_ERR_NOMEM;
    }
    if (rc == 0)
        make_digest(g, out);
    return rc;
}

void gs_model_facts_deinit(gs_model_facts *f) {
    gs_free(f->info_json);
    gs_free(f->chat_template);
    f->info_json = f->chat_template = NULL;
}
