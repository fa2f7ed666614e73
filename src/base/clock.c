#include "base/clock.h"

#include <time.h>

int64_t gs_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * GS_NS_PER_S + t.tv_nsec;
}

int64_t gs_wall_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec;
}

int64_t gs_wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / GS_NS_PER_MS;
}

void gs_wall_local(int64_t wall_s, int *weekday, int *minute) {
    const time_t t = (time_t)wall_s;
    struct tm tm;
    if (!localtime_r(&t, &tm)) /* a year that int can't hold */
        tm = (struct tm){0};
    *weekday = tm.tm_wday;
    *minute = 60 * tm.tm_hour + tm.tm_min;
}
