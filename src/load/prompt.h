/*
 * Text of a wanted number of tokens for the requests of a trace: frequent English words, the same
 * for the same name and salt, so that what repeats in the trace repeats in the text.
 */
#ifndef GS_LOAD_PROMPT_H
#define GS_LOAD_PROMPT_H

#include "load/trace.h"

typedef struct gs_prompts {
    double tokens_per_word;
    uint64_t salt; /* another one gives other text of the same length */
} gs_prompts;

/* n words, separated by spaces; the same name gives the same ones. */
void gs_prompt_words(uint64_t name, int32_t n, gs_buf *out);
/* What the request brings new; its shared prefix; the whole of a recorded one from its blocks. */
void gs_prompt_new(const gs_prompts *p, const gs_trace_request *q, gs_buf *out);
void gs_prompt_prefix(const gs_prompts *p, const gs_trace_request *q, gs_buf *out);
void gs_prompt_blocks(const gs_prompts *p, const gs_trace_request *q, gs_buf *out);
/* Text i of an embeddings request. */
void gs_prompt_text(const gs_prompts *p, const gs_trace_request *q, int32_t i, gs_buf *out);

#endif
