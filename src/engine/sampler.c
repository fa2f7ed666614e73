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
/* Candidates below exp(-16) of the best one are looked at only when the rest lacks mass. */
#define NEAR_LOGITS 16.0f

/* Scratch: a bitmap over the vocabulary, candidates [n_vocab], a copy of the row [n_vocab]. */
typedef struct scratch {
    uint64_t *seen;
    gs_token_prob *cand; /* .logprob holds logits, later probabilities */
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

static void apply_penalties(const gs_sampler *s, float *logits, int32_t n_vocab,
                            const int32_t *history, int32_t n_history, int32_t n_prompt,
                            const scratch *x) {
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
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (x[i] > x[best])
            best = i;
    }
    return best;
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

/* All candidates within `near` of the best logit, best first. */
static int32_t select_near(const float *logits, int32_t n, float best, float near,
                           gs_token_prob *out) {
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        if (logits[i] >= best - near)
            out[m++] = (gs_token_prob){i, logits[i]};
    }
    qsort(out, (size_t)m, sizeof(*out), by_logit);
    return m;
}

/* Turns sorted candidates' logits into probabilities that sum to 1 over the candidates, or to
 * their share when total (the sum of exp(x - best) over everything) is given. */
static void to_probs(gs_token_prob *c, int32_t n, float best, double total) {
    double sum = total;
    if (sum <= 0) {
        sum = 0;
        for (int32_t i = 0; i < n; i++)
            sum += (double)expf(c[i].logprob - best);
    }
    for (int32_t i = 0; i < n; i++)
        c[i].logprob = (float)((double)expf(c[i].logprob - best) / sum);
}

typedef struct typical_key {
    float distance, prob;
    int32_t id;
} typical_key;

/* Locally typical sampling (Meister et al. 2023): keeps the tokens whose surprisal is nearest to
 * the entropy until their mass reaches p. c holds probabilities, best first; order is kept. */
static int32_t keep_typical(gs_token_prob *c, int32_t n, float p) {
    double entropy = 0;
    for (int32_t i = 0; i < n; i++) {
        if (c[i].logprob > 0)
            entropy -= (double)c[i].logprob * log((double)c[i].logprob);
    }
    /* Find the cut-off distance by bisection over mass: no second array is needed. */
    double lo = 0, hi = 200;
    for (int it = 0; it < 60; it++) {
        double mid = (lo + hi) / 2, mass = 0;
        for (int32_t i = 0; i < n; i++) {
            if (c[i].logprob > 0 && fabs(-log((double)c[i].logprob) - entropy) <= mid)
                mass += (double)c[i].logprob;
        }
        if (mass >= (double)p)
            hi = mid;
        else
            lo = mid;
    }
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        if (c[i].logprob > 0 && fabs(-log((double)c[i].logprob) - entropy) <= hi)
            c[m++] = c[i];
    }
    return m > 0 ? m : 1;
}

static int32_t keep_top_p(const gs_token_prob *c, int32_t n, float p, bool *complete) {
    double mass = 0, total = 0;
    for (int32_t i = 0; i < n; i++)
        total += (double)c[i].logprob;
    for (int32_t i = 0; i < n; i++) {
        mass += (double)c[i].logprob;
        if (mass >= (double)p) {
            *complete = true;
            return i + 1;
        }
    }
    *complete = total >= 0.999999;
    return n;
}

static void renormalise(gs_token_prob *c, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)c[i].logprob;
    for (int32_t i = 0; i < n; i++)
        c[i].logprob = (float)((double)c[i].logprob / sum);
}

static double total_mass(const float *logits, int32_t n, float best) {
    float max, lse;
    gs_logsumexp(logits, n, &max, &lse);
    return exp((double)lse + (double)max - (double)best);
}

/* Truncated candidates with normalised probabilities, best first. */
static int32_t candidates(const gs_sampler *s, const float *logits, int32_t n_vocab, float best,
                          gs_token_prob *c) {
    int32_t n;
    bool complete = true;
    if (s->top_k > 0) {
        n = select_top(logits, n_vocab, s->top_k, c);
        to_probs(c, n, best, 0);
    } else {
        n = select_near(logits, n_vocab, best, NEAR_LOGITS, c);
        to_probs(c, n, best, total_mass(logits, n_vocab, best));
        complete = false;
    }
    int32_t n_all = n;
    if (s->typical_p < 1.0f) {
        renormalise(c, n);
        n = keep_typical(c, n, s->typical_p);
        renormalise(c, n);
        complete = true;
    }
    if (s->top_p < 1.0f) {
        bool enough = true;
        int32_t kept = keep_top_p(c, n, s->top_p, &enough);
        if (!complete && !enough && n == n_all) {
            /* A very flat distribution: the near ones lack mass, so take everything. */
            n = select_near(logits, n_vocab, best, INFINITY, c);
            to_probs(c, n, best, 0);
            kept = keep_top_p(c, n, s->top_p, &enough);
        }
        n = kept;
        renormalise(c, n);
    }
    if (s->min_p > 0.0f) {
        int32_t m = 1;
        while (m < n && c[m].logprob >= s->min_p * c[0].logprob)
            m++;
        n = m;
    }
    return n;
}

/* One uniform number per (seed, position): re-running a position draws the same token. */
static double uniform(const gs_sampler *s, int32_t position) {
    gs_rng r;
    gs_rng_seed(&r, s->seed ^ ((uint64_t)(uint32_t)position * 0x9E3779B97F4A7C15ULL));
    return gs_rng_unit(&r);
}

static int32_t draw_candidates(const gs_sampler *s, gs_token_prob *c, int32_t n, double u) {
    /* Temperature on probabilities: p^(1/T), relative to the best one. */
    double sum = 0;
    float first = c[0].logprob;
    for (int32_t i = 0; i < n; i++)
        c[i].logprob = powf(c[i].logprob / first, 1.0f / s->temperature);
    for (int32_t i = 0; i < n; i++)
        sum += (double)c[i].logprob;
    double at = u * sum;
    for (int32_t i = 0; i < n; i++) {
        at -= (double)c[i].logprob;
        if (at < 0)
            return c[i].id;
    }
    return c[n - 1].id;
}

static int32_t draw_all(const gs_sampler *s, const float *logits, int32_t n, float best, double u) {
    double sum = 0;
    float inv_t = 1.0f / s->temperature;
    for (int32_t i = 0; i < n; i++)
        sum += (double)expf((logits[i] - best) * inv_t);
    double at = u * sum;
    int32_t last = 0;
    for (int32_t i = 0; i < n; i++) {
        float p = expf((logits[i] - best) * inv_t);
        at -= (double)p;
        if (p > 0)
            last = i;
        if (at < 0)
            return i;
    }
    return last;
}

static bool all_finite(const float *x, int32_t n) {
    /* x * 0 is 0 for finite numbers and NaN otherwise; one vectorised pass. */
    float acc = 0;
    for (int32_t i = 0; i < n; i++)
        acc += x[i] * 0.0f;
    return acc == 0.0f;
}

void gs_sampler_run(const gs_sampler *s, float *logits, int32_t n_vocab, const int32_t *history,
                    int32_t n_history, int32_t n_prompt, void *scratch_mem, gs_sample *out) {
    scratch x = {.seen = scratch_mem};
    x.cand = (gs_token_prob *)(void *)(x.seen + bitmap_words(n_vocab));
    x.raw = (float *)(void *)(x.cand + n_vocab);
    out->err = 0;
    out->n_top = 0;
    out->logprob = 0;
    if (!all_finite(logits, n_vocab)) {
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
    if (s->temperature <= 0.0f || !(logits[best] > -INFINITY)) {
        out->token = best;
    } else {
        bool truncates = s->top_k > 0 || s->top_p < 1.0f || s->min_p > 0.0f || s->typical_p < 1.0f;
        double u = uniform(s, n_history);
        float top = logits[best];
        if (truncates) {
            int32_t n = candidates(s, logits, n_vocab, top, x.cand);
            out->token = draw_candidates(s, x.cand, n, u);
        } else {
            out->token = draw_all(s, logits, n_vocab, top, u);
        }
    }
    if (s->n_logprobs >= 0)
        out->logprob = raw[out->token] - (raw_max + raw_lse);
}
