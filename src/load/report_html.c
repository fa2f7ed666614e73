/* The report of a run as a page: tables and plots, no scripts, nothing from elsewhere. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/sys.h"
#include "load/measure.h"
#include "load/svg.h"

#define CURVE 120 /* points of a distribution curve */

static void cell(gs_buf *out, const gs_quantile *q, double factor, int digits, double limit) {
    if (isnan(q->value))
        gs_buf_str(out, "<td>-</td>");
    else if (!q->enough)
        gs_buf_printf(out, "<td class=\"soft\" title=\"too few requests to tell\">%.*f?</td>",
                      digits, q->value * factor);
    else
        gs_buf_printf(out, "<td title=\"95 %% interval %.*f to %.*f\"%s>%.*f</td>", digits,
                      q->low * factor, digits, q->high * factor,
                      limit > 0 && q->value > limit ? " class=\"miss\"" : "", digits,
                      q->value * factor);
}

static void row(gs_buf *out, const char *name, const gs_load_group *g, const gs_load_target *t) {
    gs_buf_str(out, "<tr><td>");
    gs_html_text(out, name);
    gs_buf_printf(out, "</td><td>%d</td><td>%d</td><td>%d</td>", g->n, g->n_errors, g->n_cancelled);
    for (int q = 0; q < GS_Q_COUNT; q++)
        cell(out, &g->ttft[q], 1, 2, q == GS_Q95 ? t->ttft_s : 0);
    for (int q = 0; q < GS_Q_COUNT; q++)
        cell(out, &g->itl[q], 1e3, 1, 0);
    if (isnan(g->itl_max))
        gs_buf_str(out, "<td>-</td>");
    else
        gs_buf_printf(out, "<td>%.0f</td>", g->itl_max * 1e3);
    for (int q = 0; q < GS_Q99; q++)
        cell(out, &g->tpot[q], 1e3, 1, q == GS_Q95 ? t->tpot_s : 0);
    for (int q = 0; q < GS_Q99; q++)
        cell(out, &g->total[q], 1, 2, q == GS_Q95 ? t->complete_s : 0);
    if (g->n_judged > 0)
        gs_buf_printf(out, "<td title=\"95 %% interval %.1f to %.1f\"%s>%.1f</td></tr>\n",
                      100 * g->met_low, 100 * g->met_high,
                      g->n_met < 0.95 * g->n_judged ? " class=\"miss\"" : "",
                      100.0 * g->n_met / g->n_judged);
    else
        gs_buf_str(out, "<td>-</td></tr>\n");
}

static void table(const gs_load_run *run, const gs_load_summary *s, bool by_class, gs_buf *out) {
    static const gs_load_target none;
    gs_buf_printf(out,
                  "<table><tr><th>%s</th><th>n</th><th>errors</th><th>cut</th>"
                  "<th>TTFT p50 s</th><th>p95</th><th>p99</th><th>ITL p50 ms</th><th>p95</th>"
                  "<th>p99</th><th>max</th><th>TPOT p50 ms</th><th>p95</th><th>done p50 s</th>"
                  "<th>p95</th><th>met %%</th></tr>\n",
                  by_class ? "class" : "person");
    for (int32_t i = 0; i < (by_class ? GS_CLASS_COUNT : s->n_persons); i++) {
        const gs_load_group *g = by_class ? &s->classes[i] : &s->persons[i];
        if (g->n > 0)
            row(out, by_class ? gs_class_name((gs_class)i) : run->trace->persons[i], g,
                by_class ? &run->targets[i] : &none);
    }
    gs_buf_str(out, "</table>\n");
}

static void totals(const gs_load_summary *s, gs_buf *out) {
    gs_buf_printf(out,
                  "<p>%d requests, %d errors, %.1f s. Input %.1f tokens/s (from the cache %.1f), "
                  "output %.1f, embedded %.1f. ",
                  s->n, s->n_errors, s->seconds, s->input_tok_s, s->cached_tok_s, s->output_tok_s,
                  s->embedded_tok_s);
    if (!isnan(s->met))
        gs_buf_printf(out, "Targets met: %.1f %%. ", 100 * s->met);
    gs_buf_printf(out, "Goodput %.3f requests/s, %.1f output tokens/s. ", s->good_req_s,
                  s->good_tok_s);
    if (!isnan(s->jain))
        gs_buf_printf(out, "Jain's fairness %.3f. ", s->jain);
    gs_buf_printf(out, "The client was at most %.1f ms late (99 of 100).</p>\n",
                  isnan(s->late_p99_s) ? 0.0 : s->late_p99_s * 1e3);
}

/* ---- plots -----------------------------------------------------------------------------------*/

static int by_number(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const gs_trace_request *request_of(const gs_load_run *run, int32_t i) {
    return &run->trace->requests[run->records[i].request];
}

static int32_t class_values(const gs_load_run *run, int cls, bool gaps, double *v) {
    int32_t n = 0;
    for (int32_t i = 0; i < run->n; i++) {
        const gs_load_record *r = &run->records[i];
        if ((int)request_of(run, i)->cls != cls)
            continue;
        if (!gaps && r->first_s >= 0)
            v[n++] = r->first_s - r->due_s;
        for (int32_t k = 0; gaps && k < r->n_gaps; k++)
            v[n++] = (double)r->gaps_s[k] * 1e3;
    }
    qsort(v, (size_t)n, sizeof *v, by_number);
    return n;
}

/* What share of a class came within which time. */
static void distribution(const gs_load_run *run, bool gaps, double *v, gs_buf *out) {
    gs_axis x = {.low = (double)INFINITY,
                 .high = 0,
                 .log = true,
                 .title = gaps ? "ms between two pieces of text" : "s to the first text"};
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        const int32_t n = class_values(run, c, gaps, v);
        if (n == 0)
            continue;
        x.low = v[n / 50] < x.low ? v[n / 50] : x.low;
        x.high = v[n - 1] > x.high ? v[n - 1] : x.high;
    }
    if (x.high <= 0)
        return;
    x.low = x.low > 1e-4 ? x.low : 1e-4;
    gs_chart chart;
    gs_chart_begin(&chart, out, gaps ? "Gaps in the stream, by class" : "First text, by class", x,
                   (gs_axis){0, 100, false, "% of them within"});
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        double px[CURVE], py[CURVE];
        const int32_t n = class_values(run, c, gaps, v);
        const double limit = gaps ? run->targets[c].tpot_s * 1e3 : run->targets[c].ttft_s;
        if (n == 0)
            continue;
        for (int i = 0; i < CURVE; i++) {
            const double share = (i + 0.5) / CURVE;
            px[i] = v[(int32_t)(share * n)];
            py[i] = 100 * share;
        }
        gs_chart_line(&chart, c, px, py, CURVE);
        if (limit > 0)
            gs_chart_vline(&chart, c, limit);
        gs_chart_legend(&chart, c, gs_class_name((gs_class)c));
    }
    gs_chart_end(&chart);
    gs_buf_str(out, "<p class=\"soft\">Dashed: the class's target.</p>\n");
}

static void timeline(const gs_load_run *run, const gs_load_summary *s, gs_buf *out) {
    double most = 0;
    bool seen[GS_CLASS_COUNT] = {false};
    for (int32_t i = 0; i < run->n; i++) {
        const double t = gs_load_ttft(&run->records[i]);
        most = t > most ? t : most;
    }
    gs_chart chart;
    gs_chart_begin(&chart, out, "Every request: when it was due, how long its first text took",
                   (gs_axis){0, s->seconds, false, "s of the run"},
                   (gs_axis){0.01, most, true, "s to the first text"});
    for (int32_t i = 0; i < run->n; i++) {
        const gs_load_record *r = &run->records[i];
        const gs_trace_request *q = request_of(run, i);
        char tip[160];
        if (r->first_s < 0)
            continue;
        snprintf(tip, sizeof tip, "%.60s, %s: %.2f s, %d in, %d out", q->id, gs_class_name(q->cls),
                 gs_load_ttft(r), r->n_prompt, r->n_output);
        gs_chart_point(&chart, (int)q->cls, r->due_s, gs_load_ttft(r), false, tip);
        seen[q->cls] = true;
    }
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        if (seen[c])
            gs_chart_legend(&chart, c, gs_class_name((gs_class)c));
    gs_chart_end(&chart);
}

static void throughput(const gs_load_run *run, const gs_load_summary *s, gs_buf *out) {
    enum { BINS = 60 };
    double tokens[BINS] = {0}, most = 0;
    const double width = s->seconds > 0 ? s->seconds / BINS : 1;
    for (int32_t i = 0; i < run->n; i++) {
        const gs_load_record *r = &run->records[i];
        if (r->first_s < 0)
            continue;
        double t = r->first_s;
        for (int32_t k = 0; k <= r->n_gaps; k++) {
            const int b = (int)(t / width);
            tokens[b < 0 ? 0 : b >= BINS ? BINS - 1 : b] += (double)r->n_output / (r->n_gaps + 1);
            t += k < r->n_gaps ? (double)r->gaps_s[k] : 0.0;
        }
    }
    for (int b = 0; b < BINS; b++)
        most = tokens[b] / width > most ? tokens[b] / width : most;
    gs_chart chart;
    gs_chart_begin(&chart, out, "Output over time", (gs_axis){0, s->seconds, false, "s of the run"},
                   (gs_axis){0, most, false, "tokens/s"});
    for (int b = 0; b < BINS; b++) {
        char tip[64];
        snprintf(tip, sizeof tip, "%.0f-%.0f s: %.1f tokens/s", b * width, (b + 1) * width,
                 tokens[b] / width);
        gs_chart_bar(&chart, 1, b * width, (b + 0.9) * width, tokens[b] / width, tip);
    }
    gs_chart_end(&chart);
}

void gs_load_html(const gs_load_run *run, const gs_load_summary *s, gs_buf *out) {
    char title[200];
    size_t n = (size_t)run->n + 1;
    for (int32_t i = 0; i < run->n; i++)
        n += (size_t)run->records[i].n_gaps;
    double *v = gs_array(n, sizeof *v);
    snprintf(title, sizeof title, "gamasot bench: %s", run->label);
    gs_page_begin(out, title);
    totals(s, out);
    table(run, s, true, out);
    table(run, s, false, out);
    gs_buf_printf(out,
                  "<p class=\"soft\">Times count from when a request was due. TTFT: to the first "
                  "text; ITL: between two pieces of text; TPOT: mean time of a token after the "
                  "first. A question mark: too few requests; p95 is told from %d on, p99 from "
                  "%d. Hold the pointer over a number for its 95 %% interval.</p>\n",
                  gs_quantile_needs(GS_Q95), gs_quantile_needs(GS_Q99));
    if (v) {
        distribution(run, false, v, out);
        distribution(run, true, v, out);
    }
    timeline(run, s, out);
    throughput(run, s, out);
    gs_page_end(out);
    out->failed |= v == NULL;
    gs_free(v);
}
