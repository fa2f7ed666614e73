/* Dispatch tables of the x86 instruction sets. */
#include "kernels/x86/tables.h"

GS_X86_TILES(avx2, avx2)
GS_X86_TILES(avxvnni, avx2)
GS_X86_TILES(avx512, avx512)
GS_X86_TILES(avx512vnni, avx512)

static const gs_tile_set *tiles_avx512bf16(gs_qtype type) {
    return type == GS_QTYPE_BF16 ? &gs_tiles_bf16_avx512bf16 : tiles_avx512vnni(type);
}

GS_X86_TABLE(avx2, avx2, NULL)
GS_X86_TABLE(avxvnni, avx2, NULL)
GS_X86_TABLE(avx512, avx512, NULL)
GS_X86_TABLE(avx512vnni, avx512, NULL)
GS_X86_TABLE(avx512bf16, avx512, gs_bf16_row_avx512bf16)
