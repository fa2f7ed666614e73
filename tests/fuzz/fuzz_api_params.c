/*
 * Any bytes as a request body, or a body of the fields that there are with values that the bytes
 * choose: the first byte says which, and the dialect. What is accepted must lie within the bounds
 * that the engine relies on, and what is refused must say why.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/params.h"
#include "base/buf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const gs_gen_params *p) {
    const gs_sampler *s = &p->sampler;
    const float f[] = {s->temperature,      s->top_p,          s->min_p,
                       s->typical_p,        s->dry_base,       s->repeat_penalty,
                       s->presence_penalty, s->dry_multiplier, s->frequency_penalty};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        if (!isfinite(f[i]))
            abort();
    }
    if (s->repeat_penalty <= 0 || s->top_k < 0 || s->repeat_last_n < -1 ||
        s->dry_allowed_length < 1 || s->n_logprobs < -1 || s->n_logprobs > GS_MAX_TOP_LOGPROBS)
        abort();
    if (p->n < 1 || p->n > GS_MAX_CHOICES || p->max_tokens == 0 || p->max_tokens < -1)
        abort();
    if (p->stop.n > GS_MAX_STOPS || p->n_bias > GS_MAX_BIAS ||
        strnlen(p->user, sizeof p->user) == sizeof p->user)
        abort();
    for (int i = 0; i < p->stop.n; i++) {
        if (p->stop.len[i] == 0 || p->stop.len[i] > GS_MAX_STOP_BYTES)
            abort();
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id < 0 || p->bias[i].id >= 1000 || !(fabsf(p->bias[i].bias) <= 100))
            abort();
    }
}

/* ---- A body that is JSON --------------------------------------------------------------------- */

typedef struct input {
    const uint8_t *at;
    size_t left;
} input;

static unsigned next(input *in) {
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

#define N(a) (sizeof(a) / sizeof((a)[0]))

static void add_value(input *in, gs_buf *out, int depth);

/* Members in the order of the names, each once. */
static void add_members(input *in, gs_buf *out, int depth) {
    static const char *const names[] = {
        "",           "5",          "999",           "content", "enum",        "format",
        "function",   "image_url",  "include_usage", "items",   "json_schema", "name",
        "parameters", "properties", "regex",         "role",    "schema",      "strict",
        "text",       "type"};
    gs_buf_char(out, '{');
    for (size_t i = next(in) % 8, n = 0; i < N(names); i += 1 + next(in) % 8, n++) {
        gs_buf_printf(out, "%s\"%s\":", n > 0 ? "," : "", names[i]);
        add_value(in, out, depth + 1);
    }
    gs_buf_char(out, '}');
}

static void add_value(input *in, gs_buf *out, int depth) {
    // clang-format off
    static const char *const words[] = {
        "null", "true", "false", "0", "1", "2", "-1", "0.5", "-0.0", "1e308", "1e-320", "20",
        "21", "2147483647", "2147483648", "9223372036854775807", "-9223372036854775808", "\"\"",
        "\"a\"", "\"auto\"", "\"none\"", "\"required\"", "\"user\"", "\"assistant\"",
        "\"system\"", "\"tool\"", "\"text\"", "\"json_object\"", "\"json_schema\"",
        "\"grammar\"", "\"function\"", "\"flex\"", "\"\\ud83d\\ude00\"", "\"(a|b)*\"", "{}",
        "[]",
    };
    // clang-format on
    const unsigned how = next(in);
    if (depth < 8 && how >= 224) {
        add_members(in, out, depth);
    } else if (depth < 8 && how >= 192) {
        gs_buf_char(out, '[');
        for (unsigned n = next(in) % 20, i = 0; i <= n; i++) {
            gs_buf_str(out, i > 0 ? "," : "");
            add_value(in, out, depth + 1);
        }
        gs_buf_char(out, ']');
    } else {
        gs_buf_str(out, words[how % N(words)]);
    }
}

static void add_body(input *in, gs_buf *out) {
    const char *last = "";
    unsigned skip = next(in) % 8;
    gs_buf_char(out, '{');
    for (const gs_field *f = gs_gen_fields; f->name; f++) {
        if (skip > 0 || strcmp(f->name, last) == 0) { /* chat's and text's have one name */
            skip -= skip > 0;
            continue;
        }
        gs_buf_printf(out, "%s\"%s\":", *last ? "," : "", f->name);
        add_value(in, out, 0);
        last = f->name;
        skip = next(in) % 16;
    }
    gs_buf_char(out, '}');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static gs_gen_params p;
    gs_api_error e = {0};
    if (size == 0)
        return 0;
    gs_buf made = {0};
    if (data[0] & 2)
        add_body(&(input){data + 1, size - 1}, &made);
    else
        gs_buf_add(&made, data + 1, size - 1);
    json_t *root = gs_api_parse_json(made.data, made.len, &e);
    if (root && gs_gen_params_read(root, data[0] & 1, 1000, &p, &e) == 0)
        check(&p);
    else if (e.code >= 0 || !e.message[0])
        abort();
    gs_gen_params_deinit(&p);
    json_decref(root);
    gs_buf_deinit(&made);
    return 0;
}
