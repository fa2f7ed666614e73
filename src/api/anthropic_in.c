/* Bodies of /v1/messages -> OpenAI's form. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/anthropic.h"
#include "api/convert.h"
#include "base/err.h"
#include "base/utf8.h"

/* ---- Content blocks ------------------------------------------------------------------------- */

static const char *type_of(const json_t *block) {
    const char *type = json_string_value(json_object_get(block, "type"));
    return type ? type : "";
}

static int refuse(const char *param, const char *type, const char *model, gs_api_error *e) {
    if (strcmp(type, "image") == 0 || strcmp(type, "document") == 0)
        return gs_api_fail(e, GS_ERR_UNSUPPORTED, param,
                           "'%s': the model '%.80s' takes no %ss; send text alone.", param, model,
                           type);
    return gs_api_fail(e, GS_ERR_INVALID, param, "'%s' has a block of unknown type '%.32s'.", param,
                       type);
}

/* The text of a string or of text blocks, appended. */
static int add_text(const json_t *content, const char *param, const char *model, gs_buf *out,
                    gs_api_error *e) {
    if (!content)
        return 0;
    if (json_typeof(content) == JSON_STRING) {
        gs_buf_add(out, json_string_value(content), json_string_length(content));
        return 0;
    }
    if (json_typeof(content) != JSON_ARRAY)
        return gs_api_fail(e, GS_ERR_INVALID, param, "'%s' must be a string or an array of blocks.",
                           param);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        const json_t *text = json_object_get(block, "text");
        if (strcmp(type_of(block), "text") != 0)
            return refuse(param, type_of(block), model, e);
        if (!json_is_string(text))
            return gs_api_fail(e, GS_ERR_INVALID, param, "A text block of '%s' has no text.",
                               param);
        gs_buf_add(out, json_string_value(text), json_string_length(text));
    }
    return 0;
}

/* One message of theirs while it is taken apart. */
typedef struct taking {
    json_t *messages; /* OpenAI's, so far */
    gs_buf text, thinking;
    json_t *calls; /* NULL: none */
    const char *param, *model;
    gs_api_error *e;
} taking;

static int no_memory(gs_api_error *e) {
    return gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
}

static int add_message(taking *t, json_t *message) {
    if (!message || json_array_append_new(t->messages, message) != 0)
        return no_memory(t->e);
    return 0;
}

static json_t *take_text(gs_buf *text) {
    json_t *v = text->failed ? NULL : json_stringn(text->data ? text->data : "", text->len);
    gs_buf_clear(text);
    return v;
}

/* What the user said between two results. */
static int flush_user(taking *t) {
    if (t->text.len == 0 && !t->text.failed)
        return 0;
    return add_message(t, json_pack("{s:s, s:o}", "role", "user", "content", take_text(&t->text)));
}

static int take_result(taking *t, const json_t *block) {
    const json_t *id = json_object_get(block, "tool_use_id");
    if (!json_is_string(id))
        return gs_api_fail(t->e, GS_ERR_INVALID, t->param, "A result in '%s' has no 'tool_use_id'.",
                           t->param);
    if (flush_user(t) != 0 ||
        add_text(gs_given(block, "content"), t->param, t->model, &t->text, t->e) != 0)
        return t->e->code;
    return add_message(t, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id,
                                    "content", take_text(&t->text)));
}

static int take_call(taking *t, const json_t *block) {
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name");
    const json_t *input = json_object_get(block, "input");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_object(input))
        return gs_api_fail(t->e, GS_ERR_INVALID, t->param,
                           "A call in '%s' needs 'id', 'name' and an 'input' that is an object.",
                           t->param);
    char *arguments = json_dumps(input, JSON_COMPACT);
    json_t *call = arguments ? json_pack("{s:O, s:s, s:{s:O, s:s}}", "id", id, "type", "function",
                                         "function", "name", name, "arguments", arguments)
                             : NULL;
    free(arguments);
    if (!t->calls)
        t->calls = json_array();
    return call && json_array_append_new(t->calls, call) == 0 ? 0 : no_memory(t->e);
}

static int take_block(taking *t, const json_t *block, bool user) {
    const char *type = type_of(block);
    const json_t *text = json_object_get(block, strcmp(type, "thinking") == 0 ? type : "text");
    bool thinking = !user && strcmp(type, "thinking") == 0;
    if (user && strcmp(type, "tool_result") == 0)
        return take_result(t, block);
    if (!user && strcmp(type, "tool_use") == 0)
        return take_call(t, block);
    if (!user && strcmp(type, "redacted_thinking") == 0)
        return 0;
    if (!thinking && strcmp(type, "text") != 0)
        return refuse(t->param, type, t->model, t->e);
    if (!json_is_string(text))
        return gs_api_fail(t->e, GS_ERR_INVALID, t->param, "A block of '%s' has no '%s'.", t->param,
                           type);
    gs_buf_add(thinking ? &t->thinking : &t->text, json_string_value(text),
               json_string_length(text));
    return 0;
}

static int flush_assistant(taking *t) {
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content", take_text(&t->text));
    if (!message)
        return no_memory(t->e);
    int rc = 0;
    if (t->thinking.len > 0)
        rc = gs_convert_set(message, "reasoning_content", take_text(&t->thinking), t->e);
    if (rc == 0 && t->calls) {
        rc = gs_convert_set(message, "tool_calls", t->calls, t->e);
        t->calls = NULL;
    }
    if (rc == 0)
        return add_message(t, message);
    json_decref(message);
    return rc;
}

static int take_message(taking *t, const json_t *msg) {
    const char *role = json_string_value(json_object_get(msg, "role"));
    const json_t *content = json_object_get(msg, "content");
    bool user = role && strcmp(role, "user") == 0;
    int rc = 0;
    if (!role || (!user && strcmp(role, "assistant") != 0))
        return gs_api_fail(t->e, GS_ERR_INVALID, t->param, "'%s.role' must be user or assistant.",
                           t->param);
    if (json_is_array(content)) {
        for (size_t i = 0; rc == 0 && i < json_array_size(content); i++)
            rc = take_block(t, json_array_get(content, i), user);
    } else if (json_is_string(content)) {
        rc = add_text(content, t->param, t->model, &t->text, t->e);
    } else {
        rc = gs_api_fail(t->e, GS_ERR_INVALID, t->param,
                         "'%s.content' must be a string or an array of blocks.", t->param);
    }
    if (rc == 0 && (t->text.failed || t->thinking.failed))
        rc = no_memory(t->e);
    if (rc != 0)
        return rc;
    /* A turn of the user that is empty stays one: templates want turns to alternate. */
    if (user && json_is_string(content) && t->text.len == 0)
        return add_message(t, json_pack("{s:s, s:s}", "role", "user", "content", ""));
    return user ? flush_user(t) : flush_assistant(t);
}

static int put_messages(json_t *out, const json_t *body, const char *model, gs_api_error *e) {
    const json_t *list = json_object_get(body, "messages");
    taking t = {.messages = json_array(), .model = model, .e = e};
    char param[64];
    int rc = add_text(gs_given(body, "system"), "system", model, &t.text, e);
    if (rc == 0 && (t.text.len > 0 || t.text.failed))
        rc = add_message(&t,
                         json_pack("{s:s, s:o}", "role", "system", "content", take_text(&t.text)));
    if (rc == 0 && (!json_is_array(list) || json_array_size(list) == 0))
        rc = gs_api_fail(e, GS_ERR_INVALID, "messages",
                         "'messages' must be a non-empty array of messages.");
    t.param = param;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        snprintf(param, sizeof(param), "messages[%zu]", i);
        rc = take_message(&t, json_array_get(list, i));
    }
    gs_buf_deinit(&t.text);
    gs_buf_deinit(&t.thinking);
    json_decref(t.calls);
    if (rc == 0)
        return gs_convert_set(out, "messages", t.messages, e);
    json_decref(t.messages);
    return rc;
}

/* ---- Tools ----------------------------------------------------------------------------------- */

static json_t *tool_in(const json_t *tool, size_t at, gs_api_error *e) {
    char param[64];
    snprintf(param, sizeof(param), "tools[%zu]", at);
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *name = json_object_get(tool, "name");
    const json_t *schema = json_object_get(tool, "input_schema");
    const json_t *description = gs_given(tool, "description");
    if (type && strcmp(type, "custom") != 0) {
        gs_api_fail(e, GS_ERR_UNSUPPORTED, param,
                    "'%s': tools of type '%.40s' run on Anthropic's servers; only the caller's own "
                    "can be used here.",
                    param, type);
        return NULL;
    }
    if (!json_is_string(name) || (schema && json_typeof(schema) != JSON_OBJECT) ||
        (description && json_typeof(description) != JSON_STRING)) {
        gs_api_fail(e, GS_ERR_INVALID, param,
                    "'%s' needs a 'name', and an 'input_schema' that is an object.", param);
        return NULL;
    }
    json_t *out = json_pack("{s:s, s:{s:O, s:O*, s:O*}}", "type", "function", "function", "name",
                            name, "description", description, "parameters", schema);
    if (!out)
        no_memory(e);
    return out;
}

static int put_choice(json_t *out, const json_t *body, gs_api_error *e) {
    const json_t *v = gs_given(body, "tool_choice");
    const json_t *name = json_object_get(v, "name");
    const char *type = type_of(v);
    json_t *choice = NULL;
    if (!v)
        return 0;
    if (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0)
        choice = json_string(type);
    else if (strcmp(type, "any") == 0)
        choice = json_string("required");
    else if (strcmp(type, "tool") == 0 && json_is_string(name))
        choice = json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name);
    else
        return gs_api_fail(e, GS_ERR_INVALID, "tool_choice",
                           "'tool_choice.type' must be auto, any, none, or tool with a 'name'.");
    int rc = gs_convert_set(out, "tool_choice", choice, e);
    if (rc == 0 && json_is_true(json_object_get(v, "disable_parallel_tool_use")))
        rc = gs_convert_set(out, "parallel_tool_calls", json_false(), e);
    return rc;
}

/* ---- The rest -------------------------------------------------------------------------------- */

/* Models that can think do so only when asked to, as Anthropic's do. */
static int put_thinking(json_t *out, const json_t *body, gs_api_error *e) {
    const json_t *v = gs_given(body, "thinking");
    int on = strcmp(type_of(v), "enabled") == 0 || strcmp(type_of(v), "adaptive") == 0;
    if (v && !on && strcmp(type_of(v), "disabled") != 0)
        return gs_api_fail(e, GS_ERR_INVALID, "thinking",
                           "'thinking.type' must be enabled, adaptive or disabled.");
    return gs_convert_set(out, "chat_template_kwargs",
                          json_pack("{s:b, s:b}", "enable_thinking", on, "thinking", on), e);
}

static int put_format(json_t *out, const json_t *body, gs_api_error *e) {
    const json_t *config = gs_given(body, "output_config");
    const json_t *v = gs_given(config, "format");
    const json_t *schema;
    if (config && json_typeof(config) != JSON_OBJECT)
        return gs_api_fail(e, GS_ERR_INVALID, "output_config",
                           "'output_config' must be an object.");
    if (!v)
        v = gs_given(body, "output_format"); /* its older place */
    if (!v)
        return 0;
    schema = json_object_get(v, "schema");
    if (strcmp(type_of(v), "json_schema") != 0 || !json_is_object(schema))
        return gs_api_fail(e, GS_ERR_INVALID, "output_config",
                           "'output_config.format' must have type json_schema and a 'schema'.");
    return gs_convert_set(out, "response_format",
                          json_pack("{s:s, s:{s:s, s:O, s:b}}", "type", "json_schema",
                                    "json_schema", "name", "format", "schema", schema, "strict", 1),
                          e);
}

/* Some clients put long ids here; whoever they name is told apart by the beginning. */
static int put_user(json_t *out, const json_t *body, gs_api_error *e) {
    const json_t *v = json_object_get(json_object_get(body, "metadata"), "user_id");
    size_t n = json_string_length(v);
    if (!json_is_string(v))
        return 0;
    const char *s = json_string_value(v);
    if (n > 120) {
        for (n = 120; n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80; n--)
            ;
    }
    return gs_convert_set(out, "user", json_stringn(s, n), e);
}

json_t *gs_anthropic_in(const json_t *body, bool count, const char *model, gs_api_error *e) {
    /* Fields with the same meaning, under OpenAI's names. */
    static const char *const same[][2] = {{"model", "model"},
                                          {"max_tokens", "max_tokens"},
                                          {"temperature", "temperature"},
                                          {"top_p", "top_p"},
                                          {"top_k", "top_k"},
                                          {"stop_sequences", "stop"},
                                          {"stream", "stream"},
                                          {"service_tier", "service_tier"}};
    json_t *out = json_object();
    int rc = 0;
    if (!count && !gs_given(body, "max_tokens"))
        rc = gs_api_fail(e, GS_ERR_INVALID, "max_tokens", "'max_tokens' is missing.");
    for (size_t i = 0; rc == 0 && i < sizeof(same) / sizeof(same[0]); i++) {
        if (!count || i == 0)
            rc = gs_convert_copy(out, same[i][1], json_object_get(body, same[i][0]), e);
    }
    if (rc == 0)
        rc = put_messages(out, body, model, e);
    if (rc == 0)
        rc = gs_convert_tools(out, body, tool_in, e);
    if (rc == 0)
        rc = put_choice(out, body, e);
    if (rc == 0)
        rc = put_thinking(out, body, e);
    if (rc == 0 && !count)
        rc = put_format(out, body, e);
    if (rc == 0)
        rc = put_user(out, body, e);
    if (rc == 0)
        return out;
    json_decref(out);
    return NULL;
}
