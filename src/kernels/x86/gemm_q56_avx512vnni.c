#define TILES_FN gs_tiles_q56_avx512vnni
#include "kernels/x86/v512.h"
#include "kernels/tile/gemm_q56.h"
