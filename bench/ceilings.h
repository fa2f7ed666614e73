/*
 * What the benchmarks share: lists of numbers from the command line. The ceilings themselves are in
 * kernels/ceilings.h.
 */
#ifndef BENCH_CEILINGS_H
#define BENCH_CEILINGS_H

#include <stdlib.h>

#include "kernels/ceilings.h"

/* "1,2,16": numbers of 1..4096; how many. */
static int parse_list(const char *s, int *out, int max) {
    int n = 0;
    while (*s && n < max) {
        char *end;
        long v = strtol(s, &end, 10);
        if (end == s || v < 1 || v > 4096)
            break;
        out[n++] = (int)v;
        s = *end == ',' ? end + 1 : end;
    }
    return n;
}

#endif
