/*
 * The forward pass of some rows of a step, SPMD: every thread runs gs_native_pass and owns, per
 * phase, a contiguous share of rows, of weight panels or of attention units. A barrier separates
 * phases that read what another thread wrote; nine per layer:
 *
 *     rows    norm + quantise                    x -> act_embd
 *     heads   QKV product, q/k norm, rotation
 *     rows    append to the KV pages
 *     units   attention                          q, pages -> attn
 *     rows    quantise                           attn -> act_attn
 *     panels  output product                     += x
 *     rows    norm + quantise                    x -> act_embd
 *     panels  gate and up products, activation,
 *             quantise                           -> gate -> act_ff
 *     panels  down product                       += x
 *
 * A mixture of experts has phases of its own in place of the last two (kernels/moe.h).
 * (Shares that do not end at a quantisation group need one more, see ffn_owns_parts, and so does
 * attention in parts, see native_attn.c.)
 *
 * Nothing here depends on which rows are in the batch together, so a row's result does not either
 * as far as the kernels keep that promise.
 */
#include <math.h>
#include <string.h>

#include "engine/native_impl.h"

/* Columns that one thread quantises at least: four blocks, so that threads hardly meet in a cache
 * line of the scales. */
#define PART_COLS   128
#define PART_PANELS (PART_COLS / GS_PANEL_ROWS)
_Static_assert(PART_COLS % GS_ACT_GROUP == 0, "parts are made of whole groups");
/* Of a thread's gate and up products that are to stay in its L2 cache. */
#define FFN_BYTES (256 * 1024)
/* Tiles per thread from which on rows are dealt out whole. */
#define ROWS_FROM_TILES 8

static float *row_of(float *base, int32_t width, int32_t row) {
    return base + (int64_t)row * width;
}

/* Token embeddings and the pass's rotary tables, for own rows. */
static void embed_rows(const native_lane *t) {
    gs_native *b = t->b;
    const gs_hparams *hp = &t->m->hp;
    int32_t n_rot = hp->n_rot / 2;
    for (int r = t->r0; r < t->r1; r++) {
        float *x = row_of(t->x, hp->n_embd, r);
        gs_mat_row(&t->m->tok_embd, t->rows[r].token, x);
        if (hp->embd_scale != 1.0f)
            for (int32_t i = 0; i < hp->n_embd; i++)
                x[i] *= hp->embd_scale;
        for (int kind = 0; kind < b->n_ropes; kind++) {
            int64_t at = ((int64_t)kind * b->pass_rows + r) * n_rot;
            for (int32_t i = 0; i < n_rot; i++) {
                double angle = t->rows[r].pos * b->freq[kind * n_rot + i];
                b->cos_tab[at + i] = (float)cos(angle) * hp->rope_magnitude;
                b->sin_tab[at + i] = (float)sin(angle) * hp->rope_magnitude;
            }
        }
    }
}

/* x += scale * norm(branch), where branches are kept apart; weight NULL: no norm. */
static void join_branch(const native_lane *t, const float *weight) {
    const gs_hparams *hp = &t->m->hp;
    if (!t->b->branch_apart)
        return;
    for (int r = t->r0; r < t->r1; r++) {
        float *x = row_of(t->x, hp->n_embd, r), *y = row_of(t->tmp, hp->n_embd, r);
        if (weight)
            gs_rmsnorm(y, y, weight, hp->n_embd, hp->norm_eps);
        gs_add_scaled(x, y, hp->residual_scale, hp->n_embd);
    }
    gs_native_sync(t);
}

/* A product whose result joins the residual: at once, or by way of tmp. */
static void residual_gemm(const native_lane *t, const gs_mat *w, const gs_act *a) {
    const bool apart = t->b->branch_apart;
    int p0, p1;
    gs_share(w->n_panels, t->tid, t->n, &p0, &p1);
    if (p0 < p1)
        gs_gemm(w, a, apart ? t->tmp : t->x, t->m->hp.n_embd, NULL, p0, p1,
                apart ? GS_GEMM_STORE : GS_GEMM_ADD);
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

static void finish_heads(const native_lane *t, const qkv_part *part, int32_t layer, int h0,
                         int h1) {
    gs_native *b = t->b;
    const gs_hparams *hp = &t->m->hp;
    int32_t hd = hp->head_dim, n_rot = hp->n_rot / 2;
    int64_t tab = (int64_t)b->layer_rope[layer] * b->pass_rows * n_rot;
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

static void qkv_phase(const native_lane *t, int32_t layer) {
    const gs_layer *ly = &t->m->layers[layer];
    const gs_hparams *hp = &t->m->hp;
    gs_native *b = t->b;
    const bool rotate = hp->layer_rope_base[layer] > 0;
    const qkv_part parts[3] = {
        {&ly->wq, ly->bq, ly->q_norm, b->q, hp->n_heads, rotate},
        {&ly->wk, ly->bk, ly->k_norm, b->k, hp->n_kv_heads, rotate},
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

/* A unit's lines are fetched so many units before it is stored: stores that miss wait for each
 * other. */
#define APPEND_AHEAD 2

/*
 * Appends K and V of own rows to the pages. A phase of its own: K pages are transposed, so each
 * value of a row goes to a line of its own, mostly a cold one. Done by whoever computed the K heads
 * it made one thread late by more than its products take.
 */
static void append_phase(const native_lane *t, int32_t layer) {
    gs_native *b = t->b;
    const int32_t hd = t->m->hp.head_dim, n_kv = t->m->hp.n_kv_heads, width = n_kv * hd;
    int u0, u1;
    gs_share(n_kv * b->n_rows, t->tid, t->n, &u0, &u1);
    for (int u = u0; u < u1 + APPEND_AHEAD; u++) {
        if (u < u1) {
            const native_row *row = &t->rows[u % b->n_rows];
            gs_kv_prefetch(&b->kv, layer, b->batch->items[row->item].blocks, row->pos,
                           u / b->n_rows);
        }
        if (u >= u0 + APPEND_AHEAD) {
            const int head = (u - APPEND_AHEAD) / b->n_rows, r = (u - APPEND_AHEAD) % b->n_rows;
            const native_row *row = &t->rows[r];
            gs_kv_store(&b->kv, layer, b->batch->items[row->item].blocks, row->pos, head,
                        row_of(b->k, width, r) + head * hd, row_of(b->v, width, r) + head * hd);
        }
    }
}

static void own_columns(const native_lane *t, int32_t k, int32_t *c0, int32_t *c1) {
    int p0, p1;
    gs_share((k + PART_COLS - 1) / PART_COLS, t->tid, t->n, &p0, &p1);
    *c0 = p0 * PART_COLS;
    *c1 = p1 * PART_COLS < k ? p1 * PART_COLS : k;
}

static bool whole_rows(const native_lane *t) {
    return t->b->n_rows >= ROWS_FROM_TILES * GS_TILE_ROWS * t->n;
}

/* Called ahead of the barrier before a quant_phase: the lines arrive while the thread waits. */
static void fetch_act(const native_lane *t, const gs_act *act, int flags) {
    int32_t c0, c1;
    if (whole_rows(t))
        return;
    own_columns(t, act->k, &c0, &c1);
    if (c0 < c1)
        gs_act_prefetch(act, c0, c1, flags);
}

/*
 * Whether the gate's columns are dealt out in parts that a thread can quantise itself. Not when
 * that would leave shares uneven by more than 1 in 8.
 */
static bool ffn_owns_parts(const native_lane *t) {
    int32_t parts = (t->m->hp.n_ff + PART_COLS - 1) / PART_COLS;
    return parts % t->n == 0 || parts >= 8 * t->n;
}

/* Columns of panels [p0, p1) of the gated activation; quant: -> act_ff too. then: the gate's next
 * panels, or NULL. */
static void ffn_columns(const native_lane *t, const gs_layer *ly, int p0, int p1, bool quant,
                        const uint8_t *then) {
    gs_native *b = t->b;
    const gs_hparams *hp = &t->m->hp;
    const int flags = gs_act_need(ly->w_down.type);
    const bool alike = ly->w_gate.panel_bytes == ly->w_up.panel_bytes;
    gs_gemm_then(&ly->w_gate, &t->embd, b->gate, hp->n_ff, p0, p1,
                 alike ? gs_mat_panel(&ly->w_up, p0) : NULL);
    gs_gemm_then(&ly->w_up, &t->embd, b->up, hp->n_ff, p0, p1, alike ? then : NULL);
    int32_t c0 = p0 * GS_PANEL_ROWS,
            c1 = p1 * GS_PANEL_ROWS < hp->n_ff ? p1 * GS_PANEL_ROWS : hp->n_ff;
    gs_act act = t->ff;
    if (quant && !whole_rows(t))
        gs_act_prefetch(&act, c0, c1, flags);
    for (int32_t r = 0; r < b->n_rows; r++) {
        float *g = row_of(b->gate, hp->n_ff, r), *u = row_of(b->up, hp->n_ff, r);
        if (hp->ffn_gelu)
            gs_gelu_mul(g + c0, g + c0, u + c0, c1 - c0);
        else
            gs_silu_mul(g + c0, g + c0, u + c0, c1 - c0);
        if (quant)
            gs_act_quant_part(&act, g, r, c0, c1, flags);
    }
}

/* So many columns at a time that both products of all rows stay in the L2 cache. */
static void ffn_phase(const native_lane *t, const gs_layer *ly) {
    const bool own = ffn_owns_parts(t);
    const int unit = own ? PART_PANELS : 1;
    int p0, p1, step = FFN_BYTES / (2 * (int)sizeof(float) * PART_COLS) / t->b->n_rows;
    step = (step > 0 ? step : 1) * PART_PANELS;
    gs_share((ly->w_gate.n_panels + unit - 1) / unit, t->tid, t->n, &p0, &p1);
    p0 *= unit;
    p1 = p1 * unit < ly->w_gate.n_panels ? p1 * unit : ly->w_gate.n_panels;
    for (int end; p0 < p1; p0 = end) {
        end = p0 + step < p1 ? p0 + step : p1;
        ffn_columns(t, ly, p0, end, own, end < p1 ? gs_mat_panel(&ly->w_gate, end) : NULL);
    }
}

/*
 * x, normalised when there is a weight, -> act. The rows of a tile lie interleaved in act, and two
 * threads that write into the same lines take several times as long as one. So a few rows are
 * dealt out by columns (the sum of squares is then everybody's), many rows by tiles.
 */
static void quant_phase(const native_lane *t, const gs_act *act, const float *x,
                        const float *weight, int flags) {
    gs_act a = *act;
    float eps = t->m->hp.norm_eps;
    if (whole_rows(t)) {
        int32_t r0, r1;
        gs_act_share(a.m, t->tid, t->n, &r0, &r1);
        if (weight)
            gs_rmsnorm_quant(&a, x, a.k, weight, eps, r0, r1, flags);
        else
            gs_act_quant(&a, x, a.k, r0, r1, flags);
        return;
    }
    int32_t c0, c1;
    own_columns(t, a.k, &c0, &c1);
    if (c0 >= c1)
        return;
    for (int32_t r = 0; r < a.m; r++) {
        const float *row = x + (int64_t)r * a.k;
        if (weight)
            gs_rmsnorm_quant_part(&a, row, weight, eps, r, c0, c1, flags);
        else
            gs_act_quant_part(&a, row, r, c0, c1, flags);
    }
}

static void feed_forward(const native_lane *t, const gs_layer *ly) {
    ffn_phase(t, ly);
    gs_native_sync(t);
    if (!ffn_owns_parts(t)) {
        quant_phase(t, &t->ff, t->b->gate, NULL, gs_act_need(ly->w_down.type));
        gs_native_sync(t);
    }
    residual_gemm(t, &ly->w_down, &t->ff);
}

/* Safepoint: the engine thread asks while the others finish the layer, and its answer reaches them
 * through the layer's last barrier. It is not asked again before they have read it: the next layer
 * has barriers in between. */
static void decide(const native_lane *t) {
    if (t->tid == 0)
        t->b->give_way = gs_batch_yields(t->b->batch);
}

static void run_layer(const native_lane *t, int32_t layer) {
    const gs_layer *ly = &t->m->layers[layer];
    int for_qkv = gs_act_need(ly->wq.type) | gs_act_need(ly->wk.type) | gs_act_need(ly->wv.type);
    int for_ffn = gs_act_need(ly->w_gate.type) | gs_act_need(ly->w_up.type);
    int for_wo = gs_act_need(ly->wo.type);
    if (layer > 0)
        join_branch(t, t->m->layers[layer - 1].post_ffn_norm);
    quant_phase(t, &t->embd, t->x, ly->attn_norm, for_qkv);
    gs_native_sync(t);
    qkv_phase(t, layer);
    gs_native_sync(t);
    append_phase(t, layer);
    gs_native_sync(t);
    gs_native_attn(t->b, layer, t->tid);
    if (t->b->parted) {
        gs_native_sync(t);
        gs_native_attn_merge(t->b, layer, t->tid);
    }
    fetch_act(t, &t->attn, for_wo);
    gs_native_sync(t);
    quant_phase(t, &t->attn, t->b->attn, NULL, for_wo);
    gs_native_sync(t);
    residual_gemm(t, &ly->wo, &t->attn);
    fetch_act(t, &t->embd, for_ffn);
    gs_native_sync(t);
    join_branch(t, ly->post_attn_norm);
    quant_phase(t, &t->embd, t->x, ly->ffn_norm, for_ffn);
    if (ly->router.data)
        quant_phase(t, &t->router, t->x, ly->ffn_norm, GS_ACT_FLOAT);
    gs_native_sync(t);
    if (ly->router.data)
        gs_native_experts(t, ly);
    else
        feed_forward(t, ly);
    fetch_act(t, &t->embd, for_qkv);
    decide(t);
    gs_native_sync(t);
}

static void finish_out(const native_lane *t, const native_out *o, float *logits) {
    gs_native *b = t->b;
    const gs_batch_item *it = &b->batch->items[o->item];
    int32_t n_vocab = t->m->hp.n_vocab;
    if (o->logits)
        memcpy(o->logits, logits, (size_t)n_vocab * sizeof *logits);
    if (!o->sample)
        return;
    gs_sampler limited = *it->sampler;
    /* May change the logits, so the copy comes first. */
    if (!it->guide || gs_guide_limit(it->guide, n_vocab, &limited, it->sample))
        gs_sampler_run(&limited, logits, n_vocab, it->history, it->n_history, it->n_prompt,
                       b->scratch[t->tid].sampler, it->sample);
}

/* Scales and caps columns [c0, c1) of n rows of logits. */
static void finish_logits(const native_lane *t, int32_t n, int32_t c0, int32_t c1) {
    const gs_hparams *hp = &t->m->hp;
    for (int32_t r = 0; r < n; r++) {
        float *y = row_of(t->b->logits, hp->n_vocab, r);
        if (hp->logit_scale != 1.0f)
            for (int32_t i = c0; i < c1; i++)
                y[i] *= hp->logit_scale;
        if (hp->logit_softcap > 0)
            gs_softcap(y + c0, c1 - c0, hp->logit_softcap);
    }
}

/* Final norm and output matrix for the rows that need it, a few at a time; then sampling. */
static void output_pass(const native_lane *t) {
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
        gs_native_sync(t); /* also: nobody is still sampling from the previous logits */
        if (p0 < p1) {
            gs_gemm(w, &a, b->logits, hp->n_vocab, NULL, p0, p1, GS_GEMM_STORE);
            finish_logits(t, n, p0 * GS_PANEL_ROWS,
                          p1 < w->n_panels ? p1 * GS_PANEL_ROWS : hp->n_vocab);
        }
        gs_native_sync(t);
        for (int r = r0; r < r1; r++)
            finish_out(t, &b->outs[first + r], row_of(b->logits, hp->n_vocab, r));
    }
}

/* Sequences that end in a vector take their rows' states, after the final norm; dealt out by item,
 * because the rows of one are added up in order. */
static void pool_pass(const native_lane *t) {
    gs_native *b = t->b;
    const gs_hparams *hp = &t->m->hp;
    for (int32_t i = 0, row = 0; i < b->batch->n_items; row += b->batch->items[i++].n_tokens) {
        const gs_batch_item *it = &b->batch->items[i];
        if (!it->embedding || i % t->n != t->tid)
            continue;
        for (int32_t r = 0; r < it->n_tokens; r++) {
            float *state = row_of(b->tmp, hp->n_embd, row + r);
            gs_rmsnorm(state, row_of(b->x, hp->n_embd, row + r), t->m->output_norm, hp->n_embd,
                       hp->norm_eps);
            gs_embed_add(b->pooling, it->embedding, hp->n_embd, state, it->pos + r, 1,
                         it->n_prompt);
        }
    }
}

void gs_native_pass(void *arg, int tid, int n_threads) {
    gs_native *b = arg;
    const gs_hparams *hp = &b->m->hp;
    native_lane t = {.b = b,
                     .m = b->m,
                     .tid = tid,
                     .n = n_threads,
                     .rows = b->rows + b->row0,
                     .x = row_of(b->x, hp->n_embd, b->row0),
                     .tmp = row_of(b->tmp, hp->n_embd, b->row0),
                     .embd = {b->n_rows, hp->n_embd, b->act_embd},
                     .attn = {b->n_rows, hp->n_heads * hp->head_dim, b->act_attn},
                     .ff = {b->n_rows, hp->n_ff, b->act_ff},
                     .router = {b->n_rows, hp->n_embd, b->act_router}};
    gs_share(b->n_rows, tid, n_threads, &t.r0, &t.r1);
    int32_t layer = b->first_layer;
    if (layer == 0) {
        embed_rows(&t);
        gs_native_sync(&t);
    }
    while (layer < hp->n_layers) {
        run_layer(&t, layer++);
        if (b->give_way && layer < hp->n_layers)
            break;
    }
    if (tid == 0)
        b->next_layer = layer;
    if (layer < hp->n_layers)
        return;
    join_branch(&t, b->m->layers[hp->n_layers - 1].post_ffn_norm);
    if (!gs_native_last_pass(b))
        return;
    pool_pass(&t);
    output_pass(&t);
}
