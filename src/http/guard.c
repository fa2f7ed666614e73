/* The strict parser: which bytes may stand where (RFC 9112 section 2.2, 5, 7.1). */
#include "http/parse_impl.h"

/* A chunk size of at most 8 digits cannot overflow, and no body comes near 4 GiB. */
#define MAX_CHUNK_DIGITS 8

void gs_guard_fail(gs_http_parser *p, int status, const char *message) {
    p->state = GS_GUARD_FAILED;
    p->status = status;
    p->message = message;
}

/* RFC 9110 section 5.6.2 */
static bool is_tchar(unsigned char c) {
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))
        return true;
    switch (c) {
    case '!':
    case '#':
    case '$':
    case '%':
    case '&':
    case '\'':
    case '*':
    case '+':
    case '-':
    case '.':
    case '^':
    case '_':
    case '`':
    case '|':
    case '~':
        return true;
    default:
        return false;
    }
}

bool gs_http_is_token(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!is_tchar((unsigned char)s[i]))
            return false;
    return n > 0;
}

static void start_byte(gs_http_parser *p, unsigned char c) {
    if (c == '\r' && !p->skipped_line) {
        /* RFC 9112 section 2.2: an empty line before the request line may be ignored. */
        p->state = GS_GUARD_START_LF;
        return;
    }
    if (c == 0x16) {
        gs_guard_fail(p, 400, "this looks like TLS, but the server speaks plain http://");
        return;
    }
    if (!is_tchar(c)) {
        gs_guard_fail(p, 400, "malformed request line");
        return;
    }
    p->line_bytes = 1;
    p->state = GS_GUARD_LINE;
}

static void line_byte(gs_http_parser *p, unsigned char c) {
    if (c == '\r')
        p->state = GS_GUARD_LINE_LF;
    else if (c < 0x20 || c >= 0x7f)
        gs_guard_fail(p, 400, "invalid character in the request line");
    else if (++p->line_bytes > p->limits->max_line_bytes)
        gs_guard_fail(p, 414, "the request line is too long");
}

static void name_first_byte(gs_http_parser *p, unsigned char c) {
    p->line_bytes = 1;
    if (c == '\r')
        p->state = GS_GUARD_HEAD_LF;
    else if (c == ' ' || c == '\t')
        gs_guard_fail(p, 400, "folded header lines are not accepted");
    else if (!is_tchar(c))
        gs_guard_fail(p, 400, "invalid character in a header name");
    else if (++p->n_fields > p->limits->max_headers)
        gs_guard_fail(p, 431, "too many headers");
    else
        p->state = GS_GUARD_NAME;
}

static void field_byte(gs_http_parser *p, unsigned char c) {
    if (p->state == GS_GUARD_VALUE && c == '\r') {
        p->state = GS_GUARD_VALUE_LF;
    } else if (++p->line_bytes > p->limits->max_line_bytes) {
        gs_guard_fail(p, 431, "a header is too long");
    } else if (p->state == GS_GUARD_NAME) {
        if (c == ':')
            p->state = GS_GUARD_VALUE;
        else if (!is_tchar(c))
            gs_guard_fail(p, 400, "invalid character in a header name");
    } else if ((c < 0x20 && c != '\t') || c == 0x7f) {
        gs_guard_fail(p, 400, "invalid character in a header value");
    }
}

static void expect_lf(gs_http_parser *p, unsigned char c, gs_http_guard next) {
    if (c == '\n')
        p->state = next;
    else
        gs_guard_fail(p, 400, "CR without LF");
}

size_t gs_guard_head(gs_http_parser *p, const char *data, size_t n) {
    size_t i = 0;
    while (i < n) {
        unsigned char c = (unsigned char)data[i++];
        switch (p->state) {
        case GS_GUARD_START:
            start_byte(p, c);
            break;
        case GS_GUARD_START_LF:
            p->skipped_line = true;
            expect_lf(p, c, GS_GUARD_START);
            break;
        case GS_GUARD_LINE:
            line_byte(p, c);
            break;
        case GS_GUARD_LINE_LF:
        case GS_GUARD_VALUE_LF:
            expect_lf(p, c, GS_GUARD_NAME_FIRST);
            break;
        case GS_GUARD_NAME_FIRST:
            name_first_byte(p, c);
            break;
        case GS_GUARD_NAME:
        case GS_GUARD_VALUE:
            field_byte(p, c);
            break;
        default: /* GS_GUARD_HEAD_LF: no other state reaches this function */
            expect_lf(p, c, GS_GUARD_LENGTH);
            break;
        }
        if (p->state == GS_GUARD_FAILED || p->state == GS_GUARD_LENGTH)
            break;
        if (++p->head_bytes >= p->limits->max_header_bytes) {
            gs_guard_fail(p, 431, "the request head is too long");
            break;
        }
    }
    return i;
}

static int hex_value(unsigned char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static void chunk_size_byte(gs_http_parser *p, unsigned char c) {
    int v = hex_value(c);
    if (v >= 0 && ++p->n_digits <= MAX_CHUNK_DIGITS)
        p->left = p->left * 16 + (uint64_t)v;
    else if (c == '\r' && p->n_digits > 0)
        p->state = GS_GUARD_CHUNK_LF;
    else if (c == ';' && p->n_digits > 0)
        /* RFC 9112 section 7.1.1 lets a server limit them; ours is none. They mean nothing to us,
         * parsers disagree on their grammar, and they are traffic beside the body's limit. */
        gs_guard_fail(p, 400, "chunk extensions are not accepted");
    else
        gs_guard_fail(p, 400, "invalid chunk size");
}

static void chunk_line_end(gs_http_parser *p, unsigned char c) {
    expect_lf(p, c, p->left ? GS_GUARD_CHUNK_DATA : GS_GUARD_LAST_CR);
    p->body_bytes += p->left;
    if (p->state != GS_GUARD_FAILED && p->body_bytes > p->max_body_bytes)
        gs_guard_fail(p, 413, "the request body is too large");
}

static void chunk_data_end(gs_http_parser *p, unsigned char c) {
    if (p->state == GS_GUARD_CHUNK_DATA_CR && c == '\r') {
        p->state = GS_GUARD_CHUNK_DATA_LF;
    } else if (p->state == GS_GUARD_CHUNK_DATA_LF && c == '\n') {
        p->state = GS_GUARD_CHUNK_SIZE;
        p->n_digits = 0;
        p->left = 0;
    } else {
        gs_guard_fail(p, 400, "a chunk does not end where its size says");
    }
}

size_t gs_guard_chunked(gs_http_parser *p, const char *data, size_t n) {
    size_t i = 0;
    while (i < n && p->state != GS_GUARD_DONE && p->state != GS_GUARD_FAILED) {
        if (p->state == GS_GUARD_CHUNK_DATA) {
            size_t k = n - i < p->left ? n - i : (size_t)p->left;
            i += k;
            p->left -= k;
            if (p->left == 0)
                p->state = GS_GUARD_CHUNK_DATA_CR;
            continue;
        }
        unsigned char c = (unsigned char)data[i++];
        switch (p->state) {
        case GS_GUARD_CHUNK_SIZE:
            chunk_size_byte(p, c);
            break;
        case GS_GUARD_CHUNK_LF:
            chunk_line_end(p, c);
            break;
        case GS_GUARD_CHUNK_DATA_CR:
        case GS_GUARD_CHUNK_DATA_LF:
            chunk_data_end(p, c);
            break;
        case GS_GUARD_LAST_CR:
            /* Trailer fields could smuggle what the head's rules refuse; no client needs them. */
            if (c == '\r')
                p->state = GS_GUARD_LAST_LF;
            else
                gs_guard_fail(p, 400, "trailer fields are not accepted");
            break;
        default: /* GS_GUARD_LAST_LF */
            expect_lf(p, c, GS_GUARD_DONE);
            break;
        }
    }
    return i;
}
