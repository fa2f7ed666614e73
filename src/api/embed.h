/*
 * Private to api/: requests whose answers are vectors or scores (/v1/embeddings, /api/embed,
 * /api/embeddings, /v1/rerank). Each text of a request is one sequence and one choice; a few are
 * with the engine at a time (request.c), and each vector is written as text when it comes.
 *
 *     embed_in.c   fields, texts -> token ids
 *     embed.c      vectors -> text, the answers' shapes, routes
 */
#ifndef GS_API_EMBED_H
#define GS_API_EMBED_H

#include "api/request.h"
#include "api/route.h"

/* Of one request, as OpenAI bounds them. */
#define GS_EMBED_MAX_INPUTS 2048
#define GS_EMBED_MAX_TOKENS 300000
/* Texts that are with the engine at once, of one request and of all: any step has a choice, and
 * chats find room in the queue. With many requests each has a part. */
#define GS_EMBED_AT_ONCE     128
#define GS_EMBED_AT_ONCE_ALL 256

/* Bits of gs_embed_fields. */
enum { GS_IN_EMBEDDINGS = 1, GS_IN_OLLAMA_EMBED = 2, GS_IN_OLLAMA_OLD = 4, GS_IN_RERANK = 8 };
extern const gs_field gs_embed_fields[];

/* What a dialect of this kind asks and how; in its gs_dialect. */
struct gs_embed_form {
    unsigned where;    /* its bit */
    const char *input; /* the field with the texts */
    bool rank;         /* pairs of a query and each text; the answers are scores */
    bool truncate;     /* by default: texts that are too long are cut */
    bool may_be_empty; /* nothing to embed has an empty answer; else it is an error */
};

/* Fields into r->e, and how many prompts there are. 0 or r->error. */
int gs_embed_read(gs_req *r);
/* As gs_req_prepare. */
int gs_embed_prepare(gs_req *r);
/* A sequence of c has ended: what its vector becomes in the answer, into c->text, or c->score.
 * v[n] is changed. 0, GS_ERR_NOMEM or GS_ERR_BACKEND (numbers that are none). */
int gs_embed_take(const gs_req *r, gs_choice *c, float *v, int32_t n);

extern const gs_dialect gs_dialect_embeddings; /* /v1/embeddings */
extern const gs_api_part gs_api_part_embeddings;

#endif
