#include "gguf/qtype.h"

#include <stddef.h>

const gs_qtype_info *gs_qtype_get(uint32_t type) {
    switch (type) {
#define X(name, num, elems, bytes)                                                                 \
    case GS_QTYPE_##name: {                                                                        \
        static const gs_qtype_info info = {#name, elems, bytes};                                   \
        return &info;                                                                              \
    }
        GS_QTYPE_MAP(X)
#undef X
    default:
        return NULL;
    }
}
