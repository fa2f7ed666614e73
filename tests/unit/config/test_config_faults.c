/* Files and memory that fail while the configuration is read and told, and folders that are found.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../folder.h"
#include "base/err.h"
#include "base/sys.h"
#include "config/config.h"
#include "config/config_impl.h"
#include "config/dirs.h"
#include "faults/fault.h"

static char home[64];
static char conf[128], keys[128];
static char err[512];

static const char *const variables[] = {
    "STATE_DIRECTORY", "CACHE_DIRECTORY", "CONFIGURATION_DIRECTORY", "XDG_STATE_HOME",
    "XDG_CACHE_HOME",  "XDG_CONFIG_HOME", "GAMASOT_CONFIG"};

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int set_up(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    if (new_folder(home) != 0 || setenv("HOME", home, 1) != 0)
        return -1;
    snprintf(conf, sizeof conf, "%s/a.conf", home);
    snprintf(keys, sizeof keys, "%s/keys", home);
    write_file(conf, "[server]\nport = 8123\nhost = 127.0.0.1\n[model b]\npath = ~/b\n"
                     "[worker w]\nurl = http://c\nmodels = a, b\n");
    write_file(keys, "k1\nk2\n");
    err[0] = '\0';
    return chmod(keys, 0600);
}

static int tear_down(void **state) {
    (void)state;
    gs_fault_clear();
    return drop_folder(home);
}

static void says(const char *word) {
    if (!strstr(err, word))
        fail_msg("\"%s\" does not say \"%s\"", err, word);
}

/* ---- What is told ---------------------------------------------------------------------------- */

static int tell_json(gs_buf *out) {
    gs_config cfg;
    int rc = gs_config_init(&cfg);
    if (rc == GS_OK)
        rc = gs_config_json(&cfg, out);
    gs_config_deinit(&cfg);
    return rc;
}

static int tell_help(gs_buf *out) {
    static const gs_config_flag flags[] = {{.name = "jobs", .arg = "N", .help = "how many"},
                                           {.name = "quiet", .help = "say nothing"}};
    return gs_config_help(out, flags, 2);
}

/* The whole text, or out of memory: never a part that looks like all of it. */
static void texts_need_memory(void **state) {
    (void)state;
    static const struct {
        int (*tell)(gs_buf *out);
        const char *holds;
    } texts[] = {{tell_json, "\"server.port\":"},
                 {gs_config_table_json, "\"name\":\"server.port\""},
                 {tell_help, "  --jobs N\n"},
                 {gs_config_reference, "| `server.port`"}};
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        gs_buf whole = {0};
        gs_fault_set(GS_FAULT_ALLOC, UINT64_MAX, 0);
        assert_int_equal(texts[t].tell(&whole), GS_OK);
        const uint64_t n = gs_fault_calls(GS_FAULT_ALLOC);
        assert_non_null(strstr(gs_buf_cstr(&whole), texts[t].holds));
        assert_true(n > 2);
        for (uint64_t i = 1; i <= n; i++) {
            gs_buf out = {0};
            gs_fault_set(GS_FAULT_ALLOC, i, 0);
            assert_int_equal(texts[t].tell(&out), GS_ERR_NOMEM);
            gs_fault_clear();
            gs_buf_deinit(&out);
        }
        gs_buf_deinit(&whole);
    }
}

/* ---- Files ----------------------------------------------------------------------------------- */

static int load(gs_config *cfg) {
    char *argv[] = {(char[]){"gamasot"}, (char[]){"--config"}, conf, (char[]){"--api-keys-file"},
                    keys};
    return gs_config_load(cfg, 5, argv, NULL, 0, err, sizeof err);
}

static void each_call_of_a_start(void **state) {
    (void)state;
    static const gs_fault_kind kinds[] = {GS_FAULT_READ, GS_FAULT_FILE};
    gs_config cfg;
    for (int k = 0; k < 2; k++) {
        gs_fault_set(kinds[k], UINT64_MAX, 0);
        assert_int_equal(load(&cfg), GS_OK);
        const uint64_t n = gs_fault_calls(kinds[k]);
        gs_config_deinit(&cfg);
        assert_int_equal(n,
                         4); /* two files: opened and looked at, or read until there is no more */
        for (uint64_t i = 1; i <= n; i++) {
            gs_fault_set(kinds[k], i, 0);
            assert_int_equal(load(&cfg), GS_ERR_IO);
            gs_fault_clear();
            gs_config_deinit(&cfg);
            says(i <= 2 ? conf : keys);
            says("Input/output error");
        }
    }
}

static void read_again(void **state) {
    (void)state;
    gs_config cfg, again;
    assert_int_equal(load(&cfg), GS_OK);
    write_file(conf, "[server]\nport = 8124\n");
    gs_fault_set(GS_FAULT_ALLOC, UINT64_MAX, 0);
    assert_int_equal(gs_config_reread(&cfg, &again, err, sizeof err), GS_OK);
    const uint64_t n = gs_fault_calls(GS_FAULT_ALLOC);
    assert_int_equal(again.server_port, 8124);
    assert_int_equal(cfg.server_port, 8123);
    assert_int_equal(again.n_workers, 0);
    gs_config_deinit(&again);
    for (uint64_t i = 1; i <= n; i++) {
        gs_fault_set(GS_FAULT_ALLOC, i, 0);
        assert_int_equal(gs_config_reread(&cfg, &again, err, sizeof err), GS_ERR_NOMEM);
        gs_fault_clear();
        says("out of memory");
        gs_config_deinit(&again);
    }
    assert_int_equal(unlink(conf), 0);
    assert_int_equal(gs_config_reread(&cfg, &again, err, sizeof err), GS_ERR_IO);
    says("a.conf: No such file");
    gs_config_deinit(&again);
    gs_config_deinit(&cfg);
    assert_int_equal(gs_config_init(&cfg), GS_OK);
    assert_int_equal(gs_config_reread(&cfg, &again, err, sizeof err), GS_ERR_NOT_FOUND);
    says("without a configuration file");
    gs_config_deinit(&again);
    gs_config_deinit(&cfg);
}

/* A worker that somebody added while the server runs has its day with it. */
static void an_added_worker_is_copied(void **state) {
    (void)state;
    gs_config cfg;
    gs_config_worker copy;
    assert_int_equal(load(&cfg), GS_OK);
    cfg.workers[0].added = gs_strdup("2026-01-02");
    gs_fault_set(GS_FAULT_ALLOC, UINT64_MAX, 0);
    assert_int_equal(gs_config_worker_copy(&cfg.workers[0], &copy), GS_OK);
    const uint64_t n = gs_fault_calls(GS_FAULT_ALLOC);
    assert_string_equal(copy.added, "2026-01-02");
    assert_ptr_not_equal(copy.added, cfg.workers[0].added);
    gs_config_worker_deinit(&copy);
    for (uint64_t i = 1; i <= n; i++) {
        gs_fault_set(GS_FAULT_ALLOC, i, 0);
        assert_int_equal(gs_config_worker_copy(&cfg.workers[0], &copy), GS_ERR_NOMEM);
        gs_fault_clear();
    }
    gs_config_deinit(&cfg);
}

/* ---- Folders --------------------------------------------------------------------------------- */

static void where_folders_are(void **state) {
    (void)state;
    static const struct {
        const char *systemd, *xdg, *home; /* NULL: not set */
        const char *path;                 /* NULL: none */
    } cases[] = {
        {NULL, NULL, "/h", "/h/.config/gamasot"},
        {NULL, "/x", "/h", "/x/gamasot"},
        {"/s", "/x", "/h", "/s"},
        {"/s:/t", "/x", "/h", "/s"},
        {"/s//:/t", NULL, NULL, "/s"},
        {"/", NULL, NULL, "/"},
        {"s", "x", "/h/", "/h//.config/gamasot"},
        {"", "", "/h", "/h/.config/gamasot"},
        {NULL, NULL, NULL, NULL},
        {"s", "x", "h", NULL},
        {NULL, NULL, "", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const names[] = {"CONFIGURATION_DIRECTORY", "XDG_CONFIG_HOME", "HOME"};
        const char *const values[] = {cases[i].systemd, cases[i].xdg, cases[i].home};
        char path[GS_DIRS_MAX_PATH] = "";
        for (int k = 0; k < 3; k++)
            assert_int_equal(values[k] ? setenv(names[k], values[k], 1) : unsetenv(names[k]), 0);
        const int rc = gs_dirs_config(path, sizeof path, err, sizeof err);
        assert_int_equal(rc, cases[i].path ? GS_OK : GS_ERR_INVALID);
        if (cases[i].path)
            assert_string_equal(path, cases[i].path);
        else
            says("neither XDG_CONFIG_HOME nor HOME is set to a path");
    }
}

static void folders_are_made(void **state) {
    (void)state;
    char path[128];
    static char long_path[GS_DIRS_MAX_PATH + 1];
    struct stat st;
    memset(long_path, 'x', sizeof long_path - 1);
    assert_int_equal(gs_dirs_make("", err, sizeof err), GS_ERR_TOO_LARGE);
    assert_int_equal(gs_dirs_make(long_path, err, sizeof err), GS_ERR_TOO_LARGE);
    assert_int_equal(chdir(home), 0);
    assert_int_equal(gs_dirs_make("a/b", err, sizeof err), GS_OK);
    assert_int_equal(chdir("/"), 0);
    snprintf(path, sizeof path, "%s/a/b", home);
    assert_int_equal(stat(path, &st), 0);
    /* Where it can't be made it is said why; whose it is may stay unsaid. */
    snprintf(path, sizeof path, "%s/c", home);
    gs_fault_set(GS_FAULT_FILE, UINT64_MAX, 0);
    assert_int_equal(gs_dirs_make(path, err, sizeof err), GS_OK);
    const uint64_t calls = gs_fault_calls(GS_FAULT_FILE);
    assert_int_equal(rmdir(path), 0);
    int n_refused = 0;
    for (uint64_t i = 1; i <= calls; i++) {
        gs_fault_set(GS_FAULT_FILE, i, EROFS);
        const int rc = gs_dirs_make(path, err, sizeof err);
        gs_fault_clear();
        n_refused += rc != GS_OK;
        if (rc != GS_OK) {
            assert_int_equal(rc, GS_ERR_IO);
            says("/c: can't be created: Read-only file system");
        }
        assert_int_equal(rmdir(path), rc == GS_OK ? 0 : -1);
    }
    assert_int_equal(n_refused, 1);
}

/* Without a home nothing is below it. */
static void paths_without_a_home(void **state) {
    (void)state;
    static const char *const homes[] = {NULL, ""};
    for (int i = 0; i < 2; i++) {
        gs_config cfg;
        assert_int_equal(gs_config_init(&cfg), GS_OK);
        assert_int_equal(homes[i] ? setenv("HOME", homes[i], 1) : unsetenv("HOME"), 0);
        assert_int_equal(gs_config_set(&cfg, "model.path", "~/m.gguf", err, sizeof err), GS_OK);
        assert_string_equal(cfg.model_path, "~/m.gguf");
        gs_config_deinit(&cfg);
    }
}

/* ---- The environment ------------------------------------------------------------------------- */

static int load_env(gs_config *cfg) {
    char *argv[] = {(char[]){"gamasot"}};
    return gs_config_load(cfg, 1, argv, NULL, 0, err, sizeof err);
}

static void which_file_is_read(void **state) {
    (void)state;
    gs_config cfg;
    static char far[GS_DIRS_MAX_PATH];
    setenv("GAMASOT_CONFIG", conf, 1);
    assert_int_equal(load_env(&cfg), GS_OK);
    assert_int_equal(cfg.server_port, 8123);
    gs_config_deinit(&cfg);
    setenv("GAMASOT_CONFIG", "", 1); /* as if it were not set */
    assert_int_equal(load_env(&cfg), GS_OK);
    assert_int_not_equal(cfg.server_port, 8123);
    gs_config_deinit(&cfg);
    unsetenv("GAMASOT_CONFIG");
    /* A folder whose name leaves no room for the file's holds none. */
    memset(far, 'x', sizeof far - 4);
    far[0] = '/';
    setenv("CONFIGURATION_DIRECTORY", far, 1);
    assert_int_equal(load_env(&cfg), GS_OK);
    gs_config_deinit(&cfg);
    setenv("CONFIGURATION_DIRECTORY", home, 1);
    char path[128];
    snprintf(path, sizeof path, "%s/gamasot.conf", home);
    write_file(path, "[server]\nport = 8125\n");
    assert_int_equal(load_env(&cfg), GS_OK);
    assert_int_equal(cfg.server_port, 8125);
    gs_config_deinit(&cfg);
}

static void variables_of_no_option(void **state) {
    (void)state;
    static const struct {
        const char *name, *says;
    } cases[] = {
        {"GAMASOT_KONFIG", "GAMASOT_KONFIG names no option"},
        {"GAMASOT_", "GAMASOT_ names no option"},
        {"GAMASOT_SERVER_PORTS", "did you mean GAMASOT_SERVER_PORT?"},
        {"GAMASOT_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"
         "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"
         "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
         "zzz names no option"}};
    gs_config cfg;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv(cases[i].name, "1", 1);
        assert_int_equal(load_env(&cfg), GS_ERR_INVALID);
        unsetenv(cases[i].name);
        says(cases[i].says);
        gs_config_deinit(&cfg);
    }
    setenv("GAMASOT_ISA", "avx2", 1); /* read elsewhere */
    assert_int_equal(load_env(&cfg), GS_OK);
    unsetenv("GAMASOT_ISA");
    gs_config_deinit(&cfg);
}

/* ---- Addresses ------------------------------------------------------------------------------- */

static void who_can_reach_it(void **state) {
    (void)state;
    static const struct {
        const char *host;
        bool far;
    } cases[] = {{"127.0.0.1", false}, {"127.9.9.9", false}, {"::1", false}, {"localhost", false},
                 {"0.0.0.0", true},    {"128.0.0.1", true},  {"::", true},   {"1::1", true},
                 {"0:0:1::1", true},   {"::1:0:1", true},    {"::2", true},  {"example.com", true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gs_config cfg;
        assert_int_equal(gs_config_init(&cfg), GS_OK);
        assert_int_equal(gs_config_set(&cfg, "server.host", cases[i].host, err, sizeof err), GS_OK);
        assert_int_equal(gs_config_check_serve(&cfg, true, err, sizeof err), GS_OK);
        const int rc = gs_config_check_serve(&cfg, false, err, sizeof err);
        if (rc != (cases[i].far ? GS_ERR_INVALID : GS_OK))
            fail_msg("%s: %d", cases[i].host, rc);
        gs_config_deinit(&cfg);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(texts_need_memory),         T(each_call_of_a_start), T(read_again),
        T(an_added_worker_is_copied), T(where_folders_are),    T(folders_are_made),
        T(paths_without_a_home),      T(which_file_is_read),   T(variables_of_no_option),
        T(who_can_reach_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
