/*
 * Private to kernels: the packed layout, the activation layout, the tile interface between the
 * GEMM driver and the instruction-set files, and the dispatch table.
 *
 * Packed panel (16 rows), integer types: runs of run_blocks blocks of 32 columns, the last one
 * maybe shorter,
 *
 *     codes   [blocks of the run][block_bytes]
 *     scales  [blocks of the run / super_blocks][scale_bytes]
 *
 * and padding to 64 bytes. A run is a whole number of cache lines, and whoever multiplies a panel
 * reads it from its first byte to its last: with one token that is as fast as the hardware
 * prefetcher follows, which loses its way where codes and scales are two streams.
 *
 * A code of a block is split into planes. A 64-byte vector j of a block is "16 rows x 4 columns":
 * byte 4 r + i belongs to row r, column 4 j + i, j = 0..7.
 *
 *     8-bit plane  512 B: the eight vectors one after the other
 *     4-bit plane  256 B: vector v holds vector j = v in the low nibbles, j = v + 4 in the high
 * ones 2-bit plane  128 B: vector v holds j = 4 v + s in bits 2 s and 2 s + 1 1-bit plane   64 B:
 * bit j of each byte belongs to vector j
 *
 * Float types: [k][16 rows] elements of the source type; BF16: [k / 2][16 rows][2].
 */
#ifndef GS_KERNELS_KERNELS_IMPL_H
#define GS_KERNELS_KERNELS_IMPL_H

#include <string.h>

#include "kernels/kernels.h"

/* Tokens of one tile at most: 2 panels x 6 accumulators fit 32 registers. */
#define GS_TILE_MAX GS_TILE_ROWS

/* ---- Formats -----------------------------------------------------------------------------------
 */

typedef enum gs_scale_kind {
    GS_SCALE_FLOAT,   /* none: a float type */
    GS_SCALE_F16,     /* d f16[16]                       w = d * v              per 32 */
    GS_SCALE_F16_MIN, /* d f16[16], m f16[16]            w = d * v + m          per 32 */
    GS_SCALE_E8M0,    /* e u8[16]                        w = 2^(e - 128) * v    per 32 */
    GS_SCALE_K_MIN,   /* d, dmin f16[16], sc u8[8][16], mn u8[8][16]:
                         w = d sc v - dmin mn                                   per 256 */
    GS_SCALE_K16,     /* d f16[16], sc i8[16][16]        w = d sc v             per 256 */
    GS_SCALE_K16_MIN  /* d, dmin f16[16], u8[16][16] (sc | mn << 4)             per 256 */
} gs_scale_kind;

typedef struct gs_fmt {
    gs_qtype type;
    gs_scale_kind scale;
    uint8_t base_bits;     /* 2, 4 or 8; float types: bits of an element */
    uint8_t extra_bits;    /* 0, 1 or 2 more significant bits in a plane of their own */
    int16_t offset;        /* v = code - offset */
    const int8_t *book;    /* v = book[code] instead */
    uint16_t block_bytes;  /* codes of 32 columns x 16 rows */
    uint16_t super_blocks; /* blocks of 32 columns per scale record */
    uint16_t scale_bytes;  /* of a scale record, 16 rows */
    uint16_t run_blocks;   /* a power of two: blocks whose codes lie together before their scales */
} gs_fmt;

/* NULL when the type can't be packed. */
const gs_fmt *gs_fmt_get(gs_qtype type);

extern const int8_t gs_book_iq4nl[16];
extern const int8_t gs_book_mxfp4[16];

/* Where in its panel the run of block b begins. */
static inline size_t gs_fmt_run_at(const gs_fmt *f, int32_t b) {
    const size_t n = f->run_blocks;
    return (size_t)b / n * (n * f->block_bytes + n / f->super_blocks * f->scale_bytes);
}
/* Where in its panel the codes of block b are. */
static inline size_t gs_fmt_codes_at(const gs_fmt *f, int32_t b) {
    return gs_fmt_run_at(f, b) + (size_t)(b % f->run_blocks) * f->block_bytes;
}
/* Where in a panel of n_blocks the scale record of block b is. */
static inline size_t gs_fmt_scales_at(const gs_fmt *f, int32_t n_blocks, int32_t b) {
    const int32_t i = b % f->run_blocks, left = n_blocks - (b - i);
    const int32_t n = left < f->run_blocks ? left : f->run_blocks;
    return gs_fmt_run_at(f, b) + (size_t)n * f->block_bytes +
           (size_t)(i / f->super_blocks) * f->scale_bytes;
}

/*
 * Row r (0..15) of block b of a packed panel: weight of column i = d[i / 16] * v[i] + mn[i / 16].
 * The scalar GEMM and gs_mat_row are built on this one decoder.
 */
void gs_panel_block(const gs_mat *m, const gs_fmt *f, const uint8_t *panel, int32_t b, int32_t r,
                    int16_t v[32], float d[2], float mn[2]);

/* Index of column c, row r in a panel of a float type. */
static inline size_t gs_float_index(gs_qtype type, int32_t c, int32_t r) {
    if (type == GS_QTYPE_BF16)
        return ((size_t)(c / 2) * GS_PANEL_ROWS + (size_t)r) * 2 + (size_t)(c % 2);
    return (size_t)c * GS_PANEL_ROWS + (size_t)r;
}

/* ---- Scalar number formats ---------------------------------------------------------------------
 */

static inline float gs_f32_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t gs_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float gs_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = h & 0x7fffu;
    if (mag >= 0x7c00u) /* inf, NaN */
        return gs_f32_from_bits(sign | 0x7f800000u | (mag & 0x3ffu) << 13);
    if (mag >= 0x400u)
        return gs_f32_from_bits(sign | ((mag << 13) + 0x38000000u));
    float f = (float)mag * 0x1p-24f; /* subnormal: exact */
    return sign ? -f : f;
}

static inline float gs_bf16_to_f32(uint16_t h) {
    return gs_f32_from_bits((uint32_t)h << 16);
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t gs_bf16_from_f32(float f) {
    uint32_t u = gs_f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* The block scale of MXFP4 halved, because its code book is doubled to be integer. */
static inline float gs_e8m0_half(uint8_t e) {
    return gs_f32_from_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* ---- Activations -------------------------------------------------------------------------------
 */

/*
 * Tokens are grouped in tiles of nearly equal size, at most 6. Inside a tile that starts at token
 * m0 and has mr tokens each array is [block][mr]..., at m0 * (elements of a row), so rows can be
 * written by any thread once a->m is set.
 *
 *     q     int8  [block][mr][32]
 *     ad    float [block][mr]      scale
 *     asum  float [block][mr]      sum of codes, times the scale if that is per block: what a
 *                                  minimum multiplies
 *     n8    int32 [block][mr]      -8 * sum: initial accumulator of 4-bit codes with offset 8
 *     n16   int32 [block][mr][2]   -32 * sum of 16: the same for 6-bit codes in sub-blocks
 *     x     float [k][mr]          for float weights, or
 *     pair  bf16 [k / 2][mr][2]    for BF16 ones, in the same place
 */
typedef struct gs_act_view {
    int8_t *q;
    float *ad, *asum;
    int32_t *n8, *n16;
    float *x;
    uint32_t *pair;
} gs_act_view;

gs_act_view gs_act_layout(const gs_act *a);

static inline float gs_act_asum(float scale, int32_t sum) {
    return GS_ACT_GROUP == GS_BLOCK_COLS ? scale * (float)sum : (float)sum;
}

static inline int32_t gs_n_tiles(int32_t m) {
    return (m + GS_TILE_MAX - 1) / GS_TILE_MAX;
}
/* First token of tile t; the first m % n tiles have one token more. t == n gives m. */
static inline int32_t gs_tile_begin(int32_t m, int32_t n_tiles, int32_t t) {
    int32_t base = m / n_tiles, more = m % n_tiles;
    return t * base + (t < more ? t : more);
}
static inline int32_t gs_tile_of(int32_t m, int32_t n_tiles, int32_t row) {
    int32_t base = m / n_tiles, more = m % n_tiles;
    int32_t head = more * (base + 1);
    return row < head ? row / (base + 1) : more + (row - head) / base;
}

/*
 * Where the values of one row go. The destinations of block b are b * stride elements further on,
 * with the strides that mr implies.
 */
typedef struct gs_act_row {
    gs_act_view v; /* already at this row */
    int32_t mr;
    int flags; /* which of the sums are wanted */
} gs_act_row;

gs_act_row gs_act_row_at(const gs_act *a, int32_t row);

/* ---- GEMM tiles --------------------------------------------------------------------------------
 */

/* One call: 1 or 2 panels x the tokens of one tile, over all of k. */
typedef struct gs_tile {
    const gs_mat *w;
    const uint8_t *panel; /* the second panel follows at + panel_bytes */
    const uint8_t *next;  /* panels to prefetch, as many as this call works on; NULL: none */
    size_t panel_bytes;
    int32_t n_panels; /* 1 or 2 */
    gs_act_view act;  /* at the tile */
    int32_t mr;       /* tokens */
    int32_t n_blocks;
    int32_t tile, n_tiles; /* tile t prefetches the blocks b = t mod n_tiles */
    float *y;              /* [mr] rows, ldy apart; first column = first row of the panel */
    int64_t ldy;
    const float *bias; /* at the first row of the panel, or NULL */
    int32_t n_valid;   /* rows that exist, from the first row of the panel on */
    int mode;
} gs_tile;

typedef void (*gs_tile_fn)(const gs_tile *t);

/* fn[0][mr]: one panel; fn[1][mr]: two panels, NULL where one panel at a time is as good. */
typedef struct gs_tile_set {
    gs_tile_fn fn[2][GS_TILE_MAX + 1];
    /* With so many tokens or fewer, what is prefetched is so far ahead in the stream (gemm.c). */
    int32_t near_tokens, near_bytes;
} gs_tile_set;

/* ---- Dispatch ----------------------------------------------------------------------------------
 */

typedef struct gs_kernel_table {
    /* Tiles of a type; NULL: the instruction set has none, use the scalar ones. */
    const gs_tile_set *(*tiles)(gs_qtype type);
    /* Quantises the finite part of x[k] into one row; scale multiplies x, weight (may be NULL)
     * multiplies it element by element. */
    void (*quant_row)(const gs_act_row *row, const float *x, float scale, const float *weight,
                      int32_t k);
    /* Likewise as bf16 pairs; NULL: BF16 weights take floats. */
    void (*bf16_row)(const gs_act_row *row, const float *x, float scale, const float *weight,
                     int32_t k);
    float (*sum_squares)(const float *x, int32_t k);
    void (*scale_mul)(float *y, const float *x, float scale, const float *weight, int32_t k);
    void (*add_scaled)(float *y, const float *x, float scale, int32_t n);
    void (*silu_mul)(float *out, const float *gate, const float *up, int32_t n);
    void (*gelu_mul)(float *out, const float *gate, const float *up, int32_t n);
    void (*gelu)(float *x, int32_t n);
    void (*softcap)(float *x, int32_t n, float cap);
    void (*layernorm)(float *y, const float *x, const float *weight, const float *bias, int32_t k,
                      float eps);
    void (*rope)(float *x, const float *cos_tab, const float *sin_tab, int32_t n_rot, bool neox);
    void (*logsumexp)(const float *x, int32_t n, float *max, float *lse);
    int32_t (*argmax)(const float *x, int32_t n, bool *finite);
} gs_kernel_table;

/* Which 4-element dot product a vector header offers: none, unsigned weights x signed activations,
 * or both signed. */
#define V_DOT_NONE 0
#define V_DOT_U8S8 1
#define V_DOT_S8S8 2

extern bool gs_kernels_bf16; /* AVX512-BF16 goes with the chosen instruction set */
/*
 * gelu(x) = x (1/2 + c P(u)), c = x clamped to -5..5, u = 2 (c / 5)^2 - 1, for the vector kernels:
 * a minimax fit, error below 1e-6 everywhere.
 */
#define GS_GELU_MAX    5.0f
#define GS_GELU_DEGREE 12
#define GS_GELU_POLY                                                                               \
    {                                                                                              \
        0.14136378f, -0.070296652f, 0.051521421f, -0.040432949f, 0.031426229f, -0.023336732f,      \
            0.016497658f, -0.010973229f, 0.0061654251f, -0.0029156762f, 0.0020018662f,             \
            -0.0015141524f, 0.0004929671f                                                          \
    }

extern const gs_kernel_table *gs_kernels; /* never NULL; scalar before gs_kernels_init */

extern const gs_kernel_table gs_kernels_scalar;
#if defined(__x86_64__)
extern const gs_kernel_table gs_kernels_avx2;
extern const gs_kernel_table gs_kernels_avxvnni;
extern const gs_kernel_table gs_kernels_avx512;
extern const gs_kernel_table gs_kernels_avx512vnni;
extern const gs_kernel_table gs_kernels_avx512bf16; /* avx512vnni and bf16 pairs */
#elif defined(__aarch64__)
extern const gs_kernel_table gs_kernels_neon;
extern const gs_kernel_table gs_kernels_i8mm;
#endif

/* The scalar versions, for tables that have no better one. */
const gs_tile_set *gs_tiles_scalar(gs_qtype type);
void gs_quant_row_scalar(const gs_act_row *row, const float *x, float scale, const float *weight,
                         int32_t k);
float gs_sum_squares_scalar(const float *x, int32_t k);
void gs_scale_mul_scalar(float *y, const float *x, float scale, const float *weight, int32_t k);
void gs_add_scaled_scalar(float *y, const float *x, float scale, int32_t n);
void gs_silu_mul_scalar(float *out, const float *gate, const float *up, int32_t n);
void gs_gelu_mul_scalar(float *out, const float *gate, const float *up, int32_t n);
void gs_gelu_scalar(float *x, int32_t n);
void gs_softcap_scalar(float *x, int32_t n, float cap);
void gs_layernorm_scalar(float *y, const float *x, const float *weight, const float *bias,
                         int32_t k, float eps);
void gs_rope_scalar(float *x, const float *cos_tab, const float *sin_tab, int32_t n_rot, bool neox);
void gs_logsumexp_scalar(const float *x, int32_t n, float *max, float *lse);
int32_t gs_argmax_scalar(const float *x, int32_t n, bool *finite);

#endif
