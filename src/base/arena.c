#include "base/arena.h"

#include "base/checked.h"
#include "base/sys.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define ALIGN           16
#define MIN_CHUNK_BYTES 4096
#define MAX_CHUNK_BYTES 65536

/*
 * A list of chunks; only the head is filled. Requests that would waste much of a chunk get one
 * of their own behind the head, so that the head's rest stays usable.
 */
struct gs_arena_chunk {
    gs_arena_chunk *next;
    size_t cap;
    size_t used;
    _Alignas(ALIGN) char data[];
};

static gs_arena_chunk *chunk_create(size_t cap) {
    size_t bytes;
    if (!gs_add_size(cap, sizeof(gs_arena_chunk), &bytes))
        return NULL;
    gs_arena_chunk *c = gs_malloc(bytes);
    if (!c)
        return NULL;
    c->next = NULL;
    c->cap = cap;
    c->used = 0;
    return c;
}

/* Doubling up to a limit: a small request stays small, a large one needs few chunks. */
static size_t next_cap(const gs_arena_chunk *head) {
    if (!head || head->cap < MIN_CHUNK_BYTES)
        return MIN_CHUNK_BYTES;
    return head->cap < MAX_CHUNK_BYTES ? head->cap * 2 : MAX_CHUNK_BYTES;
}

static gs_arena_chunk *chunk_add(gs_arena *a, size_t cap, bool behind_head) {
    gs_arena_chunk *c = chunk_create(cap);
    if (!c)
        return NULL;
    if (behind_head && a->head) {
        c->next = a->head->next;
        a->head->next = c;
    } else {
        c->next = a->head;
        a->head = c;
    }
    return c;
}

void *gs_arena_alloc(gs_arena *a, size_t size) {
    size_t rounded;
    if (!gs_add_size(size ? size : 1, ALIGN - 1, &rounded))
        return NULL;
    rounded &= ~(size_t)(ALIGN - 1);

    gs_arena_chunk *c = a->head;
    if (!c || rounded > c->cap - c->used) {
        bool own = rounded > MIN_CHUNK_BYTES / 2;
        c = chunk_add(a, own ? rounded : next_cap(c), own);
        if (!c)
            return NULL;
    }
    void *p = c->data + c->used;
    c->used += rounded;
    a->used_bytes += rounded;
    return p;
}

void *gs_arena_calloc(gs_arena *a, size_t n, size_t size) {
    size_t bytes;
    if (!gs_mul_size(n, size, &bytes))
        return NULL;
    void *p = gs_arena_alloc(a, bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

char *gs_arena_strndup(gs_arena *a, const char *s, size_t n) {
    size_t len = strnlen(s, n);
    char *copy = gs_arena_alloc(a, len + 1);
    if (!copy)
        return NULL;
    memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}

void gs_arena_deinit(gs_arena *a) {
    gs_arena_chunk *c = a->head;
    while (c) {
        gs_arena_chunk *next = c->next;
        gs_free(c);
        c = next;
    }
    *a = (gs_arena){0};
}
