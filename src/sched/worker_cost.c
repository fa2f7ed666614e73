#include "sched/worker_cost.h"

#include <math.h>

#define WARM      4   /* observations that only set the scale */
#define GAIN      0.2 /* of the newest observation, later */
#define CLIP      1.4 /* log: one outlier of any size counts as 4x */
#define LAG_GAIN  0.25
#define SLOW_FROM 0.7  /* log 2 */
#define SLOW_TO   0.26 /* log 1.3 */
#define MIN_NS    1.0
#define MAX_NS    1e12

void gs_worker_cost_prior(gs_worker_cost *c) {
    static const double shape[GS_WORKER_COST_KNOTS] = {1.0, 1.05, 1.2, 1.5, 2.2, 3.6};
    *c = (gs_worker_cost){.fixed_ns = 100e6, .prompt_ns = 1e6};
    for (int i = 0; i < GS_WORKER_COST_KNOTS; i++)
        c->itl_ns[i] = 40e6 * shape[i];
}

double gs_worker_cost_ttft(const gs_worker_cost *c, double prompt_tokens) {
    return c->fixed_ns + c->prompt_ns * fmax(prompt_tokens, 0.0);
}

/* Between knots *i and *i + 1, the share returned of the upper one; beyond the last the slope goes
 * on. */
static double locate(double n_seqs, int *i) {
    *i = 0;
    while (*i < GS_WORKER_COST_KNOTS - 2 && n_seqs >= (double)(2 << *i))
        ++*i;
    const double low = (double)(1 << *i);
    return fmax(n_seqs - low, 0.0) / low;
}

double gs_worker_cost_itl(const gs_worker_cost *c, double n_seqs) {
    int i;
    const double w = locate(n_seqs, &i);
    return c->itl_ns[i] + w * (c->itl_ns[i + 1] - c->itl_ns[i]);
}

double gs_worker_cost_rate(const gs_worker_cost *c, double n_seqs) {
    return n_seqs * 1e9 / gs_worker_cost_itl(c, fmax(n_seqs, 1.0));
}

static double clip(double v, double limit) {
    return fmin(fmax(v, -limit), limit);
}

static double bounded(double ns) {
    return fmin(fmax(ns, MIN_NS), MAX_NS);
}

/* How far the logarithm of the prediction is to move for an error, at the n-th observation. */
static double move_of(uint32_t n, double error) {
    return n <= WARM ? error / (double)n : GAIN * clip(error, CLIP);
}

static void note_lag(gs_worker_cost *c, uint32_t n, double error) {
    if (n > WARM)
        c->lag += LAG_GAIN * (clip(error, CLIP) - c->lag);
}

/* Each term moves by its part of the prediction, so that with gain 1 all of the error would go. */
void gs_worker_cost_saw_ttft(gs_worker_cost *c, double prompt_tokens, int64_t elapsed_ns) {
    const double predicted = gs_worker_cost_ttft(c, prompt_tokens);
    const double error = log(bounded((double)elapsed_ns) / predicted);
    c->n_ttft += c->n_ttft < UINT32_MAX;
    c->error = c->n_ttft == 1 ? 0.0 : c->error + GAIN * (fabs(clip(error, CLIP)) - c->error);
    note_lag(c, c->n_ttft, error);
    const double move = move_of(c->n_ttft, error);
    if (c->n_ttft == 1) {
        c->fixed_ns = bounded(c->fixed_ns * exp(move));
        c->prompt_ns = bounded(c->prompt_ns * exp(move));
        return;
    }
    const double fixed = c->fixed_ns / predicted, prompt = 1.0 - fixed;
    const double squares = fixed * fixed + prompt * prompt;
    c->fixed_ns = bounded(c->fixed_ns * exp(move * fixed / squares));
    c->prompt_ns = bounded(c->prompt_ns * exp(move * prompt / squares));
}

/* Knots nobody has seen keep their distance to the one that moved; then nothing may fall. */
static void settle(gs_worker_cost *c, int at, double factor) {
    for (int k = at + 1; k < GS_WORKER_COST_KNOTS && c->seen[k] == 0; k++)
        c->itl_ns[k] = bounded(c->itl_ns[k] * factor);
    for (int k = at - 1; k >= 0 && c->seen[k] == 0; k--)
        c->itl_ns[k] = bounded(c->itl_ns[k] * factor);
    for (int k = at; k + 1 < GS_WORKER_COST_KNOTS; k++)
        c->itl_ns[k + 1] = fmax(c->itl_ns[k], c->itl_ns[k + 1]);
    for (int k = at; k > 0; k--)
        c->itl_ns[k - 1] = fmin(c->itl_ns[k - 1], c->itl_ns[k]);
}

void gs_worker_cost_saw_tokens(gs_worker_cost *c, double n_seqs, int32_t n_tokens,
                               int64_t elapsed_ns) {
    int i;
    if (n_tokens < 1)
        return;
    const double w = locate(fmax(n_seqs, 1.0), &i);
    const int at = w < 0.5 ? i : i + 1;
    const double predicted = gs_worker_cost_itl(c, fmax(n_seqs, 1.0));
    const double error = log(bounded((double)elapsed_ns / n_tokens) / predicted);
    c->n_itl += c->n_itl < UINT32_MAX;
    note_lag(c, c->n_itl, error);
    const double factor = exp(move_of(c->n_itl, error));
    c->itl_ns[at] = bounded(c->itl_ns[at] * factor);
    c->seen[at] += c->seen[at] < UINT32_MAX;
    settle(c, at, factor);
}

bool gs_worker_cost_is_slow(const gs_worker_cost *c, bool was_slow) {
    return c->lag > (was_slow ? SLOW_TO : SLOW_FROM);
}
