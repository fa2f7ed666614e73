/* How long a test of random cases runs, and with which numbers: the same each day, unless the
 * environment asks for more or for others. Also in docs/reliability.md. */
#ifndef GS_TESTS_SCALE_H
#define GS_TESTS_SCALE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* GS_LONG_TESTS=1: the full counts, which ./run check-long takes. */
static inline bool scale_is_long(void) {
    const char *longer = getenv("GS_LONG_TESTS");
    return longer && strcmp(longer, "1") == 0;
}

static inline int scale(int n, int n_long) {
    return scale_is_long() ? n_long : n;
}

/* A seed: the test's own, or with GAMASOT_TEST_SEED far from those of any other value. */
static inline uint64_t scale_seed(uint64_t n) {
    const char *seed = getenv("GAMASOT_TEST_SEED");
    return (seed ? strtoull(seed, NULL, 10) * 1000003 : 0) + n;
}

#endif
