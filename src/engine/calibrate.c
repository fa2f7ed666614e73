#include "engine/calibrate.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"

typedef struct probe_run {
    gs_backend *b;
    gs_backend_info info;
    int32_t *tokens;  /* [max_batch_tokens] */
    uint32_t *blocks; /* [n_blocks]: block i is block i */
    int32_t n_blocks;
} probe_run;

static int run_probe(const probe_run *x, const gs_cost_probe *p, int64_t *elapsed_ns) {
    gs_sampler sampler;
    gs_sample sample = {0};
    gs_sampler_default(&sampler);
    sampler.temperature = 0;
    gs_batch_item it = {.pos = p->pos,
                        .n_tokens = p->n_tokens,
                        .tokens = x->tokens,
                        .blocks = x->blocks,
                        .n_blocks = (p->pos + p->n_tokens + x->info.block_tokens - 1) /
                                    x->info.block_tokens,
                        .sampler = p->sample ? &sampler : NULL,
                        .history = x->tokens,
                        .n_history = p->n_tokens,
                        .n_prompt = p->n_tokens,
                        .sample = p->sample ? &sample : NULL};
    gs_batch batch = {.n_items = 1,
                      .n_tokens = p->n_tokens,
                      .items = &it,
                      .max_threads = p->half ? x->info.n_threads / 2 : 0};
    int64_t began_ns = gs_now_ns();
    int rc = x->b->ops->forward(x->b, &batch);
    *elapsed_ns = gs_now_ns() - began_ns;
    return rc;
}

int gs_calibrate(gs_backend *b, gs_cost *cost, bool verify, bool *differs, bool (*busy)(void *),
                 void *busy_arg) {
    probe_run x = {.b = b};
    b->ops->info(b, &x.info);
    /* What the pool can hold bounds the depth that is timed. */
    int64_t room = (int64_t)x.info.n_kv_blocks * x.info.block_tokens;
    int32_t context = room < x.info.max_context ? (int32_t)room : x.info.max_context;
    int32_t most = x.info.max_batch_tokens < context ? x.info.max_batch_tokens : context;
    x.n_blocks = (context + x.info.block_tokens - 1) / x.info.block_tokens;
    x.tokens = gs_calloc((size_t)most, sizeof(*x.tokens));
    x.blocks = gs_array((size_t)x.n_blocks, sizeof(*x.blocks));
    int rc = x.tokens && x.blocks ? 0 : GS_ERR_NOMEM;
    /* Not all the same: a mixture would give them to the same few experts. */
    for (int32_t i = 0; rc == 0 && i < most; i++)
        x.tokens[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)x.info.n_vocab);
    for (int32_t i = 0; rc == 0 && i < x.n_blocks; i++)
        x.blocks[i] = (uint32_t)i;
    gs_cost_calibration k;
    gs_cost_probe probe;
    /* An encoder begins each prompt at its first token: no step is timed at a depth. */
    gs_cost_calibrate_begin(&k, cost, most, x.info.whole_prompts ? 0 : context, x.info.n_threads,
                            verify);
    while (rc == 0 && gs_cost_calibrate_next(&k, cost, &probe)) {
        int64_t elapsed_ns = 0;
        if (busy && busy(busy_arg)) {
            rc = GS_ERR_CANCELLED;
            break;
        }
        rc = run_probe(&x, &probe, &elapsed_ns);
        if (rc == 0)
            gs_cost_calibrate_add(&k, cost, elapsed_ns);
    }
    if (differs)
        *differs = k.differs;
    gs_free(x.tokens);
    gs_free(x.blocks);
    return rc;
}
