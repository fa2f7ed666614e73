/* What scheduler, placement and simulator are made of: each bound from both sides, every name, and
 * each allocation that fails. */
#include "../breakage.h"

#include <math.h>
#include <stdio.h>

#include "faults/fault.h"
#include "sched/place_impl.h"
#include "sched/sched_impl.h"
#include "sched/sim.h"
#include "sched/sim_rules.h"

/* ---- Names -------------------------------------------------------------------------------------
 */

/* Each number has a name of its own, and what is none has "?". */
static void names_of(const char *(*name)(int), int n) {
    for (int i = 0; i < n; i++) {
        assert_true(strlen(name(i)) > 0);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(name(k), name(i));
    }
    assert_string_equal(name(-1), "?");
    assert_string_equal(name(n), "?");
}

#define NAMER(f, type)                                                                             \
    static const char *f##_of(int i) {                                                             \
        return f((type)i);                                                                         \
    }
NAMER(gs_class_name, gs_class)
NAMER(gs_phase_name, gs_phase)
NAMER(gs_mode_name, gs_mode)
NAMER(gs_mode_why_name, gs_mode_why)
NAMER(gs_mode_why_sentence, gs_mode_why)
NAMER(gs_wait_name, gs_wait)
NAMER(gs_wait_sentence, gs_wait)
NAMER(gs_worker_state_name, gs_worker_state)
NAMER(gs_worker_state_sentence, gs_worker_state)
NAMER(gs_place_why_name, gs_place_why)
NAMER(gs_place_why_sentence, gs_place_why)
NAMER(gs_fallback_name, gs_fallback)

static void names(void **state) {
    (void)state;
    names_of(gs_class_name_of, GS_CLASS_COUNT);
    names_of(gs_phase_name_of, GS_PHASE_COUNT);
    names_of(gs_mode_name_of, GS_MODE_COUNT);
    names_of(gs_mode_why_name_of, GS_MODE_WHY_COUNT);
    names_of(gs_mode_why_sentence_of, GS_MODE_WHY_COUNT);
    names_of(gs_wait_name_of, GS_WAIT_COUNT);
    names_of(gs_wait_sentence_of, GS_WAIT_COUNT);
    names_of(gs_worker_state_name_of, GS_WORKER_STATE_COUNT);
    names_of(gs_worker_state_sentence_of, GS_WORKER_STATE_COUNT);
    names_of(gs_place_why_name_of, GS_PLACE_WHY_COUNT);
    names_of(gs_place_why_sentence_of, GS_PLACE_WHY_COUNT);
    names_of(gs_fallback_name_of, GS_FALLBACK_COUNT);
    for (int i = 0; i < GS_MODE_COUNT; i++)
        assert_int_equal(gs_mode_parse(gs_mode_name((gs_mode)i)), i);
    for (int i = 0; i < GS_FALLBACK_COUNT; i++)
        assert_int_equal(gs_fallback_parse(gs_fallback_name((gs_fallback)i)), i);
    assert_int_equal(gs_fallback_parse("elsewhere"), -1);
    assert_int_equal(gs_fallback_parse(NULL), -1);
    assert_int_equal(gs_mode_parse(NULL), -1);
    assert_string_equal(gs_span_name(0), gs_wait_name((gs_wait)0));
    assert_string_equal(gs_span_name(GS_WAIT_COUNT), gs_phase_name((gs_phase)0));
    int n = 0;
    while (gs_sim_device_name(n)) {
        assert_non_null(gs_sim_device_find(gs_sim_device_name(n)));
        n++;
    }
    assert_true(n > 0);
    assert_null(gs_sim_device_name(-1));
    assert_null(gs_sim_device_find("abacus"));
}

/* What a sequence's time went to: the shortest stretches go into those before them. */
static void spans_that_are_merged(void **state) {
    (void)state;
    gs_explain x = {.arrival_ns = 1000000};
    gs_span_begin(&x, 1, 0); /* before it came */
    assert_int_equal(x.spans.at_us[0], 0);
    gs_span_begin(&x, 1, 2000000);
    assert_int_equal(x.spans.n, 1);
    int64_t at_ns = 2000000;
    for (int i = 0; i < 3 * GS_SPANS; i++) {
        gs_span_begin(&x, 2 + i % 3, at_ns);
        at_ns += i % 5 == 0 ? 1000 : 1000000;
    }
    assert_true(x.spans.n <= GS_SPANS);
    for (int32_t i = 1; i < x.spans.n; i++) {
        assert_true(x.spans.at_us[i] >= x.spans.at_us[i - 1]);
        assert_int_not_equal(x.spans.what[i], x.spans.what[i - 1]);
    }
    gs_span_begin(&x, 1, INT64_MAX);
    assert_int_equal(x.spans.at_us[x.spans.n - 1], UINT32_MAX);
}

/* ---- Bounds ------------------------------------------------------------------------------------
 */

/* A number of a configuration, just inside or outside; as a double where the field is one. */
typedef struct bound {
    size_t offset, size;
    bool real;
    double good, bad;
    const char *field; /* what is said to be wrong */
} bound;

#define WHOLE(type, name, good, bad, says)                                                         \
    { offsetof(type, name), sizeof(((type *)NULL)->name), false, good, bad, says }
#define REAL(type, name, good, bad, says)                                                          \
    { offsetof(type, name), sizeof(((type *)NULL)->name), true, good, bad, says }

static void put(void *object, const bound *b, double value) {
    const int64_t whole = (int64_t)value;
    memcpy((char *)object + b->offset, b->real ? (const void *)&value : (const void *)&whole,
           b->size);
}

typedef int check_bounds(const void *object, const char **field);

/* Each alone in an object that is right otherwise. */
static void try_bounds(const bound *b, size_t n, void *object, size_t size, check_bounds *check) {
    char kept[4096];
    const char *field = "";
    assert_true(size <= sizeof(kept));
    memcpy(kept, object, size);
    for (size_t i = 0; i < n; i++, b++) {
        put(object, b, b->good);
        if (check(object, &field) != GS_OK)
            fail_msg("%s %g is refused: %s", b->field, b->good, field ? field : "");
        put(object, b, b->bad);
        if (check(object, &field) != GS_ERR_INVALID)
            fail_msg("%s %g is taken", b->field, b->bad);
        if (field)
            assert_string_equal(field, b->field);
        assert_int_equal(check(object, NULL), GS_ERR_INVALID);
        memcpy(object, kept, size);
    }
}
#define TRY(bounds, object, check)                                                                 \
    try_bounds(bounds, sizeof(bounds) / sizeof((bounds)[0]), object, sizeof(*(object)), check)

static int check_class(const void *c, const char **field) {
    return gs_class_check(c, field);
}

static int check_slo(const void *c, const char **field) {
    return gs_slo_check(c, field);
}

// clang-format off
#define C gs_class_config
static const bound class_bounds[] = {
    WHOLE(C, ttft_ns, 0, -1, "targets"), WHOLE(C, tpot_ns, 0, -1, "targets"),
    WHOLE(C, complete_ns, 0, -1, "targets"), WHOLE(C, hard_ttft_ns, 0, -1, "targets"),
    WHOLE(C, window_min_ns, 0, -1, "window"), WHOLE(C, window_max_ns, 0, -1, "window"),
    WHOLE(C, quantum_ns, 1, 0, "quantum"), WHOLE(C, consume_ns, 0, -1, "consume"),
    REAL(C, share, 1.0, 0.0, "share"), REAL(C, share, 1e-6, 1.001, "share"), REAL(C, share, 1.0, NAN, "share"),
    REAL(C, min_share, 0.0, -0.001, "min_share"), REAL(C, min_share, 0.99, 1.0, "min_share"),
    REAL(C, kv_share, 1.0, 0.0, "kv_share"), REAL(C, kv_share, 0.5, 1.001, "kv_share"),
    REAL(C, kv_reserve, 0.0, -0.001, "kv_reserve"), REAL(C, kv_reserve, 0.99, 1.0, "kv_reserve"),
    WHOLE(C, seats, 0, -1, "seats"), WHOLE(C, seats_kept, 0, -1, "seats"), WHOLE(C, max_waiting, 0, -1, "seats"),
};
#undef C
#define C gs_slo_config
static const bound slo_bounds[] = {
    REAL(C, background_floor, 0.0, -0.001, "background_floor"), REAL(C, background_floor, 0.5, 0.501, "background_floor"),
    REAL(C, background_stretch, 1.0, 0.999, "background_stretch"), REAL(C, background_stretch, 100.0, 100.1, "background_stretch"),
    WHOLE(C, background_gap_ns, 0, -1, "background_gap"),
    REAL(C, background_share, 0.001, 0.0009, "background_share"), REAL(C, background_share, 1.0, 1.001, "background_share"),
    WHOLE(C, mode, 0, -1, "mode"), WHOLE(C, mode, GS_MODE_COUNT - 1, GS_MODE_COUNT, "mode"),
    WHOLE(C, background_threads, 0, -1, "background_threads"), WHOLE(C, safepoint_max_age_ns, 0, -1, "safepoint_max_age"),
    WHOLE(C, tile_tokens, 1, 0, "tile_tokens"),
    REAL(C, tpot_stretch, 1.0, 0.999, "tpot_stretch"), REAL(C, tpot_stretch, 100.0, 100.1, "tpot_stretch"),
    REAL(C, person_queue_share, 1.0, 0.0, "person_queue_share"), REAL(C, person_queue_share, 0.1, 1.001, "person_queue_share"),
};
#undef C
// clang-format on

static void classes_and_policy(void **state) {
    (void)state;
    gs_class_config classes[GS_CLASS_COUNT];
    gs_slo_config slo;
    gs_class_defaults(classes);
    gs_slo_defaults(&slo);
    TRY(class_bounds, &classes[GS_CLASS_CHAT], check_class);
    TRY(slo_bounds, &slo, check_slo);
}

/* ---- The scheduler's own -----------------------------------------------------------------------
 */

static gs_kv *pool;

/* Whether a scheduler can be made so; says no field. */
static int check_sched_config(const void *cfg, const char **field) {
    gs_sched *s = NULL;
    const int rc = gs_sched_create(cfg, pool, &s);
    if (field)
        *field = NULL;
    if (rc == GS_OK)
        gs_sched_free(s);
    return rc;
}

// clang-format off
#define C gs_sched_config
static const bound sched_bounds[] = {
    WHOLE(C, max_seqs, 1, 0, "max_seqs"), WHOLE(C, max_seqs, 4, 5, "max_seqs"), WHOLE(C, max_waiting, 0, -1, "max_waiting"),
    WHOLE(C, max_waiting, 100, INT32_MAX / 4, "max_waiting"), WHOLE(C, max_batch_tokens, 1, 0, "max_batch_tokens"),
    WHOLE(C, prefill_chunk, 1, 0, "prefill_chunk"), WHOLE(C, max_context, 2, 1, "max_context"),
    WHOLE(C, max_context, 256, 257, "max_context"),
};
#undef C
// clang-format on

static const gs_sched_config sched_cfg = {.max_seqs = 4,
                                          .max_waiting = 4,
                                          .max_batch_tokens = 64,
                                          .prefill_chunk = 32,
                                          .max_context = 256,
                                          .max_persons = 2};

static void make_pool(void) {
    const gs_kv_config kv = {
        .n_blocks = 256, .block_tokens = 4, .max_seqs = 4, .max_blocks_per_seq = 64};
    assert_int_equal(gs_kv_create(&kv, &pool), GS_OK);
}

static void schedulers(void **state) {
    (void)state;
    gs_sched_config cfg = sched_cfg;
    gs_class_config classes[GS_CLASS_COUNT];
    gs_slo_config slo;
    gs_sched *s = NULL;
    make_pool();
    TRY(sched_bounds, &cfg, check_sched_config);
    gs_class_defaults(classes);
    gs_slo_defaults(&slo);
    classes[GS_CLASS_COUNT - 1].quantum_ns = 0;
    cfg.classes = classes;
    assert_int_equal(gs_sched_create(&cfg, pool, &s), GS_ERR_INVALID);
    cfg.classes = NULL;
    slo.tile_tokens = 0;
    cfg.slo = &slo;
    assert_int_equal(gs_sched_create(&cfg, pool, &s), GS_ERR_INVALID);
    gs_kv_free(pool);
}

/* What may be changed while it runs; a policy without accounts says that it has none. */
static void changes_and_accounts(void **state) {
    (void)state;
    const gs_person_config person = {.weight = 2.0};
    gs_person_stats stats;
    gs_person_view views[3];
    make_pool();
    for (int fcfs = 0; fcfs < 2; fcfs++) {
        gs_sched_config cfg = sched_cfg;
        cfg.policy = fcfs ? &gs_policy_fcfs : NULL;
        gs_sched *s = NULL;
        assert_int_equal(gs_sched_create(&cfg, pool, &s), GS_OK);
        assert_int_equal(gs_sched_set_chunk(s, 0), GS_ERR_INVALID);
        assert_int_equal(gs_sched_set_chunk(s, 16), GS_OK);
        const int none = fcfs ? GS_ERR_NOT_FOUND : GS_OK;
        assert_int_equal(gs_sched_set_person(s, 1, &person), none);
        assert_int_equal(gs_sched_get_person(s, 1, &stats), none);
        assert_int_equal(gs_sched_get_person(s, 2, &stats), GS_ERR_NOT_FOUND);
        assert_int_equal(gs_sched_charge(s, 1, -1, 0), GS_ERR_INVALID);
        assert_int_equal(gs_sched_charge(s, 1, 1000, 0), none);
        assert_int_equal(gs_sched_charge(s, 2, 1000, 0), GS_ERR_NOT_FOUND);
        assert_int_equal(gs_sched_charged_ns(s, 1), fcfs ? 0 : 1000);
        assert_int_equal(gs_sched_charged_ns(s, 2), 0);
        gs_sched_get_persons(s, views, 3);
        assert_true(views[1].config.weight == (fcfs ? 1.0 : 2.0));
        assert_true(views[2].config.weight == 1.0);
        assert_int_equal(views[2].stats.n_running, 0);
        gs_sched_free(s);
    }
    gs_kv_free(pool);
}

/* ---- Placement ---------------------------------------------------------------------------------
 */

static gs_place *place;

static int check_worker(const void *w, const char **field) {
    const gs_place_config cfg = {.max_requests = 8};
    gs_place *p = NULL;
    assert_int_equal(gs_place_create(&cfg, &p), GS_OK);
    const int rc = gs_place_add(p, w, 1, field);
    gs_place_free(p);
    return rc < 0 ? rc : GS_OK;
}

static int check_place_config(const void *cfg, const char **field) {
    gs_place *p = NULL;
    const int rc = gs_place_create(cfg, &p);
    if (field)
        *field = NULL;
    if (rc == GS_OK)
        gs_place_free(p);
    return rc;
}

static int check_desc(const void *d, const char **field) {
    gs_place_over over;
    const int rc = gs_place_submit(place, d, 1);
    if (field)
        *field = NULL;
    if (rc == GS_OK)
        gs_place_cancel(place, ((const gs_place_desc *)d)->id, 1, &over);
    return rc;
}

// clang-format off
#define C gs_place_worker
static const bound worker_bounds[] = {
    WHOLE(C, name[0], 'x', 0, "name"), WHOLE(C, n_models, 0, -1, "models"),
    WHOLE(C, n_models, GS_PLACE_MODELS, GS_PLACE_MODELS + 1, "models"),
    WHOLE(C, takes, 1, 1 << GS_CLASS_COUNT, "classes"), WHOLE(C, prefers, 1, 1 << GS_CLASS_COUNT, "classes"),
    WHOLE(C, fallback, 0, -1, "fallback"), WHOLE(C, fallback, GS_FALLBACK_COUNT - 1, GS_FALLBACK_COUNT, "fallback"),
    WHOLE(C, max_seqs, 1, 0, "max_seqs"), WHOLE(C, max_tokens, 0, -1, "max_tokens"),
    REAL(C, price, 0.0, -0.1, "price"), REAL(C, price, 1e6, 1.1e6, "price"),
    WHOLE(C, drain_ns, 0, -1, "hours"), WHOLE(C, power_ahead_ns, 0, -1, "hours"),
    WHOLE(C, probe_every_ns, 0, -1, "probe"), WHOLE(C, probe_timeout_ns, 1, 0, "probe"), WHOLE(C, stall_ns, 1, 0, "probe"),
};
#undef C
#define C gs_place_config
static const bound place_bounds[] = {
    WHOLE(C, max_requests, 1, 0, "max_requests"), WHOLE(C, max_requests, 64, (1 << 20) + 1, "max_requests"),
    WHOLE(C, max_persons, 0, UINT16_MAX + 1, "max_persons"),
};
#undef C
#define C gs_place_desc
static const bound desc_bounds[] = {
    WHOLE(C, id, 1, 0, "id"), WHOLE(C, cls, GS_CLASS_CHAT, -1, "cls"), WHOLE(C, cls, GS_CLASS_COUNT - 1, GS_CLASS_COUNT, "cls"),
    WHOLE(C, n_prompt, 1, 0, "n_prompt"), WHOLE(C, n_prompt, 100, INT32_MAX, "n_prompt"),
    WHOLE(C, max_output, 0, -1, "max_output"), WHOLE(C, max_output, 100, INT32_MAX, "max_output"),
    WHOLE(C, n_seqs, 0, -1, "n_seqs"), WHOLE(C, n_seqs, 8, INT32_MAX, "n_seqs"), WHOLE(C, n_blocks, 0, -1, "n_blocks"),
};
#undef C
// clang-format on

static void workers_and_requests(void **state) {
    (void)state;
    gs_place_config cfg = {.max_requests = 8, .max_persons = 2, .seed = 1};
    gs_place_worker w;
    const char *field = NULL;
    TRY(place_bounds, &cfg, check_place_config);
    assert_int_equal(gs_place_create(&cfg, &place), GS_OK);
    gs_place_set_wall(place, 0, 1);
    gs_place_worker_defaults(GS_WORKER_REMOTE, &w);
    strcpy(w.name, "pc");
    TRY(worker_bounds, &w, check_worker);
    memset(w.name, 'x', sizeof(w.name)); /* it does not end */
    assert_int_equal(gs_place_add(place, &w, 1, &field), GS_ERR_INVALID);
    assert_string_equal(field, "name");

    gs_place_desc d = {.id = 1, .cls = GS_CLASS_CHAT, .model = 1, .n_prompt = 10, .max_output = 5};
    strcpy(w.name, "pc");
    w.models[0] = (gs_place_model){.model = 1};
    w.n_models = 1;
    const int32_t at = gs_place_add(place, &w, 1, NULL);
    assert_true(at >= 0);
    assert_int_equal(gs_place_add(place, &w, 1, NULL), GS_ERR_EXISTS);
    TRY(desc_bounds, &d, check_desc);
    const uint64_t block = 7;
    d.blocks = &block;
    d.n_blocks = 1; /* of no size */
    assert_int_equal(gs_place_submit(place, &d, 1), GS_ERR_INVALID);

    assert_int_equal(gs_place_change(place, at + 1, &w, 1, NULL), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_place_change(place, -1, &w, 1, NULL), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_place_change(place, GS_PLACE_WORKERS, &w, 1, NULL), GS_ERR_NOT_FOUND);
    w.max_seqs = 0;
    assert_int_equal(gs_place_change(place, at, &w, 1, &field), GS_ERR_INVALID);
    assert_string_equal(field, "max_seqs");
    w.max_seqs = 7;
    assert_int_equal(gs_place_change(place, at, &w, 1, &field), GS_OK);
    w.kind = GS_WORKER_LOCAL;
    assert_int_equal(gs_place_change(place, at, &w, 1, NULL), GS_ERR_INVALID);
    assert_int_equal(gs_place_change(place, at, &w, 1, &field), GS_ERR_INVALID);
    assert_string_equal(field, "name, kind or priority");

    /* One worker is this machine, and there is room for so many. */
    strcpy(w.name, "here");
    assert_true(gs_place_add(place, &w, 1, NULL) >= 0);
    strcpy(w.name, "there");
    assert_int_equal(gs_place_add(place, &w, 1, NULL), GS_ERR_EXISTS);
    w.kind = GS_WORKER_REMOTE;
    int n = 2, rc;
    while ((snprintf(w.name, sizeof(w.name), "w%d", n), rc = gs_place_add(place, &w, 1, NULL)) >= 0)
        n++;
    assert_int_equal(rc, GS_ERR_OVERLOADED);
    assert_int_equal(n, GS_PLACE_WORKERS);
    gs_place_free(place);
}

/* Words about workers and requests that are not there change nothing. */
static void strangers(void **state) {
    (void)state;
    const gs_place_config cfg = {.max_requests = 8, .max_persons = 2, .seed = 1};
    static const int32_t nobody[] = {-1, 0, GS_PLACE_WORKERS};
    gs_place_over over;
    gs_place_record record;
    gs_place_view view;
    assert_int_equal(gs_place_create(&cfg, &place), GS_OK);
    const uint64_t before = gs_place_decision_hash(place);
    for (int i = 0; i < 3; i++) {
        gs_place_probed(place, nobody[i], true, 5);
        gs_place_alive(place, nobody[i], 5);
        gs_place_drain(place, nobody[i], true, 5);
        gs_place_remove(place, nobody[i], 5);
        gs_place_hold_off(place, nobody[i], 9);
        gs_place_get_view(place, nobody[i], 5, &view);
        assert_int_equal(view.n_dispatched, 0);
    }
    assert_false(gs_place_tokens(place, 7, 1, 1, 5));
    assert_false(gs_place_end(place, 7, 1, GS_PLACE_DONE, 5, &over));
    assert_false(gs_place_cancel(place, 7, 5, &over));
    assert_int_equal(gs_place_get_record(place, 7, &record), GS_ERR_NOT_FOUND);
    gs_place_set_counter(place, 2, 1e9, 1.0); /* a person there is none of */
    assert_int_equal(gs_place_decision_hash(place), before);
    gs_place_free(place);
}

/* ---- The simulator -----------------------------------------------------------------------------
 */

static gs_sim_config sim_config(void) {
    return (gs_sim_config){.device = *gs_sim_device_find(gs_sim_device_name(0)),
                           .n_persons = 2,
                           .max_waiting = 8,
                           .max_tries = 1,
                           .seed = 1};
}

static gs_sim_config sim_cfg;

static int check_request(const void *q, const char **field) {
    gs_sim *m = NULL;
    const int rc = gs_sim_create(&sim_cfg, q, 1, &m);
    if (field)
        *field = NULL;
    if (rc == GS_OK)
        gs_sim_free(m);
    return rc;
}

// clang-format off
#define C gs_sim_request
static const bound request_bounds[] = {
    WHOLE(C, n_prompt, 1, 0, "n_prompt"), WHOLE(C, n_texts, 0, -1, "n_texts"), WHOLE(C, n_texts, 2, INT32_MAX, "n_texts"),
    WHOLE(C, n_output, 1, 0, "n_output"), WHOLE(C, after, -1, 0, "after"), WHOLE(C, prefix_of, -1, 0, "prefix_of"),
    WHOLE(C, n_prefix, 10, 11, "n_prefix"), WHOLE(C, model, 0, -1, "model"), WHOLE(C, model, 0, 1, "model"),
    WHOLE(C, cls, 0, -1, "cls"), WHOLE(C, cls, GS_CLASS_COUNT - 1, GS_CLASS_COUNT, "cls"),
    WHOLE(C, person, 1, 2, "person"), WHOLE(C, t_ns, 0, -1, "t_ns"), WHOLE(C, think_ns, 0, -1, "think_ns"),
};
#undef C
// clang-format on

static gs_sim_request sim_request(void) {
    return (gs_sim_request){
        .after = -1, .cls = GS_CLASS_CHAT, .n_prompt = 10, .prefix_of = -1, .n_output = 5};
}

static void simulated_requests(void **state) {
    (void)state;
    gs_sim *m = NULL;
    gs_sim_request q = sim_request();
    sim_cfg = sim_config();
    TRY(request_bounds, &q, check_request);
    sim_cfg.n_remotes = -1;
    assert_int_equal(gs_sim_create(&sim_cfg, &q, 1, &m), GS_ERR_INVALID);
    sim_cfg.n_remotes = GS_PLACE_WORKERS;
    assert_int_equal(gs_sim_create(&sim_cfg, &q, 1, &m), GS_ERR_INVALID);
    char err[128];
    gs_sim_rule rule;
    assert_int_equal(gs_sim_rule_run(-1, 1, &rule, err, sizeof(err)), GS_ERR_NOT_FOUND);
    assert_int_equal(gs_sim_rule_run(gs_sim_n_rules(), 1, &rule, err, sizeof(err)),
                     GS_ERR_NOT_FOUND);
}

/* ---- Each allocation fails once ----------------------------------------------------------------
 */

/* A simulation with a remote, a second model and texts, made and run: its code is GS_OK or NOMEM.
 */
static int simulate(void) {
    gs_sim *m = NULL;
    gs_sim_remote remote = {.device = sim_cfg.device};
    gs_sim_request q[3] = {sim_request(), sim_request(), sim_request()};
    const double weights[] = {1.0, 2.0};
    gs_sim_config cfg = sim_cfg;
    gs_place_worker_defaults(GS_WORKER_REMOTE, &remote.worker);
    strcpy(remote.worker.name, "pc");
    cfg.remotes = &remote;
    cfg.n_remotes = 1;
    cfg.second = &sim_cfg.device;
    cfg.weights = weights;
    cfg.check = true;
    q[1].n_texts = 2;
    q[2].model = 1;
    char err[200];
    int rc = gs_sim_create(&cfg, q, 3, &m);
    if (rc == GS_OK)
        rc = gs_sim_run(m, err, sizeof(err));
    if (rc == GS_OK)
        for (int i = 0; i < 3; i++)
            assert_int_equal(gs_sim_outcomes(m)[i].n_ends, 1);
    gs_sim_free(m);
    return rc;
}

static int a_scheduler(void) {
    gs_sched *s = NULL;
    const int rc = gs_sched_create(&sched_cfg, pool, &s);
    if (rc == GS_OK)
        gs_sched_free(s);
    return rc;
}

static int a_placement(void) {
    gs_place *p = NULL;
    const gs_place_config cfg = {.max_requests = 8};
    const int rc = gs_place_create(&cfg, &p);
    if (rc == GS_OK)
        gs_place_free(p);
    return rc;
}

static void each_allocation_fails(void **state) {
    (void)state;
    int (*const makers[])(void) = {a_scheduler, a_placement, simulate};
    make_pool();
    sim_cfg = sim_config();
    for (size_t k = 0; k < sizeof(makers) / sizeof(makers[0]); k++) {
        gs_fault_set(GS_FAULT_ALLOC, UINT64_MAX, 0);
        assert_int_equal(makers[k](), GS_OK);
        const uint64_t n = gs_fault_calls(GS_FAULT_ALLOC);
        assert_true(n > 5);
        for (uint64_t i = 1; i <= n; i++) {
            gs_fault_set(GS_FAULT_ALLOC, i, 0);
            const int rc = makers[k]();
            gs_fault_clear();
            assert_int_equal(rc, GS_ERR_NOMEM);
        }
    }
    gs_kv_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(spans_that_are_merged),
        cmocka_unit_test(classes_and_policy),
        cmocka_unit_test(schedulers),
        cmocka_unit_test(changes_and_accounts),
        cmocka_unit_test(workers_and_requests),
        cmocka_unit_test(strangers),
        cmocka_unit_test(simulated_requests),
        cmocka_unit_test(each_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
