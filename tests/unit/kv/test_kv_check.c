/* The invariants of the KV pool and its index: each is broken in turn, and the check says which. */
#include "../breakage.h"

#include "kv/kv_impl.h"

#define BT       4
#define N_BLOCKS 16

/* The pool, its open slot, the slot's first and last table entry with the counts and the pin of
 * these blocks, the stack of free blocks; the index, the entries of the slot's first block, of a
 * block that can be evicted and of one that is free, and the bucket of the first. */
enum {
    KV,
    SLOT,
    TABLE,
    LAST,
    REFS,
    LAST_REFS,
    LAST_PIN,
    FREE,
    INDEX,
    ENTRY,
    PARKED,
    UNUSED,
    BUCKET
};

/* A number in an array of them. */
typedef struct number {
    uint32_t n;
} number;
typedef struct byte {
    uint8_t n;
} byte;

#define POOL(field, value, says)         BREAK(KV, gs_kv, field, value, says)
#define OF_SLOT(field, value, says)      BREAK(SLOT, slot_state, field, value, says)
#define NUMBER(at, value, says)          BREAK(at, number, n, value, says)
#define OF_INDEX(field, value, says)     BREAK(INDEX, gs_prefix, field, value, says)
#define OF_ENTRY(at, field, value, says) BREAK(at, entry, field, value, says)

// clang-format off
static const breakage breakages[] = {
    OF_SLOT(n_blocks, -1, "tokens computed in"),
    OF_SLOT(n_blocks, 9, "tokens computed in"),
    OF_SLOT(n_computed, -1, "tokens computed in"),
    OF_SLOT(n_computed, 13, "tokens computed in"),
    OF_SLOT(n_chained, 3, "tokens computed in"),
    NUMBER(TABLE, N_BLOCKS, "is not in the pool"),
    NUMBER(LAST_REFS, 2, "which is shared or published"),
    NUMBER(REFS, 2, "2 references, 1 owners"),
    OF_SLOT(copy_src, 9, "0 references, 1 owners"),
    BREAK(LAST_PIN, byte, n, 1, "is pinned and not published"),
    POOL(n_pinned, 1, "0 blocks pinned, 1 counted"),
    POOL(n_cached, 1, "3 held, 2 cached (1 counted) and 11 free of 16 blocks"),
    POOL(n_free, 10, "3 held, 2 cached (2 counted) and 10 free of 16 blocks"),
    NUMBER(FREE, N_BLOCKS, "is free and in use"),
    OF_ENTRY(ENTRY, uid, 0, "is in the wrong key bucket"),
    OF_ENTRY(ENTRY, key_prev, 3, "is in the wrong key bucket"),
    OF_ENTRY(ENTRY, parent_prev, 3, "is in the wrong parent bucket"),
    OF_ENTRY(UNUSED, parked, 1, "is evictable but not published"),
    OF_INDEX(last_uid, 0, "is older than its parent"),
    NUMBER(BUCKET, GS_KV_NONE, "4 blocks published, 3 by key, 4 by parent"),
    OF_ENTRY(PARKED, parked, 0, "the LRU list is broken"),
    OF_ENTRY(PARKED, lru_prev, 3, "the LRU list is broken"),
    OF_ENTRY(PARKED, warm, 0, "the LRU list is broken"),
    OF_INDEX(n_parked, 1, "2 blocks in the LRU list, 1 counted, 2 in the pool"),
    OF_INDEX(lists[0].tail, 3, "blocks in the LRU list"),
    OF_INDEX(lists[1].tail, 3, "blocks in the LRU list"),
};
// clang-format on

static int check(const void *kv, char *err, size_t errlen) {
    return gs_kv_check(kv, err, errlen);
}

static const int32_t tokens[2][10] = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
                                      {21, 22, 23, 24, 25, 26, 27, 28, 29, 30}};

/* Slot 0 holds two published blocks and one that is not full; slot 1 was closed and has left two
 * that can be evicted. */
static gs_kv *make(void) {
    gs_kv *kv = NULL;
    gs_kv_reuse reuse;
    const gs_kv_config cfg = {
        .n_blocks = N_BLOCKS, .block_tokens = BT, .max_seqs = 2, .max_blocks_per_seq = 8};
    assert_int_equal(gs_kv_create(&cfg, &kv), GS_OK);
    for (int32_t slot = 1; slot >= 0; slot--) {
        assert_int_equal(gs_kv_seq_open(kv, slot, 7, tokens[slot], 10, &reuse), GS_OK);
        assert_int_equal(gs_kv_seq_grow(kv, slot, 10), GS_OK);
        gs_kv_seq_commit(kv, slot, tokens[slot], 10);
    }
    gs_kv_seq_close(kv, 1);
    return kv;
}

static void each_invariant(void **state) {
    (void)state;
    gs_kv *kv = make();
    gs_prefix *p = kv->prefix;
    uint32_t *table = kv->tables; /* of slot 0 */
    entry *first = &p->entries[table[0]];
    void *const bases[] = {[KV] = kv,
                           [SLOT] = &kv->slots[0],
                           [TABLE] = &table[0],
                           [LAST] = &table[2],
                           [REFS] = &kv->refs[table[0]],
                           [LAST_REFS] = &kv->refs[table[2]],
                           [LAST_PIN] = &kv->pinned[table[2]],
                           [FREE] = &kv->free[0],
                           [INDEX] = p,
                           [ENTRY] = first,
                           [PARKED] = &p->entries[p->lists[p->lists[0].head == GS_KV_NONE].head],
                           [UNUSED] = &p->entries[kv->free[0]],
                           [BUCKET] = &p->by_key[first->key & p->mask]};
    break_each(breakages, sizeof(breakages) / sizeof(breakages[0]), bases, check, kv);
    const uint32_t last = table[2], free = kv->free[0];
    table[2] = table[0];
    check_says(check, kv, GS_ERR_INTERNAL, "which is shared or published");
    table[2] = last;
    kv->free[0] = kv->free[1]; /* twice */
    check_says(check, kv, GS_ERR_INTERNAL, "is free and in use");
    kv->free[0] = last; /* and held */
    check_says(check, kv, GS_ERR_INTERNAL, "is free and in use");
    kv->free[0] = free;
    first->key ^= 1;
    check_says(check, kv, GS_ERR_INTERNAL, "is in the wrong key bucket");
    first->key ^= 1;
    check_says(check, kv, GS_OK, "ok");
    gs_kv_seq_close(kv, 0);
    gs_kv_free(kv);
}

/* Without an index no block can be published, so none can be pinned. */
static void without_an_index(void **state) {
    (void)state;
    gs_kv *kv = NULL;
    gs_kv_reuse reuse;
    const gs_kv_config cfg = {.n_blocks = N_BLOCKS,
                              .block_tokens = BT,
                              .max_seqs = 2,
                              .max_blocks_per_seq = 8,
                              .no_prefix_cache = true};
    assert_int_equal(gs_kv_create(&cfg, &kv), GS_OK);
    assert_int_equal(gs_kv_seq_open(kv, 0, 7, tokens[0], 10, &reuse), GS_OK);
    assert_int_equal(gs_kv_seq_grow(kv, 0, 10), GS_OK);
    const uint32_t b = kv->tables[0];
    check_says(check, kv, GS_OK, "ok");
    kv->pinned[b] = 1;
    check_says(check, kv, GS_ERR_INTERNAL, "is pinned and not published");
    kv->pinned[b] = 0;
    kv->refs[b] = 0;
    kv->tables[0] = kv->tables[1];
    check_says(check, kv, GS_ERR_INTERNAL, "references");
    gs_kv_free(kv);
}

/* Who has each block. */
static void the_map(void **state) {
    (void)state;
    gs_kv *kv = make();
    gs_kv_reuse reuse;
    int32_t map[N_BLOCKS], n_of[8] = {0}, n;
    assert_int_equal(gs_kv_seq_open(kv, 1, GS_KV_PUBLIC, tokens[1], 4, &reuse), GS_OK);
    assert_int_equal(gs_kv_seq_grow(kv, 1, 4), GS_OK);
    gs_kv_seq_commit(kv, 1, tokens[1], 4);
    assert_int_equal(gs_kv_pin(kv, tokens[1], 4), 1);
    gs_kv_seq_close(kv, 1);
    gs_kv_map(kv, map);
    for (int b = 0; b < N_BLOCKS; b++)
        n_of[map[b] + 4]++;
    assert_int_equal(n_of[GS_KV_MAP_FREE + 4], 10);
    assert_int_equal(n_of[GS_KV_MAP_CACHED + 4], 2);
    assert_int_equal(n_of[GS_KV_MAP_PINNED + 4], 1);
    assert_int_equal(n_of[0 + 4], 3);
    const uint32_t *table = gs_kv_seq_blocks(kv, 0, &n);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(map[table[i]], 0);
    gs_kv_seq_close(kv, 0);
    gs_kv_free(kv);
    /* A block that only a pending copy holds. */
    kv = make();
    gs_kv_seq_close(kv, 0);
    assert_int_equal(gs_kv_seq_open(kv, 0, 7, tokens[1], 7, &reuse), GS_OK);
    assert_int_equal(reuse.copy.n_tokens, 2);
    gs_kv_map(kv, map);
    assert_int_equal(map[reuse.copy.src], GS_KV_MAP_OTHER);
    gs_kv_seq_close(kv, 0);
    gs_kv_free(kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_invariant),
                                       cmocka_unit_test(without_an_index),
                                       cmocka_unit_test(the_map)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
