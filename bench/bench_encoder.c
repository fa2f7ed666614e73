/*
 * Whole steps of an encoder beside its products alone, on the same packed weights: which part of
 * the machine's rate for these shapes a step reaches.
 *
 *     bench_encoder [-t THREADS] [-b BATCH_TOKENS] [-r REPEATS] [-o step|kernel] MODEL.gguf
 *
 * The texts are 64 to 256 tokens long. In turn: steps through all of them, and the products of the
 * same number of rows, in blocks of the same size, with nothing in between. The share counts the
 * multiplications of both products of attention as work too. Prints one line of JSON with medians;
 * -o runs one of the two alone, for a profiler.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/sys.h"
#include "engine/encoder_impl.h"

#define N_TEXTS     64
#define SHORTEST    64
#define LONGEST     256
#define MAX_SAMPLES 63

typedef struct bench {
    gs_backend *backend;
    const gs_model *m;
    gs_pool *pool;
    int32_t tokens[N_TEXTS][LONGEST], n_tokens[N_TEXTS];
    float *out; /* [N_TEXTS][n_embd] */
    int64_t rows;
    int32_t batch;
} bench;

static void run_steps(bench *b) {
    for (int i = 0; i < N_TEXTS;) {
        gs_batch_item items[N_TEXTS];
        gs_batch batch = {.items = items};
        for (; i < N_TEXTS && batch.n_tokens + b->n_tokens[i] <= b->batch; i++) {
            items[batch.n_items++] =
                (gs_batch_item){.n_tokens = b->n_tokens[i],
                                .tokens = b->tokens[i],
                                .n_prompt = b->n_tokens[i],
                                .embedding = b->out + (ptrdiff_t)i * b->m->hp.n_embd};
            batch.n_tokens += b->n_tokens[i];
        }
        if (b->backend->ops->forward(b->backend, &batch) != 0) {
            fprintf(stderr, "a step failed\n");
            exit(1);
        }
    }
}

static void product(const gs_mat *w, int32_t n, uint8_t *buf, float *y) {
    gs_act act = {n, w->k, buf};
    if (w->data)
        gs_gemm(w, &act, y, w->n, NULL, 0, w->n_panels, GS_GEMM_STORE);
}

/* A thread's blocks through all layers, as rows_phase and qkv_phase take them. */
static void products(void *arg, int tid, int n_threads) {
    bench *b = arg;
    encoder_scratch *s = &((gs_encoder *)b->backend)->scratch[tid];
    for (int64_t first = 0; first < b->rows; first += b->batch) {
        int32_t r0, r1, n;
        gs_act_share((int32_t)(b->rows - first < b->batch ? b->rows - first : b->batch), tid,
                     n_threads, &r0, &r1);
        for (int32_t layer = 0; layer < b->m->hp.n_layers; layer++) {
            const gs_encoder_layer *ly = &b->m->encoder_layers[layer];
            for (int32_t r = r0; r < r1; r += n) {
                n = r1 - r < GS_ENCODER_ROWS ? r1 - r : GS_ENCODER_ROWS;
                const gs_mat *of_embd[] = {&ly->wqkv, &ly->wq,     &ly->wk,  &ly->wv,
                                           &ly->wo,   &ly->w_gate, &ly->w_up};
                for (size_t i = 0; i < sizeof of_embd / sizeof of_embd[0]; i++)
                    product(of_embd[i], n, s->act_embd, i < 5 ? s->qkv : s->ff);
                product(&ly->w_down, n, s->act_ff, s->qkv);
            }
        }
    }
}

static double mat_macs(const gs_mat *w) {
    return w->data ? (double)w->n * w->k : 0;
}

/* Multiplications of a pass: products, and both products of attention. */
static void count_macs(const bench *b, double *linear, double *attention) {
    *linear = *attention = 0;
    for (int32_t layer = 0; layer < b->m->hp.n_layers; layer++) {
        const gs_encoder_layer *ly = &b->m->encoder_layers[layer];
        *linear +=
            (double)b->rows * (mat_macs(&ly->wqkv) + mat_macs(&ly->wq) + mat_macs(&ly->wk) +
                               mat_macs(&ly->wv) + mat_macs(&ly->wo) + mat_macs(&ly->w_gate) +
                               mat_macs(&ly->w_up) + mat_macs(&ly->w_down));
        for (int i = 0; i < N_TEXTS; i++)
            *attention += 2.0 * b->n_tokens[i] * b->n_tokens[i] * b->m->hp.n_embd;
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static void measure(bench *b, int repeats, const char *only) {
    double step[MAX_SAMPLES], kernel[MAX_SAMPLES], linear, attention;
    for (int i = 0; i < repeats; i++) {
        int64_t t0 = gs_now_ns();
        if (strcmp(only, "kernel") != 0)
            run_steps(b);
        int64_t t1 = gs_now_ns();
        if (strcmp(only, "step") != 0)
            gs_pool_run(b->pool, products, b);
        step[i] = (double)(t1 - t0) / 1e9;
        kernel[i] = (double)(gs_now_ns() - t1) / 1e9;
    }
    count_macs(b, &linear, &attention);
    double s = median(step, repeats), k = median(kernel, repeats);
    printf("{\"model\": \"%s\", \"type\": \"%s\", \"isa\": \"%s\", \"threads\": %d, "
           "\"texts_per_s\": %.1f, \"tokens_per_s\": %.0f, \"step_gmac_per_s\": %.1f, "
           "\"kernel_gmac_per_s\": %.1f, \"share\": %.3f}\n",
           b->m->name, gs_qtype_get((uint32_t)b->m->encoder_layers[0].w_up.type)->name,
           gs_isa_name(gs_kernels_isa()), gs_pool_threads(b->pool), N_TEXTS / s,
           (double)b->rows / s, (linear + attention) / s / 1e9, linear / k / 1e9,
           (linear + attention) / s / (linear / k));
}

static int usage(void) {
    fprintf(stderr, "usage: bench_encoder [-t THREADS] [-b BATCH_TOKENS] [-r REPEATS] "
                    "[-o step|kernel] MODEL.gguf\n");
    return 2;
}

int main(int argc, char **argv) {
    int opt, threads = 0, repeats = 9;
    const char *only = "";
    char err[512];
    bench b = {.batch = 1024};
    while ((opt = getopt(argc, argv, "t:b:r:o:")) != -1) {
        if (opt == 't')
            threads = atoi(optarg);
        else if (opt == 'b')
            b.batch = atoi(optarg);
        else if (opt == 'r')
            repeats = atoi(optarg);
        else if (opt == 'o')
            only = optarg;
        else
            return usage();
    }
    if (optind + 1 != argc || repeats < 1 || repeats > MAX_SAMPLES || b.batch < LONGEST)
        return usage();
    gs_gguf *g = NULL;
    gs_model *m = NULL;
    b.pool = gs_pool_create(threads, true);
    if (!b.pool || gs_kernels_init(NULL, err, sizeof err) != 0 ||
        gs_gguf_open(argv[optind], &g, err, sizeof err) != 0 ||
        gs_model_load(g, b.pool, NULL, NULL, &m, err, sizeof err) != 0) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    gs_native_config cfg = {.model = m,
                            .pool = b.pool,
                            .max_seqs = N_TEXTS,
                            .max_batch_tokens = b.batch,
                            .max_context = LONGEST,
                            .block_tokens = 32,
                            .n_kv_blocks = 1};
    if (!m->hp.encoder || gs_native_create(&cfg, &b.backend, err, sizeof err) != 0) {
        fprintf(stderr, "%s\n", m->hp.encoder ? err : "not an encoder");
        return 1;
    }
    b.m = m;
    b.out = gs_calloc((size_t)N_TEXTS * (size_t)m->hp.n_embd, sizeof *b.out);
    gs_rng rng;
    gs_rng_seed(&rng, 3);
    for (int i = 0; i < N_TEXTS; i++) {
        b.n_tokens[i] = SHORTEST + (int32_t)gs_rng_below(&rng, LONGEST - SHORTEST + 1);
        for (int t = 0; t < b.n_tokens[i]; t++)
            b.tokens[i][t] = (int32_t)gs_rng_below(&rng, (uint32_t)m->hp.n_vocab);
        b.rows += b.n_tokens[i];
    }
    if (b.out)
        measure(&b, repeats, only);
    gs_free(b.out);
    b.backend->ops->destroy(b.backend);
    gs_model_free(m);
    gs_gguf_close(g);
    gs_pool_free(b.pool);
    return 0;
}
