/* Private to cli/: what `gamasot sim` reads. */
#ifndef GS_CLI_SIM_INPUT_H
#define GS_CLI_SIM_INPUT_H

#include "sched/sim.h"

#define GS_TRACE_PERSONS 256

typedef struct gs_trace {
    gs_sim_request *requests; /* [n] */
    int32_t n;
    uint32_t n_persons; /* with 0, nobody in particular */
    char *persons[GS_TRACE_PERSONS];
} gs_trace;

/* A household trace (bench/family/README.md), one JSON object per line. */
int gs_trace_read(const char *path, gs_trace *out, char *err, size_t errlen);
void gs_trace_free(gs_trace *t);
/* A device: one of the built-in names, or a file as bench/devices holds them. */
int gs_device_read(const char *name, gs_sim_device *out, char *err, size_t errlen);
/* The same format, for `gamasot sim --print-device`. */
int gs_device_write(const gs_sim_device *d, const char *name, gs_buf *out);

#endif
