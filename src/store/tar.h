/*
 * Archives of plain files in the ustar form, which every tar reads. Sequential: a header, the
 * bytes, padding, and so on. Names have up to 100 bytes and no folder above them is kept.
 * Blocking; whoever has the descriptor.
 */
#ifndef GS_STORE_TAR_H
#define GS_STORE_TAR_H

#include <stddef.h>
#include <stdint.h>

#define GS_TAR_BLOCK 512
#define GS_TAR_NAME  100
#define GS_TAR_MAX   077777777777LL /* bytes of one file */

typedef struct gs_tar_entry {
    char name[GS_TAR_NAME + 1];
    int64_t bytes;
} gs_tar_entry;

/* Writing: gs_tar_begin, exactly e->bytes by gs_store_write, gs_tar_pad; gs_tar_end after the last.
 * 0, or GS_ERR_TOO_LARGE, GS_ERR_NO_SPACE, GS_ERR_IO. */
int gs_tar_begin(int fd, const gs_tar_entry *e, int64_t mtime_s);
int gs_tar_pad(int fd, int64_t bytes);
int gs_tar_end(int fd);

/* Reading: 1: the next file, whose bytes follow and then gs_tar_skip_pad; 0: the end; or
 * GS_ERR_FORMAT for what is no such archive, is damaged, or holds other things than files. */
int gs_tar_next(int fd, gs_tar_entry *out);
int gs_tar_skip_pad(int fd, int64_t bytes);
/* From one descriptor to another; in may end too early: GS_ERR_FORMAT. */
int gs_tar_copy(int in, int out, int64_t bytes);

#endif
