/*
 * What one step was: how long it took, what was expected of it, and who took which part of its
 * time. The scheduler fills one record per step it ran (a step that gave way leaves one per
 * stretch); parts are the charges of slo_fair.c, so the parts of a record sum to its time and the
 * records' times to the device's busy time.
 */
#ifndef GS_SCHED_STEP_H
#define GS_SCHED_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/class.h"

#define GS_PHASE_MAP(X)                                                                            \
    X(PREFILL, "prefill")                                                                          \
    X(DECODE, "decode")                                                                            \
    X(EMBED, "embed") /* prompts whose end is the answer */

typedef enum gs_phase {
#define X(name, text) GS_PHASE_##name,
    GS_PHASE_MAP(X)
#undef X
        GS_PHASE_COUNT
} gs_phase;

typedef struct gs_step_part {
    int32_t cls, phase; /* gs_class, gs_phase */
    int32_t n_seqs, n_tokens;
    int64_t ns;
} gs_step_part;

#define GS_STEP_PARTS (GS_CLASS_COUNT * GS_PHASE_COUNT)

typedef struct gs_step_record {
    uint64_t n;           /* the plan's ordinal */
    int64_t end_ns;       /* monotonic */
    int64_t ns;           /* measured, of this stretch */
    int64_t predicted_ns; /* of the whole step; -1: no estimate */
    int64_t limit_ns;     /* what the planner allowed it; -1: no limit */
    int64_t held_ns;      /* whoever starts with it was held for company this long, at most */
    int64_t saved_ns;     /* by predictions, against a step for each of those */
    int32_t model;        /* which of the engine's; 0 */
    int32_t n_parts;
    int32_t gave_way; /* 1: stopped between two layers, another record follows or it is lost */
    int32_t resumed;  /* 1: goes on with such a step */
    gs_step_part parts[GS_STEP_PARTS];
} gs_step_record;

const char *gs_phase_name(gs_phase p); /* "decode"; static */

#endif
