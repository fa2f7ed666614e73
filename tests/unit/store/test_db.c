/* Statements and their values, what SQLite's answers are called, and files that are not what they
 * were. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../folder.h"
#include "base/err.h"
#include "faults/fault.h"
#include "store/store_impl.h"

static char folder[64];
static char err[512];
static gs_db *db;

static int open_db(void) {
    const gs_store_config cfg = {.folder = folder};
    err[0] = '\0';
    return gs_db_open(&cfg, &db, err, sizeof(err));
}

static void close_db(void) {
    gs_db_close(db);
    db = NULL;
}

static int set_up(void **state) {
    (void)state;
    return new_folder(folder) != 0 || open_db() != 0 ? -1 : 0;
}

static int tear_down(void **state) {
    (void)state;
    gs_fault_clear();
    close_db();
    return drop_folder(folder);
}

static void says(const char *what) {
    if (!strstr(err, what))
        fail_msg("\"%s\" does not say \"%s\"", err, what);
}

/* ---- Values ---------------------------------------------------------------------------------- */

static void values_come_back(void **state) {
    (void)state;
    static const char bytes[] = {'a', '\0', 'b'};
    sqlite3_stmt *s;
    int64_t n;
    assert_int_equal(gs_db_run(db, "CREATE TABLE t (i, d, t, b)", ""), 0);
    assert_int_equal(gs_db_run(db, "INSERT INTO t VALUES (?1, ?2, ?3, ?4)", "idtb", INT64_MIN, 0.1,
                               "text", bytes, sizeof(bytes)),
                     0);
    assert_int_equal(gs_db_changes(db), 1);
    assert_int_equal(gs_db_run(db, "INSERT INTO t VALUES (?1, ?2, ?3, ?4)", "ttii",
                               (const char *)NULL, "", INT64_MAX, (int64_t)0),
                     0);
    assert_int_equal(gs_db_query(db, &s, "SELECT i, d, t, b FROM t ORDER BY rowid", ""), 0);
    assert_int_equal(gs_db_step(db, s), 1);
    assert_true(sqlite3_column_int64(s, 0) == INT64_MIN);
    assert_true(sqlite3_column_double(s, 1) == 0.1);
    assert_string_equal(gs_db_text(s, 2), "text");
    assert_int_equal(sqlite3_column_bytes(s, 3), sizeof(bytes));
    assert_memory_equal(sqlite3_column_blob(s, 3), bytes, sizeof(bytes));
    assert_int_equal(gs_db_step(db, s), 1);
    assert_string_equal(gs_db_text(s, 0), ""); /* null */
    assert_int_equal(sqlite3_column_type(s, 1), SQLITE_TEXT);
    assert_true(sqlite3_column_int64(s, 2) == INT64_MAX);
    assert_int_equal(gs_db_step(db, s), 0);

    assert_int_equal(gs_db_int(db, &n, -1, "SELECT count(*) FROM t", ""), 0);
    assert_int_equal(n, 2);
    assert_int_equal(gs_db_int(db, &n, -1, "SELECT i FROM t WHERE i IS ?1", "t", NULL), 0);
    assert_int_equal(n, -1); /* null */
    assert_int_equal(gs_db_int(db, &n, -2, "SELECT i FROM t WHERE i = ?1", "i", (int64_t)7), 0);
    assert_int_equal(n, -2); /* no row */
    /* What gives rows may be run as well, and again. */
    for (int i = 0; i < 2; i++)
        assert_int_equal(gs_db_run(db, "SELECT i FROM t", ""), 0);
    assert_int_equal(gs_db_run(db, "DELETE FROM t", ""), 0);
    assert_int_equal(gs_db_changes(db), 2);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static void what_is_refused(void **state) {
    (void)state;
    sqlite3_stmt *s;
    int64_t n;
    assert_int_equal(gs_db_run(db, "no statement", ""), GS_ERR_IO);
    assert_non_null(strstr(gs_db_error(db), "syntax error"));
    assert_int_equal(gs_db_int(db, &n, 3, "SELECT nothing", ""), GS_ERR_IO);
    assert_int_equal(n, 3);
    assert_int_equal(gs_db_run(db, "INSERT INTO meta VALUES ('a', '1')", ""), 0);
    assert_int_equal(gs_db_run(db, "INSERT INTO meta VALUES ('a', '2')", ""), GS_ERR_EXISTS);
    /* Longer than SQLite takes; nothing of it is read. */
    assert_int_equal(gs_db_query(db, &s, "SELECT ?1, ?2", "bi", "", (size_t)3 << 30, (int64_t)1),
                     GS_ERR_IO);
    assert_int_equal(gs_db_int(db, &n, 0, "SELECT count(*) FROM meta", ""), 0);
    assert_int_equal(n, 1);
}

static void what_sqlite_says(void **state) {
    (void)state;
    static const struct {
        int errnum, code;
    } cases[] = {{ENOSPC, GS_ERR_NO_SPACE},
                 {ENOMEM, GS_ERR_NOMEM},
                 {EAGAIN, GS_ERR_UNAVAILABLE}, /* locked */
                 {EACCES, GS_ERR_IO},          /* read-only */
                 {EIO, GS_ERR_IO}};
    int64_t n;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gs_fault_set(GS_FAULT_SQLITE, 1, cases[i].errnum);
        assert_int_equal(gs_db_run(db, "INSERT INTO meta VALUES ('b', '')", ""), cases[i].code);
        gs_fault_clear();
        assert_int_equal(gs_db_int(db, &n, 0, "SELECT count(*) FROM meta", ""), 0);
        assert_int_equal(n, 0);
    }
}

static void what_a_disk_says(void **state) {
    (void)state;
    static const struct {
        int errnum, code;
    } cases[] = {{ENOSPC, GS_ERR_NO_SPACE},
                 {EDQUOT, GS_ERR_NO_SPACE},
                 {EFBIG, GS_ERR_NO_SPACE},
                 {EIO, GS_ERR_IO},
                 {EROFS, GS_ERR_IO}};
    char tmp[96], path[96];
    snprintf(tmp, sizeof(tmp), "%s/f.tmp", folder);
    snprintf(path, sizeof(path), "%s/f", folder);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gs_fault_set(GS_FAULT_WRITE, 1, cases[i].errnum);
        assert_int_equal(gs_store_write(-1, "abc", 3), cases[i].code);
        /* fsync, rename; then open and fsync of the folder, when it has its name already. */
        for (uint64_t call = 1; call <= 4; call++) {
            const int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL, 0600);
            assert_true(fd >= 0);
            gs_fault_set(GS_FAULT_FILE, call, cases[i].errnum);
            assert_int_equal(gs_store_publish(fd, tmp, path), cases[i].code);
            gs_fault_clear();
            assert_int_not_equal(access(tmp, F_OK), 0);
            assert_int_equal(unlink(path), call < 3 ? -1 : 0);
            assert_int_equal(fcntl(fd, F_GETFD), -1);
        }
    }
}

/* A limit that is no disk's: SQLite calls it an input/output error, the system says more. */
static void a_file_that_may_not_grow(void **state) {
    (void)state;
    struct rlimit old, low;
    int64_t n;
    int rc = 0, kept = 0;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 256 * 1024;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    for (; rc == 0 && kept < 1000; kept += rc == 0)
        rc = gs_db_run(db, "INSERT INTO meta VALUES (hex(randomblob(8)), hex(zeroblob(2000)))", "");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, GS_ERR_NO_SPACE);
    assert_int_equal(gs_db_int(db, &n, 0, "SELECT count(*) FROM meta", ""), 0);
    assert_int_equal(n, kept);
    assert_int_equal(gs_db_run(db, "INSERT INTO meta VALUES ('later', '')", ""), 0);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void write_in(const char *name, off_t at, const void *bytes, size_t n) {
    char path[96];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, at), n);
    close(fd);
}

/* What a cut cable may leave is looked for; after a clean end nobody waits for that. */
static void a_damaged_database(void **state) {
    (void)state;
    static const char zeros[4096];
    int64_t root = 0;
    assert_int_equal(gs_db_run(db, "INSERT INTO meta VALUES ('a', '1')", ""), 0);
    assert_int_equal(
        gs_db_int(db, &root, 0, "SELECT rootpage FROM sqlite_master WHERE name = 'meta'", ""), 0);
    assert_true(root > 1);
    close_db();
    write_in("gamasot.db", (root - 1) * 4096, zeros, sizeof(zeros));
    write_in("gamasot.db-wal", 0, "", 0);
    assert_int_equal(open_db(), 0);
    close_db();
    write_in("gamasot.db-wal", 0, "what is no journal", 18);
    assert_int_equal(open_db(), GS_ERR_FORMAT);
    says("gamasot.db is damaged (");
}

static void a_place_that_is_no_file(void **state) {
    (void)state;
    char path[96];
    close_db();
    snprintf(path, sizeof(path), "%s/gamasot.db", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("elsewhere", path), 0); /* is not followed */
    assert_int_equal(open_db(), GS_ERR_IO);
    says("gamasot.db: Too many levels of symbolic links");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(open_db(), 0);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(values_come_back),         T(what_is_refused),    T(what_sqlite_says),
        T(what_a_disk_says),         T(a_damaged_database), T(a_place_that_is_no_file),
        T(a_file_that_may_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
