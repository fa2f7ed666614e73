#include "base/utf8.h"

typedef struct utf8_lead {
    unsigned len;         /* 1..4; 0 = can't begin a character */
    unsigned char lo, hi; /* range of the second byte; the others are 80..BF */
} utf8_lead;

/* Unicode 15, table 3-7: the second byte's range shuts out overlong forms and surrogates. */
static utf8_lead lead_of(unsigned char c) {
    if (c < 0x80)
        return (utf8_lead){1, 0, 0};
    if (c >= 0xc2 && c <= 0xdf)
        return (utf8_lead){2, 0x80, 0xbf};
    if (c == 0xe0)
        return (utf8_lead){3, 0xa0, 0xbf};
    if (c == 0xed)
        return (utf8_lead){3, 0x80, 0x9f};
    if (c >= 0xe1 && c <= 0xef)
        return (utf8_lead){3, 0x80, 0xbf};
    if (c == 0xf0)
        return (utf8_lead){4, 0x90, 0xbf};
    if (c >= 0xf1 && c <= 0xf3)
        return (utf8_lead){4, 0x80, 0xbf};
    if (c == 0xf4)
        return (utf8_lead){4, 0x80, 0x8f};
    return (utf8_lead){0, 0, 0};
}

/* How many of the n bytes at s fit the beginning of one character; *len is its whole length. */
static unsigned matched(const unsigned char *s, size_t n, unsigned *len) {
    utf8_lead lead = lead_of(s[0]);
    *len = lead.len;
    if (lead.len == 0)
        return 0;
    unsigned k = 1;
    while (k < lead.len && k < n) {
        unsigned char lo = k == 1 ? lead.lo : 0x80, hi = k == 1 ? lead.hi : 0xbf;
        if (s[k] < lo || s[k] > hi)
            break;
        k++;
    }
    return k;
}

size_t gs_utf8_valid_prefix(const char *s, size_t n) {
    const unsigned char *u = (const unsigned char *)s;
    size_t i = 0;
    while (i < n) {
        if (u[i] < 0x80) {
            i++;
            continue;
        }
        unsigned len;
        if (matched(u + i, n - i, &len) != len || len == 0)
            break;
        i += len;
    }
    return i;
}

size_t gs_utf8_incomplete_tail(const char *s, size_t n) {
    const unsigned char *u = (const unsigned char *)s;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = u[n - back];
        if ((c & 0xc0) == 0x80) /* a continuation byte: its lead is further left */
            continue;
        unsigned len;
        unsigned k = matched(u + n - back, back, &len);
        return k == back && len > back ? back : 0;
    }
    return 0;
}

unsigned gs_utf8_encode(uint32_t cp, char out[4]) {
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        cp = 0xfffd;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

unsigned gs_utf8_decode(const char *s, size_t n, uint32_t *cp) {
    if (n == 0)
        return 0;
    const unsigned char *u = (const unsigned char *)s;
    unsigned len;
    if (matched(u, n, &len) != len || len == 0)
        return 0;
    uint32_t v = len == 1 ? u[0] : u[0] & (0x7fu >> len);
    for (unsigned k = 1; k < len; k++)
        v = v << 6 | (u[k] & 0x3f);
    *cp = v;
    return len;
}
