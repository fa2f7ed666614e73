/* Private to kv/: what the pool and its default index are made of, for them and for tests that
 * break it. */
#ifndef GS_KV_KV_IMPL_H
#define GS_KV_KV_IMPL_H

#include <stdbool.h>

#include "kv/kv.h"
#include "kv/prefix.h"

/* ---- kv.c ---- */

typedef struct slot_state {
    bool open;
    bool cold;          /* see gs_kv_seq_set_cold */
    bool publish;       /* false once the chain this sequence extends is gone */
    int32_t n_blocks;   /* of its table */
    int32_t n_computed; /* tokens in the pool, as of the last commit */
    int32_t n_chained;  /* leading blocks that are behind tip */
    uint32_t copy_src;  /* held for a pending copy, or GS_KV_NONE */
    gs_prefix_node tip; /* where the next full block is published */
} slot_state;

struct gs_kv {
    gs_kv_config cfg;
    const gs_prefix_ops *ops; /* NULL: no prefix cache */
    gs_prefix *prefix;
    uint32_t *refs;  /* [n_blocks] tables, pending copies and pins that list the block */
    uint8_t *pinned; /* [n_blocks] 0 or 1 */
    uint32_t n_pinned;
    uint32_t *free; /* [n_blocks] stack */
    uint32_t n_free;
    uint32_t n_cached; /* published, refs 0 */
    slot_state *slots; /* [max_seqs] */
    uint32_t *tables;  /* [max_seqs][max_blocks_per_seq] */
    uint32_t *scratch; /* [n_blocks], for gs_kv_check */
    gs_kv_stats stats;
};

/* ---- prefix_chain.c ---- */

typedef struct entry {
    uint64_t uid; /* 0: not published */
    uint64_t parent_uid;
    uint64_t scope;
    uint64_t key;
    uint32_t key_prev, key_next;       /* by_key chain */
    uint32_t parent_prev, parent_next; /* by_parent chain, latest first */
    uint32_t lru_prev, lru_next;       /* while parked */
    bool parked;
    bool warm; /* was parked warm since it was published */
} entry;

/* Evictable blocks, oldest first. */
typedef struct lru {
    uint32_t head, tail;
} lru;

struct gs_prefix {
    uint32_t n_blocks;
    int32_t block_tokens;
    uint32_t mask; /* of both tables */
    uint64_t last_uid;
    entry *entries;      /* [n_blocks] */
    int32_t *tokens;     /* [n_blocks][block_tokens] of published blocks */
    uint32_t *by_key;    /* [mask + 1] first block or GS_KV_NONE */
    uint32_t *by_parent; /* [mask + 1] */
    lru lists[2];        /* cold ones go first, then [1] the warm ones */
    uint32_t n_parked;
};

#endif
