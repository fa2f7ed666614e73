/* Private to the model module: walking the tensors that an architecture has. */
#ifndef GS_MODEL_WEIGHTS_H
#define GS_MODEL_WEIGHTS_H

#include "model/arch.h"

/*
 * One checked tensor: a matrix (gs_mat) or a vector (const float *) at this offset in gs_layer
 * number layer, or in gs_model when layer is -1. Another result than GS_OK ends the walk.
 */
typedef int (*gs_weight_fn)(void *arg, int32_t layer, size_t offset, bool is_mat,
                            const gs_gguf_tensor *t);
/* Checks presence, shape and type of each tensor before fn (may be NULL) sees it. */
int gs_weights_visit(const gs_gguf *g, const gs_arch_ops *arch, const gs_hparams *hp,
                     gs_weight_fn fn, void *arg, char *err, size_t errlen);

#endif
