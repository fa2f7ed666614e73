/*
 * Calibration: times the steps that the cost model asks for (sched/cost.h) on an idle backend.
 * Uses KV blocks 0, 1, ... of the backend, so it must come before any sequence runs. Call it from
 * the thread that owns the backend.
 */
#ifndef GS_ENGINE_CALIBRATE_H
#define GS_ENGINE_CALIBRATE_H

#include <stdbool.h>

#include "engine/backend.h"
#include "sched/cost.h"

/*
 * verify: times two steps and says in *differs whether cost no longer fits; cost is left alone.
 * Else fits cost anew, within a few seconds. busy (may be NULL) is asked before each timed step:
 * true ends it with GS_ERR_CANCELLED. Else GS_ERR_NOMEM, or the backend's error.
 */
int gs_calibrate(gs_backend *b, gs_cost *cost, bool verify, bool *differs, bool (*busy)(void *),
                 void *busy_arg);

#endif
