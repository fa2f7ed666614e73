/*
 * Paged attention for x86, written once over a few vector primitives. attn_avx2.c and
 * attn_avx512.c define them and include this file (it has no include guard on purpose: it is a
 * body, not an interface):
 *
 *     vf, VF_LANES          vector of floats and its width
 *     vf_set1 vf_load vf_store vf_mul vf_add vf_sub vf_max vf_fma(a, b, c) = a*b+c
 *     vf_load_f16(p)        VF_LANES f16 values as floats
 *     vf_store_f16(p, x)    the reverse, rounded to nearest
 *     vf_exp2(x)            2^x; exactly 0 far below, NaN kept
 *     vf_keep(x, lo, hi)    lanes lo <= i < hi of x, MASKED elsewhere
 *     vf_hmax vf_hsum       over the lanes, in a fixed order
 *
 * Method: online softmax over pages (Milakov and Gimelshein 2018; Dao et al. 2022). A tile of
 * query rows (positions x heads of the group) goes over each page together, so that the page is
 * read and widened once per MM_ROWS rows. Both products of a page, Q K and P V, have the same
 * form, C[rows][cols] = A[rows][len] * B[len][cols] with f16 B, because K pages are transposed.
 *
 * A row's arithmetic never depends on which other rows are in its tile: that keeps results
 * independent of batching and of how a prompt is cut into chunks.
 */

#define AINLINE static inline __attribute__((always_inline))
#define UNROLL  _Pragma("GCC unroll 8")
#define MM_ROWS 6
#define LOG2E   1.4426950408889634f

/*
 * c[R][N vectors] = (alpha ? alpha[r] * c : 0) + sum_i a[r][i] * b[i][...]. pf walks in step with
 * b: the page that comes next.
 */
AINLINE void mm_tile(float *c, size_t ldc, const float *alpha, const float *a, size_t lda,
                     const uint16_t *b, size_t ldb, int len, const uint16_t *pf, const int R,
                     const int N) {
    vf acc[MM_ROWS][4];
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int n = 0; n < N; n++) acc[r][n] =
            alpha ? vf_mul(vf_set1(alpha[r]), vf_load(c + (size_t)r * ldc + n * VF_LANES))
                  : vf_set1(0);
    }
    for (int i = 0; i < len; i++) {
        vf bv[4];
        UNROLL for (int n = 0; n < N; n++) {
            bv[n] = vf_load_f16(b + (size_t)i * ldb + n * VF_LANES);
            if (n * VF_LANES % 32 == 0)
                _mm_prefetch((const char *)(pf + (size_t)i * ldb + n * VF_LANES), _MM_HINT_T0);
        }
        UNROLL for (int r = 0; r < R; r++) {
            vf av = vf_set1(a[(size_t)r * lda + (size_t)i]);
            UNROLL for (int n = 0; n < N; n++) acc[r][n] = vf_fma(av, bv[n], acc[r][n]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int n = 0; n < N; n++) vf_store(c + (size_t)r * ldc + n * VF_LANES, acc[r][n]);
    }
}

#define MM_CASE(R, N)                                                                              \
    case R:                                                                                        \
        mm_tile(c, ldc, alpha, a, lda, b, ldb, len, pf, R, N);                                     \
        break
#define MM_FN(N)                                                                                   \
    static __attribute__((noinline)) void mm_##N(                                                  \
        int rows, float *c, size_t ldc, const float *alpha, const float *a, size_t lda,            \
        const uint16_t *b, size_t ldb, int len, const uint16_t *pf) {                              \
        switch (rows) {                                                                            \
            MM_CASE(1, N);                                                                         \
            MM_CASE(2, N);                                                                         \
            MM_CASE(3, N);                                                                         \
            MM_CASE(4, N);                                                                         \
            MM_CASE(5, N);                                                                         \
            MM_CASE(6, N);                                                                         \
        }                                                                                          \
    }
MM_FN(2)
#if VF_LANES == 16
MM_FN(1)
MM_FN(4)
#endif

/* All rows and columns of one product. cols: a multiple of 16. */
static void mm(int rows, int cols, float *c, size_t ldc, const float *alpha, const float *a,
               size_t lda, const uint16_t *b, int len, const uint16_t *pf) {
    size_t ldb = (size_t)cols;
    for (int r = 0; r < rows; r += MM_ROWS) {
        int nr = rows - r < MM_ROWS ? rows - r : MM_ROWS;
        float *cr = c + (size_t)r * ldc;
        const float *ar = a + (size_t)r * lda, *al = alpha ? alpha + r : NULL;
        for (int n = 0; n < cols;) {
#if VF_LANES == 16
            if (cols - n >= 64) {
                mm_4(nr, cr + n, ldc, al, ar, lda, b + n, ldb, len, pf + n);
                n += 64;
                continue;
            }
            if (cols - n < 32) {
                mm_1(nr, cr + n, ldc, al, ar, lda, b + n, ldb, len, pf + n);
                n += 16;
                continue;
            }
#endif
            mm_2(nr, cr + n, ldc, al, ar, lda, b + n, ldb, len, pf + n);
            n += 2 * VF_LANES;
        }
    }
}

/*
 * Scores s[n] of one row in one page become weights 2^(s - max); tokens outside [lo, hi) get
 * weight 0. Updates the row's running max and sum and returns the factor for what was summed
 * before.
 */
AINLINE float softmax_page(float *s, int n, int lo, int hi, float *max, float *sum) {
    vf m = vf_set1(*max);
    for (int i = 0; i < n; i += VF_LANES) {
        vf x = vf_keep(vf_load(s + i), lo - i, hi - i);
        vf_store(s + i, x);
        m = vf_max(m, x);
    }
    float new_max = vf_hmax(m), old = 1;
    if (new_max != *max) {
        float f[VF_LANES];
        vf_store(f, vf_exp2(vf_set1(*max - new_max)));
        old = f[0];
        *max = new_max;
    }
    vf mv = vf_set1(new_max), total = vf_set1(0);
    for (int i = 0; i < n; i += VF_LANES) {
        vf w = vf_exp2(vf_sub(vf_load(s + i), mv));
        vf_store(s + i, w);
        total = vf_add(total, w);
    }
    *sum = *sum * old + vf_hsum(total);
    return old;
}

/* Rows [r0, r0 + rows) of the item; row r is position r / n_group, head r % n_group. */
static void attn_tile(const gs_kv_layout *l, const gs_attn_item *it, int r0, int rows,
                      float *scratch) {
    const int hd = l->head_dim, bt = l->block_tokens, group = it->n_group;
    float *s = scratch, *o = s + GS_ATTN_TILE_ROWS * bt, *q = o + GS_ATTN_TILE_ROWS * hd;
    float max[GS_ATTN_TILE_ROWS], sum[GS_ATTN_TILE_ROWS], old[GS_ATTN_TILE_ROWS];
    const vf scale = vf_set1(it->scale * LOG2E); /* the softmax works with powers of two */
    for (int r = 0; r < rows; r++) {
        int t = (r0 + r) / group, g = (r0 + r) % group;
        const float *src = it->q + t * it->ldq + (int64_t)g * hd;
        for (int d = 0; d < hd; d += VF_LANES) {
            vf_store(q + r * hd + d, vf_mul(scale, vf_load(src + d)));
            vf_store(o + r * hd + d, vf_set1(0));
        }
        max[r] = MASKED;
        sum[r] = 0;
    }
    int first = it->pos + r0 / group, last = it->pos + (r0 + rows - 1) / group;
    int start = it->window > 0 && first >= it->window ? first - it->window + 1 : 0;
    for (int b = start / bt; b <= last / bt; b++) {
        const uint16_t *k = (const uint16_t *)gs_kv_page(l, it->layer, it->blocks[b], it->kv_head);
        const uint16_t *next = k, *v = k + hd * bt;
        if (b < last / bt)
            next = (const uint16_t *)gs_kv_page(l, it->layer, it->blocks[b + 1], it->kv_head);
        mm(rows, bt, s, (size_t)bt, NULL, q, (size_t)hd, k, hd, next);
        for (int r = 0; r < rows; r++) {
            int p = it->pos + (r0 + r) / group - b * bt; /* relative to the page */
            int hi = p + 1, lo = it->window > 0 ? p - it->window + 1 : 0;
            if (hi > 0 && lo < bt) {
                old[r] = softmax_page(s + r * bt, bt, lo, hi, &max[r], &sum[r]);
            } else {
                memset(s + r * bt, 0, (size_t)bt * sizeof *s);
                old[r] = 1;
            }
        }
        /* Positions after the last one may hold anything, and 0 * NaN is NaN: stop before them. */
        int len = last - b * bt + 1 < bt ? last - b * bt + 1 : bt;
        mm(rows, hd, o, (size_t)hd, old, s, (size_t)bt, v, len, next + hd * bt);
    }
    for (int r = 0; r < rows; r++) {
        float *out = it->out + (r0 + r) / group * it->ldo + (int64_t)((r0 + r) % group) * hd;
        vf inv = vf_set1(1.0f / sum[r]);
        for (int d = 0; d < hd; d += VF_LANES)
            vf_store(out + d, vf_mul(inv, vf_load(o + r * hd + d)));
    }
}

static void attn(const gs_kv_layout *l, const gs_attn_item *it, void *scratch) {
    int rows = it->n_q * it->n_group;
    for (int r = 0; r < rows; r += GS_ATTN_TILE_ROWS)
        attn_tile(l, it, r, rows - r < GS_ATTN_TILE_ROWS ? rows - r : GS_ATTN_TILE_ROWS, scratch);
}

static void store_f16(uint16_t *out, size_t stride, const float *x, int32_t n) {
    uint16_t h[VF_LANES];
    for (int32_t i = 0; i < n; i += VF_LANES) {
        /* Saturate rather than store an infinity; this operand order keeps NaN. */
        vf v = vf_max(vf_set1(-65504.0f), vf_min(vf_set1(65504.0f), vf_load(x + i)));
        if (stride == 1) {
            vf_store_f16(out + i, v);
            continue;
        }
        vf_store_f16(h, v);
        for (int j = 0; j < VF_LANES; j++)
            out[(size_t)(i + j) * stride] = h[j];
    }
}

static void exp2_all(float *x, int32_t n) {
    for (int32_t i = 0; i < n; i += VF_LANES)
        vf_store(x + i, vf_exp2(vf_load(x + i)));
}
