/*
 * Configuration: the option table of options.h as a plain struct, filled from the configuration
 * file, the environment and the command line. Later sources win:
 *
 *     default  <  file  <  environment (GAMASOT_SERVER_PORT)  <  flags (--server.port, --port)
 *
 *     gs_config cfg;
 *     int rc = gs_config_load(&cfg, argc, argv, NULL, 0, err, sizeof err);
 *     if (rc == GS_OK) listen_on(cfg.server_port); else puts(err);
 *     gs_config_deinit(&cfg);                         // also after a failure
 *
 * Lists are separated by commas; a repeated flag adds to the list. Everything that is unknown is
 * an error that names the nearest known option. Filled once at start by the main thread, then
 * read-only: any thread may read (gs_config_set belongs to whoever owns the struct).
 */
#ifndef GS_CONFIG_CONFIG_H
#define GS_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "config/options.h"

/* Option flags. */
#define GS_CONFIG_STARTUP 0u        /* read at start only */
#define GS_CONFIG_LIVE    (1u << 0) /* may change while the server runs */
#define GS_CONFIG_SECRET  (1u << 1) /* the value appears in no output and no message */
#define GS_CONFIG_HIDDEN  (1u << 2) /* in the reference, not in --help */
#define GS_CONFIG_POW2    (1u << 3) /* must be a power of two */

typedef enum gs_config_kind {
    GS_CONFIG_BOOL,
    GS_CONFIG_INT,
    GS_CONFIG_FLOAT,
    GS_CONFIG_STRING,
    GS_CONFIG_ENUM,
    GS_CONFIG_SIZE_MB,
    GS_CONFIG_DURATION_MS,
    GS_CONFIG_PORT,
    GS_CONFIG_PATH,
    GS_CONFIG_LIST
} gs_config_kind;

typedef struct gs_config_list {
    char **items;
    size_t n;
} gs_config_list;

/* Where an option's value came from. */
typedef enum gs_config_source {
    GS_CONFIG_FROM_DEFAULT,
    GS_CONFIG_FROM_FILE,
    GS_CONFIG_FROM_ENV,
    GS_CONFIG_FROM_FLAG,
    GS_CONFIG_FROM_SET
} gs_config_source;

/* The fields' C types. Strings are never NULL; an empty one means "not set". */
#define GS_CONFIG_TYPE_BOOL        bool
#define GS_CONFIG_TYPE_INT         int
#define GS_CONFIG_TYPE_FLOAT       double
#define GS_CONFIG_TYPE_STRING      char *
#define GS_CONFIG_TYPE_ENUM        int
#define GS_CONFIG_TYPE_SIZE_MB     int64_t
#define GS_CONFIG_TYPE_DURATION_MS int64_t
#define GS_CONFIG_TYPE_PORT        int
#define GS_CONFIG_TYPE_PATH        char *
#define GS_CONFIG_TYPE_LIST        gs_config_list

/* Index of each option in the table: GS_OPT_server_port, ... */
typedef enum gs_config_id {
#define X(section, name, kind, alias, def, min, max, choices, flags, help)                         \
    GS_OPT_##section##_##name,
    GS_CONFIG_OPTIONS(X)
#undef X
        GS_CONFIG_N
} gs_config_id;

/* Values of ENUM options, in the order of their choices. log_level is a gs_log_level. */
enum { GS_CONFIG_BACKEND_NATIVE, GS_CONFIG_BACKEND_FAKE };
enum { GS_CONFIG_POLICY_SLO, GS_CONFIG_POLICY_FCFS };

/* A section [alias NAME] of the file: another name for the model. Strings are never NULL. */
typedef struct gs_config_alias {
    char *name;
    char *model;      /* "": the model there is */
    char *class_name; /* of requests; "": as without the alias */
} gs_config_alias;

#define GS_CONFIG_MAX_ALIASES 64

/* A section [model NAME] of the file: a further model that requests may ask for. Its settings are
 * options of the table with other values (gs_config_model_options). */
typedef struct gs_config_model {
    char *name;
    char *path; /* of the GGUF file; "": a file of that name in the folders of models */
    gs_config_list prefix_files; /* instead of the server's, if */
    bool own_prefix_files;       /* so; maybe none */
    char **keys, **values;       /* [n] full names of options, and their text */
    size_t n;
} gs_config_model;

#define GS_CONFIG_MAX_MODELS 64

/* A section [worker NAME] of the file: another machine that answers. */
typedef struct gs_config_worker {
    char *name;
#define X(name_, kind, def, min, max, choices, help) GS_CONFIG_TYPE_##kind name_;
    GS_CONFIG_WORKER_OPTIONS(X)
#undef X
    char *added; /* by command: the JSON object that it was added with. NULL: it is the file's */
} gs_config_worker;

#define GS_CONFIG_MAX_WORKERS 16

typedef struct gs_config {
    /* One field per option: server_host, server_port, ..., named section_name. */
#define X(section, name, kind, alias, def, min, max, choices, flags, help)                         \
    GS_CONFIG_TYPE_##kind section##_##name;
    GS_CONFIG_OPTIONS(X)
#undef X
    uint8_t source[GS_CONFIG_N]; /* gs_config_source of each option */

    gs_config_alias *aliases; /* [n_aliases], in the file's order */
    size_t n_aliases;
    gs_config_model *models; /* [n_models] likewise */
    size_t n_models;
    gs_config_worker *workers; /* [n_workers] likewise */
    size_t n_workers;
    char *file;        /* the configuration file that was read, or NULL */
    bool want_help;    /* --help or -h was given */
    bool want_version; /* --version was given */
    char **positional; /* arguments that are no flags, borrowed from argv, in order */
    int n_positional;
} gs_config;

/* One row of the table, for whoever shows or sets options. */
typedef struct gs_config_option {
    const char *name; /* "server.port" */
    const char *section;
    const char *alias; /* "port", or NULL */
    gs_config_kind kind;
    size_t offset; /* of the field in gs_config */
    const char *def;
    int64_t min, max;
    const char *choices;
    unsigned flags;
    const char *help;
} gs_config_option;

const gs_config_option *gs_config_option_at(size_t i); /* i < GS_CONFIG_N */
/* By full name, "server.port"; NULL: unknown. */
const gs_config_option *gs_config_option_find(const char *name);

/* A flag of one command only, e.g. `gamasot run --max-tokens 32`; not an option of the table. */
typedef struct gs_config_flag {
    const char *name; /* "max-tokens" */
    const char *arg;  /* what help calls the value ("N"), or NULL: the flag takes none */
    const char *help;
    const char *value; /* out: the value, borrowed from argv; "" for a flag without; NULL: absent */
} gs_config_flag;

/*
 * Fills *cfg from all sources. argv[0] is skipped. Flags are --name VALUE or --name=VALUE; a bool
 * takes its value only with "=" and means true alone; a value that begins with "--" needs the
 * "=", too; "--" ends the flags. flags (may be NULL) are
 * known besides the options. With --help the sources are not checked: want_help is set and GS_OK
 * returned. On failure err is one sentence that names option and place ("gamasot.conf:12: ...").
 */
int gs_config_load(gs_config *cfg, int argc, char **argv, gs_config_flag *flags, size_t n_flags,
                   char *err, size_t errlen);
/* cfg as model's section has it: a copy that lives as long as cfg does and is not deinit'ed. */
void gs_config_for_model(const gs_config *cfg, const gs_config_model *model, gs_config *out);
/* Defaults only. GS_OK or GS_ERR_NOMEM. */
int gs_config_init(gs_config *cfg);
void gs_config_deinit(gs_config *cfg);

/* Overwrites what secret options hold, here, in the environment and in the command line argv. */
void gs_config_wipe_secrets(gs_config *cfg, int argc, char **argv);

/* What the server needs beyond single values: an address that is no loopback one needs a key, be it
 * of the options or of the keys' file (has_keys). */
int gs_config_check_serve(const gs_config *cfg, bool has_keys, char *err, size_t errlen);

/* Reads the file that cfg came from once more, into *out, which is to be deinit'ed in every case:
 * what it says now, without flags and environment. GS_ERR_NOT_FOUND: there was none. */
int gs_config_reread(const gs_config *cfg, gs_config *out, char *err, size_t errlen);
/* Sets one option from text (replaces lists). The value stays as it was on failure. */
int gs_config_set(gs_config *cfg, const char *name, const char *value, char *err, size_t errlen);
/* Reads the text of a configuration file; where is its name for messages. */
int gs_config_read_text(gs_config *cfg, const char *where, const char *text, size_t len, char *err,
                        size_t errlen);

/* A worker of that name with the table's defaults: GS_ERR_INVALID (the name), GS_ERR_NOMEM. To be
 * deinit'ed in every case. */
int gs_config_worker_init(gs_config_worker *w, const char *name, char *err, size_t errlen);
void gs_config_worker_deinit(gs_config_worker *w);
/* GS_OK, or GS_ERR_NOMEM and *out is empty. */
int gs_config_worker_copy(const gs_config_worker *w, gs_config_worker *out);
/* One setting from text, as the file has it. Errors name worker and setting. */
int gs_config_worker_set(gs_config_worker *w, const char *key, const char *value, char *err,
                         size_t errlen);
/* Makes the list's room for one more and takes *w into it. GS_ERR_OVERLOADED, GS_ERR_NOMEM: *w is
 * the caller's. */
int gs_config_worker_append(gs_config *cfg, gs_config_worker *w);
/* Whether it says all that is needed, and nothing that contradicts itself. */
int gs_config_worker_check(const gs_config_worker *w, char *err, size_t errlen);
/* The rows of its table; NULL: no more. section, alias and flags are empty. */
const gs_config_option *gs_config_worker_option_at(size_t i);

/* {"server.port": 11434, ...}, secrets as "***". GS_OK or GS_ERR_NOMEM. */
int gs_config_json(const gs_config *cfg, gs_buf *out);
/* The table itself, [{"name", "kind", "default", "help", "min", "max", "choices"}]: default as a
 * file would have it, bounds and choices where there are any. GS_OK or GS_ERR_NOMEM. */
int gs_config_table_json(gs_buf *out);
/* The options part of --help; flags as in gs_config_load. */
int gs_config_help(gs_buf *out, const gs_config_flag *flags, size_t n_flags);
/* docs/configuration.md. */
int gs_config_reference(gs_buf *out);

#endif
