#include "engine/engine.h"

#include <errno.h>
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
#include "base/park.h"
#include "base/sys.h"
#include "engine/beside.h"
#include "engine/lane_impl.h"
#include "sched/turns.h"

#define OUTBOX_EVENTS 8192
/* Steps that can be looked back at: a second of the shortest ones. */
#define STEP_SLOTS 1024

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
    gs_lane *lanes[GS_ENGINE_LANES];  /* NULL: free */
    gs_lane *active[GS_ENGINE_LANES]; /* the others, packed, and their schedulers */
    gs_sched *scheds[GS_ENGINE_LANES];
    int32_t n_active;
    gs_accounts *accounts;
    gs_guides *guides;
    int32_t running;     /* index of active: whose step runs */
    const gs_plan *plan; /* that step */
    gs_beside *beside;   /* NULL: no step ever runs beside another */
    gs_plan beside_plan; /* n_items > 0: it runs, for lanes[0] */
    gs_batch beside_batch;
    gs_engine_stats gone;                    /* what lanes that are gone have counted */
    gs_steps *steps;                         /* read by others */
    bool posted;                             /* events since the last wake */
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
    char error[256]; /* written before state becomes FAILED */
    /* Each lane's are written before it is told of (READY, or the query's answer). */
    gs_backend_info info[GS_ENGINE_LANES];
    gs_shared_stats stats[GS_ENGINE_LANES];
    gs_shared_stats gone_stats;
    atomic_llong step_began_ns, longest_step_ns;
    /* Whose code runs, while it runs: then no lock is held, and all of the above is consistent. */
    _Atomic(gs_backend *) computing;
    _Atomic uint64_t n_began; /* steps */
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
    const gs_backend_info *bi = &e->info[q->lane];
    if (q->embedding && end->reason == GS_END_DONE)
        gs_embed_finish(bi->pooling, q->embedding, bi->n_embd, q->desc.n_prompt);
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
    for (int32_t i = 0; i < e->n_active; i++)
        while (gs_sched_next_end(e->scheds[i], &end))
            if (!gs_lane_warm_ended(e->active[i], end.user, &end))
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
static void set_person(gs_sched *s, uint32_t person, const gs_person_config *limits) {
    gs_slo_config slo;
    gs_person_config c = *limits;
    gs_sched_get_slo(s, &slo);
    if (c.weight == 0.0)
        c.weight = slo.person.weight;
    if (c.max_running == 0)
        c.max_running = slo.person.max_running;
    if (c.max_waiting == 0)
        c.max_waiting = slo.person.max_waiting;
    if (c.day_ns == 0)
        c.day_ns = slo.person.day_ns;
    gs_sched_set_person(s, person, &c);
}

/* NULL: not loaded (any more). */
static gs_lane *lane_of(const gs_engine *e, const gs_seq *q) {
    return q->lane >= 0 && q->lane < GS_ENGINE_LANES ? e->lanes[q->lane] : NULL;
}

static void handle_submit(gs_engine *e, gs_seq *q, int64_t now_ns) {
    gs_admission adm = {0};
    q->desc.id = atomic_fetch_add(&e->next_id, 1) + 1;
    if (q->desc.arrival_ns == 0)
        q->desc.arrival_ns = now_ns;
    gs_lane *l = lane_of(e, q);
    if (!l) {
        adm.code = GS_ERR_UNAVAILABLE;
        adm.reason = "the model is not loaded";
        reject(e, q, &adm);
        return;
    }
    if (q->has_limits)
        set_person(l->sched, q->desc.person, &q->limits);
    int rc = gs_sched_submit(l->sched, &q->desc, now_ns, &adm);
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
    gs_lane *l = lane_of(e, q);
    if (q->admitted && l)
        gs_sched_cancel(l->sched, q->desc.id, now_ns);
}

/* ---- Questions
 * ------------------------------------------------------------------------------------------- */

static int configure_lane(gs_lane *l, const gs_engine_settings *s) {
    gs_slo_config slo = s->slo;
    slo.safepoints = slo.safepoints && l->backend->ops->resume != NULL;
    int rc = gs_sched_set_classes(l->sched, s->classes, NULL);
    if (rc == GS_OK)
        rc = gs_sched_set_slo(l->sched, &slo);
    if (rc == GS_OK)
        rc = gs_sched_set_chunk(l->sched, s->prefill_chunk);
    return rc;
}

/* All lanes take the same, so what one takes the others do. */
static int configure(gs_engine *e, const gs_engine_settings *s) {
    if (gs_slo_check(&s->slo, NULL) != GS_OK || s->prefill_chunk < 1)
        return GS_ERR_INVALID;
    int rc = GS_OK;
    for (int32_t i = 0; i < e->n_active && rc == GS_OK; i++)
        rc = configure_lane(e->active[i], s);
    if (rc == GS_OK) { /* for lanes to come */
        memcpy(e->classes, s->classes, sizeof(e->classes));
        e->slo = s->slo;
        e->cfg.prefill_chunk = s->prefill_chunk;
    }
    return rc;
}

static void answer(gs_engine *e, gs_query *q) {
    gs_event ev = {.kind = GS_EVENT_ANSWER};
    ev.u.answer = q;
    post(e, &ev);
}

static void take_pool(const gs_lane *l, gs_pool_view *p) {
    p->known = false;
    if (!l || p->n_blocks == 0)
        return;
    gs_kv_get_stats(l->kv, &p->kv);
    p->known = p->kv.n_blocks == p->n_blocks; /* or another model has the lane by now */
    if (p->known)
        gs_kv_map(l->kv, p->map);
}

static void take_view(const gs_engine *e, gs_engine_view *v) {
    gs_slo_config slo;
    for (int32_t i = 0; i < GS_ENGINE_LANES; i++)
        take_pool(e->lanes[i], &v->pools[i]);
    /* Persons and settings are common to all lanes. */
    slo = e->slo;
    memset(v->persons, 0, v->n_persons * sizeof(*v->persons));
    if (e->n_active > 0) {
        gs_sched_get_persons(e->scheds[0], v->persons, v->n_persons);
        gs_sched_get_slo(e->scheds[0], &slo);
    }
    v->background_paused = slo.background_paused;
}

static void take_snapshot(const gs_engine *e, gs_query *q) {
    for (int32_t i = 0; i < e->n_active; i++) {
        const int32_t first = q->n_records;
        q->n_records += gs_sched_snapshot(e->scheds[i], q->records + first, q->max_records - first);
        for (int32_t k = first; k < q->n_records; k++)
            q->records[k].model = e->active[i]->index;
    }
}

static void take_records(const gs_engine *e, gs_query *q) {
    for (int32_t i = 0; i < q->n_ids; i++)
        for (int32_t k = 0; k < e->n_active && q->n_records < q->max_records; k++) {
            gs_explain *x = &q->records[q->n_records];
            if (gs_sched_explain(e->scheds[k], q->ids[i], x) != GS_OK)
                continue;
            x->model = e->active[k]->index;
            q->n_records++;
        }
}

/* Questions are answered at any time, changes between two steps. */
static void pause_sequences(gs_engine *e, const gs_query *q, int64_t now_ns) {
    for (int32_t i = 0; i < q->n_ids; i++)
        for (int32_t k = 0; k < e->n_active; k++)
            gs_sched_pause(e->scheds[k], q->ids[i], q->pause, now_ns);
}

static void handle_query(gs_engine *e, gs_query *q, int64_t now_ns) {
    q->now_ns = now_ns;
    q->n_records = 0;
    q->code = GS_OK;
    report_ends(
        e); /* what is no longer known to the scheduler has been told of before the answer */
    if (atomic_load(&e->state) != GS_ENGINE_READY) {
        q->code = GS_ERR_UNAVAILABLE;
    } else if (q->kind == GS_QUERY_QUEUE || q->kind == GS_QUERY_STATE) {
        take_snapshot(e, q);
        if (q->kind == GS_QUERY_STATE)
            take_view(e, q->view);
        if (q->cost_out && e->n_active > 0 && e->active[0]->index == 0)
            *q->cost_out = *gs_sched_cost(e->scheds[0]);
    } else if (q->kind == GS_QUERY_EXPLAIN || q->kind == GS_QUERY_PAUSE) {
        if (q->kind == GS_QUERY_PAUSE)
            pause_sequences(e, q, now_ns);
        take_records(e, q);
    } else if (q->kind == GS_QUERY_CHARGE) { /* all lanes share the accounts */
        q->code = e->n_active > 0 ? gs_sched_charge(e->scheds[0], q->person, q->charge_ns, now_ns)
                                  : GS_ERR_UNAVAILABLE;
    } else {
        q->next = e->changes;
        e->changes = q;
        return;
    }
    answer(e, q);
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

static bool beside_is_over(const gs_engine *e) {
    return e->beside_plan.n_items > 0 && gs_beside_is_done(e->beside);
}

/* Sleeps until until_ns, or until the inbox has something or the step beside is over. */
static void wait_for_work(gs_engine *e, int64_t until_ns) {
    atomic_store(&e->sleeping, 1);
    /* Whoever pushed before the store above did not see us sleeping: look once more. */
    if (drain_inbox(e) || atomic_load(&e->stop) || beside_is_over(e)) {
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
    atomic_store(&e->computing, NULL);
    if (drain_inbox(e))
        wake_owner(e);
    const bool yields =
        gs_turns_should_yield(e->scheds, e->n_active, e->running, e->plan, gs_now_ns());
    atomic_store(&e->computing, e->active[e->running]->backend);
    return yields;
}

static void post_tokens(gs_engine *e, const gs_lane_step *st, const gs_plan *plan) {
    for (int32_t i = 0; i < plan->n_items; i++) {
        if (!plan->items[i].sample || st->results[i].err || st->results[i].retry)
            continue;
        gs_event ev = {.kind = GS_EVENT_TOKEN, .seq = plan->items[i].user};
        ev.u.token.sample = st->samples[i];
        ev.u.token.stop = st->results[i].stop;
        ev.u.token.n_cached = plan->items[i].n_cached;
        post(e, &ev);
    }
}

static void publish_step(gs_engine *e, gs_lane *l, const gs_plan *plan) {
    gs_step_record r = *gs_sched_last_step(l->sched);
    r.model = l->index;
    gs_steps_push(e->steps, &r);
    gs_lane_count_step(l, plan);
}

static void publish_stats(gs_engine *e) {
    for (int32_t i = 0; i < e->n_active; i++) {
        gs_lane_count(e->active[i]);
        gs_shared_stats_write(&e->stats[e->active[i]->index], &e->active[i]->stats);
    }
}

static void check_invariants(const gs_engine *e) {
    char err[256] = "";
    for (int32_t i = 0; e->cfg.check && i < e->n_active; i++) {
        if (gs_sched_check(e->scheds[i], err, sizeof(err)) == 0)
            continue;
        gs_error("engine", "invariant broken: %s", err);
        GS_ASSERT(!"scheduler invariant broken");
    }
}

static int forward(gs_engine *e, gs_lane *l, const gs_plan *plan, gs_batch *batch,
                   int64_t *elapsed_ns) {
    const gs_backend_ops *ops = l->backend->ops;
    int64_t began_ns = gs_now_ns();
    atomic_store(&e->step_began_ns, began_ns);
    atomic_fetch_add_explicit(&e->n_began, 1, memory_order_relaxed);
    e->plan = plan;
    atomic_store(&e->computing, l->backend);
    int rc = plan->resume ? ops->resume(l->backend, batch) : ops->forward(l->backend, batch);
    atomic_store(&e->computing, NULL);
    e->plan = NULL;
    *elapsed_ns = gs_now_ns() - began_ns;
    atomic_store(&e->step_began_ns, 0);
    return rc;
}

/* Whichever of the two steps it was. */
static void finish_step(gs_engine *e, gs_lane *l, gs_lane_step *st, const gs_plan *plan, int rc,
                        int64_t elapsed_ns) {
    const bool few = plan->max_threads > 0 && plan->max_threads < l->info.n_threads;
    const gs_step_result result = {
        .err = rc, .elapsed_ns = elapsed_ns, .few_threads = few, .items = st->results};
    if (elapsed_ns > atomic_load(&e->longest_step_ns))
        atomic_store(&e->longest_step_ns, elapsed_ns);
    if (rc == 0)
        gs_lane_collect(st, plan, e->guides);
    else
        gs_warn("engine", "a step failed: %s sequences=%d", gs_err_text(rc), plan->n_items);
    /* Tokens first: a sequence's END must follow its last token. The plan's own arrays stay valid
     * until the commit, which appends the tokens to each sequence. */
    if (rc == 0) {
        post_tokens(e, st, plan);
        if (!few)
            gs_lane_judge_prediction(l, plan, elapsed_ns);
    }
    if (st == &l->beside)
        gs_sched_commit_beside(l->sched, plan, &result, gs_now_ns());
    else
        gs_sched_commit(l->sched, plan, &result, gs_now_ns());
    publish_step(e, l, plan);
}

static void run_step(gs_engine *e, int32_t at, const gs_plan *plan) {
    gs_lane *l = e->active[at];
    gs_batch batch;
    int64_t elapsed_ns;
    e->running = at;
    gs_lane_build_batch(l, &l->step, plan, &batch);
    if (plan->may_yield) {
        batch.should_yield = should_yield;
        batch.yield_arg = e;
    }
    int rc = forward(e, l, plan, &batch, &elapsed_ns);
    if (rc == GS_BACKEND_SUSPENDED) {
        gs_sched_suspend(l->sched, plan, elapsed_ns, gs_now_ns());
        publish_step(e, l, plan);
        return;
    }
    finish_step(e, l, &l->step, plan, rc, elapsed_ns);
}

/* ---- A step beside it (mode split)
 * ------------------------------------------------------------- */

static void beside_done(void *arg) {
    wake_engine(arg);
}

/* Without one there is no mode split, and all else works. */
static void open_beside(gs_engine *e) {
    gs_lane *l = e->lanes[0];
    if (!l->backend->ops->sibling || l->info.n_threads < 2)
        return;
    const int rc = gs_beside_create(l->backend, beside_done, e, &e->beside);
    if (rc != 0)
        gs_warn("engine", "no second step beside the first, so no mode split: %s", gs_err_text(rc));
}

/* Split is for one model alone: with several each step has all cores. */
static void allow_split(gs_engine *e) {
    for (int32_t i = 0; i < e->n_active; i++)
        gs_sched_set_splits(e->scheds[i], e->beside && e->n_active == 1 && e->active[i]->index == 0,
                            e->beside && e->n_active > 1 ? GS_MODE_WHY_MODELS : GS_MODE_WHY_DEVICE);
}

/*
 * Between two own steps. Its copies are done here: a block that is copied from may be given to
 * somebody else, and written by the next own step. All else that the two steps touch is theirs
 * alone, or only read.
 */
static void begin_beside(gs_engine *e) {
    if (!e->beside || e->n_active != 1 || e->beside_plan.n_items > 0)
        return;
    gs_lane *l = e->active[0];
    gs_sched_plan_beside(l->sched, gs_now_ns(), &e->beside_plan);
    if (e->beside_plan.n_items == 0)
        return;
    gs_lane_build_batch(l, &l->beside, &e->beside_plan, &e->beside_batch);
    if (e->beside_batch.n_copies > 0) {
        gs_batch copies = {.copies = e->beside_batch.copies, .n_copies = e->beside_batch.n_copies};
        (void)l->backend->ops->forward(l->backend, &copies);
        e->beside_batch.n_copies = 0;
    }
    gs_beside_start(e->beside, &e->beside_batch);
}

/* Commits it if it is over. */
static void end_beside(gs_engine *e, bool wait) {
    if (e->beside_plan.n_items == 0)
        return;
    int rc;
    int64_t elapsed_ns;
    if (!gs_beside_take(e->beside, wait, &rc, &elapsed_ns))
        return;
    gs_lane *l = e->active[0];
    const gs_plan plan = e->beside_plan;
    e->beside_plan.n_items = 0;
    finish_step(e, l, &l->beside, &plan, rc, elapsed_ns);
}

/* ---- Lanes come and go
 * ------------------------------------------------------------------------------- */

static void pack_lanes(gs_engine *e) {
    e->n_active = 0;
    for (int32_t i = 0; i < GS_ENGINE_LANES; i++) {
        if (!e->lanes[i])
            continue;
        e->active[e->n_active] = e->lanes[i];
        e->scheds[e->n_active++] = e->lanes[i]->sched;
    }
    allow_split(e);
}

/* Takes backend in every case. The lane's index, 0 for the first's alone, or a code and a sentence.
 */
static int add_lane(gs_engine *e, bool first, gs_backend *backend, const gs_cost *cost, char *err,
                    size_t errlen) {
    int32_t index = first ? 0 : 1;
    while (index < GS_ENGINE_LANES && e->lanes[index])
        index++;
    if (index == GS_ENGINE_LANES) {
        backend->ops->destroy(backend);
        return gs_fail(err, errlen, GS_ERR_OVERLOADED, "at most %d models can be loaded at once",
                       GS_ENGINE_LANES);
    }
    gs_lane *l = NULL;
    int rc =
        gs_lane_create(&e->cfg, backend, cost, e->classes, &e->slo, e->accounts, &l, err, errlen);
    if (rc != 0)
        return rc;
    l->index = index;
    e->lanes[index] = l;
    e->info[index] = l->info;
    if (index == 0)
        open_beside(e);
    pack_lanes(e);
    return index;
}

/* Somebody waits for a step: what can wait does. */
static bool has_work(void *arg) {
    gs_engine *e = arg;
    if (drain_inbox(e))
        wake_owner(e);
    for (int32_t i = 0; i < e->n_active; i++) {
        gs_sched_stats s;
        gs_sched_get_stats(e->scheds[i], &s);
        if (s.n_running + s.n_waiting > 0)
            return true;
    }
    return atomic_load(&e->stop);
}

static void attach(gs_engine *e, gs_query *q) {
    gs_backend *b = q->backend;
    q->backend = NULL;
    q->code = q->prepare ? q->prepare(q->prepare_arg, b, has_work, e) : GS_OK;
    if (q->code != GS_OK) {
        gs_fail(q->err, sizeof(q->err), q->code, "its first step failed");
        b->ops->destroy(b);
        return;
    }
    const int rc = add_lane(e, q->first, b, q->cost, q->err, sizeof(q->err));
    q->code = rc < 0 ? rc : GS_OK;
    q->lane = rc < 0 ? -1 : rc;
    if (rc >= 0 && !e->cfg.no_prefix_cache)
        e->lanes[rc]->prefixes = q->prefixes;
}

/* Further lanes serve while theirs are computed, as other work without hurry. */
static void warm_further(gs_engine *e) {
    for (int32_t i = 0; i < e->n_active; i++)
        if (!gs_lane_is_warm(e->active[i]))
            gs_lane_warm(e->active[i], GS_CLASS_UTILITY, atomic_fetch_add(&e->next_id, 1) + 1,
                         gs_now_ns());
}

static bool moves_pages(const gs_engine *e) {
    for (int32_t i = 0; i < e->n_active; i++)
        if (gs_lane_warm_moves(e->active[i]))
            return true;
    return false;
}

/* Nothing runs beside: whoever asks for changes waits for that. */
static void detach(gs_engine *e, gs_query *q) {
    gs_lane *l = q->lane >= 0 && q->lane < GS_ENGINE_LANES ? e->lanes[q->lane] : NULL;
    q->code = l ? GS_OK : GS_ERR_NOT_FOUND;
    if (!l)
        return;
    if (l->warming) { /* nobody will have use of it */
        l->prefixes = NULL;
        gs_sched_cancel(l->sched, l->warming->desc.id, gs_now_ns());
        report_ends(e);
    }
    gs_lane_count(l);
    if (l->stats.n_running + l->stats.n_waiting > 0) {
        q->code = GS_ERR_EXISTS;
        return;
    }
    static const gs_engine_stats none;
    l->stats.kv_blocks_total = l->stats.kv_blocks_cached = 0;
    l->stats.kv_blocks_held = l->stats.kv_blocks_pinned = 0;
    gs_engine_stats_add(&e->gone, &l->stats);
    gs_shared_stats_write(&e->gone_stats, &e->gone);
    gs_shared_stats_write(&e->stats[q->lane], &none);
    e->lanes[q->lane] = NULL;
    if (q->lane == 0) {
        gs_beside_free(e->beside);
        e->beside = NULL;
    }
    pack_lanes(e);
    q->backend = gs_lane_free(l);
}

static void set_persons(const gs_engine *e, const gs_query *q) {
    for (int32_t i = 0; i < q->n_limits; i++)
        for (int32_t k = 0; k < e->n_active; k++)
            set_person(e->scheds[k], q->limits[i].person, &q->limits[i].limits);
}

/* What is to change, in the order in which it came; some may come meanwhile. */
static void handle_changes(gs_engine *e) {
    while (e->changes) {
        gs_query *oldest = NULL, *q;
        while ((q = e->changes)) {
            e->changes = q->next;
            q->next = oldest;
            oldest = q;
        }
        while ((q = oldest)) {
            oldest = q->next;
            if (q->kind == GS_QUERY_ATTACH)
                attach(e, q);
            else if (q->kind == GS_QUERY_DETACH)
                detach(e, q);
            else if (q->kind == GS_QUERY_PERSONS)
                set_persons(e, q);
            else
                q->code = configure(e, q->apply);
            answer(e, q);
        }
    }
}

/* Whose step is next. While the first model is loaded anew there may be no lane at all. */
static int32_t plan_turn(gs_engine *e, gs_plan *plan) {
    if (e->n_active > 0)
        return gs_turns_plan(e->scheds, e->n_active, gs_now_ns(), plan);
    *plan = (gs_plan){.wake_ns = GS_NEVER_NS};
    return -1;
}

/* The whole engine: drain, plan, forward, commit. */
static void engine_loop(gs_engine *e) {
    while (!atomic_load(&e->stop)) {
        gs_plan plan;
        drain_inbox(e);
        end_beside(e, e->changes != NULL);
        handle_changes(e); /* before planning: what waited for them may run now */
        warm_further(e);
        begin_beside(e);
        const int32_t at = plan_turn(e, &plan);
        if (plan.n_items > 0)
            run_step(e, at, &plan);
        report_ends(e);
        check_invariants(e);
        publish_stats(e);
        wake_owner(e);
        if (plan.n_items == 0 && !moves_pages(e))
            wait_for_work(e, plan.wake_ns);
    }
}

/* ---- Start and stop
 * --------------------------------------------------------------------------------- */

static int open_first(gs_engine *e) {
    gs_backend *b = NULL;
    int rc = e->cfg.open(e->cfg.open_arg, &b, e->error, sizeof(e->error));
    if (rc == 0)
        rc = gs_accounts_create(e->cfg.max_persons, &e->accounts);
    if (rc == 0)
        rc = add_lane(e, true, b, e->cfg.cost, e->error, sizeof(e->error));
    else if (b)
        b->ops->destroy(b);
    return rc;
}

/* The first lane's public prefixes, by the usual steps; nobody else is there yet. */
static void warm_first(gs_engine *e) {
    gs_lane *l = e->lanes[0];
    l->prefixes = e->cfg.no_prefix_cache ? NULL : e->cfg.prefixes;
    while (!gs_lane_is_warm(l)) {
        gs_plan plan;
        gs_lane_warm(l, GS_CLASS_CHAT, atomic_fetch_add(&e->next_id, 1) + 1, gs_now_ns());
        gs_sched_plan(l->sched, gs_now_ns(), &plan);
        if (plan.n_items > 0)
            run_step(e, 0, &plan);
        report_ends(e);
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

static void end_engine(gs_engine *e) {
    gs_beside_free(e->beside);
    for (int32_t i = 0; i < e->n_active; i++) {
        gs_backend *b = gs_lane_free(e->active[i]);
        b->ops->destroy(b);
    }
    gs_accounts_free(e->accounts);
}

static void *engine_main(void *arg) {
    gs_engine *e = arg;
    pthread_setname_np(pthread_self(), "gs-engine");
    int rc = open_first(e);
    if (rc == 0)
        warm_first(e);
    atomic_store(&e->state, rc == 0 ? GS_ENGINE_READY : GS_ENGINE_FAILED);
    e->posted = true;
    wake_owner(e);
    if (rc == 0)
        engine_loop(e);
    else
        refuse_loop(e);
    end_engine(e);
    return NULL;
}

/* The step that hung did not compute anything, and took nobody's time. */
static void give_step_up(gs_engine *e) {
    gs_lane *l = e->active[e->running];
    const gs_plan plan = *e->plan; /* on the stack of the thread that stands still */
    const gs_step_result result = {.items = l->step.results, .err = GS_ERR_STALLED};
    e->plan = NULL;
    atomic_store(&e->step_began_ns, 0);
    gs_warn("engine", "a step was given up: sequences=%d", plan.n_items);
    gs_sched_commit(l->sched, &plan, &result, gs_now_ns());
    publish_step(e, l, &plan);
    report_ends(e);
    wake_owner(e);
}

/* In place of a thread that hung. Without threads for the steps it says nothing, and the watchdog
 * sees that it is of no use. */
static void *revived_main(void *arg) {
    gs_engine *e = arg;
    gs_backend *b = atomic_load(&e->computing);
    pthread_setname_np(pthread_self(), "gs-engine");
    if (b->ops->restart && b->ops->restart(b) != GS_OK)
        return NULL;
    atomic_store(&e->computing, NULL);
    give_step_up(e);
    engine_loop(e);
    end_engine(e);
    return NULL;
}

uint64_t gs_engine_progress(const gs_engine *e) {
    /* A backend goes away only after the event loop, which is here, has heard of it. */
    const gs_backend *b = atomic_load(&e->computing);
    return atomic_load_explicit(&e->n_began, memory_order_relaxed) + (b ? b->ops->progress(b) : 0);
}

int gs_engine_revive(gs_engine *e) {
    if (!gs_park(&e->thread, 1))
        return GS_ERR_TIMEOUT;
    gs_backend *b = atomic_load(&e->computing);
    if (!b) { /* it has just come back, or hangs somewhere else */
        gs_unpark();
        return GS_ERR_EXISTS;
    }
    if (b->ops->park && !b->ops->park(b))
        return GS_ERR_TIMEOUT;
    pthread_detach(e->thread);
    return pthread_create(&e->thread, NULL, revived_main, e) == 0 ? GS_OK : GS_ERR_NOMEM;
}

uint64_t gs_engine_beside_progress(const gs_engine *e, bool *runs) {
    *runs = false;
    return e->beside ? gs_beside_progress(e->beside, runs) : 0;
}

int gs_engine_revive_beside(gs_engine *e) {
    return e->beside ? gs_beside_revive(e->beside) : GS_ERR_EXISTS;
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
        rc = gs_fail(err, errlen, GS_ERR_IO, "eventfd: %s", gs_errno_text(errno));
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

void gs_engine_lane_info(const gs_engine *e, int32_t lane, gs_backend_info *out) {
    *out = e->info[lane];
}

void gs_engine_info(const gs_engine *e, gs_backend_info *out) {
    gs_engine_lane_info(e, 0, out);
}

gs_backend *gs_engine_backend(const gs_engine *e, int32_t lane) {
    return e->lanes[lane] ? e->lanes[lane]->backend : NULL;
}

static void add_step_times(const gs_engine *e, gs_engine_stats *out) {
    out->step_began_ns = atomic_load(&e->step_began_ns);
    out->longest_step_ns = atomic_load(&e->longest_step_ns);
}

void gs_engine_get_lane_stats(const gs_engine *e, int32_t lane, gs_engine_stats *out) {
    gs_shared_stats_read(&e->stats[lane], out);
    add_step_times(e, out);
}

void gs_engine_get_stats(const gs_engine *e, gs_engine_stats *out) {
    gs_shared_stats_read(&e->stats[0], out);
    for (int32_t i = 1; i <= GS_ENGINE_LANES; i++) {
        gs_engine_stats s;
        gs_shared_stats_read(i < GS_ENGINE_LANES ? &e->stats[i] : &e->gone_stats, &s);
        gs_engine_stats_add(out, &s);
    }
    add_step_times(e, out);
}
