/*
 * /dashboard, /chat and their scripts (web/web.h). They hold no data, so they need no key; what
 * they show is asked for with one. The browser keeps them and asks whether they are still the same.
 */
#include <string.h>

#include "api/api_impl.h"
#include "api/route.h"
#include "base/err.h"
#include "web/web.h"

/* Nothing from elsewhere, nothing inline, in nobody's frame; HTML is only made by the sanitiser. */
static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify";

/* A list such as `gzip;q=1.0, br`: whether gzip is in it and not refused. */
static bool takes_gzip(const char *accept) {
    const char *at = accept ? strstr(accept, "gzip") : NULL;
    return at && strncmp(at + 4, ";q=0", 4) != 0;
}

static void add_headers(gs_http_request *rq, const gs_web_file *f) {
    gs_http_add_header(rq, "ETag", f->etag);
    gs_http_add_header(rq, "Cache-Control", "no-cache");
    gs_http_add_header(rq, "Vary", "Accept-Encoding");
    gs_http_add_header(rq, "Content-Security-Policy", policy);
    gs_http_add_header(rq, "Referrer-Policy", "no-referrer");
    gs_http_add_header(rq, "Cross-Origin-Opener-Policy", "same-origin");
    gs_http_add_header(rq, "Cross-Origin-Resource-Policy", "same-origin");
}

static void get_page(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)a;
    (void)body;
    gs_api_error e;
    const gs_web_file *f = gs_web_find(gs_http_path(rq));
    if (!f) {
        gs_api_fail(&e, GS_ERR_NOT_FOUND, NULL, "There is no page %.128s here.", gs_http_path(rq));
        gs_api_reply_error(rq, &e);
        return;
    }
    const char *have = gs_http_header(rq, "if-none-match");
    if (have && strstr(have, f->etag)) {
        add_headers(rq, f);
        gs_http_reply(rq, 304, NULL, "", 0);
        return;
    }
    if (takes_gzip(gs_http_header(rq, "accept-encoding"))) {
        add_headers(rq, f);
        gs_http_add_header(rq, "Content-Encoding", "gzip");
        gs_http_reply(rq, 200, f->type, (const char *)f->gz, f->n_gz);
        return;
    }
    gs_buf out = {0};
    int rc = gs_web_content(f, &out);
    if (rc == GS_OK) {
        add_headers(rq, f);
        gs_http_reply(rq, 200, f->type, out.data, out.len);
    } else {
        gs_api_fail(&e, rc, NULL, "The page can't be unpacked: %s.", gs_err_text(rc));
        gs_api_reply_error(rq, &e);
    }
    gs_buf_deinit(&out);
}

// clang-format off
static const gs_route routes[] = {
    {"GET", "/dashboard", GS_ROUTE_OPEN, get_page, "The dashboard", .answer = "text/html"},
    {"GET", "/chat", GS_ROUTE_OPEN, get_page, "The chat page", .answer = "text/html"},
    {"GET", "/web/{file}", GS_ROUTE_OPEN | GS_ROUTE_PART, get_page, "What these pages need", .answer = "*/*"},
    {.path = NULL},
};
// clang-format on

const gs_api_part gs_pages_part = {"pages", "Pages for a browser.", routes, NULL};
