/*
 * Recording: the server's own arrivals as a trace (load/trace.h), for replaying a family's real
 * load. What is kept: times, class, the person as a number, token counts, and a salted hash for
 * each block of prompt and answer. Never text, never names; the salt is made at each start and
 * kept nowhere, so nobody can later ask whether some text was among them.
 *
 * gs_recorder_add copies the tokens and returns; a thread of its own hashes and writes. When more
 * than a bounded number wait, further ones are counted and left out. Each start, and each quarter
 * of max_bytes, begins a file trace-DATE-TIME.jsonl; the oldest ones go when all together are
 * larger.
 */
#ifndef GS_LOAD_RECORD_H
#define GS_LOAD_RECORD_H

#include "load/trace.h"

typedef struct gs_recorder gs_recorder;

typedef struct gs_record_config {
    const char *dir;      /* of the files; made by the caller */
    uint64_t max_bytes;   /* of all files */
    int32_t block_tokens; /* of a hash */
} gs_record_config;

typedef struct gs_record_event {
    int64_t arrival_ns, end_ns; /* gs_now_ns */
    gs_class cls;
    uint32_t person;
    gs_trace_api api;
    bool stream, cancelled;
    int32_t n_texts; /* EMBEDDINGS: of about n_prompt tokens each */
    int32_t n_prompt, n_output, max_output;
    int64_t deadline_ns; /* from arrival; 0: none */
    /* [n_prompt + n_output], of the call. NULL with EMBEDDINGS: texts that become vectors leave
     * nothing in the prefix cache. */
    const int32_t *tokens;
} gs_record_event;

#define GS_RECORD_TEXTS 255 /* of one event: what a line of a trace may hold */

/* Starts the thread and a new file. GS_ERR_IO, GS_ERR_NOMEM. */
int gs_recorder_create(const gs_record_config *cfg, gs_recorder **out, char *err, size_t errlen);
/* A sequence, or a request's texts, have ended. Any one thread. */
void gs_recorder_add(gs_recorder *r, const gs_record_event *e);
uint64_t gs_recorder_dropped(const gs_recorder *r); /* left out so far */
/* Writes what waits, then ends. */
void gs_recorder_free(gs_recorder *r);

#endif
