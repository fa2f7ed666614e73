/*
 * gamasot summarize: an example of offline conversion. Each file of a folder becomes one file of
 * another, by a prompt template and a running server, as background work.
 *
 * A summary is renamed into place whole, then a line of OUT/.gamasot-summaries.jsonl says of what
 * it was made. Killed in between, the file is made again; it is never half there.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/jsonw.h"
#include "base/sha256.h"
#include "base/sys.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/embed_log.h"
#include "cli/jobs.h"

#define N_OPEN         4
#define PATIENCE_S     120
#define MAX_FILE_BYTES (4 << 20)
#define LOG_NAME       ".gamasot-summaries.jsonl"
#define TEXT_MARK      "{text}"
#define NAME_MARK      "{name}"

static const char default_template[] =
    "Summarize the following text in a few sentences, in the language it is written in.\n\n"
    "File: " NAME_MARK "\n\n" TEXT_MARK;

enum { F_OUT, F_PROMPT, F_MAX_TOKENS, F_EXT, F_URL, F_KEY, F_CLASS, N_FLAGS };

static const gs_config_flag flag_table[N_FLAGS] = {
    [F_OUT] = {"out", "DIR", "where the summaries go, one FILE.md each", NULL},
    [F_PROMPT] = {"prompt", "FILE", "template with {text} and {name}; default: a summary", NULL},
    [F_MAX_TOKENS] = {"max-tokens", "N", "longest summary; default 512", NULL},
    [F_EXT] = {"ext", "LIST", "only files that end so, e.g. txt,md; default: all texts", NULL},
    [F_URL] = {"url", "URL", "the server; default: this machine's", NULL},
    [F_KEY] = {"key", "KEY", "API key; default: GAMASOT_API_KEY", NULL},
    [F_CLASS] = {"class", "CLASS", "default: background", NULL},
};

typedef struct source {
    char *name;                         /* below the folder */
    char hash[2 * GS_SHA256_BYTES + 1]; /* of model, template and text; "": not asked for */
} source;

typedef struct work {
    const gs_config *cfg;
    const gs_config_flag *flags;
    const char *in, *out;
    gs_buf template;
    json_t *made; /* name -> hash, as the log says */
    FILE *log;
    source *files; /* [n], by name */
    size_t n, cap;
    size_t next;
    size_t asked[N_OPEN]; /* ring of indices */
    int first_asked, last_asked;
    int n_failed, n_left_out;
    gs_progress progress;
} work;

/* nftw has no argument for its callback. */
static work *walking;

/* ---- Which files
 * -------------------------------------------------------------------------------*/

static bool ends_as_asked(const char *name, const char *list) {
    const char *dot = strrchr(name, '.');
    if (!list)
        return true;
    for (const char *at = list; dot && *at; at += strspn(at, ", ")) {
        at += *at == '.';
        const size_t n = strcspn(at, ", ");
        if (strlen(dot + 1) == n && strncmp(dot + 1, at, n) == 0)
            return true;
        at += n;
    }
    return false;
}

static int add_file(work *w, const char *name) {
    if (w->n == w->cap) {
        const size_t cap = w->cap ? 2 * w->cap : 64;
        source *more = gs_realloc(w->files, cap * sizeof(*more));
        if (!more)
            return GS_ERR_NOMEM;
        w->files = more;
        w->cap = cap;
    }
    char *copy = gs_strdup(name);
    if (!copy)
        return GS_ERR_NOMEM;
    w->files[w->n++] = (source){.name = copy};
    return 0;
}

/* What is hidden, and the folder of the summaries, is passed over. */
static int visit(const char *path, const struct stat *st, int type, struct FTW *where) {
    work *w = walking;
    struct stat out;
    if (where->level > 0 && path[where->base] == '.')
        return type == FTW_D ? FTW_SKIP_SUBTREE : FTW_CONTINUE;
    if (type == FTW_D && stat(w->out, &out) == 0 && out.st_ino == st->st_ino &&
        out.st_dev == st->st_dev)
        return FTW_SKIP_SUBTREE;
    if (type != FTW_F || !S_ISREG(st->st_mode) ||
        !ends_as_asked(path + where->base, w->flags[F_EXT].value))
        return FTW_CONTINUE;
    const char *name = path + strlen(w->in);
    while (*name == '/')
        name++;
    return add_file(w, name) == 0 ? FTW_CONTINUE : FTW_STOP;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const source *)a)->name, ((const source *)b)->name);
}

static int find_files(work *w, char *err, size_t errlen) {
    walking = w;
    errno = 0;
    const int rc = nftw(w->in, visit, 16, FTW_PHYS | FTW_ACTIONRETVAL);
    if (rc == FTW_STOP)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    if (rc != 0)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", w->in, gs_errno_text(errno));
    if (w->n > 0)
        qsort(w->files, w->n, sizeof(*w->files), by_name);
    return 0;
}

/* ---- The log of what is made
 * -------------------------------------------------------------------*/

static int join(gs_buf *out, const char *dir, const char *name, const char *end, char *err,
                size_t errlen) {
    gs_buf_clear(out);
    gs_buf_printf(out, "%s/%s%s", dir, name, end);
    return out->failed || !gs_buf_cstr(out) ? gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory")
                                            : 0;
}

/* The newest line of a file counts; a torn one at the end is cut off. */
static int open_log(work *w, char *err, size_t errlen) {
    gs_buf path = {0};
    const void *data = NULL;
    size_t size = 0, at = 0;
    int rc = join(&path, w->out, LOG_NAME, "", err, errlen);
    w->made = json_object();
    if (rc == 0 && access(path.data, F_OK) == 0)
        rc = gs_map_file(path.data, &data, &size, err, errlen);
    while (rc == 0 && at < size) {
        const char *line = (const char *)data + at, *end = memchr(line, '\n', size - at);
        if (!end)
            break;
        json_t *v = json_loadb(line, (size_t)(end - line), 0, NULL);
        const char *name = json_string_value(json_object_get(v, "file"));
        if (name)
            json_object_set(w->made, name, json_object_get(v, "sha256"));
        json_decref(v);
        at += (size_t)(end - line) + 1;
    }
    gs_unmap(data, size);
    if (rc == 0 && at < size && truncate(path.data, (off_t)at) != 0)
        rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path.data, gs_errno_text(errno));
    if (rc == 0 && !(w->log = fopen(path.data, "ae")))
        rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path.data, gs_errno_text(errno));
    gs_buf_deinit(&path);
    return rc;
}

static bool is_made(const work *w, const source *f) {
    const char *hash = json_string_value(json_object_get(w->made, f->name));
    gs_buf path = {0};
    char err[8];
    const bool there = hash && strcmp(hash, f->hash) == 0 &&
                       join(&path, w->out, f->name, ".md", err, sizeof(err)) == 0 &&
                       access(path.data, F_OK) == 0;
    gs_buf_deinit(&path);
    return there;
}

/* ---- Requests
 * ----------------------------------------------------------------------------------*/

/* The template with its marks filled in, in one pass: what stands in the text is no mark. */
static void fill(const gs_buf *template, const char *name, const char *text, size_t n,
                 gs_buf *out) {
    const char *at = template->data, *end = at + template->len;
    while (at < end) {
        const size_t left = (size_t)(end - at);
        if (left >= strlen(TEXT_MARK) && memcmp(at, TEXT_MARK, strlen(TEXT_MARK)) == 0) {
            gs_buf_add(out, text, n);
            at += strlen(TEXT_MARK);
        } else if (left >= strlen(NAME_MARK) && memcmp(at, NAME_MARK, strlen(NAME_MARK)) == 0) {
            gs_buf_str(out, name);
            at += strlen(NAME_MARK);
        } else {
            gs_buf_char(out, *at++);
        }
    }
}

/* The prompt of a file into out. GS_ERR_FORMAT: it is left out, no text. */
static int make_prompt(work *w, source *f, gs_buf *out, char *err, size_t errlen) {
    gs_buf path = {0}, hashed = {0};
    const void *data = NULL;
    size_t n = 0;
    uint8_t hash[GS_SHA256_BYTES];
    int rc = join(&path, w->in, f->name, "", err, errlen);
    if (rc == 0)
        rc = gs_map_file(path.data, &data, &n, err, errlen);
    if (rc == 0 && (n == 0 || n > MAX_FILE_BYTES || memchr(data, 0, n) || !gs_utf8_valid(data, n)))
        rc = GS_ERR_FORMAT;
    if (rc == 0) {
        fill(&w->template, f->name, data, n, out);
        gs_buf_printf(&hashed, "%s%c", gs_jobs_model(w->cfg) ? gs_jobs_model(w->cfg) : "", 0);
        gs_buf_add(&hashed, out->data, out->len);
        if (out->failed || hashed.failed)
            rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    }
    if (rc == 0) {
        gs_sha256(hashed.data, hashed.len, hash);
        gs_hex(hash, sizeof(hash), f->hash);
    }
    gs_unmap(data, n);
    gs_buf_deinit(&hashed);
    gs_buf_deinit(&path);
    return rc;
}

static void put_request(const work *w, const gs_buf *prompt, gs_buf *body) {
    gs_jsonw out;
    const char *max_tokens = w->flags[F_MAX_TOKENS].value;
    gs_jobs_begin_body(w->cfg, body, &out);
    gs_jsonw_key(&out, "max_tokens");
    gs_jsonw_int(&out, max_tokens ? strtol(max_tokens, NULL, 10) : 512);
    gs_jsonw_key(&out, "temperature");
    gs_jsonw_int(&out, 0);
    gs_jsonw_key(&out, "messages");
    gs_jsonw_arr(&out);
    gs_jsonw_obj(&out);
    gs_jsonw_key(&out, "role");
    gs_jsonw_str(&out, "user");
    gs_jsonw_key(&out, "content");
    gs_jsonw_strn(&out, prompt->data, prompt->len);
    gs_jsonw_end_obj(&out);
    gs_jsonw_end_arr(&out);
    gs_jsonw_end_obj(&out);
}

static int ask(void *arg, gs_buf *body, char *err, size_t errlen) {
    work *w = arg;
    while (w->next < w->n) {
        source *f = &w->files[w->next++];
        gs_buf prompt = {0};
        int rc = make_prompt(w, f, &prompt, err, errlen);
        const bool made = rc == 0 && is_made(w, f);
        if (rc == 0 && !made)
            put_request(w, &prompt, body);
        gs_buf_deinit(&prompt);
        if (rc == GS_ERR_FORMAT || rc == GS_ERR_NOT_FOUND) { /* no text, or it has just gone */
            w->n_left_out++;
            w->progress.n_total--;
            continue;
        }
        if (rc != 0)
            return rc;
        if (made) {
            w->progress.n_before++;
            gs_progress_add(&w->progress, 1);
            continue;
        }
        w->asked[w->last_asked] = w->next - 1;
        w->last_asked = (w->last_asked + 1) % N_OPEN;
        return body->failed ? gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory") : 1;
    }
    return 0;
}

/* The folders above the file at path. */
static int make_folders(char *path) {
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        const bool bad = mkdir(path, 0777) != 0 && errno != EEXIST;
        *at = '/';
        if (bad)
            return GS_ERR_IO;
    }
    return 0;
}

static int write_whole(const char *tmp, const char *path, const char *text) {
    FILE *f = fopen(tmp, "we");
    bool good = f && fputs(text, f) >= 0 && (*text == '\0' || fputc('\n', f) != EOF);
    good = f && fflush(f) == 0 && fsync(fileno(f)) == 0 && good;
    if (f && fclose(f) != 0)
        good = false;
    return good && rename(tmp, path) == 0 ? 0 : GS_ERR_IO;
}

static int keep(work *w, const source *f, const char *text, char *err, size_t errlen) {
    gs_buf path = {0}, tmp = {0};
    int rc = join(&path, w->out, f->name, ".md", err, errlen);
    if (rc == 0)
        rc = join(&tmp, w->out, f->name, ".md.tmp", err, errlen);
    if (rc == 0 && (make_folders(path.data) != 0 || write_whole(tmp.data, path.data, text) != 0))
        rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path.data, gs_errno_text(errno));
    json_t *line = rc == 0 ? json_pack("{s:s, s:s}", "file", f->name, "sha256", f->hash) : NULL;
    char *dumped = line ? json_dumps(line, JSON_COMPACT) : NULL;
    if (rc == 0 && !dumped)
        rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    if (rc == 0 && (fprintf(w->log, "%s\n", dumped) < 0 || fflush(w->log) != 0))
        rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", w->out, gs_errno_text(errno));
    free(dumped);
    json_decref(line);
    gs_buf_deinit(&path);
    gs_buf_deinit(&tmp);
    return rc;
}

/* A file that can't be summarized, as one that is too long, does not stop the others. */
static int answer(void *arg, const gs_http_answer *a, char *err, size_t errlen) {
    work *w = arg;
    const source *f = &w->files[w->asked[w->first_asked]];
    w->first_asked = (w->first_asked + 1) % N_OPEN;
    gs_progress_add(&w->progress, 1);
    if (a->status == 401 || a->status == 403 || a->status == 404) {
        gs_jobs_error_text(a, err, errlen);
        return GS_ERR_INVALID;
    }
    json_t *v = a->status == 200 ? json_loadb(a->body.data, a->body.len, 0, NULL) : NULL;
    const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
    const char *text =
        json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    int rc = 0;
    if (text) {
        rc = keep(w, f, text, err, errlen);
    } else {
        char why[256];
        gs_jobs_error_text(a, why, sizeof(why));
        fprintf(stderr, "\r\x1b[K%s: %s\n", f->name, why);
        w->n_failed++;
    }
    json_decref(v);
    return rc;
}

/* ---- The command
 * -------------------------------------------------------------------------------*/

static int read_template(work *w, char *err, size_t errlen) {
    const char *path = w->flags[F_PROMPT].value;
    const void *data = default_template;
    size_t n = strlen(default_template);
    int rc = path ? gs_map_file(path, &data, &n, err, errlen) : 0;
    if (rc == 0 && gs_buf_add(&w->template, data, n) != 0)
        rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    if (rc == 0 && !memmem(w->template.data, w->template.len, TEXT_MARK, strlen(TEXT_MARK)))
        rc = gs_fail(err, errlen, GS_ERR_INVALID, "%s has no " TEXT_MARK, path);
    if (path)
        gs_unmap(data, n);
    return rc;
}

static int check_flags(work *w, char *err, size_t errlen) {
    const char *max_tokens = w->flags[F_MAX_TOKENS].value;
    if (w->cfg->n_positional != 1 || !w->flags[F_OUT].value)
        return gs_fail(err, errlen, GS_ERR_INVALID, "name one folder, and another with --out");
    if (max_tokens && (strspn(max_tokens, "0123456789") != strlen(max_tokens) ||
                       strtol(max_tokens, NULL, 10) < 1))
        return gs_fail(err, errlen, GS_ERR_INVALID, "--max-tokens must be a whole number above 0");
    w->in = w->cfg->positional[0];
    w->out = w->flags[F_OUT].value;
    if (mkdir(w->out, 0777) != 0 && errno != EEXIST)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", w->out, gs_errno_text(errno));
    return 0;
}

static int run(work *w, char *err, size_t errlen) {
    gs_jobs j = {.path = "/v1/chat/completions",
                 .n_open = N_OPEN,
                 .patience_s = PATIENCE_S,
                 .ask = ask,
                 .answer = answer,
                 .arg = w};
    int rc = check_flags(w, err, errlen);
    if (rc == 0)
        rc = gs_jobs_target(w->cfg, w->flags[F_URL].value, w->flags[F_KEY].value, &j.target, err,
                            errlen);
    j.target.class_ = w->flags[F_CLASS].value ? w->flags[F_CLASS].value : "background";
    if (rc == 0)
        rc = read_template(w, err, errlen);
    if (rc == 0)
        rc = open_log(w, err, errlen);
    if (rc == 0)
        rc = find_files(w, err, errlen);
    if (rc != 0)
        return rc;
    gs_progress_begin(&w->progress, "files", (int64_t)w->n, 0);
    rc = gs_jobs_run(&j, err, errlen);
    w->progress.n_done -= w->n_failed;
    gs_progress_end(&w->progress);
    if (w->n_left_out > 0)
        fprintf(stderr, "%d files left out: empty, no text, or too large\n", w->n_left_out);
    if (rc == 0 && w->n_failed > 0)
        rc = gs_fail(err, errlen, GS_ERR_INVALID, "%d files have no summary", w->n_failed);
    return rc;
}

int gs_cmd_summarize(int argc, char **argv) {
    gs_config cfg;
    gs_config_flag flags[N_FLAGS];
    char err[512] = "";
    memcpy(flags, flag_table, sizeof(flags));
    int rc = gs_cli_config(&cfg, gs_cli_command("summarize"), argc, argv, flags, N_FLAGS, err,
                           sizeof(err));
    work w = {.cfg = &cfg, .flags = flags};
    if (rc == 0)
        rc = run(&w, err, sizeof(err));
    for (size_t i = 0; i < w.n; i++)
        gs_free(w.files[i].name);
    gs_free(w.files);
    if (w.log)
        fclose(w.log);
    json_decref(w.made);
    gs_buf_deinit(&w.template);
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return rc < 0 ? 2 : 0;
}
