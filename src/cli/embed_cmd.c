/* gamasot embed: a vector for each line, or each file, from a running server. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/jsonw.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/embed_log.h"
#include "cli/jobs.h"

/* Of one request. Two are open, so that the server has the next one when it is done with this. */
#define MAX_TEXTS  64
#define MAX_BYTES  65536
#define N_OPEN     2
#define PATIENCE_S 120

enum { F_OUT, F_FILES, F_DIMENSIONS, F_STRICT, F_URL, F_KEY, F_CLASS, N_FLAGS };

static const gs_config_flag flag_table[N_FLAGS] = {
    [F_OUT] = {"out", "FILE", "x.jsonl, or x.npy (and x.npy.jsonl); default: to the terminal",
               NULL},
    [F_FILES] = {"whole-files", NULL, "each file is one text, not each line", NULL},
    [F_DIMENSIONS] = {"dimensions", "N", "numbers of each vector; default: all", NULL},
    [F_STRICT] = {"no-truncate", NULL, "texts that are too long are an error", NULL},
    [F_URL] = {"url", "URL", "the server; default: this machine's", NULL},
    [F_KEY] = {"key", "KEY", "API key; default: GAMASOT_API_KEY", NULL},
    [F_CLASS] = {"class", "CLASS", "default: background", NULL},
};

typedef struct text {
    const char *data;
    size_t n;
    int source;     /* index of the argument */
    int64_t line;   /* 0: the whole file */
    int64_t offset; /* of its line in the log, -1: not there */
    uint8_t hash[GS_SHA256_BYTES];
} text;

typedef struct work {
    const gs_config *cfg;
    const gs_config_flag *flags;
    gs_buf *files; /* [n_positional] */
    text *texts;   /* [n] */
    size_t n, cap, n_empty;
    gs_embed_log log;
    bool to_terminal;
    size_t next, answered;  /* texts asked for, answered */
    size_t n_asked[N_OPEN]; /* of the open requests, a ring */
    int first_asked, last_asked;
    gs_progress progress;
    gs_buf line;
} work;

/* ---- Input
 * -------------------------------------------------------------------------------------*/

static int read_all(const char *path, gs_buf *out, char *err, size_t errlen) {
    const bool is_stdin = strcmp(path, "-") == 0;
    FILE *f = is_stdin ? stdin : fopen(path, "re");
    char part[65536];
    size_t n;
    if (!f)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
    while ((n = fread(part, 1, sizeof(part), f)) > 0)
        gs_buf_add(out, part, n);
    const bool bad = ferror(f);
    const int why = errno;
    if (!is_stdin)
        fclose(f);
    if (bad)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(why));
    return out->failed || !gs_buf_cstr(out) ? gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory")
                                            : 0;
}

static int add_text(work *w, const char *data, size_t n, int source, int64_t line, char *err,
                    size_t errlen) {
    while (n > 0 && (data[n - 1] == '\r' || data[n - 1] == '\n'))
        n--;
    if (n == 0 || strspn(data, " \t") >= n) {
        w->n_empty++;
        return 0;
    }
    if (!gs_utf8_valid(data, n) || memchr(data, 0, n))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "%s:%lld is no UTF-8 text",
                       w->cfg->positional[source], (long long)line);
    if (w->n == w->cap) {
        const size_t cap = w->cap ? 2 * w->cap : 1024;
        text *more = gs_realloc(w->texts, cap * sizeof(*more));
        if (!more)
            return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
        w->texts = more;
        w->cap = cap;
    }
    text *t = &w->texts[w->n++];
    *t = (text){.data = data, .n = n, .source = source, .line = line, .offset = -1};
    gs_sha256(data, n, t->hash);
    return 0;
}

static int read_texts(work *w, char *err, size_t errlen) {
    const bool whole = w->flags[F_FILES].value != NULL;
    int rc = 0;
    for (int i = 0; rc == 0 && i < w->cfg->n_positional; i++) {
        rc = read_all(w->cfg->positional[i], &w->files[i], err, errlen);
        const char *data = w->files[i].data;
        size_t left = w->files[i].len;
        for (int64_t line = 1; rc == 0 && left > 0 && !whole; line++) {
            const char *end = memchr(data, '\n', left);
            const size_t n = end ? (size_t)(end - data) : left;
            rc = add_text(w, data, n, i, line, err, errlen);
            data += n + (end != NULL);
            left -= n + (end != NULL);
        }
        if (rc == 0 && whole && left > 0)
            rc = add_text(w, data, left, i, 0, err, errlen);
    }
    return rc;
}

/* ---- Requests
 * ----------------------------------------------------------------------------------*/

static int ask(void *arg, gs_buf *body, char *err, size_t errlen) {
    work *w = arg;
    gs_jsonw out;
    size_t n = 0, bytes = 0;
    while (w->next < w->n && w->texts[w->next].offset >= 0)
        w->next++;
    if (w->next == w->n)
        return 0;
    gs_jobs_begin_body(w->cfg, body, &out);
    if (w->flags[F_STRICT].value) {
        gs_jsonw_key(&out, "truncate");
        gs_jsonw_bool(&out, false);
    }
    if (w->flags[F_DIMENSIONS].value) {
        gs_jsonw_key(&out, "dimensions");
        gs_jsonw_int(&out, strtol(w->flags[F_DIMENSIONS].value, NULL, 10));
    }
    gs_jsonw_key(&out, "input");
    gs_jsonw_arr(&out);
    for (; w->next < w->n && n < MAX_TEXTS && (n == 0 || bytes < MAX_BYTES); w->next++) {
        const text *t = &w->texts[w->next];
        if (t->offset >= 0)
            continue;
        gs_jsonw_strn(&out, t->data, t->n);
        bytes += t->n;
        n++;
    }
    gs_jsonw_end_arr(&out);
    gs_jsonw_end_obj(&out);
    w->n_asked[w->last_asked] = n;
    w->last_asked = (w->last_asked + 1) % N_OPEN;
    return body->failed ? gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory") : 1;
}

/* One line, in one write: what is torn after a kill has no newline. */
static int put_line(work *w, const text *t, const char *model, const json_t *v, char *err,
                    size_t errlen) {
    char hash[2 * GS_SHA256_BYTES + 1];
    gs_jsonw out;
    gs_buf source = {0};
    gs_hex(t->hash, sizeof(t->hash), hash);
    gs_buf_str(&source, w->cfg->positional[t->source]);
    if (t->line > 0)
        gs_buf_printf(&source, ":%lld", (long long)t->line);
    gs_buf_clear(&w->line);
    gs_jsonw_init(&out, &w->line);
    gs_jsonw_obj(&out);
    gs_jsonw_key(&out, "index");
    gs_jsonw_int(&out, t - w->texts);
    gs_jsonw_key(&out, "source");
    gs_jsonw_strn(&out, source.data ? source.data : "", source.len);
    gs_jsonw_key(&out, "sha256");
    gs_jsonw_str(&out, hash);
    gs_jsonw_key(&out, "model");
    gs_jsonw_str(&out, model);
    char *numbers = json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(9));
    gs_jsonw_key(&out, "embedding");
    if (numbers)
        gs_jsonw_raw(&out, numbers, strlen(numbers));
    gs_jsonw_end_obj(&out);
    gs_buf_char(&w->line, '\n');
    const bool whole = numbers && !source.failed && !w->line.failed;
    free(numbers);
    gs_buf_deinit(&source);
    if (!whole)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    FILE *f = w->to_terminal ? stdout : w->log.f;
    if (fwrite(w->line.data, 1, w->line.len, f) != w->line.len || fflush(f) != 0)
        return gs_fail(err, errlen, GS_ERR_IO, "writing: %s", gs_errno_text(errno));
    return 0;
}

static int put_lines(work *w, const json_t *v, size_t n, char *err, size_t errlen) {
    const json_t *vectors = json_object_get(v, "embeddings");
    const char *model = json_string_value(json_object_get(v, "model"));
    int rc = 0;
    if (!model || json_array_size(vectors) != n)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "the server's answer holds no vectors");
    if (w->log.model[0] && strcmp(w->log.model, model) != 0)
        return gs_fail(err, errlen, GS_ERR_EXISTS,
                       "the lines there are by the model '%.80s', not '%.80s'; use another --out",
                       w->log.model, model);
    snprintf(w->log.model, sizeof(w->log.model), "%s", model);
    for (size_t i = 0; rc == 0 && i < n; w->answered++) {
        if (w->texts[w->answered].offset < 0)
            rc = put_line(w, &w->texts[w->answered], model, json_array_get(vectors, i++), err,
                          errlen);
    }
    gs_progress_add(&w->progress, (int64_t)n);
    return rc;
}

static int answer(void *arg, const gs_http_answer *a, char *err, size_t errlen) {
    work *w = arg;
    const size_t n = w->n_asked[w->first_asked];
    w->first_asked = (w->first_asked + 1) % N_OPEN;
    if (a->status != 200) {
        gs_jobs_error_text(a, err, errlen);
        return GS_ERR_INVALID;
    }
    json_t *v = json_loadb(a->body.data, a->body.len, 0, NULL);
    const int rc = put_lines(w, v, n, err, errlen);
    json_decref(v);
    return rc;
}

/* ---- The command
 * -------------------------------------------------------------------------------*/

static int embed_all(work *w, char *err, size_t errlen) {
    size_t n_before = 0;
    for (size_t i = 0; i < w->n && !w->to_terminal; i++) {
        w->texts[i].offset = gs_embed_log_take(&w->log, w->texts[i].hash);
        n_before += w->texts[i].offset >= 0;
    }
    gs_jobs j = {.path = "/api/embed",
                 .n_open = N_OPEN,
                 .patience_s = PATIENCE_S,
                 .ask = ask,
                 .answer = answer,
                 .arg = w};
    int rc = gs_jobs_target(w->cfg, w->flags[F_URL].value, w->flags[F_KEY].value, &j.target, err,
                            errlen);
    j.target.class_ = w->flags[F_CLASS].value ? w->flags[F_CLASS].value : "background";
    if (rc != 0)
        return rc;
    gs_progress_begin(&w->progress, "texts", (int64_t)w->n, (int64_t)n_before);
    rc = gs_jobs_run(&j, err, errlen);
    gs_progress_end(&w->progress);
    if (w->n_empty > 0)
        fprintf(stderr, "%zu empty texts left out\n", w->n_empty);
    return rc;
}

/* Rows in the order of the texts. */
static int write_npy(work *w, const char *path, const char *log_path, char *err, size_t errlen) {
    int64_t *offsets = gs_array(w->n > 0 ? w->n : 1, sizeof(*offsets));
    if (!offsets)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    gs_embed_log log;
    int rc = gs_embed_log_open(log_path, &log, err, errlen);
    for (size_t i = 0; rc == 0 && i < w->n; i++) {
        offsets[i] = gs_embed_log_take(&log, w->texts[i].hash);
        if (offsets[i] < 0)
            rc = gs_fail(err, errlen, GS_ERR_INTERNAL, "%s lacks a line", log_path);
    }
    if (rc == 0)
        rc = gs_embed_write_npy(path, log_path, offsets, w->n, err, errlen);
    gs_embed_log_close(&log, NULL, 0);
    gs_free(offsets);
    return rc;
}

static int run(work *w, char *err, size_t errlen) {
    const char *out = w->flags[F_OUT].value, *dimensions = w->flags[F_DIMENSIONS].value;
    const size_t n_out = out ? strlen(out) : 0;
    const bool npy = n_out > 4 && strcmp(out + n_out - 4, ".npy") == 0;
    gs_buf log_path = {0};
    if (dimensions && (strspn(dimensions, "0123456789") != strlen(dimensions) || !*dimensions))
        return gs_fail(err, errlen, GS_ERR_INVALID, "--dimensions must be a whole number");
    if (w->cfg->n_positional == 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "name files, or '-' for the standard input");
    w->files = gs_calloc((size_t)w->cfg->n_positional, sizeof(*w->files));
    if (!w->files)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    w->to_terminal = !out || strcmp(out, "-") == 0;
    int rc = read_texts(w, err, errlen);
    if (rc == 0 && w->to_terminal)
        return embed_all(w, err, errlen);
    if (rc == 0) {
        gs_buf_printf(&log_path, "%s%s", out, npy ? ".jsonl" : "");
        rc = gs_buf_cstr(&log_path) && !log_path.failed
                 ? gs_embed_log_open(log_path.data, &w->log, err, errlen)
                 : gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    }
    if (rc == 0) {
        rc = embed_all(w, err, errlen);
        const int closed = gs_embed_log_close(&w->log, rc == 0 ? err : NULL, errlen);
        rc = rc == 0 ? closed : rc;
    }
    if (rc == 0 && npy)
        rc = write_npy(w, out, log_path.data, err, errlen);
    gs_buf_deinit(&log_path);
    return rc;
}

int gs_cmd_embed(int argc, char **argv) {
    gs_config cfg;
    gs_config_flag flags[N_FLAGS];
    char err[512] = "";
    memcpy(flags, flag_table, sizeof(flags));
    int rc =
        gs_cli_config(&cfg, gs_cli_command("embed"), argc, argv, flags, N_FLAGS, err, sizeof(err));
    work w = {.cfg = &cfg, .flags = flags};
    if (rc == 0)
        rc = run(&w, err, sizeof(err));
    for (int i = 0; w.files && i < cfg.n_positional; i++)
        gs_buf_deinit(&w.files[i]);
    gs_free(w.files);
    gs_free(w.texts);
    gs_buf_deinit(&w.line);
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return rc < 0 ? 2 : 0;
}
