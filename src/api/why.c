#include "api/why.h"

#include <stdio.h>

#include "base/clock.h"

/* As in GS_WAIT_MAP, of what is over. */
static const char *const waits[GS_WAIT_COUNT] = {
    [GS_WAIT_WINDOW] = "it was held for company, because a shared step costs less",
    [GS_WAIT_CLASS] = "a more urgent class was served first",
    [GS_WAIT_PERSON] = "somebody who had used less was served first",
    [GS_WAIT_KV] = "there was no room in the attention cache",
    [GS_WAIT_SEATS] = "all seats for running sequences were taken",
    [GS_WAIT_BUDGET] = "steps were full: running streams would have been late",
    [GS_WAIT_SCHEDULE] = "background work was paused by its schedule",
    [GS_WAIT_STEP] = "a step that had begun before it came had to end",
    [GS_WAIT_MODEL] = "another model had its turn",
    [GS_WAIT_PAUSED] = "it was paused",
    [GS_WAIT_PROMPT] = "another prompt was being computed",
    [GS_WAIT_WORKER] = "the machines that may answer it were busy or away",
};

typedef struct cause {
    int64_t ns;
    char text[96];
} cause;

static void consider(cause *best, int64_t ns, const char *text) {
    if (ns <= best->ns)
        return;
    best->ns = ns;
    snprintf(best->text, sizeof(best->text), "%s", text);
}

/* The class that was in most of its steps beside it. */
static const char *neighbours(const gs_explain *x) {
    int most = 0;
    for (int c = 1; c < GS_CLASS_COUNT; c++)
        if (x->steps_with[c] > x->steps_with[most])
            most = c;
    return gs_class_name((gs_class)most);
}

/* Its steps before the first token: its own part, others' parts, and what no prediction had. */
static int64_t consider_steps(cause *best, const gs_explain *x) {
    const int64_t all_ns = x->first_measured_ns;
    char text[96];
    if (all_ns <= 0)
        return 0;
    int64_t slow_ns = all_ns - x->first_predicted_ns;
    if (slow_ns < 0)
        slow_ns = 0;
    const double as_expected = (double)(all_ns - slow_ns) / (double)all_ns;
    snprintf(text, sizeof(text), "its own prompt of %d tokens was computed",
             x->n_prompt - x->n_cached);
    consider(best, (int64_t)((double)x->first_own_ns * as_expected), text);
    snprintf(text, sizeof(text), "the steps it took part in also did others' work (mostly %s)",
             neighbours(x));
    consider(best, (int64_t)((double)(all_ns - x->first_own_ns) * as_expected), text);
    consider(best, slow_ns, "steps took longer than predicted: something else uses the machine");
    return all_ns;
}

static const char *share(int64_t part, int64_t whole, char out[8]) {
    snprintf(out, 8, "%d %%", whole > 0 ? (int)((double)part / (double)whole * 100.0 + 0.5) : 0);
    return out;
}

void gs_why(const gs_explain *x, int64_t now_ns, char out[GS_WHY_BYTES]) {
    const int64_t end_ns = x->first_token_ns > 0 ? x->first_token_ns
                           : x->end_ns > 0       ? x->end_ns
                                                 : now_ns;
    const int64_t all_ns = end_ns - x->arrival_ns;
    const bool ended = x->first_token_ns > 0 || x->end_ns > 0;
    char took[32], percent[8];
    cause best = {0};
    int64_t known_ns = consider_steps(&best, x);
    for (int w = 0; w < GS_WAIT_COUNT; w++) {
        if (waits[w])
            consider(&best, x->wait_ns[w], waits[w]);
        known_ns += x->wait_ns[w];
    }
    consider(&best, all_ns - known_ns, "the request was read and turned into tokens");
    if (all_ns < GS_NS_PER_S)
        snprintf(took, sizeof(took), "%.0f ms", (double)all_ns / GS_NS_PER_MS);
    else
        snprintf(took, sizeof(took), "%.2f s", (double)all_ns / GS_NS_PER_S);
    snprintf(out, GS_WHY_BYTES, "%s %s%s, %s of it because %s.%s",
             ended ? "It took" : "It has waited for", took,
             x->first_token_ns > 0 ? " to its first token" : "",
             share(best.ns, all_ns > best.ns ? all_ns : best.ns, percent), best.text,
             x->relegated ? " It would have missed its target even alone, so others went first."
                          : "");
}
