/* libFuzzer target: open any bytes as GGUF, and read all of what was accepted.
 * Seeds: tests/fuzz/make_seeds.c writes them into <build>/corpus/gguf_open. */
#include <stdint.h>

#include "gguf/gguf.h"
#include "../unit/gguf/gguf_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gs_gguf *g;
    char err[256] = "";
    int rc = gs_gguf_open_mem(data, size, &g, err, sizeof err);
    if (rc == GS_OK) {
        volatile uint64_t sum = gs_walk_all(g);
        (void)sum;
        gs_gguf_close(g);
    } else if (g || err[0] == '\0') {
        abort(); /* a refusal leaves no object and says why */
    }
    return 0;
}
