#include "metrics/expose.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "metrics/prom.h"
#include "metrics/table.h"

/* What a metric is divided by: its labels beside `model`, and how many values that makes. */
#define LABEL_SETS(X)                                                                              \
    X(NONE, "", 1)                                                                                 \
    X(MODEL, "model", 1)                                                                           \
    X(CLASS, "class, model", GS_CLASS_COUNT)                                                       \
    X(CLASS_PHASE, "class, model, phase", GS_CLASS_COUNT *GS_PHASE_COUNT)                          \
    X(CLASS_FINISH, "class, model, finished_reason", GS_FINISH_COUNT *GS_CLASS_COUNT)              \
    X(CLASS_CODE, "class, model, code", GS_CODE_COUNT *GS_CLASS_COUNT)                             \
    X(PERSON, "person", GS_METRICS_PLACES)                                                         \
    X(MEMORY, "kind", GS_METRICS_MEMORY)                                                           \
    X(WORKER, "worker", 1)                                                                         \
    X(BUILD, "version", 1)

typedef enum label_set {
#define X(name, text, n) BY_##name,
    LABEL_SETS(X)
#undef X
} label_set;

static const struct {
    const char *text;
    int n;
} label_sets[] = {
#define X(name, text, n) {text, n},
    LABEL_SETS(X)
#undef X
};

static const char *const memory_names[] = {
#define X(id, text) text,
    GS_METRICS_MEMORY_MAP(X)
#undef X
};

typedef enum metric_type { COUNTER, GAUGE, HISTOGRAM } metric_type;

static const char *const type_names[] = {"counter", "gauge", "histogram"};

typedef enum value_kind { I32, U32, U64, F64, NS } value_kind;

static const size_t kind_bytes[] = {[I32] = 4, [U32] = 4, [U64] = 8, [F64] = 8, [NS] = 8};

typedef enum source_kind {
    FROM_ENGINE,
    FROM_LOOP,
    FROM_MADE,
    FROM_SERVER,
    FROM_WORKER,
    FROM_HIST,
    FROM_PREDICTION,
    FROM_STEP_TOKENS
} source_kind;

/* What is neither the engine's nor the loop's but follows from their numbers. */
typedef struct gs_metrics_made {
    double kv_usage;
    double attainment[GS_CLASS_COUNT]; /* NaN: nothing was judged */
} gs_metrics_made;

typedef struct metric {
    const char *name;
    metric_type type;
    label_set labels;
    struct {
        source_kind from;
        size_t at; /* offset, or gs_hist_id */
        value_kind kind;
    } source;
    const char *help;
} metric;

#define ENGINE(field, kind)                                                                        \
    { FROM_ENGINE, offsetof(gs_engine_stats, field), kind }
#define LOOP(field, kind)                                                                          \
    { FROM_LOOP, offsetof(gs_metrics, field), kind }
#define MADE(field, kind)                                                                          \
    { FROM_MADE, offsetof(gs_metrics_made, field), kind }
#define SERVER(field, kind)                                                                        \
    { FROM_SERVER, offsetof(gs_metrics_server, field), kind }
#define WORKER(field, kind)                                                                        \
    { FROM_WORKER, offsetof(gs_metrics_worker, field), kind }
#define HIST(id)                                                                                   \
    { FROM_HIST, GS_HIST_##id, F64 }
#define PREDICTION                                                                                 \
    { FROM_PREDICTION, 0, F64 }
#define STEP_TOKENS                                                                                \
    { FROM_STEP_TOKENS, 0, F64 }

static const metric table[] = {
#define X(name, type, labels, source, help) {#name, type, BY_##labels, source, help},
    GS_METRICS_TABLE(X)
#undef X
};
#define N_METRICS (sizeof(table) / sizeof(table[0]))

/* ---- Lines --------------------------------------------------------------------------------- */

typedef struct writer {
    const gs_metrics_page *p;
    gs_buf *out;
    const metric *m;
    bool begun; /* its family's head is written */
    char created[32];
} writer;

/* Prometheus's 0.0.4 names a counter's family with its suffix, OpenMetrics without. */
static void full_name(const writer *w, char *out, size_t n, const char *suffix) {
    snprintf(out, n, "gamasot_%s%s", w->m->name, suffix);
}

/* A unit is the name's last word, where that is one. */
static const char *unit_of(const char *name) {
    static const char *const units[] = {"seconds", "joules", "ratio"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        const size_t len = strlen(units[i]);
        if (n > len && name[n - len - 1] == '_' && strcmp(name + n - len, units[i]) == 0)
            return units[i];
    }
    return NULL;
}

static void head(writer *w) {
    if (w->begun)
        return;
    w->begun = true;
    const bool om = w->p->open_metrics, info = w->m->labels == BY_BUILD;
    char name[96];
    full_name(w, name, sizeof(name), w->m->type == COUNTER && !om ? "_total" : "");
    if (om && info)
        name[strlen(name) - strlen("_info")] = '\0';
    gs_prom_family(w->out, name, om && info ? "info" : type_names[w->m->type], w->m->help);
    const char *unit = om ? unit_of(w->m->name) : NULL;
    if (unit)
        gs_buf_printf(w->out, "# UNIT %s %s\n", name, unit);
}

static void created(writer *w, const char *const *labels) {
    char name[96];
    if (!w->p->open_metrics || w->m->type == GAUGE)
        return;
    full_name(w, name, sizeof(name), "_created");
    gs_prom_sample(w->out, name, w->p->server->started_s, labels);
}

static void sample(writer *w, double v, const char *const *labels) {
    char name[96];
    if (isnan(v))
        return;
    head(w);
    full_name(w, name, sizeof(name), w->m->type == COUNTER ? "_total" : "");
    gs_prom_sample(w->out, name, v, labels);
    created(w, labels);
}

/* labels[0], labels[1] are left for `le`. counts: by bucket, [n + 1]. */
static void histogram(writer *w, const double *bounds, int n, const uint64_t *counts, double sum,
                      const char **labels) {
    char bucket[96], name[96], le[32];
    uint64_t below = 0;
    head(w);
    full_name(w, bucket, sizeof(bucket), "_bucket");
    labels[0] = "le";
    labels[1] = le;
    for (int i = 0; i <= n; i++) {
        below += counts[i];
        if (i == n)
            snprintf(le, sizeof(le), "+Inf");
        else
            snprintf(le, sizeof(le), "%g%s", bounds[i],
                     w->p->open_metrics && bounds[i] == floor(bounds[i]) ? ".0" : "");
        gs_prom_sample(w->out, bucket, (double)below, labels);
    }
    full_name(w, name, sizeof(name), "_sum");
    gs_prom_sample(w->out, name, sum, labels + 2);
    full_name(w, name, sizeof(name), "_count");
    gs_prom_sample(w->out, name, (double)below, labels + 2);
    created(w, labels + 2);
}

/* ---- Values -------------------------------------------------------------------------------- */

static double value_at(const void *base, const metric *m, int i) {
    const char *at = (const char *)base + m->source.at + (size_t)i * kind_bytes[m->source.kind];
    int32_t i32;
    uint32_t u32;
    uint64_t u64;
    int64_t ns;
    double f64;
    switch (m->source.kind) {
    case I32:
        memcpy(&i32, at, sizeof(i32));
        return i32;
    case U32:
        memcpy(&u32, at, sizeof(u32));
        return u32;
    case U64:
        memcpy(&u64, at, sizeof(u64));
        return (double)u64;
    case NS:
        memcpy(&ns, at, sizeof(ns));
        return (double)ns / 1e9;
    case F64:
        break;
    }
    memcpy(&f64, at, sizeof(f64));
    return f64;
}

static void make(const gs_engine_stats *s, gs_metrics_made *out) {
    out->kv_usage = s->kv_blocks_total ? (double)s->kv_blocks_held / s->kv_blocks_total : 0;
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        out->attainment[c] =
            s->n_target[c] ? 1.0 - (double)s->n_missed[c] / (double)s->n_target[c] : (double)NAN;
}

/* What is divided finely is told only where there is something. */
static bool left_out(const metric *m, double v) {
    return v == 0.0 && (m->labels == BY_CLASS_CODE || m->labels == BY_CLASS_FINISH ||
                        m->labels == BY_CLASS_PHASE);
}

/* Labels of value i. Arrays are [class][phase], [finish][class], [code][class]. */
static int labels_of(const metric *m, const gs_metrics_source *s, int i, char code[8],
                     const char **out) {
    int n = 0, c = i;
    const char *extra = NULL, *value = NULL;
    if (m->labels == BY_CLASS_PHASE) {
        c = i / GS_PHASE_COUNT;
        extra = "phase";
        value = gs_phase_name((gs_phase)(i % GS_PHASE_COUNT));
    } else if (m->labels == BY_CLASS_FINISH) {
        c = i % GS_CLASS_COUNT;
        extra = "finished_reason";
        value = gs_finish_name((gs_finish)(i / GS_CLASS_COUNT));
    } else if (m->labels == BY_CLASS_CODE) {
        c = i % GS_CLASS_COUNT;
        extra = "code";
        const int status = gs_code_at(i / GS_CLASS_COUNT);
        snprintf(code, 8, "%d", status);
        value = status ? code : "other";
    }
    if (m->labels != BY_MODEL) {
        out[n++] = "class";
        out[n++] = gs_class_name((gs_class)c);
    }
    out[n++] = "model";
    out[n++] = s->model;
    if (extra) {
        out[n++] = extra;
        out[n++] = value;
    }
    out[n] = NULL;
    return n;
}

static void values(writer *w, const gs_metrics_source *s, const void *base) {
    for (int i = 0; i < label_sets[w->m->labels].n; i++) {
        char code[8];
        const char *labels[8];
        const double v = value_at(base, w->m, i);
        if (left_out(w->m, v))
            continue;
        labels_of(w->m, s, i, code, labels);
        sample(w, v, labels);
    }
}

static const char *place_name(const gs_metrics_page *p, int place) {
    if (place == 0)
        return "";
    return place == GS_METRICS_OTHERS ? "other" : p->person_name(p->person_arg, place);
}

/* One class: a histogram for each person, or one of all. */
static void class_histogram(writer *w, const gs_metrics_source *s, int c) {
    const int id = (int)w->m->source.at;
    const gs_hist_shape *shape = &gs_hist_shapes[id];
    gs_hist all = {0};
    const char *labels[10] = {NULL, NULL, "class", gs_class_name((gs_class)c), "model", s->model};
    for (int place = 0; place < GS_METRICS_PLACES; place++) {
        const gs_hist *h = &s->m->hist[id][place][c];
        if (h->n == 0)
            continue;
        if (!w->p->person_name) {
            gs_hist_merge(&all, h);
            continue;
        }
        labels[6] = "person";
        labels[7] = place_name(w->p, place);
        histogram(w, shape->bounds, shape->n, h->counts, h->sum, labels);
    }
    if (all.n > 0)
        histogram(w, shape->bounds, shape->n, all.counts, all.sum, labels);
}

/* Of the engine's: its counts of predictions are added up already. */
static void engine_histogram(writer *w, const gs_metrics_source *s) {
    const char *labels[6] = {NULL, NULL, "model", s->model};
    const gs_engine_stats *st = s->stats;
    if (w->m->source.from == FROM_STEP_TOKENS) {
        histogram(w, gs_step_tokens_bounds, GS_STEP_TOKENS_N - 1, st->step_tokens,
                  (double)st->step_tokens_sum, labels);
        return;
    }
    uint64_t counts[GS_RATIO_N];
    for (int i = 0; i < GS_RATIO_N; i++)
        counts[i] = st->ratio_count[i] - (i > 0 ? st->ratio_count[i - 1] : 0);
    histogram(w, gs_ratio_bounds, GS_RATIO_N - 1, counts, st->ratio_sum, labels);
}

static void of_model(writer *w, const gs_metrics_source *s) {
    gs_metrics_made made;
    switch (w->m->source.from) {
    case FROM_ENGINE:
        values(w, s, s->stats);
        break;
    case FROM_LOOP:
        values(w, s, s->m);
        break;
    case FROM_MADE:
        make(s->stats, &made);
        values(w, s, &made);
        break;
    case FROM_HIST:
        for (int c = 0; c < GS_CLASS_COUNT; c++)
            class_histogram(w, s, c);
        break;
    case FROM_PREDICTION:
    case FROM_STEP_TOKENS:
        engine_histogram(w, s);
        break;
    case FROM_WORKER:
    case FROM_SERVER: /* there is one of it */
        break;
    }
}

static void of_server(writer *w) {
    const gs_metrics_page *p = w->p;
    if (w->m->labels == BY_BUILD) {
        const char *labels[] = {"version", p->server->version, NULL};
        sample(w, 1, labels);
        return;
    }
    if (w->m->labels == BY_NONE) {
        sample(w, value_at(p->server, w->m, 0), NULL);
        return;
    }
    if (w->m->labels == BY_MEMORY) {
        for (int i = 0; i < GS_METRICS_MEMORY; i++) {
            const char *labels[] = {"kind", memory_names[i], NULL};
            sample(w, value_at(p->server, w->m, i), labels);
        }
        return;
    }
    for (int i = 0; i < GS_METRICS_PLACES && p->person_name; i++) {
        const double v = value_at(p->server, w->m, i);
        const char *labels[] = {"person", v > 0 ? place_name(p, i) : "", NULL};
        if (v > 0)
            sample(w, v, labels);
    }
}

static void of_workers(writer *w) {
    for (int i = 0; i < w->p->n_workers; i++) {
        const char *labels[] = {"worker", w->p->workers[i].name, NULL};
        sample(w, value_at(&w->p->workers[i], w->m, 0), labels);
    }
}

void gs_metrics_write(const gs_metrics_page *p, gs_buf *out) {
    for (size_t i = 0; i < N_METRICS; i++) {
        writer w = {.p = p, .out = out, .m = &table[i]};
        if (table[i].source.from == FROM_SERVER)
            of_server(&w);
        if (table[i].source.from == FROM_WORKER)
            of_workers(&w);
        for (int k = 0; k < p->n_sources; k++)
            of_model(&w, &p->sources[k]);
    }
    if (p->open_metrics)
        gs_buf_str(out, "# EOF\n");
}

const char *gs_metrics_type(bool open_metrics) {
    return open_metrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                        : "text/plain; version=0.0.4; charset=utf-8";
}

/* ---- docs/metrics.md ----------------------------------------------------------------------- */

static const char intro[] =
    "# Metrics\n"
    "\n"
    "`GET /metrics` answers in Prometheus's text format, or in OpenMetrics 1.0 when `Accept` asks "
    "for it.\nThis page is made from the table in `src/metrics/table.h` (`make docs`). Names, "
    "labels and buckets are\nvLLM's where it has the metric, with finer buckets for small models; "
    "times are seconds. Histograms\ncount sequences: a request with `n: 2` is two.\n"
    "\n"
    "With an admin's key (or without keys, on this machine) the histograms by class also have a "
    "label\n`person`: the first `metrics.persons` persons that come have their own, the rest are "
    "`other`, nobody\nin particular is empty. Other keys see the sums and no persons.\n"
    "\n"
    "A Grafana dashboard is in `packaging/grafana`, alert rules are in `packaging/prometheus`.\n"
    "Without Prometheus there is `GET /v1/history`: the last 30 days by minute, in the server's "
    "own "
    "store\n([api.md](api.md#what-was)).\n"
    "\n"
    "| metric | type | labels | |\n"
    "|---|---|---|---|\n";

void gs_metrics_reference(gs_buf *out) {
    gs_buf_str(out, intro);
    for (size_t i = 0; i < N_METRICS; i++) {
        const metric *m = &table[i];
        const bool persons = m->source.from == FROM_HIST;
        gs_buf_printf(out, "| `gamasot_%s%s` | %s | %s%s | %s |\n", m->name,
                      m->type == COUNTER ? "_total" : "", type_names[m->type],
                      label_sets[m->labels].text, persons ? ", person" : "", m->help);
    }
}
