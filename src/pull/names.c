#include "pull/names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/utf8.h"
#include "gguf/gguf.h"

#define LATEST ":latest"

void gs_model_name_of_path(const char *path, char out[GS_MODEL_NAME_BYTES]) {
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    gs_gguf_shard s;
    size_t n = strlen(file), at = 0;
    if (gs_gguf_shard_of(file, &s))
        n = s.stem;
    else if (n > 5 && strcmp(file + n - 5, ".gguf") == 0)
        n -= 5;
    for (size_t i = 0; i < n && at + 1 < GS_MODEL_NAME_BYTES; i++) {
        const bool slash_there = n - i >= 3 && strncmp(file + i, "%2F", 3) == 0;
        const bool percent = n - i >= 3 && strncmp(file + i, "%25", 3) == 0;
        out[at++] = slash_there ? '/' : percent ? '%' : file[i];
        i += slash_there || percent ? 2 : 0;
    }
    out[at] = '\0';
}

int gs_model_file_of_name(const char *name, char *out, size_t n, char *err, size_t errlen) {
    const size_t len = strlen(name);
    size_t at = 0;
    if (len == 0 || len >= GS_MODEL_NAME_BYTES || name[0] == '.' || name[0] == '/' ||
        !gs_utf8_valid(name, len))
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "'%.80s' can't be a model's name: 1 to %d bytes that begin with no dot or "
                       "slash",
                       name, GS_MODEL_NAME_BYTES - 1);
    for (const char *p = name; *p; p++) {
        if (iscntrl((unsigned char)*p))
            return gs_fail(err, errlen, GS_ERR_INVALID, "a model's name has no control characters");
        const char *text = *p == '/' ? "%2F" : *p == '%' ? "%25" : NULL;
        const size_t more = text ? 3 : 1;
        if (at + more + sizeof ".gguf" > n)
            return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "the model's name is too long");
        memcpy(out + at, text ? text : p, more);
        at += more;
    }
    memcpy(out + at, ".gguf", sizeof ".gguf");
    return GS_OK;
}

/* "135m", "4b", "1.7b", "8x7b", "0.6B". */
static bool is_size(const char *s, size_t n) {
    if (n < 2 || !isdigit((unsigned char)s[0]) || !strchr("bBmM", s[n - 1]))
        return false;
    for (size_t i = 0; i + 1 < n; i++)
        if (!isdigit((unsigned char)s[i]) && s[i] != '.' && s[i] != 'x')
            return false;
    return true;
}

void gs_model_tagged_name(const char *name, char out[GS_MODEL_NAME_BYTES]) {
    const char *size = NULL;
    const size_t n = strlen(name);
    out[0] = '\0';
    if (strchr(name, ':') || n >= GS_MODEL_NAME_BYTES)
        return;
    for (const char *p = name; *p && !size; p += *p ? 1 : 0) {
        const size_t len = strcspn(p, "-_");
        if (p > name && is_size(p, len))
            size = p;
        p += len;
        if (!*p)
            break;
    }
    if (!size)
        return;
    const size_t at = (size_t)(size - name);
    for (size_t i = 0; i <= n; i++)
        out[i] = (char)tolower((unsigned char)name[i]);
    out[at - 1] = ':';
    /* Many files are called NAME.Q4_1.gguf. */
    char *dot = strrchr(out + at, '.');
    if (dot && (dot[1] == 'q' || dot[1] == 'i' || dot[1] == 'f' || dot[1] == 'b'))
        *dot = '-';
}

static bool begins(const char *tagged, const char *want, size_t n) {
    return strncasecmp(tagged, want, n) == 0 && (tagged[n] == ':' || tagged[n] == '-');
}

gs_name_match gs_model_name_match(const char *want, const char *have) {
    char own[GS_MODEL_NAME_BYTES];
    size_t n = strlen(want);
    if (strcmp(want, have) == 0)
        return GS_NAME_SAME;
    if (n > sizeof LATEST - 1 && strcmp(want + n - (sizeof LATEST - 1), LATEST) == 0)
        n -= sizeof LATEST - 1;
    if (strlen(have) == n && strncmp(want, have, n) == 0)
        return GS_NAME_SAME;
    gs_model_tagged_name(have, own);
    const char *tagged = own[0] ? own : have;
    if (strlen(tagged) == n && strncasecmp(tagged, want, n) == 0)
        return GS_NAME_TAGGED;
    /* A beginning has to end where a part of the name does, and to hold the whole family. */
    const size_t family = strcspn(tagged, ":");
    if (n >= family && tagged[family] == ':' && begins(tagged, want, n))
        return GS_NAME_BEGINS;
    return GS_NAME_NO;
}

bool gs_model_is_file(const char *file) {
    const size_t n = strlen(file);
    gs_gguf_shard s;
    return n > 5 && file[0] != '.' && strcmp(file + n - 5, ".gguf") == 0 &&
           (!gs_gguf_shard_of(file, &s) || s.no == 1);
}
