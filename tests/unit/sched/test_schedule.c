/* Hours of the week, over changes of the clocks in four zones and over midnight. Expectations were
 * worked out by hand from the dates of the changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "sched/schedule.h"

#define H 3600

static void in_zone(const char *zone) {
    char path[128];
    snprintf(path, sizeof(path), "/usr/share/zoneinfo/%s", zone);
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s is missing: install tzdata", path);
    fclose(f);
    setenv("TZ", zone, 1);
    tzset();
}

static gs_schedule parse(const char *text) {
    gs_schedule s;
    char err[160] = "";
    if (gs_schedule_parse(text, &s, err, sizeof(err)) != GS_OK)
        fail_msg("%s: %s", text, err);
    return s;
}

/* "2026-03-29 01:00" as UTC. */
static int64_t utc(const char *text) {
    struct tm tm = {0};
    assert_int_equal(sscanf(text, "%d-%d-%d %d:%d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
                            &tm.tm_hour, &tm.tm_min),
                     5);
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    return timegm(&tm);
}

static bool is_open(const char *schedule, const char *at_utc) {
    gs_schedule s = parse(schedule);
    return gs_schedule_is_open(&s, utc(at_utc), gs_wall_local);
}

static void check_next(const char *schedule, const char *at_utc, const char *want_utc) {
    gs_schedule s = parse(schedule);
    int64_t got = gs_schedule_next(&s, utc(at_utc), gs_wall_local);
    if (got != utc(want_utc))
        fail_msg("%s after %s: %lld s off", schedule, at_utc, (long long)(got - utc(want_utc)));
}

static int64_t open_s(const char *schedule, const char *from_utc, const char *to_utc) {
    gs_schedule s = parse(schedule);
    const gs_schedule always = {0};
    return gs_schedule_open_s(&always, &s, utc(from_utc), utc(to_utc), gs_wall_local);
}

/* ---- text ---- */

static void what_is_no_schedule(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"nonsense", "'nonsense'"},
        {"22:00", "'22:00'"},
        {"22:00-", "'22:00-'"},
        {"25:00-07:00", "'25:00-07:00'"},
        {"24:01-07:00", "'24:01-07:00'"},
        {"24:00-07:00", "'24:00-07:00'"},
        {"22:60-07:00", "'22:60-07:00'"},
        {"22:00-22:00", "'22:00-22:00'"},
        {"22-07", "'22-07'"},
        {"mon-", "'mon-'"},
        {"mon-fri 22:00-07:00,", "''"},
        {"sat, , sun", "''"},
        {"mon 22:00-07:00 x", "'mon 22:00-07:00 x'"},
        {"mo 22:00-07:00", "'mo 22:00-07:00'"},
        {"001:00-002:00", "'001:00-002:00'"},
        {"sat,sat,sat,sat,sat,sat,sat,sat,sat,sat,sat,sat,sat,sat,sat,sat,sat", "at most 16"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        gs_schedule s;
        char err[160] = "";
        assert_int_equal(gs_schedule_parse(bad[i].text, &s, err, sizeof(err)), GS_ERR_INVALID);
        if (!strstr(err, bad[i].says))
            fail_msg("%s: %s", bad[i].text, err);
    }
}

static void forms_of_the_same(void **state) {
    (void)state;
    gs_schedule a = parse("mon-fri 22:00-7:00, sat, sun");
    gs_schedule b = parse("  Monday - FRIDAY  22:00 - 07:00 ,Sat,sunday 0:00-24:00 ");
    assert_int_equal(a.n, 3);
    assert_int_equal(b.n, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a.windows[i].days, b.windows[i].days);
        assert_int_equal(a.windows[i].from, b.windows[i].from);
        assert_int_equal(a.windows[i].to, b.windows[i].to);
    }
    assert_int_equal(a.windows[0].days, 0x3e);
    assert_int_equal(parse("fri-mon 10:00-11:00").windows[0].days, 0x63);
    assert_int_equal(parse("").n, 0);
    assert_int_equal(parse("  ").n, 0);
}

static void always(void **state) {
    (void)state;
    gs_schedule s = parse(""), week = parse("00:00-24:00");
    assert_true(gs_schedule_is_open(&s, 0, gs_wall_local));
    assert_true(gs_schedule_next(&s, 1000, gs_wall_local) == INT64_MAX);
    assert_int_equal(gs_schedule_open_s(&s, &s, 100, 700, gs_wall_local), 600);
    assert_true(gs_schedule_next(&week, 1000, gs_wall_local) == INT64_MAX);
    assert_int_equal(gs_schedule_open_s(&week, &s, 100, 700, gs_wall_local), 600);
    assert_int_equal(gs_schedule_open_s(&week, &week, 700, 100, gs_wall_local), 0);
}

/* ---- midnight and days: Seoul is UTC+9 and has no summer time ---- */

static void nights_belong_to_the_day_they_begin_on(void **state) {
    (void)state;
    in_zone("Asia/Seoul");
    /* Friday 2026-01-02 22:30 in Seoul is 13:30 UTC. */
    assert_true(is_open("fri 22:00-07:00", "2026-01-02 13:30"));
    assert_true(is_open("fri 22:00-07:00", "2026-01-02 21:59"));  /* Saturday 06:59 */
    assert_false(is_open("fri 22:00-07:00", "2026-01-02 22:00")); /* Saturday 07:00 */
    assert_false(is_open("fri 22:00-07:00", "2026-01-02 12:59"));
    assert_false(is_open("fri 22:00-07:00", "2026-01-01 21:00")); /* Friday 06:00 */
    assert_false(is_open("fri 22:00-07:00", "2026-01-03 13:30")); /* Saturday 22:30 */
    check_next("22:00-07:00", "2026-01-02 12:00", "2026-01-02 13:00");
    check_next("22:00-07:00", "2026-01-02 13:00", "2026-01-02 22:00");
    check_next("fri 22:00-07:00", "2026-01-02 22:00", "2026-01-09 13:00");
    assert_int_equal(open_s("22:00-07:00", "2026-01-01 00:00", "2026-01-08 00:00"), 7 * 9 * H);
}

static void windows_that_touch_midnight(void **state) {
    (void)state;
    in_zone("Asia/Seoul");
    assert_true(is_open("20:00-24:00", "2026-01-02 14:59"));
    assert_false(is_open("20:00-24:00", "2026-01-02 15:00"));
    assert_true(is_open("00:00-06:00", "2026-01-02 15:00"));
    assert_true(is_open("22:00-00:00", "2026-01-02 14:59"));
    assert_false(is_open("22:00-00:00", "2026-01-02 15:00"));
    /* Two windows side by side are one: no change at midnight. */
    check_next("20:00-24:00, 00:00-06:00", "2026-01-02 12:00", "2026-01-02 21:00");
    assert_true(is_open("sat, sun", "2026-01-02 15:00"));
    check_next("sat, sun", "2026-01-02 15:00", "2026-01-04 15:00");
}

/* ---- Berlin: forward 2026-03-29 at 01:00 UTC (02:00 -> 03:00), back 2026-10-25 at 01:00 UTC
 * (03:00 -> 02:00) ---- */

static void the_short_and_the_long_night(void **state) {
    (void)state;
    in_zone("Europe/Berlin");
    assert_int_equal(open_s("22:00-07:00", "2026-03-27 12:00", "2026-03-28 12:00"), 9 * H);
    assert_int_equal(open_s("22:00-07:00", "2026-03-28 12:00", "2026-03-29 12:00"), 8 * H);
    assert_int_equal(open_s("22:00-07:00", "2026-10-24 12:00", "2026-10-25 12:00"), 10 * H);
    check_next("22:00-07:00", "2026-03-28 21:00", "2026-03-29 05:00");
    check_next("22:00-07:00", "2026-10-24 20:00", "2026-10-25 06:00");
    check_next("22:00-07:00", "2026-03-29 05:00", "2026-03-29 20:00");
}

static void a_window_in_the_missing_hour(void **state) {
    (void)state;
    in_zone("Europe/Berlin");
    check_next("02:15-02:45", "2026-03-28 12:00", "2026-03-30 00:15");
    check_next("02:15-03:30", "2026-03-29 00:00", "2026-03-29 01:00"); /* opens at 03:00 */
    check_next("02:15-03:30", "2026-03-29 01:00", "2026-03-29 01:30");
    check_next("01:00-02:30", "2026-03-29 00:30", "2026-03-29 01:00"); /* closes at 03:00 */
}

static void a_window_in_the_doubled_hour(void **state) {
    (void)state;
    in_zone("Europe/Berlin");
    check_next("02:15-02:45", "2026-10-24 12:00", "2026-10-25 00:15");
    check_next("02:15-02:45", "2026-10-25 00:15", "2026-10-25 00:45");
    check_next("02:15-02:45", "2026-10-25 00:45", "2026-10-25 01:15");
    assert_int_equal(open_s("02:15-02:45", "2026-10-24 12:00", "2026-10-25 12:00"), 2 * 1800);
    assert_int_equal(open_s("01:00-02:30", "2026-10-24 12:00", "2026-10-25 12:00"), 2 * H);
}

/* ---- New York: forward 2026-03-08 at 07:00 UTC, back 2026-11-01 at 06:00 UTC ---- */

static void new_york(void **state) {
    (void)state;
    in_zone("America/New_York");
    assert_int_equal(open_s("22:00-07:00", "2026-03-07 17:00", "2026-03-08 17:00"), 8 * H);
    assert_int_equal(open_s("22:00-07:00", "2026-10-31 17:00", "2026-11-01 17:00"), 10 * H);
    check_next("sun 01:30-04:00", "2026-03-08 06:30", "2026-03-08 08:00"); /* an hour and a half */
    check_next("sun 01:30-04:00", "2026-11-01 05:30", "2026-11-01 06:00");
    check_next("sun 01:30-04:00", "2026-11-01 06:00", "2026-11-01 06:30");
    check_next("sun 01:30-04:00", "2026-11-01 06:30", "2026-11-01 09:00");
}

/* ---- Lord Howe: half an hour. Back 2026-04-04 15:00 UTC (02:00 -> 01:30), forward 2026-10-03
 * 15:30 UTC (02:00 -> 02:30) ---- */

static void half_an_hour(void **state) {
    (void)state;
    in_zone("Australia/Lord_Howe");
    assert_int_equal(open_s("22:00-07:00", "2026-04-04 02:00", "2026-04-05 02:00"), 9 * H + 1800);
    assert_int_equal(open_s("22:00-07:00", "2026-10-03 02:00", "2026-10-04 02:00"), 9 * H - 1800);
    check_next("01:45-01:55", "2026-04-04 14:00", "2026-04-04 14:45");
    check_next("01:45-01:55", "2026-04-04 14:55", "2026-04-04 15:15");
    check_next("02:10-02:40", "2026-10-03 15:00", "2026-10-03 15:30");
}

static void what_two_leave_open(void **state) {
    (void)state;
    in_zone("Asia/Seoul");
    gs_schedule a = parse("22:00-07:00"), b = parse("sat 00:00-24:00, 06:00-08:00");
    int64_t from = utc("2026-01-02 00:00"), to = utc("2026-01-05 00:00"); /* from Friday 09:00 */
    /* Saturday 0-7 and 22-24, Sunday and Monday 6-7. */
    assert_int_equal(gs_schedule_open_s(&a, &b, from, to, gs_wall_local), (7 + 2 + 1 + 1) * H);
    assert_int_equal(gs_schedule_open_s(&b, &a, from, to, gs_wall_local), (7 + 2 + 1 + 1) * H);
}

/* A clock that is set only changes where one stands in the week. */
static void a_clock_that_is_set(void **state) {
    (void)state;
    in_zone("Europe/Berlin");
    gs_schedule s = parse("22:00-07:00");
    int64_t t = utc("2026-01-10 21:30"); /* 22:30 */
    assert_true(gs_schedule_is_open(&s, t, gs_wall_local));
    assert_false(gs_schedule_is_open(&s, t - H, gs_wall_local));
    assert_int_equal(gs_schedule_next(&s, t - H, gs_wall_local), utc("2026-01-10 21:00"));
    assert_int_equal(gs_schedule_next(&s, t + H, gs_wall_local), utc("2026-01-11 06:00"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_schedule),
        cmocka_unit_test(forms_of_the_same),
        cmocka_unit_test(always),
        cmocka_unit_test(nights_belong_to_the_day_they_begin_on),
        cmocka_unit_test(windows_that_touch_midnight),
        cmocka_unit_test(the_short_and_the_long_night),
        cmocka_unit_test(a_window_in_the_missing_hour),
        cmocka_unit_test(a_window_in_the_doubled_hour),
        cmocka_unit_test(new_york),
        cmocka_unit_test(half_an_hour),
        cmocka_unit_test(what_two_leave_open),
        cmocka_unit_test(a_clock_that_is_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
