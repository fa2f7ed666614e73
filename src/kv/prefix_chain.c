/*
 * The default prefix cache: chained block hashes with LRU eviction (the scheme of vLLM V1).
 *
 * Two chained hash tables over the same entries: by_key finds the block that continues a chain
 * with given tokens; by_parent lists all blocks that continue a place, for the partial match. A
 * hash only finds candidates: tokens, parent and scope are compared, so a collision costs a
 * comparison and never another person's keys.
 */
#include "kv/prefix.h"

#include <string.h>

#include <xxhash.h>

#include "base/err.h"
#include "base/sys.h"
#include "kv/kv_impl.h"

static const int32_t *tokens_of(const gs_prefix *p, uint32_t block) {
    return p->tokens + (size_t)block * (size_t)p->block_tokens;
}

static uint64_t chain_key(const gs_prefix *p, uint64_t parent_key, const int32_t *tokens) {
    return XXH64(tokens, (size_t)p->block_tokens * sizeof *tokens, parent_key);
}

/* Bucket of the blocks that continue (scope, uid): roots of different scopes spread out. */
static uint32_t parent_bucket(const gs_prefix *p, uint64_t scope, uint64_t uid) {
    const uint64_t pair[2] = {scope, uid};
    return (uint32_t)XXH64(pair, sizeof pair, 0) & p->mask;
}

static void chain_destroy(gs_prefix *p) {
    if (!p)
        return;
    gs_free(p->by_parent);
    gs_free(p->by_key);
    gs_free(p->tokens);
    gs_free(p->entries);
    gs_free(p);
}

static int chain_create(uint32_t n_blocks, int32_t block_tokens, gs_prefix **out) {
    gs_prefix *p = gs_calloc(1, sizeof *p);
    if (!p)
        return GS_ERR_NOMEM;
    /* At most half full, so that chains stay short. */
    uint32_t size = 16;
    while (size < UINT32_MAX / 4 && size / 2 < n_blocks)
        size *= 2;
    p->n_blocks = n_blocks;
    p->block_tokens = block_tokens;
    p->mask = size - 1;
    p->lists[0] = p->lists[1] = (lru){GS_KV_NONE, GS_KV_NONE};
    p->entries = gs_calloc(n_blocks, sizeof *p->entries);
    p->tokens = gs_calloc(n_blocks, (size_t)block_tokens * sizeof *p->tokens);
    p->by_key = gs_array(size, sizeof *p->by_key);
    p->by_parent = gs_array(size, sizeof *p->by_parent);
    if (!p->entries || !p->tokens || !p->by_key || !p->by_parent) {
        chain_destroy(p);
        return GS_ERR_NOMEM;
    }
    memset(p->by_key, 0xff, size * sizeof *p->by_key);
    memset(p->by_parent, 0xff, size * sizeof *p->by_parent);
    *out = p;
    return GS_OK;
}

static void chain_root(const gs_prefix *p, uint64_t scope, gs_prefix_node *out) {
    (void)p;
    *out = (gs_prefix_node){
        .scope = scope, .key = XXH64(&scope, sizeof scope, 0), .uid = 0, .block = GS_KV_NONE};
}

static void node_of(const gs_prefix *p, uint32_t block, gs_prefix_node *out) {
    const entry *e = &p->entries[block];
    *out = (gs_prefix_node){.scope = e->scope, .key = e->key, .uid = e->uid, .block = block};
}

static uint32_t chain_match(const gs_prefix *p, const gs_prefix_node *at, const int32_t *tokens,
                            gs_prefix_node *next) {
    const uint64_t key = chain_key(p, at->key, tokens);
    const size_t n_bytes = (size_t)p->block_tokens * sizeof *tokens;
    for (uint32_t b = p->by_key[key & p->mask]; b != GS_KV_NONE; b = p->entries[b].key_next) {
        const entry *e = &p->entries[b];
        if (e->key == key && e->parent_uid == at->uid && e->scope == at->scope &&
            memcmp(tokens_of(p, b), tokens, n_bytes) == 0) {
            node_of(p, b, next);
            return b;
        }
    }
    return GS_KV_NONE;
}

/* Linear in the children of one place: a few in a conversation, at most the pool's size. */
static uint32_t chain_partial(const gs_prefix *p, const gs_prefix_node *at, const int32_t *tokens,
                              int32_t n, int32_t *n_shared) {
    uint32_t best = GS_KV_NONE;
    int32_t best_shared = 0;
    const uint32_t bucket = parent_bucket(p, at->scope, at->uid);
    for (uint32_t b = p->by_parent[bucket]; b != GS_KV_NONE; b = p->entries[b].parent_next) {
        const entry *e = &p->entries[b];
        if (e->parent_uid != at->uid || e->scope != at->scope)
            continue;
        const int32_t *have = tokens_of(p, b);
        int32_t shared = 0;
        while (shared < n && have[shared] == tokens[shared])
            shared++;
        if (shared > best_shared) {
            best_shared = shared;
            best = b;
        }
    }
    *n_shared = best_shared;
    return best;
}

static bool chain_insert(gs_prefix *p, const gs_prefix_node *at, uint32_t block,
                         const int32_t *tokens, gs_prefix_node *next) {
    /* A block behind an evicted one could never be found: better not to keep it at all. */
    if (at->uid != 0 && p->entries[at->block].uid != at->uid) {
        chain_root(p, at->scope, next);
        return false;
    }
    if (chain_match(p, at, tokens, next) != GS_KV_NONE)
        return false;

    entry *e = &p->entries[block];
    GS_ASSERT(e->uid == 0);
    *e = (entry){.uid = ++p->last_uid,
                 .parent_uid = at->uid,
                 .scope = at->scope,
                 .key = chain_key(p, at->key, tokens),
                 .key_prev = GS_KV_NONE,
                 .parent_prev = GS_KV_NONE};
    memcpy(p->tokens + (size_t)block * (size_t)p->block_tokens, tokens,
           (size_t)p->block_tokens * sizeof *tokens);

    uint32_t *head = &p->by_key[e->key & p->mask];
    e->key_next = *head;
    if (*head != GS_KV_NONE)
        p->entries[*head].key_prev = block;
    *head = block;

    head = &p->by_parent[parent_bucket(p, e->scope, e->parent_uid)];
    e->parent_next = *head;
    if (*head != GS_KV_NONE)
        p->entries[*head].parent_prev = block;
    *head = block;

    node_of(p, block, next);
    return true;
}

static void chain_hold(gs_prefix *p, uint32_t block) {
    entry *e = &p->entries[block];
    lru *l = &p->lists[e->warm];
    GS_ASSERT(e->parked);
    if (e->lru_prev != GS_KV_NONE)
        p->entries[e->lru_prev].lru_next = e->lru_next;
    else
        l->head = e->lru_next;
    if (e->lru_next != GS_KV_NONE)
        p->entries[e->lru_next].lru_prev = e->lru_prev;
    else
        l->tail = e->lru_prev;
    e->parked = false;
    p->n_parked--;
}

/* The end of the list is the youngest. */
static void chain_park(gs_prefix *p, uint32_t block, bool cold) {
    entry *e = &p->entries[block];
    GS_ASSERT(e->uid != 0 && !e->parked);
    e->warm |= !cold;
    lru *l = &p->lists[e->warm];
    e->lru_prev = l->tail;
    e->lru_next = GS_KV_NONE;
    if (l->tail != GS_KV_NONE)
        p->entries[l->tail].lru_next = block;
    else
        l->head = block;
    l->tail = block;
    e->parked = true;
    p->n_parked++;
}

static void chain_remove(gs_prefix *p, uint32_t block) {
    entry *e = &p->entries[block];
    GS_ASSERT(e->uid != 0);
    if (e->parked)
        chain_hold(p, block);
    if (e->key_prev != GS_KV_NONE)
        p->entries[e->key_prev].key_next = e->key_next;
    else
        p->by_key[e->key & p->mask] = e->key_next;
    if (e->key_next != GS_KV_NONE)
        p->entries[e->key_next].key_prev = e->key_prev;
    if (e->parent_prev != GS_KV_NONE)
        p->entries[e->parent_prev].parent_next = e->parent_next;
    else
        p->by_parent[parent_bucket(p, e->scope, e->parent_uid)] = e->parent_next;
    if (e->parent_next != GS_KV_NONE)
        p->entries[e->parent_next].parent_prev = e->parent_prev;
    /* Its children stay until their turn comes; their parent_uid matches nothing any more. */
    e->uid = 0;
}

static uint32_t chain_evict(gs_prefix *p) {
    const uint32_t cold = p->lists[0].head;
    const uint32_t block = cold != GS_KV_NONE ? cold : p->lists[1].head;
    if (block != GS_KV_NONE)
        chain_remove(p, block);
    return block;
}

static bool chain_published(const gs_prefix *p, uint32_t block) {
    return p->entries[block].uid != 0;
}

static bool chain_in_scope(const gs_prefix *p, uint32_t block, uint64_t scope) {
    return p->entries[block].uid != 0 && p->entries[block].scope == scope;
}

/* Counts the entries that a table reaches, each from the bucket where it belongs. */
static int check_table(const gs_prefix *p, bool by_parent, uint32_t *n_out, char *err,
                       size_t errlen) {
    uint32_t n = 0;
    for (uint32_t bucket = 0; bucket <= p->mask; bucket++) {
        uint32_t prev = GS_KV_NONE;
        uint32_t b = by_parent ? p->by_parent[bucket] : p->by_key[bucket];
        while (b != GS_KV_NONE) {
            const entry *e = &p->entries[b];
            const uint32_t home = by_parent ? parent_bucket(p, e->scope, e->parent_uid)
                                            : (uint32_t)(e->key & p->mask);
            if (++n > p->n_blocks || e->uid == 0 || home != bucket ||
                (by_parent ? e->parent_prev : e->key_prev) != prev)
                return gs_fail(err, errlen, GS_ERR_INTERNAL,
                               "prefix cache: block %u is in the wrong %s bucket", b,
                               by_parent ? "parent" : "key");
            prev = b;
            b = by_parent ? e->parent_next : e->key_next;
        }
    }
    *n_out = n;
    return GS_OK;
}

static int chain_check(const gs_prefix *p, uint32_t n_parked, char *err, size_t errlen) {
    uint32_t n_key = 0, n_parent = 0, n_published = 0, n_lru = 0;
    int rc = check_table(p, false, &n_key, err, errlen);
    if (rc == GS_OK)
        rc = check_table(p, true, &n_parent, err, errlen);
    if (rc != GS_OK)
        return rc;
    for (uint32_t b = 0; b < p->n_blocks; b++) {
        const entry *e = &p->entries[b];
        if (e->uid == 0 && e->parked)
            return gs_fail(err, errlen, GS_ERR_INTERNAL,
                           "prefix cache: block %u is evictable but not published", b);
        if (e->uid > p->last_uid || (e->uid != 0 && e->parent_uid >= e->uid))
            return gs_fail(err, errlen, GS_ERR_INTERNAL,
                           "prefix cache: block %u is older than its parent", b);
        n_published += e->uid != 0;
    }
    if (n_key != n_published || n_parent != n_published)
        return gs_fail(err, errlen, GS_ERR_INTERNAL,
                       "prefix cache: %u blocks published, %u by key, %u by parent", n_published,
                       n_key, n_parent);
    bool whole = true;
    for (int i = 0; i < 2; i++) {
        uint32_t prev = GS_KV_NONE;
        for (uint32_t b = p->lists[i].head; b != GS_KV_NONE; b = p->entries[b].lru_next) {
            const entry *e = &p->entries[b];
            if (++n_lru > p->n_blocks || !e->parked || e->lru_prev != prev || e->warm != (i == 1))
                return gs_fail(err, errlen, GS_ERR_INTERNAL,
                               "prefix cache: the LRU list is broken at block %u", b);
            prev = b;
        }
        whole &= p->lists[i].tail == prev;
    }
    if (n_lru != p->n_parked || n_parked != p->n_parked || !whole)
        return gs_fail(err, errlen, GS_ERR_INTERNAL,
                       "prefix cache: %u blocks in the LRU list, %u counted, %u in the pool", n_lru,
                       p->n_parked, n_parked);
    return GS_OK;
}

const gs_prefix_ops gs_prefix_chain = {
    .name = "chain",
    .create = chain_create,
    .destroy = chain_destroy,
    .root = chain_root,
    .match = chain_match,
    .partial = chain_partial,
    .insert = chain_insert,
    .hold = chain_hold,
    .park = chain_park,
    .evict = chain_evict,
    .remove = chain_remove,
    .published = chain_published,
    .in_scope = chain_in_scope,
    .check = chain_check,
};
