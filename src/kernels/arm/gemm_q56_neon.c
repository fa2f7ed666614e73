#define TILES_FN gs_tiles_q56_neon
#include "kernels/arm/v128.h"
#include "kernels/tile/gemm_q56.h"
