/*
 * Several schedulers on one device, one for each model: whose step is next.
 *
 * A step runs one model. Who reads or listens must not notice that there are others, so the rules
 * are those of one step of the "slo" policy, with turns instead of rows:
 *
 *   1. whoever would be late otherwise (least slack)
 *   2. streams in turn, oldest first; first tokens by slack; each step ends before the next token
 *      that is due elsewhere
 *   3. after each round of the streams a slice of background, no longer than it might have made
 *      their steps: between two layers it gives way, and goes on after the next round
 *   4. background by the persons' counters, which are common to all (gs_accounts)
 *
 * Pure, as the schedulers are. Owner: their thread.
 */
#ifndef GS_SCHED_TURNS_H
#define GS_SCHED_TURNS_H

#include <stdint.h>

#include "sched/sched.h"

#define GS_TURNS_MAX 16 /* schedulers */

/*
 * gs_sched_plan for one of the schedulers s[0..n), 1 <= n <= GS_TURNS_MAX: returns which. With
 * out->n_items == 0 none has anything to run before out->wake_ns. No step is in flight.
 */
int32_t gs_turns_plan(gs_sched *const *s, int32_t n, int64_t now_ns, gs_plan *out);
/* gs_sched_should_yield for the step of s[at], which also gives way to newcomers of the others. */
bool gs_turns_should_yield(gs_sched *const *s, int32_t n, int32_t at, const gs_plan *plan,
                           int64_t now_ns);

#endif
