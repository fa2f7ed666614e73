#include "api/settings.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"

#define S(section)                                                                                 \
    {                                                                                              \
        .ttft_ns = c->section##_ttft_ms * GS_NS_PER_MS,                                            \
        .tpot_ns = c->section##_tpot_ms * GS_NS_PER_MS,                                            \
        .complete_ns = c->section##_complete_ms * GS_NS_PER_MS,                                    \
        .hard_ttft_ns = c->section##_hard_ttft_ms * GS_NS_PER_MS,                                  \
        .window_min_ns = c->section##_window_min_ms * GS_NS_PER_MS,                                \
        .window_max_ns = c->section##_window_max_ms * GS_NS_PER_MS,                                \
        .quantum_ns = c->section##_quantum_ms * GS_NS_PER_MS,                                      \
        .consume_ns = c->section##_consume_ms * GS_NS_PER_MS, .share = c->section##_share,         \
        .min_share = c->section##_min_share, .kv_share = c->section##_kv_share,                    \
        .kv_reserve = c->section##_kv_reserve, .seats = c->section##_seats,                        \
        .seats_kept = c->section##_seats_kept, .max_waiting = c->section##_max_waiting,            \
    }

int gs_settings_read(const gs_config *c, gs_engine_settings *out, char *err, size_t errlen) {
    const char *field = "";
    *out = (gs_engine_settings){
        .classes = {[GS_CLASS_VOICE] = S(class_voice),
                    [GS_CLASS_CHAT] = S(class_chat),
                    [GS_CLASS_COMPLETION] = S(class_completion),
                    [GS_CLASS_DOCUMENT] = S(class_document),
                    [GS_CLASS_UTILITY] = S(class_utility),
                    [GS_CLASS_BACKGROUND] = S(class_background)},
        .prefill_chunk = c->engine_prefill_chunk,
    };
    gs_slo_config *slo = &out->slo;
    gs_slo_defaults(slo);
    slo->mode = (gs_mode)c->sched_mode;
    slo->background_floor = c->sched_background_floor;
    slo->background_stretch = c->sched_background_stretch;
    slo->background_gap_ns = c->sched_background_gap_ms * GS_NS_PER_MS;
    slo->background_paused = c->sched_background_paused;
    slo->background_share = c->background_max_share;
    slo->background_threads = c->background_max_threads;
    slo->safepoints = c->sched_safepoints;
    slo->safepoint_max_age_ns = c->sched_safepoint_max_age_ms * GS_NS_PER_MS;
    slo->tpot_stretch = c->sched_tpot_stretch;
    slo->document_min_tokens = c->sched_document_min_tokens;
    slo->person_queue_share = c->sched_person_queue_share;
    slo->person = (gs_person_config){.weight = c->sched_person_weight,
                                     .max_running = c->sched_person_max_running,
                                     .max_waiting = c->sched_person_max_waiting,
                                     .day_ns = c->sched_person_day_s * GS_NS_PER_S};
    if (c->background_max_share < 0.001)
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "background.max_share is out of bounds; to stop background, pause it");
    for (int i = 0; i < GS_CLASS_COUNT; i++)
        if (gs_class_check(&out->classes[i], &field) != GS_OK)
            return gs_fail(err, errlen, GS_ERR_INVALID, "class_%s.%s is out of bounds",
                           gs_class_name((gs_class)i),
                           strcmp(field, "window") == 0 ? "window_max_ms" : field);
    if (gs_slo_check(slo, &field) != GS_OK)
        return gs_fail(err, errlen, GS_ERR_INVALID, "sched.%s is out of bounds", field);
    return GS_OK;
}

/* The value as a configuration file would have it. False: no option has such a type. */
static bool as_text(const json_t *v, char *out, size_t n) {
    switch (json_typeof(v)) {
    case JSON_TRUE:
        return snprintf(out, n, "true") > 0;
    case JSON_FALSE:
        return snprintf(out, n, "false") > 0;
    case JSON_INTEGER:
        return snprintf(out, n, "%lld", (long long)json_integer_value(v)) > 0;
    case JSON_REAL:
        return snprintf(out, n, "%.17g", json_real_value(v)) > 0;
    case JSON_STRING:
        return snprintf(out, n, "%s", json_string_value(v)) < (int)n;
    default:
        return false;
    }
}

static int change_one(gs_config *cfg, const char *name, const json_t *v, gs_api_error *e) {
    char text[64], err[256] = "";
    const gs_config_option *o = gs_config_option_find(name);
    if (!o) {
        gs_config_set(cfg, name, "", err, sizeof(err)); /* for its hint */
        return gs_api_fail(e, GS_ERR_INVALID, name, "There is %s.", err);
    }
    if (!(o->flags & GS_CONFIG_LIVE))
        return gs_api_fail(e, GS_ERR_INVALID, name,
                           "'%s' is read at start and can't change while the server runs.", name);
    if (!as_text(v, text, sizeof(text)))
        return gs_api_fail(e, GS_ERR_INVALID, name, "'%s' must be %s.", name,
                           o->kind == GS_CONFIG_BOOL   ? "true or false"
                           : o->kind == GS_CONFIG_ENUM ? "text"
                                                       : "a number");
    if (gs_config_set(cfg, name, text, err, sizeof(err)) != GS_OK)
        return gs_api_fail(e, GS_ERR_INVALID, name, "%s.", err);
    return GS_OK;
}

int gs_settings_change(gs_config *cfg, const json_t *changes, gs_engine_settings *out,
                       gs_api_error *e) {
    /* Options that may change own no memory (tests/unit/config), so a plain copy is a trial. */
    gs_config trial = *cfg;
    const char *name;
    const json_t *v;
    char err[128];
    void *at = json_object_iter((json_t *)(uintptr_t)changes);
    for (; at; at = json_object_iter_next((json_t *)(uintptr_t)changes, at)) {
        name = json_object_iter_key(at);
        v = json_object_iter_value(at);
        if (change_one(&trial, name, v, e) != GS_OK)
            return e->code;
    }
    int rc = gs_settings_read(&trial, out, err, sizeof(err));
    if (rc != GS_OK) {
        char field[64];
        snprintf(field, sizeof(field), "%.*s", (int)strcspn(err, " "), err);
        return gs_api_fail(e, GS_ERR_INVALID, field, "%s.", err);
    }
    *cfg = trial;
    return GS_OK;
}
