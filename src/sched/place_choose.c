/* Which worker a request goes to, and which request is next: predictions, room, rules. */
#include "sched/place_impl.h"

#include <math.h>

#include "base/err.h"

#define AHEAD_NS     200000000.0 /* of prompts may be at a remote before one more goes there */
#define AT_HAND      4    /* background not begun at the local worker, where others may take it */
#define STRETCH      1.5  /* streams that miss their target anyway may become that much slower */
#define WORTH        1.02 /* one more sequence has to add so much to a worker's rate */
#define REMOTE_EXTRA 1.25 /* a remote has to be so much faster to get what the local one can do */
#define OUTPUT_SHARE 0.1  /* weight of the newest answer */
#define WAITED       2.0  /* times its predicted TTFT: it waited in the worker's own queue */
#define WELL_KNOWN   8    /* first tokens, for that to be said */
#define TRY_MORE     32   /* answers at the limit, then one more is tried */

/* ---- who may ----------------------------------------------------------------------------------*/

static const gs_place_model *model_at(const place_worker *w, uint32_t model) {
    for (int32_t i = 0; i < w->w.n_models; i++)
        if (w->w.models[i].model == model)
            return &w->w.models[i];
    return NULL;
}

static bool takes(const gs_place *p, const place_worker *w, gs_class c) {
    if (w->w.kind == GS_WORKER_REMOTE && (p->cfg.local_only >> c & 1))
        return false;
    return (w->w.takes | w->w.prefers) >> c & 1;
}

/* GS_OK, GS_ERR_NOT_FOUND, GS_ERR_CONTEXT. */
static int judge(const gs_place *p, int32_t i, const gs_place_desc *d, uint64_t file) {
    const place_worker *w = &p->workers[i];
    if (!w->living || w->leaving || (d->barred & place_bit(i)) || !takes(p, w, d->cls))
        return GS_ERR_NOT_FOUND;
    const gs_place_model *m = model_at(w, d->model);
    if (!m || (file != 0 && m->file != file))
        return GS_ERR_NOT_FOUND;
    return m->context > 0 && d->n_prompt >= m->context ? GS_ERR_CONTEXT : GS_OK;
}

int place_judge(const gs_place *p, const gs_place_desc *d) {
    int rc = GS_ERR_NOT_FOUND;
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++) {
        const int one = judge(p, i, d, 0);
        if (one == GS_OK)
            return GS_OK;
        if (one == GS_ERR_CONTEXT)
            rc = one;
    }
    return rc;
}

uint32_t place_may(const gs_place *p, place_request *r) {
    if (r->may_at != p->version) {
        r->may = 0;
        r->may_at = p->version;
        for (int32_t i = 0; i < GS_PLACE_WORKERS; i++)
            if (!(r->tried & place_bit(i)) && judge(p, i, &r->d, r->file) == GS_OK)
                r->may |= place_bit(i);
    }
    return r->may;
}

/* ---- predictions ------------------------------------------------------------------------------*/

static double expected_output(const gs_place *p, const place_request *r) {
    if (r->d.prefill_only)
        return 1.0;
    const double left = r->d.max_output - r->n_output;
    return fmax(fmin(p->output[r->d.cls], left), 1.0);
}

static void predict(const gs_place *p, int32_t i, const place_request *r, place_choice *out) {
    const place_worker *w = &p->workers[i];
    const int tier = place_tier(w, r->d.cls);
    const gs_worker_cost *c = &w->cost[tier];
    const gs_place_model *m = model_at(w, r->d.model);
    GS_ASSERT(m); /* judge found it */
    const int64_t load_ns = m->load_ns;
    const int32_t cached = load_ns > 0 ? 0 : place_n_cached(p, i, r);
    *out = (place_choice){
        .worker = i, .n_cached = cached, .known = c->n_ttft > 0, .loads = load_ns > 0};
    out->ahead = (double)w->load[tier].n_prompt + r->d.n_prompt + r->n_output - cached;
    out->ttft_ns = (double)load_ns + gs_worker_cost_ttft(c, out->ahead);
    const double itl = gs_worker_cost_itl(c, w->load[tier].n_seqs + place_seqs(r));
    out->total_ns = out->ttft_ns + itl * (expected_output(p, r) - 1.0);
}

/* Whether the targets of its class are kept there, by predictions. A remote that has not answered
 * anything yet is believed to if it is preferred for the class. */
static bool keeps_targets(const gs_place *p, const place_request *r, const place_choice *c,
                          int64_t now_ns) {
    const place_worker *w = &p->workers[c->worker];
    const gs_class_config *k = &p->classes[r->d.cls];
    const double since = (double)(now_ns - r->d.arrival_ns - r->held_ns);
    if (!c->known && !c->loads)
        return w->w.kind == GS_WORKER_LOCAL || (w->w.prefers >> r->d.cls & 1);
    if (k->ttft_ns > 0 && since + c->ttft_ns > (double)k->ttft_ns)
        return false;
    if (k->complete_ns > 0 && since + c->total_ns > (double)k->complete_ns)
        return false;
    if (r->d.deadline_ns > 0 && (double)now_ns + c->total_ns > (double)r->d.deadline_ns)
        return false;
    const int tier = place_tier(w, r->d.cls);
    return r->d.prefill_only || k->tpot_ns == 0 ||
           gs_worker_cost_itl(&w->cost[tier], w->load[tier].n_seqs + place_seqs(r)) <=
               (double)k->tpot_ns;
}

/* ---- room -------------------------------------------------------------------------------------*/

static bool gets_work(const place_worker *w, int64_t now_ns) {
    const gs_worker_state s = place_state(w);
    return (s == GS_WORKER_UP || s == GS_WORKER_SLOW) && !w->dead && w->hold_until_ns <= now_ns;
}

/* The gap that its streams may have, the slowest that still keeps all targets; INFINITY: nobody
 * reads. */
static double allowed_itl(const gs_place *p, const place_worker *w, int tier) {
    double least = INFINITY;
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        if (w->by_class[c] > 0 && place_tier(w, (gs_class)c) == tier && p->classes[c].tpot_ns > 0)
            least = fmin(least, (double)p->classes[c].tpot_ns);
    return fmax(least, STRETCH * gs_worker_cost_itl(&w->cost[tier], 1.0));
}

static bool streams_keep(const gs_place *p, const place_worker *w, const place_request *r,
                         int tier) {
    const double n = w->load[tier].n_seqs;
    if (r->d.prefill_only)
        return true;
    return gs_worker_cost_itl(&w->cost[tier], n + place_seqs(r)) <= allowed_itl(p, w, tier);
}

static bool adds_rate(const place_worker *w, const place_request *r, int tier) {
    const gs_worker_cost *c = &w->cost[tier];
    const double n = w->load[tier].n_seqs;
    if (r->d.prefill_only || place_interactive(r->d.cls))
        return true;
    return gs_worker_cost_rate(c, n + place_seqs(r)) > WORTH * gs_worker_cost_rate(c, n);
}

/* Not after its hours: what would not be done by then does not begin. */
static bool fits_hours(const place_worker *w, const place_choice *c, int64_t now_ns) {
    if (w->edge_ns == GS_NEVER_NS)
        return true;
    const double left = (double)(w->edge_ns - now_ns);
    return left > (double)w->w.drain_ns && (!c->known || c->total_ns <= left);
}

/* Whether the local worker, which can hold far more than it computes at a time, is to have another
 * one: what others may take as well waits here, or they would find nothing when they are free. */
static bool is_at_hand(const gs_place *p, const place_request *r, const place_worker *w,
                       const place_load *l) {
    if (place_interactive(r->d.cls) || l->n_seqs - l->n_answering < AT_HAND)
        return true;
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++)
        if ((r->may & place_bit(i)) && &p->workers[i] != w && place_is_there(&p->workers[i]))
            return false;
    return true;
}

typedef enum room { ROOM_NONE, ROOM_SOON, ROOM_NOW } room;

/* Whether it can begin there now, or as soon as the prompts before it are computed, which its
 * prediction counts. An idle worker takes one request of any size. */
static room room_for(const gs_place *p, const place_request *r, const place_choice *c,
                     int64_t now_ns) {
    const place_worker *w = &p->workers[c->worker];
    const int tier = place_tier(w, r->d.cls);
    const place_load *l = &w->load[tier];
    if (!(w->open_classes >> r->d.cls & 1) || !fits_hours(w, c, now_ns))
        return ROOM_NONE;
    if (l->n_seqs == 0)
        return ROOM_NOW;
    const int32_t limit = w->w.prioritises ? w->w.max_seqs : w->limit;
    if (l->n_seqs + place_seqs(r) > limit)
        return ROOM_NONE;
    if (w->w.max_tokens > 0 &&
        l->n_tokens + r->d.n_prompt + (int64_t)r->d.max_output * place_seqs(r) > w->w.max_tokens)
        return ROOM_NONE;
    if (w->w.kind == GS_WORKER_LOCAL) /* its scheduler sees to the rest */
        return is_at_hand(p, r, w, l) ? ROOM_NOW : ROOM_NONE;
    if (!streams_keep(p, w, r, tier) || !adds_rate(w, r, tier))
        return ROOM_NONE;
    return w->cost[tier].prompt_ns * (double)l->n_prompt <= AHEAD_NS ? ROOM_NOW : ROOM_SOON;
}

/* ---- choice -----------------------------------------------------------------------------------*/

/* A candidate's rank; the smaller one is better, field by field. */
typedef struct rank {
    bool misses, slow;
    double total_ns;
} rank;

static rank rank_of(const gs_place *p, const place_request *r, const place_choice *c,
                    int64_t now_ns) {
    const place_worker *w = &p->workers[c->worker];
    const bool interactive = place_interactive(r->d.cls);
    const bool remote = w->w.kind == GS_WORKER_REMOTE;
    /* One that is preferred and idle, and that nobody knows yet, is tried. */
    if (!c->known && w->n_placed == 0 && (w->w.prefers >> r->d.cls & 1))
        return (rank){0};
    return (rank){.misses = !keeps_targets(p, r, c, now_ns),
                  .slow = interactive && w->slow,
                  .total_ns = c->total_ns * (interactive && remote ? REMOTE_EXTRA : 1.0)};
}

static bool is_better(const rank *a, const rank *b) {
    if (a->misses != b->misses)
        return b->misses;
    return a->slow != b->slow ? b->slow : a->total_ns < b->total_ns;
}

/* Of the workers in mask that have room, the best one; false: none has, or for somebody who waits
 * for an answer the best one soon will. */
static bool choose_best(const gs_place *p, const place_request *r, uint32_t mask, int64_t now_ns,
                        place_choice *out) {
    rank best = {0};
    bool others_keep = false, now = false;
    int32_t n = 0, others_cached = 0;
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++) {
        place_choice c;
        if (!(mask & place_bit(i)) || !gets_work(&p->workers[i], now_ns))
            continue;
        predict(p, i, r, &c);
        const room m = room_for(p, r, &c, now_ns);
        if (m == ROOM_NONE || (m == ROOM_SOON && !place_interactive(r->d.cls)))
            continue;
        const rank k = rank_of(p, r, &c, now_ns);
        const bool better = n == 0 || is_better(&k, &best);
        const rank *lost = better ? &best : &k;
        if (n > 0) {
            const int32_t cached = better ? out->n_cached : c.n_cached;
            others_keep |= !lost->misses;
            others_cached = cached > others_cached ? cached : others_cached;
        }
        if (better) {
            best = k;
            *out = c;
            now = m == ROOM_NOW;
        }
        n++;
    }
    if (n > 0)
        out->why = n > 1 && !best.misses && !others_keep ? GS_PLACE_WHY_TARGET
                   : out->n_cached > others_cached       ? GS_PLACE_WHY_CACHED
                                                         : GS_PLACE_WHY_FASTEST;
    return n > 0 && now;
}

static uint32_t local_of(const gs_place *p, uint32_t mask) {
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++)
        if ((mask & place_bit(i)) && p->workers[i].w.kind == GS_WORKER_LOCAL)
            return place_bit(i);
    return 0;
}

/* Those of mask that prefer its class; the first one's rule in *rule, and whether one is there. */
static uint32_t preferring(const gs_place *p, gs_class c, uint32_t mask, gs_fallback *rule,
                           bool *there) {
    uint32_t some = 0;
    *there = false;
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++) {
        const place_worker *w = &p->workers[i];
        if (!(mask & place_bit(i)) || !(w->w.prefers >> c & 1))
            continue;
        if (some == 0)
            *rule = w->w.fallback;
        some |= place_bit(i);
        *there |= place_is_there(w) && (w->open_classes >> c & 1);
    }
    return some;
}

uint32_t place_waits_for(const gs_place *p, place_request *r) {
    const uint32_t may = place_may(p, r);
    gs_fallback rule = GS_FALLBACK_MOVE;
    bool there;
    const uint32_t some = preferring(p, r->d.cls, may, &rule, &there);
    return some != 0 && rule == GS_FALLBACK_WAIT ? some : may;
}

/* A preference is no reason to miss a target that others keep. */
static bool serves(const gs_place *p, const place_request *r, const place_choice *c,
                   int64_t now_ns) {
    return !place_interactive(r->d.cls) || keeps_targets(p, r, c, now_ns);
}

static bool choose(const gs_place *p, place_request *r, int64_t now_ns, place_choice *out) {
    const uint32_t may = place_may(p, r);
    gs_fallback rule = GS_FALLBACK_MOVE;
    bool there;
    const uint32_t some = preferring(p, r->d.cls, may, &rule, &there);
    bool found = false;
    if (some != 0) {
        found = choose_best(p, r, some, now_ns, out);
        if (found && (rule == GS_FALLBACK_WAIT || serves(p, r, out, now_ns)))
            out->why = GS_PLACE_WHY_PREFERRED;
        else if (rule == GS_FALLBACK_MOVE)
            found = choose_best(p, r, may, now_ns, out);
        else if (rule == GS_FALLBACK_LOCAL && !there)
            found = choose_best(p, r, local_of(p, may), now_ns, out);
        if (found && !(some & place_bit(out->worker)))
            out->why = GS_PLACE_WHY_FALLBACK;
    } else {
        found = choose_best(p, r, may, now_ns, out);
    }
    if (found && r->file != 0)
        out->why = GS_PLACE_WHY_CONTINUE;
    else if (found && r->ever_failed)
        out->why = GS_PLACE_WHY_RETRY;
    else if (found && (may & (may - 1)) == 0)
        out->why = GS_PLACE_WHY_ONLY;
    return found;
}

/* ---- the queue --------------------------------------------------------------------------------*/

/* Less: comes first inside its class. */
static double counter_of(gs_place *p, const place_request *r) {
    const place_person *u = place_person_of(p, r);
    return place_counter(u) + u->reserved_ns;
}

/* Background that found no room: what is no smaller finds none either, which spares long queues. */
typedef struct no_room {
    uint32_t may;
    int64_t n_tokens;
    int32_t n_seqs;
} no_room;

static bool is_no_smaller(const place_request *r, const no_room *than) {
    return !place_interactive(r->d.cls) && r->d.deadline_ns == 0 && r->may == than->may &&
           r->d.n_prompt + (int64_t)r->d.max_output >= than->n_tokens &&
           place_seqs(r) >= than->n_seqs;
}

static no_room no_room_for(const place_request *r) {
    return (no_room){.may = r->may,
                     .n_tokens = r->d.n_prompt + (int64_t)r->d.max_output,
                     .n_seqs = place_seqs(r)};
}

int32_t place_choose_next(gs_place *p, int64_t now_ns, place_choice *out) {
    uint32_t working = 0;
    for (int32_t i = 0; i < GS_PLACE_WORKERS; i++)
        if (p->workers[i].living && gets_work(&p->workers[i], now_ns))
            working |= place_bit(i);
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        int32_t best = PLACE_NONE;
        double least = INFINITY;
        no_room full = {0};
        for (int32_t i = p->waiting[c]; i >= 0; i = p->requests[i].next) {
            place_request *r = &p->requests[i];
            const double counter = counter_of(p, r);
            place_choice choice;
            if (r->held_since_ns > 0 || counter >= least || (place_may(p, r) & working) == 0 ||
                is_no_smaller(r, &full))
                continue;
            if (!choose(p, r, now_ns, &choice)) {
                full = no_room_for(r);
                continue;
            }
            best = i;
            least = counter;
            *out = choice;
        }
        if (best >= 0)
            return best;
    }
    return PLACE_NONE;
}

/* ---- what is learned --------------------------------------------------------------------------*/

/* It came soon after another answer had ended there, and should have come long before that: the
 * worker had all its seats taken, so from now on what is more than that waits here. */
static bool waited_there(const place_worker *w, const place_request *r, int64_t now_ns) {
    const double predicted = (double)r->predicted_ttft_ns;
    if (w->w.kind == GS_WORKER_LOCAL || w->w.prioritises || r->n_before < 1 ||
        w->cost[0].n_ttft < WELL_KNOWN || w->ended_ns <= r->placed_ns)
        return false;
    return (double)(w->ended_ns - r->placed_ns) > WAITED * predicted &&
           (double)(now_ns - w->ended_ns) < WAITED * predicted;
}

void place_fit_from(const gs_place *p, place_request *r, int64_t now_ns) {
    const place_worker *w = &p->workers[r->worker];
    r->fit_ns = now_ns;
    r->fit_seqs = w->seqs_ns[place_tier(w, r->d.cls)];
    r->fit_tokens = 0;
}

void place_saw_first(gs_place *p, place_request *r, int64_t now_ns) {
    place_worker *w = &p->workers[r->worker];
    const int tier = place_tier(w, r->d.cls);
    int64_t from_ns = r->placed_ns > r->resumed_ns ? r->placed_ns : r->resumed_ns;
    if (waited_there(w, r, now_ns)) {
        from_ns = w->ended_ns;
        if (r->n_before < w->limit) {
            w->limit = r->n_before;
            w->n_at_limit = 0;
        }
    }
    gs_worker_cost_saw_ttft(&w->cost[tier], r->ahead, now_ns - from_ns);
    w->fitted_ns = now_ns;
    w->load[tier].n_prompt -= r->n_uncached;
    w->load[tier].n_answering += place_seqs(r);
    w->n_answering++;
    r->n_uncached = 0;
    r->first_ns = now_ns;
    place_fit_from(p, r, now_ns);
    place_remember(p, r->worker, r);
}

void place_saw_tokens(gs_place *p, place_request *r, int32_t n, bool last, int64_t now_ns) {
    place_worker *w = &p->workers[r->worker];
    const int tier = place_tier(w, r->d.cls);
    r->fit_tokens += n;
    const int32_t each = r->fit_tokens / place_seqs(r);
    const int64_t ns = now_ns - r->fit_ns;
    if (each < (last ? PLACE_FIT_TOKENS / 4 : PLACE_FIT_TOKENS) || ns <= 0)
        return;
    gs_worker_cost_saw_tokens(&w->cost[tier], (w->seqs_ns[tier] - r->fit_seqs) / (double)ns, each,
                              ns);
    w->fitted_ns = now_ns;
    place_fit_from(p, r, now_ns);
}

void place_saw_end(gs_place *p, place_request *r, int64_t now_ns) {
    place_worker *w = &p->workers[r->worker];
    gs_breaker_succeeded(&w->breaker);
    w->ended_ns = now_ns;
    w->count.n_done++;
    place_remember_talk(p, r);
    if (!r->d.prefill_only)
        p->output[r->d.cls] +=
            OUTPUT_SHARE * ((double)r->n_output / place_seqs(r) - p->output[r->d.cls]);
    if (w->load[0].n_seqs + w->load[1].n_seqs < w->limit || w->limit >= w->w.max_seqs)
        return;
    if (++w->n_at_limit >= TRY_MORE) {
        w->limit++;
        w->n_at_limit = 0;
    }
}
