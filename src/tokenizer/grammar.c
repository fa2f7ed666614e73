#include "tokenizer/grammar.h"

#include "base/err.h"

#if GS_HAVE_RUST

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/sys.h"
#include "tokenizer/grammar_rust.h"
#include "tokenizer/tok_impl.h"

/* One compilation. Large published schemas (FHIR) need a tenth of this memory. */
#define COMPILE_BYTES   ((size_t)64 << 20)
#define COMPILE_TIME_MS 3000
#define SPECIAL_MARK    '\xff'

struct gs_grammar {
    atomic_int refs;
    gs_rust_grammar *rust;
    int32_t n_vocab;
    /* in the cache: guarded by its lock */
    gs_grammar *next; /* more recently used first */
    gs_grammar_kind kind;
    char *text;
    size_t n;
};

struct gs_grammar_state {
    gs_grammar *grammar;
    gs_rust_state *rust;
};

struct gs_grammars {
    gs_rust_vocab *vocab;
    int32_t n_vocab;
    size_t cache_bytes;
    pthread_mutex_t lock;
    gs_grammar *first;
    uint64_t hits, misses;
};

/* ---- The vocabulary ----------------------------------------------------------------------- */

/* What token id stands for in running text; control tokens by a mark and their spelling. */
static int token_bytes(const gs_tokenizer *t, int32_t id, gs_buf *out) {
    if (!gs_tok_is_control(t, id))
        return gs_tok_piece(t, id, true, out);
    gs_str s = gs_tok_spelling(t, id);
    int rc = s.len > 0 ? gs_buf_char(out, SPECIAL_MARK) : 0;
    return rc == 0 ? gs_buf_add(out, s.data, s.len) : rc;
}

static int make_vocab(gs_grammars *gs, const gs_tokenizer *t, char *err, size_t errlen) {
    gs_buf bytes = {0};
    uint32_t *lens = gs_array((size_t)gs->n_vocab, sizeof(*lens));
    size_t n_eog;
    const int32_t *eog = gs_tok_eog(t, &n_eog);
    int rc = lens ? 0 : GS_ERR_NOMEM;
    for (int32_t id = 0; rc == 0 && id < gs->n_vocab; id++) {
        size_t before = bytes.len;
        rc = token_bytes(t, id, &bytes);
        lens[id] = (uint32_t)(bytes.len - before);
    }
    if (rc == 0)
        rc = gs_rust_vocab_new(lens, (size_t)gs->n_vocab, (const uint8_t *)bytes.data, eog, n_eog,
                               &gs->vocab, err, errlen);
    else
        (void)gs_fail(err, errlen, rc, "out of memory");
    gs_free(lens);
    gs_buf_deinit(&bytes);
    return rc;
}

int gs_grammars_create(const gs_tokenizer *t, size_t cache_bytes, gs_grammars **out, char *err,
                       size_t errlen) {
    *out = NULL;
    size_t n_eog;
    (void)gs_tok_eog(t, &n_eog);
    if (n_eog == 0)
        return 0;
    gs_grammars *gs = gs_calloc(1, sizeof(*gs));
    if (!gs)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    gs->n_vocab = gs_tok_n_vocab(t);
    gs->cache_bytes = cache_bytes;
    int rc = make_vocab(gs, t, err, errlen);
    if (rc != 0) {
        gs_free(gs);
        return rc;
    }
    pthread_mutex_init(&gs->lock, NULL);
    *out = gs;
    return 0;
}

void gs_grammars_free(gs_grammars *gs) {
    if (!gs)
        return;
    while (gs->first) {
        gs_grammar *g = gs->first;
        gs->first = g->next;
        gs_grammar_unref(g);
    }
    gs_rust_vocab_free(gs->vocab);
    pthread_mutex_destroy(&gs->lock);
    gs_free(gs);
}

/* ---- The cache ---------------------------------------------------------------------------- */

gs_grammar *gs_grammar_ref(gs_grammar *g) {
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void gs_grammar_unref(gs_grammar *g) {
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    gs_rust_grammar_free(g->rust);
    gs_free(g->text);
    gs_free(g);
}

int32_t gs_grammar_n_vocab(const gs_grammar *g) {
    return g->n_vocab;
}

static size_t size_of(const gs_grammar *g) {
    return sizeof(*g) + g->n + gs_rust_grammar_bytes(g->rust);
}

/* Keeps the most recently used grammars that fit; they grow while they are used, so this is asked
 * for at each call. */
static void trim(gs_grammars *gs) {
    size_t sum = 0;
    gs_grammar **at = &gs->first;
    while (*at) {
        gs_grammar *g = *at;
        size_t size = size_of(g);
        if (sum + size > gs->cache_bytes) {
            *at = g->next;
            gs_grammar_unref(g);
            continue;
        }
        sum += size;
        at = &g->next;
    }
}

static gs_grammar *find(gs_grammars *gs, gs_grammar_kind kind, const char *text, size_t n) {
    for (gs_grammar **at = &gs->first; *at; at = &(*at)->next) {
        gs_grammar *g = *at;
        if (g->kind != kind || g->n != n || (n > 0 && memcmp(g->text, text, n) != 0))
            continue;
        *at = g->next;
        g->next = gs->first;
        gs->first = g;
        return gs_grammar_ref(g);
    }
    return NULL;
}

static int compile(const gs_grammars *gs, gs_grammar_kind kind, const char *text, size_t n,
                   gs_grammar **out, char *err, size_t errlen) {
    gs_grammar *g = gs_calloc(1, sizeof(*g));
    if (!g)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    atomic_init(&g->refs, 1);
    *g = (gs_grammar){.refs = 1, .n_vocab = gs->n_vocab, .kind = kind, .n = n};
    gs_rust_str s = {text ? text : "", n};
    g->text = gs_strndup(s.data, n);
    int rc = g->text ? 0 : gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    if (rc == 0)
        rc = gs_rust_grammar_new(gs->vocab, (int)kind, s, COMPILE_BYTES, COMPILE_TIME_MS, &g->rust,
                                 err, errlen);
    if (rc != 0)
        gs_grammar_unref(g);
    else
        *out = g;
    return rc;
}

int gs_grammars_get(gs_grammars *gs, gs_grammar_kind kind, const char *text, size_t n,
                    gs_grammar **out, char *err, size_t errlen) {
    *out = NULL;
    pthread_mutex_lock(&gs->lock);
    gs_grammar *g = find(gs, kind, text, n);
    gs->hits += g != NULL;
    gs->misses += g == NULL;
    trim(gs);
    pthread_mutex_unlock(&gs->lock);
    if (g) {
        *out = g;
        return 0;
    }
    int rc = compile(gs, kind, text, n, &g, err, errlen);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&gs->lock);
    g->next = gs->first; /* compiled twice at the same time: the older one is found no more */
    gs->first = gs_grammar_ref(g);
    trim(gs);
    pthread_mutex_unlock(&gs->lock);
    *out = g;
    return 0;
}

void gs_grammars_get_stats(gs_grammars *gs, gs_grammars_stats *out) {
    *out = (gs_grammars_stats){0};
    pthread_mutex_lock(&gs->lock);
    out->hits = gs->hits;
    out->misses = gs->misses;
    for (const gs_grammar *g = gs->first; g; g = g->next) {
        out->n_cached++;
        out->bytes += size_of(g);
    }
    pthread_mutex_unlock(&gs->lock);
}

/* ---- States ------------------------------------------------------------------------------- */

int gs_grammar_start(gs_grammar *g, gs_grammar_state **out) {
    gs_grammar_state *s = gs_calloc(1, sizeof(*s));
    *out = s;
    if (!s)
        return GS_ERR_NOMEM;
    s->rust = gs_rust_grammar_start(g->rust);
    if (!s->rust) {
        gs_free(s);
        *out = NULL;
        return GS_ERR_NOMEM;
    }
    s->grammar = gs_grammar_ref(g);
    return 0;
}

void gs_grammar_state_free(gs_grammar_state *s) {
    if (!s)
        return;
    gs_rust_state_free(s->rust);
    gs_grammar_unref(s->grammar);
    gs_free(s);
}

int gs_grammar_advance(gs_grammar_state *s, int32_t token) {
    return gs_rust_state_advance(s->rust, token, NULL, 0);
}

int gs_grammar_mask(gs_grammar_state *s, uint32_t *mask, size_t n_words) {
    return gs_rust_state_mask(s->rust, mask, n_words, NULL, 0);
}

#else /* no Rust: nothing can be created, so nothing else is ever called */

struct gs_grammars {
    int unused;
};

int gs_grammars_create(const gs_tokenizer *t, size_t cache_bytes, gs_grammars **out, char *err,
                       size_t errlen) {
    static gs_grammars none;
    (void)t;
    (void)cache_bytes;
    (void)err;
    (void)errlen;
    *out = &none;
    return 0;
}

void gs_grammars_free(gs_grammars *gs) {
    (void)gs;
}

int gs_grammars_get(gs_grammars *gs, gs_grammar_kind kind, const char *text, size_t n,
                    gs_grammar **out, char *err, size_t errlen) {
    (void)gs;
    (void)kind;
    (void)text;
    (void)n;
    *out = NULL;
    return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "constrained output needs a build with Rust");
}

void gs_grammars_get_stats(gs_grammars *gs, gs_grammars_stats *out) {
    (void)gs;
    *out = (gs_grammars_stats){0};
}

gs_grammar *gs_grammar_ref(gs_grammar *g) {
    return g;
}

void gs_grammar_unref(gs_grammar *g) {
    (void)g;
}

int32_t gs_grammar_n_vocab(const gs_grammar *g) {
    (void)g;
    return 0;
}

int gs_grammar_start(gs_grammar *g, gs_grammar_state **out) {
    (void)g;
    *out = NULL;
    return GS_ERR_UNSUPPORTED;
}

void gs_grammar_state_free(gs_grammar_state *s) {
    (void)s;
}

int gs_grammar_advance(gs_grammar_state *s, int32_t token) {
    (void)s;
    (void)token;
    return GS_ERR_UNSUPPORTED;
}

int gs_grammar_mask(gs_grammar_state *s, uint32_t *mask, size_t n_words) {
    (void)s;
    (void)mask;
    (void)n_words;
    return GS_ERR_UNSUPPORTED;
}

#endif
