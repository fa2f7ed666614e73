#include "sched/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"
#include "sched/policy.h"
#include "sched/sim_impl.h"
#include "sched/turns.h"

/* ---- events: a binary heap --------------------------------------------------------------------*/

static bool earlier(const sim_event *a, const sim_event *b) {
    return a->t_ns != b->t_ns ? a->t_ns < b->t_ns : a->ordinal < b->ordinal;
}

void sim_push(gs_sim *m, sim_event e) {
    GS_ASSERT(m->n_events < m->max_events);
    e.ordinal = ++m->last_ordinal;
    int32_t i = m->n_events++;
    for (; i > 0 && earlier(&e, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = e;
}

static void push(gs_sim *m, int64_t t_ns, sim_event_kind kind, int32_t request) {
    sim_push(m, (sim_event){.t_ns = t_ns, .kind = kind, .request = request});
}

static sim_event pop(gs_sim *m) {
    const sim_event top = m->heap[0], e = m->heap[--m->n_events];
    int32_t i = 0;
    for (;;) {
        int32_t c = 2 * i + 1;
        if (c >= m->n_events)
            break;
        if (c + 1 < m->n_events && earlier(&m->heap[c + 1], &m->heap[c]))
            c++;
        if (!earlier(&m->heap[c], &e))
            break;
        m->heap[i] = m->heap[c];
        i = c;
    }
    m->heap[i] = e;
    return top;
}

/* ---- text: what token a request has at a place
 * --------------------------------------------------*/

int32_t sim_token_at(const gs_sim *m, int32_t r, int32_t text, int32_t i) {
    while (m->requests[r].prefix_of >= 0 && i < m->requests[r].n_prefix)
        r = m->requests[r].prefix_of;
    const gs_sim_request *q = &m->requests[r];
    const int32_t block = q->n_blocks > 0 ? i / q->block_tokens : 0;
    uint64_t h = block < q->n_blocks ? q->blocks[block]
                 : q->prefix_key && i < q->n_prefix
                     ? q->prefix_key
                     : 0x9e3779b97f4a7c15u * ((uint64_t)r * SIM_TEXTS + (uint64_t)text + 1);
    h = (h ^ (uint64_t)i) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 29) * 0x94d049bb133111ebu;
    return (int32_t)(h >> 40);
}

static gs_sched *sched_of(const gs_sim *m, int32_t r) {
    return m->scheds[m->requests[r].model];
}

static int alloc_tokens(gs_sim *m, int32_t r) {
    const gs_sim_request *q = &m->requests[r];
    const int32_t room = sim_n_room(q);
    int32_t *t = gs_array((size_t)room * (size_t)sim_n_texts(q), sizeof *t);
    if (!t)
        return GS_ERR_NOMEM;
    for (int32_t k = 0; k < sim_n_texts(q); k++)
        for (int32_t i = 0; i < q->n_prompt; i++)
            t[k * room + i] = sim_token_at(m, r, k, i);
    m->tokens[r] = t;
    return GS_OK;
}

/* ---- requests
 * -----------------------------------------------------------------------------------*/

void sim_close(gs_sim *m, int32_t r, gs_sim_state state, int64_t now_ns) {
    gs_sim_outcome *o = &m->outcomes[r];
    o->state = state;
    o->end_ns = now_ns;
    o->n_ends++;
    m->n_closed++;
    m->closed_ns = now_ns;
    gs_free(m->tokens[r]);
    m->tokens[r] = NULL;
    for (int32_t c = m->first_child[r]; c >= 0; c = m->sibling[c]) {
        m->outcomes[c].start_ns = now_ns + m->requests[c].think_ns;
        push(m, m->outcomes[c].start_ns, SIM_ARRIVE, c);
    }
}

gs_seq_desc sim_desc(const gs_sim *m, int32_t r, int64_t now_ns) {
    const gs_sim_request *q = &m->requests[r];
    const int64_t start_ns = m->outcomes[r].start_ns;
    return (gs_seq_desc){.cls = q->cls,
                         .class_fixed = q->class_fixed,
                         .person = q->person,
                         .cache_scope = q->scope,
                         .n_prompt = q->n_prompt,
                         .max_output = q->n_texts > 0 ? 0 : q->n_output,
                         .prefill_only = q->n_texts > 0,
                         .arrival_ns = now_ns,
                         .deadline_ns = q->deadline_ns > 0 ? start_ns + q->deadline_ns : 0};
}

static gs_seq_id id_of(int32_t r, int32_t text) {
    return (gs_seq_id)r * SIM_TEXTS + (gs_seq_id)text + 1;
}

int sim_submit_local(gs_sim *m, int32_t r, int64_t now_ns, int64_t *retry_ns, bool *partly) {
    const gs_sim_request *q = &m->requests[r];
    gs_sim_outcome *o = &m->outcomes[r];
    gs_admission a = {0};
    int32_t k = 0;
    for (; k < sim_n_texts(q); k++) {
        gs_seq_desc d = sim_desc(m, r, now_ns);
        d.id = id_of(r, k);
        d.tokens = m->tokens[r] + (size_t)k * (size_t)sim_n_room(q);
        if (gs_sched_submit(sched_of(m, r), &d, now_ns, &a) != GS_OK)
            break;
    }
    o->n_texts_left = k;
    *partly = k > 0 && k < sim_n_texts(q);
    *retry_ns = a.retry_after_ns;
    if (k == sim_n_texts(q)) {
        o->state = GS_SIM_LIVE;
        o->cls = a.cls;
        return GS_OK;
    }
    /* A part of it is no use: what was taken is given back. */
    o->state = GS_SIM_PENDING;
    for (int32_t i = 0; i < k; i++)
        gs_sched_cancel(sched_of(m, r), id_of(r, i), now_ns);
    return a.code;
}

static int arrive(gs_sim *m, int32_t r, int64_t now_ns) {
    const gs_sim_request *q = &m->requests[r];
    gs_sim_outcome *o = &m->outcomes[r];
    int64_t retry_ns = 0;
    bool partly = false;
    if (!m->tokens[r] && alloc_tokens(m, r) != GS_OK)
        return GS_ERR_NOMEM;
    o->n_tries++;
    const bool elsewhere = sim_workers_arrive(m, r, now_ns);
    const int rc = elsewhere ? GS_OK : sim_submit_local(m, r, now_ns, &retry_ns, &partly);
    if (rc == GS_OK && q->cancel_after_ns > 0)
        push(m, o->start_ns + q->cancel_after_ns, SIM_CANCEL, r);
    else if (rc == GS_ERR_OVERLOADED && o->n_tries < m->cfg.max_tries)
        push(m, now_ns + retry_ns, SIM_ARRIVE, r);
    else if (rc != GS_OK && partly)
        o->state = GS_SIM_REFUSED; /* ends when those have been reported */
    else if (rc != GS_OK)
        sim_close(m, r, GS_SIM_REFUSED, m->now_ns);
    return GS_OK;
}

void sim_cancel_local(gs_sim *m, int32_t r, int64_t now_ns) {
    for (int32_t k = 0; k < sim_n_texts(&m->requests[r]); k++)
        gs_sched_cancel(sched_of(m, r), id_of(r, k), now_ns);
}

static int take_event(gs_sim *m, const sim_event *e, int64_t until_ns) {
    switch (e->kind) {
    case SIM_ARRIVE:
        return arrive(m, e->request, e->t_ns);
    case SIM_CANCEL:
        if (m->workers)
            sim_workers_cancel(m, e->request, e->t_ns);
        else
            sim_cancel_local(m, e->request, until_ns);
        return GS_OK;
    default:
        return sim_workers_event(m, e);
    }
}

static int64_t next_event_ns(const gs_sim *m) {
    return m->n_events > 0 ? m->heap[0].t_ns : GS_NEVER_NS;
}

/* Hands everything in that has happened by until_ns, and does what placement wants then. */
static int take_events(gs_sim *m, int64_t until_ns) {
    for (;;) {
        const int64_t wake_ns = sim_workers_wake_ns(m), event_ns = next_event_ns(m);
        int rc = GS_OK;
        if (wake_ns < event_ns && wake_ns <= until_ns) {
            rc = sim_workers_pump(m, wake_ns);
        } else if (event_ns <= until_ns) {
            const sim_event e = pop(m);
            rc = take_event(m, &e, until_ns);
            if (rc == GS_OK)
                rc = sim_workers_pump(m, e.t_ns);
        } else {
            return GS_OK;
        }
        if (rc != GS_OK)
            return rc;
    }
}

static void take_ends_of(gs_sim *m, gs_sched *s) {
    gs_seq_end e;
    while (gs_sched_next_end(s, &e)) {
        const int32_t r = (int32_t)((e.id - 1) / SIM_TEXTS);
        gs_sim_outcome *o = &m->outcomes[r];
        if (o->worker != 0) /* a part of it that was given back: it is not here any more */
            continue;
        o->n_preempted += e.n_preempted;
        o->n_cached += e.n_cached;
        o->n_output += e.n_output;
        o->charged_ns += e.explain.charged_ns;
        if (--o->n_texts_left > 0 || o->state == GS_SIM_PENDING)
            continue;
        if (o->state == GS_SIM_REFUSED) {
            sim_close(m, r, GS_SIM_REFUSED, m->now_ns);
            continue;
        }
        if (m->requests[r].n_texts > 0 && e.reason == GS_END_DONE)
            o->first_ns = m->now_ns;
        const bool broken = e.reason == GS_END_CANCELLED || e.reason == GS_END_ERROR;
        if (!broken)
            sim_workers_local_end(m, r, m->now_ns);
        sim_close(m, r, broken ? GS_SIM_CANCELLED : GS_SIM_DONE, m->now_ns);
    }
}

static void take_ends(gs_sim *m) {
    for (int32_t i = 0; i < m->n_lanes; i++)
        take_ends_of(m, m->scheds[i]);
}

/* ---- steps
 * --------------------------------------------------------------------------------------*/

static int gap_bin(int64_t ns) {
    const double bin = log((double)(ns > 1000 ? ns : 1000) / 1000.0) / log(1.02);
    return bin < GS_SIM_GAP_BINS - 1 ? (int)bin : GS_SIM_GAP_BINS - 1;
}

static int64_t bin_ns(int bin) {
    return (int64_t)(1000.0 * pow(1.02, bin + 0.5));
}

void sim_note_token(gs_sim *m, int32_t r, int64_t now_ns) {
    gs_sim_outcome *o = &m->outcomes[r];
    if (o->first_ns == 0) {
        o->first_ns = now_ns;
    } else {
        const int64_t gap_ns = now_ns - o->last_ns;
        const gs_class c = m->requests[r].cls;
        m->gaps[c][gap_bin(gap_ns)]++;
        if (gap_ns > o->max_gap_ns)
            o->max_gap_ns = gap_ns;
        if (gap_ns > m->gap_max_ns[c])
            m->gap_max_ns[c] = gap_ns;
    }
    o->last_ns = now_ns;
}

static gs_cost_part part_of(const gs_sim_device *d, const gs_plan *plan) {
    if (plan->max_threads < 1 || plan->max_threads >= d->n_threads)
        return GS_COST_ALL;
    return (gs_cost_part){(double)plan->max_threads / d->n_threads, plan->beside};
}

/* With remotes, what happened there while the step ran comes first: one clock for all. */
static int finish_step(gs_sim *m, int32_t at, const gs_plan *plan, int64_t elapsed_ns) {
    sim_lane *l = &m->lanes[at];
    if (m->workers && take_events(m, m->now_ns) != GS_OK)
        return GS_ERR_NOMEM;
    for (int32_t i = 0; i < plan->n_items; i++) {
        const gs_plan_item *it = &plan->items[i];
        const int32_t r = (int32_t)((it->id - 1) / SIM_TEXTS);
        l->results[i] = (gs_item_result){.token = sim_token_at(m, r, 0, it->pos + it->n_tokens)};
        if (it->sample) {
            sim_note_token(m, r, m->now_ns);
            sim_workers_local_token(m, r, m->now_ns);
        }
    }
    m->n_computed += (uint64_t)plan->n_tokens;
    const gs_step_result res = {.elapsed_ns = elapsed_ns,
                                .few_threads = part_of(l->device, plan).share < 1.0,
                                .items = l->results};
    if (plan == &m->beside)
        gs_sched_commit_beside(m->scheds[at], plan, &res, m->now_ns);
    else
        gs_sched_commit(m->scheds[at], plan, &res, m->now_ns);
    return GS_OK;
}

/* Layer by layer, as far as nobody more urgent comes. True: it was put aside. */
static int run_layers(gs_sim *m, int32_t at, const gs_plan *plan) {
    sim_lane *l = &m->lanes[at];
    const int n_layers = l->device->n_layers;
    const double layer = l->step_ns / n_layers;
    const int64_t began_ns = m->now_ns;
    const int first = (int)(l->done_share * n_layers + 0.5);
    for (int i = first; i < n_layers; i++) {
        m->now_ns = began_ns + (int64_t)(layer * (i + 1 - first));
        if (i + 1 == n_layers)
            continue;
        if (take_events(m, m->now_ns) != GS_OK)
            return GS_ERR_NOMEM;
        if (gs_turns_should_yield(m->scheds, m->n_lanes, at, plan, m->now_ns)) {
            l->done_share = (double)(i + 1) / n_layers;
            gs_sched_suspend(m->scheds[at], plan, m->now_ns - began_ns, m->now_ns);
            return GS_OK;
        }
    }
    return finish_step(m, at, plan, m->now_ns - began_ns);
}

double sim_step_time(gs_sim *m, const gs_sim_device *d, const gs_plan *plan) {
    gs_cost_step x = {0};
    for (int32_t i = 0; i < plan->n_items; i++) {
        const gs_plan_item *it = &plan->items[i];
        gs_cost_step_add(&x, it->n_tokens, it->pos, !it->prefill, it->sample);
    }
    const double spread = d->noise * (2.0 * gs_rng_unit(&m->rng) - 1.0);
    const double slow = gs_rng_unit(&m->rng) < d->slow_rate ? 4.0 : 1.0;
    return gs_cost_predict_on(&d->cost, &x, part_of(d, plan)) * (1.0 + spread) * slow;
}

static int run_step(gs_sim *m, int32_t at, const gs_plan *plan) {
    sim_lane *l = &m->lanes[at];
    double ns =
        plan->resume ? l->step_ns * (1.0 - l->done_share) : sim_step_time(m, l->device, plan);
    if (plan->may_yield) {
        if (!plan->resume) {
            l->step_ns = ns;
            l->done_share = 0.0;
        }
        return run_layers(m, at, plan);
    }
    ns = ns > 1.0 ? ns : 1.0;
    m->now_ns += (int64_t)ns;
    return finish_step(m, at, plan, (int64_t)ns);
}

static void begin_beside(gs_sim *m) {
    if (m->n_lanes > 1 || m->beside.n_items > 0)
        return;
    gs_sched_plan_beside(m->scheds[0], m->now_ns, &m->beside);
    if (m->beside.n_items == 0)
        return;
    const double ns = sim_step_time(m, m->lanes[0].device, &m->beside);
    m->beside_ns = ns > 1.0 ? (int64_t)ns : 1;
    m->beside_end_ns = m->now_ns + m->beside_ns;
}

static int end_beside(gs_sim *m) {
    if (m->beside.n_items == 0 || m->now_ns < m->beside_end_ns)
        return GS_OK;
    const int rc = finish_step(m, 0, &m->beside, m->beside_ns);
    m->beside.n_items = 0;
    return rc;
}

/* When something happens, with nothing to run before until_ns. */
static int64_t next_time(const gs_sim *m, int64_t until_ns) {
    if (next_event_ns(m) < until_ns)
        until_ns = next_event_ns(m);
    if (sim_workers_wake_ns(m) < until_ns)
        until_ns = sim_workers_wake_ns(m);
    if (m->beside.n_items > 0 && m->beside_end_ns < until_ns)
        until_ns = m->beside_end_ns;
    return until_ns;
}

int gs_sim_run(gs_sim *m, char *err, size_t errlen) {
    for (;;) {
        gs_plan plan;
        if (end_beside(m) != GS_OK || take_events(m, m->now_ns) != GS_OK)
            return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
        take_ends(m);
        if (sim_workers_pump(m, m->now_ns) != GS_OK)
            return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
        if (m->cfg.end_ns > 0 && m->now_ns >= m->cfg.end_ns)
            return GS_OK;
        begin_beside(m);
        const int32_t at = gs_turns_plan(m->scheds, m->n_lanes, m->now_ns, &plan);
        if (plan.n_items > 0) {
            if (run_step(m, at, &plan) != GS_OK)
                return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
        } else if (plan.wake_ns > m->now_ns) {
            const int64_t next_ns = next_time(m, plan.wake_ns);
            if (next_ns == GS_NEVER_NS)
                return GS_OK;
            m->now_ns = next_ns > m->now_ns ? next_ns : m->now_ns;
        }
        take_ends(m);
        for (int32_t i = 0; i < m->n_lanes; i++)
            if (m->cfg.check && gs_sched_check(m->scheds[i], err, errlen) != GS_OK)
                return GS_ERR_INTERNAL;
        if (m->cfg.check && sim_workers_check(m, err, errlen) != GS_OK)
            return GS_ERR_INTERNAL;
    }
}

void gs_sim_set_end(gs_sim *m, int64_t end_ns) {
    m->cfg.end_ns = end_ns;
}

/* ---- create and free
 * ----------------------------------------------------------------------------*/

static int create_lane(gs_sim *m, const gs_sim_device *d) {
    sim_lane *l = &m->lanes[m->n_lanes];
    gs_sched **out = &m->scheds[m->n_lanes];
    const gs_kv_config kc = {.n_blocks = d->n_blocks,
                             .block_tokens = d->block_tokens,
                             .max_seqs = d->max_seqs,
                             .max_blocks_per_seq =
                                 (d->max_context + d->block_tokens - 1) / d->block_tokens};
    gs_slo_config slo;
    gs_slo_defaults(&slo);
    gs_cost cost = d->cost;
    cost.calibrated = m->cfg.model_error <= 0.0;
    for (int i = 0; i < GS_COST_KNOTS && m->cfg.model_error > 0.0; i++)
        cost.knot_ns[i] *= m->cfg.model_error;
    const gs_sched_config sc = {.max_seqs = d->max_seqs,
                                .max_waiting = m->cfg.max_waiting,
                                .max_batch_tokens = d->max_batch_tokens,
                                .prefill_chunk = d->prefill_chunk,
                                .max_context = d->max_context,
                                .n_layers = d->n_layers,
                                .n_threads = d->n_threads,
                                .accounts = m->accounts,
                                .max_persons = m->cfg.n_persons,
                                .policy = m->cfg.policy,
                                .seed = m->cfg.seed,
                                .classes = m->cfg.classes,
                                .slo = m->cfg.slo ? m->cfg.slo : &slo,
                                .cost = &cost};
    l->device = d;
    l->results = gs_calloc((size_t)d->max_seqs, sizeof *l->results);
    int rc = l->results ? gs_kv_create(&kc, &l->kv) : GS_ERR_NOMEM;
    if (rc == GS_OK)
        rc = gs_sched_create(&sc, l->kv, out);
    if (rc == GS_OK)
        gs_sched_set_splits(*out, !m->cfg.second, GS_MODE_WHY_MODELS);
    m->n_lanes++; /* also a broken one: free looks at all */
    for (uint32_t i = 0; rc == GS_OK && m->cfg.weights && i < m->cfg.n_persons; i++) {
        gs_person_config pc = sc.slo->person;
        pc.weight = m->cfg.weights[i];
        gs_sched_set_person(*out, i, &pc);
    }
    return rc;
}

static int create_lanes(gs_sim *m) {
    int rc = gs_accounts_create(m->cfg.n_persons, &m->accounts);
    if (rc == GS_OK)
        rc = create_lane(m, &m->cfg.device);
    if (rc == GS_OK && m->cfg.second)
        rc = create_lane(m, m->cfg.second);
    return rc;
}

static bool valid(const gs_sim_config *cfg, const gs_sim_request *q, int32_t i) {
    return q->n_prompt > 0 && q->n_texts >= 0 && q->n_texts < SIM_TEXTS &&
           (q->n_texts > 0 || q->n_output > 0) && q->after < i && q->prefix_of < i &&
           q->n_prefix <= q->n_prompt && q->model >= 0 && q->model <= (cfg->second ? 1 : 0) &&
           (int)q->cls >= 0 && q->cls < GS_CLASS_COUNT &&
           (q->person == 0 || q->person < cfg->n_persons) && q->t_ns >= 0 && q->think_ns >= 0 &&
           (q->n_blocks == 0 || (q->block_tokens > 0 && q->n_texts == 0));
}

/* Each request comes and is cancelled once, and is sent to each worker once at most; of a remote a
 * step, two probes and its faults are ahead. */
static int32_t max_events(const gs_sim_config *cfg, int32_t n) {
    int32_t sum = 2 * (n > 0 ? n : 1) + n * cfg->n_remotes;
    for (int32_t i = 0; i < cfg->n_remotes; i++)
        sum += 4 + 3 * cfg->remotes[i].n_faults;
    return sum;
}

int gs_sim_create(const gs_sim_config *cfg, const gs_sim_request *requests, int32_t n,
                  gs_sim **out) {
    if (cfg->n_remotes < 0 || cfg->n_remotes > GS_PLACE_WORKERS - 1)
        return GS_ERR_INVALID;
    for (int32_t i = 0; i < n; i++)
        if (!valid(cfg, &requests[i], i))
            return GS_ERR_INVALID;
    gs_sim *m = gs_calloc(1, sizeof *m);
    if (!m)
        return GS_ERR_NOMEM;
    const size_t some = n > 0 ? (size_t)n : 1;
    m->cfg = *cfg;
    m->requests = requests;
    m->n = n;
    m->now_ns = 1; /* 0 means "never" in many places */
    m->outcomes = gs_calloc(some, sizeof *m->outcomes);
    m->tokens = gs_calloc(some, sizeof(int32_t *));
    m->first_child = gs_array(some, sizeof *m->first_child);
    m->sibling = gs_array(some, sizeof *m->sibling);
    m->max_events = max_events(cfg, n);
    m->heap = gs_array((size_t)m->max_events, sizeof *m->heap);
    int rc = GS_ERR_NOMEM;
    if (m->outcomes && m->tokens && m->first_child && m->sibling && m->heap)
        rc = create_lanes(m);
    if (rc == GS_OK)
        rc = sim_workers_create(m);
    if (rc != GS_OK) {
        gs_sim_free(m);
        return rc;
    }
    gs_rng_seed(&m->rng, cfg->seed);
    for (int32_t i = 0; i < n; i++)
        m->first_child[i] = m->sibling[i] = -1;
    for (int32_t i = n - 1; i >= 0; i--)
        if (requests[i].after >= 0) {
            m->sibling[i] = m->first_child[requests[i].after];
            m->first_child[requests[i].after] = i;
        }
    for (int32_t i = 0; i < n; i++)
        if (requests[i].after < 0) {
            m->outcomes[i].start_ns = requests[i].t_ns + 1;
            push(m, m->outcomes[i].start_ns, SIM_ARRIVE, i);
        }
    *out = m;
    return GS_OK;
}

void gs_sim_free(gs_sim *m) {
    if (!m)
        return;
    sim_workers_free(m);
    for (int32_t i = 0; i < m->n_lanes; i++) {
        gs_sched_free(m->scheds[i]);
        gs_kv_free(m->lanes[i].kv);
        gs_free(m->lanes[i].results);
    }
    gs_accounts_free(m->accounts);
    for (int32_t i = 0; i < m->n && m->tokens; i++)
        gs_free(m->tokens[i]);
    gs_free(m->heap);
    gs_free(m->sibling);
    gs_free(m->first_child);
    gs_free(m->tokens);
    gs_free(m->outcomes);
    gs_free(m);
}

const gs_sim_outcome *gs_sim_outcomes(const gs_sim *m) {
    return m->outcomes;
}

gs_sched *gs_sim_sched(const gs_sim *m) {
    return m->scheds[0];
}

int64_t gs_sim_charged(const gs_sim *m, uint32_t person) {
    gs_person_stats st;
    gs_sched_get_person(m->scheds[0], person, &st);
    return st.charged_ns;
}

/* ---- report
 * -------------------------------------------------------------------------------------*/

static int by_value(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Nearest rank. */
/* Between two values in proportion, as in the figures of real runs (load/measure.c). */
static int64_t at_share(const int64_t *v, int32_t n, double share) {
    if (n == 0)
        return 0;
    const double rank = (n - 1) * share;
    const int32_t low = (int32_t)rank, high = low + 1 < n ? low + 1 : low;
    return v[low] + (int64_t)((double)(v[high] - v[low]) * (rank - low));
}

static int64_t gap_at(const gs_sim *m, int c, double share) {
    uint64_t n = 0, seen = 0;
    for (int i = 0; i < GS_SIM_GAP_BINS; i++)
        n += m->gaps[c][i];
    for (int i = 0; i < GS_SIM_GAP_BINS && n > 0; i++) {
        seen += m->gaps[c][i];
        if ((double)seen >= share * (double)n)
            return bin_ns(i);
    }
    return 0;
}

/* As the objectives of the household load (bench/family): by what was shown until the end. */
static bool met(const gs_sim *m, const gs_sim_request *q, const gs_sim_outcome *o) {
    gs_class_config k[GS_CLASS_COUNT];
    gs_sched_get_classes(m->scheds[0], k);
    const gs_class_config *c = &k[q->cls];
    const int64_t deadline_ns = q->deadline_ns > 0 ? q->deadline_ns : c->complete_ns;
    if (o->state == GS_SIM_REFUSED || o->state == GS_SIM_FAILED)
        return false;
    if (c->ttft_ns == 0)
        return deadline_ns == 0 || o->end_ns - o->start_ns <= deadline_ns;
    if (o->first_ns == 0 || o->first_ns - o->start_ns > c->ttft_ns)
        return false;
    return o->n_output < 2 || o->last_ns - o->first_ns <= c->tpot_ns * (o->n_output - 1);
}

static void count(const gs_sim *m, gs_sim_report *out) {
    for (int32_t i = 0; i < m->n; i++) {
        const gs_sim_request *q = &m->requests[i];
        const gs_sim_outcome *o = &m->outcomes[i];
        gs_sim_class *k = &out->cls[q->cls];
        if (o->state == GS_SIM_PENDING || o->state == GS_SIM_LIVE)
            continue;
        k->n++;
        k->n_done += o->state == GS_SIM_DONE;
        k->n_cancelled += o->state == GS_SIM_CANCELLED;
        k->n_refused += o->state == GS_SIM_REFUSED;
        k->n_failed += o->state == GS_SIM_FAILED;
        k->n_tokens_out += o->n_output;
        if (o->state == GS_SIM_DONE)
            k->n_tokens_in += (int64_t)q->n_prompt * sim_n_texts(q) - o->n_cached;
        if (o->state == GS_SIM_CANCELLED && o->first_ns == 0)
            continue; /* showed nothing: late or not, nobody knows */
        k->n_judged++;
        k->n_met += met(m, q, o);
    }
}

static void sort_class(const gs_sim *m, int c, int64_t *v, gs_sim_class *k) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->n; i++)
        if ((int)m->requests[i].cls == c && m->outcomes[i].first_ns > 0)
            v[n++] = m->outcomes[i].first_ns - m->outcomes[i].start_ns;
    qsort(v, (size_t)n, sizeof *v, by_value);
    k->ttft_p50_ns = at_share(v, n, 0.5);
    k->ttft_p95_ns = at_share(v, n, 0.95);
    k->ttft_p99_ns = at_share(v, n, 0.99);
    n = 0;
    for (int32_t i = 0; i < m->n; i++)
        if ((int)m->requests[i].cls == c && m->outcomes[i].n_output > 1)
            v[n++] =
                (m->outcomes[i].last_ns - m->outcomes[i].first_ns) / (m->outcomes[i].n_output - 1);
    qsort(v, (size_t)n, sizeof *v, by_value);
    k->tpot_p50_ns = at_share(v, n, 0.5);
    k->tpot_p95_ns = at_share(v, n, 0.95);
    n = 0;
    for (int32_t i = 0; i < m->n; i++)
        if ((int)m->requests[i].cls == c && m->outcomes[i].state == GS_SIM_DONE)
            v[n++] = m->outcomes[i].end_ns - m->outcomes[i].start_ns;
    qsort(v, (size_t)n, sizeof *v, by_value);
    k->total_p50_ns = at_share(v, n, 0.5);
    k->total_p95_ns = at_share(v, n, 0.95);
    k->gap_p50_ns = gap_at(m, c, 0.5);
    k->gap_p95_ns = gap_at(m, c, 0.95);
    k->gap_p99_ns = gap_at(m, c, 0.99);
    k->gap_max_ns = m->gap_max_ns[c];
}

/* (sum x)^2 / (n * sum x^2): 1 when all have the same. */
static double jain(const gs_sim *m) {
    double sum = 0.0, squares = 0.0;
    int n = 0;
    for (uint32_t i = 0; i < m->cfg.n_persons; i++) {
        const double w = m->cfg.weights ? m->cfg.weights[i] : 1.0;
        const double x = (double)gs_sim_charged(m, i) / w;
        n += x > 0.0;
        sum += x;
        squares += x * x;
    }
    return squares > 0.0 ? sum * sum / (n * squares) : 1.0;
}

int gs_sim_report_create(const gs_sim *m, gs_sim_report *out) {
    int64_t *v = gs_array(m->n > 0 ? (size_t)m->n : 1, sizeof *v);
    if (!v)
        return GS_ERR_NOMEM;
    const int64_t end_ns = m->workers ? m->closed_ns : m->now_ns;
    *out = (gs_sim_report){.end_ns = end_ns,
                           .tokens_per_s = (double)m->n_computed * 1e9 / (double)end_ns,
                           .fairness = jain(m),
                           .hash = gs_sched_decision_hash(m->scheds[0])};
    count(m, out);
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        sort_class(m, c, v, &out->cls[c]);
    gs_free(v);
    gs_sched_get_stats(m->scheds[0], &out->stats);
    gs_kv_get_stats(m->lanes[0].kv, &out->kv);
    gs_cost_get_error(gs_sched_cost(m->scheds[0]), &out->error);
    if (m->n_lanes > 1) {
        gs_sched_get_stats(m->scheds[1], &out->second);
        out->hash ^= gs_sched_decision_hash(m->scheds[1]) << 1;
    }
    if (gs_sim_place(m))
        out->hash ^= gs_place_decision_hash(gs_sim_place(m)) << 2;
    return GS_OK;
}
