/*
 * Seeded random numbers: xoshiro256** (Blackman & Vigna, 2018) seeded by SplitMix64.
 * Deterministic for a seed on every machine. Not for secrets: those come from getrandom().
 */
#ifndef GS_BASE_RNG_H
#define GS_BASE_RNG_H

#include <stdint.h>

typedef struct gs_rng {
    uint64_t s[4];
} gs_rng;

void gs_rng_seed(gs_rng *r, uint64_t seed);
uint64_t gs_rng_u64(gs_rng *r);
double gs_rng_unit(gs_rng *r);                /* [0, 1) with 53 bits */
uint64_t gs_rng_below(gs_rng *r, uint64_t n); /* 0 .. n-1 without bias; n > 0 */

/* Fills with bytes nobody can predict (getrandom). 0 or GS_ERR_IO. */
int gs_random_bytes(void *p, unsigned n);

#endif
