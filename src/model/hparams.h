/* Private to the model module: hyper-parameters together with the architecture's entry. */
#ifndef GS_MODEL_HPARAMS_H
#define GS_MODEL_HPARAMS_H

#include "model/arch.h"

int gs_hparams_read_arch(const gs_gguf *g, gs_hparams *hp, const gs_arch_ops **arch, char *err,
                         size_t errlen);

#endif
