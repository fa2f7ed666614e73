/*
 * The native CPU backend: forward pass of a gs_model over paged KV memory, sampling included, on
 * the kernel worker pool. The calling (engine) thread is worker 0. An encoder model gets a forward
 * pass of its own (engine/encoder.h).
 */
#ifndef GS_ENGINE_NATIVE_H
#define GS_ENGINE_NATIVE_H

#include "base/pool.h"
#include "engine/backend.h"
#include "kernels/attn.h"
#include "model/model.h"

typedef struct gs_native_config {
    const gs_model *model; /* borrowed */
    gs_pool *pool;         /* borrowed; run only from the engine thread */
    int32_t max_seqs;
    int32_t max_batch_tokens;
    int32_t max_context; /* <= model's n_ctx_train unless larger is asked for */
    gs_kv_type kv_type;
    int32_t block_tokens;
    uint32_t n_kv_blocks;
} gs_native_config;

/* Bytes of KV memory that one block takes with this model; of an encoder, bytes of a step's
 * scratch. */
size_t gs_native_block_bytes(const gs_model *m, gs_kv_type type, int32_t block_tokens);
int gs_native_create(const gs_native_config *cfg, gs_backend **out, char *err, size_t errlen);

#endif
