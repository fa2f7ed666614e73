/* gamasot models inspect: what a GGUF file holds, and whether it can be served. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "cli/cli.h"
#include "gguf/gguf.h"
#include "model/model.h"

#define SHOWN_CHARS 100

/* Foreign text on a terminal: control bytes are shown as '?'. */
static void print_str(gs_str s) {
    size_t n = s.len < SHOWN_CHARS ? s.len : SHOWN_CHARS;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s.data[i];
        putchar(c == '\n' ? ' ' : iscntrl(c) ? '?' : c);
    }
    if (s.len > n)
        printf("... (%zu bytes)", s.len);
}

static void print_value(const gs_gguf *g, const gs_gguf_kv *kv) {
    char key[GS_GGUF_MAX_NAME + 1];
    gs_str s;
    float f;
    bool b;
    int64_t i;
    snprintf(key, sizeof(key), "%.*s", (int)kv->key.len, kv->key.data);
    if (kv->type == GS_GGUF_ARR)
        printf("array of %" PRIu64, kv->n);
    else if (gs_gguf_get_str(g, key, &s, NULL, 0) == 0)
        print_str(s);
    else if (gs_gguf_get_bool(g, key, &b, NULL, 0) == 0)
        printf("%s", b ? "true" : "false");
    else if (gs_gguf_get_i64(g, key, &i, NULL, 0) == 0)
        printf("%" PRId64, i);
    else if (gs_gguf_get_f32(g, key, &f, NULL, 0) == 0)
        printf("%g", (double)f);
    else
        printf("?");
}

static void print_tensors(const gs_gguf *g) {
    uint64_t bytes[64] = {0}, count[64] = {0};
    for (size_t i = 0; i < gs_gguf_n_tensors(g); i++) {
        const gs_gguf_tensor *t = gs_gguf_tensor_at(g, i);
        if ((unsigned)t->type < 64) {
            bytes[t->type] += t->n_bytes;
            count[t->type]++;
        }
    }
    printf("tensors\n");
    for (uint32_t t = 0; t < 64; t++) {
        const gs_qtype_info *q = gs_qtype_get(t);
        if (count[t] > 0 && q)
            printf("  %-8s %5" PRIu64 " tensors %10.1f MB\n", q->name, count[t],
                   (double)bytes[t] / 1e6);
    }
}

int gs_models_inspect(const char *path, char *err, size_t errlen) {
    char why[512] = "";
    gs_gguf *g = NULL;
    int rc = gs_gguf_open(path, &g, err, errlen);
    if (rc != 0)
        return rc;
    printf("%s\nGGUF version %u, %.1f MB, alignment %u\n\nmetadata\n", path, gs_gguf_version(g),
           (double)gs_gguf_file_bytes(g) / 1e6, gs_gguf_alignment(g));
    for (size_t i = 0; i < gs_gguf_n_kv(g); i++) {
        const gs_gguf_kv *kv = gs_gguf_kv_at(g, i);
        printf("  ");
        print_str(kv->key);
        printf(" = ");
        print_value(g, kv);
        printf("\n");
    }
    print_tensors(g);
    gs_hparams hp;
    rc = gs_hparams_read(g, &hp, why, sizeof(why));
    if (rc == 0)
        printf("can be served: yes, architecture %s, %d layers, context %d\n", hp.arch, hp.n_layers,
               hp.n_ctx_train);
    else
        printf("can be served: no, %s\n", why[0] ? why : gs_err_text(rc));
    gs_gguf_close(g);
    return 0;
}
