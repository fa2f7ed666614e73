/* How requests for vectors and scores are answered, in each dialect; their routes. */
#include "api/embed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"
#include "api/ollama.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"

/* ---- Numbers ----------------------------------------------------------------------------------*/

/* Nine decimals of a number in [-1, 1]: beyond what a float of a vector of length 1 holds. Half a
 * million of them are one answer, so no printf. */
static void put_unit(gs_buf *out, float v) {
    char text[16];
    int n = 0;
    long scaled = lround(fabs((double)v) * 1e9);
    if (scaled == 0) {
        gs_buf_char(out, '0');
        return;
    }
    int digits = 9;
    for (; scaled % 10 == 0; digits--)
        scaled /= 10;
    for (; digits > 0; digits--, scaled /= 10)
        text[n++] = (char)('0' + scaled % 10);
    if (n > 0)
        text[n++] = '.';
    text[n++] = (char)('0' + scaled);
    if (v < 0)
        text[n++] = '-';
    for (; n > 0; n--)
        gs_buf_char(out, text[n - 1]);
}

static void put_floats(gs_buf *out, const float *v, int32_t n) {
    gs_buf_char(out, '[');
    for (int32_t i = 0; i < n; i++) {
        if (i > 0)
            gs_buf_char(out, ',');
        put_unit(out, v[i]);
    }
    gs_buf_char(out, ']');
}

/* As a JSON string: RFC 4648 over 32-bit floats, least significant byte first. */
static void put_base64(gs_buf *out, const float *v, int32_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    int n_bits = 0;
    size_t n_chars = 0;
    gs_buf_char(out, '"');
    for (int32_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, &v[i], sizeof(word));
        for (int byte = 0; byte < 4; byte++) {
            bits = bits << 8 | (word >> (8 * byte) & 0xff);
            for (n_bits += 8; n_bits >= 6; n_bits -= 6, n_chars++)
                gs_buf_char(out, digits[bits >> (n_bits - 6) & 63]);
        }
    }
    if (n_bits > 0) {
        gs_buf_char(out, digits[bits << (6 - n_bits) & 63]);
        n_chars++;
    }
    for (; n_chars % 4 != 0; n_chars++)
        gs_buf_char(out, '=');
    gs_buf_char(out, '"');
}

int gs_embed_take(const gs_req *r, gs_choice *c, float *v, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return GS_ERR_BACKEND;
    if (r->dialect->embeds->rank) {
        c->score = v[0];
        return 0;
    }
    if (r->e.dimensions > 0 && r->e.dimensions < n) { /* Matryoshka: a beginning is a vector, too */
        n = r->e.dimensions;
        gs_embed_finish(GS_POOLING_CLS, v, n, 1);
    }
    if (r->e.base64)
        put_base64(&c->text, v, n);
    else
        put_floats(&c->text, v, n);
    return c->text.failed ? GS_ERR_NOMEM : 0;
}

/* ---- Answers ----------------------------------------------------------------------------------*/

static void key_str(gs_jsonw *w, const char *key, const char *value) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, value);
}

static void key_int(gs_jsonw *w, const char *key, int64_t value) {
    gs_jsonw_key(w, key);
    gs_jsonw_int(w, value);
}

static int64_t n_tokens(const gs_req *r) {
    int64_t n = 0;
    for (int32_t i = 0; i < r->n_prompts; i++)
        n += gs_req_n_prompt(r, i);
    return n;
}

static void usage(gs_jsonw *w, const gs_req *r) {
    gs_jsonw_key(w, "usage");
    gs_jsonw_obj(w);
    key_int(w, "prompt_tokens", n_tokens(r));
    key_int(w, "total_tokens", n_tokens(r));
    gs_jsonw_end_obj(w);
}

static void openai_whole(gs_req *r, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    key_str(&w, "object", "list");
    gs_jsonw_key(&w, "data");
    gs_jsonw_arr(&w);
    for (int32_t i = 0; i < r->n_choices; i++) {
        gs_jsonw_obj(&w);
        key_str(&w, "object", "embedding");
        key_int(&w, "index", i);
        gs_jsonw_key(&w, "embedding");
        gs_jsonw_raw(&w, r->choices[i].text.data, r->choices[i].text.len);
        gs_jsonw_end_obj(&w);
    }
    gs_jsonw_end_arr(&w);
    key_str(&w, "model", r->model);
    usage(&w, r);
    gs_jsonw_end_obj(&w);
}

/* As asked for: clients compare. */
static void ollama_model(gs_jsonw *w, const gs_req *r) {
    key_str(w, "model", r->asked_model[0] ? r->asked_model : r->model);
}

static void ollama_whole(gs_req *r, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    ollama_model(&w, r);
    gs_jsonw_key(&w, "embeddings");
    gs_jsonw_arr(&w);
    for (int32_t i = 0; i < r->n_choices; i++)
        gs_jsonw_raw(&w, r->choices[i].text.data, r->choices[i].text.len);
    gs_jsonw_end_arr(&w);
    key_int(&w, "total_duration", gs_now_ns() - r->began_ns);
    key_int(&w, "load_duration", r->submitted_ns ? r->submitted_ns - r->began_ns : 0);
    key_int(&w, "prompt_eval_count", n_tokens(r));
    gs_jsonw_end_obj(&w);
}

static void ollama_old_whole(gs_req *r, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "embedding");
    if (r->n_choices > 0)
        gs_jsonw_raw(&w, r->choices[0].text.data, r->choices[0].text.len);
    else
        gs_jsonw_raw(&w, "[]", 2);
    gs_jsonw_end_obj(&w);
}

static int by_score(const void *a, const void *b) {
    const gs_choice *x = *(const gs_choice *const *)a, *y = *(const gs_choice *const *)b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->index - y->index;
}

static void rank_result(gs_jsonw *w, const gs_req *r, const gs_choice *c) {
    const json_t *document = json_array_get(r->note, (size_t)c->index);
    gs_jsonw_obj(w);
    key_int(w, "index", c->index);
    gs_jsonw_key(w, "relevance_score");
    gs_jsonw_num(w, 1.0 / (1.0 + exp(-(double)c->score))); /* a probability, as clients expect */
    if (r->e.return_documents) {
        if (json_is_object(document))
            document = json_object_get(document, "text");
        gs_jsonw_key(w, "document");
        gs_jsonw_obj(w);
        gs_jsonw_key(w, "text");
        gs_jsonw_strn(w, json_string_value(document), json_string_length(document));
        gs_jsonw_end_obj(w);
    }
    gs_jsonw_end_obj(w);
}

static void rank_whole(gs_req *r, gs_buf *out) {
    const int32_t n = r->e.top_n > 0 && r->e.top_n < r->n_choices ? r->e.top_n : r->n_choices;
    const gs_choice **order = gs_array((size_t)r->n_choices, sizeof(*order));
    gs_jsonw w;
    if (!order) {
        out->failed = true;
        return;
    }
    for (int32_t i = 0; i < r->n_choices; i++)
        order[i] = &r->choices[i];
    qsort(order, (size_t)r->n_choices, sizeof(*order), by_score);
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    key_str(&w, "id", r->id);
    key_str(&w, "model", r->model);
    gs_jsonw_key(&w, "results");
    gs_jsonw_arr(&w);
    for (int32_t i = 0; i < n; i++)
        rank_result(&w, r, order[i]);
    gs_jsonw_end_arr(&w);
    usage(&w, r);
    gs_jsonw_end_obj(&w);
    gs_free(order);
}

/* ---- Dialects and routes ----------------------------------------------------------------------*/

static const gs_embed_form openai_form = {.where = GS_IN_EMBEDDINGS, .input = "input"};
static const gs_embed_form ollama_form = {
    .where = GS_IN_OLLAMA_EMBED, .input = "input", .truncate = true, .may_be_empty = true};
static const gs_embed_form ollama_old_form = {
    .where = GS_IN_OLLAMA_OLD, .input = "prompt", .truncate = true, .may_be_empty = true};
static const gs_embed_form rank_form = {
    .where = GS_IN_RERANK, .input = "documents", .rank = true, .truncate = true};

#define JSON_TYPE "application/json"
const gs_dialect gs_dialect_embeddings = {
    .id_prefix = "embd-", .whole_type = JSON_TYPE, .whole = openai_whole, .embeds = &openai_form};
static const gs_dialect ollama_dialect = {
    .id_prefix = "embd-", .whole_type = JSON_TYPE, .whole = ollama_whole, .embeds = &ollama_form};
static const gs_dialect ollama_old_dialect = {.id_prefix = "embd-",
                                              .whole_type = JSON_TYPE,
                                              .whole = ollama_old_whole,
                                              .embeds = &ollama_old_form};
static const gs_dialect rank_dialect = {
    .id_prefix = "rank-", .whole_type = JSON_TYPE, .whole = rank_whole, .embeds = &rank_form};

static void post_embeddings(gs_api *a, gs_http_request *rq, json_t *body) {
    gs_api_start(a, rq, body, NULL, &gs_dialect_embeddings, false);
}

static void answer_ollama(gs_api *a, gs_http_request *rq, json_t *body, const gs_dialect *d) {
    gs_api_error e = {0};
    size_t body_bytes;
    int64_t keep_ns;
    gs_http_body(rq, &body_bytes);
    if (gs_ollama_keep_alive(body, &keep_ns, &e) == 0) {
        gs_model_entry *m = gs_models_of_body(a, body);
        if (m && keep_ns != GS_OLLAMA_KEEP_UNSAID)
            gs_models_keep(m, keep_ns);
        gs_api_start(a, rq, body, NULL, d, false);
        return;
    }
    gs_api_discard(a, body, body_bytes);
    gs_api_reply_error(rq, &e);
}

static void post_embed(gs_api *a, gs_http_request *rq, json_t *body) {
    answer_ollama(a, rq, body, &ollama_dialect);
}

static void post_embed_old(gs_api *a, gs_http_request *rq, json_t *body) {
    answer_ollama(a, rq, body, &ollama_old_dialect);
}

/* Texts that are to be returned outlive the body. */
static void post_rerank(gs_api *a, gs_http_request *rq, json_t *body) {
    json_t *note = NULL;
    if (json_is_true(json_object_get(body, "return_documents")))
        note = json_deep_copy(json_object_get(body, "documents"));
    gs_api_start(a, rq, body, note, &rank_dialect, false);
}

#define FLAGS (GS_ROUTE_GENERATES)

// clang-format off
static const gs_route routes[] = {
    {"POST", "/v1/embeddings", FLAGS, post_embeddings, "A vector for each text",
     .fields = gs_embed_fields, .where = GS_IN_EMBEDDINGS, .answer = "Embeddings"},
    {"POST", "/api/embed", FLAGS | GS_ROUTE_ANY_TYPE, post_embed, "A vector for each text",
     .fields = gs_embed_fields, .where = GS_IN_OLLAMA_EMBED, .answer = "OllamaEmbeddings"},
    {"POST", "/api/embeddings", FLAGS | GS_ROUTE_ANY_TYPE, post_embed_old, "A vector for one text",
     .fields = gs_embed_fields, .where = GS_IN_OLLAMA_OLD, .answer = "OllamaEmbedding"},
    {"POST", "/v1/rerank", FLAGS, post_rerank, "Texts by how well they fit a query",
     .fields = gs_embed_fields, .where = GS_IN_RERANK, .answer = "Ranking"},
    {"POST", "/rerank", FLAGS, post_rerank, "Texts by how well they fit a query",
     .fields = gs_embed_fields, .where = GS_IN_RERANK, .answer = "Ranking"},
    {.path = NULL},
};

#define TEXT    "{'type':'string'}"
#define COUNT   "{'type':'integer','minimum':0}"
#define NUMBERS "{'type':'array','items':{'type':'number'}}"
#define USAGE   "{'type':'object','required':['prompt_tokens','total_tokens'],'properties':{'prompt_tokens':" COUNT ",'total_tokens':" COUNT "}}"

static const gs_schema schemas[] = {
    {"Embeddings",
     "{'type':'object','required':['object','data','model','usage'],'properties':{"
     "'object':{'const':'list'},'model':" TEXT ",'usage':" USAGE ","
     "'data':{'type':'array','items':{'type':'object','required':['object','index','embedding'],"
     "'properties':{'object':{'const':'embedding'},'index':" COUNT ","
     "'embedding':{'anyOf':[" NUMBERS "," TEXT "]}}}}}}"},
    {"OllamaEmbeddings",
     "{'type':'object','required':['model','embeddings'],'properties':{'model':" TEXT ","
     "'embeddings':{'type':'array','items':" NUMBERS "},'total_duration':" COUNT ","
     "'load_duration':" COUNT ",'prompt_eval_count':" COUNT "}}"},
    {"OllamaEmbedding",
     "{'type':'object','required':['embedding'],'properties':{'embedding':" NUMBERS "}}"},
    {"Ranking",
     "{'type':'object','required':['id','model','results','usage'],'properties':{'id':" TEXT ","
     "'model':" TEXT ",'usage':" USAGE ",'results':{'type':'array','items':{'type':'object',"
     "'required':['index','relevance_score'],'properties':{'index':" COUNT ","
     "'relevance_score':{'type':'number','minimum':0,'maximum':1},"
     "'document':{'type':'object','required':['text'],'properties':{'text':" TEXT "}}}}}}}"},
    {NULL, NULL},
};
// clang-format on

const gs_api_part gs_api_part_embeddings = {"embeddings", "Vectors and scores of texts.", routes,
                                            schemas};
