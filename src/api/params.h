/*
 * Request fields: tables say name, type, bounds, where the value goes and one sentence about it;
 * the reader below and the OpenAPI document (openapi.c) are made from them. A value that does not
 * fit is GS_ERR_INVALID with a message and the field's name; null means absent; unknown fields are
 * ignored, because clients send many.
 */
#ifndef GS_API_PARAMS_H
#define GS_API_PARAMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "api/stop.h"
#include "engine/sampler.h"

#define GS_MAX_BIAS    1024
#define GS_MAX_CHOICES 8
#define GS_MAX_PROMPTS 64
#define GS_JSON_DEPTH  64
/* Of one body: each value takes 16 to 300 bytes once it is read. */
#define GS_JSON_VALUES     262144
#define GS_JSON_CONTAINERS 16384

/* An API error: what becomes {"error": {...}}. */
typedef struct gs_api_error {
    int code;   /* gs_err */
    int status; /* HTTP; 0: from code */
    char message[320];
    char param[64];   /* field, or "" */
    const char *name; /* OpenAI's error code, e.g. "model_not_found"; static, or NULL */
    int64_t retry_after_ns;
} gs_api_error;

int gs_api_fail(gs_api_error *e, int code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* What the output must look like; enforced token by token. */
typedef enum gs_constraint_kind {
    GS_CONSTRAINT_NONE,
    GS_CONSTRAINT_JSON_OBJECT, /* any JSON object */
    GS_CONSTRAINT_JSON_SCHEMA, /* text: the schema */
    GS_CONSTRAINT_REGEX,       /* text: the expression */
    GS_CONSTRAINT_GRAMMAR      /* text: Lark, or GBNF when it has a rule "root ::=" */
} gs_constraint_kind;

typedef struct gs_constraint {
    gs_constraint_kind kind;
    char *text; /* terminated, owned; NULL where the kind has none */
    size_t n;
    const char *field; /* static: what to name in errors */
} gs_constraint;

typedef enum gs_tool_choice {
    GS_TOOLS_AUTO,
    GS_TOOLS_NONE,
    GS_TOOLS_REQUIRED, /* at least one call */
    GS_TOOLS_NAMED     /* a call of tool_name */
} gs_tool_choice;

#define GS_MAX_CONSTRAINT_BYTES 262144
#define GS_MAX_TOOLS            128
#define GS_MAX_TOOL_NAME        64

typedef enum gs_field_type {
    GS_FIELD_FLOAT,  /* float at offset, min .. max */
    GS_FIELD_INT,    /* int32_t; 3.0 is a whole number, too */
    GS_FIELD_BOOL,   /* bool */
    GS_FIELD_TEXT,   /* char[max + 1]: at most max bytes */
    GS_FIELD_OBJECT, /* an object whose fields are in sub, with the same destination */
    GS_FIELD_JSON    /* anything else: schema describes it, code of the endpoint reads it */
} gs_field_type;

/* One row. A table ends with a row without name. */
typedef struct gs_field {
    const char *name;
    gs_field_type type;
    unsigned where; /* bits, the table's own meaning: which endpoints take the field */
    size_t offset;
    double min, max;
    const char *help;   /* a sentence for people */
    const char *schema; /* of GS_FIELD_JSON: JSON Schema with ' instead of double quotes */
    const struct gs_field *sub;
    bool required; /* for the document alone; the endpoint's code says what is missing */
} gs_field;

// clang-format off
#define GS_ROW(n, t, w, at, lo, hi, h)  {.name = (n), .type = GS_FIELD_##t, .where = (w), .offset = (at), .min = (lo), .max = (hi), .help = (h)}
#define GS_ROW_JSON(n, w, s, h)         {.name = (n), .type = GS_FIELD_JSON, .where = (w), .schema = (s), .help = (h)}
#define GS_ROW_NEEDED(n, w, s, h)       {.name = (n), .type = GS_FIELD_JSON, .where = (w), .schema = (s), .help = (h), .required = true}
#define GS_ROW_OBJECT(n, w, rows, h)    {.name = (n), .type = GS_FIELD_OBJECT, .where = (w), .sub = (rows), .help = (h)}
#define GS_ROWS_END                     {.name = NULL}
// clang-format on

/* Reads those rows of the table that have a bit of where into dest; fields that are absent leave
 * it as it was. GS_FIELD_JSON rows are passed over. Errors name the field ("options.seed"). */
int gs_fields_read(const gs_field *table, unsigned where, const json_t *object, void *dest,
                   gs_api_error *e);

/* Bits of gs_gen_fields. */
enum { GS_IN_CHAT = 1, GS_IN_TEXT = 2, GS_IN_BOTH = 3 };
/* What /v1/chat/completions and /v1/completions take. */
extern const gs_field gs_gen_fields[];

typedef struct gs_gen_params {
    gs_sampler sampler; /* bias and eog not set here */
    int32_t max_tokens; /* -1: as much as the context leaves */
    int32_t n;
    int32_t num_ctx;    /* cap of prompt and output together; 0: the context */
    bool truncate;      /* a conversation that does not fit loses its oldest messages */
    bool parse_special; /* completions: control tokens spelt in the prompt are these tokens */
    bool stream, include_usage, include_timings, echo;
    bool has_seed;
    bool chat;
    gs_stop_set stop;
    gs_logit_bias bias[GS_MAX_BIAS];
    int32_t n_bias;
    char user[128];
    /* Chat. Other dialects write their bodies in OpenAI's form before they are read. */
    json_t *tools; /* OpenAI's array, checked, with nothing left out; NULL: none given */
    gs_tool_choice tool_choice;
    char tool_name[GS_MAX_TOOL_NAME + 1]; /* with GS_TOOLS_NAMED */
    bool parallel_tool_calls;
    gs_constraint constraint;
    json_t *template_vars; /* chat_template_kwargs, e.g. {"enable_thinking": false} */
} gs_gen_params;

/* The member, or NULL: null means absent. Borrowed, and not to be changed. */
json_t *gs_given(const json_t *object, const char *name);

/* Parses the text as JSON with the limits of docs/api.md. NULL and *e on failure. */
json_t *gs_api_parse_json(const char *text, size_t n, gs_api_error *e);
/* All fields that chat and completions share, and the ones that differ by `chat`. Overwrites *p;
 * gs_gen_params_deinit in every case, also after an error. */
int gs_gen_params_read(const json_t *root, bool chat, int32_t n_vocab, gs_gen_params *p,
                       gs_api_error *e);
void gs_gen_params_deinit(gs_gen_params *p);

#endif
