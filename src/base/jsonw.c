#include "base/jsonw.h"

#include "base/err.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

void gs_jsonw_init(gs_jsonw *w, gs_buf *out) {
    *w = (gs_jsonw){.out = out};
}

/* Called before every value or key: a comma unless it is the first of its container. */
static void separate(gs_jsonw *w) {
    unsigned bit = 1u << w->depth;
    if (w->need_comma & bit)
        gs_buf_char(w->out, ',');
    w->need_comma |= bit;
}

static void open_container(gs_jsonw *w, char c) {
    GS_ASSERT(w->depth < GS_JSONW_MAX_DEPTH - 1);
    separate(w);
    gs_buf_char(w->out, c);
    w->depth++;
    w->need_comma &= ~(1u << w->depth);
}

static void close_container(gs_jsonw *w, char c) {
    GS_ASSERT(w->depth > 0);
    w->depth--;
    gs_buf_char(w->out, c);
}

void gs_jsonw_obj(gs_jsonw *w) {
    open_container(w, '{');
}

void gs_jsonw_end_obj(gs_jsonw *w) {
    close_container(w, '}');
}

void gs_jsonw_arr(gs_jsonw *w) {
    open_container(w, '[');
}

void gs_jsonw_end_arr(gs_jsonw *w) {
    close_container(w, ']');
}

static void put_escaped_char(gs_buf *out, unsigned char c) {
    switch (c) {
    case '"':
        gs_buf_str(out, "\\\"");
        break;
    case '\\':
        gs_buf_str(out, "\\\\");
        break;
    case '\n':
        gs_buf_str(out, "\\n");
        break;
    case '\r':
        gs_buf_str(out, "\\r");
        break;
    case '\t':
        gs_buf_str(out, "\\t");
        break;
    default:
        gs_buf_printf(out, "\\u%04x", (unsigned)c);
        break;
    }
}

static bool is_plain(unsigned char c) {
    return c >= 0x20 && c != '"' && c != '\\';
}

/* s is valid UTF-8: copies runs, escapes single characters (RFC 8259 section 7). */
static void put_valid(gs_buf *out, const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        size_t run = i;
        while (run < n && is_plain((unsigned char)s[run]))
            run++;
        gs_buf_add(out, s + i, run - i);
        if (run < n)
            put_escaped_char(out, (unsigned char)s[run++]);
        i = run;
    }
}

static void put_string(gs_buf *out, const char *s, size_t n) {
    gs_buf_char(out, '"');
    while (n > 0) {
        size_t good = gs_utf8_valid_prefix(s, n);
        put_valid(out, s, good);
        s += good;
        n -= good;
        if (n > 0) {
            gs_buf_str(out, REPLACEMENT);
            s++;
            n--;
        }
    }
    gs_buf_char(out, '"');
}

void gs_jsonw_key(gs_jsonw *w, const char *key) {
    separate(w);
    put_string(w->out, key, strlen(key));
    gs_buf_char(w->out, ':');
    w->need_comma &= ~(1u << w->depth); /* the value follows without one */
}

void gs_jsonw_str(gs_jsonw *w, const char *s) {
    if (s)
        gs_jsonw_strn(w, s, strlen(s));
    else
        gs_jsonw_null(w);
}

void gs_jsonw_strn(gs_jsonw *w, const char *s, size_t n) {
    separate(w);
    put_string(w->out, s, n);
}

void gs_jsonw_int(gs_jsonw *w, int64_t v) {
    separate(w);
    gs_buf_printf(w->out, "%lld", (long long)v);
}

void gs_jsonw_num(gs_jsonw *w, double v) {
    if (!isfinite(v)) {
        gs_jsonw_null(w);
        return;
    }
    separate(w);
    /* The shortest of these that reads back as the same double; 17 digits always do. */
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    gs_buf_str(w->out, text);
}

void gs_jsonw_bool(gs_jsonw *w, bool v) {
    separate(w);
    gs_buf_str(w->out, v ? "true" : "false");
}

void gs_jsonw_null(gs_jsonw *w) {
    separate(w);
    gs_buf_str(w->out, "null");
}

void gs_jsonw_raw(gs_jsonw *w, const char *json, size_t n) {
    separate(w);
    gs_buf_add(w->out, json, n);
}
