/*
 * SHA-256 (FIPS 180-4), for what must not be guessed from what is stored: API keys are kept as
 * hashes only. In one piece; any thread.
 */
#ifndef GS_BASE_SHA256_H
#define GS_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define GS_SHA256_BYTES 32

void gs_sha256(const void *data, size_t n, uint8_t out[GS_SHA256_BYTES]);

#endif
