/*
 * Keys and values of a public prefix in a file, so that the next start takes them instead of
 * computing them:
 *
 *     front   head    magic, version, sizes, what they depend on, hash of the tokens, checksums
 *             tokens  int32_t [n_blocks * block_tokens]
 *     pages   uint8_t [n_blocks][block_bytes], as the backend's read_block gives them
 *
 * Little-endian. Whoever reads knows which prefix it wants of which model: a file that is anything
 * else, or of another length, or whose checksum differs, is not taken, and a sentence says why. A
 * file is never trusted for a size. Pages with a right checksum may hold any numbers; what is
 * computed with them is then wrong and nothing else.
 *
 * No I/O here. Any thread.
 */
#ifndef GS_ENGINE_SAVED_H
#define GS_ENGINE_SAVED_H

#include <stddef.h>
#include <stdint.h>

#define GS_SAVED_VERSION  1u
#define GS_SAVED_OF_BYTES 320 /* terminated */

typedef struct gs_saved {
    /* What keys and values depend on besides the tokens: program, instruction set, model, type and
     * layout of the pages. One line of text, compared as such. */
    char of[GS_SAVED_OF_BYTES];
    const int32_t *tokens; /* [n_blocks * block_tokens] */
    int32_t n_blocks;      /* > 0 */
    int32_t block_tokens;
    size_t block_bytes;
} gs_saved;

/* Bytes of the front, of the pages, and of both; 0: more than can be counted. */
size_t gs_saved_front_bytes(const gs_saved *s);
size_t gs_saved_pages_bytes(const gs_saved *s);
size_t gs_saved_bytes(const gs_saved *s);
/* Writes gs_saved_front_bytes(s) bytes. */
void gs_saved_write_front(const gs_saved *s, const uint8_t *pages, uint8_t *front);
/* Whether front, [n_front] bytes, and pages, [n_pages] bytes, are what want says. GS_OK, or
 * GS_ERR_FORMAT with a sentence. */
int gs_saved_check(const gs_saved *want, const uint8_t *front, size_t n_front, const uint8_t *pages,
                   size_t n_pages, char *err, size_t errlen);

#endif
