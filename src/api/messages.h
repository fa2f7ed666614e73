/*
 * Messages in OpenAI's form, made fit for templates that take them in another one. Pure; results
 * are new references, NULL when out of memory. The input is checked (prepare.c).
 */
#ifndef GS_API_MESSAGES_H
#define GS_API_MESSAGES_H

#include <jansson.h>
#include <stdbool.h>

#include "api/params.h"

/* 0, or *e naming messages[at]: what a message says about tool calls has OpenAI's shape. */
int gs_messages_check_calls(const json_t *msg, size_t at, gs_api_error *e);
bool gs_messages_have_calls(const json_t *messages);
/* A copy whose calls have their arguments as JSON text: some templates paste them. */
json_t *gs_messages_string_arguments(const json_t *messages);
/*
 * A copy for a template that knows no tools: the functions and how to call them are told in the
 * system message (in_system) or else before the user's first one, calls and their results become
 * text of the assistant and the user.
 */
json_t *gs_messages_without_tools(const json_t *messages, const json_t *tools, bool in_system);

#endif
