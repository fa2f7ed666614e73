/*
 * /metrics: the whole table (table.h) as text, in Prometheus's form 0.0.4 or OpenMetrics 1.0.
 * Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and
 * https://github.com/prometheus/OpenMetrics (specification 1.0.0).
 */
#ifndef GS_METRICS_EXPOSE_H
#define GS_METRICS_EXPOSE_H

#include <stdbool.h>

#include "base/buf.h"
#include "metrics/metrics.h"

/* What takes memory (base/memory.h, and parts of the heap). */
#define GS_METRICS_MEMORY_MAP(X)                                                                   \
    X(WEIGHTS, "weights")                                                                          \
    X(KV, "kv")                                                                                    \
    X(STEP, "step")                                                                                \
    X(GRAMMARS, "grammars")                                                                        \
    X(STORE, "store")                                                                              \
    X(CONNECTIONS, "connections")                                                                  \
    X(HEAP, "heap")           /* all else that malloc has given out */                             \
    X(HEAP_FREE, "heap_free") /* what it keeps */

typedef enum gs_metrics_memory {
#define X(id, text) GS_METRICS_MEMORY_##id,
    GS_METRICS_MEMORY_MAP(X)
#undef X
        GS_METRICS_MEMORY
} gs_metrics_memory;

/* One model. */
typedef struct gs_metrics_source {
    const char *model;
    const gs_engine_stats *stats;
    const gs_metrics *m;
} gs_metrics_source;

/* One machine that answers. */
typedef struct gs_metrics_worker {
    const char *name;
    int32_t up, n_running;
    uint64_t n_dispatched, n_faults, n_moved, prompt_tokens, output_tokens;
    int64_t busy_ns, charged_ns;
} gs_metrics_worker;

/* What there is once. */
typedef struct gs_metrics_server {
    double person_s[GS_METRICS_PLACES]; /* by place */
    double jain;
    double energy_j; /* NaN: not told */
    double started_s;
    int32_t n_connections;
    double memory_bytes[GS_METRICS_MEMORY];  /* by kind; they sum to what the program knows of */
    double memory_limits[GS_METRICS_MEMORY]; /* NaN: bounded by others */
    double memory_anonymous, memory_available;
    int32_t memory_low; /* 1 or 0 */
    int32_t stalled;    /* 1 or 0 */
    int32_t n_placing;
    uint64_t n_restarts;
    int32_t tune_live; /* live tuning: 1 or 0, and what became of its changes */
    uint64_t tune_kept, tune_reverted;
    double tune_score;
    int32_t one; /* 1 */
    const char *version;
} gs_metrics_server;

typedef struct gs_metrics_page {
    const gs_metrics_source *sources; /* [n_sources] */
    int n_sources;
    const gs_metrics_server *server;
    const gs_metrics_worker *workers; /* [n_workers] */
    int n_workers;
    /* Name of place i (1 .. OTHERS - 1) in label `person`; NULL: no such label, all in one. */
    const char *(*person_name)(void *arg, int place);
    void *person_arg;
    bool open_metrics;
} gs_metrics_page;

void gs_metrics_write(const gs_metrics_page *p, gs_buf *out);
/* Content-Type of the page. */
const char *gs_metrics_type(bool open_metrics);
/* docs/metrics.md. */
void gs_metrics_reference(gs_buf *out);

#endif
