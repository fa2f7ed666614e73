#include "pull/helper.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/sys.h"
#include "pull/pull_impl.h"

#define LOOK_MS  100 /* between two looks at progress, and at who wants to cancel */
#define MAX_NEWS GS_GGUF_MAX_SHARDS

/* Both ends are one program. */
typedef struct order {
    char source[2048];
    char name[GS_MODEL_NAME_BYTES];
    char sha256[65];
} order;

/* How far one part is; with ENDED how it went. */
typedef struct news {
    int32_t phase; /* gs_pull_phase; ASKING while parts are named */
    int32_t n_parts, part;
    int64_t bytes, n_done;
    char sha256[65]; /* of a registry's, while parts are named */
    int32_t code;
    int32_t up_to_date;
    char err[512];
} news;

/* ---- The helper ------------------------------------------------------------------------------ */

typedef struct job {
    const gs_pull_config *cfg;
    int fd;
    gs_pull *pull;
    bool named;                /* all parts were */
    int64_t n_done[MAX_NEWS];  /* that the server knows of */
    int64_t n_bytes[MAX_NEWS]; /* likewise */
} job;

typedef struct helper {
    const gs_pull_config *cfg;
    int fd;
} helper;

static void *run_pull(void *arg) {
    gs_pull_run(arg);
    return NULL;
}

/* A server that is gone needs nothing any more. */
static void tell(const job *j, const news *n) {
    if (send(j->fd, n, sizeof *n, MSG_NOSIGNAL) < 0 && j->pull)
        atomic_store(&j->pull->cancel, true);
}

static void tell_part(job *j, int i, gs_pull_phase phase) {
    const gs_pull_part *part = &j->pull->parts[i];
    news n = {.phase = phase, .n_parts = j->pull->n_parts, .part = i};
    n.bytes = j->n_bytes[i] = atomic_load(&part->bytes);
    n.n_done = j->n_done[i] = atomic_load(&part->n_done);
    if (phase == GS_PULL_ASKING && j->pull->source.kind == GS_SOURCE_REGISTRY)
        memcpy(n.sha256, part->sha256, sizeof n.sha256);
    tell(j, &n);
}

static void tell_progress(job *j, int phase) {
    const int n = phase == GS_PULL_ASKING ? 0 : j->pull->n_parts;
    for (int i = 0; i < n && !j->named; i++)
        tell_part(j, i, GS_PULL_ASKING);
    j->named = n > 0;
    for (int i = 0; i < n; i++)
        if (atomic_load(&j->pull->parts[i].n_done) != j->n_done[i] ||
            atomic_load(&j->pull->parts[i].bytes) != j->n_bytes[i])
            tell_part(j, i, (gs_pull_phase)phase);
}

/* Whatever the server says now means that it does not want it any more; so does its end. */
static void watch_pull(job *j) {
    struct pollfd p = {.fd = j->fd, .events = POLLIN};
    for (int phase; (phase = atomic_load(&j->pull->phase)) != GS_PULL_ENDED;) {
        tell_progress(j, phase);
        if (atomic_load(&j->pull->cancel))
            nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
        else if (poll(&p, 1, LOOK_MS) > 0)
            atomic_store(&j->pull->cancel, true);
    }
}

static int do_order(job *j, order *o, char *err, size_t errlen) {
    gs_pull_config pc = *j->cfg;
    pthread_t thread;
    o->source[sizeof o->source - 1] = o->name[sizeof o->name - 1] =
        o->sha256[sizeof o->sha256 - 1] = '\0';
    pc.source = o->source;
    pc.name = o->name;
    pc.sha256 = o->sha256;
    int rc = gs_pull_create(&pc, &j->pull, err, errlen);
    if (rc != GS_OK)
        return rc;
    if (pthread_create(&thread, NULL, run_pull, j->pull) != 0)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "could not start a thread");
    watch_pull(j);
    pthread_join(thread, NULL);
    if (j->pull->code == GS_OK)
        tell_progress(j, GS_PULL_WRITING);
    snprintf(err, errlen, "%s", j->pull->err);
    return j->pull->code;
}

static void *serve_one(void *arg) {
    job *j = arg;
    order o;
    news end = {.phase = GS_PULL_ENDED};
    if (recv(j->fd, &o, sizeof o, 0) == (ssize_t)sizeof o) {
        end.code = do_order(j, &o, end.err, sizeof end.err);
        end.up_to_date = j->pull && j->pull->up_to_date;
        tell(j, &end);
    }
    gs_pull_free(j->pull);
    close(j->fd);
    gs_free(j);
    return NULL;
}

/* The channel of the next order; -1: the server is gone. */
static int next_channel(int fd) {
    char byte;
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec io = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n;
    int channel = -1;
    do
        n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&channel, CMSG_DATA(c), sizeof channel);
    return channel;
}

_Noreturn static void helper_main(const helper *h) {
    int channel;
    while ((channel = next_channel(h->fd)) >= 0) {
        pthread_t thread;
        job *j = gs_calloc(1, sizeof *j);
        if (!j) {
            close(channel);
            continue;
        }
        j->cfg = h->cfg;
        j->fd = channel;
        if (pthread_create(&thread, NULL, serve_one, j) == 0) {
            pthread_detach(thread);
        } else {
            close(channel);
            gs_free(j);
        }
    }
    _exit(0); /* what is under way is taken up by the next server */
}

/* ---- The server ------------------------------------------------------------------------------ */

int gs_pull_helper_start(const gs_pull_config *cfg, void (*confine)(void *arg), void *arg,
                         gs_pull_helper *out, char *err, size_t errlen) {
    int pair[2];
    *out = (gs_pull_helper){.fd = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return gs_fail(err, errlen, GS_ERR_IO, "socketpair: %s", gs_errno_text(errno));
    const pid_t server = getpid(), pid = fork();
    if (pid < 0) {
        close(pair[0]);
        close(pair[1]);
        return gs_fail(err, errlen, GS_ERR_NOMEM, "fork: %s", gs_errno_text(errno));
    }
    if (pid == 0) {
        const helper h = {cfg, pair[1]};
        close_range(3, (unsigned)pair[1] - 1, 0); /* whatever the server has open */
        close_range((unsigned)pair[1] + 1, ~0U, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, "gs-puller");
        if (getppid() != server)
            _exit(0);
        signal(SIGINT, SIG_IGN); /* a terminal's, meant for the server, which tells us */
        confine(arg);
        helper_main(&h);
    }
    close(pair[1]);
    *out = (gs_pull_helper){pair[0], pid};
    return GS_OK;
}

/* channel's other end becomes the helper's. */
static bool hand_over(const gs_pull_helper *h, int channel) {
    char byte = 0;
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.room = {0}};
    struct iovec io = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &channel, sizeof channel);
    return sendmsg(h->fd, &m, MSG_NOSIGNAL) == 1;
}

/* The parts are made before others may look at them. False: it makes no sense. */
static bool take_part(gs_pull *p, const news *n) {
    const bool naming = n->phase == GS_PULL_ASKING;
    if (n->n_parts < 1 || n->n_parts > GS_GGUF_MAX_SHARDS || n->part < 0 || n->part >= n->n_parts ||
        n->bytes < -1 || n->n_done < 0 || memchr(n->sha256, '\0', sizeof n->sha256) == NULL ||
        (p->parts ? n->n_parts != p->n_parts : !naming) ||
        (naming && atomic_load(&p->phase) != GS_PULL_ASKING))
        return false;
    if (!p->parts && gs_pull_make_parts(p, n->n_parts) != GS_OK)
        return false;
    gs_pull_part *part = &p->parts[n->part];
    if (naming)
        memcpy(part->sha256, n->sha256, sizeof part->sha256);
    atomic_store(&part->bytes, n->bytes);
    atomic_store(&part->n_done, n->n_done);
    if (!naming)
        atomic_store(&p->phase, n->phase);
    return true;
}

static void take_end(gs_pull *p, const news *n) {
    p->code = n->code <= 0 && n->code >= GS_ERR_STALLED ? n->code : GS_ERR_INTERNAL;
    p->up_to_date = n->up_to_date != 0;
    snprintf(p->err, sizeof p->err, "%.*s", (int)strnlen(n->err, sizeof n->err - 1), n->err);
    if (p->code != GS_OK && !p->err[0])
        gs_fail_text(p->err, sizeof p->err, "%s", gs_err_text(p->code));
}

static int lost(gs_pull *p) {
    return gs_fail(p->err, sizeof p->err, GS_ERR_UNAVAILABLE,
                   "the process that fetches models for this server has ended; it comes back when "
                   "the server is started anew, and `gamasot models pull` needs neither");
}

static void listen_to(gs_pull *p, int channel) {
    struct pollfd ready = {.fd = channel, .events = POLLIN};
    bool told = false;
    news n;
    do {
        if (atomic_load(&p->cancel) && !told) {
            send(channel, "", 1, MSG_NOSIGNAL);
            told = true;
        }
        if (poll(&ready, 1, LOOK_MS) <= 0) {
            n.phase = GS_PULL_ASKING;
            continue;
        }
        if (recv(channel, &n, sizeof n, 0) != (ssize_t)sizeof n) {
            p->code = lost(p);
            return;
        }
        if (n.phase < GS_PULL_ASKING || n.phase > GS_PULL_ENDED ||
            (n.phase != GS_PULL_ENDED && !take_part(p, &n))) {
            p->code = gs_fail(p->err, sizeof p->err, GS_ERR_INTERNAL,
                              "the process that fetches models says what makes no sense");
            return;
        }
    } while (n.phase != GS_PULL_ENDED);
    take_end(p, &n);
}

void gs_pull_helper_run(const gs_pull_helper *h, gs_pull *p) {
    int pair[2];
    order o = {.source = ""};
    snprintf(o.source, sizeof o.source, "%s", p->cfg.source);
    snprintf(o.name, sizeof o.name, "%s", p->name);
    snprintf(o.sha256, sizeof o.sha256, "%s", p->cfg.sha256 ? p->cfg.sha256 : "");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        p->code = gs_fail(p->err, sizeof p->err, GS_ERR_UNAVAILABLE, "%s", gs_errno_text(errno));
    } else {
        const bool given = hand_over(h, pair[1]);
        close(pair[1]);
        if (given && send(pair[0], &o, sizeof o, MSG_NOSIGNAL) == (ssize_t)sizeof o)
            listen_to(p, pair[0]);
        else
            p->code = lost(p);
        close(pair[0]);
    }
    atomic_store(&p->phase, GS_PULL_ENDED);
}

void gs_pull_helper_stop(gs_pull_helper *h) {
    if (h->fd < 0)
        return;
    close(h->fd);
    waitpid(h->pid, NULL, 0); /* it ends when it hears nobody */
    h->fd = -1;
}
