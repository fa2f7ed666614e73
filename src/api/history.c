#include "api/history.h"

#include <stdlib.h>
#include <string.h>

#include "api/kept.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"

#define DEFAULT_S 3600         /* that are looked back without `from` */
#define LAST_S    253402300799 /* the end of the year 9999 */

struct gs_history {
    int64_t period_ns, began_ns; /* the minute that goes on */
    int64_t last_s;              /* the last one that was kept; 0: none yet */
    double kv;                   /* sum of n_samples */
    int32_t n_samples;
    /* As the minute began. */
    int64_t busy_ns, background_ns;
    uint64_t n_target[GS_CLASS_COUNT], n_missed[GS_CLASS_COUNT];
    double energy_j;
};

/* ---- A minute ------------------------------------------------------------------------------ */

typedef struct put_job {
    gs_store_job job; /* first */
    int64_t now_s;
    gs_history_row row;
} put_job;

static int run_put(gs_db *db, gs_store_job *job) {
    const put_job *p = (put_job *)job;
    return gs_history_put(db, &p->row, p->now_s, GS_HISTORY_ROWS);
}

static void put_done(gs_store_job *job) {
    if (job->rc != 0)
        gs_warn("history", "a minute is not kept: %s", job->err);
    gs_free(job);
}

int64_t gs_history_period_ns(const gs_api *a) {
    const gs_config *c = a->cfg.config;
    return (c ? c->metrics_history_s : 60) * GS_NS_PER_S;
}

int gs_history_create(gs_api *a) {
    if (!a->kept)
        return 0;
    gs_history *h = gs_calloc(1, sizeof(*h));
    if (!h)
        return GS_ERR_NOMEM;
    h->period_ns = gs_history_period_ns(a);
    h->began_ns = gs_now_ns();
    a->history = h;
    return 0;
}

int64_t gs_history_place(int64_t last_s, int64_t period_s, int64_t wall_s) {
    const int64_t next_s = last_s + period_s;
    /* The first one after a start is short: the next one may begin in the same minute. */
    if (last_s > 0 && wall_s >= last_s && wall_s < next_s + period_s)
        return next_s;
    return wall_s - wall_s % period_s;
}

void gs_history_sample(gs_history *h, const gs_engine_stats *s) {
    if (!h || s->kv_blocks_total == 0)
        return;
    h->kv += (double)s->kv_blocks_held / s->kv_blocks_total;
    h->n_samples++;
}

static void fill_class(gs_history_class *k, const gs_minute_class *m) {
    *k = (gs_history_class){.n_requests = m->n_ended,
                            .n_prompt = m->n_prompt,
                            .n_output = m->n_output,
                            .ttft = m->ttft,
                            .itl = m->itl};
}

/* What the minute was, of what is counted since the start. The next one begins. */
static void take(gs_history *h, const gs_metrics *m, const gs_engine_stats *s, double energy_j,
                 int64_t now_ns, gs_history_row *r) {
    const int64_t wall_s = (gs_wall_ms() - (now_ns - h->began_ns) / GS_NS_PER_MS) / 1000;
    r->t_s = gs_history_place(h->last_s, h->period_ns / GS_NS_PER_S, wall_s);
    r->ms = (now_ns - h->began_ns) / GS_NS_PER_MS;
    r->busy_ms = (s->busy_ns - h->busy_ns) / GS_NS_PER_MS;
    r->background_ms = (s->busy_background_ns - h->background_ns) / GS_NS_PER_MS;
    r->kv = h->n_samples > 0 ? h->kv / h->n_samples : 0.0;
    r->energy_j = energy_j - h->energy_j;
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        fill_class(&r->classes[c], &m->last[c]);
        r->classes[c].n_judged = s->n_target[c] - h->n_target[c];
        r->classes[c].n_missed = s->n_missed[c] - h->n_missed[c];
    }
    *h = (gs_history){.period_ns = h->period_ns,
                      .began_ns = now_ns,
                      .last_s = r->t_s,
                      .busy_ns = s->busy_ns,
                      .background_ns = s->busy_background_ns,
                      .energy_j = energy_j};
    memcpy(h->n_target, s->n_target, sizeof(h->n_target));
    memcpy(h->n_missed, s->n_missed, sizeof(h->n_missed));
}

void gs_history_minute(gs_api *a, const gs_engine_stats *s, int64_t now_ns, double energy_j) {
    if (!a->history)
        return;
    put_job *p = gs_calloc(1, sizeof(*p));
    if (!p)
        return;
    p->job = (gs_store_job){.run = run_put, .done = put_done};
    p->now_s = gs_wall_s();
    take(a->history, a->metrics, s, energy_j, now_ns, &p->row);
    if (p->row.ms <= 0 || gs_store_submit(a->store, &p->job) != 0)
        gs_free(p);
}

/* ---- GET /v1/history ----------------------------------------------------------------------- */

/* A whole number of the query; *out stays as it is without. */
static int read_s(const gs_http_request *rq, const char *name, int64_t min, int64_t max,
                  int64_t *out, gs_api_error *e) {
    char text[24], *end;
    gs_api_query_param(rq, name, text, sizeof(text));
    if (!text[0])
        return 0;
    const long long v = strtoll(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || v < min || v > max)
        return gs_api_fail(e, GS_ERR_INVALID, name,
                           "'%s' must be a whole number of seconds from %lld to %lld.", name,
                           (long long)min, (long long)max);
    *out = v;
    return 0;
}

typedef struct span {
    int64_t from_s, to_s, step_s;
} span;

static int read_span(const gs_api *a, const gs_http_request *rq, span *x, gs_api_error *e) {
    const int64_t period_s = gs_history_period_ns(a) / GS_NS_PER_S;
    *x = (span){.from_s = -1, .to_s = gs_wall_s() + 1};
    int rc = read_s(rq, "to", 1, LAST_S, &x->to_s, e);
    if (rc == 0)
        rc = read_s(rq, "from", 0, LAST_S, &x->from_s, e);
    if (rc == 0)
        rc = read_s(rq, "step", 1, GS_HISTORY_MAX_STEP, &x->step_s, e);
    if (rc != 0)
        return rc;
    if (x->from_s < 0)
        x->from_s = x->to_s > DEFAULT_S ? x->to_s - DEFAULT_S : 0;
    if (x->from_s >= x->to_s)
        return gs_api_fail(e, GS_ERR_INVALID, "from", "'from' must be before 'to'.");
    const int64_t least_s = (x->to_s - x->from_s + GS_HISTORY_ANSWER - 1) / GS_HISTORY_ANSWER;
    if (x->step_s == 0)
        x->step_s = least_s > period_s ? least_s : period_s;
    if (x->step_s < least_s)
        return gs_api_fail(e, GS_ERR_INVALID, "step",
                           "'step' must be at least %lld for that time: an answer has %d rows at "
                           "most.",
                           (long long)least_s, GS_HISTORY_ANSWER);
    return 0;
}

static int run_read(gs_db *db, gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    const int rc = gs_history_write(db, c->from_s, c->to_s, c->step_s, &c->out);
    return rc == 0 ? 0 : gs_kept_fail(c, db, rc);
}

static void get_history(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_api_error e = {0};
    span x;
    if (read_span(a, rq, &x, &e) != 0) {
        gs_api_reply_error(rq, &e);
        return;
    }
    if (!a->history) {
        gs_buf none = {0};
        gs_history_write(NULL, x.from_s, x.to_s, x.step_s, &none);
        gs_api_reply_json(rq, 200, &none);
        return;
    }
    gs_call *c = gs_call_new(a, rq);
    if (!c)
        return;
    c->from_s = x.from_s;
    c->to_s = x.to_s;
    c->step_s = x.step_s;
    gs_call_submit(c, run_read);
}

// clang-format off
#define NUMBER   "{'type':'number'}"
#define INTEGER  "{'type':'integer','minimum':0}"
#define QUANTILE "{'type':'object','required':['p50','p95','n'],'properties':{" \
                 "'p50':{'type':['number','null']},'p95':{'type':['number','null']},'n':" INTEGER "}}"

static const gs_schema schemas[] = {
    {"History",
     "{'type':'object','required':['from','to','step','rows'],'properties':{"
     "'from':" INTEGER ",'to':" INTEGER ",'step':" INTEGER ",'rows':{'type':'array','items':{"
     "'type':'object','required':['t','seconds','busy','background','kv','energy_j','classes'],"
     "'properties':{'t':" INTEGER ",'seconds':" NUMBER ",'busy':" NUMBER ",'background':" NUMBER ","
     "'kv':" NUMBER ",'energy_j':{'type':['number','null']},'classes':{'type':'array','items':{"
     "'type':'object','required':['name','requests','attained','judged','ttft_ms','itl_ms',"
     "'prompt_tokens','output_tokens'],'properties':{'name':{'type':'string'},"
     "'requests':" INTEGER ",'attained':{'type':['number','null']},'judged':" INTEGER ","
     "'ttft_ms':" QUANTILE ",'itl_ms':" QUANTILE ",'prompt_tokens':" INTEGER ","
     "'output_tokens':" INTEGER "}}}}}}}}"},
    {NULL, NULL},
};

static const gs_field query[] = {
    GS_ROW_JSON("from", 1, "{'type':'integer','minimum':0,'maximum':253402300799}", "Seconds since 1970; an hour before `to`."),
    GS_ROW_JSON("to", 1, "{'type':'integer','minimum':1,'maximum':253402300799}", "Seconds since 1970, not with it; now."),
    GS_ROW_JSON("step", 1, "{'type':'integer','minimum':1,'maximum':2592000}", "Seconds that become one row."),
    GS_ROWS_END,
};

static const gs_route routes[] = {
    {"GET", "/v1/history", GS_ROUTE_ADMIN, get_history, "What the minutes of the last 30 days were",
     .query = query, .answer = "History"},
    {.path = NULL},
};
// clang-format on

const gs_api_part gs_history_part = {"history", "What was.", routes, schemas};
