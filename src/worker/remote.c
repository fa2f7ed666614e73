#include "worker/remote.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/sys.h"
#include "http/sse.h"

#define HEAD_BYTES   16384
#define EVENT_BYTES  ((size_t)1 << 18)
#define ERROR_BYTES  65536              /* of an answer that is an error */
#define TOKEN_BYTES  4096               /* of a stream, for each token; no server writes more */
#define STREAM_BYTES ((size_t)1 << 20)  /* and besides */
#define VECTOR_BYTES ((size_t)1 << 18)  /* of JSON for each vector: 16,384 numbers */
#define RATE_BYTES   ((size_t)16 << 20) /* a second */
#define MAX_CALLS    64
#define MAX_EMBD     16384

struct gs_remote {
    gs_remote_kind kind;
    gs_remote_handler on;
    gs_http_fetch *fetch;
    gs_sse sse;
    gs_buf body; /* of what is no stream */
    size_t max_body;
    int32_t n_texts, n_calls;
    bool stream; /* the answer is one */
    bool done;   /* [DONE] has come: what comes after it does not count */
    bool over;   /* cancelled, or ended from inside a handler */
    int depth;   /* handlers that are being called */
    int code;    /* of a handler or of what it said; ends the request */
    gs_remote_end end;
    char message[240];
};

/* ---- Life ---------------------------------------------------------------------------------- */

static void remote_free(gs_remote *x) {
    gs_sse_deinit(&x->sse);
    gs_buf_deinit(&x->body);
    gs_free(x);
}

void gs_remote_cancel(gs_remote *x) {
    gs_http_fetch_cancel(x->fetch);
    x->over = true;
    if (x->depth == 0)
        remote_free(x);
}

void gs_remote_pause(gs_remote *x, bool paused) {
    gs_http_fetch_pause(x->fetch, paused);
}

/* The last use of x. */
static void finish(gs_remote *x, int code) {
    gs_remote_end e = x->end;
    const gs_remote_handler on = x->on;
    e.code = code;
    e.message = x->message;
    x->over = true;
    on.end(on.arg, &e);
    remote_free(x);
}

static int fail(gs_remote *x, int code, const char *message) {
    snprintf(x->message, sizeof(x->message), "%s", message);
    x->code = code;
    return code;
}

/* ---- Parts of an answer -------------------------------------------------------------------- */

static int tell(gs_remote *x, gs_remote_part_kind kind, const char *data, size_t n) {
    if (x->over)
        return GS_ERR_CANCELLED;
    const int rc = x->on.part(x->on.arg, kind, data, n);
    if (x->over)
        return GS_ERR_CANCELLED;
    return rc == 0 ? 0 : fail(x, rc, gs_err_text(rc));
}

static int tell_text(gs_remote *x, gs_remote_part_kind kind, const json_t *v) {
    if (!v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0))
        return 0;
    if (!json_is_string(v))
        return fail(x, GS_ERR_FORMAT, "its text is no string");
    return tell(x, kind, json_string_value(v), json_string_length(v));
}

/* Calls come in order, one after the other: an index that was passed has ended. */
static int take_call(gs_remote *x, const json_t *call, int32_t at) {
    const json_t *index = json_object_get(call, "index");
    const json_t *function = json_object_get(call, "function");
    const json_t *name = json_object_get(function, "name");
    const json_int_t i = json_is_integer(index) ? json_integer_value(index) : at;
    if (i < x->n_calls - 1 || i > x->n_calls || i >= MAX_CALLS)
        return fail(x, GS_ERR_FORMAT, "its tool calls are out of order");
    int rc = 0;
    if (i == x->n_calls) {
        if (!json_is_string(name) || json_string_length(name) == 0)
            return fail(x, GS_ERR_FORMAT, "it calls a tool without a name");
        x->n_calls++;
        rc = tell(x, GS_REMOTE_PART_CALL, json_string_value(name), json_string_length(name));
    }
    return rc ? rc : tell_text(x, GS_REMOTE_PART_ARGS, json_object_get(function, "arguments"));
}

static int take_delta(gs_remote *x, const json_t *delta) {
    const json_t *reasoning = json_object_get(delta, "reasoning_content");
    const json_t *calls = json_object_get(delta, "tool_calls");
    if (!json_is_string(reasoning))
        reasoning = json_object_get(delta, "reasoning"); /* Ollama, newer vLLM */
    int rc = tell_text(x, GS_REMOTE_PART_REASONING, reasoning);
    if (rc == 0)
        rc = tell_text(x, GS_REMOTE_PART_TEXT, json_object_get(delta, "content"));
    for (size_t i = 0; rc == 0 && i < json_array_size(calls); i++)
        rc = take_call(x, json_array_get(calls, i), x->n_calls);
    return rc;
}

static void take_finish(gs_remote *x, const char *reason) {
    if (strcmp(reason, "length") == 0)
        x->end.finish_reason = "length";
    else if (strcmp(reason, "tool_calls") == 0 || strcmp(reason, "function_call") == 0)
        x->end.finish_reason = "tool_calls";
    else
        x->end.finish_reason = "stop";
}

static void take_count(const json_t *v, int32_t *out) {
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX / 2)
        *out = (int32_t)json_integer_value(v);
}

static void take_usage(gs_remote *x, const json_t *root) {
    const json_t *u = json_object_get(root, "usage");
    const json_t *details = json_object_get(u, "prompt_tokens_details");
    const json_t *timings = json_object_get(root, "timings"); /* llama-server */
    take_count(json_object_get(u, "prompt_tokens"), &x->end.usage.n_prompt);
    take_count(json_object_get(u, "completion_tokens"), &x->end.usage.n_output);
    take_count(json_object_get(timings, "cache_n"), &x->end.usage.n_cached);
    take_count(json_object_get(details, "cached_tokens"), &x->end.usage.n_cached);
}

/* What an error says, in whatever form; NULL: it is none. */
static const char *error_text(const json_t *root) {
    const json_t *e = json_object_get(root, "error");
    const json_t *m = json_is_object(e) ? json_object_get(e, "message") : e;
    if (!e || json_is_null(e)) {
        const json_t *object = json_object_get(root, "object"); /* older vLLM */
        if (!json_is_string(object) || strcmp(json_string_value(object), "error") != 0)
            return NULL;
        m = json_object_get(root, "message");
    }
    return json_is_string(m) ? json_string_value(m) : "an error";
}

static int take_chunk(gs_remote *x, const json_t *root) {
    const json_t *choices = json_object_get(root, "choices");
    const json_t *c = json_array_get(choices, 0);
    const json_t *reason = json_object_get(c, "finish_reason");
    const char *error = error_text(root);
    if (error)
        return fail(x, GS_ERR_BACKEND, error);
    if (!json_is_array(choices))
        return fail(x, GS_ERR_FORMAT, "an event of it has no choices");
    take_usage(x, root);
    if (!c)
        return 0;
    if (x->end.finish_reason) /* nothing but usage may come after it */
        return 0;
    const int rc = x->kind == GS_REMOTE_CHAT
                       ? take_delta(x, json_object_get(c, "delta"))
                       : tell_text(x, GS_REMOTE_PART_TEXT, json_object_get(c, "text"));
    if (rc == 0 && json_is_string(reason))
        take_finish(x, json_string_value(reason));
    return rc;
}

static int on_event(void *arg, const char *type, const char *data, size_t n) {
    gs_remote *x = arg;
    (void)type;
    if (x->done || strcmp(data, "[DONE]") == 0) {
        x->done = true;
        return 0;
    }
    json_t *root = json_loadb(data, n, 0, NULL);
    const int rc = json_is_object(root)
                       ? take_chunk(x, root)
                       : fail(x, GS_ERR_FORMAT, "an event of it is no JSON object");
    json_decref(root);
    return rc;
}

/* ---- Whole answers ------------------------------------------------------------------------- */

static int take_vector(gs_remote *x, const json_t *item, float *v) {
    const json_t *list = json_object_get(item, "embedding");
    const json_t *index = json_object_get(item, "index");
    const size_t n = json_array_size(list);
    if (n == 0 || n > MAX_EMBD || !json_is_integer(index) || json_integer_value(index) < 0 ||
        json_integer_value(index) >= x->n_texts)
        return fail(x, GS_ERR_FORMAT, "its answer has no vector for each text");
    for (size_t i = 0; i < n; i++) {
        const json_t *number = json_array_get(list, i);
        if (!json_is_number(number))
            return fail(x, GS_ERR_FORMAT, "a vector of it has something that is no number");
        v[i] = (float)json_number_value(number);
    }
    const int rc = x->on.vector(x->on.arg, (int32_t)json_integer_value(index), v, (int32_t)n);
    return x->over ? GS_ERR_CANCELLED : rc;
}

static int take_vectors(gs_remote *x, const json_t *root) {
    const json_t *data = json_object_get(root, "data");
    const char *error = error_text(root);
    int rc = 0;
    if (error)
        return fail(x, GS_ERR_BACKEND, error);
    if (json_array_size(data) != (size_t)x->n_texts)
        return fail(x, GS_ERR_FORMAT, "its answer has no vector for each text");
    float *v = gs_array(MAX_EMBD, sizeof(*v));
    if (!v)
        return fail(x, GS_ERR_NOMEM, "out of memory");
    for (size_t i = 0; rc == 0 && i < json_array_size(data); i++)
        rc = take_vector(x, json_array_get(data, i), v);
    gs_free(v);
    take_usage(x, root);
    x->end.finish_reason = "stop";
    return rc;
}

/* What its refusal means for the request. */
static int code_of(int status) {
    switch (status) {
    case 400:
    case 413:
    case 415:
    case 422:
        return GS_ERR_INVALID;
    case 429:
    case 503:
        return GS_ERR_OVERLOADED;
    default:
        return GS_ERR_BACKEND;
    }
}

static int take_error(gs_remote *x) {
    json_t *root = json_loadb(x->body.data ? x->body.data : "", x->body.len, 0, NULL);
    const char *text = root ? error_text(root) : NULL;
    const int status = x->end.status;
    char plain[96];
    snprintf(plain, sizeof(plain), "it answers with HTTP status %d%s", status,
             status / 100 == 3 ? ", a redirect, which is not followed" : "");
    const int rc = fail(x, code_of(status), text && status / 100 != 3 ? text : plain);
    json_decref(root);
    return rc;
}

static int take_whole(gs_remote *x) {
    if (x->end.status != 200)
        return take_error(x);
    json_t *root = json_loadb(x->body.data ? x->body.data : "", x->body.len, 0, NULL);
    const int rc = json_is_object(root) ? take_vectors(x, root)
                                        : fail(x, GS_ERR_FORMAT, "its answer is no JSON object");
    json_decref(root);
    return rc;
}

/* ---- The exchange -------------------------------------------------------------------------- */

static bool has_type(const gs_remote *x, const char *want) {
    const char *have = gs_http_fetch_header(x->fetch, "content-type");
    const size_t n = strlen(want);
    return have && strncasecmp(have, want, n) == 0 && strchr("; \t", have[n]);
}

static void on_head(void *user, int status) {
    gs_remote *x = user;
    const bool wants_stream = x->kind != GS_REMOTE_EMBEDDINGS;
    const char *retry = gs_http_fetch_header(x->fetch, "retry-after");
    x->end.status = status;
    if (status != 200) {
        x->end.retry_after_s = retry ? (int32_t)strtol(retry, NULL, 10) : 0;
        x->max_body = ERROR_BYTES;
        return;
    }
    x->stream = wants_stream;
    if (!has_type(x, wants_stream ? "text/event-stream" : "application/json")) {
        gs_http_fetch_cancel(x->fetch);
        finish(x, fail(x, GS_ERR_FORMAT,
                       wants_stream ? "its answer is no event stream" : "its answer is no JSON"));
        return;
    }
    x->depth++;
    x->on.taken(x->on.arg);
    x->depth--;
    if (x->over)
        remote_free(x);
}

static void on_body(void *user, const char *data, size_t n) {
    gs_remote *x = user;
    if (x->over || x->code != 0)
        return;
    x->depth++;
    if (!x->stream) {
        const size_t room = x->max_body - x->body.len;
        if (n > room && x->end.status == 200)
            fail(x, GS_ERR_TOO_LARGE, "its answer is too large");
        else
            gs_buf_add(&x->body, data, n < room ? n : room);
    } else {
        const int rc = gs_sse_feed(&x->sse, data, n);
        if (rc == GS_ERR_TOO_LARGE && x->code == 0)
            fail(x, rc, "an event of it is too large");
        else if (rc != 0 && x->code == 0)
            x->code = rc;
    }
    x->depth--;
    if (x->over) {
        remote_free(x);
    } else if (x->code != 0 || (x->done && x->end.finish_reason)) {
        gs_http_fetch_cancel(x->fetch);
        finish(x, x->code);
    }
}

const char *gs_remote_reason(const gs_http_fetch *f, int code) {
    const char *reason = gs_http_fetch_reason(f);
    return reason[0]                    ? reason
           : code == GS_ERR_UNAVAILABLE ? "it takes no connections"
                                        : gs_err_text(code);
}

static void on_end(void *user, int code) {
    gs_remote *x = user;
    x->depth++;
    if (x->code == 0 && code == 0 && !x->stream)
        x->code = take_whole(x);
    else if (x->code == 0 && x->end.status != 200 && x->end.status != 0)
        x->code = take_error(x); /* an error that was too long, or cut, is one all the same */
    else if (x->code == 0 && code != 0)
        fail(x, code, gs_remote_reason(x->fetch, code));
    else if (x->code == 0 && !x->end.finish_reason)
        fail(x, GS_ERR_IO, "its answer ends in the middle");
    x->depth--;
    if (x->over)
        remote_free(x);
    else
        finish(x, x->code);
}

/* ---- Start --------------------------------------------------------------------------------- */

void gs_remote_path(const gs_http_url *url, const char *path, char *out, size_t n) {
    size_t base = strlen(url->base);
    const bool beside = strncmp(path, "/v1/", 4) != 0;
    const bool has_v1 = base >= 3 && strcmp(url->base + base - 3, "/v1") == 0;
    if (has_v1 && beside)
        base -= 3;
    snprintf(out, n, "%.*s%s", (int)base, url->base, has_v1 && !beside ? path + 3 : path);
}

void gs_remote_headers(const char *key, bool body, gs_buf *out) {
    gs_buf_str(out, "User-Agent: gamasot\r\n");
    if (body)
        gs_buf_str(out, "Content-Type: application/json\r\n");
    if (key[0])
        gs_buf_printf(out, "Authorization: Bearer %s\r\n", key);
}

gs_remote *gs_remote_start(uv_loop_t *loop, const gs_remote_target *to, gs_remote_kind kind,
                           const char *body, size_t n_body, int32_t max_output, int32_t n_texts,
                           const gs_remote_handler *on) {
    static const char *const paths[] = {[GS_REMOTE_CHAT] = "/v1/chat/completions",
                                        [GS_REMOTE_TEXT] = "/v1/completions",
                                        [GS_REMOTE_EMBEDDINGS] = "/v1/embeddings"};
    char path[320];
    gs_buf headers = {0};
    gs_remote *x = gs_calloc(1, sizeof(*x));
    if (!x)
        return NULL;
    *x = (gs_remote){.kind = kind, .on = *on, .n_texts = n_texts};
    x->end.usage = (gs_remote_usage){-1, -1, -1};
    x->max_body = (size_t)n_texts * VECTOR_BYTES + ERROR_BYTES;
    const size_t stream_bytes = STREAM_BYTES + (size_t)max_output * TOKEN_BYTES;
    gs_sse_init(&x->sse, EVENT_BYTES, on_event, x);
    gs_remote_path(to->url, paths[kind], path, sizeof(path));
    gs_remote_headers(to->key, true, &headers);
    const char *lines = gs_buf_cstr(&headers);
    if (lines)
        x->fetch = gs_http_fetch_start(
            loop, &(gs_http_fetch_config){
                      .addr = &to->url->addr,
                      .method = "POST",
                      .host = to->url->host,
                      .path = path,
                      .headers = lines,
                      .body = body,
                      .n_body = n_body,
                      .tls = to->tls,
                      .tls_name = to->url->name,
                      .limits = {.connect_ms = to->connect_ms,
                                 .head_ms = to->answer_ms,
                                 .silence_ms = to->answer_ms,
                                 .head_bytes = HEAD_BYTES,
                                 .bytes = kind == GS_REMOTE_EMBEDDINGS ? x->max_body : stream_bytes,
                                 .rate = RATE_BYTES},
                      .on_head = on_head,
                      .on_body = on_body,
                      .on_end = on_end,
                      .user = x});
    gs_buf_deinit(&headers);
    if (x->fetch)
        return x;
    remote_free(x);
    return NULL;
}
