#include "api/added.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"
#include "base/err.h"
#include "base/log.h"
#include "base/replace.h"
#include "base/sys.h"
#include "config/dirs.h"

#define FILE_NAME "workers.json"

struct gs_added {
    gs_api *api;
    uv_work_t work;
    char path[GS_DIRS_MAX_PATH], err[512];
    gs_buf text;
    int code;
    bool saving, again;
};

static int path_of(const char *state, char *out, size_t n) {
    return snprintf(out, n, "%s/" FILE_NAME, state) < (int)n ? 0 : GS_ERR_TOO_LARGE;
}

/* ---- One ----------------------------------------------------------------------------------- */

/* A member of the body as the file would have it; lists with commas. */
static int setting_text(const json_t *v, gs_buf *out) {
    size_t i;
    const json_t *item;
    if (json_is_string(v))
        return gs_buf_str(out, json_string_value(v));
    if (json_is_boolean(v))
        return gs_buf_str(out, json_is_true(v) ? "true" : "false");
    if (json_is_integer(v))
        return gs_buf_printf(out, "%lld", (long long)json_integer_value(v));
    if (json_is_real(v))
        return gs_buf_printf(out, "%g", json_real_value(v));
    if (!json_is_array(v))
        return GS_ERR_INVALID;
    json_array_foreach(v, i, item) {
        if (!json_is_string(item))
            return GS_ERR_INVALID;
        gs_buf_printf(out, "%s%s", i > 0 ? "," : "", json_string_value(item));
    }
    return 0;
}

static int read_setting(gs_config_worker *c, const char *key, const json_t *v, gs_api_error *e) {
    char err[400];
    gs_buf text = {0};
    int rc = setting_text(v, &text);
    const char *s = rc == 0 ? gs_buf_cstr(&text) : NULL;
    if (strcmp(key, "power_on") == 0) /* a command of somebody who is not at this machine */
        rc = gs_api_fail(e, GS_ERR_FORBIDDEN, key,
                         "'power_on' may only be set in the "
                         "configuration file.");
    else if (!s)
        rc = gs_api_fail(e, GS_ERR_INVALID, key,
                         "'%.60s' must be text, a number, true, false, or a "
                         "list of texts.",
                         key);
    else if ((rc = gs_config_worker_set(c, key, s, err, sizeof(err))) != 0)
        gs_api_fail(e, rc, key, "%s.", err);
    gs_buf_deinit(&text);
    return rc;
}

static int keep_body(const json_t *body, gs_config_worker *out, gs_api_error *e) {
    char *text = json_dumps(body, JSON_COMPACT);
    out->added = text ? gs_strdup(text) : NULL;
    free(text);
    return out->added ? 0 : gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
}

int gs_added_parse(const json_t *body, gs_config_worker *out, gs_api_error *e) {
    char err[400];
    const char *key, *name = json_string_value(json_object_get(body, "name"));
    json_t *v;
    *out = (gs_config_worker){0};
    if (!name) {
        gs_api_fail(e, GS_ERR_INVALID, "name", "'name' must be a string.");
        return GS_ERR_INVALID;
    }
    int rc = gs_config_worker_init(out, name, err, sizeof(err));
    if (rc != 0)
        return gs_api_fail(e, rc, "name", "%s.", err);
    json_object_foreach((json_t *)(uintptr_t)body, key, v) {
        if (rc == 0 && strcmp(key, "name") != 0)
            rc = read_setting(out, key, v, e);
    }
    return rc == 0 ? keep_body(body, out, e) : rc;
}

/* ---- At the start -------------------------------------------------------------------------- */

static bool is_there(const gs_config *cfg, const char *name) {
    for (size_t i = 0; i < cfg->n_workers; i++)
        if (strcmp(cfg->workers[i].name, name) == 0)
            return true;
    return false;
}

static void take_one(gs_config *cfg, const json_t *body) {
    gs_api_error e = {0};
    gs_config_worker w;
    int rc = gs_added_parse(body, &w, &e);
    if (rc == 0 && is_there(cfg, w.name))
        gs_info("worker", "worker=%s is the configuration's now", w.name);
    else if (rc == 0 && (rc = gs_config_worker_append(cfg, &w)) != 0)
        gs_api_fail(&e, rc, NULL, "%s", gs_err_text(rc));
    if (rc != 0)
        gs_warn("worker", "one that was added is not there: %s", e.message);
    gs_config_worker_deinit(&w);
}

void gs_added_read(const char *state, gs_config *cfg) {
    char path[GS_DIRS_MAX_PATH];
    json_error_t why;
    size_t i;
    json_t *body;
    if (path_of(state, path, sizeof(path)) != 0)
        return;
    errno = 0;
    json_t *root = json_load_file(path, 0, &why);
    if (!root && errno == ENOENT)
        return;
    if (!json_is_array(root))
        gs_warn("worker", "%s: no list of workers%s%s", path, root ? "" : ": ",
                root ? "" : why.text);
    json_array_foreach(root, i, body) take_one(cfg, body);
    json_decref(root);
}

/* ---- Saving -------------------------------------------------------------------------------- */

gs_added *gs_added_create(gs_api *a) {
    gs_added *x = gs_calloc(1, sizeof(*x));
    if (x)
        x->api = a;
    return x;
}

void gs_added_free(gs_added *x) {
    if (x)
        gs_buf_deinit(&x->text);
    gs_free(x);
}

static void save_run(uv_work_t *w) {
    gs_added *x = w->data;
    x->code = gs_replace_file(x->path, x->text.data, x->text.len, x->err, sizeof(x->err));
}

static void save_done(uv_work_t *w, int status) {
    gs_added *x = w->data;
    if (status == 0 && x->code != 0)
        gs_warn("worker", "what was added is not kept: %s", x->err);
    x->saving = false;
    x->api->n_live--;
    if (x->again)
        gs_added_save(x->api);
}

static void write_one(const gs_config_worker *w, gs_buf *out) {
    if (w->added)
        gs_buf_printf(out, "%s%s", out->len > 1 ? ",\n" : "\n", w->added);
}

/* Those that could not be used at the start, because of a key file that was not there, say, are
 * still what somebody has added. */
static void write_list(const gs_api *a, gs_buf *out) {
    const gs_config *c = a->cfg.config;
    gs_buf_clear(out);
    gs_buf_char(out, '[');
    for (const gs_worker *w = gs_workers_first(a->workers); w; w = w->next)
        write_one(&w->cfg, out);
    for (size_t i = 0; c && i < c->n_workers; i++)
        if (!gs_workers_find(a->workers, c->workers[i].name))
            write_one(&c->workers[i], out);
    gs_buf_str(out, "\n]\n");
}

void gs_added_forget(gs_api *a, const char *name) {
    gs_config *c = a->cfg.config;
    for (size_t i = 0; c && i < c->n_workers; i++) {
        if (strcmp(c->workers[i].name, name) != 0)
            continue;
        gs_free(c->workers[i].added);
        c->workers[i].added = NULL;
    }
    gs_added_save(a);
}

void gs_added_save(gs_api *a) {
    gs_added *x = a->added;
    x->again = x->saving;
    if (x->saving || !a->cfg.state_folder)
        return;
    write_list(a, &x->text);
    x->work.data = x;
    if (x->text.failed || path_of(a->cfg.state_folder, x->path, sizeof(x->path)) != 0 ||
        uv_queue_work(a->loop, &x->work, save_run, save_done) != 0) {
        gs_warn("worker", "what was added is not kept");
        return;
    }
    x->saving = true;
    a->n_live++;
}
