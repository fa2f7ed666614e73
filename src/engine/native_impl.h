/* Private to the native backend: its state, and the SPMD step (native_step.c). */
#ifndef GS_ENGINE_NATIVE_IMPL_H
#define GS_ENGINE_NATIVE_IMPL_H

#include "engine/native.h"
#include "kernels/attn.h"
#include "kernels/kernels.h"
#include "kernels/moe.h"

#define GS_NATIVE_MAX_KINDS  4  /* different rotary tables, and different windows, of one model */
#define GS_NATIVE_LOGIT_ROWS 32 /* rows that go through the output matrix together */
#define GS_NATIVE_ATTN_ROWS  16 /* positions of one sequence that one attention unit takes */
/*
 * A step of more rows goes through the layers in passes of about equal size, at most so many rows
 * each: what a layer writes and reads again then stays in the L2 caches, and the weights, which
 * come from memory once a pass, are still far from being the limit. Whole tiles.
 */
#define GS_NATIVE_PASS_ROWS 132

/* One row of the batch: a token at a position of a sequence. */
typedef struct native_row {
    int32_t item;
    int32_t pos;
    int32_t token;
} native_row;

/* Consecutive positions of one item; attention units are (span, query head). */
typedef struct native_span {
    int32_t item;
    int32_t row; /* of the pass */
    int32_t pos;
    int32_t n_q;
    int32_t part; /* parted attention: segments of the spans before it */
} native_span;

/* A row whose logits are wanted. */
typedef struct native_out {
    int32_t item;
    int32_t row;   /* of the step */
    float *logits; /* or NULL */
    bool sample;
} native_out;

/*
 * What a step that gives way between two layers needs to go on; all else is written anew by each
 * layer. The backend has two: other steps run in one while the other waits (native.c swaps them
 * with the fields of gs_native).
 */
typedef struct native_area {
    float *x, *tmp, *cos_tab, *sin_tab;
    native_row *rows;
    native_span *spans;
    native_out *outs;
    int64_t *split;
    int32_t n_step_rows, n_outs;
    int32_t pass, row0, n_rows, n_spans;
    int32_t n_segs;
    bool parted;
    int n_active;
    int32_t next_layer; /* of the pass: suspended before it */
} native_area;

typedef struct native_scratch {
    void *attn;
    void *sampler;
} native_scratch;

typedef struct gs_native {
    gs_backend base;
    gs_native_config cfg;
    const gs_model *m;
    const struct gs_native *root; /* whose KV memory this is; NULL: its own. With a root the pool
                                     is its own */
    int n_threads;
    gs_kv_layout kv;
    int32_t logit_rows;
    gs_pooling pooling; /* of sequences that end in a vector */

    /* Rotary frequencies by kind; layers of a kind share the step's cos/sin tables. */
    int n_ropes;
    struct {
        float base, scale;
    } ropes[GS_NATIVE_MAX_KINDS];
    double *freq; /* [n_ropes][n_rot / 2], radians per position */
    int n_windows;
    int32_t windows[GS_NATIVE_MAX_KINDS];
    uint8_t layer_rope[GS_MAX_LAYERS], layer_window[GS_MAX_LAYERS];
    /* What a branch adds is normalised or scaled first, so it can't be added as it is computed. */
    bool branch_apart;

    /* Activations of a step; T = max_batch_tokens rows, P = pass_rows. All in one allocation. */
    int32_t pass_rows; /* rows that a pass may have */
    float *x;          /* [T][n_embd] the residual stream */
    float *tmp;        /* [T][n_embd] branch output, only with branch_apart */
    float *q, *attn;   /* [P][n_heads * head_dim] */
    float *k, *v;      /* [P][n_kv_heads * head_dim] */
    float *gate, *up;  /* [P][n_ff] */
    float *logits;     /* [logit_rows][n_vocab] */
    float *cos_tab;    /* [n_ropes][P][n_rot / 2] */
    float *sin_tab;    /* likewise */
    uint8_t *act_embd; /* gs_act of n_embd, of n_heads * head_dim, of n_ff, of the output */
    uint8_t *act_attn, *act_ff, *act_out;
    gs_moe moe; /* with experts; then gate, up and act_ff have no room, and: */
    uint8_t *act_router;
    native_scratch *scratch; /* [n_threads] */
    native_row *rows;        /* [T] */
    native_span *spans;      /* [P] */
    native_out *outs;        /* [T] */
    int64_t *split;          /* [n_windows][n_threads + 1] first attention unit of a thread */
    float *parts;            /* [n_part_rows][gs_attn_part_floats] */
    int32_t n_part_rows;
    void *memory;
    size_t memory_bytes;

    /* The step in progress. */
    gs_batch *batch;
    int32_t n_step_rows, n_outs;
    int n_active; /* threads that compute it */
    /* Its pass in progress: rows [row0, row0 + n_rows) of the step. */
    int32_t pass, row0, n_rows, n_spans;
    int32_t n_segs; /* of the longest context, when attention is parted */
    bool parted;
    int32_t first_layer; /* > 0: resumed */
    int32_t next_layer;  /* after the pass: the layer that is due; n_layers: it is done */
    bool give_way;       /* thread 0 decides before a layer's last barrier, all read it after */
    native_area parked;
} gs_native;

/* One thread's view of the pass. */
typedef struct native_lane {
    gs_native *b;
    const gs_model *m;
    int tid, n;
    const native_row *rows; /* of the pass: [n_rows] */
    float *x, *tmp;         /* likewise */
    int r0, r1;             /* the thread's rows */
    gs_act embd, attn, ff, router;
} native_lane;

static inline void gs_native_sync(const native_lane *t) {
    gs_pool_barrier(t->b->cfg.pool, t->tid);
}

/* native_moe.c: what the experts add to x, from the quantised rows. */
void gs_native_experts(const native_lane *t, const gs_layer *ly);

/* native_attn.c: shares out the pass's attention, once the spans are known. */
void gs_native_attn_plan(gs_native *b);
/* This thread's share: q and pages -> attn, or -> parts if the step is parted; then, after a
 * barrier, parts -> attn. */
void gs_native_attn(gs_native *b, int32_t layer, int tid);
void gs_native_attn_merge(gs_native *b, int32_t layer, int tid);

/* Whether no pass of the step comes after the one in progress. */
static inline bool gs_native_last_pass(const gs_native *b) {
    return b->row0 + b->n_rows == b->n_step_rows;
}

/* Runs the planned pass, and after the last one what follows the layers: all threads, thread 0 is
 * the caller. */
void gs_native_pass(void *arg, int tid, int n_threads);

#endif
