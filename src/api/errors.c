/* What an error looks like in each dialect. The request's path says which one the client speaks. */
#include <stdio.h>
#include <string.h>

#include "api/api_impl.h"
#include "base/clock.h"
#include "base/err.h"

gs_error_shape gs_api_error_shape(const char *path) {
    if (strncmp(path, "/api/", 5) == 0)
        return GS_ERRORS_OLLAMA;
    return strncmp(path, "/v1/messages", 12) == 0 ? GS_ERRORS_ANTHROPIC : GS_ERRORS_OPENAI;
}

static int status_of(const gs_api_error *e) {
    return e->status ? e->status : gs_err_http(e->code);
}

static const char *openai_type(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static const char *anthropic_type(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

static void key_str(gs_jsonw *w, const char *key, const char *value) {
    gs_jsonw_key(w, key);
    if (value)
        gs_jsonw_str(w, value);
    else
        gs_jsonw_null(w);
}

/* The dialects without a member for it name the field in the sentence. */
static void key_message(gs_jsonw *w, const char *key, const gs_api_error *e) {
    char text[sizeof(e->message) + sizeof(e->param) + 4];
    bool named = !e->param[0] || strcmp(e->param, "body") == 0 || strstr(e->message, e->param);
    snprintf(text, sizeof(text), "%s%s%s", named ? "" : e->param, named ? "" : ": ", e->message);
    key_str(w, key, text);
}

void gs_api_error_members(gs_jsonw *w, gs_error_shape shape, const gs_api_error *e) {
    int status = status_of(e);
    if (shape == GS_ERRORS_OLLAMA) {
        key_message(w, "error", e);
        return;
    }
    if (shape == GS_ERRORS_ANTHROPIC)
        key_str(w, "type", "error");
    gs_jsonw_key(w, "error");
    gs_jsonw_obj(w);
    if (shape == GS_ERRORS_ANTHROPIC) {
        key_str(w, "type", anthropic_type(status));
        key_message(w, "message", e);
    } else {
        key_str(w, "message", e->message);
        key_str(w, "type", openai_type(status));
        key_str(w, "param", e->param[0] ? e->param : NULL);
        key_str(w, "code", e->name);
    }
    gs_jsonw_end_obj(w);
}

void gs_api_error_body(gs_error_shape shape, const gs_api_error *e, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_api_error_members(&w, shape, e);
    gs_jsonw_end_obj(&w);
}

/* Its head went out while it waited for its model: the error is the whole body. */
static void end_with_error(gs_http_request *rq, const gs_api_error *e) {
    const bool events = strcmp(gs_http_begun(rq), "text/event-stream") == 0;
    gs_buf out = {0};
    gs_buf_str(&out, events ? "data: " : "");
    gs_api_error_body(gs_api_error_shape(gs_http_path(rq)), e, &out);
    gs_buf_str(&out, events ? "\n\n" : "\n");
    if (out.failed)
        gs_http_abort(rq);
    else
        gs_http_reply(rq, 200, NULL, out.data, out.len);
    gs_buf_deinit(&out);
}

void gs_api_reply_error(gs_http_request *rq, const gs_api_error *e) {
    gs_buf out = {0};
    int status = status_of(e);
    if (gs_http_begun(rq)) {
        end_with_error(rq, e);
        return;
    }
    if (status == 499) /* nginx's number for a client that left; never put on the wire */
        status = 500;
    if (e->retry_after_ns > 0 || status == 503 || status == 429) {
        char seconds[24];
        int64_t s = (e->retry_after_ns + GS_NS_PER_S - 1) / GS_NS_PER_S;
        snprintf(seconds, sizeof(seconds), "%lld", (long long)(s > 0 ? s : 1));
        gs_http_add_header(rq, "Retry-After", seconds);
    }
    gs_api_error_body(gs_api_error_shape(gs_http_path(rq)), e, &out);
    /* Without memory for it: the status alone, never half a body. */
    gs_http_reply(rq, status, "application/json", out.data, out.failed ? 0 : out.len);
    gs_buf_deinit(&out);
}
