/*
 * Energy of the processor packages as Linux tells it (RAPL through the powercap interface).
 * Source: https://docs.kernel.org/power/powercap/powercap.html. Owner: the event-loop thread; the
 * files are the kernel's, nothing waits for a disk.
 */
#ifndef GS_METRICS_ENERGY_H
#define GS_METRICS_ENERGY_H

#include <stdint.h>

#define GS_ENERGY_PACKAGES 8

typedef struct gs_energy {
    int n; /* packages that can be read; 0: the machine does not tell, or not us */
    int fds[GS_ENERGY_PACKAGES];
    uint64_t range_uj[GS_ENERGY_PACKAGES]; /* where its counter begins again; 0: unknown */
    uint64_t last_uj[GS_ENERGY_PACKAGES];
    double joules; /* since it was opened */
} gs_energy;

/* folder: NULL for the system's, /sys/class/powercap. */
void gs_energy_open(gs_energy *e, const char *folder);
void gs_energy_close(gs_energy *e);
/* Joules since it was opened, NaN where nothing is told. To be called more often than a counter
 * begins again (some minutes under full load). */
double gs_energy_read(gs_energy *e);

#endif
