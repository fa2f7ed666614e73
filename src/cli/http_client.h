/*
 * A blocking HTTP/1.1 client for commands that talk to a gamasot server: one connection a request,
 * JSON bodies, no TLS. Sending and receiving are separate, so that a command can have several
 * requests open without threads.
 */
#ifndef GS_CLI_HTTP_CLIENT_H
#define GS_CLI_HTTP_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Where to, from a URL such as http://127.0.0.1:8080 or http://[::1]:8080/base. */
typedef struct gs_http_target {
    char host[256], port[8];
    char base[256];     /* path before that of the request, without a slash at its end */
    const char *key;    /* sent as a bearer token; NULL: none. Borrowed */
    const char *class_; /* X-Gamasot-Class; NULL: none. Borrowed */
    const char *type;   /* Content-Type of bodies; NULL: application/json. Borrowed */
    int timeout_s;      /* of silence; 0: none */
} gs_http_target;

typedef struct gs_http_answer {
    int status;            /* of HTTP */
    int64_t retry_after_s; /* as the server asks, or 0 */
    gs_buf body;
} gs_http_answer;

/* 0, or GS_ERR_INVALID with what is wrong with the URL. key, class_ and timeout_s are kept. */
int gs_http_target_parse(const char *url, gs_http_target *out, char *err, size_t errlen);
/* Connects and sends. body NULL: none. A socket, or a negative code: GS_ERR_UNAVAILABLE (nobody
 * there), GS_ERR_IO, GS_ERR_NOMEM. */
int gs_http_send(const gs_http_target *t, const char *method, const char *path, const char *body,
                 size_t n, char *err, size_t errlen);
/* Reads the whole answer and closes fd. 0, or GS_ERR_IO, GS_ERR_TIMEOUT, GS_ERR_FORMAT,
 * GS_ERR_NOMEM. gs_http_answer_deinit in every case. */
int gs_http_receive(int fd, gs_http_answer *out, char *err, size_t errlen);
void gs_http_answer_deinit(gs_http_answer *a);
/* Both in one. */
int gs_http_call(const gs_http_target *t, const char *method, const char *path, const char *body,
                 size_t n, gs_http_answer *out, char *err, size_t errlen);

#endif
