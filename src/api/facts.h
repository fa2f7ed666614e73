/*
 * What a model file says about its model: what /api/show, /api/tags and the like tell clients.
 * Read once, while the file is open; immutable afterwards, any thread may read.
 */
#ifndef GS_API_FACTS_H
#define GS_API_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

typedef struct gs_model_facts {
    char architecture[64];   /* "llama" */
    char quantization[16];   /* "Q4_K_M" */
    char parameter_size[16]; /* "134.5M" */
    char digest[65]; /* 64 hex digits that name metadata and tensors; no SHA-256 of the file */
    uint64_t n_params, file_bytes;
    char *info_json;     /* all metadata but arrays (null) and the template; NULL: none read */
    char *chat_template; /* the file's own, or NULL */
    bool embeds;         /* makes vectors */
    bool encoder;        /* makes no text */
    /* Fill-in-the-middle: the control tokens before the prefix, the suffix and the middle. */
    bool has_fim;
    int32_t fim_prefix, fim_suffix, fim_middle;
} gs_model_facts;

/* t NULL: nothing of fill-in-the-middle. 0 or GS_ERR_NOMEM. A zeroed gs_model_facts is valid and
 * empty. */
int gs_model_facts_read(const gs_gguf *g, const gs_tokenizer *t, gs_model_facts *out);
void gs_model_facts_deinit(gs_model_facts *f);

#endif
