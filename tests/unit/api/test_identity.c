/* Who may ask, from which host names and pages, and who shares whose prefix cache. */
#include "server.h"

static int status(const server *s, const char *path, const char *headers) {
    reply r = ask(s, "GET", path, headers, NULL);
    int code = r.status;
    reply_free(&r);
    return code;
}

static void hosts_that_a_foreign_name_server_could_point_here_are_refused(void **state) {
    (void)state;
    static const char *const allowed[] = {"pot.example", "other.example"};
    static const struct {
        const char *host;
        int status;
    } cases[] = {
        {"localhost", 200},
        {"LOCALHOST:11434", 200},
        {"chat.localhost:1", 200},
        {"127.0.0.1", 200},
        {"127.0.0.1:8080", 200},
        {"192.168.1.7", 200},
        {"[::1]:11434", 200},
        {"[fe80::1]", 200},
        {"pot.example", 200},
        {"Pot.Example:11434", 200},
        {"evil.example", 403},
        {"evil.example:11434", 403},
        {"localhost.evil.example", 403},
        {"127.0.0.1.evil.example", 403},
        {"xlocalhost", 403},
        {"sub.pot.example", 403},
        {"pot.example.evil", 403},
        {"1.2.3.4.5", 403},
        {"127.0.0.1@evil.example", 403},
        {"[::1].evil.example", 403},
        {"[::1", 403},
        {"localhost:80.evil.example", 403},
    };
    server *s = server_new();
    s->ac.allowed_hosts = allowed;
    s->ac.n_allowed_hosts = 2;
    server_start(s);
    char own[256] = "", line[400];
    assert_int_equal(gethostname(own, sizeof own - 1), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(line, sizeof line, "Host: %s\r\n", cases[i].host);
        int got = status(s, "/v1/models", line);
        /* The http layer may find a host malformed before anybody asks whose it is. */
        if (got != cases[i].status && !(cases[i].status == 403 && got == 400))
            fail_msg("%s: %d", cases[i].host, got);
        assert_int_equal(status(s, "/health", "Host: localhost\r\n"), 200);
    }
    snprintf(line, sizeof line, "Host: %s:11434\r\n", own);
    assert_int_equal(status(s, "/v1/models", line), 200);
    server_stop(s);
}

static void pages_of_foreign_origins_are_refused(void **state) {
    (void)state;
    static const char *const allowed[] = {"https://app.example"};
    static const struct {
        const char *origin;
        int status;
    } cases[] = {
        {"http://localhost:3000", 200},
        {"https://127.0.0.1", 200},
        {"http://[::1]:5000", 200},
        {"https://app.example", 200},
        {"http://192.168.1.7:11434", 200}, /* the page that this very host serves */
        {"app://obsidian.md", 200},
        {"tauri://localhost", 200},
        {"http://tauri.localhost", 200},
        {"vscode-webview://1abc", 200},
        {"apps://evil.example", 403},
        {"http://app.example", 403},
        {"http://localhost.", 403},
        {"https://evil.example", 403},
        {"http://localhost.evil.example", 403},
        {"null", 403},
        {"file://", 403},
        {"chrome-extension://abc", 403},
        {"http://192.168.1.7:80", 403},
        {"ftp://localhost", 403},
        {"https://app.example.evil", 403},
        {"localhost", 403},
    };
    server *s = server_new();
    s->ac.allowed_origins = allowed;
    s->ac.n_allowed_origins = 1;
    server_start(s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256], echo[256];
        snprintf(line, sizeof line, "Host: 192.168.1.7:11434\r\nOrigin: %s\r\n", cases[i].origin);
        snprintf(echo, sizeof echo, "Access-Control-Allow-Origin: %s\r\n", cases[i].origin);
        for (int preflight = 0; preflight < 2; preflight++) {
            reply r = ask(s, preflight ? "OPTIONS" : "GET",
                          preflight ? "/v1/chat/completions" : "/v1/models", line, NULL);
            int want = cases[i].status == 200 && preflight ? 204 : cases[i].status;
            if (r.status != want)
                fail_msg("%s: %d", cases[i].origin, r.status);
            assert_int_equal(strstr(r.text, echo) != NULL, cases[i].status == 200);
            assert_int_equal(strstr(r.text, "Allow-Origin: ") != NULL, cases[i].status == 200);
            reply_free(&r);
        }
    }
    server_stop(s);
}

static void keys(void **state) {
    (void)state;
    static const char *const list[] = {"sk-first", "sk-second-longer"};
    static const struct {
        const char *headers;
        int status;
    } cases[] = {
        {"", 401},
        {"Authorization: Bearer sk-first\r\n", 200},
        {"Authorization: bearer   sk-second-longer\r\n", 200},
        {"X-Api-Key: sk-first\r\n", 200},
        {"Authorization: Basic xyz\r\nX-Api-Key: sk-first\r\n", 200},
        {"Authorization: Bearer sk-firs\r\n", 401},
        {"Authorization: Bearer sk-firstx\r\n", 401},
        {"Authorization: Bearer sk-firsT\r\n", 401},
        {"Authorization: Bearer xk-first\r\n", 401},
        {"Authorization: Bearer sk-firstsk-first\r\n", 401},
        {"Authorization: Bearer \r\n", 401},
        {"Authorization: Bearer\r\n", 401},
        {"Authorization: sk-first\r\n", 401},
        {"X-Api-Key: \r\n", 401},
    };
    server *s = server_new();
    s->ac.api_keys = list;
    s->ac.n_api_keys = 2;
    server_start(s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reply r = ask(s, "GET", "/v1/models", cases[i].headers, NULL);
        if (r.status != cases[i].status)
            fail_msg("%s: %d", cases[i].headers, r.status);
        if (r.status == 401) {
            assert_string_equal(str_at(&r, "error.code"), "invalid_api_key");
            assert_non_null(strstr(r.text, "WWW-Authenticate: Bearer"));
        }
        reply_free(&r);
    }
    assert_int_equal(status(s, "/health", ""), 200);
    assert_int_equal(status(s, "/ready", ""), 200);
    assert_int_equal(status(s, "/metrics", ""), 401);
    server_stop(s);
}

/* Prompt tokens found in the prefix cache. */
static int64_t cached(const server *s, const char *headers, const char *user) {
    char body[512];
    snprintf(body, sizeof body, "{\"prompt\": \"%0200d\", \"max_tokens\": 1%s%s%s}", 0,
             user ? ", \"user\": \"" : "", user ? user : "", user ? "\"" : "");
    reply r = ask(s, "POST", "/v1/completions", headers, body);
    assert_int_equal(r.status, 200);
    int64_t n = int_at(&r, "usage.prompt_tokens_details.cached_tokens");
    reply_free(&r);
    return n;
}

static void persons_do_not_see_each_others_prefixes(void **state) {
    (void)state;
    server *s = server_new();
    server_start(s);
    assert_int_equal(cached(s, "", "mina"), 0);
    assert_true(cached(s, "", "mina") > 100);
    assert_int_equal(cached(s, "", "jun"), 0);
    assert_int_equal(cached(s, "", NULL), 0);
    assert_true(cached(s, "", NULL) > 100);
    assert_true(cached(s, "", "jun") > 100);
    server_stop(s);
}

static void keys_are_persons_whatever_user_says(void **state) {
    (void)state;
    static const char *const list[] = {"a", "b"};
    server *s = server_new();
    s->ac.api_keys = list;
    s->ac.n_api_keys = 2;
    server_start(s);
    assert_int_equal(cached(s, "X-Api-Key: a\r\n", "mina"), 0);
    assert_true(cached(s, "X-Api-Key: a\r\n", "jun") > 100);
    assert_int_equal(cached(s, "X-Api-Key: b\r\n", "mina"), 0);
    server_stop(s);
}

/* More names than the table of persons holds: all are served. */
static void the_table_of_persons_may_overflow(void **state) {
    (void)state;
    server *s = server_new();
    server_start(s);
    for (int i = 0; i < 100; i++) {
        char user[32];
        snprintf(user, sizeof user, "user %d", i);
        assert_int_equal(cached(s, "", user), 0);
        assert_true(cached(s, "", user) > 100);
    }
    server_stop(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_that_a_foreign_name_server_could_point_here_are_refused),
        cmocka_unit_test(pages_of_foreign_origins_are_refused),
        cmocka_unit_test(keys),
        cmocka_unit_test(persons_do_not_see_each_others_prefixes),
        cmocka_unit_test(keys_are_persons_whatever_user_says),
        cmocka_unit_test(the_table_of_persons_may_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
