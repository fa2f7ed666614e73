/*
 * Who asks, and from where. Keys are compared in constant time; browsers of foreign pages and
 * rebound host names are turned away before anything is parsed.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <xxhash.h>

#include "api/api_impl.h"
#include "base/err.h"

/* Constant time in the contents: every byte of the longer string is looked at. */
static bool same_secret(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b), n = na > nb ? na : nb;
    unsigned diff = na == nb ? 0 : 1;
    for (size_t i = 0; i < n; i++)
        diff |=
            (unsigned)(unsigned char)a[i < na ? i : 0] ^ (unsigned)(unsigned char)b[i < nb ? i : 0];
    return diff == 0;
}

static const char *bearer(const gs_http_request *rq) {
    const char *h = gs_http_header(rq, "authorization");
    if (h && strncasecmp(h, "Bearer ", 7) == 0) {
        h += 7;
        while (*h == ' ')
            h++;
        return h;
    }
    return gs_http_header(rq, "x-api-key");
}

/* Index of the key, or -1. Looks at all keys whatever matches. */
static int find_key(const gs_api *a, const char *key) {
    int found = -1;
    for (int i = 0; key && i < a->cfg.n_api_keys; i++) {
        if (same_secret(key, a->cfg.api_keys[i]))
            found = i;
    }
    return found;
}

/* "name:port" or "[::1]:port" -> the name alone. */
static void host_name(const char *in, char *out, size_t n) {
    size_t len = strcspn(in, "/");
    if (*in == '[') {
        in++;
        len = strcspn(in, "]");
    } else {
        const char *colon = memchr(in, ':', len);
        if (colon && !memchr(colon + 1, ':', len - (size_t)(colon - in) - 1))
            len = (size_t)(colon - in);
    }
    snprintf(out, n, "%.*s", (int)(len < n ? len : n - 1), in);
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

bool gs_api_origin_ok(const gs_api *a, const gs_http_request *rq) {
    const char *origin = gs_http_header(rq, "origin");
    const char *host = gs_http_header(rq, "host");
    if (!origin)
        return true;
    if (in_list(origin, a->cfg.allowed_origins, a->cfg.n_allowed_origins))
        return true;
    const char *rest = strstr(origin, "://");
    if (!rest ||
        (strncasecmp(origin, "http://", 7) != 0 && strncasecmp(origin, "https://", 8) != 0))
        return false;
    rest += 3;
    char name[256];
    host_name(rest, name, sizeof(name));
    if (strcasecmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0 ||
        strcmp(name, "::1") == 0)
        return true;
    return host && strcasecmp(rest, host) == 0;
}

int gs_api_check_access(gs_api *a, const gs_http_request *rq, gs_api_error *e) {
    const char *host = gs_http_header(rq, "host");
    if (host && !host_ok(a, host))
        return gs_api_fail(e, GS_ERR_FORBIDDEN, NULL,
                           "Host '%.80s' is not allowed; add it to server.allowed_hosts.", host);
    if (!gs_api_origin_ok(a, rq))
        return gs_api_fail(e, GS_ERR_FORBIDDEN, NULL,
                           "This origin is not allowed; add it to server.allowed_origins.");
    if (a->cfg.n_api_keys > 0 && find_key(a, bearer(rq)) < 0) {
        gs_api_fail(e, GS_ERR_UNAUTHORIZED, NULL,
                    "A valid API key is needed: send 'Authorization: Bearer KEY'.");
        e->name = "invalid_api_key";
        return e->code;
    }
    return 0;
}

/* Person index of a name hash; persons beyond the table share index 0. */
static uint32_t person_of(gs_persons *p, uint64_t key) {
    for (uint32_t i = 1; i < p->n; i++) {
        if (p->key[i] == key)
            return i;
    }
    if (p->n == 0)
        p->n = 1; /* index 0: nobody in particular */
    if (p->n == GS_MAX_PERSONS)
        return 0;
    p->key[p->n] = key;
    return p->n++;
}

bool gs_api_on_loopback(const gs_http_request *rq) {
    const char *peer = gs_http_peer(rq);
    return strncmp(peer, "127.", 4) == 0 || strcmp(peer, "::1") == 0;
}

/* Hosts change the lower half of an IPv6 address at will: one /64 is one peer. */
static const char *peer_name(const gs_http_request *rq, char *buf, size_t n) {
    struct in6_addr a;
    const char *peer = gs_http_peer(rq);
    if (inet_pton(AF_INET6, peer, &a) != 1 || IN6_IS_ADDR_V4MAPPED(&a))
        return peer;
    memset(&a.s6_addr[8], 0, 8);
    return inet_ntop(AF_INET6, &a, buf, (socklen_t)n);
}

/*
 * With keys, a key is a person. Without, `user` names persons on loopback, where whoever can
 * connect could read everything anyway; other addresses are one person each (IPv6: each /64). The
 * cache scope is salted per start, so that it can't be computed from a name.
 */
void gs_api_identify(gs_api *a, const gs_http_request *rq, const char *user, uint32_t *person,
                     uint64_t *scope) {
    const char *who = "";
    char key_name[32], net[INET6_ADDRSTRLEN];
    if (a->cfg.n_api_keys > 0) {
        snprintf(key_name, sizeof(key_name), "key %d", find_key(a, bearer(rq)));
        who = key_name;
    } else if (gs_api_on_loopback(rq)) {
        who = user;
    } else {
        who = peer_name(rq, net, sizeof(net));
    }
    *person = *who ? person_of(&a->persons, XXH64(who, strlen(who), 0)) : 0;
    *scope = XXH64(who, strlen(who), a->scope_salt);
}
