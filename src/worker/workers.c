#include "worker/workers.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "worker/worker_impl.h"

#define MAX_NAMES    1024
#define BLOCK_BYTES  128 /* of a prompt's text: some 32 tokens */
#define BLOCK_TOKENS 32
#define MAX_BLOCKS   256
#define WALL_NS      (30 * GS_NS_PER_S) /* hours are looked at so often */
#define HOLD_OFF_S   1                  /* after "too much to do" without Retry-After */
#define MAX_HOLD_S   600
#define RETRY_S      10 /* for a client, where nobody knows when a worker is back */
#define MAX_RETRY_S  86400

const char *gs_workers_intern(gs_workers *ws, const char *name) {
    for (int i = 0; i < ws->n_names; i++)
        if (strcmp(ws->names[i], name) == 0)
            return ws->names[i];
    char *copy = ws->n_names < MAX_NAMES ? gs_strdup(name) : NULL;
    if (copy)
        ws->names[ws->n_names++] = copy;
    return copy;
}

uint32_t gs_workers_model_number(gs_workers *ws, const char *name) {
    const char *kept = gs_workers_intern(ws, name);
    for (int i = 0; kept && i < ws->n_names; i++)
        if (ws->names[i] == kept)
            return (uint32_t)i + 1;
    return 0;
}

static void on_pump(uv_timer_t *h);
static void on_clock(uv_timer_t *h);

void gs_workers_pump_soon(gs_workers *ws) {
    if (!ws->closing && !uv_is_active((uv_handle_t *)&ws->pump))
        uv_timer_start(&ws->pump, on_pump, 0, 0);
}

/* ---- Models -------------------------------------------------------------------------------- */

const char *gs_workers_model_name(const gs_workers *ws, uint32_t model) {
    return ws->names[model - 1];
}

static const gs_worker_model *model_of(const gs_worker *w, uint32_t model) {
    for (int i = 0; i < w->n_models; i++)
        if (w->models[i].model == model)
            return &w->models[i];
    return NULL;
}

/* "name", or "name:latest", as Ollama's clients write it. */
bool gs_workers_model(const gs_workers *ws, const char *want, uint32_t *model, const char **name) {
    for (const gs_worker *w = ws->first; w; w = w->next) {
        for (int i = 0; i < w->n_models; i++) {
            const char *have = gs_workers_model_name(ws, w->models[i].model);
            const size_t n = strlen(have);
            if (strncmp(want, have, n) != 0 ||
                (want[n] != '\0' && strcmp(want + n, ":latest") != 0))
                continue;
            *model = w->models[i].model;
            *name = have;
            return true;
        }
    }
    return false;
}

static bool listed_before(const gs_workers *ws, const gs_worker *until, uint32_t model) {
    for (const gs_worker *w = ws->first; w != until; w = w->next)
        if (model_of(w, model))
            return true;
    return false;
}

const char *gs_workers_model_at(const gs_workers *ws, int i) {
    for (const gs_worker *w = ws->first; w; w = w->next)
        for (int k = 0; k < w->n_models; k++)
            if (!listed_before(ws, w, w->models[k].model) && i-- == 0)
                return gs_workers_model_name(ws, w->models[k].model);
    return NULL;
}

/* ---- What a worker says -------------------------------------------------------------------- */

static void take_off(gs_workers *ws, const gs_job *j) {
    gs_job **at = &ws->jobs;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
}

static gs_job *job_of(const gs_workers *ws, uint64_t id) {
    gs_job *j = ws->jobs;
    while (j && j->id != id)
        j = j->next;
    return j;
}

static void charge(gs_workers *ws, gs_job *j, int64_t ns) {
    j->charged_ns += ns;
    if (ns > 0 && ws->cfg.charge)
        ws->cfg.charge(ws->cfg.arg, j->person, ns);
}

static void on_taken(void *arg) {
    gs_job *j = arg;
    gs_workers *ws = j->worker->impl->ws;
    gs_place_alive(ws->place, j->worker->index, gs_now_ns());
    j->on->taken(j);
}

static int on_part(void *arg, gs_remote_part_kind kind, const char *data, size_t n) {
    gs_job *j = arg;
    gs_workers *ws = j->worker->impl->ws;
    const int64_t now_ns = gs_now_ns();
    if (j->n_parts++ == 0)
        j->first_ns = now_ns;
    if (!gs_place_tokens(ws->place, j->id, j->attempt, 1, now_ns))
        return GS_ERR_CANCELLED;
    return j->on->part(j, kind, data, n);
}

static int on_vector(void *arg, int32_t index, float *v, int32_t n) {
    gs_job *j = arg;
    j->n_parts++;
    return j->on->vector(j, index, v, n);
}

static gs_place_how how_of(const gs_remote_end *end) {
    switch (end->code) {
    case 0:
        return GS_PLACE_DONE;
    case GS_ERR_OVERLOADED:
        return GS_PLACE_BUSY;
    case GS_ERR_INVALID:
    case GS_ERR_NOMEM:
        return GS_PLACE_BAD_REQUEST;
    default:
        return GS_PLACE_FAULT;
    }
}

static void hold_off(gs_workers *ws, const gs_worker *w, int32_t seconds) {
    const int64_t s = seconds <= 0 ? HOLD_OFF_S : seconds < MAX_HOLD_S ? seconds : MAX_HOLD_S;
    gs_place_hold_off(ws->place, w->index, gs_now_ns() + s * GS_NS_PER_S);
}

static void on_end(void *arg, const gs_remote_end *end) {
    gs_job *j = arg;
    gs_worker *w = gs_workers_find(j->worker->impl->ws, j->worker->name);
    gs_workers *ws = j->worker->impl->ws;
    const gs_place_how how = how_of(end);
    gs_place_over over;
    j->remote = NULL;
    if (w && how == GS_PLACE_FAULT) {
        gs_warn("worker", "worker=%s failed a request: %s", w->name, end->message);
        snprintf(w->why, sizeof(w->why), "%s", end->message);
    }
    if (how == GS_PLACE_BUSY)
        hold_off(ws, j->worker, end->retry_after_s);
    if (w && how == GS_PLACE_DONE) {
        w->prompt_tokens += (uint64_t)(end->usage.n_prompt > 0 ? end->usage.n_prompt : j->n_prompt);
        w->output_tokens += (uint64_t)(end->usage.n_output > 0 ? end->usage.n_output : j->n_parts);
    }
    const bool known = gs_place_end(ws->place, j->id, j->attempt, how, gs_now_ns(), &over);
    GS_ASSERT(known); /* who gives an attempt up closes it */
    charge(ws, j, over.charged_ns);
    j->worker = NULL;
    gs_workers_pump_soon(ws);
    if (over.again)
        return;
    take_off(ws, j);
    j->on->end(j, end);
}

/* ---- What is to be done -------------------------------------------------------------------- */

/* {"model":"ITS-NAME", what the dialect wants, the request's members} */
static void write_body(const gs_worker *w, const gs_job *j, gs_buf *out) {
    const gs_worker_dialect *d = w->dialect;
    const bool answers = j->kind != GS_REMOTE_EMBEDDINGS;
    gs_buf_printf(out, "{\"model\":\"%s\",", model_of(w, j->model)->its_name);
    if (answers)
        gs_buf_str(out, "\"stream\":true,\"stream_options\":{\"include_usage\":true},");
    if (answers && d->extra)
        gs_buf_printf(out, "%s,", d->extra);
    if (d->priority && w->cfg.priority)
        gs_buf_printf(out, "\"%s\":%d,", d->priority, (int)j->cls);
    if (answers && d->cache_salt)
        gs_buf_printf(out, "\"%s\":\"%016llx\",", d->cache_salt,
                      (unsigned long long)j->cache_scope);
    if (j->has_seed)
        gs_buf_printf(out, "\"seed\":%lld,", (long long)j->seed);
    gs_buf_add(out, j->members, j->n_members);
    gs_buf_char(out, '}');
}

static void start(gs_workers *ws, gs_worker *w, gs_job *j) {
    static const gs_remote_end none = {
        .code = GS_ERR_NOMEM, .usage = {-1, -1, -1}, .message = "out of memory"};
    const struct gs_worker_impl *x = w->impl;
    gs_buf body = {0};
    const gs_remote_target to = {.url = &x->url,
                                 .tls = x->tls,
                                 .key = x->key,
                                 .connect_ms = w->cfg.timeout_ms,
                                 .answer_ms = w->cfg.answer_ms};
    const gs_remote_handler on = {on_taken, on_part, on_vector, on_end, j};
    j->worker = w;
    j->worker_name = w->name;
    write_body(w, j, &body);
    if (!body.failed)
        j->remote = gs_remote_start(ws->loop, &to, j->kind, body.data, body.len, j->max_parts,
                                    j->n_texts, &on);
    gs_buf_deinit(&body);
    if (!j->remote)
        on_end(j, &none);
}

/* Of those that the place names: one that has left is here until the place says so (forget). */
static gs_worker *worker_at(const gs_workers *ws, int32_t index) {
    for (gs_worker *w = ws->first; w; w = w->next)
        if (w->index == index)
            return w;
    gs_worker *w = ws->leaving;
    while (w && w->index != index)
        w = w->next;
    GS_ASSERT(w);
    return w;
}

static void dispatch(gs_workers *ws, const gs_place_act *act) {
    gs_job *j = job_of(ws, act->id);
    j->attempt = act->attempt;
    j->why = act->why;
    j->placed_ns = gs_now_ns();
    j->predicted_ttft_ns = act->predicted_ttft_ns;
    j->worker_name = NULL;
    if (act->worker == ws->local)
        j->on->local(j);
    else
        start(ws, worker_at(ws, act->worker), j);
}

/* Why nobody can answer now: what becomes of each worker that has the model. */
static void say_why(const gs_workers *ws, uint32_t model, char *out, size_t n) {
    size_t at = (size_t)snprintf(out, n, "no worker for it can be reached");
    const char *before = ": ";
    for (const gs_worker *w = ws->first; w && at < n; w = w->next) {
        gs_place_view v;
        if (!model_of(w, model))
            continue;
        gs_place_get_view(ws->place, w->index, gs_now_ns(), &v);
        const bool there = v.state == GS_WORKER_UP || v.state == GS_WORKER_SLOW;
        at += (size_t)snprintf(out + at, n - at, "%s%s %s", before, w->name,
                               there ? "takes nothing of this kind now"
                                     : gs_worker_state_sentence(v.state));
        before = ", ";
    }
}

/* The request is no more: it ends with an error. */
static void refuse(gs_workers *ws, gs_job *j, const gs_place_act *act) {
    char why[200] = "the worker has stopped answering";
    const int64_t retry_s = act->retry_ns / GS_NS_PER_S + 1;
    if (act->err != GS_ERR_TIMEOUT)
        say_why(ws, j->model, why, sizeof(why));
    const gs_remote_end e = {.code = act->err,
                             .usage = {-1, -1, -1},
                             .retry_after_s = act->retry_ns < 0       ? RETRY_S
                                              : retry_s < MAX_RETRY_S ? (int32_t)retry_s
                                                                      : MAX_RETRY_S,
                             .message = why};
    take_off(ws, j);
    j->worker = NULL;
    j->on->end(j, &e);
}

static void abort_attempt(gs_workers *ws, const gs_place_act *act) {
    gs_job *j = job_of(ws, act->id);
    if (j->remote) {
        gs_warn("worker", "worker=%s is given up: no sign of life", j->worker_name);
        gs_remote_cancel(j->remote);
    }
    j->remote = NULL;
    charge(ws, j, act->charged_ns);
    if (act->over)
        refuse(ws, j, act);
}

static void forget(gs_workers *ws, int32_t index) {
    gs_worker **at = &ws->leaving;
    while (*at && (*at)->index != index)
        at = &(*at)->next;
    gs_worker *w = *at;
    if (!w)
        return;
    *at = w->next;
    gs_info("worker", "worker=%s removed", w->name);
    gs_worker_stop_probe(w);
    gs_worker_release(w);
}

static void act_on(gs_workers *ws, const gs_place_act *act) {
    switch (act->kind) {
    case GS_PLACE_DISPATCH:
        dispatch(ws, act);
        break;
    case GS_PLACE_ABORT:
        abort_attempt(ws, act);
        break;
    case GS_PLACE_REFUSE:
        job_of(ws, act->id)->worker_name = NULL;
        refuse(ws, job_of(ws, act->id), act);
        break;
    case GS_PLACE_PROBE:
        if (act->worker == ws->local)
            gs_place_probed(ws->place, act->worker, true, gs_now_ns());
        else
            gs_worker_probe(worker_at(ws, act->worker));
        break;
    case GS_PLACE_POWER_ON:
        gs_worker_power_on(worker_at(ws, act->worker));
        break;
    case GS_PLACE_GONE:
        forget(ws, act->worker);
        break;
    }
}

static bool has_hours(const gs_workers *ws) {
    for (const gs_worker *w = ws->first; w; w = w->next)
        if (w->cfg.schedule[0] || w->cfg.class_schedule[0])
            return true;
    return false;
}

static void set_clock(gs_workers *ws) {
    const int64_t now_ns = gs_now_ns();
    int64_t wake_ns = gs_place_wake_ns(ws->place);
    if (has_hours(ws) && wake_ns > now_ns + WALL_NS)
        wake_ns = now_ns + WALL_NS;
    if (wake_ns == GS_NEVER_NS) {
        uv_timer_stop(&ws->clock);
        return;
    }
    const int64_t ms = wake_ns > now_ns ? (wake_ns - now_ns) / GS_NS_PER_MS + 1 : 0;
    uv_timer_start(&ws->clock, on_clock, (uint64_t)ms, 0);
}

static void on_pump(uv_timer_t *h) {
    gs_workers *ws = h->data;
    gs_place_act act;
    while (!ws->closing && gs_place_next(ws->place, gs_now_ns(), &act))
        act_on(ws, &act);
    if (!ws->closing)
        set_clock(ws);
}

static void on_clock(uv_timer_t *h) {
    gs_workers *ws = h->data;
    gs_place_set_wall(ws->place, gs_wall_s(), gs_now_ns());
    on_pump(&ws->pump);
}

/* ---- Jobs ---------------------------------------------------------------------------------- */

static uint32_t barred(const gs_workers *ws, const gs_job *j) {
    const uint32_t local = ws->local >= 0 ? 1u << ws->local : 0;
    return j->only_local ? ~local : j->only_remote ? local : 0;
}

int gs_workers_submit(gs_workers *ws, gs_job *j) {
    uint64_t blocks[MAX_BLOCKS];
    j->id = ++ws->last_id;
    j->predicted_ttft_ns = -1;
    j->held = ws->held >> j->cls & 1;
    const gs_place_desc d = {
        .id = j->id,
        .cls = j->cls,
        .person = j->person,
        .model = j->model,
        .barred = barred(ws, j),
        .n_prompt = j->n_prompt > 0 ? j->n_prompt : 1,
        .max_output = j->max_output,
        .n_seqs = 1,
        .prefill_only = j->kind == GS_REMOTE_EMBEDDINGS,
        .arrival_ns = j->arrival_ns,
        .blocks = blocks,
        .n_blocks = gs_place_blocks(j->cache_scope, j->members, j->n_members, BLOCK_BYTES, blocks,
                                    MAX_BLOCKS),
        .block_tokens = BLOCK_TOKENS,
    };
    const int rc = gs_place_submit(ws->place, &d, gs_now_ns());
    if (rc != 0)
        return rc;
    j->next = ws->jobs;
    ws->jobs = j;
    gs_workers_pump_soon(ws);
    return 0;
}

void gs_workers_cancel(gs_workers *ws, gs_job *j) {
    gs_place_over over;
    gs_remote *remote = j->remote;
    take_off(ws, j);
    if (gs_place_cancel(ws->place, j->id, gs_now_ns(), &over))
        charge(ws, j, over.charged_ns);
    j->worker = NULL;
    j->remote = NULL;
    if (remote)
        gs_remote_cancel(remote);
    gs_workers_pump_soon(ws);
}

static void look_at_pause(gs_job *j) {
    if (j->remote)
        gs_remote_pause(j->remote, j->paused || j->held);
}

void gs_workers_pause(gs_workers *ws, gs_job *j, bool paused) {
    j->paused = paused;
    gs_place_pause(ws->place, j->id, paused, gs_now_ns());
    look_at_pause(j);
    gs_workers_pump_soon(ws);
}

void gs_workers_hold(gs_workers *ws, uint32_t classes) {
    if (classes == ws->held)
        return;
    ws->held = classes;
    gs_place_hold_classes(ws->place, classes, gs_now_ns());
    for (gs_job *j = ws->jobs; j; j = j->next) {
        j->held = classes >> j->cls & 1;
        look_at_pause(j);
    }
    gs_workers_pump_soon(ws);
}

void gs_workers_local_tokens(gs_workers *ws, gs_job *j, int32_t n) {
    gs_place_tokens(ws->place, j->id, j->attempt, n, gs_now_ns());
}

void gs_workers_local_end(gs_workers *ws, gs_job *j) {
    gs_place_over over;
    take_off(ws, j);
    gs_place_end(ws->place, j->id, j->attempt, GS_PLACE_DONE, gs_now_ns(), &over);
    gs_workers_pump_soon(ws);
}

/* ---- One more, one less -------------------------------------------------------------------- */

int gs_workers_set_local(gs_workers *ws, const char *const *names, int n, int32_t max_seqs) {
    gs_place_worker *d = gs_calloc(1, sizeof(*d));
    const char *field = NULL;
    if (!d)
        return GS_ERR_NOMEM;
    gs_place_worker_defaults(GS_WORKER_LOCAL, d);
    memcpy(d->name, "local", sizeof("local"));
    d->max_seqs = max_seqs;
    for (int i = 0; i < n && d->n_models < GS_PLACE_MODELS; i++)
        d->models[d->n_models++].model = gs_workers_model_number(ws, names[i]);
    const int rc = ws->local < 0 ? gs_place_add(ws->place, d, gs_now_ns(), &field)
                                 : gs_place_change(ws->place, ws->local, d, gs_now_ns(), &field);
    if (ws->local < 0 && rc >= 0)
        ws->local = rc;
    gs_free(d);
    return rc < 0 ? rc : 0;
}

void gs_workers_set_load(gs_workers *ws, uint32_t model, int64_t load_ns) {
    gs_place_set_load(ws->place, ws->local, model, load_ns);
}

static void put_models(gs_worker *w) {
    gs_place_worker *d = &w->impl->desc;
    d->n_models = w->n_models;
    for (int i = 0; i < w->n_models; i++)
        d->models[i] = (gs_place_model){.model = w->models[i].model};
}

void gs_worker_describe(gs_worker *w) {
    put_models(w);
    gs_place_change(w->impl->ws->place, w->index, &w->impl->desc, gs_now_ns(), NULL);
    gs_workers_pump_soon(w->impl->ws);
}

void gs_worker_free(gs_worker *w) {
    gs_tls_context_free(w->impl->tls);
    gs_buf_deinit(&w->impl->body);
    gs_config_worker_deinit(&w->cfg);
    gs_free(w->impl);
    gs_free(w);
}

void gs_worker_release(gs_worker *w) {
    if (!w->impl->probing)
        gs_worker_free(w);
}

gs_worker *gs_worker_create(gs_workers *ws, gs_config_worker *cfg) {
    gs_worker *w = gs_calloc(1, sizeof(*w));
    struct gs_worker_impl *x = gs_calloc(1, sizeof(*x));
    const char *name = gs_workers_intern(ws, cfg->name);
    if (!w || !x || !name) {
        gs_free(w);
        gs_free(x);
        gs_config_worker_deinit(cfg);
        return NULL;
    }
    *w = (gs_worker){.name = name,
                     .cfg = *cfg,
                     .impl = x,
                     .dialect =
                         gs_worker_dialect_at(cfg->dialect > 0 ? (size_t)cfg->dialect - 1 : 0),
                     .foreign_running = -1,
                     .foreign_waiting = -1};
    *cfg = (gs_config_worker){0};
    x->ws = ws;
    return w;
}

int gs_worker_place(gs_worker *w, char *err, size_t errlen) {
    gs_workers *ws = w->impl->ws;
    gs_worker **at = &ws->first;
    const char *field = NULL;
    put_models(w);
    const int rc = gs_place_add(ws->place, &w->impl->desc, gs_now_ns(), &field);
    while (*at)
        at = &(*at)->next;
    if (rc >= 0) {
        w->index = rc;
        *at = w;
        gs_workers_pump_soon(ws);
    } else if (rc == GS_ERR_EXISTS) {
        gs_fail(err, errlen, rc, "there is a worker '%.40s' already", w->name);
    } else {
        gs_fail(err, errlen, rc, "worker %s: %s: %s", w->name, field ? field : "it can't be added",
                gs_err_text(rc));
    }
    return rc < 0 ? rc : 0;
}

int gs_workers_add(gs_workers *ws, gs_config_worker *cfg, char *err, size_t errlen) {
    gs_worker *w = gs_worker_create(ws, cfg);
    if (!w)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    int rc = gs_worker_set_up(w, err, errlen);
    if (rc == 0)
        rc = gs_worker_place(w, err, errlen);
    if (rc != 0)
        gs_worker_free(w);
    return rc;
}

gs_worker *gs_workers_find(const gs_workers *ws, const char *name) {
    gs_worker *w = ws->first;
    while (w && strcmp(w->name, name) != 0)
        w = w->next;
    return w;
}

gs_worker *gs_workers_first(const gs_workers *ws) {
    return ws->first;
}

bool gs_workers_any(const gs_workers *ws) {
    return ws && (ws->first || ws->leaving);
}

int32_t gs_workers_local(const gs_workers *ws) {
    return ws->local;
}

const gs_place *gs_workers_place(const gs_workers *ws) {
    return ws->place;
}

void gs_workers_set_account(gs_workers *ws, uint32_t person, double counter_ns, double weight) {
    gs_place_set_counter(ws->place, person, counter_ns, weight);
}

void gs_workers_drain(gs_workers *ws, const gs_worker *w, bool drain) {
    gs_place_drain(ws->place, w->index, drain, gs_now_ns());
    gs_workers_pump_soon(ws);
}

void gs_workers_remove(gs_workers *ws, gs_worker *w) {
    gs_worker **at = &ws->first;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    w->next = ws->leaving;
    ws->leaving = w;
    w->impl->removed = true;
    gs_place_remove(ws->place, w->index, gs_now_ns());
    gs_workers_pump_soon(ws);
}

/* ---- Life ---------------------------------------------------------------------------------- */

static int create_place(gs_workers *ws) {
    return gs_place_create(&(gs_place_config){.max_requests = ws->cfg.max_requests,
                                              .max_persons = ws->cfg.max_persons,
                                              .local_only = 1u << GS_CLASS_VOICE,
                                              .classes = ws->cfg.classes,
                                              .local = gs_wall_local},
                           &ws->place);
}

int gs_workers_create(const gs_workers_config *cfg, gs_workers **out, char *err, size_t errlen) {
    gs_workers *ws = gs_calloc(1, sizeof(*ws));
    char **names = gs_calloc(MAX_NAMES, sizeof(*names));
    *out = NULL;
    if (ws)
        *ws = (gs_workers){.loop = cfg->loop, .cfg = *cfg, .names = names, .local = -1};
    if (!ws || !names || create_place(ws) != 0) {
        gs_free(ws);
        gs_free(names);
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    }
    uv_timer_init(cfg->loop, &ws->pump);
    uv_timer_init(cfg->loop, &ws->clock);
    ws->pump.data = ws->clock.data = ws;
    gs_place_set_wall(ws->place, gs_wall_s(), gs_now_ns());
    *out = ws;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < cfg->n; i++) {
        gs_config_worker copy;
        rc = gs_config_worker_copy(&cfg->workers[i], &copy);
        rc = rc == 0 ? gs_workers_add(ws, &copy, err, errlen)
                     : gs_fail(err, errlen, rc, "out of memory");
        if (rc != 0 && cfg->workers[i].added) { /* no reason not to start */
            gs_warn("worker", "not there: %s", err);
            rc = 0;
        }
    }
    return rc;
}

static void close_list(gs_worker **list) {
    while (*list) {
        gs_worker *w = *list;
        *list = w->next;
        w->impl->removed = true;
        gs_worker_stop_probe(w);
        gs_worker_release(w);
    }
}

void gs_workers_close(gs_workers *ws) {
    ws->closing = true;
    for (; ws->jobs; ws->jobs = ws->jobs->next)
        if (ws->jobs->remote)
            gs_remote_cancel(ws->jobs->remote);
    close_list(&ws->first);
    close_list(&ws->leaving);
    uv_close((uv_handle_t *)&ws->pump, NULL);
    uv_close((uv_handle_t *)&ws->clock, NULL);
}

void gs_workers_free(gs_workers *ws) {
    if (!ws)
        return;
    for (int i = 0; i < ws->n_names; i++)
        gs_free(ws->names[i]);
    gs_free(ws->names);
    gs_place_free(ws->place);
    gs_free(ws);
}
