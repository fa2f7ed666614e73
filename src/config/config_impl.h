/* Private to src/config: the parts between which the work is divided. */
#ifndef GS_CONFIG_CONFIG_IMPL_H
#define GS_CONFIG_CONFIG_IMPL_H

#include "config/config.h"

#define GS_CONFIG_MAX_VALUE      4096u /* bytes of one value */
#define GS_CONFIG_MAX_FILE_BYTES (1u << 20)

/* ---- value.c: one value and its text ---- */
/*
 * Parses text into the field at dest. append: lists grow instead of being replaced. On failure
 * dest is unchanged and err says "server.port: 'x' is no whole number ...".
 */
int gs_config_value_parse(const gs_config_option *o, const char *text, bool append, void *dest,
                          char *err, size_t errlen);
void gs_config_value_free(const gs_config_option *o, void *dest);
/* "int 1 to 4096", "one of native, fake": for help and messages. */
int gs_config_value_describe(const gs_config_option *o, gs_buf *out);

/* ---- config.c ---- */
/* Sets option i from a source: the first value from a source replaces, further ones append. */
int gs_config_apply(gs_config *cfg, size_t i, gs_config_source source, const char *text, char *err,
                    size_t errlen);
/* "; did you mean 'server.port'?" into out, or "" when nothing is near. name is what was typed;
 * aliases: flags' short names count, too. */
void gs_config_suggest(const char *name, bool aliases, const gs_config_flag *flags, size_t n_flags,
                       char *out, size_t outlen);
/* The field of option o. */
void *gs_config_field(gs_config *cfg, const gs_config_option *o);
const void *gs_config_field_const(const gs_config *cfg, const gs_config_option *o);

/* ---- file.c ---- */
/* Whole file into out, at most GS_CONFIG_MAX_FILE_BYTES. */
int gs_config_slurp(const char *path, gs_buf *out, char *err, size_t errlen);
int gs_config_read_file(gs_config *cfg, const char *path, char *err, size_t errlen);
/* Adds the keys of server.api_keys_file to server.api_keys. */
int gs_config_read_keys(gs_config *cfg, char *err, size_t errlen);

#endif
