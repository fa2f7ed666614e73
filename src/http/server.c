/* Listening, accepting within limits, the shared timer and flush list, drain and close. */
#include "http/conn_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"

#define BACKLOG 512
/* Connections taken per turn: a flood of new ones must not starve those that are open. */
#define ACCEPT_PER_TURN 64
#define ACCEPT_PAUSE_MS 500
#define WARN_EVERY_MS   60000
/* Descriptors kept for the rest of the process: log, database, event loop, model files. */
#define SPARE_FDS 64

void gs_http_config_default(gs_http_config *c) {
    *c = (gs_http_config){
        .max_connections = 2048,
        .max_connections_per_address = 256,
        .header_timeout_ms = 10000,
        .body_timeout_ms = 30000,
        .min_body_bytes_per_s = 1024,
        .keep_alive_ms = 75000,
        .write_timeout_ms = 30000,
        .max_line_bytes = 8192,
        .max_header_bytes = 32768,
        .max_headers = 64,
        .max_body_bytes = 4u << 20,
        .max_buffered_bytes = 64u << 10,
    };
}

int gs_http_port(const gs_http_server *s) {
    return s->port;
}

uint64_t gs_http_bytes(const gs_http_server *s) {
    uint64_t n = sizeof(*s) + s->body_bytes;
    const gs_http_conn *c;
    LIST_FOREACH(c, &s->conns, link)
    n += sizeof(*c) + c->pipe.cap + c->out.cap + c->sending.cap;
    return n;
}

uint64_t gs_http_max_bytes(const gs_http_server *s) {
    const uint64_t unsent = (uint64_t)GS_HTTP_FLOOD_FACTOR * s->cfg.max_buffered_bytes;
    return sizeof(*s) + s->max_all_bodies_bytes +
           (uint64_t)s->cfg.max_connections * (sizeof(gs_http_conn) + GS_HTTP_PIPE_BYTES + unsent);
}

int gs_http_n_connections(const gs_http_server *s) {
    return s->n_conns;
}

/* ---- Connections per address -------------------------------------------------------------- */

/* IPv6 counts by /64, because one machine has all of it to choose from. */
static uint64_t peer_key(const struct sockaddr_storage *sa) {
    uint64_t key = 0;
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;
    if (sa->ss_family == AF_INET6) {
        memcpy(&v6, sa, sizeof v6);
        memcpy(&key, &v6.sin6_addr, sizeof key);
    } else {
        memcpy(&v4, sa, sizeof v4);
        key = v4.sin_addr.s_addr;
    }
    return key;
}

static struct gs_http_peer_list *peer_bucket(gs_http_server *s, uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    return &s->peers[(key >> 32) & (s->n_peer_buckets - 1)];
}

/* Counts one connection more, or returns NULL: *full tells whether the limit was the reason. */
static gs_http_peer_count *peer_take(gs_http_server *s, uint64_t key, bool *full) {
    struct gs_http_peer_list *list = peer_bucket(s, key);
    gs_http_peer_count *pc;
    *full = false;
    LIST_FOREACH(pc, list, link)
    if (pc->key == key)
        break;
    if (!pc) {
        pc = gs_calloc(1, sizeof *pc);
        if (!pc)
            return NULL;
        pc->key = key;
        LIST_INSERT_HEAD(list, pc, link);
    }
    if (pc->n >= s->cfg.max_connections_per_address) {
        *full = true;
        return NULL;
    }
    pc->n++;
    return pc;
}

void gs_server_peer_release(gs_http_server *s, gs_http_peer_count *pc) {
    (void)s;
    if (!pc || --pc->n > 0)
        return;
    LIST_REMOVE(pc, link);
    gs_free(pc);
}

/* ---- Accepting ---------------------------------------------------------------------------- */

static void warn_sometimes(gs_http_server *s, const char *what, const char *why) {
    int64_t now = (int64_t)uv_now(s->loop);
    if (s->warned_ms && now - s->warned_ms < WARN_EVERY_MS)
        return;
    s->warned_ms = now;
    gs_warn("http", "%s: %s", what, why);
}

/* The cheapest refusal, for when there is no room for a connection object. */
static void refuse_at_once(int fd) {
    static const char text[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                               "X-Content-Type-Options: nosniff\r\n"
                               "Connection: close\r\nContent-Length: 0\r\n\r\n";
    char sink[4096];
    (void)send(fd, text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR);
    /* Unread bytes at close would turn into a reset that overtakes the answer. */
    for (int i = 0; i < 4 && recv(fd, sink, sizeof sink, MSG_DONTWAIT) > 0; i++)
        ;
    close(fd);
}

static void admit(gs_http_server *s, int fd) {
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof sa;
    if (getpeername(fd, (struct sockaddr *)&sa, &len)) {
        close(fd); /* gone already */
        return;
    }
    if (s->n_conns >= s->cfg.max_connections + GS_HTTP_MAX_LINGER) {
        warn_sometimes(s, "connection refused", "too many connections");
        refuse_at_once(fd);
        return;
    }
    if (s->n_conns - s->n_lingering >= s->cfg.max_connections) {
        warn_sometimes(s, "connection refused", "too many connections");
        gs_conn_open(s, fd, NULL, "too many connections");
        return;
    }
    bool full;
    gs_http_peer_count *pc = peer_take(s, peer_key(&sa), &full);
    if (pc)
        gs_conn_open(s, fd, pc, NULL);
    else if (full)
        gs_conn_open(s, fd, NULL, "too many connections from this address");
    else
        refuse_at_once(fd);
}

/* Without descriptors the kernel would report the same waiting client for ever. One descriptor
 * is kept in reserve to take that client and tell it. */
static bool refuse_with_reserve(gs_http_server *s, int listen_fd) {
    if (s->reserve_fd < 0)
        return false;
    close(s->reserve_fd);
    int fd = gs_accept(listen_fd);
    if (fd >= 0)
        refuse_at_once(fd);
    s->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd >= 0;
}

static void pause_accepting(gs_http_server *s) {
    for (int i = 0; i < s->n_listeners; i++)
        uv_poll_stop(&s->listeners[i].poll);
    s->accept_resume_ms = (int64_t)uv_now(s->loop) + ACCEPT_PAUSE_MS;
    gs_server_start_tick(s);
}

static void on_acceptable(uv_poll_t *poll, int status, int events) {
    (void)status; /* an error of the listening socket shows up in accept as well */
    (void)events;
    gs_http_server *s = poll->data;
    int listen_fd;
    if (uv_fileno((const uv_handle_t *)poll, &listen_fd))
        return;
    for (int i = 0; i < ACCEPT_PER_TURN && !s->draining; i++) {
        int fd = gs_accept(listen_fd);
        if (fd >= 0) {
            admit(s, fd);
        } else if (errno == EAGAIN) {
            return;
        } else if (errno == EMFILE || errno == ENFILE) {
            warn_sometimes(s, "cannot accept", gs_errno_text(errno));
            if (!refuse_with_reserve(s, listen_fd)) {
                pause_accepting(s);
                return;
            }
        } else if (errno == ENOMEM || errno == ENOBUFS || errno == EINVAL || errno == EBADF) {
            warn_sometimes(s, "cannot accept", gs_errno_text(errno));
            pause_accepting(s);
            return;
        } /* else: that connection's own error (accept(2)), the next may be fine */
    }
}

static void watch_listeners(gs_http_server *s) {
    s->accept_resume_ms = 0;
    for (int i = 0; i < s->n_listeners; i++)
        uv_poll_start(&s->listeners[i].poll, UV_READABLE, on_acceptable);
}

/* ---- Shared timer and flush list ---------------------------------------------------------- */

/* A loop that stood still (stopped process, suspended machine) finds every deadline in the past
 * before it could read what had arrived. The lost time is given back to everyone. */
static void give_back(gs_http_server *s, int64_t late_ms) {
    gs_http_conn *c;
    LIST_FOREACH(c, &s->conns, link) {
        if (c->deadline_ms != INT64_MAX)
            c->deadline_ms += late_ms;
        c->moved_ms += late_ms;
    }
}

static void on_tick(uv_timer_t *t) {
    gs_http_server *s = t->data;
    int64_t now = (int64_t)uv_now(s->loop);
    int64_t late = now - s->next_tick_ms;
    if (late > s->tick_ms)
        give_back(s, late);
    s->next_tick_ms = now + s->tick_ms;
    gs_http_conn *c;
    LIST_FOREACH(c, &s->conns, link)
    gs_conn_tick(c, now);
    if (s->accept_resume_ms && now >= s->accept_resume_ms && !s->draining)
        watch_listeners(s);
    if (LIST_EMPTY(&s->conns) && !s->accept_resume_ms)
        uv_timer_stop(t); /* an idle server wakes up for nothing */
}

void gs_server_start_tick(gs_http_server *s) {
    if (s->closing || uv_is_active((const uv_handle_t *)&s->tick))
        return;
    s->next_tick_ms = (int64_t)uv_now(s->loop) + s->tick_ms;
    uv_timer_start(&s->tick, on_tick, (uint64_t)s->tick_ms, (uint64_t)s->tick_ms);
}

/* Runs once per turn before the loop waits, after all callbacks of the turn before. */
static void on_flush(uv_idle_t *h) {
    gs_http_server *s = h->data;
    gs_http_conn *c;
    /* What gets dirty meanwhile waits for the next turn, so that sockets are looked at as well. */
    for (int n = s->n_dirty; n > 0 && (c = TAILQ_FIRST(&s->dirty)); n--) {
        TAILQ_REMOVE(&s->dirty, c, dirty_link);
        s->n_dirty--;
        c->dirty = false;
        gs_conn_flush(c);
    }
    if (s->n_dirty == 0)
        uv_idle_stop(h);
}

void gs_server_start_flush(gs_http_server *s) {
    if (!s->closing)
        uv_idle_start(&s->flush, on_flush);
}

/* ---- Listening ---------------------------------------------------------------------------- */

static int parse_host(const char *host, int port, struct sockaddr_storage *sa, socklen_t *len) {
    memset(sa, 0, sizeof *sa);
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)sa) == 0)
        *len = sizeof(struct sockaddr_in);
    else if (uv_ip6_addr(host, port, (struct sockaddr_in6 *)sa) == 0)
        *len = sizeof(struct sockaddr_in6);
    else
        return GS_ERR_INVALID;
    return GS_OK;
}

static int bind_failed(int e, const char *host, int port, char *err, size_t errlen) {
    if (e == EADDRINUSE)
        return gs_fail(err, errlen, GS_ERR_EXISTS,
                       "port %d on %s is already in use (is Ollama or another gamasot running?); "
                       "stop it or choose another port",
                       port, host);
    if (e == EACCES)
        return gs_fail(err, errlen, GS_ERR_FORBIDDEN,
                       "port %d on %s needs rights that this user lacks; choose one above 1023",
                       port, host);
    if (e == EADDRNOTAVAIL)
        return gs_fail(err, errlen, GS_ERR_INVALID, "%s is no address of this machine", host);
    return gs_fail(err, errlen, GS_ERR_IO, "cannot listen on %s port %d: %s", host, port,
                   gs_errno_text(e));
}

/* *fd is -1 with GS_OK when the machine lacks the address family. */
static int open_listener(const char *host, int port, int *out_fd, char *err, size_t errlen) {
    struct sockaddr_storage sa;
    socklen_t len;
    int one = 1;
    *out_fd = -1;
    if (parse_host(host, port, &sa, &len))
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "\"%s\" is no IP address to listen on, such as 127.0.0.1 or ::1", host);
    bool v6 = sa.ss_family == AF_INET6;
    int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return v6 && errno == EAFNOSUPPORT ? GS_OK : bind_failed(errno, host, port, err, errlen);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (v6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(fd, (const struct sockaddr *)&sa, len) || listen(fd, BACKLOG)) {
        int e = errno;
        close(fd);
        /* IPv6 switched off by sysctl leaves the family but no address, not even "::1". */
        return v6 && e == EADDRNOTAVAIL && (strcmp(host, "::1") == 0 || strcmp(host, "::") == 0)
                   ? GS_OK
                   : bind_failed(e, host, port, err, errlen);
    }
    *out_fd = fd;
    return GS_OK;
}

static int bound_port(int fd) {
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof sa;
    struct sockaddr_in any;
    getsockname(fd, (struct sockaddr *)&sa, &len);
    /* The port lies at the same place in both families. */
    memcpy(&any, &sa, sizeof any);
    return ntohs(any.sin_port);
}

static int open_listeners(gs_http_server *s, char *err, size_t errlen) {
    s->port = s->cfg.port;
    for (int i = 0; i < s->cfg.n_hosts; i++) {
        int fd;
        int rc = open_listener(s->cfg.hosts[i], s->port, &fd, err, errlen);
        if (rc)
            return rc;
        if (fd < 0) {
            gs_info("http", "not listening on %s: no IPv6 on this machine", s->cfg.hosts[i]);
            continue;
        }
        s->listeners[s->n_listeners++].fd = fd;
        s->port = bound_port(fd); /* port 0: all addresses share what the first one got */
    }
    if (s->n_listeners == 0)
        return gs_fail(err, errlen, GS_ERR_IO, "none of the addresses to listen on can be used");
    return GS_OK;
}

/* ---- Life --------------------------------------------------------------------------------- */

/* Connections must never use the process's last descriptor: with our own limit below the
 * kernel's, clients get a 503 instead of silence. */
static void fit_to_fd_limit(gs_http_server *s) {
    struct rlimit r;
    rlim_t want = (rlim_t)s->cfg.max_connections + GS_HTTP_MAX_LINGER + SPARE_FDS;
    if (getrlimit(RLIMIT_NOFILE, &r))
        return;
    if (r.rlim_cur < want) {
        r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
        if (setrlimit(RLIMIT_NOFILE, &r) || getrlimit(RLIMIT_NOFILE, &r))
            return;
    }
    if (r.rlim_cur >= want)
        return;
    int fit = (int)r.rlim_cur - GS_HTTP_MAX_LINGER - SPARE_FDS;
    s->cfg.max_connections = fit > 8 ? fit : 8;
    gs_warn("http", "the limit of open files (%ld) allows only %d connections", (long)r.rlim_cur,
            s->cfg.max_connections);
}

/* A quarter of the shortest time-out, so that none is exceeded by more than that; one second with
 * the usual values. */
static int64_t tick_for(const gs_http_config *c) {
    const int all[] = {c->header_timeout_ms, c->body_timeout_ms, c->keep_alive_ms,
                       c->write_timeout_ms};
    int64_t t = 4000;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        t = all[i] < t ? all[i] : t;
    return t / 4 < 5 ? 5 : t / 4;
}

static void free_server(gs_http_server *s) {
    for (int i = 0; i < s->n_listeners; i++)
        if (s->listeners[i].fd >= 0)
            close(s->listeners[i].fd);
    if (s->reserve_fd >= 0)
        close(s->reserve_fd);
    gs_free(s->listeners);
    gs_free(s->peers);
    gs_free(s);
}

static void free_if_done(gs_http_server *s) {
    if (!s->closing || s->n_handles > 0 || s->n_conns > 0)
        return;
    void (*done)(void *) = s->done;
    void *arg = s->done_arg;
    free_server(s);
    if (done)
        done(arg);
}

static void on_handle_closed(uv_handle_t *h) {
    gs_http_server *s = h->data;
    s->n_handles--;
    free_if_done(s);
}

void gs_server_conn_closed(gs_http_server *s, gs_http_conn *c) {
    LIST_REMOVE(c, link);
    s->n_conns--;
    free_if_done(s);
}

static int alloc_server(uv_loop_t *loop, const gs_http_config *cfg, gs_http_server **out) {
    gs_http_server *s = gs_calloc(1, sizeof *s);
    if (!s)
        return GS_ERR_NOMEM;
    s->loop = loop;
    s->cfg = *cfg;
    s->reserve_fd = -1;
    LIST_INIT(&s->conns);
    TAILQ_INIT(&s->dirty);
    for (s->n_peer_buckets = 16; s->n_peer_buckets < (size_t)cfg->max_connections;)
        s->n_peer_buckets *= 2;
    s->peers = gs_calloc(s->n_peer_buckets, sizeof *s->peers);
    s->listeners = gs_calloc((size_t)cfg->n_hosts, sizeof *s->listeners);
    *out = s;
    if (!s->peers || !s->listeners)
        return GS_ERR_NOMEM;
    s->limits = (gs_http_msg_limits){.max_line_bytes = cfg->max_line_bytes,
                                     .max_header_bytes = cfg->max_header_bytes,
                                     .max_body_bytes = cfg->max_body_bytes,
                                     .max_headers = cfg->max_headers,
                                     .body_limit = cfg->body_limit,
                                     .user = cfg->user};
    s->max_all_bodies_bytes = 8 * cfg->max_body_bytes > GS_HTTP_ALL_BODIES_BYTES
                                  ? 8 * cfg->max_body_bytes
                                  : GS_HTTP_ALL_BODIES_BYTES;
    s->tick_ms = tick_for(cfg);
    return GS_OK;
}

/* From the first uv_*_init on, the server can only end through gs_http_server_close. */
static int start_handles(gs_http_server *s) {
    uv_timer_init(s->loop, &s->tick);
    uv_idle_init(s->loop, &s->flush);
    s->tick.data = s->flush.data = s;
    s->n_handles = 2;
    for (int i = 0; i < s->n_listeners; i++) {
        gs_http_listener *l = &s->listeners[i];
        int rc = uv_poll_init(s->loop, &l->poll, l->fd);
        if (rc) {
            for (int k = i; k < s->n_listeners; k++)
                close(s->listeners[k].fd);
            s->n_listeners = i;
            return rc;
        }
        l->poll.data = s;
        s->n_handles++;
    }
    watch_listeners(s);
    return 0;
}

int gs_http_server_create(uv_loop_t *loop, const gs_http_config *cfg, gs_http_server **out,
                          char *err, size_t errlen) {
    gs_http_server *s = NULL;
    int rc;
    *out = NULL;
    if (!cfg->on_request || cfg->n_hosts < 1)
        return gs_fail(err, errlen, GS_ERR_INVALID, "no address to listen on is configured");
    rc = alloc_server(loop, cfg, &s);
    if (rc)
        gs_fail(err, errlen, rc, "out of memory");
    else
        rc = open_listeners(s, err, errlen);
    if (rc) {
        if (s)
            free_server(s);
        return rc;
    }
    /* Writing to a socket that the client closed must be an error code, not a signal. */
    signal(SIGPIPE, SIG_IGN);
    fit_to_fd_limit(s);
    s->reserve_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int uv_rc = start_handles(s);
    if (uv_rc) {
        gs_http_server_close(s, NULL, NULL);
        return gs_fail(err, errlen, GS_ERR_IO, "cannot watch the listening socket: %s",
                       uv_strerror(uv_rc));
    }
    *out = s;
    return GS_OK;
}

static void stop_listening(gs_http_server *s) {
    for (int i = 0; i < s->n_listeners; i++) {
        gs_http_listener *l = &s->listeners[i];
        if (l->fd < 0)
            continue;
        uv_close((uv_handle_t *)&l->poll, on_handle_closed);
        close(l->fd);
        l->fd = -1;
    }
    s->accept_resume_ms = 0;
}

void gs_http_server_drain(gs_http_server *s) {
    if (s->draining)
        return;
    s->draining = true;
    stop_listening(s);
    gs_http_conn *c;
    LIST_FOREACH(c, &s->conns, link)
    if (c->state == GS_CONN_IDLE)
        gs_conn_close(c);
}

void gs_http_server_close(gs_http_server *s, void (*done)(void *arg), void *arg) {
    if (s->closing)
        return;
    s->done = done;
    s->done_arg = arg;
    s->draining = true;
    s->closing = true;
    stop_listening(s);
    uv_close((uv_handle_t *)&s->tick, on_handle_closed);
    uv_close((uv_handle_t *)&s->flush, on_handle_closed);
    gs_http_conn *c;
    LIST_FOREACH(c, &s->conns, link)
    gs_conn_close(c);
}
