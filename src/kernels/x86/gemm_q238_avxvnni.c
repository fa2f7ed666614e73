#define TILES_FN gs_tiles_q238_avxvnni
#include "kernels/x86/v256.h"
#include "kernels/tile/gemm_q238.h"
