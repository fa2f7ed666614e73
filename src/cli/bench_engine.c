/*
 * gamasot bench --engine: rates of the backend alone, without HTTP and scheduler. Decode: tokens/s
 * over all streams of a batch whose streams each have a context already; prefill: tokens/s of one
 * prompt in chunks. One line of JSON per cell, so that scripts can set runs side by side.
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

#define MAX_CELLS 64

enum { FLAG_ENGINE, FLAG_DECODE, FLAG_PREFILL, FLAG_CONTEXT, FLAG_STEPS, N_FLAGS };

typedef struct bench {
    gs_backend *b;
    gs_backend_info info;
    int32_t *tokens;  /* [max_context], random */
    uint32_t *blocks; /* [n_kv_blocks]: block i is block i */
    gs_sampler sampler;
    gs_batch_item *items; /* [max_seqs] */
    gs_sample *samples;   /* [max_seqs] */
} bench;

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

static int decode_step(bench *x, int32_t n_streams, int32_t pos, int32_t stride) {
    for (int32_t s = 0; s < n_streams; s++)
        x->items[s] = (gs_batch_item){.slot = s,
                                      .pos = pos,
                                      .n_tokens = 1,
                                      .tokens = x->tokens + pos + s % 7,
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

static int bench_decode(bench *x, int32_t n_streams, int32_t context, int32_t steps, char *err,
                        size_t errlen) {
    int32_t stride = blocks_for(x, context + steps + 1);
    if (n_streams > x->info.max_seqs || context + steps + 8 > x->info.max_context ||
        (uint64_t)stride * (uint64_t)n_streams > x->info.n_kv_blocks)
        return gs_fail(err, errlen, GS_ERR_CONTEXT,
                       "%d streams of %d tokens do not fit (engine.max_seqs, model.context, "
                       "kv.memory_mb)",
                       n_streams, context + steps);
    int rc = 0;
    for (int32_t s = 0; s < n_streams && rc == 0; s++)
        rc = prefill(x, (uint32_t)(s * stride), 0, context);
    if (rc == 0)
        rc = decode_step(x, n_streams, context, stride);
    int64_t began_ns = gs_now_ns();
    for (int32_t i = 1; i <= steps && rc == 0; i++)
        rc = decode_step(x, n_streams, context + i, stride);
    double s = (double)(gs_now_ns() - began_ns) / 1e9;
    if (rc == 0)
        printf("{\"test\":\"decode\",\"streams\":%d,\"context\":%d,\"steps\":%d,\"step_ms\":%.4f,"
               "\"tok_s\":%.2f}\n",
               n_streams, context, steps, 1e3 * s / steps, n_streams * steps / s);
    return rc ? gs_fail(err, errlen, rc, "a step failed: %s", gs_err_text(rc)) : 0;
}

static int bench_prefill(bench *x, int32_t n, char *err, size_t errlen) {
    if (n > x->info.max_context || blocks_for(x, n) > (int32_t)x->info.n_kv_blocks)
        return gs_fail(err, errlen, GS_ERR_CONTEXT, "a prompt of %d tokens does not fit", n);
    int64_t began_ns = gs_now_ns();
    int rc = prefill(x, 0, 0, n);
    double s = (double)(gs_now_ns() - began_ns) / 1e9;
    if (rc == 0)
        printf("{\"test\":\"prefill\",\"tokens\":%d,\"ms\":%.3f,\"tok_s\":%.2f}\n", n, 1e3 * s,
               n / s);
    return rc ? gs_fail(err, errlen, rc, "a step failed: %s", gs_err_text(rc)) : 0;
}

static int run_cells(bench *x, const gs_config_flag *flags, char *err, size_t errlen) {
    int32_t batches[MAX_CELLS], prompts[MAX_CELLS], contexts[MAX_CELLS], steps[MAX_CELLS];
    int n_b = read_list(&flags[FLAG_DECODE], "1,2,4,8,16,32", batches, err, errlen);
    int n_p = read_list(&flags[FLAG_PREFILL], "128,512", prompts, err, errlen);
    int n_c = read_list(&flags[FLAG_CONTEXT], "128", contexts, err, errlen);
    int n_s = read_list(&flags[FLAG_STEPS], "32", steps, err, errlen);
    if (n_b < 0 || n_p < 0 || n_c < 0 || n_s < 0)
        return GS_ERR_INVALID;
    int rc = 0;
    for (int i = 0; i < n_p && rc == 0; i++)
        rc = bench_prefill(x, prompts[i], err, errlen);
    for (int c = 0; c < n_c && rc == 0; c++) {
        for (int i = 0; i < n_b && rc == 0; i++)
            rc = bench_decode(x, batches[i], contexts[c], n_s > 0 ? steps[0] : 32, err, errlen);
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
    if (!x->tokens || !x->blocks || !x->items || !x->samples)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    for (int32_t i = 0; i < x->info.max_context + 8; i++)
        x->tokens[i] = (int32_t)gs_rng_below(&rng, (uint64_t)x->info.n_vocab);
    for (uint32_t i = 0; i < x->info.n_kv_blocks; i++)
        x->blocks[i] = i;
    return 0;
}

static int bench_run(gs_config *cfg, const gs_config_flag *flags, char *err, size_t errlen) {
    gs_loader loader = {.cfg = cfg, .quiet = true, .no_calibration = true};
    bench x = {0};
    int rc = gs_loader_open(&loader, &x.b, err, errlen);
    if (rc == 0)
        rc = prepare(&x, err, errlen);
    if (rc == 0)
        rc = run_cells(&x, flags, err, errlen);
    gs_free(x.tokens);
    gs_free(x.blocks);
    gs_free(x.items);
    gs_free(x.samples);
    if (x.b)
        x.b->ops->destroy(x.b);
    gs_loader_close(&loader);
    return rc;
}

int gs_cmd_bench(int argc, char **argv) {
    gs_config_flag flags[N_FLAGS] = {
        [FLAG_ENGINE] = {"engine", NULL, "measure the backend alone (no server)", NULL},
        [FLAG_DECODE] = {"decode", "LIST", "numbers of streams (1,2,4,8,16,32)", NULL},
        [FLAG_PREFILL] = {"prefill", "LIST", "prompt lengths (128,512)", NULL},
        [FLAG_CONTEXT] = {"depth", "LIST", "tokens each stream has already (128)", NULL},
        [FLAG_STEPS] = {"steps", "N", "decode steps per cell (32)", NULL},
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
