/*
 * gamasot bench --engine: rates of the backend alone, without HTTP and scheduler. Decode: tokens/s
 * over all streams of a batch whose streams each have a context already; prefill: tokens/s of one
 * prompt in chunks. One line of JSON per cell and round, so that scripts can set runs side by side.
 * The first line has the machine's ceilings, measured in the same process; a cell says which share
 * of them its weights' reads and products reach.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cli/cli.h"
#include "config/dirs.h"
#include "kernels/ceilings.h"

#define MAX_CELLS 64

enum { FLAG_ENGINE, FLAG_DECODE, FLAG_PREFILL, FLAG_CONTEXT, FLAG_STEPS, FLAG_ROUNDS, N_FLAGS };

/* Of the matrices that a token is multiplied with. */
typedef struct load {
    double n, bytes;
} load;

typedef struct bench {
    gs_backend *b;
    gs_backend_info info;
    int32_t *tokens;  /* [max_context], random */
    uint32_t *blocks; /* [n_kv_blocks]: block i is block i */
    gs_sampler sampler;
    gs_batch_item *items;  /* [max_seqs] */
    gs_sample *samples;    /* [max_seqs] */
    gs_kv_copy_op *copies; /* [blocks of a whole context] */
    gs_ceilings top;       /* zeroed: not known */
    load layers, output;   /* of one token */
    bool experts;          /* several tokens read more weights than one */
} bench;

static double kv_bytes_per_token(const bench *x) {
    return (double)x->info.kv_bytes / x->info.n_kv_blocks / x->info.block_tokens;
}

/* The rest of a cell's line. What a step reads is known where each of its weights is read once. */
static void print_shares(const bench *x, double s, double bytes, int32_t rows, int32_t logits,
                         int32_t round) {
    if (x->top.gbs > 0 && bytes > 0)
        printf(",\"read_share\":%.3f", bytes / s / 1e9 / x->top.gbs);
    if (x->top.gops > 0)
        printf(",\"int8_share\":%.3f",
               2.0 * (x->layers.n * rows + x->output.n * logits) / s / 1e9 / x->top.gops);
    printf(",\"round\":%d}\n", round);
}

static int read_list(const gs_config_flag *f, const char *def, int32_t *out, char *err,
                     size_t errlen) {
    const char *s = f->value ? f->value : def;
    int n = 0;
    while (*s) {
        char *end;
        long v = strtol(s, &end, 10);
        if (end == s || v < 1 || v > 1000000 || (*end && *end != ',') || n == MAX_CELLS)
            return gs_fail(err, errlen, GS_ERR_INVALID, "--%s must be numbers with commas between",
                           f->name);
        out[n++] = (int32_t)v;
        s = *end ? end + 1 : end;
    }
    return n;
}

static int32_t blocks_for(const bench *x, int32_t n_tokens) {
    return (n_tokens + x->info.block_tokens - 1) / x->info.block_tokens;
}

/* Computes positions [pos, pos + n) of the stream whose blocks start at first. */
static int prefill(bench *x, uint32_t first, int32_t pos, int32_t n) {
    for (int32_t done = 0; done < n;) {
        int32_t chunk = n - done < x->info.max_batch_tokens ? n - done : x->info.max_batch_tokens;
        bool last = done + chunk == n;
        gs_batch_item it = {.pos = pos + done,
                            .n_tokens = chunk,
                            .tokens = x->tokens + pos + done,
                            .blocks = x->blocks + first,
                            .n_blocks = blocks_for(x, pos + done + chunk),
                            .sampler = last ? &x->sampler : NULL,
                            .history = x->tokens,
                            .n_history = pos + done + chunk,
                            .n_prompt = n,
                            .sample = last ? x->samples : NULL};
        gs_batch batch = {.n_items = 1, .n_tokens = chunk, .items = &it};
        int rc = x->b->ops->forward(x->b, &batch);
        if (rc != 0)
            return rc;
        done += chunk;
    }
    return 0;
}

/* A token of each stream's own: equal ones would all be given to the same experts. */
static const int32_t *stream_token(const bench *x, int32_t stream, int32_t pos) {
    return x->tokens + (pos + 37 * (int64_t)stream) % x->info.max_context;
}

static int decode_step(bench *x, int32_t n_streams, int32_t pos, int32_t stride) {
    for (int32_t s = 0; s < n_streams; s++)
        x->items[s] = (gs_batch_item){.slot = s,
                                      .pos = pos,
                                      .n_tokens = 1,
                                      .tokens = stream_token(x, s, pos),
                                      .blocks = x->blocks + s * stride,
                                      .n_blocks = blocks_for(x, pos + 1),
                                      .sampler = &x->sampler,
                                      .history = x->tokens,
                                      .n_history = pos + 1,
                                      .n_prompt = pos + 1,
                                      .sample = &x->samples[s]};
    gs_batch batch = {.n_items = n_streams, .n_tokens = n_streams, .items = x->items};
    return x->b->ops->forward(x->b, &batch);
}

/* Computes a context once and copies its pages to the other streams: every stream has pages of its
 * own, and 32 contexts of 4,096 tokens do not take minutes to make. */
static int make_contexts(bench *x, int32_t n_streams, int32_t context, int32_t stride) {
    int rc = prefill(x, 0, 0, context);
    int32_t used = blocks_for(x, context);
    for (int32_t s = 1; s < n_streams && rc == 0; s++) {
        for (int32_t i = 0; i < used; i++)
            x->copies[i] =
                (gs_kv_copy_op){(uint32_t)(s * stride + i), (uint32_t)i, x->info.block_tokens};
        gs_batch_item it = {.pos = context,
                            .n_tokens = 1,
                            .tokens = x->tokens + context,
                            .blocks = x->blocks + s * stride,
                            .n_blocks = blocks_for(x, context + 1)};
        gs_batch batch = {
            .n_items = 1, .n_tokens = 1, .items = &it, .copies = x->copies, .n_copies = used};
        rc = x->b->ops->forward(x->b, &batch);
    }
    return rc;
}

static int check_fit(const bench *x, int32_t n_streams, int32_t context, int32_t steps, char *err,
                     size_t errlen) {
    int32_t stride = blocks_for(x, context + steps + 1);
    if (n_streams > x->info.max_seqs || context + steps + 8 > x->info.max_context ||
        (uint64_t)stride * (uint64_t)n_streams > x->info.n_kv_blocks)
        return gs_fail(err, errlen, GS_ERR_CONTEXT,
                       "%d streams of %d tokens do not fit (engine.max_seqs, model.context, "
                       "kv.memory_mb)",
                       n_streams, context + steps);
    return 0;
}

static int bench_decode(bench *x, int32_t n_streams, int32_t context, int32_t steps, int32_t round,
                        char *err, size_t errlen) {
    int32_t stride = blocks_for(x, context + steps + 1);
    int rc = decode_step(x, n_streams, context, stride);
    int64_t began_ns = gs_now_ns();
    for (int32_t i = 1; i <= steps && rc == 0; i++)
        rc = decode_step(x, n_streams, context + i, stride);
    double s = (double)(gs_now_ns() - began_ns) / 1e9;
    if (rc == 0) {
        printf("{\"test\":\"decode\",\"streams\":%d,\"context\":%d,\"steps\":%d,\"step_ms\":%.4f,"
               "\"tok_s\":%.2f",
               n_streams, context, steps, 1e3 * s / steps, n_streams * steps / s);
        const bool once = !x->experts || n_streams == 1;
        const double kv = kv_bytes_per_token(x) * n_streams * (context + steps / 2.0);
        print_shares(x, s / steps, once ? x->layers.bytes + x->output.bytes + kv : 0, n_streams,
                     n_streams, round);
    }
    return rc ? gs_fail(err, errlen, rc, "a step failed: %s", gs_err_text(rc)) : 0;
}

static int bench_prefill(bench *x, int32_t n, int32_t round, char *err, size_t errlen) {
    if (n > x->info.max_context || blocks_for(x, n) > (int32_t)x->info.n_kv_blocks)
        return gs_fail(err, errlen, GS_ERR_CONTEXT, "a prompt of %d tokens does not fit", n);
    int64_t began_ns = gs_now_ns();
    int rc = prefill(x, 0, 0, n);
    double s = (double)(gs_now_ns() - began_ns) / 1e9;
    if (rc == 0) {
        printf("{\"test\":\"prefill\",\"tokens\":%d,\"ms\":%.3f,\"tok_s\":%.2f", n, 1e3 * s, n / s);
        print_shares(x, s, 0, n, 1, round);
    }
    return rc ? gs_fail(err, errlen, rc, "a step failed: %s", gs_err_text(rc)) : 0;
}

typedef struct cells {
    int32_t batches[MAX_CELLS], prompts[MAX_CELLS], contexts[MAX_CELLS];
    int n_batches, n_prompts, n_contexts;
    int32_t steps, rounds;
} cells;

static int read_cells(const gs_config_flag *flags, cells *c, char *err, size_t errlen) {
    int32_t one[MAX_CELLS];
    int n;
    c->n_batches = read_list(&flags[FLAG_DECODE], "1,2,4,8,16,32,64", c->batches, err, errlen);
    c->n_prompts = read_list(&flags[FLAG_PREFILL], "128,512", c->prompts, err, errlen);
    c->n_contexts = read_list(&flags[FLAG_CONTEXT], "128", c->contexts, err, errlen);
    if (c->n_batches < 0 || c->n_prompts < 0 || c->n_contexts < 0)
        return GS_ERR_INVALID;
    if ((n = read_list(&flags[FLAG_STEPS], "32", one, err, errlen)) < 0)
        return GS_ERR_INVALID;
    c->steps = n > 0 ? one[0] : 32;
    if ((n = read_list(&flags[FLAG_ROUNDS], "1", one, err, errlen)) < 0)
        return GS_ERR_INVALID;
    c->rounds = n > 0 ? one[0] : 1;
    return 0;
}

static int run_decodes(bench *x, const cells *c, int32_t context, int32_t round, char *err,
                       size_t errlen) {
    int32_t most = 0;
    int rc = 0;
    for (int i = 0; i < c->n_batches; i++)
        most = c->batches[i] > most ? c->batches[i] : most;
    if (most > 0)
        rc = check_fit(x, most, context, c->steps, err, errlen);
    if (most == 0 || rc != 0)
        return rc;
    rc = make_contexts(x, most, context, blocks_for(x, context + c->steps + 1));
    if (rc != 0)
        return gs_fail(err, errlen, rc, "a step failed: %s", gs_err_text(rc));
    for (int i = 0; i < c->n_batches && rc == 0; i++)
        rc = bench_decode(x, c->batches[i], context, c->steps, round, err, errlen);
    return rc;
}

static int run_cells(bench *x, const gs_config_flag *flags, char *err, size_t errlen) {
    cells c = {0};
    int rc = read_cells(flags, &c, err, errlen);
    if (rc == 0)
        printf("{\"test\":\"model\",\"kv_bytes_per_token\":%.1f,\"read_gbs\":%.1f,"
               "\"int8_gops\":%.0f}\n",
               kv_bytes_per_token(x), x->top.gbs, x->top.gops);
    for (int32_t r = 0; r < c.rounds && rc == 0; r++) {
        for (int i = 0; i < c.n_prompts && rc == 0; i++)
            rc = bench_prefill(x, c.prompts[i], r, err, errlen);
        for (int i = 0; i < c.n_contexts && rc == 0; i++)
            rc = run_decodes(x, &c, c.contexts[i], r, err, errlen);
        fflush(stdout);
    }
    return rc;
}

static int prepare(bench *x, char *err, size_t errlen) {
    gs_rng rng;
    gs_rng_seed(&rng, 1);
    x->b->ops->info(x->b, &x->info);
    gs_sampler_default(&x->sampler);
    x->sampler.temperature = 0;
    x->tokens = gs_array((size_t)x->info.max_context + 8, sizeof(int32_t));
    x->blocks = gs_array(x->info.n_kv_blocks, sizeof(uint32_t));
    x->items = gs_calloc((size_t)x->info.max_seqs, sizeof(*x->items));
    x->samples = gs_calloc((size_t)x->info.max_seqs, sizeof(*x->samples));
    x->copies = gs_array((size_t)blocks_for(x, x->info.max_context), sizeof(*x->copies));
    if (!x->tokens || !x->blocks || !x->items || !x->samples || !x->copies)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    for (int32_t i = 0; i < x->info.max_context + 8; i++)
        x->tokens[i] = (int32_t)gs_rng_below(&rng, (uint64_t)x->info.n_vocab);
    for (uint32_t i = 0; i < x->info.n_kv_blocks; i++)
        x->blocks[i] = i;
    return 0;
}

static void add_matrix(void *arg, const gs_matrix_use *u) {
    bench *x = arg;
    load *l = u->output ? &x->output : &x->layers;
    if (!u->output && !u->layer)
        return;
    l->n += u->n * u->part;
    l->bytes += (double)u->bytes * u->part;
}

/* The ceilings, and what the model has to do beside them. Without compute threads of its own (the
 * fake backend) there is nothing to compare with. */
static int measure_ceilings(bench *x, const gs_loader *loader, char *err, size_t errlen) {
    gs_pool *pool = gs_loader_pool(loader);
    gs_gguf *g = NULL;
    gs_hparams hp;
    char path[GS_DIRS_MAX_PATH + 64];
    if (!pool)
        return 0;
    int rc = gs_model_path(loader->cfg, path, sizeof(path), err, errlen);
    if (rc == 0)
        rc = gs_gguf_open(path, &g, err, errlen);
    if (rc != 0)
        return rc;
    rc = gs_hparams_read(g, &hp, err, errlen);
    if (rc == 0) {
        gs_each_matrix(g, &hp, add_matrix, x);
        x->experts = hp.n_experts > 0;
        x->top = gs_ceilings_measure(pool);
    }
    gs_gguf_close(g);
    return rc;
}

static int bench_run(gs_config *cfg, const gs_config_flag *flags, char *err, size_t errlen) {
    gs_loader loader = {.cfg = cfg, .quiet = true, .no_calibration = true};
    bench x = {0};
    int rc = gs_loader_open(&loader, &x.b, err, errlen);
    if (rc == 0)
        rc = prepare(&x, err, errlen);
    if (rc == 0)
        rc = measure_ceilings(&x, &loader, err, errlen);
    if (rc == 0)
        rc = run_cells(&x, flags, err, errlen);
    gs_free(x.tokens);
    gs_free(x.blocks);
    gs_free(x.items);
    gs_free(x.samples);
    gs_free(x.copies);
    if (x.b)
        x.b->ops->destroy(x.b);
    gs_loader_close(&loader);
    return rc;
}

int gs_bench_engine(int argc, char **argv) {
    gs_config_flag flags[N_FLAGS] = {
        [FLAG_ENGINE] = {"engine", NULL, "measure the backend alone (no server)", NULL},
        [FLAG_DECODE] = {"decode", "LIST", "numbers of streams (1,2,4,8,16,32,64)", NULL},
        [FLAG_PREFILL] = {"prefill", "LIST", "prompt lengths (128,512)", NULL},
        [FLAG_CONTEXT] = {"depth", "LIST", "tokens each stream has already (128)", NULL},
        [FLAG_STEPS] = {"steps", "N", "decode steps per cell (32)", NULL},
        [FLAG_ROUNDS] = {"rounds", "N", "times to go through all cells (1)", NULL},
    };
    gs_config cfg;
    char err[512] = "";
    int rc =
        gs_cli_config(&cfg, gs_cli_command("bench"), argc, argv, flags, N_FLAGS, err, sizeof(err));
    if (rc == 0 && (!flags[FLAG_ENGINE].value || cfg.n_positional > 0))
        rc = gs_fail(err, sizeof(err), GS_ERR_INVALID, "say --engine, and options only");
    if (rc == 0) {
        gs_log_set_level(GS_LOG_WARN);
        rc = bench_run(&cfg, flags, err, sizeof(err));
    }
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return rc < 0 ? 1 : 0;
}
