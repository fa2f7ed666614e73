#include "cli/device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "config/dirs.h"
#include "load/number.h"

#define FALLBACK "xeon2-135m"

/* ---- devices
 * -------------------------------------------------------------------------------------*/

/* Plain numbers of the file: key, bounds, and where they go. */
typedef struct field {
    const char *key;
    double low, high;
    double *number;
    int32_t *count;
} field;

enum { N_FIELDS = 20 };

static int n_fields_of(gs_sim_device *d, field out[N_FIELDS]) {
    const field all[] = {
        {"decode_context_ns", 0, 1e9, &d->cost.decode_ctx_ns, NULL},
        {"prefill_ns", 0, 1e9, &d->cost.prefill_ns, NULL},
        {"logit_ns", 0, 1e10, &d->cost.logit_ns, NULL},
        {"few_row", 0, 2, &d->cost.few[0], NULL},
        {"few_chunk", 0, 2, &d->cost.few[1], NULL},
        {"beside_row", 0, 4, &d->cost.beside[0], NULL},
        {"beside_chunk", 0, 4, &d->cost.beside[1], NULL},
        {"sample_ns", 0, 1e10, &d->cost.sample_ns, NULL},
        {"fixed_ns", 0, 1e10, &d->cost.fixed_ns, NULL},
        {"noise", 0, 0.9, &d->noise, NULL},
        {"slow_rate", 0, 1, &d->slow_rate, NULL},
        {"layers", 1, 1000, NULL, &d->n_layers},
        {"block_tokens", 1, 1024, NULL, &d->block_tokens},
        {"max_seqs", 1, 4096, NULL, &d->max_seqs},
        {"max_batch_tokens", 1, 65536, NULL, &d->max_batch_tokens},
        {"prefill_chunk", 1, 65536, NULL, &d->prefill_chunk},
        {"max_context", 2, 10000000, NULL, &d->max_context},
    };
    const int n = (int)(sizeof all / sizeof all[0]);
    memcpy(out, all, sizeof all);
    return n;
}

static int read_device(const json_t *o, gs_sim_device *d, char *err, size_t errlen) {
    field f[N_FIELDS];
    const int n = n_fields_of(d, f);
    double blocks = 0, threads = 1; /* one: without two steps at once, as files used to be */
    const json_t *knots = json_object_get(o, "knots_ms");
    for (int i = 0; i < GS_COST_KNOTS; i++) {
        char key[16];
        double ms = 0;
        snprintf(key, sizeof key, "%d", 1 << i);
        const int rc = gs_json_number(knots, key, 1e-6, 1e6, &ms, err, errlen);
        if (rc != 0)
            return rc;
        d->cost.knot_ns[i] = ms * 1e6;
        if (i > 0 && d->cost.knot_ns[i] < d->cost.knot_ns[i - 1])
            return gs_fail(err, errlen, GS_ERR_INVALID, "\"knots_ms\" fall at %s tokens", key);
    }
    int rc = gs_json_number(o, "kv_blocks", 1, 1e8, &blocks, err, errlen);
    if (rc == 0)
        rc = gs_json_number_or(o, "threads", 1, 4096, &threads, err, errlen);
    d->n_blocks = (uint32_t)blocks;
    d->n_threads = (int32_t)threads;
    d->cost.logits_together = json_is_true(json_object_get(o, "logits_together"));
    for (int i = 0; i < n && rc == 0; i++) {
        double v = f[i].number ? *f[i].number : 0;
        rc = f[i].number ? gs_json_number_or(o, f[i].key, f[i].low, f[i].high, &v, err, errlen)
                         : gs_json_number(o, f[i].key, f[i].low, f[i].high, &v, err, errlen);
        if (f[i].number)
            *f[i].number = v;
        else
            *f[i].count = (int32_t)v;
    }
    return rc;
}

/* device.json of the state folder. */
static int own_path(char *out, size_t n) {
    char dir[GS_DIRS_MAX_PATH];
    const int rc = gs_dirs_state(dir, sizeof dir, NULL, 0);
    if (rc == 0)
        snprintf(out, n, "%s/device.json", dir);
    return rc;
}

static int read_file(const char *path, gs_sim_device *out, char label[256], char *err,
                     size_t errlen) {
    json_error_t je;
    char why[160] = "";
    json_t *o = json_load_file(path, JSON_REJECT_DUPLICATES, &je);
    if (!o)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "device %s: %s", path, je.text);
    *out = (gs_sim_device){0};
    const char *name = json_string_value(json_object_get(o, "name"));
    snprintf(label, 256, "%.200s", name ? name : path);
    const int rc = read_device(o, out, why, sizeof why);
    json_decref(o);
    return rc == 0 ? 0 : gs_fail(err, errlen, rc, "device %s: %s", path, why);
}

int gs_device_read(const char *name, gs_sim_device *out, char label[256], char *err,
                   size_t errlen) {
    char own[GS_DIRS_MAX_PATH + 16];
    if (!name && own_path(own, sizeof own) == 0 && access(own, R_OK) == 0)
        return read_file(own, out, label, err, errlen);
    const gs_sim_device *known = gs_sim_device_find(name ? name : FALLBACK);
    if (!known)
        return read_file(name, out, label, err, errlen);
    *out = *known;
    snprintf(label, 256, "%s%s", name ? name : FALLBACK,
             name ? "" : " (no server has measured this machine yet)");
    return 0;
}

int gs_device_write(const gs_sim_device *d, const char *name, gs_buf *out) {
    gs_sim_device copy = *d;
    field f[N_FIELDS];
    const int n = n_fields_of(&copy, f);
    gs_buf_printf(out, "{\n  \"name\": \"%s\",\n  \"knots_ms\": {", name);
    for (int i = 0; i < GS_COST_KNOTS; i++)
        gs_buf_printf(out, "%s\"%d\": %g", i > 0 ? ", " : "", 1 << i, d->cost.knot_ns[i] / 1e6);
    gs_buf_printf(out, "},\n  \"kv_blocks\": %u,\n  \"threads\": %d", d->n_blocks,
                  d->n_threads > 1 ? d->n_threads : 1);
    for (int i = 0; i < n; i++)
        gs_buf_printf(out, ",\n  \"%s\": %g", f[i].key,
                      f[i].number ? *f[i].number : (double)*f[i].count);
    if (d->cost.logits_together)
        gs_buf_str(out, ",\n  \"logits_together\": true");
    gs_buf_str(out, "\n}\n");
    return out->failed ? GS_ERR_NOMEM : 0;
}

/* Written whole under another name first: half a file is never read. */
void gs_device_keep(const gs_sim_device *d, const char *name) {
    char path[GS_DIRS_MAX_PATH + 16], tmp[GS_DIRS_MAX_PATH + 32];
    gs_buf text = {0};
    if (own_path(path, sizeof path) != 0 || gs_device_write(d, name, &text) != 0) {
        gs_buf_deinit(&text);
        return;
    }
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    FILE *f = fopen(tmp, "we");
    bool ok = f && fwrite(text.data, 1, text.len, f) == text.len;
    if (f && fclose(f) != 0)
        ok = false;
    if (!ok || rename(tmp, path) != 0)
        gs_warn("device", "this machine's step times could not be kept in %s", path);
    gs_buf_deinit(&text);
}
