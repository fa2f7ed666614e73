/* The best candidates on the real engine: a server of our own, with the trace played against it. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "cli/http_client.h"
#include "cli/replay.h"
#include "cli/tune.h"

#define MAX_ARGS     160
#define READY_S      300 /* a model is loaded, packed and calibrated */
#define END_S        30
#define STATE_ENOUGH 0.95

/* A port that was free a moment ago. */
static int free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int port = 0;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, n) == 0 &&
        getsockname(fd, (struct sockaddr *)&a, &n) == 0)
        port = ntohs(a.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

typedef struct arguments {
    char text[MAX_ARGS][300];
    char *argv[MAX_ARGS + 1];
    int n;
} arguments;

static void add(arguments *a, const char *name, const char *value) {
    if (a->n >= MAX_ARGS)
        return;
    snprintf(a->text[a->n], sizeof a->text[0], "--%s%s%s", name, value ? "=" : "",
             value ? value : "");
    a->argv[a->n] = a->text[a->n];
    a->argv[++a->n] = NULL;
}

/* "kv.type=q8,engine.threads=1" */
static void add_sets(arguments *a, const char *sets) {
    while (*sets) {
        char one[300];
        const size_t n = strcspn(sets, ",");
        snprintf(one, sizeof one, "%.*s", (int)n, sets);
        add(a, one, NULL);
        sets += n + (sets[n] == ',');
    }
}

static void fill(const gs_tuner *t, const gs_tune_point *p, const char *const *sets, int n_sets,
                 int port, arguments *a) {
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    a->n = 2;
    snprintf(a->text[0], sizeof a->text[0], "gamasot");
    snprintf(a->text[1], sizeof a->text[1], "serve");
    a->argv[0] = a->text[0];
    a->argv[1] = a->text[1];
    add(a, "server.host", "127.0.0.1");
    add(a, "server.port", text);
    add(a, "log.level", "warn");
    for (int i = 0; i < n_sets; i++)
        add_sets(a, sets[i]);
    add_sets(a, gs_tuner_variant(t, p)->sets);
    for (int i = 0; i < t->n_axes; i++)
        if (t->axes[i].tunable)
            add(a, t->axes[i].tunable->option, t->axes[i].values[p->choice[i]]);
}

static void sleep_ms(long ms) {
    const struct timespec w = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&w, NULL);
}

static int wait_ready(const char *url, pid_t pid, char *err, size_t errlen) {
    gs_http_target target = {.timeout_s = 5};
    int rc = gs_http_target_parse(url, &target, err, errlen);
    const int64_t end_ns = gs_now_ns() + READY_S * GS_NS_PER_S;
    while (rc == 0 && gs_now_ns() < end_ns) {
        gs_http_answer a = {0};
        int status;
        if (waitpid(pid, &status, WNOHANG) == pid)
            return gs_fail(err, errlen, GS_ERR_UNAVAILABLE, "the server ended while it started");
        const int code = gs_http_call(&target, "GET", "/ready", NULL, 0, &a, NULL, 0);
        const bool ready = code == 0 && a.status == 200;
        gs_http_answer_deinit(&a);
        if (ready)
            return 0;
        sleep_ms(50);
    }
    return rc != 0 ? rc : gs_fail(err, errlen, GS_ERR_TIMEOUT, "the server was not ready in time");
}

static void end_server(pid_t pid) {
    int status;
    kill(pid, SIGTERM);
    for (int i = 0; i < END_S * 20; i++) {
        if (waitpid(pid, &status, WNOHANG) != 0)
            return;
        sleep_ms(50);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}

/* 95 of 100 of every interactive class that was there. */
static bool all_hold(const gs_load_summary *s) {
    for (int c = 0; c < GS_CLASS_BACKGROUND; c++)
        if (s->classes[c].n_judged > 0 &&
            s->classes[c].n_met < STATE_ENOUGH * s->classes[c].n_judged)
            return false;
    return true;
}

static int play(const gs_tuner *t, const char *url, double load, double limit_s,
                gs_tune_measured *out, char *err, size_t errlen) {
    gs_replay_config rc;
    gs_load_run run = {.seed = 1};
    gs_replay_defaults(&rc);
    rc.url = url;
    rc.class_header = "X-Gamasot-Class";
    rc.user_field = true;
    rc.ignore_eos = true;
    rc.warm_prefixes = true;
    rc.speed = load;
    rc.time_limit_s = limit_s;
    rc.salt = (uint64_t)gs_now_ns();
    memcpy(run.targets, t->targets, sizeof run.targets);
    int code = gs_replay(t->trace, &rc, &run, err, errlen);
    if (code == 0) {
        /* What the end of the run cut off has not failed. */
        for (int32_t i = 0; i < run.n; i++)
            if (run.records[i].status == GS_LOAD_UNFINISHED)
                run.records[i].status = GS_LOAD_CANCELLED;
        code = gs_load_summarise(&run, &out->summary);
        if (code != 0)
            gs_fail(err, errlen, code, "out of memory");
    }
    gs_load_run_free(&run);
    return code;
}

int gs_tune_confirm(const gs_tuner *t, const gs_tune_point *p, double load, double limit_s,
                    const char *const *sets, int n_sets, gs_tune_measured *out, char *err,
                    size_t errlen) {
    static arguments a;
    char url[64];
    const int port = free_port();
    *out = (gs_tune_measured){.point = *p, .load = load};
    fill(t, p, sets, n_sets, port, &a);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    fflush(stdout);
    const pid_t pid = fork();
    if (pid < 0)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "no process for the server");
    if (pid == 0) {
        execv("/proc/self/exe", a.argv);
        _exit(127);
    }
    int rc = wait_ready(url, pid, err, errlen);
    if (rc == 0)
        rc = play(t, url, load, limit_s, out, err, errlen);
    end_server(pid);
    if (rc == 0)
        out->holds = all_hold(&out->summary);
    return rc;
}
