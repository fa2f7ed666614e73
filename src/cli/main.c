#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/version.h"
#include "base/sys.h"
#include "cli/cli.h"

/* A usage that is too long for its column has its help below. */
#define HELP_BELOW "\n                                     "

// clang-format off
static const gs_command commands[] = {
    {"serve",      "[options]",              "serve a model over HTTP",                        gs_cmd_serve,      false},
    {"run",        "[options] PROMPT",       "answer one prompt in the terminal",              gs_cmd_run,        false},
    {"models",     "list|pull|rm|copy|recommend|inspect", "models: which there are, bring, remove",      gs_cmd_models,     false},
    {"perplexity", "[options] TEXT_FILE",    "perplexity of a text (lower is better)",         gs_cmd_perplexity, false},
    {"bench",      "--url URL --trace FILE", "play a trace against a server; --engine: no server", gs_cmd_bench,   false},
    {"trace",      "generate|import|info",   "make, convert and describe traces",              gs_cmd_trace,      false},
    {"sim",        "--trace FILE | --rules", "simulate a household on a modelled machine",     gs_cmd_sim,        false},
    {"workers",    "list|add NAME URL|drain NAME|resume NAME|remove NAME|reload",
     "other machines that answer, of a running server", gs_cmd_workers, false},
    {"batch",      "submit FILE|status ID|wait ID|results ID|cancel ID|list|pause|resume",
     "work that can wait, in a running server", gs_cmd_batch, false},
    {"embed",      "[options] FILE...|-",    "a vector for each line or file, by a running server", gs_cmd_embed,  false},
    {"summarize",  "[options] DIR --out DIR", "a summary of each file, by a running server",   gs_cmd_summarize,  false},
    {"tune",       "--trace FILE",           "find the settings that carry the most of a load", gs_cmd_tune,      false},
    {"keys",       "add NAME|list|revoke NAME", "API keys: who may ask, as whom and how much", gs_cmd_keys,       false},
    {"service",    "install|status|remove",  "start with the machine (systemd), or with your login: --user", gs_cmd_service, false},
    {"backup",     "FILE",                   "keys, jobs, usage and settings into one file, also while a server runs", gs_cmd_backup, false},
    {"restore",    "FILE",                   "and back, or to the state before an upgrade",      gs_cmd_restore,    false},
    {"top",        "[--url URL] [--once]",   "watch a server in the terminal",                 gs_cmd_top,        false},
    {"why",        "[--url URL] REQUEST_ID", "say what a request waited for",                  gs_cmd_why,        false},
    {"config",     "show|reference|metrics|commands", "print the options in force, or a reference of options, metrics or commands", gs_cmd_config, false},
};
// clang-format on

const gs_command *gs_cli_command(const char *name) {
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

const gs_command *gs_cli_command_at(size_t i) {
    return i < sizeof(commands) / sizeof(commands[0]) ? &commands[i] : NULL;
}

static void print_help(FILE *f) {
    fprintf(f, "gamasot - a home AI server: one pot, many bowls\n\nusage: gamasot COMMAND ...\n\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (!commands[i].hidden)
            fprintf(f, "  %-10s %-24s%s%s\n", commands[i].name, commands[i].usage,
                    strlen(commands[i].usage) > 23 ? HELP_BELOW : "", commands[i].help);
    }
    fprintf(f, "\n'gamasot COMMAND --help' lists the command's options.\n");
}

int gs_cli_config(gs_config *cfg, const gs_command *cmd, int argc, char **argv,
                  gs_config_flag *flags, size_t n_flags, char *err, size_t errlen) {
    int rc = gs_config_load(cfg, argc, argv, flags, n_flags, err, errlen);
    if (rc != 0)
        return rc;
    if (cfg->want_version) {
        printf("gamasot %s\n", GS_VERSION);
        return 1;
    }
    if (cfg->want_help) {
        gs_buf out = {0};
        gs_config_help(&out, flags, n_flags);
        printf("usage: gamasot %s %s\n%s\n\n%.*s", cmd->name, cmd->usage, cmd->help, (int)out.len,
               out.data ? out.data : "");
        gs_buf_deinit(&out);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
        strcmp(argv[1], "-h") == 0) {
        print_help(argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("gamasot %s\n", GS_VERSION);
        return 0;
    }
    const gs_command *cmd = gs_cli_command(argv[1]);
    if (!cmd) {
        fprintf(stderr, "gamasot: there is no command '%s'\n\n", argv[1]);
        print_help(stderr);
        return 2;
    }
    return cmd->run(argc - 1, argv + 1);
}
