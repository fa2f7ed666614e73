#include "http/sse.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

void gs_sse_init(gs_sse *s, size_t max_bytes, gs_sse_fn on_event, void *arg) {
    *s = (gs_sse){.on_event = on_event, .arg = arg, .max_bytes = max_bytes};
}

void gs_sse_deinit(gs_sse *s) {
    gs_buf_deinit(&s->line);
    gs_buf_deinit(&s->data);
}

static int dispatch(gs_sse *s) {
    int rc = 0;
    if (s->has_data) {
        const char *data = gs_buf_cstr(&s->data);
        rc = data ? s->on_event(s->arg, s->type[0] ? s->type : "message", data, s->data.len)
                  : GS_ERR_NOMEM;
    }
    gs_buf_clear(&s->data);
    s->type[0] = '\0';
    s->has_data = false;
    return rc;
}

static int add_data(gs_sse *s, const char *value, size_t n) {
    if (s->data.len + n + 1 > s->max_bytes)
        return GS_ERR_TOO_LARGE;
    if (s->has_data)
        gs_buf_char(&s->data, '\n');
    s->has_data = true;
    gs_buf_add(&s->data, value, n);
    return s->data.failed ? GS_ERR_NOMEM : 0;
}

/* One line without its end: empty, a comment, or "field: value". */
static int take_line(gs_sse *s, const char *line, size_t n) {
    static const char bom[] = "\xEF\xBB\xBF";
    if (!s->begun && n >= 3 && memcmp(line, bom, 3) == 0) {
        line += 3;
        n -= 3;
    }
    s->begun = true;
    if (n == 0)
        return dispatch(s);
    const char *colon = memchr(line, ':', n);
    const size_t name = colon ? (size_t)(colon - line) : n;
    const char *value = colon ? colon + 1 : line + n;
    size_t left = n - (size_t)(value - line);
    if (left > 0 && *value == ' ') {
        value++;
        left--;
    }
    if (name == 4 && memcmp(line, "data", 4) == 0)
        return add_data(s, value, left);
    if (name == 5 && memcmp(line, "event", 5) == 0)
        snprintf(s->type, sizeof(s->type), "%.*s", (int)(left < GS_SSE_TYPE ? left : GS_SSE_TYPE),
                 value);
    return 0;
}

/* The line up to at ends; what came of it before is in s->line. */
static int end_line(gs_sse *s, const char *from, size_t n) {
    if (s->line.len + n > s->max_bytes)
        return GS_ERR_TOO_LARGE;
    if (s->line.len == 0)
        return take_line(s, from, n);
    if (gs_buf_add(&s->line, from, n) != 0)
        return GS_ERR_NOMEM;
    const int rc = take_line(s, s->line.data, s->line.len);
    gs_buf_clear(&s->line);
    return rc;
}

int gs_sse_feed(gs_sse *s, const char *bytes, size_t n) {
    size_t from = 0;
    for (size_t i = 0; i < n && s->rc == 0; i++) {
        const char c = bytes[i];
        const bool second = c == '\n' && s->after_cr; /* of CR LF: the line has ended */
        s->after_cr = c == '\r';
        if (c != '\n' && c != '\r')
            continue;
        if (!second)
            s->rc = end_line(s, bytes + from, i - from);
        from = i + 1;
    }
    if (s->rc == 0 && from < n && s->line.len + (n - from) > s->max_bytes)
        s->rc = GS_ERR_TOO_LARGE;
    else if (s->rc == 0 && from < n)
        s->rc = gs_buf_add(&s->line, bytes + from, n - from);
    return s->rc;
}
