/*
 * The pages: HTML, styles and scripts of src/web and the few libraries that scripts/fetch-web-libs
 * brings, compressed by scripts/embed-web into one table of the program. The dashboard and the chat
 * page need nothing from outside.
 *
 * Everything here is constant: any thread may read it.
 */
#ifndef GS_WEB_WEB_H
#define GS_WEB_WEB_H

#include <stddef.h>

#include "base/buf.h"

typedef struct gs_web_file {
    const char *path;        /* as asked for: "/dashboard", "/web/live.js" */
    const char *type;        /* media type */
    const char *etag;        /* with its quotes; other bytes, other tag */
    const unsigned char *gz; /* the content, gzip */
    size_t n_gz;             /* bytes of gz */
    size_t n;                /* bytes of the content */
} gs_web_file;

/* NULL: there is no such page. */
const gs_web_file *gs_web_find(const char *path);
/* Appends the content to out, for clients that can't read gzip. 0, GS_ERR_NOMEM or, for a broken
 * table, GS_ERR_INTERNAL. */
int gs_web_content(const gs_web_file *f, gs_buf *out);

/* The table, ordered by path; made by scripts/embed-web. */
extern const gs_web_file gs_web_files[];
extern const size_t gs_web_n_files;

#endif
