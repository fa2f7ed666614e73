/* How /api/chat and /api/generate are answered: one JSON object a line, or one object. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/ollama.h"
#include "base/clock.h"
#include "base/err.h"

void gs_ollama_now(char *out, size_t n) {
    struct timespec now = {0};
    struct tm tm;
    char seconds[32];
    clock_gettime(CLOCK_REALTIME, &now);
    if (!gmtime_r(&now.tv_sec, &tm) ||
        strftime(seconds, sizeof(seconds), "%Y-%m-%dT%H:%M:%S", &tm) == 0)
        seconds[0] = '\0';
    snprintf(out, n, "%s.%09ldZ", seconds, now.tv_nsec);
}

static void key_str(gs_jsonw *w, const char *key, const char *value) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, value);
}

static void key_buf(gs_jsonw *w, const char *key, const char *data, size_t n) {
    gs_jsonw_key(w, key);
    gs_jsonw_strn(w, data ? data : "", n);
}

static void key_int(gs_jsonw *w, const char *key, int64_t value) {
    gs_jsonw_key(w, key);
    gs_jsonw_int(w, value);
}

static bool is_chat(const gs_req *r) {
    return r->dialect == &gs_dialect_ollama_chat;
}

static void head(gs_jsonw *w, const gs_req *r) {
    char now[48];
    gs_ollama_now(now, sizeof(now));
    gs_jsonw_obj(w);
    key_str(w, "model", r->asked_model[0] ? r->asked_model : r->model);
    key_str(w, "created_at", now);
}

/* ---- Messages: in an object of their own for chats, beside the rest for generate ------------ */

static void message_begin(gs_jsonw *w, const gs_req *r) {
    if (!is_chat(r))
        return;
    gs_jsonw_key(w, "message");
    gs_jsonw_obj(w);
    key_str(w, "role", "assistant");
}

static void message_end(gs_jsonw *w, const gs_req *r) {
    if (is_chat(r))
        gs_jsonw_end_obj(w);
}

static void text(gs_jsonw *w, const gs_req *r, const char *data, size_t n) {
    key_buf(w, is_chat(r) ? "content" : "response", data, n);
}

/* Whole calls only: clients read the arguments as an object. */
static void calls(gs_jsonw *w, const gs_choice *c, int32_t from, int32_t to) {
    gs_jsonw_key(w, "tool_calls");
    gs_jsonw_arr(w);
    for (int32_t i = from; i < to; i++) {
        const gs_tool_call *call = &c->calls[i];
        if (!call->ended)
            continue;
        gs_jsonw_obj(w);
        key_str(w, "id", call->id);
        gs_jsonw_key(w, "function");
        gs_jsonw_obj(w);
        key_int(w, "index", i);
        key_str(w, "name", call->name.data);
        gs_jsonw_key(w, "arguments");
        gs_jsonw_raw(w, call->arguments.data, call->arguments.len);
        gs_jsonw_end_obj(w);
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_arr(w);
}

/* What closes an answer. Times in nanoseconds: loading is the request's own preparation here, as
 * the model is always in memory. */
static void done(gs_jsonw *w, const gs_req *r) {
    const gs_choice *c = &r->choices[0];
    int64_t now = gs_now_ns();
    int64_t first = r->first_token_ns ? r->first_token_ns : now;
    int64_t last = r->last_token_ns ? r->last_token_ns : first;
    gs_jsonw_key(w, "done");
    gs_jsonw_bool(w, true);
    key_str(w, "done_reason", strcmp(c->finish_reason, "length") == 0 ? "length" : "stop");
    key_int(w, "total_duration", now - r->began_ns);
    key_int(w, "load_duration", r->submitted_ns - r->began_ns);
    key_int(w, "prompt_eval_count", gs_req_n_prompt(r, 0));
    key_int(w, "prompt_eval_duration", first - r->submitted_ns);
    key_int(w, "eval_count", c->n_output);
    key_int(w, "eval_duration", last - first);
}

static void not_done(gs_jsonw *w) {
    gs_jsonw_key(w, "done");
    gs_jsonw_bool(w, false);
}

/* ---- Streams --------------------------------------------------------------------------------- */

static void line_begin(gs_req *r, gs_jsonw *w) {
    gs_buf_clear(&r->out);
    gs_jsonw_init(w, &r->out);
    head(w, r);
}

static void line_end(gs_req *r, gs_jsonw *w) {
    gs_jsonw_end_obj(w);
    gs_buf_char(&r->out, '\n');
    gs_req_write(r);
}

/* The first line comes with the first part. */
static void stream_start(gs_req *r) {
    (void)r;
}

static void stream_delta(gs_req *r, gs_choice *c, const gs_part *part) {
    gs_jsonw w;
    if (part->kind == GS_PART_CALL_BEGIN || part->kind == GS_PART_CALL_ARGS ||
        (part->kind != GS_PART_CALL_END && part->n == 0))
        return;
    line_begin(r, &w);
    message_begin(&w, r);
    if (part->kind == GS_PART_TEXT) {
        text(&w, r, part->data, part->n);
    } else {
        text(&w, r, "", 0);
        if (part->kind == GS_PART_REASONING)
            key_buf(&w, "thinking", part->data, part->n);
        else
            calls(&w, c, part->call, part->call + 1);
    }
    message_end(&w, r);
    not_done(&w);
    line_end(r, &w);
}

static void stream_finish(gs_req *r, gs_choice *c) {
    (void)r;
    (void)c; /* stream_end says it all: there is one choice */
}

static void stream_end(gs_req *r) {
    gs_jsonw w;
    line_begin(r, &w);
    message_begin(&w, r);
    text(&w, r, "", 0);
    message_end(&w, r);
    done(&w, r);
    line_end(r, &w);
}

static void stream_error(gs_req *r, const gs_api_error *e) {
    gs_buf_clear(&r->out);
    gs_api_error_body(GS_ERRORS_OLLAMA, e, &r->out);
    gs_buf_char(&r->out, '\n');
    gs_req_write(r);
}

/* ---- Whole answers --------------------------------------------------------------------------- */

static void whole(gs_req *r, gs_buf *out) {
    const gs_choice *c = &r->choices[0];
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    head(&w, r);
    message_begin(&w, r);
    text(&w, r, c->text.data, c->text.len);
    if (c->reasoning.len > 0)
        key_buf(&w, "thinking", c->reasoning.data, c->reasoning.len);
    if (c->n_calls > 0)
        calls(&w, c, 0, c->n_calls);
    message_end(&w, r);
    done(&w, r);
    gs_jsonw_end_obj(&w);
}

/* ---- Fields ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(gs_gen_params, member)

// clang-format off
static const gs_field option_fields[] = {
    GS_ROW("temperature", FLOAT, 3, AT(sampler.temperature), 0, 100, "0 is greedy. Default 0.8."),
    GS_ROW("top_k", INT, 3, AT(sampler.top_k), -1, INT32_MAX, "Keep this many of the likeliest tokens. Default 40."),
    GS_ROW("top_p", FLOAT, 3, AT(sampler.top_p), 0, 1, "Keep the likeliest tokens that have this probability together. Default 0.9."),
    GS_ROW("min_p", FLOAT, 3, AT(sampler.min_p), 0, 1, "Keep tokens at least this likely relative to the likeliest. Default 0."),
    GS_ROW("typical_p", FLOAT, 3, AT(sampler.typical_p), 0, 1, "Locally typical sampling. Default 1 (off)."),
    GS_ROW("repeat_penalty", FLOAT, 3, AT(sampler.repeat_penalty), 0.01, 100, "Divides the logits of tokens seen lately. Default 1 (off)."),
    GS_ROW("repeat_last_n", INT, 3, AT(sampler.repeat_last_n), -1, INT32_MAX, "How many tokens the penalty looks back. -1: all. Default 64."),
    GS_ROW("presence_penalty", FLOAT, 3, AT(sampler.presence_penalty), -100, 100, "Subtracted once from the logits of tokens seen lately. Default 0."),
    GS_ROW("frequency_penalty", FLOAT, 3, AT(sampler.frequency_penalty), -100, 100, "Subtracted for each time a token was seen lately. Default 0."),
    GS_ROW("num_predict", INT, 3, AT(max_tokens), -2, INT32_MAX, "Longest answer in tokens. Below 1: what the context leaves, the default."),
    GS_ROW("num_ctx", INT, 3, AT(num_ctx), 0, INT32_MAX, "Cap of prompt and answer together for this request. 0: the model's context, the default."),
    GS_ROW_JSON("stop", 3, "{'anyOf':[{'type':'string','maxLength':256},{'type':'array','maxItems':16,'items':{'type':'string','maxLength':256}}]}", "The answer ends before any of these strings."),
    GS_ROW_JSON("seed", 3, "{'type':'integer','minimum':-9223372036854775808,'maximum':9223372036854775807}", "The same seed and prompt give the same text. -1: random, the default."),
    GS_ROWS_END};

const gs_field gs_ollama_fields[] = {
    GS_ROW_JSON("model", 7, "{'type':'string'}", "The listed name, with or without :latest. Default: the one there is."),
    GS_ROW_JSON("name", 4, "{'type':'string'}", "Older name of model."),
    GS_ROW_JSON("messages", 1, "{'type':'array','items':{'type':'object'}}", "The conversation. Empty: nothing is generated, the model is ready."),
    GS_ROW_JSON("prompt", 2, "{'type':'string'}", "The text to answer, or with raw to continue. Empty: nothing is generated, the model is ready."),
    GS_ROW_JSON("system", 2, "{'type':'string'}", "System message."),
    GS_ROW_JSON("suffix", 2, "{'type':'string'}", "Fill in between prompt and suffix, where the model can."),
    GS_ROW_JSON("raw", 2, "{'type':'boolean'}", "Continue the prompt as it is, without the model's template; control tokens may be spelt."),
    GS_ROW_JSON("stream", 3, "{'type':'boolean'}", "One JSON object a line while the answer is made. Default true."),
    GS_ROW_OBJECT("options", 3, option_fields, "Sampling and limits; others are ignored."),
    GS_ROW_JSON("format", 3, "{'anyOf':[{'type':'string','enum':['json','']},{'type':'object'}]}", "json, or a JSON schema that the answer obeys."),
    GS_ROW_JSON("tools", 3, "{'type':'array','items':{'type':'object'}}", "Functions that the model may call."),
    GS_ROW_JSON("think", 3, "{'anyOf':[{'type':'boolean'},{'type':'string','enum':['high','medium','low','']}]}", "Whether models that can think do so first."),
    GS_ROW_JSON("keep_alive", 3, "{'anyOf':[{'type':'string'},{'type':'number'}]}", "How long the model stays in memory afterwards: seconds or a duration; 0: not at all, negative: for ever."),
    GS_ROWS_END};
// clang-format on

static int read_options(const json_t *body, gs_gen_params *p, gs_api_error *e) {
    const gs_field *options = gs_ollama_fields;
    while (strcmp(options->name, "options") != 0)
        options++;
    const gs_field only[] = {*options, GS_ROWS_END};
    p->sampler.temperature = 0.8f;
    p->sampler.top_k = 40;
    p->sampler.top_p = 0.9f;
    p->max_tokens = -1;
    p->truncate = true;
    if (p->constraint.kind != GS_CONSTRAINT_NONE)
        p->constraint.field = "format";
    p->parse_special = json_is_true(json_object_get(body, "raw"));
    if (gs_fields_read(only, 3, body, p, e) != 0)
        return e->code;
    if (p->sampler.top_k < 0)
        p->sampler.top_k = 0;
    if (p->max_tokens < 1)
        p->max_tokens = -1;
    return 0;
}

/* White space before an object is legal JSON; no newline, since clients read lines. */
#define DIALECT(prefix)                                                                            \
    {                                                                                              \
        .id_prefix = (prefix), .call_id_prefix = "call_", .stream_type = "application/x-ndjson",   \
        .whole_type = "application/json; charset=utf-8", .stream_start = stream_start,             \
        .stream_delta = stream_delta, .stream_finish = stream_finish, .stream_end = stream_end,    \
        .stream_error = stream_error, .whole = whole, .read = read_options, .alive = " ",          \
        .alive_after_ns = 20 * GS_NS_PER_S,                                                        \
    }

const gs_dialect gs_dialect_ollama_chat = DIALECT("chat-");
const gs_dialect gs_dialect_ollama_generate = DIALECT("gen-");
