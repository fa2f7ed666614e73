#include "load/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"

#define OUTPUT_WEIGHT 2.0 /* an output token counts as two input tokens of service */
#define N_RESAMPLES   400
#define Z95           1.959964

const double gs_q_share[GS_Q_COUNT] = {0.50, 0.95, 0.99};

static const char *const status_names[GS_LOAD_STATUS_COUNT] = {
    [GS_LOAD_UNFINISHED] = "unfinished", [GS_LOAD_OK] = "ok",
    [GS_LOAD_CANCELLED] = "cancelled",   [GS_LOAD_HTTP] = "http",
    [GS_LOAD_BROKEN] = "broken",         [GS_LOAD_ERROR] = "error",
    [GS_LOAD_TIMEOUT] = "timeout",
};

const char *gs_load_status_name(gs_load_status s) {
    return (int)s >= 0 && s < GS_LOAD_STATUS_COUNT ? status_names[s] : "?";
}

void gs_load_default_targets(gs_load_target out[GS_CLASS_COUNT]) {
    gs_class_config c[GS_CLASS_COUNT];
    gs_class_defaults(c);
    for (int i = 0; i < GS_CLASS_COUNT; i++) {
        const bool first = c[i].ttft_ns > 0;
        /* Who waits for the whole answer does not watch its tokens. */
        out[i] = (gs_load_target){.ttft_s = (double)c[i].ttft_ns / 1e9,
                                  .tpot_s = first ? (double)c[i].tpot_ns / 1e9 : 0.0,
                                  .complete_s = (double)c[i].complete_ns / 1e9};
    }
}

void gs_load_run_free(gs_load_run *run) {
    for (int32_t i = 0; i < run->n; i++)
        gs_free(run->records[i].gaps_s);
    gs_free(run->records);
    run->records = NULL;
    run->n = 0;
}

void gs_load_summary_free(gs_load_summary *s) {
    gs_free(s->persons);
    s->persons = NULL;
}

void gs_wilson(int32_t met, int32_t n, double z, double *low, double *high) {
    if (n <= 0) {
        *low = 0.0;
        *high = 1.0;
        return;
    }
    const double p = (double)met / n, zz = z * z / n;
    const double centre = (p + zz / 2) / (1 + zz);
    const double half = z * sqrt(p * (1 - p) / n + zz / (4.0 * n)) / (1 + zz);
    *low = met > 0 ? centre - half : 0.0;
    *high = met < n ? centre + half : 1.0;
}

/* ---- one record ------------------------------------------------------------------------------*/

static const gs_trace_request *request_of(const gs_load_run *run, const gs_load_record *r) {
    return &run->trace->requests[r->request];
}

double gs_load_ttft(const gs_load_record *r) {
    return r->first_s < 0 ? (double)NAN : r->first_s - r->due_s;
}

static double sum_gaps(const gs_load_record *r) {
    double sum = 0.0;
    for (int32_t i = 0; i < r->n_gaps; i++)
        sum += (double)r->gaps_s[i];
    return sum;
}

/* Several tokens may come in one chunk, so tokens are counted, not chunks. */
double gs_load_tpot(const gs_load_record *r) {
    return r->n_gaps == 0 || r->n_output < 2 ? (double)NAN : sum_gaps(r) / (r->n_output - 1);
}

static double total_of(const gs_load_record *r) {
    return r->status == GS_LOAD_OK ? r->end_s - r->due_s : (double)NAN;
}

static bool is_error(const gs_load_record *r) {
    return r->status != GS_LOAD_OK && r->status != GS_LOAD_CANCELLED;
}

static double or_ever(double limit) {
    return limit > 0 ? limit : (double)INFINITY;
}

int gs_load_met(const gs_load_run *run, const gs_load_record *r) {
    const gs_trace_request *q = request_of(run, r);
    const gs_load_target *t = &run->targets[q->cls];
    const double ttft = gs_load_ttft(r), tpot = gs_load_tpot(r);
    const double deadline = q->deadline_s > 0 ? q->deadline_s : t->complete_s;
    if (is_error(r))
        return 0;
    if (t->ttft_s <= 0 && t->tpot_s <= 0 && deadline <= 0)
        return -1;
    if (r->status == GS_LOAD_CANCELLED && isnan(ttft))
        return r->end_s - r->due_s > or_ever(t->ttft_s) ? 0 : -1;
    if (q->api != GS_TRACE_EMBEDDINGS && !(ttft <= or_ever(t->ttft_s)))
        return 0;
    if (tpot > or_ever(t->tpot_s))
        return 0;
    return r->status == GS_LOAD_CANCELLED || r->end_s - r->due_s <= or_ever(deadline);
}

/* ---- percentiles -----------------------------------------------------------------------------*/

int32_t gs_quantile_needs(int q) {
    return q == GS_Q50 ? 1 : (int32_t)ceil(log(0.05) / log(gs_q_share[q]));
}

/* A value and which request it is of: the gaps of one answer are no independent samples. */
typedef struct sample {
    double value;
    int32_t owner;
} sample;

typedef struct samples {
    sample *v;
    int32_t n, n_owners;
    double *multiplicity; /* [n_owners] scratch of the bootstrap */
} samples;

static int by_value(const void *a, const void *b) {
    const sample *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

static double interpolated(const samples *s, double share) {
    if (s->n == 0)
        return (double)NAN;
    const double rank = (s->n - 1) * share;
    const int32_t low = (int32_t)rank, high = low + 1 < s->n ? low + 1 : low;
    return s->v[low].value + (s->v[high].value - s->v[low].value) * (rank - low);
}

static int by_number(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Draws whole requests with replacement; the values stay sorted, only their weights change. */
static void bootstrap(const samples *s, gs_rng *rng, gs_quantile out[GS_Q_COUNT]) {
    double drawn[GS_Q_COUNT][N_RESAMPLES];
    for (int k = 0; k < N_RESAMPLES; k++) {
        double total = 0.0, seen = 0.0;
        int q = 0;
        memset(s->multiplicity, 0, (size_t)s->n_owners * sizeof(double));
        for (int32_t i = 0; i < s->n_owners; i++)
            s->multiplicity[gs_rng_below(rng, (uint64_t)s->n_owners)] += 1.0;
        for (int32_t i = 0; i < s->n; i++)
            total += s->multiplicity[s->v[i].owner];
        for (int32_t i = 0; i < s->n && q < GS_Q_COUNT; i++) {
            seen += s->multiplicity[s->v[i].owner];
            while (q < GS_Q_COUNT && seen >= gs_q_share[q] * total && seen > 0)
                drawn[q++][k] = s->v[i].value;
        }
        for (; q < GS_Q_COUNT; q++)
            drawn[q][k] = s->v[s->n - 1].value;
    }
    for (int q = 0; q < GS_Q_COUNT; q++) {
        qsort(drawn[q], N_RESAMPLES, sizeof(double), by_number);
        out[q].low = drawn[q][N_RESAMPLES / 40];
        out[q].high = drawn[q][N_RESAMPLES - 1 - N_RESAMPLES / 40];
    }
}

static void quantiles(samples *s, gs_rng *rng, gs_quantile out[GS_Q_COUNT]) {
    for (int q = 0; q < GS_Q_COUNT; q++)
        out[q] = (gs_quantile){(double)NAN, (double)NAN, (double)NAN,
                               s->n_owners >= gs_quantile_needs(q)};
    if (s->n == 0)
        return;
    qsort(s->v, (size_t)s->n, sizeof *s->v, by_value);
    for (int q = 0; q < GS_Q_COUNT; q++)
        out[q].value = interpolated(s, gs_q_share[q]);
    bootstrap(s, rng, out);
}

/* ---- groups ----------------------------------------------------------------------------------*/

typedef struct grouping {
    const gs_load_run *run;
    bool by_class;
    int32_t key;
} grouping;

static bool in_group(const grouping *g, const gs_load_record *r) {
    const gs_trace_request *q = request_of(g->run, r);
    return g->by_class ? (int32_t)q->cls == g->key : q->name == g->key;
}

static void collect(const grouping *g, double (*value)(const gs_load_record *), samples *s) {
    s->n = s->n_owners = 0;
    for (int32_t i = 0; i < g->run->n; i++) {
        const gs_load_record *r = &g->run->records[i];
        const double v = in_group(g, r) ? value(r) : (double)NAN;
        if (!isnan(v))
            s->v[s->n++] = (sample){v, s->n_owners++};
    }
}

static void collect_gaps(const grouping *g, samples *s) {
    s->n = s->n_owners = 0;
    for (int32_t i = 0; i < g->run->n; i++) {
        const gs_load_record *r = &g->run->records[i];
        if (!in_group(g, r) || r->n_gaps == 0)
            continue;
        for (int32_t k = 0; k < r->n_gaps; k++)
            s->v[s->n++] = (sample){(double)r->gaps_s[k], s->n_owners};
        s->n_owners++;
    }
}

static int32_t input_tokens(const gs_load_record *r) {
    return r->first_s < 0 ? 0 : r->n_prompt;
}

static void count(const grouping *g, gs_load_group *out) {
    for (int32_t i = 0; i < g->run->n; i++) {
        const gs_load_record *r = &g->run->records[i];
        if (!in_group(g, r))
            continue;
        const int met = gs_load_met(g->run, r);
        out->n++;
        out->n_errors += is_error(r);
        out->n_cancelled += r->status == GS_LOAD_CANCELLED;
        out->n_judged += met >= 0;
        out->n_met += met == 1;
        out->n_input += input_tokens(r);
        out->n_cached += r->n_cached;
        out->n_output += r->n_output;
    }
    gs_wilson(out->n_met, out->n_judged, Z95, &out->met_low, &out->met_high);
}

static void summarise_group(const grouping *g, samples *s, gs_rng *rng, gs_load_group *out) {
    *out = (gs_load_group){.tpot_mean = (double)NAN, .itl_max = (double)NAN};
    count(g, out);
    collect(g, gs_load_ttft, s);
    quantiles(s, rng, out->ttft);
    collect(g, total_of, s);
    quantiles(s, rng, out->total);
    collect(g, gs_load_tpot, s);
    quantiles(s, rng, out->tpot);
    double sum = 0.0;
    for (int32_t i = 0; i < s->n; i++)
        sum += s->v[i].value;
    if (s->n > 0)
        out->tpot_mean = sum / s->n;
    collect_gaps(g, s);
    quantiles(s, rng, out->itl);
    if (s->n > 0)
        out->itl_max = s->v[s->n - 1].value;
}

/* ---- fairness --------------------------------------------------------------------------------*/

typedef struct change {
    double t_s;
    int by;
    int32_t person;
} change;

typedef struct period {
    double from, to;
    uint64_t persons; /* bits */
} period;

static int by_time(const void *a, const void *b) {
    const change *x = a, *y = b;
    return x->t_s != y->t_s ? (x->t_s > y->t_s) - (x->t_s < y->t_s) : x->by - y->by;
}

/* The times in which two or more persons wait for answers. */
static int32_t find_periods(const gs_load_run *run, change *changes, period *out) {
    int32_t waiting[GS_TRACE_PERSONS] = {0}, n = 0, n_periods = 0;
    uint64_t persons = 0;
    double before = 0.0;
    for (int32_t i = 0; i < run->n; i++) {
        const int32_t who = request_of(run, &run->records[i])->name;
        changes[n++] = (change){run->records[i].due_s, 1, who};
        changes[n++] = (change){run->records[i].end_s, -1, who};
    }
    qsort(changes, (size_t)n, sizeof *changes, by_time);
    for (int32_t i = 0; i < n; i++) {
        const change *c = &changes[i];
        if (__builtin_popcountll(persons) > 1 && c->t_s > before)
            out[n_periods++] = (period){before, c->t_s, persons};
        waiting[c->person] += c->by;
        if (waiting[c->person] > 0)
            persons |= 1ULL << c->person;
        else
            persons &= ~(1ULL << c->person);
        before = c->t_s;
    }
    return n_periods;
}

static bool in_periods(const period *p, int32_t n, double t) {
    int32_t low = 0, high = n;
    while (low < high) {
        const int32_t mid = (low + high) / 2;
        if (p[mid].from <= t)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 && t <= p[low - 1].to;
}

static void add_service(const gs_load_run *run, const period *p, int32_t n, double service[]) {
    for (int32_t i = 0; i < run->n; i++) {
        const gs_load_record *r = &run->records[i];
        const int32_t who = request_of(run, r)->name;
        if (service[who] < 0 || r->first_s < 0)
            continue;
        const double share = OUTPUT_WEIGHT * r->n_output / (r->n_gaps + 1);
        double t = r->first_s;
        if (in_periods(p, n, t))
            service[who] += r->n_prompt + share;
        for (int32_t k = 0; k < r->n_gaps; k++) {
            t += (double)r->gaps_s[k];
            if (in_periods(p, n, t))
                service[who] += share;
        }
    }
}

static int fairness(const gs_load_run *run, gs_load_summary *out) {
    const size_t n = run->n > 0 ? 2 * (size_t)run->n : 1;
    double waited[GS_TRACE_PERSONS] = {0}, sum = 0.0, squares = 0.0;
    change *changes = gs_array(n, sizeof *changes);
    period *periods = gs_array(n, sizeof *periods);
    int persons = 0;
    out->jain = (double)NAN;
    for (int i = 0; i < GS_TRACE_PERSONS; i++)
        out->service[i] = -1.0;
    if (changes && periods) {
        const int32_t k = find_periods(run, changes, periods);
        for (int32_t i = 0; i < k; i++) {
            out->contended_s += periods[i].to - periods[i].from;
            for (int who = 0; who < GS_TRACE_PERSONS; who++)
                if (periods[i].persons >> who & 1)
                    waited[who] += periods[i].to - periods[i].from;
        }
        for (int who = 0; who < GS_TRACE_PERSONS; who++)
            if (waited[who] > 0 && waited[who] >= out->contended_s / 2)
                out->service[who] = 0.0;
        add_service(run, periods, k, out->service);
        for (int who = 0; who < GS_TRACE_PERSONS; who++) {
            const double x = out->service[who] > 0 ? out->service[who] : 0.0;
            persons += out->service[who] >= 0;
            sum += x;
            squares += x * x;
        }
        if (persons > 1 && squares > 0)
            out->jain = sum * sum / (persons * squares);
    }
    const int rc = changes && periods ? 0 : GS_ERR_NOMEM;
    gs_free(changes);
    gs_free(periods);
    return rc;
}

/* ---- totals ----------------------------------------------------------------------------------*/

static double lateness(const gs_load_record *r) {
    return r->sent_s >= 0 && r->n_attempts == 1 ? r->sent_s - r->due_s : (double)NAN;
}

static void totals(const gs_load_run *run, samples *s, gs_load_summary *out) {
    int32_t n_judged = 0, n_met = 0;
    for (int32_t i = 0; i < run->n; i++) {
        const gs_load_record *r = &run->records[i];
        const int met = gs_load_met(run, r);
        out->n_errors += is_error(r);
        out->seconds = r->end_s > out->seconds ? r->end_s : out->seconds;
        n_judged += met >= 0;
        n_met += met == 1;
        if (request_of(run, r)->api == GS_TRACE_EMBEDDINGS) {
            out->embedded_tok_s += input_tokens(r);
        } else {
            out->input_tok_s += input_tokens(r);
            out->cached_tok_s += r->n_cached;
            out->output_tok_s += r->n_output;
        }
        if (met == 1) {
            out->good_req_s += 1;
            out->good_tok_s += r->n_output;
        }
    }
    double *const rates[] = {&out->embedded_tok_s, &out->input_tok_s, &out->cached_tok_s,
                             &out->output_tok_s,   &out->good_req_s,  &out->good_tok_s};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        *rates[i] = out->seconds > 0 ? *rates[i] / out->seconds : 0.0;
    out->n = run->n;
    out->met = n_judged > 0 ? (double)n_met / n_judged : (double)NAN;
    s->n = 0;
    for (int32_t i = 0; i < run->n; i++)
        if (!isnan(lateness(&run->records[i])))
            s->v[s->n++] = (sample){lateness(&run->records[i]), 0};
    qsort(s->v, (size_t)s->n, sizeof *s->v, by_value);
    out->late_p99_s = interpolated(s, 0.99);
}

int gs_load_summarise(const gs_load_run *run, gs_load_summary *out) {
    *out = (gs_load_summary){.n_persons = run->trace->n_persons};
    size_t n = (size_t)run->n + 1;
    for (int32_t i = 0; i < run->n; i++)
        n += (size_t)run->records[i].n_gaps;
    samples s = {.v = gs_array(n, sizeof(sample)),
                 .multiplicity = gs_array((size_t)run->n + 1, sizeof(double))};
    out->persons = gs_calloc((size_t)out->n_persons, sizeof *out->persons);
    int rc = s.v && s.multiplicity && out->persons ? 0 : GS_ERR_NOMEM;
    if (rc == 0) {
        gs_rng rng;
        gs_rng_seed(&rng, run->seed + 1);
        for (int32_t c = 0; c < GS_CLASS_COUNT; c++)
            summarise_group(&(grouping){run, true, c}, &s, &rng, &out->classes[c]);
        for (int32_t p = 0; p < out->n_persons; p++)
            summarise_group(&(grouping){run, false, p}, &s, &rng, &out->persons[p]);
        totals(run, &s, out);
        rc = fairness(run, out);
    }
    gs_free(s.v);
    gs_free(s.multiplicity);
    if (rc != 0)
        gs_load_summary_free(out);
    return rc;
}
