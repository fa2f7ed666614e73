#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *gs_err_name(int code) {
    switch (code) {
    case GS_OK:
        return "GS_OK";
#define X(name, value, http, text)                                                                 \
    case GS_ERR_##name:                                                                            \
        return "GS_ERR_" #name;
        GS_ERR_MAP(X)
#undef X
    default:
        return "GS_ERR_?";
    }
}

const char *gs_err_text(int code) {
    switch (code) {
    case GS_OK:
        return "ok";
#define X(name, value, http, text)                                                                 \
    case GS_ERR_##name:                                                                            \
        return text;
        GS_ERR_MAP(X)
#undef X
    default:
        return "unknown error";
    }
}

int gs_err_http(int code) {
    switch (code) {
    case GS_OK:
        return 200;
#define X(name, value, http, text)                                                                 \
    case GS_ERR_##name:                                                                            \
        return http;
        GS_ERR_MAP(X)
#undef X
    default:
        return 500;
    }
}

const char *gs_errno_text(int errnum) {
    const char *text = strerrordesc_np(errnum);
    return text ? text : "unknown error";
}

void gs_fail_text(char *err, size_t errlen, const char *fmt, ...) {
    if (!err || errlen == 0)
        return;
    int saved_errno = errno;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err, errlen, fmt, ap);
    va_end(ap);
    errno = saved_errno;
}

_Noreturn void gs_assert_fail(const char *expr, const char *file, int line) {
    fprintf(stderr, "gamasot: assertion failed: %s at %s:%d\n", expr, file, line);
    abort();
}
