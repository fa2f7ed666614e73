/*
 * The one door to calls that can fail: allocation, read, write, accept, mmap.
 *
 * All of gamasot calls these wrappers instead of libc, so that a test can make the n-th call of a
 * kind fail ("torture", as curl and SQLite do it). What makes them fail is linked around them in
 * test programs (tests/faults); here they are plain forwards. Any thread.
 */
#ifndef GS_BASE_SYS_H
#define GS_BASE_SYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Heap. NULL on failure; gs_free(NULL) is legal. gs_calloc and gs_array check n * size. */
void *gs_malloc(size_t size);
void *gs_calloc(size_t n, size_t size);
void *gs_realloc(void *p, size_t size);
void *gs_array(size_t n, size_t size); /* uninitialised n * size, NULL on overflow too */
char *gs_strdup(const char *s);
char *gs_strndup(const char *s, size_t n);
/* align is a power of two >= sizeof(void *). Freed with gs_free. */
void *gs_aligned(size_t align, size_t size);
void gs_free(void *p);

/* As the system calls, retried on EINTR. -1 and errno on failure. */
ssize_t gs_read(int fd, void *buf, size_t n);
ssize_t gs_write(int fd, const void *buf, size_t n);
ssize_t gs_pread(int fd, void *buf, size_t n, off_t at);
int gs_accept(int fd);

/* What root makes in a folder of somebody else's (a service's) is to belong to them: gives the open
 * file to the owner of folder. For others than root, and where that fails, it stays whose it is. */
void gs_give_to_owner(int fd, const char *folder);

/* Maps a whole file for reading. 0, or a GS_ERR_ code. An empty file gives data NULL, size 0. */
int gs_map_file(const char *path, const void **data, size_t *size, char *err, size_t errlen);
void gs_unmap(const void *data, size_t size);
/*
 * Whether a part of the mapping has gone: somebody made the file shorter while it was read. Such
 * bytes read as zeros instead of ending the process with SIGBUS, so whoever has read what counts
 * asks afterwards.
 */
bool gs_map_damaged(const void *data);
/* Zeroed anonymous pages, huge pages asked for where they exist; NULL on failure. What is large and
 * stays is entered in the ledger (base/memory.h). */
void *gs_pages_alloc(size_t size);
void gs_pages_free(void *p, size_t size);

#endif
