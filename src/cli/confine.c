#include "cli/confine.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sandbox.h"
#include "base/sys.h"
#include "config/dirs.h"

/* What libc and the machine's own description need. Of other processes nothing is read. */
static const gs_sandbox_rule always[] = {
    {"/dev/null", GS_SANDBOX_WRITE},          {"/dev/urandom", GS_SANDBOX_READ},
    {"/etc/localtime", GS_SANDBOX_READ},      {"/usr/share/zoneinfo", GS_SANDBOX_READ},
    {"/usr/share/gamasot", GS_SANDBOX_READ}, /* models of packages */
    {"/proc/self", GS_SANDBOX_READ},          {"/proc/cpuinfo", GS_SANDBOX_READ},
    {"/proc/meminfo", GS_SANDBOX_READ},       {"/proc/stat", GS_SANDBOX_READ},
    {"/sys/devices/system", GS_SANDBOX_READ}, {"/sys/devices/virtual/powercap", GS_SANDBOX_READ},
    {"/sys/class/powercap", GS_SANDBOX_READ}, {"/sys/fs/cgroup", GS_SANDBOX_READ},
};

/* What names and certificates of other machines are looked up in. */
static const gs_sandbox_rule connecting[] = {
    {"/etc/resolv.conf", GS_SANDBOX_READ},
    {"/run/systemd/resolve", GS_SANDBOX_READ},
    {"/etc/hosts", GS_SANDBOX_READ},
    {"/etc/nsswitch.conf", GS_SANDBOX_READ},
    {"/etc/host.conf", GS_SANDBOX_READ},
    {"/etc/gai.conf", GS_SANDBOX_READ},
    {"/etc/services", GS_SANDBOX_READ},
    {"/etc/ssl", GS_SANDBOX_READ},
    {"/usr/lib/ssl", GS_SANDBOX_READ},
    {"/usr/share/ca-certificates", GS_SANDBOX_READ},
    {"/usr/lib", GS_SANDBOX_READ}, /* name services that libc loads */
    {"/proc/sys/kernel/random/boot_id", GS_SANDBOX_READ},
};

/* What commands that switch a machine on are found in. */
static const gs_sandbox_rule executing[] = {
    {"/bin", GS_SANDBOX_EXECUTE},          {"/usr/bin", GS_SANDBOX_EXECUTE},
    {"/sbin", GS_SANDBOX_EXECUTE},         {"/usr/sbin", GS_SANDBOX_EXECUTE},
    {"/usr/lib", GS_SANDBOX_EXECUTE},      {"/lib", GS_SANDBOX_EXECUTE},
    {"/lib64", GS_SANDBOX_EXECUTE},        {"/usr/local/bin", GS_SANDBOX_EXECUTE},
    {"/etc/ld.so.cache", GS_SANDBOX_READ},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

typedef struct list {
    gs_sandbox_rule *rules; /* [n], paths owned */
    size_t n, size;
    bool failed;
} list;

static void add(list *l, const char *path, gs_sandbox_access access) {
    if (!path || !path[0])
        return;
    if (l->n == l->size) {
        const size_t size = l->size ? 2 * l->size : 32;
        gs_sandbox_rule *more = gs_realloc(l->rules, size * sizeof(*more));
        l->failed |= !more;
        if (!more)
            return;
        l->rules = more;
        l->size = size;
    }
    char *copy = gs_strdup(path);
    l->failed |= !copy;
    if (copy)
        l->rules[l->n++] = (gs_sandbox_rule){copy, access};
}

static void list_deinit(list *l) {
    for (size_t i = 0; i < l->n; i++)
        gs_free((void *)(uintptr_t)l->rules[i].path);
    gs_free(l->rules);
}

/* A file that is replaced by another of the same name is still that file: its folder counts. */
static void add_folder_of(list *l, const char *path) {
    char folder[GS_DIRS_MAX_PATH];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == folder)
        slash++;
    if (slash)
        *slash = '\0';
    add(l, slash ? folder : ".", GS_SANDBOX_READ);
}

/* A link in a folder of models may lead out of it. */
static void add_models(list *l, const char *folder) {
    DIR *d = folder[0] ? opendir(folder) : NULL;
    add(l, folder, GS_SANDBOX_READ);
    for (const struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        char path[GS_DIRS_MAX_PATH + 260];
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (e->d_type == DT_LNK)
            add(l, path, GS_SANDBOX_READ);
    }
    if (d)
        closedir(d);
}

static void add_models_below(list *l, int (*dir_of)(char *, size_t, char *, size_t)) {
    char dir[GS_DIRS_MAX_PATH], models[GS_DIRS_MAX_PATH + 8];
    if (dir_of(dir, sizeof(dir), NULL, 0) != 0)
        return;
    snprintf(models, sizeof(models), "%s/models", dir);
    add_models(l, models);
}

/* What one model's options name: the server's own, or those of a section [model NAME]. */
static void add_options(list *l, const gs_config *c) {
    add(l, c->model_path, GS_SANDBOX_READ);
    add(l, c->fake_script, GS_SANDBOX_READ);
    add(l, c->fake_template, GS_SANDBOX_READ);
    for (size_t i = 0; i < c->prefix_files.n; i++)
        add(l, c->prefix_files.items[i], GS_SANDBOX_READ);
}

/* Only who lends work to other machines reaches any. */
static unsigned allowed(const gs_config *cfg) {
    const bool connects = cfg->n_workers > 0 || cfg->server_add_workers;
    unsigned allow = connects ? GS_SANDBOX_CONNECT : 0;
    for (size_t i = 0; i < cfg->n_workers; i++)
        if (cfg->workers[i].power_on[0])
            allow |= GS_SANDBOX_EXEC;
    return allow;
}

static void add_rules(list *l, const gs_sandbox_rule *rules, size_t n) {
    for (size_t i = 0; i < n; i++)
        add(l, rules[i].path, rules[i].access);
}

/* It is read again on SIGHUP. A folder of gamasot's own counts as a whole, so that the file may be
 * replaced by another; of another folder nothing but the file. */
static void add_configuration(list *l, const gs_config *cfg) {
    static const char own[] = "/gamasot/";
    const char *slash = cfg->file ? strrchr(cfg->file, '/') : NULL;
    const size_t n = slash ? (size_t)(slash - cfg->file) + 1 : 0;
    if (n >= sizeof(own) - 1 && strncmp(slash + 1 - (sizeof(own) - 1), own, sizeof(own) - 1) == 0)
        add_folder_of(l, cfg->file);
    else
        add(l, cfg->file, GS_SANDBOX_READ);
}

static void add_workers(list *l, const gs_config *cfg) {
    for (size_t i = 0; i < cfg->n_workers; i++) {
        add(l, cfg->workers[i].key_file, GS_SANDBOX_READ);
        add(l, cfg->workers[i].ca_file, GS_SANDBOX_READ);
    }
    add_configuration(l, cfg);
    if (allowed(cfg) & GS_SANDBOX_CONNECT)
        add_rules(l, connecting, COUNT(connecting));
    if (allowed(cfg) & GS_SANDBOX_EXEC)
        add_rules(l, executing, COUNT(executing));
}

static void collect(list *l, const gs_config *cfg, const gs_confine_paths *p) {
    char dir[GS_DIRS_MAX_PATH];
    add_rules(l, always, COUNT(always));
    add(l, p->state, GS_SANDBOX_WRITE);
    add(l, p->models, GS_SANDBOX_WRITE);
    add(l, cfg->record_folder, GS_SANDBOX_WRITE);
    if (gs_dirs_state(dir, sizeof(dir), NULL, 0) == 0) /* device.json */
        add(l, dir, GS_SANDBOX_WRITE);
    if (p->keys_file[0])
        add_folder_of(l, p->keys_file);
    add_options(l, cfg);
    for (size_t i = 0; i < cfg->model_dirs.n; i++)
        add_models(l, cfg->model_dirs.items[i]);
    for (size_t i = 0; i < cfg->n_models; i++) {
        gs_config own;
        gs_config_for_model(cfg, &cfg->models[i], &own);
        add(l, cfg->models[i].path, GS_SANDBOX_READ);
        add_options(l, &own);
    }
    add_workers(l, cfg);
    add_models_below(l, gs_dirs_data);
    add_models_below(l, gs_dirs_cache);
}

void gs_confine_puller(const gs_config *cfg, const char *models) {
    static const gs_sandbox_rule own[] = {{"/dev/null", GS_SANDBOX_WRITE},
                                          {"/dev/urandom", GS_SANDBOX_READ}};
    char err[GS_DIRS_MAX_PATH + 64] = "";
    list l = {0};
    if (!cfg->server_sandbox)
        return;
    add_rules(&l, own, COUNT(own));
    add_rules(&l, connecting, COUNT(connecting));
    add(&l, getenv("SSL_CERT_FILE"), GS_SANDBOX_READ);
    add(&l, models, GS_SANDBOX_WRITE);
    int rc = l.failed ? gs_fail(err, sizeof(err), GS_ERR_NOMEM, "out of memory")
                      : gs_sandbox_harden(err, sizeof(err));
    if (rc == 0)
        rc = gs_sandbox_files(l.rules, l.n, GS_SANDBOX_CONNECT, err, sizeof(err));
    if (rc == 0)
        rc = gs_sandbox_calls(GS_SANDBOX_CONNECT, err, sizeof(err));
    if (rc != 0)
        gs_warn("serve", "not all walls around the process that fetches models: %s", err);
    list_deinit(&l);
}

void gs_confine_files(const gs_config *cfg, const gs_confine_paths *paths) {
    char err[GS_DIRS_MAX_PATH + 64] = "";
    list l = {0};
    if (!cfg->server_sandbox)
        return;
    collect(&l, cfg, paths);
    int rc = l.failed ? gs_fail(err, sizeof(err), GS_ERR_NOMEM, "out of memory")
                      : gs_sandbox_harden(err, sizeof(err));
    if (rc == 0)
        rc = gs_sandbox_files(l.rules, l.n, allowed(cfg), err, sizeof(err));
    if (rc != 0)
        gs_warn("serve", "no walls around files: %s", err);
    list_deinit(&l);
}

void gs_confine_calls(const gs_config *cfg) {
    char err[256] = "";
    if (cfg->server_sandbox && gs_sandbox_calls(allowed(cfg), err, sizeof(err)) != 0)
        gs_warn("serve", "no walls around system calls: %s", err);
}
