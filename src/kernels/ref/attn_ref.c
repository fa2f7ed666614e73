/* Paged attention, scalar: one query row at a time with the online softmax of Milakov and
 * Gimelshein (2018). The truth for the vector kernels, and the kernel of last resort. */
#include <math.h>

#include "kernels/attn_impl.h"

/* One query head at position p; acc[head_dim] is scratch. */
static void attn_row(const gs_kv_layout *l, const gs_attn_item *it, int32_t p, const float *q,
                     float *out, float *acc) {
    size_t hd = (size_t)l->head_dim, bt = (size_t)l->block_tokens;
    int32_t first = it->window > 0 && p >= it->window ? p - it->window + 1 : 0;
    float max = -INFINITY, sum = 0;
    memset(acc, 0, hd * sizeof *acc);
    for (int32_t t = first; t <= p; t++) {
        size_t slot = (size_t)t % bt;
        const uint16_t *k =
            (const uint16_t *)gs_kv_page(l, it->layer, it->blocks[(size_t)t / bt], it->kv_head);
        const uint16_t *v = k + hd * bt + slot * hd;
        float s = 0;
        for (size_t d = 0; d < hd; d++)
            s += q[d] * gs_attn_half_to_float(k[d * bt + slot]);
        s *= it->scale;
        float new_max = s > max ? s : max;
        float old = expf(max - new_max), w = expf(s - new_max);
        sum = sum * old + w;
        for (size_t d = 0; d < hd; d++)
            acc[d] = acc[d] * old + w * gs_attn_half_to_float(v[d]);
        max = new_max;
    }
    for (size_t d = 0; d < hd; d++)
        out[d] = acc[d] / sum;
}

static void attn_ref(const gs_kv_layout *l, const gs_attn_item *it, void *scratch) {
    for (int32_t t = 0; t < it->n_q; t++)
        for (int32_t g = 0; g < it->n_group; g++) {
            int64_t head = (int64_t)g * l->head_dim;
            attn_row(l, it, it->pos + t, it->q + t * it->ldq + head, it->out + t * it->ldo + head,
                     scratch);
        }
}

static void store_f16_ref(uint16_t *out, size_t stride, const float *x, int32_t n) {
    for (size_t i = 0; i < (size_t)n; i++)
        out[i * stride] = gs_attn_half_from_float(x[i]);
}

static void exp2_ref(float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        x[i] = exp2f(x[i]);
}

const gs_attn_ops gs_attn_ops_ref = {attn_ref, store_f16_ref, exp2_ref};
