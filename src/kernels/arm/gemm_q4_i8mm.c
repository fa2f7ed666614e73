#define TILES_FN gs_tiles_q4_i8mm
#include "kernels/arm/v128.h"
#include "kernels/tile/gemm_q4.h"
