/*
 * Private to the attention kernels and their tests: the function table per instruction set, page
 * addresses and f16 conversion.
 */
#ifndef GS_KERNELS_ATTN_IMPL_H
#define GS_KERNELS_ATTN_IMPL_H

#include <stdint.h>
#include <string.h>

#include "kernels/attn.h"

/* Query rows that go over a page together; bounds the scratch memory. 24 rows of scores, output
 * and queries stay in L1 beside a K and a V page (head_dim 64, 32 tokens). */
#define GS_ATTN_TILE_ROWS 24
#define GS_ATTN_MAX_HEAD  256

typedef struct gs_attn_ops {
    void (*attn)(const gs_kv_layout *l, const gs_attn_item *it, void *scratch);
    /* x[i] rounded to f16 (saturating, NaN kept) at out[i * stride]. n: a multiple of 16 */
    void (*store_f16)(uint16_t *out, size_t stride, const float *x, int32_t n);
    void (*exp2)(float *x, int32_t n); /* in place; n: a multiple of 16. The kernels' own 2^x */
} gs_attn_ops;

extern const gs_attn_ops gs_attn_ops_ref;
#if defined(__x86_64__)
extern const gs_attn_ops gs_attn_ops_avx2, gs_attn_ops_avx512;
#endif
/* The table for gs_kernels_isa(). */
const gs_attn_ops *gs_attn_ops_get(void);

/* K page of (layer, block, kv head): [head_dim][block_tokens] f16; the V page follows it. */
static inline uint8_t *gs_kv_page(const gs_kv_layout *l, int32_t layer, uint32_t block,
                                  int32_t kv_head) {
    size_t i = ((size_t)layer * l->n_blocks + block) * (size_t)l->n_kv_heads + (size_t)kv_head;
    return l->base + i * 2 * l->page_bytes;
}

static inline float gs_attn_half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3ffu, u;
    if (exp == 31) {
        u = sign | 0x7f800000u | (man << 13);
    } else if (exp != 0) {
        u = sign | ((exp + 112) << 23) | (man << 13);
    } else {
        float f = (float)man * 0x1p-24f;
        memcpy(&u, &f, sizeof u);
        u |= sign;
    }
    float out;
    memcpy(&out, &u, sizeof out);
    return out;
}

/* Round to nearest, ties to even; finite values saturate at +-65504; NaN stays NaN. */
static inline uint16_t gs_attn_half_from_float(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (u >= 0x477fe000u) /* 65504 and above */
        return (uint16_t)(sign | 0x7bffu);
    if (u < 0x38800000u) { /* subnormal: the float adder rounds to a multiple of 2^-24 */
        float a;
        memcpy(&a, &u, sizeof a);
        a += 0.5f;
        memcpy(&u, &a, sizeof u);
        return (uint16_t)(sign | (u - 0x3f000000u));
    }
    u += 0xfffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | ((u - 0x38000000u) >> 13));
}

#endif
