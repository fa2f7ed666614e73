#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/sys.h"
#include "cli/cli.h"
#include "config/dirs.h"

#define MAX_MODELS 256 /* of sections and folders */
/* What a model's attention cache takes at least, for the budget, when nothing says how much. */
#define LEAST_KV_BYTES ((uint64_t)64 << 20)
#define MAX_DIRS       18

/* One model of the list: what it is to be loaded with. */
typedef struct known {
    gs_config cfg; /* borrows all but path and name from the server's */
    char path[GS_DIRS_MAX_PATH];
    char name[128];
} known;

/* ---- What there is --------------------------------------------------------------------------- */

static bool is_named(const gs_model_list *l, const char *name) {
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->specs[i].name, name) == 0)
            return true;
    return false;
}

/* Reads what the file says of itself; a file that can't be read is listed all the same, and says
 * why once it is asked for. */
static void read_file(gs_model_spec *s, const known *k) {
    char err[256] = "", key[96];
    gs_gguf *g = NULL;
    int64_t context = 0;
    int rc = gs_gguf_open(k->path, &g, err, sizeof(err));
    if (rc == 0)
        rc = gs_model_facts_read(g, NULL, &s->facts);
    if (rc != 0) {
        gs_warn("models", "%s: %s", k->path, err[0] ? err : gs_err_text(rc));
    } else {
        snprintf(key, sizeof(key), "%s.context_length", s->facts.architecture);
        gs_gguf_get_i64(g, key, &context, NULL, 0);
        s->context = context > 0 && context < INT32_MAX ? (int32_t)context : 0;
        s->bytes += s->facts.file_bytes;
    }
    gs_gguf_close(g);
}

static int add(gs_model_list *l, const gs_config *cfg, const gs_config_model *section,
               const char *name, const char *path) {
    known *k = gs_calloc(1, sizeof(*k));
    if (!k)
        return GS_ERR_NOMEM;
    static const gs_config_model none;
    gs_config_for_model(cfg, section ? section : &none, &k->cfg);
    snprintf(k->name, sizeof(k->name), "%s", name);
    snprintf(k->path, sizeof(k->path), "%s", path);
    k->cfg.model_name = k->name;
    k->cfg.model_path = k->path;
    gs_model_spec *s = &l->specs[l->n++];
    *s = (gs_model_spec){.name = k->name,
                         .pinned = k->cfg.model_pinned,
                         .keep_ns = k->cfg.model_keep_alive_ms < 0
                                        ? GS_KEEP_FOREVER
                                        : k->cfg.model_keep_alive_ms * GS_NS_PER_MS,
                         .bytes = (uint64_t)k->cfg.kv_memory_mb << 20,
                         .impl = k};
    if (k->cfg.model_backend == GS_CONFIG_BACKEND_FAKE)
        return 0;
    if (s->bytes == 0)
        s->bytes = LEAST_KV_BYTES;
    read_file(s, k);
    if (k->cfg.model_context > 0)
        s->context = k->cfg.model_context;
    return 0;
}

/* ---- Folders --------------------------------------------------------------------------------- */

typedef struct folders {
    char dir[MAX_DIRS][GS_DIRS_MAX_PATH];
    int n;
} folders;

static void add_folder(folders *f, const char *base, const char *below) {
    if (f->n < MAX_DIRS && *base)
        snprintf(f->dir[f->n++], GS_DIRS_MAX_PATH, "%.4000s%s", base, below);
}

static void find_folders(const gs_config *cfg, folders *f) {
    char dir[GS_DIRS_MAX_PATH];
    for (size_t i = 0; i < cfg->model_dirs.n; i++)
        add_folder(f, cfg->model_dirs.items[i], "");
    if (cfg->model_backend == GS_CONFIG_BACKEND_FAKE)
        return; /* tests know what they are given */
    if (gs_dirs_data(dir, sizeof(dir), NULL, 0) == 0)
        add_folder(f, dir, "/models");
    if (gs_dirs_cache(dir, sizeof(dir), NULL, 0) == 0)
        add_folder(f, dir, "/models");
}

static bool is_gguf(const char *name) {
    size_t n = strlen(name);
    return n > 5 && name[0] != '.' && strcmp(name + n - 5, ".gguf") == 0;
}

static bool same_file(const char *a, const char *b) {
    char x[PATH_MAX], y[PATH_MAX];
    return realpath(a, x) && realpath(b, y) && strcmp(x, y) == 0;
}

static bool is_listed_file(const gs_model_list *l, const char *path) {
    for (int i = 0; i < l->n; i++)
        if (same_file(((const known *)l->specs[i].impl)->path, path))
            return true;
    return false;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int filter(const struct dirent *e) {
    return is_gguf(e->d_name);
}

static int add_files(gs_model_list *l, const gs_config *cfg, const char *dir, const char *first) {
    struct dirent **entries = NULL;
    int rc = 0, n = scandir(dir, &entries, filter, by_name);
    for (int i = 0; i < n; i++) {
        char path[GS_DIRS_MAX_PATH + 260], name[128];
        snprintf(path, sizeof(path), "%s/%s", dir, entries[i]->d_name);
        gs_model_file_name(path, name, sizeof(name));
        if (rc == 0 && l->n < MAX_MODELS && strlen(path) < GS_DIRS_MAX_PATH && !is_named(l, name) &&
            !is_listed_file(l, path) && !same_file(first, path))
            rc = add(l, cfg, NULL, name, path);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

/* The file of a section without a path. */
static bool find_file(const folders *f, const char *name, char *out, size_t n) {
    for (int i = 0; i < f->n; i++) {
        snprintf(out, n, "%.4000s/%s.gguf", f->dir[i], name);
        if (access(out, R_OK) == 0)
            return true;
    }
    return false;
}

/* ---- Loading --------------------------------------------------------------------------------- */

static int load(void *arg, const gs_model_spec *spec, uint64_t room, atomic_int *percent,
                gs_loaded_model *out, char *err, size_t errlen) {
    gs_model_list *list = arg;
    const known *k = spec->impl;
    gs_loader *l = gs_calloc(1, sizeof(*l));
    *out = (gs_loaded_model){0};
    if (!l)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    if (!list->pool)
        list->pool = gs_loader_pool(list->first);
    *l = (gs_loader){.cfg = &k->cfg,
                     .quiet = true,
                     .shared = &list->pool,
                     .room = room == UINT64_MAX ? 0 : room,
                     .percent = percent};
    int rc = gs_loader_load(l, &out->backend, err, errlen);
    if (rc != 0) {
        gs_loader_close(l);
        gs_free(l);
        return rc;
    }
    out->served = &l->served;
    out->cost = k->cfg.model_backend == GS_CONFIG_BACKEND_NATIVE ? &l->cost : NULL;
    out->prepare = gs_loader_prepare;
    out->prepare_arg = l;
    out->bytes = l->served.bytes;
    out->impl = l;
    return 0;
}

static void release(void *arg, gs_loaded_model *m) {
    (void)arg;
    gs_loader *l = m->impl;
    if (m->backend)
        m->backend->ops->destroy(m->backend);
    if (l)
        gs_loader_close(l);
    gs_free(l);
    *m = (gs_loaded_model){0};
}

/* ---- Create and free ------------------------------------------------------------------------- */

int gs_model_list_init(gs_model_list *l, const gs_config *cfg, gs_loader *first, char *err,
                       size_t errlen) {
    folders *f = gs_calloc(1, sizeof(*f));
    char path[GS_DIRS_MAX_PATH + 64] = "", found[GS_DIRS_MAX_PATH + 64];
    *l = (gs_model_list){.first = first};
    l->loading = (gs_model_loading){.arg = l, .load = load, .release = release};
    l->memory_bytes = cfg->memory_budget_mb > 0 ? (uint64_t)cfg->memory_budget_mb << 20
                                                : gs_memory_available() / 5 * 4;
    l->specs = gs_calloc(MAX_MODELS, sizeof(*l->specs));
    int rc = f && l->specs ? 0 : gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    if (rc == 0)
        find_folders(cfg, f);
    for (size_t i = 0; i < cfg->n_models && rc == 0; i++) {
        const gs_config_model *m = &cfg->models[i];
        gs_config own;
        gs_config_for_model(cfg, m, &own);
        const bool file = own.model_backend != GS_CONFIG_BACKEND_FAKE;
        if (file && !m->path[0] && !find_file(f, m->name, found, sizeof(found)))
            rc = gs_fail(err, errlen, GS_ERR_NOT_FOUND,
                         "model %s: no path is given, and there is no %s.gguf in the folders of "
                         "models",
                         m->name, m->name);
        else
            rc = add(l, cfg, m, m->name, m->path[0] || !file ? m->path : found);
    }
    if (cfg->model_backend != GS_CONFIG_BACKEND_FAKE)
        gs_model_path(cfg, path, sizeof(path), NULL, 0);
    for (int i = 0; rc == 0 && i < f->n; i++)
        rc = add_files(l, cfg, f->dir[i], path);
    gs_free(f);
    return rc;
}

void gs_model_list_deinit(gs_model_list *l) {
    for (int i = 0; i < l->n; i++) {
        gs_model_facts_deinit(&l->specs[i].facts);
        gs_free(l->specs[i].impl);
    }
    gs_free(l->specs);
    if (l->pool != gs_loader_pool(l->first))
        gs_pool_free(l->pool);
    *l = (gs_model_list){0};
}
