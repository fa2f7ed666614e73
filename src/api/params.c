#include "api/params.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"

int gs_api_fail(gs_api_error *e, int code, const char *param, const char *fmt, ...) {
    va_list ap;
    memset(e, 0, sizeof(*e));
    e->code = code;
    snprintf(e->param, sizeof(e->param), "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof(e->message), fmt, ap);
    va_end(ap);
    return code;
}

/* Nesting depth by one pass over the bytes: the parser below recurses, so it must not be the
 * first to see a depth bomb. */
static bool too_deep(const char *s, size_t n) {
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
        } else if (s[i] == '"') {
            in_string = true;
        } else if (s[i] == '[' || s[i] == '{') {
            if (++depth > GS_JSON_DEPTH)
                return true;
        } else if (s[i] == ']' || s[i] == '}') {
            depth--;
        }
    }
    return false;
}

json_t *gs_api_parse_json(const char *text, size_t n, gs_api_error *e) {
    if (n == 0) {
        gs_api_fail(e, GS_ERR_INVALID, "body", "The request has no body; a JSON object is needed.");
        return NULL;
    }
    if (too_deep(text, n)) {
        gs_api_fail(e, GS_ERR_INVALID, "body", "The JSON is nested more than %d levels deep.",
                    GS_JSON_DEPTH);
        return NULL;
    }
    json_error_t je;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!root) {
        /* jansson quotes the text near the fault; only its own words before that are passed on. */
        char *near = strstr(je.text, " near '");
        if (near)
            *near = '\0';
        if (json_error_code(&je) == json_error_null_character)
            snprintf(je.text, sizeof(je.text), "\\u0000 is not accepted in strings");
        gs_api_fail(e, GS_ERR_INVALID, "body",
                    "The body is not valid JSON: %s (line %d, column %d).", je.text, je.line,
                    je.column);
        return NULL;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        gs_api_fail(e, GS_ERR_INVALID, "body", "The body must be a JSON object.");
        return NULL;
    }
    return root;
}

/* ---- The field table
 * ------------------------------------------------------------------------------ */

typedef enum field_type { F_FLOAT, F_INT, F_BOOL } field_type;

enum { F_CHAT = 1, F_TEXT = 2, F_BOTH = 3 };

typedef struct field {
    const char *name;
    field_type type;
    int where; /* F_CHAT, F_TEXT */
    size_t offset;
    double min, max;
} field;

#define AT(member) offsetof(gs_gen_params, member)

// clang-format off
static const field fields[] = {
    {"temperature",           F_FLOAT, F_BOTH, AT(sampler.temperature),       0, 100},
    {"top_p",                 F_FLOAT, F_BOTH, AT(sampler.top_p),             0, 1},
    {"top_k",                 F_INT,   F_BOTH, AT(sampler.top_k),            -1, INT32_MAX},
    {"min_p",                 F_FLOAT, F_BOTH, AT(sampler.min_p),             0, 1},
    {"typical_p",             F_FLOAT, F_BOTH, AT(sampler.typical_p),         0, 1},
    {"repeat_penalty",        F_FLOAT, F_BOTH, AT(sampler.repeat_penalty),    0.01, 100},
    {"repetition_penalty",    F_FLOAT, F_BOTH, AT(sampler.repeat_penalty),    0.01, 100},
    {"repeat_last_n",         F_INT,   F_BOTH, AT(sampler.repeat_last_n),    -1, INT32_MAX},
    {"presence_penalty",      F_FLOAT, F_BOTH, AT(sampler.presence_penalty), -2, 2},
    {"frequency_penalty",     F_FLOAT, F_BOTH, AT(sampler.frequency_penalty), -2, 2},
    {"dry_multiplier",        F_FLOAT, F_BOTH, AT(sampler.dry_multiplier),    0, 100},
    {"dry_base",              F_FLOAT, F_BOTH, AT(sampler.dry_base),          1, 10},
    {"dry_allowed_length",    F_INT,   F_BOTH, AT(sampler.dry_allowed_length), 1, 1000},
    {"ignore_eos",            F_BOOL,  F_BOTH, AT(sampler.ignore_eos),        0, 0},
    {"max_tokens",            F_INT,   F_BOTH, AT(max_tokens),                1, INT32_MAX},
    {"max_completion_tokens", F_INT,   F_CHAT, AT(max_tokens),                1, INT32_MAX},
    {"n",                     F_INT,   F_BOTH, AT(n),                         1, GS_MAX_CHOICES},
    {"stream",                F_BOOL,  F_BOTH, AT(stream),                    0, 0},
    {"echo",                  F_BOOL,  F_TEXT, AT(echo),                      0, 0},
    {"logprobs",              F_INT,   F_TEXT, AT(sampler.n_logprobs),        0, GS_MAX_TOP_LOGPROBS},
};
// clang-format on

static int read_field(const field *f, const json_t *v, gs_gen_params *p, gs_api_error *e) {
    char *at = (char *)p + f->offset;
    if (f->type == F_BOOL) {
        if (!json_is_boolean(v))
            return gs_api_fail(e, GS_ERR_INVALID, f->name, "'%s' must be true or false.", f->name);
        *(bool *)at = json_is_true(v);
        return 0;
    }
    bool whole = json_is_integer(v) || (f->type == F_INT && json_is_real(v) &&
                                        json_real_value(v) == floor(json_real_value(v)));
    if (!json_is_number(v) || (f->type == F_INT && !whole))
        return gs_api_fail(e, GS_ERR_INVALID, f->name, "'%s' must be %s.", f->name,
                           f->type == F_INT ? "a whole number" : "a number");
    double x = json_number_value(v);
    if (!(x >= f->min && x <= f->max))
        return gs_api_fail(e, GS_ERR_INVALID, f->name, "'%s' must be between %.10g and %.10g.",
                           f->name, f->min, f->max);
    if (f->type == F_INT)
        *(int32_t *)(void *)at = (int32_t)x;
    else
        *(float *)(void *)at = (float)x;
    return 0;
}

static int read_stop(const json_t *v, gs_stop_set *s, gs_api_error *e) {
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > GS_MAX_STOPS)
        return gs_api_fail(e, GS_ERR_INVALID, "stop", "'stop' may have at most %d strings.",
                           GS_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(item))
            return gs_api_fail(e, GS_ERR_INVALID, "stop",
                               "'stop' must be a string or an array of strings.");
        size_t len = json_string_length(item);
        if (len > GS_MAX_STOP_BYTES)
            return gs_api_fail(e, GS_ERR_INVALID, "stop",
                               "A stop string may have at most %d bytes.", GS_MAX_STOP_BYTES);
        if (len == 0)
            continue; /* would match everywhere; clients send [""] for "none" */
        memcpy(s->text[s->n], json_string_value(item), len + 1);
        s->len[s->n++] = len;
    }
    return 0;
}

static int read_bias(const json_t *v, int32_t n_vocab, gs_gen_params *p, gs_api_error *e) {
    if (!json_is_object(v))
        return gs_api_fail(e, GS_ERR_INVALID, "logit_bias",
                           "'logit_bias' must be an object of token id to number.");
    if (json_object_size(v) > GS_MAX_BIAS)
        return gs_api_fail(e, GS_ERR_INVALID, "logit_bias",
                           "'logit_bias' may have at most %d entries.", GS_MAX_BIAS);
    const char *key;
    json_t *val;
    json_t *walk;
    memcpy(&walk, &v,
           sizeof(walk)); /* json_object_foreach takes a non-const object but only reads */
    json_object_foreach(walk, key, val) {
        char *end;
        long id = strtol(key, &end, 10);
        if (!isdigit((unsigned char)key[0]) || *end != '\0' || id < 0 || id >= n_vocab)
            return gs_api_fail(e, GS_ERR_INVALID, "logit_bias",
                               "'logit_bias' keys must be token ids below %d.", n_vocab);
        if (!json_is_number(val) || !(fabs(json_number_value(val)) <= 100))
            return gs_api_fail(e, GS_ERR_INVALID, "logit_bias",
                               "'logit_bias' values must be between -100 and 100.");
        p->bias[p->n_bias++] = (gs_logit_bias){(int32_t)id, (float)json_number_value(val)};
    }
    return 0;
}

/* chat: logprobs is a switch and top_logprobs a number. */
static int read_chat_logprobs(const json_t *root, gs_gen_params *p, gs_api_error *e) {
    const json_t *on = json_object_get(root, "logprobs");
    const json_t *top = json_object_get(root, "top_logprobs");
    if (on && !json_is_null(on) && !json_is_boolean(on))
        return gs_api_fail(e, GS_ERR_INVALID, "logprobs", "'logprobs' must be true or false.");
    if (json_is_true(on))
        p->sampler.n_logprobs = 0;
    if (!top || json_is_null(top))
        return 0;
    if (!json_is_integer(top) || json_integer_value(top) < 0 ||
        json_integer_value(top) > GS_MAX_TOP_LOGPROBS)
        return gs_api_fail(e, GS_ERR_INVALID, "top_logprobs",
                           "'top_logprobs' must be a whole number between 0 and %d.",
                           GS_MAX_TOP_LOGPROBS);
    if (!json_is_true(on))
        return gs_api_fail(e, GS_ERR_INVALID, "top_logprobs",
                           "'top_logprobs' needs 'logprobs': true.");
    p->sampler.n_logprobs = (int32_t)json_integer_value(top);
    return 0;
}

static int read_rest(const json_t *root, int32_t n_vocab, gs_gen_params *p, gs_api_error *e) {
    const json_t *v = json_object_get(root, "stop");
    if (v && !json_is_null(v) && read_stop(v, &p->stop, e) != 0)
        return e->code;
    v = json_object_get(root, "logit_bias");
    if (v && !json_is_null(v) && read_bias(v, n_vocab, p, e) != 0)
        return e->code;
    v = json_object_get(root, "stream_options");
    if (v && !json_is_null(v)) {
        const json_t *u = json_object_get(v, "include_usage");
        if (!json_is_object(v) || (u && !json_is_boolean(u)))
            return gs_api_fail(e, GS_ERR_INVALID, "stream_options",
                               "'stream_options' must be an object with 'include_usage'.");
        p->include_usage = json_is_true(u);
    }
    v = json_object_get(root, "user");
    if (v && !json_is_null(v)) {
        if (!json_is_string(v) || json_string_length(v) >= sizeof(p->user))
            return gs_api_fail(e, GS_ERR_INVALID, "user",
                               "'user' must be a string of fewer than %zu bytes.", sizeof(p->user));
        memcpy(p->user, json_string_value(v), json_string_length(v) + 1);
    }
    v = json_object_get(root, "seed");
    if (v && !json_is_null(v)) {
        if (!json_is_integer(v))
            return gs_api_fail(e, GS_ERR_INVALID, "seed", "'seed' must be a whole number.");
        p->sampler.seed = (uint64_t)json_integer_value(v);
        p->has_seed = true;
    }
    /* Scoring a prompt needs its own log-probabilities; leaving them out would mislead. */
    if (p->echo && p->sampler.n_logprobs >= 0)
        return gs_api_fail(e, GS_ERR_UNSUPPORTED, "echo",
                           "'echo' and 'logprobs' together are not supported.");
    return 0;
}

int gs_gen_params_read(const json_t *root, bool chat, int32_t n_vocab, gs_gen_params *p,
                       gs_api_error *e) {
    memset(p, 0, sizeof(*p));
    gs_sampler_default(&p->sampler);
    p->max_tokens = -1;
    p->n = 1;
    p->chat = chat;
    p->parallel_tool_calls = true;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const json_t *v = json_object_get(root, fields[i].name);
        if (!v || json_is_null(v) || !(fields[i].where & (chat ? F_CHAT : F_TEXT)))
            continue;
        int rc = read_field(&fields[i], v, p, e);
        if (rc != 0)
            return rc;
    }
    if (p->sampler.top_k < 0)
        p->sampler.top_k = 0;
    if (!chat && p->max_tokens < 0)
        p->max_tokens = 16; /* OpenAI's default for completions */
    if (chat && read_chat_logprobs(root, p, e) != 0)
        return e->code;
    if (read_rest(root, n_vocab, p, e) != 0)
        return e->code;
    if (!p->has_seed)
        return gs_random_bytes(&p->sampler.seed, sizeof(p->sampler.seed)) == 0
                   ? 0
                   : gs_api_fail(e, GS_ERR_INTERNAL, NULL, "No random numbers to be had.");
    return 0;
}

void gs_gen_params_deinit(gs_gen_params *p) {
    json_decref(p->tools);
    json_decref(p->template_vars);
    gs_free(p->constraint.text);
    p->tools = p->template_vars = NULL;
    p->constraint = (gs_constraint){0};
}
