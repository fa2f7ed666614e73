/* Dispatch tables of the x86 instruction sets. */
#include "kernels/x86/tables.h"

GS_X86_TABLE(avx2, avx2)
GS_X86_TABLE(avxvnni, avx2)
GS_X86_TABLE(avx512, avx512)
GS_X86_TABLE(avx512vnni, avx512)
