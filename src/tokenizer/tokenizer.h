/*
 * Tokenizers read from GGUF metadata: byte-level BPE, SentencePiece-style BPE, WordPiece.
 *
 * A gs_tokenizer is immutable after creation: any thread may encode and decode with it at the
 * same time; scratch memory is per call. Text in must be valid UTF-8 (GS_ERR_INVALID otherwise).
 * Cost is O(n log n) at worst in the text's length, whatever the text.
 *
 * User text never becomes a control token unless GS_TOK_PARSE_SPECIAL is given. For rendered chat
 * templates, where the template's own control tokens must be parsed but those inside a user's
 * text must not, see gs_tok_guard().
 */
#ifndef GS_TOKENIZER_TOKENIZER_H
#define GS_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "gguf/gguf.h"

typedef struct gs_tokenizer gs_tokenizer;

typedef enum gs_tok_kind { GS_TOK_BPE, GS_TOK_SPM, GS_TOK_WPM, GS_TOK_NONE } gs_tok_kind;

enum {
    GS_TOK_ADD_SPECIAL = 1,   /* BOS/EOS (CLS/SEP) where the model's metadata asks for them */
    GS_TOK_PARSE_SPECIAL = 2, /* control tokens in the text become their ids */
    GS_TOK_GUARDED = 4        /* the text passed through gs_tok_guard: drop the guard characters */
};

int gs_tokenizer_create(const gs_gguf *g, gs_tokenizer **out, char *err, size_t errlen);
void gs_tokenizer_free(gs_tokenizer *t);

/* Appends the ids of text[0..n) to out. */
int gs_tok_encode(const gs_tokenizer *t, const char *text, size_t n, int flags, gs_ids *out,
                  char *err, size_t errlen);

/*
 * Appends text to out with a guard character (U+FDD0, a Unicode noncharacter) inside everything
 * that spells a control token, and doubles guard characters already there. Template functions
 * may then trim, split and join it; encoding with PARSE_SPECIAL | GUARDED gives back exactly the
 * user's text as ordinary tokens. Text without such spellings is copied unchanged. A text that
 * ends inside such a spelling is guarded too: a template may put two parts of it together.
 * GS_ERR_INVALID when text is no valid UTF-8.
 */
int gs_tok_guard(const gs_tokenizer *t, const char *text, size_t n, gs_buf *out);

/* The bytes that one token stands for in running text. Control tokens give their spelling only
 * with special = true, else nothing. Unknown ids give nothing. */
int gs_tok_piece(const gs_tokenizer *t, int32_t id, bool special, gs_buf *out);

/* Whole-sequence decode, as the reverse of encode without special tokens (SPM's inserted leading
 * space removed). Bytes that are no valid UTF-8 become U+FFFD. */
int gs_tok_decode(const gs_tokenizer *t, const int32_t *ids, size_t n, bool special, gs_buf *out);

/*
 * Streaming detokeniser: caller storage, one per sequence. Each push appends only whole valid
 * UTF-8 characters to out and holds back an unfinished one; flush gives U+FFFD for what never
 * completed. The concatenation equals gs_tok_decode of the whole (with special = false).
 */
typedef struct gs_detok {
    const gs_tokenizer *tok;
    char pending[4];
    unsigned n_pending;
    bool at_start;
    bool special;
} gs_detok;

void gs_detok_init(gs_detok *d, const gs_tokenizer *t, bool special);
/* Continues after text that is not to be shown (a prompt): no leading space is removed. */
void gs_detok_init_mid(gs_detok *d, const gs_tokenizer *t, bool special);
int gs_detok_push(gs_detok *d, int32_t id, gs_buf *out);
int gs_detok_flush(gs_detok *d, gs_buf *out);

gs_tok_kind gs_tok_kind_of(const gs_tokenizer *t);
int32_t gs_tok_n_vocab(const gs_tokenizer *t);
int32_t gs_tok_bos(const gs_tokenizer *t); /* -1: none; so for the others */
int32_t gs_tok_eos(const gs_tokenizer *t);
bool gs_tok_add_bos(const gs_tokenizer *t);
bool gs_tok_is_control(const gs_tokenizer *t, int32_t id);
/* Ends a generation: EOS, EOT and the well-known end-of-turn spellings. The list, ascending. */
const int32_t *gs_tok_eog(const gs_tokenizer *t, size_t *n);
bool gs_tok_is_eog(const gs_tokenizer *t, int32_t id);
/* Id of exactly this spelling, or -1. */
int32_t gs_tok_find(const gs_tokenizer *t, const char *spelling, size_t n);
/* Stored spelling of a token (not terminated), e.g. "Ġthe", "<|im_end|>". */
gs_str gs_tok_spelling(const gs_tokenizer *t, int32_t id);

#endif
