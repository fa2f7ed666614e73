/* The option table against the scheduler's own defaults, and changes of several options at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "api/settings.h"
#include "base/err.h"

#define SAME(a, b)                                                                                 \
    do {                                                                                           \
        if ((a) != (b))                                                                            \
            fail_msg(#a);                                                                          \
    } while (0)

static void the_table_has_the_defaults_of_the_scheduler(void **state) {
    (void)state;
    gs_config cfg;
    gs_engine_settings s;
    gs_class_config classes[GS_CLASS_COUNT];
    gs_slo_config slo;
    char err[256] = "";
    assert_int_equal(gs_config_init(&cfg), GS_OK);
    if (gs_settings_read(&cfg, &s, err, sizeof err) != GS_OK)
        fail_msg("%s", err);
    gs_class_defaults(classes);
    gs_slo_defaults(&slo);
    slo.person.weight = 1.0; /* what 0 means */
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        const gs_class_config *a = &s.classes[c], *b = &classes[c];
        SAME(a->ttft_ns, b->ttft_ns);
        SAME(a->tpot_ns, b->tpot_ns);
        SAME(a->complete_ns, b->complete_ns);
        SAME(a->hard_ttft_ns, b->hard_ttft_ns);
        SAME(a->window_min_ns, b->window_min_ns);
        SAME(a->window_max_ns, b->window_max_ns);
        SAME(a->quantum_ns, b->quantum_ns);
        SAME(a->consume_ns, b->consume_ns);
        SAME(a->share, b->share);
        SAME(a->min_share, b->min_share);
        SAME(a->kv_share, b->kv_share);
        SAME(a->kv_reserve, b->kv_reserve);
        SAME(a->seats, b->seats);
        SAME(a->seats_kept, b->seats_kept);
        SAME(a->max_waiting, b->max_waiting);
    }
    SAME(s.slo.mode, slo.mode);
    SAME(s.slo.background_floor, slo.background_floor);
    SAME(s.slo.background_stretch, slo.background_stretch);
    SAME(s.slo.background_gap_ns, slo.background_gap_ns);
    SAME(s.slo.background_paused, slo.background_paused);
    SAME(s.slo.safepoints, slo.safepoints);
    SAME(s.slo.safepoint_max_age_ns, slo.safepoint_max_age_ns);
    SAME(s.slo.tile_tokens, slo.tile_tokens);
    SAME(s.slo.tpot_stretch, slo.tpot_stretch);
    SAME(s.slo.document_min_tokens, slo.document_min_tokens);
    SAME(s.slo.person_queue_share, slo.person_queue_share);
    SAME(s.slo.person.weight, slo.person.weight);
    SAME(s.slo.person.max_running, slo.person.max_running);
    SAME(s.slo.person.max_waiting, slo.person.max_waiting);
    SAME(s.slo.person.day_ns, slo.person.day_ns);
    SAME(s.slo.rules_off, slo.rules_off);
    gs_config_deinit(&cfg);
}

/* A change is tried on a plain copy of the configuration. */
static void what_may_change_owns_no_memory(void **state) {
    (void)state;
    int n_live = 0;
    for (size_t i = 0; i < GS_CONFIG_N; i++) {
        const gs_config_option *o = gs_config_option_at(i);
        n_live += (o->flags & GS_CONFIG_LIVE) != 0;
        if ((o->flags & GS_CONFIG_LIVE) &&
            (o->kind == GS_CONFIG_STRING || o->kind == GS_CONFIG_PATH || o->kind == GS_CONFIG_LIST))
            fail_msg("%s", o->name);
    }
    assert_true(n_live > 90);
}

static int change(gs_config *cfg, const char *text, gs_engine_settings *s, gs_api_error *e) {
    json_t *j = json_loads(text, 0, NULL);
    assert_non_null(j);
    int rc = gs_settings_change(cfg, j, s, e);
    json_decref(j);
    return rc;
}

static void a_change_is_whole_or_not_at_all(void **state) {
    (void)state;
    gs_config cfg;
    gs_engine_settings s;
    gs_api_error e;
    assert_int_equal(gs_config_init(&cfg), GS_OK);
    assert_int_equal(change(&cfg,
                            "{\"class_voice.ttft_ms\": 500, \"sched.background_floor\": 0.1, "
                            "\"sched.background_paused\": true, \"engine.prefill_chunk\": 256}",
                            &s, &e),
                     GS_OK);
    assert_int_equal(s.classes[GS_CLASS_VOICE].ttft_ns, 500000000);
    assert_true(s.slo.background_floor == 0.1 && s.slo.background_paused);
    assert_int_equal(s.prefill_chunk, 256);
    assert_int_equal(cfg.class_voice_ttft_ms, 500);
    static const struct {
        const char *json, *field;
    } bad[] = {
        {"{\"class_voice.ttft_ms\": 1, \"class_voice.ttft\": 2}", "class_voice.ttft"},
        {"{\"class_voice.ttft_ms\": 1, \"model.path\": \"x\"}", "model.path"},
        {"{\"class_voice.ttft_ms\": 1, \"class_chat.kv_share\": 0}", "class_chat.kv_share"},
        {"{\"class_voice.ttft_ms\": 1, \"class_chat.min_share\": 1}", "class_chat.min_share"},
        {"{\"class_voice.ttft_ms\": 1, \"log.level\": \"loud\"}", "log.level"},
        {"{\"class_voice.ttft_ms\": 1, \"log.level\": {}}", "log.level"},
        {"{\"class_voice.ttft_ms\": 1, \"class_chat.kv_share\": {}}", "class_chat.kv_share"},
        {"{\"class_voice.ttft_ms\": 1, \"sched.background_paused\": []}",
         "sched.background_paused"},
        {"{\"class_voice.ttft_ms\": 1, \"sched.background_paused\": null}",
         "sched.background_paused"},
        {"{\"class_voice.ttft_ms\": 1, \"class_chat.ttft_ms\": \"5000000000000000000000000000000"
         "0000000000000000000000000000000000\"}",
         "class_chat.ttft_ms"},
        {"{\"class_voice.ttft_ms\": 1, \"class_chat.window_min_ms\": 3000, "
         "\"class_chat.window_max_ms\": 2000}",
         "class_chat.window_max_ms"},
        {"{\"class_voice.ttft_ms\": 1, \"background.max_share\": 0}", "background.max_share"},
        {"{\"class_voice.ttft_ms\": 1, \"sched.tpot_stretch\": 0.5}", "sched.tpot_stretch"},
        {"{\"class_voice.ttft_ms\": 1, \"sched.person_queue_share\": 0}",
         "sched.person_queue_share"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(change(&cfg, bad[i].json, &s, &e), GS_ERR_INVALID);
        assert_string_equal(e.param, bad[i].field);
        assert_int_equal(cfg.class_voice_ttft_ms, 500);
    }
    gs_config_deinit(&cfg);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_has_the_defaults_of_the_scheduler),
        cmocka_unit_test(what_may_change_owns_no_memory),
        cmocka_unit_test(a_change_is_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
