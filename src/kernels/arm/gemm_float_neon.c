#define TILES_FN gs_tiles_float_neon
#include "kernels/arm/v128.h"
#include "kernels/tile/gemm_float.h"
