#include "cli/http_client.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/sys.h"

#define MAX_HEAD   65536
#define MAX_ANSWER ((size_t)1 << 30)
#define READ_BYTES 65536

/* ---- Where
 * -------------------------------------------------------------------------------------*/

int gs_http_target_parse(const char *url, gs_http_target *out, char *err, size_t errlen) {
    static const char scheme[] = "http://";
    const char *at = url + sizeof(scheme) - 1;
    out->host[0] = out->base[0] = '\0';
    snprintf(out->port, sizeof(out->port), "80");
    if (strncmp(url, scheme, sizeof(scheme) - 1) != 0)
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "'%.80s' must begin with http:// (TLS is a proxy's business)", url);
    const bool v6 = *at == '[';
    const size_t n_host = strcspn(at + v6, v6 ? "]" : ":/");
    if (n_host == 0 || n_host >= sizeof(out->host))
        return gs_fail(err, errlen, GS_ERR_INVALID, "'%.80s' names no host", url);
    snprintf(out->host, sizeof(out->host), "%.*s", (int)n_host, at + v6);
    at += v6 + n_host;
    if (v6 && *at++ != ']')
        return gs_fail(err, errlen, GS_ERR_INVALID, "'%.80s' lacks a ']'", url);
    if (*at == ':') {
        const size_t n = strspn(at + 1, "0123456789");
        if (n == 0 || n > 5 || (at[n + 1] && at[n + 1] != '/'))
            return gs_fail(err, errlen, GS_ERR_INVALID, "'%.80s' has no valid port", url);
        snprintf(out->port, sizeof(out->port), "%.*s", (int)n, at + 1);
        at += n + 1;
    }
    size_t n_base = strcspn(at, "?#");
    while (n_base > 0 && at[n_base - 1] == '/')
        n_base--;
    if (n_base >= sizeof(out->base))
        return gs_fail(err, errlen, GS_ERR_INVALID, "the path of '%.80s' is too long", url);
    snprintf(out->base, sizeof(out->base), "%.*s", (int)n_base, at);
    return 0;
}

/* ---- Sending
 * -----------------------------------------------------------------------------------*/

static int dial(const gs_http_target *t, char *err, size_t errlen) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int rc = getaddrinfo(t->host, t->port, &hints, &found), fd = -1, why = 0;
    if (rc != 0)
        return gs_fail(err, errlen, GS_ERR_UNAVAILABLE, "%s: %s", t->host, gai_strerror(rc));
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            break;
        why = errno;
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd < 0)
        return gs_fail(err, errlen, GS_ERR_UNAVAILABLE, "no server at %s port %s: %s", t->host,
                       t->port, gs_errno_text(why));
    struct timeval patience = {.tv_sec = t->timeout_s};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    return fd;
}

static int send_all(int fd, const char *data, size_t n) {
    while (n > 0) {
        const ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return GS_ERR_IO;
        data += sent;
        n -= (size_t)sent;
    }
    return 0;
}

int gs_http_send(const gs_http_target *t, const char *method, const char *path, const char *body,
                 size_t n, char *err, size_t errlen) {
    gs_buf head = {0};
    const bool v6 = strchr(t->host, ':') != NULL;
    gs_buf_printf(&head, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nConnection: close\r\n", method,
                  t->base, path, v6 ? "[" : "", t->host, v6 ? "]" : "", t->port);
    if (t->key && *t->key)
        gs_buf_printf(&head, "Authorization: Bearer %s\r\n", t->key);
    if (t->class_ && *t->class_)
        gs_buf_printf(&head, "X-Gamasot-Class: %s\r\n", t->class_);
    if (body)
        gs_buf_printf(&head, "Content-Type: %s\r\nContent-Length: %zu\r\n",
                      t->type ? t->type : "application/json", n);
    gs_buf_str(&head, "\r\n");
    int fd =
        head.failed ? gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory") : dial(t, err, errlen);
    if (fd >= 0 &&
        (send_all(fd, head.data, head.len) != 0 || (body && send_all(fd, body, n) != 0))) {
        const int why = errno;
        close(fd);
        fd =
            gs_fail(err, errlen, GS_ERR_IO, "%s port %s: %s", t->host, t->port, gs_errno_text(why));
    }
    gs_buf_deinit(&head);
    return fd;
}

/* ---- Receiving
 * ---------------------------------------------------------------------------------*/

typedef struct reader {
    int fd;
    gs_buf in;
    char *err;
    size_t errlen;
} reader;

/* Reads some more. 1; 0: the other side has closed; or a code. */
static int more(reader *r) {
    if (r->in.len > MAX_ANSWER)
        return gs_fail(r->err, r->errlen, GS_ERR_TOO_LARGE, "the answer is too large");
    if (gs_buf_reserve(&r->in, READ_BYTES) != 0)
        return gs_fail(r->err, r->errlen, GS_ERR_NOMEM, "out of memory");
    const ssize_t n = gs_read(r->fd, r->in.data + r->in.len, READ_BYTES);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return gs_fail(r->err, r->errlen, GS_ERR_TIMEOUT, "the server does not answer");
    if (n < 0)
        return gs_fail(r->err, r->errlen, GS_ERR_IO, "the connection broke: %s",
                       gs_errno_text(errno));
    r->in.len += (size_t)n;
    return n > 0;
}

static int cut_off(reader *r) {
    return gs_fail(r->err, r->errlen, GS_ERR_IO, "the server closed in the middle of an answer");
}

/* Up to and without the next CRLF, which is taken, too. NULL and *rc on failure. The line is
 * terminated and stands at the buffer's front; *n bytes are to be dropped after use. */
static char *line(reader *r, size_t *n, int *rc) {
    for (;;) {
        char *end = r->in.len > 1 ? memmem(r->in.data, r->in.len, "\r\n", 2) : NULL;
        if (end) {
            *end = '\0';
            *n = (size_t)(end - r->in.data) + 2;
            return r->in.data;
        }
        *rc = r->in.len > MAX_HEAD
                  ? gs_fail(r->err, r->errlen, GS_ERR_FORMAT, "the answer is no HTTP")
                  : more(r);
        if (*rc == 0)
            *rc = cut_off(r);
        if (*rc < 0)
            return NULL;
    }
}

/* n more bytes into out. */
static int take(reader *r, size_t n, gs_buf *out) {
    while (n > 0) {
        const size_t part = r->in.len < n ? r->in.len : n;
        if (gs_buf_add(out, r->in.data, part) != 0)
            return gs_fail(r->err, r->errlen, GS_ERR_NOMEM, "out of memory");
        gs_buf_drop_front(&r->in, part);
        n -= part;
        const int rc = n > 0 ? more(r) : 1;
        if (rc <= 0)
            return rc < 0 ? rc : cut_off(r);
    }
    return 0;
}

typedef struct head {
    bool chunked, has_length;
    size_t length;
} head;

static int read_head(reader *r, head *h, gs_http_answer *out) {
    int rc = 0;
    size_t n;
    const char *text = line(r, &n, &rc);
    if (!text)
        return rc;
    if (strncmp(text, "HTTP/1.", 7) != 0 || strlen(text) < 12)
        return gs_fail(r->err, r->errlen, GS_ERR_FORMAT, "the answer is no HTTP");
    out->status = (int)strtol(text + 9, NULL, 10);
    gs_buf_drop_front(&r->in, n);
    for (size_t n_head = 0; n_head < MAX_HEAD; n_head += n) {
        if (!(text = line(r, &n, &rc)))
            return rc;
        const bool last = *text == '\0';
        if (strncasecmp(text, "content-length:", 15) == 0) {
            h->has_length = true;
            h->length = strtoul(text + 15, NULL, 10);
        } else if (strncasecmp(text, "transfer-encoding:", 18) == 0) {
            h->chunked = strstr(text, "chunked") != NULL;
        } else if (strncasecmp(text, "retry-after:", 12) == 0) {
            out->retry_after_s = strtol(text + 12, NULL, 10);
        }
        gs_buf_drop_front(&r->in, n);
        if (last)
            return 0;
    }
    return gs_fail(r->err, r->errlen, GS_ERR_FORMAT, "the answer's head is too long");
}

static int read_chunks(reader *r, gs_buf *out) {
    for (;;) {
        int rc = 0;
        size_t n;
        char *end;
        const char *text = line(r, &n, &rc);
        if (!text)
            return rc;
        const unsigned long size = strtoul(text, &end, 16);
        if (end == text || size > MAX_ANSWER || out->len + size > MAX_ANSWER)
            return gs_fail(r->err, r->errlen, GS_ERR_FORMAT, "the answer has a bad chunk");
        gs_buf_drop_front(&r->in, n);
        if ((rc = take(r, size, out)) != 0 || !line(r, &n, &rc))
            return rc;
        gs_buf_drop_front(&r->in, n);
        if (size == 0)
            return 0;
    }
}

static int read_rest(reader *r, gs_buf *out) {
    int rc;
    while ((rc = more(r)) > 0)
        ;
    return rc < 0 ? rc : take(r, r->in.len, out);
}

int gs_http_receive(int fd, gs_http_answer *out, char *err, size_t errlen) {
    reader r = {.fd = fd, .err = err, .errlen = errlen};
    head h = {0};
    *out = (gs_http_answer){0};
    int rc = read_head(&r, &h, out);
    if (rc == 0 && h.chunked)
        rc = read_chunks(&r, &out->body);
    else if (rc == 0 && h.has_length && h.length > MAX_ANSWER)
        rc = gs_fail(err, errlen, GS_ERR_TOO_LARGE, "the answer is too large");
    else if (rc == 0 && h.has_length)
        rc = take(&r, h.length, &out->body);
    else if (rc == 0)
        rc = read_rest(&r, &out->body);
    if (rc == 0 && !gs_buf_cstr(&out->body))
        rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    gs_buf_deinit(&r.in);
    close(fd);
    return rc;
}

void gs_http_answer_deinit(gs_http_answer *a) {
    gs_buf_deinit(&a->body);
}

int gs_http_call(const gs_http_target *t, const char *method, const char *path, const char *body,
                 size_t n, gs_http_answer *out, char *err, size_t errlen) {
    *out = (gs_http_answer){0};
    const int fd = gs_http_send(t, method, path, body, n, err, errlen);
    return fd < 0 ? fd : gs_http_receive(fd, out, err, errlen);
}
