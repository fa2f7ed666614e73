/*
 * Request parsing without sockets: bytes in, one gs_http_msg out. Private to http/ and its tests.
 *
 * Two parsers look at every byte. A small strict one (guard) accepts only the unambiguous subset
 * of RFC 9112 and decides where the head, each chunk and the body end; llhttp then extracts the
 * fields from what was accepted. Where the two disagree the message is refused, because a proxy
 * in front could disagree as well: that is what request smuggling lives on (arXiv 2405.17737).
 *
 *     gs_http_parser_begin(&p, &limits, &msg);
 *     while ((rc = gs_http_parser_feed(&p, data, n, &used)) == GS_HTTP_PARSE_HEAD) ...
 *
 * The result does not depend on how the bytes were cut into calls.
 */
#ifndef GS_HTTP_PARSE_IMPL_H
#define GS_HTTP_PARSE_IMPL_H

#include <llhttp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

typedef struct gs_http_msg_limits {
    size_t max_line_bytes;
    size_t max_header_bytes;
    size_t max_body_bytes;
    int max_headers;
    size_t (*body_limit)(void *user, const char *method, const char *path); /* as in http.h */
    void *user;
} gs_http_msg_limits;

typedef struct gs_http_field {
    const char *name; /* into msg->head, terminated there */
    const char *value;
} gs_http_field;

/* Zero-initialised is empty. Pointers go into head, which no longer moves once it is whole. */
typedef struct gs_http_msg {
    gs_buf head;
    gs_buf body;
    gs_http_field *fields;
    int n_fields;
    const char *method;
    const char *path;
    const char *query;
    uint64_t content_length;
    bool has_length;
    bool chunked;
    bool http10;
    bool keep_alive;
    bool expect_continue;
    bool is_head;
} gs_http_msg;

void gs_http_msg_deinit(gs_http_msg *m);
const char *gs_http_msg_header(const gs_http_msg *m, const char *name);

typedef enum gs_http_parse {
    GS_HTTP_PARSE_MORE, /* everything consumed, not complete yet */
    GS_HTTP_PARSE_HEAD, /* the head is whole and a body follows; said once */
    GS_HTTP_PARSE_DONE, /* the message is whole; bytes after *used are the next one's */
    GS_HTTP_PARSE_FAIL  /* status and message say why; the connection must be closed */
} gs_http_parse;

/* What the strict parser expects next. */
typedef enum gs_http_guard {
    GS_GUARD_START,
    GS_GUARD_START_LF,
    GS_GUARD_LINE,
    GS_GUARD_LINE_LF,
    GS_GUARD_NAME_FIRST,
    GS_GUARD_NAME,
    GS_GUARD_VALUE,
    GS_GUARD_VALUE_LF,
    GS_GUARD_HEAD_LF,
    GS_GUARD_LENGTH,
    GS_GUARD_CHUNK_SIZE,
    GS_GUARD_CHUNK_LF,
    GS_GUARD_CHUNK_DATA,
    GS_GUARD_CHUNK_DATA_CR,
    GS_GUARD_CHUNK_DATA_LF,
    GS_GUARD_LAST_CR,
    GS_GUARD_LAST_LF,
    GS_GUARD_DONE,
    GS_GUARD_FAILED
} gs_http_guard;

struct gs_http_spans;

typedef struct gs_http_parser {
    llhttp_t ll;
    struct gs_http_spans *spans; /* only while the head is given to llhttp */
    const gs_http_msg_limits *limits;
    gs_http_msg *msg;
    size_t line_bytes;
    size_t head_bytes;
    uint64_t max_body_bytes; /* of this message */
    uint64_t left;           /* of the length-delimited body, or of the chunk */
    uint64_t body_bytes;     /* sum of the chunk sizes seen */
    int n_digits;            /* of the chunk size */
    int n_fields;            /* counted by the guard */
    gs_http_guard state;
    bool skipped_line; /* one empty line before the request line is allowed */
    bool ll_done;
    int status; /* set with GS_HTTP_PARSE_FAIL */
    const char *message;
} gs_http_parser;

/* limits and msg must outlive the parser's use of them. */
void gs_http_parser_begin(gs_http_parser *p, const gs_http_msg_limits *limits, gs_http_msg *msg);
gs_http_parse gs_http_parser_feed(gs_http_parser *p, const char *data, size_t n, size_t *used);

/* ---- guard.c ---- */
/* Moves over as many bytes of the head as are fine; returns how many. state == GS_GUARD_LENGTH
 * afterwards means that the head is whole, GS_GUARD_FAILED that status and message are set. */
size_t gs_guard_head(gs_http_parser *p, const char *data, size_t n);
/* The same for a chunked body, until GS_GUARD_DONE. */
size_t gs_guard_chunked(gs_http_parser *p, const char *data, size_t n);
void gs_guard_fail(gs_http_parser *p, int status, const char *message);
bool gs_http_is_token(const char *s, size_t n);

/* ---- rules.c ---- */
/* The meaning of a head whose fields are extracted: framing, host, target. Sets status and message
 * when it is refused. target is a terminated string inside msg->head and is decoded in place. */
bool gs_http_check_head(gs_http_parser *p, char *target);
/* Decodes %XX in place; false for bad escapes, control characters and text that is no UTF-8. */
bool gs_http_decode_path(char *s);

#endif
