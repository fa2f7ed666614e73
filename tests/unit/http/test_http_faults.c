/* Time-outs, readers that do not read, and calls that fail. */
#include "faults/fault.h"
#include "harness.h"

#include <sys/resource.h>

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

/* ---- Time. Orders are checked, never durations. -------------------------------------------- */

static void test_slow_head(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    h.cfg.header_timeout_ms = 60;
    harness_start(&h);
    int silent = dial(&h), slow = dial(&h), ready = dial(&h);
    send_str(slow, "GET / HTTP/1.1\r\nHost:");
    send_str(ready, GET("/hold"));
    recv_all(slow, buf, sizeof buf);
    assert_int_equal(status_of(buf), 408);
    assert_int_equal(recv_all(silent, buf, sizeof buf), 0); /* nothing asked, nothing said */
    /* waiting for an answer has no such limit */
    assert_true(harness_wait(&h.n_requests, 1));
    harness_run(&h, answer_held);
    assert_true(recv_until(ready, buf, sizeof buf, "held"));
    /* the second head of a connection is timed from its first byte */
    send_str(ready, "G");
    recv_all(ready, buf, sizeof buf);
    assert_int_equal(status_of(buf), 408);
    close(silent), close(slow), close(ready);
    harness_stop(&h);
}

static void test_dripping_head(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    h.cfg.header_timeout_ms = 60;
    harness_start(&h);
    int fd = dial(&h), sent = 0;
    send_str(fd, "GET / HTTP/1.1\r\nX: ");
    /* a byte now and then keeps it as little alive as silence */
    while (recv(fd, buf, 12, MSG_DONTWAIT) < 0 && errno == EAGAIN && sent++ < 2000) {
        send_str(fd, "a");
        pause_ms(5);
    }
    assert_memory_equal(buf, "HTTP/1.1 408", 12);
    close(fd);
    harness_stop(&h);
}

static void test_slow_body(void **state) {
    (void)state;
    static const char head[] = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n";
    harness h;
    char buf[4096];
    harness_config(&h);
    h.cfg.body_timeout_ms = 400;
    h.cfg.min_body_bytes_per_s = 250; /* 100 bytes each window */
    harness_start(&h);
    int slow = dial(&h), sent = 0;
    send_str(slow, head);
    while (recv(slow, buf, 12, MSG_DONTWAIT) < 0 && errno == EAGAIN && sent++ < 2000) {
        send_str(slow, "a");
        pause_ms(20);
    }
    assert_memory_equal(buf, "HTTP/1.1 408", 12);
    assert_int_equal(atomic_load(&h.n_requests), 0);
    /* longer than the window in total, but with its share in each */
    int steady = dial(&h);
    send_str(steady, head);
    for (int i = 0; i < 40; i++) {
        memset(buf, 'b', 100);
        send_all(steady, buf, 100);
        pause_ms(20);
    }
    assert_true(recv_until(steady, buf, sizeof buf, "\r\n\r\n"));
    assert_int_equal(status_of(buf), 200);
    close(slow), close(steady);
    harness_stop(&h);
}

static void test_idle_keep_alive_ends(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    h.cfg.keep_alive_ms = 60;
    harness_start(&h);
    int fd = dial(&h);
    send_str(fd, GET("/a"));
    recv_all(fd, buf, sizeof buf);
    assert_non_null(strstr(buf, "GET|/a||"));
    assert_null(strstr(buf + 1, "HTTP/1.1"));
    close(fd);
    assert_true(harness_wait_conns(&h, 0));
    harness_stop(&h);
}

/* A client that is told "no" and stays connected, reading nothing and closing nothing. */
static void test_refused_client_that_stays(void **state) {
    (void)state;
    harness h;
    harness_config(&h);
    harness_start(&h);
    int fd = dial(&h);
    send_str(fd, "nonsense\n");
    assert_true(harness_wait_conns(&h, 1));
    assert_true(harness_wait_conns(&h, 0));
    close(fd);
    harness_stop(&h);
}

static int late_fd;

static void stand_still(harness *h) {
    (void)h;
    pause_ms(700);
    send_str(late_fd, " x\r\n\r\n");
}

/* A loop that stood still finds the deadline passed before it reads what came in time. */
static void test_standstill_is_nobodys_fault(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    h.cfg.header_timeout_ms = 300;
    harness_start(&h);
    late_fd = dial(&h);
    send_str(late_fd, "GET /a HTTP/1.1\r\nHost:");
    int held = dial(&h); /* whose time does not run */
    send_str(held, GET("/hold"));
    assert_true(harness_wait_conns(&h, 2));
    assert_true(harness_wait(&h.n_requests, 1));
    harness_run(&h, stand_still);
    assert_true(recv_until(late_fd, buf, sizeof buf, "\r\n\r\n"));
    assert_int_equal(status_of(buf), 200);
    close(late_fd);
    harness_run(&h, answer_held);
    assert_true(recv_until(held, buf, sizeof buf, "held"));
    close(held);
    harness_stop(&h);
}

/* ---- Numbers of connections ---------------------------------------------------------------- */

static long resident_kib(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*s %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* 1,000 streams that say nothing and 1,000 heads that never end: small, and others are served. */
static void test_thousands_stay_small(void **state) {
    (void)state;
    enum { N = 1000 };
    static int fds[2 * N];
    harness h;
    char buf[4096];
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    if (r.rlim_max < 5 * N) {
        print_message("skipped: needs %d descriptors\n", 5 * N);
        skip();
    }
    r.rlim_cur = 5 * N;
    setrlimit(RLIMIT_NOFILE, &r);
    harness_config(&h);
    h.cfg.max_connections_per_address = 4096;
    harness_start(&h);
    long before = resident_kib();
    for (int i = 0; i < 2 * N; i++) {
        fds[i] = dial(&h);
        send_str(fds[i], i % 2 ? GET("/stream") : "GET / HTTP/1.1\r\nHost: x\r\nX-A: ");
    }
    assert_true(harness_wait(&h.n_requests, N));
    assert_true(harness_wait_conns(&h, 2 * N));
    long grown = resident_kib() - before;
    int fd = dial(&h);
    send_str(fd, GET("/a"));
    assert_true(recv_until(fd, buf, sizeof buf, "GET|/a||"));
    close(fd);
    print_message("%d connections: %ld KiB\n", 2 * N, grown);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(grown < 16 * 1024);
#endif
    for (int i = 0; i < 2 * N; i++)
        close(fds[i]);
    assert_true(harness_wait_conns(&h, 0));
    assert_int_equal(atomic_load(&h.n_gone), N);
    harness_stop(&h);
}

/* ---- Readers that do not read -------------------------------------------------------------- */

static void flood(harness *h) {
    static char piece[32768];
    for (int i = 0; i < h->n_held; i++)
        gs_http_write(h->held[i], piece, sizeof piece);
}

/* Much more than the kernel takes, then nothing: time ends it. */
static void test_stalled_reader_is_cut(void **state) {
    (void)state;
    harness h;
    char buf[64];
    harness_config(&h);
    h.cfg.write_timeout_ms = 200;
    h.cfg.max_buffered_bytes = 64u << 20; /* so that only time can */
    harness_start(&h);
    int stream = dial_with(&h, 4096), other = dial(&h);
    send_str(stream, GET("/stream"));
    assert_true(harness_wait(&h.n_requests, 1));
    for (int i = 0; i < 400; i++)
        harness_run(&h, flood);
    assert_true(harness_wait(&h.n_gone, 1));
    send_str(other, GET("/a"));
    assert_true(recv_until(other, buf, sizeof buf, "200 OK"));
    close(stream), close(other);
    assert_true(harness_wait_conns(&h, 0));
    harness_stop(&h);
}

/* A whole answer that nobody fetches: the request is long released, the bytes must go too. */
static void test_stalled_reply_is_cut(void **state) {
    (void)state;
    harness h;
    harness_config(&h);
    h.cfg.write_timeout_ms = 200;
    h.big_bytes = 32u << 20;
    harness_start(&h);
    int fd = dial_with(&h, 4096);
    send_str(fd, GET("/big"));
    assert_true(harness_wait(&h.n_requests, 1));
    assert_true(harness_wait_conns(&h, 0));
    assert_int_equal(atomic_load(&h.n_gone), 0);
    close(fd);
    harness_stop(&h);
}

/* Too many bytes for a stream: no time needed. */
static void test_flooded_reader_is_cut_at_once(void **state) {
    (void)state;
    harness h;
    harness_config(&h);
    h.cfg.write_timeout_ms = 1000000;
    h.cfg.max_buffered_bytes = 4096;
    harness_start(&h);
    int fd = dial_with(&h, 4096);
    send_str(fd, GET("/stream"));
    assert_true(harness_wait(&h.n_requests, 1));
    for (int i = 0; i < 10000 && atomic_load(&h.n_gone) == 0; i++)
        harness_run(&h, flood);
    assert_int_equal(atomic_load(&h.n_gone), 1);
    close(fd);
    harness_stop(&h);
}

/* Slow, but reading: a large answer arrives whole. */
static void test_slow_reader_gets_all(void **state) {
    (void)state;
    harness h;
    static char buf[65536];
    harness_config(&h);
    h.big_bytes = 8u << 20;
    harness_start(&h);
    int fd = dial_with(&h, 8192);
    send_str(fd, "GET /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    size_t total = 0;
    ssize_t r;
    while ((r = recv(fd, buf, sizeof buf, 0)) > 0)
        total += (size_t)r;
    assert_int_equal(r, 0);
    assert_true(total > h.big_bytes && total < h.big_bytes + 500);
    close(fd);
    harness_stop(&h);
}

/* ---- Calls that fail ----------------------------------------------------------------------- */

static void test_accept_fails(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    static const int errors[] = {ECONNABORTED, EPROTO, EMFILE, ENFILE, ENOMEM, ENOBUFS};
    harness_config(&h);
    harness_start(&h);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        gs_fault_set(GS_FAULT_ACCEPT, 1, errors[i]);
        int status = exchange(&h, "GET /a HTTP/1.0\r\n\r\n", 19, buf, sizeof buf);
        /* no descriptor left: told so by means of the reserve; otherwise served, now or later */
        assert_int_equal(status, errors[i] == EMFILE || errors[i] == ENFILE ? 503 : 200);
        gs_fault_clear();
        assert_int_equal(exchange(&h, "GET /b HTTP/1.0\r\n\r\n", 19, buf, sizeof buf), 200);
    }
    harness_stop(&h);
}

/* The real thing: every descriptor of the process is in use. */
static void test_descriptors_run_out(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    static int fds[4096];
    int n = 0, client;
    struct rlimit old, low;
    harness_config(&h);
    harness_start(&h);
    getrlimit(RLIMIT_NOFILE, &old);
    client = dial(&h);
    send_str(client, GET("/a"));
    assert_true(recv_until(client, buf, sizeof buf, "GET|/a||"));
    low = old;
    low.rlim_cur = 200;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    int waiting = socket(AF_INET, SOCK_STREAM, 0);
    while (n < 4096 && (fds[n] = dup(0)) >= 0)
        n++;
    assert_true(n > 0 && errno == EMFILE);
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)gs_http_port(h.server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(waiting, (const struct sockaddr *)&sa, sizeof sa), 0);
    send_str(waiting, GET("/b"));
    recv_all(waiting, buf, sizeof buf);
    assert_int_equal(status_of(buf), 503);
    send_str(client, GET("/c")); /* those that are in are served */
    assert_true(recv_until(client, buf, sizeof buf, "GET|/c||"));
    while (n > 0)
        close(fds[--n]);
    setrlimit(RLIMIT_NOFILE, &old);
    close(waiting), close(client);
    assert_int_equal(exchange(&h, "GET /d HTTP/1.0\r\n\r\n", 19, buf, sizeof buf), 200);
    harness_stop(&h);
}

static void test_read_and_write_fail(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    gs_fault_set(GS_FAULT_READ, 1, EIO);
    assert_int_equal(exchange(&h, GET("/a"), strlen(GET("/a")), buf, sizeof buf), 0);
    gs_fault_set(GS_FAULT_WRITE, 1, EPIPE);
    assert_int_equal(exchange(&h, GET("/a"), strlen(GET("/a")), buf, sizeof buf), 0);
    gs_fault_set(GS_FAULT_WRITE, 1, ECONNRESET);
    assert_int_equal(exchange(&h, GET("/stream"), strlen(GET("/stream")), buf, sizeof buf), 0);
    gs_fault_clear();
    assert_true(harness_wait(&h.n_gone, 1));
    assert_int_equal(exchange(&h, "GET /b HTTP/1.0\r\n\r\n", 19, buf, sizeof buf), 200);
    harness_stop(&h);
}

/* Each allocation fails once, in turn: a 503 or a closed connection, and the next one works. */
static void test_each_allocation_fails(void **state) {
    (void)state;
    static const char request[] = "POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                  "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    int failed = 0;
    for (uint64_t nth = 1; nth < 60; nth++) {
        gs_fault_set(GS_FAULT_ALLOC, nth, 0);
        int status = exchange(&h, request, sizeof request - 1, buf, sizeof buf);
        assert_true(harness_wait_conns(&h, 0));
        uint64_t calls = gs_fault_calls(GS_FAULT_ALLOC);
        gs_fault_clear();
        if (calls < nth) {
            assert_int_equal(status, 200);
            break;
        }
        failed += status != 200;
        assert_int_equal(exchange(&h, "GET /b HTTP/1.0\r\n\r\n", 19, buf, sizeof buf), 200);
    }
    assert_true(failed >= 5);
    harness_stop(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_head),
        cmocka_unit_test(test_dripping_head),
        cmocka_unit_test(test_slow_body),
        cmocka_unit_test(test_idle_keep_alive_ends),
        cmocka_unit_test(test_refused_client_that_stays),
        cmocka_unit_test(test_standstill_is_nobodys_fault),
        cmocka_unit_test(test_thousands_stay_small),
        cmocka_unit_test(test_stalled_reader_is_cut),
        cmocka_unit_test(test_stalled_reply_is_cut),
        cmocka_unit_test(test_flooded_reader_is_cut_at_once),
        cmocka_unit_test(test_slow_reader_gets_all),
        cmocka_unit_test(test_accept_fails),
        cmocka_unit_test(test_descriptors_run_out),
        cmocka_unit_test(test_read_and_write_fail),
        cmocka_unit_test(test_each_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
