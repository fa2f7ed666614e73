/*
 * Mixture of experts (Shazeer et al. 2017): a router picks n_used of n_experts gated feed-forward
 * networks for each row; their outputs are added with weights that sum to one.
 *
 * Rows are grouped by expert, so that a step reads the panels of an expert once, whatever the
 * number of its rows, with the tiles that any other product uses; experts that no row has picked
 * are not read at all.
 *
 * One layer's pass, SPMD: every thread calls the phases in this order, with a barrier between them.
 *
 *     gs_moe_score       panels    router product       -> scores
 *     gs_moe_route       rows      the best experts     -> picks
 *     gs_moe_group_rows  thread 0  rows of each expert  -> groups, slots, shares of the threads
 *     gs_moe_gather      slots     quantised rows       -> one gs_act per group
 *     gs_moe_up          parts     gate and up products, activation, quantise
 *     gs_moe_down        panels    down product         += y
 *
 * gs_moe_up deals out (expert, columns) by work: a thread may take part of a busy expert or several
 * idle ones. In gs_moe_down each thread owns columns of y and adds the experts in their order, so
 * the bits of a row depend neither on the threads nor on the other rows.
 */
#ifndef GS_KERNELS_MOE_H
#define GS_KERNELS_MOE_H

#include "base/carve.h"
#include "kernels/kernels.h"

#define GS_MOE_MAX_EXPERTS 1024
#define GS_MOE_MAX_USED    64

typedef struct gs_moe_pick {
    int32_t expert;
    float weight;
} gs_moe_pick;

/* A row in its group. */
typedef struct gs_moe_slot {
    int32_t row;
    float weight;
} gs_moe_slot;

/* The rows of one expert: slots [first, first + n). */
typedef struct gs_moe_group {
    int32_t expert, first, n;
    size_t in, mid; /* where its activations begin, in bytes */
} gs_moe_group;

typedef struct gs_moe {
    /* Set by the owner, before gs_moe_carve: */
    int32_t n_experts, n_used; /* n_used <= n_experts; at most the limits above */
    int32_t n_embd, n_ff;      /* multiples of 32 */
    int32_t max_rows;
    int n_threads;
    float scale;           /* of the weights */
    int in_need, mid_need; /* gs_act_need of all gate and up matrices, of all down matrices */
    /* Shared by the threads of a step: */
    float *scores;        /* [max_rows][n_experts] */
    gs_moe_pick *picks;   /* [max_rows][n_used], by expert */
    gs_moe_slot *slots;   /* [max_rows * n_used] by group, then by row */
    gs_moe_group *groups; /* [n_experts], those with rows, by expert */
    int32_t *split;       /* [n_threads + 1]: where a thread's stretch of parts begins */
    uint8_t *in, *mid;    /* the groups' activations, n_embd and n_ff wide */
    float *gate, *up;     /* [max_rows * n_used][n_ff] */
    float *out;           /* [max_rows][n_embd]: one expert's output; threads own columns */
    int32_t n_rows, n_groups;
} gs_moe;

/* The three matrices of the first expert; the others follow each (gs_mat_nth). */
typedef struct gs_moe_weights {
    const gs_mat *gate, *up, *down; /* [n_ff][n_embd] twice, [n_embd][n_ff] */
} gs_moe_weights;

/* Takes the memory of *m, twice as gs_carve wants it. */
void gs_moe_carve(gs_moe *m, gs_carver *c);

/* x: the rows as floats (GS_ACT_FLOAT); router: [n_experts][n_embd] F32. */
void gs_moe_score(gs_moe *m, const gs_mat *router, const gs_act *x, int tid, int n_threads);
/* Rows [r0, r1). Of equal scores the lower expert wins; NaN counts as the lowest score. */
void gs_moe_route(gs_moe *m, int32_t r0, int32_t r1);
void gs_moe_group_rows(gs_moe *m, int32_t n_rows, int n_threads);
/* x: the same rows, quantised for gate and up. */
void gs_moe_gather(gs_moe *m, const gs_act *x, int tid, int n_threads);
void gs_moe_up(gs_moe *m, const gs_moe_weights *w, const gs_act *x, int tid);
/* Row r of y begins at y + r * n_embd. */
void gs_moe_down(gs_moe *m, const gs_moe_weights *w, float *y, int tid, int n_threads);

#endif
