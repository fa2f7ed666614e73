/* Messages to the service manager, read at the other end of a real socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/notify.h"

/* A manager: name as in NOTIFY_SOCKET. */
static int listen_at(const char *name) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path, name, strlen(name));
    if (name[0] == '@')
        a.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    assert_int_equal(bind(fd, (const struct sockaddr *)&a, len), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

static void heard(int fd, const char *what) {
    char text[2 * GS_NOTIFY_MAX];
    ssize_t n = recv(fd, text, sizeof(text), 0);
    assert_int_equal(n, (ssize_t)strlen(what));
    assert_memory_equal(text, what, strlen(what));
}

static void without_a_manager_nothing_happens(void **state) {
    (void)state;
    unsetenv("NOTIFY_SOCKET");
    assert_false(gs_notify_is_supervised());
    assert_int_equal(gs_notify("READY=1"), 0);
    setenv("NOTIFY_SOCKET", "", 1);
    assert_false(gs_notify_is_supervised());
    assert_int_equal(gs_notify("READY=1"), 0);
}

static void a_socket_in_the_file_system(void **state) {
    char dir[] = "/tmp/gs_notify_XXXXXX", path[64];
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/n", dir);
    int fd = listen_at(path);
    assert_true(gs_notify_is_supervised());
    assert_int_equal(gs_notify("READY=1\nSTATUS=serving %s", "a b"), 0);
    assert_int_equal(gs_notify("WATCHDOG=1"), 0);
    heard(fd, "READY=1\nSTATUS=serving a b");
    heard(fd, "WATCHDOG=1");
    close(fd);
    unlink(path);
    rmdir(dir);
    assert_int_equal(gs_notify("STOPPING=1"), GS_ERR_IO); /* nobody there any more */
}

static void a_socket_outside_the_file_system(void **state) {
    char name[64];
    (void)state;
    snprintf(name, sizeof(name), "@gamasot-test-%d", (int)getpid());
    int fd = listen_at(name);
    assert_int_equal(gs_notify("STOPPING=1"), 0);
    heard(fd, "STOPPING=1");
    close(fd);
}

static void a_manager_that_does_not_read_is_not_waited_for(void **state) {
    char name[64];
    int rc = 0;
    (void)state;
    snprintf(name, sizeof(name), "@gamasot-test-full-%d", (int)getpid());
    int fd = listen_at(name);
    for (int i = 0; i < 100000 && rc == 0; i++)
        rc = gs_notify("WATCHDOG=1");
    assert_int_equal(rc, GS_ERR_IO);
    heard(fd, "WATCHDOG=1");
    assert_int_equal(gs_notify("WATCHDOG=1"), 0);
    close(fd);
}

static void what_is_no_socket_and_what_is_too_long(void **state) {
    char name[64], big[2 * GS_NOTIFY_MAX];
    (void)state;
    const char *const wrong[] = {"tmp/x", "/", "@",
                                 "/0123456789012345678901234567890123456789012345678901234567890123"
                                 "45678901234567890123456789012345678901234567890123456789"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        setenv("NOTIFY_SOCKET", wrong[i], 1);
        assert_int_equal(gs_notify("READY=1"), GS_ERR_INVALID);
    }
    snprintf(name, sizeof(name), "@gamasot-test-long-%d", (int)getpid());
    int fd = listen_at(name);
    memset(big, 'x', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    assert_int_equal(gs_notify("%s", big), 0);
    big[GS_NOTIFY_MAX - 1] = '\0';
    heard(fd, big);
    close(fd);
    unsetenv("NOTIFY_SOCKET");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_manager_nothing_happens),
        cmocka_unit_test(a_socket_in_the_file_system),
        cmocka_unit_test(a_socket_outside_the_file_system),
        cmocka_unit_test(a_manager_that_does_not_read_is_not_waited_for),
        cmocka_unit_test(what_is_no_socket_and_what_is_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
