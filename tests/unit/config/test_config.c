/* Option table, sources and their order, messages, directories. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "config/config.h"
#include "config/config_impl.h"
#include "config/dirs.h"
#include "faults/fault.h"

static char home[64]; /* an empty folder per test */
static char err[512];

static const char *const cleared[] = {
    "XDG_CACHE_HOME",  "XDG_STATE_HOME",  "XDG_DATA_HOME",           "XDG_CONFIG_HOME",
    "CACHE_DIRECTORY", "STATE_DIRECTORY", "CONFIGURATION_DIRECTORY", "GAMASOT_CONFIG"};

static int setup(void **state) {
    (void)state;
    char name[128];
    for (size_t i = 0; i < sizeof cleared / sizeof cleared[0]; i++)
        unsetenv(cleared[i]);
    for (size_t i = 0; i < GS_CONFIG_N; i++) { /* what the developer's shell may have set */
        int at = snprintf(name, sizeof name, "GAMASOT_%s", gs_config_option_at(i)->name);
        for (int k = 0; k < at; k++)
            name[k] = name[k] == '.' ? '_' : (char)toupper(name[k]);
        unsetenv(name);
    }
    strcpy(home, "/tmp/gamasot-test-config-XXXXXX");
    if (!mkdtemp(home))
        return -1;
    err[0] = '\0';
    return setenv("HOME", home, 1);
}

static int teardown(void **state) {
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", home);
    return system(cmd);
}

/* Loads from arguments (NULL ends them); the caller deinits. */
static int load(gs_config *cfg, ...) {
    static char *argv[32];
    int argc = 0;
    va_list ap;
    argv[argc++] = (char[]){"gamasot"};
    va_start(ap, cfg);
    for (char *a; (a = va_arg(ap, char *)) != NULL && argc < 31;)
        argv[argc++] = a;
    va_end(ap);
    return gs_config_load(cfg, argc, argv, NULL, 0, err, sizeof err);
}

static int read_text(gs_config *cfg, const char *text) {
    assert_int_equal(gs_config_init(cfg), GS_OK);
    return gs_config_read_text(cfg, "test.conf", text, strlen(text), err, sizeof err);
}

static void says(const char *word) {
    if (!strstr(err, word))
        print_error("\"%s\" does not say \"%s\"\n", err, word);
    assert_non_null(strstr(err, word));
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fputs(text, f) < 0, 0);
    assert_int_equal(fclose(f), 0);
}

/* ---- Table --------------------------------------------------------------------------------- */

static void test_table(void **state) {
    (void)state;
    for (size_t i = 0; i < GS_CONFIG_N; i++) {
        const gs_config_option *o = gs_config_option_at(i);
        size_t n = strlen(o->section);
        assert_ptr_equal(gs_config_option_find(o->name), o);
        assert_memory_equal(o->name, o->section, n);
        assert_int_equal(o->name[n], '.');
        assert_null(strchr(o->name + n + 1, '.'));
        assert_true(strlen(o->name) < 50); /* libinih cuts longer names */
        assert_true(o->min <= o->max);
        if (o->kind == GS_CONFIG_INT || o->kind == GS_CONFIG_PORT)
            assert_true(o->min >= INT_MIN && o->max <= INT_MAX);
        assert_int_equal(o->kind == GS_CONFIG_ENUM, o->choices != NULL);
        assert_true(strlen(o->help) > 10);
        if (o->kind == GS_CONFIG_SIZE_MB)
            assert_non_null(strstr(o->name, "_mb"));
        if (o->kind == GS_CONFIG_DURATION_MS)
            assert_non_null(strstr(o->name, "_ms"));
        for (size_t k = 0; k < i; k++) {
            const gs_config_option *p = gs_config_option_at(k);
            assert_string_not_equal(o->name, p->name);
            if (o->alias && p->alias)
                assert_string_not_equal(o->alias, p->alias);
        }
    }
    assert_null(gs_config_option_at(GS_CONFIG_N));
    assert_null(gs_config_option_find("server"));
}

static void test_defaults(void **state) {
    (void)state;
    gs_config cfg;
    assert_int_equal(load(&cfg, NULL), GS_OK);
    assert_int_equal(cfg.server_host.n, 2);
    assert_string_equal(cfg.server_host.items[0], "127.0.0.1");
    assert_string_equal(cfg.server_host.items[1], "::1");
    assert_int_equal(cfg.server_port, 11434);
    assert_int_equal(cfg.server_keep_alive_ms, 75000);
    assert_int_equal(cfg.server_api_keys.n, 0);
    assert_int_equal(cfg.model_backend, GS_CONFIG_BACKEND_NATIVE);
    assert_int_equal(cfg.log_level, GS_LOG_INFO);
    assert_string_equal(cfg.model_path, "");
    assert_true(cfg.kv_prefix_cache);
    assert_null(cfg.file);
    assert_int_equal(cfg.n_positional, 0);
    for (size_t i = 0; i < GS_CONFIG_N; i++)
        assert_int_equal(cfg.source[i], GS_CONFIG_FROM_DEFAULT);
    gs_config_deinit(&cfg);
    gs_config_deinit(&cfg); /* twice is harmless */
}

/* The choices of an enum stand in the order of the C constants that the program compares with. */
static void test_enums(void **state) {
    (void)state;
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    gs_config cfg;
    assert_int_equal(gs_config_init(&cfg), GS_OK);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(gs_config_set(&cfg, "log.level", levels[i], err, sizeof err), GS_OK);
        assert_int_equal(cfg.log_level, gs_log_level_parse(levels[i]));
    }
    assert_int_equal(gs_config_set(&cfg, "model.backend", "fake", err, sizeof err), GS_OK);
    assert_int_equal(cfg.model_backend, GS_CONFIG_BACKEND_FAKE);
    static const char *const bad[] = {"", "fak", "fakee", "native|fake", "Fake"};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(gs_config_set(&cfg, "model.backend", bad[i], err, sizeof err),
                         GS_ERR_INVALID);
        says("one of native, fake");
    }
    assert_int_equal(cfg.model_backend, GS_CONFIG_BACKEND_FAKE);
    gs_config_deinit(&cfg);
}

static void test_numbers(void **state) {
    (void)state;
    static const char *const bad[] = {"",     " 1",    "1 ",   "+1",  "0x10",
                                      "1e3",  "65536", "-1",   "1.5", "99999999999999999999",
                                      "port", "--1",   "80,80"};
    gs_config cfg;
    assert_int_equal(gs_config_init(&cfg), GS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(gs_config_set(&cfg, "server.port", bad[i], err, sizeof err),
                         GS_ERR_INVALID);
        says("server.port: '");
        says("from 0 to 65535");
        assert_int_equal(cfg.server_port, 11434);
    }
    assert_int_equal(gs_config_set(&cfg, "server.port", "65535", err, sizeof err), GS_OK);
    assert_int_equal(cfg.server_port, 65535);
    assert_int_equal(gs_config_set(&cfg, "kv.block_tokens", "48", err, sizeof err), GS_ERR_INVALID);
    says("power of two");
    assert_int_equal(gs_config_set(&cfg, "kv.block_tokens", "64", err, sizeof err), GS_OK);
    assert_int_equal(cfg.kv_block_tokens, 64);
    assert_int_equal(gs_config_set(&cfg, "server.keep_alive_ms", "10s", err, sizeof err),
                     GS_ERR_INVALID);
    says("(ms)");
    gs_config_deinit(&cfg);
}

static void test_float(void **state) {
    (void)state;
    static const gs_config_option o = {
        .name = "x.share", .section = "x", .kind = GS_CONFIG_FLOAT, .min = 0, .max = 2};
    static const char *const bad[] = {"", "nan", "inf", "2.01", "-0.1", "1,5", "0x1p0", "1e", "1 "};
    double v = 0.25;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(gs_config_value_parse(&o, bad[i], false, &v, err, sizeof err),
                         GS_ERR_INVALID);
        says("x.share");
    }
    assert_true(v == 0.25);
    assert_int_equal(gs_config_value_parse(&o, "1.5", false, &v, err, sizeof err), GS_OK);
    assert_true(v == 1.5);
}

static void test_text_values(void **state) {
    (void)state;
    static const char *const bad[] = {"a\nb", "a\x1b[2J", "a\x7f", "\xff\xfe", "\xed\xa0\x80"};
    gs_config cfg;
    char big[GS_CONFIG_MAX_VALUE + 2];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    assert_int_equal(gs_config_init(&cfg), GS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(gs_config_set(&cfg, "model.name", bad[i], err, sizeof err),
                         GS_ERR_INVALID);
    assert_int_equal(gs_config_set(&cfg, "model.name", big, err, sizeof err), GS_ERR_INVALID);
    assert_string_equal(cfg.model_name, "");
    assert_int_equal(gs_config_set(&cfg, "model.name", "가마솥", err, sizeof err), GS_OK);
    assert_string_equal(cfg.model_name, "가마솥");
    assert_int_equal(gs_config_set(&cfg, "model.path", "~/m.gguf", err, sizeof err), GS_OK);
    assert_memory_equal(cfg.model_path, home, strlen(home));
    assert_string_equal(cfg.model_path + strlen(home), "/m.gguf");
    assert_int_equal(gs_config_set(&cfg, "model.name", "~/m", err, sizeof err), GS_OK);
    assert_string_equal(cfg.model_name, "~/m"); /* a name is no path */
    assert_int_equal(gs_config_set(&cfg, "modle.name", "x", err, sizeof err), GS_ERR_NOT_FOUND);
    says("did you mean 'model.name'?");
    gs_config_deinit(&cfg);
}

static void test_lists(void **state) {
    (void)state;
    gs_config cfg;
    assert_int_equal(gs_config_init(&cfg), GS_OK);
    assert_int_equal(gs_config_set(&cfg, "server.host", " a , b,,c ", err, sizeof err), GS_OK);
    assert_int_equal(cfg.server_host.n, 3);
    assert_string_equal(cfg.server_host.items[1], "b");
    assert_string_equal(cfg.server_host.items[2], "c");
    assert_int_equal(gs_config_set(&cfg, "server.host", " , ", err, sizeof err), GS_ERR_INVALID);
    says("list of 0 items");
    assert_int_equal(gs_config_set(&cfg, "server.host", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
                                   err, sizeof err),
                     GS_ERR_INVALID);
    assert_int_equal(cfg.server_host.n, 3);
    gs_config_deinit(&cfg);
}

/* ---- File ---------------------------------------------------------------------------------- */

static void test_file(void **state) {
    (void)state;
    gs_config cfg;
    int rc = read_text(&cfg, "\xef\xbb\xbf# comment\r\n"
                             "[server]\r\n"
                             "port = 8080 ; why\r\n"
                             "host = 127.0.0.1\n"
                             "   ::1\n"
                             "   10.0.0.1\n"
                             "allowed_hosts = one\n"
                             "allowed_hosts = two\n"
                             "\n"
                             "[kv]\n"
                             "prefix_cache: off\n"
                             "; another\n"
                             "[log]\nlevel=warn"); /* no newline at the end */
    if (rc != GS_OK)
        print_error("%s\n", err);
    assert_int_equal(rc, GS_OK);
    assert_int_equal(cfg.server_port, 8080);
    assert_int_equal(cfg.server_host.n, 3); /* replaces the default, then grows */
    assert_string_equal(cfg.server_host.items[2], "10.0.0.1");
    assert_int_equal(cfg.server_allowed_hosts.n, 2);
    assert_false(cfg.kv_prefix_cache);
    assert_int_equal(cfg.log_level, GS_LOG_WARN);
    assert_int_equal(cfg.source[GS_OPT_server_port], GS_CONFIG_FROM_FILE);
    assert_int_equal(cfg.source[GS_OPT_model_path], GS_CONFIG_FROM_DEFAULT);
    gs_config_deinit(&cfg);
}

static void test_file_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *place, *word;
    } rows[] = {
        {"[server]\nport = 99999\n", "test.conf:2: ", "server.port: '99999'"},
        {"[server]\n\n# x\nprot = 1\n", "test.conf:4: ", "did you mean 'server.port'?"},
        {"[sever]\nport = 1\n", "test.conf:2: ", "did you mean 'server.port'?"},
        {"port = 1\n", "test.conf:1: ", "did you mean 'server.port'?"},
        {"[server]\nzzzzzzzzzz = 1\n", "test.conf:2: ", "unknown option 'server.zzzzzzzzzz'"},
        {"[server]\nport = 1\nport = 2\n", "test.conf:3: ", "already set on line 2"},
        {"[server]\nport = 1\n  2\n", "test.conf:3: ", "already set on line 2"},
        {"[server\nport = 1\n", "test.conf:1: ", "section"},
        {"[server]\nport\n", "test.conf:2: ", "name = value"},
        {"[log]\nlevel = loud\n", "test.conf:2: ", "debug, info, warn, error"},
        {"[model]\nwarm_up = maybe\n", "test.conf:2: ", "true or false"},
        {"[model]\nname = a\x01z\n", "test.conf:2: ", "control"},
        /* only the first of several is told */
        {"[server]\nport = x\nprot = 1\n[log\n", "test.conf:2: ", "server.port: 'x'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gs_config cfg;
        err[0] = '\0';
        assert_int_equal(read_text(&cfg, rows[i].text), GS_ERR_INVALID);
        assert_ptr_equal(strstr(err, rows[i].place), err);
        says(rows[i].word);
        gs_config_deinit(&cfg);
    }
}

/* libinih would cut a long line and read its rest as a line of its own. */
static void test_file_long_lines(void **state) {
    (void)state;
    char text[600];
    gs_config cfg;
    for (size_t n = 150; n < 500; n++) {
        int at = snprintf(text, sizeof text, "[model]\nname = ");
        memset(text + at, 'a', n);
        strcpy(text + at + n, "\n[server]\nport = 80\n");
        int rc = read_text(&cfg, text);
        size_t line = 7 + n + 1;
        if (line <= 199) {
            assert_int_equal(rc, GS_OK);
            assert_int_equal(strlen(cfg.model_name), n);
            assert_int_equal(cfg.server_port, 80);
        } else {
            assert_int_equal(rc, GS_ERR_INVALID);
            says("test.conf:2: ");
            says("too long");
        }
        gs_config_deinit(&cfg);
    }
    assert_int_equal(gs_config_init(&cfg), GS_OK);
    assert_int_equal(gs_config_read_text(&cfg, "test.conf", "[a]\nb\0c = 1\n", 13, err, sizeof err),
                     GS_ERR_INVALID);
    says("test.conf:2: ");
    says("zero byte");
    gs_config_deinit(&cfg);
}

static void test_file_places(void **state) {
    (void)state;
    char path[200], dir[128], other[128];
    gs_config cfg;
    snprintf(dir, sizeof dir, "%s/.config/gamasot", home);
    assert_int_equal(gs_dirs_make(dir, err, sizeof err), GS_OK);
    snprintf(path, sizeof path, "%s/gamasot.conf", dir);
    write_file(path, "[server]\nport = 1001\n");
    assert_int_equal(load(&cfg, NULL), GS_OK);
    assert_int_equal(cfg.server_port, 1001);
    assert_string_equal(cfg.file, path);
    gs_config_deinit(&cfg);

    snprintf(other, sizeof other, "%s/other.conf", home);
    write_file(other, "[server]\nport = 1002\n");
    setenv("GAMASOT_CONFIG", other, 1);
    assert_int_equal(load(&cfg, NULL), GS_OK);
    assert_int_equal(cfg.server_port, 1002);
    gs_config_deinit(&cfg);

    write_file(other, "[server]\nport = 1003\nprot = 2\n");
    assert_int_equal(load(&cfg, "--config", path, NULL), GS_OK); /* the flag wins */
    assert_int_equal(cfg.server_port, 1001);
    gs_config_deinit(&cfg);
    assert_int_equal(load(&cfg, NULL), GS_ERR_INVALID);
    says("other.conf:3: ");
    gs_config_deinit(&cfg);

    /* A named file must exist and be a file. */
    snprintf(other, sizeof other, "%s/none.conf", home);
    assert_int_equal(load(&cfg, "--config", other, NULL), GS_ERR_IO);
    says("none.conf");
    gs_config_deinit(&cfg);
    assert_int_equal(load(&cfg, "--config", home, NULL), GS_ERR_INVALID);
    says("not a regular file");
    gs_config_deinit(&cfg);
    unsetenv("GAMASOT_CONFIG");
}

static void test_huge_file(void **state) {
    (void)state;
    char path[128];
    gs_config cfg;
    snprintf(path, sizeof path, "%s/huge.conf", home);
    write_file(path, "# x\n");
    assert_int_equal(truncate(path, GS_CONFIG_MAX_FILE_BYTES + 1), 0);
    assert_int_equal(load(&cfg, "--config", path, NULL), GS_ERR_TOO_LARGE);
    says("huge.conf");
    gs_config_deinit(&cfg);
}

/* ---- Environment, flags, precedence -------------------------------------------------------- */

static void test_precedence(void **state) {
    (void)state;
    char path[128];
    gs_config cfg;
    snprintf(path, sizeof path, "%s/a.conf", home);
    write_file(path, "[server]\nport = 1\nmax_queued = 1\nmax_connections = 1\nhost = 127.0.0.1\n");
    setenv("GAMASOT_SERVER_MAX_QUEUED", "2", 1);
    setenv("GAMASOT_SERVER_MAX_CONNECTIONS", "2", 1);
    setenv("GAMASOT_SERVER_HOST", "127.0.0.2,127.0.0.3", 1);
    int rc = load(&cfg, "serve", "--server.max_connections=3", "--config", path, "--host",
                  "127.0.0.4", "--host=127.0.0.5", NULL);
    unsetenv("GAMASOT_SERVER_MAX_QUEUED");
    unsetenv("GAMASOT_SERVER_MAX_CONNECTIONS");
    unsetenv("GAMASOT_SERVER_HOST");
    assert_int_equal(rc, GS_OK);
    assert_int_equal(cfg.server_port, 1);
    assert_int_equal(cfg.server_max_queued, 2);
    assert_int_equal(cfg.server_max_connections, 3);
    assert_int_equal(cfg.server_host.n, 2); /* repeated flags add up, sources replace */
    assert_string_equal(cfg.server_host.items[0], "127.0.0.4");
    assert_string_equal(cfg.server_host.items[1], "127.0.0.5");
    assert_int_equal(cfg.source[GS_OPT_server_port], GS_CONFIG_FROM_FILE);
    assert_int_equal(cfg.source[GS_OPT_server_max_queued], GS_CONFIG_FROM_ENV);
    assert_int_equal(cfg.source[GS_OPT_server_max_connections], GS_CONFIG_FROM_FLAG);
    gs_config_deinit(&cfg);
}

static void test_environment_errors(void **state) {
    (void)state;
    gs_config cfg;
    setenv("GAMASOT_SERVER_PROT", "1", 1);
    assert_int_equal(load(&cfg, NULL), GS_ERR_INVALID);
    says("GAMASOT_SERVER_PROT");
    says("did you mean GAMASOT_SERVER_PORT?");
    gs_config_deinit(&cfg);
    unsetenv("GAMASOT_SERVER_PROT");

    setenv("GAMASOT_SERVER_PORT", "many", 1);
    assert_int_equal(load(&cfg, NULL), GS_ERR_INVALID);
    says("GAMASOT_SERVER_PORT: server.port: 'many'");
    gs_config_deinit(&cfg);
    unsetenv("GAMASOT_SERVER_PORT");

    setenv("GAMASOT_TEST_WHATEVER", "1", 1);
    setenv("GAMASOT_ISA", "scalar", 1);
    assert_int_equal(load(&cfg, NULL), GS_OK);
    gs_config_deinit(&cfg);
    unsetenv("GAMASOT_TEST_WHATEVER");
    unsetenv("GAMASOT_ISA");
}

static void test_flags(void **state) {
    (void)state;
    gs_config cfg;
    assert_int_equal(load(&cfg, "run", "--port", "80", "--engine.pin", "hello", "--model=/m.gguf",
                          "--server.max-body-kb", "7", "--kv.prefix_cache=false", "-", "--",
                          "--port", "-x", NULL),
                     GS_OK);
    assert_int_equal(cfg.server_port, 80);
    assert_true(cfg.engine_pin);
    assert_string_equal(cfg.model_path, "/m.gguf");
    assert_int_equal(cfg.server_max_body_kb, 7);
    assert_false(cfg.kv_prefix_cache);
    assert_int_equal(cfg.n_positional, 5);
    assert_string_equal(cfg.positional[0], "run");
    assert_string_equal(cfg.positional[1], "hello"); /* a bool takes no next argument */
    assert_string_equal(cfg.positional[2], "-");
    assert_string_equal(cfg.positional[3], "--port");
    assert_string_equal(cfg.positional[4], "-x");
    gs_config_deinit(&cfg);
}

static void test_flag_errors(void **state) {
    (void)state;
    static const struct {
        const char *arg1, *arg2, *word;
    } rows[] = {
        {"--prot", "1", "did you mean '--port'?"},
        {"--server.prot=1", NULL, "did you mean '--server.port'?"},
        {"--max-queued", "1", "unknown flag --max-queued"},
        {"--max_queued", "1", "did you mean '--server.max_queued'?"},
        {"--port", NULL, "--port needs a value"},
        {"--model", "--port=1", "--model needs a value"},
        {"--port", "x", "--server.port: 'x'"},
        {"--engine.pin=2", NULL, "--engine.pin: '2'"},
        {"-p", "1", "unknown flag -p"},
        {"--", NULL, NULL},
        {"--qqqqqqqqqqqqqqqq", NULL, "see --help"},
        {"--server.max-queue=1", NULL, "did you mean '--server.max_queued'?"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gs_config cfg;
        int rc = load(&cfg, rows[i].arg1, rows[i].arg2, NULL);
        assert_int_equal(rc, rows[i].word ? GS_ERR_INVALID : GS_OK);
        if (rows[i].word)
            says(rows[i].word);
        gs_config_deinit(&cfg);
    }
}

static void test_command_flags(void **state) {
    (void)state;
    gs_config_flag flags[] = {{.name = "max-tokens", .arg = "N", .help = "Stop after N tokens."},
                              {.name = "raw", .help = "No chat template."},
                              {.name = "seed", .arg = "N", .help = "Seed of the sampler."}};
    char *argv[] = {(char[]){"gamasot"}, (char[]){"run"}, (char[]){"--max-tokens"},
                    (char[]){"5"},       (char[]){"hi"},  (char[]){"--raw"}};
    gs_config cfg;
    assert_int_equal(gs_config_load(&cfg, 6, argv, flags, 3, err, sizeof err), GS_OK);
    assert_string_equal(flags[0].value, "5");
    assert_string_equal(flags[1].value, "");
    assert_null(flags[2].value);
    assert_int_equal(cfg.n_positional, 2);
    gs_config_deinit(&cfg);
    argv[5] = (char[]){"--raw=1"};
    assert_int_equal(gs_config_load(&cfg, 6, argv, flags, 3, err, sizeof err), GS_ERR_INVALID);
    says("--raw takes no value");
    gs_config_deinit(&cfg);
    argv[5] = (char[]){"--max-token=5"};
    assert_int_equal(gs_config_load(&cfg, 6, argv, flags, 3, err, sizeof err), GS_ERR_INVALID);
    says("did you mean '--max-tokens'?");
    gs_config_deinit(&cfg);
}

/* --help must work when the rest of the configuration does not. */
static void test_help_comes_first(void **state) {
    (void)state;
    gs_config cfg;
    assert_int_equal(load(&cfg, "serve", "--config", "/nowhere", "--help", NULL), GS_OK);
    assert_true(cfg.want_help);
    gs_config_deinit(&cfg);
    assert_int_equal(load(&cfg, "-h", NULL), GS_OK);
    assert_true(cfg.want_help);
    gs_config_deinit(&cfg);
    assert_int_equal(load(&cfg, "--version", NULL), GS_OK);
    assert_true(cfg.want_version);
    gs_config_deinit(&cfg);
}

/* ---- Keys ---------------------------------------------------------------------------------- */

static void test_keys_file(void **state) {
    (void)state;
    char path[128];
    gs_config cfg;
    snprintf(path, sizeof path, "%s/keys", home);
    write_file(path, "# house\nkey-one\r\n\n  \nkey-two");
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(load(&cfg, "--api-key", "key-zero", "--api-keys-file", path, NULL), GS_OK);
    assert_int_equal(cfg.server_api_keys.n, 3);
    assert_string_equal(cfg.server_api_keys.items[0], "key-zero");
    assert_string_equal(cfg.server_api_keys.items[1], "key-one");
    assert_string_equal(cfg.server_api_keys.items[2], "key-two");
    gs_config_deinit(&cfg);
    write_file(path, "good\nbad secret\n");
    assert_int_equal(load(&cfg, "--api-keys-file", path, NULL), GS_ERR_INVALID);
    says("keys:2: ");
    gs_config_deinit(&cfg);
    static const char *const odd[] = {"a,b\n", "a\x7f\n", "caf\xc3\xa9\n", "a\tb\n"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        write_file(path, odd[i]);
        assert_int_equal(load(&cfg, "--api-keys-file", path, NULL), GS_ERR_INVALID);
        says("keys:1: a key has a blank, a comma or a character beyond ASCII");
        gs_config_deinit(&cfg);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite("k1\nk2\0x\n", 1, 9, f), 9);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(load(&cfg, "--api-keys-file", path, NULL), GS_ERR_INVALID);
    says("keys:2: the line has a zero byte");
    gs_config_deinit(&cfg);
    write_file(path, "good\nbad secret\n");
    assert_int_equal(load(&cfg, "--api-keys-file", path, NULL), GS_ERR_INVALID);
    assert_null(strstr(err, "secret"));
    gs_config_deinit(&cfg);
    unlink(path);
    assert_int_equal(load(&cfg, "--api-keys-file", path, NULL), GS_ERR_IO);
    says("server.api_keys_file");
    gs_config_deinit(&cfg);
}

static void test_open_address_needs_key(void **state) {
    (void)state;
    static const struct {
        const char *host;
        bool local;
    } rows[] = {{"127.0.0.1", true},  {"127.1.2.3", true},      {"::1", true},
                {"localhost", true},  {"0.0.0.0", false},       {"::", false},
                {"10.0.0.7", false},  {"box.local", false},     {"127.0.0.1,192.168.1.2", false},
                {"128.0.0.1", false}, {"::ffff:1.2.3.4", false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gs_config cfg;
        assert_int_equal(load(&cfg, "--host", rows[i].host, NULL), GS_OK);
        assert_int_equal(gs_config_check_serve(&cfg, false, err, sizeof err),
                         rows[i].local ? GS_OK : GS_ERR_INVALID);
        if (!rows[i].local)
            says("server.api_keys");
        assert_int_equal(gs_config_check_serve(&cfg, true, err, sizeof err), GS_OK);
        gs_config_deinit(&cfg);
    }
}

/* ---- Output -------------------------------------------------------------------------------- */

static void test_json(void **state) {
    (void)state;
    gs_config cfg;
    gs_buf out = {0};
    json_error_t why;
    assert_int_equal(load(&cfg, "--api-key", "sesame1,sesame2", "--backend", "fake", "--model-name",
                          "a\"b", NULL),
                     GS_OK);
    assert_int_equal(gs_config_json(&cfg, &out), GS_OK);
    assert_null(memmem(out.data, out.len, "sesame", 6));
    json_t *root = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, &why);
    assert_non_null(root);
    assert_int_equal(json_object_size(root), GS_CONFIG_N);
    assert_int_equal(json_integer_value(json_object_get(root, "server.port")), 11434);
    assert_string_equal(json_string_value(json_object_get(root, "model.backend")), "fake");
    assert_string_equal(json_string_value(json_object_get(root, "log.level")), "info");
    assert_string_equal(json_string_value(json_object_get(root, "model.name")), "a\"b");
    assert_true(json_is_true(json_object_get(root, "kv.prefix_cache")));
    json_t *keys = json_object_get(root, "server.api_keys");
    assert_int_equal(json_array_size(keys), 2);
    assert_string_equal(json_string_value(json_array_get(keys, 1)), "***");
    json_decref(root);
    gs_buf_deinit(&out);
    gs_config_deinit(&cfg);
}

static void test_table_json(void **state) {
    (void)state;
    gs_buf out = {0};
    json_error_t why;
    size_t i, n = 0;
    json_t *row;
    assert_int_equal(gs_config_table_json(&out), GS_OK);
    json_t *rows = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, &why);
    json_array_foreach(rows, i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        const gs_config_option *o = gs_config_option_find(name);
        assert_non_null(o);
        assert_false(o->flags & GS_CONFIG_HIDDEN);
        assert_string_equal(json_string_value(json_object_get(row, "help")), o->help);
        if (strcmp(name, "log.level") == 0) {
            json_t *choices = json_object_get(row, "choices");
            assert_string_equal(json_string_value(json_object_get(row, "kind")), "enum");
            assert_int_equal(json_array_size(choices), 4);
            assert_string_equal(json_string_value(json_array_get(choices, 3)), "error");
            assert_string_equal(json_string_value(json_object_get(row, "default")), "info");
            n++;
        }
        if (strcmp(name, "server.port") == 0) {
            assert_string_equal(json_string_value(json_object_get(row, "kind")), "port");
            assert_int_equal(json_integer_value(json_object_get(row, "max")), 65535);
            n++;
        }
    }
    assert_int_equal(n, 2);
    json_decref(rows);
    gs_buf_deinit(&out);
}

static void test_help_and_reference(void **state) {
    (void)state;
    static const gs_config_flag flags[] = {
        {.name = "max-tokens", .arg = "N", .help = "Stop after N tokens."}};
    gs_buf help = {0}, ref = {0};
    char word[128];
    assert_int_equal(gs_config_help(&help, flags, 1), GS_OK);
    assert_int_equal(gs_config_reference(&ref), GS_OK);
    const char *h = gs_buf_cstr(&help);
    const char *r = gs_buf_cstr(&ref);
    assert_non_null(h);
    assert_non_null(r);
    assert_non_null(strstr(h, "--max-tokens N"));
    for (size_t i = 0; i < GS_CONFIG_N; i++) {
        const gs_config_option *o = gs_config_option_at(i);
        snprintf(word, sizeof word, "--%s%s", o->name, o->kind == GS_CONFIG_BOOL ? "[" : " ");
        assert_int_equal(strstr(h, word) != NULL, !(o->flags & GS_CONFIG_HIDDEN));
        snprintf(word, sizeof word, "\n| `%s`", o->name);
        assert_non_null(strstr(r, word));
    }
    for (const char *line = h; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 100);
    gs_buf_deinit(&help);
    gs_buf_deinit(&ref);
}

/* Run from the repository's root, as make test does. */
static void test_reference_is_current(void **state) {
    (void)state;
    gs_buf file = {0}, ref = {0};
    if (access("docs/configuration.md", R_OK) != 0) {
        print_message("no docs/configuration.md here\n");
        skip();
    }
    assert_int_equal(gs_config_slurp("docs/configuration.md", &file, err, sizeof err), GS_OK);
    assert_int_equal(gs_config_reference(&ref), GS_OK);
    if (file.len != ref.len || memcmp(file.data, ref.data, ref.len) != 0)
        fail_msg("docs/configuration.md is not what src/config/options.h says: run make docs");
    gs_buf_deinit(&file);
    gs_buf_deinit(&ref);
}

/* ---- Directories --------------------------------------------------------------------------- */

static void test_dirs(void **state) {
    (void)state;
    char path[GS_DIRS_MAX_PATH], want[256];
    struct stat st;
    assert_int_equal(gs_dirs_cache(path, sizeof path, err, sizeof err), GS_OK);
    snprintf(want, sizeof want, "%s/.cache/gamasot", home);
    assert_string_equal(path, want);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(gs_dirs_cache(path, sizeof path, err, sizeof err), GS_OK); /* again */

    snprintf(want, sizeof want, "%s/x/y", home);
    setenv("XDG_STATE_HOME", want, 1);
    assert_int_equal(gs_dirs_state(path, sizeof path, err, sizeof err), GS_OK);
    strcat(want, "/gamasot");
    assert_string_equal(path, want);
    setenv("XDG_STATE_HOME", "relative", 1); /* ignored */
    assert_int_equal(gs_dirs_state(path, sizeof path, err, sizeof err), GS_OK);
    snprintf(want, sizeof want, "%s/.local/state/gamasot", home);
    assert_string_equal(path, want);

    snprintf(want, sizeof want, "%s/sys/state/:/other", home);
    setenv("STATE_DIRECTORY", want, 1);
    snprintf(want, sizeof want, "%s/sys/state", home);
    assert_int_equal(gs_dirs_state(path, sizeof path, err, sizeof err), GS_OK);
    assert_string_equal(path, want);
    assert_int_equal(gs_dirs_data(path, sizeof path, err, sizeof err), GS_OK);
    assert_string_equal(path, want);

    assert_int_equal(gs_dirs_config(path, sizeof path, err, sizeof err), GS_OK);
    assert_int_not_equal(stat(path, &st), 0); /* named, not created */
    assert_int_equal(gs_dirs_config(path, 8, err, sizeof err), GS_ERR_TOO_LARGE);
}

static void test_dirs_errors(void **state) {
    (void)state;
    char path[GS_DIRS_MAX_PATH], file[128];
    unsetenv("HOME");
    assert_int_equal(gs_dirs_cache(path, sizeof path, err, sizeof err), GS_ERR_INVALID);
    says("XDG_CACHE_HOME");
    snprintf(file, sizeof file, "%s/file", home);
    write_file(file, "x");
    setenv("XDG_CACHE_HOME", file, 1);
    assert_int_equal(gs_dirs_cache(path, sizeof path, err, sizeof err), GS_ERR_IO);
    says(file);
    setenv("XDG_CACHE_HOME", "/proc/none", 1);
    assert_int_equal(gs_dirs_cache(path, sizeof path, err, sizeof err), GS_ERR_IO);
    says("/proc/none");
}

/* ---- Models ---------------------------------------------------------------------------------- */

static void test_models(void **state) {
    (void)state;
    gs_config cfg, own;
    assert_int_equal(read_text(&cfg, "[kv]\nmemory_mb = 64\n[prefix]\nfiles = /p/all\n"
                                     "[model small]\npath = ~/s.gguf\ncontext = 512\n"
                                     "[model big]\nkv_memory_mb = 900\npinned = true\n"
                                     "prefix_files = /p/a, /p/b\n  /p/c\n"
                                     "prefix_pinned_share = 0.5\n[model none]\nprefix_files =\n"
                                     "[model small]\nkeep_alive_ms = -1\nfake_step_ms = 3\n"),
                     GS_OK);
    assert_int_equal(cfg.n_models, 3);
    assert_string_equal(cfg.models[0].name, "small");
    assert_int_equal(cfg.models[0].path[0], '/');
    assert_string_equal(cfg.models[1].path, "");
    gs_config_for_model(&cfg, &cfg.models[0], &own);
    assert_int_equal(own.model_context, 512);
    assert_int_equal(own.kv_memory_mb, 64);
    assert_int_equal(own.model_keep_alive_ms, -1);
    assert_int_equal(own.fake_step_ms, 3);
    assert_false(own.model_pinned);
    gs_config_for_model(&cfg, &cfg.models[1], &own);
    assert_int_equal(own.kv_memory_mb, 900);
    assert_int_equal(own.model_context, 0);
    assert_true(own.model_pinned);
    /* Prefixes of their own, of the server, none. */
    assert_int_equal(own.prefix_files.n, 3);
    assert_string_equal(own.prefix_files.items[2], "/p/c");
    assert_true(own.prefix_pinned_share > 0.49);
    gs_config_for_model(&cfg, &cfg.models[0], &own);
    assert_int_equal(own.prefix_files.n, 1);
    assert_string_equal(own.prefix_files.items[0], "/p/all");
    gs_config_for_model(&cfg, &cfg.models[2], &own);
    assert_int_equal(own.prefix_files.n, 0);
    gs_config_deinit(&cfg);
    static const char *const wrong[] = {
        "[model x]\ncolour = 1\n",      "[model x]\ncontext = many\n",
        "[model x]\nname = y\n",        "[model a b]\ncontext = 1\n",
        "[model ]\ncontext = 1\n",      "[model x]\nkv_memory_mb = -1\n",
        "[model x]\nserver_port = 1\n", "[model x]\nprefix_files = \x01\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(read_text(&cfg, wrong[i]), GS_ERR_INVALID);
        gs_config_deinit(&cfg);
    }
}

/* ---- Aliases and workers ----------------------------------------------------------------------
 */

static void test_aliases(void **state) {
    (void)state;
    gs_config cfg;
    gs_buf out = {0};
    assert_int_equal(read_text(&cfg, "[alias voice]\nclass = voice\n[alias  big]\nmodel = gemma\n"
                                     "[alias voice]\nmodel = tiny\nclass = chat\n"),
                     GS_OK);
    assert_int_equal(cfg.n_aliases, 2);
    assert_string_equal(cfg.aliases[0].name, "voice");
    assert_string_equal(cfg.aliases[0].model, "tiny");
    assert_string_equal(cfg.aliases[0].class_name, "chat");
    assert_string_equal(cfg.aliases[1].name, "big");
    assert_string_equal(cfg.aliases[1].class_name, "");
    assert_int_equal(gs_config_json(&cfg, &out), GS_OK);
    assert_non_null(memmem(out.data, out.len, "\"alias.voice.model\":\"tiny\"", 26));
    assert_non_null(memmem(out.data, out.len, "\"alias.big.class\":\"\"", 20));
    gs_buf_deinit(&out);
    gs_config_deinit(&cfg);
    static const struct {
        const char *text, *why;
    } wrong[] = {
        {"[alias x]\ncolour = red\n", "alias x: unknown option 'colour'"},
        {"[alias ]\nmodel = y\n", "a name has 1 to 40 characters"},
        {"[alias a/b]\nmodel = y\n", "a name has 1 to 40 characters"},
        {"[alias 01234567890123456789012345678901234567890]\nmodel = y\n", "a name has 1"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(read_text(&cfg, wrong[i].text), GS_ERR_INVALID);
        says(wrong[i].why);
        gs_config_deinit(&cfg);
    }
}

static void test_workers(void **state) {
    (void)state;
    gs_config cfg;
    gs_config_worker copy;
    assert_int_equal(read_text(&cfg,
                               "[worker desk]\nurl = http://a:1\n[worker box]\nurl = https://b\n"
                               "ca_file = /ca.pem\n[worker desk]\nmodels = x, y\n"),
                     GS_OK);
    assert_int_equal(cfg.n_workers, 2);
    assert_string_equal(cfg.workers[0].url, "http://a:1");
    assert_int_equal(cfg.workers[0].models.n, 2);
    assert_string_equal(cfg.workers[1].ca_file, "/ca.pem");
    assert_int_equal(gs_config_worker_copy(&cfg.workers[0], &copy), GS_OK);
    assert_string_equal(copy.name, "desk");
    assert_ptr_not_equal(copy.name, cfg.workers[0].name);
    assert_string_equal(copy.models.items[1], "y");
    gs_config_worker_deinit(&copy);
    for (uint64_t i = 1, n = 1; i <= n; i++) {
        gs_fault_set(GS_FAULT_ALLOC, UINT64_MAX, 0);
        assert_int_equal(gs_config_worker_copy(&cfg.workers[0], &copy), GS_OK);
        n = gs_fault_calls(GS_FAULT_ALLOC);
        gs_config_worker_deinit(&copy);
        gs_fault_set(GS_FAULT_ALLOC, i, 0);
        assert_int_equal(gs_config_worker_copy(&cfg.workers[0], &copy), GS_ERR_NOMEM);
        gs_fault_clear();
    }
    gs_config_deinit(&cfg);
    static const struct {
        const char *text, *why;
    } wrong[] = {
        {"[worker x]\ncolour = red\n", "worker x: unknown option 'colour'"},
        {"[worker x]\n", ""},
        {"[worker ]\nurl = http://a\n", "a name has 1 to 40 characters"},
        {"[worker a b]\nurl = http://a\n", "a name has 1 to 40 characters"},
        {"[worker x]\nmodels = a\n", "worker x: 'url' is missing"},
        {"[worker x]\nurl = http://a\nca_file = /ca\n", "'ca_file' needs an https:// URL"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const int rc = read_text(&cfg, wrong[i].text);
        assert_int_equal(rc, wrong[i].why[0] ? GS_ERR_INVALID : GS_OK); /* no line, no section */
        says(wrong[i].why);
        gs_config_deinit(&cfg);
    }
}

/* As many as there may be, and one more. */
static void test_too_many_sections(void **state) {
    (void)state;
    static const struct {
        const char *kind, *line;
        int max;
    } kinds[] = {{"alias", "model = x", GS_CONFIG_MAX_ALIASES},
                 {"model", "context = 8", GS_CONFIG_MAX_MODELS},
                 {"worker", "url = http://a", GS_CONFIG_MAX_WORKERS}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int more = 0; more < 2; more++) {
            gs_config cfg;
            gs_buf text = {0};
            char why[64];
            for (int i = 0; i < kinds[k].max + more; i++)
                gs_buf_printf(&text, "[%s n%d]\n%s\n", kinds[k].kind, i, kinds[k].line);
            assert_int_equal(read_text(&cfg, gs_buf_cstr(&text)), more ? GS_ERR_INVALID : GS_OK);
            snprintf(why, sizeof why, "too many %s", kinds[k].kind);
            if (more)
                says(why);
            gs_buf_deinit(&text);
            gs_config_deinit(&cfg);
        }
    }
}

/* Keys leave the arguments, the environment and the configuration once they are known elsewhere. */
static void test_secrets_are_wiped(void **state) {
    (void)state;
    gs_config cfg;
    char program[] = "gamasot", flag[] = "--api-key=sesame-one", other[] = "--api-key=sesame-two";
    char *argv[] = {program, flag, other};
    assert_int_equal(gs_config_load(&cfg, 3, argv, NULL, 0, err, sizeof err), GS_OK);
    setenv("GAMASOT_TEST_KEYS", "sesame-two,x", 1);
    gs_config_wipe_secrets(&cfg, 3, argv);
    assert_string_equal(flag, "--api-key=**********");
    assert_string_equal(other, "--api-key=**********");
    assert_string_equal(getenv("GAMASOT_TEST_KEYS"), "**********,x");
    assert_int_equal(cfg.server_api_keys.n, 2);
    assert_string_equal(cfg.server_api_keys.items[0], "");
    unsetenv("GAMASOT_TEST_KEYS");
    gs_config_deinit(&cfg);
}

/* ---- Allocation failures ------------------------------------------------------------------- */

static void test_out_of_memory(void **state) {
    (void)state;
    char conf[128], keys[128];
    gs_config cfg;
    snprintf(conf, sizeof conf, "%s/a.conf", home);
    snprintf(keys, sizeof keys, "%s/keys", home);
    write_file(conf,
               "[server]\nhost = 127.0.0.1\n  ::1\n[model]\npath = ~/m\n[alias a]\nmodel = b\n"
               "[model b]\npath = ~/b\ncontext = 8\n[worker w]\nurl = http://c\nmodels = b\n");
    write_file(keys, "k1\nk2\n");
    assert_int_equal(chmod(keys, 0600), 0);
    gs_fault_set(GS_FAULT_ALLOC, UINT64_MAX, ENOMEM); /* counts */
    assert_int_equal(load(&cfg, "x", "--config", conf, "--api-keys-file", keys, NULL), GS_OK);
    uint64_t n = gs_fault_calls(GS_FAULT_ALLOC);
    gs_fault_clear();
    gs_config_deinit(&cfg);
    assert_true(n > 20);
    for (uint64_t k = 1; k <= n; k++) {
        gs_fault_set(GS_FAULT_ALLOC, k, ENOMEM);
        int rc = load(&cfg, "x", "--config", conf, "--api-keys-file", keys, NULL);
        gs_fault_clear();
        assert_int_equal(rc, GS_ERR_NOMEM);
        gs_config_deinit(&cfg);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_table),
        TEST(test_defaults),
        TEST(test_models),
        TEST(test_enums),
        TEST(test_numbers),
        TEST(test_float),
        TEST(test_text_values),
        TEST(test_lists),
        TEST(test_file),
        TEST(test_file_errors),
        TEST(test_file_long_lines),
        TEST(test_file_places),
        TEST(test_huge_file),
        TEST(test_precedence),
        TEST(test_environment_errors),
        TEST(test_flags),
        TEST(test_flag_errors),
        TEST(test_command_flags),
        TEST(test_help_comes_first),
        TEST(test_keys_file),
        TEST(test_open_address_needs_key),
        TEST(test_json),
        TEST(test_table_json),
        TEST(test_help_and_reference),
        TEST(test_reference_is_current),
        TEST(test_dirs),
        TEST(test_dirs_errors),
        TEST(test_aliases),
        TEST(test_workers),
        TEST(test_too_many_sections),
        TEST(test_secrets_are_wiped),
        TEST(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
