/* Vector primitives for gemm_tile.h: AVX-512 (F, BW, DQ, VL), one vector = 16 rows. */
#ifndef GS_KERNELS_V512_H
#define GS_KERNELS_V512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels_impl.h"

#define V_ROWS  16
#define V_BYTES 64

/* The compilers disagree about the sign of a shift count. */
#ifdef __clang__
#define V_COUNT unsigned
#else
#define V_COUNT int
#endif

typedef __m512i vint;
typedef __m512 vflt;

#define v_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)
/* A code book of 16 bytes for vi_lut, each with bits flipped. */
#define vi_book(p, flip)                                                                           \
    _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)(p)), _mm_set1_epi8((char)(flip)))

static inline int32_t v_i32(const void *p) {
    int32_t i;
    memcpy(&i, p, sizeof i);
    return i;
}

#define vi_load(p)       _mm512_loadu_si512(p)
#define vi_zero()        _mm512_setzero_si512()
#define vi_bcast(p)      _mm512_set1_epi32(v_i32(p))
#define vi_set8(x)       _mm512_set1_epi8((char)(x))
#define vi_and(a, b)     _mm512_and_si512(a, b)
#define vi_or(a, b)      _mm512_or_si512(a, b)
#define vi_xor(a, b)     _mm512_xor_si512(a, b)
#define vi_srl16(a, n)   _mm512_srli_epi16(a, (V_COUNT)(n))
#define vi_sll16(a, n)   _mm512_slli_epi16(a, (V_COUNT)(n))
#define vi_sll32(a, n)   _mm512_slli_epi32(a, (unsigned)(n))
#define vi_sra32(a, n)   _mm512_srai_epi32(a, (unsigned)(n))
#define vi_add32(a, b)   _mm512_add_epi32(a, b)
#define vi_add16(a, b)   _mm512_add_epi16(a, b)
#define vi_mul32(a, b)   _mm512_mullo_epi32(a, b)
#define vi_lut(table, i) _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), i)
#define vi_u8(p)         _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vi_i8(p)         _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vi_u16(p)        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
/* 16-bit products of pairs, and pairs of 16 bits to 32: the dot product without VNNI */
#define vi_maddubs(u, s) _mm512_maddubs_epi16(u, s)
#define vi_madd1(a)      _mm512_madd_epi16(a, _mm512_set1_epi16(1))
#define vi_abs8(a)       _mm512_abs_epi8(a)

/* s with the sign of w, byte-wise; zero where w is zero need not hold: |w| multiplies it. */
static inline vint vi_sign8(vint s, vint w) {
    return _mm512_mask_sub_epi8(s, _mm512_movepi8_mask(w), _mm512_setzero_si512(), s);
}

#ifdef __AVX512VNNI__
#define V_DOT             V_DOT_U8S8
#define vi_dot(acc, u, s) _mm512_dpbusd_epi32(acc, u, s)
#else
#define V_DOT V_DOT_NONE
#endif

#define vf_zero()        _mm512_setzero_ps()
#define vf_load(p)       _mm512_loadu_ps(p)
#define vf_store(p, x)   _mm512_storeu_ps(p, x)
#define vf_bcast(p)      _mm512_set1_ps(*(p))
#define vf_set(x)        _mm512_set1_ps(x)
#define vf_add(a, b)     _mm512_add_ps(a, b)
#define vf_mul(a, b)     _mm512_mul_ps(a, b)
#define vf_fma(a, b, c)  _mm512_fmadd_ps(a, b, c)
#define vf_fnma(a, b, c) _mm512_fnmadd_ps(a, b, c)
#define vf_from_int(a)   _mm512_cvtepi32_ps(a)
#define vf_cast(a)       _mm512_castsi512_ps(a)
#define vf_f16(p)        _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))

/* 2^(e - 128), exact down to the subnormal results of e = 0 and 1 */
static inline vflt vf_e8m0(const uint8_t *p) {
    __m512i e = vi_u8(p);
    __m512i big = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_small, big, small));
}

#endif
