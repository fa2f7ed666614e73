/* Any text as the lines of a batch job: each is good, or is refused with a code and a sentence. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/kept.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void one_line(const char *line, size_t n) {
    const char *param = NULL, *message = NULL;
    gs_api_error e = {0};
    json_t *v = gs_api_parse_json(line, n, &e);
    if (!v && (e.code >= 0 || !e.message[0]))
        abort();
    const char *code = v ? gs_batch_line_judge("/v1/chat/completions", v, &param, &message) : NULL;
    if (code && (!code[0] || !param || !message || !message[0]))
        abort();
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *at = (const char *)data, *end = at + size;
    while (at < end) {
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        one_line(at, (size_t)((nl ? nl : end) - at));
        at = nl ? nl + 1 : end;
    }
    return 0;
}
