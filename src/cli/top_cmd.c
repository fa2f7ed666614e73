/*
 * gamasot top: what a server does now, in the terminal. Plain ANSI over /v1/live; made for 80 x 24
 * and more. One thread: poll() over the stream, the keyboard, and the signal of a new size.
 */
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/err.h"
#include "cli/cli.h"
#include "cli/jobs.h"

#define RETRY_MS  2000
#define MAX_EVENT (8 << 20) /* bytes of one event */

enum { F_URL, F_KEY, F_ONCE, N_FLAGS };

static const gs_config_flag flag_table[N_FLAGS] = {
    [F_URL] = {"url", "URL", "the server; default: this machine's", NULL},
    [F_KEY] = {"key", "KEY", "API key; default: GAMASOT_API_KEY", NULL},
    [F_ONCE] = {"once", NULL, "print one picture and end (as without a terminal)", NULL},
};

typedef struct top {
    gs_http_target target;
    int fd;         /* the stream; < 0: none */
    gs_buf raw;     /* bytes as they came: chunks */
    gs_buf text;    /* of the event stream */
    bool head_read; /* of HTTP */
    json_t *state;  /* the newest, or NULL */
    double step_ms; /* moving average */
    int by;         /* sort: 0 time, 1 class, 2 person */
    int only;       /* class shown: -1 all */
    int at;         /* chosen row */
    bool colour, once, end;
    char note[160];
    char ids[64][48]; /* of the rows shown */
    int n_rows;
} top;

static volatile sig_atomic_t resized;

static void on_resize(int sig) {
    (void)sig;
    resized = 1;
}

/* ---- The stream ---------------------------------------------------------------------------- */

static void disconnect(top *t, const char *why) {
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
    gs_buf_clear(&t->raw);
    gs_buf_clear(&t->text);
    t->head_read = false;
    if (why)
        snprintf(t->note, sizeof(t->note), "%s", why);
}

/* The answer's head, once it is whole. False: refused. */
static bool read_head(top *t) {
    const char *data = gs_buf_cstr(&t->raw);
    const char *end = data ? strstr(data, "\r\n\r\n") : NULL;
    int status = 0;
    if (!end)
        return true;
    if (sscanf(data, "HTTP/1.1 %d", &status) != 1 || status != 200) {
        char why[80];
        snprintf(why, sizeof(why), "the server answered with status %d%s", status,
                 status == 401 || status == 403 ? " (--key)" : "");
        disconnect(t, why);
        return false;
    }
    gs_buf_drop_front(&t->raw, (size_t)(end - data) + 4);
    t->head_read = true;
    t->note[0] = '\0';
    return true;
}

/* Moves whole chunks from raw to text. */
static void unchunk(top *t) {
    const char *data;
    while ((data = gs_buf_cstr(&t->raw)) && t->raw.len > 0) {
        char *end;
        const unsigned long n = strtoul(data, &end, 16);
        if (end == data || end[0] != '\r' || n > MAX_EVENT)
            return;
        const size_t head = (size_t)(end - data) + 2;
        if (t->raw.len < head + n + 2)
            return;
        gs_buf_add(&t->text, data + head, n);
        gs_buf_drop_front(&t->raw, head + n + 2);
    }
}

static void take_event(top *t, const char *name, const char *data, size_t n) {
    json_t *v = json_loadb(data, n, 0, NULL), *step;
    size_t i;
    if (v && strcmp(name, "state") == 0) {
        json_decref(t->state);
        t->state = json_incref(v);
    }
    if (v && strcmp(name, "steps") == 0)
        json_array_foreach(json_object_get(v, "steps"), i, step) {
            const double ms = json_number_value(json_object_get(step, "ms"));
            t->step_ms += (t->step_ms > 0 ? 0.05 : 1) * (ms - t->step_ms);
        }
    json_decref(v);
}

/* True: there is a new state to show. */
static bool take_events(top *t) {
    const char *data, *end;
    bool fresh = false;
    while ((data = gs_buf_cstr(&t->text)) && (end = strstr(data, "\n\n"))) {
        char name[16];
        const char *at = strstr(data, "\ndata: ");
        if (at && at < end && sscanf(data, "event: %15s", name) == 1) {
            take_event(t, name, at + 7, (size_t)(end - at) - 7);
            fresh |= strcmp(name, "state") == 0;
        }
        gs_buf_drop_front(&t->text, (size_t)(end - data) + 2);
    }
    return fresh;
}

static bool receive(top *t) {
    char buf[65536];
    const ssize_t n = read(t->fd, buf, sizeof(buf));
    if (n <= 0 || gs_buf_add(&t->raw, buf, (size_t)n) != GS_OK || t->raw.len > 2 * MAX_EVENT) {
        disconnect(t, "the server has gone; trying again");
        return true;
    }
    if (!t->head_read && !read_head(t))
        return true;
    if (!t->head_read)
        return false;
    unchunk(t);
    return take_events(t);
}

static void connect_to(top *t) {
    char err[160] = "";
    t->fd = gs_http_send(&t->target, "GET", "/v1/live", NULL, 0, err, sizeof(err));
    if (t->fd < 0)
        disconnect(t, err[0] ? err : "nobody is there");
}

/* ---- The picture --------------------------------------------------------------------------- */

static double num(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static const char *str(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* Names come from others: what could move the cursor becomes '?'. */
static void plain(char *out, size_t n, const char *s) {
    size_t at = 0;
    for (; *s && at + 1 < n; s++)
        out[at++] = (unsigned char)*s < 0x20 || *s == 0x7f || (unsigned char)*s >= 0x80 ? '?' : *s;
    out[at] = '\0';
}

static const char *colour(const top *t, const char *code) {
    return t->colour ? code : "";
}

static void bar(char *out, int width, double share) {
    const int n = share <= 0 ? 0 : share >= 1 ? width : (int)(share * width + 0.5);
    for (int i = 0; i < width; i++)
        out[i] = i < n ? '#' : '.';
    out[width] = '\0';
}

static void show_head(const top *t, const json_t *s) {
    const json_t *rate = json_object_get(s, "throughput"), *pool;
    char room[21];
    size_t i;
    double blocks = 0, held = 0;
    json_array_foreach(json_object_get(s, "kv"), i, pool) {
        blocks += num(pool, "blocks");
        held += num(pool, "held");
    }
    bar(room, 20, blocks > 0 ? held / blocks : 0);
    printf("%sgamasot%s  %zu running, %zu waiting   step %.1f ms   fairness %.2f\n",
           colour(t, "\033[1m"), colour(t, "\033[0m"),
           json_array_size(json_object_get(s, "running")),
           json_array_size(json_object_get(s, "waiting")), t->step_ms, num(s, "fairness_jain"));
    printf("tokens/s  prompt %.0f  answers %.0f  embed %.0f   cache [%s] %.0f of %.0f\n",
           num(rate, "prefill_tps"), num(rate, "decode_tps"), num(rate, "embed_tps"), room, held,
           blocks);
}

static void quantile(const json_t *c, const char *key, char out[12]) {
    const json_t *v = json_object_get(json_object_get(c, key), "p95");
    if (json_is_number(v))
        snprintf(out, 12, "%.0f", json_number_value(v));
    else
        snprintf(out, 12, "-");
}

static void show_classes(const top *t, const json_t *s) {
    const json_t *c;
    size_t i;
    printf("%s%-11s %7s %7s %12s %12s %8s %8s%s\n", colour(t, "\033[7m"), "class", "running",
           "waiting", "TTFT p95 ms", "token p95 ms", "in time", "tok/s", colour(t, "\033[0m"));
    json_array_foreach(json_object_get(s, "classes"), i, c) {
        char ttft[12], itl[12], in_time[12] = "-";
        quantile(c, "ttft_ms", ttft);
        quantile(c, "itl_ms", itl);
        if (json_is_number(json_object_get(c, "attained")))
            snprintf(in_time, sizeof(in_time), "%.0f %%", 100 * num(c, "attained"));
        printf("%-11.11s %7.0f %7.0f %12s %12s %8s %8.0f\n", str(c, "name"), num(c, "running"),
               num(c, "waiting"), ttft, itl, in_time, num(c, "tokens_per_s"));
    }
}

static int sort_by;

static int compare(const void *a, const void *b) {
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    int c = 0;
    if (sort_by == 1)
        c = strcmp(str(x, "class"), str(y, "class"));
    else if (sort_by == 2)
        c = strcmp(str(x, "person"), str(y, "person"));
    const double dx = num(x, "total_ms"), dy = num(y, "total_ms");
    return c ? c : (dx < dy) - (dx > dy);
}

static bool shown(const top *t, const json_t *s, const json_t *r) {
    const json_t *c = json_array_get(json_object_get(s, "classes"), (size_t)t->only);
    return t->only < 0 || strcmp(str(r, "class"), str(c, "name")) == 0;
}

static void show_row(top *t, const json_t *r) {
    char person[16], id[40];
    const char *wait = str(r, "waiting_for");
    plain(person, sizeof(person), str(r, "person"));
    plain(id, sizeof(id), str(r, "id"));
    snprintf(t->ids[t->n_rows], sizeof(t->ids[0]), "%s", id);
    const bool chosen = !t->once && t->n_rows == t->at;
    printf("%s%c%-9.9s %-10.10s %-7.7s %-9.9s %6.0f %6.0f %8.1f  %.16s%s\n",
           chosen ? colour(t, "\033[1m") : "", chosen ? '>' : ' ', person, str(r, "class"),
           str(r, "state"), *wait ? wait : "-", num(r, "prompt_tokens"), num(r, "output_tokens"),
           num(r, "total_ms") / 1000, id, chosen ? colour(t, "\033[0m") : "");
    t->n_rows++;
}

static void show_requests(top *t, const json_t *s, int room) {
    json_t *rows[512], *r;
    size_t n = 0, i;
    json_array_foreach(json_object_get(s, "running"), i, r) if (n < 512 && shown(t, s, r))
        rows[n++] = r;
    json_array_foreach(json_object_get(s, "waiting"), i, r) if (n < 512 && shown(t, s, r))
        rows[n++] = r;
    sort_by = t->by;
    qsort(rows, n, sizeof(rows[0]), compare);
    printf("%s %-9s %-10s %-7s %-9s %6s %6s %8s  %-16s%s\n", colour(t, "\033[7m"), "person",
           "class", "state", "waits for", "prompt", "output", "s", "request", colour(t, "\033[0m"));
    t->n_rows = 0;
    if (t->at >= (int)n)
        t->at = n > 0 ? (int)n - 1 : 0;
    for (i = 0; i < n && (int)i < room && t->n_rows < 64; i++)
        show_row(t, rows[i]);
    if ((int)n > t->n_rows)
        printf(" ... and %d more\n", (int)n - t->n_rows);
}

static void show(top *t) {
    struct winsize w = {.ws_row = 24, .ws_col = 80};
    char note[160];
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    if (!t->once)
        printf("\033[H\033[2J");
    plain(note, sizeof(note), t->note);
    if (t->state) {
        const int rows = (w.ws_row >= 24 ? w.ws_row : 24) - 13;
        show_head(t, t->state);
        show_classes(t, t->state);
        show_requests(t, t->state, t->once ? 64 : rows);
    }
    if (!t->once)
        printf("%s\n%sq end  s sort  f class  j/k choose  c cancel%s", note, colour(t, "\033[2m"),
               colour(t, "\033[0m"));
    else if (note[0])
        printf("%s\n", note);
    fflush(stdout);
}

/* ---- Keys ---------------------------------------------------------------------------------- */

static void cancel(top *t) {
    char path[96], err[160] = "";
    gs_http_answer a = {0};
    if (t->at >= t->n_rows || !t->ids[t->at][0]) {
        snprintf(t->note, sizeof(t->note), "that one is not yours to cancel");
        return;
    }
    snprintf(path, sizeof(path), "/v1/requests/%.48s/cancel", t->ids[t->at]);
    if (gs_http_call(&t->target, "POST", path, NULL, 0, &a, err, sizeof(err)) != GS_OK)
        snprintf(t->note, sizeof(t->note), "%.150s", err);
    else if (a.status != 200)
        gs_jobs_error_text(&a, t->note, sizeof(t->note));
    else
        snprintf(t->note, sizeof(t->note), "cancelled %s", t->ids[t->at]);
    gs_http_answer_deinit(&a);
}

static void on_key(top *t, char key) {
    const int n_classes = (int)json_array_size(json_object_get(t->state, "classes"));
    switch (key) {
    case 'q':
    case 3: /* Ctrl-C */
        t->end = true;
        break;
    case 's':
        t->by = (t->by + 1) % 3;
        break;
    case 'f':
        t->only = t->only + 1 < n_classes ? t->only + 1 : -1;
        break;
    case 'j':
        t->at += t->at + 1 < t->n_rows;
        break;
    case 'k':
        t->at -= t->at > 0;
        break;
    case 'c':
        cancel(t);
        break;
    default:
        break;
    }
}

/* ---- The loop ------------------------------------------------------------------------------ */

static void watch(top *t) {
    while (!t->end) {
        if (t->fd < 0)
            connect_to(t);
        struct pollfd p[2] = {{.fd = t->fd, .events = POLLIN},
                              {.fd = t->once ? -1 : STDIN_FILENO, .events = POLLIN}};
        const int n = poll(p, 2, t->fd < 0 ? RETRY_MS : -1);
        bool fresh = t->fd < 0 || resized;
        char key;
        resized = 0;
        if (n > 0 && p[1].revents && read(STDIN_FILENO, &key, 1) == 1) {
            on_key(t, key);
            fresh = true;
        } else if (n > 0 && (p[1].revents & (POLLHUP | POLLERR))) {
            t->end = true;
        }
        if (n > 0 && p[0].revents && receive(t))
            fresh = true;
        if (t->once && (t->state || t->fd < 0))
            t->end = true;
        if (fresh && !(t->end && !t->once))
            show(t);
    }
}

static int run(const gs_config *cfg, const gs_config_flag *flags, char *err, size_t errlen) {
    static top t;
    struct termios before, raw;
    const char *no_colour = getenv("NO_COLOR");
    t = (top){.fd = -1, .only = -1};
    int rc = gs_jobs_target(cfg, flags[F_URL].value, flags[F_KEY].value, &t.target, err, errlen);
    if (rc != GS_OK)
        return rc;
    t.once = flags[F_ONCE].value || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO) ||
             tcgetattr(STDIN_FILENO, &before) != 0;
    t.colour = !t.once && !(no_colour && no_colour[0]);
    if (!t.once) {
        struct sigaction sa = {.sa_handler = on_resize};
        sigaction(SIGWINCH, &sa, NULL);
        raw = before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
        printf("\033[?1049h\033[?25l");
    }
    watch(&t);
    if (!t.once) {
        tcsetattr(STDIN_FILENO, TCSANOW, &before);
        printf("\033[?25h\033[?1049l");
    }
    if (t.once && !t.state)
        rc = gs_fail(err, errlen, GS_ERR_UNAVAILABLE, "%s", t.note);
    disconnect(&t, NULL);
    gs_buf_deinit(&t.raw);
    gs_buf_deinit(&t.text);
    json_decref(t.state);
    return rc;
}

int gs_cmd_top(int argc, char **argv) {
    gs_config cfg;
    gs_config_flag flags[N_FLAGS];
    char err[512] = "";
    memcpy(flags, flag_table, sizeof(flags));
    int rc =
        gs_cli_config(&cfg, gs_cli_command("top"), argc, argv, flags, N_FLAGS, err, sizeof(err));
    if (rc == GS_OK)
        rc = run(&cfg, flags, err, sizeof(err));
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return rc < 0 ? 1 : 0;
}
