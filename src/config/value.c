/* One option's value: from text into its field, with bounds, and back into words. */
#include "config/config_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sys.h"
#include "base/utf8.h"

/* Values appear in messages and logs, so no control characters get in; text is UTF-8. */
static int check_text(const gs_config_option *o, const char *text, char *err, size_t errlen) {
    size_t n = strlen(text);
    if (n > GS_CONFIG_MAX_VALUE)
        return gs_fail(err, errlen, GS_ERR_INVALID, "%s: the value is longer than %u bytes",
                       o->name, GS_CONFIG_MAX_VALUE);
    if (!gs_utf8_valid(text, n))
        return gs_fail(err, errlen, GS_ERR_INVALID, "%s: the value is not valid UTF-8", o->name);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f)
            return gs_fail(err, errlen, GS_ERR_INVALID, "%s: the value has control characters",
                           o->name);
    }
    return GS_OK;
}

static int refuse(const gs_config_option *o, const char *text, char *err, size_t errlen) {
    gs_buf want = {0};
    const char *s = gs_config_value_describe(o, &want) == GS_OK ? gs_buf_cstr(&want) : NULL;
    int rc = gs_fail(err, errlen, GS_ERR_INVALID, "%s: '%.80s' is not %s", o->name,
                     o->flags & GS_CONFIG_SECRET ? "***" : text, s ? s : "valid");
    gs_buf_deinit(&want);
    return rc;
}

static bool parse_bool(const char *text, bool *out) {
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < 4; i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

/* Digits with an optional minus and nothing else: no blanks, no 0x, no 1e3. */
static bool parse_int(const gs_config_option *o, const char *text, int64_t *out) {
    const char *digits = text[0] == '-' ? text + 1 : text;
    if (*digits == '\0' || digits[strspn(digits, "0123456789")] != '\0')
        return false;
    errno = 0;
    long long v = strtoll(text, NULL, 10);
    if (errno != 0 || v < o->min || v > o->max)
        return false;
    if ((o->flags & GS_CONFIG_POW2) && (v <= 0 || (v & (v - 1)) != 0))
        return false;
    *out = v;
    return true;
}

static bool parse_float(const gs_config_option *o, const char *text, double *out) {
    if (*text == '\0' || text[strspn(text, "0123456789.-+eE")] != '\0')
        return false;
    char *end;
    double v = strtod(text, &end);
    if (*end != '\0' || !isfinite(v) || v < (double)o->min || v > (double)o->max)
        return false;
    *out = v;
    return true;
}

/* The index of text among "a|b|c". */
static bool parse_enum(const char *choices, const char *text, int *out) {
    size_t n = strlen(text);
    for (int i = 0; n > 0 && *choices; i++) {
        size_t len = strcspn(choices, "|");
        if (len == n && memcmp(choices, text, n) == 0) {
            *out = i;
            return true;
        }
        choices += len + (choices[len] == '|');
    }
    return false;
}

static int parse_string(const gs_config_option *o, const char *text, char **out, char *err,
                        size_t errlen) {
    const char *home = getenv("HOME");
    char *s;
    if (o->kind == GS_CONFIG_PATH && strncmp(text, "~/", 2) == 0 && home && *home) {
        gs_buf b = {0};
        gs_buf_str(&b, home);
        gs_buf_str(&b, text + 1);
        s = b.failed ? NULL : gs_buf_take(&b, NULL);
        gs_buf_deinit(&b);
    } else {
        s = gs_strdup(text);
    }
    if (!s)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "%s: out of memory", o->name);
    gs_free(*out);
    *out = s;
    return GS_OK;
}

static void list_free(gs_config_list *l) {
    for (size_t i = 0; i < l->n; i++) {
        explicit_bzero(l->items[i], strlen(l->items[i])); /* may be keys */
        gs_free(l->items[i]);
    }
    gs_free(l->items);
    *l = (gs_config_list){0};
}

/* Splits at commas and drops blanks around the items and empty items. */
static int list_add(gs_config_list *l, const char *text) {
    size_t cap = l->n + 1;
    for (const char *p = text; *p; p++)
        cap += *p == ',';
    char **items = gs_realloc(l->items, cap * sizeof *items);
    if (!items)
        return GS_ERR_NOMEM;
    l->items = items;
    while (*text) {
        size_t len = strcspn(text, ",");
        const char *begin = text;
        const char *end = text + len;
        while (begin < end && *begin == ' ')
            begin++;
        while (end > begin && end[-1] == ' ')
            end--;
        if (end > begin) {
            l->items[l->n] = gs_strndup(begin, (size_t)(end - begin));
            if (!l->items[l->n])
                return GS_ERR_NOMEM;
            l->n++;
        }
        text += len + (text[len] == ',');
    }
    return GS_OK;
}

static int parse_list(const gs_config_option *o, const char *text, bool append, gs_config_list *out,
                      char *err, size_t errlen) {
    gs_config_list l = {0};
    int rc = GS_OK;
    for (size_t i = 0; append && rc == GS_OK && i < out->n; i++)
        rc = list_add(&l, out->items[i]);
    if (rc == GS_OK)
        rc = list_add(&l, text);
    if (rc != GS_OK)
        rc = gs_fail(err, errlen, rc, "%s: out of memory", o->name);
    else if ((int64_t)l.n < o->min || (int64_t)l.n > o->max)
        rc = gs_fail(err, errlen, GS_ERR_INVALID, "%s: a list of %zu items is not %lld to %lld",
                     o->name, l.n, (long long)o->min, (long long)o->max);
    if (rc != GS_OK) {
        list_free(&l);
        return rc;
    }
    list_free(out);
    *out = l;
    return GS_OK;
}

int gs_config_value_parse(const gs_config_option *o, const char *text, bool append, void *dest,
                          char *err, size_t errlen) {
    int64_t v;
    int rc = check_text(o, text, err, errlen);
    if (rc != GS_OK)
        return rc;
    switch (o->kind) {
    case GS_CONFIG_BOOL:
        return parse_bool(text, dest) ? GS_OK : refuse(o, text, err, errlen);
    case GS_CONFIG_INT:
    case GS_CONFIG_PORT:
        if (!parse_int(o, text, &v))
            return refuse(o, text, err, errlen);
        *(int *)dest = (int)v; /* the table's bounds fit: tests/unit/config */
        return GS_OK;
    case GS_CONFIG_SIZE_MB:
    case GS_CONFIG_DURATION_MS:
        return parse_int(o, text, dest) ? GS_OK : refuse(o, text, err, errlen);
    case GS_CONFIG_FLOAT:
        return parse_float(o, text, dest) ? GS_OK : refuse(o, text, err, errlen);
    case GS_CONFIG_ENUM:
        return parse_enum(o->choices, text, dest) ? GS_OK : refuse(o, text, err, errlen);
    case GS_CONFIG_STRING:
    case GS_CONFIG_PATH:
        return parse_string(o, text, dest, err, errlen);
    case GS_CONFIG_LIST:
        return parse_list(o, text, append, dest, err, errlen);
    }
    return GS_ERR_INTERNAL;
}

void gs_config_value_free(const gs_config_option *o, void *dest) {
    if (o->kind == GS_CONFIG_LIST) {
        list_free(dest);
    } else if (o->kind == GS_CONFIG_STRING || o->kind == GS_CONFIG_PATH) {
        gs_free(*(char **)dest);
        *(char **)dest = NULL;
    }
}

int gs_config_value_describe(const gs_config_option *o, gs_buf *out) {
    const char *unit = o->kind == GS_CONFIG_SIZE_MB       ? " (MB)"
                       : o->kind == GS_CONFIG_DURATION_MS ? " (ms)"
                                                          : "";
    switch (o->kind) {
    case GS_CONFIG_BOOL:
        return gs_buf_str(out, "true or false");
    case GS_CONFIG_INT:
    case GS_CONFIG_PORT:
    case GS_CONFIG_SIZE_MB:
    case GS_CONFIG_DURATION_MS:
        return gs_buf_printf(out, "a whole number from %lld to %lld%s%s", (long long)o->min,
                             (long long)o->max, unit,
                             o->flags & GS_CONFIG_POW2 ? ", a power of two" : "");
    case GS_CONFIG_FLOAT:
        return gs_buf_printf(out, "a number from %lld to %lld", (long long)o->min,
                             (long long)o->max);
    case GS_CONFIG_ENUM: {
        gs_buf_str(out, "one of ");
        for (const char *p = o->choices; *p; p++)
            gs_buf_str(out, *p == '|' ? ", " : (char[]){*p, '\0'});
        return out->failed ? GS_ERR_NOMEM : GS_OK;
    }
    case GS_CONFIG_STRING:
        return gs_buf_str(out, "text");
    case GS_CONFIG_PATH:
        return gs_buf_str(out, "a path");
    case GS_CONFIG_LIST:
        return gs_buf_str(out, "a list with commas");
    }
    return GS_ERR_INTERNAL;
}
