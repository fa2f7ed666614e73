#include "sched/sim_rules.h"

#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"
#include "sched/policy.h"

#define MS 1000000LL
#define S  1000000000LL

enum { MAX_REQUESTS = 8192 };
enum { HOUSE = 1, ANA, BEN, CLEO, DAN, N_PERSONS };

typedef struct scene {
    gs_sim_request *q; /* [MAX_REQUESTS] */
    int32_t n;
    gs_rng rng;
    gs_sim_device device;
} scene;

/* One request at t_ns with a prompt of its own. */
static gs_sim_request *add(scene *c, int64_t t_ns, gs_class cls, uint32_t person, int32_t n_prompt,
                           int32_t n_output) {
    GS_ASSERT(c->n < MAX_REQUESTS);
    gs_sim_request *q = &c->q[c->n++];
    *q = (gs_sim_request){.t_ns = t_ns,
                          .after = -1,
                          .prefix_of = -1,
                          .cls = cls,
                          .class_fixed = true,
                          .person = person,
                          .scope = person,
                          .n_prompt = n_prompt,
                          .n_output = n_output};
    return q;
}

static int32_t between(scene *c, int32_t low, int32_t high) {
    return low + (int32_t)gs_rng_below(&c->rng, (uint64_t)high - (uint64_t)low + 1);
}

/* Spoken commands on the home's shared instructions, every period_ns. */
static void add_voice(scene *c, int64_t from_ns, int64_t to_ns, int64_t period_ns) {
    for (int64_t t = from_ns; t < to_ns; t += period_ns) {
        gs_sim_request *q = add(c, t + between(c, 0, 900) * MS, GS_CLASS_VOICE,
                                (uint32_t)between(c, ANA, DAN), 1000 + between(c, 20, 60), 30);
        q->n_prefix = 1000;
        q->prefix_key = 0x766f696365;
        q->scope = 99; /* the home's */
    }
}

static void scene_classes(scene *c) {
    for (int i = 0; i < 60; i++)
        add(c, i * S, GS_CLASS_DOCUMENT, (uint32_t)(BEN + i % 3), between(c, 1000, 3000), 100);
    add_voice(c, 3 * S, 60 * S, 3 * S);
}

static void scene_horizon(scene *c) {
    add(c, 0, GS_CLASS_CHAT, ANA, 100, 1500);
    for (int i = 1; i < 9; i++)
        add(c, i * 2 * S, GS_CLASS_DOCUMENT, BEN, 3000, 20);
}

/* An app embeds search words one request at a time: bursts, a second apart. */
static void scene_windows(scene *c) {
    for (int i = 0; i < 200; i++)
        for (int k = 0; k < 8; k++)
            add(c, i * S + k * 2 * MS, GS_CLASS_BACKGROUND, HOUSE, between(c, 2, 4), 1)->n_texts =
                1;
}

static void scene_fairness(scene *c) {
    for (int i = 0; i < 100; i++)
        add(c, 0, GS_CLASS_CHAT, BEN, between(c, 400, 800), between(c, 150, 250));
    for (int i = 0; i < 8; i++)
        add(c, (1 + 4 * i) * S, GS_CLASS_CHAT, ANA, 150, 60);
}

/* Long chats fill pool and seats. */
static void scene_reserve(scene *c) {
    c->device.n_blocks = 384;
    c->device.max_seqs = 8;
    for (int i = 0; i < 40; i++)
        add(c, 0, GS_CLASS_CHAT, (uint32_t)(BEN + i % 3), between(c, 900, 1100), 400);
    add_voice(c, 3 * S, 60 * S, 3 * S);
}

static void scene_safepoints(scene *c) {
    for (int i = 0; i < 400; i++)
        add(c, 8 * S, GS_CLASS_BACKGROUND, HOUSE, between(c, 256, 512), 1)->n_texts = 1;
    add_voice(c, 0, 160 * S, 8 * S);
}

typedef enum metric {
    METRIC_VOICE_TTFT_P95,
    METRIC_VOICE_TTFT_P50,
    METRIC_CHAT_GAP_P99,
    METRIC_BUSY,
    METRIC_ANA_TOTAL,
} metric;

static const char *const metric_names[] = {
    "voice TTFT p95, s",
    "voice TTFT p50, s",
    "chat token gap p99, s",
    "device time for 1,000 texts, s",
    "the other person's mean time to completion, s",
};

typedef struct row {
    gs_rule rule;
    const char *name, *device, *scenario;
    metric metric;
    void (*fill)(scene *c);
    int64_t end_ns;
} row;

static const row rows[] = {
    {GS_RULE_CLASSES, "class order", "xeon2-135m",
     "spoken commands while three people hand in a document every second", METRIC_VOICE_TTFT_P95,
     scene_classes, 70 * S},
    {GS_RULE_HORIZON, "horizon", "xeon2-135m",
     "a chat streams while documents of 3,000 tokens arrive", METRIC_CHAT_GAP_P99, scene_horizon,
     0},
    {GS_RULE_WINDOWS, "windows", "xeon2-1.5b",
     "an app embeds search words, eight requests 2 ms apart, every second", METRIC_BUSY,
     scene_windows, 0},
    {GS_RULE_FAIRNESS, "fairness", "xeon2-135m",
     "a script has 100 chats open, another person asks now and then", METRIC_ANA_TOTAL,
     scene_fairness, 60 * S},
    {GS_RULE_RESERVE, "reserve", "xeon2-135m",
     "long chats fill the attention cache and all seats, somebody speaks", METRIC_VOICE_TTFT_P95,
     scene_reserve, 70 * S},
    {GS_RULE_SAFEPOINTS, "safepoints", "xeon2-1.5b",
     "an index is built in large steps, somebody speaks", METRIC_VOICE_TTFT_P50, scene_safepoints,
     170 * S},
};

int gs_sim_n_rules(void) {
    return (int)(sizeof rows / sizeof rows[0]);
}

static double value_of(const gs_sim *m, const scene *c, metric what, const gs_sim_report *rep) {
    const gs_sim_outcome *o = gs_sim_outcomes(m);
    double sum = 0.0;
    int n = 0;
    switch (what) {
    case METRIC_VOICE_TTFT_P95:
        return (double)rep->cls[GS_CLASS_VOICE].ttft_p95_ns / 1e9;
    case METRIC_VOICE_TTFT_P50:
        return (double)rep->cls[GS_CLASS_VOICE].ttft_p50_ns / 1e9;
    case METRIC_CHAT_GAP_P99:
        return (double)rep->cls[GS_CLASS_CHAT].gap_p99_ns / 1e9;
    case METRIC_BUSY:
        return (double)rep->stats.busy_ns / 1e6 / c->n;
    case METRIC_ANA_TOTAL:
        for (int32_t i = 0; i < c->n; i++)
            if (c->q[i].person == ANA) { /* what has not ended yet counts until now */
                const int64_t end_ns = o[i].state == GS_SIM_DONE ? o[i].end_ns : rep->end_ns;
                sum += (double)(end_ns - o[i].start_ns) / 1e9;
                n++;
            }
    }
    return n > 0 ? sum / n : 0.0;
}

static int run_once(const scene *c, const row *w, uint64_t seed, uint32_t rules_off, double *out,
                    char *err, size_t errlen) {
    gs_slo_config slo;
    gs_slo_defaults(&slo);
    slo.rules_off = rules_off;
    const gs_sim_config cfg = {.device = c->device,
                               .policy = &gs_policy_slo,
                               .slo = &slo,
                               .n_persons = N_PERSONS,
                               .max_waiting = MAX_REQUESTS,
                               .max_tries = 1,
                               .end_ns = w->end_ns,
                               .seed = seed};
    gs_sim *m = NULL;
    gs_sim_report rep;
    int rc = gs_sim_create(&cfg, c->q, c->n, &m);
    if (rc == GS_OK)
        rc = gs_sim_run(m, err, errlen);
    if (rc == GS_OK)
        rc = gs_sim_report_create(m, &rep);
    if (rc == GS_OK)
        *out = value_of(m, c, w->metric, &rep);
    gs_sim_free(m);
    return rc;
}

static gs_sim_request *alloc_requests(void) {
    return gs_calloc(MAX_REQUESTS, sizeof(gs_sim_request));
}

int gs_sim_rule_run(int i, uint64_t seed, gs_sim_rule *out, char *err, size_t errlen) {
    if (i < 0 || i >= gs_sim_n_rules())
        return gs_fail(err, errlen, GS_ERR_NOT_FOUND, "there is no such rule");
    const row *w = &rows[i];
    scene c = {.q = alloc_requests()};
    if (!c.q)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    gs_rng_seed(&c.rng, seed);
    c.device = *gs_sim_device_find(w->device);
    w->fill(&c);
    *out = (gs_sim_rule){.rule = w->rule,
                         .name = w->name,
                         .scenario = w->scenario,
                         .device = w->device,
                         .metric = metric_names[w->metric]};
    int rc = run_once(&c, w, seed, 0, &out->with, err, errlen);
    if (rc == GS_OK)
        rc = run_once(&c, w, seed, (uint32_t)w->rule, &out->without, err, errlen);
    gs_free(c.q);
    return rc;
}
