/*
 * Request parsing: the input's first byte says how the rest is cut into pieces. Whatever the
 * bytes, the parser must stay within them, end in one of its four answers, give the same answer
 * for one piece as for many, and never let through what the rules forbid.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "http/parse_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const gs_http_msg_limits limits = {
    .max_line_bytes = 512, .max_header_bytes = 2048, .max_body_bytes = 1024, .max_headers = 16};

typedef struct result {
    gs_http_parse rc;
    int status;
    size_t used;
    gs_http_msg msg;
} result;

static void feed(const char *data, size_t n, size_t step, result *r) {
    gs_http_parser p;
    memset(r, 0, sizeof *r);
    gs_http_parser_begin(&p, &limits, &r->msg);
    while (r->used < n && (r->rc == GS_HTTP_PARSE_MORE || r->rc == GS_HTTP_PARSE_HEAD)) {
        size_t left = n - r->used;
        size_t used;
        r->rc = gs_http_parser_feed(&p, data + r->used, step < left ? step : left, &used);
        GS_ASSERT(used <= left);
        r->used += used;
    }
    r->status = r->rc == GS_HTTP_PARSE_FAIL ? p.status : 0;
}

static void check_message(const gs_http_msg *m) {
    GS_ASSERT(m->body.len <= limits.max_body_bytes);
    GS_ASSERT(m->n_fields <= limits.max_headers);
    GS_ASSERT(m->chunked || m->body.len == m->content_length);
    GS_ASSERT(m->path[0] == '/' || strcmp(m->path, "*") == 0);
    GS_ASSERT(gs_utf8_valid(m->path, strlen(m->path)));
    GS_ASSERT(!(m->chunked && gs_http_msg_header(m, "Content-Length")));
    for (int i = 0; i < m->n_fields; i++) {
        GS_ASSERT(gs_http_is_token(m->fields[i].name, strlen(m->fields[i].name)));
        GS_ASSERT(!strpbrk(m->fields[i].value, "\r\n"));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2)
        return 0;
    const char *bytes = (const char *)data + 1;
    result whole, cut;
    feed(bytes, n - 1, n, &whole);
    feed(bytes, n - 1, 1u + data[0] % 16u, &cut);
    GS_ASSERT((whole.rc == GS_HTTP_PARSE_DONE) == (cut.rc == GS_HTTP_PARSE_DONE));
    GS_ASSERT(whole.status == cut.status);
    if (whole.rc == GS_HTTP_PARSE_DONE) {
        GS_ASSERT(whole.used == cut.used);
        GS_ASSERT(whole.msg.body.len == cut.msg.body.len);
        check_message(&whole.msg);
        check_message(&cut.msg);
    }
    gs_http_msg_deinit(&whole.msg);
    gs_http_msg_deinit(&cut.msg);
    return 0;
}
