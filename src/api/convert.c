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
    if (!value || json_is_null(value))
        return 0;
    memcpy(&shared, &value, sizeof(shared)); /* counted references need a pointer to non-const */
    return gs_convert_set(object, key, json_incref(shared), e);
}

int gs_convert_tools(json_t *body, const json_t *tools,
                     json_t *(*one)(const json_t *tool, size_t at, gs_api_error *e),
                     gs_api_error *e) {
    size_t i;
    const json_t *tool;
    if (!tools || json_is_null(tools))
        return 0;
    if (!json_is_array(tools))
        return gs_api_fail(e, GS_ERR_INVALID, "tools", "'tools' must be an array.");
    json_t *list = json_array();
    json_array_foreach(tools, i, tool) {
        json_t *made = one(tool, i, e);
        if (!made || json_array_append_new(list, made) != 0) {
            json_decref(list);
            return e->code ? e->code : gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
        }
    }
    return gs_convert_set(body, "tools", list, e);
}
