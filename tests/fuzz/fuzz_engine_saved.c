/* Any bytes as a saved prefix: what is accepted is, byte for byte, what a writer would write. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/saved.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int32_t tokens[4] = {1, 2, 3, 4};
    const gs_saved want = {
        .of = "fuzz", .tokens = tokens, .n_blocks = 2, .block_tokens = 2, .block_bytes = 8};
    uint8_t front[1024];
    char err[256] = "";
    const size_t n = gs_saved_front_bytes(&want);
    const size_t n_front = size < n ? size : n;
    if (gs_saved_check(&want, data, n_front, data + n_front, size - n_front, err, sizeof err) !=
        0) {
        if (!err[0])
            abort();
        return 0;
    }
    gs_saved_write_front(&want, data + n, front);
    if (n > sizeof front || memcmp(front, data, n) != 0)
        abort();
    return 0;
}
