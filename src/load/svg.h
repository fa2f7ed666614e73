/*
 * Small charts as inline SVG for pages that need no script: axes, lines, points, bars. Colours are
 * CSS variables (--c0 .. --c7, --ink, --grid) that gs_page_begin defines for light and dark.
 * Everything appends to a gs_buf; caller storage.
 */
#ifndef GS_LOAD_SVG_H
#define GS_LOAD_SVG_H

#include <stdbool.h>

#include "base/buf.h"

typedef struct gs_axis {
    double low, high;
    bool log;
    const char *title;
} gs_axis;

typedef struct gs_chart {
    gs_buf *out;
    gs_axis x, y;
    int width, height;
    int n_legend; /* entries so far */
} gs_chart;

/* Text with <, > and & made harmless. */
void gs_html_text(gs_buf *out, const char *s);
/* The head, the style and <h1>; end with gs_page_end. */
void gs_page_begin(gs_buf *out, const char *title);
void gs_page_end(gs_buf *out);

/* Axes, grid and title. Bounds that are no range are widened. */
void gs_chart_begin(gs_chart *c, gs_buf *out, const char *title, gs_axis x, gs_axis y);
void gs_chart_end(gs_chart *c);
/* A line through n points, colour 0 .. 7; points outside are clipped to the frame. */
void gs_chart_line(gs_chart *c, int colour, const double *x, const double *y, int n);
/* A mark with a tooltip; big: the one that is meant. */
void gs_chart_point(gs_chart *c, int colour, double x, double y, bool big, const char *tip);
/* From 0 to y, between x0 and x1. */
void gs_chart_bar(gs_chart *c, int colour, double x0, double x1, double y, const char *tip);
/* A dashed target. */
void gs_chart_vline(gs_chart *c, int colour, double x);
void gs_chart_hline(gs_chart *c, int colour, double y);
void gs_chart_legend(gs_chart *c, int colour, const char *name);

#endif
