#include "http/multipart.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/utf8.h"

/* ---- The boundary -------------------------------------------------------------------------- */

/* Of text without a zero byte. RFC 2046: up to 70 of these, not ending in a space (which no client
 * uses at all). */
static bool legal_boundary(const char *s, size_t n) {
    static const char marks[] = "'()+_,-./:=?";
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!alnum && !strchr(marks, c))
            return false;
    }
    return n >= 1 && n <= 70;
}

/* The value of a parameter (name=value or name="value") of a header. False: absent or malformed. */
static bool find_param(const char *header, const char *name, const char **value, size_t *n,
                       bool *quoted) {
    size_t n_name = strlen(name);
    const char *at = header + strcspn(header, ";");
    while (*at == ';') {
        at += 1 + strspn(at + 1, " \t");
        bool mine = strncasecmp(at, name, n_name) == 0 && at[n_name] == '=';
        at += strcspn(at, "=;");
        if (*at != '=')
            continue;
        at++;
        const bool in_quotes = *at == '"';
        const char end = in_quotes ? '"' : ';';
        if (in_quotes)
            at++;
        *quoted = in_quotes;
        *value = at;
        while (*at && *at != end)
            at += in_quotes && *at == '\\' && at[1] ? 2 : 1;
        *n = (size_t)(at - *value);
        if (in_quotes && *at++ != '"')
            return false;
        if (mine)
            return true;
        at += strspn(at, " \t");
    }
    return false;
}

int gs_multipart_init(gs_multipart *m, const char *content_type, const gs_multipart_handler *on) {
    static const char type[] = "multipart/form-data";
    const char *boundary;
    size_t n;
    bool quoted;
    *m = (gs_multipart){.on = *on};
    if (!content_type || strncasecmp(content_type, type, sizeof(type) - 1) != 0 ||
        !find_param(content_type, "boundary", &boundary, &n, &quoted))
        return GS_ERR_MEDIA_TYPE;
    while (!quoted && n > 0 && (boundary[n - 1] == ' ' || boundary[n - 1] == '\t'))
        n--;
    if (!legal_boundary(boundary, n))
        return GS_ERR_MEDIA_TYPE;
    m->n_delimiter =
        (size_t)snprintf(m->delimiter, sizeof(m->delimiter), "\r\n--%.*s", (int)n, boundary);
    /* The first delimiter may stand at the very beginning, without a line's end before it. */
    return gs_buf_add(&m->held, "\r\n", 2);
}

void gs_multipart_deinit(gs_multipart *m) {
    gs_buf_deinit(&m->held);
}

/* ---- A part's head ------------------------------------------------------------------------- */

static int fail(gs_multipart *m, const char *why) {
    m->error = why;
    return GS_ERR_FORMAT;
}

/* Browsers write " as %22 or \", and some give a whole path. */
static void take_filename(const char *s, size_t n, bool quoted, char *out, size_t size) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (quoted && c == '\\' && i + 1 < n && (s[i + 1] == '"' || s[i + 1] == '\\'))
            c = s[++i];
        if (c == '/' || c == '\\') {
            at = 0;
            continue;
        }
        if ((unsigned char)c < 0x20 || c == 0x7f)
            c = '_';
        if (at + 1 < size)
            out[at++] = c;
    }
    out[at] = '\0';
    while (at > 0 && !gs_utf8_valid(out, at)) /* cut inside a character, or never valid */
        out[--at] = '\0';
    if (strcmp(out, ".") == 0 || strcmp(out, "..") == 0)
        out[0] = '\0';
}

/* head: header lines, each ended by CR LF; terminated. */
static int read_head(gs_multipart *m, char *head) {
    static const char name[] = "content-disposition:";
    gs_multipart_part part = {0};
    const char *value;
    size_t n;
    bool quoted, found = false;
    for (char *line = head; *line;) {
        char *end = strstr(line, "\r\n");
        if (!end)
            return fail(m, "a part's header has no end");
        *end = '\0';
        if (strncasecmp(line, name, sizeof(name) - 1) == 0) {
            if (found)
                return fail(m, "a part has two Content-Disposition headers");
            found = true;
            if (!find_param(line, "name", &value, &n, &quoted) || n == 0 || n >= sizeof(part.name))
                return fail(m, "a part has no name, or a very long one");
            memcpy(part.name, value, n);
            part.is_file = find_param(line, "filename", &value, &n, &quoted);
            if (part.is_file)
                take_filename(value, n, quoted, part.filename, sizeof(part.filename));
        }
        line = end + 2;
    }
    if (!found)
        return fail(m, "a part has no Content-Disposition header");
    return m->on.begin(m->on.arg, &part);
}

/* ---- Bytes --------------------------------------------------------------------------------- */

/* Each of these moves on as far as the held bytes allow. *more: another state may go on. */

/* Until the next delimiter; what can't belong to it goes to the part, or nowhere. */
static int run_data(gs_multipart *m, bool *more) {
    gs_buf *h = &m->held;
    bool inside = m->state == GS_MULTIPART_DATA;
    char *found =
        h->len >= m->n_delimiter ? memmem(h->data, h->len, m->delimiter, m->n_delimiter) : NULL;
    size_t n = found                      ? (size_t)(found - h->data)
               : h->len >= m->n_delimiter ? h->len - m->n_delimiter + 1
                                          : 0;
    int rc = inside && n > 0 ? m->on.data(m->on.arg, h->data, n) : 0;
    if (rc != 0)
        return rc;
    gs_buf_drop_front(h, found ? n + m->n_delimiter : n);
    if (!found)
        return 0;
    *more = true;
    m->state = GS_MULTIPART_AFTER;
    return inside ? m->on.end(m->on.arg) : 0;
}

static int run_after(gs_multipart *m, bool *more) {
    gs_buf *h = &m->held;
    size_t pad = 0; /* RFC 2046 lets a delimiter's line end in white space */
    while (pad < h->len && (h->data[pad] == ' ' || h->data[pad] == '\t'))
        pad++;
    if (pad > 64)
        return fail(m, "a delimiter is followed by too much white space");
    if (h->len < pad + 2)
        return 0;
    if (pad == 0 && memcmp(h->data, "--", 2) == 0) {
        m->state = GS_MULTIPART_DONE;
        return 0;
    }
    if (memcmp(h->data + pad, "\r\n", 2) != 0)
        return fail(m, "a delimiter's line goes on");
    if (++m->n_parts > GS_MULTIPART_PARTS)
        return fail(m, "there are too many parts");
    gs_buf_drop_front(h, pad + 2);
    m->state = GS_MULTIPART_HEADERS;
    *more = true;
    return 0;
}

static int run_headers(gs_multipart *m, bool *more) {
    gs_buf *h = &m->held;
    /* Without any header the empty line comes at once. */
    bool none = h->len >= 2 && memcmp(h->data, "\r\n", 2) == 0;
    char *end = none ? h->data : memmem(h->data, h->len, "\r\n\r\n", 4);
    size_t n = end ? (size_t)(end - h->data) + (none ? 0 : 2) : h->len;
    if (n > GS_MULTIPART_HEAD)
        return fail(m, "a part's headers are too long");
    if (!end)
        return 0;
    if (memchr(h->data, '\0', n))
        return fail(m, "a part's header holds a zero byte");
    h->data[n] = '\0'; /* in place of the empty line's CR */
    int rc = read_head(m, h->data);
    if (rc != 0)
        return rc;
    gs_buf_drop_front(h, n + 2);
    m->state = GS_MULTIPART_DATA;
    *more = true;
    return 0;
}

static int run(gs_multipart *m) {
    int rc = 0;
    for (bool more = true; more && rc == 0;) {
        more = false;
        switch (m->state) {
        case GS_MULTIPART_PREAMBLE:
        case GS_MULTIPART_DATA:
            rc = run_data(m, &more);
            break;
        case GS_MULTIPART_AFTER:
            rc = run_after(m, &more);
            break;
        case GS_MULTIPART_HEADERS:
            rc = run_headers(m, &more);
            break;
        case GS_MULTIPART_DONE: /* an epilogue means nothing */
        case GS_MULTIPART_FAILED:
            gs_buf_clear(&m->held);
            break;
        }
    }
    return rc;
}

int gs_multipart_feed(gs_multipart *m, const char *data, size_t n) {
    if (m->state == GS_MULTIPART_FAILED)
        return GS_ERR_FORMAT;
    int rc = gs_buf_add(&m->held, data, n);
    if (rc == 0)
        rc = run(m);
    if (rc != 0)
        m->state = GS_MULTIPART_FAILED;
    return rc;
}

int gs_multipart_finish(gs_multipart *m) {
    if (m->state == GS_MULTIPART_DONE)
        return 0;
    if (m->state != GS_MULTIPART_FAILED)
        fail(m, "the form has no end");
    return GS_ERR_FORMAT;
}
