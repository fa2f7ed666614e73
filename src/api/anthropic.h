/*
 * Private to api/: Anthropic's messages. Bodies become OpenAI's form of the same request, answers
 * are a list of content blocks, streamed as named events.
 *
 *     anthropic_in.c   POST /v1/messages, /v1/messages/count_tokens: bodies
 *     anthropic.c      answers, routes
 *
 * Shapes: Anthropic's API reference for the Messages API and what its clients read.
 */
#ifndef GS_API_ANTHROPIC_H
#define GS_API_ANTHROPIC_H

#include "api/api_impl.h"
#include "api/route.h"

/* OpenAI's form, new; NULL and *e. count: max_tokens is not needed. model: to name in errors. */
json_t *gs_anthropic_in(const json_t *body, bool count, const char *model, gs_api_error *e);

/* Bits: 1 messages, 2 count_tokens. */
extern const gs_field gs_anthropic_fields[];

#endif
