/*
 * A GGUF file in memory with a byte-level vocabulary: id b < 256 is byte b, then some control
 * tokens, then unused ones. The fake backend is served with the real tokeniser and the real
 * template code on top of it.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "gguf/gguf.h"

static void put_u32(gs_buf *b, uint32_t v) {
    gs_buf_add(b, &v, sizeof(v));
}

static void put_u64(gs_buf *b, uint64_t v) {
    gs_buf_add(b, &v, sizeof(v));
}

static void put_str(gs_buf *b, const char *s, size_t n) {
    put_u64(b, n);
    gs_buf_add(b, s, n);
}

static void put_key(gs_buf *b, const char *key, gs_gguf_vtype type) {
    put_str(b, key, strlen(key));
    put_u32(b, (uint32_t)type);
}

static void put_arr(gs_buf *b, const char *key, gs_gguf_vtype elem, uint64_t n) {
    put_key(b, key, GS_GGUF_ARR);
    put_u32(b, (uint32_t)elem);
    put_u64(b, n);
}

/* GPT-2's map of bytes to printable characters: printable Latin-1 stays, the rest follows from
 * U+0100 on. */
static uint32_t byte_char(int byte) {
    uint32_t moved = 0;
    for (int b = 0; b <= byte; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte)
            return printable ? (uint32_t)b : 256 + moved;
        moved += !printable;
    }
    return 0;
}

static void put_token(gs_buf *b, int32_t id) {
    static const char *const control[] = {"<|endoftext|>",  "<|im_start|>",   "<|im_end|>",
                                          "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"};
    char text[32];
    if (id < 256) {
        put_str(b, text, gs_utf8_encode(byte_char(id), text));
    } else if (id < 256 + (int32_t)(sizeof(control) / sizeof(control[0]))) {
        put_str(b, control[id - 256], strlen(control[id - 256]));
    } else {
        int n = snprintf(text, sizeof(text), "<|unused_%d|>", id);
        put_str(b, text, (size_t)n);
    }
}

int gs_fake_vocab(int32_t n_vocab, const char *chat_template, size_t n_template, void **data,
                  size_t *size) {
    gs_buf b = {0};
    uint64_t n = (uint64_t)n_vocab;
    gs_buf_add(&b, "GGUF", 4);
    put_u32(&b, 3);
    put_u64(&b, 0);                     /* tensors */
    put_u64(&b, chat_template ? 8 : 7); /* keys */
    put_key(&b, "general.architecture", GS_GGUF_STR);
    put_str(&b, "fake", 4);
    put_key(&b, "tokenizer.ggml.model", GS_GGUF_STR);
    put_str(&b, "gpt2", 4);
    put_key(&b, "tokenizer.ggml.pre", GS_GGUF_STR);
    put_str(&b, "gpt-2", 5);
    put_arr(&b, "tokenizer.ggml.tokens", GS_GGUF_STR, n);
    for (int32_t i = 0; i < n_vocab; i++)
        put_token(&b, i);
    put_arr(&b, "tokenizer.ggml.token_type", GS_GGUF_I32, n);
    for (int32_t i = 0; i < n_vocab; i++)
        put_u32(&b, i < 256 ? 1 : 3); /* normal, control */
    put_arr(&b, "tokenizer.ggml.merges", GS_GGUF_STR, 0);
    if (chat_template) {
        put_key(&b, "tokenizer.chat_template", GS_GGUF_STR);
        put_str(&b, chat_template, n_template);
    }
    put_key(&b, "tokenizer.ggml.eos_token_id", GS_GGUF_U32);
    put_u32(&b, GS_FAKE_EOS);
    if (b.failed) {
        gs_buf_deinit(&b);
        return GS_ERR_NOMEM;
    }
    *data = gs_buf_take(&b, size);
    return *data ? 0 : GS_ERR_NOMEM;
}

int gs_fake_script(const char *path, json_t **root, gs_fake_rule **rules, int32_t *n, char *err,
                   size_t errlen) {
    json_error_t why;
    size_t i;
    const json_t *pair;
    *root = json_load_file(path, 0, &why);
    if (!json_is_array(*root))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "fake.script: %s is no JSON array: %s", path,
                       why.text);
    *n = (int32_t)json_array_size(*root);
    *rules = gs_calloc((size_t)*n + 1, sizeof(**rules));
    if (!*rules)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory for fake.script");
    json_array_foreach(*root, i, pair) {
        const json_t *after = json_array_get(pair, 0), *say = json_array_get(pair, 1);
        if (!json_is_string(after) || !json_is_string(say))
            return gs_fail(err, errlen, GS_ERR_FORMAT,
                           "fake.script: %s: entry %zu is no pair of strings", path, i);
        (*rules)[i] = (gs_fake_rule){json_string_value(after), json_string_value(say),
                                     json_string_length(after), json_string_length(say)};
    }
    return 0;
}
