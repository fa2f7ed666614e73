#include "metrics/metrics.h"

#include <stddef.h>
#include <string.h>

#define NS 1e-9

static const double FIRST_BOUNDS[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                      0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                      20,    40,    80,   160,  640,  2560};
static const double TOKEN_BOUNDS[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                      0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5,
                                      5,     7.5,    10,    20,   40,    80};
static const double REQUEST_BOUNDS[] = {0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1,    1.5,
                                        2,    2.5,  5,   10,  15,  20,  30,   40,
                                        50,   60,   120, 240, 480, 960, 1920, 7680};
static const double COUNT_BOUNDS[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                      1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};

const gs_hist_shape gs_hist_shapes[GS_HIST_COUNT] = {
#define X(id, b) {b, (int)(sizeof(b) / sizeof((b)[0]))},
    GS_HIST_MAP(X)
#undef X
};

static const char *const finish_names[GS_FINISH_COUNT] = {
#define X(id, text) text,
    GS_FINISH_MAP(X)
#undef X
};

static const int codes[GS_CODE_COUNT] = {
#define X(code) code,
    GS_CODE_MAP(X)
#undef X
};

const char *gs_finish_name(gs_finish f) {
    return (int)f >= 0 && f < GS_FINISH_COUNT ? finish_names[f] : "?";
}

int gs_code_at(int i) {
    return i >= 0 && i < GS_CODE_COUNT ? codes[i] : 0;
}

void gs_metrics_init(gs_metrics *m, int32_t max_persons, int64_t minute_ns, int64_t now_ns) {
    memset(m, 0, sizeof(*m));
    m->persons_off = max_persons == 0;
    m->max_persons = max_persons < GS_METRICS_PLACES - 2 ? max_persons : GS_METRICS_PLACES - 2;
    m->n_places = 1;
    m->minute_ns = minute_ns;
    m->minute = now_ns / minute_ns;
}

void gs_metrics_init_further(gs_metrics *m, gs_metrics *first) {
    memset(m, 0, sizeof(*m));
    m->first = first;
}

static gs_metrics *whole(gs_metrics *m) {
    return m->first ? m->first : m;
}

/* The first ones that come get a place of their own. */
static int place_of(gs_metrics *m, uint32_t person) {
    if (person == 0 || m->persons_off)
        return 0;
    if (person >= sizeof(m->place))
        return GS_METRICS_OTHERS;
    if (m->place[person] == 0) {
        const bool full = m->n_places > m->max_persons;
        m->place[person] = (uint8_t)(full ? GS_METRICS_OTHERS : m->n_places++);
        if (!full)
            m->person_at[m->place[person]] = person;
    }
    return m->place[person];
}

static void add(gs_metrics *m, gs_hist_id id, uint32_t person, gs_class c, double v) {
    gs_hist_add(&m->hist[id][place_of(whole(m), person)][c], &gs_hist_shapes[id], v);
}

static gs_minute_class *now_of(gs_metrics *m, gs_class c) {
    gs_metrics *w = whole(m);
    return &w->minutes[w->minute % GS_METRICS_MINUTES][c];
}

void gs_metrics_first_token(gs_metrics *m, uint32_t person, gs_class c, int64_t ns) {
    add(m, GS_HIST_TTFT, person, c, (double)ns * NS);
    gs_hist_add(&now_of(m, c)->ttft, &gs_hist_shapes[GS_HIST_TTFT], (double)ns * NS);
}

void gs_metrics_next_token(gs_metrics *m, uint32_t person, gs_class c, int64_t ns) {
    add(m, GS_HIST_ITL, person, c, (double)ns * NS);
    gs_hist_add(&now_of(m, c)->itl, &gs_hist_shapes[GS_HIST_ITL], (double)ns * NS);
}

void gs_metrics_ended(gs_metrics *m, gs_finish how, const gs_explain *x) {
    const gs_class c = x->cls;
    gs_minute_class *now = now_of(m, c);
    m->finished[how][c]++;
    now->n_ended++;
    now->n_prompt += (uint64_t)x->n_prompt;
    now->n_output += (uint64_t)x->n_output;
    if (how == GS_FINISH_ABORT || how == GS_FINISH_ERROR)
        return; /* what was broken off says nothing of how long things take */
    const int64_t first_ns = x->first_token_ns > 0 ? x->first_token_ns : x->end_ns;
    add(m, GS_HIST_E2E, x->person, c, (double)(x->end_ns - x->arrival_ns) * NS);
    add(m, GS_HIST_PROMPT_TOKENS, x->person, c, x->n_prompt);
    add(m, GS_HIST_OUTPUT_TOKENS, x->person, c, x->n_output);
    if (x->first_step_ns == 0)
        return;
    add(m, GS_HIST_QUEUE, x->person, c, (double)(x->first_step_ns - x->arrival_ns) * NS);
    add(m, GS_HIST_PREFILL, x->person, c, (double)(first_ns - x->first_step_ns) * NS);
    add(m, GS_HIST_DECODE, x->person, c, (double)(x->end_ns - first_ns) * NS);
}

void gs_metrics_answered(gs_metrics *m, gs_class c, int status) {
    int i = 0;
    while (i < GS_CODE_COUNT - 1 && codes[i] != status)
        i++;
    m->codes[i][c]++;
}

bool gs_metrics_tick(gs_metrics *m, const gs_engine_stats *s, int64_t now_ns) {
    const int64_t minute = now_ns / m->minute_ns;
    if (minute <= m->minute)
        return false;
    memcpy(m->last, m->minutes[m->minute % GS_METRICS_MINUTES], sizeof(m->last));
    for (int64_t i = 1; i <= minute - m->minute && i <= GS_METRICS_MINUTES; i++) {
        const int64_t at = (m->minute + i) % GS_METRICS_MINUTES;
        memset(m->minutes[at], 0, sizeof(m->minutes[0]));
        memcpy(m->person_ns[at], s->person_ns, sizeof(m->person_ns[0]));
    }
    m->minute = minute;
    return true;
}

void gs_metrics_recent(const gs_metrics *m, gs_class c, gs_minute_class *out) {
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < GS_METRICS_MINUTES; i++) {
        const gs_minute_class *k = &m->minutes[i][c];
        gs_hist_merge(&out->ttft, &k->ttft);
        gs_hist_merge(&out->itl, &k->itl);
        out->n_ended += k->n_ended;
        out->n_prompt += k->n_prompt;
        out->n_output += k->n_output;
    }
}

void gs_metrics_persons(const gs_metrics *m, const gs_engine_stats *s,
                        int64_t out[GS_ENGINE_PERSONS]) {
    const int64_t *then = m->person_ns[(m->minute + 1) % GS_METRICS_MINUTES];
    for (int i = 0; i < GS_ENGINE_PERSONS; i++)
        out[i] = s->person_ns[i] - then[i];
}

double gs_metrics_jain(const gs_metrics *m, const gs_engine_stats *s) {
    int64_t ns[GS_ENGINE_PERSONS];
    double x[GS_ENGINE_PERSONS];
    int32_t n = 0;
    gs_metrics_persons(m, s, ns);
    for (int i = 0; i < GS_ENGINE_PERSONS; i++)
        if (ns[i] > 0)
            x[n++] = (double)ns[i] / (m->weight[i] > 0.0 ? m->weight[i] : 1.0);
    return gs_jain(x, n);
}

double gs_jain(const double *x, int32_t n) {
    double sum = 0.0, squares = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += x[i];
        squares += x[i] * x[i];
    }
    return squares > 0.0 ? sum * sum / ((double)n * squares) : 1.0;
}
