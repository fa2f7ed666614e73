/*
 * The forward pass of one step of an encoder, SPMD: every thread runs gs_encoder_step. A thread
 * takes its own sequences, group after group, through a layer:
 *
 *     rows    QKV product, rotation; K and V to the pages
 *     units   attention                                     q, pages -> attn
 *     rows    output product, += x, LayerNorm,
 *             feed-forward, += x, LayerNorm
 *
 * with one barrier at the layer's end. Where a step has too few sequences for that, all threads
 * share one group, by rows and by attention units, with a barrier after each line. Rows go through
 * their products a block at a time whose activations stay in L2.
 *
 * Nothing here depends on which rows are in the batch together.
 */
#include <math.h>
#include <string.h>

#include "engine/encoder_impl.h"

/* One thread's view of the step. */
typedef struct lane {
    gs_encoder *b;
    const gs_model *m;
    encoder_area *a;
    encoder_scratch *s;
    int tid, n;
    /* Its part of the group at hand: rows, attention units. */
    int r0, r1;
    int64_t u0, u1;
    /* Row r has its queries and its attention in row r + row_shift of q and attn, its keys and
     * values page_shift pages after where they were planned: groups take turns in one place. */
    int32_t row_shift, page_shift;
} lane;

static void sync_all(const lane *t) {
    gs_pool_barrier(t->b->cfg.pool, t->tid);
}

static float *row_of(float *base, int32_t width, int32_t row) {
    return base + (int64_t)row * width;
}

static void add_row(const gs_mat *m, int32_t r, float *x, float *tmp) {
    gs_mat_row(m, r, tmp);
    for (int32_t i = 0; i < m->k; i++)
        x[i] += tmp[i];
}

/* The sum of a row's embeddings, normalised; its rotary angles. */
static void embed_rows(const lane *t) {
    const gs_hparams *hp = &t->m->hp;
    float *tmp = t->s->qkv;
    for (int r = t->r0; r < t->r1; r++) {
        const encoder_row *row = &t->a->rows[r];
        float *x = row_of(t->a->x, hp->n_embd, r);
        gs_mat_row(&t->m->tok_embd, row->token, x);
        if (hp->n_types > 0)
            add_row(&t->m->token_types, row->type, x, tmp);
        if (!t->b->freq)
            add_row(&t->m->positions, row->pos, x, tmp);
        gs_layernorm(x, x, t->m->embd_norm, t->m->embd_norm_bias, hp->n_embd, hp->norm_eps);
        for (int32_t i = 0; t->b->freq && i < hp->n_rot / 2; i++) {
            double angle = row->pos * t->b->freq[i];
            t->a->cos_tab[(int64_t)r * (hp->n_rot / 2) + i] = (float)cos(angle);
            t->a->sin_tab[(int64_t)r * (hp->n_rot / 2) + i] = (float)sin(angle);
        }
    }
}

/* Block i of the thread's rows: whole tiles but for the last one. false: there is none. */
static bool block_of(const lane *t, int i, int32_t *row, int32_t *n) {
    *row = t->r0 + i * GS_ENCODER_ROWS;
    *n = t->r1 - *row < GS_ENCODER_ROWS ? t->r1 - *row : GS_ENCODER_ROWS;
    return *n > 0;
}

static void gemm(const gs_mat *w, const gs_act *act, float *y, int64_t ldy, const float *bias,
                 int mode) {
    gs_gemm(w, act, y, ldy, bias, 0, w->n_panels, mode);
}

static void qkv_product(const gs_encoder_layer *ly, const gs_act *act, float *y) {
    const int32_t n = act->k;
    if (ly->wqkv.data) {
        gemm(&ly->wqkv, act, y, 3 * n, ly->bqkv, GS_GEMM_STORE);
        return;
    }
    gemm(&ly->wq, act, y, 3 * n, ly->bq, GS_GEMM_STORE);
    gemm(&ly->wk, act, y + n, 3 * n, ly->bk, GS_GEMM_STORE);
    gemm(&ly->wv, act, y + 2 * n, 3 * n, ly->bv, GS_GEMM_STORE);
}

/* Queries, keys and values of rows [row, row + n), [n][3 * n_embd], to where attention reads them:
 * keys and values sequence by sequence. */
static void place_rows(const lane *t, int32_t row, int32_t n, float *qkv) {
    gs_encoder *b = t->b;
    const gs_hparams *hp = &t->m->hp;
    const int32_t ne = hp->n_embd;
    for (int32_t r = 0; r < n; r++) {
        float *q = qkv + (int64_t)r * 3 * ne;
        const int64_t angle = (int64_t)(row + r) * (hp->n_rot / 2);
        for (int32_t h = 0; b->freq && h < 2 * hp->n_heads; h++) /* queries and keys */
            gs_rope(q + h * hp->head_dim, t->a->cos_tab + angle, t->a->sin_tab + angle, hp->n_rot,
                    hp->rope_neox);
        memcpy(row_of(b->q, ne, row + r + t->row_shift), q, (size_t)ne * sizeof *q);
    }
    for (int32_t r = 0, end; r < n; r = end) {
        const encoder_row *first = &t->a->rows[row + r];
        const float *k = qkv + (int64_t)r * 3 * ne + ne;
        for (end = r + 1; end < n && t->a->rows[row + end].pos > 0;)
            end++;
        gs_kv_store_rows(&b->kv, 0, b->pages + first->first_page + t->page_shift, first->pos,
                         end - r, k, k + ne, (int64_t)3 * ne);
    }
}

static void went_on(const lane *t) {
    atomic_fetch_add_explicit(&t->b->progress, 1, memory_order_relaxed);
}

static void qkv_phase(const lane *t, const gs_encoder_layer *ly) {
    const int32_t n_embd = t->m->hp.n_embd;
    const int need = gs_act_need(ly->wqkv.data ? ly->wqkv.type : ly->wq.type) |
                     (ly->wqkv.data ? 0 : gs_act_need(ly->wk.type) | gs_act_need(ly->wv.type));
    int32_t row, n;
    for (int i = 0; block_of(t, i, &row, &n); i++) {
        gs_act act = {n, n_embd, t->s->act_embd};
        gs_act_quant(&act, row_of(t->a->x, n_embd, row), n_embd, 0, n, need);
        qkv_product(ly, &act, t->s->qkv);
        place_rows(t, row, n, t->s->qkv);
        went_on(t);
    }
}

static void attn_phase(const lane *t) {
    gs_encoder *b = t->b;
    const gs_hparams *hp = &t->m->hp;
    for (int64_t u = t->u0; u < t->u1; u++) {
        const encoder_span *s = &t->a->spans[u / hp->n_heads];
        int32_t head = (int32_t)(u % hp->n_heads);
        int64_t at = (int64_t)(s->row + t->row_shift) * hp->n_embd + (int64_t)head * hp->head_dim;
        gs_attn_item item = {.q = b->q + at,
                             .out = b->attn + at,
                             .ldq = hp->n_embd,
                             .ldo = hp->n_embd,
                             .blocks = b->pages + s->first_page + t->page_shift,
                             .kv_head = head,
                             .n_group = 1,
                             .n_q = s->n_q,
                             .n_keys = s->n_keys,
                             .scale = hp->attn_scale};
        gs_attn(&b->kv, &item, t->s->attn);
        went_on(t);
    }
}

/* x = norm(x), and its activations for the next product. */
static void norm_rows(const lane *t, float *x, int32_t n, const float *weight, const float *bias,
                      gs_act *act, int need) {
    const gs_hparams *hp = &t->m->hp;
    for (int32_t r = 0; r < n; r++) {
        float *row = row_of(x, hp->n_embd, r);
        gs_layernorm(row, row, weight, bias, hp->n_embd, hp->norm_eps);
        if (act)
            gs_act_quant(act, x, hp->n_embd, r, r + 1, need);
    }
}

/* ff = act(up), or act(gate) * up; then its activations, a row at a time. */
static void activate(const lane *t, gs_act *act, int32_t n, int need) {
    const gs_hparams *hp = &t->m->hp;
    for (int32_t r = 0; r < n; r++) {
        float *up = row_of(t->s->ff, hp->n_ff, r);
        if (!t->s->gate)
            gs_gelu(up, hp->n_ff);
        else if (hp->ffn_gelu)
            gs_gelu_mul(up, row_of(t->s->gate, hp->n_ff, r), up, hp->n_ff);
        else
            gs_silu_mul(up, row_of(t->s->gate, hp->n_ff, r), up, hp->n_ff);
        gs_act_quant(act, t->s->ff, hp->n_ff, r, r + 1, need);
    }
}

static void rows_phase(const lane *t, const gs_encoder_layer *ly) {
    const gs_hparams *hp = &t->m->hp;
    const int for_up = gs_act_need(ly->w_up.type) | (t->s->gate ? gs_act_need(ly->w_gate.type) : 0);
    int32_t row, n;
    for (int i = 0; block_of(t, i, &row, &n); i++) {
        float *x = row_of(t->a->x, hp->n_embd, row);
        gs_act embd = {n, hp->n_embd, t->s->act_embd}, ff = {n, hp->n_ff, t->s->act_ff};
        gs_act_quant(&embd, row_of(t->b->attn, hp->n_embd, row + t->row_shift), hp->n_embd, 0, n,
                     gs_act_need(ly->wo.type));
        gemm(&ly->wo, &embd, x, hp->n_embd, ly->bo, GS_GEMM_ADD);
        norm_rows(t, x, n, ly->attn_norm, ly->attn_norm_bias, &embd, for_up);
        if (t->s->gate)
            gemm(&ly->w_gate, &embd, t->s->gate, hp->n_ff, NULL, GS_GEMM_STORE);
        gemm(&ly->w_up, &embd, t->s->ff, hp->n_ff, ly->b_up, GS_GEMM_STORE);
        activate(t, &ff, n, gs_act_need(ly->w_down.type));
        gemm(&ly->w_down, &ff, x, hp->n_embd, ly->b_down, GS_GEMM_ADD);
        norm_rows(t, x, n, ly->out_norm, ly->out_norm_bias, NULL, 0);
        went_on(t);
    }
}

/* Safepoint: the engine thread asks while the others finish the layer, and its answer reaches them
 * through the layer's last barrier. */
static void decide(const lane *t) {
    if (t->tid == 0)
        t->b->give_way = gs_batch_yields(t->b->batch);
}

/* y = W x, one row on this thread. */
static void one_row(const lane *t, const gs_mat *w, const float *bias, const float *x, float *y) {
    gs_act act = {1, w->k, t->s->act_embd};
    gs_act_quant(&act, x, w->k, 0, 1, gs_act_need(w->type));
    gemm(w, &act, y, w->n, bias, GS_GEMM_STORE);
}

static float score(const lane *t, const float *state) {
    const gs_model *m = t->m;
    float *hidden = t->s->qkv, result;
    if (m->rank_in.data) {
        one_row(t, &m->rank_in, m->rank_in_bias, state, hidden);
        for (int32_t i = 0; i < m->hp.n_embd; i++)
            hidden[i] = tanhf(hidden[i]);
        state = hidden;
    }
    one_row(t, &m->rank_out, m->rank_out_bias, state, &result);
    return result;
}

/* Dealt out by item. */
static void pool_items(const lane *t) {
    const gs_batch *batch = t->b->batch;
    const int32_t n_embd = t->m->hp.n_embd;
    for (int32_t i = 0; i < batch->n_items; i++) {
        const gs_batch_item *it = &batch->items[i];
        const float *states = row_of(t->a->x, n_embd, t->a->item_row[i]);
        if (!it->embedding || i % t->n != t->tid)
            continue;
        if (t->b->pooling == GS_POOLING_RANK)
            *it->embedding = score(t, states);
        else
            gs_embed_add(t->b->pooling, it->embedding, n_embd, states, 0, it->n_tokens,
                         it->n_tokens);
    }
}

/* This thread's part of group g. */
static void enter_group(lane *t, const encoder_group *g) {
    const encoder_group *first = &t->a->groups[t->a->first_group[t->a->shared ? 0 : t->tid]];
    t->row_shift = first->row - g->row;
    t->page_shift = first->page - g->page;
    if (t->a->shared) {
        gs_act_share(t->a->n_rows, t->tid, t->n, &t->r0, &t->r1);
        t->u0 = t->a->split[t->tid];
        t->u1 = t->a->split[t->tid + 1];
        return;
    }
    t->r0 = g->row;
    t->r1 = g->row + g->n_rows;
    t->u0 = (int64_t)g->span * t->m->hp.n_heads;
    t->u1 = t->u0 + (int64_t)g->n_spans * t->m->hp.n_heads;
}

static void layer_pass(lane *t, int32_t layer) {
    const encoder_area *a = t->a;
    const gs_encoder_layer *ly = &t->m->encoder_layers[layer];
    const int tid = a->shared ? 0 : t->tid;
    for (int32_t g = a->first_group[tid]; g < a->first_group[tid + 1]; g++) {
        enter_group(t, &a->groups[g]);
        if (layer == 0)
            embed_rows(t);
        qkv_phase(t, ly);
        if (a->shared)
            sync_all(t);
        attn_phase(t);
        if (a->shared)
            sync_all(t);
        rows_phase(t, ly);
    }
}

void gs_encoder_step(void *arg, int tid, int n_threads) {
    gs_encoder *b = arg;
    lane t = {.b = b, .m = b->m, .a = b->area, .s = &b->scratch[tid], .tid = tid, .n = n_threads};
    for (int32_t layer = b->first_layer; layer < b->m->hp.n_layers; layer++) {
        layer_pass(&t, layer);
        decide(&t);
        sync_all(&t);
        if (b->give_way && layer + 1 < b->m->hp.n_layers) {
            if (tid == 0)
                t.a->next_layer = layer + 1;
            return;
        }
        /* Nobody decides again before all have read the answer. */
        if (b->batch->should_yield)
            sync_all(&t);
    }
    pool_items(&t);
}
