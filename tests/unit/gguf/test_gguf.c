/* GGUF reader: the getters on good files, and every known malformed shape refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"
#include "gguf/gguf.h"
#include "faults/fault.h"
#include "gguf_walk.h"
#include "gguf_writer.h"
#include "unit/scale.h"

/* Opens w, expects code and every given word in the message, and frees w. */
static void refused(gw *w, int code, const char *word1, const char *word2) {
    gs_gguf *g;
    char err[512] = "";
    int rc = gs_gguf_open_mem(w->p, w->n, &g, err, sizeof err);
    if (rc != code || !strstr(err, word1) || !strstr(err, word2))
        print_error("got %s \"%s\"\n", gs_err_name(rc), err);
    assert_int_equal(rc, code);
    assert_null(g);
    assert_non_null(strstr(err, word1));
    assert_non_null(strstr(err, word2));
    gw_free(w);
}

static gs_gguf *opened(const gw *w) {
    gs_gguf *g = NULL;
    char err[512] = "";
    int rc = gs_gguf_open_mem(w->p, w->n, &g, err, sizeof err);
    if (rc != GS_OK)
        print_error("%s\n", err);
    assert_int_equal(rc, GS_OK);
    return g;
}

static bool str_is(gs_str s, const char *want) {
    return s.len == strlen(want) && memcmp(s.data, want, s.len) == 0;
}

/* ---- Good files ---------------------------------------------------------------------------- */

static void test_qtypes(void **state) {
    (void)state;
    const gs_qtype_info *q = gs_qtype_get(GS_QTYPE_Q4_K);
    assert_non_null(q);
    assert_string_equal(q->name, "Q4_K");
    assert_int_equal(q->block_elems, 256);
    assert_int_equal(q->block_bytes, 144);
    assert_int_equal(gs_qtype_get(39)->block_bytes, 17);
    static const struct {
        uint32_t number;
        gs_qtype_info info;
    } all[] = {
#define X(name, num, elems, bytes) {num, {#name, elems, bytes}},
        GS_QTYPE_MAP(X)
#undef X
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        q = gs_qtype_get(all[i].number);
        assert_non_null(q);
        assert_string_equal(q->name, all[i].info.name);
        assert_int_equal(q->block_elems, all[i].info.block_elems);
        assert_int_equal(q->block_bytes, all[i].info.block_bytes);
    }
    assert_null(gs_qtype_get(4)); /* removed from the format */
    assert_null(gs_qtype_get(16));
    assert_null(gs_qtype_get(UINT32_MAX));
}

static void test_numbers(void **state) {
    (void)state;
    gw w = {0};
    char err[256] = "";
    gw_sample(&w, 3);
    gs_gguf *g = opened(&w);
    uint32_t u = 0;
    int64_t i = 0;
    float f = 0;
    bool b = false;
    assert_int_equal(gs_gguf_get_u32(g, "t.u8", &u, err, sizeof err), GS_OK);
    assert_int_equal(u, 200);
    assert_int_equal(gs_gguf_get_u32(g, "t.u16", &u, err, sizeof err), GS_OK);
    assert_int_equal(u, 65000);
    assert_int_equal(gs_gguf_get_i64(g, "t.i8", &i, err, sizeof err), GS_OK);
    assert_int_equal(i, -5);
    assert_int_equal(gs_gguf_get_i64(g, "t.i16", &i, err, sizeof err), GS_OK);
    assert_int_equal(i, -300);
    assert_int_equal(gs_gguf_get_i64(g, "t.i32", &i, err, sizeof err), GS_OK);
    assert_int_equal(i, -70000);
    assert_int_equal(gs_gguf_get_i64(g, "t.i64", &i, err, sizeof err), GS_OK);
    assert_int_equal(i, -5000000000);
    assert_int_equal(gs_gguf_get_f32(g, "t.f32", &f, err, sizeof err), GS_OK);
    assert_true(f == 0.5f);
    assert_int_equal(gs_gguf_get_f32(g, "t.f64", &f, err, sizeof err), GS_OK);
    assert_true(f == 0.25f);
    assert_int_equal(gs_gguf_get_bool(g, "t.bool", &b, err, sizeof err), GS_OK);
    assert_true(b);

    /* No key: the output and the message stay as they were. */
    u = 7;
    err[0] = '\0';
    assert_int_equal(gs_gguf_get_u32(g, "t.none", &u, err, sizeof err), GS_ERR_NOT_FOUND);
    assert_int_equal(u, 7);
    gs_str s = {0};
    const gs_gguf_kv *kv = NULL;
    assert_int_equal(gs_gguf_get_i64(g, "t.none", &i, err, sizeof err), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_gguf_get_f32(g, "t.none", &f, err, sizeof err), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_gguf_get_bool(g, "t.none", &b, err, sizeof err), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_gguf_get_str(g, "t.none", &s, err, sizeof err), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_gguf_get_arr(g, "t.none", GS_GGUF_U8, &kv, err, sizeof err),
                     GS_ERR_NOT_FOUND);
    assert_null(s.data);
    assert_null(kv);
    assert_string_equal(err, "");
    gs_gguf_close(g);
    gw_free(&w);
}

static void test_numbers_refused(void **state) {
    (void)state;
    gw w = {0};
    char err[256] = "";
    uint32_t u = 7;
    int64_t i = 7;
    float f = 7;
    bool b = false;
    gs_str s;
    gw_sample(&w, 3);
    gs_gguf *g = opened(&w);
    assert_int_equal(gs_gguf_get_u32(g, "t.i8", &u, err, sizeof err), GS_ERR_FORMAT);
    assert_non_null(strstr(err, "t.i8"));
    assert_int_equal(gs_gguf_get_u32(g, "t.u64", &u, err, sizeof err), GS_ERR_FORMAT);
    assert_int_equal(gs_gguf_get_u32(g, "t.f32", &u, err, sizeof err), GS_ERR_FORMAT);
    assert_int_equal(gs_gguf_get_u32(g, "t.bool", &u, err, sizeof err), GS_ERR_FORMAT);
    assert_int_equal(gs_gguf_get_u32(g, "t.bools", &u, err, sizeof err), GS_ERR_FORMAT);
    assert_non_null(strstr(err, "array of bool"));
    assert_int_equal(gs_gguf_get_i64(g, "t.u64", &i, err, sizeof err), GS_ERR_FORMAT);
    assert_int_equal(gs_gguf_get_f32(g, "t.u8", &f, err, sizeof err), GS_ERR_FORMAT);
    assert_int_equal(gs_gguf_get_bool(g, "t.u8", &b, err, sizeof err), GS_ERR_FORMAT);
    assert_int_equal(gs_gguf_get_str(g, "t.u8", &s, err, sizeof err), GS_ERR_FORMAT);
    assert_int_equal(u, 7);
    assert_int_equal(i, 7);
    assert_true(f == 7.f);
    gs_gguf_close(g);
    gw_free(&w);
}

static void test_floats_must_be_finite(void **state) {
    (void)state;
    gw w = {0};
    char err[256] = "";
    float f = 7;
    gw_begin(&w, 3);
    gw_kv_f32(&w, "nan", NAN);
    gw_kv_f32(&w, "inf", INFINITY);
    gw_kv(&w, "big", GS_GGUF_F64);
    gw_bytes(&w, &(double){DBL_MAX}, 8);
    gw_end(&w);
    gs_gguf *g = opened(&w);
    assert_int_equal(gs_gguf_get_f32(g, "nan", &f, err, sizeof err), GS_ERR_FORMAT);
    assert_non_null(strstr(err, "nan"));
    assert_int_equal(gs_gguf_get_f32(g, "inf", &f, err, sizeof err), GS_ERR_FORMAT);
    assert_int_equal(gs_gguf_get_f32(g, "big", &f, err, sizeof err), GS_ERR_FORMAT);
    assert_true(f == 7.f);
    gs_gguf_close(g);
    gw_free(&w);
}

static void test_strings_and_arrays(void **state) {
    (void)state;
    gw w = {0};
    char err[256] = "";
    gs_str s;
    const gs_gguf_kv *kv;
    gw_sample(&w, 2); /* version 2 has the same layout */
    gs_gguf *g = opened(&w);
    assert_int_equal(gs_gguf_version(g), 2);
    assert_int_equal(gs_gguf_get_str(g, "general.architecture", &s, err, sizeof err), GS_OK);
    assert_true(str_is(s, "llama"));
    assert_int_equal(gs_gguf_get_arr(g, "tokenizer.ggml.tokens", GS_GGUF_STR, &kv, err, sizeof err),
                     GS_OK);
    assert_int_equal(kv->n, 5);
    assert_true(str_is(gs_gguf_arr_str(g, kv, 0), "<s>"));
    assert_true(str_is(gs_gguf_arr_str(g, kv, 2), ""));
    assert_true(str_is(gs_gguf_arr_str(g, kv, 4), "ab"));
    assert_int_equal(gs_gguf_arr_str(g, kv, 5).len, 0);
    assert_int_equal(gs_gguf_arr_i64(kv, 0), 0); /* not an integer array */
    assert_int_equal(
        gs_gguf_get_arr(g, "tokenizer.ggml.token_type", GS_GGUF_I32, &kv, err, sizeof err), GS_OK);
    assert_int_equal(gs_gguf_arr_i64(kv, 0), 3);
    assert_int_equal(gs_gguf_arr_i64(kv, 3), -1);
    assert_int_equal(gs_gguf_arr_i64(kv, 5), 0);
    assert_int_equal(gs_gguf_arr_str(g, kv, 0).len, 0); /* not a string array */
    assert_int_equal(gs_gguf_get_arr(g, "tokenizer.ggml.scores", GS_GGUF_F32, &kv, err, sizeof err),
                     GS_OK);
    assert_true(gs_gguf_arr_f32(kv, 2) == -2.f);
    assert_int_equal(gs_gguf_get_arr(g, "t.bools", GS_GGUF_BOOL, &kv, err, sizeof err), GS_OK);
    assert_int_equal(gs_gguf_arr_i64(kv, 0) + gs_gguf_arr_i64(kv, 1) * 10, 1);
    assert_int_equal(gs_gguf_get_arr(g, "t.empty", GS_GGUF_STR, &kv, err, sizeof err), GS_OK);
    assert_int_equal(kv->n, 0);
    gs_gguf_close(g);
    gw_free(&w);
}

/* A caller that trusts a key's name and not its type is stopped here. */
static void test_array_type_confusion(void **state) {
    (void)state;
    gw w = {0};
    char err[256] = "";
    const gs_gguf_kv *kv = NULL;
    gw_sample(&w, 3);
    gs_gguf *g = opened(&w);
    assert_int_equal(
        gs_gguf_get_arr(g, "tokenizer.ggml.token_type", GS_GGUF_STR, &kv, err, sizeof err),
        GS_ERR_FORMAT);
    assert_non_null(strstr(err, "tokenizer.ggml.token_type"));
    assert_non_null(strstr(err, "array of string"));
    assert_int_equal(gs_gguf_get_arr(g, "tokenizer.ggml.scores", GS_GGUF_I32, &kv, err, sizeof err),
                     GS_ERR_FORMAT);
    assert_int_equal(gs_gguf_get_arr(g, "t.u8", GS_GGUF_U8, &kv, err, sizeof err), GS_ERR_FORMAT);
    assert_null(kv);
    gs_gguf_close(g);
    gw_free(&w);
}

static void test_tensors(void **state) {
    (void)state;
    gw w = {0};
    gw_sample(&w, 3);
    gs_gguf *g = opened(&w);
    assert_int_equal(gs_gguf_alignment(g), 64);
    assert_int_equal(gs_gguf_n_tensors(g), 4);
    assert_int_equal(gs_gguf_file_bytes(g), w.n);
    const gs_gguf_tensor *t = gs_gguf_tensor_find(g, "blk.0.ffn.weight");
    assert_non_null(t);
    assert_int_equal(t->type, GS_QTYPE_Q4_K);
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->ne[0], 256);
    assert_int_equal(t->ne[3], 1);
    assert_int_equal(t->n_rows, 6);
    assert_int_equal(t->n_bytes, 6 * 144);
    assert_int_equal(t->offset % 64, 0);
    assert_ptr_equal(t->data, w.p + t->offset);
    assert_int_equal(*(const uint8_t *)t->data, 2); /* gw_tensor's pattern of the third tensor */
    assert_true(str_is(gs_gguf_tensor_at(g, 1)->name, "norm.weight"));
    assert_null(gs_gguf_tensor_at(g, 4));
    assert_null(gs_gguf_tensor_find(g, "blk.0.ffn"));
    assert_null(gs_gguf_tensor_find(g, ""));
    gs_gguf_close(g);
    gw_free(&w);
}

static void test_many_names(void **state) {
    (void)state;
    gw w = {0};
    char name[64];
    enum { N = 20000 };
    gw_begin(&w, 3);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "key.%u", i);
        gw_kv_u32(&w, name, i);
    }
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "blk.%u.weight", i);
        gw_tensor(&w, name, 1, (uint64_t[]){1}, GS_QTYPE_F32, NULL, 4);
    }
    gw_end(&w);
    gs_gguf *g = opened(&w);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t v = N;
        snprintf(name, sizeof name, "key.%u", i);
        assert_int_equal(gs_gguf_get_u32(g, name, &v, NULL, 0), GS_OK);
        assert_int_equal(v, i);
        snprintf(name, sizeof name, "blk.%u.weight", i);
        assert_ptr_equal(gs_gguf_tensor_find(g, name), gs_gguf_tensor_at(g, i));
    }
    gs_gguf_close(g);
    gw_free(&w);
}

static void test_file(void **state) {
    (void)state;
    gw w = {0};
    char path[] = "/tmp/gamasot-test-gguf-XXXXXX";
    char err[256] = "";
    gs_gguf *g = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    /* Empty, then good, then cut: the message begins with the path. */
    assert_int_equal(gs_gguf_open(path, &g, err, sizeof err), GS_ERR_FORMAT);
    gw_sample(&w, 3);
    assert_int_equal(gw_save(&w, path), 0);
    assert_int_equal(gs_gguf_open(path, &g, err, sizeof err), GS_OK);
    assert_int_equal(gs_gguf_n_tensors(g), 4);
    assert_int_not_equal(gs_walk_all(g), 0);
    gs_gguf_close(g);
    gs_fault_set(GS_FAULT_ALLOC, 1, ENOMEM);
    assert_int_equal(gs_gguf_open(path, &g, err, sizeof err), GS_ERR_NOMEM);
    gs_fault_set(GS_FAULT_MMAP, 1, ENOMEM);
    assert_true(gs_gguf_open(path, &g, err, sizeof err) < 0);
    gs_fault_clear();
    w.n -= 1;
    assert_int_equal(gw_save(&w, path), 0);
    assert_int_equal(gs_gguf_open(path, &g, err, sizeof err), GS_ERR_FORMAT);
    assert_ptr_equal(strstr(err, path), err);
    assert_non_null(strstr(err, "blk.0.x"));
    assert_null(g);
    unlink(path);
    assert_true(gs_gguf_open(path, &g, err, sizeof err) < 0);
    assert_null(g);
    gw_free(&w);
}

static void test_real_file(void **state) {
    (void)state;
    char path[1024];
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    snprintf(path, sizeof path, "%s%s/gamasot/models/SmolLM2-135M-Instruct.Q4_1.gguf",
             cache && *cache ? cache : (home ? home : ""), cache && *cache ? "" : "/.cache");
    if (access(path, R_OK) != 0) {
        print_message("no %s\n", path);
        skip();
    }
    char err[256] = "";
    gs_gguf *g = NULL;
    gs_str s;
    const gs_gguf_kv *tokens;
    int rc = gs_gguf_open(path, &g, err, sizeof err);
    if (rc != GS_OK)
        print_error("%s\n", err);
    assert_int_equal(rc, GS_OK);
    assert_int_equal(gs_gguf_get_str(g, "general.architecture", &s, err, sizeof err), GS_OK);
    assert_true(str_is(s, "llama"));
    assert_int_equal(
        gs_gguf_get_arr(g, "tokenizer.ggml.tokens", GS_GGUF_STR, &tokens, err, sizeof err), GS_OK);
    assert_int_equal(tokens->n, 49152);
    assert_true(str_is(gs_gguf_arr_str(g, tokens, 1), "<|im_start|>"));
    const gs_gguf_tensor *t = gs_gguf_tensor_find(g, "blk.29.attn_q.weight");
    assert_non_null(t);
    assert_int_equal(t->ne[0], 576);
    assert_int_equal(t->type, GS_QTYPE_Q4_1);
    gs_gguf_close(g);
}

/* ---- Malformed: header and metadata -------------------------------------------------------- */

static void test_versions(void **state) {
    (void)state;
    static const struct {
        uint32_t version;
        const char *word;
    } rows[] = {{0, "version 0"},           {1, "version 1"},           {4, "version 4"},
                {0x03000000, "big-endian"}, {0x02000000, "big-endian"}, {UINT32_MAX, "version"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gw w = {0};
        gw_begin(&w, rows[i].version);
        gw_end(&w);
        refused(&w, GS_ERR_UNSUPPORTED, rows[i].word, "not supported");
    }
    gw w = {0};
    gw_bytes(&w, "GGML\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    refused(&w, GS_ERR_FORMAT, "not a GGUF file", "");
}

/* Counts are compared with the bytes left: nothing is allocated for what can't be there. */
static void test_huge_counts(void **state) {
    (void)state;
    static const uint64_t counts[] = {3, 65536, 65537, UINT32_MAX, 1ull << 62, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        gw w = {0};
        gw_begin(&w, 3);
        gw_set_u64(&w, GW_AT_KV, counts[i]);
        gs_fault_clear();
        refused(&w, GS_ERR_FORMAT, "metadata keys", "claims");
        assert_in_range(gs_fault_calls(GS_FAULT_ALLOC), 1, 1); /* the reader itself */
        gw_begin(&w, 3);
        gw_set_u64(&w, GW_AT_TENSORS, counts[i]);
        refused(&w, GS_ERR_FORMAT, "tensors", "claims");
    }
}

static void test_string_length_wraps(void **state) {
    (void)state;
    static const uint64_t lens[] = {6,         1ull << 31,      1ull << 32, (1ull << 32) + 5,
                                    INT64_MAX, UINT64_MAX - 40, UINT64_MAX};
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        gw w = {0};
        gw_begin(&w, 3);
        gw_kv(&w, "general.name", GS_GGUF_STR);
        gw_u64(&w, lens[i]);
        gw_bytes(&w, "abcde", 5);
        refused(&w, GS_ERR_FORMAT, "'general.name'", "past the end");
        /* the same inside an array: one token's length */
        gw_begin(&w, 3);
        gw_kv_arr(&w, "tokenizer.ggml.tokens", GS_GGUF_STR, 2);
        gw_str(&w, "ok");
        gw_u64(&w, lens[i]);
        gw_bytes(&w, "abcde", 5);
        refused(&w, GS_ERR_FORMAT, "'tokenizer.ggml.tokens'", "past the end");
        /* and for a key itself */
        gw_begin(&w, 3);
        gw_kv_u32(&w, "first", 1);
        gw_u64(&w, lens[i]);
        gw_bytes(&w, "abcde\0\0\0\0\0\0\0\0\0\0", i == 0 ? 5 : 15);
        gw_set_u64(&w, GW_AT_KV, 2);
        gs_gguf *g;
        char err[256] = "";
        assert_int_equal(gs_gguf_open_mem(w.p, w.n, &g, err, sizeof err), GS_ERR_FORMAT);
        gw_free(&w);
    }
}

/* A length that an int could not hold must not come out of the reader, even if the bytes exist. */
static void test_token_length_narrowing(void **state) {
    (void)state;
    size_t n = (size_t)GS_GGUF_MAX_STR + 1;
    char *big = calloc(1, n);
    assert_non_null(big);
    gw w = {0};
    gw_begin(&w, 3);
    gw_kv_arr(&w, "tokenizer.ggml.tokens", GS_GGUF_STR, 1);
    gw_strn(&w, big, n);
    refused(&w, GS_ERR_FORMAT, "'tokenizer.ggml.tokens'", "too long");
    free(big);
}

static void test_key_names(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t len;
        const char *word;
    } rows[] = {
        {"", 0, "0 bytes"},
        {"a\xff"
         "b",
         3, "UTF-8"},
        {"\xed\xa0\x80", 3, "UTF-8"}, /* a surrogate */
        {"\xc0\xaf", 2, "UTF-8"},     /* overlong */
        {"a\0b", 3, "control"},
        {"a\x1b[31m", 6, "control"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gw w = {0};
        gw_begin(&w, 3);
        gw_kv_u32(&w, "ok", 1);
        gw_strn(&w, rows[i].name, rows[i].len);
        gw_u32(&w, GS_GGUF_U32);
        gw_u64(&w, 1);
        gw_u64(&w, 1);
        gw_set_u64(&w, GW_AT_KV, 2);
        refused(&w, GS_ERR_FORMAT, "key 1", rows[i].word);
        gw_begin(&w, 3);
        gw_strn(&w, rows[i].name, rows[i].len);
        gw_u32(&w, 1);
        gw_u64(&w, 1);
        gw_u64(&w, 1);
        gw_u64(&w, 1);
        gw_set_u64(&w, GW_AT_TENSORS, 1);
        refused(&w, GS_ERR_FORMAT, "tensor 0", rows[i].word);
    }
    char name[GS_GGUF_MAX_NAME + 2];
    memset(name, 'a', sizeof name);
    name[GS_GGUF_MAX_NAME + 1] = '\0';
    gw w = {0};
    gw_begin(&w, 3);
    gw_kv_u32(&w, name, 1);
    refused(&w, GS_ERR_FORMAT, "key 0", "257 bytes");
    name[GS_GGUF_MAX_NAME] = '\0';
    gw_begin(&w, 3);
    gw_kv_u32(&w, name, 1);
    gs_gguf_close(opened(&w));
    gw_free(&w);
}

static void test_value_types(void **state) {
    (void)state;
    static const uint32_t types[] = {13, 14, 255, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        gw w = {0};
        gw_begin(&w, 3);
        gw_kv(&w, "odd", types[i]);
        gw_u64(&w, 0);
        gw_u64(&w, 0);
        refused(&w, GS_ERR_FORMAT, "'odd'", "type");
        gw_begin(&w, 3);
        gw_kv_arr(&w, "odds", types[i], 0);
        refused(&w, GS_ERR_FORMAT, "'odds'", "element type");
    }
    gw w = {0};
    gw_begin(&w, 3);
    gw_kv_bool(&w, "flag", 2);
    refused(&w, GS_ERR_FORMAT, "'flag'", "no bool");
    gw_begin(&w, 3);
    gw_kv_arr(&w, "flags", GS_GGUF_BOOL, 2);
    gw_bytes(&w, "\1\xff", 2);
    refused(&w, GS_ERR_FORMAT, "'flags'", "no bool");
}

static void test_nested_arrays(void **state) {
    (void)state;
    static const uint64_t counts[] = {0, 1, UINT64_MAX};
    for (size_t i = 0; i < 3; i++) {
        gw w = {0};
        gw_begin(&w, 3);
        gw_kv_arr(&w, "deep", GS_GGUF_ARR, counts[i]);
        for (int k = 0; k < 64; k++)
            gw_u32(&w, GS_GGUF_ARR);
        refused(&w, GS_ERR_FORMAT, "'deep'", "arrays of arrays");
    }
}

static void test_array_counts(void **state) {
    (void)state;
    static const uint64_t counts[] = {
        9, 1 << 20, GS_GGUF_MAX_ARRAY + 1ull, 1ull << 61, 1ull << 62, (1ull << 62) + 1, UINT64_MAX};
    static const uint32_t types[] = {GS_GGUF_U8, GS_GGUF_BOOL, GS_GGUF_F32, GS_GGUF_U64,
                                     GS_GGUF_STR};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
            gw w = {0};
            gw_begin(&w, 3);
            gw_kv_arr(&w, "list", types[k], counts[i]);
            gw_u64(&w, 0);
            refused(&w, GS_ERR_FORMAT, "'list'", "");
        }
}

static void test_alignment(void **state) {
    (void)state;
    static const uint32_t bad[] = {0, 1, 4, 24, 33, 65537, 131072, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gw w = {0};
        gw_begin(&w, 3);
        gw_kv_u32(&w, "general.alignment", bad[i]);
        gw_tensor(&w, "a", 1, (uint64_t[]){1}, GS_QTYPE_F32, NULL, 4);
        gw_end(&w);
        refused(&w, GS_ERR_FORMAT, "'general.alignment'", "power of two");
    }
    gw w = {0};
    gw_begin(&w, 3);
    gw_kv_str(&w, "general.alignment", "32");
    refused(&w, GS_ERR_FORMAT, "'general.alignment'", "is string");
    gw_begin(&w, 3);
    gw_kv_arr(&w, "general.alignment", GS_GGUF_U32, 1);
    gw_u32(&w, 32);
    refused(&w, GS_ERR_FORMAT, "'general.alignment'", "is array");
}

static void test_duplicates(void **state) {
    (void)state;
    gw w = {0};
    gw_begin(&w, 3);
    gw_kv_u32(&w, "a.key", 1);
    gw_kv_u32(&w, "another", 1);
    gw_kv_str(&w, "a.key", "x");
    refused(&w, GS_ERR_FORMAT, "'a.key'", "twice");
    gw_begin(&w, 3);
    gw_tensor(&w, "a.weight", 1, (uint64_t[]){4}, GS_QTYPE_F32, NULL, 16);
    gw_tensor(&w, "a.weight", 1, (uint64_t[]){4}, GS_QTYPE_F32, NULL, 16);
    gw_end(&w);
    refused(&w, GS_ERR_FORMAT, "'a.weight'", "twice");
}

/* Names that all fall on one slot of the reader's hash table would make it quadratic. */
static void test_names_chosen_to_collide(void **state) {
    (void)state;
    enum { N = 1100, MASK = 4095 }; /* the table for 1,100 names has 4,096 slots */
    gw w = {0};
    char name[32];
    gw_begin(&w, 3);
    for (uint32_t i = 0; w.n_kv < N; i++) {
        int n = snprintf(name, sizeof name, "%u", i);
        if ((XXH3_64bits(name, (size_t)n) & MASK) == 7)
            gw_kv_bool(&w, name, 1);
    }
    refused(&w, GS_ERR_FORMAT, "key '", "same hash");
}

/* ---- Malformed: tensors -------------------------------------------------------------------- */

/* One F32 tensor "t" with these dimensions over 64 bytes of data. */
static void dims_refused(uint32_t n_dims, const uint64_t *ne, uint32_t type, int code,
                         const char *word) {
    gw w = {0};
    gw_begin(&w, 3);
    gw_tensor_entry(&w, "t.weight", n_dims, ne, type, 0);
    gw_grow(&w.data, &w.cap_data, 64);
    memset(w.data, 0, 64);
    w.n_data = 64;
    gw_end(&w);
    refused(&w, code, "'t.weight'", word);
}

static void test_dims(void **state) {
    (void)state;
    const uint64_t half = 1ull << 32, top = 1ull << 63;
    dims_refused(0, NULL, GS_QTYPE_F32, GS_ERR_FORMAT, "0 dimensions");
    dims_refused(5, (uint64_t[]){1, 1, 1, 1, 1}, GS_QTYPE_F32, GS_ERR_FORMAT, "5 dimensions");
    dims_refused(1, (uint64_t[]){0}, GS_QTYPE_F32, GS_ERR_FORMAT, "is 0");
    dims_refused(4, (uint64_t[]){4, 1, 0, 1}, GS_QTYPE_F32, GS_ERR_FORMAT, "dimension 2 is 0");
    /* products that wrap to 0, to something small, and only with the type's size */
    dims_refused(4, (uint64_t[]){1, half, half, 1}, GS_QTYPE_F32, GS_ERR_FORMAT, "overflow");
    dims_refused(2, (uint64_t[]){half, half}, GS_QTYPE_F32, GS_ERR_FORMAT, "overflow");
    dims_refused(2, (uint64_t[]){top, 2}, GS_QTYPE_I8, GS_ERR_FORMAT, "overflow");
    dims_refused(1, (uint64_t[]){(1ull << 62) + 4}, GS_QTYPE_F32, GS_ERR_FORMAT, "overflow");
    dims_refused(3, (uint64_t[]){32, (1ull << 59) + 1, 32}, GS_QTYPE_Q8_0, GS_ERR_FORMAT,
                 "overflow");
    dims_refused(1, (uint64_t[]){UINT64_MAX}, GS_QTYPE_I8, GS_ERR_FORMAT, "past the end");
    dims_refused(1, (uint64_t[]){top}, GS_QTYPE_I8, GS_ERR_FORMAT, "past the end");
}

static void test_row_blocks(void **state) {
    (void)state;
    dims_refused(1, (uint64_t[]){31}, GS_QTYPE_Q4_0, GS_ERR_FORMAT, "multiple");
    dims_refused(1, (uint64_t[]){33}, GS_QTYPE_Q8_0, GS_ERR_FORMAT, "multiple");
    dims_refused(2, (uint64_t[]){128, 2}, GS_QTYPE_Q4_K, GS_ERR_FORMAT, "multiple");
    dims_refused(2, (uint64_t[]){1, 32}, GS_QTYPE_Q4_1, GS_ERR_FORMAT, "multiple");
}

static void test_tensor_types(void **state) {
    (void)state;
    static const uint32_t types[] = {4, 5, 9, 15, 16, 31, 38, 40, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        dims_refused(1, (uint64_t[]){256}, types[i], GS_ERR_UNSUPPORTED, "not supported");
}

/* Data that lies partly or wholly outside the file would be read from our memory. */
static void test_extents(void **state) {
    (void)state;
    static const uint64_t offsets[] = {
        32, 64, 96, 1ull << 32, 1ull << 62, 1ull << 63, UINT64_MAX - 31};
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        gw w = {0};
        gw_begin(&w, 3);
        gw_tensor_entry(&w, "t.weight", 1, (uint64_t[]){16}, GS_QTYPE_F32, offsets[i]);
        gw_grow(&w.data, &w.cap_data, 64);
        memset(w.data, 0, 64);
        w.n_data = 64; /* the tensor needs all of it */
        gw_end(&w);
        refused(&w, GS_ERR_FORMAT, "'t.weight'", "past the end");
    }
    dims_refused(1, (uint64_t[]){17}, GS_QTYPE_F32, GS_ERR_FORMAT, "past the end");
    gw w = {0};
    gw_begin(&w, 3);
    gw_tensor_entry(&w, "t.weight", 1, (uint64_t[]){1}, GS_QTYPE_F32, 8);
    gw_end(&w);
    refused(&w, GS_ERR_FORMAT, "'t.weight'", "not aligned");
    /* no data section at all: the padding after the table already leaves the file */
    gw_begin(&w, 3);
    gw_tensor_entry(&w, "t.weight", 1, (uint64_t[]){1}, GS_QTYPE_F32, 0);
    refused(&w, GS_ERR_FORMAT, "'t.weight'", "past the end");
}

static void test_padding_wraps(void **state) {
    (void)state;
    /* The largest alignment over a short file: start of data is past the end, not before it. */
    gw w = {0};
    gw_begin(&w, 3);
    gw_kv_u32(&w, "general.alignment", GS_GGUF_MAX_ALIGN);
    gw_tensor_entry(&w, "t.weight", 1, (uint64_t[]){1}, GS_QTYPE_F32, 0);
    gw_bytes(&w, "12345678", 8);
    refused(&w, GS_ERR_FORMAT, "'t.weight'", "past the end");
    /* An offset that wraps to just before the data section. */
    gw_begin(&w, 3);
    gw_tensor_entry(&w, "t.weight", 1, (uint64_t[]){1}, GS_QTYPE_F32, UINT64_MAX - 31);
    gw_end(&w);
    gw_bytes(&w, "1234567812345678123456781234567812345678", 40);
    refused(&w, GS_ERR_FORMAT, "'t.weight'", "past the end");
}

static void test_overlap(void **state) {
    (void)state;
    static const uint64_t offsets[] = {0, 32, 64, 96};
    for (size_t i = 0; i < 4; i++) {
        gw w = {0};
        gw_begin(&w, 3);
        gw_tensor_entry(&w, "late", 1, (uint64_t[]){8}, GS_QTYPE_F32, 128); /* not in order */
        gw_tensor_entry(&w, "first", 1, (uint64_t[]){24}, GS_QTYPE_F32, 0); /* 96 bytes */
        gw_tensor_entry(&w, "second", 1, (uint64_t[]){8}, GS_QTYPE_F32, offsets[i]);
        gw_grow(&w.data, &w.cap_data, 160);
        memset(w.data, 0, 160);
        w.n_data = 160;
        gw_end(&w);
        if (i == 3) { /* touching is allowed */
            gs_gguf_close(opened(&w));
            gw_free(&w);
        } else {
            refused(&w, GS_ERR_FORMAT, "'second'", "overlaps");
        }
    }
}

/* ---- All prefixes, mutations, allocation failures ------------------------------------------ */

static void test_truncated_everywhere(void **state) {
    (void)state;
    gw w = {0};
    gw_sample(&w, 3);
    for (size_t n = 0; n < w.n; n++) {
        gs_gguf *g;
        char err[256] = "";
        /* A copy of exactly n bytes, so that a sanitizer sees a read of byte n. */
        uint8_t *copy = malloc(n > 0 ? n : 1);
        assert_non_null(copy);
        memcpy(copy, w.p, n);
        int rc = gs_gguf_open_mem(copy, n, &g, err, sizeof err);
        if (rc != GS_ERR_FORMAT)
            print_error("cut at %zu: %s %s\n", n, gs_err_name(rc), err);
        assert_int_equal(rc, GS_ERR_FORMAT);
        assert_int_not_equal(err[0], '\0');
        free(copy);
    }
    gw_free(&w);
}

/* Values that size arithmetic goes wrong at. */
static uint64_t odd_value(gs_rng *r) {
    static const uint64_t v[] = {0,          1,          2,         31,         32,
                                 33,         255,        256,       INT32_MAX,  1ull << 31,
                                 UINT32_MAX, 1ull << 32, INT64_MAX, 1ull << 63, UINT64_MAX - 31,
                                 UINT64_MAX};
    return v[gs_rng_below(r, sizeof v / sizeof v[0])] + gs_rng_below(r, 3) - 1;
}

static void mutate(gs_rng *r, uint8_t *p, size_t *n, size_t n_header) {
    uint64_t v;
    size_t at = gs_rng_below(r, n_header);
    switch (gs_rng_below(r, 6)) {
    case 0:
        p[at] = (uint8_t)gs_rng_u64(r);
        break;
    case 1:
        p[at] ^= (uint8_t)(1u << gs_rng_below(r, 8));
        break;
    case 2: /* a length, count or offset */
        v = odd_value(r);
        memcpy(p + at, &v, at + 8 <= *n ? 8 : 1);
        break;
    case 3: /* a type or number of dimensions */
        v = odd_value(r);
        memcpy(p + at, &v, at + 4 <= *n ? 4 : 1);
        break;
    case 4:
        *n = gs_rng_below(r, *n + 1);
        break;
    default: { /* move bytes: shifts every later field */
        size_t len = gs_rng_below(r, 24) + 1;
        size_t to = gs_rng_below(r, n_header);
        if (at + len <= *n && to + len <= *n)
            memmove(p + to, p + at, len);
    }
    }
}

static void test_mutations(void **state) {
    (void)state;
    const int n_runs = scale(20000, 100000);
    gw w = {0};
    gs_rng r;
    int n_accepted = 0;
    gs_rng_seed(&r, scale_seed(20240607));
    gw_sample(&w, 3);
    size_t n_header = w.n - w.n_data;
    for (int run = 0; run < n_runs; run++) {
        size_t n = w.n;
        uint8_t *p = malloc(n);
        assert_non_null(p);
        memcpy(p, w.p, n);
        for (uint64_t k = gs_rng_below(&r, 4) + 1; k > 0 && n > 8; k--)
            mutate(&r, p, &n, n_header < n ? n_header : n);
        gs_gguf *g;
        char err[256] = "";
        int rc = gs_gguf_open_mem(p, n, &g, err, sizeof err);
        if (rc == GS_OK) {
            gs_walk_all(g);
            gs_gguf_close(g);
            n_accepted++;
        } else {
            assert_true(rc == GS_ERR_FORMAT || rc == GS_ERR_UNSUPPORTED);
            assert_int_not_equal(err[0], '\0');
            assert_null(g);
        }
        free(p);
    }
    /* Both outcomes occur, else the run would prove nothing. */
    print_message("%d files, %d of them read\n", n_runs, n_accepted);
    assert_in_range(n_accepted, n_runs / 100, n_runs * 9 / 10);
    gw_free(&w);
}

static void test_out_of_memory(void **state) {
    (void)state;
    gw w = {0};
    gw_sample(&w, 3);
    gs_fault_clear();
    gs_gguf_close(opened(&w));
    uint64_t n = gs_fault_calls(GS_FAULT_ALLOC);
    assert_true(n > 4);
    for (uint64_t k = 1; k <= n; k++) {
        gs_gguf *g;
        char err[256] = "";
        gs_fault_set(GS_FAULT_ALLOC, k, ENOMEM);
        assert_int_equal(gs_gguf_open_mem(w.p, w.n, &g, err, sizeof err), GS_ERR_NOMEM);
        assert_non_null(strstr(err, "memory"));
        assert_null(g);
        gs_fault_clear();
    }
    gw_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qtypes),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_numbers_refused),
        cmocka_unit_test(test_floats_must_be_finite),
        cmocka_unit_test(test_strings_and_arrays),
        cmocka_unit_test(test_array_type_confusion),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_real_file),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_huge_counts),
        cmocka_unit_test(test_string_length_wraps),
        cmocka_unit_test(test_token_length_narrowing),
        cmocka_unit_test(test_key_names),
        cmocka_unit_test(test_value_types),
        cmocka_unit_test(test_nested_arrays),
        cmocka_unit_test(test_array_counts),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_names_chosen_to_collide),
        cmocka_unit_test(test_dims),
        cmocka_unit_test(test_row_blocks),
        cmocka_unit_test(test_tensor_types),
        cmocka_unit_test(test_extents),
        cmocka_unit_test(test_padding_wraps),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_truncated_everywhere),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
