/*
 * Attention of a step: who computes what, and doing it. Two ways to cut the work; either way the
 * bits of a row are the same (kernels/attn.h), so they depend neither on the number of threads nor
 * on the company.
 *
 * Whole: the line (span 0 head 0, span 0 head 1, ...) is cut into one stretch per thread with
 * nearly equal cost; neighbouring heads of one kv head go over the pages together.
 *
 * Parted (decode steps only): units are segments of some hundred positions, in the order (kv head,
 * segment, span), their results are merged after a barrier of its own. It is for
 *   - few sequences with long contexts, whose heads would not balance ("flash decoding");
 *   - sequences that begin with the same KV blocks, such as one assistant's instructions for the
 *     whole family: a shared segment is small enough to stay in the L2 cache while all of them pass
 *     over it, so it comes from memory once per step (cf. Hydragen, Juravsky et al., 2024).
 */
#include "base/err.h"
#include "engine/native_impl.h"

static int32_t window_of(const gs_native *b, int32_t layer) {
    return b->windows[b->layer_window[layer]];
}

/* ---- Planning: whole ---------------------------------------------------------------------------
 */

/* Loading queries, storing outputs and the last, partly filled page, in positions. */
#define UNIT_COST 32

static int64_t span_cost(const native_span *s, int32_t window) {
    int64_t seen = s->pos + (s->n_q + 1) / 2;
    if (window > 0 && seen > window)
        seen = window;
    return s->n_q * (seen + UNIT_COST);
}

static void split_whole(gs_native *b, int64_t *split, int32_t window) {
    int64_t total = 0, before = 0;
    int32_t n_heads = b->m->hp.n_heads;
    for (int32_t s = 0; s < b->n_spans; s++)
        total += span_cost(&b->spans[s], window) * n_heads;
    int t = 1;
    split[0] = 0;
    for (int32_t s = 0; s < b->n_spans; s++) {
        int64_t cost = span_cost(&b->spans[s], window);
        for (; t < b->n_active; t++) {
            int64_t target = total / b->n_active * t + total % b->n_active * t / b->n_active;
            int64_t head = (target - before + cost / 2) / cost;
            if (head >= n_heads)
                break;
            split[t] = (int64_t)s * n_heads + (head > 0 ? head : 0);
        }
        before += cost * n_heads;
    }
    for (; t <= b->n_active; t++)
        split[t] = (int64_t)b->n_spans * n_heads;
}

/* ---- Planning: parted --------------------------------------------------------------------------
 */

/* The segments that the one position of a span sees. */
static void segments_of(const gs_native *b, const native_span *s, int32_t window, int32_t *seg0,
                        int32_t *seg1) {
    int32_t size = gs_attn_segment(&b->kv);
    *seg0 = window > 0 && s->pos >= window ? (s->pos - window + 1) / size : 0;
    *seg1 = s->pos / size + 1;
}

/* In positions; 0: the span does not see the segment. */
static int64_t part_cost(const gs_native *b, const native_span *s, int32_t seg, int32_t window) {
    int32_t size = gs_attn_segment(&b->kv), seg0, seg1;
    segments_of(b, s, window, &seg0, &seg1);
    if (seg < seg0 || seg >= seg1)
        return 0;
    return (seg + 1 < seg1 ? size : s->pos % size + 1) + UNIT_COST;
}

/* split[t] counts places (kv head, segment, span), also those where a span sees nothing. */
static void split_parts(gs_native *b, int64_t *split, int32_t window) {
    int32_t n_places = b->n_segs * b->n_spans, n_kv = b->m->hp.n_kv_heads;
    int64_t per_head = 0;
    for (int32_t i = 0; i < n_places; i++)
        per_head += part_cost(b, &b->spans[i % b->n_spans], i / b->n_spans, window);
    GS_ASSERT(per_head > 0); /* a span sees at least itself */
    split[0] = 0;
    for (int t = 1; t < b->n_active; t++) {
        int64_t target = per_head * n_kv * t / b->n_active, before = 0;
        int32_t head = (int32_t)(target / per_head), i = 0;
        for (target %= per_head; i < n_places; i++) {
            int64_t cost = part_cost(b, &b->spans[i % b->n_spans], i / b->n_spans, window);
            if (before + cost / 2 >= target)
                break;
            before += cost;
        }
        split[t] = (int64_t)head * n_places + i;
    }
    split[b->n_active] = (int64_t)n_kv * n_places;
}

/* Whether two spans hold the same block at the end of their first segment; all before it are the
 * same then, because blocks are only shared as prefixes. */
static bool share_a_segment(const gs_native *b) {
    int32_t size = gs_attn_segment(&b->kv), at = size / b->cfg.block_tokens - 1;
    for (int32_t i = 1; i < b->n_spans; i++) {
        if (b->spans[i].pos < size)
            continue;
        const uint32_t *mine = b->batch->items[b->spans[i].item].blocks;
        for (int32_t j = 0; j < i; j++)
            if (b->spans[j].pos >= size && b->batch->items[b->spans[j].item].blocks[at] == mine[at])
                return true;
    }
    return false;
}

/* Gives each span its place among the parts. False: whole items are better, or there is no room. */
static bool plan_parts(gs_native *b) {
    int64_t n = 0;
    b->n_segs = 0;
    for (int32_t i = 0; i < b->n_spans; i++) {
        native_span *s = &b->spans[i];
        int32_t n_segs = s->pos / gs_attn_segment(&b->kv) + 1;
        if (s->n_q > 1)
            return false;
        s->part = (int32_t)n;
        n += n_segs;
        if (n * b->m->hp.n_heads > b->n_part_rows)
            return false;
        b->n_segs = n_segs > b->n_segs ? n_segs : b->n_segs;
    }
    bool few = b->n_spans * b->m->hp.n_kv_heads < 2 * b->n_active;
    return b->n_segs > 1 && (few || share_a_segment(b));
}

void gs_native_attn_plan(gs_native *b) {
    b->parted = plan_parts(b);
    for (int k = 0; k < b->n_windows; k++) {
        int64_t *split = b->split + (int64_t)k * (b->n_threads + 1);
        if (b->parted)
            split_parts(b, split, b->windows[k]);
        else
            split_whole(b, split, b->windows[k]);
    }
}

/* ---- Computing ---------------------------------------------------------------------------------
 */

/* Segment seg of the query at span s, query head h. */
static float *part_row(const gs_native *b, const native_span *s, int32_t seg, int32_t h) {
    int64_t row = (int64_t)(s->part + seg) * b->m->hp.n_heads + h;
    return b->parts + row * (int64_t)gs_attn_part_floats(&b->kv);
}

/* One thread's way along its stretch of the line. */
typedef struct unit_walk {
    const gs_native *b;
    int32_t layer, window;
    int64_t at, end;
} unit_walk;

static gs_attn_item item_of(const unit_walk *w, const native_span *s, int32_t head, int32_t n) {
    const gs_native *b = w->b;
    const gs_hparams *hp = &b->m->hp;
    int32_t width = hp->n_heads * hp->head_dim;
    int64_t at = (int64_t)s->row * width + (int64_t)head * hp->head_dim;
    return (gs_attn_item){.q = b->q + at,
                          .out = b->attn + at,
                          .ldq = width,
                          .ldo = width,
                          .blocks = b->batch->items[s->item].blocks,
                          .layer = w->layer,
                          .kv_head = head / (hp->n_heads / hp->n_kv_heads),
                          .n_group = n,
                          .pos = s->pos,
                          .n_q = s->n_q,
                          .window = w->window,
                          .scale = hp->attn_scale,
                          .softcap = hp->attn_softcap};
}

static bool next_whole(unit_walk *w, gs_attn_item *out) {
    const gs_hparams *hp = &w->b->m->hp;
    if (w->at >= w->end)
        return false;
    int32_t group = hp->n_heads / hp->n_kv_heads, head = (int32_t)(w->at % hp->n_heads);
    int32_t n = group - head % group;
    if (n > w->end - w->at)
        n = (int32_t)(w->end - w->at);
    *out = item_of(w, &w->b->spans[w->at / hp->n_heads], head, n);
    w->at += n;
    return true;
}

static bool next_part(unit_walk *w, gs_attn_item *out) {
    const gs_native *b = w->b;
    int32_t group = b->m->hp.n_heads / b->m->hp.n_kv_heads, n_places = b->n_segs * b->n_spans;
    while (w->at < w->end) {
        int32_t head = (int32_t)(w->at / n_places) * group, place = (int32_t)(w->at % n_places);
        const native_span *s = &b->spans[place % b->n_spans];
        int32_t seg = place / b->n_spans, seg0, seg1;
        w->at++;
        segments_of(b, s, w->window, &seg0, &seg1);
        if (seg < seg0 || seg >= seg1)
            continue;
        *out = item_of(w, s, head, group);
        out->part = part_row(b, s, seg, head);
        out->seg0 = seg;
        out->seg1 = seg + 1;
        return true;
    }
    return false;
}

void gs_native_attn(gs_native *b, int32_t layer, int tid) {
    const int64_t *split = b->split + (int64_t)b->layer_window[layer] * (b->n_threads + 1);
    unit_walk w = {b, layer, window_of(b, layer), split[tid], split[tid + 1]};
    bool (*next)(unit_walk *, gs_attn_item *) = b->parted ? next_part : next_whole;
    gs_attn_item items[2]; /* the one behind is known, so that its first pages can be fetched */
    int now = 0;
    bool more = next(&w, &items[now]);
    while (more) {
        more = next(&w, &items[!now]);
        items[now].next = more ? &items[!now] : NULL;
        gs_attn(&b->kv, &items[now], b->scratch[tid].attn);
        now = !now;
    }
}

void gs_native_attn_merge(gs_native *b, int32_t layer, int tid) {
    const gs_hparams *hp = &b->m->hp;
    size_t ld = (size_t)hp->n_heads * gs_attn_part_floats(&b->kv);
    int u0, u1;
    gs_share(b->n_spans * hp->n_heads, tid, b->n_active, &u0, &u1);
    for (int u = u0; u < u1; u++) {
        const native_span *s = &b->spans[u / hp->n_heads];
        int32_t head = u % hp->n_heads, seg0, seg1;
        segments_of(b, s, window_of(b, layer), &seg0, &seg1);
        float *out = b->attn + ((int64_t)s->row * hp->n_heads + head) * hp->head_dim;
        gs_attn_merge(&b->kv, out, part_row(b, s, seg0, head), ld, seg1 - seg0);
    }
}
