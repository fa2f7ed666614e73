/*
 * The configuration file (INI, by libinih) and the file of API keys.
 *
 * Debian's libinih has a fixed line buffer and tells handlers no line numbers. Lines come to it
 * through our own reader, which counts them and refuses what would be cut.
 */
#include "config/config_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"

typedef struct reader {
    gs_config *cfg;
    const char *where;
    const char *text;
    size_t len, pos;
    int line;
    int set_on[GS_CONFIG_N]; /* line that set the option, 0: none */
    int rc;                  /* the first failure; everything after it is skipped */
    char *err;
    size_t errlen;
} reader;

static void reader_fail_code(reader *r, int code, const char *what) {
    if (r->rc == GS_OK)
        r->rc = gs_fail(r->err, r->errlen, code, "%s:%d: %s", r->where, r->line, what);
}

static void reader_fail(reader *r, const char *what) {
    reader_fail_code(r, GS_ERR_INVALID, what);
}

static void reader_no_memory(reader *r) {
    reader_fail_code(r, GS_ERR_NOMEM, "out of memory");
}

/* One entry more in a list of n; NULL after a failure. */
static void *grow(reader *r, void *list, size_t n, size_t size, size_t max, const char *what) {
    char why[64];
    if (n == max) {
        snprintf(why, sizeof why, "too many %s", what);
        reader_fail(r, why);
        return NULL;
    }
    void *more = gs_realloc(list, (n + 1) * size);
    if (!more)
        reader_no_memory(r);
    return more;
}

/* As fgets. NULL at the end and after a failure, which ends the parsing. */
static char *read_line(char *out, int cap, void *stream) {
    reader *r = stream;
    if (r->rc != GS_OK || r->pos >= r->len)
        return NULL;
    r->line++;
    const char *begin = r->text + r->pos;
    const char *newline = memchr(begin, '\n', r->len - r->pos);
    size_t n = newline ? (size_t)(newline - begin) + 1 : r->len - r->pos;
    r->pos += n;
    if (n > (size_t)cap - 1) {
        reader_fail(r, "the line is too long; continue a list on further, indented lines");
        return NULL;
    }
    if (memchr(begin, '\0', n)) {
        reader_fail(r, "the line has a zero byte");
        return NULL;
    }
    memcpy(out, begin, n);
    out[n] = '\0';
    return out;
}

#define ALIAS_SECTION "alias "
#define MAX_ALIAS     40

/* The alias of that name, made when it is new; NULL after a failure. */
static gs_config_alias *alias_of(reader *r, const char *name) {
    gs_config *c = r->cfg;
    char why[256];
    for (size_t i = 0; i < c->n_aliases; i++)
        if (strcmp(c->aliases[i].name, name) == 0)
            return &c->aliases[i];
    size_t len = strlen(name);
    /* libinih cuts longer section names without a word. */
    if (len == 0 || len > MAX_ALIAS || strpbrk(name, " /\\\"'")) {
        snprintf(why, sizeof why,
                 "alias '%.60s': a name has 1 to %d characters without blanks, slashes and quotes",
                 name, MAX_ALIAS);
        reader_fail(r, why);
        return NULL;
    }
    gs_config_alias *more =
        grow(r, c->aliases, c->n_aliases, sizeof *more, GS_CONFIG_MAX_ALIASES, "aliases");
    if (!more)
        return NULL;
    c->aliases = more;
    gs_config_alias *a = &c->aliases[c->n_aliases];
    *a = (gs_config_alias){gs_strdup(name), gs_strdup(""), gs_strdup("")};
    c->n_aliases++; /* also when a string is missing: deinit frees what there is */
    if (a->name && a->model && a->class_name)
        return a;
    reader_no_memory(r);
    return NULL;
}

static void on_alias(reader *r, const char *section, const char *key, const char *value) {
    char why[256];
    const char *name = section + sizeof ALIAS_SECTION - 1;
    name += strspn(name, " ");
    gs_config_alias *a = alias_of(r, name);
    if (!a)
        return;
    char **field = strcmp(key, "model") == 0   ? &a->model
                   : strcmp(key, "class") == 0 ? &a->class_name
                                               : NULL;
    if (!field) {
        snprintf(why, sizeof why, "alias %s: unknown option '%.64s'; there are model and class",
                 name, key);
        reader_fail(r, why);
        return;
    }
    char *copy = gs_strdup(value);
    if (!copy) {
        reader_no_memory(r);
        return;
    }
    gs_free(*field);
    *field = copy;
}

#define MODEL_SECTION "model "

/* What a section of a model may set beside path and prefix_files: options of the table that own no
 * memory. */
static const gs_config_option *model_option(const char *key) {
    static const char *const sections[] = {"model", "kv", "prefix", "fake"};
    char full[96];
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        /* "context" is model.context, "kv_memory_mb" kv.memory_mb, "fake_step_ms" fake.step_ms. */
        size_t n = i > 0 ? strlen(sections[i]) : 0;
        if (n > 0 && (strncmp(key, sections[i], n) != 0 || key[n] != '_'))
            continue;
        snprintf(full, sizeof full, "%s.%.60s", sections[i], n > 0 ? key + n + 1 : key);
        const gs_config_option *o = gs_config_option_find(full);
        if (o && o->kind != GS_CONFIG_STRING && o->kind != GS_CONFIG_PATH &&
            o->kind != GS_CONFIG_LIST)
            return o;
    }
    return NULL;
}

/* The model of that name, made when it is new; NULL after a failure. */
static gs_config_model *model_of(reader *r, const char *name) {
    gs_config *c = r->cfg;
    char why[256];
    for (size_t i = 0; i < c->n_models; i++)
        if (strcmp(c->models[i].name, name) == 0)
            return &c->models[i];
    size_t len = strlen(name);
    if (len == 0 || len > MAX_ALIAS || strpbrk(name, " /\\\"'")) {
        snprintf(why, sizeof why,
                 "model '%.60s': a name has 1 to %d characters without blanks, slashes and quotes",
                 name, MAX_ALIAS);
        reader_fail(r, why);
        return NULL;
    }
    gs_config_model *more =
        grow(r, c->models, c->n_models, sizeof *more, GS_CONFIG_MAX_MODELS, "models");
    if (!more)
        return NULL;
    c->models = more;
    gs_config_model *m = &c->models[c->n_models];
    *m = (gs_config_model){.name = gs_strdup(name), .path = gs_strdup("")};
    c->n_models++;
    if (m->name && m->path)
        return m;
    reader_no_memory(r);
    return NULL;
}

static void add_setting(reader *r, gs_config_model *m, const char *key, const char *value) {
    char **keys = gs_realloc(m->keys, (m->n + 1) * sizeof *keys);
    if (keys)
        m->keys = keys;
    char **values = gs_realloc(m->values, (m->n + 1) * sizeof *values);
    if (values)
        m->values = values;
    char *k = gs_strdup(key), *v = gs_strdup(value);
    if (!keys || !values || !k || !v) {
        gs_free(k);
        gs_free(v);
        reader_no_memory(r);
        return;
    }
    m->keys[m->n] = k;
    m->values[m->n++] = v;
}

static void on_model(reader *r, const char *section, const char *key, const char *value) {
    char why[400], problem[256] = "";
    const char *name = section + sizeof MODEL_SECTION - 1;
    name += strspn(name, " ");
    gs_config_model *m = model_of(r, name);
    if (!m)
        return;
    const bool path = strcmp(key, "path") == 0, prefixes = strcmp(key, "prefix_files") == 0;
    if (path || prefixes) {
        const gs_config_option *own =
            gs_config_option_at(path ? GS_OPT_model_path : GS_OPT_prefix_files);
        void *field = path ? (void *)&m->path : (void *)&m->prefix_files;
        m->own_prefix_files |= prefixes;
        int rc = gs_config_value_parse(own, value, true, field, why, sizeof why);
        if (rc != GS_OK)
            reader_fail_code(r, rc, why);
        return;
    }
    const gs_config_option *o = model_option(key);
    gs_config trial = *r->cfg;
    if (!o) {
        snprintf(
            why, sizeof why,
            "model %s: unknown option '%.64s'; there are path, context, keep_alive_ms, pinned, "
            "prefix_files, kv_memory_mb and other numbers of [model], [kv] and [prefix]",
            name, key);
        reader_fail(r, why);
    } else if (gs_config_set(&trial, o->name, value, problem, sizeof problem) != GS_OK) {
        snprintf(why, sizeof why, "model %s: %s", name, problem);
        reader_fail(r, why);
    } else {
        add_setting(r, m, o->name, value);
    }
}

#define WORKER_SECTION "worker "

/* The worker of that name, made when it is new; NULL after a failure. */
static gs_config_worker *worker_of(reader *r, const char *name) {
    const gs_config *c = r->cfg;
    gs_config_worker w;
    char why[256] = "too many workers";
    for (size_t i = 0; i < c->n_workers; i++)
        if (strcmp(c->workers[i].name, name) == 0)
            return &c->workers[i];
    int rc = gs_config_worker_init(&w, name, why, sizeof why);
    if (rc == GS_OK)
        rc = gs_config_worker_append(r->cfg, &w);
    if (rc == GS_OK)
        return &c->workers[c->n_workers - 1];
    gs_config_worker_deinit(&w);
    if (rc == GS_ERR_NOMEM)
        reader_no_memory(r);
    else
        reader_fail(r, why);
    return NULL;
}

static void on_worker(reader *r, const char *section, const char *key, const char *value) {
    char why[400];
    const char *name = section + sizeof WORKER_SECTION - 1;
    gs_config_worker *w = worker_of(r, name + strspn(name, " "));
    int rc = w ? gs_config_worker_set(w, key, value, why, sizeof why) : GS_OK;
    if (rc != GS_OK)
        reader_fail_code(r, rc, why);
}

/* 1: go on, as libinih wants it; failures are kept in r. */
static int on_value(void *user, const char *section, const char *name, const char *value) {
    reader *r = user;
    char full[128];
    char why[512];
    if (r->rc != GS_OK)
        return 1;
    if (strncmp(section, ALIAS_SECTION, sizeof ALIAS_SECTION - 1) == 0) {
        on_alias(r, section, name, value);
        return 1;
    }
    if (strncmp(section, MODEL_SECTION, sizeof MODEL_SECTION - 1) == 0) {
        on_model(r, section, name, value);
        return 1;
    }
    if (strncmp(section, WORKER_SECTION, sizeof WORKER_SECTION - 1) == 0) {
        on_worker(r, section, name, value);
        return 1;
    }
    snprintf(full, sizeof full, "%s%s%s", section, *section ? "." : "", name);
    const gs_config_option *o = gs_config_option_find(full);
    if (!o) {
        char hint[128];
        gs_config_suggest(full, false, NULL, 0, hint, sizeof hint);
        snprintf(why, sizeof why, "unknown option '%s'%s", full, hint);
        reader_fail(r, why);
        return 1;
    }
    size_t i = (size_t)(o - gs_config_option_at(0));
    if (r->set_on[i] != 0 && o->kind != GS_CONFIG_LIST) {
        snprintf(why, sizeof why, "%s: already set on line %d", full, r->set_on[i]);
        reader_fail(r, why);
        return 1;
    }
    r->set_on[i] = r->line;
    int rc = gs_config_apply(r->cfg, i, GS_CONFIG_FROM_FILE, value, why, sizeof why);
    if (rc != GS_OK)
        reader_fail_code(r, rc, why);
    return 1;
}

int gs_config_read_text(gs_config *cfg, const char *where, const char *text, size_t len, char *err,
                        size_t errlen) {
    reader r = {.cfg = cfg,
                .where = where,
                .text = text,
                .len = len,
                .rc = GS_OK,
                .err = err,
                .errlen = errlen};
    int bad_line = ini_parse_stream(read_line, &r, on_value, &r);
    /* libinih goes on after such a line; what it broke further down is not the cause. */
    if (bad_line > 0 && (r.rc == GS_OK || bad_line < r.line)) {
        r.rc = GS_OK;
        r.line = bad_line;
        reader_fail(&r, "neither a [section] nor a name = value");
    }
    for (size_t i = 0; i < cfg->n_workers && r.rc == GS_OK; i++) {
        char why[400];
        if (gs_config_worker_check(&cfg->workers[i], why, sizeof why) != GS_OK)
            r.rc = gs_fail(err, errlen, GS_ERR_INVALID, "%s: %s", where, why);
    }
    return r.rc;
}

int gs_config_slurp(const char *path, gs_buf *out, char *err, size_t errlen) {
    struct stat st;
    int rc = GS_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang the start */
    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = gs_fail(err, errlen, GS_ERR_INVALID, "%s: not a regular file", path);
    }
    while (rc == GS_OK) {
        if (gs_buf_reserve(out, 4096) != GS_OK) {
            rc = gs_fail(err, errlen, GS_ERR_NOMEM, "%s: out of memory", path);
            break;
        }
        ssize_t n = gs_read(fd, out->data + out->len, 4096);
        if (n < 0)
            rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
        if (n <= 0)
            break;
        out->len += (size_t)n;
        if (out->len > GS_CONFIG_MAX_FILE_BYTES)
            rc = gs_fail(err, errlen, GS_ERR_TOO_LARGE, "%s: larger than %u bytes", path,
                         GS_CONFIG_MAX_FILE_BYTES);
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int gs_config_read_file(gs_config *cfg, const char *path, char *err, size_t errlen) {
    gs_buf text = {.secret = true};
    int rc = gs_config_slurp(path, &text, err, errlen);
    if (rc == GS_OK)
        rc = gs_config_read_text(cfg, path, text.data, text.len, err, errlen);
    if (rc == GS_OK) {
        cfg->file = gs_strdup(path);
        if (!cfg->file)
            rc = gs_fail(err, errlen, GS_ERR_NOMEM, "%s: out of memory", path);
    }
    gs_buf_deinit(&text);
    return rc;
}

int gs_config_reread(const gs_config *cfg, gs_config *out, char *err, size_t errlen) {
    const int rc = gs_config_init(out);
    if (rc != GS_OK)
        return gs_fail(err, errlen, rc, "out of memory");
    if (!cfg->file)
        return gs_fail(err, errlen, GS_ERR_NOT_FOUND,
                       "the server was started without a configuration file");
    return gs_config_read_file(out, cfg->file, err, errlen);
}

/* Keys are printable ASCII without blanks and commas, as HTTP headers and lists want them. */
static int add_key(gs_config *cfg, const char *where, int line, const char *key, char *err,
                   size_t errlen) {
    const gs_config_option *o = gs_config_option_at(GS_OPT_server_api_keys);
    char why[256];
    for (const char *p = key; *p; p++)
        if (*p <= ' ' || *p > '~' || *p == ',')
            return gs_fail(err, errlen, GS_ERR_INVALID,
                           "%s:%d: a key has a blank, a comma or a character beyond ASCII", where,
                           line);
    int rc = gs_config_value_parse(o, key, true, &cfg->server_api_keys, why, sizeof why);
    return rc == GS_OK ? rc : gs_fail(err, errlen, rc, "%s:%d: %s", where, line, why);
}

int gs_config_read_keys(gs_config *cfg, char *err, size_t errlen) {
    const char *path = cfg->server_api_keys_file;
    gs_buf text = {.secret = true};
    char why[256];
    struct stat st;
    if (*path == '\0')
        return GS_OK;
    int rc = gs_config_slurp(path, &text, why, sizeof why);
    if (rc == GS_OK && !gs_buf_cstr(&text))
        rc = gs_fail(why, sizeof why, GS_ERR_NOMEM, "out of memory");
    if (rc != GS_OK) {
        gs_fail(err, errlen, rc, "server.api_keys_file: %s", why);
        goto out;
    }
    if (stat(path, &st) == 0 && (st.st_mode & S_IROTH))
        gs_warn("config", "every user of this machine can read the API keys in %s", path);
    int line = 0;
    char *p = text.data;
    for (char *end = p + text.len; p < end && rc == GS_OK;) {
        char *newline = memchr(p, '\n', (size_t)(end - p));
        char *stop = newline ? newline : end;
        line++;
        *stop = '\0'; /* the terminator of gs_buf_cstr at the end */
        char *last = stop;
        if (strlen(p) != (size_t)(stop - p))
            rc =
                gs_fail(err, errlen, GS_ERR_INVALID, "%s:%d: the line has a zero byte", path, line);
        while (last > p && (last[-1] == '\r' || last[-1] == ' ' || last[-1] == '\t'))
            *--last = '\0';
        if (rc == GS_OK && *p != '\0' && *p != '#')
            rc = add_key(cfg, path, line, p, err, errlen);
        p = stop + 1;
    }
out:
    gs_buf_deinit(&text);
    return rc;
}
