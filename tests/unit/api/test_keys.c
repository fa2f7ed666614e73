/* The file of keys: what is written is read again, what is wrong is named, who is who. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "api/keys.h"
#include "base/rng.h"
#include "oom.h"
#include "unit/folder.h"
#include "unit/scale.h"

#define HASH "\"hash\":\"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\""

static char err[600];

static void add(gs_keys *keys, const char *name, const char *nets, char secret[GS_KEY_SECRET]) {
    gs_key k;
    gs_key_default(&k, name);
    assert_int_equal(gs_key_make_secret(&k, secret), 0);
    for (const char *at = nets; *at; at += strcspn(at, " "), at += strspn(at, " ")) {
        char one[64];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(at, " "), at);
        assert_int_equal(gs_key_net_parse(one, &k.nets[k.n_nets++], err, sizeof err), 0);
    }
    assert_int_equal(gs_keys_add(keys, &k, err, sizeof err), 0);
}

static void a_secret_finds_its_key_alone(void **state) {
    (void)state;
    gs_keys keys = {0};
    char a[GS_KEY_SECRET], b[GS_KEY_SECRET], wrong[GS_KEY_SECRET];
    add(&keys, "a", "", a);
    add(&keys, "b", "", b);
    assert_string_not_equal(a, b);
    assert_int_equal(strlen(a), GS_KEY_SECRET - 1);
    assert_string_equal(gs_keys_by_secret(&keys, a)->name, "a");
    assert_string_equal(gs_keys_by_secret(&keys, b)->name, "b");
    for (size_t i = 0; i < GS_KEY_SECRET - 1; i++) {
        memcpy(wrong, a, sizeof wrong);
        wrong[i] ^= 1;
        assert_null(gs_keys_by_secret(&keys, wrong));
    }
    assert_null(gs_keys_by_secret(&keys, ""));
    assert_null(gs_keys_by_secret(&keys, NULL));
    assert_int_equal(gs_keys_remove(&keys, "a"), 0);
    assert_int_equal(gs_keys_remove(&keys, "a"), GS_ERR_NOT_FOUND);
    assert_null(gs_keys_by_secret(&keys, a));
    assert_string_equal(gs_keys_by_secret(&keys, b)->name, "b");
    gs_keys_deinit(&keys);
}

static int64_t time_of(const gs_keys *keys, const char *secret) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    const gs_key *k = gs_keys_by_secret(keys, secret);
    clock_gettime(CLOCK_MONOTONIC, &b);
    assert_null(k);
    return (int64_t)(b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec;
}

/* Mean and variance, one after another (Welford). */
typedef struct moments {
    double n, mean, sum_squares;
} moments;

static void take(moments *m, double x) {
    const double d = x - m->mean;
    m->n++;
    m->mean += d / m->n;
    m->sum_squares += d * (x - m->mean);
}

/*
 * Secrets that agree with a key in all but the last digit, and in nothing: Welch's t of their
 * times, in random order, without what an interrupt made long. Beyond 4.5 they would differ
 * (dudect).
 */
static void the_time_says_nothing_of_a_key(void **state) {
    (void)state;
    const int n = scale(100000, 1000000);
    gs_keys keys = {0};
    gs_rng rng;
    char near[GS_KEY_SECRET], far[GS_KEY_SECRET], right[GS_KEY_SECRET];
    for (int i = 0; i < 8; i++) {
        char name[8];
        snprintf(name, sizeof name, "k%d", i);
        add(&keys, name, "", right);
    }
    memcpy(near, right, sizeof near);
    near[GS_KEY_SECRET - 2] = near[GS_KEY_SECRET - 2] == '0' ? '1' : '0';
    memset(far, 'x', sizeof far);
    far[GS_KEY_SECRET - 1] = '\0';
    gs_rng_seed(&rng, 11);
    int64_t fastest = INT64_MAX;
    for (int i = 0; i < 1000; i++) {
        const int64_t ns = time_of(&keys, far);
        fastest = ns < fastest ? ns : fastest;
    }
    double t = 0;
    /* Three tries: one in 100,000 is beyond by chance, a busy machine adds some. */
    for (int attempt = 0; attempt < 3 && (attempt == 0 || fabs(t) >= 4.5); attempt++) {
        moments m[2] = {{0}};
        for (int i = 0; i < n; i++) {
            const size_t which = gs_rng_below(&rng, 2);
            const int64_t ns = time_of(&keys, which ? near : far);
            if (ns < 4 * fastest)
                take(&m[which], (double)ns);
        }
        assert_true(m[0].n > n / 4.0 && m[1].n > n / 4.0);
        t = (m[0].mean - m[1].mean) / sqrt(m[0].sum_squares / (m[0].n - 1) / m[0].n +
                                           m[1].sum_squares / (m[1].n - 1) / m[1].n);
        print_message("t = %.2f of %.0f and %.0f\n", t, m[0].n, m[1].n);
    }
    assert_true(fabs(t) < 4.5);
    gs_keys_deinit(&keys);
}

static void addresses_belong_to_the_narrowest_net(void **state) {
    (void)state;
    static const struct {
        const char *peer, *name;
    } cases[] = {
        {"192.168.1.20", "ha"},  {"::ffff:192.168.1.20", "ha"},
        {"192.168.1.21", "lan"}, {"192.168.1.255", "lan"},
        {"192.168.2.1", NULL},   {"192.168.0.255", NULL},
        {"10.1.2.3", "ten"},     {"11.0.0.0", NULL},
        {"fd00::1", "ula"},      {"fd00:0:0:0:ffff::", "ula"},
        {"fd00:0:0:1::1", NULL}, {"2001:db8::5", "one"},
        {"2001:db8::6", NULL},   {"127.0.0.1", NULL},
        {"fe80::1%eth0", NULL},  {"", NULL},
        {"172.16.0.9", "odd"},   {"172.16.0.8", "odd"},
        {"172.16.0.7", NULL},    {"172.16.0.10", NULL},
    };
    gs_keys keys = {0};
    char s[GS_KEY_SECRET];
    add(&keys, "lan", "192.168.1.0/24", s);
    add(&keys, "ha", "192.168.1.20 172.16.9.1", s);
    add(&keys, "ten", "10.0.0.0/8", s);
    add(&keys, "ula", "fd00::/64", s);
    add(&keys, "one", "2001:db8::5", s);
    add(&keys, "odd", "172.16.0.8/31", s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const gs_key *k = gs_keys_by_address(&keys, cases[i].peer);
        if (!cases[i].name ? k != NULL : !k || strcmp(k->name, cases[i].name) != 0)
            fail_msg("%s: %s", cases[i].peer, k ? k->name : "nobody");
    }
    gs_keys_deinit(&keys);
}

static void bad_addresses_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        "x",
        "1.2.3",
        "1.2.3.4/33",
        "1.2.3.4/",
        "1.2.3.4/-1",
        "::1/129",
        "1.2.3.4/8x",
        "1.2.3.4/+8",
        "::1/",
        "1.2.3.4 ",
        "/8",
        "1.2.3.4 and then more than an address can have, of any kind"};
    gs_key_net net;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (gs_key_net_parse(bad[i], &net, err, sizeof err) == 0)
            fail_msg("%s was accepted", bad[i]);
    }
    static const char *const good[] = {"1.2.3.4", "10.0.0.0/8", "0.0.0.0/0", "::/0", "fd00::/64"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char text[64];
        assert_int_equal(gs_key_net_parse(good[i], &net, err, sizeof err), 0);
        gs_key_net_text(&net, text, sizeof text);
        assert_string_equal(text, good[i]);
    }
}

static void a_file_is_read_as_it_was_written(void **state) {
    (void)state;
    char dir[] = "/tmp/gamasot-keys-XXXXXX", path[64], secret[GS_KEY_SECRET];
    gs_keys keys = {0}, again;
    struct stat st;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/keys.json", dir);
    assert_int_equal(gs_keys_load(path, &again, err, sizeof err), 0);
    assert_int_equal(again.n, 0);
    add(&keys, "plain", "", secret);
    add(&keys, "full", "192.168.1.20 fd00::/64", secret);
    gs_key *k = &keys.items[1];
    snprintf(k->person, sizeof k->person, "\xed\x95\xa0\xeb\xa8\xb8\xeb\x8b\x88 \"x\"");
    snprintf(k->cache_scope, sizeof k->cache_scope, "home");
    k->cls = GS_CLASS_VOICE;
    k->classes = 1u << GS_CLASS_VOICE | 1u << GS_CLASS_CHAT;
    k->weight = 2.5f;
    k->max_running = 3;
    k->max_queued = 4;
    k->day_seconds = 600;
    k->trusted_proxy = k->admin = true;
    k->created_s = 1795995843;
    assert_int_equal(gs_keys_save(path, &keys, err, sizeof err), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    if (gs_keys_load(path, &again, err, sizeof err) != 0)
        fail_msg("%s", err);
    assert_int_equal(again.n, 2);
    assert_memory_equal(again.items, keys.items, 2 * sizeof *keys.items);
    assert_string_equal(gs_keys_by_secret(&again, secret)->name, "full");
    gs_keys_deinit(&again);
    /* A write that fails leaves the old file. */
    gs_keys_remove(&keys, "plain");
    for (uint64_t nth = 1; nth < 20; nth++) {
        gs_fault_set(GS_FAULT_WRITE, nth, ENOSPC);
        int rc = gs_keys_save(path, &keys, err, sizeof err);
        gs_fault_clear();
        if (rc == 0)
            break;
        assert_int_equal(gs_keys_load(path, &again, err, sizeof err), 0);
        assert_int_equal(again.n, 2);
        gs_keys_deinit(&again);
    }
    assert_int_equal(gs_keys_load(path, &again, err, sizeof err), 0);
    assert_int_equal(again.n, 1);
    gs_keys_deinit(&again);
    gs_keys_deinit(&keys);
    unlink(path);
    assert_int_equal(rmdir(dir), 0); /* nothing is left beside it */
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "JSON"},
        {"[]", "'keys'"},
        {"{\"keys\":{}}", "'keys'"},
        {"{\"keys\":[1]}", "keys[0]"},
        {"{\"keys\":[{}]}", "name"},
        {"{\"keys\":[{\"name\":\"a b\"," HASH "}]}", "name"},
        {"{\"keys\":[{\"name\":\"a\"}]}", "hash"},
        {"{\"keys\":[{\"name\":\"a\",\"hash\":\"sha256:00\"}]}", "hash"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"weight\":0}]}", "weight"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"weight\":\"1\"}]}", "weight"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"max_running\":-1}]}", "max_running"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"admin\":1}]}", "admin"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"class\":\"best\"}]}", "best"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"class\":1}]}", "class"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"classes\":\"chat\"}]}", "classes"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"classes\":[\"x\"]}]}", "'x'"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"addresses\":[\"x\"]}]}", "'x'"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"addresses\":1}]}", "addresses"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"addresses\":[1]}]}", "strings"},
        {"{\"keys\":[{\"name\":\"a\"," HASH
         ",\"addresses\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,"
         "17]}]}",
         "more than 16"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"schedule\":\"whenever\"}]}", "schedule"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"person\":\"a\\u0007\"}]}", "person"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"person\":\"a\\u007f\"}]}", "person"},
        {"{\"keys\":[{\"name\":\"a\"," HASH ",\"cache_scope\":\"\\n\"}]}", "cache_scope"},
        {"{\"keys\":[{\"name\":\"a\",\"hash\":\"md5:00\"}]}", "hash"},
        {"{\"keys\":[{\"name\":\"a\",\"hash\":\"sha256:"
         "x3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"}]}",
         "hash"},
        {"{\"keys\":[{\"name\":\"a\",\"hash\":\"sha256:"
         "ex b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85\"}]}",
         "hash"},
        {"{\"version\":2,\"keys\":[]}", "newer"},
        {"{\"keys\":[{\"name\":\"a\"," HASH "},{\"name\":\"a\"," HASH "}]}", "already"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gs_keys keys;
        err[0] = '\0';
        int rc =
            gs_keys_parse("k.json", cases[i].text, strlen(cases[i].text), &keys, err, sizeof err);
        if (rc == 0 || !strstr(err, cases[i].says) || strncmp(err, "k.json", 6) != 0)
            fail_msg("%s: %d '%s'", cases[i].text, rc, err);
        assert_null(keys.items);
    }
}

static void a_key_may_not_ask_for_voice_unless_told(void **state) {
    (void)state;
    gs_keys keys;
    const char *text =
        "{\"keys\":[{\"name\":\"a\"," HASH "},{\"name\":\"b\",\"class\":\"voice\"," HASH
        "},{\"name\":\"c\",\"classes\":[\"chat\"],\"class\":\"utility\"," HASH "}]}";
    assert_int_equal(gs_keys_parse("k", text, strlen(text), &keys, err, sizeof err), 0);
    assert_int_equal(keys.items[0].classes, GS_CLASSES_ALL & ~(1u << GS_CLASS_VOICE));
    assert_int_equal(keys.items[0].cls, -1);
    assert_int_equal(keys.items[1].classes, GS_CLASSES_ALL);
    assert_int_equal(keys.items[2].classes, 1u << GS_CLASS_CHAT | 1u << GS_CLASS_UTILITY);
    assert_string_equal(keys.items[0].person, "a");
    gs_keys_deinit(&keys);
}

static void addresses_are_read_and_written(void **state) {
    (void)state;
    static const char *const same[] = {"192.168.1.20",  "10.0.0.0/8", "0.0.0.0/0", "fd00::/64",
                                       "::ffff:0:0/97", "::1",        "::/0"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        gs_key_net net;
        char text[64];
        assert_int_equal(gs_key_net_parse(same[i], &net, err, sizeof err), 0);
        gs_key_net_text(&net, text, sizeof text);
        /* What is within ::ffff:0:0/96 is IPv4. */
        assert_string_equal(text, strchr(same[i], 'f') == same[i] + 2 ? "0.0.0.0/1" : same[i]);
    }
}

/* What can't be read, or is no file of keys at all, is said with its name; nothing is held then. */
static void files_that_are_none(void **state) {
    (void)state;
    char dir[64], path[100];
    gs_keys keys;
    assert_int_equal(new_folder(dir), 0);
    assert_int_equal(gs_keys_load(dir, &keys, err, sizeof err), GS_ERR_INVALID);
    assert_non_null(strstr(err, "regular"));
    snprintf(path, sizeof path, "%s/keys.json/below", dir);
    assert_int_equal(gs_keys_load(path, &keys, err, sizeof err), 0); /* there is none */
    snprintf(path, sizeof path, "%s/keys.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(gs_keys_load(path, &keys, err, sizeof err), GS_ERR_FORMAT); /* empty */
    assert_int_equal(truncate(path, (1 << 20) + 1), 0);
    assert_int_equal(gs_keys_load(path, &keys, err, sizeof err), GS_ERR_TOO_LARGE);
    assert_int_equal(truncate(path, 9000), 0);
    for (uint64_t nth = 1; nth <= 3; nth++) {
        gs_fault_set(GS_FAULT_READ, nth, EIO);
        assert_int_equal(gs_keys_load(path, &keys, err, sizeof err), GS_ERR_IO);
        gs_fault_clear();
        assert_non_null(strstr(err, path));
        assert_null(keys.items);
    }
    char through[140];
    snprintf(through, sizeof through, "%s/below", path); /* a file is no folder */
    assert_int_equal(gs_keys_load(through, &keys, err, sizeof err), GS_ERR_IO);
    assert_int_equal(drop_folder(dir), 0);
}

static void there_is_an_end_to_keys(void **state) {
    (void)state;
    gs_keys keys = {0};
    gs_key k;
    char name[32];
    int n = 0, rc;
    do {
        snprintf(name, sizeof name, "k%d", n);
        gs_key_default(&k, name);
        rc = gs_keys_add(&keys, &k, err, sizeof err);
    } while (rc == 0 && ++n < 100000);
    assert_int_equal(rc, GS_ERR_TOO_LARGE);
    assert_int_equal(n, GS_MAX_KEYS);
    gs_keys_deinit(&keys);
}

static int load_again(void *path) {
    gs_keys keys;
    int rc = gs_keys_load(path, &keys, err, sizeof err);
    assert_int_equal(keys.n, rc == 0 ? 2 : 0);
    gs_keys_deinit(&keys);
    return rc;
}

static int write_again(void *keys) {
    gs_buf text = {0};
    int rc = gs_keys_write(keys, &text);
    gs_buf_deinit(&text);
    return rc;
}

static const char *saved_to;

static int save_again(void *keys) {
    return gs_keys_save(saved_to, keys, err, sizeof err);
}

static void without_memory(void **state) {
    (void)state;
    char dir[64], path[100], secret[GS_KEY_SECRET];
    gs_keys keys = {0};
    assert_int_equal(new_folder(dir), 0);
    snprintf(path, sizeof path, "%s/keys.json", dir);
    saved_to = path;
    add(&keys, "a", "10.0.0.1", secret);
    add(&keys, "b", "", secret);
    assert_true(each_allocation_fails("write", write_again, &keys, 0) > 0);
    assert_true(each_allocation_fails("save", save_again, &keys, 0) > 0);
    assert_true(each_allocation_fails("load", load_again, path, OOM_OWN) > 1);
    gs_keys_deinit(&keys);
    assert_int_equal(drop_folder(dir), 0);
}

/* Else the fuzzer would begin with a refusal. */
static void the_fuzzers_seed_is_read(void **state) {
    (void)state;
    gs_keys keys;
    const char *path = "tests/fuzz/corpus/fuzz_api_keys/all";
    assert_int_equal(gs_keys_load(path, &keys, err, sizeof err), 0);
    assert_int_equal(keys.n, 1);
    gs_keys_deinit(&keys);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_secret_finds_its_key_alone),
        cmocka_unit_test(the_time_says_nothing_of_a_key),
        cmocka_unit_test(addresses_belong_to_the_narrowest_net),
        cmocka_unit_test(bad_addresses_are_refused),
        cmocka_unit_test(a_file_is_read_as_it_was_written),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(addresses_are_read_and_written),
        cmocka_unit_test(files_that_are_none),
        cmocka_unit_test(there_is_an_end_to_keys),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(the_fuzzers_seed_is_read),
        cmocka_unit_test(a_key_may_not_ask_for_voice_unless_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
