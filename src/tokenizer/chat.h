/*
 * Chat templates: messages -> prompt text.
 *
 * The model's own Jinja template is run by minijinja (rust/) with a fuel limit; a build without
 * Rust knows ChatML, Llama 3 and Gemma by their marks and refuses other templates with a clear
 * error. Templates and messages are both untrusted: a template that fails or runs out of fuel is
 * GS_ERR_INVALID with a message that names the template and what it said.
 *
 * Immutable after creation; any thread may render.
 */
#ifndef GS_TOKENIZER_CHAT_H
#define GS_TOKENIZER_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "tokenizer/tokenizer.h"

typedef struct gs_chat_template gs_chat_template;

/* source NULL: ChatML. bos/eos are the spellings for the template's bos_token and eos_token. */
int gs_chat_template_create(const char *source, size_t n, const char *bos, const char *eos,
                            gs_chat_template **out, char *err, size_t errlen);
/* From a model file's tokenizer.chat_template (ChatML when it has none). */
int gs_chat_template_from_gguf(const gs_gguf *g, const gs_tokenizer *t, gs_chat_template **out,
                               char *err, size_t errlen);
void gs_chat_template_free(gs_chat_template *c);

typedef struct gs_chat_input {
    const char *messages_json; /* JSON array of messages as the API took them, UTF-8 */
    const char *tools_json;    /* JSON array, or NULL */
    const char *extra_json;    /* JSON object of further template variables, or NULL; may not
                                  override the names the renderer sets itself */
    bool add_generation_prompt;
    /* Guards every string of messages and tools against control tokens (gs_tok_guard). */
    const gs_tokenizer *guard; /* NULL: do not guard (tests that compare text) */
    long long now_s;           /* for strftime_now */
} gs_chat_input;

/* Appends the prompt to out. Encode it with PARSE_SPECIAL | GUARDED (and without ADD_SPECIAL when
 * it already begins with the BOS spelling). */
int gs_chat_render(const gs_chat_template *c, const gs_chat_input *in, gs_buf *out, char *err,
                   size_t errlen);
/* Whether the template does anything with tools. */
bool gs_chat_knows_tools(const gs_chat_template *c);
const char *gs_chat_template_source(const gs_chat_template *c);

#endif
