/* The scheduler's part of /metrics. */
#ifndef GS_API_SCHED_METRICS_H
#define GS_API_SCHED_METRICS_H

#include "engine/engine.h"

void gs_sched_metrics(const gs_engine_stats *s, const char *model, gs_buf *out);

#endif
