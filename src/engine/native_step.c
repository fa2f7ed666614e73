/*
 * The forward pass of one step, SPMD: every thread runs gs_native_step and owns, per phase, a
 * contiguous share of rows, of weight panels or of attention units. A barrier separates phases
 * that read what another thread wrote; ten per layer:
 *
 *     rows    norm + quantise                    x -> act_embd
 *     heads   QKV product, q/k norm, rotation
 *     rows    append to the KV pages
 *     units   attention                          q, pages -> attn
 *     rows    quantise                           attn -> act_attn
 *     panels  output product                     += x
 *     rows    norm + quantise                    x -> act_embd
 *     panels  gate and up products, activation   -> gate
 *     rows    quantise                           gate -> act_ff
 *     panels  down product                       += x
 *
 * Nothing here depends on which rows are in the batch together, so a row's result does not either
 * as far as the kernels keep that promise.
 */
#include <math.h>
#include <string.h>

#include "engine/native_impl.h"

/* One thread's view of the step. */
typedef struct lane {
    gs_native *b;
    const gs_model *m;
    int tid, n;
    int r0, r1; /* its rows */
    gs_act embd, attn, ff;
} lane;

static void sync_all(const lane *t) {
    gs_pool_barrier(t->b->cfg.pool, t->tid);
}

static float *row_of(float *base, int32_t width, int32_t row) {
    return base + (int64_t)row * width;
}

/* Token embeddings and this step's rotary tables, for own rows. */
static void embed_rows(const lane *t) {
    gs_native *b = t->b;
    const gs_hparams *hp = &t->m->hp;
    int32_t n_rot = hp->n_rot / 2;
    for (int r = t->r0; r < t->r1; r++) {
        float *x = row_of(b->x, hp->n_embd, r);
        gs_mat_row(&t->m->tok_embd, b->rows[r].token, x);
        if (hp->embd_scale != 1.0f)
            for (int32_t i = 0; i < hp->n_embd; i++)
                x[i] *= hp->embd_scale;
        for (int kind = 0; kind < b->n_ropes; kind++) {
            int64_t at = ((int64_t)kind * b->cfg.max_batch_tokens + r) * n_rot;
            for (int32_t i = 0; i < n_rot; i++) {
                double angle = b->rows[r].pos * b->freq[kind * n_rot + i];
                b->cos_tab[at + i] = (float)cos(angle);
                b->sin_tab[at + i] = (float)sin(angle);
            }
        }
    }
}

/* x += norm(branch) for own rows, where the architecture has such a norm. */
static void post_norm_rows(const lane *t, const float *weight) {
    const gs_hparams *hp = &t->m->hp;
    if (!weight)
        return;
    for (int r = t->r0; r < t->r1; r++) {
        float *x = row_of(t->b->x, hp->n_embd, r), *y = row_of(t->b->tmp, hp->n_embd, r);
        gs_rmsnorm(y, y, weight, hp->n_embd, hp->norm_eps);
        for (int32_t i = 0; i < hp->n_embd; i++)
            x[i] += y[i];
    }
}

/* A product whose result joins the residual: at once, or by way of tmp and a post-norm. */
static void residual_gemm(const lane *t, const gs_mat *w, const gs_act *a, bool post_norm) {
    int p0, p1;
    gs_share(w->n_panels, t->tid, t->n, &p0, &p1);
    if (p0 < p1)
        gs_gemm(w, a, post_norm ? t->b->tmp : t->b->x, t->m->hp.n_embd, NULL, p0, p1,
                post_norm ? GS_GEMM_STORE : GS_GEMM_ADD);
}

/*
 * The heads of Q, K and V are one line of units, dealt out contiguously, so that a thread can
 * finish its heads (norm, rotation) without a barrier. Heads are whole panels.
 */
typedef struct qkv_part {
    const gs_mat *w;
    const float *bias, *norm;
    float *y;
    int n_heads;
    bool rotate;
} qkv_part;

static void finish_heads(const lane *t, const qkv_part *part, int32_t layer, int h0, int h1) {
    gs_native *b = t->b;
    const gs_hparams *hp = &t->m->hp;
    int32_t hd = hp->head_dim, n_rot = hp->n_rot / 2;
    int64_t tab = (int64_t)b->layer_rope[layer] * b->cfg.max_batch_tokens * n_rot;
    for (int32_t r = 0; r < b->n_rows; r++) {
        for (int h = h0; h < h1; h++) {
            float *y = row_of(part->y, part->n_heads * hd, r) + (int64_t)h * hd;
            if (part->norm)
                gs_rmsnorm(y, y, part->norm, hd, hp->norm_eps);
            if (part->rotate)
                gs_rope(y, b->cos_tab + tab + (int64_t)r * n_rot,
                        b->sin_tab + tab + (int64_t)r * n_rot, hp->n_rot, hp->rope_neox);
        }
    }
}

static void qkv_phase(const lane *t, int32_t layer) {
    const gs_layer *ly = &t->m->layers[layer];
    const gs_hparams *hp = &t->m->hp;
    gs_native *b = t->b;
    const qkv_part parts[3] = {
        {&ly->wq, ly->bq, ly->q_norm, b->q, hp->n_heads, true},
        {&ly->wk, ly->bk, ly->k_norm, b->k, hp->n_kv_heads, true},
        {&ly->wv, ly->bv, NULL, b->v, hp->n_kv_heads, false},
    };
    int u0, u1, first = 0, per_head = hp->head_dim / GS_PANEL_ROWS;
    gs_share(hp->n_heads + 2 * hp->n_kv_heads, t->tid, t->n, &u0, &u1);
    for (int i = 0; i < 3; i++) {
        int h0 = u0 > first ? u0 - first : 0, h1 = u1 - first;
        if (h1 > parts[i].n_heads)
            h1 = parts[i].n_heads;
        if (h0 < h1) {
            gs_gemm(parts[i].w, &t->embd, parts[i].y, (int64_t)parts[i].n_heads * hp->head_dim,
                    parts[i].bias, h0 * per_head, h1 * per_head, GS_GEMM_STORE);
            finish_heads(t, &parts[i], layer, h0, h1);
        }
        first += parts[i].n_heads;
    }
}

/*
 * Appends K and V of own rows to the pages. A phase of its own: K pages are transposed, so each
 * value of a row goes to a line of its own, mostly a cold one. Done by whoever computed the K heads
 * it made one thread late by more than its products take.
 */
static void append_phase(const lane *t, int32_t layer) {
    gs_native *b = t->b;
    int32_t hd = t->m->hp.head_dim, n_kv = t->m->hp.n_kv_heads, width = n_kv * hd;
    int u0, u1;
    gs_share(n_kv * b->n_rows, t->tid, t->n, &u0, &u1);
    for (int u = u0; u < u1; u++) {
        int head = u / b->n_rows, r = u % b->n_rows;
        const native_row *row = &b->rows[r];
        gs_kv_store(&b->kv, layer, b->batch->items[row->item].blocks, row->pos, head,
                    row_of(b->k, width, r) + head * hd, row_of(b->v, width, r) + head * hd);
    }
}

/* Own attention units of the plan; neighbouring heads of one kv head go together. */
static void attn_phase(const lane *t, int32_t layer) {
    gs_native *b = t->b;
    const gs_hparams *hp = &t->m->hp;
    int group = hp->n_heads / hp->n_kv_heads, kind = b->layer_window[layer];
    const int64_t *split = b->split + (int64_t)kind * (t->n + 1);
    int32_t width = hp->n_heads * hp->head_dim;
    for (int64_t u = split[t->tid]; u < split[t->tid + 1];) {
        const native_span *s = &b->spans[u / hp->n_heads];
        int head = (int)(u % hp->n_heads), n = group - head % group;
        if (n > split[t->tid + 1] - u)
            n = (int)(split[t->tid + 1] - u);
        int64_t at = (int64_t)s->row * width + (int64_t)head * hp->head_dim;
        gs_attn_item item = {.q = b->q + at,
                             .out = b->attn + at,
                             .ldq = width,
                             .ldo = width,
                             .blocks = b->batch->items[s->item].blocks,
                             .layer = layer,
                             .kv_head = head / group,
                             .n_group = n,
                             .pos = s->pos,
                             .n_q = s->n_q,
                             .window = b->windows[kind],
                             .scale = hp->attn_scale};
        gs_attn(&b->kv, &item, b->scratch[t->tid].attn);
        u += n;
    }
}

static void ffn_phase(const lane *t, const gs_layer *ly) {
    gs_native *b = t->b;
    const gs_hparams *hp = &t->m->hp;
    int p0, p1;
    gs_share(ly->w_gate.n_panels, t->tid, t->n, &p0, &p1);
    if (p0 >= p1)
        return;
    gs_gemm(&ly->w_gate, &t->embd, b->gate, hp->n_ff, NULL, p0, p1, GS_GEMM_STORE);
    gs_gemm(&ly->w_up, &t->embd, b->up, hp->n_ff, NULL, p0, p1, GS_GEMM_STORE);
    int32_t c0 = p0 * GS_PANEL_ROWS,
            c1 = p1 * GS_PANEL_ROWS < hp->n_ff ? p1 * GS_PANEL_ROWS : hp->n_ff;
    for (int32_t r = 0; r < b->n_rows; r++) {
        float *g = row_of(b->gate, hp->n_ff, r) + c0, *u = row_of(b->up, hp->n_ff, r) + c0;
        if (hp->ffn_gelu)
            gs_gelu_mul(g, g, u, c1 - c0);
        else
            gs_silu_mul(g, g, u, c1 - c0);
    }
}

static void norm_rows(const lane *t, const float *weight, int flags) {
    const gs_hparams *hp = &t->m->hp;
    gs_act a = t->embd;
    if (t->r0 < t->r1)
        gs_rmsnorm_quant(&a, t->b->x, hp->n_embd, weight, hp->norm_eps, t->r0, t->r1, flags);
}

static void quant_rows(const lane *t, const gs_act *act, const float *x, int flags) {
    gs_act a = *act;
    if (t->r0 < t->r1)
        gs_act_quant(&a, x, a.k, t->r0, t->r1, flags);
}

/* Safepoint: the engine thread asks while the others finish the layer, and its answer reaches them
 * through the layer's last barrier. It is not asked again before they have read it: the next layer
 * has barriers in between. */
static void decide(const lane *t) {
    const gs_batch *batch = t->b->batch;
    if (t->tid == 0 && batch->should_yield)
        t->b->give_way = batch->should_yield(batch->yield_arg);
}

static void layer_pass(const lane *t, int32_t layer) {
    const gs_layer *ly = &t->m->layers[layer];
    if (layer > 0)
        post_norm_rows(t, t->m->layers[layer - 1].post_ffn_norm);
    norm_rows(t, ly->attn_norm,
              gs_act_need(ly->wq.type) | gs_act_need(ly->wk.type) | gs_act_need(ly->wv.type));
    sync_all(t);
    qkv_phase(t, layer);
    sync_all(t);
    append_phase(t, layer);
    sync_all(t);
    attn_phase(t, layer);
    sync_all(t);
    quant_rows(t, &t->attn, t->b->attn, gs_act_need(ly->wo.type));
    sync_all(t);
    residual_gemm(t, &ly->wo, &t->attn, ly->post_attn_norm != NULL);
    sync_all(t);
    post_norm_rows(t, ly->post_attn_norm);
    norm_rows(t, ly->ffn_norm, gs_act_need(ly->w_gate.type) | gs_act_need(ly->w_up.type));
    sync_all(t);
    ffn_phase(t, ly);
    sync_all(t);
    quant_rows(t, &t->ff, t->b->gate, gs_act_need(ly->w_down.type));
    sync_all(t);
    residual_gemm(t, &ly->w_down, &t->ff, ly->post_ffn_norm != NULL);
    decide(t);
    sync_all(t);
}

static void finish_out(const lane *t, const native_out *o, float *logits) {
    gs_native *b = t->b;
    const gs_batch_item *it = &b->batch->items[o->item];
    int32_t n_vocab = t->m->hp.n_vocab;
    if (o->logits)
        memcpy(o->logits, logits, (size_t)n_vocab * sizeof *logits);
    if (o->sample) /* may change the logits, so the copy comes first */
        gs_sampler_run(it->sampler, logits, n_vocab, it->history, it->n_history, it->n_prompt,
                       b->scratch[t->tid].sampler, it->sample);
}

/* Final norm and output matrix for the rows that need it, a few at a time; then sampling. */
static void output_pass(const lane *t) {
    gs_native *b = t->b;
    const gs_mat *w = &t->m->output;
    const gs_hparams *hp = &t->m->hp;
    int p0, p1, flags = gs_act_need(w->type);
    gs_share(w->n_panels, t->tid, t->n, &p0, &p1);
    for (int32_t first = 0; first < b->n_outs; first += b->logit_rows) {
        int32_t n = b->n_outs - first < b->logit_rows ? b->n_outs - first : b->logit_rows;
        gs_act a = {n, hp->n_embd, b->act_out};
        int r0, r1;
        gs_share(n, t->tid, t->n, &r0, &r1);
        for (int r = r0; r < r1; r++) /* stride 0: the rows are scattered */
            gs_rmsnorm_quant(&a, row_of(b->x, hp->n_embd, b->outs[first + r].row), 0,
                             t->m->output_norm, hp->norm_eps, r, r + 1, flags);
        sync_all(t); /* also: nobody is still sampling from the previous logits */
        if (p0 < p1)
            gs_gemm(w, &a, b->logits, hp->n_vocab, NULL, p0, p1, GS_GEMM_STORE);
        sync_all(t);
        for (int r = r0; r < r1; r++)
            finish_out(t, &b->outs[first + r], row_of(b->logits, hp->n_vocab, r));
    }
}

void gs_native_step(void *arg, int tid, int n_threads) {
    gs_native *b = arg;
    const gs_hparams *hp = &b->m->hp;
    lane t = {.b = b,
              .m = b->m,
              .tid = tid,
              .n = n_threads,
              .embd = {b->n_rows, hp->n_embd, b->act_embd},
              .attn = {b->n_rows, hp->n_heads * hp->head_dim, b->act_attn},
              .ff = {b->n_rows, hp->n_ff, b->act_ff}};
    gs_share(b->n_rows, tid, n_threads, &t.r0, &t.r1);
    if (b->first_layer == 0)
        embed_rows(&t);
    for (int32_t layer = b->first_layer; layer < hp->n_layers; layer++) {
        layer_pass(&t, layer);
        if (b->give_way && layer + 1 < hp->n_layers) {
            if (tid == 0)
                b->next_layer = layer + 1;
            return;
        }
    }
    const float *last = b->m->layers[hp->n_layers - 1].post_ffn_norm;
    if (last) {
        post_norm_rows(&t, last);
        sync_all(&t);
    }
    output_pass(&t);
}
