/* Bodies of requests for vectors and scores -> token ids. */
#include <string.h>

#include "api/api_impl.h"
#include "api/embed.h"
#include "base/err.h"

#define AT(member) offsetof(gs_embed_params, member)
#define TEXT       "{'type':'string'}"
#define TOKEN_IDS  "{'type':'array','minItems':1,'items':{'type':'integer','minimum':0}}"
#define OLLAMA     (GS_IN_OLLAMA_EMBED | GS_IN_OLLAMA_OLD)

// clang-format off
static const gs_field option_fields[] = {
    GS_ROW("num_ctx", INT, OLLAMA, AT(num_ctx), 0, INT32_MAX, "Tokens of a text at most; 0: what the model takes, the default."),
    GS_ROWS_END};

const gs_field gs_embed_fields[] = {
    GS_ROW_JSON("model", 15, TEXT, "A name that /v1/models lists, with or without ':latest'. Absent: the model there is."),
    GS_ROW_NEEDED("input", GS_IN_EMBEDDINGS,
        "{'anyOf':[{'type':'string','minLength':1},"
        "{'type':'array','minItems':1,'maxItems':2048,'items':{'type':'string','minLength':1}},"
        TOKEN_IDS ",{'type':'array','minItems':1,'maxItems':2048,'items':" TOKEN_IDS "}]}",
        "A text, token ids, or up to 2048 of either; 300,000 tokens together."),
    GS_ROW_JSON("input", GS_IN_OLLAMA_EMBED,
        "{'anyOf':[{'type':'string'},{'type':'array','maxItems':2048,'items':{'type':'string','minLength':1}}]}",
        "A text, or up to 2048. Empty: an empty answer."),
    GS_ROW_JSON("prompt", GS_IN_OLLAMA_OLD, TEXT, "The text. Empty: an empty answer."),
    GS_ROW_JSON("encoding_format", GS_IN_EMBEDDINGS, "{'type':'string','enum':['float','base64']}",
        "float: arrays of numbers, the default. base64: 32-bit floats, little-endian."),
    GS_ROW("dimensions", INT, GS_IN_EMBEDDINGS | GS_IN_OLLAMA_EMBED, AT(dimensions), 1, 65536,
        "The first so many numbers of each vector, scaled to length 1. Default: all."),
    GS_ROW_NEEDED("query", GS_IN_RERANK, "{'type':'string','minLength':1}", "What is looked for."),
    GS_ROW_NEEDED("documents", GS_IN_RERANK,
        "{'type':'array','minItems':1,'maxItems':2048,'items':{'anyOf':[{'type':'string','minLength':1},"
        "{'type':'object','required':['text'],'properties':{'text':{'type':'string','minLength':1}}}]}}",
        "The texts to rank."),
    GS_ROW("top_n", INT, GS_IN_RERANK, AT(top_n), 1, INT32_MAX, "Only the best so many. Default: all."),
    GS_ROW("return_documents", BOOL, GS_IN_RERANK, AT(return_documents), 0, 0, "Return the texts, too. Default false."),
    GS_ROW("truncate", BOOL, OLLAMA | GS_IN_RERANK, AT(truncate), 0, 0,
        "Cut texts that are longer than the model takes; else they are an error. Default true."),
    GS_ROW_OBJECT("options", OLLAMA, option_fields, "num_ctx; others are ignored."),
    GS_ROW_JSON("keep_alive", OLLAMA, "{'anyOf':[{'type':'string'},{'type':'number'}]}",
        "How long the model stays in memory, as with /api/chat."),
    GS_ROW("user", TEXT, GS_IN_EMBEDDINGS | GS_IN_RERANK, AT(user), 0, sizeof(((gs_embed_params *)0)->user) - 1,
        "Names a person: on this machine's own addresses without keys, or from a trusted proxy."),
    GS_ROW_JSON("service_tier", GS_IN_EMBEDDINGS | GS_IN_RERANK, TEXT,
        "priority: the best class the key may use; anything else: the default class, background."),
    GS_ROWS_END};
// clang-format on

/* ---- Fields ---------------------------------------------------------------------------------- */

static int check_model(gs_req *r, const gs_backend_info *info) {
    const bool rank = r->dialect->embeds->rank;
    if (rank && info->pooling != GS_POOLING_RANK)
        return gs_api_fail(&r->error, GS_ERR_UNSUPPORTED, "model",
                           "The model '%.80s' does not rank texts: its pooling is '%s', not "
                           "'rank'.",
                           r->model, gs_pooling_name(info->pooling));
    if (!rank && info->pooling == GS_POOLING_NONE)
        return gs_api_fail(
            &r->error, GS_ERR_UNSUPPORTED, "model",
            "The model '%.80s' makes no embeddings: its file names no pooling, nor does "
            "model.pooling.",
            r->model);
    if (!rank && info->pooling == GS_POOLING_RANK)
        return gs_api_fail(&r->error, GS_ERR_UNSUPPORTED, "model",
                           "The model '%.80s' ranks texts (/v1/rerank); it makes no embeddings.",
                           r->model);
    if (r->e.dimensions > info->n_embd)
        return gs_api_fail(&r->error, GS_ERR_INVALID, "dimensions",
                           "'dimensions' must be between 1 and %d, which this model has.",
                           info->n_embd);
    return 0;
}

/* One text or many: what each shape of the field means. */
static int count_inputs(gs_req *r) {
    const gs_embed_form *form = r->dialect->embeds;
    const json_t *v = gs_given(r->body, form->input);
    const bool array = json_is_array(v);
    const bool one_of_ids = !form->rank && array && json_is_integer(json_array_get(v, 0));
    if (!v) {
        r->n_prompts = 0;
    } else if (json_typeof(v) == JSON_STRING && !form->rank) {
        r->n_prompts = json_string_length(v) > 0;
    } else if (array && json_array_size(v) <= GS_EMBED_MAX_INPUTS) {
        r->n_prompts = one_of_ids ? 1 : (int32_t)json_array_size(v);
    } else if (one_of_ids) {
        r->n_prompts = 1;
    } else if (array) {
        return gs_api_fail(&r->error, GS_ERR_INVALID, form->input,
                           "'%s' may hold at most %d texts; split the request.", form->input,
                           GS_EMBED_MAX_INPUTS);
    } else {
        return gs_api_fail(&r->error, GS_ERR_INVALID, form->input,
                           "'%s' must be a string or an array of strings.", form->input);
    }
    if (r->n_prompts == 0 && !form->may_be_empty)
        return gs_api_fail(&r->error, GS_ERR_INVALID, form->input, "'%s' is %s.", form->input,
                           v ? "empty" : "missing");
    return 0;
}

int gs_embed_read(gs_req *r) {
    const gs_embed_form *form = r->dialect->embeds;
    const json_t *format = gs_given(r->body, "encoding_format");
    const json_t *query = json_object_get(r->body, "query");
    gs_backend_info info = {0};
    if (r->m)
        gs_engine_lane_info(r->api->engine, r->m->lane, &info);
    r->p.n = 1;
    r->e.truncate = form->truncate;
    if (gs_fields_read(gs_embed_fields, form->where, r->body, &r->e, &r->error) != 0)
        return r->error.code;
    memcpy(r->p.user, r->e.user, sizeof(r->p.user));
    if ((form->where & GS_IN_EMBEDDINGS) && format) {
        const char *name = json_string_value(format);
        r->e.base64 = name && strcmp(name, "base64") == 0;
        if (!name || (!r->e.base64 && strcmp(name, "float") != 0))
            return gs_api_fail(&r->error, GS_ERR_INVALID, "encoding_format",
                               "'encoding_format' must be \"float\" or \"base64\".");
    }
    if (form->rank && json_string_length(query) == 0)
        return gs_api_fail(&r->error, GS_ERR_INVALID, "query",
                           "'query' must be a string that is not empty.");
    if (!r->m)
        return count_inputs(r);
    if (check_model(r, &info) != 0)
        return r->error.code;
    r->context = info.max_context;
    if (info.whole_prompts && info.max_batch_tokens < r->context)
        r->context = info.max_batch_tokens;
    if (r->e.num_ctx > 0 && r->e.num_ctx < r->context)
        r->context = r->e.num_ctx;
    return count_inputs(r);
}

/* ---- Texts -> ids ---------------------------------------------------------------------------- */

static int no_text(gs_req *r, int32_t i, const char *what) {
    const char *input = r->dialect->embeds->input;
    return gs_api_fail(&r->error, GS_ERR_INVALID, input, "'%s': text %d %s.", input, i, what);
}

static int put_ids(gs_req *r, int32_t i, const json_t *v) {
    const int32_t n_vocab = gs_tok_n_vocab(r->m->tokenizer);
    const size_t n = json_array_size(v);
    if (gs_ids_reserve(&r->prompts[i], n) != 0)
        return gs_api_fail(&r->error, GS_ERR_NOMEM, NULL, "Out of memory.");
    for (size_t k = 0; k < n; k++) {
        const json_t *id = json_array_get(v, k);
        if (json_typeof(id) != JSON_INTEGER || json_integer_value(id) < 0 ||
            json_integer_value(id) >= n_vocab)
            return gs_api_fail(&r->error, GS_ERR_INVALID, "input",
                               "'input' holds something that is no token id below %d.", n_vocab);
        gs_ids_push(&r->prompts[i], (int32_t)json_integer_value(id));
    }
    return 0;
}

static int encode(gs_req *r, const json_t *text, int flags, gs_ids *ids) {
    char err[256] = "";
    int rc = gs_tok_encode(r->m->tokenizer, json_string_value(text), json_string_length(text),
                           flags, ids, err, sizeof(err));
    if (rc != 0)
        gs_api_fail(&r->error, rc, r->dialect->embeds->input, "'%s': %s", r->dialect->embeds->input,
                    err[0] ? err : gs_err_text(rc));
    return rc;
}

/* The text's ids after what *out holds already: the second of a pair brings no first token of its
 * own, which would say that the pair begins anew. */
static int put_text(gs_req *r, const json_t *text, gs_ids *out) {
    const gs_tokenizer *t = r->m->tokenizer;
    const size_t from = out->len;
    int rc = encode(r, text, GS_TOK_ADD_SPECIAL, out);
    if (rc == 0 && from > 0 && out->len > from && out->data[from] == gs_tok_bos(t)) {
        memmove(out->data + from, out->data + from + 1, (out->len - from - 1) * sizeof(*out->data));
        out->len--;
    }
    return rc;
}

static int put_pair(gs_req *r, int32_t i, const json_t *query, const json_t *document) {
    const json_t *text = json_is_object(document) ? json_object_get(document, "text") : document;
    if (!json_is_string(text))
        return no_text(r, i, "must be a string, or an object with 'text'");
    int rc = put_text(r, query, &r->prompts[i]);
    return rc == 0 ? put_text(r, text, &r->prompts[i]) : rc;
}

/* Cuts a text to what the model takes; the control token that ends it stays its end. */
static int cut(gs_req *r, int32_t i) {
    gs_ids *ids = &r->prompts[i];
    const size_t most = (size_t)r->context;
    if (ids->len <= most)
        return 0;
    if (!r->e.truncate) {
        gs_api_fail(&r->error, GS_ERR_CONTEXT, r->dialect->embeds->input,
                    "'%s': text %d has %zu tokens; this model takes %d.", r->dialect->embeds->input,
                    i, ids->len, r->context);
        r->error.name = "context_length_exceeded";
        return r->error.code;
    }
    const int32_t last = ids->data[ids->len - 1];
    ids->len = most;
    if (gs_tok_is_control(r->m->tokenizer, last))
        ids->data[most - 1] = last;
    return 0;
}

static int prepare_one(gs_req *r, int32_t i, const json_t *v, const json_t *query) {
    int rc;
    if (!r->m) /* another machine counts its tokens */
        return json_string_length(v) > 0 ? 0 : no_text(r, i, "must be a string that is not empty");
    if (query)
        rc = put_pair(r, i, query, v);
    else if (json_is_string(v) && json_string_length(v) > 0)
        rc = encode(r, v, GS_TOK_ADD_SPECIAL, &r->prompts[i]);
    else if (json_is_array(v) && (r->dialect->embeds->where & GS_IN_EMBEDDINGS))
        rc = put_ids(r, i, v);
    else
        rc = no_text(r, i, json_is_string(v) ? "is empty" : "must be a string");
    if (rc == 0 && r->prompts[i].len == 0)
        rc = no_text(r, i, "is empty");
    return rc == 0 ? cut(r, i) : rc;
}

int gs_embed_prepare(gs_req *r) {
    const gs_embed_form *form = r->dialect->embeds;
    const json_t *v = json_object_get(r->body, form->input);
    const json_t *query = form->rank ? json_object_get(r->body, "query") : NULL;
    const bool many = json_is_array(v) && !json_is_integer(json_array_get(v, 0));
    size_t n_tokens = 0;
    for (int32_t i = 0; i < r->n_prompts; i++) {
        if (prepare_one(r, i, many ? json_array_get(v, (size_t)i) : v, query) != 0)
            return r->error.code;
        n_tokens += r->prompts[i].len;
        if (n_tokens > GS_EMBED_MAX_TOKENS)
            return gs_api_fail(&r->error, GS_ERR_INVALID, form->input,
                               "'%s' has more than %d tokens together; split the request.",
                               form->input, GS_EMBED_MAX_TOKENS);
    }
    return 0;
}
