/*
 * Prometheus text exposition (version 0.0.4): writer for /metrics. No registry and no state: the
 * caller walks its numbers. Label values are escaped, so that a hostile model name stays a label.
 * Format: https://prometheus.io/docs/instrumenting/exposition_formats/
 */
#ifndef GS_METRICS_PROM_H
#define GS_METRICS_PROM_H

#include <stdint.h>

#include "base/buf.h"

/* HELP and TYPE lines; type is "gauge" or "counter". */
void gs_prom_family(gs_buf *out, const char *name, const char *type, const char *help);
/* One sample. labels: name, value, name, value ..., NULL. */
void gs_prom_sample(gs_buf *out, const char *name, double value, const char *const *labels);

#endif
