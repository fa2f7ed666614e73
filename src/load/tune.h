/*
 * Search for the settings that carry the most load while every target holds. The core knows
 * neither options nor schedulers: a candidate is one choice for each parameter, and a caller's
 * function says how it fares under a load. So it is tested on made-up surfaces, and `gamasot tune`
 * gives it the simulator.
 *
 * Method. A candidate's score is its throughput at the largest load at which all targets hold,
 * found by bisection on a logarithmic scale. First successive halving: many random candidates are
 * looked at under the load that the best one so far carries, cheaply; the better half is looked at
 * again with more seeds, and so on; what is left is bisected. Then coordinate search: each
 * parameter of the best candidate is moved to its other values, again under the best one's load
 * first, so that a worse candidate costs one look instead of a bisection. At last what makes no
 * difference goes back to its default, and all does when the gain is below 3 %.
 *
 * Deterministic for a seed. No clock, no I/O.
 */
#ifndef GS_LOAD_TUNE_H
#define GS_LOAD_TUNE_H

#include <stdbool.h>
#include <stdint.h>

#define GS_TUNE_PARAMS 64

typedef struct gs_tune_point {
    uint8_t choice[GS_TUNE_PARAMS]; /* [n_params] */
} gs_tune_point;

/* How a candidate fares under one load with one seed. */
typedef struct gs_tune_look {
    /* > 0: all targets hold, by how much; <= 0: not. Smooth, so that near misses can be told from
     * far ones: min over targets of 1 - measured / allowed. */
    double margin;
    double throughput; /* tokens/s, or whatever is to be large */
} gs_tune_look;

typedef struct gs_tune_config {
    int n_params;
    uint8_t n_choices[GS_TUNE_PARAMS];
    gs_tune_point start; /* the defaults: the first best */
    double low, high;    /* loads */
    double precision;    /* of a bisection, relative; 0.03 */
    int n_random;        /* candidates of the halving */
    int n_seeds;         /* that a load must hold with */
    int n_rounds;        /* of the coordinate search, at most */
    uint64_t seed;
    /* 0, or an error that ends the search. */
    int (*look)(void *arg, const gs_tune_point *p, double load, uint64_t seed, gs_tune_look *out);
    void *arg;
    /* May be NULL. Called when a better candidate was found. */
    void (*progress)(void *arg, int n_candidates, double load, double throughput);
} gs_tune_config;

typedef struct gs_tune_result {
    gs_tune_point point;
    double load;       /* the largest at which the targets hold; 0: not even the lowest */
    double throughput; /* there, mean over the seeds */
    double margin;
} gs_tune_result;

/* Largest load at which p holds with all seeds. */
int gs_tune_sustain(const gs_tune_config *c, const gs_tune_point *p, gs_tune_result *out);

typedef struct gs_tune_sensitivity {
    int param;
    double worst; /* the smallest score among its choices / the best's score; 1: no matter */
    uint8_t worst_choice;
} gs_tune_sensitivity;

#define GS_TUNE_BEST 5
typedef struct gs_tune_outcome {
    gs_tune_result start;              /* the defaults */
    gs_tune_result best[GS_TUNE_BEST]; /* [n_best], best first, all different */
    int n_best;
    gs_tune_sensitivity sensitivity[GS_TUNE_PARAMS]; /* [n_params], most sensitive first */
    int n_candidates, n_looks;
} gs_tune_outcome;

/* 0, or what look returned. */
int gs_tune_search(const gs_tune_config *c, gs_tune_outcome *out);

#endif
