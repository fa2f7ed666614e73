#include "sched/schedule.h"

#include <string.h>
#include <strings.h>

#include "base/err.h"

#define DAY_MIN  1440
#define WEEK_S   (7 * 86400)
#define YEAR_S   (366 * 86400LL)
#define ALL_DAYS 0x7f

/* ---- Text ---------------------------------------------------------------------------------- */

static const char *skip(const char *at) {
    return at + strspn(at, " \t");
}

/* Three letters, or the whole word, in any case. */
static int read_day(const char **at) {
    static const char *const names[] = {"sunday",   "monday", "tuesday", "wednesday",
                                        "thursday", "friday", "saturday"};
    size_t n = strspn(*at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    for (int d = 0; d < 7; d++) {
        if ((n == 3 || n == strlen(names[d])) && strncasecmp(*at, names[d], n) == 0) {
            *at += n;
            return d;
        }
    }
    return -1;
}

static bool read_days(const char **at, uint8_t *days) {
    int first = read_day(at), last = first;
    if (first < 0)
        return false;
    const char *dash = skip(*at);
    if (*dash == '-') {
        *at = skip(dash + 1);
        last = read_day(at);
        if (last < 0)
            return false;
    }
    *days = 0;
    for (int d = first;; d = (d + 1) % 7) {
        *days |= (uint8_t)(1u << d);
        if (d == last)
            return true;
    }
}

static bool read_number(const char **at, int max, int *out) {
    int n = 0, digits = 0;
    for (; **at >= '0' && **at <= '9' && digits < 3; digits++)
        n = 10 * n + *(*at)++ - '0';
    *out = n;
    return digits >= 1 && digits <= 2 && n <= max;
}

static bool read_time(const char **at, int16_t *out) {
    int h, m;
    if (!read_number(at, 24, &h) || **at != ':')
        return false;
    ++*at;
    if (!read_number(at, 59, &m) || 60 * h + m > DAY_MIN)
        return false;
    *out = (int16_t)(60 * h + m);
    return true;
}

/* [days] [from-to], not both absent. */
static bool read_window(const char **at, gs_schedule_window *w) {
    *w = (gs_schedule_window){.days = ALL_DAYS, .from = 0, .to = DAY_MIN};
    *at = skip(*at);
    bool named = **at < '0' || **at > '9';
    if (named && !read_days(at, &w->days))
        return false;
    *at = skip(*at);
    if (named && (**at == '\0' || **at == ','))
        return true;
    if (!read_time(at, &w->from))
        return false;
    *at = skip(*at);
    if (**at != '-')
        return false;
    *at = skip(*at + 1);
    if (!read_time(at, &w->to))
        return false;
    *at = skip(*at);
    return w->from < DAY_MIN && w->from != w->to && (**at == '\0' || **at == ',');
}

int gs_schedule_parse(const char *text, gs_schedule *out, char *err, size_t errlen) {
    *out = (gs_schedule){0};
    if (*skip(text) == '\0')
        return GS_OK;
    for (const char *at = text;; at++) {
        const char *from = skip(at);
        if (out->n == GS_SCHEDULE_WINDOWS)
            return gs_fail(err, errlen, GS_ERR_INVALID, "a schedule has at most %d windows",
                           GS_SCHEDULE_WINDOWS);
        if (!read_window(&at, &out->windows[out->n++]))
            return gs_fail(err, errlen, GS_ERR_INVALID,
                           "'%.*s' is no window such as 22:00-07:00, mon-fri 22:00-07:00 or sat",
                           (int)strcspn(from, ",") < 40 ? (int)strcspn(from, ",") : 40, from);
        if (*at == '\0')
            return GS_OK;
    }
}

/* ---- Time ---------------------------------------------------------------------------------- */

bool gs_schedule_is_open(const gs_schedule *s, int64_t wall_s, gs_local_fn local) {
    int today, minute;
    if (s->n == 0)
        return true;
    local(wall_s, &today, &minute);
    const int before = (today + 6) % 7;
    for (int i = 0; i < s->n; i++) {
        const gs_schedule_window *w = &s->windows[i];
        const bool night = w->to <= w->from;
        if ((w->days >> today & 1) && minute >= w->from && (night || minute < w->to))
            return true;
        if (night && (w->days >> before & 1) && minute < w->to)
            return true;
    }
    return false;
}

/* All time zones of today keep to whole minutes, and so do windows: looking at each minute of a
 * week can't miss a change, whatever the clocks do. */
int64_t gs_schedule_next(const gs_schedule *s, int64_t wall_s, gs_local_fn local) {
    if (s->n == 0)
        return INT64_MAX;
    const bool open = gs_schedule_is_open(s, wall_s, local);
    const int64_t minute = wall_s - wall_s % 60;
    for (int64_t t = minute + 60; t <= minute + WEEK_S + 86400; t += 60)
        if (gs_schedule_is_open(s, t, local) != open)
            return t;
    return INT64_MAX;
}

int64_t gs_schedule_open_s(const gs_schedule *a, const gs_schedule *b, int64_t from_s, int64_t to_s,
                           gs_local_fn local) {
    int64_t sum = 0;
    if (to_s > from_s + YEAR_S)
        to_s = from_s + YEAR_S;
    for (int64_t at = from_s; at < to_s;) {
        const int64_t next_a = gs_schedule_next(a, at, local);
        const int64_t next_b = gs_schedule_next(b, at, local);
        int64_t next = next_a < next_b ? next_a : next_b;
        next = next < to_s ? next : to_s;
        if (gs_schedule_is_open(a, at, local) && gs_schedule_is_open(b, at, local))
            sum += next - at;
        at = next;
    }
    return sum;
}
