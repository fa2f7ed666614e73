/*
 * Prefix cache: which block holds the keys and values of which tokens. One of the four vtables.
 *
 * It is an index over the pool's block numbers, not a second pool: gs_kv counts references and
 * tells the index when a published block loses its last one (park: now evictable) or gets one
 * again (hold). The index decides what matches and what is evicted first. It allocates in create
 * only. Private to kv/ and its tests.
 *
 * A node names a place in a chain of published blocks: the root of a scope, or one block. Each
 * publication gets a number (uid) that is never given again, so a block that was evicted and
 * filled anew can't be taken for the parent it used to be.
 */
#ifndef GS_KV_PREFIX_H
#define GS_KV_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kv/kv.h"

#define GS_KV_NONE UINT32_MAX /* no block */

typedef struct gs_prefix gs_prefix;

typedef struct gs_prefix_node {
    uint64_t scope;
    uint64_t key;   /* chained hash up to and including this block */
    uint64_t uid;   /* 0: the root of the scope */
    uint32_t block; /* GS_KV_NONE at the root */
} gs_prefix_node;

struct gs_prefix_ops {
    const char *name;
    int (*create)(uint32_t n_blocks, int32_t block_tokens, gs_prefix **out);
    void (*destroy)(gs_prefix *p);

    void (*root)(const gs_prefix *p, uint64_t scope, gs_prefix_node *out);
    /* The published block that continues at with exactly tokens[0..block_tokens), or GS_KV_NONE.
     * next may be at itself. */
    uint32_t (*match)(const gs_prefix *p, const gs_prefix_node *at, const int32_t *tokens,
                      gs_prefix_node *next);
    /* Among the blocks that continue at, the one that shares the most leading tokens with
     * tokens[0..n), n <= block_tokens; GS_KV_NONE if none shares one. Of equals, the one published
     * last. Optional: NULL means that only whole blocks are reused. */
    uint32_t (*partial)(const gs_prefix *p, const gs_prefix_node *at, const int32_t *tokens,
                        int32_t n, int32_t *n_shared);
    /* Publishes a held block after at. True: it is the one at next now. False: next is an equal
     * block that was there first, or has uid 0 when at is no longer published. next may be at. */
    bool (*insert)(gs_prefix *p, const gs_prefix_node *at, uint32_t block, const int32_t *tokens,
                   gs_prefix_node *next);
    void (*hold)(gs_prefix *p, uint32_t block); /* its first reference: not evictable */
    /* Its last reference went: evictable. cold: before all that ever was parked warm. */
    void (*park)(gs_prefix *p, uint32_t block, bool cold);
    uint32_t (*evict)(gs_prefix *p);              /* unpublishes the next victim; GS_KV_NONE */
    void (*remove)(gs_prefix *p, uint32_t block); /* unpublishes a block, parked or not */
    bool (*published)(const gs_prefix *p, uint32_t block);
    bool (*in_scope)(const gs_prefix *p, uint32_t block, uint64_t scope);
    /* Its own invariants; n_parked is what the pool counts. */
    int (*check)(const gs_prefix *p, uint32_t n_parked, char *err, size_t errlen);
};

/* "chain": xxh64 over the parent's key and the block's tokens, LRU eviction. The default. */
extern const gs_prefix_ops gs_prefix_chain;

#endif
