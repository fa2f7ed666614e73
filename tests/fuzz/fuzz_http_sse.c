/*
 * Event streams of others: the input's first byte says how the rest is cut. Whatever the bytes, one
 * piece and many give the same events, and no event is larger than allowed.
 */
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "http/sse.h"

#define MAX_BYTES 256

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int hear(void *arg, const char *type, const char *data, size_t n) {
    GS_ASSERT(n <= MAX_BYTES && data[n] == '\0');
    GS_ASSERT(strlen(type) < GS_SSE_TYPE && type[0] != '\0');
    gs_buf_printf(arg, "[%s|%zu|", type, n);
    return gs_buf_add(arg, data, n);
}

static int parse(const char *data, size_t n, size_t step, gs_buf *heard) {
    gs_sse s;
    int rc = 0;
    gs_sse_init(&s, MAX_BYTES, hear, heard);
    for (size_t at = 0; at < n && rc == 0; at += step)
        rc = gs_sse_feed(&s, data + at, n - at < step ? n - at : step);
    gs_sse_deinit(&s);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2)
        return 0;
    const char *bytes = (const char *)data + 1;
    gs_buf whole = {0}, cut = {0};
    const int rc = parse(bytes, n - 1, n, &whole);
    GS_ASSERT(rc == parse(bytes, n - 1, 1u + data[0] % 16u, &cut));
    GS_ASSERT(rc == 0 || rc == GS_ERR_TOO_LARGE);
    GS_ASSERT(whole.len == cut.len && (cut.len == 0 || !memcmp(whole.data, cut.data, cut.len)));
    gs_buf_deinit(&whole);
    gs_buf_deinit(&cut);
    return 0;
}
