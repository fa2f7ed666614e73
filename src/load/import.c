/*
 * Public traces. Their columns are described with their data:
 *   Azure      github.com/Azure/AzurePublicDataset (LLM inference traces 2023, 2024)
 *   BurstGPT   github.com/HPMLL/BurstGPT
 *   Mooncake   github.com/kvcache-ai/Mooncake (FAST'25 release)
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <jansson.h>

#include "base/err.h"
#include "base/sys.h"
#include "load/trace.h"

#define MAX_COLUMNS     32
#define MAX_FIELD       128
#define MAX_TOKENS      1000000
#define MOONCAKE_BLOCK  512
#define MOONCAKE_BLOCKS 65536

typedef enum column { COL_TIME, COL_INPUT, COL_OUTPUT, COL_SESSION, COL_COUNT } column;

typedef struct csv_format {
    const char *columns[COL_COUNT]; /* names in the header; NULL: none */
    bool needs[COL_COUNT];
} csv_format;

static const csv_format azure = {
    {"TIMESTAMP", "ContextTokens", "GeneratedTokens", NULL},
    {true, true, true, false},
};
static const csv_format burstgpt = {
    {"Timestamp", "Request tokens", "Response tokens", "Session ID"},
    {true, true, true, false},
};

/* Cuts a line into fields; quotes around a field go. Returns how many. */
static int split(const char *line, size_t n, char out[MAX_COLUMNS][MAX_FIELD]) {
    int count = 0;
    size_t at = 0;
    while (n > 0 && (line[n - 1] == '\r' || line[n - 1] == '\n'))
        n--;
    while (at <= n && count < MAX_COLUMNS) {
        const bool quoted = at < n && line[at] == '"';
        size_t from = at + quoted, to = from;
        while (to < n && line[to] != (quoted ? '"' : ','))
            to++;
        snprintf(out[count++], MAX_FIELD, "%.*s", (int)(to - from), line + from);
        at = to + quoted;
        while (at < n && line[at] != ',')
            at++;
        at++;
    }
    return count;
}

/* "2023-11-16 18:17:03.9799600" or seconds. */
static bool read_time(const char *s, double *out) {
    int year, month, day, hour, minute;
    double second;
    char *rest;
    if (sscanf(s, "%d-%d-%d%*1[ T]%d:%d:%lf", &year, &month, &day, &hour, &minute, &second) == 6) {
        struct tm tm = {.tm_year = year - 1900,
                        .tm_mon = month - 1,
                        .tm_mday = day,
                        .tm_hour = hour,
                        .tm_min = minute};
        *out = (double)timegm(&tm) + second;
        return true;
    }
    *out = strtod(s, &rest);
    return rest != s && *rest == '\0' && isfinite(*out);
}

static bool read_count(const char *s, int32_t *out) {
    char *rest;
    const double v = strtod(s, &rest);
    if (rest == s || *rest != '\0' || !(v >= 0 && v <= MAX_TOKENS))
        return false;
    *out = (int32_t)v;
    return true;
}

static int find_columns(const csv_format *f, const char *line, size_t n, int at[COL_COUNT],
                        char *err, size_t errlen) {
    char fields[MAX_COLUMNS][MAX_FIELD];
    const int count = split(line, n, fields);
    for (int c = 0; c < COL_COUNT; c++) {
        at[c] = -1;
        for (int i = 0; i < count && f->columns[c]; i++) {
            /* Some files begin with a byte-order mark. */
            const char *name = fields[i] + (strncmp(fields[i], "\xef\xbb\xbf", 3) == 0 ? 3 : 0);
            if (strcasecmp(name, f->columns[c]) == 0)
                at[c] = i;
        }
        if (at[c] < 0 && f->needs[c])
            return gs_fail(err, errlen, GS_ERR_FORMAT, "line 1: there is no column \"%s\"",
                           f->columns[c]);
    }
    return 0;
}

static int add_row(gs_trace *t, char fields[MAX_COLUMNS][MAX_FIELD], int count,
                   const int at[COL_COUNT], double *start, char *err, size_t errlen) {
    double when = 0;
    int32_t in = 0, out = 0;
    for (int c = 0; c < COL_SESSION; c++)
        if (at[c] >= count)
            return gs_fail(err, errlen, GS_ERR_FORMAT, "a column is missing");
    if (!read_time(fields[at[COL_TIME]], &when))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "'%.40s' is no time", fields[at[COL_TIME]]);
    if (!read_count(fields[at[COL_INPUT]], &in) || !read_count(fields[at[COL_OUTPUT]], &out))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "a number of tokens is none");
    if (out == 0 || in == 0)
        return 0; /* failed requests, in BurstGPT: nothing was computed */
    gs_trace_request *q = gs_trace_add(t, "import", t->n + 1);
    const int32_t person = q ? gs_trace_person(t, "somebody") : -1;
    if (person < 0)
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "too many requests");
    if (t->n == 1)
        *start = when;
    q->t_s = when > *start ? when - *start : 0;
    q->name = person;
    q->n_prompt = in;
    q->n_output = out;
    if (at[COL_SESSION] >= 0 && at[COL_SESSION] < count && fields[at[COL_SESSION]][0])
        q->conversation = gs_strdup(fields[at[COL_SESSION]]);
    return 0;
}

/* Turns of one session follow each other; the later one's prompt holds what came before. */
static void link_sessions(gs_trace *t) {
    for (int32_t i = 0; i < t->n; i++) {
        gs_trace_request *q = &t->requests[i];
        for (int32_t k = i - 1; q->conversation && k >= 0 && i - k <= 4096; k--) {
            const gs_trace_request *p = &t->requests[k];
            if (!p->conversation || strcmp(p->conversation, q->conversation) != 0)
                continue;
            const int32_t before = p->n_prompt + p->n_output;
            q->turn = p->turn + 1;
            q->after = k;
            q->think_s = q->t_s > p->t_s ? q->t_s - p->t_s : 0;
            q->n_prefix = before < q->n_prompt ? before : 0;
            if (q->n_prefix > 0)
                q->shared_prefix = gs_strdup(q->conversation);
            break;
        }
    }
}

static int import_csv(const csv_format *f, const char *text, size_t n, gs_trace *t, char *err,
                      size_t errlen) {
    const char *at = text, *end = text + n;
    int columns[COL_COUNT];
    double start = 0;
    for (int line = 1; at < end; line++) {
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        const size_t len = (size_t)((nl ? nl : end) - at);
        char fields[MAX_COLUMNS][MAX_FIELD], why[128] = "";
        int rc = 0;
        if (line == 1) {
            rc = find_columns(f, at, len, columns, err, errlen);
            if (rc != 0)
                return rc;
        } else if (len > 1) {
            const int count = split(at, len, fields);
            rc = add_row(t, fields, count, columns, &start, why, sizeof why);
        }
        if (rc != 0)
            return gs_fail(err, errlen, rc, "line %d: %s", line, why);
        at = nl ? nl + 1 : end;
    }
    link_sessions(t);
    return 0;
}

/* ---- Mooncake ------------------------------------------------------------------------------- */

static int add_mooncake(gs_trace *t, const json_t *o, char *err, size_t errlen) {
    const double ms = json_number_value(json_object_get(o, "timestamp"));
    const double in = json_number_value(json_object_get(o, "input_length"));
    const double out = json_number_value(json_object_get(o, "output_length"));
    const json_t *ids = json_object_get(o, "hash_ids");
    const size_t n = json_array_size(ids);
    if (!(ms >= 0 && ms < 1e13) || !(in >= 1 && in <= MAX_TOKENS) ||
        !(out >= 0 && out <= MAX_TOKENS))
        return gs_fail(err, errlen, GS_ERR_FORMAT,
                       "timestamp, input_length or output_length is missing or out of bounds");
    if (n > MOONCAKE_BLOCKS)
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "too many hash_ids");
    gs_trace_request *q = gs_trace_add(t, "import", t->n + 1);
    const int32_t person = q ? gs_trace_person(t, "somebody") : -1;
    if (person < 0)
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "too many requests");
    q->t_s = ms / 1000.0;
    q->name = person;
    q->n_prompt = (int32_t)in;
    q->n_output = out > 0 ? (int32_t)out : 1;
    q->blocks = gs_array(n > 0 ? n : 1, sizeof *q->blocks);
    if (!q->blocks)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    q->block_tokens = MOONCAKE_BLOCK;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(ids, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return gs_fail(err, errlen, GS_ERR_FORMAT, "hash_ids holds something else");
        q->blocks[q->n_blocks++] = (uint64_t)json_integer_value(v) & ((1ULL << 53) - 1);
    }
    return 0;
}

static int import_mooncake(const char *text, size_t n, gs_trace *t, char *err, size_t errlen) {
    const char *at = text, *end = text + n;
    for (int line = 1; at < end; line++) {
        const char *nl = memchr(at, '\n', (size_t)(end - at));
        const size_t len = (size_t)((nl ? nl : end) - at);
        char why[128] = "";
        json_error_t je;
        int rc = 0;
        if (len > 0) {
            json_t *o = json_loadb(at, len, JSON_REJECT_DUPLICATES, &je);
            rc = json_is_object(o) ? add_mooncake(t, o, why, sizeof why)
                                   : gs_fail(why, sizeof why, GS_ERR_FORMAT, "no JSON object");
            json_decref(o);
        }
        if (rc != 0)
            return gs_fail(err, errlen, rc, "line %d: %s", line, why);
        at = nl ? nl + 1 : end;
    }
    return 0;
}

static int import_azure(const char *text, size_t n, gs_trace *t, char *err, size_t errlen) {
    return import_csv(&azure, text, n, t, err, errlen);
}

static int import_burstgpt(const char *text, size_t n, gs_trace *t, char *err, size_t errlen) {
    return import_csv(&burstgpt, text, n, t, err, errlen);
}

static const struct {
    const char *name;
    int (*read)(const char *text, size_t n, gs_trace *t, char *err, size_t errlen);
} formats[] = {
    {"azure", import_azure},
    {"burstgpt", import_burstgpt},
    {"mooncake", import_mooncake},
};

#define N_FORMATS ((int)(sizeof formats / sizeof formats[0]))

int gs_trace_import(const char *format, const char *path, gs_trace *t, char *err, size_t errlen) {
    const void *data = NULL;
    size_t size = 0;
    int i = 0;
    gs_trace_init(t);
    while (i < N_FORMATS && strcmp(formats[i].name, format) != 0)
        i++;
    if (i == N_FORMATS)
        return gs_fail(err, errlen, GS_ERR_NOT_FOUND, "there is no format '%.40s'", format);
    int rc = gs_map_file(path, &data, &size, err, errlen);
    if (rc != 0)
        return rc;
    rc = formats[i].read(data ? data : "", size, t, err, errlen);
    gs_unmap(data, size);
    if (rc != 0)
        gs_trace_free(t);
    return rc;
}
