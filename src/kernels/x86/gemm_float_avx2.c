#define TILES_FN gs_tiles_float_avx2
#include "kernels/x86/v256.h"
#include "kernels/tile/gemm_float.h"
