#include "load/svg.h"

#include <math.h>
#include <stdio.h>

#define LEFT   64
#define RIGHT  16
#define TOP    34
#define BOTTOM 44

void gs_html_text(gs_buf *out, const char *s) {
    for (; *s; s++) {
        if (*s == '<')
            gs_buf_str(out, "&lt;");
        else if (*s == '>')
            gs_buf_str(out, "&gt;");
        else if (*s == '&')
            gs_buf_str(out, "&amp;");
        else if (*s == '"')
            gs_buf_str(out, "&quot;");
        else
            gs_buf_char(out, *s);
    }
}

void gs_page_begin(gs_buf *out, const char *title) {
    gs_buf_str(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                    "<title>");
    gs_html_text(out, title);
    gs_buf_str(
        out,
        "</title>\n<style>\n"
        ":root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#5c6670;--grid:#dfe3e8;"
        "--c0:#c2410c;--c1:#1d4ed8;--c2:#7c3aed;--c3:#0f766e;--c4:#a16207;--c5:#64748b;"
        "--c6:#be185d;--c7:#15803d}\n"
        "@media(prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e9ed;--soft:#9aa5b1;"
        "--grid:#2d333b;--c0:#fb923c;--c1:#60a5fa;--c2:#a78bfa;--c3:#2dd4bf;--c4:#facc15;"
        "--c5:#94a3b8;--c6:#f472b6;--c7:#4ade80}}\n"
        "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;"
        "background:var(--paper);color:var(--ink)}\n"
        "table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums;"
        "display:block;overflow-x:auto}\n"
        "th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid var(--grid);"
        "white-space:nowrap}\nth:first-child,td:first-child{text-align:left}\n"
        "th,small,.soft{color:var(--soft);font-weight:500}\n"
        ".miss{color:var(--c0);font-weight:600}\n"
        "svg{max-width:100%;height:auto;margin:.5rem 0;display:block}\n"
        "svg text{font:12px system-ui,sans-serif;fill:var(--ink)}\n"
        "pre{overflow-x:auto;padding:.8rem;border:1px solid var(--grid)}\n"
        "</style></head><body>\n<h1>");
    gs_html_text(out, title);
    gs_buf_str(out, "</h1>\n");
}

void gs_page_end(gs_buf *out) {
    gs_buf_str(out, "</body></html>\n");
}

/* Where a value lies on its axis, 0 to 1, clipped. */
static double place(const gs_axis *a, double v) {
    double p = a->log ? (log(v > a->low ? v : a->low) - log(a->low)) / (log(a->high) - log(a->low))
                      : (v - a->low) / (a->high - a->low);
    if (!(p > 0))
        p = 0;
    return p < 1 ? p : 1;
}

static double px(const gs_chart *c, double x) {
    return LEFT + place(&c->x, x) * (c->width - LEFT - RIGHT);
}

static double py(const gs_chart *c, double y) {
    return c->height - BOTTOM - place(&c->y, y) * (c->height - TOP - BOTTOM);
}

static void widen(gs_axis *a) {
    if (a->log) {
        if (!(a->low > 0))
            a->low = 1e-3;
        if (!(a->high > a->low * 1.01))
            a->high = a->low * 10;
    } else if (!(a->high > a->low)) {
        a->high = a->low + 1;
    }
}

/* 1, 2 or 5 times a power of ten: about n of them in the range. */
static double step_of(double range, int n) {
    const double raw = range / n, ten = pow(10, floor(log10(raw)));
    const double m = raw / ten;
    return ten * (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10);
}

static void tick(gs_chart *c, bool x_axis, double v) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", v);
    if (x_axis)
        gs_buf_printf(c->out,
                      "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"var(--grid)\"/>"
                      "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                      px(c, v), TOP, px(c, v), c->height - BOTTOM, px(c, v),
                      c->height - BOTTOM + 16, text);
    else
        gs_buf_printf(c->out,
                      "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"var(--grid)\"/>"
                      "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                      LEFT, py(c, v), c->width - RIGHT, py(c, v), LEFT - 6, py(c, v) + 4, text);
}

static void ticks(gs_chart *c, bool x_axis) {
    const gs_axis *a = x_axis ? &c->x : &c->y;
    if (a->log) {
        const int first = (int)ceil(log10(a->low) - 1e-9), last = (int)floor(log10(a->high) + 1e-9);
        for (int decade = first; decade <= last; decade++)
            tick(c, x_axis, pow(10, decade));
        return;
    }
    const double step = step_of(a->high - a->low, x_axis ? 8 : 5);
    const int first = (int)ceil(a->low / step - 1e-9), last = (int)floor(a->high / step + 1e-9);
    for (int i = first; i <= last; i++)
        tick(c, x_axis, i * step);
}

void gs_chart_begin(gs_chart *c, gs_buf *out, const char *title, gs_axis x, gs_axis y) {
    *c = (gs_chart){.out = out, .x = x, .y = y, .width = 760, .height = 300};
    widen(&c->x);
    widen(&c->y);
    gs_buf_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", c->width,
                  c->height);
    gs_html_text(out, title);
    gs_buf_printf(out, "\">\n<text x=\"%d\" y=\"14\" font-weight=\"600\">", LEFT);
    gs_html_text(out, title);
    gs_buf_str(out, "</text>\n");
    ticks(c, true);
    ticks(c, false);
    gs_buf_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", c->width - RIGHT,
                  c->height - 8);
    gs_html_text(out, x.title);
    gs_buf_str(out, "</text>\n<text x=\"14\" y=\"30\">");
    gs_html_text(out, y.title);
    gs_buf_str(out, "</text>\n");
}

void gs_chart_end(gs_chart *c) {
    gs_buf_str(c->out, "</svg>\n");
}

void gs_chart_line(gs_chart *c, int colour, const double *x, const double *y, int n) {
    gs_buf_printf(c->out,
                  "<polyline fill=\"none\" stroke=\"var(--c%d)\" stroke-width=\"2\" points=\"",
                  colour % 8);
    for (int i = 0; i < n; i++)
        gs_buf_printf(c->out, "%.1f,%.1f ", px(c, x[i]), py(c, y[i]));
    gs_buf_str(c->out, "\"/>\n");
}

static void tip(gs_chart *c, const char *text) {
    if (!text)
        return;
    gs_buf_str(c->out, "<title>");
    gs_html_text(c->out, text);
    gs_buf_str(c->out, "</title>");
}

void gs_chart_point(gs_chart *c, int colour, double x, double y, bool big, const char *text) {
    gs_buf_printf(c->out,
                  "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"var(--c%d)\" "
                  "fill-opacity=\"%s\"%s>",
                  px(c, x), py(c, y), big ? 7 : 3, colour % 8, big ? "1" : "0.6",
                  big ? " stroke=\"var(--ink)\" stroke-width=\"2\"" : "");
    tip(c, text);
    gs_buf_str(c->out, "</circle>\n");
}

void gs_chart_bar(gs_chart *c, int colour, double x0, double x1, double y, const char *text) {
    const double top = py(c, y), foot = py(c, c->y.low);
    gs_buf_printf(c->out,
                  "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                  "fill=\"var(--c%d)\" fill-opacity=\"0.8\">",
                  px(c, x0), top, px(c, x1) - px(c, x0), foot - top, colour % 8);
    tip(c, text);
    gs_buf_str(c->out, "</rect>\n");
}

void gs_chart_vline(gs_chart *c, int colour, double x) {
    gs_buf_printf(c->out,
                  "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"var(--c%d)\" "
                  "stroke-dasharray=\"5 4\"/>\n",
                  px(c, x), TOP, px(c, x), c->height - BOTTOM, colour % 8);
}

void gs_chart_hline(gs_chart *c, int colour, double y) {
    gs_buf_printf(c->out,
                  "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"var(--c%d)\" "
                  "stroke-dasharray=\"5 4\"/>\n",
                  LEFT, py(c, y), c->width - RIGHT, py(c, y), colour % 8);
}

void gs_chart_legend(gs_chart *c, int colour, const char *name) {
    const int x = c->width - RIGHT - 110, y = TOP + 16 + 16 * c->n_legend++;
    gs_buf_printf(c->out,
                  "<rect x=\"%d\" y=\"%d\" width=\"10\" height=\"10\" fill=\"var(--c%d)\"/>"
                  "<text x=\"%d\" y=\"%d\">",
                  x, y - 9, colour % 8, x + 15, y);
    gs_html_text(c->out, name);
    gs_buf_str(c->out, "</text>\n");
}
