/* Chat templates: checks and guards the input, then hands it to Rust or to the built-in formats. */
#include "tokenizer/chat.h"

#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "tokenizer/chat_impl.h"
#if GS_HAVE_RUST
#include "tokenizer/chat_rust.h"
_Static_assert((int)GS_RUST_INVALID == (int)GS_ERR_INVALID &&
                   (int)GS_RUST_TOO_LARGE == (int)GS_ERR_TOO_LARGE &&
                   (int)GS_RUST_NOMEM == (int)GS_ERR_NOMEM &&
                   (int)GS_RUST_INTERNAL == (int)GS_ERR_INTERNAL,
               "the two tables of error codes agree");
#endif

#define MAX_TEMPLATE_BYTES ((size_t)128 << 10) /* rust/src/template.rs has the same limit */
#define MAX_JSON_DEPTH     64

/* A template's work may grow with the messages; these are far above what real templates need. */
#define BASE_FUEL         4000000u
#define FUEL_PER_BYTE     20u
#define BASE_OUTPUT_BYTES ((size_t)4 << 20)
#define OUTPUT_PER_BYTE   4u
#define TIME_LIMIT_MS     10000u

struct gs_chat_template {
    char *source;
    char *bos; /* NULL: none */
    char *eos;
#if GS_HAVE_RUST
    gs_rust_template *rust;
#else
    gs_chat_builtin builtin; /* points into source */
#endif
};

static const char chatml_source[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

#if GS_HAVE_RUST
static int backend_create(gs_chat_template *c, char *err, size_t errlen) {
    gs_rust_str source = {c->source, strlen(c->source)};
    return gs_rust_template_new(source, &c->rust, err, errlen);
}

static void backend_free(gs_chat_template *c) {
    gs_rust_template_free(c->rust);
}
#else
static int backend_create(gs_chat_template *c, char *err, size_t errlen) {
    gs_chat_builtin_detect(c->source, &c->builtin);
    if (c->builtin.format == GS_CHAT_UNKNOWN)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                       "the model's chat template (\"%.60s...\") needs a build with Rust; this "
                       "one knows ChatML, Llama 3 and Gemma",
                       c->source);
    return GS_OK;
}

static void backend_free(gs_chat_template *c) {
    (void)c;
}
#endif

int gs_chat_template_create(const char *source, size_t n, const char *bos, const char *eos,
                            gs_chat_template **out, char *err, size_t errlen) {
    *out = NULL;
    if (!source) {
        source = chatml_source;
        n = sizeof(chatml_source) - 1;
    }
    if (n > MAX_TEMPLATE_BYTES)
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "the model's chat template has %zu bytes, more than %zu", n,
                       MAX_TEMPLATE_BYTES);
    if (memchr(source, '\0', n))
        return gs_fail(err, errlen, GS_ERR_INVALID, "the model's chat template has a NUL byte");
    gs_chat_template *c = gs_calloc(1, sizeof(*c));
    int rc = GS_ERR_NOMEM;
    if (!c)
        return gs_fail(err, errlen, rc, "out of memory for the chat template");
    c->source = gs_strndup(source, n);
    c->bos = bos ? gs_strdup(bos) : NULL;
    c->eos = eos ? gs_strdup(eos) : NULL;
    if (!c->source || (bos && !c->bos) || (eos && !c->eos)) {
        (void)gs_fail(err, errlen, rc, "out of memory for the chat template");
        goto out;
    }
    rc = backend_create(c, err, errlen);
out:
    if (rc)
        gs_chat_template_free(c);
    else
        *out = c;
    return rc;
}

/* The terminated spelling of a token, NULL with *rc unchanged when there is none. */
static char *spelling(const gs_tokenizer *t, int32_t id, int *rc) {
    if (!t || id < 0)
        return NULL;
    gs_str s = gs_tok_spelling(t, id);
    char *copy = gs_strndup(s.data, s.len);
    if (!copy)
        *rc = GS_ERR_NOMEM;
    return copy;
}

int gs_chat_template_from_gguf(const gs_gguf *g, const gs_tokenizer *t, gs_chat_template **out,
                               char *err, size_t errlen) {
    *out = NULL;
    gs_str source = {NULL, 0};
    int rc = gs_gguf_get_str(g, "tokenizer.chat_template", &source, err, errlen);
    if (rc && rc != GS_ERR_NOT_FOUND)
        return rc;
    rc = GS_OK;
    char *bos = spelling(t, t ? gs_tok_bos(t) : -1, &rc);
    char *eos = spelling(t, t ? gs_tok_eos(t) : -1, &rc);
    if (rc)
        (void)gs_fail(err, errlen, rc, "out of memory for the chat template");
    else
        rc = gs_chat_template_create(source.data, source.len, bos, eos, out, err, errlen);
    gs_free(bos);
    gs_free(eos);
    return rc;
}

void gs_chat_template_free(gs_chat_template *c) {
    if (!c)
        return;
    backend_free(c);
    gs_free(c->source);
    gs_free(c->bos);
    gs_free(c->eos);
    gs_free(c);
}

bool gs_chat_knows_tools(const gs_chat_template *c) {
    return strstr(c->source, "tools") != NULL;
}

const char *gs_chat_template_source(const gs_chat_template *c) {
    return c->source;
}

/* ---- Input ------------------------------------------------------------------------------------
 */

typedef struct guard_ctx {
    const gs_tokenizer *tok; /* NULL: strings are copied unchanged */
    const char *what;        /* for messages to people */
    gs_buf buf;              /* reused for each string */
    char *err;
    size_t errlen;
} guard_ctx;

static int guard_nomem(const guard_ctx *g) {
    return gs_fail(g->err, g->errlen, GS_ERR_NOMEM, "out of memory guarding %s", g->what);
}

/* Leaves the guarded text in g->buf, terminated. */
static int guard_text(guard_ctx *g, const char *s, size_t n) {
    gs_buf_clear(&g->buf);
    g->buf.failed = false;
    int rc = g->tok ? gs_tok_guard(g->tok, s, n, &g->buf) : gs_buf_add(&g->buf, s, n);
    if (rc == GS_OK && !gs_buf_cstr(&g->buf))
        rc = GS_ERR_NOMEM;
    return rc == GS_OK          ? rc
           : rc == GS_ERR_NOMEM ? guard_nomem(g)
                                : gs_fail(g->err, g->errlen, rc, "%s: bad text", g->what);
}

static int guard_value(guard_ctx *g, json_t *in, int depth, json_t **out);

static int guard_object(guard_ctx *g, json_t *in, int depth, json_t **out) {
    json_t *object = json_object();
    if (!object)
        return guard_nomem(g);
    for (void *it = json_object_iter(in); it; it = json_object_iter_next(in, it)) {
        const char *key = json_object_iter_key(it);
        json_t *value = NULL;
        int rc = guard_value(g, json_object_iter_value(it), depth + 1, &value);
        if (rc == GS_OK)
            rc = guard_text(g, key, strlen(key));
        if (rc) {
            json_decref(value);
            json_decref(object);
            return rc;
        }
        if (json_object_set_new(object, g->buf.data, value)) {
            json_decref(object);
            return guard_nomem(g);
        }
    }
    *out = object;
    return GS_OK;
}

static int guard_array(guard_ctx *g, json_t *in, int depth, json_t **out) {
    json_t *array = json_array();
    if (!array)
        return guard_nomem(g);
    for (size_t i = 0; i < json_array_size(in); i++) {
        json_t *value = NULL;
        int rc = guard_value(g, json_array_get(in, i), depth + 1, &value);
        if (rc == GS_OK && json_array_append_new(array, value))
            rc = guard_nomem(g);
        if (rc) {
            json_decref(array);
            return rc;
        }
    }
    *out = array;
    return GS_OK;
}

/* A copy in which every string and key is guarded. Recursion is limited by MAX_JSON_DEPTH. */
static int guard_value(guard_ctx *g, json_t *in, int depth, json_t **out) {
    if (depth > MAX_JSON_DEPTH)
        return gs_fail(g->err, g->errlen, GS_ERR_INVALID, "%s: nested deeper than %d levels",
                       g->what, MAX_JSON_DEPTH);
    if (json_is_object(in))
        return guard_object(g, in, depth, out);
    if (json_is_array(in))
        return guard_array(g, in, depth, out);
    if (json_is_string(in)) {
        int rc = guard_text(g, json_string_value(in), json_string_length(in));
        if (rc)
            return rc;
        *out = json_stringn(g->buf.data, g->buf.len);
    } else {
        *out = json_deep_copy(in);
    }
    return *out ? GS_OK : guard_nomem(g);
}

/* Parses one of the inputs and guards it. */
static int read_input(const char *text, const char *what, json_type want, const gs_tokenizer *tok,
                      json_t **out, char *err, size_t errlen) {
    *out = NULL;
    json_error_t jerr;
    json_t *parsed = json_loads(text, JSON_ALLOW_NUL, &jerr);
    if (!parsed && jerr.text[0] == '\0') /* it finds no fault with the text */
        return gs_fail(err, errlen, GS_ERR_NOMEM, "%s: out of memory", what);
    if (!parsed)
        return gs_fail(err, errlen, GS_ERR_INVALID, "%s: not valid JSON (%s)", what, jerr.text);
    int rc = GS_OK;
    guard_ctx g = {.tok = tok, .what = what, .err = err, .errlen = errlen};
    if (json_typeof(parsed) != want)
        rc = gs_fail(err, errlen, GS_ERR_INVALID, "%s: not a JSON %s", what,
                     want == JSON_ARRAY ? "array" : "object");
    else
        rc = guard_value(&g, parsed, 0, out);
    gs_buf_deinit(&g.buf);
    json_decref(parsed);
    return rc;
}

/* Replacing these would change what the server itself says to the model (CVE-2025-62426). */
static int check_extra(const json_t *extra, char *err, size_t errlen) {
    static const char *const reserved[] = {"messages", "tools", "add_generation_prompt",
                                           "bos_token", "eos_token"};
    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++)
        if (json_object_get(extra, reserved[i]))
            return gs_fail(err, errlen, GS_ERR_INVALID,
                           "template variables: \"%s\" may not be replaced", reserved[i]);
    return GS_OK;
}

/* ---- Rendering --------------------------------------------------------------------------------
 */

typedef struct chat_values {
    json_t *messages;
    json_t *tools; /* NULL: none; so for extra */
    json_t *extra;
} chat_values;

#if GS_HAVE_RUST
static int dump_to_buf(const char *data, size_t n, void *arg) {
    return gs_buf_add(arg, data, n) == GS_OK ? 0 : -1;
}

/* *str points into buf. */
static int dump(const json_t *value, gs_buf *buf, gs_rust_str *str) {
    if (!value)
        return GS_OK;
    if (json_dump_callback(value, dump_to_buf, buf, JSON_COMPACT))
        return GS_ERR_NOMEM;
    *str = (gs_rust_str){buf->data, buf->len};
    return GS_OK;
}

static gs_rust_str given(const char *s) {
    return (gs_rust_str){s, s ? strlen(s) : 0};
}

static int backend_render(const gs_chat_template *c, const gs_chat_input *in, const chat_values *v,
                          gs_buf *out, char *err, size_t errlen) {
    gs_buf messages = {0}, tools = {0}, extra = {0};
    char *text = NULL;
    size_t n_text = 0;
    gs_rust_render_in r = {.bos = given(c->bos),
                           .eos = given(c->eos),
                           .add_generation_prompt = in->add_generation_prompt,
                           .now_s = in->now_s,
                           .time_limit_ms = TIME_LIMIT_MS};
    int rc = dump(v->messages, &messages, &r.messages);
    if (rc == GS_OK)
        rc = dump(v->tools, &tools, &r.tools);
    if (rc == GS_OK)
        rc = dump(v->extra, &extra, &r.extra);
    if (rc) {
        (void)gs_fail(err, errlen, rc, "out of memory rendering the chat template");
        goto out;
    }
    size_t n_in = messages.len + tools.len + extra.len;
    r.fuel = BASE_FUEL + (uint64_t)FUEL_PER_BYTE * n_in;
    r.max_output_bytes = BASE_OUTPUT_BYTES + OUTPUT_PER_BYTE * n_in;
    rc = gs_rust_template_render(c->rust, &r, &text, &n_text, err, errlen);
    if (rc == GS_OK && gs_buf_add(out, text, n_text))
        rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory rendering the chat template");
out:
    gs_rust_bytes_free(text, n_text);
    gs_buf_deinit(&messages);
    gs_buf_deinit(&tools);
    gs_buf_deinit(&extra);
    return rc;
}
#else
static int backend_render(const gs_chat_template *c, const gs_chat_input *in, const chat_values *v,
                          gs_buf *out, char *err, size_t errlen) {
    if (json_array_size(v->tools) > 0)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "tools need a build with Rust");
    return gs_chat_builtin_render(&c->builtin, v->messages, c->bos, in->add_generation_prompt,
                                  in->now_s, out, err, errlen);
}
#endif

int gs_chat_render(const gs_chat_template *c, const gs_chat_input *in, gs_buf *out, char *err,
                   size_t errlen) {
    chat_values v = {0};
    int rc =
        read_input(in->messages_json, "messages", JSON_ARRAY, in->guard, &v.messages, err, errlen);
    if (rc == GS_OK && in->tools_json)
        rc = read_input(in->tools_json, "tools", JSON_ARRAY, in->guard, &v.tools, err, errlen);
    /* Further variables come from the client as well: they are guarded like the messages. */
    if (rc == GS_OK && in->extra_json)
        rc = read_input(in->extra_json, "template variables", JSON_OBJECT, in->guard, &v.extra, err,
                        errlen);
    if (rc == GS_OK && v.extra)
        rc = check_extra(v.extra, err, errlen);
    if (rc == GS_OK)
        rc = backend_render(c, in, &v, out, err, errlen);
    json_decref(v.messages);
    json_decref(v.tools);
    json_decref(v.extra);
    return rc;
}
