/* Bodies that are handed on as they come, over real sockets, and requests without a socket. */
#include "harness.h"

#include "base/err.h"
#include "faults/fault.h"

typedef struct upload {
    harness h; /* first */
    gs_buf got;
    gs_http_request *rq;
    atomic_int n_data, n_cut, n_head;
    size_t pause_at;
    int refuse;
} upload;

static void on_data(void *arg, const char *data, size_t n) {
    upload *u = arg;
    gs_buf_add(&u->got, data, n);
    if (u->pause_at && u->got.len >= u->pause_at) {
        u->pause_at = 0;
        gs_http_pause_body(u->rq);
    }
    atomic_fetch_add(&u->n_data, 1);
}

static void on_cut(void *arg) {
    upload *u = arg;
    u->rq = NULL;
    atomic_fetch_add(&u->n_cut, 1);
}

static size_t limit(void *user, const char *method, const char *path) {
    (void)user;
    return strcmp(method, "POST") == 0 && strcmp(path, "/up") == 0 ? 1000000 : 0;
}

static int on_head(void *user, gs_http_request *rq, const char **message) {
    upload *u = user;
    const gs_http_sink sink = {on_data, on_cut, u};
    atomic_fetch_add(&u->n_head, 1);
    if (u->refuse) {
        *message = "no";
        return u->refuse;
    }
    if (strcmp(gs_http_path(rq), "/up") == 0) {
        u->rq = rq;
        gs_http_stream_body(rq, &sink);
    }
    return 0;
}

static upload *start(void) {
    static upload u;
    u = (upload){0};
    harness_config(&u.h);
    u.h.cfg.max_body_bytes = 1000;
    u.h.cfg.body_limit = limit;
    u.h.cfg.on_head = on_head;
    u.h.cfg.user = &u;
    harness_start(&u.h);
    return &u;
}

static void stop(upload *u) {
    harness_stop(&u->h);
    gs_buf_deinit(&u->got);
}

static void post(int fd, const char *path, size_t n) {
    char head[256];
    static char body[1000000];
    memset(body, 'x', sizeof body);
    snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", path,
             n);
    send_str(fd, head);
    send_all(fd, body, n);
}

static void test_a_body_is_handed_on(void **state) {
    (void)state;
    upload *u = start();
    char buf[4096];
    int fd = dial(&u->h);
    post(fd, "/up", 300000);
    assert_true(recv_until(fd, buf, sizeof buf, "POST|/up||"));
    assert_int_equal(u->got.len, 300000);
    assert_int_equal(u->n_cut, 0);
    /* The same connection goes on, with the usual limits. */
    post(fd, "/other", 1000);
    assert_true(recv_until(fd, buf, sizeof buf, "POST|/other||xxx"));
    close(fd);
    assert_true(harness_wait_conns(&u->h, 0));
    stop(u);
}

static void test_limits_of_their_own(void **state) {
    (void)state;
    upload *u = start();
    char buf[4096];
    int fd = dial(&u->h);
    send_str(fd, "POST /up HTTP/1.1\r\nHost: x\r\nContent-Length: 1000001\r\n\r\n");
    recv_all(fd, buf, sizeof buf);
    assert_int_equal(status_of(buf), 413);
    close(fd);
    fd = dial(&u->h);
    send_str(fd, "POST /other HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n");
    recv_all(fd, buf, sizeof buf);
    assert_int_equal(status_of(buf), 413);
    close(fd);
    fd = dial(&u->h);
    send_str(fd, "POST /up HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                 "5\r\nhello\r\nf4240\r\nx");
    recv_all(fd, buf, sizeof buf);
    assert_int_equal(status_of(buf), 413);
    assert_int_equal(u->n_cut, 1);
    close(fd);
    stop(u);
}

static void test_refused_at_the_head(void **state) {
    (void)state;
    upload *u = start();
    char buf[4096];
    u->refuse = 401;
    int fd = dial(&u->h);
    send_str(fd, "POST /up HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\nbeginning");
    recv_all(fd, buf, sizeof buf);
    assert_int_equal(status_of(buf), 401);
    assert_int_equal(u->n_data, 0);
    assert_int_equal(atomic_load(&u->h.n_requests), 0);
    close(fd);
    stop(u);
}

static void test_the_client_leaves(void **state) {
    (void)state;
    upload *u = start();
    int fd = dial(&u->h);
    send_str(fd, "POST /up HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\nbeginning");
    assert_true(harness_wait(&u->n_data, 1));
    close(fd);
    assert_true(harness_wait(&u->n_cut, 1));
    assert_int_equal(atomic_load(&u->h.n_gone), 0);
    stop(u);
    assert_int_equal(u->n_cut, 1);
}

static void test_the_server_closes(void **state) {
    (void)state;
    upload *u = start();
    int fd = dial(&u->h);
    send_str(fd, "POST /up HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\nbeginning");
    assert_true(harness_wait(&u->n_data, 1));
    stop(u);
    assert_int_equal(u->n_cut, 1);
    close(fd);
}

static void resume(harness *h) {
    upload *u = (upload *)h;
    atomic_store(&u->n_head, (int)u->got.len);
    gs_http_resume_body(u->rq);
}

/* Each twice, while the request is there. */
static void pause_and_resume(harness *h) {
    const upload *u = (upload *)h;
    for (int i = 0; i < 4 && u->got.len < 1000000; i++)
        (i < 2 ? gs_http_pause_body : gs_http_resume_body)(u->rq);
}

static void test_a_pause_stops_the_client(void **state) {
    (void)state;
    upload *u = start();
    char buf[4096];
    u->pause_at = 1;
    int fd = dial(&u->h);
    post(fd, "/up", 1000000);
    assert_true(harness_wait(&u->n_data, 1));
    harness_run(&u->h, resume);
    assert_true(atomic_load(&u->n_head) <= 65536); /* no more than was read at once */
    assert_true(recv_until(fd, buf, sizeof buf, "POST|/up||"));
    assert_int_equal(u->got.len, 1000000);
    close(fd);
    stop(u);
}

/* A pause at the last piece comes too late; twice is as once; nothing paused, nothing resumed. */
static void test_a_pause_at_the_end(void **state) {
    (void)state;
    upload *u = start();
    char buf[4096];
    u->pause_at = 500;
    int fd = dial(&u->h);
    send_str(fd, "POST /up HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n");
    memset(buf, 'x', 500);
    send_all(fd, buf, 500);
    assert_true(recv_until(fd, buf, sizeof buf, "POST|/up||"));
    post(fd, "/other", 3); /* the connection goes on */
    assert_true(recv_until(fd, buf, sizeof buf, "POST|/other||"));
    close(fd);
    u->pause_at = 501;
    fd = dial(&u->h);
    post(fd, "/up", 1000000);
    assert_true(harness_wait(&u->n_data, 2));
    harness_run(&u->h, pause_and_resume);
    harness_run(&u->h, pause_and_resume);
    assert_true(recv_until(fd, buf, sizeof buf, "POST|/up||"));
    close(fd);
    stop(u);
}

/* ---- Without a socket ---- */

typedef struct heard {
    int status, n;
    char body[64];
} heard;

static void on_answer(void *arg, int status, const char *body, size_t n) {
    heard *x = arg;
    x->status = status;
    x->n++;
    snprintf(x->body, sizeof x->body, "%.*s", (int)n, body);
}

static gs_http_request *local(heard *x, const char *path) {
    const gs_http_local l = {"POST", path, "abc", 3, x, on_answer, x};
    *x = (heard){0};
    gs_http_request *rq = gs_http_local_create(&l);
    assert_non_null(rq);
    assert_false(gs_http_gone(rq));
    assert_ptr_equal(gs_http_local_owner(rq), x);
    assert_null(gs_http_header(rq, "content-type"));
    assert_string_equal(gs_http_query(rq), "");
    assert_string_equal(gs_http_peer(rq), "");
    return rq;
}

static void test_answers_without_a_socket(void **state) {
    (void)state;
    heard x;
    handle_echo(local(&x, "/a"));
    assert_int_equal(x.status, 200);
    assert_string_equal(x.body, "POST|/a||abc");
    gs_http_request *rq = local(&x, "/b");
    gs_http_begin(rq, 201, "text/plain");
    gs_http_write(rq, "one ", 4);
    gs_http_write(rq, "two", 3);
    assert_int_equal(x.n, 0);
    gs_http_end(rq);
    assert_int_equal(x.n, 1);
    assert_int_equal(x.status, 201);
    assert_string_equal(x.body, "one two");
    rq = local(&x, "/c");
    gs_http_begin(rq, 200, "text/plain");
    gs_http_abort(rq);
    assert_int_equal(x.n, 1);
    assert_int_equal(x.status, 0);
    gs_http_end(local(&x, "/d")); /* without a beginning */
    assert_int_equal(x.n, 1);
    assert_int_equal(x.status, 0);
    rq = local(&x, "/f"); /* too late for another status, but not for more of the same */
    gs_http_begin(rq, 200, "text/plain");
    gs_http_write(rq, "one ", 4);
    gs_http_reply(rq, 200, "text/plain", "two", 3);
    assert_int_equal(x.n, 1);
    assert_int_equal(x.status, 200);
    assert_string_equal(x.body, "one two");
    rq = local(&x, "/g");
    gs_http_begin(rq, 200, "text/plain");
    gs_http_reply(rq, 500, "text/plain", "no", 2);
    assert_int_equal(x.n, 1);
    assert_int_equal(x.status, 0);
    assert_string_equal(x.body, "");
    rq = local(&x, "/h");
    gs_http_begin(rq, 200, "text/plain");
    gs_fault_set(GS_FAULT_ALLOC, 1, ENOMEM);
    gs_http_write(rq, "lost", 4);
    gs_fault_clear();
    gs_http_end(rq);
    assert_int_equal(x.status, 0);
    rq = local(&x, "/i");
    gs_http_begin(rq, 200, "text/plain");
    gs_http_end(rq);
    assert_int_equal(x.status, 200);
    assert_string_equal(x.body, "");
    rq = local(&x, "/e");
    gs_http_local_leave(rq);
    gs_http_end(rq);
    assert_int_equal(x.n, 0);
}

static void test_no_memory_for_one(void **state) {
    (void)state;
    heard x;
    const gs_http_local l = {"POST", "/", "abc", 3, &x, on_answer, &x};
    for (uint64_t nth = 1; nth < 5; nth++) {
        gs_fault_set(GS_FAULT_ALLOC, nth, ENOMEM);
        gs_http_request *rq = gs_http_local_create(&l);
        gs_fault_clear();
        assert_true(rq == NULL || nth == 4);
        if (rq)
            gs_http_end(rq);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_body_is_handed_on), cmocka_unit_test(test_limits_of_their_own),
        cmocka_unit_test(test_refused_at_the_head), cmocka_unit_test(test_the_client_leaves),
        cmocka_unit_test(test_the_server_closes),   cmocka_unit_test(test_a_pause_stops_the_client),
        cmocka_unit_test(test_a_pause_at_the_end),  cmocka_unit_test(test_answers_without_a_socket),
        cmocka_unit_test(test_no_memory_for_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
