/*
 * Checked arithmetic for sizes that come from untrusted bytes.
 *
 * Each function returns true and stores the result, or returns false when it does not fit; then
 * *out is left alone. Loader code uses nothing else for sizes and offsets: GGUF size arithmetic
 * was patched three times in other loaders because one multiplication at a time was fixed.
 */
#ifndef GS_BASE_CHECKED_H
#define GS_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool gs_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool gs_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool gs_add_size(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool gs_mul_size(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

/* Rounds up to a multiple of align, which is a power of two. */
static inline bool gs_align_u64(uint64_t v, uint64_t align, uint64_t *out) {
    uint64_t r;
    if (__builtin_add_overflow(v, align - 1, &r))
        return false;
    *out = r & ~(align - 1);
    return true;
}

#endif
