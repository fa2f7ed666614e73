/*
 * What the event loop counts: distributions of times and tokens, outcomes, and what of it belongs
 * to the last minutes. One object per served model. What the engine counts is gs_engine_stats;
 * metrics/table.h says which metric comes from where.
 *
 * Owner: the event-loop thread. Recording takes no lock and allocates nothing.
 */
#ifndef GS_METRICS_METRICS_H
#define GS_METRICS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "metrics/hist.h"

/* Persons with a place of their own: place 0 is nobody in particular, the last one all others. */
#define GS_METRICS_PLACES 18
#define GS_METRICS_OTHERS (GS_METRICS_PLACES - 1)

/* id, bounds. Bounds as vLLM's where it has the metric, with finer ones for small models. */
#define GS_HIST_MAP(X)                                                                             \
    X(TTFT, FIRST_BOUNDS)                                                                          \
    X(ITL, TOKEN_BOUNDS)                                                                           \
    X(QUEUE, REQUEST_BOUNDS)                                                                       \
    X(PREFILL, REQUEST_BOUNDS)                                                                     \
    X(DECODE, REQUEST_BOUNDS)                                                                      \
    X(E2E, REQUEST_BOUNDS)                                                                         \
    X(PROMPT_TOKENS, COUNT_BOUNDS)                                                                 \
    X(OUTPUT_TOKENS, COUNT_BOUNDS)

typedef enum gs_hist_id {
#define X(id, bounds) GS_HIST_##id,
    GS_HIST_MAP(X)
#undef X
        GS_HIST_COUNT
} gs_hist_id;

/* How a sequence ended, in vLLM's words where it has them. */
#define GS_FINISH_MAP(X)                                                                           \
    X(STOP, "stop")                                                                                \
    X(LENGTH, "length")                                                                            \
    X(DONE, "done") /* prompts whose end is the answer */                                          \
    X(ABORT, "abort")                                                                              \
    X(ERROR, "error")

typedef enum gs_finish {
#define X(id, text) GS_FINISH_##id,
    GS_FINISH_MAP(X)
#undef X
        GS_FINISH_COUNT
} gs_finish;

/* HTTP statuses that requests for answers end with; 0 is any other. */
#define GS_CODE_MAP(X)                                                                             \
    X(200) X(400) X(401) X(403) X(404) X(409) X(413) X(415) X(429) X(499) X(500) X(503) X(504) X(0)
#define GS_ONE(code) +1
enum { GS_CODE_COUNT = GS_CODE_MAP(GS_ONE) };
#undef GS_ONE

/* What a minute was, of one class. */
typedef struct gs_minute_class {
    gs_hist ttft, itl;
    uint32_t n_ended;
    uint64_t n_prompt, n_output; /* tokens of ended sequences */
} gs_minute_class;

#define GS_METRICS_MINUTES 10 /* that are looked back on, the current one with them */

typedef struct gs_metrics gs_metrics;
struct gs_metrics {
    /* Persons' places and the minutes are of all models together: kept by the first one's object.
     */
    gs_metrics *first; /* NULL: this is it */
    bool persons_off;
    int32_t n_places;    /* given to persons so far, nobody's with them */
    int32_t max_persons; /* who may get a place; the rest are others */
    uint8_t place[256];  /* of a person's index; 0 for index 0 and those not seen yet */
    uint32_t person_at[GS_METRICS_PLACES];
    gs_hist hist[GS_HIST_COUNT][GS_METRICS_PLACES][GS_CLASS_COUNT];
    uint64_t finished[GS_FINISH_COUNT][GS_CLASS_COUNT];
    uint64_t codes[GS_CODE_COUNT][GS_CLASS_COUNT];
    uint64_t wasted_tokens; /* that came when nobody was there to read them */
    uint64_t n_paused;      /* requests for pauses */
    gs_minute_class minutes[GS_METRICS_MINUTES][GS_CLASS_COUNT]; /* ring by minute */
    int64_t minute_ns;
    int64_t minute;                                           /* the current one */
    gs_minute_class last[GS_CLASS_COUNT];                     /* the one before it */
    int64_t person_ns[GS_METRICS_MINUTES][GS_ENGINE_PERSONS]; /* as each minute began */
    double weight[GS_ENGINE_PERSONS];                         /* 0: as common */
};

extern const gs_hist_shape gs_hist_shapes[GS_HIST_COUNT];

/* minute_ns: what a minute is; other than one for tests. */
void gs_metrics_init(gs_metrics *m, int32_t max_persons, int64_t minute_ns, int64_t now_ns);
/* Of a further model. */
void gs_metrics_init_further(gs_metrics *m, gs_metrics *first);
const char *gs_finish_name(gs_finish f); /* static */
int gs_code_at(int i);                   /* the status of index i, 0: other */

/* A token of a sequence: seconds since the request came (first) or since the last token. */
void gs_metrics_first_token(gs_metrics *m, uint32_t person, gs_class c, int64_t ns);
void gs_metrics_next_token(gs_metrics *m, uint32_t person, gs_class c, int64_t ns);
/* A sequence that had been admitted has ended. */
void gs_metrics_ended(gs_metrics *m, gs_finish how, const gs_explain *x);
void gs_metrics_answered(gs_metrics *m, gs_class c, int status);
/* Moves the ring of minutes on. True: a minute is over, and last is what it was. */
bool gs_metrics_tick(gs_metrics *m, const gs_engine_stats *s, int64_t now_ns);
/* Device time of each person in the last minutes. */
void gs_metrics_persons(const gs_metrics *m, const gs_engine_stats *s,
                        int64_t out[GS_ENGINE_PERSONS]);
/* Jain's index over those who had any in the last minutes, by weight. Who asks for less than an
 * equal part lowers it although nobody is treated unfairly. */
double gs_metrics_jain(const gs_metrics *m, const gs_engine_stats *s);
/* The last minutes of a class together. */
void gs_metrics_recent(const gs_metrics *m, gs_class c, gs_minute_class *out);

/* (sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one has all (Jain et al., 1984).
 * 1 for nobody. */
double gs_jain(const double *x, int32_t n);

#endif
