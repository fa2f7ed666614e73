/*
 * multipart/form-data (RFC 7578) as a stream: bytes in, parts out, nothing kept but one delimiter's
 * length and one part's head. Pure: no sockets, no files. Untrusted bytes.
 *
 *     gs_multipart_init(&m, content_type, &handler)
 *     gs_multipart_feed(&m, data, n) ...          any cut of the bytes gives the same calls
 *     gs_multipart_finish(&m)                     the closing delimiter was seen
 */
#ifndef GS_HTTP_MULTIPART_H
#define GS_HTTP_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define GS_MULTIPART_PARTS    32
#define GS_MULTIPART_HEAD     8192 /* bytes of one part's header lines */
#define GS_MULTIPART_NAME     128
#define GS_MULTIPART_FILENAME 256

typedef struct gs_multipart_part {
    char name[GS_MULTIPART_NAME]; /* of the form's field */
    /* "": no file. The last component, without what could be a path or a control character. */
    char filename[GS_MULTIPART_FILENAME];
    bool is_file; /* a filename was given, perhaps an empty one */
} gs_multipart_part;

/* 0, or a code that feed then returns. */
typedef struct gs_multipart_handler {
    int (*begin)(void *arg, const gs_multipart_part *part);
    int (*data)(void *arg, const char *data, size_t n);
    int (*end)(void *arg);
    void *arg;
} gs_multipart_handler;

typedef enum gs_multipart_state {
    GS_MULTIPART_PREAMBLE,
    GS_MULTIPART_AFTER, /* a delimiter: its line's end, or the closing "--" */
    GS_MULTIPART_HEADERS,
    GS_MULTIPART_DATA,
    GS_MULTIPART_DONE,
    GS_MULTIPART_FAILED
} gs_multipart_state;

typedef struct gs_multipart {
    gs_multipart_handler on;
    char delimiter[4 + 70 + 1]; /* CR LF "--" boundary */
    size_t n_delimiter;
    gs_multipart_state state;
    gs_buf held; /* bytes that can't be judged yet */
    int n_parts;
    const char *error; /* static sentence after a failure of the form itself */
} gs_multipart;

/* GS_ERR_MEDIA_TYPE: not this type, or no legal boundary. */
int gs_multipart_init(gs_multipart *m, const char *content_type, const gs_multipart_handler *on);
/* GS_ERR_FORMAT with m->error, GS_ERR_NOMEM, or what a handler returned; then all later calls give
 * GS_ERR_FORMAT. */
int gs_multipart_feed(gs_multipart *m, const char *data, size_t n);
int gs_multipart_finish(gs_multipart *m);
void gs_multipart_deinit(gs_multipart *m);

#endif
