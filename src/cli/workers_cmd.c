/* gamasot workers list|add|drain|resume|remove|reload: other machines that answer, of a running
 * server. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/jobs.h"

enum {
    F_CLASS,
    F_MODEL,
    F_KEY_FILE,
    F_CA_FILE,
    F_SEQUENCES,
    F_PRICE,
    F_SCHEDULE,
    F_URL,
    F_KEY,
    N_FLAGS
};

static const gs_config_flag flag_table[N_FLAGS] = {
    [F_CLASS] = {"class", "A,B,...",
                 "add: classes of requests that it gets; default: all but voice", NULL},
    [F_MODEL] = {"models", "A,B=C,...",
                 "add: models that it is asked for; default: all that it lists", NULL},
    [F_KEY_FILE] = {"key-file", "FILE",
                    "add: file of the server's machine with the key that it is sent", NULL},
    [F_CA_FILE] = {"ca-file", "FILE", "add: likewise, who signs its certificate", NULL},
    [F_SEQUENCES] = {"max-sequences", "N", "add: that run there at once; default: 4", NULL},
    [F_PRICE] = {"price", "N",
                 "add: what a second of it costs, in seconds of this machine; default: 1", NULL},
    [F_SCHEDULE] = {"schedule", "HOURS", "add: when it may be used; default: always", NULL},
    [F_URL] = {"url", "URL", "the server; default: this machine's", NULL},
    [F_KEY] = {"key", "KEY", "API key; default: GAMASOT_API_KEY", NULL},
};

/* Flags of add and the settings that they are. */
static const struct {
    int flag;
    const char *setting;
} settings[] = {{F_CLASS, "classes"},          {F_MODEL, "models"}, {F_KEY_FILE, "key_file"},
                {F_CA_FILE, "ca_file"},        {F_PRICE, "price"},  {F_SCHEDULE, "schedule"},
                {F_SEQUENCES, "max_sequences"}};

static const char *text(const json_t *v, const char *name) {
    const char *s = json_string_value(json_object_get(v, name));
    return s ? s : "";
}

static long long count(const json_t *v, const char *name) {
    return json_integer_value(json_object_get(v, name));
}

static void print_workers(const json_t *root) {
    const json_t *list = json_object_get(root, "workers");
    if (json_array_size(list) == 0)
        printf("no workers\n");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i);
        printf("%-16s %-9s %-12s %-8s %lld of %lld running, %lld done, %lld faults%s%s\n",
               text(w, "name"), text(w, "state"), text(w, "dialect"), text(w, "origin"),
               count(w, "running"), count(w, "max_sequences"), count(w, "done"), count(w, "faults"),
               text(w, "failure")[0] ? "; " : "", text(w, "failure"));
    }
}

/* The body of add. NULL: no memory. */
static json_t *new_worker(const gs_config_flag *flags, const char *name, const char *url) {
    json_t *v = json_pack("{s:s,s:s}", "name", name, "url", url);
    for (size_t i = 0; v && i < sizeof(settings) / sizeof(settings[0]); i++) {
        const char *value = flags[settings[i].flag].value;
        if (value && json_object_set_new(v, settings[i].setting, json_string(value)) != 0) {
            json_decref(v);
            return NULL;
        }
    }
    return v;
}

typedef struct verb {
    const char *name, *method, *suffix;
    int n_args;
} verb;

static const verb verbs[] = {{"list", "GET", "", 0},         {"add", "POST", "", 2},
                             {"drain", "POST", "/drain", 1}, {"resume", "POST", "/resume", 1},
                             {"remove", "DELETE", "", 1},    {"reload", "POST", "/reload", 0}};

static const verb *find_verb(const gs_config *cfg) {
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        if (cfg->n_positional == verbs[i].n_args + 1 &&
            strcmp(cfg->positional[0], verbs[i].name) == 0)
            return &verbs[i];
    return NULL;
}

static int run(const gs_config *cfg, const gs_config_flag *flags, const verb *v, char *err,
               size_t errlen) {
    gs_http_target target;
    gs_http_answer a = {0};
    char path[128];
    json_t *body = NULL;
    char *sent = NULL;
    int rc = gs_jobs_target(cfg, flags[F_URL].value, flags[F_KEY].value, &target, err, errlen);
    snprintf(path, sizeof(path), "/v1/workers%s%.40s%s", v->n_args == 1 ? "/" : "",
             v->n_args == 1 ? cfg->positional[1] : "", v->suffix);
    if (rc == 0 && v->n_args == 2) {
        body = new_worker(flags, cfg->positional[1], cfg->positional[2]);
        sent = body ? json_dumps(body, JSON_COMPACT) : NULL;
        if (!sent)
            rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    }
    if (rc == 0)
        rc = gs_http_call(&target, v->method, path, sent, sent ? strlen(sent) : 0, &a, err, errlen);
    json_t *root = rc == 0 ? json_loadb(a.body.data ? a.body.data : "", a.body.len, 0, NULL) : NULL;
    if (rc == 0 && a.status == 200 && root) {
        print_workers(root);
    } else if (rc == 0) {
        gs_jobs_error_text(&a, err, errlen);
        rc = GS_ERR_INVALID;
    }
    json_decref(root);
    json_decref(body);
    free(sent);
    gs_http_answer_deinit(&a);
    return rc;
}

int gs_cmd_workers(int argc, char **argv) {
    gs_config cfg;
    gs_config_flag flags[N_FLAGS];
    char err[512] = "";
    memcpy(flags, flag_table, sizeof(flags));
    int rc = gs_cli_config(&cfg, gs_cli_command("workers"), argc, argv, flags, N_FLAGS, err,
                           sizeof(err));
    if (rc == 0) {
        const verb *v = find_verb(&cfg);
        rc = v ? run(&cfg, flags, v, err, sizeof(err))
               : gs_fail(err, sizeof(err), GS_ERR_INVALID,
                         "say list, add NAME URL, drain NAME, resume NAME, remove NAME or reload");
    }
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot workers: %s\n", err);
    return rc < 0 ? 1 : 0;
}
