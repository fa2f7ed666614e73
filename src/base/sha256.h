/*
 * SHA-256 (FIPS 180-4), for what must not be guessed from what is stored: API keys are kept as
 * hashes only, and for files that come from elsewhere. Any thread.
 */
#ifndef GS_BASE_SHA256_H
#define GS_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define GS_SHA256_BYTES 32

void gs_sha256(const void *data, size_t n, uint8_t out[GS_SHA256_BYTES]);

/* The same of what comes piece by piece. */
typedef struct gs_sha256_state {
    uint32_t h[8];
    uint64_t n;       /* bytes so far */
    uint8_t rest[64]; /* n % 64 of them */
} gs_sha256_state;
void gs_sha256_begin(gs_sha256_state *s);
void gs_sha256_add(gs_sha256_state *s, const void *data, size_t n);
void gs_sha256_end(gs_sha256_state *s, uint8_t out[GS_SHA256_BYTES]);

void gs_hex(const uint8_t *data, size_t n, char *out); /* 2 * n digits and a terminator */

#endif
