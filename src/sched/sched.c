/*
 * The scheduler's outer calls: submit, cancel, plan, commit. What runs next is the policy's
 * choice (policy_fcfs.c); how a sequence changes state is in sched_core.c.
 */
#include "sched/sched.h"

#include "base/err.h"
#include "base/sys.h"
#include "sched/sched_impl.h"

#define MOVING_SHARE 0.125 /* weight of the newest sample in a moving average */

/* ---- create and free ------------------------------------------------------------------------- */

static int check_config(const gs_sched_config *cfg, const gs_kv_config *kv) {
    if (cfg->max_seqs < 1 || cfg->max_seqs > kv->max_seqs || cfg->max_waiting < 0 ||
        cfg->max_waiting > INT32_MAX / 4 - cfg->max_seqs || cfg->max_batch_tokens < 1 ||
        cfg->prefill_chunk < 1 || cfg->max_context < 2 ||
        cfg->max_context > (int64_t)kv->max_blocks_per_seq * kv->block_tokens)
        return GS_ERR_INVALID;
    return GS_OK;
}

static int alloc_state(gs_sched *s) {
    const size_t n_seqs = (size_t)s->cfg.max_seqs;
    /* Living ones, and as many ended ones that nobody has asked about yet. */
    s->n_records = 2 * (s->cfg.max_seqs + s->cfg.max_waiting);
    s->id_mask = 15;
    while (s->id_mask < (uint64_t)s->n_records)
        s->id_mask = s->id_mask * 2 + 1;
    s->records = gs_calloc((size_t)s->n_records, sizeof *s->records);
    s->ids = gs_calloc((size_t)s->id_mask + 1, sizeof(gs_sched_seq *));
    s->free_slots = gs_calloc(n_seqs, sizeof *s->free_slots);
    s->planned = gs_calloc(n_seqs, sizeof(gs_sched_seq *));
    s->plan.items = gs_calloc(n_seqs, sizeof *s->plan.items);
    s->plan.copies = gs_calloc(n_seqs, sizeof *s->plan.copies);
    if (!s->records || !s->ids || !s->free_slots || !s->planned || !s->plan.items ||
        !s->plan.copies)
        return GS_ERR_NOMEM;
    const size_t policy_bytes = s->policy->state_bytes ? s->policy->state_bytes(&s->cfg) : 0;
    if (policy_bytes > 0 && !(s->policy_state = gs_calloc(1, policy_bytes)))
        return GS_ERR_NOMEM;
    return GS_OK;
}

int gs_sched_create(const gs_sched_config *cfg, gs_kv *kv, gs_sched **out) {
    gs_kv_config kv_cfg;
    gs_kv_get_config(kv, &kv_cfg);
    if (check_config(cfg, &kv_cfg) != GS_OK)
        return GS_ERR_INVALID;
    gs_sched *s = gs_calloc(1, sizeof *s);
    if (!s)
        return GS_ERR_NOMEM;
    s->cfg = *cfg;
    s->policy = cfg->policy ? cfg->policy : &gs_policy_fcfs;
    s->kv = kv;
    s->block_tokens = kv_cfg.block_tokens;
    s->n_blocks = kv_cfg.n_blocks;
    s->step_ns = s->token_ns = -1.0;
    if (alloc_state(s) != GS_OK) {
        gs_sched_free(s);
        return GS_ERR_NOMEM;
    }
    for (int32_t i = 0; i < s->n_records; i++)
        gs_sched_list_append(&s->free, &s->records[i]);
    for (int32_t i = cfg->max_seqs; i > 0; i--)
        s->free_slots[s->n_free_slots++] = i - 1;
    gs_sched_mix(s, cfg->seed);
    *out = s;
    return GS_OK;
}

void gs_sched_free(gs_sched *s) {
    if (!s)
        return;
    /* The ledger outlives us: give back what running sequences hold. */
    for (gs_sched_seq *q = s->running.head; q; q = q->next)
        gs_kv_seq_close(s->kv, q->slot);
    gs_free(s->policy_state);
    gs_free(s->plan.copies);
    gs_free(s->plan.items);
    gs_free(s->planned);
    gs_free(s->free_slots);
    gs_free(s->ids);
    gs_free(s->records);
    gs_free(s);
}

/* ---- admission ------------------------------------------------------------------------------- */

static int refuse(gs_admission *out, int code, const char *field, const char *reason) {
    out->code = code;
    out->field = field;
    out->reason = reason;
    return code;
}

/* What can never run, whatever the load. */
static int check_desc(const gs_sched *s, const gs_seq_desc *d, gs_admission *out) {
    if (d->id == 0 || !d->tokens || (int)d->cls < 0 || d->cls >= GS_CLASS_COUNT)
        return refuse(out, GS_ERR_INVALID, NULL, "the sequence has no id, tokens or class");
    if (d->n_prompt < 1)
        return refuse(out, GS_ERR_INVALID, "prompt", "the prompt is empty");
    if (d->person > 0 && d->person >= s->cfg.max_persons)
        return refuse(out, GS_ERR_INVALID, "user", "the person's number is too large");
    if (d->prefill_only ? d->max_output != 0 : d->max_output < 1)
        return refuse(out, GS_ERR_INVALID, "max_tokens", "at least one output token is needed");
    const int32_t reply = d->prefill_only ? 0 : 1;
    if (d->n_prompt > s->cfg.max_context - reply)
        return refuse(out, GS_ERR_CONTEXT, "prompt",
                      "the prompt leaves no room for output in the context");
    const int64_t room = (int64_t)s->n_blocks * s->block_tokens;
    if (d->n_prompt + reply > room)
        return refuse(out, GS_ERR_CONTEXT, "prompt", "the prompt does not fit the KV cache");
    return GS_OK;
}

static int64_t clamp_ns(double ns, int64_t min_ns, int64_t max_ns) {
    if (!(ns > (double)min_ns))
        return min_ns;
    return ns < (double)max_ns ? (int64_t)ns : max_ns;
}

/* Each sequence ahead takes at least a step; before the first step one second is a guess. */
static int64_t retry_after(const gs_sched *s) {
    if (s->step_ns < 0.0)
        return 1000000000;
    return clamp_ns(s->step_ns * (double)(s->waiting.n + s->running.n + 1), 1000000, 60000000000);
}

/* Prompt tokens ahead of it and its own, at the average price of a token. */
static int64_t predict_ttft(const gs_sched *s, int32_t n_own) {
    if (s->token_ns < 0.0)
        return -1;
    int64_t n = s->waiting_tokens + n_own;
    for (const gs_sched_seq *q = s->running.head; q; q = q->next)
        n += gs_sched_n_known(q) - q->n_computed;
    return clamp_ns(s->token_ns * (double)n, 0, GS_NEVER_NS / 2);
}

int gs_sched_submit(gs_sched *s, const gs_seq_desc *d, int64_t now_ns, gs_admission *out) {
    *out = (gs_admission){.predicted_ttft_ns = -1};
    int rc = check_desc(s, d, out);
    if (rc != GS_OK)
        return rc;
    if (gs_sched_find(s, d->id))
        return refuse(out, GS_ERR_EXISTS, NULL, "the sequence's id is in use");
    if (!s->free.head || s->waiting.n + s->running.n >= s->cfg.max_seqs + s->cfg.max_waiting) {
        out->retry_after_ns = retry_after(s);
        return refuse(out, GS_ERR_OVERLOADED, NULL, "the queue is full");
    }
    out->n_cached = gs_kv_peek(s->kv, d->cache_scope, d->tokens, d->n_prompt);
    out->predicted_ttft_ns = predict_ttft(s, d->n_prompt - out->n_cached);
    if (s->policy->admit && (rc = s->policy->admit(s, d, now_ns, out)) != GS_OK) {
        out->code = rc;
        return rc;
    }

    gs_sched_seq *q = s->free.head;
    gs_sched_list_remove(&s->free, q);
    *q = (gs_sched_seq){.d = *d,
                        .state = GS_SCHED_WAITING,
                        .ordinal = ++s->last_ordinal,
                        .slot = -1,
                        .item = -1,
                        .copy = -1};
    if (q->d.max_output > s->cfg.max_context - d->n_prompt)
        q->d.max_output = s->cfg.max_context - d->n_prompt;
    gs_sched_seq **bucket = gs_sched_id_bucket(s, d->id);
    q->id_next = *bucket;
    *bucket = q;
    gs_sched_list_insert(&s->waiting, q);
    s->stats.n_waiting_by_class[d->cls]++;
    s->waiting_tokens += d->n_prompt;
    gs_sched_mix(s, d->id);
    if (s->policy->on_submit)
        s->policy->on_submit(s, q, now_ns);
    return GS_OK;
}

int gs_sched_cancel(gs_sched *s, gs_seq_id id, int64_t now_ns) {
    (void)now_ns;
    gs_sched_seq *q = gs_sched_find(s, id);
    if (!q)
        return GS_ERR_NOT_FOUND;
    if (!s->in_flight) {
        gs_sched_core_end(s, q, GS_END_CANCELLED, GS_OK);
    } else if (!q->cancelled) {
        q->cancelled = true; /* the step still reads its tokens and writes its blocks */
        s->n_cancelled++;
    }
    return GS_OK;
}

/* ---- plan and commit ------------------------------------------------------------------------- */

void gs_sched_plan(gs_sched *s, int64_t now_ns, gs_plan *out) {
    GS_ASSERT(!s->in_flight);
    gs_plan *p = &s->plan;
    *p = (gs_plan){.items = p->items,
                   .copies = p->copies,
                   .predicted_ns = -1,
                   .wake_ns = GS_NEVER_NS,
                   .step = s->stats.steps + 1};
    s->policy->plan(s, now_ns);

    if (p->n_items > 0) {
        s->in_flight = true;
        s->stats.steps++;
        if (s->token_ns >= 0.0)
            p->predicted_ns = clamp_ns(s->token_ns * (double)p->n_tokens, 0, GS_NEVER_NS / 2);
    } else if (s->ended.n > 0) {
        p->wake_ns = now_ns; /* an end is waiting to be reported */
    }
    for (int32_t i = 0; i < p->n_items; i++) {
        const gs_plan_item *it = &p->items[i];
        gs_sched_mix(s, it->id);
        gs_sched_mix(s, (uint64_t)(uint32_t)it->pos << 32 | (uint32_t)it->n_tokens);
        gs_sched_mix(s, (uint64_t)(uint32_t)it->slot << 2 | (uint64_t)it->prefill << 1 |
                            (uint64_t)it->sample);
    }
    *out = *p;
}

/* One item's result: counts what was computed, appends a token, and ends the sequence if due. */
static void commit_item(gs_sched *s, gs_sched_seq *q, const gs_plan_item *it,
                        const gs_item_result *r) {
    const int32_t end_pos = it->pos + it->n_tokens;
    if (it->prefill) {
        s->stats.prefill_tokens += (uint64_t)it->n_tokens;
        const int32_t again = (q->n_high < end_pos ? q->n_high : end_pos) - it->pos;
        s->stats.recomputed_tokens += again > 0 ? (uint64_t)again : 0;
    } else {
        s->stats.decode_tokens++;
    }
    /* Published from here on: other sequences may read these positions in the next step. */
    q->n_computed = end_pos;
    if (q->n_high < end_pos)
        q->n_high = end_pos;
    gs_kv_seq_commit(s->kv, q->slot, q->d.tokens, end_pos);

    if (it->sample) {
        q->d.tokens[gs_sched_n_known(q)] = r->token;
        q->n_output++;
        gs_sched_mix(s, (uint64_t)(uint32_t)r->token);
        if (r->stop)
            gs_sched_core_end(s, q, GS_END_STOP, GS_OK);
        else if (q->n_output >= q->d.max_output)
            gs_sched_core_end(s, q, GS_END_LENGTH, GS_OK);
    } else if (q->d.prefill_only && end_pos == q->d.n_prompt) {
        gs_sched_core_end(s, q, GS_END_DONE, GS_OK);
    }
}

static void learn_step_time(gs_sched *s, int64_t elapsed_ns) {
    if (elapsed_ns <= 0 || s->plan.n_tokens <= 0)
        return;
    const double step = (double)elapsed_ns;
    const double token = step / (double)s->plan.n_tokens;
    s->step_ns = s->step_ns < 0.0 ? step : s->step_ns + MOVING_SHARE * (step - s->step_ns);
    s->token_ns = s->token_ns < 0.0 ? token : s->token_ns + MOVING_SHARE * (token - s->token_ns);
}

static void end_cancelled(gs_sched *s, gs_sched_list *l) {
    gs_sched_seq *next;
    for (gs_sched_seq *q = l->head; q && s->n_cancelled > 0; q = next) {
        next = q->next;
        if (q->cancelled)
            gs_sched_core_end(s, q, GS_END_CANCELLED, GS_OK);
    }
}

void gs_sched_commit(gs_sched *s, const gs_plan *plan, const gs_step_result *r, int64_t now_ns) {
    GS_ASSERT(s->in_flight && plan->step == s->plan.step && plan->n_items == s->plan.n_items);
    /* First, so that no result of a cancelled sequence is looked at, not even an error. */
    end_cancelled(s, &s->running);
    end_cancelled(s, &s->waiting);
    for (int32_t i = 0; i < s->plan.n_items; i++) {
        gs_sched_seq *q = s->planned[i];
        if (q->state != GS_SCHED_RUNNING)
            continue; /* cancelled: its result is not looked at */
        q->item = q->copy = -1;
        const int err = r->err != GS_OK ? r->err : r->items[i].err;
        if (err != GS_OK)
            gs_sched_core_end(s, q, GS_END_ERROR, err);
        else
            commit_item(s, q, &s->plan.items[i], &r->items[i]);
    }
    s->in_flight = false;
    if (r->err == GS_OK) /* a failed step says nothing about the price of a token */
        learn_step_time(s, r->elapsed_ns);
    if (s->policy->on_commit)
        s->policy->on_commit(s, r, now_ns);
}

bool gs_sched_should_yield(const gs_sched *s, int64_t now_ns) {
    return s->policy->should_yield && s->policy->should_yield(s, now_ns);
}

bool gs_sched_next_end(gs_sched *s, gs_seq_end *out) {
    gs_sched_seq *q = s->ended.head;
    if (!q || s->in_flight)
        return false; /* records of the step in flight stay */
    *out = q->end;
    gs_sched_list_remove(&s->ended, q);
    q->state = GS_SCHED_FREE;
    gs_sched_list_append(&s->free, q);
    return true;
}

void gs_sched_get_stats(const gs_sched *s, gs_sched_stats *out) {
    *out = s->stats;
    out->n_running = s->running.n;
    out->n_waiting = s->waiting.n;
}

uint64_t gs_sched_decision_hash(const gs_sched *s) {
    return s->hash;
}
