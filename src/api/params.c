#include "api/params_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "base/sys.h"

#define TEXT_OF_(x) #x
#define TEXT_OF(x)  TEXT_OF_(x)

int gs_api_fail(gs_api_error *e, int code, const char *param, const char *fmt, ...) {
    va_list ap;
    memset(e, 0, sizeof(*e));
    e->code = code;
    snprintf(e->param, sizeof(e->param), "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof(e->message), fmt, ap);
    va_end(ap);
    return code;
}

/* One pass over the bytes before the parser, which recurses and makes an object of each value: a
 * depth bomb or a huge array must not get that far. NULL, or what is wrong. */
static const char *check_shape(const char *s, size_t n) {
    /* The library passes over one between a number and a bracket. */
    if (memchr(s, '\0', n))
        return "holds a zero byte";
    int depth = 0;
    size_t n_values = 0, n_containers = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
        } else if (s[i] == '"') {
            in_string = true;
        } else if (s[i] == '[' || s[i] == '{') {
            n_containers++;
            if (++depth > GS_JSON_DEPTH)
                return "is nested more than " TEXT_OF(GS_JSON_DEPTH) " levels deep";
        } else if (s[i] == ']' || s[i] == '}') {
            depth--;
        } else if (s[i] == ',') {
            n_values++;
        }
    }
    if (n_containers > GS_JSON_CONTAINERS)
        return "has more than " TEXT_OF(GS_JSON_CONTAINERS) " arrays and objects";
    return n_values > GS_JSON_VALUES ? "has more than " TEXT_OF(GS_JSON_VALUES) " values" : NULL;
}

json_t *gs_api_parse_json(const char *text, size_t n, gs_api_error *e) {
    if (n == 0) {
        gs_api_fail(e, GS_ERR_INVALID, "body", "The request has no body; a JSON object is needed.");
        return NULL;
    }
    const char *wrong = check_shape(text, n);
    if (wrong) {
        gs_api_fail(e, GS_ERR_INVALID, "body", "The JSON %s.", wrong);
        return NULL;
    }
    json_error_t je;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!root && je.text[0] == '\0') { /* it finds no fault with the text */
        gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
        return NULL;
    }
    if (!root) {
        /* jansson quotes the text near the fault; only its own words before that are passed on. */
        char *near = strstr(je.text, " near '");
        if (near)
            *near = '\0';
        if (json_error_code(&je) == json_error_null_character)
            snprintf(je.text, sizeof(je.text), "\\u0000 is not accepted in strings");
        gs_api_fail(e, GS_ERR_INVALID, "body",
                    "The body is not valid JSON: %s (line %d, column %d).", je.text, je.line,
                    je.column);
        return NULL;
    }
    if (json_typeof(root) != JSON_OBJECT) {
        json_decref(root);
        gs_api_fail(e, GS_ERR_INVALID, "body", "The body must be a JSON object.");
        return NULL;
    }
    return root;
}

/* ---- Fields ------------------------------------------------------------------------------- */

#define AT(member) offsetof(gs_gen_params, member)
#define STRINGS    "{'type':'array','items':{'type':'string','maxLength':256},'maxItems':16}"
#define TOKEN_IDS  "{'type':'array','minItems':1,'items':{'type':'integer','minimum':0}}"

// clang-format off
const gs_field gs_gen_fields[] = {
    GS_ROW_JSON("model", GS_IN_BOTH,
        "{'type':'string'}",
        "A name that /v1/models lists, with or without ':latest'. Absent: the model there is."),
    GS_ROW_NEEDED("messages", GS_IN_CHAT,
        "{'type':'array','minItems':1,'items':{'$ref':'#/components/schemas/Message'}}",
        "The conversation so far."),
    GS_ROW_NEEDED("prompt", GS_IN_TEXT,
        "{'anyOf':[{'type':'string','minLength':1},"
        "{'type':'array','minItems':1,'maxItems':64,'items':{'type':'string','minLength':1}},"
        TOKEN_IDS ",{'type':'array','minItems':1,'maxItems':64,'items':" TOKEN_IDS "}]}",
        "A text, token ids, or up to 64 of either."),
    GS_ROW("temperature", FLOAT, GS_IN_BOTH, AT(sampler.temperature), 0, 100,
     "0 is greedy. Default 1."),
    GS_ROW("top_p", FLOAT, GS_IN_BOTH, AT(sampler.top_p), 0, 1,
     "Keep the likeliest tokens that have this probability together. Default 1 (all)."),
    GS_ROW("top_k", INT, GS_IN_BOTH, AT(sampler.top_k), -1, INT32_MAX,
     "Keep this many of the likeliest tokens. -1 and 0: all, the default."),
    GS_ROW("min_p", FLOAT, GS_IN_BOTH, AT(sampler.min_p), 0, 1,
     "Keep tokens at least this likely relative to the likeliest. Default 0."),
    GS_ROW("typical_p", FLOAT, GS_IN_BOTH, AT(sampler.typical_p), 0, 1,
     "Locally typical sampling. Default 1 (off)."),
    GS_ROW("repeat_penalty", FLOAT, GS_IN_BOTH, AT(sampler.repeat_penalty), 0.01, 100,
     "Divides the logits of tokens seen lately. Default 1 (off)."),
    GS_ROW("repetition_penalty", FLOAT, GS_IN_BOTH, AT(sampler.repeat_penalty), 0.01, 100,
     "Another name of repeat_penalty."),
    GS_ROW("repeat_last_n", INT, GS_IN_BOTH, AT(sampler.repeat_last_n), -1, INT32_MAX,
     "How many tokens the penalties look back. -1: all. Default 64."),
    GS_ROW("presence_penalty", FLOAT, GS_IN_BOTH, AT(sampler.presence_penalty), -2, 2,
     "Subtracted once from the logits of tokens seen lately. Default 0."),
    GS_ROW("frequency_penalty", FLOAT, GS_IN_BOTH, AT(sampler.frequency_penalty), -2, 2,
     "Subtracted for each time a token was seen lately. Default 0."),
    GS_ROW("dry_multiplier", FLOAT, GS_IN_BOTH, AT(sampler.dry_multiplier), 0, 100,
     "Strength of the penalty on repeated passages. Default 0 (off)."),
    GS_ROW("dry_base", FLOAT, GS_IN_BOTH, AT(sampler.dry_base), 1, 10,
     "How that penalty grows with the passage's length. Default 1.75."),
    GS_ROW("dry_allowed_length", INT, GS_IN_BOTH, AT(sampler.dry_allowed_length), 1, 1000,
     "Passages up to this many tokens may repeat. Default 2."),
    GS_ROW("ignore_eos", BOOL, GS_IN_BOTH, AT(sampler.ignore_eos), 0, 0,
     "Go on until max_tokens. Default false."),
    GS_ROW("max_tokens", INT, GS_IN_BOTH, AT(max_tokens), 1, INT32_MAX,
     "Longest answer in tokens; what the context leaves is the bound. Default: chat that bound, "
     "completions 16."),
    GS_ROW("max_completion_tokens", INT, GS_IN_CHAT, AT(max_tokens), 1, INT32_MAX,
     "Another name of max_tokens."),
    GS_ROW("num_ctx", INT, GS_IN_BOTH, AT(num_ctx), 0, INT32_MAX,
     "Cap of prompt and answer together for this request, in tokens. Default 0: the context."),
    GS_ROW("n", INT, GS_IN_BOTH, AT(n), 1, GS_MAX_CHOICES, "Answers to each prompt. Default 1."),
    GS_ROW("stream", BOOL, GS_IN_BOTH, AT(stream), 0, 0,
     "Send the answer as server-sent events while it is made. Default false."),
    GS_ROW_JSON("stream_options", GS_IN_BOTH,
        "{'type':'object','properties':{'include_usage':{'type':'boolean'},"
        "'include_timings':{'type':'boolean'}}}",
        "include_usage: a last event with usage. include_timings: that, with usage.timings."),
    GS_ROW("include_timings", BOOL, GS_IN_BOTH, AT(include_timings), 0, 0,
     "Add usage.timings: what each sequence waited for, and what its steps took."),
    GS_ROW("echo", BOOL, GS_IN_TEXT, AT(echo), 0, 0,
     "Begin the text with the prompt; not together with logprobs. Default false."),
    GS_ROW("logprobs", INT, GS_IN_TEXT, AT(sampler.n_logprobs), 0, GS_MAX_TOP_LOGPROBS,
     "Log-probabilities of each token and of that many likeliest ones."),
    GS_ROW_JSON("logprobs", GS_IN_CHAT,
        "{'type':'boolean'}",
        "Log-probabilities of each token."),
    GS_ROW_JSON("top_logprobs", GS_IN_CHAT,
        "{'type':'integer','minimum':0,'maximum':20}",
        "With logprobs: also those of that many likeliest tokens."),
    GS_ROW_JSON("stop", GS_IN_BOTH,
        "{'anyOf':[{'type':'string','maxLength':256}," STRINGS "]}",
        "The answer ends before any of these strings, of at most 256 bytes each."),
    GS_ROW_JSON("logit_bias", GS_IN_BOTH,
        "{'type':'object','maxProperties':1024,'propertyNames':{'pattern':'^[0-9]{1,9}$'},"
        "'additionalProperties':{'type':'number','minimum':-100,'maximum':100}}",
        "Token id to what is added to its logit; -100 forbids it."),
    GS_ROW_JSON("seed", GS_IN_BOTH,
        "{'type':'integer','minimum':-9223372036854775808,'maximum':9223372036854775807}",
        "The same seed and prompt give the same text. Default: random."),
    GS_ROW("user", TEXT, GS_IN_BOTH, AT(user), 0, sizeof(((gs_gen_params *)0)->user) - 1,
     "Names a person: on this machine's own addresses without keys, or from a trusted proxy."),
    GS_ROW_JSON("service_tier", GS_IN_BOTH,
        "{'type':'string'}",
        "flex: background; anything else: the default class."),
    GS_ROW_JSON("tools", GS_IN_CHAT,
        "{'type':'array','maxItems':128,'items':{'type':'object','required':['function'],"
        "'properties':{'type':{'const':'function'},'function':{'type':'object',"
        "'required':['name'],'properties':{"
        "'name':{'type':'string','pattern':'^[A-Za-z0-9_.:/-]{1,64}$'},"
        "'description':{'type':'string'},'parameters':{'type':'object'}}}}}}",
        "Functions that the model may call."),
    GS_ROW_JSON("tool_choice", GS_IN_CHAT,
        "{'anyOf':[{'enum':['none','auto','required']},{'type':'object','properties':{"
        "'type':{'const':'function'},'function':{'type':'object','properties':{"
        "'name':{'type':'string'}},'required':['name']}},'required':['function']}]}",
        "none, auto (the default), required (at least one call) or the function to call."),
    GS_ROW("parallel_tool_calls", BOOL, GS_IN_CHAT, AT(parallel_tool_calls), 0, 0,
     "Whether a required answer may hold several calls. Default true."),
    GS_ROW_JSON("response_format", GS_IN_BOTH,
        "{'type':'object','required':['type'],'properties':{"
        "'type':{'enum':['text','json_object','json_schema']},'json_schema':{'type':'object',"
        "'required':['schema'],'properties':{'name':{'type':'string'},"
        "'strict':{'type':'boolean'},'schema':{'type':'object'}}}}}",
        "The answer is a JSON object, or fits a schema. Always strict."),
    GS_ROW_JSON("grammar", GS_IN_BOTH,
        "{'type':'string'}",
        "The answer fits this grammar: Lark, or GBNF when it has a rule root."),
    GS_ROW_JSON("regex", GS_IN_BOTH,
        "{'type':'string'}",
        "The whole answer fits this regular expression."),
    GS_ROW_JSON("chat_template_kwargs", GS_IN_CHAT,
        "{'type':'object'}",
        "Variables of the model's chat template, as enable_thinking."),
    GS_ROW_JSON("reasoning_effort", GS_IN_CHAT,
        "{'type':'string'}",
        "none: enable_thinking is false; else a variable of the chat template."),
    GS_ROWS_END};
// clang-format on

json_t *gs_given(const json_t *object, const char *name) {
    json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

/* "options.seed", or the name alone. */
static const char *full_name(const char *above, const char *name, char *out, size_t n) {
    snprintf(out, n, "%s%s%s", above, *above ? "." : "", name);
    return out;
}

static int read_number(const gs_field *f, const char *name, const json_t *v, void *at,
                       gs_api_error *e) {
    bool want_int = f->type == GS_FIELD_INT;
    const json_type type = json_typeof(v);
    const double x = json_number_value(v);
    if ((type != JSON_INTEGER && type != JSON_REAL) || (want_int && x != floor(x)))
        return gs_api_fail(e, GS_ERR_INVALID, name, "'%s' must be %s.", name,
                           want_int ? "a whole number" : "a number");
    if (!(x >= f->min && x <= f->max))
        return gs_api_fail(e, GS_ERR_INVALID, name, "'%s' must be between %.10g and %.10g.", name,
                           f->min, f->max);
    if (want_int)
        *(int32_t *)at = (int32_t)x;
    else
        *(float *)at = (float)x;
    return 0;
}

static int read_fields(const gs_field *table, unsigned where, const char *above,
                       const json_t *object, void *dest, gs_api_error *e);

static int read_field(const gs_field *f, unsigned where, const char *above, const json_t *v,
                      void *dest, gs_api_error *e) {
    char buf[64];
    const char *name = full_name(above, f->name, buf, sizeof(buf));
    void *at = (char *)dest + f->offset;
    switch (f->type) {
    case GS_FIELD_FLOAT:
    case GS_FIELD_INT:
        return read_number(f, name, v, at, e);
    case GS_FIELD_BOOL:
        if (json_typeof(v) != JSON_TRUE && json_typeof(v) != JSON_FALSE)
            return gs_api_fail(e, GS_ERR_INVALID, name, "'%s' must be true or false.", name);
        *(bool *)at = json_typeof(v) == JSON_TRUE;
        return 0;
    case GS_FIELD_TEXT:
        if (json_typeof(v) != JSON_STRING || (double)json_string_length(v) > f->max)
            return gs_api_fail(e, GS_ERR_INVALID, name,
                               "'%s' must be a string of at most %.0f bytes.", name, f->max);
        memcpy(at, json_string_value(v), json_string_length(v) + 1);
        return 0;
    case GS_FIELD_OBJECT:
        if (json_typeof(v) != JSON_OBJECT)
            return gs_api_fail(e, GS_ERR_INVALID, name, "'%s' must be an object.", name);
        return read_fields(f->sub, where, name, v, dest, e);
    case GS_FIELD_JSON:
        return 0;
    }
    return 0;
}

static int read_fields(const gs_field *table, unsigned where, const char *above,
                       const json_t *object, void *dest, gs_api_error *e) {
    for (const gs_field *f = table; f->name; f++) {
        const json_t *v = f->where & where ? gs_given(object, f->name) : NULL;
        int rc = v ? read_field(f, where, above, v, dest, e) : 0;
        if (rc != 0)
            return rc;
    }
    return 0;
}

int gs_fields_read(const gs_field *table, unsigned where, const json_t *object, void *dest,
                   gs_api_error *e) {
    return read_fields(table, where, "", object, dest, e);
}

/* ---- Fields that take more than a row ------------------------------------------------------ */

static int read_stop(const json_t *v, gs_stop_set *s, gs_api_error *e) {
    const bool many = json_typeof(v) == JSON_ARRAY;
    const size_t n = many ? json_array_size(v) : 1;
    if (n > GS_MAX_STOPS)
        return gs_api_fail(e, GS_ERR_INVALID, "stop", "'stop' may have at most %d strings.",
                           GS_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = many ? json_array_get(v, i) : v;
        if (json_typeof(item) != JSON_STRING)
            return gs_api_fail(e, GS_ERR_INVALID, "stop",
                               "'stop' must be a string or an array of strings.");
        size_t len = json_string_length(item);
        if (len > GS_MAX_STOP_BYTES)
            return gs_api_fail(e, GS_ERR_INVALID, "stop",
                               "A stop string may have at most %d bytes.", GS_MAX_STOP_BYTES);
        if (len == 0)
            continue; /* would match everywhere; clients send [""] for "none" */
        memcpy(s->text[s->n], json_string_value(item), len + 1);
        s->len[s->n++] = len;
    }
    return 0;
}

static int read_bias(const json_t *v, int32_t n_vocab, gs_gen_params *p, gs_api_error *e) {
    if (json_typeof(v) != JSON_OBJECT)
        return gs_api_fail(e, GS_ERR_INVALID, "logit_bias",
                           "'logit_bias' must be an object of token id to number.");
    if (json_object_size(v) > GS_MAX_BIAS)
        return gs_api_fail(e, GS_ERR_INVALID, "logit_bias",
                           "'logit_bias' may have at most %d entries.", GS_MAX_BIAS);
    const char *key;
    json_t *val;
    json_t *walk;
    memcpy(&walk, &v,
           sizeof(walk)); /* json_object_foreach takes a non-const object but only reads */
    json_object_foreach(walk, key, val) {
        char *end;
        long id = strtol(key, &end, 10);
        if (!isdigit((unsigned char)key[0]) || *end != '\0' || id < 0 || id >= n_vocab)
            return gs_api_fail(e, GS_ERR_INVALID, "logit_bias",
                               "'logit_bias' keys must be token ids below %d.", n_vocab);
        if (!json_is_number(val) || !(fabs(json_number_value(val)) <= 100))
            return gs_api_fail(e, GS_ERR_INVALID, "logit_bias",
                               "'logit_bias' values must be between -100 and 100.");
        p->bias[p->n_bias++] = (gs_logit_bias){(int32_t)id, (float)json_number_value(val)};
    }
    return 0;
}

/* chat: logprobs is a switch and top_logprobs a number. */
static int read_chat_logprobs(const json_t *root, gs_gen_params *p, gs_api_error *e) {
    const json_t *on = gs_given(root, "logprobs"), *top = gs_given(root, "top_logprobs");
    if (on && !json_is_boolean(on))
        return gs_api_fail(e, GS_ERR_INVALID, "logprobs", "'logprobs' must be true or false.");
    if (json_is_true(on))
        p->sampler.n_logprobs = 0;
    if (!top)
        return 0;
    if (json_typeof(top) != JSON_INTEGER || json_integer_value(top) < 0 ||
        json_integer_value(top) > GS_MAX_TOP_LOGPROBS)
        return gs_api_fail(e, GS_ERR_INVALID, "top_logprobs",
                           "'top_logprobs' must be a whole number between 0 and %d.",
                           GS_MAX_TOP_LOGPROBS);
    if (!json_is_true(on))
        return gs_api_fail(e, GS_ERR_INVALID, "top_logprobs",
                           "'top_logprobs' needs 'logprobs': true.");
    p->sampler.n_logprobs = (int32_t)json_integer_value(top);
    return 0;
}

static int read_rest(const json_t *root, int32_t n_vocab, gs_gen_params *p, gs_api_error *e) {
    const json_t *v = gs_given(root, "stop");
    if (v && read_stop(v, &p->stop, e) != 0)
        return e->code;
    v = gs_given(root, "logit_bias");
    if (v && read_bias(v, n_vocab, p, e) != 0)
        return e->code;
    v = gs_given(root, "stream_options");
    if (v) {
        const json_t *u = json_object_get(v, "include_usage");
        const json_t *t = json_object_get(v, "include_timings");
        if (json_typeof(v) != JSON_OBJECT || (u && !json_is_boolean(u)) ||
            (t && !json_is_boolean(t)))
            return gs_api_fail(e, GS_ERR_INVALID, "stream_options",
                               "'stream_options' must be an object; 'include_usage' and "
                               "'include_timings' are true or false.");
        p->include_usage = json_is_true(u);
        p->include_timings |= json_is_true(t);
    }
    p->include_usage |= p->include_timings; /* that is where they are told */
    v = gs_given(root, "seed");
    if (v) {
        if (json_typeof(v) != JSON_INTEGER)
            return gs_api_fail(e, GS_ERR_INVALID, "seed", "'seed' must be a whole number.");
        p->sampler.seed = (uint64_t)json_integer_value(v);
        p->has_seed = true;
    }
    /* Scoring a prompt needs its own log-probabilities; leaving them out would mislead. */
    if (p->echo && p->sampler.n_logprobs >= 0)
        return gs_api_fail(e, GS_ERR_UNSUPPORTED, "echo",
                           "'echo' and 'logprobs' together are not supported.");
    return 0;
}

int gs_gen_params_read(const json_t *root, bool chat, int32_t n_vocab, gs_gen_params *p,
                       gs_api_error *e) {
    memset(p, 0, sizeof(*p));
    gs_sampler_default(&p->sampler);
    p->max_tokens = -1;
    p->n = 1;
    p->chat = chat;
    p->parallel_tool_calls = true;
    if (gs_fields_read(gs_gen_fields, chat ? GS_IN_CHAT : GS_IN_TEXT, root, p, e) != 0)
        return e->code;
    if (p->sampler.top_k < 0)
        p->sampler.top_k = 0;
    if (!chat && p->max_tokens < 0)
        p->max_tokens = 16; /* OpenAI's default for completions */
    if (chat && read_chat_logprobs(root, p, e) != 0)
        return e->code;
    if (read_rest(root, n_vocab, p, e) != 0)
        return e->code;
    if (gs_params_read_output(root, p, e) != 0)
        return e->code;
    if (!p->has_seed)
        return gs_random_bytes(&p->sampler.seed, sizeof(p->sampler.seed)) == 0
                   ? 0
                   : gs_api_fail(e, GS_ERR_INTERNAL, NULL, "No random numbers to be had.");
    return 0;
}

void gs_gen_params_deinit(gs_gen_params *p) {
    json_decref(p->tools);
    json_decref(p->template_vars);
    gs_free(p->constraint.text);
    p->tools = p->template_vars = NULL;
    p->constraint = (gs_constraint){0};
}
