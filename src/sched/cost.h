/*
 * The step-time model: what one engine iteration takes, before it runs.
 *
 *     T(step) = f(batch tokens)                      piecewise linear, monotone, 10 knots
 *             + a * context tokens of decoding sequences
 *             + b * sum over prefill chunks of (query tokens * context tokens)
 *             + c * positions that need logits + d * sequences sampled + e
 *
 * On a part of the threads, or beside another step, it takes longer: T times (1 + few * (all
 * threads / its threads - 1)) times (1 + beside). Reading the weights for one row needs fewer
 * threads than computing a large chunk, so few and beside are each known at 1 row and from
 * GS_COST_CHUNK rows on, and in between by the logarithm.
 *
 * The same terms as the fitted models of DistServe (OSDI'24) and HyGen (NeurIPS'25), with the
 * linear batch term replaced by measured knots: on a CPU the first rows of a batch are nearly
 * free and the later ones are not, and that bend is what scheduling lives on.
 *
 * Life: gs_cost_prior, or gs_cost_read of an earlier calibration, or a calibration run (the model
 * says which probe to time, the caller times it); then gs_cost_observe after every step, which
 * corrects with bounded gain. A plain value: copy it freely. Pure. Owner: whoever holds it.
 */
#ifndef GS_SCHED_COST_H
#define GS_SCHED_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define GS_COST_KNOTS  10  /* 1, 2, 4, ... 512 batch tokens */
#define GS_COST_CHUNK  64  /* rows of a large chunk */
#define GS_COST_RATIOS 512 /* newest predictions that the error statistics look at */

/* What a step holds, as far as its time depends on it. Add items, or take them away again. */
typedef struct gs_cost_step {
    int32_t n_tokens;
    int32_t n_logits;
    int32_t n_sampled;
    double decode_ctx;   /* sum of context tokens over decoding sequences */
    double prefill_area; /* sum of query tokens * context tokens over prefill chunks */
} gs_cost_step;

typedef struct gs_cost {
    double knot_ns[GS_COST_KNOTS]; /* f at 1 << i tokens, not falling */
    double decode_ctx_ns;          /* a */
    double prefill_ns;             /* b */
    double logit_ns;               /* c */
    double sample_ns;              /* d */
    double fixed_ns;               /* e */
    double few[2], beside[2];      /* at 1 row and at GS_COST_CHUNK; see above */
    bool calibrated;               /* measured on this machine; else a guess that learns fast */
    /* The backend takes all positions with logits through the output matrix together: their price
     * grows as f does, c * f(positions) / f(1). Not part of the text. */
    bool logits_together;
    uint64_t n_observed;
    uint32_t seen[GS_COST_KNOTS]; /* steps observed beside this knot; 0: extrapolated */
    int32_t same_side;            /* steps in a row, far off on one side: + slower, - faster */
    uint32_t n_ratios;            /* ever recorded */
    float ratio[GS_COST_RATIOS];  /* ring of predicted / actual */
} gs_cost;

typedef struct gs_cost_error {
    uint32_t n;          /* steps looked at */
    double median_ratio; /* predicted / actual */
    double median_error; /* |predicted / actual - 1| */
    double p95_error;
} gs_cost_error;

/* A middling machine with a small model: only the shape matters, the scale is learned from the
 * first steps. */
void gs_cost_prior(gs_cost *c);
/* Adds n tokens that start at position pos: a decode row, or a prefill chunk. */
void gs_cost_step_add(gs_cost_step *x, int32_t n, int32_t pos, bool decode, bool sample);
void gs_cost_step_sub(gs_cost_step *x, int32_t n, int32_t pos, bool decode, bool sample);
double gs_cost_predict(const gs_cost *c, const gs_cost_step *x); /* ns; 0 without tokens */
/* What a step has of the device. */
typedef struct gs_cost_part {
    double share; /* of the threads, (0, 1] */
    bool beside;  /* another step runs on the others */
} gs_cost_part;
#define GS_COST_ALL                                                                                \
    (gs_cost_part) {                                                                               \
        .share = 1.0                                                                               \
    }
double gs_cost_predict_on(const gs_cost *c, const gs_cost_step *x, gs_cost_part p);
/* The part of every step that no sequence causes alone. */
double gs_cost_fixed(const gs_cost *c);
/* Computing positions [pos, pos + n) in chunks of chunk tokens with nobody beside. */
double gs_cost_prefill(const gs_cost *c, int32_t pos, int32_t n, int32_t chunk);
/* The smallest power of two (at most max) whose price per token is within 15 % of the best. */
int32_t gs_cost_knee(const gs_cost *c, int32_t max);

/* Learns from a measured step. Robust: one outlier moves little, a lasting change is followed
 * within some twenty steps; knots stay monotone. */
void gs_cost_observe(gs_cost *c, const gs_cost_step *x, int64_t elapsed_ns);
/* The same of a step on a part of the device: few, or with another one beside it beside. */
void gs_cost_observe_on(gs_cost *c, const gs_cost_step *x, gs_cost_part p, int64_t elapsed_ns);
/* Sorts a copy of the newest ratios: not for every step. */
void gs_cost_get_error(const gs_cost *c, gs_cost_error *out);

/* Text of one line per coefficient, headed by id (model and machine; no line breaks). */
int gs_cost_write(const gs_cost *c, const char *id, gs_buf *out);
/* GS_ERR_NOT_FOUND: made for another id. GS_ERR_FORMAT: not such a text, or numbers that no
 * machine has. c is only written on success. */
int gs_cost_read(const char *text, size_t n, const char *id, gs_cost *c, char *err, size_t errlen);

/* ---- calibration: the model says what to time, the caller runs it ----------------------------*/

/* One step to be timed: a single sequence, n_tokens from position pos on, whatever the KV pool
 * holds before them. sample: with logits and a sampled token. */
typedef struct gs_cost_probe {
    int32_t n_tokens;
    int32_t pos;
    bool sample;
    bool half; /* on half of the threads */
} gs_cost_probe;

typedef struct gs_cost_calibration {
    int32_t max_tokens, depth;
    int64_t budget_ns, spent_ns; /* of probe time */
    int64_t step_limit_ns;       /* steps predicted to take longer are not timed */
    int32_t stage, repeat;
    int n_threads; /* with several, half of them are timed too */
    bool verify;   /* only looks whether the model still fits */
    bool differs;  /* after verify: calibrate anew */
    double sample_ns[3];
    double measured_ns[GS_COST_KNOTS];
    gs_cost_probe probe;
} gs_cost_calibration;

/* max_tokens of one step; max_context bounds the depth that is timed. verify: checks two knots
 * of c and leaves c alone. */
void gs_cost_calibrate_begin(gs_cost_calibration *k, const gs_cost *c, int32_t max_tokens,
                             int32_t max_context, int n_threads, bool verify);
/* The next probe to time; false: done. */
bool gs_cost_calibrate_next(gs_cost_calibration *k, const gs_cost *c, gs_cost_probe *out);
void gs_cost_calibrate_add(gs_cost_calibration *k, gs_cost *c, int64_t elapsed_ns);

#endif
