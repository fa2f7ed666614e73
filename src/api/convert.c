#include "api/convert.h"

#include <string.h>

#include "base/err.h"

int gs_convert_set(json_t *object, const char *key, json_t *value, gs_api_error *e) {
    if (!value || json_object_set_new(object, key, value) != 0)
        return gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
    return 0;
}

int gs_convert_copy(json_t *object, const char *key, const json_t *value, gs_api_error *e) {
    json_t *shared;
    if (!value || json_typeof(value) == JSON_NULL)
        return 0;
    memcpy(&shared, &value, sizeof(shared)); /* counted references need a pointer to non-const */
    return gs_convert_set(object, key, json_incref(shared), e);
}

int gs_convert_tools(json_t *out, const json_t *body,
                     json_t *(*one)(const json_t *tool, size_t at, gs_api_error *e),
                     gs_api_error *e) {
    const json_t *tools = gs_given(body, "tools");
    if (!tools)
        return 0;
    if (json_typeof(tools) != JSON_ARRAY)
        return gs_api_fail(e, GS_ERR_INVALID, "tools", "'tools' must be an array.");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *made = one(json_array_get(tools, i), i, e);
        if (!made || json_array_append_new(list, made) != 0) {
            json_decref(list);
            return e->code ? e->code : gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
        }
    }
    return gs_convert_set(out, "tools", list, e);
}
