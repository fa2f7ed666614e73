/*
 * HTTP/1.1 client for one exchange on a connection of its own, on libuv and llhttp. No TLS, no
 * redirects, no keep-alive: what a load generator and a look at one's own server need.
 *
 * Owner: the loop's thread. Life: gs_http_fetch; then on_head, on_body*, and on_end exactly once,
 * unless gs_http_fetch_cancel came before. The object is freed after that by itself.
 */
#ifndef GS_HTTP_CLIENT_H
#define GS_HTTP_CLIENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

typedef struct gs_http_fetch gs_http_fetch;

/* http://HOST[:PORT][/BASE], resolved. */
typedef struct gs_http_url {
    char host[256]; /* as the Host header says it: with the port */
    char base[256]; /* "" or "/v1", without a final slash */
    struct sockaddr_storage addr;
} gs_http_url;

typedef struct gs_http_fetch_config {
    const struct sockaddr_storage *addr;
    const char *method, *host, *path;
    const char *headers; /* more lines, each with CRLF; NULL: none */
    const void *body;    /* copied; NULL: none */
    size_t n_body;
    void (*on_head)(void *user, int status);
    void (*on_body)(void *user, const char *data, size_t n);
    /* 0: the answer is whole. GS_ERR_IO: refused, reset or cut short. GS_ERR_FORMAT: no HTTP. */
    void (*on_end)(void *user, int code);
    void *user;
} gs_http_fetch_config;

/* Resolves the name, which may block. GS_ERR_INVALID, GS_ERR_UNSUPPORTED (https), GS_ERR_IO. */
int gs_http_url_parse(uv_loop_t *loop, const char *text, gs_http_url *out, char *err,
                      size_t errlen);
/* NULL: out of memory, or no socket. */
gs_http_fetch *gs_http_fetch_start(uv_loop_t *loop, const gs_http_fetch_config *cfg);
/* Resets the connection; nothing is called any more. Also from inside a callback. */
void gs_http_fetch_cancel(gs_http_fetch *f);
/* From on_head on, of the answer: the value of a header (name in lower case), or NULL. */
const char *gs_http_fetch_header(const gs_http_fetch *f, const char *name);

#endif
