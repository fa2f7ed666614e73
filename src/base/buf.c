#include "base/buf.h"

#include "base/checked.h"
#include "base/err.h"
#include "base/sys.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MIN_CAP 64

/* The next capacity that holds need items: doubling, so that n appends cost O(n). */
static size_t grown(size_t cap, size_t need) {
    size_t next = cap < MIN_CAP ? MIN_CAP : cap;
    while (next < need)
        if (!gs_mul_size(next, 2, &next))
            return need;
    return next;
}

/* realloc may leave a copy of the bytes behind. */
static char *move_secret(gs_buf *b, size_t cap) {
    char *p = gs_malloc(cap);
    if (!p)
        return NULL;
    if (b->len > 0)
        memcpy(p, b->data, b->len);
    if (b->data)
        explicit_bzero(b->data, b->cap);
    gs_free(b->data);
    return p;
}

int gs_buf_reserve(gs_buf *b, size_t extra) {
    /* Sticky: once a piece is missing, what follows it would make no sense either. */
    if (b->failed)
        return GS_ERR_NOMEM;
    if (extra <= b->cap - b->len)
        return GS_OK;
    size_t need;
    char *p = NULL;
    size_t cap = 0;
    if (gs_add_size(b->len, extra, &need)) {
        cap = grown(b->cap, need);
        p = b->secret ? move_secret(b, cap) : gs_realloc(b->data, cap);
    }
    if (!p) {
        b->failed = true;
        return GS_ERR_NOMEM;
    }
    b->data = p;
    b->cap = cap;
    return GS_OK;
}

int gs_buf_add(gs_buf *b, const void *data, size_t n) {
    int rc = gs_buf_reserve(b, n);
    if (rc || n == 0)
        return rc;
    memcpy(b->data + b->len, data, n);
    b->len += n;
    return GS_OK;
}

int gs_buf_str(gs_buf *b, const char *s) {
    return gs_buf_add(b, s, strlen(s));
}

int gs_buf_char(gs_buf *b, char c) {
    return gs_buf_add(b, &c, 1);
}

int gs_buf_printf(gs_buf *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    int rc;
    if (n < 0) { /* more than INT_MAX bytes */
        b->failed = true;
        rc = GS_ERR_NOMEM;
    } else {
        /* vsnprintf writes a terminator, which is not part of the contents. */
        rc = gs_buf_reserve(b, (size_t)n + 1);
    }
    if (!rc) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return rc;
}

const char *gs_buf_cstr(gs_buf *b) {
    if (gs_buf_reserve(b, 1))
        return NULL;
    b->data[b->len] = '\0';
    return b->data;
}

char *gs_buf_take(gs_buf *b, size_t *len) {
    char *data = NULL;
    size_t n = 0;
    if (gs_buf_cstr(b)) {
        data = b->data;
        n = b->len;
        *b = (gs_buf){0};
    } else {
        gs_buf_deinit(b);
    }
    if (len)
        *len = n;
    return data;
}

void gs_buf_drop_front(gs_buf *b, size_t n) {
    GS_ASSERT(n <= b->len);
    if (n == 0)
        return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

void gs_buf_clear(gs_buf *b) {
    b->len = 0;
    b->failed = false;
}

void gs_buf_deinit(gs_buf *b) {
    if (b->secret && b->data)
        explicit_bzero(b->data, b->cap);
    gs_free(b->data);
    *b = (gs_buf){0};
}

int gs_ids_reserve(gs_ids *v, size_t extra) {
    if (extra <= v->cap - v->len)
        return GS_OK;
    size_t need, bytes;
    if (!gs_add_size(v->len, extra, &need))
        return GS_ERR_NOMEM;
    size_t cap = grown(v->cap, need);
    if (!gs_mul_size(cap, sizeof *v->data, &bytes))
        return GS_ERR_NOMEM;
    int32_t *p = gs_realloc(v->data, bytes);
    if (!p)
        return GS_ERR_NOMEM;
    v->data = p;
    v->cap = cap;
    return GS_OK;
}

int gs_ids_push(gs_ids *v, int32_t id) {
    int rc = gs_ids_reserve(v, 1);
    if (rc)
        return rc;
    v->data[v->len++] = id;
    return GS_OK;
}

void gs_ids_deinit(gs_ids *v) {
    gs_free(v->data);
    *v = (gs_ids){0};
}
