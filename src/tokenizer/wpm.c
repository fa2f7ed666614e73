/*
 * WordPiece (Schuster & Nakajima 2012) with the text normalisation of BERT's own tokenizer
 * (Devlin et al. 2018, BasicTokenizer): drop control characters, set CJK ideographs and
 * punctuation apart, and for uncased models decompose, drop accents and lower the case. Hangul
 * decomposes into its letters, as in BERT.
 *
 * GGUF spells a token that begins a word with U+2581 in front and a continuation ("##ing") bare;
 * pieces have a space for U+2581, so a word is looked up as " word".
 */
#include "tok_impl.h"

#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "unicode_tables.h"

#define MAX_WORD_CHARS 100u /* longer words are unknown, as in BERT's WordpieceTokenizer */

static unsigned class_of(uint32_t cp) {
    if (cp < 0x80) {
        if (cp == ' ' || cp == '\t' || cp == '\n' || cp == '\r')
            return UC_SPACE;
        if (cp < ' ' || cp == 0x7f)
            return UC_CONTROL;
        bool word =
            (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || (cp >= 'a' && cp <= 'z');
        return word ? UC_NONE : UC_PUNCT; /* BERT counts ASCII symbols as punctuation */
    }
    size_t lo = 0, hi = sizeof(class_ranges) / sizeof(class_ranges[0]);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > class_ranges[mid].last)
            lo = mid + 1;
        else if (cp < class_ranges[mid].first)
            hi = mid;
        else
            return class_ranges[mid].cls;
    }
    return UC_NONE;
}

static uint32_t lower_of(uint32_t cp) {
    if (cp < 0x80)
        return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    size_t lo = 0, hi = sizeof(lower_ranges) / sizeof(lower_ranges[0]);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        const uc_lower *r = &lower_ranges[mid];
        if (cp > r->last)
            lo = mid + 1;
        else if (cp < r->first)
            hi = mid;
        else
            return (cp - r->first) % (uint32_t)r->step ? cp : (uint32_t)((int32_t)cp + r->distance);
    }
    return cp;
}

/* Full canonical decomposition into out[4]; returns how many. Marks are not put into canonical
 * order: they are dropped next, and no word piece depends on it. */
static unsigned decompose(uint32_t cp, uint32_t out[4]) {
    if (cp >= 0xac00 && cp <= 0xd7a3) { /* Hangul (Unicode 15, 3.12) */
        uint32_t s = cp - 0xac00;
        out[0] = 0x1100 + s / 588;
        out[1] = 0x1161 + s % 588 / 28;
        out[2] = 0x11a7 + s % 28;
        return s % 28 ? 3 : 2;
    }
    size_t lo = 0, hi = cp < 0xc0 ? 0 : sizeof(decomps) / sizeof(decomps[0]);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        const uc_decomp *d = &decomps[mid];
        if (cp > d->cp) {
            lo = mid + 1;
        } else if (cp < d->cp) {
            hi = mid;
        } else {
            for (unsigned i = 0; i < d->len; i++)
                out[i] = decomp_pool[d->at + i];
            return d->len;
        }
    }
    out[0] = cp;
    return 1;
}

/* The blocks of ideographs that BERT sets apart (not kana, not Hangul). */
static bool is_ideograph(uint32_t cp) {
    return (cp >= 0x4e00 && cp <= 0x9fff) || (cp >= 0x3400 && cp <= 0x4dbf) ||
           (cp >= 0x20000 && cp <= 0x2a6df) || (cp >= 0x2a700 && cp <= 0x2b73f) ||
           (cp >= 0x2b740 && cp <= 0x2b81f) || (cp >= 0x2b820 && cp <= 0x2ceaf) ||
           (cp >= 0xf900 && cp <= 0xfaff) || (cp >= 0x2f800 && cp <= 0x2fa1f);
}

/* ---- one word ----------------------------------------------------------------------------------
 */

/* r->word holds " word"; greedy longest match from the left. A word with a part that no token
 * spells is one unknown token. */
static int end_word(gs_tok_run *r, size_t *n_chars) {
    const gs_tokenizer *t = r->t;
    const char *w = r->word.data;
    size_t n = r->word.len, first = r->out->len;
    bool known = *n_chars <= MAX_WORD_CHARS;
    if (*n_chars == 0)
        return GS_OK;
    for (size_t at = 0; known && at < n;) {
        size_t end = n - at <= t->max_piece ? n : at + t->max_piece;
        int32_t id = -1;
        for (; end > at; end--) {
            if (end < n && ((unsigned char)w[end] & 0xc0) == 0x80)
                continue; /* inside a character */
            if ((id = gs_vmap_find(&t->by_piece, w + at, end - at)) >= 0)
                break;
        }
        /* " " alone spells nothing of the word */
        known = id >= 0 && !(at == 0 && end == 1);
        if (known && gs_ids_push(r->out, id))
            return GS_ERR_NOMEM;
        at = end;
    }
    if (!known) {
        r->out->len = first;
        if (gs_ids_push(r->out, t->unk))
            return GS_ERR_NOMEM;
    }
    gs_buf_clear(&r->word);
    *n_chars = 0;
    return GS_OK;
}

static int add_char(gs_tok_run *r, uint32_t cp, size_t *n_chars) {
    char ch[4];
    if (*n_chars == 0 && gs_buf_char(&r->word, ' '))
        return GS_ERR_NOMEM;
    /* A longer word is unknown whatever follows: no need to keep it. */
    if (++*n_chars > MAX_WORD_CHARS)
        return GS_OK;
    return gs_buf_add(&r->word, ch, gs_utf8_encode(cp, ch));
}

/* A character after cleaning: continues the word, or stands alone. */
static int take(gs_tok_run *r, uint32_t cp, size_t *n_chars) {
    const gs_tokenizer *t = r->t;
    uint32_t parts[4] = {cp};
    bool apart = is_ideograph(cp);
    unsigned n = t->strip_accents ? decompose(cp, parts) : 1;
    for (unsigned i = 0; i < n; i++) {
        unsigned cls = class_of(parts[i]);
        if (t->strip_accents && cls == UC_MARK)
            continue;
        bool alone = apart || cls == UC_PUNCT;
        if (alone && end_word(r, n_chars))
            return GS_ERR_NOMEM;
        if (add_char(r, t->lowercase ? lower_of(parts[i]) : parts[i], n_chars) ||
            (alone && end_word(r, n_chars)))
            return GS_ERR_NOMEM;
    }
    return GS_OK;
}

int gs_wpm_segment(gs_tok_run *r, const char *text, size_t n) {
    size_t n_chars = 0; /* of the word so far */
    gs_buf_clear(&r->word);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += gs_utf8_decode(text + i, n - i, &cp);
        unsigned cls = class_of(cp);
        if (cp == 0xfffd || cls == UC_CONTROL)
            continue;
        if (cls == UC_SPACE || cp == 0x2028 || cp == 0x2029 ? end_word(r, &n_chars)
                                                            : take(r, cp, &n_chars))
            return GS_ERR_NOMEM;
    }
    return end_word(r, &n_chars);
}
