/* Encoder backend: creation, planning of a step's rows and attention units. See encoder.h. */
#include "engine/encoder.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/memory.h"
#include "base/sys.h"
#include "base/carve.h"
#include "engine/encoder_impl.h"

size_t gs_encoder_block_bytes(const gs_model *m, int32_t block_tokens) {
    /* Keys and values in bf16 of one layer. */
    return (size_t)block_tokens * (size_t)m->hp.n_embd * 2 * sizeof(uint16_t);
}

/* ---- Planning ----------------------------------------------------------------------------------
 */

static int32_t pages_of(int32_t n_tokens) {
    return (n_tokens + GS_ENCODER_PAGE - 1) / GS_ENCODER_PAGE;
}

/* A pair of texts to be ranked is [CLS] A [SEP] B [SEP]: B is the second segment. */
static void place_item(gs_encoder *b, int32_t i, encoder_group *g) {
    encoder_area *a = b->area;
    gs_batch_item *it = &b->batch->items[i];
    const gs_hparams *hp = &b->m->hp;
    int32_t last_type = b->pooling == GS_POOLING_RANK && hp->n_types > 1 ? 1 : 0, type = 0;
    a->item_row[i] = a->n_rows;
    for (int32_t t = 0; t < it->n_tokens; t++) {
        a->rows[a->n_rows + t] = (encoder_row){it->tokens[t], t, type, a->n_pages};
        if (it->tokens[t] == hp->sep_token)
            type = last_type;
    }
    for (int32_t t = 0; t < it->n_tokens; t += GS_ENCODER_QUERY, g->n_spans++) {
        int32_t left = it->n_tokens - t;
        a->spans[a->n_spans++] =
            (encoder_span){a->n_rows + t, left < GS_ENCODER_QUERY ? left : GS_ENCODER_QUERY,
                           it->n_tokens, a->n_pages};
    }
    g->n_rows += it->n_tokens;
    a->n_rows += it->n_tokens;
    a->n_pages += pages_of(it->n_tokens);
    GS_ASSERT(a->n_pages <= (int32_t)b->kv.n_blocks);
    if (it->sample) { /* nothing is generated */
        memset(it->sample, 0, sizeof *it->sample);
        it->sample->err = GS_ERR_UNSUPPORTED;
    }
}

static encoder_group *new_group(encoder_area *a, int32_t *n_groups) {
    encoder_group *g = &a->groups[(*n_groups)++];
    *g = (encoder_group){.row = a->n_rows, .span = a->n_spans, .page = a->n_pages};
    return g;
}

/* Work of a sequence, in products of one row: attention grows with the square. */
static int64_t item_cost(const gs_encoder *b, const gs_batch_item *it) {
    const gs_hparams *hp = &b->m->hp;
    return (int64_t)it->n_tokens * (2 * hp->n_embd + hp->n_ff + it->n_tokens);
}

/*
 * Gives each sequence an owner, the longest first to whoever has least (Graham 1969). false: the
 * shares would be uneven by more than one in eight.
 */
static bool deal_out(gs_encoder *b) {
    const gs_batch *batch = b->batch;
    int64_t total = 0, most = 0;
    memset(b->load, 0, (size_t)b->area->n_active * sizeof *b->load);
    for (int32_t i = 0; i < batch->n_items; i++) { /* few: sorted by insertion */
        int32_t at = i;
        for (; at > 0 && batch->items[b->order[at - 1]].n_tokens < batch->items[i].n_tokens; at--)
            b->order[at] = b->order[at - 1];
        b->order[at] = i;
    }
    for (int32_t k = 0; k < batch->n_items; k++) {
        int least = 0;
        for (int t = 1; t < b->area->n_active; t++)
            if (b->load[t] < b->load[least])
                least = t;
        int64_t cost = item_cost(b, &batch->items[b->order[k]]);
        b->owner[b->order[k]] = least;
        b->load[least] += cost;
        total += cost;
        most = b->load[least] > most ? b->load[least] : most;
    }
    return most * 8 * b->area->n_active <= total * 9;
}

/* Tokens seen; the constant stands for loading queries and storing outputs. */
static int64_t span_cost(const encoder_span *s) {
    return (int64_t)s->n_q * (s->n_keys + 32);
}

/* Cuts the line of attention units (span 0 head 0, span 0 head 1, ...) into one stretch per thread
 * with nearly equal cost. */
static void plan_split(gs_encoder *b) {
    encoder_area *a = b->area;
    int32_t n_heads = b->m->hp.n_heads;
    int64_t total = 0, before = 0;
    int t = 1;
    for (int32_t s = 0; s < a->n_spans; s++)
        total += span_cost(&a->spans[s]) * n_heads;
    a->split[0] = 0;
    for (int32_t s = 0; s < a->n_spans; s++) {
        int64_t cost = span_cost(&a->spans[s]);
        for (; t < b->area->n_active; t++) {
            int64_t head = (total * t / b->area->n_active - before + cost / 2) / cost;
            if (head >= n_heads)
                break;
            a->split[t] = (int64_t)s * n_heads + (head > 0 ? head : 0);
        }
        before += cost * n_heads;
    }
    for (; t <= b->area->n_active; t++)
        a->split[t] = (int64_t)a->n_spans * n_heads;
}

/* Rows, spans and groups, owner after owner; or one group that all threads share. */
static void plan(gs_encoder *b) {
    encoder_area *a = b->area;
    const gs_batch *batch = b->batch;
    int32_t n_groups = 0;
    a->n_rows = a->n_spans = a->n_pages = a->next_layer = 0;
    a->shared = !deal_out(b);
    for (int t = 0; t < (a->shared ? 1 : b->area->n_active); t++) {
        encoder_group *g = NULL;
        a->first_group[t] = n_groups;
        for (int32_t i = 0; i < batch->n_items; i++) {
            if (!a->shared && b->owner[i] != t)
                continue;
            if (!g || (!a->shared && g->n_rows >= GS_ENCODER_GROUP))
                g = new_group(a, &n_groups);
            place_item(b, i, g);
        }
        a->first_group[t + 1] = n_groups;
    }
    if (a->shared)
        plan_split(b);
}

static encoder_area *other_area(gs_encoder *b) {
    return b->area == &b->areas[0] ? &b->areas[1] : &b->areas[0];
}

/* A step that gives way keeps its area, and the next one takes the other. */
static int run_layers(gs_encoder *b, gs_batch *batch) {
    b->batch = batch;
    b->first_layer = b->area->next_layer;
    b->area->next_layer = 0;
    b->give_way = false;
    gs_pool_run_on(b->cfg.pool, b->area->n_active, gs_encoder_step, b);
    b->batch = NULL;
    if (b->area->next_layer == 0)
        return GS_OK;
    b->area = other_area(b);
    return GS_BACKEND_SUSPENDED;
}

static int encoder_resume(gs_backend *base, gs_batch *batch) {
    gs_encoder *b = (gs_encoder *)base;
    b->area = other_area(b);
    GS_ASSERT(b->area->next_layer > 0 && b->area->n_rows == batch->n_tokens);
    return run_layers(b, batch);
}

static int encoder_forward(gs_backend *base, gs_batch *batch) {
    gs_encoder *b = (gs_encoder *)base;
    int32_t n_rows = 0;
    GS_ASSERT(batch->n_items <= b->cfg.max_seqs);
    for (int32_t i = 0; i < batch->n_items; i++) {
        int32_t n = batch->items[i].n_tokens;
        GS_ASSERT(n > 0 && n <= b->cfg.max_context && n <= b->cfg.max_batch_tokens - n_rows);
        n_rows += n;
    }
    if (n_rows == 0)
        return GS_OK;
    b->batch = batch;
    b->area->n_active = gs_batch_threads(batch, b->n_threads);
    plan(b);
    return run_layers(b, batch);
}

/* ---- Creation ----------------------------------------------------------------------------------
 */

static void encoder_info(const gs_backend *base, gs_backend_info *out) {
    const gs_encoder *b = (const gs_encoder *)base;
    int32_t bt = b->cfg.block_tokens;
    *out = (gs_backend_info){
        .name = "encoder",
        .n_vocab = b->m->hp.n_vocab,
        .max_context = b->cfg.max_context,
        .max_batch_tokens = b->cfg.max_batch_tokens,
        .max_seqs = b->cfg.max_seqs,
        .n_kv_blocks = (uint32_t)((b->cfg.max_batch_tokens + bt - 1) / bt + b->cfg.max_seqs),
        .block_tokens = bt,
        .kv_bytes = b->kv.total_bytes,
        .n_threads = b->n_threads,
        .n_layers = b->m->hp.n_layers,
        .n_embd = b->pooling == GS_POOLING_RANK ? 1 : b->m->hp.n_embd,
        .pooling = b->pooling,
        .whole_prompts = true};
}

static void encoder_destroy(gs_backend *base) {
    gs_encoder *b = (gs_encoder *)base;
    if (!b)
        return;
    if (b->kv.base)
        gs_pages_free(b->kv.base, b->kv.total_bytes);
    if (b->memory)
        gs_pages_free(b->memory, b->memory_bytes);
    gs_free(b);
}

/* A layer of long texts takes seconds between two barriers, so its own steps count, too. */
static uint64_t encoder_progress(const gs_backend *base) {
    const gs_encoder *b = (const gs_encoder *)base;
    return gs_pool_progress(b->cfg.pool) + atomic_load_explicit(&b->progress, memory_order_relaxed);
}

static bool encoder_park(gs_backend *base) {
    return gs_pool_park(((gs_encoder *)base)->cfg.pool);
}

static int encoder_restart(gs_backend *base) {
    return gs_pool_restart(((gs_encoder *)base)->cfg.pool);
}

static const gs_backend_ops encoder_ops = {
    .name = "encoder",
    .info = encoder_info,
    .forward = encoder_forward,
    .resume = encoder_resume,
    .progress = encoder_progress,
    .park = encoder_park,
    .restart = encoder_restart,
    .destroy = encoder_destroy,
};

static void carve_all(gs_encoder *b, gs_carver *c) {
    const gs_hparams *hp = &b->m->hp;
    size_t t = (size_t)b->cfg.max_batch_tokens, f = sizeof(float), rows = GS_ENCODER_ROWS;
    size_t ne = (size_t)hp->n_embd, nff = (size_t)hp->n_ff, half = (size_t)hp->n_rot / 2;
    size_t threads = (size_t)b->n_threads, seqs = (size_t)b->cfg.max_seqs;
    bool rotates = !b->m->positions.data;
    for (int i = 0; i < 2; i++) {
        encoder_area *a = &b->areas[i];
        a->x = gs_carve(c, t, ne * f);
        a->cos_tab = rotates ? gs_carve(c, t, half * f) : NULL;
        a->sin_tab = rotates ? gs_carve(c, t, half * f) : NULL;
        a->rows = gs_carve(c, t, sizeof *a->rows);
        a->spans = gs_carve(c, t, sizeof *a->spans);
        a->groups = gs_carve(c, seqs, sizeof *a->groups);
        a->first_group = gs_carve(c, threads + 1, sizeof *a->first_group);
        a->split = gs_carve(c, threads + 1, sizeof *a->split);
        a->item_row = gs_carve(c, seqs, sizeof *a->item_row);
    }
    b->q = gs_carve(c, t, ne * f);
    b->attn = gs_carve(c, t, ne * f);
    b->order = gs_carve(c, seqs, sizeof *b->order);
    b->owner = gs_carve(c, seqs, sizeof *b->owner);
    b->load = gs_carve(c, threads, sizeof *b->load);
    b->pages = gs_carve(c, b->kv.n_blocks, sizeof *b->pages);
    b->freq = rotates ? gs_carve(c, half, sizeof *b->freq) : NULL;
    b->scratch = gs_carve(c, threads, sizeof *b->scratch);
    for (size_t i = 0; i < threads; i++) {
        encoder_scratch s = {
            .qkv = gs_carve(c, rows, 3 * ne * f),
            .ff = gs_carve(c, rows, nff * f),
            .gate = b->m->encoder_layers[0].w_gate.data ? gs_carve(c, rows, nff * f) : NULL,
            .act_embd = gs_carve(c, 1, gs_act_bytes(GS_ENCODER_ROWS, hp->n_embd)),
            .act_ff = gs_carve(c, 1, gs_act_bytes(GS_ENCODER_ROWS, hp->n_ff)),
            .attn = gs_carve(c, 1, gs_attn_scratch_bytes(&b->kv))};
        if (b->scratch)
            b->scratch[i] = s;
    }
}

static int alloc_memory(gs_encoder *b, char *err, size_t errlen) {
    gs_carver c = {NULL, 0, false};
    carve_all(b, &c);
    if (c.overflow)
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "the batch buffers do not fit memory");
    b->memory_bytes = c.used;
    b->memory = gs_pages_alloc(c.used);
    b->kv.base = gs_pages_alloc(b->kv.total_bytes);
    if (!b->memory || !b->kv.base)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "the batch buffers need %zu MB of memory",
                       (c.used + b->kv.total_bytes) >> 20);
    gs_memory_add(GS_PAGES_STEP, b->memory, b->memory_bytes);
    gs_memory_add(GS_PAGES_STEP, b->kv.base, b->kv.total_bytes);
    c = (gs_carver){b->memory, 0, false};
    carve_all(b, &c);
    return GS_OK;
}

int gs_encoder_create(const gs_native_config *cfg, gs_backend **out, char *err, size_t errlen) {
    const gs_hparams *hp = &cfg->model->hp;
    gs_encoder *b = gs_calloc(1, sizeof *b);
    if (!b)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory creating the encoder backend");
    b->base.ops = &encoder_ops;
    b->cfg = *cfg;
    b->m = cfg->model;
    b->pooling = hp->pooling > 0 ? (gs_pooling)hp->pooling : GS_POOLING_MEAN;
    b->area = &b->areas[0];
    b->n_threads = gs_pool_threads(cfg->pool);
    /* Positions beyond those that were learned have no embedding. */
    if (b->m->positions.data && b->cfg.max_context > hp->n_ctx_train)
        b->cfg.max_context = hp->n_ctx_train;
    if (b->cfg.max_batch_tokens < b->cfg.max_context)
        b->cfg.max_batch_tokens = b->cfg.max_context;
    int64_t n_pages = (int64_t)pages_of(b->cfg.max_batch_tokens) + cfg->max_seqs;
    int rc = gs_kv_layout_init(&b->kv, GS_KV_BF16, 1, hp->n_heads, hp->head_dim, GS_ENCODER_PAGE,
                               (uint32_t)n_pages);
    b->kv.chunk_tokens = GS_ATTN_MAX_CHUNK;
    if (rc != GS_OK)
        rc = gs_fail(err, errlen, rc, "room for %d tokens in a step: %s", b->cfg.max_batch_tokens,
                     gs_err_text(rc));
    if (rc == GS_OK)
        rc = alloc_memory(b, err, errlen);
    if (rc != GS_OK) {
        encoder_destroy(&b->base);
        return rc;
    }
    for (uint32_t i = 0; i < b->kv.n_blocks; i++)
        b->pages[i] = i;
    /* Su et al. (2021) */
    for (int32_t i = 0; b->freq && i < hp->n_rot / 2; i++)
        b->freq[i] = pow((double)hp->layer_rope_base[0], -2.0 * i / hp->n_rot) *
                     (double)hp->layer_rope_scale[0];
    *out = &b->base;
    return GS_OK;
}
