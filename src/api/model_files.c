/* The files of models: which there are now, their end, second names. The disk is a worker thread's;
 * jobs run one after another, and each ends with a look at what there is. */
#include <stdio.h>
#include <string.h>

#include "api/api_impl.h"
#include "api/models.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"

/* ---- What there is ----------------------------------------------------------------------------
 */

static gs_model_spec *current(const gs_model_entry *m) {
    return m->next ? m->next : m->spec;
}

static int list_known(const gs_api *a, gs_files_job *j) {
    j->known = gs_calloc((size_t)a->models.n, sizeof(gs_model_spec *));
    if (!j->known)
        return GS_ERR_NOMEM;
    for (int i = 0; i < a->models.n; i++)
        if (a->models.v[i].spec && !a->models.v[i].gone)
            j->known[j->n_known++] = current(&a->models.v[i]);
    return 0;
}

static gs_model_entry *entry_of(gs_api *a, const char *name) {
    for (int i = 1; i < a->models.n; i++)
        if (strcmp(a->models.v[i].name, name) == 0)
            return &a->models.v[i];
    return NULL;
}

/* What is in memory goes on as it is. */
static void renew_with(gs_api *a, gs_model_entry *m, gs_model_spec *s) {
    if (m->next)
        a->cfg.loading->drop(a->cfg.loading->arg, m->next);
    m->next = s;
    m->gone = false;
    if (m->state != GS_MODEL_COLD && m->state != GS_MODEL_QUEUED)
        return;
    gs_models_renew(a, m);
    if (m->state == GS_MODEL_QUEUED)
        m->bytes = m->spec->bytes;
}

static gs_model_entry *take_spec(gs_api *a, gs_model_entry *m, gs_model_spec *s) {
    if (!m->gone && current(m) == s)
        return m;
    gs_info("models", "%s name=%s", m->gone ? "there again" : "changed", s->name);
    renew_with(a, m, s);
    return m;
}

static gs_model_entry *place(gs_api *a, gs_model_spec *s) {
    gs_models *all = &a->models;
    gs_model_entry *m;
    if (s->first && !all->v->spec) { /* as the server finds it */
        all->v->spec = s;
        memcpy(all->v->name, s->name, strlen(s->name) + 1);
        return all->v;
    }
    if (s->first)
        return take_spec(a, all->v, s);
    if ((m = entry_of(a, s->name)))
        return take_spec(a, m, s);
    if (all->n == GS_MODELS_MAX) {
        a->cfg.loading->drop(a->cfg.loading->arg, s);
        return NULL;
    }
    m = &all->v[all->n++];
    *m = (gs_model_entry){.spec = s};
    memcpy(m->name, s->name, strlen(s->name) + 1);
    return m;
}

static bool is_found(const gs_files_job *j, const gs_model_spec *s) {
    for (int i = 0; i < j->n_found; i++)
        if (j->found[i]->first == s->first && strcmp(j->found[i]->name, s->name) == 0)
            return true;
    return false;
}

/* What the look has found becomes the list. */
static void merge(gs_api *a, const gs_files_job *j) {
    gs_models *all = &a->models;
    for (int i = 0; i < all->n; i++) {
        if (!all->v[i].spec || all->v[i].gone || is_found(j, current(&all->v[i])))
            continue;
        gs_info("models", "gone name=%s", all->v[i].spec->name);
        all->v[i].gone = true;
    }
    all->n_order = 1; /* the first one is, whether it is there or not */
    for (int i = 0; i < j->n_found; i++) {
        const gs_model_entry *m = place(a, j->found[i]);
        if (m && m != all->v)
            all->order[all->n_order++] = (int)(m - all->v);
    }
}

static int scan(const gs_api *a, gs_files_job *j) {
    return a->cfg.loading->scan(a->cfg.loading->arg, j->known, j->n_known, &j->found, &j->n_found);
}

int gs_models_scan_first(gs_api *a) {
    gs_files_job j = {.api = a};
    int rc = list_known(a, &j);
    if (rc == 0)
        rc = scan(a, &j);
    if (rc == 0)
        merge(a, &j);
    gs_free(j.known);
    gs_free(j.found);
    return rc;
}

/* ---- Jobs --------------------------------------------------------------------------------------
 */

static void begin_next(gs_api *a);

static void job_run(uv_work_t *w) {
    gs_files_job *j = w->data;
    if (j->run)
        j->code = j->run(j);
    j->scanned = scan(j->api, j);
}

static void job_done(uv_work_t *w, int status) {
    gs_files_job *j = w->data;
    gs_api *a = j->api;
    if (status == 0 && j->scanned == 0)
        merge(a, j);
    a->models.files = j->next;
    a->models.scanned_ns = gs_now_ns();
    if (j->done)
        j->done(j);
    gs_free(j->known);
    gs_free(j->found);
    gs_free(j);
    begin_next(a);
}

/* Without a worker it is done here and now, rather than not at all. */
static void begin_next(gs_api *a) {
    gs_files_job *j = a->models.files;
    if (!j)
        return;
    j->work.data = j;
    j->scanned = list_known(a, j);
    if (uv_queue_work(a->loop, &j->work, job_run, job_done) != 0) {
        job_run(&j->work);
        job_done(&j->work, 0);
    }
}

void gs_models_submit(gs_api *a, gs_files_job *j) {
    gs_files_job **at = &a->models.files;
    const bool idle = !*at;
    j->api = a;
    while (*at)
        at = &(*at)->next;
    *at = j;
    if (idle)
        begin_next(a);
}

void gs_models_scan_tick(gs_api *a, int64_t now_ns) {
    if (!a->cfg.loading || a->cfg.rescan_ms == 0 || a->models.files || a->draining ||
        now_ns < a->models.scanned_ns + a->cfg.rescan_ms * GS_NS_PER_MS)
        return;
    gs_files_job *j = gs_calloc(1, sizeof(*j));
    if (j)
        gs_models_submit(a, j);
}

bool gs_models_files_gone(gs_api *a, gs_http_request *rq) {
    for (gs_files_job *j = a->models.files; j; j = j->next) {
        if (j->rq != rq)
            continue;
        j->rq = NULL;
        a->n_live--;
        gs_http_end(rq);
        return true;
    }
    return false;
}

/* ---- /api/delete, /api/copy --------------------------------------------------------------------
 */

static void answer(gs_files_job *j) {
    gs_api_error e = {0};
    if (!j->rq)
        return;
    j->api->n_live--;
    if (j->code == 0) {
        gs_http_reply(j->rq, 200, "application/json", "", 0);
        return;
    }
    gs_api_fail(&e, j->code, NULL, "%s", j->err[0] ? j->err : gs_err_text(j->code));
    gs_api_reply_error(j->rq, &e);
}

/* The model by its own name. NULL: *e says why not. */
static gs_model_entry *find_file(const gs_api *a, const char *field, const char *want,
                                 gs_api_error *e) {
    const gs_model_alias *alias;
    if (!a->cfg.pull) {
        gs_api_fail(e, GS_ERR_UNAVAILABLE, NULL, "There is no folder for models here: %s.",
                    a->cfg.pull_reason ? a->cfg.pull_reason : "none was given");
        return NULL;
    }
    if (!want) {
        gs_api_fail(e, GS_ERR_INVALID, field, "'%s' must name a model.", field);
        return NULL;
    }
    gs_model_entry *m = gs_models_find(a, want, &alias);
    const char *name = !m ? "" : m != a->models.v ? m->name : a->cfg.model->name;
    if (m && !alias && gs_model_name_match(want, name) >= GS_NAME_TAGGED)
        return m;
    gs_api_fail(e, GS_ERR_NOT_FOUND, field, "The model '%.80s' does not exist here.", want);
    e->name = "model_not_found";
    return NULL;
}

static const char *text_of(const json_t *body, const char *key) {
    const char *s = json_string_value(json_object_get(body, key));
    return s && *s ? s : NULL;
}

/* Takes rq. */
static void submit(gs_api *a, gs_http_request *rq, const gs_files_job *job, const gs_api_error *e) {
    gs_api_error none = *e;
    gs_files_job *j = none.code == 0 ? gs_malloc(sizeof(*j)) : NULL;
    if (none.code == 0 && !j)
        gs_api_fail(&none, GS_ERR_NOMEM, NULL, "Out of memory.");
    if (!j) {
        gs_api_reply_error(rq, &none);
        return;
    }
    *j = *job;
    j->rq = rq;
    j->done = answer;
    a->n_live++;
    gs_models_submit(a, j);
}

static int run_delete(gs_files_job *j) {
    int rc = gs_pull_remove(j->api->cfg.pull->folder, j->name, j->err, sizeof(j->err));
    if (rc == GS_ERR_NOT_FOUND && j->path[0])
        rc = gs_fail(j->err, sizeof(j->err), GS_ERR_FORBIDDEN,
                     "Its file is %.300s, which is not in the folder that models are pulled into: "
                     "remove it there.",
                     j->path);
    return rc;
}

void gs_models_post_delete(gs_api *a, gs_http_request *rq, json_t *body) {
    gs_api_error e = {0};
    gs_files_job j = {.run = run_delete};
    const char *want = text_of(body, "model") ? text_of(body, "model") : text_of(body, "name");
    const gs_model_entry *m = find_file(a, "model", want, &e);
    if (m && m == a->models.v)
        gs_api_fail(&e, GS_ERR_FORBIDDEN, "model",
                    "'%.80s' is the model that this server was started with; it stays.", want);
    else if (m && m->spec->path[0] == '\0')
        gs_api_fail(&e, GS_ERR_FORBIDDEN, "model", "'%.80s' is no file.", want);
    if (m && e.code == 0) {
        memcpy(j.name, m->name, sizeof(j.name));
        snprintf(j.path, sizeof(j.path), "%s", m->spec->path);
    }
    submit(a, rq, &j, &e);
    json_decref(body);
}

static int run_copy(gs_files_job *j) {
    const gs_pull_config *p = j->api->cfg.pull;
    return gs_pull_copy(p->folder, j->path, j->name, p->min_free_bytes, j->err, sizeof(j->err));
}

void gs_models_post_copy(gs_api *a, gs_http_request *rq, json_t *body) {
    gs_api_error e = {0};
    gs_files_job j = {.run = run_copy};
    char file[600], why[256] = "";
    const char *to = text_of(body, "destination");
    const gs_model_entry *m = find_file(a, "source", text_of(body, "source"), &e);
    const char *path = !m ? "" : m->spec ? m->spec->path : a->cfg.model->path;
    const size_t n = to ? strlen(to) : 0;
    const bool latest = n > 7 && strcmp(to + n - 7, ":latest") == 0;
    if (m && !path[0])
        gs_api_fail(&e, GS_ERR_INVALID, "source", "This model is no file.");
    else if (m && !to)
        gs_api_fail(&e, GS_ERR_INVALID, "destination", "'destination' must be the new name.");
    else if (m && n >= sizeof(j.name))
        gs_api_fail(&e, GS_ERR_INVALID, "destination", "The new name is too long.");
    if (m && e.code == 0) {
        memcpy(j.name, to, n - (latest ? 7 : 0));
        snprintf(j.path, sizeof(j.path), "%s", path);
        if (gs_model_file_of_name(j.name, file, sizeof(file), why, sizeof(why)) != 0)
            gs_api_fail(&e, GS_ERR_INVALID, "destination", "%s", why);
    }
    submit(a, rq, &j, &e);
    json_decref(body);
}
