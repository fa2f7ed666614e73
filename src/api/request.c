#include "api/request.h"

#include <stdio.h>
#include <string.h>

#include "api/api_impl.h"
#include "api/embed.h"
#include "api/lend.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/sys.h"

/* Clients give up on silent connections (Node: 300 s without headers). */
#define ALIVE_AGAIN_NS (10 * GS_NS_PER_S)
#define ALIVE_WHOLE_NS (20 * GS_NS_PER_S)

/* ---- Release --------------------------------------------------------------------------------- */

static void choice_deinit(gs_choice *c) {
    for (int32_t i = 0; i < c->n_calls; i++) {
        gs_buf_deinit(&c->calls[i].name);
        gs_buf_deinit(&c->calls[i].arguments);
    }
    gs_free(c->calls);
    gs_buf_deinit(&c->text);
    gs_buf_deinit(&c->reasoning);
    gs_outparse_deinit(&c->parse);
    gs_stop_deinit(&c->stop);
    gs_free(c->logprobs);
    gs_seq_free(c->seq);
}

static void req_free(gs_req *r) {
    for (int32_t i = 0; i < r->n_choices; i++)
        choice_deinit(&r->choices[i]);
    for (int32_t i = 0; r->prompts && i < r->n_prompts; i++)
        gs_ids_deinit(&r->prompts[i]);
    for (int32_t i = 0; r->echo_text && i < r->n_prompts; i++)
        gs_buf_deinit(&r->echo_text[i]);
    gs_free(r->choices);
    gs_free(r->prompts);
    gs_free(r->echo_text);
    for (int32_t i = 0; r->guides && i < r->n_prompts * r->p.n; i++)
        gs_guide_unref(r->guides[i]);
    gs_free(r->guides);
    gs_lend_deinit(r);
    gs_buf_deinit(&r->out);
    gs_buf_deinit(&r->piece);
    gs_buf_deinit(&r->shown);
    gs_gen_params_deinit(&r->p);
    json_decref(r->body);
    json_decref(r->note);
    gs_free(r->blocks.v);
    if (r->entry)
        gs_models_done(r->api, r->entry);
    gs_free(r);
}

/*
 * Frees the request once nobody needs it: answered, no sequence with the engine, no worker. While
 * an event or a tick is being handled it stays, because any write may report the client gone.
 */
static void maybe_free(gs_req *r) {
    if (r->state != GS_REQ_DONE || r->rq || r->n_out > 0 || r->in_work || r->in_event)
        return;
    gs_api_unlink(r->api, r);
    r->api->n_embedding -= r->dialect->embeds && r->submitted_ns != 0;
    req_free(r);
}

/* What is with the workers has a sequence, but not with the engine. */
static bool with_engine(const gs_choice *c) {
    return c->seq && (!c->with_workers || c->local);
}

static void cancel_all(gs_req *r) {
    for (int32_t i = 0; i < r->n_choices; i++) {
        gs_choice *c = &r->choices[i];
        gs_lend_cancel(r, c);
        if (with_engine(c) && !c->finished)
            gs_engine_cancel(r->api->engine, c->seq);
    }
    gs_lend_cancel_texts(r);
}

void gs_req_stop(gs_req *r) {
    gs_api_error e;
    if (r->state != GS_REQ_PREPARING && !r->dialect->embeds) {
        cancel_all(r);
        return;
    }
    gs_api_fail(&e, GS_ERR_CANCELLED, NULL, "The request was cancelled.");
    gs_req_fail(r, &e);
}

static void release_http(gs_req *r) {
    gs_http_request *rq = r->rq;
    r->rq = NULL;
    if (rq)
        gs_http_end(rq);
}

/* Once for each request, when its answer is decided. */
static void count_answer(const gs_req *r, int status) {
    gs_metrics_answered(gs_models_metrics(r->api, r->entry), r->cls, status);
}

void gs_req_gone(gs_req *r) {
    if (r->state != GS_REQ_DONE)
        count_answer(r, 499);
    r->state = GS_REQ_DONE;
    cancel_all(r);
    release_http(r);
    maybe_free(r);
}

/* ---- Answers --------------------------------------------------------------------------------- */

static void begin_headers(gs_req *r, const char *type) {
    if (r->headers_sent || !r->rq)
        return;
    r->headers_sent = true;
    gs_http_add_header(r->rq, "Cache-Control", "no-store");
    gs_http_begin(r->rq, 200, type);
    r->last_write_ns = gs_now_ns();
}

void gs_req_fail(gs_req *r, const gs_api_error *e) {
    if (r->state == GS_REQ_DONE)
        return;
    count_answer(r, e->status ? e->status : gs_err_http(e->code));
    r->state = GS_REQ_DONE;
    cancel_all(r);
    if (r->rq && !r->headers_sent) {
        gs_http_request *rq = r->rq;
        r->rq = NULL;
        gs_api_reply_error(rq, e);
    } else if (r->rq) {
        gs_buf_clear(&r->out);
        if (r->p.stream) {
            r->dialect->stream_error(r, e);
        } else {
            gs_api_error_body(gs_api_error_shape(gs_http_path(r->rq)), e, &r->out);
            gs_req_write(r); /* or cuts it */
        }
        release_http(r);
    }
    maybe_free(r);
}

void gs_req_cut(gs_req *r) {
    gs_http_request *rq = r->rq;
    if (r->state != GS_REQ_DONE)
        count_answer(r, 503);
    r->state = GS_REQ_DONE;
    r->rq = NULL;
    cancel_all(r);
    if (rq)
        gs_http_abort(rq);
}

void gs_req_write(gs_req *r) {
    if (!r->rq)
        return;
    if (r->out.failed)
        gs_req_cut(r);
    else
        gs_http_write(r->rq, r->out.data, r->out.len);
}

static void finish_answer(gs_req *r) {
    count_answer(r, 200);
    r->state = GS_REQ_DONE;
    gs_lend_cancel_texts(r);
    if (r->rq && r->p.stream) {
        r->dialect->stream_end(r);
        release_http(r);
    } else if (r->rq) {
        gs_buf_clear(&r->out);
        r->dialect->whole(r, &r->out);
        gs_http_request *rq = r->rq;
        r->rq = NULL;
        if (r->out.failed && r->headers_sent) {
            gs_http_abort(rq);
        } else if (r->out.failed) {
            gs_api_error e;
            gs_api_fail(&e, GS_ERR_NOMEM, NULL, "Out of memory.");
            gs_api_reply_error(rq, &e);
        } else if (r->headers_sent) {
            gs_http_write(rq, r->out.data, r->out.len);
            gs_http_end(rq);
        } else {
            gs_http_reply(rq, 200, r->dialect->whole_type, r->out.data, r->out.len);
        }
    }
}

static void sign_of_life(gs_req *r, int64_t now_ns) {
    if (!r->rq || r->state == GS_REQ_DONE)
        return;
    if (r->p.stream && r->headers_sent && now_ns - r->last_write_ns >= r->dialect->alive_after_ns) {
        gs_http_write(r->rq, r->dialect->alive, strlen(r->dialect->alive));
        r->last_write_ns = now_ns;
    } else if (!r->p.stream && r->state == GS_REQ_RUNNING &&
               now_ns - (r->headers_sent ? r->last_write_ns : r->began_ns) >=
                   (r->headers_sent ? ALIVE_AGAIN_NS : ALIVE_WHOLE_NS)) {
        /* White space before the object is legal JSON. */
        begin_headers(r, r->dialect->whole_type);
        gs_http_write(r->rq, " ", 1);
        r->last_write_ns = now_ns;
    }
}

static void send_texts(gs_req *r);

void gs_req_tick(gs_req *r, int64_t now_ns) {
    r->in_event = true;
    gs_lend_tick(r, now_ns);
    sign_of_life(r, now_ns);
    if (r->dialect->embeds && r->state == GS_REQ_RUNNING && (!r->with_workers || r->texts_local))
        send_texts(r);
    r->in_event = false;
    maybe_free(r);
}

/* ---- Parts of an answer ---------------------------------------------------------------------- */

static bool streaming(const gs_req *r) {
    return r->state == GS_REQ_RUNNING && r->p.stream && r->rq;
}

static void send_part(gs_req *r, gs_choice *c, const gs_part *part) {
    if (!streaming(r))
        return;
    r->dialect->stream_delta(r, c, part);
    r->last_write_ns = gs_now_ns();
    c->n_logprobs = 0;
}

static int begin_call(gs_choice *c, const gs_part *part) {
    if (c->n_calls == c->cap_calls) {
        int32_t cap = c->cap_calls ? 2 * c->cap_calls : 4;
        gs_tool_call *more = gs_realloc(c->calls, (size_t)cap * sizeof(*more));
        if (!more)
            return GS_ERR_NOMEM;
        c->calls = more;
        c->cap_calls = cap;
    }
    gs_tool_call *call = &c->calls[c->n_calls];
    *call = (gs_tool_call){0};
    unsigned char id[12];
    if (gs_random_bytes(id, sizeof(id)) != 0)
        memset(id, 0, sizeof(id));
    const char *prefix = c->req->dialect->call_id_prefix;
    int at = snprintf(call->id, sizeof(call->id), "%s", prefix ? prefix : "");
    for (size_t i = 0; i < sizeof(id); i++)
        at += snprintf(call->id + at, sizeof(call->id) - (size_t)at, "%02x", id[i]);
    int rc = gs_buf_add(&call->name, part->data, part->n);
    if (rc != 0 || !gs_buf_cstr(&call->name)) {
        gs_buf_deinit(&call->name);
        return GS_ERR_NOMEM;
    }
    c->n_calls++;
    return 0;
}

/* Adds a part to the answer, and tells it when the answer is being streamed. */
static int choice_part(void *arg, const gs_part *part) {
    gs_choice *c = arg;
    int rc = 0;
    switch (part->kind) {
    case GS_PART_TEXT:
        rc = gs_buf_add(&c->text, part->data, part->n);
        break;
    case GS_PART_REASONING:
        rc = gs_buf_add(&c->reasoning, part->data, part->n);
        break;
    case GS_PART_CALL_BEGIN:
        rc = begin_call(c, part);
        break;
    case GS_PART_CALL_ARGS:
        rc = gs_buf_add(&c->calls[part->call].arguments, part->data, part->n);
        break;
    case GS_PART_CALL_END:
        c->calls[part->call].ended = true;
        break;
    }
    if (rc == 0)
        send_part(c->req, c, part);
    return rc;
}

static void send_buf(gs_req *r, gs_choice *c, gs_part_kind kind, int32_t call, const gs_buf *b) {
    gs_part part = {kind, call, b->data, b->len};
    if (b->len > 0)
        send_part(r, c, &part);
}

/* The log-probabilities of tokens that gave no text (yet). */
static void send_logprobs(gs_req *r, gs_choice *c) {
    gs_part part = {GS_PART_TEXT, 0, "", 0};
    if (c->n_logprobs > 0)
        send_part(r, c, &part);
}

/* What came before the stream could begin. */
static void send_backlog(gs_req *r, gs_choice *c) {
    send_buf(r, c, GS_PART_REASONING, 0, &c->reasoning);
    send_buf(r, c, GS_PART_TEXT, 0, &c->text);
    for (int32_t i = 0; i < c->n_calls; i++) {
        gs_part end = {GS_PART_CALL_END, i, "", 0};
        send_buf(r, c, GS_PART_CALL_BEGIN, i, &c->calls[i].name);
        send_buf(r, c, GS_PART_CALL_ARGS, i, &c->calls[i].arguments);
        if (c->calls[i].ended)
            send_part(r, c, &end);
    }
    send_logprobs(r, c);
}

/* ---- Start ----------------------------------------------------------------------------------- */

static void oom(gs_req *r) {
    gs_api_error e;
    gs_api_fail(&e, GS_ERR_NOMEM, NULL, "Out of memory.");
    gs_req_fail(r, &e);
}

static void describe_seq(gs_req *r, int32_t choice, gs_seq *q) {
    q->desc.cls = r->cls;
    q->desc.class_fixed = r->class_fixed;
    q->desc.person = r->person;
    q->has_limits = r->has_limits;
    q->limits = r->limits;
    q->desc.arrival_ns = r->began_ns;
    q->owner = &r->choices[choice];
    q->index = choice;
    q->lane = r->m->lane;
}

static gs_seq *make_seq(gs_req *r, int32_t choice) {
    const gs_ids *prompt = &r->prompts[choice / r->p.n];
    gs_backend_info info;
    gs_engine_lane_info(r->api->engine, r->m->lane, &info);
    int32_t context =
        r->p.num_ctx > 0 && r->p.num_ctx < info.max_context ? r->p.num_ctx : info.max_context;
    int32_t left = context - (int32_t)prompt->len;
    int32_t max_output = r->p.max_tokens < 0 || r->p.max_tokens > left ? left : r->p.max_tokens;
    gs_seq *q = gs_seq_create(prompt->data, (int32_t)prompt->len, max_output > 0 ? max_output : 1);
    if (!q)
        return NULL;
    q->sampler = r->p.sampler;
    /* Each choice draws from its own stream of the request's seed. */
    q->sampler.seed += (uint64_t)(choice % r->p.n) * UINT64_C(0xA24BAED4963EE407);
    if (r->p.n_bias > 0 && gs_seq_set_bias(q, r->p.bias, r->p.n_bias) != 0) {
        gs_seq_free(q);
        return NULL;
    }
    size_t n_eog;
    q->sampler.eog = gs_tok_eog(r->m->tokenizer, &n_eog);
    q->sampler.n_eog = (int32_t)n_eog;
    describe_seq(r, choice, q);
    q->desc.cache_scope = r->cache_scope;
    if (r->guides) {
        q->guide = r->guides[choice];
        r->guides[choice] = NULL;
    }
    return q;
}

static bool make_choices(gs_req *r) {
    const gs_tokenizer *t = r->m ? r->m->tokenizer : NULL;
    int32_t n = r->n_prompts * r->p.n;
    r->choices = gs_calloc((size_t)n, sizeof(*r->choices));
    if (!r->choices)
        return false;
    r->n_choices = n;
    const gs_outparse_config parse = r->m ? gs_req_parser_config(r) : (gs_outparse_config){0};
    for (int32_t i = 0; i < n; i++) {
        gs_choice *c = &r->choices[i];
        c->req = r;
        c->index = i;
        if (r->dialect->embeds)
            continue; /* send_texts makes the sequence */
        gs_stop_init(&c->stop, &r->p.stop);
        gs_outparse_init(&c->parse, &parse, choice_part, c);
        if (!r->m)
            continue; /* another machine tells parts */
        if (r->p.chat)
            gs_detok_init(&c->detok, t, false);
        else
            gs_detok_init_mid(&c->detok, t, false);
        c->seq = make_seq(r, i);
        if (!c->seq)
            return false;
    }
    return true;
}

/* Whether the engine may get one more: each request has its part, and two in any case. */
static bool may_send(const gs_req *r) {
    const int32_t part = GS_EMBED_AT_ONCE_ALL / r->api->n_embedding;
    const bool room = r->api->n_texts < GS_EMBED_AT_ONCE_ALL;
    return r->n_out < 2 || (room && r->n_out < part && r->n_out < GS_EMBED_AT_ONCE);
}

/* Keeps so many of a request's texts with the engine, in order. */
static void send_texts(gs_req *r) {
    gs_backend_info info;
    gs_engine_lane_info(r->api->engine, r->m->lane, &info);
    for (; r->n_sent < r->n_choices && may_send(r); r->n_sent++) {
        gs_choice *c = &r->choices[r->n_sent];
        const gs_ids *ids = &r->prompts[r->n_sent];
        if (c->seq || c->finished)
            continue;
        c->seq = gs_seq_create_embedding(ids->data, (int32_t)ids->len, info.n_embd);
        if (!c->seq) {
            oom(r);
            return;
        }
        describe_seq(r, c->index, c->seq);
        r->n_out++;
        r->api->n_texts++;
        gs_engine_submit(r->api->engine, c->seq);
    }
}

static void submit_texts(gs_req *r) {
    if (gs_lend_texts(r))
        return;
    if (r->error.code != 0)
        gs_req_fail(r, &r->error);
    else
        send_texts(r);
}

/* Each choice to the workers if there are any, else to the engine. */
static void submit_choices(gs_req *r) {
    r->in_event = true;
    for (int32_t i = 0; i < r->n_choices && r->state == GS_REQ_SUBMITTED; i++) {
        gs_choice *c = &r->choices[i];
        r->n_out++;
        if (gs_lend(r, c))
            continue;
        if (r->error.code == 0) {
            gs_engine_submit(r->api->engine, c->seq);
            continue;
        }
        r->n_out--;
        gs_req_fail(r, &r->error);
    }
    r->in_event = false;
    maybe_free(r);
}

static void submit(gs_req *r) {
    if (!make_choices(r)) {
        /* None of them is with the engine, so none may be cancelled there. */
        for (int32_t i = 0; i < r->n_choices; i++) {
            gs_seq_free(r->choices[i].seq);
            r->choices[i].seq = NULL;
        }
        oom(r);
        return;
    }
    r->state = GS_REQ_SUBMITTED;
    r->submitted_ns = gs_now_ns();
    if (r->dialect->embeds) {
        r->api->n_embedding++;
        submit_texts(r);
        return;
    }
    submit_choices(r);
}

static void prepared(gs_req *r, int rc) {
    if (!r->cold) {
        gs_api_discard(r->api, r->body, r->body_bytes);
        r->body = NULL;
    }
    if (r->state == GS_REQ_DONE) { /* the client went away meanwhile */
        maybe_free(r);
        return;
    }
    if (rc != 0) {
        gs_req_fail(r, &r->error);
    } else if (r->dialect->prompt_only || r->n_prompts == 0) {
        finish_answer(r);
        maybe_free(r);
    } else {
        submit(r);
    }
}

static void work_run(uv_work_t *w) {
    gs_req *r = w->data;
    r->error.code = gs_req_prepare(r);
}

static void work_done(uv_work_t *w, int status) {
    gs_req *r = w->data;
    r->in_work = false;
    if (status != 0)
        gs_api_fail(&r->error, GS_ERR_UNAVAILABLE, NULL, "The server is shutting down.");
    prepared(r, r->error.code);
}

static int count_prompts(gs_req *r, bool chat, gs_api_error *e) {
    r->n_prompts = 1;
    const json_t *v = json_object_get(r->body, "prompt");
    if (chat)
        return 0;
    if (!v || json_is_null(v))
        return gs_api_fail(e, GS_ERR_INVALID, "prompt", "'prompt' is missing.");
    if (json_is_array(v) && !json_is_integer(json_array_get(v, 0)))
        r->n_prompts = (int32_t)json_array_size(v);
    if ((!json_is_array(v) && !json_is_string(v)) || r->n_prompts == 0)
        return gs_api_fail(e, GS_ERR_INVALID, "prompt",
                           "'prompt' must be a string, an array of strings, or token ids.");
    if (r->n_prompts > GS_MAX_PROMPTS)
        return gs_api_fail(e, GS_ERR_INVALID, "prompt", "'prompt' may hold at most %d prompts.",
                           GS_MAX_PROMPTS);
    return 0;
}

static int check_suffix(gs_req *r, const gs_served_model *m) {
    const json_t *v = json_object_get(r->body, "suffix");
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v) || r->n_prompts != 1 ||
        !json_is_string(json_object_get(r->body, "prompt")))
        return gs_api_fail(
            &r->error, GS_ERR_INVALID, "suffix",
            "'suffix' must be a string and goes with one 'prompt' that is a string.");
    if (!m->facts.has_fim)
        return gs_api_fail(&r->error, GS_ERR_UNSUPPORTED, "suffix",
                           "The model '%.80s' has no fill-in-the-middle tokens; 'suffix' can't be "
                           "used.",
                           m->name);
    return 0;
}

static int32_t context_of(const gs_req *r, int32_t lane) {
    gs_backend_info info;
    gs_engine_lane_info(r->api->engine, lane, &info);
    bool capped = r->p.num_ctx > 0 && r->p.num_ctx < info.max_context;
    return capped ? r->p.num_ctx : info.max_context;
}

static int check_generates(gs_req *r, int32_t lane) {
    gs_backend_info info;
    gs_engine_lane_info(r->api->engine, lane, &info);
    if (!info.whole_prompts)
        return 0;
    return gs_api_fail(&r->error, GS_ERR_UNSUPPORTED, "model",
                       "The model '%.80s' is an encoder: it makes vectors of texts and answers "
                       "nothing.",
                       r->model);
}

static int read_params(gs_req *r, bool chat) {
    const gs_served_model *m = r->m;
    const char *asked = json_string_value(json_object_get(r->body, "model"));
    int rc = m ? gs_api_check_model(r->api, r->body, &r->error) : 0;
    if (rc == 0 && r->m)
        r->model = gs_api_find_name(r->api, asked ? asked : "", &r->alias);
    if (rc == 0 && asked)
        snprintf(r->asked_model, sizeof(r->asked_model), "%s", asked);
    if (rc == 0 && r->dialect->embeds)
        return gs_embed_read(r);
    if (rc == 0 && m)
        rc = check_generates(r, m->lane);
    if (rc == 0)
        rc = gs_gen_params_read(r->body, chat, m ? gs_tok_n_vocab(m->tokenizer) : INT32_MAX, &r->p,
                                &r->error);
    if (rc == 0 && r->dialect->read)
        rc = r->dialect->read(r->body, &r->p, &r->error);
    if (rc == 0 && m)
        r->context = context_of(r, m->lane);
    if (rc == 0)
        rc = count_prompts(r, chat, &r->error);
    if (rc == 0 && !chat && m)
        rc = check_suffix(r, m);
    return rc;
}

static void name_request(gs_req *r) {
    unsigned char id[12];
    if (gs_random_bytes(id, sizeof(id)) != 0)
        memset(id, 0, sizeof(id));
    int at = snprintf(r->id, sizeof(r->id), "%s", r->dialect->id_prefix);
    for (size_t i = 0; i < sizeof(id); i++)
        at += snprintf(r->id + at, sizeof(r->id) - (size_t)at, "%02x", id[i]);
    gs_http_add_header(r->rq, "X-Request-Id", r->id);
}

/* The model that answers, in memory; without one that is known the first one stands in, and
 * read_params says so. */
static int find_model(gs_req *r) {
    const char *want = json_string_value(json_object_get(r->body, "model"));
    gs_model_entry *m = gs_models_of_body(r->api, r->body);
    if (!m) {
        gs_lend_find(r, want ? want : "");
        if (r->lends)
            return 0;
    }
    if (!m)
        m = r->api->models.v;
    if (m->state != GS_MODEL_READY && gs_lend_cold(r, m))
        return 0;
    if (m->state != GS_MODEL_READY)
        return gs_api_fail(&r->error, GS_ERR_UNAVAILABLE, "model",
                           "The model '%.80s' is not in memory.", m->name);
    r->entry = m;
    r->m = m->served;
    gs_models_use(m);
    gs_lend_find(r, "");
    return 0;
}

void gs_req_start(gs_api *a, gs_http_request *rq, json_t *body, json_t *note, const gs_dialect *d,
                  bool chat) {
    gs_req_resume(
        a, rq, body,
        &(gs_req_again){.dialect = d, .note = note, .chat = chat, .began_ns = gs_now_ns()});
}

void gs_req_resume(gs_api *a, gs_http_request *rq, json_t *body, const gs_req_again *again) {
    const bool chat = again->chat;
    gs_req *r = gs_calloc(1, sizeof(*r));
    if (!r) {
        gs_api_error e;
        gs_api_fail(&e, GS_ERR_NOMEM, NULL, "Out of memory.");
        json_decref(body);
        json_decref(again->note);
        gs_api_reply_error(rq, &e);
        return;
    }
    *r = (gs_req){.api = a,
                  .rq = rq,
                  .dialect = again->dialect,
                  .body = body,
                  .note = again->note,
                  .created_s = gs_wall_s(),
                  .began_ns = again->began_ns};
    gs_http_body(rq, &r->body_bytes);
    gs_api_link(a, r);
    gs_http_set_user(rq, r);
    if (again->id[0])
        memcpy(r->id, again->id, sizeof(r->id));
    else
        name_request(r);
    r->headers_sent = gs_http_begun(rq) != NULL; /* signs of life while the model was loaded */
    r->p.stream = json_is_true(json_object_get(body, "stream")); /* how an error is told then */
    if (find_model(r) != 0 || read_params(r, chat) != 0) {
        gs_req_fail(r, &r->error);
        return;
    }
    if (r->cold && !gs_lend_fits(r)) {
        gs_req_park(r);
        return;
    }
    gs_req_classify(r);
    if (r->has_limits && r->person < GS_ENGINE_PERSONS)
        a->metrics->weight[r->person] = r->limits.weight;
    const size_t room = r->n_prompts > 0 ? (size_t)r->n_prompts : 1;
    r->prompts = gs_calloc(room, sizeof(*r->prompts));
    r->echo_text = gs_calloc(room, sizeof(*r->echo_text));
    if (!r->prompts || !r->echo_text) {
        oom(r);
        return;
    }
    r->work.data = r;
    if ((r->body_bytes > GS_API_INLINE_BYTES || gs_req_is_constrained(r)) &&
        uv_queue_work(a->loop, &r->work, work_run, work_done) == 0) {
        r->in_work = true;
        return;
    }
    prepared(r, gs_req_prepare(r));
}

void gs_req_park(gs_req *r) {
    gs_api *a = r->api;
    gs_model_entry *m = r->cold;
    gs_http_request *rq = r->rq;
    json_t *body = r->body;
    gs_req_again again = {
        .dialect = r->dialect, .note = r->note, .chat = r->p.chat, .began_ns = r->began_ns};
    memcpy(again.id, r->id, sizeof(again.id));
    r->rq = NULL;
    r->body = r->note = NULL;
    r->state = GS_REQ_DONE; /* without an answer of its own */
    cancel_all(r);
    gs_http_set_user(rq, NULL);
    maybe_free(r);
    gs_models_park_again(a, m, rq, body, &again);
}

/* ---- Events ---------------------------------------------------------------------------------- */

static void show_finished(gs_req *r, gs_choice *c) {
    if (streaming(r))
        r->dialect->stream_finish(r, c);
}

static void choice_finished(gs_req *r, gs_choice *c, const char *reason) {
    if (c->finished)
        return;
    c->finished = true;
    c->finish_reason = c->n_calls > 0 && strcmp(reason, "stop") == 0 ? "tool_calls" : reason;
    r->n_finished++;
    show_finished(r, c);
    if (r->n_finished == r->n_choices && r->state == GS_REQ_RUNNING)
        finish_answer(r);
}

static void admitted(gs_req *r, gs_choice *c, const gs_admission *adm) {
    c->admitted = true;
    r->cls = adm->cls;
    r->late |= adm->late;
    if (c->index == 0) {
        r->n_ahead = adm->n_ahead;
        r->n_found = adm->n_cached;
        r->predicted_ttft_ns = adm->predicted_ttft_ns;
    }
}

/* What is known at admission; the queue's part as a dictionary (RFC 9651). */
static void add_headers(gs_req *r) {
    char queue[128], predicted[48] = "";
    if (!r->rq || r->headers_sent)
        return;
    if (r->predicted_ttft_ns >= 0)
        snprintf(predicted, sizeof(predicted), ", predicted_ttft_ms=%lld",
                 (long long)(r->predicted_ttft_ns / GS_NS_PER_MS));
    snprintf(queue, sizeof(queue), "ahead=%d, cached_tokens=%d%s%s", r->n_ahead, r->n_found,
             predicted, r->late ? ", late" : "");
    gs_http_add_header(r->rq, "X-Gamasot-Class", gs_class_name(r->cls));
    gs_http_add_header(r->rq, "X-Gamasot-Queue", queue);
}

static void decided(gs_req *r) {
    if (++r->n_decided < r->n_choices || r->state != GS_REQ_SUBMITTED)
        return;
    if (r->error.code != 0) {
        gs_req_fail(r, &r->error);
        return;
    }
    r->state = GS_REQ_RUNNING;
    add_headers(r);
    if (r->p.stream) {
        begin_headers(r, r->dialect->stream_type);
        r->dialect->stream_start(r);
    }
    /* The engine may have begun, and even ended, some choices before it decided on the last. */
    for (int32_t i = 0; i < r->n_choices; i++) {
        send_backlog(r, &r->choices[i]);
        if (r->choices[i].finished)
            show_finished(r, &r->choices[i]);
    }
    if (r->n_finished == r->n_choices)
        finish_answer(r);
}

static void rejected(gs_req *r, const gs_choice *c, const gs_admission *adm) {
    gs_api_error *e = &r->error;
    if (e->code != 0)
        return; /* the first one is told */
    const char *param =
        adm->field && strcmp(adm->field, "prompt") == 0 && r->p.chat ? "messages" : adm->field;
    if (adm->code == GS_ERR_CONTEXT) {
        gs_backend_info info;
        gs_engine_lane_info(r->api->engine, r->m->lane, &info);
        gs_api_fail(e, adm->code, param,
                    "The prompt has %zu tokens; this model's context is %d tokens.",
                    r->prompts[c->index / r->p.n].len, info.max_context);
        e->name = "context_length_exceeded";
    } else {
        gs_api_fail(e, adm->code, param, "%s", adm->reason ? adm->reason : gs_err_text(adm->code));
    }
    e->retry_after_ns = adm->retry_after_ns;
}

static int keep_logprob(gs_choice *c, const gs_sample *s) {
    if (c->n_logprobs == c->cap_logprobs) {
        int32_t cap = c->cap_logprobs ? 2 * c->cap_logprobs : 8;
        gs_logprob_entry *p = gs_realloc(c->logprobs, (size_t)cap * sizeof(*p));
        if (!p)
            return GS_ERR_NOMEM;
        c->logprobs = p;
        c->cap_logprobs = cap;
    }
    gs_logprob_entry *l = &c->logprobs[c->n_logprobs++];
    l->chosen = (gs_token_prob){s->token, s->logprob};
    l->n_top = s->n_top;
    memcpy(l->top, s->top, (size_t)s->n_top * sizeof(l->top[0]));
    return 0;
}

/* r->piece through the stop strings into r->shown, and that through the parser. */
static int show_piece(gs_req *r, gs_choice *c, bool last) {
    if (r->piece.failed)
        return GS_ERR_NOMEM;
    gs_buf_clear(&r->shown);
    int rc = gs_stop_feed(&c->stop, r->piece.data ? r->piece.data : "", r->piece.len, &r->shown);
    if (rc == 0 && last)
        rc = gs_stop_finish(&c->stop, &r->shown);
    if (rc == 0 && r->shown.len > 0)
        rc = gs_outparse_feed(&c->parse, r->shown.data, r->shown.len);
    if (rc == 0 && (last || c->stop.matched))
        rc = gs_outparse_finish(&c->parse);
    return rc;
}

/* A control token shows nothing, but it may be a mark; no stop string reaches across it. */
static int show_control(gs_req *r, gs_choice *c, int32_t token) {
    gs_buf_clear(&r->shown);
    int rc = gs_stop_finish(&c->stop, &r->shown);
    if (rc == 0 && r->shown.len > 0)
        rc = gs_outparse_feed(&c->parse, r->shown.data, r->shown.len);
    gs_str s = gs_tok_spelling(r->m->tokenizer, token);
    return rc == 0 ? gs_outparse_control(&c->parse, s.data, s.len) : rc;
}

static int show_token(gs_req *r, gs_choice *c, int32_t token) {
    gs_buf_clear(&r->piece);
    int rc = gs_detok_push(&c->detok, token, &r->piece);
    if (rc == 0)
        rc = show_piece(r, c, false);
    if (rc == 0 && gs_tok_is_control(r->m->tokenizer, token))
        rc = show_control(r, c, token);
    return rc;
}

static void count_token(const gs_req *r, gs_choice *c, int64_t now_ns) {
    gs_metrics *m = gs_models_metrics(r->api, r->entry);
    if (c->n_output == 0)
        gs_metrics_first_token(m, r->person, r->cls, now_ns - r->began_ns);
    else if (c->last_token_ns > 0)
        gs_metrics_next_token(m, r->person, r->cls, now_ns - c->last_token_ns);
    c->last_token_ns = now_ns;
}

static void token_event(gs_req *r, gs_choice *c, const gs_event *ev) {
    if (r->state == GS_REQ_DONE && !c->finished)
        gs_models_metrics(r->api, r->entry)->wasted_tokens++;
    gs_lend_local_token(r, c);
    if (r->state == GS_REQ_DONE || c->finished || c->stopped)
        return;
    count_token(r, c, ev->time_ns);
    if (c->n_output++ == 0 && c->index % r->p.n == 0)
        r->n_cached += ev->u.token.n_cached;
    if (r->first_token_ns == 0)
        r->first_token_ns = ev->time_ns;
    r->last_token_ns = ev->time_ns;
    if (ev->u.token.stop)
        return; /* an end-of-turn token is counted, not shown */
    int rc = r->p.sampler.n_logprobs >= 0 ? keep_logprob(c, &ev->u.token.sample) : 0;
    if (rc == 0)
        rc = show_token(r, c, ev->u.token.sample.token);
    if (rc != 0) {
        oom(r);
        return;
    }
    send_logprobs(r, c);
    if (c->stop.matched) {
        gs_engine_cancel(r->api->engine, c->seq);
        c->stopped = true;
        if (!r->p.include_timings)
            choice_finished(r, c, "stop");
    }
}

/* A stop string that came, or enough of an answer, is a cancel to the engine. */
static gs_finish finish_of(const gs_choice *c, const gs_seq_end *end) {
    static const gs_finish of[] = {[GS_END_STOP] = GS_FINISH_STOP,
                                   [GS_END_LENGTH] = GS_FINISH_LENGTH,
                                   [GS_END_DONE] = GS_FINISH_DONE,
                                   [GS_END_CANCELLED] = GS_FINISH_ABORT,
                                   [GS_END_ERROR] = GS_FINISH_ERROR};
    return c->stop.matched && end->reason == GS_END_CANCELLED ? GS_FINISH_STOP : of[end->reason];
}

/* Of a request with many texts the first ones stand for all. */
#define STORIES 4

static gs_record_event record_of(const gs_req *r, const gs_choice *c, const gs_seq_end *end) {
    const gs_seq_desc *d = &c->seq->desc;
    return (gs_record_event){
        .arrival_ns = end->explain.arrival_ns,
        .end_ns = end->explain.end_ns,
        .cls = end->explain.cls,
        .person = r->person,
        .api = r->p.chat ? GS_TRACE_CHAT : GS_TRACE_COMPLETIONS,
        .stream = r->p.stream,
        .cancelled = end->reason == GS_END_CANCELLED && !c->stopped,
        .n_prompt = d->n_prompt,
        .n_output = end->n_output,
        .max_output = d->max_output,
        .deadline_ns = d->deadline_ns > 0 ? d->deadline_ns - d->arrival_ns : 0,
        .tokens = d->tokens,
    };
}

/* A request's texts are one arrival, whenever each of them is computed. */
static void record_text(gs_req *r, const gs_choice *c, const gs_seq_end *end) {
    gs_record_event *t = &r->texts;
    const int32_t n_before = t->n_texts, n_prompt = t->n_prompt;
    const int64_t arrival_ns = t->arrival_ns;
    *t = record_of(r, c, end);
    t->api = GS_TRACE_EMBEDDINGS;
    t->tokens = NULL;
    t->n_texts = n_before + 1;
    t->n_prompt += n_prompt; /* their sum, until they are recorded */
    if (n_before > 0 && arrival_ns < t->arrival_ns)
        t->arrival_ns = arrival_ns;
}

static void record_texts(gs_req *r) {
    gs_record_event *t = &r->texts;
    if (t->n_texts == 0)
        return;
    t->n_prompt = (t->n_prompt + t->n_texts / 2) / t->n_texts;
    gs_recorder_add(r->api->cfg.recorder, t);
    *t = (gs_record_event){0};
}

static void record(gs_req *r, const gs_choice *c, const gs_seq_end *end) {
    if (!r->dialect->embeds) {
        const gs_record_event e = record_of(r, c, end);
        gs_recorder_add(r->api->cfg.recorder, &e);
        return;
    }
    record_text(r, c, end);
    if (r->texts.n_texts == GS_RECORD_TEXTS)
        record_texts(r);
}

static void keep_story(gs_req *r, gs_choice *c, const gs_seq_end *end) {
    if (end->explain.id == 0) /* it had not been admitted */
        return;
    gs_tuning_ended(r->api, &end->explain);
    if (r->api->cfg.recorder && end->reason != GS_END_ERROR)
        record(r, c, end);
    gs_metrics_ended(gs_models_metrics(r->api, r->entry), finish_of(c, end), &end->explain);
    c->story = end->explain;
    if (!r->dialect->embeds || c->index < STORIES)
        gs_api_remember(r->api, r, c->index, &end->explain);
}

static void failed(gs_req *r, gs_choice *c, int code) {
    gs_api_error e;
    gs_api_fail(&e, code ? code : GS_ERR_INTERNAL, NULL, "%s",
                gs_err_text(code ? code : GS_ERR_INTERNAL));
    c->finished = true;
    gs_req_fail(r, &e);
}

static void end_event(gs_req *r, gs_choice *c, const gs_seq_end *end) {
    keep_story(r, c, end);
    gs_lend_local_end(r, c);
    gs_seq_free(c->seq);
    c->seq = NULL;
    r->n_out--;
    if (r->state == GS_REQ_SUBMITTED && !c->admitted)
        decided(r);
    if (r->state == GS_REQ_DONE || c->finished)
        return;
    if (end->reason == GS_END_ERROR) {
        failed(r, c, end->err);
        return;
    }
    if (c->stopped) {
        choice_finished(r, c, "stop");
        return;
    }
    gs_buf_clear(&r->piece);
    int rc = gs_detok_flush(&c->detok, &r->piece);
    if (rc == 0)
        rc = show_piece(r, c, true);
    if (rc != 0) {
        oom(r);
        return;
    }
    choice_finished(r, c, end->reason == GS_END_LENGTH ? "length" : "stop");
}

/* ---- Vectors: many sequences, a part of them with the engine ------------------------------- */

/* The first text that is admitted decides that there is an answer. */
static void text_admitted(gs_req *r, gs_choice *c, const gs_admission *adm) {
    admitted(r, c, adm);
    if (r->state != GS_REQ_SUBMITTED)
        return;
    r->state = GS_REQ_RUNNING;
    add_headers(r);
}

static void text_returned(gs_req *r, gs_choice *c) {
    gs_seq_free(c->seq);
    c->seq = NULL;
    r->n_out--;
    r->api->n_texts--;
}

/* Where others of it were taken, a full queue means later. */
static void text_rejected(gs_req *r, gs_choice *c, const gs_admission *adm) {
    text_returned(r, c);
    if (r->state == GS_REQ_RUNNING && adm->code == GS_ERR_OVERLOADED) {
        if (c->index < r->n_sent)
            r->n_sent = c->index;
        return;
    }
    rejected(r, c, adm);
    gs_req_fail(r, &r->error);
}

static void text_ended(gs_req *r, gs_choice *c, const gs_seq_end *end) {
    gs_backend_info info;
    gs_engine_lane_info(r->api->engine, r->m->lane, &info);
    keep_story(r, c, end);
    const bool wanted = r->state != GS_REQ_DONE;
    int rc = 0;
    if (wanted)
        rc = end->reason == GS_END_DONE ? gs_embed_take(r, c, c->seq->embedding, info.n_embd)
             : end->err                 ? end->err
                                        : GS_ERR_INTERNAL;
    text_returned(r, c);
    if (rc != 0) {
        failed(r, c, rc);
    } else if (wanted) {
        choice_finished(r, c, "stop");
        if (r->state == GS_REQ_RUNNING)
            send_texts(r);
    }
    if (r->n_out == 0)
        record_texts(r);
}

static void text_event(gs_req *r, gs_choice *c, const gs_event *ev) {
    if (ev->kind == GS_EVENT_ADMITTED)
        text_admitted(r, c, &ev->u.admission);
    else if (ev->kind == GS_EVENT_REJECTED)
        text_rejected(r, c, &ev->u.admission);
    else if (ev->kind == GS_EVENT_END)
        text_ended(r, c, &ev->u.end);
}

void gs_req_event(gs_req *r, const gs_event *ev) {
    gs_choice *c = ev->seq->owner;
    r->in_event = true;
    if (r->dialect->embeds) {
        text_event(r, c, ev);
        r->in_event = false;
        maybe_free(r);
        return;
    }
    switch (ev->kind) {
    case GS_EVENT_ADMITTED:
        admitted(r, c, &ev->u.admission);
        decided(r);
        break;
    case GS_EVENT_REJECTED:
        rejected(r, c, &ev->u.admission);
        gs_lend_local_end(r, c);
        gs_seq_free(c->seq);
        c->seq = NULL;
        r->n_out--;
        decided(r);
        break;
    case GS_EVENT_TOKEN:
        token_event(r, c, ev);
        break;
    case GS_EVENT_END:
        end_event(r, c, &ev->u.end);
        break;
    case GS_EVENT_ANSWER: /* no sequence's */
        break;
    }
    r->in_event = false;
    maybe_free(r);
}

/* ---- Choices that others fill (lend.c) ------------------------------------------------------ */

int32_t gs_req_n_prompt(const gs_req *r, int32_t i) {
    const gs_choice *c = r->choices ? &r->choices[i * r->p.n] : NULL;
    return c && c->told_prompt ? c->n_prompt : (int32_t)r->prompts[i].len;
}

void gs_req_hold(gs_req *r) {
    r->in_event = true;
}

void gs_req_release(gs_req *r) {
    r->in_event = false;
    maybe_free(r);
}

void gs_req_admitted(gs_req *r, gs_choice *c, const gs_admission *adm) {
    admitted(r, c, adm);
    decided(r);
}

void gs_req_text_admitted(gs_req *r, gs_choice *c, const gs_admission *adm) {
    text_admitted(r, c, adm);
}

/* Text may hold a stop string that the other machine did not know of. */
static int lent_text(gs_req *r, gs_choice *c, const char *data, size_t n) {
    gs_buf_clear(&r->shown);
    int rc = gs_stop_feed(&c->stop, data, n, &r->shown);
    const gs_part part = {GS_PART_TEXT, 0, r->shown.data, r->shown.len};
    if (rc == 0 && r->shown.len > 0)
        rc = choice_part(c, &part);
    return rc;
}

/* A call that has begun ends where the next one begins, and at the end. */
static int end_call(gs_choice *c) {
    const int32_t last = c->n_calls - 1;
    const gs_part end = {GS_PART_CALL_END, last, "", 0};
    return last >= 0 && !c->calls[last].ended ? choice_part(c, &end) : 0;
}

static int lent_call(gs_choice *c, gs_part_kind kind, const char *data, size_t n) {
    int rc = kind == GS_PART_CALL_BEGIN ? end_call(c) : 0;
    const int32_t call = kind == GS_PART_CALL_BEGIN ? c->n_calls : c->n_calls - 1;
    const gs_part part = {kind, call, data, n};
    return rc == 0 ? choice_part(c, &part) : rc;
}

int gs_req_lent_part(gs_req *r, gs_choice *c, gs_part_kind kind, const char *data, size_t n) {
    const int64_t now_ns = gs_now_ns();
    const gs_part thought = {kind, 0, data, n};
    if (r->state == GS_REQ_DONE || c->finished)
        return GS_ERR_CANCELLED;
    count_token(r, c, now_ns);
    c->n_output++;
    if (r->first_token_ns == 0)
        r->first_token_ns = now_ns;
    r->last_token_ns = now_ns;
    int rc = kind == GS_PART_TEXT        ? lent_text(r, c, data, n)
             : kind == GS_PART_REASONING ? choice_part(c, &thought)
                                         : lent_call(c, kind, data, n);
    if (rc == 0 && c->stop.matched) {
        gs_lend_cancel(r, c);
        choice_finished(r, c, "stop");
    }
    return rc;
}

void gs_req_lent_end(gs_req *r, gs_choice *c, const char *reason) {
    if (r->state == GS_REQ_DONE || c->finished)
        return;
    gs_buf_clear(&r->shown);
    int rc = gs_stop_finish(&c->stop, &r->shown);
    const gs_part part = {GS_PART_TEXT, 0, r->shown.data, r->shown.len};
    if (rc == 0 && r->shown.len > 0)
        rc = choice_part(c, &part);
    if (rc == 0)
        rc = end_call(c);
    if (rc != 0)
        oom(r);
    else
        choice_finished(r, c, reason);
}

void gs_req_lent_failed(gs_req *r, gs_choice *c, const gs_api_error *e) {
    if (r->state == GS_REQ_SUBMITTED && !c->admitted) {
        if (r->error.code == 0)
            r->error = *e;
        decided(r);
        return;
    }
    c->finished = true;
    gs_req_fail(r, e);
}

void gs_req_send_texts(gs_req *r) {
    if (r->state == GS_REQ_DONE)
        return;
    send_texts(r);
}

void gs_req_texts_done(gs_req *r, int32_t n) {
    const int32_t from = r->n_sent;
    r->n_sent += n;
    for (int32_t i = from; i < from + n && r->state != GS_REQ_DONE; i++)
        choice_finished(r, &r->choices[i], "stop");
    if (r->state != GS_REQ_DONE && r->n_sent < r->n_choices)
        submit_texts(r);
}
