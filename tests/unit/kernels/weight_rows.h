/*
 * Legal blocks of every weight type, packed matrices, activations. Shared by the kernel tests; the
 * including file seeds g_rng.
 */
#ifndef TESTS_WEIGHT_ROWS_H
#define TESTS_WEIGHT_ROWS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/kernels.h"

static const gs_qtype g_types[] = {
    GS_QTYPE_F32,  GS_QTYPE_F16,  GS_QTYPE_BF16, GS_QTYPE_Q4_0,   GS_QTYPE_Q4_1,
    GS_QTYPE_Q5_0, GS_QTYPE_Q5_1, GS_QTYPE_Q8_0, GS_QTYPE_Q2_K,   GS_QTYPE_Q3_K,
    GS_QTYPE_Q4_K, GS_QTYPE_Q5_K, GS_QTYPE_Q6_K, GS_QTYPE_IQ4_NL, GS_QTYPE_MXFP4,
};
#define N_TYPES (sizeof g_types / sizeof g_types[0])

static gs_rng g_rng;

static uint32_t rnd(uint32_t n) {
    return (uint32_t)gs_rng_below(&g_rng, n);
}

static float rnd_float(void) {
    return (float)(gs_rng_unit(&g_rng) * 2.0 - 1.0);
}

static void *alloc64(size_t n) {
    void *p = aligned_alloc(64, (n + 63) & ~(size_t)63);
    assert_non_null(p);
    return p;
}

static const gs_qtype_info *info_of(gs_qtype type) {
    return gs_qtype_get((uint32_t)type);
}

static size_t row_bytes(gs_qtype type, int32_t k) {
    return (size_t)k / info_of(type)->block_elems * info_of(type)->block_bytes;
}

/* Offsets of the f16 scales in a block; the rest of a block may hold any bits. */
static size_t f16_fields(gs_qtype type, size_t at[2]) {
    at[0] = 0;
    at[1] = 2;
    switch (type) {
    case GS_QTYPE_Q4_1:
    case GS_QTYPE_Q5_1:
    case GS_QTYPE_Q4_K:
    case GS_QTYPE_Q5_K:
        return 2;
    case GS_QTYPE_Q2_K:
        at[0] = 80;
        at[1] = 82;
        return 2;
    case GS_QTYPE_Q3_K:
        at[0] = 108;
        return 1;
    case GS_QTYPE_Q6_K:
        at[0] = 208;
        return 1;
    default:
        return 1;
    }
}

enum { DATA_RANDOM, DATA_MAX, DATA_ZERO_SCALE, DATA_TINY, N_DATA };

/* A finite f16 of moderate size, either sign. */
static uint16_t rnd_f16(void) {
    return (uint16_t)((rnd(2) << 15) | (8 + rnd(8)) << 10 | rnd(1024));
}

/* Raw bytes of n rows: all of them legal blocks of the type, scales finite. */
static uint8_t *make_rows(gs_qtype type, int32_t n, int32_t k, int kind) {
    size_t bytes = row_bytes(type, k) * (size_t)n, block = info_of(type)->block_bytes;
    uint8_t *src = malloc(bytes);
    assert_non_null(src);
    for (size_t i = 0; i < bytes; i++)
        src[i] = kind == DATA_MAX ? 0xff : (uint8_t)rnd(256);
    for (size_t b = 0; b < bytes / block; b++) {
        uint8_t *p = src + b * block;
        if (type == GS_QTYPE_F32) {
            float f = rnd_float();
            memcpy(p, &f, 4);
        } else if (type == GS_QTYPE_MXFP4) {
            p[0] = kind == DATA_TINY ? (uint8_t)rnd(3) : (uint8_t)(120 + rnd(8));
        } else if (type == GS_QTYPE_BF16) {
            uint16_t h = (uint16_t)(0x3f00u | rnd(256) | rnd(2) << 15);
            memcpy(p, &h, 2);
        } else {
            size_t at[2], n_f16 = f16_fields(type, at);
            for (size_t i = 0; i < n_f16; i++) {
                uint16_t h = kind == DATA_ZERO_SCALE ? 0
                             : kind == DATA_TINY     ? (uint16_t)(rnd(64) | rnd(2) << 15)
                             : kind == DATA_MAX      ? (uint16_t)(0x3c00 | rnd(2) << 15)
                                                     : rnd_f16();
                memcpy(p + at[i], &h, 2);
            }
        }
    }
    return src;
}

static gs_mat pack_rows(gs_qtype type, int32_t n, int32_t k, const void *src) {
    gs_mat m;
    assert_int_equal(gs_mat_init(&m, type, n, k), GS_OK);
    m.data = alloc64(gs_mat_bytes(&m));
    memset(m.data, 0x5a, gs_mat_bytes(&m)); /* packing must write all of it */
    int32_t mid = m.n_panels / 2;
    gs_mat_pack(&m, src, mid, m.n_panels);
    gs_mat_pack(&m, src, 0, mid);
    return m;
}

static gs_act make_act(int32_t m, int32_t k) {
    gs_act a = {m, k, alloc64(gs_act_bytes(m, k))};
    memset(a.data, 0x5a, gs_act_bytes(m, k));
    return a;
}

static void use_isa(gs_isa isa) {
    char err[200];
    assert_int_equal(gs_kernels_init(gs_isa_name(isa), err, sizeof err), GS_OK);
    assert_int_equal(gs_kernels_isa(), isa);
}

#endif
