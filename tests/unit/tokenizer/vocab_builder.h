/* Writes small GGUF files with a tokenizer in memory, for tests and fuzz targets. */
#ifndef GS_TESTS_VOCAB_BUILDER_H
#define GS_TESTS_VOCAB_BUILDER_H

#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "gguf/gguf.h"

typedef struct vocab_builder {
    gs_buf kv;
    uint64_t n_kv;
    /* the three arrays, written by vb_finish */
    gs_buf tokens, types, scores, merges;
    uint64_t n_tokens, n_types, n_scores, n_merges;
} vocab_builder;

static inline void vb_raw(gs_buf *b, const void *p, size_t n) {
    (void)gs_buf_add(b, p, n); /* a failure shows in b->failed, checked by vb_finish */
}

static inline void vb_u32_raw(gs_buf *b, uint32_t v) {
    vb_raw(b, &v, sizeof(v));
}

static inline void vb_str_raw(gs_buf *b, const char *s, size_t n) {
    uint64_t len = n;
    vb_raw(b, &len, sizeof(len));
    if (n)
        vb_raw(b, s, n);
}

static inline void vb_key(vocab_builder *v, const char *key, gs_gguf_vtype type) {
    vb_str_raw(&v->kv, key, strlen(key));
    vb_u32_raw(&v->kv, (uint32_t)type);
    v->n_kv++;
}

static inline void vb_str(vocab_builder *v, const char *key, const char *s) {
    vb_key(v, key, GS_GGUF_STR);
    vb_str_raw(&v->kv, s, strlen(s));
}

static inline void vb_u32(vocab_builder *v, const char *key, uint32_t x) {
    vb_key(v, key, GS_GGUF_U32);
    vb_u32_raw(&v->kv, x);
}

static inline void vb_bool(vocab_builder *v, const char *key, bool x) {
    uint8_t byte = x;
    vb_key(v, key, GS_GGUF_BOOL);
    vb_raw(&v->kv, &byte, 1);
}

/* Returns the token's id. */
static inline int32_t vb_token_n(vocab_builder *v, const char *s, size_t n, int32_t type,
                                 float score) {
    vb_str_raw(&v->tokens, s, n);
    vb_raw(&v->types, &type, sizeof(type));
    vb_raw(&v->scores, &score, sizeof(score));
    v->n_types++;
    v->n_scores++;
    return (int32_t)v->n_tokens++;
}

static inline int32_t vb_token(vocab_builder *v, const char *s, int32_t type, float score) {
    return vb_token_n(v, s, strlen(s), type, score);
}

static inline void vb_merge(vocab_builder *v, const char *pair) {
    vb_str_raw(&v->merges, pair, strlen(pair));
    v->n_merges++;
}

static inline void vb_array(vocab_builder *v, const char *key, gs_gguf_vtype elem, uint64_t n,
                            const gs_buf *data) {
    vb_key(v, key, GS_GGUF_ARR);
    vb_u32_raw(&v->kv, (uint32_t)elem);
    vb_raw(&v->kv, &n, sizeof(n));
    if (data->len)
        vb_raw(&v->kv, data->data, data->len);
}

/* The whole file into out; true when no allocation failed. Arrays with no elements are left out.
 */
static inline bool vb_finish(vocab_builder *v, gs_buf *out) {
    uint64_t n_tensors = 0;
    if (v->n_tokens)
        vb_array(v, "tokenizer.ggml.tokens", GS_GGUF_STR, v->n_tokens, &v->tokens);
    if (v->n_types)
        vb_array(v, "tokenizer.ggml.token_type", GS_GGUF_I32, v->n_types, &v->types);
    if (v->n_scores)
        vb_array(v, "tokenizer.ggml.scores", GS_GGUF_F32, v->n_scores, &v->scores);
    if (v->n_merges)
        vb_array(v, "tokenizer.ggml.merges", GS_GGUF_STR, v->n_merges, &v->merges);
    vb_raw(out, "GGUF", 4);
    vb_u32_raw(out, 3);
    vb_raw(out, &n_tensors, sizeof(n_tensors));
    vb_raw(out, &v->n_kv, sizeof(v->n_kv));
    if (v->kv.len)
        vb_raw(out, v->kv.data, v->kv.len);
    while (out->len % 32)
        vb_raw(out, "", 1);
    bool ok = !(v->kv.failed || v->tokens.failed || v->types.failed || v->scores.failed ||
                v->merges.failed || out->failed);
    gs_buf_deinit(&v->kv);
    gs_buf_deinit(&v->tokens);
    gs_buf_deinit(&v->types);
    gs_buf_deinit(&v->scores);
    gs_buf_deinit(&v->merges);
    return ok;
}

/* The 256 tokens of single bytes, in GPT-2's alphabet, in byte order. */
static inline void vb_byte_alphabet(vocab_builder *v) {
    unsigned odd = 0;
    for (unsigned b = 0; b < 256; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        unsigned cp = plain ? b : 256 + odd++;
        char s[2];
        if (cp < 0x80) {
            s[0] = (char)cp;
            vb_token_n(v, s, 1, 1, 0);
        } else {
            s[0] = (char)(0xc0 | cp >> 6);
            s[1] = (char)(0x80 | (cp & 63));
            vb_token_n(v, s, 2, 1, 0);
        }
    }
}

/* "<0x00>" .. "<0xFF>" */
static inline void vb_byte_tokens(vocab_builder *v) {
    static const char hex[] = "0123456789ABCDEF";
    for (unsigned b = 0; b < 256; b++) {
        char s[6] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>'};
        vb_token_n(v, s, 6, 6, 0);
    }
}

#endif
