/*
 * Special tokens in text: a byte trie over their spellings, the search for the next one, and the
 * guard that keeps a user's text from spelling one.
 */
#include "tok_impl.h"

#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "base/utf8.h"

static uint32_t edge_slot(const gs_trie *tr, uint64_t key) {
    /* Fibonacci hashing; the low bits of the key alone would cluster by byte. */
    uint32_t i = (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> 32) & tr->mask;
    while (tr->edges[i].key != 0 && tr->edges[i].key != key)
        i = (i + 1) & tr->mask;
    return i;
}

static inline uint32_t child_of(const gs_trie *tr, uint32_t node, unsigned char byte) {
    if (node == 0)
        return tr->root[byte];
    const gs_trie_edge *e = &tr->edges[edge_slot(tr, ((uint64_t)node << 8 | byte) + 1)];
    return e->key ? e->child : 0;
}

static void trie_add(gs_trie *tr, gs_str s, int32_t id, bool control) {
    uint32_t node = 0;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char byte = (unsigned char)s.data[i];
        uint32_t next = child_of(tr, node, byte);
        if (next == 0) {
            next = tr->n_nodes++;
            tr->nodes[next] = (gs_trie_node){.id = -1};
            if (node == 0) {
                tr->root[byte] = next;
            } else {
                uint64_t key = ((uint64_t)node << 8 | byte) + 1;
                tr->edges[edge_slot(tr, key)] = (gs_trie_edge){key, next};
            }
        }
        node = next;
        tr->nodes[node].has_control |= control;
    }
    if (tr->nodes[node].id < 0) {
        tr->nodes[node].id = id;
        tr->nodes[node].ends_control = control;
    }
}

/* Spellings that are no valid UTF-8 could match inside a character, and one with the guard
 * character could not be told from guarded text: neither is searched for. */
static bool searchable(const gs_tokenizer *t, int32_t id) {
    gs_str s = gs_strpool_at(&t->spellings, id);
    return t->attr[id] & (GS_ATTR_CONTROL | GS_ATTR_USER | GS_ATTR_MARKED) && s.len > 0 &&
           s.len <= GS_TOK_MAX_SPECIAL && gs_utf8_valid(s.data, s.len) &&
           !memmem(s.data, s.len, GS_GUARD, GS_GUARD_LEN);
}

int gs_special_build(gs_tokenizer *t) {
    gs_trie *tr = &t->special;
    size_t bytes = 0;
    for (int32_t i = 0; i < t->n_vocab; i++)
        if (searchable(t, i))
            bytes += t->spellings.off[i + 1] - t->spellings.off[i];
    size_t cap = 16;
    while (cap < bytes + bytes / 2)
        cap *= 2;
    tr->nodes = gs_array(bytes + 1, sizeof(*tr->nodes));
    tr->edges = gs_calloc(cap, sizeof(*tr->edges));
    if (!tr->nodes || !tr->edges)
        return GS_ERR_NOMEM;
    tr->mask = (uint32_t)(cap - 1);
    tr->nodes[0] = (gs_trie_node){.id = -1};
    tr->n_nodes = 1;
    for (int32_t i = 0; i < t->n_vocab; i++)
        if (searchable(t, i))
            trie_add(tr, gs_strpool_at(&t->spellings, i), i,
                     t->attr[i] & (GS_ATTR_CONTROL | GS_ATTR_MARKED));
    return GS_OK;
}

/* A guard strictly inside start..end, or at the end of a spelling that is one character long. */
static bool guarded(const gs_guards *g, size_t *next, const char *text, size_t start, size_t end) {
    while (*next < g->n && g->at[*next] <= start)
        (*next)++;
    if (*next == g->n)
        return false;
    uint32_t cp;
    bool one = gs_utf8_decode(text + start, end - start, &cp) == end - start;
    return g->at[*next] < end || (one && g->at[*next] == end);
}

bool gs_special_next(const gs_tokenizer *t, const char *text, size_t n, size_t pos, bool control,
                     const gs_guards *guards, gs_special_hit *hit) {
    const gs_trie *tr = &t->special;
    size_t next_guard = 0;
    if (guards) { /* the first guard behind pos: positions ascend */
        size_t lo = 0, hi = guards->n;
        while (lo < hi) {
            size_t mid = lo + (hi - lo) / 2;
            if (guards->at[mid] <= pos)
                lo = mid + 1;
            else
                hi = mid;
        }
        next_guard = lo;
    }
    for (size_t i = pos; i < n; i++) {
        uint32_t node = tr->root[(unsigned char)text[i]];
        size_t best = 0;
        for (size_t j = i + 1; node != 0; j++) {
            const gs_trie_node *at = &tr->nodes[node];
            if (at->id >= 0 &&
                (!at->ends_control ||
                 (control && !(guards && guarded(guards, &next_guard, text, i, j))))) {
                best = j - i;
                *hit = (gs_special_hit){i, best, at->id};
            }
            if (j == n)
                break;
            node = child_of(tr, node, (unsigned char)text[j]);
        }
        if (best)
            return true;
    }
    return false;
}

/* ---- guard ---------------------------------------------------------------------------------- */

/*
 * Does a control token's spelling begin at i? Also true when the text ends inside one: a template
 * may put another part of the user's text right behind it.
 */
static bool spells_control(const gs_trie *tr, const char *text, size_t n, size_t i) {
    uint32_t node = tr->root[(unsigned char)text[i]];
    for (size_t j = i + 1; node != 0 && tr->nodes[node].has_control; j++) {
        if ((tr->nodes[node].id >= 0 && tr->nodes[node].ends_control) || j == n)
            return true;
        node = child_of(tr, node, (unsigned char)text[j]);
    }
    return false;
}

int gs_tok_guard(const gs_tokenizer *t, const char *text, size_t n, gs_buf *out) {
    if (!gs_utf8_valid(text, n))
        return GS_ERR_INVALID;
    size_t was = out->len, done = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = gs_utf8_decode(text + i, n - i, &cp);
        bool literal = len == GS_GUARD_LEN && memcmp(text + i, GS_GUARD, GS_GUARD_LEN) == 0;
        bool spelling = !literal && t->special.nodes && t->special.root[(unsigned char)text[i]] &&
                        spells_control(&t->special, text, n, i);
        i += len;
        if (!literal && !spelling)
            continue;
        if (gs_buf_add(out, text + done, i - done) || gs_buf_add(out, GS_GUARD, GS_GUARD_LEN)) {
            out->len = was;
            return GS_ERR_NOMEM;
        }
        done = i;
    }
    if (n > done && gs_buf_add(out, text + done, n - done)) {
        out->len = was;
        return GS_ERR_NOMEM;
    }
    return GS_OK;
}

static int guard_at(gs_guards *g, size_t pos, size_t *cap) {
    if (g->n == *cap) {
        size_t more = *cap ? *cap * 2 : 16;
        size_t *at = gs_realloc(g->at, more * sizeof(*at));
        if (!at)
            return GS_ERR_NOMEM;
        g->at = at;
        *cap = more;
    }
    g->at[g->n++] = pos;
    return GS_OK;
}

/*
 * Takes the guards out: in a run of them two are the character itself, and an odd one marks its
 * place. That one is the first: gs_tok_guard never puts a mark behind a guard character.
 */
int gs_guards_strip(const char *text, size_t n, gs_buf *clean, gs_guards *guards) {
    size_t cap = 0, from = 0;
    while (from < n) {
        const char *found = memmem(text + from, n - from, GS_GUARD, GS_GUARD_LEN);
        size_t run = found ? (size_t)(found - text) : n, end = run;
        while (n - end >= GS_GUARD_LEN && memcmp(text + end, GS_GUARD, GS_GUARD_LEN) == 0)
            end += GS_GUARD_LEN;
        size_t count = (end - run) / GS_GUARD_LEN;
        if (run > from && gs_buf_add(clean, text + from, run - from))
            return GS_ERR_NOMEM;
        if (count % 2 && guard_at(guards, clean->len, &cap))
            return GS_ERR_NOMEM;
        if (count > 1 && gs_buf_add(clean, text + run, count / 2 * GS_GUARD_LEN))
            return GS_ERR_NOMEM;
        from = end;
    }
    return GS_OK;
}
