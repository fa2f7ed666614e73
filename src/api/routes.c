/* The route table and the small endpoints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/kept.h"
#include "api/lend.h"
#include "api/ollama.h"
#include "api/embed.h"
#include "api/route.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"

/* ---- Health
 * ------------------------------------------------------------------------------------------- */

void gs_api_reply(gs_http_request *rq, int status, const char *type, gs_buf *out) {
    if (out->failed) {
        gs_api_error e;
        gs_api_fail(&e, GS_ERR_NOMEM, NULL, "Out of memory.");
        gs_api_reply_error(rq, &e);
    } else {
        gs_http_reply(rq, status, type, out->data ? out->data : "", out->len);
    }
    gs_buf_deinit(out);
}

void gs_api_reply_json(gs_http_request *rq, int status, gs_buf *out) {
    gs_api_reply(rq, status, "application/json", out);
}

static void get_health(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    const bool bad = a->watch.stalled;
    gs_buf out = {0};
    gs_buf_printf(&out, "{\"status\":\"%s\"}", bad ? "stalled" : "ok");
    gs_api_reply_json(rq, bad ? 503 : 200, &out);
}

static void get_ready(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_api_error e;
    if (a->watch.stalled) {
        gs_api_fail(&e, GS_ERR_UNAVAILABLE, NULL, "The compute backend does not answer.");
        gs_api_reply_error(rq, &e);
        return;
    }
    if (!gs_api_ready(a, &e)) {
        gs_api_reply_error(rq, &e);
        return;
    }
    gs_buf out = {0};
    gs_buf_str(&out, "{\"status\":\"ready\"}");
    gs_api_reply_json(rq, 200, &out);
}

/* ---- Models, tokeniser
 * ---------------------------------------------------------------------------------- */

static void model_object(gs_jsonw *w, const gs_api *a, const char *name, const gs_model_entry *m) {
    const int32_t context = gs_models_context(a, m);
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "id");
    gs_jsonw_str(w, name);
    gs_jsonw_key(w, "object");
    gs_jsonw_str(w, "model");
    gs_jsonw_key(w, "created");
    gs_jsonw_int(w, m->served ? m->served->created_s : a->cfg.model->created_s);
    gs_jsonw_key(w, "owned_by");
    gs_jsonw_str(w, "gamasot");
    if (context > 0) {
        gs_jsonw_key(w, "max_model_len");
        gs_jsonw_int(w, context);
    }
    gs_jsonw_key(w, "state");
    gs_jsonw_str(w, gs_model_state_name(m->state));
    if (m->state == GS_MODEL_LOADING) {
        gs_jsonw_key(w, "progress");
        gs_jsonw_num(w, (double)atomic_load(&m->percent) / 100.0);
    }
    gs_jsonw_end_obj(w);
}

/* A model that other machines have; which, /v1/workers says. */
static void lent_object(gs_jsonw *w, const gs_api *a, const char *name) {
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "id");
    gs_jsonw_str(w, name);
    gs_jsonw_key(w, "object");
    gs_jsonw_str(w, "model");
    gs_jsonw_key(w, "created");
    gs_jsonw_int(w, a->started_ms / 1000);
    gs_jsonw_key(w, "owned_by");
    gs_jsonw_str(w, "worker");
    gs_jsonw_end_obj(w);
}

static void get_models(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_buf out = {0};
    gs_jsonw w;
    gs_jsonw_init(&w, &out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "object");
    gs_jsonw_str(&w, "list");
    gs_jsonw_key(&w, "data");
    gs_jsonw_arr(&w);
    const char *name;
    for (int i = 0; (name = gs_api_served_name(a, i)); i++)
        model_object(&w, a, name, gs_models_served(a, i));
    for (int i = 0; (name = gs_lend_name_at(a, i)); i++)
        lent_object(&w, a, name);
    gs_jsonw_end_arr(&w);
    gs_jsonw_end_obj(&w);
    gs_api_reply_json(rq, 200, &out);
}

/* The OpenAI clients' models.retrieve. */
static void get_model(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    char want[256];
    const gs_model_alias *alias;
    const char *name;
    uint32_t number;
    gs_buf out = {0};
    gs_jsonw w;
    gs_route_param("/v1/models/{model}", gs_http_path(rq), want, sizeof(want));
    const gs_model_entry *m = gs_models_find(a, want, &alias);
    if (!m && gs_lend_model(a, want, &number, &name, &alias)) {
        gs_jsonw_init(&w, &out);
        lent_object(&w, a, name);
        gs_api_reply_json(rq, 200, &out);
        return;
    }
    if (!m) {
        gs_api_error e;
        gs_api_fail(&e, GS_ERR_NOT_FOUND, "model", "The model '%.80s' does not exist here.", want);
        e.name = "model_not_found";
        gs_api_reply_error(rq, &e);
        return;
    }
    gs_jsonw_init(&w, &out);
    model_object(&w, a, gs_api_find_name(a, want, &alias), m);
    gs_api_reply_json(rq, 200, &out);
}

static bool read_bool(const json_t *body, const char *name, bool *out, gs_api_error *e) {
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v))
        return true;
    if (!json_is_boolean(v)) {
        gs_api_fail(e, GS_ERR_INVALID, name, "'%s' must be true or false.", name);
        return false;
    }
    *out = json_is_true(v);
    return true;
}

static void tokenize(const gs_served_model *m, const json_t *body, gs_buf *out, gs_api_error *e) {
    bool add = false, parse = false;
    char err[256] = "";
    gs_ids ids = {0};
    const json_t *content = json_object_get(body, "content");
    if (!json_is_string(content)) {
        gs_api_fail(e, GS_ERR_INVALID, "content", "'content' must be a string.");
        return;
    }
    if (!read_bool(body, "add_special", &add, e) || !read_bool(body, "parse_special", &parse, e))
        return;
    int rc = gs_tok_encode(m->tokenizer, json_string_value(content), json_string_length(content),
                           (add ? GS_TOK_ADD_SPECIAL : 0) | (parse ? GS_TOK_PARSE_SPECIAL : 0),
                           &ids, err, sizeof(err));
    if (rc != 0) {
        gs_api_fail(e, rc, "content", "'content': %s", err[0] ? err : gs_err_text(rc));
    } else {
        gs_jsonw w;
        gs_jsonw_init(&w, out);
        gs_jsonw_obj(&w);
        gs_jsonw_key(&w, "tokens");
        gs_jsonw_arr(&w);
        for (size_t i = 0; i < ids.len; i++)
            gs_jsonw_int(&w, ids.data[i]);
        gs_jsonw_end_arr(&w);
        gs_jsonw_end_obj(&w);
    }
    gs_ids_deinit(&ids);
}

static void detokenize(const gs_served_model *m, const json_t *body, gs_buf *out, gs_api_error *e) {
    gs_ids ids = {0};
    gs_buf text = {0};
    const json_t *tokens = json_object_get(body, "tokens");
    size_t n = json_array_size(tokens);
    if (!json_is_array(tokens))
        gs_api_fail(e, GS_ERR_INVALID, "tokens", "'tokens' must be an array of token ids.");
    for (size_t i = 0; i < n && e->code == 0; i++) {
        const json_t *v = json_array_get(tokens, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) >= gs_tok_n_vocab(m->tokenizer))
            gs_api_fail(e, GS_ERR_INVALID, "tokens", "'tokens[%zu]' is no token id below %d.", i,
                        gs_tok_n_vocab(m->tokenizer));
        else if (gs_ids_push(&ids, (int32_t)json_integer_value(v)) != 0)
            gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
    }
    if (e->code == 0 && gs_tok_decode(m->tokenizer, ids.data, ids.len, true, &text) != 0)
        gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
    if (e->code == 0) {
        gs_jsonw w;
        gs_jsonw_init(&w, out);
        gs_jsonw_obj(&w);
        gs_jsonw_key(&w, "content");
        gs_jsonw_strn(&w, text.data ? text.data : "", text.len);
        gs_jsonw_end_obj(&w);
    }
    gs_ids_deinit(&ids);
    gs_buf_deinit(&text);
}

/* ---- Jobs: megabytes of text take the tokeniser half a second, which no stream may wait for ----
 */

struct gs_api_job {
    gs_api_job *next;
    gs_api *api;
    gs_http_request *rq; /* NULL once the client is gone */
    json_t *body;
    uv_work_t work;
    gs_api_job_fn fn;
    gs_model_entry *model; /* with fn: in use until the job is done; NULL: needs none */
    const gs_route *route; /* instead of fn: the body is read, for this one */
    bool gone;             /* the client is, while rq's body is still being read */
    gs_buf out;
    gs_api_error error;
};

static void parse(gs_api_job *j) {
    size_t n;
    const char *text = gs_http_body(j->rq, &n);
    j->body = gs_api_parse_json(text, n, &j->error);
}

static void job_run(uv_work_t *w) {
    gs_api_job *j = w->data;
    if (j->route) {
        parse(j);
        return;
    }
    j->fn(j->model ? j->model->served : NULL, j->body, &j->out, &j->error);
    if (j->error.code == 0 && j->out.failed)
        gs_api_fail(&j->error, GS_ERR_NOMEM, NULL, "Out of memory.");
    json_decref(j->body); /* here: a large one takes its time, too */
    j->body = NULL;
}

static void job_answer(gs_api_job *j) {
    if (j->model)
        gs_models_done(j->api, j->model);
    if (j->rq && j->error.code != 0)
        gs_api_reply_error(j->rq, &j->error);
    else if (j->rq)
        gs_api_reply_json(j->rq, 200, &j->out);
    gs_buf_deinit(&j->out);
    json_decref(j->body);
}

void gs_api_hand_over(gs_api *a, const gs_route *route, gs_http_request *rq, json_t *body) {
    gs_model_entry *m = NULL;
    if (route->flags & GS_ROUTE_USES)
        m = gs_models_of_body(a, body);
    if (m && m->state != GS_MODEL_READY && !gs_ollama_sends_away(route, body) &&
        !gs_lend_takes(a, m, route, body))
        gs_models_park(a, m, rq, body, route);
    else
        route->handle(a, rq, body);
}

/* The body that a worker has read: the route takes it from here. */
static void job_dispatch(gs_api_job *j) {
    size_t n;
    gs_http_body(j->rq, &n);
    bool ready = !(j->route->flags & GS_ROUTE_MODEL) || gs_api_ready(j->api, &j->error);
    if (!j->gone && j->error.code == 0 && ready) {
        gs_api_hand_over(j->api, j->route, j->rq, j->body);
        return;
    }
    gs_api_discard(j->api, j->body, n);
    if (j->gone)
        gs_http_end(j->rq);
    else
        gs_api_reply_error(j->rq, &j->error);
}

static void job_done(uv_work_t *w, int status) {
    gs_api_job *j = w->data, **at = &j->api->jobs;
    if (status != 0)
        gs_api_fail(&j->error, GS_ERR_UNAVAILABLE, NULL, "The server is shutting down.");
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    j->api->n_live--;
    if (j->route)
        job_dispatch(j);
    else
        job_answer(j);
    gs_free(j);
}

bool gs_api_job_gone(gs_api *a, gs_http_request *rq) {
    for (gs_api_job *j = a->jobs; j; j = j->next) {
        if (j->rq != rq)
            continue;
        j->gone = true;
        if (!j->route) {
            j->rq = NULL;
            gs_http_end(rq);
        }
        return true;
    }
    return false;
}

/* Hands a copy of the job to a worker. False: it could not be. */
static bool queue_job(const gs_api_job *here) {
    gs_api *a = here->api;
    gs_api_job *j = gs_malloc(sizeof(*j));
    if (!j)
        return false;
    *j = *here;
    j->work.data = j;
    if (uv_queue_work(a->loop, &j->work, job_run, job_done) != 0) {
        gs_free(j);
        return false;
    }
    j->next = a->jobs;
    a->jobs = j;
    a->n_live++;
    return true;
}

/* Answers at once when the body is small, else from a worker thread. Takes body. */
static void run_job(gs_api *a, gs_http_request *rq, json_t *body, gs_api_job_fn fn) {
    gs_api_job here = {
        .api = a, .rq = rq, .body = body, .fn = fn, .model = gs_models_of_body(a, body)};
    if (!here.model) {
        gs_api_check_model(a, body, &here.error);
        job_answer(&here);
        return;
    }
    gs_models_use(here.model);
    size_t body_bytes;
    gs_http_body(rq, &body_bytes);
    if (body_bytes > GS_API_INLINE_BYTES && queue_job(&here))
        return;
    here.work.data = &here;
    job_run(&here.work);
    job_answer(&here);
}

void gs_api_run_slow(gs_api *a, gs_http_request *rq, json_t *body, gs_api_job_fn fn) {
    gs_api_job here = {.api = a, .rq = rq, .body = body, .fn = fn};
    if (queue_job(&here))
        return;
    gs_api_fail(&here.error, GS_ERR_NOMEM, NULL, "Out of memory.");
    job_answer(&here);
}

/* ---- Trees that take long to free ---- */

typedef struct discard_work {
    uv_work_t work; /* first */
    json_t *v;
} discard_work;

static void discard_run(uv_work_t *w) {
    discard_work *d = (discard_work *)w;
    json_decref(d->v);
}

static void discard_done(uv_work_t *w, int status) {
    discard_work *d = (discard_work *)w;
    if (status != 0)
        json_decref(d->v);
    gs_free(d);
}

void gs_api_discard(gs_api *a, json_t *v, size_t body_bytes) {
    discard_work *d = NULL;
    if (v && body_bytes > GS_API_PARSE_BYTES)
        d = gs_malloc(sizeof(*d));
    if (d) {
        d->v = v;
        if (uv_queue_work(a->loop, &d->work, discard_run, discard_done) == 0)
            return;
        gs_free(d);
    }
    json_decref(v);
}

static void post_tokenize(gs_api *a, gs_http_request *rq, json_t *body) {
    run_job(a, rq, body, tokenize);
}

static void post_detokenize(gs_api *a, gs_http_request *rq, json_t *body) {
    run_job(a, rq, body, detokenize);
}

bool gs_template_takes_tools(const char *source) {
    return strstr(source, "tools") != NULL;
}

bool gs_template_thinks(const char *source) {
    return strstr(source, "enable_thinking") || strstr(source, "<think>") ||
           strstr(source, "reasoning_effort");
}

/* ---- Generation
 * -------------------------------------------------------------------------------------------- */

void gs_api_start(gs_api *a, gs_http_request *rq, json_t *body, json_t *note, const gs_dialect *d,
                  bool chat) {
    gs_api_error e = {0};
    const bool full = a->n_live >= a->cfg.max_live_requests;
    if (full)
        gs_api_fail(&e, GS_ERR_OVERLOADED, NULL, "Too many requests are being answered.");
    if (full || !gs_api_has_memory(a, &e)) {
        json_decref(body);
        json_decref(note);
        gs_api_reply_error(rq, &e);
        return;
    }
    gs_req_start(a, rq, body, note, d, chat);
}

static void post_chat(gs_api *a, gs_http_request *rq, json_t *body) {
    gs_api_start(a, rq, body, NULL, &gs_dialect_chat, true);
}

static void post_completion(gs_api *a, gs_http_request *rq, json_t *body) {
    gs_api_start(a, rq, body, NULL, &gs_dialect_completion, false);
}

static void get_openapi(gs_api *a, gs_http_request *rq, json_t *body);

static const gs_field tokenize_fields[] = {
    GS_ROW_NEEDED("content", 1, "{'type':'string'}", "The text."),
    GS_ROW_JSON("add_special", 1, "{'type':'boolean'}", "With the model's tokens around a text."),
    GS_ROW_JSON("parse_special", 1, "{'type':'boolean'}",
                "Read the spelling of control tokens as these tokens."),
    GS_ROWS_END,
};

static const gs_field detokenize_fields[] = {
    GS_ROW_NEEDED("tokens", 1, "{'type':'array','items':{'type':'integer','minimum':0}}",
                  "Token ids."),
    GS_ROWS_END,
};

// clang-format off
static const gs_route own_routes[] = {
    {"GET", "/health", GS_ROUTE_OPEN, get_health, "Whether the process answers", .answer = "Status"},
    {"GET", "/ready", GS_ROUTE_OPEN, get_ready, "Whether the model is loaded", .answer = "Status"},
    {"GET", "/metrics", 0, gs_api_get_metrics, "Prometheus metrics", .answer = "text/plain"},
    {"GET", "/openapi.json", 0, get_openapi, "This document", .answer = "Document"},
    {"POST", "/tokenize", GS_ROUTE_MODEL | GS_ROUTE_BODY | GS_ROUTE_USES, post_tokenize, "Text to token ids",
     .fields = tokenize_fields, .where = 1, .answer = "Tokens"},
    {"POST", "/detokenize", GS_ROUTE_MODEL | GS_ROUTE_BODY | GS_ROUTE_USES, post_detokenize, "Token ids to text",
     .fields = detokenize_fields, .where = 1, .answer = "Content"},
    {.path = NULL},
};

static const gs_route openai_routes[] = {
    {"GET", "/v1/models", GS_ROUTE_MODEL, get_models, "The models", .answer = "ModelList"},
    {"GET", "/v1/models/{model}", GS_ROUTE_MODEL, get_model, "One model", .answer = "Model"},
    {"POST", "/v1/chat/completions", GS_ROUTE_GENERATES, post_chat,
     "Answer a conversation", .fields = gs_gen_fields, .where = GS_IN_CHAT,
     .answer = "ChatCompletion", .stream = "text/event-stream"},
    {"POST", "/v1/completions", GS_ROUTE_GENERATES, post_completion,
     "Continue a text", .fields = gs_gen_fields, .where = GS_IN_TEXT,
     .answer = "Completion", .stream = "text/event-stream"},
    {.path = NULL},
};
// clang-format on

static const gs_api_part own_part = {"gamasot", "The server itself.", own_routes, gs_schemas_own};
static const gs_api_part openai_part = {"openai", "OpenAI's dialect.", openai_routes,
                                        gs_schemas_openai};

/* A row here makes a part's routes known. */
static const gs_api_part *const parts[] = {
    &own_part,           &openai_part,           &gs_api_part_embeddings,
    &gs_api_part_ollama, &gs_api_part_anthropic, &gs_api_part_responses,
    &gs_scheduling_part, &gs_live_part,          &gs_pages_part,
    &gs_api_part_files,  &gs_api_part_batches,   &gs_api_part_background,
    &gs_tuning_part,     &gs_history_part,       &gs_workers_part};
#define N_PARTS (sizeof(parts) / sizeof(parts[0]))

const gs_api_part *const *gs_api_parts(size_t *n) {
    *n = N_PARTS;
    return parts;
}

static void get_openapi(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)a;
    (void)body;
    gs_buf out = {0};
    gs_openapi_write(parts, N_PARTS, &out);
    gs_api_reply_json(rq, 200, &out);
}

/* ---- Dispatch ------------------------------------------------------------------------------ */

bool gs_route_matches(const char *pattern, const char *path) {
    while (*pattern) {
        if (*pattern == '{') {
            size_t n = strcspn(path, "/");
            if (n == 0)
                return false;
            path += n;
            pattern += strcspn(pattern, "}") + 1;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return *path == '\0';
}

void gs_route_param(const char *pattern, const char *path, char *out, size_t n) {
    const char *from = path;
    size_t len = 0;
    while (*pattern) {
        if (*pattern == '{') {
            from = path;
            len = strcspn(path, "/");
            path += len;
            pattern += strcspn(pattern, "}") + 1;
        } else {
            pattern++;
            path++;
        }
    }
    snprintf(out, n, "%.*s", (int)(len < n ? len : n - 1), from);
}

static bool method_matches(const char *have, const char *want) {
    return strcmp(have, want) == 0 || (strcmp(have, "HEAD") == 0 && strcmp(want, "GET") == 0);
}

/* Adds "GET, HEAD" for GET, else the method, once. */
static void add_method(gs_buf *allow, const char *method) {
    const char *text = strcmp(method, "GET") == 0 ? "GET, HEAD" : method;
    const char *have = gs_buf_cstr(allow);
    if (!have || strstr(have, text))
        return;
    if (allow->len > 0)
        gs_buf_str(allow, ", ");
    gs_buf_str(allow, text);
}

const gs_route *gs_api_find_route(const char *method, const char *path) {
    for (size_t i = 0; i < N_PARTS; i++)
        for (const gs_route *r = parts[i]->routes; r->path; r++)
            if (strcmp(method, r->method) == 0 && gs_route_matches(r->path, path))
                return r;
    return NULL;
}

static const gs_route *find_route(gs_http_request *rq, gs_api_error *e) {
    const char *path = gs_http_path(rq), *method = gs_http_method(rq);
    gs_buf allow = {0};
    for (size_t i = 0; i < N_PARTS; i++) {
        for (const gs_route *r = parts[i]->routes; r->path; r++) {
            if (!gs_route_matches(r->path, path))
                continue;
            if (method_matches(method, r->method)) {
                gs_buf_deinit(&allow);
                return r;
            }
            add_method(&allow, r->method);
        }
    }
    const char *methods = allow.len > 0 ? gs_buf_cstr(&allow) : NULL;
    if (methods) {
        gs_http_add_header(rq, "Allow", methods);
        gs_api_fail(e, GS_ERR_METHOD, NULL, "%.128s answers %s only.", path, methods);
    } else {
        gs_api_fail(e, GS_ERR_NOT_FOUND, NULL, "There is no %s %.128s here.", method, path);
    }
    gs_buf_deinit(&allow);
    return NULL;
}

static void preflight(gs_api *a, gs_http_request *rq) {
    gs_api_error e;
    if (!gs_api_origin_ok(a, rq)) {
        gs_api_fail(&e, GS_ERR_FORBIDDEN, NULL, "This origin is not allowed.");
        gs_api_reply_error(rq, &e);
        return;
    }
    gs_http_add_header(rq, "Access-Control-Allow-Methods", "GET, HEAD, POST, PATCH, DELETE");
    /* Client libraries send headers of their own by the dozen; whose page it is has been settled.
     */
    const char *asked = gs_http_header(rq, "access-control-request-headers");
    gs_http_add_header(rq, "Access-Control-Allow-Headers",
                       asked ? asked : "authorization, content-type, x-api-key, x-gamasot-class");
    gs_http_add_header(rq, "Access-Control-Max-Age", "600");
    gs_http_reply(rq, 204, NULL, "", 0);
}

static bool is_json_type(const char *type) {
    return type && strncasecmp(type, "application/json", 16) == 0 &&
           (type[16] == '\0' || type[16] == ';' || type[16] == ' ');
}

/* Browsers say where a request comes from; curl and small scripts do not, and often say nothing
 * of the body's type either. */
static bool from_browser(const gs_http_request *rq) {
    return gs_http_header(rq, "origin") || gs_http_header(rq, "sec-fetch-site") ||
           gs_http_header(rq, "referer");
}

static int check_type(gs_http_request *rq, unsigned flags, gs_api_error *e) {
    bool any_type = (flags & GS_ROUTE_ANY_TYPE) && !from_browser(rq);
    /* Other types are what a foreign page may send without asking first (CSRF). */
    if (any_type || is_json_type(gs_http_header(rq, "content-type")))
        return 0;
    return gs_api_fail(e, GS_ERR_MEDIA_TYPE, NULL,
                       "Send the body with 'Content-Type: application/json'.");
}

/* Reads the body, here or on a worker thread, and hands the request to its route. */
static void read_body(gs_api *a, gs_http_request *rq, const gs_route *r) {
    gs_api_job here = {.api = a, .rq = rq, .route = r};
    size_t n;
    gs_http_body(rq, &n);
    if (n > GS_API_PARSE_BYTES && queue_job(&here))
        return;
    parse(&here);
    job_dispatch(&here);
}

void gs_api_on_request(void *user, gs_http_request *rq) {
    gs_api *a = user;
    gs_api_error e = {0};
    const char *origin = gs_http_header(rq, "origin");
    if (origin && gs_api_origin_ok(a, rq)) {
        gs_http_add_header(rq, "Access-Control-Allow-Origin", origin);
        gs_http_add_header(rq, "Access-Control-Expose-Headers",
                           "X-Request-Id, X-Gamasot-Class, X-Gamasot-Queue, Retry-After");
        gs_http_add_header(rq, "Vary", "Origin");
    }
    if (strcmp(gs_http_method(rq), "OPTIONS") == 0) {
        preflight(a, rq);
        return;
    }
    const gs_route *r = find_route(rq, &e);
    if (!r)
        goto fail;
    if (!(r->flags & GS_ROUTE_OPEN) && gs_api_check_access(a, rq, &e) != 0)
        goto fail;
    if ((r->flags & GS_ROUTE_ADMIN) && gs_api_check_admin(a, rq, &e) != 0)
        goto fail;
    if ((r->flags & GS_ROUTE_MODEL) && !gs_api_ready(a, &e))
        goto fail;
    if ((r->flags & GS_ROUTE_BODY) && check_type(rq, r->flags, &e) != 0)
        goto fail;
    if (r->flags & GS_ROUTE_BODY)
        read_body(a, rq, r);
    else
        r->handle(a, rq, NULL);
    return;
fail:
    if (e.code == GS_ERR_UNAUTHORIZED)
        gs_http_add_header(rq, "WWW-Authenticate", "Bearer");
    gs_api_reply_error(rq, &e);
}
