#include "api/models.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "api/api_impl.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/sys.h"

#define LOW_PRIORITY 19 /* nice */
/* A client that waits for a model hears something before it gives up. */
#define ALIVE_STREAM_NS (5 * GS_NS_PER_S)
#define ALIVE_WHOLE_NS  (20 * GS_NS_PER_S)
#define ALIVE_AGAIN_NS  (10 * GS_NS_PER_S)

/* Of a model that was never loaded. */
#define LOAD_NS          GS_NS_PER_S
#define LOAD_NS_PER_BYTE 2

static void step(gs_api *a);

const char *gs_model_state_name(gs_model_state s) {
    static const char *const names[] = {
#define X(name, text) text,
        GS_MODEL_STATE_MAP(X)
#undef X
    };
    return names[s];
}

/* ---- Names
 * ----------------------------------------------------------------------------------------- */

/* The first one's name may come from its file. */
static const char *name_of(const gs_api *a, const gs_model_entry *m) {
    return m == a->models.v ? a->cfg.model->name : m->name;
}

const char *gs_models_name(const gs_api *a, const gs_model_entry *m) {
    return name_of(a, m);
}

int64_t gs_models_load_ns(const gs_model_entry *m) {
    if (m->state == GS_MODEL_READY)
        return 0;
    const int64_t guess_ns = (int64_t)m->spec->bytes * LOAD_NS_PER_BYTE + LOAD_NS;
    const int64_t all_ns = m->load_ns > 0 ? m->load_ns : guess_ns;
    const int64_t done = m->state == GS_MODEL_LOADING ? atomic_load(&m->percent) : 0;
    return all_ns - all_ns * done / 100 + 1;
}

/* The best that the name fits, if that is at least so good; of several equally good ones the first,
 * but none when it is only the beginning of their names. */
static gs_model_entry *find_own(const gs_api *a, const char *want, gs_name_match least) {
    gs_model_entry *found = NULL;
    gs_name_match best = GS_NAME_NO;
    bool several = false;
    for (int i = 0; a->models.v && i < a->models.n; i++) {
        gs_model_entry *m = &a->models.v[i];
        const gs_name_match fits = m->gone ? GS_NAME_NO : gs_model_name_match(want, name_of(a, m));
        if (fits < least || fits == GS_NAME_NO || fits < best)
            continue;
        several = fits == best;
        if (several)
            continue;
        best = fits;
        found = m;
    }
    return several && best == GS_NAME_BEGINS ? NULL : found;
}

/* Who names none means it. NULL: its file has gone. */
static gs_model_entry *first_one(const gs_api *a) {
    return a->models.v && !a->models.v->gone ? a->models.v : NULL;
}

static gs_model_entry *alias_target(const gs_api *a, const gs_model_alias *x) {
    return x->model[0] == '\0' ? first_one(a) : find_own(a, x->model, GS_NAME_SAME);
}

const gs_model_alias *gs_models_alias(const gs_api *a, const char *want) {
    for (int k = 0; k < a->cfg.n_aliases; k++)
        if (gs_model_name_match(want, a->cfg.aliases[k].name) == GS_NAME_SAME)
            return &a->cfg.aliases[k];
    return NULL;
}

gs_model_entry *gs_models_find(const gs_api *a, const char *want, const gs_model_alias **alias) {
    *alias = NULL;
    if (*want == '\0')
        return first_one(a);
    gs_model_entry *m = find_own(a, want, GS_NAME_SAME);
    if (m)
        return m;
    const gs_model_alias *x = gs_models_alias(a, want);
    if (!x)
        return find_own(a, want, GS_NAME_BEGINS);
    m = alias_target(a, x);
    *alias = m ? x : NULL;
    return m;
}

gs_model_entry *gs_models_of_body(const gs_api *a, const json_t *body) {
    const gs_model_alias *alias;
    const char *want = json_string_value(json_object_get(body, "model"));
    return gs_models_find(a, want ? want : "", &alias);
}

const char *gs_api_find_name(const gs_api *a, const char *want, const gs_model_alias **alias) {
    const gs_model_entry *m = gs_models_find(a, want, alias);
    if (!m)
        return NULL;
    return *alias ? (*alias)->name : name_of(a, m);
}

int gs_api_check_model(const gs_api *a, const json_t *body, gs_api_error *e) {
    const json_t *v = json_object_get(body, "model");
    const gs_model_alias *alias;
    if (v && !json_is_null(v) && !json_is_string(v))
        return gs_api_fail(e, GS_ERR_INVALID, "model", "'model' must be a string.");
    const char *want = json_is_string(v) ? json_string_value(v) : "";
    if (gs_api_find_name(a, want, &alias))
        return 0;
    gs_api_fail(e, GS_ERR_NOT_FOUND, "model",
                "The model '%.80s' does not exist here; this server has '%s'.", want,
                a->cfg.model->name);
    e->name = "model_not_found";
    return e->code;
}

static int n_listed(const gs_api *a) {
    int n = 0;
    for (int k = 0; k < a->models.n_order; k++)
        n += !a->models.v[a->models.order[k]].gone;
    return n;
}

/* The i-th of the models in their order, without those that have gone; i < n_listed. */
static gs_model_entry *listed(const gs_api *a, int i) {
    int k = 0;
    while (a->models.v[a->models.order[k]].gone || i-- > 0)
        k++;
    return &a->models.v[a->models.order[k]];
}

/* The i-th alias of those whose model is there; NULL: no more. */
static const gs_model_alias *listed_alias(const gs_api *a, int i) {
    for (int k = 0; k < a->cfg.n_aliases; k++)
        if (alias_target(a, &a->cfg.aliases[k]) && i-- == 0)
            return &a->cfg.aliases[k];
    return NULL;
}

const char *gs_api_served_name(const gs_api *a, int i) {
    const int n = n_listed(a);
    if (i < n)
        return name_of(a, listed(a, i));
    const gs_model_alias *x = listed_alias(a, i - n);
    return x ? x->name : NULL;
}

const gs_model_entry *gs_models_served(const gs_api *a, int i) {
    const int n = n_listed(a);
    if (i < n)
        return listed(a, i);
    const gs_model_alias *x = listed_alias(a, i - n);
    return x ? alias_target(a, x) : NULL;
}

const char *gs_models_lane_name(const gs_api *a, int32_t lane) {
    for (int i = 0; i < a->models.n; i++) {
        const gs_model_entry *m = &a->models.v[i];
        if (m->served && m->served->lane == lane)
            return name_of(a, m);
    }
    return "";
}

const gs_model_facts *gs_models_facts(const gs_api *a, const gs_model_entry *m) {
    return m->served ? &m->served->facts : m->spec ? &m->spec->facts : &a->cfg.model->facts;
}

gs_metrics *gs_models_metrics(const gs_api *a, const gs_model_entry *m) {
    return m && m->metrics ? m->metrics : a->metrics;
}

int32_t gs_models_context(const gs_api *a, const gs_model_entry *m) {
    gs_backend_info info;
    if (!m->served)
        return m->spec ? m->spec->context : 0;
    gs_engine_lane_info(a->engine, m->served->lane, &info);
    return info.max_context;
}

/* ---- The loading thread
 * ---------------------------------------------------------------------------- */

static void *job_main(void *arg) {
    gs_api *a = arg;
    gs_models *all = &a->models;
    gs_model_entry *m = all->job;
    pthread_setname_np(pthread_self(), "gs-loader");
    /* Linux has it by thread. Steps that run meanwhile come first. */
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), LOW_PRIORITY);
    if (all->job_loads)
        all->job_code =
            a->cfg.loading->load(a->cfg.loading->arg, m->spec, all->job_room, &m->percent,
                                 &m->loaded, all->job_err, sizeof(all->job_err));
    else
        a->cfg.loading->release(a->cfg.loading->arg, &m->loaded);
    atomic_store(&all->job_done, true);
    uv_async_send(&a->wake);
    return NULL;
}

/* False: no thread could be had. */
static bool start_job(gs_api *a, gs_model_entry *m, bool loads, uint64_t room) {
    gs_models *all = &a->models;
    all->job = m;
    all->job_loads = loads;
    all->job_room = room;
    all->job_code = 0;
    all->job_err[0] = '\0';
    atomic_store(&all->job_done, false);
    if (pthread_create(&all->thread, NULL, job_main, a) == 0)
        return true;
    all->job = NULL;
    return false;
}

static void queue_up(gs_api *a, gs_model_entry *m) {
    m->state = GS_MODEL_QUEUED;
    m->ticket = ++a->models.last_ticket;
    m->bytes = m->spec->bytes;
}

void gs_models_renew(gs_api *a, gs_model_entry *m) {
    if (!m->next)
        return;
    a->cfg.loading->drop(a->cfg.loading->arg, m->spec);
    m->spec = m->next;
    m->next = NULL;
}

/* Its memory is free. Who came for it meanwhile has it loaded again. */
static void after_release(gs_api *a, gs_model_entry *m) {
    m->state = GS_MODEL_COLD;
    m->bytes = 0;
    gs_models_renew(a, m);
    if (m->n_users > 0 || (m->spec->pinned && !m->gone))
        queue_up(a, m);
}

/* ---- Parked requests
 * ------------------------------------------------------------------------------- */

static bool wants_stream(const gs_route *route, const json_t *body) {
    const json_t *v = json_object_get(body, "stream");
    if (!route->stream)
        return false;
    /* Ollama's dialect streams unless it is told not to. */
    return json_is_true(v) || (!v && strcmp(route->stream, "application/x-ndjson") == 0);
}

static void alive(gs_parked *p, int64_t now_ns) {
    const bool stream = p->stream != NULL;
    const bool events = stream && strcmp(p->stream, "text/event-stream") == 0;
    const int64_t due_ns = p->written_ns > 0
                               ? p->written_ns + ALIVE_AGAIN_NS
                               : p->began_ns + (stream ? ALIVE_STREAM_NS : ALIVE_WHOLE_NS);
    if (now_ns < due_ns || gs_http_local_owner(p->rq)) /* nobody listens */
        return;
    if (p->written_ns == 0) {
        gs_http_add_header(p->rq, "Cache-Control", "no-store");
        gs_http_begin(p->rq, 200, stream ? p->stream : "application/json");
    }
    p->written_ns = now_ns;
    const char *sign = events ? ": the model is loading\n\n" : " ";
    gs_http_write(p->rq, sign, strlen(sign)); /* may report the client gone: the last use of p */
}

/* Takes p off the list; its request is the caller's. */
static gs_parked unpark(gs_api *a, gs_parked *p) {
    gs_parked **at = &a->models.parked;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    a->n_live--;
    p->model->n_users--;
    const gs_parked taken = *p;
    gs_free(p);
    return taken;
}

static gs_parked *parked_of(const gs_api *a, const gs_model_entry *m) {
    for (gs_parked *p = a->models.parked; p; p = p->next)
        if (!m || p->model == m)
            return p;
    return NULL;
}

/* Answers all that wait for m, or all there are. */
static void refuse(gs_api *a, gs_model_entry *m, const gs_api_error *e) {
    gs_parked *p;
    while ((p = parked_of(a, m))) {
        const gs_parked taken = unpark(a, p);
        size_t n;
        gs_http_body(taken.rq, &n);
        gs_api_discard(a, taken.body, n);
        json_decref(taken.again.note);
        gs_api_reply_error(taken.rq, e);
    }
}

/* One after the other goes where it wanted to go. */
static void release_parked(gs_api *a, gs_model_entry *m) {
    gs_parked *p;
    while ((p = parked_of(a, m))) {
        const gs_parked taken = unpark(a, p);
        if (taken.route)
            taken.route->handle(a, taken.rq, taken.body);
        else
            gs_req_resume(a, taken.rq, taken.body, &taken.again);
    }
}

static void park(gs_api *a, const gs_parked *what) {
    gs_model_entry *m = what->model;
    gs_api_error e = {0};
    gs_parked *p = a->n_live < a->cfg.max_live_requests ? gs_calloc(1, sizeof(*p)) : NULL;
    if (!p) {
        gs_api_fail(&e, GS_ERR_OVERLOADED, NULL, "Too many requests are being answered.");
        json_decref(what->body);
        json_decref(what->again.note);
        gs_api_reply_error(what->rq, &e);
        return;
    }
    *p = *what;
    p->began_ns = gs_now_ns();
    gs_parked **at = &a->models.parked;
    while (*at)
        at = &(*at)->next;
    *at = p;
    a->n_live++;
    m->n_users++;
    if (m->state == GS_MODEL_COLD)
        queue_up(a, m);
    step(a);
}

void gs_models_park(gs_api *a, gs_model_entry *m, gs_http_request *rq, json_t *body,
                    const gs_route *route) {
    park(a, &(gs_parked){.rq = rq,
                         .body = body,
                         .route = route,
                         .stream = wants_stream(route, body) ? route->stream : NULL,
                         .model = m});
}

void gs_models_park_again(gs_api *a, gs_model_entry *m, gs_http_request *rq, json_t *body,
                          const gs_req_again *again) {
    const bool stream = json_is_true(json_object_get(body, "stream"));
    if (m->state == GS_MODEL_READY) { /* by now */
        gs_req_resume(a, rq, body, again);
        return;
    }
    park(a, &(gs_parked){.rq = rq,
                         .body = body,
                         .again = *again,
                         .stream = stream ? again->dialect->stream_type : NULL,
                         .model = m});
}

bool gs_models_gone(gs_api *a, gs_http_request *rq) {
    for (gs_parked *p = a->models.parked; p; p = p->next) {
        if (p->rq != rq)
            continue;
        const gs_parked taken = unpark(a, p);
        taken.model->used_ns = gs_now_ns();
        json_decref(taken.body);
        json_decref(taken.again.note);
        gs_http_end(rq);
        return true;
    }
    return false;
}

/* ---- Room
 * ------------------------------------------------------------------------------------------ */

static uint64_t held_bytes(const gs_api *a) {
    uint64_t n = 0;
    for (int i = 0; i < a->models.n; i++)
        if (a->models.v[i].state >= GS_MODEL_LOADING)
            n += a->models.v[i].bytes;
    return n;
}

static bool is_idle(const gs_api *a, const gs_model_entry *m) {
    return a->models.begun && m->spec && m->state == GS_MODEL_READY && m->n_users == 0;
}

static void unload(gs_api *a, gs_model_entry *m, const char *why) {
    gs_info("models", "unloading name=%s why=%s", m->name, why);
    m->state = GS_MODEL_LEAVING;
    m->query = (gs_query){.kind = GS_QUERY_DETACH, .owner = m, .lane = m->served->lane};
    gs_engine_ask(a->engine, &m->query);
}

/* Least recently used of those that may go. */
static gs_model_entry *find_victim(const gs_api *a) {
    gs_model_entry *best = NULL;
    for (int i = 1; i < a->models.n; i++) {
        gs_model_entry *m = &a->models.v[i];
        if (is_idle(a, m) && !m->spec->pinned && (!best || m->used_ns < best->used_ns))
            best = m;
    }
    return best;
}

static void fail_load(gs_api *a, gs_model_entry *m, int64_t retry_ns, const char *why) {
    gs_api_error e = {0};
    gs_warn("models", "not loaded name=%s why=%s", m->name, why);
    m->state = GS_MODEL_COLD;
    m->bytes = 0;
    gs_api_fail(&e, GS_ERR_UNAVAILABLE, "model", "The model '%.80s' could not be loaded: %s",
                m->name, why);
    gs_models_renew(a, m);
    e.retry_after_ns = retry_ns;
    refuse(a, m, &e);
}

static gs_model_entry *next_queued(const gs_api *a) {
    gs_model_entry *best = NULL;
    for (int i = 0; i < a->models.n; i++) {
        gs_model_entry *m = &a->models.v[i];
        if (m->state == GS_MODEL_QUEUED && (!best || m->ticket < best->ticket))
            best = m;
    }
    return best;
}

static bool somebody_leaves(const gs_api *a) {
    for (int i = 0; i < a->models.n; i++)
        if (a->models.v[i].state == GS_MODEL_LEAVING)
            return true;
    return false;
}

static int n_lanes(const gs_api *a) {
    int n = 1;
    for (int i = 1; i < a->models.n; i++)
        n += a->models.v[i].state >= GS_MODEL_LOADING;
    return n;
}

/* Of the machine, whatever the budget says. */
static bool has_room(const gs_api *a, const gs_model_entry *m) {
    const gs_config *c = a->cfg.config;
    const uint64_t left = c && c->memory_reserve_mb > 0 ? gs_memory_available() : 0;
    return left == 0 || m->bytes + ((uint64_t)c->memory_reserve_mb << 20) <= left;
}

/* Loads m if there is room; makes room, waits for it, or says that there is none. */
static void load_next(gs_api *a, gs_model_entry *m) {
    const uint64_t held = held_bytes(a), budget = a->cfg.memory_bytes;
    const bool fits = has_room(a, m);
    char why[200];
    if (fits && (budget == 0 || held + m->bytes <= budget) && n_lanes(a) < GS_ENGINE_LANES) {
        m->state = GS_MODEL_LOADING;
        atomic_store(&m->percent, 0);
        gs_info("models", "loading name=%s", m->name);
        if (!start_job(a, m, true, budget > 0 ? budget - held : UINT64_MAX))
            fail_load(a, m, GS_NS_PER_S, "there is no thread to load it.");
        return;
    }
    if (somebody_leaves(a))
        return; /* it is asked again when that one is gone */
    gs_model_entry *victim = find_victim(a);
    if (victim) {
        unload(a, victim, "room");
        return;
    }
    if (!fits) {
        snprintf(why, sizeof(why), "it needs %llu MB, and the machine has not so much left.",
                 (unsigned long long)(m->bytes >> 20));
        fail_load(a, m, 10 * GS_NS_PER_S, why);
        return;
    }
    snprintf(why, sizeof(why),
             "it needs %llu MB; of the %llu MB for models %llu MB are taken by models that are in "
             "use or stay.",
             (unsigned long long)(m->bytes >> 20), (unsigned long long)(budget >> 20),
             (unsigned long long)(held >> 20));
    fail_load(a, m, 10 * GS_NS_PER_S, why);
}

/* Whatever can go on does. */
static void step(gs_api *a) {
    gs_model_entry *m;
    while (!a->models.job && !a->draining && (m = next_queued(a))) {
        load_next(a, m);
        if (m->state == GS_MODEL_QUEUED)
            return;
    }
}

/* ---- The loading thread is done, the engine has answered
 * ------------------------------------------- */

static void attach(gs_api *a, gs_model_entry *m) {
    m->bytes = m->loaded.bytes;
    m->query = (gs_query){.kind = GS_QUERY_ATTACH,
                          .owner = m,
                          .backend = m->loaded.backend,
                          .cost = m->loaded.cost,
                          .prepare = m->loaded.prepare,
                          .prepare_arg = m->loaded.prepare_arg,
                          .first = m == a->models.v,
                          .prefixes = m->loaded.prefixes};
    m->loaded.backend = NULL;
    gs_engine_ask(a->engine, &m->query);
}

void gs_models_pump(gs_api *a) {
    gs_models *all = &a->models;
    if (!all->job || !atomic_load(&all->job_done))
        return;
    gs_model_entry *m = all->job;
    pthread_join(all->thread, NULL);
    all->job = NULL;
    if (a->draining)
        return; /* what was loaded is given back at the end */
    if (!all->job_loads) {
        after_release(a, m);
    } else if (all->job_code != 0) {
        fail_load(a, m, GS_NS_PER_S, all->job_err[0] ? all->job_err : gs_err_text(all->job_code));
    } else {
        attach(a, m);
    }
    step(a);
}

static void attached(gs_api *a, gs_model_entry *m) {
    if (m->query.code != 0) {
        char why[sizeof(m->query.err)];
        snprintf(why, sizeof(why), "%s",
                 m->query.err[0] ? m->query.err : gs_err_text(m->query.code));
        /* What the loader made beside the backend goes, here: it happens once in a blue moon. */
        a->cfg.loading->release(a->cfg.loading->arg, &m->loaded);
        fail_load(a, m, GS_NS_PER_S, why);
        return;
    }
    m->loaded.served->lane = m->query.lane;
    m->served = m->loaded.served;
    m->state = GS_MODEL_READY;
    m->used_ns = gs_now_ns();
    m->load_ns = (int64_t)(m->served->load_ms * (double)GS_NS_PER_MS) + 1;
    m->keep_ns = m->spec->keep_ns;
    if (m != a->models.v && !m->metrics && (m->metrics = gs_calloc(1, sizeof(*m->metrics))))
        gs_metrics_init_further(m->metrics, a->metrics);
    gs_info("models", "ready name=%s load_ms=%.0f mb=%llu", m->name, m->served->load_ms,
            (unsigned long long)(m->bytes >> 20));
    release_parked(a, m);
}

static void detached(gs_api *a, gs_model_entry *m) {
    if (m->query.code != 0) { /* a sequence had not ended yet */
        m->state = GS_MODEL_READY;
        release_parked(a, m);
        return;
    }
    m->served = NULL;
    m->loaded.backend = m->query.backend;
    m->query.backend = NULL;
    if (!a->models.job && start_job(a, m, false, 0))
        return;
    /* Rare: another one is being loaded. Giving memory back takes a moment then. */
    a->cfg.loading->release(a->cfg.loading->arg, &m->loaded);
    after_release(a, m);
}

void gs_models_answered(gs_api *a, gs_query *q) {
    if (q->kind == GS_QUERY_ATTACH)
        attached(a, q->owner);
    else
        detached(a, q->owner);
    step(a);
}

/* ---- Use
 * ------------------------------------------------------------------------------------------- */

void gs_models_use(gs_model_entry *m) {
    m->n_users++;
}

static bool stays(const gs_api *a, const gs_model_entry *m) {
    return m == a->models.v || m->spec->pinned || m->keep_ns == GS_KEEP_FOREVER;
}

/* Why a model that nobody uses goes now, or NULL. */
static const char *why_leave(const gs_api *a, const gs_model_entry *m, int64_t now_ns) {
    if (m->gone)
        return "its file has gone";
    if (m->next)
        return "its file has changed";
    return gs_models_expires_ns(a, m) <= now_ns ? "keep_alive" : NULL;
}

static void leave_if_due(gs_api *a, gs_model_entry *m, int64_t now_ns) {
    const char *why = is_idle(a, m) && !a->draining ? why_leave(a, m, now_ns) : NULL;
    if (why)
        unload(a, m, why);
}

int64_t gs_models_expires_ns(const gs_api *a, const gs_model_entry *m) {
    if (stays(a, m))
        return GS_NEVER_NS;
    const int64_t used_ns = m->n_users > 0 ? gs_now_ns() : m->used_ns;
    return used_ns + m->keep_ns;
}

void gs_models_done(gs_api *a, gs_model_entry *m) {
    m->n_users--;
    m->used_ns = gs_now_ns();
    leave_if_due(a, m, m->used_ns);
    if (m->state == GS_MODEL_READY)
        step(a); /* it may make room for another one now */
}

void gs_models_keep(gs_model_entry *m, int64_t keep_ns) {
    m->keep_ns = keep_ns;
}

/* What is pinned is loaded once the first one is there. */
static void load_pinned(gs_api *a) {
    if (a->models.begun || !a->engine || gs_engine_get_state(a->engine) != GS_ENGINE_READY)
        return;
    a->models.begun = true;
    a->models.v->bytes = a->cfg.model->bytes;
    for (int i = 1; i < a->models.n; i++)
        if (a->models.v[i].spec->pinned && a->models.v[i].state == GS_MODEL_COLD)
            queue_up(a, &a->models.v[i]);
    step(a);
}

void gs_models_tick(gs_api *a, int64_t now_ns) {
    load_pinned(a);
    gs_models_scan_tick(a, now_ns);
    for (int i = 0; i < a->models.n; i++)
        leave_if_due(a, &a->models.v[i], now_ns);
    for (gs_parked *p = a->models.parked, *next; p; p = next) {
        next = p->next;
        alive(p, now_ns);
    }
}

/* ---- Start and end
 * --------------------------------------------------------------------------------- */

int gs_models_create(gs_api *a) {
    a->models.n = 1;
    a->models.v = gs_calloc(GS_MODELS_MAX, sizeof(*a->models.v));
    a->models.order = gs_calloc(GS_MODELS_MAX, sizeof(*a->models.order));
    if (!a->models.v || !a->models.order)
        return GS_ERR_NOMEM;
    a->models.v[0] = (gs_model_entry){.state = GS_MODEL_READY, .served = a->cfg.model};
    a->models.n_order = 1;
    if (a->cfg.loading)
        a->models.v[0].loaded.impl = a->cfg.loading->first;
    return a->cfg.loading ? gs_models_scan_first(a) : 0;
}

void gs_models_drain(gs_api *a) {
    gs_api_error e = {0};
    gs_api_fail(&e, GS_ERR_UNAVAILABLE, NULL, "The server is shutting down.");
    refuse(a, NULL, &e);
}

void gs_models_free(gs_api *a) {
    gs_models *all = &a->models;
    if (all->job) {
        atomic_store(&all->job->percent, -1);
        pthread_join(all->thread, NULL);
    }
    for (int i = 0; i < all->n; i++) {
        gs_model_entry *m = &all->v[i];
        if (!m->spec)
            continue;
        /* A question that the engine never got to, or an answer that nobody polled. */
        if (m->query.backend)
            m->loaded.backend = m->query.backend;
        if (m->loaded.impl && (m->loaded.impl != a->cfg.loading->first || m->loaded.backend))
            a->cfg.loading->release(a->cfg.loading->arg, &m->loaded);
        gs_free(m->metrics);
        gs_models_renew(a, m);
        a->cfg.loading->drop(a->cfg.loading->arg, m->spec);
    }
    gs_free(all->order);
    gs_free(all->v);
}
