/*
 * Ids back to text. Streaming and whole decoding share one UTF-8 assembler, so they agree by
 * construction: valid characters pass, each maximal part of an invalid one becomes one U+FFFD
 * (Unicode 15, 3.9, "substitution of maximal subparts"), and an unfinished one waits.
 */
#include "tok_impl.h"

#include <string.h>

#include "base/err.h"
#include "base/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd"

typedef enum seq_state { SEQ_WHOLE, SEQ_UNFINISHED, SEQ_BROKEN } seq_state;

/* Looks at the character that begins at s (Unicode 15, table 3-7). *len: how many bytes of it are
 * good; for a broken one how many a replacement stands for. */
static seq_state sequence(const unsigned char *s, size_t n, size_t *len) {
    unsigned char lo = 0x80, hi = 0xbf;
    size_t need;
    *len = 1;
    if (s[0] < 0x80)
        return SEQ_WHOLE;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return SEQ_BROKEN;
    need = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (s[0] == 0xe0)
        lo = 0xa0;
    else if (s[0] == 0xed)
        hi = 0x9f;
    else if (s[0] == 0xf0)
        lo = 0x90;
    else if (s[0] == 0xf4)
        hi = 0x8f;
    for (; *len < need; ++*len) {
        if (*len == n)
            return SEQ_UNFINISHED;
        if (s[*len] < lo || s[*len] > hi)
            return SEQ_BROKEN;
        lo = 0x80;
        hi = 0xbf;
    }
    return SEQ_WHOLE;
}

static int feed(gs_detok *d, const char *s, size_t n, gs_buf *out) {
    /* Every byte becomes at most one replacement: nothing below can fail half-way. */
    if (gs_buf_reserve(out, (n + sizeof(d->pending)) * 3))
        return GS_ERR_NOMEM;
    size_t i = 0;
    while (i < n) {
        size_t len;
        if (d->n_pending == 0) {
            size_t good = gs_utf8_valid_prefix(s + i, n - i);
            if (good)
                gs_buf_add(out, s + i, good);
            i += good;
            if (i == n)
                break;
            seq_state st = sequence((const unsigned char *)s + i, n - i, &len);
            if (st == SEQ_UNFINISHED) {
                memcpy(d->pending, s + i, len);
                d->n_pending = (unsigned)len;
            } else {
                gs_buf_add(out, REPLACEMENT, 3);
            }
            i += len;
            continue;
        }
        d->pending[d->n_pending++] = s[i++];
        switch (sequence((const unsigned char *)d->pending, d->n_pending, &len)) {
        case SEQ_WHOLE:
            gs_buf_add(out, d->pending, d->n_pending);
            d->n_pending = 0;
            break;
        case SEQ_BROKEN: /* by this byte, which begins anew */
            gs_buf_add(out, REPLACEMENT, 3);
            d->n_pending = 0;
            i--;
            break;
        case SEQ_UNFINISHED:
            break;
        }
    }
    return GS_OK;
}

/* What id shows: nothing for unknown ids and hidden control tokens. */
static gs_str shown(const gs_tokenizer *t, int32_t id, bool special) {
    if (id < 0 || id >= t->n_vocab || !t->attr || (t->attr[id] & GS_ATTR_CONTROL && !special))
        return (gs_str){NULL, 0};
    return gs_strpool_at(&t->pieces, id);
}

int gs_tok_piece(const gs_tokenizer *t, int32_t id, bool special, gs_buf *out) {
    gs_str p = shown(t, id, special);
    return p.len ? gs_buf_add(out, p.data, p.len) : GS_OK;
}

void gs_detok_init(gs_detok *d, const gs_tokenizer *t, bool special) {
    *d = (gs_detok){.tok = t, .at_start = true, .special = special};
}

void gs_detok_init_mid(gs_detok *d, const gs_tokenizer *t, bool special) {
    *d = (gs_detok){.tok = t, .at_start = false, .special = special};
}

int gs_detok_push(gs_detok *d, int32_t id, gs_buf *out) {
    gs_str p = shown(d->tok, id, d->special);
    if (p.len == 0)
        return GS_OK;
    /* WordPiece spells every word's beginning with a space. */
    bool leading = d->tok->add_space_prefix || d->tok->kind == GS_TOK_WPM;
    size_t skip = d->at_start && leading && p.data[0] == ' ';
    int rc = feed(d, p.data + skip, p.len - skip, out);
    if (!rc)
        d->at_start = false;
    return rc;
}

int gs_detok_flush(gs_detok *d, gs_buf *out) {
    if (d->n_pending == 0)
        return GS_OK;
    int rc = gs_buf_add(out, REPLACEMENT, 3);
    if (!rc)
        d->n_pending = 0;
    return rc;
}

int gs_tok_decode(const gs_tokenizer *t, const int32_t *ids, size_t n, bool special, gs_buf *out) {
    gs_detok d;
    size_t was = out->len;
    gs_detok_init(&d, t, special);
    int rc = GS_OK;
    for (size_t i = 0; i < n && !rc; i++)
        rc = gs_detok_push(&d, ids[i], out);
    if (!rc)
        rc = gs_detok_flush(&d, out);
    if (rc)
        out->len = was;
    return rc;
}
