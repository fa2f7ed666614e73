/*
 * The OpenAPI 3.1 document, written from the tables of routes, fields and schemas: what is not in
 * a table is neither served nor described.
 */
#include <string.h>

#include "api/request.h"
#include "api/route.h"
#include "base/jsonw.h"

static void key_str(gs_jsonw *w, const char *key, const char *value) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, value);
}

static void key_obj(gs_jsonw *w, const char *key) {
    gs_jsonw_key(w, key);
    gs_jsonw_obj(w);
}

/* JSON Schema of the tables, where ' stands for a double quote. */
static void schema_text(gs_jsonw *w, const char *text) {
    gs_buf b = {0};
    for (; *text; text++)
        gs_buf_char(&b, *text == '\'' ? '"' : *text);
    gs_jsonw_raw(w, b.data ? b.data : "{}", b.len);
    w->out->failed |= b.failed;
    gs_buf_deinit(&b);
}

static void ref(gs_jsonw *w, const char *name) {
    gs_buf b = {0};
    gs_buf_printf(&b, "{\"$ref\":\"#/components/schemas/%s\"}", name);
    gs_jsonw_raw(w, b.data ? b.data : "{}", b.len);
    w->out->failed |= b.failed;
    gs_buf_deinit(&b);
}

/* ---- Fields -------------------------------------------------------------------------------- */

static void object_schema(gs_jsonw *w, const gs_field *table, unsigned where);

static void types(gs_jsonw *w, const char *type) {
    gs_jsonw_key(w, "type");
    gs_jsonw_arr(w);
    gs_jsonw_str(w, type);
    gs_jsonw_str(w, "null");
    gs_jsonw_end_arr(w);
}

static void bounds(gs_jsonw *w, const gs_field *f) {
    gs_jsonw_key(w, "minimum");
    gs_jsonw_num(w, f->min);
    gs_jsonw_key(w, "maximum");
    gs_jsonw_num(w, f->max);
}

static void json_schema(gs_jsonw *w, const gs_field *f) {
    gs_jsonw_key(w, "anyOf");
    gs_jsonw_arr(w);
    schema_text(w, f->schema);
    if (!f->required)
        schema_text(w, "{'type':'null'}");
    gs_jsonw_end_arr(w);
}

static void field_schema(gs_jsonw *w, const gs_field *f, unsigned where) {
    gs_jsonw_obj(w);
    switch (f->type) {
    case GS_FIELD_FLOAT:
        types(w, "number");
        bounds(w, f);
        break;
    case GS_FIELD_INT:
        types(w, "integer");
        bounds(w, f);
        break;
    case GS_FIELD_BOOL:
        types(w, "boolean");
        break;
    case GS_FIELD_TEXT:
        types(w, "string");
        gs_jsonw_key(w, "maxLength");
        gs_jsonw_num(w, f->max);
        break;
    case GS_FIELD_OBJECT:
        gs_jsonw_key(w, "anyOf");
        gs_jsonw_arr(w);
        object_schema(w, f->sub, where);
        schema_text(w, "{'type':'null'}");
        gs_jsonw_end_arr(w);
        break;
    case GS_FIELD_JSON:
        json_schema(w, f);
        break;
    }
    if (f->help)
        key_str(w, "description", f->help);
    gs_jsonw_end_obj(w);
}

/* Unknown members are allowed: clients send many. */
static void object_schema(gs_jsonw *w, const gs_field *table, unsigned where) {
    int n_required = 0;
    gs_jsonw_obj(w);
    key_str(w, "type", "object");
    key_obj(w, "properties");
    for (const gs_field *f = table; f->name; f++) {
        if (!(f->where & where))
            continue;
        n_required += f->required;
        gs_jsonw_key(w, f->name);
        field_schema(w, f, where);
    }
    gs_jsonw_end_obj(w);
    if (n_required > 0) {
        gs_jsonw_key(w, "required");
        gs_jsonw_arr(w);
        for (const gs_field *f = table; f->name; f++) {
            if (f->required && (f->where & where))
                gs_jsonw_str(w, f->name);
        }
        gs_jsonw_end_arr(w);
    }
    gs_jsonw_end_obj(w);
}

/* ---- Routes -------------------------------------------------------------------------------- */

static void parameter(gs_jsonw *w, const char *in, const char *name, size_t n_name, bool required,
                      const char *schema, const char *help) {
    gs_jsonw_obj(w);
    key_str(w, "in", in);
    gs_jsonw_key(w, "name");
    gs_jsonw_strn(w, name, n_name);
    gs_jsonw_key(w, "required");
    gs_jsonw_bool(w, required);
    if (help)
        key_str(w, "description", help);
    gs_jsonw_key(w, "schema");
    schema_text(w, schema);
    gs_jsonw_end_obj(w);
}

static void parameters(gs_jsonw *w, const gs_route *r) {
    gs_jsonw_key(w, "parameters");
    gs_jsonw_arr(w);
    for (const char *p = strchr(r->path, '{'); p; p = strchr(p + 1, '{'))
        parameter(w, "path", p + 1, strcspn(p + 1, "}"), true, "{'type':'string','minLength':1}",
                  NULL);
    for (const gs_field *f = r->query; f && f->name; f++)
        parameter(w, "query", f->name, strlen(f->name), f->required,
                  f->schema ? f->schema : "{'type':'string'}", f->help);
    if (r->flags & GS_ROUTE_CLASS)
        parameter(
            w, "header", "X-Gamasot-Class", 15, false,
            "{'type':'string','enum':['voice','chat','completion','document','utility',"
            "'background']}",
            "The class asked for. The answer's header of that name says which one was given.");
    gs_jsonw_end_arr(w);
}

static void request_body(gs_jsonw *w, const gs_route *r) {
    key_obj(w, "requestBody");
    gs_jsonw_key(w, "required");
    gs_jsonw_bool(w, true);
    key_obj(w, "content");
    key_obj(w, "application/json");
    gs_jsonw_key(w, "schema");
    if (r->fields)
        object_schema(w, r->fields, r->where);
    else
        schema_text(w, "{'type':'object'}");
    gs_jsonw_end_obj(w);
    gs_jsonw_end_obj(w);
    gs_jsonw_end_obj(w);
}

static void content(gs_jsonw *w, const char *type, const char *schema) {
    key_obj(w, type);
    gs_jsonw_key(w, "schema");
    if (schema)
        ref(w, schema);
    else
        schema_text(w, "{'type':'string'}");
    gs_jsonw_end_obj(w);
}

static void good_answer(gs_jsonw *w, const gs_route *r) {
    key_obj(w, "200");
    key_str(w, "description", "The answer.");
    key_obj(w, "content");
    if (r->answer && strchr(r->answer, '/'))
        content(w, r->answer, NULL);
    else if (r->answer)
        content(w, "application/json", r->answer);
    if (r->stream) { /* readers differ on what a schema of it would describe */
        key_obj(w, r->stream);
        key_obj(w, "schema");
        key_str(w, "description", "Events, or lines of JSON, one after another.");
        gs_jsonw_end_obj(w);
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_obj(w);
    gs_jsonw_end_obj(w);
}

static const char *error_schema(const char *path) {
    switch (gs_api_error_shape(path)) {
    case GS_ERRORS_OLLAMA:
        return "OllamaError";
    case GS_ERRORS_ANTHROPIC:
        return "AnthropicError";
    case GS_ERRORS_OPENAI:
        break;
    }
    return "Error";
}

static void bad_answer(gs_jsonw *w, const gs_route *r, const char *status, const char *about) {
    key_obj(w, status);
    key_str(w, "description", about);
    if (strcmp(status, "429") == 0 || strcmp(status, "503") == 0) {
        key_obj(w, "headers");
        key_obj(w, "Retry-After");
        key_str(w, "description", "Seconds after which it is worth another try.");
        gs_jsonw_key(w, "schema");
        schema_text(w, "{'type':'integer','minimum':1}");
        gs_jsonw_end_obj(w);
        gs_jsonw_end_obj(w);
    }
    key_obj(w, "content");
    content(w, "application/json", error_schema(r->path));
    gs_jsonw_end_obj(w);
    gs_jsonw_end_obj(w);
}

static void responses(gs_jsonw *w, const gs_route *r) {
    const bool body = r->flags & GS_ROUTE_BODY;
    key_obj(w, "responses");
    good_answer(w, r);
    if (body)
        bad_answer(w, r, "400", "The request is wrong; the message names the field.");
    if (!(r->flags & GS_ROUTE_OPEN)) {
        bad_answer(w, r, "401", "A key is needed.");
        bad_answer(w, r, "403", "This host name, page or key may not.");
    }
    if (body || strchr(r->path, '{'))
        bad_answer(w, r, "404", "What was named does not exist here.");
    if (body) {
        bad_answer(w, r, "413", "The body is too large.");
        bad_answer(w, r, "415", "The body must be application/json.");
        bad_answer(w, r, "429", "The queue is full, or a limit of the key is reached.");
    }
    if (r->flags & GS_ROUTE_MODEL)
        bad_answer(w, r, "503", "The model is still loading, or the server is ending.");
    bad_answer(w, r, "default", "Any other error.");
    gs_jsonw_end_obj(w);
}

static void lower_key(gs_jsonw *w, const char *method) {
    char name[16];
    size_t n = 0;
    for (; n < sizeof(name) - 1 && method[n]; n++)
        name[n] = (char)(method[n] | 0x20);
    name[n] = '\0';
    gs_jsonw_key(w, name);
}

/* "POST /v1/x/{y}" -> "POST_v1_x_y" */
static void operation_id(gs_jsonw *w, const gs_route *r) {
    gs_buf b = {0};
    gs_buf_str(&b, r->method);
    for (const char *p = r->path; *p; p++) {
        if (*p != '{' && *p != '}')
            gs_buf_char(&b, *p == '/' || *p == '.' ? '_' : *p);
    }
    gs_jsonw_key(w, "operationId");
    gs_jsonw_strn(w, b.data ? b.data : "", b.len);
    w->out->failed |= b.failed;
    gs_buf_deinit(&b);
}

static void operation(gs_jsonw *w, const gs_api_part *part, const gs_route *r) {
    lower_key(w, r->method);
    gs_jsonw_obj(w);
    operation_id(w, r);
    key_str(w, "summary", r->summary);
    gs_jsonw_key(w, "tags");
    gs_jsonw_arr(w);
    gs_jsonw_str(w, part->name);
    gs_jsonw_end_arr(w);
    if (r->flags & GS_ROUTE_OPEN) {
        gs_jsonw_key(w, "security");
        gs_jsonw_arr(w);
        gs_jsonw_end_arr(w);
    }
    if (r->flags & GS_ROUTE_ADMIN) {
        gs_jsonw_key(w, "x-gamasot-admin");
        gs_jsonw_bool(w, true);
    }
    parameters(w, r);
    if (r->flags & GS_ROUTE_BODY)
        request_body(w, r);
    responses(w, r);
    gs_jsonw_end_obj(w);
}

/* Whether an earlier row has this path: its methods then stand there. */
static bool seen_before(const gs_api_part *const *parts, const gs_route *r) {
    for (;; parts++) {
        for (const gs_route *o = (*parts)->routes; o->path; o++) {
            if (o == r)
                return false;
            if (strcmp(o->path, r->path) == 0)
                return true;
        }
    }
}

static void path_item(gs_jsonw *w, const gs_api_part *const *parts, size_t n, const char *path) {
    key_obj(w, path);
    for (size_t i = 0; i < n; i++) {
        for (const gs_route *r = parts[i]->routes; r->path; r++) {
            if (strcmp(r->path, path) == 0)
                operation(w, parts[i], r);
        }
    }
    gs_jsonw_end_obj(w);
}

/* ---- The document -------------------------------------------------------------------------- */

static const char info[] =
    "{'title':'gamasot','version':'1','description':'A home AI server that schedules every "
    "iteration. Unknown members of a request are ignored; null means absent.','license':"
    "{'name':'Apache-2.0','identifier':'Apache-2.0'}}";

/* The empty one: a server without any keys needs none. */
static const char security[] = "[{'bearer':[]},{'header':[]},{}]";
static const char security_schemes[] =
    "{'bearer':{'type':'http','scheme':'bearer'},"
    "'header':{'type':'apiKey','in':'header','name':'X-Api-Key'}}";

static void key_text(gs_jsonw *w, const char *key, const char *text) {
    gs_jsonw_key(w, key);
    schema_text(w, text);
}

static void components(gs_jsonw *w, const gs_api_part *const *parts, size_t n) {
    key_obj(w, "components");
    key_text(w, "securitySchemes", security_schemes);
    key_obj(w, "schemas");
    for (size_t i = 0; i < n; i++) {
        for (const gs_schema *s = parts[i]->schemas; s && s->name; s++)
            key_text(w, s->name, s->json);
    }
    gs_jsonw_end_obj(w);
    gs_jsonw_end_obj(w);
}

void gs_openapi_write(const gs_api_part *const *parts, size_t n, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    key_str(&w, "openapi", "3.1.0");
    key_text(&w, "info", info);
    key_text(&w, "servers", "[{'url':'/'}]");
    key_text(&w, "security", security);
    gs_jsonw_key(&w, "tags");
    gs_jsonw_arr(&w);
    for (size_t i = 0; i < n; i++) {
        gs_jsonw_obj(&w);
        key_str(&w, "name", parts[i]->name);
        key_str(&w, "description", parts[i]->about);
        gs_jsonw_end_obj(&w);
    }
    gs_jsonw_end_arr(&w);
    key_obj(&w, "paths");
    for (size_t i = 0; i < n; i++) {
        for (const gs_route *r = parts[i]->routes; r->path; r++) {
            if (!(r->flags & GS_ROUTE_PART) && !seen_before(parts, r))
                path_item(&w, parts, n, r->path);
        }
    }
    gs_jsonw_end_obj(&w);
    components(&w, parts, n);
    gs_jsonw_end_obj(&w);
}
