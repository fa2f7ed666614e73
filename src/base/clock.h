/*
 * Time. Monotonic nanoseconds for everything that is measured or scheduled; wall-clock seconds
 * only for what is shown to people. sched and kv never include this header: time is an argument.
 */
#ifndef GS_BASE_CLOCK_H
#define GS_BASE_CLOCK_H

#include <stdint.h>

#define GS_NS_PER_US 1000LL
#define GS_NS_PER_MS 1000000LL
#define GS_NS_PER_S  1000000000LL

int64_t gs_now_ns(void); /* CLOCK_MONOTONIC */
int64_t gs_wall_s(void); /* seconds since 1970, UTC */
int64_t gs_wall_ms(void);
/* What a clock on the wall shows then, in the process's time zone: weekday (0: Sunday) and minute
 * of the day. */
void gs_wall_local(int64_t wall_s, int *weekday, int *minute);

#endif
