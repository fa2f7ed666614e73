/*
 * Packing: GGUF blocks -> panels, and the scalar decoder of a packed row.
 *
 * Every source format is first unpacked to plain unsigned codes (32 per row and block), which are
 * then split into the planes that kernels_impl.h describes. Scales keep the precision that the
 * file has: f16 stays f16, the 6-bit scales of the K-quants become bytes.
 */
#include <string.h>

#include "base/err.h"
#include "kernels/kernels_impl.h"

/* Code books: facts of the formats (IQ4_NL; MXFP4 = OCP E2M1 doubled). */
const int8_t gs_book_iq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
const int8_t gs_book_mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static const gs_fmt g_formats[] = {
    {GS_QTYPE_F32, GS_SCALE_FLOAT, 32, 0, 0, NULL, 2048, 1, 0, 1},
    {GS_QTYPE_F16, GS_SCALE_FLOAT, 16, 0, 0, NULL, 1024, 1, 0, 1},
    {GS_QTYPE_BF16, GS_SCALE_FLOAT, 16, 0, 0, NULL, 1024, 1, 0, 1},
    {GS_QTYPE_Q4_0, GS_SCALE_F16, 4, 0, 8, NULL, 256, 1, 32, 2},
    {GS_QTYPE_Q4_1, GS_SCALE_F16_MIN, 4, 0, 0, NULL, 256, 1, 64, 1},
    {GS_QTYPE_Q5_0, GS_SCALE_F16, 4, 1, 16, NULL, 320, 1, 32, 2},
    {GS_QTYPE_Q5_1, GS_SCALE_F16_MIN, 4, 1, 0, NULL, 320, 1, 64, 1},
    {GS_QTYPE_Q8_0, GS_SCALE_F16, 8, 0, 128, NULL, 512, 1, 32, 2},
    {GS_QTYPE_IQ4_NL, GS_SCALE_F16, 4, 0, 0, gs_book_iq4nl, 256, 1, 32, 2},
    {GS_QTYPE_MXFP4, GS_SCALE_E8M0, 4, 0, 0, gs_book_mxfp4, 256, 1, 16, 4},
    {GS_QTYPE_Q2_K, GS_SCALE_K16_MIN, 2, 0, 0, NULL, 128, 8, 320, 8},
    {GS_QTYPE_Q3_K, GS_SCALE_K16, 2, 1, 4, NULL, 192, 8, 288, 16},
    {GS_QTYPE_Q4_K, GS_SCALE_K_MIN, 4, 0, 0, NULL, 256, 8, 320, 8},
    {GS_QTYPE_Q5_K, GS_SCALE_K_MIN, 4, 1, 0, NULL, 320, 8, 320, 8},
    {GS_QTYPE_Q6_K, GS_SCALE_K16, 4, 2, 32, NULL, 384, 8, 288, 16},
};

const gs_fmt *gs_fmt_get(gs_qtype type) {
    for (size_t i = 0; i < sizeof g_formats / sizeof g_formats[0]; i++)
        if (g_formats[i].type == type)
            return &g_formats[i];
    return NULL;
}

bool gs_mat_type_ok(gs_qtype type) {
    return gs_fmt_get(type) != NULL;
}

int gs_mat_init(gs_mat *m, gs_qtype type, int32_t n, int32_t k) {
    const gs_fmt *f = gs_fmt_get(type);
    if (!f)
        return GS_ERR_UNSUPPORTED;
    if (n <= 0 || k <= 0 || n > INT32_MAX - GS_PANEL_ROWS ||
        k % (GS_BLOCK_COLS * f->super_blocks) != 0)
        return GS_ERR_INVALID;
    size_t n_blocks = (size_t)(k / GS_BLOCK_COLS);
    size_t bytes = n_blocks * f->block_bytes + n_blocks / f->super_blocks * f->scale_bytes;
    m->n = n;
    m->k = k;
    m->n_panels = (n + GS_PANEL_ROWS - 1) / GS_PANEL_ROWS;
    m->type = type;
    m->panel_bytes = (bytes + 63) & ~(size_t)63;
    m->data = NULL;
    return GS_OK;
}

size_t gs_mat_bytes(const gs_mat *m) {
    return (size_t)m->n_panels * m->panel_bytes;
}

/* ---- GGUF block -> codes -----------------------------------------------------------------------
 */

static void nibbles(const uint8_t *qs, uint8_t code[32]) {
    for (int i = 0; i < 16; i++) {
        code[i] = qs[i] & 15;
        code[i + 16] = qs[i] >> 4;
    }
}

/* The fifth bit of Q5_0 and Q5_1: bit i of a little-endian 32-bit word belongs to column i. */
static void add_bit5(const uint8_t *qh, uint8_t code[32]) {
    for (int i = 0; i < 32; i++)
        code[i] = (uint8_t)(code[i] | ((qh[i / 8] >> (i % 8)) & 1) << 4);
}

/* Sub-block j (32 columns) of the 4-bit part of Q4_K and Q5_K: 64 columns share 32 bytes. */
static void nibbles_k(const uint8_t *qs, int j, uint8_t code[32]) {
    const uint8_t *p = qs + 32 * (j / 2);
    for (int i = 0; i < 32; i++)
        code[i] = (p[i] >> (4 * (j % 2))) & 15;
}

static void codes_q6k(const uint8_t *src, int j, uint8_t code[32]) {
    const uint8_t *ql = src + 64 * (j / 4) + 32 * (j % 2);
    const uint8_t *qh = src + 128 + 32 * (j / 4);
    int lo = 4 * ((j % 4) / 2), hi = 2 * (j % 4);
    for (int i = 0; i < 32; i++)
        code[i] = (uint8_t)(((ql[i] >> lo) & 15) | ((qh[i] >> hi) & 3) << 4);
}

static void pairs_k(const uint8_t *qs, int j, uint8_t code[32]) {
    const uint8_t *p = qs + 32 * (j / 4);
    for (int i = 0; i < 32; i++)
        code[i] = (p[i] >> (2 * (j % 4))) & 3;
}

/* The 32 codes of block b of a GGUF row. */
static void codes_get(gs_qtype type, const uint8_t *row, int32_t b, uint8_t code[32]) {
    const gs_qtype_info *info = gs_qtype_get((uint32_t)type);
    int per = (int)info->block_elems / GS_BLOCK_COLS, j = b % per;
    const uint8_t *src = row + (size_t)(b / per) * info->block_bytes;
    switch (type) {
    case GS_QTYPE_Q4_0:
    case GS_QTYPE_IQ4_NL:
        nibbles(src + 2, code);
        break;
    case GS_QTYPE_MXFP4:
        nibbles(src + 1, code);
        break;
    case GS_QTYPE_Q4_1:
        nibbles(src + 4, code);
        break;
    case GS_QTYPE_Q5_0:
        nibbles(src + 6, code);
        add_bit5(src + 2, code);
        break;
    case GS_QTYPE_Q5_1:
        nibbles(src + 8, code);
        add_bit5(src + 4, code);
        break;
    case GS_QTYPE_Q8_0:
        for (int i = 0; i < 32; i++)
            code[i] = src[2 + i] ^ 0x80;
        break;
    case GS_QTYPE_Q4_K:
        nibbles_k(src + 16, j, code);
        break;
    case GS_QTYPE_Q5_K:
        nibbles_k(src + 48, j, code);
        for (int i = 0; i < 32; i++)
            code[i] = (uint8_t)(code[i] | ((src[16 + i] >> j) & 1) << 4);
        break;
    case GS_QTYPE_Q6_K:
        codes_q6k(src, j, code);
        break;
    case GS_QTYPE_Q2_K:
        pairs_k(src + 16, j, code);
        break;
    case GS_QTYPE_Q3_K:
        pairs_k(src + 32, j, code);
        for (int i = 0; i < 32; i++)
            code[i] = (uint8_t)(code[i] | ((src[i] >> j) & 1) << 2);
        break;
    default:
        GS_ASSERT(!"type without codes");
    }
}

/* ---- Codes -> planes ---------------------------------------------------------------------------
 */

static void planes_put(const gs_fmt *f, uint8_t code[16][32], uint8_t *out) {
    for (int r = 0; r < 16; r++) {
        const uint8_t *c = code[r];
        uint8_t *o = out + 4 * r;
        if (f->base_bits == 8) {
            for (int j = 0; j < 8; j++)
                memcpy(o + 64 * j, c + 4 * j, 4);
        } else if (f->base_bits == 4) {
            for (int v = 0; v < 4; v++)
                for (int i = 0; i < 4; i++)
                    o[64 * v + i] = (uint8_t)((c[4 * v + i] & 15) | (c[16 + 4 * v + i] & 15) << 4);
        } else {
            for (int v = 0; v < 2; v++)
                for (int i = 0; i < 4; i++) {
                    const uint8_t *p = c + 16 * v + i;
                    o[64 * v + i] = (uint8_t)((p[0] & 3) | (p[4] & 3) << 2 | (p[8] & 3) << 4 |
                                              (p[12] & 3) << 6);
                }
        }
        uint8_t *e = o + 64 * f->base_bits;
        if (f->extra_bits == 2) {
            for (int v = 0; v < 2; v++)
                for (int i = 0; i < 4; i++) {
                    const uint8_t *p = c + 16 * v + i;
                    e[64 * v + i] = (uint8_t)((p[0] >> 4) | (p[4] >> 4) << 2 | (p[8] >> 4) << 4 |
                                              (p[12] >> 4) << 6);
                }
        } else if (f->extra_bits == 1) {
            for (int i = 0; i < 4; i++) {
                unsigned bits = 0;
                for (int j = 0; j < 8; j++)
                    bits |= (unsigned)(c[4 * j + i] >> f->base_bits & 1) << j;
                e[i] = (uint8_t)bits;
            }
        }
    }
}

/* Code of row r, column i of a packed block. */
static unsigned plane_get(const gs_fmt *f, const uint8_t *block, int r, int i) {
    int j = i / 4, byte = 4 * r + i % 4;
    unsigned code;
    if (f->base_bits == 8)
        return block[64 * j + byte];
    if (f->base_bits == 4)
        code = (unsigned)block[64 * (j % 4) + byte] >> (4 * (j / 4)) & 15;
    else
        code = (unsigned)block[64 * (j / 4) + byte] >> (2 * (j % 4)) & 3;
    const uint8_t *e = block + 64 * f->base_bits;
    if (f->extra_bits == 2)
        code |= ((unsigned)e[64 * (j / 4) + byte] >> (2 * (j % 4)) & 3) << f->base_bits;
    else if (f->extra_bits == 1)
        code |= ((unsigned)e[byte] >> j & 1) << f->base_bits;
    return code;
}

/* ---- Scales ------------------------------------------------------------------------------------
 */

static void put16(uint8_t *dst, const uint8_t *src) {
    memcpy(dst, src, 2);
}

/* 6-bit scale and minimum j of Q4_K and Q5_K, packed in 12 bytes. */
static void k_scale_min(const uint8_t *q, int j, uint8_t *sc, uint8_t *mn) {
    if (j < 4) {
        *sc = q[j] & 63;
        *mn = q[j + 4] & 63;
    } else {
        *sc = (uint8_t)((q[j + 4] & 15) | (q[j - 4] >> 6) << 4);
        *mn = (uint8_t)((q[j + 4] >> 4) | (q[j] >> 6) << 4);
    }
}

/* Writes the scales of one row of one scale record. src: the GGUF block. */
static void scales_put(const gs_fmt *f, const uint8_t *src, int r, uint8_t *out) {
    switch (f->type) {
    case GS_QTYPE_Q4_1:
    case GS_QTYPE_Q5_1:
        put16(out + 32 + 2 * r, src + 2);
        put16(out + 2 * r, src);
        break;
    case GS_QTYPE_MXFP4:
        out[r] = src[0];
        break;
    case GS_QTYPE_Q4_K:
    case GS_QTYPE_Q5_K:
        put16(out + 2 * r, src);
        put16(out + 32 + 2 * r, src + 2);
        for (int j = 0; j < 8; j++)
            k_scale_min(src + 4, j, out + 64 + 16 * j + r, out + 192 + 16 * j + r);
        break;
    case GS_QTYPE_Q6_K:
        put16(out + 2 * r, src + 208);
        for (int j = 0; j < 16; j++)
            out[32 + 16 * j + r] = src[192 + j];
        break;
    case GS_QTYPE_Q3_K:
        put16(out + 2 * r, src + 108);
        for (int j = 0; j < 16; j++) {
            const uint8_t *s = src + 96;
            int lo = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
            int hi = s[8 + j % 4] >> (2 * (j / 4)) & 3;
            out[32 + 16 * j + r] = (uint8_t)((lo | hi << 4) - 32);
        }
        break;
    case GS_QTYPE_Q2_K:
        put16(out + 2 * r, src + 80);
        put16(out + 32 + 2 * r, src + 82);
        for (int j = 0; j < 16; j++)
            out[64 + 16 * j + r] = src[j];
        break;
    default: /* one f16 scale at the start of the block */
        put16(out + 2 * r, src);
        break;
    }
}

static float get_f16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return gs_f16_to_f32(h);
}

/* Scale and minimum of the two halves of block b, row r. s: the block's record. */
static void scales_get(const gs_fmt *f, const uint8_t *s, int32_t b, int r, float d[2],
                       float mn[2]) {
    int j = b % f->super_blocks;
    /* an e8m0 record is shorter than sixteen f16 */
    d[0] = f->scale == GS_SCALE_E8M0 ? gs_e8m0_half(s[r]) : get_f16(s + 2 * r);
    mn[0] = mn[1] = 0.0f;
    switch (f->scale) {
    case GS_SCALE_F16_MIN:
        mn[0] = mn[1] = get_f16(s + 32 + 2 * r);
        break;
    case GS_SCALE_K_MIN:
        mn[0] = mn[1] = -get_f16(s + 32 + 2 * r) * (float)s[192 + 16 * j + r];
        d[0] *= (float)s[64 + 16 * j + r];
        break;
    case GS_SCALE_K16:
        d[1] = d[0] * (float)(int8_t)s[32 + 16 * (2 * j + 1) + r];
        d[0] *= (float)(int8_t)s[32 + 16 * (2 * j) + r];
        return;
    case GS_SCALE_K16_MIN: {
        uint8_t s0 = s[64 + 16 * (2 * j) + r], s1 = s[64 + 16 * (2 * j + 1) + r];
        float dmin = get_f16(s + 32 + 2 * r);
        mn[0] = -dmin * (float)(s0 >> 4);
        mn[1] = -dmin * (float)(s1 >> 4);
        d[1] = d[0] * (float)(s1 & 15);
        d[0] *= (float)(s0 & 15);
        return;
    }
    default:
        break;
    }
    d[1] = d[0];
}

/* ---- Panels ------------------------------------------------------------------------------------
 */

/* Another float type to BF16 or F32, a row at a time. */
static void pack_panel_converted(const gs_mat *m, gs_qtype type, const uint8_t *src, int32_t p,
                                 uint8_t *out) {
    const gs_qtype_info *info = gs_qtype_get((uint32_t)type);
    size_t row_bytes = (size_t)m->k / info->block_elems * info->block_bytes;
    memset(out, 0, m->panel_bytes);
    for (int32_t r = 0; r < GS_PANEL_ROWS; r++) {
        int32_t row = p * GS_PANEL_ROWS + r;
        for (int32_t c = 0; row < m->n && c < m->k; c += GS_BLOCK_COLS) {
            float v[GS_BLOCK_COLS];
            gs_dequant_row(type, src + (size_t)row * row_bytes + (size_t)c * info->block_bytes, v,
                           GS_BLOCK_COLS);
            for (int32_t i = 0; i < GS_BLOCK_COLS; i++) {
                uint16_t h = gs_bf16_from_f32(v[i]);
                size_t at = gs_float_index(m->type, c + i, r);
                if (m->type == GS_QTYPE_BF16)
                    memcpy(out + sizeof h * at, &h, sizeof h);
                else
                    memcpy(out + sizeof v[i] * at, &v[i], sizeof v[i]);
            }
        }
    }
}

static void pack_panel_float(const gs_mat *m, const gs_fmt *f, const uint8_t *src, int32_t p,
                             uint8_t *out) {
    size_t elem = f->base_bits / 8u, row_bytes = (size_t)m->k * elem;
    for (int32_t r = 0; r < GS_PANEL_ROWS; r++) {
        int32_t row = p * GS_PANEL_ROWS + r;
        for (int32_t c = 0; c < m->k; c++) {
            uint8_t *o = out + gs_float_index(m->type, c, r) * elem;
            if (row < m->n)
                memcpy(o, src + (size_t)row * row_bytes + (size_t)c * elem, elem);
            else
                memset(o, 0, elem);
        }
    }
}

static void pack_panel(const gs_mat *m, const gs_fmt *f, const uint8_t *src, int32_t p,
                       uint8_t *out) {
    const gs_qtype_info *info = gs_qtype_get((uint32_t)m->type);
    size_t row_bytes = (size_t)m->k / info->block_elems * info->block_bytes;
    int32_t n_blocks = m->k / GS_BLOCK_COLS, row0 = p * GS_PANEL_ROWS;
    int32_t n_rows = m->n - row0 < GS_PANEL_ROWS ? m->n - row0 : GS_PANEL_ROWS;

    for (int32_t b = 0; b < n_blocks; b++) {
        uint8_t code[16][32] = {{0}};
        for (int32_t r = 0; r < n_rows; r++)
            codes_get(m->type, src + (size_t)(row0 + r) * row_bytes, b, code[r]);
        planes_put(f, code, out + gs_fmt_codes_at(f, b));
    }
    for (int32_t s = 0; s < n_blocks / f->super_blocks; s++) {
        uint8_t *scales = out + gs_fmt_scales_at(f, n_blocks, s * f->super_blocks);
        memset(scales, 0, f->scale_bytes);
        for (int32_t r = 0; r < n_rows; r++)
            scales_put(f, src + (size_t)(row0 + r) * row_bytes + (size_t)s * info->block_bytes, r,
                       scales);
    }
    const size_t used =
        (size_t)n_blocks * f->block_bytes + (size_t)(n_blocks / f->super_blocks) * f->scale_bytes;
    memset(out + used, 0, m->panel_bytes - used);
}

void gs_mat_pack(gs_mat *m, const void *src, int32_t p0, int32_t p1) {
    gs_mat_pack_from(m, m->type, src, p0, p1);
}

void gs_mat_pack_from(gs_mat *m, gs_qtype src_type, const void *src, int32_t p0, int32_t p1) {
    const gs_fmt *f = gs_fmt_get(m->type), *from = gs_fmt_get(src_type);
    GS_ASSERT(f && from && m->data && p0 >= 0 && p1 <= m->n_panels);
    GS_ASSERT(src_type == m->type || ((m->type == GS_QTYPE_BF16 || m->type == GS_QTYPE_F32) &&
                                      from->scale == GS_SCALE_FLOAT));
    for (int32_t p = p0; p < p1; p++) {
        uint8_t *out = m->data + (size_t)p * m->panel_bytes;
        if (src_type != m->type)
            pack_panel_converted(m, src_type, src, p, out);
        else if (f->scale == GS_SCALE_FLOAT)
            pack_panel_float(m, f, src, p, out);
        else
            pack_panel(m, f, src, p, out);
    }
}

void gs_panel_block(const gs_mat *m, const gs_fmt *f, const uint8_t *panel, int32_t b, int32_t r,
                    int16_t v[32], float d[2], float mn[2]) {
    const uint8_t *block = panel + gs_fmt_codes_at(f, b);
    for (int i = 0; i < 32; i++) {
        unsigned code = plane_get(f, block, r, i);
        v[i] = f->book ? f->book[code] : (int16_t)((int)code - f->offset);
    }
    scales_get(f, panel + gs_fmt_scales_at(f, m->k / GS_BLOCK_COLS, b), b, r, d, mn);
}

gs_mat gs_mat_nth(const gs_mat *first, int32_t i) {
    gs_mat m = *first;
    m.data += (size_t)i * gs_mat_bytes(first);
    return m;
}

/* Float element (column c, row r) of a panel. */
static float panel_float(const gs_mat *m, const uint8_t *panel, int32_t c, int32_t r) {
    size_t at = gs_float_index(m->type, c, r);
    if (m->type == GS_QTYPE_F32) {
        float x;
        memcpy(&x, panel + 4 * at, 4);
        return x;
    }
    uint16_t h;
    memcpy(&h, panel + 2 * at, 2);
    return m->type == GS_QTYPE_F16 ? gs_f16_to_f32(h) : gs_bf16_to_f32(h);
}

void gs_mat_row(const gs_mat *m, int32_t r, float *out) {
    const gs_fmt *f = gs_fmt_get(m->type);
    GS_ASSERT(f && r >= 0 && r < m->n);
    const uint8_t *panel = m->data + (size_t)(r / GS_PANEL_ROWS) * m->panel_bytes;
    int32_t pr = r % GS_PANEL_ROWS;
    if (f->scale == GS_SCALE_FLOAT) {
        for (int32_t c = 0; c < m->k; c++)
            out[c] = panel_float(m, panel, c, pr);
        return;
    }
    for (int32_t b = 0; b < m->k / GS_BLOCK_COLS; b++) {
        int16_t v[32];
        float d[2], mn[2];
        gs_panel_block(m, f, panel, b, pr, v, d, mn);
        for (int i = 0; i < 32; i++)
            out[32 * b + i] = d[i / 16] * (float)v[i] + mn[i / 16];
    }
}
