#include "model/keys.h"

#include <math.h>
#include <stdio.h>

#include "base/err.h"

void gs_keys_name(const gs_keys *k, const char *suffix, char key[128]) {
    snprintf(key, 128, "%s.%s", k->arch, suffix);
}

int32_t gs_keys_int(gs_keys *k, const char *suffix, int32_t lo, int32_t hi, int32_t def) {
    char key[128];
    uint32_t v = 0;
    gs_keys_name(k, suffix, key);
    if (k->rc != GS_OK)
        return lo;
    int rc = gs_gguf_get_u32(k->g, key, &v, k->err, k->errlen);
    if (rc == GS_ERR_NOT_FOUND && def >= 0)
        return def;
    if (rc == GS_ERR_NOT_FOUND)
        rc = gs_fail(k->err, k->errlen, GS_ERR_FORMAT, "%s: the key is missing", key);
    else if (rc == GS_OK && (v < (uint32_t)lo || v > (uint32_t)hi))
        rc = gs_fail(k->err, k->errlen, GS_ERR_FORMAT, "%s: %u is not in %d..%d", key, v, lo, hi);
    k->rc = rc;
    return rc == GS_OK ? (int32_t)v : lo;
}

float gs_keys_float(gs_keys *k, const char *suffix, float lo, float hi, float def) {
    char key[128];
    float v = 0;
    gs_keys_name(k, suffix, key);
    if (k->rc != GS_OK)
        return lo;
    int rc = gs_gguf_get_f32(k->g, key, &v, k->err, k->errlen);
    if (rc == GS_ERR_NOT_FOUND && !isnan(def))
        return def;
    if (rc == GS_ERR_NOT_FOUND)
        rc = gs_fail(k->err, k->errlen, GS_ERR_FORMAT, "%s: the key is missing", key);
    else if (rc == GS_OK && !(v >= lo && v <= hi))
        rc = gs_fail(k->err, k->errlen, GS_ERR_FORMAT, "%s: %g is not in %g..%g", key, (double)v,
                     (double)lo, (double)hi);
    k->rc = rc;
    return rc == GS_OK ? v : lo;
}

bool gs_keys_bool(gs_keys *k, const char *suffix, bool def) {
    char key[128];
    bool v = def;
    gs_keys_name(k, suffix, key);
    if (k->rc != GS_OK)
        return def;
    int rc = gs_gguf_get_bool(k->g, key, &v, k->err, k->errlen);
    if (rc != GS_OK && rc != GS_ERR_NOT_FOUND)
        k->rc = rc;
    return v;
}

int gs_keys_fail(gs_keys *k, int code, const char *suffix, const char *why) {
    k->rc = gs_fail(k->err, k->errlen, code, "%s.%s: %s", k->arch, suffix, why);
    return k->rc;
}
