/*
 * SentencePiece-style BPE (Kudo & Richardson 2018) and Gemma 4's raw BPE: both work on
 * characters, spell a space U+2581, and fall back to byte tokens.
 *
 * Merging would run over the whole text. It is cut into words where no token can ever span the
 * cut: before a space, unless the byte in front of it is one that some token has before a space
 * ("glue"; usually only the space itself).
 */
#include "tok_impl.h"

#include <string.h>

#include "base/err.h"
#include "base/sys.h"

void gs_spm_prepare(gs_tokenizer *t) {
    t->glue[' '] = true;
    for (int32_t i = 0; i < t->n_vocab; i++) {
        gs_str p = gs_strpool_at(&t->pieces, i);
        for (size_t k = 1; k < p.len; k++)
            if (p.data[k] == ' ')
                t->glue[(unsigned char)p.data[k - 1]] = true;
    }
    for (int c = 0; c < 128; c++) {
        char ch = (char)c;
        t->ascii_id[c] = gs_vmap_find(&t->by_piece, &ch, 1);
    }
}

static int words(gs_tok_run *r, const char *s, size_t n) {
    const gs_tokenizer *t = r->t;
    size_t start = 0;
    for (size_t i = 1; i <= n; i++) {
        if (i < n && (s[i] != ' ' || t->glue[(unsigned char)s[i - 1]]))
            continue;
        if (gs_merge_word(r, s + start, i - start))
            return GS_ERR_NOMEM;
        start = i;
    }
    return GS_OK;
}

/* Raw BPE never merges across the edge of a run of line feeds; a run that is a token is taken
 * whole. */
static int lines(gs_tok_run *r, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t end = i;
        bool feed = s[i] == '\n';
        while (end < n && (s[end] == '\n') == feed)
            end++;
        int32_t id =
            feed && end - i <= r->t->max_piece ? gs_vmap_find(&r->t->by_piece, s + i, end - i) : -1;
        if (id >= 0 ? gs_ids_push(r->out, id)
                    : (feed ? gs_merge_word(r, s + i, end - i) : words(r, s + i, end - i)))
            return GS_ERR_NOMEM;
        i = end;
    }
    return GS_OK;
}

int gs_spm_segment(gs_tok_run *r, const char *text, size_t n, bool prefix) {
    /* U+2581 in the text and a space are the same thing to these models. */
    bool escaped = memmem(text, n, GS_METASPACE, 3) != NULL;
    if (prefix || escaped) {
        gs_buf_clear(&r->buf);
        r->epoch++; /* cached words pointed into this buffer */
        if (gs_buf_reserve(&r->buf, n + 1))
            return GS_ERR_NOMEM;
        char *out = r->buf.data;
        size_t len = 0;
        if (prefix)
            out[len++] = ' ';
        for (size_t i = 0; i < n;) {
            if (n - i >= 3 && memcmp(text + i, GS_METASPACE, 3) == 0) {
                out[len++] = ' ';
                i += 3;
            } else {
                out[len++] = text[i++];
            }
        }
        text = out;
        n = len;
    }
    return r->t->raw_bpe ? lines(r, text, n) : words(r, text, n);
}
