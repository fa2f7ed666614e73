/*
 * Private to cli/: `gamasot tune`. tune.c is the command, tune_eval.c the candidates in the
 * simulator, tune_confirm.c the best ones on the real engine, tune_report.c what is written.
 */
#ifndef GS_CLI_TUNE_H
#define GS_CLI_TUNE_H

#include "config/config.h"
#include "load/measure.h"
#include "load/trace.h"
#include "load/tune.h"
#include "sched/sim.h"

#define GS_TUNE_VALUES   10
#define GS_TUNE_VARIANTS 16
#define GS_TUNE_SEEDS    16

/* An option that is searched, and what it is to a reader who is no expert. */
typedef struct gs_tunable {
    const char *option;
    const char *values; /* with commas between */
    const char *about;
} gs_tunable;
extern const gs_tunable gs_tunables[]; /* ends with a row without an option */

/* One parameter of the search: its values as text, the configured one among them. */
typedef struct gs_tune_axis {
    const gs_tunable *tunable; /* NULL: the variant */
    char values[GS_TUNE_VALUES][24];
    bool words; /* names, not numbers */
    int n, start;
} gs_tune_axis;

/* A machine to choose: a device file, or options that were measured (model, KV type, threads). */
typedef struct gs_tune_variant {
    const char *sets; /* "kv.type=q8,engine.threads=1"; "": as configured */
    char label[256];
    gs_sim_device device;
} gs_tune_variant;

typedef struct gs_tuner {
    gs_config *base; /* plain copies of it are changed */
    const gs_trace *trace;
    gs_trace_sim seeds[GS_TUNE_SEEDS]; /* the trace, its arrivals shifted; [n_seeds]. The first
                                        * n_warm requests fill the prefix cache, see WARM_S */
    int32_t n_warm;
    int n_seeds;
    bool own_scopes;
    gs_tune_variant variants[GS_TUNE_VARIANTS];
    int n_variants;
    gs_tune_axis axes[GS_TUNE_PARAMS];
    int n_axes;
    double trace_s;
    gs_load_target targets[GS_CLASS_COUNT]; /* as configured */
    bool only[GS_CLASS_COUNT];              /* simulate these classes alone; with only_some */
    bool only_some;
    bool exempt[GS_CLASS_COUNT]; /* their targets can't be met here, so they bind nobody */
} gs_tuner;

/* What one simulated candidate showed. */
typedef struct gs_tune_sight {
    gs_sim_report rep;
    gs_tune_look look;
    int worst_class; /* whose target is nearest to breaking, or broken; -1: none has targets */
    const char *worst_what;       /* "first token", "tokens", "whole answer", "refused" */
    int32_t peak[GS_CLASS_COUNT]; /* requests at once, at most */
    int32_t n_unfinished;
} gs_tune_sight;

/* The axes from the table and the variants. GS_ERR_INVALID names an option. */
int gs_tuner_prepare(gs_tuner *t, char *err, size_t errlen);
void gs_tuner_free(gs_tuner *t);
/* The candidate's configuration: a plain copy of base with its live and size options changed. */
int gs_tuner_config(const gs_tuner *t, const gs_tune_point *p, gs_config *out, char *err,
                    size_t errlen);
int gs_tuner_see(const gs_tuner *t, const gs_tune_point *p, double load, uint64_t seed,
                 gs_tune_sight *out);
const gs_tune_variant *gs_tuner_variant(const gs_tuner *t, const gs_tune_point *p);
/* The class whose first token and gaps the curve shows: the most demanding one there is. */
int gs_tuner_lead_class(const gs_tuner *t);

/* At a load, and at three quarters of it as long as a target is missed. */
#define GS_TUNE_TRIES 4
typedef struct gs_tune_measured {
    gs_tune_point point;
    int candidate; /* 1: the chosen one */
    double load;
    bool holds;
    gs_load_summary summary;
} gs_tune_measured;

/* Starts `gamasot serve` with the candidate's options, plays the trace at that load for at most
 * limit_s, ends it. sets: more "section.name=value" for the server. */
int gs_tune_confirm(const gs_tuner *t, const gs_tune_point *p, double load, double limit_s,
                    const char *const *sets, int n_sets, gs_tune_measured *out, char *err,
                    size_t errlen);

#define GS_TUNE_CURVE 14
typedef struct gs_tune_curve_point {
    double load, tokens_per_s, ttft_p95_ms, itl_p95_ms;
    bool holds;
    char breaks[64]; /* what does, in words */
} gs_tune_curve_point;

typedef struct gs_tune_findings {
    const gs_tuner *t;
    const gs_tune_config *search;
    const gs_tune_outcome *outcome;
    double seconds; /* that the search took */
    gs_tune_curve_point curve[GS_TUNE_CURVE];
    int n_curve, chosen;
    gs_tune_sight at_best, beyond; /* at the chosen load, and a little above */
    int32_t met[GS_CLASS_COUNT], judged[GS_CLASS_COUNT]; /* over all seeds, at the chosen load */
    bool half_helps[GS_CLASS_COUNT]; /* an exempt class: a model of half the size would meet them */
    double with_half_step, with_more_kv, with_worker; /* loads the default carries then */
    gs_tune_measured measured[GS_TUNE_BEST * GS_TUNE_TRIES];
    int n_measured;
} gs_tune_findings;

void gs_tune_write_config(const gs_tune_findings *f, gs_buf *out);
void gs_tune_write_html(const gs_tune_findings *f, gs_buf *out);
void gs_tune_write_text(const gs_tune_findings *f, gs_buf *out);
/* {"curve": [...], "chosen": i, ...}, what GET /v1/tune shows. */
void gs_tune_write_json(const gs_tune_findings *f, gs_buf *out);

#endif
