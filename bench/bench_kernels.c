/*
 * Microbenchmark of the packed GEMM: GOP/s and GB/s of weights by type, shape and tokens, beside
 * the machine's ceilings measured in the same run (streaming reads, int8 dot-product peak).
 *
 *     bench_kernels [-t THREADS] [-m M,M,...] [-s KxN] [-r REPEATS] [-w MB] [-c] [type ...]
 *
 * Weights come from memory: as many copies of the matrix as fill 96 MB (-w) are walked in turn,
 * each thread taking its share of the panels, without barriers between matrices. -c counts the
 * processor time of one thread instead of wall time, for machines that are busy with other work.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/sys.h"
#include "ceilings.h"
#include "kernels/kernels.h"

#define MAX_SAMPLES 64

static size_t g_pool_bytes = (size_t)96 << 20;
static bool g_cpu_time;

typedef struct job {
    gs_mat *mats;
    int n_mats;
    gs_act act;
    float *y;
    int64_t ldy;
} job;

static int64_t now_ns(void) {
    struct timespec t;
    if (!g_cpu_time)
        return gs_now_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * GS_NS_PER_S + t.tv_nsec;
}

static double run_once(gs_pool *pool, gs_pool_fn fn, void *arg) {
    int64_t t0 = now_ns();
    gs_pool_run(pool, fn, arg);
    return (double)(now_ns() - t0) * 1e-9;
}

/* ---- GEMM --------------------------------------------------------------------------------------
 */

static void gemm_job(void *arg, int tid, int n) {
    const job *j = arg;
    for (int i = 0; i < j->n_mats; i++) {
        int p0, p1;
        gs_share(j->mats[i].n_panels / 2, tid, n, &p0, &p1);
        p0 *= 2;
        p1 = tid == n - 1 ? j->mats[i].n_panels : 2 * p1;
        gs_gemm(&j->mats[i], &j->act, j->y, j->ldy, NULL, p0, p1, GS_GEMM_STORE);
    }
}

/* Random codes with sane scales: rows of a float matrix would need a quantiser, and the speed does
 * not depend on the values as long as none is denormal. */
static void fill_rows(uint8_t *src, gs_qtype type, size_t bytes) {
    gs_rng rng;
    gs_rng_seed(&rng, 1);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t r = gs_rng_u64(&rng);
        if (type == GS_QTYPE_F32 || type == GS_QTYPE_F16 || type == GS_QTYPE_BF16)
            r &= 0x3fff3fff3fff3fffull;
        memcpy(src + i, &r, 8);
    }
    size_t block = gs_qtype_get((uint32_t)type)->block_bytes;
    if (type == GS_QTYPE_MXFP4)
        for (size_t i = 0; i < bytes; i += block)
            src[i] = 120;
    static const uint16_t d = 0x2400;
    for (size_t i = 0; block > 8 && type != GS_QTYPE_MXFP4 && i < bytes; i += block) {
        memcpy(src + i, &d, 2);
        if (type != GS_QTYPE_Q4_0 && type != GS_QTYPE_IQ4_NL && type != GS_QTYPE_Q8_0)
            memcpy(src + i + 2, &d, 2);
        memcpy(src + i + block - 2, &d, 2);
    }
}

static int bench_type(gs_pool *pool, gs_qtype type, int32_t k, int32_t n, const int *ms, int n_ms,
                      int repeats, gs_ceilings c) {
    const gs_qtype_info *info = gs_qtype_get((uint32_t)type);
    gs_mat m;
    if (gs_mat_init(&m, type, n, k) != 0)
        return 0; /* K-quants of a width that is no multiple of 256 */
    size_t src_bytes = (size_t)n * ((size_t)k / info->block_elems) * info->block_bytes;
    size_t bytes = gs_mat_bytes(&m);
    int m_max = 1;
    for (int i = 0; i < n_ms; i++)
        m_max = ms[i] > m_max ? ms[i] : m_max;
    job j = {.n_mats = (int)(g_pool_bytes / bytes) + 1, .ldy = n};
    uint8_t *src = gs_malloc(src_bytes), *data = gs_pages_alloc(bytes * (size_t)j.n_mats);
    float *x = gs_array((size_t)m_max * (size_t)k, sizeof *x);
    j.mats = gs_array((size_t)j.n_mats, sizeof *j.mats);
    j.y = gs_aligned(64, sizeof(float) * (size_t)m_max * (size_t)n);
    j.act.data = gs_aligned(64, gs_act_bytes(m_max, k));
    int rc = src && data && x && j.mats && j.y && j.act.data ? 0 : 1;
    if (rc)
        goto out;
    fill_rows(src, type, src_bytes);
    for (int i = 0; i < j.n_mats; i++) {
        j.mats[i] = m;
        j.mats[i].data = data + bytes * (size_t)i;
        if (i == 0)
            gs_mat_pack(&j.mats[0], src, 0, m.n_panels);
        else
            memcpy(j.mats[i].data, data, bytes);
    }
    for (size_t i = 0; i < (size_t)m_max * (size_t)k; i++)
        x[i] = (float)((int)(i * 2654435761u >> 20 & 1023) - 512) * 0.01f;
    for (int i = 0; i < n_ms; i++) {
        j.act.m = ms[i];
        j.act.k = k;
        gs_act_quant(&j.act, x, k, 0, ms[i], gs_act_need(type));
        double v[MAX_SAMPLES];
        run_once(pool, gemm_job, &j);
        for (int r = 0; r < repeats; r++)
            v[r] = run_once(pool, gemm_job, &j);
        double t = gs_median(v, repeats), ops = 2.0 * n * (double)k * ms[i] * j.n_mats;
        double gops = ops / t * 1e-9, gbs = (double)bytes * j.n_mats / t * 1e-9;
        printf(
            "%-7s %5dx%-5d m %3d thr %d  %8.1f GOP/s (%3.0f %%)  %6.2f GB/s (%3.0f %%)  %.3f ms\n",
            info->name, (int)k, (int)n, ms[i], gs_pool_threads(pool), gops, 100.0 * gops / c.gops,
            gbs, 100.0 * gbs / c.gbs, t * 1e3 / j.n_mats);
        fflush(stdout);
    }
out:
    gs_free(j.act.data);
    gs_free(j.y);
    gs_free(j.mats);
    gs_free(x);
    gs_pages_free(data, bytes * (size_t)j.n_mats);
    gs_free(src);
    return rc;
}

static gs_qtype type_by_name(const char *name) {
    for (uint32_t t = 0; t < 64; t++)
        if (gs_qtype_get(t) && strcmp(gs_qtype_get(t)->name, name) == 0)
            return (gs_qtype)t;
    fprintf(stderr, "bench_kernels: no type %s\n", name);
    exit(2);
}

int main(int argc, char **argv) {
    int threads = 0, repeats = 7, ms[32] = {1, 2, 4, 8, 16, 32, 128}, n_ms = 7, opt;
    int32_t shapes[8][2] = {{576, 1536}, {1536, 8960}, {2048, 2048}};
    int n_shapes = 3;
    while ((opt = getopt(argc, argv, "t:m:s:r:w:c")) != -1) {
        if (opt == 't')
            threads = atoi(optarg);
        else if (opt == 'm')
            n_ms = parse_list(optarg, ms, 32);
        else if (opt == 's')
            n_shapes = sscanf(optarg, "%dx%d", &shapes[0][0], &shapes[0][1]) == 2 ? 1 : 0;
        else if (opt == 'r')
            repeats = atoi(optarg) > 0 && atoi(optarg) < MAX_SAMPLES ? atoi(optarg) : MAX_SAMPLES;
        else if (opt == 'w')
            g_pool_bytes = (size_t)(atof(optarg) * 1048576.0);
        else if (opt == 'c')
            g_cpu_time = true, threads = 1;
        else
            return 2;
    }
    char err[200];
    if (gs_kernels_init(NULL, err, sizeof err) != 0) {
        fprintf(stderr, "bench_kernels: %s\n", err);
        return 1;
    }
    gs_pool *pool = gs_pool_create(threads, true);
    if (!pool)
        return 1;
    gs_ceilings c = gs_ceilings_measure(pool);
    printf("isa %s, %d threads: int8 peak %.0f GOP/s, streaming read %.1f GB/s\n",
           gs_isa_name(gs_kernels_isa()), gs_pool_threads(pool), c.gops, c.gbs);
    static const char *const all[] = {"Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q6_K", "Q8_0", "F16"};
    int n_types = optind < argc ? argc - optind : (int)(sizeof all / sizeof all[0]);
    int rc = 0;
    for (int t = 0; t < n_types && !rc; t++)
        for (int s = 0; s < n_shapes && !rc; s++)
            rc = bench_type(pool, type_by_name(optind < argc ? argv[optind + t] : all[t]),
                            shapes[s][0], shapes[s][1], ms, n_ms, repeats, c);
    gs_pool_free(pool);
    return rc;
}
