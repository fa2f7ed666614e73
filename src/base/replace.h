/* A small file that is written as a whole. */
#ifndef GS_BASE_REPLACE_H
#define GS_BASE_REPLACE_H

#include <stddef.h>

/* A new file takes the old one's place, so that a crash leaves the one or the other. Mode 0600; its
 * owner is the folder's: root may write for a service. Blocks until it is on the disk. 0, GS_ERR_IO
 * or GS_ERR_TOO_LARGE (the path), with a sentence. */
int gs_replace_file(const char *path, const char *data, size_t n, char *err, size_t errlen);

#endif
