#include "worker/dialect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const gs_worker_dialect rows[] = {
    {.name = "openai"},
    {.name = "llama-server",
     .owned_by = "llamacpp",
     .extra = "\"cache_prompt\":true",
     .metrics_path = "/metrics",
     .running = "llamacpp:requests_processing",
     .waiting = "llamacpp:requests_deferred"},
    {.name = "vllm",
     .owned_by = "vllm",
     .priority = "priority",
     .cache_salt = "cache_salt",
     .metrics_path = "/metrics",
     .running = "vllm:num_requests_running",
     .waiting = "vllm:num_requests_waiting"},
    {.name = "ollama", .owned_by = "library"},
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

const gs_worker_dialect *gs_worker_dialect_at(size_t i) {
    return i < N_ROWS ? &rows[i] : NULL;
}

const gs_worker_dialect *gs_worker_dialect_of(const char *owned_by) {
    for (size_t i = 0; owned_by && i < N_ROWS; i++)
        if (rows[i].owned_by && strcmp(rows[i].owned_by, owned_by) == 0)
            return &rows[i];
    return &rows[0];
}

/* The number at the end of a line "name{labels} 3.0"; NaN: the line is another metric's. */
static double value_of(const char *line, size_t n, const char *name) {
    char text[40];
    const size_t len = strlen(name);
    if (n <= len || memcmp(line, name, len) != 0 || (line[len] != ' ' && line[len] != '{'))
        return (double)NAN;
    const char *at = line + len;
    if (*at == '{') {
        const char *close = memchr(at, '}', n - len);
        if (!close)
            return (double)NAN;
        at = close + 1;
    }
    const size_t left = n - (size_t)(at - line);
    if (left == 0 || left >= sizeof(text))
        return (double)NAN;
    memcpy(text, at, left);
    text[left] = '\0';
    char *end;
    const double v = strtod(text, &end);
    return end == text ? (double)NAN : v;
}

double gs_worker_gauge(const char *text, size_t n, const char *name) {
    double sum = -1.0;
    for (size_t at = 0; at < n;) {
        const char *newline = memchr(text + at, '\n', n - at);
        const size_t len = newline ? (size_t)(newline - text) - at : n - at;
        const double v = value_of(text + at, len, name);
        if (isfinite(v) && v >= 0.0)
            sum = (sum < 0.0 ? 0.0 : sum) + v;
        at += len + 1;
    }
    return sum;
}
