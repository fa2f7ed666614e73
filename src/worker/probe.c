/* Is it there, what does it have, how busy is it: asked now and then, and after a failure. */
#include <jansson.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "worker/worker_impl.h"

#define MAX_ANSWER ((size_t)1 << 20)

/* ---- Models -------------------------------------------------------------------------------- */

/* A hostile name must not get into logs, pages and headers. */
static bool is_name(const char *text) {
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == '"' || *p == '\\' || *p == 0x7f)
            return false;
    return text[0] != '\0';
}

/* False: the answer is no list of models. */
static bool take_list(gs_worker *w, const json_t *root) {
    const json_t *data = json_object_get(root, "data");
    const bool listed = w->cfg.models.n == 0;
    if (!json_is_array(data))
        return false;
    const char *owner = json_string_value(json_object_get(json_array_get(data, 0), "owned_by"));
    w->dialect = w->cfg.dialect > 0 ? gs_worker_dialect_at((size_t)w->cfg.dialect - 1)
                                    : gs_worker_dialect_of(owner);
    for (size_t i = 0; listed && i < json_array_size(data); i++) {
        const char *id = json_string_value(json_object_get(json_array_get(data, i), "id"));
        if (id && is_name(id) && !gs_worker_add_model(w, id, strlen(id), id))
            gs_warn("worker", "not listed worker=%s model=%.80s", w->name, id);
    }
    gs_worker_describe(w);
    return true;
}

/* ---- The exchange -------------------------------------------------------------------------- */

static void ask(gs_worker *w, const char *path);

static void probed(gs_worker *w, const char *why) {
    struct gs_worker_impl *x = w->impl;
    x->probing = false;
    x->fetch = NULL;
    gs_buf_clear(&x->body);
    if (x->removed) {
        gs_worker_release(w);
        return;
    }
    const bool told = gs_place_probed(x->ws->place, w->index, !why, gs_now_ns());
    if (why && strcmp(why, w->why) != 0)
        gs_warn("worker", "worker=%s does not answer: %s", w->name, why);
    else if (!why && told && w->why[0])
        gs_info("worker", "worker=%s answers", w->name);
    if (why || told)
        snprintf(w->why, sizeof(w->why), "%s", why ? why : "");
    gs_workers_pump_soon(x->ws);
}

static void on_head(void *user, int status) {
    gs_worker *w = user;
    w->impl->status = status;
}

static void on_body(void *user, const char *data, size_t n) {
    gs_worker *w = user;
    gs_buf_add(&w->impl->body, data, n);
}

static void take_gauges(gs_worker *w) {
    const gs_buf *b = &w->impl->body;
    if (w->impl->status != 200 || b->len == 0)
        return;
    w->foreign_running = (int32_t)gs_worker_gauge(b->data, b->len, w->dialect->running);
    w->foreign_waiting = (int32_t)gs_worker_gauge(b->data, b->len, w->dialect->waiting);
}

static void on_end(void *user, int code) {
    gs_worker *w = user;
    struct gs_worker_impl *x = w->impl;
    char why[240] = "";
    const char *reason = gs_remote_reason(x->fetch, code);
    x->fetch = NULL;
    if (x->metrics) { /* nobody's worker is down for want of these */
        if (code == 0)
            take_gauges(w);
        probed(w, NULL);
        return;
    }
    json_t *root =
        code == 0 ? json_loadb(x->body.data ? x->body.data : "", x->body.len, 0, NULL) : NULL;
    if (code != 0)
        snprintf(why, sizeof(why), "%s", reason);
    else if (x->status != 200)
        snprintf(why, sizeof(why), "its list of models has HTTP status %d%s", x->status,
                 x->status / 100 == 3 ? ": a redirect, which is not followed" : "");
    else if (!take_list(w, root))
        snprintf(why, sizeof(why), "%s", "what it answers is no list of models");
    json_decref(root);
    if (why[0] == '\0' && w->dialect->metrics_path && !x->removed)
        ask(w, w->dialect->metrics_path);
    else
        probed(w, why[0] ? why : NULL);
}

static void ask(gs_worker *w, const char *path) {
    struct gs_worker_impl *x = w->impl;
    char full[320];
    gs_buf headers = {0};
    gs_buf_clear(&x->body);
    x->status = 0;
    x->metrics = strcmp(path, "/v1/models") != 0;
    gs_remote_path(&x->url, path, full, sizeof(full));
    gs_remote_headers(x->key, false, &headers);
    const char *lines = gs_buf_cstr(&headers);
    x->fetch =
        lines ? gs_http_fetch_start(
                    x->ws->loop, &(gs_http_fetch_config){.addr = &x->url.addr,
                                                         .method = "GET",
                                                         .host = x->url.host,
                                                         .path = full,
                                                         .headers = lines,
                                                         .tls = x->tls,
                                                         .tls_name = x->url.name,
                                                         .limits = {.connect_ms = w->cfg.timeout_ms,
                                                                    .head_ms = w->cfg.timeout_ms,
                                                                    .silence_ms = w->cfg.timeout_ms,
                                                                    .head_bytes = 16384,
                                                                    .bytes = MAX_ANSWER,
                                                                    .rate = MAX_ANSWER},
                                                         .on_head = on_head,
                                                         .on_body = on_body,
                                                         .on_end = on_end,
                                                         .user = w})
              : NULL;
    gs_buf_deinit(&headers);
    if (!x->fetch)
        probed(w, gs_err_text(GS_ERR_NOMEM));
}

static void on_resolved(uv_getaddrinfo_t *q, int status, struct addrinfo *found) {
    gs_worker *w = q->data;
    struct gs_worker_impl *x = w->impl;
    char why[240];
    if (status == 0 && found->ai_addrlen <= sizeof(x->url.addr))
        memcpy(&x->url.addr, found->ai_addr, found->ai_addrlen);
    uv_freeaddrinfo(found);
    if (status != 0 && !x->removed) {
        snprintf(why, sizeof(why), "its name '%.100s' is not known: %s", x->url.name,
                 uv_strerror(status));
        probed(w, why);
    } else if (x->removed) {
        probed(w, NULL);
    } else {
        ask(w, "/v1/models");
    }
}

void gs_worker_probe(gs_worker *w) {
    struct gs_worker_impl *x = w->impl;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    if (x->probing)
        return;
    x->probing = true;
    x->resolve.data = w;
    if (uv_getaddrinfo(x->ws->loop, &x->resolve, on_resolved, x->url.name, x->url.port, &hints) !=
        0)
        probed(w, "its name can't be looked up");
}

void gs_worker_stop_probe(gs_worker *w) {
    struct gs_worker_impl *x = w->impl;
    if (!x->fetch)
        return; /* on_resolved sees that it is removed */
    gs_http_fetch_cancel(x->fetch);
    x->fetch = NULL;
    x->probing = false;
}
