/*
 * What `gamasot embed` has written: one JSON line for each text, whose SHA-256 says which text that
 * was. A line counts once its newline is there; a torn one at the end is cut off. So the command
 * can be killed at any moment and goes on where it stopped.
 */
#ifndef GS_CLI_EMBED_LOG_H
#define GS_CLI_EMBED_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/sha256.h"

/* A line of the file, by its text. The k-th line of a text is the k-th time it is asked for. */
typedef struct gs_embed_line {
    uint8_t hash[GS_SHA256_BYTES];
    int64_t offset;  /* of the line in the file */
    int32_t n_taken; /* of the lines with this hash; only of the first one */
} gs_embed_line;

typedef struct gs_embed_log {
    FILE *f;              /* opened for appending */
    char model[128];      /* that made the lines; "": there is none yet */
    gs_embed_line *lines; /* [n], by hash, then by offset; as they were when it was opened */
    size_t n, cap;
} gs_embed_log;

/* Opens or makes path. 0, or GS_ERR_IO, GS_ERR_NOMEM, GS_ERR_FORMAT: it holds something else. */
int gs_embed_log_open(const char *path, gs_embed_log *out, char *err, size_t errlen);
/* The next line of this text: its offset, or -1: no (further) one. */
int64_t gs_embed_log_take(gs_embed_log *l, const uint8_t hash[GS_SHA256_BYTES]);
/* Flushes to the disk and closes. */
int gs_embed_log_close(gs_embed_log *l, char *err, size_t errlen);

/* Writes a NumPy file (format 1.0, float32, C order) of the lines at the offsets, in their order.
 * Written whole under another name first. */
int gs_embed_write_npy(const char *path, const char *log_path, const int64_t *offsets, size_t n,
                       char *err, size_t errlen);

#endif
