/*
 * One vector for a whole sequence: how the hidden states (after the model's last norm) of its
 * tokens are pooled. Backends add what each step computes; the engine finishes at the end.
 */
#ifndef GS_ENGINE_EMBED_H
#define GS_ENGINE_EMBED_H

#include <stdint.h>

/* Numbers as in the GGUF key `<arch>.pooling_type`. */
#define GS_POOLING_MAP(X)                                                                          \
    X(NONE, 0, "none") /* the model is not meant for it */                                         \
    X(MEAN, 1, "mean") /* of all tokens */                                                         \
    X(CLS, 2, "cls")   /* the first token's state */                                               \
    X(LAST, 3, "last") /* the last token's state */                                                \
    X(RANK, 4, "rank") /* a score by a classification head over the first token's state */

typedef enum gs_pooling {
#define X(name, number, text) GS_POOLING_##name = number,
    GS_POOLING_MAP(X)
#undef X
} gs_pooling;

const char *gs_pooling_name(gs_pooling p); /* "mean"; static */

/*
 * Takes the states rows[n_rows][n] of positions pos.. of a prompt of n_prompt tokens into v[n],
 * which is zero before the prompt's first row. Rows come in order and once each, in one step or
 * several. MEAN adds them up, CLS and LAST copy theirs; RANK is the backend's own business.
 */
void gs_embed_add(gs_pooling p, float *v, int32_t n, const float *rows, int32_t pos, int32_t n_rows,
                  int32_t n_prompt);
/* All n_prompt rows were taken: the mean, and length 1 (a zero vector stays zero). A RANK score
 * stays as it is. */
void gs_embed_finish(gs_pooling p, float *v, int32_t n, int32_t n_prompt);

#endif
