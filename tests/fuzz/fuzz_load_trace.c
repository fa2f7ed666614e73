/* Any text as a trace; what was read must read the same after it was written. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "load/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_again(const gs_trace *t, gs_buf *out) {
    if (gs_trace_write(t, out) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gs_trace t, back;
    gs_buf first = {0}, second = {0};
    char err[256] = "";
    gs_trace_init(&t);
    gs_trace_init(&back);
    if (gs_trace_parse((const char *)data, size, &t, err, sizeof err) != 0) {
        if (!err[0] || t.n != 0)
            abort(); /* a refusal says why and leaves nothing */
    } else {
        write_again(&t, &first);
        if (gs_trace_parse(first.data ? first.data : "", first.len, &back, err, sizeof err) != 0)
            abort();
        write_again(&back, &second);
        if (first.len != second.len || (first.len && memcmp(first.data, second.data, first.len)))
            abort();
    }
    gs_buf_deinit(&first);
    gs_buf_deinit(&second);
    gs_trace_free(&t);
    gs_trace_free(&back);
    return 0;
}
