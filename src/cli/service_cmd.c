/*
 * gamasot service install|status|remove: a systemd service of the machine (root), or of the user
 * alone (--user). What packages do with their own means, for a program that was built here.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/sys.h"
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/units.h"
#include "config/dirs.h"

#define UNIT         "gamasot.service"
#define ACCOUNT      "gamasot"
#define PACKAGE_UNIT "/lib/systemd/system/" UNIT

enum { F_USER, F_ROOT, N_FLAGS };
static const gs_config_flag flag_table[N_FLAGS] = {
    [F_USER] = {"user", NULL, "A service of yours, which runs while you are logged in.", NULL},
    [F_ROOT] = {"root", "DIR", "Write below DIR, as for an image; nothing is started.", NULL},
};

/* Where a service is, and under whose manager. */
typedef struct service {
    const gs_config *cfg;
    bool user;
    const char *root; /* "" or a folder */
    char unit[GS_DIRS_MAX_PATH + 64], program[GS_DIRS_MAX_PATH + 64];
    char config[GS_DIRS_MAX_PATH + 64], models[GS_DIRS_MAX_PATH + 64];
    const char *where; /* program, as the unit names it */
    char *err;
    size_t errlen;
} service;

/* ---- Other programs -------------------------------------------------------------------------- */

/* Runs argv, its output into out (NULL: where ours goes). The exit status, or a code. */
static int run_program(const service *s, const char *const argv[], gs_buf *out) {
    posix_spawn_file_actions_t actions;
    int ends[2] = {-1, -1}, status = 0;
    pid_t pid;
    char piece[1024];
    ssize_t n;
    if (out && pipe2(ends, O_CLOEXEC) != 0)
        return gs_fail(s->err, s->errlen, GS_ERR_IO, "pipe: %s", gs_errno_text(errno));
    posix_spawn_file_actions_init(&actions);
    if (out)
        posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    /* argv is not changed by it; the type is older than const. */
    int rc = posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (out)
        close(ends[1]);
    while (rc == 0 && out && (n = gs_read(ends[0], piece, sizeof(piece))) > 0)
        gs_buf_add(out, piece, (size_t)n);
    if (out)
        close(ends[0]);
    if (rc != 0)
        return gs_fail(s->err, s->errlen, GS_ERR_NOT_FOUND, "%s: %s", argv[0], gs_errno_text(rc));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* systemctl with up to three words; what fails is said by systemctl itself. */
static int systemctl(const service *s, const char *a, const char *b, const char *c) {
    char root[GS_DIRS_MAX_PATH + 16];
    const char *argv[8] = {"systemctl", s->user ? "--user" : "--system"};
    int n = 2;
    if (s->root[0]) {
        snprintf(root, sizeof(root), "--root=%s", s->root);
        argv[n++] = root;
    }
    argv[n++] = a;
    argv[n++] = b;
    argv[n] = c;
    int rc = run_program(s, argv, NULL);
    if (rc > 0)
        return gs_fail(s->err, s->errlen, GS_ERR_IO, "systemctl %s failed", a);
    return rc;
}

/* ---- Files --------------------------------------------------------------------------------- */

static int fail_at(const service *s, const char *path) {
    return gs_fail(s->err, s->errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
}

/* The folders above path; those that are new may be entered by everybody. */
static int make_folder_of(const service *s, const char *path) {
    char part[GS_DIRS_MAX_PATH + 64];
    snprintf(part, sizeof(part), "%s", path);
    for (char *at = strchr(part + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        if (mkdir(part, 0755) == 0 ? chmod(part, 0755) != 0 : errno != EEXIST)
            return fail_at(s, part);
        *at = '/';
    }
    return 0;
}

/* Into its place under another name first: a program that runs can't be written to. */
static int copy_file(const service *s, const char *from, const char *to, mode_t mode) {
    char part[GS_DIRS_MAX_PATH + 128], piece[65536];
    ssize_t n = 0;
    snprintf(part, sizeof(part), "%s.part", to);
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return fail_at(s, from);
    unlink(part);
    int out = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    bool ok = out >= 0 && fchmod(out, mode) == 0;
    while (ok && (n = gs_read(in, piece, sizeof(piece))) > 0)
        ok = gs_write(out, piece, (size_t)n) == n;
    ok = ok && n == 0 && fsync(out) == 0;
    int rc = ok && rename(part, to) == 0 ? 0 : fail_at(s, to);
    if (out >= 0)
        close(out);
    close(in);
    if (rc != 0)
        unlink(part);
    return rc;
}

static int save_text(const service *s, const char *path, const gs_buf *text) {
    int rc = gs_args_save(path, text, s->err, s->errlen);
    if (rc == 0 && chmod(path, 0644) != 0)
        rc = fail_at(s, path);
    return rc;
}

/* ---- Places -------------------------------------------------------------------------------- */

static int find_system(service *s) {
    s->where = "/usr/local/bin/gamasot";
    snprintf(s->unit, sizeof(s->unit), "%s/etc/systemd/system/" UNIT, s->root);
    snprintf(s->program, sizeof(s->program), "%s%s", s->root, s->where);
    snprintf(s->config, sizeof(s->config), "%s/etc/gamasot/gamasot.conf", s->root);
    snprintf(s->models, sizeof(s->models), "%s/var/lib/gamasot/models", s->root);
    if (geteuid() != 0 && !s->root[0])
        return gs_fail(s->err, s->errlen, GS_ERR_FORBIDDEN,
                       "only root installs a service of the machine; --user installs one of yours");
    return 0;
}

static int find_user(service *s) {
    const char *home = getenv("HOME"), *xdg = getenv("XDG_CONFIG_HOME");
    char dir[GS_DIRS_MAX_PATH];
    int rc = gs_dirs_config(dir, sizeof(dir), s->err, s->errlen);
    if (rc != 0)
        return rc;
    if (!home || home[0] != '/')
        return gs_fail(s->err, s->errlen, GS_ERR_INVALID, "HOME is not set to a path");
    if (xdg && xdg[0] == '/')
        snprintf(s->unit, sizeof(s->unit), "%s%.4000s/systemd/user/" UNIT, s->root, xdg);
    else
        snprintf(s->unit, sizeof(s->unit), "%s%.4000s/.config/systemd/user/" UNIT, s->root, home);
    s->where = "%h/.local/bin/gamasot"; /* %h: systemd's word for the home folder */
    snprintf(s->program, sizeof(s->program), "%s%.4000s/.local/bin/gamasot", s->root, home);
    snprintf(s->config, sizeof(s->config), "%s%.4000s/gamasot.conf", s->root, dir);
    return 0;
}

/* ---- install ------------------------------------------------------------------------------- */

static bool has_account(void) {
    struct passwd entry, *found = NULL;
    char text[4096];
    return getpwnam_r(ACCOUNT, &entry, text, sizeof(text), &found) == 0 && found;
}

static int make_account(const service *s) {
    static const char *const argv[] = {
        "useradd",          "--system", "--user-group",      "--home-dir", "/var/lib/gamasot",
        "--no-create-home", "--shell",  "/usr/sbin/nologin", ACCOUNT,      NULL};
    if (s->user || s->root[0] || has_account())
        return 0;
    int rc = run_program(s, argv, NULL);
    return rc <= 0 ? rc : gs_fail(s->err, s->errlen, GS_ERR_IO, "useradd failed");
}

static int copy_program(const service *s) {
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n <= 0)
        return fail_at(s, "/proc/self/exe");
    self[n] = '\0';
    int rc = make_folder_of(s, s->program);
    return rc == 0 && strcmp(self, s->program) != 0 ? copy_file(s, self, s->program, 0755) : rc;
}

/* The unit of the package, with this program. */
static int write_unit(const service *s) {
    static const char packaged[] = "ExecStart=/usr/bin/gamasot ";
    const char *text = s->user ? gs_unit_user : gs_unit_system;
    const char *at = strstr(text, packaged);
    gs_buf out = {0};
    if (at)
        gs_buf_printf(&out, "%.*sExecStart=%s %s", (int)(at - text), text, s->where,
                      at + sizeof(packaged) - 1);
    else
        gs_buf_str(&out, text);
    int rc = make_folder_of(s, s->unit);
    if (rc == 0)
        rc = save_text(s, s->unit, &out);
    gs_buf_deinit(&out);
    return rc;
}

/* A model that only its owner's programs see is of no use to the machine's service: it gets one of
 * its own. path becomes that. */
static int take_model(const service *s, char *path, size_t n) {
    char to[GS_DIRS_MAX_PATH + 64];
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    snprintf(to, sizeof(to), "%.3800s/%.255s", s->models, name);
    int rc = make_folder_of(s, to);
    if (rc == 0 && strcmp(path, to) != 0)
        rc = copy_file(s, path, to, 0644);
    if (rc == 0)
        snprintf(path, n, "%s", to + strlen(s->root));
    return rc;
}

/* Named on the command line, or the default one: the configuration says which. */
static int write_config(const service *s) {
    char path[GS_DIRS_MAX_PATH + 64], whole[PATH_MAX];
    gs_buf text = {0};
    if (access(s->config, F_OK) == 0) {
        if (s->cfg->source[GS_OPT_model_path] == GS_CONFIG_FROM_FLAG)
            return gs_fail(s->err, s->errlen, GS_ERR_EXISTS,
                           "%s is there: say model.path in it instead of --model", s->config);
        return 0;
    }
    if (gs_model_path(s->cfg, path, sizeof(path), s->err, s->errlen) != 0) {
        printf("no model yet: put its path into %s\n", s->config);
        return 0;
    }
    if (!realpath(path, whole))
        return fail_at(s, path);
    snprintf(path, sizeof(path), "%s", whole);
    int rc = s->user ? 0 : take_model(s, path, sizeof(path));
    gs_buf_printf(&text, "# Every option: gamasot serve --help\n[model]\npath = %s\n", path);
    if (rc == 0)
        rc = make_folder_of(s, s->config);
    if (rc == 0)
        rc = save_text(s, s->config, &text);
    gs_buf_deinit(&text);
    return rc;
}

static int start(const service *s) {
    int rc = s->root[0] ? 0 : systemctl(s, "daemon-reload", NULL, NULL);
    if (rc == 0)
        rc = systemctl(s, "enable", UNIT, NULL);
    if (rc == 0 && !s->root[0])
        rc = systemctl(s, "restart", "--no-block", UNIT);
    return rc;
}

static int install(service *s) {
    if (!s->user && !s->root[0] && access(PACKAGE_UNIT, F_OK) == 0)
        return gs_fail(s->err, s->errlen, GS_ERR_EXISTS,
                       "the package has installed the service already (" PACKAGE_UNIT ")");
    if (!s->root[0] && access("/run/systemd/system", F_OK) != 0)
        return gs_fail(s->err, s->errlen, GS_ERR_UNAVAILABLE,
                       "this machine was not started by systemd; see docs/install.md for others");
    int rc = write_config(s);
    rc = rc == 0 ? make_account(s) : rc;
    rc = rc == 0 ? copy_program(s) : rc;
    rc = rc == 0 ? write_unit(s) : rc;
    rc = rc == 0 ? start(s) : rc;
    if (rc == 0)
        printf("installed %s\n", s->unit);
    if (rc == 0 && s->user)
        printf("it runs while you are logged in; for always: loginctl enable-linger\n");
    return rc;
}

/* ---- status, remove ----------------------------------------------------------------------------
 */

/* The value of "name=value" in systemctl's answer, up to the line's end. */
static void value_of(const char *text, const char *name, char *out, size_t n) {
    const size_t len = strlen(name);
    out[0] = '\0';
    for (const char *at = text; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (strncmp(at, name, len) == 0 && at[len] == '=')
            snprintf(out, n, "%.*s", (int)strcspn(at + len + 1, "\n"), at + len + 1);
}

/* As systemctl status: 0: it runs, 3: it does not. */
static int status(service *s) {
    const char *const argv[] = {
        "systemctl",
        s->user ? "--user" : "--system",
        "show",
        UNIT,
        "--property=LoadState,ActiveState,SubState,UnitFileState,StatusText",
        NULL};
    char load[64], active[64], sub[64], enabled[64], text[400];
    gs_buf out = {0};
    int rc = run_program(s, argv, &out);
    if (rc != 0) {
        gs_buf_deinit(&out);
        return rc < 0 ? rc : gs_fail(s->err, s->errlen, GS_ERR_IO, "systemctl show failed");
    }
    const char *said = gs_buf_cstr(&out);
    value_of(said, "LoadState", load, sizeof(load));
    value_of(said, "ActiveState", active, sizeof(active));
    value_of(said, "SubState", sub, sizeof(sub));
    value_of(said, "UnitFileState", enabled, sizeof(enabled));
    value_of(said, "StatusText", text, sizeof(text));
    gs_buf_deinit(&out);
    if (strcmp(load, "loaded") != 0)
        printf("no service is installed%s\n", s->user ? " for you" : "; perhaps --user");
    else
        printf("%s (%s), %s at start%s%s\n", active, sub,
               strncmp(enabled, "enabled", 7) == 0 ? "begins" : "does not begin",
               text[0] ? ": " : "", text);
    return strcmp(active, "active") == 0 ? 0 : 3;
}

static int take_away(service *s) {
    if (access(s->unit, F_OK) != 0)
        return gs_fail(s->err, s->errlen, GS_ERR_NOT_FOUND, "%s is not there%s", s->unit,
                       !s->user && access(PACKAGE_UNIT, F_OK) == 0
                           ? ": the service is the package's; remove that"
                           : "");
    int rc =
        s->root[0] ? systemctl(s, "disable", UNIT, NULL) : systemctl(s, "disable", "--now", UNIT);
    if (rc == 0 && unlink(s->unit) != 0)
        rc = fail_at(s, s->unit);
    if (rc == 0 && unlink(s->program) != 0 && errno != ENOENT)
        rc = fail_at(s, s->program);
    if (rc == 0 && !s->root[0])
        rc = systemctl(s, "daemon-reload", NULL, NULL);
    if (rc == 0)
        printf("removed. Configuration, keys, jobs and models are still there (gamasot backup)\n");
    return rc;
}

/* ---- The command --------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int (*work)(service *s);
} verbs[] = {{"install", install}, {"status", status}, {"remove", take_away}};

static int run(service *s, const gs_config_flag *flags) {
    const char *what = s->cfg->n_positional == 1 ? s->cfg->positional[0] : "";
    s->user = flags[F_USER].value != NULL;
    s->root = flags[F_ROOT].value ? flags[F_ROOT].value : "";
    if (s->user && s->root[0])
        return gs_fail(s->err, s->errlen, GS_ERR_INVALID, "--root is for services of the machine");
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(what, verbs[i].name) != 0)
            continue;
        int rc = s->user ? find_user(s) : verbs[i].work == status ? 0 : find_system(s);
        return rc == 0 ? verbs[i].work(s) : rc;
    }
    return gs_fail(s->err, s->errlen, GS_ERR_INVALID, "say 'install', 'status' or 'remove'");
}

int gs_cmd_service(int argc, char **argv) {
    gs_config cfg;
    gs_config_flag flags[N_FLAGS];
    char err[640] = "";
    static service s;
    s = (service){.cfg = &cfg, .err = err, .errlen = sizeof(err)};
    memcpy(flags, flag_table, sizeof(flags));
    int rc = gs_cli_config(&cfg, gs_cli_command("service"), argc, argv, flags, N_FLAGS, err,
                           sizeof(err));
    const bool help = rc == 1;
    if (rc == 0)
        rc = run(&s, flags);
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return help ? 0 : rc == GS_ERR_INVALID ? 2 : rc < 0 ? 1 : rc;
}
