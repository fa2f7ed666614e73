/*
 * The output parser: what each family writes, fed in pieces of every size. The parts are written
 * down as  T<content>  R<reasoning>  C<name|arguments>  with "!" where a call has no end; the same
 * must come out of every division into pieces.
 */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "api/outparse.h"
#include "base/buf.h"
#include "oom.h"

static const char tools_text[] =
    "[{\"function\":{\"name\":\"get\",\"parameters\":{\"properties\":{\"city\":{\"type\":"
    "\"string\"},"
    "\"days\":{\"type\":\"integer\"}}}}},{\"function\":{\"name\":\"put\"}}]";
static json_t *tools;

typedef struct log {
    gs_buf out;
    int last; /* kind, or -1 */
    int32_t n_begun, n_ended;
    bool open;
} log;

static void end_run(log *l) {
    if (l->last == GS_PART_TEXT || l->last == GS_PART_REASONING)
        gs_buf_char(&l->out, '>');
    if (l->open)
        gs_buf_str(&l->out, "!>");
    l->open = false;
    l->last = -1;
}

static int note(void *arg, const gs_part *part) {
    log *l = arg;
    switch (part->kind) {
    case GS_PART_TEXT:
    case GS_PART_REASONING:
        assert_true(part->n > 0);
        if (l->last != (int)part->kind) {
            end_run(l);
            gs_buf_str(&l->out, part->kind == GS_PART_TEXT ? "T<" : "R<");
        }
        gs_buf_add(&l->out, part->data, part->n);
        break;
    case GS_PART_CALL_BEGIN:
        end_run(l);
        assert_int_equal(part->call, l->n_begun++);
        gs_buf_str(&l->out, "C<");
        gs_buf_add(&l->out, part->data, part->n);
        gs_buf_char(&l->out, '|');
        l->open = true;
        break;
    case GS_PART_CALL_ARGS:
        assert_true(l->open && part->call == l->n_begun - 1);
        gs_buf_add(&l->out, part->data, part->n);
        break;
    case GS_PART_CALL_END:
        assert_true(l->open && part->call == l->n_begun - 1);
        l->open = false;
        gs_buf_char(&l->out, '>');
        break;
    }
    l->last = (int)part->kind;
    return 0;
}

typedef struct parse_case {
    const char *format, *text, *want;
    int flags;
} parse_case;

enum { NO_TOOLS = 1, REASONS = 2, BARE = 4 };

/* Whole characters at a time, as the detokeniser gives them. */
static size_t piece_end(const char *s, size_t n, size_t from, size_t size) {
    size_t end = from + size < n ? from + size : n;
    while (end < n && ((unsigned char)s[end] & 0xC0) == 0x80)
        end++;
    return end;
}

static void parse(const parse_case *c, size_t size, log *l) {
    gs_outparse p;
    gs_outparse_config cfg = {.format = gs_out_format_find(c->format),
                              .tools = c->flags & NO_TOOLS ? NULL : tools,
                              .bare = (c->flags & BARE) != 0,
                              .in_reasoning = (c->flags & REASONS) != 0};
    assert_non_null(cfg.format);
    *l = (log){.last = -1};
    gs_outparse_init(&p, &cfg, note, l);
    size_t n = strlen(c->text);
    for (size_t at = 0; at < n;) {
        size_t end = piece_end(c->text, n, at, size);
        assert_int_equal(gs_outparse_feed(&p, c->text + at, end - at), 0);
        at = end;
    }
    assert_int_equal(gs_outparse_finish(&p), 0);
    gs_outparse_deinit(&p);
    end_run(l);
    assert_non_null(gs_buf_cstr(&l->out));
}

/* The n-th part is refused. */
static int note_until(void *arg, const gs_part *part) {
    (void)part;
    return --*(int *)arg == 0 ? GS_ERR_CANCELLED : 0;
}

/* What the parser says of the text in such pieces, with a reader that gives up at that part. */
static int parse_until(const parse_case *c, size_t size, int part) {
    gs_outparse p;
    gs_outparse_config cfg = {.format = gs_out_format_find(c->format),
                              .tools = c->flags & NO_TOOLS ? NULL : tools,
                              .bare = (c->flags & BARE) != 0,
                              .in_reasoning = (c->flags & REASONS) != 0};
    int rc = 0;
    const size_t n = strlen(c->text);
    gs_outparse_init(&p, &cfg, note_until, &part);
    for (size_t at = 0, end; rc == 0 && at < n; at = end) {
        end = piece_end(c->text, n, at, size);
        rc = gs_outparse_feed(&p, c->text + at, end - at);
    }
    if (rc == 0)
        rc = gs_outparse_finish(&p);
    gs_outparse_deinit(&p);
    return rc == 0 && part > 0 ? GS_ERR_NOT_FOUND : rc;
}

typedef struct piecewise {
    const parse_case *c;
    size_t size;
} piecewise;

static int parse_again(void *arg) {
    const piecewise *p = arg;
    return parse_until(p->c, p->size, 0);
}

/* Nothing is lost without a word: a reader that gives up, and each allocation that fails. */
static void check_failures(const parse_case *c) {
    static const size_t sizes[] = {1, 7, 100000};
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        int rc, part = 1;
        while ((rc = parse_until(c, sizes[k], part)) != GS_ERR_NOT_FOUND) {
            if (rc != GS_ERR_CANCELLED)
                fail_msg("%s: %s: part %d is refused: %d", c->format, c->text, part, rc);
            part++;
        }
        each_allocation_fails(c->text, parse_again, &(piecewise){c, sizes[k]}, OOM_OWN);
    }
}

static void check(const parse_case *cases, size_t n) {
    int wrong = 0;
    for (size_t i = 0; i < n; i++) {
        check_failures(&cases[i]);
        for (size_t size = strlen(cases[i].text) + 1; size > 0; size--) {
            log l;
            parse(&cases[i], size, &l);
            if (strcmp(l.out.data, cases[i].want) != 0) {
                print_error("%s, pieces of %zu:\n  %s\n  gave %s\n  want %s\n", cases[i].format,
                            size, cases[i].text, l.out.data, cases[i].want);
                wrong++;
                size = 1;
            }
            gs_buf_deinit(&l.out);
        }
    }
    assert_int_equal(wrong, 0);
}

#define N(a) (sizeof(a) / sizeof((a)[0]))
#define ARGS "{\"city\": \"Zürich\", \"days\": [1, {\"a\": \"}\\\"\"}]}"
#define CALL "{\"name\": \"get\", \"arguments\": " ARGS "}"
#define GET  "C<get|" ARGS ">"

static void text_stays_text(void **state) {
    (void)state;
    static const parse_case cases[] = {
        {"generic", "Hello, wörld! \n", "T<Hello, wörld! \n>", 0},
        {"hermes", "a < b <tool", "T<a < b <tool>", 0},
        {"hermes", "<tool_call>" CALL "</tool_call>", "T<<tool_call>" CALL "</tool_call>>",
         NO_TOOLS},
        {"hermes", "<tool_call>none</tool_call> x", "T<<tool_call>none</tool_call> x>", 0},
        {"hermes", "<tool_call>{\"nam\": 1", "T<<tool_call>{\"nam\": 1>", 0},
        {"hermes", "<tool_call>{\"name\": \"a b\", \"arguments\": {}}",
         "T<<tool_call>{\"name\": \"a b\", \"arguments\": {}}>", 0},
        {"hermes", CALL, "T<" CALL ">", 0}, /* needs its mark */
        {"generic", "{\"answer\": 42}", "T<{\"answer\": 42}>", 0},
        {"generic", "{\"name\": \"Bob\", \"arguments\": {}}",
         "T<{\"name\": \"Bob\", \"arguments\": {}}>", 0}, /* no such function */
        {"generic", "{\"name\": \"get\"}", "T<{\"name\": \"get\"}>", 0},
        {"generic", "[1, 2]", "T<[1, 2]>", 0},
        {"generic", "[]", "T<[]>", 0},
        {"generic", "``` x ```", "T<``` x ```>", 0},
        {"generic", "```json\n{\"a\": 1}\n```", "T<```json\n{\"a\": 1}\n```>", 0},
        {"mistral", "[TOOL_CALLS] x", "T<[TOOL_CALLS] x>", 0},
        {"mistral-args", "[TOOL_CALLS]get it", "T<[TOOL_CALLS]get it>", 0},
        {"qwen-tags", "<function=get> x", "T<<function=get> x>", 0},
        {"functionary", "Hello", "T<Hello>", 0},
        {"functionary", "all\nHello\n", "T<Hello\n>", NO_TOOLS},
        {"functionary", "über\n{}", "T<über\n{}>", 0},
        {"gpt-oss", "plain", "T<plain>", 0},
    };
    check(cases, N(cases));
}

static void calls_of_each_family(void **state) {
    (void)state;
    static const parse_case cases[] = {
        {"hermes", "<tool_call>\n" CALL "\n</tool_call>", GET, 0},
        {"hermes",
         "Let me see.\n\n<tool_call>\n" CALL "\n</tool_call>\n<tool_call>" CALL "</tool_call>",
         "T<Let me see.>" GET GET, 0},
        {"hermes", "<tool_call>" CALL "</tool_call>\nDone.", GET "T<Done.>", 0},
        {"hermes", "<tool_call>" CALL "\n" CALL "</tool_call>", GET GET, 0},
        {"hermes", "<tool_call>{\"arguments\": " ARGS ", \"name\": \"get\"}</tool_call>", GET, 0},
        {"hermes", "<tool_call>{\"name\": \"put\"}</tool_call>", "C<put|{}>", 0},
        {"hermes", "<tool_call>{\"name\": \"put\", \"arguments\": null}</tool_call>", "C<put|{}>",
         0},
        {"hermes", "<tool_call>{\"arguments\": null, \"name\": \"put\"}</tool_call>", "C<put|{}>",
         0},
        {"hermes", "<tool_call>{\"name\": \"put\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
         "C<put|{\"a\": 1}>", 0},
        {"hermes", "<tool_call>{\"type\": \"function\", \"function\": " CALL "}</tool_call>", GET,
         0},
        {"hermes", "<tool_call>{\"name\": \"get\", \"arguments\": {\"city\": \"Z",
         "C<get|{\"city\": \"Z!>", 0},
        {"hermes", "<tool_call>{\"name\": \"get\", \"arguments\": {\"city\": Z}}",
         "C<get|{\"city\": !>T<Z}}>", 0},
        {"llama3", "{\"name\": \"get\", \"parameters\": " ARGS "}", GET, 0},
        {"llama3",
         "<|python_tag|>{\"type\": \"function\", \"name\": \"get\", \"parameters\": " ARGS
         "}; {\"name\": \"put\", \"parameters\": {}}",
         GET "C<put|{}>", 0},
        {"generic", "```json\n" CALL "\n```", GET, 0},
        {"generic", "[" CALL ",\n " CALL "]\n", GET GET, 0},
        {"hermes", CALL, GET, BARE},
        {"mistral", "[TOOL_CALLS][" CALL ", " CALL "]", GET GET, 0},
        {"mistral", "Text [TOOL_CALLS] [" CALL "]", "T<Text>" GET, 0},
        {"mistral", "[TOOL_CALLS][" CALL "],;[" CALL "]", GET GET, 0},
        {"mistral-args", "[TOOL_CALLS]get[ARGS]" ARGS "[TOOL_CALLS]put[ARGS]{}", GET "C<put|{}>",
         0},
        {"deepseek",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n" ARGS
         "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>put\n```json\n{}\n``"
         "`"
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         GET "C<put|{}>", 0},
        {"deepseek-3.1",
         "On it.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>" ARGS
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         "T<On it.>" GET, 0},
        {"functionary", "all\nI look.\n>>>get\n" ARGS, "T<I look.>" GET, 0},
        {"functionary", "get\n" ARGS, GET, 0},
        {"functionary-tags", "<function=get>" ARGS "</function>", GET, 0},
        {"kimi",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|"
         ">" ARGS "<|tool_call_end|><|tool_calls_section_end|>",
         GET, 0},
        {"command-r",
         "<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n {\"tool_call_id\": \"0\", "
         "\"tool_name\": \"get\", \"parameters\": " ARGS "}\n]<|END_ACTION|>",
         "R<Hm.>" GET, 0},
        {"granite", "<|tool_call|>[" CALL "]", GET, 0},
        {"nemotron", "<TOOLCALL>[" CALL "]</TOOLCALL>", GET, 0},
        {"firefunction", " functools[" CALL "]", GET, 0},
        {"tool-calls", "<tool_calls>\n" CALL "\n" CALL "\n</tool_calls>", GET GET, 0},
        {"qwen-tags",
         "<tool_call>\n<function=get>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n"
         "</parameter>\n</function>\n</tool_call>",
         "C<get|{\"city\":\"12\",\"days\":3}>", 0},
        {"qwen-tags", "<function=put>\n</function>", "C<put|{}>", 0},
        {"seed",
         "<seed:think>a</seed:think><seed:tool_call><function=get><parameter=city>B\"\n"
         "</parameter></function></seed:tool_call>",
         "R<a>C<get|{\"city\":\"B\\\"\"}>", 0},
        {"glm",
         "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days"
         "</arg_key><arg_value>[1]</arg_value>\n</tool_call>",
         "C<get|{\"city\":\"Bern\",\"days\":[1]}>", 0},
        {"invoke",
         "<minimax:tool_call>\n<invoke name=\"get\">\n<parameter name=\"city\">Bern</parameter>\n"
         "</invoke>\n</minimax:tool_call>",
         "C<get|{\"city\":\"Bern\"}>", 0},
        {"dsml",
         "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get\">\n<｜DSML｜parameter "
         "name=\"days\" "
         "string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
         "C<get|{\"days\":2}>", 0},
        {"gpt-oss",
         "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
         "to=functions.get <|constrain|>json<|message|>" ARGS "<|call|>",
         "R<Hm.>" GET, 0},
        {"gpt-oss", "<|channel|>final<|message|>Answer", "T<Answer>", 0},
        {"gpt-oss", " to=functions.get<|channel|>commentary json<|message|>{\"a\": x}<|call|>",
         "C<get|{\"a\": !>", 0},
    };
    check(cases, N(cases));
}

static void reasoning_is_split_off(void **state) {
    (void)state;
    static const parse_case cases[] = {
        {"hermes", "<think>\nHm, 1 < 2.\n</think>\n\nYes.", "R<Hm, 1 < 2.>T<Yes.>", 0},
        {"hermes", "<think>\n\n</think>\n\nYes.", "T<Yes.>", NO_TOOLS},
        {"hermes", "Hm.\n</think>Yes.", "R<Hm.>T<Yes.>", REASONS},
        {"hermes", "Hm.", "R<Hm.>", REASONS},
        {"hermes", "\n<think>a</think><tool_call>" CALL, "R<a>" GET, 0},
        {"hermes", "Say <think> now", "T<Say <think> now>", 0},
        {"hermes", "<thin", "T<<thin>", 0},
        {"hermes", "Hm.</thi", "R<Hm.</thi>", REASONS},
        {"hermes", "", "", REASONS},
        {"mistral-args", "[THINK]a[/THINK]b", "R<a>T<b>", 0},
        {"generic", "<think>a", "R<a>", 0},
    };
    check(cases, N(cases));
}

#define LONG_NAME "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" /* 65 */
#define PUT       "{\"name\": \"put\", \"arguments\": "
#define BEGIN     "<｜tool▁call▁begin｜>"

/* A call in JSON: members in another order, twice, of other types, and where it breaks off. */
static void calls_in_odd_json(void **state) {
    (void)state;
    static const parse_case cases[] = {
        {"hermes", "<tool_call>{\"function\": \"put\", \"arguments\": {}}", "C<put|{}>", 0},
        {"hermes", "<tool_call>{\"name\": \"put\", \"function\": \"get\", \"arguments\": {}}",
         "C<put|{}>", 0},
        {"hermes", "<tool_call>" PUT "{}, \"parameters\": {\"a\": 1}}", "C<put|{}!>T<{\"a\": 1}}>",
         0},
        {"hermes", "<tool_call>" PUT "{}, \"name\": \"a b\", \"c\": 1}", "C<put|{}!>T<, \"c\": 1}>",
         0},
        {"hermes", "<tool_call>" PUT "{}, \"function\": 7}", "C<put|{}!>T<7}>", 0},
        {"hermes", "<tool_call>{\"name\": 7}", "T<<tool_call>{\"name\": 7}>", 0},
        {"hermes", "<tool_call>" PUT "7}", "T<<tool_call>" PUT "7}>", 0},
        {"hermes", "<tool_call>{\"arguments\": {}}", "T<<tool_call>{\"arguments\": {}}>", 0},
        {"hermes", "<tool_call>{\"name\": \"get\" x", "T<<tool_call>{\"name\": \"get\" x>", 0},
        {"hermes", "<tool_call>{\"name\": \"" LONG_NAME "\"}",
         "T<<tool_call>{\"name\": \"" LONG_NAME "\"}>", 0},
        {"hermes", "<tool_call>{\"name\": \"\"}", "T<<tool_call>{\"name\": \"\"}>", 0},
        {"hermes", "<tool_call>[[" CALL "]]", "T<<tool_call>[[" CALL "]]>", 0},
        {"hermes", "<tool_call>" CALL "\n<tool_call>no", GET "T<<tool_call>no>", 0},
        {"hermes", "<think>a</think>\n<tool_call>no", "R<a>T<<tool_call>no>", 0},
        {"mistral", "[TOOL_CALLS][" CALL ", x", GET "T<x>", 0},
        {"mistral", "[TOOL_CALLS][" CALL ", ", GET, 0},
        {"llama3", "{\"name\": \"put\", \"parameters\": {}, \"why\": 1}", "C<put|{}>", 0},
        {"llama3", "{\"name\": \"put\", \"why\": 1, \"parameters\": {}}",
         "T<{\"name\": \"put\", \"why\": 1, \"parameters\": {}}>", 0},
        {"llama3", "{\"id\": \"1\", \"name\": \"get\", \"parameters\": " ARGS "}", GET, 0},
        {"generic", CALL "\n\nSo ``` it is", GET "T<So ``` it is>", 0},
    };
    check(cases, N(cases));
}

/* Arguments as a string that holds an object, or that does not. */
static void arguments_in_strings(void **state) {
    (void)state;
    static const char *const bad[] = {
        "\"x\"",       "\"{\\\"a\\\": 1} x\"", "\"{\\\"a\\\": x}\"", "\"{\"",
        "\"\\ud800\"", "\"{\\u0000}\"",        "\"[1, 2]\"",         "\"\""};
    static const parse_case cases[] = {
        {"hermes", "<tool_call>" PUT "\" {\\\"a\\\": [1]} \"}", "C<put| {\"a\": [1]} >", 0},
    };
    check(cases, N(cases));
    for (size_t i = 0; i < N(bad); i++) {
        char text[200], want[210];
        snprintf(text, sizeof(text), "<tool_call>" PUT "%s}", bad[i]);
        snprintf(want, sizeof(want), "T<%s>", text);
        check(&(parse_case){"hermes", text, want, 0}, 1);
    }
}

/* A name and then the arguments. */
static void odd_names(void **state) {
    (void)state;
    static const parse_case cases[] = {
        {"mistral-args", "[TOOL_CALLS]", "T<[TOOL_CALLS]>", 0},
        {"mistral-args", "[TOOL_CALLS][ARGS]{}", "T<[TOOL_CALLS][ARGS]{}>", 0},
        {"mistral-args", "[TOOL_CALLS]" LONG_NAME "[ARGS]{}",
         "T<[TOOL_CALLS]" LONG_NAME "[ARGS]{}>", 0},
        {"mistral-args", "[TOOL_CALLS]" LONG_NAME LONG_NAME "[ARGS]{}",
         "T<[TOOL_CALLS]" LONG_NAME LONG_NAME "[ARGS]{}>", 0},
        {"mistral-args", "[TOOL_CALLS]get[ARGS]x", "T<[TOOL_CALLS]get[ARGS]x>", 0},
        {"mistral-args", "[TOOL_CALLS]get[ARGS] ", "T<[TOOL_CALLS]get[ARGS] >", 0},
        {"mistral-args", "[TOOL_CALLS]get[ARGS]```js", "T<[TOOL_CALLS]get[ARGS]```js>", 0},
        {"mistral-args", "[TOOL_CALLS]get[ARGS]{x", "C<get|{!>T<x>", 0},
        {"mistral-args", "[TOOL_CALLS]get[ARGS]{\"a\": ", "C<get|{\"a\": !>", 0},
        {"mistral-args", "[TOOL_CALLS]get [ARGS]{}", "C<get|{}>", 0},
        {"deepseek", BEGIN "function", "T<" BEGIN "function>", 0},
        {"deepseek", BEGIN "get\n```json\n{}\n```", "C<get|{}>", 0},
        {"deepseek", BEGIN "a tool of another kind\n{}", "T<" BEGIN "a tool of another kind\n{}>",
         0},
        {"kimi", "<|tool_call_begin|>get:0<|tool_call_argument_begin|>{}", "C<get:0|{}>", 0},
        {"kimi", "<|tool_call_begin|>functions.get<|tool_call_argument_begin|>{}", "C<get|{}>", 0},
        {"functionary", "", "", 0},
        {"functionary", "puts\n{}", "T<puts\n{}>", 0},
        {"functionary", "any\n{}", "T<any\n{}>", 0},
    };
    check(cases, N(cases));
}

/* Arguments between tags: what their values may be, and where they end early. */
static void odd_tags(void **state) {
    (void)state;
    static const parse_case cases[] = {
        {"qwen-tags", "<function=get><parameter=city></parameter></function>",
         "C<get|{\"city\":\"\"}>", 0},
        {"qwen-tags", "<function=get><parameter=other>12</parameter><parameter=a\"b>ü</parameter>",
         "C<get|{\"other\":12,\"a\\\"b\":\"ü\"!>", 0},
        {"qwen-tags", "<function=unknown><parameter=city>12</parameter></function>",
         "C<unknown|{\"city\":12}>", 0},
        {"qwen-tags", "<function=get>", "T<<function=get>>", 0},
        {"qwen-tags", "<function=get> </fun", "T<<function=get> </fun>", 0},
        {"qwen-tags", "<function=get><parameter=city>Bern", "T<<function=get><parameter=city>Bern>",
         0},
        {"qwen-tags", "<function=get><parameter=city>Bern</parameter> so",
         "C<get|{\"city\":\"Bern\"!>T< so>", 0},
        {"dsml", "<｜DSML｜invoke name=\"get\"><｜DSML｜parameter name=\"days\"",
         "T<<｜DSML｜invoke name=\"get\"><｜DSML｜parameter name=\"days\">", 0},
    };
    check(cases, N(cases));
}

/* A tag that is opened and then goes on and on is text long before what is held is full. */
static void endless_tags(void **state) {
    (void)state;
    static const struct {
        const char *format, *begins;
    } cases[] = {
        {"qwen-tags", "<function=get><parameter="},
        {"dsml", "<｜DSML｜invoke name=\"get\"><｜DSML｜parameter name=\"days\""},
    };
    for (size_t i = 0; i < N(cases); i++) {
        gs_outparse p;
        log l = {.last = -1};
        char more[5000];
        memset(more, 'x', sizeof(more));
        gs_outparse_config cfg = {.format = gs_out_format_find(cases[i].format), .tools = tools};
        gs_outparse_init(&p, &cfg, note, &l);
        assert_int_equal(gs_outparse_feed(&p, cases[i].begins, strlen(cases[i].begins)), 0);
        assert_int_equal(l.out.len, 0);
        assert_int_equal(gs_outparse_feed(&p, more, sizeof(more)), 0);
        assert_int_equal(l.out.len, 2 + strlen(cases[i].begins) + sizeof(more));
        gs_outparse_deinit(&p);
        gs_buf_deinit(&l.out);
    }
}

/* gpt-oss: headers that are none, and messages to functions. */
static void odd_channels(void **state) {
    (void)state;
    static const parse_case cases[] = {
        {"gpt-oss", "", "", 0},
        {"gpt-oss", "assist", "", 0},
        {"gpt-oss", "assistance", "T<assistance>", 0},
        {"gpt-oss", "<|channel|>final", "", 0},
        {"gpt-oss", "<|channel|>final<|message|>a<|en", "T<a<|en>", 0},
        {"gpt-oss", "<|channel|>final<|message|><|end|>", "", 0},
        {"gpt-oss", " to=functions.get<|message|>" ARGS "<|call|>", "T<" ARGS ">", NO_TOOLS},
        {"gpt-oss", " to=functions.get<|message|>" ARGS, GET, 0},
        {"gpt-oss", " to=functions.get<|message|> \n" ARGS " \n<|call|>", GET, 0},
        {"gpt-oss", " to=functions.get<|message|>x<|call|>", "C<get|!>", 0},
        {"gpt-oss", " to=functions.g\"t<|message|>{}", "T<{}>", 0},
        {"gpt-oss", " to=functions.<|message|>{}", "T<{}>", 0},
        {"gpt-oss", " to=functions.get<|message|>{\"a\": [", "C<get|{\"a\": [!>", 0},
    };
    check(cases, N(cases));
    /* A mark that opens a header which goes on for ever is an answer. */
    char text[600], want[610];
    memset(text, '<', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    snprintf(want, sizeof(want), "T<%s>", text);
    check(&(parse_case){"gpt-oss", text, want, 0}, 1);
    memcpy(text + 400, "<|message|>", 11);
    snprintf(want, sizeof(want), "T<%s>", text);
    check(&(parse_case){"gpt-oss", text, want, 0}, 1);
}

/* Names are C's strings further on; and a zero is none of the marks between two calls. */
static void zero_bytes(void **state) {
    (void)state;
    static const struct {
        const char *format, *text;
        size_t n;
        const char *want;
        size_t n_want;
    } cases[] = {
#define ZEROS(format, text, want) {format, text, sizeof(text) - 1, want, sizeof(want) - 1}
        ZEROS("mistral-args", "[TOOL_CALLS]g\0t[ARGS]{}", "T<[TOOL_CALLS]g\0t[ARGS]{}>"),
        ZEROS("mistral", "[TOOL_CALLS][" CALL ",\0[" CALL "]", GET "T<\0[" CALL "]>"),
        ZEROS("mistral", "[TOOL_CALLS]" CALL "\0" CALL, GET "T<\0" CALL ">"),
    };
    for (size_t i = 0; i < N(cases); i++)
        for (size_t piece = 1; piece <= cases[i].n; piece += cases[i].n - 1) {
            gs_outparse p;
            log l = {.last = -1};
            gs_outparse_config cfg = {.format = gs_out_format_find(cases[i].format),
                                      .tools = tools};
            gs_outparse_init(&p, &cfg, note, &l);
            assert_int_equal(gs_outparse_feed(&p, cases[i].text, 0), 0);
            for (size_t at = 0; at < cases[i].n; at += piece)
                assert_int_equal(gs_outparse_feed(&p, cases[i].text + at, piece), 0);
            assert_int_equal(gs_outparse_finish(&p), 0);
            end_run(&l);
            assert_int_equal(l.out.len, cases[i].n_want);
            assert_memory_equal(l.out.data, cases[i].want, cases[i].n_want);
            gs_outparse_deinit(&p);
            gs_buf_deinit(&l.out);
        }
}

/* Which tokens of control a format has a use for. */
static void control_tokens_of_formats(void **state) {
    (void)state;
    static const struct {
        const char *format, *token;
        bool known;
    } cases[] = {
        {"gpt-oss", "<|channel|>", true},
        {"gpt-oss", "<|anything|>", true},
        {"hermes", "<think>", true},
        {"hermes", "</think>", true},
        {"hermes", "</tool_call>", true},
        {"hermes", "<|im_end|>", false},
        {"hermes", "", false},
        {"hermes", "<|a control token whose spelling is longer than any mark of any format|>",
         false},
        {"deepseek", "<｜tool▁sep｜>", true},
        {"deepseek", "<｜tool▁calls▁begin｜>", true},
        {"command-r", "<|START_RESPONSE|>", true},
        {"command-r", "<|START_THINKING|>", true},
        {NULL, "<think>", false},
    };
    for (size_t i = 0; i < N(cases); i++) {
        gs_outparse p;
        log l = {.last = -1};
        gs_outparse_config cfg = {0};
        cfg.format = cases[i].format ? gs_out_format_find(cases[i].format) : NULL;
        gs_outparse_init(&p, &cfg, note, &l);
        assert_int_equal(gs_outparse_control(&p, cases[i].token, strlen(cases[i].token)), 0);
        if ((p.held.len + l.out.len > 0 || p.state != 0) != cases[i].known)
            fail_msg("%s: %s", cases[i].format ? cases[i].format : "none", cases[i].token);
        gs_outparse_deinit(&p);
        gs_buf_deinit(&l.out);
    }
    log l = {.last = -1};
    gs_outparse p;
    gs_outparse_init(&p, &(gs_outparse_config){0}, note, &l);
    assert_int_equal(gs_outparse_feed(&p, "<think>a", 8), 0);
    assert_int_equal(gs_outparse_finish(&p), 0);
    end_run(&l);
    assert_string_equal(gs_buf_cstr(&l.out), "T<<think>a>"); /* without a format all is text */
    gs_buf_deinit(&l.out);
}

static void control_tokens_are_marks_or_nothing(void **state) {
    (void)state;
    gs_outparse p;
    log l = {.last = -1};
    gs_outparse_config cfg = {.format = gs_out_format_find("mistral-args"), .tools = tools};
    gs_outparse_init(&p, &cfg, note, &l);
    assert_int_equal(gs_outparse_control(&p, "<s>", 3), 0);
    assert_int_equal(gs_outparse_feed(&p, "a", 1), 0);
    assert_int_equal(gs_outparse_control(&p, "[TOOL_CALLS]", 12), 0);
    assert_int_equal(gs_outparse_feed(&p, "get", 3), 0);
    assert_int_equal(gs_outparse_control(&p, "[ARGS]", 6), 0);
    assert_int_equal(gs_outparse_feed(&p, "{}", 2), 0);
    assert_int_equal(gs_outparse_finish(&p), 0);
    end_run(&l);
    assert_string_equal(gs_buf_cstr(&l.out), "T<a>C<get|{}>");
    gs_buf_deinit(&l.out);
    gs_outparse_deinit(&p);
}

/* Arguments are told long before the call ends, text before the answer does. */
static void parts_come_early(void **state) {
    (void)state;
    gs_outparse p;
    log l = {.last = -1};
    gs_outparse_config cfg = {.format = gs_out_format_find("hermes"), .tools = tools};
    gs_outparse_init(&p, &cfg, note, &l);
    gs_outparse_feed(&p, "Hello", 5);
    assert_string_equal(gs_buf_cstr(&l.out), "T<Hello");
    const char *more = "<tool_call>{\"name\": \"get\", \"arguments\": {\"ci";
    gs_outparse_feed(&p, more, strlen(more));
    assert_string_equal(gs_buf_cstr(&l.out), "T<Hello>C<get|{\"ci");
    gs_outparse_deinit(&p);
    gs_buf_deinit(&l.out);
}

static void what_never_ends_is_text(void **state) {
    (void)state;
    gs_outparse p;
    log l = {.last = -1};
    gs_outparse_config cfg = {.format = gs_out_format_find("qwen-tags"), .tools = tools};
    gs_outparse_init(&p, &cfg, note, &l);
    const char *start = "<function=get><parameter=city>";
    gs_outparse_feed(&p, start, strlen(start));
    char chunk[4096];
    memset(chunk, 'x', sizeof(chunk));
    for (size_t n = 0; n < GS_OUT_MAX_HELD + 2 * sizeof(chunk); n += sizeof(chunk)) {
        assert_int_equal(gs_outparse_feed(&p, chunk, sizeof(chunk)), 0);
        assert_true(p.held.len <= GS_OUT_MAX_HELD);
    }
    assert_int_equal(gs_outparse_finish(&p), 0);
    assert_int_equal(l.out.len, 2 + strlen(start) + GS_OUT_MAX_HELD + 2 * sizeof(chunk));
    gs_outparse_deinit(&p);
    gs_buf_deinit(&l.out);
}

static void families_by_their_templates(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"{% if tools %}<tool_call>", "hermes"},
        {"<tool_call><function=a><parameter=b>", "qwen-tags"},
        {"[TOOL_CALLS]", "mistral"},
        {"[TOOL_CALLS] x [ARGS]", "mistral-args"},
        {"<|start_header_id|> <|python_tag|>", "llama3"},
        {"<｜tool▁sep｜> ```json", "deepseek"},
        {"<|channel|> <|message|>", "gpt-oss"},
        {"{{ messages }}", "generic"},
    };
    for (size_t i = 0; i < N(rows); i++)
        assert_string_equal(gs_out_format_name(gs_out_format_detect(rows[i][0])), rows[i][1]);
    assert_null(gs_out_format_find("none"));
    const gs_out_format *f = gs_out_format_find("hermes");
    assert_true(gs_out_prompt_reasons(f, "x<think>\n", 9));
    assert_false(gs_out_prompt_reasons(f, "<think>x", 8));
    assert_false(gs_out_prompt_reasons(f, "", 0));
    assert_false(gs_out_prompt_reasons(gs_out_format_find("gpt-oss"), "x<think>", 8));
    /* Where an answer can't begin with a bare call, the generic format reads one. */
    static const char *const bare[][2] = {
        {"hermes", "hermes"}, {"gpt-oss", "generic"}, {"functionary", "generic"}};
    for (size_t i = 0; i < N(bare); i++)
        assert_string_equal(
            gs_out_format_name(gs_out_format_with_bare(gs_out_format_find(bare[i][0]))),
            bare[i][1]);
}

static void only_json_is_json(void **state) {
    (void)state;
    static const char *const good[] = {
        "{}",    " [ ]",        "{\"a\":-0.5e+10,\"b\":[true,false,null,0,\"\\u00fc\\n\"]}",
        "\"x\"", "[[],{},[1]]", "\t\r\n[0E5,-1e-2,10.25E+3 ,\r\"\\uABcf\"]"};
    static const char *const bad[] = {
        "1",          "{a}",           "{\"a\"}",       "{\"a\":}", "[1,]",
        "{\"a\":1,}", "[01]",          "[1.]",          "[.5]",     "[1e]",
        "[tru ]",     "[\"\\x\"]",     "[\"\n\"]",      "[}",       "{]",
        "[1 2]",      "[-]",           "[\"\\u12g4\"]", "[+1]",     "]",
        "[1e+]",      "[1e5.]",        "[00]",          "[1.5.5]",  "[\"\\u12 4\"]",
        "{\"a\" 1}",  "{\"a\"\t:\n1]", "[\"\x01\"]"};
    for (size_t i = 0; i < N(good); i++) {
        gs_jsonscan s = {0};
        gs_json_event ev = GS_JSON_MORE;
        for (size_t k = 0; good[i][k]; k++) {
            assert_int_not_equal(ev, GS_JSON_DONE);
            ev = gs_jsonscan_byte(&s, good[i][k]);
        }
        if (ev != GS_JSON_DONE)
            fail_msg("%s", good[i]);
        assert_int_equal(gs_jsonscan_byte(&s, ' '), GS_JSON_BAD);
    }
    for (size_t i = 0; i < N(bad); i++) {
        gs_jsonscan s = {0};
        gs_json_event ev = GS_JSON_MORE;
        for (size_t k = 0; bad[i][k] && ev != GS_JSON_BAD; k++)
            ev = gs_jsonscan_byte(&s, bad[i][k]);
        if (ev != GS_JSON_BAD)
            fail_msg("%s", bad[i]);
    }
}

int main(void) {
    tools = json_loads(tools_text, 0, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_stays_text),
        cmocka_unit_test(calls_of_each_family),
        cmocka_unit_test(reasoning_is_split_off),
        cmocka_unit_test(calls_in_odd_json),
        cmocka_unit_test(arguments_in_strings),
        cmocka_unit_test(odd_names),
        cmocka_unit_test(odd_tags),
        cmocka_unit_test(endless_tags),
        cmocka_unit_test(odd_channels),
        cmocka_unit_test(zero_bytes),
        cmocka_unit_test(control_tokens_of_formats),
        cmocka_unit_test(control_tokens_are_marks_or_nothing),
        cmocka_unit_test(parts_come_early),
        cmocka_unit_test(what_never_ends_is_text),
        cmocka_unit_test(families_by_their_templates),
        cmocka_unit_test(only_json_is_json),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(tools);
    return rc;
}
