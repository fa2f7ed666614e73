/* Saved prefixes: what is accepted of a file, and pages that go from one engine to the next. */
#include <stdbool.h>

#include "base/sys.h"
#include "engine/saved.h"
#include "rig.h"

#define BLOCKS 3
#define TOKENS 16 /* of a block */
#define BYTES  40

/* ---- The file ------------------------------------------------------------------------------- */

static gs_saved sample(const int32_t *tokens) {
    return (gs_saved){.of = "gamasot 1 avx2 q8 model 12",
                      .tokens = tokens,
                      .n_blocks = BLOCKS,
                      .block_tokens = TOKENS,
                      .block_bytes = BYTES};
}

static void test_round_trip(void **state) {
    (void)state;
    int32_t tokens[BLOCKS * TOKENS], other[BLOCKS * TOKENS];
    uint8_t pages[BLOCKS * BYTES], front[4096];
    char err[200] = "";
    for (int i = 0; i < BLOCKS * TOKENS; i++)
        other[i] = tokens[i] = i * i;
    for (int i = 0; i < BLOCKS * BYTES; i++)
        pages[i] = (uint8_t)(i * 7);
    gs_saved s = sample(tokens);
    const size_t n = gs_saved_front_bytes(&s);
    assert_int_equal(gs_saved_pages_bytes(&s), sizeof(pages));
    assert_int_equal(gs_saved_bytes(&s), n + sizeof(pages));
    assert_true(n <= sizeof(front));
    gs_saved_write_front(&s, pages, front);
    assert_int_equal(gs_saved_check(&s, front, n, pages, sizeof(pages), err, sizeof(err)), 0);
    assert_memory_equal(front, "GSPREFIX", 8);

    /* No byte of it can change unnoticed. */
    for (size_t i = 0; i < n + sizeof(pages); i++) {
        uint8_t *at = i < n ? &front[i] : &pages[i - n];
        *at ^= 0x10;
        err[0] = '\0';
        assert_int_equal(gs_saved_check(&s, front, n, pages, sizeof(pages), err, sizeof(err)),
                         GS_ERR_FORMAT);
        assert_true(err[0] != '\0');
        *at ^= 0x10;
    }
    /* Another length, model, text, shape. */
    assert_int_equal(gs_saved_check(&s, front, n - 1, pages, sizeof(pages), err, sizeof(err)),
                     GS_ERR_FORMAT);
    assert_int_equal(gs_saved_check(&s, front, n, pages, sizeof(pages) + 1, err, sizeof(err)),
                     GS_ERR_FORMAT);
    s.of[5] = 'x';
    assert_int_equal(gs_saved_check(&s, front, n, pages, sizeof(pages), err, sizeof(err)),
                     GS_ERR_FORMAT);
    assert_non_null(strstr(err, "another model"));
    other[20]++;
    s = sample(other);
    assert_int_equal(gs_saved_check(&s, front, n, pages, sizeof(pages), err, sizeof(err)),
                     GS_ERR_FORMAT);
    assert_non_null(strstr(err, "another text"));
    s = sample(tokens);
    s.block_tokens = 8;
    s.n_blocks = 6;
    s.block_bytes = BYTES / 2;
    assert_int_equal(gs_saved_check(&s, front, n, pages, sizeof(pages), err, sizeof(err)),
                     GS_ERR_FORMAT);
    s.block_bytes = SIZE_MAX / 2;
    assert_int_equal(gs_saved_bytes(&s), 0);
}

/* ---- From one engine to the next ------------------------------------------------------------ */

static uint8_t *computed[4];

static void on_computed(void *arg, int32_t i, uint8_t *pages) {
    assert_null(arg);
    assert_null(computed[i]);
    computed[i] = pages;
}

/* Two prefixes of which the second begins like the first; then a prompt behind each. */
static void run(gs_public_prefixes *prefixes, track out[2], gs_engine_stats *stats) {
    rig *r = rig_new();
    r->ec.prefixes = prefixes;
    rig_start(r);
    submit(r, 0, 100, 64, 8);
    submit(r, 1, 120, 90, 8);
    finish(r, 2);
    no_blocks_are_held(r);
    gs_engine_get_stats(r->e, stats);
    for (int i = 0; i < 2; i++) {
        out[i] = r->t[i];
        out[i].q = NULL;
    }
    rig_stop(r);
}

static gs_public_prefix prefix_of(int32_t n, uint8_t *pages, bool wanted) {
    gs_public_prefix p = {.tokens = gs_array((size_t)n, sizeof(int32_t)), .n = n};
    assert_non_null(p.tokens);
    for (int32_t i = 0; i < n; i++)
        p.tokens[i] = 100 + i % 300; /* as make() has them */
    p.pages = pages;
    p.wanted = wanted;
    return p;
}

static void test_pages_of_another_engine(void **state) {
    (void)state;
    static track cold[2], first[2], second[2];
    gs_engine_stats stats;
    run(NULL, cold, &stats);
    assert_int_equal(cold[0].n_cached, 0);

    gs_public_prefix items[2] = {prefix_of(64, NULL, true), prefix_of(90, NULL, true)};
    gs_public_prefixes p = {.items = items, .n = 2, .pinned_share = 0.5, .computed = on_computed};
    run(&p, first, &stats);
    assert_non_null(computed[0]);
    assert_non_null(computed[1]);
    const uint64_t computed_tokens = stats.prefill_tokens;

    for (int i = 0; i < 2; i++) {
        items[i].pages = computed[i];
        items[i].wanted = false;
        computed[i] = NULL;
    }
    run(&p, second, &stats);
    assert_null(items[0].pages); /* taken, and freed */
    assert_null(items[1].pages);
    assert_null(computed[0]);
    /* Nothing of the prefixes was computed this time, and the answers are those of a cold run. */
    assert_int_equal(computed_tokens - stats.prefill_tokens, 64 + 90 - 64);
    for (int i = 0; i < 2; i++) {
        same_text(&cold[i], &first[i]);
        same_text(&cold[i], &second[i]);
        assert_int_equal(second[i].n_cached, first[i].n_cached);
    }
    assert_int_equal(second[0].n_cached, 64);
    assert_int_equal(second[1].n_cached, 80);
    for (int i = 0; i < 2; i++)
        gs_free(items[i].tokens);
}

/* Pages that are wrong change the text: the test above would notice. */
static void test_they_are_what_is_read(void **state) {
    (void)state;
    static track cold[2], wrong[2];
    gs_engine_stats stats;
    run(NULL, cold, &stats);
    gs_public_prefix item = prefix_of(64, gs_calloc(64, sizeof(int32_t)), false);
    gs_public_prefixes p = {.items = &item, .n = 1, .pinned_share = 0.5};
    run(&p, wrong, &stats);
    assert_true(memcmp(cold[0].out, wrong[0].out, 8 * sizeof(int32_t)) != 0);
    gs_free(item.tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_pages_of_another_engine),
        cmocka_unit_test(test_they_are_what_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
