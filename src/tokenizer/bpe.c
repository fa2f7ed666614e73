/*
 * BPE tables: GPT-2's byte alphabet (Radford et al. 2019: every byte has a printable character,
 * so that spellings are text) and the merges as pairs of token ids with a rank.
 */
#include "tok_impl.h"

#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "base/utf8.h"

#define KEY_MERGES "tokenizer.ggml.merges"

static bool printable(uint32_t b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

/* The bytes that are not printable take the code points from 256 on, in order. */
static uint32_t alphabet_of(unsigned byte) {
    if (printable(byte))
        return byte;
    uint32_t n = 0;
    for (unsigned b = 0; b < byte; b++)
        n += !printable(b);
    return 256 + n;
}

/* The byte that a code point spells, or -1. */
static int byte_of(uint32_t cp) {
    if (cp < 256)
        return printable(cp) ? (int)cp : -1;
    /* 256.. are 0-32, then 127-160, then 173 */
    if (cp <= 256 + 32)
        return (int)cp - 256;
    if (cp <= 256 + 66)
        return (int)cp - 256 - 33 + 127;
    return cp == 256 + 67 ? 173 : -1;
}

bool gs_bpe_piece(gs_str s, char *out, size_t *n) {
    size_t len = 0;
    for (size_t i = 0; i < s.len;) {
        uint32_t cp;
        unsigned used = gs_utf8_decode(s.data + i, s.len - i, &cp);
        int b = used ? byte_of(cp) : -1;
        if (b < 0) {
            memcpy(out, s.data, s.len); /* whatever it is, it stands for itself */
            *n = s.len;
            return false;
        }
        out[len++] = (char)b;
        i += used;
    }
    *n = len;
    return true;
}

static uint32_t pair_slot(const gs_tokenizer *t, int32_t left, int32_t right) {
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(h >> 32) & t->pairs.mask;
}

const gs_pair *gs_bpe_pair(const gs_tokenizer *t, int32_t left, int32_t right) {
    for (uint32_t i = pair_slot(t, left, right);; i = (i + 1) & t->pairs.mask) {
        const gs_pair *p = &t->pairs.slots[i];
        if (p->left < 0)
            return NULL;
        if (p->left == left && p->right == right)
            return p;
    }
}

static int add_merge(gs_tokenizer *t, gs_str m, uint32_t rank, char *err, size_t errlen) {
    /* The first byte may itself be a space (raw BPE spells nothing so, but the format allows it) */
    const char *space = m.len > 1 ? memchr(m.data + 1, ' ', m.len - 1) : NULL;
    char joined[GS_TOK_MAX_SPELLING + 1];
    if (!space || m.len > sizeof(joined))
        return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_MERGES "[%u]: not two tokens and a space",
                       rank);
    size_t left_len = (size_t)(space - m.data), right_len = m.len - left_len - 1;
    memcpy(joined, m.data, left_len);
    memcpy(joined + left_len, space + 1, right_len);
    int32_t left = gs_vmap_find(&t->by_spelling, m.data, left_len);
    int32_t right = gs_vmap_find(&t->by_spelling, space + 1, right_len);
    int32_t merged = gs_vmap_find(&t->by_spelling, joined, left_len + right_len);
    if (left < 0 || right < 0 || merged < 0)
        return gs_fail(err, errlen, GS_ERR_FORMAT,
                       KEY_MERGES "[%u]: \"%.*s\" names or makes a token that is not in the list",
                       rank, (int)(m.len < 64 ? m.len : 64), m.data);
    /* Ordinary text must not become a control token by merging. */
    if ((t->attr[left] | t->attr[right] | t->attr[merged]) & (GS_ATTR_CONTROL | GS_ATTR_MARKED))
        return GS_OK;
    uint32_t i = pair_slot(t, left, right);
    while (t->pairs.slots[i].left >= 0) {
        if (t->pairs.slots[i].left == left && t->pairs.slots[i].right == right)
            return GS_OK; /* the first of equals has the better rank */
        i = (i + 1) & t->pairs.mask;
    }
    t->pairs.slots[i] = (gs_pair){left, right, rank, merged};
    return GS_OK;
}

int gs_bpe_load(gs_tokenizer *t, const gs_gguf *g, char *err, size_t errlen) {
    const gs_gguf_kv *kv = NULL;
    int rc = gs_gguf_get_arr(g, KEY_MERGES, GS_GGUF_STR, &kv, err, errlen);
    if (rc == GS_ERR_NOT_FOUND)
        return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_MERGES ": missing");
    if (rc)
        return rc;
    if (kv->n > GS_TOK_MAX_MERGES)
        return gs_fail(err, errlen, GS_ERR_FORMAT, KEY_MERGES ": more than %u entries",
                       GS_TOK_MAX_MERGES);
    uint32_t n = (uint32_t)kv->n, cap = 16;
    while (cap < n + n / 2)
        cap *= 2;
    t->pairs.slots = gs_array(cap, sizeof(*t->pairs.slots));
    if (!t->pairs.slots)
        return gs_fail(err, errlen, GS_ERR_NOMEM, KEY_MERGES ": out of memory");
    t->pairs.mask = cap - 1;
    for (uint32_t i = 0; i < cap; i++)
        t->pairs.slots[i].left = -1;
    for (uint32_t i = 0; i < n; i++)
        if ((rc = add_merge(t, gs_gguf_arr_str(g, kv, i), i, err, errlen)))
            return rc;
    if (t->raw_bpe)
        return GS_OK;
    for (unsigned b = 0; b < 256; b++) {
        char ch[4];
        int32_t id = gs_vmap_find(&t->by_spelling, ch, gs_utf8_encode(alphabet_of(b), ch));
        t->byte_id[b] = id >= 0 && !(t->attr[id] & GS_ATTR_CONTROL) ? id : -1;
    }
    return GS_OK;
}
