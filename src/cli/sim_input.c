#include "cli/sim_input.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/jsonw.h"
#include "base/sys.h"

#define MAX_REQUESTS 1000000
#define MAX_TOKENS   1000000
#define MAX_SECONDS  (400.0 * 86400.0)
#define HOME_SCOPE   1 /* the home assistant's instructions are everybody's */

/* ---- numbers with bounds
 * -----------------------------------------------------------------------*/

static int number(const json_t *o, const char *key, double low, double high, double *out, char *err,
                  size_t errlen) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "\"%s\" is not a number", key);
    *out = json_number_value(v);
    if (!(*out >= low && *out <= high))
        return gs_fail(err, errlen, GS_ERR_INVALID, "\"%s\" is out of bounds", key);
    return 0;
}

/* As number; absent or null leaves *out. */
static int number_or(const json_t *o, const char *key, double low, double high, double *out,
                     char *err, size_t errlen) {
    const json_t *v = json_object_get(o, key);
    return !v || json_is_null(v) ? 0 : number(o, key, low, high, out, err, errlen);
}

static int64_t to_ns(double seconds) {
    return (int64_t)(seconds * 1e9);
}

/* ---- traces
 * --------------------------------------------------------------------------------------*/

static int person_of(gs_trace *t, const char *name, uint32_t *out) {
    for (uint32_t i = 1; i < t->n_persons; i++)
        if (strcmp(t->persons[i], name) == 0) {
            *out = i;
            return 0;
        }
    if (t->n_persons >= GS_TRACE_PERSONS)
        return GS_ERR_TOO_LARGE;
    t->persons[t->n_persons] = gs_strdup(name);
    if (!t->persons[t->n_persons])
        return GS_ERR_NOMEM;
    *out = t->n_persons++;
    return 0;
}

/* Earlier requests by their id: linear from the end, where predecessors usually are. */
static int32_t find_id(json_t *const *lines, int32_t n, const char *id) {
    for (int32_t i = n - 1; i >= 0; i--) {
        const char *other = json_string_value(json_object_get(lines[i], "id"));
        if (other && strcmp(other, id) == 0)
            return i;
    }
    return -1;
}

static int read_lengths(const json_t *o, gs_sim_request *q, char *err, size_t errlen) {
    double prompt = 0, prefix = 0, output = 0, texts = 0;
    int rc = number(o, "prompt_tokens", 1, MAX_TOKENS, &prompt, err, errlen);
    if (rc == 0)
        rc = number_or(o, "prefix_tokens", 0, MAX_TOKENS, &prefix, err, errlen);
    if (rc == 0)
        rc = number_or(o, "max_tokens", 0, MAX_TOKENS, &output, err, errlen);
    if (rc == 0)
        rc = number_or(o, "texts", 1, 255, &texts, err, errlen);
    if (rc != 0)
        return rc;
    q->n_prompt = (int32_t)prompt;
    q->n_prefix = (int32_t)(prefix < prompt ? prefix : prompt);
    q->n_output = output > 0 ? (int32_t)output : 1;
    q->n_texts = (int32_t)texts;
    return 0;
}

static int read_times(const json_t *o, gs_sim_request *q, char *err, size_t errlen) {
    double t = 0, cancel = 0, deadline = 0;
    int rc = number(o, "t", 0, MAX_SECONDS, &t, err, errlen);
    if (rc == 0)
        rc = number_or(o, "cancel_after", 0, MAX_SECONDS, &cancel, err, errlen);
    if (rc == 0)
        rc = number_or(o, "deadline", 0, MAX_SECONDS, &deadline, err, errlen);
    q->t_ns = to_ns(t);
    q->cancel_after_ns = to_ns(cancel);
    q->deadline_ns = to_ns(deadline);
    return rc;
}

static int read_after(const json_t *o, json_t *const *lines, int32_t n, gs_sim_request *q,
                      char *err, size_t errlen) {
    const json_t *after = json_object_get(o, "after");
    double think = 0;
    if (!after || json_is_null(after))
        return 0;
    const char *id = json_string_value(json_object_get(after, "id"));
    q->after = id ? find_id(lines, n, id) : -1;
    if (q->after < 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "\"after\" names no earlier request");
    const int rc = number_or(after, "think", 0, MAX_SECONDS, &think, err, errlen);
    q->think_ns = to_ns(think);
    return rc;
}

static int read_request(gs_trace *t, json_t *const *lines, int32_t n, char *err, size_t errlen) {
    const json_t *o = lines[n];
    gs_sim_request *q = &t->requests[n];
    *q = (gs_sim_request){.after = -1, .prefix_of = -1, .class_fixed = true};
    const char *cls = json_string_value(json_object_get(o, "class"));
    const char *person = json_string_value(json_object_get(o, "person"));
    const char *prefix = json_string_value(json_object_get(o, "shared_prefix"));
    const int c = gs_class_parse(cls);
    if (c < 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "\"class\" names no class");
    if (!person || person_of(t, person, &q->person) != 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "\"person\" is missing, or one too many");
    q->cls = (gs_class)c;
    int rc = read_lengths(o, q, err, errlen);
    if (rc == 0)
        rc = read_times(o, q, err, errlen);
    if (rc == 0)
        rc = read_after(o, lines, n, q, err, errlen);
    if (rc != 0)
        return rc;
    q->scope = c == GS_CLASS_VOICE ? HOME_SCOPE : 100 + (uint64_t)q->person;
    /* Of a conversation the earlier turn is the prefix; an app's instructions have a name. */
    const json_t *talk = json_object_get(o, "conversation");
    const bool later = json_number_value(json_object_get(talk, "turn")) > 0.0;
    if (later && q->after >= 0)
        q->prefix_of = q->after;
    else if (prefix && q->n_prefix > 0)
        q->prefix_key = XXH64(prefix, strlen(prefix), 1);
    return 0;
}

static int parse_lines(const char *data, size_t size, gs_trace *out, json_t **lines, int32_t n_max,
                       char *err, size_t errlen) {
    const char *at = data, *end = data + size;
    int line = 0;
    while (at < end) {
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        const size_t len = (size_t)((nl ? nl : end) - at);
        char why[160] = "";
        json_error_t je;
        line++;
        if (len > 0) {
            if (out->n >= n_max)
                return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "too many requests");
            lines[out->n] = json_loadb(at, len, JSON_REJECT_DUPLICATES, &je);
            if (!json_is_object(lines[out->n]))
                return gs_fail(err, errlen, GS_ERR_FORMAT, "line %d is no JSON object", line);
            const int rc = read_request(out, lines, out->n, why, sizeof why);
            if (rc != 0)
                return gs_fail(err, errlen, rc, "line %d: %s", line, why);
            out->n++;
        }
        at = nl ? nl + 1 : end;
    }
    return 0;
}

int gs_trace_read(const char *path, gs_trace *out, char *err, size_t errlen) {
    const void *data = NULL;
    size_t size = 0, n_lines = 1;
    *out = (gs_trace){.n_persons = 1};
    int rc = gs_map_file(path, &data, &size, err, errlen);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < size; i++)
        n_lines += ((const char *)data)[i] == '\n';
    if (n_lines > MAX_REQUESTS)
        n_lines = MAX_REQUESTS;
    json_t **lines = gs_calloc(n_lines, sizeof(json_t *));
    out->requests = gs_calloc(n_lines, sizeof *out->requests);
    if (!lines || !out->requests)
        rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    else
        rc = parse_lines(data, size, out, lines, (int32_t)n_lines, err, errlen);
    for (size_t i = 0; i < n_lines && lines; i++)
        json_decref(lines[i]);
    gs_free(lines);
    gs_unmap(data, size);
    if (rc != 0)
        gs_trace_free(out);
    return rc;
}

void gs_trace_free(gs_trace *t) {
    gs_free(t->requests);
    for (uint32_t i = 0; i < t->n_persons; i++)
        gs_free(t->persons[i]);
    *t = (gs_trace){0};
}

/* ---- devices
 * -------------------------------------------------------------------------------------*/

/* Plain numbers of the file: key, bounds, and where they go. */
typedef struct field {
    const char *key;
    double low, high;
    double *number;
    int32_t *count;
} field;

static int n_fields_of(gs_sim_device *d, field out[16]) {
    const field all[] = {
        {"decode_context_ns", 0, 1e9, &d->cost.decode_ctx_ns, NULL},
        {"prefill_ns", 0, 1e9, &d->cost.prefill_ns, NULL},
        {"logit_ns", 0, 1e10, &d->cost.logit_ns, NULL},
        {"sample_ns", 0, 1e10, &d->cost.sample_ns, NULL},
        {"fixed_ns", 0, 1e10, &d->cost.fixed_ns, NULL},
        {"noise", 0, 0.9, &d->noise, NULL},
        {"slow_rate", 0, 1, &d->slow_rate, NULL},
        {"layers", 1, 1000, NULL, &d->n_layers},
        {"block_tokens", 1, 1024, NULL, &d->block_tokens},
        {"max_seqs", 1, 4096, NULL, &d->max_seqs},
        {"max_batch_tokens", 1, 65536, NULL, &d->max_batch_tokens},
        {"prefill_chunk", 1, 65536, NULL, &d->prefill_chunk},
        {"max_context", 2, 10000000, NULL, &d->max_context},
    };
    const int n = (int)(sizeof all / sizeof all[0]);
    memcpy(out, all, sizeof all);
    return n;
}

static int read_device(const json_t *o, gs_sim_device *d, char *err, size_t errlen) {
    field f[16];
    const int n = n_fields_of(d, f);
    double blocks = 0;
    const json_t *knots = json_object_get(o, "knots_ms");
    for (int i = 0; i < GS_COST_KNOTS; i++) {
        char key[16];
        double ms = 0;
        snprintf(key, sizeof key, "%d", 1 << i);
        const int rc = number(knots, key, 1e-6, 1e6, &ms, err, errlen);
        if (rc != 0)
            return rc;
        d->cost.knot_ns[i] = ms * 1e6;
        if (i > 0 && d->cost.knot_ns[i] < d->cost.knot_ns[i - 1])
            return gs_fail(err, errlen, GS_ERR_INVALID, "\"knots_ms\" fall at %s tokens", key);
    }
    int rc = number(o, "kv_blocks", 1, 1e8, &blocks, err, errlen);
    d->n_blocks = (uint32_t)blocks;
    for (int i = 0; i < n && rc == 0; i++) {
        double v = f[i].number ? *f[i].number : 0;
        rc = f[i].number ? number_or(o, f[i].key, f[i].low, f[i].high, &v, err, errlen)
                         : number(o, f[i].key, f[i].low, f[i].high, &v, err, errlen);
        if (f[i].number)
            *f[i].number = v;
        else
            *f[i].count = (int32_t)v;
    }
    return rc;
}

int gs_device_read(const char *name, gs_sim_device *out, char *err, size_t errlen) {
    const gs_sim_device *known = gs_sim_device_find(name);
    if (known) {
        *out = *known;
        return 0;
    }
    json_error_t je;
    json_t *o = json_load_file(name, JSON_REJECT_DUPLICATES, &je);
    if (!o)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "device %s: %s", name, je.text);
    char why[160] = "";
    *out = (gs_sim_device){0};
    int rc = read_device(o, out, why, sizeof why);
    json_decref(o);
    return rc == 0 ? 0 : gs_fail(err, errlen, rc, "device %s: %s", name, why);
}

int gs_device_write(const gs_sim_device *d, const char *name, gs_buf *out) {
    gs_sim_device copy = *d;
    field f[16];
    const int n = n_fields_of(&copy, f);
    gs_buf_printf(out, "{\n  \"name\": \"%s\",\n  \"knots_ms\": {", name);
    for (int i = 0; i < GS_COST_KNOTS; i++)
        gs_buf_printf(out, "%s\"%d\": %g", i > 0 ? ", " : "", 1 << i, d->cost.knot_ns[i] / 1e6);
    gs_buf_printf(out, "},\n  \"kv_blocks\": %u", d->n_blocks);
    for (int i = 0; i < n; i++)
        gs_buf_printf(out, ",\n  \"%s\": %g", f[i].key,
                      f[i].number ? *f[i].number : (double)*f[i].count);
    gs_buf_str(out, "\n}\n");
    return out->failed ? GS_ERR_NOMEM : 0;
}
