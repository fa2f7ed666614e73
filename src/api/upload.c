/*
 * POST /v1/files: a form's file goes from the socket to the disk while it comes.
 *
 *     event loop   form parser ─► filling ─ swap ─► writing        (the client is paused while both
 *     store thread                                  └► ID.tmp       are full)
 *     at the end   ID.tmp ─ fsync, rename ─► ID, then its row: a file without a row is a stray,
 *                  which the next start removes
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/kept.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"
#include "http/multipart.h"

#define WRITE_BYTES 262144
#define PAUSE_BYTES (4 * WRITE_BYTES)
/* Of a form around its file. */
#define FORM_BYTES 65536

typedef enum upload_part { PART_OTHER, PART_FILE, PART_PURPOSE, PART_EXPIRES } upload_part;

struct gs_upload {
    gs_store_job job; /* first */
    gs_kept *k;
    gs_upload *next;
    gs_http_request *rq; /* NULL: the client is gone */
    gs_multipart form;
    upload_part part;
    gs_buf value; /* of a part that is no file */
    gs_buf filling, writing;
    char id[GS_ID_BYTES], filename[GS_MULTIPART_FILENAME], purpose[32];
    gs_owner owner;
    gs_kept_limits limits;
    int64_t bytes, expires_after_s;
    bool has_file, busy, paused, whole, published;
    int fd; /* the store thread's; -1: no file yet */
    gs_api_error e;
};

static void advance(gs_upload *u);

static void upload_free(gs_upload *u) {
    gs_upload **at = &u->k->uploads;
    while (*at != u)
        at = &(*at)->next;
    *at = u->next;
    u->k->api->n_live--;
    gs_multipart_deinit(&u->form);
    gs_buf_deinit(&u->value);
    gs_buf_deinit(&u->filling);
    gs_buf_deinit(&u->writing);
    gs_free(u);
}

/* ---- The form ------------------------------------------------------------------------------ */

static int on_begin(void *arg, const gs_multipart_part *p) {
    gs_upload *u = arg;
    gs_buf_clear(&u->value);
    u->part = strcmp(p->name, "file") == 0                     ? PART_FILE
              : strcmp(p->name, "purpose") == 0                ? PART_PURPOSE
              : strcmp(p->name, "expires_after[seconds]") == 0 ? PART_EXPIRES
                                                               : PART_OTHER;
    if (u->part != PART_FILE)
        return 0;
    if (u->has_file)
        return gs_api_fail(&u->e, GS_ERR_INVALID, "file", "The form has two files.");
    u->has_file = true;
    snprintf(u->filename, sizeof(u->filename), "%s", p->filename[0] ? p->filename : "upload");
    return 0;
}

static int on_data(void *arg, const char *data, size_t n) {
    gs_upload *u = arg;
    if (u->part == PART_FILE) {
        u->bytes += (int64_t)n;
        if (u->bytes > u->limits.max_file)
            return gs_api_fail(&u->e, GS_ERR_TOO_LARGE, "file",
                               "The file is larger than %lld MB (store.max_file_mb).",
                               (long long)(u->limits.max_file >> 20));
        return gs_buf_add(&u->filling, data, n);
    }
    if (u->value.len + n > 256)
        return u->part == PART_OTHER
                   ? 0
                   : gs_api_fail(&u->e, GS_ERR_INVALID,
                                 u->part == PART_PURPOSE ? "purpose" : "expires_after",
                                 "A field of the form is too long.");
    return gs_buf_add(&u->value, data, n);
}

static int on_end(void *arg) {
    gs_upload *u = arg;
    const char *text = gs_buf_cstr(&u->value);
    if (!text)
        return GS_ERR_NOMEM;
    if (u->part == PART_PURPOSE) {
        snprintf(u->purpose, sizeof(u->purpose), "%s", text);
        if (strcmp(text, "batch") != 0)
            return gs_api_fail(&u->e, GS_ERR_INVALID, "purpose",
                               "'purpose' must be 'batch'; this server does not use '%.40s'.",
                               text);
    } else if (u->part == PART_EXPIRES) {
        char *end;
        errno = 0;
        u->expires_after_s = strtoll(text, &end, 10);
        if (errno || *end || u->expires_after_s < 3600 || u->expires_after_s > 2592000)
            return gs_api_fail(&u->e, GS_ERR_INVALID, "expires_after",
                               "'expires_after[seconds]' must be 3600 to 2592000.");
    }
    return 0;
}

static void form_failed(gs_upload *u, int rc) {
    if (rc != 0 && u->e.code == 0)
        gs_api_fail(&u->e, rc, NULL, "The form can't be read: %s.",
                    u->form.error ? u->form.error : gs_err_text(rc));
}

/* After a failure the rest is taken and dropped, so that the client reads the answer. */
static void sink_data(void *arg, const char *data, size_t n) {
    gs_upload *u = arg;
    if (u->e.code == 0)
        form_failed(u, gs_multipart_feed(&u->form, data, n));
    if (u->filling.len > PAUSE_BYTES && u->busy && !u->paused) {
        u->paused = true;
        gs_http_pause_body(u->rq);
    }
    advance(u);
}

static void sink_cut(void *arg) {
    gs_upload *u = arg;
    u->rq = NULL;
    u->whole = true;
    if (u->e.code == 0)
        gs_api_fail(&u->e, GS_ERR_CANCELLED, NULL, "The client is gone.");
    advance(u);
}

/* ---- The store thread ---------------------------------------------------------------------- */

static int run_write(gs_db *db, gs_store_job *job) {
    gs_upload *u = (gs_upload *)job;
    char path[4200];
    int rc = gs_kept_check_room(db, &u->limits, u->bytes, job->err, sizeof(job->err));
    if (rc == 0 && u->fd < 0) {
        gs_kept_path(gs_db_folder(db), u->id, ".tmp", path, sizeof(path));
        u->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (u->fd < 0)
            return gs_fail(job->err, sizeof(job->err),
                           errno == ENOSPC ? GS_ERR_NO_SPACE : GS_ERR_IO,
                           "The file can't be made: %s.", gs_errno_text(errno));
    }
    if (rc == 0 && u->writing.len > 0)
        rc = gs_store_write(u->fd, u->writing.data, u->writing.len);
    return rc;
}

static int run_publish(gs_db *db, gs_store_job *job) {
    gs_upload *u = (gs_upload *)job;
    char tmp[4200], path[4200];
    gs_kept_path(gs_db_folder(db), u->id, ".tmp", tmp, sizeof(tmp));
    gs_kept_path(gs_db_folder(db), u->id, "", path, sizeof(path));
    int fd = u->fd;
    u->fd = -1;
    return gs_store_publish(fd, tmp, path);
}

static int run_remove(gs_db *db, gs_store_job *job) {
    gs_upload *u = (gs_upload *)job;
    char path[4200];
    if (u->fd >= 0)
        close(u->fd);
    u->fd = -1;
    gs_kept_path(gs_db_folder(db), u->id, ".tmp", path, sizeof(path));
    unlink(path);
    gs_kept_path(gs_db_folder(db), u->id, "", path, sizeof(path));
    unlink(path);
    return 0;
}

static int run_insert(gs_db *db, gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    const gs_upload *u = c->arg;
    int64_t had = 0, keep_s = c->limits.keep_s;
    int rc =
        gs_db_int(db, &had, 0, "SELECT sum(bytes) FROM files WHERE owner = ?1", "t", c->owner.name);
    if (rc == 0 && had + u->bytes > c->limits.person)
        return gs_api_fail(&c->e, GS_ERR_TOO_LARGE, "file",
                           "Your files may be %lld MB together (store.person_mb); you have %lld "
                           "MB. Remove some.",
                           (long long)(c->limits.person >> 20), (long long)(had >> 20));
    if (u->expires_after_s > 0 && u->expires_after_s < keep_s)
        keep_s = u->expires_after_s;
    if (rc == 0)
        rc = gs_db_run(db,
                       "INSERT INTO files (id, owner, purpose, filename, bytes, created_s, "
                       "expires_s, expires_service_s) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                       "ttttiiii", u->id, c->owner.name, u->purpose, u->filename, u->bytes,
                       c->now_s, c->now_s + keep_s, c->service_s + keep_s);
    sqlite3_stmt *s = NULL;
    if (rc == 0)
        rc = gs_db_query(db, &s, "SELECT " GS_FILE_COLUMNS " FROM files WHERE id = ?1", "t", u->id);
    if (rc == 0)
        rc = gs_db_step(db, s);
    if (rc != 1)
        return gs_kept_fail(c, db, rc < 0 ? rc : GS_ERR_INTERNAL);
    gs_jsonw w;
    gs_buf_clear(&c->out);
    gs_jsonw_init(&w, &c->out);
    gs_file_write(&w, c, s);
    gs_db_reset(s);
    return 0;
}

/* ---- Steps --------------------------------------------------------------------------------- */

static void step_done(gs_store_job *job) {
    gs_upload *u = (gs_upload *)job;
    u->busy = false;
    gs_buf_clear(&u->writing);
    if (job->rc != 0 && u->e.code == 0)
        gs_api_fail(&u->e, job->rc, NULL, "%s%s", job->err,
                    strchr(job->err, '.') ? "" : ": the file could not be kept.");
    if (u->paused && u->filling.len <= PAUSE_BYTES) {
        u->paused = false;
        if (u->rq)
            gs_http_resume_body(u->rq);
    }
    advance(u);
}

static void submit(gs_upload *u, int (*run)(gs_db *db, gs_store_job *job),
                   void (*done)(gs_store_job *job)) {
    u->job = (gs_store_job){.kind = GS_STORE_FILES, .run = run, .done = done};
    u->busy = true;
    int rc = gs_store_submit(u->k->store, &u->job);
    if (rc == 0)
        return;
    u->busy = false;
    if (u->e.code == 0)
        gs_api_fail(&u->e, rc, NULL, "The store is not available, or too busy.");
}

static void removed(gs_store_job *job) {
    gs_upload *u = (gs_upload *)job;
    gs_http_request *rq = u->rq;
    if (rq)
        gs_api_reply_error(rq, &u->e);
    upload_free(u);
}

/* The answer, and no trace on the disk. */
static void give_up(gs_upload *u) {
    submit(u, run_remove, removed);
    if (!u->busy)
        removed(&u->job);
}

static bool inserted(gs_call *c) {
    gs_upload *u = c->arg;
    u->busy = false;
    u->rq = c->rq; /* back, unless the client has gone */
    if (c->e.code != 0) {
        u->e = c->e;
        c->rq = NULL;
        gs_call_answer(c);
        give_up(u);
        return true;
    }
    upload_free(u);
    return false;
}

/* The row, as a call that answers. */
static void insert(gs_upload *u) {
    gs_call *c = gs_call_new(u->k->api, u->rq);
    u->rq = NULL;
    if (!c) { /* it has answered */
        gs_api_fail(&u->e, GS_ERR_UNAVAILABLE, NULL, "The server is shutting down.");
        give_up(u);
        return;
    }
    c->arg = u;
    c->then = inserted;
    u->busy = true;
    gs_call_submit(c, run_insert);
}

static void check_fields(gs_upload *u) {
    form_failed(u, gs_multipart_finish(&u->form));
    if (u->e.code == 0 && !u->has_file)
        gs_api_fail(&u->e, GS_ERR_INVALID, "file", "'file' is missing.");
    if (u->e.code == 0 && !u->purpose[0])
        gs_api_fail(&u->e, GS_ERR_INVALID, "purpose", "'purpose' is missing.");
}

static void advance(gs_upload *u) {
    if (u->busy)
        return;
    if (u->e.code != 0) {
        gs_buf_clear(&u->filling);
        if (u->paused && u->rq)
            gs_http_resume_body(u->rq);
        u->paused = false;
        if (u->whole)
            give_up(u);
        return;
    }
    bool first = u->whole && u->fd < 0 && !u->published; /* an empty file is one, too */
    if (u->filling.len >= WRITE_BYTES || (u->whole && u->filling.len > 0) || first) {
        gs_buf swap = u->writing;
        u->writing = u->filling;
        u->filling = swap;
        submit(u, run_write, step_done);
    } else if (u->whole && !u->published) {
        u->published = true;
        submit(u, run_publish, step_done);
    } else if (u->whole) {
        insert(u);
        return;
    }
    if (u->e.code != 0) /* the store did not take it */
        advance(u);
}

/* ---- The request --------------------------------------------------------------------------- */

static bool wants_upload(const gs_http_request *rq) {
    return strcmp(gs_http_path(rq), "/v1/files") == 0 && strcmp(gs_http_method(rq), "POST") == 0;
}

static gs_upload *upload_new(gs_api *a, gs_http_request *rq, gs_api_error *e) {
    const gs_multipart_handler on = {on_begin, on_data, on_end, NULL};
    gs_upload *u = gs_calloc(1, sizeof(*u));
    if (!u) {
        gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
        return NULL;
    }
    int rc = gs_multipart_init(&u->form, gs_http_header(rq, "content-type"), &on);
    if (rc != 0) {
        gs_api_fail(e, rc, NULL, "Send the file as multipart/form-data with a boundary.");
        gs_free(u);
        return NULL;
    }
    u->form.on.arg = u;
    u->k = a->kept;
    u->rq = rq;
    u->fd = -1;
    gs_kept_id("file-", u->id);
    gs_api_owner(a, rq, &u->owner);
    gs_kept_limits_now(a->kept, &u->limits);
    u->next = a->kept->uploads;
    a->kept->uploads = u;
    a->n_live++;
    return u;
}

int gs_upload_head(gs_api *a, gs_http_request *rq, const char **message) {
    static char text[320]; /* until the next head: the server copies it at once */
    gs_api_error e = {0};
    gs_upload *u = NULL;
    if (!wants_upload(rq))
        return 0;
    int rc = gs_api_check_access(a, rq, &e);
    if (rc == 0 && !a->kept)
        gs_api_fail(&e, GS_ERR_UNAVAILABLE, NULL, "Nothing can be kept here: %s.",
                    a->cfg.state_reason ? a->cfg.state_reason : "there is no state folder");
    else if (rc == 0 && gs_api_store(a, &e))
        u = upload_new(a, rq, &e);
    if (!u) {
        snprintf(text, sizeof(text), "%s", e.message);
        *message = text;
        return e.status ? e.status : gs_err_http(e.code);
    }
    const gs_http_sink sink = {sink_data, sink_cut, u};
    gs_http_stream_body(rq, &sink);
    return 0;
}

size_t gs_upload_limit(const gs_api *a, const char *method, const char *path) {
    if (!a->cfg.config || strcmp(path, "/v1/files") != 0 || strcmp(method, "POST") != 0)
        return 0;
    return ((size_t)a->cfg.config->store_max_file_mb << 20) + FORM_BYTES;
}

void gs_upload_request(gs_api *a, gs_http_request *rq, json_t *body) {
    gs_upload *u = a->kept ? a->kept->uploads : NULL;
    (void)body;
    while (u && u->rq != rq)
        u = u->next;
    if (!u) { /* a request without a body never had a sink */
        gs_api_error e;
        gs_api_fail(&e, GS_ERR_INVALID, "file", "'file' is missing: send multipart/form-data.");
        gs_api_reply_error(rq, &e);
        return;
    }
    u->whole = true;
    if (u->e.code == 0)
        check_fields(u);
    advance(u);
}

bool gs_upload_gone(gs_kept *k, gs_http_request *rq) {
    for (gs_upload *u = k->uploads; u; u = u->next) {
        if (u->rq != rq)
            continue;
        u->rq = NULL;
        gs_http_end(rq);
        if (u->e.code == 0)
            gs_api_fail(&u->e, GS_ERR_CANCELLED, NULL, "The client is gone.");
        advance(u);
        return true;
    }
    return false;
}
