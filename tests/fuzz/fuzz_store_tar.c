/* Any bytes as an archive: names and sizes stay within their bounds, the walk ends. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int in = -1, out = -1;
    gs_tar_entry e;
    if (in < 0) {
        in = memfd_create("in", MFD_CLOEXEC);
        out = open("/dev/null", O_WRONLY | O_CLOEXEC);
    }
    if (in < 0 || out < 0 || ftruncate(in, 0) != 0 || pwrite(in, data, size, 0) != (ssize_t)size ||
        lseek(in, 0, SEEK_SET) != 0)
        abort();
    for (size_t n = 0; gs_tar_next(in, &e) == 1; n++) {
        if (n > size / GS_TAR_BLOCK || e.bytes < 0 || e.bytes > GS_TAR_MAX ||
            strnlen(e.name, sizeof e.name) == sizeof e.name)
            abort();
        if (gs_tar_copy(in, out, e.bytes) != 0 || gs_tar_skip_pad(in, e.bytes) != 0)
            break;
    }
    return 0;
}
