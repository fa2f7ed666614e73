/*
 * Private to the tokenizer module: the three chat formats that are known without a Jinja engine.
 * Used by builds without Rust; compiled into every build so that tests can compare the two.
 */
#ifndef GS_TOKENIZER_CHAT_IMPL_H
#define GS_TOKENIZER_CHAT_IMPL_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "base/buf.h"

typedef enum gs_chat_format {
    GS_CHAT_UNKNOWN,
    GS_CHAT_CHATML,
    GS_CHAT_LLAMA3,
    GS_CHAT_GEMMA
} gs_chat_format;

typedef struct gs_chat_builtin {
    gs_chat_format format;
    /* ChatML: what the template's source says when there is no system message. Points into the
     * source; NULL when it says nothing. */
    const char *default_system;
    size_t n_default_system;
    bool dated;     /* Llama 3.1 and later: the system turn names dates */
    bool dated_now; /* ... today's date (3.2 and later), else a fixed one */
    bool no_system; /* Gemma 2: refuses system messages */
} gs_chat_builtin;

/* Recognises the format by the marks in a template's source, which must outlive *out. */
void gs_chat_builtin_detect(const char *source, gs_chat_builtin *out);

/* messages: JSON array of objects with role and content (string, null or text parts). */
int gs_chat_builtin_render(const gs_chat_builtin *b, const json_t *messages, const char *bos,
                           bool add_generation_prompt, long long now_s, gs_buf *out, char *err,
                           size_t errlen);

#endif
