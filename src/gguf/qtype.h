/*
 * Tensor types of GGUF files: one table with names and block sizes. Facts only, no maths.
 * Numbers and block layouts: GGUF specification (ggml-org/ggml, docs/gguf.md) and ggml's types.
 */
#ifndef GS_GGUF_QTYPE_H
#define GS_GGUF_QTYPE_H

#include <stdbool.h>
#include <stdint.h>

/*  name, number in the file, elements per block, bytes per block */
#define GS_QTYPE_MAP(X)                                                                            \
    X(F32, 0, 1, 4)                                                                                \
    X(F16, 1, 1, 2)                                                                                \
    X(Q4_0, 2, 32, 18)                                                                             \
    X(Q4_1, 3, 32, 20)                                                                             \
    X(Q5_0, 6, 32, 22)                                                                             \
    X(Q5_1, 7, 32, 24)                                                                             \
    X(Q8_0, 8, 32, 34)                                                                             \
    X(Q2_K, 10, 256, 84)                                                                           \
    X(Q3_K, 11, 256, 110)                                                                          \
    X(Q4_K, 12, 256, 144)                                                                          \
    X(Q5_K, 13, 256, 176)                                                                          \
    X(Q6_K, 14, 256, 210)                                                                          \
    X(IQ4_NL, 20, 32, 18)                                                                          \
    X(I8, 24, 1, 1)                                                                                \
    X(I16, 25, 1, 2)                                                                               \
    X(I32, 26, 1, 4)                                                                               \
    X(I64, 27, 1, 8)                                                                               \
    X(F64, 28, 1, 8)                                                                               \
    X(BF16, 30, 1, 2)                                                                              \
    X(MXFP4, 39, 32, 17)

typedef enum gs_qtype {
#define X(name, num, elems, bytes) GS_QTYPE_##name = (num),
    GS_QTYPE_MAP(X)
#undef X
} gs_qtype;

typedef struct gs_qtype_info {
    const char *name;     /* "Q4_K" */
    uint32_t block_elems; /* elements of one row that share a block */
    uint32_t block_bytes;
} gs_qtype_info;

/* NULL when the number is no type of the table. type is the raw number from a file. */
const gs_qtype_info *gs_qtype_get(uint32_t type);

#endif
