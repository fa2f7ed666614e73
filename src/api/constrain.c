/*
 * What a request says about its output -> a grammar, and a guide for each choice. Runs on a libuv
 * worker: compiling may take long.
 *
 * A call that is required is written as the JSON that every family's parser understands,
 * {"name": ..., "arguments": {...}}, with the arguments bound to the function's own schema. Where
 * the model may call or answer, or may think first, the parts are alternatives of one Lark grammar.
 */
#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"
#include "base/err.h"
#include "base/sys.h"

/* Calls in an answer that must call; a weak model would go on for ever. */
#define MAX_FORCED_CALLS 8

/* As the JSON grammars themselves have it (rust/src/constrain.rs). */
static json_t *guidance(void) {
    return json_pack("{s:b, s:s}", "whitespace_flexible", 1, "whitespace_pattern",
                     "[ \\n\\r\\t]{0,24}");
}

static bool forced(const gs_req *r) {
    return r->p.tool_choice >= GS_TOOLS_REQUIRED;
}

bool gs_req_is_constrained(const gs_req *r) {
    return r->p.constraint.kind != GS_CONSTRAINT_NONE || forced(r);
}

/* ---- Lark --------------------------------------------------------------------------------- */

static void add_string(gs_buf *out, const char *s) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_str(&w, s);
}

/* name: %json {schema} */
static void add_schema(gs_buf *out, const json_t *schema, bool object) {
    json_t *copy = json_is_object(schema) ? json_deep_copy(schema) : json_object(); /* or true */
    bool whole = json_object_set_new(copy, "x-guidance", guidance()) == 0;
    if (whole && object && !json_object_get(copy, "type"))
        whole = json_object_set_new(copy, "type", json_string("object")) == 0;
    char *text = whole ? json_dumps(copy, JSON_COMPACT) : NULL;
    if (text)
        gs_buf_printf(out, "%%json %s\n", text);
    else
        out->failed = true;
    free(text);
    json_decref(copy);
}

static void add_calls(gs_buf *out, const gs_req *r) {
    const char *between = "";
    size_t n = json_array_size(r->p.tools);
    bool several = r->p.parallel_tool_calls && r->p.tool_choice != GS_TOOLS_NAMED;
    if (several)
        gs_buf_printf(out, "calls: call (\"\\n\" call){0,%d}\n", MAX_FORCED_CALLS - 1);
    else
        gs_buf_str(out, "calls: call\n");
    gs_buf_str(out, "call: ");
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n; i++) {
            const json_t *f = json_object_get(json_array_get(r->p.tools, i), "function");
            const char *name = json_string_value(json_object_get(f, "name"));
            if (r->p.tool_choice == GS_TOOLS_NAMED && strcmp(name, r->p.tool_name) != 0)
                continue;
            if (pass == 0) {
                gs_buf_printf(out, "%sc%zu", between, i);
                between = " | ";
                continue;
            }
            /* Piece by piece, where the lexer of an answer in JSON ends them, too: it never goes
             * back to a shorter one. Names have nothing that a string would have to escape. */
            gs_buf_printf(out,
                          "c%zu: \"{\" \"\\\"name\\\"\" \":\" \" \" \"\\\"%s\\\"\" \",\" \" \" "
                          "\"\\\"arguments\\\"\" \":\" \" \" a%zu \"}\"\na%zu: ",
                          i, name, i, i);
            add_schema(out, json_object_get(f, "parameters"), true);
        }
        gs_buf_char(out, '\n');
    }
}

/* A mark as text, or as the control token that it is. */
static void add_mark(gs_buf *out, const gs_tokenizer *t, const char *mark) {
    int32_t id = gs_tok_find(t, mark, strlen(mark));
    if (id >= 0 && gs_tok_is_control(t, id))
        gs_buf_printf(out, "<[%d]>", id);
    else
        add_string(out, mark);
}

/* Free text up to the mark that ends the reasoning. */
static void add_thoughts(gs_buf *out, const gs_tokenizer *t, const char *close) {
    int32_t id = gs_tok_find(t, close, strlen(close));
    if (id >= 0 && gs_tok_is_control(t, id)) {
        gs_buf_printf(out, "thoughts: /(?s:.*)/ <[%d]>\n", id);
    } else {
        gs_buf_str(out, "thoughts[suffix=");
        add_string(out, close);
        gs_buf_str(out, "]: /(?s:.*)/\n");
    }
    gs_buf_str(out, "gap: /[ \\n\\r\\t]{0,4}/\n");
}

static void add_regex(gs_buf *out, const char *s) {
    gs_buf_char(out, '/');
    for (; *s; s++) {
        if (*s == '\\' && s[1]) {
            gs_buf_char(out, *s++);
            gs_buf_char(out, *s);
        } else if (*s == '/') {
            gs_buf_str(out, "\\/");
        } else if (*s == '\n') {
            gs_buf_str(out, "\\n");
        } else {
            gs_buf_char(out, *s);
        }
    }
    gs_buf_str(out, "/\n");
}

static void add_answer(gs_buf *out, const gs_constraint *c) {
    gs_buf_str(out, "answer: ");
    if (c->kind == GS_CONSTRAINT_REGEX) {
        add_regex(out, c->text);
        return;
    }
    json_t *schema = c->kind == GS_CONSTRAINT_JSON_SCHEMA
                         ? json_loads(c->text, JSON_DECODE_ANY, NULL)
                         : json_object();
    if (schema)
        add_schema(out, schema, c->kind == GS_CONSTRAINT_JSON_OBJECT);
    else
        out->failed = true;
    json_decref(schema);
}

/* ---- Which grammar ------------------------------------------------------------------------ */

typedef struct plan {
    bool calls, answer, thinks, may_think;
    const char *open, *close;
} plan;

static plan make_plan(const gs_req *r) {
    const gs_served_model *m = r->m;
    const gs_constraint *c = &r->p.constraint;
    plan p = {0};
    /* A client's grammar stands alone: what the answer may be is all in it. */
    bool alone = c->kind == GS_CONSTRAINT_GRAMMAR && !forced(r);
    p.answer = !forced(r);
    p.calls = forced(r) || (r->p.chat && r->p.tools && r->p.tool_choice == GS_TOOLS_AUTO && !alone);
    if (!r->p.chat || !m->format || alone)
        return p;
    gs_out_think_marks(m->format, &p.open, &p.close);
    p.thinks = r->in_reasoning;
    p.may_think = !p.thinks && strstr(gs_chat_template_source(m->chat), p.open);
    return p;
}

static void write_lark(gs_buf *out, const gs_req *r, const plan *p) {
    const gs_tokenizer *t = r->m->tokenizer;
    gs_buf_str(out, "start: ");
    if (p->thinks) {
        gs_buf_str(out, "thoughts gap ");
    } else if (p->may_think) {
        gs_buf_char(out, '(');
        add_mark(out, t, p->open);
        gs_buf_str(out, " thoughts gap)? ");
    }
    gs_buf_str(out, p->calls && p->answer ? "(answer | calls)\n"
                    : p->calls            ? "calls\n"
                                          : "answer\n");
    if (p->thinks || p->may_think)
        add_thoughts(out, t, p->close);
    if (p->answer)
        add_answer(out, &r->p.constraint);
    if (p->calls)
        add_calls(out, r);
}

static int get_grammar(gs_req *r, gs_grammar **out, char *err, size_t errlen) {
    static const gs_grammar_kind kinds[] = {
        [GS_CONSTRAINT_NONE] = GS_GRAMMAR_LARK,
        [GS_CONSTRAINT_JSON_OBJECT] = GS_GRAMMAR_JSON_OBJECT,
        [GS_CONSTRAINT_JSON_SCHEMA] = GS_GRAMMAR_JSON_SCHEMA,
        [GS_CONSTRAINT_REGEX] = GS_GRAMMAR_REGEX,
        [GS_CONSTRAINT_GRAMMAR] = GS_GRAMMAR_LARK,
    };
    const gs_constraint *c = &r->p.constraint;
    gs_grammars *all = r->m->grammars;
    plan p = make_plan(r);
    if (!p.calls && !p.thinks && !p.may_think)
        return gs_grammars_get(all, kinds[c->kind], c->text ? c->text : "", c->n, out, err, errlen);
    gs_buf text = {0};
    write_lark(&text, r, &p);
    int rc = text.failed
                 ? gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory")
                 : gs_grammars_get(all, GS_GRAMMAR_LARK_OWN, text.data, text.len, out, err, errlen);
    gs_buf_deinit(&text);
    return rc;
}

static int make_guides(gs_req *r, gs_grammar *g) {
    int32_t n = r->n_prompts * r->p.n;
    int rc = 0;
    r->guides = gs_calloc((size_t)n, sizeof(gs_guide *));
    if (!r->guides)
        return GS_ERR_NOMEM;
    for (int32_t i = 0; rc == 0 && i < n; i++)
        rc = gs_guide_create(g, &r->guides[i]);
    return rc;
}

int gs_req_constrain(gs_req *r) {
    const char *field = forced(r) ? "tools" : r->p.constraint.field;
    char err[256] = "";
    gs_grammar *g = NULL;
    if (!gs_req_is_constrained(r))
        return 0;
    if (!r->m->grammars)
        return gs_api_fail(&r->error, GS_ERR_UNSUPPORTED, field,
                           "'%s': this server can't constrain its output.", field);
    int rc = get_grammar(r, &g, err, sizeof(err));
    if (rc == 0)
        rc = make_guides(r, g);
    gs_grammar_unref(g);
    if (rc != 0)
        gs_api_fail(&r->error, rc, field, "'%s': %s.", field, err[0] ? err : gs_err_text(rc));
    return rc;
}
