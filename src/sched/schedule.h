/*
 * Hours of the week: when something may run.
 *
 *     "22:00-07:00"                        every night; it belongs to the day it begins on
 *     "mon-fri 22:00-07:00, sat, sun"      nights of working days, and whole weekends
 *     "12:00-13:00, fri 18:00-24:00"       several windows
 *     ""                                   always
 *
 * Windows are what a clock on the wall shows. So the night in which clocks go forward is an hour
 * shorter and the one in which they go back an hour longer; a window that lies inside the missing
 * hour does not open that day, one inside the doubled hour opens twice.
 *
 * Pure: what a wall shows at a point in time is asked of a function (gs_wall_local of base/clock.h
 * in the server). Any thread.
 */
#ifndef GS_SCHED_SCHEDULE_H
#define GS_SCHED_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GS_SCHEDULE_WINDOWS 16

typedef struct gs_schedule_window {
    uint8_t days;     /* bit 0: Sunday */
    int16_t from, to; /* minutes of the day, 0..1440; to <= from: until that time of the next day */
} gs_schedule_window;

typedef struct gs_schedule {
    gs_schedule_window windows[GS_SCHEDULE_WINDOWS];
    int n; /* 0: always */
} gs_schedule;

/* Seconds since 1970 -> what a clock on the wall shows: weekday (0: Sunday), minute of the day. */
typedef void (*gs_local_fn)(int64_t wall_s, int *weekday, int *minute);

/* GS_OK, or GS_ERR_INVALID with a sentence that names the part that is wrong. */
int gs_schedule_parse(const char *text, gs_schedule *out, char *err, size_t errlen);
bool gs_schedule_is_open(const gs_schedule *s, int64_t wall_s, gs_local_fn local);
/* The next time, later than wall_s, at which it opens or closes; INT64_MAX: it never does. */
int64_t gs_schedule_next(const gs_schedule *s, int64_t wall_s, gs_local_fn local);
/* Seconds of [from_s, to_s) in which both are open. Looks at most a year ahead. */
int64_t gs_schedule_open_s(const gs_schedule *a, const gs_schedule *b, int64_t from_s, int64_t to_s,
                           gs_local_fn local);

#endif
