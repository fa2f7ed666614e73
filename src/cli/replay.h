/*
 * Plays a trace against a server that speaks OpenAI's dialect, and measures it. Open loop where
 * the trace says so: a request is sent when it is due, whatever became of those before it.
 * Conversations are closed loops: a turn is due some thinking time after the answer before it, and
 * carries what was really said.
 *
 * One thread, a libuv loop of its own, a connection for each request.
 */
#ifndef GS_CLI_REPLAY_H
#define GS_CLI_REPLAY_H

#include "load/measure.h"

typedef struct gs_replay_config {
    const char *url;              /* http://HOST[:PORT][/v1] */
    const char *model;            /* NULL: the first one the server lists */
    const char *embeddings_url;   /* NULL: url */
    const char *embeddings_model; /* NULL: model */
    const char *key;              /* NULL: none */
    bool key_per_person;          /* sk-family-PERSON */
    const char *class_header;     /* sends the class in it; NULL: does not */
    const char *class_field;      /* in this field of the body; NULL: does not */
    bool user_field;              /* sends the person as "user" */
    bool ignore_eos;
    double speed;           /* divides arrival and think times */
    double time_limit_s;    /* of the run; 0: none */
    double timeout_s;       /* of one request */
    int retries;            /* after 429 or 503 with Retry-After */
    double tokens_per_word; /* 0: asks the server's /tokenize, else 1 */
    uint64_t salt;
    bool no_warm_up, quiet;
    bool warm_prefixes; /* each person's shared prefixes are computed before the clock starts */
} gs_replay_config;

/* "voice.ttft=0.5" into its target. 0 or GS_ERR_INVALID. */
int gs_load_parse_target(const char *text, gs_load_target targets[GS_CLASS_COUNT]);
void gs_replay_defaults(gs_replay_config *c);
/* run->trace, label, targets and seed are the caller's; records and the rest are filled in. */
int gs_replay(const gs_trace *t, const gs_replay_config *c, gs_load_run *run, char *err,
              size_t errlen);

#endif
