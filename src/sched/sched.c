/*
 * The scheduler's outer calls: submit, cancel, plan, commit. What runs next is the policy's
 * choice (policy_fcfs.c); how a sequence changes state is in sched_core.c.
 */
#include "sched/sched.h"

#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "sched/sched_impl.h"

#define MOVING_SHARE 0.125 /* weight of the newest sample in a moving average */

/* ---- create and free ------------------------------------------------------------------------- */

void gs_slo_defaults(gs_slo_config *out) {
    *out = (gs_slo_config){.background_floor = 0.03,
                           .background_stretch = 1.2,
                           .background_gap_ns = 21000000,
                           .background_share = 1.0,
                           .safepoints = true,
                           .safepoint_max_age_ns = 2000000000,
                           .tile_tokens = 8,
                           .tpot_stretch = 1.9,
                           .person_queue_share = 0.75};
}

int gs_slo_check(const gs_slo_config *c, const char **field) {
    const char *bad = NULL;
    if (!(c->background_floor >= 0.0 && c->background_floor <= 0.5))
        bad = "background_floor";
    else if (!(c->background_stretch >= 1.0 && c->background_stretch <= 100.0))
        bad = "background_stretch";
    else if (c->background_gap_ns < 0)
        bad = "background_gap";
    else if (!(c->background_share >= 0.001 && c->background_share <= 1.0))
        bad = "background_share";
    else if ((int)c->mode < 0 || c->mode >= GS_MODE_COUNT)
        bad = "mode";
    else if (c->background_threads < 0)
        bad = "background_threads";
    else if (c->safepoint_max_age_ns < 0)
        bad = "safepoint_max_age";
    else if (c->tile_tokens < 1)
        bad = "tile_tokens";
    else if (!(c->tpot_stretch >= 1.0 && c->tpot_stretch <= 100.0))
        bad = "tpot_stretch";
    else if (!(c->person_queue_share > 0.0 && c->person_queue_share <= 1.0))
        bad = "person_queue_share";
    if (field)
        *field = bad;
    return bad ? GS_ERR_INVALID : GS_OK;
}

static int check_classes(const gs_class_config *classes, const char **field) {
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        if (gs_class_check(&classes[c], field) != GS_OK)
            return GS_ERR_INVALID;
    return GS_OK;
}

static int check_config(const gs_sched_config *cfg, const gs_kv_config *kv) {
    if (cfg->max_seqs < 1 || cfg->max_seqs > kv->max_seqs || cfg->max_waiting < 0 ||
        cfg->max_waiting > INT32_MAX / 4 - cfg->max_seqs || cfg->max_batch_tokens < 1 ||
        cfg->prefill_chunk < 1 || cfg->max_context < 2 ||
        cfg->max_context > (int64_t)kv->max_blocks_per_seq * kv->block_tokens ||
        (cfg->slo && gs_slo_check(cfg->slo, NULL) != GS_OK) ||
        (cfg->classes && check_classes(cfg->classes, NULL) != GS_OK))
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
    s->parked_planned = gs_calloc(n_seqs, sizeof(gs_sched_seq *));
    s->parked.items = gs_calloc(n_seqs, sizeof *s->parked.items);
    s->parked.copies = gs_calloc(n_seqs, sizeof *s->parked.copies);
    if (!s->records || !s->ids || !s->free_slots || !s->planned || !s->plan.items ||
        !s->plan.copies || !s->parked_planned || !s->parked.items || !s->parked.copies)
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
    s->policy = cfg->policy ? cfg->policy : &gs_policy_slo;
    if (cfg->classes)
        memcpy(s->classes, cfg->classes, sizeof s->classes);
    else
        gs_class_defaults(s->classes);
    if (cfg->slo)
        s->slo = *cfg->slo;
    else
        gs_slo_defaults(&s->slo);
    if (cfg->cost)
        s->cost = *cfg->cost;
    else
        gs_cost_prior(&s->cost);
    s->cfg.classes = NULL; /* the caller's */
    s->cfg.slo = NULL;
    s->cfg.cost = NULL;
    s->kv = kv;
    s->block_tokens = kv_cfg.block_tokens;
    s->n_blocks = kv_cfg.n_blocks;
    s->step_ns = -1.0;
    s->outside = GS_SCHED_ALONE;
    s->part = GS_COST_ALL;
    s->mode = (gs_mode_view){.now = GS_MODE_MIXED};
    s->no_split = GS_MODE_WHY_DEVICE;
    s->cfg.n_layers = cfg->n_layers > 1 ? cfg->n_layers : 1;
    if (alloc_state(s) != GS_OK) {
        gs_sched_free(s);
        return GS_ERR_NOMEM;
    }
    for (int32_t i = 0; i < s->n_records; i++)
        gs_sched_list_append(&s->free, &s->records[i]);
    for (int32_t i = cfg->max_seqs; i > 0; i--)
        s->free_slots[s->n_free_slots++] = i - 1;
    gs_sched_mix(s, cfg->seed);
    if (s->policy->init)
        s->policy->init(s);
    *out = s;
    return GS_OK;
}

void gs_sched_free(gs_sched *s) {
    if (!s)
        return;
    if (s->policy_state && s->policy->leave)
        s->policy->leave(s);
    /* The ledger outlives us: give back what running sequences hold. */
    for (gs_sched_seq *q = s->running.head; q; q = q->next)
        gs_kv_seq_close(s->kv, q->slot);
    gs_free(s->policy_state);
    gs_free(s->parked.copies);
    gs_free(s->parked.items);
    gs_free(s->parked_planned);
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
    if (s->cfg.whole_prompts && !d->prefill_only)
        return refuse(out, GS_ERR_UNSUPPORTED, NULL, "this model makes vectors, not text");
    if (s->cfg.whole_prompts && d->n_prompt > s->cfg.max_batch_tokens)
        return refuse(out, GS_ERR_CONTEXT, "prompt", "the prompt is longer than a step can be");
    if (d->n_prompt > s->cfg.max_context - reply)
        return refuse(out, GS_ERR_CONTEXT, "prompt",
                      "the prompt leaves no room for output in the context");
    int64_t room = (int64_t)s->n_blocks * s->block_tokens;
    gs_kv_stats kv;
    gs_kv_get_stats(s->kv, &kv);
    if (kv.n_pinned > 0) /* nobody gets these, but for what the prompt shares with them */
        room += gs_kv_peek(s->kv, GS_KV_PUBLIC, d->tokens, d->n_prompt) -
                (int64_t)kv.n_pinned * s->block_tokens;
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

/* Prompt tokens ahead of it and its own. */
static int64_t predict_ttft(const gs_sched *s, int32_t n_own) {
    if (s->cost.n_observed == 0 && !s->cost.calibrated)
        return -1;
    int64_t n = s->waiting_tokens + n_own;
    for (const gs_sched_seq *q = s->running.head; q; q = q->next)
        n += gs_sched_n_known(q) - q->n_computed;
    const int32_t n_capped = n < INT32_MAX ? (int32_t)n : INT32_MAX;
    return clamp_ns(gs_cost_prefill(&s->cost, 0, n_capped, s->cfg.max_batch_tokens), 0,
                    GS_NEVER_NS / 2);
}

int gs_sched_submit(gs_sched *s, const gs_seq_desc *d, int64_t now_ns, gs_admission *out) {
    *out = (gs_admission){.predicted_ttft_ns = -1, .cls = d->cls};
    int rc = check_desc(s, d, out);
    if (rc != GS_OK)
        return rc;
    s->now_ns = now_ns;
    if (gs_sched_find(s, d->id))
        return refuse(out, GS_ERR_EXISTS, NULL, "the sequence's id is in use");
    if (!s->free.head || s->waiting.n + s->running.n >= s->cfg.max_seqs + s->cfg.max_waiting) {
        out->retry_after_ns = retry_after(s);
        return refuse(out, GS_ERR_OVERLOADED, NULL, "the queue is full");
    }
    out->n_ahead = s->waiting.n;
    out->n_cached = gs_kv_peek(s->kv, d->cache_scope, d->tokens, d->n_prompt);
    out->predicted_ttft_ns = predict_ttft(s, d->n_prompt - out->n_cached);
    if (s->policy->classify)
        out->cls = s->policy->classify(s, d, out->n_cached);
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
                        .copy = -1,
                        .n_peek = out->n_cached,
                        .submit_ns = now_ns,
                        .look_ns = now_ns};
    q->d.cls = out->cls;
    if (s->cfg.whole_prompts) /* a cached beginning would cut it */
        q->d.cache_scope = GS_KV_NO_REUSE;
    q->x = (gs_explain){.id = d->id,
                        .cls = out->cls,
                        .asked_cls = d->cls,
                        .person = d->person,
                        .arrival_ns = d->arrival_ns,
                        .wait_now = s->in_flight ? GS_WAIT_STEP : GS_WAIT_BUDGET,
                        .late = out->late,
                        .predicted_ttft_ns = out->predicted_ttft_ns};
    if (q->d.max_output > s->cfg.max_context - d->n_prompt)
        q->d.max_output = s->cfg.max_context - d->n_prompt;
    gs_sched_seq **bucket = gs_sched_id_bucket(s, d->id);
    q->id_next = *bucket;
    *bucket = q;
    gs_sched_list_insert(&s->waiting, q);
    s->stats.n_waiting_by_class[q->d.cls]++;
    s->waiting_tokens += d->n_prompt;
    gs_sched_mix(s, d->id);
    gs_span_begin(&q->x, q->x.wait_now, now_ns);
    if (s->policy->on_submit)
        s->policy->on_submit(s, q, now_ns);
    return GS_OK;
}

/* Adds the time since the last look to the reason that was found then. */
static void account_wait(gs_sched_seq *q, int64_t now_ns) {
    if (q->x.wait_now != GS_WAIT_NONE && now_ns > q->look_ns)
        q->x.wait_ns[q->x.wait_now] += now_ns - q->look_ns;
    q->look_ns = now_ns;
}

int gs_sched_cancel(gs_sched *s, gs_seq_id id, int64_t now_ns) {
    gs_sched_seq *q = gs_sched_find(s, id);
    if (!q)
        return GS_ERR_NOT_FOUND;
    s->now_ns = now_ns;
    if (!s->in_flight && !q->parked) {
        gs_sched_core_end(s, q, GS_END_CANCELLED, GS_OK);
    } else if (!q->cancelled) {
        q->cancelled = true; /* the step still reads its tokens and writes its blocks */
        s->n_cancelled++;
    }
    /* A suspended step that nobody wants any more is not gone on with. */
    int32_t n_left = 0;
    for (int32_t i = 0; i < s->parked.n_items; i++)
        n_left += !s->parked_planned[i]->cancelled;
    if (!s->in_flight && gs_sched_suspended(s) && n_left == 0)
        gs_sched_core_drop_parked(s);
    return GS_OK;
}

int gs_sched_pause(gs_sched *s, gs_seq_id id, bool paused, int64_t now_ns) {
    gs_sched_seq *q = gs_sched_find(s, id);
    if (!q)
        return GS_ERR_NOT_FOUND;
    if (q->paused == paused)
        return GS_OK;
    q->paused = paused;
    s->n_paused += paused ? 1 : -1;
    if (q->item < 0) { /* else the step in flight still has it */
        account_wait(q, now_ns);
        q->x.wait_now = paused ? GS_WAIT_PAUSED : s->in_flight ? GS_WAIT_STEP : GS_WAIT_BUDGET;
    }
    if (!paused && q->n_output > 0)
        q->last_token_ns = now_ns; /* nobody has missed a token until here */
    gs_sched_mix(s, id * 2 + paused);
    if (s->policy->on_pause)
        s->policy->on_pause(s, q);
    return GS_OK;
}

/* ---- plan and commit ------------------------------------------------------------------------- */

void gs_sched_plan_cost(const gs_plan *p, gs_cost_step *out) {
    *out = (gs_cost_step){0};
    for (int32_t i = 0; i < p->n_items; i++) {
        const gs_plan_item *it = &p->items[i];
        gs_cost_step_add(out, it->n_tokens, it->pos, !it->prefill, it->sample);
    }
}

static void account_waits(const gs_sched_list *l, int64_t now_ns) {
    for (gs_sched_seq *q = l->head; q; q = q->next)
        account_wait(q, now_ns);
}

/* Whatever the policy says of the others. */
static void mark_paused(gs_sched *s) {
    const gs_sched_list *const lists[] = {&s->running, &s->waiting};
    for (int i = 0; i < 2 && s->n_paused > 0; i++)
        for (gs_sched_seq *q = lists[i]->head; q; q = q->next)
            if (q->paused && q->item < 0)
                q->x.wait_now = GS_WAIT_PAUSED;
}

/* Who is in the step waits for nothing; a policy that gave no reason for the others has none but
 * the step's limits. */
static void settle_waits(gs_sched *s) {
    const bool room = gs_sched_core_budget(s) >= 1;
    const gs_wait lacks = s->n_free_slots == 0 ? GS_WAIT_SEATS : GS_WAIT_KV;
    for (gs_sched_seq *q = s->running.head; q; q = q->next)
        if (q->item >= 0)
            q->x.wait_now = GS_WAIT_NONE;
        else if (q->x.wait_now == GS_WAIT_NONE && !(q->parked && s->beside))
            q->x.wait_now = q->parked ? GS_WAIT_CLASS : gs_sched_full_step(s, q);
    for (gs_sched_seq *q = s->waiting.head; q; q = q->next)
        if (q->x.wait_now == GS_WAIT_STEP || q->x.wait_now == GS_WAIT_NONE)
            q->x.wait_now = room ? lacks : gs_sched_full_step(s, q);
}

static void begin_plan(gs_sched *s, int64_t now_ns, gs_work work) {
    GS_ASSERT(!s->in_flight);
    s->now_ns = now_ns;
    s->work = work;
    s->part = GS_COST_ALL;
    account_waits(&s->running, now_ns);
    account_waits(&s->waiting, now_ns);
    gs_plan *p = &s->plan;
    *p = (gs_plan){.items = p->items,
                   .copies = p->copies,
                   .predicted_ns = -1,
                   .limit_ns = -1,
                   .wake_ns = GS_NEVER_NS,
                   .yield_ns = GS_NEVER_NS,
                   .step = s->stats.steps + 1};
    s->last_plan++;
}

/* What both kinds of steps have once the policy has filled them. */
static void begin_step(gs_sched *s, int64_t now_ns) {
    gs_plan *p = &s->plan;
    s->in_flight = true;
    s->plan_ns = now_ns;
    s->stats.steps++;
    gs_sched_plan_cost(p, &s->step_cost);
    if (s->cost.n_observed > 0 || s->cost.calibrated)
        p->predicted_ns = clamp_ns(gs_sched_predict(s, &s->step_cost), 0, GS_NEVER_NS / 2);
    p->wake_ns = GS_NEVER_NS;
}

/* The part of the threads that the plan has; another step has the others. */
static int32_t part_threads(const gs_sched *s) {
    const int32_t n = (int32_t)(s->part.share * s->cfg.n_threads + 0.5);
    return s->plan.max_threads > 0 && s->plan.max_threads < n ? s->plan.max_threads : n;
}

static void mix_items(gs_sched *s) {
    for (int32_t i = 0; i < s->plan.n_items; i++) {
        const gs_plan_item *it = &s->plan.items[i];
        gs_sched_mix(s, it->id);
        gs_sched_mix(s, (uint64_t)(uint32_t)it->pos << 32 | (uint32_t)it->n_tokens);
        gs_sched_mix(s, (uint64_t)(uint32_t)it->slot << 2 | (uint64_t)it->prefill << 1 |
                            (uint64_t)it->sample);
    }
}

void gs_sched_plan(gs_sched *s, int64_t now_ns, gs_plan *out) {
    gs_plan *p = &s->plan;
    begin_plan(s, now_ns, s->beside ? GS_WORK_TOKENS : GS_WORK_ALL);
    if (s->beside) {
        s->part = (gs_cost_part){.share = (double)s->mode.token_threads / s->cfg.n_threads,
                                 .beside = true};
        p->beside = true;
    }
    s->policy->plan(s, now_ns);
    /* Whatever the policy forgot: a suspended step is not left behind. */
    if (p->n_items == 0 && gs_sched_suspended(s) && s->outside.background_until_ns == GS_NEVER_NS)
        gs_sched_core_resume(s);
    mark_paused(s);

    if (p->n_items > 0) {
        if (p->beside)
            p->max_threads = part_threads(s);
        begin_step(s, now_ns);
        settle_waits(s);
        gs_sched_count_held(s);
    } else if (s->ended.n > 0) {
        p->wake_ns = now_ns; /* an end is waiting to be reported */
    }
    gs_sched_mark_spans(s, now_ns);
    mix_items(s);
    *out = *p;
}

void gs_sched_plan_beside(gs_sched *s, int64_t now_ns, gs_plan *out) {
    gs_plan *p = &s->plan;
    if (!s->splits || !s->policy->modes || s->parked.n_items > 0) {
        *out = (gs_plan){.wake_ns = GS_NEVER_NS};
        return;
    }
    begin_plan(s, now_ns, GS_WORK_PROMPTS);
    p->beside = true;
    s->policy->plan(s, now_ns);
    if (p->n_items == 0) {
        *out = *p;
        return;
    }
    p->max_threads = part_threads(s);
    begin_step(s, now_ns);
    gs_sched_count_held(s);
    for (int32_t i = 0; i < p->n_items; i++)
        s->planned[i]->x.wait_now = GS_WAIT_NONE;
    gs_sched_mark_items(s, now_ns);
    gs_sched_mix(s, 0x626573696465); /* "beside" */
    mix_items(s);
    *out = *p;
    gs_sched_core_set_beside(s);
}

/* One item's result: counts what was computed, appends a token, and ends the sequence if due. */
static void commit_item(gs_sched *s, gs_sched_seq *q, const gs_plan_item *it,
                        const gs_item_result *r) {
    const bool retry = it->sample && r->retry;
    const int32_t end_pos = it->pos + it->n_tokens - retry;
    if (end_pos == it->pos)
        return;
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

    if (retry)
        return;
    if (it->sample) {
        q->last_token_ns = s->now_ns;
        if (q->n_output == 0)
            q->x.first_token_ns = s->now_ns;
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

void gs_sched_end_cancelled(gs_sched *s) {
    gs_sched_list *const lists[] = {&s->running, &s->waiting};
    gs_sched_seq *next;
    for (int i = 0; i < 2; i++)
        for (gs_sched_seq *q = lists[i]->head; q && s->n_cancelled > 0; q = next) {
            next = q->next;
            if (q->cancelled && !q->parked)
                gs_sched_core_end(s, q, GS_END_CANCELLED, GS_OK);
        }
}

static void learn_step_time(gs_sched *s, int64_t elapsed_ns, bool few_threads, int64_t now_ns) {
    if (elapsed_ns <= 0)
        return;
    const double step = (double)elapsed_ns;
    s->step_ns = s->step_ns < 0.0 ? step : s->step_ns + MOVING_SHARE * (step - s->step_ns);
    gs_sched_explain_step(s, elapsed_ns);
    if (s->policy->on_measured)
        s->policy->on_measured(s, gs_sched_device_ns(s, elapsed_ns), now_ns);
    gs_cost_part part = GS_COST_ALL;
    if (few_threads && s->cfg.n_threads > 1)
        part = (gs_cost_part){.share = (double)s->plan.max_threads / s->cfg.n_threads,
                              .beside = s->plan.beside};
    if (!few_threads || part.share < 1.0)
        gs_cost_observe_on(&s->cost, &s->step_cost, part, elapsed_ns);
}

void gs_sched_commit(gs_sched *s, const gs_plan *plan, const gs_step_result *r, int64_t now_ns) {
    GS_ASSERT(s->in_flight && plan->step == s->plan.step && plan->n_items == s->plan.n_items);
    s->now_ns = now_ns;
    s->stats.busy_ns += r->elapsed_ns > 0 ? gs_sched_device_ns(s, r->elapsed_ns) : 0;
    gs_sched_record_step(s, r->elapsed_ns, now_ns, false);
    if (r->err == GS_OK) /* a failed step says nothing about what steps take */
        learn_step_time(s, r->elapsed_ns + (s->plan.resume ? s->parked_ns : 0), r->few_threads,
                        now_ns);
    if (s->plan.resume)
        s->parked_ns = 0;
    /* First, so that no result of a cancelled sequence is looked at, not even an error. */
    gs_sched_end_cancelled(s);
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
    if (s->policy->on_commit)
        s->policy->on_commit(s, r, now_ns);
}

void gs_sched_commit_beside(gs_sched *s, const gs_plan *plan, const gs_step_result *r,
                            int64_t now_ns) {
    gs_sched_core_end_beside(s);
    gs_sched_commit(s, plan, r, now_ns);
}

void gs_sched_set_splits(gs_sched *s, bool splits, gs_mode_why if_not) {
    GS_ASSERT(!s->beside);
    s->splits = splits && s->cfg.n_threads > 1;
    s->no_split = if_not;
}

void gs_sched_get_mode(const gs_sched *s, gs_mode_view *out) {
    *out = s->mode;
    out->set = s->slo.mode;
}

/* ---- beside other schedulers ------------------------------------------------------------------
 */

void gs_sched_set_outside(gs_sched *s, const gs_sched_outside *o) {
    s->outside = *o;
}

void gs_sched_get_need(gs_sched *s, int64_t now_ns, gs_sched_need *out) {
    GS_ASSERT(!s->in_flight);
    *out = (gs_sched_need){.start_ns = GS_NEVER_NS, .prompt_start_ns = GS_NEVER_NS};
    s->now_ns = now_ns;
    if (s->policy->need)
        s->policy->need(s, now_ns, out);
    else
        out->prompts = s->running.n + s->waiting.n > s->n_paused;
}

void gs_sched_pass(gs_sched *s, int64_t now_ns) {
    const gs_sched_list *const lists[] = {&s->running, &s->waiting};
    for (int i = 0; i < 2; i++) {
        account_waits(lists[i], now_ns);
        for (gs_sched_seq *q = lists[i]->head; q; q = q->next)
            q->x.wait_now = q->paused ? GS_WAIT_PAUSED : GS_WAIT_MODEL;
    }
    gs_sched_mark_spans(s, now_ns);
}

bool gs_sched_has_newcomer(const gs_sched *s, int64_t since_ns) {
    for (const gs_sched_seq *q = s->waiting.tail; q && q->submit_ns >= since_ns; q = q->prev)
        if (q->d.cls <= GS_CLASS_CHAT && !q->cancelled && !q->paused)
            return true;
    return false;
}

bool gs_sched_should_yield(const gs_sched *s, int64_t now_ns) {
    return s->in_flight && s->plan.may_yield && s->policy->should_yield &&
           s->policy->should_yield(s, now_ns);
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

const gs_step_record *gs_sched_last_step(const gs_sched *s) {
    return &s->last_step;
}

uint64_t gs_sched_decision_hash(const gs_sched *s) {
    return s->hash;
}

/* ---- settings and records -------------------------------------------------------------------- */

int gs_sched_set_classes(gs_sched *s, const gs_class_config classes[GS_CLASS_COUNT],
                         const char **field) {
    if (check_classes(classes, field) != GS_OK)
        return GS_ERR_INVALID;
    memcpy(s->classes, classes, sizeof s->classes);
    return GS_OK;
}

int gs_sched_set_slo(gs_sched *s, const gs_slo_config *cfg) {
    if (gs_slo_check(cfg, NULL) != GS_OK)
        return GS_ERR_INVALID;
    s->slo = *cfg;
    return GS_OK;
}

int gs_sched_set_chunk(gs_sched *s, int32_t prefill_chunk) {
    if (prefill_chunk < 1)
        return GS_ERR_INVALID;
    s->cfg.prefill_chunk = prefill_chunk;
    return GS_OK;
}

int gs_sched_set_person(gs_sched *s, uint32_t person, const gs_person_config *cfg) {
    return s->policy->set_person ? s->policy->set_person(s, person, cfg) : GS_ERR_NOT_FOUND;
}

int gs_sched_get_person(const gs_sched *s, uint32_t person, gs_person_stats *out) {
    *out = (gs_person_stats){0};
    return s->policy->get_person ? s->policy->get_person(s, person, out) : GS_ERR_NOT_FOUND;
}

int64_t gs_sched_charged_ns(const gs_sched *s, uint32_t person) {
    return s->policy->charged_ns ? s->policy->charged_ns(s, person) : 0;
}

int gs_sched_charge(gs_sched *s, uint32_t person, int64_t ns, int64_t now_ns) {
    if (ns < 0)
        return GS_ERR_INVALID;
    return s->policy->charge ? s->policy->charge(s, person, ns, now_ns) : GS_ERR_NOT_FOUND;
}

void gs_sched_get_persons(const gs_sched *s, gs_person_view *out, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (gs_person_view){.config = s->slo.person};
        gs_sched_get_person(s, i, &out[i].stats);
        if (s->policy->person_config)
            s->policy->person_config(s, i, &out[i].config);
        if (out[i].config.weight <= 0.0)
            out[i].config.weight = 1.0;
    }
}

void gs_sched_set_cost(gs_sched *s, const gs_cost *c) {
    s->cost = *c;
}

void gs_sched_get_classes(const gs_sched *s, gs_class_config out[GS_CLASS_COUNT]) {
    memcpy(out, s->classes, sizeof s->classes);
}

void gs_sched_get_slo(const gs_sched *s, gs_slo_config *out) {
    *out = s->slo;
}

const gs_cost *gs_sched_cost(const gs_sched *s) {
    return &s->cost;
}

void gs_sched_fill_explain(const gs_sched_seq *q, gs_explain *out) {
    *out = q->x;
    out->n_prompt = q->d.n_prompt;
    out->n_cached = q->n_cached;
    out->n_output = q->n_output;
    out->max_output = q->d.max_output;
    out->n_preempted = q->n_preempted;
    out->slot = q->slot;
    out->running = q->state == GS_SCHED_RUNNING;
    out->paused = q->paused;
    out->relegated = q->relegated || q->x.relegated;
}

int gs_sched_explain(const gs_sched *s, gs_seq_id id, gs_explain *out) {
    const gs_sched_seq *q = gs_sched_find(s, id);
    if (!q)
        return GS_ERR_NOT_FOUND;
    gs_sched_fill_explain(q, out);
    for (const gs_sched_seq *o = q; o && q->state == GS_SCHED_WAITING; o = o->prev)
        out->position++;
    return GS_OK;
}

int32_t gs_sched_snapshot(const gs_sched *s, gs_explain *out, int32_t max) {
    int32_t n = 0, position = 0;
    for (const gs_sched_seq *q = s->running.head; q && n < max; q = q->next)
        gs_sched_fill_explain(q, &out[n++]);
    for (const gs_sched_seq *q = s->waiting.head; q && n < max; q = q->next) {
        gs_sched_fill_explain(q, &out[n]);
        out[n++].position = ++position;
    }
    return n;
}

const gs_policy_ops *gs_policy_find(const char *name) {
    static const gs_policy_ops *const all[] = {&gs_policy_slo, &gs_policy_fcfs};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}
