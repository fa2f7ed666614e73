/* /v1/batches: OpenAI's Batch API, and /v1/background: pause, and the schedule's state. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/kept.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/sys.h"

#define MAX_WINDOW_S (30 * 86400)

static const char batch_path[] = "/v1/batches/{batch_id}";
static const char cancel_path[] = "/v1/batches/{batch_id}/cancel";

/* ---- The object ---------------------------------------------------------------------------- */

#define COLUMNS                                                                                    \
    "id, endpoint, errors, input_file, completion_window, status, output_file, error_file, "       \
    "created_s, in_progress_s, expires_s, finalizing_s, completed_s, failed_s, expired_s, "        \
    "cancelling_s, cancelled_s, n_total, n_completed, n_failed, metadata, warning, owner"
enum { COLUMN_STATUS = 5, COLUMN_OWNER = 22 };

static void time_or_null(gs_jsonw *w, const char *name, int64_t s) {
    gs_jsonw_key(w, name);
    if (s > 0)
        gs_jsonw_int(w, s);
    else
        gs_jsonw_null(w);
}

static void text_or_null(gs_jsonw *w, const char *name, const char *text) {
    gs_jsonw_key(w, name);
    gs_jsonw_str(w, text[0] ? text : NULL);
}

static void write_errors(gs_jsonw *w, const char *errors) {
    gs_jsonw_key(w, "errors");
    if (!errors[0]) {
        gs_jsonw_null(w);
        return;
    }
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "object");
    gs_jsonw_str(w, "list");
    gs_jsonw_key(w, "data");
    gs_jsonw_arr(w);
    gs_jsonw_raw(w, errors, strlen(errors));
    gs_jsonw_end_arr(w);
    gs_jsonw_end_obj(w);
}

/* Beyond OpenAI's: why it does not go on now, and what was said of its deadline. */
static void write_own(gs_jsonw *w, const gs_call *c, sqlite3_stmt *s) {
    const char *status = gs_db_text(s, COLUMN_STATUS);
    bool open = strcmp(status, "in_progress") == 0 || strcmp(status, "validating") == 0 ||
                strcmp(status, "finalizing") == 0;
    gs_jsonw_key(w, "gamasot");
    gs_jsonw_obj(w);
    text_or_null(w, "paused", open && c->paused ? c->paused : "");
    text_or_null(w, "warning", gs_db_text(s, 21));
    gs_jsonw_end_obj(w);
}

static void write_batch(gs_jsonw *w, const gs_call *c, sqlite3_stmt *s) {
    static const char *const times[] = {"created_at",    "in_progress_at", "expires_at",
                                        "finalizing_at", "completed_at",   "failed_at",
                                        "expired_at",    "cancelling_at",  "cancelled_at"};
    const char *metadata = gs_db_text(s, 20);
    gs_jsonw_obj(w);
    text_or_null(w, "id", gs_db_text(s, 0));
    text_or_null(w, "object", "batch");
    text_or_null(w, "endpoint", gs_db_text(s, 1));
    write_errors(w, gs_db_text(s, 2));
    text_or_null(w, "input_file_id", gs_db_text(s, 3));
    text_or_null(w, "completion_window", gs_db_text(s, 4));
    text_or_null(w, "status", gs_db_text(s, COLUMN_STATUS));
    text_or_null(w, "output_file_id", gs_db_text(s, 6));
    text_or_null(w, "error_file_id", gs_db_text(s, 7));
    for (int i = 0; i < (int)(sizeof(times) / sizeof(times[0])); i++)
        time_or_null(w, times[i], sqlite3_column_int64(s, 8 + i));
    gs_jsonw_key(w, "request_counts");
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "total");
    gs_jsonw_int(w, sqlite3_column_int64(s, 17));
    gs_jsonw_key(w, "completed");
    gs_jsonw_int(w, sqlite3_column_int64(s, 18));
    gs_jsonw_key(w, "failed");
    gs_jsonw_int(w, sqlite3_column_int64(s, 19));
    gs_jsonw_end_obj(w);
    gs_jsonw_key(w, "metadata");
    if (metadata[0])
        gs_jsonw_raw(w, metadata, strlen(metadata));
    else
        gs_jsonw_null(w);
    write_own(w, c, s);
    gs_jsonw_end_obj(w);
}

/* ---- In /v1/live --------------------------------------------------------------------------- */

/* As the database has it. */
static const char *status_of(const gs_kept_batch *b) {
    switch (b->state) {
    case GS_BATCH_VALIDATING:
        return "validating";
    case GS_BATCH_CANCELLING:
        return "cancelling";
    default:
        return b->n_kept < b->n_total ? "in_progress" : "finalizing";
    }
}

/* "mina", "webui/mina", an address; "" for nobody in particular. */
static void person_of(const gs_owner *o, char *out, size_t n) {
    snprintf(out, n, "%s", o->key_name[0] ? o->name + strlen("key ") : o->name);
    char *below = strchr(out, '\n');
    if (below)
        *below = '/';
}

/* Lines a second, lately. */
static double pace_of(const gs_kept_batch *b) {
    const double s = (double)(gs_now_ns() - b->older.at_ns) / 1e9;
    return b->older.at_ns > 0 && s >= 1.0 ? (double)(b->n_kept - b->older.n) / s : 0.0;
}

static void write_job(gs_jsonw *w, const gs_api *a, const gs_kept_batch *b) {
    char person[sizeof(b->owner.name)];
    const double rate = pace_of(b);
    const char *paused = b->k->full ? "no space left on the disk" : gs_hours_why_not(a, &b->owner);
    person_of(&b->owner, person, sizeof(person));
    gs_jsonw_obj(w);
    text_or_null(w, "id", b->id);
    text_or_null(w, "name", b->title);
    gs_jsonw_key(w, "person");
    gs_jsonw_str(w, person);
    text_or_null(w, "status", status_of(b));
    gs_jsonw_key(w, "total");
    gs_jsonw_int(w, b->n_total);
    gs_jsonw_key(w, "done");
    gs_jsonw_int(w, b->n_kept - b->n_failed);
    gs_jsonw_key(w, "failed");
    gs_jsonw_int(w, b->n_failed);
    gs_jsonw_key(w, "rate");
    gs_jsonw_num(w, rate);
    gs_jsonw_key(w, "eta_s");
    if (rate > 0.0 && b->state == GS_BATCH_RUNNING)
        gs_jsonw_int(w, (int64_t)ceil((double)(b->n_total - b->n_kept) / rate));
    else
        gs_jsonw_null(w);
    text_or_null(w, "schedule", gs_hours_schedule(a, &b->owner));
    text_or_null(w, "paused", paused ? paused : "");
    gs_jsonw_end_obj(w);
}

void gs_batches_write(const gs_api *a, bool all, const gs_owner *own, gs_jsonw *w) {
    gs_jsonw_arr(w);
    for (const gs_kept_batch *b = a->kept ? a->kept->batches : NULL; b; b = b->next)
        if (b->state != GS_BATCH_OVER && (all || strcmp(b->owner.name, own->name) == 0))
            write_job(w, a, b);
    gs_jsonw_end_arr(w);
}

/* ---- One, all ------------------------------------------------------------------------------ */

static int find_batch(gs_call *c, gs_db *db, sqlite3_stmt **s) {
    int rc = gs_db_query(db, s, "SELECT " COLUMNS " FROM batches WHERE id = ?1", "t", c->id);
    if (rc == 0)
        rc = gs_db_step(db, *s);
    if (rc < 0)
        return gs_kept_fail(c, db, rc);
    if (rc == 1 && (c->admin || strcmp(gs_db_text(*s, COLUMN_OWNER), c->owner.name) == 0))
        return 1;
    gs_db_reset(*s);
    return gs_api_fail(&c->e, GS_ERR_NOT_FOUND, "batch_id", "There is no batch '%.47s' of yours.",
                       c->id);
}

int gs_batch_run_get(gs_db *db, gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    sqlite3_stmt *s;
    gs_jsonw w;
    int rc = find_batch(c, db, &s);
    if (rc < 0)
        return rc;
    gs_buf_clear(&c->out);
    gs_jsonw_init(&w, &c->out);
    write_batch(&w, c, s);
    gs_db_reset(s);
    return 0;
}

static int run_list(gs_db *db, gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    sqlite3_stmt *s;
    int64_t before = 0;
    int rc =
        gs_db_int(db, &before, INT64_MAX, "SELECT seq FROM batches WHERE id = ?1", "t", c->after);
    if (rc == 0)
        rc = gs_db_query(db, &s,
                         "SELECT " COLUMNS " FROM batches WHERE (owner = ?1 OR ?2) AND seq < ?3 "
                         "ORDER BY seq DESC LIMIT ?4",
                         "tiii", c->owner.name, (int64_t)c->all, before, (int64_t)c->limit + 1);
    return rc == 0 ? gs_call_list(c, db, s, 0, write_batch) : gs_kept_fail(c, db, rc);
}

static void get_batch(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_call *c = gs_call_new(a, rq);
    if (!c)
        return;
    gs_route_param(batch_path, gs_http_path(rq), c->id, sizeof(c->id));
    const gs_kept_batch *b = gs_batches_find(c->k, c->id);
    if (b && b->k->full)
        c->paused = "no space left on the disk";
    gs_call_submit(c, gs_batch_run_get);
}

static void list_batches(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_call *c = gs_call_new(a, rq);
    if (c && gs_call_list_params(c, 100, 20) == 0)
        gs_call_submit(c, run_list);
}

/* ---- Cancel -------------------------------------------------------------------------------- */

static int run_cancel(gs_db *db, gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    sqlite3_stmt *s;
    int rc = find_batch(c, db, &s);
    if (rc < 0)
        return rc;
    gs_db_reset(s);
    rc = gs_db_run(db,
                   "UPDATE batches SET status = 'cancelling', cancelling_s = ?2 WHERE id = ?1 AND "
                   "status IN ('validating', 'in_progress', 'finalizing')",
                   "ti", c->id, c->now_s);
    if (rc != 0)
        return gs_kept_fail(c, db, rc);
    if (gs_db_changes(db) == 0) {
        rc = find_batch(c, db, &s);
        bool already = rc == 1 && strcmp(gs_db_text(s, COLUMN_STATUS), "cancelling") == 0;
        if (rc == 1)
            gs_db_reset(s);
        if (!already)
            return gs_api_fail(&c->e, GS_ERR_EXISTS, "batch_id", "The batch is over already.");
    }
    return gs_batch_run_get(db, job);
}

static bool cancelled(gs_call *c) {
    gs_kept_batch *b = c->e.code == 0 ? gs_batches_find(c->k, c->id) : NULL;
    if (b && b->state != GS_BATCH_OVER)
        gs_batches_cancel(b);
    return false;
}

static void cancel_batch(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    gs_call *c = gs_call_new(a, rq);
    if (!c)
        return;
    gs_route_param(cancel_path, gs_http_path(rq), c->id, sizeof(c->id));
    c->then = cancelled;
    gs_call_submit(c, run_cancel);
}

/* ---- Create -------------------------------------------------------------------------------- */

static const char *const endpoints[] = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
                                        "/v1/responses"};

/* "24h", "30m", "2d" */
static int64_t window_s(const char *text) {
    char *end;
    long n = strtol(text, &end, 10);
    int64_t unit = *end == 'm' ? 60 : *end == 'h' ? 3600 : *end == 'd' ? 86400 : 0;
    if (end == text || n < 1 || n > 100000 || unit == 0 || end[1] || n * unit > MAX_WINDOW_S)
        return -1;
    return n * unit;
}

static int check_metadata(const json_t *v, gs_api_error *e) {
    const char *key;
    json_t *value;
    bool good = !v || json_is_null(v) || (json_is_object(v) && json_object_size(v) <= 16);
    json_object_foreach((json_t *)(uintptr_t)v, key, value) good =
        good && strlen(key) <= 64 && json_is_string(value) &&
        json_string_length(value) <= GS_MAX_METADATA_TEXT;
    return good ? 0
                : gs_api_fail(e, GS_ERR_INVALID, "metadata",
                              "'metadata' must be an object of at most 16 strings.");
}

static int check_create(gs_call *c, gs_kept_batch *b) {
    const char *file = json_string_value(json_object_get(c->body, "input_file_id"));
    const char *endpoint = json_string_value(json_object_get(c->body, "endpoint"));
    const char *window = json_string_value(json_object_get(c->body, "completion_window"));
    size_t i = 0, n = sizeof(endpoints) / sizeof(endpoints[0]);
    if (!file || !gs_kept_valid_id(file, "file-"))
        return gs_api_fail(&c->e, GS_ERR_INVALID, "input_file_id",
                           "'input_file_id' must be the id of a file that was uploaded.");
    while (endpoint && i < n && strcmp(endpoint, endpoints[i]) != 0)
        i++;
    if (!endpoint || i == n || !gs_api_find_route("POST", endpoint))
        return gs_api_fail(&c->e, GS_ERR_INVALID, "endpoint",
                           "'endpoint' must be /v1/chat/completions, /v1/completions, "
                           "/v1/embeddings or /v1/responses.");
    if (!window || window_s(window) < 0)
        return gs_api_fail(&c->e, GS_ERR_INVALID, "completion_window",
                           "'completion_window' must be such as '24h': minutes (m), hours (h) or "
                           "days (d), 30 days at most.");
    snprintf(b->input_file, sizeof(b->input_file), "%s", file);
    snprintf(b->endpoint, sizeof(b->endpoint), "%s", endpoint);
    b->deadline_service_s = c->service_s + window_s(window);
    return check_metadata(json_object_get(c->body, "metadata"), &c->e);
}

static int check_file(gs_call *c, gs_db *db, const char *id) {
    sqlite3_stmt *s;
    int rc = gs_db_query(db, &s, "SELECT " GS_FILE_COLUMNS " FROM files WHERE id = ?1", "t", id);
    if (rc == 0)
        rc = gs_db_step(db, s);
    if (rc < 0)
        return gs_kept_fail(c, db, rc);
    bool own = rc == 1 && (c->admin || strcmp(gs_db_text(s, 6), c->owner.name) == 0);
    bool right = own && strcmp(gs_db_text(s, 5), "batch") == 0;
    gs_db_reset(s);
    if (!own)
        return gs_api_fail(&c->e, GS_ERR_NOT_FOUND, "input_file_id",
                           "There is no file '%.47s' of yours.", id);
    return right ? 0
                 : gs_api_fail(&c->e, GS_ERR_INVALID, "input_file_id",
                               "The file's purpose must be 'batch'.");
}

static int insert_batch(gs_db *db, gs_call *c, gs_kept_batch *b) {
    const char *window = json_string_value(json_object_get(c->body, "completion_window"));
    const json_t *m = json_object_get(c->body, "metadata");
    char *metadata = json_is_object(m) ? json_dumps(m, JSON_COMPACT) : NULL;
    int rc = gs_db_run(db,
                       "INSERT INTO batches (id, owner, key_name, label, endpoint, input_file, "
                       "completion_window, metadata, status, deadline_service_s, created_s, "
                       "expires_s) VALUES (?1, ?2, ?3, '', ?4, ?5, ?6, ?7, 'validating', ?8, ?9, "
                       "?10)",
                       "tttttttiii", b->id, c->owner.name, c->owner.key_name, b->endpoint,
                       b->input_file, window, metadata ? metadata : "", b->deadline_service_s,
                       c->now_s, c->now_s + window_s(window));
    free(metadata); /* jansson's */
    if (rc == 0)
        rc = gs_db_int(db, &b->seq, 0, "SELECT seq FROM batches WHERE id = ?1", "t", b->id);
    return rc;
}

static int run_create(gs_db *db, gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    int64_t n_open = 0;
    int rc = gs_db_int(db, &n_open, 0,
                       "SELECT count(*) FROM batches WHERE owner = ?1 AND status IN "
                       "('validating', 'in_progress', 'finalizing', 'cancelling')",
                       "t", c->owner.name);
    if (rc == 0 && n_open >= c->limits.person_batches)
        return gs_api_fail(&c->e, GS_ERR_OVERLOADED, NULL,
                           "You have %lld batches that are not over; %lld are allowed "
                           "(store.person_batches).",
                           (long long)n_open, (long long)c->limits.person_batches);
    if (rc == 0)
        rc = check_file(c, db, c->batch->input_file);
    if (rc != 0)
        return c->e.code != 0 ? rc : gs_kept_fail(c, db, rc);
    rc = insert_batch(db, c, c->batch);
    return rc == 0 ? 0 : gs_kept_fail(c, db, rc);
}

/* The answer comes when its lines have been read: it says what is wrong with them, and whether it
 * can be done in time. */
static bool created(gs_call *c) {
    gs_kept_batch *b = c->batch;
    c->batch = NULL;
    if (c->e.code != 0 || c->k->stopping) {
        gs_batch_free(b);
        return false;
    }
    gs_batches_add(c->k, b);
    b->waiting = c;
    return true;
}

static void post_batch(gs_api *a, gs_http_request *rq, json_t *body) {
    gs_call *c = gs_call_new(a, rq);
    if (!c) {
        json_decref(body);
        return;
    }
    c->body = body;
    gs_kept_batch *b = gs_calloc(1, sizeof(*b));
    if (!b)
        gs_api_fail(&c->e, GS_ERR_NOMEM, NULL, "Out of memory.");
    if (!b || check_create(c, b) != 0) {
        gs_free(b);
        gs_call_answer(c);
        return;
    }
    gs_batch_set_title(b, json_object_get(body, "metadata"));
    gs_kept_id("batch_", b->id);
    memcpy(c->id, b->id, sizeof(c->id));
    b->owner = c->owner;
    c->batch = b;
    c->then = created;
    gs_call_submit(c, run_create);
}

/* ---- Background ---------------------------------------------------------------------------- */

static void reply_background(gs_api *a, gs_http_request *rq) {
    gs_buf out = {0};
    gs_api_error e;
    if (!a->hours) {
        gs_api_fail(&e, GS_ERR_NOT_FOUND, NULL, "This server has no schedule.");
        gs_api_reply_error(rq, &e);
        return;
    }
    gs_hours_write(a, &out);
    gs_api_reply_json(rq, 200, &out);
}

static void get_background(gs_api *a, gs_http_request *rq, json_t *body) {
    (void)body;
    reply_background(a, rq);
}

static int run_pause(gs_db *db, gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    int rc = gs_db_run(db,
                       "INSERT INTO meta VALUES ('paused', ?1) "
                       "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                       "i", (int64_t)(c->arg != NULL));
    return rc == 0 ? 0 : gs_kept_fail(c, db, rc);
}

/* A pause counts at once, also where it can't be kept for the next start. */
static bool paused(gs_call *c) {
    gs_http_request *rq = c->rq;
    c->rq = NULL;
    if (rq)
        reply_background(c->k->api, rq);
    gs_call_answer(c);
    return true;
}

static void set_paused(gs_api *a, gs_http_request *rq, bool pause) {
    gs_api_error e;
    gs_hours_set_paused(a, pause);
    if (!a->kept || !gs_api_store(a, &e)) {
        reply_background(a, rq);
        return;
    }
    gs_call *c = gs_call_new(a, rq);
    if (!c)
        return;
    c->arg = pause ? c : NULL;
    c->then = paused;
    gs_call_submit(c, run_pause);
}

static void post_pause(gs_api *a, gs_http_request *rq, json_t *body) {
    json_decref(body);
    set_paused(a, rq, true);
}

static void post_resume(gs_api *a, gs_http_request *rq, json_t *body) {
    json_decref(body);
    set_paused(a, rq, false);
}

/* ---- Tables -------------------------------------------------------------------------------- */

#define TEXT  "{'type':['string','null']}"
#define TIME  "{'type':['integer','null']}"
#define COUNT "{'type':'integer','minimum':0}"

// clang-format off
static const gs_schema schemas[] = {
    {"Batch",
     "{'type':'object','required':['id','object','endpoint','input_file_id','completion_window','status',"
     "'created_at','request_counts'],'properties':{"
     "'id':{'type':'string'},'object':{'const':'batch'},'endpoint':{'type':'string'},'errors':{'type':['object','null']},"
     "'input_file_id':{'type':'string'},'completion_window':{'type':'string'},"
     "'status':{'type':'string','enum':['validating','failed','in_progress','finalizing','completed','expired',"
     "'cancelling','cancelled']},'output_file_id':" TEXT ",'error_file_id':" TEXT ",'created_at':{'type':'integer'},"
     "'in_progress_at':" TIME ",'expires_at':" TIME ",'finalizing_at':" TIME ",'completed_at':" TIME ","
     "'failed_at':" TIME ",'expired_at':" TIME ",'cancelling_at':" TIME ",'cancelled_at':" TIME ","
     "'request_counts':{'type':'object','properties':{'total':" COUNT ",'completed':" COUNT ",'failed':" COUNT "}},"
     "'metadata':{'type':['object','null']},"
     "'gamasot':{'type':'object','properties':{'paused':" TEXT ",'warning':" TEXT "}}}}"},
    {"BatchList",
     "{'type':'object','required':['object','data','has_more'],'properties':{'object':{'const':'list'},"
     "'data':{'type':'array','items':{'$ref':'#/components/schemas/Batch'}},'first_id':" TEXT ",'last_id':" TEXT ","
     "'has_more':{'type':'boolean'}}}"},
    {NULL, NULL},
};

static const gs_schema background_schemas[] = {
    {"Background",
     "{'type':'object','required':['paused','open','share'],'properties':{'paused':{'type':'boolean'},"
     "'schedule':{'type':'string'},'time_zone':{'type':'string'},'open':{'type':'boolean'},"
     "'opens_at':" TIME ",'closes_at':" TIME ",'share':{'type':'number'}}}"},
    {NULL, NULL},
};

static const gs_field batch_fields[] = {
    GS_ROW_NEEDED("input_file_id", 1, "{'type':'string'}", "A file with one request a line."),
    GS_ROW_NEEDED("endpoint", 1, "{'type':'string','enum':['/v1/chat/completions','/v1/completions','/v1/embeddings','/v1/responses']}",
                  "What all lines ask."),
    GS_ROW_NEEDED("completion_window", 1, "{'type':'string','pattern':'^[0-9]+[mhd]$'}",
                  "Time that it may take while the server runs, such as 24h."),
    GS_ROW_JSON("metadata", 1, "{'type':['object','null']}", "Up to 16 strings of your own."),
    GS_ROWS_END,
};

static const gs_field list_query[] = {
    GS_ROW_JSON("limit", 1, "{'type':'integer','minimum':1,'maximum':100}", "At most so many."),
    GS_ROW_JSON("after", 1, "{'type':'string'}", "Go on behind this id."),
    GS_ROW_JSON("all", 1, "{'type':'boolean'}", "For admins: of all persons."),
    GS_ROWS_END,
};

static const gs_route routes[] = {
    {"POST", "/v1/batches", GS_ROUTE_BODY, post_batch, "Hand in a batch", .fields = batch_fields,
     .where = 1, .answer = "Batch"},
    {"GET", "/v1/batches", 0, list_batches, "Your batches, newest first", .query = list_query,
     .answer = "BatchList"},
    {"GET", batch_path, 0, get_batch, "How far a batch is", .answer = "Batch"},
    {"POST", cancel_path, 0, cancel_batch, "End a batch; what is done stays", .answer = "Batch"},
    {.path = NULL},
};

static const gs_route background_routes[] = {
    {"GET", "/v1/background", 0, get_background, "When background runs", .answer = "Background"},
    {"POST", "/v1/background/pause", GS_ROUTE_ADMIN, post_pause, "No background until resumed",
     .answer = "Background"},
    {"POST", "/v1/background/resume", GS_ROUTE_ADMIN, post_resume, "Background as scheduled",
     .answer = "Background"},
    {.path = NULL},
};
// clang-format on

const gs_api_part gs_api_part_batches = {"batches", "Many requests that can wait.", routes,
                                         schemas};
const gs_api_part gs_api_part_background = {"background", "When work that can wait runs.",
                                            background_routes, background_schemas};
