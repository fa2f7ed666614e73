#include "pull/source.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

#define WORD 200 /* bytes of a part of a name */

static bool starts(const char *s, const char *with) {
    return strncmp(s, with, strlen(with)) == 0;
}

static bool ends_in_gguf(const char *s) {
    const size_t n = strlen(s);
    return n > 5 && strcmp(s + n - 5, ".gguf") == 0;
}

/* What may stand in a path of a URL as it is: nothing that would have to be escaped, or ends it. */
static bool is_plain(const char *s) {
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("-._~/+@:,=", *s))
            return false;
    return true;
}

static int wrong(const char *text, const char *why, char *err, size_t errlen) {
    return gs_fail(err, errlen, GS_ERR_INVALID, "'%.120s': %s", text, why);
}

/* Names are for people and files: the last part of a URL's path. */
static int name_of_url(const char *url, gs_source *out, char *err, size_t errlen) {
    char path[sizeof out->url];
    snprintf(path, sizeof path, "%.*s", (int)strcspn(url, "?#"), url);
    if (!ends_in_gguf(path))
        return wrong(url, "a model's URL ends in .gguf", err, errlen);
    gs_model_name_of_path(path, out->name);
    return GS_OK;
}

/* OWNER/REPO[@REV]/FILE.gguf */
static int read_hf(const gs_sources *s, const char *text, gs_source *out, char *err,
                   size_t errlen) {
    char owner[WORD], repo[WORD], rev[WORD] = "main";
    int at = 0;
    if (sscanf(text, "%199[^/@:]/%199[^/@:]%n", owner, repo, &at) != 2 || at == 0)
        return wrong(text, "want OWNER/REPO/FILE.gguf", err, errlen);
    const char *rest = text + at;
    if (*rest == '@') {
        at = 0;
        if (sscanf(rest, "@%199[^/]%n", rev, &at) != 1)
            return wrong(text, "no revision stands behind '@'", err, errlen);
        rest += at;
    }
    if (*rest != '/' || !ends_in_gguf(rest) || !is_plain(text))
        return wrong(text, "want OWNER/REPO/FILE.gguf", err, errlen);
    out->kind = GS_SOURCE_URL;
    const int n = snprintf(out->url, sizeof out->url, "%s/%s/%s/resolve/%s%s", s->hf_url, owner,
                           repo, rev, rest);
    if (n < 0 || (size_t)n >= sizeof out->url)
        return wrong(text, "the name is too long", err, errlen);
    gs_model_name_of_path(rest, out->name);
    return GS_OK;
}

/* The scheme and host of a registry; text goes on behind them. */
static const char *registry_base(const gs_sources *s, const char *text, char *base, size_t n) {
    const size_t host = strcspn(text, "/");
    char name[WORD];
    /* As Docker has it: a host has a dot or a port. */
    if (text[host] != '/' || host >= sizeof name || !memchr(text, '.', host) ||
        strchr(text + host + 1, '/') == NULL) {
        snprintf(base, n, "%s", s->registry_url);
        return text;
    }
    memcpy(name, text, host);
    name[host] = '\0';
    snprintf(base, n, "%s://%s", gs_hosts_plain(&s->hosts, name) ? "http" : "https", name);
    return text + host + 1;
}

/* [HOST/][NAMESPACE/]MODEL[:TAG] */
static int read_registry(const gs_sources *s, const char *text, gs_source *out, char *err,
                         size_t errlen) {
    char base[300], space[WORD] = "library", model[WORD], tag[WORD] = "latest";
    const char *path = registry_base(s, text, base, sizeof base);
    const bool own = path != text;
    const char *slash = strchr(path, '/');
    int at = 0, more = 0;
    if (!is_plain(text) || strstr(text, ".."))
        return wrong(text, "want [HOST/][NAMESPACE/]MODEL[:TAG]", err, errlen);
    if (slash && (sscanf(path, "%199[^/:@]/%n", space, &at) != 1 || at == 0))
        return wrong(text, "want [HOST/][NAMESPACE/]MODEL[:TAG]", err, errlen);
    path += at;
    if (sscanf(path, "%199[^/:@]%n", model, &more) != 1 ||
        (path[more] != '\0' && path[more] != ':') ||
        (path[more] == ':' &&
         (sscanf(path + more, ":%199[^/:@]", tag) != 1 || strlen(tag) != strlen(path + more + 1))))
        return wrong(text, "want [HOST/][NAMESPACE/]MODEL[:TAG]", err, errlen);
    out->kind = GS_SOURCE_REGISTRY;
    snprintf(out->url, sizeof out->url, "%s/v2/%s/%s/manifests/%s", base, space, model, tag);
    const int n = snprintf(out->blobs, sizeof out->blobs, "%s/v2/%s/%s/blobs/", base, space, model);
    if (n < 0 || (size_t)n >= sizeof out->blobs)
        return wrong(text, "the name is too long", err, errlen);
    /* The name by which it was asked for, so that a client finds it again. */
    const bool latest = strcmp(tag, "latest") == 0;
    const size_t head = own || slash ? (size_t)(path - text) : 0;
    const int len = snprintf(out->name, sizeof out->name, "%.*s%s%s%s", (int)head, text, model,
                             latest ? "" : ":", latest ? "" : tag);
    if (len < 0 || (size_t)len >= sizeof out->name)
        return wrong(text, "the name is too long", err, errlen);
    return GS_OK;
}

int gs_source_read(const gs_sources *s, const char *text, gs_source *out, char *err,
                   size_t errlen) {
    static const char *const hubs[] = {"hf:", "hf.co/", "huggingface.co/"};
    *out = (gs_source){0};
    const size_t n = strlen(text);
    if (n == 0 || n >= sizeof out->url)
        return gs_fail(err, errlen, GS_ERR_INVALID, "the source is empty or too long");
    if (starts(text, "http://") || starts(text, "https://")) {
        out->kind = GS_SOURCE_URL;
        memcpy(out->url, text, n + 1);
        return name_of_url(text, out, err, errlen);
    }
    if (starts(text, "/") || starts(text, "./") || starts(text, "../") || starts(text, "file:")) {
        const char *path = text + (starts(text, "file://") ? 7 : starts(text, "file:") ? 5 : 0);
        out->kind = GS_SOURCE_FILE;
        memcpy(out->url, path, strlen(path) + 1);
        if (!ends_in_gguf(path))
            return wrong(path, "a model's file ends in .gguf", err, errlen);
        gs_model_name_of_path(path, out->name);
        return GS_OK;
    }
    for (size_t i = 0; i < sizeof hubs / sizeof hubs[0]; i++)
        if (starts(text, hubs[i]) && (i == 0 || ends_in_gguf(text)))
            return read_hf(s, text + strlen(hubs[i]), out, err, errlen);
    return read_registry(s, text, out, err, errlen);
}
