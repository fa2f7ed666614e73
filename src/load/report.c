/* Reports of a run: tables for a terminal, JSON, and two results beside each other. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/err.h"
#include "base/jsonw.h"
#include "load/measure.h"
#include "load/svg.h"

static const char *const q_names[GS_Q_COUNT] = {"p50", "p95", "p99"};

/* One number of a group: where it is, what it is called, how it is shown. */
typedef struct column {
    const char *title, *key; /* of the JSON */
    size_t offset;           /* of a gs_quantile in gs_load_group */
    int q;
    double factor;
    int digits;
} column;

#define Q(field, q) offsetof(gs_load_group, field) + (q) * sizeof(gs_quantile), q

static const column columns[] = {
    {"TTFT p50 s", "ttft_p50", Q(ttft, GS_Q50), 1, 3},
    {"p95", "ttft_p95", Q(ttft, GS_Q95), 1, 3},
    {"p99", "ttft_p99", Q(ttft, GS_Q99), 1, 3},
    {"ITL p50 ms", "itl_p50", Q(itl, GS_Q50), 1e3, 1},
    {"p95", "itl_p95", Q(itl, GS_Q95), 1e3, 1},
    {"p99", "itl_p99", Q(itl, GS_Q99), 1e3, 1},
    {"TPOT p50 ms", "tpot_p50", Q(tpot, GS_Q50), 1e3, 1},
    {"p95", "tpot_p95", Q(tpot, GS_Q95), 1e3, 1},
    {"done p50 s", "completion_p50", Q(total, GS_Q50), 1, 2},
    {"p95", "completion_p95", Q(total, GS_Q95), 1, 2},
};
#define N_COLUMNS ((int)(sizeof columns / sizeof columns[0]))

static const gs_quantile *quantile_at(const gs_load_group *g, const column *c) {
    return (const gs_quantile *)(const void *)((const char *)g + c->offset);
}

/* The name of group i, or NULL: nobody is in it. */
static const char *group_name(const gs_load_run *run, const gs_load_summary *s, bool by_class,
                              int32_t i) {
    if (by_class)
        return s->classes[i].n > 0 ? gs_class_name((gs_class)i) : NULL;
    return s->persons[i].n > 0 ? run->trace->persons[i] : NULL;
}

static const gs_load_group *group_at(const gs_load_summary *s, bool by_class, int32_t i) {
    return by_class ? &s->classes[i] : &s->persons[i];
}

static int32_t n_groups(const gs_load_summary *s, bool by_class) {
    return by_class ? GS_CLASS_COUNT : s->n_persons;
}

/* ---- terminal --------------------------------------------------------------------------------*/

static void print_number(gs_buf *out, int width, double v, double factor, int digits) {
    if (isnan(v))
        gs_buf_printf(out, "  %*s", width, "-");
    else
        gs_buf_printf(out, "  %*.*f", width, digits, v * factor);
}

static void print_groups(const gs_load_run *run, const gs_load_summary *s, bool by_class,
                         gs_buf *out) {
    gs_buf_printf(out, "%-11s %5s %4s %4s", by_class ? "class" : "person", "n", "err", "cut");
    for (int c = 0; c < N_COLUMNS; c++)
        gs_buf_printf(out, "  %11s", columns[c].title);
    gs_buf_printf(out, "  %11s  %18s\n", "max gap ms", "met % (95 % int.)");
    for (int32_t i = 0; i < n_groups(s, by_class); i++) {
        const char *name = group_name(run, s, by_class, i);
        const gs_load_group *g = group_at(s, by_class, i);
        if (!name)
            continue;
        gs_buf_printf(out, "%-11.11s %5d %4d %4d", name, g->n, g->n_errors, g->n_cancelled);
        for (int c = 0; c < N_COLUMNS; c++) {
            const gs_quantile *q = quantile_at(g, &columns[c]);
            print_number(out, 10, q->value, columns[c].factor, columns[c].digits);
            gs_buf_char(out, q->enough || isnan(q->value) ? ' ' : '?');
        }
        print_number(out, 11, g->itl_max, 1e3, 0);
        if (g->n_judged > 0)
            gs_buf_printf(out, "  %5.1f (%4.1f-%5.1f)", 100.0 * g->n_met / g->n_judged,
                          100 * g->met_low, 100 * g->met_high);
        else
            gs_buf_printf(out, "  %18s", "-");
        gs_buf_char(out, '\n');
    }
    gs_buf_char(out, '\n');
}

/* Which percentiles can't be told, in words. */
static void print_too_few(const gs_load_run *run, const gs_load_summary *s, gs_buf *out) {
    for (int q = GS_Q_COUNT - 1; q > GS_Q50; q--) {
        bool any = false;
        for (int32_t i = 0; i < GS_CLASS_COUNT; i++) {
            const gs_load_group *g = &s->classes[i];
            if (!group_name(run, s, true, i) || g->ttft[q].enough)
                continue;
            if (!any)
                gs_buf_printf(out, "? not enough samples for %s of", q_names[q]);
            gs_buf_printf(out, "%s %s (%d)", any ? "," : "", gs_class_name((gs_class)i), g->n);
            any = true;
        }
        if (any)
            gs_buf_printf(out, ": %d are needed\n", gs_quantile_needs(q));
    }
}

static void print_intervals(const gs_load_run *run, const gs_load_summary *s, gs_buf *out) {
    for (int32_t i = 0; i < GS_CLASS_COUNT; i++) {
        const gs_quantile *t = &s->classes[i].ttft[GS_Q95], *l = &s->classes[i].itl[GS_Q95];
        if (!group_name(run, s, true, i) || isnan(t->value))
            continue;
        gs_buf_printf(out, "%-11s TTFT p95 %.3f s, 95 %% interval %.3f-%.3f",
                      gs_class_name((gs_class)i), t->value, t->low, t->high);
        if (!isnan(l->value))
            gs_buf_printf(out, "; ITL p95 %.1f ms, %.1f-%.1f", l->value * 1e3, l->low * 1e3,
                          l->high * 1e3);
        gs_buf_str(out, "\n");
    }
}

void gs_load_print(const gs_load_run *run, const gs_load_summary *s, gs_buf *out) {
    print_groups(run, s, true, out);
    print_groups(run, s, false, out);
    print_too_few(run, s, out);
    print_intervals(run, s, out);
    gs_buf_printf(out,
                  "\n%d requests, %d errors, %.1f s; client late p99 %.1f ms\n"
                  "input %.1f tok/s (cached %.1f), output %.1f tok/s, embedded %.1f tok/s\n",
                  s->n, s->n_errors, s->seconds, isnan(s->late_p99_s) ? 0.0 : s->late_p99_s * 1e3,
                  s->input_tok_s, s->cached_tok_s, s->output_tok_s, s->embedded_tok_s);
    if (!isnan(s->met))
        gs_buf_printf(out, "targets met %.1f %%, ", 100 * s->met);
    gs_buf_printf(out, "goodput %.3f requests/s, %.1f output tok/s\n", s->good_req_s,
                  s->good_tok_s);
    if (!isnan(s->jain))
        gs_buf_printf(out, "Jain fairness %.3f in %.1f contended s\n", s->jain, s->contended_s);
    if (s->late_p99_s > 0.02)
        gs_buf_str(out, "The client itself was late: this machine lacked processor time, and the "
                        "figures are too high.\n");
    if (run->n_not_started > 0)
        gs_buf_printf(out, "%d requests had not started when the run ended\n", run->n_not_started);
}

/* ---- JSON ------------------------------------------------------------------------------------*/

static void put(gs_jsonw *w, const char *key, double v) {
    gs_jsonw_key(w, key);
    gs_jsonw_num(w, v);
}

static void json_group(gs_jsonw *w, const gs_load_group *g) {
    gs_jsonw_obj(w);
    put(w, "n", g->n);
    put(w, "errors", g->n_errors);
    put(w, "cancelled", g->n_cancelled);
    for (int c = 0; c < N_COLUMNS; c++)
        put(w, columns[c].key, quantile_at(g, &columns[c])->value);
    put(w, "tpot_mean", g->tpot_mean);
    put(w, "max_gap", g->itl_max);
    put(w, "slo_judged", g->n_judged);
    put(w, "slo_met", g->n_judged > 0 ? (double)g->n_met / g->n_judged : (double)NAN);
    put(w, "input_tokens", (double)g->n_input);
    put(w, "cached_tokens", (double)g->n_cached);
    put(w, "output_tokens", (double)g->n_output);
    gs_jsonw_key(w, "intervals");
    gs_jsonw_obj(w);
    for (int c = 0; c <= N_COLUMNS; c++) {
        const gs_quantile *q = c < N_COLUMNS ? quantile_at(g, &columns[c]) : NULL;
        if (q && isnan(q->value))
            continue;
        gs_jsonw_key(w, q ? columns[c].key : "slo_met");
        gs_jsonw_arr(w);
        gs_jsonw_num(w, q ? q->low : g->met_low);
        gs_jsonw_num(w, q ? q->high : g->met_high);
        gs_jsonw_end_arr(w);
    }
    gs_jsonw_end_obj(w);
    gs_jsonw_key(w, "too_few_for");
    gs_jsonw_arr(w);
    for (int c = 0; c < N_COLUMNS; c++)
        if (!quantile_at(g, &columns[c])->enough && !isnan(quantile_at(g, &columns[c])->value))
            gs_jsonw_str(w, columns[c].key);
    gs_jsonw_end_arr(w);
    gs_jsonw_end_obj(w);
}

static void json_groups(gs_jsonw *w, const gs_load_run *run, const gs_load_summary *s,
                        bool by_class) {
    gs_jsonw_key(w, by_class ? "classes" : "persons");
    gs_jsonw_obj(w);
    for (int32_t i = 0; i < n_groups(s, by_class); i++) {
        const char *name = group_name(run, s, by_class, i);
        if (!name)
            continue;
        gs_jsonw_key(w, name);
        json_group(w, group_at(s, by_class, i));
    }
    gs_jsonw_end_obj(w);
}

static void json_totals(gs_jsonw *w, const gs_load_run *run, const gs_load_summary *s) {
    const struct {
        const char *key;
        double value;
    } v[] = {
        {"requests", s->n},
        {"errors", s->n_errors},
        {"duration_s", s->seconds},
        {"input_tok_s", s->input_tok_s},
        {"cached_tok_s", s->cached_tok_s},
        {"output_tok_s", s->output_tok_s},
        {"embedded_tok_s", s->embedded_tok_s},
        {"goodput_req_s", s->good_req_s},
        {"goodput_output_tok_s", s->good_tok_s},
        {"slo_met", s->met},
        {"driver_late_p99_s", s->late_p99_s},
    };
    gs_jsonw_key(w, "totals");
    gs_jsonw_obj(w);
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++)
        put(w, v[i].key, v[i].value);
    gs_jsonw_end_obj(w);
    gs_jsonw_key(w, "fairness");
    gs_jsonw_obj(w);
    put(w, "jain", s->jain);
    put(w, "contended_s", s->contended_s);
    gs_jsonw_key(w, "service");
    gs_jsonw_obj(w);
    for (int32_t i = 1; i < run->trace->n_persons; i++)
        if (s->service[i] >= 0)
            put(w, run->trace->persons[i], s->service[i]);
    gs_jsonw_end_obj(w);
    gs_jsonw_end_obj(w);
}

static void json_time(gs_jsonw *w, const char *key, double s) {
    put(w, key, s < 0 ? (double)NAN : s);
}

static void json_record(gs_jsonw *w, const gs_load_run *run, const gs_load_record *r) {
    const gs_trace_request *q = &run->trace->requests[r->request];
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "id");
    gs_jsonw_str(w, q->id);
    gs_jsonw_key(w, "person");
    gs_jsonw_str(w, run->trace->persons[q->name] ? run->trace->persons[q->name] : "");
    gs_jsonw_key(w, "class");
    gs_jsonw_str(w, gs_class_name(q->cls));
    gs_jsonw_key(w, "api");
    gs_jsonw_str(w, gs_trace_api_name(q->api));
    put(w, "deadline", q->deadline_s > 0 ? q->deadline_s : (double)NAN);
    json_time(w, "due_s", r->due_s);
    json_time(w, "sent_s", r->sent_s);
    json_time(w, "first_s", r->first_s);
    json_time(w, "chars60_s", -1);
    json_time(w, "end_s", r->end_s);
    gs_jsonw_key(w, "gaps_s");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < r->n_gaps; i++)
        gs_jsonw_num(w, round((double)r->gaps_s[i] * 1e6) / 1e6);
    gs_jsonw_end_arr(w);
    put(w, "prompt_tokens", r->n_prompt);
    put(w, "cached_tokens", r->n_cached);
    put(w, "output_tokens", r->n_output);
    gs_jsonw_key(w, "usage");
    gs_jsonw_bool(w, r->usage);
    gs_jsonw_key(w, "status");
    gs_jsonw_str(w, gs_load_status_name(r->status));
    put(w, "http_status", r->http_status > 0 ? r->http_status : (double)NAN);
    put(w, "attempts", r->n_attempts);
    gs_jsonw_end_obj(w);
}

static void json_targets(gs_jsonw *w, const gs_load_run *run) {
    gs_jsonw_key(w, "slo");
    gs_jsonw_obj(w);
    for (int i = 0; i < GS_CLASS_COUNT; i++) {
        const gs_load_target *t = &run->targets[i];
        gs_jsonw_key(w, gs_class_name((gs_class)i));
        gs_jsonw_obj(w);
        if (t->ttft_s > 0)
            put(w, "ttft", t->ttft_s);
        if (t->tpot_s > 0)
            put(w, "tpot", t->tpot_s);
        if (t->complete_s > 0)
            put(w, "deadline", t->complete_s);
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_obj(w);
}

void gs_load_json(const gs_load_run *run, const gs_load_summary *s, const char *options,
                  gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "label");
    gs_jsonw_str(&w, run->label);
    gs_jsonw_key(&w, "options");
    gs_jsonw_raw(&w, options, strlen(options));
    put(&w, "speed", run->speed);
    put(&w, "not_started", run->n_not_started);
    json_targets(&w, run);
    gs_jsonw_key(&w, "summary");
    gs_jsonw_obj(&w);
    json_groups(&w, run, s, true);
    json_groups(&w, run, s, false);
    json_totals(&w, run, s);
    gs_jsonw_end_obj(&w);
    gs_jsonw_key(&w, "requests");
    gs_jsonw_arr(&w);
    for (int32_t i = 0; i < run->n; i++)
        json_record(&w, run, &run->records[i]);
    gs_jsonw_end_arr(&w);
    gs_jsonw_end_obj(&w);
    gs_buf_char(out, '\n');
}

/* ---- two results -----------------------------------------------------------------------------*/

typedef struct compared {
    const char *title, *key;
    double factor;
} compared;

static const compared class_rows[] = {
    {"TTFT p50 s", "ttft_p50", 1},    {"TTFT p95 s", "ttft_p95", 1},
    {"TTFT p99 s", "ttft_p99", 1},    {"ITL p95 ms", "itl_p95", 1e3},
    {"ITL p99 ms", "itl_p99", 1e3},   {"max gap ms", "max_gap", 1e3},
    {"TPOT p95 ms", "tpot_p95", 1e3}, {"done p95 s", "completion_p95", 1},
    {"met %", "slo_met", 100},
};
static const compared total_rows[] = {
    {"input tok/s", "input_tok_s", 1},
    {"output tok/s", "output_tok_s", 1},
    {"embedded tok/s", "embedded_tok_s", 1},
    {"goodput req/s", "goodput_req_s", 1},
    {"goodput output tok/s", "goodput_output_tok_s", 1},
    {"targets met %", "slo_met", 100},
};

static double number_of(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static void compare_rows(const json_t *a, const json_t *b, const char *group, const compared *rows,
                         size_t n, gs_buf *text, gs_buf *html) {
    for (size_t i = 0; i < n; i++) {
        const double x = number_of(a, rows[i].key), y = number_of(b, rows[i].key);
        char ratio[32] = "-";
        if (isnan(x) && isnan(y))
            continue;
        if (x > 0 && y > 0)
            snprintf(ratio, sizeof ratio, "%.2f", y / x);
        gs_buf_printf(text, "%-11.11s %-21s %11.3f %11.3f %8s\n", group, rows[i].title,
                      x * rows[i].factor, y * rows[i].factor, ratio);
        gs_buf_str(html, "<tr><td>");
        gs_html_text(html, group);
        gs_buf_printf(html, "</td><td>%s</td><td>%.3f</td><td>%.3f</td><td>%s</td></tr>\n",
                      rows[i].title, x * rows[i].factor, y * rows[i].factor, ratio);
    }
}

static void compare(const json_t *a, const json_t *b, gs_buf *text, gs_buf *html) {
    const json_t *sa = json_object_get(a, "summary"), *sb = json_object_get(b, "summary");
    const char *la = json_string_value(json_object_get(a, "label"));
    const char *lb = json_string_value(json_object_get(b, "label"));
    gs_buf_printf(text, "%-11s %-21s %11.11s %11.11s %8s\n", "", "", la ? la : "a", lb ? lb : "b",
                  "ratio");
    gs_page_begin(html, "gamasot bench: two results");
    gs_buf_str(html, "<table><tr><th></th><th></th><th>");
    gs_html_text(html, la ? la : "a");
    gs_buf_str(html, "</th><th>");
    gs_html_text(html, lb ? lb : "b");
    gs_buf_str(html, "</th><th>ratio</th></tr>\n");
    for (int i = 0; i < GS_CLASS_COUNT; i++) {
        const char *name = gs_class_name((gs_class)i);
        compare_rows(json_object_get(json_object_get(sa, "classes"), name),
                     json_object_get(json_object_get(sb, "classes"), name), name, class_rows,
                     sizeof class_rows / sizeof class_rows[0], text, html);
    }
    compare_rows(json_object_get(sa, "totals"), json_object_get(sb, "totals"), "all", total_rows,
                 sizeof total_rows / sizeof total_rows[0], text, html);
    gs_buf_str(html, "</table>\n<p class=\"soft\">The ratio is the second by the first.</p>\n");
    gs_page_end(html);
}

int gs_load_compare(const char *path_a, const char *path_b, gs_buf *text, gs_buf *html, char *err,
                    size_t errlen) {
    json_error_t je;
    json_t *a = json_load_file(path_a, JSON_REJECT_DUPLICATES, &je);
    if (!a)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "%s: %s", path_a, je.text);
    json_t *b = json_load_file(path_b, JSON_REJECT_DUPLICATES, &je);
    int rc = b ? 0 : gs_fail(err, errlen, GS_ERR_FORMAT, "%s: %s", path_b, je.text);
    if (rc == 0 && (!json_is_object(json_object_get(a, "summary")) ||
                    !json_is_object(json_object_get(b, "summary"))))
        rc = gs_fail(err, errlen, GS_ERR_FORMAT, "no results of a bench: \"summary\" is missing");
    if (rc == 0)
        compare(a, b, text, html);
    json_decref(a);
    json_decref(b);
    return rc;
}
