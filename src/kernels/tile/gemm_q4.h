/* The 4-bit family: nibbles, with or without a code book. TILES_FN names the look-up function. */
#include "kernels/tile/gemm_tile.h"

const gs_tile_set *TILES_FN(gs_qtype type);

TILES(Q4_0)
TILES(Q4_1)
TILES(Q4_K)
TILES(IQ4_NL)
TILES(MXFP4)

const gs_tile_set *TILES_FN(gs_qtype type) {
    switch (type) {
    case GS_QTYPE_Q4_0:
        return &tiles_Q4_0;
    case GS_QTYPE_Q4_1:
        return &tiles_Q4_1;
    case GS_QTYPE_Q4_K:
        return &tiles_Q4_K;
    case GS_QTYPE_IQ4_NL:
        return &tiles_IQ4_NL;
    case GS_QTYPE_MXFP4:
        return &tiles_MXFP4;
    default:
        return NULL;
    }
}
