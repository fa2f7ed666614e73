/*
 * Paged attention for x86, written once over a few vector primitives and over the type of the
 * pages. An instruction set's file includes attn_v256.h or attn_v512.h, may define AT_DP_BF16 or
 * AT_DP_S8 (below), includes this file and makes functions of the types with ATTN_FUNCTION (it has
 * no include guard on purpose: it is a body, not an interface).
 *
 * Method: online softmax over chunks of pages (Milakov and Gimelshein 2018; Dao et al. 2022). A
 * tile of query rows (positions x heads of the group) goes over a chunk together, so that it comes
 * from memory once, and is read and widened once per MM_ROWS rows. Both products of a chunk, Q K
 * and P V, have the same form, C[rows][cols] = A[rows][len] * B[len / U][cols][U].
 *
 * A row's arithmetic never depends on which other rows are in its tile: chunks and segments begin
 * at multiples of their size, and what a row doesn't see has weight 0. That keeps results
 * independent of batching and of how a prompt is cut.
 *
 * q8: queries are quantised to 8 bits with a scale per row, weights to 0..255 with the row's
 * largest weight of the chunk as 255; integer sums are exact. V's scales are powers of two: their
 * logarithms are added to the scores (so the largest weight times its scale is 255), and the sum of
 * the weights is divided by them again.
 */

#define UNROLL  _Pragma("GCC unroll 8")
#define MM_ROWS 6
#define LOG2E   1.4426950408889634f

/* How a type is multiplied. A step is one group of U elements; its A takes 4 bytes, or 8. */
enum {
    AT_F16,     /* widened to float */
    AT_BF16,    /* widened to float; A: pairs of floats */
    AT_BF16_DP, /* bf16 pairs */
    AT_Q8,      /* 16-bit multiplications; A: two planes of 16-bit pairs, even and odd elements */
    AT_Q8_DP    /* 8-bit quads */
};
#define IS_Q8(T)      ((T) == AT_Q8 || (T) == AT_Q8_DP)
#define GROUP_OF(T)   (IS_Q8(T) ? 4 : (T) == AT_F16 ? 1 : 2)
#define COL_BYTES(T)  ((size_t)((T) == AT_F16 ? 2 : 4))  /* of a column in a step of B */
#define STEP_BYTES(T) ((size_t)((T) == AT_BF16 ? 8 : 4)) /* of A */

#ifdef AT_DP_BF16
AINLINE vf dp_bf16(vf c, vi a, vi b) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
#else
#define dp_bf16(c, a, b) ((void)(a), (void)(b), (c))
#endif
#ifdef AT_DP_S8
#define dp_u8s8 _mm512_dpbusd_epi32
#else
#define dp_u8s8(c, a, b) ((void)(a), (void)(b), (c))
#endif

/* The rows of one product. Pages are consecutive in A. */
typedef struct mm_args {
    float *c;
    size_t ldc;
    const char *a;
    size_t lda, plane, a_page; /* bytes: of a row, from the even to the odd half, of a page */
    const char *const *b, *const *next; /* pages, and those to fetch meanwhile (or NULL) */
    int n_pages, steps, last_steps;     /* steps of a page; of the last one */
    int half;                           /* then the first element of one more group */
    size_t ldb;                         /* bytes of a step of B */
    /* Q K of q8: -128 * sum of codes, scale; by token: scale, logarithm of V's scale */
    const int32_t *init;
    const float *row_scale, *ks, *lvs;
    /* P V: c = alpha c + beta (A B) */
    const float *alpha, *beta;
} mm_args;

AINLINE vi load_a(const char *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return vi_set1(v);
}

AINLINE vf load_af(const char *p) {
    float v;
    memcpy(&v, p, sizeof v);
    return vf_set1(v);
}

/* One step: acc[r][n] += a[r] * b[n]. half: only the first element of a pair counts, the other one
 * may hold anything (0 * NaN is NaN). */
AINLINE void mm_step(const int T, const int PV, vf acc[][4], vi sum[][4], const char *a, size_t lda,
                     size_t plane, const char *b, const int half, const int R, const int N) {
    vi bv[4];
    vf lo[4], hi[4];
    UNROLL for (int n = 0; n < N; n++) {
        const char *p = b + (size_t)(n * VF_LANES) * COL_BYTES(T);
        if (T == AT_F16) {
            lo[n] = vf_load_f16(p);
        } else {
            bv[n] = vi_load(p);
        }
        if (T == AT_BF16) {
            lo[n] = vf_cast_vi(vi_sll(bv[n], 16));
            hi[n] = vf_cast_vi(vi_and(bv[n], vi_set1((int)0xffff0000)));
        }
        if (T == AT_BF16_DP && half)
            bv[n] = vi_and(bv[n], vi_set1(0xffff));
    }
    if (T == AT_F16 || T == AT_BF16) {
        UNROLL for (int r = 0; r < R; r++) {
            vf av = load_af(a + (size_t)r * lda);
            UNROLL for (int n = 0; n < N; n++) acc[r][n] = vf_fma(av, lo[n], acc[r][n]);
        }
    }
    if (T == AT_BF16 && !half) {
        UNROLL for (int r = 0; r < R; r++) {
            vf av = load_af(a + (size_t)r * lda + 4);
            UNROLL for (int n = 0; n < N; n++) acc[r][n] = vf_fma(av, hi[n], acc[r][n]);
        }
    }
    if (T == AT_BF16_DP) {
        UNROLL for (int r = 0; r < R; r++) {
            vi av = load_a(a + (size_t)r * lda);
            UNROLL for (int n = 0; n < N; n++) acc[r][n] = dp_bf16(acc[r][n], av, bv[n]);
        }
    }
    if (T == AT_Q8_DP) {
        UNROLL for (int r = 0; r < R; r++) {
            vi av = load_a(a + (size_t)r * lda);
            UNROLL for (int n = 0; n < N; n++) sum[r][n] =
                PV ? dp_u8s8(sum[r][n], av, bv[n]) : dp_u8s8(sum[r][n], bv[n], av);
        }
    }
    if (T == AT_Q8) {
        vi w[4];
        UNROLL for (int n = 0; n < N; n++) w[n] =
            PV ? vi_sra16(vi_sll16(bv[n], 8), 8) : vi_and(bv[n], vi_set1(0x00ff00ff));
        UNROLL for (int r = 0; r < R; r++) {
            vi av = load_a(a + (size_t)r * lda);
            UNROLL for (int n = 0; n < N; n++) sum[r][n] = vi_add(sum[r][n], vi_madd(av, w[n]));
        }
        UNROLL for (int n = 0; n < N; n++) w[n] = PV ? vi_sra16(bv[n], 8) : vi_srl16(bv[n], 8);
        UNROLL for (int r = 0; r < R; r++) {
            vi av = load_a(a + plane + (size_t)r * lda);
            UNROLL for (int n = 0; n < N; n++) sum[r][n] = vi_add(sum[r][n], vi_madd(av, w[n]));
        }
    }
}

/* Rows [r0, r0 + R), columns [col, col + N vectors). PV: P V, else Q K. */
AINLINE void mm_tile(const int T, const int PV, const mm_args *m, int r0, int col, const int R,
                     const int N) {
    vf acc[MM_ROWS][4];
    vi sum[MM_ROWS][4];
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int n = 0; n < N; n++) {
            if (IS_Q8(T))
                sum[r][n] = vi_set1(PV ? 0 : m->init[r0 + r]);
            else
                acc[r][n] = vf_set1(0);
        }
    }
    const size_t lda = m->lda, ldb = m->ldb, plane = m->plane, at = (size_t)col * COL_BYTES(T);
    const char *a_row = m->a + (size_t)r0 * lda;
    for (int p = 0; p < m->n_pages; p++, a_row += m->a_page) {
        const char *a = a_row, *b = m->b[p] + at;
        const char *next = m->next ? m->next[p] + at : b; /* b: costs a slot, fetches nothing */
        int last = p + 1 == m->n_pages, steps = last ? m->last_steps : m->steps;
        for (int i = 0; i < steps; i++) {
            UNROLL for (int n = 0; n < N; n++) if (n * VF_LANES * (int)COL_BYTES(T) % 64 == 0)
                _mm_prefetch(next + (size_t)(n * VF_LANES) * COL_BYTES(T), _MM_HINT_T1);
            mm_step(T, PV, acc, sum, a, lda, plane, b, 0, R, N);
            a += STEP_BYTES(T);
            b += ldb;
            next += ldb;
        }
        if (last && m->half)
            mm_step(T, PV, acc, sum, a, lda, plane, b, 1, R, N);
    }
    UNROLL for (int r = 0; r < R; r++) {
        float *c = m->c + (size_t)(r0 + r) * m->ldc + col;
        UNROLL for (int n = 0; n < N; n++) {
            int i = n * VF_LANES;
            vf x = IS_Q8(T) ? vf_from_vi(sum[r][n]) : acc[r][n];
            if (PV)
                x = vf_fma(vf_set1(m->beta[r0 + r]), x,
                           vf_mul(vf_set1(m->alpha[r0 + r]), vf_load(c + i)));
            else if (IS_Q8(T))
                x = vf_fma(vf_mul(x, vf_load(m->ks + col + i)), vf_set1(m->row_scale[r0 + r]),
                           vf_load(m->lvs + col + i));
            vf_store(c + i, x);
        }
    }
}

#define MM_CASE(T, PV, R, N)                                                                       \
    case R:                                                                                        \
        mm_tile(T, PV, m, 0, col, R, N);                                                           \
        break
#define MM_FN(NAME, T, PV, N)                                                                      \
    static __attribute__((noinline)) void NAME(const mm_args *m, int rows, int col) {              \
        switch (rows) {                                                                            \
            MM_CASE(T, PV, 1, N);                                                                  \
            MM_CASE(T, PV, 2, N);                                                                  \
            MM_CASE(T, PV, 3, N);                                                                  \
            MM_CASE(T, PV, 4, N);                                                                  \
            MM_CASE(T, PV, 5, N);                                                                  \
            MM_CASE(T, PV, 6, N);                                                                  \
        }                                                                                          \
    }

/* Products by number of vectors: [0] one, [1] two, [2] four. AVX2's registers hold two. */
typedef void mm_fn(const mm_args *m, int rows, int col);

AINLINE void mm(mm_fn *const fn[3], const mm_args *m, int rows, int cols) {
    for (int col = 0; col < cols;) {
        int n = cols - col >= 4 * VF_LANES && VF_LANES == 16 ? 2 : cols - col >= 2 * VF_LANES;
        fn[n](m, rows, col);
        col += VF_LANES << n;
    }
}

/*
 * Scores s[n] of one row in one chunk become weights in the form of A at p; positions outside
 * [lo, hi) get weight 0. Returns the maximum of the scores; the weights are relative to it (q8:
 * 255 times), *sum is their sum.
 */
AINLINE float softmax_row(const int T, float *s, char *p, size_t plane, const float *ivs, int n,
                          int lo, int hi, float *sum) {
    if (lo > 0 || hi < n)
        for (int i = 0; i < n; i += VF_LANES)
            vf_store(s + i, vf_keep(vf_load(s + i), lo - i, hi - i));
    vf m = vf_load(s);
    for (int i = VF_LANES; i < n; i += VF_LANES)
        m = vf_max(m, vf_load(s + i));
    float max = vf_hmax(m);
    /* 255 as a power of two, a little less so that it can't round up to 256. */
    vf mv = vf_set1(IS_Q8(T) ? max - 7.9943f : max), total = vf_set1(0);
    for (int i = 0; i < n; i += VF_LANES) {
        vf w = vf_exp2(vf_sub(vf_load(s + i), mv));
        if (IS_Q8(T)) {
            total = vf_fma(w, vf_load(ivs + i), total);
            vf_store_u8((uint8_t *)p + i, w);
        } else {
            total = vf_add(total, w);
            if (T == AT_BF16_DP)
                vf_store_bf16((uint16_t *)(void *)p + i, w);
            else
                vf_store((float *)(void *)p + i, w);
        }
    }
    if (T == AT_Q8)
        for (int i = (n - 1) / (4 * VF_LANES) * (4 * VF_LANES); i >= 0; i -= 4 * VF_LANES) {
            vi q = vi_load(p + i);
            vi_store(p + i, vi_and(q, vi_set1(0x00ff00ff)));
            vi_store(p + plane + i, vi_srl16(q, 8));
        }
    *sum = vf_hsum(total);
    return max;
}

/* Caps one row's scores, with 1 - 2 / (1 + e^2x) as the hyperbolic tangent. Scores are powers of
 * two, those of q8 times V's scale. */
AINLINE void cap_row(const int T, float *s, const float *lvs, int n, float softcap) {
    const vf cap = vf_set1(softcap * LOG2E), twice = vf_set1(2.0f / softcap), one = vf_set1(1);
    for (int i = 0; i < n; i += VF_LANES) {
        vf scale = IS_Q8(T) ? vf_load(lvs + i) : vf_set1(0);
        vf x = vf_mul(twice, vf_sub(vf_load(s + i), scale));
        vf e = vf_exp2(vf_min(vf_set1(126), x)); /* this order keeps NaN */
        vf part = vf_div(vf_add(cap, cap), vf_add(one, e));
        vf_store(s + i, vf_add(vf_sub(cap, part), scale));
    }
}

/* State of a tile of rows: what one segment has so far, and the merged segments before it. */
typedef struct tile {
    const gs_kv_layout *l;
    const gs_attn_item *it;
    int r0, rows;          /* of the item */
    int first, last;       /* positions that the tile's queries have */
    float *o, *o_total;    /* [rows][head_dim] */
    char *q;               /* [rows][head_dim * 4 bytes], form of A */
    float *s;              /* [MM_ROWS][chunk] */
    char *p;               /* [MM_ROWS][chunk * 4 bytes] */
    float *ks, *lvs, *ivs; /* [chunk] */
    int chunk;             /* positions */
    int merged;            /* segments in o_total */
    float max[GS_ATTN_TILE_ROWS + VF_LANES], sum[GS_ATTN_TILE_ROWS + VF_LANES];
    float max_total[GS_ATTN_TILE_ROWS], sum_total[GS_ATTN_TILE_ROWS];
    float row_scale[GS_ATTN_TILE_ROWS];
    int32_t init[GS_ATTN_TILE_ROWS];
} tile;

/* One query row, times scale, in the form of A. */
AINLINE void load_query(const int T, tile *t, int r, const float *src) {
    const int hd = t->l->head_dim;
    const vf scale = vf_set1(t->it->scale * LOG2E); /* the softmax works with powers of two */
    char *q = t->q + (size_t)r * (size_t)hd * 4;
    if (!IS_Q8(T)) {
        for (int d = 0; d < hd; d += VF_LANES) {
            vf x = vf_mul(scale, vf_load(src + d));
            if (T == AT_BF16_DP)
                vf_store_bf16((uint16_t *)(void *)q + d, x);
            else
                vf_store((float *)(void *)q + d, x);
        }
        return;
    }
    vf m = vf_set1(0);
    for (int d = 0; d < hd; d += VF_LANES)
        m = vf_max(m, vf_abs(vf_load(src + d)));
    float max = vf_hmax(m);
    const vf inv = vf_set1(max > 0 ? 127.0f / max : 0);
    int8_t code[GS_ATTN_MAX_HEAD];
    int32_t sum = 0;
    vf nan = vf_set1(0); /* of the codes nothing tells that a value was NaN */
    for (int d = 0; d < hd; d += VF_LANES) {
        vf x = vf_load(src + d);
        nan = vf_fma(x, vf_set1(0), nan);
        vf_store_s8(code + d, vf_mul(inv, x));
    }
    for (int d = 0; d < hd; d++)
        sum += code[d];
    t->init[r] = -128 * sum;
    t->row_scale[r] = max * t->it->scale * (LOG2E / 127.0f) + vf_hsum(nan);
    if (T == AT_Q8_DP) {
        memcpy(q, code, (size_t)hd);
        return;
    }
    int16_t *even = (int16_t *)(void *)q, *odd = even + hd / 2;
    for (int d = 0; d < hd / 2; d++) {
        even[d] = code[2 * d];
        odd[d] = code[2 * d + 1];
    }
}

static void tile_reset(tile *t) {
    memset(t->o, 0, (size_t)(t->rows * t->l->head_dim) * sizeof *t->o);
    for (int r = 0; r < GS_ATTN_TILE_ROWS + VF_LANES; r++) {
        t->max[r] = MASKED;
        t->sum[r] = 0;
    }
}

/* o with its maximum and sum joins the total. */
AINLINE void join(int hd, float *total, float *max_total, float *sum_total, const float *o,
                  float max, float sum) {
    float f[VF_LANES], top = *max_total > max ? *max_total : max;
    vf_store(f, vf_exp2(vf_set1(*max_total - top)));
    float a = f[0];
    vf_store(f, vf_exp2(vf_set1(max - top)));
    float b = f[0];
    for (int d = 0; d < hd; d += VF_LANES)
        vf_store(total + d,
                 vf_fma(vf_set1(b), vf_load(o + d), vf_mul(vf_set1(a), vf_load(total + d))));
    *max_total = top;
    *sum_total = a * *sum_total + b * sum;
}

static void normalise(int hd, float *out, const float *o, float sum) {
    vf inv = vf_set1(1.0f / sum);
    for (int d = 0; d < hd; d += VF_LANES)
        vf_store(out + d, vf_mul(inv, vf_load(o + d)));
}

/* Segment seg is done: it goes to the parts, or joins those before. */
static void segment_done(tile *t, int seg) {
    const int hd = t->l->head_dim;
    const gs_attn_item *it = t->it;
    for (int r = 0; r < t->rows; r++) {
        float *o = t->o + r * hd, *total = t->o_total + r * hd;
        if (it->part) {
            size_t row =
                (size_t)(seg - it->seg0) * (size_t)(it->n_q * it->n_group) + (size_t)(t->r0 + r);
            float *part = it->part + row * gs_attn_part_floats(t->l);
            memcpy(part, o, (size_t)hd * sizeof *o);
            part[hd] = t->max[r];
            part[hd + 1] = t->sum[r];
        } else if (t->merged == 0) {
            memcpy(total, o, (size_t)hd * sizeof *o);
            t->max_total[r] = t->max[r];
            t->sum_total[r] = t->sum[r];
        } else {
            join(hd, total, &t->max_total[r], &t->sum_total[r], o, t->max[r], t->sum[r]);
        }
    }
    t->merged++;
    tile_reset(t);
}

static __attribute__((unused)) void merge(int32_t head_dim, float *out, const float *part,
                                          size_t ld, int32_t n_seg) {
    float total[GS_ATTN_MAX_HEAD], max = part[head_dim], sum = part[head_dim + 1];
    memcpy(total, part, (size_t)head_dim * sizeof *total);
    for (int32_t s = 1; s < n_seg; s++) {
        part += ld;
        join(head_dim, total, &max, &sum, part, part[head_dim], part[head_dim + 1]);
    }
    normalise(head_dim, out, total, sum);
}

/* Scales of the chunk's pages; those of the next ones are fetched. */
static __attribute__((unused)) void load_scales(const tile *t, const char *const *k,
                                                const char *const *next, int n_pages) {
    const size_t at = gs_kv_scale_offset(t->l), v = t->l->page_bytes;
    const int bt = t->l->block_tokens;
    const vf step = vf_set1(1 / GS_KV_Q8_V_STEPS);
    for (int p = 0; p < n_pages; p++) {
        if (next) {
            _mm_prefetch(next[p] + at, _MM_HINT_T1);
            _mm_prefetch(next[p] + v + at, _MM_HINT_T1);
        }
        for (int i = 0; i < bt; i += VF_LANES) {
            const char *from = k[p] + at + 2 * (size_t)i;
            vf lvs = vf_mul(step, vf_from_vi(vi_load_s16(from + v)));
            vf_store(t->ks + p * bt + i, vf_cast_vi(vi_sll(vi_load_u16(from), 16)));
            vf_store(t->lvs + p * bt + i, lvs);
            vf_store(t->ivs + p * bt + i, vf_exp2(vf_sub(vf_set1(0), lvs)));
        }
    }
}

#define MAX_PAGES (GS_ATTN_MAX_CHUNK / 16)

/* Pages of the chunk that begins at page b of an item; how many. */
static int chunk_pages(const gs_kv_layout *l, const gs_attn_item *it, int b, int last,
                       const char *k[MAX_PAGES]) {
    int n = gs_attn_chunk_pages(l), end = last / l->block_tokens + 1;
    n -= b % n;
    if (n > end - b)
        n = end - b;
    for (int i = 0; i < n; i++)
        k[i] = (const char *)gs_kv_page(l, it->layer, it->blocks[b + i], it->kv_head);
    return n;
}

static int first_page(const gs_kv_layout *l, const gs_attn_item *it, int p) {
    int start = it->window > 0 && p >= it->window ? p - it->window + 1 : 0;
    int seg = it->part ? it->seg0 * gs_attn_segment(l) : 0;
    return (start > seg ? start : seg) / l->block_tokens;
}

/* Rows [g, g + rows) of the tile over one chunk of pages; base: its first position. */
AINLINE void attn_rows(const int T, tile *t, mm_fn *const qk[3], mm_fn *const pv[3], int g,
                       int rows, int base, const char *const *k, int n_pages,
                       const char *const *next) {
    const int hd = t->l->head_dim, bt = t->l->block_tokens, n = n_pages * bt;
    const size_t row = (size_t)hd * 4, p_row = (size_t)t->chunk * 4, plane = (size_t)t->chunk;
    const char *v[MAX_PAGES], *v_next[MAX_PAGES];
    for (int i = 0; i < n_pages; i++) {
        v[i] = k[i] + t->l->page_bytes;
        v_next[i] = next ? next[i] + t->l->page_bytes : NULL;
    }
    mm_args m = {.ldc = (size_t)t->chunk,
                 .a = t->q + (size_t)g * row,
                 .lda = row,
                 .plane = (size_t)hd,
                 .n_pages = 1,
                 .last_steps = hd / GROUP_OF(T),
                 .ldb = (size_t)bt * COL_BYTES(T),
                 .init = t->init + g,
                 .row_scale = t->row_scale + g};
    for (int i = 0; i < n_pages; i++) {
        m.c = t->s + i * bt;
        m.b = k + i;
        m.next = next ? next + i : NULL;
        m.ks = t->ks + i * bt;
        m.lvs = t->lvs + i * bt;
        mm(qk, &m, rows, bt);
    }
    float max[VF_LANES], sum[VF_LANES], alpha[VF_LANES], beta[VF_LANES];
    vf_store(max, vf_set1(MASKED));
    vf_store(sum, vf_set1(0));
    for (int r = 0; r < rows; r++) {
        char *p = t->p + (size_t)r * p_row;
        int pos = t->it->pos + (t->r0 + g + r) / t->it->n_group - base;
        int hi = t->it->n_keys > 0 ? t->it->n_keys - base : pos + 1;
        int lo = t->it->window > 0 ? pos - t->it->window + 1 : 0;
        if (t->it->softcap > 0)
            cap_row(T, t->s + r * t->chunk, t->lvs, n, t->it->softcap);
        if (hi > 0 && lo < n)
            max[r] = softmax_row(T, t->s + r * t->chunk, p, plane, t->ivs, n, lo, hi, &sum[r]);
        else
            memset(p, 0, p_row);
    }
    /* Rows past the group see no change. */
    vf was = vf_load(t->max + g), now = vf_load(max), top = vf_max(was, now);
    vf fa = vf_exp2(vf_sub(was, top)), fb = vf_exp2(vf_sub(now, top));
    if (IS_Q8(T))
        fb = vf_mul(fb, vf_exp2(vf_set1(-7.9943f)));
    vf_store(t->max + g, top);
    vf_store(t->sum + g, vf_fma(fb, vf_load(sum), vf_mul(fa, vf_load(t->sum + g))));
    vf_store(alpha, fa);
    vf_store(beta, fb);
    /* Positions after the last one may hold anything: stop before them. */
    int len = t->last - base + 1 < n ? t->last - base + 1 - (n - bt) : bt;
    m = (mm_args){.c = t->o + g * hd,
                  .ldc = (size_t)hd,
                  .a = t->p,
                  .lda = p_row,
                  .plane = plane,
                  .a_page = (size_t)(bt / GROUP_OF(T)) * STEP_BYTES(T),
                  .b = v,
                  .next = next ? v_next : NULL,
                  .n_pages = n_pages,
                  .steps = bt / GROUP_OF(T),
                  .last_steps = IS_Q8(T) ? (len + 3) / 4 : len / GROUP_OF(T),
                  .half = IS_Q8(T) ? 0 : len % GROUP_OF(T),
                  .ldb = (size_t)hd * COL_BYTES(T),
                  .alpha = alpha,
                  .beta = beta};
    mm(pv, &m, rows, hd);
}

/* Rows [r0, r0 + rows) of the item; row r is position r / n_group, head r % n_group. */
AINLINE void attn_tile(const int T, tile *t, mm_fn *const qk[3], mm_fn *const pv[3]) {
    const gs_kv_layout *l = t->l;
    const gs_attn_item *it = t->it;
    const int hd = l->head_dim, bt = l->block_tokens, seg = gs_attn_segment(l);
    for (int r = 0; r < t->rows; r++) {
        int i = (t->r0 + r) / it->n_group, h = (t->r0 + r) % it->n_group;
        load_query(T, t, r, it->q + i * it->ldq + (int64_t)h * hd);
    }
    tile_reset(t);
    t->merged = 0;
    int last = t->last, b = first_page(l, it, t->first), s = b * bt / seg, n_next = 0;
    if (it->part && it->seg1 * seg <= last)
        last = it->seg1 * seg - 1;
    if (it->part) /* windows: segments that nobody sees */
        for (int e = it->seg0; e < s && e < it->seg1; e++)
            segment_done(t, e);
    const char *k[MAX_PAGES], *next[MAX_PAGES];
    int n = chunk_pages(l, it, b, last, k), groups = (t->rows + MM_ROWS - 1) / MM_ROWS;
    while (n > 0) {
        int begins = b + n;
        n_next = chunk_pages(l, it, begins, last, next);
        if (n_next <= 0 && t->r0 + t->rows == it->n_q * it->n_group && it->next)
            n_next = chunk_pages(l, it->next, first_page(l, it->next, it->next->pos), it->next->pos,
                                 next);
        for (int i = n_next > 0 ? n_next : 0; i < n; i++)
            next[i] = n_next > 0 ? next[0] : k[i];
        if (IS_Q8(T))
            load_scales(t, k, next, n);
        for (int i = 0; i < groups; i++) {
            int g = t->rows * i / groups, end = t->rows * (i + 1) / groups;
            attn_rows(T, t, qk, pv, g, end - g, b * bt, k, n, i == 0 ? next : NULL);
        }
        b = begins;
        n = chunk_pages(l, it, b, last, k);
        if (n <= 0 || b * bt / seg > s)
            segment_done(t, s++);
    }
    if (it->part)
        return;
    for (int r = 0; r < t->rows; r++) {
        int i = (t->r0 + r) / it->n_group, h = (t->r0 + r) % it->n_group;
        normalise(hd, it->out + i * it->ldo + (int64_t)h * hd, t->o_total + r * hd,
                  t->sum_total[r]);
    }
}

AINLINE void attn_item(const int T, mm_fn *const qk[3], mm_fn *const pv[3], const gs_kv_layout *l,
                       const gs_attn_item *it, float *scratch) {
    const int rows = it->n_q * it->n_group, hd = l->head_dim;
    tile t = {.l = l, .it = it, .chunk = gs_attn_chunk_pages(l) * l->block_tokens};
    t.o = scratch;
    t.o_total = t.o + GS_ATTN_TILE_ROWS * hd;
    t.q = (char *)(t.o_total + GS_ATTN_TILE_ROWS * hd);
    t.s = (float *)(void *)t.q + GS_ATTN_TILE_ROWS * hd;
    t.p = (char *)(t.s + MM_ROWS * t.chunk);
    t.ks = t.s + 2 * MM_ROWS * t.chunk;
    t.lvs = t.ks + t.chunk;
    t.ivs = t.lvs + t.chunk;
    for (int r = 0; r < rows; r += GS_ATTN_TILE_ROWS) {
        t.r0 = r;
        t.rows = rows - r < GS_ATTN_TILE_ROWS ? rows - r : GS_ATTN_TILE_ROWS;
        t.first = it->pos + r / it->n_group;
        t.last = it->n_keys > 0 ? it->n_keys - 1 : it->pos + (r + t.rows - 1) / it->n_group;
        attn_tile(T, &t, qk, pv);
    }
}

#if VF_LANES == 16
#define MM_FNS(NAME, T, PV)                                                                        \
    MM_FN(NAME##_1, T, PV, 1)                                                                      \
    MM_FN(NAME##_2, T, PV, 2)                                                                      \
    MM_FN(NAME##_4, T, PV, 4)                                                                      \
    static mm_fn *const NAME[3] = {NAME##_1, NAME##_2, NAME##_4};
#else
#define MM_FNS(NAME, T, PV)                                                                        \
    MM_FN(NAME##_2, T, PV, 2)                                                                      \
    static mm_fn *const NAME[3] = {NULL, NAME##_2, NULL};
#endif

/* A function NAME, a gs_attn_fn, for pages multiplied as T says. */
#define ATTN_FUNCTION(NAME, T)                                                                     \
    MM_FNS(NAME##_qk, T, 0)                                                                        \
    MM_FNS(NAME##_pv, T, 1)                                                                        \
    void NAME(const gs_kv_layout *l, const gs_attn_item *it, void *scratch) {                      \
        attn_item(T, NAME##_qk, NAME##_pv, l, it, scratch);                                        \
    }

/* ---- The rest of the table ---------------------------------------------------------------------
 */

#ifdef ATTN_TABLE_PARTS

static void to_f16(uint16_t *out, const float *x, int32_t n) {
    for (int32_t i = 0; i < n; i += VF_LANES) /* this operand order keeps NaN */
        vf_store_f16(out + i,
                     vf_max(vf_set1(-65504.0f), vf_min(vf_set1(65504.0f), vf_load(x + i))));
}

static void to_bf16(uint16_t *out, const float *x, int32_t n) {
    for (int32_t i = 0; i < n; i += VF_LANES)
        vf_store_bf16(out + i, vf_load(x + i));
}

static float max_abs(const float *x, int32_t n) {
    vf m = vf_set1(0);
    for (int32_t i = 0; i < n; i += VF_LANES)
        m = vf_max(m, vf_abs(vf_load(x + i)));
    return vf_hmax(m);
}

static void to_s8(int8_t *out, const float *x, float inv, int32_t n) {
    for (int32_t i = 0; i < n; i += VF_LANES)
        vf_store_s8(out + i, vf_mul(vf_set1(inv), vf_load(x + i)));
}

static void exp2_all(float *x, int32_t n) {
    for (int32_t i = 0; i < n; i += VF_LANES)
        vf_store(x + i, vf_exp2(vf_load(x + i)));
}

#endif
