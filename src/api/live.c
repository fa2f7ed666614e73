/*
 * GET /v1/live: what happens now, as server-sent events. All viewers share one look at the engine:
 * ten times a second the newest steps, once a second the whole state. What is sent is written once
 * for each audience (admins, and each other person), never for each viewer. A viewer that does not
 * keep up misses events; nothing is kept for it beyond what its connection already holds.
 */
#include <math.h>
#include <string.h>

#include "api/api_impl.h"
#include "api/live_write.h"
#include "api/route.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"

#define STEPS_MS    100
#define STATE_EVERY 10 /* times STEPS_MS */
#define MAX_VIEWERS 32
#define MAX_STEPS   256 /* of one event; the newest */
#define MAX_UNSENT  (256 * 1024)

typedef struct viewer {
    gs_http_request *rq; /* NULL: place is free */
    gs_audience audience;
    bool served; /* in the round that is going on */
} viewer;

struct gs_live {
    gs_api *api;
    uv_timer_t timer;
    viewer viewers[MAX_VIEWERS];
    int n_viewers;
    bool draining;
    uint32_t n_ticks;
    uint64_t steps_at; /* number of the next step to be told */
    gs_step_record steps[MAX_STEPS];
    gs_buf out;
    gs_buf models; /* as viewers were last told */
    /* The question to the engine, and what it is answered with. */
    bool asked;
    gs_query q;
    gs_engine_view view;
    gs_person_view persons[GS_API_MAX_PERSONS];
    gs_rates rates;
};

/* ---- Viewers ------------------------------------------------------------------------------- */

static void let_go(gs_live *v, viewer *w) {
    gs_http_request *rq = w->rq;
    w->rq = NULL;
    if (--v->n_viewers == 0)
        uv_timer_stop(&v->timer);
    gs_http_end(rq);
}

bool gs_live_gone(gs_live *v, gs_http_request *rq) {
    for (int i = 0; i < MAX_VIEWERS; i++) {
        if (v->viewers[i].rq == rq) {
            let_go(v, &v->viewers[i]);
            return true;
        }
    }
    return false;
}

/* Who looks, as of now: keys come and go while a page is open. False: nobody who may. */
static bool identify(gs_api *a, viewer *w) {
    gs_api_error e = {0};
    gs_identity who;
    if (gs_api_check_access(a, w->rq, &e) != 0)
        return false;
    gs_api_identify(a, w->rq, "", &who);
    w->audience = (gs_audience){.admin = gs_api_check_admin(a, w->rq, &e) == 0,
                                .person = who.person,
                                .scope = who.cache_scope};
    gs_api_owner(a, w->rq, &w->audience.owner);
    return true;
}

static bool same_audience(const gs_audience *a, const gs_audience *b) {
    if (a->admin || b->admin)
        return a->admin == b->admin;
    return a->person == b->person && a->scope == b->scope &&
           strcmp(a->owner.name, b->owner.name) == 0;
}

/* Sends v->out to all of an audience (NULL: to all) that keep up. */
static void tell(gs_live *v, const gs_audience *to) {
    for (int i = 0; i < MAX_VIEWERS && !v->out.failed; i++) {
        viewer *w = &v->viewers[i];
        if (!w->rq || (to && !same_audience(to, &w->audience)))
            continue;
        w->served = true;
        if (gs_http_unsent(w->rq) < MAX_UNSENT)
            gs_http_write(w->rq, v->out.data, v->out.len);
    }
}

/* ---- Events -------------------------------------------------------------------------------- */

static void begin_event(gs_live *v, const char *name) {
    gs_buf_clear(&v->out);
    v->out.failed = false;
    gs_buf_printf(&v->out, "event: %s\ndata: ", name);
}

static void end_event(gs_live *v) {
    gs_buf_str(&v->out, "\n\n");
}

/* What is in memory, when that has changed; before the steps and the state that name it. */
static void send_models(gs_live *v) {
    begin_event(v, "models");
    const size_t from = v->out.len;
    gs_live_write_models(v->api, &v->out);
    const size_t n = v->out.len - from;
    if (v->out.failed || (n == v->models.len && memcmp(v->out.data + from, v->models.data, n) == 0))
        return;
    gs_buf_clear(&v->models);
    gs_buf_add(&v->models, v->out.data + from, n);
    end_event(v);
    tell(v, NULL);
}

static void send_steps(gs_live *v) {
    const gs_steps *ring = gs_engine_steps(v->api->engine);
    const uint64_t head = gs_steps_head(ring);
    uint64_t lost = 0;
    if (head - v->steps_at > MAX_STEPS) {
        lost = head - v->steps_at - MAX_STEPS;
        v->steps_at = head - MAX_STEPS;
    }
    const uint32_t n = gs_steps_read(ring, &v->steps_at, v->steps, MAX_STEPS, &lost);
    if (n == 0 && lost == 0)
        return;
    begin_event(v, "steps");
    gs_live_write_steps(v->api, v->steps, n, lost, &v->out);
    end_event(v);
    tell(v, NULL);
}

static bool make_pool_room(gs_live *v, int32_t lane) {
    gs_backend_info info;
    gs_pool_view *p = &v->view.pools[lane];
    gs_engine_lane_info(v->api->engine, lane, &info);
    const uint32_t n = info.whole_prompts ? 0 : info.n_kv_blocks; /* an encoder keeps nothing */
    if (n > p->n_blocks) {
        int32_t *map = gs_realloc(p->map, (size_t)n * sizeof(*map));
        if (!map)
            return false;
        p->map = map;
    }
    p->n_blocks = n;
    return true;
}

/* Room for what the engine will tell. False: no memory. */
static bool make_room(gs_live *v) {
    gs_engine_stats s;
    gs_engine_get_stats(v->api->engine, &s);
    const int32_t n_records = s.n_running + s.n_waiting + 64;
    if (n_records > v->q.max_records) {
        gs_explain *records = gs_realloc(v->q.records, (size_t)n_records * sizeof(*records));
        if (!records)
            return false;
        v->q.records = records;
        v->q.max_records = n_records;
    }
    const gs_models *models = &v->api->models;
    for (int i = 0; i < models->n; i++)
        if (models->v[i].served && !make_pool_room(v, models->v[i].served->lane))
            return false;
    return true;
}

static void ask_state(gs_live *v) {
    if (v->asked || !make_room(v))
        return;
    v->view.persons = v->persons;
    v->view.n_persons = GS_API_MAX_PERSONS;
    v->q.kind = GS_QUERY_STATE;
    v->q.view = &v->view;
    v->asked = true;
    v->api->n_live++;
    gs_engine_ask(v->api->engine, &v->q);
}

void gs_live_answered(gs_live *v, gs_query *q) {
    v->asked = false;
    v->api->n_live--;
    if (q->code != GS_OK || v->n_viewers == 0)
        return;
    gs_rates_add(&v->rates, v->api->engine, q->now_ns);
    for (int i = 0; i < MAX_VIEWERS; i++) {
        viewer *w = &v->viewers[i];
        w->served = false;
        if (w->rq && !identify(v->api, w))
            let_go(v, w);
    }
    for (int i = 0; i < MAX_VIEWERS; i++) {
        const viewer *w = &v->viewers[i];
        if (!w->rq || w->served)
            continue;
        begin_event(v, "state");
        gs_live_write_state(v->api, &w->audience, q, &v->rates, &v->out);
        end_event(v);
        tell(v, &w->audience);
    }
}

static void on_timer(uv_timer_t *h) {
    gs_live *v = h->data;
    send_models(v);
    send_steps(v);
    if (v->n_ticks++ % STATE_EVERY == 0)
        ask_state(v);
}

static void get_live(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_live *v = a->viewers;
    viewer *w = NULL;
    for (int i = 0; i < MAX_VIEWERS && !w; i++)
        w = v->viewers[i].rq ? NULL : &v->viewers[i];
    if (!w || v->draining) {
        gs_api_error e;
        gs_api_fail(&e, GS_ERR_UNAVAILABLE, NULL, "There are %d viewers already.", v->n_viewers);
        gs_api_reply_error(rq, &e);
        return;
    }
    gs_http_add_header(rq, "Cache-Control", "no-store");
    gs_http_add_header(rq, "X-Accel-Buffering", "no"); /* nginx would collect events */
    gs_http_begin(rq, 200, "text/event-stream");
    w->rq = rq;
    if (strcmp(gs_http_method(rq), "HEAD") == 0 || !identify(a, w)) {
        w->rq = NULL;
        gs_http_end(rq);
        return;
    }
    begin_event(v, "hello");
    gs_live_write_hello(a, &w->audience, &v->out);
    end_event(v);
    gs_http_write(rq, v->out.data, v->out.len);
    if (v->n_viewers++ == 0) {
        gs_buf_clear(&v->models);
        gs_live_write_models(a, &v->models); /* the hello has told them */
        v->steps_at = gs_steps_head(gs_engine_steps(a->engine));
        v->rates.n = 0;
        uv_timer_start(&v->timer, on_timer, STEPS_MS, STEPS_MS);
    }
    v->n_ticks = 0; /* so that the new one has a state soon */
}

/* ---- Life ---------------------------------------------------------------------------------- */

int gs_live_create(gs_api *a) {
    a->viewers = gs_calloc(1, sizeof(*a->viewers));
    if (!a->viewers)
        return GS_ERR_NOMEM;
    a->viewers->api = a;
    return GS_OK;
}

void gs_live_begin(gs_live *v) {
    uv_timer_init(v->api->loop, &v->timer);
    v->timer.data = v;
}

void gs_live_drain(gs_live *v) {
    v->draining = true;
    for (int i = 0; i < MAX_VIEWERS; i++)
        if (v->viewers[i].rq)
            let_go(v, &v->viewers[i]);
}

void gs_live_close(gs_live *v) {
    uv_close((uv_handle_t *)&v->timer, NULL);
}

void gs_live_free(gs_live *v) {
    if (!v)
        return;
    gs_buf_deinit(&v->out);
    gs_free(v->q.records);
    gs_buf_deinit(&v->models);
    for (int i = 0; i < GS_ENGINE_LANES; i++)
        gs_free(v->view.pools[i].map);
    gs_free(v);
}

static const gs_route routes[] = {
    {"GET", "/v1/live", GS_ROUTE_MODEL, get_live,
     "What happens now: events hello, steps (10 a second) and state (one a second)",
     .stream = "text/event-stream"},
    {.path = NULL},
};

const gs_api_part gs_live_part = {"live", "What happens now.", routes, NULL};
