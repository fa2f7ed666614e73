/*
 * What is special to the servers that gamasot lends work to. All of them answer in OpenAI's dialect
 * (chat completions and completions as event streams, embeddings, a list of models) and all of them
 * give up a request whose connection is closed, so neither has a column: what a server can't do,
 * such as embeddings without the option for them, is its answer with an error.
 *
 * Sources: llama.cpp tools/server/README.md; vLLM docs, "OpenAI-compatible server" and "Production
 * metrics"; Ollama docs/openai.md.
 */
#ifndef GS_WORKER_DIALECT_H
#define GS_WORKER_DIALECT_H

#include <stddef.h>

typedef struct gs_worker_dialect {
    const char *name;     /* as the configuration has it */
    const char *owned_by; /* how its list of models gives it away; NULL: it does not */
    /* Members that every request for an answer gets, as JSON without braces; NULL: none. */
    const char *extra;
    /* A member that takes a number, less is sooner; only where the configuration says that it
     * counts, because vLLM refuses it otherwise. NULL: there is none. */
    const char *priority;
    /* A member that keeps persons apart in its prefix cache; NULL: there is none, and the cache is
     * everybody's who may use the worker. */
    const char *cache_salt;
    /* GET metrics_path: gauges of what it runs and what waits in it; NULL: it has none. */
    const char *metrics_path, *running, *waiting;
} gs_worker_dialect;

/* The i-th row, in the order of the option `dialect` without `auto`; NULL: no more. */
const gs_worker_dialect *gs_worker_dialect_at(size_t i);
/* By "owned_by" of a listed model; the general one for what is not known. Never NULL. */
const gs_worker_dialect *gs_worker_dialect_of(const char *owned_by);
/* The value of a gauge in Prometheus's text, summed over its labels; -1: it is not there. */
double gs_worker_gauge(const char *text, size_t n, const char *name);

#endif
