#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/kernels.h"

/* How far back DRY looks, and the longest repetition it measures: the cost is bounded by both. */
#define DRY_WINDOW  1024
#define DRY_MAX_LEN 50
/* A row is drawn from in blocks of this many tokens. */
#define DRAW_BLOCK 1024
/* Below this 1/T could overflow; all mass is on the best token long before. */
#define MIN_TEMPERATURE 1e-5f

/* Scratch: a bitmap over the vocabulary, candidates [n_vocab], a copy of the row [n_vocab]. */
typedef struct scratch {
    uint64_t *seen;
    gs_token_prob *cand; /* .logprob holds logits */
    float *raw;          /* the row before penalties */
} scratch;

static size_t bitmap_words(int32_t n_vocab) {
    return ((size_t)n_vocab + 63) / 64;
}

size_t gs_sampler_scratch_bytes(int32_t n_vocab) {
    return bitmap_words(n_vocab) * sizeof(uint64_t) +
           (size_t)n_vocab * (sizeof(gs_token_prob) + sizeof(float));
}

void gs_sampler_default(gs_sampler *s) {
    *s = (gs_sampler){.temperature = 1.0f,
                      .top_p = 1.0f,
                      .typical_p = 1.0f,
                      .repeat_penalty = 1.0f,
                      .repeat_last_n = 64,
                      .dry_base = 1.75f,
                      .dry_allowed_length = 2,
                      .n_logprobs = -1};
}

/* True the first time that id is asked for. */
static bool mark(const scratch *x, int32_t id) {
    uint64_t bit = 1ULL << (id & 63);
    uint64_t *word = &x->seen[id >> 6];
    if (*word & bit)
        return false;
    *word |= bit;
    return true;
}

static void clear_marks(const scratch *x, int32_t n_vocab) {
    memset(x->seen, 0, bitmap_words(n_vocab) * sizeof(uint64_t));
}

/* ---- Penalties ---------------------------------------------------------------------------------
 */

static void apply_repeat(const gs_sampler *s, float *logits, int32_t n_vocab,
                         const int32_t *history, int32_t n_history, const scratch *x) {
    int32_t from =
        s->repeat_last_n < 0 || s->repeat_last_n > n_history ? 0 : n_history - s->repeat_last_n;
    clear_marks(x, n_vocab);
    for (int32_t i = from; i < n_history; i++) {
        int32_t id = history[i];
        if (id < 0 || id >= n_vocab || !mark(x, id))
            continue;
        /* Keskar et al. 2019: divide what is likely, multiply what is unlikely. */
        logits[id] =
            logits[id] > 0 ? logits[id] / s->repeat_penalty : logits[id] * s->repeat_penalty;
    }
}

static void apply_frequency(const gs_sampler *s, float *logits, int32_t n_vocab,
                            const int32_t *history, int32_t n_history, int32_t n_prompt,
                            const scratch *x) {
    clear_marks(x, n_vocab);
    for (int32_t i = n_prompt; i < n_history; i++) {
        int32_t id = history[i];
        if (id < 0 || id >= n_vocab)
            continue;
        logits[id] -= s->frequency_penalty;
        if (mark(x, id))
            logits[id] -= s->presence_penalty;
    }
}

/* DRY: a token that would continue a repetition of length L >= allowed costs
 * multiplier * base^(L - allowed). Only the longest repetition counts for each token. */
static void apply_dry(const gs_sampler *s, float *logits, int32_t n_vocab, const int32_t *history,
                      int32_t n_history, const scratch *x) {
    int32_t last = n_history - 1;
    int32_t from = last - DRY_WINDOW > 0 ? last - DRY_WINDOW : 0;
    int32_t n_found = 0;
    clear_marks(x, n_vocab);
    for (int32_t i = last - 1; i >= from; i--) {
        int32_t len = 0;
        while (len < DRY_MAX_LEN && i - len >= 0 && history[i - len] == history[last - len])
            len++;
        int32_t id = history[i + 1];
        if (len < s->dry_allowed_length || id < 0 || id >= n_vocab)
            continue;
        int32_t at = n_found;
        if (mark(x, id)) {
            x->cand[n_found++] = (gs_token_prob){id, 0.0f};
        } else {
            for (at = 0; x->cand[at].id != id; at++)
                ;
        }
        if ((float)len > x->cand[at].logprob)
            x->cand[at].logprob = (float)len;
    }
    for (int32_t i = 0; i < n_found; i++) {
        float over = x->cand[i].logprob - (float)s->dry_allowed_length;
        logits[x->cand[i].id] -= s->dry_multiplier * powf(s->dry_base, over);
    }
}

static void apply_mask(const gs_sampler *s, float *logits, int32_t n_vocab) {
    int32_t n = s->n_mask < n_vocab ? s->n_mask : n_vocab;
    for (int32_t from = 0; from < n; from += 32) {
        uint32_t bits = s->mask[from / 32];
        if (bits == UINT32_MAX)
            continue;
        int32_t end = n - from < 32 ? n - from : 32;
        for (int32_t i = 0; i < end; i++)
            logits[from + i] = (bits >> i) & 1 ? logits[from + i] : -INFINITY;
    }
    for (int32_t i = n; i < n_vocab; i++)
        logits[i] = -INFINITY;
}

static void apply_penalties(const gs_sampler *s, float *logits, int32_t n_vocab,
                            const int32_t *history, int32_t n_history, int32_t n_prompt,
                            const scratch *x) {
    if (s->mask)
        apply_mask(s, logits, n_vocab);
    for (int32_t i = 0; i < s->n_bias; i++) {
        int32_t id = s->bias[i].id;
        if (id < 0 || id >= n_vocab)
            continue;
        if (s->bias[i].bias <= -100.0f)
            logits[id] = -INFINITY;
        else
            logits[id] += s->bias[i].bias;
    }
    if (s->ignore_eos) {
        for (int32_t i = 0; i < s->n_eog; i++) {
            if (s->eog[i] >= 0 && s->eog[i] < n_vocab)
                logits[s->eog[i]] = -INFINITY;
        }
    }
    /* An infinite logit stays one: -inf times a penalty is still -inf. */
    if (s->repeat_penalty != 1.0f && s->repeat_last_n != 0)
        apply_repeat(s, logits, n_vocab, history, n_history, x);
    if (s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f)
        apply_frequency(s, logits, n_vocab, history, n_history, n_prompt, x);
    if (s->dry_multiplier > 0.0f && n_history > 1)
        apply_dry(s, logits, n_vocab, history, n_history, x);
}

/* ---- Selection ---------------------------------------------------------------------------------
 */

static int32_t argmax(const float *x, int32_t n) {
    bool finite;
    return gs_argmax(x, n, &finite);
}

/* Best first; on equal logits the lower id, so that results do not depend on the sort. */
static bool better(const gs_token_prob *a, const gs_token_prob *b) {
    return a->logprob > b->logprob || (a->logprob == b->logprob && a->id < b->id);
}

static int by_logit(const void *pa, const void *pb) {
    const gs_token_prob *a = pa, *b = pb;
    return better(a, b) ? -1 : better(b, a) ? 1 : 0;
}

static void sift_down(gs_token_prob *h, int32_t n, int32_t i) {
    for (;;) {
        int32_t worst = i, l = 2 * i + 1, r = l + 1;
        if (l < n && better(&h[worst], &h[l]))
            worst = l;
        if (r < n && better(&h[worst], &h[r]))
            worst = r;
        if (worst == i)
            return;
        gs_token_prob t = h[i];
        h[i] = h[worst];
        h[worst] = t;
        i = worst;
    }
}

/* The k best of logits, best first, in out[k]: a heap whose root is the worst one kept, so that
 * nearly every element costs one comparison. */
static int32_t select_top(const float *logits, int32_t n, int32_t k, gs_token_prob *out) {
    if (k > n)
        k = n;
    for (int32_t i = 0; i < k; i++)
        out[i] = (gs_token_prob){i, logits[i]};
    for (int32_t i = k / 2 - 1; i >= 0; i--)
        sift_down(out, k, i);
    for (int32_t i = k; i < n; i++) {
        if (logits[i] > out[0].logprob) {
            out[0] = (gs_token_prob){i, logits[i]};
            sift_down(out, k, 0);
        }
    }
    qsort(out, (size_t)k, sizeof(*out), by_logit);
    return k;
}

/* All logits of at least `from`, in order of id. */
static int32_t select_from(const float *logits, int32_t n, float from, gs_token_prob *out) {
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        out[m] = (gs_token_prob){i, logits[i]}; /* without a branch: most are not kept */
        m += logits[i] >= from;
    }
    return m;
}

/* The two numbers every candidate is weighed with: exp(logit - best), and how near it is to the
 * logit that a method likes most. */
static double weight(const gs_token_prob *c, float best) {
    return (double)expf(c->logprob - best);
}

static double mass_of(const gs_token_prob *c, int32_t n, float best) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += weight(&c[i], best);
    return sum;
}

/* Strict total order: nearer to centre first, then the lower id. */
static bool nearer(const gs_token_prob *a, const gs_token_prob *b, double centre) {
    double da = fabs((double)a->logprob - centre), db = fabs((double)b->logprob - centre);
    return da < db || (da == db && a->id < b->id);
}

static void swap(gs_token_prob *a, gs_token_prob *b) {
    gs_token_prob t = *a;
    *a = *b;
    *b = t;
}

/* Puts the middle one of c[0], c[n/2], c[n-1] in its place by nearness; returns that place. */
static int32_t partition(gs_token_prob *c, int32_t n, double centre) {
    int32_t mid = n / 2, at = 0;
    if (nearer(&c[mid], &c[0], centre))
        swap(&c[mid], &c[0]);
    if (nearer(&c[n - 1], &c[0], centre))
        swap(&c[n - 1], &c[0]);
    if (nearer(&c[mid], &c[n - 1], centre))
        swap(&c[mid], &c[n - 1]);
    for (int32_t i = 0; i < n - 1; i++) {
        if (nearer(&c[i], &c[n - 1], centre))
            swap(&c[i], &c[at++]);
    }
    swap(&c[at], &c[n - 1]);
    return at;
}

/*
 * Keeps the candidates nearest to centre whose mass just reaches `want`: with centre = best that
 * is the nucleus. Quickselect by mass instead of a sort: expected O(n), and nothing is ever
 * sorted. The kept ones come first, in no useful order.
 */
static int32_t keep_mass(gs_token_prob *c, int32_t n, float best, double centre, double want) {
    int32_t lo = 0, hi = n;
    double have = 0;
    while (hi - lo > 1) {
        int32_t at = lo + partition(c + lo, hi - lo, centre);
        double upper = mass_of(c + lo, at - lo, best);
        if (at > lo && have + upper >= want) {
            hi = at;
            continue;
        }
        have += upper + weight(&c[at], best);
        if (have >= want)
            return at + 1;
        lo = at + 1;
    }
    return hi;
}

/* Locally typical sampling (Meister et al. 2023): keeps the tokens whose surprisal is nearest to
 * the entropy until their mass reaches p. Surprisal is log(total) + best - logit, so "nearest to
 * the entropy" is "nearest to a logit". */
static int32_t keep_typical(gs_token_prob *c, int32_t n, float best, float p) {
    double total = mass_of(c, n, best), mean = 0;
    for (int32_t i = 0; i < n; i++) {
        double w = weight(&c[i], best);
        if (w > 0)
            mean += w / total * ((double)c[i].logprob - (double)best);
    }
    /* entropy = log(total) - mean, so the surprisal equals it where logit - best = mean. */
    return keep_mass(c, n, best, (double)best + mean, (double)p * total);
}

/* exp(logit - best) summed over the row. */
static double total_mass(const float *logits, int32_t n, float best) {
    float max, lse;
    gs_logsumexp(logits, n, &max, &lse);
    return exp((double)lse + (double)max - (double)best);
}

/* The nucleus of a whole row. What is far below the best token is gathered only when the near
 * ones lack mass, so that a usual row costs one pass and a handful of candidates. */
static int32_t select_nucleus(const float *logits, int32_t n_vocab, float best, float top_p,
                              gs_token_prob *c) {
    static const float near[] = {4, 8, 12, INFINITY};
    double want = (double)top_p * total_mass(logits, n_vocab, best);
    for (size_t i = 0;; i++) {
        int32_t n = select_from(logits, n_vocab, best - near[i], c);
        if (near[i] == INFINITY || mass_of(c, n, best) >= want)
            return keep_mass(c, n, best, (double)best, want);
    }
}

static float best_of(const gs_token_prob *c, int32_t n) {
    float best = c[0].logprob;
    for (int32_t i = 1; i < n; i++)
        best = c[i].logprob > best ? c[i].logprob : best;
    return best;
}

/* The candidates that the four truncations leave, at least one; .logprob holds logits. */
static int32_t candidates(const gs_sampler *s, const float *logits, int32_t n_vocab, float best,
                          gs_token_prob *c) {
    int32_t n;
    float min_gap = s->min_p > 0.0f ? logf(s->min_p) : -INFINITY;
    bool nucleus = s->top_p < 1.0f;
    if (s->top_k > 0 && s->top_k < n_vocab) {
        n = select_top(logits, n_vocab, s->top_k, c);
    } else if (s->typical_p < 1.0f) {
        n = select_from(logits, n_vocab, -INFINITY, c);
    } else if (nucleus) {
        n = select_nucleus(logits, n_vocab, best, s->top_p, c);
        nucleus = false;
    } else {
        n = select_from(logits, n_vocab, best + min_gap, c);
    }
    if (s->typical_p < 1.0f) {
        n = keep_typical(c, n, best, s->typical_p);
        best = best_of(c, n); /* may be another one now */
    }
    if (nucleus)
        n = keep_mass(c, n, best, (double)best, (double)s->top_p * mass_of(c, n, best));
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        if (c[i].logprob >= best + min_gap)
            c[m++] = c[i];
    }
    return m;
}

/* One uniform number per (seed, position): re-running a position draws the same token. */
static double uniform(const gs_sampler *s, int32_t position) {
    gs_rng r;
    gs_rng_seed(&r, s->seed ^ ((uint64_t)(uint32_t)position * 0x9E3779B97F4A7C15ULL));
    return gs_rng_unit(&r);
}

static int32_t draw_candidates(const gs_token_prob *c, int32_t n, float temperature, double u) {
    float best = best_of(c, n), inv_t = 1.0f / temperature;
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)expf((c[i].logprob - best) * inv_t);
    double at = u * sum;
    int32_t last = c[0].id;
    for (int32_t i = 0; i < n; i++) {
        float p = expf((c[i].logprob - best) * inv_t);
        at -= (double)p;
        if (p > 0)
            last = c[i].id;
        if (at < 0)
            return c[i].id;
    }
    return last; /* rounding */
}

/* One block of a row: its share of exp((logit - best) / T). logits are already divided by T. */
static double block_mass(const float *x, int32_t n, float best) {
    float max, lse;
    if (x[argmax(x, n)] == -INFINITY)
        return 0; /* only forbidden tokens */
    gs_logsumexp(x, n, &max, &lse);
    return exp((double)lse + (double)max - (double)best);
}

/* From the whole row: masses of blocks by the vector kernel first, then inside one block. mass
 * holds a number per block. */
static int32_t draw_all(float *logits, int32_t n, float best, float temperature, double u,
                        double *mass) {
    float inv_t = 1.0f / temperature;
    for (int32_t i = 0; i < n; i++)
        logits[i] = (logits[i] - best) * inv_t;
    double sum = 0;
    int32_t n_blocks = (n + DRAW_BLOCK - 1) / DRAW_BLOCK, b = 0, heaviest = 0;
    for (int32_t i = 0; i < n_blocks; i++) {
        int32_t len = n - i * DRAW_BLOCK < DRAW_BLOCK ? n - i * DRAW_BLOCK : DRAW_BLOCK;
        mass[i] = block_mass(logits + i * DRAW_BLOCK, len, 0);
        sum += mass[i];
        if (mass[i] > mass[heaviest])
            heaviest = i;
    }
    double at = u * sum;
    while (b < n_blocks && at >= mass[b])
        at -= mass[b++];
    if (b == n_blocks) { /* rounding */
        b = heaviest;
        at = 0;
    }
    int32_t end = n - b * DRAW_BLOCK < DRAW_BLOCK ? n : (b + 1) * DRAW_BLOCK, last = -1;
    for (int32_t i = b * DRAW_BLOCK; i < end; i++) {
        float p = expf(logits[i]);
        at -= (double)p;
        if (p > 0)
            last = i;
        if (at < 0)
            return i;
    }
    return last >= 0 ? last : argmax(logits, n);
}

void gs_sampler_run(const gs_sampler *s, float *logits, int32_t n_vocab, const int32_t *history,
                    int32_t n_history, int32_t n_prompt, void *scratch_mem, gs_sample *out) {
    scratch x = {.seen = scratch_mem};
    x.cand = (gs_token_prob *)(void *)(x.seen + bitmap_words(n_vocab));
    x.raw = (float *)(void *)(x.cand + n_vocab);
    out->err = 0;
    out->pending = false;
    out->n_top = 0;
    out->logprob = 0;
    bool finite;
    (void)gs_argmax(logits, n_vocab, &finite);
    if (!finite) {
        out->err = GS_ERR_BACKEND;
        out->token = 0;
        return;
    }
    float raw_max = 0, raw_lse = 0;
    if (s->n_logprobs >= 0) {
        gs_logsumexp(logits, n_vocab, &raw_max, &raw_lse);
        int32_t k = s->n_logprobs < GS_MAX_TOP_LOGPROBS ? s->n_logprobs : GS_MAX_TOP_LOGPROBS;
        out->n_top = k > 0 ? select_top(logits, n_vocab, k, out->top) : 0;
        for (int32_t i = 0; i < out->n_top; i++)
            out->top[i].logprob -= raw_max + raw_lse;
    }
    /* Log-probabilities are of the raw distribution, so keep it when the row is about to change. */
    const float *raw = logits;
    if (s->n_logprobs >= 0) {
        memcpy(x.raw, logits, (size_t)n_vocab * sizeof(float));
        raw = x.raw;
    }
    apply_penalties(s, logits, n_vocab, history, n_history, n_prompt, &x);
    int32_t best = argmax(logits, n_vocab);
    if (!(logits[best] > -INFINITY)) { /* every token is forbidden */
        out->err = GS_ERR_INVALID;
        out->token = 0;
        return;
    }
    if (s->temperature < MIN_TEMPERATURE) {
        out->token = best;
    } else {
        bool truncates = s->top_k > 0 || s->top_p < 1.0f || s->min_p > 0.0f || s->typical_p < 1.0f;
        double u = uniform(s, n_history);
        if (truncates) {
            int32_t n = candidates(s, logits, n_vocab, logits[best], x.cand);
            out->token = draw_candidates(x.cand, n, s->temperature, u);
        } else {
            /* cand is not needed on this path and aligned for doubles. */
            out->token = draw_all(logits, n_vocab, logits[best], s->temperature, u,
                                  (double *)(void *)x.cand);
        }
    }
    if (s->n_logprobs >= 0)
        out->logprob = raw[out->token] - (raw_max + raw_lse);
}
