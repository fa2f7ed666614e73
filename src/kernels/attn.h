/*
 * Paged attention over a sequence's block table (Kwon et al., SOSP'23), GQA-aware.
 *
 * KV memory is one array of pages. A page holds the keys, or the values, of ONE kv head of ONE
 * layer for the block_tokens positions of one KV block, contiguously, so that one work item
 * streams whole pages:
 *
 *     page(layer, block, kv_head, K|V)  =  base + (((layer * n_blocks + block) * n_kv_heads
 *                                            + kv_head) * 2 + (K:0 V:1)) * page_bytes
 *
 * Elements lie in groups of U that one instruction multiplies and adds, U * size = 4 bytes but for
 * f16, so that both products of attention read their page as rows of independent columns:
 *
 *     K page: [head_dim / U][block_tokens][U]     V page: [block_tokens / U][head_dim][U]
 *
 *     f16   U = 1   values beyond f16's range saturate
 *     bf16  U = 2   pairs, as AVX512-BF16 multiplies them
 *     q8    U = 4   8-bit codes, quads as VNNI multiplies them; then one 16-bit scale a token,
 *                   [block_tokens]. K: code - 128, scale a bf16. V: signed code, scale
 *                   2^(i / 1024), i a signed 16-bit integer
 *
 * Functions are pure compute; disjoint work items may run on any threads.
 */
#ifndef GS_KERNELS_ATTN_H
#define GS_KERNELS_ATTN_H

#include <stddef.h>
#include <stdint.h>

#define GS_ATTN_MAX_CHUNK 256

/* The order of the choices of the option kv.type. */
typedef enum gs_kv_type { GS_KV_F16, GS_KV_BF16, GS_KV_Q8, GS_KV_TYPE_COUNT } gs_kv_type;

typedef struct gs_kv_layout {
    gs_kv_type type;
    int32_t n_layers, n_kv_heads;
    int32_t head_dim;     /* of K and V; a multiple of 16, <= 256 */
    int32_t block_tokens; /* a multiple of 16, <= 1024 */
    uint32_t n_blocks;
    /* Positions that share one step of the online softmax: set by gs_kv_layout_init to what fits L1
     * beside the outputs. More (at most GS_ATTN_MAX_CHUNK) suit short contexts. */
    int32_t chunk_tokens;
    size_t page_bytes; /* set by gs_kv_layout_init; a multiple of 64 */
    size_t total_bytes;
    uint8_t *base; /* total_bytes, 64-byte aligned; gs_pages_alloc */
} gs_kv_layout;

int gs_kv_layout_init(gs_kv_layout *l, gs_kv_type type, int32_t n_layers, int32_t n_kv_heads,
                      int32_t head_dim, int32_t block_tokens, uint32_t n_blocks);
size_t gs_kv_block_bytes(const gs_kv_layout *l); /* all layers, heads, K and V of one block */
const char *gs_kv_type_name(gs_kv_type type);    /* "q8" */

/* Stores k[head_dim] and v[head_dim] (floats, K already rotated) of one kv head at position pos
 * of the sequence whose block table is given. k or v may be NULL: that half is left alone (the
 * threads that computed them may differ). */
void gs_kv_store(const gs_kv_layout *l, int32_t layer, const uint32_t *blocks, int32_t pos,
                 int32_t kv_head, const float *k, const float *v);
/* Fetches the lines that gs_kv_store will write to: the keys of a position lie scattered, one group
 * to a line, mostly in a page that nobody has touched since the step before. */
void gs_kv_prefetch(const gs_kv_layout *l, int32_t layer, const uint32_t *blocks, int32_t pos,
                    int32_t kv_head);
/* gs_kv_store of positions [pos, pos + n) of all kv heads; row i begins at k + i * ld, v + i * ld.
 */
void gs_kv_store_rows(const gs_kv_layout *l, int32_t layer, const uint32_t *blocks, int32_t pos,
                      int32_t n, const float *k, const float *v, int64_t ld);
/* Copies the first n_tokens positions of block src to block dst, all layers. The positions after
 * them become undefined. */
void gs_kv_copy(const gs_kv_layout *l, uint32_t dst, uint32_t src, int32_t n_tokens);

/* All pages of a block to gs_kv_block_bytes() bytes elsewhere, and back: layer by layer as they
 * lie.
 */
void gs_kv_read_block(const gs_kv_layout *l, uint32_t block, uint8_t *out);
void gs_kv_write_block(const gs_kv_layout *l, uint32_t block, const uint8_t *in);

/*
 * One work item: the queries of one kv head's group (n_group query heads) for n_q consecutive
 * positions of one sequence, the first at position pos. q row of query (t, g):
 * q + t * ldq + g * head_dim; out likewise with ldo. Causal: the query at position p sees
 * [max(0, p - window + 1), p]; window <= 0: no limit. With n_keys > 0 every query sees the
 * positions [0, n_keys) instead. scale multiplies the dot products; with softcap > 0 a score s then
 * becomes softcap * tanh(s / softcap).
 *
 * Keys are taken in segments of gs_attn_segment() positions, each with a softmax of its own, and
 * the segments are merged in order. So an item may be cut: with part set, only the segments
 * [seg0, seg1) are computed and left in part, gs_attn_part_floats() for each query row (t, g) of
 * each segment from seg0 on, [segment][row]; gs_attn_merge then gives the bits of the uncut item.
 *
 * next: the item that this thread computes after this one, or NULL; its first pages are fetched.
 * scratch: gs_attn_scratch_bytes() per thread, 64-byte aligned.
 */
typedef struct gs_attn_item {
    const float *q;
    float *out;
    int64_t ldq, ldo;
    const uint32_t *blocks;
    int32_t layer, kv_head;
    int32_t n_group;
    int32_t pos, n_q;
    int32_t window;
    int32_t n_keys;
    float scale, softcap;
    float *part;
    int32_t seg0, seg1;
    const struct gs_attn_item *next;
} gs_attn_item;

size_t gs_attn_scratch_bytes(const gs_kv_layout *l);
void gs_attn(const gs_kv_layout *l, const gs_attn_item *it, void *scratch);

int32_t gs_attn_segment(const gs_kv_layout *l);    /* positions of a segment; of whole blocks */
size_t gs_attn_part_floats(const gs_kv_layout *l); /* of one query row and segment */
/* out[head_dim] of one query row from n_seg segments that lie ld floats apart. */
void gs_attn_merge(const gs_kv_layout *l, float *out, const float *part, size_t ld, int32_t n_seg);

#endif
