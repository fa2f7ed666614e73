/*
 * The one door to calls that can fail: allocation, read, write, accept, mmap.
 *
 * All of gamasot calls these wrappers instead of libc, so that a test can make the n-th call of a
 * kind fail ("torture", as curl and SQLite do it) and so that allocation totals can be read.
 * Release behaviour is a plain forward with one relaxed atomic load; any thread may call them.
 *
 *     gs_fault_set(GS_FAULT_ALLOC, 17, ENOMEM);   // the 17th allocation from now returns NULL
 *     ... run the scenario ...
 *     gs_fault_clear();
 *
 * GAMASOT_FAULT="alloc:17,write:3:ENOSPC" in the environment arms them in a whole process.
 */
#ifndef GS_BASE_SYS_H
#define GS_BASE_SYS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef enum gs_fault_kind {
    GS_FAULT_ALLOC,
    GS_FAULT_READ,
    GS_FAULT_WRITE,
    GS_FAULT_ACCEPT,
    GS_FAULT_MMAP,
    GS_FAULT_COUNT
} gs_fault_kind;

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
int gs_accept(int fd);

/* What root makes in a folder of somebody else's (a service's) is to belong to them: gives the open
 * file to the owner of folder. For others than root, and where that fails, it stays whose it is. */
void gs_give_to_owner(int fd, const char *folder);

/* Maps a whole file for reading. 0, or a GS_ERR_ code. An empty file gives data NULL, size 0. */
int gs_map_file(const char *path, const void **data, size_t *size, char *err, size_t errlen);
void gs_unmap(const void *data, size_t size);
/* Zeroed anonymous pages, huge pages asked for where they exist; NULL on failure. What is large and
 * stays is entered in the ledger (base/memory.h). */
void *gs_pages_alloc(size_t size);
void gs_pages_free(void *p, size_t size);

/* For libraries that take an allocation failure hook (libuv reads and accepts): true = fail now,
 * with errno set. Counts one call of that kind. */
int gs_fault_hit(gs_fault_kind kind);
/* The nth call from now of that kind fails once with errnum; nth 0 disarms the kind. */
void gs_fault_set(gs_fault_kind kind, uint64_t nth, int errnum);
void gs_fault_clear(void);
/* Calls of that kind since the last gs_fault_set/clear: how many points a torture run can hit. */
uint64_t gs_fault_calls(gs_fault_kind kind);
/* Arms from GAMASOT_FAULT; called once by main. Unknown words are reported in err. */
int gs_fault_from_env(char *err, size_t errlen);

#endif
