/* JSON in C's strings, readable. */
#ifndef GS_TESTS_API_QUOTED_H
#define GS_TESTS_API_QUOTED_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The text with ' for double quotes, parsed; the test fails where it is no JSON. */
static inline json_t *quoted(const char *text) {
    char *copy = strdup(text);
    json_error_t why;
    for (char *p = copy; *p; p++)
        if (*p == '\'')
            *p = '"';
    json_t *v = json_loads(copy, JSON_DECODE_ANY, &why);
    if (!v)
        fail_msg("%s: %s", copy, why.text);
    free(copy);
    return v;
}

#endif
