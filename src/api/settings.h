/*
 * Options of the sections [sched], [class_*] and engine.prefill_chunk -> what the engine can change
 * while it runs, and changes of such options from JSON, all or none.
 */
#ifndef GS_API_SETTINGS_H
#define GS_API_SETTINGS_H

#include "api/params.h"
#include "config/config.h"
#include "engine/engine.h"

/* GS_OK, or GS_ERR_INVALID with a sentence that names the option. */
int gs_settings_read(const gs_config *cfg, gs_engine_settings *out, char *err, size_t errlen);
/*
 * {"class_voice.ttft_ms": 500, ...}: values of the options' own JSON types. On success cfg has all
 * of them and out what the engine is to apply; else cfg is as it was, and *e names the first field
 * that is unknown, can't change while the server runs, or is out of bounds.
 */
int gs_settings_change(gs_config *cfg, const json_t *changes, gs_engine_settings *out,
                       gs_api_error *e);

#endif
