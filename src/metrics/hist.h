/*
 * Histograms with fixed buckets, shaped as Prometheus expects them. Owner: whoever adds; no locks,
 * no allocation.
 */
#ifndef GS_METRICS_HIST_H
#define GS_METRICS_HIST_H

#include <stdint.h>

#define GS_HIST_BOUNDS 32 /* most */

typedef struct gs_hist_shape {
    const double *bounds; /* [n] ascending upper bounds, "at most"; what is beyond has a bucket */
    int n;                /* <= GS_HIST_BOUNDS */
} gs_hist_shape;

typedef struct gs_hist {
    uint64_t counts[GS_HIST_BOUNDS + 1]; /* by bucket, not added up */
    uint64_t n;
    double sum;
} gs_hist;

void gs_hist_add(gs_hist *h, const gs_hist_shape *shape, double v);
void gs_hist_merge(gs_hist *into, const gs_hist *h); /* of the same shape */
/*
 * As PromQL's histogram_quantile: linear inside the bucket, whose lower end is 0 for the first;
 * the highest bound for what is beyond all. NaN when empty.
 */
double gs_hist_quantile(const gs_hist *h, const gs_hist_shape *shape, double q);

#endif
