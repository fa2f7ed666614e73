#include "cli/replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>
#include <uv.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/jsonw.h"
#include "base/sys.h"
#include "base/thread.h"
#include "http/client.h"
#include "load/prompt.h"

#define ASK_TIMEOUT_MS 60000 /* of a question before the run */
#define MAX_LINE       (1 << 20)

typedef struct replay replay;

/* One request of the trace. */
typedef struct play {
    replay *x;
    int32_t i;
    int32_t first_child, sibling; /* who waits for its end */
    bool started, ended, timers;
    gs_load_record r;
    uv_timer_t due, limit;
    gs_http_fetch *fetch;
    gs_buf messages; /* of a conversation: the messages so far, as members of a JSON array */
    gs_buf body, line, answer;
    double last_s;
    bool complete;
} play;

struct replay {
    const gs_trace *t;
    const gs_replay_config *c;
    uv_loop_t loop;
    gs_http_url url, embeddings_url;
    char model[256], path[600];
    gs_prompts prompts;
    play *plays; /* [n] */
    int64_t began_ns;
    int32_t n_started, n_ended, n_errors;
    uv_timer_t end, progress;
    bool over;
};

void gs_replay_defaults(gs_replay_config *c) {
    *c = (gs_replay_config){.speed = 1.0, .timeout_s = 300.0};
}

static double now_s(const replay *x) {
    return (double)(gs_now_ns() - x->began_ns) / 1e9;
}

static const gs_trace_request *request_of(const play *p) {
    return &p->x->t->requests[p->i];
}

/* ---- bodies ----------------------------------------------------------------------------------*/

static void put_text(gs_jsonw *w, const char *key, const char *s) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, s);
}

static void put_message(gs_buf *out, const char *role, const gs_buf *text) {
    gs_jsonw w;
    if (out->len > 0)
        gs_buf_char(out, ',');
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    put_text(&w, "role", role);
    gs_jsonw_key(&w, "content");
    gs_jsonw_strn(&w, text->data ? text->data : "", text->len);
    gs_jsonw_end_obj(&w);
}

static void write_messages(play *p) {
    const gs_trace_request *q = request_of(p);
    gs_buf text = {0};
    if (q->turn > 0 && q->after >= 0) {
        const gs_buf *before = &p->x->plays[q->after].messages;
        gs_buf_add(&p->messages, before->data, before->len);
    } else if (q->n_prefix > 0 && q->n_blocks == 0) {
        gs_prompt_prefix(&p->x->prompts, q, &text);
        put_message(&p->messages, "system", &text);
        gs_buf_clear(&text);
    }
    if (q->n_blocks > 0)
        gs_prompt_blocks(&p->x->prompts, q, &text);
    else
        gs_prompt_new(&p->x->prompts, q, &text);
    put_message(&p->messages, "user", &text);
    gs_buf_deinit(&text);
}

static void write_prompt(play *p, gs_jsonw *w) {
    const gs_trace_request *q = request_of(p);
    gs_buf text = {0};
    if (q->n_blocks > 0) {
        gs_prompt_blocks(&p->x->prompts, q, &text);
    } else {
        gs_prompt_prefix(&p->x->prompts, q, &text);
        if (text.len > 0)
            gs_buf_char(&text, ' ');
        gs_prompt_new(&p->x->prompts, q, &text);
    }
    gs_jsonw_key(w, "prompt");
    gs_jsonw_strn(w, text.data ? text.data : "", text.len);
    gs_buf_deinit(&text);
}

static void write_texts(play *p, gs_jsonw *w) {
    gs_buf text = {0};
    gs_jsonw_key(w, "input");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < request_of(p)->n_texts; i++) {
        gs_buf_clear(&text);
        gs_prompt_text(&p->x->prompts, request_of(p), i, &text);
        gs_jsonw_strn(w, text.data ? text.data : "", text.len);
    }
    gs_jsonw_end_arr(w);
    gs_buf_deinit(&text);
}

static void write_generation(play *p, gs_jsonw *w) {
    const gs_trace_request *q = request_of(p);
    gs_jsonw_key(w, "max_tokens");
    gs_jsonw_int(w, q->n_output);
    gs_jsonw_key(w, "temperature");
    gs_jsonw_int(w, 0);
    gs_jsonw_key(w, "stream");
    gs_jsonw_bool(w, q->stream);
    if (q->stream) {
        gs_jsonw_key(w, "stream_options");
        gs_jsonw_obj(w);
        gs_jsonw_key(w, "include_usage");
        gs_jsonw_bool(w, true);
        gs_jsonw_end_obj(w);
    }
    if (p->x->c->ignore_eos) {
        gs_jsonw_key(w, "ignore_eos");
        gs_jsonw_bool(w, true);
    }
    if (q->api == GS_TRACE_CHAT) {
        write_messages(p);
        gs_jsonw_key(w, "messages");
        gs_jsonw_arr(w);
        gs_jsonw_raw(w, p->messages.data, p->messages.len);
        gs_jsonw_end_arr(w);
    } else {
        write_prompt(p, w);
    }
}

static void write_body(play *p) {
    const gs_replay_config *c = p->x->c;
    const gs_trace_request *q = request_of(p);
    const bool embeddings = q->api == GS_TRACE_EMBEDDINGS;
    gs_jsonw w;
    gs_jsonw_init(&w, &p->body);
    gs_jsonw_obj(&w);
    put_text(&w, "model", embeddings && c->embeddings_model ? c->embeddings_model : p->x->model);
    if (c->class_field)
        put_text(&w, c->class_field, gs_class_name(q->cls));
    if (c->user_field)
        put_text(&w, "user", p->x->t->persons[q->name]);
    if (embeddings)
        write_texts(p, &w);
    else
        write_generation(p, &w);
    gs_jsonw_end_obj(&w);
}

static void write_headers(const play *p, char *out, size_t n) {
    const gs_replay_config *c = p->x->c;
    const gs_trace_request *q = request_of(p);
    char key[160] = "", cls[120] = "";
    if (c->key_per_person)
        snprintf(key, sizeof key, "Authorization: Bearer sk-family-%.80s\r\n",
                 p->x->t->persons[q->name]);
    else if (c->key)
        snprintf(key, sizeof key, "Authorization: Bearer %.120s\r\n", c->key);
    if (c->class_header)
        snprintf(cls, sizeof cls, "%.60s: %s\r\n", c->class_header, gs_class_name(q->cls));
    snprintf(out, n, "Content-Type: application/json\r\n%s%s", key, cls);
}

/* ---- the answer ------------------------------------------------------------------------------*/

static int32_t whole(const json_t *v) {
    const double x = json_number_value(v);
    return x > 0 && x < 1e9 ? (int32_t)x : 0;
}

static void note_usage(play *p, const json_t *usage) {
    p->r.usage = true;
    p->r.n_prompt = whole(json_object_get(usage, "prompt_tokens"));
    p->r.n_output = whole(json_object_get(usage, "completion_tokens"));
    p->r.n_cached =
        whole(json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

/* The text of a choice, streamed or whole, chat or plain, thinking included; how many bytes. */
static size_t add_choice_text(const json_t *choice, gs_buf *out) {
    static const char *const keys[] = {"reasoning_content", "reasoning", "content"};
    const json_t *m = json_object_get(choice, "delta");
    const size_t before = out->len;
    if (!m)
        m = json_object_get(choice, "message");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *s = json_string_value(json_object_get(m, keys[i]));
        if (s)
            gs_buf_str(out, s);
    }
    const char *s = json_string_value(json_object_get(choice, "text"));
    if (s)
        gs_buf_str(out, s);
    return out->len - before;
}

static void note_gap(gs_load_record *r, double s) {
    if (r->n_gaps == r->cap_gaps) {
        const int32_t cap = r->cap_gaps > 0 ? 2 * r->cap_gaps : 64;
        float *v = gs_realloc(r->gaps_s, (size_t)cap * sizeof *v);
        if (!v)
            return;
        r->gaps_s = v;
        r->cap_gaps = cap;
    }
    r->gaps_s[r->n_gaps++] = (float)s;
}

/* One event of the stream. False: the server reported an error in it. */
static bool note_event(play *p, const json_t *e, double t_s) {
    const json_t *choice = json_array_get(json_object_get(e, "choices"), 0);
    const json_t *usage = json_object_get(e, "usage");
    const json_t *error = json_object_get(e, "error");
    if (error && !json_is_null(error))
        return false;
    if (add_choice_text(choice, &p->answer) > 0) {
        if (p->r.first_s < 0)
            p->r.first_s = t_s;
        else
            note_gap(&p->r, t_s - p->last_s);
        p->last_s = t_s;
        p->r.n_output += !p->r.usage;
    }
    if (json_is_string(json_object_get(choice, "finish_reason")))
        p->complete = true;
    if (json_is_object(usage))
        note_usage(p, usage);
    return true;
}

/* One line of an event stream. False: no good. */
static bool note_line(play *p, const char *at, size_t n, double t_s) {
    json_error_t je;
    while (n > 0 && (at[n - 1] == '\r' || at[n - 1] == ' '))
        n--;
    if (n < 5 || memcmp(at, "data:", 5) != 0)
        return true;
    at += 5;
    n -= 5;
    while (n > 0 && *at == ' ') {
        at++;
        n--;
    }
    if (n == 6 && memcmp(at, "[DONE]", 6) == 0) {
        p->complete = true;
        return true;
    }
    json_t *e = json_loadb(at, n, 0, &je);
    const bool good = json_is_object(e) && note_event(p, e, t_s);
    json_decref(e);
    return good;
}

/* ---- life of a request -----------------------------------------------------------------------*/

static void start(play *p);

static void on_due(uv_timer_t *t) {
    start(t->data);
}

static void plan(play *p, double due_s) {
    p->r.due_s = due_s;
    if (p->x->over)
        return;
    if (!p->timers) {
        uv_timer_init(&p->x->loop, &p->due);
        uv_timer_init(&p->x->loop, &p->limit);
        p->due.data = p->limit.data = p;
        p->timers = true;
    }
    const double ms = ceil((due_s - now_s(p->x)) * 1e3);
    uv_update_time(&p->x->loop);
    uv_timer_start(&p->due, on_due, ms > 0 ? (uint64_t)ms : 0, 0);
}

static void finish(play *p, gs_load_status status) {
    replay *x = p->x;
    if (p->ended)
        return;
    p->ended = true;
    p->fetch = NULL;
    p->r.status = status;
    p->r.end_s = now_s(x);
    if (status == GS_LOAD_OK && p->r.first_s < 0)
        p->r.first_s = p->r.end_s;
    x->n_ended++;
    x->n_errors += status != GS_LOAD_OK && status != GS_LOAD_CANCELLED;
    uv_timer_stop(&p->due);
    uv_timer_stop(&p->limit);
    if (request_of(p)->conversation) {
        if (p->answer.len == 0)
            gs_buf_str(&p->answer, "...");
        put_message(&p->messages, "assistant", &p->answer);
    }
    gs_buf_deinit(&p->body);
    gs_buf_deinit(&p->line);
    gs_buf_deinit(&p->answer);
    for (int32_t c = p->first_child; c >= 0; c = x->plays[c].sibling)
        plan(&x->plays[c], p->r.end_s + x->t->requests[c].think_s / x->c->speed);
    if (x->n_ended == x->t->n) {
        x->over = true;
        uv_stop(&x->loop);
    }
}

static void on_head(void *user, int status) {
    play *p = user;
    p->r.http_status = status;
}

static void on_body(void *user, const char *data, size_t n) {
    play *p = user;
    const double t_s = now_s(p->x);
    gs_buf_add(&p->line, data, n);
    if (p->r.http_status != 200 || !request_of(p)->stream ||
        request_of(p)->api == GS_TRACE_EMBEDDINGS)
        return;
    size_t at = 0;
    while (at < p->line.len) {
        const char *nl = memchr(p->line.data + at, '\n', p->line.len - at);
        if (!nl)
            break;
        const size_t len = (size_t)(nl - (p->line.data + at));
        if (!note_line(p, p->line.data + at, len, t_s)) {
            gs_http_fetch_cancel(p->fetch);
            finish(p, GS_LOAD_ERROR);
            return;
        }
        at += len + 1;
    }
    gs_buf_drop_front(&p->line, at);
    if (p->line.len > MAX_LINE) {
        gs_http_fetch_cancel(p->fetch);
        finish(p, GS_LOAD_ERROR);
    }
}

static gs_load_status read_whole(play *p) {
    json_error_t je;
    json_t *o = json_loadb(p->line.data ? p->line.data : "", p->line.len, 0, &je);
    if (!json_is_object(o)) {
        json_decref(o);
        return GS_LOAD_ERROR;
    }
    const json_t *choices = json_object_get(o, "choices");
    if (json_is_object(json_object_get(o, "usage")))
        note_usage(p, json_object_get(o, "usage"));
    for (size_t i = 0; i < json_array_size(choices); i++)
        add_choice_text(json_array_get(choices, i), &p->answer);
    json_decref(o);
    p->r.first_s = now_s(p->x);
    return GS_LOAD_OK;
}

/* Comes again when the server said when. True: it will. */
static bool try_again(play *p) {
    const char *after = gs_http_fetch_header(p->fetch, "retry-after");
    char *rest;
    const double s = after ? strtod(after, &rest) : -1.0;
    if ((p->r.http_status != 429 && p->r.http_status != 503) || !(s >= 0 && s < 1e6) ||
        p->r.n_attempts > p->x->c->retries)
        return false;
    p->fetch = NULL;
    gs_buf_clear(&p->line);
    gs_buf_clear(&p->body);
    gs_buf_clear(&p->messages);
    uv_timer_stop(&p->limit);
    uv_timer_start(&p->due, on_due, (uint64_t)(s * 1e3), 0);
    return true;
}

static void on_end(void *user, int code) {
    play *p = user;
    const bool stream = request_of(p)->stream && request_of(p)->api != GS_TRACE_EMBEDDINGS;
    if (p->ended)
        return;
    if (p->r.http_status == 0) {
        finish(p, GS_LOAD_BROKEN);
    } else if (p->r.http_status != 200) {
        if (!try_again(p))
            finish(p, GS_LOAD_HTTP);
    } else if (!stream) {
        finish(p, code == 0 ? read_whole(p) : GS_LOAD_BROKEN);
    } else {
        finish(p, p->complete ? GS_LOAD_OK : GS_LOAD_BROKEN);
    }
}

static void on_limit(uv_timer_t *t) {
    play *p = t->data;
    const double cancel_s = request_of(p)->cancel_after_s;
    gs_http_fetch_cancel(p->fetch);
    finish(p, cancel_s > 0 && cancel_s <= p->x->c->timeout_s ? GS_LOAD_CANCELLED : GS_LOAD_TIMEOUT);
}

static void start(play *p) {
    static const char *const paths[GS_TRACE_API_COUNT] = {"/chat/completions", "/completions",
                                                          "/embeddings"};
    replay *x = p->x;
    const gs_trace_request *q = request_of(p);
    const gs_http_url *url = q->api == GS_TRACE_EMBEDDINGS ? &x->embeddings_url : &x->url;
    char headers[400], path[400];
    double limit_s = x->c->timeout_s;
    if (x->over)
        return;
    x->n_started += !p->started;
    p->started = true;
    p->r.n_attempts++;
    write_body(p);
    write_headers(p, headers, sizeof headers);
    snprintf(path, sizeof path, "%s%s", url->base, paths[q->api]);
    if (q->cancel_after_s > 0 && q->cancel_after_s < limit_s)
        limit_s = q->cancel_after_s;
    uv_update_time(&x->loop);
    uv_timer_start(&p->limit, on_limit, (uint64_t)ceil(limit_s * 1e3), 0);
    p->r.sent_s = now_s(x);
    p->fetch = gs_http_fetch_start(&x->loop, &(gs_http_fetch_config){.addr = &url->addr,
                                                                     .method = "POST",
                                                                     .host = url->host,
                                                                     .path = path,
                                                                     .headers = headers,
                                                                     .body = p->body.data,
                                                                     .n_body = p->body.len,
                                                                     .on_head = on_head,
                                                                     .on_body = on_body,
                                                                     .on_end = on_end,
                                                                     .user = p});
    gs_buf_deinit(&p->body);
    if (!p->fetch)
        finish(p, GS_LOAD_ERROR);
}

/* ---- questions before the run ----------------------------------------------------------------*/

typedef struct question {
    replay *x;
    gs_http_fetch *fetch;
    uv_timer_t limit;
    gs_buf answer;
    int status, code;
} question;

static void on_ask_head(void *user, int status) {
    ((question *)user)->status = status;
}

static void on_ask_body(void *user, const char *data, size_t n) {
    gs_buf_add(&((question *)user)->answer, data, n);
}

static void on_ask_end(void *user, int code) {
    question *k = user;
    k->code = code;
    k->fetch = NULL;
    uv_close((uv_handle_t *)&k->limit, NULL);
}

static void on_ask_limit(uv_timer_t *t) {
    question *k = t->data;
    gs_http_fetch_cancel(k->fetch);
    on_ask_end(k, GS_ERR_TIMEOUT);
}

/* One exchange to its end; the status, or 0: there was no answer. out is the caller's. */
static int ask(replay *x, const gs_http_url *url, const char *method, const char *path,
               const gs_buf *body, gs_buf *out) {
    question k = {.x = x};
    char headers[300];
    snprintf(headers, sizeof headers, "Content-Type: application/json\r\n%s%.160s%s",
             x->c->key ? "Authorization: Bearer " : "", x->c->key ? x->c->key : "",
             x->c->key ? "\r\n" : "");
    uv_timer_init(&x->loop, &k.limit);
    k.limit.data = &k;
    uv_timer_start(&k.limit, on_ask_limit, ASK_TIMEOUT_MS, 0);
    k.fetch =
        gs_http_fetch_start(&x->loop, &(gs_http_fetch_config){.addr = &url->addr,
                                                              .method = method,
                                                              .host = url->host,
                                                              .path = path,
                                                              .headers = headers,
                                                              .body = body ? body->data : NULL,
                                                              .n_body = body ? body->len : 0,
                                                              .on_head = on_ask_head,
                                                              .on_body = on_ask_body,
                                                              .on_end = on_ask_end,
                                                              .user = &k});
    if (!k.fetch)
        on_ask_end(&k, GS_ERR_IO);
    uv_run(&x->loop, UV_RUN_DEFAULT);
    *out = k.answer;
    return k.code == 0 ? k.status : 0;
}

static int find_model(replay *x, char *err, size_t errlen) {
    char path[300];
    json_error_t je;
    gs_buf answer = {0};
    snprintf(path, sizeof path, "%s/models", x->url.base);
    const int status = ask(x, &x->url, "GET", path, NULL, &answer);
    json_t *o = json_loadb(answer.data ? answer.data : "", answer.len, 0, &je);
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
    snprintf(x->model, sizeof x->model, "%s", x->c->model ? x->c->model : id ? id : "");
    json_decref(o);
    gs_buf_deinit(&answer);
    if (status == 0)
        return gs_fail(err, errlen, GS_ERR_IO, "%s does not answer", x->c->url);
    if (!x->model[0])
        return gs_fail(err, errlen, GS_ERR_NOT_FOUND,
                       "%s%s lists no model (status %d); name one with --model", x->url.host, path,
                       status);
    return 0;
}

/* With the server's own tokeniser where it has one (gamasot, llama-server, vLLM). */
static void measure_words(replay *x) {
    enum { N = 1000 };
    char path[300];
    json_error_t je;
    gs_buf text = {0}, body = {0}, answer = {0};
    gs_jsonw w;
    size_t base = strlen(x->url.base);
    x->prompts = (gs_prompts){x->c->tokens_per_word > 0 ? x->c->tokens_per_word : 1.0, x->c->salt};
    if (x->c->tokens_per_word > 0)
        return;
    if (base >= 3 && strcmp(x->url.base + base - 3, "/v1") == 0)
        base -= 3;
    snprintf(path, sizeof path, "%.*s/tokenize", (int)base, x->url.base);
    gs_prompt_words(1, N, &text);
    gs_jsonw_init(&w, &body);
    gs_jsonw_obj(&w);
    put_text(&w, "model", x->model);
    put_text(&w, "content", gs_buf_cstr(&text));
    put_text(&w, "prompt", gs_buf_cstr(&text));
    gs_jsonw_end_obj(&w);
    if (ask(x, &x->url, "POST", path, &body, &answer) == 200) {
        json_t *o = json_loadb(answer.data ? answer.data : "", answer.len, 0, &je);
        const size_t n = json_array_size(json_object_get(o, "tokens"));
        if (n >= N / 4 && n <= (size_t)N * 8)
            x->prompts.tokens_per_word = (double)n / N;
        json_decref(o);
    }
    gs_buf_deinit(&text);
    gs_buf_deinit(&body);
    gs_buf_deinit(&answer);
}

/* One tiny request of each kind in the trace, so that the first ones do not pay for a cold start.
 */
static void warm_up(replay *x) {
    static const char *const paths[GS_TRACE_API_COUNT] = {"/chat/completions", "/completions",
                                                          "/embeddings"};
    static const char *const bodies[GS_TRACE_API_COUNT] = {
        "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"max_tokens\":2",
        "\"prompt\":\"hello\",\"max_tokens\":2", "\"input\":[\"hello\"]"};
    bool wanted[GS_TRACE_API_COUNT] = {false};
    for (int32_t i = 0; i < x->t->n; i++)
        wanted[x->t->requests[i].api] = true;
    for (int a = 0; a < GS_TRACE_API_COUNT && !x->c->no_warm_up; a++) {
        const gs_http_url *url = a == GS_TRACE_EMBEDDINGS ? &x->embeddings_url : &x->url;
        gs_buf body = {0}, answer = {0};
        char path[300];
        if (!wanted[a])
            continue;
        gs_buf_printf(&body, "{\"model\":\"%s\",%s}",
                      a == GS_TRACE_EMBEDDINGS && x->c->embeddings_model ? x->c->embeddings_model
                                                                         : x->model,
                      bodies[a]);
        snprintf(path, sizeof path, "%s%s", url->base, paths[a]);
        const int status = ask(x, url, "POST", path, &body, &answer);
        if (status != 200)
            fprintf(stderr, "warning: %s answers the warm-up with status %d\n", path, status);
        gs_buf_deinit(&body);
        gs_buf_deinit(&answer);
    }
}

/* ---- the run ---------------------------------------------------------------------------------*/

static void on_time_limit(uv_timer_t *t) {
    replay *x = t->data;
    x->over = true;
    uv_stop(&x->loop);
}

static void on_progress(uv_timer_t *t) {
    const replay *x = t->data;
    fprintf(stderr, "\r%7.1f s: %d of %d done, %d under way, %d errors ", now_s(x), x->n_ended,
            x->t->n, x->n_started - x->n_ended, x->n_errors);
}

static bool is_repeated(const gs_trace *t, int32_t i) {
    for (int32_t k = 0; k < i; k++)
        if (t->requests[k].name == t->requests[i].name && t->requests[k].shared_prefix &&
            strcmp(t->requests[k].shared_prefix, t->requests[i].shared_prefix) == 0)
            return true;
    return false;
}

/* As on a server that has been up since yesterday: an app's instructions are in the cache. */
static void warm_prefixes(replay *x) {
    for (int32_t i = 0; i < x->t->n; i++) {
        const gs_trace_request *q = &x->t->requests[i];
        gs_buf text = {0}, body = {0}, answer = {0};
        gs_jsonw w;
        char path[300];
        if (q->turn > 0 || !q->shared_prefix || q->n_prefix == 0 || q->n_blocks > 0 ||
            q->api != GS_TRACE_CHAT || is_repeated(x->t, i))
            continue;
        gs_prompt_prefix(&x->prompts, q, &text);
        gs_jsonw_init(&w, &body);
        gs_jsonw_obj(&w);
        put_text(&w, "model", x->model);
        if (x->c->user_field)
            put_text(&w, "user", x->t->persons[q->name]);
        gs_jsonw_key(&w, "max_tokens");
        gs_jsonw_int(&w, 1);
        gs_jsonw_key(&w, "messages");
        gs_jsonw_arr(&w);
        for (int k = 0; k < 2; k++) {
            gs_jsonw_obj(&w);
            put_text(&w, "role", k == 0 ? "system" : "user");
            put_text(&w, "content", k == 0 ? gs_buf_cstr(&text) : "hello");
            gs_jsonw_end_obj(&w);
        }
        gs_jsonw_end_arr(&w);
        gs_jsonw_end_obj(&w);
        snprintf(path, sizeof path, "%s/chat/completions", x->url.base);
        ask(x, &x->url, "POST", path, &body, &answer);
        gs_buf_deinit(&text);
        gs_buf_deinit(&body);
        gs_buf_deinit(&answer);
    }
}

static int prepare(replay *x, char *err, size_t errlen) {
    int rc = gs_http_url_parse(&x->loop, x->c->url, &x->url, err, errlen);
    if (rc == 0)
        rc = gs_http_url_parse(&x->loop, x->c->embeddings_url ? x->c->embeddings_url : x->c->url,
                               &x->embeddings_url, err, errlen);
    if (rc != 0)
        return rc;
    if (!x->url.base[0])
        snprintf(x->url.base, sizeof x->url.base, "/v1");
    if (!x->embeddings_url.base[0])
        snprintf(x->embeddings_url.base, sizeof x->embeddings_url.base, "/v1");
    rc = find_model(x, err, errlen);
    if (rc != 0)
        return rc;
    measure_words(x);
    warm_up(x);
    if (x->c->warm_prefixes)
        warm_prefixes(x);
    return 0;
}

static void begin(replay *x) {
    for (int32_t i = 0; i < x->t->n; i++) {
        const gs_trace_request *q = &x->t->requests[i];
        x->plays[i] = (play){.x = x, .i = i, .first_child = -1, .sibling = -1};
        x->plays[i].r =
            (gs_load_record){.request = i,
                             .sent_s = -1,
                             .first_s = -1,
                             .end_s = -1,
                             .n_prompt = q->n_prompt * (q->n_texts > 0 ? q->n_texts : 1)};
    }
    for (int32_t i = x->t->n - 1; i >= 0; i--) {
        const int32_t after = x->t->requests[i].after;
        if (after >= 0) {
            x->plays[i].sibling = x->plays[after].first_child;
            x->plays[after].first_child = i;
        }
    }
    x->began_ns = gs_now_ns();
    for (int32_t i = 0; i < x->t->n; i++)
        if (x->t->requests[i].after < 0)
            plan(&x->plays[i], x->t->requests[i].t_s / x->c->speed);
    uv_timer_init(&x->loop, &x->end);
    uv_timer_init(&x->loop, &x->progress);
    x->end.data = x->progress.data = x;
    if (x->c->time_limit_s > 0)
        uv_timer_start(&x->end, on_time_limit, (uint64_t)(x->c->time_limit_s * 1e3), 0);
    if (!x->c->quiet && isatty(STDERR_FILENO))
        uv_timer_start(&x->progress, on_progress, 1000, 1000);
}

static void close_handle(uv_handle_t *h, void *arg) {
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

/* Ends what is still under way; hands the records of what had begun to run. */
static int collect(replay *x, gs_load_run *run) {
    int32_t n = 0;
    run->records = gs_calloc(x->t->n > 0 ? (size_t)x->t->n : 1, sizeof *run->records);
    for (int32_t i = 0; i < x->t->n; i++) {
        play *p = &x->plays[i];
        if (p->started && !p->ended) {
            gs_http_fetch_cancel(p->fetch);
            p->r.status = GS_LOAD_UNFINISHED;
            p->r.end_s = now_s(x);
        }
        if (p->started && run->records)
            run->records[n++] = p->r;
        else
            gs_free(p->r.gaps_s);
        gs_buf_deinit(&p->messages);
        gs_buf_deinit(&p->body);
        gs_buf_deinit(&p->line);
        gs_buf_deinit(&p->answer);
    }
    run->n = n;
    run->n_not_started = x->t->n - n;
    run->speed = x->c->speed;
    return run->records ? 0 : GS_ERR_NOMEM;
}

int gs_replay(const gs_trace *t, const gs_replay_config *c, gs_load_run *run, char *err,
              size_t errlen) {
    replay x = {.t = t, .c = c};
    run->trace = t;
    if (uv_loop_init(&x.loop) != 0)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "no event loop");
    int rc = prepare(&x, err, errlen);
    x.plays = rc == 0 ? gs_calloc(t->n > 0 ? (size_t)t->n : 1, sizeof *x.plays) : NULL;
    if (rc == 0 && !x.plays)
        rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    if (rc == 0) {
        gs_thread_wake_soon(); /* servers on the same machine leave no core free */
        begin(&x);
        if (t->n > 0)
            uv_run(&x.loop, UV_RUN_DEFAULT);
        if (!c->quiet && isatty(STDERR_FILENO)) {
            on_progress(&x.progress);
            fputc('\n', stderr);
        }
        rc = collect(&x, run);
        if (rc != 0)
            gs_fail(err, errlen, rc, "out of memory");
        uv_walk(&x.loop, close_handle, NULL);
    }
    uv_run(&x.loop, UV_RUN_DEFAULT);
    uv_loop_close(&x.loop);
    gs_free(x.plays);
    return rc;
}
