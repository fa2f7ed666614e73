/* Native backend: creation, planning of a step's rows and attention units. See native.h. */
#include "engine/native.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/memory.h"
#include "base/sys.h"
#include "base/carve.h"
#include "engine/encoder.h"
#include "engine/native_impl.h"

size_t gs_native_block_bytes(const gs_model *m, gs_kv_type type, int32_t block_tokens) {
    gs_kv_layout l;
    if (m->hp.encoder)
        return gs_encoder_block_bytes(m, block_tokens);
    if (gs_kv_layout_init(&l, type, m->hp.n_layers, m->hp.n_kv_heads, m->hp.head_dim, block_tokens,
                          1) != GS_OK)
        return 0;
    return gs_kv_block_bytes(&l);
}

/* Room for the parts of attention; pages that are never written take no memory. */
#define PARTS_BYTES ((size_t)8 << 20)

/* ---- Planning ----------------------------------------------------------------------------------
 */

static void plan_item(gs_native *b, int32_t i) {
    gs_batch_item *it = &b->batch->items[i];
    int32_t end = it->pos + it->n_tokens;
    GS_ASSERT(it->n_tokens > 0 && it->pos >= 0 && end <= b->cfg.max_context);
    GS_ASSERT((int64_t)it->n_blocks * b->cfg.block_tokens >= end);
    GS_ASSERT(it->n_tokens <= b->cfg.max_batch_tokens - b->n_step_rows);
    int32_t row = b->n_step_rows, n_out = it->sampler ? 1 : 0;
    if (it->logits && it->n_logits > n_out)
        n_out = it->n_logits;
    GS_ASSERT(n_out <= it->n_tokens);
    for (int32_t t = 0; t < it->n_tokens; t++)
        b->rows[row + t] = (native_row){i, it->pos + t, it->tokens[t]};
    int32_t first_logits = it->logits ? it->n_tokens - it->n_logits : it->n_tokens;
    for (int32_t t = it->n_tokens - n_out; t < it->n_tokens; t++) {
        native_out *o = &b->outs[b->n_outs++];
        *o = (native_out){i, row + t, NULL, it->sampler && t == it->n_tokens - 1};
        if (t >= first_logits)
            o->logits = it->logits + (int64_t)(t - first_logits) * b->m->hp.n_vocab;
    }
    b->n_step_rows += it->n_tokens;
}

static int32_t n_passes(const gs_native *b) {
    return (b->n_step_rows + b->pass_rows - 1) / b->pass_rows;
}

static void plan_pass(gs_native *b, int32_t pass) {
    int32_t end;
    b->pass = pass;
    gs_share(b->n_step_rows, pass, n_passes(b), &b->row0, &end);
    b->n_rows = end - b->row0;
    b->n_spans = 0;
    const native_row *rows = b->rows + b->row0;
    for (int32_t r = 0, n; r < b->n_rows; r += n) {
        for (n = 1; n < GS_NATIVE_ATTN_ROWS && r + n < b->n_rows; n++)
            if (rows[r + n].item != rows[r].item)
                break;
        b->spans[b->n_spans++] = (native_span){rows[r].item, r, rows[r].pos, n, 0};
    }
    gs_native_attn_plan(b);
}

static void swap_areas(gs_native *b) {
    const native_area now = {
        .x = b->x,
        .tmp = b->tmp,
        .cos_tab = b->cos_tab,
        .sin_tab = b->sin_tab,
        .rows = b->rows,
        .spans = b->spans,
        .outs = b->outs,
        .split = b->split,
        .n_step_rows = b->n_step_rows,
        .n_outs = b->n_outs,
        .pass = b->pass,
        .row0 = b->row0,
        .n_rows = b->n_rows,
        .n_spans = b->n_spans,
        .n_segs = b->n_segs,
        .parted = b->parted,
        .n_active = b->n_active,
    };
    b->x = b->parked.x;
    b->tmp = b->parked.tmp;
    b->cos_tab = b->parked.cos_tab;
    b->sin_tab = b->parked.sin_tab;
    b->rows = b->parked.rows;
    b->spans = b->parked.spans;
    b->outs = b->parked.outs;
    b->split = b->parked.split;
    b->n_step_rows = b->parked.n_step_rows;
    b->n_outs = b->parked.n_outs;
    b->pass = b->parked.pass;
    b->row0 = b->parked.row0;
    b->n_rows = b->parked.n_rows;
    b->n_spans = b->parked.n_spans;
    b->n_segs = b->parked.n_segs;
    b->parted = b->parked.parted;
    b->n_active = b->parked.n_active;
    b->parked = now;
}

/* The planned pass from first_layer on, and those after it. A step that gives way leaves its area
 * and the next one takes the other. */
static int run_passes(gs_native *b, gs_batch *batch, int32_t first_layer) {
    b->batch = batch;
    b->first_layer = first_layer;
    for (;;) {
        b->give_way = false;
        gs_pool_run_on(b->cfg.pool, b->n_active, gs_native_pass, b);
        if (b->next_layer == b->m->hp.n_layers) {
            if (gs_native_last_pass(b)) {
                b->batch = NULL;
                return GS_OK;
            }
            plan_pass(b, b->pass + 1);
            b->next_layer = 0;
        }
        if (b->give_way)
            break;
        b->first_layer = 0;
    }
    b->batch = NULL;
    swap_areas(b);
    b->parked.next_layer = b->next_layer;
    return GS_BACKEND_SUSPENDED;
}

static int native_resume(gs_backend *base, gs_batch *batch) {
    gs_native *b = (gs_native *)base;
    const int32_t first_layer = b->parked.next_layer;
    swap_areas(b);
    GS_ASSERT(b->pass + first_layer > 0 && batch->n_copies == 0 &&
              b->n_step_rows == batch->n_tokens);
    b->parked.pass = b->parked.next_layer = 0;
    return run_passes(b, batch, first_layer);
}

static int native_forward(gs_backend *base, gs_batch *batch) {
    gs_native *b = (gs_native *)base;
    b->n_active = gs_batch_threads(batch, b->n_threads);
    for (int32_t i = 0; i < batch->n_copies; i++)
        gs_kv_copy(&b->kv, batch->copies[i].dst, batch->copies[i].src, batch->copies[i].n_tokens);
    b->batch = batch;
    b->n_step_rows = b->n_outs = 0;
    for (int32_t i = 0; i < batch->n_items; i++)
        plan_item(b, i);
    if (b->n_step_rows == 0)
        return GS_OK;
    plan_pass(b, 0);
    return run_passes(b, batch, 0);
}

/* ---- Creation ----------------------------------------------------------------------------------
 */

static void native_info(const gs_backend *base, gs_backend_info *out) {
    const gs_native *b = (const gs_native *)base;
    *out = (gs_backend_info){.name = "native",
                             .n_vocab = b->m->hp.n_vocab,
                             .max_context = b->cfg.max_context,
                             .max_batch_tokens = b->cfg.max_batch_tokens,
                             .max_seqs = b->cfg.max_seqs,
                             .n_kv_blocks = b->cfg.n_kv_blocks,
                             .block_tokens = b->cfg.block_tokens,
                             .n_threads = b->n_threads,
                             .kv_bytes = b->kv.total_bytes,
                             .block_bytes = gs_kv_block_bytes(&b->kv),
                             .n_layers = b->m->hp.n_layers,
                             .n_embd = b->m->hp.n_embd,
                             .pooling = b->pooling};
}

static void native_destroy(gs_backend *base) {
    gs_native *b = (gs_native *)base;
    if (!b)
        return;
    if (b->kv.base && !b->root)
        gs_pages_free(b->kv.base, b->kv.total_bytes);
    if (b->root)
        gs_pool_free(b->cfg.pool);
    if (b->memory)
        gs_pages_free(b->memory, b->memory_bytes);
    gs_free(b);
}

static uint64_t native_progress(const gs_backend *base) {
    return gs_pool_progress(((const gs_native *)base)->cfg.pool);
}

static bool native_park(gs_backend *base) {
    return gs_pool_park(((gs_native *)base)->cfg.pool);
}

static int native_restart(gs_backend *base) {
    return gs_pool_restart(((gs_native *)base)->cfg.pool);
}

static int native_sibling(gs_backend *base, gs_backend **out);

static void native_read_block(const gs_backend *base, uint32_t block, uint8_t *out) {
    gs_kv_read_block(&((const gs_native *)base)->kv, block, out);
}

static void native_write_block(gs_backend *base, uint32_t block, const uint8_t *in) {
    gs_kv_write_block(&((gs_native *)base)->kv, block, in);
}

static const gs_backend_ops native_ops = {
    .name = "native",
    .info = native_info,
    .forward = native_forward,
    .resume = native_resume,
    .progress = native_progress,
    .park = native_park,
    .restart = native_restart,
    .destroy = native_destroy,
    .sibling = native_sibling,
    .read_block = native_read_block,
    .write_block = native_write_block,
};

/* Layers with the same rotary parameters, and with the same window, get the same kind. */
static int find_kinds(gs_native *b, char *err, size_t errlen) {
    const gs_hparams *hp = &b->m->hp;
    for (int32_t l = 0; l < hp->n_layers; l++) {
        int r = 0, w = 0;
        const bool rotates = hp->layer_rope_base[l] > 0;
        while (rotates && r < b->n_ropes &&
               !(b->ropes[r].base == hp->layer_rope_base[l] &&
                 b->ropes[r].scale == hp->layer_rope_scale[l]))
            r++;
        while (w < b->n_windows && b->windows[w] != hp->window[l])
            w++;
        if (r == GS_NATIVE_MAX_KINDS || w == GS_NATIVE_MAX_KINDS)
            return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                           "more than %d different windows or rotary bases in one model",
                           GS_NATIVE_MAX_KINDS);
        if (rotates && r == b->n_ropes) {
            b->ropes[r].base = hp->layer_rope_base[l];
            b->ropes[r].scale = hp->layer_rope_scale[l];
            b->n_ropes++;
        }
        if (w == b->n_windows)
            b->windows[b->n_windows++] = hp->window[l];
        b->layer_rope[l] = (uint8_t)r;
        b->layer_window[l] = (uint8_t)w;
    }
    return GS_OK;
}

/* Su et al. (2021); factors per frequency as Llama 3.1 has them, ready-made in the file, or the set
 * of longrope's two that suits the longest context that is served. */
static void fill_freq(gs_native *b) {
    int32_t n = b->m->hp.n_rot / 2;
    const float *factors = b->m->rope_freqs;
    if (!factors)
        factors = b->cfg.max_context > b->m->hp.n_ctx_short ? b->m->rope_long : b->m->rope_short;
    for (int r = 0; r < b->n_ropes; r++)
        for (int32_t i = 0; i < n; i++) {
            double f = pow((double)b->ropes[r].base, -2.0 * i / b->m->hp.n_rot);
            if (factors)
                f /= (double)factors[i];
            b->freq[r * n + i] = f * (double)b->ropes[r].scale;
        }
}

static void carve_all(gs_native *b, gs_carver *c) {
    const gs_hparams *hp = &b->m->hp;
    size_t t = (size_t)b->cfg.max_batch_tokens, p = (size_t)b->pass_rows;
    size_t f = sizeof(float), n_rot = (size_t)hp->n_rot / 2;
    size_t nq = (size_t)hp->n_heads * (size_t)hp->head_dim;
    size_t nkv = (size_t)hp->n_kv_heads * (size_t)hp->head_dim;
    const int32_t n_ff = hp->n_experts > 0 ? 0 : hp->n_ff;
    size_t ne = (size_t)hp->n_embd, nff = (size_t)n_ff, nv = (size_t)hp->n_vocab;
    size_t threads = (size_t)b->n_threads;
    for (int i = 0; i < 2; i++) { /* the area that steps begin in, and the one beside it */
        b->x = gs_carve(c, t, ne * f);
        b->tmp = gs_carve(c, t, ne * f);
        b->cos_tab = gs_carve(c, (size_t)b->n_ropes * p, n_rot * f);
        b->sin_tab = gs_carve(c, (size_t)b->n_ropes * p, n_rot * f);
        b->rows = gs_carve(c, t, sizeof *b->rows);
        b->spans = gs_carve(c, p, sizeof *b->spans);
        b->outs = gs_carve(c, t, sizeof *b->outs);
        b->split = gs_carve(c, (size_t)b->n_windows * (threads + 1), sizeof *b->split);
        swap_areas(b);
    }
    b->q = gs_carve(c, p, nq * f);
    b->attn = gs_carve(c, p, nq * f);
    b->k = gs_carve(c, p, nkv * f);
    b->v = gs_carve(c, p, nkv * f);
    b->gate = gs_carve(c, p, nff * f);
    b->up = gs_carve(c, p, nff * f);
    b->logits = gs_carve(c, (size_t)b->logit_rows, nv * f);
    b->act_embd = gs_carve(c, 1, gs_act_bytes(b->pass_rows, hp->n_embd));
    b->act_attn = gs_carve(c, 1, gs_act_bytes(b->pass_rows, hp->n_heads * hp->head_dim));
    b->act_ff = gs_carve(c, 1, gs_act_bytes(b->pass_rows, n_ff));
    if (hp->n_experts > 0) {
        gs_moe_carve(&b->moe, c);
        b->act_router = gs_carve(c, 1, gs_act_bytes(b->pass_rows, hp->n_embd));
    }
    b->act_out = gs_carve(c, 1, gs_act_bytes(b->logit_rows, hp->n_embd));
    b->n_part_rows = (int32_t)(PARTS_BYTES / sizeof(float) / gs_attn_part_floats(&b->kv));
    b->parts = gs_carve(c, (size_t)b->n_part_rows, gs_attn_part_floats(&b->kv) * f);
    b->freq = gs_carve(c, (size_t)b->n_ropes * n_rot, sizeof *b->freq);
    b->scratch = gs_carve(c, threads, sizeof *b->scratch);
    for (size_t i = 0; i < threads; i++) {
        void *attn = gs_carve(c, 1, gs_attn_scratch_bytes(&b->kv));
        void *sampler = gs_carve(c, 1, gs_sampler_scratch_bytes(hp->n_vocab));
        if (b->scratch)
            b->scratch[i] = (native_scratch){attn, sampler};
    }
}

static void describe_experts(gs_native *b) {
    const gs_hparams *hp = &b->m->hp;
    GS_ASSERT(!b->branch_apart); /* gs_moe_down adds to x */
    b->moe = (gs_moe){.n_experts = hp->n_experts,
                      .n_used = hp->n_experts_used,
                      .n_embd = hp->n_embd,
                      .n_ff = hp->n_ff,
                      .max_rows = b->pass_rows,
                      .n_threads = b->n_threads,
                      .scale = hp->expert_scale};
    for (int32_t i = 0; i < hp->n_layers; i++) {
        const gs_layer *ly = &b->m->layers[i];
        b->moe.in_need |= gs_act_need(ly->w_gate.type) | gs_act_need(ly->w_up.type);
        b->moe.mid_need |= gs_act_need(ly->w_down.type);
    }
}

static int alloc_memory(gs_native *b, char *err, size_t errlen) {
    gs_carver c = {NULL, 0, false};
    carve_all(b, &c);
    if (c.overflow)
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "the batch buffers do not fit memory");
    b->memory_bytes = c.used;
    b->memory = gs_pages_alloc(c.used);
    if (!b->memory)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "the batch buffers need %zu MB of memory",
                       c.used >> 20);
    c = (gs_carver){b->memory, 0, false};
    carve_all(b, &c);
    gs_memory_add(GS_PAGES_STEP, b->memory, b->memory_bytes);
    if (b->root) {
        b->kv.base = b->root->kv.base;
        return GS_OK;
    }
    b->kv.base = gs_pages_alloc(b->kv.total_bytes);
    if (!b->kv.base)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "the KV blocks need %zu MB of memory",
                       b->kv.total_bytes >> 20);
    gs_memory_add(GS_PAGES_KV, b->kv.base, b->kv.total_bytes);
    return GS_OK;
}

/* root: whose KV memory it takes, and beside whose pool it has its own; NULL: neither. */
static int create(const gs_native_config *cfg, const gs_native *root, gs_backend **out, char *err,
                  size_t errlen) {
    const gs_hparams *hp = &cfg->model->hp;
    gs_native *b = gs_calloc(1, sizeof *b);
    if (!b)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory creating the native backend");
    b->base.ops = &native_ops;
    b->cfg = *cfg;
    b->m = cfg->model;
    b->root = root;
    if (root && !(b->cfg.pool = gs_pool_create_beside(cfg->pool))) {
        gs_free(b);
        return gs_fail(err, errlen, GS_ERR_NOMEM, "could not start the compute threads");
    }
    /* A model that names no way of pooling is not meant for it. */
    b->pooling = hp->pooling > 0 ? (gs_pooling)hp->pooling : GS_POOLING_NONE;
    b->n_threads = gs_pool_threads(b->cfg.pool);
    b->branch_apart = b->m->layers[0].post_attn_norm != NULL || hp->residual_scale != 1.0f;
    b->logit_rows =
        cfg->max_batch_tokens < GS_NATIVE_LOGIT_ROWS ? cfg->max_batch_tokens : GS_NATIVE_LOGIT_ROWS;
    b->pass_rows = cfg->max_batch_tokens;
    /* Experts: the more rows a pass has, the more of them meet at each. */
    if (hp->n_experts == 0 && b->pass_rows > GS_NATIVE_PASS_ROWS)
        b->pass_rows = GS_NATIVE_PASS_ROWS;
    int rc = gs_kv_layout_init(&b->kv, cfg->kv_type, hp->n_layers, hp->n_kv_heads, hp->head_dim,
                               cfg->block_tokens, cfg->n_kv_blocks);
    if (rc != GS_OK)
        rc = gs_fail(err, errlen, rc, "KV blocks of %d tokens, %u of them: %s", cfg->block_tokens,
                     cfg->n_kv_blocks, gs_err_text(rc));
    if (rc == GS_OK)
        rc = find_kinds(b, err, errlen);
    if (rc == GS_OK && hp->n_experts > 0)
        describe_experts(b);
    if (rc == GS_OK)
        rc = alloc_memory(b, err, errlen);
    if (rc != GS_OK) {
        native_destroy(&b->base);
        return rc;
    }
    fill_freq(b);
    *out = &b->base;
    return GS_OK;
}

static int native_sibling(gs_backend *base, gs_backend **out) {
    const gs_native *b = (const gs_native *)base;
    return create(&b->cfg, b, out, NULL, 0);
}

int gs_native_create(const gs_native_config *cfg, gs_backend **out, char *err, size_t errlen) {
    const gs_hparams *hp = &cfg->model->hp;
    if (cfg->max_seqs < 1 || cfg->max_batch_tokens < 1 || cfg->max_context < 1 ||
        cfg->n_kv_blocks < 1)
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "sequences, batch tokens, context and KV blocks must be at least 1");
    if (hp->encoder)
        return gs_encoder_create(cfg, out, err, errlen);
    return create(cfg, NULL, out, err, errlen);
}
