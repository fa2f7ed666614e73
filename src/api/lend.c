#include "api/lend.h"

#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"
#include "api/bills.h"
#include "api/embed.h"
#include "api/ollama.h"
#include "api/settings.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"

#define RECORD_BIT   (UINT64_C(1) << 63) /* of ids: no sequence of the engine */
#define HEADERS_NS   (3 * GS_NS_PER_S)
#define OPEN_OUTPUT  16384 /* tokens of an answer whose length is open, at most */
#define GUESS_OUTPUT 512   /* and what is planned for it */
#define TEXT_BYTES   4     /* of a token, about */
#define TEXTS_EACH   32    /* in one request for vectors */
#define MAX_REQUESTS 4096

/* ---- Bodies -------------------------------------------------------------------------------- */

/* Members that a worker gets as they are; what is not here is ours, or nobody's business there
 * (`user`, `metadata`). What comes first is first in the text, by which prompts are compared.
 * option: what Ollama's dialect calls it among its `options`; NULL: it has none. */
static const struct {
    const char *name, *option;
    unsigned where;
} forwarded[] = {{"messages", NULL, GS_IN_CHAT},
                 {"tools", NULL, GS_IN_CHAT},
                 {"tool_choice", NULL, GS_IN_CHAT},
                 {"parallel_tool_calls", NULL, GS_IN_CHAT},
                 {"response_format", NULL, GS_IN_CHAT},
                 {"chat_template_kwargs", NULL, GS_IN_CHAT},
                 {"reasoning_effort", NULL, GS_IN_CHAT},
                 {"suffix", NULL, GS_IN_TEXT},
                 {"max_tokens", "num_predict", GS_IN_BOTH},
                 {"max_completion_tokens", NULL, GS_IN_BOTH},
                 {"temperature", "temperature", GS_IN_BOTH},
                 {"top_p", "top_p", GS_IN_BOTH},
                 {"top_k", "top_k", GS_IN_BOTH},
                 {"min_p", "min_p", GS_IN_BOTH},
                 {"typical_p", "typical_p", GS_IN_BOTH},
                 {"presence_penalty", "presence_penalty", GS_IN_BOTH},
                 {"frequency_penalty", "frequency_penalty", GS_IN_BOTH},
                 {"repeat_penalty", "repeat_penalty", GS_IN_BOTH},
                 {"repetition_penalty", NULL, GS_IN_BOTH},
                 {"repeat_last_n", "repeat_last_n", GS_IN_BOTH},
                 {"ignore_eos", NULL, GS_IN_BOTH},
                 {"logit_bias", NULL, GS_IN_BOTH},
                 {"grammar", NULL, GS_IN_BOTH},
                 {"stop", "stop", GS_IN_BOTH}};

/* "name":value, after a comma where there is something before it. */
static void add_member(gs_buf *out, const char *name, const json_t *v) {
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text)
        gs_buf_printf(out, "%s\"%s\":%s", out->len > 0 ? "," : "", name, text);
    else
        out->failed = true;
    free(text);
}

static void add_members(gs_buf *out, const json_t *body, unsigned where) {
    const json_t *options = json_object_get(body, "options");
    for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++) {
        const json_t *v = json_object_get(body, forwarded[i].name);
        if (!v && forwarded[i].option)
            v = json_object_get(options, forwarded[i].option);
        if (forwarded[i].option && json_is_integer(v) && json_integer_value(v) < 0)
            continue; /* num_predict and top_k: no limit, which is the default there, too */
        if ((forwarded[i].where & where) && v && !json_is_null(v))
            add_member(out, forwarded[i].name, v);
    }
}

/* What of the request no worker can do; NULL: nothing. */
static const char *obstacle(const gs_req *r) {
    const json_t *prompt = json_object_get(r->body, "prompt");
    const json_t *input = json_object_get(r->body, "input");
    if (r->dialect->embeds)
        return r->dialect->embeds->rank                                            ? "model"
               : json_is_array(input) && !json_is_string(json_array_get(input, 0)) ? "input"
                                                                                   : NULL;
    if (r->dialect->prompt_only)
        return "model";
    if (r->p.sampler.n_logprobs >= 0)
        return "logprobs";
    if (r->p.echo)
        return "echo";
    if (!r->p.chat && json_is_array(prompt) && !json_is_string(json_array_get(prompt, 0)))
        return "prompt";
    return NULL;
}

static int prepare_prompts(gs_req *r) {
    const json_t *prompt = json_object_get(r->body, "prompt");
    r->n_lent = r->n_prompts;
    r->lent = gs_calloc((size_t)r->n_lent, sizeof(*r->lent));
    for (int32_t i = 0; r->lent && i < r->n_lent; i++) {
        if (!r->p.chat)
            add_member(&r->lent[i], "prompt",
                       json_is_array(prompt) ? json_array_get(prompt, (size_t)i) : prompt);
        add_members(&r->lent[i], r->body, r->p.chat ? GS_IN_CHAT : GS_IN_TEXT);
    }
    return r->lent ? 0 : GS_ERR_NOMEM;
}

/* One piece of so many texts after the other. */
static int prepare_texts(gs_req *r) {
    json_t *input = json_object_get(r->body, r->dialect->embeds->input);
    r->n_lent = (r->n_prompts + TEXTS_EACH - 1) / TEXTS_EACH;
    r->lent = gs_calloc((size_t)r->n_lent, sizeof(*r->lent));
    for (int32_t i = 0; r->lent && i < r->n_lent; i++) {
        json_t *part = json_array();
        for (int32_t k = i * TEXTS_EACH; part && k < r->n_prompts && k < (i + 1) * TEXTS_EACH; k++)
            json_array_append(part,
                              json_is_array(input) ? json_array_get(input, (size_t)k) : input);
        add_member(&r->lent[i], "input", part);
        gs_buf_str(&r->lent[i], ",\"encoding_format\":\"float\"");
        json_decref(part);
    }
    return r->lent ? 0 : GS_ERR_NOMEM;
}

int gs_lend_prepare(gs_req *r) {
    const char *field = obstacle(r);
    if (field && r->m) {
        r->lends = false;
        return 0;
    }
    if (field)
        return gs_api_fail(&r->error, GS_ERR_UNSUPPORTED, field,
                           "'%s': the model '%.80s' is another machine's, which can't be asked for "
                           "that.",
                           field, r->model);
    int rc = r->n_prompts == 0 ? 0 : r->dialect->embeds ? prepare_texts(r) : prepare_prompts(r);
    for (int32_t i = 0; rc == 0 && i < r->n_lent; i++)
        rc = r->lent[i].failed ? GS_ERR_NOMEM : 0;
    return rc ? gs_api_fail(&r->error, rc, NULL, "Out of memory.") : 0;
}

void gs_lend_deinit(gs_req *r) {
    for (int32_t i = 0; r->lent && i < r->n_lent; i++)
        gs_buf_deinit(&r->lent[i]);
    gs_free(r->lent);
}

/* ---- Models -------------------------------------------------------------------------------- */

bool gs_lend_model(const gs_api *a, const char *want, uint32_t *model, const char **name,
                   const gs_model_alias **alias) {
    *alias = NULL;
    if (!gs_workers_any(a->workers))
        return false;
    if (gs_workers_model(a->workers, want, model, name))
        return true;
    const gs_model_alias *x = gs_models_alias(a, want);
    if (!x || !gs_workers_model(a->workers, x->model, model, name))
        return false;
    *alias = x;
    *name = x->name;
    return true;
}

bool gs_lend_knows(const gs_api *a, const char *want) {
    uint32_t model;
    const char *name;
    const gs_model_alias *alias;
    return gs_lend_model(a, want, &model, &name, &alias);
}

const char *gs_lend_name_at(const gs_api *a, int i) {
    const gs_model_alias *alias;
    const char *name;
    uint32_t model;
    for (int k = 0; (name = gs_workers_model_at(a->workers, k)); k++)
        if (!gs_api_find_name(a, name, &alias) && i-- == 0)
            return name;
    for (int k = 0; k < a->cfg.n_aliases; k++)
        if (!gs_api_find_name(a, a->cfg.aliases[k].name, &alias) &&
            gs_lend_model(a, a->cfg.aliases[k].name, &model, &name, &alias) && alias && i-- == 0)
            return name;
    return NULL;
}

void gs_lend_find(gs_req *r, const char *want) {
    const gs_model_alias *alias;
    const char *name;
    if (r->m)
        want = gs_models_lane_name(r->api, r->m->lane);
    r->lends = gs_lend_model(r->api, want, &r->lent_model, &name, &alias);
    if (!r->m && r->lends) {
        r->model = name;
        r->alias = alias;
    }
}

bool gs_lend_cold(gs_req *r, gs_model_entry *m) {
    const char *asked = json_string_value(json_object_get(r->body, "model"));
    gs_lend_find(r, gs_models_name(r->api, m));
    if (!r->lends)
        return false;
    r->cold = m;
    r->model = gs_api_find_name(r->api, asked ? asked : "", &r->alias);
    return true;
}

bool gs_lend_fits(const gs_req *r) {
    return !r->dialect->embeds && r->n_prompts * r->p.n == 1 && !obstacle(r);
}

bool gs_lend_takes(const gs_api *a, const gs_model_entry *m, const gs_route *route,
                   const json_t *body) {
    return (route->flags & GS_ROUTE_GENERATES) == GS_ROUTE_GENERATES &&
           !gs_ollama_only_loads(route, body) && gs_lend_knows(a, gs_models_name(a, m));
}

void gs_lend_tell_local(gs_api *a) {
    const char *names[GS_PLACE_MODELS];
    gs_backend_info info;
    int n = 0;
    if (a->workers_told || !gs_workers_any(a->workers) ||
        gs_engine_get_state(a->engine) != GS_ENGINE_READY)
        return;
    while (n < GS_PLACE_MODELS && (names[n] = gs_api_served_name(a, n)))
        n++;
    gs_engine_lane_info(a->engine, 0, &info);
    a->workers_told =
        gs_workers_set_local(a->workers, names, n, info.max_seqs > 0 ? info.max_seqs : 1) == 0;
}

/* ---- Jobs ---------------------------------------------------------------------------------- */

static int32_t about(size_t tokens, size_t bytes) {
    const size_t n = tokens > 0 ? tokens : bytes / TEXT_BYTES + 1;
    return n < INT32_MAX / 2 ? (int32_t)n : INT32_MAX / 2;
}

static gs_job job_for(const gs_req *r, const gs_buf *body) {
    gs_job j = {.model = r->lent_model,
                .cls = r->cls,
                .person = r->person,
                .cache_scope = r->cache_scope,
                .only_local = !r->lends,
                .only_remote = !r->m && !r->cold,
                .arrival_ns = r->began_ns};
    if (body) {
        j.members = body->data;
        j.n_members = body->len;
    }
    if (!r->lends && r->m)
        j.model = gs_workers_model_number(r->api->workers, gs_models_lane_name(r->api, r->m->lane));
    return j;
}

static void refused(gs_req *r, int code) {
    const char *text = code == GS_ERR_OVERLOADED ? "Too many requests wait for workers."
                       : code == GS_ERR_CONTEXT  ? "No worker has room for a prompt of this length."
                                                : "No worker may answer this model for this class.";
    gs_api_fail(&r->error, code == GS_ERR_NOT_FOUND ? GS_ERR_UNAVAILABLE : code, NULL, "%s", text);
    r->error.retry_after_ns = GS_NS_PER_S;
}

/* True: it waits for a worker, this machine among them. */
static bool submit(gs_req *r, gs_job *j) {
    gs_api *a = r->api;
    gs_lend_tell_local(a);
    gs_workers_set_load(a->workers, j->model, r->cold ? gs_models_load_ns(r->cold) : 0);
    const int rc = gs_workers_submit(a->workers, j);
    if (rc == 0) {
        gs_bills_refresh(a);
        return true;
    }
    if (!r->m || rc == GS_ERR_OVERLOADED)
        refused(r, rc);
    return false;
}

/* ---- Answers ------------------------------------------------------------------------------- */

static void story_of(const gs_req *r, const gs_job *j, gs_explain *x) {
    *x = (gs_explain){.id = RECORD_BIT | j->id,
                      .cls = j->cls,
                      .asked_cls = j->cls,
                      .person = j->person,
                      .model = -1,
                      .slot = -1,
                      .arrival_ns = j->arrival_ns,
                      .first_step_ns = j->placed_ns,
                      .first_token_ns = j->first_ns,
                      .n_prompt = j->n_prompt,
                      .max_output = j->max_output,
                      .n_output = j->n_parts,
                      .running = j->worker != NULL,
                      .position = j->worker ? 0 : 1,
                      .predicted_ttft_ns = j->predicted_ttft_ns,
                      .charged_ns = j->charged_ns,
                      .worker = j->worker_name,
                      .placed = j->placed_ns > 0 ? gs_place_why_sentence(j->why) : NULL};
    const int64_t until_ns = j->placed_ns > 0 ? j->placed_ns : gs_now_ns();
    x->paused = j->paused || j->held;
    x->wait_now = x->paused ? GS_WAIT_PAUSED : j->worker ? GS_WAIT_NONE : GS_WAIT_WORKER;
    x->wait_ns[GS_WAIT_WORKER] = until_ns - r->began_ns;
}

static void keep_story(gs_req *r, gs_choice *c, const gs_job *j, gs_finish how) {
    gs_explain x;
    story_of(r, j, &x);
    x.end_ns = gs_now_ns();
    x.running = x.paused = false;
    x.position = 0;
    x.wait_now = GS_WAIT_NONE;
    x.n_prompt = gs_req_n_prompt(r, c->index / r->p.n);
    x.n_output = c->n_output;
    x.n_cached = c->n_cached;
    gs_metrics_ended(gs_models_metrics(r->api, r->entry), how, &x);
    c->story = x;
    gs_api_remember(r->api, r, c->index, &x);
}

static void admit(gs_req *r, gs_choice *c) {
    const gs_job *j = &c->job;
    if (!c->admitted)
        gs_req_admitted(r, c,
                        &(gs_admission){.predicted_ttft_ns = j->predicted_ttft_ns, .cls = j->cls});
}

static void on_taken(gs_job *j) {
    gs_choice *c = j->owner;
    gs_req *r = c->req;
    if (r->cold) /* until the first part this machine may still be the one */
        return;
    gs_req_hold(r);
    admit(r, c);
    gs_req_release(r);
}

static int on_part(gs_job *j, gs_remote_part_kind kind, const char *data, size_t n) {
    static const gs_part_kind kinds[] = {[GS_REMOTE_PART_TEXT] = GS_PART_TEXT,
                                         [GS_REMOTE_PART_REASONING] = GS_PART_REASONING,
                                         [GS_REMOTE_PART_CALL] = GS_PART_CALL_BEGIN,
                                         [GS_REMOTE_PART_ARGS] = GS_PART_CALL_ARGS};
    gs_choice *c = j->owner;
    gs_req *r = c->req;
    gs_req_hold(r);
    admit(r, c);
    const int rc = gs_req_lent_part(r, c, kinds[kind], data, n);
    gs_req_release(r);
    return rc;
}

static void take_usage(gs_req *r, gs_choice *c, const gs_remote_usage *u) {
    if (u->n_output >= 0)
        c->n_output = u->n_output;
    c->n_cached = u->n_cached > 0 ? u->n_cached : 0;
    c->told_prompt = u->n_prompt >= 0;
    c->n_prompt = u->n_prompt;
    if (c->index % r->p.n == 0)
        r->n_cached += c->n_cached;
}

/* What a worker's failure is to the client. */
static void error_of(const gs_job *j, const gs_remote_end *end, gs_api_error *e) {
    const char *name = j->worker_name ? j->worker_name : "";
    if (end->code == GS_ERR_INVALID)
        gs_api_fail(e, end->code, NULL, "The worker '%s' refuses it: %.200s", name, end->message);
    else if (!name[0])
        gs_api_fail(e, end->code, NULL, "It could not be answered: %.200s.", end->message);
    else
        gs_api_fail(e,
                    end->code == GS_ERR_NOMEM || end->code == GS_ERR_TIMEOUT ? end->code
                                                                             : GS_ERR_UNAVAILABLE,
                    NULL, "The worker '%s' failed: %.200s.", name, end->message);
    e->retry_after_ns = (end->retry_after_s > 0 ? end->retry_after_s : 1) * GS_NS_PER_S;
}

static void on_end(gs_job *j, const gs_remote_end *end) {
    gs_choice *c = j->owner;
    gs_req *r = c->req;
    gs_api_error e;
    gs_req_hold(r);
    c->with_workers = false;
    r->n_out--;
    if (end->code == 0) {
        admit(r, c);
        take_usage(r, c, &end->usage);
        keep_story(r, c, j,
                   strcmp(end->finish_reason, "length") == 0 ? GS_FINISH_LENGTH : GS_FINISH_STOP);
        gs_req_lent_end(r, c, end->finish_reason);
    } else {
        keep_story(r, c, j, GS_FINISH_ERROR);
        error_of(j, end, &e);
        gs_req_lent_failed(r, c, &e);
    }
    gs_req_release(r);
}

static void on_local(gs_job *j) {
    gs_choice *c = j->owner;
    if (c->req->cold) {
        gs_req_park(c->req);
        return;
    }
    c->local = true;
    gs_engine_submit(c->req->api->engine, c->seq);
}

static int no_vector(gs_job *j, int32_t index, float *v, int32_t n) {
    (void)j;
    (void)index;
    (void)v;
    (void)n;
    return GS_ERR_INTERNAL;
}

static const gs_job_handler on_choice = {on_taken, on_part, no_vector, on_local, on_end};

bool gs_lend(gs_req *r, gs_choice *c) {
    const int32_t prompt = c->index / r->p.n, k = c->index % r->p.n;
    if (!gs_workers_any(r->api->workers))
        return false;
    c->job = job_for(r, r->lends ? &r->lent[prompt] : NULL);
    c->job.on = &on_choice;
    c->job.owner = c;
    c->job.kind = r->p.chat ? GS_REMOTE_CHAT : GS_REMOTE_TEXT;
    c->job.n_prompt = about(r->prompts[prompt].len, c->job.n_members);
    c->job.max_output = r->p.max_tokens >= 0 ? r->p.max_tokens : GUESS_OUTPUT;
    c->job.max_parts = r->p.max_tokens >= 0 ? r->p.max_tokens : OPEN_OUTPUT;
    c->job.has_seed = r->p.has_seed;
    c->job.seed = (int64_t)(r->p.sampler.seed & INT64_MAX) + k;
    c->with_workers = submit(r, &c->job);
    return c->with_workers;
}

void gs_lend_cancel(gs_req *r, gs_choice *c) {
    if (!c->with_workers || c->local)
        return;
    c->with_workers = false;
    r->n_out--;
    gs_workers_cancel(r->api->workers, &c->job);
    if (c->admitted)
        keep_story(r, c, &c->job, c->stop.matched ? GS_FINISH_STOP : GS_FINISH_ABORT);
}

void gs_lend_local_token(gs_req *r, gs_choice *c) {
    if (c->local)
        gs_workers_local_tokens(r->api->workers, &c->job, 1);
}

void gs_lend_local_end(gs_req *r, gs_choice *c) {
    if (c->local)
        gs_workers_local_end(r->api->workers, &c->job);
    c->local = c->with_workers = false;
}

void gs_lend_tick(gs_req *r, int64_t now_ns) {
    if (r->state != GS_REQ_SUBMITTED || r->cold || now_ns - r->submitted_ns < HEADERS_NS)
        return;
    for (int32_t i = 0; i < r->n_choices && r->state == GS_REQ_SUBMITTED; i++)
        if (r->choices[i].with_workers && !r->choices[i].local)
            admit(r, &r->choices[i]);
}

/* ---- Vectors: a piece of the texts at a time ----------------------------------------------- */

static void texts_taken(gs_job *j) {
    gs_req *r = j->owner;
    if (r->state == GS_REQ_SUBMITTED)
        gs_req_text_admitted(
            r, &r->choices[0],
            &(gs_admission){.predicted_ttft_ns = j->predicted_ttft_ns, .cls = j->cls});
}

static int text_vector(gs_job *j, int32_t index, float *v, int32_t n) {
    gs_req *r = j->owner;
    gs_choice *c = &r->choices[r->n_sent + index];
    if (c->finished || c->text.len > 0 || (r->n_embd > 0 && r->n_embd != n))
        return GS_ERR_FORMAT;
    r->n_embd = n;
    return gs_embed_take(r, c, v, n);
}

static int no_part(gs_job *j, gs_remote_part_kind kind, const char *data, size_t n) {
    (void)j;
    (void)kind;
    (void)data;
    (void)n;
    return GS_ERR_INTERNAL;
}

static void texts_local(gs_job *j) {
    gs_req *r = j->owner;
    gs_req_hold(r);
    r->texts_local = true;
    r->n_out--;
    gs_req_send_texts(r);
    gs_req_release(r);
}

static void texts_end(gs_job *j, const gs_remote_end *end) {
    gs_req *r = j->owner;
    gs_api_error e;
    gs_req_hold(r);
    r->with_workers = false;
    r->n_out--;
    gs_choice *first = &r->choices[r->n_sent];
    if (end->code == 0) {
        take_usage(r, first, &end->usage);
        keep_story(r, first, j, GS_FINISH_DONE);
        gs_req_texts_done(r, j->n_texts);
    } else {
        keep_story(r, first, j, GS_FINISH_ERROR);
        error_of(j, end, &e);
        gs_req_fail(r, &e);
    }
    gs_req_release(r);
}

static const gs_job_handler on_texts = {texts_taken, no_part, text_vector, texts_local, texts_end};

bool gs_lend_texts(gs_req *r) {
    const int32_t piece = r->n_sent / TEXTS_EACH, left = r->n_choices - r->n_sent;
    size_t n = 0;
    if (!gs_workers_any(r->api->workers))
        return false;
    r->text_job = job_for(r, r->lends ? &r->lent[piece] : NULL);
    r->text_job.on = &on_texts;
    r->text_job.owner = r;
    r->text_job.kind = GS_REMOTE_EMBEDDINGS;
    r->text_job.n_texts = left < TEXTS_EACH ? left : TEXTS_EACH;
    for (int32_t i = r->n_sent; i < r->n_sent + r->text_job.n_texts; i++)
        n += r->prompts[i].len;
    r->text_job.n_prompt = about(n, r->text_job.n_members);
    r->with_workers = submit(r, &r->text_job);
    r->n_out += r->with_workers;
    return r->with_workers;
}

void gs_lend_cancel_texts(gs_req *r) {
    if (!r->with_workers)
        return;
    r->with_workers = false;
    if (r->texts_local) {
        gs_workers_local_end(r->api->workers, &r->text_job);
        return;
    }
    r->n_out--;
    gs_workers_cancel(r->api->workers, &r->text_job);
}

/* ---- To look at ---------------------------------------------------------------------------- */

/* How many jobs of it wait for a worker or are with another machine. */
static int32_t n_jobs(const gs_req *r) {
    int32_t n = r->with_workers && !r->texts_local;
    for (int32_t i = 0; i < r->n_choices; i++)
        n += r->choices[i].with_workers && !r->choices[i].local;
    return n;
}

bool gs_lend_has(const gs_req *r) {
    return n_jobs(r) > 0;
}

void gs_lend_pause(gs_req *r, bool paused) {
    if (r->with_workers && !r->texts_local)
        gs_workers_pause(r->api->workers, &r->text_job, paused);
    for (int32_t i = 0; i < r->n_choices; i++)
        if (r->choices[i].with_workers && !r->choices[i].local)
            gs_workers_pause(r->api->workers, &r->choices[i].job, paused);
}

static int32_t n_lent(const gs_api *a) {
    int32_t n = 0;
    for (const gs_req *r = a->live; r; r = r->next)
        n += n_jobs(r);
    return n;
}

void gs_lend_records(const gs_api *a, gs_query *q) {
    const int32_t n = gs_workers_any(a->workers) ? n_lent(a) : 0;
    if (n == 0)
        return;
    gs_explain *more = gs_realloc(q->records, (size_t)(q->n_records + n) * sizeof(*more));
    if (!more)
        return;
    q->records = more;
    for (const gs_req *r = a->live; r; r = r->next) {
        if (r->with_workers && !r->texts_local)
            story_of(r, &r->text_job, &q->records[q->n_records++]);
        for (int32_t i = 0; i < r->n_choices; i++)
            if (r->choices[i].with_workers && !r->choices[i].local)
                story_of(r, &r->choices[i].job, &q->records[q->n_records++]);
    }
    if (q->max_records < q->n_records)
        q->max_records = q->n_records;
}

const gs_req *gs_lend_find_seq(const gs_api *a, uint64_t id, int32_t *index) {
    for (const gs_req *r = (id & RECORD_BIT) ? a->live : NULL; r; r = r->next) {
        *index = r->n_sent;
        if (r->with_workers && r->text_job.id == (id & ~RECORD_BIT))
            return r;
        for (*index = 0; *index < r->n_choices; (*index)++)
            if (r->choices[*index].with_workers && r->choices[*index].job.id == (id & ~RECORD_BIT))
                return r;
    }
    return NULL;
}

/* ---- Start --------------------------------------------------------------------------------- */

int gs_lend_create(gs_api *a, char *err, size_t errlen) {
    gs_engine_settings set;
    const gs_config *c = a->cfg.config;
    const bool known = c && gs_settings_read(c, &set, NULL, 0) == GS_OK;
    a->bills = gs_bills_create();
    a->added = gs_added_create(a);
    if (!a->bills || !a->added)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    return gs_workers_create(&(gs_workers_config){.loop = a->loop,
                                                  .workers = c ? c->workers : NULL,
                                                  .n = c ? c->n_workers : 0,
                                                  .classes = known ? set.classes : NULL,
                                                  .max_requests = MAX_REQUESTS,
                                                  .max_persons = GS_API_MAX_PERSONS,
                                                  .charge = gs_bills_charge,
                                                  .arg = a},
                             &a->workers, err, errlen);
}
