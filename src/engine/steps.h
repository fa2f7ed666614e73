/*
 * The newest steps, for whoever looks: a ring that the engine thread writes and any number of
 * threads read without holding it up. A reader that is slower than the ring is long loses records
 * and is told how many; a record that is being overwritten while it is copied counts as lost (a
 * sequence lock per slot, Boehm, MSPC'12).
 */
#ifndef GS_ENGINE_STEPS_H
#define GS_ENGINE_STEPS_H

#include <stdint.h>

#include "sched/step.h"

typedef struct gs_steps gs_steps;

/* n_slots: a power of two. GS_ERR_INVALID, GS_ERR_NOMEM. */
int gs_steps_create(uint32_t n_slots, gs_steps **out);
void gs_steps_free(gs_steps *r);
/* The one writer. Takes no lock and allocates nothing. */
void gs_steps_push(gs_steps *r, const gs_step_record *rec);
/* Number of records ever pushed: a reader that begins now begins there. Any thread. */
uint64_t gs_steps_head(const gs_steps *r);
/*
 * Copies up to max records from *at on, oldest first, and moves *at behind them; *lost counts
 * those that were gone already (not reset). Returns how many. Any thread, each with its own at.
 */
uint32_t gs_steps_read(const gs_steps *r, uint64_t *at, gs_step_record *out, uint32_t max,
                       uint64_t *lost);

#endif
