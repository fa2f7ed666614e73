#include "load/prompt.h"

#include <math.h>
#include <string.h>

#include <xxhash.h>

#include "base/rng.h"

/* Common enough to be one token each, with the space before it, in current vocabularies. */
static const char *const vocabulary[] = {
    "water",  "garden",  "table",  "light",   "river",   "stone",  "music",  "paper",  "green",
    "house",  "window",  "street", "summer",  "winter",  "bread",  "apple",  "horse",  "ocean",
    "cloud",  "forest",  "bridge", "train",   "letter",  "school", "friend", "sister", "brother",
    "mother", "father",  "child",  "morning", "evening", "night",  "week",   "month",  "year",
    "story",  "picture", "color",  "sound",   "voice",   "field",  "road",   "town",   "city",
    "world",  "earth",   "fire",   "wind",    "rain",    "snow",   "sun",    "moon",   "star",
    "tree",   "leaf",    "flower", "seed",    "bird",    "fish",   "dog",    "cat",    "hand",
    "head",   "heart",   "door",   "wall",    "floor",
};
#define N_WORDS (sizeof vocabulary / sizeof vocabulary[0])

void gs_prompt_words(uint64_t name, int32_t n, gs_buf *out) {
    gs_rng rng;
    gs_rng_seed(&rng, name);
    for (int32_t i = 0; i < (n > 0 ? n : 1); i++) {
        if (i > 0)
            gs_buf_char(out, ' ');
        gs_buf_str(out, vocabulary[gs_rng_below(&rng, N_WORDS)]);
    }
}

static uint64_t named(const gs_prompts *p, const char *name, uint64_t part) {
    return XXH64(name, strlen(name), p->salt + part * 0x9e3779b97f4a7c15u);
}

static int32_t words_for(const gs_prompts *p, int32_t tokens) {
    return (int32_t)lround(tokens / p->tokens_per_word);
}

void gs_prompt_new(const gs_prompts *p, const gs_trace_request *q, gs_buf *out) {
    gs_prompt_words(named(p, q->id, 0), words_for(p, q->n_prompt - q->n_prefix), out);
}

void gs_prompt_prefix(const gs_prompts *p, const gs_trace_request *q, gs_buf *out) {
    if (q->n_prefix > 0 && q->shared_prefix)
        gs_prompt_words(named(p, q->shared_prefix, 0), words_for(p, q->n_prefix), out);
}

void gs_prompt_blocks(const gs_prompts *p, const gs_trace_request *q, gs_buf *out) {
    int32_t done = 0;
    for (int32_t i = 0; i < q->n_blocks && done < q->n_prompt; i++) {
        const int32_t n =
            q->n_prompt - done < q->block_tokens ? q->n_prompt - done : q->block_tokens;
        gs_prompt_words(q->blocks[i] ^ p->salt, words_for(p, n), out);
        gs_buf_char(out, ' ');
        done += n;
    }
    if (done < q->n_prompt)
        gs_prompt_words(named(p, q->id, 0), words_for(p, q->n_prompt - done), out);
}

void gs_prompt_text(const gs_prompts *p, const gs_trace_request *q, int32_t i, gs_buf *out) {
    gs_prompt_words(named(p, q->id, (uint64_t)i + 1), words_for(p, q->n_prompt), out);
}
