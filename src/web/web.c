#include "web/web.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/err.h"
#include "base/sys.h"

static void *z_alloc(void *user, uInt n, uInt size) {
    (void)user;
    return gs_calloc(n, size);
}

static void z_free(void *user, void *p) {
    (void)user;
    gs_free(p);
}

static int compare(const void *key, const void *file) {
    return strcmp(key, ((const gs_web_file *)file)->path);
}

const gs_web_file *gs_web_find(const char *path) {
    return bsearch(path, gs_web_files, gs_web_n_files, sizeof(gs_web_files[0]), compare);
}

int gs_web_content(const gs_web_file *f, gs_buf *out) {
    if (gs_buf_reserve(out, f->n) != 0)
        return GS_ERR_NOMEM;
    z_stream z = {.next_in = (z_const Bytef *)(uintptr_t)f->gz,
                  .avail_in = (uInt)f->n_gz,
                  .next_out = (Bytef *)out->data + out->len,
                  .avail_out = (uInt)f->n,
                  .zalloc = z_alloc,
                  .zfree = z_free};
    if (inflateInit2(&z, 16 + MAX_WBITS) != Z_OK) /* 16: gzip's header and trailer */
        return GS_ERR_NOMEM;
    const int rc = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    if (rc != Z_STREAM_END || z.avail_out != 0)
        return GS_ERR_INTERNAL;
    out->len += f->n;
    return GS_OK;
}
