/*
 * The one account of each person, between placement and the engine: what remote workers did is
 * charged to the engine's accounts (gs_sched_charge), and what those say sorts the queue for the
 * workers (gs_place_set_counter). Owner: the event-loop thread.
 */
#ifndef GS_API_BILLS_H
#define GS_API_BILLS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

struct gs_api;
typedef struct gs_bills gs_bills;

gs_bills *gs_bills_create(void); /* NULL: out of memory */
void gs_bills_free(gs_bills *b);
/* gs_workers_config.charge; arg: the API. */
void gs_bills_charge(void *arg, uint32_t person, int64_t ns);
/* Asks the engine for the accounts, if something waits for a worker and no question is under way.
 */
void gs_bills_refresh(struct gs_api *a);
bool gs_bills_answered(struct gs_api *a, gs_query *q); /* false: not one of its questions */

#endif
