/* Messages made fit for templates that take them in another form. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "api/messages.h"
#include "oom.h"
#include "quoted.h"

/* What a message may say about calls; param: refused, naming it. */
static void calls_that_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *msg;
        bool good;
    } cases[] = {
        {"{'role': 'user', 'content': 'x'}", true},
        {"{'tool_calls': null, 'tool_call_id': null, 'name': null}", true},
        {"{'tool_calls': [], 'tool_call_id': 'a', 'name': 'b'}", true},
        {"{'tool_calls': [{'function': {'name': 'f'}}]}", true},
        {"{'tool_calls': [{'id': 'i', 'function': {'name': 'f', 'arguments': '{}'}}]}", true},
        {"{'tool_calls': [{'id': null, 'function': {'name': 'f', 'arguments': {}}}]}", true},
        {"{'tool_calls': [{'function': {'name': 'f', 'arguments': null}}]}", true},
        {"{'tool_call_id': 7}", false},
        {"{'name': {}}", false},
        {"{'tool_calls': 'x'}", false},
        {"{'tool_calls': {}}", false},
        {"{'tool_calls': [7]}", false},
        {"{'tool_calls': [{'function': 'f'}]}", false},
        {"{'tool_calls': [{'function': {'arguments': '{}'}}]}", false},
        {"{'tool_calls': [{'id': 7, 'function': {'name': 'f'}}]}", false},
        {"{'tool_calls': [{'function': {'name': 'f', 'arguments': 7}}]}", false},
        {"{'tool_calls': [{'function': {'name': 'f'}}, {}]}", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gs_api_error e = {0};
        json_t *msg = quoted(cases[i].msg);
        const int rc = gs_messages_check_calls(msg, 3, &e);
        if (rc != (cases[i].good ? 0 : GS_ERR_INVALID))
            fail_msg("%s: %d", cases[i].msg, rc);
        assert_string_equal(e.param, cases[i].good ? "" : "messages[3]");
        json_decref(msg);
    }
}

typedef struct rewrite {
    int how; /* 0: arguments as text; 1: without tools, told in the system message; 2: in the user's
              */
    const char *messages, *want;
} rewrite;

#define TOLD                                                                                       \
    "You can call functions. To call one, answer with this JSON alone:\\n"                         \
    "{\\'name\\': \\'<function>\\', \\'arguments\\': {<its parameters>}}\\n"                       \
    "The result comes with the next message. Answer in words when no function is needed. The "     \
    "functions:\\n{\\'name\\':\\'f\\'}\\n"

// clang-format off
static const rewrite rewrites[] = {
    {0, "[{'role': 'user', 'content': 'x'}, {'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': {'a': 1}}},"
        " {'function': {'name': 'g', 'arguments': 'as it is'}}, {'function': {'name': 'h'}}]}]",
        "[{'role': 'user', 'content': 'x'}, {'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': '{\\'a\\':1}'}},"
        " {'function': {'name': 'g', 'arguments': 'as it is'}}, {'function': {'name': 'h'}}]}]"},
    {1, "[{'role': 'system', 'content': 'be brief'}, {'role': 'user', 'content': 'x'}]",
        "[{'role': 'system', 'content': 'be brief\\n\\n" TOLD "'}, {'role': 'user', 'content': 'x'}]"},
    {1, "[{'role': 'developer', 'content': null}, {'role': 'user', 'content': 'x'}]",
        "[{'role': 'developer', 'content': '\\n\\n" TOLD "'}, {'role': 'user', 'content': 'x'}]"},
    {1, "[{'role': 'user', 'content': 'x'}, {'role': 'system', 'content': 'late'}]",
        "[{'role': 'system', 'content': '" TOLD "'}, {'role': 'user', 'content': 'x'}, {'role': 'system', 'content': 'late'}]"},
    {2, "[{'role': 'system', 'content': 's'}, {'role': 'user', 'content': 'x'}, {'role': 'user', 'content': 'y'}]",
        "[{'role': 'system', 'content': 's'}, {'role': 'user', 'content': '" TOLD "\\nx'}, {'role': 'user', 'content': 'y'}]"},
    {2, "[{'role': 'user', 'content': 'x'}, {'role': 'assistant', 'content': 'so', 'tool_calls': [{'function': {'name': 'f', 'arguments': {'a': 1}}},"
        " {'function': {'name': 'g', 'arguments': 'no JSON'}}, {'function': {'name': 'h', 'arguments': null}}, {'function': {'name': 'i'}}]},"
        " {'role': 'tool', 'content': '1'}, {'role': 'function', 'content': '2'}, {'role': 'assistant', 'content': null,"
        " 'tool_calls': [{'function': {'name': 'f'}}]}, {'role': 'tool', 'content': '3'}]",
        "[{'role': 'user', 'content': '" TOLD "\\nx'}, {'role': 'assistant', 'content': 'so\\n{\\'name\\': \\'f\\', \\'arguments\\': {\\'a\\':1}}"
        "\\n{\\'name\\': \\'g\\', \\'arguments\\': no JSON}\\n{\\'name\\': \\'h\\', \\'arguments\\': {}}\\n{\\'name\\': \\'i\\', \\'arguments\\': {}}'},"
        " {'role': 'user', 'content': 'Result of the function: 1\\n\\nResult of the function: 2'},"
        " {'role': 'assistant', 'content': '{\\'name\\': \\'f\\', \\'arguments\\': {}}'},"
        " {'role': 'user', 'content': 'Result of the function: 3'}]"},
};
// clang-format on
#define N_REWRITES (sizeof(rewrites) / sizeof(rewrites[0]))

static json_t *rewrite_it(const rewrite *r, const json_t *messages, const json_t *tools) {
    return r->how == 0 ? gs_messages_string_arguments(messages)
                       : gs_messages_without_tools(messages, tools, r->how == 1);
}

static void each_rewrite(void **state) {
    (void)state;
    json_t *tools = quoted("[{'type': 'function', 'function': {'name': 'f'}}]");
    for (size_t i = 0; i < N_REWRITES; i++) {
        json_t *messages = quoted(rewrites[i].messages), *before = json_deep_copy(messages);
        json_t *want = quoted(rewrites[i].want);
        json_t *got = rewrite_it(&rewrites[i], messages, tools);
        if (!json_equal(got, want))
            fail_msg("%s became %s", rewrites[i].messages, json_dumps(got, 0));
        assert_true(json_equal(messages, before));
        assert_int_equal(gs_messages_have_calls(messages),
                         strstr(rewrites[i].messages, "tool_calls") != NULL);
        json_decref(got);
        json_decref(want);
        json_decref(before);
        json_decref(messages);
    }
    json_decref(tools);
}

typedef struct rewriting {
    const rewrite *row;
    const json_t *messages, *tools, *want;
} rewriting;

static int rewrite_again(void *arg) {
    const rewriting *r = arg;
    json_t *got = rewrite_it(r->row, r->messages, r->tools);
    const int rc = !got ? GS_ERR_NOMEM : json_equal(got, r->want) ? 0 : GS_ERR_INTERNAL;
    json_decref(got);
    return rc;
}

/* The whole, or nothing: never a conversation with something left out. */
static void without_memory(void **state) {
    (void)state;
    json_t *tools = quoted("[{'type': 'function', 'function': {'name': 'f'}}]");
    for (size_t i = 0; i < N_REWRITES; i++) {
        json_t *messages = quoted(rewrites[i].messages), *want = quoted(rewrites[i].want);
        rewriting r = {&rewrites[i], messages, tools, want};
        each_allocation_fails(rewrites[i].messages, rewrite_again, &r, 0);
        json_decref(messages);
        json_decref(want);
    }
    json_decref(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_are_checked),
        cmocka_unit_test(each_rewrite),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
