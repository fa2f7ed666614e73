/* WordPiece. */
#include "tok_impl.h"

#include "base/err.h"

int gs_wpm_segment(gs_tok_run *r, const char *text, size_t n) {
    (void)text;
    (void)n;
    return gs_fail(r->err, r->errlen, GS_ERR_UNSUPPORTED, "WordPiece is not supported");
}
