/*
 * Private to the attention kernels and their tests: the function table per instruction set, page
 * addresses, sizes and number conversion.
 */
#ifndef GS_KERNELS_ATTN_IMPL_H
#define GS_KERNELS_ATTN_IMPL_H

#include <stdint.h>
#include <string.h>

#include "kernels/attn.h"
#include "kernels/kernels_impl.h"

/* Query rows that go over the pages together: bounds scratch memory. Their outputs stay in L1
 * beside the pages of a chunk. */
#define GS_ATTN_TILE_ROWS 24
#define GS_ATTN_MAX_HEAD  256
/* gs_kv_layout.chunk_tokens as it is set at first. */
#define GS_ATTN_CHUNK    64
#define GS_ATTN_CHUNK_Q8 128
#define GS_ATTN_SEGMENT  512
/* A segment's result of one query row: unnormalised output[head_dim], then the maximum of the
 * scores (as powers of two) and the sum of the weights. */
#define GS_ATTN_PART_EXTRA 16

#define GS_KV_Q8_V_STEPS   1024.0f /* steps of V's scale per factor of two */

typedef void gs_attn_fn(const gs_kv_layout *l, const gs_attn_item *it, void *scratch);

/* n is a multiple of 16 everywhere. */
typedef struct gs_attn_ops {
    gs_attn_fn *attn[GS_KV_TYPE_COUNT];
    void (*merge)(int32_t head_dim, float *out, const float *part, size_t ld, int32_t n_seg);
    void (*to_f16)(uint16_t *out, const float *x, int32_t n);  /* saturating, NaN kept */
    void (*to_bf16)(uint16_t *out, const float *x, int32_t n); /* NaN kept */
    float (*max_abs)(const float *x, int32_t n);               /* NaN: unspecified */
    /* out = x * inv, rounded; |x * inv| < 128 */
    void (*to_s8)(int8_t *out, const float *x, float inv, int32_t n);
    void (*exp2)(float *x, int32_t n); /* in place. The kernels' own 2^x */
} gs_attn_ops;

extern const gs_attn_ops gs_attn_ops_ref;
#if defined(__x86_64__)
extern const gs_attn_ops gs_attn_ops_avx2, gs_attn_ops_avx512, gs_attn_ops_avx512vnni,
    gs_attn_ops_avx512bf16;
#endif
/* The table for gs_kernels_isa(). */
const gs_attn_ops *gs_attn_ops_get(void);

/* K page of (layer, block, kv head); the V page follows it. */
static inline uint8_t *gs_kv_page(const gs_kv_layout *l, int32_t layer, uint32_t block,
                                  int32_t kv_head) {
    size_t i = ((size_t)layer * l->n_blocks + block) * (size_t)l->n_kv_heads + (size_t)kv_head;
    return l->base + i * 2 * l->page_bytes;
}

/* Where the scales of a q8 page begin. */
static inline size_t gs_kv_scale_offset(const gs_kv_layout *l) {
    return (size_t)l->head_dim * (size_t)l->block_tokens;
}

static inline int32_t gs_attn_chunk_pages(const gs_kv_layout *l) {
    int32_t n = l->chunk_tokens / l->block_tokens;
    return n > 0 ? n : 1;
}

static inline int32_t gs_attn_segment_chunks(const gs_kv_layout *l) {
    int32_t n = GS_ATTN_SEGMENT / (gs_attn_chunk_pages(l) * l->block_tokens);
    return n > 0 ? n : 1;
}

/* Round to nearest, ties to even; finite values saturate at +-65504; NaN stays NaN. */
static inline uint16_t gs_attn_half_from_float(float f) {
    uint32_t u = gs_f32_bits(f);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (u >= 0x477fe000u) /* 65504 and above */
        return (uint16_t)(sign | 0x7bffu);
    if (u < 0x38800000u) { /* subnormal: the float adder rounds to a multiple of 2^-24 */
        u = gs_f32_bits(gs_f32_from_bits(u) + 0.5f);
        return (uint16_t)(sign | (u - 0x3f000000u));
    }
    u += 0xfffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | ((u - 0x38000000u) >> 13));
}

#endif
