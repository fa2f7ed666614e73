/* Inside of the simulator: sim.c plays a trace on the local device, sim_workers.c adds remotes.
 * Private to sched/. */
#ifndef GS_SCHED_SIM_IMPL_H
#define GS_SCHED_SIM_IMPL_H

#include "base/rng.h"
#include "sched/sim.h"

#define SIM_TEXTS 256 /* of one request: ids are request * SIM_TEXTS + text + 1 */

typedef struct sim_workers sim_workers;

typedef enum sim_event_kind {
    SIM_ARRIVE,
    SIM_CANCEL,
    /* of remotes (sim_workers.c) */
    SIM_REACH, /* a request gets there: at is the remote, mark the attempt */
    SIM_STEP,  /* its step ends; mark: of which life */
    SIM_PROBE, /* an answer to a probe, or mark 0: none came */
    SIM_FAULT, /* mark: which */
    SIM_MEND
} sim_event_kind;

typedef struct sim_event {
    int64_t t_ns;
    uint64_t ordinal; /* ties in the order they were made */
    sim_event_kind kind;
    int32_t request, at;
    int32_t mark;
} sim_event;

/* One model. */
typedef struct sim_lane {
    const gs_sim_device *device;
    gs_kv *kv;
    gs_item_result *results; /* [max_seqs] */
    double done_share;       /* of the suspended step */
    double step_ns;          /* its whole time */
} sim_lane;

struct gs_sim {
    gs_sim_config cfg;
    const gs_sim_request *requests;
    int32_t n;
    gs_sim_outcome *outcomes;       /* [n] */
    int32_t **tokens;               /* [n] the request's, while it lives */
    int32_t *first_child, *sibling; /* [n] who comes after it */
    sim_event *heap;
    int32_t n_events, max_events;
    uint64_t last_ordinal;
    sim_lane lanes[2];
    gs_sched *scheds[2]; /* of the lanes */
    int32_t n_lanes;
    gs_plan beside; /* of the one lane, runs at the same time: n_items > 0 */
    int64_t beside_ns, beside_end_ns;
    gs_accounts *accounts;
    sim_workers *workers; /* NULL: there are no remotes */
    int32_t n_closed;
    int64_t closed_ns; /* the latest one */
    gs_rng rng;
    int64_t now_ns;
    uint64_t n_computed;
    uint32_t gaps[GS_CLASS_COUNT][GS_SIM_GAP_BINS];
    int64_t gap_max_ns[GS_CLASS_COUNT];
};

static inline int32_t sim_n_texts(const gs_sim_request *q) {
    return q->n_texts > 0 ? q->n_texts : 1;
}
/* Tokens of each of its texts, answer included. */
static inline int32_t sim_n_room(const gs_sim_request *q) {
    return q->n_prompt + (q->n_texts > 0 ? 0 : q->n_output);
}
/* The sequence of one of a request's texts; tokens, id and user are the caller's to set. */
gs_seq_desc sim_desc(const gs_sim *m, int32_t r, int64_t now_ns);
int32_t sim_token_at(const gs_sim *m, int32_t r, int32_t text, int32_t i);
double sim_step_time(gs_sim *m, const gs_sim_device *d, const gs_plan *plan);
void sim_push(gs_sim *m, sim_event e); /* its ordinal is set */
void sim_note_token(gs_sim *m, int32_t r, int64_t now_ns);
void sim_close(gs_sim *m, int32_t r, gs_sim_state state, int64_t now_ns);
/* Hands a request to the local scheduler: GS_OK, or why not, with *retry_ns for GS_ERR_OVERLOADED.
 * *partly: some of its texts were taken and are being cancelled. */
int sim_submit_local(gs_sim *m, int32_t r, int64_t now_ns, int64_t *retry_ns, bool *partly);
void sim_cancel_local(gs_sim *m, int32_t r, int64_t now_ns);

/* ---- sim_workers.c; all but create may be called without workers ---- */
int sim_workers_create(gs_sim *m);
void sim_workers_free(gs_sim *m);
/* False: it is the local scheduler's, as without workers. */
bool sim_workers_arrive(gs_sim *m, int32_t r, int64_t now_ns);
void sim_workers_cancel(gs_sim *m, int32_t r, int64_t now_ns);
int sim_workers_event(gs_sim *m, const sim_event *e); /* one of those of remotes */
/* Acts of placement until there are none. */
int sim_workers_pump(gs_sim *m, int64_t now_ns);
int64_t sim_workers_wake_ns(const gs_sim *m);
void sim_workers_local_token(gs_sim *m, int32_t r, int64_t now_ns);
void sim_workers_local_end(gs_sim *m, int32_t r, int64_t now_ns);
void sim_workers_charged(gs_sim *m); /* persons' counters have moved */
int sim_workers_check(const gs_sim *m, char *err, size_t errlen);

#endif
