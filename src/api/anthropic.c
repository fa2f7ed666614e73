/* Anthropic's messages: answers as content blocks, whole and as named events; the routes. */
#include "api/anthropic.h"

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

/* ---- Parts of a message ---------------------------------------------------------------------- */

static const char *stop_sequence(const gs_choice *c) {
    return c->stop.matched ? c->stop.set->text[c->stop.which] : NULL;
}

static const char *stop_reason(const gs_choice *c) {
    if (strcmp(c->finish_reason, "length") == 0)
        return "max_tokens";
    if (strcmp(c->finish_reason, "tool_calls") == 0)
        return "tool_use";
    return c->stop.matched ? "stop_sequence" : "end_turn";
}

static void usage(gs_jsonw *w, const gs_req *r) {
    int32_t output = 0;
    for (int32_t i = 0; i < r->n_choices; i++)
        output += r->choices[i].n_output;
    gs_jsonw_key(w, "usage");
    gs_jsonw_obj(w);
    key_int(w, "input_tokens",
            (int64_t)gs_req_n_prompt(r, 0) - r->n_cached); /* the computed ones */
    key_int(w, "cache_creation_input_tokens", 0);
    key_int(w, "cache_read_input_tokens", r->n_cached);
    key_int(w, "output_tokens", output);
    gs_jsonw_end_obj(w);
}

/* The message's members before its content. */
static void message_head(gs_jsonw *w, const gs_req *r) {
    key_str(w, "id", r->id);
    key_str(w, "type", "message");
    key_str(w, "role", "assistant");
    key_str(w, "model", r->asked_model[0] ? r->asked_model : r->model);
    gs_jsonw_key(w, "content");
}

/* A block with what it holds; streams begin with empty ones. */
static void block(gs_jsonw *w, const gs_choice *c, const gs_block *b, bool empty) {
    gs_str text = empty ? (gs_str){"", 0} : gs_block_text(c, b);
    gs_jsonw_obj(w);
    if (b->kind == GS_PART_TEXT) {
        key_str(w, "type", "text");
        key_text(w, "text", text);
    } else if (b->kind == GS_PART_REASONING) {
        key_str(w, "type", "thinking");
        key_text(w, "thinking", text);
        key_str(w, "signature", "");
    } else {
        const gs_tool_call *call = &c->calls[b->call];
        key_str(w, "type", "tool_use");
        key_str(w, "id", call->id);
        key_str(w, "name", call->name.data);
        gs_jsonw_key(w, "input");
        /* A call that max_tokens cut has no whole arguments to show. */
        if (call->ended && !empty)
            gs_jsonw_raw(w, text.data, text.len);
        else
            gs_jsonw_raw(w, "{}", 2);
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
}

static void event_end(gs_req *r, gs_jsonw *w) {
    gs_jsonw_end_obj(w);
    gs_buf_str(&r->out, "\n\n");
    gs_req_write(r);
}

static void stream_start(gs_req *r) {
    gs_jsonw w;
    event_begin(r, &w, "message_start");
    gs_jsonw_key(&w, "message");
    gs_jsonw_obj(&w);
    message_head(&w, r);
    gs_jsonw_arr(&w);
    gs_jsonw_end_arr(&w);
    key_str(&w, "stop_reason", NULL);
    key_str(&w, "stop_sequence", NULL);
    usage(&w, r);
    gs_jsonw_end_obj(&w);
    event_end(r, &w);
}

static void block_open(gs_req *r, gs_choice *c, const gs_block *b, int32_t index) {
    gs_jsonw w;
    event_begin(r, &w, "content_block_start");
    key_int(&w, "index", index);
    gs_jsonw_key(&w, "content_block");
    block(&w, c, b, true);
    event_end(r, &w);
}

static void block_more(gs_req *r, gs_choice *c, const gs_block *b, int32_t index,
                       const gs_part *part) {
    static const char *const names[][2] = {{"text_delta", "text"},
                                           {"thinking_delta", "thinking"},
                                           {"input_json_delta", "partial_json"}};
    (void)c;
    int kind = b->kind == GS_PART_TEXT ? 0 : b->kind == GS_PART_REASONING ? 1 : 2;
    gs_jsonw w;
    event_begin(r, &w, "content_block_delta");
    key_int(&w, "index", index);
    gs_jsonw_key(&w, "delta");
    gs_jsonw_obj(&w);
    key_str(&w, "type", names[kind][0]);
    key_text(&w, names[kind][1], (gs_str){part->data, part->n});
    gs_jsonw_end_obj(&w);
    event_end(r, &w);
}

static void block_close(gs_req *r, gs_choice *c, const gs_block *b, int32_t index) {
    (void)c;
    (void)b;
    gs_jsonw w;
    event_begin(r, &w, "content_block_stop");
    key_int(&w, "index", index);
    event_end(r, &w);
}

static const gs_block_events block_events = {block_open, block_more, block_close};

static void stream_delta(gs_req *r, gs_choice *c, const gs_part *part) {
    gs_blocks_part(r, c, part, &block_events);
}

static void stream_finish(gs_req *r, gs_choice *c) {
    gs_blocks_end(r, c, &block_events);
}

static void stream_end(gs_req *r) {
    const gs_choice *c = &r->choices[0];
    gs_jsonw w;
    event_begin(r, &w, "message_delta");
    gs_jsonw_key(&w, "delta");
    gs_jsonw_obj(&w);
    key_str(&w, "stop_reason", stop_reason(c));
    key_str(&w, "stop_sequence", stop_sequence(c));
    gs_jsonw_end_obj(&w);
    usage(&w, r);
    event_end(r, &w);
    event_begin(r, &w, "message_stop");
    event_end(r, &w);
}

static void stream_error(gs_req *r, const gs_api_error *e) {
    gs_buf_clear(&r->out);
    gs_buf_str(&r->out, "event: error\ndata: ");
    gs_api_error_body(GS_ERRORS_ANTHROPIC, e, &r->out);
    gs_buf_str(&r->out, "\n\n");
    gs_req_write(r);
}

/* ---- Whole answers --------------------------------------------------------------------------- */

static void whole(gs_req *r, gs_buf *out) {
    const gs_choice *c = &r->choices[0];
    gs_jsonw w;
    if (gs_blocks_of_whole(r, c) != 0)
        out->failed = true;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    message_head(&w, r);
    gs_jsonw_arr(&w);
    for (int32_t i = 0; i < r->blocks.n; i++)
        block(&w, c, &r->blocks.v[i], false);
    gs_jsonw_end_arr(&w);
    key_str(&w, "stop_reason", stop_reason(c));
    key_str(&w, "stop_sequence", stop_sequence(c));
    usage(&w, r);
    gs_jsonw_end_obj(&w);
}

static void whole_count(gs_req *r, gs_buf *out) {
    gs_buf_printf(out, "{\"input_tokens\":%zu}", r->prompts[0].len);
}

/* Errors about the schema name this dialect's field. */
static int name_fields(const json_t *body, gs_gen_params *p, gs_api_error *e) {
    (void)body;
    (void)e;
    if (p->constraint.kind != GS_CONSTRAINT_NONE)
        p->constraint.field = "output_config.format";
    return 0;
}

static const gs_dialect dialect_messages = {
    .id_prefix = "msg_",
    .call_id_prefix = "toolu_",
    .stream_type = "text/event-stream",
    .whole_type = "application/json",
    .stream_start = stream_start,
    .stream_delta = stream_delta,
    .stream_finish = stream_finish,
    .stream_end = stream_end,
    .stream_error = stream_error,
    .whole = whole,
    .read = name_fields,
    .alive = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    .alive_after_ns = 10 * GS_NS_PER_S,
};

static const gs_dialect dialect_count = {
    .id_prefix = "msg_",
    .whole_type = "application/json",
    .whole = whole_count,
    .prompt_only = true,
};

/* ---- Routes ---------------------------------------------------------------------------------- */

static void answer(gs_api *a, gs_http_request *rq, json_t *body, bool count) {
    gs_api_error e = {0};
    size_t body_bytes;
    gs_http_body(rq, &body_bytes);
    json_t *in = gs_anthropic_in(body, count, a->cfg.model->name, &e);
    gs_api_discard(a, body, body_bytes);
    if (!in)
        gs_api_reply_error(rq, &e);
    else
        gs_api_start(a, rq, in, NULL, count ? &dialect_count : &dialect_messages, true);
}

static void post_messages(gs_api *a, gs_http_request *rq, json_t *body) {
    answer(a, rq, body, false);
}

static void post_count(gs_api *a, gs_http_request *rq, json_t *body) {
    answer(a, rq, body, true);
}

#define TEXT  "{'type':'string'}"
#define COUNT "{'type':'integer','minimum':0}"

// clang-format off
const gs_field gs_anthropic_fields[] = {
    GS_ROW_JSON("model", 3, TEXT, "The listed name. Default: the one there is."),
    GS_ROW_NEEDED("messages", 3, "{'type':'array','minItems':1,'items':{'type':'object'}}", "The conversation: roles user and assistant, content as text or blocks."),
    GS_ROW_NEEDED("max_tokens", 1, "{'type':'integer','minimum':1}", "Longest answer in tokens."),
    GS_ROW_JSON("system", 3, "{'anyOf':[" TEXT ",{'type':'array','items':{'type':'object'}}]}", "System message, as text or blocks."),
    GS_ROW_JSON("temperature", 1, "{'type':'number','minimum':0,'maximum':100}", "0 is greedy. Default 1."),
    GS_ROW_JSON("top_p", 1, "{'type':'number','minimum':0,'maximum':1}", "Keep the likeliest tokens that have this probability together."),
    GS_ROW_JSON("top_k", 1, "{'type':'integer','minimum':-1}", "Keep this many of the likeliest tokens."),
    GS_ROW_JSON("stop_sequences", 1, "{'type':'array','maxItems':16,'items':{'type':'string','maxLength':256}}", "The answer ends before any of these strings."),
    GS_ROW_JSON("stream", 1, "{'type':'boolean'}", "Named events while the answer is made. Default false."),
    GS_ROW_JSON("tools", 3, "{'type':'array','items':{'type':'object'}}", "The caller's own tools: name, description, input_schema."),
    GS_ROW_JSON("tool_choice", 3, "{'type':'object'}", "type auto, any, tool (with name) or none."),
    GS_ROW_JSON("thinking", 3, "{'type':'object'}", "type enabled or adaptive: models that can think do. Default: they do not."),
    GS_ROW_JSON("output_config", 1, "{'type':'object'}", "format: {type: json_schema, schema}."),
    GS_ROW_JSON("metadata", 3, "{'type':'object'}", "user_id: as user in OpenAI's dialect."),
    GS_ROWS_END};

static const gs_route routes[] = {
    {"POST", "/v1/messages", GS_ROUTE_GENERATES, post_messages,
     "Answer a conversation", .fields = gs_anthropic_fields, .where = 1,
     .answer = "AnthropicMessage", .stream = "text/event-stream"},
    {"POST", "/v1/messages/count_tokens", GS_ROUTE_MODEL | GS_ROUTE_BODY | GS_ROUTE_USES, post_count,
     "Count a conversation's tokens", .fields = gs_anthropic_fields, .where = 2,
     .answer = "AnthropicCount"},
    {.path = NULL},
};

static const gs_schema schemas[] = {
    {"AnthropicError",
     "{'type':'object','required':['type','error'],'properties':{'type':{'const':'error'},"
     "'error':{'type':'object','required':['type','message'],'properties':{'type':" TEXT ","
     "'message':" TEXT "}}}}"},
    {"AnthropicMessage",
     "{'type':'object','required':['id','type','role','model','content','stop_reason',"
     "'stop_sequence','usage'],'properties':{'id':" TEXT ",'type':{'const':'message'},"
     "'role':{'const':'assistant'},'model':" TEXT ",'content':{'type':'array','items':{"
     "'type':'object','required':['type'],'properties':{'type':{'enum':['text','thinking',"
     "'tool_use']}}}},'stop_reason':{'enum':['end_turn','max_tokens','stop_sequence','tool_use']},"
     "'stop_sequence':{'type':['string','null']},'usage':{'type':'object','required':["
     "'input_tokens','output_tokens'],'properties':{'input_tokens':" COUNT ",'output_tokens':" COUNT
     ",'cache_creation_input_tokens':" COUNT ",'cache_read_input_tokens':" COUNT "}}}}"},
    {"AnthropicCount",
     "{'type':'object','required':['input_tokens'],'properties':{'input_tokens':" COUNT "}}"},
    {NULL, NULL},
};
// clang-format on

const gs_api_part gs_api_part_anthropic = {"anthropic", "Anthropic's dialect.", routes, schemas};
