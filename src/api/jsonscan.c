#include "api/jsonscan.h"

#include <stddef.h>

enum {
    VALUE, /* one must come */
    FIRST_ITEM,
    FIRST_KEY,
    NEXT_KEY,
    COLON,
    AFTER, /* a value ended inside something */
    STRING,
    ESCAPE,
    HEX,
    LITERAL,
    MINUS,
    ZERO,
    DIGITS,
    POINT,
    FRACTION,
    EXPONENT,
    EXPONENT_SIGN,
    EXPONENT_DIGITS,
    OVER
};

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static gs_json_event bad(gs_jsonscan *s) {
    s->state = OVER;
    return GS_JSON_BAD;
}

static gs_json_event go(gs_jsonscan *s, int state, gs_json_event ev) {
    s->state = (uint8_t)state;
    return ev;
}

/* A value ended with this byte. */
static gs_json_event ended(gs_jsonscan *s) {
    return s->depth == 0 ? go(s, OVER, GS_JSON_DONE) : go(s, AFTER, GS_JSON_END);
}

static gs_json_event open_level(gs_jsonscan *s, bool array) {
    if (s->depth == GS_JSONSCAN_DEPTH)
        return bad(s);
    uint64_t bit = UINT64_C(1) << s->depth++;
    s->arrays = array ? s->arrays | bit : s->arrays & ~bit;
    return go(s, array ? FIRST_ITEM : FIRST_KEY, GS_JSON_BEGIN);
}

static bool in_array(const gs_jsonscan *s) {
    return s->depth > 0 && ((s->arrays >> (s->depth - 1)) & 1);
}

static gs_json_event close_level(gs_jsonscan *s, char c) {
    if (s->depth == 0 || (c == ']') != in_array(s))
        return bad(s);
    s->depth--;
    return ended(s);
}

static gs_json_event literal(gs_jsonscan *s, const char *text) {
    s->literal = text;
    s->literal_at = 1;
    return go(s, LITERAL, GS_JSON_BEGIN);
}

static gs_json_event value(gs_jsonscan *s, char c) {
    if (is_space(c))
        return GS_JSON_MORE;
    if (c == '{' || c == '[')
        return open_level(s, c == '[');
    if (c == '"') {
        s->in_key = false;
        return go(s, STRING, GS_JSON_BEGIN);
    }
    if (s->depth == 0)
        return bad(s);
    if (c == 't')
        return literal(s, "true");
    if (c == 'f')
        return literal(s, "false");
    if (c == 'n')
        return literal(s, "null");
    if (c == '-')
        return go(s, MINUS, GS_JSON_BEGIN);
    if (is_digit(c))
        return go(s, c == '0' ? ZERO : DIGITS, GS_JSON_BEGIN);
    return bad(s);
}

static gs_json_event key(gs_jsonscan *s, char c) {
    if (is_space(c))
        return GS_JSON_MORE;
    if (c != '"')
        return bad(s);
    s->in_key = true;
    return go(s, STRING, GS_JSON_KEY_BEGIN);
}

static gs_json_event after(gs_jsonscan *s, char c) {
    if (is_space(c))
        return go(s, AFTER, GS_JSON_MORE);
    if (c == ',')
        return go(s, in_array(s) ? VALUE : NEXT_KEY, GS_JSON_MORE);
    if (c == ']' || c == '}')
        return close_level(s, c);
    return bad(s);
}

static gs_json_event string(gs_jsonscan *s, char c) {
    if (c == '\\')
        return go(s, ESCAPE, GS_JSON_MORE);
    if ((unsigned char)c < 0x20)
        return bad(s);
    if (c != '"')
        return GS_JSON_MORE;
    return s->in_key ? go(s, COLON, GS_JSON_KEY_END) : ended(s);
}

static gs_json_event escape(gs_jsonscan *s, char c) {
    s->n_hex = 0;
    switch (c) {
    case 'u':
        return go(s, HEX, GS_JSON_MORE);
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        return go(s, STRING, GS_JSON_MORE);
    default:
        return bad(s);
    }
}

static gs_json_event hex(gs_jsonscan *s, char c) {
    if (!is_hex(c))
        return bad(s);
    return go(s, ++s->n_hex == 4 ? STRING : HEX, GS_JSON_MORE);
}

static gs_json_event in_literal(gs_jsonscan *s, char c) {
    if (c != s->literal[s->literal_at])
        return bad(s);
    return s->literal[++s->literal_at] ? GS_JSON_MORE : go(s, AFTER, GS_JSON_MORE);
}

/* Numbers end before the byte that ends them. */
static gs_json_event number(gs_jsonscan *s, char c) {
    bool digit = is_digit(c), e = c == 'e' || c == 'E';
    switch (s->state) {
    case MINUS:
        return digit ? go(s, c == '0' ? ZERO : DIGITS, GS_JSON_MORE) : bad(s);
    case POINT:
        return digit ? go(s, FRACTION, GS_JSON_MORE) : bad(s);
    case EXPONENT:
        if (c == '+' || c == '-')
            return go(s, EXPONENT_SIGN, GS_JSON_MORE);
        return digit ? go(s, EXPONENT_DIGITS, GS_JSON_MORE) : bad(s);
    case EXPONENT_SIGN:
        return digit ? go(s, EXPONENT_DIGITS, GS_JSON_MORE) : bad(s);
    case EXPONENT_DIGITS:
        return digit ? GS_JSON_MORE : after(s, c);
    case FRACTION:
        return digit ? GS_JSON_MORE : e ? go(s, EXPONENT, GS_JSON_MORE) : after(s, c);
    default: /* ZERO, DIGITS */
        if (digit && s->state == DIGITS)
            return GS_JSON_MORE;
        if (c == '.')
            return go(s, POINT, GS_JSON_MORE);
        return e ? go(s, EXPONENT, GS_JSON_MORE) : digit ? bad(s) : after(s, c);
    }
}

gs_json_event gs_jsonscan_byte(gs_jsonscan *s, char c) {
    switch (s->state) {
    case FIRST_ITEM:
        if (c == ']')
            return close_level(s, c);
        return value(s, c);
    case VALUE:
        return value(s, c);
    case FIRST_KEY:
        if (c == '}')
            return close_level(s, c);
        return key(s, c);
    case NEXT_KEY:
        return key(s, c);
    case COLON:
        return is_space(c) ? GS_JSON_MORE : c == ':' ? go(s, VALUE, GS_JSON_MORE) : bad(s);
    case AFTER:
        return after(s, c);
    case STRING:
        return string(s, c);
    case ESCAPE:
        return escape(s, c);
    case HEX:
        return hex(s, c);
    case LITERAL:
        return in_literal(s, c);
    case OVER:
        return GS_JSON_BAD;
    default:
        return number(s, c);
    }
}
