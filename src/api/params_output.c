/* The fields that say what the output may be: tools, tool_choice, response_format, grammar, regex.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/params_impl.h"
#include "base/err.h"
#include "base/sys.h"

/* ---- Tools ------------------------------------------------------------------------------------
 */

/* Templates and call formats write names between marks of their own. */
static bool good_name(const json_t *v) {
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (n == 0 || n > GS_MAX_TOOL_NAME)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)s[i]) && !strchr("_-.:/", s[i]))
            return false;
    }
    return true;
}

static int check_tool(const json_t *tool, size_t at, gs_api_error *e) {
    char param[64];
    const json_t *type = gs_given(tool, "type"), *function = gs_given(tool, "function");
    snprintf(param, sizeof(param), "tools[%zu]", at);
    if (!json_is_object(tool))
        return gs_api_fail(e, GS_ERR_INVALID, param, "'%s' must be an object.", param);
    if (type &&
        (json_typeof(type) != JSON_STRING || strcmp(json_string_value(type), "function") != 0))
        return gs_api_fail(e, GS_ERR_UNSUPPORTED, param, "'%s.type' must be \"function\".", param);
    if (!json_is_object(function))
        return gs_api_fail(e, GS_ERR_INVALID, param, "'%s.function' must be an object.", param);
    if (!good_name(gs_given(function, "name")))
        return gs_api_fail(e, GS_ERR_INVALID, param,
                           "'%s.function.name' must be 1 to %d letters, digits and any of _-.:/.",
                           param, GS_MAX_TOOL_NAME);
    const json_t *about = gs_given(function, "description"),
                 *shape = gs_given(function, "parameters");
    if (about && json_typeof(about) != JSON_STRING)
        return gs_api_fail(e, GS_ERR_INVALID, param, "'%s.function.description' must be a string.",
                           param);
    if (shape && json_typeof(shape) != JSON_OBJECT)
        return gs_api_fail(e, GS_ERR_INVALID, param,
                           "'%s.function.parameters' must be a JSON schema (an object).", param);
    return 0;
}

/* A tool as templates read it: type, name, description and parameters are always there. */
static json_t *normal_tool(const json_t *tool) {
    const json_t *function = gs_given(tool, "function");
    json_t *copy = json_deep_copy(function), *out = NULL;
    if (copy && !gs_given(copy, "description") &&
        json_object_set_new(copy, "description", json_string("")) != 0)
        goto out;
    if (copy && !gs_given(copy, "parameters") &&
        json_object_set_new(copy, "parameters",
                            json_pack("{s:s, s:{}}", "type", "object", "properties")) != 0)
        goto out;
    out = copy ? json_pack("{s:s, s:O}", "type", "function", "function", copy) : NULL;
out:
    json_decref(copy);
    return out;
}

static int read_tools(const json_t *root, gs_gen_params *p, gs_api_error *e) {
    const json_t *v = gs_given(root, "tools");
    if (v && json_typeof(v) != JSON_ARRAY)
        return gs_api_fail(e, GS_ERR_INVALID, "tools", "'tools' must be an array.");
    size_t n = json_array_size(v);
    if (n > GS_MAX_TOOLS)
        return gs_api_fail(e, GS_ERR_INVALID, "tools", "'tools' may have at most %d entries.",
                           GS_MAX_TOOLS);
    if (n == 0)
        return 0;
    p->tools = json_array();
    for (size_t i = 0; i < n; i++) {
        const json_t *tool = json_array_get(v, i);
        if (check_tool(tool, i, e) != 0)
            return e->code;
        if (!p->tools || json_array_append_new(p->tools, normal_tool(tool)) != 0)
            return gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
    }
    return 0;
}

static bool has_tool(const gs_gen_params *p, const char *name) {
    for (size_t i = 0; i < json_array_size(p->tools); i++) {
        const json_t *f = json_object_get(json_array_get(p->tools, i), "function");
        if (strcmp(json_string_value(json_object_get(f, "name")), name) == 0)
            return true;
    }
    return false;
}

static int read_named_choice(const json_t *v, gs_gen_params *p, gs_api_error *e) {
    const json_t *function = gs_given(v, "function");
    /* The responses API has the name at the top. */
    const char *name = json_string_value(gs_given(function ? function : v, "name"));
    if (!name || !has_tool(p, name))
        return gs_api_fail(e, GS_ERR_INVALID, "tool_choice",
                           "'tool_choice' names no function of 'tools'.");
    p->tool_choice = GS_TOOLS_NAMED;
    snprintf(p->tool_name, sizeof(p->tool_name), "%s", name);
    return 0;
}

static int read_tool_choice(const json_t *root, gs_gen_params *p, gs_api_error *e) {
    static const char *const words[] = {"auto", "none", "required"};
    const json_t *v = gs_given(root, "tool_choice");
    if (!v)
        return 0;
    if (json_typeof(v) == JSON_OBJECT)
        return read_named_choice(v, p, e);
    const char *word = json_string_value(v);
    for (int i = 0; word && i < 3; i++) {
        if (strcmp(word, words[i]) != 0)
            continue;
        p->tool_choice = (gs_tool_choice)i;
        if (p->tool_choice == GS_TOOLS_REQUIRED && !p->tools)
            return gs_api_fail(e, GS_ERR_INVALID, "tool_choice",
                               "'tool_choice' is \"required\", but there are no 'tools'.");
        return 0;
    }
    return gs_api_fail(
        e, GS_ERR_INVALID, "tool_choice",
        "'tool_choice' must be \"none\", \"auto\", \"required\" or name a function.");
}

/* ---- Constraints ------------------------------------------------------------------------------
 */

static int constrain(gs_gen_params *p, gs_constraint_kind kind, char *text, const char *field,
                     gs_api_error *e) {
    if (p->constraint.kind != GS_CONSTRAINT_NONE) {
        gs_free(text);
        return gs_api_fail(e, GS_ERR_INVALID, field, "'%s' and '%s' can't be used together.", field,
                           p->constraint.field);
    }
    size_t n = text ? strlen(text) : 0;
    p->constraint = (gs_constraint){kind, text, n, field};
    if (!text && kind != GS_CONSTRAINT_JSON_OBJECT)
        return gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
    if (n > GS_MAX_CONSTRAINT_BYTES)
        return gs_api_fail(e, GS_ERR_INVALID, field, "'%s' may have at most %d bytes.", field,
                           GS_MAX_CONSTRAINT_BYTES);
    return 0;
}

static int constrain_schema(const json_t *schema, gs_gen_params *p, gs_api_error *e) {
    static const char field[] = "response_format";
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return gs_api_fail(e, GS_ERR_INVALID, field,
                           "'response_format' must hold the schema as an object.");
    char *dumped = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    char *text = dumped ? gs_strdup(dumped) : NULL;
    free(dumped);
    return constrain(p, GS_CONSTRAINT_JSON_SCHEMA, text, field, e);
}

static int read_response_format(const json_t *v, gs_gen_params *p, gs_api_error *e) {
    static const char field[] = "response_format";
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type)
        return gs_api_fail(e, GS_ERR_INVALID, field,
                           "'response_format' must be an object with a 'type'.");
    if (strcmp(type, "text") == 0)
        return 0;
    if (strcmp(type, "json_schema") == 0)
        return constrain_schema(json_object_get(gs_given(v, "json_schema"), "schema"), p, e);
    if (strcmp(type, "json_object") != 0)
        return gs_api_fail(e, GS_ERR_INVALID, field,
                           "'response_format.type' must be text, json_object or json_schema.");
    if (gs_given(v, "schema")) /* llama.cpp's server takes a schema here */
        return constrain_schema(gs_given(v, "schema"), p, e);
    return constrain(p, GS_CONSTRAINT_JSON_OBJECT, NULL, field, e);
}

static int read_text(const json_t *root, const char *field, gs_constraint_kind kind,
                     gs_gen_params *p, gs_api_error *e) {
    const json_t *v = gs_given(root, field);
    if (v && json_typeof(v) != JSON_STRING)
        return gs_api_fail(e, GS_ERR_INVALID, field, "'%s' must be a string.", field);
    if (json_string_length(v) == 0)
        return 0;
    return constrain(p, kind, gs_strdup(json_string_value(v)), field, e);
}

/* ---- The template -----------------------------------------------------------------------------
 */

static int set_var(gs_gen_params *p, const char *name, json_t *value) {
    if (!p->template_vars)
        p->template_vars = json_object();
    return p->template_vars && json_object_set_new(p->template_vars, name, value) == 0
               ? 0
               : GS_ERR_NOMEM;
}

static int read_template_vars(const json_t *root, gs_gen_params *p, gs_api_error *e) {
    const json_t *vars = gs_given(root, "chat_template_kwargs");
    const json_t *effort = gs_given(root, "reasoning_effort");
    if (vars && json_typeof(vars) != JSON_OBJECT)
        return gs_api_fail(e, GS_ERR_INVALID, "chat_template_kwargs",
                           "'chat_template_kwargs' must be an object.");
    if (effort && json_typeof(effort) != JSON_STRING)
        return gs_api_fail(e, GS_ERR_INVALID, "reasoning_effort",
                           "'reasoning_effort' must be a string.");
    int rc = 0;
    if (vars) {
        p->template_vars = json_deep_copy(vars);
        rc = p->template_vars ? 0 : GS_ERR_NOMEM;
    }
    /* Templates either take the word or can only be told not to think. */
    if (rc == 0 && effort && strcmp(json_string_value(effort), "none") == 0)
        rc = set_var(p, "enable_thinking", json_false());
    else if (rc == 0 && effort)
        rc = set_var(p, "reasoning_effort", json_string(json_string_value(effort)));
    return rc == 0 ? 0 : gs_api_fail(e, rc, NULL, "Out of memory.");
}

int gs_params_read_output(const json_t *root, gs_gen_params *p, gs_api_error *e) {
    const json_t *format = gs_given(root, "response_format");
    if (p->chat && (read_tools(root, p, e) != 0 || read_tool_choice(root, p, e) != 0 ||
                    read_template_vars(root, p, e) != 0))
        return e->code;
    if (format && read_response_format(format, p, e) != 0)
        return e->code;
    if (read_text(root, "grammar", GS_CONSTRAINT_GRAMMAR, p, e) != 0 ||
        read_text(root, "regex", GS_CONSTRAINT_REGEX, p, e) != 0)
        return e->code;
    /* The grammar says when an answer may end, and then it must. */
    if (p->constraint.kind != GS_CONSTRAINT_NONE || p->tool_choice >= GS_TOOLS_REQUIRED)
        p->sampler.ignore_eos = false;
    return 0;
}
