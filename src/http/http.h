/*
 * HTTP/1.1 server on libuv and llhttp: connections, limits, parsing, replies, streams.
 * Knows nothing of models, JSON or routes: a handler gets whole requests.
 *
 * Owner: the event-loop thread, for every function here. Request objects:
 *
 *     on_request(user, rq) is called once the head and the whole body are there.
 *       - answer at once:  gs_http_reply(rq, 200, "application/json", data, n)
 *       - or keep rq and answer later, from the event loop: gs_http_reply, or
 *         gs_http_begin / gs_http_write* / gs_http_end  (chunked; SSE or NDJSON on top).
 *     on_gone(user, rq): the client went away before the answer was complete: it closed or
 *         half-closed the connection, stopped reading, or the server is being closed. Said once,
 *         never from inside another function of this header except gs_http_server_close. rq stays
 *         valid until it is released; all answering functions then do nothing else.
 *     Each request is released exactly once, by gs_http_reply, gs_http_end or gs_http_abort.
 *
 * A reader is cut when bytes wait for it and none moved for write_timeout_ms, and a stream at once
 * when more than 16 * max_buffered_bytes wait. Pipelined requests are handled one after another;
 * more than 64 KiB of them while an answer is owed end the connection. Limits and smuggling rules:
 * RFC 9112; what is ambiguous is refused with 400, and 408/413/414/417/431/503/505 say the rest, in
 * the error shape that cfg.error_body makes; then the connection is closed.
 */
#ifndef GS_HTTP_HTTP_H
#define GS_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "base/buf.h"

typedef struct gs_http_server gs_http_server;
typedef struct gs_http_request gs_http_request;

typedef struct gs_http_config {
    const char *const *hosts; /* addresses to listen on, e.g. "127.0.0.1", "::1" */
    int n_hosts;
    int port;                        /* 0: any free one, see gs_http_port */
    int max_connections;             /* 2048 */
    int max_connections_per_address; /* 256; IPv6 counts by /64 */
    int header_timeout_ms;           /* 10000, from the first byte (or accept) to the head's end */
    int body_timeout_ms;             /* 30000: each such window must bring at least ... */
    int min_body_bytes_per_s;        /* ... 1024 bytes for each of its seconds */
    int keep_alive_ms;               /* 75000 */
    int write_timeout_ms;            /* 30000 without progress */
    size_t max_line_bytes;           /* 8192: request line, each header */
    size_t max_header_bytes;         /* 32768 */
    int max_headers;                 /* 64 */
    size_t max_body_bytes;           /* 4 MiB; also for chunked bodies */
    size_t max_buffered_bytes;       /* 64 KiB unsent beyond the kernel's; see above */
    /* Most bytes of a body for this method and path; 0: max_body_bytes. NULL: always that. */
    size_t (*body_limit)(void *user, const char *method, const char *path);
    /* The head of a request whose body follows: the time for gs_http_stream_body. 0, or a status
     * with which the request is refused and the connection closed, and *message. NULL: none. */
    int (*on_head)(void *user, gs_http_request *rq, const char **message);
    void (*on_request)(void *user, gs_http_request *rq);
    void (*on_gone)(void *user, gs_http_request *rq);
    /* Writes the body for an error that the server itself answers (JSON); path is "" where it could
     * not be read. NULL: plain text. */
    void (*error_body)(void *user, int status, const char *path, const char *message, gs_buf *out);
    void *user;
} gs_http_config;

void gs_http_config_default(gs_http_config *c);
/* Binds and listens. GS_ERR_EXISTS when the port is taken, with a sentence naming it. When one of
 * several hosts can't be bound because the machine lacks the family (no IPv6), it is skipped. */
int gs_http_server_create(uv_loop_t *loop, const gs_http_config *cfg, gs_http_server **out,
                          char *err, size_t errlen);
int gs_http_port(const gs_http_server *s); /* the port of the first listener */
int gs_http_n_connections(const gs_http_server *s);
/* Held for connections: their buffers, bodies and themselves. Walks over all of them. */
uint64_t gs_http_bytes(const gs_http_server *s);
uint64_t gs_http_max_bytes(const gs_http_server *s); /* what they can come to by its limits */
/* Stops accepting and closes idle connections; answers under way go on, with "Connection: close".
 */
void gs_http_server_drain(gs_http_server *s);
/* Closes everything; on_gone is called for requests still owed an answer. Then done(arg) once all
 * handles are closed and s is freed. */
void gs_http_server_close(gs_http_server *s, void (*done)(void *arg), void *arg);

/* ---- request ---- */
const char *gs_http_method(const gs_http_request *rq); /* "GET" */
const char *gs_http_path(const gs_http_request *rq);   /* decoded, without query; no NUL inside */
const char *gs_http_query(const gs_http_request *rq);  /* raw, after '?', or "" */
/* First header of that name (case-insensitive), or NULL. Values are trimmed and printable. */
const char *gs_http_header(const gs_http_request *rq, const char *name);
const char *gs_http_body(const gs_http_request *rq, size_t *n); /* never NULL */
const char *gs_http_peer(const gs_http_request *rq);            /* "127.0.0.1", "::1" */
bool gs_http_gone(const gs_http_request *rq);
void gs_http_set_user(gs_http_request *rq, void *user);
void *gs_http_user(const gs_http_request *rq);

/*
 * Large bodies: from on_head, hands the body to data as it comes instead of keeping it for
 * gs_http_body. cut: the rest will not come, rq is gone, on_request will not be called for it.
 * After the last byte on_request is called as ever. Neither may answer.
 */
typedef struct gs_http_sink {
    void (*data)(void *arg, const char *data, size_t n);
    void (*cut)(void *arg);
    void *arg;
} gs_http_sink;
void gs_http_stream_body(gs_http_request *rq, const gs_http_sink *sink);
/* Between on_head and on_request: stops reading from the client (what was read before still comes),
 * so that it sends no faster than the disk writes; and goes on. */
void gs_http_pause_body(gs_http_request *rq);
void gs_http_resume_body(gs_http_request *rq);

/*
 * A request that came over no socket: handlers can't tell the difference. It has a method, a path
 * and a body, no headers, no peer ("") and belongs to owner. answer is called once: with the
 * status and the whole body (a stream's bytes as they would have gone out), or with status 0
 * where a client would have seen its connection break. NULL: out of memory.
 */
typedef struct gs_http_local {
    const char *method, *path;
    const char *body;
    size_t n_body;
    void *owner;
    void (*answer)(void *arg, int status, const char *body, size_t n);
    void *arg;
} gs_http_local;
gs_http_request *gs_http_local_create(const gs_http_local *l);
/* NULL: it came over a socket. */
void *gs_http_local_owner(const gs_http_request *rq);
/* Its owner no longer wants an answer: none will come. on_gone of the server's user is for the
 * caller to call afterwards. */
void gs_http_local_leave(gs_http_request *rq);

/* ---- reply ---- */
/* Adds a header to the answer, before reply/begin. CR, LF and NUL are dropped from the value. */
void gs_http_add_header(gs_http_request *rq, const char *name, const char *value);
void gs_http_reply(gs_http_request *rq, int status, const char *content_type, const char *body,
                   size_t n);
/* content_type stays valid until rq is released. */
void gs_http_begin(gs_http_request *rq, int status, const char *content_type);
/* The content type of an answer that has begun; NULL: it has not. gs_http_reply with status 200
 * then writes the body and ends it; with another one it aborts. */
const char *gs_http_begun(const gs_http_request *rq);
/* Bytes of the answer that the client has not taken yet: who streams what can also be left out
 * looks here first. */
size_t gs_http_unsent(const gs_http_request *rq);
/* Queues bytes of a begun answer; flushed at the end of the loop turn, so that several tokens of
 * one step leave in one write. */
void gs_http_write(gs_http_request *rq, const char *data, size_t n);
/* Of a begun answer: calls back once, from the loop, when all bytes so far are the kernel's; not at
 * all when the client leaves. For answers that are larger than what may wait. */
void gs_http_when_written(gs_http_request *rq, void (*written)(void *arg), void *arg);
void gs_http_end(gs_http_request *rq);
/* Instead of gs_http_end: the connection is reset, so that the client sees a failure. */
void gs_http_abort(gs_http_request *rq);

#endif
