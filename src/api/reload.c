#include "api/reload.h"

#include "api/api_impl.h"
#include "api/workers.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "config/config.h"

struct gs_reload {
    gs_reload *next;
    gs_api *api;
    gs_http_request *rq; /* NULL: nobody waits */
    uv_work_t work;
    gs_config now;
    int code;
    char err[600];
};

static void run(uv_work_t *w) {
    gs_reload *j = w->data;
    j->code = gs_config_reread(j->api->cfg.config, &j->now, j->err, sizeof(j->err));
}

/* What the walls that were put up at the start don't allow. */
static int check_walls(gs_reload *j) {
    const gs_config *c = j->api->cfg.config;
    gs_api_error e = {0};
    bool commands = !c->server_sandbox;
    if (j->now.n_workers > 0 && !gs_workers_may_connect(j->api, &e))
        return gs_fail(j->err, sizeof(j->err), e.code, "%s", e.message);
    for (size_t i = 0; i < c->n_workers; i++)
        commands |= c->workers[i].power_on[0] != '\0';
    for (size_t i = 0; i < j->now.n_workers; i++)
        if (j->now.workers[i].power_on[0] && !commands)
            return gs_fail(j->err, sizeof(j->err), GS_ERR_FORBIDDEN,
                           "worker %s: power_on: this server has given up the right to run "
                           "commands; it needs a restart",
                           j->now.workers[i].name);
    return 0;
}

static void apply(gs_reload *j) {
    gs_api *a = j->api;
    const size_t n = j->now.n_workers;
    j->code = check_walls(j);
    if (j->code != 0)
        return;
    j->now.n_workers = 0; /* their contents are taken */
    j->code = gs_workers_reload(a->workers, j->now.workers, n, j->err, sizeof(j->err));
    if (j->code == 0)
        gs_info("reload", "the configuration was read again, workers=%zu", n);
    gs_added_save(a);
}

static void take_off(gs_reload *j) {
    gs_reload **at = &j->api->reloads;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    j->api->n_live--;
}

static void done(uv_work_t *w, int status) {
    gs_reload *j = w->data;
    gs_api *a = j->api;
    gs_api_error e = {0};
    if (status == 0 && j->code == 0 && !a->draining)
        apply(j);
    if (j->code != 0)
        gs_error("reload", "nothing was changed: %s", j->err);
    take_off(j);
    if (j->rq && j->code != 0) {
        gs_api_fail(&e, j->code, NULL, "Nothing was changed: %s.", j->err);
        gs_api_reply_error(j->rq, &e);
    } else if (j->rq) {
        gs_workers_reply(a, j->rq);
    }
    gs_config_deinit(&j->now);
    gs_free(j);
}

void gs_reload_begin(gs_api *a, gs_http_request *rq) {
    gs_api_error e = {0};
    gs_reload *j = gs_calloc(1, sizeof(*j));
    if (j) {
        *j = (gs_reload){.next = a->reloads, .api = a, .rq = rq};
        j->work.data = j;
    }
    if (!j || uv_queue_work(a->loop, &j->work, run, done) != 0) {
        gs_free(j);
        gs_error("reload", "nothing was changed: out of memory");
        gs_api_fail(&e, GS_ERR_NOMEM, NULL, "Out of memory.");
        if (rq)
            gs_api_reply_error(rq, &e);
        return;
    }
    a->reloads = j;
    a->n_live++;
}

void gs_api_reload(gs_api *a) {
    if (!a->draining)
        gs_reload_begin(a, NULL);
}

bool gs_reload_gone(gs_api *a, gs_http_request *rq) {
    for (gs_reload *j = a->reloads; j; j = j->next)
        if (j->rq == rq) {
            j->rq = NULL;
            gs_http_end(rq);
            return true;
        }
    return false;
}
