/* Tokenizers over vocabularies made in memory: each algorithm against a naive one, control
 * tokens and the guard, detokenising, and files that must be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "tokenizer/tok_impl.h"
#include "tokenizer/tokenizer.h"
#include "faults/fault.h"
#include "vocab_builder.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, BYTE = 6 };

typedef struct vocab {
    gs_buf file;
    gs_gguf *g;
    gs_tokenizer *t;
} vocab;

static void vocab_open(vocab *v, vocab_builder *b) {
    char err[256] = "";
    *v = (vocab){0};
    assert_true(vb_finish(b, &v->file));
    if (gs_gguf_open_mem(v->file.data, v->file.len, &v->g, err, sizeof(err)) ||
        gs_tokenizer_create(v->g, &v->t, err, sizeof(err)))
        fail_msg("%s", err);
    /* The tokenizer must not need the file any more. */
    gs_gguf_close(v->g);
    memset(v->file.data, 0xee, v->file.len);
}

static void vocab_close(vocab *v) {
    gs_tokenizer_free(v->t);
    gs_buf_deinit(&v->file);
}

static gs_ids encode_n(const gs_tokenizer *t, const char *s, size_t n, int flags) {
    gs_ids ids = {0};
    char err[256] = "";
    if (gs_tok_encode(t, s, n, flags, &ids, err, sizeof(err)))
        fail_msg("encode: %s", err);
    return ids;
}

static gs_ids encode(const gs_tokenizer *t, const char *s, int flags) {
    return encode_n(t, s, strlen(s), flags);
}

static void assert_ids(const gs_ids *got, const int32_t *want, size_t n) {
    bool same = got->len == n && (n == 0 || memcmp(got->data, want, n * sizeof(*want)) == 0);
    if (same)
        return;
    print_message("want:");
    for (size_t i = 0; i < n; i++)
        print_message(" %d", want[i]);
    print_message("\ngot: ");
    for (size_t i = 0; i < got->len; i++)
        print_message(" %d", got->data[i]);
    print_message("\n");
    fail();
}

#define EXPECT(t, text, flags, ...)                                                                \
    do {                                                                                           \
        const int32_t want_[] = {__VA_ARGS__};                                                     \
        gs_ids got_ = encode((t), (text), (flags));                                                \
        assert_ids(&got_, want_, sizeof(want_) / sizeof(want_[0]));                                \
        gs_ids_deinit(&got_);                                                                      \
    } while (0)

static void expect_text(const gs_tokenizer *t, const int32_t *ids, size_t n, bool special,
                        const char *want) {
    gs_buf b = {0};
    assert_int_equal(gs_tok_decode(t, ids, n, special, &b), 0);
    assert_non_null(gs_buf_cstr(&b));
    assert_string_equal(b.data, want);
    gs_buf_deinit(&b);
}

/* ---- vocabularies
 * -------------------------------------------------------------------------------- */

#define N_RANDOM_MERGES 120

typedef struct model { /* what the naive algorithms know */
    char text[1024][40];
    int n; /* tokens; ids are indices */
    struct {
        int left, right, merged;
    } merges[N_RANDOM_MERGES];
    int n_merges;
    float score[1024];
} model;

/* Bytes a..d and the space merge at random, on top of the byte alphabet. */
static void random_bpe(vocab *v, model *m, gs_rng *rng) {
    static const char letters[] = "abcd";
    vocab_builder b = {0};
    vb_str(&b, "tokenizer.ggml.model", "gpt2");
    vb_str(&b, "tokenizer.ggml.pre", "gpt-2");
    vb_byte_alphabet(&b);
    memset(m, 0, sizeof(*m));
    m->n = 256;
    for (int i = 0; i < 256; i++)
        m->text[i][0] = (char)i;
    int usable[1024], n_usable = 0;
    for (const char *c = letters; *c; c++)
        usable[n_usable++] = *c;
    while (m->n_merges < N_RANDOM_MERGES) {
        int left = usable[gs_rng_below(rng, (uint64_t)n_usable)];
        int right = usable[gs_rng_below(rng, (uint64_t)n_usable)];
        char both[80], pair[96];
        snprintf(both, sizeof(both), "%s%s", m->text[left], m->text[right]);
        if (strlen(both) > 12)
            continue;
        int merged = 256;
        while (merged < m->n && strcmp(m->text[merged], both) != 0)
            merged++;
        bool known = false;
        for (int i = 0; i < m->n_merges; i++)
            known |= m->merges[i].left == left && m->merges[i].right == right;
        if (known)
            continue;
        if (merged == m->n) {
            strcpy(m->text[m->n], both);
            usable[n_usable++] = m->n;
            assert_int_equal(vb_token(&b, both, NORMAL, 0), m->n);
            m->n++;
        }
        snprintf(pair, sizeof(pair), "%s %s", m->text[left], m->text[right]);
        vb_merge(&b, pair);
        m->merges[m->n_merges].left = left;
        m->merges[m->n_merges].right = right;
        m->merges[m->n_merges++].merged = merged;
    }
    vocab_open(v, &b);
}

/* The definition: apply the best merge that fits anywhere, leftmost first, until none fits. */
static size_t naive_bpe(const model *m, const char *w, size_t n, int32_t *ids) {
    for (size_t i = 0; i < n; i++)
        ids[i] = (unsigned char)w[i];
    for (;;) {
        int best = m->n_merges;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (int k = 0; k < best; k++)
                if (m->merges[k].left == ids[i] && m->merges[k].right == ids[i + 1]) {
                    best = k;
                    at = i;
                }
        if (best == m->n_merges)
            return n;
        ids[at] = m->merges[best].merged;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof(*ids));
        n--;
    }
}

static void random_word(gs_rng *rng, char *w, size_t n) {
    for (size_t i = 0; i < n; i++)
        w[i] = (char)('a' + gs_rng_below(rng, 4));
}

static void bpe_equals_definition(void **state) {
    (void)state;
    gs_rng rng;
    gs_rng_seed(&rng, 11);
    for (int round = 0; round < 8; round++) {
        vocab v;
        static model m;
        random_bpe(&v, &m, &rng);
        for (int i = 0; i < 60; i++) {
            char w[400];
            int32_t want[400];
            /* short words, and long ones that take the heap */
            size_t n = 1 + gs_rng_below(&rng, i % 4 == 0 ? 399 : 30);
            random_word(&rng, w, n);
            size_t n_want = naive_bpe(&m, w, n, want);
            gs_ids got = encode_n(v.t, w, n, 0);
            assert_ids(&got, want, n_want);
            gs_ids_deinit(&got);
        }
        vocab_close(&v);
    }
}

/* Many words in one call go through the cache; one by one they do not. */
static void cached_words_equal_uncached(void **state) {
    (void)state;
    gs_rng rng;
    gs_rng_seed(&rng, 12);
    vocab v;
    static model m;
    random_bpe(&v, &m, &rng);
    gs_buf text = {0};
    gs_ids want = {0};
    char words[40][12];
    for (int i = 0; i < 40; i++) {
        size_t n = 2 + gs_rng_below(&rng, 8);
        words[i][0] = ' ';
        random_word(&rng, words[i] + 1, n);
        words[i][n + 1] = '\0';
    }
    for (int i = 0; i < 4000; i++) {
        const char *w = words[gs_rng_below(&rng, 40)];
        assert_int_equal(gs_buf_str(&text, w), 0);
        gs_ids one = encode(v.t, w, 0);
        for (size_t k = 0; k < one.len; k++)
            assert_int_equal(gs_ids_push(&want, one.data[k]), 0);
        gs_ids_deinit(&one);
    }
    gs_ids got = encode_n(v.t, text.data, text.len, 0);
    assert_ids(&got, want.data, want.len);
    gs_ids_deinit(&got);
    gs_ids_deinit(&want);
    gs_buf_deinit(&text);
    vocab_close(&v);
}

#define SP "\xe2\x96\x81"

/* Tokens over a, b, é and the space with random scores. m->text holds pieces with real spaces. */
static void random_spm(vocab *v, model *m, gs_rng *rng, bool glue, bool prefix) {
    static const char *const chars[] = {"a", "b", "\xc3\xa9", " "};
    vocab_builder b = {0};
    vb_str(&b, "tokenizer.ggml.model", "llama");
    vb_bool(&b, "tokenizer.ggml.add_space_prefix", prefix);
    vb_u32(&b, "tokenizer.ggml.unknown_token_id", 0);
    vb_u32(&b, "tokenizer.ggml.bos_token_id", 1);
    vb_u32(&b, "tokenizer.ggml.eos_token_id", 2);
    vb_token(&b, "<unk>", UNKNOWN, 0);
    vb_token(&b, "<s>", CONTROL, 0);
    vb_token(&b, "</s>", CONTROL, 0);
    vb_byte_tokens(&b);
    memset(m, 0, sizeof(*m));
    m->n = 259;
    while (m->n < 420) {
        char piece[40] = "", spelling[80] = "";
        bool ok = true;
        int len = m->n < 263 ? 1 : 2 + (int)gs_rng_below(rng, 3);
        for (int i = 0; i < len; i++) {
            const char *c = chars[m->n < 263 ? m->n - 259 : (int)gs_rng_below(rng, 4)];
            /* without glue a space only begins a token or follows spaces */
            ok &= glue || *c != ' ' || i == 0 || piece[strlen(piece) - 1] == ' ';
            strcat(piece, c);
            strcat(spelling, *c == ' ' ? SP : c);
        }
        for (int i = 259; i < m->n; i++)
            ok &= strcmp(m->text[i], piece) != 0;
        if (!ok)
            continue;
        /* few different scores: ties must go to the left */
        m->score[m->n] = -(float)gs_rng_below(rng, 40);
        strcpy(m->text[m->n], piece);
        assert_int_equal(vb_token(&b, spelling, NORMAL, m->score[m->n]), m->n);
        m->n++;
    }
    vocab_open(v, &b);
}

static int naive_find(const model *m, const char *s, size_t n) {
    for (int i = 259; i < m->n; i++)
        if (strlen(m->text[i]) == n && memcmp(m->text[i], s, n) == 0)
            return i;
    return -1;
}

/* SentencePiece's definition over the whole text, without any cutting. */
static size_t naive_spm(const model *m, const char *s, size_t n, int32_t *ids) {
    size_t start[512], count = 0, n_ids = 0;
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            start[count++] = i;
    start[count] = n;
    for (;;) {
        int best = -1;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            int id = naive_find(m, s + start[i], start[i + 2] - start[i]);
            if (id >= 0 && (best < 0 || m->score[id] > m->score[best])) {
                best = id;
                at = i;
            }
        }
        if (best < 0)
            break;
        memmove(start + at + 1, start + at + 2, (count - at - 1) * sizeof(*start));
        count--;
    }
    for (size_t i = 0; i < count; i++) {
        int id = naive_find(m, s + start[i], start[i + 1] - start[i]);
        if (id >= 0)
            ids[n_ids++] = id;
        else
            for (size_t k = start[i]; k < start[i + 1]; k++)
                ids[n_ids++] = 3 + (unsigned char)s[k];
    }
    return n_ids;
}

static void spm_equals_definition(void **state) {
    (void)state;
    static const char *const chars[] = {"a", "b", "\xc3\xa9", " ", " ", "z", "\xe4\xb8\xad"};
    gs_rng rng;
    gs_rng_seed(&rng, 13);
    for (int round = 0; round < 12; round++) {
        vocab v;
        static model m;
        bool prefix = round % 3 == 0;
        random_spm(&v, &m, &rng, round % 2, prefix);
        for (int i = 0; i < 60; i++) {
            char s[512] = " ";
            int32_t want[2048];
            size_t len = 1 + gs_rng_below(&rng, i % 4 == 0 ? 120 : 25);
            for (size_t k = 0; k < len; k++)
                strcat(s, chars[gs_rng_below(&rng, 7)]);
            size_t skip = !prefix; /* s begins with the space that the prefix adds */
            size_t n_want = naive_spm(&m, s + skip, strlen(s) - skip, want);
            gs_ids got = encode(v.t, s + 1, 0);
            assert_ids(&got, want, n_want);
            expect_text(v.t, got.data, got.len, false, s + 1);
            gs_ids_deinit(&got);
        }
        vocab_close(&v);
    }
}

/* ---- SPM details -------------------------------------------------------------------------------
 */

static void spm_prefix_and_fallback(void **state) {
    (void)state;
    vocab_builder b = {0};
    vb_str(&b, "tokenizer.ggml.model", "llama");
    vb_token(&b, "<unk>", UNKNOWN, 0);
    vb_token(&b, "<s>", CONTROL, 0);
    vb_token(&b, "</s>", CONTROL, 0);
    vb_byte_tokens(&b); /* 3.. */
    int32_t sp = vb_token(&b, SP, NORMAL, -1), h = vb_token(&b, "h", NORMAL, -2);
    int32_t i = vb_token(&b, "i", NORMAL, -3), hi = vb_token(&b, SP "hi", NORMAL, -1);
    vb_token(&b, "hi", NORMAL, -2);
    vocab v;
    vocab_open(&v, &b);
    assert_int_equal(gs_tok_kind_of(v.t), GS_TOK_SPM);
    EXPECT(v.t, "hi", 0, hi);
    EXPECT(v.t, "hi", GS_TOK_ADD_SPECIAL, 1, hi);
    EXPECT(v.t, " hi", 0, sp, hi);
    EXPECT(v.t, SP "hi", 0, sp, hi); /* U+2581 in a text is a space to the model */
    EXPECT(v.t, "h\xc3\xa9", 0, sp, h, 3 + 0xc3, 3 + 0xa9);
    EXPECT(v.t, "<s>hi", GS_TOK_PARSE_SPECIAL, 1, hi);
    gs_ids none = encode(v.t, "", 0);
    assert_int_equal(none.len, 0);
    (void)i;
    /* Segments of growing size: words of the one before are gone with its buffer. */
    gs_buf text = {0};
    size_t n_hi = 0;
    for (size_t len = 1; len < 3000; len *= 4) {
        assert_int_equal(gs_buf_str(&text, "<s>hi"), 0);
        for (size_t k = 1; k < len; k++)
            assert_int_equal(gs_buf_str(&text, " hi"), 0);
        n_hi += len;
    }
    gs_ids many = encode_n(v.t, text.data, text.len, GS_TOK_PARSE_SPECIAL);
    assert_int_equal(many.len, n_hi + 6);
    for (size_t k = 0; k < many.len; k++)
        assert_true(many.data[k] == hi || many.data[k] == 1);
    gs_ids_deinit(&many);
    gs_buf_deinit(&text);
    const int32_t seq[] = {1, hi, hi, 3 + 0xc3, 3 + 0xa9, 3 + 0xff};
    expect_text(v.t, seq, 6, false, "hi hi\xc3\xa9\xef\xbf\xbd");
    gs_buf piece = {0};
    assert_int_equal(gs_tok_piece(v.t, hi, false, &piece), 0);
    assert_int_equal(gs_tok_piece(v.t, 1, false, &piece), 0);
    assert_int_equal(gs_tok_piece(v.t, 1, true, &piece), 0);
    assert_int_equal(gs_tok_piece(v.t, -1, true, &piece), 0);
    assert_int_equal(gs_tok_piece(v.t, 1 << 20, true, &piece), 0);
    assert_string_equal(gs_buf_cstr(&piece), " hi<s>");
    gs_buf_deinit(&piece);
    vocab_close(&v);
}

/* ---- WordPiece ----------------------------------------------------------------------------------
 */

static void wpm_normalises(void **state) {
    (void)state;
    vocab_builder b = {0};
    vb_str(&b, "tokenizer.ggml.model", "bert");
    int32_t pad = vb_token(&b, "[PAD]", CONTROL, 0), unk = vb_token(&b, "[UNK]", CONTROL, 0);
    int32_t cls = vb_token(&b, "[CLS]", CONTROL, 0), sep = vb_token(&b, "[SEP]", CONTROL, 0);
    int32_t play = vb_token(&b, SP "play", NORMAL, 0), ing = vb_token(&b, "ing", NORMAL, 0);
    int32_t cafe = vb_token(&b, SP "cafe", NORMAL, 0), comma = vb_token(&b, SP ",", NORMAL, 0);
    int32_t zh = vb_token(&b, SP "\xe4\xb8\xad", NORMAL, 0);
    int32_t ga = vb_token(&b, SP "\xe1\x84\x80", NORMAL, 0); /* Hangul letters of U+AC00 */
    int32_t a = vb_token(&b, "\xe1\x85\xa1", NORMAL, 0);
    int32_t x = vb_token(&b, SP "x", NORMAL, 0), xx = vb_token(&b, "x", NORMAL, 0);
    int32_t lam = vb_token(&b, SP "\xce\xbb", NORMAL, 0);
    vocab v;
    vocab_open(&v, &b);
    (void)pad;
    EXPECT(v.t, "Playing", GS_TOK_ADD_SPECIAL, cls, play, ing, sep);
    EXPECT(v.t, "caf\xc3\xa9,CAFE\xcc\x81", 0, cafe, comma, cafe);
    EXPECT(v.t, "x\xe4\xb8\xad\xe4\xb8\xadx", 0, x, zh, zh, x);
    EXPECT(v.t, "\xea\xb0\x80", 0, ga, a);
    EXPECT(v.t,
           "pl\x01\xe2\x80\x8b"
           "ay\t\xc2\xa0play",
           0, play, play); /* control, format */
    EXPECT(v.t, "\xce\x9b", 0, lam);
    EXPECT(v.t, "playq play", 0, unk, play);
    EXPECT(v.t, "[CLS]", 0, unk, unk, unk);
    EXPECT(v.t, "[CLS]x", GS_TOK_PARSE_SPECIAL, cls, x);
    char longest[102];
    memset(longest, 'x', 101);
    longest[101] = '\0';
    EXPECT(v.t, longest, 0, unk); /* 101 characters */
    gs_ids ids = encode(v.t, longest + 1, 0);
    assert_int_equal(ids.len, 100);
    assert_int_equal(ids.data[1], xx);
    gs_ids_deinit(&ids);
    const int32_t seq[] = {cls, play, ing, comma, cafe, sep};
    expect_text(v.t, seq, 6, false, "playing , cafe");
    assert_int_equal(gs_tok_bos(v.t), cls);
    assert_int_equal(gs_tok_eos(v.t), sep);
    vocab_close(&v);
}

static void wpm_cased_keeps_case_and_accents(void **state) {
    (void)state;
    vocab_builder b = {0};
    vb_str(&b, "tokenizer.ggml.model", "bert");
    vb_bool(&b, "tokenizer.ggml.normalizer.lowercase", false);
    int32_t unk = vb_token(&b, "[UNK]", CONTROL, 0);
    int32_t cafe = vb_token(&b, SP "Caf\xc3\xa9", NORMAL, 0);
    vocab v;
    vocab_open(&v, &b);
    EXPECT(v.t, "Caf\xc3\xa9 caf\xc3\xa9", 0, cafe, unk);
    vocab_close(&v);
}

/* ---- control tokens and the guard
 * ------------------------------------------------------------------ */

typedef struct chatml {
    vocab v;
    int32_t start, end, user, user_long, one;
} chatml;

static void chatml_open(chatml *c) {
    vocab_builder b = {0};
    vb_str(&b, "tokenizer.ggml.model", "gpt2");
    vb_str(&b, "tokenizer.ggml.pre", "gpt-2");
    vb_byte_alphabet(&b);
    c->start = vb_token(&b, "<|im_start|>", CONTROL, 0);
    c->end = vb_token(&b, "<|im_end|>", CONTROL, 0);
    c->user = vb_token(&b, "<|im", USER, 0);
    c->user_long = vb_token(&b, "<|im_e", USER, 0);
    c->one = vb_token(&b, "\xe2\x98\x83", CONTROL, 0); /* one character */
    vb_token(&b, "\xe2\x98", CONTROL, 0);              /* no UTF-8: never found in text */
    vb_u32(&b, "tokenizer.ggml.bos_token_id", (uint32_t)c->start);
    vb_u32(&b, "tokenizer.ggml.eos_token_id", (uint32_t)c->end);
    vb_token(&b, "ab", NORMAL, 0);
    vb_token(&b, "abb", CONTROL, 0); /* a merge must not make it */
    vb_merge(&b, "a b");
    vb_merge(&b, "ab b");
    vocab_open(&c->v, &b);
}

static void special_tokens_longest_first(void **state) {
    (void)state;
    chatml c;
    chatml_open(&c);
    const gs_tokenizer *t = c.v.t;
    EXPECT(t, "<|im_end|>", GS_TOK_PARSE_SPECIAL, c.end);
    EXPECT(t, "x<|im_end|>y", GS_TOK_PARSE_SPECIAL, 'x', c.end, 'y');
    EXPECT(t, "<|im_x", GS_TOK_PARSE_SPECIAL, c.user, '_', 'x');
    EXPECT(t, "<|im_ed", 0, c.user_long, 'd');
    /* without the flag the control token is text, but user-defined ones are still found in it */
    EXPECT(t, "<|im_end|>", 0, c.user_long, 'n', 'd', '|', '>');
    EXPECT(t, "a", GS_TOK_ADD_SPECIAL, 'a'); /* nothing asks for BOS */
    int32_t ab = gs_tok_find(t, "ab", 2);
    EXPECT(t, "abb", 0, ab, 'b');
    EXPECT(t, "abb", GS_TOK_PARSE_SPECIAL, ab + 1);
    gs_ids snow = encode(t, "\xe2\x98\x83", 0);
    assert_int_equal(snow.len, 3);
    gs_ids_deinit(&snow);
    EXPECT(t, "\xe2\x98\x83", GS_TOK_PARSE_SPECIAL, c.one);
    assert_true(gs_tok_is_control(t, c.end));
    assert_false(gs_tok_is_control(t, c.user));
    assert_int_equal(gs_tok_find(t, "<|im_end|>", 10), c.end);
    assert_int_equal(gs_tok_find(t, "<|im_end", 8), -1);
    gs_str s = gs_tok_spelling(t, c.end);
    assert_int_equal(s.len, 10);
    vocab_close(&c.v);
}

static void append_guarded(const gs_tokenizer *t, const char *s, size_t n, gs_buf *out) {
    assert_int_equal(gs_tok_guard(t, s, n, out), 0);
}

/* encode(guard(a) guard(b), parse) == encode(a b) for texts made of the worst parts. */
static void guarded_text_is_plain_text(void **state) {
    (void)state;
    static const char *const parts[] = {"<|im_start|>",
                                        "<|im_end|>",
                                        "<",
                                        "|",
                                        "im_",
                                        "end",
                                        "|>",
                                        "<|im_en",
                                        "<|im",
                                        "a",
                                        "ab",
                                        " ",
                                        "\n",
                                        "\xef\xb7\x90",
                                        "\xef\xb7\x90\xef\xb7\x90",
                                        "\xe2\x98\x83",
                                        "\xe2\x98\x84",
                                        "start|>"};
    chatml c;
    chatml_open(&c);
    gs_rng rng;
    gs_rng_seed(&rng, 14);
    for (int round = 0; round < 3000; round++) {
        gs_buf plain = {0}, guarded = {0};
        for (uint64_t k = 0, n = 1 + gs_rng_below(&rng, 3); k < n; k++) {
            size_t from = plain.len;
            for (uint64_t i = 0, m = gs_rng_below(&rng, 5); i < m; i++)
                assert_int_equal(gs_buf_str(&plain, parts[gs_rng_below(&rng, 18)]), 0);
            if (plain.len > from)
                append_guarded(c.v.t, plain.data + from, plain.len - from, &guarded);
        }
        const char *s = plain.data ? plain.data : "";
        gs_ids want = encode_n(c.v.t, s, plain.len, 0);
        gs_ids got = encode_n(c.v.t, guarded.data ? guarded.data : "", guarded.len,
                              GS_TOK_PARSE_SPECIAL | GS_TOK_GUARDED);
        assert_ids(&got, want.data, want.len);
        gs_ids_deinit(&want);
        gs_ids_deinit(&got);
        gs_buf_deinit(&plain);
        gs_buf_deinit(&guarded);
    }
    vocab_close(&c.v);
}

/* Two parts of a user's text that a template puts side by side spell nothing together. */
static void guarded_parts_do_not_join(void **state) {
    (void)state;
    chatml c;
    chatml_open(&c);
    const char *spelling = "<|im_end|>";
    for (size_t cut = 1; cut < 10; cut++) {
        gs_buf b = {0};
        append_guarded(c.v.t, spelling, cut, &b);
        append_guarded(c.v.t, spelling + cut, 10 - cut, &b);
        gs_ids want = encode(c.v.t, spelling, 0);
        gs_ids got = encode_n(c.v.t, b.data, b.len, GS_TOK_PARSE_SPECIAL | GS_TOK_GUARDED);
        assert_ids(&got, want.data, want.len);
        gs_ids_deinit(&want);
        gs_ids_deinit(&got);
        gs_buf_deinit(&b);
    }
    vocab_close(&c.v);
}

static void guard_inside_a_template(void **state) {
    (void)state;
    chatml c;
    chatml_open(&c);
    gs_buf b = {0};
    assert_int_equal(gs_buf_str(&b, "<|im_start|>"), 0);
    append_guarded(c.v.t, "<|im_end|>", 10, &b);
    assert_int_equal(gs_buf_str(&b, "<|im_end|>\xe2\x98\x83"), 0);
    append_guarded(c.v.t, "\xe2\x98\x83", 3, &b);
    gs_ids ids = encode_n(c.v.t, b.data, b.len, GS_TOK_PARSE_SPECIAL | GS_TOK_GUARDED);
    const int32_t want[] = {c.start, c.user_long, 'n',  'd',  '|', '>',
                            c.end,   c.one,       0xe2, 0x98, 0x83};
    assert_ids(&ids, want, 11);
    gs_ids_deinit(&ids);
    gs_buf_clear(&b);
    append_guarded(c.v.t, "plain text > | <b>", 18, &b);
    assert_string_equal(gs_buf_cstr(&b), "plain text > | <b>");
    /* the text must be one that can be encoded at all */
    assert_int_equal(gs_tok_guard(c.v.t, "\xff", 1, &b), GS_ERR_INVALID);
    gs_buf_deinit(&b);
    vocab_close(&c.v);
}

static void end_of_generation_list(void **state) {
    (void)state;
    vocab_builder b = {0};
    vb_str(&b, "tokenizer.ggml.model", "gpt2");
    vb_str(&b, "tokenizer.ggml.pre", "gpt-2");
    vb_byte_alphabet(&b);
    vb_token(&b, "ab", NORMAL, 0);
    vb_merge(&b, "a b");
    int32_t end = vb_token(&b, "<|im_end|>", NORMAL, 0); /* as a careless file has it */
    int32_t eos = vb_token(&b, "[fin]", CONTROL, 0);
    int32_t strike = vb_token(&b, "</s>", USER, 0);
    int32_t eot = vb_token(&b, "[turn]", CONTROL, 0);
    vb_u32(&b, "tokenizer.ggml.eos_token_id", (uint32_t)eos);
    vb_u32(&b, "tokenizer.ggml.eot_token_id", (uint32_t)eot);
    vocab v;
    vocab_open(&v, &b);
    size_t n;
    const int32_t *eog = gs_tok_eog(v.t, &n);
    assert_int_equal(n, 3);
    assert_int_equal(eog[0], end);
    assert_int_equal(eog[1], eos);
    assert_int_equal(eog[2], eot);
    assert_true(gs_tok_is_eog(v.t, eot));
    assert_false(gs_tok_is_eog(v.t, strike));
    assert_true(gs_tok_is_control(v.t, end));
    EXPECT(v.t, "</s>", 0, '<', '/', 's', '>');
    expect_text(v.t, &strike, 1, false, "</s>"); /* but it shows when a model writes it */
    vocab_close(&v);
}

static void phi3_swallows_space_behind_markers(void **state) {
    (void)state;
    vocab_builder b = {0};
    vb_str(&b, "general.name", "Phi-3 Mini");
    vb_str(&b, "tokenizer.ggml.model", "gpt2");
    vb_str(&b, "tokenizer.ggml.pre", "gpt-2");
    vb_byte_alphabet(&b);
    vb_token(&b, "ab", NORMAL, 0);
    vb_merge(&b, "a b");
    int32_t user = vb_token(&b, "<|user|>", CONTROL, 0), s = vb_token(&b, "<s>", CONTROL, 0);
    vocab v;
    vocab_open(&v, &b);
    EXPECT(v.t, "<|user|>\n a<s> b", GS_TOK_PARSE_SPECIAL, user, 'a', s, ' ', 'b');
    vocab_close(&v);
}

/* ---- detokenising
 * -------------------------------------------------------------------------------- */

static void streaming_equals_whole(void **state) {
    (void)state;
    gs_rng rng;
    gs_rng_seed(&rng, 15);
    vocab spm, bpe;
    static model m;
    random_spm(&spm, &m, &rng, true, true);
    random_bpe(&bpe, &m, &rng);
    for (int round = 0; round < 4000; round++) {
        const gs_tokenizer *t = round % 2 ? spm.t : bpe.t;
        int32_t ids[24];
        size_t n = gs_rng_below(&rng, 24);
        for (size_t i = 0; i < n; i++)
            ids[i] = (int32_t)gs_rng_below(&rng, (uint64_t)gs_tok_n_vocab(t) + 2) - 1;
        gs_buf whole = {0}, stream = {0};
        bool special = round % 3 == 0;
        assert_int_equal(gs_tok_decode(t, ids, n, special, &whole), 0);
        gs_detok d;
        gs_detok_init(&d, t, special);
        for (size_t i = 0; i < n; i++) {
            size_t from = stream.len;
            assert_int_equal(gs_detok_push(&d, ids[i], &stream), 0);
            if (stream.len > from)
                assert_true(gs_utf8_valid(stream.data + from, stream.len - from));
        }
        assert_int_equal(gs_detok_flush(&d, &stream), 0);
        assert_int_equal(whole.len, stream.len);
        if (whole.len)
            assert_memory_equal(whole.data, stream.data, whole.len);
        assert_true(whole.len == 0 || gs_utf8_valid(whole.data, whole.len));
        gs_buf_deinit(&whole);
        gs_buf_deinit(&stream);
    }
    vocab_close(&spm);
    vocab_close(&bpe);
}

/* Byte tokens that spell broken UTF-8: one U+FFFD for each maximal part (Unicode 15, table 3-8). */
static void broken_utf8_is_replaced(void **state) {
    (void)state;
    vocab v;
    static model m;
    gs_rng rng;
    gs_rng_seed(&rng, 16);
    random_bpe(&v, &m, &rng);
    const int32_t mixed[] = {0x61, 0xf1, 0x80, 0x80, 0xe1, 0x80, 0xc2,
                             0x62, 0x80, 0x63, 0x80, 0xbf, 0x64};
    expect_text(v.t, mixed, 13, false,
                "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                "b\xef\xbf\xbd"
                "c\xef\xbf\xbd\xef\xbf\xbd"
                "d");
    const int32_t surrogate[] = {0xed, 0xa0, 0x80};
    expect_text(v.t, surrogate, 3, false, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    const int32_t cut[] = {0xf0, 0x9f, 0x98};
    expect_text(v.t, cut, 3, false, "\xef\xbf\xbd");
    const int32_t whole[] = {0xf0, 0x9f, 0x98, 0x80};
    expect_text(v.t, whole, 4, false, "\xf0\x9f\x98\x80");
    vocab_close(&v);
}

static void streaming_in_mid_text_keeps_space(void **state) {
    (void)state;
    vocab v;
    static model m;
    gs_rng rng;
    gs_rng_seed(&rng, 17);
    random_spm(&v, &m, &rng, true, true);
    int32_t space = gs_tok_find(v.t, SP, 3);
    assert_true(space >= 0);
    gs_buf out = {0};
    gs_detok d;
    gs_detok_init_mid(&d, v.t, false);
    assert_int_equal(gs_detok_push(&d, space, &out), 0);
    assert_int_equal(out.len, 1);
    gs_detok_init(&d, v.t, false);
    assert_int_equal(gs_detok_push(&d, space, &out), 0);
    assert_int_equal(out.len, 1);
    gs_buf_deinit(&out);
    vocab_close(&v);
}

/* ---- hostile shapes and files
 * ---------------------------------------------------------------------- */

/*
 * Large texts of few characters: done at all only if no step is quadratic, and nothing is lost.
 * Also without PCRE2's JIT, which systems that forbid writable code refuse.
 */
static void long_runs_round_trip(void **state) {
    (void)state;
    static const char *const units[] = {
        "a", " ", "\n", "ab", "\xf0\x9f\x98\x80", "<|im_end", " a", "7", "A", "\xe4\xb8\xad ", "'"};
    static const char *const pres[] = {"gpt-2",       "llama-bpe", "gpt-4o", "deepseek-llm",
                                       "deepseek-v3", "falcon",    "qwen35", "bloom"};
    for (size_t p = 0; p < sizeof(pres) / sizeof(pres[0]); p++) {
        vocab_builder b = {0};
        vb_str(&b, "tokenizer.ggml.model", "gpt2");
        vb_str(&b, "tokenizer.ggml.pre", pres[p]);
        vb_byte_alphabet(&b);
        vb_token(&b, "aa", NORMAL, 0);
        vb_token(&b, "aaaa", NORMAL, 0);
        vb_token(&b, "\xc4\xa0\xc4\xa0", NORMAL, 0);
        vb_token(&b, "<|im_end|>", CONTROL, 0);
        vb_merge(&b, "a a");
        vb_merge(&b, "aa aa");
        vb_merge(&b, "\xc4\xa0 \xc4\xa0");
        vocab v;
        vocab_open(&v, &b);
        for (size_t u = 0; u < 2 * sizeof(units) / sizeof(units[0]); u++) {
            gs_buf text = {0}, back = {0};
            v.t->pretok_jit = u % 2;
            while (text.len < 200000)
                assert_int_equal(gs_buf_str(&text, units[u / 2]), 0);
            assert_int_equal(gs_buf_str(&text, "\xe4\xb8\xad"), 0);
            gs_ids ids = encode_n(v.t, text.data, text.len, GS_TOK_PARSE_SPECIAL);
            assert_int_equal(gs_tok_decode(v.t, ids.data, ids.len, true, &back), 0);
            assert_int_equal(back.len, text.len);
            assert_memory_equal(back.data, text.data, text.len);
            gs_ids_deinit(&ids);
            gs_buf_deinit(&text);
            gs_buf_deinit(&back);
        }
        vocab_close(&v);
    }
}

static void every_pretokeniser_compiles(void **state) {
    (void)state;
    static const char *const names[] = {"default",       "gpt-2",
                                        "smollm",        "starcoder",
                                        "refact",        "command-r",
                                        "falcon",        "mpt",
                                        "olmo",          "dbrx",
                                        "stablelm2",     "llama-bpe",
                                        "smaug-bpe",     "qwen2",
                                        "qwen35",        "deepseek-llm",
                                        "deepseek-v3",   "deepseek-coder",
                                        "tekken",        "gpt-4o",
                                        "chatglm-bpe",   "glm4",
                                        "viking",        "bloom",
                                        "youtu",         "minicpm5",
                                        "seed-coder",    "bailingmoe",
                                        "laguna",        "hunyuan",
                                        "ufakzeka",      "exaone4",
                                        "hunyuan-dense", "granite-embed-multi-97m"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        vocab_builder b = {0};
        vb_str(&b, "tokenizer.ggml.model", "gpt2");
        vb_str(&b, "tokenizer.ggml.pre", names[i]);
        vb_byte_alphabet(&b);
        vb_token(&b, "ab", NORMAL, 0);
        vb_merge(&b, "a b");
        vocab v;
        vocab_open(&v, &b);
        const char *text =
            "Ab 12345 it's\r\n\t\xe4\xb8\xad\xf0\x9f\x98\x80  \xc3\xa9--(x)\xc2\xa0 !";
        gs_ids ids = encode(v.t, text, 0);
        expect_text(v.t, ids.data, ids.len, false, text);
        gs_ids_deinit(&ids);
        vocab_close(&v);
    }
}

static gs_ids ids_with_own_tokenizer(const char *text) {
    vocab_builder b = {0};
    vocab v;
    vb_str(&b, "tokenizer.ggml.model", "gpt2");
    vb_str(&b, "tokenizer.ggml.pre", "llama-bpe");
    vb_byte_alphabet(&b);
    vb_token(&b, "ab", NORMAL, 0);
    vb_merge(&b, "a b");
    vocab_open(&v, &b);
    gs_ids ids = encode(v.t, text, 0);
    vocab_close(&v);
    return ids;
}

/* In a process that may have no memory that is written and executed, as the unit file has it. */
static void without_executable_memory_it_is_the_same(void **state) {
    (void)state;
    enum { SET_MDWE = 65, REFUSE_EXEC_GAIN = 1, REFUSED = 77 };
    const char *text = "abab 12345 it's\r\n\t\xe4\xb8\xad  \xc3\xa9--(ab)\xc2\xa0 ab!";
    gs_ids with = ids_with_own_tokenizer(text);
    int status = 0;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
            _exit(REFUSED);
        if (mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                 0) != MAP_FAILED)
            _exit(1);
        gs_ids without = ids_with_own_tokenizer(text);
        _exit(without.len == with.len &&
                      memcmp(without.data, with.data, with.len * sizeof(*with.data)) == 0
                  ? 0
                  : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    gs_ids_deinit(&with);
    if (WIFEXITED(status) && WEXITSTATUS(status) == REFUSED) {
        print_message("this kernel has no PR_SET_MDWE (Linux 6.3)\n");
        skip();
    }
    assert_int_equal(status, 0);
}

static void invalid_text_is_refused(void **state) {
    (void)state;
    chatml c;
    chatml_open(&c);
    gs_ids ids = {0};
    char err[128] = "";
    assert_int_equal(gs_ids_push(&ids, 7), 0);
    assert_int_equal(gs_tok_encode(c.v.t, "ok \xed\xa0\x80", 6, 0, &ids, err, sizeof(err)),
                     GS_ERR_INVALID);
    assert_non_null(strstr(err, "byte 3"));
    assert_int_equal(ids.len, 1); /* what was there stays */
    gs_ids_deinit(&ids);
    vocab_close(&c.v);
}

/* Breaks one thing of a good file; the message must name the key. */
static void refused(vocab_builder *b, int code, const char *key) {
    gs_buf file = {0};
    gs_gguf *g = NULL;
    gs_tokenizer *t = NULL;
    char err[256] = "";
    assert_true(vb_finish(b, &file));
    assert_int_equal(gs_gguf_open_mem(file.data, file.len, &g, err, sizeof(err)), 0);
    int rc = gs_tokenizer_create(g, &t, err, sizeof(err));
    if (rc != code || !strstr(err, key))
        fail_msg("%s: got %d \"%s\"", key, rc, err);
    assert_null(t);
    gs_gguf_close(g);
    gs_buf_deinit(&file);
}

static vocab_builder good(const char *kind) {
    vocab_builder b = {0};
    vb_str(&b, "tokenizer.ggml.model", kind);
    if (strcmp(kind, "gpt2") == 0) {
        vb_str(&b, "tokenizer.ggml.pre", "gpt-2");
        vb_byte_alphabet(&b);
        vb_token(&b, "ab", NORMAL, 0);
        vb_merge(&b, "a b");
    } else {
        vb_token(&b, "<unk>", UNKNOWN, 0);
        vb_token(&b, "<s>", CONTROL, 0);
        vb_token(&b, "</s>", CONTROL, 0);
    }
    return b;
}

static void broken_files_are_refused(void **state) {
    (void)state;
    vocab_builder b;
    b = (vocab_builder){0};
    vb_str(&b, "tokenizer.ggml.model", "abacus");
    refused(&b, GS_ERR_UNSUPPORTED, "tokenizer.ggml.model");
    b = (vocab_builder){0};
    vb_u32(&b, "tokenizer.ggml.model", 1);
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.model");
    b = (vocab_builder){0};
    vb_str(&b, "tokenizer.ggml.model", "gpt2");
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.tokens");
    b = (vocab_builder){0};
    vb_str(&b, "tokenizer.ggml.model", "gpt2");
    vb_str(&b, "tokenizer.ggml.pre", "sandwich");
    vb_byte_alphabet(&b);
    refused(&b, GS_ERR_UNSUPPORTED, "tokenizer.ggml.pre");
    b = good("gpt2");
    vb_token(&b, "ab", NORMAL, 0);
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.tokens");
    b = good("gpt2");
    vb_token(&b, "zz", 9, 0);
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.token_type[257]");
    b = good("gpt2");
    b.n_types--;
    b.types.len -= 4;
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.token_type");
    b = good("gpt2");
    vb_merge(&b, "a zz");
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.merges[1]");
    b = good("gpt2");
    vb_merge(&b, "a c"); /* both known, the result is not */
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.merges[1]");
    b = good("gpt2");
    vb_merge(&b, "ab");
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.merges[1]");
    b = good("gpt2");
    vb_merge(&b, "");
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.merges[1]");
    b = good("gpt2");
    b.n_merges = 0;
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.merges");
    b = good("gpt2");
    vb_u32(&b, "tokenizer.ggml.eos_token_id", 257);
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.eos_token_id");
    b = good("gpt2");
    vb_str(&b, "tokenizer.ggml.add_bos_token", "yes");
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.add_bos_token");
    b = good("llama");
    b.n_scores--;
    b.scores.len -= 4;
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.scores");
    b = good("llama");
    vb_token(&b, "x", NORMAL, (float)(0.0 / 0.0 * 1.0));
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.scores[3]");
    b = good("llama");
    b.n_scores = 0;
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.scores");
    static const char *const bytes[] = {"<0x-1>", "<0x100>", "<0xZZ>", "0x41", "<0x4>", ""};
    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
        b = good("llama");
        vb_token(&b, bytes[i], BYTE, 0);
        refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.tokens[3]");
    }
    b = good("bert");
    refused(&b, GS_ERR_FORMAT, "tokenizer.ggml.unknown_token_id");
}

/* Odd but harmless: loads, encodes and decodes without losing anything. */
static void odd_pieces_are_tolerated(void **state) {
    (void)state;
    vocab_builder b = good("gpt2");
    vb_token_n(&b, "\xff\xfe", 2, NORMAL, 0);
    vb_token_n(&b, "\0", 1, NORMAL, 0);
    vb_token_n(&b, "\xe2\x98", 2, USER, 0);
    vb_token(&b, "", NORMAL, 0);
    vb_token(&b, "", CONTROL, 0); /* gaps of the id space */
    vb_token(&b, "\xef\xb7\x90", USER, 0);
    vb_token(&b, "two words", NORMAL, 0);
    vb_u32(&b, "tokenizer.ggml.bos_token_id", UINT32_MAX);
    vb_bool(&b, "tokenizer.ggml.add_space_prefix", true); /* means nothing to this kind */
    vocab v;
    vocab_open(&v, &b);
    assert_int_equal(gs_tok_bos(v.t), -1);
    const char *text = " two words ab\xef\xb7\x90 \xe2\x98\x83";
    gs_ids ids = encode(v.t, text, GS_TOK_ADD_SPECIAL | GS_TOK_PARSE_SPECIAL);
    expect_text(v.t, ids.data, ids.len, false, text);
    gs_ids_deinit(&ids);
    const int32_t odd = 257;
    expect_text(v.t, &odd, 1, false, "\xef\xbf\xbd\xef\xbf\xbd");
    vocab_close(&v);
}

static void file_without_tokenizer(void **state) {
    (void)state;
    vocab_builder b = {0};
    vb_str(&b, "general.architecture", "llama");
    vb_u32(&b, "llama.vocab_size", 32000);
    vb_str(&b, "tokenizer.ggml.model", "no_vocab");
    vocab v;
    vocab_open(&v, &b);
    assert_int_equal(gs_tok_kind_of(v.t), GS_TOK_NONE);
    assert_int_equal(gs_tok_n_vocab(v.t), 32000);
    assert_int_equal(gs_tok_find(v.t, "a", 1), -1);
    assert_int_equal(gs_tok_spelling(v.t, 5).len, 0);
    assert_false(gs_tok_is_control(v.t, 5));
    gs_ids ids = {0};
    char err[128] = "";
    assert_int_equal(gs_tok_encode(v.t, "a", 1, 0, &ids, err, sizeof(err)), GS_ERR_UNSUPPORTED);
    const int32_t id = 5;
    expect_text(v.t, &id, 1, true, "");
    gs_buf out = {0};
    assert_int_equal(gs_tok_guard(v.t, "<s>", 3, &out), 0);
    assert_int_equal(out.len, 3);
    gs_buf_deinit(&out);
    vocab_close(&v);
}

/* ---- failing allocations and threads
 * ----------------------------------------------------------------- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char *const kinds[] = {"gpt2", "llama"};
    for (int k = 0; k < 2; k++) {
        vocab_builder b = good(kinds[k]);
        gs_buf file = {0}, text = {0};
        gs_gguf *g = NULL;
        char err[256] = "";
        assert_true(vb_finish(&b, &file));
        assert_int_equal(gs_gguf_open_mem(file.data, file.len, &g, err, sizeof(err)), 0);
        gs_tokenizer *t = NULL;
        int rc = GS_ERR_NOMEM;
        for (uint64_t nth = 1; rc == GS_ERR_NOMEM && nth < 1000; nth++) {
            gs_fault_set(GS_FAULT_ALLOC, nth, ENOMEM);
            rc = gs_tokenizer_create(g, &t, err, sizeof(err));
            gs_fault_clear();
            assert_true(rc == GS_OK || (rc == GS_ERR_NOMEM && !t));
        }
        assert_int_equal(rc, GS_OK);
        while (text.len < 2000)
            assert_int_equal(gs_buf_str(&text, "ab \xef\xb7\x90 <s>ababababab"), 0);
        rc = GS_ERR_NOMEM;
        for (uint64_t nth = 1; rc == GS_ERR_NOMEM && nth < 1000; nth++) {
            gs_ids ids = {0};
            gs_fault_set(GS_FAULT_ALLOC, nth, ENOMEM);
            rc = gs_tok_encode(t, text.data, text.len, GS_TOK_GUARDED | GS_TOK_PARSE_SPECIAL, &ids,
                               err, sizeof(err));
            gs_fault_clear();
            assert_true(rc == GS_OK || (rc == GS_ERR_NOMEM && ids.len == 0));
            gs_ids_deinit(&ids);
        }
        assert_int_equal(rc, GS_OK);
        gs_tokenizer_free(t);
        gs_gguf_close(g);
        gs_buf_deinit(&file);
        gs_buf_deinit(&text);
    }
}

typedef struct job {
    const gs_tokenizer *t;
    const gs_buf *text;
    const gs_ids *want;
    bool ok;
} job;

static void *encode_job(void *arg) {
    job *j = arg;
    j->ok = true;
    for (int i = 0; i < 20; i++) {
        gs_ids ids = {0};
        char err[64];
        j->ok &= gs_tok_encode(j->t, j->text->data, j->text->len, 0, &ids, err, sizeof(err)) == 0 &&
                 ids.len == j->want->len &&
                 memcmp(ids.data, j->want->data, ids.len * sizeof(*ids.data)) == 0;
        gs_ids_deinit(&ids);
    }
    return NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    vocab v;
    static model m;
    gs_rng rng;
    gs_rng_seed(&rng, 18);
    random_bpe(&v, &m, &rng);
    gs_buf text = {0};
    for (int i = 0; i < 300; i++) {
        char w[9] = " ";
        random_word(&rng, w + 1, 7);
        w[8] = '\0';
        assert_int_equal(gs_buf_str(&text, w), 0);
    }
    gs_ids want = encode_n(v.t, text.data, text.len, 0);
    pthread_t thread[3];
    job jobs[3];
    for (int i = 0; i < 3; i++) {
        jobs[i] = (job){v.t, &text, &want, false};
        assert_int_equal(pthread_create(&thread[i], NULL, encode_job, &jobs[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        assert_true(jobs[i].ok);
    }
    gs_ids_deinit(&want);
    gs_buf_deinit(&text);
    vocab_close(&v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bpe_equals_definition),
        cmocka_unit_test(cached_words_equal_uncached),
        cmocka_unit_test(spm_equals_definition),
        cmocka_unit_test(spm_prefix_and_fallback),
        cmocka_unit_test(wpm_normalises),
        cmocka_unit_test(wpm_cased_keeps_case_and_accents),
        cmocka_unit_test(special_tokens_longest_first),
        cmocka_unit_test(guarded_text_is_plain_text),
        cmocka_unit_test(guarded_parts_do_not_join),
        cmocka_unit_test(guard_inside_a_template),
        cmocka_unit_test(end_of_generation_list),
        cmocka_unit_test(phi3_swallows_space_behind_markers),
        cmocka_unit_test(streaming_equals_whole),
        cmocka_unit_test(broken_utf8_is_replaced),
        cmocka_unit_test(streaming_in_mid_text_keeps_space),
        cmocka_unit_test(long_runs_round_trip),
        cmocka_unit_test(every_pretokeniser_compiles),
        cmocka_unit_test(without_executable_memory_it_is_the_same),
        cmocka_unit_test(invalid_text_is_refused),
        cmocka_unit_test(broken_files_are_refused),
        cmocka_unit_test(odd_pieces_are_tolerated),
        cmocka_unit_test(file_without_tokenizer),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
