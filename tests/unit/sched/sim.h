/*
 * Scheduler simulator for tests: random events against the real scheduler and KV ledger, with a
 * compute model that remembers what each KV position holds. Choices come from a seed or, for the
 * fuzz target, from bytes. Each event is followed by all checks; a failure calls sim_fail, which
 * the including file defines.
 */
#ifndef GS_TESTS_SCHED_SIM_H
#define GS_TESTS_SCHED_SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "sched/sched.h"
#include "sched/sched_impl.h"

_Noreturn static void sim_fail(const char *what, unsigned long long id);

#define SIM_CHECK(cond, id) ((cond) ? (void)0 : sim_fail(#cond, (unsigned long long)(id)))

enum { SIM_SEQS = 48, SIM_CONTEXT = 72, SIM_BLOCKS = 96, SIM_BLOCK_TOKENS = 8 };

typedef struct sim_seq {
    bool living;
    gs_seq_id id;
    gs_seq_desc desc; /* as submitted */
    int32_t tokens[SIM_CONTEXT];
    uint64_t contents[SIM_CONTEXT]; /* what its KV positions must hold */
    int32_t n_known, n_contents;
    int32_t n_computed; /* as planned and committed so far */
    int32_t n_cached;   /* of the first item; -1 before */
    int32_t n_restarts;
    int32_t n_preset;       /* preemptions it was given at submission */
    int64_t n_tokens_total; /* computed, again included */
    bool must_end;          /* the next report must name it */
    bool cancelled;         /* while its step was suspended */
    bool parked;            /* in the suspended step, or in the one beside */
    bool paused;
    int32_t n_pauses;
    int32_t n_planned; /* tokens of the suspended step */
    gs_end_reason reason;
    int err;
} sim_seq;

typedef struct sim {
    uint64_t rng;
    const uint8_t *data; /* NULL: the seed decides */
    size_t n_data;
    gs_kv_config kv_cfg;
    gs_sched_config cfg;
    gs_kv *kv;
    gs_sched *s;
    int64_t now_ns;
    int32_t n_parked;     /* sequences of the suspended step */
    gs_plan beside;       /* runs beside the others: n_items > 0 */
    uint32_t beside_left; /* for so many more of them */
    uint64_t n_beside;
    uint64_t contents[SIM_BLOCKS][SIM_BLOCK_TOKENS];
    sim_seq seqs[SIM_SEQS];
    gs_seq_id last_id;
    uint64_t n_pauses; /* of those that have ended */
    uint64_t n_accepted, n_ended, n_preempted, n_kv_full, n_cached_tokens, n_steps, n_copies;
    uint64_t n_at_limit; /* preempted as often as allowed */
    uint64_t n_end[GS_END_ERROR + 1];
    uint64_t n_suspended, n_resumed, n_held, n_refused;
    bool calm;     /* no faults, no cancels: only load */
    bool slo;      /* the policy under test; else fcfs */
    bool draining; /* no more arrivals */
    bool whole;    /* prompts that can't be cut, and nothing else */
} sim;

static uint32_t sim_below(sim *m, uint32_t n) {
    if (m->data) {
        if (m->n_data == 0)
            return 0;
        m->n_data--;
        return *m->data++ % n;
    }
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    return (uint32_t)((m->rng * 0x2545F4914F6CDD1Du >> 33) % n);
}

static uint64_t sim_content(uint64_t before, int32_t token) {
    uint64_t h = (before ^ (uint64_t)(uint32_t)token) * 0x9e3779b97f4a7c15u + 0x51;
    return h ^ h >> 29;
}

static void sim_learn(sim_seq *q) {
    for (; q->n_contents < q->n_known; q->n_contents++) {
        const int32_t i = q->n_contents;
        const uint64_t before = i > 0 ? q->contents[i - 1] : q->desc.cache_scope + 77;
        q->contents[i] = sim_content(before, q->tokens[i]);
    }
}

static void sim_check(const sim *m) {
    char err[200] = "";
    if (gs_sched_check(m->s, err, sizeof err) != GS_OK)
        sim_fail(err, 0);
}

static void sim_init(sim *m) {
    static const int32_t block_tokens[] = {1, 2, 4, 8};
    m->kv_cfg.block_tokens = block_tokens[sim_below(m, 4)];
    m->kv_cfg.n_blocks = 1 + sim_below(m, sim_below(m, 2) ? SIM_BLOCKS : 12);
    m->kv_cfg.max_seqs = 1 + (int32_t)sim_below(m, 8);
    m->kv_cfg.max_blocks_per_seq =
        (SIM_CONTEXT + m->kv_cfg.block_tokens - 1) / m->kv_cfg.block_tokens;
    m->kv_cfg.no_prefix_cache = sim_below(m, 8) == 0;
    m->cfg = (gs_sched_config){.max_seqs = m->kv_cfg.max_seqs,
                               .max_waiting = (int32_t)sim_below(m, 16),
                               .max_batch_tokens = 1 + (int32_t)sim_below(m, 40),
                               .prefill_chunk = 1 + (int32_t)sim_below(m, 32),
                               .max_context = 8 + (int32_t)sim_below(m, SIM_CONTEXT - 8),
                               .n_threads = 4,
                               .max_persons = 4,
                               .whole_prompts = m->whole,
                               .policy = m->slo ? &gs_policy_slo : &gs_policy_fcfs,
                               .seed = 5};
    gs_slo_config slo;
    gs_slo_defaults(&slo);
    slo.mode = (gs_mode)sim_below(m, GS_MODE_COUNT);
    slo.safepoints = sim_below(m, 2) == 0;
    slo.tile_tokens = 1 + (int32_t)sim_below(m, 8);
    slo.safepoint_max_age_ns = (int64_t)sim_below(m, 50000);
    slo.document_min_tokens = sim_below(m, 2) == 0 ? 20 : 0;
    slo.rules_off = sim_below(m, 4) == 0 ? sim_below(m, 64) : 0;
    m->cfg.slo = &slo;
    SIM_CHECK(gs_kv_create(&m->kv_cfg, &m->kv) == GS_OK, 0);
    SIM_CHECK(gs_sched_create(&m->cfg, m->kv, &m->s) == GS_OK, 0);
    gs_sched_set_splits(m->s, !m->whole, GS_MODE_WHY_DEVICE);
}

static void sim_deinit(sim *m) {
    gs_sched_free(m->s);
    gs_kv_free(m->kv);
}

static int32_t sim_living(const sim *m) {
    int32_t n = 0;
    for (int i = 0; i < SIM_SEQS; i++)
        n += m->seqs[i].living;
    return n;
}

static sim_seq *sim_find(sim *m, gs_seq_id id) {
    for (int i = 0; i < SIM_SEQS; i++)
        if (m->seqs[i].living && m->seqs[i].id == id)
            return &m->seqs[i];
    sim_fail("unknown sequence", id);
}

/* Whether the prompt and one token more have room in context and pool. */
static bool sim_can_run(const sim *m, const gs_seq_desc *d) {
    const int64_t reply = d->prefill_only ? 0 : 1;
    const int64_t pool = (int64_t)m->kv_cfg.n_blocks * m->kv_cfg.block_tokens;
    const bool one_step = !m->whole || d->n_prompt <= m->cfg.max_batch_tokens;
    return d->n_prompt + reply <= m->cfg.max_context && d->n_prompt + reply <= pool && one_step;
}

static void sim_submit(sim *m) {
    if (m->draining)
        return;
    sim_seq *q = NULL;
    for (int i = 0; i < SIM_SEQS && !q; i++)
        if (!m->seqs[i].living)
            q = &m->seqs[i];
    if (!q)
        return;
    *q = (sim_seq){.id = ++m->last_id, .n_cached = -1};
    const bool prefill_only = m->whole || sim_below(m, 8) == 0;
    q->desc = (gs_seq_desc){.id = q->id,
                            .cls = (gs_class)sim_below(m, GS_CLASS_COUNT),
                            .person = sim_below(m, 4),
                            .cache_scope = sim_below(m, 3) == 0,
                            .tokens = q->tokens,
                            .n_prompt = 1 + (int32_t)sim_below(m, sim_below(m, 3) ? 20 : 60),
                            .prefill_only = prefill_only,
                            .max_output = prefill_only ? 0 : 1 + (int32_t)sim_below(m, 40),
                            .arrival_ns = m->now_ns,
                            .user = q};
    if (q->desc.n_prompt + q->desc.max_output > SIM_CONTEXT)
        q->desc.max_output = prefill_only ? 0 : SIM_CONTEXT - q->desc.n_prompt;
    /* Prompts that share prefixes of any length: mostly one letter, a change now and then. */
    for (int32_t i = 0; i < q->desc.n_prompt; i++)
        q->tokens[i] = sim_below(m, 12) == 0 ? (int32_t)sim_below(m, 3) : 0;
    q->n_known = q->desc.n_prompt;
    sim_learn(q);

    gs_admission a;
    gs_sched_stats st;
    gs_sched_get_stats(m->s, &st);
    const bool full = st.n_waiting + st.n_running >= m->cfg.max_seqs + m->cfg.max_waiting;
    const int rc = gs_sched_submit(m->s, &q->desc, m->now_ns, &a);
    SIM_CHECK(rc == a.code, q->id);
    if (!sim_can_run(m, &q->desc)) {
        SIM_CHECK(rc == GS_ERR_CONTEXT && a.field && a.reason, q->id);
    } else if (m->slo && rc == GS_ERR_OVERLOADED) {
        SIM_CHECK(a.reason && a.retry_after_ns > 0, q->id); /* by class, person or prediction */
        m->n_refused++;
    } else if (full) {
        SIM_CHECK(rc == GS_ERR_OVERLOADED && a.retry_after_ns > 0, q->id);
    } else {
        SIM_CHECK(rc == GS_OK, q->id);
        SIM_CHECK(a.n_cached < q->desc.n_prompt, q->id);
        SIM_CHECK(gs_sched_submit(m->s, &q->desc, m->now_ns, &a) == GS_ERR_EXISTS ||
                      a.code == GS_ERR_OVERLOADED,
                  q->id);
        q->living = true;
        m->n_accepted++;
        /* Sequences at the preemption limit are rare by themselves: start some close to it. */
        if (sim_below(m, 4) == 0) {
            q->n_preset = 1 + (int32_t)sim_below(m, 2);
            gs_sched_find(m->s, q->id)->n_preempted = q->n_preset;
        }
    }
}

/* Pops ends and checks each against what was expected of its sequence. */
static int32_t sim_collect(sim *m) {
    gs_seq_end e;
    int32_t n = 0;
    while (gs_sched_next_end(m->s, &e)) {
        sim_seq *q = sim_find(m, e.id);
        const int32_t pool = (int32_t)m->kv_cfg.n_blocks * m->kv_cfg.block_tokens;
        SIM_CHECK(e.user == q, q->id);
        if (!q->must_end) {
            /* Only one that alone outgrew the pool may end by itself. */
            SIM_CHECK(e.reason == GS_END_ERROR && e.err == GS_ERR_KV_FULL, q->id);
            SIM_CHECK(q->n_known > pool, q->id);
            m->n_kv_full++;
        } else {
            SIM_CHECK(e.reason == q->reason && e.err == q->err, q->id);
        }
        SIM_CHECK(e.n_output == q->n_known - q->desc.n_prompt, q->id);
        SIM_CHECK(e.n_output <= q->desc.max_output, q->id);
        SIM_CHECK(q->n_known <= m->cfg.max_context, q->id);
        SIM_CHECK(q->n_cached < 0 ? m->slo || e.n_cached == 0 : e.n_cached == q->n_cached, q->id);
        const int32_t n_preempted = e.n_preempted - q->n_preset;
        SIM_CHECK(e.n_preempted <= 2 + q->n_pauses && q->n_restarts <= n_preempted, q->id);
        SIM_CHECK(q->n_tokens_total <= (int64_t)(n_preempted + 1) * q->n_known, q->id);
        SIM_CHECK(gs_sched_cancel(m->s, e.id, m->now_ns) == GS_ERR_NOT_FOUND, q->id);
        q->living = false;
        m->n_preempted += (uint64_t)n_preempted;
        m->n_at_limit += e.n_preempted == 2;
        m->n_pauses += (uint64_t)q->n_pauses;
        m->n_end[e.reason]++;
        m->n_ended++;
        n++;
    }
    for (int i = 0; i < SIM_SEQS; i++)
        SIM_CHECK(!m->seqs[i].living || !m->seqs[i].must_end, m->seqs[i].id);
    return n;
}

static void sim_expect_end(sim_seq *q, gs_end_reason reason, int err) {
    if (q->must_end)
        return;
    q->must_end = true;
    q->reason = reason;
    q->err = err;
}

/* Cancelled ones that the scheduler no longer knows are to be reported. */
static void sim_expect_cancelled(sim *m) {
    gs_explain x;
    for (int i = 0; i < SIM_SEQS; i++) {
        sim_seq *q = &m->seqs[i];
        if (q->living && q->cancelled && gs_sched_explain(m->s, q->id, &x) == GS_ERR_NOT_FOUND)
            sim_expect_end(q, GS_END_CANCELLED, GS_OK);
    }
}

static void sim_cancel(sim *m, bool in_flight) {
    if (m->calm)
        return;
    sim_seq *q = &m->seqs[sim_below(m, SIM_SEQS)];
    if (!q->living) {
        const gs_seq_id unknown = m->last_id + 1 + sim_below(m, 3);
        SIM_CHECK(gs_sched_cancel(m->s, unknown, m->now_ns) == GS_ERR_NOT_FOUND, unknown);
        return;
    }
    const int rc = gs_sched_cancel(m->s, q->id, m->now_ns);
    if (in_flight && rc == GS_ERR_NOT_FOUND)
        return; /* planning ended it; sim_collect looks whether rightly */
    SIM_CHECK(rc == GS_OK, q->id);
    if (in_flight && q->parked) {
        q->cancelled = true; /* not in the step that runs, but in the one put aside */
    } else if (in_flight) {
        sim_expect_end(q, GS_END_CANCELLED, GS_OK);
        SIM_CHECK(gs_sched_cancel(m->s, q->id, m->now_ns) == GS_OK, q->id);
    } else if (m->n_parked > 0 || q->parked) {
        /* In a suspended step it ends with that, or with the last of its fellows; in a step
         * beside with that. */
        gs_explain x;
        q->cancelled = true;
        if (gs_sched_explain(m->s, q->id, &x) == GS_ERR_NOT_FOUND)
            sim_expect_cancelled(m);
        sim_collect(m);
    } else {
        sim_expect_end(q, GS_END_CANCELLED, GS_OK);
        SIM_CHECK(sim_collect(m) == 1, q->id);
    }
}

static void sim_read(const sim *m, const sim_seq *q, const gs_plan_item *it, int32_t n) {
    for (int32_t p = 0; p < n; p++) {
        const uint32_t b = it->blocks[p / m->kv_cfg.block_tokens];
        if (m->contents[b][p % m->kv_cfg.block_tokens] != q->contents[p])
            sim_fail("a sequence reads keys that are not its own", q->id);
    }
}

/* First come, first served: nobody starts before an earlier arrival, and where KV is plentiful no
 * stream pauses while prompts advance. */
static void sim_check_order(sim *m, const gs_plan *plan) {
    bool planned[SIM_SEQS] = {false};
    gs_seq_id last_new = 0;
    for (int32_t i = 0; i < plan->n_items; i++) {
        const sim_seq *q = sim_find(m, plan->items[i].id);
        planned[q - m->seqs] = true;
        if (q->n_cached < 0 && q->id > last_new)
            last_new = q->id;
    }
    const int32_t ample = m->cfg.max_seqs * SIM_CONTEXT;
    const bool plenty = (int32_t)m->kv_cfg.n_blocks * m->kv_cfg.block_tokens >= ample;
    bool paused = false; /* their seats may be taken */
    for (int i = 0; i < SIM_SEQS; i++)
        paused |= m->seqs[i].living && m->seqs[i].paused;
    SIM_CHECK(!plenty || plan->n_preempted == 0 || paused, plan->step);
    for (int i = 0; i < SIM_SEQS; i++) {
        const sim_seq *q = &m->seqs[i];
        if (!q->living || planned[i] || q->paused)
            continue;
        const bool ended = q->n_known > (int32_t)m->kv_cfg.n_blocks * m->kv_cfg.block_tokens;
        SIM_CHECK(q->n_cached >= 0 || q->id > last_new || ended, q->id);
        const bool decodes = q->n_cached >= 0 && q->n_known > q->desc.n_prompt;
        SIM_CHECK(!plenty || plan->n_prefill_tokens == 0 || !decodes || q->n_pauses > 0, q->id);
    }
}

static void sim_copy(sim *m, const gs_plan *plan) {
    const int32_t bt = m->kv_cfg.block_tokens;
    for (int32_t i = 0; i < plan->n_copies; i++) {
        const gs_kv_copy_op *c = &plan->copies[i];
        SIM_CHECK(c->n_tokens > 0 && c->n_tokens <= bt && c->src != c->dst, c->dst);
        memcpy(m->contents[c->dst], m->contents[c->src], (size_t)c->n_tokens * sizeof(uint64_t));
    }
    m->n_copies += (uint64_t)plan->n_copies;
}

/* Runs the step on the compute model, its copies done: reads before writes, then all again. */
static void sim_compute(sim *m, const gs_plan *plan, bool garble) {
    const int32_t bt = m->kv_cfg.block_tokens;
    int32_t n_tokens = 0, n_prefill = 0;
    for (int32_t i = 0; i < plan->n_items; i++) {
        const gs_plan_item *it = &plan->items[i];
        sim_seq *q = sim_find(m, it->id);
        SIM_CHECK(it->user == q && it->tokens == q->tokens + it->pos, q->id);
        SIM_CHECK(it->slot >= 0 && it->slot < m->cfg.max_seqs, q->id);
        if (m->whole)
            SIM_CHECK(it->pos == 0 && it->n_tokens == q->desc.n_prompt, q->id);
        else
            SIM_CHECK(it->n_tokens >= 1 && it->n_tokens <= m->cfg.prefill_chunk, q->id);
        SIM_CHECK(it->pos + it->n_tokens <= it->n_blocks * bt, q->id);
        SIM_CHECK(it->sample == (!q->desc.prefill_only && it->pos + it->n_tokens == q->n_known),
                  q->id);
        SIM_CHECK(it->prefill == !(q->n_known > q->desc.n_prompt && it->pos == q->n_known - 1),
                  q->id);
        if (q->n_cached < 0) {
            q->n_cached = it->pos;
            m->n_cached_tokens += (uint64_t)it->pos;
        } else if (it->pos != q->n_computed) {
            q->n_restarts++;
        }
        SIM_CHECK(it->n_cached == q->n_cached, q->id);
        n_tokens += it->n_tokens;
        n_prefill += it->prefill ? it->n_tokens : 0;
        q->n_tokens_total += plan->resume ? 0 : it->n_tokens;
        sim_read(m, q, it, it->pos);
        for (int32_t p = it->pos; p < it->pos + it->n_tokens; p++)
            m->contents[it->blocks[p / bt]][p % bt] = garble ? 0xbad : q->contents[p];
        q->n_computed = it->pos + it->n_tokens;
    }
    SIM_CHECK(n_tokens == plan->n_tokens && n_prefill == plan->n_prefill_tokens, plan->step);
    SIM_CHECK(n_tokens <= m->cfg.max_batch_tokens, plan->step);
    for (int32_t i = 0; i < plan->n_items && !garble; i++)
        sim_read(m, sim_find(m, plan->items[i].id), &plan->items[i],
                 plan->items[i].pos + plan->items[i].n_tokens);
}

static void sim_result(sim *m, const gs_plan_item *it, gs_item_result *r) {
    sim_seq *q = sim_find(m, it->id);
    *r = (gs_item_result){.token = -1};
    if (!m->calm && sim_below(m, 60) == 0) {
        r->err = GS_ERR_BACKEND;
        sim_expect_end(q, GS_END_ERROR, GS_ERR_BACKEND);
        for (int32_t p = it->pos; p < it->pos + it->n_tokens; p++)
            m->contents[it->blocks[p / m->kv_cfg.block_tokens]][p % m->kv_cfg.block_tokens] = 0xbad;
        return;
    }
    if (!it->sample) {
        if (q->desc.prefill_only && q->n_computed == q->n_known)
            sim_expect_end(q, GS_END_DONE, GS_OK);
        return;
    }
    /* The token is a function of the whole history: recomputing gives the same answer. */
    r->token = (int32_t)(q->contents[q->n_known - 1] % 3);
    r->stop = sim_below(m, 50) == 0;
    if (q->must_end)
        return; /* cancelled: the token is thrown away */
    if (r->stop)
        sim_expect_end(q, GS_END_STOP, GS_OK);
    else if (q->n_known + 1 - q->desc.n_prompt == q->desc.max_output ||
             q->n_known + 1 == m->cfg.max_context)
        sim_expect_end(q, GS_END_LENGTH, GS_OK);
}

/* A suspended step that is not the plan now and is not remembered either was given up: what it
 * had computed is gone, and its sequences go on from before it. */
static void sim_dropped(sim *m, const gs_plan *plan) {
    if (m->n_parked == 0)
        return;
    bool kept = plan->resume;
    for (int i = 0; i < SIM_SEQS && !kept; i++)
        kept = m->seqs[i].living && m->seqs[i].parked && gs_sched_find(m->s, m->seqs[i].id) &&
               gs_sched_find(m->s, m->seqs[i].id)->parked;
    for (int i = 0; i < SIM_SEQS; i++) {
        sim_seq *q = &m->seqs[i];
        if (!q->living || !q->parked)
            continue;
        if (!kept || plan->resume) {
            q->parked = false;
            if (!kept)
                q->n_tokens_total -= q->n_planned;
            if (plan->resume && q->cancelled)
                sim_expect_end(q, GS_END_CANCELLED, GS_OK);
        }
    }
    if (plan->resume)
        m->n_resumed++;
    if (!kept || plan->resume)
        m->n_parked = 0;
    if (!kept)
        sim_expect_cancelled(m);
}

/* Gives way between layers: nothing is known of the step's result yet. */
static void sim_suspend(sim *m, const gs_plan *plan) {
    for (int32_t i = 0; i < plan->n_items; i++) {
        sim_seq *q = sim_find(m, plan->items[i].id);
        SIM_CHECK(plan->items[i].cls == GS_CLASS_BACKGROUND, q->id);
        q->parked = true;
        q->n_planned = plan->items[i].n_tokens;
        q->n_tokens_total += plan->resume ? 0 : q->n_planned;
        /* Cancelled while the step ran: it ends with the step, whenever that is. */
        q->cancelled |= q->must_end;
        q->must_end = false;
    }
    for (int32_t i = 0; i < plan->n_copies; i++) { /* were done before the first layer */
        const gs_kv_copy_op *c = &plan->copies[i];
        memcpy(m->contents[c->dst], m->contents[c->src], (size_t)c->n_tokens * sizeof(uint64_t));
    }
    m->n_parked = plan->n_items;
    m->n_suspended++;
    m->now_ns += 500;
    gs_sched_suspend(m->s, plan, 500, m->now_ns);
    sim_check(m);
    sim_expect_cancelled(m);
    sim_dropped(m, &(gs_plan){0});
    sim_collect(m);
}

/* Living ones that may move. */
static int32_t sim_moving(const sim *m) {
    int32_t n = 0;
    for (int i = 0; i < SIM_SEQS; i++)
        n += m->seqs[i].living && !m->seqs[i].paused;
    return n;
}

/* Runs and commits a step whose copies are done. */
static void sim_finish(sim *m, const gs_plan *plan, bool beside) {
    gs_item_result results[8];
    const bool fails = !m->calm && sim_below(m, 60) == 0;
    /* Up to 4x more or less than the last step of its size: the model is often wrong. */
    const int64_t elapsed_ns = (1000 + plan->n_tokens * 100) * (1 + (int64_t)sim_below(m, 16)) / 4;
    gs_step_result r = {
        .elapsed_ns = elapsed_ns, .few_threads = plan->max_threads > 0, .items = results};
    sim_compute(m, plan, fails);
    for (int32_t i = 0; i < plan->n_items; i++) {
        if (!fails)
            sim_result(m, &plan->items[i], &results[i]);
        else
            sim_expect_end(sim_find(m, plan->items[i].id), GS_END_ERROR, GS_ERR_BACKEND);
    }
    if (fails) {
        r.err = GS_ERR_BACKEND;
        r.items = NULL;
    }
    m->now_ns += beside ? 0 : elapsed_ns;
    /* The scheduler appends the tokens: poison the places so that a missing one shows. */
    for (int32_t i = 0; i < plan->n_items; i++) {
        sim_seq *q = sim_find(m, plan->items[i].id);
        if (q->n_known < SIM_CONTEXT)
            q->tokens[q->n_known] = -7;
    }
    if (beside)
        gs_sched_commit_beside(m->s, plan, &r, m->now_ns);
    else
        gs_sched_commit(m->s, plan, &r, m->now_ns);
    for (int32_t i = 0; i < plan->n_items && !fails; i++) {
        sim_seq *q = sim_find(m, plan->items[i].id);
        const bool dropped = q->must_end && q->reason != GS_END_STOP && q->reason != GS_END_LENGTH;
        if (!plan->items[i].sample || dropped)
            continue;
        SIM_CHECK(q->tokens[q->n_known] == results[i].token, q->id);
        q->n_known++;
        sim_learn(q);
    }
    sim_check(m);
    sim_collect(m);
}

static void sim_begin_beside(sim *m) {
    gs_sched_plan_beside(m->s, m->now_ns, &m->beside);
    sim_check(m);
    for (int32_t i = 0; i < m->beside.n_items; i++) {
        sim_seq *q = sim_find(m, m->beside.items[i].id);
        /* Who comes back may find all but the last token in the cache. */
        const bool back = gs_sched_find(m->s, q->id)->n_preempted > 0;
        SIM_CHECK(m->beside.items[i].prefill || back, q->id);
        SIM_CHECK(!q->paused && !m->beside.may_yield, q->id);
        q->parked = true;
    }
    sim_copy(m, &m->beside);
    if (m->beside.n_items == 0)
        return;
    SIM_CHECK(m->beside.max_threads >= 1 && m->beside.max_threads < m->cfg.n_threads, 0);
    m->beside_left = sim_below(m, 5);
    m->n_beside++;
}

static void sim_end_beside(sim *m) {
    const gs_plan plan = m->beside;
    m->beside.n_items = 0;
    for (int32_t i = 0; i < plan.n_items; i++) {
        sim_seq *q = sim_find(m, plan.items[i].id);
        q->parked = false;
        if (q->cancelled)
            sim_expect_end(q, GS_END_CANCELLED, GS_OK);
    }
    sim_finish(m, &plan, true);
}

static void sim_step(sim *m) {
    gs_plan plan;
    gs_seq_end e;
    if (m->beside.n_items > 0 && m->beside_left-- == 0)
        sim_end_beside(m);
    if (m->beside.n_items == 0)
        sim_begin_beside(m);
    gs_sched_plan(m->s, m->now_ns, &plan);
    sim_check(m);
    sim_dropped(m, &plan);
    if (plan.n_items == 0) {
        const int32_t n_ended = sim_collect(m);
        if (m->beside.n_items > 0) {
            sim_end_beside(m);
            return;
        }
        if (n_ended == 0 && m->slo && plan.wake_ns != GS_NEVER_NS) {
            SIM_CHECK(plan.wake_ns > m->now_ns && sim_living(m) > 0, 0);
            m->now_ns = plan.wake_ns; /* held for company */
            m->n_held++;
            return;
        }
        SIM_CHECK(n_ended > 0 ? plan.wake_ns == m->now_ns : plan.wake_ns == GS_NEVER_NS, 0);
        SIM_CHECK(n_ended > 0 || sim_moving(m) == 0, 0); /* something always moves */
        return;
    }
    m->n_steps++;
    for (int32_t i = 0; i < plan.n_items; i++) {
        const sim_seq *q = sim_find(m, plan.items[i].id);
        SIM_CHECK(plan.resume || (!q->paused && !q->parked), q->id);
    }
    SIM_CHECK(plan.beside == (m->beside.n_items > 0), plan.step);
    SIM_CHECK(!plan.beside || plan.max_threads + m->beside.max_threads <= m->cfg.n_threads,
              plan.step);
    if (!m->slo)
        sim_check_order(m, &plan);
    SIM_CHECK(!gs_sched_next_end(m->s, &e), 0);
    for (uint32_t n = sim_below(m, 8); n > 4; n--) { /* while the step runs */
        if (n == 5)
            sim_submit(m);
        else
            sim_cancel(m, true);
        sim_check(m);
    }
    if (plan.may_yield &&
        (gs_sched_should_yield(m->s, m->now_ns) || (!m->draining && sim_below(m, 4) == 0))) {
        sim_suspend(m, &plan);
        return;
    }
    sim_copy(m, &plan);
    sim_finish(m, &plan, false);
}

static void sim_set_paused(sim *m, sim_seq *q, bool paused) {
    const int rc = gs_sched_pause(m->s, q->id, paused, m->now_ns);
    SIM_CHECK(rc == GS_OK, q->id);
    q->n_pauses += paused && !q->paused;
    q->paused = paused;
}

static void sim_pause(sim *m) {
    sim_seq *q = &m->seqs[sim_below(m, SIM_SEQS)];
    if (q->living && !q->must_end && !q->cancelled)
        sim_set_paused(m, q, sim_below(m, 2) == 0);
}

static void sim_event(sim *m) {
    const uint32_t what = sim_below(m, 17);
    if (what < 4)
        sim_submit(m);
    else if (what == 4)
        sim_cancel(m, false);
    else if (what == 16)
        sim_pause(m);
    else if (what == 5 && sim_below(m, 20) == 0)
        gs_kv_drop_cached(m->kv, sim_below(m, 2), sim_below(m, 2) == 0);
    else
        sim_step(m);
    sim_check(m);
}

/* No more arrivals: everything ends, and nothing is held. */
static void sim_drain(sim *m) {
    m->draining = true;
    for (int i = 0; i < SIM_SEQS; i++)
        if (m->seqs[i].living && m->seqs[i].paused)
            sim_set_paused(m, &m->seqs[i], false);
    for (int n = 0; sim_living(m) > 0; n++) {
        SIM_CHECK(n < 100000, 0);
        sim_step(m);
    }
    gs_kv_stats st;
    gs_kv_get_stats(m->kv, &st);
    SIM_CHECK(st.n_held == 0, 0);
    SIM_CHECK(m->n_accepted == m->n_ended, 0);
}

#endif
