/*
 * Live tuning: one change at a time, inside guard rails, kept only if it helps.
 *
 * The caller asks for a decision at the end of every interval and says what happened in it. The
 * core keeps a picture of the present settings (the baseline), now and then moves one knob by one
 * step, looks at the intervals that follow, and keeps or takes back. Where a step made no
 * difference, the next one in that direction is longer by one: settings may have plateaus. Two
 * tests end a trial:
 *
 *   - misses: Wald's sequential probability ratio test of "as many as before" against "twice as
 *     many, or 5 of 100 more"; besides, an interval that misses more than is allowed and more than
 *     before takes the change back at once, so no regression outlives one interval;
 *   - gain: throughput, discounted by misses beyond the allowed share, against the baseline's.
 *
 * When the baseline itself changes a lot, the load has shifted: what was learned about moves is
 * forgotten. Nothing is tried while too few requests come to tell.
 *
 * Pure: no clock, no I/O, no allocation. Owner: whoever holds it.
 */
#ifndef GS_LOAD_AUTOTUNE_H
#define GS_LOAD_AUTOTUNE_H

#include <stdbool.h>
#include <stdint.h>

#define GS_AUTOTUNE_KNOBS  12
#define GS_AUTOTUNE_VALUES 10

typedef struct gs_autotune_knob {
    const char *option; /* static; for the caller */
    double values[GS_AUTOTUNE_VALUES];
    int n; /* its guard rails: no value outside of these */
} gs_autotune_knob;

typedef struct gs_autotune_config {
    const gs_autotune_knob *knobs; /* [n_knobs], borrowed */
    int n_knobs;
    double allowed_misses; /* share; 0.05 */
    double gain;           /* a change must gain so much, relatively; 0.01 */
    uint32_t min_judged;   /* of an interval, else it says nothing; 4 */
    int trial_intervals;   /* that a change is looked at; 2 */
    int rest_intervals;    /* of baseline between two trials; 1 */
} gs_autotune_config;

/* What happened in one interval. */
typedef struct gs_autotune_window {
    double seconds;
    uint32_t n_judged, n_missed; /* interactive requests */
    double work;                 /* tokens computed that were of use */
} gs_autotune_window;

typedef enum gs_autotune_kind {
    GS_AUTOTUNE_NOTHING,
    GS_AUTOTUNE_TRY,   /* set knob to value */
    GS_AUTOTUNE_KEEP,  /* what was tried stays */
    GS_AUTOTUNE_REVERT /* set knob back to value */
} gs_autotune_kind;

typedef struct gs_autotune_action {
    gs_autotune_kind kind;
    int knob;
    double value, before;
    double predicted, measured; /* relative gain; measured with KEEP and REVERT */
    const char *why;            /* static sentence */
} gs_autotune_action;

typedef struct gs_autotune {
    gs_autotune_config cfg;
    int at[GS_AUTOTUNE_KNOBS]; /* index of the present value, a trial's included */
    /* baseline */
    double base_score, base_misses;
    uint32_t n_base; /* intervals in it */
    int rest;
    /* trial */
    bool trying;
    int knob, step; /* which, and by how much it was moved */
    int n_trial;
    double trial_score, llr;
    /* what is known of moves: gain by knob and direction; how often to pass it over */
    double expected[GS_AUTOTUNE_KNOBS][2];
    int pass[GS_AUTOTUNE_KNOBS][2], misses_in_row[GS_AUTOTUNE_KNOBS][2];
    int extra[GS_AUTOTUNE_KNOBS][2]; /* how much longer than one the next step is */
    int next;                        /* move that is looked at next */
    uint64_t n_kept, n_reverted, n_tried, n_shifts;
} gs_autotune;

/* at: index of each knob's present value. */
void gs_autotune_init(gs_autotune *t, const gs_autotune_config *cfg, const int *at);
gs_autotune_action gs_autotune_decide(gs_autotune *t, const gs_autotune_window *w);
/* A change from outside (a person, a test) to be judged like one of its own; any running trial is
 * given up first. False: no such value. */
bool gs_autotune_plant(gs_autotune *t, int knob, int value);
/* The index of the knob's value nearest to v. */
int gs_autotune_nearest(const gs_autotune_knob *k, double v);
/* Throughput discounted by misses beyond the allowed share. */
double gs_autotune_score(const gs_autotune_config *cfg, const gs_autotune_window *w);

#endif
