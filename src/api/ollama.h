/*
 * Private to api/: Ollama's dialect. Bodies become OpenAI's form of the same request (the one that
 * everything behind them reads), answers are worded as NDJSON or one object.
 *
 *     ollama_in.c      POST /api/chat, /api/generate: bodies
 *     ollama_out.c     their answers
 *     ollama_models.c  GET /api/tags, /api/ps, /api/version, POST /api/show, GET /
 *
 * Shapes: Ollama's API reference (docs/api.md there) and what its clients read.
 */
#ifndef GS_API_OLLAMA_H
#define GS_API_OLLAMA_H

#include "api/api_impl.h"
#include "api/route.h"

/* Times without end, as Ollama reports for a model that stays. */
#define GS_OLLAMA_FOREVER "2318-01-01T00:00:00Z"

typedef struct gs_ollama_in {
    json_t *body;    /* OpenAI's form, new; NULL: load or unload, nothing to generate */
    bool chat;       /* of messages; else of a raw text */
    int64_t keep_ns; /* keep_alive */
} gs_ollama_in;

/* 0 or e->code. model: to name in errors. */
int gs_ollama_chat_in(const json_t *body, const char *model, gs_ollama_in *out, gs_api_error *e);
int gs_ollama_generate_in(const json_t *body, const char *model, gs_ollama_in *out,
                          gs_api_error *e);

#define GS_OLLAMA_KEEP_UNSAID (-1)
/* keep_alive: 0, a time, GS_KEEP_FOREVER or UNSAID. 0 or e->code. */
int gs_ollama_keep_alive(const json_t *body, int64_t *keep_ns, gs_api_error *e);
/* Of Ollama's endpoints: nothing to answer, the model alone is meant. */
bool gs_ollama_only_loads(const gs_route *route, const json_t *body);
/* Nothing to answer, and the model is to go: it need not be loaded for that. */
bool gs_ollama_sends_away(const gs_route *route, const json_t *body);

/* "2026-11-29T23:31:44.123456789Z", now. */
void gs_ollama_now(char *out, size_t n);

/* ollama_out.c: all fields of the dialect; bits: 1 chat, 2 generate, 4 show. */
extern const gs_field gs_ollama_fields[];

/* ollama_models.c: handlers. */
void gs_ollama_tags(gs_api *a, gs_http_request *rq, json_t *body);
void gs_ollama_ps(gs_api *a, gs_http_request *rq, json_t *body);
void gs_ollama_version(gs_api *a, gs_http_request *rq, json_t *body);
void gs_ollama_show(gs_api *a, gs_http_request *rq, json_t *body);
void gs_ollama_root(gs_api *a, gs_http_request *rq, json_t *body);

extern const gs_dialect gs_dialect_ollama_chat, gs_dialect_ollama_generate;

#endif
