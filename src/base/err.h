/*
 * Error codes: one table gives the enum, the name, the HTTP status and a sentence.
 *
 * Every fallible function in gamasot returns int: 0 (GS_OK) or one of the negative codes below.
 * At the edges (files, configuration, API) it also fills `char *err, size_t errlen` with one
 * sentence for a person, which names the key, tensor, field or file that is wrong. gs_fail()
 * does both in one line.  Pattern: libuv's UV_ERRNO_MAP.
 */
#ifndef GS_BASE_ERR_H
#define GS_BASE_ERR_H

#include <stddef.h>

/*  name, value, HTTP status, text */
#define GS_ERR_MAP(X)                                                                              \
    X(INVALID, -1, 400, "invalid value")                                                           \
    X(UNAUTHORIZED, -2, 401, "missing or unknown API key")                                         \
    X(FORBIDDEN, -3, 403, "not allowed")                                                           \
    X(NOT_FOUND, -4, 404, "not found")                                                             \
    X(TOO_LARGE, -5, 413, "too large")                                                             \
    X(CONTEXT, -6, 400, "prompt and output do not fit the context")                                \
    X(OVERLOADED, -7, 429, "too many requests")                                                    \
    X(UNAVAILABLE, -8, 503, "not ready")                                                           \
    X(TIMEOUT, -9, 504, "timed out")                                                               \
    X(CANCELLED, -10, 499, "cancelled by the client")                                              \
    X(NOMEM, -11, 503, "out of memory")                                                            \
    X(KV_FULL, -12, 503, "no free KV blocks")                                                      \
    X(IO, -13, 500, "input/output error")                                                          \
    X(FORMAT, -14, 400, "malformed data")                                                          \
    X(UNSUPPORTED, -15, 400, "not supported")                                                      \
    X(BACKEND, -16, 500, "the compute backend failed")                                             \
    X(INTERNAL, -17, 500, "internal error")                                                        \
    X(EXISTS, -18, 409, "already exists")                                                          \
    X(METHOD, -19, 405, "method not allowed")                                                      \
    X(MEDIA_TYPE, -20, 415, "unsupported content type")                                            \
    X(NO_SPACE, -21, 507, "no space left on the disk")                                             \
    X(STALLED, -22, 503, "the compute backend stopped answering, and its step was given up")

typedef enum gs_err {
    GS_OK = 0,
#define X(name, value, http, text) GS_ERR_##name = (value),
    GS_ERR_MAP(X)
#undef X
} gs_err;

/* "GS_ERR_FORMAT"; "GS_OK" for 0; "GS_ERR_?" for a number that is no code. Static strings. */
const char *gs_err_name(int code);
/* The sentence of the table, e.g. "malformed data". Static string. */
const char *gs_err_text(int code);
/* The HTTP status that this code becomes at the API; 200 for 0, 500 for unknown codes. */
int gs_err_http(int code);
/* What an errno means, as strerror says it, but from any thread. Static string. */
const char *gs_errno_text(int errnum);

/*
 * Writes the message into err (cut to errlen, always terminated; err may be NULL) and returns
 * code, so that `return gs_fail(err, errlen, GS_ERR_FORMAT, "tensor %s: ...", name);` works.
 */
#define gs_fail(err, errlen, code, ...)                                                            \
    (gs_fail_text((err), (errlen), __VA_ARGS__), gs_fail_code(code))

/* The two halves of gs_fail. It is a macro so that compilers and analysers see which code comes
 * back, and so know that "0 was returned" and "it failed" exclude each other. Keeps errno. */
void gs_fail_text(char *err, size_t errlen, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static inline int gs_fail_code(int code) {
    return code;
}

/*
 * Always on, release builds too, and only for our own invariants: no byte that came from a file
 * or a socket may decide whether it holds. Prints file, line and expression, then aborts.
 */
#define GS_ASSERT(expr) ((expr) ? (void)0 : gs_assert_fail(#expr, __FILE__, __LINE__))
_Noreturn void gs_assert_fail(const char *expr, const char *file, int line);

#endif
