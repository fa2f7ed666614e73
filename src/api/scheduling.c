/*
 * What the scheduler says and takes: /v1/queue, /v1/requests/{id} and /v1/config. Questions go to
 * the engine thread through its inbox and are answered as events; nothing here reads its state.
 *
 * Whoever asks sees the details of their own requests; of everybody else's classes and counts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"
#include "api/bills.h"
#include "api/lend.h"
#include "api/route.h"
#include "api/settings.h"
#include "api/story.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"

struct gs_api_query {
    gs_query q; /* first */
    gs_api *api;
    gs_api_query *next;
    gs_http_request *rq; /* NULL once the client is gone */
    gs_identity who;
    bool admin;  /* and not on somebody's behalf */
    char id[48]; /* of the request that is asked about */
    gs_engine_settings settings;
    gs_seq_id *ids;
};

/* ---- Questions ----------------------------------------------------------------------------- */

static void query_free(gs_api_query *x) {
    gs_api_query **at = &x->api->queries;
    while (*at && *at != x)
        at = &(*at)->next;
    if (*at) {
        *at = x->next;
        x->api->n_live--;
    }
    gs_free(x->q.records);
    gs_free(x->ids);
    gs_free(x);
}

bool gs_api_query_gone(gs_api *a, gs_http_request *rq) {
    for (gs_api_query *x = a->queries; x; x = x->next) {
        if (x->rq == rq) {
            x->rq = NULL;
            gs_http_end(rq);
            return true;
        }
    }
    return false;
}

void gs_api_query_param(const gs_http_request *rq, const char *name, char *out, size_t n) {
    const char *p = gs_http_query(rq);
    size_t n_name = strlen(name);
    *out = '\0';
    while (*p && (strncmp(p, name, n_name) != 0 || p[n_name] != '=')) {
        p += strcspn(p, "&");
        p += *p == '&';
    }
    if (!*p)
        return;
    size_t len = 0;
    for (p += n_name + 1; *p && *p != '&' && len + 1 < n; p++) {
        unsigned code;
        if (*p == '%' && sscanf(p + 1, "%2x", &code) == 1 && code > 0) {
            out[len++] = (char)code;
            p += 2;
        } else {
            out[len++] = (char)(*p == '+' ? ' ' : *p);
        }
    }
    out[len] = '\0';
}

/* NULL: out of memory, and rq is answered. */
static gs_api_query *query_new(gs_api *a, gs_http_request *rq, gs_query_kind kind,
                               int32_t max_records) {
    char user[128];
    gs_api_query *x = gs_calloc(1, sizeof(*x));
    gs_explain *records = gs_calloc((size_t)max_records + 1, sizeof(*records));
    if (!x || !records) {
        gs_api_error e;
        gs_free(x);
        gs_free(records);
        gs_api_fail(&e, GS_ERR_NOMEM, NULL, "Out of memory.");
        gs_api_reply_error(rq, &e);
        return NULL;
    }
    x->q = (gs_query){.kind = kind, .owner = x, .records = records, .max_records = max_records};
    x->api = a;
    x->rq = rq;
    gs_api_query_param(rq, "user", user, sizeof(user));
    gs_api_identify(a, rq, user, &x->who);
    gs_api_error none;
    x->admin = user[0] == '\0' && gs_api_check_admin(a, rq, &none) == 0;
    return x;
}

static void query_ask(gs_api_query *x) {
    x->next = x->api->queries;
    x->api->queries = x;
    x->api->n_live++;
    gs_engine_ask(x->api->engine, &x->q);
}

static void reply(gs_api_query *x, gs_buf *out) {
    if (!x->rq) {
        gs_buf_deinit(out);
        return;
    }
    gs_http_request *rq = x->rq;
    x->rq = NULL;
    gs_api_reply_json(rq, 200, out);
}

static bool is_own(const gs_api_query *x, uint32_t person, uint64_t scope) {
    return x->who.person == person && x->who.cache_scope == scope;
}

static bool may_see(const gs_api_query *x, uint32_t person, uint64_t scope) {
    return x->admin || is_own(x, person, scope);
}

/* ---- /v1/queue ----------------------------------------------------------------------------- */

static void get_queue(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_engine_stats s;
    gs_engine_get_stats(a->engine, &s);
    /* Some more may come until it is answered. */
    gs_api_query *x = query_new(a, rq, GS_QUERY_QUEUE, s.n_running + s.n_waiting + 64);
    if (x)
        query_ask(x);
}

const gs_req *gs_api_find_seq(const gs_api *a, gs_seq_id id, int32_t *index) {
    for (const gs_req *r = a->live; r; r = r->next) {
        for (int32_t i = 0; i < r->n_choices; i++) {
            const gs_choice *c = &r->choices[i];
            if (c->admitted && c->seq && c->seq->desc.id == id) {
                *index = i;
                return r;
            }
        }
    }
    return gs_lend_find_seq(a, id, index);
}

/* The asker's own request that this sequence belongs to, and the choice. */
static const gs_req *own_request(const gs_api_query *x, gs_seq_id id, int32_t *index) {
    const gs_req *r = gs_api_find_seq(x->api, id, index);
    return r && is_own(x, r->person, r->cache_scope) ? r : NULL;
}

typedef struct others {
    int32_t n_running, n_waiting;
    int32_t n_for[GS_WAIT_COUNT];
} others;

static void write_others(gs_jsonw *w, const others n[GS_CLASS_COUNT]) {
    gs_jsonw_key(w, "others");
    gs_jsonw_obj(w);
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        if (n[c].n_running + n[c].n_waiting == 0)
            continue;
        gs_jsonw_key(w, gs_class_name((gs_class)c));
        gs_jsonw_obj(w);
        gs_jsonw_key(w, "running");
        gs_jsonw_int(w, n[c].n_running);
        gs_jsonw_key(w, "waiting");
        gs_jsonw_int(w, n[c].n_waiting);
        gs_jsonw_key(w, "waiting_for");
        gs_jsonw_obj(w);
        for (int i = 0; i < GS_WAIT_COUNT; i++) {
            if (n[c].n_for[i] == 0)
                continue;
            gs_jsonw_key(w, gs_wait_name((gs_wait)i));
            gs_jsonw_int(w, n[c].n_for[i]);
        }
        gs_jsonw_end_obj(w);
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_obj(w);
}

static void answer_queue(gs_api_query *x, gs_buf *out) {
    others n[GS_CLASS_COUNT] = {0};
    int32_t n_running = 0;
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "person");
    gs_jsonw_str(&w, gs_api_person_name(x->api, x->who.person));
    gs_jsonw_key(&w, "own");
    gs_jsonw_arr(&w);
    for (int32_t i = 0; i < x->q.n_records; i++) {
        const gs_explain *e = &x->q.records[i];
        int32_t index = 0;
        const gs_req *r = own_request(x, e->id, &index);
        n_running += e->running;
        if (r) {
            gs_story_write(&w, r->id, r->model, index, e, x->q.now_ns);
            continue;
        }
        n[e->cls].n_running += e->running;
        n[e->cls].n_waiting += !e->running;
        if (e->wait_now != GS_WAIT_NONE)
            n[e->cls].n_for[e->wait_now]++;
    }
    gs_jsonw_end_arr(&w);
    write_others(&w, n);
    gs_jsonw_key(&w, "running");
    gs_jsonw_int(&w, n_running);
    gs_jsonw_key(&w, "waiting");
    gs_jsonw_int(&w, x->q.n_records - n_running);
    gs_jsonw_end_obj(&w);
}

/* ---- /v1/requests/{id} --------------------------------------------------------------------- */

void gs_api_remember(gs_api *a, const gs_req *r, int32_t index, const gs_explain *x) {
    gs_past *p = &a->past[a->n_past++ % GS_API_PAST];
    *p = (gs_past){
        .index = index, .model = r->model, .person = r->person, .scope = r->cache_scope, .x = *x};
    snprintf(p->id, sizeof(p->id), "%s", r->id);
}

static const gs_past *past_at(const gs_api_query *x, uint64_t i) {
    const gs_past *p = &x->api->past[i % GS_API_PAST];
    return strcmp(p->id, x->id) == 0 && may_see(x, p->person, p->scope) ? p : NULL;
}

static void answer_request(gs_api_query *x, gs_buf *out) {
    const gs_api *a = x->api;
    const uint64_t first = a->n_past > GS_API_PAST ? a->n_past - GS_API_PAST : 0;
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "id");
    gs_jsonw_str(&w, x->id);
    gs_jsonw_key(&w, "sequences");
    gs_jsonw_arr(&w);
    for (uint64_t i = first; i < a->n_past; i++) {
        const gs_past *p = past_at(x, i);
        if (p)
            gs_story_write(&w, NULL, p->model, p->index, &p->x, x->q.now_ns);
    }
    for (int32_t i = 0; i < x->q.n_records; i++) {
        int32_t index = 0;
        const gs_req *r = gs_api_find_seq(a, x->q.records[i].id, &index);
        if (r && strcmp(r->id, x->id) == 0) /* else it has ended meanwhile */
            gs_story_write(&w, NULL, r->model, index, &x->q.records[i], x->q.now_ns);
    }
    gs_jsonw_end_arr(&w);
    gs_jsonw_end_obj(&w);
}

static gs_req *find_live(const gs_api_query *x) {
    for (gs_req *r = x->api->live; r; r = r->next)
        if (strcmp(r->id, x->id) == 0 && may_see(x, r->person, r->cache_scope))
            return r;
    return NULL;
}

static bool is_past(const gs_api_query *x) {
    for (uint64_t i = 0; i < GS_API_PAST; i++)
        if (past_at(x, i))
            return true;
    return false;
}

static void refuse(gs_api_query *x, const gs_api_error *e) {
    gs_api_reply_error(x->rq, e);
    x->rq = NULL;
    query_free(x);
}

/* Names the living sequences of r (NULL: none) to the engine. False: refused. */
static bool name_sequences(gs_api_query *x, const gs_req *r) {
    const int32_t most = x->q.max_records;
    x->q.ids = x->ids = gs_calloc((size_t)most, sizeof(*x->ids));
    if (!x->ids) {
        gs_api_error e;
        gs_api_fail(&e, GS_ERR_NOMEM, NULL, "Out of memory.");
        refuse(x, &e);
        return false;
    }
    for (int32_t i = 0; r && i < r->n_choices && x->q.n_ids < most; i++)
        if (r->choices[i].admitted && r->choices[i].seq)
            x->ids[x->q.n_ids++] = r->choices[i].seq->desc.id;
    return true;
}

static void unknown_request(gs_api_query *x) {
    gs_api_error e;
    gs_api_fail(&e, GS_ERR_NOT_FOUND, "id", "There is no request '%.47s'%s.", x->id,
                x->admin ? "" : " of yours");
    refuse(x, &e);
}

#define MAX_SEQUENCES (GS_MAX_PROMPTS * GS_MAX_CHOICES) /* of one request that are told of */

static const char request_path[] = "/v1/requests/{id}";

static void get_request(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_api_query *x = query_new(a, rq, GS_QUERY_EXPLAIN, MAX_SEQUENCES);
    if (!x)
        return;
    gs_route_param(request_path, gs_http_path(rq), x->id, sizeof(x->id));
    const gs_req *r = find_live(x);
    if (!r && !is_past(x))
        unknown_request(x);
    else if (name_sequences(x, r))
        query_ask(x);
}

/* ---- Cancel, pause, resume ----------------------------------------------------------------- */

/* The living request that the path names, if the asker may act on it; else it is refused. */
static gs_req *request_to_change(gs_api_query *x, const char *path) {
    gs_route_param(path, gs_http_path(x->rq), x->id, sizeof(x->id));
    gs_req *r = find_live(x);
    if (r && r->state != GS_REQ_DONE)
        return r;
    if (r || is_past(x)) {
        gs_api_error e;
        gs_api_fail(&e, GS_ERR_EXISTS, "id", "The request '%.47s' has ended.", x->id);
        refuse(x, &e);
    } else {
        unknown_request(x);
    }
    return NULL;
}

static void write_change(const gs_api_query *x, const char *state, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "id");
    gs_jsonw_str(&w, x->id);
    gs_jsonw_key(&w, "state");
    gs_jsonw_str(&w, state);
    gs_jsonw_end_obj(&w);
}

static const char cancel_path[] = "/v1/requests/{id}/cancel";
static const char pause_path[] = "/v1/requests/{id}/pause";
static const char resume_path[] = "/v1/requests/{id}/resume";

static void post_cancel(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_buf out = {0};
    gs_api_query *x = query_new(a, rq, GS_QUERY_EXPLAIN, 0);
    gs_req *r = x ? request_to_change(x, cancel_path) : NULL;
    if (!r)
        return;
    write_change(x, "cancelled", &out);
    reply(x, &out);
    query_free(x);
    gs_req_stop(r);
}

static void change(gs_api *a, gs_http_request *rq, const char *path, bool pause) {
    gs_api_query *x = query_new(a, rq, GS_QUERY_PAUSE, MAX_SEQUENCES);
    gs_req *r = x ? request_to_change(x, path) : NULL;
    if (r && r->state != GS_REQ_RUNNING && !gs_lend_has(r)) {
        gs_api_error e;
        gs_api_fail(&e, GS_ERR_EXISTS, "id", "The request '%.47s' is still being prepared.", x->id);
        refuse(x, &e);
        return;
    }
    if (!r || !name_sequences(x, r))
        return;
    gs_lend_pause(r, pause);
    x->q.pause = pause;
    query_ask(x);
}

static void post_pause(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    change(a, rq, pause_path, true);
}

static void post_resume(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    change(a, rq, resume_path, false);
}

static void answer_change(gs_api_query *x, gs_buf *out) {
    const gs_req *r = find_live(x);
    for (int32_t i = 0; r && i < r->n_choices; i++)
        r->choices[i].last_token_ns = 0; /* the pause is no gap between tokens */
    write_change(x, x->q.pause ? "paused" : "resumed", out);
}

/* ---- /v1/config ---------------------------------------------------------------------------- */

static bool has_config(gs_api *a, gs_http_request *rq) {
    gs_api_error e;
    if (a->cfg.config)
        return true;
    gs_api_fail(&e, GS_ERR_NOT_FOUND, NULL, "This server has no configuration to show.");
    gs_api_reply_error(rq, &e);
    return false;
}

static void write_config(const gs_config *cfg, gs_buf *out) {
    gs_buf values = {0}, table = {0};
    gs_jsonw w;
    gs_config_json(cfg, &values);
    gs_config_table_json(&table);
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "options");
    gs_jsonw_raw(&w, values.data ? values.data : "{}", values.len);
    gs_jsonw_key(&w, "live");
    gs_jsonw_arr(&w);
    for (size_t i = 0; i < GS_CONFIG_N; i++)
        if (gs_config_option_at(i)->flags & GS_CONFIG_LIVE)
            gs_jsonw_str(&w, gs_config_option_at(i)->name);
    gs_jsonw_end_arr(&w);
    gs_jsonw_key(&w, "table");
    gs_jsonw_raw(&w, table.data ? table.data : "[]", table.len);
    gs_jsonw_end_obj(&w);
    out->failed |= values.failed || table.failed;
    gs_buf_deinit(&values);
    gs_buf_deinit(&table);
}

static void get_config(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    if (!has_config(a, rq))
        return;
    gs_api_query x = {.rq = rq};
    gs_buf out = {0};
    write_config(a->cfg.config, &out);
    reply(&x, &out);
}

void gs_api_configure(gs_api *a, const gs_engine_settings *set) {
    gs_api_query *x = gs_calloc(1, sizeof(*x));
    if (!x)
        return;
    x->q = (gs_query){.kind = GS_QUERY_CONFIGURE, .owner = x};
    x->api = a;
    x->settings = *set;
    gs_hours_apply(a, &x->settings);
    x->q.apply = &x->settings;
    query_ask(x);
}

/* Checked here as a whole; the engine then applies it between two steps. */
static void patch_config(gs_api *a, gs_http_request *rq, json_t *body) {
    gs_api_error e;
    gs_api_query *x = has_config(a, rq) ? query_new(a, rq, GS_QUERY_CONFIGURE, 0) : NULL;
    if (x && gs_settings_change(a->cfg.config, body, &x->settings, &e) != GS_OK) {
        gs_api_reply_error(rq, &e);
        x->rq = NULL;
        query_free(x);
        x = NULL;
    }
    json_decref(body);
    if (!x)
        return;
    gs_log_set_level((gs_log_level)a->cfg.config->log_level);
    gs_hours_apply(a, &x->settings);
    x->q.apply = &x->settings;
    query_ask(x);
}

/* ---- Answers ------------------------------------------------------------------------------- */

void gs_api_answered(gs_api *a, gs_query *q) {
    if (gs_bills_answered(a, q))
        return;
    if (q->kind == GS_QUERY_QUEUE || q->kind == GS_QUERY_STATE || q->kind == GS_QUERY_EXPLAIN)
        gs_lend_records(a, q);
    if (q->kind == GS_QUERY_STATE) {
        gs_live_answered(a->viewers, q);
        return;
    }
    gs_api_query *x = q->owner;
    if (gs_watch_answered(a, q) || gs_hours_answered(a, q))
        return;
    gs_buf out = {0};
    if (q->code != GS_OK) {
        gs_api_error e;
        gs_api_fail(&e, q->code, NULL, "The engine did not take it: %s.", gs_err_text(q->code));
        if (x->rq)
            gs_api_reply_error(x->rq, &e);
        x->rq = NULL;
    } else if (q->kind == GS_QUERY_QUEUE) {
        answer_queue(x, &out);
    } else if (q->kind == GS_QUERY_EXPLAIN) {
        answer_request(x, &out);
    } else if (q->kind == GS_QUERY_PAUSE) {
        answer_change(x, &out);
    } else {
        write_config(a->cfg.config, &out);
    }
    reply(x, &out);
    query_free(x);
}

/* ---- Tables -------------------------------------------------------------------------------- */

#define COUNT   "{'type':'integer','minimum':0}"
#define NUMBER  "{'type':'number'}"
#define TEXT    "{'type':'string'}"
#define NUMBERS "{'type':'object','additionalProperties':{'type':'number'}}"

// clang-format off
static const gs_schema schemas[] = {
    {"Story",
     "{'type':'object','description':'What happened to one sequence. Times in ms.',"
     "'required':['index','state','class','wait_ms'],'properties':{"
     "'id':" TEXT ",'model':" TEXT ",'index':" COUNT ",'state':{'type':'string','enum':['waiting','running','done']},"
     "'class':" TEXT ",'worker':" TEXT ",'placed':" TEXT ",'asked_class':" TEXT ",'position':" COUNT ",'waiting_for':" TEXT ",'why':" TEXT ","
     "'wait_ms':" NUMBERS ",'queued_ms':" NUMBER ",'ttft_ms':" NUMBER ",'total_ms':" NUMBER ","
     "'prompt_tokens':" COUNT ",'cached_tokens':" COUNT ",'output_tokens':" COUNT ","
     "'max_output_tokens':" COUNT ",'chunks':" COUNT ",'steps':" COUNT ",'steps_with':" NUMBERS ","
     "'preempted':" COUNT ",'paused':{'type':'boolean'},'suspended':" COUNT ",'relegated':{'type':'boolean'},"
     "'late':{'type':'boolean'},'predicted_ttft_ms':{'type':['number','null']},"
     "'steps_predicted_ms':" NUMBER ",'steps_measured_ms':" NUMBER ",'charged_ms':" NUMBER ","
     "'timeline':{'type':'array','items':{'type':'object','properties':{'at_ms':" NUMBER ",'what':" TEXT "}}}}}"},
    {"Queue",
     "{'type':'object','required':['person','own','others','running','waiting'],'properties':{"
     "'person':" TEXT ","
     "'own':{'type':'array','items':{'$ref':'#/components/schemas/Story'}},"
     "'others':{'type':'object','additionalProperties':{'type':'object','properties':{"
     "'running':" COUNT ",'waiting':" COUNT ",'waiting_for':" NUMBERS "}}},"
     "'running':" COUNT ",'waiting':" COUNT "}}"},
    {"RequestStory",
     "{'type':'object','required':['id','sequences'],'properties':{'id':" TEXT ","
     "'sequences':{'type':'array','items':{'$ref':'#/components/schemas/Story'}}}}"},
    {"Change",
     "{'type':'object','required':['id','state'],'properties':{'id':" TEXT ","
     "'state':{'type':'string','enum':['cancelled','paused','resumed']}}}"},
    {"Config",
     "{'type':'object','required':['options','live'],'properties':{'options':{'type':'object'},"
     "'live':{'type':'array','items':" TEXT ",'description':'Those that may change while the "
     "server runs.'},"
     "'table':{'type':'array','description':'What each option is.','items':{'type':'object',"
     "'required':['name','kind','default','help'],'properties':{'name':" TEXT ",'kind':" TEXT ","
     "'default':" TEXT ",'help':" TEXT ",'min':" NUMBER ",'max':" NUMBER ","
     "'choices':{'type':'array','items':" TEXT "}}}}}}"},
    {NULL, NULL},
};

static const gs_field who_fields[] = {
    GS_ROW_JSON("user", 1, "{'type':'string'}", "Without API keys, on this machine: whose requests."),
    GS_ROWS_END,
};

static const gs_route routes[] = {
    {"GET", "/v1/queue", GS_ROUTE_MODEL, get_queue, "Who runs, who waits and why",
     .query = who_fields, .answer = "Queue"},
    {"GET", request_path, GS_ROUTE_MODEL, get_request, "The story of one request of yours",
     .query = who_fields, .answer = "RequestStory"},
    {"POST", cancel_path, GS_ROUTE_MODEL, post_cancel,
     "End a request of yours with what it has said so far; an admin may end any", .query = who_fields,
     .answer = "Change"},
    {"POST", pause_path, GS_ROUTE_MODEL, post_pause,
     "Pause a request of yours: it keeps its place and gives it to whoever needs it",
     .query = who_fields, .answer = "Change"},
    {"POST", resume_path, GS_ROUTE_MODEL, post_resume, "Let a paused request go on",
     .query = who_fields, .answer = "Change"},
    {"GET", "/v1/config", GS_ROUTE_ADMIN, get_config, "All options and their values", .answer = "Config"},
    {"PATCH", "/v1/config", GS_ROUTE_ADMIN | GS_ROUTE_MODEL | GS_ROUTE_BODY, patch_config,
     "Change options while the server runs, all or none", .answer = "Config"},
    {.path = NULL},
};
// clang-format on

const gs_api_part gs_scheduling_part = {"scheduling", "What waits for what, and what it is to be.",
                                        routes, schemas};
