#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/rng.h"
#include "base/utf8.h"

#include <string.h>

/* The rows of Unicode 15 table 3-7: first and last code point, and the bytes of both. */
static const struct {
    uint32_t cp;
    const char *bytes;
} edges[] = {
    {0x0000, "\0"},
    {0x007f, "\x7f"},
    {0x0080, "\xc2\x80"},
    {0x07ff, "\xdf\xbf"},
    {0x0800, "\xe0\xa0\x80"},
    {0x0fff, "\xe0\xbf\xbf"},
    {0x1000, "\xe1\x80\x80"},
    {0xcfff, "\xec\xbf\xbf"},
    {0xd000, "\xed\x80\x80"},
    {0xd7ff, "\xed\x9f\xbf"},
    {0xe000, "\xee\x80\x80"},
    {0xffff, "\xef\xbf\xbf"},
    {0x10000, "\xf0\x90\x80\x80"},
    {0x3ffff, "\xf0\xbf\xbf\xbf"},
    {0x40000, "\xf1\x80\x80\x80"},
    {0xfffff, "\xf3\xbf\xbf\xbf"},
    {0x100000, "\xf4\x80\x80\x80"},
    {0x10ffff, "\xf4\x8f\xbf\xbf"},
};

static unsigned length_of(uint32_t cp) {
    return cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
}

static void edges_of_table_3_7(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        unsigned len = length_of(edges[i].cp);
        assert_int_equal(gs_utf8_valid_prefix(edges[i].bytes, len), len);
        uint32_t cp = 1;
        assert_int_equal(gs_utf8_decode(edges[i].bytes, len, &cp), len);
        assert_int_equal(cp, edges[i].cp);
        char out[4];
        assert_int_equal(gs_utf8_encode(cp, out), len);
        assert_memory_equal(out, edges[i].bytes, len);
        for (unsigned cut = 1; cut < len; cut++) { /* each beginning is incomplete, not valid */
            assert_int_equal(gs_utf8_valid_prefix(edges[i].bytes, cut), 0);
            assert_int_equal(gs_utf8_decode(edges[i].bytes, cut, &cp), 0);
            assert_int_equal(gs_utf8_incomplete_tail(edges[i].bytes, cut), cut);
        }
        assert_int_equal(gs_utf8_incomplete_tail(edges[i].bytes, len), 0);
    }
}

static void ill_formed_sequences(void **state) {
    (void)state;
    static const char *const bad[] = {
        "\x80",             /* a lone continuation */
        "\xbf",             /* */
        "\xc0\x80",         /* overlong NUL */
        "\xc1\xbf",         /* overlong U+007F */
        "\xe0\x80\x80",     /* overlong */
        "\xe0\x9f\xbf",     /* overlong U+07FF */
        "\xed\xa0\x80",     /* surrogate U+D800 */
        "\xed\xbf\xbf",     /* surrogate U+DFFF */
        "\xf0\x80\x80\x80", /* overlong */
        "\xf0\x8f\xbf\xbf", /* overlong U+FFFF */
        "\xf4\x90\x80\x80", /* U+110000 */
        "\xf5\x80\x80\x80", /* beyond */
        "\xf8\x88\x80\x80\x80",
        "\xff",
        "\xc2\x41",         /* second byte too low */
        "\xc2\xc0",         /* second byte too high */
        "\xe1\x80\x7f",     /* third byte too low */
        "\xe1\x80\xc0",     /* third byte too high */
        "\xf1\x80\x80\x7f", /* fourth byte */
        "\xf1\x80\x80\xc0", /* fourth byte */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint32_t cp;
        assert_false(gs_utf8_valid(bad[i], strlen(bad[i])));
        assert_int_equal(gs_utf8_decode(bad[i], strlen(bad[i]), &cp), 0);
        char text[16] = "ok";
        memcpy(text + 2, bad[i], strlen(bad[i]) + 1);
        assert_int_equal(gs_utf8_valid_prefix(text, strlen(text)), 2);
    }
}

static void incomplete_tails(void **state) {
    (void)state;
    static const struct {
        const char *s;
        size_t n, tail;
    } cases[] = {
        {"", 0, 0},
        {"abc", 3, 0},
        {"a\xe2", 2, 1},
        {"a\xe2\x82", 3, 2},
        {"a\xe2\x82\xac", 4, 0},
        {"\xf0\x9f\x98", 3, 3},
        {"x\xf0\x9f", 3, 2},
        {"\xed\xa0", 2, 0},     /* would be a surrogate: can never become valid */
        {"\xe0\x80", 2, 0},     /* overlong */
        {"\xf4\x90", 2, 0},     /* beyond U+10FFFF */
        {"\x80\x80\x80", 3, 0}, /* continuations of nothing */
        {"\xc3\xa9\x80", 3, 0}, /* one continuation too many */
        {"\xf0\x9f\x98\x80\xc3", 5, 1},
        {"\xff", 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(gs_utf8_incomplete_tail(cases[i].s, cases[i].n), cases[i].tail);
}

static void every_scalar_value_round_trips(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x110005; cp++) {
        char out[4];
        uint32_t back = 0;
        unsigned len = gs_utf8_encode(cp, out);
        bool scalar = cp <= 0x10ffff && !(cp >= 0xd800 && cp <= 0xdfff);
        if (gs_utf8_decode(out, len, &back) != len || back != (scalar ? cp : 0xfffd))
            fail_msg("U+%04X came back as U+%04X", cp, back);
    }
}

/* Against the definition written another way: decode by the formula, then check the value. */
static bool valid_by_definition(const unsigned char *s, size_t n) {
    while (n > 0) {
        unsigned len = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : 4;
        if (len == 4 && s[0] >> 3 != 30)
            return false;
        if (len > n)
            return false;
        uint32_t cp = len == 1 ? s[0] : s[0] & (0xffu >> (len + 1));
        for (unsigned k = 1; k < len; k++) {
            if (s[k] >> 6 != 2)
                return false;
            cp = cp << 6 | (s[k] & 0x3f);
        }
        if (length_of(cp) != len || cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
            return false;
        s += len;
        n -= len;
    }
    return true;
}

static void random_bytes_agree_with_the_definition(void **state) {
    (void)state;
    static const unsigned char interesting[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0,
                                                0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec,
                                                0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5};
    gs_rng r;
    gs_rng_seed(&r, 7);
    int n_valid = 0;
    for (int i = 0; i < 300000; i++) {
        unsigned char s[6];
        size_t n = 1 + gs_rng_below(&r, 6);
        for (size_t k = 0; k < n; k++)
            s[k] = interesting[gs_rng_below(&r, sizeof interesting)];
        bool want = valid_by_definition(s, n);
        n_valid += want;
        if (gs_utf8_valid((const char *)s, n) != want)
            fail_msg("round %d: want %d", i, want);
    }
    assert_true(n_valid > 1000);
}

static void rng_is_the_published_generator(void **state) {
    (void)state;
    /* xoshiro256** from the state {1, 2, 3, 4}: worked out by hand from the paper's formula. */
    gs_rng r = {.s = {1, 2, 3, 4}};
    assert_true(gs_rng_u64(&r) == 11520);
    assert_true(gs_rng_u64(&r) == 0);
    assert_true(gs_rng_u64(&r) == 1509978240);
    assert_true(gs_rng_u64(&r) == 1215971899390074240u);
    /* SplitMix64 seeded with 0 begins e220a8397b1dcdaf. */
    gs_rng_seed(&r, 0);
    assert_true(r.s[0] == 0xe220a8397b1dcdafu);
    gs_rng a, b, c;
    gs_rng_seed(&a, 1);
    gs_rng_seed(&b, 1);
    gs_rng_seed(&c, 2);
    uint64_t first = gs_rng_u64(&a);
    assert_true(first == gs_rng_u64(&b));
    assert_true(first != gs_rng_u64(&c));
}

static void rng_ranges(void **state) {
    (void)state;
    gs_rng r;
    gs_rng_seed(&r, 3);
    int counts[7] = {0};
    double sum = 0;
    for (int i = 0; i < 70000; i++) {
        uint64_t v = gs_rng_below(&r, 7);
        assert_true(v < 7);
        counts[v]++;
        double u = gs_rng_unit(&r);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    for (int i = 0; i < 7; i++) /* 10,000 expected, standard deviation 93 */
        assert_in_range(counts[i], 9500, 10500);
    assert_true(sum > 34500 && sum < 35500);
    assert_int_equal(gs_rng_below(&r, 1), 0);
}

static void random_bytes_differ(void **state) {
    (void)state;
    char a[32] = {0}, b[32] = {0}, zero[32] = {0};
    assert_int_equal(gs_random_bytes(a, sizeof a), GS_OK);
    assert_int_equal(gs_random_bytes(b, sizeof b), GS_OK);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a, zero, sizeof a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_of_table_3_7),
        cmocka_unit_test(ill_formed_sequences),
        cmocka_unit_test(incomplete_tails),
        cmocka_unit_test(every_scalar_value_round_trips),
        cmocka_unit_test(random_bytes_agree_with_the_definition),
        cmocka_unit_test(rng_is_the_published_generator),
        cmocka_unit_test(rng_ranges),
        cmocka_unit_test(random_bytes_differ),
    };
    return cmocka_run_group_tests_name("base/text", tests, NULL, NULL);
}
