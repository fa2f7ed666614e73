/* gamasot models: what is there, what is to come, what is to go. Works on the folder of models
 * itself; a server that runs beside it notices. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "cli/cli.h"
#include "config/dirs.h"
#include "pull/pull.h"

#define TRIES   5 /* in a row without a byte */
#define SHOW_NS (100 * GS_NS_PER_MS)

typedef struct models_args {
    gs_config cfg;
    char folder[GS_DIRS_MAX_PATH];
    const char *as, *sha256;
    bool json;
} models_args;

int gs_models_folder(const gs_config *cfg, char *out, size_t outlen, char *err, size_t errlen) {
    char data[GS_DIRS_MAX_PATH];
    int n;
    if (cfg->models_folder[0]) {
        n = snprintf(out, outlen, "%s", cfg->models_folder);
    } else {
        int rc = gs_dirs_data(data, sizeof(data), err, errlen);
        if (rc != 0)
            return rc;
        n = snprintf(out, outlen, "%s/models", data);
    }
    if (n < 0 || (size_t)n >= outlen || n > 3000) /* room for files in it */
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "models.folder: the path is too long");
    return gs_dirs_make(out, err, errlen);
}

gs_pull_config gs_models_pull_config(const gs_config *cfg, const char *folder) {
    return (gs_pull_config){.sources = {.hosts = {(const char *const *)cfg->models_hosts.items,
                                                  (int)cfg->models_hosts.n},
                                        .registry_url = cfg->models_registry_url,
                                        .hf_url = cfg->models_hf_url},
                            .folder = folder,
                            .min_free_bytes = (int64_t)cfg->models_min_free_mb << 20,
                            .n_tries = TRIES,
                            .pause_ms = (int)cfg->models_retry_ms};
}

static int fail(const char *err) {
    fprintf(stderr, "gamasot: %s\n", err);
    return 1;
}

/* ---- list ------------------------------------------------------------------------------------ */

static void print_model(const gs_model_spec *s, gs_jsonw *json) {
    char when[32] = "";
    struct tm tm;
    const time_t t = (time_t)s->modified_s;
    if (gmtime_r(&t, &tm))
        strftime(when, sizeof(when), "%Y-%m-%d", &tm);
    if (!json) {
        printf("%-48s %9.1f MB  %-8s %-8s %s\n", s->name, (double)s->facts.file_bytes / 1e6,
               s->facts.parameter_size, s->facts.quantization, when);
        return;
    }
    gs_jsonw_obj(json);
    gs_jsonw_key(json, "name");
    gs_jsonw_str(json, s->name);
    gs_jsonw_key(json, "path");
    gs_jsonw_str(json, s->path);
    gs_jsonw_key(json, "bytes");
    gs_jsonw_int(json, (int64_t)s->facts.file_bytes);
    gs_jsonw_key(json, "architecture");
    gs_jsonw_str(json, s->facts.architecture);
    gs_jsonw_key(json, "parameters");
    gs_jsonw_int(json, (int64_t)s->facts.n_params);
    gs_jsonw_key(json, "quantization");
    gs_jsonw_str(json, s->facts.quantization);
    gs_jsonw_key(json, "modified");
    gs_jsonw_int(json, s->modified_s);
    gs_jsonw_end_obj(json);
}

static int list(const models_args *x, char **arg, char *err, size_t errlen) {
    (void)arg;
    gs_model_spec **specs;
    int n;
    gs_buf out = {0};
    gs_jsonw w;
    int rc = gs_model_list_all(&x->cfg, &specs, &n, err, errlen);
    gs_jsonw_init(&w, &out);
    gs_jsonw_arr(&w);
    if (rc == 0 && !x->json)
        printf("%-48s %12s  %-8s %-8s %s\n", "NAME", "SIZE", "WEIGHTS", "TYPE", "CHANGED");
    for (int i = 0; i < n; i++)
        print_model(specs[i], x->json ? &w : NULL);
    gs_jsonw_end_arr(&w);
    if (rc == 0 && x->json)
        printf("%.*s\n", (int)out.len, out.data ? out.data : "");
    gs_buf_deinit(&out);
    gs_model_list_free(specs, n);
    return rc;
}

/* ---- pull ------------------------------------------------------------------------------------ */

static void *pull_main(void *arg) {
    gs_pull_run(arg);
    return NULL;
}

static void show(const gs_pull *p, bool last) {
    int64_t done = 0, total = 0;
    if (!isatty(STDERR_FILENO) || atomic_load(&p->phase) == GS_PULL_ASKING)
        return;
    for (int i = 0; i < p->n_parts; i++) {
        done += atomic_load(&p->parts[i].n_done);
        const int64_t bytes = atomic_load(&p->parts[i].bytes);
        total += bytes > 0 ? bytes : 0;
    }
    fprintf(stderr, "\r%s  %.1f of %.1f MB%s", p->name, (double)done / 1e6, (double)total / 1e6,
            last ? "\n" : "  ");
}

static int pull(const models_args *x, char **arg, char *err, size_t errlen) {
    gs_pull_config pc = gs_models_pull_config(&x->cfg, x->folder);
    gs_pull *p = NULL;
    pthread_t thread;
    pc.source = arg[0];
    pc.name = x->as;
    pc.sha256 = x->sha256;
    pc.local = true;
    int rc = gs_pull_create(&pc, &p, err, errlen);
    if (rc != 0)
        return rc;
    if (pthread_create(&thread, NULL, pull_main, p) != 0) {
        gs_pull_free(p);
        return gs_fail(err, errlen, GS_ERR_NOMEM, "could not start a thread");
    }
    while (atomic_load(&p->phase) != GS_PULL_ENDED) {
        nanosleep(&(struct timespec){.tv_nsec = SHOW_NS / 10}, NULL);
        show(p, false);
    }
    pthread_join(thread, NULL);
    show(p, true);
    rc = p->code;
    if (rc != 0)
        gs_fail_text(err, errlen, "%s", p->err);
    else
        printf("%s\n", p->name);
    if (rc == 0 && p->up_to_date)
        fprintf(stderr, "%s is up to date\n", p->name);
    gs_pull_free(p);
    return rc;
}

/* ---- rm, copy, inspect ------------------------------------------------------------------------
 */

/* The model of the list that arg names; its path into path. */
static int find(const models_args *x, const char *want, char path[GS_DIRS_MAX_PATH],
                char name[GS_MODEL_NAME_BYTES], char *err, size_t errlen) {
    gs_model_spec **specs;
    gs_name_match best = GS_NAME_NO;
    int n, n_best = 0;
    int rc = gs_model_list_all(&x->cfg, &specs, &n, err, errlen);
    for (int i = 0; i < n; i++) {
        const gs_name_match m = gs_model_name_match(want, specs[i]->name);
        if (m == GS_NAME_NO || m < best)
            continue;
        n_best = m > best ? 1 : n_best + 1;
        best = m;
        snprintf(path, GS_DIRS_MAX_PATH, "%s", specs[i]->path);
        snprintf(name, GS_MODEL_NAME_BYTES, "%s", specs[i]->name);
    }
    if (rc == 0 && n_best == 0)
        rc =
            gs_fail(err, errlen, GS_ERR_NOT_FOUND,
                    "there is no model '%.100s'; `gamasot models list` says which there are", want);
    if (rc == 0 && n_best > 1)
        rc = gs_fail(err, errlen, GS_ERR_INVALID, "several models are called '%.100s'", want);
    gs_model_list_free(specs, n);
    return rc;
}

static int rm(const models_args *x, char **arg, char *err, size_t errlen) {
    return gs_pull_remove(x->folder, arg[0], err, errlen);
}

static int copy(const models_args *x, char **arg, char *err, size_t errlen) {
    char path[GS_DIRS_MAX_PATH], name[GS_MODEL_NAME_BYTES];
    int rc = find(x, arg[0], path, name, err, errlen);
    return rc != 0 ? rc
                   : gs_pull_copy(x->folder, path, arg[1], (int64_t)x->cfg.models_min_free_mb << 20,
                                  err, errlen);
}

static int inspect(const models_args *x, char **arg, char *err, size_t errlen) {
    char path[GS_DIRS_MAX_PATH], name[GS_MODEL_NAME_BYTES];
    if (access(arg[0], F_OK) == 0 || strchr(arg[0], '/'))
        return gs_models_inspect(arg[0], err, errlen);
    int rc = find(x, arg[0], path, name, err, errlen);
    return rc != 0 ? rc : gs_models_inspect(path, err, errlen);
}

static int recommend(const models_args *x, char **arg, char *err, size_t errlen) {
    return gs_models_recommend(&x->cfg, arg, x->cfg.n_positional - 1, x->json, err, errlen);
}

/* ---- The command ------------------------------------------------------------------------------
 */

static const struct {
    const char *name, *args;
    int n_args;  /* -1: any number */
    bool folder; /* needs the folder that models are pulled into */
    int (*run)(const models_args *x, char **arg, char *err, size_t errlen);
    const char *help;
} actions[] = {
    {"list", "", 0, false, list, "the models there are (--json)"},
    {"pull", "SOURCE", 1, true, pull,
     "bring a model here: a URL, a file, hf:OWNER/REPO/FILE.gguf or NAME[:TAG] of a registry "
     "(--as NAME, --sha256 HEX)"},
    {"rm", "NAME", 1, true, rm, "remove a model that was pulled"},
    {"copy", "NAME NEW", 2, true, copy, "give a model a second name"},
    {"recommend", "[FILE...]", -1, false, recommend,
     "what this machine can carry, and how fast (--json); or how fast these files would be"},
    {"inspect", "FILE|NAME", 1, false, inspect,
     "what a GGUF file holds, and whether it can be served"},
};

static int usage(FILE *f) {
    fprintf(f, "usage: gamasot models ACTION\n\n");
    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        fprintf(f, "  %-9s %-10s %s\n", actions[i].name, actions[i].args, actions[i].help);
    return f == stdout ? 0 : 2;
}

static int run_action(models_args *x, char *err, size_t errlen) {
    char **word = x->cfg.positional;
    const int n = x->cfg.n_positional;
    for (size_t i = 0; n > 0 && i < sizeof(actions) / sizeof(actions[0]); i++) {
        if (strcmp(word[0], actions[i].name) != 0)
            continue;
        if (actions[i].n_args >= 0 && n - 1 != actions[i].n_args)
            break;
        int rc = actions[i].folder
                     ? gs_models_folder(&x->cfg, x->folder, sizeof(x->folder), err, errlen)
                     : 0;
        if (rc == 0)
            rc = actions[i].run(x, word + 1, err, errlen);
        return rc == 0 ? 0 : fail(err);
    }
    return usage(stderr);
}

int gs_cmd_models(int argc, char **argv) {
    static models_args x;
    gs_config_flag flags[] = {
        {.name = "as", .arg = "NAME", .help = "name of the pulled model"},
        {.name = "sha256", .arg = "HEX", .help = "what the pulled file must have"},
        {.name = "json", .help = "for programs"},
    };
    char err[1024] = "";
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return usage(stdout);
    int rc = gs_cli_config(&x.cfg, gs_cli_command("models"), argc, argv, flags,
                           sizeof(flags) / sizeof(flags[0]), err, sizeof(err));
    x.as = flags[0].value;
    x.sha256 = flags[1].value;
    x.json = flags[2].value != NULL;
    int status = 0;
    if (rc == 0) {
        gs_log_set_level(GS_LOG_ERROR);
        status = run_action(&x, err, sizeof(err));
    } else if (rc < 0) {
        status = fail(err) + 1;
    }
    gs_config_deinit(&x.cfg);
    return status;
}
