#include "api/kept.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/sys.h"

#define CLOCK_EVERY_S  60
#define SWEEP_EVERY_NS (600 * GS_NS_PER_S)
#define MB             (1024 * 1024LL)

/* ---- Names --------------------------------------------------------------------------------- */

void gs_kept_id(const char *prefix, char out[GS_ID_BYTES]) {
    unsigned char raw[12];
    if (gs_random_bytes(raw, sizeof(raw)) != 0)
        memset(raw, 0, sizeof(raw)); /* a second one then violates the table's constraint */
    int at = snprintf(out, GS_ID_BYTES, "%s", prefix);
    for (size_t i = 0; i < sizeof(raw); i++)
        at += snprintf(out + at, GS_ID_BYTES - (size_t)at, "%02x", raw[i]);
}

bool gs_kept_valid_id(const char *id, const char *prefix) {
    size_t n = strlen(prefix);
    return strncmp(id, prefix, n) == 0 && strlen(id) == n + 24 &&
           strspn(id + n, "0123456789abcdef") == 24;
}

void gs_kept_path(const char *folder, const char *id, const char *suffix, char *out, size_t n) {
    snprintf(out, n, "%s/files/%s%s", folder, id, suffix);
}

/* ---- Bounds -------------------------------------------------------------------------------- */

void gs_kept_limits_now(const gs_kept *k, gs_kept_limits *out) {
    const gs_config *c = k->api->cfg.config;
    *out = (gs_kept_limits){
        .max_disk = c->store_max_disk_mb * MB,
        .min_free = c->store_min_free_mb * MB,
        .max_file = c->store_max_file_mb * MB,
        .person = c->store_person_mb * MB,
        .person_batches = c->store_person_batches,
        .max_lines = c->store_max_lines,
        .keep_s = c->store_keep_days * 86400LL,
        .max_line_bytes = c->server_max_body_kb * 1024LL,
    };
}

int gs_kept_check_room(gs_db *db, const gs_kept_limits *l, int64_t extra, char *err, size_t n) {
    int64_t files = 0;
    struct statvfs fs;
    int rc = gs_db_int(db, &files, 0, "SELECT sum(bytes) FROM files", "");
    if (rc != 0)
        return rc;
    if (files + gs_db_bytes(db) + extra > l->max_disk)
        return gs_fail(err, n, GS_ERR_NO_SPACE,
                       "The server keeps %lld MB at most (store.max_disk_mb).",
                       (long long)(l->max_disk / MB));
    if (statvfs(gs_db_folder(db), &fs) == 0 &&
        (int64_t)(fs.f_bavail * fs.f_frsize) < l->min_free + extra)
        return gs_fail(err, n, GS_ERR_NO_SPACE,
                       "The disk has less than %lld MB left (store.min_free_mb).",
                       (long long)(l->min_free / MB));
    return 0;
}

/* ---- Calls --------------------------------------------------------------------------------- */

gs_call *gs_call_new(gs_api *a, gs_http_request *rq) {
    gs_api_error e;
    gs_call *c = NULL;
    if (!a->kept || !gs_api_store(a, &e)) {
        if (!a->kept)
            gs_api_fail(&e, GS_ERR_UNAVAILABLE, NULL, "Nothing can be kept here: %s.",
                        a->cfg.state_reason ? a->cfg.state_reason : "there is no state folder");
    } else if (a->draining) {
        gs_api_fail(&e, GS_ERR_UNAVAILABLE, NULL, "The server is shutting down.");
    } else if (!(c = gs_calloc(1, sizeof(*c)))) {
        gs_api_fail(&e, GS_ERR_NOMEM, NULL, "Out of memory.");
    }
    if (!c) {
        gs_api_reply_error(rq, &e);
        return NULL;
    }
    c->k = a->kept;
    c->rq = rq;
    c->now_s = gs_wall_s();
    c->service_s = gs_kept_service_s(a->kept);
    c->limit = 1;
    gs_kept_limits_now(a->kept, &c->limits);
    gs_api_owner(a, rq, &c->owner);
    c->admin = gs_api_check_admin(a, rq, &e) == 0;
    c->paused = gs_hours_why_not(a, &c->owner);
    c->next = a->kept->calls;
    a->kept->calls = c;
    a->n_live++;
    return c;
}

static void call_free(gs_call *c) {
    gs_call **at = &c->k->calls;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    c->k->api->n_live--;
    gs_buf_deinit(&c->out);
    json_decref(c->body);
    gs_free(c);
}

void gs_call_answer(gs_call *c) {
    gs_http_request *rq = c->rq;
    c->rq = NULL;
    if (rq && c->e.code != 0)
        gs_api_reply_error(rq, &c->e);
    else if (rq)
        gs_api_reply_json(rq, 200, &c->out);
    call_free(c);
}

static void call_done(gs_store_job *job) {
    gs_call *c = (gs_call *)job;
    if (job->rc != 0 && c->e.code == 0)
        gs_api_fail(&c->e, job->rc, NULL, "%s.", job->err);
    else if (job->rc == 0)
        c->e = (gs_api_error){0}; /* of a first run that was undone */
    if (!c->then || !c->then(c))
        gs_call_answer(c);
}

void gs_call_submit(gs_call *c, int (*run)(gs_db *db, gs_store_job *job)) {
    c->job.kind = GS_STORE_DATABASE;
    c->job.run = run;
    c->job.done = call_done;
    int rc = gs_store_submit(c->k->store, &c->job);
    if (rc == 0)
        return;
    gs_api_fail(&c->e, rc, NULL, "The store is not available, or too busy.");
    gs_call_answer(c);
}

int gs_kept_fail(gs_call *c, gs_db *db, int rc) {
    return gs_api_fail(&c->e, rc, NULL, "The database: %s.", gs_db_error(db));
}

int gs_call_list_params(gs_call *c, int max_limit, int default_limit) {
    char text[32];
    gs_api_query_param(c->rq, "limit", text, sizeof(text));
    c->limit = default_limit;
    if (text[0]) {
        char *end;
        long v = strtol(text, &end, 10);
        if (*end || v < 1 || v > max_limit)
            gs_api_fail(&c->e, GS_ERR_INVALID, "limit", "'limit' must be 1 to %d.", max_limit);
        c->limit = (int)v;
    }
    gs_api_query_param(c->rq, "order", text, sizeof(text));
    c->ascending = strcmp(text, "asc") == 0;
    if (text[0] && !c->ascending && strcmp(text, "desc") != 0)
        gs_api_fail(&c->e, GS_ERR_INVALID, "order", "'order' must be 'asc' or 'desc'.");
    gs_api_query_param(c->rq, "all", text, sizeof(text));
    c->all = c->admin && strcmp(text, "true") == 0;
    gs_api_query_param(c->rq, "after", c->after, sizeof(c->after));
    gs_api_query_param(c->rq, "purpose", c->purpose, sizeof(c->purpose));
    if (c->e.code == 0)
        return 0;
    gs_call_answer(c);
    return GS_ERR_INVALID;
}

int gs_call_list(gs_call *c, gs_db *db, sqlite3_stmt *s, int id_column,
                 void (*write)(gs_jsonw *w, const gs_call *c, sqlite3_stmt *s)) {
    gs_jsonw w;
    int rc, n = 0;
    char first[GS_ID_BYTES] = "", last[GS_ID_BYTES] = "";
    gs_buf_clear(&c->out);
    gs_jsonw_init(&w, &c->out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "object");
    gs_jsonw_str(&w, "list");
    gs_jsonw_key(&w, "data");
    gs_jsonw_arr(&w);
    while ((rc = gs_db_step(db, s)) == 1 && n++ < c->limit) {
        snprintf(last, sizeof(last), "%s", gs_db_text(s, id_column));
        if (n == 1)
            memcpy(first, last, sizeof(first));
        write(&w, c, s);
    }
    gs_db_reset(s);
    if (rc < 0)
        return gs_kept_fail(c, db, rc);
    gs_jsonw_end_arr(&w);
    gs_jsonw_key(&w, "first_id");
    gs_jsonw_str(&w, first[0] ? first : NULL);
    gs_jsonw_key(&w, "last_id");
    gs_jsonw_str(&w, last[0] ? last : NULL);
    gs_jsonw_key(&w, "has_more");
    gs_jsonw_bool(&w, rc == 1);
    gs_jsonw_end_obj(&w);
    return 0;
}

bool gs_kept_gone(gs_api *a, gs_http_request *rq) {
    if (!a->kept)
        return false;
    for (gs_call *c = a->kept->calls; c; c = c->next) {
        if (c->rq == rq) {
            c->rq = NULL;
            gs_http_end(rq);
            return true;
        }
    }
    return gs_upload_gone(a->kept, rq) || gs_download_gone(a->kept, rq);
}

/* ---- The clock of service ------------------------------------------------------------------ */

int64_t gs_kept_service_s(const gs_kept *k) {
    return k->service_base_s + (gs_now_ns() - k->began_ns) / GS_NS_PER_S;
}

static int run_clock(gs_db *db, gs_store_job *job) {
    gs_kept *k = (gs_kept *)(void *)((char *)job - offsetof(gs_kept, clock_job));
    return gs_db_run(db,
                     "INSERT INTO meta VALUES ('service_s', ?1) "
                     "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                     "i", k->saved_service_s);
}

static void clock_done(gs_store_job *job) {
    gs_kept *k = (gs_kept *)(void *)((char *)job - offsetof(gs_kept, clock_job));
    k->clock_busy = false;
}

static void save_clock(gs_kept *k) {
    if (k->clock_busy)
        return;
    k->saved_service_s = gs_kept_service_s(k);
    k->clock_job = (gs_store_job){.run = run_clock, .done = clock_done};
    k->clock_busy = gs_store_submit(k->store, &k->clock_job) == 0;
}

/* ---- Sweeping: what is too old, and files that no row names -------------------------------- */

static int run_expire(gs_db *db, gs_store_job *job) {
    const gs_kept *k = (gs_kept *)(void *)((char *)job - offsetof(gs_kept, sweep_job));
    const int64_t service_s = k->saved_service_s;
    int rc = gs_db_run(db,
                       "DELETE FROM batches WHERE status IN ('completed', 'failed', 'expired', "
                       "'cancelled') AND deadline_service_s + ?1 < ?2",
                       "ii", k->sweep_limits.keep_s, service_s);
    if (rc == 0)
        rc = gs_db_run(db,
                       "DELETE FROM files WHERE expires_service_s < ?1 AND id NOT IN (SELECT "
                       "input_file FROM batches WHERE status IN ('validating', 'in_progress', "
                       "'finalizing', 'cancelling'))",
                       "i", service_s);
    return rc;
}

/* Only what this server could have written, and nothing that is being written (SUFFIX .tmp is
 * removed once, at the start). */
static int remove_strays(gs_db *db, bool tmp_too) {
    char path[4200], id[GS_ID_BYTES];
    struct dirent *d;
    snprintf(path, sizeof(path), "%s/files", gs_db_folder(db));
    DIR *dir = opendir(path);
    if (!dir)
        return 0;
    int rc = 0;
    while (rc == 0 && (d = readdir(dir))) {
        size_t n = strcspn(d->d_name, ".");
        const char *suffix = d->d_name + n;
        int64_t known = 0;
        snprintf(id, sizeof(id), "%.*s", (int)n, d->d_name);
        if (!gs_kept_valid_id(id, "file-") ||
            (*suffix && (!tmp_too || strcmp(suffix, ".tmp") != 0)))
            continue;
        if (!*suffix)
            rc = gs_db_int(db, &known, 0, "SELECT 1 FROM files WHERE id = ?1", "t", id);
        gs_kept_path(gs_db_folder(db), id, suffix, path, sizeof(path));
        if (rc == 0 && !known)
            unlink(path);
    }
    closedir(dir);
    return rc;
}

/* Outside of any transaction: a row that comes back with its transaction has its file still. */
static int run_strays(gs_db *db, gs_store_job *job) {
    (void)job;
    return remove_strays(db, false);
}

static void expired_done(gs_store_job *job) {
    gs_kept *k = (gs_kept *)(void *)((char *)job - offsetof(gs_kept, sweep_job));
    k->sweep_busy = false;
}

/* What has just expired loses its bytes in the next round. */
static void strays_done(gs_store_job *job) {
    gs_kept *k = (gs_kept *)(void *)((char *)job - offsetof(gs_kept, sweep_job));
    k->sweep_job = (gs_store_job){.run = run_expire, .done = expired_done};
    k->sweep_busy = gs_store_submit(k->store, &k->sweep_job) == 0;
}

static void sweep(gs_kept *k) {
    if (k->sweep_busy || k->uploads)
        return; /* a published file may wait for its row */
    for (gs_kept_batch *b = k->batches; b; b = b->next)
        if (b->busy)
            return;
    k->swept_ns = gs_now_ns();
    gs_kept_limits_now(k, &k->sweep_limits);
    k->sweep_job = (gs_store_job){.kind = GS_STORE_FILES, .run = run_strays, .done = strays_done};
    k->sweep_busy = gs_store_submit(k->store, &k->sweep_job) == 0;
}

/* ---- Opening ------------------------------------------------------------------------------- */

typedef struct open_job {
    gs_store_job job; /* first */
    gs_kept *k;
    int64_t service_s, paused;
    gs_kept_batch *batches;
} open_job;

static int run_open(gs_db *db, gs_store_job *job) {
    open_job *o = (open_job *)job;
    char path[4200];
    snprintf(path, sizeof(path), "%s/files", gs_db_folder(db));
    if (mkdir(path, 0700) != 0 && access(path, W_OK) != 0)
        return gs_fail(job->err, sizeof(job->err), GS_ERR_IO, "%.100s can't be written", path);
    int rc = gs_db_int(db, &o->service_s, 0, "SELECT value FROM meta WHERE name = 'service_s'", "");
    if (rc == 0)
        rc = gs_db_int(db, &o->paused, 0, "SELECT value FROM meta WHERE name = 'paused'", "");
    if (rc == 0)
        rc = remove_strays(db, true);
    while (o->batches) { /* of a first run */
        gs_kept_batch *b = o->batches;
        o->batches = b->next;
        gs_batch_free(b);
    }
    return rc == 0 ? gs_batch_load(db, o->k, &o->batches) : rc;
}

static void open_done(gs_store_job *job) {
    open_job *o = (open_job *)job;
    gs_kept *k = o->k;
    int n = 0;
    if (job->rc == 0) {
        k->service_base_s = o->service_s;
        k->began_ns = gs_now_ns();
        k->opened = true;
        gs_hours_was_paused(k->api, o->paused != 0);
        for (gs_kept_batch *b = o->batches, *next; b; b = next, n++) {
            next = b->next;
            gs_batches_add(k, b);
        }
        if (n > 0)
            gs_info("batches", "going on n=%d", n);
    } else {
        gs_error("batches", "they can't go on: %s", job->err);
        for (gs_kept_batch *b = o->batches, *next; b; b = next) {
            next = b->next;
            gs_batch_free(b);
        }
    }
    gs_free(o);
}

int gs_kept_create(gs_api *a) {
    if (!a->store || !a->cfg.config)
        return 0;
    gs_kept *k = gs_calloc(1, sizeof(*k));
    open_job *o = gs_calloc(1, sizeof(*o));
    if (!k || !o) {
        gs_free(k);
        gs_free(o);
        return GS_ERR_NOMEM;
    }
    *k = (gs_kept){.api = a, .store = a->store, .began_ns = gs_now_ns(), .swept_ns = gs_now_ns()};
    *o = (open_job){.job = {.run = run_open, .done = open_done}, .k = k};
    a->kept = k;
    if (gs_store_submit(a->store, &o->job) != 0)
        gs_free(o);
    return 0;
}

void gs_kept_tick(gs_api *a) {
    gs_kept *k = a->kept;
    if (!k || !k->opened)
        return;
    if (gs_kept_service_s(k) - k->saved_service_s >= CLOCK_EVERY_S && !k->stopping)
        save_clock(k);
    if (gs_now_ns() - k->swept_ns > SWEEP_EVERY_NS && !k->stopping)
        sweep(k);
    gs_batches_pump(k);
}

void gs_kept_stop(gs_api *a) {
    gs_kept *k = a->kept;
    if (!k || k->stopping)
        return;
    if (k->opened)
        save_clock(k);
    gs_batches_stop(k);
}

void gs_kept_free(gs_api *a) {
    gs_kept *k = a->kept;
    if (!k)
        return;
    while (k->batches) {
        gs_kept_batch *b = k->batches;
        k->batches = b->next;
        gs_batch_free(b);
    }
    gs_free(k);
    a->kept = NULL;
}
