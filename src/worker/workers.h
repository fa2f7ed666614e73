/*
 * The machines that gamasot lends work to: connections, probes, hooks. Which request goes where and
 * when is decided by sched/place.h; this object asks it and does what it says.
 *
 *     gs_job ──gs_workers_submit──► waits HERE (sched/place.h) ──► gs_remote: parts, end
 *                                                              └─► on->local: for the engine
 *
 * The local worker is one among them, so that this machine's load counts, too: who is handed a job
 * by on->local tells its tokens and its end. Without any remote worker nobody need ask.
 *
 * Owner: the event-loop thread.
 */
#ifndef GS_WORKER_WORKERS_H
#define GS_WORKER_WORKERS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "config/config.h"
#include "worker/dialect.h"
#include "worker/remote.h"
#include "worker/worker.h"

typedef struct gs_workers gs_workers;

typedef struct gs_worker_model {
    uint32_t model; /* its number here (gs_workers_model) */
    char its_name[128];
} gs_worker_model;

/* A remote one. */
typedef struct gs_worker {
    struct gs_worker *next;
    const char *name; /* lives as long as the gs_workers */
    int32_t index;    /* in sched/place.h */
    gs_config_worker cfg;
    const gs_worker_dialect *dialect;
    gs_worker_model models[GS_PLACE_MODELS];
    int n_models;
    char why[240]; /* the latest failure, for people; "": none since it was up */
    int32_t foreign_running, foreign_waiting; /* as its metrics say, ours included; -1: not told */
    uint64_t prompt_tokens, output_tokens;    /* so far */
    struct gs_worker_impl *impl;
} gs_worker;

typedef struct gs_job gs_job;

typedef struct gs_job_handler {
    void (*taken)(gs_job *j); /* the worker has begun to answer */
    int (*part)(gs_job *j, gs_remote_part_kind kind, const char *data, size_t n);
    int (*vector)(gs_job *j, int32_t index, float *v, int32_t n);
    /* It is for the models of this machine; gs_workers_local_end ends it, or cancel. */
    void (*local)(gs_job *j);
    /* Once, unless it went to local: then the job is the caller's again. */
    void (*end)(gs_job *j, const gs_remote_end *end);
} gs_job_handler;

/* One answer, or the vectors of some texts. The caller's storage. */
struct gs_job {
    const gs_job_handler *on;
    void *owner;
    uint32_t model;
    gs_remote_kind kind;
    gs_class cls;
    uint32_t person;
    uint64_t cache_scope;
    bool only_local, only_remote; /* who can't have it */
    int32_t n_prompt, max_output; /* tokens, about */
    int32_t max_parts;            /* pieces of text that may come */
    int32_t n_texts;
    bool has_seed;
    int64_t seed;
    const char *members; /* of the body, JSON without braces, what is said first; borrowed */
    size_t n_members;
    int64_t arrival_ns;
    /* The workers'. */
    gs_job *next;
    uint64_t id;
    int32_t attempt;
    const gs_worker *worker; /* that has it; NULL: none */
    const char
        *worker_name; /* that has it, or had it last, as gs_worker's; NULL: local, none yet */
    gs_place_why why;
    gs_remote *remote;
    int64_t placed_ns, first_ns, predicted_ttft_ns; /* 0, 0, -1: not yet */
    int64_t charged_ns;
    int32_t n_parts;
    bool paused, held; /* by somebody; with its class */
};

typedef struct gs_workers_config {
    uv_loop_t *loop;
    const gs_config_worker *workers; /* [n], copied */
    size_t n;
    const gs_class_config *classes; /* as gs_place_config */
    int32_t max_requests;
    uint32_t max_persons;
    /* What an attempt at a remote worker costs a person's account. */
    void (*charge)(void *arg, uint32_t person, int64_t ns);
    void *arg;
} gs_workers_config;

/* gs_workers_close in every case but GS_ERR_NOMEM, when *out is NULL. */
int gs_workers_create(const gs_workers_config *cfg, gs_workers **out, char *err, size_t errlen);
/* Ends what runs (nothing is told) and closes its handles, which takes a turn of the loop. */
void gs_workers_close(gs_workers *ws);
void gs_workers_free(gs_workers *ws); /* after that; NULL: nothing */

/* What this machine itself has: models by their names, sequences at once. */
int gs_workers_set_local(gs_workers *ws, const char *const *names, int n, int32_t max_seqs);
/* How long that model of it would take to be in memory; 0: it is. */
void gs_workers_set_load(gs_workers *ws, uint32_t model, int64_t load_ns);
int32_t gs_workers_local(const gs_workers *ws); /* index of this machine; -1: not told yet */
bool gs_workers_any(const gs_workers *ws);      /* remote ones */
/* Adds one while the server runs. Takes cfg's contents in any case. GS_ERR_EXISTS,
 * GS_ERR_INVALID, GS_ERR_OVERLOADED (too many), GS_ERR_IO (a file), GS_ERR_NOMEM. */
int gs_workers_add(gs_workers *ws, gs_config_worker *cfg, char *err, size_t errlen);
/* The file's workers are those of list from now on, whose contents are taken in any case: new ones
 * are added, those that differ changed, the others removed; what runs goes on. All of it, or
 * nothing with a code and a sentence as of add. Those added by command stay, unless list has their
 * names. */
int gs_workers_reload(gs_workers *ws, gs_config_worker *list, size_t n, char *err, size_t errlen);
/* Remote, by name; NULL: none, or it is being removed. */
gs_worker *gs_workers_find(const gs_workers *ws, const char *name);
gs_worker *gs_workers_first(const gs_workers *ws); /* remote; then ->next */
void gs_workers_drain(gs_workers *ws, const gs_worker *w, bool drain);
/* It gets nothing more, ends what it has, and is forgotten then. */
void gs_workers_remove(gs_workers *ws, gs_worker *w);
const gs_place *gs_workers_place(const gs_workers *ws);
/* As gs_place_set_counter. */
void gs_workers_set_account(gs_workers *ws, uint32_t person, double counter_ns, double weight);

/* The number of a model that some remote worker has, there or not, and the name that lives as long
 * as ws. Also for "NAME:latest". False: none has it. */
bool gs_workers_model(const gs_workers *ws, const char *want, uint32_t *model, const char **name);
/* The i-th model that any of them has, each once; NULL: no more. */
const char *gs_workers_model_at(const gs_workers *ws, int i);
const char *gs_workers_model_name(const gs_workers *ws, uint32_t model); /* of a number */
uint32_t gs_workers_model_number(gs_workers *ws, const char *name); /* of any name; 0: no room */

/* GS_OK, or as gs_place_submit and j stays the caller's. Handlers are never called from inside. */
int gs_workers_submit(gs_workers *ws, gs_job *j);
/* Ends it wherever it is; nothing is heard any more. Also from inside taken, part and vector. */
void gs_workers_cancel(gs_workers *ws, gs_job *j);
/* It goes nowhere, and nothing more of its answer is taken, or again. Not of one that went to
 * local. */
void gs_workers_pause(gs_workers *ws, gs_job *j, bool paused);
/* The same for classes, 1 << gs_class each, from now on; those at local are the engine's affair. */
void gs_workers_hold(gs_workers *ws, uint32_t classes);
/* Of a job that went to local. */
void gs_workers_local_tokens(gs_workers *ws, gs_job *j, int32_t n);
void gs_workers_local_end(gs_workers *ws, gs_job *j);

#endif
