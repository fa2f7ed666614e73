#include "engine/lane_impl.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"

/* Steps between two looks at the step-time model's error, which sorts some hundred numbers. */
#define ERROR_STEPS 64

const double gs_ratio_bounds[GS_RATIO_N] = {
#define X(bound) bound,
    GS_RATIO_BOUNDS(X)
#undef X
        INFINITY};

const double gs_step_tokens_bounds[GS_STEP_TOKENS_N - 1] = {
#define X(bound) bound,
    GS_STEP_TOKENS_BOUNDS(X)
#undef X
};

/* ---- Create and free
 * --------------------------------------------------------------------------------- */

static bool create_step(gs_lane_step *st, size_t n) {
    st->items = gs_calloc(n, sizeof(*st->items));
    st->samples = gs_calloc(n, sizeof(*st->samples));
    st->results = gs_calloc(n, sizeof(*st->results));
    return st->items && st->samples && st->results;
}

static void free_step(gs_lane_step *st) {
    gs_free(st->items);
    gs_free(st->samples);
    gs_free(st->results);
}

static int create_parts(gs_lane *l, const gs_engine_config *cfg, const gs_cost *cost,
                        const gs_class_config *classes, const gs_slo_config *slo,
                        gs_accounts *accounts, char *err, size_t errlen) {
    const gs_backend_info *bi = &l->info;
    const gs_kv_config kc = {.n_blocks = bi->n_kv_blocks,
                             .block_tokens = bi->block_tokens,
                             .max_seqs = bi->max_seqs,
                             .max_blocks_per_seq =
                                 (bi->max_context + bi->block_tokens - 1) / bi->block_tokens,
                             .no_prefix_cache = cfg->no_prefix_cache};
    int rc = gs_kv_create(&kc, &l->kv);
    if (rc != 0)
        return gs_fail(err, errlen, rc, "KV ledger: %s", gs_err_text(rc));
    gs_slo_config own = *slo;
    own.safepoints = own.safepoints && l->backend->ops->resume != NULL;
    const gs_sched_config sc = {.max_seqs = bi->max_seqs,
                                .max_waiting = cfg->max_waiting,
                                .max_batch_tokens = bi->max_batch_tokens,
                                .prefill_chunk = cfg->prefill_chunk,
                                .max_context = bi->max_context,
                                .n_layers = bi->n_layers,
                                .n_threads = bi->n_threads,
                                .max_persons = cfg->max_persons,
                                .accounts = accounts,
                                .whole_prompts = bi->whole_prompts,
                                .policy = cfg->policy,
                                .cost = cost,
                                .classes = classes,
                                .slo = &own,
                                .seed = cfg->seed};
    rc = gs_sched_create(&sc, l->kv, &l->sched);
    if (rc != 0)
        return gs_fail(err, errlen, rc, "scheduler: %s", gs_err_text(rc));
    if (!create_step(&l->step, (size_t)bi->max_seqs) ||
        !create_step(&l->beside, (size_t)bi->max_seqs))
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    l->stats.kv_blocks_total = bi->n_kv_blocks;
    return 0;
}

int gs_lane_create(const gs_engine_config *cfg, gs_backend *backend, const gs_cost *cost,
                   const gs_class_config *classes, const gs_slo_config *slo, gs_accounts *accounts,
                   gs_lane **out, char *err, size_t errlen) {
    gs_lane *l = gs_calloc(1, sizeof(*l));
    if (!l) {
        backend->ops->destroy(backend);
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    }
    l->backend = backend;
    backend->ops->info(backend, &l->info);
    int rc = create_parts(l, cfg, cost, classes, slo, accounts, err, errlen);
    if (rc != 0) {
        backend = gs_lane_free(l);
        backend->ops->destroy(backend);
        return rc;
    }
    *out = l;
    return 0;
}

gs_backend *gs_lane_free(gs_lane *l) {
    gs_backend *b = l->backend;
    gs_sched_free(l->sched);
    gs_seq_free(l->warming);
    gs_free(l->copy);
    gs_kv_free(l->kv);
    free_step(&l->step);
    free_step(&l->beside);
    gs_free(l);
    return b;
}

/* ---- A step
 * --------------------------------------------------------------------------------------- */

void gs_lane_build_batch(const gs_lane *l, gs_lane_step *st, const gs_plan *plan, gs_batch *batch) {
    for (int32_t i = 0; i < plan->n_items; i++) {
        const gs_plan_item *p = &plan->items[i];
        const gs_seq *q = p->user;
        if (q->embedding && p->pos == 0) /* again from the start after a preemption */
            memset(q->embedding, 0, (size_t)l->info.n_embd * sizeof(*q->embedding));
        st->items[i] = (gs_batch_item){
            .slot = p->slot,
            .pos = p->pos,
            .n_tokens = p->n_tokens,
            .tokens = p->tokens,
            .blocks = p->blocks,
            .n_blocks = p->n_blocks,
            .sampler = p->sample ? &q->sampler : NULL,
            .guide = p->sample ? q->guide : NULL,
            .history = q->desc.tokens,
            .n_history = p->pos + p->n_tokens,
            .n_prompt = q->desc.n_prompt,
            .sample = p->sample ? &st->samples[i] : NULL,
            .embedding = q->embedding,
        };
    }
    *batch = (gs_batch){
        .n_items = plan->n_items,
        .n_tokens = plan->n_tokens,
        .items = st->items,
        .copies = plan->copies,
        .n_copies = plan->n_copies,
        .max_threads = plan->max_threads,
    };
}

static bool is_eog(const gs_sampler *s, int32_t token) {
    for (int32_t i = 0; i < s->n_eog; i++) {
        if (s->eog[i] == token)
            return true;
    }
    return false;
}

void gs_lane_collect(gs_lane_step *st, const gs_plan *plan, gs_guides *guides) {
    for (int32_t i = 0; i < plan->n_items; i++) {
        gs_item_result *r = &st->results[i];
        *r = (gs_item_result){0};
        if (!plan->items[i].sample)
            continue;
        const gs_seq *q = plan->items[i].user;
        r->err = st->samples[i].err;
        r->retry = !r->err && st->samples[i].pending;
        r->token = st->samples[i].token;
        r->stop = !r->err && !r->retry && is_eog(&q->sampler, r->token) && !q->sampler.ignore_eos;
        /* As early as can be: the mask is made while the next step computes. */
        if (q->guide && !r->err && !r->retry && !r->stop)
            gs_guides_push(guides, q->guide, r->token);
    }
}

/* ---- Statistics
 * ----------------------------------------------------------------------------------- */

void gs_shared_stats_write(gs_shared_stats *to, const gs_engine_stats *s) {
    uint64_t words[GS_STATS_WORDS] = {0};
    memcpy(words, s, sizeof(*s));
    for (size_t i = 0; i < GS_STATS_WORDS; i++)
        atomic_store_explicit(&to->words[i], words[i], memory_order_relaxed);
}

void gs_shared_stats_read(const gs_shared_stats *from, gs_engine_stats *out) {
    uint64_t words[GS_STATS_WORDS] = {0};
    for (size_t i = 0; i < GS_STATS_WORDS; i++)
        words[i] = atomic_load_explicit(&from->words[i], memory_order_relaxed);
    memcpy(out, words, sizeof(*out));
}

static void add_classes(gs_engine_stats *sum, const gs_engine_stats *s, int c) {
    sum->n_running_by_class[c] += s->n_running_by_class[c];
    sum->n_waiting_by_class[c] += s->n_waiting_by_class[c];
    sum->n_target[c] += s->n_target[c];
    sum->n_missed[c] += s->n_missed[c];
    sum->n_relegated[c] += s->n_relegated[c];
    sum->n_held[c] += s->n_held[c];
    sum->held_ns[c] += s->held_ns[c];
    for (int p = 0; p < GS_PHASE_COUNT; p++) {
        sum->tokens[c][p] += s->tokens[c][p];
        sum->device_ns[c][p] += s->device_ns[c][p];
    }
}

void gs_engine_stats_add(gs_engine_stats *sum, const gs_engine_stats *s) {
    sum->n_running += s->n_running;
    sum->n_waiting += s->n_waiting;
    sum->kv_blocks_total += s->kv_blocks_total;
    sum->kv_blocks_held += s->kv_blocks_held;
    sum->kv_blocks_cached += s->kv_blocks_cached;
    sum->kv_blocks_pinned += s->kv_blocks_pinned;
    sum->steps += s->steps;
    sum->preemptions += s->preemptions;
    sum->prefill_tokens += s->prefill_tokens;
    sum->decode_tokens += s->decode_tokens;
    sum->recomputed_tokens += s->recomputed_tokens;
    sum->prefix_lookup_tokens += s->prefix_lookup_tokens;
    sum->prefix_hit_tokens += s->prefix_hit_tokens;
    sum->busy_ns += s->busy_ns;
    sum->suspensions += s->suspensions;
    sum->beside_steps += s->beside_steps;
    sum->discarded_ns += s->discarded_ns;
    sum->busy_background_ns += s->busy_background_ns;
    sum->recomputed_ns += s->recomputed_ns;
    sum->saved_ns += s->saved_ns;
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        add_classes(sum, s, c);
    for (int i = 0; i < GS_RATIO_N; i++)
        sum->ratio_count[i] += s->ratio_count[i];
    sum->ratio_sum += s->ratio_sum;
    for (int i = 0; i < GS_STEP_TOKENS_N; i++)
        sum->step_tokens[i] += s->step_tokens[i];
    sum->step_tokens_sum += s->step_tokens_sum;
    for (int i = 0; i < GS_ENGINE_PERSONS; i++) /* of one account over all models */
        if (s->person_ns[i] > sum->person_ns[i])
            sum->person_ns[i] = s->person_ns[i];
}

static void note_mode(gs_lane *l) {
    const gs_mode before = l->stats.mode.now;
    gs_mode_view *m = &l->stats.mode;
    gs_sched_get_mode(l->sched, m);
    if (m->now != before && before != GS_MODE_AUTO) /* AUTO: nothing was counted yet */
        gs_info("engine", "mode=%s why=%s mixed=%.1f exclusive=%.1f split=%.1f",
                gs_mode_name(m->now), gs_mode_why_name(m->why), m->rate[GS_MODE_MIXED],
                m->rate[GS_MODE_EXCLUSIVE], m->rate[GS_MODE_SPLIT]);
}

void gs_lane_count(gs_lane *l) {
    gs_engine_stats *out = &l->stats;
    gs_sched_stats s;
    gs_kv_stats k;
    gs_sched_get_stats(l->sched, &s);
    gs_kv_get_stats(l->kv, &k);
    note_mode(l);
    out->n_running = s.n_running;
    out->n_waiting = s.n_waiting;
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        out->n_running_by_class[c] = s.n_running_by_class[c];
        out->n_waiting_by_class[c] = s.n_waiting_by_class[c];
        out->n_target[c] = s.n_target[c];
        out->n_missed[c] = s.n_missed[c];
        out->n_relegated[c] = s.n_relegated[c];
        out->window_ns[c] = s.window_ns[c];
        out->effective_tpot_ns[c] = s.effective_tpot_ns[c];
        out->n_held[c] = s.n_held[c];
        out->held_ns[c] = s.held_ns[c];
    }
    out->saved_ns = s.saved_ns;
    out->discarded_ns = s.discarded_ns;
    out->busy_background_ns = s.busy_background_ns;
    out->recomputed_ns = s.recomputed_ns;
    out->kv_blocks_held = k.n_held - k.n_pinned;
    out->kv_blocks_pinned = k.n_pinned;
    out->kv_blocks_cached = k.n_cached;
    out->steps = s.steps;
    out->preemptions = s.preemptions;
    out->prefill_tokens = s.prefill_tokens;
    out->decode_tokens = s.decode_tokens;
    out->recomputed_tokens = s.recomputed_tokens;
    out->suspensions = s.suspensions;
    out->beside_steps = s.beside_steps;
    out->prefix_lookup_tokens = k.lookups_tokens;
    out->prefix_hit_tokens = k.hits_tokens;
}

/* Tokens of a step that gave way count with its last stretch. */
void gs_lane_count_step(gs_lane *l, const gs_plan *plan) {
    const gs_step_record *r = gs_sched_last_step(l->sched);
    gs_engine_stats *out = &l->stats;
    out->busy_ns += r->ns;
    for (int32_t i = 0; i < r->n_parts; i++) {
        const gs_step_part *p = &r->parts[i];
        out->device_ns[p->cls][p->phase] += p->ns;
        if (!r->gave_way)
            out->tokens[p->cls][p->phase] += (uint64_t)p->n_tokens;
    }
    if (r->gave_way)
        return;
    int bucket = 0;
    while (bucket < GS_STEP_TOKENS_N - 1 && plan->n_tokens > gs_step_tokens_bounds[bucket])
        bucket++;
    out->step_tokens[bucket]++;
    out->step_tokens_sum += (uint64_t)plan->n_tokens;
    for (int32_t i = 0; i < plan->n_items; i++) {
        const uint32_t person = ((const gs_seq *)plan->items[i].user)->desc.person;
        if (person < GS_ENGINE_PERSONS)
            out->person_ns[person] = gs_sched_charged_ns(l->sched, person);
    }
}

/* A step that gave way was not measured as a whole. */
void gs_lane_judge_prediction(gs_lane *l, const gs_plan *plan, int64_t elapsed_ns) {
    gs_engine_stats *out = &l->stats;
    if (plan->predicted_ns <= 0 || elapsed_ns <= 0 || plan->resume)
        return;
    double ratio = (double)plan->predicted_ns / (double)elapsed_ns;
    for (int i = 0; i < GS_RATIO_N; i++)
        if (ratio <= gs_ratio_bounds[i])
            out->ratio_count[i]++;
    out->ratio_sum += ratio;
    if (plan->step % ERROR_STEPS != 0)
        return;
    gs_cost_error error;
    gs_cost_get_error(gs_sched_cost(l->sched), &error);
    out->cost_median_ratio = error.median_ratio;
    out->cost_median_error = error.median_error;
    out->cost_p95_error = error.p95_error;
}
