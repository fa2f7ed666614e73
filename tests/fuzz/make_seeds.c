/*
 * Writes the seed corpora of the fuzz targets that need more than a text file:
 *
 *     make_seeds DIR      ->  the folders DIR/gguf_open and DIR/config_file
 *
 * Good files of every shape, and one file just beside each check of the parser, so that the
 * fuzzer begins at the edges.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>

#include "../unit/gguf/gguf_writer.h"

static const char *root;
static bool failed;

/* Writes w as DIR/<target>/<name> and empties it. */
static void put(gw *w, const char *target, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", root, target);
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        perror(path);
        failed = true;
    }
    snprintf(path, sizeof path, "%s/%s/%s", root, target, name);
    if (gw_save(w, path) != 0) {
        perror(path);
        failed = true;
    }
    gw_free(w);
}

static void good_files(void) {
    gw w = {0};
    char name[32];
    gw_sample(&w, 2);
    put(&w, "gguf_open", "sample-v2");
    gw_sample(&w, 3);
    put(&w, "gguf_open", "sample-v3");
    gw_begin(&w, 3);
    gw_end(&w);
    put(&w, "gguf_open", "empty");
    for (uint32_t type = GS_GGUF_U8; type <= GS_GGUF_F64; type++) {
        if (type == GS_GGUF_ARR)
            continue;
        gw_begin(&w, 3);
        gw_kv(&w, "k", type);
        gw_u64(&w, type == GS_GGUF_STR ? 0 : 1); /* longer than most types: trailing bytes */
        gw_end(&w);
        snprintf(name, sizeof name, "value-%u", type);
        put(&w, "gguf_open", name);
        gw_begin(&w, 3);
        gw_kv_arr(&w, "k", type, 1);
        gw_u64(&w, type == GS_GGUF_STR ? 0 : 1);
        gw_end(&w);
        snprintf(name, sizeof name, "array-%u", type);
        put(&w, "gguf_open", name);
    }
#define X(qname, num, elems, bytes)                                                                \
    gw_begin(&w, 3);                                                                               \
    gw_tensor(&w, "t", 2, (uint64_t[]){elems, 2}, num, NULL, 2 * (bytes));                         \
    gw_end(&w);                                                                                    \
    put(&w, "gguf_open", "tensor-" #qname);
    GS_QTYPE_MAP(X)
#undef X
}

static void edge_files(void) {
    static const uint32_t aligns[] = {0, 8, 64, 65536, 1u << 31};
    static const uint64_t dims[] = {0, 1, 1ull << 32, 1ull << 63};
    static const uint64_t offsets[] = {0, 32, 64, 1ull << 63, UINT64_MAX - 31};
    gw w = {0};
    char name[32];
    for (size_t i = 0; i < sizeof aligns / sizeof aligns[0]; i++) {
        gw_begin(&w, 3);
        gw_kv_u32(&w, "general.alignment", aligns[i]);
        w.align = aligns[i] >= 8 && aligns[i] <= 65536 ? aligns[i] : 32;
        gw_tensor(&w, "t", 1, (uint64_t[]){1}, GS_QTYPE_F32, NULL, 4);
        gw_end(&w);
        snprintf(name, sizeof name, "align-%u", aligns[i]);
        put(&w, "gguf_open", name);
    }
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        gw_begin(&w, 3);
        gw_tensor_entry(&w, "t", 4, (uint64_t[]){2, dims[i], dims[i], 2}, GS_QTYPE_I8, 0);
        gw_end(&w);
        gw_bytes(&w, "12345678901234567890123456789012", 32);
        snprintf(name, sizeof name, "dims-%zu", i);
        put(&w, "gguf_open", name);
    }
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        gw_begin(&w, 3);
        gw_tensor(&w, "a", 1, (uint64_t[]){16}, GS_QTYPE_F32, NULL, 64);
        gw_tensor_entry(&w, "b", 1, (uint64_t[]){8}, GS_QTYPE_F32, offsets[i]);
        gw_end(&w);
        snprintf(name, sizeof name, "offset-%zu", i);
        put(&w, "gguf_open", name);
    }
    gw_begin(&w, 3);
    gw_kv_u32(&w, "a", 1);
    gw_kv_u32(&w, "a", 1);
    put(&w, "gguf_open", "twice");
    gw_begin(&w, 3);
    gw_kv_arr(&w, "a", GS_GGUF_ARR, 1);
    gw_u32(&w, GS_GGUF_U8);
    gw_u64(&w, 0);
    put(&w, "gguf_open", "nested");
}

static void config_files(void) {
    static const char *const texts[] = {
        "[server]\nhost = 127.0.0.1, ::1\nport = 11434\napi_keys = a,b\nmax_body_kb=1\n",
        "\xef\xbb\xbf# comment\r\n[model]\r\npath = ~/m.gguf ; why\r\nbackend: fake\r\n",
        "[server]\nallowed_hosts = a\n  b\n  c\nallowed_hosts = d\n[kv]\nblock_tokens = 64\n",
        "server.port = 1\nlog.level = warn\nkv.prefix_cache = off\nengine.pin = yes\n",
        "[server]\nprot = 1\n",
        "[fake]\nstep_ms = 99999999999999999999\n",
        "[log\nlevel\n",
    };
    gw w = {0};
    char name[32];
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        gw_bytes(&w, texts[i], strlen(texts[i]));
        snprintf(name, sizeof name, "text-%zu", i);
        put(&w, "config_file", name);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "use: make_seeds DIR\n");
        return 2;
    }
    root = argv[1];
    if (mkdir(root, 0777) != 0 && errno != EEXIST) {
        perror(root);
        return 1;
    }
    good_files();
    edge_files();
    config_files();
    return failed;
}
