/* Requests: from submit to their one end. */
#include "sched/place.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "sched/place_impl.h"

#define S_NS       1000000000LL
#define OUTPUT     128.0        /* tokens of an answer, until some have been seen */
#define BUSY_NS    S_NS         /* a worker that says that it is busy is left alone */
#define BOOT_NS    (180 * S_NS) /* an interactive request waits so long for one to be switched on */
#define PATIENCE   3 /* times its target: so late a first token is still of use, if nobody says */
#define OPEN_NS    (60 * S_NS) /* of a class without any target */
#define MAX_TOKENS (1 << 28)
#define CREDIT_NS  60e9

/* ---- lists ------------------------------------------------------------------------------------*/

static int32_t index_of(const gs_place *p, const place_request *r) {
    return (int32_t)(r - p->requests);
}

static void unlink_from(gs_place *p, place_request *r, int32_t *head, int32_t *tail) {
    if (r->prev >= 0)
        p->requests[r->prev].next = r->next;
    else
        *head = r->next;
    if (r->next >= 0)
        p->requests[r->next].prev = r->prev;
    else if (tail)
        *tail = r->prev;
    r->prev = r->next = PLACE_NONE;
}

static bool came_before(const place_request *a, const place_request *b) {
    return a->d.arrival_ns != b->d.arrival_ns ? a->d.arrival_ns < b->d.arrival_ns
                                              : a->ordinal < b->ordinal;
}

/* Behind those that came before it. */
static void wait_again(gs_place *p, place_request *r) {
    const gs_class c = r->d.cls;
    int32_t after = p->last_waiting[c];
    while (after >= 0 && came_before(r, &p->requests[after]))
        after = p->requests[after].prev;
    r->prev = after;
    r->next = after >= 0 ? p->requests[after].next : p->waiting[c];
    if (r->next >= 0)
        p->requests[r->next].prev = index_of(p, r);
    else
        p->last_waiting[c] = index_of(p, r);
    if (after >= 0)
        p->requests[after].next = index_of(p, r);
    else
        p->waiting[c] = index_of(p, r);
    p->n_waiting[c]++;
    r->worker = PLACE_NONE;
    r->waits = true;
    r->lone_ns = 0;
    r->may_at = 0;
}

static void leave_queue(gs_place *p, place_request *r) {
    const gs_class c = r->d.cls;
    unlink_from(p, r, &p->waiting[c], &p->last_waiting[c]);
    p->n_waiting[c]--;
    r->waits = false;
}

static int32_t *bucket_of(const gs_place *p, uint64_t id) {
    return &p->ids[(id * 0x9e3779b97f4a7c15u >> 20) & p->id_mask];
}

place_request *place_find(const gs_place *p, uint64_t id) {
    for (int32_t i = *bucket_of(p, id); i >= 0; i = p->requests[i].id_next)
        if (p->requests[i].d.id == id)
            return &p->requests[i];
    return NULL;
}

void place_forget(gs_place *p, place_request *r) {
    int32_t *at = bucket_of(p, r->d.id);
    while (*at != index_of(p, r))
        at = &p->requests[*at].id_next;
    *at = r->id_next;
    if (r->waits)
        leave_queue(p, r);
    place_person *u = place_person_of(p, r);
    if (--u->n_living == 0)
        p->left_ns = place_counter(u);
    r->living = false;
    r->id_next = p->free_request;
    p->free_request = index_of(p, r);
    p->n_living--;
}

/* ---- attempts ---------------------------------------------------------------------------------*/

static int64_t load_of(const place_request *r) {
    return r->d.n_prompt + (int64_t)r->d.max_output * place_seqs(r);
}

void place_put(gs_place *p, place_request *r, const place_choice *c, int64_t now_ns) {
    place_worker *w = &p->workers[c->worker];
    const int tier = place_tier(w, r->d.cls);
    place_load *l = &w->load[tier];
    place_settle(w, now_ns);
    leave_queue(p, r);
    r->worker = c->worker;
    r->attempt++;
    r->why = c->why;
    r->n_here = 0;
    r->n_uncached = r->d.n_prompt + r->n_output - c->n_cached;
    r->ahead = c->ahead;
    r->n_before = l->n_answering;
    r->began_share = w->share_ns;
    r->placed_ns = now_ns;
    r->first_ns = r->last_ns = 0;
    r->predicted_ttft_ns = c->known ? (int64_t)c->ttft_ns : -1;
    r->predicted_ns = c->known ? (int64_t)c->total_ns : -1;
    if (w->n_placed++ == 0)
        w->busy_since_ns = now_ns;
    w->by_class[r->d.cls]++;
    l->n_seqs += place_seqs(r);
    l->n_tokens += load_of(r);
    l->n_prompt += r->n_uncached;
    r->reserved_ns = c->total_ns * place_seqs(r) / (w->load[0].n_seqs + w->load[1].n_seqs);
    place_person_of(p, r)->reserved_ns += r->reserved_ns;
    r->prev = PLACE_NONE;
    r->next = w->placed;
    if (r->next >= 0)
        p->requests[r->next].prev = index_of(p, r);
    w->placed = index_of(p, r);
    w->count.n_dispatched++;
    w->count.n_by_class[r->d.cls]++;
}

/* A worker's time is shared by the sequences there, so the charges sum to the time it worked. */
int64_t place_take_off(gs_place *p, place_request *r, bool charge, int64_t now_ns) {
    place_worker *w = &p->workers[r->worker];
    place_load *l = &w->load[place_tier(w, r->d.cls)];
    place_person *u = place_person_of(p, r);
    place_settle(w, now_ns);
    unlink_from(p, r, &w->placed, NULL);
    w->n_placed--;
    w->by_class[r->d.cls]--;
    l->n_seqs -= place_seqs(r);
    l->n_tokens -= load_of(r);
    l->n_prompt -= r->n_uncached;
    if (r->first_ns > 0) {
        l->n_answering -= place_seqs(r);
        w->n_answering--;
    }
    r->left = r->worker;
    r->worker = PLACE_NONE;
    u->reserved_ns -= r->reserved_ns;
    if (!charge || w->w.kind == GS_WORKER_LOCAL)
        return 0;
    const double ns = w->w.price * (w->share_ns - r->began_share) * place_seqs(r);
    u->own_ns = place_counter(u) + ns / (u->weight > 0.0 ? u->weight : 1.0);
    w->count.charged_ns += (int64_t)ns;
    return (int64_t)ns;
}

/* The same model file goes on where the text ends; else what has been said can't be taken back. */
static bool can_go_on(const gs_place *p, place_request *r) {
    if (r->n_output == 0)
        return true;
    if (!r->d.can_continue || r->n_output >= r->d.max_output)
        return false;
    const gs_place_worker *w = &p->workers[r->left].w;
    for (int32_t i = 0; i < w->n_models && r->file == 0; i++)
        if (w->models[i].model == r->d.model)
            r->file = w->models[i].file;
    return r->file != 0;
}

bool place_failed(gs_place *p, place_request *r) {
    r->tried |= place_bit(r->left);
    r->may_at = 0;
    if (!can_go_on(p, r) || place_may(p, r) == 0)
        return false;
    r->ever_failed = true;
    p->workers[r->left].count.n_moved++;
    wait_again(p, r);
    return true;
}

/* The request's current attempt, or NULL. */
static place_request *attempt_of(const gs_place *p, uint64_t id, int32_t attempt) {
    place_request *r = place_find(p, id);
    return r && r->worker != PLACE_NONE && r->attempt == attempt ? r : NULL;
}

bool gs_place_tokens(gs_place *p, uint64_t id, int32_t attempt, int32_t n, int64_t now_ns) {
    place_request *r = attempt_of(p, id, attempt);
    now_ns = place_now(p, now_ns);
    if (!r || p->workers[r->worker].dead || n < 0)
        return false;
    place_worker *w = &p->workers[r->worker];
    place_settle(w, now_ns);
    place_saw_life(w, now_ns);
    r->last_ns = now_ns;
    if (n == 0)
        return true;
    r->n_here = n < MAX_TOKENS - r->n_here ? r->n_here + n : MAX_TOKENS;
    r->n_output = n < MAX_TOKENS - r->n_output ? r->n_output + n : MAX_TOKENS;
    if (r->first_ns > 0) {
        place_saw_tokens(p, r, n, false, now_ns);
        return true;
    }
    place_saw_first(p, r, now_ns);
    place_stir(p, now_ns);
    return true;
}

static void end_well(gs_place *p, place_request *r, int64_t now_ns, gs_place_over *out) {
    place_worker *w = &p->workers[r->worker];
    place_settle(w, now_ns);
    place_saw_life(w, now_ns);
    if (r->first_ns == 0)
        place_saw_first(p, r, now_ns);
    else
        place_saw_tokens(p, r, 0, true, now_ns);
    place_saw_end(p, r, now_ns);
    out->charged_ns = place_take_off(p, r, true, now_ns);
}

/* The worker has more than it can do: what was sent waits here again. */
static void end_busy(gs_place *p, place_request *r, int64_t now_ns) {
    place_worker *w = &p->workers[r->worker];
    place_saw_life(w, now_ns);
    w->count.n_busy++;
    place_take_off(p, r, false, now_ns);
    const int32_t n = w->load[0].n_seqs + w->load[1].n_seqs;
    if (n < w->limit && w->w.kind == GS_WORKER_REMOTE) {
        w->limit = n > 1 ? n : 1;
        w->n_at_limit = 0;
    }
    if (w->hold_until_ns < now_ns + BUSY_NS)
        w->hold_until_ns = now_ns + BUSY_NS;
    wait_again(p, r);
}

static bool end_badly(gs_place *p, place_request *r, int64_t now_ns, gs_place_over *out) {
    place_saw_fault(p, &p->workers[r->worker], now_ns);
    out->charged_ns = place_take_off(p, r, r->n_here > 0, now_ns);
    return place_failed(p, r);
}

bool gs_place_end(gs_place *p, uint64_t id, int32_t attempt, gs_place_how how, int64_t now_ns,
                  gs_place_over *out) {
    place_request *r = attempt_of(p, id, attempt);
    now_ns = place_stir(p, now_ns);
    *out = (gs_place_over){0};
    if (!r || p->workers[r->worker].dead)
        return false;
    out->person = r->d.person;
    if (how == GS_PLACE_BUSY && r->n_here > 0)
        how = GS_PLACE_FAULT;
    switch (how) {
    case GS_PLACE_DONE:
        end_well(p, r, now_ns, out);
        break;
    case GS_PLACE_BUSY:
        end_busy(p, r, now_ns);
        out->again = true;
        break;
    case GS_PLACE_FAULT:
        out->again = end_badly(p, r, now_ns, out);
        break;
    case GS_PLACE_BAD_REQUEST:
        place_saw_life(&p->workers[r->worker], now_ns);
        out->charged_ns = place_take_off(p, r, r->n_here > 0, now_ns);
        break;
    }
    if (!out->again)
        place_forget(p, r);
    return true;
}

bool gs_place_cancel(gs_place *p, uint64_t id, int64_t now_ns, gs_place_over *out) {
    place_request *r = place_find(p, id);
    now_ns = place_stir(p, now_ns);
    *out = (gs_place_over){0};
    if (!r)
        return false;
    out->person = r->d.person;
    if (r->worker != PLACE_NONE)
        out->charged_ns = place_take_off(p, r, true, now_ns);
    place_forget(p, r);
    return true;
}

/* ---- submit -----------------------------------------------------------------------------------*/

/* Of a long prompt every second, third ... hash: chained ones stand for all before them. */
static void keep_blocks(place_request *r, const gs_place_desc *d) {
    const int32_t stride = d->n_blocks > 0 ? (d->n_blocks - 1) / PLACE_BLOCKS + 1 : 1;
    r->n_blocks = 0;
    r->block_tokens = d->block_tokens * stride;
    for (int32_t i = stride; i <= d->n_blocks; i += stride)
        r->blocks[r->n_blocks++] = d->blocks[i - 1];
}

/* What somebody saved up while away counts for CREDIT_NS at most: beside the least of those who are
 * there, or with nobody there the one who left last. */
static void join(gs_place *p, const place_request *r) {
    place_person *u = place_person_of(p, r);
    double least = INFINITY;
    if (u->n_living++ > 0)
        return;
    for (uint32_t i = 0; i < p->cfg.max_persons; i++)
        if (p->persons[i].n_living > 0 && &p->persons[i] != u)
            least = fmin(least, place_counter(&p->persons[i]));
    u->own_ns = fmax(place_counter(u), (isfinite(least) ? least : p->left_ns) - CREDIT_NS);
}

static bool is_valid(const gs_place_desc *d) {
    return d->id != 0 && (int)d->cls >= 0 && d->cls < GS_CLASS_COUNT && d->n_prompt > 0 &&
           d->n_prompt <= MAX_TOKENS && d->max_output >= 0 && d->max_output <= MAX_TOKENS &&
           d->n_seqs >= 0 && d->n_seqs <= MAX_TOKENS / 1024 && d->n_blocks >= 0 &&
           (d->n_blocks == 0 || d->block_tokens > 0);
}

/* Its class is held, or it is paused, or neither any more. */
static void look_at_hold(gs_place *p, place_request *r, int64_t now_ns) {
    const bool held = r->paused || (p->held >> r->d.cls & 1);
    if (held && r->held_since_ns == 0)
        r->held_since_ns = now_ns;
    if (held || r->held_since_ns == 0)
        return;
    r->held_ns += now_ns - r->held_since_ns;
    r->held_since_ns = r->lone_ns = 0;
    r->resumed_ns = now_ns;
    if (r->worker == PLACE_NONE)
        return;
    place_settle(&p->workers[r->worker], now_ns);
    place_fit_from(p, r, now_ns);
}

bool gs_place_pause(gs_place *p, uint64_t id, bool paused, int64_t now_ns) {
    place_request *r = place_find(p, id);
    now_ns = place_stir(p, now_ns);
    if (!r)
        return false;
    r->paused = paused;
    look_at_hold(p, r, now_ns);
    return true;
}

void gs_place_hold_classes(gs_place *p, uint32_t classes, int64_t now_ns) {
    if (classes == p->held)
        return;
    p->held = classes;
    now_ns = place_stir(p, now_ns);
    for (int32_t i = 0; i < p->cfg.max_requests; i++)
        if (p->requests[i].living)
            look_at_hold(p, &p->requests[i], now_ns);
}

int gs_place_submit(gs_place *p, const gs_place_desc *d, int64_t now_ns) {
    now_ns = place_stir(p, now_ns);
    if (!is_valid(d))
        return GS_ERR_INVALID;
    if (place_find(p, d->id))
        return GS_ERR_EXISTS;
    const int rc = place_judge(p, d);
    if (rc != GS_OK)
        return rc;
    if (p->free_request == PLACE_NONE)
        return GS_ERR_OVERLOADED;
    place_request *r = &p->requests[p->free_request];
    p->free_request = r->id_next;
    uint64_t *blocks = r->blocks;
    *r = (place_request){.d = *d,
                         .blocks = blocks,
                         .living = true,
                         .worker = PLACE_NONE,
                         .left = PLACE_NONE,
                         .ordinal = ++p->last_ordinal};
    r->d.blocks = NULL;
    keep_blocks(r, d);
    int32_t *bucket = bucket_of(p, d->id);
    r->id_next = *bucket;
    *bucket = index_of(p, r);
    p->n_living++;
    join(p, r);
    look_at_hold(p, r, now_ns);
    wait_again(p, r);
    return GS_OK;
}

void gs_place_set_counter(gs_place *p, uint32_t person, double counter_ns, double weight) {
    if (person >= p->cfg.max_persons)
        return;
    p->persons[person].told_ns = counter_ns;
    p->persons[person].weight = weight;
}

/* ---- decisions --------------------------------------------------------------------------------*/

static void mix(gs_place *p, const gs_place_act *a) {
    const uint64_t v[] = {a->id, (uint64_t)a->kind, (uint64_t)(uint32_t)a->worker,
                          (uint64_t)(uint32_t)a->attempt, a->over};
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        p->hash = (p->hash ^ v[i]) * 0x9e3779b97f4a7c15u;
        p->hash ^= p->hash >> 29;
    }
}

/* How late a first token may be. */
static int64_t patience_of(const gs_class_config *k) {
    if (k->hard_ttft_ns > 0)
        return k->hard_ttft_ns;
    if (k->ttft_ns > 0)
        return PATIENCE * k->ttft_ns;
    return k->complete_ns > 0 ? k->complete_ns : OPEN_NS;
}

/* Whether no worker that it would go to will be there in time, and when one may be at the
 * earliest. An interactive one's time runs from when the last of them went. */
static bool is_hopeless(gs_place *p, place_request *r, int64_t now_ns, int64_t *hope_ns) {
    const uint32_t may = place_may(p, r) != 0 ? place_waits_for(p, r) : 0;
    bool boots = false, there = false;
    *hope_ns = GS_NEVER_NS;
    if (may == 0 || !place_interactive(r->d.cls))
        return may == 0;
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++) {
        if (!(may & place_bit(i)))
            continue;
        const place_worker *w = &p->workers[i];
        const int64_t at_ns = place_hope_ns(w, r->d.cls);
        const gs_worker_state state = place_state(w);
        boots |= w->w.can_power_on && state == GS_WORKER_OPEN;
        there |= at_ns <= now_ns && (state == GS_WORKER_UP || state == GS_WORKER_SLOW);
        *hope_ns = at_ns < *hope_ns ? at_ns : *hope_ns;
    }
    if (there)
        r->lone_ns = 0;
    else if (r->lone_ns == 0)
        r->lone_ns = now_ns;
    const int64_t patience_ns = boots ? BOOT_NS : patience_of(&p->classes[r->d.cls]);
    return !there && *hope_ns > r->lone_ns + patience_ns;
}

/* Goes over what waits: who may be asked for it, and what nobody can do any more. */
static bool next_refusal(gs_place *p, int64_t now_ns, gs_place_act *out) {
    p->wanted = 0;
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        for (int32_t i = p->waiting[c]; i >= 0; i = p->requests[i].next) {
            place_request *r = &p->requests[i];
            int64_t hope_ns;
            if (r->held_since_ns > 0)
                continue;
            if (is_hopeless(p, r, now_ns, &hope_ns)) {
                *out = (gs_place_act){.kind = GS_PLACE_REFUSE,
                                      .id = r->d.id,
                                      .attempt = r->attempt,
                                      .worker = PLACE_NONE,
                                      .over = true,
                                      .err = GS_ERR_UNAVAILABLE,
                                      .retry_ns = hope_ns < GS_NEVER_NS ? hope_ns - now_ns : -1};
                place_forget(p, r);
                return true;
            }
            p->wanted |= r->may;
        }
    }
    return false;
}

static bool next_dispatch(gs_place *p, int64_t now_ns, gs_place_act *out) {
    place_choice c;
    const int32_t at = place_choose_next(p, now_ns, &c);
    if (at == PLACE_NONE)
        return false;
    place_request *r = &p->requests[at];
    place_put(p, r, &c, now_ns);
    *out = (gs_place_act){.kind = GS_PLACE_DISPATCH,
                          .id = r->d.id,
                          .attempt = r->attempt,
                          .worker = r->worker,
                          .why = r->why,
                          .n_cached = c.n_cached,
                          .n_output = r->n_output,
                          .predicted_ttft_ns = r->predicted_ttft_ns,
                          .predicted_ns = r->predicted_ns};
    return true;
}

bool gs_place_next(gs_place *p, int64_t now_ns, gs_place_act *out) {
    now_ns = place_now(p, now_ns);
    if (!p->stirred && now_ns < p->wake_ns)
        return false;
    p->wake_ns = GS_NEVER_NS;
    const bool any = next_refusal(p, now_ns, out) || place_next_worker_act(p, now_ns, out) ||
                     next_dispatch(p, now_ns, out);
    p->stirred = any;
    if (any)
        mix(p, out);
    return any;
}

int64_t gs_place_wake_ns(const gs_place *p) {
    return p->stirred ? p->now_ns : p->wake_ns;
}

/* ---- to look at -------------------------------------------------------------------------------*/

int gs_place_get_record(const gs_place *p, uint64_t id, gs_place_record *out) {
    const place_request *r = place_find(p, id);
    if (!r)
        return GS_ERR_NOT_FOUND;
    *out = (gs_place_record){.worker = r->worker,
                             .attempt = r->attempt,
                             .why = r->why,
                             .n_output = r->n_output,
                             .placed_ns = r->worker == PLACE_NONE ? 0 : r->placed_ns,
                             .first_ns = r->worker == PLACE_NONE ? 0 : r->first_ns,
                             .predicted_ttft_ns = r->predicted_ttft_ns,
                             .predicted_ns = r->predicted_ns};
    if (r->worker != PLACE_NONE)
        return GS_OK;
    for (int32_t i = r->prev; i >= 0; i = p->requests[i].prev)
        out->n_ahead++;
    for (int c = 0; c < (int)r->d.cls; c++)
        out->n_ahead += p->n_waiting[c];
    return GS_OK;
}

void gs_place_count_waiting(const gs_place *p, int32_t out[GS_CLASS_COUNT]) {
    memcpy(out, p->n_waiting, sizeof p->n_waiting);
}

uint64_t gs_place_decision_hash(const gs_place *p) {
    return p->hash;
}

/* ---- create and free --------------------------------------------------------------------------*/

int gs_place_create(const gs_place_config *cfg, gs_place **out) {
    if (cfg->max_requests < 1 || cfg->max_requests > 1 << 20 || cfg->max_persons > UINT16_MAX)
        return GS_ERR_INVALID;
    gs_place *p = gs_calloc(1, sizeof *p);
    if (!p)
        return GS_ERR_NOMEM;
    p->cfg = *cfg;
    p->cfg.max_persons = cfg->max_persons > 0 ? cfg->max_persons : 1;
    if (cfg->breaker.max_failures < 1)
        gs_breaker_defaults(&p->cfg.breaker);
    if (cfg->classes)
        memcpy(p->classes, cfg->classes, sizeof p->classes);
    else
        gs_class_defaults(p->classes);
    const size_t n = (size_t)cfg->max_requests;
    size_t n_ids = 16;
    while (n_ids < 2 * n)
        n_ids *= 2;
    p->id_mask = n_ids - 1;
    p->requests = gs_calloc(n, sizeof *p->requests);
    p->blocks = gs_calloc(n, PLACE_BLOCKS * sizeof *p->blocks);
    p->ids = gs_array(n_ids, sizeof *p->ids);
    p->persons = gs_calloc(p->cfg.max_persons, sizeof *p->persons);
    p->talks = gs_calloc(PLACE_TALKS, sizeof *p->talks);
    p->ways = gs_calloc((size_t)GS_PLACE_WORKERS * PLACE_SETS, sizeof *p->ways);
    if (!p->requests || !p->blocks || !p->ids || !p->persons || !p->talks || !p->ways) {
        gs_place_free(p);
        return GS_ERR_NOMEM;
    }
    memset(p->ids, 0xff, n_ids * sizeof *p->ids);
    for (size_t i = 0; i < n; i++) {
        p->requests[i].id_next = i + 1 < n ? (int32_t)i + 1 : PLACE_NONE;
        p->requests[i].blocks = p->blocks + i * PLACE_BLOCKS;
    }
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        p->waiting[c] = p->last_waiting[c] = PLACE_NONE;
        p->output[c] = OUTPUT;
    }
    p->version = 1;
    p->wake_ns = GS_NEVER_NS;
    gs_rng_seed(&p->rng, cfg->seed);
    *out = p;
    return GS_OK;
}

void gs_place_free(gs_place *p) {
    if (!p)
        return;
    gs_free(p->ways);
    gs_free(p->talks);
    gs_free(p->persons);
    gs_free(p->ids);
    gs_free(p->blocks);
    gs_free(p->requests);
    gs_free(p);
}
