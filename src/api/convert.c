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
