/* Sockets: what a server makes of addresses, of calls that fail, of clients beyond its limits and
 * of those that leave in the middle. */
#include "faults/fault.h"
#include "harness.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/err.h"
#include "http/conn_impl.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

static int n_open_files(void) {
    int n = 0;
    uv_loop_t loop; /* the first one opens what all share */
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* ---- The start ------------------------------------------------------------------------------- */

static bool has_ipv6(void) {
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Nothing that a start opened stays open when it fails. */
static void each_call_of_a_start(void **state) {
    (void)state;
    static const char *const v4[] = {"127.0.0.1", "127.0.0.2"};
    static const char *const v6[] = {"::1"}, *const any6[] = {"::"},
                             *const far6[] = {"2001:db8::1"};
    static const char *const both[] = {"127.0.0.1", "::1"};
    enum { SOCKET = 1, BIND, LISTEN, POLL, SECOND_SOCKET = 4, SECOND_POLL = 8 };
    static const struct {
        const char *const *hosts;
        int n_hosts;
        uint64_t call;
        int errnum, rc;
        const char *says;
    } cases[] = {
        // clang-format off
        {v4, 1, SOCKET, EMFILE, GS_ERR_IO, "cannot listen on 127.0.0.1 port 0: "},
        {v4, 1, BIND, EACCES, GS_ERR_FORBIDDEN, "needs rights that this user lacks"},
        {v4, 1, BIND, EADDRNOTAVAIL, GS_ERR_INVALID, "127.0.0.1 is no address of this machine"},
        {v4, 1, LISTEN, EADDRINUSE, GS_ERR_EXISTS, "is already in use"},
        {v4, 1, LISTEN, ENOBUFS, GS_ERR_IO, "cannot listen on 127.0.0.1 port 0: "},
        {v4, 1, POLL, ENOMEM, GS_ERR_IO, "cannot watch the listening socket: "},
        {v4, 2, SECOND_SOCKET, EMFILE, GS_ERR_IO, "cannot listen on 127.0.0.2 port "},
        {v4, 2, SECOND_POLL, ENOMEM, GS_ERR_IO, "cannot watch the listening socket: "},
        {v4, 1, SOCKET, EAFNOSUPPORT, GS_ERR_IO, "cannot listen on 127.0.0.1 port 0: "},
        {both, 2, SECOND_SOCKET, EAFNOSUPPORT, 0, ""},
        {v6, 1, SOCKET, EAFNOSUPPORT, GS_ERR_IO, "none of the addresses to listen on can be used"},
        {v6, 1, BIND, EADDRNOTAVAIL, GS_ERR_IO, "none of the addresses to listen on can be used"},
        {any6, 1, BIND, EADDRNOTAVAIL, GS_ERR_IO, "none of the addresses to listen on can be used"},
        {far6, 1, BIND, EADDRNOTAVAIL, GS_ERR_INVALID, "2001:db8::1 is no address of this machine"},
        {v6, 1, BIND, EACCES, GS_ERR_FORBIDDEN, "needs rights that this user lacks"},
        {v6, 1, SOCKET, EMFILE, GS_ERR_IO, "cannot listen on ::1 port 0: "},
        {v4, 0, 0, 0, GS_ERR_INVALID, "no address to listen on is configured"},
        // clang-format on
    };
    const bool ipv6 = has_ipv6();
    if (!ipv6)
        print_message("no IPv6 on this machine: its cases are left out\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        harness h;
        char err[256] = "";
        gs_http_server *s = NULL;
        if (!ipv6 && cases[i].hosts != v4)
            continue;
        harness_config(&h);
        h.cfg.hosts = cases[i].hosts;
        h.cfg.n_hosts = cases[i].n_hosts;
        const int before = n_open_files();
        assert_int_equal(uv_loop_init(&h.loop), 0);
        gs_fault_set(GS_FAULT_NET, cases[i].call, cases[i].errnum);
        const int rc = gs_http_server_create(&h.loop, &h.cfg, &s, err, sizeof err);
        gs_fault_clear();
        if (rc != cases[i].rc || (s != NULL) != (rc == 0) || !strstr(err, cases[i].says))
            fail_msg("case %zu: %d, \"%s\"", i, rc, err);
        if (s)
            gs_http_server_close(s, NULL, NULL);
        assert_int_equal(uv_run(&h.loop, UV_RUN_DEFAULT), 0);
        assert_int_equal(uv_loop_close(&h.loop), 0);
        assert_int_equal(n_open_files(), before);
    }
}

static void no_memory_for_a_start(void **state) {
    (void)state;
    harness h;
    char err[256] = "";
    gs_http_server *s = NULL;
    const int before = n_open_files();
    harness_config(&h);
    assert_int_equal(uv_loop_init(&h.loop), 0);
    for (uint64_t nth = 1; nth <= 3; nth++) {
        gs_fault_set(GS_FAULT_ALLOC, nth, 0);
        assert_int_equal(gs_http_server_create(&h.loop, &h.cfg, &s, err, sizeof err), GS_ERR_NOMEM);
        assert_string_equal(err, "out of memory");
        assert_null(s);
        gs_fault_clear();
    }
    h.cfg.on_request = NULL;
    assert_int_equal(gs_http_server_create(&h.loop, &h.cfg, &s, err, sizeof err), GS_ERR_INVALID);
    assert_int_equal(uv_loop_close(&h.loop), 0);
    assert_int_equal(n_open_files(), before);
}

/* Its exit status: which of the expectations does not hold; 0: all do. */
static int live_with_few_files(void) {
    enum { LIMIT = 200, FIT = LIMIT - GS_HTTP_MAX_LINGER - 64 };
    struct rlimit r;
    harness h;
    char buf[4096];
    int fds[FIT], status = 0;
    harness_config(&h);
    /* What is allowed is asked for. */
    getrlimit(RLIMIT_NOFILE, &r);
    const rlim_t want = (rlim_t)h.cfg.max_connections + GS_HTTP_MAX_LINGER + 64;
    r.rlim_cur = LIMIT;
    setrlimit(RLIMIT_NOFILE, &r);
    harness_start(&h);
    harness_stop(&h);
    getrlimit(RLIMIT_NOFILE, &r);
    if (r.rlim_max >= want && r.rlim_cur != want)
        return 2;
    /* What is not allowed is not promised. */
    r = (struct rlimit){LIMIT, LIMIT};
    setrlimit(RLIMIT_NOFILE, &r);
    harness_config(&h);
    harness_start(&h);
    for (int i = 0; i < FIT; i++) {
        fds[i] = dial(&h);
        send_str(fds[i], GET("/a"));
        if (!recv_until(fds[i], buf, sizeof buf, "GET|/a||"))
            status = 3;
    }
    if (exchange(&h, GET("/b"), strlen(GET("/b")), buf, sizeof buf) != 503)
        status = 4;
    for (int i = 0; i < FIT; i++)
        close(fds[i]);
    harness_stop(&h);
    return status;
}

static void few_files(void **state) {
    (void)state;
    int status;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0)
        exit(live_with_few_files());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- Calls of a connection that fail --------------------------------------------------------- */

/* Whoever it was for finds the connection closed; the next one is served. */
static void each_call_of_a_connection(void **state) {
    (void)state;
    enum { WHO = 1, INIT, OPEN, READ, WRITE, NONE };
    harness h;
    static char buf[32 << 20];
    harness_config(&h);
    h.big_bytes = 16u << 20;
    harness_start(&h);
    for (uint64_t call = WHO; call <= NONE; call++) {
        const int fd = new_client();
        gs_fault_set(GS_FAULT_NET, call, 0);
        connect_to(&h, fd);
        send_str(fd, "GET /big HTTP/1.0\r\n\r\n");
        const size_t n = recv_all(fd, buf, sizeof buf);
        close(fd);
        assert_true(harness_wait_conns(&h, 0));
        const uint64_t calls = gs_fault_calls(GS_FAULT_NET);
        gs_fault_clear();
        assert_int_equal(calls, call < NONE ? call : WRITE);
        if (call < WRITE)
            assert_int_equal(n, 0);
        else if (call == WRITE)
            assert_true(n > 0 && n < h.big_bytes);
        else
            assert_true(n > h.big_bytes);
        assert_int_equal(exchange(&h, "GET /b HTTP/1.0\r\n\r\n", 19, buf, sizeof buf), 200);
    }
    harness_stop(&h);
}

/* Without a descriptor in reserve the client waits in the kernel until there is one. */
static void no_descriptor_in_reserve(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    h.cfg.keep_alive_ms = 10; /* looked at often */
    gs_fault_set(GS_FAULT_FILE, 1, EMFILE);
    harness_start(&h);
    gs_fault_set(GS_FAULT_ACCEPT, 1, EMFILE);
    assert_int_equal(exchange(&h, "GET /a HTTP/1.0\r\n\r\n", 19, buf, sizeof buf), 200);
    assert_true(gs_fault_calls(GS_FAULT_ACCEPT) >= 2);
    gs_fault_clear();
    harness_stop(&h);
}

/* ---- Limits ---------------------------------------------------------------------------------- */

/* As many addresses as there are, each with its own count. */
static void addresses_are_counted_apart(void **state) {
    (void)state;
    enum { N = 60 };
    harness h;
    char buf[4096];
    int fds[2][N];
    harness_config(&h);
    h.cfg.max_connections = 128;
    h.cfg.max_connections_per_address = 1;
    harness_start(&h);
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < N; i++) {
                const struct sockaddr_in from = {
                    .sin_family = AF_INET,
                    .sin_addr.s_addr = htonl(0x7f000001u + (unsigned)i * 40503u * 31u % 0xffff00u)};
                fds[k][i] = new_client();
                assert_int_equal(bind(fds[k][i], (const struct sockaddr *)&from, sizeof from), 0);
                connect_to(&h, fds[k][i]);
                send_str(fds[k][i], GET("/a"));
                assert_true(recv_until(fds[k][i], buf, sizeof buf, "\r\n\r\n"));
                assert_int_equal(status_of(buf), k == 0 ? 200 : 503);
            }
        for (int i = 0; i < N; i++)
            close(fds[0][i]), close(fds[1][i]);
        assert_true(harness_wait_conns(&h, 0));
    }
    harness_stop(&h);
}

static void check_bytes(harness *h) {
    const uint64_t n = gs_http_bytes(h->server);
    assert_true(n > (uint64_t)gs_http_n_connections(h->server) * sizeof(gs_http_conn));
    assert_true(n < gs_http_max_bytes(h->server));
}

/* Those that were told "no" and stay are limited as well: beyond, the answer is the shortest. */
static void refused_clients_that_stay(void **state) {
    (void)state;
    enum { SERVED = 2 };
    harness h;
    char buf[4096];
    int fds[SERVED + GS_HTTP_MAX_LINGER];
    harness_config(&h);
    h.cfg.max_connections = SERVED;
    harness_start(&h);
    for (int i = 0; i < SERVED + GS_HTTP_MAX_LINGER; i++) {
        fds[i] = dial(&h);
        send_str(fds[i], GET("/a"));
        if (i < SERVED)
            assert_true(recv_until(fds[i], buf, sizeof buf, "GET|/a||"));
        else
            recv_all(fds[i], buf, sizeof buf);
        assert_int_equal(status_of(buf), i < SERVED ? 200 : 503);
        assert_int_equal(strstr(buf, "too many connections") != NULL, i >= SERVED);
    }
    harness_run(&h, check_bytes);
    assert_int_equal(exchange(&h, GET("/b"), strlen(GET("/b")), buf, sizeof buf), 503);
    assert_non_null(strstr(buf, "\r\nContent-Length: 0\r\n"));
    /* One that is served and ends finds no place among them: it has its answer all the same. */
    send_str(fds[0], "GET /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    recv_all(fds[0], buf, sizeof buf);
    assert_non_null(strstr(buf, "GET|/c||"));
    for (int i = 0; i < SERVED + GS_HTTP_MAX_LINGER; i++)
        close(fds[i]);
    assert_true(harness_wait_conns(&h, 0));
    harness_stop(&h);
}

/* One that was told "no" and sends on: so much is read of it, and no more. */
static void a_refused_client_that_sends_on(void **state) {
    (void)state;
    static const char piece[1 << 16];
    harness h;
    harness_config(&h);
    harness_start(&h);
    const int fd = dial(&h);
    ssize_t r = 1;
    size_t sent = 0;
    send_str(fd, "nonsense\n");
    while (r > 0 && sent < 2 * (size_t)GS_HTTP_LINGER_READ) {
        r = send(fd, piece, sizeof piece, MSG_NOSIGNAL);
        sent += r > 0 ? (size_t)r : 0;
    }
    assert_int_equal(r, -1);
    assert_true(errno == EPIPE || errno == ECONNRESET);
    assert_true(harness_wait_conns(&h, 0));
    close(fd);
    harness_stop(&h);
}

/* ---- Ends in the middle ---------------------------------------------------------------------- */

static void answer_and_close(harness *h) {
    answer_held(h);
    harness_close(h);
}

/* The answer was given, and nothing of it is written yet. */
static void closed_before_it_is_written(void **state) {
    (void)state;
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    const int fd = dial(&h);
    send_str(fd, GET("/hold"));
    assert_true(harness_wait(&h.n_requests, 1));
    harness_run(&h, answer_and_close);
    assert_int_equal(recv_all(fd, buf, sizeof buf), 0);
    close(fd);
    harness_join(&h);
}

static void end_gone(harness *h) {
    gs_http_request *rq = h->held[0];
    assert_int_equal(h->n_held, 1);
    assert_true(gs_http_gone(rq));
    gs_http_pause_body(rq); /* of nobody: nothing happens */
    gs_http_resume_body(rq);
    gs_http_write(rq, "x", 1);
    release_held(h);
}

static void nobody_wants_to_know_who_left(void **state) {
    (void)state;
    harness h;
    harness_config(&h);
    h.cfg.on_gone = NULL;
    harness_start(&h);
    const int fd = dial(&h);
    send_str(fd, GET("/stream"));
    assert_true(harness_wait(&h.n_requests, 1));
    close(fd);
    assert_true(harness_wait_conns(&h, 0));
    harness_run(&h, end_gone);
    harness_stop(&h);
}

/* A client that says that it sends no more, takes a part of its answer and resets. */
static void reset_while_it_is_written(void **state) {
    (void)state;
    const struct linger rst = {.l_onoff = 1};
    harness h;
    char buf[4096];
    harness_config(&h);
    h.big_bytes = 16u << 20;
    harness_start(&h);
    const int fd = dial_with(&h, 8192);
    send_str(fd, GET("/big"));
    assert_true(recv_until(fd, buf, sizeof buf, "\r\n\r\n"));
    shutdown(fd, SHUT_WR);
    pause_ms(20); /* for the server to see it; were it too short, it would see the reset instead */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &rst, sizeof rst);
    close(fd);
    assert_true(harness_wait_conns(&h, 0));
    assert_int_equal(atomic_load(&h.n_gone), 0);
    assert_int_equal(exchange(&h, "GET /b HTTP/1.0\r\n\r\n", 19, buf, sizeof buf), 200);
    harness_stop(&h);
}

/* Who sends the body at once needs not be told to go on. */
static void a_body_that_does_not_wait(void **state) {
    (void)state;
    static const char request[] = "POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                  "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello";
    harness h;
    char buf[4096];
    harness_config(&h);
    harness_start(&h);
    assert_int_equal(exchange(&h, request, sizeof request - 1, buf, sizeof buf), 200);
    assert_non_null(strstr(buf, "POST|/a||hello"));
    harness_stop(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_of_a_start),
        cmocka_unit_test(no_memory_for_a_start),
        cmocka_unit_test(few_files),
        cmocka_unit_test(each_call_of_a_connection),
        cmocka_unit_test(no_descriptor_in_reserve),
        cmocka_unit_test(addresses_are_counted_apart),
        cmocka_unit_test(refused_clients_that_stay),
        cmocka_unit_test(a_refused_client_that_sends_on),
        cmocka_unit_test(closed_before_it_is_written),
        cmocka_unit_test(nobody_wants_to_know_who_left),
        cmocka_unit_test(reset_while_it_is_written),
        cmocka_unit_test(a_body_that_does_not_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
