/*
 * Private to api/: small steps in writing other dialects' bodies as OpenAI's. All JSON here is
 * the event loop's.
 */
#ifndef GS_API_CONVERT_H
#define GS_API_CONVERT_H

#include <jansson.h>

#include "api/params.h"

/* Takes value; NULL is "out of memory". 0 or e->code. */
int gs_convert_set(json_t *object, const char *key, json_t *value, gs_api_error *e);
/* Shares value with the other body, whatever its type; NULL and null: nothing is set. The values
 * of a body are never changed by who reads it. */
int gs_convert_copy(json_t *object, const char *key, const json_t *value, gs_api_error *e);
/* The body's member "tools", an array (where it is absent, nothing is set), each as one() makes it
 * of the entry at its place: a new reference, or NULL with e set. 0 or e->code. */
int gs_convert_tools(json_t *out, const json_t *body,
                     json_t *(*one)(const json_t *tool, size_t at, gs_api_error *e),
                     gs_api_error *e);

#endif
