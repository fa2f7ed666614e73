#define TILES_FN gs_tiles_q4_avxvnni
#include "kernels/x86/v256.h"
#include "kernels/tile/gemm_q4.h"
