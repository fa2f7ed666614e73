/*
 * Private to api/: OpenAI's responses. Bodies become the form of chat completions, answers are a
 * list of output items, streamed as named and numbered events. Stateless: nothing is stored, so
 * `store` has no effect and previous responses can't be referred to.
 *
 *     responses_in.c   POST /v1/responses: bodies
 *     responses.c      answers, the route
 */
#ifndef GS_API_RESPONSES_H
#define GS_API_RESPONSES_H

#include "api/api_impl.h"
#include "api/route.h"

/* OpenAI's form of a chat, new; NULL and *e. model: to name in errors. */
json_t *gs_responses_in(const json_t *body, const char *model, gs_api_error *e);
/* What the answer repeats of the body, new; NULL: out of memory. */
json_t *gs_responses_note(const json_t *body);

extern const gs_field gs_responses_fields[];

#endif
