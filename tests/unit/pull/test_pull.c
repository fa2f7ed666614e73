/* Names of models, sources as people write them, hosts that may be asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "pull/pull.h"

static void files_of_names(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"Qwen3-4B-Q4_K_M", "Qwen3-4B-Q4_K_M.gguf"},
        {"qwen3:4b", "qwen3:4b.gguf"},
        {"hf.co/a/b:Q4_0", "hf.co%2Fa%2Fb:Q4_0.gguf"},
        {"100%", "100%25.gguf"},
    };
    char name[GS_MODEL_NAME_BYTES], file[512], path[600], err[256];
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        assert_int_equal(gs_model_file_of_name(pairs[i][0], file, sizeof file, err, sizeof err), 0);
        assert_string_equal(file, pairs[i][1]);
        snprintf(path, sizeof path, "/models/%s", file);
        gs_model_name_of_path(path, name);
        assert_string_equal(name, pairs[i][0]);
    }
    gs_model_name_of_path("/m/big-00001-of-00004.gguf", name);
    assert_string_equal(name, "big");
    gs_model_name_of_path("no-suffix", name);
    assert_string_equal(name, "no-suffix");
    static const char *const bad[] = {"", ".hidden", "/x", "a\nb", "\xff"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(gs_model_file_of_name(bad[i], file, sizeof file, err, sizeof err),
                         GS_ERR_INVALID);
    char longest[GS_MODEL_NAME_BYTES + 1];
    memset(longest, 'x', sizeof longest);
    longest[GS_MODEL_NAME_BYTES] = '\0';
    assert_int_equal(gs_model_file_of_name(longest, file, sizeof file, err, sizeof err),
                     GS_ERR_INVALID);
    longest[GS_MODEL_NAME_BYTES - 1] = '\0';
    assert_int_equal(gs_model_file_of_name(longest, file, sizeof file, err, sizeof err), 0);
    assert_true(gs_model_is_file("a.gguf"));
    assert_true(gs_model_is_file("a-00001-of-00002.gguf"));
    assert_false(gs_model_is_file("a-00002-of-00002.gguf"));
    assert_false(gs_model_is_file(".a.gguf"));
    assert_false(gs_model_is_file("a.txt"));
}

static void names_that_clients_use(void **state) {
    (void)state;
    static const char *const tagged[][2] = {
        {"Qwen3-4B-Q4_K_M", "qwen3:4b-q4_k_m"},
        {"SmolLM2-135M-Instruct.Q4_1", "smollm2:135m-instruct-q4_1"},
        {"gemma-3-270m-q4_k_m", "gemma-3:270m-q4_k_m"},
        {"Mixtral-8x7B-v0.1", "mixtral:8x7b-v0.1"},
        {"llama3:8b", ""},
        {"4B", ""},
        {"nomic-embed-text", ""},
    };
    char out[GS_MODEL_NAME_BYTES];
    for (size_t i = 0; i < sizeof tagged / sizeof tagged[0]; i++) {
        gs_model_tagged_name(tagged[i][0], out);
        assert_string_equal(out, tagged[i][1]);
    }
    static const struct {
        const char *want, *have;
        gs_name_match fits;
    } rows[] = {
        {"Qwen3-4B-Q4_K_M", "Qwen3-4B-Q4_K_M", GS_NAME_SAME},
        {"Qwen3-4B-Q4_K_M:latest", "Qwen3-4B-Q4_K_M", GS_NAME_SAME},
        {"qwen3:4b-q4_k_m", "Qwen3-4B-Q4_K_M", GS_NAME_TAGGED},
        {"qwen3:4b", "Qwen3-4B-Q4_K_M", GS_NAME_BEGINS},
        {"qwen3", "Qwen3-4B-Q4_K_M", GS_NAME_BEGINS},
        {"qwen3:latest", "Qwen3-4B-Q4_K_M", GS_NAME_BEGINS},
        {"qwen", "Qwen3-4B-Q4_K_M", GS_NAME_NO},
        {"qwen3:4", "Qwen3-4B-Q4_K_M", GS_NAME_NO},
        {"qwen3:4b-q4", "Qwen3-4B-Q4_K_M", GS_NAME_NO},
        {"gemma", "gemma-3-270m-q4_k_m", GS_NAME_NO},
        {"llama3:8b", "llama3:8b-q4_0", GS_NAME_BEGINS},
        {"llama3", "llama3:8b-q4_0", GS_NAME_BEGINS},
        {"", "llama3:8b", GS_NAME_NO},
        {":latest", "x", GS_NAME_NO},
        {"fak", "fake", GS_NAME_NO},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (gs_model_name_match(rows[i].want, rows[i].have) != rows[i].fits)
            fail_msg("%s for %s", rows[i].want, rows[i].have);
}

static void sources(void **state) {
    (void)state;
    static const char *const hosts[] = {"http://127.0.0.1:8000", "*.hf.co"};
    const gs_sources s = {.hosts = {hosts, 2},
                          .registry_url = "https://reg.example",
                          .hf_url = "https://hub.example"};
    static const struct {
        const char *text;
        gs_source_kind kind;
        const char *url, *name;
    } rows[] = {
        {"https://h/a/x.gguf?b=c", GS_SOURCE_URL, "https://h/a/x.gguf?b=c", "x"},
        {"/m/x.gguf", GS_SOURCE_FILE, "/m/x.gguf", "x"},
        {"file:///m/x.gguf", GS_SOURCE_FILE, "/m/x.gguf", "x"},
        {"hf:o/r/d/x.gguf", GS_SOURCE_URL, "https://hub.example/o/r/resolve/main/d/x.gguf", "x"},
        {"hf:o/r@v2/x.gguf", GS_SOURCE_URL, "https://hub.example/o/r/resolve/v2/x.gguf", "x"},
        {"hf.co/o/r/x.gguf", GS_SOURCE_URL, "https://hub.example/o/r/resolve/main/x.gguf", "x"},
        {"qwen3", GS_SOURCE_REGISTRY, "https://reg.example/v2/library/qwen3/manifests/latest",
         "qwen3"},
        {"qwen3:4b", GS_SOURCE_REGISTRY, "https://reg.example/v2/library/qwen3/manifests/4b",
         "qwen3:4b"},
        {"me/m:1b", GS_SOURCE_REGISTRY, "https://reg.example/v2/me/m/manifests/1b", "me/m:1b"},
        {"hf.co/o/r:Q4_0", GS_SOURCE_REGISTRY, "https://hf.co/v2/o/r/manifests/Q4_0",
         "hf.co/o/r:Q4_0"},
        {"127.0.0.1:8000/a/b", GS_SOURCE_REGISTRY, "http://127.0.0.1:8000/v2/a/b/manifests/latest",
         "127.0.0.1:8000/a/b"},
    };
    gs_source out;
    char err[256];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (gs_source_read(&s, rows[i].text, &out, err, sizeof err) != 0)
            fail_msg("%s: %s", rows[i].text, err);
        assert_int_equal(out.kind, rows[i].kind);
        assert_string_equal(out.url, rows[i].url);
        assert_string_equal(out.name, rows[i].name);
    }
    static const char *const bad[] = {
        "",    "https://h/x.bin", "hf:o/x.gguf", "hf:o/r/x.bin", "a/b/c",         "x:",
        "a b", "a/../b",          "./x",         "x:a:b",        "hf:o/r@/x.gguf"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (gs_source_read(&s, bad[i], &out, err, sizeof err) != GS_ERR_INVALID)
            fail_msg("%s became %s", bad[i], out.url);
    /* Short enough to be read, and too long once it is a URL: never half of it. */
    char text[2040];
    snprintf(text, sizeof text, "hf:o/r/%02020d.gguf", 0);
    assert_int_equal(gs_source_read(&s, text, &out, err, sizeof err), GS_ERR_INVALID);
    assert_non_null(strstr(err, "too long"));
}

static void hosts_that_may_be_asked(void **state) {
    (void)state;
    static const char *const list[] = {"a.example",        "*.b.example",         "c.example:8443",
                                       "http://d.example", "http://127.0.0.1:80", "[::1]"};
    const gs_hosts h = {list, sizeof list / sizeof list[0]};
    static const struct {
        const char *url;
        int code;
    } rows[] = {
        {"https://a.example/x", 0},
        {"https://A.Example:443/x", 0},
        {"http://a.example/x", GS_ERR_FORBIDDEN},
        {"https://a.example:444/x", GS_ERR_FORBIDDEN},
        {"https://x.a.example/", GS_ERR_FORBIDDEN},
        {"https://b.example/", 0},
        {"https://x.y.b.example/", 0},
        {"https://xb.example/", GS_ERR_FORBIDDEN},
        {"https://b.example.evil/", GS_ERR_FORBIDDEN},
        {"https://c.example:8443/", 0},
        {"https://c.example/", GS_ERR_FORBIDDEN},
        {"http://d.example/", 0},
        {"https://d.example/", 0},
        {"http://127.0.0.1/", 0},
        {"https://[::1]/", 0},
        {"https://a.example@evil/", GS_ERR_INVALID},
        {"https://evil#a.example", GS_ERR_FORBIDDEN},
        {"https://evil\\.a.example/", GS_ERR_INVALID},
        {"ftp://a.example/", GS_ERR_INVALID},
        {"file:///etc/passwd", GS_ERR_INVALID},
        {"", GS_ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char err[400];
        const int rc = gs_hosts_check(&h, rows[i].url, err, sizeof err);
        if (rows[i].code == GS_ERR_INVALID ? rc == 0 : rc != rows[i].code)
            fail_msg("%s: %d", rows[i].url, rc);
    }
    assert_true(gs_hosts_plain(&h, "d.example"));
    assert_false(gs_hosts_plain(&h, "a.example"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_names),
        cmocka_unit_test(names_that_clients_use),
        cmocka_unit_test(sources),
        cmocka_unit_test(hosts_that_may_be_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
