#include "store/backup.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/version.h"
#include "store/backup_impl.h"
#include "store/tar.h"

/* ---- What belongs into an archive ---------------------------------------------------------- */

static const char *const state_files[] = {"calibration-*.txt", "device.json", "tune.json"};

bool gs_backup_is_state(const char *name) {
    for (size_t i = 0; i < sizeof(state_files) / sizeof(state_files[0]); i++)
        if (fnmatch(state_files[i], name, FNM_PATHNAME | FNM_PERIOD) == 0)
            return true;
    return false;
}

bool gs_backup_is_file_id(const char *id) {
    return strncmp(id, "file-", 5) == 0 && id[5] != '\0' && strlen(id) < 64 &&
           strspn(id + 5, "0123456789abcdef") == strlen(id + 5);
}

int gs_backup_check_id(const char *id, char *err, size_t errlen) {
    if (id && gs_backup_is_file_id(id))
        return 0;
    return gs_fail(err, errlen, GS_ERR_FORMAT, "the database names a file '%.80s'", id ? id : "");
}

bool gs_backup_path(const gs_backup_places *p, const char *name, char *out, size_t n) {
    if (strcmp(name, "gamasot.db") == 0 ||
        (strncmp(name, "files/", 6) == 0 && gs_backup_is_file_id(name + 6)))
        snprintf(out, n, "%s/%s", p->folder, name);
    else if (strncmp(name, "state/", 6) == 0 && gs_backup_is_state(name + 6))
        snprintf(out, n, "%s/%s", p->state, name + 6);
    else if (strcmp(name, "keys.json") == 0)
        snprintf(out, n, "%s", p->keys);
    else if (strcmp(name, "gamasot.conf") == 0 && p->config[0])
        snprintf(out, n, "%s", p->config);
    else
        return false;
    return true;
}

/* ---- A database as it was at one moment ---------------------------------------------------- */

int gs_db_snapshot(sqlite3 *from, const char *path, char *err, size_t errlen) {
    sqlite3 *to = NULL;
    unlink(path); /* of a run that was killed */
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
    close(fd);
    int rc = sqlite3_open_v2(path, &to, SQLITE_OPEN_READWRITE, NULL);
    sqlite3_backup *b = rc == SQLITE_OK ? sqlite3_backup_init(to, "main", from, "main") : NULL;
    if (b) {
        /* All pages in one go: with WAL nobody who writes waits for it. */
        rc = sqlite3_backup_step(b, -1);
        sqlite3_backup_finish(b);
        /* One file, without a journal beside it. */
        if (rc == SQLITE_DONE)
            rc = sqlite3_exec(to, "PRAGMA journal_mode = DELETE", NULL, NULL, NULL);
    }
    if (rc != SQLITE_OK || !b)
        rc = gs_fail(err, errlen, b ? gs_db_code(to, rc) : GS_ERR_IO,
                     "%s: the database could not be copied: %s", path, sqlite3_errmsg(to));
    sqlite3_close(to);
    if (rc != 0)
        unlink(path);
    return rc;
}

static int snapshot_file(const char *from, const char *to, char *err, size_t errlen) {
    sqlite3 *db = NULL;
    int rc = sqlite3_open_v2(from, &db, SQLITE_OPEN_READWRITE, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(db, 10000);
    rc = rc == SQLITE_OK ? gs_db_snapshot(db, to, err, errlen)
                         : gs_fail(err, errlen, GS_ERR_IO, "%s: %s", from, sqlite3_errmsg(db));
    sqlite3_close(db);
    return rc;
}

/* ---- Writing ------------------------------------------------------------------------------- */

typedef struct writer {
    const gs_backup_places *p;
    gs_backup_info *info;
    int fd;
    int64_t now_s;
    char *err;
    size_t errlen;
} writer;

static int fail_backup(const writer *w, int rc) {
    return gs_fail(w->err, w->errlen, rc, "the backup: %s", gs_err_text(rc));
}

static int add_bytes(writer *w, const char *name, const void *data, size_t n) {
    gs_tar_entry e = {.bytes = (int64_t)n};
    snprintf(e.name, sizeof(e.name), "%s", name);
    int rc = gs_tar_begin(w->fd, &e, w->now_s);
    if (rc == 0)
        rc = gs_store_write(w->fd, data, n);
    if (rc == 0)
        rc = gs_tar_pad(w->fd, e.bytes);
    return rc == 0 ? 0 : fail_backup(w, rc);
}

/* GS_ERR_NOT_FOUND without a message: it is not there. */
static int add_file(writer *w, const char *name, const char *path) {
    gs_tar_entry e;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return GS_ERR_NOT_FOUND;
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        int rc = gs_fail(w->err, w->errlen, GS_ERR_IO, "%s: %s", path,
                         fd < 0 ? gs_errno_text(errno) : "is no plain file");
        if (fd >= 0)
            close(fd);
        return rc;
    }
    snprintf(e.name, sizeof(e.name), "%s", name);
    e.bytes = st.st_size;
    int rc = gs_tar_begin(w->fd, &e, st.st_mtime);
    if (rc == 0)
        rc = gs_tar_copy(fd, w->fd, e.bytes);
    if (rc == 0)
        rc = gs_tar_pad(w->fd, e.bytes);
    close(fd);
    return rc == 0 ? 0 : gs_fail(w->err, w->errlen, rc, "%s: %s", path, gs_err_text(rc));
}

static int add_if_there(writer *w, const char *name, const char *path) {
    int rc = add_file(w, name, path);
    return rc == GS_ERR_NOT_FOUND ? 0 : rc;
}

/* Payload files by the rows of the copy; a row whose file is gone is taken out of it. */
static int add_payload(writer *w, sqlite3 *copy) {
    char name[GS_TAR_NAME + 1], path[GS_BACKUP_PATH];
    sqlite3_stmt *all = NULL, *drop = NULL;
    int rc = 0, said = SQLITE_ROW;
    if (sqlite3_prepare_v2(copy, "SELECT id FROM files ORDER BY seq", -1, &all, NULL) != 0 ||
        sqlite3_prepare_v2(copy, "DELETE FROM files WHERE id = ?1", -1, &drop, NULL) != 0)
        rc = gs_fail(w->err, w->errlen, GS_ERR_FORMAT, "the database: %s", sqlite3_errmsg(copy));
    while (rc == 0 && (said = sqlite3_step(all)) == SQLITE_ROW) {
        const char *id = (const char *)sqlite3_column_text(all, 0);
        rc = gs_backup_check_id(id, w->err, w->errlen);
        if (rc != 0)
            break;
        snprintf(name, sizeof(name), "files/%s", id);
        gs_backup_path(w->p, name, path, sizeof(path));
        rc = add_file(w, name, path);
        if (rc == 0)
            w->info->n_files++;
        if (rc != GS_ERR_NOT_FOUND)
            continue;
        sqlite3_reset(drop);
        sqlite3_bind_text(drop, 1, id, -1, SQLITE_TRANSIENT);
        rc = sqlite3_step(drop) == SQLITE_DONE ? 0 : fail_backup(w, GS_ERR_IO);
    }
    if (rc == 0 && said != SQLITE_DONE)
        rc = fail_backup(w, GS_ERR_IO);
    sqlite3_finalize(all);
    sqlite3_finalize(drop);
    return rc;
}

static int add_database(writer *w, const char *copy_path) {
    sqlite3 *copy = NULL;
    int rc = sqlite3_open_v2(copy_path, &copy, SQLITE_OPEN_READWRITE, NULL);
    if (rc != SQLITE_OK)
        rc = gs_fail(w->err, w->errlen, GS_ERR_IO, "%s: %s", copy_path, sqlite3_errmsg(copy));
    else
        rc = add_payload(w, copy);
    sqlite3_close(copy);
    return rc == 0 ? add_file(w, "gamasot.db", copy_path) : rc;
}

static int add_state(writer *w) {
    char name[GS_TAR_NAME + 1], path[GS_BACKUP_PATH];
    DIR *d = opendir(w->p->state);
    int rc = 0;
    const struct dirent *e;
    if (!d)
        return gs_fail(w->err, w->errlen, GS_ERR_IO, "%s: %s", w->p->state, gs_errno_text(errno));
    while (rc == 0 && (e = readdir(d))) {
        if (!gs_backup_is_state(e->d_name) || strlen(e->d_name) > GS_TAR_NAME - 6)
            continue;
        snprintf(name, sizeof(name), "state/%.*s", GS_TAR_NAME - 6, e->d_name);
        gs_backup_path(w->p, name, path, sizeof(path));
        rc = add_if_there(w, name, path);
    }
    closedir(d);
    return rc;
}

static int write_all(writer *w, const char *copy_path) {
    char about[160], db[GS_BACKUP_PATH];
    gs_backup_path(w->p, "gamasot.db", db, sizeof(db));
    const bool has_db = access(db, F_OK) == 0;
    int rc = has_db ? snapshot_file(db, copy_path, w->err, w->errlen) : 0;
    if (rc == 0 && has_db)
        rc = gs_db_file_version(copy_path, &w->info->schema, w->err, w->errlen);
    if (rc != 0)
        return rc;
    snprintf(w->info->version, sizeof(w->info->version), "%s", GS_VERSION);
    w->info->made_s = w->now_s;
    snprintf(about, sizeof(about), "gamasot backup form %d\nprogram %s\nschema %d\nmade %lld\n",
             GS_BACKUP_FORM, GS_VERSION, w->info->schema, (long long)w->now_s);
    rc = add_bytes(w, "about.txt", about, strlen(about));
    if (rc == 0 && has_db)
        rc = add_database(w, copy_path);
    if (rc == 0)
        rc = add_if_there(w, "keys.json", w->p->keys);
    if (rc == 0 && w->p->config[0])
        rc = add_if_there(w, "gamasot.conf", w->p->config);
    if (rc == 0)
        rc = add_state(w);
    if (rc != 0)
        return rc;
    rc = gs_tar_end(w->fd);
    return rc == 0 ? 0 : fail_backup(w, rc);
}

int gs_backup_write(const gs_backup_places *p, const char *file, gs_backup_info *out, char *err,
                    size_t errlen) {
    char part[GS_BACKUP_PATH], copy[GS_BACKUP_PATH];
    *out = (gs_backup_info){0};
    if (access(file, F_OK) == 0)
        return gs_fail(err, errlen, GS_ERR_EXISTS, "%s is there already", file);
    if (snprintf(copy, sizeof(copy), "%s.db.part", file) >= (int)sizeof(copy))
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "the file's name is too long");
    snprintf(part, sizeof(part), "%s.part", file);
    unlink(part); /* of a run that was killed; a link must not be followed */
    writer w = {.p = p,
                .info = out,
                .fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600),
                .now_s = gs_wall_s(),
                .err = err,
                .errlen = errlen};
    if (w.fd < 0)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", part, gs_errno_text(errno));
    int rc = write_all(&w, copy);
    unlink(copy);
    if (rc != 0) {
        close(w.fd);
        unlink(part);
        return rc;
    }
    out->bytes = lseek(w.fd, 0, SEEK_CUR);
    rc = gs_store_publish(w.fd, part, file);
    return rc == 0 ? 0 : gs_fail(err, errlen, rc, "%s: %s", file, gs_err_text(rc));
}
