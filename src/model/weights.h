/* Private to the model module: walking the tensors that an architecture has. */
#ifndef GS_MODEL_WEIGHTS_H
#define GS_MODEL_WEIGHTS_H

#include "model/arch.h"

typedef enum gs_weight_kind {
    GS_WEIGHT_VEC,  /* const float * */
    GS_WEIGHT_MAT,  /* gs_mat of the tensor's type */
    GS_WEIGHT_DENSE /* gs_mat; float types become BF16, which is multiplied fastest */
} gs_weight_kind;

/*
 * One checked tensor: what it becomes, at this offset in gs_layer (gs_encoder_layer) number layer,
 * or in gs_model when layer is -1. Another result than GS_OK ends the walk.
 */
typedef int (*gs_weight_fn)(void *arg, int32_t layer, size_t offset, gs_weight_kind kind,
                            const gs_gguf_tensor *t);
/* Checks presence, shape and type of each tensor before fn (may be NULL) sees it. */
int gs_weights_visit(const gs_gguf *g, const gs_arch_ops *arch, const gs_hparams *hp,
                     gs_weight_fn fn, void *arg, char *err, size_t errlen);

#endif
