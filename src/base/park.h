/*
 * Stops threads where they are, for good: what the watchdog does to a step that does not come back.
 *
 * A thread can't be killed from outside without pulling it out of whatever it holds. It can be made
 * to stand still: a signal's handler that never returns. From then on the thread touches no memory
 * but its own stack, so what it worked on may be read, changed and freed by others. Locks that it
 * held stay locked: park only threads that are known to hold none.
 *
 *     if (gs_park(threads, n)) ...          // all stand still
 *     gs_unpark();                          // a mistake: those of the last gs_park go on
 *
 * Threads that block GS_PARK_SIGNAL can't be parked. Owner: one thread calls both.
 */
#ifndef GS_BASE_PARK_H
#define GS_BASE_PARK_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#define GS_PARK_SIGNAL SIGUSR2

/* False: within two seconds not all stood still (a thread in the kernel that takes no signal, or
 * one that has ended); those that do go on again. What the parked threads wrote is visible. */
bool gs_park(const pthread_t *threads, int n);
void gs_unpark(void);

#endif
