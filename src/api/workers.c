/* /v1/workers: the machines that answer, which there are and what becomes of them. */
#include "api/workers.h"

#include <string.h>

#include "api/added.h"
#include "api/api_impl.h"
#include "api/reload.h"
#include "api/route.h"
#include "base/clock.h"
#include "base/err.h"
#include "worker/workers.h"

/* ---- What is told -------------------------------------------------------------------------- */

static void key_str(gs_jsonw *w, const char *key, const char *v) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, v);
}

static void key_int(gs_jsonw *w, const char *key, int64_t v) {
    gs_jsonw_key(w, key);
    gs_jsonw_int(w, v);
}

static void key_num(gs_jsonw *w, const char *key, double v) {
    gs_jsonw_key(w, key);
    gs_jsonw_num(w, v);
}

static void key_classes(gs_jsonw *w, const char *key, uint32_t classes) {
    gs_jsonw_key(w, key);
    gs_jsonw_arr(w);
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        if (classes & 1u << c)
            gs_jsonw_str(w, gs_class_name((gs_class)c));
    gs_jsonw_end_arr(w);
}

static void write_load(gs_jsonw *w, const gs_place_view *v, int64_t now_ns) {
    key_int(w, "running", v->n_placed);
    key_int(w, "answering", v->n_answering);
    key_int(w, "tokens", v->n_tokens);
    key_int(w, "limit", v->limit);
    if (v->seen_ns > 0)
        key_num(w, "seen_s", (double)(now_ns - v->seen_ns) / 1e9);
    key_int(w, "dispatched", (int64_t)v->n_dispatched);
    key_int(w, "done", (int64_t)v->n_done);
    key_int(w, "faults", (int64_t)v->n_faults);
    key_int(w, "moved", (int64_t)v->n_moved);
    key_num(w, "busy_s", (double)v->busy_ns / 1e9);
    key_num(w, "charged_s", (double)v->charged_ns / 1e9);
    gs_jsonw_key(w, "predicted");
    if (v->cost[0].n_ttft == 0) {
        gs_jsonw_null(w);
        return;
    }
    gs_jsonw_obj(w);
    key_num(w, "first_token_ms", gs_worker_cost_ttft(&v->cost[0], 0.0) / 1e6);
    key_num(w, "prompt_token_ms", v->cost[0].prompt_ns / 1e6);
    key_num(w, "token_ms", gs_worker_cost_itl(&v->cost[0], 1.0) / 1e6);
    gs_jsonw_end_obj(w);
}

static void write_remote(gs_jsonw *w, const gs_workers *ws, const gs_worker *r, bool admin) {
    if (admin) {
        key_str(w, "url", r->cfg.url);
        key_str(w, "failure", r->why);
    }
    key_str(w, "dialect", r->dialect->name);
    key_str(w, "schedule", r->cfg.schedule);
    key_str(w, "fallback", gs_fallback_name((gs_fallback)r->cfg.fallback));
    gs_jsonw_key(w, "models");
    gs_jsonw_arr(w);
    for (int i = 0; i < r->n_models; i++)
        gs_jsonw_str(w, gs_workers_model_name(ws, r->models[i].model));
    gs_jsonw_end_arr(w);
    key_int(w, "prompt_tokens", (int64_t)r->prompt_tokens);
    key_int(w, "output_tokens", (int64_t)r->output_tokens);
    if (r->foreign_running >= 0)
        key_int(w, "its_running", r->foreign_running);
    if (r->foreign_waiting >= 0)
        key_int(w, "its_waiting", r->foreign_waiting);
}

static void write_worker(const gs_workers *ws, int32_t index, const gs_worker *remote, bool admin,
                         gs_jsonw *w) {
    const gs_place *p = gs_workers_place(ws);
    const gs_place_worker *d = gs_place_get_worker(p, index);
    const int64_t now_ns = gs_now_ns();
    gs_place_view v;
    gs_place_get_view(p, index, now_ns, &v);
    gs_jsonw_obj(w);
    key_str(w, "name", d->name);
    key_str(w, "kind", remote ? "remote" : "local");
    if (remote)
        key_str(w, "origin", remote->cfg.added ? "command" : "file");
    key_str(w, "state", gs_worker_state_name(v.state));
    key_str(w, "about", gs_worker_state_sentence(v.state));
    key_classes(w, "classes", d->takes);
    key_classes(w, "prefers", d->prefers);
    key_num(w, "price", d->price);
    key_int(w, "max_sequences", d->max_seqs);
    key_int(w, "max_tokens", d->max_tokens);
    gs_jsonw_key(w, "open");
    gs_jsonw_bool(w, v.open);
    write_load(w, &v, now_ns);
    if (remote)
        write_remote(w, ws, remote, admin);
    gs_jsonw_end_obj(w);
}

void gs_workers_write(const gs_api *a, bool admin, gs_jsonw *w) {
    const int32_t local = gs_workers_any(a->workers) ? gs_workers_local(a->workers) : -1;
    gs_jsonw_arr(w);
    if (local >= 0)
        write_worker(a->workers, local, NULL, admin, w);
    for (const gs_worker *r = gs_workers_first(a->workers); r; r = r->next)
        write_worker(a->workers, r->index, r, admin, w);
    gs_jsonw_end_arr(w);
}

static void fill_metrics(const gs_workers *ws, int32_t index, const char *name,
                         const gs_worker *remote, gs_metrics_worker *out) {
    gs_place_view v;
    gs_place_get_view(gs_workers_place(ws), index, gs_now_ns(), &v);
    *out = (gs_metrics_worker){.name = name,
                               .up = v.state == GS_WORKER_UP || v.state == GS_WORKER_SLOW,
                               .n_running = v.n_placed,
                               .n_dispatched = v.n_dispatched,
                               .n_faults = v.n_faults,
                               .n_moved = v.n_moved,
                               .prompt_tokens = remote ? remote->prompt_tokens : 0,
                               .output_tokens = remote ? remote->output_tokens : 0,
                               .busy_ns = v.busy_ns,
                               .charged_ns = v.charged_ns};
}

int gs_workers_metrics(const gs_api *a, gs_metrics_worker out[GS_API_WORKERS]) {
    const int32_t local = gs_workers_any(a->workers) ? gs_workers_local(a->workers) : -1;
    int n = 0;
    if (local >= 0)
        fill_metrics(a->workers, local, "local", NULL, &out[n++]);
    for (const gs_worker *r = gs_workers_first(a->workers); r && n < GS_API_WORKERS; r = r->next)
        fill_metrics(a->workers, r->index, r->name, r, &out[n++]);
    return n;
}

/* ---- Routes -------------------------------------------------------------------------------- */

void gs_workers_reply(gs_api *a, gs_http_request *rq) {
    gs_api_error none;
    gs_buf out = {0};
    gs_jsonw w;
    gs_jsonw_init(&w, &out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "workers");
    gs_workers_write(a, gs_api_check_admin(a, rq, &none) == 0, &w);
    gs_jsonw_end_obj(&w);
    gs_api_reply_json(rq, 200, &out);
}

static void get_workers(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_workers_reply(a, rq);
}

bool gs_workers_may_connect(const gs_api *a, gs_api_error *e) {
    const gs_config *c = a->cfg.config;
    if (!c || !c->server_sandbox || c->server_add_workers || c->n_workers > 0)
        return true;
    gs_api_fail(e, GS_ERR_FORBIDDEN, NULL,
                "This server has given up the right to connect to other machines; start it with "
                "server.add_workers = true, or with a worker in its configuration.");
    return false;
}

static void post_worker(gs_api *a, gs_http_request *rq, json_t *body) {
    char err[400] = "";
    gs_config_worker c = {0};
    gs_api_error e = {0};
    int rc = gs_workers_may_connect(a, &e) ? gs_added_parse(body, &c, &e) : e.code;
    json_decref(body);
    if (rc != 0)
        gs_config_worker_deinit(&c);
    else if ((rc = gs_workers_add(a->workers, &c, err, sizeof(err))) != 0)
        gs_api_fail(&e, rc, NULL, "%s.", err);
    if (rc != 0) {
        gs_api_reply_error(rq, &e);
        return;
    }
    gs_added_save(a);
    gs_workers_reply(a, rq);
}

static void post_reload(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    if (a->cfg.config) {
        gs_reload_begin(a, rq);
        return;
    }
    gs_api_error e;
    gs_api_fail(&e, GS_ERR_NOT_FOUND, NULL, "This server has no configuration to read.");
    gs_api_reply_error(rq, &e);
}

static const char worker_path[] = "/v1/workers/{name}";
static const char drain_path[] = "/v1/workers/{name}/drain";
static const char resume_path[] = "/v1/workers/{name}/resume";

/* The one that the path names; NULL: there is none, and rq is answered. */
static gs_worker *find_worker(gs_api *a, gs_http_request *rq, const char *pattern) {
    char name[64];
    gs_api_error e;
    gs_route_param(pattern, gs_http_path(rq), name, sizeof(name));
    gs_worker *r = gs_workers_find(a->workers, name);
    if (r)
        return r;
    gs_api_fail(&e, GS_ERR_NOT_FOUND, "name", "There is no worker '%.60s'.", name);
    gs_api_reply_error(rq, &e);
    return NULL;
}

static void delete_worker(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_worker *r = find_worker(a, rq, worker_path);
    if (!r)
        return;
    gs_workers_remove(a->workers, r);
    gs_added_forget(a, r->name);
    gs_workers_reply(a, rq);
}

static void post_drain(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    const gs_worker *r = find_worker(a, rq, drain_path);
    if (!r)
        return;
    gs_workers_drain(a->workers, r, true);
    gs_workers_reply(a, rq);
}

static void post_resume(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    const gs_worker *r = find_worker(a, rq, resume_path);
    if (!r)
        return;
    gs_workers_drain(a->workers, r, false);
    gs_workers_reply(a, rq);
}

#define TEXT   "{'type':'string'}"
#define COUNT  "{'type':'integer','minimum':0}"
#define NUMBER "{'type':'number'}"
#define TEXTS  "{'type':'array','items':" TEXT "}"

// clang-format off
static const gs_schema schemas[] = {
    {"Workers",
     "{'type':'object','required':['workers'],'properties':{'workers':{'type':'array','items':{"
     "'type':'object','required':['name','kind','state'],'properties':{"
     "'name':" TEXT ",'kind':{'type':'string','enum':['local','remote']},'origin':{'type':'string','enum':['file','command']},'state':" TEXT ",'about':" TEXT ","
     "'url':" TEXT ",'failure':" TEXT ",'dialect':" TEXT ",'schedule':" TEXT ",'fallback':" TEXT ",'models':" TEXTS ","
     "'classes':" TEXTS ",'prefers':" TEXTS ",'price':" NUMBER ",'max_sequences':" COUNT ",'max_tokens':" COUNT ","
     "'open':{'type':'boolean'},'running':" COUNT ",'answering':" COUNT ",'tokens':" COUNT ",'limit':" COUNT ","
     "'seen_s':" NUMBER ",'dispatched':" COUNT ",'done':" COUNT ",'faults':" COUNT ",'moved':" COUNT ","
     "'busy_s':" NUMBER ",'charged_s':" NUMBER ",'prompt_tokens':" COUNT ",'output_tokens':" COUNT ","
     "'its_running':" COUNT ",'its_waiting':" COUNT ","
     "'predicted':{'anyOf':[{'type':'null'},{'type':'object','properties':{'first_token_ms':" NUMBER ","
     "'prompt_token_ms':" NUMBER ",'token_ms':" NUMBER "}}]}}}}}}"},
    {NULL, NULL},
};

static const gs_field add_fields[] = {
    GS_ROW_NEEDED("name", 1, TEXT, "What it is called here: 1 to 40 characters."),
    GS_ROW_NEEDED("url", 1, TEXT, "Where it answers in OpenAI's dialect."),
    GS_ROWS_END,
};

static const gs_route routes[] = {
    {"GET", "/v1/workers", GS_ROUTE_MODEL, get_workers, "The machines that answer, this one first", .answer = "Workers"},
    {"POST", "/v1/workers", GS_ROUTE_ADMIN | GS_ROUTE_MODEL | GS_ROUTE_BODY, post_worker,
     "One more; the body has the settings of a section [worker NAME] of the configuration",
     .fields = add_fields, .where = 1, .answer = "Workers"},
    {"POST", "/v1/workers/reload", GS_ROUTE_ADMIN | GS_ROUTE_MODEL, post_reload,
     "Read the configuration file's workers again", .answer = "Workers"},
    {"DELETE", worker_path, GS_ROUTE_ADMIN | GS_ROUTE_MODEL, delete_worker,
     "One less: it ends what it has", .answer = "Workers"},
    {"POST", drain_path, GS_ROUTE_ADMIN | GS_ROUTE_MODEL, post_drain, "Give it nothing more", .answer = "Workers"},
    {"POST", resume_path, GS_ROUTE_ADMIN | GS_ROUTE_MODEL, post_resume, "Give it work again", .answer = "Workers"},
    {.path = NULL},
};
// clang-format on

const gs_api_part gs_workers_part = {"workers", "Other machines that answer.", routes, schemas};
