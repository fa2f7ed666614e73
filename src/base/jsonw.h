/*
 * JSON writer for streams: appends straight into a gs_buf, no tree, commas placed by itself.
 * Strings must be valid UTF-8 (the caller's detokeniser sees to it); invalid bytes become U+FFFD
 * all the same, so that every event is valid JSON. Numbers that JSON lacks (NaN, inf) and a NULL
 * string are null. Out of memory shows in out->failed. Nesting is the code's, never the client's.
 */
#ifndef GS_BASE_JSONW_H
#define GS_BASE_JSONW_H

#include "base/buf.h"

#define GS_JSONW_MAX_DEPTH 32

typedef struct gs_jsonw {
    gs_buf *out;
    int depth;
    unsigned need_comma; /* one bit per depth */
} gs_jsonw;

void gs_jsonw_init(gs_jsonw *w, gs_buf *out);
void gs_jsonw_obj(gs_jsonw *w);
void gs_jsonw_end_obj(gs_jsonw *w);
void gs_jsonw_arr(gs_jsonw *w);
void gs_jsonw_end_arr(gs_jsonw *w);
void gs_jsonw_key(gs_jsonw *w, const char *key); /* a value follows */
void gs_jsonw_str(gs_jsonw *w, const char *s);
void gs_jsonw_strn(gs_jsonw *w, const char *s, size_t n);
void gs_jsonw_int(gs_jsonw *w, int64_t v);
void gs_jsonw_num(gs_jsonw *w, double v);
void gs_jsonw_bool(gs_jsonw *w, bool v);
void gs_jsonw_null(gs_jsonw *w);
void gs_jsonw_raw(gs_jsonw *w, const char *json, size_t n); /* a whole value, already JSON */

#endif
