/* What the tuner found: in words, as a page, as a configuration, as JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/jsonw.h"
#include "cli/tune.h"
#include "load/svg.h"

#define Z90 1.281552 /* one-sided, 90 of 100 */

/* How classes are called in a sentence. */
static const char *const work[GS_CLASS_COUNT][2] = {
    [GS_CLASS_VOICE] = {"spoken request", "spoken requests"},
    [GS_CLASS_CHAT] = {"chat", "chats"},
    [GS_CLASS_COMPLETION] = {"completion", "completions"},
    [GS_CLASS_DOCUMENT] = {"document", "documents"},
    [GS_CLASS_UTILITY] = {"small task", "small tasks"},
    [GS_CLASS_BACKGROUND] = {"background job", "background jobs"},
};

static const gs_tune_result *best_of(const gs_tune_findings *f) {
    return &f->outcome->best[0];
}

/* "3 chats, 1 spoken request and 2 background jobs" at the busiest moments. */
static void write_peaks(const int32_t peak[GS_CLASS_COUNT], gs_buf *out) {
    int left = 0, n = 0;
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        left += peak[c] > 0;
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        if (peak[c] == 0)
            continue;
        left--;
        gs_buf_printf(out, "%s%d %s",
                      n == 0      ? ""
                      : left == 0 ? " and "
                                  : ", ",
                      peak[c], work[c][peak[c] != 1]);
        n++;
    }
}

/* The last try of the chosen candidate. */
static void write_measured(const gs_tune_findings *f, gs_buf *out) {
    const gs_tune_measured *last = NULL;
    for (int i = 0; i < f->n_measured; i++)
        if (f->measured[i].candidate == 1)
            last = &f->measured[i];
    if (last)
        gs_buf_printf(out, "Played on the real engine, %s at %.2f times the load.\n",
                      last->holds ? "every target held" : "some target was still missed",
                      last->load);
}

/* The sentences that everybody reads; none is longer than it must be. */
static void write_summary(const gs_tune_findings *f, gs_buf *out) {
    const gs_tune_result *b = best_of(f), *s = &f->outcome->start;
    if (b->load <= 0) {
        gs_buf_str(out, "No setting makes all targets hold on this machine, not even at a fiftieth "
                        "of the trace's load.\n");
    } else {
        gs_buf_printf(out,
                      "This machine carries %.2f times the trace's load with every target "
                      "held; at its busiest that is ",
                      b->load);
        write_peaks(f->at_best.peak, out);
        gs_buf_str(out, " at the same time.\n");
        if (f->beyond.rep.end_ns > 0 && f->beyond.worst_class >= 0 && f->beyond.look.margin <= 0)
            gs_buf_printf(out, "With more than that, the first thing to break is the %s of %s.\n",
                          f->beyond.worst_what, work[f->beyond.worst_class][1]);
        if (s->load > 0 && b->throughput < 1.03 * s->throughput)
            gs_buf_printf(out,
                          "The settings there are now carry %.2f times: within 3 %% of the "
                          "best, so nothing needs to change.\n",
                          s->load);
        else if (s->load > 0)
            gs_buf_printf(out,
                          "The settings there are now carry %.2f times: these carry %.2f times "
                          "as much.\n",
                          s->load, b->throughput / s->throughput);
        else
            gs_buf_str(out,
                       "With the settings there are now, some target is missed at any load.\n");
    }
    for (int c = 0; c < GS_CLASS_BACKGROUND; c++)
        if (f->t->exempt[c])
            gs_buf_printf(out,
                          "The targets of %s can't be met on this machine even when nobody else "
                          "asks for anything%s; the settings are for the others.\n",
                          work[c][1],
                          f->half_helps[c] ? " (a model of half the size would meet them)" : "");
    write_measured(f, out);
}

static void write_help(const gs_tune_findings *f, gs_buf *out) {
    const double now = best_of(f)->load;
    const struct {
        const char *what;
        double load;
    } ways[] = {
        {"a model of half the size", f->with_half_step},
        {"twice the attention cache (kv.type = q8, or more kv.memory_mb)", f->with_more_kv},
        {"a second machine that takes half of the work", f->with_worker},
    };
    bool any = false;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (ways[i].load <= now * 1.05 && !(now <= 0 && ways[i].load > 0))
            continue;
        gs_buf_printf(out, "%s %s: %.2f times the load.\n",
                      any ? " " : "What would help, by simulation:\n ", ways[i].what, ways[i].load);
        any = true;
    }
    if (!any)
        gs_buf_str(out, "Neither a smaller model, more cache nor a second machine would carry much "
                        "more of this trace.\n");
}

/* What is told with how much certainty. */
static void write_confidence(const gs_tune_findings *f, gs_buf *out) {
    for (int c = 0; c < GS_CLASS_BACKGROUND; c++) {
        double low, high;
        if (f->judged[c] == 0)
            continue;
        gs_wilson(f->met[c], f->judged[c], Z90, &low, &high);
        gs_buf_printf(out,
                      "%s: %d of %d in time over %d variations of the trace; with 90 %% "
                      "confidence at least %.1f %%%s\n",
                      work[c][1], f->met[c], f->judged[c], f->t->n_seeds, 100 * low,
                      low < 0.95 ? " (too few to be sure of 95 %)" : "");
    }
}

static void write_choice(const gs_tune_findings *f, int axis, gs_buf *out) {
    const gs_tune_axis *x = &f->t->axes[axis];
    const int v = best_of(f)->point.choice[axis];
    if (!x->tunable)
        gs_buf_printf(out, "machine: %s", f->t->variants[v].label);
    else
        gs_buf_printf(out, "%s = %s%s%s", x->tunable->option, x->values[v],
                      v == x->start ? "" : "   was ", v == x->start ? "" : x->values[x->start]);
}

void gs_tune_write_text(const gs_tune_findings *f, gs_buf *out) {
    write_summary(f, out);
    gs_buf_char(out, '\n');
    write_confidence(f, out);
    gs_buf_str(out, "\nSettings that differ from now:\n");
    for (int i = 0; i < f->t->n_axes && best_of(f)->load > 0; i++)
        if (best_of(f)->point.choice[i] != f->t->axes[i].start) {
            gs_buf_str(out, "  ");
            write_choice(f, i, out);
            gs_buf_char(out, '\n');
        }
    gs_buf_str(out, "\nSettings that matter most (what the worst other value would cost):\n");
    for (int i = 0; i < 6 && i < f->t->n_axes; i++) {
        const gs_tune_sensitivity *k = &f->outcome->sensitivity[i];
        const gs_tune_axis *x = &f->t->axes[k->param];
        if (k->worst < 0.995)
            gs_buf_printf(out, "  %-32s %4.0f %% less with %s\n",
                          x->tunable ? x->tunable->option : "machine", 100 * (1 - k->worst),
                          x->tunable ? x->values[k->worst_choice]
                                     : f->t->variants[k->worst_choice].label);
    }
    gs_buf_char(out, '\n');
    write_help(f, out);
    for (int i = 0; i < f->n_measured; i++) {
        const gs_tune_measured *m = &f->measured[i];
        gs_buf_printf(out,
                      "On the real engine, candidate %d at %.2f times: targets %s, %.1f output "
                      "tokens/s, %.1f %% of requests in time\n",
                      m->candidate, m->load, m->holds ? "held" : "missed", m->summary.output_tok_s,
                      100 * m->summary.met);
    }
    gs_buf_printf(out, "\n%d candidates in %.1f s, %d simulations\n", f->outcome->n_candidates,
                  f->seconds, f->outcome->n_looks);
}

/* ---- configuration ---------------------------------------------------------------------------*/

static const gs_tune_sensitivity *sensitivity_of(const gs_tune_findings *f, int axis) {
    for (int i = 0; i < f->t->n_axes; i++)
        if (f->outcome->sensitivity[i].param == axis)
            return &f->outcome->sensitivity[i];
    return NULL;
}

void gs_tune_write_config(const gs_tune_findings *f, gs_buf *out) {
    char section[64] = "";
    gs_buf_str(out, "# Written by gamasot tune. ");
    gs_buf_printf(out, "Carries %.2f times the trace's load; the settings before carried %.2f.\n",
                  best_of(f)->load, f->outcome->start.load);
    if (best_of(f)->load <= 0)
        return;
    gs_buf_str(out, "# Only what differs from the settings before is here.\n");
    const gs_tune_variant *v = gs_tuner_variant(f->t, &best_of(f)->point);
    if (v->sets[0])
        gs_buf_printf(out, "# With the options of the variant: %s\n", v->sets);
    for (int i = 0; i < f->t->n_axes; i++) {
        const gs_tune_axis *x = &f->t->axes[i];
        const int choice = best_of(f)->point.choice[i];
        if (!x->tunable || choice == x->start)
            continue;
        const char *dot = strchr(x->tunable->option, '.');
        const size_t n = (size_t)(dot - x->tunable->option);
        const gs_tune_sensitivity *k = sensitivity_of(f, i);
        if (strncmp(section, x->tunable->option, n) != 0 || section[n] != '\0') {
            snprintf(section, sizeof section, "%.*s", (int)n, x->tunable->option);
            gs_buf_printf(out, "\n[%s]\n", section);
        }
        gs_buf_printf(out, "# %s; was %s", x->tunable->about, x->values[x->start]);
        if (k && k->worst < 0.995)
            gs_buf_printf(out, "; %s would carry %.0f %% less", x->values[k->worst_choice],
                          100 * (1 - k->worst));
        const char *quote = x->words ? "\"" : "";
        gs_buf_printf(out, "\n%s = %s%s%s\n", dot + 1, quote, x->values[choice], quote);
    }
}

/* ---- page ------------------------------------------------------------------------------------*/

static void paragraph(gs_buf *out, const gs_tune_findings *f,
                      void (*write)(const gs_tune_findings *, gs_buf *)) {
    gs_buf text = {0};
    write(f, &text);
    gs_buf_str(out, "<p>");
    for (size_t i = 0; i < text.len; i++) {
        const char one[2] = {text.data[i], '\0'};
        if (one[0] == '\n')
            gs_buf_str(out, "<br>\n");
        else
            gs_html_text(out, one);
    }
    gs_buf_str(out, "</p>\n");
    gs_buf_deinit(&text);
}

static void draw_curve(const gs_tune_findings *f, bool gaps, gs_buf *out) {
    const gs_class lead = (gs_class)gs_tuner_lead_class(f->t);
    const gs_load_target *target = &f->t->targets[lead];
    const double limit = 1e3 * (gaps ? target->tpot_s : target->ttft_s);
    double x[GS_TUNE_CURVE] = {0}, y[GS_TUNE_CURVE] = {0}, most_x = 0, most_y = limit * 1.2;
    char title[160];
    gs_chart c;
    for (int i = 0; i < f->n_curve; i++) {
        x[i] = f->curve[i].tokens_per_s;
        y[i] = gaps ? f->curve[i].itl_p95_ms : f->curve[i].ttft_p95_ms;
        most_x = x[i] > most_x ? x[i] : most_x;
        most_y = y[i] > most_y ? y[i] : most_y;
    }
    if (most_y > 5 * limit && limit > 0)
        most_y = 5 * limit;
    snprintf(title, sizeof title, "%s of %s against throughput (95 of 100)",
             gaps ? "Time between tokens" : "Time to the first text", work[lead][1]);
    gs_chart_begin(&c, out, title, (gs_axis){0, most_x * 1.05, false, "tokens/s of everybody"},
                   (gs_axis){0, most_y, false, "ms"});
    gs_chart_line(&c, 1, x, y, f->n_curve);
    if (limit > 0)
        gs_chart_hline(&c, 0, limit);
    for (int i = 0; i < f->n_curve; i++) {
        const gs_tune_curve_point *p = &f->curve[i];
        char tip[200];
        snprintf(tip, sizeof tip, "%.2f times the load: %.0f tokens/s, %.0f ms%s%s", p->load,
                 p->tokens_per_s, y[i], p->holds ? "" : "; breaks ", p->breaks);
        gs_chart_point(&c, p->holds ? 7 : 0, x[i], y[i], i == f->chosen, tip);
    }
    gs_chart_legend(&c, 7, "all targets hold");
    gs_chart_legend(&c, 0, "some target breaks");
    gs_chart_end(&c);
}

static void table_of_settings(const gs_tune_findings *f, gs_buf *out) {
    gs_buf_str(out, "<table><tr><th>setting</th><th>now</th><th>found</th><th>what it is</th>"
                    "<th>worst other value</th></tr>\n");
    for (int i = 0; i < f->t->n_axes; i++) {
        const gs_tune_sensitivity *k = &f->outcome->sensitivity[i];
        const gs_tune_axis *x = &f->t->axes[k->param];
        const int choice = best_of(f)->point.choice[k->param];
        if (!x->tunable || (choice == x->start && k->worst > 0.98))
            continue;
        gs_buf_printf(out, "<tr><td>%s</td><td>%s</td><td>%s</td><td>%s</td>", x->tunable->option,
                      x->values[x->start], x->values[choice], x->tunable->about);
        if (k->worst < 0.995)
            gs_buf_printf(out, "<td>%.0f %% less with %s</td></tr>\n", 100 * (1 - k->worst),
                          x->values[k->worst_choice]);
        else
            gs_buf_str(out, "<td>makes no difference</td></tr>\n");
    }
    gs_buf_str(out, "</table>\n");
}

static void table_of_classes(const gs_tune_findings *f, gs_buf *out) {
    gs_buf_str(out, "<table><tr><th>class</th><th>requests</th><th>first text p95 s</th>"
                    "<th>allowed</th><th>tokens p95 ms</th><th>allowed</th><th>done p95 s</th>"
                    "<th>at once</th></tr>\n");
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        const gs_sim_class *k = &f->at_best.rep.cls[c];
        const gs_load_target *t = &f->t->targets[c];
        if (k->n == 0)
            continue;
        gs_buf_printf(out,
                      "<tr><td>%s</td><td>%d</td><td>%.2f</td><td>%.2f</td><td>%.0f</td>"
                      "<td>%.0f</td><td>%.2f</td><td>%d</td></tr>\n",
                      gs_class_name((gs_class)c), k->n, (double)k->ttft_p95_ns / 1e9, t->ttft_s,
                      (double)k->tpot_p95_ns / 1e6, t->tpot_s * 1e3, (double)k->total_p95_ns / 1e9,
                      f->at_best.peak[c]);
    }
    gs_buf_str(out, "</table>\n<p class=\"soft\">Simulated at the chosen load. 0: no such "
                    "target.</p>\n");
}

static void table_of_measured(const gs_tune_findings *f, gs_buf *out) {
    if (f->n_measured == 0) {
        gs_buf_str(out, "<p class=\"soft\">Nothing was played on the real engine (--confirm N does "
                        "that).</p>\n");
        return;
    }
    gs_buf_str(out, "<h2>On the real engine</h2>\n<table><tr><th>candidate</th><th>load</th>"
                    "<th>class</th><th>n</th><th>first text p95 s</th><th>tokens p95 ms</th>"
                    "<th>in time %</th></tr>\n");
    for (int i = 0; i < f->n_measured; i++)
        for (int c = 0; c < GS_CLASS_COUNT; c++) {
            const gs_load_group *g = &f->measured[i].summary.classes[c];
            if (g->n == 0)
                continue;
            gs_buf_printf(out, "<tr><td>%d</td><td>%.2f</td><td>%s</td><td>%d</td>",
                          f->measured[i].candidate, f->measured[i].load, gs_class_name((gs_class)c),
                          g->n);
            if (isnan(g->ttft[GS_Q95].value))
                gs_buf_str(out, "<td>-</td>");
            else
                gs_buf_printf(out, "<td>%.2f</td>", g->ttft[GS_Q95].value);
            if (isnan(g->tpot[GS_Q95].value))
                gs_buf_str(out, "<td>-</td>");
            else
                gs_buf_printf(out, "<td>%.0f</td>", 1e3 * g->tpot[GS_Q95].value);
            gs_buf_printf(out, "<td>%.1f</td></tr>\n",
                          g->n_judged > 0 ? 100.0 * g->n_met / g->n_judged : 100.0);
        }
    gs_buf_str(out, "</table>\n");
}

void gs_tune_write_html(const gs_tune_findings *f, gs_buf *out) {
    gs_page_begin(out, "gamasot tune: what this machine carries");
    paragraph(out, f, write_summary);
    gs_buf_printf(out, "<p class=\"soft\">Machine: ");
    gs_html_text(out, gs_tuner_variant(f->t, &best_of(f)->point)->label);
    gs_buf_printf(out, ". %d candidates in %.1f s, %d simulations of the trace.</p>\n",
                  f->outcome->n_candidates, f->seconds, f->outcome->n_looks);
    draw_curve(f, false, out);
    draw_curve(f, true, out);
    gs_buf_str(out, "<p class=\"soft\">Each point is the trace played faster; the large one is "
                    "chosen. Dashed: the target.</p>\n");
    table_of_classes(f, out);
    gs_buf_str(out, "<h2>How sure this is</h2>\n");
    paragraph(out, f, write_confidence);
    table_of_measured(f, out);
    gs_buf_str(out, "<h2>Settings</h2>\n");
    table_of_settings(f, out);
    gs_buf_str(out, "<h2>What would help</h2>\n");
    paragraph(out, f, write_help);
    gs_buf config = {0};
    gs_tune_write_config(f, &config);
    gs_buf_str(out, "<h2>Configuration</h2>\n<pre>");
    gs_html_text(out, gs_buf_cstr(&config) ? config.data : "");
    gs_buf_str(out, "</pre>\n");
    gs_buf_deinit(&config);
    gs_page_end(out);
}

/* ---- JSON ------------------------------------------------------------------------------------*/

static void put(gs_jsonw *w, const char *key, double v) {
    gs_jsonw_key(w, key);
    gs_jsonw_num(w, v);
}

void gs_tune_write_json(const gs_tune_findings *f, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "curve");
    gs_jsonw_arr(&w);
    for (int i = 0; i < f->n_curve; i++) {
        const gs_tune_curve_point *p = &f->curve[i];
        gs_jsonw_obj(&w);
        put(&w, "load", p->load);
        put(&w, "tokens_per_s", p->tokens_per_s);
        put(&w, "ttft_p95_ms", p->ttft_p95_ms);
        put(&w, "itl_p95_ms", p->itl_p95_ms);
        gs_jsonw_key(&w, "holds");
        gs_jsonw_bool(&w, p->holds);
        if (!p->holds) {
            gs_jsonw_key(&w, "breaks");
            gs_jsonw_str(&w, p->breaks);
        }
        gs_jsonw_end_obj(&w);
    }
    gs_jsonw_end_arr(&w);
    put(&w, "chosen", f->chosen);
    gs_jsonw_key(&w, "class");
    gs_jsonw_str(&w, gs_class_name((gs_class)gs_tuner_lead_class(f->t)));
    put(&w, "load", best_of(f)->load);
    put(&w, "tokens_per_s", best_of(f)->throughput);
    put(&w, "default_load", f->outcome->start.load);
    put(&w, "default_tokens_per_s", f->outcome->start.throughput);
    put(&w, "candidates", f->outcome->n_candidates);
    put(&w, "seconds", f->seconds);
    gs_jsonw_key(&w, "settings");
    gs_jsonw_obj(&w);
    for (int i = 0; i < f->t->n_axes; i++) {
        const gs_tune_axis *x = &f->t->axes[i];
        if (!x->tunable)
            continue;
        gs_jsonw_key(&w, x->tunable->option);
        const char *value = x->values[best_of(f)->point.choice[i]];
        if (x->words)
            gs_jsonw_str(&w, value);
        else
            gs_jsonw_raw(&w, value, strlen(value));
    }
    gs_jsonw_end_obj(&w);
    gs_jsonw_key(&w, "unattainable");
    gs_jsonw_arr(&w);
    for (int c = 0; c < GS_CLASS_BACKGROUND; c++)
        if (f->t->exempt[c])
            gs_jsonw_str(&w, gs_class_name((gs_class)c));
    gs_jsonw_end_arr(&w);
    gs_jsonw_key(&w, "machine");
    gs_jsonw_str(&w, gs_tuner_variant(f->t, &best_of(f)->point)->label);
    gs_jsonw_key(&w, "measured");
    gs_jsonw_arr(&w);
    for (int i = 0; i < f->n_measured; i++) {
        gs_jsonw_obj(&w);
        put(&w, "candidate", f->measured[i].candidate);
        put(&w, "load", f->measured[i].load);
        gs_jsonw_key(&w, "holds");
        gs_jsonw_bool(&w, f->measured[i].holds);
        put(&w, "output_tok_s", f->measured[i].summary.output_tok_s);
        put(&w, "met", f->measured[i].summary.met);
        gs_jsonw_end_obj(&w);
    }
    gs_jsonw_end_arr(&w);
    gs_jsonw_end_obj(&w);
    gs_buf_char(out, '\n');
}
