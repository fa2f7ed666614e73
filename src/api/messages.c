#include "api/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"

/* Absent, or a string. */
static bool is_text(const json_t *object, const char *name) {
    const json_t *v = gs_given(object, name);
    return !v || json_typeof(v) == JSON_STRING;
}

static bool is_call(const json_t *call) {
    const json_t *f = json_object_get(call, "function");
    return json_is_string(json_object_get(f, "name")) && is_text(call, "id") &&
           (is_text(f, "arguments") || json_is_object(json_object_get(f, "arguments")));
}

int gs_messages_check_calls(const json_t *msg, size_t at, gs_api_error *e) {
    char param[32];
    const json_t *calls = gs_given(msg, "tool_calls");
    snprintf(param, sizeof(param), "messages[%zu]", at);
    if (!is_text(msg, "tool_call_id") || !is_text(msg, "name"))
        return gs_api_fail(e, GS_ERR_INVALID, param,
                           "'%s': 'tool_call_id' and 'name' must be strings.", param);
    if (!calls)
        return 0;
    bool good = json_typeof(calls) == JSON_ARRAY;
    for (size_t i = 0; good && i < json_array_size(calls); i++)
        good = is_call(json_array_get(calls, i));
    return good ? 0
                : gs_api_fail(e, GS_ERR_INVALID, param,
                              "'%s.tool_calls' must be an array of {id, function: {name, "
                              "arguments}}.",
                              param);
}

bool gs_messages_have_calls(const json_t *messages) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (json_array_size(json_object_get(json_array_get(messages, i), "tool_calls")) > 0)
            return true;
    }
    return false;
}

static int set_dumped(json_t *function, const char *key) {
    const json_t *v = json_object_get(function, key);
    if (!v || json_typeof(v) == JSON_STRING)
        return 0;
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    int rc = text ? json_object_set_new(function, key, json_string(text)) : -1;
    free(text);
    return rc;
}

json_t *gs_messages_string_arguments(const json_t *messages) {
    json_t *copy = json_deep_copy(messages);
    for (size_t i = 0; i < json_array_size(copy); i++) {
        json_t *calls = json_object_get(json_array_get(copy, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *f = json_object_get(json_array_get(calls, k), "function");
            if (set_dumped(f, "arguments") != 0) {
                json_decref(copy);
                return NULL;
            }
        }
    }
    return copy;
}

/* ---- Templates without tools -------------------------------------------------------------- */

static void add_json(gs_buf *out, const json_t *v) {
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text)
        gs_buf_str(out, text);
    else
        out->failed = true;
    free(text);
}

static void add_instructions(gs_buf *out, const json_t *tools) {
    gs_buf_str(out, "You can call functions. To call one, answer with this JSON alone:\n"
                    "{\"name\": \"<function>\", \"arguments\": {<its parameters>}}\n"
                    "The result comes with the next message. Answer in words when no function is "
                    "needed. The functions:\n");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        add_json(out, json_object_get(json_array_get(tools, i), "function"));
        gs_buf_char(out, '\n');
    }
}

static void add_calls(gs_buf *out, const json_t *calls) {
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        const json_t *args = gs_given(f, "arguments");
        gs_buf_str(out, out->len > 0 ? "\n{\"name\": " : "{\"name\": ");
        add_json(out, json_object_get(f, "name"));
        gs_buf_str(out, ", \"arguments\": ");
        if (json_is_string(args)) /* no JSON, or it would have been opened */
            gs_buf_add(out, json_string_value(args), json_string_length(args));
        else if (args)
            add_json(out, args);
        else
            gs_buf_str(out, "{}");
        gs_buf_char(out, '}');
    }
}

static int append(json_t *out, const char *role, const gs_buf *text) {
    if (text->failed)
        return -1;
    return json_array_append_new(out,
                                 json_pack("{s:s, s:o}", "role", role, "content",
                                           json_stringn(text->data ? text->data : "", text->len)));
}

/* Puts text, and a gap, before the content of out's last message; or after it. */
static int join_last(json_t *out, const gs_buf *text, bool before) {
    json_t *last = json_array_get(out, json_array_size(out) - 1);
    const char *content = json_string_value(json_object_get(last, "content"));
    const char *more = text->data ? text->data : "";
    gs_buf all = {0};
    gs_buf_printf(&all, "%s%s%s",
                  before    ? more
                  : content ? content
                            : "",
                  before ? "\n" : "\n\n", before ? (content ? content : "") : more);
    json_t *v = all.failed || text->failed ? NULL : json_stringn(all.data, all.len);
    gs_buf_deinit(&all);
    return v ? json_object_set_new(last, "content", v) : -1;
}

static int convert(json_t *out, const json_t *msg, bool *was_result) {
    const char *role = json_string_value(json_object_get(msg, "role"));
    const char *content = json_string_value(json_object_get(msg, "content"));
    const json_t *calls = json_object_get(msg, "tool_calls");
    bool result = strcmp(role, "tool") == 0 || strcmp(role, "function") == 0;
    gs_buf text = {0};
    int rc;
    if (result)
        gs_buf_str(&text, "Result of the function: ");
    gs_buf_str(&text, content ? content : "");
    add_calls(&text, calls);
    if (!gs_buf_cstr(&text))
        rc = -1;
    else if (result && *was_result)
        rc = join_last(out, &text, false);
    else
        rc = append(out, result ? "user" : role, &text);
    gs_buf_deinit(&text);
    *was_result = result;
    return rc;
}

json_t *gs_messages_without_tools(const json_t *messages, const json_t *tools, bool in_system) {
    json_t *out = json_array();
    gs_buf text = {0};
    bool told = false, was_result = false;
    add_instructions(&text, tools);
    int rc = out && gs_buf_cstr(&text) ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < json_array_size(messages); i++) {
        const json_t *msg = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(msg, "role"));
        bool system = strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
        if (!told && in_system && !system) {
            rc = append(out, "system", &text);
            told = true;
        }
        if (rc == 0)
            rc = convert(out, msg, &was_result);
        bool here = in_system ? system : strcmp(role, "user") == 0;
        if (rc == 0 && !told && here) {
            rc = join_last(out, &text, !in_system);
            told = true;
        }
    }
    gs_buf_deinit(&text);
    if (rc == 0)
        return out;
    json_decref(out);
    return NULL;
}
