/* OpenAI's responses: answers as output items, whole and as named events; the route. */
#include "api/responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/blocks.h"
#include "base/clock.h"
#include "base/err.h"

static void key_str(gs_jsonw *w, const char *key, const char *value) {
    gs_jsonw_key(w, key);
    if (value)
        gs_jsonw_str(w, value);
    else
        gs_jsonw_null(w);
}

static void key_int(gs_jsonw *w, const char *key, int64_t value) {
    gs_jsonw_key(w, key);
    gs_jsonw_int(w, value);
}

static void key_text(gs_jsonw *w, const char *key, gs_str text) {
    gs_jsonw_key(w, key);
    gs_jsonw_strn(w, text.data, text.len);
}

static void key_empty_array(gs_jsonw *w, const char *key) {
    gs_jsonw_key(w, key);
    gs_jsonw_arr(w);
    gs_jsonw_end_arr(w);
}

/* A field of the request as it came, else what is given: JSON, or NULL for null. */
static void key_note(gs_jsonw *w, const gs_req *r, const char *key, const char *otherwise) {
    const json_t *v = json_object_get(r->note, key);
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    const char *json = text ? text : otherwise ? otherwise : "null";
    w->out->failed |= v && !text;
    gs_jsonw_key(w, key);
    gs_jsonw_raw(w, json, strlen(json));
    free(text);
}

/* ---- Items ----------------------------------------------------------------------------------- */

/* Ids are the response's with a prefix and the item's number. */
static void key_item_id(gs_jsonw *w, const char *key, const gs_req *r, const gs_block *b,
                        int32_t index) {
    const char *prefix = b->kind == GS_PART_TEXT        ? "msg"
                         : b->kind == GS_PART_REASONING ? "rs"
                                                        : "fc";
    char id[64];
    snprintf(id, sizeof(id), "%s%s_%d", prefix, strchr(r->id, '_'), index);
    key_str(w, key, id);
}

/* A content part with its text so far. */
static void content_part(gs_jsonw *w, const gs_block *b, gs_str text) {
    gs_jsonw_obj(w);
    key_str(w, "type", b->kind == GS_PART_TEXT ? "output_text" : "reasoning_text");
    key_text(w, "text", text);
    if (b->kind == GS_PART_TEXT) {
        key_empty_array(w, "annotations");
        key_empty_array(w, "logprobs");
    }
    gs_jsonw_end_obj(w);
}

/* begun: as it is announced, without what it will hold. */
static void item(gs_jsonw *w, const gs_req *r, const gs_choice *c, int32_t index, bool begun) {
    const gs_block *b = &r->blocks.v[index];
    bool cut = b->kind == GS_PART_CALL_BEGIN ? !c->calls[b->call].ended
                                             : index == r->blocks.n - 1 && c->finish_reason &&
                                                   strcmp(c->finish_reason, "length") == 0;
    gs_str text = begun ? (gs_str){"", 0} : gs_block_text(c, b);
    gs_jsonw_obj(w);
    key_item_id(w, "id", r, b, index);
    key_str(w, "type",
            b->kind == GS_PART_TEXT        ? "message"
            : b->kind == GS_PART_REASONING ? "reasoning"
                                           : "function_call");
    key_str(w, "status", begun ? "in_progress" : cut ? "incomplete" : "completed");
    if (b->kind == GS_PART_CALL_BEGIN) {
        key_str(w, "call_id", c->calls[b->call].id);
        key_str(w, "name", c->calls[b->call].name.data);
        key_text(w, "arguments", text);
    } else {
        if (b->kind == GS_PART_TEXT)
            key_str(w, "role", "assistant");
        else
            key_empty_array(w, "summary");
        gs_jsonw_key(w, "content");
        gs_jsonw_arr(w);
        if (!begun)
            content_part(w, b, text);
        gs_jsonw_end_arr(w);
    }
    gs_jsonw_end_obj(w);
}

/* ---- The response ---------------------------------------------------------------------------- */

static bool incomplete(const gs_req *r) {
    const char *reason = r->choices[0].finish_reason;
    return reason && strcmp(reason, "length") == 0;
}

static void usage(gs_jsonw *w, const gs_req *r) {
    int64_t input = (int64_t)gs_req_n_prompt(r, 0), output = r->choices[0].n_output;
    gs_jsonw_key(w, "usage");
    gs_jsonw_obj(w);
    key_int(w, "input_tokens", input);
    gs_jsonw_key(w, "input_tokens_details");
    gs_jsonw_obj(w);
    key_int(w, "cached_tokens", r->n_cached);
    gs_jsonw_end_obj(w);
    key_int(w, "output_tokens", output);
    gs_jsonw_key(w, "output_tokens_details");
    gs_jsonw_obj(w);
    key_int(w, "reasoning_tokens", 0);
    gs_jsonw_end_obj(w);
    key_int(w, "total_tokens", input + output);
    gs_jsonw_end_obj(w);
}

static void repeat_fields(gs_jsonw *w, const gs_req *r) {
    key_note(w, r, "instructions", NULL);
    key_note(w, r, "max_output_tokens", NULL);
    key_note(w, r, "metadata", "{}");
    gs_jsonw_key(w, "parallel_tool_calls");
    gs_jsonw_bool(w, r->p.parallel_tool_calls);
    key_note(w, r, "reasoning", "{\"effort\":null,\"summary\":null}");
    gs_jsonw_key(w, "temperature");
    gs_jsonw_num(w, (double)r->p.sampler.temperature);
    key_note(w, r, "text", "{\"format\":{\"type\":\"text\"}}");
    key_note(w, r, "tool_choice", "\"auto\"");
    key_note(w, r, "tools", "[]");
    gs_jsonw_key(w, "top_p");
    gs_jsonw_num(w, (double)r->p.sampler.top_p);
    key_note(w, r, "user", NULL);
}

static void response(gs_jsonw *w, const gs_req *r, bool ended) {
    bool cut = ended && incomplete(r);
    gs_jsonw_obj(w);
    key_str(w, "id", r->id);
    key_str(w, "object", "response");
    key_int(w, "created_at", r->created_s);
    key_str(w, "status", !ended ? "in_progress" : cut ? "incomplete" : "completed");
    gs_jsonw_key(w, "background");
    gs_jsonw_bool(w, false);
    key_str(w, "error", NULL);
    gs_jsonw_key(w, "incomplete_details");
    if (cut)
        gs_jsonw_raw(w, "{\"reason\":\"max_output_tokens\"}", 30);
    else
        gs_jsonw_null(w);
    key_str(w, "model", r->asked_model[0] ? r->asked_model : r->model);
    gs_jsonw_key(w, "output");
    gs_jsonw_arr(w);
    for (int32_t i = 0; ended && i < r->blocks.n; i++)
        item(w, r, &r->choices[0], i, false);
    gs_jsonw_end_arr(w);
    key_str(w, "previous_response_id", NULL);
    key_str(w, "service_tier", "default");
    gs_jsonw_key(w, "store");
    gs_jsonw_bool(w, false);
    key_str(w, "truncation", "disabled");
    repeat_fields(w, r);
    if (ended) {
        usage(w, r);
    } else {
        key_str(w, "usage", NULL);
    }
    gs_jsonw_end_obj(w);
}

/* ---- Streams --------------------------------------------------------------------------------- */

static void event_begin(gs_req *r, gs_jsonw *w, const char *type) {
    gs_buf_clear(&r->out);
    gs_buf_printf(&r->out, "event: %s\ndata: ", type);
    gs_jsonw_init(w, &r->out);
    gs_jsonw_obj(w);
    key_str(w, "type", type);
    key_int(w, "sequence_number", r->blocks.n_events++);
}

static void event_end(gs_req *r, gs_jsonw *w) {
    gs_jsonw_end_obj(w);
    gs_buf_str(&r->out, "\n\n");
    gs_req_write(r);
}

static void response_event(gs_req *r, const char *type, bool ended) {
    gs_jsonw w;
    event_begin(r, &w, type);
    gs_jsonw_key(&w, "response");
    response(&w, r, ended);
    event_end(r, &w);
}

static void stream_start(gs_req *r) {
    response_event(r, "response.created", false);
    response_event(r, "response.in_progress", false);
}

static void item_event(gs_req *r, const gs_choice *c, const char *type, int32_t index, bool begun) {
    gs_jsonw w;
    event_begin(r, &w, type);
    key_int(&w, "output_index", index);
    gs_jsonw_key(&w, "item");
    item(&w, r, c, index, begun);
    event_end(r, &w);
}

/* Where an event belongs. */
static void place(gs_jsonw *w, const gs_req *r, const gs_block *b, int32_t index) {
    key_item_id(w, "item_id", r, b, index);
    key_int(w, "output_index", index);
    if (b->kind != GS_PART_CALL_BEGIN)
        key_int(w, "content_index", 0);
}

static void part_event(gs_req *r, const char *type, const gs_block *b, int32_t index, gs_str text) {
    gs_jsonw w;
    event_begin(r, &w, type);
    place(&w, r, b, index);
    gs_jsonw_key(&w, "part");
    content_part(&w, b, text);
    event_end(r, &w);
}

static void block_open(gs_req *r, gs_choice *c, const gs_block *b, int32_t index) {
    item_event(r, c, "response.output_item.added", index, true);
    if (b->kind != GS_PART_CALL_BEGIN)
        part_event(r, "response.content_part.added", b, index, (gs_str){"", 0});
}

static const char *text_event(const gs_block *b, bool done) {
    if (b->kind == GS_PART_TEXT)
        return done ? "response.output_text.done" : "response.output_text.delta";
    if (b->kind == GS_PART_REASONING)
        return done ? "response.reasoning_text.done" : "response.reasoning_text.delta";
    return done ? "response.function_call_arguments.done"
                : "response.function_call_arguments.delta";
}

static void block_more(gs_req *r, gs_choice *c, const gs_block *b, int32_t index,
                       const gs_part *part) {
    (void)c;
    gs_jsonw w;
    event_begin(r, &w, text_event(b, false));
    place(&w, r, b, index);
    key_text(&w, "delta", (gs_str){part->data, part->n});
    if (b->kind == GS_PART_TEXT)
        key_empty_array(&w, "logprobs");
    event_end(r, &w);
}

static void block_close(gs_req *r, gs_choice *c, const gs_block *b, int32_t index) {
    gs_str text = gs_block_text(c, b);
    gs_jsonw w;
    event_begin(r, &w, text_event(b, true));
    place(&w, r, b, index);
    if (b->kind == GS_PART_CALL_BEGIN)
        key_str(&w, "name", c->calls[b->call].name.data);
    key_text(&w, b->kind == GS_PART_CALL_BEGIN ? "arguments" : "text", text);
    if (b->kind == GS_PART_TEXT)
        key_empty_array(&w, "logprobs");
    event_end(r, &w);
    if (b->kind != GS_PART_CALL_BEGIN)
        part_event(r, "response.content_part.done", b, index, text);
    item_event(r, c, "response.output_item.done", index, false);
}

static const gs_block_events block_events = {block_open, block_more, block_close};

static void stream_delta(gs_req *r, gs_choice *c, const gs_part *part) {
    gs_blocks_part(r, c, part, &block_events);
}

static void stream_finish(gs_req *r, gs_choice *c) {
    gs_blocks_end(r, c, &block_events);
}

static void stream_end(gs_req *r) {
    response_event(r, incomplete(r) ? "response.incomplete" : "response.completed", true);
}

static void stream_error(gs_req *r, const gs_api_error *e) {
    gs_jsonw w;
    event_begin(r, &w, "error");
    key_str(&w, "code", e->name ? e->name : "server_error");
    key_str(&w, "message", e->message);
    key_str(&w, "param", e->param[0] ? e->param : NULL);
    event_end(r, &w);
}

static void whole(gs_req *r, gs_buf *out) {
    gs_jsonw w;
    if (gs_blocks_of_whole(r, &r->choices[0]) != 0)
        out->failed = true;
    gs_jsonw_init(&w, out);
    response(&w, r, true);
}

/* Errors about the schema name this form's field. */
static int name_fields(const json_t *body, gs_gen_params *p, gs_api_error *e) {
    (void)body;
    (void)e;
    if (p->constraint.kind != GS_CONSTRAINT_NONE)
        p->constraint.field = "text.format";
    return 0;
}

static const gs_dialect dialect_responses = {
    .id_prefix = "resp_",
    .call_id_prefix = "call_",
    .stream_type = "text/event-stream",
    .whole_type = "application/json",
    .stream_start = stream_start,
    .stream_delta = stream_delta,
    .stream_finish = stream_finish,
    .stream_end = stream_end,
    .stream_error = stream_error,
    .whole = whole,
    .read = name_fields,
    .alive = ": waiting\n\n",
    .alive_after_ns = 10 * GS_NS_PER_S,
};

/* ---- Route ----------------------------------------------------------------------------------- */

static void post_responses(gs_api *a, gs_http_request *rq, json_t *body) {
    gs_api_error e = {0};
    size_t body_bytes;
    gs_http_body(rq, &body_bytes);
    json_t *in = gs_responses_in(body, a->cfg.model->name, &e);
    json_t *note = in ? gs_responses_note(body) : NULL;
    gs_api_discard(a, body, body_bytes);
    if (in && !note)
        gs_api_fail(&e, GS_ERR_NOMEM, NULL, "Out of memory.");
    if (note) {
        gs_api_start(a, rq, in, note, &dialect_responses, true);
    } else {
        json_decref(in);
        gs_api_reply_error(rq, &e);
    }
}

#define TEXT  "{'type':'string'}"
#define COUNT "{'type':'integer','minimum':0}"

// clang-format off
const gs_field gs_responses_fields[] = {
    GS_ROW_JSON("model", 1, TEXT, "The listed name. Default: the one there is."),
    GS_ROW_NEEDED("input", 1, "{'anyOf':[" TEXT ",{'type':'array','minItems':1,'items':{'type':'object'}}]}", "A text, or items: messages, function_call, function_call_output, reasoning."),
    GS_ROW_JSON("instructions", 1, TEXT, "System message."),
    GS_ROW_JSON("max_output_tokens", 1, "{'type':'integer','minimum':1}", "Longest answer in tokens."),
    GS_ROW_JSON("temperature", 1, "{'type':'number','minimum':0,'maximum':100}", "0 is greedy. Default 1."),
    GS_ROW_JSON("top_p", 1, "{'type':'number','minimum':0,'maximum':1}", "Keep the likeliest tokens that have this probability together."),
    GS_ROW_JSON("stream", 1, "{'type':'boolean'}", "Named events while the answer is made. Default false."),
    GS_ROW_JSON("tools", 1, "{'type':'array','items':{'type':'object'}}", "Functions that the model may call; no tools of OpenAI's servers."),
    GS_ROW_JSON("tool_choice", 1, "{'anyOf':[{'type':'string','enum':['none','auto','required']},{'type':'object'}]}", "none, auto, required, or {type: function, name}."),
    GS_ROW_JSON("parallel_tool_calls", 1, "{'type':'boolean'}", "Whether a required answer may hold several calls. Default true."),
    GS_ROW_JSON("text", 1, "{'type':'object'}", "format: {type: text, json_object, or json_schema with schema}."),
    GS_ROW_JSON("reasoning", 1, "{'type':'object'}", "effort: told to models that know it."),
    GS_ROW_JSON("metadata", 1, "{'type':'object'}", "Repeated in the answer."),
    GS_ROW_JSON("store", 1, "{'type':'boolean'}", "Without effect: nothing is stored."),
    GS_ROW_JSON("user", 1, "{'type':'string','maxLength':127}", "As in chat completions."),
    GS_ROWS_END};

static const gs_route routes[] = {
    {"POST", "/v1/responses", GS_ROUTE_GENERATES, post_responses,
     "Answer a conversation", .fields = gs_responses_fields, .where = 1, .answer = "Response",
     .stream = "text/event-stream"},
    {.path = NULL},
};

static const gs_schema schemas[] = {
    {"Response",
     "{'type':'object','required':['id','object','created_at','status','model','output',"
     "'parallel_tool_calls','tool_choice','tools'],'properties':{'id':" TEXT
     ",'object':{'const':'response'},'created_at':" COUNT ",'status':{'enum':['completed',"
     "'incomplete']},'model':" TEXT ",'output':{'type':'array','items':{'type':'object','required':["
     "'id','type','status'],'properties':{'type':{'enum':['message','reasoning','function_call']}}}},"
     "'usage':{'type':'object','required':['input_tokens','output_tokens','total_tokens']}}}"},
    {NULL, NULL},
};
// clang-format on

const gs_api_part gs_api_part_responses = {"responses", "OpenAI's responses, without a memory.",
                                           routes, schemas};
