/*
 * GEMM on odd shapes: what the sanitizers should see, and random ones for as long as one likes.
 *
 * KERNEL_FUZZ_SECONDS=N goes on with random shapes for N seconds (./run check-long: an hour);
 * KERNEL_FUZZ_SEED=N starts from another seed, or from the one that a failure named.
 */
#include <inttypes.h>
#include <time.h>

#include "gemm_cases.h"

#define SOME_CASES 150     /* without KERNEL_FUZZ_SECONDS */
#define MAX_WORK   4000000 /* multiplications of one random case */

/* Rows that are no multiple of a panel, widths of real layers, every number of tokens to 70. */
static void test_odd_shapes(void **state) {
    (void)state;
    static const int32_t ks[] = {576, 640, 896, 2560}, k256[] = {256, 768, 1280, 2560};
    static const int32_t ns[] = {17, 31, 5, 47, 33, 1, 40};
    for (size_t t = 0; t < N_TYPES; t++)
        for (int32_t m = 1; m <= 70; m++) {
            bool wide = info_of(g_types[t])->block_elems == 256;
            gemm_case c = {.type = g_types[t],
                           .n = ns[(size_t)m % 7],
                           .k = (wide ? k256 : ks)[((size_t)m + t) % 4],
                           .m = m,
                           .acts = m % 3 == 0 ? 2 : 0,
                           .mode = m % 2 ? GS_GEMM_STORE : GS_GEMM_ADD,
                           .bias = m % 5 == 0};
            c.split = (c.n + 15) / 16 / 2;
            check_case(&c);
        }
}

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *s = getenv(name);
    return s && *s ? strtoull(s, NULL, 10) : otherwise;
}

/* Mostly small numbers, now and then the largest. */
static int32_t skewed(int32_t most) {
    int32_t limit = 1 + (int32_t)rnd((uint32_t)most);
    return 1 + (int32_t)rnd((uint32_t)limit);
}

static gemm_case random_case(void) {
    gemm_case c = {.type = g_types[rnd(N_TYPES)],
                   .n = skewed(200),
                   .m = skewed(300),
                   .data = (int)rnd(N_DATA),
                   .acts = (int)rnd(4),
                   .mode = rnd(2) ? GS_GEMM_ADD : GS_GEMM_STORE,
                   .bias = rnd(2)};
    c.k = k_of(c.type, skewed(160), skewed(20));
    if (info_of(c.type)->block_elems == 1 && c.data == DATA_MAX)
        c.data = DATA_RANDOM; /* else NaN weights */
    while ((int64_t)c.n * c.k * c.m > MAX_WORK) {
        if (c.m >= c.n)
            c.m = (c.m + 1) / 2;
        else
            c.n = (c.n + 1) / 2;
    }
    c.split = (int32_t)rnd((uint32_t)((c.n + 15) / 16 + 1));
    return c;
}

/* Each case has a seed of its own, so that one that failed can be run alone. */
static void test_random_shapes(void **state) {
    (void)state;
    time_t until = time(NULL) + (time_t)setting("KERNEL_FUZZ_SECONDS", 0);
    uint64_t seed = setting("KERNEL_FUZZ_SEED", 1), n = 0;
    while (n < SOME_CASES || time(NULL) < until) {
        gs_rng_seed(&g_rng, seed + n);
        gemm_case c = random_case();
        g_case_seed = seed + n;
        check_case(&c);
        n++;
    }
    print_message("%" PRIu64 " random shapes\n", n);
}

int main(void) {
    gs_rng_seed(&g_rng, 20261129);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_odd_shapes),
        cmocka_unit_test(test_random_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
