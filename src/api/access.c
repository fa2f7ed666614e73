/*
 * Who may ask, and from where. Browsers of foreign pages and rebound host names are turned away
 * before anything is parsed; then a key, or an address that is bound to one, opens.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/api_impl.h"
#include "base/err.h"
#include "base/log.h"

/* ---- Host and Origin ----------------------------------------------------------------------- */

/* "name", "name:port", "[::1]" or "[::1]:port", up to a slash -> the name alone. Else "". */
static void host_name(const char *in, char *out, size_t n) {
    size_t len = strcspn(in, "/");
    const char *end = in + len, *rest = end;
    if (*in == '[') {
        in++;
        len = strcspn(in, "]/");
        rest = in + len < end ? in + len + 1 : in;
    } else {
        const char *colon = memchr(in, ':', len);
        if (colon && !memchr(colon + 1, ':', len - (size_t)(colon - in) - 1)) {
            len = (size_t)(colon - in);
            rest = colon;
        }
    }
    const bool port = *rest == ':' && strspn(rest + 1, "0123456789") == (size_t)(end - rest) - 1;
    snprintf(out, n, "%.*s", rest == end || port ? (int)(len < n ? len : n - 1) : 0, in);
}

static bool is_address(const char *s) {
    unsigned char buf[16];
    return inet_pton(AF_INET, s, buf) == 1 || inet_pton(AF_INET6, s, buf) == 1;
}

static bool in_list(const char *s, const char *const *list, int n) {
    for (int i = 0; i < n; i++) {
        if (strcasecmp(s, list[i]) == 0 || strcmp(list[i], "*") == 0)
            return true;
    }
    return false;
}

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && strcasecmp(s + n - t, tail) == 0;
}

/* A name that a foreign DNS server could point here (rebinding) is refused; literal addresses and
 * names that only this machine or the home's own resolver answers are fine. */
static bool host_ok(const gs_api *a, const char *header) {
    char name[256], own[256] = "";
    host_name(header, name, sizeof(name));
    if (is_address(name) || strcasecmp(name, "localhost") == 0 || ends_with(name, ".localhost"))
        return true;
    if (gethostname(own, sizeof(own) - 1) == 0 && own[0] && strcasecmp(name, own) == 0)
        return true;
    return in_list(name, a->cfg.allowed_hosts, a->cfg.n_allowed_hosts);
}

/* Programs with a web view say so by their scheme, which no web page can have. */
static bool is_app(const char *origin) {
    static const char *const schemes[] = {"app://", "tauri://", "vscode-webview://",
                                          "capacitor://"};
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        if (strncmp(origin, schemes[i], strlen(schemes[i])) == 0)
            return true;
    }
    return false;
}

/* Where the page is from that sends this; old browsers send a plain form without an origin, but
 * with the address of its page. NULL: no page. */
static const char *page_origin(const gs_http_request *rq, char *buf, size_t n) {
    const char *origin = gs_http_header(rq, "origin"), *method = gs_http_method(rq);
    const char *page = gs_http_header(rq, "referer");
    if (origin || !page || strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
        return origin;
    const char *host = strstr(page, "://");
    const size_t len = host ? (size_t)(host + 3 - page) + strcspn(host + 3, "/?#") : strlen(page);
    snprintf(buf, n, "%.*s", (int)(len < n ? len : n - 1), page);
    return buf;
}

bool gs_api_origin_ok(const gs_api *a, const gs_http_request *rq) {
    char buf[512];
    const char *origin = page_origin(rq, buf, sizeof(buf));
    const char *host = gs_http_header(rq, "host");
    if (!origin)
        return true;
    if (is_app(origin) || in_list(origin, a->cfg.allowed_origins, a->cfg.n_allowed_origins))
        return true;
    const char *rest = strstr(origin, "://");
    if (!rest ||
        (strncasecmp(origin, "http://", 7) != 0 && strncasecmp(origin, "https://", 8) != 0))
        return false;
    rest += 3;
    char name[256];
    host_name(rest, name, sizeof(name));
    if (strcasecmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0 ||
        strcmp(name, "::1") == 0 || ends_with(name, ".localhost"))
        return true;
    return host && host_ok(a, host) && strcasecmp(rest, host) == 0;
}

/* ---- Keys ---------------------------------------------------------------------------------- */

static int base64_digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* The password of "user:password" in base64, which is where some clients put a key. */
static const char *basic_password(const char *text, char *out, size_t n) {
    unsigned bits = 0;
    size_t len = 0;
    int n_bits = 0;
    for (; *text && *text != '='; text++) {
        int d = base64_digit(*text);
        if (d < 0)
            return NULL;
        bits = bits << 6 | (unsigned)d;
        n_bits += 6;
        if (n_bits < 8)
            continue;
        n_bits -= 8;
        if (len + 1 >= n)
            return NULL;
        out[len++] = (char)(bits >> n_bits & 0xff);
    }
    out[len] = '\0';
    const char *colon = strchr(out, ':');
    return colon ? colon + 1 : NULL;
}

static const char *secret_of(const gs_http_request *rq, char *buf, size_t n) {
    const char *h = gs_http_header(rq, "authorization");
    if (h && strncasecmp(h, "Bearer ", 7) == 0)
        return h + 7 + strspn(h + 7, " ");
    const char *basic = h && strncasecmp(h, "Basic ", 6) == 0
                            ? basic_password(h + 6 + strspn(h + 6, " "), buf, n)
                            : NULL;
    return basic ? basic : gs_http_header(rq, "x-api-key");
}

const gs_key *gs_api_key(const gs_api *a, const gs_http_request *rq) {
    char buf[512];
    const gs_key *k = gs_keys_by_secret(&a->keys.all, secret_of(rq, buf, sizeof(buf)));
    explicit_bzero(buf, sizeof(buf));
    return k ? k : gs_keys_by_address(&a->keys.all, gs_http_peer(rq));
}

bool gs_api_has_keys(const gs_api *a) {
    return a->keys.needed;
}

int gs_api_check_access(gs_api *a, const gs_http_request *rq, gs_api_error *e) {
    const char *host = gs_http_header(rq, "host");
    if (host && !host_ok(a, host))
        return gs_api_fail(e, GS_ERR_FORBIDDEN, NULL,
                           "Host '%.80s' is not allowed; add it to server.allowed_hosts.", host);
    if (!gs_api_origin_ok(a, rq))
        return gs_api_fail(e, GS_ERR_FORBIDDEN, NULL,
                           "This origin is not allowed; add it to server.allowed_origins.");
    if (a->keys.needed && !gs_api_key(a, rq)) {
        gs_api_fail(e, GS_ERR_UNAUTHORIZED, NULL,
                    "A valid API key is needed: send 'Authorization: Bearer KEY'.");
        e->name = "invalid_api_key";
        return e->code;
    }
    return 0;
}

int gs_api_check_admin(gs_api *a, const gs_http_request *rq, gs_api_error *e) {
    const gs_key *k = gs_api_key(a, rq);
    if (k ? k->admin : !a->keys.needed && gs_peer_is_loopback(gs_http_peer(rq)))
        return 0;
    return gs_api_fail(e, GS_ERR_FORBIDDEN, NULL,
                       "This takes an admin's key (gamasot keys add "
                       "NAME --admin).");
}

/* ---- The ring ------------------------------------------------------------------------------ */

/* Of the options, whose text is not kept: a second time the hashes are all there is. */
static int add_fixed(const gs_api *a, gs_keys *keys, char *err, size_t errlen) {
    for (int32_t i = 0; i < a->keys.n_fixed; i++) {
        const int rc = gs_keys_add(keys, &a->keys.all.items[i], err, errlen);
        if (rc != 0)
            return rc;
    }
    for (int i = keys->n; i < a->cfg.n_api_keys; i++) {
        gs_key k;
        char name[GS_MAX_KEY_NAME];
        snprintf(name, sizeof(name), "api_keys[%d]", i); /* no name that a file can hold */
        gs_key_default(&k, name);
        k.classes = GS_CLASSES_ALL;
        gs_key_hash(a->cfg.api_keys[i], k.hash);
        int rc = gs_keys_add(keys, &k, err, errlen);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* The options' keys and the file's; on failure the ring is as it was. */
static int rebuild(gs_api *a, char *err, size_t errlen) {
    gs_key_ring *ring = &a->keys;
    gs_keys fresh = {0}, file = {0};
    int rc = add_fixed(a, &fresh, err, errlen);
    int32_t n_fixed = fresh.n;
    if (rc == 0 && a->cfg.keys_file)
        rc = gs_keys_load(a->cfg.keys_file, &file, err, errlen);
    for (int32_t i = 0; rc == 0 && i < file.n; i++)
        rc = gs_keys_add(&fresh, &file.items[i], err, errlen);
    gs_keys_deinit(&file);
    if (rc != 0) {
        gs_keys_deinit(&fresh);
        return rc;
    }
    gs_keys_deinit(&ring->all);
    ring->all = fresh;
    ring->n_fixed = n_fixed;
    ring->needed = ring->needed || fresh.n > 0;
    return 0;
}

static bool file_changed(gs_api *a) {
    gs_key_ring *ring = &a->keys;
    struct stat st;
    int64_t mtime_ns = 0, ino = 0, size = -1; /* no file */
    if (stat(a->cfg.keys_file, &st) == 0) {
        mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        ino = (int64_t)st.st_ino;
        size = (int64_t)st.st_size;
        if ((st.st_mode & (S_IRGRP | S_IROTH)) && ring->mtime_ns != mtime_ns)
            gs_warn("api", "other users of this machine can read %s", a->cfg.keys_file);
    }
    if (ring->read && mtime_ns == ring->mtime_ns && ino == ring->ino && size == ring->size)
        return false;
    ring->read = true;
    ring->mtime_ns = mtime_ns;
    ring->ino = ino;
    ring->size = size;
    return true;
}

int gs_api_keys_open(gs_api *a, char *err, size_t errlen) {
    if (a->cfg.keys_file)
        file_changed(a);
    return rebuild(a, err, errlen);
}

void gs_api_keys_refresh(gs_api *a) {
    char err[512] = "";
    if (!a->cfg.keys_file || !file_changed(a))
        return;
    if (rebuild(a, err, sizeof(err)) != 0)
        gs_warn("api", "the keys stay as they were: %s", err);
    else
        gs_info("api", "keys read again n=%d", (int)a->keys.all.n);
}
