/*
 * Block pool and block tables. The prefix index (kv/prefix.h) says which published block matches
 * and which is evicted first; everything that counts is here.
 *
 * Blocks that nobody holds are in one of two places: a stack of free numbers, or the index's
 * evictable order. Taking, releasing and evicting a block are O(1).
 */
#include "kv/kv.h"

#include <string.h>

#include "base/checked.h"
#include "base/err.h"
#include "base/sys.h"
#include "kv/kv_impl.h"

/* What the prefix cache has of a token sequence. */
typedef struct prefix_hit {
    gs_prefix_node tip;
    int32_t n_full;       /* whole blocks */
    uint32_t n_evictable; /* of them and the partial block: not held by anyone now */
    uint32_t partial;     /* block to copy from, or GS_KV_NONE */
    int32_t partial_tokens;
} prefix_hit;

static uint32_t blocks_for(const gs_kv *kv, int32_t n_tokens) {
    const uint32_t bt = (uint32_t)kv->cfg.block_tokens;
    return n_tokens <= 0 ? 0 : ((uint32_t)n_tokens + bt - 1) / bt;
}

static uint32_t *table_of(const gs_kv *kv, int32_t slot) {
    return kv->tables + (size_t)slot * (size_t)kv->cfg.max_blocks_per_seq;
}

static slot_state *open_slot(const gs_kv *kv, int32_t slot) {
    GS_ASSERT(slot >= 0 && slot < kv->cfg.max_seqs && kv->slots[slot].open);
    return &kv->slots[slot];
}

int gs_kv_create(const gs_kv_config *cfg, gs_kv **out) {
    size_t n_table;
    if (cfg->n_blocks == 0 || cfg->n_blocks == GS_KV_NONE || cfg->block_tokens < 1 ||
        cfg->max_seqs < 1 || cfg->max_blocks_per_seq < 1 ||
        cfg->max_blocks_per_seq > INT32_MAX / cfg->block_tokens ||
        !gs_mul_size((size_t)cfg->max_seqs, (size_t)cfg->max_blocks_per_seq, &n_table))
        return GS_ERR_INVALID;
    gs_kv *kv = gs_calloc(1, sizeof *kv);
    if (!kv)
        return GS_ERR_NOMEM;
    kv->cfg = *cfg;
    if (!cfg->no_prefix_cache)
        kv->ops = cfg->prefix ? cfg->prefix : &gs_prefix_chain;
    kv->refs = gs_calloc(cfg->n_blocks, sizeof *kv->refs);
    kv->pinned = gs_calloc(cfg->n_blocks, sizeof *kv->pinned);
    kv->free = gs_array(cfg->n_blocks, sizeof *kv->free);
    kv->scratch = gs_array(cfg->n_blocks, sizeof *kv->scratch);
    kv->slots = gs_calloc((size_t)cfg->max_seqs, sizeof *kv->slots);
    kv->tables = gs_array(n_table, sizeof *kv->tables);
    if (!kv->refs || !kv->pinned || !kv->free || !kv->scratch || !kv->slots || !kv->tables ||
        (kv->ops && kv->ops->create(cfg->n_blocks, cfg->block_tokens, &kv->prefix) != GS_OK)) {
        gs_kv_free(kv);
        return GS_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < cfg->n_blocks; i++)
        kv->free[i] = cfg->n_blocks - 1 - i; /* low numbers first: they stay close in memory */
    kv->n_free = cfg->n_blocks;
    *out = kv;
    return GS_OK;
}

void gs_kv_free(gs_kv *kv) {
    if (!kv)
        return;
    if (kv->prefix)
        kv->ops->destroy(kv->prefix);
    gs_free(kv->tables);
    gs_free(kv->slots);
    gs_free(kv->scratch);
    gs_free(kv->free);
    gs_free(kv->pinned);
    gs_free(kv->refs);
    gs_free(kv);
}

void gs_kv_get_config(const gs_kv *kv, gs_kv_config *out) {
    *out = kv->cfg;
}

uint32_t gs_kv_available(const gs_kv *kv) {
    return kv->n_free + kv->n_cached;
}

/* ---- single blocks ------------------------------------------------------------------------- */

/* A block with one reference; the caller made sure that one is available. */
static uint32_t take_block(gs_kv *kv) {
    uint32_t b;
    if (kv->n_free > 0) {
        b = kv->free[--kv->n_free];
    } else {
        GS_ASSERT(kv->ops);
        b = kv->ops->evict(kv->prefix);
        GS_ASSERT(b != GS_KV_NONE);
        kv->n_cached--;
        kv->stats.evictions++;
    }
    GS_ASSERT(kv->refs[b] == 0);
    kv->refs[b] = 1;
    return b;
}

/* One more reference to a published block. */
static void hold_block(gs_kv *kv, uint32_t b) {
    GS_ASSERT(kv->ops);
    if (kv->refs[b]++ == 0) {
        kv->ops->hold(kv->prefix, b);
        kv->n_cached--;
    }
}

static void release_block(gs_kv *kv, uint32_t b, bool cold) {
    GS_ASSERT(kv->refs[b] > 0);
    if (--kv->refs[b] > 0)
        return;
    if (kv->ops && kv->ops->published(kv->prefix, b)) {
        kv->ops->park(kv->prefix, b, cold);
        kv->n_cached++;
    } else {
        kv->free[kv->n_free++] = b;
    }
}

/* ---- prefix lookup --------------------------------------------------------------------------*/

/* Goes on from hit->tip by whole blocks of its scope. */
static void walk(const gs_kv *kv, const int32_t *tokens, int32_t n, uint32_t *table,
                 prefix_hit *hit) {
    const int32_t bt = kv->cfg.block_tokens;
    while (hit->n_full < kv->cfg.max_blocks_per_seq && bt <= n - 1 - hit->n_full * bt) {
        const uint32_t b =
            kv->ops->match(kv->prefix, &hit->tip, tokens + hit->n_full * bt, &hit->tip);
        if (b == GS_KV_NONE)
            break;
        if (table)
            table[hit->n_full] = b;
        hit->n_evictable += kv->refs[b] == 0;
        hit->n_full++;
    }
}

/*
 * Finds what seq_open would reuse of tokens[0..n) and writes the whole blocks into table (may be
 * NULL). Changes nothing. At least one token is left over: its logits are what the first step is
 * for, so a prompt that is cached to the end reuses its last block by copy, one token short.
 */
static void find_prefix(const gs_kv *kv, uint64_t scope, const int32_t *tokens, int32_t n,
                        uint32_t *table, prefix_hit *hit) {
    const int32_t bt = kv->cfg.block_tokens;
    *hit = (prefix_hit){.partial = GS_KV_NONE};
    if (!kv->ops || scope == GS_KV_NO_REUSE)
        return;
    if (kv->n_pinned > 0 && scope != GS_KV_PUBLIC) {
        kv->ops->root(kv->prefix, GS_KV_PUBLIC, &hit->tip);
        walk(kv, tokens, n, table, hit);
    }
    if (hit->n_full > 0)
        hit->tip.scope = scope; /* what comes behind is the asker's own */
    else
        kv->ops->root(kv->prefix, scope, &hit->tip);
    walk(kv, tokens, n, table, hit);

    const int32_t pos = hit->n_full * bt;
    const int32_t limit = n - 1 - pos < bt ? n - 1 - pos : bt;
    if (limit < 1 || hit->n_full >= kv->cfg.max_blocks_per_seq || !kv->ops->partial)
        return;
    const uint32_t src =
        kv->ops->partial(kv->prefix, &hit->tip, tokens + pos, limit, &hit->partial_tokens);
    if (src == GS_KV_NONE)
        return;
    /* The copy needs a block of its own that is neither its source nor reused before it. */
    const uint32_t n_evictable = hit->n_evictable + (kv->refs[src] == 0);
    if (gs_kv_available(kv) <= n_evictable)
        return;
    hit->n_evictable = n_evictable;
    hit->partial = src;
}

static int32_t hit_tokens(const gs_kv *kv, const prefix_hit *hit) {
    return hit->n_full * kv->cfg.block_tokens +
           (hit->partial != GS_KV_NONE ? hit->partial_tokens : 0);
}

int32_t gs_kv_peek(const gs_kv *kv, uint64_t scope, const int32_t *tokens, int32_t n) {
    prefix_hit hit;
    find_prefix(kv, scope, tokens, n, NULL, &hit);
    return hit_tokens(kv, &hit);
}

uint32_t gs_kv_open_needs(const gs_kv *kv, uint64_t scope, const int32_t *tokens, int32_t n,
                          int32_t n_tokens) {
    prefix_hit hit;
    find_prefix(kv, scope, tokens, n, NULL, &hit);
    const uint32_t total = blocks_for(kv, n_tokens);
    const uint32_t full = (uint32_t)hit.n_full;
    return (total > full ? total - full : 0) + hit.n_evictable;
}

/* ---- sequences ----------------------------------------------------------------------------- */

int gs_kv_seq_open(gs_kv *kv, int32_t slot, uint64_t scope, const int32_t *tokens, int32_t n,
                   gs_kv_reuse *out) {
    GS_ASSERT(slot >= 0 && slot < kv->cfg.max_seqs && !kv->slots[slot].open);
    if (n < 1)
        return GS_ERR_INVALID;
    slot_state *s = &kv->slots[slot];
    uint32_t *table = table_of(kv, slot);
    prefix_hit hit;
    find_prefix(kv, scope, tokens, n, table, &hit);
    *s = (slot_state){.open = true,
                      .publish = kv->ops != NULL && scope != GS_KV_NO_REUSE,
                      .n_blocks = hit.n_full,
                      .n_computed = hit_tokens(kv, &hit),
                      .n_chained = hit.n_full,
                      .copy_src = hit.partial,
                      .tip = hit.tip};
    *out = (gs_kv_reuse){.n_cached = s->n_computed};
    /* Hold everything that matched before a block is taken: taking evicts. */
    for (int32_t i = 0; i < hit.n_full; i++)
        hold_block(kv, table[i]);
    if (hit.partial != GS_KV_NONE) {
        hold_block(kv, hit.partial);
        const uint32_t dst = take_block(kv);
        table[s->n_blocks++] = dst;
        out->copy = (gs_kv_copy_op){.dst = dst, .src = hit.partial, .n_tokens = hit.partial_tokens};
    }
    if (scope != GS_KV_NO_REUSE)
        kv->stats.lookups_tokens += (uint64_t)n;
    kv->stats.hits_tokens += (uint64_t)out->n_cached;
    return GS_OK;
}

uint32_t gs_kv_seq_lacks(const gs_kv *kv, int32_t slot, int32_t n_tokens) {
    const uint32_t have = (uint32_t)open_slot(kv, slot)->n_blocks;
    const uint32_t need = blocks_for(kv, n_tokens);
    return need > have ? need - have : 0;
}

int gs_kv_seq_grow(gs_kv *kv, int32_t slot, int32_t n_tokens) {
    slot_state *s = open_slot(kv, slot);
    if (blocks_for(kv, n_tokens) > (uint32_t)kv->cfg.max_blocks_per_seq)
        return GS_ERR_CONTEXT;
    uint32_t lacks = gs_kv_seq_lacks(kv, slot, n_tokens);
    if (lacks > gs_kv_available(kv))
        return GS_ERR_KV_FULL;
    for (; lacks > 0; lacks--)
        table_of(kv, slot)[s->n_blocks++] = take_block(kv);
    return GS_OK;
}

static void end_copy(gs_kv *kv, slot_state *s) {
    if (s->copy_src != GS_KV_NONE)
        release_block(kv, s->copy_src, s->cold);
    s->copy_src = GS_KV_NONE;
}

void gs_kv_seq_commit(gs_kv *kv, int32_t slot, const int32_t *tokens, int32_t n_computed) {
    slot_state *s = open_slot(kv, slot);
    const int32_t bt = kv->cfg.block_tokens;
    GS_ASSERT(n_computed >= s->n_computed && n_computed <= s->n_blocks * bt);
    s->n_computed = n_computed;
    end_copy(kv, s);
    const uint32_t *table = table_of(kv, slot);
    while (s->publish && n_computed - s->n_chained * bt >= bt) {
        /* An equal block that was published first stays the public one and ours stays private;
         * the chain goes on behind the public one. */
        const bool inserted = kv->ops->insert(kv->prefix, &s->tip, table[s->n_chained],
                                              tokens + s->n_chained * bt, &s->tip);
        if (!inserted && s->tip.uid == 0)
            s->publish = false; /* the chain was evicted or dropped under us */
        else
            s->n_chained++;
    }
}

void gs_kv_seq_set_cold(gs_kv *kv, int32_t slot) {
    open_slot(kv, slot)->cold = true;
}

void gs_kv_seq_close(gs_kv *kv, int32_t slot) {
    slot_state *s = open_slot(kv, slot);
    end_copy(kv, s);
    /* Tail first: the end of a conversation is evicted before the prefix that others share. */
    while (s->n_blocks > 0)
        release_block(kv, table_of(kv, slot)[--s->n_blocks], s->cold);
    s->open = false;
}

uint32_t gs_kv_pin(gs_kv *kv, const int32_t *tokens, int32_t n) {
    const uint32_t before = kv->n_pinned;
    const int32_t bt = kv->cfg.block_tokens;
    gs_prefix_node at;
    if (!kv->ops)
        return 0;
    kv->ops->root(kv->prefix, GS_KV_PUBLIC, &at);
    for (int32_t pos = 0; pos + bt <= n; pos += bt) {
        const uint32_t b = kv->ops->match(kv->prefix, &at, tokens + pos, &at);
        if (b == GS_KV_NONE)
            break;
        if (kv->pinned[b])
            continue;
        hold_block(kv, b);
        kv->pinned[b] = 1;
        kv->n_pinned++;
    }
    return kv->n_pinned - before;
}

/* The place behind the pinned blocks of tokens[0..n). False: they are not all there. */
static bool walk_pinned(const gs_kv *kv, const int32_t *tokens, int32_t n, gs_prefix_node *at) {
    const int32_t bt = kv->cfg.block_tokens;
    if (!kv->ops)
        return false;
    kv->ops->root(kv->prefix, GS_KV_PUBLIC, at);
    for (int32_t pos = 0; pos < n; pos += bt) {
        const uint32_t b = kv->ops->match(kv->prefix, at, tokens + pos, at);
        if (b == GS_KV_NONE || !kv->pinned[b])
            return false;
    }
    return true;
}

int gs_kv_pinned_block(const gs_kv *kv, const int32_t *tokens, int32_t n, uint32_t *block) {
    gs_prefix_node at;
    GS_ASSERT(n > 0 && n % kv->cfg.block_tokens == 0);
    if (!walk_pinned(kv, tokens, n, &at))
        return GS_ERR_NOT_FOUND;
    *block = at.block;
    return GS_OK;
}

int gs_kv_put_pinned(gs_kv *kv, const int32_t *tokens, int32_t n, uint32_t *block) {
    const int32_t bt = kv->cfg.block_tokens;
    gs_prefix_node at, next;
    GS_ASSERT(n > 0 && n % bt == 0);
    if (!walk_pinned(kv, tokens, n - bt, &at))
        return GS_ERR_NOT_FOUND;
    if (kv->ops->match(kv->prefix, &at, tokens + n - bt, &next) != GS_KV_NONE)
        return GS_ERR_EXISTS;
    if (gs_kv_available(kv) == 0)
        return GS_ERR_KV_FULL;
    const uint32_t b = take_block(kv); /* evicts nothing that is pinned */
    const bool inserted = kv->ops->insert(kv->prefix, &at, b, tokens + n - bt, &next);
    GS_ASSERT(inserted);
    kv->pinned[b] = 1;
    kv->n_pinned++;
    *block = b;
    return GS_OK;
}

const uint32_t *gs_kv_seq_blocks(const gs_kv *kv, int32_t slot, int32_t *n_blocks) {
    *n_blocks = open_slot(kv, slot)->n_blocks;
    return table_of(kv, slot);
}

uint32_t gs_kv_seq_exclusive(const gs_kv *kv, int32_t slot) {
    const slot_state *s = open_slot(kv, slot);
    const uint32_t *table = table_of(kv, slot);
    uint32_t n = s->copy_src != GS_KV_NONE && kv->refs[s->copy_src] == 1;
    for (int32_t i = 0; i < s->n_blocks; i++)
        n += kv->refs[table[i]] == 1;
    return n;
}

uint32_t gs_kv_drop_cached(gs_kv *kv, uint64_t scope, bool scope_all) {
    uint32_t n = 0;
    if (!kv->ops)
        return 0;
    for (uint32_t b = 0; b < kv->cfg.n_blocks; b++) {
        if (!kv->ops->published(kv->prefix, b) ||
            (!scope_all && !kv->ops->in_scope(kv->prefix, b, scope)))
            continue;
        /* A block in use is forgotten too: later requests must not find it. */
        kv->ops->remove(kv->prefix, b);
        if (kv->pinned[b]) {
            kv->pinned[b] = 0;
            kv->n_pinned--;
            n += kv->refs[b] == 1;
            release_block(kv, b, false);
        } else if (kv->refs[b] == 0) {
            kv->free[kv->n_free++] = b;
            kv->n_cached--;
            n++;
        }
    }
    return n;
}

void gs_kv_map(const gs_kv *kv, int32_t *out) {
    for (uint32_t b = 0; b < kv->cfg.n_blocks; b++)
        out[b] = kv->pinned[b]     ? GS_KV_MAP_PINNED
                 : kv->refs[b] > 0 ? GS_KV_MAP_OTHER
                                   : GS_KV_MAP_CACHED;
    for (uint32_t i = 0; i < kv->n_free; i++)
        out[kv->free[i]] = GS_KV_MAP_FREE;
    for (int32_t slot = kv->cfg.max_seqs - 1; slot >= 0; slot--) {
        const slot_state *s = &kv->slots[slot];
        for (int32_t i = 0; s->open && i < s->n_blocks; i++)
            out[table_of(kv, slot)[i]] = slot;
    }
}

void gs_kv_get_stats(const gs_kv *kv, gs_kv_stats *out) {
    *out = kv->stats;
    out->n_blocks = kv->cfg.n_blocks;
    out->n_free = kv->n_free;
    out->n_cached = kv->n_cached;
    out->n_pinned = kv->n_pinned;
    out->n_held = kv->cfg.n_blocks - kv->n_free - kv->n_cached;
}

/* ---- invariants ---------------------------------------------------------------------------- */

static int check_slot(const gs_kv *kv, int32_t slot, char *err, size_t errlen) {
    const slot_state *s = &kv->slots[slot];
    const uint32_t *table = table_of(kv, slot);
    const int32_t bt = kv->cfg.block_tokens;
    if (s->n_blocks < 0 || s->n_blocks > kv->cfg.max_blocks_per_seq || s->n_computed < 0 ||
        s->n_computed > s->n_blocks * bt || s->n_chained * bt > s->n_computed)
        return gs_fail(err, errlen, GS_ERR_INTERNAL,
                       "slot %d: %d tokens computed in %d blocks, %d chained", slot, s->n_computed,
                       s->n_blocks, s->n_chained);
    for (int32_t i = 0; i < s->n_blocks; i++) {
        if (table[i] >= kv->cfg.n_blocks)
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "slot %d: block %u is not in the pool",
                           slot, table[i]);
        kv->scratch[table[i]]++;
        const bool writable = i >= s->n_computed / bt;
        if (writable &&
            (kv->refs[table[i]] != 1 || (kv->ops && kv->ops->published(kv->prefix, table[i]))))
            return gs_fail(err, errlen, GS_ERR_INTERNAL,
                           "slot %d may write block %u, which is shared or published", slot,
                           table[i]);
    }
    if (s->copy_src != GS_KV_NONE)
        kv->scratch[s->copy_src]++;
    return GS_OK;
}

int gs_kv_check(const gs_kv *kv, char *err, size_t errlen) {
    const uint32_t n_blocks = kv->cfg.n_blocks;
    memset(kv->scratch, 0, n_blocks * sizeof *kv->scratch);
    for (int32_t i = 0; i < kv->cfg.max_seqs; i++) {
        const int rc = kv->slots[i].open ? check_slot(kv, i, err, errlen) : GS_OK;
        if (rc != GS_OK)
            return rc;
    }
    uint32_t n_held = 0, n_cached = 0, n_pinned = 0;
    for (uint32_t b = 0; b < n_blocks; b++) {
        kv->scratch[b] += kv->pinned[b];
        n_pinned += kv->pinned[b];
        if (kv->pinned[b] && !(kv->ops && kv->ops->published(kv->prefix, b)))
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "block %u is pinned and not published", b);
        if (kv->scratch[b] != kv->refs[b])
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "block %u: %u references, %u owners", b,
                           kv->refs[b], kv->scratch[b]);
        n_held += kv->refs[b] > 0;
        n_cached += kv->refs[b] == 0 && kv->ops && kv->ops->published(kv->prefix, b);
    }
    if (n_pinned != kv->n_pinned)
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "%u blocks pinned, %u counted", n_pinned,
                       kv->n_pinned);
    if (n_cached != kv->n_cached || n_held + n_cached + kv->n_free != n_blocks)
        return gs_fail(err, errlen, GS_ERR_INTERNAL,
                       "%u held, %u cached (%u counted) and %u free of %u blocks", n_held, n_cached,
                       kv->n_cached, kv->n_free, n_blocks);
    /* Each free number once: with the sums above, that leaves none in two places. */
    for (uint32_t i = 0; i < kv->n_free; i++) {
        const uint32_t b = kv->free[i];
        if (b >= n_blocks || kv->refs[b] != 0 || kv->scratch[b] != 0 ||
            (kv->ops && kv->ops->published(kv->prefix, b)))
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "block %u is free and in use", b);
        kv->scratch[b] = 1;
    }
    return kv->ops ? kv->ops->check(kv->prefix, n_cached, err, errlen) : GS_OK;
}
