/* gamasot backup FILE, gamasot restore FILE: what a household would miss. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/keys.h"
#include "base/err.h"
#include "cli/cli.h"
#include "config/dirs.h"
#include "store/backup.h"

typedef struct places {
    gs_backup_places p;
    char folder[GS_DIRS_MAX_PATH], state[GS_DIRS_MAX_PATH], keys[GS_DIRS_MAX_PATH];
    char config[GS_DIRS_MAX_PATH + 16];
} places;

static int check_keys(const char *path, char *err, size_t errlen) {
    gs_keys keys;
    int rc = gs_keys_load(path, &keys, err, errlen);
    gs_keys_deinit(&keys);
    return rc;
}

/* The file that was read, or where a new one is looked for. */
static void find_config(const gs_config *cfg, char *out, size_t n) {
    char dir[GS_DIRS_MAX_PATH];
    if (cfg->file)
        snprintf(out, n, "%s", cfg->file);
    else if (gs_dirs_config(dir, sizeof(dir), NULL, 0) == 0 && gs_dirs_make(dir, NULL, 0) == 0)
        snprintf(out, n, "%s/gamasot.conf", dir);
    else
        out[0] = '\0';
}

static int find(const gs_config *cfg, places *out, char *err, size_t errlen) {
    int rc = gs_dirs_state(out->state, sizeof(out->state), err, errlen);
    if (rc == 0)
        rc = gs_keys_path(cfg, out->keys, sizeof(out->keys), err, errlen);
    snprintf(out->folder, sizeof(out->folder), "%s",
             cfg->store_folder[0] ? cfg->store_folder : out->state);
    if (rc == 0)
        rc = gs_dirs_make(out->folder, err, errlen);
    find_config(cfg, out->config, sizeof(out->config));
    out->p = (gs_backup_places){.folder = out->folder,
                                .state = out->state,
                                .keys = out->keys,
                                .config = out->config,
                                .check_keys = check_keys};
    return rc;
}

static void say_what(const char *did, const gs_backup_info *i) {
    char when[32] = "";
    struct tm tm;
    time_t t = (time_t)i->made_s;
    if (i->made_s > 0 && localtime_r(&t, &tm))
        strftime(when, sizeof(when), " of %Y-%m-%d %H:%M", &tm);
    printf("%s: database version %d, %d files, %.1f MB%s%s%s\n", did, i->schema, i->n_files,
           (double)i->bytes / 1e6, i->version[0] ? ", gamasot " : "", i->version, when);
}

static int backup(const places *at, const char *file, char *err, size_t errlen) {
    gs_backup_info info;
    int rc = gs_backup_write(&at->p, file, &info, err, errlen);
    if (rc == 0)
        say_what("kept", &info);
    return rc;
}

static int restore(const places *at, const char *file, char *err, size_t errlen) {
    gs_backup_info info;
    int rc = gs_backup_restore(&at->p, file, &info, err, errlen);
    if (rc == 0)
        say_what("restored", &info);
    else if (rc == GS_ERR_UNAVAILABLE)
        fprintf(stderr, "gamasot: stop the server first\n");
    if (info.before[0])
        fprintf(rc == 0 ? stdout : stderr, "what was there before is in %s\n", info.before);
    return rc;
}

static int run(const char *name, int argc, char **argv,
               int (*work)(const places *, const char *, char *, size_t)) {
    gs_config cfg;
    static places at;
    char err[640] = "";
    int rc = gs_cli_config(&cfg, gs_cli_command(name), argc, argv, NULL, 0, err, sizeof(err));
    if (rc == 0 && cfg.n_positional != 1)
        rc = gs_fail(err, sizeof(err), GS_ERR_INVALID, "say which file");
    if (rc == 0)
        rc = find(&cfg, &at, err, sizeof(err));
    if (rc == 0)
        rc = work(&at, cfg.positional[0], err, sizeof(err));
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return rc >= 0 ? 0 : rc == GS_ERR_INVALID ? 2 : 1;
}

int gs_cmd_backup(int argc, char **argv) {
    return run("backup", argc, argv, backup);
}

int gs_cmd_restore(int argc, char **argv) {
    return run("restore", argc, argv, restore);
}
