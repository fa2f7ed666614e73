/*
 * One API request from JSON to the last byte. Owned by the event loop.
 *
 *     PREPARING  template and tokeniser (on a libuv worker when the text is long)
 *         │ gs_engine_submit, one sequence per prompt and choice
 *     SUBMITTED  waiting for the engine to admit or reject each of them: 400, 429 and 503 are
 *         │      decided here, before any header has gone out; tokens of those that run already
 *         │      are collected
 *     RUNNING    tokens -> detokeniser -> stop strings -> deltas (or one text at the end)
 *         │
 *     DONE       answered, or the client is gone; freed once every sequence is back
 *
 * Choice i belongs to prompt i / n.
 */
#ifndef GS_API_REQUEST_H
#define GS_API_REQUEST_H

#include <uv.h>

#include "api/api.h"
#include "api/outparse.h"
#include "api/params.h"
#include "api/stop.h"
#include "base/jsonw.h"
#include "load/record.h"
#include "worker/workers.h"

typedef struct gs_req gs_req;
typedef struct gs_model_entry gs_model_entry; /* models.h */

typedef struct gs_logprob_entry {
    gs_token_prob chosen;
    int32_t n_top;
    gs_token_prob top[GS_MAX_TOP_LOGPROBS];
} gs_logprob_entry;

typedef struct gs_tool_call {
    char id[32];      /* dialect's call_id_prefix and 24 hex digits */
    gs_buf name;      /* terminated */
    gs_buf arguments; /* JSON text so far; a whole object once ended */
    bool ended;
} gs_tool_call;

typedef struct gs_choice {
    gs_req *req;
    gs_seq *seq; /* NULL once it is back */
    int32_t index;
    gs_detok detok;
    gs_stop_matcher stop;
    gs_outparse parse;
    /* The answer so far, of streams too. */
    gs_buf text, reasoning;
    gs_tool_call *calls;
    int32_t n_calls, cap_calls;
    gs_logprob_entry *logprobs; /* stream: since the last delta; else of all; [n_logprobs] */
    int32_t n_logprobs, cap_logprobs;
    int32_t logprob_offset; /* characters before the delta (completions' text_offset) */
    int32_t n_output;
    int64_t last_token_ns; /* 0: none, or the gap to the next one does not count */
    bool admitted, finished;
    bool stopped;              /* a stop string came; with timings its end waits for the engine's */
    gs_explain story;          /* once the engine has ended it; id 0: not yet */
    const char *finish_reason; /* static: "stop", "length", "tool_calls" */
    /* lend.c: with the workers, whichever; and then of this machine's models. */
    gs_job job;
    bool with_workers, local;
    bool told_prompt; /* another machine has counted the prompt's tokens: */
    int32_t n_prompt, n_cached;
    float score; /* of rerank */
} gs_choice;

typedef struct gs_embed_form gs_embed_form; /* embed.h */
/* Of requests for vectors and scores (embed_in.c). */
typedef struct gs_embed_params {
    int32_t dimensions; /* 0: all */
    int32_t top_n;      /* 0: all */
    int32_t num_ctx;    /* cap of each text in tokens; 0: what the model takes */
    bool base64, truncate, return_documents;
    char user[128];
} gs_embed_params;

/* How a dialect words its answers; one static table each (openai.c). */
typedef struct gs_dialect {
    const char *id_prefix;      /* "chatcmpl-" */
    const char *call_id_prefix; /* "call_", at most 7 characters */
    const char *stream_type, *whole_type;
    void (*stream_start)(gs_req *r);
    /* One part, already added to c (c->calls[part->call]). The first one after a token carries
     * c->logprobs; a part of no text may come for their sake. */
    void (*stream_delta)(gs_req *r, gs_choice *c, const gs_part *part);
    void (*stream_finish)(gs_req *r, gs_choice *c); /* finish_reason */
    void (*stream_end)(gs_req *r);                  /* usage, terminator */
    void (*stream_error)(gs_req *r, const gs_api_error *e);
    void (*whole)(gs_req *r, gs_buf *out);
    /* Fields beyond OpenAI's, read after those into p. 0 or e->code. NULL: none. */
    int (*read)(const json_t *body, gs_gen_params *p, gs_api_error *e);
    const char *alive;           /* sign of life of a waiting stream */
    int64_t alive_after_ns;      /* of silence */
    bool prompt_only;            /* answered by whole from the prompt alone; there are no choices */
    const gs_embed_form *embeds; /* answers are vectors or scores: each choice is a text's */
} gs_dialect;

/* A stretch of an answer in dialects that number such stretches (blocks.h). */
typedef struct gs_block {
    gs_part_kind kind; /* TEXT, REASONING or CALL_BEGIN */
    int32_t call;      /* CALL_BEGIN: which */
    size_t from, to;   /* of the choice's text, reasoning or call's arguments */
} gs_block;

typedef struct gs_blocks {
    gs_block *v; /* [n] */
    int32_t n, cap;
    bool open;        /* the last one goes on */
    int64_t n_events; /* of dialects that number these, too */
} gs_blocks;

typedef enum gs_req_state {
    GS_REQ_PREPARING,
    GS_REQ_SUBMITTED,
    GS_REQ_RUNNING,
    GS_REQ_DONE
} gs_req_state;

/* What gs_req_resume needs of a request that begins anew. */
typedef struct gs_req_again {
    const gs_dialect *dialect;
    json_t *note;
    bool chat;
    char id[48];
    int64_t began_ns;
} gs_req_again;

struct gs_req {
    gs_api *api;
    gs_http_request *rq; /* NULL once answered or gone */
    const gs_dialect *dialect;
    gs_req_state state;
    gs_req *prev, *next; /* the API's list of live requests */
    char id[48];
    int64_t created_s, began_ns, last_write_ns;
    int64_t submitted_ns, first_token_ns, last_token_ns; /* 0: not yet */
    char asked_model[128];                               /* as the client spelt it, or "" */
    json_t *note; /* what the dialect keeps of the body, or NULL */
    gs_blocks blocks;
    gs_gen_params p;
    gs_embed_params e;           /* with dialect->embeds, in place of most of p */
    gs_class cls;                /* asked for; once admitted, given */
    bool class_fixed;            /* asked for by the client */
    gs_model_entry *entry;       /* of the model that answers; in use until the request is freed */
    const gs_served_model *m;    /* it */
    const char *model;           /* the name it was asked for by, as it is served */
    const gs_model_alias *alias; /* or NULL */
    /* lend.c: some remote worker has the model; without m none but these, or this machine once it
     * has loaded cold: then it begins anew. */
    bool lends;
    gs_model_entry *cold;
    uint32_t lent_model;
    gs_buf *lent; /* [n_lent] bodies for them, by prompt, or by piece of the texts */
    int32_t n_lent;
    gs_job text_job; /* the texts from n_sent on, with the workers; and then of this machine */
    bool with_workers, texts_local;
    int32_t n_embd; /* of vectors of theirs; 0: not known yet */
    uint32_t person;
    uint64_t cache_scope;
    bool has_limits;
    gs_person_config limits; /* of the person, by the key */
    /* prompts */
    size_t body_bytes; /* as it came */
    json_t *body;      /* kept while PREPARING, and with cold */
    gs_ids *prompts;   /* [n_prompts] */
    gs_buf *echo_text; /* [n_prompts], completions with echo */
    gs_guide **guides; /* [n_prompts * p.n] until the sequences have them; NULL: unconstrained */
    int32_t n_prompts;
    int32_t context;   /* tokens that prompt and answer may have together */
    bool in_reasoning; /* the prompt opened the reasoning part */
    uv_work_t work;
    bool in_work;
    gs_api_error error; /* of PREPARING, or the first rejection */
    /* choices */
    gs_choice *choices;                              /* [n_choices] */
    int32_t n_choices, n_decided, n_finished, n_out; /* n_out: sequences with the engine */
    int32_t n_sent;            /* embeds: the choices before it have been with the engine */
    gs_record_event texts;     /* of the texts that have ended and were not recorded yet */
    int32_t n_ahead;           /* sequences that waited when it came */
    int64_t predicted_ttft_ns; /* -1: no estimate */
    int32_t n_found;           /* prompt tokens in the prefix cache when it came */
    bool late;
    int32_t n_cached; /* of the first choice of each prompt, summed */
    bool headers_sent, in_event;
    gs_buf out, piece, shown; /* scratch for one event, one token's text, what of it is shown */
};

/* Takes rq, body (OpenAI's form, whatever the dialect) and note (NULL: none). Answers by itself in
 * every case. */
void gs_req_start(gs_api *a, gs_http_request *rq, json_t *body, json_t *note, const gs_dialect *d,
                  bool chat);
/* It was parked until its model was there. Takes rq, body and again's note. */
void gs_req_resume(gs_api *a, gs_http_request *rq, json_t *body, const gs_req_again *again);
/* r->cold is to answer it: r is over, and what it is for waits until that is loaded. */
void gs_req_park(gs_req *r);
void gs_req_event(gs_req *r, const gs_event *ev);
void gs_req_gone(gs_req *r); /* the client went away */
/* Somebody has had enough of it: it ends with what it has said so far, or, with nothing that can
 * stand alone, with an error. */
void gs_req_stop(gs_req *r);
void gs_req_tick(gs_req *r, int64_t now_ns);        /* signs of life */
void gs_req_fail(gs_req *r, const gs_api_error *e); /* ends it with an error, cancels the rest */
/* For dialects: sends r->out. A stream with a hole must not look whole: without memory it is cut.
 */
void gs_req_write(gs_req *r);
void gs_req_cut(gs_req *r); /* resets the client's connection and cancels everything */
/* 0 when the body's model is the one there is, or absent; else e->code. */
int gs_api_check_model(const gs_api *a, const json_t *body, gs_api_error *e);

/* Tokens of prompt i, as whoever answered has counted them. */
int32_t gs_req_n_prompt(const gs_req *r, int32_t i);

/* For lend.c: what becomes of choices that are not with the engine. Between hold and release r is
 * not freed; release may free it. */
void gs_req_hold(gs_req *r);
void gs_req_release(gs_req *r);
void gs_req_admitted(gs_req *r, gs_choice *c, const gs_admission *adm);
void gs_req_text_admitted(gs_req *r, gs_choice *c, const gs_admission *adm);
/* 0, or a code that ends it: no memory, or enough. */
int gs_req_lent_part(gs_req *r, gs_choice *c, gs_part_kind kind, const char *data, size_t n);
void gs_req_lent_end(gs_req *r, gs_choice *c, const char *reason);
void gs_req_lent_failed(gs_req *r, gs_choice *c, const gs_api_error *e);
void gs_req_send_texts(gs_req *r);
void gs_req_texts_done(gs_req *r, int32_t n);

/* openai.c */
extern const gs_dialect gs_dialect_chat, gs_dialect_completion;

/* errors.c: one shape for each dialect, chosen by the request's path. */
typedef enum gs_error_shape {
    GS_ERRORS_OPENAI,
    GS_ERRORS_OLLAMA,
    GS_ERRORS_ANTHROPIC
} gs_error_shape;
gs_error_shape gs_api_error_shape(const char *path);
/* The members of an error object that w has open. */
void gs_api_error_members(gs_jsonw *w, gs_error_shape shape, const gs_api_error *e);
void gs_api_error_body(gs_error_shape shape, const gs_api_error *e, gs_buf *out);
/* Replies with an error and releases rq. */
void gs_api_reply_error(gs_http_request *rq, const gs_api_error *e);

/* How the answers are to be read. A call that a grammar forces, or that may take the place of a
 * constrained answer, is bare JSON (constrain.c). */
gs_outparse_config gs_req_parser_config(const gs_req *r); /* prepare.c */
/* constrain.c: makes r->guides where the output is constrained. As gs_req_prepare. */
int gs_req_constrain(gs_req *r);
bool gs_req_is_constrained(const gs_req *r);

/* prepare.c: body -> prompts; pure work on r, may run on a worker thread. 0 or r->error. */
int gs_req_prepare(gs_req *r);

#endif
