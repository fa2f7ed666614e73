#include "api/tuning.h"

#include <stdio.h>
#include <string.h>

#include "api/api_impl.h"
#include "api/route.h"
#include "api/settings.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "load/autotune.h"

#define N_LOG          32
#define MAX_STATE_FILE (1 << 20)

/* What may be changed, and how far: the guard rails. */
static const gs_autotune_knob knobs[] = {
    {"sched.background_gap_ms", {5, 8, 12, 15, 20, 30, 45, 60}, 8},
    {"sched.background_stretch", {1.05, 1.1, 1.2, 1.35, 1.5, 2}, 6},
    {"sched.tpot_stretch", {1.3, 1.6, 1.9, 2.3, 2.8}, 5},
    {"engine.prefill_chunk", {32, 64, 128, 256}, 4},
    {"class_background.quantum_ms", {50, 100, 200, 400}, 4},
    {"class_document.quantum_ms", {25, 50, 100, 200}, 4},
};
enum { N_KNOBS = (int)(sizeof knobs / sizeof knobs[0]) };

typedef struct entry {
    int64_t wall_s;
    gs_autotune_action action;
} entry;

struct gs_tuning {
    gs_autotune core;
    bool running;     /* core knows the present settings */
    int64_t began_ns; /* of the interval */
    uint64_t work;
    uint32_t n_judged, n_missed;
    entry log[N_LOG]; /* ring */
    uint64_t n_log;
};

gs_tuning *gs_tuning_create(void) {
    return gs_calloc(1, sizeof(gs_tuning));
}

void gs_tuning_free(gs_tuning *t) {
    gs_free(t);
}

/* ---- what happens ----------------------------------------------------------------------------*/

static bool met(const gs_class_config *k, const gs_explain *x) {
    const int64_t tokens_ns = x->first_token_ns > 0 ? x->end_ns - x->first_token_ns : 0;
    if (k->ttft_ns == 0) /* who waits for the whole answer does not watch its tokens */
        return k->complete_ns == 0 || x->end_ns - x->arrival_ns <= k->complete_ns;
    if (x->first_token_ns == 0)
        return x->end_ns - x->arrival_ns <= k->ttft_ns; /* went away before it was late */
    return x->first_token_ns - x->arrival_ns <= k->ttft_ns &&
           (x->n_output < 2 || k->tpot_ns == 0 || tokens_ns <= k->tpot_ns * (x->n_output - 1));
}

void gs_tuning_ended(gs_api *a, const gs_explain *x) {
    gs_engine_settings set;
    if (!a->cfg.config || !a->cfg.config->tune_live || x->asked_cls == GS_CLASS_BACKGROUND ||
        gs_settings_read(a->cfg.config, &set, NULL, 0) != GS_OK)
        return;
    a->tuning->n_judged++;
    a->tuning->n_missed += !met(&set.classes[x->cls], x);
}

/* ---- what is done ----------------------------------------------------------------------------*/

static double value_in(const gs_config *c, const char *option) {
    const gs_config_option *o = gs_config_option_find(option);
    const void *at = (const char *)c + o->offset;
    return o->kind == GS_CONFIG_FLOAT ? *(const double *)at
           : o->kind == GS_CONFIG_INT ? (double)*(const int *)at
                                      : (double)*(const int64_t *)at;
}

/* Where the knobs stand, for the core; false: they are as it thinks. */
static bool read_knobs(const gs_tuning *t, const gs_config *c, int at[N_KNOBS]) {
    bool other = !t->running;
    for (int i = 0; i < N_KNOBS; i++) {
        at[i] = gs_autotune_nearest(&knobs[i], value_in(c, knobs[i].option));
        other |= at[i] != t->core.at[i];
    }
    return other;
}

static void note(gs_tuning *t, const gs_autotune_action *x) {
    static const char *const words[] = {"nothing", "try", "keep", "revert"};
    t->log[t->n_log++ % N_LOG] = (entry){gs_wall_s(), *x};
    gs_info("tune", "%s %s=%g before=%g predicted=%+.3f measured=%+.3f: %s", words[x->kind],
            knobs[x->knob].option, x->value, x->before, x->predicted, x->measured, x->why);
}

/* As a PATCH of /v1/config would. */
static void apply(gs_api *a, const gs_autotune_action *x) {
    gs_engine_settings set;
    gs_api_error e;
    const gs_config_option *o = gs_config_option_find(knobs[x->knob].option);
    json_t *change = json_object();
    json_object_set_new(change, o->name,
                        o->kind == GS_CONFIG_FLOAT ? json_real(x->value)
                                                   : json_integer((json_int_t)x->value));
    if (gs_settings_change(a->cfg.config, change, &set, &e) == GS_OK)
        gs_api_configure(a, &set);
    else
        gs_warn("tune", "%s: %s", o->name, e.message);
    json_decref(change);
}

void gs_tuning_tick(gs_api *a, const gs_engine_stats *s, int64_t now_ns) {
    gs_tuning *t = a->tuning;
    const gs_config *c = a->cfg.config;
    int at[N_KNOBS];
    if (!c || !c->tune_live || a->draining || gs_engine_get_state(a->engine) != GS_ENGINE_READY) {
        t->running = false;
        return;
    }
    const uint64_t work = s->prefill_tokens + s->decode_tokens - s->recomputed_tokens;
    const bool changed = read_knobs(t, c, at);
    if (!changed && now_ns - t->began_ns < c->tune_interval_s * GS_NS_PER_S)
        return;
    const gs_autotune_window w = {.seconds = (double)(now_ns - t->began_ns) / 1e9,
                                  .n_judged = t->n_judged,
                                  .n_missed = t->n_missed,
                                  .work = (double)(work - t->work)};
    t->began_ns = now_ns;
    t->work = work;
    t->n_judged = t->n_missed = 0;
    if (changed) { /* at the beginning, or a person has set something: from there on */
        const gs_autotune_config cfg = {.knobs = knobs,
                                        .n_knobs = N_KNOBS,
                                        .allowed_misses = 0.05,
                                        .gain = 0.01,
                                        .min_judged = 4,
                                        .trial_intervals = 2,
                                        .rest_intervals = 1};
        gs_autotune_init(&t->core, &cfg, at);
        t->running = true;
        return;
    }
    const gs_autotune_action x = gs_autotune_decide(&t->core, &w);
    if (x.kind == GS_AUTOTUNE_NOTHING)
        return;
    note(t, &x);
    if (x.kind != GS_AUTOTUNE_KEEP)
        apply(a, &x);
}

/* ---- what is shown ---------------------------------------------------------------------------*/

void gs_tuning_metrics(const gs_api *a, gs_metrics_server *out) {
    const gs_autotune *t = &a->tuning->core;
    out->tune_live = a->tuning->running;
    out->tune_kept = t->n_kept;
    out->tune_reverted = t->n_reverted;
    out->tune_score = t->base_score;
}

static json_t *log_entry(const entry *x) {
    static const char *const words[] = {"nothing", "try", "keep", "revert"};
    const gs_autotune_action *k = &x->action;
    json_t *o = json_object();
    json_object_set_new(o, "at_s", json_integer(x->wall_s));
    json_object_set_new(o, "what", json_string(words[k->kind]));
    json_object_set_new(o, "option", json_string(knobs[k->knob].option));
    json_object_set_new(o, "value", json_real(k->value));
    json_object_set_new(o, "before", json_real(k->before));
    json_object_set_new(o, "predicted", json_real(k->predicted));
    json_object_set_new(o, "measured",
                        k->kind == GS_AUTOTUNE_TRY ? json_null() : json_real(k->measured));
    json_object_set_new(o, "why", json_string(k->why ? k->why : ""));
    return o;
}

static json_t *live_state(const gs_tuning *t) {
    json_t *o = json_object(), *list = json_array(), *at = json_object();
    const uint64_t first = t->n_log > N_LOG ? t->n_log - N_LOG : 0;
    for (uint64_t i = first; i < t->n_log; i++)
        json_array_append_new(list, log_entry(&t->log[i % N_LOG]));
    for (int i = 0; i < N_KNOBS && t->running; i++)
        json_object_set_new(at, knobs[i].option, json_real(knobs[i].values[t->core.at[i]]));
    json_object_set_new(o, "on", json_boolean(t->running));
    json_object_set_new(o, "trying",
                        t->running && t->core.trying ? json_string(knobs[t->core.knob].option)
                                                     : json_null());
    json_object_set_new(o, "kept", json_integer((json_int_t)t->core.n_kept));
    json_object_set_new(o, "reverted", json_integer((json_int_t)t->core.n_reverted));
    json_object_set_new(o, "settings", at);
    json_object_set_new(o, "log", list);
    return o;
}

/* On a worker thread: the file, and what the loop said. body: {"file", "live"}. */
static void read_curve(const gs_served_model *m, const json_t *body, gs_buf *out, gs_api_error *e) {
    (void)m;
    (void)e;
    const void *data = NULL;
    size_t size = 0;
    json_error_t je;
    const json_t *live = json_object_get(body, "live");
    const char *path = json_string_value(json_object_get(body, "file"));
    json_t *o = NULL;
    if (path && gs_map_file(path, &data, &size, NULL, 0) == 0) {
        if (data && size <= MAX_STATE_FILE)
            o = json_loadb(data, size, JSON_REJECT_DUPLICATES, &je);
        gs_unmap(data, size);
    }
    if (!json_is_object(o)) { /* `gamasot tune` has not been run here */
        json_decref(o);
        o = json_object();
        json_object_set_new(o, "curve", json_array());
    }
    json_object_set(o, "live", (json_t *)(uintptr_t)live);
    char *text = json_dumps(o, JSON_COMPACT);
    if (text)
        gs_buf_str(out, text);
    out->failed |= text == NULL;
    free(text); /* jansson's own allocator */
    json_decref(o);
}

static void get_tune(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    char path[4200] = "";
    if (a->cfg.state_folder)
        snprintf(path, sizeof path, "%s/tune.json", a->cfg.state_folder);
    json_t *job = json_object();
    json_object_set_new(job, "file", json_string(path));
    json_object_set_new(job, "live", live_state(a->tuning));
    gs_api_run_slow(a, rq, job, read_curve);
}

// clang-format off
#define NUMBER "{'type':'number'}"
#define TEXT   "{'type':'string'}"

static const gs_schema schemas[] = {
    {"Tune",
     "{'type':'object','required':['curve','live'],'properties':{"
     "'curve':{'type':'array','items':{'type':'object','properties':{'load':" NUMBER ","
     "'tokens_per_s':" NUMBER ",'ttft_p95_ms':" NUMBER ",'itl_p95_ms':" NUMBER ","
     "'holds':{'type':'boolean'},'breaks':" TEXT "}}},"
     "'chosen':{'type':'integer'},'class':" TEXT ",'load':" NUMBER ",'default_load':" NUMBER ","
     "'settings':{'type':'object'},"
     "'live':{'type':'object','properties':{'on':{'type':'boolean'},"
     "'trying':{'type':['string','null']},'kept':{'type':'integer'},'reverted':{'type':'integer'},"
     "'settings':{'type':'object'},'log':{'type':'array','items':{'type':'object'}}}}}}"},
    {NULL, NULL},
};

static const gs_route routes[] = {
    {"GET", "/v1/tune", GS_ROUTE_ADMIN, get_tune,
     "The trade-off that `gamasot tune` found, and what live tuning does", .answer = "Tune"},
    {.path = NULL},
};
// clang-format on

const gs_api_part gs_tuning_part = {"tuning", "How much this machine carries.", routes, schemas};
