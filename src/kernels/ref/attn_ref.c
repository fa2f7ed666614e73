/* Paged attention, scalar: one query row at a time with the online softmax of Milakov and
 * Gimelshein (2018). The truth for the vector kernels, and the kernel of last resort. */
#include <math.h>

#include "kernels/attn_impl.h"

/* Keys and values of one position, as floats. */
static void load_pair(const gs_kv_layout *l, const uint8_t *page, size_t t, float *k, float *v) {
    size_t hd = (size_t)l->head_dim, bt = (size_t)l->block_tokens;
    if (l->type == GS_KV_Q8) {
        uint16_t ks;
        int16_t vs;
        memcpy(&ks, page + hd * bt + 2 * t, sizeof ks);
        memcpy(&vs, page + l->page_bytes + hd * bt + 2 * t, sizeof vs);
        float scale = gs_bf16_to_f32(ks), vscale = exp2f((float)vs / GS_KV_Q8_V_STEPS);
        const int8_t *codes = (const int8_t *)page + l->page_bytes + t / 4 * 4 * hd + t % 4;
        for (size_t d = 0; d < hd; d++) {
            size_t at = d / 4 * 4 * bt + t * 4 + d % 4;
            k[d] = scale * (float)(page[at] - 128);
            v[d] = vscale * (float)codes[d * 4];
        }
        return;
    }
    const uint16_t *kp = (const uint16_t *)(const void *)page;
    const uint16_t *vp = (const uint16_t *)(const void *)(page + l->page_bytes);
    for (size_t d = 0; d < hd; d++) {
        if (l->type == GS_KV_F16) {
            k[d] = gs_f16_to_f32(kp[d * bt + t]);
            v[d] = gs_f16_to_f32(vp[t * hd + d]);
        } else {
            k[d] = gs_bf16_to_f32(kp[d / 2 * 2 * bt + t * 2 + d % 2]);
            v[d] = gs_bf16_to_f32(vp[t / 2 * 2 * hd + d * 2 + t % 2]);
        }
    }
}

/* Positions [first, end) of one query head: part[head_dim] unnormalised, then maximum and sum. The
 * maximum is that of natural exponents here and of powers of two in the vector kernels; each merges
 * its own. */
static void attn_segment(const gs_kv_layout *l, const gs_attn_item *it, const float *q,
                         int32_t first, int32_t end, float *part) {
    size_t hd = (size_t)l->head_dim, bt = (size_t)l->block_tokens;
    float k[GS_ATTN_MAX_HEAD], v[GS_ATTN_MAX_HEAD], max = -INFINITY, sum = 0;
    memset(part, 0, hd * sizeof *part);
    for (int32_t t = first; t < end; t++) {
        load_pair(l, gs_kv_page(l, it->layer, it->blocks[(size_t)t / bt], it->kv_head),
                  (size_t)t % bt, k, v);
        float s = 0;
        for (size_t d = 0; d < hd; d++)
            s += q[d] * k[d];
        s *= it->scale;
        if (it->softcap > 0)
            s = it->softcap * tanhf(s / it->softcap);
        float new_max = s > max ? s : max;
        float old = expf(max - new_max), w = expf(s - new_max);
        sum = sum * old + w;
        for (size_t d = 0; d < hd; d++)
            part[d] = part[d] * old + w * v[d];
        max = new_max;
    }
    part[hd] = max;
    part[hd + 1] = sum;
}

/* o joins the total, both with maximum and sum behind them. */
static void join(float *total, const float *o, size_t hd) {
    float max = total[hd] > o[hd] ? total[hd] : o[hd];
    if (max == -INFINITY)
        return;
    float a = expf(total[hd] - max), b = expf(o[hd] - max);
    for (size_t d = 0; d < hd; d++)
        total[d] = a * total[d] + b * o[d];
    total[hd] = max;
    total[hd + 1] = a * total[hd + 1] + b * o[hd + 1];
}

static void merge_ref(int32_t head_dim, float *out, const float *part, size_t ld, int32_t n_seg) {
    size_t hd = (size_t)head_dim;
    float total[GS_ATTN_MAX_HEAD + GS_ATTN_PART_EXTRA];
    memcpy(total, part, (hd + 2) * sizeof *total);
    for (int32_t s = 1; s < n_seg; s++)
        join(total, part + (size_t)s * ld, hd);
    for (size_t d = 0; d < hd; d++)
        out[d] = total[d] / total[hd + 1];
}

/* Query (t, g), all of it or its part of the item. */
static void attn_row(const gs_kv_layout *l, const gs_attn_item *it, int32_t t, int32_t g,
                     float *scratch) {
    const float *q = it->q + t * it->ldq + (int64_t)g * l->head_dim;
    int32_t seg = gs_attn_segment(l), p = it->n_keys > 0 ? it->n_keys - 1 : it->pos + t;
    int32_t begin = it->window > 0 && p >= it->window ? p - it->window + 1 : 0;
    int32_t s0 = it->part ? it->seg0 : 0, s1 = it->part ? it->seg1 : p / seg + 1;
    size_t ld = gs_attn_part_floats(l), hd = (size_t)l->head_dim;
    for (int32_t s = s0; s < s1; s++) {
        int32_t first = s * seg > begin ? s * seg : begin;
        int32_t end = (s + 1) * seg < p + 1 ? (s + 1) * seg : p + 1;
        size_t row =
            (size_t)(s - s0) * (size_t)(it->n_q * it->n_group) + (size_t)(t * it->n_group + g);
        float *part = it->part ? it->part + row * ld : s > s0 ? scratch + ld : scratch;
        attn_segment(l, it, q, first, end, part);
        if (!it->part && s > s0)
            join(scratch, part, hd);
    }
    if (!it->part)
        merge_ref(l->head_dim, it->out + t * it->ldo + (int64_t)g * l->head_dim, scratch, ld, 1);
}

static void attn_ref(const gs_kv_layout *l, const gs_attn_item *it, void *scratch) {
    for (int32_t t = 0; t < it->n_q; t++)
        for (int32_t g = 0; g < it->n_group; g++)
            attn_row(l, it, t, g, scratch);
}

static void to_f16_ref(uint16_t *out, const float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        out[i] = gs_attn_half_from_float(x[i]);
}

static void to_bf16_ref(uint16_t *out, const float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        out[i] = gs_bf16_from_f32(x[i]);
}

static float max_abs_ref(const float *x, int32_t n) {
    float max = 0;
    for (int32_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(x[i]));
    return max;
}

static void to_s8_ref(int8_t *out, const float *x, float inv, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        float v = rintf(x[i] * inv);
        out[i] = v >= -127 ? v <= 127 ? (int8_t)v : 127 : -127;
    }
}

static void exp2_ref(float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        x[i] = exp2f(x[i]);
}

const gs_attn_ops gs_attn_ops_ref = {
    .attn = {attn_ref, attn_ref, attn_ref},
    .merge = merge_ref,
    .to_f16 = to_f16_ref,
    .to_bf16 = to_bf16_ref,
    .max_abs = max_abs_ref,
    .to_s8 = to_s8_ref,
    .exp2 = exp2_ref,
};
