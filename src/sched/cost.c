#include "sched/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* Coefficients: the knots, then a, b, c, d, e. */
enum { A = GS_COST_KNOTS, B, C, D, E, N_TERMS };
/* And what the text has beside them: the terms of a part of the device. */
enum { FEW_ROW = N_TERMS, FEW_CHUNK, BESIDE_ROW, BESIDE_CHUNK, N_TEXT };

#define GAIN        0.10 /* of the newest step, once the scale is known */
#define GAIN_SHIFT  0.30 /* while the machine has plainly changed */
#define CLIP        0.40 /* log ratio: one outlier of any size counts as 1.5x */
#define CLIP_SHIFT  1.40 /* 4x */
#define SHIFT_STEPS 5    /* far off on the same side this often: a change, not an outlier */
#define FAR_OFF     0.20
#define WARM_STEPS  8 /* of an uncalibrated model: only its scale is learned */
#define COEF_MAX_NS 1e12
#define FEW_MAX     2.0 /* threads that are in each other's way */
#define BESIDE_MAX  4.0

/* One row mostly waits for memory, which half of the threads load nearly as well. */
static void default_part(gs_cost *c) {
    c->few[0] = 0.6;
    c->few[1] = 1.0;
    c->beside[0] = 0.3;
    c->beside[1] = 0.1;
}

void gs_cost_prior(gs_cost *c) {
    static const double shape[GS_COST_KNOTS] = {1, 1.05, 1.15, 1.4, 2.2, 4, 8, 16, 32, 64};
    *c = (gs_cost){
        .decode_ctx_ns = 500, .prefill_ns = 50, .logit_ns = 1e6, .sample_ns = 5e4, .fixed_ns = 2e5};
    default_part(c);
    for (int i = 0; i < GS_COST_KNOTS; i++)
        c->knot_ns[i] = 20e6 * shape[i];
}

static double *coef(gs_cost *c, int i) {
    if (i < GS_COST_KNOTS)
        return &c->knot_ns[i];
    return i == A           ? &c->decode_ctx_ns
           : i == B         ? &c->prefill_ns
           : i == C         ? &c->logit_ns
           : i == D         ? &c->sample_ns
           : i == E         ? &c->fixed_ns
           : i < BESIDE_ROW ? &c->few[i - FEW_ROW]
                            : &c->beside[i - BESIDE_ROW];
}

/* ---- prediction -------------------------------------------------------------------------------*/

static void step_change(gs_cost_step *x, int32_t n, int32_t pos, bool decode, bool sample, int by) {
    x->n_tokens += by * n;
    x->n_logits += by * sample;
    x->n_sampled += by * sample;
    if (decode)
        x->decode_ctx += by * (pos + 1.0);
    else
        x->prefill_area += by * (n * (pos + (n + 1) / 2.0));
}

void gs_cost_step_add(gs_cost_step *x, int32_t n, int32_t pos, bool decode, bool sample) {
    step_change(x, n, pos, decode, sample, 1);
}

void gs_cost_step_sub(gs_cost_step *x, int32_t n, int32_t pos, bool decode, bool sample) {
    step_change(x, n, pos, decode, sample, -1);
}

/* Where n lies: between knots *i and *i + 1, the share *w of the upper one. Beyond the last knot
 * w exceeds 1: the last slope goes on. */
static void locate(int32_t n, int *i, double *w) {
    const int high = 31 - __builtin_clz((uint32_t)n);
    *i = high < GS_COST_KNOTS - 1 ? high : GS_COST_KNOTS - 2;
    const double low = (double)(1 << *i);
    *w = ((double)n - low) / low;
}

static double batch_ns(const gs_cost *c, int32_t n) {
    int i;
    double w;
    if (n < 1)
        return 0.0;
    locate(n, &i, &w);
    return c->knot_ns[i] + w * (c->knot_ns[i + 1] - c->knot_ns[i]);
}

static double logits_ns(const gs_cost *c, int32_t n) {
    if (!c->logits_together || n < 1 || !(c->knot_ns[0] > 0.0))
        return c->logit_ns * n;
    return c->logit_ns * batch_ns(c, n) / c->knot_ns[0];
}

double gs_cost_predict(const gs_cost *c, const gs_cost_step *x) {
    if (x->n_tokens < 1)
        return 0.0;
    return batch_ns(c, x->n_tokens) + c->decode_ctx_ns * x->decode_ctx +
           c->prefill_ns * x->prefill_area + logits_ns(c, x->n_logits) +
           c->sample_ns * x->n_sampled + c->fixed_ns;
}

/* How far n rows are from one row to a large chunk. */
static double chunkiness(int32_t n) {
    const double at = log2((double)n) / log2(GS_COST_CHUNK);
    return at < 1.0 ? at : 1.0;
}

static double between(const double at[2], double w) {
    return at[0] + w * (at[1] - at[0]);
}

double gs_cost_predict_on(const gs_cost *c, const gs_cost_step *x, gs_cost_part p) {
    const double alone = gs_cost_predict(c, x);
    if (p.share >= 1.0 || x->n_tokens < 1)
        return alone;
    const double w = chunkiness(x->n_tokens);
    return alone * (1.0 + between(c->few, w) * (1.0 / p.share - 1.0)) *
           (1.0 + (p.beside ? between(c->beside, w) : 0.0));
}

/* Streaming the weights once costs the same for one row as for a few: f(1) minus what a further
 * row adds. */
double gs_cost_fixed(const gs_cost *c) {
    const double row = c->knot_ns[1] - c->knot_ns[0];
    const double base = c->knot_ns[0] - row;
    return c->fixed_ns + (base > 0.0 ? base : 0.0);
}

double gs_cost_prefill(const gs_cost *c, int32_t pos, int32_t n, int32_t chunk) {
    if (n < 1)
        return 0.0;
    const int32_t n_full = n / chunk, rest = n % chunk;
    const double area = (double)n * (pos + (n + 1) / 2.0);
    return n_full * (batch_ns(c, chunk) + c->fixed_ns) +
           (rest > 0 ? batch_ns(c, rest) + c->fixed_ns : 0.0) + c->prefill_ns * area;
}

int32_t gs_cost_knee(const gs_cost *c, int32_t max) {
    double best = INFINITY;
    for (int i = 0; i < GS_COST_KNOTS && (i == 0 || 1 << i <= max); i++)
        best = fmin(best, (c->knot_ns[i] + c->fixed_ns) / (1 << i));
    for (int i = 0; i < GS_COST_KNOTS; i++)
        if ((c->knot_ns[i] + c->fixed_ns) / (1 << i) <= 1.15 * best)
            return 1 << i;
    return 1;
}

/* ---- learning ---------------------------------------------------------------------------------*/

static void scale_all(gs_cost *c, double factor) {
    for (int i = 0; i < N_TERMS; i++)
        *coef(c, i) = fmin(*coef(c, i) * factor, COEF_MAX_NS);
}

static double clip(double v, double limit) {
    return v > limit ? limit : v < -limit ? -limit : v;
}

/* Knots nobody has seen follow their nearest neighbour that moved; then nothing may fall. */
static void settle_knots(gs_cost *c, int i, double low_factor, double high_factor) {
    for (int k = i + 2; k < GS_COST_KNOTS && c->seen[k] == 0; k++)
        c->knot_ns[k] = fmin(c->knot_ns[k] * high_factor, COEF_MAX_NS);
    for (int k = i - 1; k >= 0 && c->seen[k] == 0; k--)
        c->knot_ns[k] *= low_factor;
    for (int k = i; k + 1 < GS_COST_KNOTS; k++)
        c->knot_ns[k + 1] = fmax(c->knot_ns[k], c->knot_ns[k + 1]);
    for (int k = i; k > 0; k--)
        c->knot_ns[k - 1] = fmin(c->knot_ns[k - 1], c->knot_ns[k]);
}

/*
 * Normalised least mean squares on the logarithm of the step time: each coefficient moves by its
 * share of the prediction, so that with gain 1 the prediction would move by the whole error.
 * Multiplying keeps coefficients positive.
 */
static void correct(gs_cost *c, const gs_cost_step *x, double predicted, double move) {
    int i;
    double w, part[N_TERMS] = {0}, squares = 0.0;
    locate(x->n_tokens, &i, &w);
    const double upper = w > 1.0 ? 1.0 : w; /* beyond the last knot, that knot answers for it */
    const double f = batch_ns(c, x->n_tokens);
    part[i] = (1.0 - upper) * f;
    part[i + 1] = upper * f;
    part[A] = c->decode_ctx_ns * x->decode_ctx;
    part[B] = c->prefill_ns * x->prefill_area;
    part[C] = logits_ns(c, x->n_logits);
    part[D] = c->sample_ns * x->n_sampled;
    part[E] = c->fixed_ns;
    for (int k = 0; k < N_TERMS; k++)
        squares += (part[k] / predicted) * (part[k] / predicted);
    double factor[N_TERMS];
    for (int k = 0; k < N_TERMS; k++) {
        const double step = move * part[k] / predicted / squares;
        factor[k] = exp(clip(step, 2.0 * fabs(move)));
        *coef(c, k) = fmin(*coef(c, k) * factor[k], COEF_MAX_NS);
    }
    c->seen[i] += upper < 0.75;
    c->seen[i + 1] += upper > 0.25;
    /* An unseen knot beyond an interval inherits the interval's move, not its own small part. */
    settle_knots(c, i, upper < 0.75 ? factor[i] : factor[i + 1],
                 upper > 0.25 ? factor[i + 1] : factor[i]);
}

void gs_cost_observe(gs_cost *c, const gs_cost_step *x, int64_t elapsed_ns) {
    const double predicted = gs_cost_predict(c, x);
    if (elapsed_ns <= 0 || !(predicted > 0.0))
        return;
    c->ratio[c->n_ratios++ % GS_COST_RATIOS] = (float)(predicted / (double)elapsed_ns);
    const double error = log((double)elapsed_ns / predicted);
    c->n_observed++;
    if (!c->calibrated && c->n_observed <= WARM_STEPS) {
        scale_all(c, exp(clip(error, 12.0) / (double)c->n_observed));
        return;
    }
    if (fabs(error) < FAR_OFF || (error > 0) != (c->same_side > 0))
        c->same_side = 0;
    if (fabs(error) >= FAR_OFF && abs(c->same_side) < 1000)
        c->same_side += error > 0 ? 1 : -1;
    const bool shift = abs(c->same_side) >= SHIFT_STEPS;
    correct(c, x, predicted,
            shift ? GAIN_SHIFT * clip(error, CLIP_SHIFT) : GAIN * clip(error, CLIP));
}

/* Each end of a term follows by its part in what was seen. */
static void follow(double at[2], double w, double seen, double most) {
    const double error = clip(fmin(fmax(seen, 0.0), most) - between(at, w), 0.5);
    at[0] += GAIN * (1.0 - w) * error;
    at[1] += GAIN * w * error;
    for (int i = 0; i < 2; i++)
        at[i] = fmin(fmax(at[i], 0.0), most);
}

void gs_cost_observe_on(gs_cost *c, const gs_cost_step *x, gs_cost_part p, int64_t elapsed_ns) {
    if (p.share >= 1.0) {
        gs_cost_observe(c, x, elapsed_ns);
        return;
    }
    const double w = x->n_tokens > 0 ? chunkiness(x->n_tokens) : 0.0;
    const double base = p.beside ? gs_cost_predict_on(c, x, (gs_cost_part){.share = p.share})
                                 : gs_cost_predict(c, x);
    if (elapsed_ns <= 0 || !(base > 0.0))
        return;
    const double more = (double)elapsed_ns / base - 1.0;
    if (p.beside)
        follow(c->beside, w, more, BESIDE_MAX);
    else
        follow(c->few, w, more / (1.0 / p.share - 1.0), FEW_MAX);
}

/* Shell sort: qsort may allocate. */
static void sort_floats(float *v, uint32_t n) {
    for (uint32_t gap = n / 2; gap > 0; gap /= 2)
        for (uint32_t i = gap; i < n; i++) {
            const float x = v[i];
            uint32_t k = i;
            for (; k >= gap && v[k - gap] > x; k -= gap)
                v[k] = v[k - gap];
            v[k] = x;
        }
}

void gs_cost_get_error(const gs_cost *c, gs_cost_error *out) {
    float v[GS_COST_RATIOS];
    const uint32_t n = c->n_ratios < GS_COST_RATIOS ? c->n_ratios : GS_COST_RATIOS;
    *out = (gs_cost_error){.n = n};
    if (n == 0)
        return;
    memcpy(v, c->ratio, n * sizeof *v);
    sort_floats(v, n);
    out->median_ratio = (double)v[n / 2];
    for (uint32_t i = 0; i < n; i++)
        v[i] = fabsf(v[i] - 1.0f);
    sort_floats(v, n);
    out->median_error = (double)v[n / 2];
    out->p95_error = (double)v[(n * 95 - 1) / 100];
}

/* ---- text -------------------------------------------------------------------------------------*/

static const char *const term_names[] = {"decode_context", "prefill",    "logit",
                                         "sample",         "fixed",      "few_row",
                                         "few_chunk",      "beside_row", "beside_chunk"};

int gs_cost_write(const gs_cost *c, const char *id, gs_buf *out) {
    gs_cost copy = *c;
    gs_buf_printf(out, "gamasot cost 2\nid %s\n", id);
    for (int i = 0; i < N_TEXT; i++) {
        if (i < GS_COST_KNOTS)
            gs_buf_printf(out, "knot_%d %.6g\n", 1 << i, *coef(&copy, i));
        else
            gs_buf_printf(out, "%s %.6g\n", term_names[i - A], *coef(&copy, i));
    }
    return out->failed ? GS_ERR_NOMEM : GS_OK;
}

/* The next line of [*at, end) without its end; NULL at the end of the text. */
static const char *next_line(const char **at, const char *end, size_t *n) {
    const char *line = *at;
    if (line >= end)
        return NULL;
    const char *nl = memchr(line, '\n', (size_t)(end - line));
    *n = (size_t)((nl ? nl : end) - line);
    *at = nl ? nl + 1 : end;
    return line;
}

static int term_of(const char *name) {
    char *rest;
    if (strncmp(name, "knot_", 5) == 0) {
        const long n = strtol(name + 5, &rest, 10);
        for (int i = 0; i < GS_COST_KNOTS && *rest == 0; i++)
            if (n == 1 << i)
                return i;
        return -1;
    }
    for (int i = A; i < N_TEXT; i++)
        if (strcmp(name, term_names[i - A]) == 0)
            return i;
    return -1;
}

/* One "name value" line into out; the bits of have say which terms are known. */
static int read_term(const char *line, size_t len, gs_cost *out, uint32_t *have, char *err,
                     size_t errlen) {
    char buf[80], *rest;
    if (len >= sizeof buf)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "a line of the calibration is too long");
    memcpy(buf, line, len);
    buf[len] = 0;
    char *space = strchr(buf, ' ');
    if (!space)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "a line of the calibration has no value");
    *space = 0;
    const int term = term_of(buf);
    const double value = strtod(space + 1, &rest);
    if (term < 0 || (*have >> term & 1) || rest == space + 1 || *rest || !(value >= 0.0) ||
        value > (term < FEW_ROW      ? COEF_MAX_NS
                 : term < BESIDE_ROW ? FEW_MAX
                                     : BESIDE_MAX))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "calibration: %s is wrong", buf);
    *coef(out, term) = value;
    *have |= 1u << term;
    return GS_OK;
}

int gs_cost_read(const char *text, size_t n, const char *id, gs_cost *c, char *err, size_t errlen) {
    const char *at = text, *end = text + n, *line;
    size_t len;
    gs_cost out = {.calibrated = true};
    line = next_line(&at, end, &len);
    if (!line || len != 14 || memcmp(line, "gamasot cost 2", 14) != 0)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "not a calibration of this version");
    line = next_line(&at, end, &len);
    if (!line || len < 3 || memcmp(line, "id ", 3) != 0)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "the calibration does not say what it is for");
    if (len - 3 != strlen(id) || memcmp(line + 3, id, len - 3) != 0)
        return gs_fail(err, errlen, GS_ERR_NOT_FOUND,
                       "the calibration is for another model or "
                       "machine");
    uint32_t have = 0;
    while ((line = next_line(&at, end, &len))) {
        const int rc = read_term(line, len, &out, &have, err, errlen);
        if (rc != GS_OK)
            return rc;
    }
    if (have != (1u << N_TEXT) - 1)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "the calibration lacks a coefficient");
    for (int i = 0; i < GS_COST_KNOTS; i++)
        if (!(out.knot_ns[i] > 0.0) || (i > 0 && out.knot_ns[i] < out.knot_ns[i - 1]))
            return gs_fail(err, errlen, GS_ERR_FORMAT, "calibration: larger steps take less time");
    *c = out;
    return GS_OK;
}

/* ---- calibration ------------------------------------------------------------------------------*/

enum {
    STAGE_DECODE_DEPTH = GS_COST_KNOTS,
    STAGE_PREFILL_DEPTH,
    STAGE_SAMPLE,
    STAGE_HALF_ROW,
    STAGE_HALF_CHUNK,
    STAGE_DONE
};

#define DEPTH_CHUNK 32
#define REPEATS     3

void gs_cost_calibrate_begin(gs_cost_calibration *k, const gs_cost *c, int32_t max_tokens,
                             int32_t max_context, int n_threads, bool verify) {
    (void)c;
    *k = (gs_cost_calibration){.max_tokens = max_tokens,
                               .n_threads = n_threads,
                               .depth = max_context / 2 < 2048 ? max_context / 2 : 2048,
                               .budget_ns = 5000000000,
                               .step_limit_ns = 100000000,
                               .verify = verify};
}

/* Twice the rows cost at most twice: a safe guess for a knot that has not been timed. */
static double guess_next(const gs_cost_calibration *k, int i) {
    return i == 0 ? 0.0 : 2.0 * k->measured_ns[i - 1];
}

static bool probe_of(const gs_cost_calibration *k, int stage, gs_cost_probe *p) {
    if (stage < GS_COST_KNOTS) {
        *p = (gs_cost_probe){.n_tokens = 1 << stage};
        if (p->n_tokens > k->max_tokens || k->spent_ns > k->budget_ns)
            return false;
        if (k->verify)
            return stage == 0 || stage == 4;
        return stage == 0 || (k->measured_ns[stage - 1] > 0.0 &&
                              guess_next(k, stage) <= (double)k->step_limit_ns);
    }
    if (k->verify)
        return false;
    if (stage >= STAGE_HALF_ROW) {
        *p = (gs_cost_probe){.n_tokens = stage == STAGE_HALF_ROW ? 1 : GS_COST_CHUNK, .half = true};
        /* Twice the time at most, of a step that has been timed. */
        const int knot = 31 - __builtin_clz((uint32_t)p->n_tokens);
        return k->n_threads > 1 && p->n_tokens <= k->max_tokens && k->measured_ns[knot] > 0.0 &&
               2.0 * k->measured_ns[knot] <= 2.0 * (double)k->step_limit_ns;
    }
    if (stage == STAGE_DECODE_DEPTH)
        *p = (gs_cost_probe){.n_tokens = 1, .pos = k->depth - 1};
    else if (stage == STAGE_PREFILL_DEPTH)
        *p = (gs_cost_probe){.n_tokens = DEPTH_CHUNK, .pos = k->depth - DEPTH_CHUNK};
    else
        *p = (gs_cost_probe){.n_tokens = 1, .sample = true};
    return p->pos >= 0 && p->n_tokens <= k->max_tokens && k->depth >= 2 * DEPTH_CHUNK;
}

static void finish_knots(const gs_cost_calibration *k, gs_cost *c) {
    for (int i = 0; i < GS_COST_KNOTS; i++) {
        c->seen[i] = k->measured_ns[i] > 0.0;
        if (c->seen[i])
            c->knot_ns[i] = k->measured_ns[i];
        else /* the slope goes on */
            c->knot_ns[i] = i < 2
                                ? c->knot_ns[i > 0 ? i - 1 : 0] * 1.1
                                : c->knot_ns[i - 1] + 2.0 * (c->knot_ns[i - 1] - c->knot_ns[i - 2]);
        if (i > 0)
            c->knot_ns[i] = fmax(c->knot_ns[i], c->knot_ns[i - 1]);
    }
    /* The fixed part is inside the knots; what attention adds at depth is fitted next. */
    c->fixed_ns = 0.0;
    c->decode_ctx_ns = c->prefill_ns = c->logit_ns = c->sample_ns = 0.0;
    default_part(c);
}

bool gs_cost_calibrate_next(gs_cost_calibration *k, const gs_cost *c, gs_cost_probe *out) {
    (void)c;
    while (k->stage < STAGE_DONE && !probe_of(k, k->stage, &k->probe)) {
        k->stage++;
        k->repeat = 0;
    }
    *out = k->probe;
    return k->stage < STAGE_DONE;
}

static double median3(const double v[3]) {
    return fmax(fmin(v[0], v[1]), fmin(fmax(v[0], v[1]), v[2]));
}

void gs_cost_calibrate_add(gs_cost_calibration *k, gs_cost *c, int64_t elapsed_ns) {
    GS_ASSERT(k->stage < STAGE_DONE);
    k->sample_ns[k->repeat++] = (double)(elapsed_ns > 0 ? elapsed_ns : 1);
    k->spent_ns += elapsed_ns;
    if (k->repeat < REPEATS)
        return;
    const double ns = median3(k->sample_ns);
    const int stage = k->stage++;
    k->repeat = 0;
    gs_cost_step x = {0};
    gs_cost_step_add(&x, k->probe.n_tokens, k->probe.pos, stage == STAGE_DECODE_DEPTH,
                     k->probe.sample);
    if (k->verify) {
        const double ratio = gs_cost_predict(c, &x) / ns;
        k->differs |= ratio > 1.3 || ratio < 1.0 / 1.3;
        return;
    }
    if (stage < GS_COST_KNOTS) {
        k->measured_ns[stage] = ns;
        finish_knots(k, c);
        c->calibrated = true;
    } else if (stage == STAGE_DECODE_DEPTH) {
        c->decode_ctx_ns = fmax(0.0, ns - gs_cost_predict(c, &x)) / x.decode_ctx;
    } else if (stage == STAGE_PREFILL_DEPTH) {
        c->prefill_ns = fmax(0.0, ns - gs_cost_predict(c, &x)) / x.prefill_area;
    } else if (k->probe.half) {
        const int32_t half = k->n_threads / 2;
        const double share = (double)half / k->n_threads;
        const double few = (ns / gs_cost_predict(c, &x) - 1.0) / (1.0 / share - 1.0);
        c->few[stage == STAGE_HALF_CHUNK] = fmin(fmax(few, 0.0), FEW_MAX);
    } else {
        const double extra = fmax(0.0, ns - gs_cost_predict(c, &x));
        c->logit_ns = 0.9 * extra; /* the projection to the vocabulary is nearly all of it */
        c->sample_ns = 0.1 * extra;
    }
}
