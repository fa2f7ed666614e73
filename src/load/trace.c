#include "load/trace.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>
#include <xxhash.h>

#include "base/err.h"
#include "base/jsonw.h"
#include "base/sys.h"
#include "load/number.h"

#define MAX_TOKENS  1000000
#define MAX_SECONDS (400.0 * 86400.0)
#define MAX_BLOCKS  65536
#define MAX_HASH    9007199254740991.0 /* 2^53 - 1: exact in every JSON reader */
#define HOME_SCOPE  1                  /* the home assistant's instructions are everybody's */

static const char *const api_names[GS_TRACE_API_COUNT] = {"chat", "completions", "embeddings"};

const char *gs_trace_api_name(gs_trace_api a) {
    return (int)a >= 0 && a < GS_TRACE_API_COUNT ? api_names[a] : "?";
}

void gs_trace_init(gs_trace *t) {
    *t = (gs_trace){.n_persons = 1};
}

void gs_trace_free(gs_trace *t) {
    for (int32_t i = 0; i < t->n; i++) {
        gs_free(t->requests[i].id);
        gs_free(t->requests[i].shared_prefix);
        gs_free(t->requests[i].conversation);
        gs_free(t->requests[i].blocks);
    }
    gs_free(t->requests);
    for (int32_t i = 0; i < t->n_persons; i++)
        gs_free(t->persons[i]);
    gs_trace_init(t);
}

int32_t gs_trace_person(gs_trace *t, const char *name) {
    for (int32_t i = 1; i < t->n_persons; i++)
        if (strcmp(t->persons[i], name) == 0)
            return i;
    if (t->n_persons >= GS_TRACE_PERSONS)
        return -1;
    t->persons[t->n_persons] = gs_strdup(name);
    return t->persons[t->n_persons] ? t->n_persons++ : -1;
}

/* One more request without an id. */
static gs_trace_request *push(gs_trace *t) {
    if (t->n == t->cap) {
        const int32_t cap = t->cap > 0 ? 2 * t->cap : 64;
        gs_trace_request *p = gs_realloc(t->requests, (size_t)cap * sizeof *p);
        if (!p)
            return NULL;
        t->requests = p;
        t->cap = cap;
    }
    gs_trace_request *q = &t->requests[t->n++];
    *q = (gs_trace_request){.after = -1, .stream = true, .cls = GS_CLASS_CHAT};
    return q;
}

gs_trace_request *gs_trace_add(gs_trace *t, const char *kind, int32_t number) {
    char id[64];
    gs_trace_request *q = t->n < GS_TRACE_REQUESTS ? push(t) : NULL;
    if (!q)
        return NULL;
    snprintf(id, sizeof id, "%s-%d", kind, number);
    q->id = gs_strdup(id);
    return q->id ? q : NULL;
}

double gs_trace_seconds(const gs_trace *t) {
    double most = 0.0;
    for (int32_t i = 0; i < t->n; i++)
        most = t->requests[i].t_s > most ? t->requests[i].t_s : most;
    return most;
}

void gs_trace_filter(gs_trace *t, const bool *keep) {
    int32_t n = 0;
    int32_t *moved = gs_array(t->n > 0 ? (size_t)t->n : 1, sizeof *moved);
    if (!moved)
        return;
    for (int32_t i = 0; i < t->n; i++) {
        gs_trace_request q = t->requests[i];
        moved[i] = keep[i] ? n : -1;
        if (!keep[i]) {
            gs_free(q.id);
            gs_free(q.shared_prefix);
            gs_free(q.conversation);
            gs_free(q.blocks);
            continue;
        }
        if (q.after >= 0)
            q.after = moved[q.after];
        t->requests[n++] = q;
    }
    t->n = n;
    gs_free(moved);
}

static bool clip(gs_trace_request *q, int32_t max_context) {
    if (q->n_prompt + q->n_output <= max_context)
        return false;
    if (q->turn > 0) {
        q->turn = 0;
        q->n_prompt -= q->n_prefix;
        q->n_prefix = 0;
    }
    if (q->n_output > max_context / 2)
        q->n_output = max_context / 2;
    if (q->n_prompt > max_context - q->n_output)
        q->n_prompt = max_context - q->n_output;
    if (q->n_prefix > q->n_prompt)
        q->n_prefix = q->n_prompt;
    return true;
}

int32_t gs_trace_clip(gs_trace *t, int32_t max_context) {
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) {
        gs_trace_request *q = &t->requests[i];
        if (q->turn > 0 && q->after >= 0) { /* what came before may have changed */
            const gs_trace_request *p = &t->requests[q->after];
            const int32_t fresh = q->n_prompt - q->n_prefix, before = p->n_prompt + p->n_output;
            if (q->n_prefix > before) {
                q->n_prefix = before;
                q->n_prompt = before + fresh;
            }
        }
        n += clip(q, max_context);
    }
    return n;
}

/* ---- reading ---------------------------------------------------------------------------------*/

/* Ids seen so far -> index: open addressing, at most half full. */
typedef struct ids {
    int32_t *slots; /* [mask + 1], -1: free */
    size_t mask;
} ids;

static int32_t *id_slot(const ids *d, const gs_trace *t, const char *id) {
    size_t i = (size_t)XXH64(id, strlen(id), 0) & d->mask;
    while (d->slots[i] >= 0 && strcmp(t->requests[d->slots[i]].id, id) != 0)
        i = (i + 1) & d->mask;
    return &d->slots[i];
}

static int read_lengths(const json_t *o, gs_trace_request *q, char *err, size_t errlen) {
    double prompt = 0, prefix = 0, output = 0, texts = 0;
    int rc = gs_json_number(o, "prompt_tokens", 1, MAX_TOKENS, &prompt, err, errlen);
    if (rc == 0)
        rc = gs_json_number_or(o, "prefix_tokens", 0, MAX_TOKENS, &prefix, err, errlen);
    if (rc == 0)
        rc = gs_json_number_or(o, "max_tokens", 0, MAX_TOKENS, &output, err, errlen);
    if (rc == 0)
        rc = gs_json_number_or(o, "texts", 1, 255, &texts, err, errlen);
    if (rc != 0)
        return rc;
    q->n_prompt = (int32_t)prompt;
    q->n_prefix = (int32_t)(prefix < prompt ? prefix : prompt);
    q->n_output = (int32_t)output;
    q->n_texts = (int32_t)texts;
    if (q->api == GS_TRACE_EMBEDDINGS && q->n_texts == 0)
        q->n_texts = 1;
    if (q->api != GS_TRACE_EMBEDDINGS && q->n_texts == 0 && q->n_output == 0)
        q->n_output = 1;
    return 0;
}

static int read_times(const json_t *o, gs_trace_request *q, char *err, size_t errlen) {
    int rc = gs_json_number(o, "t", 0, MAX_SECONDS, &q->t_s, err, errlen);
    if (rc == 0)
        rc = gs_json_number_or(o, "cancel_after", 0, MAX_SECONDS, &q->cancel_after_s, err, errlen);
    if (rc == 0)
        rc = gs_json_number_or(o, "deadline", 0, MAX_SECONDS, &q->deadline_s, err, errlen);
    return rc;
}

static int read_blocks(const json_t *o, gs_trace_request *q, char *err, size_t errlen) {
    const json_t *list = json_object_get(o, "blocks");
    double size = 0;
    if (!list || json_is_null(list))
        return 0;
    const int rc = gs_json_number(o, "block_tokens", 1, MAX_TOKENS, &size, err, errlen);
    if (rc != 0)
        return rc;
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || n > MAX_BLOCKS)
        return gs_fail(err, errlen, GS_ERR_INVALID, "\"blocks\" is no list, or too long");
    q->blocks = gs_array(n > 0 ? n : 1, sizeof *q->blocks);
    if (!q->blocks)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    q->block_tokens = (int32_t)size;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        const double x = json_is_number(v) ? json_number_value(v) : -1.0;
        if (!(x >= 0 && x <= MAX_HASH))
            return gs_fail(err, errlen, GS_ERR_INVALID, "\"blocks\" holds something else");
        q->blocks[q->n_blocks++] = (uint64_t)x;
    }
    return 0;
}

static int read_after(const json_t *o, const gs_trace *t, const ids *d, gs_trace_request *q,
                      char *err, size_t errlen) {
    const json_t *after = json_object_get(o, "after");
    if (!after || json_is_null(after))
        return 0;
    const char *id = json_string_value(json_object_get(after, "id"));
    q->after = id ? *id_slot(d, t, id) : -1;
    if (q->after < 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "\"after\" names no earlier request");
    return gs_json_number_or(after, "think", 0, MAX_SECONDS, &q->think_s, err, errlen);
}

static int read_names(const json_t *o, gs_trace *t, gs_trace_request *q, char *err, size_t errlen) {
    const char *person = json_string_value(json_object_get(o, "person"));
    const char *prefix = json_string_value(json_object_get(o, "shared_prefix"));
    const char *api = json_string_value(json_object_get(o, "api"));
    const json_t *talk = json_object_get(o, "conversation");
    const char *name = json_string_value(json_object_get(talk, "id"));
    const int c = gs_class_parse(json_string_value(json_object_get(o, "class")));
    double turn = 0;
    if (c < 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "\"class\" names no class");
    q->cls = (gs_class)c;
    q->name = person ? gs_trace_person(t, person) : -1;
    if (q->name < 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "\"person\" is missing, or one too many");
    q->api = GS_TRACE_API_COUNT;
    for (int i = 0; i < GS_TRACE_API_COUNT; i++)
        if (strcmp(api ? api : "chat", api_names[i]) == 0)
            q->api = (gs_trace_api)i;
    if (q->api == GS_TRACE_API_COUNT)
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "\"api\" is none of chat, completions, embeddings");
    const int rc = talk ? gs_json_number_or(talk, "turn", 0, MAX_TOKENS, &turn, err, errlen) : 0;
    q->turn = (int32_t)turn;
    q->stream = !json_is_false(json_object_get(o, "stream"));
    q->shared_prefix = prefix ? gs_strdup(prefix) : NULL;
    q->conversation = name ? gs_strdup(name) : NULL;
    if ((prefix && !q->shared_prefix) || (name && !q->conversation))
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    return rc;
}

static int read_line(const json_t *o, gs_trace *t, const ids *d, int line, char *err,
                     size_t errlen) {
    const char *id = json_string_value(json_object_get(o, "id"));
    char made[32];
    snprintf(made, sizeof made, "line-%d", line);
    gs_trace_request *q = push(t);
    if (q)
        q->id = gs_strdup(id ? id : made);
    if (!q || !q->id)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    int32_t *slot = id_slot(d, t, q->id);
    if (*slot >= 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "\"id\" stands twice");
    int rc = read_names(o, t, q, err, errlen);
    if (rc == 0)
        rc = read_lengths(o, q, err, errlen);
    if (rc == 0)
        rc = read_times(o, q, err, errlen);
    if (rc == 0)
        rc = read_after(o, t, d, q, err, errlen);
    if (rc == 0)
        rc = read_blocks(o, q, err, errlen);
    if (rc == 0)
        *slot = t->n - 1;
    return rc;
}

static int read_lines(const char *text, size_t n, gs_trace *t, const ids *d, char *err,
                      size_t errlen) {
    const char *at = text, *end = text + n;
    for (int line = 1; at < end; line++) {
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        const size_t len = (size_t)((nl ? nl : end) - at);
        char why[160] = "";
        json_error_t je;
        if (len > 0 && t->n >= GS_TRACE_REQUESTS)
            return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "too many requests");
        if (len > 0) {
            json_t *o = json_loadb(at, len, JSON_REJECT_DUPLICATES, &je);
            const int rc = json_is_object(o)
                               ? read_line(o, t, d, line, why, sizeof why)
                               : gs_fail(why, sizeof why, GS_ERR_FORMAT, "no JSON object");
            json_decref(o);
            if (rc != 0)
                return gs_fail(err, errlen, rc, "line %d: %s", line, why);
        }
        at = nl ? nl + 1 : end;
    }
    return 0;
}

int gs_trace_parse(const char *text, size_t n, gs_trace *t, char *err, size_t errlen) {
    size_t n_lines = 1, size = 16;
    gs_trace_init(t);
    for (size_t i = 0; i < n; i++)
        n_lines += text[i] == '\n';
    if (n_lines > GS_TRACE_REQUESTS)
        n_lines = GS_TRACE_REQUESTS;
    while (size < 2 * n_lines)
        size *= 2;
    const ids d = {gs_array(size, sizeof(int32_t)), size - 1};
    if (!d.slots)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    memset(d.slots, 0xff, size * sizeof *d.slots);
    const int rc = read_lines(text, n, t, &d, err, errlen);
    gs_free(d.slots);
    if (rc != 0)
        gs_trace_free(t);
    return rc;
}

int gs_trace_read(const char *path, gs_trace *t, char *err, size_t errlen) {
    const void *data = NULL;
    size_t size = 0;
    gs_trace_init(t);
    int rc = gs_map_file(path, &data, &size, err, errlen);
    if (rc != 0)
        return rc;
    rc = gs_trace_parse(data ? data : "", size, t, err, errlen);
    gs_unmap(data, size);
    return rc;
}

/* ---- writing ---------------------------------------------------------------------------------*/

static void put_text(gs_jsonw *w, const char *key, const char *s) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, s);
}

static void put_number(gs_jsonw *w, const char *key, double v, bool none) {
    gs_jsonw_key(w, key);
    if (none)
        gs_jsonw_null(w);
    else
        gs_jsonw_num(w, v);
}

static double thousandths(double s) {
    return round(s * 1000.0) / 1000.0;
}

static void write_links(gs_jsonw *w, const gs_trace *t, const gs_trace_request *q) {
    gs_jsonw_key(w, "conversation");
    if (q->conversation) {
        gs_jsonw_obj(w);
        put_text(w, "id", q->conversation);
        put_number(w, "turn", q->turn, false);
        gs_jsonw_end_obj(w);
    } else {
        gs_jsonw_null(w);
    }
    gs_jsonw_key(w, "after");
    if (q->after >= 0) {
        gs_jsonw_obj(w);
        put_text(w, "id", t->requests[q->after].id);
        put_number(w, "think", thousandths(q->think_s), false);
        gs_jsonw_end_obj(w);
    } else {
        gs_jsonw_null(w);
    }
    if (q->n_blocks == 0)
        return;
    put_number(w, "block_tokens", q->block_tokens, false);
    gs_jsonw_key(w, "blocks");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < q->n_blocks; i++)
        gs_jsonw_int(w, (int64_t)q->blocks[i]);
    gs_jsonw_end_arr(w);
}

int gs_trace_write(const gs_trace *t, gs_buf *out) {
    for (int32_t i = 0; i < t->n; i++) {
        const gs_trace_request *q = &t->requests[i];
        gs_jsonw w;
        gs_jsonw_init(&w, out);
        gs_jsonw_obj(&w);
        put_number(&w, "t", thousandths(q->t_s), false);
        put_text(&w, "id", q->id);
        put_text(&w, "person", q->name > 0 ? t->persons[q->name] : "nobody");
        put_text(&w, "class", gs_class_name(q->cls));
        put_text(&w, "api", gs_trace_api_name(q->api));
        put_number(&w, "prompt_tokens", q->n_prompt, false);
        put_number(&w, "prefix_tokens", q->n_prefix, false);
        put_text(&w, "shared_prefix", q->shared_prefix);
        put_number(&w, "max_tokens", q->n_output, false);
        gs_jsonw_key(&w, "stream");
        gs_jsonw_bool(&w, q->stream);
        put_number(&w, "texts", q->n_texts, q->n_texts == 0);
        put_number(&w, "cancel_after", thousandths(q->cancel_after_s), q->cancel_after_s <= 0);
        put_number(&w, "deadline", q->deadline_s, q->deadline_s <= 0);
        write_links(&w, t, q);
        gs_jsonw_end_obj(&w);
        gs_buf_char(out, '\n');
    }
    return out->failed ? GS_ERR_NOMEM : 0;
}

/* ---- for the simulator -----------------------------------------------------------------------*/

static int64_t to_ns(double seconds) {
    return (int64_t)(seconds * 1e9);
}

int gs_trace_to_sim(const gs_trace *t, double speed, bool own_scopes, gs_trace_sim *out) {
    *out = (gs_trace_sim){.n = t->n, .n_persons = (uint32_t)t->n_persons};
    out->requests = gs_calloc(t->n > 0 ? (size_t)t->n : 1, sizeof *out->requests);
    if (!out->requests)
        return GS_ERR_NOMEM;
    for (int32_t i = 0; i < t->n; i++) {
        const gs_trace_request *q = &t->requests[i];
        gs_sim_request *s = &out->requests[i];
        *s = (gs_sim_request){.t_ns = to_ns(q->t_s / speed),
                              .after = q->after,
                              .think_ns = to_ns(q->think_s / speed),
                              .person = (uint32_t)q->name,
                              .cls = q->cls,
                              .class_fixed = true,
                              .n_prompt = q->n_prompt,
                              .n_prefix = q->n_prefix,
                              .prefix_of = -1,
                              .n_output = q->n_texts > 0 ? 0 : q->n_output,
                              .n_texts = q->n_texts,
                              .cancel_after_ns = to_ns(q->cancel_after_s),
                              .deadline_ns = to_ns(q->deadline_s),
                              .blocks = q->blocks,
                              .n_blocks = q->n_texts > 0 ? 0 : q->n_blocks,
                              .block_tokens = q->block_tokens};
        s->scope = q->cls == GS_CLASS_VOICE && !own_scopes ? HOME_SCOPE : 100 + (uint64_t)s->person;
        /* Of a conversation the earlier turn is the prefix; an app's instructions have a name. */
        if (q->turn > 0 && q->after >= 0)
            s->prefix_of = q->after;
        else if (q->shared_prefix && q->n_prefix > 0)
            s->prefix_key = XXH64(q->shared_prefix, strlen(q->shared_prefix), 1);
    }
    return 0;
}

void gs_trace_sim_free(gs_trace_sim *s) {
    gs_free(s->requests);
    *s = (gs_trace_sim){0};
}
