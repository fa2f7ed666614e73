/*
 * One request to another server in OpenAI's dialect, from body to last byte, on the event loop.
 *
 * Chat and completions are always asked for as a stream, embeddings as a whole. What comes back is
 * told as parts, the same whatever the server: text, reasoning, calls in order. Nothing of it is
 * trusted: not its type, size, speed, order or JSON. The worst that a hostile server can do is a
 * clean failure of this request.
 *
 * Redirects are not followed. The server gets the key of its own, never a client's.
 *
 * Owner: the event-loop thread.
 */
#ifndef GS_WORKER_REMOTE_H
#define GS_WORKER_REMOTE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "http/client.h"

typedef struct gs_remote gs_remote;

typedef enum gs_remote_kind { GS_REMOTE_CHAT, GS_REMOTE_TEXT, GS_REMOTE_EMBEDDINGS } gs_remote_kind;

typedef enum gs_remote_part_kind {
    GS_REMOTE_PART_TEXT,
    GS_REMOTE_PART_REASONING,
    GS_REMOTE_PART_CALL, /* a call begins; data: the function's name */
    GS_REMOTE_PART_ARGS  /* more of the newest call's arguments */
} gs_remote_part_kind;

/* Tokens; -1: it did not say. */
typedef struct gs_remote_usage {
    int32_t n_prompt, n_cached, n_output;
} gs_remote_usage;

typedef struct gs_remote_end {
    /* 0: the answer is whole. GS_ERR_UNAVAILABLE, IO, TIMEOUT, TOO_LARGE, FORMAT: the server has
     * failed. GS_ERR_OVERLOADED: it has too much to do. GS_ERR_NOMEM: we have. GS_ERR_INVALID: the
     * request is wrong in its eyes, and would be again. */
    int code;
    int status;                /* its HTTP status; 0: none came */
    const char *finish_reason; /* static: "stop", "length", "tool_calls" */
    gs_remote_usage usage;
    int32_t retry_after_s; /* when to ask again, as far as is known; 0: it is not */
    const char *message;   /* for people, "" without; valid during the call */
} gs_remote_end;

typedef struct gs_remote_handler {
    void (*taken)(void *arg); /* the server has begun to answer */
    /* Not 0 ends the request with that code. */
    int (*part)(void *arg, gs_remote_part_kind kind, const char *data, size_t n);
    /* Of EMBEDDINGS, in the order of the texts. */
    int (*vector)(void *arg, int32_t index, float *v, int32_t n);
    void (*end)(void *arg, const gs_remote_end *end); /* once; the object is gone after it */
    void *arg;
} gs_remote_handler;

/* Where to. All borrowed until gs_remote_start returns. */
typedef struct gs_remote_target {
    const gs_http_url *url; /* resolved */
    const gs_tls_context *tls;
    const char *key; /* "": none */
    int64_t connect_ms, answer_ms;
} gs_remote_target;

/* body: the whole JSON object, copied. max_output: tokens that were asked for, which bounds what
 * may come; n_texts: of EMBEDDINGS. NULL: out of memory; the handler has heard nothing. */
gs_remote *gs_remote_start(uv_loop_t *loop, const gs_remote_target *to, gs_remote_kind kind,
                           const char *body, size_t n_body, int32_t max_output, int32_t n_texts,
                           const gs_remote_handler *on);
/* Closes the connection, by which the server gives up, too. Nothing more is heard. Also from inside
 * a handler, but for end. */
void gs_remote_cancel(gs_remote *x);

/* Nothing more of the answer is taken, or again; the server waits as long as it likes. */
void gs_remote_pause(gs_remote *x, bool paused);

/* A path of the server: below its base, or, where the base ends in "/v1" and the path is not of
 * OpenAI's dialect, beside it. */
void gs_remote_path(const gs_http_url *url, const char *path, char *out, size_t n);
/* Why an exchange with it has failed (code not 0), for people; valid as long as the exchange. */
const char *gs_remote_reason(const gs_http_fetch *f, int code);
/* Header lines that every request to it has, key included, with CRLF. */
void gs_remote_headers(const char *key, bool body, gs_buf *out);

#endif
