#include "api/keys.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/params.h"
#include "base/err.h"
#include "base/replace.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/sys.h"
#include "sched/schedule.h"

#define MAX_FILE_BYTES (1u << 20)
#define KEYS_VERSION   1 /* of the file; an older program must not read it half */
#define HASH_PREFIX    "sha256:"

/* ---- One key ------------------------------------------------------------------------------- */

void gs_key_default(gs_key *k, const char *name) {
    *k = (gs_key){.cls = -1, .weight = 1.0f};
    /* Voice goes before everybody else and has a reserve: it takes a word of the owner. */
    k->classes = GS_CLASSES_ALL & ~(1u << GS_CLASS_VOICE);
    snprintf(k->name, sizeof(k->name), "%s", name);
    snprintf(k->person, sizeof(k->person), "%s", name);
}

void gs_key_hash(const char *secret, uint8_t out[GS_SHA256_BYTES]) {
    gs_sha256(secret, strlen(secret), out);
}

int gs_key_make_secret(gs_key *k, char out[GS_KEY_SECRET]) {
    unsigned char bytes[32];
    int rc = gs_random_bytes(bytes, sizeof(bytes));
    if (rc != 0)
        return rc;
    int at = snprintf(out, GS_KEY_SECRET, "gs-");
    for (size_t i = 0; i < sizeof(bytes); i++)
        at += snprintf(out + at, GS_KEY_SECRET - (size_t)at, "%02x", bytes[i]);
    gs_key_hash(out, k->hash);
    return 0;
}

void gs_key_person_config(const gs_key *k, gs_person_config *out) {
    *out = (gs_person_config){.weight = (double)k->weight,
                              .max_running = k->max_running,
                              .max_waiting = k->max_queued,
                              .day_ns = (int64_t)k->day_seconds * 1000000000};
}

/* ---- Addresses ----------------------------------------------------------------------------- */

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/* Returns the bits of the address alone: 32 or 128; 0: none. */
static int parse_address(const char *text, uint8_t out[16]) {
    memcpy(out, mapped, sizeof(mapped));
    if (inet_pton(AF_INET, text, out + 12) == 1)
        return 32;
    return inet_pton(AF_INET6, text, out) == 1 ? 128 : 0;
}

int gs_key_net_parse(const char *text, gs_key_net *out, char *err, size_t errlen) {
    char address[64];
    size_t n = strcspn(text, "/");
    snprintf(address, sizeof(address), "%.*s", (int)(n < 63 ? n : 63), text);
    int bits = parse_address(address, out->address), prefix = bits;
    if (bits == 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "'%.60s' is no IP address or subnet", text);
    if (text[n] == '/') {
        int used = 0;
        if (sscanf(text + n, "/%3d%n", &prefix, &used) != 1 || text[n + (size_t)used] != '\0' ||
            !isdigit((unsigned char)text[n + 1]) || prefix > bits)
            return gs_fail(err, errlen, GS_ERR_INVALID, "'%.60s': the length must be 0 to %d", text,
                           bits);
    }
    out->prefix = prefix + (bits == 32 ? 96 : 0);
    return 0;
}

void gs_key_net_text(const gs_key_net *net, char *out, size_t n) {
    char address[INET6_ADDRSTRLEN] = "";
    bool v4 = net->prefix >= 96 && memcmp(net->address, mapped, sizeof(mapped)) == 0;
    int bits = v4 ? net->prefix - 96 : net->prefix;
    inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? net->address + 12 : net->address, address,
              sizeof(address));
    if (bits == (v4 ? 32 : 128))
        snprintf(out, n, "%s", address);
    else
        snprintf(out, n, "%s/%d", address, bits);
}

static bool net_holds(const gs_key_net *net, const uint8_t address[16]) {
    int whole = net->prefix / 8, rest = net->prefix % 8;
    if (memcmp(net->address, address, (size_t)whole) != 0)
        return false;
    return rest == 0 || (net->address[whole] ^ address[whole]) >> (8 - rest) == 0;
}

/* ---- Search -------------------------------------------------------------------------------- */

const gs_key *gs_keys_by_secret(const gs_keys *keys, const char *secret) {
    uint8_t hash[GS_SHA256_BYTES];
    const gs_key *found = NULL;
    if (!secret)
        return NULL;
    gs_key_hash(secret, hash);
    for (int32_t i = 0; i < keys->n; i++) {
        unsigned diff = 0;
        for (size_t b = 0; b < sizeof(hash); b++)
            diff |= (unsigned)(hash[b] ^ keys->items[i].hash[b]);
        if (diff == 0)
            found = &keys->items[i];
    }
    return found;
}

const gs_key *gs_keys_by_address(const gs_keys *keys, const char *peer) {
    uint8_t address[16];
    const gs_key *found = NULL;
    int32_t best = -1;
    if (parse_address(peer, address) == 0)
        return NULL;
    for (int32_t i = 0; i < keys->n; i++) {
        for (int32_t k = 0; k < keys->items[i].n_nets; k++) {
            const gs_key_net *net = &keys->items[i].nets[k];
            if (net->prefix > best && net_holds(net, address)) {
                best = net->prefix;
                found = &keys->items[i];
            }
        }
    }
    return found;
}

/* ---- The list ------------------------------------------------------------------------------ */

void gs_keys_deinit(gs_keys *k) {
    gs_free(k->items);
    *k = (gs_keys){0};
}

int gs_keys_add(gs_keys *keys, const gs_key *k, char *err, size_t errlen) {
    for (int32_t i = 0; i < keys->n; i++) {
        if (strcmp(keys->items[i].name, k->name) == 0)
            return gs_fail(err, errlen, GS_ERR_EXISTS, "there is a key '%s' already", k->name);
    }
    if (keys->n == GS_MAX_KEYS)
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "there are %d keys already", GS_MAX_KEYS);
    gs_key *more = gs_realloc(keys->items, (size_t)(keys->n + 1) * sizeof(*more));
    if (!more)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    keys->items = more;
    keys->items[keys->n++] = *k;
    return 0;
}

int gs_keys_remove(gs_keys *keys, const char *name) {
    for (int32_t i = 0; i < keys->n; i++) {
        if (strcmp(keys->items[i].name, name) != 0)
            continue;
        keys->n--;
        memmove(&keys->items[i], &keys->items[i + 1], (size_t)(keys->n - i) * sizeof(*keys->items));
        return 0;
    }
    return GS_ERR_NOT_FOUND;
}

/* ---- Reading ------------------------------------------------------------------------------- */

#define AT(member) offsetof(gs_key, member)

static const gs_field fields[] = {
    GS_ROW("name", TEXT, 1, AT(name), 0, GS_MAX_KEY_NAME, NULL),
    GS_ROW("person", TEXT, 1, AT(person), 0, GS_MAX_KEY_NAME, NULL),
    GS_ROW("cache_scope", TEXT, 1, AT(cache_scope), 0, GS_MAX_KEY_NAME, NULL),
    GS_ROW("weight", FLOAT, 1, AT(weight), 0.001, 1000, NULL),
    GS_ROW("max_running", INT, 1, AT(max_running), 0, 1000000, NULL),
    GS_ROW("max_queued", INT, 1, AT(max_queued), 0, 1000000, NULL),
    GS_ROW("schedule", TEXT, 1, AT(schedule), 0, GS_MAX_KEY_SCHEDULE, NULL),
    GS_ROW("day_seconds", INT, 1, AT(day_seconds), 0, 1000000, NULL),
    GS_ROW("trusted_proxy", BOOL, 1, AT(trusted_proxy), 0, 0, NULL),
    GS_ROW("admin", BOOL, 1, AT(admin), 0, 0, NULL),
    GS_ROWS_END,
};

static bool good_name(const char *s) {
    for (; *s; s++) {
        if (!isalnum((unsigned char)*s) && !strchr("._-", *s))
            return false;
    }
    return true;
}

static bool printable(const char *s) {
    for (; *s; s++) {
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return false;
    }
    return true;
}

static int read_class(const json_t *v, int32_t *out, char *err, size_t errlen) {
    const char *name = json_string_value(v);
    int cls = name ? gs_class_parse(name) : -1;
    if (cls < 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "'%.32s' is no class", name ? name : "?");
    *out = cls;
    return 0;
}

static int read_classes(const json_t *key, gs_key *k, char *err, size_t errlen) {
    const json_t *cls = gs_given(key, "class"), *list = json_object_get(key, "classes");
    if (cls && read_class(cls, &k->cls, err, errlen) != 0)
        return GS_ERR_INVALID;
    if (list && json_typeof(list) != JSON_ARRAY)
        return gs_fail(err, errlen, GS_ERR_INVALID, "classes must be an array");
    if (list)
        k->classes = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        int32_t one = 0;
        if (read_class(json_array_get(list, i), &one, err, errlen) != 0)
            return GS_ERR_INVALID;
        k->classes |= 1u << one;
    }
    if (k->cls >= 0)
        k->classes |= 1u << k->cls;
    return 0;
}

static int read_nets(const json_t *key, gs_key *k, char *err, size_t errlen) {
    const json_t *list = json_object_get(key, "addresses");
    if (list && json_typeof(list) != JSON_ARRAY)
        return gs_fail(err, errlen, GS_ERR_INVALID, "addresses must be an array");
    if (json_array_size(list) > GS_MAX_KEY_NETS)
        return gs_fail(err, errlen, GS_ERR_INVALID, "more than %d addresses", GS_MAX_KEY_NETS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (!text)
            return gs_fail(err, errlen, GS_ERR_INVALID, "addresses must be strings");
        if (gs_key_net_parse(text, &k->nets[k->n_nets], err, errlen) != 0)
            return GS_ERR_INVALID;
        k->n_nets++;
    }
    return 0;
}

static int hex_digit(char c) {
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static int read_hash(const json_t *key, gs_key *k, char *err, size_t errlen) {
    const char *s = json_string_value(json_object_get(key, "hash"));
    const size_t n = sizeof(HASH_PREFIX) - 1;
    bool good = s && strncmp(s, HASH_PREFIX, n) == 0 && strlen(s) == n + 2 * GS_SHA256_BYTES;
    for (size_t i = 0; good && i < GS_SHA256_BYTES; i++) {
        int hi = hex_digit(s[n + 2 * i]), lo = hex_digit(s[n + 2 * i + 1]);
        good = hi >= 0 && lo >= 0;
        k->hash[i] = (uint8_t)(hi * 16 + lo);
    }
    return good ? 0
                : gs_fail(err, errlen, GS_ERR_INVALID,
                          "hash must be " HASH_PREFIX " and %d hex digits", 2 * GS_SHA256_BYTES);
}

static int read_key(const json_t *v, gs_key *k, char *err, size_t errlen) {
    gs_api_error e = {0};
    const json_t *created = json_object_get(v, "created");
    gs_key_default(k, "");
    if (json_typeof(v) != JSON_OBJECT)
        return gs_fail(err, errlen, GS_ERR_INVALID, "is no object");
    if (gs_fields_read(fields, 1, v, k, &e) != 0)
        return gs_fail(err, errlen, GS_ERR_INVALID, "%s", e.message);
    if (k->name[0] == '\0' || !good_name(k->name))
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "the name must be letters, digits, '.', '_' and '-'");
    gs_schedule schedule;
    char why[256];
    if (gs_schedule_parse(k->schedule, &schedule, why, sizeof(why)) != GS_OK)
        return gs_fail(err, errlen, GS_ERR_INVALID, "schedule: %s", why);
    if (!printable(k->person) || !printable(k->cache_scope))
        return gs_fail(err, errlen, GS_ERR_INVALID, "control characters in person or cache_scope");
    if (k->person[0] == '\0')
        snprintf(k->person, sizeof(k->person), "%s", k->name);
    k->created_s = json_integer_value(created);
    int rc = read_classes(v, k, err, errlen);
    if (rc == 0)
        rc = read_nets(v, k, err, errlen);
    return rc == 0 ? read_hash(v, k, err, errlen) : rc;
}

int gs_keys_parse(const char *where, const char *text, size_t n, gs_keys *out, char *err,
                  size_t errlen) {
    json_error_t je;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    const json_t *list = json_object_get(root, "keys");
    const json_int_t version = json_integer_value(json_object_get(root, "version"));
    int rc = 0;
    *out = (gs_keys){0};
    if (!root)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "%s: no valid JSON in line %d, column %d", where,
                       je.line, je.column);
    if (version > KEYS_VERSION)
        rc = gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                     "%s was written by a newer gamasot (version %lld, this one knows %d)", where,
                     (long long)version, KEYS_VERSION);
    else if (!json_is_array(list))
        rc = gs_fail(err, errlen, GS_ERR_FORMAT, "%s: 'keys' must be an array", where);
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        gs_key k;
        char why[400] = "";
        rc = read_key(v, &k, why, sizeof(why));
        if (rc == 0)
            rc = gs_keys_add(out, &k, why, sizeof(why));
        if (rc != 0) {
            const char *name = json_string_value(json_object_get(v, "name"));
            gs_fail(err, errlen, rc, "%s: keys[%zu] (%.64s): %s", where, i, name ? name : "?", why);
        }
    }
    if (rc != 0)
        gs_keys_deinit(out);
    json_decref(root);
    return rc;
}

int gs_keys_load(const char *path, gs_keys *out, char *err, size_t errlen) {
    struct stat st;
    gs_buf text = {0};
    int rc = 0;
    *out = (gs_keys){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 || fstat(fd, &st) != 0)
        rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
    else if (!S_ISREG(st.st_mode))
        rc = gs_fail(err, errlen, GS_ERR_INVALID, "%s: not a regular file", path);
    else if (st.st_size > (off_t)MAX_FILE_BYTES)
        rc = gs_fail(err, errlen, GS_ERR_TOO_LARGE, "%s: larger than %u bytes", path,
                     MAX_FILE_BYTES);
    while (rc == 0) {
        if (gs_buf_reserve(&text, 4096) != 0) {
            rc = gs_fail(err, errlen, GS_ERR_NOMEM, "%s: out of memory", path);
            break;
        }
        ssize_t n = gs_read(fd, text.data + text.len, 4096);
        if (n < 0)
            rc = gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path, gs_errno_text(errno));
        if (n <= 0 || text.len > MAX_FILE_BYTES)
            break;
        text.len += (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    if (rc == 0)
        rc = gs_keys_parse(path, text.data ? text.data : "", text.len, out, err, errlen);
    gs_buf_deinit(&text);
    return rc;
}

/* ---- Writing ------------------------------------------------------------------------------- */

static void key_str(gs_jsonw *w, const char *key, const char *value) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, value);
}

static void key_int(gs_jsonw *w, const char *key, int64_t value) {
    gs_jsonw_key(w, key);
    gs_jsonw_int(w, value);
}

static void key_bool(gs_jsonw *w, const char *key, bool value) {
    gs_jsonw_key(w, key);
    gs_jsonw_bool(w, value);
}

static void write_lists(gs_jsonw *w, const gs_key *k) {
    gs_jsonw_key(w, "classes");
    gs_jsonw_arr(w);
    for (int c = 0; c < GS_CLASS_COUNT; c++) {
        if (k->classes & 1u << c)
            gs_jsonw_str(w, gs_class_name((gs_class)c));
    }
    gs_jsonw_end_arr(w);
    gs_jsonw_key(w, "addresses");
    gs_jsonw_arr(w);
    for (int32_t i = 0; i < k->n_nets; i++) {
        char text[64];
        gs_key_net_text(&k->nets[i], text, sizeof(text));
        gs_jsonw_str(w, text);
    }
    gs_jsonw_end_arr(w);
}

static void write_key(gs_jsonw *w, const gs_key *k) {
    char hash[sizeof(HASH_PREFIX) + 2 * GS_SHA256_BYTES];
    int at = snprintf(hash, sizeof(hash), HASH_PREFIX);
    for (size_t i = 0; i < GS_SHA256_BYTES; i++)
        at += snprintf(hash + at, sizeof(hash) - (size_t)at, "%02x", k->hash[i]);
    gs_jsonw_obj(w);
    key_str(w, "name", k->name);
    key_str(w, "person", k->person);
    key_str(w, "hash", hash);
    if (k->cls >= 0)
        key_str(w, "class", gs_class_name((gs_class)k->cls));
    write_lists(w, k);
    gs_jsonw_key(w, "weight");
    gs_jsonw_num(w, (double)k->weight);
    key_int(w, "max_running", k->max_running);
    key_int(w, "max_queued", k->max_queued);
    key_int(w, "day_seconds", k->day_seconds);
    key_str(w, "schedule", k->schedule);
    key_bool(w, "trusted_proxy", k->trusted_proxy);
    key_bool(w, "admin", k->admin);
    key_str(w, "cache_scope", k->cache_scope);
    key_int(w, "created", k->created_s);
    gs_jsonw_end_obj(w);
}

int gs_keys_write(const gs_keys *keys, gs_buf *out) {
    gs_jsonw w;
    gs_buf_printf(out, "{\"version\":%d,\"keys\":[", KEYS_VERSION);
    for (int32_t i = 0; i < keys->n; i++) {
        gs_buf_str(out, i > 0 ? ",\n" : "\n");
        gs_jsonw_init(&w, out);
        write_key(&w, &keys->items[i]);
    }
    gs_buf_str(out, "\n]}\n");
    return out->failed ? GS_ERR_NOMEM : 0;
}

int gs_keys_save(const char *path, const gs_keys *k, char *err, size_t errlen) {
    gs_buf text = {0};
    int rc = gs_keys_write(k, &text);
    rc = rc == 0 ? gs_replace_file(path, text.data, text.len, err, errlen)
                 : gs_fail(err, errlen, rc, "%s: can't be written", path);
    gs_buf_deinit(&text);
    return rc;
}
