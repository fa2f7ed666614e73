#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/checked.h"
#include "base/err.h"
#include "base/sys.h"
#include "faults/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static int teardown_faults(void **state) {
    (void)state;
    gs_fault_clear();
    unsetenv("GAMASOT_FAULT");
    return 0;
}

static void fault_hits_exactly_the_nth_call(void **state) {
    (void)state;
    gs_fault_set(GS_FAULT_ALLOC, 3, ENOMEM);
    for (int i = 1; i <= 6; i++) {
        errno = 0;
        void *p = gs_malloc(8);
        if (i == 3) {
            assert_null(p);
            assert_int_equal(errno, ENOMEM);
        } else {
            assert_non_null(p);
        }
        gs_free(p);
    }
    assert_int_equal(gs_fault_calls(GS_FAULT_ALLOC), 6);
    assert_int_equal(gs_fault_calls(GS_FAULT_READ), 0);
}

static void every_allocator_counts_as_one_call(void **state) {
    (void)state;
    for (uint64_t nth = 1; nth <= 7; nth++) {
        gs_fault_set(GS_FAULT_ALLOC, nth, 0);
        void *p[7] = {
            gs_malloc(1),     gs_calloc(2, 2),    gs_realloc(NULL, 4), gs_array(3, 3),
            gs_strdup("abc"), gs_strndup("a", 1), gs_aligned(64, 64),
        };
        for (uint64_t i = 0; i < 7; i++) {
            assert_int_equal(p[i] == NULL, i + 1 == nth);
            gs_free(p[i]);
        }
        assert_int_equal(gs_fault_calls(GS_FAULT_ALLOC), 7);
    }
}

static void clear_disarms_and_counts_from_zero(void **state) {
    (void)state;
    gs_fault_set(GS_FAULT_ALLOC, 1, 0);
    gs_fault_clear();
    void *p = gs_malloc(1);
    assert_non_null(p);
    gs_free(p);
    assert_int_equal(gs_fault_calls(GS_FAULT_ALLOC), 1);
}

static void fault_errnum_reaches_the_caller(void **state) {
    (void)state;
    char c = 'x';
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    gs_fault_set(GS_FAULT_WRITE, 1, ENOSPC);
    assert_int_equal(gs_write(fds[1], &c, 1), -1);
    assert_int_equal(errno, ENOSPC);
    assert_int_equal(gs_write(fds[1], &c, 1), 1);
    gs_fault_set(GS_FAULT_READ, 1, 0);
    assert_int_equal(gs_read(fds[0], &c, 1), -1);
    assert_int_equal(errno, EIO);
    assert_int_equal(gs_read(fds[0], &c, 1), 1);
    close(fds[0]);
    close(fds[1]);
    gs_fault_set(GS_FAULT_ACCEPT, 1, 0);
    assert_int_equal(gs_accept(-1), -1);
    assert_int_equal(errno, EMFILE);
    assert_int_equal(gs_accept(-1), -1);
    assert_int_equal(errno, EBADF);
}

static void faults_from_env(void **state) {
    (void)state;
    char err[200];
    unsetenv("GAMASOT_FAULT");
    assert_int_equal(gs_fault_from_env(err, sizeof err), GS_OK);

    setenv("GAMASOT_FAULT", "alloc:2,write:1:ENOSPC", 1);
    assert_int_equal(gs_fault_from_env(err, sizeof err), GS_OK);
    void *first = gs_malloc(1), *second = gs_malloc(1);
    assert_non_null(first);
    assert_null(second);
    gs_free(first);
    assert_int_equal(gs_write(-1, "", 1), -1);
    assert_int_equal(errno, ENOSPC);

    static const struct {
        const char *value, *words;
    } bad[] = {
        {"heap:1", "heap"},        {"alloc:0", "'0'"},          {"alloc:x", "'x'"},
        {"alloc", "kind:nth"},     {"alloc:1:EWHAT", "EWHAT"},  {"alloc:-1", "'-1'"},
        {"alloc:1:EIO:2", "kind"}, {"alloc:1,read:9z", "'9z'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("GAMASOT_FAULT", bad[i].value, 1);
        assert_int_equal(gs_fault_from_env(err, sizeof err), GS_ERR_INVALID);
        assert_non_null(strstr(err, bad[i].words));
        void *p = gs_malloc(1); /* a bad list arms nothing, its good words neither */
        assert_non_null(p);
        gs_free(p);
    }
}

static void overflowing_sizes_are_refused(void **state) {
    (void)state;
    assert_null(gs_calloc(SIZE_MAX / 2, 3));
    assert_null(gs_array(SIZE_MAX / 8 + 1, 8));
    assert_null(gs_pages_alloc(SIZE_MAX - 10));
    void *empty = gs_malloc(0);
    assert_non_null(empty);
    gs_free(empty);
    gs_free(NULL);
}

static void strings_are_copied(void **state) {
    (void)state;
    char *s = gs_strndup("hello", 3);
    assert_string_equal(s, "hel");
    gs_free(s);
    s = gs_strndup("hi", 100);
    assert_string_equal(s, "hi");
    gs_free(s);
    unsigned char *zero = gs_calloc(3, 5);
    for (int i = 0; i < 15; i++)
        assert_int_equal(zero[i], 0);
    gs_free(zero);
}

static void aligned_is_aligned(void **state) {
    (void)state;
    for (size_t align = 16; align <= 4096; align *= 2) {
        void *p = gs_aligned(align, 100);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % align, 0);
        gs_free(p);
    }
}

static void pages_are_zeroed_and_huge_aligned(void **state) {
    (void)state;
    const size_t sizes[] = {0, 1, 4096, 5000, (2u << 20) - 1, 2u << 20, (5u << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *p = gs_pages_alloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 4096, 0);
        if (sizes[i] >= 2u << 20)
            assert_int_equal((uintptr_t)p % (2u << 20), 0);
        for (size_t k = 0; k < sizes[i]; k += 1000)
            assert_int_equal(p[k], 0);
        if (sizes[i])
            p[sizes[i] - 1] = 1;
        gs_pages_free(p, sizes[i]);
    }
    gs_pages_free(NULL, 10);
    gs_fault_set(GS_FAULT_MMAP, 1, 0);
    assert_null(gs_pages_alloc(100));
}

static void map_file_reads_what_is_there(void **state) {
    (void)state;
    char path[] = "/tmp/gamasot-test-XXXXXX", err[200] = "";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    const void *data = path;
    size_t size = 99;
    assert_int_equal(gs_map_file(path, &data, &size, err, sizeof err), GS_OK);
    assert_null(data);
    assert_int_equal(size, 0);

    assert_int_equal(gs_write(fd, "GGUF!", 5), 5);
    assert_int_equal(gs_map_file(path, &data, &size, err, sizeof err), GS_OK);
    assert_int_equal(size, 5);
    assert_memory_equal(data, "GGUF!", 5);
    gs_unmap(data, size);
    gs_unmap(NULL, 0);

    gs_fault_set(GS_FAULT_MMAP, 1, 0);
    assert_int_equal(gs_map_file(path, &data, &size, err, sizeof err), GS_ERR_NOMEM);
    assert_non_null(strstr(err, path));
    close(fd);
    unlink(path);
    assert_int_equal(gs_map_file(path, &data, &size, err, sizeof err), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_map_file("/", &data, &size, err, sizeof err), GS_ERR_INVALID);
    assert_non_null(strstr(err, "not a regular file"));
    /* A FIFO without a writer must not block. */
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(gs_map_file(path, &data, &size, err, sizeof err), GS_ERR_INVALID);
    unlink(path);
}

/* The pages behind the new end are gone: reading them is no SIGBUS, and it shows. */
static void map_of_a_file_that_becomes_shorter(void **state) {
    (void)state;
    char path[] = "/tmp/gamasot-test-XXXXXX", err[200] = "";
    static char text[20000];
    int fd = mkstemp(path);
    const void *data = NULL, *other = NULL;
    size_t size, other_size;
    assert_true(fd >= 0);
    memset(text, 'x', sizeof text);
    assert_int_equal(gs_write(fd, text, sizeof text), sizeof text);
    assert_int_equal(gs_map_file(path, &data, &size, err, sizeof err), GS_OK);
    assert_int_equal(gs_map_file("/proc/self/exe", &other, &other_size, err, sizeof err), GS_OK);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_false(gs_map_damaged(data));
    int sum = 0;
    for (size_t i = 0; i < size; i++)
        sum += ((const volatile char *)data)[i] == 'x';
    assert_int_equal(sum, 4096);
    assert_true(gs_map_damaged(data));
    assert_false(gs_map_damaged(other));
    gs_unmap(data, size);
    gs_unmap(other, other_size);
    close(fd);
    assert_int_equal(gs_map_file(path, &data, &size, err, sizeof err), GS_OK);
    assert_int_equal(size, 4096);
    assert_false(gs_map_damaged(data));
    gs_unmap(data, size);
    unlink(path);
}

static void accept_is_close_on_exec(void **state) {
    (void)state;
    int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    assert_int_equal(bind(server, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(server, 1), 0);
    assert_int_equal(getsockname(server, (struct sockaddr *)&a, &len), 0);
    assert_int_equal(connect(client, (struct sockaddr *)&a, sizeof a), 0);
    int fd = gs_accept(server);
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    close(client);
    close(server);
}

static void checked_arithmetic_at_the_edges(void **state) {
    (void)state;
    uint64_t u = 7;
    size_t z = 7;
    assert_false(gs_add_u64(UINT64_MAX, 1, &u));
    assert_false(gs_mul_u64(1ull << 32, 1ull << 32, &u));
    assert_false(gs_align_u64(UINT64_MAX - 30, 32, &u));
    assert_false(gs_add_size(SIZE_MAX, 1, &z));
    assert_false(gs_mul_size(SIZE_MAX / 2 + 1, 2, &z));
    assert_int_equal(u, 7); /* untouched by failures */
    assert_int_equal(z, 7);
    assert_true(gs_add_u64(UINT64_MAX - 1, 1, &u));
    assert_true(u == UINT64_MAX);
    assert_true(gs_mul_u64(1ull << 32, (1ull << 32) - 1, &u));
    assert_true(u == 0xffffffff00000000ull);
    assert_true(gs_mul_u64(0, UINT64_MAX, &u));
    assert_int_equal(u, 0);
    assert_true(gs_align_u64(33, 32, &u));
    assert_int_equal(u, 64);
    assert_true(gs_align_u64(64, 32, &u));
    assert_int_equal(u, 64);
    assert_true(gs_align_u64(UINT64_MAX - 31, 32, &u));
    assert_true(u == UINT64_MAX - 31);
}

static void error_table(void **state) {
    (void)state;
    assert_string_equal(gs_err_name(GS_OK), "GS_OK");
    assert_string_equal(gs_err_name(GS_ERR_FORMAT), "GS_ERR_FORMAT");
    assert_string_equal(gs_err_name(-999), "GS_ERR_?");
    assert_string_equal(gs_err_text(GS_ERR_FORMAT), "malformed data");
    assert_string_equal(gs_errno_text(ENOENT), "No such file or directory");
    assert_string_equal(gs_errno_text(-1), "unknown error");
    assert_int_equal(gs_err_http(GS_OK), 200);
    assert_int_equal(gs_err_http(GS_ERR_OVERLOADED), 429);
    assert_int_equal(gs_err_http(12345), 500);
    char err[8];
    assert_int_equal(gs_fail(err, sizeof err, GS_ERR_IO, "tensor %d", 12), GS_ERR_IO);
    assert_string_equal(err, "tensor ");
    assert_int_equal(gs_fail(NULL, 0, GS_ERR_IO, "x"), GS_ERR_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(fault_hits_exactly_the_nth_call, teardown_faults),
        cmocka_unit_test_teardown(every_allocator_counts_as_one_call, teardown_faults),
        cmocka_unit_test_teardown(clear_disarms_and_counts_from_zero, teardown_faults),
        cmocka_unit_test_teardown(fault_errnum_reaches_the_caller, teardown_faults),
        cmocka_unit_test_teardown(faults_from_env, teardown_faults),
        cmocka_unit_test(overflowing_sizes_are_refused),
        cmocka_unit_test(strings_are_copied),
        cmocka_unit_test(aligned_is_aligned),
        cmocka_unit_test_teardown(pages_are_zeroed_and_huge_aligned, teardown_faults),
        cmocka_unit_test_teardown(map_file_reads_what_is_there, teardown_faults),
        cmocka_unit_test(map_of_a_file_that_becomes_shorter),
        cmocka_unit_test(accept_is_close_on_exec),
        cmocka_unit_test(checked_arithmetic_at_the_edges),
        cmocka_unit_test(error_table),
    };
    return cmocka_run_group_tests_name("base/sys", tests, NULL, NULL);
}
