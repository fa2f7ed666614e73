#include "metrics/prom.h"

#include <math.h>

void gs_prom_family(gs_buf *out, const char *name, const char *type, const char *help) {
    gs_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void escaped(gs_buf *out, const char *s) {
    for (; *s; s++) {
        if (*s == '\\' || *s == '"')
            gs_buf_char(out, '\\');
        if (*s == '\n')
            gs_buf_str(out, "\\n");
        else
            gs_buf_char(out, *s);
    }
}

void gs_prom_sample(gs_buf *out, const char *name, double value, const char *const *labels) {
    gs_buf_str(out, name);
    for (int i = 0; labels && labels[i]; i += 2) {
        gs_buf_str(out, i == 0 ? "{" : ",");
        gs_buf_printf(out, "%s=\"", labels[i]);
        escaped(out, labels[i + 1]);
        gs_buf_char(out, '"');
    }
    if (labels && labels[0])
        gs_buf_char(out, '}');
    if (isfinite(value))
        gs_buf_printf(out, " %.17g\n", value);
    else
        gs_buf_printf(out, " %s\n", isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
}
