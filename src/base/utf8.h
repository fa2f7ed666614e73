/* UTF-8 as Unicode 15 chapter 3 table 3-7 defines it: no surrogates, no overlong forms. */
#ifndef GS_BASE_UTF8_H
#define GS_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the longest valid prefix; == n when all of it is valid. */
size_t gs_utf8_valid_prefix(const char *s, size_t n);
static inline bool gs_utf8_valid(const char *s, size_t n) {
    return gs_utf8_valid_prefix(s, n) == n;
}
/*
 * How many bytes at the end of s are the beginning of a character that more bytes could complete
 * (0..3). Bytes that can never become valid count as 0.
 */
size_t gs_utf8_incomplete_tail(const char *s, size_t n);
/* Writes cp as 1..4 bytes, returns how many. What is no scalar value is written as U+FFFD. */
unsigned gs_utf8_encode(uint32_t cp, char out[4]);
/* Decodes one character of valid UTF-8; returns its length (1..4), 0 at n == 0 or invalid. */
unsigned gs_utf8_decode(const char *s, size_t n, uint32_t *cp);

#endif
