/*
 * Private to src/tokenizer: what a gs_tokenizer holds and the scratch of one encode call.
 *
 *   text --special.c--> segments between special tokens
 *        --pretok.c---> words          (byte-level BPE)     --merge.c--> ids
 *        --spm.c------> words          (SPM, raw BPE)       --merge.c--> ids
 *        --wpm.c------> words, normalised                   -----------> ids
 *
 * Pieces: at load every token's spelling is turned into the bytes it stands for ("Ġthe" and
 * "▁the" both become " the"), so that encoding works on the text's own bytes.
 */
#ifndef GS_TOKENIZER_TOK_IMPL_H
#define GS_TOKENIZER_TOK_IMPL_H

#include <pcre2.h>

#include "base/buf.h"
#include "tokenizer/tokenizer.h"

#define GS_TOK_MAX_VOCAB    (1u << 22)
#define GS_TOK_MAX_SPELLING 65535u     /* bytes of one token */
#define GS_TOK_MAX_SPECIAL  256u       /* longer spellings are never parsed in text */
#define GS_TOK_MAX_TEXT     (1u << 30) /* bytes of one encode call; symbols use 32-bit indices */
#define GS_TOK_MAX_MERGES   (1u << 24)
#define GS_PRETOK_MAX       6 /* passes of one pre-tokeniser */

#define GS_GUARD            "\xef\xb7\x90" /* U+FDD0 */
#define GS_GUARD_LEN        3u
#define GS_METASPACE        "\xe2\x96\x81" /* U+2581, how SentencePiece spells a space */

enum {
    GS_ATTR_CONTROL = 1, /* control or unknown: parsed only with PARSE_SPECIAL, else not shown */
    GS_ATTR_USER = 2,    /* user-defined: parsed in any text */
    GS_ATTR_BYTE = 4,    /* "<0xE2>" */
    GS_ATTR_MARKED = 8,  /* parsed like a control token, shown like text */
    GS_ATTR_RSTRIP = 16  /* swallows white space behind it (Phi-3) */
};

/* Token type numbers of tokenizer.ggml.token_type. */
enum { GS_TTYPE_UNKNOWN = 2, GS_TTYPE_CONTROL = 3, GS_TTYPE_USER = 4, GS_TTYPE_BYTE = 6 };

typedef struct gs_strpool { /* n strings in one block */
    char *data;
    uint32_t *off; /* [n + 1] */
    uint32_t n;
} gs_strpool;

typedef struct gs_vslot {
    uint32_t hash;
    int32_t id; /* -1: empty */
} gs_vslot;

typedef struct gs_vmap { /* string -> id, open addressing; strings live in the pool */
    gs_vslot *slots;
    uint32_t mask;
    const gs_strpool *pool;
} gs_vmap;

typedef struct gs_pair { /* a BPE merge */
    int32_t left;        /* -1: empty slot */
    int32_t right;
    uint32_t rank;
    int32_t merged;
} gs_pair;

typedef struct gs_pair_table {
    gs_pair *slots;
    uint32_t mask;
} gs_pair_table;

typedef struct gs_trie_node {
    int32_t id;        /* token that ends here, or -1 */
    bool ends_control; /* that token needs PARSE_SPECIAL */
    bool has_control;  /* some control token passes through or ends here */
} gs_trie_node;

typedef struct gs_trie_edge {
    uint64_t key; /* (parent << 8 | byte) + 1; 0: empty */
    uint32_t child;
} gs_trie_edge;

typedef struct gs_trie { /* spellings that text is searched for */
    gs_trie_node *nodes; /* nodes[0] is the root */
    uint32_t n_nodes;
    gs_trie_edge *edges;
    uint32_t mask;
    uint32_t root[256]; /* child of the root by first byte, 0: none */
} gs_trie;

struct gs_tokenizer {
    gs_tok_kind kind;
    bool raw_bpe;       /* BPE by merges, but over characters with byte tokens (gemma4) */
    bool by_score;      /* merges by score of the result (SPM), else by rank of the pair */
    bool ignore_merges; /* a word that is a token is taken whole */
    bool add_bos, add_eos, add_space_prefix;
    bool lowercase, strip_accents; /* WPM */

    int32_t n_vocab;
    gs_strpool spellings; /* as stored in the file */
    gs_strpool pieces;    /* the bytes each stands for */
    uint8_t *attr;        /* [n_vocab] GS_ATTR_ bits */
    float *scores;        /* [n_vocab], SPM only */
    gs_vmap by_spelling;
    gs_vmap by_piece;   /* only tokens that ordinary text may become */
    uint32_t max_piece; /* longest in by_piece, bytes */

    int32_t byte_id[256];  /* token of a single byte, or -1 */
    int32_t ascii_id[128]; /* char symbols: token of a one-byte character, or -1 */
    bool glue[256];        /* bytes that some piece has in front of a space (see spm.c) */
    gs_pair_table pairs;
    gs_trie special;

    pcre2_code *pretok[GS_PRETOK_MAX];
    unsigned n_pretok;
    bool pretok_jit;
    pcre2_general_context *pcre_memory;
    pcre2_match_context *pcre_limits;

    int32_t bos, eos, unk, cls, sep;
    int32_t *eog;
    size_t n_eog;
};

/* ---- one encode call ---------------------------------------------------------------------- */

typedef struct gs_sym { /* a symbol of a word while it is merged */
    int32_t id;         /* token, or -1: no token spells this */
    int32_t prev, next; /* neighbours (large words), -1 at the ends */
    uint32_t start, len;
    uint32_t prio;  /* of merging with the next symbol; smallest first, UINT32_MAX: no merge */
    int32_t merged; /* token that this merge gives */
} gs_sym;

typedef struct gs_word { /* a word already encoded in this call */
    uint64_t hash;
    const char *text;
    uint32_t len;
    uint32_t epoch;
    uint32_t n_ids;
    size_t ids_at; /* its ids in out */
} gs_word;

typedef struct gs_tok_run {
    const gs_tokenizer *t;
    gs_ids *out;
    char *err;
    size_t errlen;
    gs_sym *syms;
    size_t syms_cap;
    uint64_t *heap; /* prio << 32 | symbol */
    size_t heap_len, heap_cap;
    gs_word *words; /* direct-mapped cache, NULL for short texts */
    uint32_t epoch; /* entries of other epochs point into text that is gone */
    gs_buf buf;     /* the segment after normalisation */
    gs_buf word;    /* WPM: one word */
    pcre2_match_data *match;
} gs_tok_run;

/* vocab.c */
int gs_strpool_init(gs_strpool *p, uint32_t n, size_t bytes);
void gs_strpool_deinit(gs_strpool *p);
gs_str gs_strpool_at(const gs_strpool *p, int32_t i);
int gs_vmap_init(gs_vmap *m, const gs_strpool *pool, uint32_t n);
/* The id that the string has now; -1 after it was added under `id`. */
int32_t gs_vmap_add(gs_vmap *m, int32_t id);
int32_t gs_vmap_find(const gs_vmap *m, const char *s, size_t n);
uint64_t gs_vocab_hash(const char *s, size_t n);
int gs_vocab_load(gs_tokenizer *t, const gs_gguf *g, char *err, size_t errlen);
/* Fills pieces, by_piece and byte_id; token types must be final. */
int gs_vocab_pieces(gs_tokenizer *t, char *err, size_t errlen);
/* Token spelled "<0x4A>": its byte; -1 for any other spelling. */
int gs_vocab_byte_of(gs_str spelling);

/* special.c */
int gs_special_build(gs_tokenizer *t);
typedef struct gs_special_hit {
    size_t start, len;
    int32_t id;
} gs_special_hit;
typedef struct gs_guards { /* ascending positions in the text with the guards taken out */
    size_t *at;
    size_t n;
} gs_guards;
/* First eligible special token at or after pos (leftmost, then longest). */
bool gs_special_next(const gs_tokenizer *t, const char *text, size_t n, size_t pos, bool control,
                     const gs_guards *guards, gs_special_hit *hit);
int gs_guards_strip(const char *text, size_t n, gs_buf *clean, gs_guards *guards);

/* pretok.c */
int gs_pretok_init(gs_tokenizer *t, gs_str name, char *err, size_t errlen);
void gs_pretok_deinit(gs_tokenizer *t);
int gs_pretok_split(gs_tok_run *r, const char *text, size_t n, unsigned pass);

/* bpe.c */
int gs_bpe_load(gs_tokenizer *t, const gs_gguf *g, char *err, size_t errlen);
bool gs_bpe_piece(gs_str spelling, char *out, size_t *n); /* false: no byte-level spelling */
const gs_pair *gs_bpe_pair(const gs_tokenizer *t, int32_t left, int32_t right);

/* merge.c: appends the ids of one word, through the cache where there is one */
#define GS_CACHE_WORDS 2048u
int gs_merge_word(gs_tok_run *r, const char *w, size_t n);

/* spm.c: SPM and raw BPE */
void gs_spm_prepare(gs_tokenizer *t);
int gs_spm_segment(gs_tok_run *r, const char *text, size_t n, bool prefix);

/* wpm.c */
int gs_wpm_segment(gs_tok_run *r, const char *text, size_t n);

#endif
