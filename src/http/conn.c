/* One connection: reading, the state machine, writing, time-outs, the end. */
#include "http/conn_impl.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sys.h"

static int64_t now_ms(const gs_http_conn *c) {
    return (int64_t)uv_now(c->srv->loop);
}

size_t gs_conn_unsent(const gs_http_conn *c) {
    return c->out.len + uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp);
}

void gs_conn_will_write(gs_http_conn *c) {
    if (gs_conn_unsent(c) == 0)
        c->moved_ms = now_ms(c);
}

/* ---- The end ------------------------------------------------------------------------------ */

static void on_closed(uv_handle_t *h) {
    gs_http_conn *c = (gs_http_conn *)h;
    gs_buf_deinit(&c->pipe);
    gs_buf_deinit(&c->out);
    gs_buf_deinit(&c->sending);
    gs_server_conn_closed(c->srv, c);
    gs_free(c);
}

void gs_conn_close(gs_http_conn *c) {
    if (c->closing)
        return;
    gs_http_server *s = c->srv;
    gs_http_request *rq = c->rq;
    c->closing = true;
    c->rq = NULL;
    if (c->dirty) {
        TAILQ_REMOVE(&s->dirty, c, dirty_link);
        s->n_dirty--;
        c->dirty = false;
    }
    if (c->state == GS_CONN_LINGER)
        s->n_lingering--;
    gs_server_peer_release(s, c->peer_count);
    c->peer_count = NULL;
    /* RST also frees what the kernel holds for a reader that no longer reads. */
    if (!c->reset || uv_tcp_close_reset(&c->tcp, on_closed))
        uv_close((uv_handle_t *)&c->tcp, on_closed);
    if (!rq)
        return;
    gs_http_request_account(rq, s, 0);
    rq->conn = NULL;
    if (!rq->delivered) {
        gs_conn_cut_body(rq);
        gs_http_request_free(rq);
    } else if (s->cfg.on_gone)
        s->cfg.on_gone(s->cfg.user, rq); /* last: it may do anything, closing the server too */
}

static void start_linger(gs_http_conn *c) {
    gs_http_server *s = c->srv;
    int fd;
    if (c->eof || s->closing || s->n_lingering >= GS_HTTP_MAX_LINGER ||
        uv_fileno((const uv_handle_t *)&c->tcp, &fd) || shutdown(fd, SHUT_WR)) {
        gs_conn_close(c);
        return;
    }
    s->n_lingering++;
    c->state = GS_CONN_LINGER;
    c->deadline_ms = now_ms(c) + GS_HTTP_LINGER_MS;
    gs_buf_deinit(&c->pipe);
    /* It no longer counts against its address: the client was told that it is over. */
    gs_server_peer_release(s, c->peer_count);
    c->peer_count = NULL;
}

/* ---- Requests ----------------------------------------------------------------------------- */

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf);
static void on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf);

/* Answers by ourselves and closes. Nothing of the request reaches a handler. */
static void fail(gs_http_conn *c, int status, const char *message) {
    gs_http_request *rq = c->rq;
    gs_buf_deinit(&c->pipe);
    gs_conn_format_error(c, status, rq && rq->msg.path ? rq->msg.path : "", message);
    c->rq = NULL;
    if (rq) {
        gs_http_request_account(rq, c->srv, 0);
        gs_conn_cut_body(rq);
        gs_http_request_free(rq);
    }
    c->state = GS_CONN_FLUSH;
    c->deadline_ms = INT64_MAX;
    gs_conn_mark_dirty(c);
}

static bool begin_request(gs_http_conn *c) {
    gs_http_request *rq = gs_calloc(1, sizeof *rq);
    if (!rq) {
        fail(c, 503, "out of memory");
        return false;
    }
    rq->conn = c;
    struct sockaddr_storage sa;
    int len = sizeof sa;
    if (uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&sa, &len) == 0)
        uv_ip_name((const struct sockaddr *)&sa, rq->peer, sizeof rq->peer);
    c->rq = rq;
    gs_http_parser_begin(&c->parser, &c->srv->limits, &rq->msg);
    c->state = GS_CONN_HEAD;
    /* The first request's head is due header_timeout_ms after accept, which is already set. */
    if (c->served)
        c->deadline_ms = now_ms(c) + c->srv->cfg.header_timeout_ms;
    return true;
}

static void begin_body(gs_http_conn *c, bool more_bytes_here) {
    gs_http_config *cfg = &c->srv->cfg;
    const char *message = "";
    int refused = cfg->on_head ? cfg->on_head(cfg->user, c->rq, &message) : 0;
    if (refused) {
        fail(c, refused, message);
        return;
    }
    c->state = GS_CONN_BODY;
    c->deadline_ms = now_ms(c) + c->srv->cfg.body_timeout_ms;
    c->window_bytes = 0;
    if (c->rq->msg.expect_continue && !more_bytes_here) {
        gs_conn_will_write(c);
        gs_buf_str(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
        gs_conn_mark_dirty(c);
    }
}

static void deliver(gs_http_conn *c) {
    gs_http_server *s = c->srv;
    c->state = GS_CONN_ANSWER;
    c->deadline_ms = INT64_MAX;
    c->rq->delivered = true;
    if (c->rq->paused) /* to notice when the client leaves */
        uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    s->cfg.on_request(s->cfg.user, c->rq);
}

void gs_conn_cut_body(gs_http_request *rq) {
    if (rq->sink.data)
        rq->sink.cut(rq->sink.arg);
    rq->sink = (gs_http_sink){0};
}

static void hand_on(gs_http_conn *c) {
    gs_http_request *rq = c->rq;
    if (!rq->sink.data || rq->msg.body.len == 0)
        return;
    rq->sink.data(rq->sink.arg, rq->msg.body.data, rq->msg.body.len);
    gs_buf_clear(&rq->msg.body);
}

void gs_http_stream_body(gs_http_request *rq, const gs_http_sink *sink) {
    rq->sink = *sink;
}

void gs_http_pause_body(gs_http_request *rq) {
    gs_http_conn *c = rq->conn;
    if (!c || rq->paused || rq->delivered)
        return;
    rq->paused = true;
    c->deadline_ms = INT64_MAX; /* it is not the client that is slow */
    uv_read_stop((uv_stream_t *)&c->tcp);
}

void gs_http_resume_body(gs_http_request *rq) {
    gs_http_conn *c = rq->conn;
    if (!c || !rq->paused || rq->delivered)
        return;
    rq->paused = false;
    c->deadline_ms = now_ms(c) + c->srv->cfg.body_timeout_ms;
    c->window_bytes = 0;
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
}

/* Feeds bytes to the parser until the request is whole or refused; returns how many it took. */
static size_t parse(gs_http_conn *c, const char *data, size_t n) {
    gs_http_server *s = c->srv;
    size_t at = 0;
    while (at < n && c->state <= GS_CONN_BODY) {
        if (c->state == GS_CONN_IDLE && !begin_request(c))
            return n;
        size_t used;
        gs_http_parse rc = gs_http_parser_feed(&c->parser, data + at, n - at, &used);
        at += used;
        hand_on(c);
        gs_http_request_account(c->rq, s, c->rq->msg.body.cap);
        if (c->state == GS_CONN_BODY)
            c->window_bytes += used;
        if (rc == GS_HTTP_PARSE_FAIL)
            fail(c, c->parser.status, c->parser.message);
        else if (rc == GS_HTTP_PARSE_HEAD)
            begin_body(c, at < n);
        else if (rc == GS_HTTP_PARSE_DONE)
            deliver(c);
        else if (s->body_bytes > s->max_all_bodies_bytes)
            fail(c, 503, "too many large requests at once");
    }
    return at;
}

/* Bytes while no new request may begin: kept for later, within a limit. */
static void keep_for_later(gs_http_conn *c, const char *data, size_t n) {
    if (c->close_after || n == 0)
        return;
    c->pipe.secret = true;
    if (c->pipe.len + n > GS_HTTP_PIPE_BYTES || gs_buf_add(&c->pipe, data, n)) {
        c->doomed = true;
        gs_conn_mark_dirty(c);
    }
}

static void input(gs_http_conn *c, const char *data, size_t n) {
    size_t used = parse(c, data, n);
    if (!c->closing && c->state >= GS_CONN_ANSWER)
        keep_for_later(c, data + used, n - used);
}

/* The client's EOF or an error of the socket. Half-closing counts as leaving: no HTTP client that
 * wants its answer does it, and waiting for others would compute for nobody. */
static void on_client_end(gs_http_conn *c, ssize_t nread) {
    if (c->state == GS_CONN_FLUSH && nread == UV_EOF) {
        /* The answer is complete, only the writing is not. */
        c->eof = c->close_after = true;
        uv_read_stop((uv_stream_t *)&c->tcp);
        gs_conn_mark_dirty(c);
        return;
    }
    gs_conn_close(c);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf) {
    (void)suggested;
    /* One buffer serves all connections: libuv hands it back before it asks again. */
    gs_http_server *s = ((gs_http_conn *)h)->srv;
    *buf = uv_buf_init(s->read_buf, sizeof s->read_buf);
}

static void on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf) {
    gs_http_conn *c = (gs_http_conn *)stream;
    if (c->closing || nread == 0)
        return;
    if (nread < 0) {
        on_client_end(c, nread);
    } else if (c->state == GS_CONN_LINGER) {
        c->lingered_bytes += (size_t)nread;
        if (c->lingered_bytes > GS_HTTP_LINGER_READ)
            gs_conn_close(c);
    } else if (c->state >= GS_CONN_ANSWER) {
        keep_for_later(c, buf->base, (size_t)nread);
    } else {
        input(c, buf->base, (size_t)nread);
    }
    if (nread > 0)
        explicit_bzero(buf->base, (size_t)nread); /* keys in its headers */
}

/* ---- Writing ------------------------------------------------------------------------------ */

void gs_conn_mark_dirty(gs_http_conn *c) {
    gs_http_server *s = c->srv;
    if (c->dirty || c->closing)
        return;
    c->dirty = true;
    TAILQ_INSERT_TAIL(&s->dirty, c, dirty_link);
    s->n_dirty++;
    gs_server_start_flush(s);
}

void gs_conn_answered(gs_http_conn *c) {
    c->rq = NULL;
    c->state = GS_CONN_FLUSH;
    c->served = true;
    gs_conn_mark_dirty(c);
}

static void on_written(uv_write_t *req, int status) {
    gs_http_conn *c = req->data;
    gs_buf_deinit(&c->sending);
    if (c->closing)
        return;
    if (status < 0) {
        gs_conn_close(c);
        return;
    }
    c->moved_ms = now_ms(c);
    gs_conn_mark_dirty(c);
}

/* Gives the rest of out to libuv, which waits until the socket takes it. */
static int send_later(gs_http_conn *c) {
    c->sending = c->out;
    c->out = (gs_buf){0};
    uv_buf_t b = uv_buf_init(c->sending.data, 0);
    b.len = c->sending.len;
    c->write_req.data = c;
    c->last_queue_bytes = b.len;
    return uv_write(&c->write_req, (uv_stream_t *)&c->tcp, &b, 1, on_written);
}

static int send_out(gs_http_conn *c) {
    if (c->out.failed)
        return UV_ENOMEM;
    if (c->out.len == 0 || c->sending.data)
        return 0;
    size_t at = 0;
    while (at < c->out.len) {
        uv_buf_t b = uv_buf_init(c->out.data + at, 0);
        b.len = c->out.len - at;
        int r = uv_try_write((uv_stream_t *)&c->tcp, &b, 1);
        if (r == UV_EAGAIN)
            break;
        if (r < 0)
            return r;
        at += (size_t)r;
        c->moved_ms = now_ms(c);
    }
    if (at == c->out.len) {
        /* Idle connections hold no buffer, however long their answers were. */
        gs_buf_deinit(&c->out);
        return 0;
    }
    gs_buf_drop_front(&c->out, at);
    return send_later(c);
}

/* All of an answer is written: next request, or the end. */
static void next_request(gs_http_conn *c) {
    if (c->close_after || c->srv->draining) {
        start_linger(c);
        return;
    }
    c->state = GS_CONN_IDLE;
    c->deadline_ms = now_ms(c) + c->srv->cfg.keep_alive_ms;
    if (c->pipe.len == 0)
        return;
    gs_buf held = c->pipe;
    c->pipe = (gs_buf){0};
    input(c, held.data, held.len);
    gs_buf_deinit(&held);
}

static void tell_written(gs_http_request *rq) {
    void (*written)(void *) = rq->written;
    rq->written = NULL;
    written(rq->written_arg);
}

void gs_conn_flush(gs_http_conn *c) {
    int rc = send_out(c);
    if (rc < 0 || c->doomed) {
        gs_conn_close(c);
        return;
    }
    if (c->out.len > 0 || c->sending.data)
        return;
    if (c->state == GS_CONN_FLUSH)
        next_request(c);
    else if (c->rq && c->rq->written)
        tell_written(c->rq);
}

/* ---- Time --------------------------------------------------------------------------------- */

static bool is_stalled(gs_http_conn *c, int64_t now) {
    if (gs_conn_unsent(c) == 0)
        return false;
    size_t queued = uv_stream_get_write_queue_size((const uv_stream_t *)&c->tcp);
    if (queued < c->last_queue_bytes)
        c->moved_ms = now;
    c->last_queue_bytes = queued;
    return now - c->moved_ms >= c->srv->cfg.write_timeout_ms;
}

/* A body may take long, but each window of body_timeout_ms must bring its share. */
static bool body_is_slow(const gs_http_conn *c) {
    const gs_http_config *cfg = &c->srv->cfg;
    int64_t due = (int64_t)cfg->min_body_bytes_per_s * cfg->body_timeout_ms / 1000;
    return c->window_bytes == 0 || (int64_t)c->window_bytes < due;
}

void gs_conn_tick(gs_http_conn *c, int64_t now) {
    if (c->closing)
        return;
    if (is_stalled(c, now)) {
        c->reset = true;
        gs_conn_close(c);
        return;
    }
    if (now < c->deadline_ms)
        return;
    if (c->state == GS_CONN_HEAD) {
        fail(c, 408, "the request head did not arrive in time");
    } else if (c->state == GS_CONN_BODY && body_is_slow(c)) {
        fail(c, 408, "the request body arrives too slowly");
    } else if (c->state == GS_CONN_BODY) {
        c->window_bytes = 0;
        c->deadline_ms = now + c->srv->cfg.body_timeout_ms;
    } else {
        gs_conn_close(c); /* idle for too long, or lingered enough */
    }
}

/* ---- The beginning ------------------------------------------------------------------------ */

static void tune_socket(gs_http_conn *c, int fd) {
    /* Tokens are small and must not wait for each other. */
    uv_tcp_nodelay(&c->tcp, 1);
    /* A client whose network vanished sends no FIN. While we write, the kernel gives up after
     * this time without acknowledgement; while we only wait, keep-alive probes find out. */
    unsigned ms = (unsigned)c->srv->cfg.write_timeout_ms;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    uv_tcp_keepalive(&c->tcp, 1, 60);
}

void gs_conn_open(gs_http_server *s, int fd, gs_http_peer_count *pc, const char *refusal) {
    gs_http_conn *c = gs_calloc(1, sizeof *c);
    if (!c || uv_tcp_init(s->loop, &c->tcp)) {
        gs_free(c);
        close(fd);
        gs_server_peer_release(s, pc);
        return;
    }
    c->srv = s;
    c->peer_count = pc;
    c->deadline_ms = now_ms(c) + s->cfg.header_timeout_ms;
    LIST_INSERT_HEAD(&s->conns, c, link);
    s->n_conns++;
    gs_server_start_tick(s);
    if (uv_tcp_open(&c->tcp, fd)) {
        close(fd);
        gs_conn_close(c);
        return;
    }
    tune_socket(c, fd);
    if (uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read))
        gs_conn_close(c);
    else if (refusal)
        fail(c, 503, refusal);
}
