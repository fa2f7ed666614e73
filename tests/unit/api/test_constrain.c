/* What a request says about its output, as the texts that it leaves possible: the masks of its
 * guides let a fitting text through to its end, and no other. */
#include "prepared.h"

#include "oom.h"

#define THINKS  "{% if tools %}{% endif %}<think>{{ messages[0].content }}"
#define OPENS   "{{ messages[0].content }}<think>\n"
#define ASK     "'messages': [{'role': 'user', 'content': 'x'}]"
#define TOOL(n) "{'function': {'name': '" n "'}}"
#define TOOLS                                                                                      \
    "'tools': [{'function': {'name': 'get', 'parameters': {'properties': {'a': {'type': "          \
    "'integer'}}, 'required': ['a'], 'additionalProperties': false}}}, " TOOL("put") "]"
#define SCHEMA                                                                                     \
    "'response_format': {'type': 'json_schema', 'json_schema': {'schema': {'type': 'object', "     \
    "'properties': {'b': {'enum': ['y']}}, 'required': ['b'], 'additionalProperties': false}}}"
#define GET "{\"name\": \"get\", \"arguments\": {\"a\": 1}}"
#define PUT "{\"name\": \"put\", \"arguments\": {}}"

static gs_guides *guides;

/* Whether the mask for the next token allows it. */
static bool allows(gs_guide *g, int32_t id) {
    gs_sampler s = {0};
    gs_sample out = {0};
    while (!gs_guide_limit(g, TOK_N, &s, &out))
        if (!out.pending)
            fail_msg("the guide says %d", out.err);
    return (s.mask[id / 32] >> (id % 32)) & 1;
}

/* The guide is of no use afterwards. */
static bool fits(const gs_req *r, gs_guide *g, const char *text) {
    gs_ids ids = {0};
    char err[200];
    bool good = true;
    assert_int_equal(gs_tok_encode(r->m->tokenizer, text, strlen(text), GS_TOK_PARSE_SPECIAL, &ids,
                                   err, sizeof(err)),
                     0);
    for (size_t i = 0; good && i < ids.len; i++) {
        good = allows(g, ids.data[i]);
        if (good)
            gs_guides_push(guides, g, ids.data[i]);
    }
    gs_ids_deinit(&ids);
    return good && allows(g, TOK_END);
}

typedef struct fit_case {
    const char *template, *format; /* NULL: ChatML; no calls */
    const char *body;
    const char *good[3], *bad[3];
} fit_case;

/* clang-format off */
static const fit_case cases[] = {
    {NULL, NULL, "{'prompt': 'x', 'regex': '[a-c]+'}", {"abc"}, {"abd", ""}},
    {NULL, NULL, "{'prompt': 'x', 'response_format': {'type': 'json_object'}}", {"{\"x\": []}"}, {"[]"}},
    {NULL, "hermes", "{" ASK ", " SCHEMA "}", {"{\"b\": \"y\"}"}, {"{\"b\": \"n\"}", "{}"}},
    /* Where the template knows how to think, it may come first: marks as tokens, and as text. */
    {THINKS, "hermes", "{" ASK ", " SCHEMA "}", {"<think>so</think>\n{\"b\": \"y\"}", "{\"b\":\"y\"}"}, {"<think>so</think>", "so"}},
    {THINKS, "hermes", "{" ASK ", 'response_format': {'type': 'json_object'}}", {"<think></think>{\"x\":1}"}, {"<think>{}"}},
    {THINKS, "hermes", "{" ASK ", 'regex': 'a/\\\\d\\n\\\\.'}", {"<think>.</think>a/7\n."}, {"a/7\nx", "<think>.</think>a/x\n."}},
    {"[THINK]{{ messages[0].content }}", "mistral-args", "{" ASK ", " SCHEMA "}", {"[THINK]so[/THINK] {\"b\": \"y\"}"}, {"[THINK]so {\"b\": \"y\"}"}},
    {OPENS, "hermes", "{" ASK ", 'regex': 'a+'}", {"so</think>aa"}, {"aa", "<think>so</think>aa"}},
    {"{{ messages[0].content }}[THINK]", "mistral-args", "{" ASK ", 'regex': 'a+'}", {"so[/THINK]aa"}, {"aa"}},
    {THINKS, "hermes", "{" ASK ", 'grammar': 'start: \\'a\\''}", {"a"}, {"<think>so</think>a"}}, /* it stands alone */
    /* Calls, of one function, of each, of several, or none. */
    {NULL, "hermes", "{" ASK ", " TOOLS ", 'tool_choice': 'required'}", {GET, PUT, GET "\n" PUT},
     {"so", "{\"name\": \"get\", \"arguments\": {\"a\": \"1\"}}", "{\"name\": \"go\", \"arguments\": {}}"}},
    {NULL, "hermes", "{" ASK ", " TOOLS ", 'tool_choice': 'required', 'parallel_tool_calls': false}", {GET, PUT}, {GET "\n" PUT}},
    {NULL, "hermes", "{" ASK ", " TOOLS ", 'tool_choice': {'function': {'name': 'put'}}}", {PUT}, {GET, PUT "\n" PUT, "{\"name\": \"put\", \"arguments\": []}"}},
    {THINKS, "hermes", "{" ASK ", " TOOLS ", 'tool_choice': 'required'}", {"<think>so</think>" PUT, PUT}, {"<think>so</think>"}},
    {NULL, "hermes", "{" ASK ", " TOOLS ", " SCHEMA "}", {GET, "{\"b\": \"y\"}"}, {"so", "{\"b\": \"y\"}" GET}},
    {NULL, "hermes", "{" ASK ", " TOOLS ", 'response_format': {'type': 'json_object'}}", {GET, "{\"name\": \"Bob\"}", "{\"name\": \"get\", \"a\": 1}"}, {"so"}},
    {NULL, "hermes", "{" ASK ", " TOOLS ", " SCHEMA ", 'tool_choice': 'none'}", {"{\"b\": \"y\"}"}, {GET}},
    {NULL, "hermes", "{" ASK ", " TOOLS ", 'grammar': 'start: \\'a\\''}", {"a"}, {GET}},
    {NULL, NULL, "{" ASK ", " TOOLS ", 'tool_choice': 'required'}", {GET}, {"so"}},
};
/* clang-format on */
#define N_CASES (sizeof(cases) / sizeof(cases[0]))

static gs_req *prepare(const model *m, const json_t *body) {
    gs_req *r = request_new(m, body, json_object_get(body, "messages") != NULL);
    if (r->error.code == 0)
        gs_req_prepare(r);
    return r;
}

static void expect(const model *m, const fit_case *c, const char *text, bool good) {
    json_t *body = quoted(c->body);
    gs_req *r = prepare(m, body);
    if (r->error.code != 0)
        fail_msg("%s: %s", c->body, r->error.message);
    if (fits(r, r->guides[0], text) != good)
        fail_msg("%s: \"%s\" %s", c->body, text, good ? "does not fit" : "fits");
    request_free(r);
    json_decref(body);
}

static void texts_fit_or_not(void **state) {
    (void)state;
    needs_rust("no grammars, and built-in templates alone");
    assert_int_equal(gs_guides_create(&guides), 0);
    for (size_t i = 0; i < N_CASES; i++) {
        const fit_case *c = &cases[i];
        model m;
        model_open(&m, c->template, c->format, false);
        for (size_t k = 0; k < 3 && c->good[k]; k++)
            expect(&m, c, c->good[k], true);
        for (size_t k = 0; k < 3 && c->bad[k]; k++)
            expect(&m, c, c->bad[k], false);
        model_close(&m);
    }
    gs_guides_free(guides);
}

/* Each choice of each prompt has a guide of its own. */
static void a_guide_for_each_choice(void **state) {
    (void)state;
    needs_rust("no grammars, and built-in templates alone");
    model m;
    model_open(&m, NULL, NULL, false);
    assert_int_equal(gs_guides_create(&guides), 0);
    json_t *body = quoted("{'prompt': ['x', 'y'], 'n': 3, 'regex': 'ab'}");
    gs_req *r = prepare(&m, body);
    assert_int_equal(r->error.code, 0);
    for (int i = 0; i < 6; i++)
        assert_true(fits(r, r->guides[i], "ab"));
    request_free(r);
    json_decref(body);
    gs_guides_free(guides);
    model_close(&m);
}

static void what_can_not_be_is_refused(void **state) {
    (void)state;
    needs_rust("no grammars, and built-in templates alone");
    static const struct {
        const char *body, *param;
        int code;
        bool grammars;
    } rows[] = {
        {"{'prompt': 'x', 'regex': '('}", "regex", GS_ERR_INVALID, true},
        {"{'prompt': 'x', 'grammar': 'start: nowhere'}", "grammar", GS_ERR_INVALID, true},
        {"{" ASK ", 'tools': [{'function': {'name': 'f', 'parameters': {'type': 'nothing'}}}], "
         "'tool_choice': 'required'}",
         "tools", GS_ERR_INVALID, true},
        {"{'prompt': 'x', 'regex': 'a'}", "regex", GS_ERR_UNSUPPORTED, false},
        {"{" ASK ", " TOOLS ", 'tool_choice': 'required'}", "tools", GS_ERR_UNSUPPORTED, false},
    };
    model m;
    model_open(&m, NULL, "hermes", false);
    gs_grammars *grammars = m.m.grammars;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *body = quoted(rows[i].body);
        m.m.grammars = rows[i].grammars ? grammars : NULL;
        gs_req *r = prepare(&m, body);
        if (r->error.code != rows[i].code || strcmp(r->error.param, rows[i].param) != 0 ||
            !strstr(r->error.message, rows[i].param))
            fail_msg("%s: %d, '%s', %s", rows[i].body, r->error.code, r->error.param,
                     r->error.message);
        request_free(r);
        json_decref(body);
    }
    m.m.grammars = grammars;
    model_close(&m);
}

typedef struct preparing {
    const model *m;
    const json_t *body;
} preparing;

static int prepare_again(void *arg) {
    const preparing *p = arg;
    gs_req *r = prepare(p->m, p->body);
    const int rc = r->error.code;
    if (rc == 0)
        assert_non_null(r->guides);
    request_free(r);
    return rc;
}

/* Of a conversation or a schema, which are texts that are read again. */
static bool reads_json(const char *body) {
    return strstr(body, "messages") || strstr(body, "json_schema");
}

/* The cache of grammars can be done without. */
static void without_memory(void **state) {
    (void)state;
    needs_rust("no grammars, and built-in templates alone");
    for (size_t i = 0; i < N_CASES; i++) {
        model m;
        model_open(&m, cases[i].template, cases[i].format, false);
        json_t *body = quoted(cases[i].body);
        each_allocation_fails(cases[i].body, prepare_again, &(preparing){&m, body},
                              reads_json(cases[i].body) ? OOM_WHOLE | OOM_OWN : OOM_WHOLE);
        json_decref(body);
        model_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_fit_or_not),
        cmocka_unit_test(a_guide_for_each_choice),
        cmocka_unit_test(what_can_not_be_is_refused),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
