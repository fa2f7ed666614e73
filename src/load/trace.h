/*
 * Traces of a household's traffic: one request a line, JSON (bench/family/README.md lists the
 * fields). `gamasot bench` plays them against a server, `gamasot sim` and `gamasot tune` against
 * the scheduler; the server records its own arrivals in the same form (load/record.h).
 *
 * Beside the household's fields a request may have "block_tokens" and "blocks": a salted hash for
 * each whole block of its prompt and answer, chained, so that equal hashes mean equal beginnings.
 * That is all a recorded trace says about text, and all the prefix cache needs to know.
 *
 * Owner: one thread. Times in seconds, lengths in tokens.
 */
#ifndef GS_LOAD_TRACE_H
#define GS_LOAD_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "sched/sim.h"

typedef enum gs_trace_api {
    GS_TRACE_CHAT,
    GS_TRACE_COMPLETIONS,
    GS_TRACE_EMBEDDINGS,
    GS_TRACE_API_COUNT
} gs_trace_api;

typedef struct gs_trace_request {
    double t_s;   /* arrival from the start; nominal with after */
    char *id;     /* unique */
    int32_t name; /* index of persons */
    gs_class cls;
    gs_trace_api api;
    int32_t n_prompt;    /* of the whole prompt; of each text for embeddings */
    int32_t n_prefix;    /* of it, repeats something: */
    char *shared_prefix; /* an app's instructions, by name, or NULL */
    char *conversation;  /* its name, or NULL; */
    int32_t turn;        /* then: from turn 1 on the prefix is the conversation so far */
    int32_t n_output;    /* wanted; 0 for embeddings */
    int32_t n_texts;     /* of an embeddings request; else 0 */
    bool stream;
    double cancel_after_s; /* from when it is sent; 0: never */
    double deadline_s;     /* from arrival; 0: none */
    int32_t after;         /* index of the request that must end first, or -1 */
    double think_s;        /* after its end */
    uint64_t *blocks;      /* [n_blocks] */
    int32_t n_blocks, block_tokens;
} gs_trace_request;

#define GS_TRACE_PERSONS  64
#define GS_TRACE_REQUESTS 1000000

typedef struct gs_trace {
    gs_trace_request *requests; /* [n], in the file's order */
    int32_t n, cap;
    char *persons[GS_TRACE_PERSONS]; /* [n_persons]; 0 is "" */
    int32_t n_persons;
} gs_trace;

const char *gs_trace_api_name(gs_trace_api a); /* "chat"; static */

/* Empty. */
void gs_trace_init(gs_trace *t);
void gs_trace_free(gs_trace *t);
/* Reads lines; an error names line and field. t is empty after a failure. */
int gs_trace_read(const char *path, gs_trace *t, char *err, size_t errlen);
int gs_trace_parse(const char *text, size_t n, gs_trace *t, char *err, size_t errlen);
int gs_trace_write(const gs_trace *t, gs_buf *out);
/* Adds a request with an id "KIND-N" (N from 1) and the defaults: chat, streamed, after nothing.
 * NULL: out of memory or too many. Valid until the next one is added. */
gs_trace_request *gs_trace_add(gs_trace *t, const char *kind, int32_t number);
/* The person's index, added if new; -1: too many (or out of memory). */
int32_t gs_trace_person(gs_trace *t, const char *name);
/* Seconds until the last nominal arrival. */
double gs_trace_seconds(const gs_trace *t);
/* Keeps the requests for which keep[i]; what waited for one that goes starts at its own time. */
void gs_trace_filter(gs_trace *t, const bool *keep);
/* Makes every request fit a context, as clients do that know it: long texts are cut, and a turn
 * that would not fit begins its conversation anew. Returns how many were changed. */
int32_t gs_trace_clip(gs_trace *t, int32_t max_context);

/* ---- for the simulator ---------------------------------------------------------------------- */

typedef struct gs_trace_sim {
    gs_sim_request *requests; /* [n]; blocks belong to the trace */
    int32_t n;
    uint32_t n_persons;
} gs_trace_sim;

/* speed divides arrival and think times: the load's multiplier. own_scopes: nobody's prompt is
 * found by others, as without a key that shares a scope; else voice has one for all. GS_ERR_NOMEM.
 */
int gs_trace_to_sim(const gs_trace *t, double speed, bool own_scopes, gs_trace_sim *out);
void gs_trace_sim_free(gs_trace_sim *s);

/* ---- scenarios ------------------------------------------------------------------------------ */

typedef struct gs_scenario_options {
    uint64_t seed;
    double scale;        /* of arrival rates */
    double tokens_scale; /* of lengths */
    double duration_s;   /* 0: the scenario's own */
} gs_scenario_options;

/* The names of bench/family; the same rates and lengths, other random numbers. NULL: no more. */
const char *gs_scenario_name(int i);
const char *gs_scenario_about(int i);
/* GS_ERR_NOT_FOUND, GS_ERR_INVALID, GS_ERR_TOO_LARGE, GS_ERR_NOMEM. */
int gs_scenario_generate(const char *name, const gs_scenario_options *o, gs_trace *t, char *err,
                         size_t errlen);

/* ---- public traces -------------------------------------------------------------------------- */

/*
 * "azure": CSV with TIMESTAMP, ContextTokens, GeneratedTokens (AzurePublicDataset, LLM inference
 * traces 2023 and 2024). "burstgpt": CSV with Timestamp, Model, Request tokens, Response tokens,
 * Total tokens, Log Type. "mooncake": JSON lines with timestamp (ms), input_length, output_length,
 * hash_ids (of 512 tokens each). Columns are found by name. Requests become chats of one person,
 * or of the conversation's where the trace has one.
 */
int gs_trace_import(const char *format, const char *path, gs_trace *t, char *err, size_t errlen);

#endif
