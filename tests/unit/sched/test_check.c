/* The invariants of scheduler and placement: each is broken in turn, and the check says which. A
 * check that notices nothing would make every simulated schedule pass. */
#include "../breakage.h"

#include "sched/place_impl.h"
#include "sched/sched_impl.h"

#define BT      4
#define CONTEXT 256

/* What is broken: the scheduler, one of its sequences, the first item of its plan or part of its
 * last step; placement, its worker, a request that is placed and two that wait. */
typedef enum where {
    S,
    RUN1,
    RUN2,
    WAIT1,
    WAIT2,
    ITEM,
    PART,
    P,
    WORKER,
    PLACED,
    FIRST,
    SECOND
} where;

#define SCHED(field, value, says)       BREAK(S, gs_sched, field, value, says)
#define SEQ(at, field, value, says)     BREAK(at, gs_sched_seq, field, value, says)
#define PLAN(field, value)              BREAK(ITEM, gs_plan_item, field, value, "does not match its plan item")
#define RECORD(field, value, says)      BREAK(PART, gs_step_part, field, value, says)
#define PLACE(field, value, says)       BREAK(P, gs_place, field, value, says)
#define AT_WORKER(field, value, says)   BREAK(WORKER, place_worker, field, value, says)
#define REQUEST(at, field, value, says) BREAK(at, place_request, field, value, says)

// clang-format off
static const breakage breakages[] = {
    SEQ(WAIT2, prev, 0, "list 1 is broken"),
    SCHED(waiting.n, 1, "list 1 is broken"),
    SCHED(waiting.n, 3, "list 1 has 2 entries, 3 counted"),
    SCHED(waiting.tail, 0, "list 1 has"),
    SCHED(running.tail, 0, "list 2 has"),
    SCHED(free.n, 0, "list 0 is broken"),
    SCHED(ended.n, 1, "list 3 has"),
    SEQ(WAIT1, state, GS_SCHED_FREE, "is on the wrong list"),
    SEQ(RUN2, ordinal, 0, "is out of order"),
    SCHED(n_records, 1, "records or slots are missing"),
    SCHED(n_free_slots, 1, "records or slots are missing"),
    SCHED(stats.n_waiting_by_class[GS_CLASS_CHAT], 1, "class chat is miscounted"),
    SCHED(stats.n_running_by_class[GS_CLASS_VOICE], 1, "class voice is miscounted"),
    SEQ(WAIT1, slot, 0, "waits and holds something"),
    SEQ(WAIT1, item, 0, "waits and holds something"),
    SEQ(WAIT1, n_computed, 1, "waits and holds something"),
    SEQ(WAIT1, d.id, 99, "waits and holds something"),
    SEQ(RUN1, d.id, 99, "is not found by its id"),
    SEQ(RUN1, parked, 1, "is in two steps"),
    SEQ(RUN1, slot, -1, "runs without a slot"),
    SEQ(RUN1, slot, 4, "runs without a slot"),
    SEQ(RUN1, n_computed, -1, "has computed more than it knows or holds"),
    SEQ(RUN1, n_computed, 1000, "has computed more than it knows or holds"),
    SEQ(RUN1, d.max_output, -1, "is longer than allowed"),
    SCHED(cfg.max_context, 1, "is longer than allowed"),
    SEQ(RUN1, item, 1, "points at another sequence's item"),
    SCHED(in_flight, 0, "points at another sequence's item"),
    SCHED(waiting_tokens, 1, "waiting tokens or cancels are miscounted"),
    SCHED(n_cancelled, 1, "waiting tokens or cancels are miscounted"),
    SEQ(RUN2, cancelled, 1, "waiting tokens or cancels are miscounted"),
    SEQ(WAIT2, paused, 1, "paused sequences are miscounted"),
    SCHED(parked.n_items, 1, "the suspended step has lost a sequence"),
    PLAN(id, 99), PLAN(slot, 9), PLAN(n_tokens, 0), PLAN(n_tokens, 250), PLAN(pos, 1), PLAN(n_blocks, 0),
    SCHED(plan.n_tokens, 1, "tokens planned"),
    SCHED(cfg.max_batch_tokens, 1, "tokens planned"),
    SCHED(beside, 1, "the step beside is empty"),
    SCHED(last_step.ns, 7, "a step's parts do not sum to its time"),
    RECORD(ns, -1, "part 0 of a step is wrong"),
    RECORD(n_seqs, 0, "part 0 of a step is wrong"),
    RECORD(n_tokens, 0, "part 0 of a step is wrong"),
};
// clang-format on

// clang-format off
static const breakage place_breakages[] = {
    REQUEST(PLACED, living, 0, "is on a wrong worker's list"),
    REQUEST(PLACED, worker, 1, "is on a wrong worker's list"),
    REQUEST(PLACED, attempt, 0, "is on a wrong worker's list"),
    AT_WORKER(n_placed, 2, "worker here has 1 requests and counts 2"),
    AT_WORKER(placed, PLACE_NONE, "worker here has 0 requests and counts 1"),
    AT_WORKER(n_answering, 0, "worker here has 1 requests"),
    AT_WORKER(load[0].n_seqs, 2, "the load of worker here is miscounted"),
    AT_WORKER(load[0].n_answering, 2, "the load of worker here is miscounted"),
    AT_WORKER(load[0].n_tokens, 2, "the load of worker here is miscounted"),
    AT_WORKER(load[1].n_prompt, 2, "the load of worker here is miscounted"),
    REQUEST(FIRST, living, 0, "is on a wrong queue"),
    REQUEST(FIRST, worker, 0, "is on a wrong queue"),
    REQUEST(FIRST, d.cls, GS_CLASS_VOICE, "is on a wrong queue"),
    REQUEST(SECOND, prev, PLACE_NONE, "is on a wrong queue"),
    REQUEST(FIRST, d.arrival_ns, 1000000, "a queue is not in the order of arrival"),
    PLACE(n_waiting[GS_CLASS_CHAT], 1, "the queue of chat is miscounted"),
    PLACE(last_waiting[GS_CLASS_VOICE], 1, "the queue of voice is miscounted"),
    PLACE(n_living, 2, "2 requests live, 3 are on lists"),
    PLACE(free_request, PLACE_NONE, "3 requests live, 3 are on lists"),
};
// clang-format on

static int32_t tokens[8][CONTEXT];

static void submit(gs_sched *s, gs_seq_id id) {
    gs_admission admission;
    const gs_seq_desc d = {
        .id = id, .cls = GS_CLASS_CHAT, .tokens = tokens[id], .n_prompt = 10, .max_output = 20};
    for (int i = 0; i < CONTEXT; i++)
        tokens[id][i] = (int32_t)id * 1000 + i;
    assert_int_equal(gs_sched_submit(s, &d, 0, &admission), GS_OK);
}

/* Two sequences in the step in flight, after one step; two wait. */
static gs_sched *make(gs_kv *kv) {
    const gs_sched_config cfg = {.max_seqs = 4,
                                 .max_waiting = 4,
                                 .max_batch_tokens = 64,
                                 .prefill_chunk = 32,
                                 .max_context = CONTEXT,
                                 .max_persons = 2,
                                 .policy = &gs_policy_fcfs};
    gs_sched *s = NULL;
    gs_plan plan;
    gs_item_result done[4] = {{.token = 7}, {.token = 7}};
    assert_int_equal(gs_sched_create(&cfg, kv, &s), GS_OK);
    submit(s, 1);
    submit(s, 2);
    gs_sched_plan(s, 0, &plan);
    assert_int_equal(plan.n_items, 2);
    gs_sched_commit(s, &plan, &(gs_step_result){.elapsed_ns = 1000, .items = done}, 1000);
    gs_sched_plan(s, 1000, &plan);
    assert_int_equal(plan.n_items, 2);
    submit(s, 3);
    submit(s, 4);
    return s;
}

static int check_sched(const void *s, char *err, size_t errlen) {
    return gs_sched_check(s, err, errlen);
}

static int check_place(const void *p, char *err, size_t errlen) {
    return gs_place_check(p, err, errlen);
}

static void each_invariant_of_the_scheduler(void **state) {
    (void)state;
    gs_kv *kv;
    const gs_kv_config kv_cfg = {
        .n_blocks = 256, .block_tokens = BT, .max_seqs = 4, .max_blocks_per_seq = CONTEXT / BT};
    assert_int_equal(gs_kv_create(&kv_cfg, &kv), GS_OK);
    gs_sched *s = make(kv);
    assert_true(s->last_step.n_parts > 0);
    void *const bases[] = {[S] = s,
                           [RUN1] = s->running.head,
                           [RUN2] = s->running.tail,
                           [WAIT1] = s->waiting.head,
                           [WAIT2] = s->waiting.tail,
                           [ITEM] = (void *)(uintptr_t)&s->plan.items[0],
                           [PART] = &s->last_step.parts[0]};
    break_each(breakages, sizeof(breakages) / sizeof(breakages[0]), bases, check_sched, s);
    const int32_t slot = s->running.head->slot;
    s->running.head->slot = s->running.tail->slot;
    check_says(check_sched, s, GS_ERR_INTERNAL, "shares its slot");
    s->running.head->slot = slot;
    gs_sched_free(s);
    gs_kv_free(kv);
}

/* One request is answered at the only worker, which takes one; two wait. */
static gs_place *make_place(void) {
    const gs_place_config cfg = {.max_requests = 8, .max_persons = 2, .seed = 1};
    gs_place *p = NULL;
    gs_place_worker w;
    gs_place_act act;
    gs_place_worker_defaults(GS_WORKER_LOCAL, &w);
    strcpy(w.name, "here");
    w.models[0] = (gs_place_model){.model = 1, .context = 8192};
    w.n_models = 1;
    w.max_seqs = 1;
    assert_int_equal(gs_place_create(&cfg, &p), GS_OK);
    gs_place_set_wall(p, 0, 1);
    assert_int_equal(gs_place_add(p, &w, 1, NULL), 0);
    for (uint64_t id = 1; id <= 3; id++) {
        const gs_place_desc d = {.id = id,
                                 .cls = GS_CLASS_CHAT,
                                 .model = 1,
                                 .n_prompt = 10,
                                 .max_output = 5,
                                 .n_seqs = 1,
                                 .arrival_ns = (int64_t)id};
        assert_int_equal(gs_place_submit(p, &d, (int64_t)id), GS_OK);
    }
    while (gs_place_next(p, 10, &act))
        if (act.kind == GS_PLACE_DISPATCH)
            assert_true(gs_place_tokens(p, act.id, act.attempt, 1, 20));
    return p;
}

static void each_invariant_of_placement(void **state) {
    (void)state;
    gs_place *p = make_place();
    assert_int_equal(p->workers[0].n_placed, 1);
    assert_int_equal(p->n_waiting[GS_CLASS_CHAT], 2);
    void *const bases[] = {[P] = p,
                           [WORKER] = &p->workers[0],
                           [PLACED] = &p->requests[p->workers[0].placed],
                           [FIRST] = &p->requests[p->waiting[GS_CLASS_CHAT]],
                           [SECOND] = &p->requests[p->last_waiting[GS_CLASS_CHAT]]};
    break_each(place_breakages, sizeof(place_breakages) / sizeof(place_breakages[0]), bases,
               check_place, p);
    /* Nobody lives, and somebody owes. */
    gs_place_over over;
    for (uint64_t id = 1; id <= 3; id++)
        gs_place_cancel(p, id, 30, &over);
    p->persons[0].reserved_ns += 2.0;
    check_says(check_place, p, GS_ERR_INTERNAL, "persons owe for nothing");
    gs_place_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_invariant_of_the_scheduler),
                                       cmocka_unit_test(each_invariant_of_placement)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
