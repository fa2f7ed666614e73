/* Recording: what the file says, that no text is in it, and that it stays bounded. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/sys.h"
#include "load/record.h"

#define assert_near(a, b, most) assert_true(fabs((a) - (b)) <= (most))

enum { BLOCK = 16 };

static char dir[64];

static int setup(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/gamasot-record-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

/* The files' names, oldest first; removes them with remove. */
static int files(char names[64][400], bool remove, uint64_t *bytes) {
    struct dirent **d = NULL;
    const int n = scandir(dir, &d, NULL, alphasort);
    int k = 0;
    *bytes = 0;
    for (int i = 0; i < n; i++) {
        struct stat st;
        if (d[i]->d_name[0] != '.' && k < 64) {
            snprintf(names[k], 400, "%s/%s", dir, d[i]->d_name);
            if (stat(names[k], &st) == 0)
                *bytes += (uint64_t)st.st_size;
            if (remove)
                unlink(names[k]);
            k++;
        }
        free(d[i]);
    }
    free(d);
    return k;
}

static int teardown(void **state) {
    (void)state;
    char names[64][400];
    uint64_t bytes;
    files(names, true, &bytes);
    return rmdir(dir);
}

static gs_recorder *started(uint64_t max_bytes) {
    gs_recorder *r = NULL;
    char err[200] = "";
    const gs_record_config cfg = {dir, max_bytes, BLOCK};
    if (gs_recorder_create(&cfg, &r, err, sizeof err) != 0)
        fail_msg("%s", err);
    return r;
}

static gs_record_event event(const int32_t *tokens, int32_t n_prompt, int32_t n_output,
                             int64_t at_ns) {
    return (gs_record_event){.arrival_ns = at_ns,
                             .end_ns = at_ns + 500 * GS_NS_PER_MS,
                             .cls = GS_CLASS_CHAT,
                             .person = 3,
                             .stream = true,
                             .n_prompt = n_prompt,
                             .n_output = n_output,
                             .max_output = 100,
                             .tokens = tokens};
}

static gs_trace recorded(int n_files) {
    char names[64][400], err[200] = "";
    uint64_t bytes;
    gs_trace t;
    assert_int_equal(files(names, false, &bytes), n_files);
    if (gs_trace_read(names[n_files - 1], &t, err, sizeof err) != 0)
        fail_msg("%s", err);
    return t;
}

static void turns_are_found_and_no_text_is_kept(void **state) {
    (void)state;
    int32_t tokens[200];
    for (int i = 0; i < 200; i++)
        tokens[i] = 987650000 + i;
    gs_recorder *r = started(1 << 20);
    const int64_t t0 = gs_now_ns();
    gs_record_event e = event(tokens, 50, 20, t0);
    gs_recorder_add(r, &e);
    e = event(tokens, 100, 10, t0 + 3 * GS_NS_PER_S); /* goes on where the first one ended */
    e.cls = GS_CLASS_DOCUMENT;
    gs_recorder_add(r, &e);
    e = event(tokens, 40, 7, t0 + 4 * GS_NS_PER_S); /* begins alike, but is none of its turns */
    e.cancelled = true;
    gs_recorder_add(r, &e);
    e = event(tokens, 64, 0, t0 + 4 * GS_NS_PER_S);
    e.person = 4;
    e.api = GS_TRACE_EMBEDDINGS;
    e.n_texts = 5;
    e.tokens = NULL;
    e.stream = false;
    gs_recorder_add(r, &e);
    gs_recorder_free(r);
    gs_trace t = recorded(1);
    const gs_trace_request *q = t.requests;
    assert_int_equal(t.n, 4);
    assert_int_equal(q[1].after, 0);
    assert_near(q[1].think_s, 2.5, 0.01);
    assert_int_equal(q[1].cls, GS_CLASS_DOCUMENT);
    assert_int_equal(q[0].n_output, 20);
    assert_int_equal(q[2].n_output, 100); /* as long as it might have been */
    assert_near(q[2].cancel_after_s, 0.5, 0.01);
    assert_int_equal(q[2].after, -1);
    assert_int_equal(q[3].after, -1);
    assert_int_equal(q[3].n_texts, 5);
    assert_int_equal(q[3].n_prompt, 64);
    assert_int_equal(q[3].n_blocks, 0); /* no later prompt finds it in the prefix cache */
    assert_string_equal(t.persons[q[0].name], "3");
    /* 70 and 110 tokens: four and six whole blocks, the first four alike. */
    assert_int_equal(q[0].n_blocks, 4);
    assert_int_equal(q[1].n_blocks, 6);
    assert_memory_equal(q[0].blocks, q[1].blocks, 4 * sizeof(uint64_t));
    assert_int_not_equal(q[0].blocks[0], q[0].blocks[1]);
    gs_trace_free(&t);

    char names[64][400];
    uint64_t bytes;
    const void *text;
    size_t n;
    files(names, false, &bytes);
    assert_int_equal(gs_map_file(names[0], &text, &n, NULL, 0), 0);
    assert_null(memmem(text, n, "98765", 5)); /* no token, so no text */
    gs_unmap(text, n);
}

/* The same text under another start's salt has other hashes. */
static void salts_differ(void **state) {
    (void)state;
    int32_t tokens[64] = {1, 2, 3};
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        char names[64][400];
        uint64_t bytes;
        gs_recorder *r = started(1 << 20);
        gs_record_event e = event(tokens, 32, 0, gs_now_ns());
        gs_recorder_add(r, &e);
        gs_recorder_free(r);
        gs_trace t = recorded(1);
        hash[i] = t.requests[0].blocks[0];
        gs_trace_free(&t);
        files(names, true, &bytes);
    }
    assert_int_not_equal(hash[0], hash[1]);
}

static void files_stay_bounded(void **state) {
    (void)state;
    enum { MAX = 64 << 10 };
    int32_t tokens[512] = {0};
    char names[64][400];
    uint64_t bytes = 0;
    gs_recorder *r = started(MAX);
    for (int i = 0; i < 600; i++) {
        tokens[0] = i;
        gs_record_event e = event(tokens, 400, 100, gs_now_ns());
        gs_recorder_add(r, &e);
    }
    gs_recorder_free(r);
    const int n = files(names, false, &bytes);
    assert_true(n >= 1);
    assert_true(bytes > MAX / 8 && bytes <= MAX);
    for (int i = 0; i < n; i++) {
        gs_trace t;
        char err[200];
        assert_int_equal(gs_trace_read(names[i], &t, err, sizeof err), 0);
        gs_trace_free(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(turns_are_found_and_no_text_is_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(salts_differ, setup, teardown),
        cmocka_unit_test_setup_teardown(files_stay_bounded, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
