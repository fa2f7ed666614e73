/* A worker's section of the configuration -> addresses, certificates, key and placement. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"
#include "worker/worker_impl.h"

static int refuse(const gs_worker *w, int code, const char *field, const char *why, char *err,
                  size_t errlen) {
    return gs_fail(err, errlen, code, "worker %s: %s: %s", w->cfg.name, field, why);
}

/* ---- The key ------------------------------------------------------------------------------- */

static bool is_key(const char *key) {
    for (const char *p = key; *p; p++)
        if (*p <= ' ' || *p > '~')
            return false;
    return key[0] != '\0';
}

/* The first line of the file, which must be a header's text. */
static int read_key(const gs_worker *w, char *err, size_t errlen) {
    char *key = w->impl->key;
    if (!w->cfg.key_file[0])
        return 0;
    const int fd = open(w->cfg.key_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t n = fd >= 0 ? gs_read(fd, key, GS_WORKER_MAX_KEY) : -1;
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return refuse(w, GS_ERR_IO, "key_file", "the file can't be read", err, errlen);
    key[n] = '\0';
    key[strcspn(key, "\r\n")] = '\0';
    if (!is_key(key) || n == GS_WORKER_MAX_KEY)
        return refuse(w, GS_ERR_INVALID, "key_file", "its first line is no key", err, errlen);
    return 0;
}

/* ---- Classes and hours --------------------------------------------------------------------- */

static int read_classes(const gs_worker *w, const char *field, const gs_config_list *list,
                        uint32_t *out, char *err, size_t errlen) {
    for (size_t i = 0; i < list->n; i++) {
        const int c = gs_class_parse(list->items[i]);
        if (c < 0)
            return refuse(w, GS_ERR_INVALID, field, "there is a name that is no class", err,
                          errlen);
        *out |= 1u << c;
    }
    return 0;
}

/* "background 22:00-07:00; document sat, sun" */
static int read_class_hours(const gs_worker *w, char *err, size_t errlen) {
    char part[256], why[160];
    for (const char *at = w->cfg.class_schedule; *at;) {
        const size_t n = strcspn(at, ";");
        at += strspn(at, " ");
        snprintf(part, sizeof(part), "%.*s", (int)n, at);
        part[strcspn(part, ";")] = '\0';
        const size_t name = strcspn(part, " ");
        const char *hours = part + name + (part[name] == ' ');
        part[name] = '\0';
        const int c = gs_class_parse(part);
        if (c < 0)
            return refuse(w, GS_ERR_INVALID, "class_schedule", "a part does not begin with a class",
                          err, errlen);
        if (gs_schedule_parse(hours, &w->impl->desc.class_hours[c], why, sizeof(why)) != 0)
            return refuse(w, GS_ERR_INVALID, "class_schedule", why, err, errlen);
        at += strcspn(at, ";");
        at += *at == ';';
    }
    return 0;
}

/* ---- Models -------------------------------------------------------------------------------- */

static bool has_model(const gs_worker *w, uint32_t model) {
    for (int i = 0; i < w->n_models; i++)
        if (w->models[i].model == model)
            return true;
    return false;
}

bool gs_worker_add_model(gs_worker *w, const char *name, size_t n, const char *its_name) {
    char text[sizeof(w->models[0].its_name)];
    if (n == 0 || n >= sizeof(text) || strlen(its_name) >= sizeof(text))
        return false;
    snprintf(text, sizeof(text), "%.*s", (int)n, name);
    const uint32_t model = gs_workers_model_number(w->impl->ws, text);
    if (has_model(w, model))
        return true;
    if (model == 0 || w->n_models == GS_PLACE_MODELS)
        return false;
    gs_worker_model *m = &w->models[w->n_models++];
    m->model = model;
    snprintf(m->its_name, sizeof(m->its_name), "%s", its_name);
    return true;
}

static int read_models(gs_worker *w, char *err, size_t errlen) {
    for (size_t i = 0; i < w->cfg.models.n; i++) {
        const char *text = w->cfg.models.items[i];
        const size_t n = strcspn(text, "=");
        const char *its_name = text[n] == '=' ? text + n + 1 : text;
        if (strpbrk(text, "\"\\") || !gs_worker_add_model(w, text, n, its_name))
            return refuse(w, GS_ERR_INVALID, "models", "an item is no NAME or NAME=ITS-NAME", err,
                          errlen);
    }
    return 0;
}

/* ---- All of it ----------------------------------------------------------------------------- */

static int set_place(gs_worker *w, char *err, size_t errlen) {
    gs_place_worker *d = &w->impl->desc;
    char why[320];
    gs_place_worker_defaults(GS_WORKER_REMOTE, d);
    snprintf(d->name, sizeof(d->name), "%s", w->cfg.name);
    d->takes = d->prefers = 0;
    int rc = read_classes(w, "classes", &w->cfg.classes, &d->takes, err, errlen);
    if (rc == 0)
        rc = read_classes(w, "prefers", &w->cfg.prefers, &d->prefers, err, errlen);
    if (rc == 0 && gs_schedule_parse(w->cfg.schedule, &d->hours, why, sizeof(why)) != 0)
        rc = refuse(w, GS_ERR_INVALID, "schedule", why, err, errlen);
    if (rc == 0)
        rc = read_class_hours(w, err, errlen);
    d->prefers &= d->takes;
    d->fallback = (gs_fallback)w->cfg.fallback;
    d->max_seqs = w->cfg.max_sequences;
    d->max_tokens = w->cfg.max_tokens;
    d->price = w->cfg.price;
    d->prioritises = w->cfg.priority;
    d->drain_ns = w->cfg.drain_ms * GS_NS_PER_MS;
    d->can_power_on = w->cfg.power_on[0] || w->cfg.wake_mac[0];
    d->power_ahead_ns = w->cfg.power_ahead_ms * GS_NS_PER_MS;
    d->probe_every_ns = w->cfg.probe_ms * GS_NS_PER_MS;
    d->probe_timeout_ns = w->cfg.timeout_ms * GS_NS_PER_MS;
    d->stall_ns = w->cfg.answer_ms * GS_NS_PER_MS;
    return rc;
}

int gs_worker_set_up(gs_worker *w, char *err, size_t errlen) {
    struct gs_worker_impl *x = w->impl;
    const char *ca = w->cfg.ca_file[0] ? w->cfg.ca_file : NULL;
    char why[320];
    int rc = gs_config_worker_check(&w->cfg, err, errlen);
    if (rc == 0 && w->cfg.wake_mac[0] && !gs_worker_mac_ok(w->cfg.wake_mac))
        rc = refuse(w, GS_ERR_INVALID, "wake_mac", "it is no address such as 01:23:45:67:89:ab",
                    err, errlen);
    if (rc == 0 && gs_http_url_split(w->cfg.url, &x->url, why, sizeof(why)) != 0)
        rc = refuse(w, GS_ERR_INVALID, "url", why, err, errlen);
    if (rc == 0 && x->url.tls && gs_tls_context_create(ca, &x->tls, why, sizeof(why)) != 0)
        rc = refuse(w, GS_ERR_IO, "ca_file", why, err, errlen);
    if (rc == 0)
        rc = read_key(w, err, errlen);
    if (rc == 0)
        rc = set_place(w, err, errlen);
    return rc == 0 ? read_models(w, err, errlen) : rc;
}
