#include "http/client.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"
#include "llhttp.h"

#define MAX_HEADERS 65536 /* bytes of the answer's headers that are kept */
#define TICK_MS     100   /* with limits: deadlines and rates are looked at so often */

struct gs_http_fetch {
    uv_tcp_t tcp; /* first */
    uv_timer_t timer;
    uv_connect_t connect;
    gs_http_fetch_config cfg;
    gs_tls *tls;
    gs_buf request; /* head and body, until they are written */
    gs_buf headers; /* "name\0value\0" ... of the answer */
    gs_buf plain;   /* of TLS: scratch */
    llhttp_t parser;
    llhttp_settings_t settings;
    bool sent, in_value, in_body, whole, over;
    int n_handles;    /* not closed yet */
    int64_t since_ns; /* of the stretch that has a limit */
    size_t n_bytes;   /* that came */
    size_t n_head;    /* of them, before the body */
    size_t budget;    /* of the rate: bytes that may come until the next tick */
    bool held;        /* nothing is read until then, */
    bool paused;      /* or until the caller says so */
    char in[65536];
};

/* ---- URLs ------------------------------------------------------------------------------------*/

/* HOST[:PORT], and [::1]. */
static int split_host(const char *text, size_t n, gs_http_url *out) {
    if (n == 0 || n >= sizeof(out->name))
        return GS_ERR_INVALID;
    snprintf(out->host, sizeof(out->host), "%.*s", (int)n, text);
    snprintf(out->name, sizeof(out->name), "%.*s", (int)n, text);
    snprintf(out->port, sizeof(out->port), "%s", out->tls ? "443" : "80");
    char *colon = strrchr(out->name, ':');
    const char *bracket = strrchr(out->name, ']');
    if (colon && (!bracket || colon > bracket)) {
        const size_t digits = strspn(colon + 1, "0123456789");
        if (digits == 0 || digits > 5 || colon[1 + digits] != '\0')
            return GS_ERR_INVALID;
        memcpy(out->port, colon + 1, digits + 1);
        *colon = '\0';
    }
    if (out->name[0] == '[') { /* [::1] */
        out->name[strcspn(out->name, "]")] = '\0';
        memmove(out->name, out->name + 1, strlen(out->name));
    }
    return out->name[0] ? 0 : GS_ERR_INVALID;
}

/* Printable, and nothing that could be read as more than a host and a path. */
static bool is_plain(const char *text) {
    for (const char *p = text; *p; p++)
        if (*p <= ' ' || *p > '~' || strchr("@?#\\\"", *p))
            return false;
    return true;
}

int gs_http_url_split(const char *text, gs_http_url *out, char *err, size_t errlen) {
    *out = (gs_http_url){.tls = strncasecmp(text, "https://", 8) == 0};
    const char *host = text + (out->tls ? 8 : 7);
    const bool known = out->tls || strncasecmp(text, "http://", 7) == 0;
    const size_t n = known ? strcspn(host, "/") : 0;
    if (!known || !is_plain(text) || strlen(host + n) >= sizeof(out->base) ||
        split_host(host, n, out) != 0)
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "'%.100s' is no http:// or https:// URL of a host and a path", text);
    snprintf(out->base, sizeof(out->base), "%s", host + n);
    for (size_t len = strlen(out->base); len > 0 && out->base[len - 1] == '/'; len--)
        out->base[len - 1] = '\0';
    return 0;
}

int gs_http_url_parse(uv_loop_t *loop, const char *text, gs_http_url *out, char *err,
                      size_t errlen) {
    uv_getaddrinfo_t info;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    int rc = gs_http_url_split(text, out, err, errlen);
    if (rc != 0)
        return rc;
    if (out->tls)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "%s: https is not supported here", text);
    rc = uv_getaddrinfo(loop, &info, NULL, out->name, out->port, &hints);
    if (rc != 0)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", out->name, uv_strerror(rc));
    memcpy(&out->addr, info.addrinfo->ai_addr, info.addrinfo->ai_addrlen);
    uv_freeaddrinfo(info.addrinfo);
    return 0;
}

/* ---- the answer ------------------------------------------------------------------------------*/

static gs_http_fetch *of(const llhttp_t *p) {
    return p->data;
}

static int keep(gs_http_fetch *f, const char *at, size_t n) {
    return f->headers.len + n < MAX_HEADERS ? gs_buf_add(&f->headers, at, n) : 0;
}

static int on_field(llhttp_t *p, const char *at, size_t n) {
    gs_http_fetch *f = of(p);
    if (f->in_body) /* a trailer */
        return 0;
    if (f->in_value)
        gs_buf_char(&f->headers, '\0');
    f->in_value = false;
    for (size_t i = 0; i < n; i++) {
        const char c = at[i] >= 'A' && at[i] <= 'Z' ? (char)(at[i] + 32) : at[i];
        keep(f, &c, 1);
    }
    return 0;
}

static int on_value(llhttp_t *p, const char *at, size_t n) {
    gs_http_fetch *f = of(p);
    if (f->in_body)
        return 0;
    if (!f->in_value)
        gs_buf_char(&f->headers, '\0');
    f->in_value = true;
    keep(f, at, n);
    return 0;
}

/* "100 Continue" and its like come before the answer. */
static bool is_answer(const llhttp_t *p) {
    return p->status_code / 100 != 1;
}

static int on_headers(llhttp_t *p) {
    gs_http_fetch *f = of(p);
    gs_buf_char(&f->headers, '\0');
    f->in_value = false;
    if (f->headers.failed)
        return HPE_USER;
    if (!is_answer(p)) {
        gs_buf_clear(&f->headers);
        return 0;
    }
    f->in_body = true;
    f->since_ns = gs_now_ns();
    if (f->cfg.on_head)
        f->cfg.on_head(f->cfg.user, (int)p->status_code);
    return f->over ? HPE_USER : 0;
}

static int on_data(llhttp_t *p, const char *at, size_t n) {
    gs_http_fetch *f = of(p);
    if (f->cfg.on_body && !f->over)
        f->cfg.on_body(f->cfg.user, at, n);
    return f->over ? HPE_USER : 0;
}

static int on_complete(llhttp_t *p) {
    if (!is_answer(p))
        return 0;
    of(p)->whole = true;
    return HPE_PAUSED;
}

const char *gs_http_fetch_header(const gs_http_fetch *f, const char *name) {
    const char *at = f->headers.data, *end = f->in_body ? at + f->headers.len : at;
    while (at < end) {
        const char *value = at + strlen(at) + 1;
        if (value >= end)
            return NULL;
        if (strcmp(at, name) == 0)
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

/* ---- the connection --------------------------------------------------------------------------*/

static void on_closed(uv_handle_t *h) {
    gs_http_fetch *f = h->data;
    if (--f->n_handles > 0)
        return;
    gs_tls_free(f->tls);
    gs_buf_deinit(&f->request);
    gs_buf_deinit(&f->headers);
    gs_buf_deinit(&f->plain);
    gs_free(f);
}

static void close_handle(uv_handle_t *h) {
    if (!uv_is_closing(h))
        uv_close(h, on_closed);
}

static void close_it(gs_http_fetch *f) {
    f->over = true;
    close_handle((uv_handle_t *)&f->tcp);
    close_handle((uv_handle_t *)&f->timer);
}

static void end(gs_http_fetch *f, int code) {
    if (f->over)
        return;
    close_it(f);
    if (f->cfg.on_end)
        f->cfg.on_end(f->cfg.user, code);
}

void gs_http_fetch_cancel(gs_http_fetch *f) {
    if (f)
        close_it(f);
}

const char *gs_http_fetch_reason(const gs_http_fetch *f) {
    return f->tls ? gs_tls_reason(f->tls) : "";
}

/* ---- out ---- */

typedef struct outgoing {
    uv_write_t w; /* first */
    gs_http_fetch *f;
    gs_buf bytes;
} outgoing;

static void on_written(uv_write_t *w, int status) {
    outgoing *o = (outgoing *)w;
    gs_http_fetch *f = o->f;
    gs_buf_deinit(&o->bytes);
    gs_free(o);
    if (status < 0 && status != UV_ECANCELED)
        end(f, GS_ERR_IO);
}

/* Takes bytes. */
static void write_out(gs_http_fetch *f, gs_buf *bytes) {
    outgoing *o = bytes->len > 0 && !bytes->failed ? gs_calloc(1, sizeof(*o)) : NULL;
    if (!o) {
        const bool nothing = bytes->len == 0 && !bytes->failed;
        gs_buf_deinit(bytes);
        if (!nothing)
            end(f, GS_ERR_NOMEM);
        return;
    }
    o->f = f;
    o->bytes = *bytes;
    *bytes = (gs_buf){0};
    uv_buf_t b = uv_buf_init(o->bytes.data, (unsigned)o->bytes.len);
    if (uv_write(&o->w, (uv_stream_t *)&f->tcp, &b, 1, on_written) != 0) {
        gs_buf_deinit(&o->bytes);
        gs_free(o);
        end(f, GS_ERR_IO);
    }
}

static void hold(gs_http_fetch *f) {
    f->held = true;
    uv_read_stop((uv_stream_t *)&f->tcp);
}

static void send_request(gs_http_fetch *f) {
    gs_buf out = {0};
    int rc = 0;
    f->sent = true;
    f->since_ns = gs_now_ns();
    if (f->tls) {
        rc = gs_tls_send(f->tls, f->request.data, f->request.len, &out);
        gs_buf_deinit(&f->request);
    } else {
        out = f->request;
        f->request = (gs_buf){0};
    }
    if (rc != 0) {
        gs_buf_deinit(&out);
        end(f, rc);
        return;
    }
    write_out(f, &out);
    if (f->paused && !f->over)
        hold(f);
}

/* ---- in ---- */

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf);

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *out) {
    (void)n;
    gs_http_fetch *f = h->data;
    *out = uv_buf_init(f->in, sizeof f->in);
}

static void parse(gs_http_fetch *f, const char *bytes, size_t n) {
    const llhttp_errno_t rc = llhttp_execute(&f->parser, bytes, n);
    if (f->whole)
        end(f, 0);
    else if (rc != HPE_OK)
        end(f, f->headers.failed ? GS_ERR_NOMEM : GS_ERR_FORMAT);
    else if (!f->in_body)
        f->n_head += n;
    if (!f->over && f->cfg.limits.head_bytes > 0 && f->n_head > f->cfg.limits.head_bytes)
        end(f, GS_ERR_TOO_LARGE);
}

/* The connection has ended: an answer without a length ends with it. Over TLS only when the server
 * says so, else anybody on the way could cut it. */
static void on_eof(gs_http_fetch *f) {
    if (!f->tls || gs_tls_closed(f->tls))
        llhttp_finish(&f->parser);
    end(f, f->whole ? 0 : f->sent ? GS_ERR_IO : GS_ERR_UNAVAILABLE);
}

static void decrypt(gs_http_fetch *f, const char *bytes, size_t n) {
    gs_buf out = {0};
    gs_buf_clear(&f->plain);
    const int rc = gs_tls_receive(f->tls, bytes, n, &f->plain, &out);
    write_out(f, &out);
    if (!f->over && rc == 0 && gs_tls_ready(f->tls) && !f->sent)
        send_request(f);
    if (!f->over && f->plain.len > 0)
        parse(f, f->plain.data, f->plain.len);
    if (!f->over && rc != 0)
        end(f, f->sent ? rc : GS_ERR_UNAVAILABLE);
    if (!f->over && gs_tls_closed(f->tls))
        on_eof(f);
}

/* Whether more may come before the next tick. */
static void spend(gs_http_fetch *f, size_t n) {
    if (f->cfg.limits.rate == 0)
        return;
    f->budget -= n < f->budget ? n : f->budget;
    if (f->budget == 0 && !f->over)
        hold(f);
}

void gs_http_fetch_pause(gs_http_fetch *f, bool paused) {
    f->paused = paused;
    if (paused && f->sent && !f->over)
        hold(f);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
    gs_http_fetch *f = s->data;
    if (f->over || n == 0)
        return;
    if (n < 0) {
        if (n == UV_EOF)
            on_eof(f);
        else
            end(f, f->sent ? GS_ERR_IO : GS_ERR_UNAVAILABLE);
        return;
    }
    f->n_bytes += (size_t)n;
    if (f->in_body)
        f->since_ns = gs_now_ns();
    if (f->cfg.limits.bytes > 0 && f->n_bytes > f->cfg.limits.bytes) {
        end(f, GS_ERR_TOO_LARGE);
        return;
    }
    if (f->tls)
        decrypt(f, buf->base, (size_t)n);
    else
        parse(f, buf->base, (size_t)n);
    spend(f, (size_t)n);
}

static void on_connected(uv_connect_t *c, int status) {
    gs_http_fetch *f = c->data;
    if (f->over)
        return;
    if (status == 0)
        status = uv_read_start((uv_stream_t *)&f->tcp, on_alloc, on_read);
    if (status != 0)
        end(f, GS_ERR_UNAVAILABLE);
    else if (f->tls)
        decrypt(f, "", 0);
    else
        send_request(f);
}

/* ---- limits ---- */

/* Bytes that may come between two ticks; without a rate nobody looks at it. */
static size_t budget_of(const gs_http_limits *l) {
    return l->rate / (1000 / TICK_MS) + 1;
}

static void on_tick(uv_timer_t *h) {
    gs_http_fetch *f = h->data;
    const gs_http_limits *l = &f->cfg.limits;
    const int64_t limit_ms = !f->sent ? l->connect_ms : f->in_body ? l->silence_ms : l->head_ms;
    f->budget = budget_of(l);
    if (f->paused) {
        f->since_ns = gs_now_ns();
    } else if (f->held) { /* its silence is ours */
        f->held = false;
        f->since_ns = gs_now_ns();
        if (uv_read_start((uv_stream_t *)&f->tcp, on_alloc, on_read) != 0)
            end(f, GS_ERR_IO);
    } else if (limit_ms > 0 && gs_now_ns() - f->since_ns >= limit_ms * GS_NS_PER_MS) {
        end(f, f->sent ? GS_ERR_TIMEOUT : GS_ERR_UNAVAILABLE);
    }
}

static bool has_limits(const gs_http_limits *l) {
    return l->connect_ms > 0 || l->head_ms > 0 || l->silence_ms > 0 || l->rate > 0;
}

/* ---- start ---- */

static void write_request(gs_http_fetch *f) {
    const gs_http_fetch_config *c = &f->cfg;
    gs_buf_printf(&f->request, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", c->method,
                  c->path, c->host);
    if (c->headers)
        gs_buf_str(&f->request, c->headers);
    if (c->body)
        gs_buf_printf(&f->request, "Content-Length: %zu\r\n", c->n_body);
    gs_buf_str(&f->request, "\r\n");
    if (c->body)
        gs_buf_add(&f->request, c->body, c->n_body);
}

static void init_parser(gs_http_fetch *f) {
    llhttp_settings_init(&f->settings);
    f->settings.on_header_field = on_field;
    f->settings.on_header_value = on_value;
    f->settings.on_headers_complete = on_headers;
    f->settings.on_body = on_data;
    f->settings.on_message_complete = on_complete;
    llhttp_init(&f->parser, HTTP_RESPONSE, &f->settings);
    f->parser.data = f;
}

gs_http_fetch *gs_http_fetch_start(uv_loop_t *loop, const gs_http_fetch_config *cfg) {
    gs_http_fetch *f = gs_calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->cfg = *cfg;
    write_request(f);
    if (cfg->tls)
        f->tls = gs_tls_create(cfg->tls, cfg->tls_name);
    f->cfg.body = NULL;
    f->cfg.headers = f->cfg.method = f->cfg.path = f->cfg.host = f->cfg.tls_name = NULL;
    f->cfg.tls = NULL;
    init_parser(f);
    if (f->request.failed || (cfg->tls && !f->tls) || uv_tcp_init(loop, &f->tcp) != 0) {
        gs_tls_free(f->tls);
        gs_buf_deinit(&f->request);
        gs_free(f);
        return NULL;
    }
    uv_timer_init(loop, &f->timer);
    f->n_handles = 2;
    f->tcp.data = f->connect.data = f->timer.data = f;
    f->since_ns = gs_now_ns();
    f->budget = budget_of(&cfg->limits);
    uv_tcp_nodelay(&f->tcp, 1);
    if (uv_tcp_connect(&f->connect, &f->tcp, (const struct sockaddr *)cfg->addr, on_connected) !=
        0) {
        close_it(f);
        return NULL;
    }
    if (has_limits(&cfg->limits))
        uv_timer_start(&f->timer, on_tick, TICK_MS, TICK_MS);
    return f;
}
