/*
 * multipart/form-data: the input's first byte says how the rest is cut into pieces. Whatever the
 * bytes, the handlers hear the same for one piece as for many, and a file's name is no path.
 */
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "http/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int on_begin(void *arg, const gs_multipart_part *p) {
    GS_ASSERT(p->name[0] && !strpbrk(p->filename, "/\\"));
    GS_ASSERT(gs_utf8_valid(p->filename, strlen(p->filename)));
    return gs_buf_printf(arg, "[%s|%s|%d:", p->name, p->filename, p->is_file);
}

static int on_data(void *arg, const char *data, size_t n) {
    GS_ASSERT(n > 0);
    return gs_buf_add(arg, data, n);
}

static int on_end(void *arg) {
    return gs_buf_char(arg, ']');
}

static int parse(const char *data, size_t n, size_t step, gs_buf *heard) {
    gs_multipart m;
    const gs_multipart_handler on = {on_begin, on_data, on_end, heard};
    int rc = gs_multipart_init(&m, "multipart/form-data; boundary=x", &on);
    GS_ASSERT(rc == 0);
    for (size_t at = 0; at < n && rc == 0; at += step)
        rc = gs_multipart_feed(&m, data + at, n - at < step ? n - at : step);
    rc = gs_multipart_finish(&m);
    GS_ASSERT(rc == 0 || m.error);
    gs_multipart_deinit(&m);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2)
        return 0;
    const char *bytes = (const char *)data + 1;
    gs_buf whole = {0}, cut = {0};
    int rc = parse(bytes, n - 1, n, &whole);
    GS_ASSERT(rc == parse(bytes, n - 1, 1u + data[0] % 16u, &cut));
    if (rc == 0)
        GS_ASSERT(whole.len == cut.len &&
                  (whole.len == 0 || !memcmp(whole.data, cut.data, cut.len)));
    gs_buf_deinit(&whole);
    gs_buf_deinit(&cut);
    return 0;
}
