/*
 * A model's text -> content, reasoning and tool calls, while it is being generated.
 *
 * How a model writes its calls and its thoughts is a matter of its family (Hermes and Qwen, Llama
 * 3, Mistral, DeepSeek, gpt-oss ...). The families are one table (outparse_formats.c), an entry is
 * chosen by the marks in the model's chat template.
 *
 *     detokeniser ─► stop strings ─► gs_outparse_feed ─► parts ─► gs_choice ─► the dialect's deltas
 *
 * Parts come as early as they are certain: text is held back only while it may still turn out to
 * be the beginning of a mark. What looks like a call and is none comes out as text; nothing is
 * ever lost and nothing is an error, whatever the bytes. Memory: what is held back, at most
 * GS_OUT_MAX_HELD bytes, beyond which it is text.
 *
 * Caller storage, one per choice. Pure. Owner: the event-loop thread.
 */
#ifndef GS_API_OUTPARSE_H
#define GS_API_OUTPARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "api/jsonscan.h"
#include "base/buf.h"

#define GS_OUT_MAX_HELD ((size_t)1 << 20)

typedef enum gs_part_kind {
    GS_PART_TEXT,       /* data: more of the content */
    GS_PART_REASONING,  /* data: more of the reasoning */
    GS_PART_CALL_BEGIN, /* data: the function's name, whole */
    GS_PART_CALL_ARGS,  /* data: more of the arguments: JSON text in pieces */
    GS_PART_CALL_END    /* the arguments are a whole JSON object */
} gs_part_kind;

/* Calls come one after the other: BEGIN, ARGS*, END (which a cut answer lacks). */
typedef struct gs_part {
    gs_part_kind kind;
    int32_t call; /* of CALL_*: 0, 1, ... */
    const char *data;
    size_t n;
} gs_part;

/* 0, or an error that ends the feed and is returned from it. */
typedef int (*gs_part_fn)(void *arg, const gs_part *part);

typedef struct gs_out_format gs_out_format; /* outparse_formats.c */

/* The family of a model by its chat template's source; never NULL. */
const gs_out_format *gs_out_format_detect(const char *template_source);
/* By name, for tests; NULL: none. */
const gs_out_format *gs_out_format_find(const char *name);
const char *gs_out_format_name(const gs_out_format *f);
/* The same, or the generic one where an answer can't begin with the bare JSON of a call. */
const gs_out_format *gs_out_format_with_bare(const gs_out_format *f);
/* What its reasoning stands between; static. */
void gs_out_think_marks(const gs_out_format *f, const char **open, const char **close);
/* Whether a prompt's end opened the reasoning part. */
bool gs_out_prompt_reasons(const gs_out_format *f, const char *prompt, size_t n);

typedef struct gs_outparse_config {
    const gs_out_format *format; /* NULL: everything is text */
    const json_t *tools;         /* OpenAI's array, borrowed; NULL: no calls are looked for */
    bool bare;                   /* a call may also be the bare JSON of it, in any format */
    bool in_reasoning;           /* the prompt itself opened the reasoning part */
} gs_outparse_config;

typedef struct gs_outparse {
    gs_outparse_config cfg;
    gs_part_fn emit;
    void *arg;
    int state;
    gs_buf held; /* text that is not yet decided upon */
    size_t pos;  /* of it, looked at by the state */
    int32_t n_calls;
    bool begun;      /* the call under way was told */
    bool at_start;   /* no text of the content came yet */
    bool after_call; /* nothing but white space since the last call */
    bool trim;       /* white space that comes next is left out */
    /* The call under way. */
    gs_buf name, args, key;
    gs_jsonscan scan;
    int field, level; /* GS_OUT_JSON: what the current value is; where the members are */
    size_t key_from;
    bool in_list, list_calls, bare, is_string, has_args;
} gs_outparse;

void gs_outparse_init(gs_outparse *p, const gs_outparse_config *cfg, gs_part_fn emit, void *arg);
int gs_outparse_feed(gs_outparse *p, const char *text, size_t n);
/* A control token, by its spelling: a mark of the format, or nothing. */
int gs_outparse_control(gs_outparse *p, const char *spelling, size_t n);
/* The end of the text: releases what was held. */
int gs_outparse_finish(gs_outparse *p);
void gs_outparse_deinit(gs_outparse *p);

#endif
