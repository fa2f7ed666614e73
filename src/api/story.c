#include "api/story.h"

#include <math.h>

#include "api/why.h"

static void key_int(gs_jsonw *w, const char *key, int64_t v) {
    gs_jsonw_key(w, key);
    gs_jsonw_int(w, v);
}

static void key_str(gs_jsonw *w, const char *key, const char *v) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, v);
}

static void key_bool(gs_jsonw *w, const char *key, bool v) {
    gs_jsonw_key(w, key);
    gs_jsonw_bool(w, v);
}

/* Microseconds are as fine as anybody wants it. */
static void key_ms(gs_jsonw *w, const char *key, int64_t ns) {
    gs_jsonw_key(w, key);
    gs_jsonw_num(w, round((double)ns / 1e3) / 1e3);
}

static void write_waits(gs_jsonw *w, const gs_explain *x) {
    gs_jsonw_key(w, "wait_ms");
    gs_jsonw_obj(w);
    for (int i = 0; i < GS_WAIT_COUNT; i++)
        if (x->wait_ns[i] > 0)
            key_ms(w, gs_wait_name((gs_wait)i), x->wait_ns[i]);
    gs_jsonw_end_obj(w);
}

/* From when on it did or waited for what, in ms after its arrival. */
static void write_timeline(gs_jsonw *w, const gs_explain *x, int64_t end_ns) {
    gs_jsonw_key(w, "timeline");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i <= x->spans.n; i++) {
        const bool last = i == x->spans.n;
        gs_jsonw_obj(w);
        key_ms(w, "at_ms", last ? end_ns - x->arrival_ns : x->spans.at_us[i] * 1000LL);
        key_str(w, "what", !last ? gs_span_name(x->spans.what[i]) : x->end_ns > 0 ? "end" : "now");
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_arr(w);
}

static void write_company(gs_jsonw *w, const gs_explain *x) {
    gs_jsonw_key(w, "steps_with");
    gs_jsonw_obj(w);
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        if (x->steps_with[c] > 0)
            key_int(w, gs_class_name((gs_class)c), x->steps_with[c]);
    gs_jsonw_end_obj(w);
}

void gs_story_members(gs_jsonw *w, int32_t index, const gs_explain *x, int64_t now_ns) {
    const int64_t end_ns = x->end_ns > 0 ? x->end_ns : now_ns;
    key_int(w, "index", index);
    key_str(w, "state", x->end_ns > 0 ? "done" : x->running ? "running" : "waiting");
    key_str(w, "class", gs_class_name(x->cls));
    if (x->worker)
        key_str(w, "worker", x->worker);
    if (x->worker && x->placed)
        key_str(w, "placed", x->placed);
    if (x->asked_cls != x->cls)
        key_str(w, "asked_class", gs_class_name(x->asked_cls));
    if (x->position > 0)
        key_int(w, "position", x->position);
    if (x->end_ns == 0 && x->wait_now != GS_WAIT_NONE) {
        key_str(w, "waiting_for", gs_wait_name(x->wait_now));
        key_str(w, "why", gs_wait_sentence(x->wait_now));
    } else {
        char why[GS_WHY_BYTES];
        gs_why(x, now_ns, why);
        key_str(w, "why", why);
    }
    write_waits(w, x);
    key_ms(w, "queued_ms", (x->first_step_ns > 0 ? x->first_step_ns : end_ns) - x->arrival_ns);
    if (x->first_token_ns > 0)
        key_ms(w, "ttft_ms", x->first_token_ns - x->arrival_ns);
    key_ms(w, "total_ms", end_ns - x->arrival_ns);
    key_int(w, "prompt_tokens", x->n_prompt);
    key_int(w, "cached_tokens", x->n_cached);
    key_int(w, "output_tokens", x->n_output);
    key_int(w, "max_output_tokens", x->max_output);
    key_int(w, "chunks", x->n_chunks);
    key_int(w, "steps", x->n_steps);
    write_company(w, x);
    key_int(w, "preempted", x->n_preempted);
    key_int(w, "suspended", x->n_suspended);
    key_bool(w, "paused", x->paused);
    key_bool(w, "relegated", x->relegated);
    key_bool(w, "late", x->late);
    gs_jsonw_key(w, "predicted_ttft_ms");
    if (x->predicted_ttft_ns >= 0)
        gs_jsonw_num(w, round((double)x->predicted_ttft_ns / 1e3) / 1e3);
    else
        gs_jsonw_null(w);
    key_ms(w, "steps_predicted_ms", x->predicted_ns);
    key_ms(w, "steps_measured_ms", x->measured_ns);
    key_ms(w, "charged_ms", x->charged_ns);
    write_timeline(w, x, end_ns);
}

void gs_story_write(gs_jsonw *w, const char *id, const char *model, int32_t index,
                    const gs_explain *x, int64_t now_ns) {
    gs_jsonw_obj(w);
    if (id)
        key_str(w, "id", id);
    key_str(w, "model", model);
    gs_story_members(w, index, x, now_ns);
    gs_jsonw_end_obj(w);
}
