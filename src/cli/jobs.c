#include "cli/jobs.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"

#define SILENCE_S 600 /* of a server that works on a request: background may wait long */

typedef struct open_job {
    gs_buf body;
    int fd; /* < 0: not sent, or it failed: to be sent again */
} open_job;

static void pause_s(int64_t s) {
    struct timespec t = {.tv_sec = s};
    nanosleep(&t, NULL);
}

static bool comes_back(int code) {
    return code == GS_ERR_UNAVAILABLE || code == GS_ERR_IO || code == GS_ERR_TIMEOUT;
}

static void send_job(const gs_jobs *j, open_job *o, char *err, size_t errlen) {
    o->fd = gs_http_send(&j->target, "POST", j->path, o->body.data, o->body.len, err, errlen);
}

/* The answer to the oldest open request, however often that takes asking. */
static int settle(const gs_jobs *j, open_job *o, gs_http_answer *a, char *err, size_t errlen) {
    const int64_t until_ns = gs_now_ns() + j->patience_s * GS_NS_PER_S;
    for (int64_t wait_s = 1;; wait_s = wait_s < 30 ? 2 * wait_s : 30) {
        if (o->fd < 0)
            send_job(j, o, err, errlen);
        int rc = o->fd;
        *a = (gs_http_answer){0};
        if (rc >= 0)
            rc = gs_http_receive(o->fd, a, err, errlen);
        o->fd = -1;
        const bool busy = rc == 0 && (a->status == 429 || a->status == 503);
        if (!busy && !comes_back(rc))
            return rc;
        if (busy)
            gs_jobs_error_text(a, err, errlen);
        if (gs_now_ns() > until_ns)
            return busy ? GS_ERR_OVERLOADED : rc;
        const int64_t asked_s = a->retry_after_s < 60 ? a->retry_after_s : 60;
        gs_http_answer_deinit(a);
        pause_s(asked_s > wait_s ? asked_s : wait_s);
    }
}

int gs_jobs_run(const gs_jobs *j, char *err, size_t errlen) {
    open_job open[GS_JOBS_MAX_OPEN];
    int first = 0, n = 0, rc = 0;
    bool more = true;
    memset(open, 0, sizeof(open));
    while (rc == 0 && (more || n > 0)) {
        while (more && n < j->n_open) {
            open_job *o = &open[(first + n) % GS_JOBS_MAX_OPEN];
            gs_buf_clear(&o->body);
            rc = j->ask(j->arg, &o->body, err, errlen);
            more = rc > 0;
            if (rc <= 0)
                break;
            rc = 0;
            send_job(j, o, err, errlen); /* a failure is settled when its turn comes */
            n++;
        }
        if (rc != 0 || n == 0)
            continue;
        gs_http_answer a;
        rc = settle(j, &open[first], &a, err, errlen);
        if (rc == 0)
            rc = j->answer(j->arg, &a, err, errlen);
        gs_http_answer_deinit(&a);
        first = (first + 1) % GS_JOBS_MAX_OPEN;
        n--;
    }
    for (; n > 0; n--, first = (first + 1) % GS_JOBS_MAX_OPEN)
        if (open[first].fd >= 0)
            close(open[first].fd);
    for (int i = 0; i < GS_JOBS_MAX_OPEN; i++)
        gs_buf_deinit(&open[i].body);
    return rc;
}

void gs_jobs_error_text(const gs_http_answer *a, char *out, size_t n) {
    json_t *v = a->body.len > 0 ? json_loadb(a->body.data, a->body.len, 0, NULL) : NULL;
    const json_t *e = json_object_get(v, "error");
    const char *text = json_string_value(json_is_object(e) ? json_object_get(e, "message") : e);
    if (text)
        snprintf(out, n, "%s", text);
    else
        snprintf(out, n, "the server answered with status %d", a->status);
    json_decref(v);
}

int gs_jobs_target(const gs_config *cfg, const char *url, const char *key, gs_http_target *out,
                   char *err, size_t errlen) {
    char here[64];
    snprintf(here, sizeof(here), "http://127.0.0.1:%d", cfg->server_port);
    *out = (gs_http_target){.key = key ? key : getenv("GAMASOT_API_KEY"), .timeout_s = SILENCE_S};
    return gs_http_target_parse(url ? url : here, out, err, errlen);
}

const char *gs_jobs_model(const gs_config *cfg) {
    return cfg->source[GS_OPT_model_path] == GS_CONFIG_FROM_FLAG ? cfg->model_path : NULL;
}

void gs_jobs_begin_body(const gs_config *cfg, gs_buf *body, gs_jsonw *out) {
    gs_jsonw_init(out, body);
    gs_jsonw_obj(out);
    if (gs_jobs_model(cfg)) {
        gs_jsonw_key(out, "model");
        gs_jsonw_str(out, gs_jobs_model(cfg));
    }
}

/* ---- Progress
 * ----------------------------------------------------------------------------------*/

#define BAR 24

static void show(gs_progress *p) {
    char bar[BAR + 1];
    const double seconds = (double)(gs_now_ns() - p->began_ns) / 1e9;
    const double rate = seconds > 0.0 ? (double)(p->n_done - p->n_before) / seconds : 0.0;
    const int64_t left = p->n_total - p->n_done;
    const int full = p->n_total > 0 ? (int)(BAR * p->n_done / p->n_total) : BAR;
    for (int i = 0; i < BAR; i++)
        bar[i] = i < full ? '#' : '.';
    bar[BAR] = '\0';
    fprintf(stderr, "\r[%s] %lld/%lld %s", bar, (long long)p->n_done, (long long)p->n_total,
            p->what);
    if (rate > 0.0) {
        const int64_t eta = (int64_t)((double)left / rate + 0.5);
        fprintf(stderr, "  %.1f/s  ETA %lld:%02lld", rate, (long long)(eta / 60),
                (long long)(eta % 60));
    }
    fputs("\x1b[K", stderr);
    fflush(stderr);
    p->shown_ns = gs_now_ns();
}

void gs_progress_begin(gs_progress *p, const char *what, int64_t n_total, int64_t n_before) {
    *p = (gs_progress){.what = what,
                       .n_total = n_total,
                       .n_done = n_before,
                       .n_before = n_before,
                       .began_ns = gs_now_ns()};
}

void gs_progress_add(gs_progress *p, int64_t n) {
    p->n_done += n;
    if (isatty(STDERR_FILENO) && gs_now_ns() - p->shown_ns >= 100 * GS_NS_PER_MS)
        show(p);
}

void gs_progress_end(gs_progress *p) {
    const double seconds = (double)(gs_now_ns() - p->began_ns) / 1e9;
    const int64_t n = p->n_done - p->n_before;
    if (isatty(STDERR_FILENO))
        fputs("\r\x1b[K", stderr);
    fprintf(stderr, "%lld %s", (long long)n, p->what);
    if (n > 0)
        fprintf(stderr, " in %.1f s (%.1f/s)", seconds, (double)n / (seconds > 0 ? seconds : 1e-9));
    if (p->n_before > 0)
        fprintf(stderr, ", %lld were done before", (long long)p->n_before);
    fputc('\n', stderr);
}
