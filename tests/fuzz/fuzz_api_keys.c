/* Any text as the file of keys; what was read must read the same after it was written. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gs_keys keys, back = {0};
    gs_buf first = {0}, second = {0};
    char err[600] = "";
    if (gs_keys_parse("fuzz", (const char *)data, size, &keys, err, sizeof err) != 0) {
        if (!strstr(err, "fuzz") || keys.n != 0)
            abort(); /* a refusal says where and leaves nothing */
    } else {
        if (gs_keys_write(&keys, &first) != 0 ||
            gs_keys_parse("again", first.data, first.len, &back, err, sizeof err) != 0 ||
            gs_keys_write(&back, &second) != 0)
            abort();
        if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0)
            abort();
        (void)gs_keys_by_secret(&keys, err);
        (void)gs_keys_by_address(&keys, "192.168.1.7");
    }
    gs_buf_deinit(&first);
    gs_buf_deinit(&second);
    gs_keys_deinit(&keys);
    gs_keys_deinit(&back);
    return 0;
}
