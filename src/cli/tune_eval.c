/* Candidates in the simulator: options -> scheduler -> how near its targets are to breaking. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/settings.h"
#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cli/tune.h"

#define JITTER_S   20.0 /* arrivals of the other seeds move by up to this much, both ways */
#define PATIENCE   3.0  /* a simulation that takes so many times the trace is broken off */
#define PATIENCE_S 120.0
#define MAX_TRIES  3 /* of a refused request */
/* A home's instructions are in the cache since yesterday: in the first seconds each of them is
 * computed once, and the trace begins after that. */
#define WARM_S 120.0

/* Ranges around what is sensible; the configured value is always among them. */
// clang-format off
const gs_tunable gs_tunables[] = {
    {"engine.prefill_chunk", "32,64,128,256,512", "how much of a prompt is read in one step"},
    {"engine.max_batch_tokens", "128,256,512,1024", "the largest step"},
    {"engine.max_seqs", "8,16,32,64", "how many answers are written at the same time"},
    {"sched.mode", "auto,mixed,exclusive,split", "how prompts and streams share the cores"},
    {"sched.background_floor", "0.01,0.03,0.1,0.2", "what background work gets on a busy machine"},
    {"sched.background_stretch", "1.05,1.2,1.5,2", "how much longer background may make a step"},
    {"sched.background_gap_ms", "5,10,15,25,40", "how long a step with background may be in any case"},
    {"sched.tpot_stretch", "1.3,1.9,2.5,4", "how far streams may be slowed down for newcomers"},
    {"class_voice.quantum_ms", "50,100,200,400", "the longest step of spoken requests"},
    {"class_voice.share", "0.6,0.8,0.9,1", "what spoken requests may take of a step"},
    {"class_voice.kv_reserve", "0,0.05,0.1,0.2", "memory kept free for spoken requests"},
    {"class_voice.seats_kept", "0,1,2,4", "seats kept free for spoken requests"},
    {"class_chat.quantum_ms", "50,100,200,400", "the longest step of chats"},
    {"class_chat.share", "0.5,0.8,1", "what chats may take of a step"},
    {"class_document.quantum_ms", "25,50,100,200,400", "the longest step of documents"},
    {"class_document.share", "0.3,0.5,0.7,1", "what documents may take of a step"},
    {"class_document.kv_share", "0.3,0.5,0.8,1", "memory documents may fill"},
    {"class_document.seats", "0,1,2,4", "documents answered at the same time (0: any number)"},
    {"class_utility.window_max_ms", "0,20,50,200", "how long small tasks may wait for company"},
    {"class_utility.quantum_ms", "50,100,200", "the longest step of small tasks"},
    {"class_background.window_max_ms", "0,100,500,1000", "how long background may wait for company"},
    {"class_background.quantum_ms", "50,100,200,400,800", "the longest step of background"},
    {"class_background.kv_share", "0.2,0.4,0.6,0.8", "memory background may fill"},
    {"class_background.seats", "0,2,4,8,16", "background work at the same time (0: any number)"},
    {NULL, NULL, NULL},
};
// clang-format on

/* ---- axes ------------------------------------------------------------------------------------*/

static int text_of(const gs_config *c, const gs_config_option *o, char out[24]) {
    const char *at = (const char *)c + o->offset;
    switch (o->kind) {
    case GS_CONFIG_BOOL:
        snprintf(out, 24, "%s", *(const bool *)at ? "true" : "false");
        return 0;
    case GS_CONFIG_INT:
        snprintf(out, 24, "%d", *(const int *)(const void *)at);
        return 0;
    case GS_CONFIG_FLOAT:
        snprintf(out, 24, "%g", *(const double *)(const void *)at);
        return 0;
    case GS_CONFIG_DURATION_MS:
    case GS_CONFIG_SIZE_MB:
        snprintf(out, 24, "%lld", (long long)*(const int64_t *)(const void *)at);
        return 0;
    case GS_CONFIG_ENUM: {
        const char *p = o->choices;
        for (int i = *(const int *)(const void *)at; i > 0; i--)
            p += strcspn(p, "|") + 1;
        snprintf(out, 24, "%.*s", (int)strcspn(p, "|"), p);
        return 0;
    }
    default:
        return GS_ERR_UNSUPPORTED;
    }
}

static bool same_value(const gs_tune_axis *x, const char *a, const char *b) {
    return x->words ? strcmp(a, b) == 0 : strtod(a, NULL) == strtod(b, NULL);
}

static int add_axis(gs_tuner *t, const gs_tunable *u, char *err, size_t errlen) {
    const gs_config_option *o = gs_config_option_find(u->option);
    gs_tune_axis *x = &t->axes[t->n_axes];
    char now[24];
    if (!o || text_of(t->base, o, now) != 0)
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "%s is no option to search", u->option);
    *x = (gs_tune_axis){.tunable = u, .words = o->kind == GS_CONFIG_ENUM, .start = -1};
    for (const char *s = u->values; *s && x->n < GS_TUNE_VALUES - 1;) {
        const size_t n = strcspn(s, ",");
        snprintf(x->values[x->n], sizeof x->values[0], "%.*s", (int)n, s);
        if (same_value(x, x->values[x->n], now))
            x->start = x->n;
        x->n++;
        s += n + (s[n] == ',');
    }
    if (x->start < 0) {
        x->start = x->n;
        snprintf(x->values[x->n++], sizeof x->values[0], "%s", now);
    }
    t->n_axes++;
    return 0;
}

/* Whether an earlier request has the same instructions in the same part of the cache. */
static bool is_repeated(const gs_trace_sim *s, int32_t i) {
    for (int32_t k = 0; k < i; k++)
        if (s->requests[k].prefix_key == s->requests[i].prefix_key &&
            s->requests[k].scope == s->requests[i].scope)
            return true;
    return false;
}

static gs_sim_request warming(const gs_sim_request *q) {
    return (gs_sim_request){.after = -1,
                            .prefix_of = -1,
                            .person = q->person,
                            .cls = GS_CLASS_BACKGROUND,
                            .class_fixed = true,
                            .scope = q->scope,
                            .n_prompt = q->n_prefix,
                            .n_prefix = q->n_prefix,
                            .prefix_key = q->prefix_key,
                            .n_output = 1};
}

/* The trace once more: what fills the cache first, then everything WARM_S later, those who come by
 * themselves shifted a little. */
static int add_seed(gs_tuner *t, int seed) {
    gs_trace_sim from, *s = &t->seeds[seed];
    gs_rng rng;
    int rc = gs_trace_to_sim(t->trace, 1.0, t->own_scopes, &from);
    gs_rng_seed(&rng, (uint64_t)seed);
    *s = from;
    s->requests = rc == 0 ? gs_array(2 * (size_t)from.n + 1, sizeof *s->requests) : NULL;
    if (rc == 0 && !s->requests)
        rc = GS_ERR_NOMEM;
    s->n = 0;
    for (int32_t i = 0; rc == 0 && i < from.n; i++)
        if (from.requests[i].prefix_key != 0 && !is_repeated(&from, i))
            s->requests[s->n++] = warming(&from.requests[i]);
    t->n_warm = s->n;
    for (int32_t i = 0; rc == 0 && i < from.n; i++) {
        gs_sim_request q = from.requests[i];
        const int64_t move_ns = (int64_t)((2 * gs_rng_unit(&rng) - 1) * JITTER_S * 1e9);
        if (q.after < 0 && seed > 0)
            q.t_ns = q.t_ns + move_ns > 0 ? q.t_ns + move_ns : 0;
        q.after += q.after >= 0 ? t->n_warm : 0;
        q.prefix_of += q.prefix_of >= 0 ? t->n_warm : 0;
        s->requests[s->n++] = q;
    }
    gs_trace_sim_free(&from);
    return rc;
}

int gs_tuner_prepare(gs_tuner *t, char *err, size_t errlen) {
    gs_engine_settings set;
    if (gs_settings_read(t->base, &set, err, errlen) != 0)
        return GS_ERR_INVALID;
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        const gs_class_config *k = &set.classes[c];
        t->targets[c] = (gs_load_target){(double)k->ttft_ns / 1e9,
                                         k->ttft_ns > 0 ? (double)k->tpot_ns / 1e9 : 0.0,
                                         (double)k->complete_ns / 1e9};
    }
    t->trace_s = gs_trace_seconds(t->trace);
    for (const gs_tunable *u = gs_tunables; u->option; u++) {
        const int rc = add_axis(t, u, err, errlen);
        if (rc != 0)
            return rc;
    }
    if (t->n_variants > 1)
        t->axes[t->n_axes++] = (gs_tune_axis){.n = t->n_variants};
    for (int i = 0; i < t->n_seeds; i++)
        if (add_seed(t, i) != 0)
            return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    return 0;
}

void gs_tuner_free(gs_tuner *t) {
    for (int i = 0; i < t->n_seeds; i++)
        gs_trace_sim_free(&t->seeds[i]);
}

const gs_tune_variant *gs_tuner_variant(const gs_tuner *t, const gs_tune_point *p) {
    for (int i = 0; i < t->n_axes; i++)
        if (!t->axes[i].tunable)
            return &t->variants[p->choice[i]];
    return &t->variants[0];
}

int gs_tuner_config(const gs_tuner *t, const gs_tune_point *p, gs_config *out, char *err,
                    size_t errlen) {
    *out = *t->base;
    for (int i = 0; i < t->n_axes; i++) {
        const gs_tune_axis *x = &t->axes[i];
        const int rc = x->tunable ? gs_config_set(out, x->tunable->option, x->values[p->choice[i]],
                                                  err, errlen)
                                  : 0;
        if (rc != 0)
            return rc;
    }
    return 0;
}

int gs_tuner_lead_class(const gs_tuner *t) {
    bool there[GS_CLASS_COUNT] = {false};
    for (int32_t i = 0; i < t->trace->n; i++)
        there[t->trace->requests[i].cls] = true;
    for (int c = 0; c < GS_CLASS_BACKGROUND; c++)
        if (there[c])
            return c;
    return GS_CLASS_BACKGROUND;
}

/* ---- one candidate ---------------------------------------------------------------------------*/

static void consider(gs_tune_sight *s, int cls, const char *what, double measured, double allowed) {
    const double margin = allowed > 0 ? 1 - measured / allowed : (double)INFINITY;
    if (margin < s->look.margin) {
        s->look.margin = margin;
        s->worst_class = cls;
        s->worst_what = what;
    }
}

/* Every interactive target: 95 of 100, as simulated; refused and unfinished requests miss. */
static void judge(const gs_tuner *t, const gs_class_config k[GS_CLASS_COUNT],
                  const int32_t n_all[GS_CLASS_COUNT], gs_tune_sight *s) {
    s->look.margin = 1.0;
    s->worst_class = -1;
    s->worst_what = "";
    for (int c = 0; c < GS_CLASS_BACKGROUND; c++) {
        const gs_sim_class *r = &s->rep.cls[c];
        if (n_all[c] == 0 || t->exempt[c])
            continue;
        s->n_unfinished += n_all[c] - r->n;
        consider(s, c, "refused", n_all[c] - r->n + r->n_refused, 0.05 * n_all[c]);
        if (k[c].ttft_ns > 0) {
            consider(s, c, "first token", (double)r->ttft_p95_ns, (double)k[c].ttft_ns);
            consider(s, c, "tokens", (double)r->tpot_p95_ns, (double)k[c].tpot_ns);
        }
        consider(s, c, "whole answer", (double)r->total_p95_ns, (double)k[c].complete_ns);
    }
}

typedef struct edge {
    int64_t t_ns;
    int by;
} edge;

static int by_time(const void *a, const void *b) {
    const edge *x = a, *y = b;
    return x->t_ns != y->t_ns ? (x->t_ns > y->t_ns) - (x->t_ns < y->t_ns) : x->by - y->by;
}

static void count_peaks(const gs_sim_outcome *o, const gs_trace_sim *ts, gs_tune_sight *out) {
    edge *e = gs_array(ts->n > 0 ? 2 * (size_t)ts->n : 1, sizeof *e);
    for (int c = 0; c < GS_CLASS_COUNT && e; c++) {
        int32_t n = 0, now = 0;
        for (int32_t i = 0; i < ts->n; i++)
            if ((int)ts->requests[i].cls == c && o[i].end_ns > 0) {
                e[n++] = (edge){o[i].start_ns, 1};
                e[n++] = (edge){o[i].end_ns, -1};
            }
        qsort(e, (size_t)n, sizeof *e, by_time);
        for (int32_t i = 0; i < n; i++) {
            now += e[i].by;
            out->peak[c] = now > out->peak[c] ? now : out->peak[c];
        }
    }
    gs_free(e);
}

static int simulate(const gs_tuner *t, const gs_sim_config *cfg, const gs_class_config *classes,
                    const gs_trace_sim *ts, gs_tune_sight *out) {
    gs_sim *m = NULL;
    int32_t n_all[GS_CLASS_COUNT] = {0};
    char err[160];
    int rc = gs_sim_create(cfg, ts->requests, ts->n, &m);
    if (rc == 0)
        rc = gs_sim_run(m, err, sizeof err);
    if (rc == 0)
        rc = gs_sim_report_create(m, &out->rep);
    if (rc == 0) {
        double tokens = 0;
        for (int32_t i = 0; i < ts->n; i++)
            n_all[ts->requests[i].cls]++;
        judge(t, classes, n_all, out);
        for (int c = 0; c < GS_CLASS_COUNT; c++)
            tokens += (double)(out->rep.cls[c].n_tokens_in + out->rep.cls[c].n_tokens_out);
        for (int32_t i = 0; i < t->n_warm; i++)
            tokens -= ts->requests[i].n_prompt;
        const double span_ns = (double)out->rep.end_ns - WARM_S * 1e9;
        out->look.throughput = span_ns > 0 && tokens > 0 ? tokens * 1e9 / span_ns : 0.0;
        count_peaks(gs_sim_outcomes(m), ts, out);
    }
    gs_sim_free(m);
    return rc;
}

static int load_trace(const gs_tuner *t, double load, uint64_t seed, gs_trace_sim *out) {
    const gs_trace_sim *from = &t->seeds[seed % (uint64_t)t->n_seeds];
    *out = *from;
    out->requests = gs_array(from->n > 0 ? (size_t)from->n : 1, sizeof *out->requests);
    if (!out->requests)
        return GS_ERR_NOMEM;
    int32_t *moved = gs_array(from->n > 0 ? (size_t)from->n : 1, sizeof *moved);
    if (!moved) {
        gs_free(out->requests);
        return GS_ERR_NOMEM;
    }
    out->n = 0;
    for (int32_t i = 0; i < from->n; i++) {
        gs_sim_request q = from->requests[i];
        const bool warm = i < t->n_warm;
        moved[i] = t->only_some && !t->only[q.cls] && !warm ? -1 : out->n;
        if (moved[i] < 0)
            continue;
        q.t_ns = warm ? 0 : (int64_t)((double)q.t_ns / load + WARM_S * 1e9);
        q.think_ns = (int64_t)((double)q.think_ns / load);
        q.after = q.after >= 0 ? moved[q.after] : -1;
        q.prefix_of = q.prefix_of >= 0 ? moved[q.prefix_of] : -1;
        out->requests[out->n++] = q;
    }
    gs_free(moved);
    return 0;
}

int gs_tuner_see(const gs_tuner *t, const gs_tune_point *p, double load, uint64_t seed,
                 gs_tune_sight *out) {
    gs_config c;
    gs_engine_settings set;
    gs_trace_sim ts;
    char err[160];
    *out = (gs_tune_sight){0};
    int rc = gs_tuner_config(t, p, &c, err, sizeof err);
    if (rc == 0)
        rc = gs_settings_read(&c, &set, err, sizeof err);
    if (rc != 0) { /* values that exclude each other: no candidate */
        out->look.margin = -10;
        return 0;
    }
    gs_sim_config cfg = {.device = gs_tuner_variant(t, p)->device,
                         .classes = set.classes,
                         .slo = &set.slo,
                         .n_persons = t->seeds[0].n_persons,
                         .max_waiting = c.server_max_queued,
                         .max_tries = MAX_TRIES,
                         .seed = seed + 1};
    cfg.device.max_seqs = c.engine_max_seqs;
    cfg.device.max_batch_tokens = c.engine_max_batch_tokens;
    cfg.device.prefill_chunk = c.engine_prefill_chunk < c.engine_max_batch_tokens
                                   ? c.engine_prefill_chunk
                                   : c.engine_max_batch_tokens;
    cfg.end_ns = (int64_t)((PATIENCE * t->trace_s / load + PATIENCE_S + WARM_S) * 1e9);
    if (cfg.device.max_batch_tokens <= cfg.device.max_seqs) {
        out->look.margin = -10;
        return 0;
    }
    rc = load_trace(t, load, seed, &ts);
    if (rc == 0)
        rc = simulate(t, &cfg, set.classes, &ts, out);
    gs_trace_sim_free(&ts);
    return rc;
}
