/*
 * The encoder backend: forward pass of an encoder model (gs_hparams.encoder). The calling (engine)
 * thread is worker 0.
 *
 * Every token of a prompt looks at all of them, so a prompt is computed whole in one step, and
 * nothing remains of it but its vector: keys and values live in the step's scratch. The KV blocks
 * that gs_backend_info states are an account of that scratch. Prompts of a step are packed, row
 * after row, without padding; which prompts are together does not change a bit of a vector.
 * A step can give way between two layers.
 */
#ifndef GS_ENGINE_ENCODER_H
#define GS_ENGINE_ENCODER_H

#include "engine/native.h"

size_t gs_encoder_block_bytes(const gs_model *m, int32_t block_tokens);
/* cfg as for gs_native_create; kv_type and n_kv_blocks are not used, and a step has room for at
 * least one prompt of max_context tokens. */
int gs_encoder_create(const gs_native_config *cfg, gs_backend **out, char *err, size_t errlen);

#endif
