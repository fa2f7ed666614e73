#include "engine/engine.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"

#define OUTBOX_EVENTS 8192
/* Steps between two looks at the step-time model's error, which sorts some hundred numbers. */
#define ERROR_STEPS 64
/* Steps that can be looked back at: a second of the shortest ones. */
#define STEP_SLOTS 1024

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

/*
 * Hand-over of a sequence back to its owner. The owner may send a cancel at the very moment in
 * which the sequence ends; the cancel message lives inside the sequence, so the sequence must not
 * be given back while that message is still queued:
 *
 *     LIVE ──engine ends it──► ENDED        END is posted at once; later cancels do nothing
 *     LIVE ──owner cancels───► CANCELLING   END is posted only once the message was received
 */
enum { LIFE_LIVE, LIFE_ENDED, LIFE_CANCELLING };

struct gs_engine {
    gs_engine_config cfg;
    pthread_t thread;
    /* engine thread's */
    gs_backend *backend;
    gs_guides *guides;
    gs_kv *kv;
    gs_sched *sched;
    gs_batch_item *items;                    /* [max_seqs] */
    gs_sample *samples;                      /* [max_seqs] */
    gs_item_result *results;                 /* [max_seqs] */
    gs_steps *steps;                         /* read by others */
    bool posted;                             /* events since the last wake */
    bool in_step;                            /* the backend runs: settings wait for its end */
    gs_query *changes;                       /* CONFIGURE queries that do */
    gs_class_config classes[GS_CLASS_COUNT]; /* copies of the configuration's */
    gs_slo_config slo;
    /* shared: queues and single atomics */
    gs_mpsc inbox;
    gs_spsc outbox;
    atomic_int sleeping;
    atomic_int stop;
    atomic_int state;
    atomic_ullong next_id;
    int wake_fd;
    char error[256];      /* written before state becomes FAILED */
    gs_backend_info info; /* written before state becomes READY */
    struct {
        atomic_int n_running, n_waiting;
        atomic_int running_by_class[GS_CLASS_COUNT], waiting_by_class[GS_CLASS_COUNT];
        atomic_uint kv_held, kv_cached, kv_pinned;
        atomic_ullong steps, preemptions, prefill_tokens, decode_tokens, recomputed_tokens;
        atomic_ullong lookup_tokens, hit_tokens, suspensions;
        atomic_llong step_began_ns, longest_step_ns, busy_ns;
        atomic_llong discarded_ns, busy_background_ns, recomputed_ns, saved_ns;
        atomic_ullong n_held[GS_CLASS_COUNT];
        atomic_llong held_ns[GS_CLASS_COUNT];
        atomic_ullong tokens[GS_CLASS_COUNT][GS_PHASE_COUNT];
        atomic_llong device_ns[GS_CLASS_COUNT][GS_PHASE_COUNT];
        atomic_ullong step_tokens[GS_STEP_TOKENS_N], step_tokens_sum;
        atomic_llong person_ns[GS_ENGINE_PERSONS];
        atomic_ullong n_target[GS_CLASS_COUNT], n_missed[GS_CLASS_COUNT];
        atomic_ullong n_relegated[GS_CLASS_COUNT];
        atomic_llong window_ns[GS_CLASS_COUNT], effective_tpot_ns[GS_CLASS_COUNT];
        atomic_ullong ratio_count[GS_RATIO_N];
        _Atomic double ratio_sum, cost_median_ratio, cost_median_error, cost_p95_error;
    } stats;
};

/* ---- Sequences ----------------------------------------------------------------------------------
 */

gs_seq *gs_seq_create(const int32_t *prompt, int32_t n_prompt, int32_t max_output) {
    gs_seq *q = gs_calloc(1, sizeof(*q));
    if (!q)
        return NULL;
    size_t room = (size_t)n_prompt + (size_t)max_output;
    q->desc.tokens = gs_array(room > 0 ? room : 1, sizeof(int32_t));
    if (!q->desc.tokens) {
        gs_free(q);
        return NULL;
    }
    if (n_prompt > 0)
        memcpy(q->desc.tokens, prompt, (size_t)n_prompt * sizeof(int32_t));
    q->desc.n_prompt = n_prompt;
    q->desc.max_output = max_output;
    q->desc.cls = GS_CLASS_CHAT;
    q->desc.user = q;
    q->submit_msg = (gs_engine_msg){.kind = GS_ENGINE_SUBMIT, .seq = q};
    q->cancel_msg = (gs_engine_msg){.kind = GS_ENGINE_CANCEL, .seq = q};
    atomic_init(&q->life, LIFE_LIVE);
    gs_sampler_default(&q->sampler);
    return q;
}

gs_seq *gs_seq_create_embedding(const int32_t *prompt, int32_t n_prompt, int32_t n_embd) {
    gs_seq *q = gs_seq_create(prompt, n_prompt, 0);
    if (!q)
        return NULL;
    q->embedding = gs_calloc((size_t)n_embd, sizeof(*q->embedding));
    if (!q->embedding) {
        gs_seq_free(q);
        return NULL;
    }
    q->desc.prefill_only = true;
    q->desc.cache_scope = GS_KV_NO_REUSE; /* a mean needs the state of every token */
    q->desc.cls = GS_CLASS_BACKGROUND;
    return q;
}

int gs_seq_set_bias(gs_seq *q, const gs_logit_bias *bias, int32_t n) {
    gs_logit_bias *copy = gs_array(n > 0 ? (size_t)n : 1, sizeof(*copy));
    if (!copy)
        return GS_ERR_NOMEM;
    memcpy(copy, bias, (size_t)n * sizeof(*copy));
    gs_free(q->own_bias);
    q->own_bias = copy;
    q->sampler.bias = copy;
    q->sampler.n_bias = n;
    return 0;
}

void gs_seq_free(gs_seq *q) {
    if (!q)
        return;
    gs_free(q->desc.tokens);
    gs_free(q->own_bias);
    gs_free(q->embedding);
    gs_guide_unref(q->guide);
    gs_free(q);
}

/* ---- Events to the event loop -------------------------------------------------------------------
 */

static void wake_owner(gs_engine *e) {
    if (e->posted && e->cfg.wake)
        e->cfg.wake(e->cfg.wake_arg);
    e->posted = false;
}

/* A full outbox means that the event loop is thousands of events behind: wait for it rather than
 * lose one. The loop waits for the engine in gs_engine_free alone, and then nobody polls. */
static void post(gs_engine *e, gs_event *ev) {
    ev->time_ns = gs_now_ns();
    e->posted = true;
    while (!gs_spsc_push(&e->outbox, ev)) {
        if (atomic_load(&e->stop))
            return;
        wake_owner(e);
        e->posted = true;
        struct timespec t = {0, 100 * GS_NS_PER_US};
        nanosleep(&t, NULL);
    }
}

static void post_end(gs_engine *e, gs_seq *q, const gs_seq_end *end) {
    gs_event ev = {.kind = GS_EVENT_END, .seq = q};
    ev.u.end = *end;
    post(e, &ev);
}

static void finish(gs_engine *e, gs_seq *q, const gs_seq_end *end) {
    if (q->embedding && end->reason == GS_END_DONE)
        gs_embed_finish(e->info.pooling, q->embedding, e->info.n_embd, q->desc.n_prompt);
    int live = LIFE_LIVE;
    if (atomic_compare_exchange_strong(&q->life, &live, LIFE_ENDED) || q->cancel_seen) {
        post_end(e, q, end);
        return;
    }
    q->held_end = *end; /* a cancel is on its way: give the sequence back when it arrives */
    q->end_held = true;
}

static void report_ends(gs_engine *e) {
    gs_seq_end end;
    while (gs_sched_next_end(e->sched, &end))
        finish(e, end.user, &end);
}

/* ---- Inbox
 * ---------------------------------------------------------------------------------------- */

static void reject(gs_engine *e, gs_seq *q, const gs_admission *adm) {
    int live = LIFE_LIVE;
    if (!atomic_compare_exchange_strong(&q->life, &live, LIFE_ENDED)) {
        /* Cancelled meanwhile: its END comes with the cancel message. */
        q->held_end = (gs_seq_end){.id = q->desc.id, .user = q, .reason = GS_END_CANCELLED};
        q->end_held = true;
        return;
    }
    gs_event ev = {.kind = GS_EVENT_REJECTED, .seq = q};
    ev.u.admission = *adm;
    post(e, &ev);
}

/* What a key says about its person comes with each of the person's sequences. */
static void set_person(gs_engine *e, const gs_seq *q) {
    gs_slo_config slo;
    gs_person_config c = q->limits;
    gs_sched_get_slo(e->sched, &slo);
    if (c.weight == 0.0)
        c.weight = slo.person.weight;
    if (c.max_running == 0)
        c.max_running = slo.person.max_running;
    if (c.max_waiting == 0)
        c.max_waiting = slo.person.max_waiting;
    if (c.day_ns == 0)
        c.day_ns = slo.person.day_ns;
    gs_sched_set_person(e->sched, q->desc.person, &c);
}

static void handle_submit(gs_engine *e, gs_seq *q, int64_t now_ns) {
    gs_admission adm = {0};
    q->desc.id = atomic_fetch_add(&e->next_id, 1) + 1;
    if (q->desc.arrival_ns == 0)
        q->desc.arrival_ns = now_ns;
    if (atomic_load(&e->state) != GS_ENGINE_READY) {
        adm.code = GS_ERR_UNAVAILABLE;
        adm.reason = "the model is not loaded";
        reject(e, q, &adm);
        return;
    }
    if (q->has_limits)
        set_person(e, q);
    int rc = gs_sched_submit(e->sched, &q->desc, now_ns, &adm);
    adm.code = rc;
    if (rc != 0) {
        reject(e, q, &adm);
        return;
    }
    q->admitted = true;
    gs_event ev = {.kind = GS_EVENT_ADMITTED, .seq = q};
    ev.u.admission = adm;
    post(e, &ev);
}

static void handle_cancel(gs_engine *e, gs_seq *q, int64_t now_ns) {
    q->cancel_seen = true;
    if (q->end_held) {
        post_end(e, q, &q->held_end);
        return;
    }
    if (q->admitted)
        gs_sched_cancel(e->sched, q->desc.id, now_ns);
}

/* ---- Questions
 * ------------------------------------------------------------------------------------------- */

static int configure(gs_engine *e, const gs_engine_settings *s) {
    gs_slo_config slo = s->slo;
    slo.safepoints = slo.safepoints && e->backend->ops->resume != NULL;
    if (gs_slo_check(&slo, NULL) != GS_OK || s->prefill_chunk < 1)
        return GS_ERR_INVALID;
    int rc = gs_sched_set_classes(e->sched, s->classes, NULL);
    if (rc == GS_OK)
        rc = gs_sched_set_slo(e->sched, &slo);
    if (rc == GS_OK)
        rc = gs_sched_set_chunk(e->sched, s->prefill_chunk);
    return rc;
}

static void answer(gs_engine *e, gs_query *q) {
    gs_event ev = {.kind = GS_EVENT_ANSWER};
    ev.u.answer = q;
    post(e, &ev);
}

static void take_view(const gs_engine *e, gs_engine_view *v) {
    gs_slo_config slo;
    gs_kv_get_stats(e->kv, &v->kv);
    if (v->n_kv_blocks == v->kv.n_blocks)
        gs_kv_map(e->kv, v->kv_map);
    gs_sched_get_persons(e->sched, v->persons, v->n_persons);
    gs_sched_get_slo(e->sched, &slo);
    v->background_paused = slo.background_paused;
}

static void handle_query(gs_engine *e, gs_query *q, int64_t now_ns) {
    q->now_ns = now_ns;
    q->n_records = 0;
    q->code = GS_OK;
    if (atomic_load(&e->state) != GS_ENGINE_READY) {
        q->code = GS_ERR_UNAVAILABLE;
    } else if (q->kind == GS_QUERY_QUEUE || q->kind == GS_QUERY_STATE) {
        q->n_records = gs_sched_snapshot(e->sched, q->records, q->max_records);
        if (q->kind == GS_QUERY_STATE)
            take_view(e, q->view);
    } else if (q->kind == GS_QUERY_EXPLAIN) {
        for (int32_t i = 0; i < q->n_ids && q->n_records < q->max_records; i++)
            q->n_records +=
                gs_sched_explain(e->sched, q->ids[i], &q->records[q->n_records]) == GS_OK;
    } else if (e->in_step) {
        q->next = e->changes;
        e->changes = q;
        return;
    } else {
        q->code = configure(e, q->apply);
    }
    answer(e, q);
}

/* What came in the middle of a step, oldest first. */
static void handle_changes(gs_engine *e) {
    gs_query *oldest = NULL, *q;
    while ((q = e->changes)) {
        e->changes = q->next;
        q->next = oldest;
        oldest = q;
    }
    while ((q = oldest)) {
        oldest = q->next;
        handle_query(e, q, gs_now_ns());
    }
}

/* True when there was anything. */
static bool drain_inbox(gs_engine *e) {
    bool any = false;
    gs_mpsc_node *n;
    while ((n = gs_mpsc_pop(&e->inbox))) {
        gs_engine_msg *m = (gs_engine_msg *)(void *)n;
        int64_t now_ns = gs_now_ns();
        any = true;
        if (m->kind == GS_ENGINE_SUBMIT)
            handle_submit(e, m->seq, now_ns);
        else if (m->kind == GS_ENGINE_CANCEL)
            handle_cancel(e, m->seq, now_ns);
        else
            handle_query(e, m->query, now_ns);
    }
    return any;
}

/* Sleeps until until_ns, or until the inbox has something. */
static void wait_for_work(gs_engine *e, int64_t until_ns) {
    atomic_store(&e->sleeping, 1);
    /* Whoever pushed before the store above did not see us sleeping: look once more. */
    if (drain_inbox(e) || atomic_load(&e->stop)) {
        atomic_store(&e->sleeping, 0);
        return;
    }
    struct pollfd p = {.fd = e->wake_fd, .events = POLLIN};
    struct timespec t = {0, 0}, *limit = NULL;
    if (until_ns != GS_NEVER_NS) {
        int64_t left_ns = until_ns - gs_now_ns();
        if (left_ns > 0)
            t = (struct timespec){left_ns / GS_NS_PER_S, left_ns % GS_NS_PER_S};
        limit = &t;
    }
    if (ppoll(&p, 1, limit, NULL) > 0) {
        uint64_t count;
        (void)!read(e->wake_fd, &count, sizeof(count));
    }
    atomic_store(&e->sleeping, 0);
}

static void wake_engine(gs_engine *e) {
    if (atomic_exchange(&e->sleeping, 0)) {
        uint64_t one = 1;
        (void)!write(e->wake_fd, &one, sizeof(one));
    }
}

/* ---- A step
 * --------------------------------------------------------------------------------------- */

/* Safepoint between two layers of a background step: newcomers are admitted here and now. */
static bool should_yield(void *arg) {
    gs_engine *e = arg;
    if (!drain_inbox(e))
        return false;
    wake_owner(e);
    return gs_sched_should_yield(e->sched, gs_now_ns());
}

static void build_batch(gs_engine *e, const gs_plan *plan, gs_batch *batch) {
    for (int32_t i = 0; i < plan->n_items; i++) {
        const gs_plan_item *p = &plan->items[i];
        const gs_seq *q = p->user;
        if (q->embedding && p->pos == 0) /* again from the start after a preemption */
            memset(q->embedding, 0, (size_t)e->info.n_embd * sizeof(*q->embedding));
        e->items[i] = (gs_batch_item){
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
            .sample = p->sample ? &e->samples[i] : NULL,
            .embedding = q->embedding,
        };
    }
    *batch = (gs_batch){
        .n_items = plan->n_items,
        .n_tokens = plan->n_tokens,
        .items = e->items,
        .copies = plan->copies,
        .n_copies = plan->n_copies,
        .should_yield = plan->may_yield ? should_yield : NULL,
        .yield_arg = e,
    };
}

static bool is_eog(const gs_sampler *s, int32_t token) {
    for (int32_t i = 0; i < s->n_eog; i++) {
        if (s->eog[i] == token)
            return true;
    }
    return false;
}

static void collect_results(gs_engine *e, const gs_plan *plan) {
    for (int32_t i = 0; i < plan->n_items; i++) {
        gs_item_result *r = &e->results[i];
        *r = (gs_item_result){0};
        if (!plan->items[i].sample)
            continue;
        const gs_seq *q = plan->items[i].user;
        r->err = e->samples[i].err;
        r->retry = !r->err && e->samples[i].pending;
        r->token = e->samples[i].token;
        r->stop = !r->err && !r->retry && is_eog(&q->sampler, r->token) && !q->sampler.ignore_eos;
        /* As early as can be: the mask is made while the next step computes. */
        if (q->guide && !r->err && !r->retry && !r->stop)
            gs_guides_push(e->guides, q->guide, r->token);
    }
}

static void post_tokens(gs_engine *e, const gs_plan *plan) {
    for (int32_t i = 0; i < plan->n_items; i++) {
        if (!plan->items[i].sample || e->results[i].err || e->results[i].retry)
            continue;
        gs_event ev = {.kind = GS_EVENT_TOKEN, .seq = plan->items[i].user};
        ev.u.token.sample = e->samples[i];
        ev.u.token.stop = e->results[i].stop;
        ev.u.token.n_cached = plan->items[i].n_cached;
        post(e, &ev);
    }
}

static void publish_stats(gs_engine *e) {
    gs_sched_stats s;
    gs_kv_stats k;
    gs_sched_get_stats(e->sched, &s);
    gs_kv_get_stats(e->kv, &k);
    atomic_store(&e->stats.n_running, s.n_running);
    atomic_store(&e->stats.n_waiting, s.n_waiting);
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        atomic_store(&e->stats.running_by_class[c], s.n_running_by_class[c]);
        atomic_store(&e->stats.waiting_by_class[c], s.n_waiting_by_class[c]);
        atomic_store(&e->stats.n_target[c], s.n_target[c]);
        atomic_store(&e->stats.n_missed[c], s.n_missed[c]);
        atomic_store(&e->stats.n_relegated[c], s.n_relegated[c]);
        atomic_store(&e->stats.window_ns[c], s.window_ns[c]);
        atomic_store(&e->stats.effective_tpot_ns[c], s.effective_tpot_ns[c]);
        atomic_store(&e->stats.n_held[c], s.n_held[c]);
        atomic_store(&e->stats.held_ns[c], s.held_ns[c]);
    }
    atomic_store(&e->stats.saved_ns, s.saved_ns);
    atomic_store(&e->stats.discarded_ns, s.discarded_ns);
    atomic_store(&e->stats.busy_background_ns, s.busy_background_ns);
    atomic_store(&e->stats.recomputed_ns, s.recomputed_ns);
    atomic_store(&e->stats.kv_held, k.n_held - k.n_pinned);
    atomic_store(&e->stats.kv_pinned, k.n_pinned);
    atomic_store(&e->stats.kv_cached, k.n_cached);
    atomic_store(&e->stats.steps, s.steps);
    atomic_store(&e->stats.preemptions, s.preemptions);
    atomic_store(&e->stats.prefill_tokens, s.prefill_tokens);
    atomic_store(&e->stats.decode_tokens, s.decode_tokens);
    atomic_store(&e->stats.recomputed_tokens, s.recomputed_tokens);
    atomic_store(&e->stats.suspensions, s.suspensions);
    atomic_store(&e->stats.lookup_tokens, k.lookups_tokens);
    atomic_store(&e->stats.hit_tokens, k.hits_tokens);
}

/* Only this thread changes these, so a load and a store are enough. */
static void add_u64(atomic_ullong *v, uint64_t n) {
    atomic_store_explicit(v, atomic_load_explicit(v, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

static void add_i64(atomic_llong *v, int64_t n) {
    atomic_store_explicit(v, atomic_load_explicit(v, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

/* What the step that has just been run was, for whoever looks. Tokens of a step that gave way
 * count with its last stretch. */
static void publish_step(gs_engine *e, const gs_plan *plan) {
    const gs_step_record *r = gs_sched_last_step(e->sched);
    gs_steps_push(e->steps, r);
    for (int32_t i = 0; i < r->n_parts; i++) {
        const gs_step_part *p = &r->parts[i];
        add_i64(&e->stats.device_ns[p->cls][p->phase], p->ns);
        if (!r->gave_way)
            add_u64(&e->stats.tokens[p->cls][p->phase], (uint64_t)p->n_tokens);
    }
    if (r->gave_way)
        return;
    int bucket = 0;
    while (bucket < GS_STEP_TOKENS_N - 1 && plan->n_tokens > gs_step_tokens_bounds[bucket])
        bucket++;
    add_u64(&e->stats.step_tokens[bucket], 1);
    add_u64(&e->stats.step_tokens_sum, (uint64_t)plan->n_tokens);
    for (int32_t i = 0; i < plan->n_items; i++) {
        const uint32_t person = ((const gs_seq *)plan->items[i].user)->desc.person;
        if (person < GS_ENGINE_PERSONS)
            atomic_store_explicit(&e->stats.person_ns[person],
                                  gs_sched_charged_ns(e->sched, person), memory_order_relaxed);
    }
}

/* How right the step-time model was. A step that gave way was not measured as a whole. */
static void judge_prediction(gs_engine *e, const gs_plan *plan, int64_t elapsed_ns) {
    if (plan->predicted_ns <= 0 || elapsed_ns <= 0 || plan->resume)
        return;
    double ratio = (double)plan->predicted_ns / (double)elapsed_ns;
    for (int i = 0; i < GS_RATIO_N; i++)
        if (ratio <= gs_ratio_bounds[i])
            atomic_fetch_add(&e->stats.ratio_count[i], 1);
    atomic_store(&e->stats.ratio_sum, atomic_load(&e->stats.ratio_sum) + ratio);
    if (plan->step % ERROR_STEPS != 0)
        return;
    gs_cost_error error;
    gs_cost_get_error(gs_sched_cost(e->sched), &error);
    atomic_store(&e->stats.cost_median_ratio, error.median_ratio);
    atomic_store(&e->stats.cost_median_error, error.median_error);
    atomic_store(&e->stats.cost_p95_error, error.p95_error);
}

static void check_invariants(const gs_engine *e) {
    char err[256] = "";
    if (!e->cfg.check || gs_sched_check(e->sched, err, sizeof(err)) == 0)
        return;
    gs_error("engine", "invariant broken: %s", err);
    GS_ASSERT(!"scheduler invariant broken");
}

static int forward(gs_engine *e, const gs_plan *plan, gs_batch *batch, int64_t *elapsed_ns) {
    const gs_backend_ops *ops = e->backend->ops;
    int64_t began_ns = gs_now_ns();
    atomic_store(&e->stats.step_began_ns, began_ns);
    e->in_step = true;
    int rc = plan->resume ? ops->resume(e->backend, batch) : ops->forward(e->backend, batch);
    e->in_step = false;
    *elapsed_ns = gs_now_ns() - began_ns;
    atomic_store(&e->stats.step_began_ns, 0);
    atomic_fetch_add(&e->stats.busy_ns, *elapsed_ns);
    if (*elapsed_ns > atomic_load(&e->stats.longest_step_ns))
        atomic_store(&e->stats.longest_step_ns, *elapsed_ns);
    return rc;
}

static void run_step(gs_engine *e, const gs_plan *plan) {
    gs_batch batch;
    gs_step_result result = {.items = e->results};
    build_batch(e, plan, &batch);
    int rc = forward(e, plan, &batch, &result.elapsed_ns);
    if (rc == GS_BACKEND_SUSPENDED) {
        gs_sched_suspend(e->sched, plan, result.elapsed_ns, gs_now_ns());
        publish_step(e, plan);
        return;
    }
    result.err = rc;
    if (rc == 0)
        collect_results(e, plan);
    else
        gs_warn("engine", "a step failed: %s sequences=%d", gs_err_text(rc), plan->n_items);
    /* Tokens first: a sequence's END must follow its last token. The plan's own arrays stay valid
     * until the commit, which appends the tokens to each sequence. */
    if (rc == 0) {
        post_tokens(e, plan);
        judge_prediction(e, plan, result.elapsed_ns);
    }
    gs_sched_commit(e->sched, plan, &result, gs_now_ns());
    publish_step(e, plan);
}

/* The whole engine: drain, plan, forward, commit. */
static void engine_loop(gs_engine *e) {
    while (!atomic_load(&e->stop)) {
        gs_plan plan;
        drain_inbox(e);
        gs_sched_plan(e->sched, gs_now_ns(), &plan);
        if (plan.n_items > 0)
            run_step(e, &plan);
        handle_changes(e);
        report_ends(e);
        check_invariants(e);
        publish_stats(e);
        wake_owner(e);
        if (plan.n_items == 0)
            wait_for_work(e, plan.wake_ns);
    }
}

/* ---- Start and stop
 * --------------------------------------------------------------------------------- */

static int open_parts(gs_engine *e) {
    int rc = e->cfg.open(e->cfg.open_arg, &e->backend, e->error, sizeof(e->error));
    if (rc != 0)
        return rc;
    e->backend->ops->info(e->backend, &e->info);
    const gs_backend_info *bi = &e->info;
    gs_kv_config kc = {.n_blocks = bi->n_kv_blocks,
                       .block_tokens = bi->block_tokens,
                       .max_seqs = bi->max_seqs,
                       .max_blocks_per_seq =
                           (bi->max_context + bi->block_tokens - 1) / bi->block_tokens,
                       .no_prefix_cache = e->cfg.no_prefix_cache};
    rc = gs_kv_create(&kc, &e->kv);
    if (rc != 0)
        return gs_fail(e->error, sizeof(e->error), rc, "KV ledger: %s", gs_err_text(rc));
    e->slo.safepoints = e->slo.safepoints && e->backend->ops->resume != NULL;
    gs_sched_config sc = {.max_seqs = bi->max_seqs,
                          .max_waiting = e->cfg.max_waiting,
                          .max_batch_tokens = bi->max_batch_tokens,
                          .prefill_chunk = e->cfg.prefill_chunk,
                          .max_context = bi->max_context,
                          .max_persons = e->cfg.max_persons,
                          .whole_prompts = bi->whole_prompts,
                          .policy = e->cfg.policy,
                          .cost = e->cfg.cost,
                          .classes = e->classes,
                          .slo = &e->slo,
                          .seed = e->cfg.seed};
    rc = gs_sched_create(&sc, e->kv, &e->sched);
    if (rc != 0)
        return gs_fail(e->error, sizeof(e->error), rc, "scheduler: %s", gs_err_text(rc));
    size_t n = (size_t)bi->max_seqs;
    e->items = gs_calloc(n, sizeof(*e->items));
    e->samples = gs_calloc(n, sizeof(*e->samples));
    e->results = gs_calloc(n, sizeof(*e->results));
    if (!e->items || !e->samples || !e->results)
        return gs_fail(e->error, sizeof(e->error), GS_ERR_NOMEM, "out of memory");
    return 0;
}

/* Computes one public prefix by the usual steps; nobody else is there yet. */
static int compute_prefix(gs_engine *e, const gs_public_prefix *p) {
    gs_admission adm;
    gs_seq_end end = {0};
    gs_seq *q = gs_seq_create(p->tokens, p->n, 0);
    if (!q)
        return GS_ERR_NOMEM;
    q->desc.id = atomic_fetch_add(&e->next_id, 1) + 1;
    q->desc.class_fixed = true;
    q->desc.cache_scope = GS_KV_PUBLIC;
    q->desc.prefill_only = true;
    q->desc.n_public = p->n;
    q->desc.arrival_ns = gs_now_ns();
    int rc = gs_sched_submit(e->sched, &q->desc, q->desc.arrival_ns, &adm);
    while (rc == 0 && !gs_sched_next_end(e->sched, &end)) {
        gs_plan plan;
        gs_sched_plan(e->sched, gs_now_ns(), &plan);
        if (plan.n_items > 0)
            run_step(e, &plan);
    }
    if (rc == 0 && end.reason == GS_END_ERROR)
        rc = end.err;
    gs_seq_free(q);
    return rc;
}

static void warm_prefixes(gs_engine *e) {
    const gs_public_prefixes *all = e->cfg.prefixes;
    for (int32_t i = 0; all && !e->cfg.no_prefix_cache && i < all->n; i++) {
        const gs_public_prefix *p = &all->items[i];
        gs_kv_stats k;
        gs_kv_get_stats(e->kv, &k);
        const double blocks = k.n_pinned + (double)p->n / e->info.block_tokens;
        if (blocks > all->pinned_share * k.n_blocks) {
            gs_warn("engine", "prefix.files: the %d. does not fit prefix.pinned_share", i + 1);
            continue;
        }
        int rc = compute_prefix(e, p);
        uint32_t n = rc == 0 ? gs_kv_pin(e->kv, p->tokens, p->n) : 0;
        if (rc != 0)
            gs_warn("engine", "prefix.files: the %d. was not computed: %s", i + 1, gs_err_text(rc));
        else
            gs_info("engine", "shared prefix tokens=%d blocks=%u", p->n, n);
    }
}

/* A failed engine still answers: everything is rejected until it is freed. */
static void refuse_loop(gs_engine *e) {
    while (!atomic_load(&e->stop)) {
        drain_inbox(e);
        wake_owner(e);
        wait_for_work(e, GS_NEVER_NS);
    }
}

static void *engine_main(void *arg) {
    gs_engine *e = arg;
    pthread_setname_np(pthread_self(), "gs-engine");
    int rc = open_parts(e);
    if (rc == 0)
        warm_prefixes(e);
    atomic_store(&e->state, rc == 0 ? GS_ENGINE_READY : GS_ENGINE_FAILED);
    e->posted = true;
    wake_owner(e);
    if (rc == 0)
        engine_loop(e);
    else
        refuse_loop(e);
    gs_sched_free(e->sched);
    gs_kv_free(e->kv);
    if (e->backend)
        e->backend->ops->destroy(e->backend);
    return NULL;
}

int gs_engine_create(const gs_engine_config *cfg, gs_engine **out, char *err, size_t errlen) {
    gs_engine *e = gs_aligned(64, sizeof(*e));
    if (!e)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    memset(e, 0, sizeof(*e));
    e->cfg = *cfg;
    gs_class_defaults(e->classes);
    gs_slo_defaults(&e->slo);
    if (cfg->classes)
        memcpy(e->classes, cfg->classes, sizeof(e->classes));
    if (cfg->slo)
        e->slo = *cfg->slo;
    gs_mpsc_init(&e->inbox);
    int rc = gs_spsc_init(&e->outbox, OUTBOX_EVENTS, sizeof(gs_event));
    if (rc != 0) {
        gs_free(e);
        return gs_fail(err, errlen, rc, "out of memory");
    }
    rc = gs_steps_create(STEP_SLOTS, &e->steps);
    if (rc != 0) {
        gs_spsc_deinit(&e->outbox);
        gs_free(e);
        return gs_fail(err, errlen, rc, "out of memory");
    }
    rc = gs_guides_create(&e->guides);
    if (rc != 0) {
        gs_steps_free(e->steps);
        gs_spsc_deinit(&e->outbox);
        gs_free(e);
        return gs_fail(err, errlen, rc, "could not start the guide threads");
    }
    e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->wake_fd < 0) {
        rc = gs_fail(err, errlen, GS_ERR_IO, "eventfd: %s", strerror(errno));
        goto fail;
    }
    atomic_store(&e->state, GS_ENGINE_LOADING);
    if (pthread_create(&e->thread, NULL, engine_main, e) != 0) {
        close(e->wake_fd);
        rc = gs_fail(err, errlen, GS_ERR_NOMEM, "could not start the engine thread");
        goto fail;
    }
    *out = e;
    return 0;
fail:
    gs_guides_free(e->guides);
    gs_steps_free(e->steps);
    gs_spsc_deinit(&e->outbox);
    gs_free(e);
    return rc;
}

void gs_engine_free(gs_engine *e) {
    if (!e)
        return;
    atomic_store(&e->stop, 1);
    uint64_t one = 1;
    (void)!write(e->wake_fd, &one, sizeof(one));
    pthread_join(e->thread, NULL);
    gs_guides_free(e->guides);
    close(e->wake_fd);
    gs_spsc_deinit(&e->outbox);
    gs_free(e->items);
    gs_free(e->samples);
    gs_free(e->results);
    gs_steps_free(e->steps);
    gs_free(e);
}

/* ---- Other threads
 * ------------------------------------------------------------------------------------ */

void gs_engine_submit(gs_engine *e, gs_seq *q) {
    gs_mpsc_push(&e->inbox, &q->submit_msg.node);
    wake_engine(e);
}

void gs_engine_cancel(gs_engine *e, gs_seq *q) {
    int live = LIFE_LIVE;
    if (!atomic_compare_exchange_strong(&q->life, &live, LIFE_CANCELLING))
        return;
    gs_mpsc_push(&e->inbox, &q->cancel_msg.node);
    wake_engine(e);
}

void gs_engine_ask(gs_engine *e, gs_query *q) {
    q->msg = (gs_engine_msg){.kind = GS_ENGINE_QUERY, .query = q};
    gs_mpsc_push(&e->inbox, &q->msg.node);
    wake_engine(e);
}

bool gs_engine_poll(gs_engine *e, gs_event *out) {
    return gs_spsc_pop(&e->outbox, out);
}

const gs_steps *gs_engine_steps(const gs_engine *e) {
    return e->steps;
}

gs_engine_state gs_engine_get_state(const gs_engine *e) {
    return (gs_engine_state)atomic_load(&e->state);
}

const char *gs_engine_error(const gs_engine *e) {
    return e->error;
}

void gs_engine_info(const gs_engine *e, gs_backend_info *out) {
    *out = e->info;
}

gs_backend *gs_engine_backend(const gs_engine *e) {
    return e->backend;
}

void gs_engine_get_stats(const gs_engine *e, gs_engine_stats *out) {
    *out = (gs_engine_stats){
        .n_running = atomic_load(&e->stats.n_running),
        .n_waiting = atomic_load(&e->stats.n_waiting),
        .kv_blocks_held = atomic_load(&e->stats.kv_held),
        .kv_blocks_cached = atomic_load(&e->stats.kv_cached),
        .kv_blocks_pinned = atomic_load(&e->stats.kv_pinned),
        .steps = atomic_load(&e->stats.steps),
        .preemptions = atomic_load(&e->stats.preemptions),
        .prefill_tokens = atomic_load(&e->stats.prefill_tokens),
        .decode_tokens = atomic_load(&e->stats.decode_tokens),
        .recomputed_tokens = atomic_load(&e->stats.recomputed_tokens),
        .prefix_lookup_tokens = atomic_load(&e->stats.lookup_tokens),
        .prefix_hit_tokens = atomic_load(&e->stats.hit_tokens),
        .step_began_ns = atomic_load(&e->stats.step_began_ns),
        .longest_step_ns = atomic_load(&e->stats.longest_step_ns),
        .busy_ns = atomic_load(&e->stats.busy_ns),
        .suspensions = atomic_load(&e->stats.suspensions),
    };
    if (atomic_load(&e->state) == GS_ENGINE_READY)
        out->kv_blocks_total = e->info.n_kv_blocks;
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        out->n_running_by_class[c] = atomic_load(&e->stats.running_by_class[c]);
        out->n_waiting_by_class[c] = atomic_load(&e->stats.waiting_by_class[c]);
        out->n_target[c] = atomic_load(&e->stats.n_target[c]);
        out->n_missed[c] = atomic_load(&e->stats.n_missed[c]);
        out->n_relegated[c] = atomic_load(&e->stats.n_relegated[c]);
        out->window_ns[c] = atomic_load(&e->stats.window_ns[c]);
        out->effective_tpot_ns[c] = atomic_load(&e->stats.effective_tpot_ns[c]);
        out->n_held[c] = atomic_load(&e->stats.n_held[c]);
        out->held_ns[c] = atomic_load(&e->stats.held_ns[c]);
        for (int p = 0; p < GS_PHASE_COUNT; p++) {
            out->tokens[c][p] = atomic_load(&e->stats.tokens[c][p]);
            out->device_ns[c][p] = atomic_load(&e->stats.device_ns[c][p]);
        }
    }
    for (int i = 0; i < GS_STEP_TOKENS_N; i++)
        out->step_tokens[i] = atomic_load(&e->stats.step_tokens[i]);
    out->step_tokens_sum = atomic_load(&e->stats.step_tokens_sum);
    for (int i = 0; i < GS_ENGINE_PERSONS; i++)
        out->person_ns[i] = atomic_load(&e->stats.person_ns[i]);
    out->saved_ns = atomic_load(&e->stats.saved_ns);
    for (int i = 0; i < GS_RATIO_N; i++)
        out->ratio_count[i] = atomic_load(&e->stats.ratio_count[i]);
    out->ratio_sum = atomic_load(&e->stats.ratio_sum);
    out->cost_median_ratio = atomic_load(&e->stats.cost_median_ratio);
    out->cost_median_error = atomic_load(&e->stats.cost_median_error);
    out->cost_p95_error = atomic_load(&e->stats.cost_p95_error);
    out->discarded_ns = atomic_load(&e->stats.discarded_ns);
    out->busy_background_ns = atomic_load(&e->stats.busy_background_ns);
    out->recomputed_ns = atomic_load(&e->stats.recomputed_ns);
}
