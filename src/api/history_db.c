#include "api/history.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

/* ---- Histograms as bytes ------------------------------------------------------------------- */

/*
 * Four bytes that say which bounds they have, then the counts up to the last that is not 0, seven
 * bits a byte, low ones first. Empty: no bytes. With other bounds (of another version) or damaged
 * they are as empty.
 */
#define MARK_BYTES  4
#define PACKED_MOST (MARK_BYTES + 10 * (GS_HIST_BOUNDS + 1))

/* FNV-1a over the bounds. */
static uint32_t mark_of(const gs_hist_shape *shape) {
    const unsigned char *p = (const unsigned char *)shape->bounds;
    uint32_t x = 2166136261U;
    for (size_t i = 0; i < (size_t)shape->n * sizeof(*shape->bounds); i++)
        x = (x ^ p[i]) * 16777619U;
    return x;
}

static size_t pack(const gs_hist *h, const gs_hist_shape *shape,
                   unsigned char out[static PACKED_MOST]) {
    const uint32_t mark = mark_of(shape);
    int n = shape->n + 1;
    size_t at = 0;
    while (n > 0 && h->counts[n - 1] == 0)
        n--;
    if (n == 0)
        return 0;
    for (; at < MARK_BYTES; at++)
        out[at] = (unsigned char)(mark >> (8 * at));
    for (int i = 0; i < n; i++) {
        uint64_t v = h->counts[i];
        for (; v >= 128; v >>= 7)
            out[at++] = (unsigned char)(v | 128);
        out[at++] = (unsigned char)v;
    }
    return at;
}

static void unpack(const unsigned char *p, size_t n, const gs_hist_shape *shape, gs_hist *out) {
    uint32_t mark = 0;
    int i = 0;
    memset(out, 0, sizeof(*out));
    for (size_t b = 0; b < MARK_BYTES && b < n; b++)
        mark |= (uint32_t)p[b] << (8 * b);
    if (n <= MARK_BYTES || mark != mark_of(shape))
        return;
    unsigned shift = 0;
    for (size_t b = MARK_BYTES; b < n && i <= shape->n && shift < 64; b++) {
        out->counts[i] |= (uint64_t)(p[b] & 127) << shift;
        shift += 7;
        if (p[b] < 128) {
            out->n += out->counts[i++];
            shift = 0;
        }
    }
}

/* ---- Keeping ------------------------------------------------------------------------------- */

static int put_class(gs_db *db, int64_t t_s, gs_class c, const gs_history_class *k) {
    unsigned char ttft[PACKED_MOST], itl[PACKED_MOST];
    const size_t n_ttft = pack(&k->ttft, &gs_hist_shapes[GS_HIST_TTFT], ttft);
    const size_t n_itl = pack(&k->itl, &gs_hist_shapes[GS_HIST_ITL], itl);
    if (k->n_requests == 0 && k->n_judged == 0 && n_ttft == 0 && n_itl == 0)
        return 0;
    return gs_db_run(db,
                     "INSERT INTO history_classes (t_s, class, requests, judged, missed, "
                     "prompt_tokens, output_tokens, ttft, itl) "
                     "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                     "itiiiiibb", t_s, gs_class_name(c), (int64_t)k->n_requests,
                     (int64_t)k->n_judged, (int64_t)k->n_missed, (int64_t)k->n_prompt,
                     (int64_t)k->n_output, (const void *)ttft, n_ttft, (const void *)itl, n_itl);
}

static int put_row(gs_db *db, const gs_history_row *r) {
    const bool told = isfinite(r->energy_j);
    int rc = gs_db_run(db, "DELETE FROM history WHERE t_s = ?1", "i", r->t_s);
    if (rc == 0)
        rc = gs_db_run(db,
                       "INSERT INTO history (t_s, ms, busy_ms, background_ms, kv, energy_j) "
                       "VALUES (?1, ?2, ?3, ?4, ?5, CASE WHEN ?6 THEN ?7 END)",
                       "iiiidid", r->t_s, r->ms, r->busy_ms, r->background_ms, r->kv, (int64_t)told,
                       told ? r->energy_j : 0.0);
    for (int c = 0; c < GS_CLASS_COUNT && rc == 0; c++)
        rc = put_class(db, r->t_s, (gs_class)c, &r->classes[c]);
    return rc;
}

int gs_history_put(gs_db *db, const gs_history_row *row, int64_t now_s, int64_t max_rows) {
    int64_t n = 0;
    int rc = put_row(db, row);
    if (rc == 0)
        rc = gs_db_run(db, "DELETE FROM history WHERE t_s < ?1", "i", now_s - GS_HISTORY_KEEP_S);
    if (rc == 0)
        rc = gs_db_int(db, &n, 0, "SELECT count(*) FROM history", "");
    if (rc == 0 && n > max_rows)
        rc = gs_db_run(db,
                       "DELETE FROM history WHERE t_s IN (SELECT t_s FROM history "
                       "ORDER BY abs(t_s - ?1) DESC LIMIT ?2)",
                       "ii", now_s, n - max_rows);
    return rc;
}

/* ---- Reading ------------------------------------------------------------------------------- */

/* Three decimals are enough for milliseconds and shares; what is no number becomes null. */
static void key_num(gs_jsonw *w, const char *key, double v) {
    gs_jsonw_key(w, key);
    gs_jsonw_num(w, isfinite(v) ? round(v * 1e3) / 1e3 : v);
}

static void key_int(gs_jsonw *w, const char *key, int64_t v) {
    gs_jsonw_key(w, key);
    gs_jsonw_int(w, v);
}

/* A step counts when it ends, so that a minute may have a little more than all of its time. */
static double share(double part, double whole) {
    return whole > 0.0 ? fmin(part / whole, 1.0) : 0.0;
}

static void write_quantiles(gs_jsonw *w, const char *key, const gs_hist *h, gs_hist_id id) {
    gs_jsonw_key(w, key);
    gs_jsonw_obj(w);
    key_num(w, "p50", 1e3 * gs_hist_quantile(h, &gs_hist_shapes[id], 0.5));
    key_num(w, "p95", 1e3 * gs_hist_quantile(h, &gs_hist_shapes[id], 0.95));
    key_int(w, "n", (int64_t)h->n);
    gs_jsonw_end_obj(w);
}

static void write_class(gs_jsonw *w, gs_class c, const gs_history_class *k) {
    if (k->n_requests == 0 && k->n_judged == 0 && k->ttft.n == 0 && k->itl.n == 0)
        return;
    gs_jsonw_obj(w);
    gs_jsonw_key(w, "name");
    gs_jsonw_str(w, gs_class_name(c));
    key_int(w, "requests", (int64_t)k->n_requests);
    key_num(w, "attained",
            k->n_judged > 0 ? 1.0 - (double)k->n_missed / (double)k->n_judged : (double)NAN);
    key_int(w, "judged", (int64_t)k->n_judged);
    write_quantiles(w, "ttft_ms", &k->ttft, GS_HIST_TTFT);
    write_quantiles(w, "itl_ms", &k->itl, GS_HIST_ITL);
    key_int(w, "prompt_tokens", (int64_t)k->n_prompt);
    key_int(w, "output_tokens", (int64_t)k->n_output);
    gs_jsonw_end_obj(w);
}

static void write_row(gs_jsonw *w, const gs_history_row *r) {
    if (r->ms == 0)
        return;
    gs_jsonw_obj(w);
    key_int(w, "t", r->t_s);
    key_num(w, "seconds", (double)r->ms / 1e3);
    key_num(w, "busy", share((double)r->busy_ms, (double)r->ms));
    key_num(w, "background", share((double)r->background_ms, (double)r->busy_ms));
    key_num(w, "kv", r->kv / (double)r->ms);
    key_num(w, "energy_j", r->energy_j);
    gs_jsonw_key(w, "classes");
    gs_jsonw_arr(w);
    for (int c = 0; c < GS_CLASS_COUNT; c++)
        write_class(w, (gs_class)c, &r->classes[c]);
    gs_jsonw_end_arr(w);
    gs_jsonw_end_obj(w);
}

/* Of one row of the join: what belongs to the minute. kv is a sum over its ms until it is written;
 * energy is told if any minute tells it. */
static void add_minute(gs_history_row *r, sqlite3_stmt *s) {
    const int64_t ms = sqlite3_column_int64(s, 1);
    r->ms += ms;
    r->busy_ms += sqlite3_column_int64(s, 2);
    r->background_ms += sqlite3_column_int64(s, 3);
    r->kv += sqlite3_column_double(s, 4) * (double)ms;
    if (sqlite3_column_type(s, 5) != SQLITE_NULL)
        r->energy_j = (isfinite(r->energy_j) ? r->energy_j : 0.0) + sqlite3_column_double(s, 5);
}

static void add_hist(gs_hist *into, sqlite3_stmt *s, int column, gs_hist_id id) {
    gs_hist h;
    const void *bytes = sqlite3_column_blob(s, column);
    unpack(bytes, (size_t)sqlite3_column_bytes(s, column), &gs_hist_shapes[id], &h);
    gs_hist_merge(into, &h);
}

static void add_class(gs_history_row *r, sqlite3_stmt *s) {
    const int c = gs_class_parse(gs_db_text(s, 6));
    if (c < 0)
        return; /* nothing happened, or a class of another version */
    gs_history_class *k = &r->classes[c];
    k->n_requests += (uint64_t)sqlite3_column_int64(s, 7);
    k->n_judged += (uint64_t)sqlite3_column_int64(s, 8);
    k->n_missed += (uint64_t)sqlite3_column_int64(s, 9);
    k->n_prompt += (uint64_t)sqlite3_column_int64(s, 10);
    k->n_output += (uint64_t)sqlite3_column_int64(s, 11);
    add_hist(&k->ttft, s, 12, GS_HIST_TTFT);
    add_hist(&k->itl, s, 13, GS_HIST_ITL);
}

static int write_rows(gs_db *db, int64_t from_s, int64_t to_s, int64_t step_s, gs_jsonw *w) {
    sqlite3_stmt *s;
    gs_history_row r = {.t_s = -1};
    int64_t minute = -1;
    int rc = gs_db_query(db, &s,
                         "SELECT t_s, ms, busy_ms, background_ms, kv, energy_j, class, requests, "
                         "judged, missed, prompt_tokens, output_tokens, ttft, itl "
                         "FROM history LEFT JOIN history_classes USING (t_s) "
                         "WHERE t_s >= ?1 AND t_s < ?2 ORDER BY t_s",
                         "ii", from_s, to_s);
    while (rc == 0 && (rc = gs_db_step(db, s)) == 1) {
        const int64_t t_s = sqlite3_column_int64(s, 0);
        const int64_t at_s = t_s - (t_s - from_s) % step_s;
        if (at_s != r.t_s) {
            write_row(w, &r);
            r = (gs_history_row){.t_s = at_s, .energy_j = (double)NAN};
        }
        if (t_s != minute)
            add_minute(&r, s);
        minute = t_s;
        add_class(&r, s);
        rc = 0;
    }
    gs_db_reset(s);
    write_row(w, &r);
    return rc;
}

int gs_history_write(gs_db *db, int64_t from_s, int64_t to_s, int64_t step_s, gs_buf *out) {
    int rc = 0;
    gs_jsonw w;
    gs_buf_clear(out);
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    key_int(&w, "from", from_s);
    key_int(&w, "to", to_s);
    key_int(&w, "step", step_s);
    gs_jsonw_key(&w, "rows");
    gs_jsonw_arr(&w);
    if (db)
        rc = write_rows(db, from_s, to_s, step_s, &w);
    gs_jsonw_end_arr(&w);
    gs_jsonw_end_obj(&w);
    return rc;
}
