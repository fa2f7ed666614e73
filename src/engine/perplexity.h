/*
 * Perplexity of a text under a backend, the way llama.cpp counts it: chunks without overlap, the
 * predictions of each chunk's second half (its last position, which has no successor inside the
 * chunk, excluded), exp of the mean negative log-likelihood.
 */
#ifndef GS_ENGINE_PERPLEXITY_H
#define GS_ENGINE_PERPLEXITY_H

#include "engine/backend.h"

typedef struct gs_perplexity_result {
    int32_t n_chunks;
    int64_t n_predictions;
    double perplexity; /* so far, in the callback */
} gs_perplexity_result;

/* After each chunk, with what was counted so far. */
typedef void (*gs_perplexity_fn)(void *arg, const gs_perplexity_result *so_far);

/*
 * ids[n]: the text's tokens without BOS. bos >= 0 replaces the first token of each chunk. chunk:
 * even, 512 by convention. Uses KV blocks 0, 1, ... of the backend, so nothing else may run on
 * it. GS_ERR_INVALID: less than one chunk of text, or an odd or tiny chunk; GS_ERR_CONTEXT: the
 * backend has no room for a chunk.
 */
int gs_perplexity(gs_backend *b, const int32_t *ids, int32_t n, int32_t chunk, int32_t bos,
                  gs_perplexity_fn fn, void *arg, gs_perplexity_result *out, char *err,
                  size_t errlen);

#endif
