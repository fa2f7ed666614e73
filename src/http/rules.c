/* What a head means, and which heads are refused although every byte of them is legal. */
#include "http/parse_impl.h"

#include <string.h>
#include <strings.h>

#include "base/utf8.h"

/* More digits than any body we accept has, and few enough that 64 bits hold them. */
#define MAX_LENGTH_DIGITS 18

static bool refuse(gs_http_parser *p, int status, const char *message) {
    gs_guard_fail(p, status, message);
    return false;
}

/* Repeating one of these lets two parties see two different requests. */
static bool check_repeats(gs_http_parser *p) {
    static const char *const single[] = {
        "host",   "content-length", "transfer-encoding", "content-type", "authorization",
        "origin", "expect",
    };
    for (size_t k = 0; k < sizeof single / sizeof *single; k++) {
        int seen = 0;
        for (int i = 0; i < p->msg->n_fields; i++)
            seen += strcasecmp(p->msg->fields[i].name, single[k]) == 0;
        if (seen > 1)
            return refuse(p, 400, "a header that may stand once is repeated");
    }
    return true;
}

static void find_limit(gs_http_parser *p) {
    const gs_http_msg_limits *l = p->limits;
    p->max_body_bytes = l->max_body_bytes;
    size_t own = l->body_limit ? l->body_limit(l->user, p->msg->method, p->msg->path) : 0;
    if (own > 0)
        p->max_body_bytes = own;
}

/* RFC 9112 section 6. */
static bool check_framing(gs_http_parser *p) {
    gs_http_msg *m = p->msg;
    const char *te = gs_http_msg_header(m, "Transfer-Encoding");
    const char *cl = gs_http_msg_header(m, "Content-Length");
    if (te && cl)
        return refuse(p, 400, "Content-Length and Transfer-Encoding exclude each other");
    if (te && m->http10)
        return refuse(p, 400, "HTTP/1.0 knows no Transfer-Encoding");
    if (te && strcasecmp(te, "chunked") != 0)
        return refuse(p, 400, "Transfer-Encoding must be \"chunked\"");
    m->chunked = te != NULL;
    find_limit(p);
    if (!cl)
        return true;
    size_t n = strlen(cl);
    if (n == 0 || n > MAX_LENGTH_DIGITS || strspn(cl, "0123456789") != n)
        return refuse(p, 400, "invalid Content-Length");
    m->has_length = true;
    for (size_t i = 0; i < n; i++)
        m->content_length = m->content_length * 10 + (uint64_t)(cl[i] - '0');
    if (m->content_length > p->max_body_bytes)
        return refuse(p, 413, "the request body is too large");
    return true;
}

static bool check_expect(gs_http_parser *p) {
    gs_http_msg *m = p->msg;
    const char *expect = gs_http_msg_header(m, "Expect");
    if (!expect || m->http10) /* RFC 9110 section 10.1.1: ignored from HTTP/1.0 */
        return true;
    if (strcasecmp(expect, "100-continue") != 0)
        return refuse(p, 417, "only \"Expect: 100-continue\" is known");
    m->expect_continue = true;
    return true;
}

/* host[:port] with characters that names, IPv4 and [IPv6] literals can have: no user@, no path. */
static bool valid_host(const char *s) {
    for (; *s; s++) {
        const char c = *s;
        bool alnum = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!alnum && !strchr("-._~:[]%", c))
            return false;
    }
    return true;
}

static bool check_host(gs_http_parser *p) {
    const char *host = gs_http_msg_header(p->msg, "Host");
    if (!host)
        return p->msg->http10 || refuse(p, 400, "the Host header is missing");
    if (!valid_host(host))
        return refuse(p, 400, "invalid Host header");
    return true;
}

/* "http://host/path" is legal to send to any server. The authority has to say what Host says:
 * whoever checks Host against an allow-list must not be talked past it. Returns the path. */
static char *skip_authority(gs_http_parser *p, char *target) {
    static const char scheme[] = "http://";
    const char *host = gs_http_msg_header(p->msg, "Host");
    if (strncasecmp(target, scheme, sizeof scheme - 1) != 0)
        return NULL;
    char *authority = target + sizeof scheme - 1;
    size_t n = strcspn(authority, "/?");
    if (n == 0 || !host || strlen(host) != n || strncasecmp(host, authority, n) != 0)
        return NULL;
    return authority + n;
}

static bool check_target(gs_http_parser *p, char *target) {
    gs_http_msg *m = p->msg;
    m->query = "";
    if (strchr(target, '#') || strchr(target, ' '))
        return refuse(p, 400, "malformed request target");
    if (strcmp(target, "*") == 0 && strcmp(m->method, "OPTIONS") == 0) {
        m->path = target;
        return true;
    }
    if (*target != '/' && !(target = skip_authority(p, target)))
        return refuse(p, 400, "malformed request target");
    char *mark = strchr(target, '?');
    if (mark) {
        *mark = 0;
        m->query = mark + 1;
    }
    if (!gs_http_decode_path(target))
        return refuse(p, 400, "malformed request target");
    m->path = *target ? target : "/";
    return true;
}

bool gs_http_check_head(gs_http_parser *p, char *target) {
    return check_repeats(p) && check_host(p) && check_target(p, target) && check_framing(p) &&
           check_expect(p);
}

static int hex(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool gs_http_decode_path(char *s) {
    char *out = s;
    for (const char *in = s; *in; in++) {
        int c = (unsigned char)*in;
        if (c == '%') {
            int hi = hex(in[1]);
            int lo = hi < 0 ? -1 : hex(in[2]);
            if (lo < 0)
                return false;
            c = hi * 16 + lo;
            in += 2;
        }
        if (c < 0x20 || c == 0x7f)
            return false;
        *out++ = (char)c;
    }
    *out = 0;
    return gs_utf8_valid(s, (size_t)(out - s));
}
