/*
 * A lane: one model in the engine, with its backend, KV ledger and scheduler. The engine thread
 * owns all lanes and runs one step of one of them at a time (engine.c). Private to engine/.
 */
#ifndef GS_ENGINE_LANE_IMPL_H
#define GS_ENGINE_LANE_IMPL_H

#include "engine/engine.h"

/* What a step's items are in, while it runs and until it is committed. */
typedef struct gs_lane_step {
    gs_batch_item *items;    /* [max_seqs] */
    gs_sample *samples;      /* [max_seqs] */
    gs_item_result *results; /* [max_seqs] */
} gs_lane_step;

typedef struct gs_lane {
    int32_t index; /* in the engine */
    gs_backend *backend;
    gs_backend_info info;
    gs_kv *kv;
    gs_sched *sched;
    gs_lane_step step, beside;          /* the engine thread's own, and the one beside it */
    gs_engine_stats stats;              /* the engine thread's; others see what was published */
    const gs_public_prefixes *prefixes; /* NULL: none */
    int32_t n_warmed;                   /* of them: computed, or left out */
    gs_seq *warming;                    /* the one that is being computed, or NULL */
    uint8_t *copy;                      /* of its pages, once it is; NULL: nobody wants them */
    int32_t n_moved;                    /* blocks of the current one's pages: taken, or copied */
} gs_lane;

/* Statistics that the engine thread writes and any thread reads. Word by word, so that each number
 * is whole, which is all that gs_engine_get_stats promises. */
#define GS_STATS_WORDS ((sizeof(gs_engine_stats) + 7) / 8)
typedef struct gs_shared_stats {
    _Atomic uint64_t words[GS_STATS_WORDS];
} gs_shared_stats;

void gs_shared_stats_write(gs_shared_stats *to, const gs_engine_stats *s);
void gs_shared_stats_read(const gs_shared_stats *from, gs_engine_stats *out);
/* Adds what can be added up; a time to aim at or an error of predictions stays as it is. */
void gs_engine_stats_add(gs_engine_stats *sum, const gs_engine_stats *s);

/* Takes backend in every case. cfg, classes, slo and cost are copied. */
int gs_lane_create(const gs_engine_config *cfg, gs_backend *backend, const gs_cost *cost,
                   const gs_class_config *classes, const gs_slo_config *slo, gs_accounts *accounts,
                   gs_lane **out, char *err, size_t errlen);
/* All but the backend, which is the caller's again. */
gs_backend *gs_lane_free(gs_lane *l);

void gs_lane_build_batch(const gs_lane *l, gs_lane_step *st, const gs_plan *plan, gs_batch *batch);
/* Into the step's results; guides hear of their sequences' tokens. */
void gs_lane_collect(gs_lane_step *st, const gs_plan *plan, gs_guides *guides);
/* What the step that has just been run was, and how right its prediction. */
void gs_lane_count_step(gs_lane *l, const gs_plan *plan);
void gs_lane_judge_prediction(gs_lane *l, const gs_plan *plan, int64_t elapsed_ns);
/* warm.c: the lane's public prefixes, one after another, each by a sequence of the engine's own. */
bool gs_lane_is_warm(const gs_lane *l);
/* Goes on with it by a piece that takes about a millisecond: submits the next one unless one is
 * under way (id: of the sequence), takes some of its pages, or copies some for whoever keeps them.
 */
void gs_lane_warm(gs_lane *l, gs_class cls, gs_seq_id id, int64_t now_ns);
/* Whether it would go on at once, without a step. */
bool gs_lane_warm_moves(const gs_lane *l);
/* The end of a sequence; false: it is not the lane's own. */
bool gs_lane_warm_ended(gs_lane *l, const gs_seq *q, const gs_seq_end *end);

/* Brings l->stats up to date. */
void gs_lane_count(gs_lane *l);

#endif
