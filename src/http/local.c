/* Requests that came over no socket: the same object, answered into a buffer. */
#include <string.h>

#include "base/sys.h"
#include "http/conn_impl.h"

struct gs_local {
    void *owner;
    void (*answer)(void *arg, int status, const char *body, size_t n);
    void *arg;
    int status; /* of a begun answer */
    gs_buf out;
};

gs_http_request *gs_http_local_create(const gs_http_local *l) {
    gs_http_request *rq = gs_calloc(1, sizeof(*rq));
    struct gs_local *own = gs_calloc(1, sizeof(*own));
    size_t n_method = strlen(l->method) + 1, n_path = strlen(l->path) + 1;
    if (!rq || !own || gs_buf_add(&rq->msg.head, l->method, n_method) != 0 ||
        gs_buf_add(&rq->msg.head, l->path, n_path) != 0 ||
        gs_buf_add(&rq->msg.body, l->body, l->n_body) != 0) {
        gs_free(own);
        gs_http_request_free(rq);
        return NULL;
    }
    *own = (struct gs_local){.owner = l->owner, .answer = l->answer, .arg = l->arg};
    rq->local = own;
    rq->msg.method = rq->msg.head.data;
    rq->msg.path = rq->msg.head.data + n_method;
    rq->msg.query = "";
    rq->delivered = true;
    return rq;
}

void *gs_http_local_owner(const gs_http_request *rq) {
    return rq->local ? rq->local->owner : NULL;
}

void gs_http_local_leave(gs_http_request *rq) {
    rq->local->answer = NULL;
}

void gs_local_free(struct gs_local *l) {
    if (!l)
        return;
    gs_buf_deinit(&l->out);
    gs_free(l);
}

/* The request's end: first its own, so that the answer's reader may do anything. */
static void finish(gs_http_request *rq, int status, const char *body, size_t n) {
    struct gs_local *l = rq->local;
    rq->local = NULL;
    gs_http_request_free(rq);
    if (l->answer)
        l->answer(l->arg, status, body, n);
    gs_local_free(l);
}

void gs_local_reply(gs_http_request *rq, int status, const char *body, size_t n) {
    if (rq->begun && status == 200) { /* the head has gone out already */
        gs_local_write(rq, body, n);
        gs_local_end(rq, false);
    } else {
        finish(rq, rq->begun ? 0 : status, body, rq->begun ? 0 : n);
    }
}

void gs_local_begin(gs_http_request *rq, int status) {
    rq->begun = true;
    rq->local->status = status;
}

void gs_local_write(gs_http_request *rq, const char *data, size_t n) {
    gs_buf_add(&rq->local->out, data, n);
}

void gs_local_end(gs_http_request *rq, bool broken) {
    struct gs_local *l = rq->local;
    bool lost = broken || l->out.failed;
    finish(rq, lost ? 0 : l->status, lost || !l->out.data ? "" : l->out.data,
           lost ? 0 : l->out.len);
}
