#include "metrics/hist.h"

#include <math.h>

/* The first bound that is not below v, or n. */
static int bucket_of(const gs_hist_shape *shape, double v) {
    int low = 0, high = shape->n;
    while (low < high) {
        const int mid = (low + high) / 2;
        if (v <= shape->bounds[mid])
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

void gs_hist_add(gs_hist *h, const gs_hist_shape *shape, double v) {
    h->counts[bucket_of(shape, v)]++;
    h->n++;
    h->sum += v;
}

void gs_hist_merge(gs_hist *into, const gs_hist *h) {
    for (int i = 0; i <= GS_HIST_BOUNDS; i++)
        into->counts[i] += h->counts[i];
    into->n += h->n;
    into->sum += h->sum;
}

double gs_hist_quantile(const gs_hist *h, const gs_hist_shape *shape, double q) {
    if (h->n == 0)
        return NAN;
    const double rank = q * (double)h->n;
    double below = 0.0;
    int i = 0;
    while (i < shape->n && below + (double)h->counts[i] < rank)
        below += (double)h->counts[i++];
    if (i == shape->n)
        return shape->bounds[shape->n - 1];
    const double from = i > 0 ? shape->bounds[i - 1] : 0.0;
    const double in = (double)h->counts[i];
    return in > 0.0 ? from + (shape->bounds[i] - from) * (rank - below) / in : from;
}
