/*
 * Token ids of real vocabularies: the hard strings of tests/refs/, and the .inp/.out pairs that
 * come with the vocabulary files (scripts/fetch-vocabs). A file that is not in the cache is named
 * and its test skipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/sys.h"
#include "tokenizer/tokenizer.h"

#define SEPARATOR "\n__ggml_vocab_test__\n"

static void cache_path(char *out, size_t n, const char *name) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache)
        snprintf(out, n, "%s/gamasot/%s", cache, name);
    else
        snprintf(out, n, "%s/.cache/gamasot/%s", home ? home : "", name);
}

/* Opens the tokenizer of a file in the cache; skips the test when the file is not there. */
static gs_tokenizer *open_cached(const char *name, gs_gguf **g) {
    char path[512], err[256] = "";
    cache_path(path, sizeof(path), name);
    FILE *f = fopen(path, "rb");
    if (!f) {
        print_message("skipped: %s is not there (make fetch)\n", path);
        skip();
    }
    fclose(f);
    gs_tokenizer *t = NULL;
    if (gs_gguf_open(path, g, err, sizeof(err)) || gs_tokenizer_create(*g, &t, err, sizeof(err)))
        fail_msg("%s: %s", path, err);
    return t;
}

static bool same_ids(const gs_ids *got, const int32_t *want, size_t n) {
    return got->len == n && (n == 0 || memcmp(got->data, want, n * sizeof(*want)) == 0);
}

static void print_ids(const char *what, const int32_t *ids, size_t n) {
    print_message("  %s:", what);
    for (size_t i = 0; i < n && i < 60; i++)
        print_message(" %d", ids[i]);
    print_message("\n");
}

/* 1 when the ids differ. */
static int check(const gs_tokenizer *t, const char *text, size_t n, int flags, const int32_t *want,
                 size_t n_want) {
    char err[256] = "";
    gs_ids got = {0};
    if (gs_tok_encode(t, text, n, flags, &got, err, sizeof(err)))
        fail_msg("encode: %s", err);
    int bad = !same_ids(&got, want, n_want);
    if (bad) {
        print_message("\"%.*s\" (flags %d)\n", (int)(n < 200 ? n : 200), text, flags);
        print_ids("want", want, n_want);
        print_ids("got ", got.data, got.len);
    }
    gs_ids_deinit(&got);
    return bad;
}

/* ---- tests/refs ------------------------------------------------------------------------------ */

static gs_ids ids_of(const json_t *arr) {
    gs_ids v = {0};
    for (size_t i = 0; i < json_array_size(arr); i++)
        assert_int_equal(gs_ids_push(&v, (int32_t)json_integer_value(json_array_get(arr, i))), 0);
    return v;
}

static int check_decode(const gs_tokenizer *t, const gs_ids *ids, const char *want, size_t n) {
    gs_buf whole = {0}, stream = {0};
    gs_detok d;
    assert_int_equal(gs_tok_decode(t, ids->data, ids->len, false, &whole), 0);
    gs_detok_init(&d, t, false);
    for (size_t i = 0; i < ids->len; i++)
        assert_int_equal(gs_detok_push(&d, ids->data[i], &stream), 0);
    assert_int_equal(gs_detok_flush(&d, &stream), 0);
    assert_int_equal(whole.len, stream.len);
    if (whole.len)
        assert_memory_equal(whole.data, stream.data, whole.len);
    int bad = whole.len != n || (n && memcmp(whole.data, want, n) != 0);
    if (bad)
        print_message("decode: want \"%.*s\", got \"%.*s\"\n", (int)n, want, (int)whole.len,
                      whole.len ? whole.data : "");
    gs_buf_deinit(&whole);
    gs_buf_deinit(&stream);
    return bad;
}

static void run_refs(const char *refs, const char *model) {
    gs_gguf *g = NULL;
    gs_tokenizer *t = open_cached(model, &g);
    json_error_t je;
    json_t *root = json_load_file(refs, JSON_ALLOW_NUL, &je);
    if (!root)
        fail_msg("%s: %s", refs, je.text);
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 10);
    int bad = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const json_t *text = json_object_get(c, "text");
        const json_t *detok = json_object_get(c, "detok_plain");
        const char *s = json_string_value(text);
        size_t n = json_string_length(text);
        gs_ids plain = ids_of(json_object_get(c, "plain"));
        gs_ids special = ids_of(json_object_get(c, "special"));
        bad += check(t, s, n, 0, plain.data, plain.len);
        bad += check(t, s, n, GS_TOK_ADD_SPECIAL | GS_TOK_PARSE_SPECIAL, special.data, special.len);
        bad += check_decode(t, &plain, json_string_value(detok), json_string_length(detok));
        gs_ids_deinit(&plain);
        gs_ids_deinit(&special);
    }
    json_decref(root);
    gs_tokenizer_free(t);
    gs_gguf_close(g);
    assert_int_equal(bad, 0);
}

static void smollm2_refs(void **state) {
    (void)state;
    run_refs("tests/refs/tokens_smollm2.json", "models/SmolLM2-135M-Instruct.Q4_1.gguf");
}

static void gemma3_refs(void **state) {
    (void)state;
    run_refs("tests/refs/tokens_gemma3.json", "models/gemma-3-270m-q4_k_m.gguf");
}

/* BERT's own tokenizer, all-MiniLM-L6-v2: the same word list as bert-bge. */
static void minilm_refs(void **state) {
    (void)state;
    gs_gguf *g = NULL;
    gs_tokenizer *t = open_cached("vocabs/ggml-vocab-bert-bge.gguf", &g);
    json_error_t je;
    json_t *root = json_load_file("tests/refs/minilm.json", JSON_ALLOW_NUL, &je);
    if (!root)
        fail_msg("tests/refs/minilm.json: %s", je.text);
    assert_true(json_array_size(root) > 10);
    int bad = 0;
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *c = json_array_get(root, i);
        const json_t *text = json_object_get(c, "text");
        gs_ids want = ids_of(json_object_get(c, "ids"));
        bad += check(t, json_string_value(text), json_string_length(text), GS_TOK_ADD_SPECIAL,
                     want.data, want.len);
        gs_ids_deinit(&want);
    }
    json_decref(root);
    gs_tokenizer_free(t);
    gs_gguf_close(g);
    assert_int_equal(bad, 0);
}

/* ---- vocabulary files --------------------------------------------------------------------------
 */

static char *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    gs_buf b = {0};
    char chunk[4096];
    size_t got;
    while ((got = fread(chunk, 1, sizeof(chunk), f)) > 0)
        assert_int_equal(gs_buf_add(&b, chunk, got), 0);
    fclose(f);
    return gs_buf_take(&b, n);
}

static void run_vocab(const char *name) {
    char rel[128], path[512];
    snprintf(rel, sizeof(rel), "vocabs/ggml-vocab-%s.gguf", name);
    gs_gguf *g = NULL;
    gs_tokenizer *t = open_cached(rel, &g);
    size_t n_inp = 0, n_out = 0;
    snprintf(rel, sizeof(rel), "vocabs/ggml-vocab-%s.gguf.inp", name);
    cache_path(path, sizeof(path), rel);
    char *inp = read_file(path, &n_inp);
    snprintf(rel, sizeof(rel), "vocabs/ggml-vocab-%s.gguf.out", name);
    cache_path(path, sizeof(path), rel);
    char *out = read_file(path, &n_out);
    if (!inp || !out)
        fail_msg("%s: the .inp or .out file is missing", name);
    int bad = 0;
    unsigned n_cases = 0;
    const char *line = out, *text = inp, *end = inp + n_inp;
    while (*line) {
        const char *sep = memmem(text, (size_t)(end - text), SEPARATOR, strlen(SEPARATOR));
        size_t n = (size_t)((sep ? sep : end) - text);
        gs_ids want = {0};
        for (; *line && *line != '\n'; line++)
            if (*line >= '0' && *line <= '9') {
                char *after;
                assert_int_equal(gs_ids_push(&want, (int32_t)strtol(line, &after, 10)), 0);
                line = after - 1;
            }
        line += *line == '\n';
        bad += check(t, text, n, 0, want.data, want.len);
        gs_ids_deinit(&want);
        n_cases++;
        if (!sep)
            break;
        text = sep + strlen(SEPARATOR);
    }
    gs_free(inp);
    gs_free(out);
    gs_tokenizer_free(t);
    gs_gguf_close(g);
    assert_true(n_cases > 30);
    if (bad)
        fail_msg("%s: %d of %u texts differ", name, bad, n_cases);
}

#define VOCAB_MAP(X)                                                                               \
    X(bert_bge, "bert-bge")                                                                        \
    X(command_r, "command-r")                                                                      \
    X(deepseek_coder, "deepseek-coder")                                                            \
    X(deepseek_llm, "deepseek-llm")                                                                \
    X(falcon, "falcon")                                                                            \
    X(gemma_4, "gemma-4")                                                                          \
    X(gpt_2, "gpt-2")                                                                              \
    X(llama_bpe, "llama-bpe")                                                                      \
    X(llama_spm, "llama-spm")                                                                      \
    X(mpt, "mpt")                                                                                  \
    X(phi_3, "phi-3")                                                                              \
    X(qwen2, "qwen2")                                                                              \
    X(qwen35, "qwen35")                                                                            \
    X(refact, "refact")                                                                            \
    X(starcoder, "starcoder")

#define X(id, name)                                                                                \
    static void vocab_##id(void **state) {                                                         \
        (void)state;                                                                               \
        run_vocab(name);                                                                           \
    }
VOCAB_MAP(X)
#undef X

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(smollm2_refs),
                                       cmocka_unit_test(gemma3_refs), cmocka_unit_test(minilm_refs),
#define X(id, name) cmocka_unit_test(vocab_##id),
                                       VOCAB_MAP(X)
#undef X
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
