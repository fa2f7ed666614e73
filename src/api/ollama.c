/* Ollama's dialect: its routes, and the answers that need no model. */
#include <stdio.h>
#include <string.h>

#include "api/lend.h"
#include "api/ollama.h"
#include "base/err.h"

/* An empty request loads the model, which it is by now, or sends it away. */
static void reply_loaded(const gs_api *a, gs_http_request *rq, const json_t *body, bool chat,
                         bool unload) {
    const char *asked = json_string_value(json_object_get(body, "model"));
    char now[48];
    gs_buf out = {0};
    gs_jsonw w;
    gs_ollama_now(now, sizeof(now));
    gs_jsonw_init(&w, &out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "model");
    gs_jsonw_str(&w, asked && *asked ? asked : a->cfg.model->name);
    gs_jsonw_key(&w, "created_at");
    gs_jsonw_str(&w, now);
    if (chat) {
        gs_jsonw_key(&w, "message");
        gs_jsonw_obj(&w);
        gs_jsonw_key(&w, "role");
        gs_jsonw_str(&w, "assistant");
        gs_jsonw_key(&w, "content");
        gs_jsonw_str(&w, "");
        gs_jsonw_end_obj(&w);
    } else {
        gs_jsonw_key(&w, "response");
        gs_jsonw_str(&w, "");
    }
    gs_jsonw_key(&w, "done");
    gs_jsonw_bool(&w, true);
    gs_jsonw_key(&w, "done_reason");
    gs_jsonw_str(&w, unload ? "unload" : "load");
    gs_jsonw_end_obj(&w);
    gs_api_reply_json(rq, 200, &out);
}

typedef int (*read_fn)(const json_t *body, const char *model, gs_ollama_in *out, gs_api_error *e);

static void answer(gs_api *a, gs_http_request *rq, json_t *body, read_fn read,
                   const gs_dialect *d) {
    gs_api_error e = {0};
    gs_ollama_in in = {0};
    size_t body_bytes;
    gs_http_body(rq, &body_bytes);
    const char *want = json_string_value(json_object_get(body, "model"));
    bool ok = ((want && gs_lend_knows(a, want)) || gs_api_check_model(a, body, &e) == 0) &&
              read(body, a->cfg.model->name, &in, &e) == 0;
    if (!ok)
        gs_api_reply_error(rq, &e);
    gs_model_entry *m = ok ? gs_models_of_body(a, body) : NULL;
    if (m && in.keep_ns != GS_OLLAMA_KEEP_UNSAID)
        gs_models_keep(m, in.keep_ns);
    if (m && !in.body) { /* a use of no length: it counts from now, or goes */
        gs_models_use(m);
        gs_models_done(a, m);
    }
    if (ok && !in.body)
        reply_loaded(a, rq, body, d == &gs_dialect_ollama_chat, in.keep_ns == 0);
    gs_api_discard(a, body, body_bytes);
    if (ok && in.body)
        gs_api_start(a, rq, in.body, NULL, d, in.chat);
}

static void post_chat(gs_api *a, gs_http_request *rq, json_t *body) {
    answer(a, rq, body, gs_ollama_chat_in, &gs_dialect_ollama_chat);
}

static void post_generate(gs_api *a, gs_http_request *rq, json_t *body) {
    answer(a, rq, body, gs_ollama_generate_in, &gs_dialect_ollama_generate);
}

#define GENERATES (GS_ROUTE_GENERATES | GS_ROUTE_ANY_TYPE)

#define MANAGES   (GS_ROUTE_BODY | GS_ROUTE_ADMIN | GS_ROUTE_MODEL | GS_ROUTE_ANY_TYPE)

// clang-format off
static const gs_field manage_fields[] = {
    GS_ROW_JSON("model", 1, "{'type':'string'}", "The model's own name."),
    GS_ROW_JSON("name", 1, "{'type':'string'}", "Older name of model."),
    GS_ROW_NEEDED("source", 2, "{'type':'string'}", "The model's own name."),
    GS_ROW_NEEDED("destination", 2, "{'type':'string'}", "Its second name."),
    GS_ROWS_END,
};

static const gs_route routes[] = {
    {"GET", "/", GS_ROUTE_OPEN, gs_ollama_root,
     "Says that the server runs; sends browsers to the dashboard", .answer = "text/plain"},
    {"POST", "/api/chat", GENERATES, post_chat, "Answer a conversation",
     .fields = gs_ollama_fields, .where = 1, .answer = "OllamaChat", .stream = "application/x-ndjson"},
    {"POST", "/api/generate", GENERATES, post_generate, "Answer or continue a text",
     .fields = gs_ollama_fields, .where = 2, .answer = "OllamaText", .stream = "application/x-ndjson"},
    {"GET", "/api/tags", GS_ROUTE_MODEL, gs_ollama_tags, "The models", .answer = "OllamaModels"},
    {"GET", "/api/ps", GS_ROUTE_MODEL, gs_ollama_ps, "The models in memory", .answer = "OllamaModels"},
    {"POST", "/api/show", GS_ROUTE_MODEL | GS_ROUTE_BODY | GS_ROUTE_ANY_TYPE, gs_ollama_show,
     "What a model is and can do", .fields = gs_ollama_fields, .where = 4, .answer = "OllamaModel"},
    {"POST", "/api/pull", MANAGES, gs_pulls_post, "Bring a model here", .fields = gs_pull_fields,
     .where = 1, .answer = "OllamaPull", .stream = "application/x-ndjson"},
    {"DELETE", "/api/delete", MANAGES, gs_models_post_delete, "Remove a model that was pulled",
     .fields = manage_fields, .where = 1, .answer = "text/plain"},
    {"POST", "/api/copy", MANAGES, gs_models_post_copy, "Give a model a second name",
     .fields = manage_fields, .where = 2, .answer = "text/plain"},
    {"GET", "/api/version", 0, gs_ollama_version, "The release whose API this dialect follows",
     .answer = "OllamaVersion"},
    {.path = NULL},
};

#define TEXT  "{'type':'string'}"
#define COUNT "{'type':'integer','minimum':0}"
#define DETAILS                                                                                    \
    "{'type':'object','properties':{'format':" TEXT ",'family':" TEXT ",'parameter_size':" TEXT     \
    ",'quantization_level':" TEXT "}}"
#define DONE                                                                                       \
    "'done':{'type':'boolean'},'done_reason':{'type':'string','enum':['stop','length','load',"      \
    "'unload']},'total_duration':" COUNT ",'load_duration':" COUNT ",'prompt_eval_count':" COUNT    \
    ",'prompt_eval_duration':" COUNT ",'eval_count':" COUNT ",'eval_duration':" COUNT

static const gs_schema schemas[] = {
    {"OllamaError", "{'type':'object','required':['error'],'properties':{'error':" TEXT "}}"},
    {"OllamaChat",
     "{'type':'object','required':['model','created_at','message','done'],'properties':{"
     "'model':" TEXT ",'created_at':" TEXT ",'message':{'type':'object','required':['role',"
     "'content'],'properties':{'role':{'const':'assistant'},'content':" TEXT ",'thinking':" TEXT
     ",'tool_calls':{'type':'array'}}}," DONE "}}"},
    {"OllamaText",
     "{'type':'object','required':['model','created_at','response','done'],'properties':{"
     "'model':" TEXT ",'created_at':" TEXT ",'response':" TEXT ",'thinking':" TEXT "," DONE "}}"},
    {"OllamaModels",
     "{'type':'object','required':['models'],'properties':{'models':{'type':'array','items':{"
     "'type':'object','required':['name','model','size','digest','details'],'properties':{"
     "'name':" TEXT ",'model':" TEXT ",'size':" COUNT ",'digest':" TEXT ",'details':" DETAILS "}}}}}"},
    {"OllamaModel",
     "{'type':'object','required':['parameters','template','details','model_info','capabilities'],"
     "'properties':{'parameters':" TEXT ",'template':" TEXT ",'details':" DETAILS
     ",'model_info':{'type':'object'},'capabilities':{'type':'array','items':" TEXT "}}}"},
    {"OllamaPull", "{'type':'object','properties':{'status':" TEXT ",'digest':" TEXT ",'total':" COUNT
     ",'completed':" COUNT ",'error':" TEXT "}}"},
    {"OllamaVersion", "{'type':'object','required':['version'],'properties':{'version':" TEXT "}}"},
    {NULL, NULL},
};
// clang-format on

const gs_api_part gs_api_part_ollama = {"ollama", "Ollama's dialect.", routes, schemas};
