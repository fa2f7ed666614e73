/*
 * KV ledger: named cases, then random operations against a naive model. The model keeps what is
 * in each block as a running hash of scope and tokens, written as sequences "compute" and moved by
 * copy operations, so that a wrongly shared block shows up as somebody else's contents.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "base/err.h"
#include "faults/fault.h"
#include "kv/kv.h"
#include "kv/prefix.h"
#include "unit/scale.h"

#define BT 4 /* block_tokens of all tests but the collision */

static void check(const gs_kv *kv) {
    char err[200] = "";
    if (gs_kv_check(kv, err, sizeof err) != GS_OK)
        fail_msg("%s", err);
}

static gs_kv *make_kv(uint32_t n_blocks, int32_t max_seqs, int32_t max_blocks) {
    const gs_kv_config cfg = {.n_blocks = n_blocks,
                              .block_tokens = BT,
                              .max_seqs = max_seqs,
                              .max_blocks_per_seq = max_blocks};
    gs_kv *kv = NULL;
    assert_int_equal(gs_kv_create(&cfg, &kv), GS_OK);
    return kv;
}

static void fill(int32_t *tokens, int32_t n, int32_t first) {
    for (int32_t i = 0; i < n; i++)
        tokens[i] = first + i;
}

/* Opens, computes all n tokens and leaves the slot open. Returns the tokens reused. */
static int32_t run_open(gs_kv *kv, int32_t slot, uint64_t scope, const int32_t *tokens, int32_t n) {
    gs_kv_reuse reuse;
    const int32_t peeked = gs_kv_peek(kv, scope, tokens, n);
    assert_int_equal(gs_kv_seq_open(kv, slot, scope, tokens, n, &reuse), GS_OK);
    assert_int_equal(reuse.n_cached, peeked);
    check(kv);
    assert_int_equal(gs_kv_seq_grow(kv, slot, n), GS_OK);
    gs_kv_seq_commit(kv, slot, tokens, n);
    check(kv);
    return reuse.n_cached;
}

static int32_t run_once(gs_kv *kv, uint64_t scope, const int32_t *tokens, int32_t n) {
    const int32_t reused = run_open(kv, 0, scope, tokens, n);
    gs_kv_seq_close(kv, 0);
    check(kv);
    return reused;
}

/* ---- named cases ----------------------------------------------------------------------------- */

static void test_create_refuses(void **state) {
    (void)state;
    const gs_kv_config good = {
        .n_blocks = 4, .block_tokens = BT, .max_seqs = 2, .max_blocks_per_seq = 4};
    gs_kv *kv = NULL;
    static const gs_kv_config bad[] = {
        {.n_blocks = 0, .block_tokens = BT, .max_seqs = 2, .max_blocks_per_seq = 4},
        {.n_blocks = GS_KV_NONE, .block_tokens = BT, .max_seqs = 2, .max_blocks_per_seq = 4},
        {.n_blocks = 4, .block_tokens = 0, .max_seqs = 2, .max_blocks_per_seq = 4},
        {.n_blocks = 4, .block_tokens = BT, .max_seqs = 0, .max_blocks_per_seq = 4},
        {.n_blocks = 4, .block_tokens = BT, .max_seqs = 2, .max_blocks_per_seq = 0},
        {.n_blocks = 4,
         .block_tokens = BT,
         .max_seqs = 2,
         .max_blocks_per_seq = INT32_MAX / BT + 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(gs_kv_create(&bad[i], &kv), GS_ERR_INVALID);
    /* Each allocation fails in its turn. */
    gs_fault_set(GS_FAULT_ALLOC, UINT64_MAX, 0);
    assert_int_equal(gs_kv_create(&good, &kv), GS_OK);
    const uint64_t n = gs_fault_calls(GS_FAULT_ALLOC);
    gs_kv_free(kv);
    kv = NULL;
    assert_true(n >= 11); /* seven of the pool, and the index */
    for (uint64_t i = 1; i <= n; i++) {
        gs_fault_set(GS_FAULT_ALLOC, i, 0);
        assert_int_equal(gs_kv_create(&good, &kv), GS_ERR_NOMEM);
        gs_fault_clear();
    }
    assert_null(kv);
    gs_kv_free(NULL);
}

static void test_scopes_never_share(void **state) {
    (void)state;
    gs_kv *kv = make_kv(16, 2, 8);
    int32_t t[14];
    fill(t, 14, 100);
    assert_int_equal(run_once(kv, 1, t, 14), 0);
    assert_int_equal(gs_kv_peek(kv, 2, t, 14), 0);
    assert_int_equal(run_once(kv, 2, t, 14), 0);
    assert_int_equal(gs_kv_peek(kv, 1, t, 14), 12);
    assert_int_equal(gs_kv_peek(kv, 0, t, 14), 0);
    /* Not even the first tokens of a block. */
    assert_int_equal(gs_kv_peek(kv, 3, t, 3), 0);
    gs_kv_free(kv);
}

static void test_reuse_leaves_one_token(void **state) {
    (void)state;
    gs_kv *kv = make_kv(16, 2, 8);
    int32_t t[12];
    fill(t, 12, 5);
    run_once(kv, 1, t, 12);
    gs_kv_reuse r;
    /* 12 tokens are three whole blocks: the third is copied, one token short. */
    assert_int_equal(gs_kv_seq_open(kv, 0, 1, t, 12, &r), GS_OK);
    assert_int_equal(r.n_cached, 11);
    assert_int_equal(r.copy.n_tokens, 3);
    assert_int_not_equal(r.copy.dst, r.copy.src);
    gs_kv_seq_close(kv, 0);
    assert_int_equal(gs_kv_seq_open(kv, 0, 1, t, 1, &r), GS_OK);
    assert_int_equal(r.n_cached, 0);
    assert_int_equal(r.copy.n_tokens, 0);
    gs_kv_seq_close(kv, 0);
    assert_int_equal(gs_kv_seq_open(kv, 0, 1, t, 0, &r), GS_ERR_INVALID);
    check(kv);
    gs_kv_free(kv);
}

static void test_partial_copy_takes_the_longest(void **state) {
    (void)state;
    gs_kv *kv = make_kv(32, 2, 8);
    int32_t a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8] = {1, 2, 3, 4, 5, 6, 9, 9};
    int32_t c[8] = {1, 2, 3, 4, 5, 8, 8, 8}, want[9] = {1, 2, 3, 4, 5, 6, 9, 1, 1};
    run_once(kv, 1, a, 8);
    run_once(kv, 1, b, 8);
    run_once(kv, 1, c, 8);
    int32_t n;
    /* The block of b, found by opening b itself. */
    gs_kv_reuse r;
    assert_int_equal(gs_kv_seq_open(kv, 0, 1, want, 9, &r), GS_OK);
    assert_int_equal(r.n_cached, 7);
    assert_int_equal(r.copy.n_tokens, 3);
    const uint32_t *table = gs_kv_seq_blocks(kv, 0, &n);
    assert_int_equal(n, 2);
    assert_int_equal(table[1], r.copy.dst);
    /* The source stays held until the commit, which makes it evictable again. */
    gs_kv_stats st;
    gs_kv_get_stats(kv, &st);
    assert_int_equal(st.n_held, 3);
    check(kv);
    assert_int_equal(gs_kv_seq_grow(kv, 0, 8), GS_OK);
    gs_kv_seq_commit(kv, 0, want, 8);
    gs_kv_get_stats(kv, &st);
    assert_int_equal(st.n_held, 2);
    check(kv);
    /* Closing without a commit gives the source back as well. */
    gs_kv_seq_close(kv, 0);
    want[7] = 77;
    assert_int_equal(gs_kv_seq_open(kv, 0, 1, want, 9, &r), GS_OK);
    assert_int_equal(r.n_cached, 7);
    gs_kv_seq_close(kv, 0);
    gs_kv_get_stats(kv, &st);
    assert_int_equal(st.n_held, 0);
    check(kv);
    gs_kv_free(kv);
}

static void test_partial_needs_a_block(void **state) {
    (void)state;
    gs_kv *kv = make_kv(2, 2, 4);
    int32_t t[8];
    fill(t, 8, 1);
    run_once(kv, 1, t, 8);
    gs_kv_reuse r;
    /* Both blocks would be in use: the first shared, the second the copy's source. */
    assert_int_equal(gs_kv_seq_open(kv, 0, 1, t, 8, &r), GS_OK);
    assert_int_equal(r.n_cached, 4);
    assert_int_equal(r.copy.n_tokens, 0);
    /* The other block can still be had, by eviction. */
    assert_int_equal(gs_kv_seq_lacks(kv, 0, 8), 1);
    assert_int_equal(gs_kv_seq_grow(kv, 0, 8), GS_OK);
    gs_kv_seq_commit(kv, 0, t, 8);
    check(kv);
    gs_kv_free(kv);
}

static void test_lru_evicts_oldest_tail_first(void **state) {
    (void)state;
    gs_kv *kv = make_kv(6, 2, 6);
    int32_t a[9], b[9], c[5];
    fill(a, 9, 100);
    fill(b, 9, 200);
    fill(c, 5, 300);
    run_once(kv, 1, a, 9); /* two published blocks each; the third is not full */
    run_once(kv, 1, b, 9);
    gs_kv_stats st;
    gs_kv_get_stats(kv, &st);
    assert_int_equal(st.n_cached, 4);
    assert_int_equal(st.n_free, 2);
    /* Two free blocks go first, then nothing was evicted. */
    assert_int_equal(run_open(kv, 0, 1, c, 5), 0);
    assert_int_equal(gs_kv_peek(kv, 1, a, 9), 8);
    /* One more block: a's tail goes, a's head stays. */
    assert_int_equal(gs_kv_seq_grow(kv, 0, 9), GS_OK);
    assert_int_equal(gs_kv_peek(kv, 1, a, 9), 4);
    assert_int_equal(gs_kv_peek(kv, 1, b, 9), 8);
    /* Using a makes it the youngest: now b's tail goes. */
    gs_kv_reuse r;
    assert_int_equal(gs_kv_seq_open(kv, 1, 1, a, 5, &r), GS_OK);
    gs_kv_seq_close(kv, 1);
    assert_int_equal(gs_kv_seq_grow(kv, 0, 13), GS_OK);
    assert_int_equal(gs_kv_peek(kv, 1, b, 9), 4);
    assert_int_equal(gs_kv_peek(kv, 1, a, 9), 4);
    gs_kv_get_stats(kv, &st);
    assert_int_equal(st.evictions, 2);
    check(kv);
    gs_kv_free(kv);
}

/* What a cold slot leaves goes before older blocks, unless somebody else used it since. */
static void test_cold_blocks_go_first(void **state) {
    (void)state;
    gs_kv *kv = make_kv(6, 2, 8);
    int32_t warm[8], cold[8], other[24];
    gs_kv_reuse r;
    fill(warm, 8, 100);
    fill(cold, 8, 200);
    fill(other, 24, 300);
    run_once(kv, 1, warm, 8); /* two blocks, the oldest */
    assert_int_equal(gs_kv_seq_open(kv, 0, 1, cold, 8, &r), GS_OK);
    gs_kv_seq_set_cold(kv, 0);
    assert_int_equal(gs_kv_seq_grow(kv, 0, 8), GS_OK);
    gs_kv_seq_commit(kv, 0, cold, 8);
    gs_kv_seq_close(kv, 0);
    check(kv);
    assert_int_equal(gs_kv_peek(kv, 1, cold, 8), 7);
    run_once(kv, 1, other, 16); /* takes four: two free ones and the cold ones */
    assert_int_equal(gs_kv_peek(kv, 1, cold, 8), 0);
    assert_int_equal(gs_kv_peek(kv, 1, warm, 8), 7);

    /* Cold at first, then reused by a warm slot: it is as good as any other. */
    gs_kv_drop_cached(kv, 0, true);
    assert_int_equal(gs_kv_seq_open(kv, 0, 1, cold, 8, &r), GS_OK);
    gs_kv_seq_set_cold(kv, 0);
    assert_int_equal(gs_kv_seq_grow(kv, 0, 8), GS_OK);
    gs_kv_seq_commit(kv, 0, cold, 8);
    gs_kv_seq_close(kv, 0);
    assert_int_equal(gs_kv_seq_open(kv, 0, 1, cold, 5, &r), GS_OK);
    assert_int_equal(r.n_cached, 4);
    gs_kv_seq_close(kv, 0);
    check(kv);
    run_once(kv, 1, other, 20); /* five of six: only the first cold block is left */
    assert_int_equal(gs_kv_peek(kv, 1, cold, 8), 4);
    gs_kv_free(kv);
}

static void test_pool_full_changes_nothing(void **state) {
    (void)state;
    gs_kv *kv = make_kv(3, 2, 4);
    int32_t a[8], b[8];
    fill(a, 8, 1);
    fill(b, 8, 50);
    run_open(kv, 0, 1, a, 8);
    gs_kv_reuse r;
    assert_int_equal(gs_kv_seq_open(kv, 1, 2, b, 8, &r), GS_OK);
    assert_int_equal(gs_kv_seq_grow(kv, 1, 8), GS_ERR_KV_FULL);
    int32_t n;
    gs_kv_seq_blocks(kv, 1, &n);
    assert_int_equal(n, 0);
    assert_int_equal(gs_kv_available(kv), 1);
    assert_int_equal(gs_kv_seq_grow(kv, 1, 17), GS_ERR_CONTEXT);
    assert_int_equal(gs_kv_seq_grow(kv, 1, 4), GS_OK);
    assert_int_equal(gs_kv_seq_exclusive(kv, 0), 2);
    gs_kv_seq_close(kv, 0);
    assert_int_equal(gs_kv_available(kv), 2);
    assert_int_equal(gs_kv_seq_grow(kv, 1, 8), GS_OK);
    check(kv);
    gs_kv_free(kv);
}

/* Two sequences compute the same prompt in the same step. */
static void test_duplicate_stays_private(void **state) {
    (void)state;
    gs_kv *kv = make_kv(16, 3, 8);
    int32_t t[13];
    fill(t, 13, 1);
    gs_kv_reuse r;
    for (int32_t slot = 0; slot < 2; slot++) {
        assert_int_equal(gs_kv_seq_open(kv, slot, 1, t, 13, &r), GS_OK);
        assert_int_equal(r.n_cached, 0);
        assert_int_equal(gs_kv_seq_grow(kv, slot, 13), GS_OK);
    }
    gs_kv_seq_commit(kv, 0, t, 8);
    gs_kv_seq_commit(kv, 1, t, 12); /* two duplicates, then a third block that is new */
    gs_kv_seq_commit(kv, 0, t, 12);
    check(kv);
    int32_t n;
    const uint32_t first = gs_kv_seq_blocks(kv, 0, &n)[0];
    const uint32_t third = gs_kv_seq_blocks(kv, 1, &n)[2];
    assert_int_equal(gs_kv_seq_open(kv, 2, 1, t, 13, &r), GS_OK);
    assert_int_equal(r.n_cached, 12);
    assert_int_equal(gs_kv_seq_blocks(kv, 2, &n)[0], first);
    assert_int_equal(gs_kv_seq_blocks(kv, 2, &n)[2], third);
    for (int32_t slot = 0; slot < 3; slot++)
        gs_kv_seq_close(kv, slot);
    gs_kv_stats st;
    gs_kv_get_stats(kv, &st);
    assert_int_equal(st.n_cached, 3);
    assert_int_equal(st.n_free, 13);
    check(kv);
    gs_kv_free(kv);
}

static void test_not_full_not_published(void **state) {
    (void)state;
    gs_kv *kv = make_kv(8, 2, 8);
    int32_t t[8];
    fill(t, 8, 1);
    run_once(kv, 1, t, 7);
    assert_int_equal(gs_kv_peek(kv, 1, t, 8), 4);
    gs_kv_free(kv);
}

static void test_drop(void **state) {
    (void)state;
    gs_kv *kv = make_kv(16, 2, 8);
    int32_t t[9];
    fill(t, 9, 1);
    run_once(kv, 1, t, 9);
    run_once(kv, 2, t, 9);
    run_open(kv, 1, 3, t, 9);
    assert_int_equal(gs_kv_drop_cached(kv, 1, false), 2);
    check(kv);
    assert_int_equal(gs_kv_peek(kv, 1, t, 9), 0);
    assert_int_equal(gs_kv_peek(kv, 2, t, 9), 8);
    /* In use: forgotten, but not freed under the sequence, which publishes nothing more. */
    assert_int_equal(gs_kv_drop_cached(kv, 0, true), 2);
    check(kv);
    assert_int_equal(gs_kv_peek(kv, 3, t, 9), 0);
    int32_t more[13];
    fill(more, 13, 1);
    assert_int_equal(gs_kv_seq_grow(kv, 1, 13), GS_OK);
    gs_kv_seq_commit(kv, 1, more, 13);
    assert_int_equal(gs_kv_peek(kv, 3, more, 13), 0);
    gs_kv_seq_close(kv, 1);
    assert_int_equal(gs_kv_available(kv), 16);
    check(kv);
    gs_kv_free(kv);
}

/* The public scope is where every lookup begins; what comes behind it is each scope's own. */
static void test_public_prefix(void **state) {
    (void)state;
    gs_kv *kv = make_kv(16, 2, 12);
    int32_t home[10], ann[20], ben[20], other[20];
    gs_kv_stats st;
    fill(home, 10, 100);
    fill(ann, 20, 100);
    fill(ben, 20, 100);
    fill(other, 20, 500);
    for (int i = 10; i < 20; i++) {
        ann[i] += 1000; /* both go on alike, in scopes of their own */
        ben[i] += 1000;
    }
    assert_int_equal(run_once(kv, 1, ann, 20), 0); /* before it is public nobody shares */
    assert_int_equal(gs_kv_peek(kv, 2, ben, 20), 0);
    gs_kv_drop_cached(kv, 0, true);

    assert_int_equal(gs_kv_pin(kv, home, 10), 0); /* nothing is there yet */
    assert_int_equal(run_once(kv, GS_KV_PUBLIC, home, 10), 0);
    assert_int_equal(gs_kv_pin(kv, home, 10), 2); /* whole blocks only */
    assert_int_equal(gs_kv_pin(kv, home, 10), 0);
    check(kv);
    gs_kv_get_stats(kv, &st);
    assert_int_equal(st.n_pinned, 2);
    assert_int_equal(st.n_held, 2);
    assert_int_equal(run_once(kv, 1, ann, 20), 8);
    assert_int_equal(gs_kv_peek(kv, 1, ann, 20), 19);
    assert_int_equal(gs_kv_peek(kv, 2, ben, 20), 8); /* not what ann's has behind it */
    assert_int_equal(run_once(kv, 2, ben, 20), 8);
    assert_int_equal(gs_kv_peek(kv, 2, ben, 20), 19);
    assert_int_equal(gs_kv_peek(kv, 3, ann, 20), 8);
    assert_int_equal(gs_kv_peek(kv, 3, other, 20), 0);

    /* Whatever else is evicted, the pinned blocks stay. */
    for (int round = 0; round < 10; round++) {
        int32_t big[40];
        fill(big, 40, 2000 + 100 * round);
        run_once(kv, 4, big, 40);
    }
    assert_int_equal(gs_kv_peek(kv, 1, ann, 20), 8);
    gs_kv_drop_cached(kv, 1, false);
    check(kv);
    assert_int_equal(gs_kv_peek(kv, 1, ann, 20), 8);

    /* Dropped while a sequence uses it: free once that has ended. */
    assert_int_equal(run_open(kv, 0, 1, ann, 20), 8);
    gs_kv_drop_cached(kv, GS_KV_PUBLIC, false);
    check(kv);
    assert_int_equal(gs_kv_peek(kv, 2, ben, 20), 0);
    gs_kv_seq_close(kv, 0);
    gs_kv_drop_cached(kv, 0, true);
    check(kv);
    gs_kv_get_stats(kv, &st);
    assert_int_equal(st.n_free, 16);
    assert_int_equal(st.n_pinned, 0);
    gs_kv_free(kv);
}

/* Blocks whose contents come from an earlier process: one behind the other, pinned at once. */
static void test_put_pinned(void **state) {
    (void)state;
    gs_kv *kv = make_kv(6, 2, 6);
    int32_t home[16], two[12];
    uint32_t block[4], found, other;
    gs_kv_stats st;
    fill(home, 16, 100);
    fill(two, 12, 100);
    two[11] += 1000; /* begins alike, by two blocks */
    assert_int_equal(gs_kv_put_pinned(kv, home, 8, &block[0]), GS_ERR_NOT_FOUND);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(gs_kv_pinned_block(kv, home, BT * (i + 1), &found), GS_ERR_NOT_FOUND);
        assert_int_equal(gs_kv_put_pinned(kv, home, BT * (i + 1), &block[i]), 0);
        assert_int_equal(gs_kv_pinned_block(kv, home, BT * (i + 1), &found), 0);
        assert_int_equal(found, block[i]);
        check(kv);
    }
    assert_int_equal(gs_kv_put_pinned(kv, two, 8, &other), GS_ERR_EXISTS);
    assert_int_equal(gs_kv_put_pinned(kv, two, 12, &other), 0);
    gs_kv_get_stats(kv, &st);
    assert_int_equal(st.n_pinned, 5);
    check(kv);
    /* Found by everybody (whole blocks; what is behind them is each scope's own), never evicted. */
    assert_int_equal(gs_kv_peek(kv, 7, home, 16), 12);
    assert_int_equal(gs_kv_peek(kv, 8, two, 12), 8);
    int32_t big[4];
    fill(big, 4, 5000);
    run_once(kv, 4, big, 4);
    assert_int_equal(gs_kv_put_pinned(kv, big, 4, &other), 0); /* in the place of what was cached */
    fill(big, 4, 6000);
    assert_int_equal(gs_kv_put_pinned(kv, big, 4, &other), GS_ERR_KV_FULL);
    check(kv);
    /* What is public and not pinned may go at any time: nothing is put behind it. */
    gs_kv_drop_cached(kv, 0, true);
    check(kv);
    run_once(kv, GS_KV_PUBLIC, home, 4);
    assert_int_equal(gs_kv_put_pinned(kv, home, 8, &other), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_kv_put_pinned(kv, home, 4, &other), GS_ERR_EXISTS);
    gs_kv_free(kv);
}

static void test_without_cache(void **state) {
    (void)state;
    const gs_kv_config cfg = {.n_blocks = 8,
                              .block_tokens = BT,
                              .max_seqs = 2,
                              .max_blocks_per_seq = 8,
                              .no_prefix_cache = true};
    gs_kv *kv = NULL;
    assert_int_equal(gs_kv_create(&cfg, &kv), GS_OK);
    int32_t t[9];
    fill(t, 9, 1);
    assert_int_equal(run_once(kv, 1, t, 9), 0);
    assert_int_equal(run_once(kv, 1, t, 9), 0);
    gs_kv_stats st;
    gs_kv_get_stats(kv, &st);
    assert_int_equal(st.n_free, 8);
    assert_int_equal(gs_kv_drop_cached(kv, 0, true), 0);
    /* Nor is anything kept for all. */
    uint32_t block;
    assert_int_equal(run_once(kv, GS_KV_PUBLIC, t, 9), 0);
    assert_int_equal(gs_kv_pin(kv, t, 8), 0);
    assert_int_equal(gs_kv_pinned_block(kv, t, 4, &block), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_kv_put_pinned(kv, t, 4, &block), GS_ERR_NOT_FOUND);
    gs_kv_get_stats(kv, &st);
    assert_int_equal(st.n_pinned, 0);
    assert_int_equal(st.n_free, 8);
    gs_kv_free(kv);
}

/* Neither found nor kept, and not counted among what was looked up. */
static void test_no_reuse(void **state) {
    (void)state;
    gs_kv *kv = make_kv(16, 2, 8);
    int32_t t[12];
    fill(t, 12, 1);
    gs_kv_stats st;
    assert_int_equal(run_once(kv, GS_KV_PUBLIC, t, 12), 0);
    assert_int_equal(gs_kv_pin(kv, t, 8), 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(gs_kv_open_needs(kv, GS_KV_NO_REUSE, t, 12, 12), 3);
        assert_int_equal(run_once(kv, GS_KV_NO_REUSE, t, 12), 0);
        gs_kv_get_stats(kv, &st);
        assert_int_equal(st.n_pinned, 2);
        assert_int_equal(st.n_cached, 1);
        assert_int_equal(st.lookups_tokens, 12);
        assert_int_equal(st.hits_tokens, 0);
    }
    assert_int_equal(gs_kv_peek(kv, 1, t, 12), 8); /* what is pinned */
    gs_kv_free(kv);
}

/* A prompt that its table can't hold reuses what fits, and grows no further. */
static void test_longer_than_a_table(void **state) {
    (void)state;
    gs_kv *kv = make_kv(16, 2, 2);
    int32_t t[12];
    fill(t, 12, 1);
    gs_kv_reuse r;
    assert_int_equal(run_once(kv, 1, t, 8), 0);
    assert_int_equal(gs_kv_open_needs(kv, 1, t, 12, 4), 2); /* found ones that nobody holds */
    assert_int_equal(gs_kv_seq_open(kv, 0, 1, t, 12, &r), GS_OK);
    assert_int_equal(r.n_cached, 8);
    assert_int_equal(r.copy.n_tokens, 0);
    assert_int_equal(gs_kv_seq_lacks(kv, 0, 0), 0);
    assert_int_equal(gs_kv_seq_lacks(kv, 0, 12), 1);
    assert_int_equal(gs_kv_seq_grow(kv, 0, 12), GS_ERR_CONTEXT);
    check(kv);
    gs_kv_seq_close(kv, 0);
    assert_int_equal(gs_kv_seq_open(kv, 0, 1, t, 0, &r), GS_ERR_INVALID);
    gs_kv_free(kv);
}

/* An index that finds whole blocks alone. */
static void test_whole_blocks_alone(void **state) {
    (void)state;
    gs_prefix_ops ops = gs_prefix_chain;
    ops.name = "whole";
    ops.partial = NULL;
    const gs_kv_config cfg = {
        .n_blocks = 8, .block_tokens = BT, .max_seqs = 2, .max_blocks_per_seq = 8, .prefix = &ops};
    gs_kv *kv = NULL;
    gs_kv_config got;
    int32_t t[12];
    fill(t, 12, 1);
    assert_int_equal(gs_kv_create(&cfg, &kv), GS_OK);
    gs_kv_get_config(kv, &got);
    assert_ptr_equal(got.prefix, &ops);
    assert_int_equal(run_once(kv, 1, t, 12), 0);
    assert_int_equal(run_once(kv, 1, t, 12), 8);
    assert_int_equal(gs_kv_peek(kv, 1, t, 8), 4);
    assert_int_equal(gs_kv_peek(kv, 1, t, 7), 4);
    gs_kv_free(kv);
}

/*
 * Two blocks with one hash. XXH64's lanes are invertible: after any change to the first 32 bytes
 * the next 32 can bring a lane back to the same state (constants: xxhash's own specification).
 */
static uint64_t lane_round(uint64_t acc, uint64_t in) {
    acc += in * 0xC2B2AE3D27D4EB4Fu;
    return (acc << 31 | acc >> 33) * 0x9E3779B185EBCA87u;
}

static void test_hash_collision_shares_nothing(void **state) {
    (void)state;
    const uint64_t p1 = 0x9E3779B185EBCA87u, p2 = 0xC2B2AE3D27D4EB4Fu;
    const uint64_t scope = 7;
    const uint64_t seed = XXH64(&scope, sizeof scope, 0);
    uint64_t inverse = p2; /* of p2 modulo 2^64, by Newton's iteration */
    for (int i = 0; i < 6; i++)
        inverse *= 2 - p2 * inverse;
    uint64_t a[8] = {11, 12, 13, 14, 15, 16, 17, 18}, b[8];
    memcpy(b, a, sizeof b);
    b[0] = 99;
    b[4] = a[4] + (lane_round(seed + p1 + p2, a[0]) - lane_round(seed + p1 + p2, b[0])) * inverse;
    assert_memory_not_equal(a, b, sizeof a);
    assert_true(XXH64(a, sizeof a, seed) == XXH64(b, sizeof b, seed));

    const gs_kv_config cfg = {
        .n_blocks = 8, .block_tokens = 16, .max_seqs = 2, .max_blocks_per_seq = 4};
    gs_kv *kv = NULL;
    assert_int_equal(gs_kv_create(&cfg, &kv), GS_OK);
    int32_t ta[17] = {0}, tb[17] = {0};
    memcpy(ta, a, sizeof a);
    memcpy(tb, b, sizeof b);
    assert_int_equal(run_once(kv, scope, ta, 17), 0);
    assert_int_equal(gs_kv_peek(kv, scope, ta, 17), 16);
    assert_int_equal(gs_kv_peek(kv, scope, tb, 17), 0);
    /* Both live in the cache side by side, each found for its own tokens. */
    assert_int_equal(run_once(kv, scope, tb, 17), 0);
    assert_int_equal(gs_kv_peek(kv, scope, ta, 17), 16);
    assert_int_equal(gs_kv_peek(kv, scope, tb, 17), 16);
    gs_kv_free(kv);
}

/* ---- model ----------------------------------------------------------------------------------- */

#define MODEL_BLOCKS 48
#define MODEL_SEQS   6
#define MODEL_TABLE  9 /* max_blocks_per_seq */
#define MODEL_LEN    (MODEL_TABLE * BT)

typedef struct model_block {
    int refs;
    uint64_t uid, parent, scope; /* uid 0: not published */
    int32_t tokens[BT];
    uint64_t parked; /* time of its last release */
    uint64_t contents[BT];
} model_block;

typedef struct model_seq {
    bool open, publish;
    uint64_t scope, tip;
    int32_t tokens[MODEL_LEN];
    int32_t n_known, n_computed, n_chained, n_table;
    uint32_t table[MODEL_TABLE];
    int64_t copy_src; /* -1: none */
} model_seq;

typedef struct model {
    uint32_t n_blocks;
    model_block blocks[MODEL_BLOCKS];
    model_seq seqs[MODEL_SEQS];
    uint64_t last_uid, now;
    uint64_t rng;
    uint64_t evictions;
} model;

static uint64_t next_random(model *m) {
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    return m->rng * 0x2545F4914F6CDD1Du >> 16;
}

static int32_t below(model *m, int32_t n) {
    return (int32_t)(next_random(m) % (uint64_t)n);
}

/* Contents of one position: they depend on scope and all tokens up to it, as real keys do. */
static uint64_t content_of(uint64_t scope, const int32_t *tokens, int32_t pos) {
    uint64_t h = scope + 1;
    for (int32_t i = 0; i <= pos; i++)
        h = (h ^ (uint64_t)(uint32_t)tokens[i]) * 0x9e3779b97f4a7c15u + 0x1234567;
    return h;
}

static int model_available(const model *m) {
    int n = 0;
    for (uint32_t b = 0; b < m->n_blocks; b++)
        n += m->blocks[b].refs == 0;
    return n;
}

static int64_t model_child(const model *m, uint64_t scope, uint64_t parent, const int32_t *tokens,
                           int32_t n, int32_t *n_shared) {
    int64_t best = -1;
    *n_shared = 0;
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        const model_block *mb = &m->blocks[b];
        if (mb->uid == 0 || mb->parent != parent || mb->scope != scope)
            continue;
        int32_t k = 0;
        while (k < n && mb->tokens[k] == tokens[k])
            k++;
        if (k > *n_shared || (k > 0 && k == *n_shared && mb->uid > m->blocks[best].uid)) {
            *n_shared = k;
            best = b;
        }
    }
    return best;
}

/* The reference for open, peek and needs. */
static int32_t model_find(const model *m, uint64_t scope, const int32_t *tokens, int32_t n,
                          model_seq *q, int *n_evictable, int32_t *partial) {
    int32_t pos = 0, k;
    q->tip = 0;
    q->n_table = 0;
    q->copy_src = -1;
    *n_evictable = 0;
    *partial = 0;
    while (pos + BT <= n - 1) {
        const int64_t b = model_child(m, scope, q->tip, tokens + pos, BT, &k);
        if (b < 0 || k < BT)
            break;
        q->table[q->n_table++] = (uint32_t)b;
        q->tip = m->blocks[b].uid;
        *n_evictable += m->blocks[b].refs == 0;
        pos += BT;
    }
    const int32_t left = n - 1 - pos < BT ? n - 1 - pos : BT;
    const int64_t src = model_child(m, scope, q->tip, tokens + pos, left, &k);
    if (src < 0)
        return pos;
    const int evictable = *n_evictable + (m->blocks[src].refs == 0);
    if (model_available(m) - evictable < 1)
        return pos;
    *n_evictable = evictable;
    *partial = k;
    q->copy_src = src;
    return pos + k;
}

/* Checks that b is the block that had to be taken next, and takes it. */
static void model_take(model *m, uint32_t b) {
    bool any_free = false;
    for (uint32_t i = 0; i < m->n_blocks; i++)
        any_free |= m->blocks[i].refs == 0 && m->blocks[i].uid == 0;
    model_block *mb = &m->blocks[b];
    assert_int_equal(mb->refs, 0);
    if (any_free) {
        assert_true(mb->uid == 0);
    } else {
        for (uint32_t i = 0; i < m->n_blocks; i++)
            assert_true(m->blocks[i].refs > 0 || m->blocks[i].parked >= mb->parked);
        m->evictions++;
    }
    mb->refs = 1;
    mb->uid = 0;
    memset(mb->contents, 0xee, sizeof mb->contents);
}

static void model_release(model *m, uint32_t b) {
    if (--m->blocks[b].refs == 0)
        m->blocks[b].parked = ++m->now;
}

static void op_open(model *m, gs_kv *kv, int32_t slot) {
    model_seq *q = &m->seqs[slot];
    *q = (model_seq){.open = true, .publish = true, .scope = (uint64_t)below(m, 2)};
    q->n_known = 1 + below(m, MODEL_LEN);
    /* Few distinct tokens and often all equal: many shared prefixes of any length. */
    const int32_t letters = below(m, 3) == 0 ? 3 : 1;
    for (int32_t i = 0; i < q->n_known; i++)
        q->tokens[i] = below(m, 8) == 0 ? below(m, letters) : 0;

    int evictable;
    int32_t partial, n;
    const int32_t reuse = model_find(m, q->scope, q->tokens, q->n_known, q, &evictable, &partial);
    assert_int_equal(gs_kv_peek(kv, q->scope, q->tokens, q->n_known), reuse);
    const uint32_t before = gs_kv_available(kv);
    const uint32_t needs = gs_kv_open_needs(kv, q->scope, q->tokens, q->n_known, q->n_known);
    gs_kv_reuse r;
    assert_int_equal(gs_kv_seq_open(kv, slot, q->scope, q->tokens, q->n_known, &r), GS_OK);
    assert_int_equal(r.n_cached, reuse);
    assert_int_equal(r.copy.n_tokens, partial);
    const uint32_t taken = before - gs_kv_available(kv);
    assert_int_equal(needs, taken + gs_kv_seq_lacks(kv, slot, q->n_known));

    const uint32_t *table = gs_kv_seq_blocks(kv, slot, &n);
    assert_int_equal(n, q->n_table + (partial > 0));
    for (int32_t i = 0; i < q->n_table; i++) {
        assert_int_equal(table[i], q->table[i]);
        m->blocks[table[i]].refs++;
    }
    q->n_chained = q->n_table;
    q->n_computed = reuse;
    if (partial > 0) {
        assert_int_equal(r.copy.src, q->copy_src);
        m->blocks[r.copy.src].refs++;
        model_take(m, r.copy.dst);
        assert_int_equal(table[q->n_table], r.copy.dst);
        q->table[q->n_table++] = r.copy.dst;
        memcpy(m->blocks[r.copy.dst].contents, m->blocks[r.copy.src].contents,
               (size_t)partial * sizeof(uint64_t));
    }
}

static void model_publish(model *m, model_seq *q) {
    while (q->publish && (q->n_chained + 1) * BT <= q->n_computed) {
        bool alive = q->tip == 0;
        for (uint32_t b = 0; b < m->n_blocks; b++)
            alive |= m->blocks[b].uid == q->tip;
        if (!alive) {
            q->publish = false;
            return;
        }
        int32_t k;
        const int32_t *tokens = q->tokens + q->n_chained * BT;
        const int64_t same = model_child(m, q->scope, q->tip, tokens, BT, &k);
        if (same >= 0 && k == BT) {
            q->tip = m->blocks[same].uid;
        } else {
            model_block *mb = &m->blocks[q->table[q->n_chained]];
            mb->uid = ++m->last_uid;
            mb->parent = q->tip;
            mb->scope = q->scope;
            memcpy(mb->tokens, tokens, sizeof mb->tokens);
            q->tip = mb->uid;
        }
        q->n_chained++;
    }
}

static void op_compute(model *m, gs_kv *kv, int32_t slot) {
    model_seq *q = &m->seqs[slot];
    if (q->n_computed == q->n_known) {
        if (q->n_known == MODEL_LEN)
            return;
        q->tokens[q->n_known++] = below(m, 2); /* a generated token */
    }
    const int32_t n = q->n_computed + 1 + below(m, q->n_known - q->n_computed);
    const int lacks = (n + BT - 1) / BT - q->n_table;
    assert_int_equal(gs_kv_seq_lacks(kv, slot, n), lacks > 0 ? lacks : 0);
    const bool fits = lacks <= model_available(m);
    assert_int_equal(gs_kv_seq_grow(kv, slot, n), fits ? GS_OK : GS_ERR_KV_FULL);
    int32_t n_table;
    const uint32_t *table = gs_kv_seq_blocks(kv, slot, &n_table);
    assert_int_equal(n_table, q->n_table + (fits && lacks > 0 ? lacks : 0));
    if (!fits)
        return;
    while (q->n_table < n_table) {
        model_take(m, table[q->n_table]);
        q->table[q->n_table] = table[q->n_table];
        q->n_table++;
    }
    if (below(m, 8) == 0)
        return; /* the step failed: nothing was computed, the room stays */
    for (int32_t pos = q->n_computed; pos < n; pos++)
        m->blocks[q->table[pos / BT]].contents[pos % BT] = content_of(q->scope, q->tokens, pos);
    gs_kv_seq_commit(kv, slot, q->tokens, n);
    q->n_computed = n;
    if (q->copy_src >= 0)
        model_release(m, (uint32_t)q->copy_src);
    q->copy_src = -1;
    model_publish(m, q);
}

static void op_close(model *m, gs_kv *kv, int32_t slot) {
    model_seq *q = &m->seqs[slot];
    gs_kv_seq_close(kv, slot);
    if (q->copy_src >= 0)
        model_release(m, (uint32_t)q->copy_src);
    while (q->n_table > 0)
        model_release(m, q->table[--q->n_table]);
    q->open = false;
}

static void op_drop(model *m, gs_kv *kv) {
    const bool all = below(m, 2) == 0;
    const uint64_t scope = (uint64_t)below(m, 2);
    uint32_t freed = 0;
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        model_block *mb = &m->blocks[b];
        if (mb->uid == 0 || (!all && mb->scope != scope))
            continue;
        mb->uid = 0;
        freed += mb->refs == 0;
    }
    assert_int_equal(gs_kv_drop_cached(kv, scope, all), freed);
}

static void model_compare(const model *m, const gs_kv *kv) {
    gs_kv_stats st;
    gs_kv_get_stats(kv, &st);
    uint32_t n_free = 0, n_cached = 0;
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        n_free += m->blocks[b].refs == 0 && m->blocks[b].uid == 0;
        n_cached += m->blocks[b].refs == 0 && m->blocks[b].uid != 0;
    }
    assert_int_equal(st.n_free, n_free);
    assert_int_equal(st.n_cached, n_cached);
    assert_int_equal(st.n_held, m->n_blocks - n_free - n_cached);
    assert_true(st.evictions == m->evictions);
    check(kv);
    for (int32_t slot = 0; slot < MODEL_SEQS; slot++) {
        const model_seq *q = &m->seqs[slot];
        if (!q->open)
            continue;
        int32_t n;
        uint32_t exclusive = q->copy_src >= 0 && m->blocks[q->copy_src].refs == 1;
        const uint32_t *table = gs_kv_seq_blocks(kv, slot, &n);
        assert_int_equal(n, q->n_table);
        for (int32_t i = 0; i < n; i++)
            exclusive += m->blocks[table[i]].refs == 1;
        assert_int_equal(gs_kv_seq_exclusive(kv, slot), exclusive);
        uint64_t h = q->scope + 1;
        for (int32_t pos = 0; pos < q->n_computed; pos++) {
            h = (h ^ (uint64_t)(uint32_t)q->tokens[pos]) * 0x9e3779b97f4a7c15u + 0x1234567;
            if (m->blocks[table[pos / BT]].contents[pos % BT] != h)
                fail_msg("slot %d reads something else at position %d", slot, pos);
        }
    }
}

static void run_model(uint64_t seed, uint32_t n_blocks, int n_ops) {
    model *m = calloc(1, sizeof *m);
    m->n_blocks = n_blocks;
    m->rng = seed * 0x9e3779b97f4a7c15u | 1;
    gs_kv *kv = make_kv(n_blocks, MODEL_SEQS, MODEL_TABLE);
    for (int i = 0; i < n_ops; i++) {
        const int32_t slot = below(m, MODEL_SEQS);
        if (!m->seqs[slot].open)
            op_open(m, kv, slot);
        else if (below(m, 6) == 0)
            op_close(m, kv, slot);
        else if (below(m, 500) == 0)
            op_drop(m, kv);
        else
            op_compute(m, kv, slot);
        if (i % 8 == 0)
            model_compare(m, kv);
    }
    for (int32_t slot = 0; slot < MODEL_SEQS; slot++)
        if (m->seqs[slot].open)
            op_close(m, kv, slot);
    model_compare(m, kv);
    assert_int_equal(gs_kv_available(kv), n_blocks);
    gs_kv_free(kv);
    free(m);
}

static void test_model(void **state) {
    (void)state;
    enum { SEEDS = 10 };
    const uint32_t sizes[] = {1, 2, 5, 9, 16, 30, MODEL_BLOCKS};
    const int n_sizes = sizeof sizes / sizeof *sizes;
    const int n_ops = scale(30000, 150000);
    for (int i = 0; i < n_sizes; i++)
        for (int seed = 1; seed <= SEEDS; seed++)
            run_model(scale_seed((uint64_t)(seed * 100 + i)), sizes[i], n_ops);
    print_message("%d operations\n", n_sizes * SEEDS * n_ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_refuses),
        cmocka_unit_test(test_scopes_never_share),
        cmocka_unit_test(test_reuse_leaves_one_token),
        cmocka_unit_test(test_partial_copy_takes_the_longest),
        cmocka_unit_test(test_partial_needs_a_block),
        cmocka_unit_test(test_lru_evicts_oldest_tail_first),
        cmocka_unit_test(test_cold_blocks_go_first),
        cmocka_unit_test(test_pool_full_changes_nothing),
        cmocka_unit_test(test_duplicate_stays_private),
        cmocka_unit_test(test_not_full_not_published),
        cmocka_unit_test(test_drop),
        cmocka_unit_test(test_public_prefix),
        cmocka_unit_test(test_put_pinned),
        cmocka_unit_test(test_without_cache),
        cmocka_unit_test(test_no_reuse),
        cmocka_unit_test(test_longer_than_a_table),
        cmocka_unit_test(test_whole_blocks_alone),
        cmocka_unit_test(test_hash_collision_shares_nothing),
        cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
