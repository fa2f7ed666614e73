/* Perplexity over any backend that gives logits. See perplexity.h. */
#include "engine/perplexity.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "kernels/kernels.h"

#define PIECE_TOKENS 32 /* bounds the memory for logits */

typedef struct run {
    gs_backend *b;
    gs_backend_info info;
    int32_t piece, n_blocks;
    int32_t *tokens;  /* [chunk] */
    uint32_t *blocks; /* [n_blocks] 0, 1, ... */
    float *logits;    /* [piece][n_vocab] */
    double nll;
    int64_t count;
} run;

static void count_row(run *r, const float *logits, int32_t next) {
    float max, lse;
    gs_logsumexp(logits, r->info.n_vocab, &max, &lse);
    r->nll -= (double)logits[next] - (double)max - (double)lse;
    r->count++;
}

static int run_chunk(run *r, int32_t chunk) {
    for (int32_t pos = 0; pos < chunk; pos += r->piece) {
        int32_t n = chunk - pos < r->piece ? chunk - pos : r->piece;
        bool wanted = pos + n > chunk / 2;
        gs_batch_item item = {.pos = pos,
                              .n_tokens = n,
                              .tokens = r->tokens + pos,
                              .blocks = r->blocks,
                              .n_blocks = r->n_blocks,
                              .logits = wanted ? r->logits : NULL,
                              .n_logits = wanted ? n : 0};
        gs_batch batch = {.n_items = 1, .n_tokens = n, .items = &item};
        int rc = r->b->ops->forward(r->b, &batch);
        if (rc != GS_OK)
            return rc;
        for (int32_t i = 0; i < n; i++)
            if (pos + i >= chunk / 2 && pos + i < chunk - 1)
                count_row(r, r->logits + (int64_t)i * r->info.n_vocab, r->tokens[pos + i + 1]);
    }
    return GS_OK;
}

static int run_alloc(run *r, int32_t chunk) {
    r->tokens = gs_array((size_t)chunk, sizeof *r->tokens);
    r->blocks = gs_array((size_t)r->n_blocks, sizeof *r->blocks);
    r->logits = gs_array((size_t)r->piece * (size_t)r->info.n_vocab, sizeof *r->logits);
    if (!r->tokens || !r->blocks || !r->logits)
        return GS_ERR_NOMEM;
    for (int32_t i = 0; i < r->n_blocks; i++)
        r->blocks[i] = (uint32_t)i;
    return GS_OK;
}

int gs_perplexity(gs_backend *b, const int32_t *ids, int32_t n, int32_t chunk, int32_t bos,
                  gs_perplexity_fn fn, void *arg, gs_perplexity_result *out, char *err,
                  size_t errlen) {
    run r = {.b = b};
    *out = (gs_perplexity_result){0};
    b->ops->info(b, &r.info);
    if (chunk < 4 || chunk % 2 != 0 || n < chunk)
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "the text has %d tokens, but a chunk takes %d (even, at least 4)", n, chunk);
    r.n_blocks = (chunk + r.info.block_tokens - 1) / r.info.block_tokens;
    if (chunk > r.info.max_context || (uint32_t)r.n_blocks > r.info.n_kv_blocks)
        return gs_fail(err, errlen, GS_ERR_CONTEXT, "a chunk of %d tokens does not fit the context",
                       chunk);
    r.piece = r.info.max_batch_tokens < PIECE_TOKENS ? r.info.max_batch_tokens : PIECE_TOKENS;
    int rc = run_alloc(&r, chunk);
    if (rc != GS_OK)
        rc = gs_fail(err, errlen, rc, "out of memory for the logits");
    for (int32_t c = 0; rc == GS_OK && c < n / chunk; c++) {
        memcpy(r.tokens, ids + (int64_t)c * chunk, (size_t)chunk * sizeof *ids);
        if (bos >= 0)
            r.tokens[0] = bos;
        rc = run_chunk(&r, chunk);
        if (rc != GS_OK) {
            rc = gs_fail(err, errlen, rc, "chunk %d failed: %s", c + 1, gs_err_text(rc));
            break;
        }
        *out = (gs_perplexity_result){c + 1, r.count, exp(r.nll / (double)r.count)};
        if (fn)
            fn(arg, out);
    }
    gs_free(r.tokens);
    gs_free(r.blocks);
    gs_free(r.logits);
    return rc;
}
