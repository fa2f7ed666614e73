/*
 * The linear layers of a model's step and nothing else: the bound that a whole step is held
 * against, and what barriers cost.
 *
 *     bench_chain [-t THREADS] [-m M,M,...] [-r REPEATS] [-b] MODEL.gguf
 *
 * Ways to go through all layers and the output matrix with M rows, taken in turn:
 *
 *     gemm     the products alone, each thread its panels, no barrier at all
 *     chain    products, norms and quantisation of activations, with the barriers that correct
 *              values need: eight a layer
 *
 * and with -b, what barriers cost:
 *
 *     gemm_b   gemm with a barrier after each group of products (QKV, O, gate and up, down)
 *     work     chain without barriers (threads race on the values, which nobody reads)
 *
 * More than 64 rows are a prompt: one row goes through the output matrix. Prints JSON: the
 * machine's ceilings, what the model weighs, then one line per M with the medians in milliseconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/sys.h"
#include "ceilings.h"
#include "kernels/kernels.h"
#include "model/model.h"

#define MAX_ROWS      2048
#define MAX_SAMPLES   63
#define DECODE_ROWS   64
#define WITH_BARRIERS 1
#define WITH_ACTS     2

static const char *const g_modes[] = {"gemm", "gemm_b", "work", "chain"};
#define N_MODES 4

typedef struct chain {
    const gs_model *m;
    gs_pool *pool;
    int rows, flags;
    float *x, *q, *k, *v, *gate, *up, *logits;
    gs_act embd, attn, ff, out;
} chain;

typedef struct lane {
    const chain *c;
    int tid, n, r0, r1;
} lane;

static void sync_all(const lane *t) {
    if (t->c->flags & WITH_BARRIERS)
        gs_pool_barrier(t->c->pool, t->tid);
}

/* Between an activation's writers and its readers. */
static void sync_acts(const lane *t) {
    if (t->c->flags & WITH_ACTS)
        sync_all(t);
}

/* Shares of whole pairs of panels, which is what the tiles take at once. */
static void product(const lane *t, const gs_mat *w, const gs_act *a, float *y, int mode) {
    int p0, p1;
    gs_share(w->n_panels / 2, t->tid, t->n, &p0, &p1);
    p0 *= 2;
    p1 = t->tid == t->n - 1 ? w->n_panels : 2 * p1;
    if (p0 < p1)
        gs_gemm(w, a, y, w->n, NULL, p0, p1, mode);
}

static void norm_rows(const lane *t, const gs_act *act, const float *norm, const gs_mat *w) {
    gs_act a = *act;
    int r0, r1;
    gs_share(a.m, t->tid, t->n, &r0, &r1);
    if ((t->c->flags & WITH_ACTS) && r0 < r1)
        gs_rmsnorm_quant(&a, t->c->x, a.k, norm, t->c->m->hp.norm_eps, r0, r1,
                         gs_act_need(w->type));
    sync_acts(t);
}

static void quant_rows(const lane *t, const gs_act *act, const float *x, const gs_mat *w) {
    gs_act a = *act;
    if ((t->c->flags & WITH_ACTS) && t->r0 < t->r1)
        gs_act_quant(&a, x, a.k, t->r0, t->r1, gs_act_need(w->type));
    sync_acts(t);
}

static void step(void *arg, int tid, int n) {
    const chain *c = arg;
    const gs_model *m = c->m;
    lane t = {.c = c, .tid = tid, .n = n};
    gs_share(c->rows, tid, n, &t.r0, &t.r1);
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const gs_layer *l = &m->layers[i];
        norm_rows(&t, &c->embd, l->attn_norm, &l->wq);
        product(&t, &l->wq, &c->embd, c->q, GS_GEMM_STORE);
        product(&t, &l->wk, &c->embd, c->k, GS_GEMM_STORE);
        product(&t, &l->wv, &c->embd, c->v, GS_GEMM_STORE);
        sync_all(&t);
        quant_rows(&t, &c->attn, c->q, &l->wo);
        product(&t, &l->wo, &c->attn, c->x, GS_GEMM_ADD);
        sync_all(&t);
        norm_rows(&t, &c->embd, l->ffn_norm, &l->w_gate);
        product(&t, &l->w_gate, &c->embd, c->gate, GS_GEMM_STORE);
        product(&t, &l->w_up, &c->embd, c->up, GS_GEMM_STORE);
        sync_all(&t);
        quant_rows(&t, &c->ff, c->gate, &l->w_down);
        product(&t, &l->w_down, &c->ff, c->x, GS_GEMM_ADD);
        sync_all(&t);
    }
    norm_rows(&t, &c->out, m->output_norm, &m->output);
    product(&t, &m->output, &c->out, c->logits, GS_GEMM_STORE);
}

static float *floats(int rows, int32_t width) {
    size_t n = (size_t)rows * (size_t)width;
    float *p = gs_pages_alloc(n * sizeof *p);
    for (size_t i = 0; p && i < n; i++)
        p[i] = (float)((int)(i * 2654435761u >> 20 & 1023) - 512) * 0.01f;
    return p;
}

/* Filled, so that modes without WITH_ACTS multiply with something ordinary. */
static gs_act activations(int rows, int32_t k, const float *x) {
    gs_act a = {rows, k, gs_aligned(64, gs_act_bytes(rows, k))};
    if (a.data)
        gs_act_quant(&a, x, k, 0, rows, GS_ACT_INT | GS_ACT_FLOAT);
    return a;
}

static int bench_rows(chain *c, int rows, int repeats, bool barriers) {
    const gs_hparams *hp = &c->m->hp;
    int outs = rows > DECODE_ROWS ? 1 : rows;
    int32_t nq = hp->n_heads * hp->head_dim, nkv = hp->n_kv_heads * hp->head_dim;
    c->rows = rows;
    c->x = floats(rows, hp->n_embd);
    c->q = floats(rows, nq);
    c->k = floats(rows, nkv);
    c->v = floats(rows, nkv);
    c->gate = floats(rows, hp->n_ff);
    c->up = floats(rows, hp->n_ff);
    c->logits = floats(outs, hp->n_vocab);
    bool ok = c->x && c->q && c->k && c->v && c->gate && c->up && c->logits;
    if (ok) {
        c->embd = activations(rows, hp->n_embd, c->x);
        c->attn = activations(rows, nq, c->q);
        c->ff = activations(rows, hp->n_ff, c->gate);
        c->out = activations(outs, hp->n_embd, c->x);
        ok = c->embd.data && c->attn.data && c->ff.data && c->out.data;
    }
    double ms[N_MODES][MAX_SAMPLES];
    for (int r = -1; ok && r < repeats; r++) /* the first round warms up */
        for (int mode = 0; mode < N_MODES; mode += barriers ? 1 : N_MODES - 1) {
            c->flags = mode;
            memset(c->x, 0, (size_t)rows * (size_t)hp->n_embd * sizeof *c->x);
            double s = gs_timed_run(c->pool, step, c);
            if (r >= 0)
                ms[mode][r] = 1e3 * s;
        }
    if (ok) {
        printf("{\"test\":\"chain\",\"m\":%d", rows);
        for (int mode = 0; mode < N_MODES; mode += barriers ? 1 : N_MODES - 1)
            printf(",\"%s_ms\":%.4f", g_modes[mode], gs_median(ms[mode], repeats));
        printf("}\n");
        fflush(stdout);
    }
    gs_free(c->embd.data);
    gs_free(c->attn.data);
    gs_free(c->ff.data);
    gs_free(c->out.data);
    float *const bufs[] = {c->x, c->q, c->k, c->v, c->gate, c->up};
    const int32_t widths[] = {hp->n_embd, nq, nkv, nkv, hp->n_ff, hp->n_ff};
    for (int i = 0; i < 6; i++)
        gs_pages_free(bufs[i], (size_t)rows * (size_t)widths[i] * sizeof(float));
    gs_pages_free(c->logits, (size_t)outs * (size_t)hp->n_vocab * sizeof(float));
    c->embd.data = c->attn.data = c->ff.data = c->out.data = NULL;
    return ok ? 0 : 1;
}

/* Bytes that one step reads, and parameters that one row multiplies with. */
static void print_model(const gs_model *m) {
    double bytes = (double)gs_mat_bytes(&m->output);
    double in_layers = 0, out = (double)m->hp.n_vocab * m->hp.n_embd;
    for (int32_t i = 0; i < m->hp.n_layers; i++) {
        const gs_layer *l = &m->layers[i];
        const gs_mat *mats[] = {&l->wq, &l->wk, &l->wv, &l->wo, &l->w_gate, &l->w_up, &l->w_down};
        for (int j = 0; j < 7; j++) {
            bytes += (double)gs_mat_bytes(mats[j]);
            in_layers += (double)mats[j]->n * mats[j]->k;
        }
    }
    printf("{\"test\":\"weights\",\"name\":\"%s\",\"weight_bytes\":%.0f,\"layer_params\":%.0f,"
           "\"output_params\":%.0f}\n",
           m->name, bytes, in_layers, out);
}

static void print_machine(gs_pool *pool) {
    gs_ceilings c = gs_ceilings_measure(pool);
    printf("{\"test\":\"machine\",\"isa\":\"%s\",\"threads\":%d,\"int8_gops\":%.1f,"
           "\"read_gbs\":%.2f}\n",
           gs_isa_name(gs_kernels_isa()), gs_pool_threads(pool), c.gops, c.gbs);
}

int main(int argc, char **argv) {
    int threads = 0, repeats = 11, ms[32] = {1, 2, 4, 8, 16, 32, 512}, n_ms = 7, opt;
    bool barriers = false;
    while ((opt = getopt(argc, argv, "t:m:r:b")) != -1) {
        if (opt == 't')
            threads = atoi(optarg);
        else if (opt == 'm')
            n_ms = parse_list(optarg, ms, 32);
        else if (opt == 'r')
            repeats = atoi(optarg) > 0 && atoi(optarg) < MAX_SAMPLES ? atoi(optarg) : MAX_SAMPLES;
        else if (opt == 'b')
            barriers = true;
        else
            return 2;
    }
    if (optind + 1 != argc) {
        fprintf(stderr,
                "usage: bench_chain [-t THREADS] [-m M,M,...] [-r REPEATS] [-b] MODEL.gguf\n");
        return 2;
    }
    char err[512] = "";
    gs_gguf *g = NULL;
    gs_model *m = NULL;
    chain c = {.pool = gs_pool_create(threads, true)};
    int rc = c.pool ? gs_kernels_init(NULL, err, sizeof err) : 1;
    if (rc == 0)
        rc = gs_gguf_open(argv[optind], &g, err, sizeof err);
    if (rc == 0)
        rc = gs_model_load(g, c.pool, NULL, NULL, &m, err, sizeof err);
    gs_gguf_close(g);
    if (rc == 0) {
        c.m = m;
        print_machine(c.pool);
        print_model(m);
        for (int i = 0; i < n_ms && rc == 0; i++)
            rc = ms[i] <= MAX_ROWS ? bench_rows(&c, ms[i], repeats, barriers) : 0;
    }
    if (rc != 0)
        fprintf(stderr, "bench_chain: %s\n", err[0] ? err : "out of memory");
    gs_model_free(m);
    if (c.pool)
        gs_pool_free(c.pool);
    return rc ? 1 : 0;
}
