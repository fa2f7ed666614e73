/* llhttp on top of the guard: extraction of the head's fields and of the body. */
#include "http/parse_impl.h"

#include <string.h>
#include <strings.h>

#include "base/sys.h"

void gs_http_msg_deinit(gs_http_msg *m) {
    gs_buf_deinit(&m->head);
    gs_buf_deinit(&m->body);
    gs_free(m->fields);
    memset(m, 0, sizeof *m);
}

const char *gs_http_msg_header(const gs_http_msg *m, const char *name) {
    for (int i = 0; i < m->n_fields; i++)
        if (strcasecmp(m->fields[i].name, name) == 0)
            return m->fields[i].value;
    return NULL;
}

/* ---- llhttp callbacks. The head is fed in one call, so spans are pointers into msg->head. ---- */

typedef struct gs_http_spans {
    const char *target;
    const char *target_end;
    gs_http_field *fields; /* starts only; parser->n_fields of them */
    int n_names;
    int n_values;
} gs_http_spans;

static int on_url(llhttp_t *ll, const char *at, size_t n) {
    gs_http_spans *s = ((gs_http_parser *)ll->data)->spans;
    if (!s->target)
        s->target = at;
    s->target_end = at + n;
    return 0;
}

static int on_field(llhttp_t *ll, const char *at, size_t n) {
    (void)n;
    gs_http_parser *p = ll->data;
    gs_http_spans *s = p->spans;
    if (s->n_names != s->n_values)
        return 0; /* the same name goes on */
    if (s->n_names == p->n_fields)
        return -1; /* more fields than the guard saw */
    s->fields[s->n_names].name = at;
    s->fields[s->n_names++].value = NULL;
    return 0;
}

static int on_value(llhttp_t *ll, const char *at, size_t n) {
    gs_http_spans *s = ((gs_http_parser *)ll->data)->spans;
    if (s->n_names > 0 && n > 0 && !s->fields[s->n_names - 1].value)
        s->fields[s->n_names - 1].value = at;
    return 0;
}

static int on_value_end(llhttp_t *ll) {
    gs_http_spans *s = ((gs_http_parser *)ll->data)->spans;
    s->n_values = s->n_names;
    return 0;
}

static int on_head(llhttp_t *ll) {
    /* A request to upgrade (HTTP/2, WebSocket) is one that a server may ignore. */
    ll->upgrade = 0;
    /* Here, because without a body llhttp forgets its flags before it returns. */
    ((gs_http_parser *)ll->data)->msg->keep_alive = llhttp_should_keep_alive(ll);
    return 0;
}

static int on_body(llhttp_t *ll, const char *at, size_t n) {
    gs_http_parser *p = ll->data;
    return gs_buf_add(&p->msg->body, at, n) ? -1 : 0;
}

static int on_message(llhttp_t *ll) {
    ((gs_http_parser *)ll->data)->ll_done = true;
    return 0;
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_header_value_complete = on_value_end,
    .on_headers_complete = on_head,
    .on_body = on_body,
    .on_message_complete = on_message,
};

void gs_http_parser_begin(gs_http_parser *p, const gs_http_msg_limits *limits, gs_http_msg *msg) {
    memset(p, 0, sizeof *p);
    p->limits = limits;
    p->msg = msg;
    msg->head.secret = true; /* Authorization */
    /* Lenient flags stay at their default, off. A new parser for each message carries no state
     * from one request into the next. */
    llhttp_init(&p->ll, HTTP_REQUEST, &settings);
    p->ll.data = p;
}

/* ---- Head --------------------------------------------------------------------------------- */

/*
 * Terminates names and values in place. Their limits come from the guard's grammar (a colon and a
 * CR exist); where llhttp saw a value begin elsewhere, or a different number of fields, the head
 * is refused.
 */
static bool cut_fields(gs_http_parser *p, const gs_http_spans *s) {
    gs_http_msg *m = p->msg;
    if (s->n_names != p->n_fields)
        return false;
    for (int i = 0; i < s->n_names; i++) {
        size_t at = (size_t)(s->fields[i].name - m->head.data);
        char *name = m->head.data + at;
        char *end = m->head.data + m->head.len;
        char *colon = memchr(name, ':', (size_t)(end - name));
        char *cr = colon ? memchr(colon, '\r', (size_t)(end - colon)) : NULL;
        if (!cr || !gs_http_is_token(name, (size_t)(colon - name)))
            return false;
        char *value = colon + 1;
        while (*value == ' ' || *value == '\t')
            value++;
        if (s->fields[i].value && s->fields[i].value != value)
            return false;
        while (cr > value && (cr[-1] == ' ' || cr[-1] == '\t'))
            cr--;
        *colon = 0;
        *cr = 0;
        s->fields[i].value = value;
    }
    m->fields = s->fields;
    m->n_fields = s->n_names;
    return true;
}

/* "METHOD SP target SP HTTP/1.x". llhttp lets more spaces pass, and knows other versions and the
 * methods of other protocols. */
static bool check_version(gs_http_parser *p) {
    gs_http_msg *m = p->msg;
    const char *line = m->head.data;
    const char *cr = memchr(line, '\r', m->head.len);
    const char *sp = memrchr(line, ' ', (size_t)(cr - line));
    size_t n = sp ? (size_t)(cr - sp - 1) : 0;
    int n_spaces = 0;
    for (const char *at = line; at < cr; at++)
        n_spaces += *at == ' ';
    if (n_spaces != 2 || n != 8 || memcmp(sp + 1, "HTTP/", 5) != 0 || sp[7] != '.')
        gs_guard_fail(p, 400, "malformed request line");
    else if (sp[6] != '1' || (sp[8] != '0' && sp[8] != '1'))
        gs_guard_fail(p, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    else
        m->http10 = sp[8] == '0';
    return p->state != GS_GUARD_FAILED;
}

static void fail_head(gs_http_parser *p, llhttp_errno_t rc) {
    if (rc == HPE_INVALID_METHOD)
        gs_guard_fail(p, 400, "unknown request method");
    else if (rc == HPE_INVALID_URL)
        gs_guard_fail(p, 400, "malformed request target");
    else if (rc == HPE_INVALID_CONTENT_LENGTH || rc == HPE_UNEXPECTED_CONTENT_LENGTH)
        gs_guard_fail(p, 400, "invalid Content-Length");
    else if (rc == HPE_INVALID_TRANSFER_ENCODING)
        gs_guard_fail(p, 400, "invalid Transfer-Encoding");
    else
        gs_guard_fail(p, 400, "malformed request head");
}

/* The whole head is in msg->head. */
static void parse_head(gs_http_parser *p) {
    gs_http_msg *m = p->msg;
    gs_http_spans spans = {0};
    if (!check_version(p))
        return;
    spans.fields = gs_array((size_t)p->n_fields + 1, sizeof *spans.fields);
    if (!spans.fields) {
        gs_guard_fail(p, 503, "out of memory");
        return;
    }
    m->fields = spans.fields; /* freed with the message, n_fields stays 0 until they are whole */
    p->spans = &spans;
    llhttp_errno_t rc = llhttp_execute(&p->ll, m->head.data, m->head.len);
    p->spans = NULL;
    if (rc != HPE_OK) {
        fail_head(p, rc);
        return;
    }
    size_t at = spans.target ? (size_t)(spans.target - m->head.data) : 0;
    size_t end = spans.target ? (size_t)(spans.target_end - m->head.data) : 0;
    if (at == 0 || m->head.data[end] != ' ' || !cut_fields(p, &spans)) {
        gs_guard_fail(p, 400, "malformed request head");
        return;
    }
    m->head.data[end] = 0;
    m->method = llhttp_method_name((llhttp_method_t)p->ll.method);
    m->is_head = p->ll.method == HTTP_HEAD;
    if (!gs_http_check_head(p, m->head.data + at))
        return;
    bool body = m->chunked || m->content_length > 0;
    if (body == p->ll_done) {
        gs_guard_fail(p, 400, "ambiguous message length");
        return;
    }
    p->left = m->chunked ? 0 : m->content_length;
    p->state = !body ? GS_GUARD_DONE : m->chunked ? GS_GUARD_CHUNK_SIZE : GS_GUARD_LENGTH;
}

static gs_http_parse feed_head(gs_http_parser *p, const char *data, size_t n, size_t *used) {
    size_t skip = 0;
    /* An empty line before the request is not part of what llhttp gets to see. */
    while (skip < n && (p->state == GS_GUARD_START || p->state == GS_GUARD_START_LF) &&
           (data[skip] == '\r' || p->state == GS_GUARD_START_LF)) {
        size_t one = gs_guard_head(p, data + skip, 1);
        skip += one;
        if (p->state == GS_GUARD_FAILED)
            return GS_HTTP_PARSE_FAIL;
    }
    size_t k = gs_guard_head(p, data + skip, n - skip);
    *used = skip + k;
    if (p->state == GS_GUARD_FAILED)
        return GS_HTTP_PARSE_FAIL;
    if (gs_buf_add(&p->msg->head, data + skip, k)) {
        gs_guard_fail(p, 503, "out of memory");
        return GS_HTTP_PARSE_FAIL;
    }
    if (p->state != GS_GUARD_LENGTH)
        return GS_HTTP_PARSE_MORE;
    parse_head(p);
    return p->state == GS_GUARD_FAILED ? GS_HTTP_PARSE_FAIL
           : p->state == GS_GUARD_DONE ? GS_HTTP_PARSE_DONE
                                       : GS_HTTP_PARSE_HEAD;
}

/* ---- Body --------------------------------------------------------------------------------- */

static gs_http_parse feed_body(gs_http_parser *p, const char *data, size_t n, size_t *used) {
    size_t k;
    if (p->state == GS_GUARD_LENGTH) {
        k = n < p->left ? n : (size_t)p->left;
        p->left -= k;
        if (p->left == 0)
            p->state = GS_GUARD_DONE;
    } else {
        k = gs_guard_chunked(p, data, n);
    }
    *used = k;
    if (p->state == GS_GUARD_FAILED)
        return GS_HTTP_PARSE_FAIL;
    llhttp_errno_t rc = llhttp_execute(&p->ll, data, k);
    if (p->msg->body.failed)
        gs_guard_fail(p, 503, "out of memory");
    else if (rc != HPE_OK || p->ll_done != (p->state == GS_GUARD_DONE))
        gs_guard_fail(p, 400, "malformed request body");
    if (p->state == GS_GUARD_FAILED)
        return GS_HTTP_PARSE_FAIL;
    return p->state == GS_GUARD_DONE ? GS_HTTP_PARSE_DONE : GS_HTTP_PARSE_MORE;
}

gs_http_parse gs_http_parser_feed(gs_http_parser *p, const char *data, size_t n, size_t *used) {
    *used = 0;
    if (p->state == GS_GUARD_FAILED)
        return GS_HTTP_PARSE_FAIL;
    if (p->state == GS_GUARD_DONE)
        return GS_HTTP_PARSE_DONE;
    if (n == 0)
        return GS_HTTP_PARSE_MORE;
    return p->state < GS_GUARD_LENGTH ? feed_head(p, data, n, used) : feed_body(p, data, n, used);
}
