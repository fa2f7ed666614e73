/*
 * The household scenarios of bench/family/trace.py: the same sources, rates and lengths. Random
 * numbers differ, so a seed here is another evening than the same seed there.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"
#include "load/trace.h"

#define NOMINAL_FIRST_TOKEN_S 1.0
#define NOMINAL_TOKEN_S       0.05
#define PI                    3.14159265358979323846

static const char *const family[] = {"ana", "ben", "cleo", "dan"};
static const char *const parents[] = {"ana", "ben"};
static const char *const children[] = {"cleo", "dan"};
static const char *const only_ana[] = {"ana"};

typedef struct people {
    const char *const *names;
    int n;
} people;
#define PEOPLE(list) ((people){list, (int)(sizeof list / sizeof list[0])})

/* Instructions that every request of an app begins with, in tokens. */
static const struct {
    const char *name;
    int32_t tokens;
} prefixes[] = {
    {"voice_home", 3000}, {"chat_app", 200},  {"title_task", 120},
    {"tag_task", 300},    {"mail_task", 250}, {"camera_task", 150},
};

typedef struct builder {
    gs_trace *t;
    const gs_scenario_options *o;
    double duration_s;
    int32_t counts[32]; /* ids so far of each kind */
    const char *kinds[32];
    int n_kinds, n_sources;
    bool failed; /* out of memory, or too many requests */
} builder;

/* Every source has numbers of its own: one more leaves the others as they are. */
static gs_rng source(builder *b, const char *name, int worker) {
    uint64_t h = b->o->seed * 0x9e3779b97f4a7c15u + (uint64_t)worker;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211u;
    gs_rng r;
    gs_rng_seed(&r, h);
    return r;
}

static double uniform(gs_rng *r, double low, double high) {
    return low + (high - low) * gs_rng_unit(r);
}

static int32_t between(gs_rng *r, int32_t low, int32_t high) {
    return low + (int32_t)gs_rng_below(r, (uint64_t)high - (uint64_t)low + 1);
}

static double gauss(gs_rng *r) {
    const double u = 1.0 - gs_rng_unit(r);
    return sqrt(-2.0 * log(u)) * cos(2.0 * PI * gs_rng_unit(r));
}

static double lognormal(gs_rng *r, double median, double sigma, double low, double high) {
    const double x = median * exp(sigma * gauss(r));
    return x < low ? low : x > high ? high : x;
}

/* A Poisson source: while (arrives(&a)) runs once for each arrival until the end of the trace. */
typedef struct arrivals {
    builder *b;
    gs_rng *r;
    double per_hour;
    double t; /* seconds; of the newest one */
} arrivals;

static bool arrives(arrivals *a) {
    a->t += -log(1.0 - gs_rng_unit(a->r)) * 3600.0 / (a->per_hour * a->b->o->scale);
    return a->t < a->b->duration_s && !a->b->failed;
}

static const char *pick(gs_rng *r, people p) {
    return p.names[gs_rng_below(r, (uint64_t)p.n)];
}

static int32_t scaled(const builder *b, double tokens) {
    const double n = round(tokens * b->o->tokens_scale);
    return n < 4 ? 4 : n > 900000 ? 900000 : (int32_t)n;
}

static int32_t prefix_tokens(const builder *b, const char *name) {
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (name && strcmp(prefixes[i].name, name) == 0)
            return scaled(b, prefixes[i].tokens);
    return 0;
}

static int32_t next_number(builder *b, const char *kind) {
    for (int i = 0; i < b->n_kinds; i++)
        if (strcmp(b->kinds[i], kind) == 0)
            return ++b->counts[i];
    b->kinds[b->n_kinds] = kind;
    return b->counts[b->n_kinds++] = 1;
}

/* One request as its source describes it; lengths before scaling. */
typedef struct wish {
    const char *kind, *person;
    gs_class cls;
    double n_new, n_output;
    double t;
    int32_t after; /* or NONE */
    double think;
    gs_trace_api api;
    const char *prefix, *talk;
    bool whole; /* not streamed */
    int32_t n_texts;
    double cancel_after, deadline;
} wish;

#define NONE (-1)

/* The request's index, or NONE: failed. */
static int32_t add(builder *b, const wish *x) {
    gs_trace_request *q = b->failed ? NULL : gs_trace_add(b->t, x->kind, next_number(b, x->kind));
    const int32_t person = q ? gs_trace_person(b->t, x->person) : -1;
    if (person < 0) {
        b->failed = true;
        return NONE;
    }
    const gs_trace_request *before = x->after >= 0 ? &b->t->requests[x->after] : NULL;
    const char *prefix = x->prefix;
    q->name = person;
    q->cls = x->cls;
    q->api = x->api;
    q->t_s = x->t;
    q->n_prefix = prefix_tokens(b, prefix);
    if (before) {
        q->t_s =
            before->t_s + NOMINAL_FIRST_TOKEN_S + NOMINAL_TOKEN_S * before->n_output + x->think;
        q->after = x->after;
        q->think_s = x->think;
    }
    if (before && x->talk && before->conversation) {
        q->turn = before->turn + 1;
        prefix = x->talk;
        q->n_prefix = before->n_prompt + before->n_output;
    }
    q->n_prompt = q->n_prefix + scaled(b, x->n_new);
    q->n_output = x->api == GS_TRACE_EMBEDDINGS ? 0 : scaled(b, x->n_output);
    q->n_texts = x->n_texts;
    q->stream = !x->whole;
    q->cancel_after_s = x->cancel_after;
    q->deadline_s = x->deadline;
    q->shared_prefix = prefix ? gs_strdup(prefix) : NULL;
    q->conversation = x->talk ? gs_strdup(x->talk) : NULL;
    if ((prefix && !q->shared_prefix) || (x->talk && !q->conversation))
        b->failed = true;
    return b->t->n - 1;
}

static void talk_name(builder *b, const char *kind, char out[48]) {
    snprintf(out, 48, "%s-%d", kind, next_number(b, kind));
}

/* ---- sources: what each is, is said in bench/family/trace.py ---------------------------------*/

static void voice(builder *b, double turns_per_hour, people p) {
    gs_rng r = source(b, "voice", 0);
    arrivals a = {b, &r, turns_per_hour / 2, 0};
    while (arrives(&a)) {
        char talk[48];
        talk_name(b, "voice-talk", talk);
        wish x = {.kind = "voice",
                  .person = pick(&r, p),
                  .cls = GS_CLASS_VOICE,
                  .n_new = between(&r, 20, 80),
                  .n_output = between(&r, 10, 60),
                  .t = a.t,
                  .after = NONE,
                  .prefix = "voice_home",
                  .talk = talk};
        x.after = add(b, &x);
        x.n_new = between(&r, 10, 40);
        x.n_output = between(&r, 10, 60);
        x.think = lognormal(&r, 6, 0.5, 1, 60);
        x.prefix = NULL;
        add(b, &x);
    }
}

static void barge_ins(builder *b, double per_hour, people p) {
    gs_rng r = source(b, "barge_in", 0);
    arrivals a = {b, &r, per_hour, 0};
    while (arrives(&a)) {
        wish x = {.kind = "voice",
                  .person = pick(&r, p),
                  .cls = GS_CLASS_VOICE,
                  .n_new = between(&r, 20, 80),
                  .n_output = 120,
                  .t = a.t,
                  .after = NONE,
                  .prefix = "voice_home",
                  .cancel_after = uniform(&r, 0.1, 2)};
        x.after = add(b, &x);
        x.n_new = between(&r, 20, 80);
        x.n_output = between(&r, 10, 60);
        x.think = 0.3;
        x.cancel_after = 0;
        add(b, &x);
    }
}

static void small_tasks(builder *b, const char *person, int32_t turn, bool first) {
    static const double outputs[] = {12, 30, 60};
    for (int i = first ? 0 : 2; i < 3; i++)
        add(b, &(wish){.kind = "utility",
                       .person = person,
                       .cls = GS_CLASS_UTILITY,
                       .n_new = 300,
                       .n_output = outputs[i],
                       .after = turn,
                       .prefix = "title_task",
                       .whole = true});
}

static void chat(builder *b, double sessions_per_hour, people p, double think, bool tasks) {
    gs_rng r = source(b, "chat", 0);
    arrivals a = {b, &r, sessions_per_hour, 0};
    while (arrives(&a)) {
        char talk[48];
        talk_name(b, "chat-talk", talk);
        const char *person = pick(&r, p);
        const int32_t n = between(&r, 2, 8);
        int32_t turn = NONE;
        for (int32_t i = 0; i < n && !b->failed; i++) {
            wish x = {.kind = "chat",
                      .person = person,
                      .cls = GS_CLASS_CHAT,
                      .t = a.t,
                      .after = turn,
                      .talk = talk,
                      .prefix = i == 0 ? "chat_app" : NULL};
            x.n_output = lognormal(&r, 220, 0.7, 30, 800);
            x.n_new = i == 0 ? lognormal(&r, 70, 0.7, 10, 600) : lognormal(&r, 50, 0.7, 8, 400);
            x.think = i == 0 ? 0 : lognormal(&r, think, 0.8, 5, 300);
            turn = add(b, &x);
            if (tasks && turn >= 0)
                small_tasks(b, person, turn, i == 0);
            if (turn >= 0 && b->t->requests[turn].n_prompt > scaled(b, 4096))
                break;
        }
    }
}

static void document(builder *b, double per_hour, people p, double median, double sigma) {
    gs_rng r = source(b, "document", 0);
    arrivals a = {b, &r, per_hour, 0};
    while (arrives(&a)) {
        char talk[48];
        talk_name(b, "document-talk", talk);
        wish x = {.kind = "document",
                  .person = pick(&r, p),
                  .cls = GS_CLASS_DOCUMENT,
                  .n_new = lognormal(&r, median, sigma, 500, 20000),
                  .n_output = between(&r, 150, 300),
                  .t = a.t,
                  .after = NONE,
                  .talk = talk};
        x.after = add(b, &x);
        for (int32_t n = between(&r, 1, 2); n > 0; n--) {
            x.n_new = between(&r, 20, 80);
            x.n_output = between(&r, 150, 300);
            x.think = lognormal(&r, 30, 0.6, 5, 200);
            x.after = add(b, &x);
        }
    }
}

static void camera(builder *b, double per_hour) {
    gs_rng r = source(b, "camera", 0);
    arrivals a = {b, &r, per_hour, 0};
    while (arrives(&a))
        add(b, &(wish){.kind = "camera",
                       .person = "house",
                       .cls = GS_CLASS_BACKGROUND,
                       .n_new = 450,
                       .n_output = between(&r, 50, 100),
                       .t = a.t,
                       .after = NONE,
                       .prefix = "camera_task",
                       .whole = true,
                       .deadline = 25});
}

static void code(builder *b, double per_hour, const char *person) {
    gs_rng r = source(b, "code", 0);
    arrivals a = {b, &r, per_hour, 0};
    while (arrives(&a)) {
        const double cancel = gs_rng_unit(&r) < 0.5 ? uniform(&r, 0.2, 1.0) : 0.0;
        add(b, &(wish){.kind = "code",
                       .person = person,
                       .cls = GS_CLASS_UTILITY,
                       .n_new = between(&r, 500, 2000),
                       .n_output = between(&r, 10, 50),
                       .t = a.t,
                       .after = NONE,
                       .api = GS_TRACE_COMPLETIONS,
                       .cancel_after = cancel});
    }
}

static void tagging(builder *b, double jobs_per_hour) {
    gs_rng r = source(b, "tagging", 0);
    arrivals a = {b, &r, jobs_per_hour, 0};
    while (arrives(&a)) {
        int32_t item = NONE;
        for (int i = 0; i < 6; i++)
            item = add(b, &(wish){.kind = "tagging",
                                  .person = "house",
                                  .cls = GS_CLASS_BACKGROUND,
                                  .n_new = between(&r, 700, 1700),
                                  .n_output = between(&r, 50, 150),
                                  .t = a.t,
                                  .after = item,
                                  .prefix = "tag_task",
                                  .whole = true,
                                  .deadline = 30});
    }
}

static void embedding_drip(builder *b, double per_hour) {
    gs_rng r = source(b, "embedding_drip", 0);
    arrivals a = {b, &r, per_hour, 0};
    while (arrives(&a))
        add(b, &(wish){.kind = "embed",
                       .person = "house",
                       .cls = GS_CLASS_BACKGROUND,
                       .n_new = between(&r, 256, 512),
                       .t = a.t,
                       .after = NONE,
                       .api = GS_TRACE_EMBEDDINGS,
                       .whole = true,
                       .n_texts = between(&r, 4, 16),
                       .deadline = 120});
}

/* Work that waits: each worker does its share one after another. */
typedef void (*backlog_fn)(gs_rng *r, wish *x);

static void backlog(builder *b, const char *name, int n_workers, int32_t count, backlog_fn make) {
    for (int w = 0; w < n_workers; w++) {
        gs_rng r = source(b, name, w);
        int32_t item = NONE;
        for (int32_t i = 0; i < count / n_workers && !b->failed; i++) {
            wish x = {.kind = name,
                      .person = "house",
                      .cls = GS_CLASS_BACKGROUND,
                      .t = 0.1 * w,
                      .after = item};
            make(&r, &x);
            item = add(b, &x);
            if (item >= 0 && b->t->requests[item].t_s >= b->duration_s)
                break;
        }
    }
}

static void chunks(gs_rng *r, wish *x) {
    x->n_new = between(r, 256, 512);
    x->api = GS_TRACE_EMBEDDINGS;
    x->whole = true;
    x->n_texts = between(r, 16, 64);
    x->deadline = 120;
}

static void mails(gs_rng *r, wish *x) {
    x->n_new = lognormal(r, 800, 0.5, 400, 2000);
    x->n_output = between(r, 60, 120);
    x->prefix = "mail_task";
    x->whole = true;
    x->deadline = 280;
}

static void script(gs_rng *r, wish *x) {
    x->person = strcmp(x->kind, "script-ben") == 0 ? "ben" : "dan";
    x->cls = GS_CLASS_CHAT;
    x->n_new = lognormal(r, 600, 0.4, 200, 1500);
    x->n_output = lognormal(r, 200, 0.4, 50, 500);
}

/* ---- scenarios -------------------------------------------------------------------------------*/

static void evening_peak(builder *b) {
    voice(b, 12, PEOPLE(family));
    chat(b, 3, PEOPLE(family), 45, true);
    document(b, 2, PEOPLE(family), 4000, 0.843);
    tagging(b, 4);
    camera(b, 20);
    embedding_drip(b, 12);
}

static void voice_over_document(builder *b) {
    voice(b, 60, PEOPLE(family));
    document(b, 12, PEOPLE(family), 16000, 0.2);
}

static void quiet_night(builder *b) {
    backlog(b, "embed", 1, 40000 / 40, chunks);
    backlog(b, "mail", 2, 500, mails);
    voice(b, 4, PEOPLE(family));
    chat(b, 1, PEOPLE(family), 45, true);
}

static void homework_rush(builder *b) {
    chat(b, 12, PEOPLE(children), 20, true);
    document(b, 6, PEOPLE(children), 4000, 0.843);
    code(b, 200, "dan");
    voice(b, 12, PEOPLE(parents));
}

static void index_the_photos(builder *b) {
    backlog(b, "embed", 4, 5000 / 40, chunks);
    chat(b, 12, PEOPLE(parents), 45, true);
}

static void two_heavy_users(builder *b) {
    backlog(b, "script-ben", 4, 120, script);
    backlog(b, "script-dan", 2, 60, script);
    chat(b, 12, PEOPLE(only_ana), 45, false);
}

static void summarise_mail(builder *b) {
    backlog(b, "mail", 4, 200, mails);
    voice(b, 12, PEOPLE(family));
}

static void barge_in(builder *b) {
    barge_ins(b, 1200, PEOPLE(family));
    chat(b, 6, PEOPLE(family), 45, true);
    tagging(b, 6);
}

static const struct {
    const char *name;
    double duration_s;
    void (*fill)(builder *b);
    const char *about;
} scenarios[] = {
    {"evening_peak", 3600, evening_peak,
     "four people do everything a little, automations run along"},
    {"voice_over_document", 600, voice_over_document,
     "spoken commands while long texts are explained"},
    {"quiet_night", 3600, quiet_night,
     "indexing and summaries without end, now and then somebody is awake"},
    {"homework_rush", 1800, homework_rush, "two children, long texts, code completion"},
    {"index_the_photos", 900, index_the_photos, "an index is built beside two chats"},
    {"two_heavy_users", 600, two_heavy_users,
     "two scripts keep the server busy, a third person types"},
    {"summarise_mail", 900, summarise_mail, "200 mails by 4 workers beside a little voice"},
    {"barge_in", 600, barge_in, "twenty interrupted spoken commands a minute"},
};

#define N_SCENARIOS ((int)(sizeof scenarios / sizeof scenarios[0]))

const char *gs_scenario_name(int i) {
    return i >= 0 && i < N_SCENARIOS ? scenarios[i].name : NULL;
}

const char *gs_scenario_about(int i) {
    return i >= 0 && i < N_SCENARIOS ? scenarios[i].about : NULL;
}

/* By nominal start, and where that is the same as they were made. */
typedef struct place {
    double t_s;
    int32_t from;
} place;

static int by_start(const void *a, const void *b) {
    const place *x = a, *y = b;
    return x->t_s != y->t_s ? (x->t_s > y->t_s) - (x->t_s < y->t_s)
                            : (x->from > y->from) - (x->from < y->from);
}

static int sort_trace(gs_trace *t) {
    const size_t n = t->n > 0 ? (size_t)t->n : 1;
    place *order = gs_array(n, sizeof *order);
    int32_t *to = gs_array(n, sizeof *to);
    gs_trace_request *sorted = gs_array(n, sizeof *sorted);
    if (order && to && sorted) {
        for (int32_t i = 0; i < t->n; i++)
            order[i] = (place){t->requests[i].t_s, i};
        qsort(order, (size_t)t->n, sizeof *order, by_start);
        for (int32_t i = 0; i < t->n; i++) {
            to[order[i].from] = i;
            sorted[i] = t->requests[order[i].from];
        }
        for (int32_t i = 0; i < t->n; i++) {
            if (sorted[i].after >= 0)
                sorted[i].after = to[sorted[i].after];
            t->requests[i] = sorted[i];
        }
    }
    const int rc = order && to && sorted ? 0 : GS_ERR_NOMEM;
    gs_free(order);
    gs_free(to);
    gs_free(sorted);
    return rc;
}

/* What begins after the end goes; its predecessors begin before it. */
static int cut_trace(gs_trace *t, double duration_s) {
    bool *keep = gs_array(t->n > 0 ? (size_t)t->n : 1, sizeof *keep);
    if (!keep)
        return GS_ERR_NOMEM;
    for (int32_t i = 0; i < t->n; i++)
        keep[i] = t->requests[i].t_s < duration_s;
    gs_trace_filter(t, keep);
    gs_free(keep);
    return 0;
}

int gs_scenario_generate(const char *name, const gs_scenario_options *o, gs_trace *t, char *err,
                         size_t errlen) {
    int i = 0;
    gs_trace_init(t);
    while (i < N_SCENARIOS && strcmp(scenarios[i].name, name) != 0)
        i++;
    if (i == N_SCENARIOS)
        return gs_fail(err, errlen, GS_ERR_NOT_FOUND, "there is no scenario '%.40s'", name);
    if (!(o->scale > 0 && o->scale <= 1000 && o->tokens_scale > 0 && o->tokens_scale <= 100 &&
          o->duration_s >= 0 && o->duration_s <= 400.0 * 86400))
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "scale, tokens scale or duration is out of bounds");
    builder b = {.t = t, .o = o, .duration_s = o->duration_s};
    if (b.duration_s <= 0)
        b.duration_s = scenarios[i].duration_s;
    scenarios[i].fill(&b);
    int rc = b.failed ? GS_ERR_TOO_LARGE : cut_trace(t, b.duration_s);
    if (rc == 0)
        rc = sort_trace(t);
    if (rc != 0)
        gs_trace_free(t);
    return rc == 0 ? 0 : gs_fail(err, errlen, rc, "too many requests, or out of memory");
}
