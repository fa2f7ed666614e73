/*
 * Merging: the symbols of one word are joined pairwise, best priority first and leftmost among
 * equals, until no pair can be joined (Sennrich et al. 2016).
 *
 * Priority is the merge's rank (BPE) or the score of the token it makes (SentencePiece). Short
 * words, nearly all, search the best pair in an array; long ones use a linked list and a binary
 * heap: O(n log n). Heap entries go stale when a symbol changes; an entry counts only if its
 * priority is still the one of its symbol.
 */
#include "tok_impl.h"

#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "base/utf8.h"

#define NO_MERGE    UINT32_MAX
#define SHORT_WORD  32u /* symbols */
#define CACHED_WORD 64u /* bytes */

/* Order of floats as unsigned integers, reversed: the highest score is the smallest priority. */
static uint32_t prio_of_score(float score) {
    uint32_t u;
    memcpy(&u, &score, sizeof(u));
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return ~u;
}

/* Sets what merging a with the symbol b behind it would give. w: the word's bytes. */
static void look(const gs_tokenizer *t, const char *w, gs_sym *a, const gs_sym *b) {
    a->prio = NO_MERGE;
    if (t->by_score) {
        if (a->len + b->len > t->max_piece)
            return;
        a->merged = gs_vmap_find(&t->by_piece, w + a->start, a->len + b->len);
        if (a->merged >= 0)
            a->prio = prio_of_score(t->scores[a->merged]);
        return;
    }
    if (a->id < 0 || b->id < 0)
        return;
    const gs_pair *p = gs_bpe_pair(t, a->id, b->id);
    if (p) {
        a->prio = p->rank;
        a->merged = p->merged;
    }
}

/* Cuts the word into its first symbols: bytes, or characters for SPM and raw BPE. */
static size_t first_symbols(const gs_tokenizer *t, const char *w, size_t n, gs_sym *syms) {
    size_t count = 0;
    bool bytes = t->kind == GS_TOK_BPE && !t->raw_bpe;
    for (size_t i = 0; i < n; count++) {
        unsigned char first = (unsigned char)w[i];
        unsigned len = 1;
        int32_t id;
        if (bytes) {
            id = t->byte_id[first];
        } else if (first < 0x80) {
            id = t->ascii_id[first];
        } else {
            len = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4; /* the text is valid UTF-8 */
            id = gs_vmap_find(&t->by_piece, w + i, len);
        }
        syms[count] = (gs_sym){.id = id, .start = (uint32_t)i, .len = len, .prio = NO_MERGE};
        i += len;
    }
    return count;
}

static size_t merge_short(const gs_tokenizer *t, const char *w, gs_sym *syms, size_t n) {
    for (size_t i = 0; i + 1 < n; i++)
        look(t, w, &syms[i], &syms[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (syms[i].prio < syms[best].prio)
                best = i;
        gs_sym *a = &syms[best];
        if (a->prio == NO_MERGE)
            break;
        a->id = a->merged;
        a->len += a[1].len;
        a->prio = NO_MERGE;
        memmove(a + 1, a + 2, (n - best - 2) * sizeof(*a));
        n--;
        if (best + 1 < n)
            look(t, w, a, a + 1);
        if (best > 0)
            look(t, w, a - 1, a);
    }
    return n;
}

/* ---- long words ------------------------------------------------------------------------------ */

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t v = heap[i];
    for (size_t c = 2 * i + 1; c < n; c = 2 * i + 1) {
        if (c + 1 < n && heap[c + 1] < heap[c])
            c++;
        if (heap[c] >= v)
            break;
        heap[i] = heap[c];
        i = c;
    }
    heap[i] = v;
}

static void heap_push(gs_tok_run *r, uint32_t prio, size_t sym) {
    size_t i = r->heap_len++;
    uint64_t v = (uint64_t)prio << 32 | (uint64_t)sym;
    while (i > 0 && r->heap[(i - 1) / 2] > v) {
        r->heap[i] = r->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    r->heap[i] = v;
}

static uint64_t heap_pop(gs_tok_run *r) {
    uint64_t top = r->heap[0];
    r->heap[0] = r->heap[--r->heap_len];
    if (r->heap_len)
        sift_down(r->heap, r->heap_len, 0);
    return top;
}

static int merge_long(gs_tok_run *r, const char *w, size_t *count) {
    const gs_tokenizer *t = r->t;
    gs_sym *syms = r->syms;
    size_t n = *count;
    /* Each merge takes one entry out and puts at most two in: 2n never overflows. */
    if (r->heap_cap < 2 * n) {
        gs_free(r->heap);
        r->heap_cap = 0;
        r->heap = gs_array(2 * n, sizeof(*r->heap));
        if (!r->heap)
            return GS_ERR_NOMEM;
        r->heap_cap = 2 * n;
    }
    r->heap_len = 0;
    for (size_t i = 0; i < n; i++) {
        syms[i].prev = (int32_t)i - 1;
        syms[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
        if (i + 1 < n)
            look(t, w, &syms[i], &syms[i + 1]);
        if (syms[i].prio != NO_MERGE)
            r->heap[r->heap_len++] = (uint64_t)syms[i].prio << 32 | (uint64_t)i;
    }
    for (size_t i = r->heap_len / 2; i-- > 0;)
        sift_down(r->heap, r->heap_len, i);
    while (r->heap_len) {
        uint64_t top = heap_pop(r);
        gs_sym *a = &syms[(uint32_t)top];
        if (a->prio != (uint32_t)(top >> 32))
            continue; /* stale */
        gs_sym *b = &syms[a->next];
        a->id = a->merged;
        a->len += b->len;
        a->next = b->next;
        a->prio = NO_MERGE;
        b->len = 0;
        b->prio = NO_MERGE;
        if (a->next >= 0) {
            syms[a->next].prev = (int32_t)(uint32_t)top;
            look(t, w, a, &syms[a->next]);
            if (a->prio != NO_MERGE)
                heap_push(r, a->prio, (uint32_t)top);
        }
        if (a->prev >= 0) {
            gs_sym *p = &syms[a->prev];
            look(t, w, p, a);
            if (p->prio != NO_MERGE)
                heap_push(r, p->prio, (uint32_t)a->prev);
        }
    }
    size_t kept = 0;
    for (int32_t i = 0; i >= 0; i = syms[i].next)
        syms[kept++] = syms[i]; /* kept <= i: never ahead of the reader */
    *count = kept;
    return GS_OK;
}

/* ---- words ------------------------------------------------------------------------------------
 */

/* A symbol that no token spells becomes its bytes' tokens, or the unknown token. Byte-level
 * vocabularies without some byte drop it, as their own tokenizers do. */
static int push_unknown(gs_tok_run *r, const char *w, const gs_sym *s) {
    const gs_tokenizer *t = r->t;
    for (uint32_t i = 0; i < s->len; i++) {
        int32_t id = t->byte_id[(unsigned char)w[s->start + i]];
        if (id < 0)
            return t->unk >= 0 ? gs_ids_push(r->out, t->unk) : GS_OK;
        if (gs_ids_push(r->out, id))
            return GS_ERR_NOMEM;
    }
    return GS_OK;
}

static int merge(gs_tok_run *r, const char *w, size_t n) {
    if (r->syms_cap < n) {
        size_t cap = n < 256 ? 256 : n;
        gs_free(r->syms);
        r->syms_cap = 0;
        r->syms = gs_array(cap, sizeof(*r->syms));
        if (!r->syms)
            return GS_ERR_NOMEM;
        r->syms_cap = cap;
    }
    size_t count = first_symbols(r->t, w, n, r->syms);
    if (count <= SHORT_WORD)
        count = merge_short(r->t, w, r->syms, count);
    else if (merge_long(r, w, &count))
        return GS_ERR_NOMEM;
    if (gs_ids_reserve(r->out, count))
        return GS_ERR_NOMEM;
    for (size_t i = 0; i < count; i++) {
        const gs_sym *s = &r->syms[i];
        if (s->id >= 0 ? gs_ids_push(r->out, s->id) : push_unknown(r, w, s))
            return GS_ERR_NOMEM;
    }
    return GS_OK;
}

int gs_merge_word(gs_tok_run *r, const char *w, size_t n) {
    const gs_tokenizer *t = r->t;
    if (t->ignore_merges && n <= t->max_piece) {
        int32_t id = gs_vmap_find(&t->by_piece, w, n);
        if (id >= 0)
            return gs_ids_push(r->out, id);
    }
    if (!r->words || n > CACHED_WORD || n < 2)
        return merge(r, w, n);
    uint64_t hash = gs_vocab_hash(w, n);
    gs_word *e = &r->words[hash & (GS_CACHE_WORDS - 1)];
    if (e->epoch == r->epoch && e->hash == hash && e->len == n && memcmp(e->text, w, n) == 0) {
        if (gs_ids_reserve(r->out, e->n_ids))
            return GS_ERR_NOMEM;
        memcpy(r->out->data + r->out->len, r->out->data + e->ids_at,
               e->n_ids * sizeof(*r->out->data));
        r->out->len += e->n_ids;
        return GS_OK;
    }
    size_t ids_at = r->out->len;
    int rc = merge(r, w, n);
    if (!rc)
        *e = (gs_word){hash, w, (uint32_t)n, r->epoch, (uint32_t)(r->out->len - ids_at), ids_at};
    return rc;
}
