/* Private to the encoder backend: its state, and the SPMD step (encoder_step.c). */
#ifndef GS_ENGINE_ENCODER_IMPL_H
#define GS_ENGINE_ENCODER_IMPL_H

#include <stdatomic.h>

#include "engine/encoder.h"
#include "kernels/attn.h"
#include "kernels/kernels.h"

#define GS_ENCODER_PAGE 32 /* positions of a page of keys or values */
/* Rows that one thread takes through a chain of products: their activations stay in L2. */
#define GS_ENCODER_ROWS  (8 * GS_TILE_ROWS)
#define GS_ENCODER_QUERY 96 /* positions of one sequence that one attention unit takes */
#define GS_ENCODER_GROUP 96 /* rows from which on a group takes no further sequence */

typedef struct encoder_row {
    int32_t token, pos, type;
    int32_t first_page; /* of its sequence */
} encoder_row;

/* Queries of one sequence; attention units are (span, head). */
typedef struct encoder_span {
    int32_t row, n_q;
    int32_t n_keys, first_page; /* of the sequence */
} encoder_span;

/* Whole sequences that go through a layer together; what is between their products stays in the
 * cache of one core. */
typedef struct encoder_group {
    int32_t row, n_rows;
    int32_t span, n_spans;
    int32_t page;
} encoder_group;

/* What a step that gives way between two layers needs to go on; the rest is written anew by each
 * layer. Of the two, one waits while other steps run in the other. */
typedef struct encoder_area {
    float *x;                 /* [T][n_embd] */
    float *cos_tab, *sin_tab; /* [T][n_rot / 2], with rotation */
    encoder_row *rows;        /* [T] */
    encoder_span *spans;      /* [T] */
    encoder_group *groups;    /* [max_seqs] */
    int32_t *first_group;     /* [n_threads + 1] of a thread */
    int64_t *split;           /* [n_threads + 1] shared: first attention unit of a thread */
    int32_t *item_row;        /* [max_seqs] first row of an item */
    int32_t n_rows, n_spans, n_pages;
    int n_active; /* threads that compute the step */
    bool shared;  /* too few sequences to give each thread its own: one group, for all threads */
    int32_t next_layer; /* > 0: suspended before this layer */
} encoder_area;

/* Of one thread: R = GS_ENCODER_ROWS rows. */
typedef struct encoder_scratch {
    float *qkv;                 /* [R][3 * n_embd] */
    float *ff, *gate;           /* [R][n_ff] */
    uint8_t *act_embd, *act_ff; /* gs_act of n_embd, of n_ff */
    void *attn;
} encoder_scratch;

typedef struct gs_encoder {
    gs_backend base;
    gs_native_config cfg; /* max_batch_tokens T */
    const gs_model *m;
    gs_pooling pooling;
    int n_threads;
    _Atomic uint64_t progress; /* parts of layers that were computed */
    gs_kv_layout kv;           /* one layer */
    uint32_t *pages;           /* [kv.n_blocks]: page i is i */
    double *freq;              /* [n_rot / 2] radians per position; NULL: learned positions */
    float *q, *attn;           /* [T][n_embd] */
    encoder_scratch *scratch;  /* [n_threads] */
    int32_t *order, *owner;    /* [max_seqs] planning: items by length; whose they are */
    int64_t *load;             /* [n_threads] */
    encoder_area areas[2];
    encoder_area *area; /* of the step in progress; the other one may wait */
    void *memory;
    size_t memory_bytes;

    gs_batch *batch;
    int32_t first_layer;
    bool give_way; /* thread 0 decides before a layer's last barrier, all read it after */
} gs_encoder;

/* Runs layers from first_layer on: all threads, thread 0 is the caller. */
void gs_encoder_step(void *arg, int tid, int n_threads);

#endif
