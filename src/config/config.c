/* The table as data, the sources in their order, and flags. */
#include "config/config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/sys.h"
#include "config/config_impl.h"
#include "config/dirs.h"

#define ENV_PREFIX "GAMASOT_"

static const gs_config_option options[GS_CONFIG_N] = {
#define X(section_, name_, kind_, alias_, def_, min_, max_, choices_, flags_, help_)               \
    {.name = #section_ "." #name_,                                                                 \
     .section = #section_,                                                                         \
     .alias = alias_,                                                                              \
     .kind = GS_CONFIG_##kind_,                                                                    \
     .offset = offsetof(gs_config, section_##_##name_),                                            \
     .def = def_,                                                                                  \
     .min = min_,                                                                                  \
     .max = max_,                                                                                  \
     .choices = choices_,                                                                          \
     .flags = flags_,                                                                              \
     .help = help_},
    GS_CONFIG_OPTIONS(X)
#undef X
};

const gs_config_option *gs_config_option_at(size_t i) {
    return i < GS_CONFIG_N ? &options[i] : NULL;
}

const gs_config_option *gs_config_option_find(const char *name) {
    for (size_t i = 0; i < GS_CONFIG_N; i++)
        if (strcmp(options[i].name, name) == 0)
            return &options[i];
    return NULL;
}

void *gs_config_field(gs_config *cfg, const gs_config_option *o) {
    return (char *)cfg + o->offset;
}

const void *gs_config_field_const(const gs_config *cfg, const gs_config_option *o) {
    return (const char *)cfg + o->offset;
}

int gs_config_apply(gs_config *cfg, size_t i, gs_config_source source, const char *text, char *err,
                    size_t errlen) {
    const gs_config_option *o = &options[i];
    bool append = cfg->source[i] == source;
    int rc = gs_config_value_parse(o, text, append, gs_config_field(cfg, o), err, errlen);
    if (rc == GS_OK)
        cfg->source[i] = (uint8_t)source;
    return rc;
}

int gs_config_set(gs_config *cfg, const char *name, const char *value, char *err, size_t errlen) {
    const gs_config_option *o = gs_config_option_find(name);
    if (!o) {
        char hint[128];
        gs_config_suggest(name, false, NULL, 0, hint, sizeof hint);
        return gs_fail(err, errlen, GS_ERR_NOT_FOUND, "unknown option '%.80s'%s", name, hint);
    }
    int rc = gs_config_value_parse(o, value, false, gs_config_field(cfg, o), err, errlen);
    if (rc == GS_OK)
        cfg->source[o - options] = GS_CONFIG_FROM_SET;
    return rc;
}

void gs_config_for_model(const gs_config *cfg, const gs_config_model *model, gs_config *out) {
    *out = *cfg; /* its strings and lists are borrowed: of sections' settings none are (file.c) */
    if (model->own_prefix_files)
        out->prefix_files = model->prefix_files;
    for (size_t i = 0; i < model->n; i++) {
        int rc = gs_config_set(out, model->keys[i], model->values[i], NULL, 0);
        GS_ASSERT(rc == GS_OK); /* it was tried when the file was read */
    }
}

int gs_config_init(gs_config *cfg) {
    *cfg = (gs_config){0};
    for (size_t i = 0; i < GS_CONFIG_N; i++) {
        const gs_config_option *o = &options[i];
        int rc = gs_config_value_parse(o, o->def, false, gs_config_field(cfg, o), NULL, 0);
        GS_ASSERT(rc == GS_OK || rc == GS_ERR_NOMEM); /* the table's own defaults are valid */
        if (rc != GS_OK)
            return rc;
    }
    return GS_OK;
}

void gs_config_deinit(gs_config *cfg) {
    for (size_t i = 0; i < GS_CONFIG_N; i++)
        gs_config_value_free(&options[i], gs_config_field(cfg, &options[i]));
    for (size_t i = 0; i < cfg->n_aliases; i++) {
        gs_free(cfg->aliases[i].name);
        gs_free(cfg->aliases[i].model);
        gs_free(cfg->aliases[i].class_name);
    }
    gs_free(cfg->aliases);
    for (size_t i = 0; i < cfg->n_models; i++) {
        gs_config_model *m = &cfg->models[i];
        for (size_t k = 0; k < m->n; k++) {
            gs_free(m->keys[k]);
            gs_free(m->values[k]);
        }
        gs_free(m->keys);
        gs_free(m->values);
        gs_config_value_free(&options[GS_OPT_prefix_files], &m->prefix_files);
        gs_free(m->name);
        gs_free(m->path);
    }
    gs_free(cfg->models);
    for (size_t i = 0; i < cfg->n_workers; i++)
        gs_config_worker_deinit(&cfg->workers[i]);
    gs_free(cfg->workers);
    gs_free(cfg->file);
    gs_free(cfg->positional);
    *cfg = (gs_config){0};
}

/* ---- Nearest name -------------------------------------------------------------------------- */

#define MAX_NAME 64

/* Edits (insert, delete, replace) that turn a into b, or SIZE_MAX if it is plain that they are as
 * many as bound: V. Levenshtein 1966, two rows. */
static size_t edit_distance(const char *a, const char *b, size_t bound) {
    size_t rows[2][MAX_NAME + 1];
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > MAX_NAME || n_b > MAX_NAME || (n_a > n_b ? n_a - n_b : n_b - n_a) >= bound)
        return SIZE_MAX;
    for (size_t k = 0; k <= n_b; k++)
        rows[0][k] = k;
    for (size_t i = 1; i <= n_a; i++) {
        const size_t *above = rows[(i - 1) & 1];
        size_t *row = rows[i & 1];
        size_t least = row[0] = i;
        for (size_t k = 1; k <= n_b; k++) {
            size_t best = above[k - 1] + (a[i - 1] != b[k - 1]);
            if (above[k] + 1 < best)
                best = above[k] + 1;
            if (row[k - 1] + 1 < best)
                best = row[k - 1] + 1;
            row[k] = best;
            least = best < least ? best : least;
        }
        if (least >= bound) /* no row below holds less */
            return SIZE_MAX;
    }
    return rows[n_a & 1][n_b];
}

static void nearer(const char *typed, const char *known, size_t *best, const char **name) {
    size_t d = edit_distance(typed, known, *best);
    if (d < *best) {
        *best = d;
        *name = known;
    }
}

void gs_config_suggest(const char *name, bool aliases, const gs_config_flag *flags, size_t n_flags,
                       char *out, size_t outlen) {
    const char *near = NULL;
    size_t best = strlen(name) / 3 + 2; /* farther than that is no misspelling */
    for (size_t i = 0; i < GS_CONFIG_N; i++) {
        nearer(name, options[i].name, &best, &near);
        if (aliases && options[i].alias)
            nearer(name, options[i].alias, &best, &near);
        /* the right name without its section */
        if (!strchr(name, '.') && strcmp(strchr(options[i].name, '.') + 1, name) == 0) {
            near = options[i].name;
            best = 0;
        }
    }
    for (size_t i = 0; i < n_flags; i++)
        nearer(name, flags[i].name, &best, &near);
    if (near)
        snprintf(out, outlen, "; did you mean '%s%s'?", aliases ? "--" : "", near);
    else
        snprintf(out, outlen, "%s", aliases ? "; see --help" : "");
}

/* ---- Environment --------------------------------------------------------------------------- */

/* "server.max_body_kb" -> "GAMASOT_SERVER_MAX_BODY_KB" */
static void env_name(const gs_config_option *o, char out[MAX_NAME + 16]) {
    int n = snprintf(out, MAX_NAME + 16, ENV_PREFIX "%s", o->name);
    for (int i = (int)sizeof ENV_PREFIX - 1; i < n && i < MAX_NAME + 15; i++)
        out[i] = o->name[i - (int)sizeof ENV_PREFIX + 1] == '.' ? '_' : (char)toupper(out[i]);
}

/* Variables that are no options: read elsewhere, or free for tests and scripts. */
static bool env_reserved(const char *name, size_t len) {
    static const char *const names[] = {"CONFIG", "FAULT", "ISA"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
            return true;
    return strncmp(name, "TEST_", 5) == 0;
}

static int env_unknown(const char *name, int len, char *err, size_t errlen) {
    char known[MAX_NAME + 16];
    char typed[MAX_NAME + 16];
    const char *near = "";
    size_t best = SIZE_MAX;
    snprintf(typed, sizeof typed, "%.*s", len, name);
    for (size_t i = 0; i < GS_CONFIG_N; i++) {
        const char *found = NULL;
        env_name(&options[i], known);
        nearer(typed + sizeof ENV_PREFIX - 1, known + sizeof ENV_PREFIX - 1, &best, &found);
        if (found)
            near = options[i].name;
    }
    const gs_config_option *o = gs_config_option_find(near);
    if (!o || best > strlen(typed) / 3)
        return gs_fail(err, errlen, GS_ERR_INVALID, "environment: %s names no option", typed);
    env_name(o, known);
    return gs_fail(err, errlen, GS_ERR_INVALID, "environment: %s names no option; did you mean %s?",
                   typed, known);
}

static int read_env(gs_config *cfg, char *err, size_t errlen) {
    size_t n_prefix = strlen(ENV_PREFIX);
    for (char **e = environ; e && *e; e++) {
        size_t len = strcspn(*e, "=");
        if (strncmp(*e, ENV_PREFIX, n_prefix) != 0 || (*e)[len] != '=' ||
            env_reserved(*e + n_prefix, len - n_prefix))
            continue;
        size_t i = 0;
        char name[MAX_NAME + 16] = "";
        for (; i < GS_CONFIG_N; i++) {
            env_name(&options[i], name);
            if (strlen(name) == len && memcmp(name, *e, len) == 0)
                break;
        }
        if (i == GS_CONFIG_N)
            return env_unknown(*e, (int)(len < 200 ? len : 200), err, errlen);
        char why[512];
        int rc = gs_config_apply(cfg, i, GS_CONFIG_FROM_ENV, *e + len + 1, why, sizeof why);
        if (rc != GS_OK)
            return gs_fail(err, errlen, rc, "environment: %s: %s", name, why);
    }
    return GS_OK;
}

/* ---- Flags --------------------------------------------------------------------------------- */

/* One flag of the command line, kept until file and environment have been read. */
typedef struct given {
    size_t option;
    const char *value; /* borrowed from argv */
} given;

typedef struct flag_parser {
    gs_config *cfg;
    char **argv;
    int argc, at;
    given *given; /* [argc] */
    size_t n_given;
    const char *config_file;
    gs_config_flag *flags;
    size_t n_flags;
    char *err;
    size_t errlen;
} flag_parser;

/* The flag's name without dashes and "=value", with - as _ where the table writes _. */
static bool flag_is(const char *typed, size_t len, const char *known) {
    if (strlen(known) != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (typed[i] != known[i] && !(typed[i] == '-' && known[i] == '_'))
            return false;
    return true;
}

/* The value after "=", or the next argument unless that is a flag itself. */
static int flag_value(flag_parser *p, const char *typed, size_t len, const char **value) {
    if (typed[len] == '=')
        *value = typed + len + 1;
    else if (p->at + 1 < p->argc && strncmp(p->argv[p->at + 1], "--", 2) != 0)
        *value = p->argv[++p->at];
    else
        return gs_fail(p->err, p->errlen, GS_ERR_INVALID, "--%s needs a value", typed);
    return GS_OK;
}

static int flag_option(flag_parser *p, const char *typed, size_t len, bool *found) {
    for (size_t i = 0; i < GS_CONFIG_N; i++) {
        const gs_config_option *o = &options[i];
        if (!flag_is(typed, len, o->name) && !(o->alias && flag_is(typed, len, o->alias)))
            continue;
        given *g = &p->given[p->n_given];
        g->option = i;
        g->value = "true";
        *found = true;
        if (o->kind != GS_CONFIG_BOOL || typed[len] == '=') {
            int rc = flag_value(p, typed, len, &g->value);
            if (rc != GS_OK)
                return rc;
        }
        p->n_given++;
        return GS_OK;
    }
    return GS_OK;
}

/* --help, --version, --config and the command's own flags. */
static int flag_other(flag_parser *p, const char *typed, size_t len, bool *found) {
    *found = true;
    if (strcmp(typed, "help") == 0) {
        p->cfg->want_help = true;
        return GS_OK;
    }
    if (strcmp(typed, "version") == 0) {
        p->cfg->want_version = true;
        return GS_OK;
    }
    if (flag_is(typed, len, "config"))
        return flag_value(p, typed, len, &p->config_file);
    for (size_t i = 0; i < p->n_flags; i++) {
        gs_config_flag *f = &p->flags[i];
        if (!flag_is(typed, len, f->name))
            continue;
        if (f->arg)
            return flag_value(p, typed, len, &f->value);
        if (typed[len] == '=')
            return gs_fail(p->err, p->errlen, GS_ERR_INVALID, "--%s takes no value", f->name);
        f->value = "";
        return GS_OK;
    }
    *found = false;
    return GS_OK;
}

static int flag_parse(flag_parser *p, const char *typed) {
    size_t len = strcspn(typed, "=");
    bool found = false;
    int rc = flag_other(p, typed, len, &found);
    if (rc == GS_OK && !found)
        rc = flag_option(p, typed, len, &found);
    if (rc != GS_OK || found)
        return rc;
    char name[MAX_NAME + 1];
    char hint[128];
    snprintf(name, sizeof name, "%.*s", (int)(len < MAX_NAME ? len : MAX_NAME), typed);
    for (char *c = name; *c; c++)
        if (*c == '-' && strchr(name, '.')) /* aliases have dashes, full names have none */
            *c = '_';
    gs_config_suggest(name, true, p->flags, p->n_flags, hint, sizeof hint);
    return gs_fail(p->err, p->errlen, GS_ERR_INVALID, "unknown flag --%s%s", name, hint);
}

static int parse_flags(flag_parser *p) {
    bool ended = false;
    for (p->at = 1; p->at < p->argc; p->at++) {
        char *arg = p->argv[p->at];
        int rc = GS_OK;
        if (ended || arg[0] != '-' || arg[1] == '\0')
            p->cfg->positional[p->cfg->n_positional++] = arg;
        else if (strcmp(arg, "--") == 0)
            ended = true;
        else if (strcmp(arg, "-h") == 0)
            p->cfg->want_help = true;
        else if (arg[1] == '-')
            rc = flag_parse(p, arg + 2);
        else
            rc = gs_fail(p->err, p->errlen, GS_ERR_INVALID, "unknown flag %.20s; see --help", arg);
        if (rc != GS_OK)
            return rc;
    }
    return GS_OK;
}

/* ---- Load ---------------------------------------------------------------------------------- */

/* A file that is named must be there; those in the usual places may be missing. */
static int read_config_file(gs_config *cfg, const char *named, char *err, size_t errlen) {
    char path[GS_DIRS_MAX_PATH];
    const char *env = getenv(ENV_PREFIX "CONFIG");
    if (named)
        return gs_config_read_file(cfg, named, err, errlen);
    if (env && *env)
        return gs_config_read_file(cfg, env, err, errlen);
    if (gs_dirs_config(path, sizeof path, NULL, 0) == GS_OK) {
        size_t n = strlen(path);
        if (n + sizeof "/gamasot.conf" <= sizeof path) {
            memcpy(path + n, "/gamasot.conf", sizeof "/gamasot.conf");
            if (access(path, F_OK) == 0)
                return gs_config_read_file(cfg, path, err, errlen);
        }
    }
    if (access("/etc/gamasot/gamasot.conf", F_OK) == 0)
        return gs_config_read_file(cfg, "/etc/gamasot/gamasot.conf", err, errlen);
    return GS_OK;
}

static int apply_flags(flag_parser *p) {
    for (size_t i = 0; i < p->n_given; i++) {
        char why[512];
        int rc = gs_config_apply(p->cfg, p->given[i].option, GS_CONFIG_FROM_FLAG, p->given[i].value,
                                 why, sizeof why);
        if (rc != GS_OK)
            return gs_fail(p->err, p->errlen, rc, "--%s", why);
    }
    return GS_OK;
}

int gs_config_load(gs_config *cfg, int argc, char **argv, gs_config_flag *flags, size_t n_flags,
                   char *err, size_t errlen) {
    flag_parser p = {.cfg = cfg,
                     .argv = argv,
                     .argc = argc,
                     .flags = flags,
                     .n_flags = n_flags,
                     .err = err,
                     .errlen = errlen};
    int rc = gs_config_init(cfg);
    if (rc == GS_OK) {
        size_t n = argc > 0 ? (size_t)argc : 1;
        cfg->positional = gs_calloc(n, sizeof *cfg->positional);
        p.given = gs_calloc(n, sizeof *p.given);
    }
    if (!cfg->positional || !p.given) {
        rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory for the configuration");
        goto out;
    }
    rc = parse_flags(&p);
    if (rc != GS_OK || cfg->want_help || cfg->want_version)
        goto out;
    rc = read_config_file(cfg, p.config_file, err, errlen);
    if (rc == GS_OK)
        rc = read_env(cfg, err, errlen);
    if (rc == GS_OK)
        rc = apply_flags(&p);
    if (rc == GS_OK)
        rc = gs_config_read_keys(cfg, err, errlen);
out:
    gs_free(p.given);
    return rc;
}

static void wipe_in(char *text, const char *secret) {
    const size_t n = strlen(secret);
    for (char *at = n > 0 ? strstr(text, secret) : NULL; at; at = strstr(at + n, secret))
        memset(at, '*', n);
}

void gs_config_wipe_secrets(gs_config *cfg, int argc, char **argv) {
    for (size_t i = 0; i < GS_CONFIG_N; i++) {
        const gs_config_option *o = &options[i];
        if (!(o->flags & GS_CONFIG_SECRET) || o->kind != GS_CONFIG_LIST)
            continue;
        gs_config_list *l = (gs_config_list *)(void *)((char *)cfg + o->offset);
        for (size_t k = 0; k < l->n; k++) {
            for (int a = 0; a < argc; a++)
                wipe_in(argv[a], l->items[k]);
            for (char **e = environ; e && *e; e++)
                wipe_in(*e, l->items[k]);
            explicit_bzero(l->items[k], strlen(l->items[k]));
        }
    }
}

static bool is_loopback(const char *host) {
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6);
    return strcmp(host, "localhost") == 0;
}

int gs_config_check_serve(const gs_config *cfg, bool has_keys, char *err, size_t errlen) {
    for (size_t i = 0; i < cfg->server_host.n && !has_keys; i++)
        if (!is_loopback(cfg->server_host.items[i]))
            return gs_fail(err, errlen, GS_ERR_INVALID,
                           "server.host: %.60s can be reached from other machines; make a key "
                           "first (gamasot keys add NAME, or server.api_keys)",
                           cfg->server_host.items[i]);
    return GS_OK;
}
