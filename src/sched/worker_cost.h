/*
 * What a worker takes for a request, seen from outside: all that is known of another machine is
 * when tokens come.
 *
 *     TTFT = fixed + prompt * uncached prompt tokens, its own and those computed before them
 *     ITL  = g(sequences that run there)          piecewise linear, not falling; 1, 2, 4 ... 32
 *
 * Fitted online from both with bounded gain, as the step-time model is (cost.h). A plain value.
 * Pure. Owner: whoever holds it.
 */
#ifndef GS_SCHED_WORKER_COST_H
#define GS_SCHED_WORKER_COST_H

#include <stdbool.h>
#include <stdint.h>

#define GS_WORKER_COST_KNOTS 6 /* 1 << i sequences */

typedef struct gs_worker_cost {
    double fixed_ns;
    double prompt_ns; /* per token */
    double itl_ns[GS_WORKER_COST_KNOTS];
    uint32_t seen[GS_WORKER_COST_KNOTS]; /* gaps observed beside this knot; 0: extrapolated */
    uint32_t n_ttft, n_itl;              /* observed; 0: a guess */
    double lag;   /* of the newest answers, how much longer than predicted: log, moving average */
    double error; /* |log(observed / predicted)| of TTFTs, moving average */
} gs_worker_cost;

/* A middling machine: only the shape matters, the scale is learned from the first answers. */
void gs_worker_cost_prior(gs_worker_cost *c);
double gs_worker_cost_ttft(const gs_worker_cost *c, double prompt_tokens); /* ns */
double gs_worker_cost_itl(const gs_worker_cost *c, double n_seqs);         /* ns; n_seqs >= 1 */
/* Tokens a second of n_seqs sequences together. */
double gs_worker_cost_rate(const gs_worker_cost *c, double n_seqs);
void gs_worker_cost_saw_ttft(gs_worker_cost *c, double prompt_tokens, int64_t elapsed_ns);
/* n_tokens further tokens of one sequence in elapsed_ns, n_seqs running there on average. */
void gs_worker_cost_saw_tokens(gs_worker_cost *c, double n_seqs, int32_t n_tokens,
                               int64_t elapsed_ns);
/* It takes twice what it used to for some answers now, and has not come back yet. */
bool gs_worker_cost_is_slow(const gs_worker_cost *c, bool was_slow);

#endif
