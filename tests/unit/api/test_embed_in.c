/* Texts to embed or to rank as token ids: their shapes, where they are cut, what is refused. */
#include "prepared.h"

#include "oom.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static const gs_embed_form openai = {.where = GS_IN_EMBEDDINGS, .input = "input"};
static const gs_embed_form ollama = {
    .where = GS_IN_OLLAMA_EMBED, .input = "input", .truncate = true, .may_be_empty = true};
static const gs_embed_form rank = {
    .where = GS_IN_RERANK, .input = "documents", .rank = true, .truncate = true};

enum { BOS = 1, LENT = 2 }; /* LENT: another machine's model, whose tokens are not known here */

typedef struct embed_case {
    const gs_embed_form *form;
    const char *body;
    const char *want; /* the texts' ids, each text between bars; "param: ..." is refused so */
    int flags;
    int32_t context; /* 0: 100 */
} embed_case;

/* clang-format off */
static const embed_case cases[] = {
    {&openai, "{'input': 'ab'}", "ab|", 0, 0},
    {&openai, "{'input': 'ab'}", "<s>ab|", BOS, 0},
    {&openai, "{'input': ['ab', 'c']}", "ab|c|", 0, 0},
    {&openai, "{'input': [97, 98]}", "ab|", 0, 0},
    {&openai, "{'input': [[97, 261], [99]]}", "a<mid>|c|", 0, 0},
    {&openai, "{'input': 'ab', 'encoding_format': 'base64'}", "ab|", 0, 0},
    {&openai, "{'input': 'ab', 'encoding_format': null}", "ab|", 0, 0},
    {&openai, "{'input': 'abc'}", "param: input", 0, 2}, /* it does not fit */
    {&openai, "{'input': 'ab', 'encoding_format': 'hex'}", "param: encoding_format", 0, 0},
    {&openai, "{'input': 'ab', 'encoding_format': 7}", "param: encoding_format", 0, 0},
    {&openai, "{'input': 'ab', 'dimensions': 0}", "param: dimensions", 0, 0},
    {&openai, "{}", "param: input", 0, 0},
    {&openai, "{'input': null}", "param: input", 0, 0},
    {&openai, "{'input': ''}", "param: input", 0, 0},
    {&openai, "{'input': []}", "param: input", 0, 0},
    {&openai, "{'input': {}}", "param: input", 0, 0},
    {&openai, "{'input': ['a', '']}", "param: input", 0, 0},
    {&openai, "{'input': ['a', 7]}", "param: input", 0, 0},
    {&openai, "{'input': ['a', []]}", "param: input", 0, 0},
    {&openai, "{'input': [97, 'a']}", "param: input", 0, 0},
    {&openai, "{'input': [97, -1]}", "param: input", 0, 0},
    {&openai, "{'input': [97, 264]}", "param: input", 0, 0},
    {&ollama, "{'input': 'abc'}", "ab|", 0, 2},
    {&ollama, "{'input': 'abc'}", "<s>a|", BOS, 2},
    {&ollama, "{'input': 'abc', 'truncate': false}", "param: input", 0, 2},
    {&ollama, "{'input': ''}", "", 0, 0},
    {&ollama, "{}", "", 0, 0},
    {&ollama, "{'input': []}", "", 0, 0},
    {&ollama, "{'input': [[97]]}", "param: input", 0, 0}, /* ids are OpenAI's alone */
    {&ollama, "{'input': 7}", "param: input", 0, 0},
    {&ollama, "{'input': 'a', 'options': {'num_ctx': -1}}", "param: options.num_ctx", 0, 0},
    {&rank, "{'query': 'q', 'documents': ['a', {'text': 'b'}]}", "qa|qb|", 0, 0},
    {&rank, "{'query': 'q', 'documents': ['a']}", "<s>qa|", BOS, 0}, /* the pair begins once */
    {&rank, "{'query': 'q', 'documents': ['abc']}", "qa|", 0, 2},
    {&rank, "{'query': '', 'documents': ['a']}", "param: query", 0, 0},
    {&rank, "{'query': 7, 'documents': ['a']}", "param: query", 0, 0},
    {&rank, "{'query': 'q', 'documents': 'a'}", "param: documents", 0, 0},
    {&rank, "{'query': 'q', 'documents': [7]}", "param: documents", 0, 0},
    {&rank, "{'query': 'q', 'documents': [{'text': 7}]}", "param: documents", 0, 0},
    {&rank, "{'query': 'q', 'documents': [7, 8]}", "param: documents", 0, 0},
    {&openai, "{'input': ['ab', 'c']}", "|", LENT, 0},
    {&openai, "{'input': ['ab', '']}", "param: input", LENT, 0},
    {&openai, "{'input': ['ab', [1]]}", "param: input", LENT, 0},
};
/* clang-format on */

/* Read without a model, which would need an engine, and then prepared for it. */
static gs_req *prepare(const model *m, const embed_case *c, const json_t *body, gs_dialect *d) {
    gs_req *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    *d = (gs_dialect){.embeds = c->form};
    r->dialect = d;
    r->model = "tiny";
    r->body = json_deep_copy(body);
    r->context = c->context ? c->context : 100;
    assert_non_null(r->body);
    if (gs_embed_read(r) != 0)
        return r;
    r->m = c->flags & LENT ? NULL : &m->m;
    r->prompts = gs_calloc((size_t)r->n_prompts + 1, sizeof(*r->prompts));
    if (r->prompts)
        gs_req_prepare(r);
    else
        r->error.code = GS_ERR_NOMEM;
    return r;
}

static void as_text(const gs_req *r, gs_buf *out) {
    if (r->error.code != 0) {
        gs_buf_printf(out, "param: %s", r->error.param);
        return;
    }
    for (int32_t i = 0; i < r->n_prompts && r->m; i++) {
        for (size_t k = 0; k < r->prompts[i].len; k++)
            gs_tok_piece(r->m->tokenizer, r->prompts[i].data[k], true, out);
        gs_buf_char(out, '|');
    }
    if (!r->m)
        gs_buf_char(out, '|');
}

static void texts_become_ids(void **state) {
    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        const embed_case *c = &cases[i];
        model m;
        gs_dialect d;
        gs_buf got = {0};
        model_open(&m, NULL, NULL, (c->flags & BOS) != 0);
        json_t *body = quoted(c->body);
        gs_req *r = prepare(&m, c, body, &d);
        as_text(r, &got);
        expect_became(r, &got, c->want, c->body);
        request_free(r);
        json_decref(body);
        gs_buf_deinit(&got);
        model_close(&m);
    }
}

/* Bounds that take long lists to reach. */
static void too_many_texts_and_tokens(void **state) {
    (void)state;
    model m;
    model_open(&m, NULL, NULL, false);
    for (int more = 0; more < 2; more++) {
        gs_dialect d;
        json_t *list = json_array();
        for (int i = 0; i < GS_EMBED_MAX_INPUTS + more; i++)
            json_array_append_new(list, json_string("a"));
        json_t *body = json_pack("{s:o}", "input", list);
        gs_req *r = prepare(&m, &(embed_case){.form = &openai}, body, &d);
        assert_int_equal(r->error.code, more ? GS_ERR_INVALID : 0);
        assert_int_equal(r->n_prompts, more ? 0 : GS_EMBED_MAX_INPUTS);
        request_free(r);
        json_decref(body);

        const size_t n = GS_EMBED_MAX_TOKENS + (size_t)more;
        char *text = malloc(n);
        assert_non_null(text);
        memset(text, 'a', n);
        body = json_pack("{s:s%}", "input", text, n);
        r = prepare(&m, &(embed_case){.form = &openai, .context = INT32_MAX}, body, &d);
        assert_int_equal(r->error.code, more ? GS_ERR_INVALID : 0);
        request_free(r);
        json_decref(body);
        free(text);

        list = json_array(); /* ids may be more than there may be texts */
        for (int i = 0; i < GS_EMBED_MAX_INPUTS + more; i++)
            json_array_append_new(list, json_integer(97));
        body = json_pack("{s:o}", "input", list);
        r = prepare(&m, &(embed_case){.form = &openai, .context = INT32_MAX}, body, &d);
        assert_int_equal(r->error.code, 0);
        assert_int_equal(r->prompts[0].len, GS_EMBED_MAX_INPUTS + more);
        request_free(r);
        json_decref(body);
    }
    model_close(&m);
}

typedef struct preparing {
    const model *m;
    const embed_case *c;
    const json_t *body;
} preparing;

static int prepare_again(void *arg) {
    const preparing *p = arg;
    gs_dialect d;
    gs_req *r = prepare(p->m, p->c, p->body, &d);
    const int rc = r->error.code;
    request_free(r);
    return rc;
}

static void without_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        const embed_case *c = &cases[i];
        if (strncmp(c->want, "param", 5) == 0)
            continue;
        model m;
        model_open(&m, NULL, NULL, (c->flags & BOS) != 0);
        json_t *body = quoted(c->body);
        each_allocation_fails(c->body, prepare_again, &(preparing){&m, c, body}, OOM_OWN);
        json_decref(body);
        model_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_become_ids),
        cmocka_unit_test(too_many_texts_and_tokens),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
