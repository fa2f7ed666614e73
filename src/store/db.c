/* SQLite behind a few functions: opening, versions, statements, errors. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/store_impl.h"

#define MAX_STATEMENTS 128
/* Another program (a backup, sqlite3 in a terminal) may hold the file for so long. */
#define BUSY_MS    2000
#define MAX_PATH   4096
#define PAGE_BYTES 4096

typedef struct statement {
    const char *sql; /* by address */
    sqlite3_stmt *stmt;
} statement;

struct gs_db {
    sqlite3 *sql;
    int lock_fd;
    char folder[MAX_PATH];
    statement statements[MAX_STATEMENTS];
    int n_statements;
};

/* ---- Errors -------------------------------------------------------------------------------- */

int gs_store_io_code(int e) {
    return e == ENOSPC || e == EDQUOT || e == EFBIG ? GS_ERR_NO_SPACE : GS_ERR_IO;
}

/* What the system last said of the file or of its journal; 0: nothing. sqlite3_system_errno knows
 * of opening alone. */
static int errno_of(sqlite3 *sql) {
    static const int files[] = {SQLITE_FCNTL_JOURNAL_POINTER, SQLITE_FCNTL_FILE_POINTER};
    int e = 0;
    for (size_t i = 0; e == 0 && i < sizeof(files) / sizeof(files[0]); i++) {
        sqlite3_file *file = NULL;
        sqlite3_file_control(sql, "main", files[i], &file);
        if (file && file->pMethods) /* there may be no journal */
            file->pMethods->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &e);
    }
    return e;
}

int gs_db_code(sqlite3 *sql, int rc) {
    switch (rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return 0;
    case SQLITE_FULL:
        return GS_ERR_NO_SPACE;
    case SQLITE_IOERR:
        return gs_store_io_code(errno_of(sql));
    case SQLITE_CONSTRAINT:
        return GS_ERR_EXISTS;
    case SQLITE_NOMEM:
        return GS_ERR_NOMEM;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return GS_ERR_FORMAT;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return GS_ERR_UNAVAILABLE;
    default:
        return GS_ERR_IO;
    }
}

uint64_t gs_store_memory(void) {
    return (uint64_t)sqlite3_memory_used();
}

const char *gs_db_error(gs_db *db) {
    return sqlite3_errmsg(db->sql);
}

const char *gs_db_folder(const gs_db *db) {
    return db->folder;
}

/* ---- Statements ---------------------------------------------------------------------------- */

static int find_statement(gs_db *db, const char *sql, sqlite3_stmt **out) {
    for (int i = 0; i < db->n_statements; i++) {
        if (db->statements[i].sql == sql) {
            *out = db->statements[i].stmt;
            return 0;
        }
    }
    GS_ASSERT(db->n_statements < MAX_STATEMENTS);
    int rc = sqlite3_prepare_v3(db->sql, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL);
    if (rc != SQLITE_OK)
        return gs_db_code(db->sql, rc);
    db->statements[db->n_statements++] = (statement){sql, *out};
    return 0;
}

static int bind_all(gs_db *db, sqlite3_stmt *s, const char *fmt, va_list ap) {
    int rc = SQLITE_OK;
    GS_ASSERT((int)strlen(fmt) == sqlite3_bind_parameter_count(s));
    for (int i = 1; *fmt && rc == SQLITE_OK; i++, fmt++) {
        if (*fmt == 'i') {
            rc = sqlite3_bind_int64(s, i, va_arg(ap, int64_t));
        } else if (*fmt == 'd') {
            rc = sqlite3_bind_double(s, i, va_arg(ap, double));
        } else if (*fmt == 't') {
            rc = sqlite3_bind_text(s, i, va_arg(ap, const char *), -1, SQLITE_STATIC);
        } else {
            const void *data = va_arg(ap, const void *);
            rc = sqlite3_bind_blob64(s, i, data, va_arg(ap, size_t), SQLITE_STATIC);
        }
    }
    return gs_db_code(db->sql, rc);
}

static int query(gs_db *db, sqlite3_stmt **out, const char *sql, const char *fmt, va_list ap) {
    int rc = find_statement(db, sql, out);
    if (rc != 0)
        return rc;
    sqlite3_reset(*out);
    sqlite3_clear_bindings(*out);
    return bind_all(db, *out, fmt, ap);
}

int gs_db_query(gs_db *db, sqlite3_stmt **out, const char *sql, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int rc = query(db, out, sql, fmt, ap);
    va_end(ap);
    return rc;
}

int gs_db_step(gs_db *db, sqlite3_stmt *stmt) {
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        return 1;
    int code = gs_db_code(db->sql, rc);
    sqlite3_reset(stmt);
    return code;
}

void gs_db_reset(sqlite3_stmt *stmt) {
    sqlite3_reset(stmt);
}

int gs_db_run(gs_db *db, const char *sql, const char *fmt, ...) {
    sqlite3_stmt *s;
    va_list ap;
    va_start(ap, fmt);
    int rc = query(db, &s, sql, fmt, ap);
    va_end(ap);
    if (rc == 0)
        rc = gs_db_step(db, s);
    if (rc == 1) {
        gs_db_reset(s);
        rc = 0;
    }
    return rc;
}

int gs_db_int(gs_db *db, int64_t *out, int64_t none, const char *sql, const char *fmt, ...) {
    sqlite3_stmt *s;
    va_list ap;
    va_start(ap, fmt);
    int rc = query(db, &s, sql, fmt, ap);
    va_end(ap);
    *out = none;
    if (rc == 0)
        rc = gs_db_step(db, s);
    if (rc == 1) {
        if (sqlite3_column_type(s, 0) != SQLITE_NULL)
            *out = sqlite3_column_int64(s, 0);
        gs_db_reset(s);
        rc = 0;
    }
    return rc;
}

int gs_db_changes(gs_db *db) {
    return sqlite3_changes(db->sql);
}

int gs_db_total_changes(const gs_db *db) {
    return sqlite3_total_changes(db->sql);
}

const char *gs_db_text(sqlite3_stmt *stmt, int column) {
    const char *s = (const char *)sqlite3_column_text(stmt, column);
    return s ? s : "";
}

bool gs_db_in_transaction(const gs_db *db) {
    return !sqlite3_get_autocommit(db->sql);
}

int64_t gs_db_bytes(gs_db *db) {
    int64_t pages = 0, unused = 0;
    gs_db_int(db, &pages, 0, "PRAGMA page_count", "");
    gs_db_int(db, &unused, 0, "PRAGMA freelist_count", "");
    return (pages - unused) * PAGE_BYTES;
}

/* ---- Opening ------------------------------------------------------------------------------- */

int gs_store_lock(const char *folder, int *fd, char *err, size_t errlen) {
    char path[MAX_PATH + 16];
    snprintf(path, sizeof(path), "%s/gamasot.lock", folder);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
    gs_give_to_owner(*fd, folder);
    if (flock(*fd, LOCK_EX | LOCK_NB) != 0)
        return gs_fail(err, errlen, GS_ERR_UNAVAILABLE, "another gamasot keeps its state in %s",
                       folder);
    return 0;
}

static int check_mark(const gs_db *db, char *err, size_t errlen) {
    char path[MAX_PATH + 32];
    snprintf(path, sizeof(path), "%s/" GS_STORE_MARK, db->folder);
    if (access(path, F_OK) != 0)
        return 0;
    return gs_fail(err, errlen, GS_ERR_UNAVAILABLE,
                   "restoring %s was not finished: run gamasot restore again", db->folder);
}

/* One by one, without the cache: these run once. */
static int exec(gs_db *db, const char *sql) {
    return gs_db_code(db->sql, sqlite3_exec(db->sql, sql, NULL, NULL, NULL));
}

/* A journal that was left behind: the last process did not close the file. */
static bool ended_uncleanly(const char *path) {
    char wal[MAX_PATH + 32];
    struct stat st;
    snprintf(wal, sizeof(wal), "%s-wal", path);
    return stat(wal, &st) == 0 && st.st_size > 0;
}

static int check_integrity(gs_db *db, const char *path, char *err, size_t errlen) {
    sqlite3_stmt *s;
    int rc = gs_db_query(db, &s, "PRAGMA integrity_check(1)", "");
    if (rc == 0)
        rc = gs_db_step(db, s);
    if (rc == 1 && strcmp(gs_db_text(s, 0), "ok") != 0)
        rc = gs_fail(err, errlen, GS_ERR_FORMAT, "%s is damaged (%.100s)", path, gs_db_text(s, 0));
    else if (rc < 0)
        gs_fail(err, errlen, rc, "%s: %s", path, gs_db_error(db));
    gs_db_reset(s);
    return rc < 0 ? rc : 0;
}

static int check_version(int64_t version, char *err, size_t errlen) {
    if (version <= gs_store_schema_n)
        return 0;
    return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                   "gamasot.db was written by a newer gamasot (version %d, this one knows %d)",
                   (int)version, gs_store_schema_n);
}

int gs_db_file_version(const char *path, int *version, char *err, size_t errlen) {
    sqlite3 *sql = NULL;
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_open_v2(path, &sql, SQLITE_OPEN_READWRITE, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(sql, "PRAGMA user_version", -1, &s, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    *version = rc == SQLITE_ROW ? sqlite3_column_int(s, 0) : 0;
    rc = rc == SQLITE_ROW
             ? check_version(*version, err, errlen)
             : gs_fail(err, errlen, GS_ERR_FORMAT, "%s: %s", path, sqlite3_errmsg(sql));
    sqlite3_finalize(s);
    sqlite3_close(sql);
    if (rc == 0 && *version < 1)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "%s is no database of gamasot's", path);
    return rc;
}

/* The copies of earlier upgrades, but the one of version. */
static void drop_old_copies(const gs_db *db, int version) {
    char path[MAX_PATH + 48];
    for (int v = 1; v < gs_store_schema_n; v++) {
        snprintf(path, sizeof(path), "%s/gamasot.db.version-%d", db->folder, v);
        if (v != version)
            unlink(path);
    }
}

/* What an older program can go on with, should this one not be liked: gamasot restore. */
static int keep_copy(gs_db *db, int version, char *err, size_t errlen) {
    char path[MAX_PATH + 48], part[MAX_PATH + 64];
    snprintf(path, sizeof(path), "%s/gamasot.db.version-%d", db->folder, version);
    snprintf(part, sizeof(part), "%s.part", path);
    int rc = gs_db_snapshot(db->sql, part, err, errlen);
    if (rc != 0)
        return rc;
    int fd = open(part, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    rc = fd >= 0 ? gs_store_publish(fd, part, path) : GS_ERR_IO;
    if (rc != 0)
        return gs_fail(err, errlen, rc, "%s: %s", path, gs_err_text(rc));
    drop_old_copies(db, version);
    gs_info("store", "schema=%d becomes %d; a copy of before is %s", version, gs_store_schema_n,
            path);
    return 0;
}

static int migrate_step(gs_db *db, int to, char *err, size_t errlen) {
    char set[48];
    snprintf(set, sizeof(set), "PRAGMA user_version = %d", to);
    int rc = exec(db, "BEGIN IMMEDIATE");
    if (rc == 0)
        rc = exec(db, gs_store_schema[to - 1]);
    if (rc == 0)
        rc = exec(db, set);
    if (rc == 0)
        rc = exec(db, "COMMIT");
    if (rc != 0) {
        gs_fail(err, errlen, rc, "gamasot.db, version %d: %s", to, gs_db_error(db));
        if (gs_db_in_transaction(db))
            exec(db, "ROLLBACK");
    }
    return rc;
}

static int migrate(gs_db *db, char *err, size_t errlen) {
    int64_t version = 0;
    int rc = gs_db_int(db, &version, 0, "PRAGMA user_version", "");
    if (rc != 0)
        return gs_fail(err, errlen, rc, "gamasot.db: %s", gs_db_error(db));
    rc = check_version(version, err, errlen);
    if (rc == 0 && version > 0 && version < gs_store_schema_n)
        rc = keep_copy(db, (int)version, err, errlen);
    for (int to = (int)version + 1; rc == 0 && to <= gs_store_schema_n; to++)
        rc = migrate_step(db, to, err, errlen);
    return rc;
}

static int set_up(gs_db *db, const gs_store_config *cfg) {
    char limit[64] = "SELECT 1", cache[64] = "SELECT 1";
    if (cfg->max_bytes > 0)
        snprintf(limit, sizeof(limit), "PRAGMA max_page_count = %lld",
                 (long long)(cfg->max_bytes / PAGE_BYTES));
    if (cfg->cache_bytes > 0) /* negative: KiB */
        snprintf(cache, sizeof(cache), "PRAGMA cache_size = -%lld",
                 (long long)(cfg->cache_bytes / 1024));
    const char *const steps[] = {"PRAGMA page_size = 4096", "PRAGMA journal_mode = WAL",
                                 "PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON",
                                 /* No file outside of the folder. */
                                 "PRAGMA temp_store = MEMORY",
                                 /* A long transaction's journal does not stay that large. */
                                 "PRAGMA journal_size_limit = 16777216", limit, cache};
    int rc = 0;
    sqlite3_busy_timeout(db->sql, BUSY_MS);
    for (size_t i = 0; rc == 0 && i < sizeof(steps) / sizeof(steps[0]); i++)
        rc = exec(db, steps[i]);
    return rc;
}

static int open_file(gs_db *db, const gs_store_config *cfg, char *err, size_t errlen) {
    char path[MAX_PATH + 16];
    snprintf(path, sizeof(path), "%s/gamasot.db", db->folder);
    /* SQLite gives journal and index the mode of the file. */
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
    fchmod(fd, 0600);
    close(fd);
    bool unclean = ended_uncleanly(path);
    int rc = sqlite3_open_v2(
        path, &db->sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, NULL);
    if (rc == SQLITE_OK)
        rc = set_up(db, cfg);
    else
        rc = rc == SQLITE_NOMEM ? GS_ERR_NOMEM : GS_ERR_IO;
    if (rc != 0)
        return gs_fail(err, errlen, rc, "%s: %s", path,
                       db->sql ? sqlite3_errmsg(db->sql) : gs_err_text(rc));
    if (unclean) {
        rc = check_integrity(db, path, err, errlen);
        if (rc != 0)
            return rc;
        gs_info("store", "the last end was unclean; the database is whole");
    }
    return migrate(db, err, errlen);
}

int gs_db_open(const gs_store_config *cfg, gs_db **out, char *err, size_t errlen) {
    gs_db *db = gs_calloc(1, sizeof(*db));
    if (!db)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    db->lock_fd = -1;
    snprintf(db->folder, sizeof(db->folder), "%s", cfg->folder);
    int rc = gs_store_lock(db->folder, &db->lock_fd, err, errlen);
    if (rc == 0)
        rc = check_mark(db, err, errlen);
    if (rc == 0)
        rc = open_file(db, cfg, err, errlen);
    if (rc != 0) {
        gs_db_close(db);
        return rc;
    }
    *out = db;
    return 0;
}

void gs_db_close(gs_db *db) {
    if (!db)
        return;
    for (int i = 0; i < db->n_statements; i++)
        sqlite3_finalize(db->statements[i].stmt);
    sqlite3_close(db->sql);
    if (db->lock_fd >= 0)
        close(db->lock_fd);
    gs_free(db);
}

/* ---- Files --------------------------------------------------------------------------------- */

int gs_store_write(int fd, const void *data, size_t n) {
    const char *at = data;
    while (n > 0) {
        ssize_t w = gs_write(fd, at, n);
        if (w <= 0)
            return gs_store_io_code(errno);
        at += w;
        n -= (size_t)w;
    }
    return 0;
}

int gs_store_sync_folder(const char *folder) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return gs_store_io_code(errno);
    int rc = fsync(fd) == 0 ? 0 : gs_store_io_code(errno);
    close(fd);
    return rc;
}

static int sync_folder_of(const char *path) {
    char folder[MAX_PATH];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return gs_store_sync_folder(folder);
}

int gs_store_publish(int fd, const char *tmp, const char *path) {
    int rc = fsync(fd) == 0 ? 0 : gs_store_io_code(errno);
    close(fd); /* has nothing to add to what fsync said */
    if (rc == 0 && rename(tmp, path) != 0)
        rc = gs_store_io_code(errno);
    if (rc == 0)
        rc = sync_folder_of(path);
    if (rc != 0)
        unlink(tmp);
    return rc;
}
