/*
 * Server-sent events of a stream that somebody else writes, cut anywhere.
 * Form: https://html.spec.whatwg.org/multipage/server-sent-events.html (parsing an event stream).
 *
 *     gs_sse_init(&s, 1 << 16, on_event, arg);
 *     while (bytes come) rc = gs_sse_feed(&s, bytes, n);
 *     gs_sse_deinit(&s);
 *
 * Lines end with LF, CR or both. The data lines of an event are joined by LF; an event without data
 * is none. `id` and `retry` are for clients that reconnect, and ignored. What comes after the last
 * empty line is no event, as the standard has it: half of one is never told.
 *
 * Memory: at most max_bytes for an event, its longest line included; more is GS_ERR_TOO_LARGE and
 * ends the parsing. Caller storage. Pure; owned by one thread.
 */
#ifndef GS_HTTP_SSE_H
#define GS_HTTP_SSE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* type: "message" unless the stream names another. data is terminated. Not 0 ends the feed. */
typedef int (*gs_sse_fn)(void *arg, const char *type, const char *data, size_t n);

#define GS_SSE_TYPE 48 /* longer types are cut; nobody has any */

typedef struct gs_sse {
    gs_sse_fn on_event;
    void *arg;
    size_t max_bytes;
    gs_buf line, data;
    char type[GS_SSE_TYPE];
    bool has_data, after_cr, begun;
    int rc; /* of the feed that failed; all further ones return it */
} gs_sse;

void gs_sse_init(gs_sse *s, size_t max_bytes, gs_sse_fn on_event, void *arg);
/* 0, what on_event returned, GS_ERR_TOO_LARGE or GS_ERR_NOMEM. */
int gs_sse_feed(gs_sse *s, const char *bytes, size_t n);
void gs_sse_deinit(gs_sse *s);

#endif
