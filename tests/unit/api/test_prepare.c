/* Bodies as prompts: which tokens a conversation or a text becomes, for templates of several kinds,
 * and what of them is refused. */
#include "prepared.h"

#include "oom.h"

#define N(a)  (sizeof(a) / sizeof((a)[0]))

#define PLAIN "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
#define TAUGHT                                                                                     \
    "{% for t in tools %}({{ t.function.name }}){% endfor %}" PLAIN                                \
    "{% for m in messages %}{% for c in m.tool_calls %}"                                           \
    "{% for k, v in c.function.arguments.items() %}<{{ k }}={{ v }}>{% endfor %}"                  \
    "{% endfor %}{% endfor %}"
#define PASTES                                                                                     \
    "{% if tools %}{% endif %}{% for m in messages %}[{{ m.content }}]"                            \
    "{% for c in m.tool_calls %}{{ 'args ' ~ (c.function.arguments | trim) }}"                     \
    "{% if c.function.arguments is mapping %}{{ raise_exception('text') }}{% endif %}"             \
    "{% endfor %}{% endfor %}"
#define NO_SYSTEM                                                                                  \
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" PLAIN
#define USER "{'role': 'user', 'content': 'x'}"
#define CALL                                                                                       \
    "{'role': 'assistant', 'content': null, 'tool_calls': [{'function': {'name': 'f', "            \
    "'arguments': '{\\'a\\':1}'}}]}"
#define TOOLS "'tools': [{'function': {'name': 'f'}}]"
#define TOLD                                                                                       \
    "You can call functions. To call one, answer with this JSON alone:\n"                          \
    "{\"name\": \"<function>\", \"arguments\": {<its parameters>}}\n"                              \
    "The result comes with the next message. Answer in words when no function is needed. The "     \
    "functions:\n{\"name\":\"f\",\"description\":\"\",\"parameters\":{\"type\":\"object\","        \
    "\"properties\":{}}}\n"

enum { BOS = 1, SPECIAL = 2, REASONS = 4, TRUNCATE = 8 };

typedef struct prompt_case {
    const char *template; /* NULL: ChatML */
    const char *body;
    const char *want; /* the prompt's text, marks and all; "param: ..." is refused, naming it */
    int flags;        /* BOS: the model wants one; SPECIAL: parse_special; REASONS: expected */
    int32_t context;  /* 0: 2048 */
} prompt_case;

/* clang-format off */
static const prompt_case chats[] = {
    {NULL, "{'messages': [" USER "]}", "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n", 0, 0},
    {NULL, "{'messages': [" USER "]}", "<s><|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n", BOS, 0},
    {"<s>" PLAIN, "{'messages': [" USER "]}", "<s>[user:x]", BOS, 0}, /* one is enough */
    {"<s>" PLAIN, "{'messages': [" USER "]}", "<s>[user:x]", 0, 0},
    {PLAIN, "{'messages': [{'role': 'user', 'content': '<s>'}]}", "<s>[user:<s>]", BOS, 0},
    {PLAIN, "{'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]}, {'role': 'assistant'}]}", "[user:ab][assistant:]", 0, 0},
    {PLAIN, "{'messages': [{'role': 'user', 'content': []}]}", "[user:]", 0, 0},
    {PLAIN "<think>\n", "{'messages': [" USER "]}", "[user:x]<think>", REASONS, 0},
    {PLAIN "{{ enable_thinking }}", "{'messages': [" USER "], 'chat_template_kwargs': {'enable_thinking': false}}", "[user:x]False", 0, 0},
    {TAUGHT, "{'messages': [" USER ", " CALL "], " TOOLS "}", "(f)[user:x][assistant:]<a=1>", 0, 0},
    {TAUGHT, "{'messages': [" USER "], " TOOLS ", 'tool_choice': 'none'}", "[user:x]", 0, 0},
    {TAUGHT, "{'messages': [" USER ", {'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': {'b': 2}}}]}]}", "[user:x][assistant:]<b=2>", 0, 0},
    {PASTES, "{'messages': [" USER ", " CALL "]}", "[x][]args {\"a\":1}", 0, 0},
    {PLAIN, "{'messages': [" USER "], " TOOLS "}", "[system:" TOLD "][user:x]", 0, 0},
    {NO_SYSTEM, "{'messages': [" USER "], " TOOLS "}", "[user:" TOLD "\nx]", 0, 0},
    {NO_SYSTEM, "{'messages': [{'role': 'system', 'content': 's'}, " USER "]}", "param: messages", 0, 0},
    {NO_SYSTEM, "{'messages': [{'role': 'system', 'content': 's'}, " USER "], " TOOLS "}", "param: messages", 0, 0},
    {"", "{'messages': [" USER "]}", "param: messages", 0, 0}, /* a prompt of nothing */
    {PLAIN, "{'messages': []}", "param: messages", 0, 0},
    {PLAIN, "{'messages': {}}", "param: messages", 0, 0},
    {PLAIN, "{}", "param: messages", 0, 0},
    {PLAIN, "{'messages': [7]}", "param: messages[0]", 0, 0},
    {PLAIN, "{'messages': [{'content': 'x'}]}", "param: messages[0]", 0, 0},
    {PLAIN, "{'messages': [" USER ", {'role': 'wizard', 'content': 'x'}]}", "param: messages[1]", 0, 0},
    {PLAIN, "{'messages': [{'role': 'user'}]}", "param: messages[0]", 0, 0},
    {PLAIN, "{'messages': [{'role': 'user', 'content': null}]}", "param: messages[0]", 0, 0},
    {PLAIN, "{'messages': [{'role': 'user', 'content': 7}]}", "param: messages[0].content", 0, 0},
    {PLAIN, "{'messages': [{'role': 'user', 'content': ['x']}]}", "param: messages[0].content", 0, 0},
    {PLAIN, "{'messages': [{'role': 'user', 'content': [{'type': 'image_url', 'image_url': {'url': 'x'}}]}]}", "param: messages[0].content", 0, 0},
    {PLAIN, "{'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 7}]}]}", "param: messages[0].content", 0, 0},
    {PLAIN, "{'messages': [{'role': 'user', 'content': 'x', 'name': 7}]}", "param: messages[0]", 0, 0},
    {PLAIN, "{'messages': [" USER "], 'num_ctx': 8}", "param: messages", 0, 8},
    {PLAIN, "{'messages': [" USER "], 'num_ctx': 100}", "[user:x]", 0, 100},
};

#define SYSTEM "{'role': 'system', 'content': 's'}, {'role': 'developer', 'content': 'd'}"
#define TURN(n) "{'role': 'user', 'content': '" n "'}, {'role': 'assistant', 'content': 'so'}"
/* [user:NN][assistant:so] takes 23 tokens, [user:NN] 9 and the two of the system 21. */
static const prompt_case long_chats[] = {
    {PLAIN, "{'messages': [" SYSTEM ", " TURN("11") ", " TURN("22") ", {'role': 'user', 'content': '33'}], 'max_tokens': 10}", "[system:s][developer:d][user:11][assistant:so][user:22][assistant:so][user:33]", TRUNCATE, 100},
    {PLAIN, "{'messages': [" SYSTEM ", " TURN("11") ", " TURN("22") ", {'role': 'user', 'content': '33'}], 'max_tokens': 10}", "[system:s][developer:d][user:22][assistant:so][user:33]", TRUNCATE, 80},
    {PLAIN, "{'messages': [" SYSTEM ", " TURN("11") ", " TURN("22") ", " TURN("33") ", " TURN("44") "]}", "[system:s][developer:d][user:33][assistant:so][user:44][assistant:so]", TRUNCATE, 80},
    {PLAIN, "{'messages': [" SYSTEM ", " TURN("11") ", {'role': 'user', 'content': '22'}]}", "[system:s][developer:d][user:22]", TRUNCATE, 20},
    {PLAIN, "{'messages': [" USER "], 'max_tokens': 10}", "[user:x]", TRUNCATE, 8}, /* the last one stays */
    {PLAIN, "{'messages': [{'role': 'assistant', 'content': 'so'}]}", "[assistant:so]", TRUNCATE, 8},
};

static const prompt_case texts[] = {
    {NULL, "{'prompt': 'ab'}", "ab", 0, 0},
    {NULL, "{'prompt': 'ab'}", "<s>ab", BOS, 0},
    {NULL, "{'prompt': '<s>ab'}", "<s><s>ab", BOS, 0}, /* the user's is text */
    {NULL, "{'prompt': '<s>ab<mid>'}", "<s>ab<mid>", BOS | SPECIAL, 0},
    {NULL, "{'prompt': 'ab<mid>'}", "<s>ab<mid>", BOS | SPECIAL, 0},
    {NULL, "{'prompt': 'ab<mid>'}", "ab<mid>", SPECIAL, 0},
    {NULL, "{'prompt': [97, 98, 261]}", "ab<mid>", 0, 0},
    {NULL, "{'prompt': 'a', 'suffix': 'b'}", "<pre>a<suf>b<mid>", 0, 0},
    {NULL, "{'prompt': 'a', 'suffix': '<mid>'}", "<s><pre>a<suf><mid><mid>", BOS, 0},
    {NULL, "{'prompt': ''}", "param: prompt", 0, 0},
    {NULL, "{'prompt': ['a', 7]}", "param: prompt", 0, 0},
    {NULL, "{'prompt': ['a', ['b']]}", "param: prompt", 0, 0},
    {NULL, "{'prompt': [97, 'b']}", "param: prompt", 0, 0},
    {NULL, "{'prompt': [97, -1]}", "param: prompt", 0, 0},
    {NULL, "{'prompt': [97, 264]}", "param: prompt", 0, 0},
    {NULL, "{'prompt': 'abcd', 'num_ctx': 4}", "param: prompt", 0, 4},
};
/* clang-format on */

static gs_req *prepare(const model *m, const prompt_case *c, const json_t *body, bool chat) {
    gs_req *r = request_new(m, body, chat);
    r->p.truncate = (c->flags & TRUNCATE) != 0;
    r->p.parse_special = (c->flags & SPECIAL) != 0;
    r->context = c->context ? c->context : r->context;
    if (r->error.code == 0)
        gs_req_prepare(r);
    return r;
}

static int text_of(const gs_req *r, int32_t i, gs_buf *out) {
    gs_buf_clear(out);
    int rc = gs_tok_decode(r->m->tokenizer, r->prompts[i].data, r->prompts[i].len, true, out);
    return rc == 0 && !gs_buf_cstr(out) ? GS_ERR_NOMEM : rc;
}

static void check(const prompt_case *cases, size_t n, bool chat) {
    for (size_t i = 0; i < n; i++) {
        const prompt_case *c = &cases[i];
        if (c->template && !GS_HAVE_RUST) {
            print_message("%s: a build without Rust has built-in templates alone\n", c->template);
            continue;
        }
        model m;
        gs_buf got = {0};
        model_open(&m, c->template, "hermes", (c->flags & BOS) != 0);
        json_t *body = quoted(c->body);
        gs_req *r = prepare(&m, c, body, chat);
        if (r->error.code != 0)
            gs_buf_printf(&got, "param: %s", r->error.param);
        else
            assert_int_equal(text_of(r, 0, &got), 0);
        expect_became(r, &got, c->want, c->body);
        assert_int_equal(r->in_reasoning, (c->flags & REASONS) != 0);
        request_free(r);
        json_decref(body);
        gs_buf_deinit(&got);
        model_close(&m);
    }
}

static void conversations(void **state) {
    (void)state;
    check(chats, N(chats), true);
}

static void conversations_that_do_not_fit(void **state) {
    (void)state;
    check(long_chats, N(long_chats), true);
}

static void texts_and_ids(void **state) {
    (void)state;
    check(texts, N(texts), false);
}

/* Several prompts, and what echo repeats of each. */
static void many_prompts(void **state) {
    (void)state;
    static const struct {
        const char *body;
        const char *prompts[2], *echo[2];
    } rows[] = {
        {"{'prompt': ['a', 'b']}", {"a", "b"}, {"", ""}},
        {"{'prompt': ['a', 'b'], 'echo': true}", {"a", "b"}, {"a", "b"}},
        {"{'prompt': [[97, 98], [99]]}", {"ab", "c"}, {"", ""}},
        {"{'prompt': [[97, 261], [99]], 'echo': true}", {"a<mid>", "c"}, {"a", "c"}},
        {"{'prompt': [97, 98], 'echo': true}", {"ab"}, {"ab"}},
        {"{'prompt': 'a', 'suffix': 'b', 'echo': true}", {"<pre>a<suf>b<mid>"}, {"a"}},
    };
    model m;
    gs_buf got = {0};
    model_open(&m, NULL, NULL, false);
    for (size_t i = 0; i < N(rows); i++) {
        json_t *body = quoted(rows[i].body);
        gs_req *r = prepare(&m, &(prompt_case){0}, body, false);
        assert_int_equal(r->error.code, 0);
        for (int32_t k = 0; k < r->n_prompts; k++) {
            assert_int_equal(text_of(r, k, &got), 0);
            assert_string_equal(got.data, rows[i].prompts[k]);
            assert_non_null(gs_buf_cstr(&r->echo_text[k]));
            assert_string_equal(r->echo_text[k].data, rows[i].echo[k]);
        }
        request_free(r);
        json_decref(body);
    }
    gs_buf_deinit(&got);
    model_close(&m);
}

/* How an answer is to be read. */
static void answers_are_read_in_the_models_form(void **state) {
    (void)state;
    static const struct {
        const char *template, *format, *body;
        const char *want; /* NULL: all is text */
        bool calls, bare;
    } rows[] = {
        {TAUGHT, "gpt-oss", "{'messages': [" USER "], " TOOLS "}", "gpt-oss", true, false},
        {TAUGHT, "gpt-oss", "{'messages': [" USER "]}", "gpt-oss", false, false},
        {PLAIN, "hermes", "{'messages': [" USER "], " TOOLS "}", "hermes", true, true},
        {TAUGHT, "gpt-oss", "{'messages': [" USER "], " TOOLS ", 'tool_choice': 'required'}",
         "generic", true, true},
        {TAUGHT, "hermes", "{'messages': [" USER "], " TOOLS ", 'tool_choice': 'required'}",
         "hermes", true, true},
        {TAUGHT, "gpt-oss",
         "{'messages': [" USER "], " TOOLS ", 'tool_choice': 'none', 'regex': 'a'}", "gpt-oss",
         false, true},
        {TAUGHT, "hermes", "{'prompt': 'x'}", NULL, false, false},
    };
    needs_rust("no grammars, and built-in templates alone");
    for (size_t i = 0; i < N(rows); i++) {
        model m;
        model_open(&m, rows[i].template, rows[i].format, false);
        json_t *body = quoted(rows[i].body);
        gs_req *r = request_new(&m, body, json_object_get(body, "messages") != NULL);
        assert_int_equal(r->error.code, 0);
        const gs_outparse_config c = gs_req_parser_config(r);
        assert_string_equal(c.format ? gs_out_format_name(c.format) : "none",
                            rows[i].want ? rows[i].want : "none");
        assert_int_equal(c.tools != NULL, rows[i].calls);
        assert_int_equal(c.bare, rows[i].bare);
        request_free(r);
        json_decref(body);
        model_close(&m);
    }
}

/* A model that other machines have: they say what is wrong, but for what can't be sent. */
static void models_of_other_machines(void **state) {
    (void)state;
    static const struct {
        const char *body;
        bool chat, good;
    } rows[] = {{"{'prompt': 'x'}", false, true},
                {"{'messages': [7]}", true, true},
                {"{'messages': []}", true, false},
                {"{}", true, false}};
    model m;
    model_open(&m, NULL, NULL, false);
    for (size_t i = 0; i < N(rows); i++) {
        json_t *body = quoted(rows[i].body);
        gs_req *r = request_new(&m, body, rows[i].chat);
        r->m = NULL;
        assert_int_equal(gs_req_prepare(r), rows[i].good ? 0 : GS_ERR_INVALID);
        assert_string_equal(r->error.param, rows[i].good ? "" : "messages");
        request_free(r);
        json_decref(body);
    }
    model_close(&m);
}

typedef struct preparing {
    const model *m;
    const prompt_case *c;
    const json_t *body;
    bool chat;
} preparing;

static int prepare_again(void *arg) {
    const preparing *p = arg;
    gs_req *r = prepare(p->m, p->c, p->body, p->chat);
    gs_buf got = {0};
    int rc = r->error.code;
    if (rc == 0)
        rc = text_of(r, 0, &got);
    if (rc == 0 && strcmp(got.data, p->c->want) != 0)
        rc = GS_ERR_INTERNAL;
    gs_buf_deinit(&got);
    request_free(r);
    return rc;
}

static void fail_each(const prompt_case *cases, size_t n, bool chat) {
    for (size_t i = 0; i < n; i++) {
        const prompt_case *c = &cases[i];
        if (strncmp(c->want, "param", 5) == 0 || (c->template && !GS_HAVE_RUST))
            continue;
        model m;
        model_open(&m, c->template, "hermes", (c->flags & BOS) != 0);
        json_t *body = quoted(c->body);
        preparing p = {&m, c, body, chat};
        each_allocation_fails(c->body, prepare_again, &p, chat ? OOM_OWN : 0);
        json_decref(body);
        model_close(&m);
    }
}

static void without_memory(void **state) {
    (void)state;
    fail_each(chats, N(chats), true);
    fail_each(long_chats, N(long_chats), true);
    fail_each(texts, N(texts), false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations),
        cmocka_unit_test(conversations_that_do_not_fit),
        cmocka_unit_test(texts_and_ids),
        cmocka_unit_test(many_prompts),
        cmocka_unit_test(answers_are_read_in_the_models_form),
        cmocka_unit_test(models_of_other_machines),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
