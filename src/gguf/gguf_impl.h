/* Private to gguf/: what an open file is made of. */
#ifndef GS_GGUF_GGUF_IMPL_H
#define GS_GGUF_GGUF_IMPL_H

#include "gguf/gguf.h"

/* Open addressing from names to indices; slot 0 is empty, else index + 1. */
typedef struct gs_name_table {
    uint32_t *slots;
    uint32_t mask;
} gs_name_table;

struct gs_gguf {
    const uint8_t *data;
    size_t size;
    bool mapped; /* data is ours to unmap */
    uint32_t version;
    uint32_t alignment;

    gs_gguf_kv *kv;
    size_t n_kv;
    uint64_t **str_offsets; /* per key: file offsets of a string array's elements, or NULL */
    gs_name_table kv_names;

    gs_gguf_tensor *tensors;
    size_t n_tensors;
    gs_name_table tensor_names;

    gs_gguf **more; /* [n_more] the other files of the model, in order; NULL: none */
    int n_more;
};

/* gguf.c: one file alone. */
int gs_gguf_open_one(const char *path, gs_gguf **out, char *err, size_t errlen);
/* Makes the table of tensor names anew. GS_ERR_FORMAT: a name appears twice. */
int gs_gguf_index_tensors(gs_gguf *g, char *err, size_t errlen);
/* gguf_split.c: brings the other files, when there are any. */
int gs_gguf_join(gs_gguf *g, const char *path, char *err, size_t errlen);

#endif
