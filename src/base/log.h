/*
 * Log lines: `2026-01-31T10:11:12Z info engine: model loaded file=... ms=412`.
 *
 * One event is one line: control characters of the message are escaped, so that nothing a client
 * sends can forge a line or colour a terminal. Prompts and answers are never passed here. Any
 * thread may log. Errors of the log itself (disk full) never disturb the caller.
 */
#ifndef GS_BASE_LOG_H
#define GS_BASE_LOG_H

typedef enum gs_log_level { GS_LOG_DEBUG, GS_LOG_INFO, GS_LOG_WARN, GS_LOG_ERROR } gs_log_level;

void gs_log_set_level(gs_log_level level);
/* "debug", "info", "warn", "error" -> level, or -1. */
int gs_log_level_parse(const char *s);
/* module is a static word: "http", "engine". */
void gs_log(gs_log_level level, const char *module, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define gs_debug(...) gs_log(GS_LOG_DEBUG, __VA_ARGS__)
#define gs_info(...)  gs_log(GS_LOG_INFO, __VA_ARGS__)
#define gs_warn(...)  gs_log(GS_LOG_WARN, __VA_ARGS__)
#define gs_error(...) gs_log(GS_LOG_ERROR, __VA_ARGS__)

#endif
