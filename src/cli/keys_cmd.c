/* gamasot keys add|list|revoke: the file of API keys. A running server notices by itself. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "api/keys.h"
#include "base/clock.h"
#include "base/err.h"
#include "cli/cli.h"
#include "config/dirs.h"
#include "sched/schedule.h"

// clang-format off
enum { F_PERSON, F_CLASS, F_CLASSES, F_WEIGHT, F_RUNNING, F_QUEUED, F_DAY, F_SCHEDULE, F_SCOPE, F_ADDRESS,
       F_PROXY, F_ADMIN, N_FLAGS };

static const gs_config_flag flag_table[N_FLAGS] = {
    {"person", "NAME", "Whose key it is: several keys of one person share an account. Default: the key's name.", NULL},
    {"class", "CLASS", "Class of requests that give no other reason: voice, chat, completion, document, utility, background.", NULL},
    {"classes", "A,B,...", "Classes that it may ask for. Default: all but voice, and its own.", NULL},
    {"weight", "N", "Device time relative to other persons when all want some. Default: 1.", NULL},
    {"max-running", "N", "Sequences of the person that run at the same time. Default: no limit.", NULL},
    {"max-queued", "N", "Sequences of the person that wait. Default: no limit.", NULL},
    {"day-seconds", "N", "Device time of the person in 24 hours. Default: no limit.", NULL},
    {"schedule", "HOURS", "When the person's background may run, such as '22:00-07:00'. Default: always.", NULL},
    {"cache-scope", "NAME", "Share the prefix cache with all keys of that scope. Default: with the person alone.", NULL},
    {"address", "IP,NET,...", "Addresses and subnets that need no key and count as this one.", NULL},
    {"trusted-proxy", NULL, "It may say for whom it asks: Open WebUI's X-OpenWebUI-User-Id, X-Gamasot-User, 'user'.", NULL},
    {"admin", NULL, "It may change the server.", NULL},
};
// clang-format on

int gs_keys_path(const gs_config *cfg, char *out, size_t outlen, char *err, size_t errlen) {
    if (cfg->server_keys_file[0] != '\0') {
        if (snprintf(out, outlen, "%s", cfg->server_keys_file) >= (int)outlen)
            return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "server.keys_file: too long");
        return 0;
    }
    int rc = gs_dirs_state(out, outlen, err, errlen);
    size_t n = rc == 0 ? strlen(out) : 0;
    if (rc == 0 && n + sizeof("/keys.json") > outlen)
        rc = gs_fail(err, errlen, GS_ERR_TOO_LARGE, "the state folder's path is too long");
    if (rc == 0)
        memcpy(out + n, "/keys.json", sizeof("/keys.json"));
    return rc;
}

/* ---- add ----------------------------------------------------------------------------------- */

static int whole(const gs_config_flag *f, int32_t *out, char *err, size_t errlen) {
    char *end = NULL;
    if (!f->value)
        return 0;
    errno = 0;
    long v = strtol(f->value, &end, 10);
    if (end == f->value || *end || errno || v < 0 || v > 1000000)
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "--%s: '%.40s' is no whole number up to 1000000", f->name, f->value);
    *out = (int32_t)v;
    return 0;
}

static int text(const gs_config_flag *f, char out[GS_MAX_KEY_NAME + 1], char *err, size_t errlen) {
    if (!f->value)
        return 0;
    if (strlen(f->value) > GS_MAX_KEY_NAME)
        return gs_fail(err, errlen, GS_ERR_INVALID, "--%s: longer than %d bytes", f->name,
                       GS_MAX_KEY_NAME);
    memcpy(out, f->value, strlen(f->value) + 1);
    return 0;
}

/* The next item of a list with commas, or NULL. */
static const char *item(const char **at, char *out, size_t n) {
    while (**at == ',' || **at == ' ')
        (*at)++;
    size_t len = strcspn(*at, ", ");
    if (len == 0)
        return NULL;
    snprintf(out, n, "%.*s", (int)(len < n ? len : n - 1), *at);
    *at += len;
    return out;
}

static int classes(const gs_config_flag *f, gs_key *k, char *err, size_t errlen) {
    const gs_config_flag *own = &f[F_CLASS], *may = &f[F_CLASSES];
    char name[64];
    if (own->value && (k->cls = gs_class_parse(own->value)) < 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "--class: '%.40s' is no class", own->value);
    if (may->value)
        k->classes = 0;
    for (const char *at = may->value; at && item(&at, name, sizeof(name));) {
        int c = gs_class_parse(name);
        if (c < 0)
            return gs_fail(err, errlen, GS_ERR_INVALID, "--classes: '%.40s' is no class", name);
        k->classes |= 1u << c;
    }
    if (k->cls >= 0)
        k->classes |= 1u << k->cls;
    return 0;
}

static int addresses(const gs_config_flag *f, gs_key *k, char *err, size_t errlen) {
    char one[64], why[200];
    for (const char *at = f->value; at && item(&at, one, sizeof(one));) {
        if (k->n_nets == GS_MAX_KEY_NETS)
            return gs_fail(err, errlen, GS_ERR_INVALID, "--address: more than %d", GS_MAX_KEY_NETS);
        if (gs_key_net_parse(one, &k->nets[k->n_nets], why, sizeof(why)) != 0)
            return gs_fail(err, errlen, GS_ERR_INVALID, "--address: %s", why);
        k->n_nets++;
    }
    return 0;
}

static int weight(const gs_config_flag *f, gs_key *k, char *err, size_t errlen) {
    char *end = NULL;
    if (!f->value)
        return 0;
    k->weight = strtof(f->value, &end);
    if (end == f->value || *end || !(k->weight >= 0.001f && k->weight <= 1000.0f))
        return gs_fail(err, errlen, GS_ERR_INVALID, "--weight: '%.40s' is not 0.001 to 1000",
                       f->value);
    return 0;
}

static int schedule(const gs_config_flag *f, gs_key *k, char *err, size_t errlen) {
    gs_schedule parsed;
    char why[200];
    if (!f->value)
        return 0;
    if (strlen(f->value) > GS_MAX_KEY_SCHEDULE)
        return gs_fail(err, errlen, GS_ERR_INVALID, "--schedule: longer than %d bytes",
                       GS_MAX_KEY_SCHEDULE);
    if (gs_schedule_parse(f->value, &parsed, why, sizeof(why)) != 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "--schedule: %s", why);
    memcpy(k->schedule, f->value, strlen(f->value) + 1);
    return 0;
}

static int key_from_flags(const gs_config_flag *f, gs_key *k, char *err, size_t errlen) {
    int rc = text(&f[F_PERSON], k->person, err, errlen);
    rc = rc == 0 ? text(&f[F_SCOPE], k->cache_scope, err, errlen) : rc;
    rc = rc == 0 ? classes(f, k, err, errlen) : rc;
    rc = rc == 0 ? weight(&f[F_WEIGHT], k, err, errlen) : rc;
    rc = rc == 0 ? whole(&f[F_RUNNING], &k->max_running, err, errlen) : rc;
    rc = rc == 0 ? whole(&f[F_QUEUED], &k->max_queued, err, errlen) : rc;
    rc = rc == 0 ? whole(&f[F_DAY], &k->day_seconds, err, errlen) : rc;
    rc = rc == 0 ? schedule(&f[F_SCHEDULE], k, err, errlen) : rc;
    rc = rc == 0 ? addresses(&f[F_ADDRESS], k, err, errlen) : rc;
    k->trusted_proxy = f[F_PROXY].value != NULL;
    k->admin = f[F_ADMIN].value != NULL;
    k->created_s = gs_wall_s();
    return rc;
}

/* What would not be read again is not written: the file's own reader has the last word. */
static int check(const gs_keys *keys, char *err, size_t errlen) {
    gs_buf out = {0};
    gs_keys again;
    int rc = gs_keys_write(keys, &out);
    if (rc == 0)
        rc = gs_keys_parse("keys", out.data, out.len, &again, err, errlen);
    if (rc == 0)
        gs_keys_deinit(&again);
    gs_buf_deinit(&out);
    return rc;
}

static int add(const char *path, gs_keys *keys, const char *name, const gs_config_flag *flags,
               char *err, size_t errlen) {
    gs_key k;
    char secret[GS_KEY_SECRET];
    if (strlen(name) > GS_MAX_KEY_NAME)
        return gs_fail(err, errlen, GS_ERR_INVALID, "the name is longer than %d bytes",
                       GS_MAX_KEY_NAME);
    gs_key_default(&k, name);
    int rc = key_from_flags(flags, &k, err, errlen);
    if (rc == 0 && gs_key_make_secret(&k, secret) != 0)
        rc = gs_fail(err, errlen, GS_ERR_IO, "no random numbers to be had");
    rc = rc == 0 ? gs_keys_add(keys, &k, err, errlen) : rc;
    rc = rc == 0 ? check(keys, err, errlen) : rc;
    rc = rc == 0 ? gs_keys_save(path, keys, err, errlen) : rc;
    if (rc != 0)
        return rc;
    printf("%s\n", secret);
    fprintf(stderr, "That is the key of '%s'. It is not stored and can't be shown again.\n", name);
    return 0;
}

/* ---- list ---------------------------------------------------------------------------------- */

static void add_limit(gs_buf *b, const char *name, int32_t v) {
    if (v > 0)
        gs_buf_printf(b, " %s=%d", name, (int)v);
}

static void list_one(const gs_key *k) {
    gs_buf b = {0};
    gs_buf_printf(&b, "%-16s %-16s %-11s", k->name, k->person,
                  k->cls >= 0 ? gs_class_name((gs_class)k->cls) : "-");
    gs_buf_str(&b, " may=");
    for (int c = 0, n = 0; c < GS_CLASS_COUNT; c++) {
        if (k->classes & 1u << c)
            gs_buf_printf(&b, "%s%s", n++ ? "," : "", gs_class_name((gs_class)c));
    }
    if (k->weight != 1.0f)
        gs_buf_printf(&b, " weight=%g", (double)k->weight);
    add_limit(&b, "max-running", k->max_running);
    add_limit(&b, "max-queued", k->max_queued);
    add_limit(&b, "day-seconds", k->day_seconds);
    if (k->schedule[0])
        gs_buf_printf(&b, " schedule='%s'", k->schedule);
    if (k->cache_scope[0])
        gs_buf_printf(&b, " cache-scope=%s", k->cache_scope);
    for (int32_t i = 0; i < k->n_nets; i++) {
        char net[64];
        gs_key_net_text(&k->nets[i], net, sizeof(net));
        gs_buf_printf(&b, "%s%s", i ? "," : " address=", net);
    }
    gs_buf_printf(&b, "%s%s", k->trusted_proxy ? " trusted-proxy" : "", k->admin ? " admin" : "");
    printf("%.*s\n", (int)b.len, b.data ? b.data : "");
    gs_buf_deinit(&b);
}

static void list(const gs_keys *keys) {
    if (keys->n > 0)
        printf("%-16s %-16s %-11s\n", "NAME", "PERSON", "CLASS");
    for (int32_t i = 0; i < keys->n; i++)
        list_one(&keys->items[i]);
}

/* ---- The command --------------------------------------------------------------------------- */

static int change(const char *what, const char *path, const char *name, const gs_config_flag *flags,
                  char *err, size_t errlen) {
    gs_keys keys;
    int rc = gs_keys_load(path, &keys, err, errlen);
    if (rc != 0)
        return rc;
    if (strcmp(what, "add") == 0) {
        rc = add(path, &keys, name, flags, err, errlen);
    } else if (gs_keys_remove(&keys, name) != 0) {
        rc = gs_fail(err, errlen, GS_ERR_NOT_FOUND, "there is no key '%.64s'", name);
    } else {
        rc = gs_keys_save(path, &keys, err, errlen);
    }
    gs_keys_deinit(&keys);
    return rc;
}

/* Two `keys add` at the same time: one after the other. */
static int locked_change(const char *what, const char *path, const char *name,
                         const gs_config_flag *flags, char *err, size_t errlen) {
    char lock[GS_DIRS_MAX_PATH + 8];
    snprintf(lock, sizeof(lock), "%s.lock", path);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || flock(fd, LOCK_EX) != 0) {
        int rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", lock, gs_errno_text(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    int rc = change(what, path, name, flags, err, errlen);
    close(fd);
    return rc;
}

static int run(const gs_config *cfg, const gs_config_flag *flags, char *err, size_t errlen) {
    char path[GS_DIRS_MAX_PATH];
    const char *what = cfg->n_positional > 0 ? cfg->positional[0] : "";
    bool is_list = strcmp(what, "list") == 0;
    if (!(is_list && cfg->n_positional == 1) &&
        !((strcmp(what, "add") == 0 || strcmp(what, "revoke") == 0) && cfg->n_positional == 2))
        return gs_fail(err, errlen, GS_ERR_INVALID, "say 'add NAME', 'list' or 'revoke NAME'");
    int rc = gs_keys_path(cfg, path, sizeof(path), err, errlen);
    if (rc != 0 || !is_list)
        return rc != 0 ? rc : locked_change(what, path, cfg->positional[1], flags, err, errlen);
    gs_keys keys;
    rc = gs_keys_load(path, &keys, err, errlen);
    if (rc == 0)
        list(&keys);
    gs_keys_deinit(&keys);
    return rc;
}

int gs_cmd_keys(int argc, char **argv) {
    gs_config cfg;
    gs_config_flag flags[N_FLAGS];
    char err[640] = "";
    memcpy(flags, flag_table, sizeof(flags));
    int rc =
        gs_cli_config(&cfg, gs_cli_command("keys"), argc, argv, flags, N_FLAGS, err, sizeof(err));
    if (rc == 0)
        rc = run(&cfg, flags, err, sizeof(err));
    gs_config_deinit(&cfg);
    if (rc < 0)
        fprintf(stderr, "gamasot: %s\n", err[0] ? err : gs_err_text(rc));
    return rc < 0 ? 2 : 0;
}
