/* Private to cli/: the commands of the gamasot program and what they share. */
#ifndef GS_CLI_CLI_H
#define GS_CLI_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "api/api.h"
#include "config/config.h"
#include "engine/backend.h"
#include "sched/cost.h"

/* A command: argv[0] is the command's name. Returns the exit status. */
typedef struct gs_command {
    const char *name;
    const char *usage; /* after the name */
    const char *help;
    int (*run)(int argc, char **argv);
    bool hidden;
} gs_command;

int gs_cmd_serve(int argc, char **argv);
int gs_cmd_run(int argc, char **argv);
int gs_cmd_models(int argc, char **argv);
int gs_cmd_perplexity(int argc, char **argv);
int gs_cmd_bench(int argc, char **argv);
int gs_bench_engine(int argc, char **argv); /* bench --engine */
int gs_cmd_config(int argc, char **argv);
int gs_cmd_sim(int argc, char **argv);
int gs_cmd_trace(int argc, char **argv);
int gs_cmd_keys(int argc, char **argv);
int gs_cmd_embed(int argc, char **argv);
int gs_cmd_summarize(int argc, char **argv);

/*
 * Reads the configuration for a command. 0: go on; 1: help was printed, exit 0; negative: the
 * message is in err. cfg must be deinit'ed in every case.
 */
int gs_cli_config(gs_config *cfg, const gs_command *cmd, int argc, char **argv,
                  gs_config_flag *flags, size_t n_flags, char *err, size_t errlen);
const gs_command *gs_cli_command(const char *name);

/*
 * Loader: opens the configured backend with its tokeniser and template. gs_loader_open has the
 * type of gs_backend_open_fn and runs on the engine thread, which owns the kernel pool.
 */
typedef struct gs_loader {
    const gs_config *cfg;
    gs_served_model served;
    gs_cost cost;                /* of the native backend; valid once it is open */
    gs_public_prefixes prefixes; /* likewise */
    bool quiet;                  /* no progress on the terminal */
    bool no_calibration;         /* for commands that schedule nothing */
    void *impl; /* model, pool, mapping; freed by gs_loader_close after the engine is gone */
} gs_loader;

int gs_loader_open(void *loader, gs_backend **out, char *err, size_t errlen);
void gs_loader_close(gs_loader *l);
/* prefixes.c: prefix.files as tokens; gs_prefixes_free in every case. An error names the file. */
int gs_prefixes_load(const gs_config *cfg, const gs_served_model *m, gs_public_prefixes *out,
                     char *err, size_t errlen);
void gs_prefixes_free(gs_public_prefixes *p);
/* The file of API keys: server.keys_file, or keys.json in the state folder, which is made. */
int gs_keys_path(const gs_config *cfg, char *out, size_t outlen, char *err, size_t errlen);
/* The configured model file, or the default one in the cache. */
int gs_model_path(const gs_config *cfg, char *out, size_t outlen, char *err, size_t errlen);

/* Bytes of a small GGUF file that holds only a byte-level vocabulary: what the fake backend's
 * tokeniser is made from. Freed with gs_free. */
/* chat_template: its source, n_template bytes, or NULL. */
int gs_fake_vocab(int32_t n_vocab, const char *chat_template, size_t n_template, void **data,
                  size_t *size);

/* Answers of the fake backend from a JSON file: [["what the prompt has last", "answer"], ...]. The
 * rules point into root, which json_decref frees; rules is freed with gs_free. */
int gs_fake_script(const char *path, json_t **root, gs_fake_rule **rules, int32_t *n, char *err,
                   size_t errlen);

#define GS_FAKE_EOS 258

#endif
