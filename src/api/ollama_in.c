/* Bodies of /api/chat and /api/generate -> OpenAI's form. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/convert.h"
#include "api/ollama.h"
#include "base/err.h"

/* ---- keep_alive: seconds, or Go's durations ("5m", "-1s", "1h30m") --------------------------- */

/* Seconds that a text of Go's form means. False: it is no duration. */
static bool read_duration(const char *s, double *out) {
    static const struct {
        const char *name;
        double s;
    } units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
    const bool negative = *s == '-';
    double sum = 0;
    s += *s == '-' || *s == '+';
    if (!isdigit((unsigned char)*s) && *s != '.')
        return false;
    while (*s) {
        size_t n = strspn(s, "0123456789."), i = 0;
        char *end;
        const double number = strtod(s, &end);
        s += n;
        if (end != s)
            return false; /* "1.2.3", "." */
        if (*s == '\0') { /* a bare number counts seconds, as it does outside a string */
            sum += number;
            break;
        }
        while (i < 6 && strncmp(s, units[i].name, strlen(units[i].name)) != 0)
            i++;
        if (n == 0 || i == 6)
            return false;
        sum += number * units[i].s;
        s += strlen(units[i].name);
    }
    *out = negative ? -sum : sum;
    return true;
}

/* The member, or NULL where it is "": what Go's clients send for a text that was not set. */
static json_t *given_text(const json_t *body, const char *name) {
    json_t *v = gs_given(body, name);
    const char *s = json_string_value(v);
    return s && *s == '\0' ? NULL : v;
}

/* A list with something in it, or what is no list; NULL: nothing was sent. */
static const json_t *given_list(const json_t *body, const char *name) {
    const json_t *v = gs_given(body, name);
    return v && json_typeof(v) == JSON_ARRAY && json_array_size(v) == 0 ? NULL : v;
}

int gs_ollama_keep_alive(const json_t *body, int64_t *keep_ns, gs_api_error *e) {
    const json_t *v = given_text(body, "keep_alive");
    const char *s = json_string_value(v);
    double seconds = json_number_value(v);
    *keep_ns = GS_OLLAMA_KEEP_UNSAID;
    if (!v)
        return 0;
    if (!json_is_number(v) && (!s || !read_duration(s, &seconds)))
        return gs_api_fail(e, GS_ERR_INVALID, "keep_alive",
                           "'keep_alive' must be seconds or a duration such as \"5m\".");
    if (seconds < 0 || seconds > 1e9)
        *keep_ns = GS_KEEP_FOREVER;
    else
        *keep_ns = (int64_t)(seconds * 1e9);
    return 0;
}

static bool has_text(const json_t *body, const char *field);

bool gs_ollama_only_loads(const gs_route *route, const json_t *body) {
    return strncmp(route->path, "/api/", 5) == 0 && !has_text(body, "prompt") &&
           !has_text(body, "suffix") && json_array_size(json_object_get(body, "messages")) == 0 &&
           !json_object_get(body, "input");
}

bool gs_ollama_sends_away(const gs_route *route, const json_t *body) {
    int64_t keep_ns;
    gs_api_error e;
    return gs_ollama_only_loads(route, body) && gs_ollama_keep_alive(body, &keep_ns, &e) == 0 &&
           keep_ns == 0;
}

/* ---- Parts that both endpoints have ---------------------------------------------------------- */

static int put_format(json_t *out, const json_t *body, gs_api_error *e) {
    const json_t *v = given_text(body, "format");
    const char *s = json_string_value(v);
    json_t *format = NULL;
    if (!v)
        return 0;
    if (s && strcmp(s, "json") == 0)
        format = json_pack("{s:s}", "type", "json_object");
    else if (json_typeof(v) == JSON_OBJECT)
        format = json_pack("{s:s, s:{s:s, s:O, s:b}}", "type", "json_schema", "json_schema", "name",
                           "format", "schema", v, "strict", 1);
    else
        return gs_api_fail(e, GS_ERR_INVALID, "format",
                           "'format' must be \"json\" or a JSON schema.");
    return gs_convert_set(out, "response_format", format, e);
}

/* Whether to think is a variable of the templates that know it; others pay it no heed. */
static int put_think(json_t *out, const json_t *body, gs_api_error *e) {
    const json_t *v = given_text(body, "think");
    const char *level = json_string_value(v);
    if (!v)
        return 0;
    if (json_typeof(v) == JSON_TRUE || json_typeof(v) == JSON_FALSE) {
        const int on = json_typeof(v) == JSON_TRUE;
        return gs_convert_set(out, "chat_template_kwargs",
                              json_pack("{s:b, s:b}", "enable_thinking", on, "thinking", on), e);
    }
    if (!level ||
        (strcmp(level, "high") != 0 && strcmp(level, "medium") != 0 && strcmp(level, "low") != 0))
        return gs_api_fail(e, GS_ERR_INVALID, "think",
                           "'think' must be true, false, \"high\", \"medium\" or \"low\".");
    return gs_convert_set(out, "chat_template_kwargs",
                          json_pack("{s:b, s:b, s:s}", "enable_thinking", 1, "thinking", 1,
                                    "reasoning_effort", level),
                          e);
}

/* Options stay an object, which the dialect's own table reads; stop and seed are read with the
 * rest of the request. */
static int put_options(json_t *out, const json_t *body, gs_api_error *e) {
    const json_t *options = gs_given(body, "options");
    if (!options)
        return 0;
    if (json_typeof(options) != JSON_OBJECT)
        return gs_api_fail(e, GS_ERR_INVALID, "options", "'options' must be an object.");
    const json_t *seed = json_object_get(options, "seed");
    if (json_is_integer(seed) && json_integer_value(seed) == -1)
        seed = NULL; /* Ollama's word for a random one */
    if (gs_convert_copy(out, "stop", json_object_get(options, "stop"), e) != 0 ||
        gs_convert_copy(out, "seed", seed, e) != 0)
        return e->code;
    return gs_convert_copy(out, "options", options, e);
}

static int put_common(json_t *out, const json_t *body, gs_api_error *e) {
    const json_t *stream = gs_given(body, "stream");
    int rc = gs_convert_copy(out, "model", json_object_get(body, "model"), e);
    if (rc == 0)
        rc = gs_convert_copy(out, "stream", stream ? stream : json_true(), e);
    if (rc == 0)
        rc = put_options(out, body, e);
    if (rc == 0)
        rc = put_format(out, body, e);
    if (rc == 0)
        rc = put_think(out, body, e);
    if (rc == 0)
        rc = gs_convert_copy(out, "tools", json_object_get(body, "tools"), e);
    return rc;
}

static int refuse_images(const json_t *from, const char *param, const char *model,
                         gs_api_error *e) {
    if (!given_list(from, "images"))
        return 0;
    return gs_api_fail(e, GS_ERR_UNSUPPORTED, param,
                       "'%s': the model '%.80s' takes no images; send text alone.", param, model);
}

/* ---- /api/chat: messages --------------------------------------------------------------------- */

/* {"function": {"name", "arguments": {...}}} -> with an id, and the arguments as text. */
static json_t *call_in(const json_t *call, int *n_calls, const char *param, gs_api_error *e) {
    const json_t *function = json_object_get(call, "function");
    const json_t *arguments = gs_given(function, "arguments");
    const char *id = json_string_value(json_object_get(call, "id"));
    const char *name = json_string_value(json_object_get(function, "name"));
    char own_id[32];
    const json_type type = arguments ? json_typeof(arguments) : JSON_NULL;
    if (!name || (type != JSON_NULL && type != JSON_OBJECT && type != JSON_STRING)) {
        gs_api_fail(e, GS_ERR_INVALID, param,
                    "'%s.tool_calls' must hold calls with a function's name and an object of "
                    "arguments.",
                    param);
        return NULL;
    }
    snprintf(own_id, sizeof(own_id), "call_%d", (*n_calls)++);
    char *text = type == JSON_OBJECT ? json_dumps(arguments, JSON_COMPACT) : NULL;
    const char *given = json_string_value(arguments);
    json_t *out = type == JSON_OBJECT && !text
                      ? NULL
                      : json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id && *id ? id : own_id, "type",
                                  "function", "function", "name", name, "arguments",
                                  text    ? text
                                  : given ? given
                                          : "{}");
    free(text);
    if (!out)
        gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
    return out;
}

static int calls_in(json_t *out, const json_t *msg, int *n_calls, const char *param,
                    gs_api_error *e) {
    const json_t *calls = given_list(msg, "tool_calls");
    if (!calls)
        return 0;
    if (json_typeof(calls) != JSON_ARRAY)
        return gs_api_fail(e, GS_ERR_INVALID, param, "'%s.tool_calls' must be an array.", param);
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *one = call_in(json_array_get(calls, i), n_calls, param, e);
        if (!one || json_array_append_new(list, one) != 0) {
            json_decref(list);
            return e->code ? e->code : gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
        }
    }
    return gs_convert_set(out, "tool_calls", list, e);
}

typedef struct call_count {
    int n_calls, n_results; /* so far: results come in the order of their calls */
} call_count;

/* The id that a result answers: the client's, or the next one of those given above. */
static int result_in(json_t *out, const json_t *msg, call_count *count, gs_api_error *e) {
    const json_t *name = json_object_get(msg, "tool_name");
    const json_t *id = json_object_get(msg, "tool_call_id");
    char own_id[32];
    snprintf(own_id, sizeof(own_id), "call_%d", count->n_results++);
    int rc = gs_convert_copy(out, "name", name ? name : json_object_get(msg, "name"), e);
    if (rc == 0 && json_string_length(id) > 0)
        return gs_convert_copy(out, "tool_call_id", id, e);
    return rc == 0 ? gs_convert_set(out, "tool_call_id", json_string(own_id), e) : rc;
}

static json_t *message_in(const json_t *msg, size_t at, const char *model, call_count *count,
                          gs_api_error *e) {
    char param[64], images[80];
    snprintf(param, sizeof(param), "messages[%zu]", at);
    snprintf(images, sizeof(images), "%s.images", param);
    if (json_typeof(msg) != JSON_OBJECT) {
        gs_api_fail(e, GS_ERR_INVALID, param, "'%s' must be an object.", param);
        return NULL;
    }
    const json_t *content = gs_given(msg, "content");
    const char *role = json_string_value(json_object_get(msg, "role"));
    json_t *out = json_object();
    int rc = refuse_images(msg, images, model, e);
    if (rc == 0)
        rc = gs_convert_copy(out, "role", json_object_get(msg, "role"), e);
    if (rc == 0 && !content)
        rc = gs_convert_set(out, "content", json_string(""), e);
    else if (rc == 0)
        rc = gs_convert_copy(out, "content", content, e);
    if (rc == 0)
        rc = gs_convert_copy(out, "reasoning_content", json_object_get(msg, "thinking"), e);
    if (rc == 0)
        rc = calls_in(out, msg, &count->n_calls, param, e);
    if (rc == 0 && role && strcmp(role, "tool") == 0)
        rc = result_in(out, msg, count, e);
    if (rc == 0)
        return out;
    json_decref(out);
    return NULL;
}

static json_t *messages_in(const json_t *messages, const char *model, gs_api_error *e) {
    json_t *out = json_array();
    call_count count = {0};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *one = message_in(json_array_get(messages, i), i, model, &count, e);
        if (!one || json_array_append_new(out, one) != 0) {
            json_decref(out);
            if (e->code == 0)
                gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
            return NULL;
        }
    }
    return out;
}

int gs_ollama_chat_in(const json_t *body, const char *model, gs_ollama_in *out, gs_api_error *e) {
    const json_t *messages = given_list(body, "messages");
    *out = (gs_ollama_in){.chat = true};
    if (gs_ollama_keep_alive(body, &out->keep_ns, e) != 0)
        return e->code;
    if (!messages)
        return 0;
    if (json_typeof(messages) != JSON_ARRAY)
        return gs_api_fail(e, GS_ERR_INVALID, "messages",
                           "'messages' must be an array of messages.");
    json_t *list = messages_in(messages, model, e);
    if (!list)
        return e->code;
    out->body = json_object();
    int rc = gs_convert_set(out->body, "messages", list, e);
    if (rc == 0)
        rc = put_common(out->body, body, e);
    if (rc != 0)
        json_decref(out->body);
    return rc;
}

/* ---- /api/generate --------------------------------------------------------------------------- */

static int check_text(const json_t *body, const char *name, gs_api_error *e) {
    const json_t *v = gs_given(body, name);
    if (!v || json_typeof(v) == JSON_STRING)
        return 0;
    return gs_api_fail(e, GS_ERR_INVALID, name, "'%s' must be a string.", name);
}

static bool has_text(const json_t *body, const char *name) {
    return json_string_length(json_object_get(body, name)) > 0;
}

static int check_generate(const json_t *body, const char *model, bool *raw, gs_api_error *e) {
    static const char *const texts[] = {"prompt", "suffix", "system", "template"};
    const json_t *v = gs_given(body, "raw");
    if (v && json_typeof(v) != JSON_TRUE && json_typeof(v) != JSON_FALSE)
        return gs_api_fail(e, GS_ERR_INVALID, "raw", "'raw' must be true or false.");
    *raw = v && json_typeof(v) == JSON_TRUE;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (check_text(body, texts[i], e) != 0)
            return e->code;
    }
    if (has_text(body, "template") && !*raw)
        return gs_api_fail(e, GS_ERR_UNSUPPORTED, "template",
                           "'template' can't be replaced here; send the whole text with 'raw'.");
    return refuse_images(body, "images", model, e);
}

/* The prompt as a conversation of one or two messages. */
static int put_conversation(json_t *out, const json_t *body, gs_api_error *e) {
    json_t *messages = json_array();
    const json_t *system = json_object_get(body, "system");
    if (has_text(body, "system"))
        json_array_append_new(messages,
                              json_pack("{s:s, s:O}", "role", "system", "content", system));
    json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content",
                                              json_object_get(body, "prompt")));
    if (json_array_size(messages) != (has_text(body, "system") ? 2u : 1u)) {
        json_decref(messages);
        return gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
    }
    return gs_convert_set(out, "messages", messages, e);
}

int gs_ollama_generate_in(const json_t *body, const char *model, gs_ollama_in *out,
                          gs_api_error *e) {
    bool raw = false;
    *out = (gs_ollama_in){0};
    if (gs_ollama_keep_alive(body, &out->keep_ns, e) != 0 ||
        check_generate(body, model, &raw, e) != 0)
        return e->code;
    if (!has_text(body, "prompt") && !has_text(body, "suffix"))
        return 0;
    out->chat = !raw && !has_text(body, "suffix");
    out->body = json_object();
    int rc = put_common(out->body, body, e);
    if (rc == 0 && out->chat)
        rc = put_conversation(out->body, body, e);
    if (rc == 0 && !out->chat)
        rc = has_text(body, "prompt")
                 ? gs_convert_copy(out->body, "prompt", json_object_get(body, "prompt"), e)
                 : gs_convert_set(out->body, "prompt", json_string(""), e);
    if (rc == 0 && !out->chat && !raw)
        rc = gs_convert_copy(out->body, "suffix", json_object_get(body, "suffix"), e);
    if (rc == 0 && raw)
        rc = gs_convert_set(out->body, "raw", json_true(), e);
    if (rc != 0)
        json_decref(out->body);
    return rc;
}
