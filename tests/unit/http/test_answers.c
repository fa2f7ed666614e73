/* What handlers may do with a request, in whatever order, and what the client then sees; servers
 * that can't be made. */
#include "harness.h"

#include "base/err.h"
#include "faults/fault.h"

typedef struct answering {
    harness h; /* first */
    atomic_int n_written, n_gone;
    gs_http_request *kept;
    bool begun_before;
    const char *begun_after;
} answering;

static void on_written(void *arg) {
    answering *a = arg;
    gs_http_request *rq = a->kept;
    a->kept = NULL;
    atomic_fetch_add(&a->n_written, 1);
    gs_http_end(rq);
}

static void late(answering *a, gs_http_request *rq, int status) {
    a->begun_before = gs_http_begun(rq) != NULL;
    gs_http_begin(rq, 200, "text/plain");
    gs_http_begin(rq, 201, "text/html"); /* one head is enough */
    a->begun_after = gs_http_begun(rq);
    gs_http_write(rq, "a", 1);
    gs_http_write(rq, "", 0);
    gs_http_reply(rq, status, "text/plain", "b", 1);
}

static void headers(gs_http_request *rq) {
    static const char *const own[] = {"Content-Length", "transfer-encoding", "CONNECTION",
                                      "not a name", ""};
    gs_http_add_header(rq, "X-A", "b\r\nX-Evil: 1\x7f\tc");
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        gs_http_add_header(rq, own[i], "evil");
    gs_http_reply(rq, 200, "", "x", 1);
}

static void answer(void *user, gs_http_request *rq) {
    answering *a = user;
    const char *path = gs_http_path(rq);
    if (strncmp(path, "/late", 5) == 0) {
        late(a, rq, atoi(path + 5));
    } else if (strncmp(path, "/status", 7) == 0) {
        gs_http_reply(rq, atoi(path + 7), "text/plain", "x", 1);
    } else if (strcmp(path, "/headers") == 0) {
        headers(rq);
    } else if (strcmp(path, "/echo") == 0) {
        handle_echo(rq);
    } else if (strcmp(path, "/end") == 0) {
        gs_http_end(rq);
    } else if (strcmp(path, "/written") == 0) {
        a->kept = rq;
        gs_http_begin(rq, 200, "text/plain");
        gs_http_write(rq, "all of it", 9);
        assert_true(gs_http_unsent(rq) > 0);
        gs_http_when_written(rq, on_written, a);
    } else {
        a->kept = rq; /* until it is gone */
    }
    atomic_fetch_add(&a->h.n_requests, 1);
}

/* Nothing that is done to a request without a client does harm. */
static void left(void *user, gs_http_request *rq) {
    answering *a = user;
    assert_ptr_equal(a->kept, rq);
    assert_true(gs_http_gone(rq));
    assert_int_equal(gs_http_unsent(rq), 0);
    gs_http_begin(rq, 200, "text/plain");
    assert_null(gs_http_begun(rq));
    gs_http_write(rq, "x", 1);
    gs_http_when_written(rq, on_written, a);
    a->kept = NULL;
    if (atomic_fetch_add(&a->n_gone, 1) == 0)
        gs_http_reply(rq, 200, "text/plain", "x", 1);
    else
        gs_http_abort(rq);
}

static answering *start(void) {
    static answering a;
    a = (answering){0};
    harness_config(&a.h);
    a.h.cfg.on_request = answer;
    a.h.cfg.on_gone = left;
    a.h.cfg.user = &a;
    harness_start(&a.h);
    return &a;
}

/* The head's end, or the whole when there is none. */
static const char *body_of(const char *reply) {
    const char *end = strstr(reply, "\r\n\r\n");
    return end ? end + 4 : reply;
}

static void answers_in_odd_orders(void **state) {
    (void)state;
    static const struct {
        const char *request;
        int status;
        const char *body;
    } cases[] = {
        {"GET /late200 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200,
         "1\r\na\r\n1\r\nb\r\n0\r\n\r\n"},
        {"GET /late200 HTTP/1.0\r\n\r\n", 200, "ab"},
        {"HEAD /late200 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200, ""},
        {"GET /status204 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 204, ""},
        {"GET /status304 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 304, ""},
        {"GET /status299 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 299, "x"},
        {"GET /status1000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 500, "x"},
        {"HEAD /status200 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200, ""},
        {"GET /written HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200,
         "9\r\nall of it\r\n0\r\n\r\n"},
        {"GET /end HTTP/1.1\r\nHost: x\r\n\r\n", 0, ""},
    };
    answering *a = start();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char reply[2048];
        const char *q = cases[i].request;
        const int status = exchange(&a->h, q, strlen(q), reply, sizeof(reply));
        if (status != cases[i].status || strcmp(body_of(reply), cases[i].body) != 0)
            fail_msg("%s: %s", q, reply);
        assert_null(strstr(reply, "text/html"));
    }
    assert_int_equal(atomic_load(&a->n_written), 1);
    harness_stop(&a->h);
    assert_false(a->begun_before);
    assert_string_equal(a->begun_after, "text/plain");
}

/* Its head has gone out, and then it fails: no client may take what came for the whole. */
static void an_answer_that_breaks(void **state) {
    (void)state;
    static const char q[] = "GET /late500 HTTP/1.1\r\nHost: x\r\n\r\n";
    answering *a = start();
    char reply[2048];
    exchange(&a->h, q, sizeof(q) - 1, reply, sizeof(reply));
    assert_null(strstr(reply, "0\r\n\r\n"));
    harness_stop(&a->h);
}

static void headers_of_handlers(void **state) {
    (void)state;
    static const char q[] = "GET /headers HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    answering *a = start();
    char reply[2048];
    assert_int_equal(exchange(&a->h, q, sizeof(q) - 1, reply, sizeof(reply)), 200);
    assert_non_null(strstr(reply, "\r\nX-A: bX-Evil: 1\tc\r\n"));
    assert_null(strstr(reply, "evil"));
    assert_null(strstr(reply, "\r\nContent-Type"));
    assert_string_equal(body_of(reply), "x");
    harness_stop(&a->h);
}

static void clients_that_have_gone(void **state) {
    (void)state;
    answering *a = start();
    for (int i = 1; i <= 2; i++) {
        const int fd = dial(&a->h);
        send_str(fd, "GET /keep HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_true(harness_wait(&a->h.n_requests, i));
        close(fd);
        assert_true(harness_wait(&a->n_gone, i));
    }
    assert_true(harness_wait_conns(&a->h, 0));
    harness_stop(&a->h);
    assert_int_equal(atomic_load(&a->n_written), 0);
}

/* ---- Servers -----------------------------------------------------------------------------------
 */

static void refused(const gs_http_config *cfg, int code, const char *why) {
    char err[256] = "";
    gs_http_server *s = NULL;
    uv_loop_t loop;
    assert_int_equal(uv_loop_init(&loop), 0);
    if (gs_http_server_create(&loop, cfg, &s, err, sizeof(err)) != code || !strstr(err, why))
        fail_msg("'%s' is not '%s'", err, why);
    assert_null(s);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void servers_that_cannot_be_made(void **state) {
    (void)state;
    harness h;
    harness_config(&h);
    gs_http_config cfg = h.cfg;
    cfg.on_request = NULL;
    refused(&cfg, GS_ERR_INVALID, "no address to listen on");
    cfg = h.cfg;
    cfg.n_hosts = 0;
    refused(&cfg, GS_ERR_INVALID, "no address to listen on");
    cfg = h.cfg;
    cfg.hosts = (const char *const[]){"127.0.0.1", "localhost"};
    cfg.n_hosts = 2; /* the first one is given back */
    refused(&cfg, GS_ERR_INVALID, "\"localhost\" is no IP address to listen on");
    cfg.hosts = (const char *const[]){"192.0.2.1"}; /* for examples: nobody has it */
    cfg.n_hosts = 1;
    refused(&cfg, GS_ERR_INVALID, "192.0.2.1 is no address of this machine");
    cfg.hosts = (const char *const[]){"2001:db8::1"};
    refused(&cfg, GS_ERR_INVALID, "2001:db8::1 is no address of this machine");
}

/* Closing twice, draining after closing: once is enough. */
static void close_twice(harness *h) {
    harness_close(h);
    gs_http_server_close(h->server, harness_done, h);
    gs_http_server_drain(h->server);
}

static void ends_that_come_twice(void **state) {
    (void)state;
    answering *a = start();
    harness_run(&a->h, close_twice);
    harness_join(&a->h);
}

static void over_ipv6(void **state) {
    (void)state;
    static const char *const hosts[] = {"::1"};
    answering a = {0};
    char err[256], reply[1024];
    gs_http_server *s = NULL;
    harness_config(&a.h);
    a.h.cfg.hosts = hosts;
    a.h.cfg.user = &a.h;
    uv_loop_t loop;
    assert_int_equal(uv_loop_init(&loop), 0);
    if (gs_http_server_create(&loop, &a.h.cfg, &s, err, sizeof(err)) != 0) {
        assert_string_equal(err, "none of the addresses to listen on can be used");
        print_message("no IPv6 on this machine\n");
        assert_int_equal(uv_loop_close(&loop), 0);
        skip();
    }
    gs_http_server_close(s, NULL, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    harness_start(&a.h);
    struct sockaddr_in6 sa = {.sin6_family = AF_INET6,
                              .sin6_port = htons((uint16_t)gs_http_port(a.h.server)),
                              .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&sa, sizeof(sa)), 0);
    send_str(fd, "GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    recv_all(fd, reply, sizeof(reply));
    close(fd);
    assert_int_equal(status_of(reply), 200);
    assert_non_null(strstr(reply, "\r\nX-Peer: ::1\r\n"));
    harness_stop(&a.h);
}

/* ---- Each allocation fails once ----------------------------------------------------------------
 */

/* A server, a request with a body, a stream: what fails is told, and the next request works. */
static void each_allocation_fails(void **state) {
    (void)state;
    static const char q[] =
        "POST /echo HTTP/1.1\r\nHost: x\r\nX-Echo: y\r\nContent-Length: 4\r\n\r\nbody"
        "GET /late200 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    uint64_t n = 1;
    for (uint64_t i = 0; i <= n; i++) {
        answering *a = start();
        gs_fault_set(GS_FAULT_ALLOC, i ? i : UINT64_MAX, 0);
        char reply[4096];
        const int status = exchange(&a->h, q, sizeof(q) - 1, reply, sizeof(reply));
        n = i ? n : gs_fault_calls(GS_FAULT_ALLOC);
        gs_fault_clear();
        /* A whole answer, a refusal, or a connection that breaks: never half of one as if it were
         * all. */
        if (i == 0)
            assert_non_null(strstr(reply, "0\r\n\r\n"));
        assert_true(status == 0 || status == 200 || status == 500 || status == 503);
        static const char next[] =
            "GET /status200 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        if (a->kept)
            fail_msg("a request is kept");
        assert_int_equal(exchange(&a->h, next, sizeof(next) - 1, reply, sizeof(reply)), 200);
        assert_string_equal(body_of(reply), "x");
        harness_stop(&a->h);
    }
    assert_true(n >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_in_odd_orders),
        cmocka_unit_test(an_answer_that_breaks),
        cmocka_unit_test(headers_of_handlers),
        cmocka_unit_test(clients_that_have_gone),
        cmocka_unit_test(servers_that_cannot_be_made),
        cmocka_unit_test(ends_that_come_twice),
        cmocka_unit_test(over_ipv6),
        cmocka_unit_test(each_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
