/*
 * Fairness between persons: one weighted virtual counter each over all classes and kinds of work
 * (VTC: Sheng et al., OSDI'24), in device time instead of tokens, so that chat, documents and
 * embeddings share one currency. Only work that is new is charged: what a prefix cache gives,
 * what is computed again and what belongs to a public prefix is not.
 */
#include "sched/slo_impl.h"

#include "base/err.h"
#include "base/sys.h"

#define OUTPUT_GUESS 128.0 /* tokens, until a person has had answers */
#define OUTPUT_SHARE 0.2   /* weight of the newest answer */
#define DAY_NS       86400000000000LL

static double weight_of(const gs_sched *s, const slo_person *u) {
    const double weight = slo_config_of(s, u)->weight;
    return weight > 0.0 ? weight : 1.0;
}

/* ---- the accounts -----------------------------------------------------------------------------*/

size_t slo_accounts_bytes(uint32_t max_persons) {
    return sizeof(gs_accounts) + (max_persons > 0 ? max_persons : 1) * sizeof(slo_person);
}

void slo_accounts_place(void *at, uint32_t max_persons) {
    gs_accounts *a = at;
    a->n_persons = max_persons > 0 ? max_persons : 1;
    a->persons = (slo_person *)(void *)(a + 1);
}

int gs_accounts_create(uint32_t max_persons, gs_accounts **out) {
    if (max_persons > UINT16_MAX)
        return GS_ERR_INVALID;
    void *at = gs_calloc(1, slo_accounts_bytes(max_persons));
    if (!at)
        return GS_ERR_NOMEM;
    slo_accounts_place(at, max_persons);
    *out = at;
    return GS_OK;
}

void gs_accounts_free(gs_accounts *a) {
    gs_free(a);
}

void slo_join(gs_sched *s, gs_accounts *a) {
    slo_state *p = slo_of(s);
    p->accounts = a;
    p->n_persons = s->cfg.max_persons = a->n_persons;
    p->persons = a->persons;
    s->next_member = a->members;
    a->members = s;
}

void slo_leave(gs_sched *s) {
    gs_accounts *a = slo_of(s)->accounts;
    gs_sched **at = &a->members;
    const gs_sched_list *const lists[] = {&s->running, &s->waiting};
    for (int i = 0; i < 2; i++)
        for (const gs_sched_seq *q = lists[i]->head; q; q = q->next) {
            slo_person_of(s, q)->n_live--;
            slo_person_of(s, q)->n_paused -= q->paused;
        }
    while (*at != s)
        at = &(*at)->next_member;
    *at = s->next_member;
}

void slo_begin(gs_sched *s) {
    const slo_state *p = slo_of(s);
    for (uint32_t i = 0; i < p->n_persons; i++) {
        slo_person *u = &p->persons[i];
        u->n_running = u->n_wanted = 0;
        u->passed_over = 0; /* steps are numbered by each scheduler for itself */
    }
    for (const gs_sched *m = p->accounts->members; m; m = m->next_member)
        for (const gs_sched_seq *q = m->running.head; q; q = q->next)
            slo_person_of(m, q)->n_running += !q->paused;
}

/* ---- counters ---------------------------------------------------------------------------------*/

double slo_expected_output(const gs_sched *s, const gs_sched_seq *q) {
    const double most = q->d.max_output - q->n_output;
    double expect = slo_person_of(s, q)->output_tokens;
    if (expect <= 0.0)
        expect = OUTPUT_GUESS;
    /* One that has outlived the average goes on for a while, as lives do. */
    expect = slo_max(expect - q->n_output, 0.25 * expect);
    return slo_min(expect, most);
}

/*
 * Who comes back from idle may not spend what was saved up meanwhile: the counter is lifted to
 * the least of those who wait or run, or with nobody there to that of the person who left last.
 */
double slo_counter_on_return(const gs_sched *s, uint32_t person) {
    const slo_state *p = slo_of(s);
    const slo_person *u = &p->persons[person < p->n_persons ? person : 0];
    if (slo_is_active(u))
        return u->counter_ns;
    double least = -1.0;
    for (uint32_t i = 0; i < p->n_persons; i++) {
        const slo_person *o = &p->persons[i];
        if (o != u && slo_is_active(o) && (least < 0.0 || o->counter_ns < least))
            least = o->counter_ns;
    }
    return slo_max(u->counter_ns, least >= 0.0 ? least : p->accounts->last_counter_ns);
}

void slo_person_joins(gs_sched *s, gs_sched_seq *q) {
    gs_accounts *a = slo_of(s)->accounts;
    slo_person *u = slo_person_of(s, q);
    if (q->d.person != a->last_person && (a->someone_came))
        a->switched_ns = s->now_ns > 0 ? s->now_ns : 1;
    a->last_person = q->d.person;
    a->someone_came = true;
    u->counter_ns = slo_counter_on_return(s, q->d.person);
    u->n_live++;
}

/* Who has paused everything is away, and comes back when something goes on. */
void slo_person_pauses(gs_sched *s, gs_sched_seq *q) {
    slo_person *u = slo_person_of(s, q);
    if (q->paused) {
        u->n_paused++;
        if (!slo_is_active(u))
            slo_of(s)->accounts->last_counter_ns = u->counter_ns;
        return;
    }
    u->counter_ns = slo_counter_on_return(s, q->d.person);
    u->n_paused--;
}

void slo_person_leaves(gs_sched *s, const gs_sched_seq *q) {
    slo_person *u = slo_person_of(s, q);
    GS_ASSERT(u->n_live > 0);
    const bool active = slo_is_active(u);
    u->n_live--;
    u->n_paused -= q->paused;
    if (active && !slo_is_active(u))
        slo_of(s)->accounts->last_counter_ns = u->counter_ns;
    const bool whole = q->end.reason == GS_END_STOP || q->end.reason == GS_END_LENGTH;
    if (!whole)
        return;
    const double n = q->n_output;
    u->output_tokens =
        u->output_tokens <= 0.0 ? n : u->output_tokens + OUTPUT_SHARE * (n - u->output_tokens);
}

/* Share of an item's tokens that are its person's to pay. */
static double useful_share(const gs_sched_seq *q, const gs_plan_item *it) {
    int32_t from = q->n_high > q->d.n_public ? q->n_high : q->d.n_public;
    if (from < it->pos)
        from = it->pos;
    const int32_t n = it->pos + it->n_tokens - from;
    return n > 0 ? (double)n / it->n_tokens : 0.0;
}

void slo_weigh_items(gs_sched *s) {
    slo_state *p = slo_of(s);
    const gs_plan *plan = &s->plan;
    gs_cost_step x;
    gs_sched_plan_cost(plan, &x);
    const double whole = gs_cost_predict(&s->cost, &x);
    const double shared = plan->n_items > 0 ? gs_cost_fixed(&s->cost) / plan->n_items : 0.0;
    for (int32_t i = 0; i < plan->n_items; i++) {
        const gs_plan_item *it = &plan->items[i];
        gs_cost_step_sub(&x, it->n_tokens, it->pos, !it->prefill, it->sample);
        const double saved = whole - gs_cost_predict(&s->cost, &x);
        gs_cost_step_add(&x, it->n_tokens, it->pos, !it->prefill, it->sample);
        p->charges[i] =
            (slo_charge){.weight = slo_max(saved, 0.0) + shared + 1.0, /* never all zero */
                         .useful = useful_share(s->planned[i], it),
                         .background = it->cls == GS_CLASS_BACKGROUND};
    }
}

static void count_background(gs_accounts *p, int64_t ns, int64_t now_ns) {
    const int64_t bucket = now_ns / SLO_BUCKET_NS;
    if (bucket > p->bucket) {
        const int64_t n_new = bucket - p->bucket < SLO_BUCKETS ? bucket - p->bucket : SLO_BUCKETS;
        for (int64_t i = 0; i < n_new; i++)
            p->bucket_ns[(bucket - i) % SLO_BUCKETS] = 0;
        p->bucket = bucket;
    }
    p->bucket_ns[p->bucket % SLO_BUCKETS] += ns;
}

static void charge_person(const gs_sched *s, slo_person *u, double ns, int64_t now_ns) {
    u->counter_ns += ns / weight_of(s, u);
    u->charged_ns += (int64_t)ns;
    if (now_ns - u->day_began_ns >= DAY_NS || u->day_began_ns == 0) {
        u->day_began_ns = now_ns > 0 ? now_ns : 1;
        u->day_ns = 0;
    }
    u->day_ns += (int64_t)ns;
}

/* A duty cycle: work of 1 at a share of a quarter is followed by a rest of 3. */
static void rest_background(const gs_sched *s, gs_accounts *p, double ns, int64_t now_ns) {
    if (ns <= 0.0 || s->slo.background_share >= 1.0)
        return;
    const int64_t from_ns = p->rest_until_ns > now_ns ? p->rest_until_ns : now_ns;
    p->rest_until_ns = from_ns + (int64_t)(ns * (1.0 / s->slo.background_share - 1.0));
}

/* The parts of a step sum to its measured time; what nobody is to pay for is counted apart. */
void slo_charge_step(gs_sched *s, int64_t elapsed_ns, int64_t now_ns) {
    slo_state *p = slo_of(s);
    double sum = 0.0, background = 0.0;
    for (int32_t i = 0; i < s->plan.n_items; i++)
        sum += p->charges[i].weight;
    for (int32_t i = 0; i < s->plan.n_items; i++) {
        gs_sched_seq *q = s->planned[i];
        const slo_charge *c = &p->charges[i];
        const double part = (double)elapsed_ns * c->weight / sum;
        charge_person(s, slo_person_of(s, q), part * c->useful, now_ns);
        q->x.charged_ns += (int64_t)(part * c->useful);
        if (s->plan.items[i].pos < q->n_high)
            s->stats.recomputed_ns += (int64_t)(part * (1.0 - c->useful));
        background += c->background ? part : 0.0;
    }
    count_background(p->accounts, (int64_t)background, now_ns);
    rest_background(s, p->accounts, background, now_ns);
    s->stats.busy_background_ns += (int64_t)background;
}

static bool any_background(const gs_accounts *a) {
    const gs_class b = GS_CLASS_BACKGROUND;
    for (const gs_sched *m = a->members; m; m = m->next_member)
        if (!m->slo.background_paused &&
            m->stats.n_running_by_class[b] + m->stats.n_waiting_by_class[b] > 0)
            return true;
    return false;
}

int64_t slo_background_owed(gs_sched *s, int64_t now_ns) {
    gs_accounts *p = slo_of(s)->accounts;
    if (!any_background(p))
        p->background_since_ns = 0;
    else if (p->background_since_ns == 0)
        p->background_since_ns = now_ns > 0 ? now_ns : 1;
    if (p->background_since_ns == 0)
        return 0;
    int64_t since_ns = now_ns - p->background_since_ns, had_ns = 0;
    if (since_ns > SLO_BUCKETS * SLO_BUCKET_NS)
        since_ns = SLO_BUCKETS * SLO_BUCKET_NS;
    for (int64_t i = 0; i < SLO_BUCKETS; i++)
        if (p->bucket - i > now_ns / SLO_BUCKET_NS - SLO_BUCKETS && p->bucket - i >= 0)
            had_ns += p->bucket_ns[(p->bucket - i) % SLO_BUCKETS];
    const int64_t owed_ns = (int64_t)(s->slo.background_floor * (double)since_ns) - had_ns;
    return owed_ns > 0 ? owed_ns : 0;
}

int slo_set_person(gs_sched *s, uint32_t person, const gs_person_config *cfg) {
    slo_state *p = slo_of(s);
    if (person >= p->n_persons)
        return GS_ERR_NOT_FOUND;
    if (!(cfg->weight >= 0.0 && cfg->weight <= 1e6) || cfg->max_running < 0 ||
        cfg->max_waiting < 0 || cfg->day_ns < 0)
        return GS_ERR_INVALID;
    p->persons[person].cfg = *cfg;
    p->persons[person].own = true;
    return GS_OK;
}

/* Who has nothing here is lifted first, as when a request of theirs came: what was saved up while
 * they were away does not pay for it. */
int slo_charge_person(gs_sched *s, uint32_t person, int64_t ns, int64_t now_ns) {
    const slo_state *p = slo_of(s);
    if (person >= p->n_persons)
        return GS_ERR_NOT_FOUND;
    slo_person *u = &p->persons[person];
    u->counter_ns = slo_counter_on_return(s, person);
    charge_person(s, u, (double)ns, now_ns);
    return GS_OK;
}

int64_t slo_charged_ns(const gs_sched *s, uint32_t person) {
    const slo_state *p = slo_of(s);
    return person < p->n_persons ? p->persons[person].charged_ns : 0;
}

void slo_person_config(const gs_sched *s, uint32_t person, gs_person_config *out) {
    const slo_state *p = slo_of(s);
    if (person < p->n_persons)
        *out = *slo_config_of(s, &p->persons[person]);
}

int slo_get_person(const gs_sched *s, uint32_t person, gs_person_stats *out) {
    const slo_state *p = slo_of(s);
    if (person >= p->n_persons)
        return GS_ERR_NOT_FOUND;
    const slo_person *u = &p->persons[person];
    *out = (gs_person_stats){.counter_ns = u->counter_ns,
                             .charged_ns = u->charged_ns,
                             .output_tokens = u->output_tokens};
    for (const gs_sched *m = p->accounts->members; m; m = m->next_member)
        for (const gs_sched_seq *q = m->running.head; q; q = q->next)
            out->n_running += slo_person_of(m, q) == u;
    out->n_waiting = u->n_live - out->n_running;
    return GS_OK;
}

/* Who is counted as living is on a list, and nothing else is. */
int slo_check(const gs_sched *s, char *err, size_t errlen) {
    const slo_state *p = slo_of(s);
    int64_t n_live = 0, n_paused = 0;
    for (uint32_t i = 0; i < p->n_persons; i++) {
        if (p->persons[i].n_live < 0 || !(p->persons[i].counter_ns >= 0.0))
            return gs_fail(err, errlen, GS_ERR_INTERNAL, "person %u has a wrong account", i);
        n_live += p->persons[i].n_live;
        n_paused += p->persons[i].n_paused;
    }
    for (const gs_sched *m = p->accounts->members; m; m = m->next_member) {
        n_live -= m->running.n + m->waiting.n;
        n_paused -= m->n_paused;
    }
    if (n_live != 0 || n_paused != 0)
        return gs_fail(err, errlen, GS_ERR_INTERNAL, "persons' sequences are miscounted");
    return GS_OK;
}
