/* Requests through the whole server: their lives, their answers, and what is left afterwards. */
#include "server.h"

#include "base/rng.h"
#include "faults/fault.h"
#include "../needs_rust.h"

#define COMPLETIONS "/v1/completions"
#define CHAT        "/v1/chat/completions"

static void a_completion_and_its_usage(void **state) {
    (void)state;
    server *s = server_new();
    server_start(s);
    reply r = post(s, COMPLETIONS, "{\"prompt\": \"hello\", \"max_tokens\": 7, \"seed\": 1}");
    assert_int_equal(r.status, 200);
    assert_int_equal(strlen(str_at(&r, "choices.0.text")), 7);
    assert_string_equal(str_at(&r, "choices.0.finish_reason"), "length");
    assert_int_equal(int_at(&r, "usage.prompt_tokens"), 5);
    assert_int_equal(int_at(&r, "usage.completion_tokens"), 7);
    char head[64];
    snprintf(head, sizeof head, "X-Request-Id: %s", str_at(&r, "id"));
    assert_non_null(strstr(r.text, head));
    reply again = post(s, COMPLETIONS, "{\"prompt\": \"hello\", \"max_tokens\": 7, \"seed\": 1}");
    assert_string_equal(str_at(&again, "choices.0.text"), str_at(&r, "choices.0.text"));
    reply_free(&r);
    reply_free(&again);
    server_rest(s);
    server_stop(s);
}

/* Texts of all choices of a stream, put together by index; counts finish reasons. */
static int stream_texts(const reply *r, gs_buf *texts, int n) {
    int n_finished = 0;
    for (const char *p = strstr(r->body, "data: {"); p; p = strstr(p + 1, "data: {")) {
        json_t *v = json_loads(p + 6, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(v);
        const json_t *c = at(v, "choices.0");
        if (c) {
            int64_t i = json_integer_value(at(c, "index"));
            assert_in_range(i, 0, n - 1);
            const char *text = json_string_value(at(c, "text"));
            if (!text)
                text = json_string_value(at(c, "delta.content"));
            gs_buf_str(&texts[i], text ? text : "");
            n_finished += json_is_string(at(c, "finish_reason"));
        }
        json_decref(v);
    }
    return n_finished;
}

/* The engine may run and end the first sequences of a request before it hears of the last. */
static void many_choices_are_all_answered_whole_and_streamed(void **state) {
    (void)state;
    enum { PROMPTS = 12, N = 8 };
    server *s = server_new();
    server_start(s);
    gs_buf b = {0};
    for (int round = 0; round < 6; round++) {
        for (int stream = 0; stream < 2; stream++) {
            gs_buf_clear(&b);
            gs_buf_printf(&b, "{\"n\": %d, \"max_tokens\": 3, \"seed\": 5, \"stream\": %s, ", N,
                          stream ? "true" : "false");
            gs_buf_str(&b, "\"prompt\": [\"p0\"");
            for (int i = 1; i < PROMPTS; i++)
                gs_buf_printf(&b, ", \"p%d\"", i);
            gs_buf_str(&b, "]}");
            reply r = post(s, COMPLETIONS, gs_buf_cstr(&b));
            assert_int_equal(r.status, 200);
            if (stream) {
                gs_buf texts[PROMPTS * N] = {{0}};
                assert_int_equal(stream_texts(&r, texts, PROMPTS * N), PROMPTS * N);
                for (int i = 0; i < PROMPTS * N; i++) {
                    assert_int_equal(texts[i].len, 3);
                    gs_buf_deinit(&texts[i]);
                }
                assert_non_null(strstr(r.body, "data: [DONE]"));
            } else {
                assert_int_equal(json_array_size(at(r.json, "choices")), PROMPTS * N);
                for (int i = 0; i < PROMPTS * N; i++) {
                    char path[32];
                    snprintf(path, sizeof path, "choices.%d.text", i);
                    assert_int_equal(strlen(str_at(&r, path)), 3);
                }
            }
            reply_free(&r);
        }
    }
    gs_buf_deinit(&b);
    server_rest(s);
    server_stop(s);
}

static void a_stop_string_ends_each_choice_on_its_own(void **state) {
    (void)state;
    server *s = server_new();
    server_start(s);
    reply plain =
        post(s, COMPLETIONS, "{\"prompt\": \"x\", \"max_tokens\": 60, \"n\": 4, \"seed\": 3}");
    for (int stream = 0; stream < 2; stream++) {
        gs_buf b = {0}, texts[4] = {{0}};
        gs_buf_printf(&b,
                      "{\"prompt\": \"x\", \"max_tokens\": 60, \"n\": 4, \"seed\": 3, "
                      "\"stop\": [\"b\", \"q\"], \"stream\": %s}",
                      stream ? "true" : "false");
        reply r = post(s, COMPLETIONS, gs_buf_cstr(&b));
        assert_int_equal(r.status, 200);
        if (stream)
            assert_int_equal(stream_texts(&r, texts, 4), 4);
        for (int i = 0; i < 4; i++) {
            char path[32];
            snprintf(path, sizeof path, "choices.%d.text", i);
            const char *full = str_at(&plain, path);
            const char *got =
                stream ? (texts[i].len ? gs_buf_cstr(&texts[i]) : "") : str_at(&r, path);
            size_t want = strcspn(full, "bq");
            assert_int_equal(strlen(got), want);
            assert_memory_equal(got, full, want);
            snprintf(path, sizeof path, "choices.%d.finish_reason", i);
            if (!stream)
                assert_string_equal(str_at(&r, path), want < 60 ? "stop" : "length");
            gs_buf_deinit(&texts[i]);
        }
        reply_free(&r);
        gs_buf_deinit(&b);
    }
    reply_free(&plain);
    server_rest(s);
    server_stop(s);
}

static void refusals_name_the_field(void **state) {
    (void)state;
    static const struct {
        const char *path, *body;
        int status;
        const char *param, *part;
    } cases[] = {
        {COMPLETIONS, "{}", 400, "prompt", "missing"},
        {COMPLETIONS, "{\"prompt\": []}", 400, "prompt", ""},
        {COMPLETIONS, "{\"prompt\": [1, \"a\"]}", 400, "prompt", ""},
        {COMPLETIONS, "{\"prompt\": [\"a\", 1]}", 400, "prompt", ""},
        {COMPLETIONS, "{\"prompt\": [300]}", 400, "prompt", "300"},
        {COMPLETIONS, "{\"prompt\": [-1]}", 400, "prompt", ""},
        {COMPLETIONS, "{\"prompt\": \"\"}", 400, "prompt", "empty"},
        {COMPLETIONS, "{\"prompt\": [[]]}", 400, "prompt", "empty"},
        {COMPLETIONS, "{\"prompt\": {}}", 400, "prompt", ""},
        {COMPLETIONS, "{\"prompt\": \"x\", \"suffix\": \"y\"}", 400, "suffix", ""},
        {COMPLETIONS, "{\"prompt\": \"x\", \"model\": \"gpt-4\"}", 404, "model", "gpt-4"},
        {COMPLETIONS, "{\"prompt\": \"x\", \"model\": 1}", 400, "model", ""},
        {COMPLETIONS, "{\"prompt\": \"x\", \"temperature\": 101}", 400, "temperature", ""},
        {CHAT, "{}", 400, "messages", ""},
        {CHAT, "{\"messages\": []}", 400, "messages", ""},
        {CHAT, "{\"messages\": [1]}", 400, "messages[0]", ""},
        {CHAT, "{\"messages\": [{\"role\": 1}]}", 400, "messages[0]", "role"},
        {CHAT, "{\"messages\": [{\"role\": \"user\"}]}", 400, "messages[0]", "content"},
        {CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": 1}]}", 400, "messages[0].content",
         ""},
        {CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": [{}]}]}", 400,
         "messages[0].content", "type"},
        {CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
         400, "messages[0].content", "image_url"},
        {CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": 1}", 400,
         "tools", ""},
    };
    server *s = server_new();
    server_start(s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reply r = post(s, cases[i].path, cases[i].body);
        if (r.status != cases[i].status || strcmp(str_at(&r, "error.param"), cases[i].param) != 0 ||
            !strstr(str_at(&r, "error.message"), cases[i].part))
            fail_msg("%s: %d %s", cases[i].body, r.status, r.body);
        reply_free(&r);
    }
    server_stop(s);
}

static void a_prompt_beyond_the_context_says_how_long_it_is(void **state) {
    (void)state;
    server *s = server_new();
    server_start(s);
    gs_buf b = {0};
    gs_buf_printf(&b, "{\"prompt\": [\"short\", \"%0*d\"]}", 3000, 0);
    reply r = post(s, COMPLETIONS, gs_buf_cstr(&b));
    assert_int_equal(r.status, 400);
    assert_string_equal(str_at(&r, "error.code"), "context_length_exceeded");
    assert_non_null(strstr(str_at(&r, "error.message"), "3000 tokens"));
    assert_non_null(strstr(str_at(&r, "error.message"), "2048"));
    reply_free(&r);
    /* Exactly full: no room for a token. One less: one token, whatever max_tokens says. */
    for (int n = 2047; n <= 2048; n++) {
        gs_buf_clear(&b);
        gs_buf_printf(&b, "{\"prompt\": \"%0*d\", \"max_tokens\": 2147483647}", n, 0);
        r = post(s, COMPLETIONS, gs_buf_cstr(&b));
        assert_int_equal(r.status, n == 2048 ? 400 : 200);
        if (n == 2047)
            assert_int_equal(int_at(&r, "usage.completion_tokens"), 1);
        reply_free(&r);
    }
    gs_buf_deinit(&b);
    server_rest(s);
    server_stop(s);
}

static int64_t prompt_tokens(server *s, const char *body) {
    reply r = post(s, CHAT, body);
    if (r.status != 200)
        fail_msg("%s: %d %s", body, r.status, r.body);
    int64_t n = int_at(&r, "usage.prompt_tokens");
    reply_free(&r);
    return n;
}

static void content_may_be_null_where_tools_are_called(void **state) {
    (void)state;
    needs_rust("built-in templates alone, which take no tool calls");
    static const char *const same[] = {"\"content\": \"\"", "\"content\": null", "\"x\": 1",
                                       "\"content\": []"};
    server *s = server_new();
    server_start(s);
    int64_t want = 0;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char body[512];
        snprintf(body, sizeof body,
                 "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, "
                 "{\"role\": \"assistant\", %s, \"tool_calls\": [{\"function\": "
                 "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}}]}, "
                 "{\"role\": \"tool\", \"content\": \"42\"}]}",
                 same[i]);
        int64_t n = prompt_tokens(s, body);
        if (i == 0)
            want = n;
        assert_int_equal(n, want);
    }
    /* Text parts are joined. */
    assert_int_equal(prompt_tokens(s, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", "
                                      "\"content\": [{\"type\": \"text\", \"text\": \"ab\"}, "
                                      "{\"type\": \"text\", \"text\": \"cd\"}]}]}"),
                     prompt_tokens(s, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", "
                                      "\"content\": \"abcd\"}]}"));
    server_stop(s);
}

static void methods_and_paths(void **state) {
    (void)state;
    server *s = server_new();
    server_start(s);
    static const struct {
        const char *method, *path;
        int status;
    } cases[] = {
        {"GET", "/", 200},
        {"HEAD", "/", 200},
        {"GET", "/health", 200},
        {"HEAD", "/health", 200},
        {"GET", "/ready", 200},
        {"GET", "/metrics", 200},
        {"GET", "/v1/models", 200},
        {"GET", COMPLETIONS, 405},
        {"HEAD", COMPLETIONS, 405},
        {"HEAD", CHAT, 405},
        {"DELETE", "/v1/models", 405},
        {"GET", "/nowhere", 404},
        {"POST", "/nowhere", 404},
        {"OPTIONS", CHAT, 204},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reply r = ask(s, cases[i].method, cases[i].path, "", NULL);
        if (r.status != cases[i].status)
            fail_msg("%s %s: %d", cases[i].method, cases[i].path, r.status);
        if (strcmp(cases[i].method, "HEAD") == 0)
            assert_int_equal(strlen(r.body), 0);
        if (r.status == 405)
            assert_non_null(strstr(r.text, "Allow: "));
        reply_free(&r);
    }
    reply r = ask(s, "POST", CHAT, "Content-Type: text/plain\r\n", "{}");
    assert_int_equal(r.status, 415);
    reply_free(&r);
    server_stop(s);
}

/* Small ones in the loop, large ones on a worker thread; some clients leave meanwhile. */
static void tokenize_and_back(void **state) {
    (void)state;
    server *s = server_new();
    server_start(s);
    gs_buf b = {0};
    static const size_t sizes[] = {0, 5, 20000, 200000, 1000000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        gs_buf_clear(&b);
        gs_buf_str(&b, "{\"content\": \"");
        for (size_t k = 0; k < sizes[i]; k++)
            gs_buf_char(&b, (char)('a' + k % 26));
        gs_buf_str(&b, "\"}");
        if (sizes[i] == 1000000) {
            for (int k = 0; k < 5; k++) {
                int fd = dial(s);
                send_request(fd, "POST", "/tokenize", "", gs_buf_cstr(&b));
                close(fd);
            }
        }
        reply r = post(s, "/tokenize", gs_buf_cstr(&b));
        assert_int_equal(r.status, 200);
        assert_int_equal(json_array_size(at(r.json, "tokens")), sizes[i]);
        reply back = post(s, "/detokenize", r.body);
        if (sizes[i] == 1000000) { /* more values than a body may hold */
            assert_int_equal(back.status, 400);
            assert_non_null(strstr(str_at(&back, "error.message"), "262144"));
        } else {
            assert_int_equal(back.status, 200);
            assert_int_equal(strlen(str_at(&back, "content")), sizes[i]);
            assert_memory_equal(str_at(&back, "content"), gs_buf_cstr(&b) + 13, sizes[i]);
        }
        reply_free(&r);
        reply_free(&back);
    }
    gs_buf_deinit(&b);
    reply r = post(s, "/tokenize", "{\"content\": \"<|im_end|>\", \"parse_special\": true}");
    assert_int_equal(int_at(&r, "tokens.0"), 258);
    reply_free(&r);
    r = post(s, "/tokenize", "{\"content\": \"x\", \"add_special\": 1}");
    assert_string_equal(str_at(&r, "error.param"), "add_special");
    reply_free(&r);
    r = post(s, "/detokenize", "{\"tokens\": [97, 300]}");
    assert_string_equal(str_at(&r, "error.param"), "tokens");
    reply_free(&r);
    server_stop(s);
}

/* Clients that leave in every phase. */
static void leaving_clients_leave_nothing_behind(void **state) {
    (void)state;
    server *s = server_new();
    s->fc.max_seqs = 4; /* some wait */
    s->fc.step_ns = GS_NS_PER_MS;
    server_start(s);
    gs_rng rng;
    gs_rng_seed(&rng, 12);
    gs_buf b = {0};
    for (int i = 0; i < 150; i++) {
        uint64_t kind = gs_rng_below(&rng, 4);
        gs_buf_clear(&b);
        gs_buf_printf(&b, "{\"n\": %d, \"max_tokens\": 200, \"stream\": %s, \"prompt\": \"%0*d\"}",
                      (int)(1 + gs_rng_below(&rng, 3)), kind & 1 ? "true" : "false",
                      /* beyond 16 KiB a worker thread prepares it, then it is too long */
                      kind == 3 ? 20000 : 100, 0);
        int fd = dial(s);
        send_request(fd, "POST", COMPLETIONS, "", gs_buf_cstr(&b));
        pause_ms((int)gs_rng_below(&rng, 8));
        if (gs_rng_below(&rng, 2))
            shutdown(fd, SHUT_WR);
        close(fd);
    }
    gs_buf_deinit(&b);
    server_rest(s);
    reply r = post(s, COMPLETIONS, "{\"prompt\": \"x\", \"max_tokens\": 2}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    server_stop(s);
}

static void a_failing_step_is_an_error_event_or_object(void **state) {
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        server *s = server_new();
        s->fc.fail_step = 5;
        server_start(s);
        reply r = post(s, COMPLETIONS,
                       stream ? "{\"prompt\": \"x\", \"max_tokens\": 50, \"stream\": true}"
                              : "{\"prompt\": \"x\", \"max_tokens\": 50}");
        assert_int_equal(r.status, stream ? 200 : 500);
        assert_non_null(strstr(r.body, "\"server_error\""));
        if (stream)
            assert_non_null(strstr(r.body, "data: [DONE]"));
        else
            assert_string_equal(str_at(&r, "error.type"), "server_error");
        reply_free(&r);
        r = post(s, COMPLETIONS, "{\"prompt\": \"x\", \"max_tokens\": 5}");
        assert_int_equal(r.status, 200);
        reply_free(&r);
        server_rest(s);
        server_stop(s);
    }
}

static void a_full_queue_is_429_with_retry_after(void **state) {
    (void)state;
    server *s = server_new();
    s->fc.max_seqs = 1;
    s->ec.max_waiting = 2;
    s->fc.step_ns = GS_NS_PER_MS;
    server_start(s);
    reply r = post(s, COMPLETIONS, "{\"prompt\": \"x\", \"n\": 8, \"max_tokens\": 50}");
    assert_int_equal(r.status, 429);
    assert_non_null(strstr(r.text, "Retry-After: "));
    assert_string_equal(str_at(&r, "error.type"), "rate_limit_error");
    reply_free(&r);
    server_rest(s);
    server_stop(s);
}

static void a_model_that_does_not_load_is_503(void **state) {
    (void)state;
    server *s = server_new();
    s->fail_open = GS_ERR_FORMAT;
    server_start(s);
    reply r = post(s, COMPLETIONS, "{\"prompt\": \"x\"}");
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(str_at(&r, "error.message"), "blk.0"));
    reply_free(&r);
    r = ask(s, "GET", "/health", "", NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = ask(s, "GET", "/metrics", "", NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    server_stop(s);
}

/* The engine's thread wakes the API after all is closed. */
static void draining_while_a_model_loads(void **state) {
    (void)state;
    server *s = server_new();
    s->open_ns = 300 * GS_NS_PER_MS;
    server_start(s);
    reply r = ask(s, "GET", "/ready", "", NULL);
    assert_int_equal(r.status, 503);
    reply_free(&r);
    server_stop(s);
}

static void draining_lets_answers_end(void **state) {
    (void)state;
    server *s = server_new();
    s->fc.step_ns = GS_NS_PER_MS;
    server_start(s);
    int fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = dial(s);
        send_request(fd[i], "POST", COMPLETIONS, "", "{\"prompt\": \"x\", \"max_tokens\": 100}");
    }
    gs_engine_stats st;
    do {
        pause_ms(1);
        gs_engine_get_stats(s->engine, &st);
    } while (st.n_running < 3);
    server_stop(s);
    for (int i = 0; i < 3; i++) {
        reply r = receive(fd[i]);
        assert_int_equal(r.status, 200);
        assert_int_equal(int_at(&r, "usage.completion_tokens"), 100);
        reply_free(&r);
    }
}

static void draining_past_its_deadline_ends_with_an_error(void **state) {
    (void)state;
    server *s = server_new();
    s->fc.step_ns = 5 * GS_NS_PER_MS;
    s->drain_ms = 50;
    server_start(s);
    int fd[4];
    gs_buf big = {0}; /* is prepared on a worker thread while the server drains */
    gs_buf_printf(&big, "{\"stream\": true, \"prompt\": \"%0*d\"}", 1000000, 0);
    for (int i = 0; i < 4; i++) {
        fd[i] = dial(s);
        send_request(fd[i], "POST", COMPLETIONS, "",
                     i == 3   ? gs_buf_cstr(&big)
                     : i == 2 ? "{\"prompt\": \"x\", \"max_tokens\": 2000, \"stream\": true}"
                              : "{\"prompt\": \"x\", \"max_tokens\": 2000}");
    }
    gs_buf_deinit(&big);
    pause_ms(30);
    server_stop(s);
    for (int i = 0; i < 4; i++) {
        reply r = receive(fd[i]);
        if (i < 2)
            assert_int_equal(r.status, 503);
        if (i == 2)
            assert_non_null(strstr(r.body, "shutting down"));
        reply_free(&r);
    }
}

/* What looks like a whole answer to a client must be one. */
static void complete_or_visibly_broken(const char *text, size_t len, bool stream) {
    const char *body = strstr(text, "\r\n\r\n"), *n = strstr(text, "Content-Length: ");
    assert_non_null(body);
    body += 4;
    if (!stream) {
        if (!n || len - (size_t)(body - text) < strtoul(n + 16, NULL, 10))
            return;
        json_t *v = json_loads(body, 0, NULL);
        assert_int_equal(json_array_size(at(v, "choices")), 6);
        for (size_t i = 0; i < 6; i++)
            assert_int_equal(json_string_length(at(json_array_get(at(v, "choices"), i), "text")),
                             4);
        json_decref(v);
    } else if (strstr(body, "\r\n0\r\n\r\n") && !strstr(body, "\"error\"")) {
        gs_buf out = {0};
        reply r = {.body = strstr(text, "\r\n\r\n")};
        assert_int_equal(stream_texts(&r, &out, 1), 1);
        assert_int_equal(out.len, 4);
        gs_buf_deinit(&out);
    }
}

/* Every allocation of a request fails once: it is answered or cut, and nothing leaks (the address
 * sanitizer looks). */
static void running_out_of_memory_anywhere(void **state) {
    (void)state;
    server *s = server_new();
    server_start(s);
    int n_ok = 0, n_refused = 0;
    for (unsigned n = 1; n < 160; n++) {
        int fd = dial(s);
        pause_ms(1); /* the connection itself is not what is tested */
        gs_fault_set(GS_FAULT_ALLOC, n, 12);
        send_request(fd, "POST", n & 1 ? COMPLETIONS : CHAT, "",
                     n & 1 ? "{\"prompt\": [\"a\", \"b\"], \"n\": 3, \"max_tokens\": 4, "
                             "\"logprobs\": 3, \"stop\": \"ZZ\", \"logit_bias\": {\"97\": 1}}"
                           : "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], "
                             "\"max_tokens\": 4, \"stream\": true, \"logprobs\": true}");
        static char text[1 << 16];
        size_t len = 0;
        ssize_t got;
        while ((got = recv(fd, text + len, sizeof text - 1 - len, 0)) > 0)
            len += (size_t)got;
        text[len] = '\0';
        close(fd);
        gs_fault_clear();
        bool ok = len > 12 && memcmp(text, "HTTP/1.1 200", 12) == 0;
        n_ok += ok;
        n_refused += !ok;
        if (ok)
            complete_or_visibly_broken(text, len, !(n & 1));
    }
    assert_true(n_ok > 10);
    assert_true(n_refused > 10);
    server_rest(s);
    reply r = post(s, COMPLETIONS, "{\"prompt\": \"x\", \"max_tokens\": 2}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    server_stop(s);
}

static double metric(const server *s, const char *name) {
    reply r = ask(s, "GET", "/metrics", "", NULL);
    double v = -1;
    size_t n = strlen(name);
    for (const char *p = r.body; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
        if (strncmp(p, name, n) == 0 && (p[n] == '{' || p[n] == ' ')) {
            const char *end = strchr(p, '\n');
            const char *space = end ? memrchr(p, ' ', (size_t)(end - p)) : NULL;
            v = (v < 0 ? 0 : v) + (space ? strtod(space, NULL) : 0);
        }
    }
    reply_free(&r);
    return v;
}

static void metrics_return_to_zero_after_cancels(void **state) {
    (void)state;
    server *s = server_new();
    s->fc.step_ns = GS_NS_PER_MS;
    s->fc.max_seqs = 2;
    server_start(s);
    int fd[5];
    for (int i = 0; i < 5; i++) {
        fd[i] = dial(s);
        send_request(fd[i], "POST", COMPLETIONS, "", "{\"prompt\": \"x\", \"max_tokens\": 2000}");
    }
    for (int i = 0; i < 2000 && metric(s, "gamasot_num_requests_waiting") < 3; i++)
        pause_ms(1);
    assert_true(metric(s, "gamasot_num_requests_waiting") == 3);
    assert_true(metric(s, "gamasot_num_requests_running") == 2);
    assert_true(metric(s, "gamasot_kv_cache_usage_perc") > 0);
    for (int i = 0; i < 5; i++)
        close(fd[i]);
    server_rest(s);
    assert_true(metric(s, "gamasot_num_requests_waiting") == 0);
    assert_true(metric(s, "gamasot_num_requests_running") == 0);
    assert_true(metric(s, "gamasot_kv_cache_usage_perc") == 0);
    assert_true(metric(s, "gamasot_generation_tokens_total") > 0);
    server_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_completion_and_its_usage),
        cmocka_unit_test(many_choices_are_all_answered_whole_and_streamed),
        cmocka_unit_test(a_stop_string_ends_each_choice_on_its_own),
        cmocka_unit_test(refusals_name_the_field),
        cmocka_unit_test(a_prompt_beyond_the_context_says_how_long_it_is),
        cmocka_unit_test(content_may_be_null_where_tools_are_called),
        cmocka_unit_test(methods_and_paths),
        cmocka_unit_test(tokenize_and_back),
        cmocka_unit_test(leaving_clients_leave_nothing_behind),
        cmocka_unit_test(a_failing_step_is_an_error_event_or_object),
        cmocka_unit_test(a_full_queue_is_429_with_retry_after),
        cmocka_unit_test(a_model_that_does_not_load_is_503),
        cmocka_unit_test(draining_while_a_model_loads),
        cmocka_unit_test(draining_lets_answers_end),
        cmocka_unit_test(draining_past_its_deadline_ends_with_an_error),
        cmocka_unit_test(running_out_of_memory_anywhere),
        cmocka_unit_test(metrics_return_to_zero_after_cancels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
