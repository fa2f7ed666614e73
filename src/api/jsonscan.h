/*
 * A strict JSON scanner that takes one byte at a time and keeps no text: where values and keys
 * begin and end, and whether it is JSON at all (RFC 8259; duplicate keys are not looked at).
 * UTF-8 is the caller's affair. Pure; caller storage, zero-initialised is a scanner at the start.
 */
#ifndef GS_API_JSONSCAN_H
#define GS_API_JSONSCAN_H

#include <stdbool.h>
#include <stdint.h>

#define GS_JSONSCAN_DEPTH 64

typedef enum gs_json_event {
    GS_JSON_MORE,      /* inside something, or white space */
    GS_JSON_KEY_BEGIN, /* the opening quote of a key */
    GS_JSON_KEY_END,   /* its closing quote */
    GS_JSON_BEGIN,     /* first byte of a value */
    GS_JSON_END,       /* last byte of an object, an array or a string */
    GS_JSON_DONE,      /* that was the whole text's last byte: an object, an array or a string */
    GS_JSON_BAD
} gs_json_event;

typedef struct gs_jsonscan {
    uint64_t arrays; /* one bit per level: is it an array? */
    int depth;       /* open objects and arrays */
    uint8_t state, literal_at, n_hex;
    const char *literal;
    bool in_key;
} gs_jsonscan;

/* One byte more. The text's first value must be an object, an array or a string: a number has no
 * last byte. After DONE or BAD: BAD. */
gs_json_event gs_jsonscan_byte(gs_jsonscan *s, char c);

#endif
