#include "kernels/ceilings.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/clock.h"
#include "base/sys.h"
#include "kernels/kernels.h"

#define PEAK_ROUNDS  400000
#define CEILING_RUNS 9
#define STREAM_BYTES ((size_t)256 << 20)

typedef struct stream {
    const uint8_t *p;
    size_t bytes;
    bool prefetch;
    uint64_t sink;
} stream;

static int cmp_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gs_median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, cmp_double);
    return v[n / 2];
}

double gs_timed_run(gs_pool *pool, gs_pool_fn fn, void *arg) {
    int64_t t0 = gs_now_ns();
    gs_pool_run(pool, fn, arg);
    return (double)(gs_now_ns() - t0) * 1e-9;
}

#if defined(__x86_64__)
/* With prefetch into L2 some machines read faster than their own prefetcher does. */
__attribute__((target("avx2"))) static void read_job(void *arg, int tid, int n) {
    stream *s = arg;
    size_t share = s->bytes / (size_t)n & ~(size_t)511, ahead = s->prefetch ? 4096 : 0;
    const uint8_t *p = s->p + (size_t)tid * share;
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < share; i += 128) {
        if (ahead && i + ahead < share) {
            _mm_prefetch((const char *)p + i + ahead, _MM_HINT_T1);
            _mm_prefetch((const char *)p + i + ahead + 64, _MM_HINT_T1);
        }
        a = _mm256_or_si256(a, _mm256_load_si256((const __m256i *)(const void *)(p + i)));
        b = _mm256_or_si256(b, _mm256_load_si256((const __m256i *)(const void *)(p + i + 32)));
        c = _mm256_or_si256(c, _mm256_load_si256((const __m256i *)(const void *)(p + i + 64)));
        d = _mm256_or_si256(d, _mm256_load_si256((const __m256i *)(const void *)(p + i + 96)));
    }
    a = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
    if (_mm256_extract_epi64(a, 0) == 42)
        __atomic_fetch_add(&s->sink, 1, __ATOMIC_RELAXED);
}

/* Independent chains keep every multiplier busy; the asm hides the loop from folding. */
#define PEAK_JOB(name, isa, vec, constraint, chains, set, op)                                      \
    __attribute__((target(isa))) static void name(void *arg, int tid, int n) {                     \
        (void)arg, (void)tid, (void)n;                                                             \
        vec s[chains], w = set(0x03030303);                                                        \
        for (int i = 0; i < (chains); i++)                                                         \
            s[i] = set(i);                                                                         \
        for (int r = 0; r < PEAK_ROUNDS; r++) {                                                    \
            _Pragma("GCC unroll 16") for (int i = 0; i < (chains); i++) s[i] = op(s[i], w);        \
            __asm__ volatile("" : "+" constraint(w));                                              \
        }                                                                                          \
        for (int i = 0; i < (chains); i++)                                                         \
            __asm__ volatile("" : : constraint(s[i]));                                             \
    }
#define DOT_ZMM(s, w)  _mm512_dpbusd_epi32(s, w, w)
#define DOT_YMM(s, w)  _mm256_dpbusd_avx_epi32(s, w, w)
#define MADD_ZMM(s, w) _mm512_add_epi16(s, _mm512_maddubs_epi16(w, w))
#define MADD_YMM(s, w) _mm256_add_epi16(s, _mm256_maddubs_epi16(w, w))
PEAK_JOB(peak_avx512vnni, "avx512f,avx512vnni", __m512i, "v", 12, _mm512_set1_epi32, DOT_ZMM)
PEAK_JOB(peak_avx512, "avx512f,avx512bw", __m512i, "v", 12, _mm512_set1_epi32, MADD_ZMM)
PEAK_JOB(peak_avxvnni, "avx2,avxvnni", __m256i, "x", 12, _mm256_set1_epi32, DOT_YMM)
PEAK_JOB(peak_avx2, "avx2", __m256i, "x", 8, _mm256_set1_epi32, MADD_YMM)

/* What one round of a thread is, in operations. */
static gs_pool_fn peak_job(double *ops) {
    switch (gs_kernels_isa()) {
    case GS_ISA_AVX512VNNI:
        *ops = 12.0 * 128.0;
        return peak_avx512vnni;
    case GS_ISA_AVX512:
        *ops = 12.0 * 128.0;
        return peak_avx512;
    case GS_ISA_AVXVNNI:
        *ops = 12.0 * 64.0;
        return peak_avxvnni;
    default: /* scalar code has the AVX2 peak as its ceiling, too */
        *ops = 8.0 * 64.0;
        return gs_isa_supported(GS_ISA_AVX2) ? peak_avx2 : NULL;
    }
}
#elif defined(__aarch64__)
static void read_job(void *arg, int tid, int n) {
    stream *s = arg;
    size_t share = s->bytes / (size_t)n & ~(size_t)511;
    const uint8_t *p = s->p + (size_t)tid * share;
    uint8x16_t a = vdupq_n_u8(0), b = a;
    for (size_t i = 0; i < share; i += 32) {
        if (s->prefetch)
            __builtin_prefetch(p + i + 4096, 0, 2);
        a = vorrq_u8(a, vld1q_u8(p + i));
        b = vorrq_u8(b, vld1q_u8(p + i + 16));
    }
    if (vgetq_lane_u8(vorrq_u8(a, b), 0) == 42)
        __atomic_fetch_add(&s->sink, 1, __ATOMIC_RELAXED);
}

__attribute__((target("arch=armv8.2-a+dotprod"))) static void peak_dot(void *arg, int tid, int n) {
    (void)arg, (void)tid, (void)n;
    int32x4_t s[12];
    int8x16_t w = vdupq_n_s8(3);
    for (int i = 0; i < 12; i++)
        s[i] = vdupq_n_s32(i);
    for (int r = 0; r < PEAK_ROUNDS; r++) {
        _Pragma("GCC unroll 16") for (int i = 0; i < 12; i++) s[i] = vdotq_s32(s[i], w, w);
        __asm__ volatile("" : "+w"(w));
    }
    for (int i = 0; i < 12; i++)
        __asm__ volatile("" : : "w"(s[i]));
}

static gs_pool_fn peak_job(double *ops) {
    *ops = 12.0 * 32.0;
    return gs_isa_supported(GS_ISA_NEON_DOT) ? peak_dot : NULL;
}
#endif

gs_ceilings gs_ceilings_measure(gs_pool *pool) {
    gs_ceilings c = {0};
    double v[CEILING_RUNS], ops = 0;
    gs_pool_fn peak = peak_job(&ops);
    for (int i = 0; peak && i < CEILING_RUNS; i++)
        v[i] = gs_timed_run(pool, peak, NULL);
    if (peak)
        c.gops = ops * PEAK_ROUNDS * gs_pool_threads(pool) / gs_median(v, CEILING_RUNS) * 1e-9;
    uint8_t *p = gs_pages_alloc(STREAM_BYTES);
    if (!p)
        return c;
    memset(p, 1, STREAM_BYTES);
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        stream s = {p, STREAM_BYTES, prefetch, 0};
        for (int i = 0; i < CEILING_RUNS; i++)
            v[i] = gs_timed_run(pool, read_job, &s);
        double gbs = (double)STREAM_BYTES / gs_median(v, CEILING_RUNS) * 1e-9;
        c.gbs = gbs > c.gbs ? gbs : c.gbs;
    }
    gs_pages_free(p, STREAM_BYTES);
    return c;
}
