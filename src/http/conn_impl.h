/*
 * Server and connection, private to http/.
 *
 * States of a connection:
 *
 *     IDLE --first byte--> HEAD --head whole--> BODY --body whole--> ANSWER --reply/end--> FLUSH
 *      ^                     |________ refused: 4xx, 503 _______________________________^   |
 *      |____________________________ keep-alive, all bytes written ________________________|
 *                                                                                           |
 *     closed <--EOF or 2 s-- LINGER <------------- Connection: close, all bytes written ----|
 *
 * Handlers may call any function of http.h at any time. So these functions only change buffers
 * and flags and put the connection on the dirty list; writing, moving on to the next request,
 * closing and on_gone happen later, from the loop. A connection is freed in its close callback
 * only, therefore pointers stay valid during one turn of the loop.
 */
#ifndef GS_HTTP_CONN_IMPL_H
#define GS_HTTP_CONN_IMPL_H

#include <sys/queue.h>

#include "http/http.h"
#include "http/parse_impl.h"

/* Bytes of pipelined requests kept while an answer is owed; more ends the connection. */
#define GS_HTTP_PIPE_BYTES 65536
#define GS_HTTP_READ_BYTES 65536
/* A client that was refused may still be sending; closing at once would reset the connection and
 * take the answer with it (RFC 9112 section 9.6). */
#define GS_HTTP_LINGER_MS   2000
#define GS_HTTP_MAX_LINGER  64
#define GS_HTTP_LINGER_READ (16u << 20)
/* A streamed answer is cut at once when this many times max_buffered_bytes wait. */
#define GS_HTTP_FLOOD_FACTOR 16
/* Request bodies of all connections together, at least. */
#define GS_HTTP_ALL_BODIES_BYTES (256u << 20)

typedef enum gs_conn_state {
    GS_CONN_IDLE,
    GS_CONN_HEAD,
    GS_CONN_BODY,
    GS_CONN_ANSWER,
    GS_CONN_FLUSH,
    GS_CONN_LINGER
} gs_conn_state;

/* Connections of one IPv4 address or IPv6 /64. */
typedef struct gs_http_peer_count {
    uint64_t key;
    int n;
    LIST_ENTRY(gs_http_peer_count) link;
} gs_http_peer_count;

typedef struct gs_http_conn {
    uv_tcp_t tcp; /* first: the handle is the connection */
    uv_write_t write_req;
    struct gs_http_server *srv;
    LIST_ENTRY(gs_http_conn) link;
    TAILQ_ENTRY(gs_http_conn) dirty_link;
    gs_http_peer_count *peer_count;
    gs_conn_state state;
    gs_http_parser parser;
    struct gs_http_request *rq; /* under construction, or owed an answer */
    gs_buf pipe;                /* bytes after the current request */
    gs_buf out;                 /* bytes not given to libuv yet */
    gs_buf sending;             /* bytes of write_req */
    int64_t deadline_ms;        /* of the state; INT64_MAX: none */
    int64_t moved_ms;           /* last time unsent bytes became fewer, or appeared */
    size_t last_queue_bytes;
    size_t window_bytes;   /* body bytes since the deadline was set */
    size_t lingered_bytes; /* discarded while lingering */
    bool dirty;
    bool closing;
    bool served;      /* a request before this one: IDLE means keep-alive */
    bool close_after; /* close when the answer is written */
    bool doomed;      /* cut at the end of the turn */
    bool reset;       /* ... with RST */
    bool eof;         /* the client sent FIN after its answer was complete */
} gs_http_conn;

struct gs_http_request {
    gs_http_msg msg;
    gs_http_conn *conn; /* NULL once the client is gone */
    void *user;
    gs_buf headers; /* what gs_http_add_header collected */
    char peer[48];
    size_t accounted_bytes;     /* of the server's body_bytes */
    gs_http_sink sink;          /* data NULL: the body is kept */
    void (*written)(void *arg); /* NULL: nobody waits */
    void *written_arg;
    struct gs_local *local; /* came over no socket */
    bool paused;
    bool delivered;
    bool begun;
    const char *type; /* once begun; borrowed from gs_http_begin */
    bool raw;         /* begun without chunked framing: HTTP/1.0 */
};

typedef struct gs_http_listener {
    uv_poll_t poll;
    int fd;
} gs_http_listener;

LIST_HEAD(gs_http_peer_list, gs_http_peer_count);
LIST_HEAD(gs_http_conn_list, gs_http_conn);
TAILQ_HEAD(gs_http_dirty_list, gs_http_conn);

struct gs_http_server {
    uv_loop_t *loop;
    gs_http_config cfg;
    gs_http_msg_limits limits;
    gs_http_listener *listeners; /* cfg.n_hosts slots, n_listeners in use */
    int n_listeners;
    int port;
    int reserve_fd; /* given up for a moment to answer 503 when the process has no more */
    uv_timer_t tick;
    uv_idle_t flush;
    int n_handles; /* open handles without connections */
    struct gs_http_conn_list conns;
    struct gs_http_dirty_list dirty;
    int n_dirty;
    int n_conns;                     /* all */
    int n_lingering;                 /* of them, closed but for the client's last bytes */
    struct gs_http_peer_list *peers; /* n_peer_buckets, a power of two */
    size_t n_peer_buckets;
    size_t body_bytes;
    size_t max_all_bodies_bytes;
    int64_t tick_ms;
    int64_t next_tick_ms;     /* when the tick is due, to notice a loop that stood still */
    int64_t accept_resume_ms; /* 0: accepting */
    int64_t warned_ms;        /* the last warning about refused connections */
    bool draining;
    bool closing;
    void (*done)(void *arg);
    void *done_arg;
    char read_buf[GS_HTTP_READ_BYTES];
};

/* ---- conn.c ---- */
/* Takes fd; closes it when there is no memory. refusal is NULL or why the client gets a 503. */
void gs_conn_open(gs_http_server *s, int fd, gs_http_peer_count *pc, const char *refusal);
void gs_conn_close(gs_http_conn *c);
void gs_conn_mark_dirty(gs_http_conn *c);
void gs_conn_flush(gs_http_conn *c);
void gs_conn_tick(gs_http_conn *c, int64_t now_ms);
/* The rest of a body that is being streamed will not come. */
void gs_conn_cut_body(gs_http_request *rq);
/* The answer is in out, or was aborted: rq no longer belongs to the connection. */
void gs_conn_answered(gs_http_conn *c);
/* Bytes that have been written by handlers and not by the kernel. */
size_t gs_conn_unsent(const gs_http_conn *c);
/* To be called before bytes are added to out. */
void gs_conn_will_write(gs_http_conn *c);

/* ---- reply.c ---- */
const char *gs_http_status_text(int status);
/* A whole answer by the server itself, closing the connection. */
void gs_conn_format_error(gs_http_conn *c, int status, const char *path, const char *message);
void gs_http_request_free(gs_http_request *rq);
void gs_http_request_account(gs_http_request *rq, gs_http_server *s, size_t bytes);

/* ---- local.c ---- */
/* What the answering functions do for a request without a socket. */
void gs_local_reply(gs_http_request *rq, int status, const char *body, size_t n);
void gs_local_begin(gs_http_request *rq, int status);
void gs_local_write(gs_http_request *rq, const char *data, size_t n);
void gs_local_end(gs_http_request *rq, bool broken);
void gs_local_free(struct gs_local *l);

/* ---- server.c ---- */
void gs_server_conn_closed(gs_http_server *s, gs_http_conn *c);
void gs_server_start_tick(gs_http_server *s);
void gs_server_start_flush(gs_http_server *s);
void gs_server_peer_release(gs_http_server *s, gs_http_peer_count *pc);

#endif
