/*
 * CPU time of encoding 1 MB of different texts: prose with code and other scripts, and the shapes
 * that make careless tokenizers quadratic. The target is 0.2 s for mixed text; no shape may grow
 * faster than n log n, so each is also timed at a quarter of its size.
 *
 *     bench_tokenizer MODEL.gguf...
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"
#include "tokenizer/tokenizer.h"

#define TEXT_BYTES (1u << 20)

static double cpu_s(void) {
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void repeat(gs_buf *b, const char *unit) {
    size_t n = strlen(unit);
    while (b->len + n <= TEXT_BYTES)
        gs_buf_add(b, unit, n);
}

static void mixed(gs_buf *b) {
    static const char *const parts[] = {
        "The household's evening plan: dinner at seven, homework after, lights out by ten. ",
        "static int add(int a, int b) {\n    return a + b; /* checked by the caller */\n}\n\n",
        "Wir treffen uns um 18:30 Uhr am Bahnhof; bitte bringt die Fahrräder mit. ",
        "{\"entity_id\": \"light.kitchen\", \"state\": \"on\", \"brightness\": 204}\n",
        "Привет, как прошёл твой день? Ужин уже готов. ",
        "今日の天気は晴れ、気温は二十三度です。",
        "🙂🙂 ok 👍🏽 — see you!\n",
        "https://example.org/recipes?id=88213&lang=en#step-4 ",
    };
    gs_rng rng;
    gs_rng_seed(&rng, 1);
    char word[16];
    while (b->len + 256 <= TEXT_BYTES) {
        const char *p = parts[gs_rng_below(&rng, sizeof(parts) / sizeof(parts[0]))];
        gs_buf_add(b, p, strlen(p));
        /* words that never came before, so that the cache does not do all the work */
        for (unsigned w = 0; w < 6; w++) {
            size_t n = 3 + gs_rng_below(&rng, 9);
            for (size_t i = 0; i < n; i++)
                word[i] = (char)('a' + gs_rng_below(&rng, 26));
            word[n] = ' ';
            gs_buf_add(b, word, n + 1);
        }
    }
}

static void noise(gs_buf *b) {
    gs_rng rng;
    gs_rng_seed(&rng, 2);
    while (b->len + 4 <= TEXT_BYTES) {
        char ch[4];
        uint32_t cp = (uint32_t)gs_rng_below(&rng, 0x3000);
        unsigned n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : 3;
        if (n == 1)
            ch[0] = (char)cp;
        else if (n == 2)
            ch[0] = (char)(0xc0 | cp >> 6), ch[1] = (char)(0x80 | (cp & 63));
        else
            ch[0] = (char)(0xe0 | cp >> 12), ch[1] = (char)(0x80 | (cp >> 6 & 63)),
            ch[2] = (char)(0x80 | (cp & 63));
        gs_buf_add(b, ch, n);
    }
}

/* A run that look-ahead patterns may rescan from each of its positions. */
static void run_before(gs_buf *b) {
    while (b->len < TEXT_BYTES)
        gs_buf_char(b, ' ');
    gs_buf_str(b, "中");
}

/* Seconds of the faster of two runs. */
static double encode_s(const gs_tokenizer *t, const char *text, size_t n, int flags,
                       size_t *n_ids) {
    double best = 1e9;
    for (int i = 0; i < 2; i++) {
        gs_ids ids = {0};
        char err[256] = "";
        double start = cpu_s();
        if (gs_tok_encode(t, text, n, flags, &ids, err, sizeof(err))) {
            fprintf(stderr, "%s\n", err);
            exit(1);
        }
        double took = cpu_s() - start;
        best = took < best ? took : best;
        *n_ids = ids.len;
        gs_ids_deinit(&ids);
    }
    return best;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name, *unit;
        void (*make)(gs_buf *);
    } texts[] = {
        {"mixed", NULL, mixed},        {"one letter", "a", NULL},
        {"spaces", " ", NULL},         {"emoji", "😀", NULL},
        {"line feeds", "\n", NULL},    {"digits", "7", NULL},
        {"ideographs", "中", NULL},    {"capitals", "A", NULL},
        {"\"_a\"", " a", NULL},        {"accents", "é̂", NULL},
        {"markers", "<|im_end", NULL}, {"punctuation", "!?", NULL},
        {"noise", NULL, noise},        {"spaces, one x", NULL, run_before},
    };
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf...\n", argv[0]);
        return 2;
    }
    for (int a = 1; a < argc; a++) {
        char err[256] = "";
        gs_gguf *g = NULL;
        gs_tokenizer *t = NULL;
        double start = cpu_s();
        if (gs_gguf_open(argv[a], &g, err, sizeof(err)) ||
            gs_tokenizer_create(g, &t, err, sizeof(err))) {
            fprintf(stderr, "%s: %s\n", argv[a], err);
            return 1;
        }
        printf("%s\n  loaded in %.3f s\n", argv[a], cpu_s() - start);
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
            gs_buf b = {0};
            size_t n_ids, n_less;
            if (texts[i].make)
                texts[i].make(&b);
            else
                repeat(&b, texts[i].unit);
            size_t less = b.len / 4 / strlen(texts[i].unit ? texts[i].unit : "x");
            less *= strlen(texts[i].unit ? texts[i].unit : "x");
            while (less && ((unsigned char)b.data[less] & 0xc0) == 0x80)
                less--;
            double quarter = encode_s(t, b.data, less, GS_TOK_PARSE_SPECIAL, &n_less);
            double whole = encode_s(t, b.data, b.len, GS_TOK_PARSE_SPECIAL, &n_ids);
            printf("  %-13s %7.1f ms  %8zu tokens  %5.2f x its quarter\n", texts[i].name,
                   whole * 1e3, n_ids, whole / quarter);
            gs_buf_deinit(&b);
        }
        gs_tokenizer_free(t);
        gs_gguf_close(g);
    }
    return 0;
}
