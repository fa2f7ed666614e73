/*
 * Per-request arena: many small allocations, one release point. Owned by one thread at a time.
 *
 * Memory comes in chunks from gs_malloc; nothing is freed before gs_arena_deinit, which
 * leaves a valid empty arena. Zero-initialised is a valid empty arena.
 */
#ifndef GS_BASE_ARENA_H
#define GS_BASE_ARENA_H

#include <stddef.h>

typedef struct gs_arena_chunk gs_arena_chunk;

typedef struct gs_arena {
    gs_arena_chunk *head;
    size_t used_bytes; /* handed out so far */
} gs_arena;

void *gs_arena_alloc(gs_arena *a, size_t size);            /* 16-byte aligned, not zeroed */
void *gs_arena_calloc(gs_arena *a, size_t n, size_t size); /* zeroed, checked */
char *gs_arena_strndup(gs_arena *a, const char *s, size_t n);
void gs_arena_deinit(gs_arena *a);

#endif
