/*
 * How the kernel treats a thread.
 *
 * Kernel workers compute without a pause, one on each core. A thread that only passes on what they
 * have made (an event loop, a client that takes times) sleeps most of the time, but when it wakes a
 * core is busy, and Linux may let the worker there go on until its slice or the tick ends: up to
 * 4 ms, as long as a token takes. With a shorter slice of its own it gets the core at once (EEVDF,
 * Linux 6.12; sched_setattr(2)). It needs no privilege and gives no larger part of the processor.
 */
#ifndef GS_BASE_THREAD_H
#define GS_BASE_THREAD_H

#include <stdbool.h>

/* The calling thread; threads that it starts are as usual again. False: the kernel knows no slices,
 * or does not allow it, and nothing has changed. */
bool gs_thread_wake_soon(void);

#endif
