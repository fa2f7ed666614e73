/* The server over real sockets: requests, answers, disconnects, limits, faults, shutdown. */
#include "harness.h"

#include "base/err.h"
#include "faults/fault.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

/* ---- Requests and answers ----------------------------------------------------------------- */

static void test_get_and_keep_alive(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    int fd = dial(&h);
    send_str(fd, "GET /a%20b/%C3%A9?x=%20 HTTP/1.1\r\nHost: x\r\nX-Echo:  v\tw \r\n\r\n");
    assert_true(recv_until(fd, buf, sizeof buf, "GET|/a b/\xc3\xa9|x=%20|"));
    assert_int_equal(status_of(buf), 200);
    assert_non_null(strstr(buf, "Content-Length: 18\r\n"));
    assert_non_null(strstr(buf, "X-Content-Type-Options: nosniff\r\n"));
    assert_non_null(strstr(buf, "X-Echo: v\tw\r\n"));
    assert_non_null(strstr(buf, "X-Peer: 127.0.0.1\r\n"));
    assert_null(strstr(buf, "Connection:"));
    send_str(fd, "POST /second HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
    assert_true(recv_until(fd, buf, sizeof buf, "POST|/second||hello"));
    send_str(fd, "GET /third HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    recv_all(fd, buf, sizeof buf);
    assert_non_null(strstr(buf, "Connection: close\r\n"));
    assert_non_null(strstr(buf, "GET|/third||"));
    close(fd);
    assert_true(harness_wait_conns(&h, 0));
    harness_stop(&h);
}

static void test_one_byte_at_a_time(void **state) {
    (void)state;
    static const char text[] = "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n" GET("/b");
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    int fd = dial(&h), one = 1;
    setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof one);
    for (size_t i = 0; i < sizeof text - 1; i++)
        send_all(fd, text + i, 1);
    shutdown(fd, SHUT_WR);
    recv_all(fd, buf, sizeof buf);
    assert_non_null(strstr(buf, "POST|/a||hello world"));
    assert_non_null(strstr(buf, "GET|/b||"));
    close(fd);
    harness_stop(&h);
}

static void test_pipelining_waits(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    int fd = dial(&h);
    send_str(fd, GET("/1") GET("/hold") GET("/2") GET("/3"));
    assert_true(recv_until(fd, buf, sizeof buf, "GET|/1||"));
    assert_true(harness_wait(&h.n_requests, 2));
    pause_ms(30);
    assert_int_equal(atomic_load(&h.n_requests), 2); /* the others wait for /hold */
    harness_run(&h, answer_held);
    assert_true(recv_until(fd, buf, sizeof buf, "GET|/3||"));
    char *held = strstr(buf, "held"), *second = strstr(buf, "GET|/2||");
    assert_true(held && second && held < second);
    assert_int_equal(atomic_load(&h.n_gone), 0);
    close(fd);
    harness_stop(&h);
}

static void test_many_pipelined(void **state) {
    (void)state;
    harness h;
    enum { N = 300 };
    harness_config(&h);
    harness_start(&h);
    int fd = dial(&h);
    for (int i = 0; i < N; i++)
        send_str(fd, GET("/n"));
    assert_true(harness_wait(&h.n_requests, N));
    char *buf = malloc(1 << 20);
    shutdown(fd, SHUT_WR);
    recv_all(fd, buf, 1 << 20);
    int found = 0;
    for (char *p = buf; (p = strstr(p, "GET|/n||")); p++)
        found++;
    assert_int_equal(found, N);
    free(buf);
    close(fd);
    harness_stop(&h);
}

static void test_head_and_204(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    h.big_bytes = 1000;
    harness_start(&h);
    int fd = dial(&h);
    send_str(fd, "HEAD /big HTTP/1.1\r\nHost: x\r\n\r\n" GET("/none") GET("/z"));
    assert_true(recv_until(fd, buf, sizeof buf, "GET|/z||"));
    assert_non_null(strstr(buf, "Content-Length: 1000\r\n\r\nHTTP/1.1 204 No Content\r\n"));
    char *none = strstr(buf, "HTTP/1.1 204"), *z = strstr(none, "HTTP/1.1 200");
    char *length = strstr(none, "Content-Length");
    assert_true(z && length > z); /* none for the 204 */
    close(fd);
    harness_stop(&h);
}

static void test_http10(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    assert_int_equal(exchange(&h, "GET /a HTTP/1.0\r\n\r\n", 19, buf, sizeof buf), 200);
    assert_non_null(strstr(buf, "Connection: close\r\n"));
    int fd = dial(&h);
    send_str(fd, "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_true(recv_until(fd, buf, sizeof buf, "GET|/a||"));
    assert_non_null(strstr(buf, "Connection: keep-alive\r\n"));
    send_str(fd, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_true(recv_until(fd, buf, sizeof buf, "first\n"));
    assert_null(strstr(buf, "chunked"));
    assert_non_null(strstr(buf, "Connection: close\r\n"));
    assert_string_equal(strstr(buf, "\r\n\r\n") + 4, "first\n");
    harness_run(&h, release_held);
    assert_int_equal(recv_all(fd, buf, sizeof buf), 0);
    close(fd);
    harness_stop(&h);
}

static void test_expect_continue(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    int fd = dial(&h);
    send_str(fd,
             "POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_true(recv_until(fd, buf, sizeof buf, "\r\n\r\n"));
    assert_string_equal(buf, "HTTP/1.1 100 Continue\r\n\r\n");
    send_str(fd, "hello");
    assert_true(recv_until(fd, buf, sizeof buf, "POST|/a||hello"));
    close(fd);
    /* too large is said instead of "continue" */
    static const char big[] = "POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                              "Content-Length: 99999999\r\n\r\n";
    assert_int_equal(exchange(&h, big, sizeof big - 1, buf, sizeof buf), 413);
    harness_stop(&h);
}

static void write_many(harness *h) {
    for (int i = 0; i < 100; i++)
        gs_http_write(h->held[0], "0123456789", 10);
}

static void test_stream(void **state) {
    (void)state;
    harness h;
    char buf[8192];
    harness_config(&h);
    harness_start(&h);
    int fd = dial(&h);
    send_str(fd, GET("/stream"));
    assert_true(recv_until(fd, buf, sizeof buf, "first"));
    assert_non_null(strstr(buf, "Transfer-Encoding: chunked\r\n\r\n6\r\nfirst\n"));
    assert_null(strstr(buf, "Content-Length"));
    /* all writes of a turn leave together */
    gs_fault_set(GS_FAULT_WRITE, 1000000, 0);
    harness_run(&h, write_many);
    int n = 0;
    while (n < 100) {
        ssize_t r = recv(fd, buf, sizeof buf - 1, 0);
        assert_true(r > 0);
        buf[r] = 0;
        for (char *p = buf; (p = strstr(p, "a\r\n0123456789\r\n")); p++)
            n++;
    }
    assert_int_equal(n, 100);
    assert_int_equal(gs_fault_calls(GS_FAULT_WRITE), 1);
    gs_fault_clear();
    harness_run(&h, release_held);
    assert_true(recv_until(fd, buf, sizeof buf, "0\r\n\r\n"));
    send_str(fd, GET("/next")); /* the connection lives on */
    assert_true(recv_until(fd, buf, sizeof buf, "GET|/next||"));
    assert_int_equal(atomic_load(&h.n_gone), 0);
    close(fd);
    harness_stop(&h);
}

static void abort_held(harness *h) {
    gs_http_abort(h->held[0]);
    h->n_held = 0;
}

static void test_abort_resets(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    int fd = dial(&h);
    send_str(fd, GET("/stream"));
    assert_true(recv_until(fd, buf, sizeof buf, "first"));
    harness_run(&h, abort_held);
    assert_int_equal(recv(fd, buf, sizeof buf, 0), -1);
    assert_int_equal(errno, ECONNRESET);
    close(fd);
    assert_true(harness_wait_conns(&h, 0));
    assert_int_equal(atomic_load(&h.n_gone), 0);
    harness_stop(&h);
}

static void inject(harness *h) {
    gs_http_request *rq = h->held[0];
    gs_http_add_header(rq, "X-A", "v\r\nX-Evil: 1\r\n\r\n<script>");
    gs_http_add_header(rq, "X-B\r\nX-Evil", "1");
    gs_http_add_header(rq, "X B", "1");
    gs_http_add_header(rq, "Content-Length", "1");
    gs_http_add_header(rq, "transfer-encoding", "chunked");
    gs_http_reply(rq, 200, "text/plain\r\nX-Evil: 1", "ok", 2);
    h->n_held = 0;
}

static void test_no_header_injection(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    int fd = dial(&h);
    send_str(fd, GET("/hold"));
    assert_true(harness_wait(&h.n_requests, 1));
    harness_run(&h, inject);
    assert_true(recv_until(fd, buf, sizeof buf, "\r\n\r\nok"));
    assert_null(strstr(buf, "\r\nX-Evil"));
    assert_non_null(strstr(buf, "X-A: vX-Evil: 1<script>\r\n"));
    assert_null(strstr(buf, "X B"));
    assert_null(strstr(buf, "chunked"));
    assert_non_null(strstr(buf, "Content-Length: 2\r\n"));
    close(fd);
    harness_stop(&h);
}

/* ---- Refusals ----------------------------------------------------------------------------- */

static void json_error(void *user, int status, const char *path, const char *message, gs_buf *out) {
    (void)user;
    gs_buf_printf(out, "{\"error\":{\"code\":%d,\"path\":\"%s\",\"message\":\"%s\"}}", status, path,
                  message);
}

/* What is refused is answered, closed, and neither it nor what follows reaches a handler. */
static void test_smuggling_closes(void **state) {
    (void)state;
    static const char *const bad[] = {
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\nHost: x\n\n",
        "GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        "\x16\x03\x01",
    };
    harness h;
    char buf[4096];
    harness_config(&h);
    h.cfg.error_body = json_error;
    harness_start(&h);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gs_buf b = {0};
        gs_buf_str(&b, bad[i]);
        gs_buf_str(&b, GET("/smuggled"));
        assert_int_equal(exchange(&h, b.data, b.len, buf, sizeof buf), 400);
        gs_buf_deinit(&b);
        assert_non_null(strstr(buf, "Connection: close\r\n"));
        assert_non_null(strstr(buf, "Content-Type: application/json\r\n"));
        assert_non_null(strstr(buf, "{\"error\":{\"code\":400,"));
        assert_null(strstr(buf + 1, "HTTP/1.1 "));
    }
    assert_int_equal(atomic_load(&h.n_requests), 0);
    assert_true(harness_wait_conns(&h, 0));
    harness_stop(&h);
}

/* The client is still sending megabytes when the answer comes: it must get it all the same. */
static void test_large_body_is_told(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    static char megabyte[1 << 20];
    harness_config(&h);
    h.cfg.max_body_bytes = 1000;
    harness_start(&h);
    for (int chunked = 0; chunked < 2; chunked++) {
        int fd = dial(&h);
        send_str(fd, chunked ? "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "00800000\r\n"
                             : "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8388608\r\n\r\n");
        for (int i = 0; i < 8; i++)
            send_all(fd, megabyte, sizeof megabyte);
        recv_all(fd, buf, sizeof buf);
        assert_int_equal(status_of(buf), 413);
        close(fd);
    }
    assert_int_equal(atomic_load(&h.n_requests), 0);
    harness_stop(&h);
}

static void test_long_heads(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    gs_buf b = {0};
    gs_buf_printf(&b, "GET /%09000d HTTP/1.1\r\nHost: x\r\n\r\n", 0);
    assert_int_equal(exchange(&h, b.data, b.len, buf, sizeof buf), 414);
    gs_buf_clear(&b);
    gs_buf_printf(&b, "GET / HTTP/1.1\r\nHost: x\r\nX: %09000d\r\n\r\n", 0);
    assert_int_equal(exchange(&h, b.data, b.len, buf, sizeof buf), 431);
    gs_buf_clear(&b);
    gs_buf_str(&b, "GET / HTTP/1.1\r\nHost: x\r\n");
    for (int i = 0; i < 80; i++)
        gs_buf_printf(&b, "X%d: y\r\n", i);
    assert_int_equal(exchange(&h, b.data, b.len, buf, sizeof buf), 431);
    gs_buf_deinit(&b);
    harness_stop(&h);
}

static void test_connection_limits(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    int fds[4];
    for (int per_address = 0; per_address < 2; per_address++) {
        harness_config(&h);
        if (per_address)
            h.cfg.max_connections_per_address = 3;
        else
            h.cfg.max_connections = 3;
        harness_start(&h);
        for (int i = 0; i < 3; i++) {
            fds[i] = dial(&h);
            send_str(fds[i], GET("/a"));
            assert_true(recv_until(fds[i], buf, sizeof buf, "GET|/a||"));
        }
        for (int i = 0; i < 10; i++) {
            assert_int_equal(exchange(&h, GET("/b"), strlen(GET("/b")), buf, sizeof buf), 503);
            assert_non_null(strstr(buf, "Retry-After: "));
        }
        assert_int_equal(atomic_load(&h.n_requests), 3);
        /* one leaves, one may come */
        close(fds[0]);
        int status;
        do {
            pause_ms(2);
            fds[0] = dial(&h);
            send_str(fds[0], GET("/c"));
            recv_until(fds[0], buf, sizeof buf, "\r\n\r\n");
            if ((status = status_of(buf)) != 200)
                close(fds[0]);
        } while (status == 503);
        assert_int_equal(status, 200);
        for (int i = 0; i < 3; i++)
            close(fds[i]);
        assert_true(harness_wait_conns(&h, 0));
        harness_stop(&h);
    }
}

/* ---- Clients that leave ------------------------------------------------------------------- */

static void leave(int fd, int how) {
    struct linger rst = {.l_onoff = 1};
    if (how == 1)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &rst, sizeof rst);
    if (how == 2)
        shutdown(fd, SHUT_WR); /* the caller closes later */
    else
        close(fd);
}

static void test_client_leaves_in_each_phase(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        int n_requests;
        int n_gone;
    } phases[] = {
        {"", 0, 0},
        {"GET / HT", 0, 0},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc", 0, 0},
        {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe", 0, 0},
        {GET("/hold"), 1, 1},
        {GET("/hold") GET("/later"), 1, 1},
        {GET("/stream"), 1, 1},
        {GET("/a") GET("/stream") "GET /x", 2, 1},
    };
    harness h;
    for (int how = 0; how < 3; how++) {
        for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
            harness_config(&h);
            harness_start(&h);
            int fd = dial(&h);
            send_str(fd, phases[i].bytes);
            assert_true(harness_wait_conns(&h, 1));
            assert_true(harness_wait(&h.n_requests, phases[i].n_requests));
            leave(fd, how);
            assert_true(harness_wait(&h.n_gone, phases[i].n_gone));
            assert_true(harness_wait_conns(&h, 0));
            assert_int_equal(atomic_load(&h.n_requests), phases[i].n_requests);
            assert_int_equal(atomic_load(&h.n_gone), phases[i].n_gone);
            if (how == 2)
                close(fd);
            harness_stop(&h);
        }
    }
}

static void use_gone(harness *h) {
    for (int i = 0; i < h->n_held; i++) {
        gs_http_request *rq = h->held[i];
        size_t n;
        assert_true(gs_http_gone(rq));
        assert_string_equal(gs_http_method(rq), "POST");
        assert_string_equal(gs_http_header(rq, "host"), "x");
        assert_memory_equal(gs_http_body(rq, &n), "hello", 5);
        gs_http_add_header(rq, "A", "b");
        gs_http_begin(rq, 200, "text/plain");
        gs_http_write(rq, "x", 1);
    }
    gs_http_reply(h->held[0], 200, "text/plain", "x", 1);
    gs_http_abort(h->held[1]);
    gs_http_end(h->held[2]);
    h->n_held = 0;
}

/* A request outlives its client until it is released, whichever way that happens. */
static void test_gone_request_stays_valid(void **state) {
    (void)state;
    harness h;
    int fds[3];
    harness_config(&h);
    h.keep_gone = true;
    harness_start(&h);
    for (int i = 0; i < 3; i++) {
        fds[i] = dial(&h);
        send_str(fds[i], "POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
    }
    assert_true(harness_wait(&h.n_requests, 3));
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    assert_true(harness_wait(&h.n_gone, 3));
    assert_true(harness_wait_conns(&h, 0));
    harness_run(&h, use_gone);
    harness_stop(&h);
}

static void test_pipeline_flood_is_cut(void **state) {
    (void)state;
    harness h;
    static char junk[1 << 20];
    harness_config(&h);
    harness_start(&h);
    int fd = dial(&h);
    send_str(fd, GET("/hold"));
    assert_true(harness_wait(&h.n_requests, 1));
    send_all(fd, junk, sizeof junk);
    assert_true(harness_wait(&h.n_gone, 1));
    assert_true(harness_wait_conns(&h, 0));
    close(fd);
    harness_stop(&h);
}

static void test_many_come_and_go(void **state) {
    (void)state;
    harness h;
    harness_config(&h);
    harness_start(&h);
    for (int i = 0; i < 500; i++) {
        int fd = dial(&h);
        if (i % 3)
            send_str(fd, i % 3 == 1 ? GET("/a") : "GET /b");
        close(fd);
    }
    /* closed before it was accepted counts as well */
    assert_true(harness_wait_conns(&h, 0));
    char buf[1024];
    int fd = dial(&h);
    send_str(fd, GET("/z"));
    assert_true(recv_until(fd, buf, sizeof buf, "GET|/z||"));
    close(fd);
    harness_stop(&h); /* fails when a handle is left */
}

/* ---- Life of the server ------------------------------------------------------------------- */

static void drain(harness *h) {
    gs_http_server_drain(h->server);
    gs_http_server_drain(h->server);
}

static void test_drain(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    int idle = dial(&h), held = dial(&h), stream = dial(&h), half = dial(&h);
    send_str(idle, GET("/a"));
    assert_true(recv_until(idle, buf, sizeof buf, "GET|/a||"));
    send_str(held, GET("/hold"));
    send_str(stream, GET("/stream"));
    assert_true(recv_until(stream, buf, sizeof buf, "first"));
    send_str(half, "GET /half HTTP/1.1\r\n");
    assert_true(harness_wait(&h.n_requests, 3));
    assert_true(harness_wait_conns(&h, 4));
    pause_ms(30); /* for the half request to be read: it then counts as under way */
    harness_run(&h, drain);
    assert_int_equal(recv_all(idle, buf, sizeof buf), 0);
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)gs_http_port(h.server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int late = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(late, (const struct sockaddr *)&sa, sizeof sa), -1);
    send_str(half, "Host: x\r\n\r\n");
    recv_all(half, buf, sizeof buf);
    assert_non_null(strstr(buf, "Connection: close\r\n"));
    assert_non_null(strstr(buf, "GET|/half||"));
    harness_run(&h, answer_held);
    recv_all(held, buf, sizeof buf);
    assert_non_null(strstr(buf, "Connection: close\r\n"));
    assert_non_null(strstr(buf, "held"));
    recv_all(stream, buf, sizeof buf);
    assert_non_null(strstr(buf, "0\r\n\r\n"));
    close(idle), close(held), close(stream), close(half), close(late);
    assert_true(harness_wait_conns(&h, 0));
    assert_int_equal(atomic_load(&h.n_gone), 0);
    harness_stop(&h);
}

static void test_close_tells_the_owed(void **state) {
    (void)state;
    harness h;
    harness_config(&h);
    harness_start(&h);
    int a = dial(&h), b = dial(&h), c = dial(&h);
    send_str(a, GET("/hold"));
    send_str(b, GET("/stream"));
    send_str(c, "GET /");
    assert_true(harness_wait(&h.n_requests, 2));
    harness_stop(&h);
    assert_int_equal(atomic_load(&h.n_gone), 2);
    close(a), close(b), close(c);
}

/* A handler may close the server it is called from. */
static void test_close_inside_handler(void **state) {
    (void)state;
    harness h;
    char buf[64];
    harness_config(&h);
    harness_start(&h);
    int a = dial(&h), b = dial(&h);
    send_str(a, GET("/hold"));
    assert_true(harness_wait(&h.n_requests, 1));
    send_str(b, GET("/close") GET("/later"));
    harness_join(&h);
    assert_int_equal(atomic_load(&h.n_gone), 2);
    assert_int_equal(recv_all(a, buf, sizeof buf), 0);
    close(a), close(b);
}

static void test_listen_errors(void **state) {
    (void)state;
    static const char *const name[] = {"localhost"};
    static const char *const foreign[] = {"192.0.2.1"};
    static const char *const both[] = {"127.0.0.1", "::1"};
    harness h;
    gs_http_server *s;
    char err[256] = "", want[64];
    harness_config(&h);
    h.cfg.hosts = both;
    h.cfg.n_hosts = 2;
    harness_start(&h);
    gs_http_config cfg = h.cfg;
    uv_loop_t loop;
    uv_loop_init(&loop);
    cfg.n_hosts = 1;
    cfg.port = gs_http_port(h.server);
    assert_int_equal(gs_http_server_create(&loop, &cfg, &s, err, sizeof err), GS_ERR_EXISTS);
    snprintf(want, sizeof want, "port %d on 127.0.0.1 is already in use", cfg.port);
    assert_non_null(strstr(err, want));
    cfg.hosts = name;
    assert_int_equal(gs_http_server_create(&loop, &cfg, &s, err, sizeof err), GS_ERR_INVALID);
    cfg.hosts = foreign;
    assert_int_equal(gs_http_server_create(&loop, &cfg, &s, err, sizeof err), GS_ERR_INVALID);
    cfg.hosts = both;
    gs_fault_set(GS_FAULT_ALLOC, 1, 0);
    assert_int_equal(gs_http_server_create(&loop, &cfg, &s, err, sizeof err), GS_ERR_NOMEM);
    gs_fault_set(GS_FAULT_ALLOC, 2, 0);
    assert_int_equal(gs_http_server_create(&loop, &cfg, &s, err, sizeof err), GS_ERR_NOMEM);
    gs_fault_clear();
    assert_int_equal(uv_loop_close(&loop), 0);
    harness_stop(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_and_keep_alive),
        cmocka_unit_test(test_one_byte_at_a_time),
        cmocka_unit_test(test_pipelining_waits),
        cmocka_unit_test(test_many_pipelined),
        cmocka_unit_test(test_head_and_204),
        cmocka_unit_test(test_http10),
        cmocka_unit_test(test_expect_continue),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_abort_resets),
        cmocka_unit_test(test_no_header_injection),
        cmocka_unit_test(test_smuggling_closes),
        cmocka_unit_test(test_large_body_is_told),
        cmocka_unit_test(test_long_heads),
        cmocka_unit_test(test_connection_limits),
        cmocka_unit_test(test_client_leaves_in_each_phase),
        cmocka_unit_test(test_gone_request_stays_valid),
        cmocka_unit_test(test_pipeline_flood_is_cut),
        cmocka_unit_test(test_many_come_and_go),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_close_tells_the_owed),
        cmocka_unit_test(test_close_inside_handler),
        cmocka_unit_test(test_listen_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
