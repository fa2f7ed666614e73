/* Private to the model module: walking the tensors that an architecture has. */
#ifndef GS_MODEL_WEIGHTS_H
#define GS_MODEL_WEIGHTS_H

#include "model/arch.h"

typedef enum gs_weight_kind {
    GS_WEIGHT_VEC,   /* const float * */
    GS_WEIGHT_MAT,   /* gs_mat of the tensor's type */
    GS_WEIGHT_DENSE, /* gs_mat; float types become BF16, which is multiplied fastest */
    GS_WEIGHT_F32    /* gs_mat of a float type, which becomes F32 */
} gs_weight_kind;

/* What a checked tensor, or a slice of its rows, becomes. */
typedef struct gs_weight {
    const gs_gguf_tensor *tensor;
    gs_weight_kind kind;
    int32_t layer;             /* -1: of the model */
    size_t offset;             /* in gs_layer or gs_encoder_layer, or in gs_model */
    int32_t first, rows, cols; /* rows [first, first + rows) of the tensor */
    int32_t copies;            /* so many matrices, one behind the other */
} gs_weight;

/* Another result than GS_OK ends the walk. */
typedef int (*gs_weight_fn)(void *arg, const gs_weight *w);
/* Checks presence, shape and type of each tensor before fn (may be NULL) sees it. */
int gs_weights_visit(const gs_gguf *g, const gs_arch_ops *arch, const gs_hparams *hp,
                     gs_weight_fn fn, void *arg, char *err, size_t errlen);

#endif
