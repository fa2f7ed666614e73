/*
 * Where files live: the XDG base directories, or those that systemd gives a service.
 *
 *   cache   $CACHE_DIRECTORY          $XDG_CACHE_HOME/gamasot    ~/.cache/gamasot
 *   state   $STATE_DIRECTORY          $XDG_STATE_HOME/gamasot    ~/.local/state/gamasot
 *   data    $STATE_DIRECTORY          $XDG_DATA_HOME/gamasot     ~/.local/share/gamasot
 *   config  $CONFIGURATION_DIRECTORY  $XDG_CONFIG_HOME/gamasot   ~/.config/gamasot
 *
 * The first that is set wins (systemd has no data directory: a service keeps models with its
 * state). When root asks and the system's service is installed, state and data are the service's,
 * /var/lib/gamasot: `sudo gamasot keys add` is to reach it. What root creates there belongs to whom
 * the folder above it belongs.
 * Relative paths in XDG variables are ignored, as the specification says. cache, state
 * and data are created when asked for, with mode 0700; config is only named.
 * Any thread may call these as long as nobody changes the environment.
 */
#ifndef GS_CONFIG_DIRS_H
#define GS_CONFIG_DIRS_H

#include <stddef.h>

#define GS_DIRS_MAX_PATH 4096

/* The path without a final slash into out. GS_OK, or a code and a sentence. */
int gs_dirs_cache(char *out, size_t outlen, char *err, size_t errlen);
int gs_dirs_state(char *out, size_t outlen, char *err, size_t errlen);
int gs_dirs_data(char *out, size_t outlen, char *err, size_t errlen);
int gs_dirs_config(char *out, size_t outlen, char *err, size_t errlen);
/* Creates path and what is missing above it, mode 0700. */
int gs_dirs_make(const char *path, char *err, size_t errlen);

#endif
