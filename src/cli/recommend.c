/*
 * gamasot models recommend: what this machine can carry. Measures how fast the machine reads memory
 * and multiplies, and how fast the kernels go through weights of each type with one row (a token of
 * an answer) and with many (a prompt); the times of a model follow from its shape:
 *
 *     TPOT  all weights once, the cache of the context, barriers and what else a layer does
 *     TTFT  the prompt's rows through all weights but the output matrix, attention among them
 *
 * Nothing of a model is loaded: matrices of zeros take as long.
 */
#include <stdio.h>
#include <string.h>

#include "api/settings.h"
#include "base/err.h"
#include "base/jsonw.h"
#include "base/memory.h"
#include "base/sys.h"
#include "cli/cli.h"
#include "gguf/gguf.h"
#include "kernels/ceilings.h"
#include "model/model.h"

#define RUNS         5
#define PROMPT_ROWS  128
#define TOKEN_SIZE   (32768 * 4096) /* weights of a matrix that no cache holds */
#define CHUNK_ROWS   4096
#define BARRIERS     8 /* of a layer */
#define BARRIER_RUNS 2000
/* Norms, rotations, sums and quantising of activations beside the products, as measured. */
#define PROMPT_REST 1.12
#define TOKEN_REST  1.05
/* Attention works on floats: that much slower than int8 products. */
#define ATTENTION_SLOWER 4.0
/* Sampling a token and sending it, beside the compute threads, as measured. */
#define SEND_MS 0.8
/* Accepting a request, its template, and threads that have slept, as measured. */
#define START_MS 6.0
#define KV_BYTES 2.0 /* bf16 */

/* What a spoken question, and a turn of a chat, make the model read: new tokens of the prompt (the
 * rest is in the prefix cache) and the context of the answer. */
static const struct use {
    const char *name;
    gs_class cls;
    int32_t prompt, context;
} uses[] = {{"voice", GS_CLASS_VOICE, 64, 1024}, {"chat", GS_CLASS_CHAT, 512, 2048}};
#define N_USES 2

typedef struct shape {
    char name[64];
    int32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab;
    bool tied; /* the output matrix is the embedding */
} shape;

/* Published configurations of the models that people run at home. */
static const shape shapes[] = {
    {"SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49152, true},
    {"SmolLM2-360M", 32, 960, 2560, 15, 5, 64, 49152, true},
    {"Qwen3-0.6B", 28, 1024, 3072, 16, 8, 128, 151936, true},
    {"Llama-3.2-1B", 16, 2048, 8192, 32, 8, 64, 128256, true},
    {"Qwen3-1.7B", 28, 2048, 6144, 16, 8, 128, 151936, true},
    {"Llama-3.2-3B", 28, 3072, 8192, 24, 8, 128, 128256, true},
    {"Qwen3-4B", 36, 2560, 9728, 32, 8, 128, 151936, true},
    {"Llama-3.1-8B", 32, 4096, 14336, 32, 8, 128, 128256, false},
    {"Qwen3-8B", 36, 4096, 12288, 32, 8, 128, 151936, false},
    {"Qwen3-14B", 40, 5120, 17408, 40, 8, 128, 151936, false},
    {"Qwen3-32B", 64, 5120, 25600, 64, 8, 128, 151936, false},
};
#define N_SHAPES ((int)(sizeof(shapes) / sizeof(shapes[0])))

static const gs_qtype types[] = {GS_QTYPE_Q4_0, GS_QTYPE_Q4_K, GS_QTYPE_Q6_K, GS_QTYPE_Q8_0};
#define N_TYPES ((int)(sizeof(types) / sizeof(types[0])))

/* ---- The machine ------------------------------------------------------------------------------
 */

/* Columns of the matrices that are timed, the nearest below a model's own: the wider a matrix, the
 * fewer rows of a prompt meet its weights while they are in a cache. Multiples of all blocks. */
static const int32_t widths[] = {512, 1024, 2048, 4096};
#define N_WIDTHS ((int)(sizeof(widths) / sizeof(widths[0])))

typedef struct rate {
    bool known;
    double token_s, prompt_s; /* for one weight: with one row; with PROMPT_ROWS, of each row */
} rate;

typedef struct machine {
    gs_pool *pool;
    gs_ceilings top;
    uint64_t memory;
    double barrier_s;
    int width; /* of the model looked at, in widths */
    rate rates[N_WIDTHS][GS_QTYPE_MXFP4 + 1];
} machine;

typedef struct product {
    gs_mat mat;
    gs_act act;
    float *y;
} product;

static void multiply(void *arg, int tid, int n) {
    const product *p = arg;
    int p0, p1;
    gs_share(p->mat.n_panels, tid, n, &p0, &p1);
    if (p0 < p1)
        gs_gemm(&p->mat, &p->act, p->y, p->mat.n, NULL, p0, p1, GS_GEMM_STORE);
}

/* Seconds of a product of rows rows with a matrix of n x cols. */
static int time_product(const machine *m, gs_qtype type, int32_t n, int32_t cols, int32_t rows,
                        double *s) {
    product p = {0};
    double v[RUNS];
    int rc = gs_mat_init(&p.mat, type, n, cols);
    if (rc != 0)
        return rc;
    const size_t bytes = gs_mat_bytes(&p.mat), n_x = (size_t)rows * (size_t)cols,
                 n_y = (size_t)rows * (size_t)n;
    float *x = gs_pages_alloc(n_x * sizeof(*x));
    p.mat.data = gs_pages_alloc(bytes);
    p.act = (gs_act){rows, cols, gs_aligned(64, gs_act_bytes(rows, cols))};
    p.y = gs_pages_alloc(n_y * sizeof(*p.y));
    rc = x && p.mat.data && p.act.data && p.y ? 0 : GS_ERR_NOMEM;
    if (rc == 0) {
        memset(p.mat.data, 0, bytes); /* pages of its own */
        for (size_t i = 0; i < n_x; i++)
            x[i] = (float)(i % 17) - 8.0f;
        gs_act_quant(&p.act, x, cols, 0, rows, gs_act_need(type));
        gs_timed_run(m->pool, multiply, &p);
        for (int i = 0; i < RUNS; i++)
            v[i] = gs_timed_run(m->pool, multiply, &p);
        *s = gs_median(v, RUNS);
    }
    gs_pages_free(x, n_x * sizeof(*x));
    gs_pages_free(p.mat.data, bytes);
    gs_free(p.act.data);
    gs_pages_free(p.y, n_y * sizeof(*p.y));
    return rc;
}

static const rate *rate_of(machine *m, gs_qtype type) {
    rate *r = &m->rates[m->width][type];
    const int32_t cols = widths[m->width], rows = TOKEN_SIZE / cols;
    double s;
    if (r->known)
        return r;
    r->known = true;
    if (time_product(m, type, rows, cols, 1, &s) == 0)
        r->token_s = s / TOKEN_SIZE;
    if (time_product(m, type, CHUNK_ROWS, cols, PROMPT_ROWS, &s) == 0)
        r->prompt_s = s / CHUNK_ROWS / cols / PROMPT_ROWS;
    return r;
}

static void set_width(machine *m, int32_t n_embd) {
    for (int i = 0; i < N_WIDTHS; i++)
        if (i == 0 || widths[i] <= n_embd)
            m->width = i;
}

static void wait_for_all(void *arg, int tid, int n) {
    (void)n;
    for (int i = 0; i < BARRIER_RUNS; i++)
        gs_pool_barrier(arg, tid);
}

static int measure(machine *m, const gs_config *cfg, char *err, size_t errlen) {
    double v[RUNS];
    int rc = gs_kernels_init(cfg->engine_isa, err, errlen);
    if (rc != 0)
        return rc;
    m->pool = gs_pool_create(cfg->engine_threads, cfg->engine_pin);
    if (!m->pool)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "could not start the compute threads");
    m->top = gs_ceilings_measure(m->pool);
    m->memory = gs_memory_available();
    for (int i = 0; i < RUNS; i++)
        v[i] = gs_timed_run(m->pool, wait_for_all, m->pool);
    m->barrier_s = gs_median(v, RUNS) / BARRIER_RUNS;
    return 0;
}

/* ---- A model -----------------------------------------------------------------------------------
 */

/* Weights that each token is multiplied with, and those of the output matrix. */
typedef struct load {
    double n, token_s, prompt_s; /* of the layers */
    double output_s;             /* of one row */
    double bytes;                /* of all weights in memory */
} load;

typedef struct prediction {
    double ttft_ms[N_USES], tpot_ms[N_USES];
    double bytes; /* weights and the cache of one chat */
    bool fits;
    bool holds[N_USES];
} prediction;

static void add_weights(machine *m, load *l, gs_qtype type, double n) {
    const rate *r = rate_of(m, type);
    const gs_qtype_info *q = gs_qtype_get(type);
    l->n += n;
    l->token_s += n * r->token_s;
    l->prompt_s += n * r->prompt_s;
    l->bytes += n * q->block_bytes / q->block_elems;
}

static void add_output(machine *m, load *l, gs_qtype type, double n, bool counts) {
    const gs_qtype_info *q = gs_qtype_get(type);
    l->output_s = n * rate_of(m, type)->token_s;
    if (counts)
        l->bytes += n * q->block_bytes / q->block_elems;
}

static load load_of_shape(machine *m, const shape *s, gs_qtype type) {
    load l = {0};
    const double d = s->n_embd, q = (double)s->n_heads * s->head_dim,
                 kv = (double)s->n_kv_heads * s->head_dim;
    const double vocab = d * s->n_vocab;
    set_width(m, s->n_embd);
    const gs_qtype_info *info = gs_qtype_get(type);
    add_weights(m, &l, type, s->n_layers * (2 * d * q + 2 * d * kv + 3 * d * (double)s->n_ff));
    l.bytes += vocab * info->block_bytes / info->block_elems;
    add_output(m, &l, type, vocab, !s->tied);
    return l;
}

static prediction predict(const machine *m, const shape *s, const load *l,
                          const gs_engine_settings *set) {
    prediction p = {.bytes = l->bytes};
    const double kv = 2.0 * s->n_kv_heads * s->head_dim * KV_BYTES * s->n_layers;
    const double barriers = BARRIERS * m->barrier_s * s->n_layers;
    for (int i = 0; i < N_USES; i++) {
        const struct use *u = &uses[i];
        const gs_class_config *c = &set->classes[u->cls];
        /* Two products of all queries with what is before them, the new tokens among it. */
        const double before = u->context - u->prompt / 2.0;
        const double ops = 4.0 * s->n_heads * s->head_dim * before * u->prompt * s->n_layers;
        const double attention = m->top.gops > 0 ? ops * ATTENTION_SLOWER / m->top.gops * 1e-9 : 0;
        const int32_t steps = (u->prompt + PROMPT_ROWS - 1) / PROMPT_ROWS;
        p.ttft_ms[i] = START_MS + 1e3 * (PROMPT_REST * l->prompt_s * u->prompt + attention +
                                         l->output_s + steps * barriers);
        p.tpot_ms[i] = 1e3 * (TOKEN_REST * (l->token_s + l->output_s) +
                              kv * u->context / (m->top.gbs * 1e9) + barriers) +
                       SEND_MS;
        p.holds[i] =
            p.ttft_ms[i] <= (double)c->ttft_ns / 1e6 && p.tpot_ms[i] <= (double)c->tpot_ns / 1e6;
    }
    p.bytes += kv * uses[N_USES - 1].context;
    p.fits = p.bytes <= (double)m->memory;
    return p;
}

/* ---- Files --------------------------------------------------------------------------------------
 */

struct adding {
    machine *m;
    load *l;
};

static void add_matrix(void *arg, const gs_matrix_use *u) {
    const struct adding *a = arg;
    if (u->output)
        add_output(a->m, a->l, u->type, u->n, true);
    if (u->layer) {
        add_weights(a->m, a->l, u->type, u->n * u->part);
        a->l->bytes += (double)u->bytes * (1.0 - u->part);
    }
    if (!u->output && !u->layer)
        a->l->bytes += (double)u->bytes;
}

/* A file's own shape, and the types of its own matrices. */
static int load_of_file(machine *m, const char *path, shape *s, load *l, char *err, size_t errlen) {
    gs_gguf *g = NULL;
    gs_hparams hp;
    int rc = gs_gguf_open(path, &g, err, errlen);
    if (rc != 0)
        return rc;
    rc = gs_hparams_read(g, &hp, err, errlen);
    if (rc == 0 && hp.encoder)
        rc = gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "%s: encoders have no first token", path);
    if (rc != 0) {
        gs_gguf_close(g);
        return rc;
    }
    char name[GS_MODEL_NAME_BYTES];
    gs_model_name_of_path(path, name);
    *s = (shape){.n_layers = hp.n_layers,
                 .n_embd = hp.n_embd,
                 .n_ff = hp.n_ff,
                 .n_heads = hp.n_heads,
                 .n_kv_heads = hp.n_kv_heads,
                 .head_dim = hp.head_dim,
                 .n_vocab = hp.n_vocab,
                 .tied = !gs_gguf_tensor_find(g, "output.weight")};
    snprintf(s->name, sizeof(s->name), "%.63s", name);
    *l = (load){0};
    set_width(m, hp.n_embd);
    struct adding a = {m, l};
    gs_each_matrix(g, &hp, add_matrix, &a);
    gs_gguf_close(g);
    return 0;
}

/* ---- What is said -------------------------------------------------------------------------------
 */

static void key_num(gs_jsonw *w, const char *key, double v) {
    gs_jsonw_key(w, key);
    gs_jsonw_num(w, v);
}

static void write_json(gs_jsonw *w, const shape *s, const char *type, const prediction *p) {
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "model");
    gs_jsonw_str(w, s->name);
    gs_jsonw_key(w, "quantization");
    gs_jsonw_str(w, type);
    key_num(w, "memory_mb", p->bytes / 1e6);
    gs_jsonw_key(w, "fits");
    gs_jsonw_bool(w, p->fits);
    for (int i = 0; i < N_USES; i++) {
        gs_jsonw_key(w, uses[i].name);
        gs_jsonw_obj(w);
        gs_jsonw_key(w, "new_prompt_tokens");
        gs_jsonw_int(w, uses[i].prompt);
        gs_jsonw_key(w, "context_tokens");
        gs_jsonw_int(w, uses[i].context);
        key_num(w, "ttft_ms", p->ttft_ms[i]);
        key_num(w, "tpot_ms", p->tpot_ms[i]);
        gs_jsonw_key(w, "holds");
        gs_jsonw_bool(w, p->fits && p->holds[i]);
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_obj(w);
}

static void print_row(const shape *s, const char *type, const prediction *p) {
    printf("%-28s %-6s %8.0f MB", s->name, type, p->bytes / 1e6);
    for (int i = 0; i < N_USES; i++)
        printf("  %7.0f ms %6.1f ms %-4s", p->ttft_ms[i], p->tpot_ms[i],
               !p->fits      ? "-"
               : p->holds[i] ? "yes"
                             : "no");
    printf("%s\n", p->fits ? "" : "  does not fit");
}

static void say(const shape *s, const char *type, const prediction *p, gs_jsonw *w, bool json) {
    if (json)
        write_json(w, s, type, p);
    else
        print_row(s, type, p);
}

static void print_head(const machine *m) {
    printf(
        "This machine: %d threads (%s), %.1f GB/s from memory, %.0f int8 Gop/s, %.1f GB free.\n"
        "First token and time per token, for a spoken question (%d new tokens) and a chat (%d);\n"
        "yes: within the targets of class_voice and class_chat.\n\n%-28s %-6s %11s",
        gs_pool_threads(m->pool), gs_isa_name(gs_kernels_isa()), m->top.gbs, m->top.gops,
        (double)m->memory / 1e9, uses[0].prompt, uses[1].prompt, "MODEL", "TYPE", "MEMORY");
    for (int i = 0; i < N_USES; i++)
        printf("  %-25s", uses[i].name);
    printf("\n");
}

static int say_all(machine *m, const gs_engine_settings *set, char **files, int n_files, bool json,
                   gs_jsonw *w, char *err, size_t errlen) {
    int rc = 0;
    for (int i = 0; i < n_files && rc == 0; i++) {
        shape s;
        load l;
        rc = load_of_file(m, files[i], &s, &l, err, errlen);
        if (rc == 0) {
            const prediction p = predict(m, &s, &l, set);
            say(&s, "file", &p, w, json);
        }
    }
    for (int i = 0; n_files == 0 && i < N_SHAPES; i++)
        for (int k = 0; k < N_TYPES; k++) {
            const load l = load_of_shape(m, &shapes[i], types[k]);
            const prediction p = predict(m, &shapes[i], &l, set);
            say(&shapes[i], gs_qtype_get(types[k])->name, &p, w, json);
        }
    return rc;
}

int gs_models_recommend(const gs_config *cfg, char **files, int n_files, bool json, char *err,
                        size_t errlen) {
    machine m = {0};
    gs_engine_settings set;
    gs_buf out = {0};
    gs_jsonw w;
    int rc = gs_settings_read(cfg, &set, err, errlen);
    if (rc == 0)
        rc = measure(&m, cfg, err, errlen);
    gs_jsonw_init(&w, &out);
    gs_jsonw_obj(&w);
    if (rc == 0) {
        key_num(&w, "memory_gb_per_s", m.top.gbs);
        key_num(&w, "int8_gops", m.top.gops);
        key_num(&w, "free_gb", (double)m.memory / 1e9);
        gs_jsonw_key(&w, "threads");
        gs_jsonw_int(&w, gs_pool_threads(m.pool));
        if (!json)
            print_head(&m);
        gs_jsonw_key(&w, "models");
        gs_jsonw_arr(&w);
        rc = say_all(&m, &set, files, n_files, json, &w, err, errlen);
        gs_jsonw_end_arr(&w);
    }
    gs_jsonw_end_obj(&w);
    if (rc == 0 && json)
        printf("%.*s\n", (int)out.len, out.data ? out.data : "");
    gs_buf_deinit(&out);
    gs_pool_free(m.pool);
    return rc;
}
