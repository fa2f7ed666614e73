#include "api/pulls.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "api/api_impl.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"

#define MAX_PULLS  4 /* at a time */
#define MAX_SOURCE 2048

/* Somebody who waits for a pull. */
typedef struct viewer {
    struct viewer *next;
    gs_http_request *rq;
    bool stream;
    int phase, part; /* that it knows of; phase -1: nothing yet */
    int64_t n_done;
} viewer;

typedef struct pulling {
    struct pulling *next;
    gs_api *api;
    gs_pull *pull;
    char source[MAX_SOURCE], as[GS_MODEL_NAME_BYTES], sha256[65]; /* the pull's */
    pthread_t thread;
    viewer *viewers;
    bool listing; /* it is here, and the list is being made anew */
} pulling;

struct gs_pulls {
    pulling *first;
    int n;
};

const gs_field gs_pull_fields[] = {
    GS_ROW_NEEDED("model", 1, "{'type':'string'}",
                  "A name of the registry, hf:OWNER/REPO/FILE.gguf, or a URL."),
    GS_ROW_JSON("name", 1, "{'type':'string'}", "Older name of model."),
    GS_ROW_JSON("stream", 1, "{'type':'boolean'}",
                "One JSON object a line while it comes. Default true."),
    GS_ROW_JSON("as", 1, "{'type':'string'}", "What the model is called here. Default: as there."),
    GS_ROW_JSON("sha256", 1, "{'type':'string','pattern':'^[0-9a-fA-F]{64}$'}",
                "What the file must have. Default: what its place says."),
    GS_ROWS_END,
};

/* ---- What viewers are told ----------------------------------------------------------------------
 */

static void begin(const viewer *v) {
    if (!gs_http_begun(v->rq)) {
        gs_http_add_header(v->rq, "Cache-Control", "no-store");
        gs_http_begin(v->rq, 200, v->stream ? "application/x-ndjson" : "application/json");
    }
}

static void write_line(viewer *v, gs_buf *out) {
    gs_buf_char(out, '\n');
    begin(v);
    if (!out->failed)
        gs_http_write(v->rq, out->data, out->len);
    gs_buf_deinit(out);
}

static void say(viewer *v, const char *status) {
    gs_buf out = {0};
    gs_buf_printf(&out, "{\"status\":\"%s\"}", status);
    write_line(v, &out);
}

/* How far the part is. Digests are a registry's, which everything there is named by; what is known
 * of other files may change while they come. */
static void say_part(viewer *v, const gs_pull *p, int i) {
    const gs_pull_part *part = &p->parts[i];
    const bool digest = p->source.kind == GS_SOURCE_REGISTRY;
    const char *slash = strrchr(part->path, '/');
    const int64_t bytes = atomic_load(&part->bytes);
    char status[400], name[80];
    gs_buf out = {0};
    gs_jsonw w;
    v->n_done = atomic_load(&part->n_done);
    snprintf(status, sizeof(status), "pulling %.300s", digest ? part->sha256 : slash + 1);
    if (digest)
        status[strlen("pulling ") + 12] = '\0';
    gs_jsonw_init(&w, &out);
    gs_jsonw_obj(&w);
    gs_jsonw_key(&w, "status");
    gs_jsonw_str(&w, status);
    if (digest) {
        snprintf(name, sizeof(name), "sha256:%s", part->sha256);
        gs_jsonw_key(&w, "digest");
        gs_jsonw_str(&w, name);
    }
    if (bytes >= 0) {
        gs_jsonw_key(&w, "total");
        gs_jsonw_int(&w, bytes);
    }
    gs_jsonw_key(&w, "completed");
    gs_jsonw_int(&w, v->n_done);
    gs_jsonw_end_obj(&w);
    write_line(v, &out);
}

static bool is_whole(const gs_pull_part *part) {
    return atomic_load(&part->bytes) >= 0 &&
           atomic_load(&part->n_done) == atomic_load(&part->bytes);
}

static void tell(viewer *v, const gs_pull *p) {
    const int phase = atomic_load(&p->phase);
    if (!v->stream)
        return;
    if (v->phase < 0)
        say(v, "pulling manifest");
    v->phase = phase;
    if (phase == GS_PULL_ASKING)
        return;
    while (v->part < p->n_parts && is_whole(&p->parts[v->part]))
        say_part(v, p, v->part++);
    if (v->part < p->n_parts && atomic_load(&p->parts[v->part].n_done) != v->n_done)
        say_part(v, p, v->part);
}

/* A failure before anything was said has its status. */
static void end(gs_api *a, viewer *v, const gs_pull *p) {
    gs_api_error e = {0};
    gs_buf out = {0};
    if (p->code == 0) {
        tell(v, p);
        if (v->stream && p->up_to_date) {
            say(v, "up to date");
        } else if (v->stream) {
            say(v, "verifying sha256 digest");
            say(v, "writing manifest");
        }
        say(v, "success");
        gs_http_end(v->rq);
    } else {
        gs_api_fail(&e, p->code == GS_ERR_CANCELLED ? GS_ERR_UNAVAILABLE : p->code, NULL, "%s",
                    p->code == GS_ERR_CANCELLED ? "The server is shutting down." : p->err);
        /* Their keys and our answers' codes are different things. */
        if (p->code == GS_ERR_UNAUTHORIZED || p->code == GS_ERR_IO)
            e.status = 502;
        if (gs_http_begun(v->rq)) {
            gs_api_error_body(GS_ERRORS_OLLAMA, &e, &out);
            write_line(v, &out);
            gs_http_end(v->rq);
        } else {
            gs_api_reply_error(v->rq, &e);
        }
    }
    a->n_live--;
    gs_free(v);
}

/* ---- Life of a pull -----------------------------------------------------------------------------
 */

static void *thread_main(void *arg) {
    pulling *x = arg;
    pthread_setname_np(pthread_self(), "gs-pull");
    gs_pull_helper_run(x->api->cfg.pull_helper, x->pull);
    uv_async_send(&x->api->wake);
    return NULL;
}

static void finish(gs_api *a, pulling *x) {
    pulling **at = &a->pulls->first;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    a->pulls->n--;
    while (x->viewers) {
        viewer *v = x->viewers;
        x->viewers = v->next;
        end(a, v, x->pull);
    }
    gs_pull_free(x->pull);
    gs_free(x);
}

static void listed(gs_files_job *j) {
    finish(j->api, j->arg);
}

/* Whoever is told of success finds the model in the list. */
static void list_anew(gs_api *a, pulling *x) {
    gs_files_job *j = a->cfg.loading ? gs_calloc(1, sizeof(*j)) : NULL;
    if (!j) {
        finish(a, x);
        return;
    }
    x->listing = true;
    j->done = listed;
    j->arg = x;
    gs_models_submit(a, j);
}

void gs_pulls_pump(gs_api *a) {
    for (pulling *x = a->pulls->first, *next; x; x = next) {
        next = x->next;
        if (x->listing || atomic_load(&x->pull->phase) != GS_PULL_ENDED)
            continue;
        pthread_join(x->thread, NULL);
        if (x->pull->code == 0)
            gs_info("pull", "%s name=%s", x->pull->up_to_date ? "up to date" : "here",
                    x->pull->name);
        else
            gs_warn("pull", "failed name=%s why=%s", x->pull->name, x->pull->err);
        x->listing = true;
        if (x->pull->code == 0)
            list_anew(a, x);
        else
            finish(a, x);
        next = a->pulls->first; /* the list may have changed */
    }
}

void gs_pulls_tick(gs_api *a) {
    for (pulling *x = a->pulls->first; x; x = x->next)
        for (viewer *v = x->viewers, *next; v; v = next) {
            next = v->next;
            tell(v, x->pull);
        }
}

/* True: rq was one of x's. */
static bool take_away(gs_api *a, pulling *x, gs_http_request *rq) {
    viewer **at = &x->viewers;
    while (*at && (*at)->rq != rq)
        at = &(*at)->next;
    viewer *v = *at;
    if (!v)
        return false;
    *at = v->next;
    gs_free(v);
    a->n_live--;
    gs_http_end(rq);
    return true;
}

bool gs_pulls_gone(gs_api *a, gs_http_request *rq) {
    for (pulling *x = a->pulls->first; x; x = x->next) {
        if (!take_away(a, x, rq))
            continue;
        if (!x->viewers)
            atomic_store(&x->pull->cancel, true);
        return true;
    }
    return false;
}

/* ---- POST /api/pull
 * ------------------------------------------------------------------------------ */

static int read_text(const json_t *body, const char *key, char *out, size_t n, gs_api_error *e) {
    const json_t *v = json_object_get(body, key);
    out[0] = '\0';
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v) || json_string_length(v) >= n ||
        json_string_length(v) != strlen(json_string_value(v)))
        return gs_api_fail(e, GS_ERR_INVALID, key, "'%s' must be a string of at most %zu bytes.",
                           key, n - 1);
    memcpy(out, json_string_value(v), json_string_length(v) + 1);
    return 0;
}

static int read_body(const gs_api *a, const json_t *body, pulling *x, gs_api_error *e) {
    if (!a->cfg.pull)
        return gs_api_fail(e, GS_ERR_UNAVAILABLE, NULL, "There is no folder for models here: %s.",
                           a->cfg.pull_reason ? a->cfg.pull_reason : "none was given");
    if (!a->cfg.pull_helper)
        return gs_api_fail(
            e, GS_ERR_FORBIDDEN, NULL,
            "This server fetches nothing: without API keys it takes models.pull = true. On its "
            "machine, "
            "`gamasot models pull NAME` brings a model, which is listed at once.");
    const char *key = json_object_get(body, "model") ? "model" : "name";
    if (read_text(body, key, x->source, sizeof(x->source), e) != 0 ||
        read_text(body, "as", x->as, sizeof(x->as), e) != 0 ||
        read_text(body, "sha256", x->sha256, sizeof(x->sha256), e) != 0)
        return e->code;
    if (!x->source[0])
        return gs_api_fail(e, GS_ERR_INVALID, "model", "'model' must say what to pull.");
    const json_t *stream = json_object_get(body, "stream");
    if (stream && !json_is_boolean(stream))
        return gs_api_fail(e, GS_ERR_INVALID, "stream", "'stream' must be true or false.");
    return 0;
}

static pulling *find(const gs_api *a, const pulling *like, const char *name, bool *other) {
    for (pulling *x = a->pulls->first; x; x = x->next) {
        if (strcmp(x->pull->name, name) != 0)
            continue;
        *other = strcmp(x->source, like->source) != 0 || strcmp(x->sha256, like->sha256) != 0;
        return x;
    }
    return NULL;
}

/* Starts it, or finds the same one under way. NULL: *e. */
static pulling *start(gs_api *a, pulling *x, gs_api_error *e) {
    gs_pull_config pc = *a->cfg.pull;
    char why[512] = "";
    bool other = false;
    pc.source = x->source;
    pc.name = x->as;
    pc.sha256 = x->sha256;
    int rc = gs_pull_create(&pc, &x->pull, why, sizeof(why));
    if (rc != 0) {
        gs_api_fail(e, rc, rc == GS_ERR_NOMEM ? NULL : "model", "%s", why);
        return NULL;
    }
    pulling *same = find(a, x, x->pull->name, &other);
    if (same && !other && !atomic_load(&same->pull->cancel))
        return same;
    if (same && !other) {
        gs_api_fail(e, GS_ERR_UNAVAILABLE, "model", "'%.80s' has just been given up.",
                    x->pull->name);
        e->retry_after_ns = GS_NS_PER_S;
    } else if (same)
        gs_api_fail(e, GS_ERR_EXISTS, "model", "'%.80s' is being pulled from elsewhere.",
                    x->pull->name);
    else if (a->pulls->n >= MAX_PULLS)
        gs_api_fail(e, GS_ERR_OVERLOADED, NULL, "%d models are being pulled already.", MAX_PULLS);
    else if (pthread_create(&x->thread, NULL, thread_main, x) != 0)
        gs_api_fail(e, GS_ERR_NOMEM, NULL, "Out of memory.");
    if (e->code != 0)
        return NULL;
    gs_info("pull", "begins name=%s", x->pull->name);
    x->next = a->pulls->first;
    a->pulls->first = x;
    a->pulls->n++;
    return x;
}

/* Takes rq. */
static void look_on(gs_api *a, pulling *x, viewer *v, gs_http_request *rq, bool stream) {
    *v = (viewer){.next = x->viewers, .rq = rq, .stream = stream, .phase = -1};
    x->viewers = v;
    a->n_live++;
}

static void refuse(gs_http_request *rq, int code, const char *why) {
    gs_api_error e = {0};
    gs_api_fail(&e, code, NULL, "%s", why);
    gs_api_reply_error(rq, &e);
}

void gs_pulls_post(gs_api *a, gs_http_request *rq, json_t *body) {
    gs_api_error e = {0};
    pulling *mine = gs_calloc(1, sizeof(*mine)), *x = NULL;
    viewer *v = gs_calloc(1, sizeof(*v));
    if (!mine || !v || a->draining) {
        gs_free(mine);
        gs_free(v);
        if (a->draining)
            refuse(rq, GS_ERR_UNAVAILABLE, "The server is shutting down.");
        else
            refuse(rq, GS_ERR_NOMEM, "Out of memory.");
        json_decref(body);
        return;
    }
    mine->api = a;
    if (read_body(a, body, mine, &e) == 0)
        x = start(a, mine, &e);
    if (x) {
        look_on(a, x, v, rq, !json_is_false(json_object_get(body, "stream")));
    } else {
        gs_free(v);
        gs_api_reply_error(rq, &e);
    }
    if (x != mine) {
        gs_pull_free(mine->pull);
        gs_free(mine);
    }
    json_decref(body);
}

/* ---- Start and end
 * ------------------------------------------------------------------------------- */

gs_pulls *gs_pulls_create(void) {
    return gs_calloc(1, sizeof(gs_pulls));
}

void gs_pulls_drain(gs_api *a) {
    for (pulling *x = a->pulls->first; x; x = x->next)
        atomic_store(&x->pull->cancel, true);
}

void gs_pulls_free(gs_api *a) {
    for (pulling *x = a->pulls ? a->pulls->first : NULL, *next; x; x = next) {
        next = x->next;
        atomic_store(&x->pull->cancel, true);
        if (!x->listing)
            pthread_join(x->thread, NULL);
        gs_pull_free(x->pull);
        gs_free(x);
    }
    gs_free(a->pulls);
}
