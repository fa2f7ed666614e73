#include "http/client.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/sys.h"
#include "llhttp.h"

#define MAX_HEADERS 65536 /* bytes of the answer's headers that are kept */

struct gs_http_fetch {
    uv_tcp_t tcp; /* first */
    uv_connect_t connect;
    uv_write_t write;
    gs_http_fetch_config cfg;
    gs_buf request; /* head and body, until they are written */
    gs_buf headers; /* "name\0value\0" ... of the answer */
    llhttp_t parser;
    llhttp_settings_t settings;
    bool in_value, whole, over;
    char in[65536];
};

/* ---- URLs ------------------------------------------------------------------------------------*/

static int split_url(const char *text, char host[200], char port[8], gs_http_url *out) {
    const size_t n = strcspn(text, "/");
    const char *path = text + n;
    if (n == 0 || n >= 200 || strlen(path) >= sizeof out->base)
        return GS_ERR_INVALID;
    snprintf(host, 200, "%.*s", (int)n, text);
    snprintf(out->host, sizeof out->host, "%s", host);
    snprintf(out->base, sizeof out->base, "%s", path);
    for (size_t len = strlen(out->base); len > 0 && out->base[len - 1] == '/'; len--)
        out->base[len - 1] = '\0';
    char *colon = strrchr(host, ':');
    const char *bracket = strrchr(host, ']');
    snprintf(port, 8, "80");
    if (colon && (!bracket || colon > bracket)) {
        if (strlen(colon + 1) == 0 || strlen(colon + 1) > 5)
            return GS_ERR_INVALID;
        snprintf(port, 8, "%s", colon + 1);
        *colon = '\0';
    }
    if (host[0] == '[') { /* [::1] */
        host[strcspn(host, "]")] = '\0';
        memmove(host, host + 1, strlen(host));
    }
    return 0;
}

int gs_http_url_parse(uv_loop_t *loop, const char *text, gs_http_url *out, char *err,
                      size_t errlen) {
    static const char scheme[] = "http://";
    char host[200], port[8];
    uv_getaddrinfo_t info;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    *out = (gs_http_url){0};
    if (strncasecmp(text, "https://", 8) == 0)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "%s: https is not supported here", text);
    if (strncasecmp(text, scheme, sizeof scheme - 1) != 0 ||
        split_url(text + sizeof scheme - 1, host, port, out) != 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "'%.100s' is no http:// URL", text);
    const int rc = uv_getaddrinfo(loop, &info, NULL, host, port, &hints);
    if (rc != 0)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", host, uv_strerror(rc));
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
    if (!f->in_value)
        gs_buf_char(&f->headers, '\0');
    f->in_value = true;
    keep(f, at, n);
    return 0;
}

static int on_headers(llhttp_t *p) {
    gs_http_fetch *f = of(p);
    gs_buf_char(&f->headers, '\0');
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
    of(p)->whole = true;
    return HPE_PAUSED;
}

const char *gs_http_fetch_header(const gs_http_fetch *f, const char *name) {
    const char *at = f->headers.data, *end = at ? at + f->headers.len : NULL;
    while (at && at < end) {
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
    gs_buf_deinit(&f->request);
    gs_buf_deinit(&f->headers);
    gs_free(f);
}

static void close_it(gs_http_fetch *f) {
    f->over = true;
    if (!uv_is_closing((uv_handle_t *)&f->tcp))
        uv_close((uv_handle_t *)&f->tcp, on_closed);
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

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *out) {
    (void)n;
    gs_http_fetch *f = h->data;
    *out = uv_buf_init(f->in, sizeof f->in);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
    gs_http_fetch *f = s->data;
    if (f->over || n == 0)
        return;
    if (n < 0) {
        /* An answer without a length ends with the connection. */
        if (n == UV_EOF)
            llhttp_finish(&f->parser);
        end(f, f->whole ? 0 : GS_ERR_IO);
        return;
    }
    const llhttp_errno_t rc = llhttp_execute(&f->parser, buf->base, (size_t)n);
    if (f->whole)
        end(f, 0);
    else if (rc != HPE_OK)
        end(f, GS_ERR_FORMAT);
}

static void on_written(uv_write_t *w, int status) {
    gs_http_fetch *f = w->data;
    gs_buf_deinit(&f->request);
    if (status < 0 && status != UV_ECANCELED)
        end(f, GS_ERR_IO);
}

static void on_connected(uv_connect_t *c, int status) {
    gs_http_fetch *f = c->data;
    if (f->over)
        return;
    uv_buf_t b = uv_buf_init(f->request.data, (unsigned)f->request.len);
    f->write.data = f;
    if (status == 0)
        status = uv_read_start((uv_stream_t *)&f->tcp, on_alloc, on_read);
    if (status == 0)
        status = uv_write(&f->write, (uv_stream_t *)&f->tcp, &b, 1, on_written);
    if (status != 0)
        end(f, GS_ERR_IO);
}

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

gs_http_fetch *gs_http_fetch_start(uv_loop_t *loop, const gs_http_fetch_config *cfg) {
    gs_http_fetch *f = gs_calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->cfg = *cfg;
    write_request(f);
    f->cfg.body = NULL;
    f->cfg.headers = f->cfg.method = f->cfg.path = f->cfg.host = NULL;
    llhttp_settings_init(&f->settings);
    f->settings.on_header_field = on_field;
    f->settings.on_header_value = on_value;
    f->settings.on_headers_complete = on_headers;
    f->settings.on_body = on_data;
    f->settings.on_message_complete = on_complete;
    llhttp_init(&f->parser, HTTP_RESPONSE, &f->settings);
    f->parser.data = f;
    if (f->request.failed || uv_tcp_init(loop, &f->tcp) != 0) {
        gs_buf_deinit(&f->request);
        gs_free(f);
        return NULL;
    }
    f->tcp.data = f->connect.data = f;
    uv_tcp_nodelay(&f->tcp, 1);
    if (uv_tcp_connect(&f->connect, &f->tcp, (const struct sockaddr *)cfg->addr, on_connected) !=
        0) {
        close_it(f);
        return NULL;
    }
    return f;
}
