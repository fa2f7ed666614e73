/* Ollama's endpoints about models: which there are, which are in memory, what they are. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/lend.h"
#include "api/ollama.h"
#include "base/clock.h"
#include "base/err.h"

/* Clients compare it to learn what the dialect can do: the release whose API this one follows. */
#define API_VERSION "0.12.6"

static void key_str(gs_jsonw *w, const char *key, const char *value) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, value);
}

static void key_time(gs_jsonw *w, const char *key, int64_t wall_s) {
    char text[40] = "";
    struct tm tm;
    time_t t = (time_t)wall_s;
    if (gmtime_r(&t, &tm))
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
    key_str(w, key, text);
}

/* Names have a tag here: some clients add ":latest" before they look a name up in the list. */
static void put_name(gs_jsonw *w, const char *name) {
    char full[160];
    snprintf(full, sizeof(full), "%s%s", name, strchr(name, ':') ? "" : ":latest");
    key_str(w, "name", full);
    key_str(w, "model", full);
}

static void put_details(gs_jsonw *w, const gs_model_facts *f) {
    gs_jsonw_key(w, "details");
    gs_jsonw_obj(w);
    key_str(w, "parent_model", "");
    key_str(w, "format", "gguf");
    key_str(w, "family", f->architecture);
    gs_jsonw_key(w, "families");
    gs_jsonw_arr(w);
    gs_jsonw_str(w, f->architecture);
    gs_jsonw_end_arr(w);
    key_str(w, "parameter_size", f->parameter_size);
    key_str(w, "quantization_level", f->quantization);
    gs_jsonw_end_obj(w);
}

static void put_size(gs_jsonw *w, const gs_model_facts *f) {
    gs_jsonw_key(w, "size");
    gs_jsonw_int(w, (int64_t)f->file_bytes);
    key_str(w, "digest", f->digest);
    put_details(w, f);
}

/* A model of other machines: nothing but its name is known. */
static void put_lent(gs_jsonw *w, const gs_api *a, const char *name) {
    const gs_model_facts nothing = {0};
    gs_jsonw_obj(w);
    put_name(w, name);
    put_size(w, &nothing);
    key_time(w, "modified_at", a->started_ms / 1000);
    gs_jsonw_end_obj(w);
}

/* {"models": [...]}: the names, each with the members that tags and ps share and those of rest;
 * loaded: only of models in memory. */
static void list_models(gs_buf *out, const gs_api *a, bool loaded,
                        void (*rest)(gs_jsonw *w, const gs_api *a, const gs_model_entry *m)) {
    gs_jsonw w;
    const char *name;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "models");
    gs_jsonw_arr(&w);
    for (int i = 0; (name = gs_api_served_name(a, i)); i++) {
        const gs_model_entry *m = gs_models_served(a, i);
        if (loaded && m->state < GS_MODEL_LOADING)
            continue;
        gs_jsonw_obj(&w);
        put_name(&w, name);
        put_size(&w, gs_models_facts(a, m));
        rest(&w, a, m);
        gs_jsonw_end_obj(&w);
    }
    for (int i = 0; !loaded && (name = gs_lend_name_at(a, i)); i++)
        put_lent(&w, a, name);
    gs_jsonw_end_arr(&w);
    gs_jsonw_end_obj(&w);
}

static int64_t modified_s(const gs_api *a, const gs_model_entry *m) {
    return m->spec && m->spec->modified_s > 0 ? m->spec->modified_s : a->cfg.model->created_s;
}

static void tags_rest(gs_jsonw *w, const gs_api *a, const gs_model_entry *m) {
    key_time(w, "modified_at", modified_s(a, m));
}

void gs_ollama_tags(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_buf out = {0};
    list_models(&out, a, false, tags_rest);
    gs_api_reply_json(rq, 200, &out);
}

static void ps_rest(gs_jsonw *w, const gs_api *a, const gs_model_entry *m) {
    const int64_t expires_ns = gs_models_expires_ns(a, m);
    if (expires_ns == GS_NEVER_NS)
        key_str(w, "expires_at", GS_OLLAMA_FOREVER);
    else
        key_time(w, "expires_at",
                 (gs_wall_ms() + (expires_ns - gs_now_ns()) / GS_NS_PER_MS + 500) / 1000);
    gs_jsonw_key(w, "size_vram"); /* all of it is in main memory */
    gs_jsonw_int(w, 0);
    gs_jsonw_key(w, "context_length");
    gs_jsonw_int(w, gs_models_context(a, m));
    key_str(w, "state", gs_model_state_name(m->state));
    if (m->state == GS_MODEL_LOADING) {
        gs_jsonw_key(w, "progress");
        gs_jsonw_num(w, (double)atomic_load(&m->percent) / 100.0);
    }
}

void gs_ollama_ps(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_buf out = {0};
    list_models(&out, a, true, ps_rest);
    gs_api_reply_json(rq, 200, &out);
}

void gs_ollama_version(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)a;
    (void)body;
    gs_buf out = {0};
    gs_buf_str(&out, "{\"version\":\"" API_VERSION "\",\"server\":\"gamasot\"}");
    gs_api_reply_json(rq, 200, &out);
}

/* ---- /api/show
 * --------------------------------------------------------------------------------------- */

/* Lines of a name, white space and a value; clients match each line, so none may be empty. */
static void put_parameters(gs_jsonw *w, const gs_api *a, const gs_model_entry *m) {
    gs_buf text = {0}, quoted = {0};
    const gs_tokenizer *t = m->served ? m->served->tokenizer : NULL;
    size_t n_eog = 0;
    const int32_t *eog = t ? gs_tok_eog(t, &n_eog) : NULL;
    gs_buf_printf(&text, "%-30s %d", "num_ctx", gs_models_context(a, m));
    for (size_t i = 0; i < n_eog; i++) {
        gs_str s = gs_tok_spelling(t, eog[i]);
        gs_jsonw q;
        gs_buf_clear(&quoted);
        gs_jsonw_init(&q, &quoted);
        gs_jsonw_strn(&q, s.data, s.len);
        gs_buf_printf(&text, "\n%-30s %.*s", "stop", (int)quoted.len, quoted.data);
    }
    w->out->failed |= text.failed || quoted.failed;
    gs_jsonw_key(w, "parameters");
    gs_jsonw_strn(w, text.data ? text.data : "", text.len);
    gs_buf_deinit(&text);
    gs_buf_deinit(&quoted);
}

/* In memory the template that is used, else the file's own. */
static const char *template_of(const gs_model_entry *m, const gs_model_facts *facts) {
    if (m->served)
        return gs_chat_template_source(m->served->chat);
    return facts->chat_template ? facts->chat_template : "";
}

/* The model's own Jinja template. Clients look for Ollama's variable names in it to learn what the
 * model takes, so a comment at its end names them. */
static void put_template(gs_jsonw *w, const char *source, const gs_model_facts *facts) {
    const bool tools = gs_template_takes_tools(source);
    gs_buf text = {0};
    gs_buf_printf(&text, "%s{# .Prompt%s%s #}", source, tools ? " .Tools" : "",
                  facts->has_fim ? " .Suffix" : "");
    w->out->failed |= text.failed;
    gs_jsonw_key(w, "template");
    gs_jsonw_strn(w, text.data ? text.data : "", text.len);
    gs_buf_deinit(&text);
}

static void put_capabilities(gs_jsonw *w, const gs_api *a, const gs_model_entry *m,
                             const char *source, const gs_model_facts *facts) {
    bool embeds = facts->embeds, encoder = facts->encoder;
    if (m->served) {
        gs_backend_info info;
        gs_engine_lane_info(a->engine, m->served->lane, &info);
        embeds = info.pooling != GS_POOLING_NONE && info.pooling != GS_POOLING_RANK;
        encoder = info.whole_prompts;
    }
    gs_jsonw_key(w, "capabilities");
    gs_jsonw_arr(w);
    if (embeds)
        gs_jsonw_str(w, "embedding");
    if (!encoder && (m->served || facts->architecture[0])) {
        gs_jsonw_str(w, "completion");
        if (gs_template_takes_tools(source))
            gs_jsonw_str(w, "tools");
        if (facts->has_fim)
            gs_jsonw_str(w, "insert");
        if (gs_template_thinks(source))
            gs_jsonw_str(w, "thinking");
    }
    gs_jsonw_end_arr(w);
}

/* Of a model that is not in memory only what its file says is known. */
static void show(gs_api *a, const gs_model_entry *m, const char *name, gs_buf *out) {
    const gs_model_facts *facts = gs_models_facts(a, m);
    const char *info = facts->info_json ? facts->info_json : "{}";
    const char *source = template_of(m, facts);
    gs_jsonw w;
    char modelfile[160];
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    snprintf(modelfile, sizeof(modelfile), "FROM %s\n", name);
    key_str(&w, "modelfile", modelfile);
    put_parameters(&w, a, m);
    put_template(&w, source, facts);
    put_details(&w, facts);
    gs_jsonw_key(&w, "model_info");
    gs_jsonw_raw(&w, info, strlen(info));
    put_capabilities(&w, a, m, source, facts);
    key_time(&w, "modified_at", modified_s(a, m));
    gs_jsonw_end_obj(&w);
}

void gs_ollama_show(gs_api *a, gs_http_request *rq, json_t *body) {
    gs_api_error e = {0};
    const json_t *name = json_object_get(body, "name"); /* what older clients send */
    json_t *asked = name && !json_object_get(body, "model") ? json_pack("{s:O}", "model", name)
                                                            : json_incref(body);
    json_decref(body);
    if (!asked)
        gs_api_fail(&e, GS_ERR_NOMEM, NULL, "Out of memory.");
    if (asked && gs_api_check_model(a, asked, &e) == 0) {
        gs_buf out = {0};
        const gs_model_alias *alias;
        const char *want = json_string_value(json_object_get(asked, "model"));
        const gs_model_entry *m = gs_models_find(a, want ? want : "", &alias);
        show(a, m, gs_api_find_name(a, want ? want : "", &alias), &out);
        gs_api_reply_json(rq, 200, &out);
    } else {
        gs_api_reply_error(rq, &e);
    }
    json_decref(asked);
}

/* ---- / ------------------------------------------------------------------------------------- */

/* A browser is sent to the page for people, everything else is told what clients look for. */
void gs_ollama_root(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)a;
    (void)body;
    static const char text[] = "Ollama is running";
    const char *accept = gs_http_header(rq, "accept");
    if (strcmp(gs_http_method(rq), "GET") == 0 && accept && strstr(accept, "text/html")) {
        gs_http_add_header(rq, "Location", "/dashboard");
        gs_http_reply(rq, 302, NULL, "", 0);
        return;
    }
    gs_http_reply(rq, 200, "text/plain; charset=utf-8", text, sizeof(text) - 1);
}
