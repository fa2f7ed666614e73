/* Private to the model module: hyper-parameters as metadata keys, under the architecture's prefix.
 */
#ifndef GS_MODEL_KEYS_H
#define GS_MODEL_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf/gguf.h"

/* The first error sticks: after it, reading gives some value within the bounds. */
typedef struct gs_keys {
    const gs_gguf *g;
    const char *arch;
    char *err;
    size_t errlen;
    int rc;
} gs_keys;

/* "arch.suffix" */
void gs_keys_name(const gs_keys *k, const char *suffix, char key[128]);
/* Integer in [lo, hi]; def < 0: required; any other def may lie outside. */
int32_t gs_keys_int(gs_keys *k, const char *suffix, int32_t lo, int32_t hi, int32_t def);
/* Float in [lo, hi]; def NaN: required; any other def may lie outside. */
float gs_keys_float(gs_keys *k, const char *suffix, float lo, float hi, float def);
bool gs_keys_bool(gs_keys *k, const char *suffix, bool def);
/* Sets and returns the error: "arch.suffix: why". */
int gs_keys_fail(gs_keys *k, int code, const char *suffix, const char *why);

#endif
