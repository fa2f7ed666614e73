/* Vector primitives for the tiles: NEON with the dot-product extension, one vector = 4 rows. */
#ifndef GS_KERNELS_V128_H
#define GS_KERNELS_V128_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels_impl.h"

#define V_ROWS  4
#define V_BYTES 16
#define V_DOT   V_DOT_S8S8

typedef uint8x16_t vint;
typedef float32x4_t vflt;

#define v_prefetch(p) __builtin_prefetch(p, 0, 2)

static inline int32_t v_i32(const void *p) {
    int32_t i;
    memcpy(&i, p, sizeof i);
    return i;
}

#define V_U16(a)         vreinterpretq_u16_u8(a)
#define V_S16(a)         vreinterpretq_s16_u8(a)
#define V_S32(a)         vreinterpretq_s32_u8(a)

#define vi_load(p)       vld1q_u8((const uint8_t *)(p))
#define vi_zero()        vdupq_n_u8(0)
#define vi_bcast(p)      vreinterpretq_u8_s32(vdupq_n_s32(v_i32(p)))
#define vi_set8(x)       vdupq_n_u8((uint8_t)(x))
#define vi_and(a, b)     vandq_u8(a, b)
#define vi_or(a, b)      vorrq_u8(a, b)
#define vi_xor(a, b)     veorq_u8(a, b)
#define vi_srl16(a, n)   vreinterpretq_u8_u16(vshlq_u16(V_U16(a), vdupq_n_s16((int16_t)(-(n)))))
#define vi_sll16(a, n)   vreinterpretq_u8_u16(vshlq_u16(V_U16(a), vdupq_n_s16((int16_t)(n))))
#define vi_sll32(a, n)   vreinterpretq_u8_s32(vshlq_s32(V_S32(a), vdupq_n_s32(n)))
#define vi_sra32(a, n)   vreinterpretq_u8_s32(vshlq_s32(V_S32(a), vdupq_n_s32(-(n))))
#define vi_add32(a, b)   vreinterpretq_u8_s32(vaddq_s32(V_S32(a), V_S32(b)))
#define vi_mul32(a, b)   vreinterpretq_u8_s32(vmulq_s32(V_S32(a), V_S32(b)))
#define vi_madd1(a)      vreinterpretq_u8_s32(vpaddlq_s16(V_S16(a)))
#define vi_book(p, flip) veorq_u8(vreinterpretq_u8_s8(vld1q_s8(p)), vdupq_n_u8(flip))
#define vi_lut(table, i) vqtbl1q_u8(table, i)
#define vi_dot(acc, w, a)                                                                          \
    vreinterpretq_u8_s32(vdotq_s32(V_S32(acc), vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(a)))

/* 2 rows x 8 columns times 8 columns x 2 tokens (FEAT_I8MM). The lanes of a product are (row 0,
 * token 0), (0, 1), (1, 0), (1, 1). */
#ifdef __ARM_FEATURE_MATMUL_INT8
#define V_MM
#define vi_zip_lo(a, b) vreinterpretq_u8_s32(vzip1q_s32(V_S32(a), V_S32(b)))
#define vi_zip_hi(a, b) vreinterpretq_u8_s32(vzip2q_s32(V_S32(a), V_S32(b)))
#define vi_even32(a, b) vreinterpretq_u8_s32(vuzp1q_s32(V_S32(a), V_S32(b)))
#define vi_odd32(a, b)  vreinterpretq_u8_s32(vuzp2q_s32(V_S32(a), V_S32(b)))
#define vi_pair(p, q)   vcombine_u8(vld1_u8((const uint8_t *)(p)), vld1_u8((const uint8_t *)(q)))
#define vi_mm(acc, w, a)                                                                           \
    vreinterpretq_u8_s32(vmmlaq_s32(V_S32(acc), vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(a)))
#endif

static inline uint8x8_t v_4bytes(const void *p) {
    return vreinterpret_u8_s32(vdup_n_s32(v_i32(p)));
}
#define vi_u8(p) vreinterpretq_u8_u32(vmovl_u16(vget_low_u16(vmovl_u8(v_4bytes(p)))))
#define vi_i8(p)                                                                                   \
    vreinterpretq_u8_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(v_4bytes(p))))))
#define vi_u16(p)        vreinterpretq_u8_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(p))))

#define vf_zero()        vdupq_n_f32(0.0f)
#define vf_load(p)       vld1q_f32(p)
#define vf_store(p, x)   vst1q_f32(p, x)
#define vf_bcast(p)      vdupq_n_f32(*(p))
#define vf_set(x)        vdupq_n_f32(x)
#define vf_add(a, b)     vaddq_f32(a, b)
#define vf_mul(a, b)     vmulq_f32(a, b)
#define vf_fma(a, b, c)  vfmaq_f32(c, a, b)
#define vf_fnma(a, b, c) vfmsq_f32(c, a, b)
#define vf_from_int(a)   vcvtq_f32_s32(V_S32(a))
#define vf_cast(a)       vreinterpretq_f32_u8(a)
#define vf_f16(p)        vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)))

static inline vflt vf_e8m0(const uint8_t *p) {
    float d[4];
    for (int i = 0; i < 4; i++)
        d[i] = gs_e8m0_half(p[i]);
    return vld1q_f32(d);
}

#endif
