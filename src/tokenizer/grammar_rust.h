/*
 * C interface of the Rust library (rust/src/lib.rs): constrained output by llguidance. Strings as
 * in chat_rust.h; codes are those of gs_err. No call unwinds.
 */
#ifndef GS_TOKENIZER_GRAMMAR_RUST_H
#define GS_TOKENIZER_GRAMMAR_RUST_H

#include <stddef.h>
#include <stdint.h>

#include "tokenizer/chat_rust.h"

typedef struct gs_rust_vocab gs_rust_vocab;     /* immutable: any number of threads */
typedef struct gs_rust_grammar gs_rust_grammar; /* any number of threads */
typedef struct gs_rust_state gs_rust_state;     /* one thread at a time */

/* lens[n_vocab] and the bytes of all tokens one after the other; a special token begins with
 * 0xFF, one that is never drawn has none. */
int gs_rust_vocab_new(const uint32_t *lens, size_t n_vocab, const uint8_t *bytes,
                      const int32_t *eos, size_t n_eos, gs_rust_vocab **out, char *err,
                      size_t errlen);
void gs_rust_vocab_free(gs_rust_vocab *v);
/* kind: 0 any JSON object, 1 JSON schema, 2 regular expression, 3 grammar, 4 Lark of our own. */
int gs_rust_grammar_new(const gs_rust_vocab *v, int kind, gs_rust_str text, size_t memory_bytes,
                        uint32_t time_limit_ms, gs_rust_grammar **out, char *err, size_t errlen);
void gs_rust_grammar_free(gs_rust_grammar *g);
size_t gs_rust_grammar_bytes(const gs_rust_grammar *g); /* its states' share included */
/* NULL: it could not be copied. */
gs_rust_state *gs_rust_grammar_start(const gs_rust_grammar *g);
void gs_rust_state_free(gs_rust_state *s);
int gs_rust_state_advance(gs_rust_state *s, int32_t token, char *err, size_t errlen);
int gs_rust_state_mask(gs_rust_state *s, uint32_t *mask, size_t n_words, char *err, size_t errlen);

#endif
