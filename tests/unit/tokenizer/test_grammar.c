/* Constrained output: what the masks allow, budgets, the cache. On a vocabulary of single bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <jansson.h>

#include "base/err.h"
#include "tokenizer/grammar.h"
#include "vocab_builder.h"
#include "../needs_rust.h"

#define EOS 256

static char err[512];
static gs_grammars *grammars;
static gs_tokenizer *tok;
static gs_buf file;
static gs_gguf *gguf;

static gs_grammar *compile(gs_grammar_kind kind, const char *text) {
    gs_grammar *g = NULL;
    if (gs_grammars_get(grammars, kind, text, strlen(text), &g, err, sizeof(err)) != 0)
        fail_msg("%s: %s", text, err);
    return g;
}

static bool allows(const uint32_t *mask, int32_t id) {
    return (mask[id / 32] >> (id % 32)) & 1;
}

/* How many bytes of the text the grammar takes; *complete: and may end there. */
static size_t takes(gs_grammar *g, const char *text, bool *complete) {
    gs_grammar_state *s = NULL;
    uint32_t mask[16] = {0};
    size_t n = 0;
    assert_int_equal(gs_grammar_start(g, &s), 0);
    for (; text[n]; n++) {
        assert_int_equal(gs_grammar_mask(s, mask, 16), 0);
        if (!allows(mask, (unsigned char)text[n]))
            break;
        assert_int_equal(gs_grammar_advance(s, (unsigned char)text[n]), 0);
    }
    assert_int_equal(gs_grammar_mask(s, mask, 16), 0);
    *complete = allows(mask, EOS);
    gs_grammar_state_free(s);
    return n;
}

static void expect(gs_grammar_kind kind, const char *grammar, const char *text, bool good) {
    gs_grammar *g = compile(kind, grammar);
    bool complete;
    size_t n = takes(g, text, &complete);
    if ((n == strlen(text) && complete) != good)
        fail_msg("%s: '%s' taken up to %zu of %zu%s", grammar, text, n, strlen(text),
                 complete ? ", complete" : "");
    gs_grammar_unref(g);
}

static void texts_fit_or_not(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":1},\"b\":{"
        "\"enum\":"
        "[\"x\",\"y\"]}},\"required\":[\"a\"],\"additionalProperties\":false}";
    needs_rust("no grammars");
    expect(GS_GRAMMAR_JSON_SCHEMA, schema, "{\"a\": 12}", true);
    expect(GS_GRAMMAR_JSON_SCHEMA, schema, "{\n  \"a\": 12,\n  \"b\": \"y\"\n}", true);
    expect(GS_GRAMMAR_JSON_SCHEMA, schema, "{\"a\": 0}", false);
    expect(GS_GRAMMAR_JSON_SCHEMA, schema, "{\"a\": 1, \"c\": 1}", false);
    expect(GS_GRAMMAR_JSON_SCHEMA, schema, "{\"b\": \"x\"}", false);
    expect(GS_GRAMMAR_JSON_SCHEMA, "true", "[1, \"a\"]", true);
    expect(GS_GRAMMAR_JSON_OBJECT, "", "{\"x\": [1, {}]}", true);
    expect(GS_GRAMMAR_JSON_OBJECT, "", "[]", false);
    expect(GS_GRAMMAR_REGEX, "[a-c]+(-[0-9]{2})?", "abc-12", true);
    expect(GS_GRAMMAR_REGEX, "[a-c]+(-[0-9]{2})?", "abc-1", false);
    expect(GS_GRAMMAR_LARK, "start: \"a\" b+\nb: \"b\" | \"(\" start \")\"", "ab(ab)b", true);
    expect(GS_GRAMMAR_LARK, "start: \"a\" b+\nb: \"b\" | \"(\" start \")\"", "ab(a)b", false);
}

static void gbnf_is_understood(void **state) {
    (void)state;
    static const char arithmetic[] = "# sums\n"
                                     "root  ::= (expr \"=\" ws term \"\\n\")+\n"
                                     "expr  ::= term ([-+*/] term)*\n"
                                     "term  ::= ident | num | \"(\" ws expr \")\" ws\n"
                                     "ident ::= [a-z] [a-z0-9_]* ws\n"
                                     "num   ::= [0-9]+ ws\n"
                                     "ws    ::= [ \\t\\n]*\n";
    needs_rust("no grammars");
    expect(GS_GRAMMAR_LARK, arithmetic, "(x1 +2) *y = 7\n", true);
    expect(GS_GRAMMAR_LARK, arithmetic, "1 + = 7\n", false);
    expect(GS_GRAMMAR_LARK,
           "root ::= \"a\\x62\"{2,3} [^a-y\\]] . | other-Rule\nother-Rule ::=\n \"q\" |\n"
           " \"ü\"\n",
           "ababzö", true);
    expect(GS_GRAMMAR_LARK, "root ::= \"a\" | (\"b\"\n  | \"c\")?\n", "c", true);
    expect(GS_GRAMMAR_LARK, "root ::= \"a\"\n  | \"b\"\n", "b", true);
}

static void wrong_texts_are_refused(void **state) {
    (void)state;
    static const struct {
        gs_grammar_kind kind;
        const char *text;
    } rows[] = {
        {GS_GRAMMAR_JSON_SCHEMA, "{"},
        {GS_GRAMMAR_JSON_SCHEMA, "{\"type\":\"nothing\"}"},
        {GS_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"(\"}"},
        {GS_GRAMMAR_JSON_SCHEMA, "false"},
        {GS_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/none\"}"},
        {GS_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"http://example.com/a.json\"}"},
        {GS_GRAMMAR_REGEX, "("},
        {GS_GRAMMAR_REGEX, "(?=a)"},
        {GS_GRAMMAR_LARK, ""},
        {GS_GRAMMAR_LARK, "start: missing"},
        {GS_GRAMMAR_LARK, "root ::= \"a"},
        {GS_GRAMMAR_LARK, "root ::= [a"},
        {GS_GRAMMAR_LARK, "root ::= none"},
        {GS_GRAMMAR_LARK, "root ::= (\"a\""},
        {GS_GRAMMAR_LARK, "root ::= \"a\"{1;2}"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        gs_grammar *g = NULL;
        int rc = gs_grammars_get(grammars, rows[i].kind, rows[i].text, strlen(rows[i].text), &g,
                                 err, sizeof(err));
        if (rc != (GS_HAVE_RUST ? GS_ERR_INVALID : GS_ERR_UNSUPPORTED) || !err[0] || g)
            fail_msg("%s: %d %s", rows[i].text, rc, err);
    }
}

/* Nothing that a client can send takes more than its budget, and none of it runs away. */
static void hostile_texts_cost_little(void **state) {
    (void)state;
    needs_rust("no grammars");
    static char text[200000];
    static const struct {
        gs_grammar_kind kind;
        const char *before, *repeat, *after;
        int n;
    } rows[] = {
        {GS_GRAMMAR_REGEX, "", "(a|b)*a", "(a|b){2000}", 1},
        {GS_GRAMMAR_REGEX, "(", "a?", "){300}", 2000},
        {GS_GRAMMAR_REGEX, "((a{1,1000}){1,1000}){1,1000}", "", "", 0},
        {GS_GRAMMAR_REGEX, "", "(", "", 100000},
        {GS_GRAMMAR_REGEX, "", "[", "", 100000},
        {GS_GRAMMAR_LARK, "start: ", "(", "", 100000},
        {GS_GRAMMAR_LARK, "start: ", "\"a\" | ", "\"b\"", 20000},
        {GS_GRAMMAR_LARK, "start: ", "\"a\" | ", "\"b\"", 5000},
        {GS_GRAMMAR_LARK, "start: start start | ", "start | ", "\"a\"", 5000},
        {GS_GRAMMAR_LARK, "root ::= ", "(", "", 100000},
        {GS_GRAMMAR_LARK, "root ::= ", "[a-z]* ", "", 20000},
        {GS_GRAMMAR_JSON_SCHEMA,
         "{\"type\":\"string\",\"minLength\":100000000,\"maxLength\":1000000000}", "", "", 0},
        {GS_GRAMMAR_JSON_SCHEMA,
         "{\"type\":\"array\",\"minItems\":100000000,\"items\":{\"type\":\"array\",\"minItems\":"
         "1000000}}",
         "", "", 0},
        {GS_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"", "(x+x+)+", "y\"}", 200},
        {GS_GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[", "{\"type\":\"object\",\"properties\":{\"a\":{}}},",
         "{}]}", 3000},
        {GS_GRAMMAR_JSON_SCHEMA, "{\"allOf\":[", "{\"pattern\":\"a.*b.*c\",\"type\":\"string\"},",
         "{}]}", 1000},
        {GS_GRAMMAR_JSON_SCHEMA,
         "{\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/"
         "a\"}]}},\"$ref\":"
         "\"#/$defs/a\"}",
         "", "", 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t at = (size_t)snprintf(text, sizeof(text), "%s", rows[i].before);
        for (int k = 0; k < rows[i].n && at < sizeof(text) - 2000; k++)
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s", rows[i].repeat);
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s", rows[i].after);
        gs_grammar *g = NULL;
        int rc = gs_grammars_get(grammars, rows[i].kind, text, at, &g, err, sizeof(err));
        if (rc != 0 && rc != GS_ERR_INVALID)
            fail_msg("row %zu: %d %s", i, rc, err);
        if (rc != 0 && strstr(err, "too long to compile"))
            fail_msg("row %zu ran away: %s", i, err);
        gs_grammar_unref(g);
    }
    expect(GS_GRAMMAR_REGEX, "ab", "ab", true);
}

static void a_complete_text_must_end(void **state) {
    (void)state;
    needs_rust("no grammars");
    gs_grammar *g = compile(GS_GRAMMAR_REGEX, "ab");
    gs_grammar_state *s = NULL;
    uint32_t mask[16];
    assert_int_equal(gs_grammar_start(g, &s), 0);
    assert_int_equal(gs_grammar_mask(s, mask, 16), 0);
    assert_true(allows(mask, 'a') && !allows(mask, 'b') && !allows(mask, EOS));
    assert_int_equal(gs_grammar_advance(s, 'a'), 0);
    assert_int_equal(gs_grammar_advance(s, 'b'), 0);
    assert_int_equal(gs_grammar_mask(s, mask, 16), 0);
    for (int32_t id = 0; id < 260; id++)
        assert_int_equal(allows(mask, id), id == EOS || id == 258);
    gs_grammar_state_free(s);
    /* A token that is not allowed spoils this state and no other. */
    assert_int_equal(gs_grammar_start(g, &s), 0);
    assert_int_equal(gs_grammar_advance(s, 'z'), GS_ERR_INVALID);
    assert_int_equal(gs_grammar_mask(s, mask, 16), GS_ERR_INVALID);
    gs_grammar_state_free(s);
    bool complete;
    assert_int_equal(takes(g, "ab", &complete), 2);
    gs_grammar_unref(g);
}

static void the_cache_is_bounded(void **state) {
    (void)state;
    needs_rust("no grammars");
    gs_grammars_stats before, after;
    gs_grammars_get_stats(grammars, &before);
    gs_grammar_unref(compile(GS_GRAMMAR_REGEX, "cached"));
    gs_grammar_unref(compile(GS_GRAMMAR_REGEX, "cached"));
    gs_grammars_get_stats(grammars, &after);
    assert_int_equal(after.hits, before.hits + 1);
    assert_int_equal(after.misses, before.misses + 1);
    gs_grammars *small = NULL;
    assert_int_equal(gs_grammars_create(tok, 1 << 20, &small, err, sizeof(err)), 0);
    gs_grammar *kept = NULL;
    for (int i = 0; i < 60; i++) {
        char text[64];
        gs_grammar *g = NULL;
        int n = snprintf(text, sizeof(text), "[a-z]{1,%d}x[0-9]+", i + 1);
        assert_int_equal(
            gs_grammars_get(small, GS_GRAMMAR_REGEX, text, (size_t)n, &g, err, sizeof(err)), 0);
        if (i == 0)
            kept = gs_grammar_ref(g);
        gs_grammar_unref(g);
        gs_grammars_get_stats(small, &after);
        assert_true(after.bytes <= 1 << 20);
    }
    assert_true(after.n_cached >= 1 && after.n_cached < 60);
    bool complete; /* still whole although the cache let go of it */
    assert_int_equal(takes(kept, "ax1", &complete), 3);
    gs_grammar_unref(kept);
    gs_grammars_free(small);
}

static bool open_vocab(void) {
    vocab_builder v = {0};
    vb_str(&v, "general.architecture", "test");
    vb_str(&v, "tokenizer.ggml.model", "gpt2");
    vb_str(&v, "tokenizer.ggml.pre", "gpt-2");
    vb_byte_alphabet(&v);
    vb_u32(&v, "tokenizer.ggml.eos_token_id", (uint32_t)vb_token(&v, "<|endoftext|>", 3, 0));
    vb_token(&v, "<|im_start|>", 3, 0);
    vb_token(&v, "<|im_end|>", 3, 0);
    vb_merge(&v, "a b");
    vb_token(&v, "ab", 1, 0);
    return vb_finish(&v, &file) &&
           gs_gguf_open_mem(file.data, file.len, &gguf, err, sizeof(err)) == 0 &&
           gs_tokenizer_create(gguf, &tok, err, sizeof(err)) == 0;
}

int main(void) {
    if (!open_vocab() || gs_grammars_create(tok, 64 << 20, &grammars, err, sizeof(err)) != 0) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_fit_or_not),         cmocka_unit_test(gbnf_is_understood),
        cmocka_unit_test(wrong_texts_are_refused),  cmocka_unit_test(hostile_texts_cost_little),
        cmocka_unit_test(a_complete_text_must_end), cmocka_unit_test(the_cache_is_bounded),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    gs_grammars_free(grammars);
    gs_tokenizer_free(tok);
    gs_gguf_close(gguf);
    gs_buf_deinit(&file);
    return rc;
}
