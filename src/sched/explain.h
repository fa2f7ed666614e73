/*
 * Why did I wait: a small record per sequence, filled while it lives and handed out with its end.
 * It names classes and counts, never another person or text.
 */
#ifndef GS_SCHED_EXPLAIN_H
#define GS_SCHED_EXPLAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/class.h"
#include "sched/step.h"

/*  name, text, sentence */
#define GS_WAIT_MAP(X)                                                                             \
    X(NONE, "none", "not waiting")                                                                 \
    X(WINDOW, "window", "held for company, because a shared step costs less")                      \
    X(CLASS, "class", "a more urgent class is served first")                                       \
    X(PERSON, "person", "somebody who has used less is served first")                              \
    X(KV, "kv", "no room in the attention cache")                                                  \
    X(SEATS, "seats", "all seats for running sequences are taken")                                 \
    X(BUDGET, "budget", "the step is full: running streams would be late")                         \
    X(SCHEDULE, "schedule", "background work is paused by its schedule")                           \
    X(STEP, "step", "the current step had begun before it came")                                   \
    X(MODEL, "model", "another model has its turn")                                                \
    X(PAUSED, "paused", "whoever it is for has paused it")                                         \
    X(PROMPT, "prompt", "another prompt is being computed")                                        \
    X(WORKER, "worker", "the machines that may answer it are busy or away")

typedef enum gs_wait {
#define X(name, text, sentence) GS_WAIT_##name,
    GS_WAIT_MAP(X)
#undef X
        GS_WAIT_COUNT
} gs_wait;

/*
 * What a sequence did or waited for, one stretch after the other: stretch i began at_us[i] after
 * its arrival and ends where the next one begins. Where there would be more than fit, the shortest
 * ones are taken into those before them.
 */
#define GS_SPANS 20
typedef struct gs_spans {
    int32_t n;
    uint32_t at_us[GS_SPANS];
    uint8_t what[GS_SPANS]; /* a gs_wait, or GS_WAIT_COUNT + a gs_phase: it was in steps */
} gs_spans;

typedef struct gs_explain {
    uint64_t id;
    gs_class cls, asked_cls; /* served as; as submitted */
    uint32_t person;
    int32_t model; /* which of the engine's; filled in by the engine */
    int64_t arrival_ns;
    int64_t first_step_ns;  /* 0: has not run yet */
    int64_t first_token_ns; /* 0: none yet */
    int64_t end_ns;         /* 0: living */
    gs_wait wait_now;
    int64_t wait_ns[GS_WAIT_COUNT]; /* before the first token, and while put back */
    int32_t n_prompt, n_cached, n_output, max_output;
    int32_t n_chunks;                   /* prefill */
    int32_t n_steps;                    /* it took part in */
    int32_t steps_with[GS_CLASS_COUNT]; /* of them, beside other sequences of this class */
    int32_t n_preempted, n_suspended;
    int32_t slot; /* its KV slot; -1: holds none */
    bool running;
    bool paused;
    bool relegated;            /* its first-token target could not be met even alone */
    bool late;                 /* background: its deadline could not be met when it came */
    int32_t position;          /* in the queue, from 1; 0: running */
    int64_t predicted_ttft_ns; /* at admission; -1: no estimate */
    int64_t predicted_ns;      /* of all its steps, summed */
    int64_t measured_ns;
    int64_t charged_ns; /* device time on the person's account */
    /* Of its steps before the first token: predicted, measured, and its own part of that. */
    int64_t first_predicted_ns, first_measured_ns, first_own_ns;
    gs_spans spans;
    const char *worker; /* the other machine that has it, or had it last; NULL: this one */
    const char *placed; /* why there: a static sentence, or NULL */
} gs_explain;

const char *gs_wait_name(gs_wait w);     /* "kv"; static */
const char *gs_wait_sentence(gs_wait w); /* static */
/* "kv", "prefill": of gs_spans.what; static */
const char *gs_span_name(int what);
/* From now_ns on it is this. */
void gs_span_begin(gs_explain *x, int what, int64_t now_ns);

#endif
