/*
 * Guides: a sequence's grammar state, moved on and turned into masks while the model computes.
 *
 *     engine thread                   guide thread                    threads of the step
 *     token drawn ── gs_guides_push ─► advance, next mask ── ready ─► gs_guide_limit, before
 * drawing plan, forward (meanwhile)
 *
 * A mask takes tens of microseconds and a step milliseconds, so it is there in time. Where it is
 * not, the sequence draws no token in this step and its last position is computed again: nobody
 * waits for a grammar that is slow, except for a moment. Guides that were slow once are served by
 * a second thread of the lowest priority from then on, so that they hold up their own kind only.
 *
 * Counted: the sequence holds one reference, a mask in the making another.
 */
#ifndef GS_ENGINE_GUIDE_H
#define GS_ENGINE_GUIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sampler.h"
#include "tokenizer/grammar.h"

typedef struct gs_guide gs_guide;
typedef struct gs_guides gs_guides;

/* At the start of an answer, with the first mask, which may take milliseconds: not for the event
 * loop. Any thread. GS_ERR_NOMEM, GS_ERR_INVALID. */
int gs_guide_create(gs_grammar *g, gs_guide **out);
void gs_guide_unref(gs_guide *g); /* any thread; NULL is fine */

/* Starts the two threads, not bound to a core: not from a thread that is. */
int gs_guides_create(gs_guides **out);
void gs_guides_free(gs_guides *gs);
/* token was drawn. Engine thread; the guide's mask was ready. */
void gs_guides_push(gs_guides *gs, gs_guide *g, int32_t token);

/*
 * Gives s the guide's mask, for a vocabulary of n_vocab tokens. False: out says that there is no
 * token: pending, or err = GS_ERR_INVALID. Any thread of the step.
 */
bool gs_guide_limit(gs_guide *g, int32_t n_vocab, gs_sampler *s, gs_sample *out);

#endif
