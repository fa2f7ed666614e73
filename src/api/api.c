#include "api/api.h"

#include <string.h>

#include "api/history.h"
#include "api/kept.h"
#include "api/lend.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/sys.h"

#define TICK_MS       500
#define DRAIN_TICK_MS 20
/* After the last answer: for its bytes to leave and the clients to close. */
#define FLUSH_NS (GS_NS_PER_S)
/* Events handled in one turn of the loop. What they write is sent at the turn's end, so a backend
 * that is faster than this loop must not keep the turn going. */
#define TURN_EVENTS 1024

void gs_api_link(gs_api *a, gs_req *r) {
    r->prev = NULL;
    r->next = a->live;
    if (a->live)
        a->live->prev = r;
    a->live = r;
    a->n_live++;
}

void gs_api_unlink(gs_api *a, gs_req *r) {
    if (r->prev)
        r->prev->next = r->next;
    else
        a->live = r->next;
    if (r->next)
        r->next->prev = r->prev;
    a->n_live--;
}

bool gs_api_ready(const gs_api *a, gs_api_error *e) {
    gs_engine_state s = gs_engine_get_state(a->engine);
    if (a->draining)
        gs_api_fail(e, GS_ERR_UNAVAILABLE, NULL, "The server is shutting down.");
    else if (s == GS_ENGINE_LOADING)
        gs_api_fail(e, GS_ERR_UNAVAILABLE, NULL, "The model is still loading.");
    else if (s == GS_ENGINE_FAILED)
        gs_api_fail(e, GS_ERR_UNAVAILABLE, NULL, "The model could not be loaded: %s",
                    gs_engine_error(a->engine));
    else
        return true;
    return false;
}

gs_store *gs_api_store(gs_api *a, gs_api_error *e) {
    bool failed = a->store && gs_store_get_state(a->store) == GS_STORE_FAILED;
    if (a->store && !failed)
        return a->store;
    const char *why = failed                ? gs_store_reason(a->store)
                      : a->cfg.state_reason ? a->cfg.state_reason
                                            : "this server has no state folder";
    gs_api_fail(e, GS_ERR_UNAVAILABLE, NULL, "Nothing can be kept here: %s.", why);
    return NULL;
}

static void drain_step(gs_api *a);

static void pump(gs_api *a) {
    gs_event ev;
    int n = 0;
    for (; n < TURN_EVENTS && a->engine && gs_engine_poll(a->engine, &ev); n++) {
        if (ev.kind == GS_EVENT_ANSWER) {
            if (ev.u.answer->kind >= GS_QUERY_ATTACH)
                gs_models_answered(a, ev.u.answer);
            else
                gs_api_answered(a, ev.u.answer);
            continue;
        }
        const gs_choice *c = ev.seq->owner;
        gs_req_event(c->req, &ev);
    }
    if (n == TURN_EVENTS)
        uv_async_send(&a->wake);
    if (a->draining)
        drain_step(a);
}

static void on_wake(uv_async_t *h) {
    gs_api *a = h->data;
    if (a->store)
        gs_store_poll(a->store);
    gs_models_pump(a);
    gs_pulls_pump(a);
    pump(a);
    if (a->kept)
        gs_batches_pump(a->kept);
}

void gs_api_wake(void *arg) {
    gs_api *a = *(gs_api **)arg;
    if (a)
        uv_async_send(&a->wake);
}

/* Linux gives memory that it does not have and kills somebody later, so nothing new is begun while
 * little is left. What runs already has its KV blocks reserved and its buffers bounded. */
static void look_at_memory(gs_api *a) {
    const gs_config *c = a->cfg.config;
    if (!c || c->memory_reserve_mb == 0)
        return;
    const uint64_t left = gs_memory_available();
    const bool low = left > 0 && left >> 20 < (uint64_t)c->memory_reserve_mb;
    if (low != a->memory_low)
        gs_warn("api", "memory %s available_mb=%llu",
                low ? "is low, requests are refused" : "is back", (unsigned long long)(left >> 20));
    a->memory_low = low;
}

bool gs_api_has_memory(const gs_api *a, gs_api_error *e) {
    if (!a->memory_low)
        return true;
    gs_api_fail(e, GS_ERR_NOMEM, NULL,
                "This machine has less than %lld MB of memory left (memory.reserve_mb).",
                (long long)a->cfg.config->memory_reserve_mb);
    e->retry_after_ns = 5 * GS_NS_PER_S;
    return false;
}

static void on_tick(uv_timer_t *h) {
    gs_api *a = h->data;
    int64_t now_ns = gs_now_ns();
    gs_watch_tick(a, now_ns);
    look_at_memory(a);
    gs_api_keys_refresh(a);
    gs_models_tick(a, now_ns);
    gs_pulls_tick(a);
    gs_hours_tick(a);
    gs_kept_tick(a);
    gs_lend_tell_local(a);
    gs_bills_refresh(a);
    if (a->engine) {
        gs_engine_stats s;
        gs_engine_get_stats(a->engine, &s);
        gs_history_sample(a->history, &s);
        if (gs_metrics_tick(a->metrics, &s, now_ns))
            gs_history_minute(a, &s, now_ns, gs_energy_read(&a->energy));
        gs_tuning_tick(a, &s, now_ns);
    }
    /* A request's tick may free that request, never another one. */
    for (gs_req *r = a->live, *next; r; r = next) {
        next = r->next;
        gs_req_tick(r, now_ns);
    }
    if (a->draining)
        drain_step(a);
}

void gs_api_gone(gs_api *a, gs_http_request *rq) {
    gs_req *r = gs_http_user(rq);
    if (r)
        gs_req_gone(r);
    else if (!gs_api_job_gone(a, rq) && !gs_api_query_gone(a, rq) && !gs_models_gone(a, rq) &&
             !gs_models_files_gone(a, rq) && !gs_pulls_gone(a, rq) &&
             !gs_live_gone(a->viewers, rq) && !gs_kept_gone(a, rq) && !gs_reload_gone(a, rq))
        gs_http_end(rq);
}

static void on_gone(void *user, gs_http_request *rq) {
    gs_api_gone(user, rq);
}

static int on_head(void *user, gs_http_request *rq, const char **message) {
    return gs_upload_head(user, rq, message);
}

static size_t on_body_limit(void *user, const char *method, const char *path) {
    return gs_upload_limit(user, method, path);
}

static void on_error_body(void *user, int status, const char *path, const char *message,
                          gs_buf *out) {
    (void)user;
    gs_api_error e;
    gs_api_fail(&e, GS_ERR_INVALID, NULL, "%s", message);
    e.status = status;
    gs_api_error_body(gs_api_error_shape(path), &e, out);
}

/* Without a store chats are served all the same. api: for gs_api_wake, from the store thread. */
static void open_store(gs_api *a, gs_api **api) {
    const gs_config *c = a->cfg.config;
    gs_store_config sc = {.folder = a->cfg.state_folder,
                          .cache_bytes = c ? (int64_t)c->memory_store_mb << 20 : 0,
                          .wake = gs_api_wake,
                          .wake_arg = api};
    if (a->cfg.state_folder && gs_store_create(&sc, &a->store) != 0)
        a->cfg.state_reason = "out of memory";
    if (gs_kept_create(a) != 0 || gs_history_create(a) != 0)
        a->cfg.state_reason = "out of memory";
}

static void free_parts(gs_api *a) {
    gs_kept_free(a);
    gs_workers_free(a->workers);
    gs_bills_free(a->bills);
    gs_added_free(a->added);
    gs_hours_free(a);
    gs_live_free(a->viewers);
    gs_free(a->history);
    gs_energy_close(&a->energy);
    gs_tuning_free(a->tuning);
    gs_pulls_free(a);
    gs_free(a->metrics);
    gs_free(a->past);
    gs_keys_deinit(&a->keys.all);
    gs_free(a);
}

int gs_api_create(uv_loop_t *loop, const gs_api_config *cfg, gs_http_config *hc, gs_api **out,
                  char *err, size_t errlen) {
    gs_api *a = gs_calloc(1, sizeof(*a));
    if (!a)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    a->cfg = *cfg;
    a->loop = loop;
    a->started_ms = gs_wall_ms();
    a->past = gs_calloc(GS_API_PAST, sizeof(*a->past));
    a->metrics = gs_calloc(1, sizeof(*a->metrics));
    a->tuning = gs_tuning_create();
    a->pulls = gs_pulls_create();
    int rc = a->past && a->metrics && a->tuning && a->pulls
                 ? gs_random_bytes(&a->scope_salt, sizeof(a->scope_salt))
                 : GS_ERR_NOMEM;
    if (rc == 0)
        rc = gs_live_create(a);
    if (rc == 0)
        rc = gs_models_create(a);
    if (rc != 0) {
        free_parts(a);
        return gs_fail(err, errlen, rc,
                       rc == GS_ERR_NOMEM ? "out of memory" : "no random numbers to be had");
    }
    gs_energy_open(&a->energy, NULL);
    gs_metrics_init(a->metrics, cfg->metrics_persons, gs_history_period_ns(a), gs_now_ns());
    rc = gs_api_keys_open(a, err, errlen);
    if (rc == 0)
        rc = gs_hours_create(a, err, errlen);
    if (rc == 0)
        rc = gs_lend_create(a, err, errlen);
    if (rc != 0) {
        free_parts(a);
        return rc;
    }
    hc->on_request = gs_api_on_request;
    hc->on_gone = on_gone;
    hc->on_head = on_head;
    hc->body_limit = on_body_limit;
    hc->error_body = on_error_body;
    hc->user = a;
    rc = gs_http_server_create(loop, hc, &a->http, err, errlen);
    if (rc != 0) {
        free_parts(a);
        return rc;
    }
    uv_async_init(loop, &a->wake, on_wake);
    a->wake.data = a;
    uv_timer_init(loop, &a->tick);
    a->tick.data = a;
    uv_timer_start(&a->tick, on_tick, TICK_MS, TICK_MS);
    gs_live_begin(a->viewers);
    *out = a;
    open_store(a, out);
    return 0;
}

void gs_api_set_engine(gs_api *a, gs_engine *e) {
    a->engine = e;
    /* Events may already be waiting from before a wake-up could be delivered. */
    uv_async_send(&a->wake);
}

int gs_api_port(const gs_api *a) {
    return gs_http_port(a->http);
}

int gs_api_n_live(const gs_api *a) {
    return a->n_live;
}

/* ---- Drain
 * -------------------------------------------------------------------------------------------- */

static void tick_closed(uv_handle_t *h) {
    gs_api *a = h->data;
    a->done(a->done_arg);
}

/* The engine thread may send a wake-up until the engine is freed (a model that has just been
 * loaded), so that handle no longer keeps the loop going but closes in gs_api_free. */
static void http_closed(void *arg) {
    gs_api *a = arg;
    uv_unref((uv_handle_t *)&a->wake);
    gs_live_close(a->viewers);
    gs_workers_close(a->workers);
    uv_close((uv_handle_t *)&a->tick, tick_closed);
}

/* Called after every event while draining: the end comes when no request is left and the last
 * answers have been written. */
static void drain_step(gs_api *a) {
    int64_t now_ns = gs_now_ns();
    if (a->n_live > 0 && now_ns >= a->drain_until_ns) {
        a->drain_until_ns = INT64_MAX;
        gs_api_error e;
        gs_api_fail(&e, GS_ERR_UNAVAILABLE, NULL, "The server is shutting down.");
        for (gs_req *r = a->live, *next; r; r = next) {
            next = r->next;
            gs_req_fail(r, &e);
        }
    }
    if (a->n_live > 0 || a->http_closed)
        return;
    if (a->flush_until_ns == 0)
        a->flush_until_ns = now_ns + FLUSH_NS;
    if (gs_http_n_connections(a->http) == 0 || now_ns >= a->flush_until_ns) {
        a->http_closed = true;
        gs_http_server_close(a->http, http_closed, a);
    }
}

void gs_api_drain(gs_api *a, int deadline_ms, void (*done)(void *arg), void *arg) {
    if (a->draining)
        return;
    a->draining = true;
    a->done = done;
    a->done_arg = arg;
    a->drain_until_ns = gs_now_ns() + deadline_ms * GS_NS_PER_MS;
    gs_live_drain(a->viewers);
    gs_http_server_drain(a->http);
    gs_kept_stop(a);
    uv_timer_start(&a->tick, on_tick, DRAIN_TICK_MS, DRAIN_TICK_MS);
    gs_info("api", "draining requests=%d", a->n_live);
    gs_models_drain(a);
    gs_pulls_drain(a);
    drain_step(a);
}

static void wake_closed(uv_handle_t *h) {
    *(bool *)h->data = true;
}

void gs_api_free(gs_api *a) {
    bool closed = false;
    if (!a)
        return;
    gs_pulls_free(a); /* its threads wake this object, too */
    a->pulls = NULL;
    gs_models_free(a);
    gs_store_free(a->store); /* its last jobs end; its thread wakes this object, too */
    a->wake.data = &closed;
    uv_close((uv_handle_t *)&a->wake, wake_closed);
    while (!closed)
        uv_run(a->loop, UV_RUN_NOWAIT);
    free_parts(a);
}
