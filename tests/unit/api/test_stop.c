/* Stop strings, against looking at the whole text at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "api/stop.h"
#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"
#include "faults/fault.h"

static gs_stop_set set_of(const char *const *texts, int n) {
    gs_stop_set s = {.n = n};
    for (int i = 0; i < n; i++) {
        s.len[i] = strlen(texts[i]);
        memcpy(s.text[i], texts[i], s.len[i] + 1);
    }
    return s;
}

/* Where the text is cut, had it come in one piece after the other: a stop string that ends first
 * wins, and of several that end in the same piece the one that begins first. */
static size_t first_stop(const gs_stop_set *s, const char *text, size_t n) {
    size_t best = n;
    for (int i = 0; i < s->n; i++) {
        const char *hit = n > 0 ? memmem(text, n, s->text[i], s->len[i]) : NULL;
        if (hit && (size_t)(hit - text) < best)
            best = (size_t)(hit - text);
    }
    return best;
}

static void feed_split(const gs_stop_set *s, const char *text, size_t n, size_t a, size_t b,
                       const char *want, size_t want_n, bool want_match) {
    gs_stop_matcher m;
    gs_buf out = {0};
    gs_stop_init(&m, s);
    assert_int_equal(gs_stop_feed(&m, text, a, &out), 0);
    assert_int_equal(gs_stop_feed(&m, text + a, b - a, &out), 0);
    assert_int_equal(gs_stop_feed(&m, text + b, n - b, &out), 0);
    assert_int_equal(m.matched, want_match);
    assert_int_equal(gs_stop_finish(&m, &out), 0);
    assert_int_equal(out.len, want_n);
    if (want_n)
        assert_memory_equal(out.data, want, want_n);
    gs_buf_deinit(&out);
    gs_stop_deinit(&m);
}

static void all_splits(const char *const *stops, int n_stops, const char *text, const char *want,
                       bool want_match) {
    gs_stop_set s = set_of(stops, n_stops);
    size_t n = strlen(text);
    for (size_t a = 0; a <= n; a++) {
        for (size_t b = a; b <= n; b++)
            feed_split(&s, text, n, a, b, want, strlen(want), want_match);
    }
}

static void every_split_of_a_text_gives_the_same(void **state) {
    (void)state;
    const char *one[] = {"END"};
    all_splits(one, 1, "some text END more", "some text ", true);
    all_splits(one, 1, "some text EN", "some text EN", false);
    all_splits(one, 1, "ENEND", "EN", true);
    all_splits(one, 1, "EENDEND", "E", true);
    all_splits(one, 1, "END", "", true);
    all_splits(one, 1, "", "", false);
    const char *self[] = {"aab"};
    all_splits(self, 1, "aaaaabx", "aaa", true); /* overlaps itself */
    const char *period[] = {"ababac"};
    all_splits(period, 1, "abababacx", "ab", true);
}

static void several_stops_may_share_beginnings(void **state) {
    (void)state;
    const char *s[] = {"\n\nUser:", "\n\n", "###"};
    all_splits(s, 3, "one\ntwo\n\nUser: x", "one\ntwo", true);
    all_splits(s, 3, "one ## two\n", "one ## two\n", false);
    all_splits(s, 3, "##\n###", "##\n", true);
    /* Ends together in one place, begins in two. */
    const char *nested[] = {"c", "abc"};
    gs_stop_set set = set_of(nested, 2);
    feed_split(&set, "xabc", 4, 0, 4, "x", 1, true);
}

static void utf8_is_matched_as_bytes_and_never_cut(void **state) {
    (void)state;
    const char *s[] = {"가마", "🙂"};
    gs_stop_set set = set_of(s, 2);
    const char *text = "é가나 가마솥";
    size_t n = strlen(text), want = strlen("é가나 ");
    /* The detokeniser feeds whole characters; so every released part must be whole ones too. */
    gs_stop_matcher m;
    gs_buf out = {0};
    gs_stop_init(&m, &set);
    for (size_t i = 0; i < n && !m.matched;) {
        size_t len = (unsigned char)text[i] < 0x80 ? 1 : (unsigned char)text[i] < 0xE0 ? 2 : 3;
        assert_int_equal(gs_stop_feed(&m, text + i, len, &out), 0);
        i += len;
        if (out.len)
            assert_true(((unsigned char)text[out.len] & 0xC0) != 0x80);
    }
    assert_true(m.matched);
    assert_int_equal(out.len, want);
    assert_memory_equal(out.data, text, want);
    gs_buf_deinit(&out);
    gs_stop_deinit(&m);
}

static void nothing_is_released_after_a_match(void **state) {
    (void)state;
    const char *s[] = {"x"};
    gs_stop_set set = set_of(s, 1);
    gs_stop_matcher m;
    gs_buf out = {0};
    gs_stop_init(&m, &set);
    gs_stop_feed(&m, "ax", 2, &out);
    gs_stop_feed(&m, "b", 1, &out);
    gs_stop_finish(&m, &out);
    assert_int_equal(out.len, 1);
    gs_buf_deinit(&out);
    gs_stop_deinit(&m);
}

/* What is held back is never longer than needed: anything that no stop can begin with goes out. */
static void text_is_released_as_early_as_possible(void **state) {
    (void)state;
    const char *s[] = {"abcd"};
    gs_stop_set set = set_of(s, 1);
    gs_stop_matcher m;
    gs_buf out = {0};
    gs_stop_init(&m, &set);
    const struct {
        const char *piece;
        size_t shown;
    } steps[] = {{"xx", 2}, {"ab", 2}, {"c", 2}, {"a", 5}, {"b", 5}, {"x", 8}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        gs_stop_feed(&m, steps[i].piece, strlen(steps[i].piece), &out);
        assert_int_equal(out.len, steps[i].shown);
    }
    gs_buf_deinit(&out);
    gs_stop_deinit(&m);
}

static void random_texts_byte_by_byte(void **state) {
    (void)state;
    gs_rng r;
    gs_rng_seed(&r, 4);
    int n_matched = 0;
    for (int t = 0; t < 4000; t++) {
        gs_stop_set s = {.n = (int)(1 + gs_rng_below(&r, 4))};
        for (int i = 0; i < s.n; i++) {
            s.len[i] = 1 + gs_rng_below(&r, 5);
            for (size_t k = 0; k < s.len[i]; k++)
                s.text[i][k] = (char)('a' + gs_rng_below(&r, 2));
        }
        char text[24];
        size_t n = gs_rng_below(&r, sizeof text);
        for (size_t k = 0; k < n; k++)
            text[k] = (char)('a' + gs_rng_below(&r, 3));
        /* Byte by byte, the stop that ends first decides. */
        size_t want = n;
        bool match = false;
        for (size_t k = 1; k <= n && !match; k++) {
            size_t cut = first_stop(&s, text, k);
            if (cut < k) {
                match = true;
                want = cut;
            }
        }
        gs_stop_matcher m;
        gs_buf out = {0};
        gs_stop_init(&m, &s);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(gs_stop_feed(&m, text + k, 1, &out), 0);
        gs_stop_finish(&m, &out);
        assert_int_equal(m.matched, match);
        assert_int_equal(out.len, want);
        if (want)
            assert_memory_equal(out.data, text, want);
        n_matched += match;
        gs_buf_deinit(&out);
        gs_stop_deinit(&m);
    }
    assert_in_range(n_matched, 1000, 3900);
}

static void running_out_of_memory_is_said(void **state) {
    (void)state;
    const char *s[] = {"stop"};
    gs_stop_set set = set_of(s, 1);
    for (unsigned n = 1; n <= 2; n++) {
        gs_stop_matcher m;
        gs_buf out = {0};
        gs_stop_init(&m, &set);
        gs_fault_set(GS_FAULT_ALLOC, n, 12);
        assert_int_equal(gs_stop_feed(&m, "some text", 9, &out), GS_ERR_NOMEM);
        gs_fault_clear();
        gs_buf_deinit(&out);
        gs_stop_deinit(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_of_a_text_gives_the_same),
        cmocka_unit_test(several_stops_may_share_beginnings),
        cmocka_unit_test(utf8_is_matched_as_bytes_and_never_cut),
        cmocka_unit_test(nothing_is_released_after_a_match),
        cmocka_unit_test(text_is_released_as_early_as_possible),
        cmocka_unit_test(random_texts_byte_by_byte),
        cmocka_unit_test(running_out_of_memory_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
