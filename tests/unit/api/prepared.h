/* A model without weights (a vocabulary of bytes and marks, a template) and requests that are read
 * for it, as far as the engine: what is tested of them needs no server. */
#ifndef GS_TESTS_API_PREPARED_H
#define GS_TESTS_API_PREPARED_H

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../needs_rust.h"
#include "../tokenizer/vocab_builder.h"
#include "api/embed.h"
#include "api/request.h"
#include "base/err.h"
#include "base/sys.h"
#include "quoted.h"

/* Tokens 0 to 255 are the bytes; these are the control tokens after them. */
enum { TOK_END = 256, TOK_START, TOK_BOS, TOK_PREFIX, TOK_SUFFIX, TOK_MIDDLE, TOK_N = 264 };

typedef struct model {
    gs_buf file;
    gs_gguf *gguf;
    gs_served_model m;
} model;

/* template NULL: ChatML. format NULL: answers are text alone. */
static inline void model_open(model *m, const char *template, const char *format, bool add_bos) {
    static const char *const control[] = {"<|im_end|>", "<|im_start|>", "<s>",     "<pre>",
                                          "<suf>",      "<mid>",        "<think>", "</think>"};
    vocab_builder v = {0};
    char err[256] = "";
    memset(m, 0, sizeof(*m));
    vb_str(&v, "general.architecture", "fake");
    vb_str(&v, "tokenizer.ggml.model", "gpt2");
    vb_str(&v, "tokenizer.ggml.pre", "gpt-2");
    vb_byte_alphabet(&v);
    for (size_t i = 0; i < sizeof(control) / sizeof(control[0]); i++)
        vb_token(&v, control[i], 3, 0);
    vb_array(&v, "tokenizer.ggml.merges", GS_GGUF_STR, 0, &v.merges);
    vb_u32(&v, "tokenizer.ggml.eos_token_id", TOK_END);
    if (add_bos)
        vb_u32(&v, "tokenizer.ggml.bos_token_id", TOK_BOS);
    vb_bool(&v, "tokenizer.ggml.add_bos_token", add_bos);
    assert_true(vb_finish(&v, &m->file));
    int rc = gs_gguf_open_mem(m->file.data, m->file.len, &m->gguf, err, sizeof(err));
    if (rc == 0)
        rc = gs_tokenizer_create(m->gguf, &m->m.tokenizer, err, sizeof(err));
    if (rc == 0)
        rc = gs_chat_template_create(template, template ? strlen(template) : 0, "<s>", "<|im_end|>",
                                     &m->m.chat, err, sizeof(err));
    if (rc == 0 && GS_HAVE_RUST)
        rc = gs_grammars_create(m->m.tokenizer, 1 << 24, &m->m.grammars, err, sizeof(err));
    if (rc != 0)
        fail_msg("%s", err);
    m->m.format = format ? gs_out_format_find(format) : NULL;
    m->m.facts.has_fim = true;
    m->m.facts.fim_prefix = TOK_PREFIX;
    m->m.facts.fim_suffix = TOK_SUFFIX;
    m->m.facts.fim_middle = TOK_MIDDLE;
}

static inline void model_close(model *m) {
    gs_grammars_free(m->m.grammars);
    gs_chat_template_free(m->m.chat);
    gs_tokenizer_free(m->m.tokenizer);
    gs_gguf_close(m->gguf);
    gs_buf_deinit(&m->file);
}

static inline void request_free(gs_req *r) {
    for (int32_t i = 0; r->prompts && i < r->n_prompts; i++)
        gs_ids_deinit(&r->prompts[i]);
    for (int32_t i = 0; r->echo_text && i < r->n_prompts; i++)
        gs_buf_deinit(&r->echo_text[i]);
    for (int32_t i = 0; r->guides && i < r->n_prompts * r->p.n; i++)
        gs_guide_unref(r->guides[i]);
    gs_free(r->prompts);
    gs_free(r->echo_text);
    gs_free(r->guides);
    gs_gen_params_deinit(&r->p);
    json_decref(r->body);
    free(r);
}

/* A request of that body with its fields read; r->error.code says how that went. */
static inline gs_req *request_new(const model *m, const json_t *body, bool chat) {
    gs_req *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    r->m = &m->m;
    r->model = "tiny";
    r->dialect = chat ? &gs_dialect_chat : &gs_dialect_completion;
    r->context = 2048;
    r->body = json_deep_copy(body);
    const json_t *prompt = json_object_get(body, "prompt");
    const bool many = json_is_array(prompt) && !json_is_integer(json_array_get(prompt, 0));
    r->n_prompts = many ? (int32_t)json_array_size(prompt) : 1;
    r->prompts = gs_calloc((size_t)r->n_prompts, sizeof(*r->prompts));
    r->echo_text = gs_calloc((size_t)r->n_prompts, sizeof(*r->echo_text));
    if (!r->body || !r->prompts || !r->echo_text)
        r->error.code = GS_ERR_NOMEM;
    else
        gs_gen_params_read(r->body, chat, TOK_N, &r->p, &r->error);
    return r;
}

/* What became of a request: got, which says "param: ..." for one that is refused, is as wanted, and
 * a refusal is the client's fault and says why. */
static inline void expect_became(const gs_req *r, gs_buf *got, const char *want, const char *body) {
    assert_non_null(gs_buf_cstr(got));
    if (strcmp(got->data, want) != 0)
        fail_msg("%s became\n%s, not\n%s\n%s", body, got->data, want, r->error.message);
    if (r->error.code != 0)
        assert_true(gs_err_http(r->error.code) == 400 && r->error.message[0]);
}

#endif
