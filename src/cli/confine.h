/*
 * What the server may touch, as walls (base/sandbox.h): models, prefixes and templates to read, the
 * state, the recorded traces and the folder that models are pulled into to write, no other program,
 * and without workers no connection to anybody. The process that fetches models (pull/helper.h) has
 * walls of its own: it connects, and has that one folder to write and nothing else to read.
 */
#ifndef GS_CLI_CONFINE_H
#define GS_CLI_CONFINE_H

#include "config/config.h"

/* What the server has found out about its own files. "": none. */
typedef struct gs_confine_paths {
    const char *state;  /* folder of what is kept */
    const char *models; /* folder that models are pulled into */
    const char *keys_file;
} gs_confine_paths;

/* Before there is a second thread. A kernel that can't is told in the log: the server runs
 * without. */
void gs_confine_files(const gs_config *cfg, const gs_confine_paths *paths);
/* In the process that fetches models into that folder: all of its walls. */
void gs_confine_puller(const gs_config *cfg, const char *models);
/* When the sockets to listen on are open, and before a model is loaded. */
void gs_confine_calls(const gs_config *cfg);

#endif
