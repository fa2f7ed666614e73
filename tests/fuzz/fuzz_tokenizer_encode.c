/*
 * Vocabulary and text from the fuzzer: a file that loads must encode any text, and byte-level
 * ones must give it back. Guarded text must encode as the plain text does.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/tokenizer/vocab_builder.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct input {
    const uint8_t *at;
    size_t left;
} input;

static unsigned next(input *in) {
    if (!in->left)
        return 0;
    in->left--;
    return *in->at++;
}

static void pieces(input *in, vocab_builder *b) {
    static const uint8_t types[] = {1, 1, 1, 2, 3, 4, 5, 6};
    for (unsigned n = next(in) % 24; n > 0; n--) {
        char piece[12];
        size_t len = next(in) % 12;
        for (size_t i = 0; i < len; i++)
            piece[i] = (char)next(in);
        unsigned how = next(in);
        vb_token_n(b, piece, len, types[how % 8], (float)(how >> 3));
    }
    for (unsigned n = next(in) % 12; n > 0; n--) {
        char pair[8] = {0};
        for (size_t i = 0; i < 1 + n % 7; i++)
            pair[i] = (char)next(in);
        vb_merge(b, pair);
    }
    /* merges that are right, too */
    vb_token(b, "ab", 1, -1);
    vb_token(b, "abab", 1, -2);
    vb_merge(b, "a b");
    vb_merge(b, "ab ab");
    vb_token(b, "<|x|>", 3, 0);
}

static void one_text(const gs_tokenizer *t, const char *s, size_t n, bool exact) {
    gs_ids plain = {0}, guarded_ids = {0}, special = {0};
    gs_buf guarded = {0}, back = {0};
    char err[128];
    int rc = gs_tok_encode(t, s, n, 0, &plain, err, sizeof(err));
    if (rc != 0) {
        if (gs_utf8_valid(s, n))
            abort();
        return;
    }
    for (size_t i = 0; i < plain.len; i++)
        if (gs_tok_is_control(t, plain.data[i]) && exact)
            abort();
    if (gs_tok_decode(t, plain.data, plain.len, true, &back))
        abort();
    if (exact && (back.len != n || (n && memcmp(back.data, s, n) != 0)))
        abort();
    if (gs_tok_guard(t, s, n, &guarded) ||
        gs_tok_encode(t, guarded.data ? guarded.data : "", guarded.len,
                      GS_TOK_PARSE_SPECIAL | GS_TOK_GUARDED, &guarded_ids, err, sizeof(err)))
        abort();
    if (guarded_ids.len != plain.len ||
        (plain.len && memcmp(guarded_ids.data, plain.data, plain.len * sizeof(*plain.data)) != 0))
        abort();
    if (gs_tok_encode(t, s, n, GS_TOK_PARSE_SPECIAL | GS_TOK_ADD_SPECIAL, &special, err,
                      sizeof(err)))
        abort();
    gs_ids_deinit(&plain);
    gs_ids_deinit(&guarded_ids);
    gs_ids_deinit(&special);
    gs_buf_deinit(&guarded);
    gs_buf_deinit(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const pres[] = {"gpt-2", "llama-bpe", "gpt-4o", "deepseek-llm", "falcon"};
    static const char *const kinds[] = {"gpt2", "llama", "bert", "gemma4"};
    input in = {data, size};
    vocab_builder b = {0};
    gs_buf file = {0};
    gs_gguf *g = NULL;
    gs_tokenizer *t = NULL;
    char err[128];
    unsigned kind = next(&in) % 4;
    vb_str(&b, "tokenizer.ggml.model", kinds[kind]);
    if (kind == 0)
        vb_str(&b, "tokenizer.ggml.pre", pres[next(&in) % 5]);
    if (kind == 0 || next(&in) % 2)
        vb_byte_alphabet(&b);
    else
        vb_byte_tokens(&b);
    unsigned keys = next(&in);
    if (keys & 1)
        vb_u32(&b, "tokenizer.ggml.unknown_token_id", keys);
    if (keys & 2)
        vb_bool(&b, "tokenizer.ggml.add_space_prefix", keys & 4);
    if (keys & 8)
        vb_bool(&b, "tokenizer.ggml.add_eos_token", true);
    if (next(&in) % 2)
        pieces(&in, &b);
    else {
        vb_token(&b, "ab", 1, 0);
        vb_merge(&b, "a b");
        vb_token(&b, "<|x|>", 3, 0);
    }
    if (vb_finish(&b, &file) && gs_gguf_open_mem(file.data, file.len, &g, err, sizeof(err)) == 0 &&
        gs_tokenizer_create(g, &t, err, sizeof(err)) == 0)
        /* with every byte in the vocabulary nothing is lost */
        one_text(t, (const char *)in.at, in.left, kind == 0);
    gs_tokenizer_free(t);
    gs_gguf_close(g);
    gs_buf_deinit(&file);
    return 0;
}
