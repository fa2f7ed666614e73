#include "load/number.h"

#include "base/err.h"

int gs_json_number(const json_t *o, const char *key, double low, double high, double *out,
                   char *err, size_t errlen) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "\"%s\" is not a number", key);
    *out = json_number_value(v);
    if (!(*out >= low && *out <= high))
        return gs_fail(err, errlen, GS_ERR_INVALID, "\"%s\" is out of bounds", key);
    return 0;
}

int gs_json_number_or(const json_t *o, const char *key, double low, double high, double *out,
                      char *err, size_t errlen) {
    const json_t *v = json_object_get(o, key);
    return !v || json_is_null(v) ? 0 : gs_json_number(o, key, low, high, out, err, errlen);
}
