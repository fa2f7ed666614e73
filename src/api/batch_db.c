/*
 * What batches do in the database. All of it runs on the store thread, in order; a batch has one
 * piece of work there at a time, its lines' results come beside it.
 *
 * Exactly once: a line's result and the count of its batch change in one transaction, and only
 * while the line has none. The files are written from the results when all are there; they are the
 * batch's in the transaction that ends it. Killed at any moment, it goes on from what is there.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/kept.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"

#define CHECK_BYTES   (2 << 20) /* of the input, in one piece of validation */
#define FETCH_BYTES   (4 << 20)
#define WRITE_BYTES   (256 << 10)
#define MAX_ERRORS    100
#define MAX_CUSTOM_ID 512
/* Of answers without a bound, for the estimate. */
#define OUTPUT_GUESS 256

void gs_line_free(gs_line *l) {
    if (!l)
        return;
    gs_free(l->custom_id);
    gs_free(l->text);
    json_decref(l->body);
    gs_buf_deinit(&l->result);
    gs_free(l);
}

static void free_list(gs_line *l) {
    for (gs_line *next; l; l = next) {
        next = l->next;
        gs_line_free(l);
    }
}

void gs_batch_free(gs_kept_batch *b) {
    free_list(b->ready.first);
    free_list(b->running.first);
    free_list(b->unkept.first);
    free_list(b->fetched);
    gs_buf_deinit(&b->errors);
    gs_free(b);
}

void gs_batch_set_title(gs_kept_batch *b, const json_t *metadata) {
    const char *title = json_string_value(json_object_get(metadata, "name"));
    if (!title)
        title = json_string_value(json_object_get(metadata, "title"));
    snprintf(b->title, sizeof(b->title), "%s", title ? title : "");
}

/* ---- Validation ---------------------------------------------------------------------------- */

static void bad_line(gs_kept_batch *b, int64_t n, const char *code, const char *param,
                     const char *message) {
    gs_jsonw w;
    if (b->out.n_bad++ >= MAX_ERRORS)
        return;
    if (b->errors.len > 0)
        gs_buf_char(&b->errors, ',');
    gs_jsonw_init(&w, &b->errors);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "code");
    gs_jsonw_str(&w, code);
    gs_jsonw_key(&w, "line");
    if (n > 0)
        gs_jsonw_int(&w, n);
    else
        gs_jsonw_null(&w);
    gs_jsonw_key(&w, "message");
    gs_jsonw_str(&w, message);
    gs_jsonw_key(&w, "param");
    gs_jsonw_str(&w, param);
    gs_jsonw_end_obj(&w);
}

static const char *text_of(const json_t *v, const char *name) {
    return json_string_value(json_object_get(v, name));
}

const char *gs_batch_line_judge(const char *endpoint, const json_t *v, const char **param,
                                const char **message) {
    const char *custom_id = text_of(v, "custom_id"), *method = text_of(v, "method"),
               *url = text_of(v, "url");
    const json_t *body = json_object_get(v, "body");
    *param = "custom_id";
    *message = "'custom_id' must be a string of 1 to 512 bytes.";
    if (!custom_id || !custom_id[0] ||
        json_string_length(json_object_get(v, "custom_id")) > MAX_CUSTOM_ID)
        return "missing_required_parameter";
    *param = "method";
    *message = "'method' must be 'POST'.";
    if (!method || strcmp(method, "POST") != 0)
        return "invalid_method";
    *param = "url";
    *message = "'url' must be the batch's endpoint.";
    if (!url || strcmp(url, endpoint) != 0)
        return "mismatched_url";
    *param = "body";
    *message = "'body' must be an object.";
    if (!json_is_object(body))
        return "missing_required_parameter";
    *param = "stream";
    *message = "A batch's line can't be streamed.";
    return json_is_true(json_object_get(body, "stream")) ? "invalid_request" : NULL;
}

static void add_up(gs_kept_batch *b, const json_t *body, size_t n_bytes) {
    static const char *const names[] = {"max_completion_tokens", "max_tokens", "max_output_tokens"};
    int64_t most = OUTPUT_GUESS;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const json_t *v = json_object_get(body, names[i]);
        if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < INT32_MAX)
            most = json_integer_value(v);
    }
    b->out.prompt_bytes += (int64_t)n_bytes;
    if (strcmp(b->endpoint, "/v1/embeddings") != 0)
        b->out.output_tokens += most;
}

static int check_line(gs_db *db, gs_kept_batch *b, const char *line, size_t n) {
    const char *param = NULL, *message = "";
    gs_api_error e;
    if ((int64_t)n > b->limits.max_line_bytes) {
        bad_line(b, b->out.n, "line_too_long", NULL, "The line is longer than a request may be.");
        return 0;
    }
    json_t *v = gs_api_parse_json(line, n, &e);
    if (!v) {
        bad_line(b, b->out.n, "invalid_json_line", NULL, e.message);
        return e.code == GS_ERR_NOMEM ? GS_ERR_NOMEM : 0;
    }
    const char *code = gs_batch_line_judge(b->endpoint, v, &param, &message);
    if (code) {
        bad_line(b, b->out.n, code, param, message);
        json_decref(v);
        return 0;
    }
    int rc = gs_db_run(db,
                       "INSERT INTO lines (batch, n, at, bytes, custom_id) "
                       "VALUES (?1, ?2, ?3, ?4, ?5)",
                       "iiiit", b->seq, b->out.n, b->out.at, (int64_t)n, text_of(v, "custom_id"));
    if (rc == 0) {
        b->out.n_good++;
        add_up(b, json_object_get(v, "body"), n);
    } else if (rc == GS_ERR_EXISTS) {
        bad_line(b, b->out.n, "duplicate_custom_id", "custom_id",
                 "Another line has this 'custom_id'.");
        rc = 0;
    }
    json_decref(v);
    return rc;
}

static bool is_blank(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r", s[i]) || !s[i])
            return false;
    return true;
}

static int check_piece(gs_db *db, gs_kept_batch *b, const char *data, size_t size) {
    int rc = 0;
    const size_t from = (size_t)b->out.at;
    while (rc == 0 && (size_t)b->out.at < size && (size_t)b->out.at - from < CHECK_BYTES) {
        const char *line = data + b->out.at;
        const size_t left = size - (size_t)b->out.at;
        const char *end = memchr(line, '\n', left);
        const size_t n = end ? (size_t)(end - line) : left;
        b->out.n++;
        if (!is_blank(line, n))
            rc = check_line(db, b, line, n);
        b->out.at += (int64_t)n + (end != NULL);
    }
    if (rc == 0 && b->out.n_good + b->out.n_bad > b->limits.max_lines) {
        bad_line(b, 0, "too_many_lines", "input_file_id",
                 "The file has more lines than a batch may have (store.max_lines).");
        b->out.at = (int64_t)size;
    }
    b->out.whole = (size_t)b->out.at >= size;
    if (b->out.whole && b->out.n_good + b->out.n_bad == 0)
        bad_line(b, 0, "empty_file", "input_file_id", "The file has no lines.");
    return rc;
}

/* What its lines will take, all told, at the pace of many at a time. */
static double estimate_s(const gs_kept_batch *b) {
    const double n = (double)b->out.n_good;
    const int32_t prompt = (int32_t)((double)b->out.prompt_bytes / 4.0 / n);
    const double output = (double)b->out.output_tokens;
    const int32_t rows = b->n_parallel < n ? b->n_parallel : (int32_t)n;
    gs_cost_step x = {0};
    for (int32_t i = 0; i < rows; i++)
        gs_cost_step_add(&x, 1, prompt + (int32_t)(output / n / 2.0), true, true);
    double ns = n * gs_cost_prefill(&b->cost, 0, prompt > 0 ? prompt : 1, 128);
    ns += output * gs_cost_predict(&b->cost, &x) / rows;
    return ns / 1e9;
}

static void warn_of_time(gs_kept_batch *b) {
    b->warning[0] = '\0';
    if (b->out.n_good == 0)
        return;
    const double s = b->has_cost ? estimate_s(b) : 1.0; /* without a model: at least some */
    if (s > b->available_s)
        snprintf(b->warning, sizeof(b->warning),
                 "It will probably not be done in time: it takes about %.0f s of device time, and "
                 "until its deadline background may have %.0f s (schedule, shares).",
                 s, b->available_s);
}

static int run_validate(gs_db *db, gs_kept_batch *b) {
    char path[4200];
    const void *data = NULL;
    size_t size = 0;
    b->out = b->in;
    b->errors.len = b->in.n_errors;
    gs_kept_path(gs_db_folder(db), b->input_file, "", path, sizeof(path));
    int rc = 0;
    if (b->in.at == 0) /* of a validation that was cut */
        rc = gs_db_run(db, "DELETE FROM lines WHERE batch = ?1", "i", b->seq);
    if (rc != 0)
        return rc;
    if (gs_map_file(path, &data, &size, NULL, 0) == 0) {
        rc = check_piece(db, b, data, size);
        gs_unmap(data, size);
    } else {
        bad_line(b, 0, "file_not_found", "input_file_id", "The file's bytes can't be read.");
        b->out.whole = true;
    }
    b->out.n_errors = b->errors.len;
    if (rc != 0 || !b->out.whole)
        return rc;
    if (b->out.n_bad == 0) {
        warn_of_time(b);
        return gs_db_run(db,
                         "UPDATE batches SET status = 'in_progress', in_progress_s = ?2, "
                         "n_total = ?3, warning = ?4 WHERE seq = ?1 AND status = 'validating'",
                         "iiit", b->seq, b->now_s, b->out.n_good, b->warning);
    }
    const char *errors = gs_buf_cstr(&b->errors);
    if (!errors)
        return GS_ERR_NOMEM;
    rc = gs_db_run(db,
                   "UPDATE batches SET status = 'failed', failed_s = ?2, errors = ?3 "
                   "WHERE seq = ?1 AND status = 'validating'",
                   "iit", b->seq, b->now_s, errors);
    return rc == 0 ? gs_db_run(db, "DELETE FROM lines WHERE batch = ?1", "i", b->seq) : rc;
}

/* ---- Lines to run -------------------------------------------------------------------------- */

json_t *gs_line_read_body(const gs_line *l) {
    gs_api_error e;
    json_t *v = gs_api_parse_json(l->text, l->n_text, &e);
    json_t *body = json_incref(json_object_get(v, "body"));
    json_decref(v);
    return body;
}

static gs_line *make_line(gs_kept_batch *b, sqlite3_stmt *s, const char *text, size_t n) {
    gs_line *l = gs_calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    l->b = b;
    l->n = sqlite3_column_int64(s, 0);
    l->custom_id = gs_strdup(gs_db_text(s, 3));
    l->text = gs_strndup(text, n);
    l->n_text = n;
    l->body = l->text ? gs_line_read_body(l) : NULL;
    if (l->custom_id && l->body)
        return l;
    gs_line_free(l);
    return NULL;
}

static int run_fetch(gs_db *db, gs_kept_batch *b) {
    char path[4200];
    const void *data;
    size_t size, sum = 0;
    sqlite3_stmt *s;
    gs_line **end = &b->fetched;
    free_list(b->fetched);
    b->fetched = NULL;
    int rc = gs_kept_check_room(db, &b->limits, 0, b->job.err, sizeof(b->job.err));
    if (rc != 0)
        return rc;
    gs_kept_path(gs_db_folder(db), b->input_file, "", path, sizeof(path));
    rc = gs_map_file(path, &data, &size, b->job.err, sizeof(b->job.err));
    if (rc != 0)
        return rc;
    rc = gs_db_query(db, &s,
                     "SELECT n, at, bytes, custom_id FROM lines WHERE batch = ?1 AND n >= ?2 AND "
                     "state = 0 ORDER BY n LIMIT ?3",
                     "iii", b->seq, b->next_n, (int64_t)GS_BATCH_FETCH);
    while (rc == 0 && sum < FETCH_BYTES && (rc = gs_db_step(db, s)) == 1) {
        const int64_t at = sqlite3_column_int64(s, 1), n = sqlite3_column_int64(s, 2);
        rc = at >= 0 && n >= 0 && (uint64_t)at + (uint64_t)n <= size ? 0 : GS_ERR_FORMAT;
        gs_line *l = rc == 0 ? make_line(b, s, (const char *)data + at, (size_t)n) : NULL;
        if (rc == 0 && !l)
            rc = GS_ERR_NOMEM;
        if (l) {
            *end = l;
            end = &l->next;
            sum += l->n_text;
        }
    }
    gs_db_reset(s);
    gs_unmap(data, size);
    return rc;
}

/* ---- Results ------------------------------------------------------------------------------- */

void gs_line_write(gs_line *l, int status, const char *body, size_t n) {
    gs_jsonw w;
    gs_buf *out = &l->result;
    char id[96];
    snprintf(id, sizeof(id), "batch_req_%s_%lld", l->b->id + 6, (long long)l->n);
    gs_buf_clear(out);
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "id");
    gs_jsonw_str(&w, id);
    gs_jsonw_key(&w, "custom_id");
    gs_jsonw_str(&w, l->custom_id);
    gs_jsonw_key(&w, "response");
    if (status == 0) {
        gs_jsonw_null(&w);
        gs_jsonw_key(&w, "error");
        gs_jsonw_raw(&w, body, n);
    } else {
        gs_jsonw_obj(&w);
        gs_jsonw_key(&w, "status_code");
        gs_jsonw_int(&w, status);
        gs_jsonw_key(&w, "request_id");
        gs_jsonw_str(&w, id);
        gs_jsonw_key(&w, "body");
        gs_jsonw_raw(&w, body, n);
        gs_jsonw_end_obj(&w);
        gs_jsonw_key(&w, "error");
        gs_jsonw_null(&w);
    }
    gs_jsonw_end_obj(&w);
    for (size_t i = 0; i < out->len; i++) /* between values; inside strings they are escaped */
        if (out->data[i] == '\n' || out->data[i] == '\r')
            out->data[i] = ' ';
    gs_buf_char(out, '\n');
}

int gs_line_run_keep(gs_db *db, gs_store_job *job) {
    gs_line *l = (gs_line *)job;
    const char *result = gs_buf_cstr(&l->result);
    if (!result)
        return GS_ERR_NOMEM;
    int rc = gs_db_run(db,
                       "UPDATE lines SET state = ?3, result = ?4 "
                       "WHERE batch = ?1 AND n = ?2 AND state = 0",
                       "iiit", l->b->seq, l->n, (int64_t)l->state, result);
    if (rc != 0 || gs_db_changes(db) != 1)
        return rc;
    return gs_db_run(db,
                     "UPDATE batches SET n_completed = n_completed + ?2, n_failed = n_failed + ?3, "
                     "status = CASE WHEN status = 'in_progress' AND n_completed + n_failed + 1 = "
                     "n_total THEN 'finalizing' ELSE status END, "
                     "finalizing_s = CASE WHEN n_completed + n_failed + 1 = n_total THEN ?4 ELSE "
                     "finalizing_s END WHERE seq = ?1",
                     "iiii", l->b->seq, (int64_t)(l->state == GS_LINE_DONE),
                     (int64_t)(l->state == GS_LINE_FAILED), gs_wall_s());
}

/* ---- The files ----------------------------------------------------------------------------- */

typedef struct writer {
    const char *folder, *id;
    int fd; /* -1: nothing written yet */
    gs_buf buf;
    int64_t bytes;
} writer;

static int flush(writer *o) {
    char path[4200];
    if (o->fd < 0) {
        gs_kept_path(o->folder, o->id, ".tmp", path, sizeof(path));
        o->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (o->fd < 0)
            return GS_ERR_NO_SPACE;
    }
    int rc = gs_store_write(o->fd, o->buf.data, o->buf.len);
    o->bytes += (int64_t)o->buf.len;
    gs_buf_clear(&o->buf);
    return rc;
}

static int add(writer *o, const char *line, size_t n) {
    int rc = gs_buf_add(&o->buf, line, n);
    return rc == 0 && o->buf.len >= WRITE_BYTES ? flush(o) : rc;
}

static int finish(writer *o, int rc) {
    char tmp[4200], path[4200];
    if (rc == 0 && o->buf.len > 0)
        rc = flush(o);
    gs_buf_deinit(&o->buf);
    if (o->fd < 0)
        return rc;
    gs_kept_path(o->folder, o->id, ".tmp", tmp, sizeof(tmp));
    gs_kept_path(o->folder, o->id, "", path, sizeof(path));
    if (rc == 0)
        return gs_store_publish(o->fd, tmp, path);
    close(o->fd);
    unlink(tmp);
    return rc;
}

static int write_expired(gs_kept_batch *b, writer *errors, sqlite3_stmt *s) {
    static const char why[] = "{\"code\":\"batch_expired\",\"message\":\"This request could not be "
                              "executed before the completion window expired.\"}";
    gs_line l = {.b = b, .n = sqlite3_column_int64(s, 0), .custom_id = gs_strdup(gs_db_text(s, 2))};
    int rc = l.custom_id ? 0 : GS_ERR_NOMEM;
    if (rc == 0) {
        gs_line_write(&l, 0, why, sizeof(why) - 1);
        rc = l.result.failed ? GS_ERR_NOMEM : add(errors, l.result.data, l.result.len);
    }
    gs_free(l.custom_id);
    gs_buf_deinit(&l.result);
    return rc;
}

static int write_all(gs_db *db, gs_kept_batch *b, writer *out, writer *errors) {
    sqlite3_stmt *s;
    int rc = gs_db_query(db, &s,
                         "SELECT n, state, custom_id, result FROM lines WHERE batch = ?1 "
                         "ORDER BY n",
                         "i", b->seq);
    while (rc == 0 && (rc = gs_db_step(db, s)) == 1) {
        const int64_t state = sqlite3_column_int64(s, 1);
        const char *result = gs_db_text(s, 3);
        rc = 0;
        if (state == GS_LINE_DONE)
            rc = add(out, result, strlen(result));
        else if (state == GS_LINE_FAILED)
            rc = add(errors, result, strlen(result));
        else if (b->state == GS_BATCH_EXPIRING)
            rc = write_expired(b, errors, s);
    }
    gs_db_reset(s);
    return rc;
}

static int run_write(gs_db *db, gs_kept_batch *b) {
    writer out = {.folder = gs_db_folder(db), .id = b->output_file, .fd = -1};
    writer errors = {.folder = gs_db_folder(db), .id = b->error_file, .fd = -1};
    int64_t bytes = 0;
    int rc = gs_db_int(db, &bytes, 0, "SELECT sum(length(result)) FROM lines WHERE batch = ?1", "i",
                       b->seq);
    /* The results move from the database into the files: only for a moment they are twice there. */
    if (rc == 0)
        rc = gs_kept_check_room(db, &b->limits, 0, b->job.err, sizeof(b->job.err));
    if (rc == 0)
        rc = write_all(db, b, &out, &errors);
    rc = finish(&out, rc);
    rc = finish(&errors, rc);
    b->output_bytes = out.bytes;
    b->error_bytes = errors.bytes;
    return rc;
}

static int insert_file(gs_db *db, const gs_kept_batch *b, const char *id, const char *what,
                       int64_t bytes) {
    char name[96];
    if (bytes == 0)
        return 0;
    snprintf(name, sizeof(name), "%s_%s.jsonl", b->id, what);
    return gs_db_run(db,
                     "INSERT INTO files (id, owner, purpose, filename, bytes, created_s, "
                     "expires_s, expires_service_s) VALUES (?1, ?2, 'batch_output', ?3, ?4, ?5, "
                     "?6, ?7)",
                     "tttiiii", id, b->owner.name, name, bytes, b->now_s,
                     b->now_s + b->limits.keep_s, b->service_s + b->limits.keep_s);
}

static int run_finish(gs_db *db, gs_kept_batch *b) {
    int rc = insert_file(db, b, b->output_file, "output", b->output_bytes);
    if (rc == 0)
        rc = insert_file(db, b, b->error_file, "error", b->error_bytes);
    if (rc == 0 && b->state == GS_BATCH_EXPIRING)
        rc = gs_db_run(db,
                       "UPDATE batches SET status = 'expired', expired_s = ?2, n_failed = n_total "
                       "- n_completed WHERE seq = ?1",
                       "ii", b->seq, b->now_s);
    else if (rc == 0 && b->state == GS_BATCH_CANCELLING)
        rc = gs_db_run(db,
                       "UPDATE batches SET status = 'cancelled', cancelled_s = ?2 WHERE seq = ?1",
                       "ii", b->seq, b->now_s);
    else if (rc == 0)
        rc = gs_db_run(db,
                       "UPDATE batches SET status = 'completed', completed_s = ?2 WHERE seq = ?1",
                       "ii", b->seq, b->now_s);
    if (rc == 0)
        rc = gs_db_run(db, "UPDATE batches SET output_file = ?2, error_file = ?3 WHERE seq = ?1",
                       "itt", b->seq, b->output_bytes ? b->output_file : "",
                       b->error_bytes ? b->error_file : "");
    return rc == 0 ? gs_db_run(db, "DELETE FROM lines WHERE batch = ?1", "i", b->seq) : rc;
}

int gs_batch_run_work(gs_db *db, gs_store_job *job) {
    static int (*const works[])(gs_db *, gs_kept_batch *) = {[GS_WORK_VALIDATE] = run_validate,
                                                             [GS_WORK_FETCH] = run_fetch,
                                                             [GS_WORK_WRITE] = run_write,
                                                             [GS_WORK_FINISH] = run_finish};
    gs_kept_batch *b = (gs_kept_batch *)job;
    return works[b->work](db, b);
}

/* ---- After a restart ----------------------------------------------------------------------- */

static void read_row(gs_kept_batch *b, sqlite3_stmt *s) {
    const char *status = gs_db_text(s, 6);
    b->seq = sqlite3_column_int64(s, 0);
    snprintf(b->id, sizeof(b->id), "%s", gs_db_text(s, 1));
    snprintf(b->owner.name, sizeof(b->owner.name), "%s", gs_db_text(s, 2));
    snprintf(b->owner.key_name, sizeof(b->owner.key_name), "%s", gs_db_text(s, 3));
    snprintf(b->endpoint, sizeof(b->endpoint), "%s", gs_db_text(s, 4));
    snprintf(b->input_file, sizeof(b->input_file), "%s", gs_db_text(s, 5));
    b->state = strcmp(status, "validating") == 0   ? GS_BATCH_VALIDATING
               : strcmp(status, "cancelling") == 0 ? GS_BATCH_CANCELLING
                                                   : GS_BATCH_RUNNING;
    b->deadline_service_s = sqlite3_column_int64(s, 7);
    b->n_total = sqlite3_column_int64(s, 8);
    b->n_kept = sqlite3_column_int64(s, 9);
    b->n_failed = sqlite3_column_int64(s, 10);
    json_t *metadata = json_loads(gs_db_text(s, 11), 0, NULL);
    gs_batch_set_title(b, metadata);
    json_decref(metadata);
}

int gs_batch_load(gs_db *db, gs_kept *k, gs_kept_batch **out) {
    sqlite3_stmt *s;
    gs_kept_batch **end = out;
    int rc = gs_db_query(
        db, &s,
        "SELECT seq, id, owner, key_name, endpoint, input_file, status, "
        "deadline_service_s, n_total, n_completed + n_failed, n_failed, metadata FROM batches "
        "WHERE status IN ('validating', 'in_progress', 'finalizing', "
        "'cancelling') ORDER BY seq",
        "");
    while (rc == 0 && (rc = gs_db_step(db, s)) == 1) {
        gs_kept_batch *b = gs_calloc(1, sizeof(*b));
        rc = b ? 0 : GS_ERR_NOMEM;
        if (!b)
            break;
        b->k = k;
        read_row(b, s);
        *end = b;
        end = &b->next;
    }
    gs_db_reset(s);
    return rc;
}
