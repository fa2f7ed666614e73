#include "cli/args.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"

static void print_help(FILE *f, const char *head, const gs_arg *args) {
    fputs(head, f);
    for (; args->name; args++) {
        char name[64];
        if (!args->name[0])
            continue;
        snprintf(name, sizeof name, "%s%s%s", args->name, args->arg ? " " : "",
                 args->arg ? args->arg : "");
        fprintf(f, "  %-24s %s\n", name, args->help);
    }
}

static const gs_arg *find(const gs_arg *args, const char *name, size_t n) {
    for (; args->name; args++)
        if (strlen(args->name) == n && strncmp(args->name, name, n) == 0)
            return args;
    return NULL;
}

static bool take(const gs_arg *a, const char *v) {
    char *rest;
    double x;
    gs_arg_list *list = a->value;
    switch (a->kind) {
    case GS_ARG_FLAG:
        *(bool *)a->value = true;
        return true;
    case GS_ARG_TEXT:
        *(const char **)a->value = v;
        return true;
    case GS_ARG_NUMBER:
        x = strtod(v, &rest);
        if (rest == v || *rest != '\0' || !(x >= a->low && x <= a->high))
            return false;
        *(double *)a->value = x;
        return true;
    case GS_ARG_MANY:
        if (list->n == GS_ARG_LIST)
            return false;
        list->items[list->n++] = v;
        return true;
    }
    return false;
}

int gs_args_read(const char *command, const char *head, const gs_arg *args, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        const bool is_flag = strncmp(name, "--", 2) == 0;
        const char *eq = is_flag ? strchr(name, '=') : NULL;
        const gs_arg *a = find(args, is_flag ? name : "",
                               !is_flag ? 0
                               : eq     ? (size_t)(eq - name)
                                        : strlen(name));
        const char *v = eq ? eq + 1 : is_flag && i + 1 < argc ? argv[i + 1] : name;
        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
            print_help(stdout, head, args);
            return 1;
        }
        if (!a || (a->kind == GS_ARG_FLAG && eq)) {
            fprintf(stderr, "gamasot %s: '%s' is unknown\n", command, name);
            return 2;
        }
        const bool lacks = is_flag && a->kind != GS_ARG_FLAG && !eq && i + 1 >= argc;
        if (lacks || !take(a, v)) {
            if (a->kind == GS_ARG_NUMBER && !lacks)
                fprintf(stderr, "gamasot %s: %s must be a number from %g to %g\n", command, a->name,
                        a->low, a->high);
            else
                fprintf(stderr, "gamasot %s: %s lacks a value, or has one too many\n", command,
                        is_flag ? a->name : name);
            return 2;
        }
        i += is_flag && a->kind != GS_ARG_FLAG && !eq;
    }
    return 0;
}

int gs_args_save(const char *path, const gs_buf *b, char *err, size_t errlen) {
    FILE *f = b->failed ? NULL : fopen(path, "we");
    if (!f)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: %s", path,
                       b->failed ? "out of memory" : gs_errno_text(errno));
    const bool whole = fwrite(b->data ? b->data : "", 1, b->len, f) == b->len;
    if (fclose(f) != 0 || !whole)
        return gs_fail(err, errlen, GS_ERR_IO, "%s: could not be written", path);
    return 0;
}
