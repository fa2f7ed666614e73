/* Private to cli/: flags of commands that take no options of the table (bench, trace, tune, sim).
 */
#ifndef GS_CLI_ARGS_H
#define GS_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum gs_arg_kind {
    GS_ARG_FLAG,   /* bool: takes no value */
    GS_ARG_TEXT,   /* const char *: borrowed from argv */
    GS_ARG_NUMBER, /* double in [low, high] */
    GS_ARG_MANY    /* gs_arg_list: may be given several times */
} gs_arg_kind;

#define GS_ARG_LIST 32
typedef struct gs_arg_list {
    const char *items[GS_ARG_LIST];
    int n;
} gs_arg_list;

typedef struct gs_arg {
    const char *name; /* "--url"; NULL: the last row. "" is what stands without a flag (MANY) */
    gs_arg_kind kind;
    void *value;
    double low, high; /* NUMBER */
    const char *arg;  /* what help calls the value */
    const char *help;
} gs_arg;

/* --name VALUE or --name=VALUE; argv[0] is skipped. 0: go on; 1: help was asked for and printed
 * (head, then one line a row); 2: wrong, and said so. */
int gs_args_read(const char *command, const char *head, const gs_arg *args, int argc, char **argv);
/* Writes a whole file; an error names it. */
struct gs_buf;
int gs_args_save(const char *path, const struct gs_buf *b, char *err, size_t errlen);

#endif
