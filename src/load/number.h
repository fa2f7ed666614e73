/* Numbers of JSON files that people write: present, of the right kind, inside their bounds. */
#ifndef GS_LOAD_NUMBER_H
#define GS_LOAD_NUMBER_H

#include <jansson.h>
#include <stddef.h>

/* o[key] into *out. GS_ERR_FORMAT: no number; GS_ERR_INVALID: not in low..high; err names the key.
 */
int gs_json_number(const json_t *o, const char *key, double low, double high, double *out,
                   char *err, size_t errlen);
/* The same; absent or null leaves *out as it is. */
int gs_json_number_or(const json_t *o, const char *key, double low, double high, double *out,
                      char *err, size_t errlen);

#endif
