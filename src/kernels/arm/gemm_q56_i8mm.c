#define TILES_FN gs_tiles_q56_i8mm
#include "kernels/arm/v128.h"
#include "kernels/tile/gemm_q56.h"
