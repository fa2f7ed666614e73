/* Workers: descriptions, states, hours, signs of life, what is to be done about them. */
#include "sched/place_impl.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

#define S_NS           1000000000LL
#define POWER_AGAIN_NS (120 * S_NS) /* between two goes at switching a worker on */
#define SLOW_NS        (60 * S_NS)  /* a slow worker that nobody has used since is tried again */
#define LATE           8.0 /* times its predicted TTFT: an attempt goes elsewhere, if it can */
#define LATE_KNOWN     4   /* first tokens that have to be known for that */
#define WALL_JUMP_S    2   /* the wall's clock was set */

/* ---- descriptions -----------------------------------------------------------------------------*/

#define ALL_CLASSES ((1u << GS_CLASS_COUNT) - 1)
#define VOICE       (1u << GS_CLASS_VOICE)
#define BACKGROUND  (1u << GS_CLASS_BACKGROUND)

void gs_place_worker_defaults(gs_worker_kind kind, gs_place_worker *out) {
    const bool local = kind == GS_WORKER_LOCAL;
    *out = (gs_place_worker){.kind = kind,
                             .takes = local ? ALL_CLASSES : ALL_CLASSES & ~VOICE,
                             .prefers = local ? 0 : BACKGROUND,
                             .fallback = GS_FALLBACK_MOVE,
                             .max_seqs = local ? 64 : 4,
                             .max_tokens = local ? 0 : 32768,
                             .price = local ? 0.0 : 1.0,
                             .prioritises = local,
                             .drain_ns = 60 * S_NS,
                             .power_ahead_ns = 120 * S_NS,
                             .probe_every_ns = 10 * S_NS,
                             .probe_timeout_ns = 2 * S_NS,
                             .stall_ns = 120 * S_NS};
}

static const char *wrong_field(const gs_place_worker *w) {
    if (w->name[0] == '\0' || memchr(w->name, '\0', sizeof w->name) == NULL)
        return "name";
    if (w->n_models < 0 || w->n_models > GS_PLACE_MODELS)
        return "models";
    if (((w->takes | w->prefers) & ~ALL_CLASSES) != 0)
        return "classes";
    if ((int)w->fallback < 0 || w->fallback >= GS_FALLBACK_COUNT)
        return "fallback";
    if (w->max_seqs < 1)
        return "max_seqs";
    if (w->max_tokens < 0)
        return "max_tokens";
    if (!(w->price >= 0.0 && w->price <= 1e6))
        return "price";
    if (w->drain_ns < 0 || w->power_ahead_ns < 0)
        return "hours";
    if (w->probe_every_ns < 0 || w->probe_timeout_ns < 1 || w->stall_ns < 1)
        return "probe";
    return NULL;
}

static int check_description(const gs_place_worker *w, const char **field) {
    const char *wrong = wrong_field(w);
    if (field)
        *field = wrong;
    return wrong ? GS_ERR_INVALID : GS_OK;
}

int32_t gs_place_find(const gs_place *p, const char *name) {
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++)
        if (p->workers[i].living && !p->workers[i].leaving &&
            strcmp(p->workers[i].w.name, name) == 0)
            return i;
    return PLACE_NONE;
}

static place_worker *worker_at(gs_place *p, int32_t i) {
    return i >= 0 && i < GS_PLACE_WORKERS && p->workers[i].living ? &p->workers[i] : NULL;
}

static bool has_local(const gs_place *p) {
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++)
        if (p->workers[i].living && p->workers[i].w.kind == GS_WORKER_LOCAL)
            return true;
    return false;
}

int gs_place_add(gs_place *p, const gs_place_worker *w, int64_t now_ns, const char **field) {
    now_ns = place_stir(p, now_ns);
    if (check_description(w, field) != GS_OK)
        return GS_ERR_INVALID;
    if (gs_place_find(p, w->name) >= 0 || (w->kind == GS_WORKER_LOCAL && has_local(p)))
        return GS_ERR_EXISTS;
    int32_t at = 0;
    while (at < GS_PLACE_WORKERS && p->workers[at].living)
        at++;
    if (at == GS_PLACE_WORKERS)
        return GS_ERR_OVERLOADED;
    place_worker *x = &p->workers[at];
    *x = (place_worker){.living = true,
                        .w = *w,
                        .placed = PLACE_NONE,
                        .must_probe = w->kind == GS_WORKER_REMOTE,
                        .limit = w->max_seqs,
                        .settled_ns = now_ns,
                        .ways = p->ways + (size_t)at * PLACE_SETS};
    place_forget_worker(p, at);
    for (int i = 0; i < 2; i++)
        gs_worker_cost_prior(&x->cost[i]);
    place_read_hours(p, x, now_ns);
    p->version++;
    return at;
}

int gs_place_change(gs_place *p, int32_t worker, const gs_place_worker *w, int64_t now_ns,
                    const char **field) {
    place_worker *x = worker_at(p, worker);
    now_ns = place_stir(p, now_ns);
    if (!x || check_description(w, field) != GS_OK)
        return x ? GS_ERR_INVALID : GS_ERR_NOT_FOUND;
    if (strcmp(x->w.name, w->name) != 0 || x->w.kind != w->kind ||
        (x->w.prioritises != w->prioritises && x->n_placed > 0)) {
        if (field)
            *field = "name, kind or priority";
        return GS_ERR_INVALID;
    }
    if (x->w.max_seqs != w->max_seqs)
        x->limit = w->max_seqs;
    x->w = *w;
    place_read_hours(p, x, now_ns);
    p->version++;
    return GS_OK;
}

void gs_place_set_load(gs_place *p, int32_t worker, uint32_t model, int64_t load_ns) {
    place_worker *x = worker_at(p, worker);
    for (int32_t i = 0; x && i < x->w.n_models; i++)
        if (x->w.models[i].model == model)
            x->w.models[i].load_ns = load_ns;
}

void gs_place_drain(gs_place *p, int32_t worker, bool drain, int64_t now_ns) {
    place_worker *x = worker_at(p, worker);
    place_stir(p, now_ns);
    if (x)
        x->draining = drain;
}

void gs_place_remove(gs_place *p, int32_t worker, int64_t now_ns) {
    place_worker *x = worker_at(p, worker);
    place_stir(p, now_ns);
    if (!x)
        return;
    x->leaving = true;
    p->version++;
}

const gs_place_worker *gs_place_get_worker(const gs_place *p, int32_t worker) {
    return worker >= 0 && worker < GS_PLACE_WORKERS && p->workers[worker].living
               ? &p->workers[worker].w
               : NULL;
}

/* ---- state ------------------------------------------------------------------------------------*/

gs_worker_state place_state(const place_worker *w) {
    if (!w->living)
        return GS_WORKER_GONE;
    if (w->draining || w->leaving)
        return GS_WORKER_DRAINING;
    if (!w->in_hours)
        return GS_WORKER_AWAY;
    if (w->breaker.state != GS_BREAKER_CLOSED)
        return w->breaker.state == GS_BREAKER_HALF_OPEN && w->probing ? GS_WORKER_PROBING
                                                                      : GS_WORKER_OPEN;
    if (w->must_probe)
        return GS_WORKER_PROBING;
    return w->slow ? GS_WORKER_SLOW : GS_WORKER_UP;
}

bool place_is_there(const place_worker *w) {
    const gs_worker_state s = place_state(w);
    return s == GS_WORKER_UP || s == GS_WORKER_SLOW || s == GS_WORKER_PROBING;
}

int64_t place_hope_ns(const place_worker *w, gs_class c) {
    switch (place_state(w)) {
    case GS_WORKER_GONE:
    case GS_WORKER_DRAINING:
        return GS_NEVER_NS;
    case GS_WORKER_AWAY:
        return w->edge_ns;
    case GS_WORKER_OPEN:
        return w->breaker.until_ns;
    default:
        return w->open_classes >> c & 1 ? w->hold_until_ns : w->change_ns;
    }
}

void place_settle(place_worker *w, int64_t now_ns) {
    const double dt = (double)(now_ns - w->settled_ns);
    const int32_t n = w->load[0].n_seqs + w->load[1].n_seqs;
    w->settled_ns = now_ns;
    if (n == 0)
        return;
    w->share_ns += dt / n;
    w->count.busy_ns += (int64_t)dt;
    for (int i = 0; i < 2; i++)
        w->seqs_ns[i] += dt * w->load[i].n_seqs;
}

/* ---- hours ------------------------------------------------------------------------------------*/

static int64_t sooner(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void doubt(place_worker *w, int64_t now_ns) {
    w->must_probe = true;
    w->doubt_ns = now_ns;
}

void place_read_hours(gs_place *p, place_worker *w, int64_t now_ns) {
    const gs_local_fn local = p->cfg.local;
    const bool was_open = w->in_hours;
    w->in_hours = true;
    w->open_classes = ALL_CLASSES;
    w->change_ns = w->edge_ns = GS_NEVER_NS;
    if (local && p->wall_known) {
        const int64_t wall_s = p->wall_s + (now_ns - p->wall_at_ns) / S_NS;
        w->in_hours = gs_schedule_is_open(&w->w.hours, wall_s, local);
        const int64_t edge_s = gs_schedule_next(&w->w.hours, wall_s, local);
        int64_t change_s = edge_s;
        for (int c = 0; c < GS_CLASS_COUNT; c++) {
            const gs_schedule *h = &w->w.class_hours[c];
            if (!gs_schedule_is_open(h, wall_s, local))
                w->open_classes &= ~(1u << c);
            change_s = sooner(change_s, gs_schedule_next(h, wall_s, local));
        }
        if (edge_s != INT64_MAX)
            w->edge_ns = p->wall_at_ns + (edge_s - p->wall_s) * S_NS;
        if (change_s != INT64_MAX)
            w->change_ns = p->wall_at_ns + (change_s - p->wall_s) * S_NS;
    }
    /* It may have been off meanwhile. */
    if (w->in_hours && !was_open && w->w.kind == GS_WORKER_REMOTE)
        doubt(w, now_ns);
}

void gs_place_set_wall(gs_place *p, int64_t wall_s, int64_t now_ns) {
    now_ns = place_now(p, now_ns);
    const int64_t expected_s = p->wall_s + (now_ns - p->wall_at_ns) / S_NS;
    const bool jumped =
        !p->wall_known || expected_s - wall_s > WALL_JUMP_S || wall_s - expected_s > WALL_JUMP_S;
    if (!jumped)
        return;
    p->wall_known = p->stirred = true;
    p->wall_s = wall_s;
    p->wall_at_ns = now_ns;
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++)
        if (p->workers[i].living)
            place_read_hours(p, &p->workers[i], now_ns);
}

/* ---- signs of life ----------------------------------------------------------------------------*/

void place_saw_life(place_worker *w, int64_t now_ns) {
    w->seen_ns = now_ns;
}

/* Held for dead: what is there is aborted, act by act. */
static void hold_for_dead(gs_place *p, place_worker *w, int64_t now_ns) {
    gs_breaker_trip(&w->breaker, &p->cfg.breaker, now_ns, &p->rng);
    doubt(w, now_ns);
    w->dead = w->n_placed > 0;
    place_forget_worker(p, (int32_t)(w - p->workers));
}

void place_saw_fault(gs_place *p, place_worker *w, int64_t now_ns) {
    w->count.n_faults++;
    if (w->w.kind == GS_WORKER_LOCAL)
        return;
    gs_breaker_failed(&w->breaker, &p->cfg.breaker, now_ns, &p->rng);
    doubt(w, now_ns);
}

bool gs_place_probed(gs_place *p, int32_t worker, bool ok, int64_t now_ns) {
    place_worker *w = worker_at(p, worker);
    now_ns = place_stir(p, now_ns);
    if (!w || !w->probing)
        return false;
    w->probing = false;
    if (ok) {
        place_saw_life(w, now_ns);
        if (w->must_probe && w->probed_ns < w->doubt_ns)
            return false;
        w->must_probe = false;
        gs_breaker_answered(&w->breaker);
    } else if (w->seen_ns <= w->probed_ns && w->breaker.state != GS_BREAKER_OPEN) {
        /* else it is busy, or known to be dead */
        hold_for_dead(p, w, now_ns);
    }
    return true;
}

void gs_place_alive(gs_place *p, int32_t worker, int64_t now_ns) {
    place_worker *w = worker_at(p, worker);
    if (w)
        place_saw_life(w, place_now(p, now_ns));
}

void gs_place_hold_off(gs_place *p, int32_t worker, int64_t until_ns) {
    place_worker *w = worker_at(p, worker);
    if (!w)
        return;
    w->hold_until_ns = until_ns;
    p->stirred = true;
}

/* Silent for so long, with work there and a probe on its way for half of that: not a clock that
 * jumped. */
static bool is_silent(gs_place *p, const place_worker *w, int64_t now_ns) {
    if (w->n_placed == 0)
        return false;
    const int64_t since_ns = w->seen_ns > w->busy_since_ns ? w->seen_ns : w->busy_since_ns;
    int64_t end_ns = since_ns + w->w.probe_timeout_ns;
    if (w->probed_ns >= since_ns && w->probed_ns + w->w.probe_timeout_ns / 2 > end_ns)
        end_ns = w->probed_ns + w->w.probe_timeout_ns / 2;
    if (!w->probing && w->probed_ns < since_ns - w->w.probe_timeout_ns / 4)
        return false; /* not asked yet */
    place_due(p, end_ns);
    return now_ns >= end_ns;
}

/* ---- probes -----------------------------------------------------------------------------------*/

/* When the next probe goes out, with none on its way; GS_NEVER_NS: nobody needs one. While it
 * works, a quarter of the time-out after it was heard of; so silence is known for silence in time.
 */
static int64_t probe_due_ns(const gs_place *p, place_worker *w, int64_t now_ns) {
    const int64_t quarter_ns = w->w.probe_timeout_ns / 4;
    const int64_t last_ns = w->seen_ns > w->probed_ns ? w->seen_ns : w->probed_ns;
    const bool wanted = p->wanted & place_bit((int32_t)(w - p->workers));
    const gs_breaker_state b = gs_breaker_look(&w->breaker, now_ns);
    if (w->n_placed > 0) {
        const bool fresh = w->busy_since_ns - last_ns <= quarter_ns;
        return fresh ? last_ns + quarter_ns : w->busy_since_ns;
    }
    if (w->draining || w->leaving || !w->in_hours)
        return GS_NEVER_NS;
    if (w->probed_ns == 0)
        return now_ns;
    const bool needed = wanted || w->w.probe_every_ns > 0;
    if (b == GS_BREAKER_OPEN)
        return needed ? w->breaker.until_ns : GS_NEVER_NS;
    if (b == GS_BREAKER_HALF_OPEN || w->must_probe)
        return needed ? w->probed_ns + quarter_ns : GS_NEVER_NS;
    return w->w.probe_every_ns > 0 ? last_ns + w->w.probe_every_ns : GS_NEVER_NS;
}

static bool next_probe(gs_place *p, place_worker *w, int64_t now_ns) {
    if (w->probing)
        return false;
    const int64_t due_ns = probe_due_ns(p, w, now_ns);
    if (due_ns > now_ns) {
        place_due(p, due_ns);
        return false;
    }
    w->probing = true;
    w->probed_ns = now_ns;
    w->count.n_probes++;
    return true;
}

/* Work waits for it, and it is off as far as anybody knows, or will be wanted soon. */
static bool next_power(gs_place *p, place_worker *w, int64_t now_ns) {
    const bool wanted = p->wanted & place_bit((int32_t)(w - p->workers));
    if (!w->w.can_power_on || !wanted || w->draining || w->leaving)
        return false;
    int64_t due_ns = now_ns;
    if (!w->in_hours)
        due_ns = w->edge_ns == GS_NEVER_NS ? GS_NEVER_NS : w->edge_ns - w->w.power_ahead_ns;
    else if (w->breaker.state == GS_BREAKER_CLOSED)
        return false;
    if (w->powered_ns > 0 && due_ns < w->powered_ns + POWER_AGAIN_NS)
        due_ns = w->powered_ns + POWER_AGAIN_NS;
    if (due_ns > now_ns) {
        place_due(p, due_ns);
        return false;
    }
    w->powered_ns = now_ns;
    return true;
}

/* ---- attempts that come to nothing ------------------------------------------------------------*/

/* Whether r could go somewhere else now. */
static bool has_other(const gs_place *p, place_request *r) {
    const uint32_t may = place_may(p, r) & ~place_bit(r->worker);
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++)
        if ((may & place_bit(i)) && place_is_there(&p->workers[i]))
            return true;
    return false;
}

/* Until when it is waited for. */
static int64_t patience_ns(const gs_place *p, const place_worker *w, place_request *r) {
    int64_t last_ns = r->first_ns > 0 ? r->last_ns : r->placed_ns;
    if (w->w.kind == GS_WORKER_LOCAL || r->held_since_ns > 0)
        return GS_NEVER_NS;
    if (last_ns < r->resumed_ns)
        last_ns = r->resumed_ns;
    const gs_worker_cost *c = &w->cost[place_tier(w, r->d.cls)];
    const double late = LATE * (double)r->predicted_ttft_ns;
    if (r->first_ns > 0 || !place_interactive(r->d.cls) || c->n_ttft < LATE_KNOWN ||
        late >= (double)w->w.stall_ns || !has_other(p, r))
        return last_ns + w->w.stall_ns;
    return last_ns + (int64_t)fmax(late, (double)w->w.probe_timeout_ns);
}

/* One that is to be aborted; PLACE_NONE: none now. */
static int32_t next_lost(gs_place *p, place_worker *w, int64_t now_ns) {
    if (w->dead)
        return w->placed;
    for (int32_t i = w->placed; i >= 0; i = p->requests[i].next) {
        const int64_t until_ns = patience_ns(p, w, &p->requests[i]);
        if (until_ns <= now_ns)
            return i;
        place_due(p, until_ns);
    }
    return PLACE_NONE;
}

static void abort_attempt(gs_place *p, place_worker *w, place_request *r, int64_t now_ns,
                          gs_place_act *out) {
    *out = (gs_place_act){.kind = GS_PLACE_ABORT,
                          .id = r->d.id,
                          .attempt = r->attempt,
                          .worker = r->worker,
                          .err = GS_ERR_TIMEOUT};
    if (w->dead)
        w->count.n_faults++;
    else
        place_saw_fault(p, w, now_ns);
    out->charged_ns = place_take_off(p, r, r->n_here > 0, now_ns);
    out->over = !place_failed(p, r);
    if (out->over)
        place_forget(p, r);
}

static void look_at(gs_place *p, place_worker *w, int64_t now_ns) {
    if (w->change_ns <= now_ns)
        place_read_hours(p, w, now_ns);
    if (w->change_ns != GS_NEVER_NS)
        place_due(p, w->change_ns);
    const bool rested = now_ns - w->fitted_ns > SLOW_NS;
    if (rested)
        w->cost[0].lag = w->cost[1].lag = 0.0;
    w->slow = gs_worker_cost_is_slow(&w->cost[0], w->slow);
    if (!w->dead && w->w.kind == GS_WORKER_REMOTE && is_silent(p, w, now_ns))
        hold_for_dead(p, w, now_ns);
    if (w->hold_until_ns > now_ns)
        place_due(p, w->hold_until_ns);
}

static bool next_act_of(gs_place *p, int32_t i, int64_t now_ns, gs_place_act *out) {
    place_worker *w = &p->workers[i];
    look_at(p, w, now_ns);
    const int32_t lost = next_lost(p, w, now_ns);
    if (lost >= 0) {
        abort_attempt(p, w, &p->requests[lost], now_ns, out);
        return true;
    }
    w->dead = false;
    *out = (gs_place_act){.worker = i};
    if (w->leaving && w->n_placed == 0) {
        w->living = false;
        p->version++;
        out->kind = GS_PLACE_GONE;
        return true;
    }
    if (w->w.kind == GS_WORKER_LOCAL)
        return false;
    if (next_probe(p, w, now_ns)) {
        out->kind = GS_PLACE_PROBE;
        return true;
    }
    if (next_power(p, w, now_ns)) {
        out->kind = GS_PLACE_POWER_ON;
        return true;
    }
    return false;
}

bool place_next_worker_act(gs_place *p, int64_t now_ns, gs_place_act *out) {
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++)
        if (p->workers[i].living && next_act_of(p, i, now_ns, out))
            return true;
    return false;
}

/* ---- to look at -------------------------------------------------------------------------------*/

void gs_place_get_view(const gs_place *p, int32_t worker, int64_t now_ns, gs_place_view *out) {
    *out = (gs_place_view){.state = GS_WORKER_GONE, .change_ns = GS_NEVER_NS};
    if (!gs_place_get_worker(p, worker))
        return;
    const place_worker *w = &p->workers[worker];
    const place_counts *k = &w->count;
    const bool busy = w->n_placed > 0 && now_ns > w->settled_ns;
    *out = (gs_place_view){.state = place_state(w),
                           .n_placed = w->n_placed,
                           .n_answering = w->n_answering,
                           .n_tokens = w->load[0].n_tokens + w->load[1].n_tokens,
                           .limit = w->limit,
                           .open = w->in_hours,
                           .change_ns = w->change_ns,
                           .open_until_ns =
                               w->breaker.state == GS_BREAKER_CLOSED ? 0 : w->breaker.until_ns,
                           .seen_ns = w->seen_ns,
                           .cost = {w->cost[0], w->cost[1]},
                           .n_dispatched = k->n_dispatched,
                           .n_done = k->n_done,
                           .n_faults = k->n_faults,
                           .n_moved = k->n_moved,
                           .n_busy = k->n_busy,
                           .n_probes = k->n_probes,
                           .busy_ns = k->busy_ns + (busy ? now_ns - w->settled_ns : 0),
                           .charged_ns = k->charged_ns};
    memcpy(out->n_by_class, k->n_by_class, sizeof out->n_by_class);
}
