/* Private to cli/: the commands of the gamasot program and what they share. */
#ifndef GS_CLI_CLI_H
#define GS_CLI_CLI_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "api/api.h"
#include "base/pool.h"
#include "config/config.h"
#include "engine/backend.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "pull/pull.h"
#include "sched/cost.h"
#include "sched/sim.h"

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
/* recommend.c: prints what this machine can carry: known models, or the files. */
int gs_models_recommend(const gs_config *cfg, char **files, int n_files, bool json, char *err,
                        size_t errlen);
/* inspect.c: prints what a GGUF file holds. */
int gs_models_inspect(const char *path, char *err, size_t errlen);
int gs_cmd_perplexity(int argc, char **argv);
int gs_cmd_bench(int argc, char **argv);
int gs_bench_engine(int argc, char **argv); /* bench --engine */
int gs_cmd_top(int argc, char **argv);
int gs_cmd_why(int argc, char **argv);
int gs_cmd_config(int argc, char **argv);
int gs_cmd_sim(int argc, char **argv);
int gs_cmd_trace(int argc, char **argv);
int gs_cmd_tune(int argc, char **argv);
int gs_cmd_keys(int argc, char **argv);
int gs_cmd_batch(int argc, char **argv);
int gs_cmd_workers(int argc, char **argv);
int gs_cmd_embed(int argc, char **argv);
int gs_cmd_summarize(int argc, char **argv);
int gs_cmd_service(int argc, char **argv);
int gs_cmd_backup(int argc, char **argv);
int gs_cmd_restore(int argc, char **argv);

/*
 * Reads the configuration for a command. 0: go on; 1: help was printed, exit 0; negative: the
 * message is in err. cfg must be deinit'ed in every case.
 */
int gs_cli_config(gs_config *cfg, const gs_command *cmd, int argc, char **argv,
                  gs_config_flag *flags, size_t n_flags, char *err, size_t errlen);
const gs_command *gs_cli_command(const char *name);
const gs_command *gs_cli_command_at(size_t i); /* NULL beyond the last */

/*
 * Loader: opens the configured backend with its tokeniser and template. gs_loader_open has the
 * type of gs_backend_open_fn and runs on the engine thread, which owns the kernel pool.
 */
typedef struct gs_loader {
    const gs_config *cfg;
    gs_served_model served;
    gs_cost cost;                /* of the native backend; valid once it is open */
    gs_sim_device device;        /* likewise: the same and its sizes, for the simulator */
    gs_public_prefixes prefixes; /* likewise */
    bool quiet;                  /* no progress on the terminal */
    bool no_calibration;         /* for commands that schedule nothing */
    bool no_device_file;         /* what is measured is nobody else's affair */
    const char *state;           /* folder in which computed prefixes are saved; NULL: nowhere */
    struct gs_saver *saver;      /* of prefixes; NULL: nothing is saved */
    /* A further model beside the first: the compute threads are *shared, made when there are none;
     * it may take so many bytes, says how far it is and gives up when that is negative. */
    gs_pool **shared;
    uint64_t room;
    atomic_int *percent;
    void *impl; /* model, pool, mapping; freed by gs_loader_close after the engine is gone */
} gs_loader;

int gs_loader_open(void *loader, gs_backend **out, char *err, size_t errlen);
/* The two halves of it: into memory, on any thread; first step and calibration (gs_prepare_fn). */
int gs_loader_load(gs_loader *l, gs_backend **out, char *err, size_t errlen);
int gs_loader_prepare(void *loader, gs_backend *b, bool (*busy)(void *), void *busy_arg);
/* What the first model's step times turned out to be while it served: for the simulator, too. NULL:
 * nothing was learned. */
void gs_loader_keep_learned(gs_loader *l, const gs_cost *learned);
void gs_loader_close(gs_loader *l);
/* What keys and values of this model depend on besides tokens, as gs_saved has it. Reads all its
 * weights. */
void gs_loader_cache_id(const gs_loader *l, char *out, size_t n);
gs_pool *gs_loader_pool(const gs_loader *l); /* of the first model, to share; NULL: has none */

/*
 * weights.c: the matrices of a decoder's file and what a token does with each: it is multiplied
 * with those of the layers, and where logits are needed with the output's; the embedding is looked
 * up.
 */
typedef struct gs_matrix_use {
    gs_qtype type;
    double n; /* weights */
    uint64_t bytes;
    bool layer, output;
    double part; /* of the weights a token meets: less than 1 of experts */
} gs_matrix_use;

typedef void (*gs_matrix_use_fn)(void *arg, const gs_matrix_use *u);
void gs_each_matrix(const gs_gguf *g, const gs_hparams *hp, gs_matrix_use_fn fn, void *arg);

/*
 * model_list.c: the models beside the first: sections [model NAME] of the configuration, and GGUF
 * files in the folders of models. loading is what gs_api_config wants.
 */
typedef struct gs_model_list {
    const gs_config *cfg;
    gs_model_loading loading;
    uint64_t memory_bytes; /* budget of all models */
    gs_loader *first;
    gs_pool *pool; /* made for further models when the first has none */
} gs_model_list;

/* first: the loader of the first model, not open yet. gs_model_list_deinit in every case. */
int gs_model_list_init(gs_model_list *l, const gs_config *cfg, gs_loader *first, char *err,
                       size_t errlen);
void gs_model_list_deinit(gs_model_list *l); /* after the API was freed */
/* All models that there are, the first one among them. gs_model_list_free in every case. */
int gs_model_list_all(const gs_config *cfg, gs_model_spec ***out, int *n, char *err, size_t errlen);
void gs_model_list_free(gs_model_spec **specs, int n);
/* models.folder, or models in the folder of data; made when it is not there. */
int gs_models_folder(const gs_config *cfg, char *out, size_t outlen, char *err, size_t errlen);
/* What a pull into that folder is allowed to do; borrows cfg and folder. */
gs_pull_config gs_models_pull_config(const gs_config *cfg, const char *folder);
/* prefixes.c: l->prefixes from prefix.files, as tokens, with what an earlier process has saved of
 * them; b: the model's backend. gs_prefixes_free in every case. An error names the file. May wait
 * for the disk. */
int gs_prefixes_load(gs_loader *l, const gs_backend *b, char *err, size_t errlen);
void gs_prefixes_free(gs_loader *l); /* after the backend's lane is gone */
/*
 * prefix_saver.c: prefixes in files (engine/saved.h), in the folder prefixes of l->state, at most
 * prefix.saved_mb of them. Opening reads what fits l->prefixes; what does not is written by a
 * thread of its own once the engine has computed it. Without memory or a folder nothing is saved.
 */
void gs_saver_open(gs_loader *l, const gs_backend_info *info);
void gs_saver_close(gs_loader *l); /* once all that was computed is written */
/* The file of API keys: server.keys_file, or keys.json in the state folder, which is made. */
int gs_keys_path(const gs_config *cfg, char *out, size_t outlen, char *err, size_t errlen);
/* The configured model file, or the default one: in the cache, or as a package has installed it. */
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
