/* Bump allocation in two passes: with base NULL only the size is counted. */
#ifndef GS_BASE_CARVE_H
#define GS_BASE_CARVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/checked.h"

typedef struct gs_carver {
    uint8_t *base;
    size_t used;
    bool overflow;
} gs_carver;

/* n * size bytes at a 64-byte border; NULL in the counting pass. */
static inline void *gs_carve(gs_carver *c, size_t n, size_t size) {
    size_t bytes, end;
    if (!gs_mul_size(n, size, &bytes) || !gs_add_size(bytes, 63, &bytes) ||
        !gs_add_size(c->used, bytes & ~(size_t)63, &end)) {
        c->overflow = true;
        return NULL;
    }
    void *p = c->base ? c->base + c->used : NULL;
    c->used = end;
    return p;
}

#endif
