#include "base/log.h"

#include "base/sys.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A line is cut here; pipes take up to 4 KiB in one piece, so lines of threads never mix. */
#define LINE_BYTES 4096
#define CUT_MARK   "..."

static const char *const level_names[] = {"debug", "info", "warn", "error"};
static atomic_int min_level = GS_LOG_INFO;

void gs_log_set_level(gs_log_level level) {
    atomic_store_explicit(&min_level, (int)level, memory_order_relaxed);
}

int gs_log_level_parse(const char *s) {
    for (int i = 0; i < (int)(sizeof level_names / sizeof level_names[0]); i++)
        if (strcmp(s, level_names[i]) == 0)
            return i;
    return -1;
}

/*
 * Writes the character at s (n bytes are left) so that a terminal only shows it: C0, DEL, C1 and
 * bytes that are no UTF-8 become escapes, a backslash is doubled. Returns the bytes consumed;
 * *out_len is what was written (at most 16).
 */
static size_t escape_char(const char *s, size_t n, char out[16], size_t *out_len) {
    uint32_t cp;
    unsigned len = gs_utf8_decode(s, n, &cp);
    int w;
    if (len == 0) {
        w = snprintf(out, 16, "\\x%02x", (unsigned)(unsigned char)*s);
        len = 1;
    } else if (cp == '\n') {
        w = snprintf(out, 16, "\\n");
    } else if (cp == '\\') {
        w = snprintf(out, 16, "\\\\");
    } else if (cp < 0x20 || (cp >= 0x7f && cp <= 0x9f)) {
        w = snprintf(out, 16, "\\x%02x", (unsigned)cp);
    } else if (cp == 0x2028 || cp == 0x2029) { /* line and paragraph separator */
        w = snprintf(out, 16, "\\u%04x", (unsigned)cp);
    } else {
        memcpy(out, s, len);
        w = (int)len;
    }
    *out_len = (size_t)w;
    return len;
}

void gs_log(gs_log_level level, const char *module, const char *fmt, ...) {
    if ((int)level < atomic_load_explicit(&min_level, memory_order_relaxed))
        return;
    int saved_errno = errno;
    char message[LINE_BYTES], line[LINE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int want = vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    if (want < 0)
        message[0] = '\0';
    bool cut = want >= (int)sizeof message;

    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    size_t len = strftime(line, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
    len += (size_t)snprintf(line + len, 64, " %s %.20s: ", level_names[level], module);

    const size_t room = sizeof line - sizeof CUT_MARK; /* the mark and the newline always fit */
    size_t n = strlen(message), i = 0;
    while (i < n) {
        char piece[16];
        size_t piece_len, used = escape_char(message + i, n - i, piece, &piece_len);
        if (len + piece_len > room) {
            cut = true;
            break;
        }
        memcpy(line + len, piece, piece_len);
        len += piece_len;
        i += used;
    }
    if (cut) {
        memcpy(line + len, CUT_MARK, sizeof CUT_MARK - 1);
        len += sizeof CUT_MARK - 1;
    }
    line[len++] = '\n';
    /* Nobody is left to tell when the log itself can't be written. */
    ssize_t ignored = gs_write(STDERR_FILENO, line, len);
    (void)ignored;
    errno = saved_errno;
}
