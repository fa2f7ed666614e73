/*
 * Which line of which batch runs when. Event loop.
 *
 *     TO DO ─ fetch ─► ready ─ start ─► running ─ answer ─► unkept ─ kept in the store ─► gone
 *                        ▲                 │
 *                        └── try again ────┘   429, 503, a backend that failed
 *
 * A line runs as a request of its owner without a socket, with everything that means: model and
 * aliases, the key's limits, the class background. At most background.max_lines run, so that the
 * scheduler has a choice and its queue stays short; batches take turns. When a result can't be
 * kept (full disk) no line is started until it is.
 */
#include <stdio.h>
#include <string.h>

#include "api/kept.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"

#define RETRY_NS     (2 * GS_NS_PER_S)  /* after the store has failed */
#define LONGEST_NS   (60 * GS_NS_PER_S) /* between two tries of a line */
#define PACE_NS      (30 * GS_NS_PER_S)
#define PACE_LINES   8
#define MAX_FAILURES 3 /* of the backend, for one line */

/* ---- Lists --------------------------------------------------------------------------------- */

static void list_add(gs_line_list *list, gs_line *l) {
    gs_line **at = &list->first;
    while (*at)
        at = &(*at)->next;
    l->next = NULL;
    *at = l;
    list->n++;
}

static void list_remove(gs_line_list *list, gs_line *l) {
    gs_line **at = &list->first;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    list->n--;
}

static void list_free(gs_line_list *list) {
    while (list->first) {
        gs_line *l = list->first;
        list_remove(list, l);
        gs_line_free(l);
    }
}

gs_kept_batch *gs_batches_find(const gs_kept *k, const char *id) {
    gs_kept_batch *b = k->batches;
    while (b && strcmp(b->id, id) != 0)
        b = b->next;
    return b;
}

void gs_batches_add(gs_kept *k, gs_kept_batch *b) {
    gs_kept_batch **at = &k->batches;
    while (*at)
        at = &(*at)->next;
    b->k = k;
    b->next = NULL;
    b->route = gs_api_find_route("POST", b->endpoint);
    *at = b;
}

/* The lines that run or wait are to be done by nobody, or later. */
static void take_back(gs_kept_batch *b) {
    while (b->running.first) {
        gs_line *l = b->running.first;
        list_remove(&b->running, l);
        b->k->n_running--;
        gs_http_local_leave(l->rq);
        gs_api_gone(b->k->api, l->rq);
        gs_line_free(l);
    }
    list_free(&b->ready);
}

void gs_batches_cancel(gs_kept_batch *b) {
    b->state = GS_BATCH_CANCELLING;
    take_back(b);
}

/* ---- A store that fails -------------------------------------------------------------------- */

static void store_failed(gs_kept *k, int rc, const char *err) {
    k->retry_ns = gs_now_ns() + RETRY_NS;
    if (!k->full && !k->stopping)
        gs_warn("batches", "they wait: %s", err[0] ? err : gs_err_text(rc));
    k->full = true;
    snprintf(k->last_error, sizeof(k->last_error), "%s", err);
}

static void store_works(gs_kept *k) {
    if (k->full)
        gs_info("batches", "they go on");
    k->full = false;
}

/* ---- Results ------------------------------------------------------------------------------- */

static void keep_done(gs_store_job *job) {
    gs_line *l = (gs_line *)job;
    gs_kept_batch *b = l->b;
    l->keeping = false;
    if (job->rc != 0) {
        store_failed(b->k, job->rc, job->err);
        return;
    }
    store_works(b->k);
    b->n_kept++;
    b->n_failed += l->state == GS_LINE_FAILED;
    list_remove(&b->unkept, l);
    gs_line_free(l);
}

static void keep(gs_line *l) {
    l->job = (gs_store_job){.run = gs_line_run_keep, .done = keep_done};
    int rc = gs_store_submit(l->b->k->store, &l->job);
    l->keeping = rc == 0;
    if (rc != 0)
        store_failed(l->b->k, rc, "the store is busy");
}

static void ended(gs_line *l, gs_line_state state, int status, const char *body, size_t n) {
    l->state = state;
    gs_line_write(l, status, body, n);
    list_add(&l->b->unkept, l);
    keep(l);
}

/* The engine's queue is full, the model is being loaded, the person has had enough for today, the
 * backend failed: none of this is the line's fault. */
static bool try_again(gs_line *l, int status) {
    const bool broken = status == 0 || status == 500;
    if (broken && ++l->n_failures >= MAX_FAILURES)
        return false;
    if (!broken && status != 429 && status != 503 && status != 504)
        return false;
    int64_t wait_ns = GS_NS_PER_S << (l->tries < 6 ? l->tries : 6);
    l->tries++;
    l->not_before_ns = gs_now_ns() + (wait_ns < LONGEST_NS ? wait_ns : LONGEST_NS);
    return true;
}

static void on_answer(void *arg, int status, const char *body, size_t n) {
    static const char broken[] = "{\"error\":{\"message\":\"The answer broke off.\",\"type\":"
                                 "\"server_error\",\"param\":null,\"code\":null}}";
    gs_line *l = arg;
    gs_kept_batch *b = l->b;
    l->rq = NULL;
    list_remove(&b->running, l);
    b->k->n_running--;
    if (try_again(l, status))
        list_add(&b->ready, l);
    else if (status == 0)
        ended(l, GS_LINE_FAILED, 500, broken, sizeof(broken) - 1);
    else
        ended(l, status == 200 ? GS_LINE_DONE : GS_LINE_FAILED, status, body, n);
    uv_async_send(&b->k->api->wake);
}

/* ---- Starting ------------------------------------------------------------------------------ */

static void refuse(gs_line *l, const char *message) {
    gs_buf body = {0};
    gs_api_error e;
    gs_api_fail(&e, GS_ERR_UNAUTHORIZED, NULL, "%s", message);
    gs_api_error_body(GS_ERRORS_OPENAI, &e, &body);
    ended(l, GS_LINE_FAILED, 401, body.data, body.len);
    gs_buf_deinit(&body);
}

static void start_line(gs_kept_batch *b) {
    gs_api *a = b->k->api;
    gs_line *l = b->ready.first;
    gs_identity who;
    list_remove(&b->ready, l);
    if (!gs_api_identify_owner(a, &b->owner, &who)) {
        refuse(l, "The API key that this batch came with is no longer valid.");
        return;
    }
    const gs_http_local local = {.method = "POST",
                                 .path = b->endpoint,
                                 .body = l->text,
                                 .n_body = l->n_text,
                                 .owner = &b->owner,
                                 .answer = on_answer,
                                 .arg = l};
    json_t *body = l->body ? l->body : gs_line_read_body(l);
    l->body = NULL;
    l->rq = body ? gs_http_local_create(&local) : NULL;
    if (!l->rq) {
        json_decref(body);
        try_again(l, 503);
        list_add(&b->ready, l);
        return;
    }
    list_add(&b->running, l);
    b->k->n_running++;
    gs_api_hand_over(a, b->route, l->rq, body);
}

static bool can_start(const gs_kept_batch *b, int64_t now_ns) {
    return b->state == GS_BATCH_RUNNING && b->ready.first &&
           b->ready.first->not_before_ns <= now_ns && !b->held;
}

/* The next one in turn that has a line to start; NULL: none. */
static gs_kept_batch *next_in_turn(gs_kept *k, int64_t now_ns) {
    gs_kept_batch *from = k->turn ? k->turn : k->batches, *b = from;
    if (!b)
        return NULL;
    do {
        if (can_start(b, now_ns)) {
            k->turn = b->next ? b->next : k->batches;
            return b;
        }
        b = b->next ? b->next : k->batches;
    } while (b != from);
    return NULL;
}

static void start_lines(gs_kept *k) {
    gs_api_error e;
    gs_kept_batch *b;
    const int64_t now_ns = gs_now_ns();
    if (k->full || !gs_api_ready(k->api, &e))
        return;
    while (k->n_running < k->api->cfg.config->background_max_lines &&
           (b = next_in_turn(k, now_ns)) != NULL)
        start_line(b);
}

/* ---- Work in the store --------------------------------------------------------------------- */

static void answer_waiting(gs_kept_batch *b) {
    gs_call *c = b->waiting;
    b->waiting = NULL;
    if (!c)
        return;
    c->then = NULL;
    gs_call_submit(c, gs_batch_run_get);
}

static void validated(gs_kept_batch *b) {
    b->in = b->out;
    if (!b->in.whole)
        return;
    gs_buf_deinit(&b->errors);
    if (b->state == GS_BATCH_VALIDATING)
        b->state = b->in.n_bad > 0 ? GS_BATCH_OVER : GS_BATCH_RUNNING;
    b->n_total = b->in.n_good;
    answer_waiting(b);
}

static void fetched(gs_kept_batch *b) {
    b->fetched_all = !b->fetched;
    for (gs_line *l = b->fetched, *next; l; l = next) {
        next = l->next;
        b->next_n = l->n + 1;
        if (b->state == GS_BATCH_RUNNING)
            list_add(&b->ready, l);
        else
            gs_line_free(l);
    }
    b->fetched = NULL;
}

static void begin_work(gs_kept_batch *b, gs_batch_work work);

static void work_done(gs_store_job *job) {
    gs_kept_batch *b = (gs_kept_batch *)job;
    b->busy = false;
    if (job->rc != 0) {
        store_failed(b->k, job->rc, job->err);
        return;
    }
    store_works(b->k);
    switch (b->work) {
    case GS_WORK_VALIDATE:
        validated(b);
        break;
    case GS_WORK_FETCH:
        fetched(b);
        break;
    case GS_WORK_WRITE:
        begin_work(b, GS_WORK_FINISH);
        break;
    case GS_WORK_FINISH:
        gs_info("batches", "%s is over lines=%lld", b->id, (long long)b->n_total);
        b->state = GS_BATCH_OVER;
        break;
    }
}

static void begin_work(gs_kept_batch *b, gs_batch_work work) {
    gs_api *a = b->k->api;
    b->work = work;
    b->now_s = gs_wall_s();
    b->service_s = gs_kept_service_s(b->k);
    gs_kept_limits_now(b->k, &b->limits);
    if (work == GS_WORK_WRITE) {
        gs_kept_id("file-", b->output_file);
        gs_kept_id("file-", b->error_file);
    } else if (work == GS_WORK_VALIDATE) {
        const gs_cost *cost = gs_api_learned_cost(a);
        b->has_cost = cost != NULL;
        if (cost)
            b->cost = *cost;
        b->n_parallel = a->cfg.config->background_max_lines;
        b->available_s = gs_hours_device_s(a, &b->owner, b->deadline_service_s - b->service_s);
    }
    b->job = (gs_store_job){.run = gs_batch_run_work, .done = work_done};
    b->job.kind =
        work == GS_WORK_WRITE || work == GS_WORK_FETCH ? GS_STORE_FILES : GS_STORE_DATABASE;
    int rc = gs_store_submit(b->k->store, &b->job);
    b->busy = rc == 0;
    if (rc != 0)
        store_failed(b->k, rc, "the store is busy");
}

/* A pace is that of half a minute at least, and of some lines. */
static void note_pace(gs_kept_batch *b) {
    const gs_batch_mark now = {gs_now_ns(), b->n_kept};
    if (b->held || b->state != GS_BATCH_RUNNING)
        b->older = b->newer = (gs_batch_mark){0};
    else if (b->older.at_ns == 0)
        b->older = b->newer = now;
    else if (now.at_ns - b->newer.at_ns >= PACE_NS && now.n - b->newer.n >= PACE_LINES) {
        b->older = b->newer;
        b->newer = now;
    }
}

static void step(gs_kept_batch *b) {
    const char *why_not = gs_hours_why_not(b->k->api, &b->owner);
    b->held = why_not != NULL;
    note_pace(b);
    for (gs_line *l = b->unkept.first, *next; l; l = next) {
        next = l->next;
        if (!l->keeping)
            keep(l);
    }
    if (b->state == GS_BATCH_RUNNING && b->n_kept < b->n_total &&
        gs_kept_service_s(b->k) >= b->deadline_service_s) {
        b->state = GS_BATCH_EXPIRING;
        take_back(b);
    }
    if (b->busy)
        return;
    if (b->state == GS_BATCH_VALIDATING)
        begin_work(b, GS_WORK_VALIDATE);
    else if (b->state == GS_BATCH_RUNNING && b->n_kept < b->n_total) {
        if (!b->held && !b->fetched_all && b->ready.n < GS_BATCH_FETCH / 2)
            begin_work(b, GS_WORK_FETCH);
    } else if (b->unkept.n == 0 && b->running.n == 0) {
        begin_work(b, GS_WORK_WRITE);
    }
}

static void drop_those_over(gs_kept *k) {
    for (gs_kept_batch **at = &k->batches; *at;) {
        gs_kept_batch *b = *at;
        if (b->state != GS_BATCH_OVER || b->busy) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        if (k->turn == b)
            k->turn = NULL;
        gs_batch_free(b);
    }
}

void gs_batches_pump(gs_kept *k) {
    if (!k->opened || k->pumping || k->stopping)
        return;
    k->pumping = true;
    drop_those_over(k);
    if (gs_now_ns() >= k->retry_ns)
        for (gs_kept_batch *b = k->batches; b; b = b->next)
            if (b->state != GS_BATCH_OVER)
                step(b);
    start_lines(k);
    k->pumping = false;
}

void gs_batches_stop(gs_kept *k) {
    k->stopping = true;
    for (gs_kept_batch *b = k->batches; b; b = b->next) {
        take_back(b);
        answer_waiting(b);
    }
}
