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
 *     K page: [head_dim][block_tokens]   (transposed: one query dot products a lane of tokens)
 *     V page: [block_tokens][head_dim]
 *
 * Types: f16 by default. Functions are pure compute; disjoint work items may run on any threads.
 */
#ifndef GS_KERNELS_ATTN_H
#define GS_KERNELS_ATTN_H

#include <stddef.h>
#include <stdint.h>

typedef struct gs_kv_layout {
    int32_t n_layers, n_kv_heads;
    int32_t head_dim;     /* of K and V; a multiple of 16, <= 256 */
    int32_t block_tokens; /* a multiple of 16 */
    uint32_t n_blocks;
    size_t page_bytes; /* set by gs_kv_layout_init */
    size_t total_bytes;
    uint8_t *base; /* total_bytes, 64-byte aligned; gs_pages_alloc */
} gs_kv_layout;

int gs_kv_layout_init(gs_kv_layout *l, int32_t n_layers, int32_t n_kv_heads, int32_t head_dim,
                      int32_t block_tokens, uint32_t n_blocks);
size_t gs_kv_block_bytes(const gs_kv_layout *l); /* all layers, heads, K and V of one block */

/* Stores k[head_dim] and v[head_dim] (floats, K already rotated) of one kv head at position pos
 * of the sequence whose block table is given. k or v may be NULL: that half is left alone (the
 * threads that computed them may differ). Values beyond f16's range saturate. */
void gs_kv_store(const gs_kv_layout *l, int32_t layer, const uint32_t *blocks, int32_t pos,
                 int32_t kv_head, const float *k, const float *v);
/* Copies the first n_tokens positions of block src to block dst, all layers. */
void gs_kv_copy(const gs_kv_layout *l, uint32_t dst, uint32_t src, int32_t n_tokens);

/*
 * One work item: the queries of one kv head's group (n_group query heads) for n_q consecutive
 * positions of one sequence, the first at position pos. q row of query (t, g):
 * q + t * ldq + g * head_dim; out likewise with ldo. Causal: the query at position p sees
 * [max(0, p - window + 1), p]; window <= 0: no limit. scale multiplies the dot products.
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
    float scale;
} gs_attn_item;

size_t gs_attn_scratch_bytes(const gs_kv_layout *l, int32_t n_group);
void gs_attn(const gs_kv_layout *l, const gs_attn_item *it, void *scratch);

#endif
