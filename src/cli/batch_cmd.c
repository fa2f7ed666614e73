/*
 * gamasot batch: hands in a night's work and fetches what became of it, through the server's Files
 * and Batch API. All of it can be stopped and asked again: the work is the server's.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/jsonw.h"
#include "base/rng.h"
#include "base/sys.h"
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/jobs.h"

/* After the server was gone for so long, waiting ends. */
#define PATIENCE_S 600

enum { F_ENDPOINT, F_WINDOW, F_WAIT, F_OUT, F_ERRORS, F_URL, F_KEY, N_FLAGS };

static const gs_config_flag flag_table[N_FLAGS] = {
    [F_ENDPOINT] = {"endpoint", "PATH", "submit: what the lines ask; default: the first one's url",
                    NULL},
    [F_WINDOW] = {"window", "TIME", "submit: such as 30m, 24h, 2d; default: 24h", NULL},
    [F_WAIT] = {"wait", NULL, "submit: wait until it is over", NULL},
    [F_OUT] = {"out", "FILE", "results: default: standard output", NULL},
    [F_ERRORS] = {"errors", "FILE", "results: where the lines that failed go", NULL},
    [F_URL] = {"url", "URL", "the server; default: this machine's", NULL},
    [F_KEY] = {"key", "KEY", "API key; default: GAMASOT_API_KEY", NULL},
};

typedef struct work {
    const gs_config *cfg;
    const gs_config_flag *flags;
    gs_http_target target;
    const char *what; /* after the verb: a file or an id; NULL: nothing */
} work;

/* ---- Calls --------------------------------------------------------------------------------- */

/* A call whose answer is 200, parsed; else NULL and err. */
static json_t *call(work *w, const char *method, const char *path, const gs_buf *body, char *err,
                    size_t errlen) {
    gs_http_answer a = {0};
    json_t *v = NULL;
    int rc = gs_http_call(&w->target, method, path, body ? body->data : NULL, body ? body->len : 0,
                          &a, err, errlen);
    if (rc == 0 && a.status == 200 &&
        !(v = json_loadb(a.body.data ? a.body.data : "", a.body.len, 0, NULL)))
        snprintf(err, errlen, "the server's answer is no JSON");
    else if (rc == 0 && a.status != 200)
        gs_jobs_error_text(&a, err, errlen);
    gs_http_answer_deinit(&a);
    return v;
}

static const char *text(const json_t *v, const char *name) {
    const char *s = json_string_value(json_object_get(v, name));
    return s ? s : "";
}

static long long count(const json_t *batch, const char *name) {
    return json_integer_value(json_object_get(json_object_get(batch, "request_counts"), name));
}

static json_t *get_batch(work *w, const char *id, char *err, size_t errlen) {
    char path[128];
    snprintf(path, sizeof(path), "/v1/batches/%.64s", id);
    return call(w, "GET", path, NULL, err, errlen);
}

/* ---- What a batch is ----------------------------------------------------------------------- */

static void print_batch(const json_t *b) {
    const json_t *own = json_object_get(b, "gamasot");
    char day[32] = "";
    time_t created = (time_t)json_integer_value(json_object_get(b, "created_at"));
    struct tm tm;
    if (localtime_r(&created, &tm))
        strftime(day, sizeof(day), "%Y-%m-%d %H:%M", &tm);
    printf("%s  %-11s  %lld of %lld", text(b, "id"), text(b, "status"),
           count(b, "completed") + count(b, "failed"), count(b, "total"));
    if (count(b, "failed") > 0)
        printf(" (%lld failed)", count(b, "failed"));
    printf("  %s  %s", day, text(b, "endpoint"));
    if (text(own, "paused")[0])
        printf("  waits: %s", text(own, "paused"));
    printf("\n");
}

static void print_trouble(const json_t *b) {
    const json_t *errors = json_object_get(json_object_get(b, "errors"), "data");
    const char *warning = text(json_object_get(b, "gamasot"), "warning");
    for (size_t i = 0; i < json_array_size(errors); i++) {
        const json_t *e = json_array_get(errors, i);
        const json_t *line = json_object_get(e, "line");
        if (json_is_integer(line))
            fprintf(stderr, "line %lld: ", (long long)json_integer_value(line));
        fprintf(stderr, "%s (%s)\n", text(e, "message"), text(e, "code"));
    }
    if (warning[0])
        fprintf(stderr, "gamasot: %s\n", warning);
}

static bool is_over(const json_t *b) {
    static const char *const over[] = {"completed", "failed", "expired", "cancelled"};
    for (size_t i = 0; i < sizeof(over) / sizeof(over[0]); i++)
        if (strcmp(text(b, "status"), over[i]) == 0)
            return true;
    return false;
}

/* ---- submit -------------------------------------------------------------------------------- */

/* The form with the file, as the server wants it. */
static int make_form(const char *path, const void *data, size_t n, gs_buf *out, char *type,
                     size_t n_type) {
    unsigned char random[16];
    char boundary[48];
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (gs_random_bytes(random, sizeof(random)) != 0)
        return GS_ERR_IO;
    int at = snprintf(boundary, sizeof(boundary), "gamasot");
    for (size_t i = 0; i < sizeof(random); i++)
        at += snprintf(boundary + at, sizeof(boundary) - (size_t)at, "%02x", random[i]);
    snprintf(type, n_type, "multipart/form-data; boundary=%s", boundary);
    gs_buf_printf(
        out,
        "--%s\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--%s\r\n"
        "Content-Disposition: form-data; name=\"file\"; filename=\"",
        boundary, boundary);
    for (; *name; name++)
        gs_buf_char(out, *name == '"' || *name == '\r' || *name == '\n' ? '_' : *name);
    gs_buf_str(out, "\"\r\n\r\n");
    gs_buf_add(out, data, n);
    gs_buf_printf(out, "\r\n--%s--\r\n", boundary);
    return out->failed ? GS_ERR_NOMEM : 0;
}

static int endpoint_of(const char *data, size_t n, char *out, size_t size, char *err,
                       size_t errlen) {
    const char *end = memchr(data, '\n', n);
    json_t *v = json_loadb(data, end ? (size_t)(end - data) : n, 0, NULL);
    snprintf(out, size, "%s", text(v, "url"));
    json_decref(v);
    return out[0] ? 0
                  : gs_fail(err, errlen, GS_ERR_INVALID,
                            "the first line names no url; say --endpoint /v1/chat/completions");
}

static json_t *create(work *w, const char *file_id, const char *endpoint, char *err,
                      size_t errlen) {
    gs_buf body = {0};
    gs_jsonw j;
    gs_jsonw_init(&j, &body);
    gs_jsonw_obj(&j);
    gs_jsonw_key(&j, "input_file_id");
    gs_jsonw_str(&j, file_id);
    gs_jsonw_key(&j, "endpoint");
    gs_jsonw_str(&j, endpoint);
    gs_jsonw_key(&j, "completion_window");
    gs_jsonw_str(&j, w->flags[F_WINDOW].value ? w->flags[F_WINDOW].value : "24h");
    gs_jsonw_end_obj(&j);
    json_t *v = call(w, "POST", "/v1/batches", &body, err, errlen);
    gs_buf_deinit(&body);
    return v;
}

static int wait_for(work *w, const char *id, char *err, size_t errlen);

static int submit_data(work *w, const void *data, size_t n, char *err, size_t errlen) {
    gs_buf form = {0};
    char type[128], endpoint[128], id[64];
    int rc = 0;
    if (w->flags[F_ENDPOINT].value)
        snprintf(endpoint, sizeof(endpoint), "%s", w->flags[F_ENDPOINT].value);
    else
        rc = endpoint_of(data ? data : "", n, endpoint, sizeof(endpoint), err, errlen);
    if (rc == 0 && (rc = make_form(w->what, data, n, &form, type, sizeof(type))) != 0)
        gs_fail(err, errlen, rc, "%s", gs_err_text(rc));
    if (rc != 0)
        return rc;
    w->target.type = type;
    json_t *file = call(w, "POST", "/v1/files", &form, err, errlen);
    w->target.type = NULL;
    gs_buf_deinit(&form);
    json_t *batch = file ? create(w, text(file, "id"), endpoint, err, errlen) : NULL;
    json_decref(file);
    if (!batch)
        return GS_ERR_INVALID;
    print_batch(batch);
    print_trouble(batch);
    snprintf(id, sizeof(id), "%s", text(batch, "id"));
    rc = strcmp(text(batch, "status"), "failed") == 0 ? GS_ERR_FORMAT : 0;
    json_decref(batch);
    if (rc != 0)
        return gs_fail(err, errlen, rc, "nothing was handed in");
    return w->flags[F_WAIT].value ? wait_for(w, id, err, errlen) : 0;
}

static int submit(work *w, char *err, size_t errlen) {
    const void *data;
    size_t n;
    int rc = gs_map_file(w->what, &data, &n, err, errlen);
    if (rc != 0)
        return rc;
    rc = submit_data(w, data, n, err, errlen);
    gs_unmap(data, n);
    return rc;
}

/* ---- status, list, wait, cancel ------------------------------------------------------------ */

static int list(work *w, char *err, size_t errlen) {
    json_t *v = call(w, "GET", "/v1/batches?limit=100", NULL, err, errlen);
    const json_t *data = json_object_get(v, "data");
    for (size_t i = 0; i < json_array_size(data); i++)
        print_batch(json_array_get(data, i));
    json_decref(v);
    return v ? 0 : GS_ERR_INVALID;
}

static int status(work *w, char *err, size_t errlen) {
    json_t *b = get_batch(w, w->what, err, errlen);
    if (!b)
        return GS_ERR_INVALID;
    print_batch(b);
    print_trouble(b);
    json_decref(b);
    return 0;
}

/* A server that restarts is waited for: it goes on with the batch. */
static int wait_for(work *w, const char *id, char *err, size_t errlen) {
    gs_progress p;
    int away_s = 0;
    bool begun = false;
    for (;;) {
        json_t *b = get_batch(w, id, err, errlen);
        if (!b && (!begun || ++away_s > PATIENCE_S))
            return GS_ERR_INVALID;
        if (b) {
            int64_t done = count(b, "completed") + count(b, "failed");
            if (!begun)
                gs_progress_begin(&p, "lines", count(b, "total"), done);
            begun = true;
            away_s = 0;
            p.n_total = count(b, "total");
            gs_progress_add(&p, done - p.n_done);
            if (is_over(b)) {
                bool good = strcmp(text(b, "status"), "completed") == 0;
                gs_progress_end(&p);
                print_batch(b);
                snprintf(err, errlen, "the batch is %.20s", text(b, "status"));
                json_decref(b);
                return good ? 0 : GS_ERR_CANCELLED;
            }
            json_decref(b);
        }
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    }
}

static int wait_batch(work *w, char *err, size_t errlen) {
    return wait_for(w, w->what, err, errlen);
}

static int cancel(work *w, char *err, size_t errlen) {
    char path[128];
    snprintf(path, sizeof(path), "/v1/batches/%.64s/cancel", w->what);
    json_t *b = call(w, "POST", path, NULL, err, errlen);
    if (!b)
        return GS_ERR_INVALID;
    print_batch(b);
    json_decref(b);
    return 0;
}

/* ---- results ------------------------------------------------------------------------------- */

static int fetch(work *w, const char *id, const char *to, char *err, size_t errlen) {
    gs_http_answer a = {0};
    char path[128];
    snprintf(path, sizeof(path), "/v1/files/%.64s/content", id);
    int rc = gs_http_call(&w->target, "GET", path, NULL, 0, &a, err, errlen);
    if (rc == 0 && a.status != 200) {
        gs_jobs_error_text(&a, err, errlen);
        rc = GS_ERR_INVALID;
    } else if (rc == 0 && to) {
        rc = gs_args_save(to, &a.body, err, errlen);
    } else if (rc == 0 && a.body.len > 0 &&
               (fwrite(a.body.data, 1, a.body.len, stdout) != a.body.len || fflush(stdout) != 0)) {
        rc = gs_fail(err, errlen, GS_ERR_IO, "standard output can't be written");
    }
    gs_http_answer_deinit(&a);
    return rc;
}

static int results(work *w, char *err, size_t errlen) {
    json_t *b = get_batch(w, w->what, err, errlen);
    if (!b)
        return GS_ERR_INVALID;
    const char *output = text(b, "output_file_id"), *errors = text(b, "error_file_id");
    int rc = 0;
    if (!is_over(b))
        rc = gs_fail(err, errlen, GS_ERR_UNAVAILABLE, "the batch is not over: %lld of %lld",
                     count(b, "completed") + count(b, "failed"), count(b, "total"));
    if (rc == 0 && output[0])
        rc = fetch(w, output, w->flags[F_OUT].value, err, errlen);
    if (rc == 0 && errors[0] && w->flags[F_ERRORS].value)
        rc = fetch(w, errors, w->flags[F_ERRORS].value, err, errlen);
    else if (rc == 0 && errors[0])
        fprintf(stderr, "gamasot: %lld lines failed; --errors FILE keeps what they say\n",
                count(b, "failed"));
    json_decref(b);
    return rc;
}

/* ---- pause, resume ------------------------------------------------------------------------- */

static int set_paused(work *w, const char *path, char *err, size_t errlen) {
    json_t *v = call(w, "POST", path, NULL, err, errlen);
    if (!v)
        return GS_ERR_INVALID;
    bool paused = json_is_true(json_object_get(v, "paused"));
    bool open = json_is_true(json_object_get(v, "open"));
    printf("background %s\n", paused ? "is paused"
                              : open ? "runs"
                                     : "runs when its schedule says so");
    json_decref(v);
    return 0;
}

static int pause_all(work *w, char *err, size_t errlen) {
    return set_paused(w, "/v1/background/pause", err, errlen);
}

static int resume_all(work *w, char *err, size_t errlen) {
    return set_paused(w, "/v1/background/resume", err, errlen);
}

/* ---- The command --------------------------------------------------------------------------- */

static const struct verb {
    const char *name, *what; /* NULL: takes nothing */
    int (*run)(work *w, char *err, size_t errlen);
} verbs[] = {
    {"submit", "FILE.jsonl", submit}, {"status", "ID", status},     {"wait", "ID", wait_batch},
    {"results", "ID", results},       {"cancel", "ID", cancel},     {"list", NULL, list},
    {"pause", NULL, pause_all},       {"resume", NULL, resume_all},
};

static int run(work *w, char *err, size_t errlen) {
    const int n = w->cfg->n_positional;
    const char *name = n > 0 ? w->cfg->positional[0] : "";
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verbs[i].name, name) != 0)
            continue;
        if (n != (verbs[i].what ? 2 : 1))
            return gs_fail(err, errlen, GS_ERR_INVALID, "usage: gamasot batch %s %s", name,
                           verbs[i].what ? verbs[i].what : "");
        w->what = n > 1 ? w->cfg->positional[1] : NULL;
        int rc = gs_jobs_target(w->cfg, w->flags[F_URL].value, w->flags[F_KEY].value, &w->target,
                                err, errlen);
        return rc == 0 ? verbs[i].run(w, err, errlen) : rc;
    }
    return gs_fail(err, errlen, GS_ERR_INVALID,
                   "say what: submit, status, wait, results, cancel, list, pause or resume");
}

int gs_cmd_batch(int argc, char **argv) {
    gs_config cfg;
    gs_config_flag flags[N_FLAGS];
    char err[512] = "";
    memcpy(flags, flag_table, sizeof(flags));
    int rc =
        gs_cli_config(&cfg, gs_cli_command("batch"), argc, argv, flags, N_FLAGS, err, sizeof(err));
    if (rc == 0) {
        work w = {.cfg = &cfg, .flags = flags};
        rc = run(&w, err, sizeof(err));
    } else if (rc > 0) {
        gs_config_deinit(&cfg);
        return 0;
    }
    gs_config_deinit(&cfg);
    if (rc != 0)
        fprintf(stderr, "gamasot: %s\n", err);
    return rc == 0 ? 0 : 1;
}
