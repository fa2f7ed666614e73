/* Private to pull/: one file of a pull. */
#ifndef GS_PULL_PULL_IMPL_H
#define GS_PULL_PULL_IMPL_H

#include "pull/pull.h"

/* The pull's n parts, and where they will be. */
int gs_pull_make_parts(gs_pull *p, int n);
/* Opens and locks the hidden file. GS_ERR_EXISTS: another pull has it. */
int gs_part_open(gs_pull_part *part, char *err, size_t errlen);
/* Brings the part to its end: part->fd holds all bytes, which have the right hash. */
int gs_part_download(gs_pull *p, gs_pull_part *part, char *err, size_t errlen);
int gs_part_copy(gs_pull *p, gs_pull_part *part, char *err, size_t errlen); /* of a local file */
/* Gives it its name. Closes part->fd. */
int gs_part_publish(gs_pull_part *part, char *err, size_t errlen);
void gs_part_discard(gs_pull_part *part); /* what is there is of no use */
void gs_part_close(gs_pull_part *part);   /* it stays for another time */
/* record.c: whether what is at the part's path has the hash that it must have, or was this URL's
 * with this ETag. Reads the file where nothing is known of it. */
bool gs_part_is_current(const gs_pull *p, const gs_pull_part *part);
void gs_part_keep_record(const gs_pull_part *part); /* of what has just been published */
void gs_part_drop_record(const gs_pull_part *part);
/* Whether extra more bytes fit into folder, with min_free left. GS_ERR_NO_SPACE. */
int gs_part_check_room(const char *folder, int64_t extra, int64_t min_free, char *err,
                       size_t errlen);
/* Where a file's bytes and their origin are kept until it is whole. */
int gs_part_paths(const char *folder, const char *file, gs_pull_part *part);

#endif
