/*
 * Body -> token ids. Runs on a libuv worker for long texts, so it touches only
 * the request and the immutable model (tokeniser, template).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"
#include "api/embed.h"
#include "api/lend.h"
#include "api/messages.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"

/* Content as a string, or as an array of parts of which text is taken. */
static int flatten_content(json_t *msg, size_t at, const char *model, gs_api_error *e) {
    const json_t *content = gs_given(msg, "content");
    char param[64];
    snprintf(param, sizeof(param), "messages[%zu].content", at);
    if (!content || json_typeof(content) == JSON_STRING)
        return 0;
    if (json_typeof(content) != JSON_ARRAY)
        return gs_api_fail(e, GS_ERR_INVALID, param, "'%s' must be a string or an array of parts.",
                           param);
    gs_buf text = {0};
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *t = json_object_get(part, "text");
        if (!type) {
            gs_buf_deinit(&text);
            return gs_api_fail(e, GS_ERR_INVALID, param, "A part of '%s' has no 'type'.", param);
        }
        if (strcmp(type, "text") != 0 || !json_is_string(t)) {
            gs_buf_deinit(&text);
            /* An image's address is never looked at, let alone fetched. */
            return strcmp(type, "text") != 0
                       ? gs_api_fail(e, GS_ERR_UNSUPPORTED, param,
                                     "'%s': the model '%.80s' takes text alone, no '%.32s'.", param,
                                     model, type)
                       : gs_api_fail(e, GS_ERR_INVALID, param,
                                     "'%s': the 'text' of a part must be a string.", param);
        }
        gs_buf_add(&text, json_string_value(t), json_string_length(t));
    }
    json_t *flat = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.len);
    gs_buf_deinit(&text);
    if (!flat || json_object_set_new(msg, "content", flat) != 0)
        return gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
    return 0;
}

/* Templates join content to other text, so null (an assistant that only calls
 * tools) is "". */
static int fill_content(json_t *msg) {
    if (gs_given(msg, "content"))
        return 0;
    return json_object_set_new(msg, "content", json_string("")) == 0 ? 0 : GS_ERR_NOMEM;
}

/* OpenAI sends a call's arguments as JSON inside a string; templates walk them
 * as an object. */
static int open_arguments(json_t *msg) {
    const json_t *calls = json_object_get(msg, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        const json_t *text = json_object_get(function, "arguments");
        gs_api_error ignored;
        if (!json_is_string(text))
            continue;
        json_t *v = gs_api_parse_json(json_string_value(text), json_string_length(text), &ignored);
        if (v && json_object_set_new(function, "arguments", v) != 0)
            return GS_ERR_NOMEM;
    }
    return 0;
}

/* A fixed list: templates paste the role between marks, as in '<|' + role +
 * '|>', and so a free role would spell control tokens. */
static bool known_role(const char *role) {
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    for (size_t i = 0; role && i < sizeof(roles) / sizeof(roles[0]); i++) {
        if (strcmp(role, roles[i]) == 0)
            return true;
    }
    return false;
}

static int some_messages(const json_t *messages, gs_api_error *e) {
    if (json_array_size(messages) > 0)
        return 0;
    return gs_api_fail(e, GS_ERR_INVALID, "messages",
                       "'messages' must be a non-empty array of messages.");
}

static int check_messages(const json_t *messages, const char *model, gs_api_error *e) {
    if (some_messages(messages, e) != 0)
        return e->code;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *msg = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(msg, "role"));
        char param[64];
        snprintf(param, sizeof(param), "messages[%zu]", i);
        if (json_typeof(msg) != JSON_OBJECT)
            return gs_api_fail(e, GS_ERR_INVALID, param, "'%s' must be an object.", param);
        if (!known_role(role))
            return gs_api_fail(e, GS_ERR_INVALID, param,
                               "'%s.role' must be system, developer, user, assistant, tool or "
                               "function.",
                               param);
        if (flatten_content(msg, i, model, e) != 0 || gs_messages_check_calls(msg, i, e) != 0)
            return e->code;
        if (!gs_given(msg, "content") && strcmp(role, "assistant") != 0)
            return gs_api_fail(e, GS_ERR_INVALID, param, "'%s.content' is missing.", param);
        if (fill_content(msg) != 0 || open_arguments(msg) != 0)
            return gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
    }
    return 0;
}

static bool begins_with_bos(const gs_served_model *m, const char *text, size_t n) {
    int32_t bos = gs_tok_bos(m->tokenizer);
    if (bos < 0)
        return false;
    gs_str s = gs_tok_spelling(m->tokenizer, bos);
    return s.len > 0 && n >= s.len && memcmp(text, s.data, s.len) == 0;
}

/* The template's text of the messages as ids, in place of what *ids held. NULL:
 * no memory. */
static int render_as(gs_req *r, const json_t *messages, const json_t *tools, gs_ids *ids) {
    const gs_served_model *m = r->m;
    char *mj = messages ? json_dumps(messages, JSON_COMPACT) : NULL;
    char *tj = tools ? json_dumps(tools, JSON_COMPACT) : NULL;
    char *xj = r->p.template_vars ? json_dumps(r->p.template_vars, JSON_COMPACT) : NULL;
    gs_buf text = {0};
    char err[256] = "";
    gs_chat_input in = {.messages_json = mj,
                        .tools_json = tj,
                        .extra_json = xj,
                        .add_generation_prompt = true,
                        .guard = m->tokenizer,
                        .now_s = gs_wall_s()};
    bool whole = mj && (tj || !tools) && (xj || !r->p.template_vars);
    int rc = whole ? gs_chat_render(m->chat, &in, &text, err, sizeof(err)) : GS_ERR_NOMEM;
    ids->len = 0;
    if (rc == 0) {
        int flags = GS_TOK_PARSE_SPECIAL | GS_TOK_GUARDED;
        if (!begins_with_bos(m, text.data ? text.data : "", text.len))
            flags |= GS_TOK_ADD_SPECIAL;
        r->in_reasoning = m->format && gs_out_prompt_reasons(m->format, text.data, text.len);
        rc = gs_tok_encode(m->tokenizer, text.data ? text.data : "", text.len, flags, ids, err,
                           sizeof(err));
    }
    if (rc != 0)
        gs_api_fail(&r->error, rc, "messages", "%s", err[0] ? err : gs_err_text(rc));
    gs_buf_deinit(&text);
    free(mj);
    free(tj);
    free(xj);
    return rc;
}

/* Whatever form of calls and tools the template takes. */
static int render(gs_req *r, const json_t *messages, gs_ids *ids) {
    const json_t *tools = r->p.tool_choice == GS_TOOLS_NONE ? NULL : r->p.tools;
    bool untaught = tools && !gs_chat_knows_tools(r->m->chat);
    json_t *other = untaught ? gs_messages_without_tools(messages, tools, true) : NULL;
    int rc = untaught ? render_as(r, other, NULL, ids) : render_as(r, messages, tools, ids);
    if (rc == GS_ERR_INVALID && (untaught || gs_messages_have_calls(messages))) {
        gs_api_error first = r->error;
        json_decref(other);
        other = untaught ? gs_messages_without_tools(messages, tools, false)
                         : gs_messages_string_arguments(messages);
        rc = render_as(r, other, untaught ? NULL : tools, ids);
        if (rc == GS_ERR_INVALID)
            r->error = first;
        else if (rc == 0)
            r->error = (gs_api_error){0};
    }
    json_decref(other);
    return rc;
}

/* ---- Conversations that do not fit: the oldest messages go, as in Ollama
 * --------------------- */

static bool has_role(const json_t *msg, const char *role) {
    return strcmp(json_string_value(json_object_get(msg, "role")), role) == 0;
}

/* Whether it leaves less room for the answer than that wants, within reason. */
static bool too_long(const gs_req *r) {
    int32_t want = r->p.max_tokens > 0 ? r->p.max_tokens : r->context / 8;
    int32_t room = want < r->context / 4 ? want : r->context / 4;
    return (int64_t)r->prompts[0].len + room > r->context;
}

/* The system's messages and everything from the given one on. NULL: out of
 * memory. */
static json_t *without_oldest(const json_t *messages, size_t from) {
    json_t *kept = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *msg = json_array_get(messages, i);
        if ((i >= from || has_role(msg, "system") || has_role(msg, "developer")) &&
            json_array_append(kept, msg) != 0) {
            json_decref(kept);
            return NULL;
        }
    }
    return kept;
}

static int render_from(gs_req *r, const json_t *messages, size_t from) {
    json_t *kept = without_oldest(messages, from);
    int rc = kept ? render(r, kept, &r->prompts[0])
                  : gs_api_fail(&r->error, GS_ERR_NOMEM, NULL, "Out of memory.");
    json_decref(kept);
    return rc;
}

/*
 * Begins the conversation with a later message of the user (templates want
 * turns to alternate), with the earliest one that leaves room for an answer,
 * else with the last one. Fewer messages are fewer tokens, so it is found by
 * halving: each try renders the whole template.
 */
static int drop_oldest(gs_req *r, const json_t *messages) {
    size_t n_turns = 0;
    size_t *turns = gs_array(json_array_size(messages), sizeof(*turns));
    if (!turns)
        return gs_api_fail(&r->error, GS_ERR_NOMEM, NULL, "Out of memory.");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (has_role(json_array_get(messages, i), "user"))
            turns[n_turns++] = i;
    }
    size_t low = 0, high = n_turns > 0 ? n_turns - 1 : 0, rendered = SIZE_MAX;
    int rc = 0;
    while (rc == 0 && low < high) {
        rendered = low + (high - low) / 2;
        rc = render_from(r, messages, turns[rendered]);
        if (too_long(r))
            low = rendered + 1;
        else
            high = rendered;
    }
    if (rc == 0 && n_turns > 0 && rendered != low)
        rc = render_from(r, messages, turns[low]);
    gs_free(turns);
    return rc;
}

static int prepare_chat(gs_req *r) {
    const json_t *messages = json_object_get(r->body, "messages");
    int rc = check_messages(messages, r->model, &r->error);
    if (rc == 0)
        rc = render(r, messages, &r->prompts[0]);
    if (rc == 0 && r->p.truncate && too_long(r))
        rc = drop_oldest(r, messages);
    return rc;
}

/* What the user typed is the whole prompt, so it may spell control tokens where
 * asked to. */
static int text_flags(const gs_req *r, const json_t *v) {
    const gs_served_model *m = r->m;
    if (!r->p.parse_special)
        return GS_TOK_ADD_SPECIAL;
    bool has_bos = begins_with_bos(m, json_string_value(v), json_string_length(v));
    return GS_TOK_PARSE_SPECIAL | (has_bos ? 0 : GS_TOK_ADD_SPECIAL);
}

/* BOS PREFIX prompt SUFFIX suffix MIDDLE: the order that models are trained to
 * continue. */
static int prompt_fim(gs_req *r, const json_t *prefix, const json_t *suffix) {
    const gs_served_model *m = r->m;
    const gs_model_facts *f = &m->facts;
    gs_ids *ids = &r->prompts[0];
    char err[256] = "";
    int rc = 0;
    if (gs_tok_add_bos(m->tokenizer))
        rc = gs_ids_push(ids, gs_tok_bos(m->tokenizer));
    if (rc == 0)
        rc = gs_ids_push(ids, f->fim_prefix);
    if (rc == 0)
        rc = gs_tok_encode(m->tokenizer, json_string_value(prefix), json_string_length(prefix), 0,
                           ids, err, sizeof(err));
    if (rc == 0)
        rc = gs_ids_push(ids, f->fim_suffix);
    if (rc == 0)
        rc = gs_tok_encode(m->tokenizer, json_string_value(suffix), json_string_length(suffix), 0,
                           ids, err, sizeof(err));
    if (rc == 0)
        rc = gs_ids_push(ids, f->fim_middle);
    if (rc == 0 && r->p.echo)
        rc = gs_buf_add(&r->echo_text[0], json_string_value(prefix), json_string_length(prefix));
    if (rc != 0)
        gs_api_fail(&r->error, rc, "suffix", "'prompt' and 'suffix': %s",
                    err[0] ? err : gs_err_text(rc));
    return rc;
}

static int prompt_text(gs_req *r, int32_t i, const json_t *v) {
    const gs_served_model *m = r->m;
    char err[256] = "";
    int rc = gs_tok_encode(m->tokenizer, json_string_value(v), json_string_length(v),
                           text_flags(r, v), &r->prompts[i], err, sizeof(err));
    if (rc == 0 && r->p.echo)
        rc = gs_buf_add(&r->echo_text[i], json_string_value(v), json_string_length(v));
    if (rc != 0)
        gs_api_fail(&r->error, rc, "prompt", "'prompt': %s", err[0] ? err : gs_err_text(rc));
    return rc;
}

static int prompt_ids(gs_req *r, int32_t i, const json_t *v) {
    const gs_served_model *m = r->m;
    size_t n = json_array_size(v);
    if (gs_ids_reserve(&r->prompts[i], n) != 0)
        return gs_api_fail(&r->error, GS_ERR_NOMEM, NULL, "Out of memory.");
    for (size_t k = 0; k < n; k++) {
        const json_t *id = json_array_get(v, k);
        if (json_typeof(id) != JSON_INTEGER || json_integer_value(id) < 0 ||
            json_integer_value(id) >= gs_tok_n_vocab(m->tokenizer))
            return gs_api_fail(&r->error, GS_ERR_INVALID, "prompt",
                               "'prompt' holds something that is no token id below %d.",
                               gs_tok_n_vocab(m->tokenizer));
        gs_ids_push(&r->prompts[i], (int32_t)json_integer_value(id));
    }
    if (r->p.echo)
        gs_tok_decode(m->tokenizer, r->prompts[i].data, n, false, &r->echo_text[i]);
    return 0;
}

static int prepare_completion(gs_req *r) {
    const json_t *v = json_object_get(r->body, "prompt");
    const json_t *suffix = json_object_get(r->body, "suffix");
    if (json_is_string(suffix))
        return prompt_fim(r, v, suffix);
    if (r->n_prompts == 1 && json_is_string(v))
        return prompt_text(r, 0, v);
    if (r->n_prompts == 1 && json_is_integer(json_array_get(v, 0)))
        return prompt_ids(r, 0, v);
    for (int32_t i = 0; i < r->n_prompts; i++) {
        const json_t *item = json_array_get(v, (size_t)i);
        int rc;
        if (json_typeof(item) == JSON_STRING)
            rc = prompt_text(r, i, item);
        else if (json_typeof(item) == JSON_ARRAY)
            rc = prompt_ids(r, i, item);
        else
            rc = gs_api_fail(&r->error, GS_ERR_INVALID, "prompt",
                             "'prompt' must be a string, an array of strings, or token ids.");
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* The engine knows the model's context, but not this request's own cap. */
static int over_num_ctx(gs_req *r, int32_t i) {
    gs_api_fail(&r->error, GS_ERR_CONTEXT, r->p.chat ? "messages" : "prompt",
                "The prompt has %zu tokens; 'num_ctx' allows this request %d, "
                "the answer included.",
                r->prompts[i].len, r->context);
    r->error.name = "context_length_exceeded";
    return r->error.code;
}

/* Of a model that only other machines have, these say what is wrong with the rest. */
static int check_lent(gs_req *r) {
    return r->p.chat ? some_messages(json_object_get(r->body, "messages"), &r->error) : 0;
}

gs_outparse_config gs_req_parser_config(const gs_req *r) {
    const gs_served_model *m = r->m;
    gs_outparse_config c = {
        .format = r->p.chat ? m->format : NULL,
        .tools = r->p.tool_choice == GS_TOOLS_NONE ? NULL : r->p.tools,
        .bare = gs_req_is_constrained(r) || !gs_chat_knows_tools(m->chat),
        .in_reasoning = r->in_reasoning,
    };
    if (c.format && c.tools && gs_req_is_constrained(r))
        c.format = gs_out_format_with_bare(c.format);
    return c;
}

int gs_req_prepare(gs_req *r) {
    if (r->lends && gs_lend_prepare(r) != 0)
        return r->error.code;
    if (r->dialect->embeds)
        return gs_embed_prepare(r);
    if (!r->m)
        return check_lent(r);
    int rc = r->p.chat ? prepare_chat(r) : prepare_completion(r);
    for (int32_t i = 0; rc == 0 && i < r->n_prompts; i++) {
        if (r->prompts[i].len == 0)
            rc = gs_api_fail(&r->error, GS_ERR_INVALID, r->p.chat ? "messages" : "prompt",
                             "The prompt is empty.");
        else if (r->prompts[i].len > INT32_MAX / 2)
            rc = gs_api_fail(&r->error, GS_ERR_CONTEXT, r->p.chat ? "messages" : "prompt",
                             "The prompt is far too long.");
        else if (r->p.num_ctx > 0 && (int64_t)r->prompts[i].len >= r->context)
            rc = over_num_ctx(r, i);
    }
    if (rc == 0)
        rc = gs_req_constrain(r);
    return rc;
}
