/* Private to the output parser: what a format is made of. */
#ifndef GS_API_OUTPARSE_IMPL_H
#define GS_API_OUTPARSE_IMPL_H

#include "api/outparse.h"

#define GS_OUT_MARKS 4
#define GS_OUT_SKIPS 6

/* What follows the mark that opens a call. */
typedef enum gs_out_body {
    GS_OUT_JSON, /* {"name": ..., "arguments": {...}}, one, several, or an array of them */
    GS_OUT_NAME, /* the name, a mark, the arguments as JSON */
    GS_OUT_TAGS  /* the name, then each argument between tags */
} gs_out_body;

/* <open>NAME<name_end> (<key_open>KEY<key_close> <value_open>VALUE<value_close>)* <close> */
typedef struct gs_out_tags {
    const char *name_end, *key_open, *key_close, *value_open, *value_close, *close;
} gs_out_tags;

struct gs_out_format {
    const char *name;
    const char *detect[3]; /* in the template's source, all of them; none: never chosen by marks */
    gs_out_body body;
    const char *open[GS_OUT_MARKS]; /* a call begins */
    const char *section;            /* comes before the first one; left out */
    const char *skip[GS_OUT_SKIPS]; /* left out once a call came */
    const char *think_open, *think_close;
    const char *name_prefix, *name_end; /* GS_OUT_NAME */
    gs_out_tags tags;                   /* GS_OUT_TAGS */
    bool bare;                          /* an answer that begins with the JSON of a call is one */
    bool name_first;                    /* an answer begins with a name: functionary's ">>>" */
    bool channels;                      /* gpt-oss: "<|channel|>" headers */
};

/* [*n_formats]; the first one that matches is a model's. The last one is the generic one. */
extern const gs_out_format gs_out_formats[];
extern const size_t gs_n_out_formats;

/* States; TEXT is where everything begins and ends. */
enum {
    GS_OUT_TEXT,
    GS_OUT_REASONING,
    GS_OUT_IN_JSON,
    GS_OUT_IN_NAME,
    GS_OUT_IN_ARGS,
    GS_OUT_IN_TAGS,
    GS_OUT_HEADER, /* gpt-oss: before <|message|> */
    GS_OUT_MESSAGE /* gpt-oss: after it; p->field is the part's kind */
};

/* outparse.c */
int gs_out_emit(gs_outparse *p, gs_part_kind kind, const char *data, size_t n);
void gs_out_take(gs_outparse *p, size_t n); /* from the front of what is held */
size_t gs_out_tail(const char *s, size_t n, const char *mark);
size_t gs_out_find(const char *s, size_t n, const char *mark); /* n: not there */
bool gs_out_good_name(const char *s, size_t n);
int gs_out_begin_call(gs_outparse *p, const char *name, size_t n);
int gs_out_end_call(gs_outparse *p, bool whole);

/* outparse_channels.c: 1: again, 0: wait for more, or an error. */
int gs_out_step_channel(gs_outparse *p, bool final);

#endif
