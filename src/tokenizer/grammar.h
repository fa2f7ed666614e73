/*
 * Constrained output: grammars compiled for a vocabulary, and their state along one answer.
 *
 *     gs_grammars (per tokenizer) ── gs_grammars_get(text) ─► gs_grammar ── start ─►
 * gs_grammar_state │                                       shared,               one per answer: └
 * cache, bounded in bytes               counted               advance, mask
 *
 * JSON schemas, regular expressions and grammars are a client's text. Compiling one has a budget
 * of memory and time, each step along it one of work: what goes beyond is GS_ERR_INVALID with a
 * sentence, and nobody else notices. A build without Rust refuses everything with
 * GS_ERR_UNSUPPORTED.
 */
#ifndef GS_TOKENIZER_GRAMMAR_H
#define GS_TOKENIZER_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tokenizer/tokenizer.h"

typedef struct gs_grammars gs_grammars;
typedef struct gs_grammar gs_grammar;
typedef struct gs_grammar_state gs_grammar_state;

typedef enum gs_grammar_kind {
    GS_GRAMMAR_JSON_OBJECT, /* any JSON object; no text */
    GS_GRAMMAR_JSON_SCHEMA,
    GS_GRAMMAR_REGEX,   /* of the whole answer; syntax of Rust's regex crate, without look-around */
    GS_GRAMMAR_LARK,    /* Lark as llguidance has it, or GBNF when there is a rule "root ::=" */
    GS_GRAMMAR_LARK_OWN /* Lark that this program wrote: it may be long, schemas are part of it */
} gs_grammar_kind;

typedef struct gs_grammars_stats {
    size_t n_cached, bytes; /* held by the cache */
    uint64_t hits, misses;
} gs_grammars_stats;

/* t is borrowed. cache_bytes: what compiled grammars may hold while nobody uses them. *out is NULL
 * where the vocabulary has no token that ends a text: nothing can be constrained to an end. */
int gs_grammars_create(const gs_tokenizer *t, size_t cache_bytes, gs_grammars **out, char *err,
                       size_t errlen);
void gs_grammars_free(gs_grammars *gs);
/*
 * Compiles a grammar, or finds it in the cache. Any thread; up to a second, so not the event
 * loop's. GS_ERR_INVALID: err says what is wrong with the text; GS_ERR_UNSUPPORTED: no Rust;
 * GS_ERR_UNAVAILABLE: too many grammars ran away since the start.
 */
int gs_grammars_get(gs_grammars *gs, gs_grammar_kind kind, const char *text, size_t n,
                    gs_grammar **out, char *err, size_t errlen);
void gs_grammars_get_stats(gs_grammars *gs, gs_grammars_stats *out);

/* Counted: any thread. */
gs_grammar *gs_grammar_ref(gs_grammar *g);
void gs_grammar_unref(gs_grammar *g);
int32_t gs_grammar_n_vocab(const gs_grammar *g);

/* The state before the first token: GS_ERR_NOMEM. One thread at a time. */
int gs_grammar_start(gs_grammar *g, gs_grammar_state **out);
void gs_grammar_state_free(gs_grammar_state *s);
/* GS_ERR_INVALID: the grammar does not allow this token, or the step ran out of its budget; the
 * state is of no use then. */
int gs_grammar_advance(gs_grammar_state *s, int32_t token);
/* mask[(n_vocab + 31) / 32]: bit i % 32 of word i / 32 says whether token i may come next. Once the
 * text is complete only the tokens that end it may. GS_ERR_INVALID as above. */
int gs_grammar_mask(gs_grammar_state *s, uint32_t *mask, size_t n_words);

#endif
