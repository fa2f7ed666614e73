/* Headers of archives, byte by byte: what is read out of them, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "store/store.h"
#include "store/tar.h"

/* Where a header has what (POSIX.1-1988). */
enum { NAME = 0, SIZE = 124, SUM = 148, TYPE = 156, MAGIC = 257, PREFIX = 345 };

static int new_file(void) {
    const int fd = memfd_create("tar", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

/* "a" of 5 bytes, with n bytes put over it at at. Its sum is right unless that is what is put. */
static void make_header(char h[GS_TAR_BLOCK], int at, const char *put, size_t n) {
    const gs_tar_entry e = {.name = "a", .bytes = 5};
    unsigned sum = 0;
    const int fd = new_file();
    assert_int_equal(gs_tar_begin(fd, &e, 1), 0);
    assert_int_equal(pread(fd, h, GS_TAR_BLOCK, 0), GS_TAR_BLOCK);
    close(fd);
    memcpy(h + at, put, n);
    for (int i = 0; i < GS_TAR_BLOCK; i++)
        sum += i >= SUM && i < SUM + 8 ? ' ' : (unsigned char)h[i];
    if (at != SUM)
        snprintf(h + SUM, 7, "%06o", sum);
}

static void headers(void **state) {
    (void)state;
    static const struct {
        int at;
        const char *put;
        size_t n;
        int64_t bytes; /* that it tells of; or the code */
    } cases[] = {
        {NAME, "a", 1, 5},
        {TYPE, "0", 1, 5},
        {TYPE, "\0", 1, 5}, /* as before POSIX */
        {TYPE, "2", 1, GS_ERR_FORMAT},
        {TYPE, "5", 1, GS_ERR_FORMAT},
        {MAGIC, "ustar ", 6, 5}, /* GNU */
        {MAGIC, "tar", 3, GS_ERR_FORMAT},
        {PREFIX, "etc", 3, GS_ERR_FORMAT},
        {SIZE, "17\0", 3, 017},
        {SIZE, "17 ", 3, 017},
        {SIZE, "777777777777", 12, 0777777777777},
        {SIZE, "\0", 1, GS_ERR_FORMAT},
        {SIZE, "18 ", 3, GS_ERR_FORMAT},
        {SIZE, "-7 ", 3, GS_ERR_FORMAT},
        {SIZE, "7x", 2, GS_ERR_FORMAT},
        {SIZE, "\x80\0\0\0", 4, GS_ERR_FORMAT}, /* base 256 */
        {SUM, "000001\0 ", 8, GS_ERR_FORMAT},
        {SUM, "x", 1, GS_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char h[GS_TAR_BLOCK];
        gs_tar_entry e = {.bytes = -1};
        make_header(h, cases[i].at, cases[i].put, cases[i].n);
        const int fd = new_file();
        assert_int_equal(gs_store_write(fd, h, sizeof(h)), 0);
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        const int rc = gs_tar_next(fd, &e);
        if (cases[i].bytes < 0 ? rc != cases[i].bytes : rc != 1 || e.bytes != cases[i].bytes)
            fail_msg("case %zu: %d, %lld bytes", i, rc, (long long)e.bytes);
        close(fd);
    }
}

/* A name that fills its field has no zero byte behind it. */
static void a_name_of_full_length(void **state) {
    (void)state;
    gs_tar_entry e = {.bytes = 0}, got;
    memset(e.name, 'n', GS_TAR_NAME);
    const int fd = new_file();
    assert_int_equal(gs_tar_begin(fd, &e, 0), 0);
    assert_int_equal(gs_tar_end(fd), 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_int_equal(gs_tar_next(fd, &got), 1);
    assert_string_equal(got.name, e.name);
    assert_int_equal(gs_tar_next(fd, &got), 0);
    assert_int_equal(gs_tar_next(fd, &got), 0);
    assert_int_equal(gs_tar_next(fd, &got), GS_ERR_FORMAT);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(headers),
                                       cmocka_unit_test(a_name_of_full_length)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
