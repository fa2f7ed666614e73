/* Requests for vectors and scores through the whole server (fake backend). */
#include "faults/fault.h"
#include "server.h"

#include <math.h>

#define EMBEDDINGS "/v1/embeddings"

static server *start(int32_t n_embd, bool rank) {
    server *s = server_new();
    s->fc.n_embd = n_embd;
    s->fc.rank = rank;
    server_start(s);
    return s;
}

static double number_at(const reply *r, const char *path) {
    return json_number_value(at(r->json, path));
}

/* Position i of n texts, or of one. */
static void expect_vector(const json_t *v, const json_t *want, size_t n, double scale) {
    assert_int_equal(json_array_size(v), n);
    for (size_t i = 0; i < n; i++)
        assert_true(fabs(json_number_value(json_array_get(v, i)) -
                         scale * json_number_value(json_array_get(want, i))) < 1e-8);
}

static void one_text_many_texts_and_token_ids(void **state) {
    (void)state;
    server *s = start(8, false);
    reply one = post(s, EMBEDDINGS, "{\"input\": \"hello\"}");
    reply many = post(s, EMBEDDINGS, "{\"input\": [\"a\", \"hello\", \"b\"]}");
    reply ids = post(s, EMBEDDINGS, "{\"input\": [104, 101]}");
    reply lists = post(s, EMBEDDINGS, "{\"input\": [[97], [104, 101]]}");
    assert_int_equal(one.status, 200);
    assert_non_null(strstr(one.text, "X-Gamasot-Class: background"));
    assert_string_equal(str_at(&one, "data.0.object"), "embedding");
    const json_t *v = at(one.json, "data.0.embedding");
    double square = 0;
    for (size_t i = 0; i < 8; i++)
        square += pow(json_number_value(json_array_get(v, i)), 2);
    assert_true(fabs(square - 1) < 1e-6);
    expect_vector(at(many.json, "data.1.embedding"), v, 8, 1);
    for (int i = 0; i < 3; i++) {
        char path[24];
        snprintf(path, sizeof path, "data.%d.index", i);
        assert_int_equal(int_at(&many, path), i);
    }
    assert_int_equal(int_at(&one, "usage.prompt_tokens"), 5);
    assert_int_equal(int_at(&many, "usage.total_tokens"), 7);
    expect_vector(at(lists.json, "data.1.embedding"), at(ids.json, "data.0.embedding"), 8, 1);
    reply_free(&one);
    reply_free(&many);
    reply_free(&ids);
    reply_free(&lists);
    server_rest(s);
    server_stop(s);
}

/* Four bytes of base64 that hold the first float's lowest three bytes, and so on. */
static uint32_t base64_word(const char *text, size_t word) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t out = 0;
    for (size_t i = 0; i < 4; i++) {
        const size_t bit = (4 * word + i) * 8;
        uint32_t pair = 0;
        for (size_t k = 0; k < 2; k++) {
            const char *d = strchr(digits, text[bit / 6 + k]);
            pair = pair << 6 | (d && *d ? (uint32_t)(d - digits) : 0);
        }
        out |= (pair >> (4 - bit % 6) & 0xff) << (8 * i);
    }
    return out;
}

static void base64_and_dimensions(void **state) {
    (void)state;
    server *s = start(8, false);
    reply whole = post(s, EMBEDDINGS, "{\"input\": \"hello\"}");
    reply part = post(s, EMBEDDINGS, "{\"input\": \"hello\", \"dimensions\": 3}");
    reply code =
        post(s, EMBEDDINGS,
             "{\"input\": [\"hello\"], \"dimensions\": 3, \"encoding_format\": \"base64\"}");
    const json_t *v = at(whole.json, "data.0.embedding");
    double square = 0;
    for (size_t i = 0; i < 3; i++)
        square += pow(json_number_value(json_array_get(v, i)), 2);
    expect_vector(at(part.json, "data.0.embedding"), v, 3, 1 / sqrt(square));
    const char *text = str_at(&code, "data.0.embedding");
    assert_int_equal(strlen(text), 16); /* 12 bytes */
    for (size_t i = 0; i < 3; i++) {
        const uint32_t word = base64_word(text, i);
        float f;
        memcpy(&f, &word, sizeof f);
        assert_true(fabs((double)f - json_number_value(json_array_get(
                                         at(part.json, "data.0.embedding"), i))) < 1e-8);
    }
    reply_free(&whole);
    reply_free(&part);
    reply_free(&code);
    server_stop(s);
}

/* More texts than the queue has places and than are sent at once, of all lengths. */
static void many_texts_pass_a_short_queue(void **state) {
    (void)state;
    enum { N = 700 };
    server *s = server_new();
    s->fc.n_embd = 4;
    s->fc.max_seqs = 8;
    s->ec.max_waiting = 12;
    server_start(s);
    gs_buf b = {0};
    gs_buf_str(&b, "{\"input\": [");
    for (int i = 0; i < N; i++)
        gs_buf_printf(&b, "%s\"%.*s%d\"", i > 0 ? "," : "", i % 37,
                      "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", i);
    gs_buf_str(&b, "]}");
    reply r = post(s, EMBEDDINGS, gs_buf_cstr(&b));
    assert_int_equal(r.status, 200);
    assert_int_equal(json_array_size(at(r.json, "data")), N);
    reply one = post(s, EMBEDDINGS, "{\"input\": \"abcdefghijklmnopqrstuv688\"}"); /* 688 % 37 */
    expect_vector(at(r.json, "data.688.embedding"), at(one.json, "data.0.embedding"), 4, 1);
    gs_buf_deinit(&b);
    reply_free(&r);
    reply_free(&one);
    server_rest(s);
    server_stop(s);
}

static void wrong_requests_name_their_field(void **state) {
    (void)state;
    static const struct {
        const char *path, *body, *param, *words;
    } cases[] = {
        {EMBEDDINGS, "{}", "input", "missing"},
        {EMBEDDINGS, "{\"input\": \"\"}", "input", "empty"},
        {EMBEDDINGS, "{\"input\": []}", "input", "empty"},
        {EMBEDDINGS, "{\"input\": [[]]}", "input", "text 0 is empty"},
        {EMBEDDINGS, "{\"input\": [\"a\", \"\"]}", "input", "text 1 is empty"},
        {EMBEDDINGS, "{\"input\": [\"a\", 3]}", "input", "text 1 must be"},
        {EMBEDDINGS, "{\"input\": {\"a\": 1}}", "input", "must be"},
        {EMBEDDINGS, "{\"input\": [1, -1]}", "input", "token id"},
        {EMBEDDINGS, "{\"input\": [300]}", "input", "below 300"},
        {EMBEDDINGS, "{\"input\": [1, \"a\"]}", "input", "token id"},
        {EMBEDDINGS, "{\"input\": \"a\", \"dimensions\": 0}", "dimensions", "between"},
        {EMBEDDINGS, "{\"input\": \"a\", \"dimensions\": 9}", "dimensions", "8"},
        {EMBEDDINGS, "{\"input\": \"a\", \"encoding_format\": \"hex\"}", "encoding_format",
         "base64"},
        {EMBEDDINGS, "{\"input\": \"a\", \"encoding_format\": 1}", "encoding_format", "base64"},
        {EMBEDDINGS, "{\"input\": \"a\", \"user\": 1}", "user", "string"},
        {EMBEDDINGS, "{\"input\": \"a\", \"model\": \"b\"}", "model", "does not exist"},
        {"/v1/rerank", "{\"query\": \"a\", \"documents\": [\"b\"]}", "model", "does not rank"},
    };
    server *s = start(8, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reply r = post(s, cases[i].path, cases[i].body);
        if (r.status / 100 != 4 || strcmp(str_at(&r, "error.param"), cases[i].param) != 0 ||
            !strstr(str_at(&r, "error.message"), cases[i].words))
            fail_msg("%s: %s", cases[i].body, r.text);
        reply_free(&r);
    }
    gs_buf b = {0};
    gs_buf_str(&b, "{\"input\": [\"a\"");
    for (int i = 0; i < 2048; i++)
        gs_buf_str(&b, ",\"a\"");
    gs_buf_str(&b, "]}");
    reply r = post(s, EMBEDDINGS, gs_buf_cstr(&b));
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(str_at(&r, "error.message"), "2048"));
    reply_free(&r);
    gs_buf_deinit(&b);
    server_stop(s);
}

static gs_buf long_text(const char *before, size_t n, const char *after) {
    gs_buf b = {0};
    gs_buf_str(&b, before);
    while (n-- > 0)
        gs_buf_char(&b, 'x');
    gs_buf_str(&b, after);
    return b;
}

/* Whole prompts: what one step holds is the length that counts, not the context. */
static void too_long_is_an_error_or_is_cut(void **state) {
    (void)state;
    server *s = server_new();
    s->fc.n_embd = 4;
    s->fc.whole_prompts = true;
    s->fc.max_batch_tokens = 100;
    s->ec.prefill_chunk = 32;
    server_start(s);
    gs_buf fits = long_text("{\"input\": \"", 100, "\"}"),
           over = long_text("{\"input\": \"", 101, "\"}");
    gs_buf strict = long_text("{\"truncate\": false, \"input\": \"", 101, "\"}");
    reply a = post(s, EMBEDDINGS, gs_buf_cstr(&fits));
    reply b = post(s, EMBEDDINGS, gs_buf_cstr(&over));
    reply c = post(s, "/api/embed", gs_buf_cstr(&over));
    reply d = post(s, "/api/embed", gs_buf_cstr(&strict));
    assert_int_equal(a.status, 200);
    assert_int_equal(b.status, 400);
    assert_string_equal(str_at(&b, "error.code"), "context_length_exceeded");
    assert_non_null(strstr(str_at(&b, "error.message"), "101 tokens; this model takes 100"));
    assert_int_equal(c.status, 200);
    expect_vector(at(c.json, "embeddings.0"), at(a.json, "data.0.embedding"), 4, 1);
    assert_int_equal(int_at(&c, "prompt_eval_count"), 100);
    assert_int_equal(d.status, 400);
    assert_non_null(strstr(str_at(&d, "error"), "101"));
    reply chat = post(s, "/v1/completions", "{\"prompt\": \"a\"}");
    assert_int_equal(chat.status, 400);
    assert_non_null(strstr(str_at(&chat, "error.message"), "encoder"));
    reply show = post(s, "/api/show", "{\"model\": \"fake\"}");
    assert_string_equal(str_at(&show, "capabilities.0"), "embedding");
    assert_int_equal(json_array_size(at(show.json, "capabilities")), 1);
    reply *const all[] = {&a, &b, &c, &d, &chat, &show};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        reply_free(all[i]);
    gs_buf_deinit(&fits);
    gs_buf_deinit(&over);
    gs_buf_deinit(&strict);
    server_stop(s);
}

static void ollama_shapes(void **state) {
    (void)state;
    server *s = start(4, false);
    reply want = post(s, EMBEDDINGS, "{\"input\": [\"a\", \"b\"]}");
    reply r =
        post(s, "/api/embed",
             "{\"model\": \"fake:latest\", \"input\": [\"a\", \"b\"], \"keep_alive\": \"5m\"}");
    assert_string_equal(str_at(&r, "model"), "fake:latest");
    expect_vector(at(r.json, "embeddings.1"), at(want.json, "data.1.embedding"), 4, 1);
    assert_true(int_at(&r, "total_duration") > 0 && int_at(&r, "load_duration") >= 0);
    assert_int_equal(int_at(&r, "prompt_eval_count"), 2);
    reply old = post(s, "/api/embeddings", "{\"model\": \"fake\", \"prompt\": \"a\"}");
    expect_vector(at(old.json, "embedding"), at(want.json, "data.0.embedding"), 4, 1);
    reply none = post(s, "/api/embed", "{\"model\": \"fake\", \"input\": []}");
    assert_int_equal(none.status, 200);
    assert_true(json_is_array(at(none.json, "embeddings")));
    reply empty = post(s, "/api/embeddings", "{\"model\": \"fake\"}");
    assert_int_equal(json_array_size(at(empty.json, "embedding")), 0);
    reply bad = post(s, "/api/embed", "{\"input\": \"a\", \"keep_alive\": \"5 parsecs\"}");
    assert_int_equal(bad.status, 400);
    reply cut = post(s, "/api/embed", "{\"input\": \"aaaa\", \"options\": {\"num_ctx\": 1}}");
    expect_vector(at(cut.json, "embeddings.0"), at(want.json, "data.0.embedding"), 4, 1);
    reply *const all[] = {&want, &r, &old, &none, &empty, &bad, &cut};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        reply_free(all[i]);
    server_stop(s);
}

static void ranks_documents(void **state) {
    (void)state;
    server *s = start(1, true);
    reply r = post(s, "/v1/rerank",
                   "{\"query\": \"q\", \"documents\": [\"one\", {\"text\": \"two\"}, \"three\", "
                   "\"four\"], \"return_documents\": true}");
    assert_int_equal(r.status, 200);
    assert_int_equal(json_array_size(at(r.json, "results")), 4);
    static const char *const texts[] = {"one", "two", "three", "four"};
    double before = 1.0;
    unsigned seen = 0;
    for (int i = 0; i < 4; i++) {
        char path[48];
        snprintf(path, sizeof path, "results.%d.relevance_score", i);
        assert_true(number_at(&r, path) <= before && number_at(&r, path) > 0.0);
        before = number_at(&r, path);
        snprintf(path, sizeof path, "results.%d.index", i);
        const int64_t index = int_at(&r, path);
        seen |= 1u << index;
        snprintf(path, sizeof path, "results.%d.document.text", i);
        assert_string_equal(str_at(&r, path), texts[index]);
    }
    assert_int_equal(seen, 15);
    reply best = post(s, "/rerank",
                      "{\"query\": \"q\", \"top_n\": 1, \"documents\": [\"one\", \"two\", "
                      "\"three\", \"four\"]}");
    assert_int_equal(json_array_size(at(best.json, "results")), 1);
    assert_int_equal(int_at(&best, "results.0.index"), int_at(&r, "results.0.index"));
    assert_null(at(best.json, "results.0.document"));
    static const char *const wrong[] = {"{\"documents\": [\"a\"]}",
                                        "{\"query\": \"\", \"documents\": [\"a\"]}",
                                        "{\"query\": \"a\", \"documents\": []}",
                                        "{\"query\": \"a\", \"documents\": \"b\"}",
                                        "{\"query\": \"a\", \"documents\": [{}]}",
                                        "{\"query\": \"a\", \"documents\": [1]}",
                                        "{\"query\": \"a\", \"documents\": [\"a\"], \"top_n\": 0}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        reply w = post(s, "/v1/rerank", wrong[i]);
        if (w.status != 400)
            fail_msg("%s: %s", wrong[i], w.text);
        reply_free(&w);
    }
    reply e = post(s, EMBEDDINGS, "{\"input\": \"a\"}");
    assert_int_equal(e.status, 400);
    reply_free(&e);
    reply_free(&r);
    reply_free(&best);
    server_stop(s);
}

/* All sequences of a request go with its client, those that were not yet sent never start. */
static void a_client_that_leaves_takes_its_texts_along(void **state) {
    (void)state;
    server *s = server_new();
    s->fc.n_embd = 4;
    s->fc.step_ns = 20 * GS_NS_PER_MS;
    s->fc.max_seqs = 4;
    server_start(s);
    gs_buf b = {0};
    gs_buf_str(&b, "{\"input\": [\"a\"");
    for (int i = 0; i < 1000; i++)
        gs_buf_str(&b, ",\"text\"");
    gs_buf_str(&b, "]}");
    int fd = dial(s);
    send_request(fd, "POST", EMBEDDINGS, "", gs_buf_cstr(&b));
    gs_engine_stats st = {0};
    for (int i = 0; i < PATIENCE_S * 200 && st.prefill_tokens == 0; i++, pause_ms(5))
        gs_engine_get_stats(s->engine, &st);
    assert_true(st.prefill_tokens > 0);
    close(fd);
    server_rest(s);
    gs_engine_get_stats(s->engine, &st);
    assert_true(st.prefill_tokens < 1000);
    gs_buf_deinit(&b);
    server_stop(s);
}

/* A step that fails takes the request with it, the server goes on. */
static void a_failed_step_is_an_error(void **state) {
    (void)state;
    server *s = server_new();
    s->fc.n_embd = 4;
    s->fc.fail_step = 2;
    s->fc.max_seqs = 2;
    server_start(s);
    reply r = post(s, EMBEDDINGS, "{\"input\": [\"a\", \"b\", \"c\", \"d\"]}");
    assert_int_equal(r.status, 500);
    reply again = post(s, EMBEDDINGS, "{\"input\": [\"a\"]}");
    assert_int_equal(again.status, 200);
    reply_free(&r);
    reply_free(&again);
    server_rest(s);
    server_stop(s);
}

static void allocation_faults_leave_nothing(void **state) {
    (void)state;
    server *s = start(4, false);
    for (uint64_t n = 1; n < 120; n++) {
        gs_fault_set(GS_FAULT_ALLOC, n, 12);
        int fd = dial(s);
        send_request(fd, "POST", EMBEDDINGS, "", "{\"input\": [\"a\", \"bc\", \"def\"]}");
        char part[4096];
        while (recv(fd, part, sizeof part, 0) > 0) /* an answer, an error, or a cut connection */
            ;
        close(fd);
        gs_fault_clear();
        server_rest(s);
    }
    reply r = post(s, EMBEDDINGS, "{\"input\": \"a\"}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    server_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_text_many_texts_and_token_ids),
        cmocka_unit_test(base64_and_dimensions),
        cmocka_unit_test(many_texts_pass_a_short_queue),
        cmocka_unit_test(wrong_requests_name_their_field),
        cmocka_unit_test(too_long_is_an_error_or_is_cut),
        cmocka_unit_test(ollama_shapes),
        cmocka_unit_test(ranks_documents),
        cmocka_unit_test(a_client_that_leaves_takes_its_texts_along),
        cmocka_unit_test(a_failed_step_is_an_error),
        cmocka_unit_test(allocation_faults_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
