/*
 * What the server keeps for its users: files, and batches made of their lines. Private to api/.
 *
 *     kept.c        opening, the clock of service, calls: requests that wait for the store
 *     files.c       /v1/files but the upload
 *     upload.c      a form's file, from the socket to the disk
 *     batches.c     /v1/batches
 *     batch_db.c    what batches do in the database
 *     batch_run.c   which line runs when; results are kept
 *
 * Owner: the event-loop thread. Functions named run_* run on the store thread and touch nothing
 * but their job.
 */
#ifndef GS_API_KEPT_H
#define GS_API_KEPT_H

#include <sqlite3.h>

#include "api/api_impl.h"
#include "api/route.h"
#include "store/store.h"

#define GS_ID_BYTES 48 /* "file-" or "batch_" and 24 hex digits, terminated */

typedef struct gs_upload gs_upload;
typedef struct gs_download gs_download;
typedef struct gs_kept_batch gs_kept_batch; /* gs_batch is a step of the engine */
typedef struct gs_line gs_line;

/* Bounds as the options say when a job begins. Bytes. */
typedef struct gs_kept_limits {
    int64_t max_disk, min_free, max_file, person;
    int64_t person_batches, max_lines, keep_s, max_line_bytes;
} gs_kept_limits;

/* A request that waits for the store. */
typedef struct gs_call {
    gs_store_job job; /* first */
    gs_kept *k;
    struct gs_call *next;
    gs_http_request *rq; /* NULL: the client is gone */
    gs_owner owner;
    bool admin; /* may see what is others' */
    bool all;   /* an admin who wants others' in a list, too */
    bool ascending;
    int limit;
    char id[GS_ID_BYTES], after[GS_ID_BYTES], purpose[32];
    int64_t from_s, to_s, step_s; /* of history */
    int64_t now_s, service_s;     /* when it began */
    gs_kept_limits limits;
    const char *paused; /* why the owner's batches don't run now, or NULL; static */
    gs_buf out;         /* answer: JSON */
    gs_api_error e;     /* answer, with a code: it failed */
    /* After run, on the event loop; true: the answer is its own affair. NULL: out is the answer. */
    bool (*then)(struct gs_call *c);
    gs_kept_batch *batch; /* of POST /v1/batches: the new one */
    json_t *body;         /* of the same: the request */
    void *arg;            /* for run and then */
} gs_call;

struct gs_kept {
    gs_api *api;
    gs_store *store;
    gs_call *calls;
    gs_upload *uploads;
    gs_download *downloads;
    gs_store_job clock_job;
    bool clock_busy, opened;
    int64_t saved_service_s;          /* on disk */
    int64_t service_base_s, began_ns; /* the clock of service: base + time since began */
    gs_store_job sweep_job;
    gs_kept_limits sweep_limits;
    bool sweep_busy;
    int64_t swept_ns;
    /* batch_run.c */
    gs_kept_batch *batches; /* that are not over, oldest first */
    gs_kept_batch *turn;    /* whose line is started next */
    int32_t n_running;      /* lines */
    bool stopping, pumping;
    int64_t retry_ns; /* after a full disk: not before */
    bool full;
    char last_error[GS_STORE_ERR_TEXT];
};

/* ---- kept.c ---- */
int gs_kept_create(gs_api *a);
void gs_kept_tick(gs_api *a);
/* No more lines; those under way are taken back, which their batches do again. */
void gs_kept_stop(gs_api *a);
void gs_kept_free(gs_api *a);
bool gs_kept_gone(gs_api *a, gs_http_request *rq); /* false: not waiting here */
/* Seconds that the server has run since there is a database: no clock that is set moves it. */
int64_t gs_kept_service_s(const gs_kept *k);
void gs_kept_limits_now(const gs_kept *k, gs_kept_limits *out);
/* NULL: rq is answered (503, out of memory). */
gs_call *gs_call_new(gs_api *a, gs_http_request *rq);
void gs_call_submit(gs_call *c, int (*run)(gs_db *db, gs_store_job *job));
void gs_call_answer(gs_call *c); /* with out or e; frees it */
/* On failure of run: *e from the store's code. */
int gs_kept_fail(gs_call *c, gs_db *db, int rc);
void gs_kept_id(const char *prefix, char out[GS_ID_BYTES]);
/* limit, order, after of a list. 0, or the call is answered. */
int gs_call_list_params(gs_call *c, int max_limit, int default_limit);
/* {"object": "list", ...} around what write makes of each row. */
int gs_call_list(gs_call *c, gs_db *db, sqlite3_stmt *s, int id_column,
                 void (*write)(gs_jsonw *w, const gs_call *c, sqlite3_stmt *s));

/* One line of a batch's file. NULL: it is good; else its code, and *param and *message, static. */
const char *gs_batch_line_judge(const char *endpoint, const json_t *v, const char **param,
                                const char **message);

/* Store thread: GS_ERR_NO_SPACE when extra more bytes would not fit the bounds. */
int gs_kept_check_room(gs_db *db, const gs_kept_limits *l, int64_t extra, char *err, size_t n);
/* folder/files/ID */
void gs_kept_path(const char *folder, const char *id, const char *suffix, char *out, size_t n);
bool gs_kept_valid_id(const char *id, const char *prefix);

/* ---- files.c ---- */
extern const gs_api_part gs_api_part_files;
void gs_file_write(gs_jsonw *w, const gs_call *c, sqlite3_stmt *s); /* of GS_FILE_COLUMNS */
#define GS_FILE_COLUMNS "id, bytes, created_s, expires_s, filename, purpose, owner, seq"
bool gs_download_gone(gs_kept *k, gs_http_request *rq);

/* ---- upload.c ---- */
/* From the HTTP server's on_head: takes the body of POST /v1/files. As gs_http_config.on_head. */
int gs_upload_head(gs_api *a, gs_http_request *rq, const char **message);
void gs_upload_request(gs_api *a, gs_http_request *rq, json_t *body); /* the body is there */
bool gs_upload_gone(gs_kept *k, gs_http_request *rq);
/* As gs_http_config.body_limit. */
size_t gs_upload_limit(const gs_api *a, const char *method, const char *path);

/* ---- batches.c ---- */
extern const gs_api_part gs_api_part_batches;
extern const gs_api_part gs_api_part_background;
int gs_batch_run_get(gs_db *db, gs_store_job *job); /* the object, as a gs_call's answer */
/* Those that are not over, an array for /v1/live: the owner's own, or all. From memory alone. */
void gs_batches_write(const gs_api *a, bool all, const gs_owner *own, gs_jsonw *w);

/* ---- batch_db.c: a batch's dealings with the database, one at a time ---- */
typedef enum gs_batch_state {
    GS_BATCH_VALIDATING,
    GS_BATCH_RUNNING,
    GS_BATCH_CANCELLING, /* its lines are taken back, what is there is finalized */
    GS_BATCH_EXPIRING,
    GS_BATCH_OVER
} gs_batch_state;

typedef enum gs_line_state { GS_LINE_TO_DO, GS_LINE_DONE, GS_LINE_FAILED } gs_line_state;

struct gs_line {
    gs_store_job job; /* first: keeps the result */
    gs_kept_batch *b;
    gs_line *next;
    int64_t n;
    char *custom_id;
    json_t *body; /* of its request; NULL once it is running, made anew from text for another try */
    char *text;   /* of the whole line */
    size_t n_text;
    gs_http_request *rq; /* while it runs */
    gs_line_state state;
    gs_buf result; /* its line of the output or error file */
    bool keeping;  /* its result is the store's to keep */
    int tries, n_failures;
    int64_t not_before_ns;
};

typedef struct gs_line_list {
    gs_line *first;
    int32_t n;
} gs_line_list;

#define GS_BATCH_FETCH 64 /* lines read at a time */

typedef enum gs_batch_work {
    GS_WORK_VALIDATE,
    GS_WORK_FETCH,
    GS_WORK_WRITE,  /* output and error file */
    GS_WORK_FINISH, /* they are its files now; the lines go */
} gs_batch_work;

/* Lines done at two moments, for a batch's pace: the older one is some time and some lines ago. */
typedef struct gs_batch_mark {
    int64_t at_ns, n; /* at_ns 0: it has not been going on */
} gs_batch_mark;

#define GS_MAX_METADATA_TEXT 512 /* bytes of one of its strings */

struct gs_kept_batch {
    gs_store_job job; /* first: of work, while busy */
    gs_kept *k;
    gs_kept_batch *next;
    int64_t seq;
    char id[GS_ID_BYTES], input_file[GS_ID_BYTES], endpoint[64];
    gs_owner owner;
    int64_t deadline_service_s;
    gs_batch_state state;
    int64_t n_total, n_kept, n_failed;    /* n_kept: with a result, failed or not */
    char title[GS_MAX_METADATA_TEXT + 1]; /* as its owner calls it; "": no name */
    gs_batch_mark older, newer;
    bool held; /* by its hours, when last looked at */
    bool busy;
    gs_batch_work work;
    const gs_route *route;
    gs_line_list ready, running, unkept;
    bool fetched_all;
    int64_t next_n;
    gs_call *waiting; /* the request that made it, until it is validated */
    /* in and out of work */
    gs_kept_limits limits;
    int64_t now_s, service_s;
    /* VALIDATE goes piece by piece: from in to out, which becomes the next one's in. */
    struct gs_batch_checked {
        int64_t at, n; /* offset and number of lines so far */
        int64_t n_good, n_bad;
        int64_t prompt_bytes, output_tokens;
        size_t n_errors; /* bytes of errors */
        bool whole;
    } in, out;
    gs_buf errors; /* JSON objects with commas */
    gs_cost cost;  /* with has_cost: what the estimate of its time is made from */
    bool has_cost;
    double available_s; /* device time it may have until its deadline */
    int32_t n_parallel;
    gs_line *fetched;
    char output_file[GS_ID_BYTES], error_file[GS_ID_BYTES];
    int64_t output_bytes, error_bytes; /* 0: no such file */
    char warning[256];
};

int gs_batch_run_work(gs_db *db, gs_store_job *job); /* of b->work */
int gs_line_run_keep(gs_db *db, gs_store_job *job);
void gs_line_free(gs_line *l);
json_t *gs_line_read_body(const gs_line *l); /* NULL: out of memory */
/* {"id": ..., "custom_id": ..., "response": ..., "error": ...} of a line, as l->result. status 0:
 * body is an error's code and message, and there is no response. */
void gs_line_write(gs_line *l, int status, const char *body, size_t n);
int gs_batch_load(gs_db *db, gs_kept *k, gs_kept_batch **out); /* all that are not over */
void gs_batch_free(gs_kept_batch *b);
void gs_batch_set_title(gs_kept_batch *b, const json_t *metadata); /* NULL: none */

/* ---- batch_run.c ---- */
void gs_batches_add(gs_kept *k, gs_kept_batch *b);
void gs_batches_pump(gs_kept *k);
void gs_batches_stop(gs_kept *k);
gs_kept_batch *gs_batches_find(const gs_kept *k, const char *id);
void gs_batches_cancel(gs_kept_batch *b);

#endif
