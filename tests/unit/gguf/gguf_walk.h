/*
 * Reads everything that an open GGUF file offers through every getter. For the mutation test and
 * the fuzz target: with a sanitizer, any pointer that is out of bounds shows here. The sum makes
 * the reads count; it is the same for the same file.
 */
#ifndef TESTS_GGUF_WALK_H
#define TESTS_GGUF_WALK_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "gguf/gguf.h"

static inline uint64_t gs_walk_bytes(const void *p, uint64_t n) {
    const uint8_t *b = p;
    uint64_t sum = n;
    for (uint64_t i = 0; i < n; i++)
        sum = sum * 31 + b[i];
    return sum;
}

static inline uint64_t gs_walk_kv(const gs_gguf *g, const gs_gguf_kv *kv, const char *key) {
    uint32_t u = 0;
    int64_t i = 0;
    float f = 0;
    bool b = false;
    gs_str s = {"", 0};
    const gs_gguf_kv *arr = NULL;
    char err[160];
    uint64_t sum = gs_walk_bytes(key, strlen(key));
    int n_ok = gs_gguf_get_u32(g, key, &u, err, sizeof err) == GS_OK;
    n_ok += gs_gguf_get_i64(g, key, &i, err, sizeof err) == GS_OK;
    n_ok += gs_gguf_get_f32(g, key, &f, err, sizeof err) == GS_OK;
    n_ok += gs_gguf_get_bool(g, key, &b, err, sizeof err) == GS_OK;
    n_ok += gs_gguf_get_str(g, key, &s, err, sizeof err) == GS_OK;
    for (int t = GS_GGUF_U8; t <= GS_GGUF_F64; t++)
        n_ok += gs_gguf_get_arr(g, key, (gs_gguf_vtype)t, &arr, err, sizeof err) == GS_OK;
    if (gs_gguf_find(g, key) != kv || (kv->type == GS_GGUF_ARR) != (arr == kv) || n_ok > 2)
        abort();
    sum += u + (uint64_t)i + b + (f > 0) + gs_walk_bytes(s.data, s.len);
    for (uint64_t k = 0; k <= kv->n; k++) { /* one past the end, too */
        s = gs_gguf_arr_str(g, kv, k);
        sum += (uint64_t)gs_gguf_arr_i64(kv, k) + (gs_gguf_arr_f32(kv, k) > 0) +
               gs_walk_bytes(s.data, s.len);
    }
    return sum;
}

static inline uint64_t gs_walk_all(const gs_gguf *g) {
    uint64_t sum = gs_gguf_version(g) + gs_gguf_file_bytes(g) + gs_gguf_alignment(g);
    char name[GS_GGUF_MAX_NAME + 1];
    for (size_t i = 0; i < gs_gguf_n_kv(g); i++) {
        const gs_gguf_kv *kv = gs_gguf_kv_at(g, i);
        memcpy(name, kv->key.data, kv->key.len);
        name[kv->key.len] = '\0';
        sum = sum * 31 + gs_walk_kv(g, kv, name);
    }
    for (size_t i = 0; i < gs_gguf_n_tensors(g); i++) {
        const gs_gguf_tensor *t = gs_gguf_tensor_at(g, i);
        memcpy(name, t->name.data, t->name.len);
        name[t->name.len] = '\0';
        if (gs_gguf_tensor_find(g, name) != t || t->offset + t->n_bytes > gs_gguf_file_bytes(g))
            abort();
        sum = sum * 31 + t->n_rows + t->ne[0] + gs_walk_bytes(t->data, t->n_bytes);
    }
    return sum;
}

#endif
