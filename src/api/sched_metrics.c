#include "api/sched_metrics.h"

#include <math.h>
#include <stdio.h>

#include "metrics/prom.h"

static void single(gs_buf *out, const char *name, const char *type, const char *help,
                   const char *model, double v) {
    const char *labels[] = {"model", model, NULL};
    gs_prom_family(out, name, type, help);
    gs_prom_sample(out, name, v, labels);
}

static void counts(gs_buf *out, const char *name, const char *help, const char *model,
                   const uint64_t v[GS_CLASS_COUNT]) {
    gs_prom_family(out, name, "counter", help);
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        const char *labels[] = {"class", gs_class_name((gs_class)c), "model", model, NULL};
        gs_prom_sample(out, name, (double)v[c], labels);
    }
}

static void times(gs_buf *out, const char *name, const char *help, const char *model,
                  const int64_t ns[GS_CLASS_COUNT]) {
    gs_prom_family(out, name, "gauge", help);
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        const char *labels[] = {"class", gs_class_name((gs_class)c), "model", model, NULL};
        gs_prom_sample(out, name, (double)ns[c] / 1e9, labels);
    }
}

static void ratios(gs_buf *out, const char *model, const gs_engine_stats *s) {
    const char *whole[] = {"model", model, NULL};
    gs_prom_family(out, "gamasot_step_predicted_ratio", "histogram",
                   "Predicted by measured time of a step.");
    for (int i = 0; i < GS_RATIO_N; i++) {
        char le[16] = "+Inf";
        if (isfinite(gs_ratio_bounds[i]))
            snprintf(le, sizeof(le), "%g", gs_ratio_bounds[i]);
        const char *labels[] = {"le", le, "model", model, NULL};
        gs_prom_sample(out, "gamasot_step_predicted_ratio_bucket", (double)s->ratio_count[i],
                       labels);
    }
    gs_prom_sample(out, "gamasot_step_predicted_ratio_sum", s->ratio_sum, whole);
    gs_prom_sample(out, "gamasot_step_predicted_ratio_count",
                   (double)s->ratio_count[GS_RATIO_N - 1], whole);
}

void gs_sched_metrics(const gs_engine_stats *s, const char *model, gs_buf *out) {
    single(out, "gamasot_suspended_steps_total", "counter",
           "Background steps that gave way between two layers.", model, (double)s->suspensions);
    single(out, "gamasot_discarded_seconds_total", "counter",
           "Device time of steps that gave way and were not gone on with.", model,
           (double)s->discarded_ns / 1e9);
    single(out, "gamasot_background_seconds_total", "counter", "Device time of background.", model,
           (double)s->busy_background_ns / 1e9);
    single(out, "gamasot_recomputed_seconds_total", "counter",
           "Device time of what was computed again.", model, (double)s->recomputed_ns / 1e9);
    counts(out, "gamasot_targets_total", "First tokens, or ends, judged by their class's target.",
           model, s->n_target);
    counts(out, "gamasot_targets_missed_total", "Of them, too late.", model, s->n_missed);
    counts(out, "gamasot_relegated_total", "Requests that would have been late even alone.", model,
           s->n_relegated);
    times(out, "gamasot_window_seconds", "How long a newcomer may be held for company.", model,
          s->window_ns);
    times(out, "gamasot_effective_tpot_seconds",
          "Time to each further token that is aimed at: the target, or what the load allows.",
          model, s->effective_tpot_ns);
    ratios(out, model, s);
    single(out, "gamasot_step_model_median_ratio", "gauge",
           "Predicted by measured time of the newest steps, median.", model, s->cost_median_ratio);
    single(out, "gamasot_step_model_median_error", "gauge",
           "Relative error of the newest predictions, median.", model, s->cost_median_error);
    single(out, "gamasot_step_model_p95_error", "gauge",
           "Relative error of the newest predictions, 95 of 100.", model, s->cost_p95_error);
}
