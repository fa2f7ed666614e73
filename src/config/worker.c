/* Sections [worker NAME]: one table says what there is; the file and the API set the same rows. */
#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "config/config_impl.h"

#define MAX_NAME 40 /* libinih cuts longer section names without a word */

static const gs_config_option options[] = {
#define X(name_, kind_, def_, min_, max_, choices_, help_)                                         \
    {.name = #name_,                                                                               \
     .kind = GS_CONFIG_##kind_,                                                                    \
     .offset = offsetof(gs_config_worker, name_),                                                  \
     .def = (def_),                                                                                \
     .min = (min_),                                                                                \
     .max = (max_),                                                                                \
     .choices = (choices_),                                                                        \
     .help = (help_)},
    GS_CONFIG_WORKER_OPTIONS(X)
#undef X
};
#define N_OPTIONS (sizeof options / sizeof options[0])

const gs_config_option *gs_config_worker_option_at(size_t i) {
    return i < N_OPTIONS ? &options[i] : NULL;
}

static void *field(gs_config_worker *w, const gs_config_option *o) {
    return (char *)w + o->offset;
}

int gs_config_worker_init(gs_config_worker *w, const char *name, char *err, size_t errlen) {
    const size_t len = strlen(name);
    *w = (gs_config_worker){0};
    if (len == 0 || len > MAX_NAME || strpbrk(name, " /\\\"'"))
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "worker '%.60s': a name has 1 to %d characters without blanks, slashes and "
                       "quotes",
                       name, MAX_NAME);
    w->name = gs_strdup(name);
    if (!w->name)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const int rc = gs_config_value_parse(&options[i], options[i].def, false,
                                             field(w, &options[i]), err, errlen);
        if (rc != GS_OK)
            return rc;
    }
    return GS_OK;
}

void gs_config_worker_deinit(gs_config_worker *w) {
    for (size_t i = 0; i < N_OPTIONS; i++)
        gs_config_value_free(&options[i], field(w, &options[i]));
    gs_free(w->name);
    gs_free(w->added);
    *w = (gs_config_worker){0};
}

int gs_config_worker_append(gs_config *cfg, gs_config_worker *w) {
    if (cfg->n_workers == GS_CONFIG_MAX_WORKERS)
        return GS_ERR_OVERLOADED;
    gs_config_worker *more = gs_realloc(cfg->workers, (cfg->n_workers + 1) * sizeof *more);
    if (!more)
        return GS_ERR_NOMEM;
    cfg->workers = more;
    cfg->workers[cfg->n_workers++] = *w;
    *w = (gs_config_worker){0};
    return GS_OK;
}

static int copy_list(const gs_config_list *from, gs_config_list *to) {
    *to = (gs_config_list){.items = gs_calloc(from->n + 1, sizeof *to->items)};
    if (!to->items)
        return GS_ERR_NOMEM;
    for (; to->n < from->n; to->n++)
        if (!(to->items[to->n] = gs_strdup(from->items[to->n])))
            return GS_ERR_NOMEM;
    return GS_OK;
}

int gs_config_worker_copy(const gs_config_worker *w, gs_config_worker *out) {
    int rc = GS_OK;
    *out = *w; /* the numbers; what is owned is made anew */
    out->name = gs_strdup(w->name);
    out->added = w->added ? gs_strdup(w->added) : NULL;
    if (!out->name || (w->added && !out->added))
        rc = GS_ERR_NOMEM;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const gs_config_option *o = &options[i];
        if (o->kind == GS_CONFIG_LIST)
            *(gs_config_list *)field(out, o) = (gs_config_list){0};
        else if (o->kind == GS_CONFIG_STRING || o->kind == GS_CONFIG_PATH)
            *(char **)field(out, o) = NULL;
    }
    for (size_t i = 0; rc == GS_OK && i < N_OPTIONS; i++) {
        const gs_config_option *o = &options[i];
        const void *from = (const char *)w + o->offset;
        void *to = field(out, o);
        switch (o->kind) {
        case GS_CONFIG_LIST:
            rc = copy_list(from, to);
            break;
        case GS_CONFIG_STRING:
        case GS_CONFIG_PATH:
            *(char **)to = gs_strdup(*(char *const *)from);
            rc = *(char **)to ? GS_OK : GS_ERR_NOMEM;
            break;
        default:
            break; /* numbers came with the struct */
        }
    }
    if (rc != GS_OK)
        gs_config_worker_deinit(out);
    return rc;
}

int gs_config_worker_set(gs_config_worker *w, const char *key, const char *value, char *err,
                         size_t errlen) {
    char why[320] = "";
    for (size_t i = 0; i < N_OPTIONS; i++) {
        if (strcmp(options[i].name, key) != 0)
            continue;
        const int rc = gs_config_value_parse(&options[i], value, false, field(w, &options[i]), why,
                                             sizeof why);
        return rc == GS_OK ? rc : gs_fail(err, errlen, rc, "worker %s: %s", w->name, why);
    }
    return gs_fail(err, errlen, GS_ERR_INVALID,
                   "worker %s: unknown option '%.64s'; see "
                   "docs/configuration.md",
                   w->name, key);
}

int gs_config_worker_check(const gs_config_worker *w, char *err, size_t errlen) {
    if (w->url[0] == '\0')
        return gs_fail(err, errlen, GS_ERR_INVALID, "worker %s: 'url' is missing", w->name);
    if (w->ca_file[0] && strncmp(w->url, "https://", 8) != 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "worker %s: 'ca_file' needs an https:// URL",
                       w->name);
    return GS_OK;
}
