/* The client against a peer that says what it is told to, in clear and over TLS. */
#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "cert.h"
#include "faults/fault.h"
#include "http/client.h"

typedef enum ending {
    CLOSE, /* with TLS: after saying so */
    CUT,   /* with TLS: without a word */
    RESET,
    STAY /* until the client goes */
} ending;

typedef struct script {
    const char *says; /* with the zero byte as a pause between two pieces, "" twice ends it */
    size_t n;         /* 0: up to its end */
    ending end;
    bool early; /* speaks without having heard a request */
} script;

/* ---- The peer ---------------------------------------------------------------------------------
 */

typedef struct peer {
    int fd;
    struct sockaddr_in addr;
    const script *script;
    SSL_CTX *tls; /* NULL: in clear */
    char heard[65536];
    size_t n_heard;
    uv_thread_t thread;
} peer;

static ssize_t hear(int c, SSL *ssl, void *buf, size_t n) {
    return ssl ? SSL_read(ssl, buf, (int)n) : recv(c, buf, n, 0);
}

static void say(int c, SSL *ssl, const char *text, size_t n) {
    if (ssl)
        SSL_write(ssl, text, (int)n);
    else
        (void)!send(c, text, n, MSG_NOSIGNAL);
}

/* The head, and a body if it has a length. */
static bool is_whole(const peer *p) {
    const char *end = memmem(p->heard, p->n_heard, "\r\n\r\n", 4);
    const char *length = memmem(p->heard, p->n_heard, "Content-Length: ", 16);
    if (!end)
        return false;
    const size_t n = length && length < end ? strtoul(length + 16, NULL, 10) : 0;
    return p->n_heard >= (size_t)(end + 4 - p->heard) + n;
}

static void play(peer *p, int c, SSL *ssl) {
    const script *s = p->script;
    ssize_t n = 1;
    while (!s->early && n > 0 && p->n_heard < sizeof(p->heard) && !is_whole(p)) {
        n = hear(c, ssl, p->heard + p->n_heard, sizeof(p->heard) - p->n_heard);
        p->n_heard += n > 0 ? (size_t)n : 0;
    }
    const size_t len = s->n ? s->n : strlen(s->says);
    for (size_t at = 0; at < len;) {
        const size_t part = strnlen(s->says + at, len - at);
        say(c, ssl, s->says + at, part);
        at += part + 1;
        if (at < len)
            poll(NULL, 0, 5);
    }
    if (s->end == CLOSE && ssl)
        SSL_shutdown(ssl);
    char rest[256];
    while (s->end == STAY && hear(c, ssl, rest, sizeof(rest)) > 0) {
    }
}

static void run_peer(void *arg) {
    peer *p = arg;
    int c = accept(p->fd, NULL, NULL);
    if (c < 0)
        return;
    SSL *ssl = NULL;
    if (p->tls && (ssl = SSL_new(p->tls))) {
        SSL_set_fd(ssl, c);
        if (SSL_accept(ssl) == 1)
            play(p, c, ssl);
        SSL_free(ssl);
    } else {
        play(p, c, NULL);
    }
    const struct linger hard = {.l_onoff = 1};
    if (p->script->end == RESET)
        setsockopt(c, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close(c);
}

static void start_peer(peer *p, const script *s, SSL_CTX *tls) {
    socklen_t n = sizeof(p->addr);
    *p = (peer){.fd = socket(AF_INET, SOCK_STREAM, 0), .script = s, .tls = tls};
    p->addr =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(p->fd, (struct sockaddr *)&p->addr, sizeof(p->addr)), 0);
    assert_int_equal(listen(p->fd, 1), 0);
    assert_int_equal(getsockname(p->fd, (struct sockaddr *)&p->addr, &n), 0);
    assert_int_equal(uv_thread_create(&p->thread, run_peer, p), 0);
}

static void stop_peer(peer *p) {
    shutdown(p->fd, SHUT_RDWR);
    uv_thread_join(&p->thread);
    close(p->fd);
}

/* ---- One exchange ------------------------------------------------------------------------------
 */

typedef enum when { NEVER, AT_HEAD, AT_BODY, AT_ONCE } when;

typedef struct talk {
    gs_http_fetch *fetch;
    when cancel, pause;
    uv_timer_t timer; /* that ends the pause */
    size_t n_paused;  /* bytes of the body that had come when it ended */
    bool deaf;        /* nobody hears of it */
    int status, n_heads, n_ends, code;
    gs_buf body;
    char kind[64]; /* Content-Type of the answer */
    char reason[200];
} talk;

static void on_head(void *user, int status) {
    talk *t = user;
    const char *kind = gs_http_fetch_header(t->fetch, "content-type");
    t->status = status;
    t->n_heads++;
    snprintf(t->kind, sizeof(t->kind), "%s", kind ? kind : "none");
    if (t->pause == AT_HEAD)
        gs_http_fetch_pause(t->fetch, true);
    if (t->cancel == AT_HEAD)
        gs_http_fetch_cancel(t->fetch);
}

static void on_pause_end(uv_timer_t *timer) {
    talk *t = timer->data;
    t->n_paused = t->body.len;
    gs_http_fetch_pause(t->fetch, false);
    uv_close((uv_handle_t *)timer, NULL);
}

static void on_body(void *user, const char *data, size_t n) {
    talk *t = user;
    gs_buf_add(&t->body, data, n);
    if (t->cancel == AT_BODY)
        gs_http_fetch_cancel(t->fetch);
}

static void on_end(void *user, int code) {
    talk *t = user;
    /* Whatever came: a part of a head, or a trailer. */
    assert_null(gs_http_fetch_header(t->fetch, "x-trailer"));
    assert_int_equal(gs_http_fetch_header(t->fetch, "content-type") != NULL,
                     t->n_heads > 0 && strcmp(t->kind, "none") != 0);
    t->n_ends++;
    t->code = code;
    snprintf(t->reason, sizeof(t->reason), "%s", gs_http_fetch_reason(t->fetch));
}

/* The loop has nothing left when the exchange is over: no handle stays. */
static void run_talk(talk *t, gs_http_fetch_config *cfg, const struct sockaddr_in *addr) {
    uv_loop_t loop;
    assert_int_equal(uv_loop_init(&loop), 0);
    cfg->addr = (const struct sockaddr_storage *)addr;
    cfg->method = cfg->method ? cfg->method : "GET";
    cfg->host = "here";
    cfg->path = "/x";
    cfg->on_head = t->deaf ? NULL : on_head;
    cfg->on_body = t->deaf ? NULL : on_body;
    cfg->on_end = t->deaf ? NULL : on_end;
    cfg->user = t;
    t->fetch = gs_http_fetch_start(&loop, cfg);
    if (t->pause != NEVER) {
        t->timer.data = t;
        assert_int_equal(uv_timer_init(&loop, &t->timer), 0);
        assert_int_equal(uv_timer_start(&t->timer, on_pause_end, 350, 0), 0);
    }
    if (t->pause == AT_ONCE)
        gs_http_fetch_pause(t->fetch, true);
    if (t->fetch && t->cancel == AT_ONCE)
        gs_http_fetch_cancel(t->fetch);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    if (t->body.len > 0)
        gs_buf_cstr(&t->body);
}

static void exchange(talk *t, peer *p, const script *s, SSL_CTX *tls, gs_http_fetch_config *cfg) {
    start_peer(p, s, tls);
    run_talk(t, cfg, &p->addr);
    stop_peer(p);
}

/* ---- Answers -----------------------------------------------------------------------------------
 */

static void answers(void **state) {
    (void)state;
    static const struct {
        const char *name;
        script script;
        gs_http_limits limits;
        int code, status;
        const char *body;
    } cases[] = {
        {"a length",
         {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 0, STAY, 0},
         {0},
         0,
         200,
         "hello"},
        {"chunks",
         {"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
          0, STAY, 0},
         {0},
         0,
         404,
         "hello"},
        {"a trailer",
         {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nContent-Type: "
          "no\r\nX-Trailer: yes\r\n\r\n",
          0, STAY, 0},
         {0},
         0,
         200,
         "hi"},
        {"a trailer that is cut",
         {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Trail", 0, CLOSE,
          0},
         {0},
         GS_ERR_IO,
         200,
         "hi"},
        {"the end of the connection",
         {"HTTP/1.1 200 OK\r\n\r\nhello", 0, CLOSE, 0},
         {0},
         0,
         200,
         "hello"},
        {"nothing in it", {"HTTP/1.1 204 No\r\n\r\n", 0, STAY, 0}, {0}, 0, 204, ""},
        {"continue first",
         {"HTTP/1.1 100 Continue\r\nContent-Type: no\r\n\r\nHTTP/1.1 200 OK\r\n"
          "Content-Length: 2\r\n\r\nhi",
          0, STAY, 0},
         {0},
         0,
         200,
         "hi"},
        {"cut in the body",
         {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", 0, CLOSE, 0},
         {0},
         GS_ERR_IO,
         200,
         "hel"},
        {"cut in the head", {"HTTP/1.1 200 O", 0, CLOSE, 0}, {0}, GS_ERR_IO, 0, ""},
        {"nothing", {"", 0, CLOSE, 0}, {0}, GS_ERR_IO, 0, ""},
        {"reset", {"", 0, RESET, 0}, {0}, GS_ERR_IO, 0, ""},
        {"no HTTP", {"SSH-2.0-OpenSSH\r\n", 0, STAY, 0}, {0}, GS_ERR_FORMAT, 0, ""},
        {"silence", {"", 0, STAY, 0}, {.head_ms = 1}, GS_ERR_TIMEOUT, 0, ""},
        {"silence in the body",
         {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", 0, STAY, 0},
         {.head_ms = 60000, .silence_ms = 1},
         GS_ERR_TIMEOUT,
         200,
         "hel"},
        {"a long head",
         {"HTTP/1.1 200 OK\r\nX: 0123456789012345678901234567890\r\n", 0, STAY, 0},
         {.head_bytes = 40},
         GS_ERR_TOO_LARGE,
         0,
         ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        peer p;
        talk t = {0};
        gs_http_fetch_config cfg = {.limits = cases[i].limits};
        exchange(&t, &p, &cases[i].script, NULL, &cfg);
        if (t.n_ends != 1 || t.code != cases[i].code || t.status != cases[i].status ||
            t.n_heads != (cases[i].status != 0) ||
            strcmp(t.body.data ? t.body.data : "", cases[i].body) != 0)
            fail_msg("%s: %d ends with %d, %d heads, status %d, body '%s'", cases[i].name, t.n_ends,
                     t.code, t.n_heads, t.status, t.body.data ? t.body.data : "");
        assert_string_equal(t.reason, "");
        gs_buf_deinit(&t.body);
    }
}

static void what_is_asked(void **state) {
    (void)state;
    const script s = {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0, STAY, false};
    peer p;
    talk t = {0};
    gs_http_fetch_config cfg = {
        .method = "POST", .headers = "X-A: 1\r\n", .body = "body", .n_body = 4};
    exchange(&t, &p, &s, NULL, &cfg);
    assert_int_equal(t.code, 0);
    const char want[] = "POST /x HTTP/1.1\r\nHost: here\r\nConnection: close\r\nX-A: 1\r\n"
                        "Content-Length: 4\r\n\r\nbody";
    assert_int_equal(p.n_heard, sizeof(want) - 1);
    assert_memory_equal(p.heard, want, sizeof(want) - 1);
}

/* Names in any case, cut anywhere; what is beyond the limit of what is kept is not there. */
static void headers(void **state) {
    (void)state;
    peer p;
    talk t = {0};
    gs_http_fetch_config cfg = {0};
    const char cut[] =
        "HTTP/1.1 200 OK\r\nX-A: b\r\nConTENT-\0TyPe: text/\0plain\r\nX-Last:\r\nContent-"
        "Length: 0\r\n\r\n";
    exchange(&t, &p, &(script){cut, sizeof(cut) - 1, STAY, false}, NULL, &cfg);
    assert_int_equal(t.code, 0);
    assert_string_equal(t.kind, "text/plain");
    gs_buf big = {0};
    gs_buf_str(&big, "HTTP/1.1 200 OK\r\n");
    for (int i = 0; i < 700; i++)
        gs_buf_printf(&big, "X-%d: %0100d\r\n", i, i);
    gs_buf_str(&big, "Content-Type: text/plain\r\nContent-Length: 0\r\n\r\n");
    t = (talk){0};
    exchange(&t, &p, &(script){gs_buf_cstr(&big), 0, STAY, false}, NULL, &cfg);
    assert_int_equal(t.code, 0);
    assert_string_equal(t.kind, "none");
    gs_buf_deinit(&big);
}

static void given_up(void **state) {
    (void)state;
    const script s = {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 0, STAY, false};
    for (when w = AT_HEAD; w <= AT_ONCE; w++) {
        peer p;
        talk t = {.cancel = w};
        gs_http_fetch_config cfg = {.limits = {.head_ms = 60000}};
        exchange(&t, &p, &s, NULL, &cfg);
        assert_int_equal(t.n_ends, 0);
        assert_int_equal(t.n_heads, w != AT_ONCE);
        assert_int_equal(t.body.len, w == AT_BODY ? 5 : 0);
        gs_buf_deinit(&t.body);
    }
    gs_http_fetch_cancel(NULL);
}

static void nobody_there(void **state) {
    (void)state;
    peer p = {.fd = socket(AF_INET, SOCK_STREAM, 0)};
    socklen_t n = sizeof(p.addr);
    p.addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(p.fd, (struct sockaddr *)&p.addr, sizeof(p.addr)), 0);
    assert_int_equal(getsockname(p.fd, (struct sockaddr *)&p.addr, &n), 0);
    talk t = {0};
    gs_http_fetch_config cfg = {0};
    run_talk(&t, &cfg, &p.addr); /* bound, and nobody listens */
    assert_int_equal(t.n_ends, 1);
    assert_int_equal(t.code, GS_ERR_UNAVAILABLE);
    close(p.fd);
    p.addr.sin_family = AF_UNIX;
    t = (talk){0};
    run_talk(&t, &cfg, &p.addr);
    assert_null(t.fetch);
    assert_int_equal(t.n_ends, 0);
}

/* A head fits, what follows does not: some of it comes. */
static void more_than_its_limit(void **state) {
    (void)state;
    enum { N = 200000, LIMIT = 100000 };
    gs_buf big = {0};
    gs_buf_printf(&big, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%0*d", N, N, 7);
    peer p;
    talk t = {0};
    gs_http_fetch_config cfg = {.limits = {.bytes = LIMIT}};
    exchange(&t, &p, &(script){gs_buf_cstr(&big), 0, STAY, false}, NULL, &cfg);
    assert_int_equal(t.n_ends, 1);
    assert_int_equal(t.code, GS_ERR_TOO_LARGE);
    assert_int_equal(t.status, 200);
    assert_true(t.body.len <= LIMIT);
    gs_buf_deinit(&t.body);
    gs_buf_deinit(&big);
}

/* More than a tick's worth waits, and all of it comes. */
static void a_rate(void **state) {
    (void)state;
    enum { N = 250000 };
    gs_buf big = {0};
    gs_buf_printf(&big, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%0*d", N, N, 7);
    peer p;
    talk t = {0};
    gs_http_fetch_config cfg = {.limits = {.silence_ms = 30000, .rate = 1000000}};
    exchange(&t, &p, &(script){gs_buf_cstr(&big), 0, STAY, false}, NULL, &cfg);
    assert_int_equal(t.code, 0);
    assert_int_equal(t.body.len, N);
    assert_int_equal(t.body.data[N - 1], '7');
    gs_buf_deinit(&t.body);
    gs_buf_deinit(&big);
}

/* What is not wanted yet stays with the sender, and no limit of time counts meanwhile. */
static void a_pause(void **state) {
    (void)state;
    enum { N = 4000000 };
    gs_buf big = {0};
    gs_buf_printf(&big, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%0*d", N, N, 7);
    static const when pauses[] = {AT_HEAD, AT_ONCE};
    for (int i = 0; i < 2; i++) {
        peer p;
        talk t = {.pause = pauses[i]};
        gs_http_fetch_config cfg = {
            .limits = {.connect_ms = 150, .head_ms = 30000, .silence_ms = 150, .rate = 1u << 30}};
        exchange(&t, &p, &(script){gs_buf_cstr(&big), 0, STAY, false}, NULL, &cfg);
        assert_int_equal(t.n_ends, 1);
        assert_int_equal(t.code, 0);
        assert_int_equal(t.body.len, N);
        /* Of the piece that the head came with, or nothing. */
        assert_true(t.n_paused <= (t.pause == AT_HEAD ? 65536 : 0));
        gs_buf_deinit(&t.body);
    }
    gs_buf_deinit(&big);
}

static void nobody_hears_of_it(void **state) {
    (void)state;
    const script s = {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 0, STAY, false};
    peer p;
    talk t = {.deaf = true};
    gs_http_fetch_config cfg = {.method = "PUT", .body = "body", .n_body = 4};
    exchange(&t, &p, &s, NULL, &cfg);
    assert_int_equal(p.n_heard, strlen("PUT /x HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"
                                       "Content-Length: 4\r\n\r\nbody"));
    assert_int_equal(t.body.len, 0);
}

/* Each call that needs the system fails in its turn. */
static void each_call_fails(void **state) {
    (void)state;
    enum { INIT = 1, CONNECT, READ, WRITE, READ_ON, NONE, N = 250000 };
    gs_buf big = {0};
    gs_buf_printf(&big, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%0*d", N, N, 7);
    static const int codes[] = {
        [READ] = GS_ERR_UNAVAILABLE, [WRITE] = GS_ERR_IO, [READ_ON] = GS_ERR_IO, [NONE] = 0};
    for (uint64_t call = INIT; call <= NONE; call++) {
        peer p;
        talk t = {0};
        const script s = {gs_buf_cstr(&big), 0, STAY, false};
        gs_http_fetch_config cfg = {.limits = {.rate = 1000000}};
        start_peer(&p, &s, NULL);
        gs_fault_set(GS_FAULT_NET, call, 0);
        run_talk(&t, &cfg, &p.addr);
        gs_fault_clear();
        stop_peer(&p);
        assert_int_equal(t.fetch != NULL, call >= READ);
        assert_int_equal(t.n_ends, call >= READ);
        assert_int_equal(t.code, call >= READ ? codes[call] : 0);
        assert_int_equal(t.status, call >= READ_ON ? 200 : 0);
        assert_int_equal(t.body.len == N, call == NONE);
        gs_buf_deinit(&t.body);
    }
    gs_buf_deinit(&big);
}

/* ---- URLs --------------------------------------------------------------------------------------
 */

static void urls(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool tls;
        const char *host, *name, *port, *base; /* host NULL: refused */
    } cases[] = {
        {"http://a", false, "a", "a", "80", ""},
        {"HTTPS://a.b:8443/", true, "a.b:8443", "a.b", "8443", ""},
        {"https://a/v1//", true, "a", "a", "443", "/v1"},
        {"http://[::1]:81/v1/x", false, "[::1]:81", "::1", "81", "/v1/x"},
        {"http://[::1]", false, "[::1]", "::1", "80", ""},
        {.text = "ftp://a"},
        {.text = "http://"},
        {.text = "http://:80"},
        {.text = "http://[]:80"},
        {.text = "http://a:"},
        {.text = "http://a:b"},
        {.text = "http://a:123456"},
        {.text = "http://a:80x"},
        {.text = "http://u@a"},
        {.text = "http://a/?q"},
        {.text = "http://a/#f"},
        {.text = "http://a\\b"},
        {.text = "http://a\"b"},
        {.text = "http://a b"},
        {.text = "http://\xc3\xa4"},
    };
    char err[256], text[400];
    gs_http_url u;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int rc = gs_http_url_split(cases[i].text, &u, err, sizeof(err));
        if (rc != (cases[i].host ? 0 : GS_ERR_INVALID))
            fail_msg("%s: %d", cases[i].text, rc);
        if (!cases[i].host) {
            assert_non_null(strstr(err, "is no http:// or https:// URL"));
            continue;
        }
        assert_int_equal(u.tls, cases[i].tls);
        assert_string_equal(u.host, cases[i].host);
        assert_string_equal(u.name, cases[i].name);
        assert_string_equal(u.port, cases[i].port);
        assert_string_equal(u.base, cases[i].base);
    }
    snprintf(text, sizeof(text), "http://%0250d", 1);
    assert_int_equal(gs_http_url_split(text, &u, err, sizeof(err)), GS_ERR_INVALID);
    snprintf(text, sizeof(text), "http://a/%0300d", 1);
    assert_int_equal(gs_http_url_split(text, &u, err, sizeof(err)), GS_ERR_INVALID);
}

static void addresses(void **state) {
    (void)state;
    char err[256], text[128];
    gs_http_url u;
    uv_loop_t loop;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(gs_http_url_parse(&loop, "http://127.0.0.1:81/v1", &u, err, sizeof(err)), 0);
    const struct sockaddr_in *a = (const struct sockaddr_in *)&u.addr;
    assert_int_equal(a->sin_family, AF_INET);
    assert_int_equal(ntohl(a->sin_addr.s_addr), INADDR_LOOPBACK);
    assert_int_equal(ntohs(a->sin_port), 81);
    assert_int_equal(gs_http_url_parse(&loop, "https://a", &u, err, sizeof(err)),
                     GS_ERR_UNSUPPORTED);
    assert_int_equal(gs_http_url_parse(&loop, "a", &u, err, sizeof(err)), GS_ERR_INVALID);
    snprintf(text, sizeof(text), "http://x%080d", 1); /* no label is so long: nobody is asked */
    assert_int_equal(gs_http_url_parse(&loop, text, &u, err, sizeof(err)), GS_ERR_IO);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* ---- TLS ---------------------------------------------------------------------------------------
 */

static char ca_file[64];
static SSL_CTX *server_tls;

static int make_tls(void **state) {
    (void)state;
    server_tls = SSL_CTX_new(TLS_server_method());
    return server_tls && new_cert(ca_file, server_tls) ? 0 : -1;
}

static int drop_tls(void **state) {
    (void)state;
    SSL_CTX_free(server_tls);
    return unlink(ca_file);
}

static void over_tls(void **state) {
    (void)state;
    static const char hello[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    static const char open[] = "HTTP/1.1 200 OK\r\n\r\nhello";
    static const struct {
        const char *name;
        script script;
        const char *whom;
        bool known, speaks_tls;
        int code;
        const char *body, *reason;
    } cases[] = {
        // clang-format off
        {"a name", {hello, 0, STAY, 0}, "localhost", true, true, 0, "hello", ""},
        {"an address", {hello, 0, STAY, 0}, "127.0.0.1", true, true, 0, "hello", ""},
        {"its end is said", {open, 0, CLOSE, 0}, "localhost", true, true, 0, "hello", ""},
        {"its end is not said", {open, 0, CUT, 0}, "localhost", true, true, GS_ERR_IO, "hello", ""},
        {"another name", {hello, 0, STAY, 0}, "other", true, true, GS_ERR_UNAVAILABLE, "", "hostname mismatch"},
        {"another address", {hello, 0, STAY, 0}, "::1", true, true, GS_ERR_UNAVAILABLE, "", "IP address mismatch"},
        {"an unknown issuer", {hello, 0, STAY, 0}, "localhost", false, true, GS_ERR_UNAVAILABLE, "", "self-signed certificate"},
        {"no TLS", {hello, 0, STAY, true}, "localhost", true, false, GS_ERR_UNAVAILABLE, "", "TLS failed: "},
        {"no TLS, and it goes", {"", 0, CLOSE, true}, "localhost", true, false, GS_ERR_UNAVAILABLE, "", ""},
        // clang-format on
    };
    char err[256];
    gs_tls_context *known = NULL, *system = NULL;
    assert_int_equal(gs_tls_context_create(ca_file, &known, err, sizeof(err)), 0);
    assert_int_equal(gs_tls_context_create(NULL, &system, err, sizeof(err)), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        peer p;
        talk t = {0};
        gs_http_fetch_config cfg = {.tls = cases[i].known ? known : system,
                                    .tls_name = cases[i].whom};
        exchange(&t, &p, &cases[i].script, cases[i].speaks_tls ? server_tls : NULL, &cfg);
        if (t.n_ends != 1 || t.code != cases[i].code ||
            strcmp(t.body.data ? t.body.data : "", cases[i].body) != 0 ||
            !strstr(t.reason, cases[i].reason) || (!cases[i].reason[0] && t.reason[0]))
            fail_msg("%s: %d ends with %d, body '%s', %s", cases[i].name, t.n_ends, t.code,
                     t.body.data ? t.body.data : "", t.reason);
        gs_buf_deinit(&t.body);
    }
    gs_tls_context_free(known);
    gs_tls_context_free(system);
}

static void a_handshake_that_does_not_come(void **state) {
    (void)state;
    char err[256];
    gs_tls_context *tls = NULL;
    peer p;
    talk t = {0};
    assert_int_equal(gs_tls_context_create(ca_file, &tls, err, sizeof(err)), 0);
    gs_http_fetch_config cfg = {.tls = tls, .tls_name = "localhost", .limits = {.connect_ms = 1}};
    exchange(&t, &p, &(script){"", 0, STAY, true}, NULL, &cfg);
    assert_int_equal(t.n_ends, 1);
    assert_int_equal(t.code, GS_ERR_UNAVAILABLE);
    gs_tls_context_free(tls);
}

/* More than a record in both directions. */
static void long_bodies_over_tls(void **state) {
    (void)state;
    enum { N = 40000 };
    char err[256];
    gs_buf says = {0}, asks = {0};
    gs_tls_context *tls = NULL;
    assert_int_equal(gs_tls_context_create(ca_file, &tls, err, sizeof(err)), 0);
    gs_buf_printf(&says, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%0*d", N, N, 7);
    gs_buf_printf(&asks, "%0*d", N, 8);
    peer p;
    talk t = {0};
    gs_http_fetch_config cfg = {.method = "POST",
                                .body = asks.data,
                                .n_body = asks.len,
                                .tls = tls,
                                .tls_name = "localhost"};
    exchange(&t, &p, &(script){gs_buf_cstr(&says), 0, STAY, false}, server_tls, &cfg);
    assert_int_equal(t.code, 0);
    assert_int_equal(t.body.len, N);
    assert_int_equal(t.body.data[N - 1], '7');
    assert_memory_equal(p.heard + p.n_heard - N, asks.data, N);
    gs_tls_context_free(tls);
    gs_buf_deinit(&t.body);
    gs_buf_deinit(&says);
    gs_buf_deinit(&asks);
}

static void authorities_that_cannot_be_read(void **state) {
    (void)state;
    char err[256];
    gs_tls_context *tls = NULL;
    assert_int_equal(gs_tls_context_create("/nowhere.pem", &tls, err, sizeof(err)), GS_ERR_IO);
    assert_non_null(strstr(err, "/nowhere.pem: no certificates could be read"));
    gs_tls_context_free(NULL);
    gs_tls_free(NULL);
}

/* ---- Each allocation fails once ----------------------------------------------------------------
 */

static void each_allocation_fails(void **state) {
    (void)state;
    static const char hello[] =
        "HTTP/1.1 200 OK\r\nContent-Type: a\r\nContent-Length: 5\r\n\r\nhello";
    const script s = {hello, 0, STAY, false};
    for (int with_tls = 0; with_tls < 2; with_tls++) {
        uint64_t n = UINT64_MAX;
        for (uint64_t i = 0; i <= n; i++) {
            char err[256];
            gs_tls_context *tls = NULL;
            peer p;
            talk t = {0};
            /* 0: none fails, and they are counted. */
            gs_fault_set(GS_FAULT_ALLOC, i ? i : UINT64_MAX, 0);
            const int rc = with_tls ? gs_tls_context_create(ca_file, &tls, err, sizeof(err)) : 0;
            gs_http_fetch_config cfg = {.tls = tls, .tls_name = "localhost"};
            if (rc == 0)
                exchange(&t, &p, &s, with_tls ? server_tls : NULL, &cfg);
            else
                assert_int_equal(rc, GS_ERR_NOMEM);
            n = i ? n : gs_fault_calls(GS_FAULT_ALLOC);
            gs_fault_clear();
            /* What is left of it is whole, or it says that it failed. */
            assert_int_equal(t.n_ends, t.fetch ? 1 : 0);
            if (t.n_ends && t.code == 0) {
                assert_int_equal(t.status, 200);
                assert_string_equal(t.kind, "a");
                assert_true(t.body.failed || strcmp(t.body.data, "hello") == 0);
            }
            assert_true(i != 0 || t.code == 0);
            gs_tls_context_free(tls);
            gs_buf_deinit(&t.body);
        }
        assert_true(n >= 3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers),
        cmocka_unit_test(what_is_asked),
        cmocka_unit_test(headers),
        cmocka_unit_test(given_up),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(more_than_its_limit),
        cmocka_unit_test(a_rate),
        cmocka_unit_test(a_pause),
        cmocka_unit_test(nobody_hears_of_it),
        cmocka_unit_test(each_call_fails),
        cmocka_unit_test(urls),
        cmocka_unit_test(addresses),
        cmocka_unit_test_setup_teardown(over_tls, make_tls, drop_tls),
        cmocka_unit_test_setup_teardown(a_handshake_that_does_not_come, make_tls, drop_tls),
        cmocka_unit_test_setup_teardown(long_bodies_over_tls, make_tls, drop_tls),
        cmocka_unit_test(authorities_that_cannot_be_read),
        cmocka_unit_test_setup_teardown(each_allocation_fails, make_tls, drop_tls),
    };
    signal(SIGPIPE, SIG_IGN); /* the peer writes to clients that have gone */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
