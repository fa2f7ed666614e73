/*
 * Discrete-event simulator: a trace of requests through the real scheduler and KV ledger, on a
 * device that is a step-time model with noise. One thread, no clock, seeded: the same input gives
 * the same decisions on every machine. `gamasot sim`, the tuner and the tests are its users.
 *
 * The device differs from what the scheduler believes: the scheduler starts from the device's
 * model times model_error and has to learn. Steps that may yield are run layer by layer, as the
 * engine runs them, and in mode split a step beside the others ends between two of them, as there.
 *
 * With remotes it is the local worker of several: each remote is a device of its own with a server
 * that takes requests as they come (first come, first served), beyond a network, with faults on
 * request. sched/place.h decides who gets what, as in the server.
 */
#ifndef GS_SCHED_SIM_H
#define GS_SCHED_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/place.h"
#include "sched/sched.h"

typedef struct gs_sim_request {
    int64_t t_ns;     /* arrival; ignored with after */
    int32_t after;    /* index of an earlier request that must end first; -1 */
    int64_t think_ns; /* after its end */
    int32_t model;    /* 0; 1: the second one */
    uint32_t person;
    gs_class cls;
    bool class_fixed;
    uint64_t scope;          /* prefix-cache name space */
    int32_t n_prompt;        /* of each text with n_texts */
    int32_t n_prefix;        /* leading tokens that repeat something: */
    uint64_t prefix_key;     /* an app's instructions (not 0), */
    int32_t prefix_of;       /* or this request's prompt and answer; -1 */
    int32_t n_output;        /* ignored with n_texts */
    int32_t n_texts;         /* > 0: so many prefill-only sequences, done when all are */
    int64_t cancel_after_ns; /* 0: never */
    int64_t deadline_ns;     /* from arrival; 0: none */
    /* Recorded traces: what the text's blocks of block_tokens are, prompt and answer, instead of
     * the fields above; the rest of the text is its own. Borrowed. */
    const uint64_t *blocks; /* [n_blocks] */
    int32_t n_blocks, block_tokens;
} gs_sim_request;

typedef struct gs_sim_device {
    gs_cost cost;     /* the truth */
    double noise;     /* relative, uniform on both sides */
    double slow_rate; /* share of steps that take 4x, as when another program runs */
    int32_t n_layers;
    int32_t n_threads; /* fewer than 2: no two steps at once */
    uint32_t n_blocks;
    int32_t block_tokens, max_seqs, max_batch_tokens, prefill_chunk, max_context;
} gs_sim_device;

typedef enum gs_sim_fault_kind {
    GS_SIM_KILL, /* all it has is lost, connections break and are refused */
    GS_SIM_HANG, /* it accepts and says nothing; then goes on */
    GS_SIM_SLOW  /* steps take factor as long */
} gs_sim_fault_kind;

typedef struct gs_sim_fault {
    gs_sim_fault_kind kind;
    int64_t at_ns, until_ns;
    double factor; /* of SLOW */
} gs_sim_fault;

typedef struct gs_sim_remote {
    gs_sim_device device;
    gs_place_worker worker;     /* models are the simulator's: the first one */
    int64_t latency_ns;         /* until a request is there, and a probe's answer back */
    const gs_sim_fault *faults; /* [n_faults], borrowed */
    int32_t n_faults;
} gs_sim_remote;

typedef struct gs_sim_config {
    gs_sim_device device;
    const gs_sim_device *second;  /* another model on the same machine; NULL: none */
    const gs_sim_remote *remotes; /* [n_remotes], at most GS_PLACE_WORKERS - 1 */
    int32_t n_remotes;
    uint32_t local_only;            /* of placement; 1 << gs_class each */
    bool round_robin;               /* a plain proxy instead of placement: to each in turn */
    const gs_policy_ops *policy;    /* NULL: the default */
    const gs_class_config *classes; /* NULL: the defaults */
    const gs_slo_config *slo;       /* NULL: the defaults */
    uint32_t n_persons;
    const double *weights; /* [n_persons]; NULL: all 1 */
    int32_t max_waiting;
    int32_t max_tries;  /* a refused request comes back after Retry-After so often */
    double model_error; /* 0: the scheduler starts calibrated; else it believes truth * error */
    int64_t end_ns;     /* stop then; 0: when everything has ended */
    uint64_t seed;
    bool check; /* all invariants after every step (slow) */
} gs_sim_config;

typedef enum gs_sim_state {
    GS_SIM_PENDING, /* not arrived, or not ended when the simulation stopped */
    GS_SIM_LIVE,
    GS_SIM_DONE,
    GS_SIM_CANCELLED,
    GS_SIM_REFUSED,
    GS_SIM_FAILED /* its worker did, after the first token */
} gs_sim_state;

typedef struct gs_sim_outcome {
    gs_sim_state state;
    int64_t start_ns; /* when it was due to be sent */
    int64_t first_ns; /* first token (or end of a prefill-only one); 0: none */
    int64_t end_ns;
    int64_t max_gap_ns;
    int32_t n_output, n_cached, n_preempted, n_tries, n_texts_left;
    gs_class cls; /* served as */
    int64_t last_ns;
    int64_t charged_ns;
    /* With remotes: */
    int32_t worker;     /* of the latest attempt: 0 the local one, i + 1 remote i; -1: none */
    int32_t n_attempts; /* at workers */
    int32_t n_ends;     /* times that it was closed: 1 at most, or something is wrong */
} gs_sim_outcome;

#define GS_SIM_GAP_BINS 1100

typedef struct gs_sim_class {
    int32_t n, n_done, n_cancelled, n_refused, n_failed, n_judged, n_met;
    int64_t ttft_p50_ns, ttft_p95_ns, ttft_p99_ns;
    int64_t gap_p50_ns, gap_p95_ns, gap_p99_ns, gap_max_ns; /* between tokens, all of the class */
    int64_t tpot_p50_ns, tpot_p95_ns;
    int64_t total_p50_ns, total_p95_ns;
    int64_t n_tokens_in, n_tokens_out; /* served, cached ones not counted */
} gs_sim_class;

typedef struct gs_sim_report {
    gs_sim_class cls[GS_CLASS_COUNT]; /* by the class asked for */
    int64_t end_ns;                   /* when the last thing happened */
    double tokens_per_s;              /* computed, all kinds */
    double fairness;                  /* Jain's index of persons' weighted device time */
    gs_sched_stats stats;             /* of the first model, as kv and error are */
    gs_sched_stats second;            /* of the second one */
    gs_kv_stats kv;
    gs_cost_error error;
    uint64_t hash;
} gs_sim_report;

typedef struct gs_sim gs_sim;

/* cfg and requests are borrowed until gs_sim_free. GS_ERR_INVALID, GS_ERR_NOMEM. */
int gs_sim_create(const gs_sim_config *cfg, const gs_sim_request *requests, int32_t n,
                  gs_sim **out);
/* To the end, or to end_ns. GS_OK, GS_ERR_NOMEM; GS_ERR_INTERNAL: a broken invariant. */
int gs_sim_run(gs_sim *m, char *err, size_t errlen);
/* Where the next gs_sim_run stops, which then goes on from here: for looking at the scheduler, and
 * changing it, on the way. 0: when everything has ended. */
void gs_sim_set_end(gs_sim *m, int64_t end_ns);
const gs_sim_outcome *gs_sim_outcomes(const gs_sim *m); /* [n] */
int gs_sim_report_create(const gs_sim *m, gs_sim_report *out);
int64_t gs_sim_charged(const gs_sim *m, uint32_t person); /* device time, ns */
gs_sched *gs_sim_sched(const gs_sim *m);
/* NULL without remotes, and with round_robin. Workers have the numbers of gs_sim_outcome. */
const gs_place *gs_sim_place(const gs_sim *m);
/* A remote's server, as it is since it was killed last. */
const gs_sched *gs_sim_remote_sched(const gs_sim *m, int32_t remote, const gs_kv **kv);
void gs_sim_free(gs_sim *m);

/* A few machines, for tests and for `gamasot sim` without a device file. NULL: no such name. */
const gs_sim_device *gs_sim_device_find(const char *name);
const char *gs_sim_device_name(int i); /* NULL after the last */

#endif
