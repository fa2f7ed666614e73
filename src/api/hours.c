/*
 * When background may run: the household's schedule, each person's own, and somebody's pause. And
 * when a class is served as such: outside its hours a request of it is background.
 *
 * Looked at twice a second against the wall's clock, so a clock that is set, or a machine that
 * slept, is right again at once; nothing is counted in wall time. What follows is a setting of the
 * scheduler, which holds background or gives it a share.
 */
#include <stdio.h>
#include <string.h>

#include "api/api_impl.h"
#include "api/route.h"
#include "api/settings.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "sched/schedule.h"

/* The step-time model is asked for so often, for the estimates of jobs. */
#define COST_EVERY_NS (30 * GS_NS_PER_S)
/* Below this the scheduler knows no share. */
#define LEAST_SHARE 0.001

struct gs_hours {
    gs_schedule schedule;
    gs_schedule classes[GS_CLASS_COUNT];
    bool paused; /* by somebody */
    bool told;   /* since the start */
    bool open;   /* when last looked at */
    bool stale;  /* the engine does not know yet */
    bool asking; /* q is the engine's */
    gs_query q;
    gs_engine_settings settings;
    gs_person_limits limits[GS_API_MAX_PERSONS];
    bool held[GS_API_MAX_PERSONS]; /* persons' background, as the engine knows */
    gs_cost cost;                  /* as last heard; zero: not yet */
    int64_t cost_ns;
};

int gs_hours_create(gs_api *a, char *err, size_t errlen) {
    const gs_config *c = a->cfg.config;
    char why[160];
    if (!c)
        return 0;
    gs_hours *h = gs_calloc(1, sizeof(*h));
    if (!h)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    const struct {
        const char *option, *text;
        gs_schedule *out;
    } schedules[] = {
        {"background.schedule", c->background_schedule, &h->schedule},
        {"hours.voice", c->hours_voice, &h->classes[GS_CLASS_VOICE]},
        {"hours.chat", c->hours_chat, &h->classes[GS_CLASS_CHAT]},
        {"hours.completion", c->hours_completion, &h->classes[GS_CLASS_COMPLETION]},
        {"hours.document", c->hours_document, &h->classes[GS_CLASS_DOCUMENT]},
        {"hours.utility", c->hours_utility, &h->classes[GS_CLASS_UTILITY]},
    };
    for (size_t i = 0; i < sizeof(schedules) / sizeof(schedules[0]); i++) {
        int rc = gs_schedule_parse(schedules[i].text, schedules[i].out, why, sizeof(why));
        if (rc == 0)
            continue;
        gs_free(h);
        return gs_fail(err, errlen, rc, "%s: %s", schedules[i].option, why);
    }
    h->open = gs_schedule_is_open(&h->schedule, gs_wall_s(), gs_wall_local);
    h->stale = true;
    a->hours = h;
    return 0;
}

void gs_hours_free(gs_api *a) {
    gs_free(a->hours);
    a->hours = NULL;
}

static double share_outside(const gs_api *a) {
    const double most = a->cfg.config->background_max_share;
    const double outside = a->cfg.config->background_share_outside;
    return outside < most ? outside : most;
}

void gs_hours_apply(const gs_api *a, gs_engine_settings *s) {
    const gs_hours *h = a->hours;
    if (!h)
        return;
    s->slo.background_paused |= h->paused;
    if (h->open)
        return;
    if (share_outside(a) < LEAST_SHARE)
        s->slo.background_paused = true;
    else
        s->slo.background_share = share_outside(a);
}

/* The owner's own schedule; always, without one. */
static void schedule_of(const gs_key *k, gs_schedule *out) {
    char err[160];
    *out = (gs_schedule){0};
    if (k)
        gs_schedule_parse(k->schedule, out, err, sizeof(err)); /* keys.c has checked it */
}

gs_class gs_hours_class(const gs_api *a, gs_class c) {
    const bool open =
        !a->hours || gs_schedule_is_open(&a->hours->classes[c], gs_wall_s(), gs_wall_local);
    return open ? c : GS_CLASS_BACKGROUND;
}

bool gs_hours_key_open(const gs_key *k) {
    gs_schedule own;
    schedule_of(k, &own);
    return gs_schedule_is_open(&own, gs_wall_s(), gs_wall_local);
}

void gs_api_apply_hours(const gs_api *a, gs_engine_settings *s) {
    gs_hours_apply(a, s);
}

/* ---- The engine ---------------------------------------------------------------------------- */

/* Persons whose hours have begun or ended since the engine was told. */
static int32_t find_changed(gs_api *a) {
    gs_hours *h = a->hours;
    int32_t n = 0;
    for (uint32_t p = 1; p < a->persons.n; p++) {
        const gs_key *k = gs_api_key_named(a, a->persons.key_name[p]);
        const bool held = k && !gs_hours_key_open(k);
        if (!k || held == h->held[p])
            continue;
        h->held[p] = held;
        h->limits[n].person = p;
        gs_api_limits_of(a, k, &h->limits[n++].limits);
    }
    return n;
}

static void ask(gs_api *a, bool configure, int32_t n_limits) {
    gs_hours *h = a->hours;
    char err[128];
    h->q = (gs_query){.kind = GS_QUERY_QUEUE, .owner = h, .cost_out = &h->cost};
    if (n_limits == 0 && configure &&
        gs_settings_read(a->cfg.config, &h->settings, err, sizeof(err)) == 0) {
        gs_hours_apply(a, &h->settings);
        h->q.kind = GS_QUERY_CONFIGURE;
        h->q.apply = &h->settings;
    }
    if (n_limits > 0) {
        h->q.kind = GS_QUERY_PERSONS;
        h->q.limits = h->limits;
        h->q.n_limits = n_limits;
    } else {
        h->stale = false;
    }
    h->asking = true;
    a->n_live++;
    gs_engine_ask(a->engine, &h->q);
}

bool gs_hours_answered(gs_api *a, gs_query *q) {
    gs_hours *h = a->hours;
    if (!h || q != &h->q)
        return false;
    h->asking = false;
    h->cost_ns = gs_now_ns();
    a->n_live--;
    return true;
}

static bool is_paused(const gs_api *a) {
    return a->hours->paused || a->cfg.config->sched_background_paused;
}

void gs_hours_tick(gs_api *a) {
    gs_hours *h = a->hours;
    if (!h || !a->engine || a->draining)
        return;
    gs_workers_hold(a->workers, is_paused(a) ? 1u << GS_CLASS_BACKGROUND : 0);
    bool open = gs_schedule_is_open(&h->schedule, gs_wall_s(), gs_wall_local);
    if (open != h->open) {
        h->open = open;
        h->stale = true;
        gs_info("hours", "background's schedule %s", open ? "begins" : "ends");
    }
    bool old = h->cost_ns == 0 || gs_now_ns() - h->cost_ns > COST_EVERY_NS;
    if (h->asking || gs_engine_get_state(a->engine) != GS_ENGINE_READY)
        return;
    int32_t n = find_changed(a);
    if (h->stale || old || n > 0)
        ask(a, h->stale, n);
}

static void set_paused(gs_api *a, bool paused) {
    gs_hours *h = a->hours;
    if (h->paused == paused)
        return;
    h->paused = paused;
    h->stale = true;
    gs_info("hours", "background %s", paused ? "paused" : "goes on");
    gs_hours_tick(a);
}

void gs_hours_set_paused(gs_api *a, bool paused) {
    if (!a->hours)
        return;
    a->hours->told = true;
    set_paused(a, paused);
}

void gs_hours_was_paused(gs_api *a, bool paused) {
    if (a->hours && !a->hours->told)
        set_paused(a, paused);
}

/* ---- Questions ----------------------------------------------------------------------------- */

const char *gs_hours_why_not(const gs_api *a, const gs_owner *o) {
    const gs_hours *h = a->hours;
    const gs_key *k = gs_api_key_named(a, o->key_name);
    if (!h)
        return NULL;
    if (is_paused(a))
        return "paused";
    if (!h->open && share_outside(a) < LEAST_SHARE)
        return "outside the schedule";
    return !k || gs_hours_key_open(k) ? NULL : "outside the person's schedule";
}

const char *gs_hours_schedule(const gs_api *a, const gs_owner *o) {
    const gs_key *k = gs_api_key_named(a, o->key_name);
    if (k && k->schedule[0])
        return k->schedule;
    return a->hours ? a->cfg.config->background_schedule : "";
}

double gs_hours_device_s(const gs_api *a, const gs_owner *o, int64_t window_s) {
    const gs_hours *h = a->hours;
    const gs_schedule always = {0};
    gs_schedule own;
    if (!h)
        return (double)window_s;
    const int64_t now_s = gs_wall_s(), to_s = now_s + window_s;
    schedule_of(gs_api_key_named(a, o->key_name), &own);
    double all = (double)gs_schedule_open_s(&always, &own, now_s, to_s, gs_wall_local);
    double open = (double)gs_schedule_open_s(&h->schedule, &own, now_s, to_s, gs_wall_local);
    double outside = share_outside(a);
    return open * a->cfg.config->background_max_share +
           (all - open) * (outside < LEAST_SHARE ? 0.0 : outside);
}

const gs_cost *gs_api_learned_cost(const gs_api *a) {
    return a->hours && a->hours->cost_ns != 0 ? &a->hours->cost : NULL;
}

void gs_hours_write(const gs_api *a, gs_buf *out) {
    const gs_hours *h = a->hours;
    const gs_config *c = a->cfg.config;
    int64_t next_s = gs_schedule_next(&h->schedule, gs_wall_s(), gs_wall_local);
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "paused");
    gs_jsonw_bool(&w, is_paused(a));
    gs_jsonw_key(&w, "schedule");
    gs_jsonw_str(&w, c->background_schedule);
    gs_jsonw_key(&w, "time_zone");
    gs_jsonw_str(&w, c->background_time_zone);
    gs_jsonw_key(&w, "open");
    gs_jsonw_bool(&w, h->open);
    gs_jsonw_key(&w, h->open ? "closes_at" : "opens_at");
    if (next_s == INT64_MAX)
        gs_jsonw_null(&w);
    else
        gs_jsonw_int(&w, next_s);
    gs_jsonw_key(&w, "share");
    gs_jsonw_num(&w, is_paused(a) ? 0.0 : h->open ? c->background_max_share : share_outside(a));
    gs_jsonw_end_obj(&w);
}
