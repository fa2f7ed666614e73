#define TILES_FN gs_tiles_q238_i8mm
#include "kernels/arm/v128.h"
#include "kernels/tile/gemm_q238.h"
