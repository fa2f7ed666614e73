/*
 * A growable byte buffer. Caller storage, zero-initialised is a valid empty buffer.
 *
 * Appends return GS_OK or GS_ERR_NOMEM; after a failure the buffer is unchanged and `failed` is
 * set, so that a writer may append many times and check once at the end. data is not terminated
 * unless gs_buf_cstr() was called. Owned by one thread at a time.
 */
#ifndef GS_BASE_BUF_H
#define GS_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gs_buf {
    char *data;
    size_t len;
    size_t cap;
    bool failed;
    bool secret; /* set before the first byte: memory is wiped before it is given back */
} gs_buf;

int gs_buf_reserve(gs_buf *b, size_t extra); /* room for extra more bytes */
int gs_buf_add(gs_buf *b, const void *data, size_t n);
int gs_buf_str(gs_buf *b, const char *s);
int gs_buf_char(gs_buf *b, char c);
int gs_buf_printf(gs_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Terminates in place and returns data; NULL when out of memory. len does not change. */
const char *gs_buf_cstr(gs_buf *b);
/* Gives the bytes away (terminated); the buffer is empty again. Free with gs_free. */
char *gs_buf_take(gs_buf *b, size_t *len);
void gs_buf_drop_front(gs_buf *b, size_t n); /* removes the first n bytes */
void gs_buf_clear(gs_buf *b);                /* empties, keeps the memory */
void gs_buf_deinit(gs_buf *b);

/* The same for token ids. */
typedef struct gs_ids {
    int32_t *data;
    size_t len;
    size_t cap;
} gs_ids;

int gs_ids_push(gs_ids *v, int32_t id);
int gs_ids_reserve(gs_ids *v, size_t extra);
void gs_ids_deinit(gs_ids *v);

#endif
