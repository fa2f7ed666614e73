#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"
#include "store/backup_impl.h"
#include "store/tar.h"

#define MAX_NAMES 4096 /* single files of an archive */

/* What an archive was unpacked to: temp/gamasot.db, temp/files/ID, temp/state/NAME, ... */
typedef struct unpacked {
    const gs_backup_places *p;
    gs_backup_info *info;
    char temp[GS_BACKUP_PATH];
    char (*names)[GS_TAR_NAME + 1]; /* of all but payload files */
    int n_names;
    bool has_db, whole; /* whole: an archive, not a database alone */
    char *err;
    size_t errlen;
} unpacked;

static int fail_at(const unpacked *u, const char *path) {
    return gs_fail(u->err, u->errlen, gs_store_io_code(errno), "%s: %s", path,
                   gs_errno_text(errno));
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    remove(path);
    return 0;
}

static void remove_tree(const char *path) {
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- Unpacking ----------------------------------------------------------------------------- */

static int unpack_file(unpacked *u, int in, const char *name, int64_t bytes) {
    char path[GS_BACKUP_PATH + GS_TAR_NAME + 2];
    snprintf(path, sizeof(path), "%s/%s", u->temp, name);
    int out = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out < 0)
        return fail_at(u, path);
    gs_give_to_owner(out, u->p->folder);
    int rc = gs_tar_copy(in, out, bytes);
    if (rc == 0 && fsync(out) != 0)
        rc = gs_store_io_code(errno);
    close(out);
    u->info->bytes += bytes;
    return rc == 0 ? 0 : gs_fail(u->err, u->errlen, rc, "%s: %s", name, gs_err_text(rc));
}

static int take_name(unpacked *u, const char *name) {
    char path[GS_BACKUP_PATH];
    gs_backup_places all = *u->p;
    all.config = "gamasot.conf"; /* whether it has a place here is asked later */
    if (strcmp(name, "about.txt") != 0 && !gs_backup_path(&all, name, path, sizeof(path)))
        return gs_fail(u->err, u->errlen, GS_ERR_FORMAT,
                       "the archive holds '%.100s', which is no part of a backup", name);
    if (strncmp(name, "files/", 6) == 0) {
        u->info->n_files++;
        return 0;
    }
    if (u->n_names == MAX_NAMES)
        return gs_fail(u->err, u->errlen, GS_ERR_TOO_LARGE, "the archive holds too many files");
    u->has_db = u->has_db || strcmp(name, "gamasot.db") == 0;
    if (strcmp(name, "about.txt") != 0)
        snprintf(u->names[u->n_names++], GS_TAR_NAME + 1, "%s", name);
    return 0;
}

static int unpack_archive(unpacked *u, int in, const char *file) {
    gs_tar_entry e;
    int rc;
    u->whole = true;
    while ((rc = gs_tar_next(in, &e)) == 1) {
        rc = take_name(u, e.name);
        if (rc == 0)
            rc = unpack_file(u, in, e.name, e.bytes);
        if (rc != 0)
            return rc;
        if (gs_tar_skip_pad(in, e.bytes) != 0)
            return gs_fail(u->err, u->errlen, GS_ERR_FORMAT, "%s ends too early", file);
    }
    return rc == 0 ? 0 : gs_fail(u->err, u->errlen, rc, "%s is no backup, or it is damaged", file);
}

static int unpack(unpacked *u, const char *file) {
    static const char sqlite[] = "SQLite format 3";
    char magic[sizeof(sqlite)] = "";
    struct stat st;
    int in = open(file, O_RDONLY | O_CLOEXEC);
    if (in < 0 || fstat(in, &st) != 0) {
        int rc = fail_at(u, file);
        if (in >= 0)
            close(in);
        return rc;
    }
    int rc;
    const ssize_t n = gs_pread(in, magic, sizeof(magic), 0);
    if (n < 0) {
        rc = fail_at(u, file);
    } else if (n == (ssize_t)sizeof(magic) && memcmp(magic, sqlite, sizeof(magic)) == 0) {
        rc = take_name(u, "gamasot.db");
        if (rc == 0)
            rc = unpack_file(u, in, "gamasot.db", st.st_size);
    } else {
        rc = unpack_archive(u, in, file);
    }
    close(in);
    return rc;
}

static int make_temp(unpacked *u) {
    static const char *const below[] = {"files", "state"};
    char path[GS_BACKUP_PATH + 16];
    snprintf(u->temp, sizeof(u->temp), "%s/restoring.XXXXXX", u->p->folder);
    if (!mkdtemp(u->temp))
        return fail_at(u, u->p->folder);
    for (size_t i = 0; i < sizeof(below) / sizeof(below[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", u->temp, below[i]);
        int fd = mkdir(path, 0700) == 0 ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        if (fd < 0)
            return fail_at(u, path);
        gs_give_to_owner(fd, u->p->folder);
        close(fd);
    }
    return 0;
}

/* ---- Checks: before anything that is there is touched ------------------------------------------
 */

static int check_about(unpacked *u) {
    char path[GS_BACKUP_PATH + 16];
    int form = 0;
    long long made = 0;
    snprintf(path, sizeof(path), "%s/about.txt", u->temp);
    FILE *f = fopen(path, "re");
    int n = f ? fscanf(f, GS_BACKUP_ABOUT, &form, u->info->version, &u->info->schema, &made) : 0;
    if (f)
        fclose(f);
    if (n >= 1 && form > GS_BACKUP_FORM)
        return gs_fail(u->err, u->errlen, GS_ERR_UNSUPPORTED,
                       "the backup was made by a newer gamasot (form %d, this one knows %d)", form,
                       GS_BACKUP_FORM);
    if (n != 4 || form != GS_BACKUP_FORM)
        return gs_fail(u->err, u->errlen, GS_ERR_FORMAT, "the backup does not say what it is");
    u->info->made_s = made;
    return 0;
}

/* Each file that the database names may be called so and, of an archive, is there, with its size.
 */
static int check_payload(const unpacked *u, sqlite3 *db) {
    char path[GS_BACKUP_PATH + 80];
    sqlite3_stmt *s = NULL;
    struct stat st;
    int rc = 0, said = SQLITE_ROW;
    if (sqlite3_prepare_v2(db, "SELECT id, bytes FROM files", -1, &s, NULL) != SQLITE_OK)
        return gs_fail(u->err, u->errlen, GS_ERR_FORMAT, "the database: %s", sqlite3_errmsg(db));
    while (rc == 0 && (said = sqlite3_step(s)) == SQLITE_ROW) {
        const char *id = (const char *)sqlite3_column_text(s, 0);
        rc = gs_backup_check_id(id, u->err, u->errlen);
        if (rc != 0 || !u->whole)
            continue;
        snprintf(path, sizeof(path), "%s/files/%.64s", u->temp, id);
        if (stat(path, &st) != 0 || st.st_size != sqlite3_column_int64(s, 1))
            rc = gs_fail(u->err, u->errlen, GS_ERR_FORMAT,
                         "the backup is damaged: %.64s is not there, or not whole", id);
    }
    if (rc == 0 && said != SQLITE_DONE)
        rc = gs_fail(u->err, u->errlen, GS_ERR_IO, "the database: %s", sqlite3_errmsg(db));
    sqlite3_finalize(s);
    return rc;
}

static int check_whole(const unpacked *u, sqlite3 *db) {
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(db, "PRAGMA integrity_check(1)", -1, &s, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    const char *said = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(s, 0) : NULL;
    const bool whole = said && strcmp(said, "ok") == 0;
    sqlite3_finalize(s);
    return whole ? 0
                 : gs_fail(u->err, u->errlen, GS_ERR_FORMAT, "the backup's database is damaged");
}

static int check_database(unpacked *u) {
    char path[GS_BACKUP_PATH + 16];
    sqlite3 *db = NULL;
    snprintf(path, sizeof(path), "%s/gamasot.db", u->temp);
    int rc = gs_db_file_version(path, &u->info->schema, u->err, u->errlen);
    if (rc != 0)
        return rc;
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK)
        rc = gs_fail(u->err, u->errlen, GS_ERR_FORMAT, "the database: %s", sqlite3_errmsg(db));
    if (rc == 0)
        rc = check_whole(u, db);
    if (rc == 0)
        rc = check_payload(u, db);
    sqlite3_close(db);
    return rc;
}

static int check(unpacked *u) {
    char path[GS_BACKUP_PATH + 16];
    int rc = u->whole ? check_about(u) : 0;
    if (rc == 0 && u->has_db)
        rc = check_database(u);
    snprintf(path, sizeof(path), "%s/keys.json", u->temp);
    if (rc == 0 && access(path, F_OK) == 0)
        rc = u->p->check_keys(path, u->err, u->errlen);
    return rc;
}

/* ---- Putting it in place ----------------------------------------------------------------------
 */

/* Moves within a file system, copies across. */
static int move(const unpacked *u, const char *from, const char *to) {
    char part[2 * GS_BACKUP_PATH];
    struct stat st;
    if (rename(from, to) == 0 || errno == ENOENT)
        return 0;
    if (errno != EXDEV)
        return fail_at(u, to);
    /* Between two file systems it is not even looked whether it is there. */
    if (access(from, F_OK) != 0)
        return 0;
    snprintf(part, sizeof(part), "%s.part", to);
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = in >= 0 ? open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    int rc = out >= 0 && fstat(in, &st) == 0 ? gs_tar_copy(in, out, st.st_size) : GS_ERR_IO;
    if (out >= 0) {
        gs_give_to_owner(out, u->p->folder);
        if (rc == 0)
            rc = gs_store_publish(out, part, to);
        else
            close(out);
    }
    if (in >= 0)
        close(in);
    if (rc == 0)
        unlink(from);
    return rc == 0 ? 0 : gs_fail(u->err, u->errlen, rc, "%s: %s", to, gs_err_text(rc));
}

/* From where it is into the folder of what was before; what is not there is no failure. */
static int set_aside(const unpacked *u, const char *path, const char *name) {
    char to[2 * GS_BACKUP_PATH];
    const char *slash = strrchr(name, '/');
    snprintf(to, sizeof(to), "%s/%s", u->info->before, slash ? slash + 1 : name);
    return move(u, path, to);
}

static int set_database_aside(const unpacked *u) {
    /* Journal and index go with their database; an archive brings all payload files. */
    static const char *const names[] = {"gamasot.db", "gamasot.db-wal", "gamasot.db-shm", "files"};
    char path[GS_BACKUP_PATH];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < (u->whole ? 4 : 3); i++) {
        snprintf(path, sizeof(path), "%s/%s", u->p->folder, names[i]);
        rc = set_aside(u, path, names[i]);
    }
    return rc;
}

static int put_one(const unpacked *u, const char *name) {
    char from[GS_BACKUP_PATH + GS_TAR_NAME + 2], to[GS_BACKUP_PATH];
    if (!gs_backup_path(u->p, name, to, sizeof(to)))
        return 0; /* a configuration, and no place for one */
    snprintf(from, sizeof(from), "%s/%s", u->temp, name);
    int rc = strcmp(name, "gamasot.db") == 0 ? 0 : set_aside(u, to, name);
    return rc == 0 ? move(u, from, to) : rc;
}

static int put_in_place(const unpacked *u) {
    char from[GS_BACKUP_PATH + 16], to[GS_BACKUP_PATH];
    int rc = u->has_db ? set_database_aside(u) : 0;
    if (rc == 0 && u->has_db && u->whole) {
        snprintf(from, sizeof(from), "%s/files", u->temp);
        snprintf(to, sizeof(to), "%s/files", u->p->folder);
        rc = move(u, from, to);
    }
    for (int i = 0; rc == 0 && i < u->n_names; i++)
        rc = put_one(u, u->names[i]);
    return rc;
}

/* With the mark beside it the store does not open: half of it would be old. On the disk before
 * anything is moved. */
static int set_mark(const unpacked *u, const char *mark) {
    int fd = open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    int rc = fd >= 0 && fsync(fd) == 0 ? 0 : fail_at(u, mark);
    if (fd >= 0)
        close(fd);
    if (rc != 0) { /* nothing has been moved */
        unlink(mark);
        rmdir(u->info->before);
    }
    return rc;
}

static int replace(unpacked *u) {
    char mark[GS_BACKUP_PATH];
    struct stat st;
    snprintf(u->info->before, sizeof(u->info->before), "%.3900s/before-restore-%lld", u->p->folder,
             (long long)gs_wall_s());
    for (int i = 1; stat(u->info->before, &st) == 0; i++)
        snprintf(u->info->before, sizeof(u->info->before), "%.3900s/before-restore-%lld-%d",
                 u->p->folder, (long long)gs_wall_s(), i);
    if (mkdir(u->info->before, 0700) != 0)
        return fail_at(u, u->info->before);
    snprintf(mark, sizeof(mark), "%s/" GS_STORE_MARK, u->p->folder);
    int rc = set_mark(u, mark);
    if (rc == 0)
        rc = put_in_place(u);
    if (rc == 0 && gs_store_sync_folder(u->p->folder) != 0)
        rc = fail_at(u, u->p->folder);
    if (rc == 0 && unlink(mark) != 0)
        rc = fail_at(u, mark);
    if (rc == 0 && rmdir(u->info->before) == 0) /* there was nothing */
        u->info->before[0] = '\0';
    return rc;
}

int gs_backup_restore(const gs_backup_places *p, const char *file, gs_backup_info *out, char *err,
                      size_t errlen) {
    unpacked u = {.p = p, .info = out, .err = err, .errlen = errlen};
    int lock = -1;
    *out = (gs_backup_info){0};
    u.names = gs_array(MAX_NAMES, sizeof(*u.names));
    int rc = u.names ? gs_store_lock(p->folder, &lock, err, errlen)
                     : gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    if (rc == 0)
        rc = make_temp(&u);
    if (rc == 0)
        rc = unpack(&u, file);
    if (rc == 0)
        rc = check(&u);
    if (rc == 0)
        rc = replace(&u);
    if (u.temp[0])
        remove_tree(u.temp);
    if (lock >= 0)
        close(lock);
    gs_free(u.names);
    return rc;
}
