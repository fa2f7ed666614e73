/* Tokens, their types and scores out of GGUF metadata; string -> id maps. */
#include "tok_impl.h"

#include <math.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/checked.h"
#include "base/err.h"
#include "base/sys.h"

#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES  "tokenizer.ggml.token_type"
#define KEY_SCORES "tokenizer.ggml.scores"

int gs_strpool_init(gs_strpool *p, uint32_t n, size_t bytes) {
    p->data = gs_malloc(bytes ? bytes : 1);
    p->off = gs_array((size_t)n + 1, sizeof(*p->off));
    p->n = n;
    if (!p->data || !p->off)
        return GS_ERR_NOMEM;
    p->off[0] = 0;
    return GS_OK;
}

void gs_strpool_deinit(gs_strpool *p) {
    gs_free(p->data);
    gs_free(p->off);
    *p = (gs_strpool){0};
}

gs_str gs_strpool_at(const gs_strpool *p, int32_t i) {
    return (gs_str){p->data + p->off[i], p->off[i + 1] - p->off[i]};
}

uint64_t gs_vocab_hash(const char *s, size_t n) {
    return XXH3_64bits(s, n);
}

int gs_vmap_init(gs_vmap *m, const gs_strpool *pool, uint32_t n) {
    uint32_t cap = 16;
    while (cap < n + n / 2)
        cap *= 2;
    m->slots = gs_array(cap, sizeof(*m->slots));
    if (!m->slots)
        return GS_ERR_NOMEM;
    for (uint32_t i = 0; i < cap; i++)
        m->slots[i] = (gs_vslot){0, -1};
    m->mask = cap - 1;
    m->pool = pool;
    return GS_OK;
}

/* The slot that holds the string or where it would go. */
static gs_vslot *slot_of(const gs_vmap *m, const char *s, size_t n, uint32_t hash) {
    for (uint32_t i = hash & m->mask;; i = (i + 1) & m->mask) {
        gs_vslot *v = &m->slots[i];
        if (v->id < 0)
            return v;
        if (v->hash == hash) {
            gs_str have = gs_strpool_at(m->pool, v->id);
            if (have.len == n && memcmp(have.data, s, n) == 0)
                return v;
        }
    }
}

int32_t gs_vmap_add(gs_vmap *m, int32_t id) {
    gs_str s = gs_strpool_at(m->pool, id);
    uint32_t hash = (uint32_t)gs_vocab_hash(s.data, s.len);
    gs_vslot *v = slot_of(m, s.data, s.len, hash);
    if (v->id >= 0)
        return v->id;
    *v = (gs_vslot){hash, id};
    return -1;
}

int32_t gs_vmap_find(const gs_vmap *m, const char *s, size_t n) {
    if (!m->slots)
        return -1;
    return slot_of(m, s, n, (uint32_t)gs_vocab_hash(s, n))->id;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

int gs_vocab_byte_of(gs_str s) {
    if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>')
        return -1;
    int hi = hex_digit(s.data[3]), lo = hex_digit(s.data[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

static int load_spellings(gs_tokenizer *t, const gs_gguf *g, char *err, size_t errlen) {
    const gs_gguf_kv *kv = NULL;
    int rc = gs_gguf_get_arr(g, KEY_TOKENS, GS_GGUF_STR, &kv, err, errlen);
    if (rc == GS_ERR_NOT_FOUND)
        return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_TOKENS ": missing");
    if (rc)
        return rc;
    if (kv->n < 1 || kv->n > GS_TOK_MAX_VOCAB)
        return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_TOKENS ": %llu tokens, allowed are 1 to %u",
                       (unsigned long long)kv->n, GS_TOK_MAX_VOCAB);
    uint32_t n = (uint32_t)kv->n;
    size_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        gs_str s = gs_gguf_arr_str(g, kv, i);
        if (s.len > GS_TOK_MAX_SPELLING)
            return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_TOKENS "[%u]: %zu bytes, at most %u", i,
                           s.len, GS_TOK_MAX_SPELLING);
        total += s.len;
    }
    if (total > INT32_MAX)
        return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_TOKENS ": more than 2 GiB of text");
    if (gs_strpool_init(&t->spellings, n, total))
        return gs_fail(err, errlen, GS_ERR_NOMEM, KEY_TOKENS ": out of memory");
    for (uint32_t i = 0; i < n; i++) {
        gs_str s = gs_gguf_arr_str(g, kv, i);
        if (s.len)
            memcpy(t->spellings.data + t->spellings.off[i], s.data, s.len);
        t->spellings.off[i + 1] = t->spellings.off[i] + (uint32_t)s.len;
    }
    t->n_vocab = (int32_t)n;
    return GS_OK;
}

static int load_types(gs_tokenizer *t, const gs_gguf *g, char *err, size_t errlen) {
    t->attr = gs_calloc((size_t)t->n_vocab, 1);
    if (!t->attr)
        return gs_fail(err, errlen, GS_ERR_NOMEM, KEY_TYPES ": out of memory");
    const gs_gguf_kv *kv = NULL;
    int rc = gs_gguf_get_arr(g, KEY_TYPES, GS_GGUF_I32, &kv, err, errlen);
    if (rc == GS_ERR_NOT_FOUND)
        return GS_OK; /* all ordinary */
    if (rc)
        return rc;
    if (kv->n != (uint64_t)t->n_vocab)
        return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_TYPES ": %llu entries for %d tokens",
                       (unsigned long long)kv->n, t->n_vocab);
    for (int32_t i = 0; i < t->n_vocab; i++) {
        int64_t type = gs_gguf_arr_i64(kv, (uint64_t)i);
        if (type < 0 || type > GS_TTYPE_BYTE)
            return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_TYPES "[%d]: %lld is no token type", i,
                           (long long)type);
        if (type == GS_TTYPE_CONTROL || type == GS_TTYPE_UNKNOWN)
            t->attr[i] = GS_ATTR_CONTROL;
        else if (type == GS_TTYPE_USER)
            t->attr[i] = GS_ATTR_USER;
        else if (type == GS_TTYPE_BYTE)
            t->attr[i] = GS_ATTR_BYTE;
    }
    return GS_OK;
}

static int load_scores(gs_tokenizer *t, const gs_gguf *g, char *err, size_t errlen) {
    const gs_gguf_kv *kv = gs_gguf_find(g, KEY_SCORES);
    if (!kv)
        return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_SCORES ": missing");
    bool whole = kv->elem_type == GS_GGUF_I32;
    if (kv->type != GS_GGUF_ARR || (!whole && kv->elem_type != GS_GGUF_F32))
        return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_SCORES ": not an array of numbers");
    if (kv->n != (uint64_t)t->n_vocab)
        return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_SCORES ": %llu entries for %d tokens",
                       (unsigned long long)kv->n, t->n_vocab);
    t->scores = gs_array((size_t)t->n_vocab, sizeof(float));
    if (!t->scores)
        return gs_fail(err, errlen, GS_ERR_NOMEM, KEY_SCORES ": out of memory");
    for (int32_t i = 0; i < t->n_vocab; i++) {
        float v =
            whole ? (float)gs_gguf_arr_i64(kv, (uint64_t)i) : gs_gguf_arr_f32(kv, (uint64_t)i);
        if (!isfinite(v))
            return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_SCORES "[%d]: not a finite number", i);
        t->scores[i] = v;
    }
    return GS_OK;
}

/* Copies with every U+2581 turned into a space; returns the new length. */
static size_t unescape(gs_str s, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < s.len;) {
        if (s.len - i >= 3 && memcmp(s.data + i, GS_METASPACE, 3) == 0) {
            out[n++] = ' ';
            i += 3;
        } else {
            out[n++] = s.data[i++];
        }
    }
    return n;
}

/* The bytes of token i into out (at most as many as its spelling has). *plain: ordinary text may
 * become this token by its bytes. */
static int piece_of(gs_tokenizer *t, int32_t i, char *out, size_t *n, bool *plain, char *err,
                    size_t errlen) {
    gs_str s = gs_strpool_at(&t->spellings, i);
    bool byte_level = t->kind == GS_TOK_BPE && !t->raw_bpe;
    *plain = false;
    *n = s.len;
    if (t->attr[i] & GS_ATTR_BYTE && !byte_level && t->kind != GS_TOK_WPM) {
        int b = gs_vocab_byte_of(s);
        if (b < 0)
            return gs_fail(err, errlen, GS_ERR_FORMAT,
                           KEY_TOKENS "[%d]: a byte token is spelled <0x00> to <0xFF>", i);
        out[0] = (char)b;
        *n = 1;
        if (t->byte_id[b] < 0)
            t->byte_id[b] = i;
        return GS_OK;
    }
    if (s.len)
        memcpy(out, s.data, s.len);
    if (t->attr[i] & (GS_ATTR_CONTROL | GS_ATTR_MARKED))
        return GS_OK;
    if (byte_level) {
        /* User-defined tokens are spelled as they are, the rest in the byte alphabet. */
        *plain = !(t->attr[i] & GS_ATTR_USER) && gs_bpe_piece(s, out, n);
    } else if (!(t->attr[i] & GS_ATTR_USER)) {
        *n = unescape(s, out);
        *plain = true;
    } else {
        /* A literal space is not the escaped one that merges see. */
        *plain = !memchr(s.data, ' ', s.len);
    }
    return GS_OK;
}

int gs_vocab_pieces(gs_tokenizer *t, char *err, size_t errlen) {
    uint32_t n = (uint32_t)t->n_vocab;
    for (int b = 0; b < 256; b++)
        t->byte_id[b] = -1;
    if (gs_strpool_init(&t->pieces, n, t->spellings.off[n]) ||
        gs_vmap_init(&t->by_piece, &t->pieces, n))
        return gs_fail(err, errlen, GS_ERR_NOMEM, KEY_TOKENS ": out of memory");
    for (int32_t i = 0; i < t->n_vocab; i++) {
        size_t len;
        bool plain;
        int rc = piece_of(t, i, t->pieces.data + t->pieces.off[i], &len, &plain, err, errlen);
        if (rc)
            return rc;
        t->pieces.off[i + 1] = t->pieces.off[i] + (uint32_t)len;
        if (plain && len) {
            gs_vmap_add(&t->by_piece, i);
            if (len > t->max_piece)
                t->max_piece = (uint32_t)len;
        }
    }
    return GS_OK;
}

int gs_vocab_load(gs_tokenizer *t, const gs_gguf *g, char *err, size_t errlen) {
    int rc = load_spellings(t, g, err, errlen);
    if (!rc)
        rc = load_types(t, g, err, errlen);
    if (!rc && t->by_score)
        rc = load_scores(t, g, err, errlen);
    if (rc)
        return rc;
    if (gs_vmap_init(&t->by_spelling, &t->spellings, (uint32_t)t->n_vocab))
        return gs_fail(err, errlen, GS_ERR_NOMEM, KEY_TOKENS ": out of memory");
    for (int32_t i = 0; i < t->n_vocab; i++) {
        /* Some files leave gaps of the id space empty; nothing ever becomes such a token. */
        if (gs_strpool_at(&t->spellings, i).len == 0)
            continue;
        int32_t had = gs_vmap_add(&t->by_spelling, i);
        if (had >= 0)
            return gs_fail(err, errlen, GS_ERR_FORMAT,
                           KEY_TOKENS ": tokens %d and %d have the same spelling", had, i);
    }
    return GS_OK;
}
