/*
 * C interface of the Rust library (rust/src/lib.rs): chat templates. (Constrained output is
 * llguidance's own C interface: the llg_* symbols of this library.)
 *
 * Strings go in as pointer and length, UTF-8, not terminated; nothing is kept after a call. A
 * template handle may be used by any number of threads at the same time. No call unwinds.
 */
#ifndef GS_TOKENIZER_CHAT_RUST_H
#define GS_TOKENIZER_CHAT_RUST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values of the matching gs_err codes. */
enum {
    GS_RUST_OK = 0,
    GS_RUST_INVALID = -1,   /* the template or its input is wrong; err says how */
    GS_RUST_TOO_LARGE = -5, /* the output is larger than max_output_bytes */
    GS_RUST_NOMEM = -11,    /* no thread could be started */
    GS_RUST_INTERNAL = -17  /* a bug: a panic was caught */
};

typedef struct gs_rust_template gs_rust_template;

typedef struct gs_rust_str {
    const char *data; /* NULL: not given */
    size_t len;
} gs_rust_str;

typedef struct gs_rust_render_in {
    gs_rust_str messages; /* JSON array; required */
    gs_rust_str tools;    /* JSON array */
    gs_rust_str extra;    /* JSON object of further variables */
    gs_rust_str bos;
    gs_rust_str eos;
    bool add_generation_prompt;
    int64_t now_s;
    uint64_t fuel; /* VM instructions */
    size_t max_output_bytes;
    uint32_t time_limit_ms;
} gs_rust_render_in;

int gs_rust_template_new(gs_rust_str source, gs_rust_template **out, char *err, size_t errlen);
void gs_rust_template_free(gs_rust_template *t);
/* *out is freed with gs_rust_bytes_free. */
int gs_rust_template_render(const gs_rust_template *t, const gs_rust_render_in *in, char **out,
                            size_t *n_out, char *err, size_t errlen);
void gs_rust_bytes_free(char *data, size_t n);

#endif
