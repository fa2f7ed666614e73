/*
 * Private to cli/: machines for `gamasot sim` and `gamasot tune`. A device is a file as
 * bench/devices holds them: step times, sizes, noise. `gamasot serve` leaves one of the machine it
 * runs on, device.json in the state folder.
 */
#ifndef GS_CLI_DEVICE_H
#define GS_CLI_DEVICE_H

#include "sched/sim.h"

/* NAME: a built-in one, or a file. NULL: this machine as the latest start of a server measured it,
 * else xeon2-135m. label: what was taken, for people. */
int gs_device_read(const char *name, gs_sim_device *out, char label[256], char *err, size_t errlen);
/* The same format. */
int gs_device_write(const gs_sim_device *d, const char *name, gs_buf *out);
/* Writes device.json; a failure is logged. */
void gs_device_keep(const gs_sim_device *d, const char *name);

#endif
