/* Any sequence of ids: streaming gives whole valid characters and in sum what decoding gives. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/tokenizer/vocab_builder.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static gs_tokenizer *make(const char *model) {
    vocab_builder b = {0};
    gs_buf file = {0};
    gs_gguf *g = NULL;
    gs_tokenizer *t = NULL;
    char err[128];
    vb_str(&b, "tokenizer.ggml.model", model);
    vb_byte_tokens(&b);
    vb_token(&b, "<unk>", 2, 0);
    vb_token(&b, "<s>", 3, 0);
    vb_token(&b, "\xe2\x96\x81hi", 1, 0);
    vb_token(&b, "\xe2\x96\x81", 1, 0);
    vb_token_n(&b, "\xf0\x9f", 2, 1, 0);
    vb_token_n(&b, "\x98\x80\xe4", 3, 4, 0);
    vb_token(&b, "", 1, 0);
    if (!vb_finish(&b, &file) || gs_gguf_open_mem(file.data, file.len, &g, err, sizeof(err)) ||
        gs_tokenizer_create(g, &t, err, sizeof(err)))
        abort();
    gs_gguf_close(g);
    gs_buf_deinit(&file);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static gs_tokenizer *t; /* one for all inputs; lives as long as the process */
    if (!t)
        t = make("llama");
    if (size < 1 || size > 4096)
        return 0;
    bool special = data[0] & 1;
    size_t n = size - 1;
    int32_t *ids = malloc((n + 1) * sizeof(*ids));
    gs_buf whole = {0}, stream = {0};
    gs_detok d;
    if (!ids)
        return 0;
    gs_detok_init(&d, t, special);
    for (size_t i = 0; i < n; i++) {
        size_t from = stream.len;
        /* mostly bytes that matter to UTF-8, now and then the other tokens */
        ids[i] = data[1 + i] < 0x20 ? 250 + data[1 + i] : data[1 + i];
        if (gs_detok_push(&d, ids[i], &stream))
            abort();
        if (stream.len > from && !gs_utf8_valid(stream.data + from, stream.len - from))
            abort();
    }
    if (gs_detok_flush(&d, &stream) || gs_tok_decode(t, ids, n, special, &whole))
        abort();
    if (whole.len != stream.len || (whole.len && memcmp(whole.data, stream.data, whole.len) != 0))
        abort();
    gs_buf_deinit(&whole);
    gs_buf_deinit(&stream);
    free(ids);
    return 0;
}
