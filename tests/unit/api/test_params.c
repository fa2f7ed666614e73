/* Request fields: every row of the table at its bounds, wrong types, and what JSON may not be. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "api/params.h"
#include "base/buf.h"
#include "oom.h"
#include "quoted.h"

#define N_VOCAB 1000

static gs_gen_params p;
static gs_api_error e;

static int read_text(const char *text, bool chat) {
    memset(&e, 0, sizeof e);
    gs_gen_params_deinit(&p);
    json_t *root = gs_api_parse_json(text, strlen(text), &e);
    if (!root)
        return e.code;
    int rc = gs_gen_params_read(root, chat, N_VOCAB, &p, &e);
    json_decref(root);
    return rc;
}

static void accepted(const char *text, bool chat) {
    if (read_text(text, chat) != 0)
        fail_msg("%s: %s", text, e.message);
}

/* Refused with 400, naming the field. */
static void refused(const char *text, bool chat, const char *param) {
    if (read_text(text, chat) == 0)
        fail_msg("%s was accepted", text);
    int http = gs_err_http(e.code);
    if (strcmp(e.param, param) != 0 || http != 400 || !e.message[0])
        fail_msg("%s: param '%s', status %d, '%s'", text, e.param, http, e.message);
}

typedef struct bound {
    const char *name;
    int where; /* 1 chat, 2 completions, 3 both */
    bool whole;
    const char *good[4], *bad[4];
} bound;

// clang-format off
static const bound bounds[] = {
    {"temperature", 3, false, {"0", "1e-3", "100"}, {"-0.001", "100.001", "1e300"}},
    {"top_p", 3, false, {"0", "0.5", "1"}, {"-1e-9", "1.0001"}},
    {"top_k", 3, true, {"-1", "0", "2147483647"}, {"-2", "2147483648", "1.5"}},
    {"min_p", 3, false, {"0", "1"}, {"-0.1", "1.1"}},
    {"typical_p", 3, false, {"0", "1"}, {"-0.1", "2"}},
    {"repeat_penalty", 3, false, {"0.01", "1", "100"}, {"0", "0.009", "101"}},
    {"repetition_penalty", 3, false, {"0.01", "100"}, {"0", "101"}},
    {"repeat_last_n", 3, true, {"-1", "0", "64"}, {"-2", "0.5"}},
    {"presence_penalty", 3, false, {"-2", "0", "2"}, {"-2.01", "2.01"}},
    {"frequency_penalty", 3, false, {"-2", "0", "2"}, {"-2.01", "2.01"}},
    {"dry_multiplier", 3, false, {"0", "100"}, {"-1", "101"}},
    {"dry_base", 3, false, {"1", "10"}, {"0.5", "11"}},
    {"dry_allowed_length", 3, true, {"1", "1000"}, {"0", "1001"}},
    {"max_tokens", 3, true, {"1", "2147483647", "7.0"}, {"0", "-1", "2147483648", "1.5"}},
    {"max_completion_tokens", 1, true, {"1", "2147483647"}, {"0", "-1"}},
    {"n", 3, true, {"1", "8"}, {"0", "9", "1.5"}},
    {"logprobs", 2, true, {"0", "20"}, {"-1", "21"}},
};
// clang-format on

static void one_field(const char *name, const char *value, bool chat, bool good) {
    char text[256];
    snprintf(text, sizeof text, "{\"%s\": %s}", name, value);
    if (good)
        accepted(text, chat);
    else
        refused(text, chat, name);
}

static void every_number_has_its_bounds(void **state) {
    (void)state;
    static const char *const wrong[] = {"true", "\"1\"", "[1]", "{}"};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        const bound *b = &bounds[i];
        for (int chat = 0; chat < 2; chat++) {
            if (!(b->where & (chat ? 1 : 2)))
                continue;
            for (int k = 0; k < 4 && b->good[k]; k++)
                one_field(b->name, b->good[k], chat, true);
            for (int k = 0; k < 4 && b->bad[k]; k++)
                one_field(b->name, b->bad[k], chat, false);
            for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
                one_field(b->name, wrong[k], chat, false);
            one_field(b->name, "null", chat, true); /* as if absent */
        }
    }
}

static void flags_are_true_or_false(void **state) {
    (void)state;
    static const char *const names[] = {"ignore_eos", "stream"};
    for (size_t i = 0; i < 2; i++) {
        one_field(names[i], "true", true, true);
        one_field(names[i], "null", true, true);
        one_field(names[i], "1", true, false);
        one_field(names[i], "\"true\"", true, false);
    }
    one_field("echo", "true", false, true);
    one_field("echo", "0", false, false);
    one_field("echo", "0", true, true); /* no field of chat */
}

static void values_arrive_where_they_belong(void **state) {
    (void)state;
    accepted(
        "{\"temperature\": 0.25, \"top_p\": 0.5, \"top_k\": 7, \"min_p\": 0.125, "
        "\"typical_p\": 0.75, \"repeat_penalty\": 1.5, \"repeat_last_n\": 9, "
        "\"presence_penalty\": 0.5, \"frequency_penalty\": -0.5, \"dry_multiplier\": 2, "
        "\"dry_base\": 3, \"dry_allowed_length\": 4, \"ignore_eos\": true, \"max_tokens\": 11, "
        "\"n\": 2, \"stream\": true, \"stream_options\": {\"include_usage\": true}, "
        "\"seed\": -5, \"user\": \"mina\", \"stop\": [\"a\", \"\", \"bc\"], "
        "\"logit_bias\": {\"5\": -100, \"999\": 1.5}}",
        true);
    const gs_sampler *s = &p.sampler;
    assert_true(s->temperature == 0.25f && s->top_p == 0.5f && s->min_p == 0.125f);
    assert_true(s->typical_p == 0.75f && s->repeat_penalty == 1.5f && s->presence_penalty == 0.5f);
    assert_true(s->frequency_penalty == -0.5f && s->dry_multiplier == 2.0f && s->dry_base == 3.0f);
    assert_int_equal(s->top_k, 7);
    assert_int_equal(s->repeat_last_n, 9);
    assert_int_equal(s->dry_allowed_length, 4);
    assert_true(s->ignore_eos && p.stream && p.include_usage && p.has_seed && p.chat);
    assert_int_equal(p.max_tokens, 11);
    assert_int_equal(p.n, 2);
    assert_true(s->seed == (uint64_t)-5);
    assert_string_equal(p.user, "mina");
    assert_int_equal(p.stop.n, 2);
    assert_string_equal(p.stop.text[1], "bc");
    assert_int_equal(p.stop.len[1], 2);
    assert_int_equal(p.n_bias, 2);
}

static void defaults(void **state) {
    (void)state;
    accepted("{}", true);
    assert_int_equal(p.max_tokens, -1);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.sampler.n_logprobs, -1);
    assert_true(p.sampler.temperature == 1.0f);
    uint64_t seed = p.sampler.seed;
    accepted("{\"top_k\": -1, \"what_is_this\": [1, {}]}", false);
    assert_int_equal(p.max_tokens, 16);
    assert_int_equal(p.sampler.top_k, 0);
    assert_true(p.sampler.seed != seed); /* drawn anew */
}

static void stop_strings(void **state) {
    (void)state;
    gs_buf b = {0};
    accepted("{\"stop\": \"x\"}", true);
    accepted("{\"stop\": []}", true);
    accepted("{\"stop\": null}", true);
    refused("{\"stop\": 1}", true, "stop");
    refused("{\"stop\": [\"a\", 1]}", true, "stop");
    refused("{\"stop\": {\"a\": 1}}", true, "stop");
    for (int extra = 0; extra < 2; extra++) {
        gs_buf_clear(&b);
        gs_buf_printf(&b, "{\"stop\": \"%0*d\"}", GS_MAX_STOP_BYTES + extra, 0);
        if (extra)
            refused(gs_buf_cstr(&b), true, "stop");
        else
            accepted(gs_buf_cstr(&b), true);
        gs_buf_clear(&b);
        gs_buf_str(&b, "{\"stop\": [\"a\"");
        for (int i = 1; i < GS_MAX_STOPS + extra; i++)
            gs_buf_str(&b, ",\"a\"");
        gs_buf_str(&b, "]}");
        if (extra)
            refused(gs_buf_cstr(&b), true, "stop");
        else
            accepted(gs_buf_cstr(&b), true);
    }
    gs_buf_deinit(&b);
}

static void logit_bias(void **state) {
    (void)state;
    accepted("{\"logit_bias\": {}}", true);
    accepted("{\"logit_bias\": {\"0\": 100, \"999\": -100}}", true);
    static const char *const bad[] = {"[]",
                                      "1",
                                      "{\"1000\": 1}",
                                      "{\"-1\": 1}",
                                      "{\" 1\": 1}",
                                      "{\"+1\": 1}",
                                      "{\"1x\": 1}",
                                      "{\"\": 1}",
                                      "{\"99999999999999999999\": 1}",
                                      "{\"1\": 100.5}",
                                      "{\"1\": -101}",
                                      "{\"1\": \"1\"}",
                                      "{\"1\": null}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        one_field("logit_bias", bad[i], true, false);
    gs_buf b = {0};
    gs_buf_str(&b, "{\"logit_bias\": {\"0\": 1");
    for (int i = 1; i <= GS_MAX_BIAS; i++)
        gs_buf_printf(&b, ",\"%0*d\": 1", 4 + i / 1000, i % 1000);
    gs_buf_str(&b, "}}");
    refused(gs_buf_cstr(&b), true, "logit_bias");
    gs_buf_deinit(&b);
}

static void logprobs_of_the_two_dialects(void **state) {
    (void)state;
    accepted("{\"logprobs\": true}", true);
    assert_int_equal(p.sampler.n_logprobs, 0);
    accepted("{\"logprobs\": true, \"top_logprobs\": 20}", true);
    assert_int_equal(p.sampler.n_logprobs, 20);
    accepted("{\"logprobs\": false, \"top_logprobs\": null}", true);
    assert_int_equal(p.sampler.n_logprobs, -1);
    refused("{\"logprobs\": 5}", true, "logprobs");
    refused("{\"top_logprobs\": 5}", true, "top_logprobs");
    refused("{\"logprobs\": true, \"top_logprobs\": 21}", true, "top_logprobs");
    refused("{\"logprobs\": true, \"top_logprobs\": -1}", true, "top_logprobs");
    refused("{\"logprobs\": true, \"top_logprobs\": 1.0}", true, "top_logprobs");
    accepted("{\"logprobs\": 5}", false);
    assert_int_equal(p.sampler.n_logprobs, 5);
    refused("{\"logprobs\": true}", false, "logprobs");
    refused("{\"logprobs\": 0, \"echo\": true}", false, "echo");
    accepted("{\"logprobs\": null, \"echo\": true}", false);
}

static void the_rest(void **state) {
    (void)state;
    refused("{\"seed\": 1.5}", true, "seed");
    refused("{\"seed\": \"1\"}", true, "seed");
    refused("{\"user\": 1}", true, "user");
    refused("{\"stream_options\": true}", true, "stream_options");
    refused("{\"stream_options\": {\"include_usage\": 1}}", true, "stream_options");
    refused("{\"stream_options\": {\"include_timings\": 1}}", true, "stream_options");
    refused("{\"stream_options\": {\"include_usage\": true, \"include_timings\": \"\"}}", true,
            "stream_options");
    refused("{\"n\": 1, \"echo\": true, \"logprobs\": 0, \"prompt\": \"x\"}", false, "echo");
    accepted("{\"stream_options\": {}}", true);
    assert_false(p.include_usage || p.include_timings);
    accepted("{\"stream_options\": {\"include_usage\": true, \"include_timings\": false}}", true);
    assert_true(p.include_usage && !p.include_timings);
    accepted("{\"stream_options\": {\"include_timings\": true}}", true);
    assert_true(p.include_usage && p.include_timings); /* that is where they are told */
    accepted("{\"include_timings\": true, \"stream_options\": null}", true);
    assert_true(p.include_usage);
    char text[256];
    for (int n = 127; n <= 128; n++) {
        snprintf(text, sizeof text, "{\"user\": \"%0*d\"}", n, 0);
        if (n == 127)
            accepted(text, true);
        else
            refused(text, true, "user");
    }
}

/* Fields within an object have its name before theirs. */
static void objects_of_fields(void **state) {
    (void)state;
    static const gs_field inner[] = {GS_ROW("k", INT, 1, 0, 1, 5, NULL), GS_ROWS_END};
    static const gs_field outer[] = {GS_ROW_OBJECT("options", 1, inner, NULL), GS_ROWS_END};
    static const struct {
        const char *json, *param;
        int32_t k;
    } rows[] = {{"{'options': {'k': 3}}", "", 3},
                {"{'options': {}}", "", 0},
                {"{'options': null}", "", 0},
                {"{'options': {'k': 3.0}}", "", 3},
                {"{'options': 7}", "options", 0},
                {"{'options': []}", "options", 0},
                {"{'options': {'k': 6}}", "options.k", 0},
                {"{'options': {'k': '3'}}", "options.k", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t k = 0;
        json_t *body = quoted(rows[i].json);
        memset(&e, 0, sizeof e);
        assert_int_equal(gs_fields_read(outer, 1, body, &k, &e),
                         rows[i].param[0] ? GS_ERR_INVALID : 0);
        assert_string_equal(e.param, rows[i].param);
        assert_int_equal(k, rows[i].k);
        assert_int_equal(gs_fields_read(outer, 2, body, &k, &e), 0); /* not of these rows */
        json_decref(body);
    }
}

/* A body of more arrays than a tree may have. */
static void too_many_containers(void **state) {
    (void)state;
    for (size_t n = GS_JSON_CONTAINERS - 2; n < GS_JSON_CONTAINERS; n++) {
        gs_buf text = {0};
        gs_buf_str(&text, "{\"prompt\": [[]");
        for (size_t i = 1; i < n; i++)
            gs_buf_str(&text, ",[]");
        gs_buf_str(&text, "]}");
        assert_non_null(gs_buf_cstr(&text));
        if (n + 2 <= GS_JSON_CONTAINERS)
            accepted(text.data, false);
        else
            refused(text.data, false, "body");
        gs_buf_deinit(&text);
    }
}

/* Numbers of things, and lengths, at their bounds and one beyond. */
static void lists_and_texts_have_an_end(void **state) {
    (void)state;
    for (int more = 0; more < 2; more++) {
        gs_buf text = {0};
        gs_buf_str(&text, "{\"tools\": [");
        for (int i = 0; i < GS_MAX_TOOLS + more; i++)
            gs_buf_printf(&text, "%s{\"function\": {\"name\": \"f%d\"}}", i ? "," : "", i);
        gs_buf_str(&text, "]}");
        assert_non_null(gs_buf_cstr(&text));
        more ? refused(text.data, true, "tools") : accepted(text.data, true);
        gs_buf_clear(&text);
        gs_buf_printf(&text, "{\"regex\": \"%0*d\"}", GS_MAX_CONSTRAINT_BYTES + more, 0);
        assert_non_null(gs_buf_cstr(&text));
        more ? refused(text.data, true, "regex") : accepted(text.data, true);
        gs_buf_clear(&text);
        gs_buf_printf(&text, "{\"tools\": [{\"function\": {\"name\": \"%0*d\"}}]}",
                      GS_MAX_TOOL_NAME + more, 0);
        assert_non_null(gs_buf_cstr(&text));
        more ? refused(text.data, true, "tools[0]") : accepted(text.data, true);
        gs_buf_deinit(&text);
    }
}

static void json_that_is_none(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      " ",
                                      "[]",
                                      "1",
                                      "null",
                                      "{",
                                      "{\"a\": 1",
                                      "{\"a\": NaN}",
                                      "{\"a\": Infinity}",
                                      "{\"a\": 1e999}",
                                      "{\"a\": 01}",
                                      "{'a': 1}",
                                      "{\"a\": 1,}",
                                      "{\"a\": 1} x",
                                      "{\"a\": 1}{}",
                                      "{\"a\": \"\xff\"}",
                                      "{\"a\": \"\\ud800\"}",
                                      "{\"a\": \"\\u0000\"}",
                                      "{\"a\": 99999999999999999999999}",
                                      "{\"temperature\": 0, \"temperature\": 1}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused(bad[i], true, "body");
}

static void messages_do_not_quote_the_body(void **state) {
    (void)state;
    refused("{\"messages\": secret}", true, "body");
    assert_null(strstr(e.message, "secret"));
    refused("{\"messages\": \"a\", \"secret\": 1, \"secret\": 2}", true, "body");
    assert_null(strstr(e.message, "secret"));
}

static void depth_bombs_are_refused_before_parsing(void **state) {
    (void)state;
    gs_buf b = {0};
    for (int deep = GS_JSON_DEPTH; deep <= GS_JSON_DEPTH + 1; deep++) {
        gs_buf_clear(&b);
        gs_buf_str(&b, "{\"a\": ");
        for (int i = 1; i < deep; i++)
            gs_buf_char(&b, '[');
        for (int i = 1; i < deep; i++)
            gs_buf_char(&b, ']');
        gs_buf_char(&b, '}');
        if (deep == GS_JSON_DEPTH)
            accepted(gs_buf_cstr(&b), true);
        else
            refused(gs_buf_cstr(&b), true, "body");
    }
    gs_buf_clear(&b);
    for (int i = 0; i < 1000000; i++)
        gs_buf_str(&b, "{\"a\":");
    refused(gs_buf_cstr(&b), true, "body");
    assert_non_null(strstr(e.message, "levels deep"));
    gs_buf_deinit(&b);
    /* Brackets in strings are text. */
    gs_buf_str(
        &b,
        "{\"user\": \"\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
        "\"}");
    accepted(gs_buf_cstr(&b), true);
    gs_buf_deinit(&b);
}

#define ONE_TOOL  "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get\"}}]"
#define FORMAT(f) "{\"response_format\": " f "}"

static void tools_are_read(void **state) {
    (void)state;
    accepted("{" ONE_TOOL "}", true);
    char *text = json_dumps(p.tools, JSON_COMPACT);
    assert_string_equal(text,
                        "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"description\":"
                        "\"\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]");
    free(text);
    assert_int_equal(p.tool_choice, GS_TOOLS_AUTO);
    assert_true(p.parallel_tool_calls);
    accepted("{" ONE_TOOL ", \"tool_choice\": \"none\", \"parallel_tool_calls\": false}", true);
    assert_int_equal(p.tool_choice, GS_TOOLS_NONE);
    assert_false(p.parallel_tool_calls);
    accepted("{" ONE_TOOL ", \"tool_choice\": \"required\", \"ignore_eos\": true}", true);
    assert_int_equal(p.tool_choice, GS_TOOLS_REQUIRED);
    assert_false(p.sampler.ignore_eos);
    accepted("{" ONE_TOOL ", \"tool_choice\": {\"type\": \"function\", \"function\": "
             "{\"name\": \"get\"}}}",
             true);
    assert_int_equal(p.tool_choice, GS_TOOLS_NAMED);
    assert_string_equal(p.tool_name, "get");
    accepted("{\"tools\": [], \"tool_choice\": \"auto\"}", true);
    assert_null(p.tools);
    accepted("{\"tools\": 1, \"tool_choice\": 2}", false); /* fields of chats only */
}

static void wrong_tools_are_refused(void **state) {
    (void)state;
    refused("{\"tools\": {}}", true, "tools");
    refused("{\"tools\": [1]}", true, "tools[0]");
    refused("{\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get\"}}, {}]}", true,
            "tools[1]");
    refused("{\"tools\": [{\"type\": \"web_search\", \"function\": {\"name\": \"get\"}}]}", true,
            "tools[0]");
    refused("{\"tools\": [{\"function\": {\"name\": \"\"}}]}", true, "tools[0]");
    refused("{\"tools\": [{\"function\": {\"name\": \"<a>\"}}]}", true, "tools[0]");
    refused("{\"tools\": [{\"function\": {\"name\": \"a\", \"description\": 1}}]}", true,
            "tools[0]");
    refused("{\"tools\": [{\"function\": {\"name\": \"a\", \"parameters\": []}}]}", true,
            "tools[0]");
    refused("{\"tools\": [{\"type\": 7, \"function\": {\"name\": \"get\"}}]}", true, "tools[0]");
    refused("{\"tools\": [{\"function\": 7}]}", true, "tools[0]");
    refused("{\"tools\": [{\"function\": {\"name\": 7}}]}", true, "tools[0]");
    refused("{\"tool_choice\": 7}", true, "tool_choice");
    refused("{\"tool_choice\": \"required\"}", true, "tool_choice");
    refused("{\"tool_choice\": \"any\"}", true, "tool_choice");
    refused("{" ONE_TOOL ", \"tool_choice\": {\"function\": {\"name\": \"put\"}}}", true,
            "tool_choice");
    refused("{" ONE_TOOL ", \"tool_choice\": {}}", true, "tool_choice");
    refused("{\"parallel_tool_calls\": 1}", true, "parallel_tool_calls");
    refused("{\"chat_template_kwargs\": 1}", true, "chat_template_kwargs");
    refused("{\"reasoning_effort\": 1}", true, "reasoning_effort");
}

static void constraints_are_read(void **state) {
    (void)state;
    accepted(FORMAT("{\"type\": \"text\"}"), true);
    assert_int_equal(p.constraint.kind, GS_CONSTRAINT_NONE);
    accepted(FORMAT("{\"type\": \"json_object\"}"), true);
    assert_int_equal(p.constraint.kind, GS_CONSTRAINT_JSON_OBJECT);
    accepted(FORMAT("{\"type\": \"json_schema\", \"json_schema\": {\"name\": \"x\", \"strict\": "
                    "true, \"schema\": {\"type\": \"integer\"}}}"),
             true);
    assert_int_equal(p.constraint.kind, GS_CONSTRAINT_JSON_SCHEMA);
    assert_string_equal(p.constraint.text, "{\"type\":\"integer\"}");
    accepted(FORMAT("{\"type\": \"json_object\", \"schema\": {}}"), true);
    assert_string_equal(p.constraint.text, "{}");
    accepted("{\"regex\": \"[a-z]+\", \"ignore_eos\": true}", false);
    assert_int_equal(p.constraint.kind, GS_CONSTRAINT_REGEX);
    assert_string_equal(p.constraint.text, "[a-z]+");
    assert_false(p.sampler.ignore_eos);
    accepted("{\"grammar\": \"start: \\\"a\\\"\"}", false);
    assert_int_equal(p.constraint.kind, GS_CONSTRAINT_GRAMMAR);
    refused(FORMAT("1"), true, "response_format");
    refused(FORMAT("{}"), true, "response_format");
    refused(FORMAT("{\"type\": \"xml\"}"), true, "response_format");
    refused(FORMAT("{\"type\": \"json_schema\"}"), true, "response_format");
    refused(FORMAT("{\"type\": \"json_schema\", \"json_schema\": {\"schema\": 1}}"), true,
            "response_format");
    refused("{\"regex\": 1}", true, "regex");
    refused("{\"regex\": \"a\", \"grammar\": \"b\"}", true, "regex");
}

static void template_variables_are_read(void **state) {
    (void)state;
    accepted("{\"chat_template_kwargs\": {\"enable_thinking\": true}, \"reasoning_effort\": "
             "\"none\"}",
             true);
    assert_true(json_is_false(json_object_get(p.template_vars, "enable_thinking")));
    accepted("{\"reasoning_effort\": \"low\"}", true);
    assert_string_equal(json_string_value(json_object_get(p.template_vars, "reasoning_effort")),
                        "low");
}

static int read_again(void *root) {
    memset(&e, 0, sizeof e);
    const int rc = gs_gen_params_read(root, true, N_VOCAB, &p, &e);
    gs_gen_params_deinit(&p);
    return rc;
}

static void without_memory(void **state) {
    (void)state;
    static const char text[] =
        "{\"stop\": [\"a\", \"b\"], \"logit_bias\": {\"5\": 1.5}, \"user\": \"anna\", \"seed\": 7,"
        " \"stream_options\": {\"include_usage\": true}, \"tools\": [{\"type\": \"function\", "
        "\"function\":"
        " {\"name\": \"get\", \"parameters\": {\"type\": \"object\"}}}], \"tool_choice\": "
        "\"required\","
        " \"chat_template_kwargs\": {\"enable_thinking\": false}, \"response_format\": {\"type\":"
        " \"json_schema\", \"json_schema\": {\"name\": \"n\", \"schema\": {\"type\": "
        "\"object\"}}}}";
    json_t *root = gs_api_parse_json(text, strlen(text), &e);
    assert_non_null(root);
    assert_true(each_allocation_fails("fields", read_again, root, 0) > 2);
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tools_are_read),
        cmocka_unit_test(wrong_tools_are_refused),
        cmocka_unit_test(constraints_are_read),
        cmocka_unit_test(template_variables_are_read),
        cmocka_unit_test(every_number_has_its_bounds),
        cmocka_unit_test(flags_are_true_or_false),
        cmocka_unit_test(values_arrive_where_they_belong),
        cmocka_unit_test(defaults),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(logit_bias),
        cmocka_unit_test(logprobs_of_the_two_dialects),
        cmocka_unit_test(the_rest),
        cmocka_unit_test(objects_of_fields),
        cmocka_unit_test(too_many_containers),
        cmocka_unit_test(lists_and_texts_have_an_end),
        cmocka_unit_test(json_that_is_none),
        cmocka_unit_test(messages_do_not_quote_the_body),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(depth_bombs_are_refused_before_parsing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
