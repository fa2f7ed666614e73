#include "sched/class.h"

#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "sched/explain.h"
#include "sched/mode.h"
#include "sched/step.h"

static const char *const class_names[GS_CLASS_COUNT] = {
#define X(name, text) text,
    GS_CLASS_MAP(X)
#undef X
};

const char *gs_class_name(gs_class c) {
    return (int)c >= 0 && c < GS_CLASS_COUNT ? class_names[c] : "?";
}

static int index_of(const char *const *names, int n, const char *s) {
    for (int i = 0; s && i < n; i++)
        if (strcmp(s, names[i]) == 0)
            return i;
    return -1;
}

int gs_class_parse(const char *s) {
    return index_of(class_names, GS_CLASS_COUNT, s);
}

const char *gs_phase_name(gs_phase p) {
    static const char *const names[GS_PHASE_COUNT] = {
#define X(name, text) text,
        GS_PHASE_MAP(X)
#undef X
    };
    return (int)p >= 0 && p < GS_PHASE_COUNT ? names[p] : "?";
}

static const char *const mode_names[GS_MODE_COUNT] = {
#define X(name, text) text,
    GS_MODE_MAP(X)
#undef X
};

const char *gs_mode_name(gs_mode m) {
    return (int)m >= 0 && m < GS_MODE_COUNT ? mode_names[m] : "?";
}

int gs_mode_parse(const char *s) {
    return index_of(mode_names, GS_MODE_COUNT, s);
}

static const char *const why_texts[GS_MODE_WHY_COUNT][2] = {
#define X(name, text, sentence) {text, sentence},
    GS_MODE_WHY_MAP(X)
#undef X
};

const char *gs_mode_why_name(gs_mode_why w) {
    return (int)w >= 0 && w < GS_MODE_WHY_COUNT ? why_texts[w][0] : "?";
}

const char *gs_mode_why_sentence(gs_mode_why w) {
    return (int)w >= 0 && w < GS_MODE_WHY_COUNT ? why_texts[w][1] : "?";
}

static const char *const wait_texts[GS_WAIT_COUNT][2] = {
#define X(name, text, sentence) {text, sentence},
    GS_WAIT_MAP(X)
#undef X
};

const char *gs_wait_name(gs_wait w) {
    return (int)w >= 0 && w < GS_WAIT_COUNT ? wait_texts[w][0] : "?";
}

const char *gs_wait_sentence(gs_wait w) {
    return (int)w >= 0 && w < GS_WAIT_COUNT ? wait_texts[w][1] : "?";
}

const char *gs_span_name(int what) {
    return what < GS_WAIT_COUNT ? gs_wait_name((gs_wait)what)
                                : gs_phase_name((gs_phase)(what - GS_WAIT_COUNT));
}

/* Takes the shortest stretch into the one before it. */
static void merge_shortest(gs_spans *s) {
    int32_t at = 1;
    for (int32_t i = 2; i + 1 < s->n; i++)
        if (s->at_us[i + 1] - s->at_us[i] < s->at_us[at + 1] - s->at_us[at])
            at = i;
    const int32_t n = at + 1 < s->n && s->what[at + 1] == s->what[at - 1] ? 2 : 1;
    for (int32_t i = at; i + n < s->n; i++) {
        s->at_us[i] = s->at_us[i + n];
        s->what[i] = s->what[i + n];
    }
    s->n -= n;
}

void gs_span_begin(gs_explain *x, int what, int64_t now_ns) {
    gs_spans *s = &x->spans;
    const int64_t us = (now_ns - x->arrival_ns) / 1000;
    if (s->n > 0 && s->what[s->n - 1] == what)
        return;
    if (s->n == GS_SPANS)
        merge_shortest(s);
    if (s->what[s->n > 0 ? s->n - 1 : 0] == what && s->n > 0)
        return;
    s->at_us[s->n] = us < 0 ? 0 : us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
    s->what[s->n++] = (uint8_t)what;
}

#define MS 1000000LL
#define S  1000000000LL

/* Voice: people notice a pause after 0.7 s and give up at 4-5 s; once speech runs it needs some
 * 5 tokens a second (150 words a minute). Chat: 1-2 s keep the flow, 10 tokens a second read
 * easily. A file, a title or an index can wait; what they may not do is make others wait. */
static const gs_class_config defaults[GS_CLASS_COUNT] = {
    [GS_CLASS_VOICE] = {.ttft_ns = 700 * MS,
                        .tpot_ns = 45 * MS,
                        .hard_ttft_ns = 4 * S,
                        .quantum_ns = 200 * MS,
                        .consume_ns = 200 * MS,
                        .share = 0.9,
                        .min_share = 0.5,
                        .kv_share = 1.0,
                        .kv_reserve = 0.05,
                        .seats_kept = 2},
    [GS_CLASS_CHAT] = {.ttft_ns = 2 * S,
                       .tpot_ns = 100 * MS,
                       .quantum_ns = 200 * MS,
                       .share = 0.8,
                       .min_share = 0.25,
                       .kv_share = 0.9},
    [GS_CLASS_COMPLETION] = {.ttft_ns = 1 * S,
                             .tpot_ns = 100 * MS,
                             .hard_ttft_ns = 3 * S,
                             .quantum_ns = 100 * MS,
                             .share = 0.6,
                             .min_share = 0.1,
                             .kv_share = 0.5},
    [GS_CLASS_DOCUMENT] = {.ttft_ns = 10 * S,
                           .tpot_ns = 150 * MS,
                           .quantum_ns = 100 * MS,
                           .share = 0.7,
                           .min_share = 0.1,
                           .kv_share = 0.8},
    [GS_CLASS_UTILITY] = {.tpot_ns = 200 * MS,
                          .complete_ns = 15 * S,
                          .window_max_ns = 20 * MS,
                          .quantum_ns = 100 * MS,
                          .share = 0.5,
                          .min_share = 0.05,
                          .kv_share = 0.5},
    [GS_CLASS_BACKGROUND] = {.window_max_ns = 500 * MS,
                             .quantum_ns = 200 * MS,
                             .share = 1.0,
                             .min_share = 0.03,
                             .kv_share = 0.6,
                             .seats_kept = 1},
};

void gs_class_defaults(gs_class_config out[GS_CLASS_COUNT]) {
    memcpy(out, defaults, sizeof defaults);
}

int gs_class_check(const gs_class_config *c, const char **field) {
    const char *bad = NULL;
    if (c->ttft_ns < 0 || c->tpot_ns < 0 || c->complete_ns < 0 || c->hard_ttft_ns < 0)
        bad = "targets";
    else if (c->window_min_ns < 0 || c->window_max_ns < c->window_min_ns)
        bad = "window";
    else if (c->quantum_ns < 1)
        bad = "quantum";
    else if (c->consume_ns < 0)
        bad = "consume";
    else if (!(c->share > 0.0 && c->share <= 1.0))
        bad = "share";
    else if (!(c->min_share >= 0.0 && c->min_share < 1.0))
        bad = "min_share";
    else if (!(c->kv_share > 0.0 && c->kv_share <= 1.0))
        bad = "kv_share";
    else if (!(c->kv_reserve >= 0.0 && c->kv_reserve < 1.0))
        bad = "kv_reserve";
    else if (c->seats < 0 || c->seats_kept < 0 || c->max_waiting < 0)
        bad = "seats";
    if (field)
        *field = bad;
    return bad ? GS_ERR_INVALID : GS_OK;
}
