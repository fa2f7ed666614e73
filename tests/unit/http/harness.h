/* A server on a free port with its loop in a thread, and blocking client sockets. */
#ifndef GS_TESTS_HTTP_HARNESS_H
#define GS_TESTS_HTTP_HARNESS_H

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/sys.h"
#include "http/http.h"

#define MAX_HELD 1024
/* Only there so that a hanging test ends; nothing is expected to take this long. */
#define PATIENCE_S 30

/* Paths: /hold keeps the request in held[]; /stream begins an answer and keeps the request; /big
 * answers with big_bytes at once; /none is a 204; /close closes the server; all others answer with
 * what they got. */
typedef struct harness {
    uv_loop_t loop;
    uv_thread_t thread;
    uv_async_t call;
    uv_sem_t called;
    void (*fn)(struct harness *h);
    gs_http_server *server;
    gs_http_config cfg;
    size_t big_bytes;
    /* on the loop's thread only */
    gs_http_request *held[MAX_HELD];
    int n_held;
    /* read by tests */
    atomic_int n_requests;
    atomic_int n_gone;
    atomic_int n_gone_twice;
    atomic_int n_done;
    atomic_int n_conns;
    bool keep_gone; /* on_gone does not release; the test does */
} harness;

static inline int held_index(const harness *h, const gs_http_request *rq) {
    for (int i = 0; i < h->n_held; i++)
        if (h->held[i] == rq)
            return i;
    return -1;
}

static inline void handle_echo(gs_http_request *rq) {
    size_t n;
    const char *body = gs_http_body(rq, &n);
    gs_buf out = {0};
    gs_buf_printf(&out, "%s|%s|%s|", gs_http_method(rq), gs_http_path(rq), gs_http_query(rq));
    gs_buf_add(&out, body, n);
    gs_http_add_header(rq, "X-Peer", gs_http_peer(rq));
    const char *echo = gs_http_header(rq, "x-echo");
    if (echo)
        gs_http_add_header(rq, "X-Echo", echo);
    gs_http_reply(rq, 200, "text/plain", out.data, out.len);
    gs_buf_deinit(&out);
}

static inline void harness_done(void *arg) {
    atomic_fetch_add(&((harness *)arg)->n_done, 1);
}

static inline void harness_close(harness *h) {
    gs_http_server_close(h->server, harness_done, h);
    uv_close((uv_handle_t *)&h->call, NULL);
}

static inline void handle(void *user, gs_http_request *rq) {
    harness *h = user;
    const char *path = gs_http_path(rq);
    if (strcmp(path, "/hold") == 0 || strcmp(path, "/stream") == 0) {
        assert_true(h->n_held < MAX_HELD);
        h->held[h->n_held++] = rq;
        if (path[1] == 's') {
            gs_http_begin(rq, 200, "text/event-stream");
            gs_http_write(rq, "first\n", 6);
        }
    } else if (strcmp(path, "/big") == 0) {
        char *body = calloc(1, h->big_bytes + 1);
        memset(body, 'b', h->big_bytes);
        gs_http_reply(rq, 200, "text/plain", body, h->big_bytes);
        free(body);
    } else if (strcmp(path, "/close") == 0) {
        h->held[h->n_held++] = rq;
        harness_close(h);
    } else if (strcmp(path, "/none") == 0) {
        gs_http_reply(rq, 204, NULL, NULL, 0);
    } else {
        handle_echo(rq);
    }
    atomic_fetch_add(&h->n_requests, 1);
}

static inline void gone(void *user, gs_http_request *rq) {
    harness *h = user;
    int i = held_index(h, rq);
    if (i < 0 || !gs_http_gone(rq) || gs_http_user(rq)) {
        atomic_fetch_add(&h->n_gone_twice, 1);
        return;
    }
    gs_http_set_user(rq, h);
    if (!h->keep_gone) {
        h->held[i] = h->held[--h->n_held];
        gs_http_end(rq);
    }
    atomic_fetch_add(&h->n_gone, 1);
}

static inline void harness_called(uv_async_t *a) {
    harness *h = a->data;
    h->fn(h);
    uv_sem_post(&h->called);
}

static inline void harness_loop(void *arg) {
    uv_run(&((harness *)arg)->loop, UV_RUN_DEFAULT);
}

static inline void harness_config(harness *h) {
    static const char *const hosts[] = {"127.0.0.1"};
    memset(h, 0, sizeof *h);
    gs_http_config_default(&h->cfg);
    h->cfg.hosts = hosts;
    h->cfg.n_hosts = 1;
    h->cfg.on_request = handle;
    h->cfg.on_gone = gone;
    h->cfg.user = h;
}

static inline void harness_start(harness *h) {
    char err[256] = "";
    assert_int_equal(uv_loop_init(&h->loop), 0);
    assert_int_equal(uv_async_init(&h->loop, &h->call, harness_called), 0);
    h->call.data = h;
    assert_int_equal(uv_sem_init(&h->called, 0), 0);
    int rc = gs_http_server_create(&h->loop, &h->cfg, &h->server, err, sizeof err);
    if (rc)
        fail_msg("%s", err);
    assert_int_equal(uv_thread_create(&h->thread, harness_loop, h), 0);
}

/* Runs fn on the loop's thread and waits for it. */
static inline void harness_run(harness *h, void (*fn)(harness *h)) {
    h->fn = fn;
    uv_async_send(&h->call);
    uv_sem_wait(&h->called);
}

static inline void pause_ms(int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L};
    nanosleep(&t, NULL);
}

/* Waits until *value is at least want; false after a generous time. */
static inline bool harness_wait(atomic_int *value, int want) {
    for (int i = 0; i < PATIENCE_S * 200 && atomic_load(value) < want; i++)
        pause_ms(5);
    return atomic_load(value) >= want;
}

static inline void count_conns(harness *h) {
    atomic_store(&h->n_conns, gs_http_n_connections(h->server));
}

static inline bool harness_wait_conns(harness *h, int n) {
    for (int i = 0; i < PATIENCE_S * 200; i++) {
        harness_run(h, count_conns);
        if (atomic_load(&h->n_conns) == n)
            return true;
        pause_ms(5);
    }
    return false;
}

/* Ends all that is in held[]. */
static inline void release_held(harness *h) {
    for (int i = 0; i < h->n_held; i++)
        gs_http_end(h->held[i]);
    h->n_held = 0;
}

/* The same, with a whole answer for those that have not begun one. */
static inline void answer_held(harness *h) {
    for (int i = 0; i < h->n_held; i++) {
        if (strcmp(gs_http_path(h->held[i]), "/hold") == 0)
            gs_http_reply(h->held[i], 200, "text/plain", "held", 4);
        else
            gs_http_end(h->held[i]);
    }
    h->n_held = 0;
}

/* Waits for a server that is being closed; checks that no handle and no request is left. */
static inline void harness_join(harness *h) {
    uv_thread_join(&h->thread);
    assert_int_equal(atomic_load(&h->n_done), 1);
    assert_int_equal(h->n_held, 0);
    assert_int_equal(atomic_load(&h->n_gone_twice), 0);
    assert_int_equal(uv_loop_close(&h->loop), 0);
    uv_sem_destroy(&h->called);
}

static inline void harness_stop(harness *h) {
    harness_run(h, harness_close);
    harness_join(h);
}

/* ---- Client ------------------------------------------------------------------------------- */

static inline int new_client(void) {
    struct timeval patience = {.tv_sec = PATIENCE_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return fd;
}

static inline void connect_to(harness *h, int fd) {
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)gs_http_port(h->server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (const struct sockaddr *)&sa, sizeof sa), 0);
}

static inline int dial_with(harness *h, int rcvbuf) {
    int fd = new_client();
    if (rcvbuf)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    connect_to(h, fd);
    return fd;
}

static inline int dial(harness *h) {
    return dial_with(h, 0);
}

/* The server may have closed already; that is for the test to see when it reads. */
static inline void send_all(int fd, const void *data, size_t n) {
    const char *p = data;
    while (n > 0) {
        ssize_t r = send(fd, p, n, MSG_NOSIGNAL);
        if (r <= 0)
            return;
        p += r;
        n -= (size_t)r;
    }
}

static inline void send_str(int fd, const char *s) {
    send_all(fd, s, strlen(s));
}

/* Reads until EOF, an error, or max - 1 bytes; terminated. */
static inline size_t recv_all(int fd, char *buf, size_t max) {
    size_t n = 0;
    while (n + 1 < max) {
        ssize_t r = recv(fd, buf + n, max - 1 - n, 0);
        if (r < 0 && errno == EAGAIN)
            fail_msg("no end of the answer");
        if (r <= 0)
            break;
        n += (size_t)r;
    }
    buf[n] = 0;
    return n;
}

/* Reads until the buffer contains text; false at EOF. */
static inline bool recv_until(int fd, char *buf, size_t max, const char *text) {
    size_t n = 0;
    buf[0] = 0;
    while (!strstr(buf, text)) {
        ssize_t r = n + 1 < max ? recv(fd, buf + n, max - 1 - n, 0) : 0;
        if (r <= 0)
            return false;
        n += (size_t)r;
        buf[n] = 0;
    }
    return true;
}

static inline int status_of(const char *reply) {
    return strncmp(reply, "HTTP/1.1 ", 9) == 0 ? atoi(reply + 9) : 0;
}

/* Sends and reads until the server closes. Returns the status, 0 for no answer. */
static inline int exchange(harness *h, const void *request, size_t n, char *buf, size_t max) {
    int fd = dial(h);
    send_all(fd, request, n);
    recv_all(fd, buf, max);
    close(fd);
    return status_of(buf);
}

#endif
