/* The server over real sockets: requests, answers, disconnects, limits, time-outs, faults. */
#include "harness.h"

#include "base/err.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: x\r\n\r\n"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_and_keep_alive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
