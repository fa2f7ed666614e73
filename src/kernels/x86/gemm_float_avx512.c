#define TILES_FN gs_tiles_float_avx512
#include "kernels/x86/v512.h"
#include "kernels/tile/gemm_float.h"
