/*
 * The fake backend: deterministic tokens with programmable latency and faults.
 *
 * It keeps real (tiny) KV pages, one int32 per position, and derives each token from the whole
 * history read back through the block table it was given. A wrong table, a missing copy or a page
 * given to two sequences therefore changes the text, and a prefix-cache hit must give exactly the
 * bytes of a cold run.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"
#include "engine/backend.h"

#define FAKE_MAX_EMBD 4096
#define PIECE_NS      (100 * GS_NS_PER_MS)

typedef struct fake {
    gs_backend base;
    struct fake *root; /* the first of siblings: itself, or whose pages and steps these are */
    gs_fake_config cfg;
    int32_t *pages;     /* [n_kv_blocks][block_tokens] */
    atomic_ullong step; /* of all siblings, in the first */
    struct {            /* the suspended step; next_layer 0: none */
        int32_t next_layer;
        int64_t layer_ns;
        uint64_t step, items; /* hash of who is in it */
    } parked;
    _Atomic uint64_t progress;
    uint64_t n_own;       /* steps, without siblings' */
    atomic_bool released; /* from the programmed hang */
} fake;

static size_t page_bytes(const fake *f) {
    return (size_t)f->cfg.block_tokens * sizeof(int32_t);
}

static void fake_info(const gs_backend *b, gs_backend_info *out) {
    const fake *f = (const fake *)(const void *)b;
    *out = (gs_backend_info){
        .name = "fake",
        .n_vocab = f->cfg.n_vocab,
        .max_context = f->cfg.max_context,
        .max_batch_tokens = f->cfg.max_batch_tokens,
        .max_seqs = f->cfg.max_seqs,
        .n_kv_blocks = f->cfg.n_kv_blocks,
        .block_tokens = f->cfg.block_tokens,
        .kv_bytes = (size_t)f->cfg.n_kv_blocks * page_bytes(f),
        .block_bytes = page_bytes(f),
        .n_layers = f->cfg.n_layers,
        .n_threads = f->cfg.n_threads,
        .n_embd = f->cfg.rank ? 1 : f->cfg.n_embd,
        .pooling = f->cfg.n_embd == 0 ? GS_POOLING_NONE
                   : f->cfg.rank      ? GS_POOLING_RANK
                                      : GS_POOLING_MEAN,
        .whole_prompts = f->cfg.whole_prompts,
    };
}

static int32_t *cell(const fake *f, const uint32_t *blocks, int32_t pos) {
    size_t block = blocks[pos / f->cfg.block_tokens];
    return &f->pages[block * (size_t)f->cfg.block_tokens + (size_t)(pos % f->cfg.block_tokens)];
}

/* FNV-1a over the history as the pages hold it, then a final mix (SplitMix64). */
static uint64_t hash_history(const fake *f, const gs_batch_item *it) {
    uint64_t h = 1469598103934665603ULL;
    int32_t n = it->pos + it->n_tokens;
    for (int32_t p = 0; p < n; p++) {
        h ^= (uint32_t)*cell(f, it->blocks, p);
        h *= 1099511628211ULL;
    }
    if (it->sampler->temperature > 0)
        h ^= it->sampler->seed * 0xD1342543DE82EF95ULL;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ULL;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBULL;
    return h ^ (h >> 31);
}

static bool ends_at(const gs_fake_rule *rule, const int32_t *ids, int32_t end) {
    if (rule->n_after > (size_t)end)
        return false;
    for (size_t i = 0; i < rule->n_after; i++) {
        if (ids[(size_t)end - rule->n_after + i] != (unsigned char)rule->after[i])
            return false;
    }
    return true;
}

static const gs_fake_rule *find_rule(const fake *f, const gs_batch_item *it) {
    for (int32_t end = it->n_prompt; end > 0; end--) {
        for (int32_t i = 0; i < f->cfg.n_rules; i++) {
            if (ends_at(&f->cfg.rules[i], it->history, end))
                return &f->cfg.rules[i];
        }
    }
    return NULL;
}

static bool may_come(const gs_sampler *s, int32_t id) {
    return id >= 0 && id < s->n_mask && ((s->mask[id / 32] >> (id % 32)) & 1);
}

/* The hash chooses among the tokens that may come. */
static int32_t masked_token(const gs_sampler *s, int32_t n_vocab, uint64_t h) {
    int32_t n = s->n_mask < n_vocab ? s->n_mask : n_vocab, n_allowed = 0;
    for (int32_t i = 0; i < n; i++)
        n_allowed += (int32_t)((s->mask[i / 32] >> (i % 32)) & 1);
    int32_t nth = n_allowed > 0 ? (int32_t)(h % (uint64_t)n_allowed) : 0;
    for (int32_t i = 0; i < n; i++) {
        if (((s->mask[i / 32] >> (i % 32)) & 1) && nth-- == 0)
            return i;
    }
    return -1;
}

static void fake_sample(const fake *f, const gs_batch_item *it) {
    gs_sample *out = it->sample;
    uint64_t h = hash_history(f, it);
    int32_t n_output = it->n_history - it->n_prompt;
    out->err = 0;
    out->pending = false;
    out->token = f->cfg.first_token + (int32_t)(h % (uint64_t)f->cfg.n_tokens);
    if (f->cfg.eos_token >= 0 && f->cfg.eos_after > 0 && n_output + 1 >= f->cfg.eos_after &&
        !it->sampler->ignore_eos)
        out->token = f->cfg.eos_token;
    const gs_fake_rule *rule = f->cfg.n_rules > 0 ? find_rule(f, it) : NULL;
    if (rule)
        out->token =
            (size_t)n_output < rule->n_say ? (unsigned char)rule->say[n_output] : f->cfg.eos_token;
    gs_sampler limited = *it->sampler;
    if (it->guide) {
        if (!gs_guide_limit(it->guide, f->cfg.n_vocab, &limited, out))
            return;
        if (!rule || !may_come(&limited, out->token))
            out->token = masked_token(&limited, f->cfg.n_vocab, h);
        out->err = out->token < 0 ? GS_ERR_INVALID : 0;
    }
    /* Halving probabilities, so that tests can recompute every number. */
    out->logprob = -0.6931472f;
    out->n_top = it->sampler->n_logprobs > 0 ? it->sampler->n_logprobs : 0;
    if (out->n_top > GS_MAX_TOP_LOGPROBS)
        out->n_top = GS_MAX_TOP_LOGPROBS;
    for (int32_t i = 0; i < out->n_top; i++) {
        /* The end token lies outside [first, first + n): the others count from the first then. */
        int32_t from = out->token == f->cfg.eos_token ? 0 : out->token - f->cfg.first_token;
        int32_t id = f->cfg.first_token + (from + i) % f->cfg.n_tokens;
        out->top[i] = (gs_token_prob){i == 0 ? out->token : id, -0.6931472f * (float)(i + 1)};
    }
}

/* A token's "hidden state": numbers in [-1, 1) that its id, its place and nothing else decide. */
static void fake_embed(const fake *f, const gs_batch_item *it) {
    float row[FAKE_MAX_EMBD];
    GS_ASSERT(f->cfg.n_embd > 0);
    for (int32_t p = it->pos; p < it->pos + it->n_tokens; p++) {
        uint64_t h = ((uint64_t)(uint32_t)*cell(f, it->blocks, p) << 32) ^ (uint32_t)p;
        for (int32_t i = 0; i < f->cfg.n_embd; i++) {
            h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ULL + (uint64_t)(uint32_t)i;
            h ^= h >> 27;
            row[i] = (float)(int32_t)(uint32_t)h / 2147483648.0f;
        }
        if (f->cfg.rank)
            it->embedding[0] += row[0];
        else
            gs_embed_add(GS_POOLING_MEAN, it->embedding, f->cfg.n_embd, row, p, 1, it->n_prompt);
    }
}

/* In pieces: a step that takes long goes on all the while. */
static void compute(fake *f, int64_t ns) {
    while (ns > 0) {
        const int64_t piece = ns < PIECE_NS ? ns : PIECE_NS;
        struct timespec t = {piece / GS_NS_PER_S, piece % GS_NS_PER_S};
        while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
            ;
        atomic_fetch_add_explicit(&f->progress, 1, memory_order_relaxed);
        ns -= piece;
    }
}

/* No lock is held meanwhile: the thread may be made to stand still here for good. */
static void hang(const fake *f) {
    const struct timespec t = {0, 2 * GS_NS_PER_MS};
    while (!atomic_load(&f->released))
        nanosleep(&t, NULL);
}

static bool is_programmed(uint64_t step, uint64_t first, uint64_t every) {
    return first > 0 &&
           (step == first || (every > 0 && step > first && (step - first) % every == 0));
}

/* Who is in a batch and where: a resumed step has to be the one that was suspended. */
static uint64_t hash_items(const gs_batch *batch) {
    uint64_t h = (uint64_t)batch->n_items;
    for (int32_t i = 0; i < batch->n_items; i++) {
        const gs_batch_item *it = &batch->items[i];
        const int64_t parts[] = {it->slot,      it->pos,       it->n_tokens,
                                 it->tokens[0], it->blocks[0], it->sample != NULL};
        for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++)
            h = (h ^ (uint64_t)parts[p]) * 1099511628211ULL;
    }
    return h;
}

/* Every layer writes its share of the step's positions: what was suspended is really half done. */
static void write_cells(fake *f, const gs_batch *batch, int32_t layer, int32_t n_layers) {
    for (int32_t i = 0; i < batch->n_items; i++) {
        const gs_batch_item *it = &batch->items[i];
        for (int32_t t = layer; t < it->n_tokens; t += n_layers)
            *cell(f, it->blocks, it->pos + t) = it->tokens[t];
    }
}

static int run_layers(fake *f, gs_batch *batch, uint64_t step, int32_t layer, int64_t layer_ns) {
    int32_t n_layers = f->cfg.n_layers > 0 ? f->cfg.n_layers : 1;
    for (; layer < n_layers; layer++) {
        write_cells(f, batch, layer, n_layers);
        compute(f, layer_ns);
        if (layer + 1 < n_layers && batch->should_yield && batch->should_yield(batch->yield_arg)) {
            f->parked.next_layer = layer + 1;
            f->parked.layer_ns = layer_ns;
            f->parked.step = step;
            f->parked.items = hash_items(batch);
            return GS_BACKEND_SUSPENDED;
        }
    }
    if (step == f->cfg.crash_step)
        abort();
    const bool hangs = is_programmed(step, f->cfg.hang_step, f->cfg.hang_every) ||
                       (f->root != f && f->n_own == f->cfg.hang_beside);
    if (hangs)
        hang(f->root);
    if (step == f->cfg.fail_step || hangs)
        return GS_ERR_BACKEND;
    for (int32_t i = 0; i < batch->n_items; i++) {
        const gs_batch_item *it = &batch->items[i];
        if (it->sample)
            fake_sample(f, it);
        if (it->embedding)
            fake_embed(f, it);
    }
    if (step == f->cfg.fail_item_step && batch->n_items > 0 && batch->items[0].sample)
        batch->items[0].sample->err = GS_ERR_BACKEND;
    return 0;
}

static int fake_forward(gs_backend *b, gs_batch *batch) {
    fake *f = (fake *)(void *)b;
    for (int32_t i = 0; i < batch->n_copies; i++) {
        const gs_kv_copy_op *c = &batch->copies[i];
        GS_ASSERT(c->dst < f->cfg.n_kv_blocks && c->src < f->cfg.n_kv_blocks);
        memcpy((char *)f->pages + c->dst * page_bytes(f), (char *)f->pages + c->src * page_bytes(f),
               (size_t)c->n_tokens * sizeof(int32_t));
    }
    if (batch->n_items == 0)
        return 0;
    const uint64_t step = atomic_fetch_add(&f->root->step, 1) + 1;
    f->n_own++;
    int64_t cost_ns = f->cfg.step_ns;
    for (int32_t i = 0; i < batch->n_items; i++) {
        const gs_batch_item *it = &batch->items[i];
        GS_ASSERT(!f->cfg.whole_prompts || (it->pos == 0 && it->n_tokens == it->n_prompt));
        cost_ns +=
            it->n_tokens > 1 ? it->n_tokens * f->cfg.prefill_token_ns : f->cfg.decode_token_ns;
    }
    return run_layers(f, batch, step, 0, cost_ns / (f->cfg.n_layers > 0 ? f->cfg.n_layers : 1));
}

static int fake_resume(gs_backend *b, gs_batch *batch) {
    fake *f = (fake *)(void *)b;
    int32_t layer = f->parked.next_layer;
    f->parked.next_layer = 0;
    GS_ASSERT(layer > 0 && batch->n_copies == 0 && f->parked.items == hash_items(batch));
    return run_layers(f, batch, f->parked.step, layer, f->parked.layer_ns);
}

static void fake_destroy(gs_backend *b) {
    fake *f = (fake *)(void *)b;
    if (f->root == f)
        gs_free(f->pages);
    gs_free(f);
}

static uint64_t fake_progress(const gs_backend *b) {
    return atomic_load_explicit(&((const fake *)(const void *)b)->progress, memory_order_relaxed);
}

static int fake_sibling(gs_backend *b, gs_backend **out);

static void fake_read_block(const gs_backend *b, uint32_t block, uint8_t *out) {
    const fake *f = (const fake *)(const void *)b;
    GS_ASSERT(block < f->cfg.n_kv_blocks);
    memcpy(out, (const char *)f->pages + block * page_bytes(f), page_bytes(f));
}

static void fake_write_block(gs_backend *b, uint32_t block, const uint8_t *in) {
    fake *f = (fake *)(void *)b;
    GS_ASSERT(block < f->cfg.n_kv_blocks);
    memcpy((char *)f->pages + block * page_bytes(f), in, page_bytes(f));
}

static const gs_backend_ops fake_ops = {
    .name = "fake",
    .info = fake_info,
    .forward = fake_forward,
    .resume = fake_resume,
    .progress = fake_progress,
    .destroy = fake_destroy,
    .sibling = fake_sibling,
    .read_block = fake_read_block,
    .write_block = fake_write_block,
};

/* All but the pages. */
static fake *create(const gs_fake_config *cfg) {
    fake *f = gs_calloc(1, sizeof(*f));
    if (!f)
        return NULL;
    f->base.ops = &fake_ops;
    f->root = f;
    f->cfg = *cfg;
    return f;
}

static int fake_sibling(gs_backend *b, gs_backend **out) {
    fake *root = (fake *)(void *)b, *f = create(&root->cfg);
    if (!f)
        return GS_ERR_NOMEM;
    f->root = root;
    f->pages = root->pages;
    *out = &f->base;
    return 0;
}

int gs_fake_create(const gs_fake_config *cfg, gs_backend **out) {
    if (cfg->n_kv_blocks == 0 || cfg->block_tokens <= 0 || cfg->n_tokens <= 0 || cfg->n_embd < 0 ||
        cfg->n_embd > FAKE_MAX_EMBD || cfg->first_token < 0 ||
        cfg->first_token + cfg->n_tokens > cfg->n_vocab)
        return GS_ERR_INVALID;
    fake *f = create(cfg);
    if (!f)
        return GS_ERR_NOMEM;
    f->pages = gs_calloc((size_t)cfg->n_kv_blocks * (size_t)cfg->block_tokens, sizeof(int32_t));
    if (!f->pages) {
        gs_free(f);
        return GS_ERR_NOMEM;
    }
    *out = &f->base;
    return 0;
}

void gs_fake_release(gs_backend *b) {
    fake *f = (fake *)(void *)b;
    atomic_store(&f->released, true);
}
