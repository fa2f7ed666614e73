/*
 * What the server may touch, as walls (base/sandbox.h): models, prefixes and templates to read, the
 * state and the recorded traces to write, no other program, no connection to anybody.
 */
#ifndef GS_CLI_CONFINE_H
#define GS_CLI_CONFINE_H

#include "config/config.h"

/* Before there is a second thread. state: folder of what is kept, "": none; keys_file likewise.
 * A kernel that can't is told in the log: the server runs without. */
void gs_confine_files(const gs_config *cfg, const char *state, const char *keys_file);
/* When the sockets to listen on are open, and before a model is loaded. */
void gs_confine_calls(const gs_config *cfg);

#endif
