/* The OpenAPI document: whatever is in the route tables is in it, and what it refers to is there.
 */
#include "server.h"

#include "api/request.h"
#include "api/route.h"

static json_t *document(void) {
    size_t n;
    gs_buf out = {0};
    const gs_api_part *const *parts = gs_api_parts(&n);
    gs_openapi_write(parts, n, &out);
    assert_false(out.failed);
    json_error_t je;
    json_t *d = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, &je);
    if (!d)
        fail_msg("%s at %d", je.text, je.position);
    gs_buf_deinit(&out);
    return d;
}

static json_t *operation(const json_t *doc, const gs_route *r) {
    char method[16] = "";
    for (size_t i = 0; r->method[i]; i++)
        method[i] = (char)(r->method[i] | 0x20);
    return json_object_get(json_object_get(json_object_get(doc, "paths"), r->path), method);
}

static void every_route_is_described(void **state) {
    (void)state;
    size_t n, n_routes = 0;
    json_t *doc = document();
    const gs_api_part *const *parts = gs_api_parts(&n);
    for (size_t i = 0; i < n; i++) {
        for (const gs_route *r = parts[i]->routes; r->path; r++) {
            const json_t *op = operation(doc, r);
            if (r->flags & GS_ROUTE_PART) {
                assert_null(op);
                continue;
            }
            n_routes++;
            if (!op || !r->summary || !r->summary[0] || !r->handle)
                fail_msg("%s %s", r->method, r->path);
            assert_int_equal(json_object_get(op, "requestBody") != NULL,
                             (r->flags & GS_ROUTE_BODY) != 0);
            assert_true(gs_route_matches(r->path, r->path));
        }
    }
    size_t n_described = 0;
    const char *path;
    json_t *item;
    json_object_foreach(json_object_get(doc, "paths"), path, item) n_described +=
        json_object_size(item);
    assert_int_equal(n_described, n_routes);
    json_decref(doc);
}

static void every_field_is_described(void **state) {
    (void)state;
    size_t n;
    json_t *doc = document();
    const gs_api_part *const *parts = gs_api_parts(&n);
    for (size_t i = 0; i < n; i++) {
        for (const gs_route *r = parts[i]->routes; r->path; r++) {
            json_t *p = operation(doc, r);
            static const char *const way[] = {"requestBody", "content", "application/json",
                                              "schema", "properties"};
            for (size_t k = 0; k < 5; k++)
                p = json_object_get(p, way[k]);
            for (const gs_field *f = r->fields; f && f->name; f++) {
                const json_t *d = json_object_get(p, f->name);
                if ((f->where & r->where) && (!d || !f->help))
                    fail_msg("%s %s: %s", r->method, r->path, f->name);
            }
        }
    }
    json_decref(doc);
}

/* Every "$ref" leads to a schema. */
static void check_refs(const json_t *schemas, json_t *v) {
    static const char before[] = "#/components/schemas/";
    const char *key;
    json_t *child;
    size_t i;
    if (json_is_array(v)) {
        json_array_foreach(v, i, child) check_refs(schemas, child);
        return;
    }
    json_object_foreach(v, key, child) {
        if (strcmp(key, "$ref") == 0 && json_is_string(child)) {
            const char *to = json_string_value(child);
            if (strncmp(to, before, sizeof before - 1) != 0 ||
                !json_object_get(schemas, to + sizeof before - 1))
                fail_msg("%s", to);
        } else {
            check_refs(schemas, child);
        }
    }
}

static void what_is_referred_to_is_there(void **state) {
    (void)state;
    json_t *doc = document();
    check_refs(json_object_get(json_object_get(doc, "components"), "schemas"), doc);
    json_decref(doc);
}

static void patterns_match_one_segment_each(void **state) {
    (void)state;
    char out[8] = "";
    assert_true(gs_route_matches("/v1/requests/{id}", "/v1/requests/abc"));
    assert_false(gs_route_matches("/v1/requests/{id}", "/v1/requests/"));
    assert_false(gs_route_matches("/v1/requests/{id}", "/v1/requests"));
    assert_false(gs_route_matches("/v1/requests/{id}", "/v1/requests/a/b"));
    assert_true(gs_route_matches("/x/{a}/y", "/x/1/y"));
    assert_false(gs_route_matches("/x/{a}/y", "/x/1/z"));
    assert_false(gs_route_matches("/", ""));
    gs_route_param("/v1/requests/{id}", "/v1/requests/abc", out, sizeof out);
    assert_string_equal(out, "abc");
    gs_route_param("/x/{a}/y", "/x/longer than that/y", out, sizeof out);
    assert_string_equal(out, "longer ");
}

static void errors_have_the_shape_of_their_dialect(void **state) {
    (void)state;
    gs_api_error e;
    gs_buf out = {0};
    gs_api_fail(&e, GS_ERR_INVALID, "top_k", "must be whole.");
    static const struct {
        const char *path, *want;
    } cases[] = {
        {"/v1/chat/completions",
         "{\"error\":{\"message\":\"must be whole.\",\"type\":\"invalid_request_error\","
         "\"param\":\"top_k\",\"code\":null}}"},
        {"/api/chat", "{\"error\":\"top_k: must be whole.\"}"},
        {"/v1/messages", "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\","
                         "\"message\":\"top_k: must be whole.\"}}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gs_buf_clear(&out);
        gs_api_error_body(gs_api_error_shape(cases[i].path), &e, &out);
        assert_string_equal(gs_buf_cstr(&out), cases[i].want);
    }
    gs_buf_deinit(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_route_is_described),
        cmocka_unit_test(every_field_is_described),
        cmocka_unit_test(what_is_referred_to_is_there),
        cmocka_unit_test(patterns_match_one_segment_each),
        cmocka_unit_test(errors_have_the_shape_of_their_dialect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
