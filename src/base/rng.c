#include "base/rng.h"

#include "base/err.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/types.h>

/* SplitMix64 (Steele, Lea, Flood 2014) turns any seed, 0 too, into four good state words. */
static uint64_t splitmix64(uint64_t *x) {
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

void gs_rng_seed(gs_rng *r, uint64_t seed) {
    for (int i = 0; i < 4; i++)
        r->s[i] = splitmix64(&seed);
}

/* xoshiro256** 1.0 (Blackman & Vigna, "Scrambled linear pseudorandom number generators", 2018) */
uint64_t gs_rng_u64(gs_rng *r) {
    uint64_t *s = r->s;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

double gs_rng_unit(gs_rng *r) {
    return (double)(gs_rng_u64(r) >> 11) * 0x1.0p-53;
}

/* Multiply and shift, rejecting the few values that would favour some results (Lemire, "Fast
 * random integer generation in an interval", 2019). */
uint64_t gs_rng_below(gs_rng *r, uint64_t n) {
    GS_ASSERT(n > 0);
    uint64_t biased = -n % n; /* 2^64 mod n */
    unsigned __int128 m;
    do
        m = (unsigned __int128)gs_rng_u64(r) * n;
    while ((uint64_t)m < biased);
    return (uint64_t)(m >> 64);
}

int gs_random_bytes(void *p, unsigned n) {
    char *out = p;
    while (n > 0) {
        ssize_t got = getrandom(out, n, 0);
        if (got < 0) {
            if (errno == EINTR)
                continue;
            return GS_ERR_IO;
        }
        out += got;
        n -= (unsigned)got;
    }
    return GS_OK;
}
