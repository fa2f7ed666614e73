/* Vector primitives for gemm_tile.h: AVX2 + FMA + F16C (+ AVX-VNNI), one vector = 8 rows. */
#ifndef GS_KERNELS_V256_H
#define GS_KERNELS_V256_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels_impl.h"

#define V_ROWS  8
#define V_BYTES 32

typedef __m256i vint;
typedef __m256 vflt;

#define v_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)
/* A code book of 16 bytes for vi_lut, each with bits flipped. */
#define vi_book(p, flip)                                                                           \
    _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)(p)), _mm_set1_epi8((char)(flip)))

static inline int32_t v_i32(const void *p) {
    int32_t i;
    memcpy(&i, p, sizeof i);
    return i;
}

#define vi_load(p)       _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define vi_zero()        _mm256_setzero_si256()
#define vi_bcast(p)      _mm256_set1_epi32(v_i32(p))
#define vi_set8(x)       _mm256_set1_epi8((char)(x))
#define vi_and(a, b)     _mm256_and_si256(a, b)
#define vi_or(a, b)      _mm256_or_si256(a, b)
#define vi_xor(a, b)     _mm256_xor_si256(a, b)
#define vi_srl16(a, n)   _mm256_srli_epi16(a, n)
#define vi_sll16(a, n)   _mm256_slli_epi16(a, n)
#define vi_sll32(a, n)   _mm256_slli_epi32(a, n)
#define vi_sra32(a, n)   _mm256_srai_epi32(a, n)
#define vi_add32(a, b)   _mm256_add_epi32(a, b)
#define vi_add16(a, b)   _mm256_add_epi16(a, b)
#define vi_mul32(a, b)   _mm256_mullo_epi32(a, b)
#define vi_lut(table, i) _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), i)
#define vi_u8(p)         _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p)))
#define vi_i8(p)         _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p)))
#define vi_u16(p)        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define vi_maddubs(u, s) _mm256_maddubs_epi16(u, s)
#define vi_madd1(a)      _mm256_madd_epi16(a, _mm256_set1_epi16(1))
#define vi_abs8(a)       _mm256_abs_epi8(a)
#define vi_sign8(s, w)   _mm256_sign_epi8(s, w)

#ifdef __AVXVNNI__
#define V_DOT             V_DOT_U8S8
#define vi_dot(acc, u, s) _mm256_dpbusd_avx_epi32(acc, u, s)
#else
#define V_DOT V_DOT_NONE
#endif

#define vf_zero()        _mm256_setzero_ps()
#define vf_load(p)       _mm256_loadu_ps(p)
#define vf_store(p, x)   _mm256_storeu_ps(p, x)
#define vf_bcast(p)      _mm256_set1_ps(*(p))
#define vf_set(x)        _mm256_set1_ps(x)
#define vf_add(a, b)     _mm256_add_ps(a, b)
#define vf_mul(a, b)     _mm256_mul_ps(a, b)
#define vf_fma(a, b, c)  _mm256_fmadd_ps(a, b, c)
#define vf_fnma(a, b, c) _mm256_fnmadd_ps(a, b, c)
#define vf_from_int(a)   _mm256_cvtepi32_ps(a)
#define vf_cast(a)       _mm256_castsi256_ps(a)
#define vf_f16(p)        _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))

/* 2^(e - 128), exact down to the subnormal results of e = 0 and 1 */
static inline vflt vf_e8m0(const uint8_t *p) {
    __m256i e = vi_u8(p);
    __m256i big = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(big, small, is_small));
}

#endif
