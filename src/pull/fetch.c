#include "pull/fetch.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/version.h"

#define MAX_REDIRECTS   8
#define CONNECT_S       20L
#define SILENCE_S       60L /* with less than a byte a second */
#define BUFFER_BYTES    (256L << 10)
#define MAX_HOST        256
#define MAX_URL         4096
#define PLAIN           "http://"
#define CURL_ERROR_TEXT (CURL_ERROR_SIZE + 1)

/* ---- The list of hosts ---------------------------------------------------------------------- */

typedef struct place {
    char host[MAX_HOST], port[8];
    bool plain;
} place;

static int read_place(const char *url, place *out, char *err, size_t errlen) {
    char *host = NULL, *port = NULL, *scheme = NULL, *user = NULL;
    CURLU *u = curl_url();
    const bool ok = u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
                    curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
                    curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
                    curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
                    curl_url_get(u, CURLUPART_USER, &user, 0) == CURLUE_NO_USER &&
                    (strcmp(scheme, "https") == 0 || strcmp(scheme, "http") == 0) &&
                    strlen(host) < MAX_HOST && strlen(port) < sizeof(out->port);
    if (ok) {
        snprintf(out->host, sizeof(out->host), "%s", host);
        snprintf(out->port, sizeof(out->port), "%s", port);
        out->plain = strcmp(scheme, "http") == 0;
    }
    curl_free(host);
    curl_free(port);
    curl_free(scheme);
    curl_free(user);
    curl_url_cleanup(u);
    return ok ? GS_OK
              : gs_fail(err, errlen, GS_ERR_INVALID,
                        "'%.200s' is no URL with http or https and without a user", url);
}

static bool host_fits(const char *pattern, size_t n, const char *host) {
    const size_t have = strlen(host);
    if (n > 2 && pattern[0] == '*' && pattern[1] == '.') {
        pattern += 2;
        n -= 2;
        if (have > n && host[have - n - 1] == '.')
            return strncasecmp(host + have - n, pattern, n) == 0;
    }
    return have == n && strncasecmp(host, pattern, n) == 0;
}

static bool allows(const char *item, const place *p) {
    const bool plain = strncasecmp(item, PLAIN, sizeof PLAIN - 1) == 0;
    if (plain)
        item += sizeof PLAIN - 1;
    else if (p->plain)
        return false;
    const char *closing = item[0] == '[' ? strchr(item, ']') : NULL; /* an IPv6 address */
    const char *colon = strchr(closing ? closing : item, ':');
    const size_t n = colon ? (size_t)(colon - item) : strlen(item);
    return host_fits(item, n, p->host) && strcmp(p->port, colon      ? colon + 1
                                                          : p->plain ? "80"
                                                                     : "443") == 0;
}

int gs_hosts_check(const gs_hosts *h, const char *url, char *err, size_t errlen) {
    place p;
    int rc = read_place(url, &p, err, errlen);
    if (rc != GS_OK)
        return rc;
    for (int i = 0; i < h->n; i++)
        if (allows(h->items[i], &p))
            return GS_OK;
    return gs_fail(err, errlen, GS_ERR_FORBIDDEN, "models.hosts does not have %s%s:%s",
                   p.plain ? PLAIN : "", p.host, p.port);
}

bool gs_hosts_plain(const gs_hosts *h, const char *host) {
    bool plain = false;
    for (int i = 0; i < h->n; i++) {
        const char *item = h->items[i];
        if (strcasecmp(item, host) == 0)
            return false;
        plain |= strncasecmp(item, PLAIN, sizeof PLAIN - 1) == 0 &&
                 strcasecmp(item + sizeof PLAIN - 1, host) == 0;
    }
    return plain;
}

/* ---- One request ---------------------------------------------------------------------------- */

typedef struct exchange {
    const gs_fetch *f;
    CURL *curl;
    gs_fetch_head *head;
    bool begun;
    int rc; /* of begin or data */
} exchange;

/* A header's value where the line is of that header, trimmed, into out. */
static bool header_is(const char *line, size_t n, const char *name, char *out, size_t outlen) {
    const size_t len = strlen(name);
    if (n <= len || strncasecmp(line, name, len) != 0 || line[len] != ':')
        return false;
    const char *v = line + len + 1, *end = line + n;
    while (v < end && (*v == ' ' || *v == '\t'))
        v++;
    while (end > v && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
        end--;
    snprintf(out, outlen, "%.*s", (int)((size_t)(end - v) < outlen ? end - v : 0), v);
    return true;
}

static bool is_sha256(const char *s) {
    return strlen(s) == 64 && strspn(s, "0123456789abcdefABCDEF") == 64;
}

static size_t on_header(char *line, size_t size, size_t n, void *arg) {
    exchange *x = arg;
    gs_fetch_head *h = x->head;
    char v[256];
    unsigned long long from = 0, total = 0;
    n *= size;
    if (n > 5 && strncmp(line, "HTTP/", 5) == 0) { /* also of an interim answer */
        h->from = 0;
        h->length = h->total = -1;
        h->etag[0] = '\0';
    } else if (header_is(line, n, "content-length", v, sizeof v)) {
        char *rest;
        const long long bytes = strtoll(v, &rest, 10);
        h->length = *v && !*rest && bytes >= 0 ? bytes : -1;
    } else if (header_is(line, n, "content-range", v, sizeof v)) {
        if (sscanf(v, "bytes %llu-%*u/%llu", &from, &total) == 2) {
            h->from = (int64_t)(from & INT64_MAX);
            h->total = (int64_t)(total & INT64_MAX);
        } else if (sscanf(v, "bytes */%llu", &total) == 1) {
            h->total = (int64_t)(total & INT64_MAX);
        }
    } else if (header_is(line, n, "etag", v, sizeof v)) {
        if (v[0] == '"' && strlen(v) < sizeof h->etag) /* a weak one says nothing about bytes */
            memcpy(h->etag, v, strlen(v) + 1);
    } else if (header_is(line, n, "x-linked-etag", v, sizeof v)) {
        const size_t len = strlen(v);
        char *text = v;
        if (len > 2 && v[0] == '"' && v[len - 1] == '"') {
            v[len - 1] = '\0';
            text++;
        }
        if (is_sha256(text))
            memcpy(h->sha256, text, sizeof h->sha256);
    } else if (header_is(line, n, "x-linked-size", v, sizeof v)) {
        char *rest;
        const long long bytes = strtoll(v, &rest, 10);
        h->linked = *v && !*rest && bytes >= 0 ? bytes : -1;
    }
    return n;
}

static bool has_body(long status) {
    return status == 200 || status == 206;
}

static int begin(exchange *x) {
    gs_fetch_head *h = x->head;
    x->begun = true;
    if (h->status == 200)
        h->total = h->length;
    return x->f->begin ? x->f->begin(x->f->arg, h) : GS_OK;
}

static size_t on_data(char *data, size_t size, size_t n, void *arg) {
    exchange *x = arg;
    n *= size;
    curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &x->head->status);
    if (!has_body(x->head->status))
        return n; /* the page of an error */
    if (!x->begun)
        x->rc = begin(x);
    if (x->rc == GS_OK && x->f->data)
        x->rc = x->f->data(x->f->arg, data, n);
    return x->rc == GS_OK ? n : CURL_WRITEFUNC_ERROR;
}

static int on_progress(void *arg, curl_off_t dl, curl_off_t dln, curl_off_t ul, curl_off_t uln) {
    const exchange *x = arg;
    (void)dl, (void)dln, (void)ul, (void)uln;
    return x->f->cancel && atomic_load_explicit(x->f->cancel, memory_order_relaxed);
}

static struct curl_slist *request_headers(const gs_fetch *f) {
    char line[300];
    struct curl_slist *list = NULL;
    if (f->accept) {
        snprintf(line, sizeof line, "Accept: %.200s", f->accept);
        list = curl_slist_append(list, line);
    }
    if (f->from > 0 && f->if_range) {
        snprintf(line, sizeof line, "If-Range: %.200s", f->if_range);
        list = curl_slist_append(list, line);
    }
    return list;
}

static void set_options(exchange *x, const char *url, const struct curl_slist *headers,
                        char *text) {
    CURL *c = x->curl;
    char range[32];
    const char *ca = getenv("SSL_CERT_FILE");
    curl_easy_reset(c);
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "gamasot/" GS_VERSION);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, CONNECT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, SILENCE_S);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, text);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, x);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    if (x->f->head)
        curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    if (x->f->from > 0) {
        snprintf(range, sizeof range, "%lld-", (long long)x->f->from);
        curl_easy_setopt(c, CURLOPT_RANGE, range); /* copied */
    }
    if (ca && *ca) /* which OpenSSL itself looks at, but not through libcurl */
        curl_easy_setopt(c, CURLOPT_CAINFO, ca);
}

static int judge_status(const exchange *x, const char *host, char *err, size_t errlen) {
    const long s = x->head->status;
    if (has_body(s) || (s == 416 && x->f->from > 0))
        return GS_OK;
    const int code = s == 401 || s == 403   ? GS_ERR_UNAUTHORIZED
                     : s == 404             ? GS_ERR_NOT_FOUND
                     : s == 429 || s >= 500 ? GS_ERR_UNAVAILABLE
                                            : GS_ERR_INVALID;
    return gs_fail(err, errlen, code, "%s answers with status %ld%s", host, s,
                   code == GS_ERR_NOT_FOUND      ? ": it has no such file"
                   : code == GS_ERR_UNAUTHORIZED ? ": it does not give that to everybody"
                                                 : "");
}

static int judge(const exchange *x, CURLcode cc, const char *host, const char *text, char *err,
                 size_t errlen) {
    switch (cc) {
    case CURLE_OK:
        return judge_status(x, host, err, errlen);
    case CURLE_ABORTED_BY_CALLBACK:
        return gs_fail(err, errlen, GS_ERR_CANCELLED, "cancelled");
    case CURLE_WRITE_ERROR:
        if (x->rc != GS_OK)
            return x->rc; /* whoever returned it has said more */
        break;
    case CURLE_PARTIAL_FILE:
        return gs_fail(err, errlen, GS_ERR_UNAVAILABLE,
                       "%s: the connection ended before the file did", host);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return gs_fail(err, errlen, GS_ERR_FORBIDDEN,
                       "%s: %s (SSL_CERT_FILE names certificates that are trusted instead of the "
                       "system's)",
                       host, text);
    default:
        break;
    }
    return gs_fail(err, errlen, GS_ERR_UNAVAILABLE, "%s: %s", host,
                   text[0] ? text : curl_easy_strerror(cc));
}

/* One hop. *next: where a redirect leads, or "". */
static int perform(exchange *x, const char *url, const struct curl_slist *headers, char *next,
                   char *err, size_t errlen) {
    place p;
    char text[CURL_ERROR_TEXT] = "";
    const char *to = NULL;
    next[0] = '\0';
    int rc = gs_hosts_check(x->f->hosts, url, err, errlen);
    if (rc == GS_OK)
        rc = read_place(url, &p, err, errlen);
    if (rc != GS_OK)
        return rc;
    set_options(x, url, headers, text);
    const CURLcode cc = curl_easy_perform(x->curl);
    curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &x->head->status);
    curl_easy_getinfo(x->curl, CURLINFO_REDIRECT_URL, &to);
    if (cc == CURLE_OK && to) {
        if (strlen(to) >= MAX_URL)
            return gs_fail(err, errlen, GS_ERR_INVALID, "%s: its redirect is too long", p.host);
        if (!p.plain && strncasecmp(to, PLAIN, sizeof PLAIN - 1) == 0) /* whatever the list says */
            return gs_fail(err, errlen, GS_ERR_FORBIDDEN,
                           "%s redirects to a place without encryption: %.200s", p.host, to);
        memcpy(next, to, strlen(to) + 1);
        return GS_OK;
    }
    return judge(x, cc, p.host, text, err, errlen);
}

int gs_fetch_run(const gs_fetch *f, gs_fetch_head *out, char *err, size_t errlen) {
    char url[MAX_URL], next[MAX_URL];
    *out = (gs_fetch_head){.length = -1, .total = -1, .linked = -1};
    if (strlen(f->url) >= sizeof url)
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "the URL is too long");
    memcpy(url, f->url, strlen(f->url) + 1);
    exchange x = {.f = f, .curl = curl_easy_init(), .head = out};
    if (!x.curl)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    struct curl_slist *headers = request_headers(f);
    int rc = GS_OK;
    for (int hop = 0; hop <= MAX_REDIRECTS; hop++) {
        rc = perform(&x, url, headers, next, err, errlen);
        if (rc != GS_OK || !next[0])
            break;
        if (hop == MAX_REDIRECTS)
            rc = gs_fail(err, errlen, GS_ERR_INVALID, "more than %d redirects", MAX_REDIRECTS);
        memcpy(url, next, strlen(next) + 1);
    }
    if (rc == GS_OK && !f->head && has_body(out->status) && !x.begun)
        rc = begin(&x);
    if (rc == GS_OK && f->head && out->status == 200)
        out->total = out->length;
    curl_slist_free_all(headers);
    curl_easy_cleanup(x.curl);
    return rc;
}
