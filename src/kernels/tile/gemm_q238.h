/* Whole bytes, and two bits with or without a third. TILES_FN names the look-up function. */
#include "kernels/tile/gemm_tile.h"

const gs_tile_set *TILES_FN(gs_qtype type);

TILES(Q8_0)
TILES(Q2_K)
TILES(Q3_K)

const gs_tile_set *TILES_FN(gs_qtype type) {
    switch (type) {
    case GS_QTYPE_Q8_0:
        return &tiles_Q8_0;
    case GS_QTYPE_Q2_K:
        return &tiles_Q2_K;
    case GS_QTYPE_Q3_K:
        return &tiles_Q3_K;
    default:
        return NULL;
    }
}
