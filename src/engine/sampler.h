/*
 * Sampling: logits -> one token. Pure functions over one row of logits; any thread, each with its
 * own scratch. Parameters are per sequence and immutable, and the random number of an output
 * position depends only on (seed, position), so that a preempted or re-run sequence draws the
 * same token again.
 *
 * Order: mask, logit_bias, repetition / presence / frequency penalties, DRY, then greedy when
 * temperature is 0 (exact arg-max, lowest id on ties); else top-k, typical, top-p, min-p on the
 * untempered distribution, then temperature, then the draw. The reported log-probabilities are of
 * the distribution before any of that (raw log-softmax), as OpenAI's API has them.
 * Sources: nucleus (Holtzman 2020), typical (Meister 2023), min-p (Nguyen 2024), repetition
 * penalty (Keskar 2019), DRY (p-e-w 2024).
 */
#ifndef GS_ENGINE_SAMPLER_H
#define GS_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GS_MAX_TOP_LOGPROBS 20

typedef struct gs_logit_bias {
    int32_t id;
    float bias; /* -100 or less: never */
} gs_logit_bias;

typedef struct gs_sampler {
    float temperature;      /* 0, or below 1e-5: greedy */
    int32_t top_k;          /* 0: off */
    float top_p;            /* 1: off */
    float min_p;            /* 0: off */
    float typical_p;        /* 1: off */
    float repeat_penalty;   /* 1: off; over the last repeat_last_n tokens, prompt included */
    int32_t repeat_last_n;  /* -1: all */
    float presence_penalty; /* 0: off; over the output, as OpenAI defines it */
    float frequency_penalty;
    float dry_multiplier; /* 0: off */
    float dry_base;       /* 1.75 */
    int32_t dry_allowed_length;
    uint64_t seed;
    bool ignore_eos;           /* eog tokens are never drawn */
    int32_t n_logprobs;        /* -1: none; 0..20: the chosen token's and this many best ones */
    const gs_logit_bias *bias; /* borrowed, [n_bias] */
    int32_t n_bias;
    const int32_t *eog; /* borrowed, the model's end-of-generation ids, ascending */
    int32_t n_eog;
    /* Borrowed: bit i % 32 of word i / 32 says whether token i may come, for i < n_mask; those
     * beyond may not. NULL: all may. */
    const uint32_t *mask;
    int32_t n_mask;
} gs_sampler;

void gs_sampler_default(gs_sampler *s); /* temperature 1, everything off, no logprobs */

typedef struct gs_token_prob {
    int32_t id;
    float logprob;
} gs_token_prob;

typedef struct gs_sample {
    int err; /* 0; GS_ERR_BACKEND: non-finite logits; GS_ERR_INVALID: every token is forbidden */
    bool pending; /* by the caller of the sampler: no token, for its mask is not ready yet */
    int32_t token;
    float logprob; /* of token; with n_logprobs >= 0 */
    int32_t n_top;
    gs_token_prob top[GS_MAX_TOP_LOGPROBS]; /* best first */
} gs_sample;

size_t gs_sampler_scratch_bytes(int32_t n_vocab);
/* logits[n_vocab] may be changed. history/n_history/n_prompt as in gs_batch_item. */
void gs_sampler_run(const gs_sampler *s, float *logits, int32_t n_vocab, const int32_t *history,
                    int32_t n_history, int32_t n_prompt, void *scratch, gs_sample *out);

#endif
