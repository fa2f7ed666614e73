/* Requests as handlers see them, and the bytes of answers. */
#include "http/conn_impl.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/sys.h"

const char *gs_http_status_text(int status) {
    static const struct {
        int status;
        const char *text;
    } table[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].status == status)
            return table[i].text;
    return "Status"; /* the text has no meaning to clients, but must not be empty for some */
}

/* ---- Request ------------------------------------------------------------------------------ */

const char *gs_http_method(const gs_http_request *rq) {
    return rq->msg.method;
}

const char *gs_http_path(const gs_http_request *rq) {
    return rq->msg.path;
}

const char *gs_http_query(const gs_http_request *rq) {
    return rq->msg.query;
}

const char *gs_http_header(const gs_http_request *rq, const char *name) {
    return gs_http_msg_header(&rq->msg, name);
}

const char *gs_http_body(const gs_http_request *rq, size_t *n) {
    *n = rq->msg.body.len;
    return *n ? rq->msg.body.data : "";
}

const char *gs_http_peer(const gs_http_request *rq) {
    return rq->peer;
}

bool gs_http_gone(const gs_http_request *rq) {
    return rq->conn == NULL && !rq->local;
}

void gs_http_set_user(gs_http_request *rq, void *user) {
    rq->user = user;
}

void *gs_http_user(const gs_http_request *rq) {
    return rq->user;
}

void gs_http_request_account(gs_http_request *rq, gs_http_server *s, size_t bytes) {
    s->body_bytes = s->body_bytes - rq->accounted_bytes + bytes;
    rq->accounted_bytes = bytes;
}

void gs_http_request_free(gs_http_request *rq) {
    if (!rq)
        return;
    gs_http_msg_deinit(&rq->msg);
    gs_buf_deinit(&rq->headers);
    gs_local_free(rq->local);
    gs_free(rq);
}

/* ---- Heads -------------------------------------------------------------------------------- */

/* Only what cannot end a line or a string may get into a header. */
static void add_value(gs_buf *out, const char *s) {
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if ((c >= 0x20 && c != 0x7f) || c == '\t')
            gs_buf_char(out, (char)c);
    }
}

static void add_field(gs_buf *out, const char *name, const char *value) {
    gs_buf_str(out, name);
    gs_buf_str(out, ": ");
    add_value(out, value);
    gs_buf_str(out, "\r\n");
}

/* The framing headers are this module's. */
static bool is_framing(const char *name) {
    return strcasecmp(name, "Content-Length") == 0 || strcasecmp(name, "Transfer-Encoding") == 0 ||
           strcasecmp(name, "Connection") == 0;
}

void gs_http_add_header(gs_http_request *rq, const char *name, const char *value) {
    if (gs_http_is_token(name, strlen(name)) && !is_framing(name))
        add_field(&rq->headers, name, value);
}

static bool has_no_body(int status) {
    return status < 200 || status == 204 || status == 304;
}

/* Everything up to the framing headers. */
static void add_head(gs_http_conn *c, const gs_http_request *rq, int status,
                     const char *content_type) {
    gs_buf *out = &c->out;
    if (status < 200 || status > 999) /* interim answers are not a handler's to give */
        status = 500;
    gs_buf_printf(out, "HTTP/1.1 %d %s\r\n", status, gs_http_status_text(status));
    if (content_type && *content_type)
        add_field(out, "Content-Type", content_type);
    gs_buf_str(out, "X-Content-Type-Options: nosniff\r\n");
    if (c->close_after)
        gs_buf_str(out, "Connection: close\r\n");
    else if (rq && rq->msg.http10)
        gs_buf_str(out, "Connection: keep-alive\r\n");
    if (rq)
        gs_buf_add(out, rq->headers.data, rq->headers.len);
    if (rq && rq->headers.failed)
        out->failed = true;
}

void gs_conn_format_error(gs_http_conn *c, int status, const char *path, const char *message) {
    gs_http_config *cfg = &c->srv->cfg;
    gs_buf body = {0};
    const char *type = "text/plain; charset=utf-8";
    if (cfg->error_body) {
        cfg->error_body(cfg->user, status, path, message, &body);
        type = "application/json";
    } else {
        gs_buf_printf(&body, "%s\n", message);
    }
    if (body.failed) /* the status alone, never half a body */
        gs_buf_deinit(&body);
    gs_conn_will_write(c);
    c->close_after = true;
    add_head(c, NULL, status, type);
    if (status == 503)
        gs_buf_str(&c->out, "Retry-After: 1\r\n");
    gs_buf_printf(&c->out, "Content-Length: %zu\r\n\r\n", body.len);
    /* Also after HEAD: the head may be what could not be read, and the connection closes. */
    gs_buf_add(&c->out, body.data, body.len);
    gs_buf_deinit(&body);
}

/* ---- Answers ------------------------------------------------------------------------------ */

static bool wants_close(const gs_http_conn *c, const gs_http_request *rq) {
    return !rq->msg.keep_alive || c->srv->draining;
}

/* The request's end. Its connection, if there still is one, goes on without it. */
static void release(gs_http_request *rq) {
    gs_http_conn *c = rq->conn;
    if (c) {
        gs_http_request_account(rq, c->srv, 0);
        gs_conn_answered(c);
    }
    gs_http_request_free(rq);
}

void gs_http_reply(gs_http_request *rq, int status, const char *content_type, const char *body,
                   size_t n) {
    gs_http_conn *c = rq->conn;
    if (rq->local) {
        gs_local_reply(rq, status, body, n);
        return;
    }
    if (c && rq->begun && status == 200) { /* the head has gone out already */
        gs_http_write(rq, body, n);
        gs_http_end(rq);
        return;
    }
    if (c && rq->begun) {
        /* Too late for another status; the client must see that the answer is broken. */
        gs_http_abort(rq);
        return;
    }
    if (c) {
        gs_conn_will_write(c);
        c->close_after = wants_close(c, rq);
        add_head(c, rq, status, content_type);
        if (has_no_body(status)) {
            gs_buf_str(&c->out, "\r\n");
        } else {
            gs_buf_printf(&c->out, "Content-Length: %zu\r\n\r\n", n);
            if (!rq->msg.is_head)
                gs_buf_add(&c->out, body, n);
        }
    }
    release(rq);
}

void gs_http_begin(gs_http_request *rq, int status, const char *content_type) {
    gs_http_conn *c = rq->conn;
    if (rq->local)
        gs_local_begin(rq, status);
    if (!c || rq->begun)
        return;
    rq->begun = true;
    rq->type = content_type;
    /* HTTP/1.0 knows no chunks: the body ends with the connection. */
    rq->raw = rq->msg.http10;
    gs_conn_will_write(c);
    c->close_after = wants_close(c, rq) || rq->raw;
    add_head(c, rq, status, content_type);
    gs_buf_str(&c->out, rq->raw ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
    gs_conn_mark_dirty(c);
}

const char *gs_http_begun(const gs_http_request *rq) {
    return rq->begun ? rq->type : NULL;
}

size_t gs_http_unsent(const gs_http_request *rq) {
    return rq->conn ? gs_conn_unsent(rq->conn) : 0;
}

void gs_http_write(gs_http_request *rq, const char *data, size_t n) {
    gs_http_conn *c = rq->conn;
    if (rq->local)
        gs_local_write(rq, data, n);
    /* An empty chunk would end the body. */
    if (!c || !rq->begun || rq->msg.is_head || n == 0 || c->doomed)
        return;
    if (gs_conn_unsent(c) > GS_HTTP_FLOOD_FACTOR * c->srv->cfg.max_buffered_bytes) {
        c->doomed = c->reset = true;
    } else {
        gs_conn_will_write(c);
        if (!rq->raw)
            gs_buf_printf(&c->out, "%zx\r\n", n);
        gs_buf_add(&c->out, data, n);
        if (!rq->raw)
            gs_buf_add(&c->out, "\r\n", 2);
    }
    gs_conn_mark_dirty(c);
}

void gs_http_when_written(gs_http_request *rq, void (*written)(void *arg), void *arg) {
    if (!rq->conn)
        return;
    rq->written = written;
    rq->written_arg = arg;
    gs_conn_mark_dirty(rq->conn);
}

void gs_http_end(gs_http_request *rq) {
    gs_http_conn *c = rq->conn;
    if (rq->local) {
        gs_local_end(rq, !rq->begun);
        return;
    }
    if (c && !rq->begun) {
        gs_http_abort(rq);
        return;
    }
    if (c && !rq->raw && !rq->msg.is_head) {
        gs_conn_will_write(c);
        gs_buf_str(&c->out, "0\r\n\r\n");
    }
    release(rq);
}

void gs_http_abort(gs_http_request *rq) {
    if (rq->local) {
        gs_local_end(rq, true);
        return;
    }
    if (rq->conn)
        rq->conn->doomed = rq->conn->reset = true;
    release(rq);
}
