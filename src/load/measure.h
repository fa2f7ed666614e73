/*
 * What a run of a trace showed: one record for each request, and statistics over them. The same
 * definitions as bench/family/report.py, whose readers understand the JSON written here.
 *
 * All latencies count from when a request was due, not from when the client got round to sending
 * it: a server that stalls can't hide the requests it kept waiting (coordinated omission).
 */
#ifndef GS_LOAD_MEASURE_H
#define GS_LOAD_MEASURE_H

#include "load/trace.h"

typedef enum gs_load_status {
    GS_LOAD_UNFINISHED, /* the run ended first */
    GS_LOAD_OK,
    GS_LOAD_CANCELLED, /* by the trace */
    GS_LOAD_HTTP,      /* a status other than 200 */
    GS_LOAD_BROKEN,    /* the stream was cut short */
    GS_LOAD_ERROR,
    GS_LOAD_TIMEOUT,
    GS_LOAD_STATUS_COUNT
} gs_load_status;

const char *gs_load_status_name(gs_load_status s); /* "ok"; static */

/* Times in seconds from the run's start; < 0: never. */
typedef struct gs_load_record {
    int32_t request; /* index in the trace */
    double due_s;    /* arrival, or the end of the one before + think time */
    double sent_s;   /* last attempt */
    double first_s;  /* first text; of a whole answer, its end */
    double end_s;
    float *gaps_s; /* [n_gaps] between chunks of text */
    int32_t n_gaps, cap_gaps;
    int32_t n_prompt, n_cached, n_output;
    bool usage; /* the server counted; else chunks and the trace's wish */
    gs_load_status status;
    int http_status, n_attempts;
} gs_load_record;

/* Seconds; 0: no such target. */
typedef struct gs_load_target {
    double ttft_s, tpot_s, complete_s;
} gs_load_target;

typedef struct gs_load_run {
    const gs_trace *trace;
    gs_load_record *records; /* [n] */
    int32_t n;
    gs_load_target targets[GS_CLASS_COUNT];
    char label[128];
    double speed;
    int32_t n_not_started;
    uint64_t seed; /* of the bootstrap */
} gs_load_run;

/* The scheduler's default targets: voice 0.7 s and 45 ms, ... */
void gs_load_default_targets(gs_load_target out[GS_CLASS_COUNT]);
void gs_load_run_free(gs_load_run *run); /* the records */

/* A percentile with the interval in which it lies in 95 of 100 resamples of the requests. */
typedef struct gs_quantile {
    double value, low, high; /* NAN without values */
    bool enough; /* at least so many requests that one without a value beyond it would be a
                    surprise: 59 for p95, 299 for p99 (at 95 %) */
} gs_quantile;

enum { GS_Q50, GS_Q95, GS_Q99, GS_Q_COUNT };
extern const double gs_q_share[GS_Q_COUNT];
/* How many requests q needs; 1 for the median. */
int32_t gs_quantile_needs(int q);

typedef struct gs_load_group {
    int32_t n, n_errors, n_cancelled, n_judged, n_met;
    double met_low, met_high; /* interval of the share that met its targets (Wilson, 95 %) */
    gs_quantile ttft[GS_Q_COUNT], itl[GS_Q_COUNT], tpot[GS_Q_COUNT], total[GS_Q_COUNT];
    double tpot_mean, itl_max;
    int64_t n_input, n_cached, n_output;
} gs_load_group;

typedef struct gs_load_summary {
    gs_load_group classes[GS_CLASS_COUNT];
    gs_load_group *persons; /* [trace->n_persons] */
    int32_t n_persons;
    int32_t n, n_errors;
    double seconds;
    double input_tok_s, cached_tok_s, output_tok_s, embedded_tok_s;
    double good_req_s, good_tok_s; /* of requests that met their targets */
    double met;                    /* share of all judged ones; NAN: none */
    double late_p99_s;             /* the client's own delay in sending */
    double jain;                   /* NAN: fewer than two persons waited at the same time */
    double contended_s;
    double service[GS_TRACE_PERSONS]; /* input + 2 * output tokens in contended time; < 0: none */
} gs_load_summary;

/* GS_ERR_NOMEM. */
int gs_load_summarise(const gs_load_run *run, gs_load_summary *out);
void gs_load_summary_free(gs_load_summary *s);
/* 1: met, 0: missed, -1: can't be judged. */
int gs_load_met(const gs_load_run *run, const gs_load_record *r);
double gs_load_ttft(const gs_load_record *r); /* NAN: no first text */
double gs_load_tpot(const gs_load_record *r); /* NAN: fewer than two tokens */

/* Wilson's interval of a share of n at z standard deviations. */
void gs_wilson(int32_t met, int32_t n, double z, double *low, double *high);

/* ---- reports (report.c, report_html.c) ------------------------------------------------------- */

/* The tables for a terminal. */
void gs_load_print(const gs_load_run *run, const gs_load_summary *s, gs_buf *out);
/* JSON as drive.py writes it, with intervals. options: a JSON object of how it was run. */
void gs_load_json(const gs_load_run *run, const gs_load_summary *s, const char *options,
                  gs_buf *out);
/* A page that needs nothing else: tables and plots. */
void gs_load_html(const gs_load_run *run, const gs_load_summary *s, gs_buf *out);
/* Two results (JSON of gs_load_json or drive.py) beside each other with ratios b / a. */
int gs_load_compare(const char *path_a, const char *path_b, gs_buf *text, gs_buf *html, char *err,
                    size_t errlen);

#endif
