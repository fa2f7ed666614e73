/*
 * HTTP/1.1 client for one exchange on a connection of its own, on libuv, llhttp and, for https,
 * OpenSSL. No redirects, no keep-alive, no compression, no cookies: what a load generator and a
 * look at one's own server need, and with limits what a server needs that asks others.
 *
 * The other side is not trusted: with limits no answer takes more memory, time or attention than
 * they allow, whatever it sends.
 *
 * Owner: the loop's thread. Life: gs_http_fetch_start; then on_head, on_body*, and on_end exactly
 * once, unless gs_http_fetch_cancel came before. The object is freed after that by itself.
 */
#ifndef GS_HTTP_CLIENT_H
#define GS_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#include "http/tls.h"

typedef struct gs_http_fetch gs_http_fetch;

/* http[s]://HOST[:PORT][/BASE] */
typedef struct gs_http_url {
    bool tls;
    char host[256]; /* as the Host header says it: with the port */
    char name[200]; /* alone, without brackets */
    char port[8];
    char base[256];               /* "" or "/v1", without a final slash */
    struct sockaddr_storage addr; /* family 0: not resolved yet */
} gs_http_url;

/* 0 everywhere: no limit. */
typedef struct gs_http_limits {
    int64_t connect_ms; /* until the connection stands, TLS included */
    int64_t head_ms;    /* from there to the answer's head */
    int64_t silence_ms; /* between two pieces of the body */
    size_t head_bytes;
    size_t bytes; /* all that comes */
    size_t rate;  /* bytes a second: more waits in the kernel, and so in the sender */
} gs_http_limits;

typedef struct gs_http_fetch_config {
    const struct sockaddr_storage *addr;
    const char *method, *host, *path;
    const char *headers; /* more lines, each with CRLF; NULL: none */
    const void *body;    /* copied; NULL: none */
    size_t n_body;
    const gs_tls_context *tls; /* NULL: none; borrowed until the call returns */
    const char *tls_name;      /* whom the certificate is to name */
    gs_http_limits limits;
    void (*on_head)(void *user, int status);
    void (*on_body)(void *user, const char *data, size_t n);
    /* 0: the answer is whole. GS_ERR_UNAVAILABLE: no connection, so nothing was asked. GS_ERR_IO:
     * reset or cut short. GS_ERR_FORMAT: no HTTP. GS_ERR_TIMEOUT, GS_ERR_TOO_LARGE: a limit.
     * GS_ERR_NOMEM. */
    void (*on_end)(void *user, int code);
    void *user;
} gs_http_fetch_config;

/* The parts of a URL; nothing is resolved. GS_ERR_INVALID with a sentence. */
int gs_http_url_split(const char *text, gs_http_url *out, char *err, size_t errlen);
/* Splits and resolves the name, which may block; http alone. GS_ERR_INVALID, GS_ERR_UNSUPPORTED
 * (https), GS_ERR_IO. */
int gs_http_url_parse(uv_loop_t *loop, const char *text, gs_http_url *out, char *err,
                      size_t errlen);
/* NULL: out of memory, or no socket. */
gs_http_fetch *gs_http_fetch_start(uv_loop_t *loop, const gs_http_fetch_config *cfg);
/* Nothing more is read from it, so the server has to stop writing in the end, and no limit of time
 * counts; or again. Needs limits.rate. Also from inside a callback but on_end. */
void gs_http_fetch_pause(gs_http_fetch *f, bool paused);
/* Resets the connection; nothing is called any more. Also from inside a callback. */
void gs_http_fetch_cancel(gs_http_fetch *f);
/* Of the answer's head, which is whole from on_head on: the value of a header (name in lower case),
 * or NULL. What comes behind the body (a trailer) is not kept. */
const char *gs_http_fetch_header(const gs_http_fetch *f, const char *name);
/* In on_end: what went wrong, for people, where more is known than the code; else "". */
const char *gs_http_fetch_reason(const gs_http_fetch *f);

#endif
