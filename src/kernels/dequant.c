/*
 * GGUF rows as floats, straight from the file's bytes: the scalar truth that packing is tested
 * against. Written from the block layouts of the format, on purpose without sharing code with
 * pack.c, so that a wrong bit in one of them shows.
 */
#include <string.h>

#include "base/err.h"
#include "kernels/kernels_impl.h"

static float f16_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return gs_f16_to_f32(h);
}

/* 4-bit block of 32: column i in the low nibble of byte i, column 16 + i in the high one. */
static int nib(const uint8_t *qs, int i) {
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

static int bit(const uint8_t *bits, int i) {
    return bits[i / 8] >> (i % 8) & 1;
}

static void block32(gs_qtype type, const uint8_t *s, float *out) {
    float d = type == GS_QTYPE_MXFP4 ? gs_e8m0_half(s[0]) : f16_at(s);
    for (int i = 0; i < 32; i++) {
        switch (type) {
        case GS_QTYPE_Q4_0:
            out[i] = d * (float)(nib(s + 2, i) - 8);
            break;
        case GS_QTYPE_Q4_1:
            out[i] = d * (float)nib(s + 4, i) + f16_at(s + 2);
            break;
        case GS_QTYPE_Q5_0:
            out[i] = d * (float)((nib(s + 6, i) | bit(s + 2, i) << 4) - 16);
            break;
        case GS_QTYPE_Q5_1:
            out[i] = d * (float)(nib(s + 8, i) | bit(s + 4, i) << 4) + f16_at(s + 2);
            break;
        case GS_QTYPE_Q8_0:
            out[i] = d * (float)(int8_t)s[2 + i];
            break;
        case GS_QTYPE_IQ4_NL:
            out[i] = d * (float)gs_book_iq4nl[nib(s + 2, i)];
            break;
        default:
            out[i] = d * (float)gs_book_mxfp4[nib(s + 1, i)];
            break;
        }
    }
}

/* d f16, dmin f16, 12 bytes of 6-bit scales and minima, [32 bytes high bits], 128 bytes nibbles */
static void block_q45k(gs_qtype type, const uint8_t *s, float *out) {
    const uint8_t *q = s + 4, *qh = s + 16, *qs = type == GS_QTYPE_Q5_K ? s + 48 : s + 16;
    for (int c = 0; c < 256; c++) {
        int j = c / 32, i = c % 32;
        int sc, mn;
        if (j < 4) {
            sc = q[j] & 63;
            mn = q[4 + j] & 63;
        } else {
            sc = (q[4 + j] & 15) + 16 * (q[j - 4] >> 6);
            mn = (q[4 + j] >> 4) + 16 * (q[j] >> 6);
        }
        int code = j % 2 ? qs[32 * (j / 2) + i] >> 4 : qs[32 * (j / 2) + i] & 15;
        if (type == GS_QTYPE_Q5_K)
            code += 16 * (qh[i] >> j & 1);
        out[c] = f16_at(s) * (float)sc * (float)code - f16_at(s + 2) * (float)mn;
    }
}

/* 128 bytes low nibbles, 64 bytes of bit pairs, 16 int8 scales, d f16 */
static void block_q6k(const uint8_t *s, float *out) {
    for (int c = 0; c < 256; c++) {
        int half = c / 128, quarter = c % 128 / 32, i = c % 32;
        int lo = s[64 * half + 32 * (quarter % 2) + i] >> (quarter / 2 ? 4 : 0) & 15;
        int hi = s[128 + 32 * half + i] >> (2 * quarter) & 3;
        int sc = (int8_t)s[192 + c / 16];
        out[c] = f16_at(s + 208) * (float)sc * (float)(lo + 16 * hi - 32);
    }
}

/* 16 bytes scale | minimum << 4, 64 bytes of bit pairs, d f16, dmin f16 */
static void block_q2k(const uint8_t *s, float *out) {
    for (int c = 0; c < 256; c++) {
        int code = s[16 + 32 * (c / 128) + c % 32] >> (2 * (c % 128 / 32)) & 3;
        int sc = s[c / 16] & 15, mn = s[c / 16] >> 4;
        out[c] = f16_at(s + 80) * (float)sc * (float)code - f16_at(s + 82) * (float)mn;
    }
}

/* 32 bytes high bits (0 means - 4), 64 bytes of bit pairs, 12 bytes of 6-bit scales, d f16 */
static void block_q3k(const uint8_t *s, float *out) {
    for (int c = 0; c < 256; c++) {
        int code = s[32 + 32 * (c / 128) + c % 32] >> (2 * (c % 128 / 32)) & 3;
        int high = s[c % 32] >> (c / 32) & 1;
        int j = c / 16;
        int sc = (j < 8 ? s[96 + j] & 15 : s[96 + j - 8] >> 4) +
                 16 * (s[104 + j % 4] >> (2 * (j / 4)) & 3) - 32;
        out[c] = f16_at(s + 108) * (float)sc * (float)(high ? code : code - 4);
    }
}

static void float_row(gs_qtype type, const uint8_t *s, float *out, int32_t k) {
    if (type == GS_QTYPE_F32) {
        memcpy(out, s, 4 * (size_t)k);
        return;
    }
    for (int32_t i = 0; i < k; i++) {
        uint16_t h;
        memcpy(&h, s + 2 * (size_t)i, 2);
        out[i] = type == GS_QTYPE_F16 ? gs_f16_to_f32(h) : gs_bf16_to_f32(h);
    }
}

void gs_dequant_row(gs_qtype type, const void *src, float *out, int32_t k) {
    const gs_qtype_info *info = gs_qtype_get((uint32_t)type);
    GS_ASSERT(info && gs_mat_type_ok(type) && k % (int32_t)info->block_elems == 0);
    if (info->block_elems == 1) {
        float_row(type, src, out, k);
        return;
    }
    const uint8_t *s = src;
    for (int32_t c = 0; c < k; c += (int32_t)info->block_elems, s += info->block_bytes) {
        switch (type) {
        case GS_QTYPE_Q4_K:
        case GS_QTYPE_Q5_K:
            block_q45k(type, s, out + c);
            break;
        case GS_QTYPE_Q6_K:
            block_q6k(s, out + c);
            break;
        case GS_QTYPE_Q2_K:
            block_q2k(s, out + c);
            break;
        case GS_QTYPE_Q3_K:
            block_q3k(s, out + c);
            break;
        default:
            block32(type, s, out + c);
            break;
        }
    }
}
