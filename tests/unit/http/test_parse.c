/*
 * The parser without sockets: what is refused, what is understood, and that neither depends on
 * how the bytes were cut. The shapes of the refused requests are those of RFC 9112 section 11.2
 * and of the HTTP Garden (arXiv 2405.17737).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "base/sys.h"
#include "http/parse_impl.h"
#include "faults/fault.h"

static const gs_http_msg_limits limits = {
    .max_line_bytes = 200, .max_header_bytes = 1000, .max_body_bytes = 100, .max_headers = 8};

typedef struct outcome {
    gs_http_parse rc;
    int status;
    size_t used;
    gs_http_msg msg;
} outcome;

/* Feeds n bytes in pieces: step 0 cuts at random, otherwise step bytes each. */
static outcome feed(const char *data, size_t n, size_t step, gs_rng *rng) {
    outcome o = {.rc = GS_HTTP_PARSE_MORE};
    gs_http_parser p;
    gs_http_parser_begin(&p, &limits, &o.msg);
    int heads = 0;
    while (o.used < n && o.rc != GS_HTTP_PARSE_DONE && o.rc != GS_HTTP_PARSE_FAIL) {
        size_t k = step ? step : 1 + gs_rng_below(rng, 9);
        size_t used;
        if (k > n - o.used)
            k = n - o.used;
        /* A copy of exactly k bytes: reading beyond is then an error that ASan sees. */
        char *piece = gs_malloc(k);
        memcpy(piece, data + o.used, k);
        o.rc = gs_http_parser_feed(&p, piece, k, &used);
        gs_free(piece);
        assert_true(used <= k);
        assert_true(used == k || o.rc != GS_HTTP_PARSE_MORE);
        o.used += used;
        heads += o.rc == GS_HTTP_PARSE_HEAD;
    }
    assert_true(heads <= 1);
    o.status = o.rc == GS_HTTP_PARSE_FAIL ? p.status : 0;
    if (o.rc == GS_HTTP_PARSE_FAIL)
        assert_true(p.message && *p.message);
    return o;
}

static void assert_same(const outcome *a, const outcome *b) {
    assert_int_equal(a->rc == GS_HTTP_PARSE_HEAD ? GS_HTTP_PARSE_MORE : a->rc,
                     b->rc == GS_HTTP_PARSE_HEAD ? GS_HTTP_PARSE_MORE : b->rc);
    assert_int_equal(a->status, b->status);
    if (a->rc != GS_HTTP_PARSE_FAIL) /* a refusal takes the connection with it */
        assert_int_equal(a->used, b->used);
    if (a->rc != GS_HTTP_PARSE_DONE)
        return;
    assert_string_equal(a->msg.method, b->msg.method);
    assert_string_equal(a->msg.path, b->msg.path);
    assert_string_equal(a->msg.query, b->msg.query);
    assert_int_equal(a->msg.keep_alive, b->msg.keep_alive);
    assert_int_equal(a->msg.n_fields, b->msg.n_fields);
    for (int i = 0; i < a->msg.n_fields; i++) {
        assert_string_equal(a->msg.fields[i].name, b->msg.fields[i].name);
        assert_string_equal(a->msg.fields[i].value, b->msg.fields[i].value);
    }
    assert_int_equal(a->msg.body.len, b->msg.body.len);
    if (a->msg.body.len)
        assert_memory_equal(a->msg.body.data, b->msg.body.data, a->msg.body.len);
}

/* The outcome of one piece, after all other ways to cut it gave the same. */
static outcome parse(const char *data, size_t n) {
    gs_rng rng;
    gs_rng_seed(&rng, 1);
    outcome whole = feed(data, n, n ? n : 1, &rng);
    for (size_t step = 0; step <= 3; step++) {
        outcome o = feed(data, n, step, &rng);
        assert_same(&whole, &o);
        gs_http_msg_deinit(&o.msg);
    }
    return whole;
}

typedef struct refused {
    int status;
    const char *bytes;
    size_t n;
} refused;

#define H   "Host: x\r\n"
#define GET "GET / HTTP/1.1\r\n" H
#define PUT "POST / HTTP/1.1\r\n" H
#define TE  PUT "Transfer-Encoding: chunked\r\n\r\n"
#define BAD(status, s)                                                                             \
    { status, s, sizeof(s) - 1 } /* s may have a NUL inside */

static const refused bad[] = {
    /* lengths that two parsers could read differently */
    BAD(400, PUT "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 5\r\ncontent-length: 0\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 5, 5\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: +5\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: -5\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 0x5\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 5 5\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 5a\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 5.0\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 1e1\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 1_0\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: \"5\"\r\n\r\nhello"),
    BAD(400, PUT "Content-Length:\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: \r\n\r\nhello"),
    BAD(400, PUT "Content-Length: \xd9\xa5\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 18446744073709551616\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 18446744073709551621\r\n\r\nhello"),
    BAD(400, PUT "Content-Length : 5\r\n\r\nhello"),
    BAD(400, PUT "Content-Length\t: 5\r\n\r\nhello"),
    BAD(400, PUT " Content-Length: 5\r\n\r\nhello"),
    BAD(400, PUT "Content-Length: 5\r\n 0\r\n\r\nhello"),
    BAD(400, PUT "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: gzip\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: identity\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: chunkedx\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: chun ked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding:\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding:\x0b"
                 "chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding: chunked\x0c\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding:\xa0"
                 "chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding\r\n : chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    BAD(400, PUT "Content-Length: 1000000000000000000\r\n\r\nhello"),
    BAD(413, PUT "Content-Length: 101\r\n\r\n"),
    BAD(413, PUT "Content-Length: 999999999999999999\r\n\r\n"),
    /* chunks */
    BAD(400, TE "-2\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "+5\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "0x5\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "5 \r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE " 5\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "5\t\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "g\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "5_\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE ";a=b\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "5;a=b\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "5\r\nhello\r\n0;a\r\n\r\n"),
    BAD(400, TE "5\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "5\rhello\r\n0\r\n\r\n"),
    BAD(400, TE "5\r\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "5\r\nhello\n0\r\n\r\n"),
    BAD(400, TE "5\r\nhello0\r\n\r\n"),
    BAD(400, TE "5\r\nhelloo\r\n0\r\n\r\n"),
    BAD(400, TE "5\r\nhell\r\n0\r\n\r\n"),
    BAD(400, TE "5\r\nhello\r\n0\n\n"),
    BAD(400, TE "5\r\nhello\r\n0\r\n\n"),
    BAD(400, TE "5\r\nhello\r\n0\r\nX: y\r\n\r\n"),
    BAD(400, TE "5\r\nhello\r\n0\r\nContent-Length: 3\r\n\r\n"),
    BAD(400, TE "5;a\nb\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "5;a\rb\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "5;\x01\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "000000005\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "100000000\r\nhello"),
    BAD(400, TE "ffffffffffffffff\r\nhello"),
    BAD(400, TE "10000000000000005\r\nhello\r\n0\r\n\r\n"),
    BAD(400, TE "5\0\r\nhello\r\n0\r\n\r\n"),
    BAD(413, TE "65\r\n"),
    BAD(413, TE "ffffffff\r\n"),
    BAD(413, TE "40\r\n0123456789012345678901234567890123456789012345678901234567890123\r\n40\r\n"),
    /* line ends */
    BAD(400, "GET / HTTP/1.1\nHost: x\n\n"),
    BAD(400, "GET / HTTP/1.1\r\nHost: x\n\r\n"),
    BAD(400, "GET / HTTP/1.1\r\nHost: x\r\n\n"),
    BAD(400, "GET / HTTP/1.1\nHost: x\r\n\r\n"),
    BAD(400, "GET / HTTP/1.1\rHost: x\r\r"),
    BAD(400, "GET / HTTP/1.1\r\rHost: x\r\n\r\n"),
    BAD(400, GET "X: a\rb\r\n\r\n"),
    BAD(400, GET "X: a\r\r\n\r\n"),
    BAD(400, GET "X: a\nY: b\r\n\r\n"),
    BAD(400, GET "X: a\n\r\n"),
    BAD(400, GET "\rX: a\r\n\r\n"),
    BAD(400, "\nGET / HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "\rGET / HTTP/1.1\r\n" H "\r\n"),
    BAD(400, " GET / HTTP/1.1\r\n" H "\r\n"),
    /* header lines */
    BAD(400, GET " X: folded\r\n\r\n"),
    BAD(400, GET "\tX: folded\r\n\r\n"),
    BAD(400, GET "X: a\r\n b\r\n\r\n"),
    BAD(400, GET "X: a\r\n\tb\r\n\r\n"),
    BAD(400, "GET / HTTP/1.1\r\n " H "\r\n"),
    BAD(400, GET "X : a\r\n\r\n"),
    BAD(400, GET "X\t: a\r\n\r\n"),
    BAD(400, GET "X Y: a\r\n\r\n"),
    BAD(400, GET ": a\r\n\r\n"),
    BAD(400, GET "X\r\n\r\n"),
    BAD(400, GET "X(: a\r\n\r\n"),
    BAD(400, GET "X@: a\r\n\r\n"),
    BAD(400, GET "X\x7f: a\r\n\r\n"),
    BAD(400, GET "X\xc3\xa9: a\r\n\r\n"),
    BAD(400, GET "X: \x01\r\n\r\n"),
    BAD(400, GET "X: \x1b[31m\r\n\r\n"),
    BAD(400, GET "X: \x7f\r\n\r\n"),
    BAD(400, GET "X: a\0b\r\n\r\n"),
    BAD(400, GET "X\0: a\r\n\r\n"),
    BAD(400, "GET /\0 HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "\0"),
    BAD(431, GET "A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1\r\nF: 1\r\nG: 1\r\nI: 1\r\n\r\n"),
    /* host and other headers that may stand once */
    BAD(400, "GET / HTTP/1.1\r\n\r\n"),
    BAD(400, "GET / HTTP/1.1\r\nX: y\r\n\r\n"),
    BAD(400, GET H "\r\n"),
    BAD(400, GET "host: y\r\n\r\n"),
    BAD(400, "GET / HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n"),
    BAD(400, "GET / HTTP/1.1\r\nHost: x y\r\n\r\n"),
    BAD(400, "GET / HTTP/1.1\r\nHost: x, y\r\n\r\n"),
    BAD(400, "GET / HTTP/1.1\r\nHost: u@x\r\n\r\n"),
    BAD(400, "GET / HTTP/1.1\r\nHost: x/y\r\n\r\n"),
    BAD(400, "GET / HTTP/1.1\r\nHost: x\\y\r\n\r\n"),
    BAD(400, "GET / HTTP/1.1\r\nHost: \xc3\xa9\r\n\r\n"),
    BAD(400, GET "Authorization: a\r\nAuthorization: b\r\n\r\n"),
    BAD(400, PUT "Content-Type: a/b\r\nContent-Type: c/d\r\n\r\n"),
    BAD(400, GET "Origin: http://a\r\nOrigin: http://b\r\n\r\n"),
    BAD(417, PUT "Expect: 200-ok\r\nContent-Length: 5\r\n\r\n"),
    /* request line */
    BAD(400, "GET  / HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /  HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET / HTTP/1.1 \r\n" H "\r\n"),
    BAD(400, "GET\t/ HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET / a HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /\x80 HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /\r\n"
             "\r\n"),
    BAD(400, "GET\r\n\r\n"),
    BAD(400, "GET /\r\n" H "\r\n"),
    BAD(400, "GET HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET / http/1.1\r\n" H "\r\n"),
    BAD(400, "GET / HTTP/1\r\n" H "\r\n"),
    BAD(400, "GET / HTTP/11\r\n" H "\r\n"),
    BAD(400, "GET / HTTP/1.10\r\n" H "\r\n"),
    BAD(400, "GET / HTTP/01.1\r\n" H "\r\n"),
    BAD(400, "GET / HTTP/1,1\r\n" H "\r\n"),
    BAD(400, "GET / XHTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET / ICE/1.0\r\n" H "\r\n"),
    BAD(400, "GET / RTSP/1.0\r\n" H "\r\n"),
    BAD(505, "GET / HTTP/0.9\r\n" H "\r\n"),
    BAD(505, "GET / HTTP/1.2\r\n" H "\r\n"),
    BAD(505, "GET / HTTP/2.0\r\n" H "\r\n"),
    BAD(505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    BAD(400, "get / HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GETT / HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "G\x7f / HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "CONNECT x:80 HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "PRI * HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET * HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET x HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET \\ HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /a#b HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET http://y/ HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET http://x@y/ HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET http://x/ HTTP/1.0\r\n\r\n"),
    BAD(400, "GET http://xy/ HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET http:///a HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET https://x/ HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET file:///etc/passwd HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /% HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /%4 HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /%4g HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /%00 HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /a%0d%0ab HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /%1b HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /%7f HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /%ff HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /%c0%af HTTP/1.1\r\n" H "\r\n"),
    BAD(400, "GET /%ed%a0%80 HTTP/1.1\r\n" H "\r\n"),
    /* other protocols */
    BAD(400, "\x16\x03\x01\x02\x00\x01\x00\x01"),
    BAD(400, "SSH-2.0-OpenSSH\r\n\r\n"),
    BAD(400, "\x80"),
};

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t n = bad[i].n;
        outcome o = parse(bad[i].bytes, n);
        if (o.rc != GS_HTTP_PARSE_FAIL || o.status != bad[i].status)
            print_error("case %zu: rc %d status %d: %s\n", i, (int)o.rc, o.status, bad[i].bytes);
        assert_int_equal(o.rc, GS_HTTP_PARSE_FAIL);
        assert_int_equal(o.status, bad[i].status);
        gs_http_msg_deinit(&o.msg);
    }
}

typedef struct understood {
    const char *bytes;
    const char *rest; /* of bytes: what is not this message's */
    const char *method;
    const char *path;
    const char *query;
    const char *body;
    bool keep_alive;
} understood;

static const understood good[] = {
    {GET "\r\n", "", "GET", "/", "", "", true},
    {GET "\r\nGET", "GET", "GET", "/", "", "", true},
    {"\r\n" GET "\r\n", "", "GET", "/", "", "", true},
    {"HEAD /a?b=c?d HTTP/1.1\r\n" H "\r\n", "", "HEAD", "/a", "b=c?d", "", true},
    {"GET /? HTTP/1.1\r\n" H "\r\n", "", "GET", "/", "", "", true},
    {"GET http://x HTTP/1.1\r\n" H "\r\n", "", "GET", "/", "", "", true},
    {"GET HTTP://X/a?b HTTP/1.1\r\n" H "\r\n", "", "GET", "/a", "b", "", true},
    {"GET http://x?b HTTP/1.1\r\n" H "\r\n", "", "GET", "/", "b", "", true},
    {"OPTIONS * HTTP/1.1\r\n" H "\r\n", "", "OPTIONS", "*", "", "", true},
    {"GET /%41%2f%e2%82%ac%25 HTTP/1.1\r\n" H "\r\n", "", "GET", "/A/\xe2\x82\xac%", "", "", true},
    {"GET /?%00%zz HTTP/1.1\r\n" H "\r\n", "", "GET", "/", "%00%zz", "", true},
    {GET "Connection: close\r\n\r\n", "", "GET", "/", "", "", false},
    {GET "Connection: x, Close\r\n\r\n", "", "GET", "/", "", "", false},
    {"GET / HTTP/1.0\r\n\r\n", "", "GET", "/", "", "", false},
    {"GET / HTTP/1.0\r\nExpect: anything\r\n\r\n", "", "GET", "/", "", "", false},
    {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "", "GET", "/", "", "", true},
    {GET "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\nX", "X",
     "GET", "/", "", "", true},
    {PUT "Content-Length: 0\r\n\r\nX", "X", "POST", "/", "", "", true},
    {PUT "Content-Length:5\r\n\r\nhelloX", "X", "POST", "/", "", "hello", true},
    {PUT "Content-Length:   005  \r\n\r\nhello", "", "POST", "/", "", "hello", true},
    {PUT "Connection: upgrade\r\nUpgrade: a\r\nContent-Length: 5\r\n\r\nhelloX", "X", "POST", "/",
     "", "hello", true},
    {TE "0\r\n\r\nX", "X", "POST", "/", "", "", true},
    {TE "5\r\nhello\r\n0\r\n\r\nX", "X", "POST", "/", "", "hello", true},
    {TE "5\r\nhello\r\n0006\r\n world\r\n000\r\n\r\n", "", "POST", "/", "", "hello world", true},
    {TE "A\r\n0123456789\r\n0\r\n\r\n", "", "POST", "/", "", "0123456789", true},
    {PUT "TRANSFER-ENCODING: \tCHUNKED \r\n\r\na\r\n\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n", "", "POST",
     "/", "", "\r\n\r\n\r\n\r\n\r\n", true},
    {PUT "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\nx", "", "POST", "/", "", "x", true},
    {"GET / HTTP/1.1\r\nHost: [::1]:11434\r\n\r\n", "", "GET", "/", "", "", true},
    {"GET / HTTP/1.1\r\nHost: Z-9.example_A~%25:80\r\n\r\n", "", "GET", "/", "", "", true},
    {"GET / HTTP/1.1\r\nHost:\r\n\r\n", "", "GET", "/", "", "", true},
};

static void test_understood(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const understood *g = &good[i];
        size_t n = strlen(g->bytes);
        outcome o = parse(g->bytes, n);
        if (o.rc != GS_HTTP_PARSE_DONE)
            print_error("case %zu: rc %d status %d: %s\n", i, (int)o.rc, o.status, g->bytes);
        assert_int_equal(o.rc, GS_HTTP_PARSE_DONE);
        assert_string_equal(g->bytes + o.used, g->rest);
        assert_string_equal(o.msg.method, g->method);
        assert_string_equal(o.msg.path, g->path);
        assert_string_equal(o.msg.query, g->query);
        assert_int_equal(o.msg.keep_alive, g->keep_alive);
        assert_int_equal(o.msg.body.len, strlen(g->body));
        if (*g->body)
            assert_memory_equal(o.msg.body.data, g->body, strlen(g->body));
        gs_http_msg_deinit(&o.msg);
    }
}

static void test_values(void **state) {
    (void)state;
    static const char text[] =
        GET "A: \t x y\t \r\nEmpty:\r\nB:\r\nb: second\r\nC: \xc3\xa9\xff\r\n\r\n";
    outcome o = parse(text, sizeof text - 1);
    assert_int_equal(o.rc, GS_HTTP_PARSE_DONE);
    assert_int_equal(o.msg.n_fields, 6);
    assert_string_equal(gs_http_msg_header(&o.msg, "a"), "x y");
    assert_string_equal(gs_http_msg_header(&o.msg, "EMPTY"), "");
    assert_string_equal(gs_http_msg_header(&o.msg, "b"), "");
    assert_string_equal(gs_http_msg_header(&o.msg, "c"), "\xc3\xa9\xff");
    assert_null(gs_http_msg_header(&o.msg, "d"));
    gs_http_msg_deinit(&o.msg);
}

/* Prefixes of a good message never fail and never are complete. */
static void test_prefixes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        size_t n = strlen(good[i].bytes) - strlen(good[i].rest);
        for (size_t k = 0; k < n; k++) {
            outcome o = parse(good[i].bytes, k);
            assert_true(o.rc == GS_HTTP_PARSE_MORE || o.rc == GS_HTTP_PARSE_HEAD);
            assert_int_equal(o.used, k);
            gs_http_msg_deinit(&o.msg);
        }
    }
}

/* What has ended takes no more; nothing is nothing new. */
static void test_after_the_end(void **state) {
    (void)state;
    static const struct {
        const char *text;
        gs_http_parse rc;
    } cases[] = {{GET "\r\n", GS_HTTP_PARSE_DONE}, {"nonsense\n", GS_HTTP_PARSE_FAIL}};
    for (int i = 0; i < 2; i++) {
        gs_http_msg msg = {0};
        gs_http_parser p;
        size_t used = 7;
        gs_http_parser_begin(&p, &limits, &msg);
        assert_int_equal(gs_http_parser_feed(&p, "", 0, &used), GS_HTTP_PARSE_MORE);
        assert_int_equal(used, 0);
        assert_int_equal(gs_http_parser_feed(&p, cases[i].text, strlen(cases[i].text), &used),
                         cases[i].rc);
        assert_int_equal(gs_http_parser_feed(&p, "GET ", 4, &used), cases[i].rc);
        assert_int_equal(used, 0);
        gs_http_msg_deinit(&msg);
    }
}

/* head, then n times c, then tail. */
static int status_with(const char *head, char c, size_t n, const char *tail) {
    gs_buf b = {0};
    gs_buf_str(&b, head);
    for (size_t i = 0; i < n; i++)
        gs_buf_char(&b, c);
    gs_buf_str(&b, tail);
    outcome o = parse(b.data, b.len);
    gs_buf_deinit(&b);
    int status = o.rc == GS_HTTP_PARSE_DONE ? 200 : o.status;
    gs_http_msg_deinit(&o.msg);
    return status;
}

static void test_limits(void **state) {
    (void)state;
    static const char line_end[] = " HTTP/1.1\r\n" H "\r\n";
    size_t fits = limits.max_line_bytes - strlen("GET / HTTP/1.1");
    assert_int_equal(status_with("GET /", 'a', fits, line_end), 200);
    assert_int_equal(status_with("GET /", 'a', fits + 1, line_end), 414);
    fits = limits.max_line_bytes - strlen("X: ");
    assert_int_equal(status_with(GET "X: ", 'a', fits, "\r\n\r\n"), 200);
    assert_int_equal(status_with(GET "X: ", 'a', fits + 1, "\r\n\r\n"), 431);
    assert_int_equal(status_with(GET "", 'a', limits.max_line_bytes + 1, ""), 431);
    assert_int_equal(status_with(GET "X:", ' ', limits.max_line_bytes, ""), 431);
    assert_int_equal(status_with(PUT "Content-Length: 100\r\n\r\n", 'b', 100, ""), 200);
    assert_int_equal(status_with(TE "64\r\n", 'b', 100, "\r\n0\r\n\r\n"), 200);
    assert_int_equal(status_with(TE "64\r\n", 'b', 100, "\r\n1\r\nb\r\n0\r\n\r\n"), 413);
    /* six lines of 170 bytes: each is fine, together they are too many */
    gs_buf b = {0};
    gs_buf_str(&b, GET);
    for (int i = 0; i < 6; i++)
        gs_buf_printf(&b, "X%d: %0164d\r\n", i, 0);
    gs_buf_str(&b, "\r\n");
    outcome o = parse(b.data, b.len);
    assert_int_equal(o.status, 431);
    gs_http_msg_deinit(&o.msg);
    gs_buf_deinit(&b);
}

static void test_out_of_memory(void **state) {
    (void)state;
    static const char text[] = TE "5\r\nhello\r\n0\r\n\r\n";
    int failed = 0;
    for (uint64_t nth = 1; nth < 50; nth++) {
        outcome o = {.rc = GS_HTTP_PARSE_MORE};
        gs_http_parser p;
        gs_http_parser_begin(&p, &limits, &o.msg);
        gs_fault_set(GS_FAULT_ALLOC, nth, 0);
        while (o.used < sizeof text - 1 && o.rc <= GS_HTTP_PARSE_HEAD) {
            size_t used;
            o.rc = gs_http_parser_feed(&p, text + o.used, 1, &used);
            o.used += used;
        }
        uint64_t calls = gs_fault_calls(GS_FAULT_ALLOC);
        gs_fault_clear();
        gs_http_msg_deinit(&o.msg);
        if (calls < nth) {
            assert_int_equal(o.rc, GS_HTTP_PARSE_DONE);
            break;
        }
        assert_int_equal(o.rc, GS_HTTP_PARSE_FAIL);
        assert_int_equal(p.status, 503);
        failed++;
    }
    assert_true(failed >= 3); /* head, fields, body */
}

/* Random edits of good and bad messages: any verdict, but one that no cut changes. */
static void test_mutations(void **state) {
    (void)state;
    static const char alphabet[] = "\r\n\r\n\t :;,0123456789abcdefGET/HTP%.\x01\x7f\x80\xff";
    gs_rng rng;
    gs_rng_seed(&rng, 20240517);
    size_t n_good = sizeof good / sizeof *good, n_bad = sizeof bad / sizeof *bad;
    for (int round = 0; round < 5000; round++) {
        size_t pick = gs_rng_below(&rng, n_good + n_bad);
        const char *seed = pick < n_good ? good[pick].bytes : bad[pick - n_good].bytes;
        char text[512];
        size_t n = pick < n_good ? strlen(seed) : bad[pick - n_good].n;
        memcpy(text, seed, n);
        for (uint64_t edits = 1 + gs_rng_below(&rng, 3); edits > 0 && n > 1; edits--) {
            size_t at = gs_rng_below(&rng, n);
            char c = alphabet[gs_rng_below(&rng, sizeof alphabet)]; /* NUL too */
            switch (gs_rng_below(&rng, 3)) {
            case 0:
                text[at] = c;
                break;
            case 1:
                memmove(text + at, text + at + 1, --n - at);
                break;
            default:
                memmove(text + at + 1, text + at, n++ - at);
                text[at] = c;
                break;
            }
        }
        outcome o = parse(text, n);
        gs_http_msg_deinit(&o.msg);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_understood),
        cmocka_unit_test(test_values),    cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_mutations), cmocka_unit_test(test_after_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
