#include "sched/turns.h"

#include <math.h>

#include "base/err.h"
#include "sched/sched_impl.h"

/* All schedulers as they are before one choice. */
typedef struct field {
    gs_sched *const *s;
    int32_t n;
    int64_t now_ns;
    gs_sched_need need[GS_TURNS_MAX];
    bool tried[GS_TURNS_MAX];
    bool interactive;      /* somewhere */
    int64_t streams_ns;    /* a round of all streams */
    int64_t shown_ns;      /* the newest token of a stream anywhere */
    int64_t background_ns; /* when background had the device last, from its first step on */
    bool round_over;       /* everybody with interactive work had a step since */
    bool slice;            /* nobody had: background's turn goes on while there is room */
} field;

static bool is_interactive(const gs_sched_need *d) {
    return d->streams || d->prompts;
}

static void look(field *f) {
    for (int32_t i = 0; i < f->n; i++) {
        gs_sched_need *d = &f->need[i];
        gs_sched_get_need(f->s[i], f->now_ns, d);
        f->interactive |= is_interactive(d);
        f->streams_ns += d->streams_ns;
        if (d->shown_ns > f->shown_ns)
            f->shown_ns = d->shown_ns;
        if (f->s[i]->background_ns > f->background_ns)
            f->background_ns = f->s[i]->background_ns;
    }
    f->round_over = true;
    f->slice = f->background_ns > 0;
    for (int32_t i = 0; i < f->n; i++) {
        const bool had = f->s[i]->plan_ns > f->background_ns;
        f->round_over &= had || !is_interactive(&f->need[i]);
        f->slice &= !had || !is_interactive(&f->need[i]);
    }
}

/* ---- background between the others' rounds ----------------------------------------------------*/

/* By when a step of background alone in s[i] has to end or give way: what background may make a
 * round of the streams longer, counted from their newest token; below its floor, at least a little.
 */
static int64_t background_until(const field *f, int32_t i) {
    if (!f->interactive)
        return GS_NEVER_NS;
    const gs_slo_config *slo = &f->s[i]->slo;
    const double round = (double)f->streams_ns;
    const double grown = fmax(slo->background_stretch * round, (double)slo->background_gap_ns);
    int64_t until_ns = f->shown_ns > 0 ? f->shown_ns + (int64_t)(grown - round) : f->now_ns;
    for (int32_t k = 0; k < f->n; k++)
        if (f->need[k].prompts) /* a first token is waited for */
            until_ns = f->now_ns;
    int64_t owed_ns = f->round_over ? f->need[i].owed_ns : 0;
    if (owed_ns > slo->background_gap_ns)
        owed_ns = slo->background_gap_ns;
    return until_ns > f->now_ns + owed_ns ? until_ns : f->now_ns + owed_ns;
}

/* The one whose background comes next: least counter, then the longest wait. -1: none. */
static int32_t next_background(const field *f) {
    int32_t best = -1;
    if (f->interactive && !f->round_over && !f->slice)
        return -1;
    for (int32_t i = 0; i < f->n; i++) {
        const gs_sched_need *d = &f->need[i];
        if (f->tried[i] || !d->background || is_interactive(d) ||
            background_until(f, i) <= f->now_ns)
            continue;
        if (best < 0 || d->counter_ns < f->need[best].counter_ns ||
            (d->counter_ns <= f->need[best].counter_ns && f->s[i]->plan_ns < f->s[best]->plan_ns))
            best = i;
    }
    return best;
}

/* ---- interactive turns ------------------------------------------------------------------------*/

/* The one of those with nothing but prompts whose first token presses most; all relegated ones
 * count alike, and then the longest wait decides. */
static bool prompts_press_more(const field *f, int32_t i, int32_t than) {
    const gs_sched_need *a = &f->need[i], *b = &f->need[than];
    if (a->prompt_start_ns != b->prompt_start_ns)
        return a->prompt_start_ns < b->prompt_start_ns;
    return f->s[i]->plan_ns < f->s[than]->plan_ns;
}

static int32_t next_prompts(const field *f) {
    int32_t best = -1;
    for (int32_t i = 0; i < f->n; i++)
        if (!f->tried[i] && f->need[i].prompts && !f->need[i].streams &&
            (best < 0 || prompts_press_more(f, i, best)))
            best = i;
    return best;
}

/* The one with the least slack. -1: nobody streams. */
static int32_t most_urgent(const field *f) {
    int32_t best = -1;
    for (int32_t i = 0; i < f->n; i++)
        if (!f->tried[i] && f->need[i].streams &&
            (best < 0 || f->need[i].start_ns < f->need[best].start_ns))
            best = i;
    return best;
}

static int32_t next_interactive(const field *f) {
    const int32_t prompts = next_prompts(f), urgent = most_urgent(f);
    int32_t turn = prompts;
    for (int32_t i = 0; i < f->n; i++)
        if (!f->tried[i] && f->need[i].streams &&
            (turn < 0 || f->s[i]->plan_ns < f->s[turn]->plan_ns))
            turn = i;
    if (turn < 0 || urgent < 0 || urgent == turn)
        return turn;
    return f->need[urgent].start_ns <= f->now_ns + f->need[turn].least_ns ? urgent : turn;
}

/* ---- a turn -----------------------------------------------------------------------------------*/

static gs_sched_outside outside_of(const field *f, int32_t at) {
    gs_sched_outside o = GS_SCHED_ALONE;
    int64_t prompt_ns = GS_NEVER_NS;
    for (int32_t i = 0; i < f->n; i++) {
        const gs_sched_need *d = &f->need[i];
        if (i == at || !is_interactive(d))
            continue;
        o.busy = true;
        o.streams_ns += d->streams_ns;
        if (d->start_ns < o.due_ns)
            o.due_ns = d->start_ns;
        if (d->prompt_start_ns < prompt_ns)
            prompt_ns = d->prompt_start_ns;
    }
    o.presses = prompt_ns < f->need[at].prompt_start_ns;
    if (prompt_ns < o.due_ns && !o.presses)
        o.due_ns = prompt_ns;
    if (!is_interactive(&f->need[at]))
        o.background_until_ns = background_until(f, at);
    return o;
}

/* Plans s[at]; true: it has a step. */
static bool take_turn(field *f, int32_t at, gs_plan *out, int64_t *wake_ns) {
    const gs_sched_outside o = outside_of(f, at);
    f->tried[at] = true;
    gs_sched_set_outside(f->s[at], &o);
    gs_sched_plan(f->s[at], f->now_ns, out);
    if (out->n_items == 0) {
        if (out->wake_ns < *wake_ns)
            *wake_ns = out->wake_ns;
        return false;
    }
    if (!is_interactive(&f->need[at]) && f->round_over)
        f->s[at]->background_ns = f->now_ns;
    for (int32_t i = 0; i < f->n; i++)
        if (i != at)
            gs_sched_pass(f->s[i], f->now_ns);
    return true;
}

int32_t gs_turns_plan(gs_sched *const *s, int32_t n, int64_t now_ns, gs_plan *out) {
    GS_ASSERT(n >= 1 && n <= GS_TURNS_MAX);
    int64_t wake_ns = GS_NEVER_NS;
    if (n == 1) {
        gs_sched_set_outside(s[0], &GS_SCHED_ALONE);
        gs_sched_plan(s[0], now_ns, out);
        return 0;
    }
    field f = {.s = s, .n = n, .now_ns = now_ns};
    look(&f);
    int32_t at;
    while ((at = next_background(&f)) >= 0)
        if (take_turn(&f, at, out, &wake_ns))
            return at;
    while ((at = next_interactive(&f)) >= 0)
        if (take_turn(&f, at, out, &wake_ns))
            return at;
    /* Background that was to wait for the round's end, and what only waits. */
    f.interactive = false;
    for (at = 0; at < n; at++)
        if (!f.tried[at] && take_turn(&f, at, out, &wake_ns))
            return at;
    out->wake_ns = wake_ns;
    return 0;
}

bool gs_turns_should_yield(gs_sched *const *s, int32_t n, int32_t at, const gs_plan *plan,
                           int64_t now_ns) {
    if (!plan->may_yield)
        return false;
    for (int32_t i = 0; i < n; i++)
        if (i != at && gs_sched_has_newcomer(s[i], s[at]->plan_ns))
            return true;
    return gs_sched_should_yield(s[at], now_ns);
}
