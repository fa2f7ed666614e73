/*
 * Many requests to a server, one after another with a few open at a time: answers come in the order
 * of asking, and what fails because the server is busy, restarting or gone for a while is asked
 * again. Blocking; one thread.
 */
#ifndef GS_CLI_JOBS_H
#define GS_CLI_JOBS_H

#include <stdbool.h>

#include "base/jsonw.h"
#include "cli/http_client.h"
#include "config/config.h"

#define GS_JOBS_MAX_OPEN 16

typedef struct gs_jobs {
    gs_http_target target;
    const char *path; /* POST */
    int n_open;       /* at a time, 1..GS_JOBS_MAX_OPEN */
    int patience_s;   /* of failures in a row, after which it gives up */
    /* 1: *body is the next request; 0: there is no more; or a code. */
    int (*ask)(void *arg, gs_buf *body, char *err, size_t errlen);
    /* In the order of asking, whatever the status but 429 and 503. 0, or a code that ends all. */
    int (*answer)(void *arg, const gs_http_answer *a, char *err, size_t errlen);
    void *arg;
} gs_jobs;

int gs_jobs_run(const gs_jobs *j, char *err, size_t errlen);

/* The sentence of an error answer in OpenAI's or Ollama's shape, into out; or its status. */
void gs_jobs_error_text(const gs_http_answer *a, char *out, size_t n);

/* A line on the terminal, at most ten times a second; nothing where stderr is none. */
typedef struct gs_progress {
    const char *what;           /* "texts" */
    int64_t n_total, n_done;    /* whole work */
    int64_t n_before;           /* of n_done, found done at the start: not in the rate */
    int64_t began_ns, shown_ns; /* by gs_now_ns */
} gs_progress;

void gs_progress_begin(gs_progress *p, const char *what, int64_t n_total, int64_t n_before);
void gs_progress_add(gs_progress *p, int64_t n);
/* Clears the line and says what was done. */
void gs_progress_end(gs_progress *p);

/* --url, else this machine's address with server.port; --key, else GAMASOT_API_KEY. key is
 * borrowed. 0, or GS_ERR_INVALID. */
int gs_jobs_target(const gs_config *cfg, const char *url, const char *key, gs_http_target *out,
                   char *err, size_t errlen);
/* The model that --model names, which is the server's to know; NULL: its default. */
const char *gs_jobs_model(const gs_config *cfg);
/* Begins a request's body: the object and, if one is named, its model. */
void gs_jobs_begin_body(const gs_config *cfg, gs_buf *body, gs_jsonw *out);

#endif
