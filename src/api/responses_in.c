/* Bodies of /v1/responses -> the form of chat completions. */
#include <stdio.h>
#include <string.h>

#include "api/convert.h"
#include "api/responses.h"
#include "base/err.h"

static const char *type_of(const json_t *item) {
    const char *type = json_string_value(json_object_get(item, "type"));
    return type ? type : "";
}

static int no_memory(gs_api_error *e) {
    return gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
}

/* ---- input ----------------------------------------------------------------------------------- */

typedef struct taking {
    json_t *messages; /* the chat's, so far */
    json_t *turn;     /* the assistant's last one while calls may join it; borrowed */
    gs_buf thinking;  /* of the assistant's next turn */
    char param[64];
    const char *model;
    gs_api_error *e;
} taking;

static int add_message(taking *t, json_t *message) {
    t->turn = message;
    if (!message || json_array_append_new(t->messages, message) != 0)
        return no_memory(t->e);
    return 0;
}

/* A string, or the text of parts. */
static json_t *text_of(const taking *t, const json_t *content) {
    static const char *const types[] = {"input_text", "output_text",  "text",
                                        "refusal",    "summary_text", "reasoning_text"};
    gs_buf text = {0};
    if (json_is_string(content))
        return json_stringn(json_string_value(content), json_string_length(content));
    if (!json_is_array(content))
        gs_api_fail(t->e, GS_ERR_INVALID, t->param, "'%s' must hold a string or an array of parts.",
                    t->param);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = type_of(part);
        const json_t *v = json_object_get(part, strcmp(type, "refusal") == 0 ? type : "text");
        size_t k = 0, n = sizeof(types) / sizeof(types[0]);
        while (k < n && strcmp(type, types[k]) != 0)
            k++;
        if (k == n)
            gs_api_fail(t->e, GS_ERR_UNSUPPORTED, t->param,
                        "'%s': the model '%.80s' takes text parts only, not '%.32s'.", t->param,
                        t->model, type);
        else if (!json_is_string(v))
            gs_api_fail(t->e, GS_ERR_INVALID, t->param, "A part of '%s' has no text.", t->param);
        if (t->e->code != 0)
            break;
        gs_buf_add(&text, json_string_value(v), json_string_length(v));
    }
    json_t *out = NULL;
    if (t->e->code == 0 && !text.failed)
        out = json_stringn(text.data ? text.data : "", text.len);
    gs_buf_deinit(&text);
    return out;
}

/* The assistant's turn that a call or a message belongs to; the reasoning before it joins it. */
static json_t *assistant_turn(taking *t, json_t *content) {
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content", content);
    if (message && t->thinking.len > 0) {
        gs_convert_set(message, "reasoning_content",
                       json_stringn(t->thinking.data, t->thinking.len), t->e);
        gs_buf_clear(&t->thinking);
    }
    return add_message(t, message) == 0 && t->e->code == 0 ? message : NULL;
}

static int take_message(taking *t, const json_t *item) {
    const json_t *role = json_object_get(item, "role");
    const char *name = json_string_value(role);
    json_t *text = text_of(t, json_object_get(item, "content"));
    if (!text)
        return t->e->code ? t->e->code : no_memory(t->e);
    if (name && strcmp(name, "assistant") == 0)
        return assistant_turn(t, text) ? 0 : t->e->code;
    int rc = 0;
    if (!name || (strcmp(name, "user") != 0 && strcmp(name, "system") != 0 &&
                  strcmp(name, "developer") != 0)) {
        json_decref(text);
        return gs_api_fail(t->e, GS_ERR_INVALID, t->param,
                           "'%s.role' must be user, assistant, system or developer.", t->param);
    }
    rc = add_message(t, json_pack("{s:O, s:o}", "role", role, "content", text));
    t->turn = NULL;
    return rc;
}

static int take_call(taking *t, const json_t *item) {
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    const json_t *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return gs_api_fail(t->e, GS_ERR_INVALID, t->param,
                           "'%s' needs 'call_id', 'name' and 'arguments' as strings.", t->param);
    json_t *turn = t->turn ? t->turn : assistant_turn(t, json_string(""));
    if (!turn)
        return t->e->code ? t->e->code : no_memory(t->e);
    json_t *calls = json_object_get(turn, "tool_calls");
    if (!calls) {
        calls = json_array();
        if (gs_convert_set(turn, "tool_calls", calls, t->e) != 0)
            return t->e->code;
    }
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    return call && json_array_append_new(calls, call) == 0 ? 0 : no_memory(t->e);
}

static int take_result(taking *t, const json_t *item) {
    const json_t *id = json_object_get(item, "call_id");
    if (!json_is_string(id))
        return gs_api_fail(t->e, GS_ERR_INVALID, t->param, "'%s' has no 'call_id'.", t->param);
    json_t *text = text_of(t, json_object_get(item, "output"));
    if (!text)
        return t->e->code ? t->e->code : no_memory(t->e);
    int rc = add_message(
        t, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", text));
    t->turn = NULL;
    return rc;
}

static int take_reasoning(taking *t, const json_t *item) {
    const json_t *content = gs_given(item, "content");
    if (!content)
        return 0; /* sealed or empty: nothing that a template could use */
    json_t *text = text_of(t, content);
    if (!text)
        return t->e->code ? t->e->code : no_memory(t->e);
    int rc = gs_buf_add(&t->thinking, json_string_value(text), json_string_length(text));
    json_decref(text);
    t->turn = NULL;
    return rc == 0 ? 0 : no_memory(t->e);
}

static int take_item(taking *t, const json_t *item) {
    const char *type = type_of(item);
    if (json_typeof(item) != JSON_OBJECT)
        return gs_api_fail(t->e, GS_ERR_INVALID, t->param, "'%s' must be an object.", t->param);
    if (*type == '\0' || strcmp(type, "message") == 0)
        return take_message(t, item);
    if (strcmp(type, "function_call") == 0)
        return take_call(t, item);
    if (strcmp(type, "function_call_output") == 0)
        return take_result(t, item);
    if (strcmp(type, "reasoning") == 0)
        return take_reasoning(t, item);
    return gs_api_fail(t->e, GS_ERR_UNSUPPORTED, t->param,
                       "'%s': items of type '%.40s' are not supported.", t->param, type);
}

static int put_messages(json_t *out, const json_t *body, const char *model, gs_api_error *e) {
    const json_t *input = json_object_get(body, "input");
    const json_t *instructions = gs_given(body, "instructions");
    taking t = {.messages = json_array(), .model = model, .e = e};
    int rc = 0;
    if (instructions && json_typeof(instructions) != JSON_STRING)
        rc = gs_api_fail(e, GS_ERR_INVALID, "instructions", "'instructions' must be a string.");
    else if (instructions)
        rc = add_message(&t, json_pack("{s:s, s:O}", "role", "system", "content", instructions));
    t.turn = NULL;
    if (rc == 0 && json_is_string(input))
        rc = add_message(&t, json_pack("{s:s, s:O}", "role", "user", "content", input));
    else if (rc == 0 && (!json_is_array(input) || json_array_size(input) == 0))
        rc = gs_api_fail(e, GS_ERR_INVALID, "input",
                         "'input' must be a string or a non-empty array of items.");
    for (size_t i = 0; rc == 0 && i < json_array_size(input); i++) {
        snprintf(t.param, sizeof(t.param), "input[%zu]", i);
        rc = take_item(&t, json_array_get(input, i));
    }
    gs_buf_deinit(&t.thinking);
    if (rc == 0)
        return gs_convert_set(out, "messages", t.messages, e);
    json_decref(t.messages);
    return rc;
}

/* ---- tools, text, and what needs a memory ---------------------------------------------------- */

/* {"type": "function", "name", ...} -> {"type": "function", "function": {"name", ...}} */
static json_t *tool_in(const json_t *tool, size_t at, gs_api_error *e) {
    char param[64];
    snprintf(param, sizeof(param), "tools[%zu]", at);
    const char *type = type_of(tool);
    if (strcmp(type, "function") != 0) {
        gs_api_fail(e, GS_ERR_UNSUPPORTED, param,
                    "'%s': tools of type '%.40s' can't be used here, only functions.", param, type);
        return NULL;
    }
    if (!json_is_string(json_object_get(tool, "name"))) {
        gs_api_fail(e, GS_ERR_INVALID, param, "'%s' needs a 'name'.", param);
        return NULL;
    }
    json_t *out =
        json_pack("{s:s, s:{s:O, s:O*, s:O*}}", "type", "function", "function", "name",
                  json_object_get(tool, "name"), "description", gs_given(tool, "description"),
                  "parameters", gs_given(tool, "parameters"));
    if (!out)
        no_memory(e);
    return out;
}

static int put_choice(json_t *out, const json_t *body, gs_api_error *e) {
    const json_t *v = json_object_get(body, "tool_choice");
    const json_t *name = json_object_get(v, "name");
    if (!json_is_object(v))
        return gs_convert_copy(out, "tool_choice", v, e);
    if (strcmp(type_of(v), "function") != 0 || !json_is_string(name))
        return gs_api_fail(e, GS_ERR_INVALID, "tool_choice",
                           "'tool_choice' must be none, auto, required, or a function with a "
                           "'name'.");
    return gs_convert_set(out, "tool_choice",
                          json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name),
                          e);
}

/* text.format has the members of a json_schema beside its type. */
static int put_format(json_t *out, const json_t *body, gs_api_error *e) {
    const json_t *text = gs_given(body, "text");
    const json_t *format = gs_given(text, "format");
    const char *type = type_of(format);
    if (text && json_typeof(text) != JSON_OBJECT)
        return gs_api_fail(e, GS_ERR_INVALID, "text", "'text' must be an object.");
    if (!format)
        return 0;
    if (strcmp(type, "json_schema") == 0 && json_is_object(json_object_get(format, "schema")))
        return gs_convert_set(out, "response_format",
                              json_pack("{s:s, s:{s:s, s:O, s:b}}", "type", "json_schema",
                                        "json_schema", "name", "format", "schema",
                                        json_object_get(format, "schema"), "strict", 1),
                              e);
    if (strcmp(type, "text") == 0 || strcmp(type, "json_object") == 0)
        return gs_convert_set(out, "response_format", json_pack("{s:s}", "type", type), e);
    return gs_api_fail(e, GS_ERR_INVALID, "text.format",
                       "'text.format' must have type text, json_object, or json_schema with a "
                       "'schema'.");
}

static int refuse_memory(const json_t *body, gs_api_error *e) {
    static const char *const fields[] = {"previous_response_id", "conversation"};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (gs_given(body, fields[i]))
            return gs_api_fail(e, GS_ERR_UNSUPPORTED, fields[i],
                               "'%s': this server keeps no responses; send the whole conversation "
                               "as 'input'.",
                               fields[i]);
    }
    if (json_is_true(json_object_get(body, "background")))
        return gs_api_fail(e, GS_ERR_UNSUPPORTED, "background",
                           "'background': this server keeps no responses to be fetched later.");
    return 0;
}

json_t *gs_responses_in(const json_t *body, const char *model, gs_api_error *e) {
    static const char *const same[][2] = {{"model", "model"},
                                          {"max_output_tokens", "max_tokens"},
                                          {"temperature", "temperature"},
                                          {"top_p", "top_p"},
                                          {"stream", "stream"},
                                          {"user", "user"},
                                          {"service_tier", "service_tier"},
                                          {"parallel_tool_calls", "parallel_tool_calls"}};
    json_t *out = json_object();
    const json_t *effort = json_object_get(json_object_get(body, "reasoning"), "effort");
    int rc = refuse_memory(body, e);
    for (size_t i = 0; rc == 0 && i < sizeof(same) / sizeof(same[0]); i++)
        rc = gs_convert_copy(out, same[i][1], json_object_get(body, same[i][0]), e);
    if (rc == 0)
        rc = gs_convert_copy(out, "reasoning_effort", effort, e);
    if (rc == 0)
        rc = put_messages(out, body, model, e);
    if (rc == 0)
        rc = gs_convert_tools(out, body, tool_in, e);
    if (rc == 0)
        rc = put_choice(out, body, e);
    if (rc == 0)
        rc = put_format(out, body, e);
    if (rc == 0)
        return out;
    json_decref(out);
    return NULL;
}

json_t *gs_responses_note(const json_t *body) {
    static const char *const kept[] = {"instructions", "max_output_tokens", "metadata", "reasoning",
                                       "text",         "tool_choice",       "tools",    "user"};
    gs_api_error e = {0};
    json_t *note = json_object();
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        gs_convert_copy(note, kept[i], json_object_get(body, kept[i]), &e);
    if (e.code == 0)
        return note;
    json_decref(note);
    return NULL;
}
