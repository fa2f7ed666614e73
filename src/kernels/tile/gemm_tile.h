/*
 * One tile loop for all integer formats and vector widths. Included by the gemm_*_<isa>.c files
 * after the vector primitives of its instruction set (v128.h, v256.h, v512.h).
 *
 * tile_int() multiplies NV row vectors (V_ROWS rows each) with MR tokens over all of k. Format,
 * NV and MR are compile-time constants, so that each instance is straight code per block of 32
 * columns:
 *
 *   accumulators s[token][vector] start at the format's offset times -sum(a): the offset is free
 *   eight vectors of codes are unpacked and multiplied with four broadcast activations each
 *   totals += float(s) * weight scale * activation scale  (+ minimum * scaled sum(a))
 *
 * Formats with sub-blocks of 16 columns do that in two halves.
 *
 * Without VNNI, products are summed in 16 bits as long as the format's largest code allows:
 * n * 2 * max * 127 <= 32767 for n products.
 */
#ifndef GS_KERNELS_GEMM_TILE_H
#define GS_KERNELS_GEMM_TILE_H

#include "kernels/kernels_impl.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

#define VPP    (GS_PANEL_ROWS / V_ROWS) /* row vectors of a panel */

/* ---- What a format is, as constants ------------------------------------------------------------
 */

INLINE int fmt_base_bits(const gs_qtype f) {
    return f == GS_QTYPE_Q8_0 ? 8 : f == GS_QTYPE_Q2_K || f == GS_QTYPE_Q3_K ? 2 : 4;
}
INLINE int fmt_extra_bits(const gs_qtype f) {
    if (f == GS_QTYPE_Q6_K)
        return 2;
    return f == GS_QTYPE_Q5_0 || f == GS_QTYPE_Q5_1 || f == GS_QTYPE_Q5_K || f == GS_QTYPE_Q3_K;
}
INLINE int fmt_block_bytes(const gs_qtype f) {
    return 64 * (fmt_base_bits(f) + fmt_extra_bits(f));
}
INLINE bool fmt_is_book(const gs_qtype f) {
    return f == GS_QTYPE_IQ4_NL || f == GS_QTYPE_MXFP4;
}
INLINE bool fmt_is_sub16(const gs_qtype f) {
    return f == GS_QTYPE_Q6_K || f == GS_QTYPE_Q3_K || f == GS_QTYPE_Q2_K;
}
INLINE bool fmt_has_min(const gs_qtype f) {
    return f == GS_QTYPE_Q4_1 || f == GS_QTYPE_Q5_1 || f == GS_QTYPE_Q4_K || f == GS_QTYPE_Q5_K;
}
/* Blocks of a run, and the bytes that the scales of a whole run take. */
INLINE int fmt_run_blocks(const gs_qtype f) {
    switch (f) {
    case GS_QTYPE_Q4_1:
    case GS_QTYPE_Q5_1:
        return 1;
    case GS_QTYPE_MXFP4:
        return 4;
    case GS_QTYPE_Q4_K:
    case GS_QTYPE_Q5_K:
    case GS_QTYPE_Q2_K:
        return 8;
    case GS_QTYPE_Q6_K:
    case GS_QTYPE_Q3_K:
        return 16;
    default:
        return 2;
    }
}
INLINE int fmt_scale_bytes(const gs_qtype f) {
    return fmt_run_blocks(f) == 8 ? 320 : fmt_run_blocks(f) == 16 ? 576 : 64;
}
/*
 * 8-bit weights are unsigned with an offset where the dot product wants an unsigned operand, and
 * signed on ARM and without VNNI; there the sign goes to the activation.
 */
INLINE bool fmt_is_signed(const gs_qtype f) {
    return V_DOT != V_DOT_U8S8 && (f == GS_QTYPE_Q8_0 || fmt_is_book(f));
}
/* Products that fit a 16-bit sum. */
INLINE int fmt_run16(const gs_qtype f) {
    if (fmt_is_signed(f))
        return f == GS_QTYPE_MXFP4 ? 8 : 1;
    switch (fmt_base_bits(f) + fmt_extra_bits(f)) {
    case 6:
        return 2;
    case 5:
        return 4;
    default:
        return 8;
    }
}

/* ---- Codes -------------------------------------------------------------------------------------
 */

/*
 * Walks the codes of a block for one row vector: step v = 0..3 of half h yields the vector of
 * columns 16 h + 4 v .. + 3. Planes of fewer than 4 bits are shifted on at each step; the shifts
 * are of 16-bit lanes, bits that cross into the neighbour byte are masked out.
 */
typedef struct code_walk {
    vint base, extra;
} code_walk;

/* w points at this row vector of the block's first plane. */
INLINE code_walk walk_begin(const gs_qtype f, const uint8_t *w, const int h) {
    const uint8_t *e = w + 64 * fmt_base_bits(f);
    const int to = fmt_base_bits(f); /* the first extra bit goes to this position */
    code_walk s = {vi_zero(), vi_zero()};
    if (fmt_base_bits(f) == 2)
        s.base = vi_load(w + 64 * h);
    if (fmt_extra_bits(f) == 2)
        s.extra = vi_sll16(vi_load(e + 64 * h), 4);
    else if (fmt_extra_bits(f) == 1)
        s.extra = h == 0    ? vi_sll16(vi_load(e), to)
                  : to == 4 ? vi_load(e)
                            : vi_srl16(vi_load(e), 2);
    return s;
}

INLINE vint walk_step(const gs_qtype f, const uint8_t *w, int v, const int h, code_walk *s) {
    vint x;
    if (fmt_base_bits(f) == 8) {
        x = vi_load(w + 64 * (v + 4 * h));
        return fmt_is_signed(f) ? vi_xor(x, vi_set8(0x80)) : x;
    }
    if (fmt_base_bits(f) == 4) {
        x = vi_load(w + 64 * v);
        x = vi_and(h == 0 ? x : vi_srl16(x, 4), vi_set8(15));
    } else {
        x = vi_and(s->base, vi_set8(3));
        s->base = vi_srl16(s->base, 2);
    }
    if (fmt_is_book(f)) {
        const int8_t *book = f == GS_QTYPE_IQ4_NL ? gs_book_iq4nl : gs_book_mxfp4;
        return vi_lut(vi_book(book, fmt_is_signed(f) ? 0 : 0x80), x); /* unsigned: + 128 */
    }
    if (fmt_extra_bits(f) > 0) {
        const int mask = ((1 << fmt_extra_bits(f)) - 1) << fmt_base_bits(f);
        x = vi_or(x, vi_and(s->extra, vi_set8(mask)));
        /* Two bits: the shift to the left at the beginning has lost the upper ones. */
        if (fmt_extra_bits(f) == 2 && v == 1)
            s->extra = vi_load(w + 64 * fmt_base_bits(f) + 64 * h);
        else
            s->extra = vi_srl16(s->extra, fmt_extra_bits(f));
    }
    return x;
}

/* ---- Scales ------------------------------------------------------------------------------------
 */

/* Scale of V_ROWS rows from row r on, for block b of a run with the scales s (half h of the block
 * where sub-blocks have 16). */
INLINE vflt scale_get(const gs_qtype f, const uint8_t *s, int32_t b, const int h, const int r) {
    switch (f) {
    case GS_QTYPE_MXFP4:
        return vf_e8m0(s + 16 * (size_t)b + r);
    case GS_QTYPE_Q4_1:
    case GS_QTYPE_Q5_1:
        return vf_f16(s + 64 * (size_t)b + 2 * r);
    case GS_QTYPE_Q4_K:
    case GS_QTYPE_Q5_K:
        s += 320 * (size_t)(b >> 3);
        return vf_mul(vf_f16(s + 2 * r), vf_from_int(vi_u8(s + 64 + 16 * (b & 7) + r)));
    case GS_QTYPE_Q6_K:
    case GS_QTYPE_Q3_K:
        s += 288 * (size_t)(b >> 3);
        return vf_mul(vf_f16(s + 2 * r), vf_from_int(vi_i8(s + 32 + 32 * (b & 7) + 16 * h + r)));
    case GS_QTYPE_Q2_K: {
        s += 320 * (size_t)(b >> 3);
        vint sc = vi_and(vi_u8(s + 64 + 32 * (b & 7) + 16 * h + r), vi_set8(15));
        return vf_mul(vf_f16(s + 2 * r), vf_from_int(sc));
    }
    default:
        return vf_f16(s + 32 * (size_t)b + 2 * r);
    }
}

/* Minimum of the formats that have one per 32; positive for + m, as it is added. */
INLINE vflt min_get(const gs_qtype f, const uint8_t *s, int32_t b, const int r) {
    if (f == GS_QTYPE_Q4_1 || f == GS_QTYPE_Q5_1)
        return vf_f16(s + 64 * (size_t)b + 32 + 2 * r);
    s += 320 * (size_t)(b >> 3);
    vflt mn = vf_from_int(vi_u8(s + 192 + 16 * (b & 7) + r));
    return vf_fnma(vf_f16(s + 32 + 2 * r), mn, vf_zero());
}

/* ---- Dot products of a run of vectors ----------------------------------------------------------
 */

/* Initial accumulator of token m, half h. */
INLINE vint acc_init(const gs_qtype f, const gs_act_view *a, const int m, const int h) {
    if (fmt_is_signed(f))
        return vi_zero();
    switch (f) {
    case GS_QTYPE_Q4_0:
        return vi_bcast(a->n8 + m);
    case GS_QTYPE_Q5_0:
        return vi_sll32(vi_bcast(a->n8 + m), 1);
    case GS_QTYPE_Q8_0:
    case GS_QTYPE_IQ4_NL:
    case GS_QTYPE_MXFP4:
        return vi_sll32(vi_bcast(a->n8 + m), 4);
    case GS_QTYPE_Q6_K:
        return vi_bcast(a->n16 + 2 * m + h);
    case GS_QTYPE_Q3_K:
        return vi_sra32(vi_bcast(a->n16 + 2 * m + h), 3);
    default:
        return vi_zero();
    }
}

/* One vector of codes per row vector times MR tokens; t: 16-bit sums, only without VNNI. */
INLINE void dot_step(const gs_qtype f, const int NV, const int MR, const vint *c, const int8_t *q,
                     vint *s, vint *t) {
    (void)f;
    (void)t;
    UNROLL for (int m = 0; m < MR; m++) {
        vint a = vi_bcast(q + 32 * m);
        UNROLL for (int p = 0; p < NV; p++) {
            const int i = m * NV + p;
#if V_DOT != V_DOT_NONE
            s[i] = vi_dot(s[i], c[p], a);
#else
            if (fmt_is_signed(f)) {
                vint x = vi_maddubs(vi_abs8(c[p]), vi_sign8(a, c[p]));
                if (fmt_run16(f) == 1)
                    s[i] = vi_add32(s[i], vi_madd1(x));
                else
                    t[i] = vi_add16(t[i], x);
            } else {
                t[i] = vi_add16(t[i], vi_maddubs(c[p], a));
            }
#endif
        }
    }
}

#ifdef V_MM
/* dot_run by matrix instructions: rows and tokens in pairs, eight columns at a time. A last token
 * without a partner goes by dot products. */
INLINE void mm_run(const gs_qtype f, const int NV, const int MR, const int h0, const int h1,
                   const uint8_t *const *w, const gs_act_view *a, vint *s) {
    code_walk walk[2][2];
    vint mm[GS_TILE_MAX / 2][2][2];
    const int last = MR - 1;
    UNROLL for (int p = 0; p < NV; p++) {
        UNROLL for (int h = h0; h <= h1; h++) walk[p][h] = walk_begin(f, w[p], h);
        UNROLL for (int q = 0; q < MR / 2; q++) mm[q][p][0] = mm[q][p][1] = vi_zero();
        if (MR % 2 == 1)
            s[last * NV + p] = acc_init(f, a, last, h0);
    }
    for (int v = 0; v < 4; v += 2) {
        UNROLL for (int h = h0; h <= h1; h++) {
            const int8_t *x = a->q + 4 * v + 16 * h;
            vint lo[2], hi[2];
            UNROLL for (int p = 0; p < NV; p++) {
                vint c0 = walk_step(f, w[p], v, h, &walk[p][h]);
                vint c1 = walk_step(f, w[p], v + 1, h, &walk[p][h]);
                lo[p] = vi_zip_lo(c0, c1);
                hi[p] = vi_zip_hi(c0, c1);
                if (MR % 2 == 1) {
                    vint *d = &s[last * NV + p];
                    *d = vi_dot(vi_dot(*d, c0, vi_bcast(x + 32 * last)), c1,
                                vi_bcast(x + 32 * last + 4));
                }
            }
            UNROLL for (int q = 0; q < MR / 2; q++) {
                vint two = vi_pair(x + 64 * q, x + 64 * q + 32);
                UNROLL for (int p = 0; p < NV; p++) {
                    mm[q][p][0] = vi_mm(mm[q][p][0], lo[p], two);
                    mm[q][p][1] = vi_mm(mm[q][p][1], hi[p], two);
                }
            }
        }
    }
    UNROLL for (int q = 0; q < MR / 2; q++) {
        UNROLL for (int p = 0; p < NV; p++) {
            const vint *r = mm[q][p];
            s[2 * q * NV + p] = vi_add32(acc_init(f, a, 2 * q, h0), vi_even32(r[0], r[1]));
            s[(2 * q + 1) * NV + p] = vi_add32(acc_init(f, a, 2 * q + 1, h0), vi_odd32(r[0], r[1]));
        }
    }
}
#endif

/*
 * s[m * NV + p] = offset + codes . activations over halves h0 .. h1 of a block. The loop over steps
 * is left rolled: its body is long enough, and the number of instances is large.
 */
INLINE void dot_run(const gs_qtype f, const int NV, const int MR, const int h0, const int h1,
                    const uint8_t *const *w, const gs_act_view *a, vint *s) {
#ifdef V_MM
    if (MR > 1) {
        mm_run(f, NV, MR, h0, h1, w, a, s);
        return;
    }
#endif
    const int per_step = h1 - h0 + 1, run = (V_DOT != V_DOT_NONE) ? 8 : fmt_run16(f);
    const int steps = run >= 4 * per_step ? 4 : run <= per_step ? 1 : run / per_step;
    /* With one sum of 16-bit sums at the end, s need not occupy registers before. */
    const bool late = V_DOT == V_DOT_NONE && steps == 4 && run > 1;
    code_walk walk[2][2];
    vint t[2 * GS_TILE_MAX];
    UNROLL for (int p = 0; p < NV; p++) {
        UNROLL for (int h = h0; h <= h1; h++) walk[p][h] = walk_begin(f, w[p], h);
    }
    UNROLL for (int m = 0; m < MR; m++) {
        UNROLL for (int p = 0; p < NV; p++) {
            t[m * NV + p] = vi_zero();
            if (!late)
                s[m * NV + p] = acc_init(f, a, m, h0);
        }
    }
    for (int v0 = 0; v0 < 4; v0 += steps) {
        for (int v = v0; v < v0 + steps; v++) {
            UNROLL for (int h = h0; h <= h1; h++) {
                vint c[2];
                UNROLL for (int p = 0; p < NV; p++) c[p] = walk_step(f, w[p], v, h, &walk[p][h]);
                dot_step(f, NV, MR, c, a->q + 4 * v + 16 * h, s, t);
            }
        }
        if ((V_DOT != V_DOT_NONE) || run == 1)
            continue;
        UNROLL for (int m = 0; m < MR; m++) {
            UNROLL for (int p = 0; p < NV; p++) {
                const int i = m * NV + p;
                s[i] = vi_add32(late ? acc_init(f, a, m, h0) : s[i], vi_madd1(t[i]));
                t[i] = vi_zero();
            }
        }
    }
}

/* ---- The tile ----------------------------------------------------------------------------------
 */

/*
 * Writes the totals v[mr][n_rows] of rows row0 .. of a tile. Not inlined: it would be most of each
 * instance's code. Where k is small it takes a 25th of the time, so see store_whole.
 */
static __attribute__((noinline)) void store_tile(const gs_tile *t, int32_t row0, int32_t n_rows,
                                                 const float *v) {
    const int32_t n = t->n_valid - row0 < n_rows ? t->n_valid - row0 : n_rows;
    const float *bias = t->bias ? t->bias + row0 : NULL;
    for (int32_t m = 0; m < t->mr; m++, v += n_rows) {
        float *y = t->y + m * t->ldy + row0;
        int32_t r = 0;
        for (; r + V_ROWS <= n; r += V_ROWS) {
            vflt x = vf_load(v + r);
            if (bias)
                x = vf_add(x, vf_load(bias + r));
            if (t->mode == GS_GEMM_ADD)
                x = vf_add(x, vf_load(y + r));
            vf_store(y + r, x);
        }
        for (; r < n; r++) {
            float x = v[r] + (bias ? bias[r] : 0.0f);
            y[r] = t->mode == GS_GEMM_ADD ? y[r] + x : x;
        }
    }
}

/* store_tile of totals that are in registers, for the rule: no bias, and all rows exist. */
INLINE void store_whole(const gs_tile *t, const int NV, const int MR, const int row0,
                        const vflt *g) {
    float *y = t->y + row0;
    if (t->mode == GS_GEMM_ADD) {
        UNROLL for (int m = 0; m < MR; m++, y += t->ldy) {
            UNROLL for (int p = 0; p < NV; p++)
                vf_store(y + V_ROWS * p, vf_add(g[m * NV + p], vf_load(y + V_ROWS * p)));
        }
        return;
    }
    UNROLL for (int m = 0; m < MR; m++, y += t->ldy) {
        UNROLL for (int p = 0; p < NV; p++) vf_store(y + V_ROWS * p, g[m * NV + p]);
    }
}

/* The codes at `at`, and the scales behind them if they are the run's last. */
INLINE void prefetch_block(const gs_qtype f, const gs_tile *t, size_t at, const bool last,
                           const int n_panels) {
    UNROLL for (int p = 0; p < n_panels; p++) {
        const uint8_t *codes = t->next + (size_t)p * t->panel_bytes + at;
        UNROLL for (int i = 0; i < fmt_block_bytes(f) / 64; i++) v_prefetch(codes + 64 * i);
        if (last) {
            UNROLL for (int i = 0; i < fmt_scale_bytes(f) / 64; i++)
                v_prefetch(codes + fmt_block_bytes(f) + 64 * i);
        }
    }
}

/*
 * Where the totals of a tile are while it runs over the blocks. In registers as long as they fit
 * beside the accumulators; else in memory, which an asm statement enforces, because the compiler
 * would rather spill accumulators of the inner loop.
 */
typedef enum tile_mode {
    MODE_REGISTERS, /* g[i] */
    MODE_MEMORY,    /* total[i], every block */
    MODE_GROUP      /* g[i] for the blocks that share an activation scale, then total[i] */
} tile_mode;

INLINE vflt total_get(const tile_mode mode, const vflt *g, const float *total, const int i) {
    return mode == MODE_MEMORY ? vf_load(total + V_ROWS * i) : g[i];
}

INLINE void total_put(const tile_mode mode, vflt *g, float *total, const int i, vflt x) {
    if (mode == MODE_MEMORY)
        vf_store(total + V_ROWS * i, x);
    else
        g[i] = x;
}

/* Half h of a block with sub-blocks of 16: u (+)= scale * dot, and Q2_K's minimum. */
INLINE void half_block(const gs_qtype f, const int NV, const int MR, const int h,
                       const uint8_t *const *w, const uint8_t *const *sc, int32_t b, const int *r,
                       const gs_act_view *a, vflt *u) {
    vint s[2 * GS_TILE_MAX];
    dot_run(f, NV, MR, h, h, w, a, s);
    UNROLL for (int p = 0; p < NV; p++) {
        vflt d = scale_get(f, sc[p], b, h, r[p]);
        UNROLL for (int m = 0; m < MR; m++) {
            const int i = m * NV + p;
            vflt x = vf_from_int(s[i]);
            u[i] = h == 0 ? vf_mul(x, d) : vf_fma(x, d, u[i]);
        }
        if (f != GS_QTYPE_Q2_K)
            continue;
        const uint8_t *rec = sc[p] + 320 * (size_t)(b >> 3);
        vint mn = vi_srl16(vi_u8(rec + 64 + 32 * (b & 7) + 16 * h + r[p]), 4);
        /* n16 is -32 sum(a): the minimum is subtracted */
        vflt dmin = vf_mul(vf_f16(rec + 32 + 2 * r[p]), vf_set(1.0f / 32.0f));
        UNROLL for (int m = 0; m < MR; m++) {
            vint x = vi_mul32(mn, vi_bcast(a->n16 + 2 * m + h));
            u[m * NV + p] = vf_fma(vf_from_int(x), dmin, u[m * NV + p]);
        }
    }
}

/* A block with one scale: totals += float(s) * d [* ad] + minimum * asum. */
INLINE void whole_block(const gs_qtype f, const int NV, const int MR, const uint8_t *const *w,
                        const uint8_t *const *sc, int32_t b, const int *r, const gs_act_view *a,
                        const tile_mode mode, vflt *g, float *total) {
    vint s[2 * GS_TILE_MAX];
    dot_run(f, NV, MR, 0, 1, w, a, s);
    UNROLL for (int p = 0; p < NV; p++) {
        vflt d = scale_get(f, sc[p], b, 0, r[p]);
        vflt mn = fmt_has_min(f) ? min_get(f, sc[p], b, r[p]) : vf_zero();
        UNROLL for (int m = 0; m < MR; m++) {
            const int i = m * NV + p;
            vflt x = mode == MODE_GROUP ? d : vf_mul(d, vf_bcast(a->ad + m));
            x = vf_fma(vf_from_int(s[i]), x, total_get(mode, g, total, i));
            if (fmt_has_min(f))
                x = vf_fma(mn, vf_bcast(a->asum + m), x);
            total_put(mode, g, total, i, x);
        }
    }
}

/* NV row vectors from row vector v0 of the panel on, MR tokens. */
INLINE void tile_int(const gs_tile *t, const gs_qtype f, const int NV, const int MR, const int v0) {
    const int n_panels = (NV + VPP - 1) / VPP;
    /* Halves of a panel share the prefetching of the next one. */
    const int n_shares = t->n_tiles * (VPP / NV > 1 ? VPP / NV : 1);
    int until = t->tile * (VPP / NV > 1 ? VPP / NV : 1) + v0 / NV;
    if (!t->next)
        until = -1;
    gs_act_view a = t->act;
    const int run = fmt_run_blocks(f);
    const uint8_t *w[2], *sc[2];
    size_t at = 0, scales = 0; /* in the panel: codes of the block, scales of the run */
    int r[2];
    UNROLL for (int p = 0; p < NV; p++) r[p] = V_ROWS * ((v0 + p) % VPP);
    const tile_mode mode = GS_ACT_GROUP > GS_BLOCK_COLS   ? MODE_GROUP
                           : V_BYTES == 32 && NV * MR > 3 ? MODE_MEMORY
                                                          : MODE_REGISTERS;
    const int32_t group = mode == MODE_GROUP ? GS_ACT_GROUP / 32 : t->n_blocks;
    float total[2 * GS_TILE_MAX * V_ROWS];
    vflt g[2 * GS_TILE_MAX];
    UNROLL for (int i = 0; i < NV * MR; i++) {
        g[i] = vf_zero();
        if (mode != MODE_REGISTERS)
            vf_store(total + V_ROWS * i, g[i]);
    }
    for (int32_t b = 0; b < t->n_blocks;) {
        const int32_t end = t->n_blocks - b < group ? t->n_blocks : b + group;
        const float *ad = a.ad;
        for (; b < end; b++) {
            const int32_t i = b & (run - 1), left = t->n_blocks - b;
            const bool last = i == run - 1 || left == 1;
            if (i == 0)
                scales = at + (size_t)((left < run ? left : run) * fmt_block_bytes(f));
            UNROLL for (int p = 0; p < NV; p++) {
                const uint8_t *panel = t->panel + (size_t)((v0 + p) / VPP) * t->panel_bytes;
                w[p] = panel + at + V_BYTES * ((v0 + p) % VPP);
                sc[p] = panel + scales;
            }
            if (until-- == 0) {
                prefetch_block(f, t, at, last, n_panels);
                until = n_shares - 1;
            }
            if (fmt_is_sub16(f)) {
                vflt u[2 * GS_TILE_MAX];
                half_block(f, NV, MR, 0, w, sc, i, r, &a, u);
                half_block(f, NV, MR, 1, w, sc, i, r, &a, u);
                UNROLL for (int m = 0; m < MR; m++) {
                    vflt x = mode == MODE_GROUP ? vf_set(1.0f) : vf_bcast(a.ad + m);
                    UNROLL for (int p = 0; p < NV; p++) {
                        const int j = m * NV + p;
                        total_put(mode, g, total, j, vf_fma(u[j], x, total_get(mode, g, total, j)));
                    }
                }
            } else {
                whole_block(f, NV, MR, w, sc, i, r, &a, mode, g, total);
            }
            if (mode == MODE_MEMORY)
                __asm__("" : "+m"(total));
            at += (size_t)(fmt_block_bytes(f) + (last ? fmt_scale_bytes(f) : 0));
            a.q += 32 * MR;
            a.ad += MR;
            a.asum += MR;
            a.n8 += MR;
            a.n16 += 2 * MR;
        }
        if (mode == MODE_GROUP) {
            UNROLL for (int m = 0; m < MR; m++) {
                vflt x = vf_bcast(ad + m);
                UNROLL for (int p = 0; p < NV; p++) {
                    float *to = total + V_ROWS * (m * NV + p);
                    vf_store(to, vf_fma(g[m * NV + p], x, vf_load(to)));
                    g[m * NV + p] = vf_zero();
                }
            }
            __asm__("" : "+m"(total));
        }
    }
    if (mode == MODE_REGISTERS) {
        if (!t->bias && t->n_valid >= V_ROWS * (v0 + NV)) {
            store_whole(t, NV, MR, V_ROWS * v0, g);
            return;
        }
        UNROLL for (int i = 0; i < NV * MR; i++) vf_store(total + V_ROWS * i, g[i]);
    }
    store_tile(t, V_ROWS * v0, V_ROWS * NV, total);
}

/* ---- Instances ---------------------------------------------------------------------------------
 */

/* Measured on Zen 4 with two threads; types of 2 and 3 bits not. */
#define NEAR_TOKENS(F)                                                                             \
    ((F) == GS_QTYPE_Q2_K || (F) == GS_QTYPE_Q3_K ? 0                                              \
     : (F) == GS_QTYPE_Q8_0 && V_BYTES >= 32      ? 1 + (V_BYTES == 64 && V_DOT != V_DOT_NONE)     \
     : V_BYTES == 64                              ? 2                                              \
                                                  : 0)
#define NEAR_BYTES(F) ((F) == GS_QTYPE_Q8_0 ? 2048 : 8192)

#if VPP == 1
#define TILE_1(F, MR)                                                                              \
    static void tile_##F##_1_##MR(const gs_tile *t) {                                              \
        tile_int(t, GS_QTYPE_##F, 1, MR, 0);                                                       \
    }
#define TILE_2(F, MR)                                                                              \
    static void tile_##F##_2_##MR(const gs_tile *t) {                                              \
        tile_int(t, GS_QTYPE_##F, 2, MR, 0);                                                       \
    }
/* Two panels at a time wherever there is more than one tile (then a tile has 3 to 6 tokens). */
#define TILES(F)                                                                                   \
    TILE_1(F, 1)                                                                                   \
    TILE_1(F, 2)                                                                                   \
    TILE_1(F, 3)                                                                                   \
    TILE_1(F, 4)                                                                                   \
    TILE_1(F, 5)                                                                                   \
    TILE_1(F, 6)                                                                                   \
    TILE_2(F, 3)                                                                                   \
    TILE_2(F, 4)                                                                                   \
    TILE_2(F, 5)                                                                                   \
    TILE_2(F, 6)                                                                                   \
    static const gs_tile_set tiles_##F = {                                                         \
        {{NULL, tile_##F##_1_1, tile_##F##_1_2, tile_##F##_1_3, tile_##F##_1_4, tile_##F##_1_5,    \
          tile_##F##_1_6},                                                                         \
         {NULL, NULL, NULL, tile_##F##_2_3, tile_##F##_2_4, tile_##F##_2_5, tile_##F##_2_6}},      \
        NEAR_TOKENS(GS_QTYPE_##F),                                                                 \
        NEAR_BYTES(GS_QTYPE_##F)};
#else
#if VPP == 2
/* Up to three tokens a whole panel at once, else its halves one after the other: 16 registers. */
#define TILE_1(F, MR)                                                                              \
    static void tile_##F##_1_##MR(const gs_tile *t) {                                              \
        if (MR <= 3) {                                                                             \
            tile_int(t, GS_QTYPE_##F, 2, MR, 0);                                                   \
        } else {                                                                                   \
            tile_int(t, GS_QTYPE_##F, 1, MR, 0);                                                   \
            tile_int(t, GS_QTYPE_##F, 1, MR, 1);                                                   \
        }                                                                                          \
    }
#else
#define TILE_1(F, MR)                                                                              \
    static void tile_##F##_1_##MR(const gs_tile *t) {                                              \
        tile_int(t, GS_QTYPE_##F, 2, MR, 0);                                                       \
        tile_int(t, GS_QTYPE_##F, 2, MR, 2);                                                       \
    }
#endif
#define TILES(F)                                                                                   \
    TILE_1(F, 1)                                                                                   \
    TILE_1(F, 2)                                                                                   \
    TILE_1(F, 3)                                                                                   \
    TILE_1(F, 4)                                                                                   \
    TILE_1(F, 5)                                                                                   \
    TILE_1(F, 6)                                                                                   \
    static const gs_tile_set tiles_##F = {{{NULL, tile_##F##_1_1, tile_##F##_1_2, tile_##F##_1_3,  \
                                            tile_##F##_1_4, tile_##F##_1_5, tile_##F##_1_6},       \
                                           {NULL}},                                                \
                                          NEAR_TOKENS(GS_QTYPE_##F),                               \
                                          NEAR_BYTES(GS_QTYPE_##F)};
#endif

#endif
