/* Paged attention: KV layout, stores and copies, choice of the kernel. See kernels/attn.h. */
#include "kernels/attn.h"

#include "base/checked.h"
#include "base/err.h"
#include "kernels/attn_impl.h"
#include "kernels/kernels.h"

int gs_kv_layout_init(gs_kv_layout *l, int32_t n_layers, int32_t n_kv_heads, int32_t head_dim,
                      int32_t block_tokens, uint32_t n_blocks) {
    if (n_layers < 1 || n_kv_heads < 1 || n_blocks < 1 || head_dim < 16 || head_dim % 16 != 0 ||
        head_dim > GS_ATTN_MAX_HEAD || block_tokens < 16 || block_tokens % 16 != 0 ||
        block_tokens > 1024)
        return GS_ERR_INVALID;
    size_t page = (size_t)head_dim * (size_t)block_tokens * sizeof(uint16_t);
    size_t total = page;
    if (!gs_mul_size(total, 2, &total) || !gs_mul_size(total, (size_t)n_kv_heads, &total) ||
        !gs_mul_size(total, (size_t)n_layers, &total) || !gs_mul_size(total, n_blocks, &total))
        return GS_ERR_TOO_LARGE;
    *l = (gs_kv_layout){.n_layers = n_layers,
                        .n_kv_heads = n_kv_heads,
                        .head_dim = head_dim,
                        .block_tokens = block_tokens,
                        .n_blocks = n_blocks,
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
    case GS_ISA_AVX512:
    case GS_ISA_AVX512VNNI:
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

void gs_kv_store(const gs_kv_layout *l, int32_t layer, const uint32_t *blocks, int32_t pos,
                 int32_t kv_head, const float *k, const float *v) {
    const gs_attn_ops *ops = gs_attn_ops_get();
    size_t bt = (size_t)l->block_tokens, t = (size_t)pos % bt, hd = (size_t)l->head_dim;
    uint8_t *page = gs_kv_page(l, layer, blocks[(size_t)pos / bt], kv_head);
    if (k)
        ops->store_f16((uint16_t *)page + t, bt, k, l->head_dim);
    if (v)
        ops->store_f16((uint16_t *)(page + l->page_bytes) + t * hd, 1, v, l->head_dim);
}

void gs_kv_copy(const gs_kv_layout *l, uint32_t dst, uint32_t src, int32_t n_tokens) {
    size_t bt = (size_t)l->block_tokens, hd = (size_t)l->head_dim, n = (size_t)n_tokens;
    GS_ASSERT(n_tokens >= 0 && n <= bt && dst < l->n_blocks && src < l->n_blocks);
    if (dst == src || n == 0)
        return;
    for (int32_t layer = 0; layer < l->n_layers; layer++)
        for (int32_t h = 0; h < l->n_kv_heads; h++) {
            uint16_t *to = (uint16_t *)gs_kv_page(l, layer, dst, h);
            const uint16_t *from = (const uint16_t *)gs_kv_page(l, layer, src, h);
            for (size_t d = 0; d < hd; d++)
                memcpy(to + d * bt, from + d * bt, n * sizeof *to);
            memcpy(to + hd * bt, from + hd * bt, n * hd * sizeof *to);
        }
}

size_t gs_attn_scratch_bytes(const gs_kv_layout *l, int32_t n_group) {
    (void)n_group; /* rows are cut into tiles whatever the group's size */
    size_t row = (size_t)l->block_tokens + 2 * (size_t)l->head_dim;
    return GS_ATTN_TILE_ROWS * row * sizeof(float);
}

void gs_attn(const gs_kv_layout *l, const gs_attn_item *it, void *scratch) {
    gs_attn_ops_get()->attn(l, it, scratch);
}
