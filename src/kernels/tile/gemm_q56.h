/* Nibbles with a plane of more bits: 4 + 1 and 4 + 2. TILES_FN names the look-up function. */
#include "kernels/tile/gemm_tile.h"

const gs_tile_set *TILES_FN(gs_qtype type);

TILES(Q5_0)
TILES(Q5_1)
TILES(Q5_K)
TILES(Q6_K)

const gs_tile_set *TILES_FN(gs_qtype type) {
    switch (type) {
    case GS_QTYPE_Q5_0:
        return &tiles_Q5_0;
    case GS_QTYPE_Q5_1:
        return &tiles_Q5_1;
    case GS_QTYPE_Q5_K:
        return &tiles_Q5_K;
    case GS_QTYPE_Q6_K:
        return &tiles_Q6_K;
    default:
        return NULL;
    }
}
