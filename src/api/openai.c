/* OpenAI's wording of answers: chat completions and completions, whole and streamed. */
#include <string.h>

#include "api/api_impl.h"
#include "api/story.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/utf8.h"

/* ---- Shared parts
 * ------------------------------------------------------------------------------------- */

static void key_str(gs_jsonw *w, const char *key, const char *value) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, value);
}

static void key_int(gs_jsonw *w, const char *key, int64_t value) {
    gs_jsonw_key(w, key);
    gs_jsonw_int(w, value);
}

static void head(gs_jsonw *w, const gs_req *r, const char *object) {
    key_str(w, "id", r->id);
    key_str(w, "object", object);
    key_int(w, "created", r->created_s);
    key_str(w, "model", r->model);
}

static void usage(gs_jsonw *w, const gs_req *r) {
    int64_t prompt = 0, output = 0;
    for (int32_t i = 0; i < r->n_prompts; i++)
        prompt += gs_req_n_prompt(r, i);
    for (int32_t i = 0; i < r->n_choices; i++)
        output += r->choices[i].n_output;
    gs_jsonw_key(w, "usage");
    gs_jsonw_obj(w);
    key_int(w, "prompt_tokens", prompt);
    key_int(w, "completion_tokens", output);
    key_int(w, "total_tokens", prompt + output);
    gs_jsonw_key(w, "prompt_tokens_details");
    gs_jsonw_obj(w);
    key_int(w, "cached_tokens", r->n_cached);
    gs_jsonw_end_obj(w);
    if (r->p.include_timings) {
        gs_jsonw_key(w, "timings");
        gs_jsonw_arr(w);
        for (int32_t i = 0; i < r->n_choices; i++)
            if (r->choices[i].story.id != 0)
                gs_story_write(w, NULL, r->model, i, &r->choices[i].story,
                               r->choices[i].story.end_ns);
        gs_jsonw_end_arr(w);
    }
    gs_jsonw_end_obj(w);
}

static void finish_reason(gs_jsonw *w, const char *reason) {
    gs_jsonw_key(w, "finish_reason");
    if (reason)
        gs_jsonw_str(w, reason);
    else
        gs_jsonw_null(w);
}

/* No memory: an empty piece. Its text is in the answer anyway. */
static void token_bytes(const gs_req *r, int32_t id, gs_buf *piece) {
    gs_buf_clear(piece);
    gs_tok_piece(r->m->tokenizer, id, true, piece);
}

/* {"token": ..., "logprob": ..., "bytes": [...]}, left open for more members. */
static void token_object(gs_jsonw *w, const gs_req *r, const gs_token_prob *t, gs_buf *piece) {
    token_bytes(r, t->id, piece);
    const char *text = piece->data ? piece->data : "";
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "token");
    gs_jsonw_strn(w, text, piece->len);
    gs_jsonw_key(w, "logprob");
    gs_jsonw_num(w, (double)t->logprob);
    gs_jsonw_key(w, "bytes");
    gs_jsonw_arr(w);
    for (size_t i = 0; i < piece->len; i++)
        gs_jsonw_int(w, (unsigned char)text[i]);
    gs_jsonw_end_arr(w);
}

static void chat_logprobs(gs_jsonw *w, const gs_req *r, const gs_choice *c) {
    gs_jsonw_key(w, "logprobs");
    if (r->p.sampler.n_logprobs < 0) {
        gs_jsonw_null(w);
        return;
    }
    gs_buf piece = {0};
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "content");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < c->n_logprobs; i++) {
        const gs_logprob_entry *l = &c->logprobs[i];
        token_object(w, r, &l->chosen, &piece);
        gs_jsonw_key(w, "top_logprobs");
        gs_jsonw_arr(w);
        for (int32_t k = 0; k < l->n_top; k++) {
            token_object(w, r, &l->top[k], &piece);
            gs_jsonw_end_obj(w);
        }
        gs_jsonw_end_arr(w);
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_arr(w);
    gs_jsonw_key(w, "refusal");
    gs_jsonw_null(w);
    gs_jsonw_end_obj(w);
    gs_buf_deinit(&piece);
}

static int32_t utf8_chars(const char *s, size_t n) {
    int32_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return chars;
}

/* Completions' older shape: four parallel arrays. */
static void text_logprobs(gs_jsonw *w, const gs_req *r, gs_choice *c) {
    gs_jsonw_key(w, "logprobs");
    if (r->p.sampler.n_logprobs < 0) {
        gs_jsonw_null(w);
        return;
    }
    gs_buf piece = {0};
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "tokens");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < c->n_logprobs; i++) {
        token_bytes(r, c->logprobs[i].chosen.id, &piece);
        gs_jsonw_strn(w, piece.data ? piece.data : "", piece.len);
    }
    gs_jsonw_end_arr(w);
    gs_jsonw_key(w, "token_logprobs");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < c->n_logprobs; i++)
        gs_jsonw_num(w, (double)c->logprobs[i].chosen.logprob);
    gs_jsonw_end_arr(w);
    gs_jsonw_key(w, "top_logprobs");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < c->n_logprobs; i++) {
        gs_jsonw_obj(w);
        for (int32_t k = 0; k < c->logprobs[i].n_top; k++) {
            token_bytes(r, c->logprobs[i].top[k].id, &piece);
            const char *key = gs_buf_cstr(&piece);
            gs_jsonw_key(w, key ? key : "");
            gs_jsonw_num(w, (double)c->logprobs[i].top[k].logprob);
        }
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_arr(w);
    gs_jsonw_key(w, "text_offset");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < c->n_logprobs; i++) {
        gs_jsonw_int(w, c->logprob_offset);
        token_bytes(r, c->logprobs[i].chosen.id, &piece);
        c->logprob_offset += utf8_chars(piece.data ? piece.data : "", piece.len);
    }
    gs_jsonw_end_arr(w);
    gs_jsonw_end_obj(w);
    gs_buf_deinit(&piece);
}

/* ---- Streams
 * -------------------------------------------------------------------------------------------- */

static void event_begin(gs_req *r, gs_jsonw *w) {
    gs_buf_clear(&r->out);
    gs_buf_str(&r->out, "data: ");
    gs_jsonw_init(w, &r->out);
    gs_jsonw_obj(w);
}

static void event_end(gs_req *r, gs_jsonw *w) {
    gs_jsonw_end_obj(w);
    gs_buf_str(&r->out, "\n\n");
    gs_req_write(r);
}

/* The end of an event that holds one choice; the usage comes in an event of its own. */
static void choice_end(gs_req *r, gs_jsonw *w) {
    gs_jsonw_end_obj(w);
    gs_jsonw_end_arr(w);
    if (r->p.include_usage) {
        gs_jsonw_key(w, "usage");
        gs_jsonw_null(w);
    }
    event_end(r, w);
}

/* {"index":0,"id":...,"function":{...}} of a call that begins or goes on. */
static void call_delta(gs_jsonw *w, const gs_choice *c, const gs_part *part) {
    const gs_tool_call *call = &c->calls[part->call];
    gs_jsonw_key(w, "tool_calls");
    gs_jsonw_arr(w);
    gs_jsonw_obj(w);
    key_int(w, "index", part->call);
    if (part->kind == GS_PART_CALL_BEGIN) {
        key_str(w, "id", call->id);
        key_str(w, "type", "function");
    }
    gs_jsonw_key(w, "function");
    gs_jsonw_obj(w);
    if (part->kind == GS_PART_CALL_BEGIN)
        key_str(w, "name", call->name.data);
    gs_jsonw_key(w, "arguments");
    gs_jsonw_strn(w, part->data, part->kind == GS_PART_CALL_BEGIN ? 0 : part->n);
    gs_jsonw_end_obj(w);
    gs_jsonw_end_obj(w);
    gs_jsonw_end_arr(w);
}

static void delta_members(gs_jsonw *w, const gs_choice *c, const gs_part *part) {
    if (part->kind == GS_PART_TEXT || part->kind == GS_PART_REASONING) {
        gs_jsonw_key(w, part->kind == GS_PART_TEXT ? "content" : "reasoning_content");
        gs_jsonw_strn(w, part->data ? part->data : "", part->n);
    } else {
        call_delta(w, c, part);
    }
}

/* One choice's chunk; role and part may be absent. */
static void chat_chunk(gs_req *r, gs_choice *c, const char *role, const gs_part *part,
                       const char *reason) {
    gs_jsonw w;
    event_begin(r, &w);
    head(&w, r, "chat.completion.chunk");
    gs_jsonw_key(&w, "choices");
    gs_jsonw_arr(&w);
    gs_jsonw_obj(&w);
    key_int(&w, "index", c->index);
    gs_jsonw_key(&w, "delta");
    gs_jsonw_obj(&w);
    if (role) {
        key_str(&w, "role", role);
        key_str(&w, "content", "");
    }
    if (part)
        delta_members(&w, c, part);
    gs_jsonw_end_obj(&w);
    if (part)
        chat_logprobs(&w, r, c);
    finish_reason(&w, reason);
    choice_end(r, &w);
}

static void chat_stream_start(gs_req *r) {
    for (int32_t i = 0; i < r->n_choices; i++)
        chat_chunk(r, &r->choices[i], "assistant", NULL, NULL);
}

static void chat_stream_delta(gs_req *r, gs_choice *c, const gs_part *part) {
    if (part->kind != GS_PART_CALL_END)
        chat_chunk(r, c, NULL, part, NULL);
}

static void chat_stream_finish(gs_req *r, gs_choice *c) {
    chat_chunk(r, c, NULL, NULL, c->finish_reason);
}

static void text_chunk(gs_req *r, gs_choice *c, const char *text, size_t n, const char *reason) {
    gs_jsonw w;
    event_begin(r, &w);
    head(&w, r, "text_completion");
    gs_jsonw_key(&w, "choices");
    gs_jsonw_arr(&w);
    gs_jsonw_obj(&w);
    key_int(&w, "index", c->index);
    gs_jsonw_key(&w, "text");
    gs_jsonw_strn(&w, text, n);
    if (reason) {
        gs_jsonw_key(&w, "logprobs");
        gs_jsonw_null(&w);
    } else {
        text_logprobs(&w, r, c);
    }
    finish_reason(&w, reason);
    choice_end(r, &w);
}

static void text_stream_start(gs_req *r) {
    for (int32_t i = 0; r->p.echo && i < r->n_choices; i++) {
        const gs_buf *t = &r->echo_text[i / r->p.n];
        text_chunk(r, &r->choices[i], t->data ? t->data : "", t->len, NULL);
        r->choices[i].logprob_offset = utf8_chars(t->data ? t->data : "", t->len);
    }
}

static void text_stream_delta(gs_req *r, gs_choice *c, const gs_part *part) {
    text_chunk(r, c, part->data ? part->data : "", part->n, NULL);
}

static void text_stream_finish(gs_req *r, gs_choice *c) {
    text_chunk(r, c, "", 0, c->finish_reason);
}

static void stream_end(gs_req *r, const char *object) {
    if (r->p.include_usage && r->rq) {
        gs_jsonw w;
        event_begin(r, &w);
        head(&w, r, object);
        gs_jsonw_key(&w, "choices");
        gs_jsonw_arr(&w);
        gs_jsonw_end_arr(&w);
        usage(&w, r);
        event_end(r, &w);
    }
    if (r->rq)
        gs_http_write(r->rq, "data: [DONE]\n\n", 14);
}

static void chat_stream_end(gs_req *r) {
    stream_end(r, "chat.completion.chunk");
}

static void text_stream_end(gs_req *r) {
    stream_end(r, "text_completion");
}

static void stream_error(gs_req *r, const gs_api_error *e) {
    gs_jsonw w;
    event_begin(r, &w);
    gs_api_error_members(&w, GS_ERRORS_OPENAI, e);
    event_end(r, &w);
    if (r->rq)
        gs_http_write(r->rq, "data: [DONE]\n\n", 14);
}

/* ---- Whole answers
 * ---------------------------------------------------------------------------------------- */

static void message_members(gs_jsonw *w, const gs_choice *c) {
    key_str(w, "role", "assistant");
    gs_jsonw_key(w, "content");
    if (c->text.len == 0 && c->n_calls > 0)
        gs_jsonw_null(w);
    else
        gs_jsonw_strn(w, c->text.data ? c->text.data : "", c->text.len);
    if (c->reasoning.len > 0) {
        gs_jsonw_key(w, "reasoning_content");
        gs_jsonw_strn(w, c->reasoning.data, c->reasoning.len);
    }
    if (c->n_calls == 0)
        return;
    gs_jsonw_key(w, "tool_calls");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < c->n_calls; i++) {
        const gs_tool_call *call = &c->calls[i];
        gs_jsonw_obj(w);
        key_str(w, "id", call->id);
        key_str(w, "type", "function");
        gs_jsonw_key(w, "function");
        gs_jsonw_obj(w);
        key_str(w, "name", call->name.data);
        gs_jsonw_key(w, "arguments");
        gs_jsonw_strn(w, call->arguments.data ? call->arguments.data : "", call->arguments.len);
        gs_jsonw_end_obj(w);
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_arr(w);
}

static void chat_whole(gs_req *r, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    head(&w, r, "chat.completion");
    gs_jsonw_key(&w, "choices");
    gs_jsonw_arr(&w);
    for (int32_t i = 0; i < r->n_choices; i++) {
        gs_choice *c = &r->choices[i];
        gs_jsonw_obj(&w);
        key_int(&w, "index", c->index);
        gs_jsonw_key(&w, "message");
        gs_jsonw_obj(&w);
        message_members(&w, c);
        gs_jsonw_end_obj(&w);
        chat_logprobs(&w, r, c);
        finish_reason(&w, c->finish_reason);
        gs_jsonw_end_obj(&w);
    }
    gs_jsonw_end_arr(&w);
    usage(&w, r);
    gs_jsonw_end_obj(&w);
}

static void text_whole(gs_req *r, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    head(&w, r, "text_completion");
    gs_jsonw_key(&w, "choices");
    gs_jsonw_arr(&w);
    gs_buf text = {0};
    for (int32_t i = 0; i < r->n_choices; i++) {
        gs_choice *c = &r->choices[i];
        const gs_buf *echo = &r->echo_text[i / r->p.n];
        gs_buf_clear(&text);
        gs_buf_add(&text, echo->data ? echo->data : "", echo->len);
        gs_buf_add(&text, c->text.data ? c->text.data : "", c->text.len);
        c->logprob_offset = utf8_chars(echo->data ? echo->data : "", echo->len);
        gs_jsonw_obj(&w);
        key_int(&w, "index", c->index);
        gs_jsonw_key(&w, "text");
        gs_jsonw_strn(&w, text.data ? text.data : "", text.len);
        text_logprobs(&w, r, c);
        finish_reason(&w, c->finish_reason);
        gs_jsonw_end_obj(&w);
        out->failed |= text.failed;
    }
    gs_buf_deinit(&text);
    gs_jsonw_end_arr(&w);
    usage(&w, r);
    gs_jsonw_end_obj(&w);
}

const gs_dialect gs_dialect_chat = {
    .id_prefix = "chatcmpl-",
    .call_id_prefix = "call_",
    .stream_type = "text/event-stream",
    .whole_type = "application/json",
    .stream_start = chat_stream_start,
    .stream_delta = chat_stream_delta,
    .stream_finish = chat_stream_finish,
    .stream_end = chat_stream_end,
    .stream_error = stream_error,
    .whole = chat_whole,
    .alive = ": waiting\n\n",
    .alive_after_ns = 10 * GS_NS_PER_S,
};

const gs_dialect gs_dialect_completion = {
    .id_prefix = "cmpl-",
    .stream_type = "text/event-stream",
    .whole_type = "application/json",
    .stream_start = text_stream_start,
    .stream_delta = text_stream_delta,
    .stream_finish = text_stream_finish,
    .stream_end = text_stream_end,
    .stream_error = stream_error,
    .whole = text_whole,
    .alive = ": waiting\n\n",
    .alive_after_ns = 10 * GS_NS_PER_S,
};
