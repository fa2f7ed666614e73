/*
 * Requests that other machines answer (worker/workers.h), as far as the API is concerned.
 *
 * The seam is between a request's choices and whoever fills them. Above it everything is the same
 * for both: a body in OpenAI's form, whatever the dialect (which is what a remote server takes),
 * and parts of an answer - text, reasoning, calls - that the dialect words. Below it the engine
 * gives tokens, which become parts by detokeniser and parser; a remote server gives parts. So no
 * dialect of ours knows of workers, and no worker of our dialects. Playing events of an engine
 * instead would need tokens, of tokenisers that a remote model's name does not bring with it.
 *
 *     gs_req_prepare ─► gs_lend_prepare: the body for workers, before templates rewrite it
 *     submit         ─► gs_lend: each choice is a gs_job, if there are workers
 *                           on->local: its sequence goes to the engine as ever
 *                           parts, end: here, into the choice
 *
 * Without workers nothing of this is ever called. Owner: the event-loop thread.
 */
#ifndef GS_API_LEND_H
#define GS_API_LEND_H

#include "api/request.h"
#include "api/route.h"

struct gs_api;

/* Creates a->workers from the configuration; after the models. */
int gs_lend_create(struct gs_api *a, char *err, size_t errlen);

/* This machine is one of the workers from when its models are known; told once. */
void gs_lend_tell_local(struct gs_api *a);
/* The number of a model that remote workers have, by its name or an alias of it, and the name that
 * it was found by. alias: NULL for the model itself. False: none has it. */
bool gs_lend_model(const struct gs_api *a, const char *want, uint32_t *model, const char **name,
                   const gs_model_alias **alias);
bool gs_lend_knows(const struct gs_api *a, const char *want);
/* The i-th name, models' and then aliases', of what only remote workers have; NULL: no more. */
const char *gs_lend_name_at(const struct gs_api *a, int i);
/* Finds the model of a request: r->lends, and without a local one r->model and r->alias. */
void gs_lend_find(gs_req *r, const char *want);
/* Whether a remote worker has the model m of this machine, which is not in memory: then the request
 * may go there, and r->cold says who else. */
bool gs_lend_cold(gs_req *r, gs_model_entry *m);
/* Whether that can be left to the workers: one answer, and nothing in it that only this machine
 * can do. */
bool gs_lend_fits(const gs_req *r);
/* Whether a request for m, which is not in memory, is to begin all the same. */
bool gs_lend_takes(const struct gs_api *a, const gs_model_entry *m, const gs_route *route,
                   const json_t *body);
/* Bodies for workers; any thread. 0 or r->error. */
int gs_lend_prepare(gs_req *r);
void gs_lend_deinit(gs_req *r);

/* True: the choice is with the workers. False: r has to find it another place (or has failed, with
 * r->error set). */
bool gs_lend(gs_req *r, gs_choice *c);
/* The same for the texts of a request for vectors, from r->n_sent on. */
bool gs_lend_texts(gs_req *r);
/* Takes the choice back, wherever it is; its sequence, if it is with the engine, is r's affair. */
void gs_lend_cancel(gs_req *r, gs_choice *c);
void gs_lend_cancel_texts(gs_req *r);
/* Whether any part of it waits for a worker or is with another machine, */
bool gs_lend_has(const gs_req *r);
/* and pauses those parts, or lets them go on. */
void gs_lend_pause(gs_req *r, bool paused);
/* An answer that has waited for a while gets its headers, so that its client stays. */
void gs_lend_tick(gs_req *r, int64_t now_ns);
/* Of what is with the engine by the workers' leave. */
void gs_lend_local_token(gs_req *r, gs_choice *c);
void gs_lend_local_end(gs_req *r, gs_choice *c);

/* Adds records of what is with remote workers, or waits for any, to those of the engine. */
void gs_lend_records(const struct gs_api *a, gs_query *q);
/* The choice behind such a record's id. NULL: none. */
const gs_req *gs_lend_find_seq(const struct gs_api *a, uint64_t id, int32_t *index);

#endif
