/*
 * What the machine can do at most: streaming reads from memory, and int8 dot products, with all
 * threads of a pool. Benchmarks set their rates beside these, and `gamasot models recommend` says
 * what the machine can carry. Call it after gs_kernels_init, from the pool's owner; half a second.
 */
#ifndef GS_KERNELS_CEILINGS_H
#define GS_KERNELS_CEILINGS_H

#include "base/pool.h"

typedef struct gs_ceilings {
    double gops; /* int8, two operations per multiply-add; 0: no code path */
    double gbs;
} gs_ceilings;

gs_ceilings gs_ceilings_measure(gs_pool *pool); /* medians */

/* For whoever times something. Sorts v. */
double gs_median(double *v, int n);
double gs_timed_run(gs_pool *pool, gs_pool_fn fn, void *arg); /* seconds */

#endif
