/*
 * A small GGUF writer for tests and fuzz seeds: well-formed files by default, and raw appends
 * (gw_u32, gw_str, ...) for files that must be wrong. Test code: aborts when out of memory.
 *
 *     gw w = {0};
 *     gw_begin(&w, 3);
 *     gw_kv_str(&w, "general.architecture", "llama");
 *     gw_tensor(&w, "a.weight", 2, (uint64_t[]){32, 2}, GS_QTYPE_Q8_0, data, 2 * 34);
 *     gw_end(&w);                 // w.p, w.n are the file
 *     gw_free(&w);
 *
 * All keys come before all tensors, as the format wants it. Offsets and counts are filled in.
 */
#ifndef TESTS_GGUF_WRITER_H
#define TESTS_GGUF_WRITER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"

#define GW_AT_TENSORS 8 /* where the header's two counts are */
#define GW_AT_KV      16

typedef struct gw {
    uint8_t *p; /* the file so far */
    size_t n, cap;
    uint8_t *data; /* the data section, appended by gw_end */
    size_t n_data, cap_data;
    size_t align; /* 0 = 32; set before the first tensor when general.alignment differs */
    uint64_t n_kv, n_tensors;
} gw;

static inline void gw_grow(uint8_t **p, size_t *cap, size_t need) {
    if (need <= *cap)
        return;
    size_t cap_new = need < 1024 ? 1024 : need * 2;
    uint8_t *q = realloc(*p, cap_new);
    if (!q)
        abort();
    *p = q;
    *cap = cap_new;
}

static inline void gw_bytes(gw *w, const void *p, size_t n) {
    gw_grow(&w->p, &w->cap, w->n + n + 1);
    if (n > 0)
        memcpy(w->p + w->n, p, n);
    w->n += n;
}

static inline void gw_u8(gw *w, uint8_t v) {
    gw_bytes(w, &v, sizeof v);
}

static inline void gw_u32(gw *w, uint32_t v) {
    gw_bytes(w, &v, sizeof v);
}

static inline void gw_u64(gw *w, uint64_t v) {
    gw_bytes(w, &v, sizeof v);
}

static inline void gw_strn(gw *w, const char *s, size_t n) {
    gw_u64(w, n);
    gw_bytes(w, s, n);
}

static inline void gw_str(gw *w, const char *s) {
    gw_strn(w, s, strlen(s));
}

static inline void gw_set_u64(gw *w, size_t at, uint64_t v) {
    memcpy(w->p + at, &v, sizeof v);
}

static inline void gw_begin(gw *w, uint32_t version) {
    gw_bytes(w, "GGUF", 4);
    gw_u32(w, version);
    gw_u64(w, 0);
    gw_u64(w, 0);
}

/* Key and type; the caller appends the value. */
static inline void gw_kv(gw *w, const char *key, uint32_t type) {
    gw_str(w, key);
    gw_u32(w, type);
    gw_set_u64(w, GW_AT_KV, ++w->n_kv);
}

/* Key and array header; the caller appends n elements. */
static inline void gw_kv_arr(gw *w, const char *key, uint32_t elem_type, uint64_t n) {
    gw_kv(w, key, GS_GGUF_ARR);
    gw_u32(w, elem_type);
    gw_u64(w, n);
}

static inline void gw_kv_u32(gw *w, const char *key, uint32_t v) {
    gw_kv(w, key, GS_GGUF_U32);
    gw_u32(w, v);
}

static inline void gw_kv_f32(gw *w, const char *key, float v) {
    gw_kv(w, key, GS_GGUF_F32);
    gw_bytes(w, &v, sizeof v);
}

static inline void gw_kv_bool(gw *w, const char *key, int v) {
    gw_kv(w, key, GS_GGUF_BOOL);
    gw_u8(w, (uint8_t)v);
}

static inline void gw_kv_str(gw *w, const char *key, const char *v) {
    gw_kv(w, key, GS_GGUF_STR);
    gw_str(w, v);
}

/* A tensor table entry as it stands; offset is within the data section. */
static inline void gw_tensor_entry(gw *w, const char *name, uint32_t n_dims, const uint64_t *ne,
                                   uint32_t type, uint64_t offset) {
    gw_str(w, name);
    gw_u32(w, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        gw_u64(w, ne[d]);
    gw_u32(w, type);
    gw_u64(w, offset);
    gw_set_u64(w, GW_AT_TENSORS, ++w->n_tensors);
}

/* A tensor with its bytes (data NULL: a byte pattern) behind those before it. */
static inline void gw_tensor(gw *w, const char *name, uint32_t n_dims, const uint64_t *ne,
                             uint32_t type, const void *data, size_t n_bytes) {
    size_t align = w->align ? w->align : 32;
    size_t at = (w->n_data + align - 1) / align * align;
    gw_grow(&w->data, &w->cap_data, at + n_bytes + 1);
    memset(w->data + w->n_data, 0, at - w->n_data);
    if (data)
        memcpy(w->data + at, data, n_bytes);
    else
        for (size_t i = 0; i < n_bytes; i++)
            w->data[at + i] = (uint8_t)(i * 7 + w->n_tensors);
    w->n_data = at + n_bytes;
    gw_tensor_entry(w, name, n_dims, ne, type, at);
}

static inline void gw_end(gw *w) {
    size_t align = w->align ? w->align : 32;
    while (w->n_data > 0 && w->n % align != 0)
        gw_u8(w, 0);
    gw_bytes(w, w->data, w->n_data);
}

static inline void gw_free(gw *w) {
    free(w->p);
    free(w->data);
    memset(w, 0, sizeof *w);
}

/* 0 on success. */
static inline int gw_save(const gw *w, const char *path) {
    FILE *f = fopen(path, "wb");
    if (!f)
        return -1;
    size_t n = fwrite(w->p, 1, w->n, f);
    return fclose(f) == 0 && n == w->n ? 0 : -1;
}

/* One of everything: each value type, each kind of array, several tensor types. */
static inline void gw_sample(gw *w, uint32_t version) {
    static const char *const tokens[] = {"<s>", "a", "", "\xea\xb0\x80", "ab"};
    gw_begin(w, version);
    gw_kv_str(w, "general.architecture", "llama");
    gw_kv_u32(w, "general.alignment", 64);
    w->align = 64;
    gw_kv(w, "t.u8", GS_GGUF_U8);
    gw_u8(w, 200);
    gw_kv(w, "t.i8", GS_GGUF_I8);
    gw_u8(w, (uint8_t)-5);
    gw_kv(w, "t.u16", GS_GGUF_U16);
    gw_bytes(w, &(uint16_t){65000}, 2);
    gw_kv(w, "t.i16", GS_GGUF_I16);
    gw_bytes(w, &(int16_t){-300}, 2);
    gw_kv(w, "t.i32", GS_GGUF_I32);
    gw_bytes(w, &(int32_t){-70000}, 4);
    gw_kv(w, "t.u64", GS_GGUF_U64);
    gw_u64(w, UINT64_MAX);
    gw_kv(w, "t.i64", GS_GGUF_I64);
    gw_bytes(w, &(int64_t){-5000000000}, 8);
    gw_kv_f32(w, "t.f32", 0.5f);
    gw_kv(w, "t.f64", GS_GGUF_F64);
    gw_bytes(w, &(double){0.25}, 8);
    gw_kv_bool(w, "t.bool", 1);
    gw_kv_arr(w, "tokenizer.ggml.tokens", GS_GGUF_STR, 5);
    for (int i = 0; i < 5; i++)
        gw_str(w, tokens[i]);
    gw_kv_arr(w, "tokenizer.ggml.token_type", GS_GGUF_I32, 5);
    gw_bytes(w, (int32_t[]){3, 1, 1, -1, 1}, 20);
    gw_kv_arr(w, "tokenizer.ggml.scores", GS_GGUF_F32, 3);
    gw_bytes(w, (float[]){0.f, -1.f, -2.f}, 12);
    gw_kv_arr(w, "t.bools", GS_GGUF_BOOL, 3);
    gw_bytes(w, "\1\0\1", 3);
    gw_kv_arr(w, "t.empty", GS_GGUF_STR, 0);
    gw_tensor(w, "token_embd.weight", 2, (uint64_t[]){64, 5}, GS_QTYPE_Q8_0, NULL, 5 * 2 * 34);
    gw_tensor(w, "norm.weight", 1, (uint64_t[]){7}, GS_QTYPE_F32, NULL, 28);
    gw_tensor(w, "blk.0.ffn.weight", 3, (uint64_t[]){256, 2, 3}, GS_QTYPE_Q4_K, NULL, 6 * 144);
    gw_tensor(w, "blk.0.x", 4, (uint64_t[]){2, 2, 2, 2}, GS_QTYPE_F16, NULL, 32);
    gw_end(w);
}

#endif
