/* Backups: what comes back, what is refused before anything is touched, and calls that fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../folder.h"
#include "base/err.h"
#include "base/sys.h"
#include "faults/fault.h"
#include "store/backup_impl.h"
#include "store/store_impl.h"
#include "store/tar.h"

#define ABOUT "gamasot backup form 1\nprogram 0.1\nschema 2\nmade 1234\n"

static char root[64];
static char folder[96], state[96], keys[96], config[96], archive[96];
static char err[512];
static int keys_rc;

static int check_keys(const char *path, char *out, size_t n) {
    (void)path;
    return keys_rc ? gs_fail(out, n, keys_rc, "keys.json: odd") : 0;
}

static const gs_backup_places places = {folder, state, keys, config, check_keys};

static void says(const char *what) {
    if (!strstr(err, what))
        fail_msg("\"%s\" does not say \"%s\"", err, what);
}

/* ---- A home ---------------------------------------------------------------------------------- */

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(close(fd), 0);
}

static void write_in(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    write_file(path, text);
}

/* The file is there with this text; NULL: it is not there. */
static void holds(const char *dir, const char *name, const char *text) {
    char path[512], got[256];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_RDONLY);
    if (!text) {
        assert_int_equal(fd, -1);
        return;
    }
    assert_true(fd >= 0);
    ssize_t n = read(fd, got, sizeof(got) - 1);
    assert_true(n >= 0);
    got[n] = '\0';
    close(fd);
    assert_string_equal(got, text);
}

static void sql_in(const char *name, const char *text) {
    char path[512];
    sqlite3 *db;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", text, sqlite3_errmsg(db));
    sqlite3_close(db);
}

/* How many files the database names. */
static int rows(void) {
    char path[512];
    sqlite3 *db;
    sqlite3_stmt *s;
    snprintf(path, sizeof(path), "%s/gamasot.db", folder);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT count(*) FROM files", -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    int n = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return n;
}

static void add_payload(const char *id, const char *text) {
    char sql[512], name[96];
    snprintf(sql, sizeof(sql),
             "INSERT INTO files VALUES (NULL, '%s', '', 'batch', 'f', %zu, 0, 0, 0)", id,
             strlen(text));
    sql_in("gamasot.db", sql);
    snprintf(name, sizeof(name), "files/%.80s", id);
    write_in(folder, name, text);
}

static void make_database(void) {
    for (int i = 0; i < gs_store_schema_n; i++)
        sql_in("gamasot.db", gs_store_schema[i]);
    char set[48];
    snprintf(set, sizeof(set), "PRAGMA user_version = %d", gs_store_schema_n);
    sql_in("gamasot.db", set);
}

static int make_home(void **unused) {
    (void)unused;
    char path[512];
    if (new_folder(root) != 0)
        return -1;
    snprintf(folder, sizeof(folder), "%s/store", root);
    snprintf(state, sizeof(state), "%s/state", root);
    snprintf(keys, sizeof(keys), "%s/keys.json", root);
    snprintf(config, sizeof(config), "%s/gamasot.conf", root);
    snprintf(archive, sizeof(archive), "%s/a.tar", root);
    snprintf(path, sizeof(path), "%s/files", folder);
    if (mkdir(folder, 0700) != 0 || mkdir(state, 0700) != 0 || mkdir(path, 0700) != 0)
        return -1;
    make_database();
    add_payload("file-1a", "one");
    add_payload("file-2b", "two");
    write_file(keys, "KEYS");
    write_file(config, "CONF");
    write_in(state, "device.json", "DEVICE");
    write_in(state, "calibration-x.txt", "CAL");
    write_in(state, "notes.txt", "not kept");
    keys_rc = 0;
    err[0] = '\0';
    return 0;
}

static int remove_home(void **unused) {
    (void)unused;
    gs_fault_clear();
    return drop_folder(root);
}

/* Names below a folder that begin so. */
static int count_names(const char *dir, const char *prefix) {
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    closedir(d);
    return n;
}

/* What make_home left is there, and nothing beside it. */
static void untouched(void) {
    assert_int_equal(rows(), 2);
    holds(folder, "files/file-1a", "one");
    holds(folder, "files/file-2b", "two");
    holds(root, "keys.json", "KEYS");
    holds(root, "gamasot.conf", "CONF");
    holds(state, "device.json", "DEVICE");
    assert_int_equal(count_names(folder, "restor"), 0);
    assert_int_equal(count_names(folder, "before"), 0);
}

static int backup(gs_backup_info *out) {
    return gs_backup_write(&places, archive, out, err, sizeof(err));
}

static int restore(gs_backup_info *out) {
    return gs_backup_restore(&places, archive, out, err, sizeof(err));
}

static void refused(int code, const char *why) {
    gs_backup_info info;
    assert_int_equal(restore(&info), code);
    says(why);
    untouched();
}

/* ---- There and back -------------------------------------------------------------------------- */

static void spoil(void) {
    sql_in("gamasot.db", "DELETE FROM files");
    write_in(folder, "files/file-1a", "other");
    write_in(folder, "files/file-3c", "late");
    write_file(keys, "other");
    write_file(config, "other");
    write_in(state, "device.json", "other");
}

static void everything_comes_back(void **unused) {
    (void)unused;
    gs_backup_info made, got;
    struct stat st;
    assert_int_equal(backup(&made), 0);
    assert_int_equal(made.n_files, 2);
    assert_int_equal(made.schema, gs_store_schema_n);
    assert_int_equal(stat(archive, &st), 0);
    assert_int_equal(made.bytes, st.st_size);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(count_names(root, "a.tar."), 0);
    spoil();
    assert_int_equal(restore(&got), 0);
    assert_int_equal(got.n_files, 2);
    assert_int_equal(got.schema, gs_store_schema_n);
    assert_int_equal(got.made_s, made.made_s);
    assert_string_equal(got.version, made.version);
    assert_int_equal(rows(), 2);
    holds(folder, "files/file-1a", "one");
    holds(folder, "files/file-3c", NULL);
    holds(root, "keys.json", "KEYS");
    holds(root, "gamasot.conf", "CONF");
    holds(state, "device.json", "DEVICE");
    holds(state, "calibration-x.txt", "CAL");
    holds(state, "notes.txt", "not kept");
    holds(got.before, "keys.json", "other");
    holds(got.before, "device.json", "other");
    holds(got.before, "files/file-3c", "late");
    assert_int_equal(count_names(folder, "restor"), 0);
    /* Within the same second there is a second folder. */
    assert_int_equal(restore(&got), 0);
    assert_int_equal(count_names(folder, "before-restore-"), 2);
}

static void a_place_that_is_empty(void **unused) {
    (void)unused;
    gs_backup_info info;
    gs_backup_places bare = places;
    char path[512];
    assert_int_equal(backup(&info), 0);
    bare.config = "";
    snprintf(path, sizeof(path), "rm -rf %s/* %s/* %s %s", folder, state, keys, config);
    assert_int_equal(system(path), 0);
    assert_int_equal(gs_backup_restore(&bare, archive, &info, err, sizeof(err)), 0);
    assert_string_equal(info.before, ""); /* there was nothing to keep */
    holds(root, "keys.json", "KEYS");
    holds(root, "gamasot.conf", NULL); /* it has no place here */
    assert_int_equal(rows(), 2);
}

static void without_a_database(void **unused) {
    (void)unused;
    gs_backup_info info;
    char path[512];
    snprintf(path, sizeof(path), "%s/gamasot.db", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(keys), 0);
    assert_int_equal(backup(&info), 0);
    assert_int_equal(info.schema, 0);
    assert_int_equal(info.n_files, 0);
    make_database();
    write_in(state, "device.json", "other");
    assert_int_equal(restore(&info), 0);
    assert_int_equal(info.schema, 0);
    assert_int_equal(rows(), 0); /* the archive has none: this one stays */
    holds(folder, "files/file-1a", "one");
    holds(state, "device.json", "DEVICE");
}

static void a_file_that_was_deleted_takes_its_row(void **unused) {
    (void)unused;
    gs_backup_info info;
    char path[512];
    snprintf(path, sizeof(path), "%s/files/file-1a", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(backup(&info), 0);
    assert_int_equal(info.n_files, 1);
    assert_int_equal(rows(), 2); /* in the copy alone */
    assert_int_equal(restore(&info), 0);
    assert_int_equal(rows(), 1);
    holds(folder, "files/file-2b", "two");
}

/* Longer than one piece of a copy, in a home without a configuration, under a name without a folder
 * before it. */
static void a_large_file_and_a_bare_name(void **unused) {
    (void)unused;
    gs_backup_info info;
    gs_backup_places bare = places;
    char path[512], name[2 * GS_TAR_NAME];
    static char text[200001];
    for (size_t i = 0; i < sizeof(text) - 1; i++)
        text[i] = (char)('a' + i * 7 % 23);
    add_payload("file-3c", text);
    bare.config = "";
    /* What an archive can't name is left out. */
    snprintf(name, sizeof(name), "calibration-%0*d.txt", GS_TAR_NAME - 6, 1);
    write_in(state, name, "CAL");
    assert_int_equal(chdir(root), 0);
    assert_int_equal(gs_backup_write(&bare, "a.tar", &info, err, sizeof(err)), 0);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(info.n_files, 3);
    write_in(folder, "files/file-3c", "other");
    write_file(config, "other");
    assert_int_equal(restore(&info), 0);
    snprintf(path, sizeof(path), "%s/files/file-3c", folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    static char got[sizeof(text) + 1];
    assert_int_equal(fread(got, 1, sizeof(got), f), sizeof(text) - 1);
    fclose(f);
    assert_memory_equal(got, text, sizeof(text) - 1);
    holds(root, "gamasot.conf", "other");
    holds(state, name, "CAL");
}

/* Nothing can be renamed from one to the other. */
static void keys_on_another_file_system(void **unused) {
    (void)unused;
    gs_backup_places far = places;
    gs_backup_info info;
    struct stat here, there;
    char other[64] = "/tmp/gamasot_backup_XXXXXX", cmd[96];
    if (stat("/tmp", &there) != 0 || stat(root, &here) != 0 || here.st_dev == there.st_dev ||
        !mkdtemp(other)) {
        print_message("no second file system at /tmp\n");
        skip();
    }
    snprintf(keys, sizeof(keys), "%s/keys.json", other);
    far.keys = keys;
    write_file(keys, "FAR");
    assert_int_equal(gs_backup_write(&far, archive, &info, err, sizeof(err)), 0);
    write_file(keys, "other");
    assert_int_equal(gs_backup_restore(&far, archive, &info, err, sizeof(err)), 0);
    holds(other, "keys.json", "FAR");
    holds(info.before, "keys.json", "other");
    /* And where it can't be written, the mark stays: half of it is old. */
    write_file(keys, "other");
    gs_fault_set(GS_FAULT_WRITE, UINT64_MAX, 0);
    assert_int_equal(gs_backup_restore(&far, archive, &info, err, sizeof(err)), 0);
    uint64_t n = gs_fault_calls(GS_FAULT_WRITE);
    gs_fault_set(GS_FAULT_WRITE, n, ENOSPC);
    assert_int_equal(gs_backup_restore(&far, archive, &info, err, sizeof(err)), GS_ERR_NO_SPACE);
    gs_fault_clear();
    says("keys.json");
    holds(folder, GS_STORE_MARK, "");
    assert_int_equal(gs_backup_restore(&far, archive, &info, err, sizeof(err)), 0);
    holds(folder, GS_STORE_MARK, NULL);
    holds(other, "keys.json", "FAR");
    gs_fault_set(GS_FAULT_FILE, UINT64_MAX, 0);
    assert_int_equal(gs_backup_restore(&far, archive, &info, err, sizeof(err)), 0);
    n = gs_fault_calls(GS_FAULT_FILE);
    for (uint64_t i = 1; i <= n; i++) {
        write_file(keys, "other");
        gs_fault_set(GS_FAULT_FILE, i, EDQUOT);
        assert_int_equal(gs_backup_restore(&far, archive, &info, err, sizeof(err)) < 0, 1);
        gs_fault_clear();
        assert_int_equal(gs_backup_restore(&far, archive, &info, err, sizeof(err)), 0);
        holds(other, "keys.json", "FAR");
        assert_int_equal(count_names(other, "keys.json."), 0);
    }
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", other);
    assert_int_equal(system(cmd), 0);
}

/* ---- What can't be written ------------------------------------------------------------------- */

static void backups_that_are_refused(void **unused) {
    (void)unused;
    gs_backup_info info;
    char path[5000];
    assert_int_equal(gs_backup_write(&places, keys, &info, err, sizeof(err)), GS_ERR_EXISTS);
    says("is there already");
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(gs_backup_write(&places, path, &info, err, sizeof(err)), GS_ERR_TOO_LARGE);
    path[GS_BACKUP_PATH - 8] = '\0'; /* one byte too many, with what it is called meanwhile */
    assert_int_equal(gs_backup_write(&places, path, &info, err, sizeof(err)), GS_ERR_TOO_LARGE);
    path[GS_BACKUP_PATH - 9] = '\0';
    assert_int_equal(gs_backup_write(&places, path, &info, err, sizeof(err)), GS_ERR_IO);
    assert_int_equal(gs_backup_write(&places, "/nowhere/a.tar", &info, err, sizeof(err)),
                     GS_ERR_IO);
    says("/nowhere/a.tar.part: No such file or directory");
    /* A folder where a file belongs, a name that no payload has, a database that is none. */
    assert_int_equal(unlink(keys), 0);
    assert_int_equal(mkdir(keys, 0700), 0);
    assert_int_equal(backup(&info), GS_ERR_IO);
    says("keys.json: is no plain file");
    assert_int_equal(rmdir(keys), 0);
    sql_in("gamasot.db", "UPDATE files SET id = '../keys.json' WHERE id = 'file-1a'");
    assert_int_equal(backup(&info), GS_ERR_FORMAT);
    says("the database names a file '../keys.json'");
    sql_in("gamasot.db", "DROP TABLE files; CREATE TABLE files (seq, id, bytes);"
                         "INSERT INTO files VALUES (1, NULL, 0)");
    assert_int_equal(backup(&info), GS_ERR_FORMAT);
    says("the database names a file ''");
    sql_in("gamasot.db", "DROP TABLE files");
    assert_int_equal(backup(&info), GS_ERR_FORMAT);
    says("no such table: files");
    sql_in("gamasot.db", "PRAGMA user_version = 1000");
    assert_int_equal(backup(&info), GS_ERR_UNSUPPORTED);
    write_in(folder, "gamasot.db", "nothing like a database, of no use to anybody");
    assert_int_equal(backup(&info), GS_ERR_FORMAT);
    says("could not be copied");
    assert_int_equal(count_names(root, "a.tar"), 0);
}

static void the_names_of_an_archive(void **unused) {
    (void)unused;
    static const struct {
        const char *name;
        bool is;
    } cases[] = {{"gamasot.db", true},
                 {"keys.json", true},
                 {"gamasot.conf", true},
                 {"files/file-0af9", true},
                 {"state/device.json", true},
                 {"state/calibration-a.txt", true},
                 {"files/file-", false},
                 {"files/file-0AF9", false},
                 {"files/file-../x", false},
                 {"files/other-12", false},
                 {"state/passwd", false},
                 {"state/.device.json", false},
                 {"state/calibration-a/b.txt", false},
                 {"../keys.json", false},
                 {"/etc/passwd", false},
                 {"", false}};
    char path[GS_BACKUP_MAX_PATH], long_id[80];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (gs_backup_path(&places, cases[i].name, path, sizeof(path)) != cases[i].is)
            fail_msg("%s", cases[i].name);
        if (cases[i].is)
            assert_int_equal(strncmp(path, root, strlen(root)), 0);
    }
    memset(long_id, 'a', sizeof(long_id) - 1);
    memcpy(long_id, "file-", 5);
    long_id[64] = '\0';
    assert_false(gs_backup_is_file_id(long_id));
    long_id[63] = '\0';
    assert_true(gs_backup_is_file_id(long_id));
}

/* ---- What is no backup ----------------------------------------------------------------------- */

typedef struct part {
    const char *name, *text;
} part;

static int begin_archive(void) {
    const int fd = open(archive, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static void add_part(int fd, const char *name, const char *bytes, size_t n) {
    gs_tar_entry e = {.bytes = (int64_t)n};
    snprintf(e.name, sizeof(e.name), "%s", name);
    assert_int_equal(gs_tar_begin(fd, &e, 0), 0);
    assert_int_equal(gs_store_write(fd, bytes, n), 0);
    assert_int_equal(gs_tar_pad(fd, e.bytes), 0);
}

/* An archive of these files; with whole, one that ends as it should. */
static void write_archive(const part *parts, size_t n, bool whole) {
    const int fd = begin_archive();
    for (size_t i = 0; i < n; i++)
        add_part(fd, parts[i].name, parts[i].text, strlen(parts[i].text));
    if (whole)
        assert_int_equal(gs_tar_end(fd), 0);
    close(fd);
}

static void archives_that_are_refused(void **unused) {
    (void)unused;
    static const struct {
        part parts[2];
        int code;
        const char *why;
    } cases[] = {
        {{{"about.txt", ABOUT}, {"../evil", "x"}}, GS_ERR_FORMAT, "holds '../evil'"},
        {{{"about.txt", ABOUT}, {"state/passwd", "x"}}, GS_ERR_FORMAT, "no part of a backup"},
        {{{"about.txt", ABOUT}, {"about.txt", ABOUT}}, GS_ERR_IO, "File exists"},
        {{{"keys.json", "x"}, {"state/device.json", "x"}}, GS_ERR_FORMAT, "not say what it is"},
        {{{"about.txt", "hello"}, {"keys.json", "x"}}, GS_ERR_FORMAT, "not say what it is"},
        {{{"about.txt", "gamasot backup form 1\n"}, {"keys.json", "x"}}, GS_ERR_FORMAT, "not say"},
        {{{"about.txt", "gamasot backup form 0\nprogram a\nschema 1\nmade 1\n"},
          {"keys.json", "x"}},
         GS_ERR_FORMAT,
         "not say what it is"},
        {{{"about.txt", "gamasot backup form 2\n"}, {"keys.json", "x"}},
         GS_ERR_UNSUPPORTED,
         "made by a newer gamasot (form 2, this one knows 1)"},
        {{{"about.txt", ABOUT}, {"gamasot.db", "this is no database"}},
         GS_ERR_FORMAT,
         "gamasot.db"},
        {{{"about.txt", ABOUT}, {"gamasot.db", ""}}, GS_ERR_FORMAT, "no database of gamasot's"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_archive(cases[i].parts, 2, true);
        refused(cases[i].code, cases[i].why);
    }
    write_archive(cases[0].parts, 1, false);
    refused(GS_ERR_FORMAT, "is no backup, or it is damaged");
    write_file(archive, "");
    refused(GS_ERR_FORMAT, "is no backup, or it is damaged");
    assert_int_equal(unlink(archive), 0);
    refused(GS_ERR_IO, "a.tar: No such file or directory");
    keys_rc = GS_ERR_UNSUPPORTED;
    write_archive((part[]){{"about.txt", ABOUT}, {"keys.json", "x"}}, 2, true);
    refused(GS_ERR_UNSUPPORTED, "keys.json: odd");
}

static off_t size_of_archive(void) {
    struct stat st;
    assert_int_equal(stat(archive, &st), 0);
    return st.st_size;
}

/* Cut anywhere but in the last, empty blocks: nothing is touched. */
static void an_archive_that_is_cut(void **unused) {
    (void)unused;
    gs_backup_info info;
    assert_int_equal(backup(&info), 0);
    const off_t whole = size_of_archive();
    for (off_t n = whole - 1100; n > 0; n -= whole / 12) {
        assert_int_equal(truncate(archive, n), 0);
        refused(GS_ERR_FORMAT, "");
    }
}

static void a_header_that_is_damaged(void **unused) {
    (void)unused;
    /* magic, type, size, sum, prefix; the sum is made right again where the field itself counts. */
    static const struct {
        int at;
        char byte;
        bool fix;
    } cases[] = {{0, 'z', false},  {257, 'U', true},  {156, '2', true},
                 {124, '9', true}, {148, 'x', false}, {345, 'p', true}};
    const part about = {"about.txt", ABOUT};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned char h[GS_TAR_BLOCK];
        unsigned sum = 0;
        write_archive(&about, 1, true);
        int fd = open(archive, O_RDWR);
        assert_int_equal(pread(fd, h, sizeof(h), 0), sizeof(h));
        h[cases[i].at] = (unsigned char)cases[i].byte;
        for (int k = 0; k < GS_TAR_BLOCK; k++)
            sum += k >= 148 && k < 156 ? ' ' : h[k];
        if (cases[i].fix)
            snprintf((char *)h + 148, 7, "%06o", sum);
        assert_int_equal(pwrite(fd, h, sizeof(h), 0), sizeof(h));
        close(fd);
        refused(GS_ERR_FORMAT, "is no backup, or it is damaged");
    }
    gs_tar_entry huge = {"about.txt", GS_TAR_MAX + 1};
    assert_int_equal(gs_tar_begin(-1, &huge, 0), GS_ERR_TOO_LARGE);
}

static void payload_that_is_missing(void **unused) {
    (void)unused;
    gs_backup_info info;
    write_in(folder, "files/file-1a", "longer than its row says");
    assert_int_equal(backup(&info), 0);
    write_in(folder, "files/file-1a", "one");
    refused(GS_ERR_FORMAT, "file-1a is not there, or not whole");
}

static void more_files_than_an_archive_may_hold(void **unused) {
    (void)unused;
    enum { MANY = 4097 };
    static part parts[MANY];
    static char names[MANY][40];
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof(names[i]), "state/calibration-%d.txt", i);
        parts[i] = (part){names[i], ""};
    }
    write_archive(parts, MANY, true);
    refused(GS_ERR_TOO_LARGE, "the archive holds too many files");
}

/* ---- A database alone ------------------------------------------------------------------------ */

static void a_database_alone(void **unused) {
    (void)unused;
    gs_backup_info info;
    char cmd[512];
    snprintf(cmd, sizeof(cmd), "cp %s/gamasot.db %s", folder, archive);
    assert_int_equal(system(cmd), 0);
    sql_in("gamasot.db", "DELETE FROM files");
    assert_int_equal(restore(&info), 0);
    assert_string_equal(info.version, "");
    assert_int_equal(info.schema, gs_store_schema_n);
    assert_int_equal(rows(), 2);
    holds(folder, "files/file-1a", "one"); /* what it lacks stays */
    assert_int_equal(count_names(info.before, "gamasot.db"), 1);
}

/* What somebody else put into a database must lead to no file but payload: those that a server
 * later reads, and deletes. */
static void names_of_files_in_a_database(void **unused) {
    (void)unused;
    static const struct {
        const char *id, *why;
    } cases[] = {{"'../../keys.json'", "names a file '../../keys.json'"},
                 {"'file-2B'", "names a file 'file-2B'"},
                 {"''", "names a file ''"},
                 {"NULL", "names a file ''"},
                 {"'file-4d'", "file-4d is not there, or not whole"}};
    static char db[1 << 20];
    char path[512], sql[256];
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        const bool whole = i % 2 == 0; /* in an archive, or alone */
        snprintf(path, sizeof(path), "%s/gamasot.db", folder);
        assert_int_equal(rename(path, archive), 0);
        make_database();
        sql_in("gamasot.db", "DROP TABLE files; CREATE TABLE files (seq, id, bytes)");
        snprintf(sql, sizeof(sql), "INSERT INTO files VALUES (1, 'file-1a', 3), (2, %s, 1)",
                 cases[i / 2].id);
        sql_in("gamasot.db", sql);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        const size_t n = fread(db, 1, sizeof(db), f);
        fclose(f);
        assert_int_equal(rename(archive, path), 0);
        const int fd = begin_archive();
        if (whole) {
            add_part(fd, "about.txt", ABOUT, strlen(ABOUT));
            add_part(fd, "files/file-1a", "one", 3);
            add_part(fd, "gamasot.db", db, n);
            assert_int_equal(gs_tar_end(fd), 0);
        } else {
            assert_int_equal(gs_store_write(fd, db, n), 0);
        }
        close(fd);
        if (whole || strstr(cases[i / 2].why, "names")) /* alone it brings no payload */
            refused(GS_ERR_FORMAT, cases[i / 2].why);
    }
}

static void databases_that_are_refused(void **unused) {
    (void)unused;
    char cmd[512];
    snprintf(cmd, sizeof(cmd), "cp %s/gamasot.db %s", folder, archive);
    assert_int_equal(system(cmd), 0);
    sql_in("../a.tar", "PRAGMA user_version = 1000");
    refused(GS_ERR_UNSUPPORTED, "written by a newer gamasot (version 1000");
    sql_in("../a.tar", "PRAGMA user_version = 0");
    refused(GS_ERR_FORMAT, "no database of gamasot's");
    sql_in("../a.tar", "PRAGMA user_version = 1");
    int fd = open(archive, O_RDWR);
    char zeros[4096] = "";
    assert_int_equal(pwrite(fd, zeros, sizeof(zeros), 4096), sizeof(zeros));
    close(fd);
    refused(GS_ERR_FORMAT, "damaged");
}

static void not_while_a_server_runs(void **unused) {
    (void)unused;
    gs_backup_info info;
    gs_db *db = NULL;
    gs_store_config cfg = {.folder = folder};
    assert_int_equal(backup(&info), 0);
    assert_int_equal(gs_db_open(&cfg, &db, err, sizeof(err)), 0);
    assert_int_equal(restore(&info), GS_ERR_UNAVAILABLE);
    says("another gamasot keeps its state in");
    gs_db_close(db);
    untouched();
    write_in(folder, GS_STORE_MARK, "");
    assert_int_equal(gs_db_open(&cfg, &db, err, sizeof(err)), GS_ERR_UNAVAILABLE);
    says("run gamasot restore again");
}

/* ---- Each call fails once -------------------------------------------------------------------- */

static const gs_fault_kind kinds[] = {GS_FAULT_ALLOC, GS_FAULT_READ, GS_FAULT_WRITE,
                                      GS_FAULT_SQLITE, GS_FAULT_FILE};

static void each_call_of_a_backup_fails(void **unused) {
    (void)unused;
    gs_backup_info info;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        gs_fault_set(kinds[k], UINT64_MAX, 0);
        assert_int_equal(backup(&info), 0);
        const uint64_t n = gs_fault_calls(kinds[k]);
        assert_int_equal(unlink(archive), 0);
        for (uint64_t i = 1; i <= n; i++) {
            gs_fault_set(kinds[k], i, 0);
            if (backup(&info) >= 0)
                fail_msg("call %d of kind %d failed, and the backup did not", (int)i,
                         (int)kinds[k]);
            gs_fault_clear();
            assert_int_not_equal(err[0], 0);
            assert_int_equal(count_names(root, "a.tar."), 0);
            /* That its name is on the disk is the last that is asked. */
            if (unlink(archive) == 0)
                assert_true(kinds[k] == GS_FAULT_FILE && i + 2 > n);
            untouched();
            err[0] = '\0';
        }
        gs_fault_clear();
    }
}

/* The same where a row goes out of the copy, on a disk that is full. */
static void each_call_of_a_backup_finds_no_room(void **unused) {
    (void)unused;
    gs_backup_info info;
    char path[512];
    snprintf(path, sizeof(path), "%s/files/file-1a", folder);
    assert_int_equal(unlink(path), 0);
    gs_fault_set(GS_FAULT_SQLITE, UINT64_MAX, 0);
    assert_int_equal(backup(&info), 0);
    const uint64_t n = gs_fault_calls(GS_FAULT_SQLITE);
    assert_int_equal(unlink(archive), 0);
    int n_room = 0;
    for (uint64_t i = 1; i <= n; i++) {
        gs_fault_set(GS_FAULT_SQLITE, i, ENOSPC);
        const int rc = backup(&info);
        gs_fault_clear();
        assert_true(rc < 0);
        n_room += rc == GS_ERR_NO_SPACE;
        assert_int_equal(count_names(root, "a.tar"), 0);
        assert_int_equal(rows(), 2);
    }
    assert_true(n_room > 0);
}

static void each_call_of_a_restore_fails(void **unused) {
    (void)unused;
    gs_backup_info info;
    assert_int_equal(backup(&info), 0);
    for (size_t k = 0; kinds[k] != GS_FAULT_FILE; k++) {
        gs_fault_set(kinds[k], UINT64_MAX, 0);
        assert_int_equal(restore(&info), 0);
        const uint64_t n = gs_fault_calls(kinds[k]);
        gs_fault_clear();
        char cmd[512];
        snprintf(cmd, sizeof(cmd), "rm -r %s/before-*", folder);
        assert_int_equal(system(cmd), 0);
        for (uint64_t i = 1; i <= n; i++) {
            gs_fault_set(kinds[k], i, 0);
            if (restore(&info) >= 0)
                fail_msg("call %d of kind %d failed, and restore did not", (int)i, (int)kinds[k]);
            gs_fault_clear();
            assert_int_not_equal(err[0], 0);
            untouched();
            err[0] = '\0';
        }
    }
}

/* Whichever file can't be opened, renamed or synced: nothing has changed, or the store does not
 * open until restore was run again. */
static void each_file_of_a_restore_fails(void **unused) {
    (void)unused;
    gs_backup_info info;
    const gs_store_config cfg = {.folder = folder};
    char cmd[512];
    int n_marked = 0;
    assert_int_equal(backup(&info), 0);
    gs_fault_set(GS_FAULT_FILE, UINT64_MAX, 0);
    assert_int_equal(restore(&info), 0);
    const uint64_t n = gs_fault_calls(GS_FAULT_FILE);
    gs_fault_clear();
    snprintf(cmd, sizeof(cmd), "rm -r %s/before-*", folder);
    assert_int_equal(system(cmd), 0);
    for (uint64_t i = 1; i <= n; i++) {
        gs_fault_set(GS_FAULT_FILE, i, i % 2 ? ENOSPC : EIO);
        const int rc = restore(&info);
        gs_fault_clear();
        if (rc != GS_ERR_NO_SPACE && rc != GS_ERR_IO)
            fail_msg("call %d: %d", (int)i, rc);
        assert_int_not_equal(err[0], 0);
        if (count_names(folder, GS_STORE_MARK) > 0) {
            gs_db *db = NULL;
            n_marked++;
            assert_int_equal(gs_db_open(&cfg, &db, err, sizeof(err)), GS_ERR_UNAVAILABLE);
            says("run gamasot restore again");
            assert_int_equal(restore(&info), 0);
            assert_int_equal(system(cmd), 0);
        }
        untouched();
        err[0] = '\0';
    }
    assert_true(n_marked > 5);
}

#define T(f) cmocka_unit_test_setup_teardown(f, make_home, remove_home)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(everything_comes_back),        T(a_place_that_is_empty),
        T(without_a_database),           T(a_file_that_was_deleted_takes_its_row),
        T(keys_on_another_file_system),  T(backups_that_are_refused),
        T(the_names_of_an_archive),      T(archives_that_are_refused),
        T(an_archive_that_is_cut),       T(a_header_that_is_damaged),
        T(payload_that_is_missing),      T(a_database_alone),
        T(databases_that_are_refused),   T(not_while_a_server_runs),
        T(each_call_of_a_backup_fails),  T(each_call_of_a_restore_fails),
        T(a_large_file_and_a_bare_name), T(more_files_than_an_archive_may_hold),
        T(names_of_files_in_a_database), T(each_call_of_a_backup_finds_no_room),
        T(each_file_of_a_restore_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
