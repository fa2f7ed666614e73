/* Paged attention: KV layout, stores and copies, choice of the kernel. See kernels/attn.h. */
#include "kernels/attn.h"

#include <math.h>

#include "base/checked.h"
#include "base/err.h"
#include "kernels/attn_impl.h"
#include "kernels/kernels.h"
#include "kernels/kernels_impl.h"

/* ---- Layout ------------------------------------------------------------------------------------
 */

/* By type: elements of a group, bytes of an element. */
static const struct {
    const char *name;
    size_t group, size;
} kv_types[GS_KV_TYPE_COUNT] = {
    [GS_KV_F16] = {"f16", 1, 2}, [GS_KV_BF16] = {"bf16", 2, 2}, [GS_KV_Q8] = {"q8", 4, 1}};

const char *gs_kv_type_name(gs_kv_type type) {
    return kv_types[type].name;
}

int gs_kv_layout_init(gs_kv_layout *l, gs_kv_type type, int32_t n_layers, int32_t n_kv_heads,
                      int32_t head_dim, int32_t block_tokens, uint32_t n_blocks) {
    if (type < 0 || type >= GS_KV_TYPE_COUNT || n_layers < 1 || n_kv_heads < 1 || n_blocks < 1 ||
        head_dim < 16 || head_dim % 16 != 0 || head_dim > GS_ATTN_MAX_HEAD || block_tokens < 16 ||
        block_tokens % 16 != 0 || block_tokens > 1024)
        return GS_ERR_INVALID;
    size_t page = (size_t)head_dim * (size_t)block_tokens * kv_types[type].size;
    if (type == GS_KV_Q8) /* scales; whole lines */
        page = (page + (size_t)block_tokens * sizeof(uint16_t) + 63) & ~(size_t)63;
    size_t total = page;
    if (!gs_mul_size(total, 2, &total) || !gs_mul_size(total, (size_t)n_kv_heads, &total) ||
        !gs_mul_size(total, (size_t)n_layers, &total) || !gs_mul_size(total, n_blocks, &total))
        return GS_ERR_TOO_LARGE;
    *l = (gs_kv_layout){.type = type,
                        .n_layers = n_layers,
                        .n_kv_heads = n_kv_heads,
                        .head_dim = head_dim,
                        .block_tokens = block_tokens,
                        .n_blocks = n_blocks,
                        .chunk_tokens = type == GS_KV_Q8 ? GS_ATTN_CHUNK_Q8 : GS_ATTN_CHUNK,
                        .page_bytes = page,
                        .total_bytes = total};
    return GS_OK;
}

size_t gs_kv_block_bytes(const gs_kv_layout *l) {
    return l->total_bytes / l->n_blocks;
}

const gs_attn_ops *gs_attn_ops_get(void) {
#if defined(__x86_64__)
    switch (gs_kernels_isa()) {
    case GS_ISA_AVX512VNNI:
        return gs_kernels_bf16 ? &gs_attn_ops_avx512bf16 : &gs_attn_ops_avx512vnni;
    case GS_ISA_AVX512:
        return &gs_attn_ops_avx512;
    case GS_ISA_AVX2:
    case GS_ISA_AVXVNNI:
        return &gs_attn_ops_avx2;
    default:
        break;
    }
#endif
    return &gs_attn_ops_ref;
}

/* ---- Stores and copies -------------------------------------------------------------------------
 */

/* Codes of x[n], + 128, and the scale: amax / 127 as a bf16, rounded up so that no code exceeds
 * 127. */
static uint16_t quant_k(const gs_attn_ops *ops, uint8_t *out, const float *x, int32_t n) {
    float want = ops->max_abs(x, n) / 127.0f;
    uint32_t up = gs_f32_bits(want) + 0xffffu;
    uint16_t scale = isfinite(want) ? (uint16_t)(up >> 16) : gs_bf16_from_f32(NAN);
    float value = gs_bf16_to_f32(scale);
    ops->to_s8((int8_t *)out, x, value > 0 && isfinite(value) ? 1.0f / value : 0, n);
    for (int32_t i = 0; i < n; i++)
        out[i] ^= 0x80;
    return scale;
}

/* Likewise with a power of two, in steps of 1/1024: its logarithm joins the scores, its reciprocal
 * the sum of weights. */
static int16_t quant_v(const gs_attn_ops *ops, int8_t *out, const float *x, int32_t n) {
    float log = ceilf(log2f(ops->max_abs(x, n) / 127.0f) * GS_KV_Q8_V_STEPS);
    float least = -32.0f * GS_KV_Q8_V_STEPS, most = 31.999f * GS_KV_Q8_V_STEPS;
    log = log > least ? log < most ? log : most : least;
    ops->to_s8(out, x, exp2f(-log / GS_KV_Q8_V_STEPS), n);
    return (int16_t)log;
}

static void store_q8(const gs_kv_layout *l, const gs_attn_ops *ops, uint8_t *page, size_t t,
                     const float *k, const float *v) {
    size_t bt = (size_t)l->block_tokens, hd = (size_t)l->head_dim, at = gs_kv_scale_offset(l);
    union {
        uint8_t u[GS_ATTN_MAX_HEAD];
        int8_t s[GS_ATTN_MAX_HEAD];
    } code;
    if (k) {
        uint16_t scale = quant_k(ops, code.u, k, l->head_dim);
        memcpy(page + at + 2 * t, &scale, sizeof scale);
        for (size_t d = 0; d < hd; d += 4)
            memcpy(page + d * bt + t * 4, code.u + d, 4);
    }
    if (v) {
        int16_t scale = quant_v(ops, code.s, v, l->head_dim);
        memcpy(page + l->page_bytes + at + 2 * t, &scale, sizeof scale);
        int8_t *to = (int8_t *)page + l->page_bytes + t / 4 * 4 * hd + t % 4;
        for (size_t d = 0; d < hd; d++)
            to[d * 4] = code.s[d];
    }
}

void gs_kv_store(const gs_kv_layout *l, int32_t layer, const uint32_t *blocks, int32_t pos,
                 int32_t kv_head, const float *k, const float *v) {
    const gs_attn_ops *ops = gs_attn_ops_get();
    size_t bt = (size_t)l->block_tokens, t = (size_t)pos % bt, hd = (size_t)l->head_dim;
    uint8_t *page = gs_kv_page(l, layer, blocks[(size_t)pos / bt], kv_head);
    if (l->type == GS_KV_Q8) {
        store_q8(l, ops, page, t, k, v);
        return;
    }
    uint16_t half[GS_ATTN_MAX_HEAD], *to_k = (uint16_t *)(void *)page;
    uint16_t *to_v = (uint16_t *)(void *)(page + l->page_bytes);
    void (*convert)(uint16_t *, const float *, int32_t) =
        l->type == GS_KV_F16 ? ops->to_f16 : ops->to_bf16;
    size_t group = kv_types[l->type].group;
    if (k) {
        convert(half, k, l->head_dim);
        for (size_t d = 0; d < hd; d++)
            to_k[d / group * group * bt + t * group + d % group] = half[d];
    }
    if (v) {
        convert(half, v, l->head_dim);
        to_v += t / group * group * hd + t % group;
        for (size_t d = 0; d < hd; d++)
            to_v[d * group] = half[d];
    }
}

void gs_kv_prefetch(const gs_kv_layout *l, int32_t layer, const uint32_t *blocks, int32_t pos,
                    int32_t kv_head) {
    const size_t bt = (size_t)l->block_tokens, t = (size_t)pos % bt, hd = (size_t)l->head_dim;
    const size_t group = kv_types[l->type].group, bytes = group * kv_types[l->type].size;
    const uint8_t *k = gs_kv_page(l, layer, blocks[(size_t)pos / bt], kv_head) + t * bytes;
    const uint8_t *v = k - t * bytes + l->page_bytes + t / group * hd * bytes;
    for (size_t d = 0; d < hd; d += group, k += bt * bytes)
        __builtin_prefetch(k, 1);
    for (size_t i = 0; i < hd * bytes; i += 64)
        __builtin_prefetch(v + i, 1);
}

/* One head of a row, in bf16, to its places in the K page. */
static void put_k_bf16(const gs_kv_layout *l, uint8_t *page, size_t t, const uint16_t *k) {
    const size_t bt = (size_t)l->block_tokens, hd = (size_t)l->head_dim;
    for (size_t d = 0; d < hd; d += 2)
        memcpy(page + (d * bt + t * 2) * sizeof *k, k + d, 2 * sizeof *k);
}

/* Likewise in the V page that follows; with the next position's, unless that is NULL: values lie
 * in pairs of positions. */
static void put_v_bf16(const gs_kv_layout *l, uint8_t *page, size_t t, const uint16_t *v,
                       const uint16_t *next) {
    const size_t hd = (size_t)l->head_dim;
    uint16_t *to = (uint16_t *)(void *)(page + l->page_bytes) + t / 2 * 2 * hd;
    if (next) {
        for (size_t d = 0; d < hd; d++) {
            to[2 * d] = v[d];
            to[2 * d + 1] = next[d];
        }
        return;
    }
    for (size_t d = 0; d < hd; d++)
        to[2 * d + t % 2] = v[d];
}

#define STORE_WIDTH 1024 /* floats of a row that are converted at a time: whole heads */

/* Heads [h0, h1) of gs_kv_store_rows in bf16. Positions go in pairs, as their values lie. */
static void store_bf16_rows(const gs_kv_layout *l, int32_t layer, const uint32_t *blocks,
                            int32_t pos, int32_t n, int32_t h0, int32_t h1, const float *k,
                            const float *v, int64_t ld) {
    const gs_attn_ops *ops = gs_attn_ops_get();
    const int32_t hd = l->head_dim, width = (h1 - h0) * hd;
    uint16_t kh[2][STORE_WIDTH], vh[2][STORE_WIDTH];
    for (int32_t i = 0; i < n;) {
        const int32_t p = pos + i, m = p % 2 == 0 && i + 1 < n ? 2 : 1;
        for (int32_t j = 0; j < m; j++) {
            ops->to_bf16(kh[j], k + (i + j) * ld + (int64_t)h0 * hd, width);
            ops->to_bf16(vh[j], v + (i + j) * ld + (int64_t)h0 * hd, width);
        }
        const size_t t = (size_t)(p % l->block_tokens);
        for (int32_t h = h0; h < h1; h++) {
            uint8_t *page = gs_kv_page(l, layer, blocks[p / l->block_tokens], h);
            const int32_t at = (h - h0) * hd;
            for (int32_t j = 0; j < m; j++)
                put_k_bf16(l, page, t + (size_t)j, kh[j] + at);
            put_v_bf16(l, page, t, vh[0] + at, m == 2 ? vh[1] + at : NULL);
        }
        i += m;
    }
}

void gs_kv_store_rows(const gs_kv_layout *l, int32_t layer, const uint32_t *blocks, int32_t pos,
                      int32_t n, const float *k, const float *v, int64_t ld) {
    const int32_t hd = l->head_dim;
    if (l->type == GS_KV_BF16) {
        for (int32_t h = 0; h < l->n_kv_heads; h += STORE_WIDTH / hd) {
            int32_t end =
                h + STORE_WIDTH / hd < l->n_kv_heads ? h + STORE_WIDTH / hd : l->n_kv_heads;
            store_bf16_rows(l, layer, blocks, pos, n, h, end, k, v, ld);
        }
        return;
    }
    for (int32_t i = 0; i < n; i++)
        for (int32_t h = 0; h < l->n_kv_heads; h++)
            gs_kv_store(l, layer, blocks, pos + i, h, k + i * ld + (int64_t)h * hd,
                        v + i * ld + (int64_t)h * hd);
}

/* K page, then V page: the groups that hold the first n tokens. */
static void copy_pages(const gs_kv_layout *l, uint8_t *to, const uint8_t *from, size_t n) {
    size_t bt = (size_t)l->block_tokens, hd = (size_t)l->head_dim;
    size_t group = kv_types[l->type].group, bytes = group * kv_types[l->type].size;
    size_t at = gs_kv_scale_offset(l), v = l->page_bytes;
    for (size_t d = 0; d < hd / group; d++)
        memcpy(to + d * bt * bytes, from + d * bt * bytes, n * bytes);
    memcpy(to + v, from + v, (n + group - 1) / group * hd * bytes);
    if (l->type == GS_KV_Q8) {
        memcpy(to + at, from + at, n * sizeof(uint16_t));
        memcpy(to + v + at, from + v + at, n * sizeof(uint16_t));
    }
}

void gs_kv_copy(const gs_kv_layout *l, uint32_t dst, uint32_t src, int32_t n_tokens) {
    GS_ASSERT(n_tokens >= 0 && n_tokens <= l->block_tokens && dst < l->n_blocks &&
              src < l->n_blocks);
    if (dst == src || n_tokens == 0)
        return;
    for (int32_t layer = 0; layer < l->n_layers; layer++)
        for (int32_t h = 0; h < l->n_kv_heads; h++)
            copy_pages(l, gs_kv_page(l, layer, dst, h), gs_kv_page(l, layer, src, h),
                       (size_t)n_tokens);
}

/* The pages of a block and layer lie together. */
static size_t layer_bytes(const gs_kv_layout *l) {
    return (size_t)l->n_kv_heads * 2 * l->page_bytes;
}

void gs_kv_read_block(const gs_kv_layout *l, uint32_t block, uint8_t *out) {
    GS_ASSERT(block < l->n_blocks);
    for (int32_t layer = 0; layer < l->n_layers; layer++, out += layer_bytes(l))
        memcpy(out, gs_kv_page(l, layer, block, 0), layer_bytes(l));
}

void gs_kv_write_block(const gs_kv_layout *l, uint32_t block, const uint8_t *in) {
    GS_ASSERT(block < l->n_blocks);
    for (int32_t layer = 0; layer < l->n_layers; layer++, in += layer_bytes(l))
        memcpy(gs_kv_page(l, layer, block, 0), in, layer_bytes(l));
}

/* ---- Attention ---------------------------------------------------------------------------------
 */

size_t gs_attn_scratch_bytes(const gs_kv_layout *l) {
    size_t chunk = (size_t)gs_attn_chunk_pages(l) * (size_t)l->block_tokens;
    /* Queries and two outputs of a tile; scores and weights of 8 rows, 3 scales a token. */
    return (GS_ATTN_TILE_ROWS * 3 * (size_t)l->head_dim + (8 * 2 + 3) * chunk) * sizeof(float);
}

void gs_attn(const gs_kv_layout *l, const gs_attn_item *it, void *scratch) {
    gs_attn_ops_get()->attn[l->type](l, it, scratch);
}

int32_t gs_attn_segment(const gs_kv_layout *l) {
    return gs_attn_segment_chunks(l) * gs_attn_chunk_pages(l) * l->block_tokens;
}

size_t gs_attn_part_floats(const gs_kv_layout *l) {
    return (size_t)l->head_dim + GS_ATTN_PART_EXTRA;
}

void gs_attn_merge(const gs_kv_layout *l, float *out, const float *part, size_t ld, int32_t n_seg) {
    gs_attn_ops_get()->merge(l->head_dim, out, part, ld, n_seg);
}
