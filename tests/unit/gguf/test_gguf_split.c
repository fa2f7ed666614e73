/* Models in several files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <unistd.h>

#include "base/err.h"
#include "faults/fault.h"
#include "gguf_writer.h"

#define PARTS 3

static char folder[] = "/tmp/gamasot-split-XXXXXX";

static void part_path(int no, int n, char out[128]) {
    snprintf(out, 128, "%s/m-%05d-of-%05d.gguf", folder, no, n);
}

/* A key whose value is the number, or with odd the key alone is text. */
static void put_number(gw *w, const char *key, uint32_t type, uint32_t value, const char *odd) {
    if (odd && strcmp(odd, key) == 0) {
        gw_kv_str(w, key, "many");
        return;
    }
    gw_kv(w, key, type);
    gw_bytes(w, &value, type == GS_GGUF_U16 ? 2 : 4); /* little-endian */
}

static const char *odd_key; /* of the part that is written next; NULL: none */

/* Part no (from 1): one tensor of ten floats; the first has the metadata. */
static void write_part(int no, uint32_t says_no, uint32_t count, uint32_t n_tensors,
                       const char *tensor) {
    gw w = {0};
    char path[128];
    float values[10];
    for (int i = 0; i < 10; i++)
        values[i] = (float)(no * 100 + i);
    gw_begin(&w, 3);
    if (no == 1)
        gw_kv_str(&w, "general.architecture", "llama");
    put_number(&w, "split.no", GS_GGUF_U16, says_no, odd_key);
    put_number(&w, "split.count", GS_GGUF_U16, count, odd_key);
    put_number(&w, "split.tensors.count", GS_GGUF_I32, n_tensors, odd_key);
    odd_key = NULL;
    if (tensor[0])
        gw_tensor(&w, tensor, 1, (uint64_t[]){10}, GS_QTYPE_F32, values, sizeof values);
    gw_end(&w);
    part_path(no, PARTS, path);
    assert_int_equal(gw_save(&w, path), 0);
    gw_free(&w);
}

static void write_all(void) {
    static const char *const names[PARTS] = {"a", "b", "c"};
    for (int i = 1; i <= PARTS; i++)
        write_part(i, (uint32_t)i - 1, PARTS, PARTS, names[i - 1]);
}

static void refused(int code, int no, const char *word) {
    char path[128], err[512] = "";
    gs_gguf *g = NULL;
    part_path(no, PARTS, path);
    assert_int_equal(gs_gguf_open(path, &g, err, sizeof err), code);
    assert_null(g);
    if (!strstr(err, word))
        fail_msg("'%s' does not say '%s'", err, word);
}

static void names(void **state) {
    (void)state;
    gs_gguf_shard s;
    char other[64];
    assert_true(gs_gguf_shard_of("/x/big-00002-of-00012.gguf", &s));
    assert_int_equal(s.no, 2);
    assert_int_equal(s.n, 12);
    assert_int_equal(s.stem, 6);
    assert_int_equal(gs_gguf_shard_path("/x/big-00002-of-00012.gguf", &s, 7, other, sizeof other),
                     GS_OK);
    assert_string_equal(other, "/x/big-00007-of-00012.gguf");
    assert_int_equal(gs_gguf_shard_path("/x/big-00002-of-00012.gguf", &s, 7, other, 20),
                     GS_ERR_TOO_LARGE);
    static const char *const no_shards[] = {"big.gguf",
                                            "-00001-of-00002.gguf",
                                            "b-00000-of-00002.gguf",
                                            "b-00003-of-00002.gguf",
                                            "b-0001-of-00002.gguf",
                                            "b-0000/-of-00002.gguf",
                                            "b-0000:-of-00002.gguf",
                                            "b_00001-of-00002.gguf",
                                            "b-00001-of-00002.ggml",
                                            "b-00001-of-99999.gguf"};
    for (size_t i = 0; i < sizeof no_shards / sizeof no_shards[0]; i++)
        assert_false(gs_gguf_shard_of(no_shards[i], &s));
}

static void all_files_are_one_model(void **state) {
    (void)state;
    char path[128], err[512] = "";
    gs_gguf *g = NULL;
    write_all();
    part_path(1, PARTS, path);
    assert_int_equal(gs_gguf_open(path, &g, err, sizeof err), GS_OK);
    assert_int_equal(gs_gguf_n_tensors(g), PARTS);
    for (int i = 0; i < PARTS; i++) {
        const gs_gguf_tensor *t = gs_gguf_tensor_find(g, (const char *[]){"a", "b", "c"}[i]);
        assert_non_null(t);
        assert_true(((const float *)t->data)[3] == (float)((i + 1) * 100 + 3));
    }
    assert_null(gs_gguf_tensor_find(g, "d"));
    /* The others' metadata counts for nothing, their bytes do. */
    gs_str arch;
    assert_int_equal(gs_gguf_get_str(g, "general.architecture", &arch, err, sizeof err), GS_OK);
    assert_true(gs_gguf_file_bytes(g) > 3 * 100);
    assert_false(gs_gguf_is_damaged(g));
    gs_gguf_close(g);
}

static void what_does_not_fit_together(void **state) {
    (void)state;
    char path[128];
    write_all();
    refused(GS_ERR_INVALID, 2, "the first one is to be named");
    write_part(3, 1, PARTS, PARTS, "c");
    refused(GS_ERR_FORMAT, 1, "file 2 of 3");
    write_part(3, 2, PARTS + 1, PARTS, "c");
    refused(GS_ERR_FORMAT, 1, "file 3 of 4");
    write_part(3, 2, PARTS, PARTS, "a");
    refused(GS_ERR_FORMAT, 1, "appears twice");
    write_part(3, 2, PARTS, PARTS, "c");
    write_part(1, 0, PARTS, PARTS + 1, "a");
    refused(GS_ERR_FORMAT, 1, "split.tensors.count");
    write_part(1, 0, PARTS + 1, PARTS, "a");
    refused(GS_ERR_FORMAT, 1, "NAME-00001-of-00004.gguf");
    write_all();
    part_path(2, PARTS, path);
    assert_int_equal(unlink(path), 0);
    refused(GS_ERR_NOT_FOUND, 1, "m-00002-of-00003.gguf");
}

/* Keys that are no numbers, of the first file and of another one. */
static void keys_of_another_kind(void **state) {
    (void)state;
    static const char *const keys[] = {"split.no", "split.count"};
    for (int i = 0; i < 2; i++) {
        for (int part = 1; part <= 2; part++) {
            write_all();
            odd_key = keys[i];
            write_part(part, (uint32_t)part - 1, PARTS, PARTS, part == 1 ? "a" : "b");
            refused(GS_ERR_FORMAT, 1, keys[i]);
        }
    }
    write_all();
    odd_key = "split.tensors.count";
    write_part(1, 0, PARTS, PARTS, "a");
    refused(GS_ERR_FORMAT, 1, "split.tensors.count");
}

/* The first file may hold the metadata alone. */
static void files_without_tensors(void **state) {
    (void)state;
    char path[128], err[512] = "";
    gs_gguf *g = NULL;
    write_part(1, 0, PARTS, 1, "");
    write_part(2, 1, PARTS, 1, "");
    write_part(3, 2, PARTS, 1, "c");
    part_path(1, PARTS, path);
    if (gs_gguf_open(path, &g, err, sizeof err) != GS_OK)
        fail_msg("%s", err);
    assert_int_equal(gs_gguf_n_tensors(g), 1);
    assert_non_null(gs_gguf_tensor_find(g, "c"));
    gs_gguf_close(g);
}

static void each_call_fails(void **state) {
    (void)state;
    static const struct {
        gs_fault_kind kind;
        int code;
    } kinds[] = {
        {GS_FAULT_ALLOC, GS_ERR_NOMEM}, {GS_FAULT_MMAP, GS_ERR_NOMEM}, {GS_FAULT_FILE, GS_ERR_IO}};
    char path[128], err[512] = "";
    gs_gguf *g;
    write_all();
    part_path(1, PARTS, path);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        gs_fault_set(kinds[k].kind, UINT64_MAX, 0);
        assert_int_equal(gs_gguf_open(path, &g, err, sizeof err), GS_OK);
        const uint64_t n = gs_fault_calls(kinds[k].kind);
        gs_gguf_close(g);
        assert_true(n >= PARTS);
        for (uint64_t i = 1; i <= n; i++) {
            err[0] = '\0';
            gs_fault_set(kinds[k].kind, i, 0);
            const int rc = gs_gguf_open(path, &g, err, sizeof err);
            gs_fault_clear();
            if (rc != kinds[k].code || err[0] == '\0')
                fail_msg("call %d of kind %d: %d '%s'", (int)i, (int)kinds[k].kind, rc, err);
            assert_null(g);
        }
    }
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char path[128];
    for (int i = 1; i <= PARTS; i++) {
        part_path(i, PARTS, path);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(all_files_are_one_model),
        cmocka_unit_test(what_does_not_fit_together),
        cmocka_unit_test(keys_of_another_kind),
        cmocka_unit_test(files_without_tensors),
        cmocka_unit_test(each_call_fails),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
