#include "api/live_write.h"

#include <math.h>
#include <stdio.h>

#include "api/kept.h"
#include "api/settings.h"
#include "api/story.h"
#include "api/workers.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/version.h"

static void key_num(gs_jsonw *w, const char *key, double v) {
    gs_jsonw_key(w, key);
    gs_jsonw_num(w, v);
}

static void key_int(gs_jsonw *w, const char *key, int64_t v) {
    gs_jsonw_key(w, key);
    gs_jsonw_int(w, v);
}

static void key_str(gs_jsonw *w, const char *key, const char *v) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, v);
}

/* Three decimals: microseconds of milliseconds, thousandths of shares. */
static double rounded(double v) {
    return isfinite(v) ? round(v * 1e3) / 1e3 : v;
}

static void key_ms(gs_jsonw *w, const char *key, int64_t ns) {
    key_num(w, key, rounded((double)ns / 1e6));
}

/* ---- hello --------------------------------------------------------------------------------- */

static void write_model(gs_jsonw *w, const gs_api *a, const gs_model_entry *m) {
    gs_backend_info info;
    gs_engine_lane_info(a->engine, m->served->lane, &info);
    gs_jsonw_obj(w);
    key_str(w, "name", gs_models_lane_name(a, m->served->lane));
    key_str(w, "kind", info.whole_prompts ? "encoder" : "decoder");
    key_int(w, "context", info.max_context);
    key_int(w, "kv_blocks", info.n_kv_blocks);
    key_int(w, "block_tokens", info.block_tokens);
    gs_jsonw_end_obj(w);
}

static void write_models(gs_jsonw *w, const gs_api *a) {
    gs_jsonw_key(w, "models");
    gs_jsonw_arr(w);
    for (int i = 0; i < a->models.n; i++)
        if (a->models.v[i].served)
            write_model(w, a, &a->models.v[i]);
    gs_jsonw_end_arr(w);
}

void gs_live_write_models(const gs_api *a, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    write_models(&w, a);
    gs_jsonw_end_obj(&w);
}

void gs_live_write_hello(const gs_api *a, const gs_audience *to, gs_buf *out) {
    gs_engine_settings set;
    if (!a->cfg.config || gs_settings_read(a->cfg.config, &set, NULL, 0) != GS_OK)
        gs_class_defaults(set.classes);
    const gs_class_config *classes = set.classes;
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "server");
    gs_jsonw_obj(&w);
    key_str(&w, "version", GS_VERSION);
    key_int(&w, "started_s", a->started_ms / 1000);
    key_int(&w, "now_ms", gs_wall_ms());
    gs_jsonw_end_obj(&w);
    write_models(&w, a);
    gs_jsonw_key(&w, "classes");
    gs_jsonw_arr(&w);
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        gs_jsonw_obj(&w);
        key_str(&w, "name", gs_class_name((gs_class)c));
        key_ms(&w, "ttft_ms", classes[c].ttft_ns);
        key_ms(&w, "tpot_ms", classes[c].tpot_ns);
        key_ms(&w, "complete_ms", classes[c].complete_ns);
        gs_jsonw_end_obj(&w);
    }
    gs_jsonw_end_arr(&w);
    gs_jsonw_key(&w, "phases");
    gs_jsonw_arr(&w);
    for (int p = 0; p < GS_PHASE_COUNT; p++)
        gs_jsonw_str(&w, gs_phase_name((gs_phase)p));
    gs_jsonw_end_arr(&w);
    gs_jsonw_key(&w, "admin");
    gs_jsonw_bool(&w, to->admin);
    key_str(&w, "person", gs_api_person_name(a, to->person));
    gs_jsonw_end_obj(&w);
}

/* ---- steps --------------------------------------------------------------------------------- */

static void key_ms_or_null(gs_jsonw *w, const char *key, int64_t ns) {
    gs_jsonw_key(w, key);
    if (ns >= 0)
        gs_jsonw_num(w, rounded((double)ns / 1e6));
    else
        gs_jsonw_null(w);
}

static void write_step(gs_jsonw *w, const gs_api *a, const gs_step_record *r, int64_t wall_ns) {
    gs_jsonw_obj(w);
    key_int(w, "n", (int64_t)r->n);
    key_int(w, "t_ms", (r->end_ns - r->ns + wall_ns) / GS_NS_PER_MS);
    key_ms(w, "ms", r->ns);
    key_ms_or_null(w, "predicted_ms", r->predicted_ns);
    key_ms_or_null(w, "limit_ms", r->limit_ns);
    key_str(w, "model", gs_models_lane_name(a, r->model));
    key_ms(w, "held_ms", r->held_ns);
    key_ms(w, "saved_ms", r->saved_ns);
    if (r->gave_way) {
        gs_jsonw_key(w, "gave_way");
        gs_jsonw_bool(w, true);
    }
    if (r->resumed) {
        gs_jsonw_key(w, "resumed");
        gs_jsonw_bool(w, true);
    }
    gs_jsonw_key(w, "parts");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < r->n_parts; i++) {
        const gs_step_part *p = &r->parts[i];
        gs_jsonw_obj(w);
        key_str(w, "class", gs_class_name((gs_class)p->cls));
        key_str(w, "phase", gs_phase_name((gs_phase)p->phase));
        key_int(w, "seqs", p->n_seqs);
        key_int(w, "tokens", p->n_tokens);
        key_ms(w, "ms", p->ns);
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_arr(w);
    gs_jsonw_end_obj(w);
}

void gs_live_write_steps(const gs_api *a, const gs_step_record *steps, uint32_t n, uint64_t lost,
                         gs_buf *out) {
    const int64_t wall_ns = gs_wall_ms() * GS_NS_PER_MS - gs_now_ns();
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    key_int(&w, "lost", (int64_t)lost);
    gs_jsonw_key(&w, "steps");
    gs_jsonw_arr(&w);
    for (uint32_t i = 0; i < n; i++)
        write_step(&w, a, &steps[i], wall_ns);
    gs_jsonw_end_arr(&w);
    gs_jsonw_end_obj(&w);
}

/* ---- rates --------------------------------------------------------------------------------- */

void gs_rates_add(gs_rates *r, const gs_engine *e, int64_t now_ns) {
    const uint32_t i = r->n++ % GS_RATES;
    gs_engine_get_stats(e, &r->stats[i]);
    r->at_ns[i] = now_ns;
}

static uint32_t newest(const gs_rates *r) {
    return (r->n - 1) % GS_RATES;
}

static uint32_t oldest(const gs_rates *r) {
    return r->n > GS_RATES ? r->n % GS_RATES : 0;
}

/* Per second over what is remembered; class < 0: all. */
static double tokens_per_s(const gs_rates *r, int cls, int phase) {
    const uint32_t i = newest(r), o = oldest(r);
    const double s = (double)(r->at_ns[i] - r->at_ns[o]) / 1e9;
    uint64_t n = 0;
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        for (int p = 0; p < GS_PHASE_COUNT; p++)
            if ((cls < 0 || c == cls) && (phase < 0 || p == phase))
                n += r->stats[i].tokens[c][p] - r->stats[o].tokens[c][p];
    return s > 0.0 ? rounded((double)n / s) : 0.0;
}

/* ---- state --------------------------------------------------------------------------------- */

typedef struct state_writer {
    gs_jsonw w;
    const gs_api *a;
    const gs_audience *to;
    const gs_query *q;
    const gs_rates *rates;
    const gs_engine_stats *stats; /* the newest */
} state_writer;

static bool is_own(const state_writer *s, const gs_req *r) {
    return r && r->person == s->to->person && r->cache_scope == s->to->scope;
}

static void key_person(state_writer *s, const gs_req *r, uint32_t person) {
    gs_jsonw_key(&s->w, "person");
    if (s->to->admin || is_own(s, r))
        gs_jsonw_str(&s->w, gs_api_person_name(s->a, person));
    else
        gs_jsonw_null(&s->w);
}

/* Ids are what actions take, and those of others' requests are not for everybody. */
static void key_id(state_writer *s, const char *key, const gs_req *r) {
    gs_jsonw_key(&s->w, key);
    if (r && (s->to->admin || is_own(s, r)))
        gs_jsonw_str(&s->w, r->id);
    else
        gs_jsonw_null(&s->w);
}

static void write_records(state_writer *s, const char *key, bool running) {
    gs_jsonw *w = &s->w;
    gs_jsonw_key(w, key);
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < s->q->n_records; i++) {
        const gs_explain *x = &s->q->records[i];
        int32_t index = 0;
        const gs_req *r = gs_api_find_seq(s->a, x->id, &index);
        if (x->running != running)
            continue;
        gs_jsonw_obj(w);
        key_id(s, "id", r);
        key_person(s, r, x->person);
        gs_jsonw_key(w, "own");
        gs_jsonw_bool(w, is_own(s, r));
        key_str(w, "model", r && x->model < 0 ? r->model : gs_models_lane_name(s->a, x->model));
        gs_story_members(w, index, x, s->q->now_ns);
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_arr(w);
}

/* Owners of KV blocks: these, then the records that hold a slot, in order. */
static const struct {
    int32_t mark;
    const char *kind;
} plain_owners[] = {{GS_KV_MAP_FREE, "free"},
                    {GS_KV_MAP_CACHED, "cached"},
                    {GS_KV_MAP_PINNED, "pinned"},
                    {GS_KV_MAP_OTHER, "held"}};
#define N_PLAIN ((int32_t)(sizeof(plain_owners) / sizeof(plain_owners[0])))

/* It holds a slot of a pool that is shown. */
static bool in_pool(const gs_query *q, const gs_explain *x) {
    return x->slot >= 0 && q->view->pools[x->model].known;
}

static int32_t owner_of(const gs_query *q, int32_t lane, int32_t mark) {
    for (int32_t i = 0; i < N_PLAIN; i++)
        if (plain_owners[i].mark == mark)
            return i;
    int32_t n = N_PLAIN;
    for (int32_t i = 0; i < q->n_records; i++) {
        if (!in_pool(q, &q->records[i]))
            continue;
        if (q->records[i].model == lane && q->records[i].slot == mark)
            return n;
        n++;
    }
    return N_PLAIN - 1; /* it came after the records were taken: nobody's we know */
}

static void write_run(gs_jsonw *w, const gs_query *q, int32_t lane, int32_t mark, uint32_t n) {
    gs_jsonw_arr(w);
    gs_jsonw_int(w, owner_of(q, lane, mark));
    gs_jsonw_int(w, n);
    gs_jsonw_end_arr(w);
}

static void write_pool(state_writer *s, int32_t lane) {
    gs_jsonw *w = &s->w;
    const gs_pool_view *v = &s->q->view->pools[lane];
    gs_jsonw_obj(w);
    key_str(w, "model", gs_models_lane_name(s->a, lane));
    key_int(w, "blocks", v->kv.n_blocks);
    key_int(w, "held", v->kv.n_held - v->kv.n_pinned);
    key_int(w, "cached", v->kv.n_cached);
    key_int(w, "pinned", v->kv.n_pinned);
    key_int(w, "free", v->kv.n_free);
    gs_jsonw_key(w, "runs");
    gs_jsonw_arr(w);
    uint32_t from = 0;
    for (uint32_t b = 1; b <= v->n_blocks; b++) {
        if (b < v->n_blocks && v->map[b] == v->map[from])
            continue;
        write_run(w, s->q, lane, v->map[from], b - from);
        from = b;
    }
    gs_jsonw_end_arr(w);
    gs_jsonw_end_obj(w);
}

static void write_kv(state_writer *s) {
    gs_jsonw_key(&s->w, "kv");
    gs_jsonw_arr(&s->w);
    for (int32_t lane = 0; lane < GS_ENGINE_LANES; lane++)
        if (s->q->view->pools[lane].known)
            write_pool(s, lane);
    gs_jsonw_end_arr(&s->w);
}

static void write_kv_owners(state_writer *s) {
    gs_jsonw *w = &s->w;
    gs_jsonw_key(w, "kv_owners");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < N_PLAIN; i++) {
        gs_jsonw_obj(w);
        key_str(w, "kind", plain_owners[i].kind);
        gs_jsonw_end_obj(w);
    }
    for (int32_t i = 0; i < s->q->n_records; i++) {
        const gs_explain *x = &s->q->records[i];
        int32_t index;
        if (!in_pool(s->q, x))
            continue;
        const gs_req *r = gs_api_find_seq(s->a, x->id, &index);
        gs_jsonw_obj(w);
        key_str(w, "kind", "seq");
        key_str(w, "class", gs_class_name(x->cls));
        key_person(s, r, x->person);
        key_id(s, "request", r);
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_arr(w);
}

static void write_limits(gs_jsonw *w, const gs_person_config *c) {
    gs_jsonw_key(w, "limits");
    gs_jsonw_obj(w);
    key_int(w, "running", c->max_running);
    key_int(w, "waiting", c->max_waiting);
    key_num(w, "day_s", (double)c->day_ns / 1e9);
    gs_jsonw_end_obj(w);
}

static void write_people(state_writer *s) {
    gs_jsonw *w = &s->w;
    int64_t recent[GS_ENGINE_PERSONS], all = 0;
    gs_metrics_persons(s->a->metrics, s->stats, recent);
    for (int i = 0; i < GS_ENGINE_PERSONS; i++)
        all += recent[i];
    gs_jsonw_key(w, "people");
    gs_jsonw_arr(w);
    for (uint32_t i = 0; i < s->q->view->n_persons; i++) {
        const gs_person_view *p = &s->q->view->persons[i];
        const bool known =
            i == 0 ? p->stats.charged_ns > 0 || p->stats.n_running > 0 || p->stats.n_waiting > 0
                   : i < s->a->persons.n;
        if (!known || (!s->to->admin && i != s->to->person))
            continue;
        gs_jsonw_obj(w);
        key_str(w, "name", gs_api_person_name(s->a, i));
        key_num(w, "weight", p->config.weight);
        key_num(w, "share", all > 0 ? rounded((double)recent[i] / (double)all) : 0.0);
        key_num(w, "device_s", rounded((double)p->stats.charged_ns / 1e9));
        key_num(w, "counter_ms", rounded(p->stats.counter_ns / 1e6));
        key_int(w, "running", p->stats.n_running);
        key_int(w, "waiting", p->stats.n_waiting);
        write_limits(w, &p->config);
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_arr(w);
}

static void write_quantiles(gs_jsonw *w, const char *key, const gs_hist *h, gs_hist_id id) {
    const gs_hist_shape *shape = &gs_hist_shapes[id];
    gs_jsonw_key(w, key);
    gs_jsonw_obj(w);
    key_num(w, "p50", rounded(1e3 * gs_hist_quantile(h, shape, 0.5)));
    key_num(w, "p95", rounded(1e3 * gs_hist_quantile(h, shape, 0.95)));
    key_int(w, "n", (int64_t)h->n);
    gs_jsonw_end_obj(w);
}

static void write_class(state_writer *s, gs_class c) {
    gs_jsonw *w = &s->w;
    const gs_engine_stats *st = s->stats;
    gs_minute_class recent;
    gs_metrics_recent(s->a->metrics, c, &recent);
    gs_jsonw_obj(w);
    key_str(w, "name", gs_class_name(c));
    key_int(w, "running", st->n_running_by_class[c]);
    key_int(w, "waiting", st->n_waiting_by_class[c]);
    write_quantiles(w, "ttft_ms", &recent.ttft, GS_HIST_TTFT);
    write_quantiles(w, "itl_ms", &recent.itl, GS_HIST_ITL);
    gs_jsonw_key(w, "attained");
    if (st->n_target[c] > 0)
        gs_jsonw_num(w, rounded(1.0 - (double)st->n_missed[c] / (double)st->n_target[c]));
    else
        gs_jsonw_null(w);
    key_int(w, "judged", (int64_t)st->n_target[c]);
    key_int(w, "missed", (int64_t)st->n_missed[c]);
    key_int(w, "relegated", (int64_t)st->n_relegated[c]);
    key_ms(w, "window_ms", st->window_ns[c]);
    key_ms(w, "effective_tpot_ms", st->effective_tpot_ns[c]);
    key_num(w, "tokens_per_s", tokens_per_s(s->rates, (int)c, -1));
    gs_jsonw_end_obj(w);
}

/* How prompts and streams share the cores, and why so. */
static void write_mode(gs_jsonw *w, const gs_mode_view *m) {
    gs_jsonw_key(w, "mode");
    gs_jsonw_obj(w);
    key_str(w, "set", gs_mode_name(m->set));
    key_str(w, "now", gs_mode_name(m->now));
    key_str(w, "why", gs_mode_why_name(m->why));
    key_str(w, "sentence", gs_mode_why_sentence(m->why));
    key_int(w, "changes", (int64_t)m->n_changes);
    gs_jsonw_key(w, "rates");
    gs_jsonw_obj(w);
    for (int i = GS_MODE_MIXED; i < GS_MODE_COUNT; i++)
        if (m->rate[i] > 0.0)
            key_num(w, gs_mode_name((gs_mode)i), rounded(m->rate[i]));
    gs_jsonw_end_obj(w);
    key_int(w, "prompt_threads", m->prompt_threads);
    key_int(w, "token_threads", m->token_threads);
    gs_jsonw_end_obj(w);
}

static void write_totals(state_writer *s) {
    gs_jsonw *w = &s->w;
    const gs_engine_stats *now = s->stats, *then = &s->rates->stats[oldest(s->rates)];
    const int64_t busy = now->busy_ns - then->busy_ns;
    gs_jsonw_key(w, "throughput");
    gs_jsonw_obj(w);
    for (int p = 0; p < GS_PHASE_COUNT; p++) {
        char key[24];
        snprintf(key, sizeof(key), "%s_tps", gs_phase_name((gs_phase)p));
        key_num(w, key, tokens_per_s(s->rates, -1, p));
    }
    gs_jsonw_end_obj(w);
    write_mode(w, &now->mode);
    key_num(w, "fairness_jain", rounded(gs_metrics_jain(s->a->metrics, now)));
    gs_jsonw_key(w, "prediction");
    gs_jsonw_obj(w);
    key_num(w, "median_error", rounded(now->cost_median_error));
    key_num(w, "p95_error", rounded(now->cost_p95_error));
    gs_jsonw_end_obj(w);
    gs_jsonw_key(w, "background");
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "paused");
    gs_jsonw_bool(w, s->q->view->background_paused);
    key_num(w, "share",
            busy > 0 ? rounded((double)(now->busy_background_ns - then->busy_background_ns) /
                               (double)busy)
                     : 0.0);
    gs_jsonw_end_obj(w);
}

void gs_live_write_state(const gs_api *a, const gs_audience *to, const gs_query *q,
                         const gs_rates *rates, gs_buf *out) {
    state_writer s = {.a = a, .to = to, .q = q, .rates = rates};
    s.stats = &rates->stats[newest(rates)];
    gs_jsonw_init(&s.w, out);
    gs_jsonw_obj(&s.w);
    key_int(&s.w, "now_ms", gs_wall_ms());
    write_records(&s, "running", true);
    write_records(&s, "waiting", false);
    write_kv(&s);
    write_kv_owners(&s);
    write_people(&s);
    gs_jsonw_key(&s.w, "classes");
    gs_jsonw_arr(&s.w);
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        write_class(&s, (gs_class)c);
    gs_jsonw_end_arr(&s.w);
    write_totals(&s);
    gs_jsonw_key(&s.w, "jobs");
    gs_batches_write(a, to->admin, &to->owner, &s.w);
    gs_jsonw_key(&s.w, "workers");
    gs_workers_write(a, to->admin, &s.w);
    gs_jsonw_end_obj(&s.w);
}
