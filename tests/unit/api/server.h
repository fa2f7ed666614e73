/* A whole server in this process (fake backend, byte vocabulary, ChatML) and a blocking client. */
#ifndef GS_TESTS_API_SERVER_H
#define GS_TESTS_API_SERVER_H

#include <arpa/inet.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "../tokenizer/vocab_builder.h"
#include "api/api.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"

#define PATIENCE_S 60
#define N_VOCAB    300

typedef struct server {
    uv_loop_t loop;
    uv_thread_t thread;
    uv_async_t quit;
    gs_api *api;
    gs_engine *engine;
    gs_fake_config fc;
    gs_engine_config ec;
    gs_api_config ac;
    gs_served_model served;
    gs_buf bytes;
    gs_gguf *gguf;
    int fail_open, drain_ms;
    int64_t open_ns; /* how long loading takes */
    atomic_int n_done;
} server;

static inline void pause_ms(int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L};
    nanosleep(&t, NULL);
}

static inline int server_open(void *arg, gs_backend **out, char *err, size_t errlen) {
    server *s = arg;
    pause_ms((int)(s->open_ns / GS_NS_PER_MS));
    if (s->fail_open)
        return gs_fail(err, errlen, s->fail_open, "tensor blk.0 is odd");
    return gs_fake_create(&s->fc, out);
}

static inline void server_vocab(server *s) {
    vocab_builder v = {0};
    char err[256] = "";
    vb_str(&v, "general.architecture", "fake");
    vb_str(&v, "tokenizer.ggml.model", "gpt2");
    vb_str(&v, "tokenizer.ggml.pre", "gpt-2");
    vb_byte_alphabet(&v);
    vb_token(&v, "<|endoftext|>", 3, 0);
    vb_token(&v, "<|im_start|>", 3, 0);
    int32_t end = vb_token(&v, "<|im_end|>", 3, 0);
    while (v.n_tokens < N_VOCAB) {
        char name[32];
        snprintf(name, sizeof name, "<|unused_%d|>", (int)v.n_tokens);
        vb_token(&v, name, 3, 0);
    }
    vb_array(&v, "tokenizer.ggml.merges", GS_GGUF_STR, 0, &v.merges);
    vb_u32(&v, "tokenizer.ggml.eos_token_id", (uint32_t)end);
    assert_true(vb_finish(&v, &s->bytes));
    int rc = gs_gguf_open_mem(s->bytes.data, s->bytes.len, &s->gguf, err, sizeof err);
    if (rc == 0)
        rc = gs_tokenizer_create(s->gguf, &s->served.tokenizer, err, sizeof err);
    if (rc == 0)
        rc = gs_chat_template_from_gguf(s->gguf, s->served.tokenizer, &s->served.chat, err,
                                        sizeof err);
    if (rc != 0)
        fail_msg("%s", err);
}

static inline server *server_new(void) {
    server *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->fc = (gs_fake_config){.n_vocab = N_VOCAB,
                             .max_context = 2048,
                             .max_batch_tokens = 512,
                             .max_seqs = 64,
                             .block_tokens = 16,
                             .n_kv_blocks = 4096,
                             .first_token = 'a',
                             .n_tokens = 26,
                             .eos_token = 258};
    s->ec = (gs_engine_config){.open = server_open,
                               .open_arg = s,
                               .max_waiting = 512,
                               .prefill_chunk = 256,
                               .max_persons = 64,
                               .wake = gs_api_wake,
                               .wake_arg = &s->api,
                               .check = true};
    s->ac = (gs_api_config){.model = &s->served, .max_live_requests = 1000};
    snprintf(s->served.name, sizeof s->served.name, "fake");
    s->drain_ms = 20000;
    server_vocab(s);
    return s;
}

static inline void server_done(void *arg) {
    server *s = arg;
    atomic_fetch_add(&s->n_done, 1);
    uv_close((uv_handle_t *)&s->quit, NULL);
}

static inline void server_quit(uv_async_t *h) {
    server *s = h->data;
    gs_api_drain(s->api, s->drain_ms, server_done, s);
}

static inline void server_loop(void *arg) {
    uv_run(&((server *)arg)->loop, UV_RUN_DEFAULT);
}

static inline void server_start(server *s) {
    static const char *const hosts[] = {"127.0.0.1"};
    char err[256] = "";
    gs_http_config hc;
    gs_http_config_default(&hc);
    hc.hosts = hosts;
    hc.n_hosts = 1;
    assert_int_equal(uv_loop_init(&s->loop), 0);
    assert_int_equal(uv_async_init(&s->loop, &s->quit, server_quit), 0);
    s->quit.data = s;
    if (gs_api_create(&s->loop, &s->ac, &hc, &s->api, err, sizeof err) != 0)
        fail_msg("%s", err);
    assert_int_equal(gs_engine_create(&s->ec, &s->engine, err, sizeof err), 0);
    gs_api_set_engine(s->api, s->engine);
    assert_int_equal(uv_thread_create(&s->thread, server_loop, s), 0);
    while (s->open_ns == 0 && gs_engine_get_state(s->engine) == GS_ENGINE_LOADING)
        pause_ms(1);
}

/* Ends it as SIGTERM does, and checks that nothing is left. */
static inline void server_stop(server *s) {
    uv_async_send(&s->quit);
    uv_thread_join(&s->thread);
    assert_int_equal(atomic_load(&s->n_done), 1);
    assert_int_equal(gs_api_n_live(s->api), 0);
    gs_engine_stats st;
    gs_engine_get_stats(s->engine, &st);
    gs_engine_free(s->engine);
    gs_api_free(s->api);
    assert_int_equal(uv_loop_close(&s->loop), 0);
    gs_tokenizer_free(s->served.tokenizer);
    gs_chat_template_free(s->served.chat);
    gs_gguf_close(s->gguf);
    gs_buf_deinit(&s->bytes);
    free(s);
}

/* Until no sequence is with the engine and no block is held. */
static inline void server_rest(server *s) {
    gs_engine_stats st;
    for (int i = 0; i < PATIENCE_S * 200; i++) {
        gs_engine_get_stats(s->engine, &st);
        if (st.n_running == 0 && st.n_waiting == 0 && st.kv_blocks_held == 0)
            return;
        pause_ms(5);
    }
    fail_msg("%d running, %d waiting, %u blocks held", st.n_running, st.n_waiting,
             st.kv_blocks_held);
}

/* ---- Client ------------------------------------------------------------------------------- */

typedef struct reply {
    int status;
    char *text; /* head and body as sent */
    char *body; /* into text */
    json_t *json;
} reply;

static inline int dial(const server *s) {
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)gs_api_port(s->api)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = PATIENCE_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, (const struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

/* headers: further lines, each with CRLF. body NULL: none. Uses libc's allocator, so that faults
 * strike the server alone. */
static inline void send_request(int fd, const char *method, const char *path, const char *headers,
                                const char *body) {
    size_t room = 1024 + strlen(headers) + (body ? strlen(body) : 0);
    char *text = malloc(room), length[64] = "";
    assert_non_null(text);
    if (body)
        snprintf(length, sizeof length, "Content-Length: %zu\r\n", strlen(body));
    int n = snprintf(
        text, room, "%s %s HTTP/1.1\r\n%s%sConnection: close\r\n%s%s\r\n%s", method, path, headers,
        strstr(headers, "Host:") ? "" : "Host: localhost\r\n",
        body && !strstr(headers, "Content-Type:") ? "Content-Type: application/json\r\n" : "",
        length, body ? body : "");
    for (ssize_t sent, at = 0; at < n; at += sent) {
        sent = send(fd, text + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (sent <= 0)
            break;
    }
    free(text);
}

static inline reply receive(int fd) {
    gs_buf b = {0};
    char part[65536];
    ssize_t n;
    while ((n = recv(fd, part, sizeof part, 0)) > 0)
        gs_buf_add(&b, part, (size_t)n);
    if (n < 0 && b.len == 0)
        fail_msg("no answer");
    close(fd);
    reply r = {.text = gs_buf_take(&b, NULL)};
    assert_non_null(r.text);
    r.status = strncmp(r.text, "HTTP/1.1 ", 9) == 0 ? atoi(r.text + 9) : 0;
    char *end = strstr(r.text, "\r\n\r\n");
    r.body = end ? end + 4 : r.text + strlen(r.text);
    r.json = json_loads(r.body, 0, NULL);
    return r;
}

static inline reply ask(const server *s, const char *method, const char *path, const char *headers,
                        const char *body) {
    int fd = dial(s);
    send_request(fd, method, path, headers, body);
    return receive(fd);
}

static inline reply post(const server *s, const char *path, const char *body) {
    return ask(s, "POST", path, "", body);
}

static inline void reply_free(reply *r) {
    json_decref(r->json);
    gs_free(r->text);
}

/* The value at "error.param" or "choices.0.text"; NULL when it is not there. */
static inline const json_t *at(const json_t *v, const char *path) {
    char key[64];
    while (v && *path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(key)) : json_object_get(v, key);
        path += n + (path[n] == '.');
    }
    return v;
}

static inline const char *str_at(const reply *r, const char *path) {
    const char *s = json_string_value(at(r->json, path));
    return s ? s : "(none)";
}

static inline int64_t int_at(const reply *r, const char *path) {
    return json_integer_value(at(r->json, path));
}

#endif
