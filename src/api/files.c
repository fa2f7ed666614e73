/* /v1/files: OpenAI's Files API but for the upload (upload.c). */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/kept.h"
#include "base/err.h"
#include "base/sys.h"

#define PIECE_BYTES 262144

static const char file_path[] = "/v1/files/{file_id}";

void gs_file_write(gs_jsonw *w, const gs_call *c, sqlite3_stmt *s) {
    (void)c;
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "id");
    gs_jsonw_str(w, gs_db_text(s, 0));
    gs_jsonw_key(w, "object");
    gs_jsonw_str(w, "file");
    gs_jsonw_key(w, "bytes");
    gs_jsonw_int(w, sqlite3_column_int64(s, 1));
    gs_jsonw_key(w, "created_at");
    gs_jsonw_int(w, sqlite3_column_int64(s, 2));
    gs_jsonw_key(w, "expires_at");
    gs_jsonw_int(w, sqlite3_column_int64(s, 3));
    gs_jsonw_key(w, "filename");
    gs_jsonw_str(w, gs_db_text(s, 4));
    gs_jsonw_key(w, "purpose");
    gs_jsonw_str(w, gs_db_text(s, 5));
    gs_jsonw_key(w, "status");
    gs_jsonw_str(w, "processed");
    gs_jsonw_key(w, "status_details");
    gs_jsonw_null(w);
    gs_jsonw_end_obj(w);
}

/* The row of c->id, if the owner may see it: 1. Else c->e. */
static int find_file(gs_call *c, gs_db *db, sqlite3_stmt **s) {
    int rc = gs_db_query(db, s, "SELECT " GS_FILE_COLUMNS " FROM files WHERE id = ?1", "t", c->id);
    if (rc == 0)
        rc = gs_db_step(db, *s);
    if (rc < 0)
        return gs_kept_fail(c, db, rc);
    if (rc == 1 && (c->admin || strcmp(gs_db_text(*s, 6), c->owner.name) == 0))
        return 1;
    gs_db_reset(*s);
    return gs_api_fail(&c->e, GS_ERR_NOT_FOUND, "file_id", "There is no file '%.47s' of yours.",
                       c->id);
}

/* ---- One, all, delete ---------------------------------------------------------------------- */

static int run_get(gs_db *db, gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    sqlite3_stmt *s;
    gs_jsonw w;
    int rc = find_file(c, db, &s);
    if (rc < 0)
        return rc;
    gs_buf_clear(&c->out);
    gs_jsonw_init(&w, &c->out);
    gs_file_write(&w, c, s);
    gs_db_reset(s);
    return 0;
}

static int run_list(gs_db *db, gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    sqlite3_stmt *s;
    int64_t after = 0;
    int rc = gs_db_int(db, &after, c->ascending ? 0 : INT64_MAX,
                       "SELECT seq FROM files WHERE id = ?1", "t", c->after);
    const char *up = "SELECT " GS_FILE_COLUMNS " FROM files WHERE (owner = ?1 OR ?2) AND "
                     "(?3 = '' OR purpose = ?3) AND seq > ?4 ORDER BY seq LIMIT ?5";
    const char *down = "SELECT " GS_FILE_COLUMNS " FROM files WHERE (owner = ?1 OR ?2) AND "
                       "(?3 = '' OR purpose = ?3) AND seq < ?4 ORDER BY seq DESC LIMIT ?5";
    if (rc == 0)
        rc = gs_db_query(db, &s, c->ascending ? up : down, "titii", c->owner.name, (int64_t)c->all,
                         c->purpose, after, (int64_t)c->limit + 1);
    return rc == 0 ? gs_call_list(c, db, s, 0, gs_file_write) : gs_kept_fail(c, db, rc);
}

/* The bytes go with the next sweep: not before the row is gone for good. */
static int run_delete(gs_db *db, gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    sqlite3_stmt *s;
    int64_t used = 0;
    int rc = find_file(c, db, &s);
    if (rc < 0)
        return rc;
    gs_db_reset(s);
    rc = gs_db_int(db, &used, 0,
                   "SELECT 1 FROM batches WHERE input_file = ?1 AND status IN ('validating', "
                   "'in_progress', 'finalizing', 'cancelling')",
                   "t", c->id);
    if (rc == 0 && used)
        return gs_api_fail(&c->e, GS_ERR_EXISTS, "file_id",
                           "A batch that is not over reads this file; cancel it first.");
    if (rc == 0)
        rc = gs_db_run(db, "DELETE FROM files WHERE id = ?1", "t", c->id);
    if (rc != 0)
        return gs_kept_fail(c, db, rc);
    gs_buf_clear(&c->out);
    gs_buf_printf(&c->out, "{\"id\":\"%s\",\"object\":\"file\",\"deleted\":true}", c->id);
    return 0;
}

static bool deleted(gs_call *c) {
    if (c->job.rc == 0)
        c->k->swept_ns = 0; /* soon */
    return false;
}

static gs_call *file_call(gs_api *a, gs_http_request *rq, const char *pattern) {
    gs_call *c = gs_call_new(a, rq);
    if (c)
        gs_route_param(pattern, gs_http_path(rq), c->id, sizeof(c->id));
    return c;
}

static void get_file(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_call *c = file_call(a, rq, file_path);
    if (c)
        gs_call_submit(c, run_get);
}

static void delete_file(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_call *c = file_call(a, rq, file_path);
    if (!c)
        return;
    c->then = deleted;
    gs_call_submit(c, run_delete);
}

static void list_files(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_call *c = gs_call_new(a, rq);
    if (c && gs_call_list_params(c, 10000, 10000) == 0)
        gs_call_submit(c, run_list);
}

/* ---- Content: piece by piece, as the client takes it --------------------------------------- */

struct gs_download {
    gs_store_job job; /* first */
    gs_kept *k;
    gs_download *next;
    gs_http_request *rq; /* NULL: the client is gone */
    char path[4200];
    int64_t at;
    bool busy, begun;
    size_t n;
    char piece[PIECE_BYTES];
};

static const char content_path[] = "/v1/files/{file_id}/content";

static void download_free(gs_download *d) {
    gs_download **at = &d->k->downloads;
    while (*at != d)
        at = &(*at)->next;
    *at = d->next;
    d->k->api->n_live--;
    gs_free(d);
}

bool gs_download_gone(gs_kept *k, gs_http_request *rq) {
    for (gs_download *d = k->downloads; d; d = d->next) {
        if (d->rq != rq)
            continue;
        d->rq = NULL;
        gs_http_end(rq);
        if (!d->busy)
            download_free(d);
        return true;
    }
    return false;
}

static int run_piece(gs_db *db, gs_store_job *job) {
    gs_download *d = (gs_download *)job;
    (void)db;
    int fd = open(d->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return GS_ERR_NOT_FOUND;
    ssize_t n = gs_pread(fd, d->piece, sizeof(d->piece), d->at);
    close(fd);
    d->n = n > 0 ? (size_t)n : 0;
    return n < 0 ? GS_ERR_IO : 0;
}

static void next_piece(void *arg);

static void piece_done(gs_store_job *job) {
    gs_download *d = (gs_download *)job;
    gs_http_request *rq = d->rq;
    d->busy = false;
    if (!rq) {
        download_free(d);
        return;
    }
    if (job->rc == 0 && d->n > 0) {
        if (!d->begun)
            gs_http_begin(rq, 200, "application/octet-stream");
        d->begun = true;
        d->at += (int64_t)d->n;
        gs_http_write(rq, d->piece, d->n);
        gs_http_when_written(rq, next_piece, d);
        return;
    }
    d->rq = NULL;
    if (d->begun && job->rc == 0) {
        gs_http_end(rq);
    } else if (d->begun) {
        gs_http_abort(rq);
    } else if (job->rc == 0) {
        gs_http_reply(rq, 200, "application/octet-stream", "", 0);
    } else {
        gs_api_error e;
        gs_api_fail(&e, job->rc, "file_id", "The file's bytes can't be read: %s.", job->err);
        gs_api_reply_error(rq, &e);
    }
    download_free(d);
}

static void next_piece(void *arg) {
    gs_download *d = arg;
    d->job = (gs_store_job){.kind = GS_STORE_FILES, .run = run_piece, .done = piece_done};
    d->busy = true;
    int rc = gs_store_submit(d->k->store, &d->job);
    if (rc != 0) {
        d->job.rc = rc;
        piece_done(&d->job);
    }
}

/* The row says that the client may have it; from here on it is a download. */
static bool start_download(gs_call *c) {
    if (c->e.code != 0 || !c->rq)
        return false;
    gs_download *d = gs_calloc(1, sizeof(*d));
    if (!d) {
        gs_api_fail(&c->e, GS_ERR_NOMEM, NULL, "Out of memory.");
        return false;
    }
    d->k = c->k;
    d->rq = c->rq;
    snprintf(d->path, sizeof(d->path), "%s", gs_buf_cstr(&c->out));
    d->next = d->k->downloads;
    d->k->downloads = d;
    d->k->api->n_live++;
    c->rq = NULL;
    gs_call_answer(c);
    next_piece(d);
    return true;
}

static int run_content(gs_db *db, gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    sqlite3_stmt *s;
    char path[4200];
    int rc = find_file(c, db, &s);
    if (rc < 0)
        return rc;
    gs_db_reset(s);
    gs_kept_path(gs_db_folder(db), c->id, "", path, sizeof(path));
    gs_buf_clear(&c->out);
    gs_buf_str(&c->out, path);
    return gs_buf_cstr(&c->out) ? 0 : GS_ERR_NOMEM;
}

static void get_content(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_call *c = file_call(a, rq, content_path);
    if (!c)
        return;
    c->then = start_download;
    gs_call_submit(c, run_content);
}

/* ---- Tables -------------------------------------------------------------------------------- */

// clang-format off
static const gs_schema schemas[] = {
    {"File",
     "{'type':'object','required':['id','object','bytes','created_at','filename','purpose'],'properties':{"
     "'id':{'type':'string'},'object':{'const':'file'},'bytes':{'type':'integer','minimum':0},"
     "'created_at':{'type':'integer'},'expires_at':{'type':'integer'},'filename':{'type':'string'},"
     "'purpose':{'type':'string','enum':['batch','batch_output']},'status':{'type':'string'},"
     "'status_details':{'type':['string','null']}}}"},
    {"FileList",
     "{'type':'object','required':['object','data','has_more'],'properties':{'object':{'const':'list'},"
     "'data':{'type':'array','items':{'$ref':'#/components/schemas/File'}},"
     "'first_id':{'type':['string','null']},'last_id':{'type':['string','null']},'has_more':{'type':'boolean'}}}"},
    {"Deleted",
     "{'type':'object','required':['id','object','deleted'],'properties':{'id':{'type':'string'},"
     "'object':{'type':'string'},'deleted':{'type':'boolean'}}}"},
    {NULL, NULL},
};

static const gs_field list_query[] = {
    GS_ROW_JSON("purpose", 1, "{'type':'string'}", "Only files of this purpose."),
    GS_ROW_JSON("limit", 1, "{'type':'integer','minimum':1,'maximum':10000}", "At most so many."),
    GS_ROW_JSON("order", 1, "{'type':'string','enum':['asc','desc']}", "Oldest or newest (default) first."),
    GS_ROW_JSON("after", 1, "{'type':'string'}", "Go on behind this id."),
    GS_ROW_JSON("all", 1, "{'type':'boolean'}", "For admins: of all persons."),
    GS_ROWS_END,
};

static const gs_route routes[] = {
    {"POST", "/v1/files", 0, gs_upload_request, "Upload a file (multipart/form-data: purpose, file)", .answer = "File"},
    {"GET", "/v1/files", 0, list_files, "Your files", .query = list_query, .answer = "FileList"},
    {"GET", file_path, 0, get_file, "One file's description", .answer = "File"},
    {"DELETE", file_path, 0, delete_file, "Remove a file", .answer = "Deleted"},
    {"GET", content_path, 0, get_content, "One file's bytes", .answer = "application/octet-stream"},
    {.path = NULL},
};
// clang-format on

const gs_api_part gs_api_part_files = {"files", "Files that batches read and write.", routes,
                                       schemas};
