#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/sys.h"
#include "cli/cli.h"
#include "config/dirs.h"
#include "pull/names.h"

#define MAX_MODELS 256 /* of sections and folders */
/* What a model's attention cache takes at least, for the budget, when nothing says how much. */
#define LEAST_KV_BYTES ((uint64_t)64 << 20)
#define MAX_DIRS       19

/* What tells that a file is another one than before. */
typedef struct stamp {
    int64_t mtime_ns, bytes;
    uint64_t inode;
} stamp;

/* One model of the list: what it is to be loaded with. */
typedef struct known {
    gs_model_spec spec;
    gs_config cfg; /* borrows all but path and name from the server's */
    stamp stamp;   /* zeros: no file there */
    char path[GS_DIRS_MAX_PATH];
    char name[GS_MODEL_NAME_BYTES];
} known;

/* The list while it is made. */
typedef struct scan {
    const gs_config *cfg;
    gs_model_spec *const *old; /* [n_old] */
    int n_old;
    gs_model_spec **v; /* [n] */
    int n;
} scan;

/* ---- What there is --------------------------------------------------------------------------- */

static bool is_named(const scan *x, const char *name) {
    for (int i = 0; i < x->n; i++)
        if (strcmp(x->v[i]->name, name) == 0)
            return true;
    return false;
}

static stamp read_stamp(const char *path) {
    struct stat st;
    if (!path[0] || stat(path, &st) != 0)
        return (stamp){0};
    return (stamp){.mtime_ns = (int64_t)st.st_mtim.tv_sec * GS_NS_PER_S + st.st_mtim.tv_nsec,
                   .bytes = st.st_size,
                   .inode = st.st_ino};
}

/* The one that was read before, if its file is still the same. */
static gs_model_spec *find_old(const scan *x, const char *name, const char *path,
                               const stamp *now) {
    for (int i = 0; i < x->n_old; i++) {
        const known *k = x->old[i]->impl;
        if (strcmp(k->name, name) == 0 && strcmp(k->path, path) == 0 &&
            k->stamp.mtime_ns == now->mtime_ns && k->stamp.bytes == now->bytes &&
            k->stamp.inode == now->inode)
            return x->old[i];
    }
    return NULL;
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

static int add(scan *x, const gs_config_model *section, const char *name, const char *path) {
    static const gs_config_model none;
    const stamp now = read_stamp(path);
    gs_model_spec *old = find_old(x, name, path, &now);
    if (old) {
        x->v[x->n++] = old;
        return 0;
    }
    known *k = gs_calloc(1, sizeof(*k));
    if (!k)
        return GS_ERR_NOMEM;
    gs_config_for_model(x->cfg, section ? section : &none, &k->cfg);
    snprintf(k->name, sizeof(k->name), "%s", name);
    snprintf(k->path, sizeof(k->path), "%s", path);
    k->cfg.model_name = k->name;
    k->cfg.model_path = k->path;
    k->stamp = now;
    k->spec = (gs_model_spec){.name = k->name,
                              .path = k->path,
                              .modified_s = now.mtime_ns / GS_NS_PER_S,
                              .pinned = k->cfg.model_pinned,
                              .keep_ns = k->cfg.model_keep_alive_ms < 0
                                             ? GS_KEEP_FOREVER
                                             : k->cfg.model_keep_alive_ms * GS_NS_PER_MS,
                              .bytes = (uint64_t)k->cfg.kv_memory_mb << 20,
                              .impl = k};
    x->v[x->n++] = &k->spec;
    const bool fake = k->cfg.model_backend == GS_CONFIG_BACKEND_FAKE;
    if (fake && !path[0])
        return 0;
    if (k->spec.bytes == 0 && !fake)
        k->spec.bytes = LEAST_KV_BYTES;
    read_file(&k->spec, k);
    if (k->cfg.model_context > 0)
        k->spec.context = k->cfg.model_context;
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
    add_folder(f, cfg->models_folder, "");
    for (size_t i = 0; i < cfg->model_dirs.n; i++)
        add_folder(f, cfg->model_dirs.items[i], "");
    if (cfg->model_backend == GS_CONFIG_BACKEND_FAKE)
        return; /* tests know what they are given */
    if (!cfg->models_folder[0] && gs_dirs_data(dir, sizeof(dir), NULL, 0) == 0)
        add_folder(f, dir, "/models");
    if (gs_dirs_cache(dir, sizeof(dir), NULL, 0) == 0)
        add_folder(f, dir, "/models");
}

static bool same_file(const char *a, const char *b) {
    char x[PATH_MAX], y[PATH_MAX];
    return realpath(a, x) && realpath(b, y) && strcmp(x, y) == 0;
}

static bool is_listed_file(const scan *x, const char *path) {
    for (int i = 0; i < x->n; i++)
        if (same_file(x->v[i]->path, path))
            return true;
    return false;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int filter(const struct dirent *e) {
    return gs_model_is_file(e->d_name);
}

static int add_files(scan *x, const char *dir, const char *first) {
    struct dirent **entries = NULL;
    int rc = 0, n = scandir(dir, &entries, filter, by_name);
    for (int i = 0; i < n; i++) {
        char path[GS_DIRS_MAX_PATH + 260], name[GS_MODEL_NAME_BYTES];
        snprintf(path, sizeof(path), "%s/%s", dir, entries[i]->d_name);
        gs_model_name_of_path(path, name);
        if (rc == 0 && x->n < MAX_MODELS && strlen(path) < GS_DIRS_MAX_PATH && !is_named(x, name) &&
            !same_file(first, path) && !is_listed_file(x, path))
            rc = add(x, NULL, name, path);
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

/* The compute threads of the first model are those of all. */
static void keep_pool(gs_model_list *list) {
    if (!list->pool)
        list->pool = gs_loader_pool(list->first);
    list->first->shared = &list->pool;
}

/* Of what the walls are, access() knows nothing. */
static bool is_walled_off(const char *path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool refused = fd < 0 && errno == EACCES;
    if (fd >= 0)
        close(fd);
    return refused;
}

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
                     .state = list->first->state,
                     .shared = &list->pool,
                     .room = room == UINT64_MAX ? 0 : room,
                     .percent = percent};
    int rc = gs_loader_load(l, &out->backend, err, errlen);
    if (rc != 0) {
        if (k->path[0] && is_walled_off(k->path))
            gs_fail_text(err, errlen,
                         "%s may not be read by this server: another file came in its place, "
                         "outside of the folders of models (server.sandbox); start it anew",
                         k->path);
        gs_loader_close(l);
        gs_free(l);
        return rc;
    }
    /* Without them it is slower the first time, no worse. */
    gs_backend_info info;
    char why[256] = "";
    out->backend->ops->info(out->backend, &info);
    if (!info.whole_prompts && gs_prefixes_load(l, out->backend, why, sizeof(why)) == 0)
        out->prefixes = &l->prefixes;
    else if (!info.whole_prompts)
        gs_warn("models", "name=%s %s", k->name, why);
    out->served = &l->served;
    out->cost = k->cfg.model_backend == GS_CONFIG_BACKEND_NATIVE ? &l->cost : NULL;
    out->prepare = gs_loader_prepare;
    out->prepare_arg = l;
    out->bytes = l->served.bytes;
    out->impl = l;
    return 0;
}

static void release(void *arg, gs_loaded_model *m) {
    gs_model_list *list = arg;
    gs_loader *l = m->impl;
    if (m->backend)
        m->backend->ops->destroy(m->backend);
    if (l == list->first)
        keep_pool(list);
    if (l)
        gs_loader_close(l);
    if (l != list->first)
        gs_free(l);
    *m = (gs_loaded_model){0};
}

/* ---- Lists ------------------------------------------------------------------------------------
 */

static void drop(void *arg, gs_model_spec *s) {
    (void)arg;
    gs_model_facts_deinit(&s->facts);
    gs_free(s->impl);
}

static bool is_old(const scan *x, const gs_model_spec *s) {
    for (int i = 0; i < x->n_old; i++)
        if (x->old[i] == s)
            return true;
    return false;
}

static int add_first(scan *x, const char *path) {
    char name[GS_MODEL_NAME_BYTES];
    gs_model_name_of_path(path, name);
    if (x->cfg->model_name[0] || x->cfg->model_backend == GS_CONFIG_BACKEND_FAKE)
        snprintf(name, sizeof(name), "%s", x->cfg->model_name[0] ? x->cfg->model_name : "fake");
    int rc = add(x, NULL, name, path);
    if (rc != 0)
        return rc;
    x->v[0]->first = x->v[0]->pinned = true;
    x->v[0]->keep_ns = GS_KEEP_FOREVER;
    return 0;
}

/* The first one, unless that is "" or not there; sections; folders. */
static int make_list(scan *x, const char *first) {
    folders *f = gs_calloc(1, sizeof(*f));
    char found[GS_DIRS_MAX_PATH + 64];
    x->v = gs_calloc(MAX_MODELS, sizeof(gs_model_spec *));
    int rc = f && x->v ? 0 : GS_ERR_NOMEM;
    if (rc == 0)
        find_folders(x->cfg, f);
    if (rc == 0 && first[0] && access(first, R_OK) == 0)
        rc = add_first(x, first);
    for (size_t i = 0; i < x->cfg->n_models && rc == 0; i++) {
        const gs_config_model *m = &x->cfg->models[i];
        const bool given = m->path[0] != '\0';
        gs_config own;
        gs_config_for_model(x->cfg, m, &own);
        if (!given && (own.model_backend == GS_CONFIG_BACKEND_FAKE ||
                       !find_file(f, m->name, found, sizeof(found))))
            found[0] = '\0';
        rc = add(x, m, m->name, given ? m->path : found);
    }
    for (int i = 0; rc == 0 && i < f->n; i++)
        rc = add_files(x, f->dir[i], first);
    gs_free(f);
    for (int i = 0; rc != 0 && i < x->n; i++)
        if (!is_old(x, x->v[i]))
            drop(NULL, x->v[i]);
    if (rc != 0) {
        gs_free(x->v);
        x->v = NULL;
        x->n = 0;
    }
    return rc;
}

static int scan_again(void *arg, gs_model_spec *const *old, int n_old, gs_model_spec ***out,
                      int *n) {
    const gs_model_list *l = arg;
    scan x = {.cfg = l->cfg, .old = old, .n_old = n_old};
    char first[GS_DIRS_MAX_PATH + 64] = "";
    if (l->cfg->model_backend != GS_CONFIG_BACKEND_FAKE || l->cfg->model_path[0])
        gs_model_path(l->cfg, first, sizeof(first), NULL, 0);
    int rc = make_list(&x, first);
    *out = x.v;
    *n = x.n;
    return rc;
}

int gs_model_list_all(const gs_config *cfg, gs_model_spec ***out, int *n, char *err,
                      size_t errlen) {
    scan x = {.cfg = cfg};
    int rc = make_list(&x, "");
    *out = x.v;
    *n = x.n;
    return rc == 0 ? 0 : gs_fail(err, errlen, rc, "%s", gs_err_text(rc));
}

void gs_model_list_free(gs_model_spec **specs, int n) {
    for (int i = 0; i < n; i++)
        drop(NULL, specs[i]);
    gs_free(specs);
}

/* A section without a path, and without a file of its name, is a mistake. */
static int check_sections(const gs_config *cfg, char *err, size_t errlen) {
    folders *f = gs_calloc(1, sizeof(*f));
    char found[GS_DIRS_MAX_PATH + 64];
    int rc = f ? 0 : gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    if (rc == 0)
        find_folders(cfg, f);
    for (size_t i = 0; i < cfg->n_models && rc == 0; i++) {
        const gs_config_model *m = &cfg->models[i];
        gs_config own;
        gs_config_for_model(cfg, m, &own);
        if (own.model_backend != GS_CONFIG_BACKEND_FAKE && !m->path[0] &&
            !find_file(f, m->name, found, sizeof(found)))
            rc = gs_fail(err, errlen, GS_ERR_NOT_FOUND,
                         "model %s: no path is given, and there is no %s.gguf in the folders of "
                         "models",
                         m->name, m->name);
    }
    gs_free(f);
    return rc;
}

int gs_model_list_init(gs_model_list *l, const gs_config *cfg, gs_loader *first, char *err,
                       size_t errlen) {
    *l = (gs_model_list){.cfg = cfg, .first = first};
    l->loading = (gs_model_loading){.arg = l,
                                    .first = first,
                                    .load = load,
                                    .release = release,
                                    .scan = scan_again,
                                    .drop = drop};
    l->memory_bytes = cfg->memory_budget_mb > 0 ? (uint64_t)cfg->memory_budget_mb << 20
                                                : gs_memory_available() / 5 * 4;
    return check_sections(cfg, err, errlen);
}

void gs_model_list_deinit(gs_model_list *l) {
    if (l->pool != gs_loader_pool(l->first))
        gs_pool_free(l->pool);
    *l = (gs_model_list){0};
}
