/*
 * GGUF reader (versions 2 and 3) for untrusted files. Parses and checks; does no tensor maths.
 *
 * Everything is validated in gs_gguf_open*: counts, string lengths, types, alignment, and that
 * each tensor's extent lies inside the file and overlaps no other. After a successful open every
 * pointer that the getters return is in bounds. All size arithmetic is checked (base/checked.h).
 * A refused file gives one sentence naming the key or tensor.
 *
 * A model may lie in several files, NAME-00001-of-0000N.gguf and so on: the first one is opened and
 * brings the others, whose tensors are its own then. Metadata is the first one's.
 *
 * The object borrows the mapping or the bytes; strings and arrays point into them (strings are
 * NOT terminated: gs_str carries the length). Keys and tensor names are UTF-8 without control
 * characters; string values are whatever bytes the file holds. Read-only after open: any thread
 * may read.
 * Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 */
#ifndef GS_GGUF_GGUF_H
#define GS_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf/qtype.h"

/* Limits of what is taken from a file; all far above any real model. */
#define GS_GGUF_MAX_KV      65536u
#define GS_GGUF_MAX_TENSORS 131072u
#define GS_GGUF_MAX_NAME    256u       /* key and tensor names, bytes */
#define GS_GGUF_MAX_ARRAY   (1u << 26) /* elements of one metadata array */
#define GS_GGUF_MAX_STR     (1u << 26) /* bytes of one string: always fits an int */
#define GS_GGUF_MAX_ALIGN   65536u

typedef enum gs_gguf_vtype {
    GS_GGUF_U8,
    GS_GGUF_I8,
    GS_GGUF_U16,
    GS_GGUF_I16,
    GS_GGUF_U32,
    GS_GGUF_I32,
    GS_GGUF_F32,
    GS_GGUF_BOOL,
    GS_GGUF_STR,
    GS_GGUF_ARR,
    GS_GGUF_U64,
    GS_GGUF_I64,
    GS_GGUF_F64
} gs_gguf_vtype;

typedef struct gs_str {
    const char *data; /* not terminated */
    size_t len;
} gs_str;

typedef struct gs_gguf_tensor {
    gs_str name;
    gs_qtype type;
    uint32_t n_dims; /* 1..4 */
    uint64_t ne[4];  /* ne[0] = row length (innermost); unused dimensions are 1 */
    uint64_t n_rows; /* ne[1] * ne[2] * ne[3] */
    uint64_t n_bytes;
    uint64_t offset;  /* from the start of its file */
    const void *data; /* n_bytes bytes; aligned to the file's alignment when the mapping is */
} gs_gguf_tensor;

typedef struct gs_gguf_kv {
    gs_str key;
    gs_gguf_vtype type;      /* GS_GGUF_ARR: see elem_type */
    gs_gguf_vtype elem_type; /* arrays only; never GS_GGUF_ARR (nested arrays are refused) */
    uint64_t n;              /* arrays: elements; else 1 */
    const void *data;        /* the value's bytes in the file, unaligned, little-endian */
} gs_gguf_kv;

typedef struct gs_gguf gs_gguf;

int gs_gguf_open(const char *path, gs_gguf **out, char *err, size_t errlen);
/* Borrows data until close. */
int gs_gguf_open_mem(const void *data, size_t size, gs_gguf **out, char *err, size_t errlen);
void gs_gguf_close(gs_gguf *g);

uint32_t gs_gguf_version(const gs_gguf *g);
uint64_t gs_gguf_file_bytes(const gs_gguf *g); /* of all its files */
/* Whether a file became shorter since it was opened: what was read of it may be zeros. */
bool gs_gguf_is_damaged(const gs_gguf *g);
uint32_t gs_gguf_alignment(const gs_gguf *g);

/* "DIR/NAME-00002-of-00003.gguf": file no of n, and the length of "DIR/NAME". False: no such name.
 */
typedef struct gs_gguf_shard {
    int no, n; /* no from 1 on */
    size_t stem;
} gs_gguf_shard;
#define GS_GGUF_MAX_SHARDS 256
bool gs_gguf_shard_of(const char *path, gs_gguf_shard *out);
/* The path of another file of the same model. GS_ERR_TOO_LARGE. */
int gs_gguf_shard_path(const char *path, const gs_gguf_shard *s, int no, char *out, size_t n);

size_t gs_gguf_n_kv(const gs_gguf *g);
const gs_gguf_kv *gs_gguf_kv_at(const gs_gguf *g, size_t i);
const gs_gguf_kv *gs_gguf_find(const gs_gguf *g, const char *key); /* NULL: no such key */

/*
 * Typed getters. GS_OK; GS_ERR_NOT_FOUND without the key (*out untouched, err untouched);
 * GS_ERR_FORMAT with a message when the key has another type or the value does not fit.
 * u32/i64 accept every integer type whose value fits; f32 accepts f32, f64 (never NaN/inf).
 */
int gs_gguf_get_u32(const gs_gguf *g, const char *key, uint32_t *out, char *err, size_t errlen);
int gs_gguf_get_i64(const gs_gguf *g, const char *key, int64_t *out, char *err, size_t errlen);
int gs_gguf_get_f32(const gs_gguf *g, const char *key, float *out, char *err, size_t errlen);
int gs_gguf_get_bool(const gs_gguf *g, const char *key, bool *out, char *err, size_t errlen);
int gs_gguf_get_str(const gs_gguf *g, const char *key, gs_str *out, char *err, size_t errlen);
/* The array itself, checked to hold elem_type. */
int gs_gguf_get_arr(const gs_gguf *g, const char *key, gs_gguf_vtype elem_type,
                    const gs_gguf_kv **out, char *err, size_t errlen);

/* Element access of arrays. i64 takes any integer or bool array (u64 above INT64_MAX saturates),
 * f32 an f32 or f64 array. Another element type or i >= kv->n gives 0 or an empty string.
 * gs_gguf_arr_str is O(1): string arrays are indexed at open. */
int64_t gs_gguf_arr_i64(const gs_gguf_kv *kv, uint64_t i);
float gs_gguf_arr_f32(const gs_gguf_kv *kv, uint64_t i);
gs_str gs_gguf_arr_str(const gs_gguf *g, const gs_gguf_kv *kv, uint64_t i);

size_t gs_gguf_n_tensors(const gs_gguf *g);
const gs_gguf_tensor *gs_gguf_tensor_at(const gs_gguf *g, size_t i);
const gs_gguf_tensor *gs_gguf_tensor_find(const gs_gguf *g, const char *name); /* hash; or NULL */

#endif
