/*
 * Remotes of the simulator: devices of their own with a server that takes requests as they come, a
 * network before it, faults; and what placement decides, done.
 */
#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "sched/policy.h"
#include "sched/sim_impl.h"

#define MAX_BLOCKS 512 /* hashes of a prompt */
#define LOCAL      0   /* its index among workers; remote i is i + 1 */

typedef struct sim_remote {
    const gs_sim_remote *cfg;
    gs_kv *kv;
    gs_sched *s;
    gs_item_result *results; /* [max_seqs] */
    gs_plan plan;
    bool down, hung;
    bool in_step, step_done; /* done: while it hung */
    int32_t life;            /* times it was killed */
    double factor;           /* of its step times */
    /* Of each request that is there, or was and is in its step: */
    int32_t **tokens;  /* [n] */
    int32_t *attempts; /* [n] */
    int32_t *left;     /* [n] texts */
} sim_remote;

struct sim_workers {
    gs_place *place; /* NULL: each in turn */
    int32_t n_remotes;
    sim_remote remotes[GS_PLACE_WORKERS];
    int32_t turn;
    int32_t *attempts; /* [n] the latest of each request */
    bool charged;
};

static uint64_t place_id(int32_t r) {
    return (uint64_t)r + 1;
}

static int32_t request_of(uint64_t id) {
    return (int32_t)(id - 1);
}

/* ---- accounts ---------------------------------------------------------------------------------*/

void sim_workers_charged(gs_sim *m) {
    if (m->workers)
        m->workers->charged = true;
}

static void charge(gs_sim *m, int32_t r, int64_t ns, int64_t now_ns) {
    if (ns <= 0)
        return;
    gs_sched_charge(m->scheds[0], m->requests[r].person, ns, now_ns);
    m->outcomes[r].charged_ns += ns;
    m->workers->charged = true;
}

static void tell_counters(gs_sim *m) {
    sim_workers *w = m->workers;
    if (!w->charged)
        return;
    w->charged = false;
    for (uint32_t i = 0; i < m->cfg.n_persons; i++) {
        gs_person_stats st;
        if (gs_sched_get_person(m->scheds[0], i, &st) == GS_OK)
            gs_place_set_counter(w->place, i, st.counter_ns, 1.0);
    }
}

/* ---- ends of attempts -------------------------------------------------------------------------*/

/* Whether that attempt at worker is the request's. */
static bool is_current(const gs_sim *m, int32_t r, int32_t worker, int32_t attempt) {
    return m->outcomes[r].worker == worker && m->workers->attempts[r] == attempt &&
           m->outcomes[r].state == GS_SIM_LIVE;
}

static void attempt_over(gs_sim *m, int32_t r, gs_place_how how, int64_t now_ns) {
    sim_workers *w = m->workers;
    gs_place_over over = {0};
    if (w->place && !gs_place_end(w->place, place_id(r), w->attempts[r], how, now_ns, &over))
        return;
    charge(m, r, over.charged_ns, now_ns);
    m->outcomes[r].worker = over.again ? -1 : m->outcomes[r].worker;
    if (over.again)
        m->outcomes[r].state = GS_SIM_PENDING;
    else if (how == GS_PLACE_FAULT)
        sim_close(m, r, GS_SIM_FAILED, now_ns);
    else if (how == GS_PLACE_BAD_REQUEST)
        sim_close(m, r, GS_SIM_REFUSED, now_ns);
}

void sim_workers_local_token(gs_sim *m, int32_t r, int64_t now_ns) {
    sim_workers *w = m->workers;
    if (!w || !w->place)
        return;
    gs_place_tokens(w->place, place_id(r), w->attempts[r], 1, now_ns);
    w->charged = true;
}

void sim_workers_local_end(gs_sim *m, int32_t r, int64_t now_ns) {
    if (m->workers && m->workers->place)
        attempt_over(m, r, GS_PLACE_DONE, now_ns);
}

/* ---- a remote's server ------------------------------------------------------------------------*/

/* What may wait in it: placement sends no more than its budget, a proxy all. */
static int32_t max_waiting(const gs_sim *m, const sim_remote *x) {
    int32_t n = x->cfg->worker.max_seqs + SIM_TEXTS;
    for (int32_t r = 0; r < m->n && m->cfg.round_robin; r++)
        n += sim_n_texts(&m->requests[r]);
    return n;
}

static int create_server(gs_sim *m, sim_remote *x) {
    const gs_sim_device *d = &x->cfg->device;
    const gs_kv_config kc = {.n_blocks = d->n_blocks,
                             .block_tokens = d->block_tokens,
                             .max_seqs = d->max_seqs,
                             .max_blocks_per_seq =
                                 (d->max_context + d->block_tokens - 1) / d->block_tokens};
    const gs_sched_config sc = {.max_seqs = d->max_seqs,
                                .max_waiting = max_waiting(m, x),
                                .max_batch_tokens = d->max_batch_tokens,
                                .prefill_chunk = d->prefill_chunk,
                                .max_context = d->max_context,
                                .n_layers = d->n_layers,
                                .policy = &gs_policy_fcfs,
                                .seed = m->cfg.seed,
                                .cost = &d->cost};
    const int rc = gs_kv_create(&kc, &x->kv);
    return rc == GS_OK ? gs_sched_create(&sc, x->kv, &x->s) : rc;
}

static void drop_server(const gs_sim *m, sim_remote *x) {
    gs_sched_free(x->s);
    gs_kv_free(x->kv);
    x->s = NULL;
    x->kv = NULL;
    for (int32_t r = 0; r < m->n && x->tokens; r++) {
        gs_free(x->tokens[r]);
        x->tokens[r] = NULL;
    }
}

static void take_remote_ends(gs_sim *m, int32_t at, int64_t now_ns) {
    sim_remote *x = &m->workers->remotes[at];
    gs_seq_end e;
    while (gs_sched_next_end(x->s, &e)) {
        const int32_t r = (int32_t)((e.id - 1) / SIM_TEXTS);
        gs_sim_outcome *o = &m->outcomes[r];
        const bool current = is_current(m, r, at + 1, x->attempts[r]);
        if (current) {
            o->n_output += e.n_output;
            o->n_cached += e.n_cached;
        }
        if (--x->left[r] > 0)
            continue;
        gs_free(x->tokens[r]);
        x->tokens[r] = NULL;
        if (!current || e.reason == GS_END_CANCELLED)
            continue;
        if (m->requests[r].n_texts > 0)
            o->first_ns = now_ns;
        attempt_over(m, r, e.reason == GS_END_ERROR ? GS_PLACE_BAD_REQUEST : GS_PLACE_DONE, now_ns);
        if (e.reason != GS_END_ERROR)
            sim_close(m, r, GS_SIM_DONE, now_ns);
    }
}

static void start_step(gs_sim *m, int32_t at, int64_t now_ns) {
    sim_remote *x = &m->workers->remotes[at];
    if (x->down || x->hung || x->in_step)
        return;
    gs_sched_plan(x->s, now_ns, &x->plan);
    if (x->plan.n_items == 0) {
        take_remote_ends(m, at, now_ns);
        return;
    }
    const double ns = sim_step_time(m, &x->cfg->device, &x->plan) * x->factor;
    x->in_step = true;
    sim_push(m, (sim_event){.t_ns = now_ns + (int64_t)(ns > 1.0 ? ns : 1.0),
                            .kind = SIM_STEP,
                            .at = at,
                            .mark = x->life});
}

/* A token reaches the client, unless its attempt is not the request's any more. */
static void remote_token(gs_sim *m, int32_t at, int32_t r, int64_t now_ns) {
    const sim_workers *w = m->workers;
    const int32_t attempt = w->remotes[at].attempts[r];
    if (!is_current(m, r, at + 1, attempt) ||
        (w->place && !gs_place_tokens(w->place, place_id(r), attempt, 1, now_ns)))
        return;
    sim_note_token(m, r, now_ns);
}

static void finish_step(gs_sim *m, int32_t at, int64_t now_ns) {
    sim_remote *x = &m->workers->remotes[at];
    x->step_done = x->hung;
    if (x->hung)
        return;
    for (int32_t i = 0; i < x->plan.n_items; i++) {
        const gs_plan_item *it = &x->plan.items[i];
        const int32_t r = (int32_t)((it->id - 1) / SIM_TEXTS);
        x->results[i] = (gs_item_result){.token = sim_token_at(m, r, 0, it->pos + it->n_tokens)};
        if (it->sample)
            remote_token(m, at, r, now_ns);
    }
    m->n_computed += (uint64_t)x->plan.n_tokens;
    const gs_step_result res = {.elapsed_ns = 1, .items = x->results};
    gs_sched_commit(x->s, &x->plan, &res, now_ns);
    x->in_step = false;
    take_remote_ends(m, at, now_ns);
    start_step(m, at, now_ns);
}

static int alloc_attempt(gs_sim *m, sim_remote *x, int32_t r) {
    const size_t n = (size_t)sim_n_room(&m->requests[r]) * (size_t)sim_n_texts(&m->requests[r]);
    x->tokens[r] = gs_array(n, sizeof *x->tokens[r]);
    if (!x->tokens[r])
        return GS_ERR_NOMEM;
    memcpy(x->tokens[r], m->tokens[r], n * sizeof *x->tokens[r]);
    return GS_OK;
}

/* A request gets there, after its time in the network. */
static int reach(gs_sim *m, int32_t at, int32_t r, int32_t attempt, int64_t now_ns) {
    sim_remote *x = &m->workers->remotes[at];
    const gs_sim_request *q = &m->requests[r];
    gs_admission a;
    if (!is_current(m, r, at + 1, attempt))
        return GS_OK;
    if (x->down) {
        attempt_over(m, r, GS_PLACE_FAULT, now_ns);
        return GS_OK;
    }
    if (alloc_attempt(m, x, r) != GS_OK)
        return GS_ERR_NOMEM;
    x->attempts[r] = attempt;
    x->left[r] = 0;
    for (int32_t k = 0; k < sim_n_texts(q); k++) {
        gs_seq_desc d = sim_desc(m, r, now_ns);
        d.id = (gs_seq_id)r * SIM_TEXTS + (gs_seq_id)k + 1;
        d.person = 0;
        d.tokens = x->tokens[r] + (size_t)k * (size_t)sim_n_room(q);
        if (gs_sched_submit(x->s, &d, now_ns, &a) != GS_OK)
            break;
        x->left[r]++;
    }
    if (x->left[r] == 0) { /* texts of a request are of one length: all fit or none */
        gs_free(x->tokens[r]);
        x->tokens[r] = NULL;
        attempt_over(m, r, GS_PLACE_BAD_REQUEST, now_ns);
        return GS_OK;
    }
    start_step(m, at, now_ns);
    return GS_OK;
}

static void cancel_at(gs_sim *m, int32_t at, int32_t r, int64_t now_ns) {
    sim_remote *x = &m->workers->remotes[at];
    for (int32_t k = 0; x->tokens[r] && k < sim_n_texts(&m->requests[r]); k++)
        gs_sched_cancel(x->s, (gs_seq_id)r * SIM_TEXTS + (gs_seq_id)k + 1, now_ns);
    if (!x->in_step && !x->down)
        take_remote_ends(m, at, now_ns);
}

/* ---- faults -----------------------------------------------------------------------------------*/

static int create_anew(gs_sim *m, int32_t at, int64_t now_ns) {
    sim_remote *x = &m->workers->remotes[at];
    drop_server(m, x);
    x->life++;
    x->in_step = x->step_done = x->hung = false;
    x->factor = 1.0;
    for (int32_t r = 0; r < m->n; r++)
        if (m->outcomes[r].worker == at + 1 && m->outcomes[r].state == GS_SIM_LIVE &&
            x->attempts[r] == m->workers->attempts[r])
            attempt_over(m, r, GS_PLACE_FAULT, now_ns);
    return create_server(m, x);
}

static int begin_fault(gs_sim *m, int32_t at, int32_t which, int64_t now_ns) {
    sim_remote *x = &m->workers->remotes[at];
    const gs_sim_fault *f = &x->cfg->faults[which];
    if (m->n_closed == m->n)
        return GS_OK;
    sim_push(m, (sim_event){.t_ns = f->until_ns, .kind = SIM_MEND, .at = at, .mark = which});
    if (f->kind == GS_SIM_SLOW)
        x->factor = f->factor;
    else if (f->kind == GS_SIM_HANG)
        x->hung = true;
    else
        x->down = true;
    return f->kind == GS_SIM_KILL ? create_anew(m, at, now_ns) : GS_OK;
}

static void mend(gs_sim *m, int32_t at, int32_t which, int64_t now_ns) {
    sim_remote *x = &m->workers->remotes[at];
    switch (x->cfg->faults[which].kind) {
    case GS_SIM_SLOW:
        x->factor = 1.0;
        break;
    case GS_SIM_HANG:
        x->hung = false;
        if (x->step_done)
            finish_step(m, at, now_ns);
        break;
    case GS_SIM_KILL:
        x->down = false;
        break;
    }
    start_step(m, at, now_ns);
}

int sim_workers_event(gs_sim *m, const sim_event *e) {
    sim_workers *w = m->workers;
    switch (e->kind) {
    case SIM_REACH:
        return reach(m, e->at, e->request, e->mark, e->t_ns);
    case SIM_STEP:
        if (e->mark == w->remotes[e->at].life)
            finish_step(m, e->at, e->t_ns);
        return GS_OK;
    case SIM_PROBE:
        gs_place_probed(w->place, e->at + 1, e->mark != 0, e->t_ns);
        return GS_OK;
    case SIM_FAULT:
        return begin_fault(m, e->at, e->mark, e->t_ns);
    default:
        mend(m, e->at, e->mark, e->t_ns);
        return GS_OK;
    }
}

/* ---- acts of placement ------------------------------------------------------------------------*/

static void send_to(gs_sim *m, int32_t at, int32_t r, int64_t now_ns) {
    sim_push(m, (sim_event){.t_ns = now_ns + m->workers->remotes[at].cfg->latency_ns,
                            .kind = SIM_REACH,
                            .request = r,
                            .at = at,
                            .mark = m->workers->attempts[r]});
}

static void dispatch(gs_sim *m, const gs_place_act *a, int64_t now_ns) {
    sim_workers *w = m->workers;
    const int32_t r = request_of(a->id);
    gs_sim_outcome *o = &m->outcomes[r];
    int64_t retry_ns;
    bool partly;
    w->attempts[r] = a->attempt;
    o->n_attempts++;
    o->worker = a->worker;
    o->state = GS_SIM_LIVE;
    o->cls = m->requests[r].cls;
    if (a->worker != LOCAL) {
        send_to(m, a->worker - 1, r, now_ns);
        return;
    }
    const int rc = sim_submit_local(m, r, now_ns, &retry_ns, &partly);
    if (rc == GS_OK)
        return;
    attempt_over(m, r, rc == GS_ERR_OVERLOADED ? GS_PLACE_BUSY : GS_PLACE_BAD_REQUEST, now_ns);
    if (rc == GS_ERR_OVERLOADED)
        gs_place_hold_off(w->place, LOCAL, now_ns + retry_ns);
}

static void abort_attempt(gs_sim *m, const gs_place_act *a, int64_t now_ns) {
    const int32_t r = request_of(a->id);
    m->outcomes[r].worker = -1;
    m->outcomes[r].state = GS_SIM_PENDING;
    cancel_at(m, a->worker - 1, r, now_ns);
    charge(m, r, a->charged_ns, now_ns);
    if (a->over)
        sim_close(m, r, GS_SIM_FAILED, now_ns);
}

/* Who is down says so at once; who hangs, nothing. */
static void probe(gs_sim *m, int32_t at, int64_t now_ns) {
    const sim_remote *x = &m->workers->remotes[at];
    const int64_t ns = x->hung ? x->cfg->worker.probe_timeout_ns : 2 * x->cfg->latency_ns;
    sim_push(m,
             (sim_event){
                 .t_ns = now_ns + ns, .kind = SIM_PROBE, .at = at, .mark = !x->down && !x->hung});
}

int sim_workers_pump(gs_sim *m, int64_t now_ns) {
    gs_place_act a;
    if (!m->workers || !m->workers->place)
        return GS_OK;
    tell_counters(m);
    while (gs_place_next(m->workers->place, now_ns, &a)) {
        if (a.kind == GS_PLACE_DISPATCH)
            dispatch(m, &a, now_ns);
        else if (a.kind == GS_PLACE_ABORT)
            abort_attempt(m, &a, now_ns);
        else if (a.kind == GS_PLACE_REFUSE)
            sim_close(m, request_of(a.id), GS_SIM_REFUSED, now_ns);
        else if (a.kind == GS_PLACE_PROBE)
            probe(m, a.worker - 1, now_ns);
        tell_counters(m);
    }
    return GS_OK;
}

int64_t sim_workers_wake_ns(const gs_sim *m) {
    const bool any = m->workers && m->workers->place && m->n_closed < m->n;
    return any ? gs_place_wake_ns(m->workers->place) : GS_NEVER_NS;
}

/* ---- requests ---------------------------------------------------------------------------------*/

/* Follow-ups are one conversation: the request that it began with. */
static uint64_t conversation_of(const gs_sim *m, int32_t r) {
    while (m->requests[r].prefix_of >= 0)
        r = m->requests[r].prefix_of;
    return (uint64_t)r + 1;
}

static int submit(gs_sim *m, int32_t r, int64_t now_ns) {
    const gs_sim_request *q = &m->requests[r];
    const int32_t block = m->cfg.device.block_tokens;
    const size_t token = sizeof *m->tokens[r];
    uint64_t blocks[MAX_BLOCKS];
    gs_place_desc d = {.id = place_id(r),
                       .cls = q->cls,
                       .person = q->person,
                       .model = (uint32_t)q->model + 1,
                       .n_prompt = q->n_prompt * sim_n_texts(q),
                       .max_output = q->n_texts > 0 ? 0 : q->n_output,
                       .n_seqs = sim_n_texts(q),
                       .prefill_only = q->n_texts > 0,
                       .arrival_ns = m->outcomes[r].start_ns,
                       .conversation = q->n_texts > 0 ? 0 : conversation_of(m, r),
                       .blocks = blocks,
                       .block_tokens = block};
    if (q->deadline_ns > 0)
        d.deadline_ns = d.arrival_ns + q->deadline_ns;
    if (q->n_texts == 0)
        d.n_blocks = gs_place_blocks(q->scope, m->tokens[r], (size_t)q->n_prompt * token,
                                     (size_t)block * token, blocks, MAX_BLOCKS);
    return gs_place_submit(m->workers->place, &d, now_ns);
}

bool sim_workers_arrive(gs_sim *m, int32_t r, int64_t now_ns) {
    sim_workers *w = m->workers;
    gs_sim_outcome *o = &m->outcomes[r];
    if (!w)
        return false;
    if (w->place) {
        o->worker = -1;
        if (submit(m, r, now_ns) != GS_OK)
            sim_close(m, r, GS_SIM_REFUSED, now_ns);
        return true;
    }
    const int32_t at = m->requests[r].model == 0 ? w->turn++ % (w->n_remotes + 1) : LOCAL;
    o->worker = at;
    o->n_attempts = w->attempts[r] = 1;
    if (at == LOCAL)
        return false;
    o->state = GS_SIM_LIVE;
    o->cls = m->requests[r].cls;
    send_to(m, at - 1, r, now_ns);
    return true;
}

void sim_workers_cancel(gs_sim *m, int32_t r, int64_t now_ns) {
    sim_workers *w = m->workers;
    gs_sim_outcome *o = &m->outcomes[r];
    gs_place_over over = {0};
    if (o->n_ends > 0 || (w->place && !gs_place_cancel(w->place, place_id(r), now_ns, &over)))
        return;
    charge(m, r, over.charged_ns, now_ns);
    if (o->worker == LOCAL) { /* its scheduler reports the end */
        sim_cancel_local(m, r, now_ns);
        return;
    }
    const int32_t at = o->worker - 1;
    sim_close(m, r, GS_SIM_CANCELLED, now_ns);
    if (at >= 0)
        cancel_at(m, at, r, now_ns);
}

/* ---- create and free --------------------------------------------------------------------------*/

static int create_remote(gs_sim *m, int32_t i) {
    sim_remote *x = &m->workers->remotes[i];
    const size_t n = m->n > 0 ? (size_t)m->n : 1;
    x->cfg = &m->cfg.remotes[i];
    x->factor = 1.0;
    x->results = gs_calloc((size_t)x->cfg->device.max_seqs, sizeof *x->results);
    x->tokens = gs_calloc(n, sizeof(int32_t *));
    x->attempts = gs_calloc(n, sizeof *x->attempts);
    x->left = gs_calloc(n, sizeof *x->left);
    if (!x->results || !x->tokens || !x->attempts || !x->left)
        return GS_ERR_NOMEM;
    for (int32_t k = 0; k < x->cfg->n_faults; k++)
        sim_push(
            m, (sim_event){.t_ns = x->cfg->faults[k].at_ns, .kind = SIM_FAULT, .at = i, .mark = k});
    return create_server(m, x);
}

static int add_workers(gs_sim *m) {
    sim_workers *w = m->workers;
    gs_place_worker d;
    gs_place_worker_defaults(GS_WORKER_LOCAL, &d);
    memcpy(d.name, "local", sizeof "local");
    d.max_seqs = m->cfg.device.max_seqs;
    d.n_models = m->n_lanes;
    for (int32_t i = 0; i < d.n_models; i++)
        d.models[i] = (gs_place_model){.model = (uint32_t)i + 1};
    int rc = gs_place_add(w->place, &d, m->now_ns, NULL);
    for (int32_t i = 0; i < w->n_remotes && rc >= 0; i++) {
        d = m->cfg.remotes[i].worker;
        d.n_models = 1;
        d.models[0] = (gs_place_model){.model = 1};
        rc = gs_place_add(w->place, &d, m->now_ns, NULL);
    }
    return rc < 0 ? rc : GS_OK;
}

int sim_workers_create(gs_sim *m) {
    if (m->cfg.n_remotes == 0)
        return GS_OK;
    sim_workers *w = m->workers = gs_calloc(1, sizeof *w);
    if (!w)
        return GS_ERR_NOMEM;
    w->n_remotes = m->cfg.n_remotes;
    w->attempts = gs_calloc(m->n > 0 ? (size_t)m->n : 1, sizeof *w->attempts);
    int rc = w->attempts ? GS_OK : GS_ERR_NOMEM;
    for (int32_t i = 0; i < w->n_remotes && rc == GS_OK; i++)
        rc = create_remote(m, i);
    if (rc != GS_OK || m->cfg.round_robin)
        return rc;
    const gs_place_config pc = {.max_requests = m->n > 0 ? m->n : 1,
                                .max_persons = m->cfg.n_persons,
                                .local_only = m->cfg.local_only,
                                .classes = m->cfg.classes,
                                .seed = m->cfg.seed};
    rc = gs_place_create(&pc, &w->place);
    return rc == GS_OK ? add_workers(m) : rc;
}

void sim_workers_free(gs_sim *m) {
    sim_workers *w = m->workers;
    for (int32_t i = 0; w && i < w->n_remotes; i++) {
        sim_remote *x = &w->remotes[i];
        drop_server(m, x);
        gs_free(x->left);
        gs_free(x->attempts);
        gs_free(x->tokens);
        gs_free(x->results);
    }
    if (w) {
        gs_place_free(w->place);
        gs_free(w->attempts);
    }
    gs_free(w);
    m->workers = NULL;
}

/* ---- to look at -------------------------------------------------------------------------------*/

int sim_workers_check(const gs_sim *m, char *err, size_t errlen) {
    const sim_workers *w = m->workers;
    int rc = w && w->place ? gs_place_check(w->place, err, errlen) : GS_OK;
    for (int32_t i = 0; w && i < w->n_remotes && rc == GS_OK; i++)
        rc = gs_sched_check(w->remotes[i].s, err, errlen);
    return rc;
}

const gs_place *gs_sim_place(const gs_sim *m) {
    return m->workers ? m->workers->place : NULL;
}

const gs_sched *gs_sim_remote_sched(const gs_sim *m, int32_t remote, const gs_kv **kv) {
    *kv = m->workers->remotes[remote].kv;
    return m->workers->remotes[remote].s;
}
