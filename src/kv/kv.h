/*
 * KV ledger: block pool, refcounted block tables, prefix cache. Pure bookkeeping of block NUMBERS;
 * the memory behind them belongs to the compute backend (kernels/attn.h).
 *
 * A block holds block_tokens positions. A sequence's block table lists its blocks in order. A
 * full block whose tokens are known may be published in the prefix cache, keyed by the chain
 *
 *     key(i) = xxh64(key(i-1), tokens of block i),   key(-1) = xxh64(cache scope)
 *
 * and confirmed by comparing tokens and parent, so that a hash collision can't leak another
 * person's keys. Lookups never cross scopes, but all begin in the public one. A block is in one of
 * three states:
 *
 *     free ──take──► held (refcount >= 1) ──last release──► cached (if published) or free
 *                        ▲                                     │ LRU eviction when free runs out
 *                        └──────────── reuse ──────────────────┘
 *
 * Invariants (gs_kv_check): free + cached + held = n_blocks; each refcount equals the number of
 * tables (pending copies, pins) that list the block; a block that some sequence may still write is
 * listed by that sequence alone and is not published.
 *
 * Pure: no clock, no I/O, no threads, no allocation after create. Owner: the engine thread, or the
 * simulator, or a test. Sources: Kwon et al. SOSP'23 (paging); chained block hashes as in vLLM V1.
 */
#ifndef GS_KV_KV_H
#define GS_KV_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gs_kv gs_kv;

/* The one scope that every lookup begins in: what is published here (a home's registered
 * instructions) is found by all, and each scope's own blocks go on behind it. */
#define GS_KV_PUBLIC UINT64_MAX
/* A scope of nobody: what it asks for is never found, what it computes is never kept. */
#define GS_KV_NO_REUSE (UINT64_MAX - 1)
typedef struct gs_prefix_ops gs_prefix_ops; /* kv/prefix.h: one of the four vtables */

typedef struct gs_kv_config {
    uint32_t n_blocks;
    int32_t block_tokens;        /* 32 */
    int32_t max_seqs;            /* slots 0 .. max_seqs-1 */
    int32_t max_blocks_per_seq;  /* ceil(context / block_tokens) */
    const gs_prefix_ops *prefix; /* NULL: the default, chained hashes with LRU */
    bool no_prefix_cache;
} gs_kv_config;

/* The first n_tokens positions of block src are to be copied to block dst before the next step
 * that computes tokens of that sequence. src stays held until the sequence's next
 * gs_kv_seq_commit or its close. n_tokens 0: nothing to copy. */
typedef struct gs_kv_copy_op {
    uint32_t dst, src;
    int32_t n_tokens;
} gs_kv_copy_op;

typedef struct gs_kv_reuse {
    int32_t n_cached;   /* tokens whose keys and values need not be computed; < n_tokens */
    gs_kv_copy_op copy; /* the partly matching last block, already counted in n_cached */
} gs_kv_reuse;

typedef struct gs_kv_stats {
    uint32_t n_blocks, n_free, n_cached, n_held;
    uint32_t n_pinned;                    /* of n_held */
    uint64_t lookups_tokens, hits_tokens; /* prompt tokens looked up, found */
    uint64_t evictions;
} gs_kv_stats;

int gs_kv_create(const gs_kv_config *cfg, gs_kv **out); /* GS_ERR_INVALID, GS_ERR_NOMEM */
void gs_kv_free(gs_kv *kv);
void gs_kv_get_config(const gs_kv *kv, gs_kv_config *out);

/*
 * Opens slot for a sequence whose known tokens are tokens[0..n): takes what the prefix cache has
 * of them, to the token (a partly matching block is copied, see gs_kv_reuse), always leaving at
 * least one token to compute. The slot must be closed. GS_OK even without free blocks: then
 * nothing partial is reused.
 */
int gs_kv_seq_open(gs_kv *kv, int32_t slot, uint64_t scope, const int32_t *tokens, int32_t n,
                   gs_kv_reuse *out);
/* How many tokens gs_kv_seq_open would reuse; changes nothing, not even LRU order. */
int32_t gs_kv_peek(const gs_kv *kv, uint64_t scope, const int32_t *tokens, int32_t n);
/* What opening a slot for tokens[0..n) and growing it to n_tokens positions would take out of
 * gs_kv_available. Exact; changes nothing. */
uint32_t gs_kv_open_needs(const gs_kv *kv, uint64_t scope, const int32_t *tokens, int32_t n,
                          int32_t n_tokens);
/* Blocks the slot lacks to hold positions [0, n_tokens). */
uint32_t gs_kv_seq_lacks(const gs_kv *kv, int32_t slot, int32_t n_tokens);
/* Makes room for positions [0, n_tokens), evicting cached prefixes as needed. All or nothing:
 * GS_ERR_KV_FULL changes nothing; GS_ERR_CONTEXT beyond max_blocks_per_seq. */
int gs_kv_seq_grow(gs_kv *kv, int32_t slot, int32_t n_tokens);
/* tokens[0..n_computed) are now in the pool: publishes newly full blocks, ends a pending copy. */
void gs_kv_seq_commit(gs_kv *kv, int32_t slot, const int32_t *tokens, int32_t n_computed);
/* What the slot leaves in the prefix cache is unlikely to be asked for again (an index, a batch
 * job): it is evicted before everything else. Until close; blocks that others used stay warm. */
void gs_kv_seq_set_cold(gs_kv *kv, int32_t slot);
/* Releases everything the slot holds; published blocks stay cached, tail evicted first. */
void gs_kv_seq_close(gs_kv *kv, int32_t slot);

/* Keeps the whole blocks that GS_KV_PUBLIC has of tokens[0..n): they count as held until they are
 * dropped (gs_kv_drop_cached). Returns how many are pinned that were not before. */
uint32_t gs_kv_pin(gs_kv *kv, const int32_t *tokens, int32_t n);
/* The pinned block of the last block_tokens of tokens[0..n), n a multiple of them, n > 0.
 * GS_ERR_NOT_FOUND: there is none. */
int gs_kv_pinned_block(const gs_kv *kv, const int32_t *tokens, int32_t n, uint32_t *block);
/* The same where there is none yet, and all before it are pinned: takes a block, publishes and pins
 * it. Whoever calls fills it with what an earlier process computed, before the next step. GS_OK;
 * GS_ERR_EXISTS: it is there already; GS_ERR_NOT_FOUND: one before it is not; GS_ERR_KV_FULL. */
int gs_kv_put_pinned(gs_kv *kv, const int32_t *tokens, int32_t n, uint32_t *block);

const uint32_t *gs_kv_seq_blocks(const gs_kv *kv, int32_t slot, int32_t *n_blocks);
/* Blocks obtainable now: free + cached (evictable). */
uint32_t gs_kv_available(const gs_kv *kv);
/* Blocks that only this slot holds: what closing it would make available. */
uint32_t gs_kv_seq_exclusive(const gs_kv *kv, int32_t slot);
/* Forgets the published prefixes of one scope, or of all with scope_all, also those in use: no
 * later lookup finds them. Returns blocks freed. */
uint32_t gs_kv_drop_cached(gs_kv *kv, uint64_t scope, bool scope_all);
void gs_kv_get_stats(const gs_kv *kv, gs_kv_stats *out);
/* Who has each block: the first slot whose table lists it, or one of the below. O(blocks + tables),
 * for whoever wants to see the pool. */
enum {
    GS_KV_MAP_FREE = -1,
    GS_KV_MAP_CACHED = -2,
    GS_KV_MAP_PINNED = -3,
    GS_KV_MAP_OTHER = -4 /* held for a pending copy alone */
};
void gs_kv_map(const gs_kv *kv, int32_t *out /* [n_blocks] */);
/* All invariants; GS_OK, or GS_ERR_INTERNAL with a sentence. O(blocks + tables). */
int gs_kv_check(const gs_kv *kv, char *err, size_t errlen);

#endif
