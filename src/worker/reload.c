/* The configuration has been read again: from the workers there are to those it has now. */
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "worker/worker_impl.h"

static bool same_list(const gs_config_list *a, const gs_config_list *b) {
    for (size_t i = 0; i < a->n && a->n == b->n; i++)
        if (strcmp(a->items[i], b->items[i]) != 0)
            return false;
    return a->n == b->n;
}

/* Whether what is known about the one holds for the other. */
static bool same_machine(const gs_config_worker *a, const gs_config_worker *b) {
    return strcmp(a->url, b->url) == 0 && a->dialect == b->dialect && a->priority == b->priority &&
           same_list(&a->models, &b->models);
}

/* w is as fresh from now on, which goes. What runs there has its connection already. */
static void take_over(gs_worker *w, gs_worker *fresh) {
    const gs_config_worker cfg = w->cfg;
    gs_tls_context *const tls = w->impl->tls;
    w->cfg = fresh->cfg;
    fresh->cfg = cfg;
    w->impl->tls = fresh->impl->tls;
    fresh->impl->tls = tls;
    memcpy(w->impl->key, fresh->impl->key, sizeof(w->impl->key));
    w->impl->desc = fresh->impl->desc;
    gs_worker_free(fresh);
    gs_worker_describe(w);
}

static bool is_among(gs_worker *const *list, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i]->name, name) == 0)
            return true;
    return false;
}

/* All are set up before anything changes. */
static int make_all(gs_workers *ws, gs_config_worker *list, size_t n, gs_worker **fresh,
                    size_t *n_fresh, char *err, size_t errlen) {
    int rc = 0;
    for (size_t i = 0; i < n; i++) {
        if (rc != 0) {
            gs_config_worker_deinit(&list[i]);
            continue;
        }
        gs_worker *w = gs_worker_create(ws, &list[i]);
        if (!w) {
            rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
            continue;
        }
        fresh[(*n_fresh)++] = w;
        rc = gs_worker_set_up(w, err, errlen);
    }
    return rc;
}

/* One that was removed and still has work keeps its place until it is done. */
static int check_room(const gs_workers *ws, gs_worker *const *fresh, size_t n, char *err,
                      size_t errlen) {
    size_t n_all = ws->local >= 0;
    for (const gs_worker *w = ws->first; w; w = w->next)
        n_all++;
    for (const gs_worker *w = ws->leaving; w; w = w->next)
        n_all++;
    for (size_t i = 0; i < n; i++) {
        const gs_worker *old = gs_workers_find(ws, fresh[i]->name);
        n_all += !old || !same_machine(&old->cfg, &fresh[i]->cfg);
    }
    return n_all <= GS_PLACE_WORKERS
               ? 0
               : gs_fail(err, errlen, GS_ERR_OVERLOADED,
                         "there are too many workers, with those that still have work");
}

static int put(gs_workers *ws, gs_worker *fresh, char *err, size_t errlen) {
    gs_worker *old = gs_workers_find(ws, fresh->name);
    if (old && same_machine(&old->cfg, &fresh->cfg)) {
        take_over(old, fresh);
        return 0;
    }
    if (old)
        gs_workers_remove(ws, old);
    const int rc = gs_worker_place(fresh, err, errlen);
    if (rc != 0)
        gs_worker_free(fresh);
    else
        gs_info("worker", "worker=%s %s", fresh->name, old ? "changed" : "added");
    return rc;
}

int gs_workers_reload(gs_workers *ws, gs_config_worker *list, size_t n, char *err, size_t errlen) {
    gs_worker *fresh[GS_CONFIG_MAX_WORKERS];
    size_t n_fresh = 0;
    int rc = make_all(ws, list, n, fresh, &n_fresh, err, errlen);
    if (rc == 0)
        rc = check_room(ws, fresh, n_fresh, err, errlen);
    if (rc != 0) {
        for (size_t i = 0; i < n_fresh; i++)
            gs_worker_free(fresh[i]);
        return rc;
    }
    for (gs_worker *w = ws->first, *next; w; w = next) {
        next = w->next;
        if (!w->cfg.added && !is_among(fresh, n_fresh, w->name))
            gs_workers_remove(ws, w);
    }
    for (size_t i = 0; i < n_fresh; i++) {
        const int one = put(ws, fresh[i], err, errlen);
        rc = rc == 0 ? one : rc;
    }
    return rc;
}
